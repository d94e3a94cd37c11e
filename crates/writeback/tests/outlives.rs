//! A cache that outlives its process. The process ends at any store into the cache's memory, and
//! the next life finds everything that was answered.
//!
//! Left out: the worlds (`lives`), and the rules that are broken on purpose (`planted`).

mod lives;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use lives::{BLOCK, Memory, OWNER, lives, memory, rewritten};
use parking_lot::Mutex;
use shoal_writeback::{Cache, Lifetime, Owner};

#[test]
fn every_life_finds_what_the_one_before_it_was_told() {
    for cut in 0..20 {
        rewritten(cut).unwrap_or_else(|error| panic!("cut {cut}: {error}"));
    }
    for seed in 0..80 {
        lives(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn a_cache_of_another_store_boot_or_device_is_refused() {
    let memory = memory(vec![0; Cache::memory_bytes(1 << 20) as usize]);
    drop(Cache::create(memory.clone(), 1 << 20, &OWNER, [3; 16], Lifetime::Boot).unwrap());
    let refused = |owner: Owner| Cache::open(memory.clone(), &owner).map(drop).unwrap_err().to_string();
    assert!(refused(Owner { store: [9; 16], ..OWNER }).contains("another store"));
    assert!(refused(Owner { boot_id: [9; 16], ..OWNER }).contains("an earlier boot"));
    assert!(refused(Owner { device_bytes: OWNER.device_bytes - BLOCK, ..OWNER }).contains("a larger device"));
    assert_eq!(Cache::open(memory.clone(), &OWNER).unwrap().identity(), &[3; 16]);
    let bytes = memory.bytes.lock().clone();
    for len in [0, 79, 4096, bytes.len() - 1] {
        let short = Arc::new(Memory { bytes: Mutex::new(bytes[..len].to_vec()), left: AtomicU64::new(0) });
        assert!(Cache::open(short, &OWNER).is_err(), "{len} bytes");
    }
}

#[test]
fn a_long_write_goes_past_a_full_cache_and_never_before_what_it_replaces() {
    lives::past::overwritten().unwrap();
}
