//! Bulk devices of an open store: adding, emptying, removing and reattaching them.
//!
//! Rules: a device to be removed is marked as leaving, durably, so that it gets no new blocks and a
//! crash does not forget the mark. Its data move to the other devices step by step, as at a resize
//! (`gather`). It leaves the list when no block of it is in use, pending or held. Each step leaves
//! an ordinary store, so the work can stop, continue later, or be called off at any time. A lost or
//! closed device is used again when it is given anew and is the right one.
//! Left out: the list and the marks (`bulk/devices`), and who does the work when (the owner of the
//! store).

use std::sync::Arc;

use shoal_bulk::{BulkState, GivenDevice};
use shoal_format::bulk_list::BULK_NUMBER_SHIFT;
use shoal_format::extent::{BulkBlock, FileBlock};
use shoal_format::{BULK_BLOCK, PAGE};
use shoal_media::BlockDevice;

use crate::gather::{Away, Gathered};
use crate::rooms::Devices;
use crate::{Error, Ino, Result};

/// Whether a device is leaving now, or why it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    Now,
    /// The others lack this many bytes of room.
    NoRoom {
        missing: u64,
    },
    /// The device is the last one.
    Last,
}

/// Progress of emptying a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Blocks moved in this pass.
    pub moved: u64,
    /// Files that could not be moved entirely, because they are unreadable or damaged.
    pub stuck: Vec<Ino>,
    /// The other devices have no room left.
    pub full: bool,
}

impl<'a> Devices<'a> {
    /// Returns the bulk devices, ascending by number.
    pub fn states(self) -> Vec<BulkState> {
        self.fs.bulk.as_ref().map(|bulk| bulk.devices().states()).unwrap_or_default()
    }

    /// Adds a bulk device with this many blocks, or as many as fit; returns its number. Nothing on
    /// the device is kept.
    pub fn add(self, given: &GivenDevice, blocks: Option<u64>) -> Result<u32> {
        self.fs.writable()?;
        self.added(given, blocks, None)
    }

    /// Like [`Devices::add`], with a number that the caller has recorded along with the device's
    /// location.
    pub fn add_as(self, number: u32, given: &GivenDevice, blocks: Option<u64>) -> Result<()> {
        self.fs.writable()?;
        self.added(given, blocks, Some(number)).map(drop)
    }

    fn added(self, given: &GivenDevice, blocks: Option<u64>, number: Option<u32>) -> Result<u32> {
        let bulk = self.fs.bulk()?;
        // Writes back all held blocks, so that they count as covered by a sync, and not as in doubt
        // if the device is away after a crash. An error belongs to one device and is noted for its
        // files.
        let _ = self.fs.sync();
        let number = bulk.devices().add(&self.fs.region, given, blocks, number)?;
        bulk.arrange_sums(&self.fs.region, None, |other| other == number)?;
        Ok(number)
    }

    /// Stops giving out new blocks on a device, if the others have room for its data.
    pub fn leave(self, number: u32) -> Result<Leaving> {
        self.fs.writable()?;
        let bulk = self.fs.bulk()?;
        if bulk.devices().states().iter().filter(|device| !device.state.is_leaving() || device.number == number).count()
            < 2
        {
            return Ok(Leaving::Last);
        }
        let move_off = bulk.devices().move_off(number)?;
        if move_off.bytes > move_off.room {
            return Ok(Leaving::NoRoom { missing: move_off.bytes - move_off.room });
        }
        bulk.devices().set_leaving(&self.fs.region, number, true)?;
        Ok(Leaving::Now)
    }

    /// Lets a device that was leaving stay.
    pub fn stay(self, number: u32) -> Result<()> {
        self.fs.writable()?;
        Ok(self.fs.bulk()?.devices().set_leaving(&self.fs.region, number, false)?)
    }

    /// Moves data off a leaving device, in one pass over all files, while `goes_on` returns true.
    /// `goes_on` gets the number of blocks moved by each step. Skips files that cannot be moved.
    pub fn drain(self, number: u32, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<Drained> {
        self.fs.writable()?;
        let bulk = self.fs.bulk()?;
        self.fs.data().settle_new()?;
        let mut drained = Drained::default();
        for ino in self.fs.data().large_files()? {
            let mut block = FileBlock::ZERO;
            loop {
                match self.fs.data().gather_step(bulk, ino, block, Away::From(number)) {
                    Ok(Some(Gathered { blocks: moved, next })) => {
                        (block, drained.moved) = (next, drained.moved + moved);
                        if !goes_on(moved) {
                            return Ok(drained);
                        }
                    }
                    Ok(None) => break,
                    Err(Error::Io(_) | Error::Corrupt(_) | Error::Damaged { .. }) => {
                        drained.stuck.push(ino);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let move_off = bulk.devices().move_off(number)?;
        drained.full = move_off.bytes > 0 && move_off.room == 0;
        self.fs.region.sync()?;
        bulk.reclaim(&self.fs.region)?;
        Ok(drained)
    }

    /// Takes a leaving device off the list; false if something is still on it.
    pub fn remove(self, number: u32) -> Result<bool> {
        self.fs.writable()?;
        let bulk = self.fs.bulk()?;
        self.fs.region.sync()?;
        bulk.reclaim(&self.fs.region)?;
        if bulk.held_blocks() > 0 {
            bulk.save(&self.fs.region)?;
        }
        Ok(bulk.devices().remove(&self.fs.region, number)?)
    }

    /// Uses a lost or closed device again: releases it, and takes the device that `open` returns
    /// with the host's number for where it is.
    pub fn retry(
        self,
        number: u32,
        open: impl FnOnce() -> std::result::Result<(Arc<dyn BlockDevice>, u64), String>,
    ) -> Result<()> {
        self.fs.writable()?;
        let bulk = self.fs.bulk()?;
        let was_away = bulk.devices().was_never_there(number);
        // Runs once the device is known to be the right one.
        let verified = |device: &dyn BlockDevice| {
            let distrusted = if was_away { self.fs.data().distrust_device(number, device) } else { Ok(()) };
            distrusted.map_err(|error| error.to_string())
        };
        Ok(bulk.devices().retry(&self.fs.region, number, open, verified)?)
    }

    /// Returns whether a device was away, or in another place after a crash, and its contents are
    /// not settled since.
    pub fn has_unsettled_bulk(self) -> bool {
        self.fs.bulk.as_ref().is_some_and(|bulk| bulk.devices().has_unsettled())
    }

    /// Returns the bytes of memory that checksums of bulk storage take.
    pub fn sums_bytes(self) -> u64 {
        self.fs.bulk.as_ref().map_or(0, |bulk| bulk.sums_bytes())
    }

    /// Returns the bytes of large files that the region holds because an fsync put them into the log.
    pub fn absorbed_bytes(self) -> u64 {
        self.fs.bulk.as_ref().map_or(0, |bulk| bulk.absorbed_pages() * PAGE)
    }

    /// Returns whether `ino` is the file that holds spilled small files. It has no name.
    pub fn is_spill_file(self, ino: Ino) -> bool {
        self.fs.spill.file() == Some(ino)
    }

    /// Returns the files that have data on a device, with the number of bytes.
    pub fn files(self, number: u32) -> Result<Vec<(Ino, u64)>> {
        self.files_where(number, &|_, len| len)
    }

    /// Like [`Devices::files`], for the bytes that `counts` finds in a range of the device (start
    /// and length in bytes).
    pub fn files_where(self, number: u32, counts: &dyn Fn(u64, u64) -> u64) -> Result<Vec<(Ino, u64)>> {
        let bulk = self.fs.bulk()?;
        let first = (u64::from(number) << BULK_NUMBER_SHIFT) * BULK_BLOCK;
        let mut found = Vec::new();
        for ino in self.fs.data().large_files()? {
            let _lock = self.fs.locks.read(ino);
            let Ok(inode) = self.fs.load(ino) else { continue };
            let Ok(pieces) = self.fs.data().pieces(&inode) else { continue };
            let here = pieces.iter().filter(|piece| piece.bulk && bulk.devices().is_on(number, block_of(piece.at)));
            let bytes: u64 = here.map(|piece| counts(piece.at - first, piece.len)).sum();
            if bytes > 0 {
                found.push((ino, bytes));
            }
        }
        Ok(found)
    }
}

fn block_of(at: u64) -> BulkBlock {
    BulkBlock::new(at / BULK_BLOCK)
}
