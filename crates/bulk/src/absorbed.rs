//! Absorbed pages: small synchronous writes, made durable by the log instead of a flush of the
//! device.
//!
//! An fsync that finds only a few pages held back by the device's write cache puts them into an
//! area of the region. The record is durable with the log, and the pages leave the cache when the
//! update policy says. A transaction removes an entry when the device has the page, or newer
//! contents of it, durably.
//!
//! Rules, in the order in which things must be durable:
//! - A record that puts pages into the area commits before the one that clears NEW from their
//!   blocks.
//! - After a flush the entries that it released are removed before anybody is told of the flush:
//!   an opening that found such an entry would put older contents over promised ones.
//! - A block that was freed loses its entries before it can be taken again.
//! - An opening, or the return of a device, puts the pages back on a device that may have lost
//!   them, before anything else is read or written there. If nothing was lost, it flushes them
//!   instead. In a store opened read-only, readers get the pages from the area.
//! - Only the device of a store with one device absorbs: blocks of several devices can come into
//!   doubt.
//!
//! Locks: `Unit::absorbed` after a file's locks, before the region's. It is held from the questions
//! to the cache until the record has committed.
//! Left out: which pages the cache holds and when it releases them (`shoal-writeback`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use shoal_format::absorbed::{AbsorbedArea, AbsorbedPage};
use shoal_format::inode::Ino;
use shoal_format::slot::RUN_SEGMENTS_MAX;
use shoal_format::superblock::FEATURE_ABSORBED;
use shoal_format::{BULK_BLOCK, PAGE, SEGMENT};
use shoal_media::BlockDevice;
use shoal_media::block::CACHE_PAGE;
use shoal_region::{Region, View};

use super::devices::write_list;
use super::ranges::FlushedPlaces;
use super::unit::Unit;
use super::{Bulk, Patience, Run};
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Pages that one fsync absorbs at most. More are cheaper to flush, and must fit in one record.
const PAGES_MAX: usize = 64;
/// Part of the region that an area takes, but at least this many segments.
const SHARE: u64 = 64;
const SEGMENTS_MIN: u64 = 4;

/// Whether a device may have lost what no flush had covered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unflushed {
    Kept,
    MayBeLost,
}

/// The absorbed pages of a device.
#[derive(Default)]
pub(super) struct Absorbing {
    area: Option<AbsorbedArea>,
    /// The place of each page in the area.
    places: HashMap<u64, u64>,
    free: Vec<u64>,
    /// Pages whose entries can be removed.
    released: BTreeSet<u64>,
    /// An fsync would have used an area.
    is_wanted: bool,
    /// The region had no room for an area.
    lacks_room: bool,
}

impl Absorbing {
    /// Loads the area of a device with `pages` pages.
    pub fn load(region: &Region, area: Option<AbsorbedArea>, pages: u64) -> Result<Absorbing> {
        let mut absorbing = Absorbing { area, ..Absorbing::default() };
        let Some(area) = area else { return Ok(absorbing) };
        let entries = region.read_vec(area.entry_at(0), area.places() as usize * 8)?;
        for (place, entry) in (0..).zip(entries.chunks_exact(8)) {
            let bits = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            match AbsorbedPage::decode(bits, pages)? {
                Some(entry) => drop(absorbing.places.insert(entry.page, place)),
                None => absorbing.free.push(place),
            }
        }
        Ok(absorbing)
    }

    /// Removes the entries of released pages in a transaction of its own.
    fn commit_removal(&mut self, region: &Region) -> Result<()> {
        let mut tx = region.begin_reclaim();
        if let Some(area) = self.area {
            for place in self.released.iter().filter_map(|page| self.places.get(page)) {
                tx.zero(area.entry_at(*place), 8)?;
            }
        }
        if tx.payload_bytes() > 0 {
            tx.commit()?;
        }
        for page in std::mem::take(&mut self.released) {
            self.free.extend(self.places.remove(&page));
        }
        Ok(())
    }

    /// Reads an absorbed page from the region.
    fn read(&self, region: &Region, place: u64) -> Result<Vec<u8>> {
        let Some(area) = self.area else { return Err(Error::NotFound) };
        let is_zeros = region.read_u64(area.entry_at(place))? >> 63 == 1;
        Ok(if is_zeros { vec![0; CACHE_PAGE] } else { region.read_vec(area.page_at(place), CACHE_PAGE)? })
    }
}

impl Unit {
    /// Makes the held pages of these places (start and length in bytes, as the device counts)
    /// durable by a record; false if that takes a flush.
    fn absorb(&self, region: &Region, places: &[(u64, u64)]) -> Result<bool> {
        let device = self.open_device()?;
        let Some(cache) = device.write_cache() else { return Ok(false) };
        let mut absorbing = self.absorbed.lock();
        absorbing.is_wanted = true;
        let Some(area) = absorbing.area else { return Ok(false) };
        // Asked under the lock: a second device may have been added, and this one flushed, meanwhile.
        if self.tracks.load(Ordering::Acquire) {
            return Ok(false);
        }
        absorbing.released.extend(cache.take_released());
        let Some(pages) = cache.to_absorb(places, PAGES_MAX) else { return Ok(false) };
        absorbing.commit_removal(region)?;
        if pages.is_empty() {
            return Ok(true);
        }
        let fresh = pages.iter().filter(|held| !absorbing.places.contains_key(&held.page)).count();
        if fresh > absorbing.free.len() {
            return Ok(false);
        }
        let mut tx = region.begin();
        let mut free = absorbing.free.iter().rev();
        let mut placed = Vec::new();
        for held in &pages {
            let known = absorbing.places.get(&held.page);
            let Some(&place) = known.or_else(|| free.next()) else { return Ok(false) };
            let zeros = held.bytes.iter().all(|&byte| byte == 0);
            if zeros && is_planted(Bug::ZerosNotAbsorbed) {
                continue;
            }
            if !zeros {
                tx.write(area.page_at(place), &held.bytes[..])?;
            }
            let entry = AbsorbedPage { page: held.page, zeros };
            tx.write(area.entry_at(place), &entry.encode().to_le_bytes())?;
            placed.push((held.page, place));
        }
        tx.commit()?;
        let left = absorbing.free.len() - fresh;
        absorbing.free.truncate(left);
        absorbing.places.extend(placed);
        let versions: Vec<(u64, u64)> = pages.iter().map(|held| (held.page, held.version)).collect();
        cache.absorbed(&versions);
        Ok(true)
    }

    /// Removes the entries that flushes so far have released.
    pub(super) fn release_absorbed(&self, region: &Region) -> Result<()> {
        let mut absorbing = self.absorbed.lock();
        if absorbing.places.is_empty() || is_planted(Bug::ReleasedNever) {
            return Ok(());
        }
        let Some(device) = self.open_device().ok() else { return Ok(()) };
        let Some(cache) = device.write_cache() else { return Ok(()) };
        absorbing.released.extend(cache.take_released());
        absorbing.commit_removal(region)
    }

    /// Removes the entries of blocks that no file maps, given by the device's own numbers.
    pub(super) fn forget_absorbed(&self, region: &Region, run: Run) -> Result<()> {
        let mut absorbing = self.absorbed.lock();
        if absorbing.places.is_empty() || is_planted(Bug::AbsorbedOfFreed) {
            return Ok(());
        }
        let pages = run.first.byte() / PAGE..run.end().byte() / PAGE;
        let gone: Vec<u64> = absorbing.places.keys().filter(|page| pages.contains(page)).copied().collect();
        absorbing.released.extend(gone);
        absorbing.commit_removal(region)
    }

    /// Puts absorbed pages back on `device` where it may have lost them, makes all of them durable
    /// there, and empties the area.
    pub(super) fn restore_absorbed(
        &self,
        region: &Region,
        device: &dyn BlockDevice,
        unflushed: Unflushed,
    ) -> Result<()> {
        let mut absorbing = self.absorbed.lock();
        let mut pages: Vec<(u64, u64)> = absorbing.places.iter().map(|(&page, &place)| (page, place)).collect();
        if pages.is_empty() || is_planted(Bug::AbsorbedNotRestored) {
            return Ok(());
        }
        pages.sort_unstable();
        for &(page, place) in &pages {
            // A page that the cache has held all the time has the absorbed version or a newer one.
            let is_held = device.held_in(page * PAGE, PAGE) == PAGE && !is_planted(Bug::RestoredOverHeld);
            if !is_held && (unflushed == Unflushed::MayBeLost || is_planted(Bug::RestoredAlways)) {
                let bytes = absorbing.read(region, place)?;
                if let Some(table) = self.sums() {
                    table.take_away(region, page * PAGE, (page + 1) * PAGE)?;
                }
                device.write_from(page * PAGE, &bytes)?;
            }
        }
        let ranges: Vec<(u64, u64)> = pages.iter().map(|&(page, _)| (page * PAGE, PAGE)).collect();
        if !is_planted(Bug::RestoredUnflushed) {
            device.flush_ranges(&ranges)?;
        }
        absorbing.released.extend(pages.iter().map(|&(page, _)| page));
        absorbing.commit_removal(region)
    }

    /// Lays absorbed pages over bytes that were read from byte `own` of the device, if readers get
    /// them from the region.
    #[inline]
    pub(super) fn lay_absorbed_over(&self, region: &Region, own: u64, out: &mut [u8]) -> Result<()> {
        if self.overlays.load(Ordering::Acquire) { self.lay_over(region, own, out) } else { Ok(()) }
    }

    #[cold]
    fn lay_over(&self, region: &Region, own: u64, out: &mut [u8]) -> Result<()> {
        let absorbing = self.absorbed.lock();
        let end = own + out.len() as u64;
        for page in own / PAGE..end.div_ceil(PAGE) {
            let Some(&place) = absorbing.places.get(&page) else { continue };
            let bytes = absorbing.read(region, place)?;
            let (from, to) = (own.max(page * PAGE), end.min((page + 1) * PAGE));
            out[(from - own) as usize..(to - own) as usize]
                .copy_from_slice(&bytes[(from - page * PAGE) as usize..(to - page * PAGE) as usize]);
        }
        Ok(())
    }
}

impl Bulk {
    /// Makes the data of a file at `places` (start and length in bytes) durable by a record instead
    /// of a flush. Returns what that covers once the log is durable; `None` if it takes a flush. The
    /// caller holds the file's lock, so that the places stay the file's.
    pub fn absorb(&self, region: &Region, ino: Ino, places: &[(u64, u64)]) -> Result<Option<FlushedPlaces>> {
        let units = self.units();
        let [unit] = &units[..] else { return Ok(None) };
        let before = self.last_flushed();
        if !unit.is_open() || !self.waits(unit, ino, &before) {
            return Ok(None);
        }
        let first = unit.first * BULK_BLOCK;
        let own: Vec<(u64, u64)> = places.iter().map(|&(at, len)| (at - first, len)).collect();
        Ok(unit.absorb(region, &own)?.then(|| FlushedPlaces::on_device(before, unit.number)))
    }

    /// Makes room in the region for absorbed pages, if an fsync would have used it and the store has
    /// one device that holds writes back. Without room, an fsync flushes. Adding the feature to an
    /// older store takes a checkpoint, so this is for callers that nobody waits for.
    pub fn provide_area(&self, region: &Region) -> Result<()> {
        let units = self.units();
        let [unit] = &units[..] else { return Ok(()) };
        let is_wanted = {
            let absorbing = unit.absorbed.lock();
            absorbing.is_wanted && absorbing.area.is_none() && !absorbing.lacks_room
        };
        if !is_wanted || unit.held_ns().is_none() || unit.tracks.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.make_area(region, unit) {
            Err(Error::NoSpace(_)) => unit.absorbed.lock().lacks_room = true,
            outcome => outcome?,
        }
        Ok(())
    }

    /// Does the same where that takes no checkpoint.
    pub fn provide_area_at_once(&self, region: &Region) -> Result<()> {
        if region.has_feature(FEATURE_ABSORBED) { self.provide_area(region) } else { Ok(()) }
    }

    fn make_area(&self, region: &Region, unit: &Unit) -> Result<()> {
        let mut list = self.list.lock();
        let mut entries = list.entries.clone();
        let Some(entry) = entries.iter_mut().find(|entry| entry.number == unit.number) else { return Ok(()) };
        if entry.absorbed.is_some() {
            return Ok(());
        }
        let segments = region.superblock().region_bytes / SHARE / SEGMENT;
        let bytes = segments.clamp(SEGMENTS_MIN, RUN_SEGMENTS_MAX) * SEGMENT;
        region.add_feature(FEATURE_ABSORBED)?;
        let mut tx = region.begin();
        let area = AbsorbedArea { piece: tx.alloc(bytes)? };
        tx.zero(area.piece.offset(), SEGMENT)?;
        entry.absorbed = Some(area);
        write_list(&mut tx, &entries)?;
        tx.commit()?;
        list.entries = entries;
        let mut absorbing = unit.absorbed.lock();
        absorbing.area = Some(area);
        absorbing.free = (0..area.places()).rev().collect();
        Ok(())
    }

    /// Frees the areas that hold no page, at the end of a store's life: at rest it needs none.
    pub fn free_areas(&self, region: &Region) -> Result<()> {
        for unit in self.units().iter() {
            let mut list = self.list.lock();
            let mut absorbing = unit.absorbed.lock();
            let Some(area) = absorbing.area.filter(|_| absorbing.places.is_empty()) else { continue };
            let mut entries = list.entries.clone();
            entries.iter_mut().filter(|entry| entry.number == unit.number).for_each(|entry| entry.absorbed = None);
            let mut tx = region.begin_reclaim();
            tx.free(area.piece)?;
            write_list(&mut tx, &entries)?;
            tx.commit()?;
            (list.entries, *absorbing) = (entries, Absorbing::default());
        }
        Ok(())
    }

    /// Puts absorbed pages back on all devices that are there, before anything is read from them. A
    /// store opened read-only leaves them where they are.
    pub fn restore_absorbed(&self, region: &Region, unflushed: Unflushed) -> Result<()> {
        for unit in self.units().iter() {
            let Ok(device) = unit.open_device() else { continue };
            let was_away = self.devices().entry(unit.number).is_some_and(|entry| entry.unsettled);
            let may_lack = was_away || unit.may_lack.load(Ordering::Acquire);
            let unflushed = if may_lack { Unflushed::MayBeLost } else { unflushed };
            if region.is_read_only() {
                let overlays = unflushed == Unflushed::MayBeLost && !unit.absorbed.lock().places.is_empty();
                unit.overlays.store(overlays, Ordering::Release);
            } else {
                unit.restore_absorbed(region, &*device, unflushed)?;
            }
        }
        Ok(())
    }

    /// Flushes the absorbed pages of a device if they take much of the area, so that the next ones
    /// find room.
    pub fn clean_absorbed(&self, region: &Region, number: u32) -> Result<()> {
        let Some(unit) = self.unit(number).filter(|unit| unit.is_open()) else { return Ok(()) };
        let places: Vec<(u64, u64)> = {
            let absorbing = unit.absorbed.lock();
            if absorbing.places.len() <= absorbing.free.len() {
                return Ok(());
            }
            let first = unit.first * BULK_BLOCK;
            absorbing.places.keys().map(|page| (first + page * PAGE, PAGE)).collect()
        };
        self.flush_held(region, &unit, &places, Patience::Waits)
    }

    /// Returns the bytes of the region that areas take.
    pub fn absorbed_area_bytes(&self) -> u64 {
        let bytes = |unit: &Arc<Unit>| unit.absorbed.lock().area.map_or(0, |area| area.piece.capacity());
        self.units().iter().map(bytes).sum()
    }

    /// Returns the number of pages that the region holds of all devices.
    pub fn absorbed_pages(&self) -> u64 {
        self.units().iter().map(|unit| unit.absorbed.lock().places.len() as u64).sum()
    }
}

/// The absorbed pages as a [`Unit`] has them.
pub(super) type Absorbed = Mutex<Absorbing>;
