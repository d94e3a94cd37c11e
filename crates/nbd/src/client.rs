//! The client: a remote export as a block device, with many requests in flight.
//!
//! `submit` never waits for the network: a writer thread sends the bytes that the socket does not
//! take at once, and a receiving thread completes replies. A lost connection, a reply that breaks
//! the protocol, or a request unanswered for too long ends the connection: every request in flight
//! and every later one fails with `Lost`. So does a request that the server refuses because it is
//! shutting down. Connecting again is the caller's decision. Features that the server lacks are
//! emulated where the contract allows (zeroes are written, a FUA write is followed by a flush, a
//! trim is omitted) and refused where it does not (no flush without one).

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Poison, Request, WriteCache};

use crate::address::Uri;
use crate::channel::Channel;
use crate::clients::Claim;
use crate::connect::{ConnectError, shake_hands};
use crate::inflight::{Done, Entry, Expect, InFlight, Statuses};
use crate::input::Input;
use crate::limits::REQUEST_BYTES_MAX;
use crate::negotiation::client::{Agreed, Step, Wish};
use crate::outbox::{Frame, Outbox, flush_held, hold_on_this_thread};
use crate::pieces;
use crate::replies::Replies;
use crate::tls::TlsClient;
use crate::wire::transmission::*;

/// Maximum number of time-outs for which a request may be unanswered while others are answered.
const BUSY_TIMEOUTS_MAX: u32 = 10;
/// Maximum time for the server to answer the last requests and to close, after the goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// Found in the `MediaError::Io` of every request that failed because the connection was lost.
#[derive(Debug, Clone, thiserror::Error)]
#[error("connection lost: {why}")]
pub struct Lost {
    pub why: String,
}

impl Lost {
    /// Returns the loss if the error says that the connection is gone, rather than that the request
    /// failed.
    pub fn of(error: &MediaError) -> Option<&Lost> {
        match error {
            MediaError::Io { source, .. } => source.get_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Maximum time from connect to the transmission phase, excluding name resolution.
    pub connect_timeout: Duration,
    /// Maximum time that a request may be unanswered. Then the connection ends.
    pub request_timeout: Duration,
    /// Used instead of the certificates that the URI names.
    pub tls: Option<TlsClient>,
    /// Metadata contexts to ask for. Contexts that the server does not have are left out.
    pub contexts: Vec<String>,
    /// The client that the connection belongs to; see [`Claim`].
    pub claim: Option<Claim>,
    /// Length of a write that is never torn (bytes), if the device's owner knows it. The protocol
    /// promises none.
    pub atomic_bytes: u32,
    /// Let a flush succeed on a server that has no flush: the owner says that it has no cache that
    /// could lose writes.
    pub flush_may_be_missing: bool,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            tls: None,
            contexts: vec![],
            claim: None,
            atomic_bytes: 1,
            flush_may_be_missing: false,
        }
    }
}

/// State shared by requests and the receiving thread.
pub(crate) struct Shared {
    name: String,
    pub(crate) agreed: Agreed,
    geometry: BlockGeometry,
    request_bytes_max: u32,
    outbox: Arc<Outbox>,
    in_flight: InFlight,
    poison: Poison,
    flush_may_be_missing: bool,
    is_claimed: bool,
}

/// A connection to an export. Dropping it disconnects. Requests that the server does not answer even then fail.
pub struct Client {
    shared: Arc<Shared>,
    channel: Arc<Channel>,
    threads: Vec<JoinHandle<()>>,
    /// Disconnected once nothing more is received.
    received_all: Option<Mutex<mpsc::Receiver<()>>>,
}

impl Client {
    pub fn connect(uri: &Uri, options: &ClientOptions) -> Result<Client, ConnectError> {
        let name = uri.to_string();
        let claim = options.claim.map(Claim::context);
        let contexts = options.contexts.iter().chain(&claim).cloned().collect();
        let wish = Wish { name: uri.name.clone(), contexts, tls: uri.tls, list: false };
        let (channel, step, early) = shake_hands(uri, wish, options)?;
        let Step::Agreed(mut agreed) = step else {
            unreachable!("a handshake that asks for an export ends with one or with an error")
        };
        // The claim is not a context for requests.
        let contexts = agreed.contexts.len();
        agreed.contexts.retain(|context| Some(&context.name) != claim.as_ref());
        let is_claimed = agreed.contexts.len() < contexts;
        let io = |source| ConnectError::Io { uri: name.clone(), source };
        let tick = (options.request_timeout / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        channel.set_timeouts(Some(tick), Some(options.request_timeout)).map_err(io)?;
        // If this process is killed, the next client may start before the kernel has sent the bytes
        // that this one left.
        channel.keep_unsent(false);
        let in_flight = InFlight::default();
        let returned = {
            let in_flight = in_flight.clone();
            Box::new(move |tag, body| in_flight.give_back(tag, body))
        };
        let shared = Arc::new(Shared {
            name: name.clone(),
            geometry: geometry(&agreed, options),
            request_bytes_max: request_bytes_max(&agreed),
            outbox: Arc::new(Outbox::new(channel.clone(), usize::MAX, returned)),
            in_flight,
            agreed,
            poison: Poison::default(),
            flush_may_be_missing: options.flush_may_be_missing,
            is_claimed,
        });
        // From here on a drop disconnects.
        let mut client =
            Client { shared: shared.clone(), channel: channel.clone(), threads: vec![], received_all: None };
        let writing = {
            let shared = shared.clone();
            move || shared.outbox.run_writer()
        };
        let timeout = options.request_timeout;
        let (receives, received_all) = mpsc::channel();
        let receiving = move || {
            receive_all(&shared, Input::new(channel, &early), timeout, tick);
            drop(receives);
        };
        client.threads.push(thread::Builder::new().name("nbd-write".into()).spawn(writing).map_err(io)?);
        client.threads.push(thread::Builder::new().name("nbd-read".into()).spawn(receiving).map_err(io)?);
        client.received_all = Some(Mutex::new(received_all));
        Ok(client)
    }

    /// The server's description of the export.
    pub fn export(&self) -> &Agreed {
        &self.shared.agreed
    }

    /// Returns whether the server knows which client the connection belongs to. Then no request of
    /// an older connection can take effect any more.
    pub fn is_claimed(&self) -> bool {
        self.shared.is_claimed
    }

    /// Returns why the connection is over, once it is.
    pub fn lost(&self) -> Option<MediaError> {
        self.shared.in_flight.lost()
    }

    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.len()
    }

    /// Returns the extents of a context from `at` on. They may end before or after the end of the
    /// range. Waits.
    pub fn block_status(&self, context: &str, at: u64, len: u32) -> Result<Vec<Extent>, MediaError> {
        self.ask_status(0, context, at, len)
    }

    /// Returns the first extent of a context from `at` on. Waits.
    pub fn first_block_status(&self, context: &str, at: u64, len: u32) -> Result<Vec<Extent>, MediaError> {
        self.ask_status(CMD_FLAG_REQ_ONE, context, at, len)
    }

    fn ask_status(&self, flags: u16, context: &str, at: u64, len: u32) -> Result<Vec<Extent>, MediaError> {
        let shared = &self.shared;
        let known = shared.agreed.contexts.iter().find(|known| known.name == context);
        let Some(id) = known.map(|context| context.id) else {
            let message = format!("metadata context {context} was not agreed on; name it when connecting");
            return Err(shared.io(io::Error::new(io::ErrorKind::Unsupported, message)));
        };
        shared.check_range(at, len.into())?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Done::Status(Box::new(move |result: Result<Statuses, MediaError>| {
            // The receiver waits below.
            let _ = sender.send(result);
        }));
        shared.start(flags, CMD_BLOCK_STATUS, at, len, Entry::new(Expect::Status { at, len }, vec![], done), vec![]);
        flush_held();
        let statuses = receiver.recv().unwrap_or_else(|_| Err(shared.io(io::ErrorKind::BrokenPipe.into())))?;
        Ok(statuses.into_iter().find(|(of, _)| *of == id).map(|(_, extents)| extents).unwrap_or_default())
    }

    /// Tells the server that the range will be needed. Waits for its answer, not for its cache.
    pub fn cache(&self, at: u64, len: u32) -> Result<(), MediaError> {
        self.shared.check_range(at, len.into())?;
        if self.shared.agreed.flags & FLAG_SEND_CACHE == 0 {
            return Ok(());
        }
        self.call(0, CMD_CACHE, at, len)
    }

    /// Zeroes a range with the protocol's own flags (`CMD_FLAG_NO_HOLE`, `CMD_FLAG_FAST_ZERO`,
    /// `CMD_FLAG_FUA`). Waits.
    pub fn write_zeroes(&self, at: u64, len: u32, flags: u16) -> Result<(), MediaError> {
        self.shared.check_range(at, len.into())?;
        self.call(flags, CMD_WRITE_ZEROES, at, len)
    }

    fn call(&self, flags: u16, command: u16, at: u64, len: u32) -> Result<(), MediaError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done: Completion = Box::new(move |result| {
            // The receiver waits below.
            let _ = sender.send(result);
        });
        self.shared.start(flags, command, at, len, Entry::new(Expect::Nothing, vec![], Done::Block(done)), vec![]);
        flush_held();
        let result = receiver.recv();
        result.unwrap_or_else(|_| Err(self.shared.io(io::ErrorKind::BrokenPipe.into()))).map(drop)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The requests of a lost connection were repeated on another connection, or done elsewhere.
        self.channel.keep_unsent(self.lost().is_none());
        let head = RequestHeader { flags: 0, command: CMD_DISC, cookie: 0, at: 0, len: 0 }.encode();
        self.shared.outbox.push(Frame { head, ..Frame::default() });
        self.shared.outbox.flush();
        self.shared.outbox.close();
        flush_held();
        let here = thread::current().id();
        let is_elsewhere = self.threads.iter().all(|thread| thread.thread().id() != here);
        if let Some(received_all) = self.received_all.take().filter(|_| is_elsewhere) {
            // A server that cannot answer a request ends the connection before it reads the goodbye. If it does not
            // close in time, the goodbye may get lost.
            let _ = received_all.into_inner().recv_timeout(FAREWELL);
        }
        self.channel.shutdown_sending();
        self.channel.shutdown_receiving();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != here) {
            let _ = thread.join();
        }
    }
}

impl BlockDevice for Client {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.shared.geometry
    }

    fn submit(&self, request: Request, done: Completion) {
        self.shared.submit(request, done);
    }
}

impl Shared {
    pub(crate) fn io(&self, source: io::Error) -> MediaError {
        MediaError::io(self.name.clone(), source)
    }

    fn check_range(&self, at: u64, len: u64) -> Result<(), MediaError> {
        let BlockGeometry { bytes, block_bytes, .. } = self.geometry;
        let block = u64::from(block_bytes);
        if at > bytes || len > bytes - at || !at.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(MediaError::OutOfRange { what: self.name.clone(), at, len });
        }
        Ok(())
    }

    fn has(&self, flag: u16) -> bool {
        self.agreed.flags & flag != 0
    }

    fn check(&self, request: &Request) -> Result<(), MediaError> {
        let (at, len) = request.range();
        self.check_range(at, len)?;
        if matches!(request, Request::Read { .. }) {
            return Ok(());
        }
        self.poison.refuse(&self.name)?;
        if self.has(FLAG_READ_ONLY) && !matches!(request, Request::Flush) {
            return Err(self.io(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the export is read-only")));
        }
        let durable = matches!(
            request,
            Request::Flush | Request::Write { fua: true, .. } | Request::WriteZeroes { fua: true, .. }
        );
        if durable && !self.has(FLAG_SEND_FLUSH) && !self.flush_may_be_missing {
            let message = "the server knows no flush, so nothing on it can be called durable";
            return Err(self.io(io::Error::new(io::ErrorKind::Unsupported, message)));
        }
        Ok(())
    }

    pub(crate) fn submit(self: &Arc<Self>, request: Request, done: Completion) {
        if let Err(error) = self.check(&request) {
            return done(Err(error));
        }
        match request {
            Request::Read { buffer, .. } if buffer.is_empty() => done(Ok(buffer)),
            Request::Write { buffer, fua: false, .. } if buffer.is_empty() => done(Ok(buffer)),
            Request::Trim { len: 0, .. } | Request::WriteZeroes { len: 0, .. } => done(Ok(vec![])),
            Request::Trim { .. } if !self.has(FLAG_SEND_TRIM) => done(Ok(vec![])),
            Request::Flush if !self.has(FLAG_SEND_FLUSH) => done(Ok(vec![])),
            Request::Flush => {
                let shared = self.clone();
                let poison: Completion = Box::new(move |result| {
                    // A lost connection says nothing about the device: the caller repeats the flush
                    // on a new one.
                    if let Some(error) = result.as_ref().err().filter(|error| Lost::of(error).is_none()) {
                        shared.poison.set(error);
                    }
                    done(result);
                });
                self.plain(0, CMD_FLUSH, 0, 0, poison);
            }
            Request::Write { at, buffer, fua: true } if !self.has(FLAG_SEND_FUA) => {
                let flush = self.then_flush(done);
                self.submit(Request::Write { at, buffer, fua: false }, flush);
            }
            Request::WriteZeroes { at, len, fua: true } if !self.has(FLAG_SEND_FUA) => {
                let flush = self.then_flush(done);
                self.submit(Request::WriteZeroes { at, len, fua: false }, flush);
            }
            request if pieces::are_needed(&request, self.piece_bytes(&request)) => {
                let piece_bytes = self.piece_bytes(&request);
                pieces::run(self.clone(), request, piece_bytes, done);
            }
            Request::Read { at, buffer } => {
                let len = buffer.len() as u32;
                let entry = Entry::new(Expect::Data { at, len }, buffer, Done::Block(done));
                self.start(0, CMD_READ, at, len, entry, vec![]);
            }
            Request::Write { at, buffer, fua } => {
                let entry = Entry::of_write(Done::Block(done));
                let flags = if fua { CMD_FLAG_FUA } else { 0 };
                self.start(flags, CMD_WRITE, at, buffer.len() as u32, entry, buffer);
            }
            Request::Trim { at, len } => self.plain(0, CMD_TRIM, at, len as u32, done),
            Request::WriteZeroes { at, len, fua } => {
                let flags = if fua { CMD_FLAG_FUA } else { 0 };
                if self.has(FLAG_SEND_WRITE_ZEROES) {
                    return self.plain(flags, CMD_WRITE_ZEROES, at, len as u32, done);
                }
                let empty: Completion = Box::new(move |result| done(result.map(|_| vec![])));
                self.submit(Request::Write { at, buffer: vec![0; len as usize], fua }, empty);
            }
        }
    }

    /// Longest request of this kind (bytes).
    fn piece_bytes(&self, request: &Request) -> u64 {
        match request {
            // A trim carries no data, so only the field's width bounds it.
            Request::Trim { .. } => 1 << 30,
            _ => self.request_bytes_max.into(),
        }
    }

    fn then_flush(self: &Arc<Self>, done: Completion) -> Completion {
        let shared = self.clone();
        Box::new(move |result| match result {
            Err(error) => done(Err(error)),
            Ok(buffer) => {
                let finish: Completion = Box::new(move |flushed| done(flushed.map(|_| buffer)));
                shared.submit(Request::Flush, finish);
            }
        })
    }

    fn plain(&self, flags: u16, command: u16, at: u64, len: u32, done: Completion) {
        self.start(flags, command, at, len, Entry::new(Expect::Nothing, vec![], Done::Block(done)), vec![]);
    }

    fn start(&self, flags: u16, command: u16, at: u64, len: u32, entry: Entry, body: Vec<u8>) {
        let body_is_out = entry.buffer_is_out;
        let Some(cookie) = self.in_flight.insert(entry) else { return };
        let head = RequestHeader { flags, command, cookie, at, len }.encode();
        let tag = if body_is_out { cookie } else { 0 };
        self.outbox.push(Frame { head, body, tag, cost: 0 });
    }

    /// The error of a request that the server refused.
    fn failed(&self, expect: Expect, error: u32, message: String) -> MediaError {
        if error == ESHUTDOWN {
            // This is not the device's error: the server is shutting down and has not carried out
            // the request.
            let why = "the server is shutting down".into();
            return self.io(io::Error::new(io::ErrorKind::ConnectionAborted, Lost { why }));
        }
        let kind = io::Error::from_raw_os_error(i32::try_from(error).unwrap_or(EINVAL as i32)).kind();
        let what = match expect {
            Expect::Data { at, len } => format!("{}: read of {len} bytes at {at}", self.name),
            Expect::Status { at, len } => format!("{}: status of {len} bytes at {at}", self.name),
            Expect::Nothing => self.name.clone(),
        };
        let message = if message.is_empty() { "refused by the server".into() } else { message };
        MediaError::io(what, io::Error::new(kind, format!("{message} (error {error})")))
    }
}

/// The receiving thread: completes requests until the connection ends, then fails the rest.
fn receive_all(shared: &Arc<Shared>, mut input: Input, timeout: Duration, tick: Duration) {
    hold_on_this_thread();
    let contexts: Vec<u32> = shared.agreed.contexts.iter().map(|context| context.id).collect();
    let fail = |expect, error, message| shared.failed(expect, error, message);
    let mut replies = Replies::new(&shared.in_flight, shared.agreed.structured, &contexts, &fail);
    let mut looked = Instant::now();
    let mut idle = || {
        shared.outbox.flush();
        flush_held();
        if looked.elapsed() < tick {
            return Ok(());
        }
        looked = Instant::now();
        // A server that answers other requests is busy, not gone; but no server is busy forever.
        let progress = shared.in_flight.answered().map_or(Duration::MAX, |answered| answered.elapsed());
        match shared.in_flight.oldest() {
            Some(oldest)
                if oldest.elapsed() > timeout
                    && (progress > timeout || oldest.elapsed() > BUSY_TIMEOUTS_MAX * timeout) =>
            {
                let message = format!("no answer within {} ms", timeout.as_millis());
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            }
            _ => Ok(()),
        }
    };
    let ended = loop {
        match replies.receive(&mut input, &mut idle) {
            Ok(true) => {}
            Ok(false) => break io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the server"),
            Err(error) => break error,
        }
    };
    // The sending side may know the reason better: only it notices a peer that reads nothing.
    let (kind, why) = shared.outbox.failure().unwrap_or((ended.kind(), ended.to_string()));
    shared.in_flight.lose(shared.io(io::Error::new(kind, Lost { why })));
    flush_held();
    shared.outbox.close();
    input.shutdown();
}

/// Largest read or write: the server's bound, ours, and whole blocks.
fn request_bytes_max(agreed: &Agreed) -> u32 {
    let Some(sizes) = agreed.sizes else { return REQUEST_BYTES_MAX };
    let max = sizes.maximum.min(REQUEST_BYTES_MAX);
    max / sizes.minimum * sizes.minimum
}

fn geometry(agreed: &Agreed, options: &ClientOptions) -> BlockGeometry {
    let block_bytes = match agreed.sizes {
        Some(sizes) => sizes.minimum,
        // Unless the server says otherwise, it supports sectors if its export consists of them.
        None => 1 << agreed.bytes.trailing_zeros().min(9),
    };
    BlockGeometry {
        bytes: agreed.bytes / u64::from(block_bytes) * u64::from(block_bytes),
        block_bytes,
        atomic_bytes: options.atomic_bytes,
        survives_process: true,
    }
}
