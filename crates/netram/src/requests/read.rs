//! Reading: from a cache, from the donor, or from the rest of the row if the donor is lost.
//!
//! Rules: every block read from a donor is compared with the checksum in the block table. A block
//! that does not match is computed from parity, or looked up again if it has moved meanwhile. Wrong
//! data is never returned. A read waits for donors that are away as long as the disk's patience
//! lasts. Then the read fails, and the next one tries again. A donor that is late or set aside is
//! not waited for: its blocks are computed from the others, and the first answer counts. Left out:
//! the donors' answers (`task`).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use parking_lot::Mutex;

use std::sync::Arc;

use shoal_format::ram;

use crate::api::{DiskError, Purpose};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::DonorState;
use crate::state::map::Mapped;
use crate::state::place::{Location, Member};
use crate::state::schedule::Answer;
use crate::state::unit::Shape;
use crate::task::{Core, Op, all, pause};

/// How often a block that a donor refuses is asked for, and the pause between attempts (ns).
const TRIES: usize = 4;
const AGAIN_NS: u64 = 100_000_000;

/// A donor is late if it has answered nothing for `SILENT_NS`, or this request not for `LATE_NS`
/// (ns).
const SILENT_NS: u64 = 50_000_000;
const LATE_NS: u64 = 500_000_000;
/// Reads that may ask other donors at the same time. If all donors are slow, more work would make
/// them slower.
const HEDGES_MAX: usize = 32;
/// A donor writes a sector completely or not at all (bytes).
const SECTOR: usize = 512;
/// Parts of one request that may be waited for at the same time.
const AT_ONCE: usize = 64;

/// Adjacent blocks of a request on one donor.
struct Run {
    op: Op,
    at: Location,
    first: u32,
    sums: Vec<u32>,
}

pub(crate) async fn read(core: Arc<Core>, ticket: u64, at: u64, mut buffer: Vec<u8>) {
    let result = read_range(&core, at, &mut buffer).await;
    core.lock().complete(ticket, result.map(|()| buffer));
}

async fn read_range(core: &Arc<Core>, at: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
    let block_bytes = core.shape.block_bytes as u64;
    let end = at + buffer.len() as u64;
    let (first, last) = (at / block_bytes, end.div_ceil(block_bytes));
    if !at.is_multiple_of(block_bytes) || !end.is_multiple_of(block_bytes) {
        let mut whole = vec![0; ((last - first) * block_bytes) as usize];
        read_blocks(core, first as u32, &mut whole).await?;
        buffer.copy_from_slice(&whole[(at - first * block_bytes) as usize..][..buffer.len()]);
        return Ok(());
    }
    read_blocks(core, first as u32, buffer).await
}

async fn read_blocks(core: &Arc<Core>, first: u32, buffer: &mut [u8]) -> Result<(), DiskError> {
    let Shape { block_bytes, block_sums, .. } = core.shape;
    let (mut runs, mut failed) = start(core, first, buffer);
    let mut missing = Vec::new();
    let mut take = |(begin, sums, bytes): (u32, Vec<u32>, Vec<u8>)| {
        for (n, sum) in sums.into_iter().enumerate() {
            let number = begin + n as u32;
            match bytes.get(n * block_bytes..(n + 1) * block_bytes) {
                Some(found) if block_sums.of(found) == sum || is_planted(Bug::NoChecksum) => {
                    buffer[(number - first) as usize * block_bytes..][..block_bytes].copy_from_slice(found)
                }
                _ => missing.push(number),
            }
        }
    };
    if runs.len() == 1 {
        // Most requests have a single run.
        take(answer_to(core, runs.remove(0)).await);
    } else {
        let mut runs = runs.into_iter().peekable();
        while runs.peek().is_some() {
            let answers = all(runs.by_ref().take(AT_ONCE).map(|run| answer_to(core, run)));
            answers.await.into_iter().for_each(&mut take);
        }
    }
    for numbers in missing.chunks(AT_ONCE) {
        if failed.is_err() {
            break;
        }
        for (&number, found) in numbers.iter().zip(all(numbers.iter().map(|&number| block(core, number))).await) {
            match found {
                Ok((found, _)) => {
                    buffer[(number - first) as usize * block_bytes..][..block_bytes].copy_from_slice(&found)
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
    }
    failed
}

/// Returns a donor's answer if it comes before `other` is ready.
async fn before(op: &mut Op, mut other: Pin<&mut impl Future<Output = ()>>) -> Option<Answer> {
    poll_fn(|context| match Pin::new(&mut *op).poll(context) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => other.as_mut().poll(context).map(|()| None),
    })
    .await
}

async fn answer_to(core: &Arc<Core>, run: Run) -> (u32, Vec<u32>, Vec<u8>) {
    let bytes = answer(core, run.op, run.at, &run.sums).await.unwrap_or_default();
    (run.first, run.sums, bytes)
}

/// Returns the answer of a donor that was asked for blocks from `at` on. If it is late and the
/// other donors are faster, computes the blocks from theirs.
async fn answer(core: &Arc<Core>, mut op: Op, at: Location, sums: &[u32]) -> Answer {
    let (asked_ns, redundant) = {
        let state = core.lock();
        (state.now_ns, state.plan.parity > 0)
    };
    let mut late = std::pin::pin!(core.until_late(|state| {
        let member = state.groups[at.group].members.get(at.unit);
        let Some(member) = member.filter(|member| redundant && member.exists()) else { return false };
        let waited = |since: u64| state.now_ns.saturating_sub(since);
        let silent = waited(asked_ns.max(state.donors[member.donor as usize].answered_ns)) > SILENT_NS;
        let aside = state.donors[member.donor as usize].pace.aside().is_some();
        (waited(asked_ns) > LATE_NS || silent || aside) && state.hedges < HEDGES_MAX
    }));
    if let Some(answer) = before(&mut op, late.as_mut()).await {
        return answer;
    }
    let found: Arc<Mutex<Option<Vec<Fetched>>>> = Arc::default();
    let (hedging, hedge, wanted) = (core.clone(), found.clone(), sums.to_vec());
    {
        let state = &mut *core.lock();
        state.hedges += 1;
        // A separate job: if this donor is faster, the hedge's answers must still be taken.
        state.schedule.spawn(async move {
            let rows = wanted.into_iter().enumerate();
            let blocks = all(rows.map(|(n, sum)| {
                let at = Location { row: at.row + n, ..at };
                reconstruct(&hedging, at, sum, Purpose::Read)
            }));
            let blocks = blocks.await;
            *hedge.lock() = Some(blocks);
            let state = &mut *hedging.lock();
            state.hedges -= 1;
            state.wake();
        });
    }
    let mut is_there = std::pin::pin!(core.until(|_| found.lock().is_some().then_some(())));
    if let Some(answer) = before(&mut op, is_there.as_mut()).await {
        return answer;
    }
    let blocks = found.lock().take().expect("it was seen there");
    let mut good = Vec::new();
    for block in blocks {
        let Fetched::Good(bytes) = block else { return op.await };
        good.extend(bytes);
    }
    core.lock().schedule.spawn(async move { drop(op.await) });
    Ok(good)
}

/// Copies blocks that are in memory and asks donors for the rest.
fn start(core: &Arc<Core>, first: u32, buffer: &mut [u8]) -> (Vec<Run>, Result<(), DiskError>) {
    let state = &mut *core.lock();
    let mut failed = Ok(());
    let mut runs: Vec<Run> = Vec::new();
    let mut asked: Vec<(Member, Location, u32, Vec<u32>)> = Vec::new();
    for (n, out) in buffer.chunks_exact_mut(state.shape.block_bytes).enumerate() {
        let number = first + n as u32;
        state.counts.blocks_read += 1;
        let Some(Mapped { at, sum }) = state.map.find(number) else {
            if state.is_lost(number) && failed.is_ok() {
                failed = Err(DiskError::Lost { block: number as u64 });
            }
            out.fill(0);
            continue;
        };
        if let Some(bytes) = state.in_memory(at) {
            out.copy_from_slice(bytes);
            continue;
        }
        let member = state.groups[at.group].members[at.unit];
        match asked.last_mut() {
            Some((last, from, begin, sums))
                if *last == member && from.row + sums.len() == at.row && *begin + sums.len() as u32 == number =>
            {
                sums.push(sum)
            }
            _ => asked.push((member, at, number, vec![sum])),
        }
    }
    for (member, at, first, sums) in asked {
        let op = core.read(state, member, at.row..at.row + sums.len(), Purpose::Read);
        runs.push(Run { op, at, first, sums });
    }
    (runs, failed)
}

impl State {
    pub fn is_lost(&self, block: u32) -> bool {
        self.map.is_lost(block) && !is_planted(Bug::LostZeros)
    }
}

/// Reads one block by any means. Also returns where it was.
pub(crate) async fn block(core: &Arc<Core>, number: u32) -> Result<(Vec<u8>, Option<Mapped>), DiskError> {
    let mut tries = 0;
    loop {
        let (found, returns) = {
            let state = &mut *core.lock();
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            if state.is_lost(number) {
                return Err(DiskError::Lost { block: number as u64 });
            }
            let Some(found) = state.map.find(number) else { return Ok((vec![0; state.shape.block_bytes], None)) };
            if let Some(bytes) = state.in_memory(found.at) {
                return Ok((bytes.to_vec(), Some(found)));
            }
            (found, state.repairs.tries())
        };
        let fetched = fetch(core, found.at, found.sum, Purpose::Read).await;
        if let Fetched::Good(bytes) = fetched {
            return Ok((bytes, Some(found)));
        }
        // The block has moved, or a donor came back: another attempt may succeed.
        let changed = core
            .until(|state| {
                let changed = state.map.find(number) != Some(found)
                    || state.repairs.tries() != returns
                    || state.failure.is_some();
                let waits = matches!(fetched, Fetched::Unanswered) && state.roster().awaits();
                (changed || !waits).then_some(changed)
            })
            .await;
        if changed {
            continue;
        }
        tries += 1;
        // The block has not moved and cannot be read. A donor that refuses may recover.
        let away = core.lock().donors.iter().any(|donor| donor.counts() && donor.is_absent());
        if away || tries >= TRIES || (tries > 1 && matches!(fetched, Fetched::Bad)) {
            return Err(unavailable(&core.lock(), number));
        }
        if matches!(fetched, Fetched::Unanswered) {
            pause(core, AGAIN_NS).await;
        }
    }
}

fn unavailable(state: &State, number: u32) -> DiskError {
    let away =
        |donor: &&crate::state::donors::Donor| matches!(donor.state, DonorState::Missing | DonorState::Forgotten);
    let away = state.donors.iter().filter(away).map(|donor| format!("{} is away", donor.info.name));
    let away: Vec<String> = away.collect();
    let donors = if away.is_empty() { "a donor holds other bytes than it was sent".into() } else { away.join(", ") };
    DiskError::Unavailable { block: number as u64, donors }
}

/// The outcome of fetching a block.
pub(crate) enum Fetched {
    Good(Vec<u8>),
    /// All donors that may have a part of the block have answered: it cannot be read.
    Bad,
    /// A donor that may have a part of the block is away or refuses.
    Unanswered,
}

/// Fetches a block of a sealed group from its own unit or from the rest of its row.
pub(crate) async fn fetch(core: &Arc<Core>, at: Location, sum: u32, purpose: Purpose) -> Fetched {
    let (own, id, member) = {
        let state = &mut *core.lock();
        let group = &state.groups[at.group];
        if !group.exists() || group.is_in_memory() {
            return Fetched::Unanswered;
        }
        let there = group.members[at.unit].exists() && at.row < group.own(at.unit) as usize;
        let (id, member) = (group.id, group.members[at.unit]);
        (there.then(|| core.read(state, member, at.row..at.row + 1, purpose)), id, member)
    };
    let mut answered = {
        let state = core.lock();
        let group = &state.groups[at.group];
        // A unit that exists without this row will never have it.
        group.members.get(at.unit).is_some_and(Member::exists) || !state.may_come(at, at.unit)
    };
    if let Some(own) = own {
        let own = if purpose == Purpose::Read { answer(core, own, at, &[sum]).await } else { own.await };
        match own {
            Ok(bytes) if core.shape.block_sums.of(&bytes) == sum => return Fetched::Good(bytes),
            Ok(_) => core.lock().found_damage(at.group, id, at.unit, member, at.row),
            Err(_) => answered = false,
        }
    }
    match reconstruct(core, at, sum, purpose).await {
        Fetched::Bad if !answered && core.lock().may_come(at, at.unit) => Fetched::Unanswered,
        other => other,
    }
}

impl State {
    /// Returns whether any donor may still return what this unit holds.
    fn may_come(&self, at: Location, unit: usize) -> bool {
        let group = &self.groups[at.group];
        let Some(member) = group.members.get(unit).filter(|_| group.exists()) else { return true };
        match member.exists() {
            true => !self.donors[member.donor as usize].is_final(),
            // The unit may be on a donor that has not been scanned yet.
            false => self.donors.iter().any(|donor| donor.counts() && !donor.scanned && !donor.is_final()),
        }
    }

    /// Returns whether the contents of this unit are gone for good.
    pub fn is_gone(&self, at: Location, unit: usize) -> bool {
        let group = &self.groups[at.group];
        let Some(member) = group.members.get(unit).filter(|_| group.exists()) else { return false };
        // A unit that was not found may be on a donor that has not been scanned yet, or that was
        // taken for another.
        member.exists() && self.donors[member.donor as usize].is_final()
    }
}

/// The readable parts of a row, without the wanted block.
struct Row {
    /// Blocks of data units: zeros where parity covers nothing.
    data: Vec<Option<Vec<u8>>>,
    parity: Vec<Option<Vec<u8>>>,
    /// The data blocks of the row in the order of their sequences, for a parity unit that may be a
    /// former version.
    in_order: Vec<Option<Vec<u8>>>,
    /// The wanted block is a list of ranges.
    is_note: bool,
    /// All donors that may hold a block of the row have answered.
    answered: bool,
}

/// Reads the other blocks of a row. Returns at once if the block cannot be computed.
async fn rest_of_row(core: &Arc<Core>, at: Location, purpose: Purpose) -> Result<Row, Fetched> {
    let (data, block_bytes, is_note, units, mut answered) = {
        let state = &mut *core.lock();
        let group = &state.groups[at.group];
        if !group.exists() || group.is_in_memory() {
            return Err(Fetched::Unanswered);
        }
        if group.members.len() == group.data() {
            return Err(Fetched::Bad);
        }
        let data = group.data();
        // For units that opening found: what their lists say about this row.
        let listed = |unit: usize| group.incomplete().and_then(|found| found.lists.get(unit)?.get(at.row));
        let is_note = listed(at.unit).is_some_and(|entry| ram::is_note(entry.block));
        let sequences: Vec<Option<u64>> = (0..data).map(|unit| listed(unit).map(|entry| entry.sequence)).collect();
        let covered: Vec<u8> = (0..data).map(|unit| group.covered(unit)).collect();
        let own: Vec<u8> = (0..data).map(|unit| group.own(unit)).collect();
        let members = group.members.clone();
        let mut units: Vec<(bool, Option<u64>, Option<Op>)> = Vec::new();
        let mut answered = true;
        for (unit, &member) in members.iter().enumerate() {
            // A data unit without a block in this row counts as zeros.
            let empty = at.row >= covered.get(unit).copied().unwrap_or(member.count) as usize;
            let sequence = sequences.get(unit).copied().flatten().filter(|_| unit != at.unit);
            let has = member.exists() && at.row < own.get(unit).copied().unwrap_or(member.count) as usize;
            let wanted = unit != at.unit && (!empty || sequence.is_some());
            let there = wanted && has && !state.donors[member.donor as usize].is_absent();
            answered &= there || empty || unit == at.unit || !state.may_come(at, unit) || (member.exists() && !has);
            units.push((empty, sequence, there.then(|| core.read(state, member, at.row..at.row + 1, purpose))));
        }
        (data, state.shape.block_bytes, is_note, units, answered)
    };
    let mut row = Vec::new();
    let mut in_order = Vec::new();
    for (unit, (empty, sequence, op)) in units.into_iter().enumerate() {
        let asked = op.is_some();
        let bytes = match op {
            Some(op) => op.await.ok(),
            None => None,
        };
        answered &= empty || !asked || bytes.is_some();
        in_order.extend(sequence.map(|sequence| (sequence, bytes.clone())));
        let zeros = || (empty && unit < data && unit != at.unit).then(|| vec![0; block_bytes]);
        row.push(bytes.filter(|_| !empty).or_else(zeros));
    }
    in_order.sort_unstable_by_key(|&(sequence, _)| sequence);
    let in_order = in_order.into_iter().map(|(_, bytes)| bytes).collect();
    let parity = row.split_off(data);
    Ok(Row { data: row, parity, in_order, is_note, answered })
}

/// Computes a block of a sealed group from the rest of its row.
pub(crate) async fn reconstruct(core: &Arc<Core>, at: Location, sum: u32, purpose: Purpose) -> Fetched {
    let Row { data: row, parity, in_order, is_note, answered } = match rest_of_row(core, at, purpose).await {
        Ok(row) => row,
        Err(fetched) => return fetched,
    };
    let block_sums = core.shape.block_sums;
    let right = |found: &Vec<u8>| block_sums.of(found) == sum;
    let mut restored = parity::decode(at.unit, &row, &parity).filter(right);
    // With more parity than needed, one of the others may be wrong: a block, or a parity that was
    // written in part.
    let (data, count) = (row.len(), parity.len());
    for wrong in (0..data + count).filter(|&unit| count > 1 && unit != at.unit) {
        let (mut others, mut parities) = (row.clone(), parity.clone());
        let left_out = if wrong < data { &mut others[wrong] } else { &mut parities[wrong - data] };
        if restored.is_none() && left_out.take().is_some() {
            restored = parity::decode(at.unit, &others, &parities).filter(right);
        }
    }
    if let ([Some(parity)], None, false) = (&parity[..], &restored, is_planted(Bug::FormerForgotten)) {
        // A list can be verified beyond its checksum, so a cut at any byte is tried. For a block
        // only cuts between two sectors are tried, because a write ends nowhere else.
        let step = if is_note { 1 } else { SECTOR };
        let found = parity::of_former(parity, &in_order, |bytes| block_sums.of(bytes) == sum, step);
        restored = found.filter(|bytes| !is_note || ram::decode_trimmed(bytes).is_ok());
    }
    match restored {
        Some(bytes) => {
            core.lock().counts.reconstructed += 1;
            Fetched::Good(bytes)
        }
        None if answered => Fetched::Bad,
        None => Fetched::Unanswered,
    }
}

#[cfg(test)]
mod tests {
    use shoal_media::Request;

    use crate::api::{Action, DonorError, DonorInfo, DonorOp, Trouble};
    use crate::{Config, Engine, Policy};

    const BLOCK: usize = 512;

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Reads {
        Work,
        Fail,
    }

    /// Carries out the engine's operations. Returns which requests completed, and whether they
    /// succeeded.
    fn serve(engine: &mut Engine, donors: &mut [Vec<u8>], reads: Reads) -> Vec<bool> {
        let mut complete = Vec::new();
        loop {
            let actions = engine.actions();
            if actions.is_empty() {
                return complete;
            }
            for action in actions {
                let (ticket, donor, op) = match action {
                    Action::Donor { ticket, donor, op, .. } => (ticket, donor, op),
                    Action::Complete { result, .. } => {
                        complete.push(result.is_ok());
                        continue;
                    }
                };
                let bytes = &mut donors[donor as usize];
                let answer = match op {
                    DonorOp::Read { .. } if reads == Reads::Fail => Err(DonorError::new(Trouble::Refused, "gone")),
                    DonorOp::Read { at, len } => Ok(bytes[at as usize..][..len as usize].to_vec()),
                    DonorOp::Write { at, bytes: new } => {
                        bytes[at as usize..][..new.len()].copy_from_slice(&new);
                        Ok(vec![])
                    }
                    DonorOp::Trim { .. } => Ok(vec![]),
                };
                engine.done(ticket, answer, 0);
            }
        }
    }

    #[test]
    fn a_failed_read_leaves_no_answers_behind() {
        let config =
            Config { policy: Policy::None, block_bytes: BLOCK as u32, idle_cleaning: false, ..Config::default() };
        let mut donors = vec![vec![0; 1 << 20]; 4];
        let infos = (0..4).map(|n| DonorInfo { name: format!("donor{n}"), bytes: 1 << 20, domain: 0 });
        let mut engine = Engine::create(&config, infos.collect(), 0).unwrap();
        serve(&mut engine, &mut donors, Reads::Work);
        engine.submit(1, Request::Write { at: 0, buffer: vec![1; 64 * BLOCK], fua: true }, 0);
        assert_eq!(serve(&mut engine, &mut donors, Reads::Work), [true]);
        engine.submit(2, Request::Read { at: 0, buffer: vec![0; 64 * BLOCK] }, 0);
        // The engine asks a refusing donor again for a moment.
        let mut answers = (0..100).map(|tick| {
            let complete = serve(&mut engine, &mut donors, Reads::Fail);
            engine.tick(tick * 50_000_000);
            complete
        });
        assert_eq!(answers.find(|complete| !complete.is_empty()), Some(vec![false]));
        assert_eq!(engine.answers_untaken(), 0);
    }
}
