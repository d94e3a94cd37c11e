//! Flushes of some files' data on devices that hold writes back.
//!
//! If a device holds writes back, a whole flush would push out everybody's blocks. So a flush names
//! ranges, goes to the device that has them, and covers there only what it names. Devices that hold
//! nothing back are flushed whole at the same time.
//! - With several devices, blocks named in a flush of ranges leave the set that a failed flush
//!   would put in doubt. All others stay in it until a flush names them or covers everything.
//! - [`Fresh`](super::Fresh) remembers for each device what such a flush covers of a file.
//!
//! Left out: which ranges (`settle`).

use std::sync::atomic::Ordering;

use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::{BULK_DEVICES_MAX, BULK_NUMBER_SHIFT};
use shoal_format::inode::Ino;
use shoal_region::Region;

use super::unit::Unit;
use super::{Bulk, Flushed, Patience, Run, Stamp};
use crate::held::assert_none_held;
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// What a flush of ranges of some files covers.
pub struct FlushedPlaces {
    before: Flushed,
    /// The devices that were flushed.
    devices: [bool; BULK_DEVICES_MAX],
}

impl FlushedPlaces {
    /// Counts the writes to one device as flushed, because a record has their pages.
    pub(super) fn on_device(before: Flushed, number: u32) -> FlushedPlaces {
        let mut devices = [false; BULK_DEVICES_MAX];
        devices[number as usize] = true;
        FlushedPlaces { before, devices }
    }

    /// Returns what the flush covers of a file. The file's places were looked up when the last
    /// writes were `noted`.
    pub fn of(&self, noted: &Flushed) -> Flushed {
        let mut covered = self.before;
        for (device, _) in self.devices.iter().enumerate().filter(|&(_, &flushed)| flushed) {
            covered.0[device] = covered.0[device].max(noted.0[device]);
        }
        covered
    }
}

impl Bulk {
    /// Returns for how long a device holds writes back (ns), if it does.
    pub fn held_ns(&self, number: u32) -> Option<u64> {
        self.unit(number).and_then(|unit| unit.held_ns())
    }

    /// Returns whether an fsync of the file waits for a device that holds writes back.
    pub fn waits_held(&self, ino: Ino) -> bool {
        let flushed = self.last_flushed();
        self.units().iter().any(|unit| unit.held_ns().is_some() && self.waits(unit, ino, &flushed))
    }

    /// Returns whether an fsync of the file waits for this device.
    pub fn waits_for(&self, ino: Ino, number: u32) -> bool {
        self.unit(number).is_some_and(|unit| self.waits(&unit, ino, &self.last_flushed()))
    }

    pub(super) fn waits(&self, unit: &Unit, ino: Ino, flushed: &Flushed) -> bool {
        !self.is_flushed_on(unit, ino) || self.fresh.waits_for(ino, unit.number, flushed)
    }

    /// Returns whether a flush of the device, or of the file there, has covered the last write into
    /// the file.
    pub(super) fn is_flushed_on(&self, unit: &Unit, ino: Ino) -> bool {
        let write = unit.last_write(ino);
        write <= unit.flushed.load(Ordering::Acquire) || write <= self.fresh.covered(ino, unit.number)
    }

    /// Returns and notes the last completed write on a device. Ranges of later writes do not join
    /// those of writes up to it.
    pub fn note_writes_on(&self, number: u32) -> u64 {
        self.unit(number).map_or(0, |unit| self.fresh.note(|| unit.note_writes()))
    }

    /// Like [`Bulk::note_writes_on`], for all devices. Under a file's lock, this separates what a
    /// flush of the file's ranges covers from what comes after.
    pub fn note_writes(&self) -> Flushed {
        let units = self.units();
        let mut written = [0; BULK_DEVICES_MAX];
        self.fresh.note(|| units.iter().for_each(|unit| written[unit.number as usize] = unit.note_writes()));
        Flushed(written)
    }

    /// Notes that a flush of the file's ranges has covered its writes up to `flushed`.
    pub fn cover(&self, ino: Ino, flushed: &Flushed) {
        for unit in self.units().iter().filter(|unit| unit.held_ns().is_some()) {
            self.fresh.cover(ino, Stamp { device: unit.number, write: flushed.0[unit.number as usize] });
        }
    }

    /// Makes the data of files at `places` (start and length in bytes) durable, on every device
    /// that they wait for. If one of several devices cannot be flushed, it is closed without an
    /// error.
    pub fn flush_places(&self, region: &Region, inos: &[Ino], places: &[(u64, u64)]) -> Result<FlushedPlaces> {
        let before = self.last_flushed();
        let mut devices = [false; BULK_DEVICES_MAX];
        for unit in self.units().iter() {
            let waits = inos.iter().any(|&ino| self.waits(unit, ino, &before));
            // A device that no file waits for does not count as covered: a completed write may have
            // its number, but not be noted for its file yet.
            devices[unit.number as usize] = waits && self.flush_some(region, unit, places)?;
        }
        Ok(FlushedPlaces { before, devices })
    }

    /// Flushes the places that lie on one device, whichever files they belong to; false if the
    /// device cannot be flushed.
    pub fn flush_places_on(&self, region: &Region, number: u32, places: &[(u64, u64)]) -> Result<bool> {
        self.unit(number).map_or(Ok(false), |unit| self.flush_some(region, &unit, places))
    }

    fn flush_some(&self, region: &Region, unit: &Unit, places: &[(u64, u64)]) -> Result<bool> {
        match self.flush_held(region, unit, places, Patience::Waits) {
            Err(Error::Io(_)) if !unit.is_open() => Ok(false),
            outcome => outcome.map(|()| true),
        }
    }

    /// Makes the blocks of some extents durable; any failure is an error.
    pub fn flush_runs(&self, region: &Region, runs: impl IntoIterator<Item = Run>, patience: Patience) -> Result<()> {
        let mut places: Vec<(u64, u64)> =
            runs.into_iter().map(|run| (run.first.byte(), run.blocks * BULK_BLOCK)).collect();
        places.sort_unstable();
        for part in places.chunk_by(|one, next| device_of(one.0) == device_of(next.0)) {
            let unit = self.unit_of(part[0].0 / BULK_BLOCK)?;
            self.flush_held(region, &unit, part, patience)?;
        }
        Ok(())
    }

    /// Makes earlier writes to the parts of `places` on this device durable, or all writes if the
    /// device holds nothing back.
    pub(super) fn flush_held(
        &self,
        region: &Region,
        unit: &Unit,
        places: &[(u64, u64)],
        patience: Patience,
    ) -> Result<()> {
        if unit.held_ns().is_none() {
            return self.flush_unit(region, unit, patience);
        }
        patience.may_flush()?;
        assert_none_held();
        let first = unit.first * BULK_BLOCK;
        let here = places.iter().filter(|place| device_of(place.0) == unit.number);
        let own: Vec<(u64, u64)> = here.map(|&(at, len)| (at - first, len)).collect();
        // Flushes are serialized to tell what a failure leaves in doubt. An only device does not
        // need that.
        let tracks = unit.tracks.load(Ordering::Acquire);
        let _one_at_a_time = tracks.then(|| unit.flushing.lock());
        if let Some(failure) = region.failure() {
            // Never retried, as in a whole flush.
            return Err(Error::Failed(failure));
        }
        let device = unit.open_device()?;
        if tracks {
            let blocks = own.iter().map(|&(at, len)| (at / BULK_BLOCK, (at + len).div_ceil(BULK_BLOCK)));
            let all = is_planted(Bug::RangesTakeAll).then_some((0, unit.count));
            unit.begin_flush_of(&blocks.chain(all).collect::<Vec<_>>());
        }
        if let Err(error) = device.flush_ranges(&own) {
            return Err(self.flush_failed(region, unit, error));
        }
        unit.release_absorbed(region)?;
        if tracks { self.devices().settle_suspects(region, unit) } else { Ok(()) }
    }
}

/// Returns the number of the device that holds a byte of bulk storage.
fn device_of(at: u64) -> u32 {
    ((at / BULK_BLOCK) >> BULK_NUMBER_SHIFT) as u32
}
