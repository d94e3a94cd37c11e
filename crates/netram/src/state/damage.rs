//! Damage: blocks that a donor returns with other contents than it was sent.
//!
//! Owns: [`Damage`], and how a damaged block is recorded. Rules: a block of a unit counts once,
//! however often it is read, and only if its group and unit are still the ones that were asked: a
//! unit that has moved meanwhile may read differently. A group with damage lacks redundancy until
//! the unit is written again. Groups that opening found incomplete are left out: a missing block
//! may never have been written. Left out: finding damage (`read`, `scrub`), the repair (`repair`).

use shoal_format::ram::GroupId;

use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::place::Member;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Blocks found since the disk was opened.
    pub found: u64,
    /// When the last one was found.
    pub last_ns: u64,
}

impl State {
    /// Records that the member at `place` of a group returned other bytes in `row` than it was
    /// sent. `id` and `member` are the group's number and the member at the time of the read.
    pub fn found_damage(&mut self, index: u32, id: GroupId, place: usize, member: Member, row: usize) {
        let Some(group) = self.groups.get_mut(index).filter(|group| group.id == id) else { return };
        let is_same = group.members.get(place) == Some(&member) && member.exists() && group.incomplete().is_none();
        if !is_same || group.is_in_memory() || is_planted(Bug::DamageIgnored) {
            return;
        }
        let (was_whole, is_new) = (!group.is_damaged(), group.add_damage(place, row));
        if !is_new {
            return;
        }
        self.damage.found += 1;
        self.damage.last_ns = self.now_ns;
        self.donors[member.donor as usize].damaged += 1;
        if was_whole {
            self.repairs.add((index, id), self.now_ns);
        }
        self.wake();
    }
}
