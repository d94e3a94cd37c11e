//! Crash enumeration of the region, for each kind of memory (docs/design/testing.md, T1 to T4).
//!
//! Seeded runs of transactions, syncs, checkpoints and restarts. The machine stops at every event.
//! Every state the media may be left in is recovered and compared with the model's prefix of
//! transactions, byte for byte, including the allocator's tables. Some states also get: a second
//! recovery, crashes during recovery to depth two, further work and another crash, and an
//! allocation of everything that is left.
//! A failure prints its seed: `SHOAL_SEED=<n> cargo test --release -p shoal-region --test all crash
//! -- --nocapture`.

use std::sync::Arc;

use crate::machine::media::Plant;
use crate::machine::{Plan, explore, limits, seeds};
use shoal_format::superblock::MemoryKind;
use shoal_sim::is_due;

fn enumerate(kind: MemoryKind, stores: bool, first: u64, runs: u64, steps: usize) {
    let start = std::time::Instant::now();
    let mut states = 0;
    let is_chosen = std::env::var_os("SHOAL_SEED").is_some();
    for seed in seeds(first, runs).filter(|seed| is_chosen || is_due(*seed, 2)) {
        let plan = Plan { seed, kind, plant: Plant::None, steps, limits: limits(), stores };
        let outcome = explore(&plan);
        states += outcome.states;
        if let Some(failure) = outcome.failure {
            panic!("{failure}\nagain with SHOAL_SEED={seed}");
        }
    }
    println!("region, {}: {states} states in {:.1} s", kind.name(), start.elapsed().as_secs_f64());
    assert!(states > 400, "only {states} states were visited");
}

#[test]
fn logged_memory_recovers_to_a_prefix_from_every_crash_state() {
    enumerate(MemoryKind::Logged, false, 1000, 5, 120);
}

#[test]
fn dax_memory_recovers_to_a_prefix_from_every_crash_state() {
    enumerate(MemoryKind::Dax, true, 2000, 3, 30);
}

#[test]
fn battery_memory_recovers_to_a_prefix_from_every_crash_state() {
    enumerate(MemoryKind::Battery, true, 3000, 6, 120);
}

#[test]
fn battery_memory_that_was_lost_comes_back_from_its_saved_image() {
    use shoal_media::PersistentMemory;
    use shoal_region::{Parts, Region, View, newest_image};
    use shoal_sim::{SimMemoryKind, World};

    let world = World::new(1);
    let kept = world.add_memory(crate::machine::store::REGION_BYTES, SimMemoryKind::Battery);
    let parts = |memory: Arc<dyn PersistentMemory>, boot: u8| Parts {
        memory,
        log: None,
        images: Some([world.image(0), world.image(1)]),
        boot_id: [boot; 16],
        nonce: [boot; 16],
    };
    world.add_image();
    world.add_image();
    let mut region =
        Region::create(crate::machine::store::geometry(MemoryKind::Battery), parts(kept.clone(), 1)).unwrap();
    let mut places = Vec::new();
    for round in 0..5u8 {
        let mut tx = region.begin();
        let slot = tx.alloc(9000).unwrap();
        tx.write(slot.offset(), &[round + 1; 9000 / 3]).unwrap();
        tx.commit().unwrap();
        places.push(slot);
        region.shutdown().unwrap();
        // In every other round the memory is lost and filled from the image again, as after a long
        // power failure.
        if round % 2 == 0 {
            let images = parts(kept.clone(), 0).images.unwrap();
            let (number, _, anchor) = newest_image(&images).unwrap();
            let mut bytes = vec![0; anchor.used_bytes.get() as usize];
            images[number].read(0, &mut bytes).unwrap();
            kept.zero(0, kept.len());
            kept.write(0, &bytes);
        }
        let (again, recovery) = Region::open(parts(kept.clone(), round + 2), false).unwrap();
        assert!(recovery.clean, "round {round}");
        region = again;
        for (number, slot) in places.iter().enumerate() {
            assert_eq!(region.read_vec(slot.offset(), 3000).unwrap(), [number as u8 + 1; 3000], "round {round}");
        }
    }
}
