//! Checksums of what is on a bulk device: taken with each write, compared at each read.
//!
//! Rules:
//! - The sum of a unit goes before bytes of it change on the device, and comes back when a write has filled the whole unit. What
//!   a write fills in part has no sum until a scrub, or the next write of the whole unit, gives it one. The rest of the unit is
//!   compared first, and the write refused where it is damaged: nobody could tell afterwards. What is behind a file's end is
//!   nobody's, so that a damaged end can be written over.
//! - The table is right after a crash only where no write over data can have been cut off. So a leaf is *open* on media, durably,
//!   before the first such write in it, and closed by a record behind a flush that has covered the last; whoever opens the store
//!   for writing takes the sums of open leaves away. A write to blocks that no file maps yet opens nothing: it has completed before
//!   the record that maps them, and until a flush has covered it they are NEW.
//! - A reader that finds other bytes than the sum says looks at both again. A reader of the spill file holds no lock of it: the
//!   blocks may be let go of meanwhile, and be filled for another file.
//!
//! A table may cover the front of its device alone, after a resize; what is behind it has no sums. Left out: which devices have
//! tables (`devices`), reading all of them through ([`crate::Fs::scrub`]).

use std::collections::{HashMap, HashSet};

use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use shoal_format::BULK_BLOCK;
use shoal_format::block_sums::{BLOCK_SUM, BlockSums, LEAF_SUMS, block_sum};
use shoal_format::bulk_list::BULK_DEVICE_BLOCKS_MAX;
use shoal_format::superblock::{FEATURE_BLOCK_SUMS, FEATURE_DEVICES};
use shoal_region::{Region, Tx, View};

use super::devices::{List, write_list};
use super::{Bulk, may_wait};
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Looks at bytes that change while they are read, before they count as damaged.
const LOOKS: usize = 16;
/// Bytes that one entry of a transaction zeroes.
const ZERO_STEP: u64 = 1 << 20;
/// Leaves opened at once behind one that follows an open one.
const OPENED_AHEAD: u64 = 15;
/// Leaves that one transaction closes.
const CLOSE_STEP: usize = 1024;

/// An open leaf.
#[derive(Default)]
struct Leaf {
    /// Writes over data on their way.
    writers: u32,
    /// The number of the last that completed, on its device.
    last_write: u64,
    /// None has come since the last look.
    rests: bool,
}

/// The sums of one device.
pub(super) struct Table {
    pub sums: BlockSums,
    /// The device's first byte, as the store counts.
    base: u64,
    leaves: Mutex<HashMap<u64, Leaf>>,
    /// Held while leaves are opened and closed on media.
    changing: Mutex<()>,
    /// Leaves that a crash left open, in a store that is only read.
    unknown: HashSet<u64>,
}

/// Units `first..end` of a device.
type Units = std::ops::Range<u64>;

/// What a read of whole units found.
enum Found {
    Right,
    /// The unit that is not as its sum says, and the sum.
    Wrong(u64, u32),
}

/// A write over data that is on its way. Dropped, its leaves may be closed when a flush has covered it.
pub(super) struct Writing<'a> {
    table: &'a Table,
    leaves: Units,
    last_write: &'a dyn Fn() -> u64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut leaves = self.table.leaves.lock();
        // Also of a write that failed: some of it may be on its way.
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
    pub fn new(sums: BlockSums, base: u64) -> Table {
        Table { sums, base, leaves: Mutex::default(), changing: Mutex::default(), unknown: HashSet::new() }
    }

    /// The same in a store that is only read: what a crash left open counts as unknown.
    pub fn read_only(region: &Region, sums: BlockSums, base: u64) -> Result<Table> {
        let unknown = open_leaves(region, &sums)?.into_iter().collect();
        Ok(Table { unknown, ..Table::new(sums, base) })
    }

    /// The covered units that bytes `[at, end)` touch.
    fn touched(&self, at: u64, end: u64) -> Units {
        let unit = self.sums.unit_bytes();
        let covered = self.sums.units();
        (at / unit).min(covered)..end.div_ceil(unit).min(covered)
    }

    /// The covered units that they fill.
    fn filled(&self, at: u64, end: u64) -> Units {
        let unit = self.sums.unit_bytes();
        let covered = self.sums.units();
        let first = at.div_ceil(unit).min(covered);
        first..(end / unit).min(covered).max(first)
    }

    fn load(&self, region: &Region, units: &Units) -> Result<Vec<u32>> {
        let mut bytes = vec![0; ((units.end - units.start) * BLOCK_SUM) as usize];
        region.read(self.sums.sum_at(units.start), &mut bytes)?;
        let sums = bytes.chunks_exact(BLOCK_SUM as usize);
        let mut sums: Vec<u32> = sums.map(|sum| u32::from_le_bytes(sum.try_into().expect("four bytes"))).collect();
        if !self.unknown.is_empty() {
            for (unit, sum) in units.clone().zip(&mut sums) {
                if self.unknown.contains(&(unit / LEAF_SUMS)) {
                    *sum = 0;
                }
            }
        }
        Ok(sums)
    }

    fn sum_of(&self, unit: u64, bytes: &[u8]) -> u32 {
        block_sum(self.base + unit * self.sums.unit_bytes(), bytes)
    }

    /// Where units with sums begin that a write of `[at, end)` fills in part; with `to_end` what lies behind the bytes does not count.
    pub fn parts(&self, region: &Region, at: u64, end: u64, to_end: bool) -> Result<Vec<u64>> {
        let unit = self.sums.unit_bytes();
        let edges = [Some(at), Some(end).filter(|_| !to_end)].into_iter().flatten();
        let mut parts: Vec<u64> = edges.filter(|edge| !edge.is_multiple_of(unit)).map(|edge| edge / unit).collect();
        parts.dedup();
        let mut found = Vec::new();
        for part in parts.into_iter().filter(|&part| part < self.sums.units()) {
            if self.load(region, &(part..part + 1))?[0] != 0 {
                found.push(part * unit);
            }
        }
        Ok(found)
    }

    /// Bytes `[at, end)` of data are about to change: opens their leaves, and takes their sums away.
    pub fn write_over<'a>(
        &'a self,
        region: &Region,
        at: u64,
        end: u64,
        last_write: &'a dyn Fn() -> u64,
    ) -> Result<Writing<'a>> {
        let units = self.touched(at, end);
        let leaves = if units.is_empty() { 0..0 } else { units.start / LEAF_SUMS..units.end.div_ceil(LEAF_SUMS) };
        self.open(region, leaves.clone())?;
        let writing = Writing { table: self, leaves, last_write };
        if !is_planted(Bug::SumsStay) {
            self.take_away(region, at, end)?;
        }
        Ok(writing)
    }

    /// Counts a write into leaves that are open on media, durably, when it returns.
    fn open(&self, region: &Region, numbers: Units) -> Result<()> {
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
        may_wait()?;
        let _one_at_a_time = self.changing.lock();
        let missing: Vec<u64> = {
            let leaves = self.leaves.lock();
            // A file that is written over from its front to its end should not wait for the log at each leaf.
            let is_next = numbers.start.checked_sub(1).is_some_and(|before| leaves.contains_key(&before));
            let end = if is_next { numbers.end + OPENED_AHEAD } else { numbers.end };
            (numbers.start..end.min(self.sums.leaves())).filter(|number| !leaves.contains_key(number)).collect()
        };
        if !missing.is_empty() && !is_planted(Bug::LeavesUnmarked) {
            let mut tx = region.begin_reclaim();
            for &leaf in &missing {
                let (word, bit) = self.sums.bit_of(leaf);
                tx.set_bits(word, bit)?;
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

    /// The units that bytes `[at, end)` touch have no sums from now on.
    pub fn take_away(&self, region: &Region, at: u64, end: u64) -> Result<()> {
        let units = self.touched(at, end);
        if self.load(region, &units)?.iter().all(|&sum| sum == 0) {
            return Ok(());
        }
        let mut tx = region.begin_reclaim();
        tx.zero(self.sums.sum_at(units.start), (units.end - units.start) * BLOCK_SUM)?;
        tx.commit()?;
        Ok(())
    }

    /// A write of `bytes` at `at` has completed: the units it filled have sums.
    pub fn wrote(&self, region: &Region, at: u64, bytes: &[u8]) -> Result<()> {
        let units = self.filled(at, at + bytes.len() as u64);
        if units.is_empty() {
            return Ok(());
        }
        let unit = self.sums.unit_bytes();
        let first = (units.start * unit - at) as usize;
        let parts = bytes[first..].chunks_exact(unit as usize);
        let sums: Vec<[u8; BLOCK_SUM as usize]> =
            units.clone().zip(parts).map(|(number, part)| self.sum_of(number, part).to_le_bytes()).collect();
        let mut tx = region.begin_reclaim();
        tx.write(self.sums.sum_at(units.start), sums.as_flattened())?;
        tx.commit()?;
        Ok(())
    }

    /// Gives sums to those of the units that `bytes` fill, from `at` on, which have none. Returns how many bytes got one, and how many
    /// have no place for one.
    pub fn cover(&self, region: &Region, at: u64, bytes: &[u8]) -> Result<(u64, u64)> {
        let unit = self.sums.unit_bytes();
        let units = self.filled(at, at + bytes.len() as u64);
        let without = bytes.len() as u64 - (units.end - units.start) * unit;
        if region.is_read_only() || units.is_empty() {
            return Ok((0, without));
        }
        let missing = |sums: &[u32]| sums.iter().filter(|&&sum| sum == 0).count() as u64;
        let count = missing(&self.load(region, &units)?);
        if count > 0 {
            self.wrote(region, at, bytes)?;
        }
        Ok((count * unit, without))
    }

    /// Fills `out` from byte `at` of the device by `read`, and compares what has sums. The error names the byte of the device.
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
            let sums = self.load(region, &units)?;
            // A unit that is read in part is read whole where there is something to compare.
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
                // The same sum twice: nobody has come between.
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

    /// Closes leaves that no write over data is on its way to, and whose last one flushes up to `flushed` have covered: those that no
    /// write came to since the call before, or, with `all`, every one.
    pub fn close(&self, region: &Region, flushed: u64, all: bool) -> Result<()> {
        if self.leaves.lock().is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.changing.lock();
        let mut ready = Vec::new();
        self.leaves.lock().retain(|&number, leaf| {
            let covered = leaf.last_write <= flushed || is_planted(Bug::LeavesUnflushed);
            let closes = leaf.writers == 0 && covered && (leaf.rests || all);
            leaf.rests = true;
            if closes {
                ready.push(number);
            }
            !closes
        });
        // A writer that comes now waits for `changing`, so that its mark is behind these records.
        for step in ready.chunks(CLOSE_STEP) {
            let mut tx = region.begin_reclaim();
            for &leaf in step {
                let (word, bit) = self.sums.bit_of(leaf);
                tx.clear_bits(word, bit)?;
            }
            tx.commit()?;
        }
        Ok(())
    }
}

/// The leaves that are open on media.
fn open_leaves(region: &Region, sums: &BlockSums) -> Result<Vec<u64>> {
    let mut open = Vec::new();
    for first in (0..sums.leaves()).step_by(64) {
        let (at, _) = sums.bit_of(first);
        let mut word = [0; 8];
        region.read(at, &mut word)?;
        let word = u64::from_le_bytes(word);
        open.extend((first..sums.leaves().min(first + 64)).filter(|leaf| word >> (leaf % 64) & 1 == 1));
    }
    Ok(open)
}

/// Takes away the sums of leaves that an earlier process left open, and closes them.
fn forget_open(region: &Region, sums: &BlockSums) -> Result<()> {
    if is_planted(Bug::OpenLeavesKept) {
        return Ok(());
    }
    for leaf in open_leaves(region, sums)? {
        let (first, end) = (leaf * LEAF_SUMS, sums.units().min((leaf + 1) * LEAF_SUMS));
        let (word, bit) = sums.bit_of(leaf);
        let mut tx = region.begin_reclaim();
        tx.zero(sums.sum_at(first), (end - first) * BLOCK_SUM)?;
        tx.clear_bits(word, bit)?;
        tx.commit()?;
    }
    Ok(())
}

/// A new table without a sum, its units as large as `shift` says; `bytes` as planned.
fn blank(tx: &mut Tx<'_>, shift: u32, bytes: u64) -> Result<BlockSums> {
    let piece = tx.alloc(bytes)?;
    for at in (0..piece.capacity()).step_by(ZERO_STEP as usize) {
        tx.zero(piece.offset() + at, ZERO_STEP.min(piece.capacity() - at))?;
    }
    Ok(BlockSums { piece, shift })
}

impl Bulk {
    /// Gives the devices the tables that the store has. What an earlier process left open loses its sums; in a store that is only read
    /// it counts as unknown.
    pub fn load_sums(&self, region: &Region) -> Result<()> {
        for unit in self.units().iter() {
            let Some(sums) = self.entry(region, unit.number).and_then(|entry| entry.sums) else { continue };
            let base = unit.first * BULK_BLOCK;
            let table = if region.is_read_only() {
                Table::read_only(region, sums, base)?
            } else {
                forget_open(region, &sums)?;
                Table::new(sums, base)
            };
            unit.set_sums(Some(table));
        }
        Ok(())
    }

    /// Keeps checksums of all devices, or of none; by default as it is. A device whose table is too short, or missing, gets a new one.
    pub fn arrange_sums(&self, region: &Region, keep: Option<bool>) -> Result<()> {
        let mut list = self.list.lock();
        let mut entries = list.known(region);
        let keeps = keep.unwrap_or_else(|| entries.iter().any(|entry| entry.sums.is_some()));
        for at in 0..entries.len() {
            let entry = entries[at];
            let covers = |sums: BlockSums| sums.units() >= entry.blocks * (BULK_BLOCK >> sums.shift);
            if keeps == entry.sums.is_some() && entry.sums.is_none_or(covers) {
                continue;
            }
            let planned = BlockSums::plan(entry.blocks, region.superblock().region_bytes).filter(|_| keeps);
            if keeps && (planned.is_none() || entry.blocks > BULK_DEVICE_BLOCKS_MAX) {
                if keep.is_some() {
                    self.tell(&format!(
                        "bulk device {}: no checksums, they would take more than a fiftieth of memory",
                        entry.number
                    ));
                }
                continue;
            }
            region.add_feature(FEATURE_DEVICES)?;
            region.add_feature(FEATURE_BLOCK_SUMS)?;
            let mut tx = region.begin_reclaim();
            if let Some(old) = entry.sums {
                tx.free(old.piece)?;
            }
            let made = planned.map(|(shift, bytes)| blank(&mut tx, shift, bytes)).transpose();
            if matches!(made, Err(Error::NoSpace)) {
                self.tell(&format!("bulk device {}: memory has no room for checksums in one piece", entry.number));
                continue;
            }
            entries[at].sums = made?;
            write_list(&mut tx, &entries)?;
            tx.commit()?;
            *list = List { exists: true, entries: entries.clone() };
            if let Some(unit) = self.unit(entry.number) {
                unit.set_sums(entries[at].sums.map(|sums| Table::new(sums, unit.first * BULK_BLOCK)));
            }
        }
        Ok(())
    }

    /// Bytes of memory that the tables take.
    pub fn sums_bytes(&self) -> u64 {
        self.sum(|unit| unit.sums().map_or(0, |table| table.sums.piece.capacity()))
    }

    /// Reads bytes, compares them with their checksums, and gives one to each unit that has none. Returns how many bytes got one, and
    /// how many have none. Nobody writes there meanwhile.
    pub fn scrub(&self, region: &Region, at: u64, out: &mut [u8]) -> Result<(u64, u64)> {
        self.read(region, at, out)?;
        let unit = self.unit_of(at / BULK_BLOCK)?;
        let Some(table) = unit.sums() else { return Ok((0, out.len() as u64)) };
        table.cover(region, at - unit.first * BULK_BLOCK, out)
    }

    /// All data in a block is right, by sums of its own: the block gets checksums of what is there now. Nobody writes there meanwhile.
    pub fn accept(&self, region: &Region, at: u64) -> Result<()> {
        let mut bytes = vec![0; BULK_BLOCK as usize];
        self.read_as_it_is(at, &mut bytes)?;
        self.unit_of(at / BULK_BLOCK)?.accept(region, at, &bytes)
    }

    /// Closes leaves of a device's table that rest, or all that may be closed.
    pub fn close_sums(&self, region: &Region, number: u32, all: bool) -> Result<()> {
        let Some(unit) = self.unit(number) else { return Ok(()) };
        let flushed = unit.flushed.load(Ordering::Acquire);
        unit.sums().map_or(Ok(()), |table| table.close(region, flushed, all))
    }
}
