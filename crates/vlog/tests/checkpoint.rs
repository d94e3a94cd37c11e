//! Checkpoints under device faults, and at the disk sizes they are made for.
//!
//! A device that changes, loses or delays one block of the map area or one tail record must cost
//! only time: reads return what was written. Crashes are in `crash`. `planted` shows the purpose of
//! each rule.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{BLOCK, Kind, Life, ask, damage, damage_of_the_closed, judge, name_in_time};
use parking_lot::Mutex;
use shoal_format::vlog::map::{Area, Directory, List, MapPiece, encode_map};
use shoal_format::vlog::{
    Checkpoint, Entry, LOG_AT, PIECE_BLOCKS, PIECES_MAX, Record, SUPERBLOCK_AT, Superblock, TAIL_AT, Tail,
};
use shoal_media::{BlockDevice, BlockGeometry, Completion, Request, WriteCache};
use shoal_sim::{Random, SimClock, World};
use shoal_vlog::{FormatOptions, Options, VirtualLog};

#[test]
fn one_damaged_block_costs_time_and_no_data() {
    let mut scanned = 0;
    for seed in 0..10 {
        scanned += damage(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(scanned > 100, "{scanned} damages were noticed");
}

#[test]
fn a_closed_disk_without_its_end_is_refused_or_right() {
    let (mut refused, mut right) = (0, 0);
    for seed in 0..20 {
        for kind in [Kind::Segments, Kind::Larger] {
            let (more, also) =
                damage_of_the_closed(kind, seed).unwrap_or_else(|e| panic!("{kind:?}, seed {seed}: {e}"));
            (refused, right) = (refused + more, right + also);
        }
    }
    println!("{refused} refused, {right} right");
    assert!(refused > 20 && right > 20);
}

#[test]
fn no_segment_is_written_before_it_is_named_durably() {
    for seed in 0..6 {
        for kind in [Kind::Segments, Kind::Larger] {
            let opened = name_in_time(kind, seed).unwrap_or_else(|error| panic!("{kind:?}, seed {seed}: {error}"));
            assert!(opened > 100, "{opened}");
        }
    }
}

#[test]
fn opening_after_a_crash_reads_what_changed_since() {
    let world = World::new(3);
    let device = world.add_disk((64 << 20) + (8 << 20));
    let placement = shoal_vlog::Placement::Segments { blocks: 32 };
    let format = |map_pieces| FormatOptions { placement, map_pieces, ..FormatOptions::default() };
    let mut read = vec![];
    for map_pieces in [59, 0] {
        VirtualLog::format(&*device, &format(map_pieces)).unwrap();
        let open = || VirtualLog::open(device.clone(), Arc::new(SimClock::new(0)), Options::default()).unwrap();
        let (disk, _) = open();
        let blocks = disk.geometry().bytes / BLOCK as u64;
        let mut random = Random::new(4);
        for n in 0..blocks + 4 * 64 * 32 {
            let at = if n < blocks { n } else { random.below(blocks / 2) } * BLOCK as u64;
            ask(&disk, Request::Write { at, buffer: vec![n as u8; BLOCK], fua: n % 32 == 0 }).unwrap();
        }
        let status = disk.status();
        assert_eq!(status.checkpoints > 0, map_pieces > 0, "{status:?}");
        drop(disk);
        let (_, recovery) = open();
        assert!(!recovery.clean);
        read.push(recovery.blocks_read);
    }
    println!("{} blocks with a checkpoint, {} without", read[0], read[1]);
    assert!(read[0] * 2 < read[1], "{read:?}");
}

/// A device of any size that keeps only written blocks in memory. Other blocks are generated when
/// read.
struct Sparse {
    bytes: u64,
    written: Mutex<HashMap<u64, Vec<u8>>>,
    made_up: Box<dyn Fn(u32) -> Option<Vec<u8>> + Send + Sync>,
    read: AtomicU64,
    reads: AtomicU64,
    /// Time spent generating blocks (ns).
    took_ns: AtomicU64,
}

impl BlockDevice for Sparse {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry { bytes: self.bytes, block_bytes: 512, atomic_bytes: 4096, survives_process: true }
    }

    fn submit(&self, request: Request, done: Completion) {
        match request {
            Request::Read { at, mut buffer } => {
                let began = Instant::now();
                self.reads.fetch_add(1, Ordering::Relaxed);
                for (n, out) in (at / BLOCK as u64..).zip(buffer.chunks_exact_mut(BLOCK)) {
                    self.read.fetch_add(1, Ordering::Relaxed);
                    let written = self.written.lock().get(&n).cloned();
                    if let Some(bytes) = written.or_else(|| (self.made_up)(n as u32)) {
                        out.copy_from_slice(&bytes);
                    }
                }
                self.took_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
                done(Ok(buffer));
            }
            Request::Write { at, buffer, .. } => {
                let mut written = self.written.lock();
                for (n, block) in (at / BLOCK as u64..).zip(buffer.chunks_exact(BLOCK)) {
                    written.insert(n, block.to_vec());
                }
                drop(written);
                done(Ok(buffer));
            }
            _ => done(Ok(vec![])),
        }
    }
}

/// Placement of blocks on a full disk: chunks of a record and 52 times 8 blocks, or, worst for
/// memory, of records with nine pieces.
#[derive(Clone, Copy)]
struct Shape {
    pieces: u32,
}

impl Shape {
    /// Returns the record of a piece.
    fn record(self, piece: u32) -> u32 {
        LOG_AT + piece / self.pieces * (1 + self.pieces * PIECE_BLOCKS)
    }

    fn piece(self, superblock: &Superblock, index: u32) -> MapPiece {
        let record = self.record(index);
        let mut piece = MapPiece { record, ..MapPiece::default() };
        for (n, entry) in (0..).zip(&mut piece.entries) {
            if index * PIECE_BLOCKS + n < superblock.logical_blocks {
                *entry = Entry { at: record + 1 + index % self.pieces * PIECE_BLOCKS + n, sum: index ^ n };
            }
        }
        piece
    }
}

/// Makes a full disk of `bytes` bytes after a crash. Its checkpoint is far older than its newest
/// record.
fn full(bytes: u64, shape: Shape) -> Arc<Sparse> {
    const NUMBER: u64 = 1 << 30;
    let template = Sparse {
        bytes,
        written: Mutex::default(),
        made_up: Box::new(|_| None),
        read: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        took_ns: AtomicU64::new(0),
    };
    // Only the layout from `format` is used, not what it writes.
    let superblock = VirtualLog::format(&template, &FormatOptions { salt: 77, ..FormatOptions::default() }).unwrap();
    let Area { at, map_pieces, .. } = superblock.area.unwrap();
    let blocks = superblock.map_blocks();
    let mut directories = vec![];
    let map_block = move |index: u32| {
        let pieces = (index * map_pieces..superblock.pieces().min((index + 1) * map_pieces))
            .map(|n| shape.piece(&superblock, n));
        encode_map(&superblock, NUMBER, index, &pieces.collect::<Vec<_>>())
    };
    for index in 0..superblock.directory_blocks() {
        let mut directory = Directory::new(NUMBER, index);
        for n in 0..944.min(blocks - index * 944) {
            directory.set(n as usize, 0, map_block(index * 944 + n).1);
        }
        directories.push(directory.encode(&superblock));
    }
    let mut written = HashMap::new();
    let mut put = |at: u32, block: Vec<u8>| drop(written.insert(at as u64, block));
    SUPERBLOCK_AT.into_iter().for_each(|at| put(at, superblock.encode()));
    let checkpoint = Some(Checkpoint { number: NUMBER, side: 0 });
    for (n, at) in TAIL_AT.into_iter().enumerate() {
        put(at, Tail { generation: 8 + n as u64, root: None, durable: NUMBER, checkpoint }.encode(&superblock));
    }
    (0..).zip(directories).for_each(|(n, block)| put(superblock.directory_at(0, n), block));
    // All segments that may be opened between two rounds, each with five records of 52 changes.
    let data = shape.record(superblock.pieces() - 1) + PIECES_MAX as u32 * PIECE_BLOCKS;
    let first = data.div_ceil(256) + 1;
    let segments: Vec<u32> = (first..superblock.segments().min(first + superblock.segments() / 16)).collect();
    for (n, names) in (0..).zip(segments.chunks(1000)) {
        let list = List { number: NUMBER, after: 0, index: n, segments: names.to_vec() };
        (0..2).for_each(|copy| put(superblock.list_at(0, copy, n), list.encode(&superblock)));
    }
    let made_up = move |block: u32| {
        if block >= at {
            return (block < at + blocks).then(|| map_block(block - at).0);
        }
        let (segment, within) = ((block - LOG_AT) / 256, (block - LOG_AT) % 256);
        let count = segment.checked_sub(first).filter(|_| within % 51 == 0 && within < 255)?;
        let seq = NUMBER + 1 + count as u64 * 5 + within as u64 / 51;
        let skip = if within == 204 { 52 } else { 51 };
        let pieces = vec![];
        let mapped = superblock.pieces();
        Some(Record { at: block, seq, durable: seq - 1, skip, mapped, pieces, links: vec![] }.encode(&superblock))
    };
    Arc::new(Sparse { written: Mutex::new(written), made_up: Box::new(made_up), ..template })
}

#[cfg(target_os = "linux")]
fn memory_bytes(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_large_full_disk_is_opened_with_little_memory() {
    // A full disk of 1 TiB takes 3 GB of memory.
    let bytes = if std::env::var_os("SHOAL_DEEP").is_some() { 1 << 40 } else { 32u64 << 30 };
    // The worst shape first, because the other one reuses the memory it frees.
    for shape in [Shape { pieces: 9 }, Shape { pieces: 52 }] {
        let device = full(bytes, shape);
        let before = memory_bytes("VmRSS");
        // Reset the peak memory.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let began = Instant::now();
        let opened = VirtualLog::open(device.clone(), Arc::new(SimClock::new(0)), Options::default());
        let (disk, recovery) = opened.unwrap();
        let took = began.elapsed();
        assert!(recovery.checkpoint, "{recovery:?}");
        let status = disk.status();
        let blocks = status.logical_bytes / BLOCK as u64;
        let each = |bytes: u64| bytes as f64 / blocks as f64;
        let (now, peak) = (memory_bytes("VmRSS") - before, memory_bytes("VmHWM") - before);
        let simulated = Duration::from_nanos(device.took_ns.load(Ordering::Relaxed));
        let said = status.map_bytes + status.beside_bytes;
        println!(
            "{} GiB full, {} pieces a record: opened in {took:.1?}, {simulated:.1?} of which were spent on \
             making up the device; {} MiB in {} reads, {} records; bytes a block: {:.2} \
             said, {:.2} resident, {:.2} while it was opened",
            bytes >> 30,
            shape.pieces,
            device.read.load(Ordering::Relaxed) >> 8,
            device.reads.load(Ordering::Relaxed),
            status.live_records,
            each(said),
            each(now),
            each(peak)
        );
        assert!(each(said) < 16.0 && each(now) < 16.0, "{status:?}");
        assert!(status.used_bytes / BLOCK as u64 > blocks);
        drop(disk);
    }
}

#[test]
fn a_disk_of_an_earlier_version_is_opened_and_goes_on() {
    for kind in [Kind::Earlier, Kind::Segments] {
        let world = World::new(8);
        let device = world.add_disk(kind.blocks() * BLOCK as u64);
        let mut life = Life::with_former_sums(kind, device, 8);
        (0..300).for_each(|_| life.step());
        assert!(kind != Kind::Earlier || life.disk.status().checkpoints == 0);
        let after = world.snapshot().process_crash().open();
        judge(kind, &after, &life.model, life.model.done).unwrap();
    }
}
