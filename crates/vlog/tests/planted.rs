//! Every rule of the disk, broken in turn, must be noticed (docs/design/testing.md, T7).
//!
//! The workloads of the other tests search for each bug, over growing seeds. The first life that
//! fails catches it. A bug that none of them notices fails this test: either the rule is needless,
//! or the tests are blind.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{BLOCK, Kind, Life, Plan, Tried, damage, enumerate, judge, name_in_time};
use shoal_media::BlockDevice;
use shoal_sim::{Limits, World};
use shoal_vlog::planted::{Bug, plant};

/// Maximum number of lives tried for each bug.
const SEEDS: u64 = 400;
/// Tried first: seeds that caught bugs which few lives show.
const TELLING: [u64; 5] = [13, 133, 273, 176, 321];

/// Alternates crashes and clean ends, then tries a device that changes a block.
fn live(kind: Kind, seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    let mut life = Life::new(kind, device, seed);
    for _ in 0..8 {
        for _ in 0..life.random.below(60) {
            life.step();
        }
        life.compare()?;
        let point = world.snapshot();
        let state = point.power_losses(&Limits::few()).last().unwrap_or_else(|| point.process_crash());
        let after = state.open();
        judge(kind, &after, &life.model, life.model.done)?;
        life.reborn(after.disk(0))?;
        world = after;
    }
    life.disk.close().map_err(|error| error.to_string())?;
    let device = world.disk(0);
    let (disk, _) = kind.open(device.clone()).map_err(|error| error.to_string())?;
    let before = common::read_all(&disk)?;
    // Put wrong bytes into every block. Every read must fail or be right.
    for at in 4..kind.blocks() {
        device.write_from(at * BLOCK as u64, &[0xee; 512]).map_err(|error| error.to_string())?;
    }
    for (n, content) in before.iter().enumerate() {
        let mut block = [0; BLOCK];
        if disk.read_into((n * BLOCK) as u64, &mut block).is_ok() && common::content_of(&block).as_ref() != Ok(content)
        {
            return Err(format!("block {n}: changed by the device, read without an error"));
        }
    }
    Ok(())
}

/// Writes many small unflushed records, of which a power loss keeps some after one that it tears,
/// and then a few records in their place.
fn hide(seed: u64) -> Result<(), String> {
    let kind = Kind::Segments;
    let mut world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    let mut life = Life::new(kind, device, seed);
    for _ in 0..6 {
        for _ in 0..1 + life.random.below(8) {
            life.write_through();
        }
        let point = world.snapshot();
        let states: Vec<_> = point.power_losses(&Limits::few()).collect();
        let pick = life.random.below(states.len() as u64 + 1) as usize;
        let after = states.get(pick).map_or_else(|| point.process_crash(), Clone::clone).open();
        life.reborn(after.disk(0))?;
        world = after;
        let point = world.snapshot();
        judge(kind, &point.process_crash().open(), &life.model, life.model.done)?;
        for _ in 0..life.random.below(4) {
            life.write_through();
        }
        judge(kind, &world.snapshot().process_crash().open(), &life.model, life.model.done)?;
    }
    Ok(())
}

/// Returns the failure of the first failing life of these seeds.
fn search(bug: Option<Bug>, seeds: impl Iterator<Item = u64>) -> Option<String> {
    let mut tried = Tried::default();
    for seed in seeds {
        let kind = if seed % 2 == 0 { Kind::Segments } else { Kind::Anywhere };
        plant(bug);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            live(kind, seed)?;
            (0..8).try_for_each(|n| hide(seed * 8 + n))?;
            if seed % 2 == 0 {
                damage(seed)?;
                name_in_time(Kind::Larger, seed)?;
            }
            let limits = Limits { subset_units: 3, torn: 2, each: 6, samples: 6 };
            let plan = Plan { warm_up: [0, 60, 200, 400][seed as usize % 4], steps: 20, limits, every_second: 31 };
            if seed % 4 < 2 { enumerate(kind, seed, &plan, &mut tried) } else { Ok(()) }
        }));
        plant(None);
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Some(format!("{kind:?}, seed {seed}: {error}")),
            Err(panic) => {
                let message = panic.downcast_ref::<String>().cloned();
                return Some(format!("{kind:?}, seed {seed}: panic: {}", message.unwrap_or_default()));
            }
        }
    }
    None
}

#[test]
fn every_planted_bug_is_caught() {
    // The same lives pass without a bug, so the failures below are due to the bugs.
    assert_eq!(search(None, 0..40), None);
    std::panic::set_hook(Box::new(|_| ()));
    let mut missed = vec![];
    for bug in Bug::chosen() {
        match search(Some(bug), TELLING.into_iter().chain(0..SEEDS)) {
            Some(error) => println!("{bug:?}: {}", error.chars().take(160).collect::<String>()),
            None => missed.push(bug),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
