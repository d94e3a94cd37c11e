//! Trims and losses: noting them, and writing lists of them.
//!
//! Rules: a range is noted before its blocks die, so that freeing their groups waits for the list.
//! Lists are blocks like any other, and go into the cleaner's group. Left out: the notes themselves
//! (`state::notes`).

use std::sync::Arc;

use shoal_format::ram;

use crate::api::DiskError;
use crate::requests::send::send;
use crate::state::State;
use crate::state::place::Location;
use crate::task::Core;

/// What became of the lists of trimmed and lost ranges when blocks were lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// All are still there.
    Kept,
    /// Some are lost, too.
    Lost,
}

impl State {
    /// Unmaps blocks and notes the trim for the donors.
    pub fn trim(&mut self, first: u32, end: u32) {
        // Take the sequence before the blocks die: freeing their groups waits for the note, too.
        let origin = self.take_sequence();
        let mut run: Option<ram::TrimmedRange> = None;
        for block in first..end {
            if self.unmap(block) | self.map.unlose(block) {
                // There may be something to clean now.
                self.shortage.may_have_room();
                run = match run {
                    Some(run) if run.first + run.count == block => {
                        Some(ram::TrimmedRange { count: run.count + 1, ..run })
                    }
                    other => {
                        other.into_iter().for_each(|range| self.notes.trim(range));
                        Some(ram::TrimmedRange { first: block, count: 1, sequence: origin })
                    }
                };
            }
        }
        if let Some(run) = run {
            self.notes.trim(run);
            self.notes.waits_from(origin);
            self.wake();
        }
    }

    /// Notes every block that holds nothing as trimmed.
    pub fn trim_unmapped(&mut self) {
        let origin = self.take_sequence();
        let mut first = None;
        for block in 0..self.map.blocks() as u32 + 1 {
            let holds_nothing =
                (block as u64) < self.map.blocks() && self.map.find(block).is_none() && !self.map.is_lost(block);
            match (first, holds_nothing) {
                (None, true) => first = Some(block),
                (Some(begin), false) => {
                    let range = ram::TrimmedRange { first: begin, count: block - begin, sequence: origin };
                    self.notes.trim(range);
                    first = None;
                }
                _ => {}
            }
        }
        self.notes.waits_from(origin);
        self.wake();
    }

    /// Marks blocks at these places as lost for good.
    pub fn note_lost(&mut self, lost: &[(u32, Location)], lists: Lists) {
        let mut blocks: Vec<u32> = Vec::new();
        for &(block, at) in lost {
            if self.map.is_at(block, at) {
                self.map.lose(block);
                blocks.push(block);
            }
        }
        if lists == Lists::Lost {
            // The contents of the lists are lost. So every block that holds nothing is noted as
            // trimmed again, and every lost block as lost again.
            self.trim_unmapped();
            blocks = self.map.lost();
        }
        // Note the losses before the blocks die: freeing their group waits for the note, too.
        self.note_losses(&blocks);
        for &(block, at) in lost {
            if self.map.is_at(block, at) {
                self.unmap(block);
            }
        }
    }

    /// Notes again those of these blocks that are lost. `blocks` is in order.
    pub fn note_losses(&mut self, blocks: &[u32]) {
        let sequence = self.take_sequence();
        for &block in blocks.iter().filter(|&&block| self.map.is_lost(block)) {
            self.notes.lose(block, sequence);
            self.notes.waits_from(sequence);
        }
        self.wake();
    }
}

/// Writes noted trims and losses as list blocks.
pub(crate) async fn write_trims(core: &Arc<Core>) -> Result<(), DiskError> {
    let begun = core.lock().now_ns;
    loop {
        let put = core
            .until(|state| {
                let most = ram::trimmed_max(state.shape.block_bytes);
                let Some((kind, ranges)) = state.notes.next_list(most) else { return Some(Ok(None)) };
                if let Some(error) = state.roster().gives_up(begun) {
                    return Some(Err(error));
                }
                let (count, mut bytes) = (ranges.len(), vec![0; state.shape.block_bytes]);
                ram::encode_trimmed(ranges, &mut bytes);
                let (cache, origin) = (state.open.cleaning(), state.notes.origin());
                let Some(put) = state.place(kind, &bytes, cache, Some(origin)) else {
                    return state.shortage.is_stuck().then_some(Err(DiskError::NoSpace));
                };
                if state.notes.listed(kind, count) {
                    state.wake();
                }
                Some(Ok(Some(put)))
            })
            .await?;
        let Some(put) = put else { return Ok(()) };
        if put.is_full {
            send(core, &mut core.lock(), put.at.group);
        }
    }
}
