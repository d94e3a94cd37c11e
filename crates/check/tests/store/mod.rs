//! Builds small stores by hand, using only the format crate's encoders, and puts them on media of
//! bytes.
//!
//! Owns: a region in a vector, a slot allocator without freeing, directories written when the store
//! is finished, images with page sums, a log. Later edits leave everything else unchanged.
//! Left out: everything an engine does; these bytes follow the specification, not an engine.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod media;
pub mod tree;

use std::collections::BTreeMap;

use shoal_check::{BulkDevices, ImageSource, Report, Source, check};
use shoal_format::dir::{self, BUCKET_BYTES, Dirent, NODE_BYTES, NODE_FANOUT, NodeRef};
use shoal_format::extent::{self, FileBlock};
use shoal_format::inode::{
    INODE_BLOCK, INODE_RECORD, Ino, Inode, Layout, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, TABLE_FANOUT, TABLE_NODE,
};
use shoal_format::record::{Entry, RecordHeader, RecordKind};
use shoal_format::segment::{SEGMENT_ENTRY, SegmentEntry, SegmentUse};
use shoal_format::slot::{class_for, class_geometry};
use shoal_format::superblock::{ANCHOR_CLEAN, AnchorRecord, Geometry, MemoryKind, ROOTS_AT, Roots, Superblock};
use shoal_format::{Offset, PAGE, SEGMENT, SlotRef, xattr};
use shoal_media::LogDevice;
use zerocopy::{FromBytes, IntoBytes};

use media::{Image, Log, Memory};

pub const BULK_BLOCKS: u64 = 200;
pub const FIRST_LSN: u64 = 1 << 16;
pub const FIRST_SALT: u32 = 77;

pub struct Store {
    pub superblock: Superblock,
    pub anchor: AnchorRecord,
    /// The region.
    pub bytes: Vec<u8>,
    /// Records from [`FIRST_LSN`] on.
    pub log: Vec<u8>,
    pub salt: u32,
    pub inodes: BTreeMap<u32, Inode>,
    entries: BTreeMap<u32, Vec<(Vec<u8>, u32, u8)>>,
    /// Next segment. `open` has, for each class, the segment in use and its next slot.
    next_segment: u64,
    open: BTreeMap<u8, (u64, u32)>,
    /// Root and height of the inode table.
    table: SlotRef,
    height: u32,
    blocks: BTreeMap<u32, SlotRef>,
}

pub fn empty_inode(mode: u16) -> Inode {
    Inode {
        mode,
        layout: Layout::Empty,
        method: 0,
        threshold: Default::default(),
        flags: 0,
        nlink: 0,
        uid: 1,
        gid: 2,
        size: 0,
        atime: 3,
        mtime: 4,
        ctime: 5,
        btime: 6,
        generation: 1,
        rdev: 0,
        root: SlotRef::NONE,
        xattr: SlotRef::NONE,
        allocated: 0,
        parent: Ino::ZERO,
    }
}

impl Store {
    /// Creates a store with an empty root directory, not yet finished.
    pub fn new(memory_kind: MemoryKind, segments: u64) -> Store {
        let superblock = Superblock::layout(Geometry {
            memory_kind,
            uuid: [7; 16],
            region_bytes: segments * SEGMENT,
            bulk_blocks: BULK_BLOCKS,
            ring_bytes: 64 << 10,
            threshold: 1 << 20,
            hash_seed: 9,
            created_ns: 1,
        })
        .unwrap();
        let mut anchor = AnchorRecord::read_from_bytes(&[0; 128]).unwrap();
        anchor.generation = 3.into();
        anchor.uuid = superblock.uuid;
        anchor.replay_lsn = FIRST_LSN.into();
        anchor.sealed_lsn = FIRST_LSN.into();
        anchor.replay_salt = FIRST_SALT.into();
        let mut store = Store {
            superblock,
            anchor,
            bytes: vec![0; superblock.region_bytes as usize],
            log: Vec::new(),
            salt: FIRST_SALT,
            inodes: BTreeMap::new(),
            entries: BTreeMap::new(),
            next_segment: superblock.reserved_segments(),
            open: BTreeMap::new(),
            table: SlotRef::NONE,
            height: 1,
            blocks: BTreeMap::new(),
        };
        store.write(Offset::ZERO, &superblock.encode());
        for segment in 0..superblock.reserved_segments() {
            store.set_segment(segment, SegmentEntry::new(SegmentUse::Reserved));
        }
        store.table = store.allocate(TABLE_NODE);
        store.inodes.insert(1, Inode { nlink: 2, parent: Ino::ROOT, ..empty_inode(S_IFDIR | 0o755) });
        store.entries.insert(1, Vec::new());
        store
    }

    /// Creates a finished store with one of everything. Inodes: see the constants of `sample`.
    pub fn sample(memory_kind: MemoryKind) -> Store {
        use sample::*;
        let mut s = Store::new(memory_kind, 64);
        s.add(1, b"directory", DIRECTORY, empty_inode(S_IFDIR | 0o700));
        s.add_data(DIRECTORY, b"small", SMALL, b"hello, world");
        s.link(1, b"hard", SMALL);
        let mut target = empty_inode(S_IFLNK | 0o777);
        s.store_data(&mut target, b"directory/small");
        s.add(1, b"symlink", SYMLINK, target);
        s.add(1, b"empty", EMPTY, Inode { size: 1 << 20, ..empty_inode(S_IFREG | 0o644) });
        s.add(1, b"pipe", PIPE, empty_inode(S_IFIFO | 0o644));

        let chunks = [s.allocate(32768), SlotRef::NONE, s.allocate(5000)];
        s.write(chunks[0].offset(), &[0x11; 32768]);
        let map: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.bits().to_le_bytes()).collect();
        let map_slot = s.allocate_with(&map);
        let allocated = map_slot.capacity() + chunks[0].capacity() + chunks[2].capacity();
        let chunked = Inode { layout: Layout::Chunked, root: map_slot, size: 100_000, allocated, ..s.file() };
        s.add(1, b"chunked", CHUNKED, chunked);

        let extents = [
            extent::Extent { file_block: FileBlock::ZERO, blocks: 3, bulk_block: extent::BulkBlock::new(60), flags: 0 },
            extent::Extent {
                file_block: FileBlock::new(5),
                blocks: 4,
                bulk_block: extent::BulkBlock::new(100),
                flags: extent::EXTENT_UNWRITTEN,
            },
        ];
        let leaf = s.allocate(extent::LEAF_BYTES);
        s.write(leaf.offset(), &extent::encode(&extent::ExtentNode::Extents(extents[1..].to_vec())));
        let first = s.allocate(extent::LEAF_BYTES);
        s.write(first.offset(), &extent::encode(&extent::ExtentNode::Extents(extents[..1].to_vec())));
        let root = s.allocate_with(&extent::encode(&extent::ExtentNode::Index(vec![
            (FileBlock::ZERO, first),
            (FileBlock::new(5), leaf),
        ])));
        let allocated = root.capacity() + 2 * extent::LEAF_BYTES + 7 * 65536;
        let large = Inode { layout: Layout::Extents, root, size: 600_000, allocated, ..s.file() };
        s.add(1, b"large", LARGE, large);
        (60..63).chain(100..104).for_each(|block| s.mark_bulk(block, true));

        s.add(1, b"hashed", HASHED, empty_inode(S_IFDIR | 0o755));
        for i in 0..100u32 {
            let name = format!("entry-{i:03}-{}", "x".repeat(20));
            s.add_data(HASHED, name.as_bytes(), FIRST_OF_HASHED + i, &[b'a'; 20]);
        }
        let list = vec![(b"user.a".to_vec(), vec![1; 40_000]), (b"user.b".to_vec(), b"2".to_vec())];
        let attributes = s.allocate_with(&xattr::encode(&list));
        let small = s.inodes.get_mut(&SMALL).unwrap();
        small.xattr = attributes;
        small.allocated += attributes.capacity();
        s.finish();
        s
    }

    /// Creates a finished store of few pages, for tests that visit every bit.
    pub fn tiny() -> Store {
        let mut s = Store::new(MemoryKind::Logged, 8);
        s.add_data(1, b"file", 2, b"a few bytes");
        s.finish();
        s
    }

    pub fn file(&self) -> Inode {
        empty_inode(S_IFREG | 0o644)
    }

    pub fn allocate(&mut self, len: u64) -> SlotRef {
        let Some(class) = class_for(len) else {
            let segments = len.div_ceil(SEGMENT);
            let first = self.next_segment;
            self.next_segment += segments;
            self.set_segment(first, SegmentEntry::new(SegmentUse::RunHead(segments as u32)));
            (1..segments).for_each(|i| self.set_segment(first + i, SegmentEntry::new(SegmentUse::RunBody)));
            return SlotRef::run(Offset::of_segment(first), segments);
        };
        let (slots, header) = class_geometry(class);
        let (segment, slot) = match self.open.get(&class) {
            Some(&(segment, slot)) if slot < slots => (segment, slot),
            _ => {
                let segment = self.next_segment;
                self.next_segment += 1;
                self.set_segment(segment, SegmentEntry::new(SegmentUse::Slots(class)));
                (segment, 0)
            }
        };
        self.open.insert(class, (segment, slot + 1));
        let size = shoal_format::slot::CLASS_SIZES[class as usize];
        let reference = SlotRef::slot(Offset::of_segment(segment) + (header + slot * size) as u64, class);
        self.mark(reference, true);
        reference
    }

    pub fn allocate_with(&mut self, bytes: &[u8]) -> SlotRef {
        let slot = self.allocate(bytes.len() as u64);
        self.write(slot.offset(), bytes);
        slot
    }

    fn entry_at(&self, segment: u64) -> Offset {
        self.superblock.segment_table + segment * SEGMENT_ENTRY
    }

    pub fn set_segment(&mut self, segment: u64, entry: SegmentEntry) {
        let at = self.entry_at(segment);
        self.write(at, entry.as_bytes());
    }

    /// Sets or clears a slot's allocation bit.
    pub fn mark(&mut self, slot: SlotRef, used: bool) {
        let (slots, _) = class_geometry(slot.class());
        let bitmap = if slots <= 64 { self.entry_at(slot.segment()) + 8 } else { Offset::of_segment(slot.segment()) };
        self.bit(bitmap, slot.index() as u64, used);
    }

    pub fn mark_bulk(&mut self, block: u64, used: bool) {
        self.bit(self.superblock.bulk_bitmap, block, used);
    }

    fn bit(&mut self, bitmap: Offset, index: u64, set: bool) {
        let byte = &mut self.bytes[(bitmap + index / 8).get() as usize];
        if set { *byte |= 1 << (index % 8) } else { *byte &= !(1 << (index % 8)) }
    }

    pub fn write(&mut self, at: Offset, bytes: &[u8]) {
        let at = at.get() as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn word(&self, at: Offset) -> u64 {
        let at = at.get() as usize;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    pub fn store_data(&mut self, inode: &mut Inode, data: &[u8]) {
        let slot = self.allocate_with(data);
        (inode.layout, inode.root, inode.size) = (Layout::Direct, slot, data.len() as u64);
        inode.allocated += slot.capacity();
    }

    pub fn add_data(&mut self, parent: u32, name: &[u8], ino: u32, data: &[u8]) {
        let mut inode = self.file();
        self.store_data(&mut inode, data);
        self.add(parent, name, ino, inode);
    }

    pub fn add(&mut self, parent: u32, name: &[u8], ino: u32, mut inode: Inode) {
        if inode.is_dir() {
            (inode.nlink, inode.parent) = (1, Ino::new(parent));
            self.inodes.get_mut(&parent).unwrap().nlink += 1;
            self.entries.insert(ino, Vec::new());
        }
        self.inodes.insert(ino, inode);
        self.link(parent, name, ino);
    }

    pub fn link(&mut self, parent: u32, name: &[u8], ino: u32) {
        let inode = self.inodes.get_mut(&ino).unwrap();
        inode.nlink += 1;
        let kind = (inode.mode >> 12) as u8;
        self.entries.get_mut(&parent).unwrap().push((name.to_vec(), ino, kind));
    }

    /// Writes directories, the inode table and the roots.
    pub fn finish(&mut self) {
        for (ino, entries) in std::mem::take(&mut self.entries) {
            self.write_directory(ino, &entries);
        }
        let inodes: Vec<(u32, Inode)> = self.inodes.iter().map(|(&ino, &inode)| (ino, inode)).collect();
        for (ino, _) in &inodes {
            if !self.blocks.contains_key(&(ino / 16)) {
                let block = self.allocate(INODE_BLOCK);
                self.hang(ino / 16, block);
                self.blocks.insert(ino / 16, block);
            }
        }
        inodes.iter().for_each(|(ino, inode)| self.write(self.inode_at(*ino), &inode.encode()));
        let blocks = self.blocks.keys().last().unwrap() + 1;
        self.set_roots(self.table.bits(), self.height, blocks as u64);
    }

    /// Puts an inode block into the table. The table grows at its root.
    fn hang(&mut self, number: u32, block: SlotRef) {
        while number as u64 >= TABLE_FANOUT.pow(self.height) {
            let below = self.table;
            self.table = self.allocate(TABLE_NODE);
            self.write(self.table.offset(), &below.bits().to_le_bytes());
            self.height += 1;
        }
        let mut node = self.table;
        for level in (0..self.height).rev() {
            let at = node.offset() + number as u64 / TABLE_FANOUT.pow(level) % TABLE_FANOUT * 8;
            if level == 0 {
                self.write(at, &block.bits().to_le_bytes());
            } else if self.word(at) == 0 {
                node = self.allocate(TABLE_NODE);
                self.write(at, &node.bits().to_le_bytes());
            } else {
                node = SlotRef::from_bits(self.word(at)).unwrap();
            }
        }
    }

    pub fn set_roots(&mut self, inode_root: u64, inode_height: u32, inode_blocks: u64) {
        let roots = Roots {
            inode_root: inode_root.into(),
            inode_height: inode_height.into(),
            generation_floor: 0.into(),
            inode_blocks: inode_blocks.into(),
            inodes: self.count(|inode| inode.mode != 0).into(),
            directories: self.count(Inode::is_dir).into(),
            large_files: self.count(|inode| inode.layout == Layout::Extents).into(),
            withheld_segments: 0.into(),
            withheld_blocks: 0.into(),
            ..Roots::default()
        };
        self.write(ROOTS_AT, roots.as_bytes());
    }

    fn bucket(&self, entries: &[(Vec<u8>, u32, u8)]) -> Vec<u8> {
        let mut bytes = vec![0; dir::BUCKET_HEADER];
        for (name, ino, kind) in entries {
            let hash = dir::name_hash(self.superblock.hash_seed, name);
            Dirent { hash, ino: Ino::new(*ino), kind: *kind, name }.encode(&mut bytes);
        }
        let used = bytes.len();
        bytes[..dir::BUCKET_HEADER].copy_from_slice(&dir::bucket_header(used, entries.len()));
        bytes
    }

    fn write_directory(&mut self, ino: u32, entries: &[(Vec<u8>, u32, u8)]) {
        let mut inode = self.inodes[&ino];
        inode.size = entries.len() as u64;
        let packed = self.bucket(entries);
        if packed.len() <= BUCKET_BYTES && !entries.is_empty() {
            inode.root = self.allocate_with(&packed);
            inode.layout = Layout::DirPacked;
            inode.allocated += inode.root.capacity();
        } else if !entries.is_empty() {
            let node = self.allocate(NODE_BYTES);
            (inode.root, inode.layout) = (node, Layout::DirHashed);
            inode.allocated += NODE_BYTES;
            // Depth 3: eight buckets, and the first range one level deeper.
            for range in 0..8 {
                let here = |hash: u64| dir::node_index(hash, 0) / 32 == range;
                let hash = |e: &(Vec<u8>, u32, u8)| dir::name_hash(self.superblock.hash_seed, &e.0);
                let list: Vec<_> = entries.iter().filter(|e| here(hash(e))).cloned().collect();
                let bytes = self.bucket(&list);
                let bucket = self.allocate(BUCKET_BYTES as u64);
                self.write(bucket.offset(), &bytes);
                inode.allocated += bucket.capacity();
                let bits = NodeRef::Bucket { slot: bucket, depth: 3 }.encode().to_le_bytes();
                (0..32).for_each(|i| self.write(node.offset() + (range as u64 * 32 + i) * 8, &bits));
            }
            assert_eq!(NODE_FANOUT, 8 * 32);
        }
        self.inodes.insert(ino, inode);
    }

    pub fn inode_at(&self, ino: u32) -> Offset {
        self.blocks[&(ino / 16)].offset() + ino as u64 % 16 * INODE_RECORD as u64
    }

    /// Changes only one inode of a finished store.
    pub fn edit(&mut self, ino: u32, change: impl FnOnce(&mut Inode)) {
        let mut inode = self.inodes.get(&ino).copied().unwrap_or(empty_inode(0));
        change(&mut inode);
        self.inodes.insert(ino, inode);
        self.write(self.inode_at(ino), &inode.encode());
    }

    /// Packs the bucket of a DirPacked directory in place. Returns the bytes in use.
    pub fn pack_bucket(&mut self, directory: u32) -> usize {
        let slot = self.inodes[&directory].root;
        let from = slot.offset().get() as usize;
        let bytes = self.bytes[from..from + slot.capacity() as usize].to_vec();
        let bucket = dir::Bucket::new(&bytes).unwrap();
        let mut entries: Vec<_> = bucket.entries().map(|entry| entry.unwrap().1).collect();
        entries.sort_by_key(|entry| entry.name);
        let packed = dir::pack_bucket(&entries);
        self.write(slot.offset(), &packed);
        packed.len()
    }

    /// Changes the first entry of a packed directory.
    pub fn edit_entry(&mut self, directory: u32, change: impl FnOnce(&mut [u8])) {
        let at = self.inodes[&directory].root.offset().get() as usize + dir::BUCKET_HEADER;
        let len = dir::ENTRY_HEADER + self.bytes[at + dir::ENTRY_HEADER - 1] as usize;
        change(&mut self.bytes[at..at + len]);
    }

    /// Appends a record to the log. Returns its position.
    pub fn append(&mut self, kind: RecordKind, payload: &[u8]) -> u64 {
        let lsn = FIRST_LSN + self.log.len() as u64;
        let header = RecordHeader::new(
            kind,
            shoal_format::Lsn::new(lsn),
            self.salt,
            payload.len(),
            self.superblock.sums().of(payload),
        );
        self.salt = header.crc.get();
        self.log.extend_from_slice(header.as_bytes());
        self.log.extend_from_slice(payload);
        self.log.resize(self.log.len().next_multiple_of(8), 0);
        lsn
    }

    pub fn append_entries(&mut self, entries: &[Entry<'_>]) -> u64 {
        let mut payload = Vec::new();
        for entry in entries {
            entry.encode(&mut payload);
        }
        self.append(RecordKind::Tx, &payload)
    }

    fn count(&self, counts: impl Fn(&Inode) -> bool) -> u64 {
        self.inodes.values().filter(|inode| counts(inode)).count() as u64
    }

    /// Puts the store into the state after a clean unmount.
    pub fn set_clean(&mut self) {
        self.set_roots(self.table.bits(), self.height, self.word(ROOTS_AT + 16));
        self.anchor.flags = ANCHOR_CLEAN.into();
    }

    /// Returns the image with anchor and sums.
    pub fn image(&self) -> Vec<u8> {
        self.seal(self.bytes.clone())
    }

    fn seal(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let used = bytes.iter().rposition(|&b| b != 0).unwrap() as u64 + 1;
        let used = used.next_multiple_of(PAGE);
        let mut anchor = self.anchor;
        anchor.used_bytes = used.into();
        bytes[PAGE as usize..PAGE as usize + 128].copy_from_slice(anchor.sealed().as_bytes());
        for page in 0..used / PAGE {
            let at = (page * PAGE) as usize;
            let sum = if page == 1 { 0 } else { self.superblock.sums().of_page(page, &bytes[at..at + PAGE as usize]) };
            bytes.extend_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// Like [`Store::image`], without a copy.
    pub fn into_image(mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.bytes);
        self.seal(bytes)
    }

    pub fn log_device(&self) -> Log {
        Log { start: FIRST_LSN, bytes: self.log.clone() }
    }

    /// Checks the store on the media of its kind.
    pub fn check(&self) -> Report {
        if self.superblock.memory_kind.has_ring() {
            return check_memory(&self.memory());
        }
        check_images([&Image(self.image()), &Image(Vec::new())], &self.log_device())
    }

    /// Checks the store together with bulk devices.
    pub fn check_with(&self, devices: BulkDevices<'_>) -> Report {
        let (image, nothing, log, memory) = (Image(self.image()), Image(Vec::new()), self.log_device(), self.memory());
        let has_ring = self.superblock.memory_kind.has_ring();
        let image = if has_ring { ImageSource::Memory(&memory) } else { ImageSource::Images([&image, &nothing]) };
        let log = (!has_ring).then_some(&log as &dyn LogDevice);
        let devices = Some(devices);
        let source = Source { devices, ..Source::of(image, log) };
        check(source, &mut |_| {}).unwrap()
    }

    /// Returns the region in place, with the log in its ring.
    pub fn memory(&self) -> Memory {
        let mut bytes = self.bytes.clone();
        let mut anchor = self.anchor;
        anchor.used_bytes = self.superblock.region_bytes.into();
        bytes[PAGE as usize + 512..PAGE as usize + 640].copy_from_slice(anchor.sealed().as_bytes());
        for (i, byte) in self.log.iter().enumerate() {
            let within = (anchor.replay_lsn.get() + i as u64) % self.superblock.ring_bytes;
            bytes[(self.superblock.ring + within).get() as usize] = *byte;
        }
        Memory(bytes)
    }
}

pub fn check_images(images: [&Image; 2], log: &Log) -> Report {
    let image = ImageSource::Images([images[0], images[1]]);
    let source = Source { bulk_bytes: Some(BULK_BLOCKS * 65536), ..Source::of(image, Some(log)) };
    check(source, &mut |_| {}).unwrap()
}

pub fn check_memory(memory: &Memory) -> Report {
    let image = ImageSource::Memory(memory);
    let source = Source { power_lost: true, sums: false, ..Source::of(image, None) };
    check(source, &mut |_| {}).unwrap()
}

/// Inode numbers of [`Store::sample`].
pub mod sample {
    pub const DIRECTORY: u32 = 2;
    pub const SMALL: u32 = 3;
    pub const SYMLINK: u32 = 4;
    pub const EMPTY: u32 = 5;
    pub const PIPE: u32 = 6;
    pub const CHUNKED: u32 = 7;
    pub const LARGE: u32 = 8;
    pub const HASHED: u32 = 9;
    pub const FIRST_OF_HASHED: u32 = 100;
}
