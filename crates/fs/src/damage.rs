//! Damage found while a store is open: what cannot be decoded costs only the inode it belongs to.
//!
//! Owns: the set of inodes found damaged since the store was opened, and the ways around them.
//! Rules:
//! - A record that does not decode counts as in use: its number is never given out, and every
//!   operation on it is refused ([`Error::Corrupt`]). Its name is listed, and a file's name can be
//!   removed; the record then stays until `shoal check --repair` frees it. A directory's name
//!   cannot be removed, because what is below it would no longer be visible.
//! - Each inode is reported once to [`crate::Options::on_damage`], with the finding.
//! - Recovery skips an inode that it cannot finish. One thing is still done: after a power loss no
//!   extent stays NEW, not even in a map that does not decode, because its blocks may hold another
//!   file's bytes.
//!
//! Left out: repair (`repair`), and damage of the fixed areas, which refuses the mount.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use shoal_format::dir::name_hash;
use shoal_format::extent::{EXTENT_NEW, EXTENT_UNWRITTEN, FileBlock};
use shoal_format::inode::{INODES_PER_BLOCK, Inode, Layout, S_IFDIR};

use crate::dir::{self, Found};
use crate::inode::removal::Follows;
use crate::rooms::{Data, Repair};
use crate::{Attr, Error, Fs, Ino, Result, extents};

/// Called once for each damaged inode, with the finding. Tables that belong to no inode are
/// reported as inode 0.
pub type OnDamage = Arc<dyn Fn(Ino, &str) + Send + Sync>;

/// Inodes remembered at most: hostile bytes must not use up memory.
const REMEMBERED_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct Damage {
    met: Mutex<Met>,
    on_damage: Option<OnDamage>,
}

#[derive(Default)]
struct Met {
    inodes: HashSet<Ino>,
    /// Unreachable blocks of the inode table: all their inodes count.
    blocks: HashSet<u64>,
}

impl Damage {
    pub fn new(on_damage: Option<OnDamage>) -> Damage {
        Damage { met: Mutex::default(), on_damage }
    }

    /// Remembers that `ino` is damaged, and reports it the first time. Ignores errors other than
    /// damage.
    pub fn note(&self, ino: Ino, error: &Error) {
        let Error::Corrupt(finding) = error else { return };
        let mut met = self.met.lock();
        let known = met.blocks.contains(&ino.block()) || met.inodes.len() >= REMEMBERED_MAX;
        if !known && met.inodes.insert(ino) {
            drop(met);
            self.tell(ino, finding);
        }
    }

    /// Does the same for all inodes of an unreachable block.
    pub fn note_block(&self, block: u64, error: &Error) {
        let Error::Corrupt(finding) = error else { return };
        let mut met = self.met.lock();
        if met.blocks.len() < REMEMBERED_MAX && met.blocks.insert(block) {
            met.inodes.retain(|ino| ino.block() != block);
            drop(met);
            let places = [0, INODES_PER_BLOCK as usize - 1];
            if let [Some(first), Some(last)] = places.map(|place| Ino::in_block(block, place)) {
                self.tell(first, &format!("{finding} (inodes up to {last})"));
            }
        }
    }

    /// Reports damage in tables and dictionaries, which belong to no inode.
    pub fn tell_of_tables(&self, finding: &str) {
        self.tell(Ino::ZERO, finding);
    }

    fn tell(&self, ino: Ino, finding: &str) {
        if let Some(on_damage) = &self.on_damage {
            on_damage(ino, finding);
        }
    }

    /// Returns whether any damage was found since the store was opened.
    pub fn is_known(&self) -> bool {
        let met = self.met.lock();
        !met.inodes.is_empty() || !met.blocks.is_empty()
    }

    fn count(&self) -> u64 {
        let met = self.met.lock();
        met.inodes.len() as u64 + met.blocks.len() as u64 * INODES_PER_BLOCK
    }
}

impl Fs {
    /// Passes an outcome on, and remembers damage of `ino` that it reports.
    #[inline]
    pub(crate) fn met<T>(&self, ino: Ino, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.table.damage.note(ino, error))
    }

    /// Turns damage into a note and `None`; passes other errors on.
    pub(crate) fn past_damage<T>(&self, ino: Ino, outcome: Result<T>) -> Result<Option<T>> {
        match self.met(ino, outcome) {
            Ok(value) => Ok(Some(value)),
            Err(Error::Corrupt(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl<'a> Repair<'a> {
    /// Returns the number of inodes found damaged since the store was opened.
    pub fn damaged_inodes(self) -> u64 {
        self.fs.table.damage.count()
    }

    /// Returns attributes of an unreadable inode for the kernel: the type from its entry, and no
    /// permissions. Takes one reference to it. If the look-up had no answer, the kernel could not
    /// ask for the name's removal.
    pub fn hold_unreadable(self, ino: Ino, kind: u8) -> Attr {
        self.fs.refs.hold(ino);
        let blank = crate::namespace::blank_dir();
        Attr::new(ino, &Inode { mode: (kind as u16) << 12, nlink: 1, ..blank })
    }

    /// Does [`Repair::hold_unreadable`] for what `name` in `parent` names; an error if that is
    /// readable or missing.
    pub fn lookup_unreadable(self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let _lock = self.fs.locks.read(parent);
        let dir = self.fs.tree().load_dir(parent)?;
        let found = self.fs.tree().find(&self.fs.region, &dir, name)?.ok_or(Error::NotFound)?;
        match self.fs.load(found.ino) {
            Err(Error::Corrupt(_)) => Ok(self.hold_unreadable(found.ino, found.kind)),
            _ => Err(Error::NotFound),
        }
    }

    /// Removes the name of a file whose record does not decode. The caller holds the directory's exclusive lock.
    pub(crate) fn unlink_unreadable(self, parent: Ino, mut dir: Inode, name: &[u8], found: &Found) -> Result<()> {
        if found.kind == (S_IFDIR >> 12) as u8 {
            return Err(Error::IsDirectory);
        }
        let now = self.fs.now();
        let (mut tx, mut removal) = (self.fs.region.begin_reclaim(), self.fs.tree().removal());
        dir::remove(&mut tx, &mut dir, name_hash(self.fs.seed(), name), found)?;
        (dir.mtime, dir.ctime) = (now, now);
        removal.store(&mut tx, parent, &dir, Follows::Nothing)?;
        tx.commit()?;
        removal.committed();
        Ok(())
    }
}

/// The outcome for data in NEW extents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewData {
    Durable,
    /// The extents become unwritten.
    Lost,
}

impl<'a> Data<'a> {
    /// Changes, in place, the flags of extents that lie entirely within `ranges`, in a map that
    /// does not decode. Extents only partly in a range stay NEW.
    pub(crate) fn settle_in_place(self, inode: &Inode, ranges: &[(FileBlock, FileBlock)], new: NewData) -> Result<()> {
        if inode.layout != Layout::Extents {
            return Ok(());
        }
        let mut tx = self.fs.region.begin_reclaim();
        for (at, extent) in extents::raw(&self.fs.region, inode.root)? {
            let within = ranges.iter().any(|&(from, to)| from <= extent.file_block && extent.end() <= to);
            if !within || extent.flags & EXTENT_NEW == 0 {
                continue;
            }
            let flags = match new {
                NewData::Durable => extent.flags & !EXTENT_NEW,
                NewData::Lost => EXTENT_UNWRITTEN,
            };
            tx.write(at + 15, &[flags as u8])?;
            if tx.payload_bytes() > 512 << 10 {
                tx.commit()?;
                tx = self.fs.region.begin_reclaim();
            }
        }
        tx.commit()?;
        Ok(())
    }
}
