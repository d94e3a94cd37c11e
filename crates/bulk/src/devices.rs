//! The bulk devices of a store: the list in the region, the marks on the devices, and changes of
//! both while the store is open.
//!
//! Rules, in the order in which things must be durable:
//! - The list is authoritative; one transaction at a time changes it. A new device carries its
//!   mark, durably, before the record that lists it. A record that takes a device off the list
//!   commits when no block of it is in use, pending or held.
//! - Each opening for writing gives every device present a mark of the next epoch, durably. Then
//!   the list gets the epoch behind that, durably, and then the mark does. A device that comes back
//!   later goes through the same steps. So list and mark are at most one apart wherever a crash
//!   comes between. A mark further behind belongs to an older copy of the device, which may lack
//!   what was promised since. A mark further ahead tells that the region is an older copy, unless
//!   it was restored from an image because its memory was lost. Then the list records each device
//!   as restored until it has a new mark.
//! - A device that failed a flush is closed before anybody is told of the failure. The blocks in
//!   doubt are durable in the region before the flush's caller has its answer.
//! - A suspect block that was written whole is certain on media only after a flush that covered the
//!   write. A suspect block that no file had is no longer listed when the write returns.
//!
//! Left out: what a mark is (`marks`), moving data off a device (`Devices::drain`), and where
//! devices are found (the caller of the file system).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shoal_format::bulk_list::{
    BULK_DEVICE_BLOCKS_MAX, BULK_DEVICES_MAX, BULK_LIST_AT, BulkDeviceEntry, Mark, blocks_end, encode_list,
};
use shoal_format::extent::{BulkBlock, Extent};
use shoal_format::inode::Ino;
use shoal_format::superblock::FEATURE_DEVICES;
use shoal_format::{BULK_BLOCK, PAGE, SlotRef};
use shoal_media::{BlockDevice, MediaError};
use shoal_region::{Recovery, Region, Tx};

use super::absorbed::Unflushed;
use super::block_set::Word;
use super::marks::{
    MARK_ROOM, Marking, Unmarked, mark_again, mark_ahead, mark_bytes, mark_of, probe, read_mark, verify, write_mark,
    wrote_mark,
};
use super::sums::free_leaves;
use super::suspects::{WORDS_PER_STEP, clear_suspects};
use super::unit::Unit;
use super::{Blocks, Bulk, Run};
use crate::attached::UseState;
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Bytes that one entry of a transaction zeroes.
const ZERO_STEP: u64 = 1 << 20;

/// Called for each device that fails or is missing, with a message that tells the consequences.
pub type OnBulkFailure = Arc<dyn Fn(&str) + Send + Sync>;

/// A bulk device that the store's owner has found.
#[derive(Clone)]
pub struct GivenDevice {
    /// The identifier in the store's description; zero for the device of a store without a list.
    pub uuid: [u8; 16],
    /// The name in messages.
    pub name: String,
    /// The device takes its room from the host that [`crate::Room`] asks.
    pub on_host: bool,
    /// The host's number for where the device is; 0: on no host.
    pub place: u64,
    /// The device, or why it could not be opened.
    pub device: std::result::Result<Arc<dyn BlockDevice>, String>,
}

/// What moving all data off a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveOff {
    /// Bytes in use on the device.
    pub bytes: u64,
    /// Bytes free on the others.
    pub room: u64,
}

/// The present state of a bulk device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkState {
    pub number: u32,
    pub uuid: [u8; 16],
    pub name: String,
    pub bytes: u64,
    /// Mapped by files, or about to be.
    pub used: u64,
    pub free: u64,
    /// Freed, but not to be reused yet.
    pub pending: u64,
    /// Contents in doubt since a flush failed.
    pub suspect: u64,
    /// Checksums are kept of the device's contents.
    pub has_sums: bool,
    /// Places where data did not match its checksum, and nothing was written since.
    pub damaged: u64,
    pub state: UseState,
    /// The device was found in another place after a crash: what no flush had covered is gone.
    pub moved: bool,
}

/// The list as it is in the region. Until a store of an earlier program is opened for writing, it
/// has only the device that the superblock names.
pub(super) struct List {
    pub entries: Vec<BulkDeviceEntry>,
}

impl List {
    /// Writes the list anew, in a transaction of its own.
    fn change(&mut self, region: &Region, entries: Vec<BulkDeviceEntry>) -> Result<()> {
        region.add_feature(FEATURE_DEVICES)?;
        let mut tx = region.begin_reclaim();
        write_list(&mut tx, &entries)?;
        tx.commit()?;
        self.entries = entries;
        Ok(())
    }
}

pub(super) fn write_list(tx: &mut Tx<'_>, entries: &[BulkDeviceEntry]) -> Result<()> {
    let mut page = encode_list(entries);
    page.resize(PAGE as usize, 0);
    Ok(tx.write(BULK_LIST_AT, &page)?)
}

/// The devices of bulk storage as a whole: the list, the marks, and changes of both.
#[derive(Clone, Copy)]
pub struct Devices<'a>(&'a Bulk);

impl Deref for Devices<'_> {
    type Target = Bulk;

    fn deref(&self) -> &Bulk {
        self.0
    }
}

impl Bulk {
    /// Tells the write cache of the device that the caller is about to write these bytes for a file.
    /// Called before [`Bulk::write`] and [`Bulk::fill`]; a hint that may be left out.
    pub fn belongs(&self, ino: Ino, at: u64, len: u64) {
        if let Ok(unit) = self.unit_of(at / BULK_BLOCK) {
            unit.belongs(ino, at, len);
        }
    }

    pub fn devices(&self) -> Devices<'_> {
        Devices(self)
    }

    pub fn tells(self, on_failure: Option<OnBulkFailure>) -> Bulk {
        Bulk { on_failure, ..self }
    }

    /// Notes with `restored` that devices may be newer than the region.
    pub fn restored(self, restored: bool) -> Bulk {
        Bulk { restored, ..self }
    }
}

impl Devices<'_> {
    pub(super) fn tell(&self, sentence: &str) {
        if let Some(tell) = &self.on_failure {
            tell(sentence);
        }
    }

    pub(super) fn entry(&self, number: u32) -> Option<BulkDeviceEntry> {
        self.list.lock().entries.iter().find(|entry| entry.number == number).copied()
    }

    /// Attaches the given devices to those of the list. If none of them is the first device of the
    /// list, that one gets `only`, a device with its place. A device that is missing, or not what
    /// it should be, is lost; without `degraded` that is an error. After a crash of the process, a
    /// device in another place than before may lack what no flush has covered. After a power loss
    /// any device may.
    pub fn attach(
        &self,
        region: &Region,
        given: &[GivenDevice],
        only: (Option<Arc<dyn BlockDevice>>, u64),
        degraded: bool,
        recovery: &Recovery,
    ) -> Result<()> {
        let may_have_moved = !recovery.unchanged && !recovery.power_lost;
        for unit in self.units().iter() {
            let entry = self.entry(unit.number).expect("units are made from entries");
            let mut place = only.1;
            let found = match given.iter().find(|given| entry.has_mark() && given.uuid == entry.uuid) {
                Some(given) => {
                    *unit.name.write() = given.name.as_str().into();
                    unit.on_host.store(given.on_host, Ordering::Release);
                    place = given.place;
                    given.device.clone()
                }
                None if unit.number == 0 => only.0.clone().ok_or_else(|| "it is not there".to_string()),
                None => Err("the store's description does not name it".into()),
            };
            let found = found
                .and_then(|device| verify(&*device, &entry, region.superblock().uuid, self.restored).map(|()| device));
            match found {
                Ok(device) => {
                    unit.place.store(place, Ordering::Release);
                    unit.attach(device);
                    if recovery.data_lost {
                        self.distrust(unit, "failed a flush when the store was used last");
                    }
                    if may_have_moved && entry.place != 0 && entry.place != place && !is_planted(Bug::PlaceIgnored) {
                        unit.moved.store(true, Ordering::Release);
                        self.distrust(unit, "is in another place than when the store was used last, so its host may have lost what was written");
                    }
                }
                Err(cause) => {
                    unit.lose(&cause);
                    unit.owes.store(!recovery.clean || entry.unsettled, Ordering::Release);
                    let called = unit.called();
                    if !degraded {
                        return Err(Error::Io(format!(
                            "{called}: {cause}; bring together what belongs together, or mount with `-o degraded` and do without its files"
                        )));
                    }
                    let used = unit.count - unit.state.lock().free;
                    let bytes = used * BULK_BLOCK;
                    self.tell(&format!("{called} is lost: {cause}; {bytes} bytes of files cannot be read"));
                }
            }
        }
        Ok(())
    }

    /// Distrusts a device that may have lost what no flush had covered: what is NEW on it is treated
    /// as if the device had been away.
    fn distrust(&self, unit: &Unit, why: &str) {
        // Not stored in the region: if this opening is cut off here, the next one finds it again.
        unit.may_lack.store(true, Ordering::Release);
        self.tell(&format!("{} {why}; what no flush had covered reads as zeros", unit.called()));
    }

    /// Gives the devices present marks of a new epoch, and notes where they are and which are
    /// missing. The store is about to be used for writing, and NEW extents have been handled.
    pub fn mark_all(&self, region: &Region) -> Result<()> {
        let mut list = self.list.lock();
        let units = self.units();
        units.iter().for_each(|unit| unit.may_lack.store(false, Ordering::Release));
        // The superblock may name a larger first device than a list can.
        if list.entries.iter().any(|entry| entry.blocks > BULK_DEVICE_BLOCKS_MAX) {
            return Ok(());
        }
        // An earlier program may have made the store without a list. A full host has no room for
        // the change: the store is opened as it is, so that something can be removed.
        match region.add_feature(FEATURE_DEVICES).map_err(Error::from) {
            Err(Error::NoSpace(_)) => return Ok(()),
            outcome => outcome?,
        }
        let mut entries = list.entries.clone();
        for entry in &mut entries {
            let unit = units.iter().find(|unit| unit.number == entry.number && unit.is_open());
            entry.unsettled = unit.is_none();
            if let Some(unit) = unit {
                entry.place = unit.place.load(Ordering::Acquire);
            }
        }
        // The list changes before anything is written: a full cache may have to write back blocks
        // that it has held all the time before it takes a mark. If this opening is cut off here,
        // the next one must not distrust them.
        if entries != list.entries && !is_planted(Bug::PlaceNotedLate) {
            list.change(region, entries.clone())?;
        }
        self.mark_first(region, &mut entries).or_else(|unmarked| note_lost(region, &mut list, 0, unmarked))?;
        let mut marked = Vec::new();
        for unit in units.iter() {
            let Some(entry) = entries.iter_mut().find(|entry| entry.number == unit.number) else { continue };
            if !unit.is_open() {
                continue;
            }
            let device = unit.device()?;
            // The blocks that an earlier process wrote last are not known, so a later flush that
            // fails could not put them in doubt. They are flushed now; the flush of a mark covers
            // them.
            let flush = |entry: &mut BulkDeviceEntry| {
                let is_marked = entry.has_mark() && mark_ahead(region, &*device, entry)?;
                if !is_marked && unit.tracks.load(Ordering::Acquire) {
                    let flushed = device.flush_ranges(&[(0, BULK_BLOCK)]);
                    flushed.map_err(|error| Unmarked::Unflushed(error.into()))?;
                }
                Ok(is_marked)
            };
            let is_marked = flush(entry).or_else(|unmarked| note_lost(region, &mut list, unit.number, unmarked))?;
            if is_marked {
                marked.push((device, *entry));
            }
        }
        // The marks are durable, so a list that requires them may be.
        list.change(region, entries)?;
        region.sync()?;
        // A mark gets the epoch of the list only now that the list is durable: no crash leaves it
        // two ahead. No data is written before.
        marked.iter().try_for_each(|(device, entry)| mark_again(region, &**device, entry))
    }

    /// Like [`Bulk::mark_all`], for one device that has come back to an open store.
    fn mark_one(
        &self,
        region: &Region,
        list: &mut List,
        number: u32,
        device: &dyn BlockDevice,
        place: u64,
    ) -> Result<()> {
        let mut entries = list.entries.clone();
        let entry = entries.iter_mut().find(|entry| entry.number == number).ok_or(Error::NotFound)?;
        (entry.unsettled, entry.place) = (false, place);
        // As in `mark_all`: the list changes before the mark is written.
        list.change(region, entries.clone())?;
        let entry = entries.iter_mut().find(|entry| entry.number == number).ok_or(Error::NotFound)?;
        let is_marked = entry.has_mark() && mark_ahead(region, device, entry)?;
        let entry = *entry;
        if !is_marked {
            return Ok(());
        }
        list.change(region, entries)?;
        region.sync()?;
        mark_again(region, device, &entry)
    }

    /// Notes, as the store is closed, the devices whose files could not be settled.
    pub fn note_unsettled(&self, region: &Region) -> Result<()> {
        let mut list = self.list.lock();
        let mut entries = list.entries.clone();
        for unit in self.units().iter().filter(|unit| !unit.is_open()) {
            entries.iter_mut().filter(|entry| entry.number == unit.number).for_each(|entry| entry.unsettled = true);
        }
        if entries != list.entries { list.change(region, entries) } else { Ok(()) }
    }

    /// Returns whether the store was used without a device, or closed while one took no writes.
    pub fn has_unsettled(&self) -> bool {
        self.units().iter().any(|unit| unit.may_lack.load(Ordering::Acquire))
            || self.list.lock().entries.iter().any(|entry| entry.unsettled)
    }

    /// Returns the blocks of a NEW extent that cannot be trusted because their device was away.
    /// Leaves out blocks in doubt and blocks that a cache has held all the time.
    pub fn untrusted(&self, extent: &Extent) -> Vec<Run> {
        let Ok(unit) = self.unit_of(extent.bulk_block.get()) else { return Vec::new() };
        let unsettled = |entry: &BulkDeviceEntry| entry.number == unit.number && entry.unsettled;
        let Ok(device) = unit.open_device() else { return Vec::new() };
        let is_settled = !self.list.lock().entries.iter().any(unsettled);
        if is_settled && !unit.may_lack.load(Ordering::Acquire) {
            return Vec::new();
        }
        unit.left_to(&*device, Run { first: extent.bulk_block, blocks: extent.blocks })
    }

    /// Like [`Bulk::untrusted`], for `device`, which is to replace a missing one.
    pub fn untrusted_on(&self, number: u32, device: &dyn BlockDevice, extent: &Extent) -> Vec<Run> {
        let unit = self.unit_of(extent.bulk_block.get()).ok().filter(|unit| unit.number == number);
        unit.map_or(Vec::new(), |unit| unit.left_to(device, Run { first: extent.bulk_block, blocks: extent.blocks }))
    }

    /// Fails if NEW blocks at the start of an extent may have been lost by a failed flush of the only
    /// device. Returns how many may be read.
    pub fn left_by_failure(&self, extent: &Extent) -> Result<u64> {
        match self.untrusted(extent).first() {
            Some(run) if run.first == extent.bulk_block => Err(self.unit_of(run.first.get())?.unread()),
            Some(run) => Ok(run.first.get() - extent.bulk_block.get()),
            None => Ok(extent.blocks),
        }
    }

    /// Handles a flush of one of several devices that failed with `error`.
    pub(super) fn fail(&self, region: &Region, unit: &Unit, error: &MediaError) {
        let doubting = unit.doubting.lock();
        let words = unit.close(&error.to_string());
        let kept = if is_planted(Bug::SuspectsForgotten) { Ok(()) } else { self.keep_suspects(region, unit, &words) };
        if let Err(error) = kept {
            let error = MediaError::io("region", std::io::Error::other(error.to_string()));
            region.poison("keeping which bulk blocks are in doubt", &error);
        }
        drop(doubting);
        let used = (unit.count - unit.state.lock().free) * BULK_BLOCK;
        let suspect = unit.suspect_blocks() * BULK_BLOCK;
        self.tell(&format!(
            "{} refuses writes after a failed flush: {error}; {suspect} bytes of {used} are in doubt; look after the device, then run \
             `shoal bulk retry`",
            unit.called()
        ));
    }

    /// Records the device's blocks in doubt in the region, durably.
    fn keep_suspects(&self, region: &Region, unit: &Unit, words: &[Word]) -> Result<()> {
        if words.is_empty() {
            return Ok(());
        }
        let mut list = self.list.lock();
        let piece = match unit.suspects_piece() {
            Some(piece) => piece,
            None => {
                let mut tx = region.begin_reclaim();
                let slot = blank_bitmap(&mut tx, unit.count)?;
                let mut entries = list.entries.clone();
                let entry = entries.iter_mut().find(|entry| entry.number == unit.number);
                entry.ok_or_else(|| Error::Io("the device is not listed".into()))?.suspects = slot;
                write_list(&mut tx, &entries)?;
                tx.commit()?;
                list.entries = entries;
                unit.set_suspects_piece(slot.offset());
                slot.offset()
            }
        };
        for step in words.chunks(WORDS_PER_STEP) {
            let mut tx = region.begin_reclaim();
            for word in step {
                tx.set_bits(piece + word.number * 8, word.bits)?;
            }
            tx.commit()?;
        }
        Ok(region.sync()?)
    }

    /// Clears the suspects that a completed flush has covered.
    pub(super) fn settle_suspects(&self, region: &Region, unit: &Unit) -> Result<()> {
        let words = unit.end_flush();
        let _one_at_a_time = unit.doubting.lock();
        unit.suspects_piece().map_or(Ok(()), |piece| clear_suspects(region, piece, &words))
    }

    /// Adds an empty device, with this number or the first free one; returns its number.
    pub fn add(&self, region: &Region, given: &GivenDevice, blocks: Option<u64>, number: Option<u32>) -> Result<u32> {
        let device = given.device.clone().map_err(Error::Io)?;
        let geometry = device.geometry();
        if !BULK_BLOCK.is_multiple_of(geometry.block_bytes.max(1) as u64) {
            return Err(Error::Io(format!(
                "{}: its units of {} bytes do not divide 65536",
                given.name, geometry.block_bytes
            )));
        }
        // The room behind the last block is the mark's.
        let most = (geometry.bytes.saturating_sub(MARK_ROOM.max(mark_bytes(&*device) as u64)) / BULK_BLOCK)
            .min(BULK_DEVICE_BLOCKS_MAX);
        let blocks = blocks.unwrap_or(most);
        if blocks == 0 || blocks > most {
            return Err(Error::Io(format!(
                "{}: it has room for {most} blocks of 64 KiB and its mark, {blocks} are wanted",
                given.name
            )));
        }
        region.add_feature(FEATURE_DEVICES)?;
        // From here on, writes to the existing devices are remembered by block; earlier ones are
        // flushed.
        self.units().iter().for_each(|unit| unit.tracks.store(true, Ordering::Release));
        self.flush(region)?;
        let mut list = self.list.lock();
        let mut entries = list.entries.clone();
        if let Some(first) = entries.iter().find(|entry| entry.blocks > BULK_DEVICE_BLOCKS_MAX) {
            return Err(Error::Io(format!(
                "the first device has {} blocks, too many to be one of several",
                first.blocks
            )));
        }
        let is_free = |n: &u32| entries.iter().all(|entry| entry.number != *n);
        let number = match number {
            Some(number) => Some(number).filter(|n| (1..BULK_DEVICES_MAX as u32).contains(n) && is_free(n)),
            None => (1..BULK_DEVICES_MAX as u32).find(is_free),
        };
        let Some(number) = number else {
            return Err(Error::Io(format!("a store has {BULK_DEVICES_MAX} bulk devices at most; remove one first")));
        };
        let mut entry = BulkDeviceEntry {
            uuid: given.uuid,
            number,
            blocks,
            bitmap: SlotRef::NONE,
            suspects: SlotRef::NONE,
            epoch: 1,
            leaving: false,
            unsettled: false,
            restored: false,
            place: given.place,
            sums: None,
            absorbed: None,
        };
        write_mark(&*device, blocks, &mark_of(region, &entry))?;
        let mut tx = region.begin();
        entry.bitmap = blank_bitmap(&mut tx, blocks)?;
        entries.push(entry);
        entries.sort_by_key(|entry| entry.number);
        write_list(&mut tx, &entries)?;
        tx.commit()?;
        // Durable before anything is mapped on the device and before the caller is told.
        region.sync()?;
        let words = vec![0; blocks.div_ceil(64) as usize];
        let unit = Unit::new(&entry, entry.bitmap_at(region.superblock()), Blocks::new(words, blocks));
        *unit.name.write() = given.name.as_str().into();
        unit.on_host.store(given.on_host, Ordering::Release);
        unit.place.store(given.place, Ordering::Release);
        unit.attach(device);
        let mut units: Vec<Arc<Unit>> = self.units().to_vec();
        units.push(Arc::new(unit));
        units.sort_by_key(|unit| unit.number);
        *self.units.write() = units.into();
        self.end.store(blocks_end(&entries), Ordering::Release);
        list.entries = entries;
        self.track();
        Ok(number)
    }

    /// Gives the first device a mark, if it has none and there is room for one. Its epoch follows
    /// all earlier ones: those of the list, and that of a mark which is there, as after the loss of
    /// a region that was newer than its image.
    fn mark_first(&self, region: &Region, entries: &mut [BulkDeviceEntry]) -> Marking<()> {
        let Some(entry) = entries.iter_mut().find(|entry| entry.number == 0 && !entry.has_mark()) else {
            return Ok(());
        };
        let Some(unit) = self.unit(0).filter(|unit| unit.is_open()) else { return Ok(()) };
        let device = unit.device()?;
        if device.geometry().bytes < Mark::at(entry.blocks) + MARK_ROOM.max(mark_bytes(&*device) as u64) {
            return Ok(());
        }
        let uuid = region.superblock().uuid;
        let found = match read_mark(&*device, entry.blocks) {
            // Any bytes may be there.
            Err(Error::Corrupt(_)) => None,
            found => found?.filter(|mark| mark.store == uuid && mark.number == 0),
        };
        let known = found.map_or(0, |mark| mark.epoch.min(u64::MAX >> 1));
        // The store's own uuid, since the device is as old as the store.
        let marked = BulkDeviceEntry { uuid, epoch: entry.epoch.max(known) + 1, ..*entry };
        if wrote_mark(&*device, entry.blocks, &mark_of(region, &marked))? {
            *entry = marked;
        }
        Ok(())
    }

    /// Stops giving out new blocks on a device, or resumes.
    pub fn set_leaving(&self, region: &Region, number: u32, leaving: bool) -> Result<()> {
        let mut list = self.list.lock();
        let mut entries = list.entries.clone();
        let entry = entries.iter_mut().find(|entry| entry.number == number).ok_or(Error::NotFound)?;
        entry.leaving = leaving;
        let unit = self.unit(number).ok_or(Error::NotFound)?;
        // Set in memory before the record, so that no new block follows it; cleared after it.
        if leaving {
            unit.leaving.store(true, Ordering::Release);
        }
        list.change(region, entries)?;
        unit.leaving.store(leaving, Ordering::Release);
        Ok(region.sync()?)
    }

    /// Takes a device off the list. Returns false if a block of it is in use, pending or held.
    pub fn remove(&self, region: &Region, number: u32) -> Result<bool> {
        let unit = self.unit(number).ok_or(Error::NotFound)?;
        {
            let mut blocks = unit.state.lock();
            if blocks.free != unit.count && !is_planted(Bug::RemoveInUse) {
                return Ok(false);
            }
            // A writer that chose the device before it was leaving finds no room here.
            blocks.withheld = unit.count;
        }
        let mut list = self.list.lock();
        let mut entries = list.entries.clone();
        let at = entries.iter().position(|entry| entry.number == number).ok_or(Error::NotFound)?;
        let gone = entries.remove(at);
        if entries.is_empty() || !gone.leaving {
            return Err(Error::Invalid);
        }
        if let Some(sums) = &gone.sums {
            unit.set_sums(None);
            free_leaves(region, sums)?;
        }
        let mut tx = region.begin_reclaim();
        let sums = gone.sums.map_or(SlotRef::NONE, |sums| sums.piece);
        let absorbed = gone.absorbed.map_or(SlotRef::NONE, |area| area.piece);
        for slot in [gone.bitmap, gone.suspects, sums, absorbed].into_iter().filter(|slot| !slot.is_none()) {
            tx.free(slot)?;
        }
        write_list(&mut tx, &entries)?;
        tx.commit()?;
        if !is_planted(Bug::RemoveUnsynced) {
            // The caller forgets the device now and may delete its file at once.
            region.sync()?;
        }
        let units: Vec<Arc<Unit>> = self.units().iter().filter(|unit| unit.number != number).cloned().collect();
        // `tracks` stays set on the remaining devices, so blocks in doubt on a closed one stay
        // known.
        *self.units.write() = units.into();
        list.entries = entries;
        drop(list);
        if region.superblock().memory_kind.has_ring() && !is_planted(Bug::RemoveUnsaved) {
            // An image that still lists the device must not be all that is left of the store.
            self.save(region)?;
        }
        Ok(true)
    }

    /// Replaces a lost or closed device by the one that `open` returns with its place, after
    /// `verified` has confirmed it. A device that cannot be opened, or is not the right one, is
    /// lost from here on.
    pub fn retry(
        &self,
        region: &Region,
        number: u32,
        open: impl FnOnce() -> std::result::Result<(Arc<dyn BlockDevice>, u64), String>,
        verified: impl FnOnce(&dyn BlockDevice) -> std::result::Result<(), String>,
    ) -> Result<()> {
        let unit = self.unit(number).ok_or(Error::NotFound)?;
        let entry = self.entry(number).ok_or(Error::NotFound)?;
        let _one_at_a_time = unit.flushing.lock();
        if unit.is_open() {
            let Err(error) = probe(&*unit.device()?) else { return Ok(()) };
            if !unit.tracks.load(Ordering::Acquire) {
                return Err(error.into());
            }
            // The device is gone and no flush has noticed. As after a failed flush, what none has
            // covered is in doubt.
            self.fail(region, &unit, &error);
        }
        if unit.was_there.load(Ordering::Acquire) {
            unit.owes.store(true, Ordering::Release);
        }
        unit.lose("it is being opened again");
        let lost = |cause: String| {
            unit.lose(&cause);
            Error::Io(format!("{}: {cause}", unit.called()))
        };
        let opened = open().and_then(|opened| {
            verify(&*opened.0, &entry, region.superblock().uuid, self.restored)?;
            verified(&*opened.0)?;
            Ok(opened)
        });
        let (device, place) = opened.map_err(lost)?;
        // Pages that are still absorbed here come from an earlier life of the store.
        unit.restore_absorbed(region, &*device, Unflushed::MayBeLost).map_err(|error| lost(error.to_string()))?;
        let mut list = self.list.lock();
        // As at an opening: earlier copies of the device become outdated.
        self.mark_one(region, &mut list, number, &*device, place).map_err(|error| lost(error.to_string()))?;
        unit.place.store(place, Ordering::Release);
        unit.attach(device);
        Ok(())
    }

    /// Returns whether the device has been missing since the store was opened.
    pub fn was_never_there(&self, number: u32) -> bool {
        self.unit(number).is_some_and(|unit| !unit.was_there.load(Ordering::Acquire))
    }

    /// Returns what moving all data off a device takes.
    pub fn move_off(&self, number: u32) -> Result<MoveOff> {
        let unit = self.unit(number).ok_or(Error::NotFound)?;
        let used = {
            // Pending and held blocks do not move: they wait.
            let blocks = unit.state.lock();
            unit.count.saturating_sub(blocks.free + blocks.pending_blocks)
        };
        let room = |other: &Arc<Unit>| {
            let pending = other.state.lock().pending_blocks;
            if other.number != number && other.takes_blocks() { other.room() + pending } else { 0 }
        };
        let room = self.units().iter().map(room).sum::<u64>();
        Ok(MoveOff { bytes: used * BULK_BLOCK, room: room * BULK_BLOCK })
    }

    /// Returns whether the device holds this block.
    pub fn is_on(&self, number: u32, block: BulkBlock) -> bool {
        self.unit(number).is_some_and(|unit| unit.holds(block.get()))
    }

    pub fn states(&self) -> Vec<BulkState> {
        let units = self.units();
        let state = |unit: &Arc<Unit>| {
            let (free, pending) = {
                let blocks = unit.state.lock();
                (blocks.free, blocks.pending_blocks)
            };
            BulkState {
                number: unit.number,
                uuid: unit.uuid,
                name: unit.name.read().to_string(),
                bytes: unit.count * BULK_BLOCK,
                used: unit.count.saturating_sub(free + pending) * BULK_BLOCK,
                free: free * BULK_BLOCK,
                pending: pending * BULK_BLOCK,
                suspect: unit.suspect_blocks() * BULK_BLOCK,
                has_sums: unit.sums().is_some(),
                damaged: unit.damaged_places(),
                state: unit.use_state(),
                moved: unit.moved.load(Ordering::Acquire),
            }
        };
        units.iter().map(state).collect()
    }
}

/// Returns why a device has no new mark. If a flush failed, the next one would succeed though
/// something is lost, so the list notes that durably first.
fn note_lost<T>(region: &Region, list: &mut List, number: u32, unmarked: Unmarked) -> Result<T> {
    let Unmarked::Unflushed(error) = unmarked else { return Err(unmarked.into()) };
    let mut entries = list.entries.clone();
    entries.iter_mut().filter(|entry| entry.number == number).for_each(|entry| entry.unsettled = true);
    list.change(region, entries)?;
    region.sync()?;
    Err(error)
}

/// Allocates a run with a bit for each of `blocks` blocks, all clear.
fn blank_bitmap(tx: &mut Tx<'_>, blocks: u64) -> Result<SlotRef> {
    let slot = tx.alloc(BulkDeviceEntry::bitmap_bytes(blocks))?;
    for at in (0..slot.capacity()).step_by(ZERO_STEP as usize) {
        tx.zero(slot.offset() + at, ZERO_STEP.min(slot.capacity() - at))?;
    }
    Ok(slot)
}
