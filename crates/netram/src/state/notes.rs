//! Notes of trimmed and of lost blocks, kept until they are in lists on the donors.
//!
//! Owns: [`Notes`]. Rules: ranges are written down in the order in which they were noted, losses first; a flush waits
//! until all that was noted before it is in a list. Left out: writing lists (`trims`).

use shoal_format::ram::{LOST, TRIMMED, TrimmedRange};

pub(crate) struct Notes {
    trims: Vec<TrimmedRange>,
    losses: Vec<TrimmedRange>,
    /// Lowest sequence that waits for them; `u64::MAX`: none.
    origin: u64,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes { trims: Vec::new(), losses: Vec::new(), origin: u64::MAX }
    }
}

impl Notes {
    pub fn is_empty(&self) -> bool {
        self.trims.is_empty() && self.losses.is_empty()
    }

    /// A flush up to this sequence, or a higher one, waits for the notes.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    pub fn waits_from(&mut self, sequence: u64) {
        self.origin = self.origin.min(sequence);
    }

    /// Ranges trimmed and not yet written down.
    pub fn trims(&self) -> usize {
        self.trims.len()
    }

    pub fn trim(&mut self, range: TrimmedRange) {
        self.trims.push(range);
    }

    /// The data of a block is lost. Blocks of one sequence that come in order are one range.
    pub fn lose(&mut self, block: u32, sequence: u64) {
        match self.losses.last_mut() {
            Some(last) if last.sequence == sequence && last.first + last.count == block => last.count += 1,
            _ => self.losses.push(TrimmedRange { first: block, count: 1, sequence }),
        }
    }

    /// The next list to write, of `most` ranges at most, and the number that marks it.
    pub fn next_list(&self, most: usize) -> Option<(u32, &[TrimmedRange])> {
        let (kind, noted) = if self.losses.is_empty() { (TRIMMED, &self.trims) } else { (LOST, &self.losses) };
        (!noted.is_empty()).then(|| (kind, &noted[..noted.len().min(most)]))
    }

    /// The first `count` ranges of the next list are in a group now. True if nothing is left.
    pub fn listed(&mut self, kind: u32, count: usize) -> bool {
        let noted = if kind == LOST { &mut self.losses } else { &mut self.trims };
        noted.drain(..count);
        if self.is_empty() {
            self.origin = u64::MAX;
        }
        self.is_empty()
    }
}
