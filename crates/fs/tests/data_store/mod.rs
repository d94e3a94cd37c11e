//! A store on simulated media for the tests of file data, and a count of a file's pieces that shares no code with the
//! engine.
//!
//! The count walks formats only, so that a wrong `allocated` cannot hide behind the code that maintains it.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_format::extent::{self, EXTENT_NEW, ExtentNode};
use shoal_format::inode::{CHUNK, INODE_HAS_NEW, Inode, Layout};
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_format::{BULK_BLOCK, SlotRef};
use shoal_fs::{Caller, Error, FormatOptions, Fs, Ino, Options, Parts, ROOT, SetAttr};
use shoal_media::{BlockDevice, BlockGeometry, Completion, ImageFile, LogDevice, PersistentMemory, Request};
use shoal_region::View;
use shoal_sim::{SimClock, SimDisk, SimLog, SimMemory, SimMemoryKind, World, WorldState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Region memory survives a power loss; the log is durable at once.
    Battery,
    /// As `Battery`, and the region is saved in images, from which [`Store::restored`] brings it back.
    Saved,
    /// Region memory is lost; the log is durable when synced.
    Logged,
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub kind: Kind,
    pub region_bytes: u64,
    /// 0: no bulk device.
    pub bulk_blocks: u64,
    pub threshold: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { kind: Kind::Battery, region_bytes: 32 << 20, bulk_blocks: 256, threshold: 1 << 20 }
    }
}

/// A disk that keeps the bytes of trimmed blocks, as the contract allows: whoever reads a block that was never written
/// since sees the bytes of another file.
struct KeepsTrimmed {
    disk: Arc<SimDisk>,
    trimmed: Arc<AtomicU64>,
    hook: Option<Hook>,
}

/// A call of a medium that is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    LogAppend,
    LogSync,
    Flush,
}

/// Called in the middle of operations, so that a test can do something there, or let them wait.
pub type Hook = Arc<dyn Fn(Moment) + Send + Sync>;

/// A log that calls the hook.
struct HookedLog {
    log: Arc<SimLog>,
    hook: Hook,
}

impl LogDevice for HookedLog {
    fn append(&self, position: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        (self.hook)(Moment::LogAppend);
        self.log.append(position, bytes)
    }

    fn sync(&self) -> shoal_media::Result<()> {
        (self.hook)(Moment::LogSync);
        self.log.sync()
    }

    fn read(&self, position: u64, out: &mut [u8]) -> shoal_media::Result<usize> {
        self.log.read(position, out)
    }

    fn release(&self, position: u64) -> shoal_media::Result<()> {
        self.log.release(position)
    }
}

impl BlockDevice for KeepsTrimmed {
    fn geometry(&self) -> BlockGeometry {
        self.disk.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        match request {
            Request::Trim { len, .. } => {
                self.trimmed.fetch_add(len, Ordering::Relaxed);
                done(Ok(Vec::new()))
            }
            Request::Flush => {
                if let Some(hook) = &self.hook {
                    hook(Moment::Flush);
                }
                self.disk.submit(Request::Flush, done);
            }
            other => self.disk.submit(other, done),
        }
    }
}

fn bulk(setup: Setup, world: &World, trimmed: &Arc<AtomicU64>, hook: Option<&Hook>) -> Option<Arc<dyn BlockDevice>> {
    let device = || Arc::new(KeepsTrimmed { disk: world.disk(0), trimmed: trimmed.clone(), hook: hook.cloned() });
    (setup.bulk_blocks > 0).then(|| device() as Arc<dyn BlockDevice>)
}

pub struct Store {
    pub setup: Setup,
    pub world: World,
    pub fs: Fs,
    pub clock: Arc<SimClock>,
    /// Bytes trimmed since the store was opened.
    pub trimmed: Arc<AtomicU64>,
    boot: u8,
}

fn parts(setup: Setup, world: &World, boot: u8, fresh: bool) -> shoal_region::Parts {
    let (boot_id, nonce) = ([boot; 16], [boot.wrapping_mul(7); 16]);
    if setup.kind == Kind::Battery {
        return shoal_region::Parts { memory: world.memory(0), log: None, images: None, boot_id, nonce };
    }
    let images = [world.image(0), world.image(1)];
    let files: [Arc<dyn ImageFile>; 2] = [images[0].clone(), images[1].clone()];
    if setup.kind == Kind::Saved {
        return shoal_region::Parts { memory: world.memory(0), log: None, images: Some(files), boot_id, nonce };
    }
    let memory: Arc<dyn PersistentMemory> = if fresh {
        SimMemory::volatile(setup.region_bytes, None)
    } else {
        let (index, _, anchor) = shoal_region::newest_image(&files).expect("one image is valid");
        let used = anchor.used_bytes.get().next_multiple_of(4096);
        SimMemory::volatile(setup.region_bytes, Some((images[index].clone(), used)))
    };
    shoal_region::Parts { memory, log: Some(world.log(0)), images: Some(files), boot_id, nonce }
}

fn open(setup: Setup, world: World, boot: u8, read_only: bool) -> Store {
    try_open(setup, world, boot, read_only).expect("the store opens")
}

fn try_open(setup: Setup, world: World, boot: u8, read_only: bool) -> Result<Store, Error> {
    try_open_hooked(setup, world, boot, read_only, None)
}

fn open_hooked(setup: Setup, world: World, boot: u8, read_only: bool, hook: Option<Hook>) -> Store {
    try_open_hooked(setup, world, boot, read_only, hook).expect("the store opens")
}

fn try_open_hooked(setup: Setup, world: World, boot: u8, read_only: bool, hook: Option<Hook>) -> Result<Store, Error> {
    let clock = Arc::new(SimClock::new(1_000_000_000));
    let mut region = parts(setup, &world, boot, false);
    if let (Some(log), Some(hook)) = (&mut region.log, &hook) {
        *log = Arc::new(HookedLog { log: world.log(0), hook: hook.clone() });
    }
    let trimmed = Arc::default();
    let parts = Parts { region, bulk: bulk(setup, &world, &trimmed, hook.as_ref()), clock: clock.clone() };
    let (fs, _) = Fs::open(parts, Options { commit_age_ms: 0, read_only, ..Options::default() })?;
    Ok(Store { setup, world, fs, clock, trimmed, boot })
}

impl Store {
    pub fn new(setup: Setup) -> Store {
        let world = World::new(1);
        match setup.kind {
            Kind::Battery | Kind::Saved => drop(world.add_memory(setup.region_bytes, SimMemoryKind::Battery)),
            Kind::Logged => drop(world.add_log()),
        }
        if setup.kind != Kind::Battery {
            world.add_image();
            world.add_image();
        }
        if setup.bulk_blocks > 0 {
            world.add_disk(setup.bulk_blocks * BULK_BLOCK);
        }
        let geometry = Geometry {
            memory_kind: if setup.kind == Kind::Logged { MemoryKind::Logged } else { MemoryKind::Battery },
            uuid: [5; 16],
            region_bytes: setup.region_bytes,
            bulk_blocks: setup.bulk_blocks,
            ring_bytes: 4 << 20,
            threshold: setup.threshold,
            hash_seed: 1,
            created_ns: 0,
        };
        let region = parts(setup, &world, 1, true);
        let bulk = bulk(setup, &world, &Arc::default(), None);
        let format = Parts { region, bulk, clock: Arc::new(SimClock::new(1)) };
        let options = FormatOptions { geometry, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        Fs::format(format, &options).expect("the store is formatted");
        open(setup, world, 2, false)
    }

    /// The store as `state` left it.
    pub fn reopened(&self, state: &WorldState, power_lost: bool) -> Store {
        open(self.setup, state.open(), self.boot + power_lost as u8, false)
    }

    /// The media of `world`, opened as they are.
    pub fn tried(&self, world: World) -> Result<Store, Error> {
        try_open(self.setup, world, self.boot, false)
    }

    /// The store as `state` left it, but for the region's memory, which is lost: it comes from the newest image.
    pub fn restored(&self, state: &WorldState) -> Store {
        self.restored_as(state, 7)
    }

    /// The same, with these random bits in the incarnation.
    pub fn restored_as(&self, state: &WorldState, random: u32) -> Store {
        let world = state.open();
        let images: [Arc<dyn ImageFile>; 2] = [world.image(0), world.image(1)];
        let memory = world.memory(0);
        memory.zero(0, memory.len());
        shoal_region::restore(&images, memory.as_ref(), 0, random).expect("restored");
        // The boot may be the same: the memory's file was deleted, say.
        open(self.setup, world, self.boot, false)
    }

    /// The store as a power loss left it, mounted without the right to change it.
    pub fn read_only(&self, state: &WorldState) -> Store {
        open(self.setup, state.open(), self.boot + 1, true)
    }

    pub fn after_process_crash(&self) -> Store {
        self.reopened(&self.world.snapshot().process_crash(), false)
    }

    /// The same store in a new process, whose media call `hook`.
    pub fn hooked(&self, hook: Hook) -> Store {
        open_hooked(self.setup, self.world.snapshot().process_crash().open(), self.boot, false, Some(hook))
    }

    pub fn create(&self, name: &[u8]) -> Ino {
        self.fs.mknod(&Caller::default(), ROOT, name, 0o644, 0).expect("created").ino
    }

    pub fn truncate(&self, ino: Ino, size: u64) {
        let attr = self.fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("truncated");
        assert_eq!(attr.size, size);
    }

    /// The inode's count of allocated bytes, its extents' bits and its flags agree with its pieces.
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
                let slots = entries.chunks_exact(8).map(|bits| u64::from_le_bytes(bits.try_into().unwrap()));
                own + slots.map(|bits| SlotRef::from_bits(bits).expect(context).capacity()).sum::<u64>()
            }
            Layout::Extents => {
                let (mut blocks, mut leaf_bytes, mut has_new, mut last_end) = (0, 0, false, 0);
                let mut see = |extents: Vec<extent::Extent>, key: u64, next: u64| {
                    for e in extents {
                        assert!(
                            e.file_block >= key.max(last_end) && e.end() <= next,
                            "{context}: {e:?} in {key}..{next}"
                        );
                        last_end = e.end();
                        blocks += e.blocks;
                        has_new |= e.flags & EXTENT_NEW != 0;
                        for block in e.bulk_block..e.bulk_block + e.blocks {
                            let word = region.read_u64(region.superblock().bulk_bitmap + block / 64 * 8).unwrap();
                            assert!(word >> (block % 64) & 1 == 1, "{context}: block {block} is mapped and free");
                        }
                    }
                };
                match self.node(inode.root) {
                    ExtentNode::Extents(extents) => see(extents, 0, u64::MAX),
                    ExtentNode::Index(index) => {
                        for (position, &(key, leaf)) in index.iter().enumerate() {
                            let ExtentNode::Extents(extents) = self.node(leaf) else {
                                panic!("{context}: nested index")
                            };
                            assert!(!extents.is_empty(), "{context}: empty leaf");
                            see(extents, key, index.get(position + 1).map_or(u64::MAX, |&(key, _)| key));
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

    fn node(&self, slot: SlotRef) -> ExtentNode {
        let bytes = self.fs.region().read_vec(slot.offset(), slot.capacity() as usize).unwrap();
        extent::decode(&bytes, self.setup.bulk_blocks).expect("extent node")
    }
}
