//! Operations that must still work on a recovered store: every file can be deleted, the space is
//! back, files can be created again, and the store can be remounted.
//!
//! Rules: after everything is deleted, only the inode table's own pieces and the dictionaries may
//! be left in the region, and nothing on the bulk device. Both the engine's counts and the offline
//! checker's must say so.

use shoal_format::SlotRef;
use shoal_format::inode::{INODE_BLOCK, S_IFDIR, S_IFMT, TABLE_FANOUT, TABLE_NODE};
use shoal_format::superblock::{ROOTS_AT, Roots};
use shoal_fs::{Fs, Ino, ROOT};
use shoal_region::View;
use shoal_sim::SimClock;
use zerocopy::FromBytes;

use super::operation::{Actor, Operation};
use super::tree::Tree;
use crate::store::{Store, check, open};

/// Bytes of a segment that no slot of its class may cover.
const SEGMENT_LOSS: u64 = 5 << 10;

/// Deletes everything below a directory.
pub fn delete_all(fs: &Fs, dir: Ino) -> Result<(), String> {
    let mut entries = Vec::new();
    let listed = fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    });
    listed.map_err(|e| format!("listing {dir}: {e}"))?;
    for (name, ino, kind) in entries {
        let outcome = if kind as u32 == (S_IFDIR & S_IFMT) as u32 >> 12 {
            delete_all(fs, ino)?;
            fs.rmdir(dir, &name)
        } else {
            fs.unlink(dir, &name)
        };
        outcome.map_err(|e| format!("deleting {}: {e}", String::from_utf8_lossy(&name)))?;
    }
    Ok(())
}

/// Deletes everything; the space must be back.
pub fn empty(fs: &Fs, clock: &SimClock) -> Result<(), String> {
    delete_all(fs, ROOT)?;
    // Spilled blocks are given back in the background. The first tick may only look for them.
    fs.spilling().spill_tick().and_then(|()| fs.spilling().spill_tick()).map_err(|e| format!("spilled files: {e}"))?;
    fs.sync().map_err(|e| format!("sync: {e}"))?;
    clock.advance(2_000_000_000);
    fs.upkeep().tick().map_err(|e| format!("tick: {e}"))?;
    let usage = fs.usage();
    if (usage.inodes, usage.directories, usage.large_files, usage.bulk_used, usage.bulk_pending) != (1, 1, 0, 0, 0) {
        return Err(format!("after deleting everything: {usage:?}"));
    }
    let touched = fs.region().space().touched_bytes / shoal_format::SEGMENT;
    let back = usage.region_free + table_bytes(fs)? + fs.devices().sums_bytes() + 128 + touched * SEGMENT_LOSS;
    if back < usage.region_bytes - usage.region_fixed {
        return Err(format!("space of the region is not back: {usage:?}"));
    }
    Ok(())
}

/// Counts the pieces of the inode table. Returns the number of nodes together with the copies of
/// the tables of packed inodes and of dictionaries, the number of blocks, and the bytes of those
/// copies.
fn table(fs: &Fs) -> Result<(u64, u64, u64), String> {
    let mut bytes = [0; size_of::<Roots>()];
    fs.region().read(ROOTS_AT, &mut bytes).map_err(|e| format!("roots: {e}"))?;
    let roots = Roots::read_from_bytes(&bytes).expect("size is exact");
    assert!(roots.inode_blocks.get() <= TABLE_FANOUT, "these stores have one node");
    let copies = roots.inode_tables.iter().filter(|bits| bits.get() != 0);
    let slots = copies.map(|bits| SlotRef::from_bits(bits.get()).expect("a reference"));
    let (count, bytes) = slots.fold((0, 0), |(count, bytes), slot| (count + 1, bytes + slot.capacity()));
    let report = fs.cooling().packing_report().map_err(|e| format!("report: {e}"))?;
    let dictionaries = if report.dictionary_bytes > 0 { 2 + 2 * report.dictionaries } else { 0 };
    Ok((1 + count + dictionaries, roots.inode_blocks.get(), bytes + report.dictionary_bytes))
}

fn table_bytes(fs: &Fs) -> Result<u64, String> {
    let (nodes, blocks, bytes) = table(fs)?;
    // This is generous, because the copies are also counted as nodes.
    Ok(nodes * TABLE_NODE + blocks * INODE_BLOCK + bytes)
}

/// Tries everything that must still work on a store just recovered.
pub fn examine(store: Store, again: &[Operation]) -> Result<(), String> {
    let Store { setup, world, fs, clock, boot, .. } = store;
    empty(&fs, &clock)?;
    for operation in again {
        let mut actor = Actor { fs: &fs, clock: &clock, held: &mut Vec::new() };
        clock.advance(1_000_000);
        operation.apply(&mut actor).map_err(|e| format!("afterwards, {operation:?}: {e}"))?;
    }
    let written = Tree::read(&fs)?;
    fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    drop(fs);
    check(setup, &world, false)?;
    let store = open(setup, world, boot.after(false))?;
    if !store.recovery.clean {
        return Err("a clean end was not recognised".into());
    }
    if Tree::read(&store.fs)? != written {
        return Err("what was created afterwards differs after a remount".into());
    }
    empty(&store.fs, &store.clock)?;
    let (nodes, blocks, _) = table(&store.fs)?;
    let sums = store.fs.devices().sums_bytes() / shoal_format::SEGMENT;
    store.fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    let counts = check(setup, &store.world, false)?.counts;
    // The root directory may keep one bucket; checksums stay in runs of one segment.
    let slots = nodes + blocks + sums..=nodes + blocks + sums + 1;
    if counts.inodes != 1 || counts.bulk_blocks_used != 0 || !slots.contains(&counts.slots) {
        return Err(format!("after deleting everything the checker counts {counts:?}, the table has {slots:?}"));
    }
    Ok(())
}
