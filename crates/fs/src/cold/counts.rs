//! What packing has done since the store was opened.
//!
//! Owns: [`PackingCounts`], which callers see, and the counters behind it. Rules: counters only
//! grow, and change after the transaction has committed; values that are read together belong to no
//! single moment.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use shoal_region::{Lsn, Tx};

use crate::Result;
use crate::rooms::Cooling;

/// What packing has done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingCounts {
    /// Bytes of files that were put into objects or got a checksum.
    pub packed_bytes: u64,
    /// Packed bytes that a change made plain again.
    pub unpacked_bytes: u64,
    /// Inodes packed, and inodes made plain again for a change of one in their block.
    pub packed_inodes: u64,
    pub unpacked_inodes: u64,
    /// Bytes of the log that packing wrote, and that unpacking wrote.
    pub packing_log_bytes: u64,
    pub unpacking_log_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    packed_bytes: AtomicU64,
    unpacked_bytes: AtomicU64,
    packed_inodes: AtomicU64,
    unpacked_inodes: AtomicU64,
    packing_log_bytes: AtomicU64,
    unpacking_log_bytes: AtomicU64,
    spilling_log_bytes: AtomicU64,
}

impl Counters {
    /// Returns the bytes of the log that packing wrote.
    pub fn log_bytes(&self) -> u64 {
        self.packing_log_bytes.load(Relaxed)
    }

    /// Returns the bytes of the log that packing and unpacking wrote.
    pub fn all_log_bytes(&self) -> u64 {
        self.log_bytes() + self.unpacking_log_bytes.load(Relaxed)
    }

    /// Returns the bytes of the log that spilling and bringing back wrote.
    pub fn spilling_log_bytes(&self) -> u64 {
        self.spilling_log_bytes.load(Relaxed)
    }

    /// Commits a transaction that spills an object, or brings one back.
    pub fn commit_spilled(&self, tx: Tx<'_>) -> Result<Lsn> {
        counted(tx, &self.spilling_log_bytes)
    }

    /// Commits a transaction that packs this many bytes of a file, or inodes.
    pub fn commit_packed(&self, tx: Tx<'_>, bytes: u64, inodes: u64) -> Result<Lsn> {
        let lsn = counted(tx, &self.packing_log_bytes)?;
        self.packed_bytes.fetch_add(bytes, Relaxed);
        self.packed_inodes.fetch_add(inodes, Relaxed);
        Ok(lsn)
    }

    /// Commits a transaction that unpacks this many bytes of a file, or inodes.
    pub fn commit_unpacked(&self, tx: Tx<'_>, bytes: u64, inodes: u64) -> Result<Lsn> {
        let lsn = counted(tx, &self.unpacking_log_bytes)?;
        self.unpacked_bytes.fetch_add(bytes, Relaxed);
        self.unpacked_inodes.fetch_add(inodes, Relaxed);
        Ok(lsn)
    }
}

fn counted(tx: Tx<'_>, bytes: &AtomicU64) -> Result<Lsn> {
    let log_bytes = tx.log_bytes();
    let lsn = tx.commit()?;
    bytes.fetch_add(log_bytes, Relaxed);
    Ok(lsn)
}

impl<'a> Cooling<'a> {
    /// Returns what packing has done since the store was opened.
    pub fn packing_counts(self) -> PackingCounts {
        let of = &self.fs.packing;
        PackingCounts {
            packed_bytes: of.packed_bytes.load(Relaxed),
            unpacked_bytes: of.unpacked_bytes.load(Relaxed),
            packed_inodes: of.packed_inodes.load(Relaxed),
            unpacked_inodes: of.unpacked_inodes.load(Relaxed),
            packing_log_bytes: of.log_bytes(),
            unpacking_log_bytes: of.unpacking_log_bytes.load(Relaxed),
        }
    }
}
