//! Buffered receiving: headers come in bulk, payloads go straight to their buffers.
//!
//! `idle` runs before every wait for the socket and after every time-out of one: the place to send what has been held
//! back for a batch, and to check deadlines. An error it returns ends the wait.

use std::io;
use std::sync::Arc;

use crate::channel::Channel;
use crate::watch::Watch;

/// Asked from the socket at once (bytes).
const BUFFER_BYTES: usize = 64 << 10;

pub(crate) struct Input {
    channel: Arc<Channel>,
    watch: Option<Watch>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// `early` are bytes received already.
    pub(crate) fn new(channel: Arc<Channel>, early: &[u8]) -> Input {
        let mut buffer = vec![0; BUFFER_BYTES.max(early.len())];
        buffer[..early.len()].copy_from_slice(early);
        Input { channel, watch: None, buffer, start: 0, end: early.len() }
    }

    /// Watches the socket before sleeping on it, where that pays.
    pub(crate) fn watching(mut self) -> Input {
        self.watch = Watch::new(&self.channel);
        self
    }

    /// The next `N` bytes; nothing at the end of the stream, which may only come between two messages.
    pub(crate) fn header<const N: usize>(
        &mut self,
        idle: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<Option<[u8; N]>> {
        while self.end - self.start < N {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let received = wait(&self.channel, &mut self.watch, &mut self.buffer[self.end..], idle)?;
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
            // The last bytes of a small payload come with the headers behind it in one call.
            let left = out.len() - at;
            if left < BUFFER_BYTES / 4 {
                (self.start, self.end) = (0, wait(&self.channel, &mut self.watch, &mut self.buffer, idle)?);
                if self.end == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let taken = left.min(self.end);
                out[at..at + taken].copy_from_slice(&self.buffer[..taken]);
                self.start = taken;
                at += taken;
                continue;
            }
            let received = wait(&self.channel, &mut self.watch, &mut out[at..], idle)?;
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

    /// Reads `len` bytes and forgets them.
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
    watch: &mut Option<Watch>,
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
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => idle()?,
            other => return other,
        }
    }
}
