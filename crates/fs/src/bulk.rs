//! The bulk device as the file system sees it: which 64 KiB blocks are free, and moving bytes to and from them.
//!
//! The bitmap in the region is the truth about blocks (bit set = used); the copy here decides. A reservation changes only
//! the copy; the bit is set by the transaction that maps the block and cleared by the one that unmaps it.
//! Rules:
//! - A freed block is reused only when the record that freed it is durable (invariant 5): until then it is *pending*.
//!   It is trimmed before it counts as free, so that no trim can hit its next user.
//! - Where the region is saved in images (`battery`), the image may be all that is left after its memory was lost: a block the
//!   newest image maps is not reused, nor trimmed, before a newer image is sealed. It is *held* until then. A caller
//!   that finds no other space saves an image.
//! - Runs are allocated in temporal order by a roving cursor that leaves a gap behind each, so that files growing side
//!   by side stay contiguous; a growing file goes on behind its last extent.
//! - A flush covers the writes completed before it. Each completed write takes a number of its device's; a flush remembers the
//!   last number before its submission, and `fresh` compares the two.
//! - A store may have several devices. Which of them holds a block its number says ([`BULK_NUMBER_SHIFT`]); they work, flush and
//!   fail each by itself ([`unit`]). A file stays on its device as long as that has room, so that a lost device costs few files.
//!   The failed flush of an only device ends the store.
//!
//! Left out: extent maps, when to flush, and changes of the list of devices (`devices`).

mod births;
mod blocks;
mod devices;
mod fresh;
mod patience;
mod ranges;
mod replaced;
mod sums;
mod unit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use shoal_format::bulk_list::{
    BULK_DEVICES_MAX, BULK_LIST_AT, BULK_NUMBER_SHIFT, BulkDeviceEntry, blocks_end, decode_list, only_device,
};
use shoal_format::extent::{BulkBlock, EXTENT_NEW, EXTENT_UNWRITTEN, Extent, FileBlock};
use shoal_format::superblock::Superblock;
use shoal_format::{BULK_BLOCK, Offset, PAGE};
use shoal_media::{BlockDevice, MediaError, PersistentMemory, block};
use shoal_region::{Lsn, Region, Tx, View};

use crate::host_room::{HostRoom, RoomCache};
use crate::locks::assert_none_held;
use crate::planted::{Bug, is_planted};
use crate::{Error, Ino, Result};
use births::Births;
use blocks::Blocks;
pub(crate) use blocks::Run;
pub use devices::{BulkState, GivenDevice, OnBulkFailure};
pub(crate) use fresh::{Fresh, Tail};
use patience::may_read;
pub(crate) use patience::may_wait;
pub use patience::{without_device, without_flush};
pub(crate) use unit::Stamp;
use unit::Unit;

/// The words of a bitmap for `blocks` blocks at `at`; false if `read` finds none.
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

/// The devices that the newest saved image knows; none if there is none.
fn saved_devices(region: &Region) -> Result<Vec<BulkDeviceEntry>> {
    let mut page = [0; PAGE as usize];
    if !region.read_saved(BULK_LIST_AT, &mut page)? {
        return Ok(Vec::new());
    }
    let only = || only_device(region.superblock()).into_iter().collect();
    Ok(decode_list(&page, region.superblock())?.unwrap_or_else(only))
}

/// The bitmap of a device in the newest saved image; empty if that knows nothing of it.
fn read_saved(region: &Region, saved: &[BulkDeviceEntry], unit: &Unit) -> Result<Vec<u64>> {
    let is_same = |entry: &&BulkDeviceEntry| entry.number == unit.number && entry.blocks == unit.count;
    let Some(entry) = saved.iter().find(is_same) else { return Ok(Vec::new()) };
    let at = entry.bitmap_at(region.superblock());
    let (words, found) = read_bitmap(at, unit.count, |at, out| Ok(region.read_saved(at, out)?))?;
    Ok(if found { words } else { Vec::new() })
}

/// Does the list in a region's memory know where the first device was, or does the store have none any more?
pub(crate) fn knows_first_place(memory: &dyn PersistentMemory, superblock: &Superblock) -> bool {
    let mut page = [0; PAGE as usize];
    memory.read(BULK_LIST_AT.get(), &mut page);
    let listed = decode_list(&page, superblock).ok().flatten();
    listed.is_some_and(|list| list.iter().find(|entry| entry.number == 0).is_none_or(|first| first.place != 0))
}

/// What completed flushes cover: for each device the last write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushed([u64; BULK_DEVICES_MAX]);

impl Flushed {
    /// Up to one write.
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
pub(crate) struct Bulk {
    /// Ascending by number.
    units: RwLock<Arc<[Arc<Unit>]>>,
    /// Behind the last block of any of them.
    end: AtomicU64,
    list: Mutex<devices::List>,
    pub fresh: Fresh,
    pub births: Births,
    room: Option<Arc<RoomCache>>,
    /// As [`crate::Options::region_restored`].
    restored: bool,
    on_failure: Option<devices::OnBulkFailure>,
}

impl Bulk {
    /// Can `device` hold the `count` blocks a store speaks of?
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
        let listed = decode_list(&page, superblock)?;
        let list = devices::List { exists: listed.is_some(), entries: listed.unwrap_or_default() };
        let entries = list.known(region);
        let saved = saved_devices(region)?;
        let mut units = Vec::new();
        for entry in &entries {
            units.push(Arc::new(Bulk::load_unit(region, entry, &saved)?));
        }
        let bulk = Bulk {
            units: RwLock::new(units.into()),
            end: AtomicU64::new(blocks_end(&entries)),
            list: Mutex::new(list),
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
        let unit = Unit::new(entry, at, Blocks::new(words, entry.blocks));
        {
            let mut blocks = unit.state.lock();
            blocks.saved = read_saved(region, saved, &unit)?;
            blocks.hold_saved();
        }
        if !entry.suspects.is_none() {
            let piece = entry.suspects.offset();
            let mut suspects = unit::BlockSet::default();
            let (words, _) = read_bitmap(piece, entry.blocks, read)?;
            words.into_iter().enumerate().for_each(|(word, bits)| suspects.set_word(word as u64, bits));
            unit.set_suspects(piece, suspects);
        }
        Ok(unit)
    }

    /// Where there are several devices, writes are remembered by block, so that the failure of one can be narrowed to its own.
    fn track(&self) {
        let units = self.units();
        for unit in units.iter() {
            unit.tracks.store(units.len() > 1 || unit.has_suspects(), Ordering::Release);
        }
    }

    /// New blocks are given out only while the host has room for them.
    pub fn with_room(self, room: Option<Arc<RoomCache>>, on_host: &[u32]) -> Bulk {
        for unit in self.units().iter() {
            unit.on_host.store(on_host.contains(&unit.number), Ordering::Release);
        }
        Bulk { room, ..self }
    }

    /// Of the devices that take their room from the host.
    fn on_host(&self, count: impl Fn(&Unit) -> u64) -> u64 {
        self.sum(|unit| if unit.on_host.load(Ordering::Acquire) { count(unit) } else { 0 })
    }

    /// Blocks of those devices that are not free, and that are free and can be given out.
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

    /// The device that holds a block.
    fn unit_of(&self, block: u64) -> Result<Arc<Unit>> {
        let found = self.unit((block >> BULK_NUMBER_SHIFT) as u32).filter(|unit| unit.holds(block));
        found.ok_or_else(|| Error::Corrupt(format!("bulk block {block} is on no device; run `shoal check`")))
    }

    /// Takes up to `want` contiguous blocks: at `goal` if it is free, else behind the cursor of the file's device, else on the
    /// device with most room, with `ahead` blocks left free behind them for the file's next ones. `None` when none is free now.
    ///
    /// The host must have room for them. It keeps its headroom: log and images must still be able to grow, for without them
    /// nothing can be done with the blocks.
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
        // A stable sort: of equal ones the first device.
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
                // Room may have been made since the host was asked last.
                within(room.now()).or_else(|| within(room.fresh()))
            }
            _ => unit.state.lock().take(goal, want, ahead),
        };
        run.map(|run| unit.as_store(run))
    }

    /// Behind the last block of any device: extents end there at the latest.
    pub fn blocks(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    fn sum(&self, count: impl Fn(&Unit) -> u64) -> u64 {
        self.units().iter().map(|unit| count(unit)).sum()
    }

    /// Blocks of all devices.
    pub fn total_blocks(&self) -> u64 {
        self.sum(|unit| unit.count)
    }

    /// Free blocks that can be given out, those withheld among them.
    pub fn free_blocks(&self) -> u64 {
        self.sum(|unit| if unit.takes_blocks() { unit.state.lock().free } else { 0 })
    }

    /// Blocks that are neither free nor pending.
    pub fn used_blocks(&self) -> u64 {
        self.sum(|unit| {
            let blocks = unit.state.lock();
            unit.count.saturating_sub(blocks.free + blocks.pending_blocks)
        })
    }

    /// Keeps this many free blocks of the first device from being allocated.
    pub fn withhold(&self, blocks: u64) {
        if let Some(unit) = self.unit(0) {
            unit.state.lock().withheld = blocks;
        }
    }

    pub fn withheld_blocks(&self) -> u64 {
        self.sum(|unit| unit.state.lock().withheld)
    }

    /// Freed, but not to be reused before the freeing is durable.
    pub fn pending_blocks(&self) -> u64 {
        self.sum(|unit| unit.state.lock().pending_blocks)
    }

    /// Freed, but mapped by the saved image.
    pub fn held_blocks(&self) -> u64 {
        self.sum(|unit| unit.state.lock().held_blocks)
    }

    /// Like [`Bulk::take`], but waits for pending blocks, and for held ones, when nothing else is left.
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
        self.take(region, goal, want, ahead).ok_or(Error::NoSpace)
    }

    /// Takes up to `want` contiguous blocks of the first device before `limit`, the longest run there is; `None` when there is
    /// none.
    pub fn reserve_before(&self, region: &Region, limit: BulkBlock, want: u64) -> Result<Option<Run>> {
        let Some(unit) = self.unit(0) else { return Ok(None) };
        let take = || unit.state.lock().take_before(limit, want);
        if let Some(run) = take() {
            return Ok(Some(run));
        }
        // A freed run is free when its record is durable; a run that an image maps, when there is a newer image.
        region.sync()?;
        self.reclaim(region)?;
        if self.held_blocks() > 0 {
            self.save(region)?;
        }
        Ok(take())
    }

    /// Has the device that holds this block failed its last write?
    pub fn ails(&self, block: BulkBlock) -> bool {
        self.unit_of(block.get()).is_ok_and(|unit| unit.ails() || !unit.is_open())
    }

    /// Of the devices that take new blocks: how many they can give out, and how many they have.
    pub fn room_and_blocks(&self) -> (u64, u64) {
        let units = self.units();
        let taking = units.iter().filter(|unit| unit.takes_blocks());
        taking.fold((0, 0), |(room, count), unit| {
            let withheld = unit.state.lock().withheld;
            (room + unit.room(), count + unit.count.saturating_sub(withheld))
        })
    }

    /// Does any device take new blocks, and has one?
    pub fn takes_blocks(&self) -> bool {
        self.units().iter().any(|unit| unit.takes_blocks() && unit.room() > 0)
    }

    /// Gives back a reservation whose transaction did not commit.
    pub fn cancel(&self, run: Run) {
        if let Ok(unit) = self.unit_of(run.first.get()) {
            unit.state.lock().set(unit.own(run), false);
        }
    }

    /// Records in `tx` that a reserved run is mapped.
    pub fn mark_used(&self, tx: &mut Tx<'_>, run: Run) -> Result<()> {
        let unit = self.unit_of(run.first.get())?;
        mark(tx, unit.bitmap, unit.own(run), true)
    }

    /// Records in `tx` that a run is unmapped; [`Bulk::freed`] must follow the commit.
    pub fn mark_free(&self, tx: &mut Tx<'_>, run: Run) -> Result<()> {
        let unit = self.unit_of(run.first.get())?;
        if run.end().get() > unit.first + unit.count {
            return Err(Error::Corrupt(format!("bulk blocks {}.. leave their device; run `shoal check`", run.first)));
        }
        if let Some(suspects) = unit.suspects_piece() {
            // Nobody asks for their contents any more, and their next file brings its own.
            mark(tx, suspects, unit.own(run), false)?;
        }
        mark(tx, unit.bitmap, unit.own(run), false)
    }

    /// Runs unmapped by the record that ends at `lsn`: they stay used until the log is durable up to there.
    pub fn freed(&self, lsn: Lsn, runs: &[Run]) {
        for &run in runs {
            let Ok(unit) = self.unit_of(run.first.get()) else { continue };
            unit.forget(run);
            let mut blocks = unit.state.lock();
            blocks.pending_blocks += run.blocks;
            blocks.pending.push((lsn, unit.own(run)));
        }
    }

    /// Makes blocks free whose freeing is durable, and which no saved image maps.
    pub fn reclaim(&self, region: &Region) -> Result<()> {
        self.units().iter().for_each(|unit| reclaim_unit(region, unit));
        Ok(())
    }

    /// The same for one device.
    pub fn reclaim_on(&self, region: &Region, number: u32) {
        if let Some(unit) = self.unit(number) {
            reclaim_unit(region, &unit);
        }
    }

    /// Saves the region in an image and lets go of what only the image before it mapped.
    pub fn save(&self, region: &Region) -> Result<()> {
        assert_none_held();
        let units = self.units();
        // Held from before the seal: a block that only the new image maps must not be let go meanwhile.
        let _one_at_a_time: Vec<_> = units.iter().map(|unit| unit.releasing.lock()).collect();
        region.checkpoint()?;
        saved(region, &units)
    }

    /// The region was saved for the last time in this life.
    pub fn saved_finally(&self, region: &Region) -> Result<()> {
        let units = self.units();
        let _one_at_a_time: Vec<_> = units.iter().map(|unit| unit.releasing.lock()).collect();
        saved(region, &units)
    }

    /// Reads bytes of the device that holds them.
    pub fn read(&self, region: &Region, at: u64, out: &mut [u8]) -> Result<()> {
        may_read()?;
        assert_none_held();
        self.unit_of(at / BULK_BLOCK)?.read(region, at, out, |sentence| self.tell(sentence))
    }

    /// The same, whatever the checksums say: for a caller that has a sum of its own.
    pub fn read_as_it_is(&self, at: u64, out: &mut [u8]) -> Result<()> {
        assert_none_held();
        self.unit_of(at / BULK_BLOCK)?.read_as_it_is(at, out)
    }

    /// Writes over data of the device that holds them; returns the write's number. The file's data lock keeps others away from the
    /// device blocks at the unaligned ends, which are read and written back. `to_end`: what lies behind the bytes in their block
    /// is nobody's.
    pub fn write(&self, region: &Region, at: u64, bytes: &[u8], to_end: bool) -> Result<Stamp> {
        assert_none_held();
        self.unit_of(at / BULK_BLOCK)?.write(region, at, bytes, to_end, |sentence| self.tell(sentence))
    }

    /// Writes whole blocks that no file maps yet, before the record that maps them.
    pub fn fill(&self, region: &Region, first: BulkBlock, bytes: &[u8]) -> Result<Stamp> {
        assert_none_held();
        debug_assert!((bytes.len() as u64).is_multiple_of(BULK_BLOCK));
        self.unit_of(first.get())?.fill(region, first.byte(), bytes)
    }

    /// A write went into a file.
    pub fn wrote(&self, ino: Ino, write: Stamp) {
        if let Some(unit) = self.unit(write.device) {
            unit.wrote(ino, write.write);
        }
        self.fresh.replaced.wrote(ino);
    }

    /// The last write so far on the device that holds `block`.
    pub fn stamp_at(&self, block: BulkBlock) -> Result<Stamp> {
        Ok(self.unit_of(block.get())?.stamp())
    }

    /// A write's number for data of an earlier process anywhere on an only device.
    pub fn note_earlier_on_only(&self) -> Option<Stamp> {
        match &self.units()[..] {
            [unit] => Some(unit.note_earlier_write()),
            _ => None,
        }
    }

    /// A write's number for data of an earlier process at `block`.
    pub fn note_earlier_write(&self, block: BulkBlock) -> Result<Stamp> {
        Ok(self.unit_of(block.get())?.note_earlier_write())
    }

    /// Lists blocks of a file as NEW, filled by writes up to `stamp`.
    pub fn list_new(&self, ino: Ino, start: FileBlock, end: FileBlock, stamp: Stamp) {
        self.fresh.add(ino, start, end, stamp, |device| self.unit(device).map_or(0, |unit| unit.last_noted()));
    }

    /// Makes every write to one device completed before the call durable. Does nothing when nothing was written since the last
    /// flush; callers that meet share one flush. The failure of an only device poisons `region` for good, that of one of several
    /// closes the device ([`Bulk::fail`]).
    fn flush_unit(&self, region: &Region, unit: &Unit) -> Result<()> {
        let wanted = unit.written.load(Ordering::Acquire);
        if unit.flushed.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        may_wait()?;
        assert_none_held();
        let _one_at_a_time = unit.flushing.lock();
        if unit.flushed.load(Ordering::Acquire) >= wanted {
            return Ok(());
        }
        if let Some(failure) = region.failure() {
            // Never retried: a second flush could succeed over data the first one has lost.
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
        unit.flushed.store(covered, Ordering::Release);
        self.settle_suspects(region, unit)
    }

    /// What a failed flush means: for an only device the end of the store's writing, for one of several that of its own.
    fn flush_failed(&self, region: &Region, unit: &Unit, error: MediaError) -> Error {
        if self.units().len() == 1 {
            region.poison("the flush of the bulk storage", &error);
            return error.into();
        }
        self.fail(region, unit, &error);
        Error::Io(error.to_string())
    }

    /// Flushes one device, if it takes writes; that it fails as one of several is no error.
    pub fn flush_on(&self, region: &Region, number: u32) -> Result<Flushed> {
        if let Some(unit) = self.unit(number) {
            match self.flush_unit(region, &unit) {
                Err(Error::Io(_)) if !unit.is_open() => {}
                outcome => outcome?,
            }
        }
        Ok(self.last_flushed())
    }

    /// Numbers of the devices.
    pub fn numbers(&self) -> Vec<u32> {
        self.units().iter().map(|unit| unit.number).collect()
    }

    /// Is there anything on a device that a flush could settle?
    pub fn has_new_on(&self, number: u32) -> bool {
        self.unit(number)
            .is_some_and(|unit| unit.is_open() && (unit.needs_flush() || self.fresh.has_any_on(|n| n == number)))
    }

    /// The device that an fsync of the file has to wait for, the first of several.
    pub fn waits_on(&self, ino: Ino) -> u32 {
        let flushed = self.last_flushed();
        self.units().iter().find(|unit| self.waits(unit, ino, &flushed)).map_or(0, |unit| unit.number)
    }

    /// Flushes every device that takes writes. A device of several that cannot be flushed is closed, and no error: the others'
    /// files do not suffer for it.
    pub fn flush(&self, region: &Region) -> Result<Flushed> {
        for unit in self.units().iter() {
            match self.flush_unit(region, unit) {
                Err(Error::Io(_)) if !unit.is_open() => {}
                outcome => outcome?,
            }
        }
        Ok(self.last_flushed())
    }

    /// Flushes the devices that these files were written to, each once. A device that is closed is passed over: whether the file suffers by it
    /// its map says ([`Bulk::refuse_doubtful`]).
    pub fn flush_files(&self, region: &Region, inos: &[Ino]) -> Result<Flushed> {
        let flushed = self.last_flushed();
        let units = self.units();
        for unit in units.iter().filter(|unit| inos.iter().any(|&ino| self.waits(unit, ino, &flushed))) {
            match self.flush_unit(region, unit) {
                Err(Error::Io(_)) if !unit.is_open() => {}
                outcome => outcome?,
            }
        }
        Ok(self.last_flushed())
    }

    /// What completed flushes cover, if that is all that was written into the file.
    pub fn file_flushed(&self, ino: Ino) -> Option<Flushed> {
        let flushed = self.last_flushed();
        let covered = |unit: &Arc<Unit>| !unit.is_open() || !self.waits(unit, ino, &flushed);
        self.units().iter().all(covered).then_some(flushed)
    }

    /// Has a flush covered the last write into the file?
    pub fn is_flushed(&self, ino: Ino) -> bool {
        self.units().iter().all(|unit| self.is_flushed_on(unit, ino) || !unit.is_open())
    }

    /// Are all devices there, and nothing on them in doubt?
    pub fn is_whole(&self) -> bool {
        self.units().iter().all(|unit| unit.is_open() && !unit.has_suspects())
    }

    /// Fails if an extent cannot be proven to be durable.
    pub fn refuse_doubtful(&self, extent: &Extent) -> Result<()> {
        if extent.flags & EXTENT_UNWRITTEN != 0 {
            return Ok(());
        }
        let unit = self.unit_of(extent.bulk_block.get())?;
        let run = Run { first: extent.bulk_block, blocks: extent.blocks };
        let is_new = extent.flags & EXTENT_NEW != 0;
        unit.refuse_doubtful(run, is_new)
    }

    /// Is there data that no flush covers, on a device that can be flushed?
    pub fn needs_flush(&self) -> bool {
        self.units().iter().any(|unit| unit.needs_flush())
    }

    /// The last writes that completed flushes cover.
    pub fn last_flushed(&self) -> Flushed {
        let mut flushed = [0; BULK_DEVICES_MAX];
        for unit in self.units().iter() {
            flushed[unit.number as usize] = unit.flushed.load(Ordering::Acquire);
        }
        Flushed(flushed)
    }

    /// Has any device completed a flush in this process that holds `block`?
    pub fn has_flushed(&self, block: BulkBlock) -> bool {
        self.unit_of(block.get()).is_ok_and(|unit| unit.flushed.load(Ordering::Acquire) > 0)
    }
}

/// Sets or clears the bits of a device's own run in one of its bitmaps.
fn mark(tx: &mut Tx<'_>, bitmap: Offset, run: Run, used: bool) -> Result<()> {
    let (mut block, end) = (run.first.get(), run.end().get());
    while block < end {
        let at = bitmap + block / 64 * 8;
        let words = (end - block) / 64;
        if block.is_multiple_of(64) && words > 0 {
            // Whole words belong to this run alone: no other transaction changes a bit of them.
            if used {
                tx.write(at, &vec![0xff; words as usize * 8])?;
            } else {
                tx.zero(at, words * 8)?;
            }
            block += words * 64;
            continue;
        }
        let bits = (64 - block % 64).min(end - block);
        let mask = (u64::MAX >> (64 - bits)) << (block % 64);
        if used {
            tx.set_bits(at, mask)?
        } else {
            tx.clear_bits(at, mask)?
        }
        block += bits;
    }
    Ok(())
}

fn reclaim_unit(region: &Region, unit: &Unit) {
    let durable = if is_planted(Bug::ReuseAtOnce) { Lsn::MAX } else { region.durable_lsn() };
    let _one_at_a_time = unit.releasing.lock();
    let mut ready: Vec<Run> = Vec::new();
    unit.state.lock().pending.retain(|&(lsn, run)| {
        if lsn <= durable {
            ready.push(run);
        }
        lsn > durable
    });
    release(unit, ready);
}

/// There is a newer image: lets go of what only the image before it mapped. The caller holds `releasing` of all devices.
fn saved(region: &Region, units: &[Arc<Unit>]) -> Result<()> {
    let saved = saved_devices(region)?;
    for unit in units {
        let words = read_saved(region, &saved, unit)?;
        let held = {
            let mut blocks = unit.state.lock();
            blocks.saved = words;
            blocks.held_blocks = 0;
            std::mem::take(&mut blocks.held)
        };
        release(unit, held);
    }
    Ok(())
}

/// Makes blocks free whose freeing is durable, except those the saved image maps. The caller holds `releasing`.
fn release(unit: &Unit, mut ready: Vec<Run>) {
    ready.sort_unstable();
    ready.dedup_by(|next, run| {
        let joins = run.end() == next.first;
        if joins {
            run.blocks += next.blocks;
        }
        joins
    });
    for freed in ready {
        assert_none_held();
        let free = unit.state.lock().hold(freed);
        for run in free {
            if !is_planted(Bug::LateTrim) {
                unit.trim(run);
            }
            let mut blocks = unit.state.lock();
            blocks.set(run, false);
            blocks.pending_blocks -= run.blocks;
            drop(blocks);
            if is_planted(Bug::LateTrim) {
                unit.trim(run);
            }
        }
    }
}

#[cfg(test)]
#[path = "bulk_tests.rs"]
mod tests;
