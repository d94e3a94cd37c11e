//! Finds the small files that lost data in damaged blocks of the spill file.
//!
//! Nothing leads from a range of the spill file to its small file, so all files are examined;
//! damage is rare. Several payloads share a unit of the device, so a payload's own sum decides
//! whether it is lost.
//! Left out: which blocks are damaged ([`crate::scrub`]).

use std::collections::BTreeSet;

use shoal_format::BULK_BLOCK;
use shoal_format::inode::{Inode, InodeSlot, Layout};
use shoal_format::object::GROUP;

use crate::rooms::Spilling;
use crate::{Error, Ino, Result};

/// A group of a small file that cannot be read.
pub(crate) struct Lost {
    pub ino: Ino,
    /// Where in the file the group begins.
    pub byte: u64,
    /// The blocks of the spill file that hold it.
    pub blocks: std::ops::Range<u64>,
    /// True if its sum is wrong; false if the device reports an error.
    pub damaged: bool,
    pub cause: String,
}

impl<'a> Spilling<'a> {
    /// Returns the unreadable groups of small files that have data in these blocks of the spill
    /// file.
    pub(crate) fn lost_in_spilled(self, blocks: &BTreeSet<u64>) -> Result<Vec<Lost>> {
        let mut lost = Vec::new();
        for block in 0..self.fs.table.blocks() {
            let mut files = Vec::new();
            self.fs.table.for_block(&self.fs.region, block, &mut |ino, slot| {
                if let InodeSlot::Used(Inode { layout: Layout::Packed | Layout::Chunked, size, .. }) = slot {
                    files.push((ino, size.div_ceil(GROUP)));
                }
            })?;
            for (ino, groups) in files {
                for group in 0..groups {
                    self.fs.past_damage(ino, self.look_at_spilled(ino, group, blocks, &mut lost))?;
                }
            }
        }
        Ok(lost)
    }

    fn look_at_spilled(self, ino: Ino, group: u64, blocks: &BTreeSet<u64>, lost: &mut Vec<Lost>) -> Result<()> {
        let (placed, place) = match self.spilled_at(ino, group) {
            Ok(Some(found)) => found,
            // The group has changed or gone meanwhile.
            Ok(None) | Err(Error::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let of = place.0 / BULK_BLOCK..(place.0 + placed.object.spilled_bytes()).div_ceil(BULK_BLOCK);
        if blocks.range(of.clone()).next().is_none() {
            return Ok(());
        }
        let (damaged, cause) = match self.spilled_payload(ino, &placed, place) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => (true, "it is on bulk storage, and the checksum is wrong".to_string()),
            Err(error) => (false, error.to_string()),
        };
        // Listed only if the group was not brought back meanwhile.
        if self.spilled_at(ino, group).is_ok_and(|now| now.is_some_and(|(_, now)| now == place)) {
            lost.push(Lost { ino, byte: group * GROUP, blocks: of, damaged, cause });
        }
        Ok(())
    }
}
