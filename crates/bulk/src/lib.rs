//! Bulk storage: the devices of a store as the file system sees them. Tracks free 64 KiB blocks, and
//! moves bytes to and from blocks.
//!
//! The bitmap in the region is authoritative (a set bit means used); allocation decides by the copy
//! here. A reservation changes only the copy. The transaction that maps the block sets the bit, and
//! the one that unmaps it clears the bit.
//! Rules:
//! - A freed block is reused only when the record that freed it is durable (invariant 5). Until
//!   then it is *pending*. It is trimmed before it counts as free, so that no trim can hit its next
//!   user.
//! - With `battery`, the region is saved in images, and the image may be all that is left if memory
//!   is lost. So a block that the newest image maps is neither reused nor trimmed before a newer
//!   image is sealed. Until then it is *held*. A caller that finds no other space saves an image.
//! - Runs are allocated in temporal order by a roving cursor that leaves a gap behind each run, so
//!   that files growing side by side stay contiguous. A growing file continues behind its last
//!   extent.
//! - A flush covers the writes completed before it. Each completed write takes the next number of
//!   its device. A flush remembers the last number before its submission, and `fresh` compares the
//!   two.
//! - A store may have several devices. A block's number tells which device holds it
//!   ([`BULK_NUMBER_SHIFT`]). Each device works, flushes and fails on its own ([`mod@unit`]). A file
//!   stays on its device while there is room, so that a lost device costs few files. If the store's
//!   only device fails a flush, the store takes no more writes.
//!
//! Left out: extent maps, when to flush, and changes of the list of devices (`devices`).

#![forbid(unsafe_code)]

mod absorbed;
mod aligned;
mod attached;
mod births;
mod block_set;
mod blocks;
mod devices;
mod error;
mod freed;
mod fresh;
pub mod held;
mod host_room;
mod marks;
mod patience;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod ranges;
mod replaced;
mod sums;
mod suspects;
mod unit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use shoal_format::bulk_list::{
    BULK_DEVICES_MAX, BULK_LIST_AT, BULK_NUMBER_SHIFT, BulkDeviceEntry, blocks_end, decode_devices, decode_list,
};
use shoal_format::extent::{BulkBlock, EXTENT_NEW, EXTENT_UNWRITTEN, Extent, FileBlock};
use shoal_format::inode::Ino;
use shoal_format::superblock::Superblock;
use shoal_format::{BULK_BLOCK, Offset, PAGE};
use shoal_media::{BlockDevice, MediaError, PersistentMemory, block};
use shoal_region::{Lsn, Region, Tx, View};

use absorbed::Absorbing;
use births::Births;
use block_set::BlockSet;
use blocks::{Bits, Blocks};
use freed::{reclaim_unit, saved};
use held::assert_none_held;
use planted::{Bug, is_planted};
use unit::Unit;

pub use absorbed::Unflushed;
pub use attached::UseState;
pub use blocks::Run;
pub use devices::{BulkState, Devices, GivenDevice, MoveOff, OnBulkFailure};
pub use error::{Error, Result};
pub use fresh::{Fresh, Tail};
pub use host_room::{Backoff, HostRoom, Room, RoomCache};
pub use patience::Patience;
pub use sums::{Covered, SumLeaves};
pub use unit::{Behind, Stamp};

/// Reads the words of a bitmap for `blocks` blocks at `at`. The flag is false if `read` finds none.
fn read_bitmap(at: Offset, blocks: u64, read: impl Fn(Offset, &mut [u8]) -> Result<bool>) -> Result<(Vec<u64>, bool)> {
    let mut words = vec![0u64; blocks.div_ceil(64) as usize];
    let mut chunk = [0; 4096];
    for (index, part) in words.chunks_mut(512).enumerate() {
        let bytes = &mut chunk[..part.len() * 8];
        if !read(at + index as u64 * 4096, bytes)? {
            return Ok((words, false));
        }
        for (word, bytes) in part.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
    }
    Ok((words, true))
}

/// Returns the devices that the newest saved image lists, or none without an image.
fn saved_devices(region: &Region) -> Result<Vec<BulkDeviceEntry>> {
    let mut page = [0; PAGE as usize];
    if !region.read_saved(BULK_LIST_AT, &mut page)? {
        return Ok(Vec::new());
    }
    Ok(decode_devices(&page, region.superblock())?)
}

/// Returns a device's bitmap in the newest saved image; empty if the image does not list the
/// device.
fn read_saved(region: &Region, saved: &[BulkDeviceEntry], unit: &Unit) -> Result<Vec<u64>> {
    let is_same = |entry: &&BulkDeviceEntry| entry.number == unit.number && entry.blocks == unit.count;
    let Some(entry) = saved.iter().find(is_same) else { return Ok(Vec::new()) };
    let at = entry.bitmap_at(region.superblock());
    let (words, found) = read_bitmap(at, unit.count, |at, out| Ok(region.read_saved(at, out)?))?;
    Ok(if found { words } else { Vec::new() })
}

/// Returns whether the list in a region's memory records the place of the first device, or no
/// longer has that device.
pub fn knows_first_place(memory: &dyn PersistentMemory, superblock: &Superblock) -> bool {
    let mut page = [0; PAGE as usize];
    memory.read(BULK_LIST_AT.get(), &mut page);
    let listed = decode_list(&page, superblock).ok().flatten();
    listed.is_some_and(|list| list.iter().find(|entry| entry.number == 0).is_none_or(|first| first.place != 0))
}

/// Names the operation in reports of its failure.
const FLUSH: &str = "the flush of the bulk storage";

/// The last write on each device that completed flushes cover.
#[derive(Clone, Copy, Debug)]
pub struct Flushed([u64; BULK_DEVICES_MAX]);

impl Flushed {
    /// Covers one device's writes up to `stamp`.
    pub fn on(stamp: Stamp) -> Flushed {
        let mut flushed = [0; BULK_DEVICES_MAX];
        flushed[stamp.device as usize] = stamp.write;
        Flushed(flushed)
    }

    pub fn covers(&self, stamp: Stamp) -> bool {
        stamp.write <= self.0[stamp.device as usize]
    }
}

/// The bulk devices and their free blocks.
pub struct Bulk {
    /// Ascending by number.
    units: RwLock<Arc<[Arc<Unit>]>>,
    /// The number behind the last block of any device.
    end: AtomicU64,
    list: Mutex<devices::List>,
    pub fresh: Fresh,
    pub births: Births,
    room: Option<Arc<RoomCache>>,
    /// The region was restored from an image: the devices may be newer than it.
    restored: bool,
    on_failure: Option<devices::OnBulkFailure>,
}

impl Bulk {
    /// Fails unless `device` can hold the `count` blocks that the store needs.
    pub fn check(device: Option<&dyn BlockDevice>, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let Some(device) = device else {
            return Err(Error::Io("the store has a bulk device, but none was given; name it".into()));
        };
        let geometry = device.geometry();
        if geometry.bytes / BULK_BLOCK < count || !BULK_BLOCK.is_multiple_of(geometry.block_bytes.max(1) as u64) {
            return Err(Error::Io(format!(
                "bulk device: {} bytes in units of {}, the store needs {} bytes in units of at most {BULK_BLOCK}; \
                 give it the device it was formatted with",
                geometry.bytes,
                geometry.block_bytes,
                count * BULK_BLOCK
            )));
        }
        Ok(())
    }

    /// Reads the list of devices of `region` and their bitmaps. The devices themselves are attached afterwards.
    pub fn load(region: &Region) -> Result<Bulk> {
        let superblock: &Superblock = region.superblock();
        let mut page = [0; PAGE as usize];
        region.read(BULK_LIST_AT, &mut page)?;
        let entries = decode_devices(&page, superblock)?;
        let saved = saved_devices(region)?;
        let mut units = Vec::new();
        for entry in &entries {
            units.push(Arc::new(Bulk::load_unit(region, entry, &saved)?));
        }
        let bulk = Bulk {
            units: RwLock::new(units.into()),
            end: AtomicU64::new(blocks_end(&entries)),
            list: Mutex::new(devices::List { entries }),
            fresh: Fresh::default(),
            births: Births::new(region.last_lsn()),
            room: None,
            on_failure: None,
            restored: false,
        };
        bulk.track();
        Ok(bulk)
    }

    fn load_unit(region: &Region, entry: &BulkDeviceEntry, saved: &[BulkDeviceEntry]) -> Result<Unit> {
        let at = entry.bitmap_at(region.superblock());
        let read = |at, out: &mut [u8]| Ok(region.read(at, out).map(|()| true)?);
        let (words, _) = read_bitmap(at, entry.blocks, read)?;
        let mut unit = Unit::new(entry, at, Blocks::new(words, entry.blocks));
        *unit.absorbed.get_mut() = Absorbing::load(region, entry.absorbed, entry.blocks * (BULK_BLOCK / PAGE))?;
        {
            let mut blocks = unit.state.lock();
            blocks.saved = read_saved(region, saved, &unit)?;
            blocks.hold_saved();
        }
        if !entry.suspects.is_none() {
            let piece = entry.suspects.offset();
            let mut suspects = BlockSet::default();
            let (words, _) = read_bitmap(piece, entry.blocks, read)?;
            words.into_iter().enumerate().for_each(|(word, bits)| suspects.set_word(word as u64, bits));
            unit.set_suspects(piece, suspects);
        }
        Ok(unit)
    }

    /// Makes the devices remember writes by block if there are several, so that a failure can be
    /// narrowed to the blocks of one device.
    fn track(&self) {
        let units = self.units();
        for unit in units.iter() {
            unit.tracks.store(units.len() > 1 || unit.has_suspects(), Ordering::Release);
        }
    }

    /// Limits new blocks to the room of the host on devices whose number is in `on_host`.
    pub fn with_room(self, room: Option<Arc<RoomCache>>, on_host: &[u32]) -> Bulk {
        for unit in self.units().iter() {
            unit.on_host.store(on_host.contains(&unit.number), Ordering::Release);
        }
        Bulk { room, ..self }
    }

    /// Sums `count` over the devices that take their room from the host.
    fn on_host(&self, count: impl Fn(&Unit) -> u64) -> u64 {
        self.sum(|unit| if unit.on_host.load(Ordering::Acquire) { count(unit) } else { 0 })
    }

    /// Returns how many blocks of the devices on the host are not free, and how many can be given
    /// out.
    pub fn taken_and_free_on_host(&self) -> (u64, u64) {
        let free = |unit: &Unit| if unit.takes_blocks() { unit.room() } else { 0 };
        (self.on_host(Unit::taken), self.on_host(free))
    }

    fn units(&self) -> Arc<[Arc<Unit>]> {
        self.units.read().clone()
    }

    fn unit(&self, number: u32) -> Option<Arc<Unit>> {
        self.units.read().iter().find(|unit| unit.number == number).cloned()
    }

    /// Returns the device that holds a block.
    fn unit_of(&self, block: u64) -> Result<Arc<Unit>> {
        let found = self.unit((block >> BULK_NUMBER_SHIFT) as u32).filter(|unit| unit.holds(block));
        found.ok_or_else(|| Error::Corrupt(format!("bulk block {block} is on no device; run `shoal check`")))
    }

    /// Takes up to `want` contiguous blocks: at `goal` if it is free, else behind the cursor of the
    /// file's device, else on the device with the most room. Leaves `ahead` free blocks behind them
    /// for the file's next blocks. `None` when no block is free now.
    ///
    /// The host must have room for them beyond its headroom. The log and the images must still be
    /// able to grow: without them the blocks are useless.
    pub fn take(&self, region: &Region, goal: Option<BulkBlock>, want: u64, ahead: u64) -> Option<Run> {
        let units = self.units();
        if let [unit] = &units[..] {
            return if unit.takes_blocks() { self.take_on(unit, region, goal, want, ahead) } else { None };
        }
        let home = goal.and_then(|goal| {
            let before = goal.get().saturating_sub(1);
            units.iter().find(|unit| unit.holds(before) && unit.takes_blocks())
        });
        if let Some(run) = home.and_then(|unit| self.take_on(unit, region, goal, want, ahead)) {
            return Some(run);
        }
        let mut others: Vec<_> =
            units.iter().filter(|unit| unit.takes_blocks()).map(|unit| (unit.room(), unit)).collect();
        // Stable sort: among equals the first device wins.
        others.sort_by_key(|&(room, _)| std::cmp::Reverse(room));
        others.into_iter().find_map(|(_, unit)| self.take_on(unit, region, None, want, ahead))
    }

    fn take_on(&self, unit: &Unit, region: &Region, goal: Option<BulkBlock>, want: u64, ahead: u64) -> Option<Run> {
        let goal = goal.and_then(|goal| goal.get().checked_sub(unit.first)).map(BulkBlock::new);
        let run = match &self.room {
            Some(room) if unit.on_host.load(Ordering::Acquire) => {
                let within = |host: HostRoom| {
                    let most = host.bulk_bytes(region.log_growth_bytes()) / BULK_BLOCK;
                    let taken = self.on_host(Unit::taken);
                    let want = want.min(most.saturating_sub(taken));
                    if want == 0 { None } else { unit.state.lock().take(goal, want, ahead) }
                };
                // The host may have gained room since it was last asked.
                within(room.now()).or_else(|| within(room.fresh()))
            }
            _ => unit.state.lock().take(goal, want, ahead),
        };
        run.map(|run| unit.as_store(run))
    }

    /// Returns the number behind the last block of any device: the limit for extents.
    pub fn blocks(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    fn sum(&self, count: impl Fn(&Unit) -> u64) -> u64 {
        self.units().iter().map(|unit| count(unit)).sum()
    }

    /// Returns the number of blocks of all devices.
    pub fn total_blocks(&self) -> u64 {
        self.sum(|unit| unit.count)
    }

    /// Returns the number of free blocks on devices that take new blocks, including those withheld.
    pub fn free_blocks(&self) -> u64 {
        self.sum(|unit| if unit.takes_blocks() { unit.state.lock().free } else { 0 })
    }

    /// Returns the number of blocks that are neither free nor pending.
    pub fn used_blocks(&self) -> u64 {
        self.sum(|unit| {
            let blocks = unit.state.lock();
            unit.count.saturating_sub(blocks.free + blocks.pending_blocks)
        })
    }

    /// Keeps `blocks` free blocks of the first device from being allocated.
    pub fn withhold(&self, blocks: u64) {
        if let Some(unit) = self.unit(0) {
            unit.state.lock().withheld = blocks;
        }
    }

    pub fn withheld_blocks(&self) -> u64 {
        self.sum(|unit| unit.state.lock().withheld)
    }

    /// Returns the number of blocks that are freed, but must not be reused before the freeing is
    /// durable and no saved image maps them.
    pub fn pending_blocks(&self) -> u64 {
        self.sum(|unit| unit.state.lock().pending_blocks)
    }

    /// Returns the number of blocks that are freed, but mapped by the saved image.
    pub fn held_blocks(&self) -> u64 {
        self.sum(|unit| unit.state.lock().held_blocks)
    }

    /// Like [`Bulk::take`], but waits for pending blocks, then for held ones, when nothing else is
    /// left.
    ///
    /// The caller must not hold a transaction or an inode lock: waiting may have to make the log durable.
    pub fn reserve(&self, region: &Region, goal: Option<BulkBlock>, want: u64, ahead: u64) -> Result<Run> {
        self.reclaim(region)?;
        if let Some(run) = self.take(region, goal, want, ahead) {
            return Ok(run);
        }
        let pending = |unit: &Arc<Unit>| unit.state.lock().pending.iter().map(|&(lsn, _)| lsn).max();
        if let Some(last) = self.units().iter().filter_map(pending).max() {
            region.sync_to(last)?;
            self.reclaim(region)?;
        }
        if let Some(run) = self.take(region, goal, want, ahead) {
            return Ok(run);
        }
        if self.held_blocks() > 0 {
            self.save(region)?;
        }
        self.take(region, goal, want, ahead).ok_or(Error::NO_SPACE)
    }

    /// Takes up to `want` contiguous blocks of the first device before `limit`: the longest run
    /// there. `None` when there is none.
    pub fn reserve_before(&self, region: &Region, limit: BulkBlock, want: u64) -> Result<Option<Run>> {
        let Some(unit) = self.unit(0) else { return Ok(None) };
        let take = || unit.state.lock().take_before(limit, want);
        if let Some(run) = take() {
            return Ok(Some(run));
        }
        // A pending run becomes free when its record is durable, a held one when a newer image is
        // sealed.
        region.sync()?;
        self.reclaim(region)?;
        if self.held_blocks() > 0 {
            self.save(region)?;
        }
        Ok(take())
    }

    /// Returns whether the device that holds this block failed its last write, or is closed.
    pub fn ails(&self, block: BulkBlock) -> bool {
        self.unit_of(block.get()).is_ok_and(|unit| unit.ails() || !unit.is_open())
    }

    /// Returns how many blocks the devices that take new blocks can give out, and how many they
    /// have.
    pub fn room_and_blocks(&self) -> (u64, u64) {
        let units = self.units();
        let taking = units.iter().filter(|unit| unit.takes_blocks());
        taking.fold((0, 0), |(room, count), unit| {
            let withheld = unit.state.lock().withheld;
            (room + unit.room(), count + unit.count.saturating_sub(withheld))
        })
    }

    /// Returns whether any device takes new blocks and has room for one.
    pub fn takes_blocks(&self) -> bool {
        self.units().iter().any(|unit| unit.takes_blocks() && unit.room() > 0)
    }

    /// Gives back a reservation whose transaction did not commit.
    pub fn cancel(&self, run: Run) {
        if let Ok(unit) = self.unit_of(run.first.get()) {
            unit.state.lock().mark(unit.own(run), Bits::Cleared);
        }
    }

    /// Records in `tx` that a reserved run is mapped.
    pub fn mark_used(&self, tx: &mut Tx<'_>, run: Run) -> Result<()> {
        let unit = self.unit_of(run.first.get())?;
        mark(tx, unit.bitmap, unit.own(run), Bits::Set)
    }

    /// Records in `tx` that a run is unmapped; [`Bulk::freed`] must follow the commit.
    pub fn mark_free(&self, tx: &mut Tx<'_>, run: Run) -> Result<()> {
        let unit = self.unit_of(run.first.get())?;
        if run.end().get() > unit.first + unit.count {
            return Err(Error::Corrupt(format!("bulk blocks {}.. leave their device; run `shoal check`", run.first)));
        }
        if let Some(suspects) = unit.suspects_piece() {
            // Their contents are no longer needed, and the next file writes whole blocks.
            mark(tx, suspects, unit.own(run), Bits::Cleared)?;
        }
        mark(tx, unit.bitmap, unit.own(run), Bits::Cleared)
    }

    /// Notes runs unmapped by the record that ends at `lsn`. They stay used until the log is
    /// durable up to there.
    pub fn freed(&self, lsn: Lsn, runs: &[Run]) {
        for &run in runs {
            let Ok(unit) = self.unit_of(run.first.get()) else { continue };
            unit.forget(run);
            let mut blocks = unit.state.lock();
            blocks.pending_blocks += run.blocks;
            blocks.pending.push((lsn, unit.own(run)));
        }
    }

    /// Frees the blocks whose freeing is durable and which no saved image maps.
    pub fn reclaim(&self, region: &Region) -> Result<()> {
        self.units().iter().for_each(|unit| reclaim_unit(region, unit));
        Ok(())
    }

    /// Like [`Bulk::reclaim`], for one device.
    pub fn reclaim_on(&self, region: &Region, number: u32) {
        if let Some(unit) = self.unit(number) {
            reclaim_unit(region, &unit);
        }
    }

    /// Saves the region in an image and releases the blocks that only the previous image mapped.
    pub fn save(&self, region: &Region) -> Result<()> {
        assert_none_held();
        let units = self.units();
        // Taken before the seal: a block that only the new image maps must not be released
        // meanwhile.
        let _one_at_a_time: Vec<_> = units.iter().map(|unit| unit.releasing.lock()).collect();
        region.checkpoint()?;
        saved(region, &units)
    }

    /// Releases held blocks after the last image of this life was sealed.
    pub fn saved_finally(&self, region: &Region) -> Result<()> {
        let units = self.units();
        let _one_at_a_time: Vec<_> = units.iter().map(|unit| unit.releasing.lock()).collect();
        saved(region, &units)
    }

    /// Reads bytes from the device that holds them.
    pub fn read(&self, region: &Region, at: u64, out: &mut [u8]) -> Result<()> {
        assert_none_held();
        self.unit_of(at / BULK_BLOCK)?.read(region, at, out, |sentence| self.devices().tell(sentence))
    }

    /// Reads without comparing checksums, for a caller that has a sum of its own.
    pub fn read_as_it_is(&self, at: u64, out: &mut [u8]) -> Result<()> {
        assert_none_held();
        self.unit_of(at / BULK_BLOCK)?.read_as_it_is(at, out)
    }

    /// Overwrites data on the device that holds it; returns the write's number. The file's data
    /// lock keeps others away from the device blocks at the unaligned ends, which are read and
    /// written back.
    pub fn write(&self, region: &Region, at: u64, bytes: &[u8], behind: Behind, patience: Patience) -> Result<Stamp> {
        assert_none_held();
        self.unit_of(at / BULK_BLOCK)?
            .write(region, at, bytes, behind, patience, |sentence| self.devices().tell(sentence))
    }

    /// Writes whole blocks that no file maps yet, before the record that maps them.
    pub fn fill(&self, region: &Region, first: BulkBlock, bytes: &[u8]) -> Result<Stamp> {
        assert_none_held();
        debug_assert!((bytes.len() as u64).is_multiple_of(BULK_BLOCK));
        self.unit_of(first.get())?.fill(region, first.byte(), bytes)
    }

    /// Notes that a write went into a file.
    pub fn wrote(&self, ino: Ino, write: Stamp) {
        if let Some(unit) = self.unit(write.device) {
            unit.wrote(ino, write.write);
        }
        self.fresh.replaced.wrote(ino);
    }

    /// Returns the last write so far on the device that holds `block`.
    pub fn stamp_at(&self, block: BulkBlock) -> Result<Stamp> {
        Ok(self.unit_of(block.get())?.stamp())
    }

    /// Takes a write number for data of an earlier process anywhere on the store's only device;
    /// `None` if the store has several.
    pub fn note_earlier_on_only(&self) -> Option<Stamp> {
        match &self.units()[..] {
            [unit] => Some(unit.note_earlier_write()),
            _ => None,
        }
    }

    /// Takes a write number for data of an earlier process at `block`.
    pub fn note_earlier_write(&self, block: BulkBlock) -> Result<Stamp> {
        Ok(self.unit_of(block.get())?.note_earlier_write())
    }

    /// Lists blocks of a file as NEW, filled by writes up to `stamp`.
    pub fn list_new(&self, ino: Ino, start: FileBlock, end: FileBlock, stamp: Stamp) {
        self.fresh.add(ino, start, end, stamp, |device| self.unit(device).map_or(0, |unit| unit.last_noted()));
    }

    /// Makes every write to one device completed before the call durable. Does nothing if nothing
    /// was written since the last flush; concurrent callers share one flush. A failure poisons
    /// `region` for good if the device is the only one, else it closes the device ([`Devices::fail`]).
    fn flush_unit(&self, region: &Region, unit: &Unit, patience: Patience) -> Result<()> {
        let wanted = unit.written.load(Ordering::Acquire);
        if unit.flushed.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        patience.may_flush()?;
        assert_none_held();
        let _one_at_a_time = unit.flushing.lock();
        if unit.flushed.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        if let Some(failure) = region.failure() {
            // Never retried: a second flush could succeed although the first one lost data.
            return Err(Error::Failed(failure));
        }
        let device = unit.open_device()?;
        let covered = self.fresh.note(|| {
            // Numbers are given at completion, so every write up to this one completed before the submission.
            let covered = unit.written.load(Ordering::Acquire);
            unit.submitted.store(covered, Ordering::Release);
            covered
        });
        unit.begin_flush();
        if let Err(error) = block::flush(&*device) {
            return Err(self.flush_failed(region, unit, error));
        }
        let covered = if is_planted(Bug::FlushCoversLater) { unit.written.load(Ordering::Acquire) } else { covered };
        // Before anybody finds that the flush covers a file.
        unit.release_absorbed(region)?;
        unit.flushed.store(covered, Ordering::Release);
        self.devices().settle_suspects(region, unit)
    }

    /// Handles a failed flush: poisons the region if the device is the only one, else closes the
    /// device.
    fn flush_failed(&self, region: &Region, unit: &Unit, error: MediaError) -> Error {
        if self.units().len() == 1 {
            unit.may_lack.store(true, Ordering::Release);
            // Another flush may have failed at the same moment: it noted the loss before it failed the store.
            let is_noted = || region.failure().is_some_and(|failure| failure.operation == FLUSH);
            if let Err(unknown) = region.note_loss()
                && !is_noted()
            {
                self.devices()
                    .tell(&format!("the log does not tell that the flush of the bulk storage failed: {unknown}"));
            }
            region.poison(FLUSH, &error);
            return error.into();
        }
        self.devices().fail(region, unit, &error);
        Error::Io(error.to_string())
    }

    /// Flushes one device, if it takes writes. The failure of one of several devices is not an
    /// error.
    pub fn flush_on(&self, region: &Region, number: u32) -> Result<Flushed> {
        if let Some(unit) = self.unit(number) {
            match self.flush_unit(region, &unit, Patience::Waits) {
                Err(Error::Io(_)) if !unit.is_open() => {}
                outcome => outcome?,
            }
        }
        Ok(self.last_flushed())
    }

    /// Returns the numbers of the devices.
    pub fn numbers(&self) -> Vec<u32> {
        self.units().iter().map(|unit| unit.number).collect()
    }

    /// Returns whether a flush could settle anything on a device.
    pub fn has_new_on(&self, number: u32) -> bool {
        self.unit(number)
            .is_some_and(|unit| unit.is_open() && (unit.needs_flush() || self.fresh.has_any_on(|n| n == number)))
    }

    /// Returns the first device that an fsync of the file has to wait for.
    pub fn waits_on(&self, ino: Ino) -> u32 {
        let flushed = self.last_flushed();
        self.units().iter().find(|unit| self.waits(unit, ino, &flushed)).map_or(0, |unit| unit.number)
    }

    /// Flushes every device that takes writes. If one of several devices fails, it is closed
    /// without an error, so that files on the others are not affected.
    pub fn flush(&self, region: &Region) -> Result<Flushed> {
        for unit in self.units().iter() {
            match self.flush_unit(region, unit, Patience::Waits) {
                Err(Error::Io(_)) if !unit.is_open() => {}
                outcome => outcome?,
            }
        }
        Ok(self.last_flushed())
    }

    /// Flushes the devices that these files were written to, each once. Skips closed devices: the
    /// file's map tells whether the file is affected ([`Bulk::refuse_doubtful`]).
    pub fn flush_files(&self, region: &Region, inos: &[Ino]) -> Result<Flushed> {
        let flushed = self.last_flushed();
        let units = self.units();
        for unit in units.iter().filter(|unit| inos.iter().any(|&ino| self.waits(unit, ino, &flushed))) {
            match self.flush_unit(region, unit, Patience::Waits) {
                Err(Error::Io(_)) if !unit.is_open() => {}
                outcome => outcome?,
            }
        }
        Ok(self.last_flushed())
    }

    /// Returns what completed flushes cover, if that includes everything written to the file.
    pub fn file_flushed(&self, ino: Ino) -> Option<Flushed> {
        let flushed = self.last_flushed();
        let covered = |unit: &Arc<Unit>| !unit.is_open() || !self.waits(unit, ino, &flushed);
        self.units().iter().all(covered).then_some(flushed)
    }

    /// Returns whether a flush has covered the last write to the file.
    pub fn is_flushed(&self, ino: Ino) -> bool {
        self.units().iter().all(|unit| self.is_flushed_on(unit, ino) || !unit.is_open())
    }

    /// Returns whether all devices take writes and nothing on them is in doubt.
    pub fn is_whole(&self) -> bool {
        self.units().iter().all(|unit| unit.is_open() && !unit.has_suspects())
    }

    /// Fails if an extent cannot be proven durable.
    pub fn refuse_doubtful(&self, extent: &Extent) -> Result<()> {
        if extent.flags & EXTENT_UNWRITTEN != 0 {
            return Ok(());
        }
        let unit = self.unit_of(extent.bulk_block.get())?;
        let run = Run { first: extent.bulk_block, blocks: extent.blocks };
        let is_new = extent.flags & EXTENT_NEW != 0;
        unit.refuse_doubtful(run, is_new)
    }

    /// Returns whether a device that can be flushed has data that no flush covers.
    pub fn needs_flush(&self) -> bool {
        self.units().iter().any(|unit| unit.needs_flush())
    }

    /// Returns the last write on each device that completed flushes cover.
    pub fn last_flushed(&self) -> Flushed {
        let mut flushed = [0; BULK_DEVICES_MAX];
        for unit in self.units().iter() {
            flushed[unit.number as usize] = unit.flushed.load(Ordering::Acquire);
        }
        Flushed(flushed)
    }

    /// Returns whether the device that holds `block` has completed a flush in this process.
    pub fn has_flushed(&self, block: BulkBlock) -> bool {
        self.unit_of(block.get()).is_ok_and(|unit| unit.flushed.load(Ordering::Acquire) > 0)
    }
}

/// Sets or clears the bits of a run, in the device's own numbers, in one of its bitmaps.
fn mark(tx: &mut Tx<'_>, bitmap: Offset, run: Run, bits: Bits) -> Result<()> {
    let is_set = bits == Bits::Set;
    let (mut block, end) = (run.first.get(), run.end().get());
    while block < end {
        let at = bitmap + block / 64 * 8;
        let words = (end - block) / 64;
        if block.is_multiple_of(64) && words > 0 {
            // Whole words belong to this run alone: no other transaction changes their bits.
            if is_set {
                tx.write(at, &vec![0xff; words as usize * 8])?;
            } else {
                tx.zero(at, words * 8)?;
            }
            block += words * 64;
            continue;
        }
        let bits = (64 - block % 64).min(end - block);
        let mask = (u64::MAX >> (64 - bits)) << (block % 64);
        if is_set {
            tx.set_bits(at, mask)?
        } else {
            tx.clear_bits(at, mask)?
        }
        block += bits;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
