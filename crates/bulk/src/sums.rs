//! Checksums of a bulk device's contents: computed with each write, compared at each read.
//!
//! Rules:
//! - The sum of a unit is cleared before bytes of the unit change on the device, and set again with
//!   the write. If the write fills the unit only in part, the rest is compared first, and the write
//!   is refused if the rest is damaged: without its sum, the damage could no longer be detected.
//!   Nobody owns the bytes behind a file's end, so a damaged end can be overwritten. A unit without
//!   a sum gets one from a write of the whole unit or from a scrub.
//! - After a crash the table is right only where no overwrite can have been cut off. So a leaf is
//!   marked *open* on media, durably, before the first overwrite of data in it. A record closes the
//!   leaf when a flush has covered the last overwrite. An opening of the store for writing clears
//!   the sums of open leaves. A write to blocks that no file maps yet opens no leaf: it completes
//!   before the record that maps the blocks, and they are NEW until a flush has covered it.
//! - A reader that finds a mismatch reads both bytes and sum again. A reader of the spill file
//!   holds no lock on it: its blocks may be freed meanwhile and filled for another file.
//! - A leaf is allocated with its first sum, if memory has room. Without a leaf, the data written
//!   have no sums. A leaf stays as long as the table.
//!
//! A table may cover only the front of its device, after a resize; the rest has no sums.
//! Left out: which devices have tables (`devices`), and reading all of them
//! (`Upkeep::scrub_step`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_format::block_sums::{BLOCK_SUM, BlockSums, LEAF_ENTRY, LEAF_OPEN, LEAF_SUMS, LeafEntry, block_sum};
use shoal_format::bulk_list::BULK_DEVICE_BLOCKS_MAX;
use shoal_format::superblock::{FEATURE_BLOCK_SUMS, FEATURE_DEVICES};
use shoal_format::{BULK_BLOCK, Offset, SEGMENT};
use shoal_region::{Region, Tx, View};
use zerocopy::FromBytes;

use super::devices::write_list;
use super::{Bulk, Patience};
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Attempts to read bytes that keep changing, before giving up.
const LOOKS: usize = 16;
/// Leaves opened in advance when a write follows an open leaf.
const OPENED_AHEAD: u64 = 15;
/// Leaves that one transaction closes.
const CLOSE_STEP: usize = 1024;
/// Table entries read at once.
const ENTRIES_AT_ONCE: u64 = 256;

/// An open leaf.
#[derive(Default)]
struct Leaf {
    /// Overwrites in progress.
    writers: u32,
    /// The number of the last completed overwrite, on its device.
    last_write: u64,
    /// No overwrite has come since the last look.
    rests: bool,
}

/// Bytes that a scrub found without a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// They have one now.
    pub bytes: u64,
    /// They cannot have one.
    pub without: u64,
}

/// Which leaves of checksums are to be closed, of those without overwrites in progress.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SumLeaves {
    /// Leaves whose writes a flush has covered.
    Covered,
    /// Covered leaves that no write has reached since the last call.
    Idle,
}

/// The sums of one device.
pub(super) struct Table {
    pub sums: BlockSums,
    /// The device's first byte, as the store counts.
    base: u64,
    /// The offset of each leaf; 0: none.
    places: Box<[AtomicU64]>,
    leaves: Mutex<HashMap<u64, Leaf>>,
    /// Held while leaves are allocated, or opened or closed on media.
    changing: Mutex<()>,
    /// Leaves that a crash left open, in a store that is opened read-only.
    unknown: HashSet<u64>,
}

/// Units `first..end` of a device.
type Units = std::ops::Range<u64>;

/// What a read of whole units found.
enum Found {
    Right,
    /// The unit that does not match its sum, and the sum.
    Wrong(u64, u32),
}

/// An overwrite in progress. After it is dropped, its leaves may be closed once a flush has covered
/// it.
pub(super) struct Writing<'a> {
    table: &'a Table,
    leaves: Units,
    last_write: &'a dyn Fn() -> u64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut leaves = self.table.leaves.lock();
        // Also after a failed write: some of it may still reach the device.
        let last_write = (self.last_write)();
        for number in self.leaves.clone() {
            let leaf = leaves.entry(number).or_default();
            leaf.writers -= 1;
            leaf.last_write = leaf.last_write.max(last_write);
            leaf.rests = false;
        }
    }
}

impl Table {
    /// Loads the table from media. Leaves that an earlier process left open lose their sums; in a
    /// read-only store they count as unknown.
    pub fn load(region: &Region, sums: BlockSums, base: u64) -> Result<Table> {
        let (mut places, mut unknown) = (Vec::new(), HashSet::new());
        each_entry(region, &sums, |number, entry| {
            let leaf = entry.leaf().ok_or_else(|| Error::Corrupt("table of checksums; run `shoal check`".into()))?;
            if entry.is_open() && region.is_read_only() {
                unknown.insert(number);
            } else if entry.is_open() && !is_planted(Bug::OpenLeavesKept) {
                let mut tx = region.begin_reclaim();
                if !leaf.is_none() {
                    tx.zero(leaf.offset(), SEGMENT)?;
                }
                tx.clear_bits(sums.marks_at(number), LEAF_OPEN)?;
                tx.commit()?;
            }
            places.push(AtomicU64::new(if leaf.is_none() { 0 } else { leaf.offset().get() }));
            Ok(())
        })?;
        let places = places.into();
        Ok(Table { sums, base, places, leaves: Mutex::default(), changing: Mutex::default(), unknown })
    }

    /// Returns where a leaf is, if there is one.
    fn place(&self, leaf: u64) -> Option<Offset> {
        Some(Offset::new(self.places[leaf as usize].load(Ordering::Acquire))).filter(|at| at.get() > 0)
    }

    /// Returns where a leaf is, and allocates it if there is none. `None`: memory has no room for
    /// it.
    fn make(&self, region: &Region, leaf: u64) -> Result<Option<Offset>> {
        if let Some(place) = self.place(leaf) {
            return Ok(Some(place));
        }
        let _one_at_a_time = self.changing.lock();
        if let Some(place) = self.place(leaf) {
            return Ok(Some(place));
        }
        let made = || {
            let mut tx = region.begin();
            let slot = tx.alloc(SEGMENT)?;
            tx.zero(slot.offset(), SEGMENT)?;
            tx.write(self.sums.entry_at(leaf), &slot.bits().to_le_bytes())?;
            tx.commit().map(|_| slot.offset())
        };
        match made() {
            Ok(place) => {
                self.places[leaf as usize].store(place.get(), Ordering::Release);
                Ok(Some(place))
            }
            // A leaf is optional: no caller has to free space for it.
            Err(shoal_region::Error::NoSpace(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the bytes of memory that the table takes.
    pub fn bytes(&self) -> u64 {
        let leaves = self.places.iter().filter(|place| place.load(Ordering::Acquire) > 0).count() as u64;
        self.sums.piece.capacity() + leaves * SEGMENT
    }

    /// Returns the covered units that bytes `[at, end)` touch.
    fn touched(&self, at: u64, end: u64) -> Units {
        let unit = self.sums.unit_bytes();
        let covered = self.sums.units();
        (at / unit).min(covered)..end.div_ceil(unit).min(covered)
    }

    /// Returns the covered units that bytes `[at, end)` fill.
    fn filled(&self, at: u64, end: u64) -> Units {
        let unit = self.sums.unit_bytes();
        let covered = self.sums.units();
        let first = at.div_ceil(unit).min(covered);
        first..(end / unit).min(covered).max(first)
    }

    /// Reads the sums of some units; 0 for a unit without one.
    fn known(&self, region: &Region, units: &Units) -> Result<Vec<u32>> {
        let mut sums = Vec::with_capacity((units.end - units.start) as usize);
        for (leaf, part) in by_leaf(units) {
            let count = (part.end - part.start) as usize;
            let Some(place) = self.place(leaf).filter(|_| !self.unknown.contains(&leaf)) else {
                sums.resize(sums.len() + count, 0);
                continue;
            };
            let mut bytes = vec![0; count * BLOCK_SUM as usize];
            region.read(place + part.start % LEAF_SUMS * BLOCK_SUM, &mut bytes)?;
            let (each, _) = bytes.as_chunks();
            sums.extend(each.iter().map(|sum| u32::from_le_bytes(*sum)));
        }
        Ok(sums)
    }

    fn sum_of(&self, unit: u64, bytes: &[u8]) -> u32 {
        block_sum(self.base + unit * self.sums.unit_bytes(), bytes)
    }

    /// Returns the units with sums that a write of `[at, end)` fills in part.
    pub fn parts(&self, region: &Region, at: u64, end: u64) -> Result<Vec<u64>> {
        let unit = self.sums.unit_bytes();
        let edges = [at, end].into_iter().filter(|edge| !edge.is_multiple_of(unit));
        let mut parts: Vec<u64> = edges.map(|edge| edge / unit).filter(|&part| part < self.sums.units()).collect();
        parts.dedup();
        let mut found = Vec::new();
        for part in parts {
            if self.known(region, &(part..part + 1))?[0] != 0 {
                found.push(part);
            }
        }
        Ok(found)
    }

    /// Prepares an overwrite of bytes `[at, end)`: opens their leaves and clears their sums.
    pub fn write_over<'a>(
        &'a self,
        region: &Region,
        at: u64,
        end: u64,
        patience: Patience,
        last_write: &'a dyn Fn() -> u64,
    ) -> Result<Writing<'a>> {
        let leaves = leaves_of(&self.touched(at, end));
        self.open(region, leaves.clone(), patience)?;
        let writing = Writing { table: self, leaves, last_write };
        if !is_planted(Bug::SumsStay) {
            self.take_away(region, at, end)?;
        }
        Ok(writing)
    }

    /// Counts a writer in each of these leaves, which are durably open on media when this returns.
    fn open(&self, region: &Region, numbers: Units, patience: Patience) -> Result<()> {
        let enter = |leaves: &mut HashMap<u64, Leaf>| {
            let open = numbers.clone().all(|number| leaves.contains_key(&number));
            if open {
                numbers.clone().for_each(|number| leaves.get_mut(&number).expect("it is open").writers += 1);
            }
            open
        };
        if enter(&mut self.leaves.lock()) {
            return Ok(());
        }
        patience.may_flush()?;
        let _one_at_a_time = self.changing.lock();
        let missing: Vec<u64> = {
            let leaves = self.leaves.lock();
            // A file that is overwritten from front to end should not wait for the log at each
            // leaf.
            let is_next = numbers.start.checked_sub(1).is_some_and(|before| leaves.contains_key(&before));
            let end = if is_next { numbers.end + OPENED_AHEAD } else { numbers.end };
            (numbers.start..end.min(self.sums.leaves())).filter(|number| !leaves.contains_key(number)).collect()
        };
        if !missing.is_empty() && !is_planted(Bug::LeavesUnmarked) {
            let mut tx = region.begin_reclaim();
            for &leaf in &missing {
                tx.set_bits(self.sums.marks_at(leaf), LEAF_OPEN)?;
            }
            let lsn = tx.commit()?;
            if !is_planted(Bug::LeavesUnsynced) {
                region.sync_to(lsn)?;
            }
        }
        let mut leaves = self.leaves.lock();
        for leaf in missing {
            leaves.entry(leaf).or_default();
        }
        enter(&mut leaves);
        Ok(())
    }

    /// Clears the sums of the units that bytes `[at, end)` touch.
    pub fn take_away(&self, region: &Region, at: u64, end: u64) -> Result<()> {
        for (leaf, part) in by_leaf(&self.touched(at, end)) {
            let Some(place) = self.place(leaf) else { continue };
            if self.known(region, &part)?.iter().any(|&sum| sum != 0) {
                let mut tx = region.begin_reclaim();
                tx.zero(place + part.start % LEAF_SUMS * BLOCK_SUM, (part.end - part.start) * BLOCK_SUM)?;
                tx.commit()?;
            }
        }
        Ok(())
    }

    /// Sets the sums of the units filled by a completed write of `bytes` at `at`.
    pub fn wrote(&self, region: &Region, at: u64, bytes: &[u8]) -> Result<()> {
        let unit = self.sums.unit_bytes();
        for (leaf, part) in by_leaf(&self.filled(at, at + bytes.len() as u64)) {
            let Some(place) = self.make(region, leaf)? else { continue };
            let filled = &bytes[(part.start * unit - at) as usize..];
            let each = part.clone().zip(filled.chunks_exact(unit as usize));
            let sums: Vec<[u8; BLOCK_SUM as usize]> =
                each.map(|(number, bytes)| self.sum_of(number, bytes).to_le_bytes()).collect();
            let mut tx = region.begin_reclaim();
            tx.write(place + part.start % LEAF_SUMS * BLOCK_SUM, sums.as_flattened())?;
            tx.commit()?;
        }
        Ok(())
    }

    /// Gives a sum to each unit without one that `bytes` fill from `at` on.
    pub fn cover(&self, region: &Region, at: u64, bytes: &[u8]) -> Result<Covered> {
        let unit = self.sums.unit_bytes();
        let units = self.filled(at, at + bytes.len() as u64);
        let without = bytes.len() as u64 - (units.end - units.start) * unit;
        if region.is_read_only() || units.is_empty() {
            return Ok(Covered { bytes: 0, without });
        }
        let missing = |sums: &[u32]| sums.iter().filter(|&&sum| sum == 0).count() as u64;
        let count = missing(&self.known(region, &units)?);
        if count > 0 {
            self.wrote(region, at, bytes)?;
        }
        Ok(Covered { bytes: count * unit, without })
    }

    /// Fills `out` from byte `at` of the device through `read`, and compares the units that have
    /// sums. Returns the device byte of the first damaged unit, if any.
    pub fn read(
        &self,
        region: &Region,
        at: u64,
        out: &mut [u8],
        read: &dyn Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Option<u64>> {
        let end = at + out.len() as u64;
        let unit = self.sums.unit_bytes();
        let units = self.touched(at, end);
        if units.is_empty() {
            return read(at, out).map(|()| None);
        }
        let mut before = None;
        for _ in 0..LOOKS {
            let sums = self.known(region, &units)?;
            // A unit with a sum is read whole even if only part of it is wanted.
            let from = if sums[0] != 0 { at.min(units.start * unit) } else { at };
            let to = if sums[sums.len() - 1] != 0 { end.max(units.end * unit) } else { end };
            let found = if (from, to) == (at, end) {
                read(at, out)?;
                self.compare(&units, &sums, at, out)
            } else {
                let mut bytes = vec![0; (to - from) as usize];
                read(from, &mut bytes)?;
                out.copy_from_slice(&bytes[(at - from) as usize..][..out.len()]);
                self.compare(&units, &sums, from, &bytes)
            };
            match found {
                Found::Right => return Ok(None),
                // Both looks found this sum, so nobody has written in between.
                Found::Wrong(number, sum) if before == Some((number, sum)) => return Ok(Some(number * unit)),
                Found::Wrong(number, sum) => before = Some((number, sum)),
            }
            if is_planted(Bug::SumsOneLook) {
                return Ok(before.map(|(number, _)| number * unit));
            }
        }
        Err(Error::Io("the bytes change faster than their checksums can be compared".into()))
    }

    /// Compares the units that `bytes` fill, from `at` on.
    fn compare(&self, units: &Units, sums: &[u32], at: u64, bytes: &[u8]) -> Found {
        let unit = self.sums.unit_bytes();
        let filled = self.filled(at, at + bytes.len() as u64);
        for number in filled {
            let sum = sums[(number - units.start) as usize];
            let first = (number * unit - at) as usize;
            if sum != 0 && self.sum_of(number, &bytes[first..][..unit as usize]) != sum && !is_planted(Bug::SumsUnread)
            {
                return Found::Wrong(number, sum);
            }
        }
        Found::Right
    }

    /// Closes leaves without overwrites in progress whose last overwrite is covered by flushes up
    /// to `flushed`.
    pub fn close(&self, region: &Region, flushed: u64, leaves: SumLeaves) -> Result<()> {
        if self.leaves.lock().is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.changing.lock();
        let mut ready = Vec::new();
        self.leaves.lock().retain(|&number, leaf| {
            let covered = leaf.last_write <= flushed || is_planted(Bug::LeavesUnflushed);
            let closes = leaf.writers == 0 && covered && (leaf.rests || leaves == SumLeaves::Covered);
            leaf.rests = true;
            if closes {
                ready.push(number);
            }
            !closes
        });
        // A new writer waits for `changing`, so its mark comes after these records.
        for step in ready.chunks(CLOSE_STEP) {
            let mut tx = region.begin_reclaim();
            for &leaf in step {
                tx.clear_bits(self.sums.marks_at(leaf), LEAF_OPEN)?;
            }
            tx.commit()?;
        }
        Ok(())
    }
}

/// Returns the numbers of the leaves that hold the sums of some units.
fn leaves_of(units: &Units) -> std::ops::Range<u64> {
    if units.is_empty() { 0..0 } else { units.start / LEAF_SUMS..units.end.div_ceil(LEAF_SUMS) }
}

/// Splits units by leaf, and returns each part with the leaf's number.
fn by_leaf(units: &Units) -> impl Iterator<Item = (u64, Units)> + use<> {
    let units = units.clone();
    leaves_of(&units).map(move |leaf| (leaf, units.start.max(leaf * LEAF_SUMS)..units.end.min((leaf + 1) * LEAF_SUMS)))
}

/// Visits the entries of all leaves in turn, reading [`ENTRIES_AT_ONCE`] at once.
fn each_entry(region: &Region, sums: &BlockSums, mut visit: impl FnMut(u64, LeafEntry) -> Result<()>) -> Result<()> {
    let mut bytes = [0; (ENTRIES_AT_ONCE * LEAF_ENTRY) as usize];
    for first in (0..sums.leaves()).step_by(ENTRIES_AT_ONCE as usize) {
        let count = ENTRIES_AT_ONCE.min(sums.leaves() - first);
        let bytes = &mut bytes[..(count * LEAF_ENTRY) as usize];
        region.read(sums.entry_at(first), bytes)?;
        for (number, entry) in (first..).zip(bytes.chunks_exact(LEAF_ENTRY as usize)) {
            visit(number, LeafEntry::read_from_bytes(entry).expect("size is exact"))?;
        }
    }
    Ok(())
}

/// Frees the leaves of a table; the table itself stays.
pub(super) fn free_leaves(region: &Region, sums: &BlockSums) -> Result<()> {
    each_entry(region, sums, |number, entry| {
        let Some(leaf) = entry.leaf().filter(|leaf| !leaf.is_none()) else { return Ok(()) };
        let mut tx = region.begin_reclaim();
        tx.zero(sums.entry_at(number), LEAF_ENTRY)?;
        tx.free(leaf)?;
        tx.commit()?;
        Ok(())
    })
}

/// Allocates a table of `bytes` bytes without leaves, for units of `1 << shift` bytes.
fn blank(tx: &mut Tx<'_>, shift: u32, bytes: u64) -> Result<BlockSums> {
    let piece = tx.alloc(bytes)?;
    tx.zero(piece.offset(), piece.capacity())?;
    Ok(BlockSums { piece, shift })
}

impl Bulk {
    /// Loads the tables that the store has for its devices.
    pub fn load_sums(&self, region: &Region) -> Result<()> {
        for unit in self.units().iter() {
            if let Some(sums) = self.devices().entry(unit.number).and_then(|entry| entry.sums) {
                unit.set_sums(Some(Table::load(region, sums, unit.first * BULK_BLOCK)?));
            }
        }
        Ok(())
    }

    /// Starts or stops keeping checksums of all devices; `None` leaves that as it is. A device
    /// whose table is too short or missing gets a new one. Looks only at devices whose number
    /// `among` accepts; none of them is in use.
    pub fn arrange_sums(&self, region: &Region, keep: Option<bool>, among: impl Fn(u32) -> bool) -> Result<()> {
        let mut list = self.list.lock();
        let mut entries = list.entries.clone();
        let keeps = keep.unwrap_or_else(|| entries.iter().any(|entry| entry.sums.is_some()));
        for at in (0..entries.len()).filter(|&at| among(entries[at].number)).collect::<Vec<_>>() {
            let entry = entries[at];
            let covers = |sums: BlockSums| sums.units() >= entry.blocks * (BULK_BLOCK >> sums.shift);
            if keeps == entry.sums.is_some() && entry.sums.is_none_or(covers) {
                continue;
            }
            let planned = BlockSums::plan(entry.blocks, region.superblock().region_bytes).filter(|_| keeps);
            if keeps && (planned.is_none() || entry.blocks > BULK_DEVICE_BLOCKS_MAX) {
                if keep.is_some() {
                    self.devices().tell(&format!(
                        "bulk device {}: no checksums, they would take more than a fiftieth of memory",
                        entry.number
                    ));
                }
                continue;
            }
            region.add_feature(FEATURE_DEVICES)?;
            region.add_feature(FEATURE_BLOCK_SUMS)?;
            let Some(unit) = self.unit(entry.number) else { continue };
            unit.set_sums(None);
            entry.sums.iter().try_for_each(|old| free_leaves(region, old))?;
            let mut tx = region.begin_reclaim();
            entry.sums.iter().try_for_each(|old| tx.free(old.piece))?;
            match planned.map(|(shift, bytes)| blank(&mut tx, shift, bytes)).transpose() {
                Ok(made) => {
                    entries[at].sums = made;
                    write_list(&mut tx, &entries)?;
                    tx.commit()?;
                    list.entries = entries.clone();
                }
                Err(Error::NoSpace(_)) => {
                    self.devices()
                        .tell(&format!("bulk device {}: memory has no room for checksums in one piece", entry.number));
                }
                Err(error) => return Err(error),
            }
            let table = entries[at].sums.map(|sums| Table::load(region, sums, unit.first * BULK_BLOCK));
            unit.set_sums(table.transpose()?);
        }
        Ok(())
    }

    /// Returns the bytes of memory that the tables take.
    pub fn sums_bytes(&self) -> u64 {
        self.sum(|unit| unit.sums().map_or(0, |table| table.bytes()))
    }

    /// Reads bytes, compares them with their checksums, and gives each unit without a checksum one.
    /// Nobody writes there meanwhile.
    pub fn scrub(&self, region: &Region, at: u64, out: &mut [u8]) -> Result<Covered> {
        self.read(region, at, out)?;
        let unit = self.unit_of(at / BULK_BLOCK)?;
        let Some(table) = unit.sums() else { return Ok(Covered { bytes: 0, without: out.len() as u64 }) };
        table.cover(region, at - unit.first * BULK_BLOCK, out)
    }

    /// Gives a block checksums of its present contents, which sums of their own have proven right.
    /// Nobody writes there meanwhile.
    pub fn accept(&self, region: &Region, at: u64) -> Result<()> {
        let mut bytes = vec![0; BULK_BLOCK as usize];
        self.read_as_it_is(at, &mut bytes)?;
        self.unit_of(at / BULK_BLOCK)?.accept(region, at, &bytes)
    }

    /// Closes leaves of a device's table.
    pub fn close_sums(&self, region: &Region, number: u32, leaves: SumLeaves) -> Result<()> {
        let Some(unit) = self.unit(number) else { return Ok(()) };
        let flushed = unit.flushed.load(Ordering::Acquire);
        unit.sums().map_or(Ok(()), |table| table.close(region, flushed, leaves))
    }
}
