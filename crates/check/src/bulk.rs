//! Bulk devices and their blocks: the list of devices, and the extents of files against the bitmaps.
//!
//! Rules: both sides are sorted ranges, so time and memory depend on the bytes on media, not on the
//! length that a forged extent claims. At most one extent maps a block, and a block is marked if
//! and only if it is mapped.
//! Left out: the data in the blocks, and the devices themselves (`marks`).

use shoal_format::block_sums::{LEAF_ENTRY, LeafEntry};
use shoal_format::bulk_list::{BULK_LIST_AT, BulkDeviceEntry, decode_list, first_device};
use shoal_format::inode::Ino;
use shoal_format::superblock::{FEATURE_ABSORBED, FEATURE_BLOCK_SUMS, FEATURE_DEVICES};
use shoal_format::{BULK_BLOCK, Offset, PAGE, SEGMENT, SlotRef};
use zerocopy::FromBytes;

use crate::absorbed;
use crate::allocation::Allocation;
use crate::region::Region;
use crate::remedy::Remedy;
use crate::report::{FindingKind, Report};
use crate::{CheckError, State};

/// Blocks a file maps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mapped {
    pub first: u64,
    pub blocks: u64,
    pub ino: Ino,
}

/// Reads the list of devices and claims the pieces it names.
pub(crate) fn read_devices(region: &Region<'_>, state: &mut State) -> Result<(), CheckError> {
    let State { superblock, allocation, devices, report, .. } = state;
    let at = BULK_LIST_AT.get();
    *devices = first_device(superblock).into_iter().collect();
    match decode_list(&region.bytes(BULK_LIST_AT, PAGE)?, superblock) {
        Ok(None) if superblock.features & FEATURE_DEVICES != 0 && superblock.bulk_blocks > 0 => {
            let sentence = "there is no list of bulk devices, which the next mount for writing makes; had the store checksums of bulk blocks or several devices, the list was lost";
            report.note(FindingKind::BulkDevices, None, Some(at), sentence.to_string());
        }
        Ok(None) => {}
        Ok(Some(listed)) => {
            if superblock.features & FEATURE_DEVICES == 0 || superblock.bulk_blocks == 0 {
                let sentence = "there is a list of bulk devices, but the store lacks the feature".to_string();
                report.error(FindingKind::BulkDevices, None, Some(at), sentence);
            }
            if superblock.features & FEATURE_BLOCK_SUMS == 0 && listed.iter().any(|device| device.sums.is_some()) {
                let sentence = "there are checksums of bulk blocks, but the store lacks the feature".to_string();
                report.error(FindingKind::BulkDevices, None, Some(at), sentence);
            }
            if superblock.features & FEATURE_ABSORBED == 0 && listed.iter().any(|device| device.absorbed.is_some()) {
                let sentence = "there is an area of absorbed pages, but the store lacks the feature".to_string();
                report.error(FindingKind::BulkDevices, None, Some(at), sentence);
            }
            for device in &listed {
                for (slot, what) in [
                    (device.bitmap, "bitmap of a bulk device"),
                    (device.suspects, "list of bulk blocks in doubt"),
                    (device.sums.map_or(SlotRef::NONE, |sums| sums.piece), "table of checksums of a bulk device"),
                    (device.absorbed.map_or(SlotRef::NONE, |area| area.piece), "absorbed pages of a bulk device"),
                ] {
                    if !slot.is_none() {
                        allocation.claim(slot, None, what, report);
                    }
                }
                claim_leaves(region, device, allocation, report)?;
                if let Some(area) = device.absorbed {
                    let entries = region.bytes(area.entry_at(0), area.places() * 8)?;
                    absorbed::pages(device, &entries, &mut |at, sentence| {
                        report.error(FindingKind::BulkDevices, None, Some(at.get()), sentence);
                    });
                }
            }
            *devices = listed;
        }
        Err(why) => report.error(FindingKind::BulkDevices, None, Some(at), why.to_string()),
    }
    Ok(())
}

/// Claims the leaves of a device's checksum table.
fn claim_leaves(
    region: &Region<'_>,
    device: &BulkDeviceEntry,
    allocation: &mut Allocation,
    report: &mut Report,
) -> Result<(), CheckError> {
    let Some(sums) = device.sums else { return Ok(()) };
    let table = region.bytes(sums.piece.offset(), sums.piece.capacity())?;
    let (entries, _) = table.as_chunks::<{ LEAF_ENTRY as usize }>();
    for (number, entry) in (0..).zip(entries) {
        let entry = LeafEntry::read_from_bytes(entry).expect("size is exact");
        match entry.leaf() {
            Some(leaf) if leaf.is_none() => {}
            Some(leaf) => {
                allocation.claim(leaf, None, "checksums of a bulk device", report);
            }
            None => {
                let sentence = format!("leaf {number} of the checksums of bulk device {} is nowhere", device.number);
                report.error(FindingKind::BulkDevices, None, Some(sums.entry_at(number).get()), sentence);
            }
        }
    }
    Ok(())
}

/// Compares the bitmaps with every extent collected. Returns whether the first device is too small.
pub(crate) fn verify(region: &Region<'_>, state: &mut State, bulk_bytes: Option<u64>) -> Result<bool, CheckError> {
    let State { devices, superblock, mapped, report, .. } = state;
    let first = devices.iter().find(|device| device.number == 0);
    let needs = first.map_or(0, |device| device.blocks * BULK_BLOCK);
    let short = bulk_bytes.filter(|&bytes| bytes < needs);
    if let Some(bytes) = short {
        let sentence = format!("the bulk device has {bytes} bytes, the store uses {needs}: it was cut or swapped");
        report.error(FindingKind::BulkSize, None, None, sentence);
    }
    mapped.sort_unstable();
    let wanted = merge(mapped, report);
    let owner = |first| mapped.partition_point(|m| m.first <= first).checked_sub(1).map(|i| mapped[i].ino);
    let mut used = 0;
    let mut sweep = Sweep::new(wanted.into_iter(), |side, first, end| match side {
        Side::Wanted => {
            let sentence = format!("bulk blocks {first}..{end} are mapped but marked free");
            report.error(FindingKind::BulkNotAllocated, owner(first), Some(first), sentence);
        }
        Side::Marked => {
            let sentence = format!("bulk blocks {first}..{end} are marked in use but no file maps them");
            report.error(FindingKind::BulkLeak, None, Some(first), sentence);
            report.offer(Remedy::FreeBlocks { first, blocks: end - first });
        }
    });
    // This also finds bits of a device that is no longer listed; they belong to nobody.
    let gone = first_device(superblock).filter(|_| first.is_none());
    for device in devices.iter().chain(&gone) {
        marked(region, device.bitmap_at(superblock), device, |first, end| {
            used += end - first;
            sweep.marked(first, end);
        })?;
    }
    sweep.finish();
    report.counts.bulk_blocks_used = used;
    for device in devices.iter().filter(|device| !device.suspects.is_none()) {
        let mut doubtful = Vec::new();
        marked(region, device.suspects.offset(), device, |first, end| doubtful.push((first, end)))?;
        let mut at = 0;
        for m in mapped.iter() {
            let end = m.first + m.blocks;
            while doubtful.get(at).is_some_and(|range: &(u64, u64)| range.1 <= m.first) {
                at += 1;
            }
            if doubtful.get(at).is_some_and(|range| range.0 < end) {
                let sentence = "some of its contents are in doubt since a flush of a bulk device failed".to_string();
                report.note(FindingKind::BulkSuspect, Some(m.ino), Some(m.first), sentence);
            }
        }
    }
    Ok(short.is_some())
}

/// Merges the extents into ascending ranges without overlap. Reports overlaps.
fn merge(mapped: &[Mapped], report: &mut Report) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for m in mapped {
        let end = m.first + m.blocks;
        match out.last_mut() {
            Some(last) if last.1 >= m.first => {
                if last.1 > m.first {
                    let until = last.1.min(end);
                    let sentence = format!("bulk blocks {}..{until} are mapped twice", m.first);
                    report.error(FindingKind::BulkDoubleUse, Some(m.ino), Some(m.first), sentence);
                }
                last.1 = last.1.max(end);
            }
            _ => out.push((m.first, end)),
        }
    }
    out
}

/// Calls `range` with every range of set bits of a device's bitmap, in ascending order, as block
/// numbers of the store. Includes bits after the last block.
fn marked(
    region: &Region<'_>,
    bitmap: Offset,
    device: &BulkDeviceEntry,
    mut range: impl FnMut(u64, u64),
) -> Result<(), CheckError> {
    let mut open = (0, 0);
    let mut add = |first: u64, end: u64| {
        if open.1 == first {
            open.1 = end;
            return;
        }
        if open.0 < open.1 {
            range(open.0, open.1);
        }
        open = (first, end);
    };
    let words = device.blocks.div_ceil(64);
    let mut word_index = 0;
    while word_index < words {
        let at = bitmap + word_index * 8;
        let count = ((SEGMENT - u64::from(at.in_segment())) / 8).min(words - word_index);
        if region.segment(at.segment())?.is_some() {
            let bytes = region.bytes(at, count * 8)?;
            for (i, word) in bytes.chunks_exact(8).enumerate() {
                let mut word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                let base = device.first() + (word_index + i as u64) * 64;
                while word != 0 {
                    let first = word.trailing_zeros();
                    let length = (!(word >> first)).trailing_zeros().min(64 - first);
                    add(base + first as u64, base + (first + length) as u64);
                    let mask = if length == 64 { u64::MAX } else { ((1 << length) - 1) << first };
                    word &= !mask;
                }
            }
        }
        word_index += count;
    }
    if open.0 < open.1 {
        range(open.0, open.1);
    }
    Ok(())
}

/// The list that holds a range that the other list lacks.
enum Side {
    Wanted,
    Marked,
}

/// Compares two ascending lists of ranges. The second list is streamed and never held in memory.
struct Sweep<I, F> {
    wanted: I,
    /// The remainder of the first list's current range.
    current: Option<(u64, u64)>,
    differ: F,
}

impl<I: Iterator<Item = (u64, u64)>, F: FnMut(Side, u64, u64)> Sweep<I, F> {
    fn new(mut wanted: I, differ: F) -> Sweep<I, F> {
        Sweep { current: wanted.next(), wanted, differ }
    }

    fn marked(&mut self, mut first: u64, end: u64) {
        while first < end {
            let Some((wanted, wanted_end)) = self.current.filter(|&(wanted, _)| wanted < end) else {
                return (self.differ)(Side::Marked, first, end);
            };
            if wanted < first {
                let until = wanted_end.min(first);
                (self.differ)(Side::Wanted, wanted, until);
                self.advance(until, wanted_end);
            } else {
                if first < wanted {
                    (self.differ)(Side::Marked, first, wanted);
                }
                first = end.min(wanted_end);
                self.advance(first, wanted_end);
            }
        }
    }

    fn advance(&mut self, to: u64, end: u64) {
        self.current = if to < end { Some((to, end)) } else { self.wanted.next() };
    }

    fn finish(mut self) {
        while let Some((first, end)) = self.current {
            (self.differ)(Side::Wanted, first, end);
            self.current = self.wanted.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Side, Sweep};

    #[test]
    fn ranges_are_compared_as_sets_of_blocks() {
        let mut seed = 1u64;
        for _ in 0..2000 {
            let mut lists = [Vec::new(), Vec::new()];
            for list in &mut lists {
                let mut at = 0;
                for _ in 0..5 {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (gap, len) = (1 + (seed >> 33) % 5, 1 + (seed >> 40) % 7);
                    list.push((at + gap, at + gap + len));
                    at += gap + len;
                }
            }
            let mut only = [vec![false; 64], vec![false; 64]];
            let mut sweep = Sweep::new(lists[0].iter().copied(), |side, first, end| {
                assert!(first < end);
                only[matches!(side, Side::Marked) as usize][first as usize..end as usize].fill(true);
            });
            lists[1].iter().for_each(|&(first, end)| sweep.marked(first, end));
            sweep.finish();
            let holds = |list: usize, block: u64| lists[list].iter().any(|r| r.0 <= block && block < r.1);
            for block in 0..64 {
                let (wanted, marked) = (holds(0, block), holds(1, block));
                assert_eq!(only[0][block as usize], wanted && !marked, "{lists:?} {block}");
                assert_eq!(only[1][block as usize], marked && !wanted, "{lists:?} {block}");
            }
        }
    }
}
