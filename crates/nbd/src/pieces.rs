//! Requests longer than a server accepts, carried out piece by piece.
//!
//! Pieces are sent one after another. Each is as long as the server allows, so having several in
//! flight gains nothing, and the first error ends the run with nothing left in flight. A flag for
//! durability goes with every piece.

use std::sync::Arc;

use shoal_media::{Completion, MediaError, Request};

use crate::client::Shared;

/// Returns whether the request is longer than `max` bytes.
pub(crate) fn are_needed(request: &Request, max: u64) -> bool {
    length(request) > max
}

fn length(request: &Request) -> u64 {
    match request {
        Request::Read { buffer, .. } | Request::Write { buffer, .. } => buffer.len() as u64,
        Request::Trim { len, .. } | Request::WriteZeroes { len, .. } => *len,
        Request::Flush => 0,
    }
}

struct Run {
    shared: Arc<Shared>,
    whole: Request,
    piece_bytes: u64,
    done: Completion,
    next: u64,
}

pub(crate) fn run(shared: Arc<Shared>, whole: Request, piece_bytes: u64, done: Completion) {
    Run { shared, whole, piece_bytes, done, next: 0 }.step();
}

impl Run {
    /// Submits the next piece. The receiving thread completes it, so this does not grow the stack.
    /// Only the error of a lost connection completes at once, and that ends the run.
    fn step(mut self) {
        let left = length(&self.whole) - self.next;
        if left == 0 {
            let buffer = match self.whole {
                Request::Read { buffer, .. } | Request::Write { buffer, .. } => buffer,
                _ => vec![],
            };
            return (self.done)(Ok(buffer));
        }
        let len = left.min(self.piece_bytes);
        let from = self.next as usize;
        let piece = match &self.whole {
            Request::Read { at, .. } => Request::Read { at: at + self.next, buffer: vec![0; len as usize] },
            Request::Write { at, buffer, fua } => {
                let buffer = buffer[from..from + len as usize].to_vec();
                Request::Write { at: at + self.next, buffer, fua: *fua }
            }
            Request::Trim { at, .. } => Request::Trim { at: at + self.next, len },
            Request::WriteZeroes { at, fua, .. } => Request::WriteZeroes { at: at + self.next, len, fua: *fua },
            Request::Flush => Request::Flush,
        };
        self.next += len;
        let shared = self.shared.clone();
        shared.submit(piece, Box::new(move |result| self.finished(from, result)));
    }

    fn finished(mut self, from: usize, result: Result<Vec<u8>, MediaError>) {
        match result {
            Err(error) => (self.done)(Err(error)),
            Ok(piece) => {
                if let Request::Read { buffer, .. } = &mut self.whole {
                    buffer[from..from + piece.len()].copy_from_slice(&piece);
                }
                self.step();
            }
        }
    }
}
