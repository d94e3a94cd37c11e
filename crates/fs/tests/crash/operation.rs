//! Operations on names, as a workload lists them.
//!
//! An operation is a value: applied to two stores in the same state it does the same. Bytes come from a tag, so that no
//! two operations write the same sector.
//! [`Operation::between`] names the states that an interrupted operation may leave. Most operations
//! have none, because they are one transaction. The others are:
//! - a write or copy of more than one step (256 KiB in the region, 16 blocks on the bulk device)
//!   leaves a prefix, and so does a punch of more than 2048 chunks;
//! - a file that changes its tier, or is allocated on the bulk device, gets its new times first, then the change;
//! - a change of size together with other attributes changes the size first.

use std::sync::Arc;

use shoal_format::inode::S_IFIFO;
use shoal_fs::{
    COMPRESS_ATTRIBUTE, Caller, Error, FileFlags, Fs, Ino, Patience, ROOT, RenameMode, SetAttr, THRESHOLD_ATTRIBUTE,
    TimeChange, XattrMode,
};
use shoal_sim::{Random, SimClock};

use super::tree::{Data, Node, Tree};

pub type Path = &'static str;

/// Bytes of one step of a write, by tier.
const REGION_STEP: u64 = 256 << 10;
const BULK_STEP: u64 = 1 << 20;
const BULK_BLOCK: u64 = 64 << 10;
const COPY_STEP: u64 = 128 << 10;
const PUNCH_STEP: u64 = 2048 << 15;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Create(Path),
    Mkdir(Path),
    Fifo(Path),
    Symlink(Path, usize),
    Link(Path, Path),
    Unlink(Path),
    /// Takes a reference first, which lasts until [`Operation::Forget`].
    UnlinkHeld(Path),
    /// Sets the size of the held files.
    TruncateHeld(u64),
    Forget,
    /// An unnamed file that gets data and then a name.
    Tmpfile(Path),
    /// An unnamed file in this directory that stays held.
    TmpfileHeld(Path),
    Rmdir(Path),
    Rename(Path, Path, RenameMode),
    /// As overlayfs does it in its upper directory.
    RenameLeavingWhiteout(Path, Path),
    /// At, length, tag.
    Write(Path, u64, usize, u64),
    /// Writes one byte every 32 KiB, this many times, for a file of many chunks. For preparing a
    /// store that is then synced.
    Sprinkle(Path, u64),
    Truncate(Path, u64),
    TruncateAndChmod(Path, u64, u32),
    Fallocate(Path, i32, u64, u64),
    SetXattr(Path, Path, usize, u64),
    RemoveXattr(Path, Path),
    /// Sets how a file, or new files of a directory, are packed.
    SetMethod(Path, Path),
    /// Sets the size above which a file, or new files of a directory, are large.
    SetThreshold(Path, Path),
    /// Moves a file to the tier where this threshold, of its directory, puts it (bytes).
    Rebalance(Path, u32),
    Chmod(Path, u32),
    Chown(Path, u32, u32),
    ChmodAndChown(Path, u32, u32, u32),
    /// Sets only flags that do not keep a test from deleting the file.
    SetFlags(Path),
    Times(Path, i64, i64),
    /// From, at, to, at, length.
    Copy(Path, u64, Path, u64, u64),
    Fsync(Path),
    Sync,
    Checkpoint,
    /// Packs the data of all files, however young.
    PackAll,
    /// Packs the data of one file.
    Pack(Path),
    /// Time passes until every file is cold, and ticks pack them.
    PackCooled,
    /// Moves the data of all small files to bulk storage, however warm.
    SpillAll,
    /// Brings the data of all spilled files back.
    BringBack,
    /// Frees spilled payloads that nothing refers to.
    SpillTick,
    /// Cleans the spill file: moves its payloads together.
    CleanSpilled,
    /// Adds a dictionary for short files that are packed from now on. Its bytes come from the tag.
    AddDictionary(u64),
    /// Time passes until everything not yet durable is older than the commit age.
    Tick,
    /// Time passes until every inode is cold, and they are packed.
    PackInodes,
    /// Time passes until the update policy writes everything that a cache holds now, with the next
    /// write.
    Later,
}

/// Context that an operation is applied in.
pub struct Actor<'a> {
    pub fs: &'a Fs,
    pub clock: &'a SimClock,
    pub held: &'a mut Vec<Ino>,
}

/// Returns the bytes of a tag: never zeros, never the pattern of a foreign disk. The bytes of an
/// even tag compress to a fourth or less.
pub fn bytes(tag: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Random::new(tag).fill(&mut out);
    if tag.is_multiple_of(2) {
        out.chunks_mut(64).for_each(|line| line.fill(line[0]));
    }
    out
}

fn parent(fs: &Fs, path: Path) -> Result<(Ino, &'static [u8]), Error> {
    match path.rsplit_once('/') {
        Some((parent, name)) => Ok((fs.resolve(parent.as_bytes())?, name.as_bytes())),
        None => Ok((ROOT, path.as_bytes())),
    }
}

fn chown(fs: &Fs, ino: Ino, mode: Option<u32>, (uid, gid): (u32, u32)) -> Result<(), Error> {
    fs.setattr(ino, &SetAttr { mode, uid: Some(uid), gid: Some(gid), ..Default::default() }).map(drop)
}

impl Operation {
    pub fn apply(&self, actor: &mut Actor<'_>) -> Result<(), Error> {
        use Operation::*;
        let fs = actor.fs;
        let caller = Caller { uid: 10, gid: 20, umask: 0o022, hold: false };
        let ino = |path: Path| fs.resolve(path.as_bytes());
        match *self {
            Create(path) => {
                let (parent, name) = parent(fs, path)?;
                fs.mknod(&caller, parent, name, 0o644, 0).map(drop)
            }
            Mkdir(path) => {
                let (parent, name) = parent(fs, path)?;
                fs.mkdir(&caller, parent, name, 0o755).map(drop)
            }
            Fifo(path) => {
                let (parent, name) = parent(fs, path)?;
                fs.mknod(&caller, parent, name, S_IFIFO as u32 | 0o600, 0).map(drop)
            }
            Symlink(path, len) => {
                let (parent, name) = parent(fs, path)?;
                fs.symlink(&caller, parent, name, &vec![b'x'; len]).map(drop)
            }
            Link(from, to) => {
                let from = ino(from)?;
                let (parent, name) = parent(fs, to)?;
                fs.link(from, parent, name).map(drop)
            }
            Unlink(path) => {
                let (parent, name) = parent(fs, path)?;
                fs.unlink(parent, name)
            }
            UnlinkHeld(path) => {
                let (parent, name) = parent(fs, path)?;
                let held = fs.lookup_held(parent, name)?.ino;
                actor.held.push(held);
                fs.unlink(parent, name)
            }
            TruncateHeld(size) => {
                let change = SetAttr { size: Some(size), ..Default::default() };
                actor.held.iter().try_for_each(|&held| fs.setattr(held, &change).map(drop))
            }
            Forget => {
                actor.held.drain(..).for_each(|ino| fs.forget(ino, 1));
                Ok(())
            }
            Tmpfile(path) => {
                let (parent, name) = parent(fs, path)?;
                let unnamed = fs.tmpfile(&caller, parent, 0o600)?.ino;
                let outcome = fs.write(unnamed, 0, &bytes(99, 5000)).and_then(|_| fs.link(unnamed, parent, name));
                fs.forget(unnamed, 1);
                outcome.map(drop)
            }
            TmpfileHeld(dir) => fs.tmpfile(&Caller { hold: true, ..caller }, ino(dir)?, 0o600).map(drop),
            Rmdir(path) => {
                let (parent, name) = parent(fs, path)?;
                fs.rmdir(parent, name)
            }
            Rename(from, to, mode) => {
                let ((from, name), (to, new_name)) = (parent(fs, from)?, parent(fs, to)?);
                fs.rename(from, name, to, new_name, mode)
            }
            RenameLeavingWhiteout(from, to) => {
                let ((from, name), (to, new_name)) = (parent(fs, from)?, parent(fs, to)?);
                fs.rename_with(Patience::Waits, (from, name), (to, new_name), RenameMode::Replace, Some(&caller))
            }
            _ => self.apply_to_file(actor),
        }
    }

    /// Applies the operations that leave names alone.
    fn apply_to_file(&self, actor: &mut Actor<'_>) -> Result<(), Error> {
        use Operation::*;
        let fs = actor.fs;
        let ino = |path: Path| fs.resolve(path.as_bytes());
        match *self {
            Write(path, at, len, tag) => {
                let written = fs.write(ino(path)?, at, &bytes(tag, len))?;
                if written == len { Ok(()) } else { Err(Error::NO_SPACE) }
            }
            Sprinkle(path, count) => {
                let ino = ino(path)?;
                (0..count).try_for_each(|i| fs.write(ino, i << 15, &[i as u8 | 1]).map(drop))
            }
            Truncate(path, size) => {
                fs.setattr(ino(path)?, &SetAttr { size: Some(size), ..Default::default() }).map(drop)
            }
            TruncateAndChmod(path, size, mode) => {
                let change = SetAttr { size: Some(size), mode: Some(mode), ..Default::default() };
                fs.setattr(ino(path)?, &change).map(drop)
            }
            Fallocate(path, mode, at, len) => fs.fallocate(ino(path)?, mode, at, len),
            SetXattr(path, name, len, tag) => {
                fs.setxattr(ino(path)?, name.as_bytes(), &bytes(tag, len), XattrMode::Any)
            }
            SetMethod(path, method) => fs.setxattr(ino(path)?, COMPRESS_ATTRIBUTE, method.as_bytes(), XattrMode::Any),
            SetThreshold(path, size) => fs.setxattr(ino(path)?, THRESHOLD_ATTRIBUTE, size.as_bytes(), XattrMode::Any),
            Rebalance(path, given) => {
                let ino = ino(path)?;
                match fs.large().misplaced(ino, given)? {
                    Some(found) => fs.large().rebalance(ino, found.generation, given).map(drop),
                    None => Ok(()),
                }
            }
            RemoveXattr(path, name) => fs.removexattr(ino(path)?, name.as_bytes()),
            Chmod(path, mode) => fs.setattr(ino(path)?, &SetAttr { mode: Some(mode), ..Default::default() }).map(drop),
            Chown(path, uid, gid) => chown(fs, ino(path)?, None, (uid, gid)),
            ChmodAndChown(path, mode, uid, gid) => chown(fs, ino(path)?, Some(mode), (uid, gid)),
            SetFlags(path) => {
                let flags = FileFlags { no_dump: true, no_atime: true, ..FileFlags::default() };
                fs.set_file_flags(ino(path)?, flags, |_, _| true)
            }
            Times(path, atime, mtime) => {
                let (atime, mtime) = (Some(TimeChange::At(atime)), Some(TimeChange::At(mtime)));
                fs.setattr(ino(path)?, &SetAttr { atime, mtime, ..Default::default() }).map(drop)
            }
            Copy(from, from_at, to, to_at, len) => {
                let done = fs.copy_range(ino(from)?, from_at, ino(to)?, to_at, len)?;
                if done == len { Ok(()) } else { Err(Error::NO_SPACE) }
            }
            Fsync(path) => fs.fsync(ino(path)?),
            Sync => fs.sync(),
            Checkpoint => fs.checkpoint().and_then(|()| Ok(fs.region().rest().map(drop)?)),
            AddDictionary(tag) => fs.cooling().add_dictionary(bytes(tag, 700)),
            PackAll => fs.cooling().pack_all(&mut |_, _| {}).map(drop),
            SpillAll => fs.spilling().spill_all().map(drop),
            CleanSpilled => fs.spilling().clean_spilled(),
            BringBack => fs.spilling().bring_all_back().map(drop),
            // The first tick may find that not all inodes have been looked at.
            SpillTick => fs.spilling().spill_tick().and_then(|()| fs.spilling().spill_tick()),
            Pack(path) => fs.cooling().pack_now(ino(path)?).map(drop),
            PackCooled => pack_cooled(actor),
            Tick => {
                fs.upkeep().tick()?;
                actor.clock.advance(1_200_000_000);
                fs.upkeep().tick()
            }
            PackInodes => {
                actor.clock.advance(60_000_000_000);
                while fs.compacting().pack_inodes_step(64)?.more {}
                Ok(())
            }
            Later => {
                actor.clock.advance(31_000_000_000);
                Ok(())
            }
            _ => unreachable!("{self:?} is about names"),
        }
    }

    /// Returns the states that a crash in the middle may leave, besides those before and after.
    pub fn between(&self, before: &Tree, after: &Tree) -> Vec<Tree> {
        use Operation::*;
        let path = match *self {
            Write(path, ..) | Truncate(path, _) | TruncateAndChmod(path, ..) | Fallocate(path, ..) => path,
            Copy(_, _, path, ..) => path,
            _ => return Vec::new(),
        };
        let Some(ino) = before.ino(path) else { return Vec::new() };
        let (Some(old), Some(new)) = (before.nodes.get(&ino), after.nodes.get(&ino)) else { return Vec::new() };
        if old == new {
            return Vec::new();
        }
        let with = |node: Node| {
            let mut tree = before.clone();
            tree.nodes.insert(ino, node);
            tree
        };
        let times_first = || {
            let mut node = old.clone();
            (node.attr.mtime, node.attr.ctime) = (new.attr.mtime, new.attr.ctime);
            node.large |= new.large;
            with(node)
        };
        let prefix = |at: u64, part: &[u8], end: u64| {
            let mut node = new.clone();
            node.attr.size = old.attr.size.max(end);
            let mut whole = vec![0; node.attr.size as usize];
            old.data.fill(0, &mut whole[..]);
            whole[at as usize..end as usize].copy_from_slice(&part[..(end - at) as usize]);
            node.data = Data::whole(whole);
            with(node)
        };
        let moves = new.large && !old.large;
        let mut states = Vec::new();
        if moves || old.large && matches!(self, Fallocate(..)) {
            states.push(times_first());
        }
        match *self {
            Write(_, at, len, tag) => {
                let part = bytes(tag, len);
                let end = at + len as u64;
                states.extend(steps(new.large, at, end).map(|step| prefix(at, &part, step)));
            }
            Copy(_, _, _, at, len) => {
                let mut part = vec![0; len as usize];
                new.data.fill(at, &mut part);
                let mut copied = at + COPY_STEP;
                while copied < at + len {
                    states.push(prefix(at, &part, copied));
                    copied += COPY_STEP;
                }
                if !new.large {
                    states.extend(steps(false, at, at + len).map(|step| prefix(at, &part, step)));
                }
            }
            Fallocate(_, _, at, len) if !new.large && len > PUNCH_STEP => {
                let mut node = new.clone();
                let step = (at / PUNCH_STEP + 1) * PUNCH_STEP;
                let outside = |(start, _): &&(u64, Vec<u8>)| !(at..step).contains(start);
                node.data = Data { pieces: Arc::new(old.data.pieces.iter().filter(outside).cloned().collect()) };
                states.push(with(node));
            }
            TruncateAndChmod(..) => {
                let mut node = new.clone();
                node.attr.mode = old.attr.mode;
                states.push(with(node));
            }
            _ => {}
        }
        states
    }
}

fn pack_cooled(actor: &mut Actor<'_>) -> Result<(), Error> {
    // The first tick checks whether anybody is at work. The others pack.
    for seconds in [60, 2, 2, 2] {
        actor.clock.advance(seconds * 1_000_000_000);
        actor.fs.cooling().pack_tick()?;
    }
    Ok(())
}

/// Returns the ends of the steps of a write, without the last.
fn steps(large: bool, at: u64, end: u64) -> impl Iterator<Item = u64> {
    let step = if large { BULK_STEP } else { REGION_STEP };
    let first = if large { at / BULK_BLOCK * BULK_BLOCK + step } else { (at / step + 1) * step };
    (first..end).step_by(step as usize)
}
