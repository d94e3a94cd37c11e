//! File data through the whole engine: against a byte vector, under full media, and after crashes.
//!
//! The store's region is battery memory (what an operation changed there is durable at return) or logged memory; the
//! bulk device loses unflushed sectors. Every failure message names its seed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::data_store::Store;
use crate::store::Setup;
use shoal_format::BULK_BLOCK;
use shoal_format::inode::INODE_HAS_NEW;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Ino, Patience, ROOT, RenameMode, Seek, SetAttr, Writer};
use shoal_sim::{Call, Fault, FaultPlan, Limits, Random};

const KEEP_SIZE: i32 = 1;
const PUNCH: i32 = 3;
const ZERO_RANGE: i32 = 16;

/// One file and its expected contents.
struct Checked {
    store: Store,
    ino: Ino,
    model: Vec<u8>,
}

impl Checked {
    fn new(setup: Setup) -> Checked {
        let store = Store::new(setup);
        let ino = store.create(b"file");
        Checked { store, ino, model: Vec::new() }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert_eq!(self.store.fs.write(self.ino, at as u64, bytes), Ok(bytes.len()));
        if bytes.is_empty() {
            return;
        }
        self.model.resize(self.model.len().max(at + bytes.len()), 0);
        self.model[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn truncate(&mut self, size: usize) {
        self.store.truncate(self.ino, size as u64);
        self.model.resize(size, 0);
    }

    fn fallocate(&mut self, mode: i32, at: usize, len: usize) {
        assert_eq!(self.store.fs.fallocate(self.ino, mode, at as u64, len as u64), Ok(()));
        if mode & KEEP_SIZE == 0 {
            self.model.resize(self.model.len().max(at + len), 0);
        }
        if mode == PUNCH || mode & ZERO_RANGE != 0 {
            let size = self.model.len();
            self.model[at.min(size)..(at + len).min(size)].fill(0);
        }
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) {
        let outcome = self.store.fs.copy_range(self.ino, from as u64, self.ino, to as u64, len as u64);
        let found = self.model.len().saturating_sub(from).min(len);
        if from < to + len && to < from + len {
            assert_eq!(outcome, Err(Error::Invalid));
            return;
        }
        assert_eq!(outcome, Ok(found as u64));
        if found > 0 {
            let bytes = self.model[from..from + found].to_vec();
            self.model.resize(self.model.len().max(to + found), 0);
            self.model[to..to + found].copy_from_slice(&bytes);
        }
    }

    /// Checks all bytes, the size, the seek map and the count of allocated bytes.
    fn check(&self, context: &str) {
        let fs = &self.store.fs;
        assert_eq!(fs.getattr(self.ino).unwrap().size, self.model.len() as u64, "{context}: size");
        let mut found = vec![0xee; self.model.len() + 10];
        let len = fs.read(self.ino, 0, &mut found).unwrap();
        assert_eq!(len, self.model.len(), "{context}: length");
        if let Some(at) = (0..len).find(|&i| found[i] != self.model[i]) {
            panic!("{context}: byte {at} is {:#x}, expected {:#x}, size {len}", found[at], self.model[at]);
        }
        self.store.check_allocated(self.ino, context);
        let mut at = 0;
        while at < len {
            let data = match fs.seek(self.ino, at as u64, Seek::Data) {
                Ok(data) => data as usize,
                Err(Error::NoDevice) => len,
                Err(error) => panic!("{context}: {error}"),
            };
            assert!(data >= at && self.model[at..data].iter().all(|&b| b == 0), "{context}: hole at {at}..{data}");
            if data == len {
                break;
            }
            at = fs.seek(self.ino, data as u64, Seek::Hole).unwrap() as usize;
            assert!(at > data && at <= len, "{context}: data at {data}..{at}");
        }
        assert_eq!(fs.seek(self.ino, len as u64, Seek::Hole), Err(Error::NoDevice), "{context}");
    }
}

fn filled(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Runs random operations on one file of up to about `span` bytes.
fn run_model(setup: Setup, seed: u64, steps: usize, span: u64) {
    let mut random = Random::new(seed);
    let mut file = Checked::new(setup);
    let empty = (file.store.fs.usage().region_free, file.store.fs.usage().bulk_free);
    let mut reopened = false;
    for step in 0..steps {
        let small = random.below(3) == 0;
        let span = if small { span / 16 } else { span };
        let at = random.below(span) as usize;
        let longest = if random.below(3) == 0 { span } else { span / 10 + 1 };
        let len = 1 + random.below(longest) as usize;
        let choice = random.below(15);
        match choice {
            0..4 => file.write(at, &filled(&mut random, len)),
            4 | 5 => {
                let end = file.model.len();
                file.write(end, &filled(&mut random, len / 4 + 1));
            }
            6 => file.truncate(at),
            7 => file.truncate(at / 8),
            8 => file.fallocate(PUNCH, at, len),
            9 => file.fallocate(0, at, len),
            10 => file.fallocate(KEEP_SIZE, at, len),
            11 => file.fallocate(ZERO_RANGE | (random.below(2) as i32), at, len),
            12 => file.copy(random.below(span) as usize, at, len),
            13 => {
                file.store.fs.sync().unwrap();
                let flags = file.store.fs.placement(file.ino).unwrap().inode.flags;
                assert_eq!(flags & INODE_HAS_NEW, 0, "{setup:?} seed {seed} step {step}");
            }
            _ => {
                file.store = file.store.after_process_crash();
                reopened = true;
            }
        }
        file.check(&format!("{setup:?} seed {seed} step {step} choice {choice} at {at} len {len}"));
    }
    file.store.fs.unlink(ROOT, b"file").unwrap();
    file.store.fs.sync().unwrap();
    file.store.fs.sync().unwrap();
    let usage = file.store.fs.usage();
    assert_eq!(usage.bulk_free, empty.1, "{setup:?} seed {seed}: blocks were lost");
    assert_eq!(usage.large_files, 0, "{setup:?} seed {seed}");
    if !reopened {
        assert_eq!(usage.region_free, empty.0, "{setup:?} seed {seed}: pieces were lost");
    }
}

#[test]
fn a_file_behaves_like_a_vector_in_the_region() {
    for seed in 0..12 {
        run_model(Setup { bulk_blocks: 0, ..Setup::default() }, seed, 120, 60_000);
        run_model(Setup { bulk_blocks: 0, ..Setup::default() }, seed, 120, 600_000);
    }
}

#[test]
fn a_file_behaves_like_a_vector_around_a_tiny_threshold() {
    for seed in 0..16 {
        run_model(Setup { threshold: 8 << 10, ..Setup::default() }, seed, 120, 400_000);
    }
}

#[test]
fn a_file_behaves_like_a_vector_across_both_tiers() {
    for seed in 0..16 {
        run_model(Setup { threshold: 128 << 10, ..Setup::default() }, seed, 120, 900_000);
        run_model(Setup { threshold: 1 << 20, kind: MemoryKind::Logged, ..Setup::default() }, seed, 60, 3_000_000);
    }
}

#[test]
fn a_file_written_byte_by_byte_is_not_copied_at_every_byte() {
    let mut file = Checked::new(Setup::default());
    let before = file.store.fs.region().last_lsn();
    let mut slots = std::collections::HashSet::new();
    for i in 0..40_000usize {
        file.write(i, &[i as u8 | 1]);
        slots.extend(file.store.fs.placement(file.ino).unwrap().pieces.iter().map(|piece| piece.at));
    }
    assert!(slots.len() < 30, "{} slots", slots.len());
    file.check("bytewise");
    let logged = file.store.fs.region().last_lsn() - before;
    assert!(logged < 40_000 * 170 + (1 << 20), "{logged} bytes of log");
}

#[test]
fn sparse_giants_cost_nothing_and_too_long_files_are_refused() {
    for bulk_blocks in [0, 1024] {
        let store = Store::new(Setup { bulk_blocks, ..Setup::default() });
        let ino = store.create(b"sparse");
        store.truncate(ino, 1 << 48);
        assert_eq!(store.fs.getattr(ino).unwrap().blocks, 0);
        assert_eq!(store.fs.seek(ino, 0, Seek::Data), Err(Error::NoDevice));
        let far = if bulk_blocks == 0 { 60 << 30 } else { (1 << 48) - 5 };
        assert_eq!(store.fs.write(ino, far, b"hello"), Ok(5));
        let data = store.fs.seek(ino, 0, Seek::Data).unwrap();
        assert!(data <= far && data + BULK_BLOCK > far);
        let mut out = [9; 8];
        assert_eq!(store.fs.read(ino, far - 3, &mut out[..8]).map(|n| n.min(8)), Ok(8));
        assert_eq!(&out, b"\0\0\0hello");
        store.check_allocated(ino, "sparse");
        assert_eq!(store.fs.write(ino, 1 << 48, b"x"), Err(Error::FileTooBig));
        assert_eq!(store.fs.write(ino, u64::MAX, b"x"), Err(Error::FileTooBig));
        if bulk_blocks == 0 {
            assert_eq!(store.fs.write(ino, 64 << 30, b"x"), Err(Error::FileTooBig), "the longest chunk map ends here");
        }
        store.truncate(ino, 3);
        store.check_allocated(ino, "cut");
        assert_eq!(store.fs.getattr(ino).unwrap().blocks, 0);
    }
}

#[test]
fn odd_arguments_are_refused() {
    let store = Store::new(Setup::default());
    let ino = store.create(b"f");
    assert_eq!(store.fs.fallocate(ino, 0, 0, 0), Err(Error::Invalid));
    assert_eq!(store.fs.fallocate(ino, 2, 0, 1), Err(Error::NotSupported), "punch without keep-size");
    assert_eq!(store.fs.fallocate(ino, 8, 0, 1), Err(Error::NotSupported), "collapse");
    assert_eq!(store.fs.fallocate(ino, 0, 1 << 48, 1), Err(Error::FileTooBig));
    assert_eq!(store.fs.write(ROOT, 0, b"x"), Err(Error::IsDirectory));
    assert_eq!(store.fs.read(ino, 5, &mut [0; 4]), Ok(0));
    assert_eq!(store.fs.seek(ino, 0, Seek::Hole), Err(Error::NoDevice));
    assert_eq!(store.fs.write(ino, 0, b""), Ok(0));
}

#[test]
fn reading_moves_the_access_time_as_relatime_says() {
    let store = Store::new(Setup::default());
    let ino = store.create(b"f");
    store.fs.write(ino, 0, b"x").unwrap();
    let read = |wait_ns: u64| {
        store.clock.advance(wait_ns);
        store.fs.read(ino, 0, &mut [0]).unwrap();
        store.fs.getattr(ino).unwrap().atime
    };
    let first = read(1000);
    assert!(first > store.fs.getattr(ino).unwrap().mtime);
    assert_eq!(read(1000), first);
    assert!(read(25 * 3600 * 1_000_000_000) > first);
}

#[test]
fn a_full_bulk_device_gives_short_writes_and_takes_files_again_after_deletion() {
    for kind in [MemoryKind::Battery, MemoryKind::Logged] {
        let store = Store::new(Setup { bulk_blocks: 40, threshold: 64 << 10, kind, ..Setup::default() });
        for round in 0..5 {
            let mut inos = Vec::new();
            'full: for number in 0.. {
                let name = format!("f{number}");
                let ino = store.create(name.as_bytes());
                inos.push((name, ino));
                for at in 0..6 {
                    match store.fs.write(ino, at * 100_000, &[round + 1; 100_000]) {
                        Ok(100_000) => {}
                        Ok(short) => assert!(short > 0 && short < 100_000),
                        Err(Error::NoSpace(_)) => break 'full,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            assert!(store.fs.usage().bulk_free < 16 * BULK_BLOCK && inos.len() >= 4, "round {round}");
            for (name, ino) in &inos {
                store.check_allocated(*ino, name);
                store.fs.unlink(ROOT, name.as_bytes()).unwrap();
            }
            assert_eq!(store.fs.usage().bulk_used, 0, "round {round}");
        }
    }
}

#[test]
fn blocks_are_trimmed_once_their_freeing_is_durable() {
    let store = Store::new(Setup { kind: MemoryKind::Logged, ..Setup::default() });
    let ino = store.create(b"f");
    store.fs.write(ino, 0, &vec![1; 40 * BULK_BLOCK as usize]).unwrap();
    store.fs.sync().unwrap();
    store.fs.unlink(ROOT, b"f").unwrap();
    let trimmed = || store.trimmed.load(Ordering::Relaxed);
    assert_eq!((trimmed(), store.fs.usage().bulk_pending), (0, 40 * BULK_BLOCK));
    store.fs.upkeep().tick().unwrap();
    assert_eq!((trimmed(), store.fs.usage().bulk_pending), (40 * BULK_BLOCK, 0));
}

#[test]
fn an_allocation_too_large_changes_nothing() {
    let store = Store::new(Setup { bulk_blocks: 40, ..Setup::default() });
    let ino = store.create(b"f");
    store.fs.write(ino, 0, &[7; 3000]).unwrap();
    assert_eq!(store.fs.fallocate(ino, 0, 0, 41 * BULK_BLOCK), Err(Error::NO_SPACE));
    assert_eq!(store.fs.getattr(ino).unwrap().size, 3000);
    store.check_allocated(ino, "refused");
    assert!(store.fs.usage().bulk_used <= BULK_BLOCK);
    let region = Store::new(Setup { bulk_blocks: 0, region_bytes: 8 << 20, ..Setup::default() });
    let ino = region.create(b"f");
    let free = region.fs.usage().region_free;
    assert_eq!(region.fs.fallocate(ino, 0, 0, 32 << 20), Err(Error::NO_SPACE));
    assert_eq!(region.fs.getattr(ino).unwrap().blocks, 0);
    // A segment cut into slots keeps a few bytes for its bitmap.
    assert!(free - region.fs.usage().region_free < 65536);
}

#[test]
fn a_full_region_gives_short_writes_and_takes_truncations() {
    let store = Store::new(Setup { bulk_blocks: 0, region_bytes: 8 << 20, ..Setup::default() });
    let ino = store.create(b"f");
    let mut at = 0;
    loop {
        match store.fs.write(ino, at, &vec![5; 1 << 20]) {
            Ok(len) => at += len as u64,
            Err(Error::NoSpace(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(at > 3 << 20, "{at}");
    store.check_allocated(ino, "full");
    assert_eq!(store.fs.getattr(ino).unwrap().size, at);
    store.truncate(ino, 100);
    store.check_allocated(ino, "cut");
    assert_eq!(store.fs.write(ino, 100, &vec![5; 1 << 20]), Ok(1 << 20));
}

#[test]
fn a_write_that_fails_on_the_device_keeps_no_blocks() {
    for nth in 0..12 {
        let mut file = Checked::new(Setup { threshold: 64 << 10, ..Setup::default() });
        file.write(0, &[3; 50_000]);
        file.store.world.fail(FaultPlan { call: Call::DiskWrite, nth, for_good: false, fault: Fault::Io });
        let mut failed = 0;
        for piece in 0..8u64 {
            let at = 50_000 + piece * 150_000;
            match file.store.fs.write(file.ino, at, &[4; 150_000]) {
                Ok(150_000) => {}
                Ok(short) => panic!("short write of {short}"),
                Err(Error::Io(_)) => failed += 1,
                Err(error) => panic!("{error}"),
            }
            file.store.check_allocated(file.ino, &format!("nth {nth}"));
        }
        assert!(failed == 1, "nth {nth}");
        file.store.fs.unlink(ROOT, b"file").unwrap();
        file.store.fs.sync().unwrap();
        assert_eq!(file.store.fs.usage().bulk_used, 0, "nth {nth}");
    }
}

/// Runs `work` with crash points recorded, then `check` on every state after each.
fn crash_everywhere(store: Store, work: impl FnOnce(&Store), check: impl Fn(&Store, u64, &str)) {
    store.world.record(true);
    work(&store);
    let mut points = store.world.points();
    points.push(store.world.snapshot());
    let mut states = 0;
    for point in &points {
        for state in point.power_losses(&Limits::few()) {
            let name = format!("{}: {}", point.name(), state.name());
            check(&store.reopened(&state, true), point.mark(), &name);
            check(&store.read_only(&state), point.mark(), &format!("{name}, read-only"));
            states += 1;
        }
        let state = point.process_crash();
        check(&store.reopened(&state, false), point.mark(), &format!("{}: process", point.name()));
    }
    assert!(states > 20, "only {states} states");
}

fn contents(store: &Store, name: &[u8]) -> Option<Vec<u8>> {
    let ino = store.fs.lookup(ROOT, name).ok()?.ino;
    store.check_allocated(ino, "after a crash");
    let mut bytes = vec![0; store.fs.getattr(ino).unwrap().size as usize];
    assert_eq!(store.fs.read(ino, 0, &mut bytes), Ok(bytes.len()));
    Some(bytes)
}

#[test]
fn after_a_power_loss_a_new_block_holds_its_data_or_zeros_and_a_synced_one_its_data() {
    for kind in [MemoryKind::Battery, MemoryKind::Logged] {
        let store = Store::new(Setup { threshold: 64 << 10, bulk_blocks: 16, kind, ..Setup::default() });
        // Every block of the device holds foreign bytes.
        let old = store.create(b"old");
        assert_eq!(store.fs.write(old, 0, &vec![0xaa; 16 * BULK_BLOCK as usize]), Ok(16 << 16));
        store.fs.unlink(ROOT, b"old").unwrap();
        store.fs.sync().unwrap();
        let work = |store: &Store| {
            let ino = store.create(b"new");
            store.fs.write(ino, 0, &[0xbb; 100_000]).unwrap();
            store.fs.write(ino, 250_000, &[0xbb; 50_000]).unwrap();
            store.fs.fsync(ino).unwrap();
            store.world.set_mark(1);
            store.fs.write(ino, 300_000, &[0xbb; 50_000]).unwrap();
            store.fs.upkeep().tick().unwrap();
        };
        crash_everywhere(store, work, |store, mark, name| {
            let Some(bytes) = contents(store, b"new") else { return assert_eq!(mark, 0, "{name}") };
            for (at, &byte) in bytes.iter().enumerate() {
                assert!(byte == 0xbb || byte == 0, "{name}: byte {at} is {byte:#x}");
                let promised = mark == 1 && (at < 100_000 || (250_000..300_000).contains(&at));
                assert!(byte == 0xbb || !promised, "{name}: byte {at} was synced and is lost");
            }
            assert!(mark == 0 || bytes.len() >= 300_000, "{name}");
        });
    }
}

#[test]
fn settling_beside_a_writer_never_vouches_for_data_written_after_the_flush() {
    let setup = Setup { threshold: 8 << 10, bulk_blocks: 64, ..Setup::default() };
    let store = Store::new(setup);
    let old = store.create(b"old");
    store.fs.write(old, 0, &vec![0xaa; 64 << 16]).unwrap();
    store.fs.sync().unwrap();
    store.fs.unlink(ROOT, b"old").unwrap();
    let ino = store.create(b"new");
    let (done, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    store.world.record(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in 0..60 {
                // Wait for a round, so that some blocks are settled in between however the machine
                // is loaded.
                let before = rounds.load(Ordering::Acquire);
                while block % 10 == 9 && rounds.load(Ordering::Acquire) == before {
                    std::thread::yield_now();
                }
                store.fs.write(ino, block * BULK_BLOCK, &[0xbb; 9_000]).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            store.fs.fsync(ino).unwrap();
            store.fs.upkeep().tick().unwrap();
            rounds.fetch_add(1, Ordering::Release);
        }
    });
    let mut points = store.world.points();
    points.push(store.world.snapshot());
    let mut flushed = 0;
    for point in &points {
        for state in point.power_losses(&Limits { subset_units: 0, torn: 0, each: 0, samples: 1 }) {
            let after = store.reopened(&state, true);
            let bytes = contents(&after, b"new").unwrap();
            let foreign = bytes.iter().position(|&b| b != 0xbb && b != 0);
            assert_eq!(foreign, None, "{}: {}", point.name(), state.name());
            flushed += bytes.contains(&0xbb) as u32;
        }
    }
    assert!(flushed > 10, "nothing was settled while the writer ran");
}

#[test]
fn a_file_whose_region_copy_was_durable_survives_its_move() {
    for kind in [MemoryKind::Battery, MemoryKind::Logged] {
        let store = Store::new(Setup { threshold: 128 << 10, kind, ..Setup::default() });
        let ino = store.create(b"file");
        store.fs.write(ino, 0, &[0x11; 100_000]).unwrap();
        store.fs.fsync(ino).unwrap();
        let work = |store: &Store| {
            store.fs.write(ino, 100_000, &[0x22; 100_000]).unwrap();
            store.fs.region().sync().unwrap();
        };
        crash_everywhere(store, work, |store, _, name| {
            let bytes = contents(store, b"file").unwrap();
            assert!(bytes.len() >= 100_000, "{name}");
            assert!(bytes[..100_000].iter().all(|&b| b == 0x11), "{name}: lost by the move");
            assert!(bytes[100_000..].iter().all(|&b| b == 0x22 || b == 0), "{name}");
        });
    }
}

#[test]
fn bytes_cut_off_do_not_come_back_when_the_file_grows_again() {
    let store = Store::new(Setup { threshold: 8 << 10, ..Setup::default() });
    let ino = store.create(b"file");
    store.fs.write(ino, 0, &[0x33; 60_000]).unwrap();
    store.fs.fsync(ino).unwrap();
    let work = |store: &Store| {
        store.truncate(ino, 20_000);
        store.truncate(ino, 40_000);
        store.fs.write(ino, 50_000, &[0x44; 1000]).unwrap();
    };
    crash_everywhere(store, work, |store, _, name| {
        let bytes = contents(store, b"file").unwrap();
        if bytes.len() < 60_000 {
            assert!(bytes[..20_000].iter().all(|&b| b == 0x33), "{name}");
            let back = bytes[20_000..].iter().position(|&b| b == 0x33);
            assert_eq!(back, None, "{name}: size {}", bytes.len());
        }
    });
}

#[test]
fn blocks_freed_by_an_operation_that_is_lost_still_hold_their_data() {
    let store = Store::new(Setup { threshold: 64 << 10, bulk_blocks: 8, kind: MemoryKind::Logged, ..Setup::default() });
    let old = store.create(b"old");
    store.fs.write(old, 0, &[0x55; 400_000]).unwrap();
    store.fs.sync().unwrap();
    let work = |store: &Store| {
        store.fs.unlink(ROOT, b"old").unwrap();
        let new = store.create(b"new");
        // Fits only into the blocks just freed.
        store.fs.write(new, 0, &[0x66; 300_000]).unwrap();
        store.fs.upkeep().tick().unwrap();
    };
    crash_everywhere(store, work, |store, _, name| {
        if let Some(bytes) = contents(store, b"old") {
            assert!(bytes.len() == 400_000 && bytes.iter().all(|&b| b == 0x55), "{name}");
        }
        if let Some(bytes) = contents(store, b"new") {
            assert!(bytes.iter().all(|&b| b == 0x66 || b == 0), "{name}");
        }
    });
}

#[test]
fn truncations_in_steps_are_finished_by_recovery() {
    // 5000 chunks: three transactions.
    let setup = Setup { bulk_blocks: 0, region_bytes: 64 << 20, kind: MemoryKind::Logged, ..Setup::default() };
    let store = Store::new(setup);
    let ino = store.create(b"file");
    for chunk in 0..5000u64 {
        store.fs.write(ino, chunk * 32768, b"x").unwrap();
    }
    let full = store.fs.getattr(ino).unwrap();
    store.world.record(true);
    store.truncate(ino, 32769);
    let mut points = store.world.points();
    points.push(store.world.snapshot());
    assert!(points.len() > 3, "one transaction did it all");
    let mut cut = 0;
    for point in points {
        let after = store.reopened(&point.process_crash(), false);
        after.check_allocated(ino, &point.name());
        let attr = after.fs.getattr(ino).unwrap();
        if (attr.size, attr.blocks) != (full.size, full.blocks) {
            assert!(attr.size == 32769 && attr.blocks <= 2, "{}: {} blocks", point.name(), attr.blocks);
            cut += 1;
        }
    }
    assert!(cut > 2);
}

#[test]
fn a_file_truncated_far_below_the_threshold_moves_back() {
    let mut file = Checked::new(Setup { threshold: 256 << 10, ..Setup::default() });
    file.write(0, &filled(&mut Random::new(3), 300_000));
    let on_bulk = |file: &Checked| file.store.fs.placement(file.ino).unwrap().pieces.iter().any(|piece| piece.bulk);
    file.truncate(200_000);
    assert!(on_bulk(&file), "more than half of the threshold");
    file.truncate(100_000);
    assert!(!on_bulk(&file));
    file.check("moved back");
    assert_eq!(file.store.fs.usage().bulk_used, 0);
}

#[test]
fn a_long_copy_crosses_the_threshold_without_a_flush() {
    let store = Store::new(Setup { kind: MemoryKind::Logged, threshold: 256 << 10, ..Setup::default() });
    let flushes = || store.world.calls(Call::DiskFlush);
    let before = flushes();
    let ino = store.create(b"copy");
    for step in 0..8u64 {
        store.fs.write(ino, step * 131_072, &vec![1; 131_072]).unwrap();
    }
    let pieces = store.fs.placement(ino).unwrap().pieces;
    assert!(pieces.iter().all(|piece| piece.bulk && piece.new));
    assert_eq!(flushes(), before);
    store.fs.fsync(ino).unwrap();
    assert_eq!(flushes(), before + 1);
    assert!(store.fs.placement(ino).unwrap().pieces.iter().all(|piece| !piece.new));
    store.fs.fsync(ino).unwrap();
    assert_eq!(flushes(), before + 1, "nothing was written since");
}

#[test]
fn a_fragmented_file_keeps_its_map_right_through_leaves() {
    let store = Store::new(Setup { threshold: 8 << 10, bulk_blocks: 4000, ..Setup::default() });
    let ino = store.create(b"file");
    // Every other block, backwards in the second half: no two extents join.
    let order: Vec<u64> = (0..500).chain((500..1000).rev()).collect();
    for &number in &order {
        store.fs.write(ino, number * 2 * BULK_BLOCK, &number.to_le_bytes()).unwrap();
    }
    store.check_allocated(ino, "written");
    let read = |number: u64| {
        let mut bytes = [0; 8];
        store.fs.read(ino, number * 2 * BULK_BLOCK, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    assert!((0..1000).all(|number| read(number) == number));
    store.fs.sync().unwrap();
    assert!(store.fs.placement(ino).unwrap().pieces.iter().all(|piece| !piece.new));
    store.fs.fallocate(ino, PUNCH, 100 * 2 * BULK_BLOCK, 800 * 2 * BULK_BLOCK).unwrap();
    store.check_allocated(ino, "punched");
    assert!((0..1000).all(|number| read(number) == if (100..900).contains(&number) { 0 } else { number }));
    store.truncate(ino, 50 * 2 * BULK_BLOCK);
    store.check_allocated(ino, "cut");
    assert!((0..50).all(|number| read(number) == number));
    assert_eq!(store.fs.placement(ino).unwrap().pieces.len(), 50);
}

#[test]
fn files_grown_side_by_side_lie_in_few_extents() {
    let store = Store::new(Setup { threshold: 64 << 10, bulk_blocks: 4000, ..Setup::default() });
    let inos = [store.create(b"a"), store.create(b"b")];
    for step in 0..200u64 {
        for ino in inos {
            store.fs.write(ino, step * 100_000, &[1; 100_000]).unwrap();
        }
    }
    store.fs.sync().unwrap();
    for ino in inos {
        let pieces = store.fs.placement(ino).unwrap().pieces.len();
        assert!(pieces <= 12, "{pieces} extents");
    }
}

#[test]
fn an_operation_that_must_not_flush_is_refused_whole_and_passes_afterwards() {
    let store = Store::new(Setup { threshold: 64 << 10, kind: MemoryKind::Logged, ..Setup::default() });
    let body = |ino| {
        let mut out = vec![0; 300_000];
        let len = store.fs.read(ino, 0, &mut out).unwrap();
        out.truncate(len);
        out
    };
    // Each operation that can move promised contents to the other tier.
    let write =
        |ino, at, bytes: &[u8], patience: Patience| store.fs.write_of(patience.into(), Writer::Program, ino, at, bytes);
    let steps: [&dyn Fn(Ino, Patience) -> Result<(), Error>; 4] = [
        &|ino, patience| write(ino, 60_000, &[2; 50_000], patience).map(drop),
        &|ino, patience| {
            let change = SetAttr { size: Some(100_000), ..SetAttr::default() };
            store.fs.setattr_by(patience, ino, &change).map(drop)
        },
        &|ino, patience| store.fs.fallocate_by(patience.into(), ino, 0, 0, 100_000),
        &|ino, patience| store.fs.copy_range_by(patience.into(), (ino, 0), (ino, 80_000), 50_000).map(drop),
    ];
    for (number, step) in steps.iter().enumerate() {
        let ino = store.create(format!("promised{number}").as_bytes());
        store.fs.write(ino, 0, &[1; 60_000]).unwrap();
        store.fs.fsync(ino).unwrap();
        let before = body(ino);
        assert_eq!(step(ino, Patience::Refuses), Err(Error::WouldFlush), "step {number}");
        assert_eq!(body(ino), before, "step {number}");
        store.check_allocated(ino, "refused");
        step(ino, Patience::Waits).unwrap();
        assert!(body(ino).len() >= 100_000, "step {number}");
        assert_eq!(body(ino)[..50_000], before[..50_000], "step {number}");
        store.check_allocated(ino, "done");
        // An append past bytes that were cut off.
        store.truncate(ino, 90_001);
        let append = |ino, patience| write(ino, 95_000, &[3; 10], patience);
        if matches!(number, 0 | 3) {
            assert_eq!(append(ino, Patience::Refuses), Err(Error::WouldFlush), "step {number}");
            assert_eq!(body(ino).len(), 90_001, "step {number}");
            append(ino, Patience::Waits).unwrap();
        } else {
            // These left no data in the last block: there is nothing to flush.
            assert_eq!(append(ino, Patience::Refuses), Ok(10), "step {number}");
        }
        assert!(body(ino)[90_001..95_000].iter().all(|&byte| byte == 0), "step {number}");
    }
    assert!(!store.fs.region().is_poisoned());
}

#[test]
fn a_large_file_replaces_another_without_waiting_only_once_it_is_durable() {
    let store = Store::new(Setup { threshold: 64 << 10, kind: MemoryKind::Logged, ..Setup::default() });
    let (old, new) = (store.create(b"old"), store.create(b"new"));
    store.fs.write(old, 0, &[1; 200_000]).unwrap();
    store.fs.sync().unwrap();
    store.fs.write(new, 0, &[2; 200_000]).unwrap();
    let rename = |patience| store.fs.rename_with(patience, (ROOT, b"new"), (ROOT, b"old"), RenameMode::Replace, None);
    assert_eq!(rename(Patience::Refuses), Err(Error::WouldFlush));
    assert_eq!(store.fs.lookup(ROOT, b"old").unwrap().ino, old);
    store.fs.fsync(new).unwrap();
    assert_eq!(rename(Patience::Refuses), Ok(()));
    assert_eq!(store.fs.lookup(ROOT, b"old").unwrap().ino, new);
}
