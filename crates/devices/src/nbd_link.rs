//! A block device on an NBD server that is connected to again when the connection is lost.
//!
//! Owns the patience: for `lost_after` the server is tried to be reached; what was in flight is repeated on the new
//! connection, what comes meanwhile waits. After that, or when another server answers,
//! every request fails and goes on failing. A server that stays but stops answering counts as lost in the same time.
//! Rules:
//! - A change may be repeated on a new connection only if the old one can bring nothing any more: a request of a dead connection
//!   may be carried out long after a newer one. A donor of ours is told whose the connection is ([`Link::claim`]) and
//!   ends older ones first. At other donors a change in flight when the connection breaks is answered with
//!   [`Trouble::Uncertain`]: its owner uses another place. A device that only this link uses gets it again, in order.
//! - A donor's server that was restarted has lost its memory: the disk's superblock must still be there
//!   (`Contents::Donor`).
//! - Of any other server only what a flush covered may be relied on: completed writes are kept until then and
//!   repeated, in order, on a new connection before anything else (`Contents::Durable`). At most `KEPT_BYTES_MAX` are
//!   kept: beyond, writes complete with a flush of our own.
//! - Completions run without a lock held. Threads: one here, two in the client.
//!
//! Also asks the server every second whether it is short of memory (`shoal:pressure`). What follows is its owner's
//! decision.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request};
use shoal_nbd::{Claim, Client, ClientId, ClientOptions, ConnectError, Lost, TAKEN_OVER, Uri};
use shoal_netram::{DonorError, Trouble};

/// The context of a donor that is short of memory.
pub const PRESSURE: &str = "shoal:pressure";
/// Its flag.
const UNDER_PRESSURE: u32 = 1;
const LOOK_EVERY: Duration = Duration::from_secs(1);
const RETRY_AFTER: Duration = Duration::from_millis(50);
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Kept changes in flight on a new connection.
const REPEATED_AT_ONCE: usize = 64;
/// Beyond so many bytes of them no more are added.
const REPEATED_BYTES: u64 = 1 << 20;
/// Bytes at a donor's start that tell whose it is.
pub const FRONT_BYTES: usize = shoal_netram::SUPERBLOCK_BYTES;

/// What a server must still hold after it was connected to again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The superblock of a network RAM disk, once there is one.
    Donor,
    /// Everything flushed.
    Durable,
}

/// What the owner of a link wants to be told, from a thread of the link.
#[derive(Default)]
pub struct Watch {
    pub lost: Option<Box<dyn Fn() + Send + Sync>>,
    /// Another client has the donor now.
    pub taken_over: Option<Box<dyn Fn() + Send + Sync>>,
    pub pressure: Option<Box<dyn Fn(bool) + Send + Sync>>,
}

/// A request that can be made again.
enum Again {
    Read { at: u64, len: usize },
    Write { at: u64, bytes: Vec<u8>, fua: bool },
    Flush,
    Trim { at: u64, len: u64 },
    WriteZeroes { at: u64, len: u64, fua: bool },
}

impl Again {
    fn of(request: &Request) -> Again {
        match request {
            Request::Read { at, buffer } => Again::Read { at: *at, len: buffer.len() },
            Request::Write { at, buffer, fua } => Again::Write { at: *at, bytes: buffer.clone(), fua: *fua },
            Request::Flush => Again::Flush,
            Request::Trim { at, len } => Again::Trim { at: *at, len: *len },
            Request::WriteZeroes { at, len, fua } => Again::WriteZeroes { at: *at, len: *len, fua: *fua },
        }
    }

    fn request(&self) -> Request {
        match self {
            Again::Read { at, len } => Request::Read { at: *at, buffer: vec![0; *len] },
            Again::Write { at, bytes, fua } => Request::Write { at: *at, buffer: bytes.clone(), fua: *fua },
            Again::Flush => Request::Flush,
            Again::Trim { at, len } => Request::Trim { at: *at, len: *len },
            Again::WriteZeroes { at, len, fua } => Request::WriteZeroes { at: *at, len: *len, fua: *fua },
        }
    }

    fn changes_data(&self) -> bool {
        !matches!(self, Again::Read { .. } | Again::Flush)
    }

    /// What keeping it costs.
    fn bytes(&self) -> usize {
        64 + if let Again::Write { bytes, .. } = self { bytes.len() } else { 0 }
    }
}

struct Operation {
    again: Arc<Again>,
    started: Instant,
    /// Changes completed before it was submitted: what it covers if it is a flush.
    after: u64,
    done: Completion,
}

#[derive(Default)]
struct State {
    client: Option<Arc<Client>>,
    /// Counts connections.
    generation: u64,
    down_since: Option<Instant>,
    waiting: Vec<Operation>,
    /// A connection that ended; the link's thread closes it.
    ended: Vec<Arc<Client>>,
    failed: Option<MediaError>,
    closing: bool,
    /// What the first failed flush answered.
    poisoned: Option<Arc<str>>,
    /// Changes completed so far.
    changes: u64,
    /// Completed, not covered by a flush, with their numbers.
    kept: VecDeque<(u64, Arc<Again>)>,
    kept_bytes: usize,
    /// Completed writes whose completion waits for our own flush.
    held: Vec<(Completion, Vec<u8>)>,
    flushing: bool,
    /// The disk whose superblock was written here, or found here.
    disk: Option<[u8; 16]>,
    wrote: bool,
    under_pressure: bool,
    /// Whose the connections are.
    client_id: Option<ClientId>,
    /// The server ends older connections first.
    is_fenced: bool,
}

struct Shared {
    uri: Uri,
    name: String,
    contents: Contents,
    lost_after: Duration,
    client_options: ClientOptions,
    geometry: BlockGeometry,
    state: Mutex<State>,
    changed: Condvar,
    watch: OnceLock<Watch>,
}

/// The device. Dropping it disconnects; requests in flight then fail.
pub struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    pub fn connect(uri: &Uri, contents: Contents, lost_after: Duration) -> Result<Link, ConnectError> {
        let client_options = ClientOptions {
            connect_timeout: lost_after.min(Duration::from_secs(10)),
            // The other half is for connecting again.
            request_timeout: (lost_after / 2).max(Duration::from_millis(50)),
            contexts: vec![PRESSURE.into()],
            flush_may_be_missing: contents == Contents::Donor,
            ..ClientOptions::default()
        };
        let client = Client::connect(uri, &client_options)?;
        let geometry = client.geometry();
        let state = State { client: Some(Arc::new(client)), ..State::default() };
        let shared = Arc::new(Shared {
            uri: uri.clone(),
            name: uri.to_string(),
            contents,
            lost_after,
            client_options,
            geometry,
            state: Mutex::new(state),
            changed: Condvar::new(),
            watch: OnceLock::new(),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run()
        };
        let io = |source| ConnectError::Io { uri: uri.to_string(), source };
        let thread = std::thread::Builder::new().name("nbd-link".into()).spawn(run).map_err(io)?;
        Ok(Link { shared, thread: Some(thread) })
    }

    /// Once: whom to tell.
    pub fn watch(&self, watch: Watch) {
        // A second one would find the first in place, which is a mistake of the program.
        assert!(self.shared.watch.set(watch).is_ok(), "a link is watched once");
    }

    /// The bytes that tell whose a donor is.
    pub fn front(&self) -> Result<Vec<u8>, MediaError> {
        let client = self.shared.state.lock().client.clone();
        match client {
            Some(client) => self.shared.front(client.as_ref()),
            None => Err(self.shared.error(io::ErrorKind::NotConnected, "the connection is lost")),
        }
    }

    /// The server belongs to this disk: after a reconnection its superblock must be there, if it ever was.
    pub fn belongs_to(&self, disk: [u8; 16], is_there: bool) {
        let mut state = self.shared.state.lock();
        state.disk = Some(disk);
        state.wrote = is_there;
    }

    /// Says whose this link is from now on. An error says that it is another client's, or what went wrong.
    pub fn claim(&self, claim: Claim) -> Result<(), ConnectError> {
        let options = ClientOptions { claim: Some(claim), ..self.shared.client_options.clone() };
        let client = Client::connect(&self.shared.uri, &options)?;
        let mut state = self.shared.state.lock();
        state.client_id = Some(claim.client());
        state.is_fenced = client.is_claimed();
        let former = state.client.replace(Arc::new(client));
        state.generation += 1;
        drop(state);
        drop(former);
        Ok(())
    }

    /// Is the server short of memory? Asks it.
    pub fn is_pressed(&self) -> bool {
        let client = self.shared.state.lock().client.clone();
        client.is_some_and(|client| self.shared.pressure(&client) == Some(true))
    }

    /// Does the server end older connections before a newer one transmits?
    pub fn is_fenced(&self) -> bool {
        self.shared.state.lock().is_fenced
    }

    /// Can a flush make anything durable? Some servers know none.
    pub fn can_flush(&self) -> bool {
        let client = self.shared.state.lock().client.clone();
        client.is_some_and(|client| client.export().flags & shoal_nbd::wire::transmission::FLAG_SEND_FLUSH != 0)
    }

    /// `connected`, `reconnecting`, or `lost`.
    pub fn state(&self) -> &'static str {
        let state = self.shared.state.lock();
        match (&state.failed, &state.client) {
            (Some(_), _) => "lost",
            (None, Some(client)) if client.lost().is_none() => "connected",
            _ => "reconnecting",
        }
    }
}

impl BlockDevice for Link {
    fn geometry(&self) -> BlockGeometry {
        self.shared.geometry
    }

    fn submit(&self, request: Request, done: Completion) {
        let again = Arc::new(Again::of(&request));
        let operation = {
            let state = self.shared.state.lock();
            if let Some(cause) = state.poisoned.clone().filter(|_| !matches!(request, Request::Read { .. })) {
                drop(state);
                return done(Err(MediaError::Poisoned { what: self.shared.name.clone(), cause }));
            }
            Operation { again, started: Instant::now(), after: state.changes, done }
        };
        self.shared.start(operation, Some(request));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // It ends with `fail`, which leaves nothing waiting.
            let _ = thread.join();
        }
    }
}

/// Why a new connection will not do.
enum Refused {
    /// Try again.
    Unreachable(String),
    /// Another client has it.
    TakenOver,
    /// Another server, or one that lost what it held.
    Other(String),
}

impl Shared {
    fn error(&self, kind: io::ErrorKind, why: impl Into<String>) -> MediaError {
        MediaError::io(self.name.clone(), io::Error::new(kind, why.into()))
    }

    /// What the engine of a network RAM disk makes of a failure.
    fn donor_error(&self, trouble: Trouble, why: impl Into<String>) -> MediaError {
        let why = why.into();
        MediaError::io(self.name.clone(), io::Error::new(io::ErrorKind::NotConnected, DonorError::new(trouble, why)))
    }

    fn start(self: &Arc<Self>, operation: Operation, request: Option<Request>) {
        let (client, generation) = {
            let mut state = self.state.lock();
            if let Some(error) = state.failed.clone() {
                drop(state);
                return (operation.done)(Err(error));
            }
            match state.client.clone() {
                Some(client) => (client, state.generation),
                None => {
                    state.waiting.push(operation);
                    return;
                }
            }
        };
        let request = request.unwrap_or_else(|| operation.again.request());
        let shared = self.clone();
        client.submit(request, Box::new(move |result| shared.ended(generation, operation, result)));
    }

    /// A request came back from the connection of this generation.
    fn ended(self: &Arc<Self>, generation: u64, operation: Operation, result: Result<Vec<u8>, MediaError>) {
        match result {
            Err(error) if Lost::of(&error).is_some() => {
                let mut state = self.state.lock();
                if state.generation == generation {
                    self.take_down(&mut state);
                }
                let repeats = self.contents == Contents::Durable || state.is_fenced;
                drop(state);
                if !repeats && operation.again.changes_data() {
                    let error = self.donor_error(Trouble::Uncertain, "the connection broke");
                    return (operation.done)(Err(error));
                }
                self.start(operation, None);
            }
            Err(error) => {
                let durable = matches!(
                    *operation.again,
                    Again::Flush | Again::Write { fua: true, .. } | Again::WriteZeroes { fua: true, .. }
                );
                if durable && !matches!(error, MediaError::OutOfRange { .. }) {
                    self.state.lock().poisoned.get_or_insert_with(|| error.to_string().into());
                }
                (operation.done)(Err(error));
            }
            Ok(buffer) => self.succeeded(generation, operation, buffer),
        }
    }

    fn succeeded(self: &Arc<Self>, generation: u64, operation: Operation, buffer: Vec<u8>) {
        let mut state = self.state.lock();
        let is_over = state.generation != generation || state.client.is_none();
        // A donor's memory has it; of other servers only what a flush covered may be relied on.
        if is_over && self.contents == Contents::Durable && operation.again.changes_data() && state.failed.is_none() {
            // Too late to be among what the next connection begins with.
            drop(state);
            return self.start(operation, None);
        }
        let Operation { again, after, done, .. } = operation;
        if again.changes_data() {
            state.changes += 1;
            state.wrote |= matches!(*again, Again::Write { .. });
            if self.contents == Contents::Durable {
                let number = state.changes;
                state.kept_bytes += again.bytes();
                state.kept.push_back((number, again));
                if state.kept_bytes > KEPT_BYTES_MAX {
                    state.held.push((done, buffer));
                    let flushing = std::mem::replace(&mut state.flushing, true);
                    drop(state);
                    if !flushing {
                        self.flush_kept();
                    }
                    return;
                }
            }
        } else if matches!(*again, Again::Flush) {
            while state.kept.front().is_some_and(|(number, _)| *number <= after) {
                let (_, again) = state.kept.pop_front().expect("has a front");
                state.kept_bytes -= again.bytes();
            }
        }
        drop(state);
        done(Ok(buffer));
    }

    /// Our own flush, so that what is kept stays bounded.
    fn flush_kept(self: &Arc<Self>) {
        let shared = self.clone();
        let done: Completion = Box::new(move |_| {
            // Failed, it has poisoned the link: the owner learns it from its own flush. The writes as such were done.
            let held = {
                let mut state = shared.state.lock();
                state.flushing = false;
                std::mem::take(&mut state.held)
            };
            for (done, buffer) in held {
                done(Ok(buffer));
            }
        });
        let after = self.state.lock().changes;
        let operation = Operation { again: Arc::new(Again::Flush), started: Instant::now(), after, done };
        self.start(operation, None);
    }

    fn take_down(&self, state: &mut State) {
        if let Some(client) = state.client.take() {
            state.ended.push(client);
            state.down_since = Some(Instant::now());
            self.changed.notify_all();
        }
    }

    /// The link's thread.
    fn run(self: &Arc<Self>) {
        loop {
            let (client, ended) = {
                let mut state = self.state.lock();
                let next = Instant::now() + LOOK_EVERY;
                while !state.closing && state.client.is_some() && Instant::now() < next {
                    self.changed.wait_until(&mut state, next);
                }
                if state.closing {
                    drop(state);
                    return self.fail(self.error(io::ErrorKind::NotConnected, "closed"));
                }
                if state.client.as_ref().is_some_and(|client| client.lost().is_some()) {
                    self.take_down(&mut state);
                }
                (state.client.clone(), std::mem::take(&mut state.ended))
            };
            drop(ended);
            match client {
                Some(client) => self.look(&client),
                None => {
                    if let Err((error, taken_over)) = self.reconnect() {
                        let why = error.to_string();
                        self.fail(match self.contents {
                            Contents::Donor => self.donor_error(Trouble::Away, why),
                            Contents::Durable => error,
                        });
                        let told = self.watch.get().and_then(|watch| watch.taken_over.as_ref());
                        if let Some(told) = told.filter(|_| taken_over) {
                            told();
                        }
                        if let Some(lost) = self.watch.get().and_then(|watch| watch.lost.as_ref()) {
                            lost();
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Tells of changes of the server's state of memory.
    fn look(&self, client: &Client) {
        // Before anybody can be told nothing is asked: a state that is known already is told no more.
        let Some(told) = self.watch.get().and_then(|watch| watch.pressure.as_ref()) else { return };
        let Some(now) = self.pressure(client) else { return };
        let before = std::mem::replace(&mut self.state.lock().under_pressure, now);
        if now != before {
            told(now);
        }
    }

    fn pressure(&self, client: &Client) -> Option<bool> {
        if !client.export().contexts.iter().any(|context| context.name == PRESSURE) {
            return None;
        }
        let block = u64::from(self.geometry.block_bytes);
        let len = (FRONT_BYTES as u64).max(block).min(self.geometry.bytes) as u32;
        // An error is the connection's, which is seen elsewhere.
        let extents = client.block_status(PRESSURE, 0, len, true).ok()?;
        Some(extents.iter().any(|extent| extent.flags & UNDER_PRESSURE != 0))
    }

    /// An error is the end; with whether another client is the reason.
    fn reconnect(self: &Arc<Self>) -> Result<(), (MediaError, bool)> {
        let mut why = String::from("closed by the server");
        loop {
            let deadline = {
                let mut state = self.state.lock();
                if state.closing {
                    return Err((self.error(io::ErrorKind::NotConnected, "closed"), false));
                }
                let since = state.waiting.iter().map(|operation| operation.started).min();
                let down = *state.down_since.get_or_insert_with(Instant::now);
                since.unwrap_or(down).min(down) + self.lost_after
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("no connection for {:.1} s: {why}", self.lost_after.as_secs_f64());
                return Err((self.error(io::ErrorKind::TimedOut, why), false));
            }
            match self.connect_again(left) {
                Ok(client) => {
                    let waiting = {
                        let mut state = self.state.lock();
                        state.client = Some(Arc::new(client));
                        state.generation += 1;
                        state.down_since = None;
                        std::mem::take(&mut state.waiting)
                    };
                    for operation in waiting {
                        self.start(operation, None);
                    }
                    return Ok(());
                }
                Err(Refused::Other(why)) => return Err((self.error(io::ErrorKind::NotConnected, why), false)),
                Err(Refused::TakenOver) => return Err((self.error(io::ErrorKind::NotConnected, TAKEN_OVER), true)),
                Err(Refused::Unreachable(cause)) => why = cause,
            }
            let mut state = self.state.lock();
            if !state.closing {
                self.changed.wait_for(&mut state, RETRY_AFTER.min(left));
            }
        }
    }

    fn connect_again(&self, left: Duration) -> Result<Client, Refused> {
        let (client_id, was_fenced) = {
            let state = self.state.lock();
            (state.client_id, state.is_fenced)
        };
        let options = ClientOptions {
            connect_timeout: left.min(self.client_options.connect_timeout),
            claim: client_id.map(Claim::Again),
            ..self.client_options.clone()
        };
        let unreachable = |error: &dyn std::fmt::Display| Refused::Unreachable(error.to_string());
        let client = Client::connect(&self.uri, &options).map_err(|error| match error.is_taken_over() {
            true => Refused::TakenOver,
            false => unreachable(&error),
        })?;
        if was_fenced && !client.is_claimed() {
            return Err(Refused::Other("another server answers: it does not know clients".into()));
        }
        let found = client.geometry();
        if found.bytes != self.geometry.bytes || found.block_bytes > self.geometry.block_bytes {
            let (found, expected) = (found.bytes, self.geometry.bytes);
            return Err(Refused::Other(format!("another server answers: {found} bytes instead of {expected}")));
        }
        let (kept, disk, wrote) = {
            let state = self.state.lock();
            let kept: Vec<Arc<Again>> = state.kept.iter().map(|(_, again)| again.clone()).collect();
            (kept, state.disk, state.wrote)
        };
        if self.contents == Contents::Donor && wrote {
            let front = self.front(&client).map_err(|error| unreachable(&error))?;
            if disk != shoal_netram::identify(&front).map(|(uuid, _)| uuid) {
                return Err(Refused::Other("the server was restarted: its memory no longer holds the disk".into()));
            }
        }
        self.repeat(&client, &kept)?;
        Ok(client)
    }

    /// Makes changes again that the server may have forgotten: many at a time, in order where they overlap.
    fn repeat(&self, client: &Client, kept: &[Arc<Again>]) -> Result<(), Refused> {
        let (sender, receiver) = mpsc::channel();
        let mut in_flight: Vec<Range<u64>> = Vec::new();
        let finish = |in_flight: &mut Vec<Range<u64>>| {
            for _ in in_flight.drain(..) {
                let result: Result<Vec<u8>, MediaError> = receiver.recv().expect("its sender is kept");
                result.map_err(|error| match Lost::of(&error) {
                    Some(_) => Refused::Unreachable(error.to_string()),
                    None => Refused::Other(format!("a write could not be repeated: {error}")),
                })?;
            }
            Ok(())
        };
        for again in kept {
            if self.state.lock().closing {
                return Err(Refused::Unreachable("closed".into()));
            }
            let request = again.request();
            let (at, len) = request.range();
            let range = at..at + len;
            let overlaps = |other: &Range<u64>| range.start < other.end && other.start < range.end;
            let bytes: u64 = in_flight.iter().map(|other| other.end - other.start).sum();
            // All of them have the time of one request.
            let full = in_flight.len() >= REPEATED_AT_ONCE || bytes >= REPEATED_BYTES;
            if full || in_flight.iter().any(overlaps) {
                finish(&mut in_flight)?;
            }
            let sender = sender.clone();
            let done = move |result| {
                // After an error nobody asks for the rest.
                let _ = sender.send(result);
            };
            client.submit(request, Box::new(done));
            in_flight.push(range);
        }
        finish(&mut in_flight)
    }

    fn front(&self, client: &Client) -> Result<Vec<u8>, MediaError> {
        let len = FRONT_BYTES.max(self.geometry.block_bytes as usize);
        if (len as u64) > self.geometry.bytes {
            return Err(self.error(io::ErrorKind::InvalidInput, format!("only {} bytes long", self.geometry.bytes)));
        }
        let mut front = vec![0; len];
        client.read_into(0, &mut front)?;
        front.truncate(FRONT_BYTES);
        Ok(front)
    }

    fn fail(&self, error: MediaError) {
        let (waiting, held, clients) = {
            let mut state = self.state.lock();
            state.failed = Some(error.clone());
            let mut clients = std::mem::take(&mut state.ended);
            clients.extend(state.client.take());
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.held), clients)
        };
        for operation in waiting {
            (operation.done)(Err(error.clone()));
        }
        for (done, _) in held {
            done(Err(error.clone()));
        }
        drop(clients);
    }
}

#[cfg(test)]
#[path = "nbd_link_tests.rs"]
mod tests;
