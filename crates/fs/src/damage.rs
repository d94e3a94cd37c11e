//! Damage met while a store is open: what cannot be decoded costs the inode it belongs to, and nothing else.
//!
//! Owns: the set of inodes found damaged since the store was opened, and the ways around them.
//! Rules:
//! - A record that does not decode counts as in use: its number is never given out, and every operation on it is refused
//!   ([`Error::Corrupt`]). Its name is listed, and a file's name can be removed; the record then stays until
//!   `shoal check --repair` frees it. A directory's name stays, because what is below it would be lost from sight.
//! - Each inode is told once, with what was found, to [`crate::Options::on_damage`].
//! - Recovery goes on behind an inode that it cannot finish. One thing is done all the same: after a power loss no
//!   extent stays NEW, not even in a map that does not decode, because its blocks may hold another file's bytes.
//!
//! Left out: repair (`repair`), and damage of the fixed areas, which refuses the mount.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use shoal_format::dir::name_hash;
use shoal_format::extent::{EXTENT_NEW, EXTENT_UNWRITTEN, FileBlock};
use shoal_format::inode::{INODES_PER_BLOCK, Inode, Layout, S_IFDIR};

use crate::dir::{self, Found};
use crate::{Attr, Error, Fs, Ino, Result, extents};

/// Is told of each damaged inode once, with what was found; of tables that belong to no inode as inode 0.
pub type OnDamage = Arc<dyn Fn(Ino, &str) + Send + Sync>;

/// Inodes remembered at most: hostile bytes must not turn into unbounded memory.
const REMEMBERED_MAX: usize = 1 << 20;

#[derive(Default)]
pub(crate) struct Damage {
    met: Mutex<Met>,
    on_damage: Option<OnDamage>,
}

#[derive(Default)]
struct Met {
    inodes: HashSet<Ino>,
    /// Blocks of the inode table that cannot be reached: all their inodes.
    blocks: HashSet<u64>,
}

impl Damage {
    pub fn new(on_damage: Option<OnDamage>) -> Damage {
        Damage { met: Mutex::default(), on_damage }
    }

    /// Remembers that `ino` is damaged, and tells it the first time. Other errors than damage are not remembered.
    pub fn note(&self, ino: Ino, error: &Error) {
        let Error::Corrupt(finding) = error else { return };
        let mut met = self.met.lock();
        let known = met.blocks.contains(&ino.block()) || met.inodes.len() >= REMEMBERED_MAX;
        if !known && met.inodes.insert(ino) {
            drop(met);
            self.tell(ino, finding);
        }
    }

    /// The same for all inodes of a block that cannot be reached.
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

    /// Tells of damage in tables and dictionaries, which are no inode's.
    pub fn tell_of_tables(&self, finding: &str) {
        self.tell(Ino::ZERO, finding);
    }

    fn tell(&self, ino: Ino, finding: &str) {
        if let Some(on_damage) = &self.on_damage {
            on_damage(ino, finding);
        }
    }

    /// Was any met since the store was opened?
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
    /// Inodes found damaged since the store was opened.
    pub fn damaged_inodes(&self) -> u64 {
        self.table.damage.count()
    }

    /// Passes an outcome on, and remembers the damage of `ino` it may tell of.
    #[inline]
    pub(crate) fn met<T>(&self, ino: Ino, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.table.damage.note(ino, error))
    }

    /// Damage becomes a note and `None`; other errors stay.
    pub(crate) fn past_damage<T>(&self, ino: Ino, outcome: Result<T>) -> Result<Option<T>> {
        match self.met(ino, outcome) {
            Ok(value) => Ok(Some(value)),
            Err(Error::Corrupt(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An inode that cannot be read, for the kernel: the type its entry gives it, and no permissions. It gets one
    /// reference. Without an answer to a look-up the kernel could not ask for the name's removal.
    pub fn hold_unreadable(&self, ino: Ino, kind: u8) -> Attr {
        self.refs.hold(ino);
        let blank = crate::namespace::blank_dir();
        Attr::new(ino, &Inode { mode: (kind as u16) << 12, nlink: 1, ..blank })
    }

    /// [`Fs::hold_unreadable`] for what `name` in `parent` names; an error when that can be read, or is not there.
    pub fn lookup_unreadable(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        let _lock = self.locks.read(parent);
        let dir = self.load_dir(parent)?;
        let found = self.find(&self.region, &dir, name)?.ok_or(Error::NotFound)?;
        match self.load(found.ino) {
            Err(Error::Corrupt(_)) => Ok(self.hold_unreadable(found.ino, found.kind)),
            _ => Err(Error::NotFound),
        }
    }

    /// Removes the name of a file whose record does not decode. The caller holds the directory's exclusive lock.
    pub(crate) fn unlink_unreadable(&self, parent: Ino, mut dir: Inode, name: &[u8], found: &Found) -> Result<()> {
        if found.kind == (S_IFDIR >> 12) as u8 {
            return Err(Error::IsDirectory);
        }
        let now = self.now();
        let (mut tx, mut removal) = (self.region.begin_reclaim(), self.removal());
        dir::remove(&mut tx, &mut dir, name_hash(self.seed(), name), found)?;
        (dir.mtime, dir.ctime) = (now, now);
        removal.store(&mut tx, parent, &dir, true)?;
        tx.commit()?;
        removal.committed();
        Ok(())
    }

    /// Changes flags of extents that `ranges` hold wholly, where they lie, in a map that does not decode: `lost` says
    /// whether NEW extents become unwritten or durable data. Extents only partly in a range stay NEW.
    pub(crate) fn settle_in_place(&self, inode: &Inode, ranges: &[(FileBlock, FileBlock)], lost: bool) -> Result<()> {
        if inode.layout != Layout::Extents {
            return Ok(());
        }
        let mut tx = self.region.begin_reclaim();
        for (at, extent) in extents::raw(&self.region, inode.root)? {
            let within = ranges.iter().any(|&(from, to)| from <= extent.file_block && extent.end() <= to);
            if !within || extent.flags & EXTENT_NEW == 0 {
                continue;
            }
            let flags = if lost { EXTENT_UNWRITTEN } else { extent.flags & !EXTENT_NEW };
            tx.write(at + 15, &[flags as u8])?;
            if tx.payload_bytes() > 512 << 10 {
                tx.commit()?;
                tx = self.region.begin_reclaim();
            }
        }
        tx.commit()?;
        Ok(())
    }
}
