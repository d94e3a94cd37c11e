//! Notes of trimmed and lost blocks, kept until they are in lists on the donors.
//!
//! Owns: [`Notes`]. Rules: ranges are written in the order in which they were noted, losses first.
//! A flush waits until everything noted before it is in a list. Left out: writing lists (`trims`).

use shoal_format::ram::{LOST, TRIMMED, TrimmedRange};

pub(crate) struct Notes {
    trims: Vec<TrimmedRange>,
    losses: Vec<TrimmedRange>,
    /// Lowest sequence that waits for the notes; `u64::MAX`: none.
    origin: u64,
    /// Highest sequence of a trimmed range so far, noted or found.
    last_trim: u64,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes { trims: Vec::new(), losses: Vec::new(), origin: u64::MAX, last_trim: 0 }
    }
}

impl Notes {
    pub fn is_empty(&self) -> bool {
        self.trims.is_empty() && self.losses.is_empty()
    }

    /// Lowest sequence that waits for the notes: a flush up to a higher one waits, too.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    pub fn waits_from(&mut self, sequence: u64) {
        self.origin = self.origin.min(sequence);
    }

    /// Number of trimmed ranges that are not written yet.
    pub fn trims(&self) -> usize {
        self.trims.len()
    }

    pub fn trim(&mut self, range: TrimmedRange) {
        self.meets_trim(range.sequence);
        self.trims.push(range);
    }

    /// Takes note of a trimmed range that is in a list.
    pub fn meets_trim(&mut self, sequence: u64) {
        self.last_trim = self.last_trim.max(sequence);
    }

    /// Highest sequence of a trimmed range. It may be all that hides blocks in headers with a lower
    /// one.
    pub fn last_trim(&self) -> u64 {
        self.last_trim
    }

    /// Notes that the data of a block is lost. Consecutive blocks with one sequence form one range.
    pub fn lose(&mut self, block: u32, sequence: u64) {
        match self.losses.last_mut() {
            Some(last) if last.sequence == sequence && last.first + last.count == block => last.count += 1,
            _ => self.losses.push(TrimmedRange { first: block, count: 1, sequence }),
        }
    }

    /// Returns the next list to write, of at most `most` ranges, and the block number that marks
    /// it.
    pub fn next_list(&self, most: usize) -> Option<(u32, &[TrimmedRange])> {
        let (kind, noted) = if self.losses.is_empty() { (TRIMMED, &self.trims) } else { (LOST, &self.losses) };
        (!noted.is_empty()).then(|| (kind, &noted[..noted.len().min(most)]))
    }

    /// Drops the first `count` ranges of the next list, because they are in a group now. Returns
    /// whether nothing is left.
    pub fn listed(&mut self, kind: u32, count: usize) -> bool {
        let noted = if kind == LOST { &mut self.losses } else { &mut self.trims };
        noted.drain(..count);
        if self.is_empty() {
            self.origin = u64::MAX;
        }
        self.is_empty()
    }
}
