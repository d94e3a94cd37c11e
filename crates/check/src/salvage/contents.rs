//! The readable part of an inode of a damaged store: attributes, target and data.
//!
//! Rules: holes stay holes. Extents marked UNWRITTEN, or NEW after a power loss, are holes. Bytes
//! in a page or bulk block with a wrong sum are sent as found and named, because most of them are
//! right.

use shoal_format::bulk_list::blocks_end;
use shoal_format::extent::{
    EXTENT_BYTES, EXTENT_HEADER, EXTENT_NEW, EXTENT_UNWRITTEN, Extent, ExtentRecord, FileBlock, IndexRecord,
};
use shoal_format::inode::{CHUNK, Ino, Inode, Layout, S_IFLNK};
use shoal_format::object::{ChunkRef, GROUP, GROUP_CHUNKS, SpillPlace};
use shoal_format::superblock::{ROOTS_AT, Roots};
use shoal_format::{BULK_BLOCK, SlotRef, xattr};
use zerocopy::FromBytes;

use super::{Item, Walk};
use crate::{CheckError, objects};

/// Bytes of the bulk device to read at once.
const READ_BYTES: u64 = 1 << 20;

impl Walk<'_, '_> {
    /// Creates an inode with its contents. Returns false if it could not be created.
    pub(super) fn make(&mut self, ino: Ino, inode: &Inode, path: &[u8]) -> Result<bool, CheckError> {
        let attributes = self.attributes(inode, path)?;
        let mut target = Vec::new();
        if inode.kind() == S_IFLNK {
            if !self.fits(inode.root) || inode.size == 0 || inode.size > inode.root.capacity() {
                self.lost(Some(path), None, format!("the target of symbolic link {ino} cannot be read"));
                return Ok(false);
            }
            target.resize(inode.size as usize, 0);
            self.read(inode.root.offset(), &mut target)?;
            self.name_bad_page(path, inode.root, 0, inode.size);
        }
        if !self.sink.make(&Item { path, inode, target: &target, attributes: &attributes }) {
            // The sink has reported the reason.
            self.found.losses += 1;
            return Ok(false);
        }
        match inode.is_dir() {
            true => self.found.directories += 1,
            false if inode.is_file() => self.found.files += 1,
            false => self.found.others += 1,
        }
        if inode.is_file() {
            match inode.layout {
                Layout::Direct => self.slot(path, inode, inode.root, 0)?,
                Layout::Packed => self.object(path, inode, inode.root, 0)?,
                Layout::Chunked => self.chunks(path, inode)?,
                Layout::Extents => self.extents(path, inode)?,
                _ => {}
            }
            self.sink.done();
        }
        Ok(true)
    }

    fn attributes(&mut self, inode: &Inode, path: &[u8]) -> Result<Vec<xattr::Attribute>, CheckError> {
        if inode.xattr.is_none() {
            return Ok(Vec::new());
        }
        if !self.fits(inode.xattr) {
            self.lost(Some(path), None, "the extended attributes are nowhere".into());
            return Ok(Vec::new());
        }
        match xattr::decode(&self.piece(inode.xattr)?) {
            Ok(attributes) => {
                if let Some(page) = self.bad_page(inode.xattr.offset(), inode.xattr.capacity()) {
                    self.lost(Some(path), None, format!("the extended attributes lie in {page}"));
                }
                Ok(attributes)
            }
            Err(error) => {
                self.lost(Some(path), None, format!("the extended attributes: {error}"));
                Ok(Vec::new())
            }
        }
    }

    fn name_bad_page(&mut self, path: &[u8], slot: SlotRef, file_at: u64, len: u64) {
        if let Some(page) = self.bad_page(slot.offset(), len) {
            let why = format!("lies in {page}; copied as it was found");
            self.lost(Some(path), Some((file_at, file_at + len)), why);
        }
    }

    /// Sends a piece that holds the bytes of the file from `file_at` on.
    fn slot(&mut self, path: &[u8], inode: &Inode, slot: SlotRef, file_at: u64) -> Result<(), CheckError> {
        let len = inode.size.saturating_sub(file_at).min(slot.capacity()).min(CHUNK);
        if len == 0 {
            return Ok(());
        }
        if !self.fits(slot) {
            self.lost(Some(path), Some((file_at, file_at + len)), format!("its piece {slot:?} is nowhere"));
            return Ok(());
        }
        let mut bytes = vec![0; len as usize];
        self.read(slot.offset(), &mut bytes)?;
        self.name_bad_page(path, slot, file_at, len);
        self.found.bytes += len;
        self.sink.data(file_at, &bytes);
        Ok(())
    }

    /// Sends the part of the file from `file_at` on that a packed object holds.
    fn object(&mut self, path: &[u8], inode: &Inode, slot: SlotRef, file_at: u64) -> Result<(), CheckError> {
        let end = inode.size.min(file_at + GROUP);
        if file_at >= end {
            return Ok(());
        }
        if !self.fits(slot) {
            self.lost(Some(path), Some((file_at, end)), format!("its packed object {slot:?} is nowhere"));
            return Ok(());
        }
        let read = |at, out: &mut [u8]| self.read(at, out);
        let (bytes, why) = match objects::find(&read, slot)? {
            Err(why) => (None, Some(why)),
            Ok(found) if !found.pieces.iter().all(|&piece| self.fits(piece)) => {
                (None, Some("a piece of its packed object is nowhere".into()))
            }
            Ok(objects::Found { object, place: Some(place), .. }) => {
                match self.spilled(place, object.payload as usize) {
                    Ok(payload) => objects::unpacked(&object, payload, &self.dictionaries),
                    Err(why) => (None, Some(why)),
                }
            }
            Ok(found) => objects::bytes(&read, slot, &found, &self.dictionaries)?,
        };
        if let Some(why) = why {
            let fate = if bytes.is_some() { "copied as it was found" } else { "its bytes are lost" };
            self.lost(Some(path), Some((file_at, end)), format!("{why}; {fate}"));
        }
        if let Some(mut bytes) = bytes {
            bytes.truncate((end - file_at) as usize);
            self.found.bytes += bytes.len() as u64;
            self.sink.data(file_at, &bytes);
        }
        Ok(())
    }

    fn chunks(&mut self, path: &[u8], inode: &Inode) -> Result<(), CheckError> {
        if !self.fits(inode.root) {
            self.lost(Some(path), Some((0, inode.size)), "its chunk map is nowhere".into());
            return Ok(());
        }
        if let Some(page) = self.bad_page(inode.root.offset(), inode.root.capacity()) {
            self.lost(Some(path), None, format!("its chunk map lies in {page}"));
        }
        let map = self.piece(inode.root)?;
        let bits = map.chunks_exact(8).map(|bits| u64::from_le_bytes(bits.try_into().expect("eight bytes")));
        let entries: Vec<u64> = bits.take(inode.size.div_ceil(CHUNK) as usize).collect();
        for (group, entries) in (0..).zip(entries.chunks(GROUP_CHUNKS as usize)) {
            self.group(path, inode, group * GROUP, entries)?;
        }
        Ok(())
    }

    /// Sends the chunks of a group. The first one begins at byte `at` of the file.
    fn group(&mut self, path: &[u8], inode: &Inode, at: u64, entries: &[u64]) -> Result<(), CheckError> {
        let refs: Vec<_> = entries.iter().map(|&bits| ChunkRef::decode(bits)).collect();
        let is_packed = |of_chunk: &&Option<ChunkRef>| matches!(of_chunk, Some(ChunkRef::Packed(_)));
        if let Some(Some(ChunkRef::Packed(one))) = refs.iter().find(is_packed) {
            // All chunks of a packed group name its object. If some references are damaged, most
            // chunks still do.
            let named = |object: SlotRef| refs.iter().filter(|&&of| of == Some(ChunkRef::Packed(object))).count();
            if named(*one) == refs.len() {
                return self.object(path, inode, *one, at);
            }
            let end = inode.size.min(at + GROUP);
            let packed = refs.iter().flatten().filter_map(|&of| match of {
                ChunkRef::Packed(object) => Some(object),
                ChunkRef::Slot(_) => None,
            });
            let object = packed.max_by_key(|&object| named(object)).filter(|&object| named(object) * 2 > refs.len());
            let fate =
                if object.is_some() { "copied from the one that most chunks name" } else { "its bytes are lost" };
            self.lost(Some(path), Some((at, end)), format!("the chunk map gives it several packed objects; {fate}"));
            return object.map_or(Ok(()), |object| self.object(path, inode, object, at));
        }
        for ((from, bits), of_chunk) in (at..).step_by(CHUNK as usize).zip(entries).zip(refs) {
            match of_chunk {
                Some(ChunkRef::Slot(slot)) if slot.is_none() => {}
                Some(ChunkRef::Slot(slot)) if slot.capacity() <= CHUNK => self.slot(path, inode, slot, from)?,
                _ => {
                    let range = (from, (from + CHUNK).min(inode.size));
                    self.lost(Some(path), Some(range), format!("the chunk map says {bits:#x}, which is no piece"));
                }
            }
        }
        Ok(())
    }

    /// Reads the map of the spill file. The spill file itself is not copied, only the files spilled
    /// to it.
    pub(super) fn find_spill_file(&mut self) -> Result<(), CheckError> {
        let mut bytes = [0; size_of::<Roots>()];
        self.read(ROOTS_AT, &mut bytes)?;
        let roots = Roots::read_from_bytes(&bytes).expect("size is given");
        let ino = Ino::new(roots.spill_file.get());
        let Some(&place) = self.records.get(&ino) else { return Ok(()) };
        let Some(inode) = self.inode(place)?.filter(|inode| inode.generation == roots.spill_generation.get()) else {
            return Ok(());
        };
        self.seen.insert(ino, None);
        if inode.layout != Layout::Extents {
            return Ok(());
        }
        for record in self.extent_records(b"", &inode)? {
            let decoded = record.decode(blocks_end(&self.devices)).ok();
            self.spill_file.extend(decoded.filter(|extent| !self.is_lost(extent.flags)));
        }
        self.spill_file.sort_unstable_by_key(|extent| extent.file_block);
        Ok(())
    }

    fn is_lost(&self, flags: u32) -> bool {
        flags & EXTENT_UNWRITTEN != 0 || flags & EXTENT_NEW != 0 && self.power_lost
    }

    /// Reads the payload of a spilled object.
    fn spilled(&self, place: SpillPlace, len: usize) -> Result<Vec<u8>, String> {
        let bulk = self.source.bulk.ok_or("the bulk storage cannot be read")?;
        let (mut payload, mut done) = (vec![0; len], 0);
        while done < len {
            let at = place.0 + done as u64;
            let behind = self.spill_file.partition_point(|extent| extent.file_block.byte() <= at);
            let extent = behind.checked_sub(1).map(|number| self.spill_file[number]);
            let extent = extent.filter(|extent| at < extent.end().byte()).ok_or("its spilled bytes are nowhere")?;
            let part = ((extent.end().byte() - at) as usize).min(len - done);
            let from = extent.bulk_block.byte() + (at - extent.file_block.byte());
            bulk.read(from, &mut payload[done..done + part])?;
            done += part;
        }
        Ok(payload)
    }

    fn extents(&mut self, path: &[u8], inode: &Inode) -> Result<(), CheckError> {
        let mut from = FileBlock::ZERO;
        for record in self.extent_records(path, inode)? {
            from = self.extent(path, inode, &record, from)?;
        }
        Ok(())
    }

    /// Reads the extents of a file as stored.
    fn extent_records(&mut self, path: &[u8], inode: &Inode) -> Result<Vec<ExtentRecord>, CheckError> {
        let Some(root) = self.extent_items(path, inode.root)? else { return Ok(Vec::new()) };
        let leaves = if root.0 == 0 {
            vec![root.1]
        } else {
            let mut leaves = Vec::new();
            for item in root.1.chunks_exact(EXTENT_BYTES) {
                let record = IndexRecord::read_from_bytes(item).expect("size is given");
                let first = record.first().byte();
                match SlotRef::from_bits(record.leaf.get()) {
                    Some(slot) => leaves.extend(self.extent_items(path, slot)?.filter(|leaf| leaf.0 == 0).map(|l| l.1)),
                    None => self.lost(Some(path), Some((first, inode.size)), "a leaf of its map is nowhere".into()),
                }
            }
            leaves
        };
        let items = leaves.iter().flat_map(|leaf| leaf.chunks_exact(EXTENT_BYTES));
        Ok(items.map(|item| ExtentRecord::read_from_bytes(item).expect("size is given")).collect())
    }

    /// Returns kind and items of a node of an extent map.
    fn extent_items(&mut self, path: &[u8], slot: SlotRef) -> Result<Option<(u32, Vec<u8>)>, CheckError> {
        if !self.fits(slot) {
            self.lost(Some(path), None, "a part of its extent map is nowhere: data may read as a hole".into());
            return Ok(None);
        }
        let mut bytes = self.piece(slot)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let (kind, count) = (word(0), word(4) as usize);
        if kind > 1 || count > (bytes.len() - EXTENT_HEADER) / EXTENT_BYTES {
            self.lost(Some(path), None, "a part of its extent map does not decode: data may read as a hole".into());
            return Ok(None);
        }
        if let Some(page) = self.bad_page(slot.offset(), slot.capacity()) {
            self.lost(Some(path), None, format!("its extent map lies in {page}"));
        }
        bytes.truncate(EXTENT_HEADER + count * EXTENT_BYTES);
        Ok(Some((kind, bytes.split_off(EXTENT_HEADER))))
    }

    /// Sends the data of one extent, which must begin at `from` or later (file blocks). Returns the
    /// end of the extent.
    fn extent(
        &mut self,
        path: &[u8],
        inode: &Inode,
        record: &ExtentRecord,
        from: FileBlock,
    ) -> Result<FileBlock, CheckError> {
        let blocks = record.file_blocks();
        let (start, mut end) = (blocks.start.byte(), blocks.end.byte());
        let decoded = record.decode(blocks_end(&self.devices)).ok().filter(|extent| extent.file_block >= from);
        let Some(Extent { bulk_block: first, flags, .. }) = decoded else {
            self.lost(Some(path), Some((start, end)), "an extent of its map is impossible".into());
            return Ok(from);
        };
        if self.is_doubtful(first.get(), record.blocks.get().into())? {
            // NEW blocks may hold another file's bytes instead of old bytes of this file.
            let is_new = flags & EXTENT_NEW != 0;
            let fate = if is_new { "not copied" } else { "copied as it was found" };
            self.lost(Some(path), Some((start, end)), format!("in doubt: a flush of its bulk device failed; {fate}"));
            if is_new {
                return Ok(blocks.end);
            }
        }
        end = end.min(inode.size);
        if self.is_lost(flags) || start >= end {
            return Ok(blocks.end);
        }
        let Some(bulk) = self.source.bulk else {
            self.lost(Some(path), Some((start, end)), "the bulk storage cannot be read".into());
            return Ok(blocks.end);
        };
        let mut at = start;
        let mut buffer = vec![0; READ_BYTES.min(blocks.end.byte() - start) as usize];
        while at < end {
            let len = READ_BYTES.min(end - at);
            let place = first.byte() + (at - start);
            // Read whole blocks if possible, because a checksum may cover bytes after the file's
            // end.
            let mut part = &mut buffer[..len.next_multiple_of(BULK_BLOCK) as usize];
            let mut read = bulk.read(place, part);
            if read.is_err() && part.len() as u64 > len {
                part = &mut part[..len as usize];
                read = bulk.read(place, part);
            }
            match read {
                Ok(()) => {
                    if flags & EXTENT_NEW != 0
                        && let Some(why) = self.may_lack(first)
                    {
                        self.keep_held(path, (at, at + len), place, part, why);
                    }
                    self.lay_absorbed_over(place, part)?;
                    // Unflushed data may be missing from the device, so its checksums do not count.
                    let is_new = flags & EXTENT_NEW != 0;
                    let wrong = if is_new { Vec::new() } else { self.wrong_ranges(place, part)? };
                    self.found.bytes += len;
                    self.sink.data(at, &part[..len as usize]);
                    for range in wrong {
                        let (from, to) = (at + (range.start - place), at + (range.end - place));
                        let why = "not what was written, says the checksum; copied as it was found".into();
                        self.lost(Some(path), Some((from, to.min(end))), why);
                    }
                }
                Err(why) => self.lost(Some(path), Some((at, at + len)), why),
            }
            at += len;
        }
        Ok(blocks.end)
    }

    /// Keeps only the cached part of NEW bytes, for a device that may have lost the rest.
    fn keep_held(&mut self, path: &[u8], range: (u64, u64), place: u64, part: &mut [u8], why: &str) {
        let mut lost: Option<(u64, u64)> = None;
        for (at, block) in (0..).step_by(BULK_BLOCK as usize).zip(part.chunks_mut(BULK_BLOCK as usize)) {
            if self.source.bulk.is_some_and(|bulk| bulk.is_held(place + at, block.len() as u64)) {
                continue;
            }
            block.fill(0);
            let (from, to) = (range.0 + at, (range.0 + at + block.len() as u64).min(range.1));
            match &mut lost {
                _ if from >= to => {}
                Some((_, end)) if *end == from => *end = to,
                other => {
                    let before = other.replace((from, to));
                    before.into_iter().for_each(|range| self.lost(Some(path), Some(range), why.into()));
                }
            }
        }
        lost.into_iter().for_each(|range| self.lost(Some(path), Some(range), why.into()));
    }
}
