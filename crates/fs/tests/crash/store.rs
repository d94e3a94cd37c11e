//! A store on simulated media: formatting, opening, checking.
//!
//! Rules: everything is a function of the world's seed and of [`Boot`]; a power loss changes the boot's number, every
//! opening its count. The bulk device begins full of [`FOREIGN`] bytes, and trims either zero a range or leave it as it
//! was, as the contract allows: whoever reads a block nobody wrote sees bytes that no file ever held, or another file's.
//! Left out: what is done with a store (`operation`) and what it must hold (`tree`).

use std::sync::Arc;

use shoal_check::{ImageSource, Report, Source};
use shoal_format::BULK_BLOCK;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{FormatOptions, Fs, Options, Parts};
use shoal_media::{BlockDevice, BlockGeometry, Completion, ImageFile, PersistentMemory, Request};
use shoal_region::Recovery;
use shoal_sim::{Random, SimClock, SimDisk, SimMemory, SimMemoryKind, World, WorldState};

/// What the bulk device holds before anybody writes.
pub const FOREIGN: u8 = 0xaa;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub kind: MemoryKind,
    pub region_bytes: u64,
    pub ring_bytes: u64,
    /// 0: no bulk device.
    pub bulk_blocks: u64,
    /// Bytes.
    pub threshold: u64,
}

impl Setup {
    /// Both tiers, each small enough to be copied and compared a hundred thousand times.
    pub fn two_tiers(kind: MemoryKind) -> Setup {
        Setup { kind, region_bytes: 56 << 16, ring_bytes: 256 << 10, bulk_blocks: 48, threshold: 80 << 10 }
    }

    /// Both tiers, with so few bulk blocks that what one file gives up is soon another's.
    pub fn tight(kind: MemoryKind) -> Setup {
        Setup { bulk_blocks: 9, ..Setup::two_tiers(kind) }
    }

    /// Both tiers, for `layouts`.
    pub fn layouts(kind: MemoryKind) -> Setup {
        Setup { kind, region_bytes: 90 << 16, ring_bytes: 512 << 10, bulk_blocks: 24, threshold: 40_000 }
    }

    /// The region alone, for files so long that operations on them take several transactions there.
    pub fn region_only(kind: MemoryKind) -> Setup {
        Setup { kind, region_bytes: 80 << 16, ring_bytes: 768 << 10, bulk_blocks: 0, threshold: 1 << 20 }
    }
}

/// Which boot of the machine, and which opening of the store over all boots.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    pub boot: u8,
    pub opening: u64,
    /// Trims leave the blocks' bytes as they were.
    pub keeps_trimmed: bool,
}

impl Boot {
    pub fn first(keeps_trimmed: bool) -> Boot {
        Boot { boot: 1, opening: 1, keeps_trimmed }
    }

    pub fn after(self, power: bool) -> Boot {
        Boot { boot: self.boot + power as u8, opening: self.opening + 1, ..self }
    }
}

struct Bulk {
    disk: Arc<SimDisk>,
    keeps_trimmed: bool,
}

impl BlockDevice for Bulk {
    fn geometry(&self) -> BlockGeometry {
        self.disk.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        match request {
            Request::Trim { .. } if self.keeps_trimmed => done(Ok(Vec::new())),
            other => self.disk.submit(other, done),
        }
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.disk.read_into(at, out)
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        self.disk.write_from(at, bytes)
    }
}

pub struct Store {
    pub setup: Setup,
    pub world: World,
    pub fs: Fs,
    pub recovery: Recovery,
    pub clock: Arc<SimClock>,
    pub boot: Boot,
}

fn images(world: &World) -> [Arc<dyn ImageFile>; 2] {
    [world.image(0), world.image(1)]
}

fn parts(setup: Setup, world: &World, boot: Boot, fresh: bool, clock: &Arc<SimClock>) -> Result<Parts, String> {
    let mut nonce = [0; 16];
    Random::new(boot.opening << 8 | boot.boot as u64).fill(&mut nonce);
    let boot_id = [boot.boot; 16];
    let region = if setup.kind.has_ring() {
        shoal_region::Parts { memory: world.memory(0), log: None, images: None, boot_id, nonce }
    } else {
        let images = images(world);
        let attached = match fresh {
            true => None,
            false => {
                let (newest, _, anchor) = shoal_region::newest_image(&images).map_err(|e| format!("images: {e}"))?;
                Some((world.image(newest), anchor.used_bytes.get().next_multiple_of(4096)))
            }
        };
        let memory: Arc<dyn PersistentMemory> = SimMemory::volatile(setup.region_bytes, attached);
        shoal_region::Parts { memory, log: Some(world.log(0)), images: Some(images), boot_id, nonce }
    };
    let bulk = || Arc::new(Bulk { disk: world.disk(0), keeps_trimmed: boot.keeps_trimmed }) as Arc<dyn BlockDevice>;
    Ok(Parts { region, bulk: (setup.bulk_blocks > 0).then(bulk), clock: clock.clone() })
}

/// A new, empty store at rest.
pub fn format(setup: Setup, seed: u64) -> WorldState {
    let world = World::new(seed);
    match setup.kind {
        MemoryKind::Logged => {
            world.add_log();
            world.add_image();
            world.add_image();
        }
        MemoryKind::Battery => drop(world.add_memory(setup.region_bytes, SimMemoryKind::Battery)),
        MemoryKind::Dax => drop(world.add_memory(setup.region_bytes, SimMemoryKind::Dax)),
    }
    if setup.bulk_blocks > 0 {
        world.add_used_disk(setup.bulk_blocks * BULK_BLOCK, FOREIGN);
    }
    let geometry = Geometry {
        memory_kind: setup.kind,
        uuid: [5; 16],
        region_bytes: setup.region_bytes,
        bulk_blocks: setup.bulk_blocks,
        ring_bytes: setup.ring_bytes,
        threshold: setup.threshold,
        hash_seed: 1,
        created_ns: 0,
    };
    let boot = Boot { boot: 1, opening: 0, keeps_trimmed: true };
    let parts = parts(setup, &world, boot, true, &Arc::new(SimClock::new(1))).expect("media of a new store");
    let options = FormatOptions { geometry, root_mode: 0o755, root_uid: 0, root_gid: 0 };
    Fs::format(parts, &options).expect("the store is formatted");
    world.snapshot().process_crash()
}

/// Opens what is in `world`. The clock begins `boot.opening` hours after its epoch: recovery must not change times.
pub fn open(setup: Setup, world: World, boot: Boot) -> Result<Store, String> {
    let (fs, recovery, clock) = try_open(setup, &world, boot)?.map_err(|e| format!("opening: {e}"))?;
    Ok(Store { setup, world, fs, recovery, clock, boot })
}

/// As [`open`], with the engine's own error.
pub fn try_open(setup: Setup, world: &World, boot: Boot) -> Result<Result<Opened, shoal_fs::Error>, String> {
    let clock = Arc::new(SimClock::new(boot.opening as i64 * 3_600_000_000_000));
    let parts = parts(setup, world, boot, false, &clock)?;
    // Reading a tree must not change it.
    let options = Options { no_atime: true, ..Options::default() };
    Ok(Fs::open(parts, options).map(|(fs, recovery)| (fs, recovery, clock)))
}

pub type Opened = (Fs, Recovery, Arc<SimClock>);

/// The offline checker's report on a store at rest.
pub fn report(setup: Setup, world: &World, power_lost: bool) -> Result<Report, String> {
    let bulk_bytes = (setup.bulk_blocks > 0).then_some(setup.bulk_blocks * BULK_BLOCK);
    let outcome = if setup.kind.has_ring() {
        let memory = world.memory(0);
        let source = Source { image: ImageSource::Memory(&*memory), log: None, bulk_bytes, power_lost, sums: true };
        shoal_check::check(source, &mut |_| ())
    } else {
        let (images, log) = ([world.image(0), world.image(1)], world.log(0));
        let image = ImageSource::Images([&*images[0], &*images[1]]);
        let source = Source { image, log: Some(&*log), bulk_bytes, power_lost, sums: true };
        shoal_check::check(source, &mut |_| ())
    };
    outcome.map_err(|e| format!("check: {e}"))
}

/// The checker finds nothing wrong.
pub fn check(setup: Setup, world: &World, power_lost: bool) -> Result<Report, String> {
    let report = report(setup, world, power_lost)?;
    match report.errors.first() {
        None => Ok(report),
        Some(first) => Err(format!("check finds {} errors, first: {first}", report.errors.len())),
    }
}
