//! The way to the kernel and back: [`Channel`], and the [`Reply`] that a request waits for.
//!
//! A transport is one small trait: messages in, messages out. `/dev/fuse` is one; an io_uring ring
//! or a guest's queue (virtiofs) can be others.
//!
//! Rules: every request that waits gets exactly one answer. If the code that owes the answer drops
//! it, the answer is EIO: a client without an answer waits until the daemon dies, and not even a
//! signal ends the wait. An answer goes to the channel that its request came from, from any thread.
//! It is never longer than the request has room for.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Instant;

use zerocopy::{Immutable, IntoBytes};

use crate::counts::Counts;
use crate::errno::Errno;
use crate::protocol::{self, Request};

/// Sends and receives messages of the kernel, always whole.
pub(crate) trait Channel: Send + Sync {
    /// Waits for a message and puts it into `buffer`. Returns its length, or `None` when the connection has ended.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends the pieces as one message.
    fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<()>;
}

/// A channel and its counts.
pub(crate) struct Port {
    pub channel: Box<dyn Channel>,
    /// Counts that outlive the channel: a reader of reports must not keep the connection open.
    pub counts: Arc<Counts>,
}

impl Port {
    pub fn new(channel: Box<dyn Channel>) -> Arc<Port> {
        Arc::new(Port { channel, counts: Arc::new(Counts::new()) })
    }
}

/// The answer that a request waits for. Dropping it answers EIO.
pub(crate) struct Reply {
    port: Arc<Port>,
    unique: u64,
    opcode: u32,
    bytes_max: usize,
    began: Instant,
    is_owed: bool,
}

impl Reply {
    pub fn to(request: &Request<'_>, port: &Arc<Port>, began: Instant) -> Reply {
        Reply {
            port: port.clone(),
            unique: request.unique,
            opcode: request.opcode,
            bytes_max: request.operation.answer_bytes_max(),
            began,
            is_owed: true,
        }
    }

    /// Makes the reply to a message of which only these fields could be read.
    pub fn to_malformed(unique: u64, opcode: u32, port: &Arc<Port>, began: Instant) -> Reply {
        Reply { port: port.clone(), unique, opcode, bytes_max: 0, began, is_owed: true }
    }

    pub fn empty(mut self) {
        self.answer(0, &[], &[]);
    }

    pub fn error(mut self, error: Errno) {
        self.answer(error.0, &[], &[]);
    }

    /// Sends a value. Returns true if the kernel took the answer: the references that it carries
    /// count only then.
    pub fn value(mut self, value: &(impl IntoBytes + Immutable)) -> bool {
        self.answer(0, value.as_bytes(), &[])
    }

    pub fn bytes(mut self, bytes: &[u8]) -> bool {
        self.answer(0, bytes, &[])
    }

    pub fn value_and_bytes(mut self, value: &(impl IntoBytes + Immutable), bytes: &[u8]) -> bool {
        self.answer(0, value.as_bytes(), bytes)
    }

    pub fn finish(self, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => self.empty(),
            Err(error) => self.error(error),
        }
    }

    fn answer(&mut self, errno: i32, front: &[u8], back: &[u8]) -> bool {
        self.is_owed = false;
        let bytes = front.len() + back.len();
        if bytes > self.bytes_max {
            tracing::error!("an answer of {bytes} bytes to request {} has room for {}", self.opcode, self.bytes_max);
            self.answer(Errno::IO.0, &[], &[]);
            return false;
        }
        let header = protocol::out_header(self.unique, errno, bytes);
        let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(front), IoSlice::new(back)];
        // Send no empty pieces at the end: the kernel would look at each.
        let used = if !back.is_empty() { 3 } else { 1 + usize::from(!front.is_empty()) };
        // Count before the answer is sent: the client may ask for the counts next.
        self.port.counts.note(self.opcode, self.began.elapsed());
        let sent = self.port.channel.send(&pieces[..used]);
        match &sent {
            Ok(()) => {}
            // If there is no receiver, the request has been aborted, and no program waits any more.
            Err(error) if is_withdrawn(error) => tracing::debug!("answer to request {}: {error}", self.opcode),
            Err(error) => tracing::error!("answer to request {}, for which a program waits: {error}", self.opcode),
        }
        sent.is_ok()
    }
}

fn is_withdrawn(error: &io::Error) -> bool {
    let is_gone = rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::NODEV);
    is_gone || matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotConnected)
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.is_owed {
            tracing::error!("request {} was left without an answer", self.opcode);
            self.answer(Errno::IO.0, &[], &[]);
        }
    }
}
