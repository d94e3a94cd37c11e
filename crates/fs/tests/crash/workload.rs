//! The prepared tree and the operations tried on it: names A, B, A/C with foo and bar (testing.md, T5).
//!
//! The threshold is 80 KiB: smaller files live in the region, the others on the bulk device. A file
//! truncated below 40 KiB moves back. `D` is a directory whose next entry splits it.

use shoal_fs::RenameMode::{Exchange, NoReplace, Replace};
use shoal_sim::Random;

use super::operation::Operation::{self, *};

pub const KEEP_SIZE: i32 = 1;
pub const PUNCH_HOLE: i32 = 2;
pub const ZERO_RANGE: i32 = 16;

/// Makes a name so long that five of them overflow a directory's bucket.
macro_rules! long {
    ($number:literal) => {
        concat!(
            "D/a-name-of-about-two-hundred-bytes-so-that-five-of-them-are-too-many-for-one-bucket-of-a-directory-",
            "which-then-becomes-a-hashed-one-with-a-node-of-its-own-and-several-buckets-below-it-number-",
            $number
        )
    };
}

const LONG: [&str; 5] = [long!(1), long!(2), long!(3), long!(4), long!(5)];

/// Returns the operations that make the prepared tree.
pub fn preparation() -> Vec<Operation> {
    let mut operations = vec![
        Mkdir("A"),
        Mkdir("B"),
        Mkdir("A/C"),
        Mkdir("B/empty"),
        Mkdir("D"),
        // Direct, nearly filling the slot of its class.
        Create("foo"),
        Write("foo", 0, 3000, 1),
        // Two chunks.
        Create("bar"),
        Write("bar", 0, 40_000, 2),
        // On the bulk device, three blocks, the last one in part.
        Create("A/foo"),
        Write("A/foo", 0, 100_000, 3),
        Write("A/foo", 100_000, 50_001, 4),
        // In the region, with a hole.
        Create("A/bar"),
        Write("A/bar", 100, 100, 5),
        Write("A/bar", 70_000, 300, 6),
        // On the bulk device, with a hole, and with a second name.
        Create("B/bar"),
        Write("B/bar", 0, 70_000, 7),
        Write("B/bar", 300_000, 10_000, 8),
        Link("B/bar", "A/C/bar"),
        // Begun with a long write: a copy in progress.
        Create("B/foo"),
        Write("B/foo", 0, 66_000, 9),
        Create("A/C/foo"),
        Link("foo", "A/foo2"),
        Symlink("B/link", 40),
        Fifo("B/pipe"),
        SetXattr("foo", "user.small", 20, 10),
        SetXattr("bar", "user.big", 40 << 10, 11),
    ];
    operations.extend(LONG[..4].iter().map(|path| Create(path)));
    operations
}

/// An operation and the file whose fsync follows it in one of its variants.
pub struct Step {
    pub operation: Operation,
    pub file: &'static str,
}

pub fn operations() -> Vec<Step> {
    let steps = naming().into_iter().chain(writing()).chain(resizing()).chain(other());
    steps.map(|(file, operation)| Step { file, operation }).collect()
}

fn naming() -> Vec<(&'static str, Operation)> {
    vec![
        ("new", Create("new")),
        ("A/C/new", Create("A/C/new")),
        (LONG[4], Create(LONG[4])),
        ("new", Mkdir("new")),
        ("A/C/new", Mkdir("A/C/new")),
        ("new", Fifo("new")),
        ("new", Symlink("new", 30)),
        ("new", Symlink("new", 4000)),
        ("new", Tmpfile("new")),
        ("foo", Link("foo", "new")),
        ("A/foo", Link("A/foo", "B/new")),
        ("A", Unlink("A/C/foo")),
        ("B", Unlink("bar")),
        ("foo", Unlink("A/foo2")),
        ("A", Unlink("A/foo")),
        ("B", Unlink("A/C/bar")),
        ("B", Unlink("B/pipe")),
        ("B", Unlink("B/link")),
        ("B", UnlinkHeld("bar")),
        ("B", UnlinkHeld("A/foo")),
        ("A", Rmdir("B/empty")),
        ("new", Rename("foo", "new", Replace)),
        ("bar", Rename("foo", "bar", Replace)),
        ("B/foo", Rename("A/bar", "B/foo", Replace)),
        ("B/bar", Rename("bar", "A/foo", Replace)),
        ("bar", Rename("A/foo", "bar", Replace)),
        ("B/empty", Rename("A/C", "B/empty", Replace)),
        ("A", Rename("B/empty", "A/new", NoReplace)),
        ("A", Rename("A/C", "B/new", Replace)),
        ("A", Rename("A/C", "A/new", Replace)),
        ("A", Rename("A/C", "C", NoReplace)),
        ("A", Rename("foo", "A/new", NoReplace)),
        ("foo", Rename("foo", "A/foo", Exchange)),
        ("A", Rename("A/C", "B/empty", Exchange)),
        ("A", Rename("A/C", "foo", Exchange)),
        ("D", Rename("foo", LONG[4], Replace)),
        ("D", Rename(LONG[0], LONG[4], Replace)),
    ]
}

fn writing() -> Vec<(&'static str, Operation)> {
    vec![
        // Append: within the class, growing it, into the next chunk, into the bulk tier.
        ("foo", Write("foo", 3000, 40, 100)),
        ("foo", Write("foo", 3000, 4000, 101)),
        ("foo", Write("foo", 3000, 40_000, 102)),
        ("foo", Write("foo", 3000, 100_000, 103)),
        ("A/C/foo", Write("A/C/foo", 0, 500, 104)),
        ("A/C/foo", Write("A/C/foo", 0, 70_000, 105)),
        ("A/C/foo", Write("A/C/foo", 0, 200_000, 106)),
        ("A/C/foo", Write("A/C/foo", 50_000, 70_000, 107)),
        ("bar", Write("bar", 40_000, 50_000, 108)),
        ("B/foo", Write("B/foo", 66_000, 30_000, 109)),
        // Overwrite, into a hole.
        ("foo", Write("foo", 1000, 700, 110)),
        ("bar", Write("bar", 30_000, 9000, 111)),
        ("A/bar", Write("A/bar", 40_000, 1000, 112)),
        ("A/bar", Write("A/bar", 60_000, 3000, 113)),
        // On the bulk device: in place, over several blocks, appending, into a hole, far past the
        // end.
        ("A/foo", Write("A/foo", 1000, 700, 120)),
        ("A/foo", Write("A/foo", 60_000, 20_000, 121)),
        ("A/foo", Write("A/foo", 150_001, 999, 122)),
        ("A/foo", Write("A/foo", 150_001, 100_000, 123)),
        ("A/foo", Write("A/foo", 400_000, 10, 124)),
        ("B/bar", Write("B/bar", 200_000, 5000, 125)),
        ("A/foo", Write("A/foo", 30_000, 1_200_000, 126)),
    ]
}

fn resizing() -> Vec<(&'static str, Operation)> {
    vec![
        // Truncate: grow, shrink, to zero, in both tiers and between them.
        ("foo", Truncate("foo", 5000)),
        ("foo", Truncate("foo", 1000)),
        ("foo", Truncate("foo", 0)),
        ("foo", Truncate("foo", 70_000)),
        ("foo", Truncate("foo", 200_000)),
        ("bar", Truncate("bar", 35_000)),
        ("bar", Truncate("bar", 100)),
        ("bar", Truncate("bar", 90_000)),
        ("A/foo", Truncate("A/foo", 200_000)),
        ("A/foo", Truncate("A/foo", 140_000)),
        ("A/foo", Truncate("A/foo", 70_000)),
        ("A/foo", Truncate("A/foo", 30_000)),
        ("A/foo", Truncate("A/foo", 0)),
        ("B/bar", Truncate("B/bar", 100_000)),
        ("A/foo", TruncateAndChmod("A/foo", 20_000, 0o600)),
        // Allocate, keep the size, punch, zero.
        ("foo", Fallocate("foo", 0, 0, 20_000)),
        ("foo", Fallocate("foo", KEEP_SIZE, 2000, 60_000)),
        ("foo", Fallocate("foo", 0, 0, 200_000)),
        ("foo", Fallocate("foo", KEEP_SIZE, 0, 200_000)),
        ("foo", Fallocate("foo", PUNCH_HOLE | KEEP_SIZE, 500, 1000)),
        ("bar", Fallocate("bar", PUNCH_HOLE | KEEP_SIZE, 0, 33_000)),
        ("bar", Fallocate("bar", ZERO_RANGE, 100, 50_000)),
        ("bar", Fallocate("bar", ZERO_RANGE | KEEP_SIZE, 39_000, 2000)),
        ("A/bar", Fallocate("A/bar", 0, 32_000, 10_000)),
        ("A/foo", Fallocate("A/foo", 0, 100_000, 200_000)),
        ("A/foo", Fallocate("A/foo", KEEP_SIZE, 150_000, 200_000)),
        ("A/foo", Fallocate("A/foo", PUNCH_HOLE | KEEP_SIZE, 1000, 5000)),
        ("A/foo", Fallocate("A/foo", PUNCH_HOLE | KEEP_SIZE, 60_000, 80_000)),
        ("A/foo", Fallocate("A/foo", ZERO_RANGE, 50_000, 90_000)),
        ("A/foo", Fallocate("A/foo", ZERO_RANGE, 140_000, 100_000)),
        ("A/foo", Fallocate("A/foo", ZERO_RANGE | KEEP_SIZE, 0, 131_072)),
        ("B/bar", Fallocate("B/bar", 0, 0, 320_000)),
    ]
}

fn other() -> Vec<(&'static str, Operation)> {
    vec![
        // Attributes.
        ("foo", SetXattr("foo", "user.new", 100, 130)),
        ("foo", SetXattr("foo", "user.small", 40 << 10, 131)),
        ("A", SetXattr("A", "user.dir", 300, 132)),
        ("A/foo", SetXattr("A/foo", "user.big", 40 << 10, 133)),
        ("bar", SetXattr("bar", "user.big", 10, 134)),
        ("A", SetMethod("A", "lz4")),
        ("foo", SetMethod("foo", "off")),
        ("A", SetThreshold("A", "64K")),
        ("foo", SetThreshold("foo", "16M")),
        ("A/foo", Rebalance("A/foo", 1 << 20)),
        ("B/bar", Rebalance("B/bar", 1 << 20)),
        ("bar", Rebalance("bar", 8192)),
        ("B/foo", Rebalance("B/foo", 8192)),
        ("foo", RemoveXattr("foo", "user.small")),
        ("bar", RemoveXattr("bar", "user.big")),
        ("foo", Chmod("foo", 0o600)),
        ("A/C", Chmod("A/C", 0o2711)),
        ("A/foo", Chown("A/foo", 1, 2)),
        ("bar", Times("bar", -5, 77)),
        // Copies within and between the tiers.
        ("bar", Copy("foo", 100, "bar", 39_000, 2000)),
        ("A/C/foo", Copy("bar", 0, "A/C/foo", 0, 40_000)),
        ("A/C/foo", Copy("A/foo", 0, "A/C/foo", 0, 150_001)),
        ("foo", Copy("A/foo", 60_000, "foo", 1000, 10_000)),
        ("A/foo", Copy("bar", 1000, "A/foo", 140_000, 30_000)),
        ("A/foo", Copy("A/foo", 0, "A/foo", 150_001, 60_000)),
        ("A/foo", Fsync("A/foo")),
        ("foo", Sync),
        ("foo", Checkpoint),
        ("foo", PackAll),
        ("foo", AddDictionary(150)),
        ("foo", Tick),
    ]
}

/// Returns the operations on files packed before, and followed by packing.
pub fn packed(steps: &[Step]) -> Vec<Vec<Operation>> {
    let both = |step: &Step| {
        let (operation, fsync) = (step.operation.clone(), Fsync(step.file));
        [
            vec![PackAll, Sync, operation.clone(), fsync],
            vec![AddDictionary(160), PackAll, operation.clone()],
            vec![operation, PackAll],
        ]
    };
    steps.iter().flat_map(both).collect()
}

/// Returns the operations on files spilled before, and followed by spilling.
pub fn spilled(steps: &[Step]) -> Vec<Vec<Operation>> {
    let all = |step: &Step| {
        let (operation, fsync) = (step.operation.clone(), Fsync(step.file));
        vec![
            vec![SpillAll, operation.clone(), fsync.clone()],
            vec![PackAll, SpillAll, Sync, operation.clone(), SpillTick],
            vec![operation.clone(), SpillAll, BringBack],
            vec![SpillAll, operation.clone(), CleanSpilled, fsync.clone()],
            vec![PackAll, operation, SpillAll, fsync, BringBack, SpillTick],
        ]
    };
    steps.iter().flat_map(all).collect()
}

/// Returns workloads in which dictionaries are added, used, replaced and dropped.
pub fn dictionaries() -> Vec<Vec<Operation>> {
    let short = || Write("foo", 0, 3000, 170);
    vec![
        vec![short(), AddDictionary(160), PackAll, AddDictionary(162), PackAll],
        vec![AddDictionary(160), short(), PackAll, AddDictionary(162), Write("foo", 10, 20, 164), PackAll, Sync],
        vec![short(), AddDictionary(160), AddDictionary(162), PackAll, Unlink("foo"), PackAll],
        vec![AddDictionary(160), short(), PackAll, Sync, AddDictionary(162), Checkpoint, Truncate("foo", 100), PackAll],
    ]
}

/// Returns sequences in which an fsync finds few pages that are not durable, in the prepared store
/// behind a cache.
pub fn absorbed() -> Vec<Vec<Operation>> {
    let (file, other) = ("A/foo", "B/bar");
    let small = |tag| Write(file, 70_000, 100, tag);
    let synced = |tag| [small(tag), Fsync(file)];
    let with = |last: &[Operation]| synced(180).into_iter().chain(last.iter().cloned()).collect();
    vec![
        with(&[]),
        with(&[small(181), Fsync(file)]),
        with(&[small(181), Tick]),
        // The policy writes the absorbed page, and a newer one that nobody was promised.
        with(&[Later, Write(other, 0, 10, 181), Fsync(other)]),
        with(&[small(181), Later, Write(other, 0, 10, 182), Tick, Fsync(other)]),
        with(&[small(181), Later, Write(other, 0, 10, 182), Write(file, 5000, 10, 183), Fsync(file)]),
        with(&[small(181), Sync, small(182)]),
        with(&[Sync, small(182), Fsync(file)]),
        with(&[Checkpoint, small(182), Fsync(file)]),
        with(&[small(181), Checkpoint, Tick]),
        // Blocks that were absorbed get another user, whose pages are too many to be absorbed.
        with(&[Unlink(file), Fsync("foo"), Tick, Write("A/C/foo", 0, 300_000, 184), Fsync("A/C/foo")]),
        with(&[Truncate(file, 0), Sync, Write(other, 70_000, 200_000, 184), Fsync(other)]),
        with(&[Unlink(file), Sync, Write("A/C/foo", 0, 150_000, 184), Fsync("A/C/foo")]),
        with(&[Truncate(file, 66_000), Fsync(file), Write(file, 66_000, 60_000, 185)]),
        with(&[Truncate(file, 30_000), Sync, Write(other, 70_000, 60_000, 185), Sync]),
        with(&[Fallocate(file, PUNCH_HOLE | KEEP_SIZE, 65_536, 65_536), Fsync(file), small(186), Fsync(file)]),
        with(&[Fallocate(file, ZERO_RANGE, 66_000, 20_000), Fsync(file)]),
        with(&[Rename(other, file, Replace), Fsync(file)]),
        with(&[Copy(file, 0, "A/C/foo", 0, 150_001), Fsync("A/C/foo")]),
        // Appended blocks are NEW.
        vec![Write(file, 150_001, 100, 187), Fsync(file), Write(file, 150_101, 100, 188), Fsync(file)],
        vec![Write(file, 196_000, 3000, 187), Fsync(file), Write(other, 310_000, 9000, 188), Fsync(other)],
        vec![
            Write(file, 150_001, 5000, 187),
            Fsync(file),
            Truncate(file, 152_000),
            Truncate(file, 160_000),
            Fsync(file),
        ],
        // Too many pages for the area, or for one fsync.
        vec![Write(file, 0, 150_001, 189), Fsync(file), Write(other, 300_000, 10_000, 190), Fsync(other), small(191)],
        vec![small(180), Write(other, 0, 66_000, 190), Fsync(other), Fsync(file)],
    ]
}

/// Returns a random sequence of small writes into two large files, fsyncs, and what may come between.
pub fn absorbed_at_random(random: &mut Random) -> Vec<Operation> {
    let files = ["A/foo", "B/bar"];
    let pick = |random: &mut Random| files[random.below(2) as usize];
    let one = |number: u64, random: &mut Random| match random.below(16) {
        0..5 => Write(pick(random), random.below(40) * 4000, 1 + random.below(5000) as usize, 200 + number),
        5..10 => Fsync(pick(random)),
        10 => Write(pick(random), random.below(3) << 16, 70_000, 200 + number),
        11 => Later,
        12 => Tick,
        13 => [Sync, Checkpoint][random.below(2) as usize].clone(),
        14 => Truncate(pick(random), random.below(40) * 4000),
        _ => Fallocate(pick(random), PUNCH_HOLE | KEEP_SIZE, random.below(3) << 16, 1 << 16),
    };
    (0..8).map(|number| one(number, random)).collect()
}

/// Returns sequences for a store of nine bulk blocks, of which the prepared tree uses six. In some,
/// the later operation can only get blocks that the earlier one freed. In the others, the file
/// grows again over bytes that were cut off.
pub fn sequences() -> Vec<Vec<Operation>> {
    let cut = || Truncate("A/foo", 140_000);
    vec![
        vec![Unlink("A/foo"), Write("A/C/foo", 0, 300_000, 140)],
        vec![Truncate("A/foo", 0), Write("A/foo", 0, 330_000, 141)],
        vec![Truncate("A/foo", 30_000), Write("B/bar", 310_000, 250_000, 142)],
        vec![Fallocate("A/foo", PUNCH_HOLE | KEEP_SIZE, 0, 131_072), Write("foo", 0, 300_000, 143)],
        vec![Rename("bar", "A/foo", Replace), Copy("B/bar", 0, "A/C/foo", 0, 310_000)],
        vec![Rename("bar", "A/foo", Replace), Write("A/C/foo", 0, 300_000, 144)],
        vec![Truncate("B/bar", 10_000), Fallocate("A/C/foo", 0, 0, 300_000)],
        vec![UnlinkHeld("A/foo"), Forget],
        vec![cut(), Fsync("A/foo"), Truncate("A/foo", 150_000)],
        vec![cut(), Fsync("A/foo"), Write("A/foo", 160_000, 100, 145)],
        vec![cut(), Sync, Fallocate("A/foo", 0, 145_000, 10_000)],
        vec![cut(), Sync, Fallocate("A/foo", ZERO_RANGE, 160_000, 10_000)],
        vec![cut(), Sync, Copy("foo", 0, "A/foo", 145_000, 3000)],
        vec![cut(), Truncate("A/foo", 150_000), Fsync("A/foo"), Write("A/foo", 141_000, 10, 146)],
        vec![Truncate("bar", 35_000), Fsync("bar"), Truncate("bar", 39_000)],
        vec![Fallocate("A/foo", KEEP_SIZE, 150_001, 60_000), Sync, Write("A/foo", 155_000, 50_000, 147)],
        vec![Fallocate("A/foo", PUNCH_HOLE | KEEP_SIZE, 0, 65_536), Sync, Write("A/foo", 5000, 100, 148)],
        vec![Fsync("A/foo"), Tick],
        vec![Checkpoint, Tick],
        vec![Fallocate("foo", KEEP_SIZE, 3000, 20_000), Sync, Write("foo", 10_000, 100, 149)],
    ]
}

/// Returns sequences in which files change their tier in both directions, with operations before
/// and after.
pub fn rebalanced() -> Vec<Vec<Operation>> {
    let (small, large) = (1 << 20, 8192);
    let long = || Write("A/C/foo", 0, 600_000, 150);
    let both = [
        vec![Rebalance("A/foo", small), Fsync("A/foo")],
        // Another file gets the released blocks at once.
        vec![Rebalance("A/foo", small), Write("A/C/foo", 0, 300_000, 151)],
        vec![Rebalance("A/foo", small), Fsync("A/foo"), Write("A/C/foo", 0, 300_000, 152), Sync],
        vec![Write("A/foo", 70_000, 20_000, 153), Rebalance("A/foo", small), Sync],
        vec![Write("A/foo", 150_001, 60_000, 154), Rebalance("A/foo", small), Checkpoint],
        vec![Truncate("A/foo", 140_000), Rebalance("A/foo", small), Truncate("A/foo", 150_000), Tick],
        vec![Rebalance("A/foo", small), Rebalance("A/foo", large), Fsync("A/foo")],
        vec![Rebalance("A/foo", small), Write("A/foo", 150_001, 60_000, 155), Rebalance("A/foo", large), Sync],
        vec![Rebalance("B/bar", small), Unlink("B/bar"), Sync],
        vec![Rebalance("bar", large), Fsync("bar"), Rebalance("bar", small), Fsync("bar")],
        vec![Rebalance("B/foo", large), Truncate("B/foo", 0), Write("B/foo", 0, 70_000, 156), Sync],
        vec![PackAll, Rebalance("bar", large), Sync],
        vec![PackAll, SpillAll, Rebalance("bar", large), Sync],
        vec![Rebalance("A/foo", small), PackAll, SpillAll, Rebalance("A/foo", large), Fsync("A/foo")],
        vec![
            SetThreshold("A", "1M"),
            Rebalance("A/foo", small),
            SetThreshold("A/foo", "8K"),
            Rebalance("A/foo", small),
        ],
        // Too long for one record: moved in steps, through an inode without a name.
        vec![long(), Rebalance("A/C/foo", small)],
        vec![long(), Sync, Rebalance("A/C/foo", small), Fsync("A/C/foo")],
        vec![long(), Fsync("A/C/foo"), Write("A/C/foo", 66_000, 3000, 157), Rebalance("A/C/foo", small), Sync],
        vec![long(), Sync, Rebalance("A/C/foo", small), Write("A/foo", 150_001, 500_000, 158), Tick],
        vec![long(), Rebalance("A/C/foo", small), Rebalance("A/C/foo", large), Fsync("A/C/foo")],
        vec![Write("B/bar", 700_000, 100, 159), Rebalance("B/bar", small), Checkpoint],
    ];
    both.into_iter().collect()
}

/// Prepares a store without a bulk device for operations that take several transactions there.
pub fn long_preparation() -> Vec<Operation> {
    vec![Create("foo"), Write("foo", 0, 100_000, 1), Create("many"), Sprinkle("many", 2300)]
}

pub fn long_operations() -> Vec<Step> {
    let steps = [
        ("foo", Write("foo", 50_000, 600_000, 2)),
        ("foo", Write("foo", 1_000_000, 300_000, 3)),
        ("foo", Truncate("foo", 3)),
        ("many", Truncate("many", 5)),
        ("many", Truncate("many", 0)),
        ("many", TruncateAndChmod("many", 40_000, 0o600)),
        ("foo", Unlink("many")),
        ("foo", UnlinkHeld("many")),
        ("many", Rename("foo", "many", Replace)),
        ("many", Fallocate("many", PUNCH_HOLE | KEEP_SIZE, 0, 70 << 20)),
        ("foo", Copy("foo", 0, "foo", 200_000, 90_000)),
    ];
    steps.map(|(file, operation)| Step { file, operation }).into_iter().collect()
}
