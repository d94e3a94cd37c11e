//! Scrubbing: reading everything, so that damage is found before the next loss of a donor makes it
//! permanent.
//!
//! Rules: all units of each sealed group are read, with their headers. Data blocks are compared
//! with their checksums, and parity with what it must be. Whatever does not match is recorded as
//! damage and repaired like any other. A unit that does not answer is not damaged; its donor is
//! asked again for some seconds. Left out: when to scrub (`state::scrubs`), the repair (`repair`).

use std::sync::Arc;

use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::requests::send::send;
use crate::state::State;
use crate::state::place::Member;
use crate::state::scrubs::Step;
use crate::task::{Core, pause};
use crate::upkeep::rebuild::{Rest, rest};

/// Stands for a unit's header among the rows of its group.
const HEADER_ROW: usize = u8::MAX as usize;
/// How long a scrub waits for open groups to be sealed (ns).
const CLOSING_NS: u64 = 10_000_000_000;
/// Stands for a member: none is left out.
const NONE: usize = usize::MAX;
/// How often a group is read again if a present donor refuses a unit, and the first pause (ns),
/// which doubles each time.
const TRIES: u32 = 6;
const AGAIN_NS: u64 = 100_000_000;

/// Scrubs the disk when that is due. Runs as long as the disk.
pub(crate) async fn scrubber(core: Arc<Core>) {
    // A donor that refuses everything delays the scrub at one group, not at each.
    let mut most = TRIES;
    loop {
        match core.until(State::next_to_scrub).await {
            Step::Close if is_planted(Bug::OpenUnscrubbed) => {}
            Step::Close => close_open(&core).await,
            Step::Look(index) => most = if scrub_in_tries(&core, index, most).await { TRIES } else { 0 },
        }
    }
}

/// Seals the groups that are being filled, as they are. A group that its donors do not take is left
/// to the next scrub.
async fn close_open(core: &Arc<Core>) {
    let (open, begun) = {
        let state = &mut *core.lock();
        let open = state.groups.in_memory().to_vec();
        for &index in &open {
            state.open.leave(index);
            if state.groups[index].memory().is_some_and(|memory| !memory.full) {
                state.close(index);
            }
            send(core, state, index);
        }
        let id = |index: u32| (index, state.groups[index].id);
        (open.into_iter().map(id).collect::<Vec<_>>(), state.now_ns)
    };
    core.until(|state| {
        let waits = open.iter().any(|&(index, id)| state.groups[index].id == id && state.groups[index].is_in_memory());
        (!waits || state.now_ns.saturating_sub(begun) > CLOSING_NS).then_some(())
    })
    .await;
}

/// Checks a group, and repeats that if a donor refuses: an unread unit may be damaged, and a scrub
/// must not claim that it is intact. Returns false if every try was refused.
async fn scrub_in_tries(core: &Arc<Core>, index: u32, most: u32) -> bool {
    for tries in 0..most {
        if scrub(core, index).await {
            return true;
        }
        pause(core, AGAIN_NS << tries).await;
    }
    scrub(core, index).await
}

/// Checks a group. Returns false if a present donor refused to return a unit.
async fn scrub(core: &Arc<Core>, index: u32) -> bool {
    let id = {
        let state = &*core.lock();
        let group = &state.groups[index];
        // Groups that opening found incomplete are repaired anyway, and dead ones are freed.
        if !group.exists() || group.is_in_memory() || group.incomplete().is_some() || group.live() == 0 {
            return true;
        }
        group.id
    };
    let rest = rest(core, index, NONE).await;
    let state = &mut *core.lock();
    rest.enter_damage(state, index, id);
    for (unit, member) in rest.members.iter().enumerate() {
        // The unit was read, and its header is not what was written.
        let was_read = rest.units[unit].is_some() || (is_planted(Bug::UnreadDamaged) && member.count > 0);
        if was_read && rest.headers[unit].is_none() {
            state.found_damage(index, id, unit, *member, HEADER_ROW);
        }
    }
    for (unit, row) in wrong_parity(&rest) {
        state.found_damage(index, id, unit, rest.members[unit], row);
    }
    let is_unread = |(member, unit): (&Member, &Option<Vec<u8>>)| {
        unit.is_none() && member.exists() && member.count > 0 && !state.donors[member.donor as usize].is_absent()
    };
    !rest.members.iter().zip(&rest.units).any(is_unread)
}

/// Returns the rows of parity units that do not match the data, in rows whose data blocks are all
/// intact.
fn wrong_parity(rest: &Rest) -> Vec<(usize, usize)> {
    let parities = rest.members.len() - rest.data;
    let rows = rest.members.iter().map(|member| member.count as usize).max().unwrap_or(0);
    let mut wrong = Vec::new();
    for row in (0..rows).filter(|_| parities > 0 && !is_planted(Bug::ParityUnscrubbed)) {
        let units = 0..rest.data;
        let has = |unit: usize| rest.members[unit].exists() && row < rest.members[unit].count as usize;
        let blocks: Vec<Option<&[u8]>> =
            units.clone().map(|unit| rest.block(unit, row).filter(|_| has(unit))).collect();
        if units.into_iter().any(|unit| has(unit) && blocks[unit].is_none()) {
            continue;
        }
        for (n, computed) in parity::encode(&blocks, parities, rest.shape.block_bytes).into_iter().enumerate() {
            let unit = rest.data + n;
            let covers = row < rest.members[unit].count as usize;
            if covers && rest.block(unit, row).is_some_and(|found| found != computed) {
                wrong.push((unit, row));
            }
        }
    }
    wrong
}
