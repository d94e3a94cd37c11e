//! Bytes that no writer wrote: flipped bits, forged fields, noise. Nothing panics, and time stays bounded.
//!
//! Rules: seeds are fixed and part of the failure's message; a flip that is not reported must leave
//! the tree unchanged.
//! Left out: damage with a name (`findings`).

use std::time::{Duration, Instant};

use crate::store::media::{Image, Log, Memory};
use crate::store::{BULK_BLOCKS, Store, tree};
use shoal_check::{ImageSource, Report, Source, check};
use shoal_format::record::Entry;
use shoal_format::superblock::MemoryKind;
use shoal_format::{Offset, PAGE};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 11) as usize % limit
    }
}

fn run(image: &Image, log: &Log, sums: bool) -> Report {
    let nothing = Image(Vec::new());
    let image = ImageSource::Images([image, &nothing]);
    let source =
        Source { bulk_bytes: Some(BULK_BLOCKS * 65536), power_lost: true, sums, ..Source::of(image, Some(log)) };
    check(source, &mut |_| {}).unwrap()
}

#[test]
fn every_flipped_bit_of_an_image_is_reported_or_harmless() {
    let store = Store::tiny();
    let log = store.log_device();
    let mut image = Image(store.image());
    assert!(run(&image, &log, true).is_sound());
    let tree = tree::read(&image.0);
    let mut harmless = 0;
    let zeros = [0u8; 64];
    let mut at = 0;
    while at < image.0.len() {
        // Flip one bit in a run of 64 zeros, every bit elsewhere.
        let blank = image.0[at..].starts_with(&zeros);
        for bit in 0..if blank { 1 } else { 8 } {
            image.0[at] ^= 1 << bit;
            if run(&image, &log, true).is_sound() {
                harmless += 1;
                assert_eq!(tree::read(&image.0), tree, "byte {at} bit {bit}");
                let free = at as u64 / PAGE == 1 || at as u64 >= store.image().len() as u64 - 400 || blank;
                assert!(free, "byte {at} bit {bit} is covered by a sum");
            }
            image.0[at] ^= 1 << bit;
        }
        at += if blank { 64 } else { 1 };
    }
    assert!(harmless > 0, "page 1 has bytes that mean nothing");
}

#[test]
fn flipped_bits_without_sums_never_panic() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        let mut store = Store::sample(kind);
        store.append_entries(&[Entry::Zero { at: Offset::new(60 << 16), len: 70_000 }]);
        let mut image = if kind.has_ring() { store.memory().0 } else { store.image() };
        let mut random = Random(0x5eed);
        let used: Vec<usize> = (0..image.len()).filter(|&at| image[at] != 0).collect();
        let (mut found, started) = (0, Instant::now());
        for _ in 0..4000 {
            let at = used[random.below(used.len())];
            let bit = 1 << random.below(8);
            image[at] ^= bit;
            let report = if kind.has_ring() {
                crate::store::check_memory(&Memory(image.clone()))
            } else {
                run(&Image(image.clone()), &store.log_device(), false)
            };
            image[at] ^= bit;
            found += u32::from(!report.is_sound());
        }
        assert!(found > 200, "{found} of 4000 flips found without sums");
        assert!(started.elapsed() < Duration::from_secs(300));
    }
}

#[test]
fn forged_inodes_with_valid_checksums_never_panic() {
    let mut random = Random(0xf0f0);
    let pristine = Store::sample(MemoryKind::Logged);
    let log = pristine.log_device();
    let inodes: Vec<u32> = pristine.inodes.keys().copied().collect();
    let references: Vec<u64> = pristine.inodes.values().map(|inode| inode.root.bits()).collect();
    for round in 0..3000 {
        let ino = inodes[random.below(inodes.len())];
        let at = pristine.inode_at(ino).get() as usize;
        let mut image = Image(pristine.image());
        for _ in 0..1 + random.below(3) {
            let field = [0, 2, 3, 4, 16, 64, 72, 80, 88][random.below(9)];
            let forged = match random.below(3) {
                0 => references[random.below(references.len())],
                1 => random.next(),
                _ => random.next() % 64,
            };
            let width = [1, 2, 4, 8][random.below(4)].min(92 - field);
            image.0[at + field..at + field + width].copy_from_slice(&forged.to_le_bytes()[..width]);
        }
        let crc = shoal_format::checksum(0, &image.0[at..at + 92]);
        image.0[at + 92..at + 96].copy_from_slice(&crc.to_le_bytes());
        let report = run(&image, &log, false);
        assert!(report.errors.len() < 5000, "round {round}");
    }
}

#[test]
fn noise_in_place_of_structures_never_panics() {
    let mut random = Random(0xabcdef);
    let pristine = Store::sample(MemoryKind::Logged);
    let log = pristine.log_device();
    let image = pristine.image();
    let pages: Vec<usize> =
        (2..image.len() / 4096).filter(|p| image[p * 4096..][..4096].iter().any(|b| *b != 0)).collect();
    for _ in 0..2000 {
        let mut image = Image(image.clone());
        for _ in 0..1 + random.below(4) {
            let page = pages[random.below(pages.len())] * 4096;
            let (from, len) = (page + random.below(4096), 1 + random.below(200));
            let pattern = random.next();
            for at in from..(from + len).min(image.0.len()) {
                image.0[at] = if pattern & 1 == 0 { random.next() as u8 } else { (pattern >> 8) as u8 };
            }
        }
        run(&image, &log, false);
    }
    for _ in 0..500 {
        let noise: Vec<u8> = (0..20_000).map(|_| random.next() as u8).collect();
        assert!(!run(&Image(noise), &log, true).is_sound());
    }
}

#[test]
fn forged_records_never_panic() {
    let mut random = Random(0x10c);
    for _ in 0..300 {
        let mut store = Store::sample(MemoryKind::Dax);
        for _ in 0..4 {
            let len = random.below(200);
            let payload: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let at = random.next() % store.superblock.region_bytes;
            if random.below(2) == 0 {
                store.append(shoal_format::record::RecordKind::Tx, &payload);
            } else {
                let at = Offset::new(at.min(store.superblock.region_bytes - 200));
                store.append_entries(&[Entry::Write { at, bytes: &payload }, Entry::Zero { at, len: 9 }]);
            }
        }
        store.check();
    }
}

#[test]
fn a_forged_size_costs_no_time_and_no_memory() {
    use shoal_format::superblock::{Geometry, Superblock};
    use zerocopy::IntoBytes;
    let geometry = Geometry {
        memory_kind: MemoryKind::Logged,
        uuid: [7; 16],
        region_bytes: 1 << 40,
        bulk_blocks: 1 << 40,
        ring_bytes: 0,
        threshold: 1,
        hash_seed: 1,
        created_ns: 1,
    };
    let mut anchor = Store::tiny().anchor;
    anchor.used_bytes = (1 << 40).into();
    let mut image = Superblock::layout(geometry).unwrap().encode().to_vec();
    image.resize(3 * PAGE as usize, 0);
    image[PAGE as usize..PAGE as usize + 128].copy_from_slice(anchor.sealed().as_bytes());
    let started = Instant::now();
    let log = Store::tiny().log_device();
    for sums in [true, false] {
        let report = run(&Image(image.clone()), &log, sums);
        assert!(!report.is_sound() && report.errors.len() + report.omitted as usize > 1);
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}
