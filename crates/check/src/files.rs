//! The pieces and blocks of files, symbolic links and extended attributes.
//!
//! Rules: a file whose data ends before its size has a hole, which is not damage; data past the
//! size is preallocated, which is a note at most; every piece is claimed; `allocated` is the sum of
//! the claimed capacities. File data is read only if it has a checksum: packed objects, and short
//! files with a checksum of their own.
//! Left out: whether the bulk device's bitmap agrees with the extents (`bulk`).

use shoal_format::bulk_list::{blocks_end, device_of};
use shoal_format::extent::{self, EXTENT_NEW, Extent, ExtentNode, FileBlock};
use shoal_format::inode::{CHUNK, INODE_HAS_NEW, INODE_SUMMED, INODE_TRUNCATING, Ino, Inode, Layout, S_IFLNK};
use shoal_format::object::{ChunkRef, GROUP, GROUP_CHUNKS, sum_in_slot};
use shoal_format::superblock::FEATURE_SPILLED;
use shoal_format::{BULK_BLOCK, Offset, SlotRef, xattr};

use crate::bulk::Mapped;
use crate::objects;
use crate::region::Region;
use crate::remedy::Remedy;
use crate::report::FindingKind;
use crate::spilled::SpilledRange;
use crate::{CheckError, State};

/// Longest target of a symbolic link (bytes).
const TARGET_MAX: u64 = 4095;

/// Verifies the extended attributes. Returns the capacity of their piece.
pub(crate) fn attributes(region: &Region<'_>, state: &mut State, ino: Ino, inode: &Inode) -> Result<u64, CheckError> {
    let slot = inode.xattr;
    if slot.is_none() || !state.allocation.claim(slot, Some(ino), "piece of attributes", &mut state.report) {
        return Ok(0);
    }
    let bytes = region.bytes(slot.offset(), slot.capacity())?;
    let sentence = match xattr::decode(&bytes) {
        Err(e) => Some(e.to_string()),
        Ok(list) => {
            let mut names: Vec<&[u8]> = list.iter().map(|(name, _)| &name[..]).collect();
            names.sort_unstable();
            let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
            twice.map(|pair| format!("attribute {:?} is there twice", String::from_utf8_lossy(pair[0])))
        }
    };
    if let Some(sentence) = sentence {
        state.report.error(FindingKind::ExtendedAttributes, Some(ino), Some(slot.offset().get()), sentence);
    }
    Ok(slot.capacity())
}

/// Verifies a file, link or special file. `xattr_bytes` is the capacity of the attributes' piece.
pub(crate) fn verify(
    region: &Region<'_>,
    state: &mut State,
    ino: Ino,
    inode: &Inode,
    xattr_bytes: u64,
) -> Result<(), CheckError> {
    if inode.flags & INODE_TRUNCATING != 0 {
        let sentence = "a truncation is not finished".to_string();
        state.report.leftover(FindingKind::Truncation, ino, state.clean, sentence);
    }
    let mut file =
        File { region, state, ino, inode, allocated: xattr_bytes, small: 0, blocks: 0, new: 0, waits: 0, end: 0 };
    match inode.layout {
        Layout::Direct => file.direct()?,
        Layout::Chunked => file.chunked()?,
        Layout::Extents => file.extents()?,
        Layout::Packed => file.object(inode.root, 0)?,
        Layout::Empty | Layout::DirPacked | Layout::DirHashed => {}
    }
    let File { allocated, small, blocks, new, waits, end, .. } = file;
    let report = &mut state.report;
    report.counts.small_bytes += small;
    report.counts.large_bytes = report.counts.large_bytes.saturating_add(blocks * BULK_BLOCK);
    let allocated = allocated.saturating_add(blocks * BULK_BLOCK);
    if allocated != inode.allocated {
        let sentence = format!("says {} bytes are allocated, but its pieces have {allocated}", inode.allocated);
        report.error(FindingKind::Allocated, Some(ino), None, sentence);
        report.offer(Remedy::Allocated { ino, bytes: allocated });
    }
    if end > inode.size && inode.flags & INODE_TRUNCATING == 0 {
        report.counts.preallocated += 1;
    }
    if new > 0 && inode.flags & INODE_HAS_NEW == 0 {
        let sentence = format!("{new} bulk blocks are marked NEW, but the inode does not say so");
        report.error(FindingKind::NewUnflagged, Some(ino), None, sentence);
    } else if inode.flags & INODE_HAS_NEW != 0 {
        let fate = match (state.power_lost, state.data_lost) {
            (true, _) => "which read as zeros after the power loss",
            (_, true) => "which read as zeros where no cache holds them, because a flush of the bulk storage failed",
            _ => "perhaps not durable",
        };
        let sentence = format!("{new} bulk blocks are marked NEW, {fate}");
        // A clean unmount leaves NEW data on devices that were away; the next mount that finds them
        // settles it.
        let is_settled = state.clean && (new == 0 || waits < new);
        report.leftover(FindingKind::NewData, ino, is_settled, sentence);
    }
    Ok(())
}

struct File<'a, 'b> {
    region: &'a Region<'b>,
    state: &'a mut State,
    ino: Ino,
    inode: &'a Inode,
    /// Capacity of the pieces claimed in the region (bytes).
    allocated: u64,
    /// Capacity of the claimed pieces that hold data (bytes).
    small: u64,
    /// Mapped bulk blocks.
    blocks: u64,
    /// Mapped bulk blocks that are marked NEW.
    new: u64,
    /// NEW bulk blocks on devices without which the store was used.
    waits: u64,
    /// End of a block or chunk that lies entirely past the size (bytes), or 0.
    end: u64,
}

impl File<'_, '_> {
    fn error(&mut self, kind: FindingKind, offset: Option<Offset>, sentence: String) {
        self.state.report.error(kind, Some(self.ino), offset.map(Offset::get), sentence);
    }

    fn claim(&mut self, slot: SlotRef, what: &str) -> bool {
        let claimed = self.state.allocation.claim(slot, Some(self.ino), what, &mut self.state.report);
        if claimed {
            self.allocated += slot.capacity();
        }
        claimed
    }

    fn direct(&mut self) -> Result<(), CheckError> {
        let (slot, size) = (self.inode.root, self.inode.size);
        if self.claim(slot, "piece of data") {
            self.small += slot.capacity();
            if self.inode.kind() == S_IFLNK {
                self.target(slot, size)?;
            }
            if self.inode.flags & INODE_SUMMED != 0 {
                self.summed(slot, size)?;
            }
        }
        Ok(())
    }

    fn summed(&mut self, slot: SlotRef, size: u64) -> Result<(), CheckError> {
        let mut bytes = vec![0; size.min(CHUNK) as usize];
        let stored = bytes.len().min(slot.capacity() as usize);
        self.region.peek(slot.offset(), &mut bytes[..stored])?;
        let (found, expected) = (sum_in_slot(&bytes), self.inode.rdev);
        if found != expected || size > CHUNK {
            let sentence = format!("the checksum of its {size} bytes is {found:#x}, expected {expected:#x}");
            self.error(FindingKind::DataSum, Some(slot.offset()), sentence);
        }
        Ok(())
    }

    /// Verifies the packed object of group `group`.
    fn object(&mut self, slot: SlotRef, group: u64) -> Result<(), CheckError> {
        if !self.claim(slot, "packed object") {
            return Ok(());
        }
        self.small += slot.capacity();
        let region = self.region;
        let read = |at: Offset, out: &mut [u8]| region.peek(at, out);
        let found = match objects::find(&read, slot)? {
            Ok(found) => found,
            Err(sentence) => {
                self.error(FindingKind::PackedObject, Some(slot.offset()), sentence);
                return Ok(());
            }
        };
        for &piece in &found.pieces {
            if !self.claim(piece, "piece of a packed object") {
                let sentence = format!("a packed object refers to {piece:?}, which is not its own");
                self.error(FindingKind::PackedObject, Some(slot.offset()), sentence);
                return Ok(());
            }
            self.small += piece.capacity();
        }
        let expected = (self.inode.size.saturating_sub(group * GROUP)).min(GROUP);
        let bytes = u64::from(found.object.bytes);
        // Cutting a file leaves the object unchanged.
        if bytes < expected {
            let sentence = format!("a packed object holds {bytes} bytes of the file, expected at least {expected}");
            self.error(FindingKind::PackedObject, Some(slot.offset()), sentence);
        }
        if found.object.users != 1 {
            let sentence = format!("a packed object has {} users, but one file has it", found.object.users);
            self.error(FindingKind::PackedObject, Some(slot.offset()), sentence);
        }
        if let Some(place) = found.place {
            let bytes = found.object.spilled_bytes();
            if self.state.superblock.features & FEATURE_SPILLED == 0 {
                let sentence = "is spilled to bulk storage, but the store lacks the feature".to_string();
                self.error(FindingKind::PackedObject, Some(slot.offset()), sentence);
            }
            self.allocated = self.allocated.saturating_add(bytes);
            self.state.report.counts.spilled_bytes += bytes;
            self.state.spilled.ranges.push(SpilledRange {
                from: place.0,
                to: place.0 + bytes,
                ino: self.ino,
                object: found.object,
            });
            return Ok(());
        }
        if let (_, Some(sentence)) = objects::bytes(&read, slot, &found, &self.state.dictionaries)? {
            self.error(FindingKind::PackedObject, Some(slot.offset()), sentence);
        }
        Ok(())
    }

    fn target(&mut self, slot: SlotRef, size: u64) -> Result<(), CheckError> {
        if size == 0 || size > TARGET_MAX.min(slot.capacity()) {
            let sentence = format!("a symbolic link's target of {size} bytes in a piece of {}", slot.capacity());
            self.error(FindingKind::SymbolicLink, None, sentence);
        } else if self.region.bytes(slot.offset(), size)?.contains(&0) {
            let sentence = "a symbolic link's target contains a zero byte".to_string();
            self.error(FindingKind::SymbolicLink, Some(slot.offset()), sentence);
        }
        Ok(())
    }

    fn chunked(&mut self) -> Result<(), CheckError> {
        let map = self.inode.root;
        if !self.claim(map, "chunk map") {
            return Ok(());
        }
        let bytes = self.region.bytes(map.offset(), map.capacity())?;
        let mut group = None;
        for (i, bits) in bytes.chunks_exact(8).enumerate() {
            let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes"));
            let at = map.offset() + i as u64 * 8;
            if (i as u64).is_multiple_of(GROUP_CHUNKS) {
                group = None;
            }
            let slot = match ChunkRef::decode(bits) {
                Some(ChunkRef::Slot(slot)) => Some(slot),
                Some(ChunkRef::Packed(object)) => {
                    self.grouped(object, i as u64, group, at)?;
                    group = Some(object);
                    continue;
                }
                None => SlotRef::from_bits(bits),
            };
            // An interrupted truncation may already have removed the end of a packed group.
            let cut = slot.is_some_and(SlotRef::is_none)
                && (self.inode.flags & INODE_TRUNCATING != 0 || i as u64 * CHUNK >= self.inode.size);
            if group.is_some() && !cut {
                let sentence = format!("chunk {i} is not in the object of its group");
                self.error(FindingKind::Chunk, Some(at), sentence);
            }
            match slot {
                Some(slot) if slot.is_none() => {}
                Some(slot) if slot.capacity() > CHUNK => {
                    let sentence = format!("chunk {i} has a piece of {} bytes", slot.capacity());
                    self.error(FindingKind::Chunk, Some(at), sentence);
                }
                Some(slot) => {
                    if self.claim(slot, "chunk") {
                        self.small += slot.capacity();
                    }
                    if i as u64 * CHUNK >= self.inode.size {
                        self.end = (i as u64 + 1) * CHUNK;
                    }
                }
                None => {
                    let sentence = format!("chunk {i} is referenced by {bits:#x}");
                    self.error(FindingKind::Reference, Some(at), sentence);
                }
            }
        }
        Ok(())
    }

    /// Verifies a packed chunk. `group` is the object of the previous chunk in its group.
    fn grouped(&mut self, object: SlotRef, i: u64, group: Option<SlotRef>, at: Offset) -> Result<(), CheckError> {
        if i.is_multiple_of(GROUP_CHUNKS) {
            return self.object(object, i / GROUP_CHUNKS);
        }
        let behind = i * CHUNK >= self.inode.size && self.inode.flags & INODE_TRUNCATING == 0;
        if group != Some(object) || behind {
            let sentence = format!("chunk {i} is in object {object:?}, its group in {group:?}");
            self.error(FindingKind::Chunk, Some(at), sentence);
        }
        Ok(())
    }

    fn extents(&mut self) -> Result<(), CheckError> {
        let Some(root) = self.extent_node(self.inode.root, "extent map")? else { return Ok(()) };
        let index = match root {
            ExtentNode::Extents(extents) => {
                self.map(&extents, FileBlock::ZERO, FileBlock::MAX);
                return Ok(());
            }
            ExtentNode::Index(index) => index,
        };
        for (i, &(first, slot)) in index.iter().enumerate() {
            let end = index.get(i + 1).map_or(FileBlock::MAX, |&(next, _)| next);
            match self.extent_node(slot, "extent leaf")? {
                Some(ExtentNode::Extents(extents)) => self.map(&extents, first, end),
                Some(ExtentNode::Index(_)) => {
                    let sentence = "an extent leaf holds an index".to_string();
                    self.error(FindingKind::ExtentMap, Some(slot.offset()), sentence);
                }
                None => {}
            }
        }
        Ok(())
    }

    fn extent_node(&mut self, slot: SlotRef, what: &str) -> Result<Option<ExtentNode>, CheckError> {
        if !self.claim(slot, what) {
            return Ok(None);
        }
        let bytes = self.region.bytes(slot.offset(), slot.capacity())?;
        match extent::decode(&bytes, blocks_end(&self.state.devices)) {
            Ok(node) => Ok(Some(node)),
            Err(e) => {
                self.error(FindingKind::ExtentMap, Some(slot.offset()), e.to_string());
                Ok(None)
            }
        }
    }

    /// Collects the extents of a leaf for file blocks `first..end`.
    fn map(&mut self, extents: &[Extent], first: FileBlock, end: FileBlock) {
        for extent in extents {
            if extent.file_block < first || extent.end() > end {
                let sentence = format!(
                    "file blocks {}..{} are mapped in a leaf for {first}..{end}",
                    extent.file_block,
                    extent.end()
                );
                self.error(FindingKind::ExtentMap, None, sentence);
            }
            let Some(device) = device_of(&self.state.devices, extent.bulk_block, extent.blocks) else {
                let (first, blocks) = (extent.bulk_block, extent.blocks);
                let sentence = format!("{blocks} bulk blocks from {first} on lie on no device of the store");
                self.error(FindingKind::ExtentMap, None, sentence);
                continue;
            };
            self.blocks += extent.blocks;
            if extent.flags & EXTENT_NEW != 0 {
                self.new += extent.blocks;
                self.waits += if device.unsettled { extent.blocks } else { 0 };
            }
            if extent.file_block >= FileBlock::ceil(self.inode.size) {
                self.end = extent.end().byte();
            }
            if self.ino == self.state.spilled.file {
                self.state.spilled.extent(extent, self.state.power_lost);
            }
            self.state.mapped.push(Mapped { first: extent.bulk_block.get(), blocks: extent.blocks, ino: self.ino });
        }
    }
}
