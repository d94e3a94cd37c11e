//! Rewrites every reference in a region at rest to the new place of its piece.
//!
//! Works on a private copy of the region in memory. Pieces keep their place within their segment
//! and inodes their numbers; hashes, extents and contents stay as they are. References are found as
//! in `docs/spec/region.md`, sections 5 to 8: inode table, inodes, chunk arrays, index records of
//! extents, nodes of directories. Anything that does not decode is an error, because what it refers
//! to would be lost.
//! A packed block is encoded again in its slot: unpacking first would need room that a store about
//! to shrink may not have. The code of a reference has the same length wherever the slot lies
//! (`inode/record`), so the block fits. If a profile makes it longer, the resize is refused.
//! Left out: moving the bytes.

use std::cell::RefCell;
use std::mem::offset_of;

use shoal_format::bulk_list::{BULK_LIST_AT, decode_list, encode_list};
use shoal_format::dictionary::DictionaryList;
use shoal_format::dir::{NODE_FANOUT, NodeRef};
use shoal_format::extent::{EXTENT_BYTES, EXTENT_HEADER};
use shoal_format::inode::{INODE_RECORD, INODES_PER_BLOCK, Inode, InodeSlot, Layout, TABLE_FANOUT};
use shoal_format::object::{ChunkRef, GROUP_CHUNKS, OBJECT_HEAD, Object};
use shoal_format::superblock::{ROOTS_AT, Roots, Superblock};
use shoal_format::{Offset, PAGE, SlotRef};
use shoal_media::PersistentMemory;
use shoal_pack::{Block, BlockBytes};
use shoal_region::View;
use zerocopy::FromBytes;

use crate::inode::tables::PackedTables;
use crate::inode::{block, packed, record};
use crate::{Error, Result};

/// Levels of nodes that an inode table has at most.
const HEIGHT_MAX: u32 = 4;

/// Rewrites all references of the region in `memory`. `places` has the new segment of each old one,
/// 0 for one that is not in use. `progress` gets the number of the inode table's nodes below the
/// root that are done, and the total.
pub(super) fn move_all(
    memory: &dyn PersistentMemory,
    superblock: &Superblock,
    places: &[u64],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let mut roots = [0; size_of::<Roots>()];
    memory.read(ROOTS_AT.get(), &mut roots);
    let roots = Roots::read_from_bytes(&roots).expect("size is exact");
    let damage = RefCell::new(None);
    let tables = PackedTables::load(&Bytes(memory), &roots, &|finding| drop(damage.replace(Some(finding.to_string()))));
    if let Some(finding) = damage.take() {
        return Err(Error::Corrupt(finding));
    }
    let walk = Walk { memory, places, tables };
    walk.bulk_devices(superblock)?;
    for copy in 0..roots.inode_tables.len() as u64 {
        walk.reference(ROOTS_AT + offset_of!(Roots, inode_tables) as u64 + copy * 8)?;
    }
    for copy in 0..roots.dictionaries.len() as u64 {
        walk.dictionaries(ROOTS_AT + offset_of!(Roots, dictionaries) as u64 + copy * 8)?;
    }
    let height = memory.read_u64((ROOTS_AT + 8).get()) as u32;
    if !(1..=HEIGHT_MAX).contains(&height) {
        return Err(walk.damaged("roots", ROOTS_AT));
    }
    let root = walk.reference(ROOTS_AT)?;
    if root.is_none() {
        return Err(walk.damaged("roots", ROOTS_AT));
    }
    (0..TABLE_FANOUT).try_for_each(|entry| {
        progress(entry, TABLE_FANOUT);
        walk.table(root.offset() + entry * 8, height - 1)
    })
}

struct Walk<'a> {
    memory: &'a dyn PersistentMemory,
    places: &'a [u64],
    /// The tables that decode packed blocks.
    tables: PackedTables,
}

/// The memory as a [`View`], from which the tables are read.
struct Bytes<'a>(&'a dyn PersistentMemory);

impl View for Bytes<'_> {
    fn read(&self, at: Offset, out: &mut [u8]) -> shoal_region::Result<()> {
        if at.get().saturating_add(out.len() as u64) > self.0.len() {
            let what = "offset of packed inodes' tables";
            return Err(shoal_region::Error::Corrupt { what, at: at.get(), value: out.len() as u64 });
        }
        self.0.read(at.get(), out);
        Ok(())
    }
}

impl Walk<'_> {
    fn damaged(&self, what: &str, at: Offset) -> Error {
        Error::Corrupt(format!("{what} at {:#x}; run `shoal check`", at.get()))
    }

    fn moved(&self, slot: SlotRef, at: Offset) -> Result<SlotRef> {
        if slot.is_none() {
            return Ok(slot);
        }
        let place = self.places.get(slot.segment() as usize).copied().unwrap_or(0);
        if place == 0 {
            return Err(self.damaged("reference to a segment that is not in use", at));
        }
        let offset = Offset::of_segment(place) + u64::from(slot.offset().in_segment());
        Ok(if slot.is_run() { SlotRef::run(offset, slot.run_segments()) } else { SlotRef::slot(offset, slot.class()) })
    }

    /// Moves the reference at `at`; returns where the piece lies before the move.
    fn reference(&self, at: Offset) -> Result<SlotRef> {
        let slot =
            SlotRef::from_bits(self.memory.read_u64(at.get())).ok_or_else(|| self.damaged("slot reference", at))?;
        self.memory.write_u64(at.get(), self.moved(slot, at)?.bits());
        Ok(slot)
    }

    /// Moves the references in the list of bulk devices, whose bitmaps may lie in runs.
    fn bulk_devices(&self, superblock: &Superblock) -> Result<()> {
        let mut page = vec![0; PAGE as usize];
        self.memory.read(BULK_LIST_AT.get(), &mut page);
        let Some(mut devices) = decode_list(&page, superblock)? else { return Ok(()) };
        for device in &mut devices {
            device.bitmap = self.moved(device.bitmap, BULK_LIST_AT)?;
            device.suspects = self.moved(device.suspects, BULK_LIST_AT)?;
            if let Some(sums) = &mut device.sums {
                for leaf in 0..sums.leaves() {
                    self.reference(sums.entry_at(leaf))?;
                }
                sums.piece = self.moved(sums.piece, BULK_LIST_AT)?;
            }
            if let Some(area) = &mut device.absorbed {
                area.piece = self.moved(area.piece, BULK_LIST_AT)?;
            }
        }
        self.memory.write(BULK_LIST_AT.get(), &encode_list(&devices));
        Ok(())
    }

    /// Moves the references in a copy of the list of dictionaries, to which the reference at `at`
    /// leads.
    fn dictionaries(&self, at: Offset) -> Result<()> {
        let list = self.reference(at)?;
        if list.is_none() {
            return Ok(());
        }
        let mut bytes = vec![0; list.capacity() as usize];
        self.memory.read(list.offset().get(), &mut bytes);
        let mut listed = DictionaryList::decode(&bytes)?;
        for copy in listed.iter_mut().flat_map(|listed| &mut listed.copies) {
            *copy = self.moved(*copy, list.offset())?;
        }
        self.memory.write(list.offset().get(), &DictionaryList::encode(&listed));
        Ok(())
    }

    /// Moves the references of the inode table below `at`; level 0 is an inode block. Blocks given
    /// back are absent.
    fn table(&self, at: Offset, level: u32) -> Result<()> {
        let piece = self.reference(at)?;
        if piece.is_none() {
            return Ok(());
        }
        if level > 0 {
            return (0..TABLE_FANOUT).try_for_each(|entry| self.table(piece.offset() + entry * 8, level - 1));
        }
        if packed::is_packed(piece) {
            return self.packed_block(piece);
        }
        (0..INODES_PER_BLOCK as usize).try_for_each(|place| {
            let at = block::record_at(piece, place);
            let mut record = [0; INODE_RECORD];
            self.memory.read(at.get(), &mut record);
            if let Some(moved) = self.inode(&record, at)? {
                self.memory.write(at.get(), &moved);
            }
            Ok(())
        })
    }

    /// Encodes again the inodes of a packed block whose references change. Each keeps its form, so
    /// that the block keeps its length and the triplets their users.
    fn packed_block(&self, piece: SlotRef) -> Result<()> {
        let at = piece.offset();
        let mut bytes = vec![0; piece.capacity() as usize];
        self.memory.read(at.get(), &mut bytes);
        let decoder = self.tables.decoder();
        let (mut out, mut has_changed) = (BlockBytes::default(), false);
        for place in 0..INODES_PER_BLOCK as usize {
            let block = Block::open_in(&bytes)?;
            let item = block.get(place, &decoder.profiles, &decoder.triplets)?;
            let Some(moved) = self.inode(&record::bytes(&item)?, at)? else { continue };
            let moved = record::item(&moved)?;
            let is_replaced = block.replace(place, &moved, &decoder.profiles, &decoder.triplets, &mut out);
            if !is_replaced || out.bytes().len() as u64 > piece.capacity() {
                return Err(self.damaged("packed inodes that need another slot in the new layout", at));
            }
            bytes[..out.bytes().len()].copy_from_slice(out.bytes());
            has_changed = true;
        }
        if has_changed {
            self.memory.write(at.get(), out.bytes());
        }
        Ok(())
    }

    /// Moves what an inode refers to; returns its new record if it is in use. `at` is where its
    /// record or block lies.
    fn inode(&self, record: &[u8; INODE_RECORD], at: Offset) -> Result<Option<[u8; INODE_RECORD]>> {
        let InodeSlot::Used(inode) = Inode::decode(record)? else { return Ok(None) };
        let root = inode.root.offset();
        match inode.layout {
            Layout::Empty | Layout::Direct | Layout::DirPacked => {}
            Layout::Chunked => (0..inode.root.capacity() / 8).try_for_each(|entry| self.chunk(root, entry))?,
            Layout::Packed => self.object(inode.root)?,
            Layout::Extents => {
                let header = self.memory.read_u64(root.get());
                let (kind, count) = (header as u32, header >> 32);
                if EXTENT_HEADER as u64 + count * EXTENT_BYTES as u64 > inode.root.capacity() {
                    return Err(self.damaged("extent map", root));
                }
                if kind == 1 {
                    let leaf_at = |index: u64| root + EXTENT_HEADER as u64 + index * EXTENT_BYTES as u64 + 8;
                    (0..count).try_for_each(|index| self.reference(leaf_at(index)).map(drop))?;
                }
            }
            Layout::DirHashed => self.directory(root, 0)?,
        }
        let (root, xattr) = (self.moved(inode.root, at)?, self.moved(inode.xattr, at)?);
        Ok(Some(Inode { root, xattr, ..inode }.encode()))
    }

    /// Moves an entry of the chunk map at `map`. The first entry of a packed group also moves the
    /// object's references.
    fn chunk(&self, map: Offset, entry: u64) -> Result<()> {
        let at = map + entry * 8;
        let moved = match ChunkRef::decode(self.memory.read_u64(at.get())) {
            None => return Err(self.damaged("chunk map", at)),
            Some(ChunkRef::Slot(slot)) => ChunkRef::Slot(self.moved(slot, at)?),
            Some(ChunkRef::Packed(head)) => {
                if entry.is_multiple_of(GROUP_CHUNKS) {
                    self.object(head)?;
                }
                ChunkRef::Packed(self.moved(head, at)?)
            }
        };
        self.memory.write_u64(at.get(), moved.bits());
        Ok(())
    }

    /// Moves the references of the packed object whose first piece lies at `slot` before the move.
    fn object(&self, slot: SlotRef) -> Result<()> {
        let mut head = [0; OBJECT_HEAD];
        self.memory.read(slot.offset().get(), &mut head);
        let object = Object::decode(&head)?;
        if object.payload_at() as u64 > slot.capacity() {
            return Err(self.damaged("packed object", slot.offset()));
        }
        let first = slot.offset() + OBJECT_HEAD as u64;
        (0..u64::from(object.pieces)).try_for_each(|number| self.reference(first + number * 8).map(drop))
    }

    fn directory(&self, node: Offset, level: u32) -> Result<()> {
        if level >= shoal_format::dir::LEVELS_MAX {
            return Err(self.damaged("directory node", node));
        }
        for entry in 0..NODE_FANOUT as u64 {
            let at = node + entry * 8;
            let moved = match NodeRef::decode(self.memory.read_u64(at.get()))? {
                NodeRef::Null => continue,
                NodeRef::Node(slot) => {
                    self.directory(slot.offset(), level + 1)?;
                    NodeRef::Node(self.moved(slot, at)?)
                }
                NodeRef::Bucket { slot, depth } => NodeRef::Bucket { slot: self.moved(slot, at)?, depth },
            };
            self.memory.write_u64(at.get(), moved.encode());
        }
        Ok(())
    }
}
