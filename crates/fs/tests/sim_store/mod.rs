//! A store on simulated media, for the model test and the crash enumeration.
//!
//! Rules: everything a crash may lose is in the world; the bulk device is filled with [`FOREIGN`] bytes before it is
//! first used and keeps the bytes of trimmed blocks, so that a block read before it was written shows.
//! A machine that lost power comes back with another boot id.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Arc;

use shoal_check::{ImageSource, Report, Source};
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_format::{BULK_BLOCK, SEGMENT};
use shoal_fs::{Caller, FormatOptions, Fs, Options, Parts};
use shoal_media::{BlockDevice, BlockGeometry, Completion, ImageFile, PersistentMemory, Request};
use shoal_region::Recovery;
use shoal_sim::{SimClock, SimDisk, SimMemory, SimMemoryKind, World};

/// What the bulk device holds where nobody wrote.
pub const FOREIGN: u8 = 0xaa;

pub const CALLER: Caller = Caller { uid: 7, gid: 8, umask: 0o022, hold: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub kind: MemoryKind,
    pub region_segments: u64,
    pub ring_bytes: u64,
    /// 0: no bulk device.
    pub bulk_blocks: u64,
    pub threshold: u64,
}

/// A disk that keeps the bytes of trimmed blocks, as its contract allows.
struct KeepsTrimmed(Arc<SimDisk>);

impl BlockDevice for KeepsTrimmed {
    fn geometry(&self) -> BlockGeometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        match request {
            Request::Trim { .. } => done(Ok(Vec::new())),
            other => self.0.submit(other, done),
        }
    }
}

fn parts(setup: &Setup, world: &World, boot: u8, opening: u32, fresh: bool) -> Result<shoal_region::Parts, String> {
    let mut nonce = [boot; 16];
    nonce[..4].copy_from_slice(&opening.to_le_bytes());
    let boot_id = [boot; 16];
    if setup.kind.has_ring() {
        return Ok(shoal_region::Parts { memory: world.memory(0), log: None, images: None, boot_id, nonce });
    }
    let images = [world.image(0), world.image(1)];
    let files: [Arc<dyn ImageFile>; 2] = [images[0].clone(), images[1].clone()];
    let region_bytes = setup.region_segments * SEGMENT;
    let memory: Arc<dyn PersistentMemory> = if fresh {
        SimMemory::volatile(region_bytes, None)
    } else {
        let (index, _, anchor) = shoal_region::newest_image(&files).map_err(|e| format!("choosing an image: {e}"))?;
        SimMemory::volatile(region_bytes, Some((images[index].clone(), anchor.used_bytes.get())))
    };
    Ok(shoal_region::Parts { memory, log: Some(world.log(0)), images: Some(files), boot_id, nonce })
}

fn bulk(setup: &Setup, world: &World) -> Option<Arc<dyn BlockDevice>> {
    (setup.bulk_blocks > 0).then(|| Arc::new(KeepsTrimmed(world.disk(0))) as Arc<dyn BlockDevice>)
}

/// Adds the media of a store to a new world and formats them.
pub fn format(setup: &Setup, seed: u64) -> World {
    let world = World::new(seed);
    let region_bytes = setup.region_segments * SEGMENT;
    match setup.kind {
        MemoryKind::Battery => drop(world.add_memory(region_bytes, SimMemoryKind::Battery)),
        MemoryKind::Dax => drop(world.add_memory(region_bytes, SimMemoryKind::Dax)),
        MemoryKind::Logged => {
            world.add_log();
            world.add_image();
            world.add_image();
        }
    }
    if setup.bulk_blocks > 0 {
        world.add_used_disk(setup.bulk_blocks * BULK_BLOCK, FOREIGN);
    }
    let geometry = Geometry {
        memory_kind: setup.kind,
        uuid: [5; 16],
        region_bytes,
        bulk_blocks: setup.bulk_blocks,
        ring_bytes: setup.ring_bytes,
        threshold: setup.threshold,
        hash_seed: seed,
        created_ns: 0,
    };
    let parts = Parts {
        region: parts(setup, &world, 1, 0, true).expect("fresh media need no image"),
        bulk: bulk(setup, &world),
        clock: Arc::new(SimClock::new(1)),
    };
    let options = FormatOptions { geometry, root_mode: 0o755, root_uid: 0, root_gid: 0 };
    Fs::format(parts, &options).expect("the store is formatted");
    world
}

/// Opens the store in `world`.
pub fn open(
    setup: &Setup,
    world: &World,
    boot: u8,
    opening: u32,
    clock: &Arc<SimClock>,
) -> Result<(Fs, Recovery), String> {
    let region = parts(setup, world, boot, opening, false)?;
    let parts = Parts { region, bulk: bulk(setup, world), clock: clock.clone() };
    // Access times would turn reads into writes, and the oracle only reads.
    let options = Options { no_atime: true, ..Options::default() };
    Fs::open(parts, options).map_err(|e| format!("opening: {e}"))
}

/// Runs the checker over the media as they are.
pub fn check(setup: &Setup, world: &World, power_lost: bool) -> Result<Report, String> {
    let bulk_bytes = (setup.bulk_blocks > 0).then_some(setup.bulk_blocks * BULK_BLOCK);
    let report = if setup.kind.has_ring() {
        let memory = world.memory(0);
        let image = ImageSource::Memory(&*memory);
        shoal_check::check(Source { image, log: None, bulk_bytes, power_lost, sums: false }, &mut |_| {})
    } else {
        let (images, log) = ([world.image(0), world.image(1)], world.log(0));
        let image = ImageSource::Images([&*images[0], &*images[1]]);
        shoal_check::check(Source { image, log: Some(&*log), bulk_bytes, power_lost, sums: true }, &mut |_| {})
    };
    let report = report.map_err(|e| format!("the checker cannot read: {e}"))?;
    match report.errors.first() {
        None => Ok(report),
        Some(first) => Err(format!("the checker finds {} errors: {:?}: {first}", report.errors.len(), first.kind)),
    }
}
