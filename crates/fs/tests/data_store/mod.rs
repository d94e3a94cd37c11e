//! An open store for the tests of file data, and a count of a file's pieces that shares no code with the engine.
//!
//! The count walks formats only, so that a wrong `allocated` cannot hide behind the code that maintains it.

pub mod gate;
pub mod prepared;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use shoal_format::extent::{self, EXTENT_NEW, ExtentNode, FileBlock};
use shoal_format::inode::{CHUNK, INODE_HAS_NEW, Inode, Layout};
use shoal_format::object::{ChunkRef, GROUP_CHUNKS, OBJECT_HEAD, Object};
use shoal_format::{BULK_BLOCK, SlotRef};
use shoal_fs::{Caller, Error, FormatOptions, Fs, Ino, Options, ROOT, SetAttr};
use shoal_media::{ImageFile, PersistentMemory};
use shoal_region::View;
use shoal_sim::{SimClock, World, WorldState};

use crate::store::{Boot, Hook, Setup, Watch, format, format_options, format_with, open_with};

pub struct Store {
    pub setup: Setup,
    pub world: World,
    pub fs: Fs,
    pub clock: Arc<SimClock>,
    /// Bytes trimmed since the store was opened.
    pub trimmed: Arc<AtomicU64>,
    boot: Boot,
}

/// Returns options without packing, so that a full store stays full.
fn plain() -> Options {
    Options { commit_age_ms: 0, pack_age: None, ..Options::default() }
}

fn open(setup: Setup, world: World, boot: Boot) -> Store {
    try_open(setup, world, boot, plain(), None).expect("the store opens")
}

fn try_open(setup: Setup, world: World, boot: Boot, options: Options, hook: Option<Hook>) -> Result<Store, Error> {
    let clock = Arc::new(SimClock::new(1_000_000_000));
    let watch = Watch { hook, ..Watch::default() };
    let (fs, _) = open_with(setup, &world, boot, &watch, options, &clock).expect("one image is valid")?;
    Ok(Store { setup, world, fs, clock, trimmed: watch.trimmed, boot })
}

impl Store {
    pub fn new(setup: Setup) -> Store {
        open(setup, format(setup, 1), Boot::first(true))
    }

    /// Makes a store that keeps no checksums of bulk storage.
    pub fn without_sums(setup: Setup) -> Store {
        let options = FormatOptions { sums: false, ..format_options(setup, 1) };
        open(setup, format_with(setup, 1, &options), Boot::first(true))
    }

    /// Makes a store that packs files as soon as it is asked to, and when it is full.
    pub fn packing(setup: Setup) -> Store {
        let options = Options { pack_age: Some(Duration::ZERO), ..plain() };
        try_open(setup, format(setup, 1), Boot::first(true), options, None).expect("the store opens")
    }

    /// Opens the store as `state` left it.
    pub fn reopened(&self, state: &WorldState, power_lost: bool) -> Store {
        open(self.setup, state.open(), self.boot.after(power_lost))
    }

    /// Opens the media of `world` as they are.
    pub fn tried(&self, world: World) -> Result<Store, Error> {
        try_open(self.setup, world, self.boot.after(false), plain(), None)
    }

    /// Opens the store as `state` left it, except that the region's memory is lost and restored
    /// from the newest image.
    pub fn restored(&self, state: &WorldState) -> Store {
        self.restored_as(state, 7)
    }

    /// Like [`Store::restored`], with these random bits in the incarnation.
    pub fn restored_as(&self, state: &WorldState, random: u32) -> Store {
        let world = state.open();
        let images: [Arc<dyn ImageFile>; 2] = [world.image(0), world.image(1)];
        let memory = world.memory(0);
        memory.zero(0, memory.len());
        shoal_region::restore(&images, memory.as_ref(), 0, random, shoal_region::DevicesBeside::Later)
            .expect("restored");
        // The boot may be the same, for example if the memory's file was deleted.
        open(self.setup, world, self.boot.after(false))
    }

    /// Opens the store as a power loss left it, mounted read-only.
    pub fn read_only(&self, state: &WorldState) -> Store {
        try_open(self.setup, state.open(), self.boot.after(true), Options { read_only: true, ..plain() }, None)
            .expect("the store opens")
    }

    pub fn after_process_crash(&self) -> Store {
        self.reopened(&self.world.snapshot().process_crash(), false)
    }

    /// Opens the same store in a new process, whose media call `hook`.
    pub fn hooked(&self, hook: Hook) -> Store {
        let world = self.world.snapshot().process_crash().open();
        try_open(self.setup, world, self.boot.after(false), plain(), Some(hook)).expect("the store opens")
    }

    pub fn create(&self, name: &[u8]) -> Ino {
        self.fs.mknod(&Caller::default(), ROOT, name, 0o644, 0).expect("created").ino
    }

    pub fn truncate(&self, ino: Ino, size: u64) {
        let attr = self.fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("truncated");
        assert_eq!(attr.size, size);
    }

    /// Checks that the inode's count of allocated bytes, its extents' bits and its flags agree with
    /// its pieces.
    pub fn check_allocated(&self, ino: Ino, context: &str) {
        let inode = self.fs.placement(ino).expect("placement").inode;
        let counted = self.count(&inode, context);
        assert_eq!(inode.allocated, counted, "{context}: allocated, {:?}", inode.layout);
    }

    fn count(&self, inode: &Inode, context: &str) -> u64 {
        let region = self.fs.region();
        let may_be_new = inode.layout == Layout::Extents || inode.flags & INODE_HAS_NEW == 0;
        assert!(may_be_new, "{context}: NEW is flagged, {:?}", inode.layout);
        let own = inode.root.capacity() + inode.xattr.capacity();
        match inode.layout {
            Layout::Empty => own,
            Layout::Direct => {
                assert!(inode.size <= CHUNK && inode.root.capacity() <= CHUNK, "{context}: direct, {}", inode.size);
                own
            }
            Layout::Chunked => {
                let entries = region.read_vec(inode.root.offset(), inode.root.capacity() as usize).unwrap();
                let refs = entries.chunks_exact(8).map(|bits| u64::from_le_bytes(bits.try_into().unwrap()));
                let taken = |(chunk, bits): (u64, u64)| match ChunkRef::decode(bits).expect(context) {
                    ChunkRef::Slot(slot) => slot.capacity(),
                    ChunkRef::Packed(head) if chunk % GROUP_CHUNKS == 0 => head.capacity() + self.behind_head(head),
                    ChunkRef::Packed(_) => 0,
                };
                own + (0..).zip(refs).map(taken).sum::<u64>()
            }
            Layout::Packed => own + self.behind_head(inode.root),
            Layout::Extents => {
                let (mut blocks, mut leaf_bytes, mut has_new, mut last_end) = (0, 0, false, FileBlock::ZERO);
                let mut see = |extents: Vec<extent::Extent>, key: FileBlock, next: FileBlock| {
                    for e in extents {
                        assert!(
                            e.file_block >= key.max(last_end) && e.end() <= next,
                            "{context}: {e:?} in {key}..{next}"
                        );
                        last_end = e.end();
                        blocks += e.blocks;
                        has_new |= e.flags & EXTENT_NEW != 0;
                        for block in e.bulk_block.get()..e.bulk_block.get() + e.blocks {
                            let word = region.read_u64(region.superblock().bulk_bitmap + block / 64 * 8).unwrap();
                            assert!(word >> (block % 64) & 1 == 1, "{context}: block {block} is mapped and free");
                        }
                    }
                };
                match self.node(inode.root) {
                    ExtentNode::Extents(extents) => see(extents, FileBlock::ZERO, FileBlock::MAX),
                    ExtentNode::Index(index) => {
                        for (position, &(key, leaf)) in index.iter().enumerate() {
                            let ExtentNode::Extents(extents) = self.node(leaf) else {
                                panic!("{context}: nested index")
                            };
                            assert!(!extents.is_empty(), "{context}: empty leaf");
                            see(extents, key, index.get(position + 1).map_or(FileBlock::MAX, |&(key, _)| key));
                            leaf_bytes += leaf.capacity();
                        }
                    }
                }
                assert!(!has_new || inode.flags & INODE_HAS_NEW != 0, "{context}: NEW without the flag");
                own + leaf_bytes + blocks * BULK_BLOCK
            }
            other => panic!("{context}: a file with layout {other:?}"),
        }
    }

    /// Returns the bytes of a packed object's pieces after the first.
    fn behind_head(&self, head: SlotRef) -> u64 {
        let bytes = self.fs.region().read_vec(head.offset(), head.capacity() as usize).unwrap();
        let object = Object::decode(&bytes[..OBJECT_HEAD].try_into().unwrap()).expect("object");
        if object.spilled {
            return object.spilled_bytes();
        }
        let references = &bytes[OBJECT_HEAD..object.payload_at()];
        let slot = |bits: &[u8]| SlotRef::from_bits(u64::from_le_bytes(bits.try_into().unwrap())).expect("reference");
        references.chunks_exact(8).map(|bits| slot(bits).capacity()).sum()
    }

    fn node(&self, slot: SlotRef) -> ExtentNode {
        let bytes = self.fs.region().read_vec(slot.offset(), slot.capacity() as usize).unwrap();
        extent::decode(&bytes, self.setup.bulk_blocks).expect("extent node")
    }
}
