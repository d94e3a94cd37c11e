//! Opening a disk from a checkpoint of its map: its pages, and the headers of units that it leaves open.
//!
//! Rules: all donors of the disk must be there and name the checkpoint, and every piece of it must
//! be right. Otherwise all units are looked at (`scan`). A unit that a log names is what its header
//! says; any other is what the pages say. A group of the pages loses a unit that a log names and
//! whose header does not name the group. Such a group must have no live block. For each block the
//! pages say where it is, that it holds nothing, or that it must be looked for. Entries written
//! since the checkpoint began are newer than the pages. Left out: which of several entries counts
//! (`scan`).

use std::collections::HashMap;
use std::sync::Arc;

use shoal_format::ram::UnitHeader;
use shoal_format::ram_checkpoint::{GroupRecord, Kind, PIECE_HEADER, Root, Stamp, decode, decode_list, decode_range};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::membership::headers::{headers_of, insist};
use crate::opening::base::{Base, reconcile};
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::bits::Bits;
use crate::state::checkpoints::{VALID, Valid};
use crate::state::group::Group;
use crate::state::place::Member;
use crate::state::units::Log;
use crate::task::{Core, Op, all};

/// Bytes of logs and pages per request, and requests in flight to each donor.
const READ_BYTES: usize = 1 << 18;
const READS_AT_ONCE: usize = 4;

/// Why a checkpoint is not used.
pub(crate) type Unused = &'static str;

const NOT_NAMED: Unused = "the superblocks of all donors do not name one";
const BAD_ROOT: Unused = "a root or a log is damaged, or a donor does not answer";
const BAD_PAGE: Unused = "a page is damaged, or a donor does not answer";
const BAD_UNIT: Unused = "a unit that a log names cannot be read";
const ENDED: Unused = "a donor went away, or a change of membership ended it";
const CONTRADICTED: Unused = "pages and units contradict each other";
/// Reported by the caller of [`load`], which looks for the blocks.
pub(crate) const NOT_FOUND: Unused = "a block that it says is in a new unit is not there";

/// Reads bytes from a donor. `None`: it does not return them.
async fn read(core: &Arc<Core>, donor: usize, at: u64, len: usize) -> Option<Vec<u8>> {
    let op = |_: &State, ()| DonorOp::Read { at, len: len as u32 };
    insist(core, donor as DonorId, vec![()], op).await?.pop().map(|((), bytes)| bytes)
}

/// Reads the units that a donor's log names, and how many pieces it has. `None`: the log is damaged
/// or incomplete.
async fn log(core: &Arc<Core>, donor: usize, stamp: &Stamp) -> Option<Log> {
    let (layout, units) = {
        let state = core.lock();
        (state.window().layout(donor), state.donors[donor].units.count())
    };
    let each = (READ_BYTES / layout.record_bytes).max(1) as u32;
    let mut log = Log { number: stamp.number, open: Bits::new(units as usize), listed: true, ..Log::default() };
    for first in (0..layout.records).step_by(each as usize) {
        let count = each.min(layout.records - first);
        let at = layout.record_at(stamp.number % 2, first);
        let bytes = read(core, donor, at, count as usize * layout.record_bytes).await?;
        for (n, piece) in bytes.chunks_exact(layout.record_bytes).enumerate() {
            let index = first + n as u32;
            match decode(piece, stamp, index)? {
                (Kind::List, payload) => {
                    for unit in decode_list(payload) {
                        log.open.set(unit as usize, true);
                        log.named += 1;
                    }
                }
                (Kind::End, _) => {
                    log.used = index;
                    return Some(log);
                }
                _ => return None,
            }
        }
    }
    None
}

/// The ranges covered by the pages read so far, and the lost blocks.
#[derive(Default)]
struct Pages {
    groups: Vec<(u32, u32)>,
    table: Vec<(u32, u32)>,
    lost: Vec<u32>,
}

impl Pages {
    /// Enters a page into the state. `None`: it is damaged.
    fn enter(&mut self, state: &mut State, kind: Kind, payload: &[u8]) -> Option<()> {
        if kind == Kind::Lost {
            self.lost.extend(decode_list(payload));
            return Some(());
        }
        let (first, count, mut body) = decode_range(payload)?;
        match kind {
            Kind::Groups => {
                for index in first..first.checked_add(count)? {
                    let Some(record) = GroupRecord::take(&mut body)? else { continue };
                    let members = record.members();
                    let member = |(donor, unit, count)| Member { donor, unit, count };
                    let place = state.groups.get_mut(index)?;
                    *place = Group::new(record.id, record.data as usize, members.map(member).collect::<Vec<_>>());
                    place.first_sequence = record.first_sequence;
                    // The pages do not say whether it has lists that no longer count.
                    place.may_hold_ranges();
                    let data = place.data();
                    if data == 0 || data > state.plan.data || place.members.len() < data {
                        return None;
                    }
                }
                self.groups.push((first, count));
            }
            Kind::Table => {
                state.map.enter_page(first, count, body)?;
                self.table.push((first, count));
            }
            _ => return None,
        }
        Some(())
    }
}

/// Returns whether these ranges cover everything exactly once.
pub(crate) fn is_whole(mut ranges: Vec<(u32, u32)>, count: u32) -> bool {
    ranges.sort_unstable();
    let end = ranges.iter().try_fold(0, |end, &(first, count)| (first == end).then(|| first + count));
    end == Some(count)
}

/// Reads the checkpoint that the superblocks name, or says why it is not used.
pub(crate) async fn load(core: &Arc<Core>) -> Result<Base, Unused> {
    let (number, donors) = {
        let state = core.lock();
        let donors: Vec<usize> = (0..state.donors.len()).filter(|&n| state.donors[n].counts()).collect();
        (state.checkpoints.named, donors)
    };
    if number == 0 {
        return Err(NOT_NAMED);
    }
    let parts = read_roots(core, number, &donors).await.ok_or(BAD_ROOT)?;
    let common = common_root(&mut core.lock(), &parts).ok_or(BAD_ROOT)?;
    let counts: Vec<u32> = parts.iter().map(|(root, _)| root.pages).collect();
    let pages = read_pages(core, number, &donors, &counts).await.ok_or(BAD_PAGE)?;
    if !is_whole(pages.groups, common.groups) || !is_whole(pages.table, common.blocks) {
        return Err(BAD_PAGE);
    }
    let logs: Vec<Log> = parts.into_iter().map(|(_, log)| log).collect();
    let found = read_open_units(core, &donors, &logs).await.ok_or(BAD_UNIT)?;
    let state = &mut *core.lock();
    if state.checkpoints.named != number || donors.iter().any(|&donor| state.donors[donor].is_absent()) {
        return Err(ENDED);
    }
    let mut there = vec![false; common.groups as usize];
    state.groups.iter().for_each(|(place, _)| there[place as usize] = true);
    let (looks, live) = state.map.end_entering(&there, !is_planted(Bug::LookForgotten));
    let mut base = Base {
        sequence: common.sequence,
        horizon: common.horizon,
        live,
        looks,
        broken: Vec::new(),
        lost: pages.lost,
        found: HashMap::new(),
        touched: Vec::new(),
    };
    state.next_sequence = state.next_sequence.max(common.next_sequence);
    state.groups.number_from(common.next_group);
    reconcile(state, &mut base, &donors, &logs, found).ok_or(CONTRADICTED)?;
    for (&donor, log) in donors.iter().zip(logs) {
        state.donors[donor].units.set_log(VALID, log);
        state.donors[donor].scanned = true;
    }
    state.checkpoints.valid = Some(Valid { number, sequence: common.sequence });
    Ok(base)
}

/// Reads the roots and logs of all donors.
async fn read_roots(core: &Arc<Core>, number: u64, donors: &[usize]) -> Option<Vec<(Root, Log)>> {
    let parts = donors.iter().map(|&donor| async move {
        let own = core.lock().window().stamp(donor, number);
        let layout = core.lock().window().layout(donor);
        let bytes = read(core, donor, layout.root_at(number % 2), 512).await?;
        let (kind, payload) = decode(&bytes, &own, 0)?;
        let root = Root::decode(payload).filter(|_| kind == Kind::Root)?;
        Some((root, log(core, donor, &own).await?))
    });
    all(parts).await.into_iter().collect()
}

/// Returns the part that all roots have in common, and makes places for the groups. `None`: the
/// roots differ or do not fit the disk.
fn common_root(state: &mut State, parts: &[(Root, Log)]) -> Option<Root> {
    let common = Root { pages: 0, ..parts.first()?.0 };
    let same = parts.iter().all(|(root, _)| Root { pages: 0, ..*root } == common);
    // There are no more groups than units.
    let units: u64 = state.donors.iter().map(|donor| donor.units.count() as u64).sum();
    if !same || common.blocks as u64 != state.map.blocks() || common.groups as u64 > units {
        return None;
    }
    let more = state.donors.len() * 1024;
    state.groups.make_places(common.groups as usize, more);
    Some(common)
}

/// Pages requested from a donor.
struct AskedPages {
    donor: usize,
    first: u32,
    count: u32,
    op: Op,
}

/// Reads all pages. `counts`: how many each donor has.
async fn read_pages(core: &Arc<Core>, number: u64, donors: &[usize], counts: &[u32]) -> Option<Pages> {
    let mut pages = Pages::default();
    let mut next: Vec<u32> = vec![0; donors.len()];
    loop {
        let asked = ask_for_pages(core, number, donors, counts, &mut next);
        if asked.is_empty() {
            return Some(pages);
        }
        for AskedPages { donor, first, count, op } in asked {
            let layout = core.lock().window().layout(donor);
            let bytes = match op.await {
                Ok(bytes) => bytes,
                Err(_) => {
                    let at = layout.page_at(number % 2, first);
                    read(core, donor, at, count as usize * layout.page_bytes).await?
                }
            };
            let own = core.lock().window().stamp(donor, number);
            let state = &mut *core.lock();
            for (n, piece) in bytes.chunks_exact(layout.page_bytes).enumerate() {
                debug_assert!(piece.len() >= PIECE_HEADER);
                let (kind, payload) = decode(piece, &own, first + n as u32)?;
                pages.enter(state, kind, payload)?;
            }
        }
    }
}

/// Asks all donors at the same time for a few runs of pages each. `next`: the first page of each
/// donor that has not been requested.
fn ask_for_pages(core: &Arc<Core>, number: u64, donors: &[usize], counts: &[u32], next: &mut [u32]) -> Vec<AskedPages> {
    let state = &mut *core.lock();
    let mut asked = Vec::new();
    for (place, &donor) in donors.iter().enumerate() {
        let layout = state.window().layout(donor);
        let each = (READ_BYTES / layout.page_bytes).max(1) as u32;
        for _ in 0..READS_AT_ONCE {
            let first = next[place];
            let count = each.min(counts[place].min(layout.pages) - first);
            if count == 0 {
                break;
            }
            next[place] += count;
            let at = layout.page_at(number % 2, first);
            let op = DonorOp::Read { at, len: (count as usize * layout.page_bytes) as u32 };
            let op = core.op(state, donor as DonorId, op, Purpose::Upkeep);
            asked.push(AskedPages { donor, first, count, op });
        }
    }
    asked
}

/// Reads the headers of all units that the logs name, by donor.
async fn read_open_units(core: &Arc<Core>, donors: &[usize], logs: &[Log]) -> Option<Vec<Vec<(u32, UnitHeader)>>> {
    let looked = donors.iter().zip(logs).map(|(&donor, log)| async move {
        let end = core.lock().donors[donor].units.count() as usize;
        let units = log.open.ones(end).map(|unit| unit as u32);
        headers_of(core, donor as DonorId, units).await
    });
    all(looked).await.into_iter().collect()
}
