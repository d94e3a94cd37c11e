//! Cleaning: live blocks of half-dead groups move to new ones, and the units of dead groups become
//! free.
//!
//! Rules: the group with the fewest live blocks comes first ("most redundant first"). In an idle
//! gap groups are cleaned one after the other, so that cleaning can stop between two. When room is
//! short, several are cleaned at once, because each waits for donors four times; but only as many
//! as the room kept for cleaning can take, because half-emptied groups free nothing. A dead group
//! is freed when all successors of its blocks are safe. When room is short, a group counts as
//! half-dead also if new groups would be wider: it has more parity for its data. Left out: which
//! donor takes the new group (`state`).

use std::sync::Arc;

use crate::requests::trims::write_trims;
use crate::state::State;
use crate::state::memory::Memory;
use crate::state::repairs::REPAIRED_AT_ONCE;
use crate::state::room::{GROUPS_AHEAD, NOTE_UNITS, RESERVE_UNITS};
use crate::task::Core;
use crate::upkeep::empty::empty;
use crate::views::Room;

/// A group's share of the room, in blocks times the width of the groups that its blocks would move
/// to.
struct Share {
    all: usize,
    /// The part that holds no live blocks.
    wasted: usize,
}

/// Time without a request after which the disk is idle (ns).
const IDLE_NS: u64 = 200_000_000;

impl State {
    /// Returns the group to clean now, if any.
    fn next_victim(&mut self) -> Option<u32> {
        if !self.ready || self.shortage.is_stuck() {
            return None;
        }
        let idle = self.config.idle_cleaning && self.room().is_idle();
        let short = !self.room().has_room(GROUPS_AHEAD);
        if self.room().has_room(1) {
            self.shortage.set_narrow(false);
        }
        // Blocks that move without gaining room would move for ever.
        let in_vain = self.shortage.cleaned_in_vain() > 2 * self.groups.places() as usize + GROUPS_AHEAD;
        let looks = short || (idle && self.groups.has_changed());
        let more = self.shortage.victims().is_empty()
            || (short && self.shortage.victims().len() < self.config.victims as usize);
        if in_vain || !looks || !more {
            return None;
        }
        self.groups.refile();
        let found = self.room().find_victim(short);
        // There is nothing to find until something dies.
        if found.is_none() && !short {
            self.groups.is_searched();
        }
        found
    }
}

impl Room<'_> {
    /// Returns whether there has been no request for a while.
    pub fn is_idle(&self) -> bool {
        self.now_ns.saturating_sub(self.last_request_ns) > IDLE_NS
    }

    fn find_victim(&self, short: bool) -> Option<u32> {
        let width = self.roster().width(NOTE_UNITS);
        // Units that come back by themselves make room without more writes.
        let widens = short && !self.roster().awaits_units();
        let share = |index: u32| self.share(index, width, widens);
        // A group that is kept for others frees nothing when it is empty.
        let may_be_freed = |&(_, index): &(u32, u32)| !self.groups[index].is_held();
        let half_dead = || self.groups.by_live().filter(may_be_freed).filter(|&(_, index)| share(index).wasted > 0);
        let gains = || {
            let wasted = half_dead().map(|(_, index)| share(index).wasted);
            half_dead().next().filter(|&(live, _)| self.gives_a_group(live, wasted, width))
        };
        let pays = |&(_, index): &(u32, u32)| {
            let Share { all, wasted } = share(index);
            wasted * 4 >= all
        };
        if short {
            // The dead groups are enough. They are freed when the successors of their blocks are
            // safe.
            let dies = |&(_, index): &(u64, u32)| !self.groups[index].is_held();
            if self.groups.dying().filter(dies).take(GROUPS_AHEAD).count() == GROUPS_AHEAD {
                return None;
            }
            // Before a writer has to wait, clean only where it pays.
            let found = gains().filter(|found| pays(found) || !self.has_room(1));
            let victims = self.shortage.victims().len();
            let found = found.filter(|&(live, _)| victims == 0 || self.cleans_beside_victims(live));
            return found.map(|(_, victim)| victim);
        }
        gains().filter(pays).map(|(_, victim)| victim)
    }

    /// Returns a group's share of the room. `width`: of the groups that its blocks would move to.
    /// `widens`: its units count for what they would hold in such groups.
    fn share(&self, index: u32, width: usize, widens: bool) -> Share {
        let group = &self.groups[index];
        let (members, blocks) = (group.members.len(), width.max(1));
        let data = match widens && members < width {
            true => members * (width - self.plan.parity),
            false => group.data() * blocks,
        };
        let all = data * self.plan.buffer;
        Share { all, wasted: all.saturating_sub(group.live() as usize * blocks) }
    }

    /// Returns whether the cleaner may empty a group with this many live blocks beside others. All
    /// groups together must free more groups than they take.
    fn cleans_beside_victims(&self, live: u32) -> bool {
        let most = RESERVE_UNITS - NOTE_UNITS - 1;
        self.groups_beside_victims(live, most).is_some_and(|taken| taken <= self.shortage.victims().len())
    }

    /// Returns whether repair may empty a group with this many live blocks now.
    pub fn empties_beside_victims(&self, live: u32) -> bool {
        self.shortage.victims().is_empty() || self.groups_beside_victims(live, REPAIRED_AT_ONCE).is_some()
    }

    /// Number of groups, at most `most`, that these live blocks take together with those of the groups that are being
    /// emptied. `None`: there is not room for all of them, without units that writers may take and without one that
    /// repair may need.
    fn groups_beside_victims(&self, live: u32, most: usize) -> Option<usize> {
        let width = (self.plan.data + self.plan.parity).min(self.roster().takers());
        let slots = (width.saturating_sub(self.plan.parity) * self.plan.buffer) as u32;
        let is_roomy = |n: usize, groups: usize| self.roster().is_roomy(n, NOTE_UNITS + groups);
        let roomy = |groups: usize| self.roster().domains((0..self.donors.len()).filter(|&n| is_roomy(n, groups)));
        let kept = (1..=most).take_while(|&groups| roomy(groups) >= width).count();
        let moving = live + self.shortage.victims().iter().map(|&index| self.groups[index].live()).sum::<u32>();
        let taken = moving.saturating_sub(self.room_in_cleaning()).div_ceil(slots.max(1)) as usize;
        (taken <= kept).then_some(taken)
    }

    /// Number of blocks that the cleaner's open group can still take.
    fn room_in_cleaning(&self) -> u32 {
        let Some(index) = self.open.cleaners() else { return 0 };
        let group = &self.groups[index];
        let taken = |memory: &Memory| memory.lists.iter().map(Vec::len).sum::<usize>();
        group.memory().map_or(0, |memory| (group.data() * self.plan.buffer - taken(memory)) as u32)
    }

    /// Returns whether cleaning would make room in the end. It would not if all dead blocks
    /// together are less than a new group: live blocks would move for ever. Exception: the next
    /// victim's live blocks fit into the cleaner's open group.
    fn gives_a_group(&self, live: u32, mut wasted: impl Iterator<Item = usize>, width: usize) -> bool {
        let room = self.room_in_cleaning();
        if live <= room {
            return true;
        }
        let wanted = width.saturating_sub(self.plan.parity) * self.plan.buffer * width;
        if wanted == 0 {
            // No group can be opened now. Once one can, this is checked again.
            return false;
        }
        let mut gained = room as usize * width;
        wasted.any(|more| {
            gained += more;
            gained >= wanted
        })
    }
}

/// Cleans groups. Runs as long as the disk.
pub(crate) async fn cleaner(core: Arc<Core>) {
    loop {
        let cleaning = core.clone();
        core.until(|state| {
            let victim = state.next_victim()?;
            state.groups.claim(victim);
            state.shortage.cleans(victim);
            let core = cleaning.clone();
            state.schedule.spawn(async move { clean(&core, victim).await });
            Some(())
        })
        .await;
    }
}

async fn clean(core: &Arc<Core>, victim: u32) {
    empty(core, victim).await;
    {
        let state = &mut *core.lock();
        state.shortage.cleaned(victim);
        state.release(victim);
    }
    // Write lists of trims where the group's blocks went: alone in a group they would be the next
    // victim.
    let _ = write_trims(core).await;
}

impl State {}
