//! Operations on files and directories of every layout: one slot, chunks, extents; packed, about to be hashed, hashed.
//!
//! The threshold is 40,000 bytes, so that each change of the tier is short. Besides those of
//! `workload`, there are operations on directories with many entries, flags, whiteouts, held
//! unnamed files, and every boundary of this smaller threshold.

use shoal_fs::RenameMode::{Exchange, NoReplace, Replace};

use super::operation::Operation::{self, *};
use super::operation::Path;
use super::workload::{KEEP_SIZE, PUNCH_HOLE, Step, ZERO_RANGE};

pub fn preparation() -> Vec<Operation> {
    vec![
        Mkdir("A"),
        Mkdir("B"),
        Mkdir("A/C"),
        Mkdir("D"),
        Mkdir("E"),
        SetMethod("E", "lz4"),
        Mkdir("F"),
        Create("A/foo"),
        Write("A/foo", 0, 5000, 1),
        Create("A/bar"),
        Write("A/bar", 0, 150_000, 2),
        Create("B/foo"),
        Write("B/foo", 0, 35_000, 3),
        Create("B/big"),
        Write("B/big", 0, 41_000, 4),
        Create("B/empty"),
        Link("A/foo", "B/bar"),
        SetXattr("A/foo", "user.x", 50, 5),
    ]
    .into_iter()
    // One more entry makes `D` a hashed directory.
    .chain(files_in("D", 29))
    .chain(files_in("E", 90))
    .collect()
}

/// Returns one operation for each file. If nothing was synced, a power loss may leave any of these
/// states.
fn files_in(directory: Path, count: u64) -> impl Iterator<Item = Operation> {
    (0..count).map(move |number| Create(format!("{directory}/a-file-called-{number:04}").leak()))
}

pub fn operations() -> Vec<Step> {
    let steps = naming().into_iter().chain(writing()).chain(marking());
    steps.map(|(file, operation)| Step { file, operation }).collect()
}

fn naming() -> Vec<(&'static str, Operation)> {
    vec![
        ("B/new", Create("B/new")),
        ("new", Create("new")),
        ("D/a-file-called-new", Create("D/a-file-called-new")),
        ("E/a-file-called-new", Create("E/a-file-called-new")),
        ("A/C/new", Mkdir("A/C/new")),
        ("A/new", Fifo("A/new")),
        ("A/new", Symlink("A/new", 30)),
        ("A/C/new", Symlink("A/C/new", 3000)),
        ("A", TmpfileHeld("A")),
        ("B/new", Link("A/foo", "B/new")),
        ("A/C/bar", Link("A/bar", "A/C/bar")),
        ("A", Unlink("A/foo")),
        ("B", Unlink("B/foo")),
        ("A", Unlink("A/bar")),
        ("A", UnlinkHeld("A/bar")),
        ("E", Unlink("E/a-file-called-0005")),
        ("A", Rmdir("A/C")),
        ("A/new", Rename("A/foo", "A/new", Replace)),
        ("D", Rename("D/a-file-called-0001", "D/a-much-longer-name-for-a-file", Replace)),
        ("E", Rename("E/a-file-called-0001", "E/b", Replace)),
        ("B/new", Rename("A/foo", "B/new", Replace)),
        ("B/foo", Rename("A/foo", "B/foo", Replace)),
        ("A/bar", Rename("A/foo", "A/bar", Replace)),
        ("B/foo", Rename("A/bar", "B/foo", Replace)),
        // To the same inode.
        ("A/foo", Rename("A/foo", "B/bar", Replace)),
        ("B/C", Rename("A/C", "B/C", Replace)),
        ("F", Rename("A/C", "F", Replace)),
        ("B/A", Rename("A", "B/A", Replace)),
        ("B/new", Rename("A/foo", "B/new", NoReplace)),
        ("A/new", RenameLeavingWhiteout("A/foo", "A/new")),
        ("D", RenameLeavingWhiteout("D/a-file-called-0001", "D/a-much-longer-name-for-a-file")),
        ("A/bar", RenameLeavingWhiteout("B/foo", "A/bar")),
        ("B/C", RenameLeavingWhiteout("A/C", "B/C")),
        ("A/foo", SetFlags("A/foo")),
        ("A/foo", Rename("A/foo", "B/foo", Exchange)),
        ("A/C", Rename("B/big", "A/C", Exchange)),
    ]
}

fn writing() -> Vec<(&'static str, Operation)> {
    vec![
        ("A/foo", Write("A/foo", 5000, 300, 20)),
        ("A/foo", Write("A/foo", 1000, 700, 21)),
        ("A/foo", Write("A/foo", 20_000, 100, 22)),
        ("A/foo", Write("A/foo", 4000, 30_000, 23)),
        ("B/foo", Write("B/foo", 32_000, 2000, 24)),
        ("B/foo", Write("B/foo", 35_000, 20_000, 25)),
        ("A/bar", Write("A/bar", 150_000, 10, 26)),
        ("A/bar", Write("A/bar", 150_000, 120_000, 27)),
        ("A/bar", Write("A/bar", 66_000, 1500, 28)),
        ("A/bar", Write("A/bar", 65_536, 65_536, 29)),
        ("A/bar", Write("A/bar", 300_100, 900, 30)),
        ("B/empty", Write("B/empty", 0, 140_000, 31)),
        ("B/empty", Write("B/empty", 100_000, 50, 32)),
        ("A/foo", Truncate("A/foo", 1234)),
        ("A/foo", Truncate("A/foo", 0)),
        ("A/foo", Truncate("A/foo", 9000)),
        ("B/foo", Truncate("B/foo", 10_000)),
        ("A/foo", Truncate("A/foo", 100_000)),
        ("A/bar", Truncate("A/bar", 149_000)),
        ("A/bar", Truncate("A/bar", 70_000)),
        ("A/bar", Truncate("A/bar", 0)),
        ("A/bar", Truncate("A/bar", 10_000)),
        ("A/bar", Truncate("A/bar", 260_000)),
        ("A/foo", Fallocate("A/foo", 0, 4000, 6000)),
        ("A/foo", Fallocate("A/foo", KEEP_SIZE, 0, 38_000)),
        ("A/bar", Fallocate("A/bar", 0, 140_000, 200_000)),
        ("A/bar", Fallocate("A/bar", KEEP_SIZE, 200_000, 100_000)),
        ("B/empty", Fallocate("B/empty", 0, 0, 90_000)),
        ("A/foo", Fallocate("A/foo", PUNCH_HOLE | KEEP_SIZE, 100, 2000)),
        ("B/foo", Fallocate("B/foo", PUNCH_HOLE | KEEP_SIZE, 30_000, 4000)),
        ("A/bar", Fallocate("A/bar", PUNCH_HOLE | KEEP_SIZE, 60_000, 80_000)),
        ("A/bar", Fallocate("A/bar", PUNCH_HOLE | KEEP_SIZE, 1000, 3000)),
        ("A/foo", Fallocate("A/foo", ZERO_RANGE, 4000, 3000)),
        ("A/bar", Fallocate("A/bar", ZERO_RANGE, 60_000, 150_000)),
        ("A/bar", Fallocate("A/bar", ZERO_RANGE | KEEP_SIZE, 131_072, 65_536)),
        ("B/empty", Copy("A/foo", 0, "B/empty", 0, 5000)),
        ("B/empty", Copy("A/bar", 0, "B/empty", 0, 150_000)),
        ("A/bar", Copy("A/foo", 0, "A/bar", 149_000, 5000)),
    ]
}

fn marking() -> Vec<(&'static str, Operation)> {
    vec![
        ("B/foo", SetXattr("B/foo", "user.y", 20, 33)),
        ("A/foo", SetXattr("A/foo", "user.x", 3000, 34)),
        ("A", SetXattr("A", "trusted.z", 5, 35)),
        ("A/foo", RemoveXattr("A/foo", "user.x")),
        ("B", SetMethod("B", "zstd:19")),
        ("E", SetMethod("E", "off")),
        ("E", RemoveXattr("E", "user.shoal.compress")),
        ("A/foo", ChmodAndChown("A/foo", 0o4711, 5, 6)),
        ("A/bar", Times("A/bar", 7, 5)),
    ]
}
