//! The mark of a bulk device, which tells whose device it is and how old.
//!
//! Owns: reading, writing and comparing marks, and what a failed attempt means. Left out: when marks
//! are written, and the list that they are compared with (`devices`).

use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::{BULK_MARK, BulkDeviceEntry, Mark};
use shoal_media::{BlockDevice, MediaError};
use shoal_region::Region;

use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Reads the mark of a device with `blocks` blocks; `None` where it has no room for one. It is read
/// from the medium: a mark that a cache holds back says nothing about what is behind the cache now.
pub(super) fn read_mark(device: &dyn BlockDevice, blocks: u64) -> Result<Option<Mark>> {
    let (at, unit) = (Mark::at(blocks), mark_bytes(device));
    if device.geometry().bytes < at + unit as u64 {
        return Ok(None);
    }
    let mut bytes = vec![0; unit];
    if is_planted(Bug::HeldMarkBelieved) {
        device.read_into(at, &mut bytes)?;
    } else {
        device.read_medium(at, &mut bytes)?;
    }
    Ok(Some(Mark::decode(&bytes)?))
}

/// Bytes reserved for the mark behind a device's last block: the block size of a device behind a
/// cache.
pub(super) const MARK_ROOM: u64 = 4096;

/// Checks that the device answers.
pub(super) fn probe(device: &dyn BlockDevice) -> std::result::Result<(), MediaError> {
    device.read_medium(0, &mut vec![0; mark_bytes(device)])
}

pub(super) fn mark_bytes(device: &dyn BlockDevice) -> usize {
    (device.geometry().block_bytes as usize).max(512)
}

/// Writes the mark of a device with `blocks` blocks, durably. It fits the smallest unit that no crash tears.
pub(super) fn write_mark(device: &dyn BlockDevice, blocks: u64, mark: &Mark) -> Marking<()> {
    let mut bytes = vec![0; mark_bytes(device)];
    bytes[..BULK_MARK].copy_from_slice(&mark.encode());
    device.write_from(Mark::at(blocks), &bytes).map_err(Error::from)?;
    if is_planted(Bug::MarkUnflushed) {
        return Ok(());
    }
    // Blocks that a cache has held since an earlier life need not be written back for it.
    device.flush_ranges(&[(Mark::at(blocks), bytes.len() as u64)]).map_err(|error| Unmarked::Unflushed(error.into()))
}

pub(super) type Marking<T> = std::result::Result<T, Unmarked>;

/// Why a device has no new mark.
pub(super) enum Unmarked {
    /// Nothing was flushed, so nothing is lost.
    Unwritten(Error),
    /// A flush failed, and what it was to cover may be lost.
    Unflushed(Error),
}

impl From<Error> for Unmarked {
    fn from(error: Error) -> Unmarked {
        Unmarked::Unwritten(error)
    }
}

impl From<Unmarked> for Error {
    fn from(unmarked: Unmarked) -> Error {
        let (Unmarked::Unwritten(error) | Unmarked::Unflushed(error)) = unmarked;
        error
    }
}

/// Checks that `device` is the one of this entry, and not an older copy. Unless `may_be_newer`, it
/// must not be newer than the list either. The error says what the device is instead.
pub(super) fn verify(
    device: &dyn BlockDevice,
    entry: &BulkDeviceEntry,
    store: [u8; 16],
    may_be_newer: bool,
) -> std::result::Result<(), String> {
    let geometry = device.geometry();
    if geometry.bytes / BULK_BLOCK < entry.blocks || !BULK_BLOCK.is_multiple_of(geometry.block_bytes.max(1) as u64) {
        let (has, needs) = (geometry.bytes, entry.blocks * BULK_BLOCK);
        let units = geometry.block_bytes;
        return Err(format!(
            "it has {has} bytes in units of {units}, the store needs {needs} in units of at most 65536"
        ));
    }
    if !entry.has_mark() {
        return Ok(());
    }
    let may_be_newer = may_be_newer || entry.restored;
    match read_mark(device, entry.blocks) {
        Ok(Some(mark)) if mark.store != store => Err("it belongs to another store".into()),
        Ok(Some(mark)) if mark.device != entry.uuid || mark.number != entry.number => {
            Err("it is another device of the store".into())
        }
        Ok(Some(mark)) if mark.epoch + 1 < entry.epoch && !is_planted(Bug::EpochIgnored) => Err(format!(
            "it is an older copy (of mount {}, the store was mounted with it {} times)",
            mark.epoch / 2,
            entry.epoch / 2
        )),
        Ok(Some(mark)) if mark.epoch > entry.epoch + 1 && !may_be_newer && !is_planted(Bug::EpochIgnored) => {
            Err(format!(
                "it was in use in mount {}, and the store's memory, images and log know of {}: they are an older copy",
                mark.epoch / 2,
                entry.epoch / 2
            ))
        }
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("it ends before its mark".into()),
        Err(Error::Corrupt(why)) => Err(format!("it does not carry the store's mark ({why})")),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives a device a mark of the next epoch, durably, and its entry the epoch behind that. Returns
/// false if the device has no room for it: then it keeps its mark.
pub(super) fn mark_ahead(region: &Region, device: &dyn BlockDevice, entry: &mut BulkDeviceEntry) -> Marking<bool> {
    if entry.restored
        && let Some(mark) = read_mark(device, entry.blocks)?
    {
        // Copies of the device from the lost mounts become outdated.
        entry.epoch = entry.epoch.max(mark.epoch);
    }
    let next = BulkDeviceEntry { epoch: entry.epoch + 1, ..*entry };
    if !wrote_mark(device, entry.blocks, &mark_of(region, &next))? {
        return Ok(false);
    }
    (entry.epoch, entry.restored) = (entry.epoch + 2, false);
    Ok(true)
}

/// Writes a mark, durably. Returns false without room for it, as on a full host that copies on
/// write: the store is opened anyway, so that something can be removed.
pub(super) fn wrote_mark(device: &dyn BlockDevice, blocks: u64, mark: &Mark) -> Marking<bool> {
    match write_mark(device, blocks, mark) {
        Err(Unmarked::Unwritten(Error::NoSpace(_)) | Unmarked::Unflushed(Error::NoSpace(_))) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}

/// Gives a device the mark of its entry, which is durable. Without room the mark stays one epoch
/// behind.
pub(super) fn mark_again(region: &Region, device: &dyn BlockDevice, entry: &BulkDeviceEntry) -> Result<()> {
    match write_mark(device, entry.blocks, &mark_of(region, entry)).map_err(Error::from) {
        Err(Error::NoSpace(_)) => Ok(()),
        outcome => outcome,
    }
}

pub(super) fn mark_of(region: &Region, entry: &BulkDeviceEntry) -> Mark {
    Mark { store: region.superblock().uuid, device: entry.uuid, number: entry.number, epoch: entry.epoch }
}
