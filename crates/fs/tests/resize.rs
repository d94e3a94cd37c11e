//! Another size for a store at rest: contents stay, whatever they are and whenever the work is cut off.
//!
//! Stores with random contents grow and shrink. Every step of a resize is a crash point, and every
//! call of a medium may fail. Each result must be the old or the new store with all contents, sound
//! to the checker, and usable: it takes files, is checkpointed until both images are written
//! (nothing of an image of the other layout may show), shut down and opened again.
//! `SHOAL_SEED=<n>` starts from another seed. `SHOAL_DEEP=1` runs more seeds and leaves no state
//! out.

mod contents;
mod store;

use crate::crash::tree::Tree;
use contents::Contents;
use shoal_format::superblock::MemoryKind;
use shoal_format::{BULK_BLOCK, SEGMENT};
use shoal_fs::{Caller, Error, Fs, Limits, ROOT, Refused};
use shoal_media::PersistentMemory;
use shoal_sim::{Budget, Call, Fault, FaultPlan, Limits as States, Random, is_due};
use store::{Media, Setup};

const KINDS: [MemoryKind; 2] = [MemoryKind::Logged, MemoryKind::Battery];

fn deep() -> bool {
    std::env::var_os("SHOAL_DEEP").is_some()
}

fn seed() -> u64 {
    std::env::var("SHOAL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261)
}

fn read(fs: &Fs) -> Tree {
    Tree::read(fs).unwrap_or_else(|e| panic!("{e}"))
}

/// Packs all inodes and all files, short ones with a dictionary.
fn cool(fs: &Fs) {
    fs.cooling().add_dictionary((0..2000).map(|at| (at % 251) as u8).collect()).unwrap();
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
    while fs.compacting().pack_inodes_step(64).unwrap().more {}
}

fn close(fs: Fs) {
    fs.shutdown().unwrap();
}

/// Checks that the store holds the tree, is sound, and can be used until both images are rewritten.
fn judge(media: &mut Media, expected: &Tree, use_it: bool) -> Result<(), String> {
    media.check()?;
    let foreign = media.image_of_another_layout();
    let (fs, _) = media.try_open()?;
    if foreign.is_some_and(|image| !media.is_blank(image)) {
        return Err("an image of another layout keeps its bytes".into());
    }
    if fs.repair().damaged_inodes() > 0 {
        return Err("damaged inodes".into());
    }
    if Tree::read(&fs)? != *expected {
        return Err("the tree differs".into());
    }
    if use_it {
        for round in 0..3u64 {
            let name = format!("probe {round}");
            let made = match fs.mknod(&Caller::default(), ROOT, name.as_bytes(), 0o100600, 0) {
                // At the least size a packed directory may have no room for another name.
                Err(Error::NoSpace(_)) => continue,
                made => made.map_err(|e| e.to_string())?,
            };
            for part in 0..12 {
                match fs.write(made.ino, part * 30_000, &[round as u8; 30_000]) {
                    Ok(_) | Err(Error::NoSpace(_)) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            fs.checkpoint().map_err(|e| format!("checkpoint: {e}"))?;
        }
    }
    fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    drop(fs);
    media.check().map_err(|e| format!("afterwards: {e}"))?;
    if use_it {
        let (fs, _) = media.try_open().map_err(|e| format!("again: {e}"))?;
        let mut after = Tree::read(&fs)?;
        after.names.retain(|name, _| !name.windows(5).any(|part| part == b"probe"));
        let same = expected.names.iter().all(|(name, ino)| after.names.get(name) == Some(ino))
            && expected.nodes.iter().all(|(ino, node)| *ino == ROOT || after.nodes.get(ino) == Some(node));
        if !same {
            return Err("the tree differs later".into());
        }
    }
    Ok(())
}

/// Raises the limits to the least that a refusal names, until they are accepted. One unit less must
/// be refused.
fn least(media: &mut Media, limits: Limits) -> Limits {
    let mut limits = limits;
    for _ in 0..5 {
        let (least, smaller) = match media.plan(limits) {
            Ok(_) => return limits,
            Err(Refused::Memory { least_bytes, used_bytes }) => {
                assert!(least_bytes > used_bytes && least_bytes > limits.region_bytes);
                let with = |region_bytes| Limits { region_bytes, ..limits };
                (with(least_bytes), with(least_bytes - SEGMENT))
            }
            Err(Refused::Bulk { used_bytes }) => {
                assert!(used_bytes / BULK_BLOCK > limits.bulk_blocks);
                let with = |bulk_blocks| Limits { bulk_blocks, ..limits };
                (with(used_bytes / BULK_BLOCK), with(used_bytes / BULK_BLOCK - 1))
            }
            Err(Refused::Scattered { end_bytes }) => {
                assert!(end_bytes / BULK_BLOCK > limits.bulk_blocks);
                let fs = media.open();
                let before = read(&fs);
                assert!(fs.data().gather_bulk(limits.bulk_blocks, &mut |_| ()).unwrap() > 0);
                assert!(read(&fs) == before, "moved blocks hold what they held");
                close(fs);
                media.check().unwrap();
                assert!(!matches!(media.plan(limits), Err(Refused::Scattered { .. })), "every block finds room");
                continue;
            }
            Err(Refused::Layout(error)) => panic!("{error}"),
        };
        assert!(media.plan(smaller).is_err(), "{smaller:?} is refused, too");
        limits = least;
    }
    panic!("{limits:?} is refused");
}

fn setups() -> [Setup; 3] {
    let setup = |kind, bulk_blocks| Setup { kind, segments: 160, bulk_blocks };
    [setup(MemoryKind::Logged, 300), setup(MemoryKind::Battery, 300), setup(MemoryKind::Logged, 0)]
}

#[test]
fn stores_go_up_and_down_and_keep_what_they_hold() {
    for seed in Budget::of_a_search().within(seed()..seed() + if deep() { 40 } else { 2 }) {
        for setup in setups() {
            println!("seed {seed}, {setup:?}");
            let mut media = Media::format(setup, seed);
            let mut contents = Contents::new(seed, setup.bulk_blocks > 0);
            let mut random = Random::new(seed ^ 1);
            let mut packed = 0;
            for round in 0..6 {
                let fs = media.open();
                contents.change(&fs, 150);
                if round % 2 == 1 {
                    contents.fragment(&fs, 300);
                }
                contents.leave_orphan(&fs);
                if random.below(2) == 0 {
                    fs.compacting().compact().unwrap();
                }
                // The orphan is there when the store is opened for the resize, as after a crash.
                drop(fs);
                let fs = media.open();
                let before = read(&fs);
                if random.below(2) == 0 {
                    cool(&fs);
                    packed += fs.compacting().packed_inodes().unwrap().blocks;
                }
                let highest = before.nodes.values().map(|node| node.attr.generation).max().unwrap();
                close(fs);
                let wanted = Limits {
                    region_bytes: (10 + random.below(600)) * SEGMENT,
                    bulk_blocks: if setup.bulk_blocks > 0 { 1 + random.below(1100) } else { 0 },
                };
                let limits = least(&mut media, wanted);
                let plan = media.plan(limits).unwrap();
                media.carry_out(&plan).unwrap_or_else(|e| panic!("round {round}, {limits:?}: {e}"));
                assert_eq!(media.limits(), limits);
                let outcome = judge(&mut media, &before, false);
                outcome.unwrap_or_else(|e| panic!("round {round}, {limits:?}: {e}"));
                assert!(highest > 0);
            }
            let fs = media.open();
            assert!(packed > 5, "{packed} packed blocks");
            assert!(contents.fill_and_empty(&fs) > 10);
            close(fs);
            media.check().unwrap();
        }
    }
}

/// Makes a store with some of everything, and shuts it down.
fn small_store(kind: MemoryKind, bulk_blocks: u64, seed: u64) -> (Media, Tree) {
    let mut media = Media::format(Setup { kind, segments: 100, bulk_blocks }, seed);
    let mut contents = Contents::new(seed, bulk_blocks > 0);
    let fs = media.open();
    // Data far back in the old layout must not show where the new one grows.
    let name = |number: u32| format!("passing {number}").into_bytes();
    for number in 0..50 {
        let ino = fs.mknod(&Caller::default(), ROOT, &name(number), 0o100600, 0).unwrap().ino;
        fs.write(ino, 0, &[0x77; 30_000]).unwrap();
        fs.forget(ino, 1);
    }
    contents.change(&fs, 30);
    // The two checkpoints write both images.
    fs.checkpoint().unwrap();
    contents.change(&fs, 10);
    (0..50).for_each(|number| fs.unlink(ROOT, &name(number)).unwrap());
    fs.checkpoint().unwrap();
    let tree = read(&fs);
    cool(&fs);
    close(fs);
    (media, tree)
}

fn ways(media: &mut Media) -> [Limits; 3] {
    let old = media.limits();
    let down = least(media, Limits { region_bytes: SEGMENT, bulk_blocks: 1 });
    let up = Limits { region_bytes: 5000 * SEGMENT, bulk_blocks: 1100 };
    [up, down, Limits { bulk_blocks: 1000, ..old }]
}

#[test]
fn a_resize_cut_off_at_any_step_leaves_the_old_or_the_new_store() {
    for kind in KINDS {
        let (mut states, mut old_ones, mut new_ones) = (0u64, 0u64, 0u64);
        for way in 0..3 {
            let (mut media, expected) = small_store(kind, 300, seed());
            let (old, limits) = (media.limits(), ways(&mut media)[way]);
            let plan = media.plan(limits).unwrap();
            media.world.record(true);
            media.world.record_stores(true);
            media.carry_out(&plan).unwrap();
            media.world.record(false);
            let mut points = media.world.points();
            points.push(media.world.snapshot());
            let count = points.len();
            for (index, point) in points.into_iter().enumerate() {
                // Page writes are all alike, so few of them are visited. The steps before and after
                // them all are.
                let edge = index < 4 || index + 8 > count || point.name().contains("sync");
                if !edge && index % if deep() { 23 } else { 311 } != 0 {
                    continue;
                }
                let limits_of_states =
                    if edge { States::few() } else { States { each: 1, samples: 1, ..States::few() } };
                let crashes = point.power_losses(&limits_of_states).chain([point.process_crash()]);
                for (number, state) in crashes.enumerate() {
                    if !is_due((index + number) as u64, 6) {
                        continue;
                    }
                    let mut media = media.over(state.open());
                    let found = media.limits();
                    let place =
                        format!("{kind:?}, way {way}, point {index} of {count} ({}), state {number}", point.name());
                    assert!(found == old || found == limits, "{place}: {found:?}");
                    (old_ones, new_ones) = (old_ones + (found == old) as u64, new_ones + (found == limits) as u64);
                    let use_it = deep() || states.is_multiple_of(5);
                    judge(&mut media, &expected, use_it).unwrap_or_else(|e| panic!("{place}: {e}"));
                    states += 1;
                }
            }
        }
        println!("{kind:?}: {states} states, {old_ones} of them old, {new_ones} new");
        assert!(states > 100 && old_ones > 25 && new_ones > 25);
    }
}

#[test]
fn a_resize_of_which_a_call_fails_leaves_the_old_or_the_new_store() {
    for kind in KINDS {
        let (mut media, expected) = small_store(kind, 300, seed());
        let (old, limits) = (media.limits(), ways(&mut media)[0]);
        let rested = media.world.snapshot();
        let mut failed = 0;
        for call in [Call::ImageWrite, Call::ImageSync] {
            let mut nth = 0;
            loop {
                let media = media.over(rested.process_crash().open());
                let plan = media.plan(limits).unwrap();
                let before = media.world.fault_hits();
                let fault = if nth % 2 == 0 { Fault::Io } else { Fault::NoSpace };
                media.world.fail(FaultPlan { call, nth, for_good: nth % 3 == 0, fault });
                let outcome = media.carry_out(&plan);
                if media.world.fault_hits() == before {
                    outcome.unwrap();
                    break;
                }
                failed += 1;
                media.world.clear_faults();
                let mut media = media.over(media.world.snapshot().process_crash().open());
                let found = media.limits();
                assert!(found == old || found == limits, "{call:?} {nth}: {found:?}");
                judge(&mut media, &expected, nth % 7 == 0).unwrap_or_else(|e| panic!("{kind:?} {call:?} {nth}: {e}"));
                nth += if deep() || nth < 12 || call == Call::ImageSync { 1 } else { 23 };
            }
        }
        println!("{kind:?}: {failed} failing calls");
        assert!(failed > 20);
    }
}

#[test]
fn blocks_given_back_stay_absent_and_their_generations_below_those_of_new_files() {
    let mut media = Media::format(Setup { kind: MemoryKind::Logged, segments: 160, bulk_blocks: 0 }, seed());
    let fs = media.open();
    let name = |number: u32| format!("f{number}").into_bytes();
    let make = |fs: &Fs, number: u32| fs.mknod(&Caller::default(), ROOT, &name(number), 0o100600, 0).unwrap();
    let mut stale = Vec::new();
    for round in 0..3 {
        for number in 0..3000 {
            let attr = make(&fs, number);
            fs.forget(attr.ino, 1);
            stale.push((attr.ino, attr.generation));
        }
        for number in 0..3000 {
            // Files in the middle stay.
            if round < 2 || number / 100 != 15 {
                fs.unlink(ROOT, &name(number)).unwrap();
            }
        }
    }
    fs.compacting().compact().unwrap();
    cool(&fs);
    let before = read(&fs);
    assert!(fs.region().space().free_bytes > 0);
    close(fs);
    for limits in ways(&mut media) {
        let limits = Limits { bulk_blocks: 0, ..limits };
        media.carry_out(&media.plan(limits).unwrap()).unwrap();
        judge(&mut media, &before, false).unwrap();
    }
    let fs = media.open();
    let used: std::collections::HashMap<_, _> =
        stale.into_iter().fold(Default::default(), |mut used, (ino, generation)| {
            let highest: &mut u32 = std::collections::HashMap::entry(&mut used, ino).or_default();
            *highest = generation.max(*highest);
            used
        });
    for number in 10_000..12_000 {
        let attr = make(&fs, number);
        assert!(used.get(&attr.ino).is_none_or(|&last| attr.generation > last), "{}: {}", attr.ino, attr.generation);
    }
}

#[test]
fn inodes_keep_their_form_though_the_table_of_triplets_has_another_one_for_them_now() {
    let mut media = Media::format(Setup { kind: MemoryKind::Logged, segments: 300, bulk_blocks: 0 }, seed());
    let fs = media.open();
    let make = |fs: &Fs, number: u32, uid: u32| {
        let who = Caller { uid, ..Caller::default() };
        fs.mknod(&who, ROOT, format!("f{number}").as_bytes(), 0o100600, 0).unwrap();
    };
    // More owners than the table has room for: the last ones are written verbatim.
    const OWNERS: u32 = 17_000;
    (0..OWNERS).for_each(|number| make(&fs, number, 1000 + number));
    cool(&fs);
    let packed = fs.compacting().packed_inodes().unwrap();
    assert!(packed.inodes > u64::from(OWNERS) - 16, "{packed:?}");
    // Make room in the table, and more files of owners that had none.
    (0..2000).for_each(|number| fs.unlink(ROOT, format!("f{number}").as_bytes()).unwrap());
    (0..500).for_each(|number| make(&fs, OWNERS + number, 1000 + OWNERS - 1 - number));
    cool(&fs);
    let before = read(&fs);
    close(fs);
    for limits in ways(&mut media) {
        media.carry_out(&media.plan(Limits { bulk_blocks: 0, ..limits }).unwrap()).unwrap();
        judge(&mut media, &before, false).unwrap();
    }
}

/// Damage that the caller's check did not see is refused, or costs nothing.
#[test]
fn damage_is_refused_or_costs_nothing() {
    let (mut refused, mut carried) = (0, 0);
    for kind in KINDS {
        let (media, _) = small_store(kind, 300, seed());
        let rested = media.world.snapshot();
        let mut random = Random::new(seed());
        for round in Budget::of_a_search().within(0..if deep() { 4000 } else { 250 }) {
            let mut media = media.over(rested.process_crash().open());
            let (_, flipped) = media.image_memory().unwrap();
            // Half of the damage is where the bytes are dense: in roots and tables.
            let bound = if round % 2 == 0 { flipped.len() } else { 8 << 12 };
            let mut left = 1 + random.below(3);
            while left > 0 {
                let at = 8192 + random.below(bound - 8192) / 8 * 8;
                let word = flipped.read_u64(at);
                if word != 0 {
                    flipped.write_u64(at, word ^ 1 << random.below(64));
                    left -= 1;
                }
            }
            if !is_due(round, 2) {
                continue;
            }
            let superblock = media.superblock();
            let limits = Limits { region_bytes: 3000 * SEGMENT, bulk_blocks: 900 };
            let planned = shoal_fs::Relayout::plan(flipped.as_ref(), &superblock, limits);
            let outcome = match &planned {
                Ok(Ok(plan)) => media.carry_out_from(plan, flipped.as_ref()).map_err(|e| e.to_string()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match outcome {
                // The store is as it was.
                Err(_) => {
                    refused += 1;
                    assert_eq!(media.limits(), Limits { region_bytes: superblock.region_bytes, bulk_blocks: 300 });
                    media.check().unwrap();
                }
                // The check is clean: names, attributes and places are whole. Bytes of files are
                // left to the page checksums.
                Ok(()) => {
                    carried += 1;
                    media.check().unwrap();
                    let fs = media.open();
                    read(&fs);
                }
            }
        }
    }
    println!("{refused} refused, {carried} carried out");
    // A limited search may end before that.
    assert!(Budget::of_a_search().is_limited() || refused > 20 && carried > 20);
}

#[test]
fn blocks_that_move_together_are_whole_after_every_crash() {
    for kind in KINDS {
        let mut media = Media::format(Setup { kind, segments: 160, bulk_blocks: 300 }, seed());
        let fs = media.open();
        let make = |name: &str, blocks: u64, byte: u8| {
            let ino = fs.mknod(&Caller::default(), ROOT, name.as_bytes(), 0o100600, 0).unwrap().ino;
            for block in 0..blocks {
                fs.write(ino, block * BULK_BLOCK, &[byte; BULK_BLOCK as usize]).unwrap();
            }
            fs.forget(ino, 1);
        };
        for number in 0..12u8 {
            make(&format!("keep{number}"), 3 + number as u64 % 5, 1 + number);
            make(&format!("gone{number}"), 4, 200);
        }
        (0..12).for_each(|number| fs.unlink(ROOT, format!("gone{number}").as_bytes()).unwrap());
        close(fs);
        let fs = media.open();
        let before = read(&fs);
        let used = fs.usage().bulk_used / BULK_BLOCK;
        media.world.record(true);
        assert!(fs.data().gather_bulk(used, &mut |_| ()).unwrap() > 10);
        media.world.record(false);
        let points = media.world.points();
        let (count, mut states) = (points.len(), 0);
        for (index, point) in points.into_iter().enumerate() {
            let lost = point.power_losses(&States::few()).map(|state| (state, true));
            for (number, (state, power_lost)) in lost.chain([(point.process_crash(), false)]).enumerate() {
                if !is_due((index + number) as u64, 6) {
                    continue;
                }
                let mut media = media.over(state.open());
                media.power_lost = power_lost;
                let place = format!("{kind:?}, point {index} of {count} ({}), state {number}", point.name());
                judge(&mut media, &before, false).unwrap_or_else(|e| panic!("{place}: {e}"));
                states += 1;
            }
        }
        close(fs);
        println!("{kind:?}: {states} states of {count} points");
        assert!(states > 20);
        let limits = Limits { bulk_blocks: used, ..media.limits() };
        media.carry_out(&media.plan(limits).unwrap()).unwrap();
        judge(&mut media, &before, true).unwrap();
    }
}
