//! Rename: replace, refuse to replace, exchange, leave a whiteout.
//!
//! Up to four inodes change: both directories, the inode that moves, and the one it displaces.
//! Renames between different directories are serialised, so that the answer to "is the target below
//! the source" cannot change meanwhile.
//!
//! Programs replace a file by writing another one and renaming it over the first, and many leave
//! out the fsync in between. So the record that gives a large file the name of another one commits
//! only when the file's data is durable on the bulk device: a power loss leaves the old contents or
//! the new ones. The flush comes before the locks. If data was written in between, which is checked
//! under the locks, the rename starts over, a few times.

use shoal_format::dir::{Dirent, name_hash};
use shoal_format::inode::{Inode, S_IFCHR};
use shoal_region::Tx;

use crate::dir::{self, Found};
use crate::inode::Claim;
use crate::namespace::{Gone, check_name, kind_of};
use crate::planted::{Bug, is_planted};
use crate::rooms::Tree;
use crate::{Caller, Error, Fs, Ino, Patience, Result, flags};

/// How often a rename flushes without its locks before it does so under them.
const FLUSHES_MAX: u32 = 3;

/// The rule for an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    /// Fail with `Exists`.
    NoReplace,
    /// Swap the two names; both must exist.
    Exchange,
}

/// Both ends of a rename, as they are under the locks.
struct Ends {
    from_dir: Inode,
    /// `None` when both names are in one directory.
    to_dir: Option<Inode>,
    source: Found,
    target: Option<Found>,
}

impl Fs {
    pub fn rename(&self, from: Ino, name: &[u8], to: Ino, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.rename_with(Patience::Waits, (from, name), (to, new_name), mode, None)
    }

    /// Like [`Fs::rename`]. With `whiteout` it also leaves a *whiteout* at the old name for an
    /// overlay, in the same transaction: a character device 0:0 of the caller given, which hides
    /// what a lower layer has under that name. Not for [`RenameMode::Exchange`].
    pub fn rename_with(
        &self,
        patience: Patience,
        (from, name): (Ino, &[u8]),
        (to, new_name): (Ino, &[u8]),
        mode: RenameMode,
        whiteout: Option<&Caller>,
    ) -> Result<()> {
        self.writable()?;
        if whiteout.is_some() && mode == RenameMode::Exchange {
            return Err(Error::Invalid);
        }
        for name in [name, new_name] {
            if name == b"." || name == b".." {
                return Err(Error::Invalid);
            }
            check_name(name)?;
        }
        self.with_room_by(patience, || self.tree().try_rename(patience, (from, name), (to, new_name), mode, whiteout))
    }
}

impl<'a> Tree<'a> {
    fn try_rename(
        self,
        patience: Patience,
        (from, name): (Ino, &[u8]),
        (to, new_name): (Ino, &[u8]),
        mode: RenameMode,
        whiteout: Option<&Caller>,
    ) -> Result<()> {
        let mut flushes = 0;
        let mut writers_wait = [None, None];
        'again: loop {
            let across = (from != to).then(|| self.fs.rename.lock());
            let mut wanted = [from, to, from, from];
            let (lock, ends) = loop {
                let mut lock = self.fs.locks.write_many(&wanted);
                let ends = self.ends(from, name, to, new_name)?;
                let target = ends.target.map_or(ends.source.ino, |target| target.ino);
                if self.fs.locks.try_extend(&mut lock, ends.source.ino) && self.fs.locks.try_extend(&mut lock, target) {
                    break (lock, ends);
                }
                wanted = [from, to, ends.source.ino, target];
            };
            // The inodes that the names refer to now are locked.
            let taking = taking(&ends, mode);
            for ino in taking.into_iter().flatten() {
                if self.fs.data().is_settled(ino, &self.fs.load(ino)?) || is_planted(Bug::RenameUnsettled) {
                    continue;
                }
                drop((lock, across));
                if !self.fs.bulk()?.is_flushed(ino) {
                    patience.may_flush()?;
                }
                if flushes == FLUSHES_MAX {
                    // A writer keeps writing: lock it out.
                    drop(writers_wait);
                    writers_wait = self.fs.data_locks.write_both(taking);
                } else {
                    flushes += 1;
                }
                self.fs.data().settle_file(ino)?;
                continue 'again;
            }
            if let Some(bulk) = self.fs.bulk.as_ref().filter(|_| !is_planted(Bug::NameKeepsBirth)) {
                // A later move between the tiers must not act as if nobody relied on the file.
                taking.into_iter().flatten().for_each(|ino| bulk.births.forget(ino));
            }
            let gone = self.rename_locked((from, name), (to, new_name), ends, mode, whiteout)?;
            drop((lock, across, writers_wait));
            self.reclaim_gone(gone);
            return Ok(());
        }
    }

    fn ends(self, from: Ino, name: &[u8], to: Ino, new_name: &[u8]) -> Result<Ends> {
        let from_dir = self.load_dir(from)?;
        let to_dir = if from == to { None } else { Some(self.load_dir(to)?) };
        if to_dir.as_ref().unwrap_or(&from_dir).nlink == 0 {
            return Err(Error::NotFound);
        }
        let source = self.find(&self.fs.region, &from_dir, name)?.ok_or(Error::NotFound)?;
        let target = self.find(&self.fs.region, to_dir.as_ref().unwrap_or(&from_dir), new_name)?;
        Ok(Ends { from_dir, to_dir, source, target })
    }

    fn rename_locked(
        self,
        (from, name): (Ino, &[u8]),
        (to, new_name): (Ino, &[u8]),
        ends: Ends,
        mode: RenameMode,
        whiteout: Option<&Caller>,
    ) -> Result<Option<Gone>> {
        let Ends { mut from_dir, mut to_dir, source, target } = ends;
        let mut moved = self.fs.load(source.ino)?;
        let displaced = target.map(|target| self.fs.load(target.ino)).transpose()?;
        match (mode, &displaced) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            _ => {}
        }
        if from != to {
            self.check_not_below(&moved, source.ino, to)?;
            if let (RenameMode::Exchange, Some(other), Some(target)) = (mode, &displaced, &target) {
                self.check_not_below(other, target.ino, from)?;
            }
        }
        if target.is_some_and(|target| target.ino == source.ino) {
            // Two names of one inode: POSIX says to do nothing.
            return Ok(None);
        }
        flags::check_entry_removed(&from_dir, &moved)?;
        let into = to_dir.as_ref().unwrap_or(&from_dir);
        match &displaced {
            Some(other) => flags::check_entry_removed(into, other)?,
            None => flags::check_entry_added(into)?,
        }
        let (hash, new_hash) = (name_hash(self.fs.seed(), name), name_hash(self.fs.seed(), new_name));
        if mode == RenameMode::Exchange {
            let (Some(target), Some(other)) = (target, displaced) else { return Err(Error::NotFound) };
            let there = Dirent { hash: new_hash, ino: source.ino, kind: kind_of(moved.mode), name: new_name };
            let here = Dirent { hash, ino: target.ino, kind: kind_of(other.mode), name };
            return self.exchange((from, from_dir), to_dir.map(|dir| (to, dir)), (there, moved), (here, other));
        }
        displaced.map_or(Ok(()), |other| check_displaced(&moved, &other))?;
        let now = self.fs.now();
        let mut tx = self.fs.region.begin();
        // The new name first: inserting may need room, removing never does.
        let into = to_dir.as_mut().unwrap_or(&mut from_dir);
        let entry = Dirent { hash: new_hash, ino: source.ino, kind: kind_of(moved.mode), name: new_name };
        match target {
            Some(_) => dir::replace(&mut tx, into, &entry)?,
            None => dir::insert(&mut tx, into, &entry)?,
        }
        // The change may have moved the source's entry within the same directory.
        let source_now = dir::lookup(&tx, &from_dir, hash, name)?.ok_or(Error::NotFound)?;
        let hidden =
            whiteout.map(|caller| self.leave_whiteout(&mut tx, caller, &mut from_dir, (hash, name))).transpose()?;
        if hidden.is_none() {
            dir::remove(&mut tx, &mut from_dir, hash, &source_now)?;
        }
        if moved.is_dir() {
            from_dir.nlink -= 1;
            to_dir.as_mut().unwrap_or(&mut from_dir).nlink += 1;
            set_parent(&mut moved, to);
        }
        if displaced.is_some_and(|other| other.is_dir()) {
            to_dir.as_mut().unwrap_or(&mut from_dir).nlink -= 1;
        }
        moved.ctime = now;
        self.fs.store(&mut tx, source.ino, &moved)?;
        self.store_dirs(&mut tx, (from, from_dir), to_dir.map(|dir| (to, dir)), now)?;
        let gone = match (target, displaced) {
            (Some(target), Some(mut other)) => self.drop_link(tx, target.ino, &mut other, now)?,
            _ => tx.commit().map(|_| None)?,
        };
        if let Some((new, inode)) = hidden {
            new.keep();
            self.count(&inode, 1);
        }
        Ok(gone)
    }

    /// Puts a whiteout in the place of an entry. The caller keeps the claim once the whiteout is
    /// committed.
    fn leave_whiteout(
        self,
        tx: &mut Tx<'_>,
        caller: &Caller,
        dir: &mut Inode,
        (hash, name): (u64, &[u8]),
    ) -> Result<(Claim<'a>, Inode)> {
        let new = self.fs.table.take(&self.fs.region)?;
        let inode = self.new_inode(caller, tx, dir, S_IFCHR, new.generation())?;
        self.fs.store(tx, new.ino, &inode)?;
        dir::replace(tx, dir, &Dirent { hash, ino: new.ino, kind: kind_of(S_IFCHR), name })?;
        Ok((new, inode))
    }

    /// Swaps the files of two names. `there`, an entry of `to` if there are two directories, now
    /// names what `here` has named.
    fn exchange(
        self,
        (from, mut from_dir): (Ino, Inode),
        to: Option<(Ino, Inode)>,
        (there, mut moved): (Dirent<'_>, Inode),
        (here, mut other): (Dirent<'_>, Inode),
    ) -> Result<Option<Gone>> {
        let (mut tx, mut to) = (self.fs.region.begin(), to);
        dir::replace(&mut tx, &mut from_dir, &here)?;
        dir::replace(&mut tx, to.as_mut().map_or(&mut from_dir, |(_, dir)| dir), &there)?;
        if let Some((to, to_dir)) = &mut to {
            let links = moved.is_dir() as i64 - other.is_dir() as i64;
            from_dir.nlink = (from_dir.nlink as i64 - links) as u32;
            to_dir.nlink = (to_dir.nlink as i64 + links) as u32;
            set_parent(&mut moved, *to);
            set_parent(&mut other, from);
        }
        let now = self.fs.now();
        (moved.ctime, other.ctime) = (now, now);
        self.fs.store(&mut tx, here.ino, &other)?;
        self.fs.store(&mut tx, there.ino, &moved)?;
        self.store_dirs(&mut tx, (from, from_dir), to, now)?;
        tx.commit()?;
        Ok(None)
    }

    fn store_dirs(self, tx: &mut Tx<'_>, from: (Ino, Inode), to: Option<(Ino, Inode)>, now: i64) -> Result<()> {
        for (ino, mut dir) in std::iter::once(from).chain(to) {
            (dir.mtime, dir.ctime) = (now, now);
            self.fs.store(tx, ino, &dir)?;
        }
        Ok(())
    }

    /// Checks that a directory does not move below itself. The caller holds the rename lock, so the
    /// chain of parents stands still.
    fn check_not_below(self, moved: &Inode, ino: Ino, mut below: Ino) -> Result<()> {
        if !moved.is_dir() {
            return Ok(());
        }
        // Bounded against a damaged chain: no path is longer than there are inodes.
        for _ in 0..=self.fs.table.blocks() * shoal_format::inode::INODES_PER_BLOCK {
            if below == ino {
                return Err(Error::Invalid);
            }
            if below == crate::ROOT {
                return Ok(());
            }
            // Ancestors may be written to meanwhile (times, link counts), but not moved.
            below = self.fs.region.while_still(|| self.fs.load_still(below))?.parent as Ino;
        }
        Err(Error::Corrupt("the chain of parent directories has a loop; run `shoal check`".into()))
    }
}

/// Fails if `moved` may not take the name of `other`.
fn check_displaced(moved: &Inode, other: &Inode) -> Result<()> {
    match (moved.is_dir(), other.is_dir()) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        (true, true) if other.size != 0 => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}

/// Returns the files that take a name that another file has.
fn taking(ends: &Ends, mode: RenameMode) -> [Option<Ino>; 2] {
    let (source, target) = (ends.source.ino, ends.target.map(|target| target.ino));
    match (mode, target) {
        (RenameMode::NoReplace, _) | (_, None) => [None, None],
        (_, Some(target)) if target == source => [None, None],
        (RenameMode::Replace, Some(_)) => [Some(source), None],
        (RenameMode::Exchange, Some(target)) => [Some(source), Some(target)],
    }
}

fn set_parent(inode: &mut Inode, parent: Ino) {
    if inode.is_dir() {
        inode.parent = parent;
    }
}
