//! Requests that can be repeated, and the changes that a server may still lose.
//!
//! Rules: a change is kept from its completion until a flush that was submitted after it completes.
//! Changes are kept in order of completion.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use shoal_media::{BlockDevice, MediaError, Request};

/// A request that can be repeated.
pub(super) enum Again {
    Read { at: u64, len: usize },
    Write { at: u64, bytes: Vec<u8>, fua: bool },
    Flush,
    Trim { at: u64, len: u64 },
    WriteZeroes { at: u64, len: u64, fua: bool },
}

impl Again {
    pub(super) fn of(request: &Request) -> Again {
        match request {
            Request::Read { at, buffer } => Again::Read { at: *at, len: buffer.len() },
            Request::Write { at, buffer, fua } => Again::Write { at: *at, bytes: buffer.clone(), fua: *fua },
            Request::Flush => Again::Flush,
            Request::Trim { at, len } => Again::Trim { at: *at, len: *len },
            Request::WriteZeroes { at, len, fua } => Again::WriteZeroes { at: *at, len: *len, fua: *fua },
        }
    }

    pub(super) fn request(&self) -> Request {
        match self {
            Again::Read { at, len } => Request::Read { at: *at, buffer: vec![0; *len] },
            Again::Write { at, bytes, fua } => Request::Write { at: *at, buffer: bytes.clone(), fua: *fua },
            Again::Flush => Request::Flush,
            Again::Trim { at, len } => Request::Trim { at: *at, len: *len },
            Again::WriteZeroes { at, len, fua } => Request::WriteZeroes { at: *at, len: *len, fua: *fua },
        }
    }

    pub(super) fn changes_data(&self) -> bool {
        !matches!(self, Again::Read { .. } | Again::Flush)
    }

    /// The bytes that a change changes.
    fn range(&self) -> Range<u64> {
        match self {
            Again::Write { at, bytes, .. } => *at..*at + bytes.len() as u64,
            Again::Trim { at, len } | Again::WriteZeroes { at, len, .. } => *at..*at + len,
            Again::Read { .. } | Again::Flush => 0..0,
        }
    }

    /// Memory needed to keep the request (bytes).
    pub(super) fn bytes(&self) -> usize {
        64 + if let Again::Write { bytes, .. } = self { bytes.len() } else { 0 }
    }
}

/// Part of a write that a flush covered, and that no later change touches. A medium that lacks it
/// is another one, or an older copy of the one that was written.
#[derive(Clone)]
pub struct Witness {
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// Maximum flushed writes that are examined for a new witness, the last ones first.
const CANDIDATES: usize = 16;

impl Witness {
    /// Takes the first block of a write that is not all zeros. Zeros would not tell one server from
    /// another.
    fn of(flushed: &Again, block_bytes: usize) -> Option<Witness> {
        let Again::Write { at, bytes, .. } = flushed else { return None };
        let len = block_bytes.max(512);
        let mut blocks = (*at..).step_by(len).zip(bytes.chunks_exact(len));
        let (at, bytes) = blocks.find(|(_, block)| block.iter().any(|byte| *byte != 0))?;
        Some(Witness { at, bytes: bytes.to_vec() })
    }

    /// Returns whether a device has these bytes.
    pub fn is_on(&self, device: &dyn BlockDevice) -> Result<bool, MediaError> {
        let mut found = vec![0; self.bytes.len()];
        device.read_into(self.at, &mut found)?;
        Ok(found == self.bytes)
    }

    fn is_within(&self, range: &Range<u64>) -> bool {
        overlap(range, &(self.at..self.at + self.bytes.len() as u64))
    }
}

/// Maximum samples kept: more than one besides the oldest, because programs rewrite what they have
/// just flushed.
const WITNESSES_MAX: usize = 8;

/// Samples of what the server must have: the oldest, usually the mark of a device, and the latest
/// ones.
#[derive(Default)]
pub(super) struct Witnesses(Vec<Witness>);

impl Witnesses {
    pub(super) fn all(&self) -> Vec<Witness> {
        self.0.clone()
    }

    /// Adds the samples of another connection to the same medium.
    pub(super) fn inherit(&mut self, witnesses: impl IntoIterator<Item = Witness>) {
        self.0.extend(witnesses);
        self.0.truncate(WITNESSES_MAX);
    }

    /// Drops the samples that a change touches, because it is about to be sent.
    pub(super) fn sent(&mut self, change: &Again) {
        self.0.retain(|witness| !witness.is_within(&change.range()));
    }

    /// Takes a new sample from the changes that a flush covered (`flushed`), if one is found that
    /// no other change touches. The others are in `flushed`, completed since (`kept`), or under way
    /// (`flying`).
    pub(super) fn flushed(&mut self, flushed: &[Change], kept: &Kept, flying: &Flying, block_bytes: usize) {
        let candidates = flushed.iter().enumerate().rev().filter(|(_, change)| change.is_alone).take(CANDIDATES);
        let mut fit = candidates.filter_map(|(index, change)| Some((index, Witness::of(&change.again, block_bytes)?)));
        let is_free = |index: usize, witness: &Witness| {
            let others = flushed.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, change)| change);
            let mut ranges = others.chain(&kept.changes).map(|change| change.again.range());
            !ranges.any(|range| witness.is_within(&range))
                && !flying.flights.iter().any(|one| witness.is_within(&one.range))
        };
        if let Some((_, witness)) = fit.find(|(index, witness)| is_free(*index, witness)) {
            if self.0.len() >= WITNESSES_MAX {
                self.0.remove(1);
            }
            self.0.push(witness);
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A change under way.
struct Flight {
    number: u64,
    range: Range<u64>,
    is_alone: bool,
}

/// Changes that were requested and are not answered yet. Where two of them overlap, the server may
/// carry out either one last.
#[derive(Default)]
pub(super) struct Flying {
    flights: Vec<Flight>,
    last_number: u64,
}

impl Flying {
    /// Adds a change and returns its number.
    pub(super) fn begin(&mut self, change: &Again) -> u64 {
        let range = change.range();
        let others = self.flights.iter_mut().filter(|one| overlap(&one.range, &range));
        let is_alone = others.map(|one| one.is_alone = false).count() == 0;
        self.last_number += 1;
        self.flights.push(Flight { number: self.last_number, range, is_alone });
        self.last_number
    }

    /// Removes an operation that was answered. Returns whether it is a change that no other change
    /// overlapped while it was under way.
    pub(super) fn end(&mut self, number: Option<u64>) -> bool {
        let at = number.and_then(|number| self.flights.iter().position(|one| one.number == number));
        at.is_some_and(|at| self.flights.swap_remove(at).is_alone)
    }
}

/// A completed change.
pub(super) struct Change {
    number: u64,
    again: Arc<Again>,
    is_alone: bool,
}

/// Changes completed and not covered by a flush, with their numbers.
#[derive(Default)]
pub(super) struct Kept {
    changes: VecDeque<Change>,
    bytes: usize,
}

impl Kept {
    pub(super) fn push(&mut self, number: u64, again: Arc<Again>, is_alone: bool) {
        self.bytes += again.bytes();
        self.changes.push_back(Change { number, again, is_alone });
    }

    /// Drops the changes up to this number, which a flush covered, and returns them.
    pub(super) fn flushed(&mut self, number: u64) -> Vec<Change> {
        let flushed: Vec<Change> =
            self.changes.drain(..self.changes.partition_point(|change| change.number <= number)).collect();
        self.bytes -= flushed.iter().map(|change| change.again.bytes()).sum::<usize>();
        flushed
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn all(&self) -> Vec<Arc<Again>> {
        self.changes.iter().map(|change| change.again.clone()).collect()
    }
}
