//! Crash enumeration (docs/design/testing.md, T2 to T4): after every event of a random life, every
//! state the device may be in, and for some of these states every event of the recovery.
//!
//! The workload covers the log, the map and the compactor. The judge in `common` requires that
//! flushed contents are there, that others are old or new, never torn or foreign, and that contents
//! found once stay.

use crate::common::{Kind, Plan, Tried, enumerate};
use shoal_sim::{Budget, Limits, is_due};

fn visit_seeds(kind: Kind, mut seeds: std::ops::Range<u64>) {
    let (mut tried, mut lives) = (Tried::default(), 0);
    if std::env::var_os("SHOAL_DEEP").is_some() {
        seeds.end += 500;
    }
    for seed in Budget::of_a_search().within(seeds.filter(|seed| is_due(*seed / 4, 2))) {
        // Both young disks and disks whose compactor is at work.
        let warm_up = [0, 40, 160, 400][seed as usize % 4];
        let limits = Limits { subset_units: 4, torn: 4, each: 10, samples: 12 };
        let plan = Plan { warm_up, steps: 25, limits, every_second: 61 };
        lives += 1;
        enumerate(kind, seed, &plan, &mut tried).unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
    }
    println!("{kind:?}: {lives} lives, {} states, {} after a second crash", tried.states, tried.second);
    // The bounds are per life, because the number of lives depends on the time available.
    assert!(lives > 0 && tried.states > 180 * lives && tried.second > 18 * lives, "too few states");
}

#[test]
fn segments() {
    visit_seeds(Kind::Segments, 0..28);
}

#[test]
fn segments_of_earlier_versions() {
    visit_seeds(Kind::Earlier, 200..228);
}

#[test]
fn anywhere() {
    visit_seeds(Kind::Anywhere, 100..128);
}
