//! A client that connects again when its connection is lost.
//!
//! Owns the patience: for `lost_after` it tries to reach the server. Requests in flight are
//! repeated on the new connection; new requests wait. After that time, or when another server
//! answers, every request fails for good. A server that is reachable but stops answering counts as
//! lost after the same time.
//! Rules:
//! - A change may be repeated on a new connection only if the old connection can have no more
//!   effect. Otherwise a request of a dead connection may be carried out long after a newer one. A
//!   Shoal server is told which client the connection belongs to ([`Link::claim`]), and ends older
//!   connections first. With other servers it depends on their other users ([`Reliance`]).
//! - A server with a cache can be relied on only for changes that a flush covered. Completed
//!   changes are kept until then and repeated, in order, on a new connection before anything else.
//!   At most `kept_bytes_max` are kept; beyond that, writes complete with a flush of our own.
//! - Before anything is sent, the owner checks whether the server is still the same one
//!   ([`Owner`]). A server that is relied on for what was flushed must still have it: up to eight
//!   samples are compared ([`Witnesses`]).
//! - Completions run without a lock held. Threads: one here (`reconnect`), two in the client.

mod again;
mod reconnect;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, WriteCache};

use crate::address::Uri;
use crate::client::{Client, ClientOptions, Lost};
use crate::clients::{Claim, ClientId, TAKEN_OVER};
use crate::connect::ConnectError;
use crate::wire::transmission::FLAG_SEND_FLUSH;
use again::{Again, Flying, Kept, Witnesses};

pub use again::Witness;

/// Maximum bytes of changes kept. If this process's memory is limited, they take at most
/// 1/`KEPT_PART` of the limit.
const KEPT_BYTES_MAX: usize = 32 << 20;
const KEPT_PART: u64 = 32;

/// Changes that a server still has after the connection to it broke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reliance {
    /// The changes that a flush covered. The server has no other user, so changes that were in
    /// flight are repeated, in order.
    #[default]
    Flushed,
    /// The changes that it completed. A change in flight is repeated only if the server ends older
    /// connections first. Otherwise the change fails as uncertain, and the link's owner writes its
    /// data elsewhere.
    Completed,
}

/// How a link behaves.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    /// How long the link tries to reach the server.
    pub lost_after: Duration,
    pub reliance: Reliance,
    /// Metadata contexts to ask for.
    pub contexts: Vec<String>,
    /// See [`ClientOptions`].
    pub flush_may_be_missing: bool,
    /// Memory limit of this process (bytes), if it has one. The lower it is, the fewer changes are
    /// kept.
    pub memory_limit: Option<u64>,
}

/// Reason why a new connection cannot be used.
#[derive(Debug)]
pub enum Refused {
    /// The link tries again.
    Unreachable(String),
    /// Another client has taken the server over.
    TakenOver,
    /// Another server answers, or the server lost its contents.
    Another(String),
}

/// Reason why a link is over for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The owner closed the link.
    Closed,
    /// The server could not be reached for `lost_after`.
    Away { lost_after: Duration, why: String },
    /// Another client has taken the server over.
    TakenOver,
    /// Another server answers, or the server lost its contents.
    Another(String),
}

impl End {
    fn kind(&self) -> io::ErrorKind {
        match self {
            End::Away { .. } => io::ErrorKind::TimedOut,
            End::Closed | End::TakenOver | End::Another(_) => io::ErrorKind::NotConnected,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Closed => f.write_str("closed"),
            End::Away { lost_after, why } => write!(f, "no connection for {:.1} s: {why}", lost_after.as_secs_f64()),
            End::TakenOver => f.write_str(TAKEN_OVER),
            End::Another(why) => f.write_str(why),
        }
    }
}

/// The owner of a link: it recognises the server and is told of the link's end. Called from the
/// link's thread, without a lock held.
pub trait Owner: Send + Sync {
    /// Checks whether the server on this new connection is the same as before. `written`: something
    /// was written to it.
    fn recognise(&self, _client: &Client, _written: bool) -> Result<(), Refused> {
        Ok(())
    }

    /// Returns the error of a change that may have been made, or may still be made.
    fn uncertain(&self, why: &str) -> io::Error {
        io::Error::new(io::ErrorKind::NotConnected, why)
    }

    /// Returns the error of every request from now on.
    fn gone(&self, end: &End) -> io::Error {
        io::Error::new(end.kind(), end.to_string())
    }

    /// Called once a second while the server can be reached.
    fn look(&self, _client: &Client) {}

    /// Called when the link is over. Requests already fail.
    fn ended(&self, _end: &End) {}
}

/// An owner that knows nothing about the server and need not be told anything.
impl Owner for () {}

struct Operation {
    again: Arc<Again>,
    started: Instant,
    /// Changes completed before the operation was submitted. A flush covers these.
    after: u64,
    done: Completion,
    /// Its number among the changes under way.
    flight: Option<u64>,
}

#[derive(Default)]
struct State {
    client: Option<Arc<Client>>,
    /// Number of the present connection.
    generation: u64,
    down_since: Option<Instant>,
    waiting: Vec<Operation>,
    /// A connection that ended; the link's thread closes it.
    ended: Vec<Arc<Client>>,
    failed: Option<MediaError>,
    closing: bool,
    /// Error of the first failed flush.
    poisoned: Option<Arc<str>>,
    /// Changes completed so far.
    changes: u64,
    flying: Flying,
    kept: Kept,
    witnesses: Witnesses,
    /// Completed writes whose completion waits for our own flush.
    held: Vec<(Completion, Vec<u8>)>,
    flushing: bool,
    /// A write was completed on the server, for [`Owner::recognise`].
    written: bool,
    /// Client that the connections belong to.
    client_id: Option<(ClientId, u64)>,
    /// The server ends older connections first.
    is_fenced: bool,
}

struct Shared {
    uri: Uri,
    name: String,
    reliance: Reliance,
    lost_after: Duration,
    client_options: ClientOptions,
    geometry: BlockGeometry,
    owner: Arc<dyn Owner>,
    kept_bytes_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// The device. Dropping it disconnects.
pub struct Link {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Returns how many bytes of changes may be kept under a memory limit.
fn kept_bytes_max(limit: Option<u64>) -> usize {
    limit.map_or(KEPT_BYTES_MAX, |limit| KEPT_BYTES_MAX.min((limit / KEPT_PART) as usize))
}

impl Link {
    /// Connects. The owner is asked from the first lost connection on.
    pub fn connect(uri: &Uri, options: &LinkOptions, owner: Arc<dyn Owner>) -> Result<Link, ConnectError> {
        let lost_after = options.lost_after;
        let client_options = ClientOptions {
            connect_timeout: lost_after.min(Duration::from_secs(10)),
            // The other half is for reconnecting.
            request_timeout: (lost_after / 2).max(Duration::from_millis(50)),
            contexts: options.contexts.clone(),
            flush_may_be_missing: options.flush_may_be_missing,
            ..ClientOptions::default()
        };
        let client = Client::connect(uri, &client_options)?;
        let geometry = client.geometry();
        let state = State { client: Some(Arc::new(client)), ..State::default() };
        let shared = Arc::new(Shared {
            uri: uri.clone(),
            name: uri.to_string(),
            reliance: options.reliance,
            lost_after,
            client_options,
            geometry,
            owner,
            kept_bytes_max: kept_bytes_max(options.memory_limit),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run()
        };
        let io = |source| ConnectError::Io { uri: uri.to_string(), source };
        let thread = std::thread::Builder::new().name("nbd-link".into()).spawn(run).map_err(io)?;
        Ok(Link { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the present connection, for requests that block devices do not have.
    pub fn client(&self) -> Option<Arc<Client>> {
        self.shared.state.lock().client.clone()
    }

    /// Sets whether something was written to the server, for [`Owner::recognise`].
    pub fn set_written(&self, written: bool) {
        self.shared.state.lock().written = written;
    }

    /// Claims the server for a client from now on. Fails if another client has it, or if it cannot
    /// be reached.
    pub fn claim(&self, claim: Claim) -> Result<(), ConnectError> {
        let options = ClientOptions { claim: Some(claim), ..self.shared.client_options.clone() };
        let client = Client::connect(&self.shared.uri, &options)?;
        let mut state = self.shared.state.lock();
        state.client_id = Some((claim.client(), claim.epoch()));
        state.is_fenced = client.is_claimed();
        let former = state.client.replace(Arc::new(client));
        state.generation += 1;
        drop(state);
        drop(former);
        Ok(())
    }

    /// Asks the server on a separate connection whether this client could have it. Returns false if
    /// the server knows no clients. Changes nothing.
    pub fn ask(&self, client: ClientId, epoch: u64) -> Result<bool, ConnectError> {
        let options = ClientOptions { claim: Some(Claim::Ask(client, epoch)), ..self.shared.client_options.clone() };
        Ok(Client::connect(&self.shared.uri, &options)?.is_claimed())
    }

    /// Returns whether the server ends older connections before a newer one transmits.
    pub fn is_fenced(&self) -> bool {
        self.shared.state.lock().is_fenced
    }

    /// Returns whether a flush can make anything durable. Some servers have no flush.
    pub fn can_flush(&self) -> bool {
        self.client().is_some_and(|client| client.export().flags & FLAG_SEND_FLUSH != 0)
    }

    /// Returns samples of what the server must have, also after it was lost.
    pub fn witnesses(&self) -> Vec<Witness> {
        self.shared.state.lock().witnesses.all()
    }

    /// Adds the samples of an earlier link to the same medium. Connections made from now on are
    /// compared with them. The present connection is not.
    pub fn inherit(&self, witnesses: impl IntoIterator<Item = Witness>) {
        self.shared.state.lock().witnesses.inherit(witnesses);
    }

    /// Disconnects, even if the link has other owners. Their requests fail from then on.
    pub fn close(&self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // The thread ends with `fail`, which leaves no request waiting.
            let _ = thread.join();
        }
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
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.shared.geometry
    }

    fn submit(&self, request: Request, done: Completion) {
        let again = Arc::new(Again::of(&request));
        let operation = {
            let mut state = self.shared.state.lock();
            if let Some(cause) = state.poisoned.clone().filter(|_| !matches!(request, Request::Read { .. })) {
                drop(state);
                return done(Err(MediaError::Poisoned { what: self.shared.name.clone(), cause }));
            }
            let is_sampled = self.shared.reliance == Reliance::Flushed && again.changes_data();
            let flight = is_sampled.then(|| state.flying.begin(&again));
            Operation { again, started: Instant::now(), after: state.changes, done, flight }
        };
        self.shared.start(operation, Some(request));
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn start(self: &Arc<Self>, operation: Operation, request: Option<Request>) {
        let (client, generation) = {
            let mut state = self.state.lock();
            if let Some(error) = state.failed.clone() {
                drop(state);
                return (operation.done)(Err(error));
            }
            match state.client.clone() {
                Some(client) => {
                    state.witnesses.sent(&operation.again);
                    (client, state.generation)
                }
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

    /// Handles a request that came back from the connection of this generation.
    fn ended(self: &Arc<Self>, generation: u64, operation: Operation, result: Result<Vec<u8>, MediaError>) {
        match result {
            Err(error) if Lost::of(&error).is_some() => {
                let mut state = self.state.lock();
                if state.generation == generation {
                    self.take_down(&mut state);
                }
                let repeats = self.reliance == Reliance::Flushed || state.is_fenced;
                if !repeats && operation.again.changes_data() {
                    state.flying.end(operation.flight);
                    drop(state);
                    let error = self.owner.uncertain("the connection broke");
                    return (operation.done)(Err(MediaError::io(self.name.clone(), error)));
                }
                drop(state);
                self.start(operation, None);
            }
            Err(error) => {
                let durable = matches!(
                    *operation.again,
                    Again::Flush | Again::Write { fua: true, .. } | Again::WriteZeroes { fua: true, .. }
                );
                let mut state = self.state.lock();
                state.flying.end(operation.flight);
                if durable && !matches!(error, MediaError::OutOfRange { .. }) {
                    state.poisoned.get_or_insert_with(|| error.to_string().into());
                }
                drop(state);
                (operation.done)(Err(error));
            }
            Ok(buffer) => self.succeeded(generation, operation, buffer),
        }
    }

    fn succeeded(self: &Arc<Self>, generation: u64, operation: Operation, buffer: Vec<u8>) {
        let mut state = self.state.lock();
        let is_over = state.generation != generation || state.client.is_none();
        // A server with a cache may have lost this change together with the connection.
        if is_over && self.reliance == Reliance::Flushed && operation.again.changes_data() && state.failed.is_none() {
            // The change is not among those that the next connection repeats first, so it is
            // repeated here.
            drop(state);
            return self.start(operation, None);
        }
        let Operation { again, after, done, flight, .. } = operation;
        if again.changes_data() {
            let is_alone = state.flying.end(flight);
            state.changes += 1;
            state.written |= matches!(*again, Again::Write { .. });
            if self.reliance == Reliance::Flushed {
                let number = state.changes;
                state.kept.push(number, again, is_alone);
                if state.kept.bytes() > self.kept_bytes_max {
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
            let State { kept, witnesses, flying, .. } = &mut *state;
            let flushed = kept.flushed(after);
            witnesses.flushed(&flushed, kept, flying, self.geometry.block_bytes as usize);
        }
        drop(state);
        done(Ok(buffer));
    }

    /// Flushes, so that the kept changes stay bounded.
    fn flush_kept(self: &Arc<Self>) {
        let shared = self.clone();
        let done: Completion = Box::new(move |_| {
            // A failed flush has poisoned the link, and the owner learns of it from its own flush.
            // The writes themselves were done.
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
        let (again, started) = (Arc::new(Again::Flush), Instant::now());
        let operation = Operation { again, started, after, done, flight: None };
        self.start(operation, None);
    }

    fn take_down(&self, state: &mut State) {
        if let Some(client) = state.client.take() {
            state.ended.push(client);
            state.down_since = Some(Instant::now());
            self.changed.notify_all();
        }
    }

    /// Fails every request, waiting or new.
    fn fail(&self, end: &End) {
        let error = MediaError::io(self.name.clone(), self.owner.gone(end));
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
mod tests;
