//! The tree a workload begins with, and its operations: in the style of ACE, one call each over A, B and A/C with foo
//! and bar.
//!
//! The tree has a file of every layout: one slot, chunks, extents; a packed directory about to be hashed, and a hashed
//! one. No byte written here is [`FOREIGN`], so one that is read shows a block nobody wrote.

use std::sync::Arc;

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Caller, Error, FileFlags, Fs, Ino, ROOT, RenameMode, SetAttr, TimeChange, XattrMode};
use shoal_sim::{SimClock, WorldState};

use crate::sim_store::{CALLER, FOREIGN, Setup, format, open};

/// Files longer than this live on the bulk device.
pub const THRESHOLD: u64 = 40_000;

pub type Run = fn(&Fs) -> Result<(), Error>;

#[derive(Clone, Copy)]
pub struct Operation {
    pub name: &'static str,
    /// Which path an fsync after it is about.
    pub path: &'static str,
    /// It may take several transactions: a crash may leave one file half-way.
    pub steps: bool,
    pub run: Run,
}

pub fn setup(kind: MemoryKind) -> Setup {
    Setup { kind, region_segments: 90, ring_bytes: 512 << 10, bulk_blocks: 24, threshold: THRESHOLD }
}

/// Bytes that tell where they were written, and by which call.
pub fn pattern(tag: u8, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(|i| 1 + ((i / 16 * 7 + i + tag as u64 * 31) % 160) as u8).collect()
}

const _: () = assert!(FOREIGN > 160, "patterns end below");

fn ino(fs: &Fs, path: &str) -> Result<Ino, Error> {
    fs.resolve(path.as_bytes())
}

/// The directory and the name of a path.
fn place<'a>(fs: &Fs, path: &'a str) -> Result<(Ino, &'a [u8]), Error> {
    match path.rsplit_once('/') {
        Some((dir, name)) => Ok((ino(fs, dir)?, name.as_bytes())),
        None => Ok((ROOT, path.as_bytes())),
    }
}

fn create(fs: &Fs, path: &str) -> Result<Ino, Error> {
    let (dir, name) = place(fs, path)?;
    fs.mknod(&CALLER, dir, name, 0o100644, 0).map(|attr| attr.ino)
}

fn write(fs: &Fs, path: &str, tag: u8, at: u64, len: usize) -> Result<(), Error> {
    let written = fs.write(ino(fs, path)?, at, &pattern(tag, at, len))?;
    if written < len { Err(Error::NoSpace) } else { Ok(()) }
}

fn mkdir(fs: &Fs, path: &str) -> Result<(), Error> {
    let (dir, name) = place(fs, path)?;
    fs.mkdir(&CALLER, dir, name, 0o755).map(drop)
}

fn unlink(fs: &Fs, path: &str) -> Result<(), Error> {
    let (dir, name) = place(fs, path)?;
    fs.unlink(dir, name)
}

fn rmdir(fs: &Fs, path: &str) -> Result<(), Error> {
    let (dir, name) = place(fs, path)?;
    fs.rmdir(dir, name)
}

fn link(fs: &Fs, from: &str, to: &str) -> Result<(), Error> {
    let (dir, name) = place(fs, to)?;
    fs.link(ino(fs, from)?, dir, name, false).map(drop)
}

fn symlink(fs: &Fs, path: &str, len: usize) -> Result<(), Error> {
    let (dir, name) = place(fs, path)?;
    fs.symlink(&CALLER, dir, name, &vec![b't'; len]).map(drop)
}

fn rename(fs: &Fs, from: &str, to: &str, mode: RenameMode) -> Result<(), Error> {
    let ((from, name), (to, new_name)) = (place(fs, from)?, place(fs, to)?);
    fs.rename(from, name, to, new_name, mode)
}

/// As overlayfs does it in its upper directory.
fn rename_leaving_whiteout(fs: &Fs, from: &str, to: &str) -> Result<(), Error> {
    let ((from, name), (to, new_name)) = (place(fs, from)?, place(fs, to)?);
    fs.rename_with(from, name, to, new_name, RenameMode::Replace, Some(&CALLER))
}

fn truncate(fs: &Fs, path: &str, size: u64) -> Result<(), Error> {
    fs.setattr(ino(fs, path)?, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

fn fallocate(fs: &Fs, path: &str, mode: i32, at: u64, len: u64) -> Result<(), Error> {
    fs.fallocate(ino(fs, path)?, mode, at, len)
}

fn setxattr(fs: &Fs, path: &str, name: &str, len: usize) -> Result<(), Error> {
    fs.setxattr(ino(fs, path)?, name.as_bytes(), &pattern(9, 0, len), XattrMode::Any)
}

fn copy(fs: &Fs, from: &str, to: &str, at: u64, len: u64) -> Result<(), Error> {
    fs.copy_range(ino(fs, from)?, 0, ino(fs, to)?, at, len).map(drop)
}

/// A formatted store with the tree, as it lies on the media after a clean end.
pub fn base(setup: &Setup) -> WorldState {
    let world = format(setup, 11);
    let clock = Arc::new(SimClock::new(1_000_000_000));
    let (fs, _) = open(setup, &world, 1, 1, &clock).expect("a new store opens");
    let build = || -> Result<(), Error> {
        for dir in ["A", "B", "A/C", "D", "E", "F"] {
            mkdir(&fs, dir)?;
        }
        for (path, tag, len) in
            [("A/foo", 1, 5000), ("A/bar", 2, 150_000), ("B/foo", 3, 35_000), ("B/big", 4, 41_000), ("B/empty", 5, 0)]
        {
            create(&fs, path)?;
            write(&fs, path, tag, 0, len)?;
        }
        link(&fs, "A/foo", "B/bar")?;
        setxattr(&fs, "A/foo", "user.x", 50)?;
        for number in 0..29 {
            create(&fs, &format!("D/a-file-called-{number:04}"))?;
        }
        for number in 0..90 {
            create(&fs, &format!("E/a-file-called-{number:04}"))?;
        }
        fs.shutdown()
    };
    build().expect("there is room for the tree");
    drop(fs);
    world.snapshot().process_crash()
}

const R: RenameMode = RenameMode::Replace;
const X: RenameMode = RenameMode::Exchange;
const N: RenameMode = RenameMode::NoReplace;

macro_rules! operations {
    ($($steps:ident $name:literal on $path:literal: $run:expr;)*) => {
        &[$(Operation { name: $name, path: $path, steps: operations!(@ $steps), run: $run }),*]
    };
    (@ atomic) => { false };
    (@ steps) => { true };
}

/// Every operation succeeds on the tree of [`base`].
pub const OPERATIONS: &[Operation] = operations! {
    atomic "create" on "B/new": |fs| create(fs, "B/new").map(drop);
    atomic "create in the root" on "new": |fs| create(fs, "new").map(drop);
    atomic "create in a full packed directory" on "D/a-file-called-new": |fs| create(fs, "D/a-file-called-new").map(drop);
    atomic "create in a hashed directory" on "E/a-file-called-new": |fs| create(fs, "E/a-file-called-new").map(drop);
    atomic "mkdir" on "A/C/new": |fs| mkdir(fs, "A/C/new");
    atomic "mknod" on "A/new": |fs| {
        let (dir, name) = place(fs, "A/new")?;
        fs.mknod(&CALLER, dir, name, 0o010600, 0).map(drop)
    };
    atomic "symlink" on "A/new": |fs| symlink(fs, "A/new", 30);
    atomic "symlink with a long target" on "A/C/new": |fs| symlink(fs, "A/C/new", 3000);
    atomic "tmpfile" on "A": |fs| fs.tmpfile(&Caller { hold: true, ..CALLER }, ino(fs, "A")?, 0o600).map(drop);
    atomic "link" on "B/new": |fs| link(fs, "A/foo", "B/new");
    atomic "link of a large file" on "A/C/bar": |fs| link(fs, "A/bar", "A/C/bar");
    atomic "unlink one of two names" on "A": |fs| unlink(fs, "A/foo");
    atomic "unlink of chunks" on "B": |fs| unlink(fs, "B/foo");
    atomic "unlink of a large file" on "A": |fs| unlink(fs, "A/bar");
    atomic "unlink while held" on "A": |fs| {
        fs.hold(ino(fs, "A/bar")?)?;
        unlink(fs, "A/bar")
    };
    atomic "unlink in a hashed directory" on "E": |fs| unlink(fs, "E/a-file-called-0005");
    atomic "rmdir" on "A": |fs| rmdir(fs, "A/C");
    atomic "rename within" on "A/new": |fs| rename(fs, "A/foo", "A/new", R);
    atomic "rename within a full packed directory" on "D": |fs| rename(fs, "D/a-file-called-0001", "D/a-much-longer-name-for-a-file", R);
    atomic "rename within a hashed directory" on "E": |fs| rename(fs, "E/a-file-called-0001", "E/b", R);
    atomic "rename across" on "B/new": |fs| rename(fs, "A/foo", "B/new", R);
    atomic "rename over a file" on "B/foo": |fs| rename(fs, "A/foo", "B/foo", R);
    atomic "rename over a large file" on "A/bar": |fs| rename(fs, "A/foo", "A/bar", R);
    atomic "rename of a large file over a small one" on "B/foo": |fs| rename(fs, "A/bar", "B/foo", R);
    atomic "rename to the same inode" on "A/foo": |fs| rename(fs, "A/foo", "B/bar", R);
    atomic "rename of a directory" on "B/C": |fs| rename(fs, "A/C", "B/C", R);
    atomic "rename of a directory over another" on "F": |fs| rename(fs, "A/C", "F", R);
    atomic "rename of a full directory" on "B/A": |fs| rename(fs, "A", "B/A", R);
    atomic "rename without replacing" on "B/new": |fs| rename(fs, "A/foo", "B/new", N);
    atomic "rename within, leaving a whiteout" on "A/new": |fs| rename_leaving_whiteout(fs, "A/foo", "A/new");
    atomic "rename within a full packed directory, leaving a whiteout" on "D": |fs| {
        rename_leaving_whiteout(fs, "D/a-file-called-0001", "D/a-much-longer-name-for-a-file")
    };
    atomic "rename over a large file, leaving a whiteout" on "A/bar": |fs| rename_leaving_whiteout(fs, "B/foo", "A/bar");
    atomic "rename of a directory, leaving a whiteout" on "B/C": |fs| rename_leaving_whiteout(fs, "A/C", "B/C");
    atomic "setting flags" on "A/foo": |fs| {
        // Not those that keep the oracle from removing the file afterwards.
        let flags = FileFlags { no_dump: true, no_atime: true, ..FileFlags::default() };
        fs.set_file_flags(ino(fs, "A/foo")?, flags, |_, _| true)
    };
    atomic "exchange" on "A/foo": |fs| rename(fs, "A/foo", "B/foo", X);
    atomic "exchange of a file and a directory" on "A/C": |fs| rename(fs, "B/big", "A/C", X);
    steps "append" on "A/foo": |fs| write(fs, "A/foo", 20, 5000, 300);
    steps "overwrite" on "A/foo": |fs| write(fs, "A/foo", 20, 1000, 700);
    steps "write behind the end" on "A/foo": |fs| write(fs, "A/foo", 20, 20_000, 100);
    steps "write from slot to chunks" on "A/foo": |fs| write(fs, "A/foo", 20, 4000, 30_000);
    steps "overwrite of chunks" on "B/foo": |fs| write(fs, "B/foo", 20, 32_000, 2000);
    steps "write across the threshold" on "B/foo": |fs| write(fs, "B/foo", 20, 35_000, 20_000);
    steps "append to a large file" on "A/bar": |fs| write(fs, "A/bar", 20, 150_000, 10);
    steps "append of blocks" on "A/bar": |fs| write(fs, "A/bar", 20, 150_000, 120_000);
    steps "overwrite of a large file" on "A/bar": |fs| write(fs, "A/bar", 20, 66_000, 1500);
    steps "overwrite of a block" on "A/bar": |fs| write(fs, "A/bar", 20, 65_536, 65_536);
    steps "write behind the end of a large file" on "A/bar": |fs| write(fs, "A/bar", 20, 300_100, 900);
    steps "first write of a large file" on "B/empty": |fs| write(fs, "B/empty", 20, 0, 140_000);
    steps "first write behind a hole" on "B/empty": |fs| write(fs, "B/empty", 20, 100_000, 50);
    steps "truncate" on "A/foo": |fs| truncate(fs, "A/foo", 1234);
    steps "truncate to nothing" on "A/foo": |fs| truncate(fs, "A/foo", 0);
    steps "truncate to longer" on "A/foo": |fs| truncate(fs, "A/foo", 9000);
    steps "truncate from chunks to a slot" on "B/foo": |fs| truncate(fs, "B/foo", 10_000);
    steps "truncate across the threshold" on "A/foo": |fs| truncate(fs, "A/foo", 100_000);
    steps "truncate of a large file within a block" on "A/bar": |fs| truncate(fs, "A/bar", 149_000);
    steps "truncate of a large file" on "A/bar": |fs| truncate(fs, "A/bar", 70_000);
    steps "truncate of a large file to nothing" on "A/bar": |fs| truncate(fs, "A/bar", 0);
    steps "truncate back below the threshold" on "A/bar": |fs| truncate(fs, "A/bar", 10_000);
    steps "truncate of a large file to longer" on "A/bar": |fs| truncate(fs, "A/bar", 260_000);
    steps "allocate" on "A/foo": |fs| fallocate(fs, "A/foo", 0, 4000, 6000);
    steps "allocate chunks" on "A/foo": |fs| fallocate(fs, "A/foo", 1, 0, 38_000);
    steps "allocate blocks" on "A/bar": |fs| fallocate(fs, "A/bar", 0, 140_000, 200_000);
    steps "allocate behind the end" on "A/bar": |fs| fallocate(fs, "A/bar", 1, 200_000, 100_000);
    steps "allocate across the threshold" on "B/empty": |fs| fallocate(fs, "B/empty", 0, 0, 90_000);
    steps "punch" on "A/foo": |fs| fallocate(fs, "A/foo", 3, 100, 2000);
    steps "punch chunks" on "B/foo": |fs| fallocate(fs, "B/foo", 3, 30_000, 4000);
    steps "punch a block" on "A/bar": |fs| fallocate(fs, "A/bar", 3, 60_000, 80_000);
    steps "punch within a block" on "A/bar": |fs| fallocate(fs, "A/bar", 3, 1000, 3000);
    steps "zero a range" on "A/foo": |fs| fallocate(fs, "A/foo", 16, 4000, 3000);
    steps "zero a range of blocks" on "A/bar": |fs| fallocate(fs, "A/bar", 16, 60_000, 150_000);
    steps "zero a range, size kept" on "A/bar": |fs| fallocate(fs, "A/bar", 17, 131_072, 65_536);
    steps "copy" on "B/empty": |fs| copy(fs, "A/foo", "B/empty", 0, 5000);
    steps "copy of a large file" on "B/empty": |fs| copy(fs, "A/bar", "B/empty", 0, 150_000);
    steps "copy into a large file" on "A/bar": |fs| copy(fs, "A/foo", "A/bar", 149_000, 5000);
    atomic "setxattr" on "B/foo": |fs| setxattr(fs, "B/foo", "user.y", 20);
    atomic "setxattr, replaced" on "A/foo": |fs| setxattr(fs, "A/foo", "user.x", 3000);
    atomic "setxattr of a directory" on "A": |fs| setxattr(fs, "A", "trusted.z", 5);
    atomic "removexattr" on "A/foo": |fs| fs.removexattr(ino(fs, "A/foo")?, b"user.x");
    atomic "chmod, chown" on "A/foo": |fs| {
        let change = SetAttr { mode: Some(0o4711), uid: Some(5), gid: Some(6), ..SetAttr::default() };
        fs.setattr(ino(fs, "A/foo")?, &change).map(drop)
    };
    atomic "utimes" on "A/bar": |fs| {
        let change = SetAttr { mtime: Some(TimeChange::At(5)), atime: Some(TimeChange::Now), ..SetAttr::default() };
        fs.setattr(ino(fs, "A/bar")?, &change).map(drop)
    };
};
