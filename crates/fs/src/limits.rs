//! Limits of an open store below those of its layout.
//!
//! The layout, made by `format` or `resize`, says what a store can hold at most. Within it a limit
//! is a number of free segments or bulk blocks that ordinary work does not get: one word in the
//! roots, changed by a transaction like everything else. Nothing moves, so a limit can change at
//! any moment. A process that may use less memory opens the store with a limit of its own.
//! Transactions that free space may go beyond a limit, as beyond the reserve.
//! Left out: another layout (`resize`).

use shoal_format::{BULK_BLOCK, SEGMENT};

use crate::inode::load_roots;
use crate::resize::Limits;
use crate::rooms::Upkeep;
use crate::{Error, Fs, Result};

/// Why an open store cannot have a limit (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// Below what is in use, with its reserve.
    MemoryUsed {
        used: u64,
        least: u64,
    },
    BulkUsed {
        least: u64,
    },
    /// Above what the layout has room for.
    MemoryLayout {
        most: u64,
    },
    BulkLayout {
        most: u64,
    },
}

impl Fs {
    /// Returns the limits in force.
    pub fn limits(&self) -> Result<Limits> {
        let (superblock, roots) = (self.region.superblock(), load_roots(&self.region)?);
        Ok(Limits {
            region_bytes: superblock.region_bytes
                - roots.withheld_segments.get().min(superblock.segment_count) * SEGMENT,
            bulk_blocks: superblock.bulk_blocks - roots.withheld_blocks.get().min(superblock.bulk_blocks),
        })
    }

    /// Changes the limits within the layout, durably.
    pub fn set_limits(&self, wanted: Limits) -> Result<std::result::Result<(), Beyond>> {
        self.writable()?;
        let superblock = self.region.superblock();
        let wanted = Limits { region_bytes: wanted.region_bytes / SEGMENT * SEGMENT, ..wanted };
        if wanted.region_bytes > superblock.region_bytes {
            return Ok(Err(Beyond::MemoryLayout { most: superblock.region_bytes }));
        }
        if wanted.bulk_blocks > superblock.bulk_blocks {
            return Ok(Err(Beyond::BulkLayout { most: superblock.bulk_blocks * BULK_BLOCK }));
        }
        let segments = (superblock.region_bytes - wanted.region_bytes) / SEGMENT;
        let spare = self.region.spare_segments();
        if segments > spare {
            let least = superblock.region_bytes - spare * SEGMENT;
            return Ok(Err(Beyond::MemoryUsed { used: self.usage().region_used, least }));
        }
        let blocks = superblock.bulk_blocks - wanted.bulk_blocks;
        if let Some(bulk) = &self.bulk {
            let free = bulk.free_blocks() + bulk.pending_blocks();
            if blocks > free {
                return Ok(Err(Beyond::BulkUsed { least: (superblock.bulk_blocks - free) * BULK_BLOCK }));
            }
        }
        self.table.change_roots(&self.region, |roots| {
            roots.withheld_segments = segments.into();
            roots.withheld_blocks = blocks.into();
        })?;
        self.upkeep().load_limits()?;
        self.region.sync().map_err(Error::from).map(Ok)
    }
}

impl<'a> Upkeep<'a> {
    /// Takes the limits from the roots, after opening. The memory that the process may use is a
    /// limit like them, but is not stored.
    pub(crate) fn load_limits(self) -> Result<()> {
        let limits = self.fs.limits()?;
        let region_bytes = limits.region_bytes.min(self.fs.options.region_bytes_max.unwrap_or(u64::MAX));
        self.fs.region.withhold((self.fs.region.superblock().region_bytes - region_bytes) / SEGMENT);
        if region_bytes < limits.region_bytes {
            self.fs.region.reserve_for_less();
        }
        if let Some(bulk) = &self.fs.bulk {
            bulk.withhold(self.fs.region.superblock().bulk_blocks - limits.bulk_blocks);
        }
        Ok(())
    }
}
