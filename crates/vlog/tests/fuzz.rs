//! Damaged and hostile devices: opening and reading them ends, with a result or a typed error, and never panics.
//!
//! Bytes are changed at random; records, superblock and tail are also forged with right checksums, as somebody could who knows
//! the salt. What can be opened can be read, written, compacted, closed and opened again.

mod common;

use common::{BLOCK, Kind, Life, ask};
use shoal_format::vlog::{Link, Record, Superblock, TAIL_AT, Tail};
use shoal_media::{BlockDevice, Request};
use shoal_sim::{Random, World};

/// A device with a life behind it, closed or not.
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

fn use_it(kind: Kind, bytes: &[u8], random: &mut Random) -> bool {
    let world = World::new(1);
    let device = world.add_disk(bytes.len() as u64);
    device.write_from(0, bytes).unwrap();
    let Ok((disk, recovery)) = kind.open(device.clone()) else { return false };
    assert!(recovery.blocks_read <= 4 * kind.blocks(), "{recovery:?}");
    let size = disk.geometry().bytes;
    for at in (0..size).step_by(BLOCK) {
        // An error is an answer.
        let _ = disk.read_into(at, &mut [0; BLOCK]);
    }
    for n in 0..60u64 {
        let at = random.below(size / BLOCK as u64) * BLOCK as u64;
        let _ = ask(&disk, Request::Write { at, buffer: vec![n as u8; BLOCK], fua: n % 5 == 0 });
        let _ = disk.compact_step();
    }
    if disk.close().is_ok() {
        drop(disk);
        // What was closed can be opened.
        kind.open(device).unwrap();
    }
    true
}

#[test]
fn changed_bytes_are_survived() {
    let (mut opened, mut tried) = (0, 0);
    for seed in 0..40 {
        let kind = if seed % 3 == 0 { Kind::Anywhere } else { Kind::Segments };
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
            opened += use_it(kind, &bytes, &mut random) as u32;
        }
    }
    assert!(opened > tried / 3, "{opened} of {tried} could be opened");
}

#[test]
fn forged_records_are_survived() {
    for seed in 100..160 {
        let kind = if seed % 3 == 0 { Kind::Anywhere } else { Kind::Segments };
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
            let tail = Tail { generation: 1 << 40, root, durable: random.below(1000) };
            let at = TAIL_AT[0] as usize * BLOCK;
            bytes[at..at + BLOCK].copy_from_slice(&tail.encode(&superblock));
        }
        use_it(kind, &bytes, &mut random);
    }
}
