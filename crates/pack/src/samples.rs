//! Records for tests: realistic trees, and arbitrary records.
//!
//! Owns: record shapes shared by the tests of all modules, each made from one seed. Rules:
//! neighbours in a tree resemble each other, so that tables and bases have something to find. An
//! arbitrary record may hold any value in any field.

use shoal_sim::Random;

use crate::record::Record;
use crate::triplet::Triplets;

/// Returns an arbitrary record. Small and absent values are as frequent as large ones.
pub(crate) fn arbitrary(random: &mut Random) -> Record {
    let mut any = |bits: u64| {
        let value = random.next_u64();
        if value.is_multiple_of(3) { 0 } else { random.next_u64() >> (64 - bits) >> random.below(bits) }
    };
    let mut record = Record {
        mode: any(16) as u16,
        links: any(32) as u32,
        uid: any(32) as u32,
        gid: any(32) as u32,
        size: any(64),
        flags: any(32) as u32,
        generation: any(32) as u32,
        rdev: any(32) as u32,
        xattr: any(64),
        data: any(64),
        allocated: any(64),
        parent: any(32) as u32,
        layout: any(8) as u8,
        ..Record::default()
    };
    record.set_times([any(64), any(64), any(64), any(64)].map(|time| time as i64));
    record
}

/// Returns a tree of files and directories whose times and owners resemble each other.
pub(crate) fn tree(seed: u64, files: usize) -> Vec<Record> {
    let mut random = Random::new(seed);
    let mut now = 1_700_000_000_000_000_000i64 + random.below(1 << 50) as i64;
    let owner = random.below(3) as u32 * 1000;
    (0..files)
        .map(|at| {
            now += random.below(5_000_000_000) as i64;
            let is_dir = random.below(8) == 0;
            let mut record = Record {
                mode: if is_dir { 0o040755 } else { 0o100600 + 0o44 * random.below(2) as u16 },
                links: if is_dir { 2 + random.below(4) as u32 } else { 1 },
                uid: owner,
                gid: owner,
                size: random.next_u64() >> (44 + random.below(20)),
                generation: 1,
                ..Record::default()
            };
            let old = 1_500_000_000_000_000_000 + (at / 20) as i64 * 1_000_000_000;
            match random.below(3) {
                0 => record.set_times([now, now, old, now]),
                1 => record.set_times([now + random.below(1 << 30) as i64, now, now, now]),
                _ => record.set_times([now, now, now, now + random.below(1 << 55) as i64]),
            }
            record
        })
        .collect()
}

/// Builds a table with the triplets of these records.
pub(crate) fn context_of<'a>(records: impl Iterator<Item = &'a Record>) -> Triplets {
    let mut triplets = Triplets::new();
    for record in records {
        triplets.acquire(record.triplet()).expect("the table is large enough");
    }
    triplets
}
