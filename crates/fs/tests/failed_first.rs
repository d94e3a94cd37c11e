//! A flush that fails, and takes with it what this process or an earlier one wrote.
//!
//! The kernel keeps what a killed daemon wrote to a device, and marks it clean when a flush fails.
//! The next flush succeeds.
//! Owns: what a process after that reads. The failing device is the only one, with or without a
//! write-back cache, or either of two, of which only the second has a mark.
//! Left out: one of several devices behind a cache (`failed_behind_cache`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shoal_check::Finding;
use shoal_format::BULK_BLOCK;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, Leaving, Options};
use shoal_sim::{SimClock, World};

use crate::devices::{BLOCKS, Forgetful, filled, given, new_world, read, setup};
use crate::store::{Boot, Watch, add_cache_memory, behind_cache, parts, report};

const BLOCK: usize = BULK_BLOCK as usize;

/// The store of one trial.
#[derive(Clone, Copy, Debug)]
struct Trial {
    kind: MemoryKind,
    sums: bool,
    /// The first device has a write-back cache.
    cached: bool,
    devices: usize,
}

fn open(trial: Trial, world: &World, boot: Boot, disks: &[Arc<Forgetful>]) -> Result<Fs, Error> {
    let Trial { kind, sums, cached, .. } = trial;
    let clock = Arc::new(SimClock::new(boot.opening as i64 * 3_600_000_000_000));
    let mut parts = parts(setup(kind), world, boot, &Watch::default(), false, &clock).expect("one image is valid");
    let first = disks[0].clone();
    parts.bulk = Some(if cached { behind_cache(world, boot, first, usize::from(kind.has_ring())) } else { first });
    let bulk_devices = disks[1..].iter().map(|disk| given(1, disk.clone())).collect();
    let options = Options {
        commit_age_ms: 0,
        pack_age: None,
        no_atime: true,
        sums: Some(sums),
        bulk_devices,
        ..Options::default()
    };
    Fs::open(parts, options).map(|(fs, _)| fs)
}

/// Lets flushes fail on disk `which`, in the process that wrote or in the next one, and checks what
/// is read.
fn lost(trial: Trial, which: usize, at_once: bool) -> Result<(), String> {
    let context = format!("{trial:?}, disk {which}, at once {at_once}");
    let (world, mut boot) = (new_world(trial.kind), Boot::first(true));
    add_cache_memory(&world);
    let disks: Vec<_> = (0..trial.devices).map(|number| Forgetful::new(world.disk(number))).collect();
    disks.iter().for_each(|disk| disk.survives_process.store(true, Ordering::Relaxed));
    let fs = open(trial, &world, boot, &disks[..1]).expect("the store opens");
    if trial.devices == 2 {
        assert_eq!(fs.devices().add(&given(1, disks[1].clone()), Some(BLOCKS)), Ok(1));
        assert_eq!(fs.devices().leave(1 - which as u32), Ok(Leaving::Now));
    }
    let durable = filled(&fs, b"durable", 1, 2);
    let rewritten = filled(&fs, b"rewritten", 3, 2);
    assert_eq!(fs.sync(), Ok(()));
    assert_eq!(fs.write(rewritten, 0, &[4; BLOCK]), Ok(BLOCK));
    let new = filled(&fs, b"new", 2, 2);
    let next = |world: &World, boot: &mut Boot| {
        *boot = boot.after(false);
        world.snapshot().process_crash().open()
    };

    let mut world = world;
    if !at_once {
        world = next(&world, &mut boot);
    }
    let judged = |fs: &Fs, when: &str| {
        match read(fs, rewritten, 0, BLOCK) {
            Ok(found) if found == vec![3; BLOCK] || found == vec![4; BLOCK] => {}
            Err(Error::Io(_)) => {}
            other => {
                return Err(format!("{context}, {when}: rewritten, found {:?}", other.map(|found| found[0])));
            }
        }
        match read(fs, new, 0, 2 * BLOCK) {
            Ok(found) if found == vec![0; 2 * BLOCK] => Ok(()),
            // A cache still holds it.
            Ok(found) if trial.cached && found == vec![2; 2 * BLOCK] => Ok(()),
            Err(Error::Io(_)) => Ok(()),
            other => Err(format!("{context}, {when}: found {:?}", other.map(|found| found[0]))),
        }
    };
    disks[which].fails.store(true, Ordering::Relaxed);
    match if at_once { Ok(fs) } else { open(trial, &world, boot, &disks) } {
        Ok(fs) => {
            assert!(fs.fsync(new).is_err(), "{context}: the flush failed");
            judged(&fs, "in this process")?;
        }
        Err(error) => assert!(matches!(error, Error::Io(_)), "{context}: {error}"),
    }
    disks[which].fails.store(false, Ordering::Relaxed);

    let world = next(&world, &mut boot);
    if trial.devices == 1 && !trial.cached {
        let report = report(setup(trial.kind), &world, false)?;
        let is_told = |finding: &Finding| finding.sentence.contains("a flush of the bulk storage failed");
        assert!(report.notes.iter().any(is_told), "{context}: {:?}", report.notes);
    }
    let fs = open(trial, &world, boot, &disks).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(read(&fs, durable, 0, 2 * BLOCK) == Ok(vec![1; 2 * BLOCK]), "{context}: what was flushed");
    judged(&fs, "in the next process")
}

#[test]
fn what_a_failed_flush_loses_is_not_data_in_a_later_process() {
    let mut wrong = Vec::new();
    for (kind, sums) in [(MemoryKind::Logged, true), (MemoryKind::Logged, false), (MemoryKind::Battery, true)] {
        for (devices, which, cached) in [(1, 0, false), (1, 0, true), (2, 0, false), (2, 1, false)] {
            let trial = Trial { kind, sums, cached, devices };
            wrong.extend([true, false].into_iter().filter_map(|at_once| lost(trial, which, at_once).err()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
