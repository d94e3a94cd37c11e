//! Reading: from a cache, from the donor, or from what is left of the row when the donor is lost.
//!
//! Rules: every block read from a donor is compared with the checksum in the block table; one that does not match is taken from
//! parity, or looked up again if it has moved meanwhile. Nothing wrong is ever returned. Left out: the donors' answers (`task`).

use std::sync::Arc;

use shoal_format::checksum;

use crate::api::{DiskError, Purpose};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::repair::donor_lost;
use crate::state::{Location, Member, State};
use crate::task::{Core, Op};

/// Blocks of a request that lie side by side on one donor.
struct Run {
    op: Op,
    first: u32,
    crcs: Vec<u32>,
}

pub(crate) async fn read(core: Arc<Core>, ticket: u64, at: u64, mut buffer: Vec<u8>) {
    let result = read_range(&core, at, &mut buffer).await;
    core.lock().complete(ticket, result.map(|()| buffer));
}

async fn read_range(core: &Arc<Core>, at: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
    let block_bytes = core.lock().block_bytes as u64;
    let end = at + buffer.len() as u64;
    if !at.is_multiple_of(block_bytes) || !end.is_multiple_of(block_bytes) {
        let mut position = at;
        while position < end {
            let number = position / block_bytes;
            let to = ((number + 1) * block_bytes).min(end);
            let (bytes, _) = block(core, number as u32).await?;
            let from = (position % block_bytes) as usize;
            buffer[(position - at) as usize..(to - at) as usize]
                .copy_from_slice(&bytes[from..from + (to - position) as usize]);
            position = to;
        }
        return Ok(());
    }
    let first = (at / block_bytes) as u32;
    let runs = start(core, first, buffer);
    let mut failed = Ok(());
    for run in runs {
        // After an error too: an answer that nobody takes would be kept.
        let donor = run.op.donor;
        let answer = run.op.await;
        if answer.is_err() {
            donor_lost(core, donor);
        }
        let bytes = answer.unwrap_or_default();
        for (n, &crc) in run.crcs.iter().enumerate() {
            let number = run.first + n as u32;
            let out = &mut buffer[((number - first) as u64 * block_bytes) as usize..][..block_bytes as usize];
            match bytes.get(n * block_bytes as usize..(n + 1) * block_bytes as usize) {
                Some(found) if checksum(0, found) == crc || is_planted(Bug::NoChecksum) => out.copy_from_slice(found),
                _ if failed.is_err() => {}
                _ => match block(core, number).await {
                    Ok((found, _)) => out.copy_from_slice(&found),
                    Err(error) => failed = Err(error),
                },
            }
        }
    }
    failed
}

/// Copies what is in memory, asks donors for the rest.
fn start(core: &Arc<Core>, first: u32, buffer: &mut [u8]) -> Vec<Run> {
    let state = &mut *core.lock();
    let mut runs: Vec<Run> = Vec::new();
    let mut asked: Vec<(Member, usize, u32, Vec<u32>)> = Vec::new();
    for (n, out) in buffer.chunks_exact_mut(state.block_bytes).enumerate() {
        let number = first + n as u32;
        state.counts.blocks_read += 1;
        let Some((at, crc)) = state.find(number) else {
            out.fill(0);
            continue;
        };
        if let Some(bytes) = state.in_memory(at) {
            out.copy_from_slice(bytes);
            continue;
        }
        let member = state.groups[at.group as usize].members[at.unit];
        match asked.last_mut() {
            Some((last, row, begin, crcs))
                if *last == member && *row + crcs.len() == at.row && *begin + crcs.len() as u32 == number =>
            {
                crcs.push(crc)
            }
            _ => asked.push((member, at.row, number, vec![crc])),
        }
    }
    for (member, row, first, crcs) in asked {
        let op = core.read(state, member, row..row + crcs.len(), Purpose::Read);
        runs.push(Run { op, first, crcs });
    }
    runs
}

/// One block, by whatever way there is; and where it was.
pub(crate) async fn block(core: &Arc<Core>, number: u32) -> Result<(Vec<u8>, Option<(Location, u32)>), DiskError> {
    let mut last = None;
    loop {
        let (found, op) = {
            let state = &mut *core.lock();
            if state.lost_blocks.contains(&number) {
                return Err(unavailable(state, number));
            }
            let Some((at, crc)) = state.find(number) else { return Ok((vec![0; state.block_bytes], None)) };
            if let Some(bytes) = state.in_memory(at) {
                return Ok((bytes.to_vec(), Some((at, crc))));
            }
            if last == Some((at, crc)) {
                // It has not moved: it is really not to be had.
                return Err(unavailable(state, number));
            }
            let member = state.groups[at.group as usize].members[at.unit];
            ((at, crc), core.read(state, member, at.row..at.row + 1, Purpose::Read))
        };
        let donor = op.donor;
        match op.await {
            Ok(bytes) if checksum(0, &bytes) == found.1 => return Ok((bytes, Some(found))),
            Ok(_) => {}
            Err(_) => donor_lost(core, donor),
        }
        if let Some(bytes) = reconstruct(core, found.0, Purpose::Read).await
            && checksum(0, &bytes) == found.1
        {
            return Ok((bytes, Some(found)));
        }
        last = Some(found);
    }
}

fn unavailable(state: &State, number: u32) -> DiskError {
    let lost = state.donors.iter().filter(|donor| donor.is_lost()).map(|donor| donor.info.name.as_str());
    let lost: Vec<&str> = lost.collect();
    let donors = if lost.is_empty() { "a donor holds other bytes than it was sent".into() } else { lost.join(", ") };
    DiskError::Unavailable { block: number as u64, donors }
}

/// A block of a sealed group from the rest of its row. The caller checks what it gets.
pub(crate) async fn reconstruct(core: &Arc<Core>, at: Location, purpose: Purpose) -> Option<Vec<u8>> {
    let (data, ops) = {
        let state = &mut *core.lock();
        let group = &state.groups[at.group as usize];
        if group.id == 0 || group.memory.is_some() || group.members.len() == group.data {
            return None;
        }
        let data = group.data;
        let counts: Vec<u8> = (0..data).map(|unit| group.covered(unit)).collect();
        let members = group.members.clone();
        let mut ops: Vec<(bool, Option<Op>)> = Vec::new();
        for (unit, &member) in members.iter().enumerate() {
            // A data unit without a block in this row counts as zeros.
            let empty = at.row >= counts.get(unit).copied().unwrap_or(member.count) as usize;
            let there = unit != at.unit && !empty && member.exists();
            let there = there && !state.donors[member.donor as usize].is_lost();
            ops.push((empty, there.then(|| core.read(state, member, at.row..at.row + 1, purpose))));
        }
        (data, ops)
    };
    let block_bytes = core.lock().block_bytes;
    let mut row = Vec::new();
    for (unit, (empty, op)) in ops.into_iter().enumerate() {
        row.push(match op {
            Some(op) => {
                let donor = op.donor;
                match op.await {
                    Ok(bytes) => Some(bytes),
                    Err(_) => {
                        donor_lost(core, donor);
                        None
                    }
                }
            }
            None => (empty && unit < data && unit != at.unit).then(|| vec![0; block_bytes]),
        });
    }
    let parity = row.split_off(data);
    let restored = parity::decode(at.unit, &row, &parity)?;
    core.lock().counts.reconstructed += 1;
    Some(restored)
}

#[cfg(test)]
mod tests {
    use shoal_media::Request;

    use crate::api::{Action, DonorError, DonorInfo, DonorOp};
    use crate::{Config, Engine, Policy};

    const BLOCK: usize = 512;

    /// Carries out what the engine wants; a read of a failing donor fails. Returns what is complete.
    fn serve(engine: &mut Engine, donors: &mut [Vec<u8>], reads_fail: bool) -> Vec<bool> {
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
                    DonorOp::Read { .. } if reads_fail => Err(DonorError { why: "gone".into() }),
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
        let infos = (0..4).map(|n| DonorInfo { name: format!("donor{n}"), bytes: 1 << 20 });
        let mut engine = Engine::create(&config, infos.collect(), 0).unwrap();
        serve(&mut engine, &mut donors, false);
        engine.submit(1, Request::Write { at: 0, buffer: vec![1; 64 * BLOCK], fua: true }, 0);
        assert_eq!(serve(&mut engine, &mut donors, false), [true]);
        engine.submit(2, Request::Read { at: 0, buffer: vec![0; 64 * BLOCK] }, 0);
        assert_eq!(serve(&mut engine, &mut donors, true), [false]);
        assert_eq!(engine.answers_untaken(), 0);
    }
}
