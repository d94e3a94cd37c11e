//! Cleaning: when bulk storage is short, moves payloads out of sparsely used blocks, so that these
//! blocks can be unmapped.
//!
//! A pass takes the emptiest blocks and examines all files for ranges in them, because nothing
//! leads from a range to its file. It writes what it finds to fresh blocks and makes the heads
//! refer to these, in the way and order of spilling (`write`). A pass goes in steps of bounded
//! work.
//! Left out: unmapping the emptied blocks (`room`).

use std::collections::BTreeSet;

use shoal_format::BULK_BLOCK;
use shoal_format::inode::{Inode, InodeSlot, Layout};
use shoal_format::object::{GROUP, SpillPlace};

use super::Worker;
use super::write::{Batch, Candidate, Form};
use crate::cold::owner::object_of;
use crate::rooms::Spilling;
use crate::{Error, Ino, Result};

/// Bulk storage is short when less than this share of it is free.
const SHORT_SHARE: u64 = 16;
/// Blocks emptied by one pass at most, and gained by one at least, because a pass examines all
/// files.
const PASS_BLOCKS: usize = 1024;
const GAIN_BLOCKS: u64 = 4;
/// A pass begins this long after the last one at the earliest (ns).
const PAUSE_NS: u64 = 10_000_000_000;

/// A pass in progress.
pub(super) struct Cleaning {
    victims: BTreeSet<u64>,
    /// The next block of the inode table to look at.
    block: u64,
}

impl<'a> Spilling<'a> {
    /// Returns whether there is little room to spill to.
    fn is_bulk_short(self) -> bool {
        self.fs.bulk.as_ref().is_some_and(|bulk| {
            let (room, count) = bulk.room_and_blocks();
            room * SHORT_SHARE < count
        })
    }

    /// Continues cleaning, or begins a pass if that is worth it.
    pub(super) fn clean_some(self, worker: &mut Worker, now: u64, most: u64) -> Result<()> {
        if worker.cleaning.is_none() && (now < worker.cleaned_ns || !self.is_bulk_short()) {
            return Ok(());
        }
        self.clean(worker, most, GAIN_BLOCKS)?;
        if worker.cleaning.is_none() {
            worker.cleaned_ns = now + PAUSE_NS;
        }
        Ok(())
    }

    /// Cleans at up to `most` blocks of the inode table, with a new pass if that gains `gain`
    /// blocks. The pass is over when `worker` has none left.
    pub(super) fn clean(self, worker: &mut Worker, most: u64, gain: u64) -> Result<()> {
        let pass = worker.cleaning.take().or_else(|| {
            let victims = self.fs.spill.map.sparse(PASS_BLOCKS, gain)?;
            Some(Cleaning { victims, block: 0 })
        });
        let Some(mut pass) = pass else { return Ok(()) };
        let mut batch = Batch::default();
        let mut left = most;
        while pass.block < self.fs.table.blocks() && left > 0 {
            let mut files = Vec::new();
            self.fs.table.for_block(&self.fs.region, pass.block, &mut |ino, slot| {
                if let InodeSlot::Used(Inode { layout: Layout::Packed | Layout::Chunked, .. }) = slot {
                    files.push(ino);
                }
            })?;
            for ino in files {
                self.fs.past_damage(ino, self.gather_spilled(ino, &pass.victims, &mut batch))?;
            }
            (pass.block, left) = (pass.block + 1, left - 1);
            // With little room, blocks are reused repeatedly: moves what was gathered so far, and
            // unmaps the emptied blocks, before it goes on.
            let is_full = batch.is_full() || batch.blocks() >= self.fs.bulk()?.free_blocks();
            if is_full || pass.block == self.fs.table.blocks() || left == 0 {
                // An error ends the pass; what has moved stays moved.
                self.write_batch(worker, std::mem::take(&mut batch))?;
                self.sweep()?;
            }
        }
        if pass.block < self.fs.table.blocks() {
            worker.cleaning = Some(pass);
        }
        Ok(())
    }

    /// Adds a file's data in the victim blocks to the batch.
    fn gather_spilled(self, ino: Ino, victims: &BTreeSet<u64>, batch: &mut Batch) -> Result<()> {
        let mut group = 0;
        loop {
            let (generation, found) = {
                let _lock = self.fs.locks.read(ino);
                let inode = match self.fs.load(ino) {
                    Err(Error::Stale) => return Ok(()),
                    loaded => loaded?,
                };
                let may = matches!(inode.layout, Layout::Packed | Layout::Chunked) && inode.nlink > 0;
                if !may || group * GROUP >= inode.size {
                    return Ok(());
                }
                (inode.generation, object_of(&self.fs.region, &inode, group)?)
            };
            if let Some(placed) = found
                && let Some(place) = placed.place
                && is_in(place, placed.object.spilled_bytes(), victims)
                // If the payload is gone or damaged, it is skipped: the next reader gets the error.
                && let Ok(payload) = self.spilled_payload(ino, &placed, place)?
            {
                let object = placed.object;
                batch.push(Candidate {
                    ino,
                    generation,
                    group,
                    form: Form::Spilled(object, place),
                    copied: payload,
                    payload: None,
                    code: (object.codec, object.dictionary),
                    bytes: object.bytes.into(),
                    gain: 0,
                    at: 0,
                });
            }
            group += 1;
        }
    }
}

fn is_in(place: SpillPlace, bytes: u64, victims: &BTreeSet<u64>) -> bool {
    victims.range(place.0 / BULK_BLOCK..(place.0 + bytes).div_ceil(BULK_BLOCK)).next().is_some()
}
