//! Requests that can be repeated, and the changes that a server may still lose.
//!
//! Rules: a change is kept from its completion until a flush that was submitted after it completes.
//! Changes are kept in order of completion.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use shoal_media::Request;

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

/// Part of a write that a flush covered, and that nobody has asked to change since. The server has
/// it as long as it is the same one.
#[derive(Clone)]
pub(super) struct Witness {
    pub at: u64,
    pub bytes: Vec<u8>,
}

impl Witness {
    /// Takes the first block of a write. Zeros would not tell one server from another.
    pub(super) fn of(flushed: &Again, block_bytes: usize) -> Option<Witness> {
        let Again::Write { at, bytes, .. } = flushed else { return None };
        let bytes = bytes.get(..block_bytes.max(512))?;
        bytes.iter().any(|byte| *byte != 0).then(|| Witness { at: *at, bytes: bytes.to_vec() })
    }

    pub(super) fn is_changed_by(&self, change: &Again) -> bool {
        let range = change.range();
        range.start < self.at + self.bytes.len() as u64 && self.at < range.end
    }
}

/// Changes completed and not covered by a flush, with their numbers.
#[derive(Default)]
pub(super) struct Kept {
    changes: VecDeque<(u64, Arc<Again>)>,
    bytes: usize,
}

impl Kept {
    pub(super) fn push(&mut self, number: u64, again: Arc<Again>) {
        self.bytes += again.bytes();
        self.changes.push_back((number, again));
    }

    /// Drops the changes up to this number, which a flush covered. Returns the last of them.
    pub(super) fn flushed(&mut self, number: u64) -> Option<Arc<Again>> {
        let mut last = None;
        while self.changes.front().is_some_and(|(change, _)| *change <= number) {
            last = self.changes.pop_front().map(|(_, again)| again);
            self.bytes -= last.as_ref().map_or(0, |again| again.bytes());
        }
        last
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    pub(super) fn all(&self) -> Vec<Arc<Again>> {
        self.changes.iter().map(|(_, again)| again.clone()).collect()
    }
}
