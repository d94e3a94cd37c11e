//! The marks of bulk devices: is each the device that the region lists, and as old as the region?
//!
//! Rules: what a mount refuses is an error. An unreachable device is a note, because the store can
//! do without its files. An interrupted opening leaves list and mark at most one apart. A mark
//! further behind therefore belongs to an older copy of the device. A mark further ahead shows that
//! the region is an older copy, unless it was restored from an image; the list says so until the
//! device has a new mark. A device without a mark is known only by its size.
//! Left out: opening devices, which is up to the caller. Data held back in front of a device
//! overlays what is read from it.

use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::{BULK_MARK, BulkDeviceEntry, Mark};

use crate::report::{FindingKind, Report};
use crate::{BulkData, State};

/// Smallest unit of a device that can hold a mark (bytes).
const MARK_UNIT_MIN: u64 = 512;
/// The wording that a mount uses.
const REMEDY: &str = "bring together what belongs together, or mount with `-o degraded` and do without its files";

/// Access to the devices that the region lists.
#[derive(Clone, Copy)]
pub struct BulkDevices<'a> {
    pub find: &'a BulkFinder<'a>,
    /// The region would be restored from an image, so devices may be newer than the region.
    pub restored: bool,
}

/// Finds a device of the list and opens it for reading.
pub type BulkFinder<'a> = dyn Fn(&BulkDeviceEntry) -> FoundDevice + 'a;

/// The result of looking for a device.
pub struct FoundDevice {
    /// Name for messages; empty if only the number of the device is known.
    pub name: String,
    pub opened: Result<OpenedDevice, NotOpened>,
}

/// A device that was opened for reading.
pub struct OpenedDevice {
    pub bytes: u64,
    /// Unit of its requests (bytes).
    pub block_bytes: u64,
    pub data: Box<dyn BulkData>,
}

/// The reason why a device was not opened, in words.
pub enum NotOpened {
    /// Its location is not known.
    Nowhere(String),
    /// It cannot be reached, or only by writing to it.
    Away(String),
}

/// Compares the devices with the list. `first_is_short` says that the first one was found too
/// small.
pub(crate) fn verify(devices: BulkDevices<'_>, first_is_short: bool, state: &mut State) {
    let State { superblock, devices: listed, report, .. } = state;
    for entry in listed.iter().filter(|entry| entry.number != 0 || !first_is_short) {
        let FoundDevice { name, opened } = (devices.find)(entry);
        let called = match &*name {
            "" => format!("bulk device {}", entry.number),
            name => format!("bulk device {} ({name})", entry.number),
        };
        // The block of the mark.
        let at = Some(entry.end());
        match opened {
            Ok(device) => {
                if let Some((kind, what)) = difference(&device, entry, &superblock.uuid, devices.restored) {
                    report.error(kind, None, at, format!("{called}: {what}"));
                }
            }
            Err(NotOpened::Nowhere(why)) => {
                report.error(FindingKind::BulkNowhere, None, at, format!("{called}: {why}; {REMEDY}"));
            }
            Err(NotOpened::Away(why)) => unreached(entry, &called, &why, report),
        }
    }
}

fn unreached(entry: &BulkDeviceEntry, called: &str, why: &str, report: &mut Report) {
    if entry.has_mark() {
        let sentence = format!("{called}: its mark was not compared: {why}");
        report.note(FindingKind::BulkMark, None, Some(entry.end()), sentence);
    }
}

/// Returns why a mount would not accept `device` for this entry, and what to do about it.
fn difference(
    device: &OpenedDevice,
    entry: &BulkDeviceEntry,
    store: &[u8; 16],
    may_be_newer: bool,
) -> Option<(FindingKind, String)> {
    let &OpenedDevice { bytes, block_bytes, .. } = device;
    let found = |kind, what: String| Some((kind, format!("{what}; {REMEDY}")));
    if bytes / BULK_BLOCK < entry.blocks || !BULK_BLOCK.is_multiple_of(block_bytes.max(1)) {
        let needs = entry.blocks * BULK_BLOCK;
        let what = format!(
            "it has {bytes} bytes in units of {block_bytes}, the store needs {needs} in units of at most {BULK_BLOCK}"
        );
        return found(FindingKind::BulkSize, what);
    }
    if !entry.has_mark() {
        return None;
    }
    let at = Mark::at(entry.blocks);
    if bytes < at + block_bytes.max(MARK_UNIT_MIN) {
        return found(FindingKind::BulkMark, "it ends before its mark".into());
    }
    let mut mark = [0; BULK_MARK];
    if let Err(why) = device.data.read(at, &mut mark) {
        return found(FindingKind::BulkMark, format!("its mark cannot be read: {why}"));
    }
    let mark = match Mark::decode(&mark) {
        Ok(mark) => mark,
        Err(why) => {
            // The data of the device may be intact, and a salvage does not need a mark.
            let what = format!(
                "it does not carry the store's mark ({why}); {REMEDY}; `shoal salvage` reads them all the same"
            );
            return Some((FindingKind::BulkMark, what));
        }
    };
    // Each opening advances an entry by two.
    let (marked, listed) = (mark.epoch / 2, entry.epoch / 2);
    if mark.store != *store {
        found(FindingKind::BulkOtherStore, "it belongs to another store".into())
    } else if mark.device != entry.uuid || mark.number != entry.number {
        found(FindingKind::BulkSwapped, "it is another device of the store".into())
    } else if mark.epoch.saturating_add(1) < entry.epoch {
        let what = format!("it is an older copy (of mount {marked}, the store was mounted with it {listed} times)");
        found(FindingKind::BulkOlder, what)
    } else if mark.epoch > entry.epoch.saturating_add(1) && !(may_be_newer || entry.restored) {
        let what = format!(
            "it was in use in mount {marked}, and the store's memory, images and log know of {listed}: they are an older copy"
        );
        found(FindingKind::BulkNewer, what)
    } else {
        None
    }
}
