//! Noting what was trimmed, and what is lost.

use std::sync::Arc;

use shoal_format::ram;

use crate::api::DiskError;
use crate::place::Location;
use crate::send::send;
use crate::state::State;
use crate::task::Core;

impl State {
    /// Unmaps blocks and notes it for the donors.
    pub fn trim(&mut self, first: u32, end: u32) {
        // Before the blocks are dead: who frees them waits for the note, too.
        let origin = self.next_sequence;
        self.next_sequence += 1;
        let mut run: Option<ram::TrimmedRange> = None;
        for block in first..end {
            if self.unmap(block) | self.lost_blocks.remove(&block) {
                // There may be something to clean now.
                self.may_have_room();
                run = match run {
                    Some(run) if run.first + run.count == block => {
                        Some(ram::TrimmedRange { count: run.count + 1, ..run })
                    }
                    other => {
                        self.trims.extend(other);
                        Some(ram::TrimmedRange { first: block, count: 1, sequence: origin })
                    }
                };
            }
        }
        if let Some(run) = run {
            self.trims.push(run);
            self.trims_origin = self.trims_origin.min(origin);
            self.wake();
        }
    }

    /// Everything that holds nothing is noted as trimmed.
    pub fn trim_unmapped(&mut self) {
        let origin = self.next_sequence;
        self.next_sequence += 1;
        let mut first = None;
        for block in 0..self.blocks as u32 + 1 {
            let holds_nothing =
                (block as u64) < self.blocks && self.find(block).is_none() && !self.lost_blocks.contains(&block);
            match (first, holds_nothing) {
                (None, true) => first = Some(block),
                (Some(begin), false) => {
                    let range = ram::TrimmedRange { first: begin, count: block - begin, sequence: origin };
                    self.trims.push(range);
                    first = None;
                }
                _ => {}
            }
        }
        self.trims_origin = self.trims_origin.min(origin);
        self.wake();
    }

    /// Blocks at these places are gone for good; with `notes`, lists of trimmed and lost ranges are, too.
    pub fn note_lost(&mut self, lost: &[(u32, Location)], notes: bool) {
        let mut blocks: Vec<u32> = Vec::new();
        for &(block, at) in lost {
            if self.is_at(block, at) {
                self.lost_blocks.insert(block);
                blocks.push(block);
            }
        }
        if notes {
            // What the lists said is not known any more: all that holds nothing is hidden anew, all that is lost noted anew.
            self.trim_unmapped();
            blocks = self.lost_blocks.iter().copied().collect();
            blocks.sort_unstable();
        }
        // Before the blocks are dead: who frees their group waits for the note, too.
        self.note_losses(&blocks);
        for &(block, at) in lost {
            if self.is_at(block, at) {
                self.unmap(block);
            }
        }
    }

    /// Those of the blocks that are lost are to be written down, again. In order.
    pub fn note_losses(&mut self, blocks: &[u32]) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        for &block in blocks.iter().filter(|block| self.lost_blocks.contains(block)) {
            match self.losses.last_mut() {
                Some(last) if last.sequence == sequence && last.first + last.count == block => last.count += 1,
                _ => self.losses.push(ram::TrimmedRange { first: block, count: 1, sequence }),
            }
            self.trims_origin = self.trims_origin.min(sequence);
        }
        self.wake();
    }
}

/// Writes the noted trims and losses into blocks of their own.
pub(crate) async fn write_trims(core: &Arc<Core>) -> Result<(), DiskError> {
    let begun = core.lock().now_ns;
    loop {
        let full = core
            .until(|state| {
                let kind = if state.losses.is_empty() { ram::TRIMMED } else { ram::LOST };
                let noted = if kind == ram::LOST { &state.losses } else { &state.trims };
                if noted.is_empty() {
                    return Some(Ok(None));
                }
                if let Some(error) = state.gives_up(begun) {
                    return Some(Err(error));
                }
                let count = noted.len().min(ram::trimmed_max(state.shape.block_bytes));
                let mut bytes = vec![0; state.shape.block_bytes];
                ram::encode_trimmed(&noted[..count], &mut bytes);
                let (cache, origin) = (state.cleaning(), state.trims_origin);
                let Some((at, full)) = state.place(kind, &bytes, cache, Some(origin)) else {
                    return state.stuck.then_some(Err(DiskError::NoSpace));
                };
                let noted = if kind == ram::LOST { &mut state.losses } else { &mut state.trims };
                noted.drain(..count);
                if state.trims.is_empty() && state.losses.is_empty() {
                    state.trims_origin = u64::MAX;
                    state.wake();
                }
                Some(Ok(Some((at.group, full))))
            })
            .await?;
        let Some((group, full)) = full else { return Ok(()) };
        if full {
            send(core, &mut core.lock(), group, true);
        }
    }
}
