//! Areas compared with a plain vector of bytes, and what a grant and a revocation promise.
//!
//! Random requests run with every compression and with compactions in between; a failure prints its
//! seed. Former contents of a chunk are searched for in the chunks of the next area. The system
//! does not zero spares, so only the wiping can have done it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_media::{BlockDevice, MediaError, Request, read, trim, write, write_zeroes};
use shoal_sim::Random;

use super::super::{Area, CHUNK_BYTES, Compression, GrantError, Quota};
use crate::Stretch;

const MIB: u64 = 1 << 20;
const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

fn area(bytes: u64, compression: Compression) -> Area {
    Area::new("a", bytes, &Quota::new(bytes), compression).unwrap()
}

/// Bytes that pack well, pack badly, or are zeros.
fn contents(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    match random.below(4) {
        0 => {}
        1 => random.fill(&mut bytes),
        _ => {
            let byte = random.below(255) as u8 + 1;
            bytes.iter_mut().enumerate().for_each(|(at, out)| *out = byte ^ (at >> 9) as u8);
        }
    }
    bytes
}

#[test]
fn an_area_behaves_like_a_vector_whatever_is_packed_meanwhile() {
    for (compression, seed) in ALL.into_iter().flat_map(|compression| (0..4).map(move |seed| (compression, seed))) {
        let mut random = Random::new(seed);
        // The size ends within a chunk.
        let bytes = 3 * MIB + 37 * 512;
        let area = area(bytes, compression);
        let mut model = vec![0u8; bytes as usize];
        let (mut packed, mut freed) = (0, 0);
        for step in 0..600 {
            let blocks_max = if random.below(4) == 0 { 700 } else { 16 };
            let len = (1 + random.below(blocks_max)) * 512;
            let at = random.below((bytes - len) / 512 + 1) * 512;
            let range = at as usize..(at + len) as usize;
            match random.below(9) {
                0..=2 => {
                    let bytes = contents(&mut random, len as usize);
                    write(&area, at, &bytes).unwrap();
                    model[range].copy_from_slice(&bytes);
                }
                3 => {
                    trim(&area, at, len).unwrap();
                    model[range].fill(0);
                }
                4 => {
                    write_zeroes(&area, at, len).unwrap();
                    model[range].fill(0);
                }
                5 => freed += area.compact(step, 0).freed_bytes,
                6 => area.set_tight(random.below(2) == 0),
                _ => {
                    let mut out = vec![0xee; len as usize];
                    read(&area, at, &mut out).unwrap();
                    assert!(out == model[range], "{compression}, seed {seed}, step {step}: {len} bytes at {at}");
                }
            }
            packed = packed.max(area.usage().packed_bytes);
        }
        let mut out = vec![0xee; bytes as usize];
        read(&area, 0, &mut out).unwrap();
        assert!(out == model, "{compression}, seed {seed}");
        assert_eq!(packed > 0, compression != Compression::None, "{compression}, seed {seed}: nothing was packed");
        assert!(freed > 0, "{compression}, seed {seed}: nothing was compacted");
        trim(&area, 0, bytes / CHUNK_BYTES as u64 * CHUNK_BYTES as u64).unwrap();
        assert!(area.usage().held_bytes <= CHUNK_BYTES as u64, "all but the end is a hole");
    }
}

#[test]
fn holes_cost_nothing_and_use_is_counted() {
    let area = area(1 << 40, Compression::None);
    assert!(area.is_blank());
    write(&area, (1 << 40) - 512, &[1; 512]).unwrap();
    write(&area, 5 * MIB - 512, &[1; 1024]).unwrap();
    let usage = area.usage();
    assert_eq!((usage.used_bytes, usage.held_bytes), (3 * CHUNK_BYTES as u64, 3 * CHUNK_BYTES as u64));
    // Part of a chunk is zeroed, and a whole one is dropped.
    trim(&area, 5 * MIB - 512, 512).unwrap();
    assert_eq!(area.usage().used_bytes, 3 * CHUNK_BYTES as u64);
    let chunk = CHUNK_BYTES as u64;
    let [hole, data] = [false, true].map(|is_data| move |len| Stretch { len, is_data });
    assert_eq!(area.allocation(5 * MIB - 3 * chunk, 6 * chunk, 9), [hole(2 * chunk), data(2 * chunk), hole(2 * chunk)]);
    assert_eq!(area.allocation(5 * MIB - 3 * chunk, 6 * chunk, 2), [hole(2 * chunk), data(2 * chunk)]);
    write_zeroes(&area, 5 * MIB - chunk, 2 * chunk).unwrap();
    assert_eq!(area.usage().used_bytes, chunk);
    trim(&area, (1 << 40) - chunk, chunk).unwrap();
    assert_eq!(area.usage(), Default::default());
    assert!(area.is_blank());
}

#[test]
fn only_cold_chunks_are_packed_and_those_that_do_not_pay_are_left_alone() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let area = area(8 * MIB, compression);
        area.compact(100, 30);
        write(&area, 0, &vec![1; 2 * CHUNK_BYTES]).unwrap();
        let mut noise = vec![0; CHUNK_BYTES];
        Random::new(3).fill(&mut noise);
        write(&area, 4 * MIB, &noise).unwrap();
        assert_eq!(area.compact(129, 30).chunks, 0, "too young");
        write(&area, 512, &[2; 512]).unwrap();
        let done = area.compact(130, 30);
        assert_eq!(done.chunks, 1, "the one not written since");
        let usage = area.usage();
        assert_eq!(usage.packed_bytes, CHUNK_BYTES as u64);
        assert_eq!(usage.used_bytes, 3 * CHUNK_BYTES as u64 - done.freed_bytes);
        assert!(done.freed_bytes > 60 << 10);
        // A read unpacks it for good, unless memory is tight.
        area.set_tight(true);
        let mut out = [0; 512];
        read(&area, CHUNK_BYTES as u64, &mut out).unwrap();
        assert_eq!((out, area.usage().packed_bytes), ([1; 512], CHUNK_BYTES as u64));
        area.set_tight(false);
        read(&area, CHUNK_BYTES as u64, &mut out).unwrap();
        assert_eq!((out, area.usage().packed_bytes), ([1; 512], 0));
        // The first chunk and the one just read. The noise was tried before and is not tried again.
        assert_eq!(area.compact(200, 30).chunks, 2);
        assert_eq!(area.compact(300, 30).chunks, 0);
    }
}

#[test]
fn the_quota_is_reserved_and_comes_back_with_the_revocation() {
    let quota = Quota::new(10 * MIB);
    let first = Area::new("first", 6 * MIB, &quota, Compression::None).unwrap();
    let refused = Area::new("second", 5 * MIB, &quota, Compression::None).err().unwrap();
    assert_eq!(refused, GrantError::Full { asked: 5 * MIB, free: 4 * MIB, total: 10 * MIB });
    let second = Area::new("second", 4 * MIB, &quota, Compression::None).unwrap();
    first.revoke();
    assert_eq!(quota.granted(), 4 * MIB);
    drop(first);
    assert_eq!(quota.granted(), 4 * MIB, "given back once only");
    drop(second);
    assert_eq!(quota.granted(), 0);
    let small = Area::new("small", 511, &quota, Compression::None).err().unwrap();
    assert!(matches!(small, GrantError::Small { .. }));
}

#[test]
fn a_revoked_area_answers_nothing_and_its_memory_is_zero_for_the_next() {
    let quota = Quota::new(4 * MIB);
    let secret = vec![0x5e; MIB as usize];
    let old = Area::new("old", 4 * MIB, &quota, Compression::Lz4).unwrap();
    write(&old, 0, &secret).unwrap();
    old.revoke();
    assert_eq!(old.usage(), Default::default());
    let mut out = [0; 512];
    let requests = [read(&old, 0, &mut out), write(&old, 0, &[1; 512]), trim(&old, 0, 512), shoal_media::flush(&old)];
    for result in requests {
        assert!(matches!(result, Err(MediaError::Io { .. })), "{result:?}");
    }
    assert_eq!(old.compact(1000, 0), Default::default());
    let new = Area::new("new", 4 * MIB, &quota, Compression::Lz4).unwrap();
    let mut out = vec![1; MIB as usize];
    for chunk in 0..MIB / CHUNK_BYTES as u64 {
        // This takes the chunk and leaves all but one block as it was granted.
        write(&new, chunk * CHUNK_BYTES as u64, &[0; 512]).unwrap();
    }
    read(&new, 0, &mut out).unwrap();
    assert!(out.iter().all(|byte| *byte == 0), "the next client sees the last one's bytes");
}

#[test]
fn requests_outside_the_area_or_across_blocks_are_refused() {
    let area = area(MIB, Compression::None);
    for (at, len) in [(MIB, 512), (MIB - 512, 1024), (1, 512), (0, 511), (u64::MAX - 511, 512), (u64::MAX, 0)] {
        let request = trim(&area, at, len);
        assert!(matches!(request, Err(MediaError::OutOfRange { .. })), "{len} bytes at {at}: {request:?}");
    }
    assert!(matches!(write(&area, MIB - 512, &[0; 1024]), Err(MediaError::OutOfRange { .. })));
    assert!(matches!(read(&area, 8, &mut [0; 512]), Err(MediaError::OutOfRange { .. })));
    trim(&area, MIB, 0).unwrap();
    assert_eq!(area.geometry().bytes, MIB);
}

#[test]
fn threads_and_compaction_do_not_disturb_each_other() {
    let area = Arc::new(area(4 * MIB, Compression::Lz4));
    let share = MIB as usize;
    let running = &AtomicU32::new(4);
    let packed = &AtomicU64::new(0);
    // A thread that fails does not decrement the count.
    let end = Instant::now() + Duration::from_secs(20);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let area = area.clone();
            scope.spawn(move || {
                let mut random = Random::new(thread);
                // Each chunk has blocks of all threads.
                let mut model = vec![0u8; share / 512];
                let mut steps = 0;
                // Go on until chunks were packed meanwhile, however late that thread got a
                // processor.
                while (steps < 3000 || packed.load(Ordering::SeqCst) < 10) && Instant::now() < end {
                    steps += 1;
                    let block = random.below(share as u64 / 512);
                    let at = (block * 4 + thread) * 512;
                    if random.below(2) == 0 {
                        let byte = random.below(256) as u8;
                        area.submit(Request::Write { at, buffer: vec![byte; 512], fua: true }, Box::new(|_| {}));
                        model[block as usize] = byte;
                    } else {
                        let mut out = [0xee; 512];
                        read(&*area, at, &mut out).unwrap();
                        assert_eq!(out, [model[block as usize]; 512]);
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        scope.spawn(|| {
            while running.load(Ordering::SeqCst) > 0 && Instant::now() < end {
                packed.fetch_add(area.compact(0, 0).chunks, Ordering::SeqCst);
            }
        });
    });
    assert!(packed.load(Ordering::SeqCst) >= 10, "nothing was packed meanwhile");
}
