//! Compares the disk with a plain array under random requests, clean ends and process crashes. Also
//! full disks and threads.
//!
//! The harness in `common` cannot show these: the disk stays usable when every block is written,
//! concurrent requests do not disturb each other, and a damaged device is noticed.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{BLOCK, Kind, Life, ask};
use shoal_media::block::before_this_thread_waits;
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, WriteCache};
use shoal_sim::{Call, Fault, FaultPlan, Random, SimClock, World, is_due};
use shoal_vlog::{FormatOptions, Placement, SPARE_PERCENT_MIN, VirtualLog, VlogError};

fn life(kind: Kind, seed: u64) -> (World, Life) {
    let world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    (world, Life::new(kind, device, seed))
}

#[test]
fn random_requests_agree_with_an_array() {
    for seed in 0..300 {
        let kind = Kind::of(seed);
        let (_world, mut life) = life(kind, seed);
        for step in 0..150 {
            life.step();
            if step % 10 == 0 {
                life.compare().unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
            }
        }
        life.compare().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let status = life.disk.status();
        assert!(status.map_bytes <= 8 * status.logical_bytes / BLOCK as u64);
    }
}

#[test]
fn room_is_found_in_long_lives_too() {
    // Seeds that once lost blocks held by the compactor, and a few others.
    for seed in [91, 92, 255, 386].into_iter().chain((2000..2030).filter(|seed| is_due(*seed, 2))) {
        for kind in [Kind::Segments, Kind::Anywhere] {
            let (_world, mut life) = life(kind, seed);
            (0..4000).for_each(|_| life.step());
            life.compare().unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
        }
    }
}

#[test]
fn crashes_follow_each_other() {
    for seed in 1000..1120 {
        let kind = Kind::of(seed);
        let (mut world, mut life) = life(kind, seed);
        for round in 0..12 {
            for _ in 0..life.random.below(60) {
                life.step();
            }
            // The process dies, sometimes together with the machine.
            let point = world.snapshot();
            let state = match life.random.below(2) {
                0 => point.process_crash(),
                _ => {
                    let states: Vec<_> = point.power_losses(&shoal_sim::Limits::few()).collect();
                    states.into_iter().next_back().unwrap_or_else(|| point.process_crash())
                }
            };
            let after = state.open();
            crate::common::judge(kind, &after, &life.model, life.model.done)
                .unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            life.reborn(after.disk(0)).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            world = after;
        }
    }
}

/// Fills a disk, writes to it at random and returns its write amplification.
fn fill_and_write(disk: &VirtualLog, writes: u64) -> f64 {
    let blocks = disk.geometry().bytes / BLOCK as u64;
    let mut random = Random::new(5);
    let mut last = vec![0u8; blocks as usize];
    for n in 0..writes {
        let block = if n < blocks { n } else { random.below(blocks) };
        let byte = random.below(255) as u8 + 1;
        last[block as usize] = byte;
        let (at, fua) = (block * BLOCK as u64, n % 7 == 0);
        let written = ask(disk, Request::Write { at, buffer: vec![byte; BLOCK], fua });
        written.unwrap_or_else(|error| panic!("write {n}: {error}"));
    }
    for (block, byte) in last.iter().enumerate() {
        let mut out = [0; BLOCK];
        disk.read_into((block * BLOCK) as u64, &mut out).unwrap();
        assert_eq!(out, [*byte; BLOCK], "block {block}");
    }
    disk.status().write_amplification()
}

#[test]
fn the_compactor_comes_to_rest() {
    for seed in 0..200 {
        let kind = Kind::of(seed);
        let (_world, mut life) = life(kind, seed);
        if seed % 4 < 2 {
            fill_and_write(&life.disk, 600 + 13 * seed);
        } else {
            (0..40 + 3 * seed).for_each(|_| life.step());
        }
        (0..3000).for_each(|_| assert!(life.disk.compact_step().is_ok()));
        let status = life.disk.status();
        let rests = (0..20).all(|_| !life.disk.compact_step().unwrap());
        assert!(rests, "{kind:?}, seed {seed}: {status:?}");
        assert_eq!(life.disk.status().device_blocks, status.device_blocks, "{kind:?}, seed {seed}");
    }
}

#[test]
fn a_full_disk_is_written_for_ever() {
    for kind in [Kind::Segments, Kind::Anywhere] {
        let (_world, life) = life(kind, 5);
        let amplification = fill_and_write(&life.disk, 20_000);
        let status = life.disk.status();
        assert!(amplification < 12.0, "{kind:?}: {status:?}");
        assert!(kind == Kind::Anywhere || status.emptied > 100, "{status:?}");
    }
}

#[test]
fn a_full_disk_with_the_least_spare_part_is_written_for_ever() {
    let world = World::new(1);
    let device = world.add_disk((4 + 120 * 64) * BLOCK as u64);
    let placement = Placement::Segments { blocks: 64 };
    let options = FormatOptions { placement, spare_percent: SPARE_PERCENT_MIN, ..FormatOptions::default() };
    VirtualLog::format(&*device, &options).unwrap();
    let opened = VirtualLog::open(device, Arc::new(SimClock::new(0)), shoal_vlog::Options::default());
    let amplification = fill_and_write(&opened.unwrap().0, 25_000);
    assert!((4.0..16.0).contains(&amplification), "{amplification}");
}

#[test]
fn threads_do_not_disturb_each_other() {
    let world = World::new(1);
    let device = world.add_disk((4 + 40 * 64) * BLOCK as u64);
    let options = FormatOptions { placement: Placement::Segments { blocks: 64 }, ..FormatOptions::default() };
    VirtualLog::format(&*device, &options).unwrap();
    let opened = VirtualLog::open(device, Arc::new(SimClock::new(0)), shoal_vlog::Options::default());
    let disk = &opened.unwrap().0;
    let share = disk.geometry().bytes / 512 / 4;
    let stop = &AtomicU32::new(0);
    /// Counts a thread even if it fails.
    struct Done<'a>(&'a AtomicU32);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let _done = Done(stop);
                let mut random = Random::new(thread);
                let mut model = vec![0u8; share as usize];
                for n in 0..3000 {
                    // The sectors of all threads share the same blocks.
                    let mine = random.below(share);
                    let at = (mine * 4 + thread) * 512;
                    if random.below(2) == 0 {
                        let byte = random.below(256) as u8;
                        let fua = n % 64 == 0;
                        ask(disk, Request::Write { at, buffer: vec![byte; 512], fua }).unwrap();
                        model[mine as usize] = byte;
                    } else {
                        let mut out = [0; 512];
                        disk.read_into(at, &mut out).unwrap();
                        assert_eq!(out, [model[mine as usize]; 512]);
                    }
                }
            });
        }
        scope.spawn(|| {
            while stop.load(Ordering::SeqCst) < 4 {
                disk.compact_step().unwrap();
                disk.write_waiting().unwrap();
            }
        });
    });
}

/// A device whose flush needs another thread to continue.
struct Needy {
    inner: Arc<dyn BlockDevice>,
    entered: Sender<()>,
    help: Mutex<Option<Receiver<()>>>,
    helped: AtomicBool,
}

impl BlockDevice for Needy {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        if matches!(request, Request::Flush)
            && let Some(help) = self.help.lock().unwrap().take()
        {
            self.entered.send(()).unwrap();
            self.helped.store(help.recv_timeout(Duration::from_secs(5)).is_ok(), Ordering::SeqCst);
        }
        self.inner.submit(request, done);
    }
}

thread_local! {
    static PUT_OFF: Cell<Option<Sender<()>>> = const { Cell::new(None) };
}

#[test]
fn a_thread_does_what_it_put_off_before_it_waits_for_another_one() {
    let world = World::new(6);
    let inner = world.add_disk(Kind::Segments.blocks() * BLOCK as u64);
    VirtualLog::format(&*inner, &Kind::Segments.format(6)).unwrap();
    let (entered, has_entered) = channel();
    let device = Arc::new(Needy { inner, entered, help: Mutex::default(), helped: AtomicBool::new(false) });
    let disk = &Kind::Segments.open(device.clone()).unwrap().0;
    let (helper, help) = channel();
    *device.help.lock().unwrap() = Some(help);
    thread::scope(|scope| {
        let write = |at: u64| ask(disk, Request::Write { at, buffer: vec![1; BLOCK], fua: true }).unwrap();
        scope.spawn(move || write(0));
        // The thread holds the log now, and waits for its device.
        has_entered.recv().unwrap();
        scope.spawn(move || {
            PUT_OFF.set(Some(helper));
            before_this_thread_waits(|| PUT_OFF.take().into_iter().for_each(|helper| helper.send(()).unwrap()));
            write(BLOCK as u64);
        });
    });
    assert!(device.helped.load(Ordering::SeqCst), "both stood still");
}

#[test]
fn a_block_that_the_device_changed_is_an_error_and_stays_one() {
    let (world, life) = life(Kind::Segments, 3);
    let disk = &life.disk;
    for block in 0..4u64 {
        ask(disk, Request::Write { at: block * BLOCK as u64, buffer: vec![7; BLOCK], fua: true }).unwrap();
    }
    let device = world.disk(0);
    let mut bytes = vec![0; device.geometry().bytes as usize];
    device.read_into(0, &mut bytes).unwrap();
    let at = bytes.chunks_exact(BLOCK).position(|block| block == [7; BLOCK]).unwrap();
    device.write_from((at * BLOCK) as u64, &[8; 512]).unwrap();
    let damaged = |disk: &VirtualLog| {
        (0..4u64).filter(|block| disk.read_into(block * BLOCK as u64, &mut [0; BLOCK]).is_err()).count()
    };
    assert_eq!(damaged(disk), 1);
    let error = (0..4u64).find_map(|n| disk.read_into(n * BLOCK as u64, &mut [0; BLOCK]).err()).unwrap().to_string();
    assert!(error.contains("checksum"), "{error}");
    // The compactor leaves the block in place and continues with others.
    let blocks = disk.geometry().bytes / BLOCK as u64;
    for n in 0..4000u64 {
        let block = 4 + n * 7 % (blocks - 4);
        ask(disk, Request::Write { at: block * BLOCK as u64, buffer: vec![n as u8; BLOCK], fua: n % 3 == 0 }).unwrap();
    }
    assert_eq!(damaged(disk), 1);
    assert!(disk.status().damaged_blocks >= 1);
    // Writing the block heals it.
    (0..4u64).for_each(|n| disk.write_from(n * BLOCK as u64, &[9; BLOCK]).unwrap());
    assert_eq!(damaged(disk), 0);
}

/// A device with a block that cannot be read.
struct BadPlace {
    inner: Arc<dyn BlockDevice>,
    at: AtomicU64,
}

impl BlockDevice for BadPlace {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        let bad = self.at.load(Ordering::SeqCst);
        match request {
            Request::Read { at, buffer } if (at..at + buffer.len() as u64).contains(&bad) => {
                done(Err(MediaError::io("disk", std::io::Error::other("bad sector"))))
            }
            other => self.inner.submit(other, done),
        }
    }
}

#[test]
fn a_place_that_cannot_be_read_is_left_alone_and_the_rest_goes_on() {
    for kind in [Kind::Segments, Kind::Anywhere] {
        let world = World::new(5);
        let inner = world.add_disk(kind.blocks() * BLOCK as u64);
        VirtualLog::format(&*inner, &kind.format(5)).unwrap();
        let device = Arc::new(BadPlace { inner, at: AtomicU64::new(u64::MAX) });
        let disk = kind.open(device.clone()).unwrap().0;
        let blocks = disk.geometry().bytes / BLOCK as u64;
        let fill = |block: u64, n: u64| {
            let buffer = vec![(block + n) as u8 | 1; BLOCK];
            ask(&disk, Request::Write { at: block * BLOCK as u64, buffer, fua: n.is_multiple_of(3) }).unwrap();
        };
        ask(&disk, Request::Write { at: 0, buffer: vec![8; BLOCK], fua: true }).unwrap();
        let mut bytes = vec![0; device.geometry().bytes as usize];
        device.read_into(0, &mut bytes).unwrap();
        let bad = bytes.chunks_exact(BLOCK).position(|block| block == [8; BLOCK]).unwrap();
        device.at.store((bad * BLOCK) as u64, Ordering::SeqCst);
        for n in 0..12_000 {
            fill(1 + n * 7 % (blocks - 1), n);
            disk.compact_step().unwrap();
        }
        assert!(disk.status().damaged_blocks >= 1, "{kind:?}: it was met");
        disk.close().unwrap();
        // The reopened disk no longer knows where the bad block is.
        let disk = kind.open(device).unwrap().0;
        assert!(disk.read_into(0, &mut [0; BLOCK]).is_err(), "{kind:?}");
        let mut out = [0; BLOCK];
        (1..blocks).for_each(|block| disk.read_into(block * BLOCK as u64, &mut out).unwrap());
        // After these trims, the bad block may be the only used one in its segment or track.
        for block in (1..blocks).filter(|block| block % 40 != 0) {
            ask(&disk, Request::Trim { at: block * BLOCK as u64, len: BLOCK as u64 }).unwrap();
        }
        ask(&disk, Request::Flush).unwrap();
        let mut errors = 0;
        let step = |_: &u32| {
            disk.compact_step().unwrap_or_else(|_| {
                errors += 1;
                true
            })
        };
        assert!((0..20_000).take_while(step).count() < 20_000, "{kind:?}: the compactor comes to rest");
        assert!(errors < 2, "{kind:?}: {errors} times the same");
        ask(&disk, Request::Write { at: 0, buffer: vec![9; BLOCK], fua: true }).unwrap();
        disk.read_into(0, &mut out).unwrap();
        assert_eq!(out, [9; BLOCK]);
    }
}

#[test]
fn after_a_failed_flush_nothing_is_written_and_what_is_there_is_read() {
    let (world, life) = life(Kind::Segments, 4);
    let disk = &life.disk;
    ask(disk, Request::Write { at: 0, buffer: vec![1; BLOCK], fua: true }).unwrap();
    world.fail(FaultPlan { call: Call::DiskFlush, nth: 0, for_good: false, fault: Fault::Io });
    let failed = ask(disk, Request::Write { at: 0, buffer: vec![2; BLOCK], fua: true });
    assert!(failed.is_err());
    world.clear_faults();
    for request in [Request::Flush, Request::Write { at: 0, buffer: vec![3; BLOCK], fua: false }] {
        assert!(matches!(ask(disk, request), Err(MediaError::Poisoned { .. })));
    }
    let mut out = [0; BLOCK];
    disk.read_into(0, &mut out).unwrap();
    assert_eq!(out, [2; BLOCK]);
}

#[test]
fn after_a_failed_write_of_the_compactor_what_is_there_is_read() {
    let mut failed = 0;
    for seed in 0..60 {
        let kind = Kind::of(seed);
        let (world, mut life) = life(kind, seed);
        (0..200).for_each(|_| life.step());
        world.fail(FaultPlan { call: Call::DiskWrite, nth: seed % 5, for_good: true, fault: Fault::Io });
        failed += (0..50).any(|_| life.disk.compact_step().is_err()) as u32;
        life.compare().unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
    }
    assert!(failed > 10, "the compactor had work on {failed} disks only");
}

#[test]
fn what_cannot_be_a_disk_is_refused_with_a_reason() {
    let world = World::new(1);
    let small = world.add_disk(100 * BLOCK as u64);
    let format = |device: &dyn BlockDevice, options: &FormatOptions| VirtualLog::format(device, options).unwrap_err();
    assert!(matches!(format(&*small, &FormatOptions::default()), VlogError::TooSmall { .. }));
    let device = world.add_disk(4000 * BLOCK as u64);
    for (options, expected) in [
        (FormatOptions { spare_percent: 9, ..FormatOptions::default() }, "spare: 9 percent"),
        (FormatOptions { placement: Placement::Segments { blocks: 100 }, ..FormatOptions::default() }, "segment: 100"),
        (FormatOptions { bytes: Some(1 << 40), ..FormatOptions::default() }, "size: "),
        (FormatOptions { bytes: Some(5000), ..FormatOptions::default() }, "size: 5000"),
    ] {
        let error = format(&*device, &options).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let open = |device: Arc<dyn BlockDevice>, kind: Kind| kind.open(device).err().unwrap().to_string();
    assert!(open(device.clone(), Kind::Segments).contains("magic"));
    VirtualLog::format(&*device, &FormatOptions::default()).unwrap();
    assert!(open(device.clone(), Kind::Anywhere).contains("placement"));
    let short = world.add_disk(3999 * BLOCK as u64);
    let mut bytes = vec![0; 3999 * BLOCK];
    device.read_into(0, &mut bytes).unwrap();
    short.write_from(0, &bytes).unwrap();
    assert!(open(short, Kind::Segments).contains("cut short"));
    // One copy of the superblock is enough.
    device.write_from(0, &[0; BLOCK]).unwrap();
    assert!(Kind::Segments.open(device).unwrap().1.clean);
}
