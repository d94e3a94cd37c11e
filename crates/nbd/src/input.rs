//! Buffered receiving: headers come in bulk, payloads go straight to their buffers.
//!
//! `idle` runs before every wait for the socket and after every time-out of a wait. It sends what
//! was held back for a batch, and checks deadlines. An error from it ends the wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::busy_poll::BusyPoll;
use crate::channel::Channel;

/// Bytes asked of the socket at once.
const BUFFER_BYTES: usize = 64 << 10;

pub(crate) struct Input {
    channel: Arc<Channel>,
    watch: Option<BusyPoll>,
    stall: Option<Stall>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// Limits how long a message may remain half received.
struct Stall {
    limit: Duration,
    /// When the first wait in vain ended. `told` says that there was one.
    since: Option<Instant>,
    told: Arc<AtomicBool>,
}

impl Stall {
    /// Called after a wait in which nothing came.
    fn nothing_came(&mut self) -> io::Result<()> {
        if self.since.get_or_insert_with(Instant::now).elapsed() >= self.limit {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a request was half sent for too long"));
        }
        self.told.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn something_came(&mut self) {
        if self.since.take().is_some() {
            self.told.store(false, Ordering::Relaxed);
        }
    }
}

impl Input {
    /// Makes an input. `early` are bytes already received.
    pub(crate) fn new(channel: Arc<Channel>, early: &[u8]) -> Input {
        let mut buffer = vec![0; BUFFER_BYTES.max(early.len())];
        buffer[..early.len()].copy_from_slice(early);
        Input { channel, watch: None, stall: None, buffer, start: 0, end: early.len() }
    }

    /// Watches the socket before sleeping on it, where that pays.
    pub(crate) fn watching(mut self) -> Input {
        self.watch = BusyPoll::new(&self.channel);
        self
    }

    /// Ends the connection when a message has been half received for `limit`. Until then `told` is
    /// set while one is half received and nothing comes.
    pub(crate) fn stalling(mut self, limit: Duration, told: Arc<AtomicBool>) -> Input {
        self.stall = Some(Stall { limit, since: None, told });
        self
    }

    /// Returns the next `N` bytes, or `None` at the end of the stream, which may only come between
    /// two messages.
    pub(crate) fn header<const N: usize>(
        &mut self,
        idle: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<Option<[u8; N]>> {
        while self.end - self.start < N {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let stall = self.stall.as_mut().filter(|_| self.end > 0);
            let received = wait(&self.channel, &mut self.watch, stall, &mut self.buffer[self.end..], idle)?;
            if received == 0 {
                return if self.end == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            self.end += received;
        }
        let mut header = [0; N];
        header.copy_from_slice(&self.buffer[self.start..self.start + N]);
        self.start += N;
        Ok(Some(header))
    }

    /// Fills `out`.
    pub(crate) fn payload(&mut self, out: &mut [u8], idle: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        let buffered = out.len().min(self.end - self.start);
        out[..buffered].copy_from_slice(&self.buffer[self.start..self.start + buffered]);
        self.start += buffered;
        let mut at = buffered;
        while at < out.len() {
            // Receive the last bytes of a payload together with the headers behind it in one call.
            let left = out.len() - at;
            if left < BUFFER_BYTES / 4 {
                (self.start, self.end) =
                    (0, wait(&self.channel, &mut self.watch, self.stall.as_mut(), &mut self.buffer, idle)?);
                if self.end == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let taken = left.min(self.end);
                out[at..at + taken].copy_from_slice(&self.buffer[..taken]);
                self.start = taken;
                at += taken;
                continue;
            }
            let received = wait(&self.channel, &mut self.watch, self.stall.as_mut(), &mut out[at..], idle)?;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += received;
        }
        Ok(())
    }

    /// Ends the connection.
    pub(crate) fn shutdown(&self) {
        self.channel.shutdown();
    }

    /// Reads `len` bytes and drops them.
    pub(crate) fn skip(&mut self, mut len: usize, idle: &mut dyn FnMut() -> io::Result<()>) -> io::Result<()> {
        let mut waste = [0; 4096];
        while len > 0 {
            let step = len.min(waste.len());
            self.payload(&mut waste[..step], idle)?;
            len -= step;
        }
        Ok(())
    }
}

fn wait(
    channel: &Channel,
    watch: &mut Option<BusyPoll>,
    mut stall: Option<&mut Stall>,
    out: &mut [u8],
    idle: &mut dyn FnMut() -> io::Result<()>,
) -> io::Result<usize> {
    idle()?;
    if let Some(watch) = watch
        && let Some(received) = watch.recv(channel, out)?
    {
        return Ok(received);
    }
    loop {
        match channel.recv(out) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                if let Some(stall) = &mut stall
                    && error.kind() == io::ErrorKind::WouldBlock
                {
                    stall.nothing_came()?;
                }
                idle()?;
            }
            other => {
                if let Some(stall) = &mut stall {
                    stall.something_came();
                }
                return other;
            }
        }
    }
}
