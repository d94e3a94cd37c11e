//! Crash enumeration (docs/design/testing.md, T2 to T4): after every event of a random life, every state the device
//! may be in, and for some of them every event of the recovery.
//!
//! The workload covers the log, the map and the compactor; the judge is in `common`: what was flushed is there, anything else is
//! old or new, never torn, never foreign, and what was found once stays.

mod common;

use common::{BLOCK, Kind, Life, Tried, judge_points};
use shoal_sim::{Limits, World};

/// Visits the states of one life; returns what was tried.
fn visit(kind: Kind, seed: u64, warm_up: u64, steps: u64, tried: &mut Tried) {
    let world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    let mut life = Life::new(kind, device, seed);
    for _ in 0..warm_up {
        life.step();
    }
    world.set_mark(life.model.done);
    world.record(true);
    for _ in 0..steps {
        life.step();
        world.set_mark(life.model.done);
    }
    let mut points = world.points();
    points.push(world.snapshot());
    let limits = Limits { subset_units: 4, torn: 4, each: 10, samples: 12 };
    judge_points(kind, &points, &life.model, &limits, 61, tried)
        .unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
}

fn visit_seeds(kind: Kind, mut seeds: std::ops::Range<u64>) {
    let mut tried = Tried::default();
    if std::env::var_os("SHOAL_DEEP").is_some() {
        seeds.end += 500;
    }
    for seed in seeds {
        // Young disks, and disks whose compactor is at work.
        let warm_up = [0, 40, 160, 400][seed as usize % 4];
        visit(kind, seed, warm_up, 25, &mut tried);
    }
    println!("{kind:?}: {} states, {} after a second crash", tried.states, tried.second);
    assert!(tried.states > 5_000 && tried.second > 500, "too few states");
}

#[test]
fn segments() {
    visit_seeds(Kind::Segments, 0..28);
}

#[test]
fn anywhere() {
    visit_seeds(Kind::Anywhere, 100..128);
}
