//! Pasts and operations, and which pairs of them are tried.
//!
//! Most stores have a threshold of 80 KiB. `F` is in the region and begins with a long write, like
//! a copy in progress. `G` and `S` are small. `L` is large and ends within a block.
//! Where one operation of the pair packs files, the threshold is 400 KiB. `P` has two groups that
//! compress. `N` is noise that gets a checksum where it lies. `R` is one group of two chunks, and
//! `G` is one slot.

use crate::crash::operation::Operation::{self, *};
use crate::store::Setup;
use shoal_format::superblock::MemoryKind;
use shoal_fs::RenameMode::Replace;

const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;

/// Returns a setup with both tiers, as small as the operations allow: a run opens a hundred
/// thousand such stores.
pub fn setup(kind: MemoryKind) -> Setup {
    Setup { bulk_blocks: 16, region_bytes: 28 << 16, ring_bytes: 128 << 10, ..Setup::two_tiers(kind) }
}

/// Stores, their pasts, and the pairs of operations that follow.
pub struct Field {
    pub setup: fn(MemoryKind) -> Setup,
    pub pasts: Vec<Past>,
    pub pairs: Vec<[Operation; 2]>,
}

pub fn general() -> Field {
    Field { setup, pasts: pasts(), pairs: pairs() }
}

/// Returns pairs in which one operation packs files.
pub fn packing() -> Field {
    let setup = |kind| Setup { threshold: 400 << 10, ring_bytes: 512 << 10, region_bytes: 64 << 16, ..setup(kind) };
    let made = [
        Create("P"),
        Write("P", 0, 170_001, 2),
        Create("N"),
        Write("N", 0, 70_000, 3),
        Create("R"),
        Write("R", 0, 40_000, 4),
        Create("G"),
        Write("G", 0, 3000, 6),
    ];
    let past = |name, more: &[Operation]| Past { name, operations: made.iter().chain(more).cloned().collect() };
    let pasts = vec![
        past("plain", &[]),
        past("packed", &[PackAll, Sync]),
        past("cut packed", &[PackAll, Truncate("P", 140_000), Truncate("N", 40_000), Sync]),
        past("spilled", &[PackAll, SpillAll, Sync]),
        past("half spilled", &[Sync, SpillAll, Write("P", 150_000, 300, 8), Truncate("N", 40_000)]),
        past("half packed", &[Sync, PackAll, Write("P", 150_000, 300, 8), Write("R", 100, 200, 10)]),
    ];
    let packers = [PackAll, Pack("P"), PackCooled, PackInodes, SpillAll, BringBack, CleanSpilled];
    let others =
        syncing().into_iter().map(|other| if other == Fsync("F") || other == Fsync("L") { Fsync("P") } else { other });
    let others: Vec<Operation> = others.chain(beside_packing()).chain(packers.clone()).collect();
    let pairs = packers.iter().flat_map(|packer| others.iter().map(|other| [packer.clone(), other.clone()])).collect();
    Field { setup, pasts, pairs }
}

fn beside_packing() -> Vec<Operation> {
    vec![
        // In place, in each group, over both, and at the end.
        Write("P", 100, 300, 20),
        Write("P", 165_000, 300, 22),
        Write("P", 120_000, 30_000, 24),
        Write("P", 170_001, 5000, 26),
        Write("P", 330_000, 100, 28),
        Write("N", 69_990, 20, 21),
        Write("R", 32_000, 2000, 23),
        Write("G", 0, 3000, 25),
        Write("G", 3000, 100, 27),
        // To the bulk device.
        Write("P", 170_001, 240_000, 30),
        Truncate("P", 150_000),
        Truncate("P", 100_000),
        Truncate("P", 10_000),
        Truncate("P", 0),
        Truncate("P", 300_000),
        Truncate("N", 1000),
        Truncate("R", 50_000),
        Chmod("P", 0o600),
        SetXattr("R", "user.a", 300, 9),
        Rename("R", "P", Replace),
        Rename("P", "R", Replace),
        Rename("G", "new", Replace),
        Link("P", "new"),
        Unlink("P"),
        Unlink("N"),
        Create("new"),
        Fallocate("P", PUNCH_HOLE | KEEP_SIZE, 0, 131_072),
        Fallocate("P", PUNCH_HOLE | KEEP_SIZE, 100_000, 60_000),
        Fallocate("R", ZERO_RANGE, 30_000, 5000),
        Fallocate("R", KEEP_SIZE, 40_000, 100_000),
        Fallocate("P", 0, 0, 250_000),
        Copy("P", 0, "R", 0, 131_072),
        Copy("R", 0, "P", 150_000, 20_000),
    ]
}

/// Returns pairs of operations on a file of which an fsync has put a page into the log. A tick
/// promises nothing behind a cache, so there is none.
pub fn absorbing() -> Field {
    let setup = |kind| Setup { cached: true, ..setup(kind) };
    let small = |at, tag| Write("L", at, 100, tag);
    let synced = [Fsync("L"), Sync, small(70_000, 31), Fsync("L")];
    let and = |more: &[Operation]| young().into_iter().chain(synced.clone()).chain(more.iter().cloned()).collect();
    let pasts = vec![
        Past { name: "absorbed", operations: and(&[]) },
        Past { name: "newer", operations: and(&[small(70_000, 32)]) },
        Past { name: "two pages", operations: and(&[small(70_000, 33), small(1000, 34)]) },
        Past { name: "appended", operations: and(&[Write("L", 150_001, 300, 35)]) },
    ];
    let others = [
        small(70_050, 36),
        small(3000, 37),
        Write("L", 140_000, 20_000, 38),
        Write("F", 66_000, 30_000, 39),
        Truncate("L", 0),
        Truncate("L", 70_010),
        Truncate("L", 30_000),
        Unlink("L"),
        Rename("L", "F", Replace),
        Rename("G", "L", Replace),
        Fallocate("L", PUNCH_HOLE | KEEP_SIZE, 65_536, 65_536),
        Copy("L", 0, "S", 0, 100_000),
        Fsync("L"),
        Fsync("G"),
        Sync,
        Checkpoint,
    ];
    let first = [Fsync("L"), Sync];
    let pairs = first.iter().flat_map(|sync| others.iter().map(|other| [sync.clone(), other.clone()])).collect();
    Field { setup, pasts, pairs }
}

/// Returns pairs in which one operation moves a file to the other tier.
pub fn rebalancing() -> Field {
    let setup = |kind| Setup { bulk_blocks: 40, ring_bytes: 512 << 10, region_bytes: 64 << 16, ..setup(kind) };
    let and = |more: &[Operation]| young().into_iter().chain(more.iter().cloned()).collect();
    let long = [Create("H"), Write("H", 0, 600_000, 7)];
    let pasts = vec![
        Past { name: "young", operations: and(&[]) },
        Past { name: "synced", operations: and(&[Sync]) },
        Past { name: "long", operations: and(&long) },
        Past { name: "long synced", operations: and(&[&long[..], &[Sync]].concat()) },
        Past { name: "replaced", operations: and(&replaced()) },
    ];
    let moves = [("L", 1 << 20), ("S", 8192), ("F", 8192), ("H", 1 << 20)].map(|(path, given)| Rebalance(path, given));
    let others = [
        Times("L", 7, 5),
        Times("S", 7, 5),
        Chmod("L", 0o600),
        Link("L", "new"),
        Rename("L", "new", Replace),
        Fsync("S"),
        Write("S", 100, 300, 19),
        Write("H", 300_000, 3000, 20),
        Truncate("H", 100_000),
        Unlink("H"),
        Times("H", 7, 5),
        Rebalance("L", 1 << 20),
        Rebalance("S", 8192),
    ];
    let others: Vec<Operation> = syncing().into_iter().chain(changing()).chain(others).collect();
    let pairs = moves.iter().flat_map(|one| others.iter().map(|other| [one.clone(), other.clone()])).collect();
    Field { setup, pasts, pairs }
}

/// Operations that this process ran before the pair.
#[derive(Clone)]
pub struct Past {
    pub name: &'static str,
    pub operations: Vec<Operation>,
}

fn young() -> Vec<Operation> {
    vec![
        Create("G"),
        Write("G", 0, 3000, 2),
        Create("S"),
        Write("S", 0, 40_000, 3),
        Create("L"),
        Write("L", 0, 150_001, 4),
        Create("F"),
        Write("F", 0, 66_000, 1),
    ]
}

/// New contents after a truncation, a file `N` that may take another's name, and a file that took
/// one. None of these changes is synced.
fn replaced() -> Vec<Operation> {
    vec![
        Sync,
        Create("N"),
        Write("N", 0, 66_000, 8),
        Truncate("L", 0),
        Write("L", 0, 140_000, 7),
        Create("T"),
        Write("T", 0, 66_000, 9),
        Rename("T", "F", Replace),
    ]
}

pub fn pasts() -> Vec<Past> {
    let and = |more: &[Operation]| young().into_iter().chain(more.iter().cloned()).collect();
    vec![
        Past { name: "young", operations: young() },
        Past { name: "synced", operations: and(&[Sync]) },
        Past { name: "cut", operations: and(&[Sync, Truncate("L", 140_000), Fsync("L")]) },
        Past { name: "fresh", operations: and(&[Sync, Write("L", 150_001, 60_000, 5), Fsync("G")]) },
        Past { name: "replaced", operations: and(&replaced()) },
        Past { name: "freed", operations: and(&[Sync, Truncate("L", 65_536), Write("S", 30_000, 60_000, 6)]) },
    ]
}

/// Returns the operations that make changes durable.
pub fn syncing() -> Vec<Operation> {
    vec![Fsync("G"), Fsync("F"), Fsync("L"), Sync, Tick, Checkpoint]
}

/// Returns operations that change something, each in one step of its tier.
pub fn changing() -> Vec<Operation> {
    vec![
        // Across the threshold, by much and by one byte.
        Write("F", 66_000, 30_000, 10),
        Write("F", 81_920, 1, 11),
        Write("S", 40_000, 60_000, 12),
        // In place, in both tiers.
        Write("F", 100, 300, 13),
        Write("L", 1000, 70_000, 14),
        // At the cut and at the end.
        Write("L", 140_000, 3000, 15),
        Write("L", 150_001, 3000, 16),
        Write("L", 200_000, 1000, 17),
        Truncate("L", 140_000),
        Truncate("L", 30_000),
        Truncate("L", 200_000),
        Truncate("L", 0),
        Truncate("F", 1000),
        Truncate("F", 100_000),
        Rename("L", "F", Replace),
        Rename("F", "L", Replace),
        Rename("G", "L", Replace),
        Rename("G", "new", Replace),
        Unlink("L"),
        Unlink("F"),
        Create("new"),
        Fallocate("L", PUNCH_HOLE | KEEP_SIZE, 0, 131_072),
        Fallocate("L", ZERO_RANGE, 60_000, 10_000),
        Fallocate("F", 0, 0, 100_000),
        Copy("L", 0, "S", 0, 100_000),
        Copy("F", 0, "L", 150_001, 60_000),
    ]
}

/// Returns each pair of a syncing and a changing operation, then the pairs of changes, then the
/// pairs of syncing operations. The schedule decides the order within a pair.
pub fn pairs() -> Vec<[Operation; 2]> {
    let (syncing, changing) = (syncing(), changing());
    let mut pairs = Vec::new();
    for change in &changing {
        pairs.extend(syncing.iter().map(|sync| [sync.clone(), change.clone()]));
    }
    for (number, one) in changing.iter().enumerate() {
        pairs.extend(changing[number..].iter().map(|other| [one.clone(), other.clone()]));
    }
    for (number, one) in syncing.iter().enumerate() {
        pairs.extend(syncing[number..].iter().map(|other| [one.clone(), other.clone()]));
    }
    pairs
}
