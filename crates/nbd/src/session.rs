//! The server's transmission phase: requests in, device calls, replies out.
//!
//! One thread receives; completions reply from whatever thread the device runs them on. Each
//! request is checked before anything is taken for it: known command, flags that belong to it,
//! range within the export without overflow, whole blocks, free budget. A request that is wrong but
//! well-formed gets an error and the connection goes on; its payload is skipped. A wrong magic
//! number or a payload beyond the bound ends the connection. At the end, every accepted request is
//! still carried out, and answered if the client still listens.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use shoal_media::{MediaError, Request};

use crate::export::{BlockStatus, Export};
use crate::guests::Guest;
use crate::input::Input;
use crate::limits::{Limits, REQUEST_BYTES_MAX, REQUEST_COST_BYTES};
use crate::negotiation::server::Session;
use crate::outbox::{Frame, Outbox, flush_held};
use crate::pool::Pool;
use crate::wire::transmission::*;

/// Buffers kept for the next requests: enough for a deep queue of common sizes.
const SPARE_BUFFERS_MAX: usize = 64;
const SPARE_BUFFER_BYTES_MAX: usize = 1 << 20;

/// Buffers of finished requests, which hold only this connection's data.
pub(crate) struct Spares {
    buffers: Mutex<Vec<Vec<u8>>>,
    pool: Arc<Pool>,
}

impl Spares {
    pub(crate) fn new(pool: Arc<Pool>) -> Spares {
        Spares { buffers: Mutex::default(), pool }
    }

    fn take(&self, len: usize) -> Vec<u8> {
        let spare = self.buffers.lock().pop().unwrap_or_default();
        self.pool.unkeep(spare.capacity());
        if spare.capacity() < len {
            return vec![0; len];
        }
        let mut buffer = spare;
        buffer.resize(len, 0);
        buffer
    }

    pub(crate) fn give(&self, buffer: Vec<u8>) {
        if buffer.capacity() == 0 || buffer.capacity() > SPARE_BUFFER_BYTES_MAX {
            return;
        }
        let mut spares = self.buffers.lock();
        if spares.len() < SPARE_BUFFERS_MAX && self.pool.keep(buffer.capacity()) {
            spares.push(buffer);
        }
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        self.pool.unkeep(self.buffers.get_mut().iter().map(Vec::capacity).sum());
    }
}

/// State that a completion needs to reply.
struct Answer {
    outbox: Arc<Outbox>,
    spares: Arc<Spares>,
    structured: bool,
    cookie: u64,
    cost: usize,
}

/// An error reply: code and message.
type Failed = (u32, String);

impl Answer {
    fn send(self, head: Head, body: Vec<u8>) {
        self.outbox.push(Frame { head, body, tag: 0, cost: self.cost });
    }

    /// Success without data.
    fn done(self) {
        let head = encode_simple_reply(0, self.cookie);
        self.send(head, Vec::new());
    }

    fn data(self, at: u64, data: Vec<u8>) {
        let cookie = self.cookie;
        let head = match (self.structured, data.len()) {
            (false, _) => encode_simple_reply(0, cookie),
            (true, 0) => encode_chunk(REPLY_FLAG_DONE, CHUNK_NONE, cookie, 0),
            (true, len) => encode_data_chunk(cookie, at, len as u32),
        };
        self.send(head, data);
    }

    fn failed(self, (error, message): Failed) {
        let (head, body) = if self.structured {
            encode_error_chunk(self.cookie, error, &message)
        } else {
            (encode_simple_reply(error, self.cookie), Vec::new())
        };
        self.send(head, body);
    }

    /// Replies after the device completed a request without data to return.
    fn finish(self, result: Result<Vec<u8>, MediaError>) {
        match result {
            Ok(buffer) => {
                self.spares.give(buffer);
                self.done();
            }
            Err(error) => self.failed(device_error(&error)),
        }
    }
}

/// The protocol's code for a device's error.
fn device_error(error: &MediaError) -> Failed {
    let code = match error {
        MediaError::NoSpace { .. } => ENOSPC,
        MediaError::OutOfRange { .. } => EINVAL,
        MediaError::Poisoned { .. } => EIO,
        MediaError::Busy { .. } => ENOMEM,
        MediaError::Io { source, .. } => match source.kind() {
            io::ErrorKind::OutOfMemory => ENOMEM,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => EPERM,
            _ => EIO,
        },
    };
    (code, error.to_string())
}

/// One connection in its transmission phase.
pub(crate) struct Transmission<'a> {
    pub(crate) session: Session,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) spares: Arc<Spares>,
    pub(crate) limits: &'a Limits,
    pub(crate) guest: &'a Guest,
    pub(crate) closing: &'a AtomicBool,
    /// The connection named its client.
    pub(crate) named: bool,
}

/// Returns whether a request is a zeroing without holes, which is carried out as a write and needs
/// as much memory.
fn zeroes_by_writing(header: &RequestHeader) -> bool {
    header.command == CMD_WRITE_ZEROES && header.flags & CMD_FLAG_NO_HOLE != 0
}

/// How a client left.
pub(crate) enum Goodbye {
    Said,
    /// The connection ended without a goodbye.
    Missing,
}

impl Transmission<'_> {
    /// Serves until the client disconnects or breaks the protocol, or the server closes.
    pub(crate) fn run(&self, mut input: Input) -> io::Result<Goodbye> {
        let outbox = self.outbox.clone();
        let mut idle = move || {
            self.guest.pauses();
            outbox.flush();
            flush_held();
            Ok(())
        };
        loop {
            let Some(header) = input.header::<REQUEST_BYTES>(&mut idle)? else { return Ok(Goodbye::Missing) };
            let header = RequestHeader::decode(&header).map_err(invalid_data)?;
            if header.command == CMD_DISC {
                return Ok(Goodbye::Said);
            }
            self.guest.asks();
            self.request(header, &mut input, &mut idle)?;
        }
    }

    fn request(
        &self,
        header: RequestHeader,
        input: &mut Input,
        idle: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let RequestHeader { command, cookie, len, .. } = header;
        if command == CMD_WRITE && len > REQUEST_BYTES_MAX {
            return Err(invalid_data(format!("write of {len} bytes, at most {REQUEST_BYTES_MAX} are taken")));
        }
        let checked = if self.closing.load(Ordering::Relaxed) {
            // Requests still on their way are answered, not dropped: if the socket were closed with
            // unread requests, the kernel would discard replies that were sent.
            Err((ESHUTDOWN, "the server is shutting down".to_string()))
        } else {
            self.check(&header)
        };
        let buffered = matches!(command, CMD_READ | CMD_WRITE) || zeroes_by_writing(&header);
        let cost = REQUEST_COST_BYTES + if buffered && checked.is_ok() { len as usize } else { 0 };
        self.outbox.acquire(cost)?;
        let (outbox, spares) = (self.outbox.clone(), self.spares.clone());
        let answer = Answer { outbox, spares, structured: self.session.structured, cookie, cost };
        if let Err(refusal) = checked {
            answer.failed(refusal);
            return if command == CMD_WRITE { input.skip(len as usize, idle) } else { Ok(()) };
        }
        self.carry_out(&header, answer, input, idle)
    }

    /// Submits a checked request to the device.
    fn carry_out(
        &self,
        header: &RequestHeader,
        answer: Answer,
        input: &mut Input,
        idle: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let RequestHeader { flags, command, at, len, .. } = *header;
        let fua = flags & CMD_FLAG_FUA != 0;
        let device = &self.session.export.device;
        let range_is_empty = len == 0 && matches!(command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES | CMD_READ);
        match command {
            CMD_READ if range_is_empty => answer.data(at, Vec::new()),
            _ if range_is_empty => answer.done(),
            CMD_READ => {
                let buffer = self.spares.take(len as usize);
                let reply = move |result| match result {
                    Ok(buffer) => answer.data(at, buffer),
                    Err(error) => answer.failed(device_error(&error)),
                };
                device.submit(Request::Read { at, buffer }, Box::new(reply));
            }
            CMD_WRITE => {
                let mut buffer = self.spares.take(len as usize);
                if let Err(error) = input.payload(&mut buffer, idle) {
                    // The budget must be released for the end to be noticed. A client that is cut
                    // off because this server shuts down may still read the answer.
                    answer.failed((ESHUTDOWN, String::new()));
                    return Err(error);
                }
                device.submit(Request::Write { at, buffer, fua }, Box::new(move |result| answer.finish(result)));
            }
            CMD_FLUSH => device.submit(Request::Flush, Box::new(move |result| answer.finish(result))),
            CMD_TRIM => {
                let flushed = self.session.export.clone();
                let then = move |result: Result<Vec<u8>, MediaError>| match result {
                    // A trim cannot be made durable by itself, so a flush follows it.
                    Ok(_) if fua => {
                        flushed.device.submit(Request::Flush, Box::new(move |result| answer.finish(result)))
                    }
                    other => answer.finish(other),
                };
                device.submit(Request::Trim { at, len: len.into() }, Box::new(then));
            }
            CMD_WRITE_ZEROES if zeroes_by_writing(header) => {
                let mut buffer = self.spares.take(len as usize);
                buffer.fill(0);
                device.submit(Request::Write { at, buffer, fua }, Box::new(move |result| answer.finish(result)));
            }
            CMD_WRITE_ZEROES => {
                let zeroes = Request::WriteZeroes { at, len: len.into(), fua };
                device.submit(zeroes, Box::new(move |result| answer.finish(result)));
            }
            CMD_BLOCK_STATUS => self.block_status(header, answer),
            // The device has no such hint, and the protocol promises no effect.
            _ => answer.done(),
        }
        Ok(())
    }

    /// Checks whether the request may be carried out at all.
    fn check(&self, header: &RequestHeader) -> Result<(), Failed> {
        let RequestHeader { flags, command, at, len, .. } = *header;
        let export = &*self.session.export;
        let einval = |message: &str| Err((EINVAL, message.to_string()));
        let allowed = CMD_FLAG_FUA
            | match command {
                CMD_READ if self.session.structured => CMD_FLAG_DF,
                CMD_READ | CMD_WRITE | CMD_FLUSH | CMD_TRIM | CMD_CACHE => 0,
                CMD_WRITE_ZEROES => CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
                CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE,
                _ => return einval("unknown command"),
            };
        if flags & !allowed != 0 {
            return einval("a flag that does not belong to this command");
        }
        let modifies = matches!(command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
        if export.read_only && modifies {
            return Err((EPERM, "the export is read-only".into()));
        }
        if modifies && !self.named && export.clients.as_ref().is_some_and(|clients| !clients.may_write_unnamed()) {
            return Err((
                EPERM,
                "the export has a client, and this connection does not say that it is that one".into(),
            ));
        }
        if command == CMD_FLUSH {
            return if at == 0 && len == 0 { Ok(()) } else { einval("a flush has no range") };
        }
        // Avoid overflow: `bytes - at` is computed only once `at` is known to be within the
        // export.
        let bytes = export.bytes();
        if at > bytes || u64::from(len) > bytes - at {
            let beyond = if matches!(command, CMD_WRITE | CMD_WRITE_ZEROES) { ENOSPC } else { EINVAL };
            return Err((beyond, format!("range beyond the end of the export ({bytes} bytes)")));
        }
        let block = u64::from(export.sizes.minimum);
        if !at.is_multiple_of(block) || !u64::from(len).is_multiple_of(block) {
            return Err((EINVAL, format!("range not aligned to blocks of {block} bytes")));
        }
        let without_hole = flags & CMD_FLAG_NO_HOLE != 0;
        let bounded = matches!(command, CMD_READ | CMD_CACHE) || without_hole;
        if bounded && len > REQUEST_BYTES_MAX {
            return Err((EINVAL, format!("longer than the maximum of {REQUEST_BYTES_MAX} bytes")));
        }
        if flags & CMD_FLAG_FAST_ZERO != 0 && (without_hole || !export.fast_zero) {
            return Err((ENOTSUP, "zeroing is no faster than writing here".into()));
        }
        if command == CMD_BLOCK_STATUS {
            if self.session.contexts.is_empty() {
                return einval("no metadata context was negotiated for this export");
            }
            if len == 0 {
                return einval("block status of nothing");
            }
        }
        Ok(())
    }

    /// Replies with one chunk for each context. They go out as one frame, so an error can still
    /// replace them.
    fn block_status(&self, header: &RequestHeader, answer: Answer) {
        let one = header.flags & CMD_FLAG_REQ_ONE != 0;
        let max = if one { 1 } else { self.limits.extents };
        let mut chunks = Vec::new();
        for (id, context) in &self.session.contexts {
            match extents(&self.session.export, &**context, header, max) {
                Ok(extents) => chunks.push(encode_block_status(*id, &extents)),
                Err(error) => return answer.failed(device_error(&error)),
            }
        }
        let mut head = Head::default();
        let mut body = Vec::new();
        let last = chunks.len() - 1;
        for (at, payload) in chunks.into_iter().enumerate() {
            let flags = if at == last { REPLY_FLAG_DONE } else { 0 };
            let chunk_head = encode_chunk(flags, CHUNK_BLOCK_STATUS, header.cookie, payload.len() as u32);
            if at == 0 {
                head = chunk_head;
            } else {
                body.extend_from_slice(chunk_head.bytes());
            }
            body.extend(payload);
        }
        answer.send(head, body);
    }
}

/// Returns the extents of one context, made to fit the protocol's rules whatever the context says:
/// none empty, none beyond the request, equal neighbours joined, at most `max`, at least one.
fn extents(
    export: &Export,
    context: &dyn BlockStatus,
    header: &RequestHeader,
    max: usize,
) -> Result<Vec<Extent>, MediaError> {
    let block = export.sizes.minimum;
    let mut left = header.len;
    let mut joined: Vec<Extent> = Vec::new();
    for extent in context.status(header.at, header.len, max)? {
        let len = (extent.len.min(left)) / block * block;
        if len == 0 {
            continue;
        }
        left -= len;
        let full = joined.len() == max;
        match joined.last_mut() {
            Some(last) if last.flags == extent.flags => last.len += len,
            _ if full => break,
            _ => joined.push(Extent { len, flags: extent.flags }),
        }
    }
    if joined.is_empty() {
        // "Always safe to report": nothing special is known about the range.
        joined.push(Extent { len: header.len, flags: 0 });
    }
    Ok(joined)
}

pub(crate) fn invalid_data(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
