//! Rebalancing: gives a file the threshold of its directory, and moves its data to the tier where
//! they then belong.
//!
//! A call concerns one file, so that a caller may stop between two. A file that is in its place
//! costs only a look. Contents, size, times and holes stay; only the tier changes, in the way that
//! growth and truncation change it (`large/tiers`).
//! Rules:
//! - A threshold set by a user stays. An inherited one follows the nearest directory above that has
//!   one.
//! - Nothing comes into memory if memory would then exceed the limit from which on small files
//!   spill: it would spill at once.
//! - A file too long for one record comes into memory in steps, into an inode without a name. One
//!   record then gives the file the pieces and frees its blocks. A crash before that record leaves
//!   an inode without links, which recovery reclaims.
//! - Space behind a file's end and blocks never written were preallocated on request: such a file
//!   stays on bulk storage.
//!
//! Left out: the tree and its directories (the caller's walk), and what is spilled within a small
//! file (`spill`).

use shoal_format::BULK_BLOCK;
use shoal_format::extent::FileBlock;
use shoal_format::inode::{INODE_SUMMED, INODE_TRUNCATING, Inode, Layout, S_IFREG, Threshold};
use shoal_format::slot::SlotRef;
use shoal_format::superblock::FEATURE_THRESHOLDS;

use crate::data_lock::FileLock;
use crate::large::{MOVE_BACK_BYTES, Span, read_spans};
use crate::namespace::{Gone, blank_dir};
use crate::planted::{Bug, is_planted};
use crate::rooms::Large;
use crate::{Error, Ino, Result, small, threshold};

/// Ancestors examined at most: a longer chain is damage.
const ANCESTORS_MAX: usize = 1 << 16;

/// Where the data of a file are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tier {
    Memory,
    Bulk,
}

/// A file or directory that does not match the thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misplaced {
    pub generation: u32,
    /// Bytes of data to move; 0: only the threshold differs.
    pub bytes: u64,
    pub to_memory: bool,
}

/// What rebalancing did with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rebalanced {
    /// The file was in its place, or is gone.
    InPlace,
    ToBulk,
    ToMemory,
    /// The other tier has no room for it.
    NoRoom,
    /// The file has preallocated space, or is too long for one record.
    Stays,
}

/// Returns the threshold that a file inherits from a directory with one of `bytes`; 0: none.
fn given(bytes: u32) -> Threshold {
    Threshold { bytes, inherited: false }.handed_down()
}

impl<'a> Large<'a> {
    /// Returns the threshold of the nearest directory that has one, from this one upwards (bytes);
    /// 0: that of the store.
    pub fn threshold_given(self, directory: Ino) -> Result<u32> {
        let mut ino = directory;
        for _ in 0..ANCESTORS_MAX {
            let _lock = self.fs.locks.read(ino);
            let inode = self.fs.load(ino)?;
            match threshold::own(&inode) {
                Some(bytes) => return Ok(bytes),
                None if ino == crate::ROOT || !inode.is_dir() => return Ok(0),
                None => ino = inode.parent,
            }
        }
        Err(Error::Corrupt("the chain of parent directories has a loop; run `shoal check`".into()))
    }

    /// Returns what is wrong with a file or directory below a directory that gives this threshold.
    pub fn misplaced(self, ino: Ino, of_directory: u32) -> Result<Option<Misplaced>> {
        let _lock = self.fs.locks.read(ino);
        let mut inode = self.fs.load(ino)?;
        self.fs.data().refuse_nobodys(ino, &inode)?;
        if !inode.is_file() && !inode.is_dir() {
            return Ok(None);
        }
        let follows = threshold::own(&inode).is_none() && inode.threshold != given(of_directory);
        if follows {
            inode.threshold = given(of_directory);
        }
        let moves_to = self.moves_to(&inode);
        let bytes = if moves_to.is_some() { inode.size } else { 0 };
        let to_memory = moves_to == Some(Tier::Memory);
        let found = Misplaced { generation: inode.generation, bytes, to_memory };
        Ok((follows || moves_to.is_some()).then_some(found))
    }

    /// Returns the tier where the file belongs; `None` if it is there, or stays for now.
    fn moves_to(self, inode: &Inode) -> Option<Tier> {
        let is_large = inode.layout == Layout::Extents;
        let fits = inode.size <= self.fs.tree().threshold_of(inode);
        let moves = self.fs.bulk.is_some() && inode.is_file() && inode.layout != Layout::Empty && is_large == fits;
        // The next operation on such a file finishes the truncation first.
        (moves && inode.flags & INODE_TRUNCATING == 0).then_some(if fits { Tier::Memory } else { Tier::Bulk })
    }

    /// Gives a file or directory the threshold of the directory above, unless it has its own. Then
    /// moves a file's data where they belong. `generation` is that of [`Large::misplaced`]: another
    /// file with the same number is left alone.
    pub fn rebalance(self, ino: Ino, generation: u32, of_directory: u32) -> Result<Rebalanced> {
        self.fs.writable()?;
        if of_directory > 0 {
            // If a directory has a threshold, the store has the feature; but a caller may pass any
            // value.
            self.fs.region.add_feature(FEATURE_THRESHOLDS)?;
        }
        let outcome =
            self.fs.with_room(|| self.follow(ino, generation, given(of_directory))).and_then(|moves| match moves {
                None => Ok(Rebalanced::InPlace),
                Some(Tier::Memory) => self.fs.with_room(|| self.move_in(ino, generation)),
                Some(Tier::Bulk) => self.fs.with_room(|| self.move_out(ino, generation)),
            });
        match outcome {
            Err(Error::Stale) => Ok(Rebalanced::InPlace),
            Err(Error::NoSpace(_)) => Ok(Rebalanced::NoRoom),
            outcome => outcome,
        }
    }

    /// Stores the threshold of the directory. Returns the tier that the file is then to
    /// move to; `None`: it stays.
    fn follow(self, ino: Ino, generation: u32, given: Threshold) -> Result<Option<Tier>> {
        let _lock = self.fs.locks.write(ino);
        let mut inode = self.fs.load(ino)?;
        self.fs.data().refuse_nobodys(ino, &inode)?;
        if inode.generation != generation || !inode.is_file() && !inode.is_dir() {
            return Err(Error::Stale);
        }
        if threshold::own(&inode).is_none() && inode.threshold != given {
            inode.threshold = given;
            let mut tx = if given.bytes == 0 { self.fs.region.begin_reclaim() } else { self.fs.region.begin() };
            self.fs.store(&mut tx, ino, &inode)?;
            tx.commit()?;
        }
        Ok(self.moves_to(&inode))
    }

    /// Locks a file that is to move, if it still is.
    fn lock_misplaced(self, ino: Ino, generation: u32, tier: Tier) -> Result<Option<(FileLock<'a>, Inode)>> {
        let (file, inode) = self.fs.data().lock_to_move(ino)?;
        let still = inode.generation == generation && self.moves_to(&inode) == Some(tier);
        Ok(still.then_some((file, inode)))
    }

    /// Moves a small file to bulk storage.
    fn move_out(self, ino: Ino, generation: u32) -> Result<Rebalanced> {
        let Some((mut file, mut inode)) = self.lock_misplaced(ino, generation, Tier::Bulk)? else {
            return Ok(Rebalanced::InPlace);
        };
        match self.move_to_bulk(&mut file, &mut inode) {
            Ok(()) => Ok(Rebalanced::ToBulk),
            // Longer than any threshold: it was written when the store had no bulk storage.
            Err(Error::FileTooBig) => Ok(Rebalanced::Stays),
            Err(error) => Err(error),
        }
    }

    /// Moves a large file into memory.
    fn move_in(self, ino: Ino, generation: u32) -> Result<Rebalanced> {
        let Some((mut file, mut inode)) = self.lock_misplaced(ino, generation, Tier::Memory)? else {
            return Ok(Rebalanced::InPlace);
        };
        let Some(bytes) = self.written_bytes(&inode)? else { return Ok(Rebalanced::Stays) };
        if !self.fs.spilling().has_memory_for(bytes) {
            return Ok(Rebalanced::NoRoom);
        }
        if inode.size <= MOVE_BACK_BYTES && !is_planted(Bug::MoveBackSplit) {
            // In one record: a crash leaves both the copy and the freed blocks, or neither.
            self.move_back(&mut file, &mut inode)?;
            return Ok(Rebalanced::ToMemory);
        }
        let copy = self.unnamed(inode.size)?;
        let gathered = self.gather(&mut file, &mut inode, copy.ino);
        let outcome = match gathered {
            Ok(()) => self.take_over(file, &inode, copy.ino),
            Err(error) => {
                drop(file);
                Err(error)
            }
        };
        // No locks are held any more. The inode is empty, or holds a copy that nobody needs.
        self.fs.tree().reclaim_gone(Some(copy));
        outcome.map(|()| Rebalanced::ToMemory)
    }

    /// Returns the bytes of a large file's blocks; `None` if some were never written or lie behind
    /// its end.
    fn written_bytes(self, inode: &Inode) -> Result<Option<u64>> {
        let end = inode.size.next_multiple_of(BULK_BLOCK);
        let pieces = self.large_pieces(inode)?;
        let asked = pieces.iter().any(|piece| piece.unwritten || piece.file_at + piece.len > end);
        Ok((!asked).then(|| pieces.iter().map(|piece| piece.len).sum()))
    }

    /// Makes a file without a name or links, all hole.
    fn unnamed(self, size: u64) -> Result<Gone> {
        let new = self.fs.table.take(&self.fs.region)?;
        let mut tx = self.fs.region.begin();
        let now = self.fs.now();
        let times = Inode { atime: now, mtime: now, ctime: now, btime: now, ..blank_dir() };
        // As long as the file from the first record on, because that decides how its pieces are
        // packed.
        let inode = Inode { mode: S_IFREG | 0o600, nlink: 0, size, generation: new.generation(), ..times };
        self.fs.store(&mut tx, new.ino, &inode)?;
        let made = Gone { ino: new.ino, generation: inode.generation };
        tx.commit()?;
        new.keep();
        self.fs.orphans.lock().insert(made.ino);
        self.fs.tree().count(&inode, 1);
        Ok(made)
    }

    /// Copies a large file's data into `copy`, in records of bounded size. The data lock keeps the
    /// contents unchanged.
    fn gather(self, file: &mut FileLock<'_>, inode: &mut Inode, copy: Ino) -> Result<()> {
        let mut at = 0;
        while at < inode.size {
            let len = (inode.size - at).min(small::STEP_BYTES);
            let spans = self.spans(inode, at, len as usize)?;
            if spans.iter().any(|span| span.at().is_some()) {
                file.device(inode, |_| {
                    let mut bytes = vec![0; len as usize];
                    read_spans(self.fs, &spans, &mut bytes)?;
                    self.append_copy(copy, at, &spans, &bytes)
                })?;
            }
            at += len;
        }
        Ok(())
    }

    fn append_copy(self, copy: Ino, at: u64, spans: &[Span], bytes: &[u8]) -> Result<()> {
        let _lock = self.fs.locks.write(copy);
        let mut inode = self.fs.load(copy)?;
        let mut tx = self.fs.region.begin();
        let mut done = 0;
        for span in spans {
            if span.at().is_some() {
                small::write(&mut tx, &mut inode, at + done as u64, &bytes[done..done + span.len()])?;
            }
            done += span.len();
        }
        self.fs.store(&mut tx, copy, &inode)?;
        tx.commit()?;
        Ok(())
    }

    /// Gives a large file the pieces of its copy, and frees its blocks.
    ///
    /// Order: everything that the copy holds precedes this record in the log. The blocks are
    /// pending until the record is durable, so a crash finds either them or the copy.
    fn take_over(self, file: FileLock<'_>, seen: &Inode, copy: Ino) -> Result<()> {
        let ino = file.ino;
        file.with_other(copy, || {
            let (mut inode, mut from) = (self.fs.load(ino)?, self.fs.load(copy)?);
            if inode.generation != seen.generation || (inode.layout, inode.size) != (seen.layout, seen.size) {
                return Err(Error::Stale);
            }
            let before = inode.layout;
            let mut tx = self.fs.region.begin();
            let (runs, _) = self.unmap(&mut tx, &mut inode, FileBlock::ZERO, FileBlock::END)?;
            if inode.layout != Layout::Empty {
                return Err(Error::Corrupt(format!("inode {ino}: more blocks than a file of its length may have")));
            }
            if is_planted(Bug::MoveBackSplit) {
                self.fs.store(&mut tx, ino, &inode)?;
                tx.commit()?;
                tx = self.fs.region.begin();
            }
            (inode.layout, inode.root, inode.rdev) = (from.layout, from.root, from.rdev);
            inode.allocated += from.allocated;
            inode.flags |= from.flags & INODE_SUMMED;
            from = Inode {
                layout: Layout::Empty,
                root: SlotRef::NONE,
                rdev: 0,
                allocated: 0,
                flags: from.flags & !INODE_SUMMED,
                ..from
            };
            self.fs.store(&mut tx, copy, &from)?;
            let lsn = self.commit_large(tx, ino, before, &inode)?;
            let gone = Inode { layout: Layout::Empty, ..inode };
            self.unmapped(ino, &gone, lsn, &runs, FileBlock::ZERO, FileBlock::END)
        })
    }
}
