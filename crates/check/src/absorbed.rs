//! Pages of bulk devices that the region holds: what the areas of the list of devices say.
//!
//! Rules: an entry names a page of its device, and no two entries name the same. A page of a block
//! that no file maps means nothing.
//! Left out: when these pages count (`salvage`).

use std::collections::BTreeMap;

use shoal_format::absorbed::AbsorbedPage;
use shoal_format::bulk_list::BulkDeviceEntry;
use shoal_format::{BULK_BLOCK, Offset, PAGE};

/// Where the bytes of absorbed pages lie in the region, by their first byte on bulk storage, as the
/// store counts. `None`: zeros.
pub(crate) type Pages = BTreeMap<u64, Option<Offset>>;

/// Reads the area of a device from the bytes of its entries. Each wrong entry is reported with its
/// offset.
pub(crate) fn pages(device: &BulkDeviceEntry, entries: &[u8], wrong: &mut dyn FnMut(Offset, String)) -> Pages {
    let mut pages = Pages::new();
    let Some(area) = device.absorbed else { return pages };
    for (place, entry) in (0..).zip(entries.as_chunks().0) {
        match AbsorbedPage::decode(u64::from_le_bytes(*entry), device.blocks * (BULK_BLOCK / PAGE)) {
            Ok(None) => {}
            Ok(Some(entry)) => {
                let at = device.first() * BULK_BLOCK + entry.page * PAGE;
                if pages.insert(at, (!entry.zeros).then(|| area.page_at(place))).is_some() {
                    let sentence = format!("page {} of bulk device {} is absorbed twice", entry.page, device.number);
                    wrong(area.entry_at(place), sentence);
                }
            }
            Err(why) => wrong(area.entry_at(place), format!("{why} of bulk device {}", device.number)),
        }
    }
    pages
}
