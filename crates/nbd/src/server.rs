//! The server: listens, enforces limits, and runs each connection on a pair of threads.
//!
//! It uses blocking threads and no async runtime: a server has tens of connections, each deep in
//! requests, and the cost of one request matters most. A listener beyond loopback needs TLS or the
//! owner's word (`insecure`). Connections for which there is no place (`guests`) are closed unread.
//! Shutting down stops accepting and lets every connection finish the requests it has taken. After
//! a grace period it cuts the remaining connections.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::address::Listen;
use crate::channel::{Channel, Socket};
use crate::export::{Catalog, Peer};
use crate::guests::{Full, Guest, Guests};
use crate::input::Input;
use crate::limits::Limits;
use crate::negotiation::server::{Handshake, Session, Step};
use crate::outbox::{Outbox, hold_on_this_thread};
use crate::pool::Pool;
use crate::session::{Goodbye, Spares, Transmission, invalid_data};
use crate::tls::TlsServer;

/// A server that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(
        "listening on {address} would open the exports to the network: configure TLS, listen on loopback or \
         a UNIX socket, or pass --insecure"
    )]
    Exposed { address: String },
    #[error("{address}: a server is listening there already; choose another address or stop it")]
    InUse { address: String },
    #[error("{address}: {source}")]
    Listen { address: String, source: io::Error },
}

/// How a server behaves.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// If set, TLS is required of every client.
    pub tls: Option<TlsServer>,
    /// Allows listening beyond loopback without TLS.
    pub insecure: bool,
    pub limits: Limits,
}

/// Time for a refused client to read the reason.
const FAREWELL: Duration = Duration::from_millis(250);
/// Longest single wait for a client. After it the server checks how long the client has made no
/// progress.
const TICK: Duration = Duration::from_secs(1);

/// Counters of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerCounts {
    pub open: usize,
    pub accepted: u64,
    /// Connections closed unread because there were too many at once.
    pub turned_away: u64,
    /// Connections ended to make room for others.
    pub gave_way: u64,
    /// Memory that the requests of all connections hold (bytes).
    pub held_bytes: usize,
    /// Handshakes that ended other than by the client's wish.
    pub failed_handshakes: u64,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    turned_away: AtomicU64,
    failed_handshakes: AtomicU64,
}

struct Shared {
    catalog: Arc<dyn Catalog>,
    options: ServerOptions,
    closing: AtomicBool,
    guests: Guests,
    pool: Arc<Pool>,
    counters: Counters,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A running server. Dropping it shuts it down without grace.
pub struct Server {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    accepting: Option<JoinHandle<()>>,
    address: Listen,
}

impl Server {
    pub fn start(catalog: Arc<dyn Catalog>, listen: &Listen, options: ServerOptions) -> Result<Server, ServerError> {
        let address = listen.to_string();
        let (listener, bound) = match listen {
            Listen::Tcp(socket_address) => {
                if !socket_address.ip().is_loopback() && options.tls.is_none() && !options.insecure {
                    return Err(ServerError::Exposed { address });
                }
                let bind = || {
                    let listener = TcpListener::bind(socket_address)?;
                    let bound = listener.local_addr()?;
                    Ok((Listener::Tcp(listener), Listen::Tcp(bound)))
                };
                bind().map_err(|source: io::Error| match source.kind() {
                    io::ErrorKind::AddrInUse => ServerError::InUse { address: address.clone() },
                    _ => ServerError::Listen { address: address.clone(), source },
                })?
            }
            Listen::Unix(path) => (Listener::Unix(bind_unix(path)?), listen.clone()),
        };
        let options = ServerOptions { limits: options.limits.clone().checked(), ..options };
        let pool = Arc::new(Pool::new(options.limits.server_bytes));
        let shared = Arc::new(Shared {
            catalog,
            options,
            closing: AtomicBool::new(false),
            guests: Guests::default(),
            pool,
            counters: Counters::default(),
        });
        let listener = Arc::new(listener);
        let accept = {
            let (shared, listener) = (shared.clone(), listener.clone());
            move || accept_all(&shared, &listener)
        };
        let accepting = thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(accept)
            .map_err(|source| ServerError::Listen { address, source })?;
        Ok(Server { shared, listener, accepting: Some(accepting), address: bound })
    }

    /// Where the server listens. The port is the real one if 0 was asked for.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    pub fn counts(&self) -> ServerCounts {
        let counters = &self.shared.counters;
        ServerCounts {
            open: self.shared.guests.open(),
            held_bytes: self.shared.pool.used(),
            gave_way: self.shared.guests.ended(),
            accepted: counters.accepted.load(Ordering::Relaxed),
            turned_away: counters.turned_away.load(Ordering::Relaxed),
            failed_handshakes: counters.failed_handshakes.load(Ordering::Relaxed),
        }
    }

    /// Stops accepting and lets connections finish the requests they have taken; cuts those that take longer than
    /// `grace`. Returns how many had to be cut.
    pub fn shut_down(mut self, grace: Duration) -> usize {
        self.stop(grace)
    }

    fn stop(&mut self, grace: Duration) -> usize {
        let Some(accepting) = self.accepting.take() else { return 0 };
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the thread in `accept` with an error.
        let _ = match &*self.listener {
            Listener::Tcp(listener) => rustix::net::shutdown(listener.as_fd(), rustix::net::Shutdown::Both),
            Listener::Unix(listener) => rustix::net::shutdown(listener.as_fd(), rustix::net::Shutdown::Both),
        };
        let _ = accepting.join();
        if let Listen::Unix(path) = &self.address {
            // The file may already have been removed; nothing depends on it.
            let _ = std::fs::remove_file(path);
        }
        let deadline = Instant::now() + grace;
        let guests = &self.shared.guests;
        guests.for_each(Channel::shutdown_receiving);
        let cut = guests.wait_for_all(deadline);
        guests.for_each(Channel::shutdown);
        // A device that never completes a request must not hold up the server's owner forever.
        guests.wait_for_all(Instant::now() + Duration::from_secs(1));
        cut
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Binds under another name, restricts access, and moves the socket into place. So the socket is
/// never open to others, and a socket left behind by a dead server is replaced.
fn bind_unix(path: &Path) -> Result<UnixListener, ServerError> {
    let address = format!("unix:{}", path.display());
    let failed = |source| ServerError::Listen { address: address.clone(), source };
    if UnixStream::connect(path).is_ok() {
        return Err(ServerError::InUse { address });
    }
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
        return Err(failed(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "exists and is no socket; choose another path",
        )));
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(fresh);
    let _ = std::fs::remove_file(&fresh);
    let bind = || {
        let listener = UnixListener::bind(&fresh)?;
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&fresh, path)?;
        Ok(listener)
    };
    bind().map_err(|error| {
        let _ = std::fs::remove_file(&fresh);
        failed(error)
    })
}

fn accept_all(shared: &Arc<Shared>, listener: &Listener) {
    let mut next_id = 0;
    loop {
        let accepted = match listener {
            Listener::Tcp(listener) => listener.accept().map(|(stream, from)| {
                (Socket::Tcp(stream), Peer { ip: Some(from.ip().to_canonical()), ..Peer::at(from) })
            }),
            Listener::Unix(listener) => listener.accept().map(|(stream, _)| (Socket::Unix(stream), Peer::at("unix"))),
        };
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok((socket, peer)) = accepted else {
            // There are no descriptors left, or the client is already gone. Wait a moment rather
            // than spin.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let channel = Arc::new(Channel::new(socket));
        next_id += 1;
        // Count before the channel is dropped: a client that sees the end may ask for the count.
        let admitted = shared.guests.admit(next_id, &channel, peer.ip, &shared.options.limits);
        let Ok(guest) = admitted.map_err(|Full| shared.counters.turned_away.fetch_add(1, Ordering::Relaxed)) else {
            continue;
        };
        shared.counters.accepted.fetch_add(1, Ordering::Relaxed);
        let id = next_id;
        let of_thread = shared.clone();
        let run = move || {
            let ended = Ended { shared: of_thread, id };
            connection(&ended.shared, &guest, peer);
        };
        if thread::Builder::new().name(format!("nbd-{id}")).spawn(run).is_err() {
            // There is no thread for it, so the client sees the connection close.
            shared.guests.leave(id);
        }
    }
}

/// Removes a connection from the list, even if its thread panics.
struct Ended {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.shared.guests.leave(self.id);
    }
}

fn connection(shared: &Shared, guest: &Guest, peer: Peer) {
    let (limits, channel) = (&shared.options.limits, &guest.channel);
    let (session, early) = match shake_hands(shared, guest, peer) {
        Ok(Some(agreed)) => agreed,
        Ok(None) => return,
        Err(_) => {
            // The client has been told what the protocol can tell. A log is the business of the
            // server's owner.
            shared.counters.failed_handshakes.fetch_add(1, Ordering::Relaxed);
            return channel.linger(Instant::now() + FAREWELL);
        }
    };
    let tick = TICK.min(limits.stalled);
    if channel.set_timeouts(Some(tick), Some(tick)).is_err() {
        return;
    }
    let mut session = session;
    // The ticket is dropped when the connection's requests are done.
    let mut ticket = session.ticket.take();
    if ticket.as_ref().is_some_and(|ticket| !ticket.attach(channel)) {
        return;
    }
    let spares = Arc::new(Spares::new(shared.pool.clone()));
    let returned = {
        let spares = spares.clone();
        Box::new(move |_tag, body| spares.give(body))
    };
    let outbox = Outbox::new(channel.clone(), limits.in_flight_bytes, returned);
    let outbox = outbox.of_server(shared.pool.clone(), limits.stalled);
    hold_on_this_thread();
    let writing = {
        let outbox = outbox.clone();
        thread::Builder::new().name("nbd-write".into()).spawn(move || outbox.run_writer())
    };
    let Ok(writing) = writing else { return };
    let closing = &shared.closing;
    let named = ticket.is_some();
    let transmission = Transmission { session, outbox: outbox.clone(), spares, limits, guest, closing, named };
    // However the connection ends, accepted requests are finished, and answered while the client
    // still listens.
    let input = Input::new(channel.clone(), &early).watching().stalling(limits.stalled, outbox.sending_stalls());
    let ended = transmission.run(input);
    if let Some(ticket) = &mut ticket {
        ticket.said_goodbye = matches!(ended, Ok(Goodbye::Said));
    }
    outbox.drain();
    // A client that sees the end of its connection may count on the export being free.
    drop(ticket);
    outbox.close();
    channel.shutdown();
    let _ = writing.join();
}

/// Performs the whole handshake. Returns the session and the bytes that arrived after the
/// handshake, or nothing if the client left.
fn shake_hands(shared: &Shared, guest: &Guest, peer: Peer) -> io::Result<Option<(Session, Vec<u8>)>> {
    let ServerOptions { tls, limits, .. } = &shared.options;
    let channel = &guest.channel;
    let deadline = Instant::now() + limits.handshake;
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&*shared.catalog, limits, peer, tls.is_some(), &mut out);
    let mut input: Vec<u8> = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if shared.closing.load(Ordering::Relaxed) {
            handshake.shut_down();
        }
        let (consumed, step) = match handshake.advance(&input, &mut out) {
            Ok(progress) => progress,
            Err(error) => {
                let _ = channel.send_all(&out, deadline);
                return Err(invalid_data(error));
            }
        };
        input.drain(..consumed);
        if matches!(step, Step::Transmission(_)) {
            // Do this before the client knows: a client that counts on its place must not give way
            // as half-open.
            guest.serves();
        }
        channel.send_all(&out, deadline)?;
        out.clear();
        match (step, tls) {
            (Step::Transmission(session), _) => return Ok(Some((session, input))),
            (Step::Closed, _) => return Ok(None),
            (Step::StartTls, Some(tls)) => {
                channel.start_tls(tls.session().map_err(invalid_data)?, deadline)?;
                handshake.tls_is_on();
            }
            _ if consumed > 0 => {}
            _ => {
                let received = channel.recv_until(&mut chunk, deadline)?;
                if received == 0 {
                    return if input.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
                }
                input.extend_from_slice(&chunk[..received]);
            }
        }
    }
}
