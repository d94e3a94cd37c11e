//! Damaged and hostile devices: opening and reading them ends with a result or a typed error, and
//! never panics.
//!
//! Bytes are changed at random. Records, superblock and tail are also forged with correct
//! checksums, as by an attacker who knows the salt. A disk that can be opened can be read, written,
//! compacted, closed and opened again.

use crate::common::{BLOCK, Kind, Life, ask};
use shoal_format::vlog::map::{Directory, List, MapPiece, decode_map, encode_map};
use shoal_format::vlog::{Checkpoint, Link, Record, Superblock, TAIL_AT, Tail};
use shoal_media::{BlockDevice, Request};
use shoal_sim::{Random, World};

/// Returns the bytes of a device after a random life, closed or not.
fn used(kind: Kind, seed: u64) -> Vec<u8> {
    let world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    let mut life = Life::new(kind, device.clone(), seed);
    (0..120).for_each(|_| life.step());
    if seed.is_multiple_of(2) {
        life.disk.close().unwrap();
    }
    let mut bytes = vec![0; device.geometry().bytes as usize];
    device.read_into(0, &mut bytes).unwrap();
    bytes
}

fn use_it(kind: Kind, bytes: &[u8], random: &mut Random, hides: bool) -> bool {
    let world = World::new(1);
    let device = world.add_disk(bytes.len() as u64);
    device.write_from(0, bytes).unwrap();
    let Ok((disk, recovery)) = kind.open(device.clone()) else { return false };
    assert!(recovery.blocks_read <= 4 * kind.blocks(), "{recovery:?}");
    let size = disk.geometry().bytes;
    for at in (0..size).step_by(BLOCK) {
        // An error is an acceptable answer.
        let _ = disk.read_into(at, &mut [0; BLOCK]);
    }
    for n in 0..60u64 {
        let at = random.below(size / BLOCK as u64) * BLOCK as u64;
        let _ = ask(&disk, Request::Write { at, buffer: vec![n as u8; BLOCK], fua: n % 5 == 0 });
        let _ = disk.compact_step();
    }
    if disk.close().is_ok() {
        drop(disk);
        // A closed disk can be opened, unless it hides records that come to light later.
        let again = kind.open(device);
        assert!(hides || again.is_ok(), "{:?}", again.err());
    }
    true
}

#[test]
fn changed_bytes_are_survived() {
    let (mut opened, mut tried) = (0, 0);
    for seed in 0..40 {
        let kind = Kind::of(seed);
        let clean = used(kind, seed);
        let mut random = Random::new(seed);
        for _ in 0..12 {
            let mut bytes = clean.clone();
            for _ in 0..1 + random.below(30) {
                let at = random.below(bytes.len() as u64) as usize;
                let end = (at + 1 + random.below(700) as usize).min(bytes.len());
                random.fill(&mut bytes[at..end]);
            }
            tried += 1;
            opened += use_it(kind, &bytes, &mut random, false) as u32;
        }
    }
    assert!(opened > tried / 3, "{opened} of {tried} could be opened");
}

#[test]
fn forged_records_are_survived() {
    for seed in 100..160 {
        let kind = Kind::of(seed);
        let mut bytes = used(kind, seed);
        let mut random = Random::new(seed);
        let superblock = Superblock::decode(&bytes[..BLOCK]).unwrap();
        let blocks = superblock.physical_blocks;
        for at in 4..blocks {
            let place = at as usize * BLOCK..(at as usize + 1) * BLOCK;
            let Ok(mut record) = Record::decode(&bytes[place.clone()], at, &superblock) else { continue };
            let block = |random: &mut Random| 4 + random.below(blocks as u64 - 4) as u32;
            match random.below(10) {
                0 => record.skip = random.below(70) as u16,
                1 => record.seq += 1 + random.below(1000),
                2 => record.durable = record.seq - 1,
                3 => record.mapped = random.below(10) as u32,
                4 => record.links = (0..20).map(|n| Link { at: block(&mut random), seq: n }).collect(),
                5 => record
                    .pieces
                    .iter_mut()
                    .for_each(|piece| piece.entries[random.below(8) as usize].at = block(&mut random)),
                6 => record.pieces.iter_mut().for_each(|piece| piece.changed = random.next_u64() as u8),
                _ => continue,
            }
            bytes[place].copy_from_slice(&record.encode(&superblock));
        }
        if random.below(3) == 0 {
            let root = Some(Link { at: 4 + random.below(blocks as u64 - 4) as u32, seq: random.below(100) });
            let tail = Tail { generation: 1 << 40, root, durable: random.below(1000), checkpoint: None };
            let at = TAIL_AT[0] as usize * BLOCK;
            bytes[at..at + BLOCK].copy_from_slice(&tail.encode(&superblock));
        }
        use_it(kind, &bytes, &mut random, false);
    }
}

/// Tests forged map blocks, with a directory that has their checksums, and forged lists.
#[test]
fn forged_checkpoints_are_survived() {
    let (mut opened, mut loaded) = (0, 0);
    for seed in 200..320u64 {
        let kind = if seed % 4 == 0 { Kind::Larger } else { Kind::Segments };
        let mut bytes = used(kind, seed);
        let mut random = Random::new(seed);
        let superblock = Superblock::decode(&bytes[..BLOCK]).unwrap();
        let place = |at: u32| at as usize * BLOCK..(at as usize + 1) * BLOCK;
        let tails = TAIL_AT.iter().filter_map(|&at| Tail::decode(&bytes[place(at)], &superblock).ok());
        let tail = tails.max_by_key(|tail| tail.generation).unwrap();
        let Checkpoint { number, side } = tail.checkpoint.unwrap();
        let at = superblock.directory_at(side, 0);
        let mut directory = Directory::decode(&bytes[place(at)], &superblock).unwrap();
        assert_eq!(directory.number, number);
        let within = superblock.segments() as u64 * superblock.segment_blocks as u64;
        let mut block = || 4 + random.below(within) as u32;
        for index in 0..superblock.map_blocks() {
            let (slot, sum) = directory.get(index as usize).unwrap_or((0, 0));
            let at = superblock.map_at(slot, index);
            let mut pieces: Vec<MapPiece> = vec![];
            let _ = decode_map(&superblock, &bytes[place(at)], index, sum, |_, piece| pieces.push(piece));
            pieces.resize(4, MapPiece::default());
            let piece = &mut pieces[index as usize % 4];
            match seed % 5 {
                0 => piece.entries[seed as usize % 8].at = block(),
                1 => piece.record = block(),
                2 => piece.record = 4,
                3 => *piece = MapPiece::default(),
                _ => piece.entries[1].sum ^= 1,
            }
            let (block, sum) = encode_map(&superblock, number, index, &pieces);
            bytes[place(at)].copy_from_slice(&block);
            directory.set(index as usize, slot, sum);
        }
        bytes[place(at)].copy_from_slice(&directory.encode(&superblock));
        if seed % 3 == 0 {
            let segments = vec![seed as u32 % superblock.segments(); 1000];
            let list = List { number, after: seed, index: 0, segments };
            (0..2).for_each(|copy| {
                bytes[place(superblock.list_at(side, copy, 0))].copy_from_slice(&list.encode(&superblock))
            });
        }
        let world = World::new(1);
        let device = world.add_disk(bytes.len() as u64);
        device.write_from(0, &bytes).unwrap();
        loaded += kind.open(device).is_ok_and(|(_, recovery)| recovery.checkpoint) as u32;
        // A list that omits segments hides their records.
        opened += use_it(kind, &bytes, &mut random, seed % 3 == 0) as u32;
    }
    assert!(opened > 20 && loaded > 20, "{opened} could be opened, {loaded} of them from the checkpoint");
}
