//! Repairs of the checker's findings that an engine can make, each in ordinary transactions.
//!
//! Rules: a crash between any two transactions leaves a store that opens. The caller is trusted
//! only for what the repair is about (a count, a name, a piece that nothing references), because
//! the checker has seen the whole store and this code has not. Nobody else uses the store: the
//! findings are those of a store at rest.
//! Left out: deciding what to do (`shoal check --repair`).

use shoal_bulk::Run;
use shoal_format::SlotRef;
use shoal_format::dir::{Dirent, name_hash};
use shoal_format::extent::BulkBlock;
use shoal_format::inode::Inode;

use crate::namespace::kind_of;
use crate::rooms::Repair;
use crate::{Caller, Error, Ino, ROOT, Result, dir};

/// The directory for inodes without a name.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Pieces freed in one transaction.
const PIECES_PER_STEP: usize = 100;
/// Bulk blocks freed in one transaction; each 16 bytes of it free 64.
const BLOCKS_PER_STEP: u64 = 1 << 20;

impl<'a> Repair<'a> {
    fn record_of(self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let _lock = self.fs.locks.write(ino);
        let mut inode = self.fs.load(ino)?;
        change(&mut inode);
        let mut tx = self.fs.region.begin_reclaim();
        self.fs.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(())
    }

    pub fn link_count(self, ino: Ino, nlink: u32) -> Result<()> {
        self.record_of(ino, |inode| inode.nlink = nlink)
    }

    pub fn allocated(self, ino: Ino, bytes: u64) -> Result<()> {
        self.record_of(ino, |inode| inode.allocated = bytes)
    }

    /// Corrects a directory's number of entries.
    pub fn entries(self, directory: Ino, entries: u64) -> Result<()> {
        self.record_of(directory, |inode| inode.size = entries)
    }

    /// Removes an entry if it still names `ino`. [`Repair::link_count`] corrects the directory's
    /// link count.
    pub fn entry(self, directory: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let _lock = self.fs.locks.write(directory);
        let mut dir = self.fs.tree().load_dir(directory)?;
        let found = self
            .fs
            .tree()
            .find(&self.fs.region, &dir, name)?
            .filter(|found| found.ino == ino)
            .ok_or(Error::NotFound)?;
        let mut tx = self.fs.region.begin_reclaim();
        dir::remove(&mut tx, &mut dir, name_hash(self.fs.seed(), name), &found)?;
        self.fs.store(&mut tx, directory, &dir)?;
        tx.commit()?;
        Ok(())
    }

    /// Frees a record that does not decode.
    pub fn free_record(self, ino: Ino) -> Result<()> {
        let _lock = self.fs.locks.write(ino);
        match self.fs.load(ino) {
            Err(Error::Corrupt(_)) if ino != ROOT => {}
            Ok(_) => return Err(Error::Invalid),
            Err(error) => return Err(error),
        }
        // Its neighbours in a packed block keep what is left of them; each is repaired by itself.
        self.fs.compacting().unpack_damaged(ino)?;
        let (mut tx, mut removal) = (self.fs.region.begin_reclaim(), self.fs.tree().removal());
        removal.free(&mut tx, ino, 0)?;
        tx.commit()?;
        removal.committed();
        Ok(())
    }

    /// Gives an inode without an entry the name `lost+found/#<number>`.
    pub fn attach(self, ino: Ino) -> Result<()> {
        let caller = Caller::default();
        let home = match self.fs.lookup(ROOT, LOST_AND_FOUND) {
            Err(Error::NotFound) => self.fs.mkdir(&caller, ROOT, LOST_AND_FOUND, 0o700)?.ino,
            other => other?.ino,
        };
        let name = format!("#{ino}").into_bytes();
        let _lock = self.fs.locks.write_many(&[home, ino]);
        let (mut dir, mut inode) = (self.fs.tree().load_dir(home)?, self.fs.load(ino)?);
        if self.fs.tree().find(&self.fs.region, &dir, &name)?.is_some() {
            return Err(Error::Exists);
        }
        let mut tx = self.fs.region.begin();
        let hash = name_hash(self.fs.seed(), &name);
        let entry = Dirent { hash, ino, kind: kind_of(inode.mode), name: &name };
        dir::insert(&mut tx, &mut dir, &entry)?;
        if inode.is_dir() {
            inode.parent = home;
            dir.nlink += 1;
        } else {
            inode.nlink = 1;
        }
        self.fs.store(&mut tx, home, &dir)?;
        self.fs.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(())
    }

    /// Recounts the users of triplets, and writes both copies of the tables of packed inodes.
    pub fn packed_tables(self) -> Result<()> {
        self.fs.table.repair_tables(&self.fs.region)
    }

    /// Frees pieces that nothing references.
    pub fn pieces(self, pieces: &[SlotRef]) -> Result<()> {
        for step in pieces.chunks(PIECES_PER_STEP) {
            let mut tx = self.fs.region.begin_reclaim();
            for &piece in step {
                tx.free(piece)?;
            }
            tx.commit()?;
        }
        Ok(())
    }

    /// Frees blocks of the bulk device that no file maps.
    pub fn blocks(self, first: u64, blocks: u64) -> Result<()> {
        let bulk = self.fs.bulk()?;
        let end = first.saturating_add(blocks).min(bulk.blocks());
        let mut at = first;
        while at < end {
            let run = Run { first: BulkBlock::new(at), blocks: BLOCKS_PER_STEP.min(end - at) };
            let mut tx = self.fs.region.begin_reclaim();
            bulk.mark_free(&mut tx, run)?;
            let lsn = tx.commit()?;
            bulk.freed(lsn, &[run]);
            at = run.end().get();
        }
        Ok(())
    }
}
