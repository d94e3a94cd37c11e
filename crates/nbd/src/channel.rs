//! One connection's bytes: a TCP or UNIX socket, in the clear or under TLS.
//!
//! One thread receives at a time and one sends at a time; both may run together. TLS keeps one
//! state for both directions. Its lock is held while records are made or opened, never while
//! waiting for the socket. Sending can be told not to wait, so that a thread may try to send
//! without being held up by a slow peer. Left to `outbox` and to the two ends: the meaning of the
//! bytes, and who sends when.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};

/// A connected stream socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

/// What sending does while the socket takes no bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// It waits, as long as the time-out of the socket.
    Wait,
    /// It returns with "would block".
    Return,
}

impl Socket {
    fn recv(&self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(out),
            Socket::Unix(stream) => (&*stream).read(out),
        }
    }

    fn send(&self, slices: &[IoSlice<'_>], when_full: WhenFull) -> io::Result<usize> {
        let flags = match when_full {
            WhenFull::Wait => SendFlags::NOSIGNAL,
            WhenFull::Return => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        };
        Ok(rustix::net::sendmsg(self, slices, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn shutdown(&self, how: Shutdown) {
        // This fails only for a socket that is no longer connected, which is the goal.
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(how),
            Socket::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Time-outs of single system calls; `None` waits forever.
    fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write)),
            Socket::Unix(stream) => stream.set_read_timeout(read).and_then(|()| stream.set_write_timeout(write)),
        }
    }
}

/// TLS state and the records received but not opened yet.
struct Tls {
    session: rustls::Connection,
    records: Vec<u8>,
    opened: usize,
}

impl Tls {
    fn take_records(&mut self, records: &mut Vec<u8>) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(records)?;
        }
        Ok(())
    }
}

pub(crate) struct Channel {
    socket: Socket,
    tls: OnceLock<Mutex<Tls>>,
}

/// Ciphertext asked of the socket at once (bytes): four records.
const RECORDS_BYTES: usize = 64 << 10;

impl Channel {
    pub(crate) fn new(socket: Socket) -> Channel {
        if let Socket::Tcp(stream) = &socket {
            // Replies are small and waited for; an error costs speed only.
            let _ = stream.set_nodelay(true);
            let _ = notice_vanished_peers(stream);
        }
        Channel { socket, tls: OnceLock::new() }
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.get().is_some()
    }

    pub(crate) fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        self.socket.set_timeouts(read, write)
    }

    /// Ends both directions. Threads that wait for the socket wake up.
    pub(crate) fn shutdown(&self) {
        self.socket.shutdown(Shutdown::Both);
    }

    /// Ends receiving. Bytes that the peer has already sent can still be read.
    pub(crate) fn shutdown_receiving(&self) {
        self.socket.shutdown(Shutdown::Read);
    }

    pub(crate) fn shutdown_sending(&self) {
        self.socket.shutdown(Shutdown::Write);
    }

    /// Tells the kernel what to do with unsent bytes when the socket is closed, including by the
    /// death of this process. The kernel goes on sending kept bytes, for minutes if necessary, and
    /// discards others.
    pub(crate) fn keep_unsent(&self, keep: bool) {
        // This fails only for a socket that is no longer connected.
        let _ = sockopt::set_socket_linger(&self.socket, if keep { None } else { Some(Duration::ZERO) });
    }

    /// Says goodbye to a refused peer and reads what it still sends. If the socket were closed with
    /// unread bytes, the kernel would discard the refusal before the peer reads it.
    pub(crate) fn linger(&self, deadline: Instant) {
        self.socket.shutdown(Shutdown::Write);
        let (mut waste, mut left) = ([0; 4096], 64);
        while let Ok(time) = remaining(deadline) {
            let unread = self.socket.set_timeouts(Some(time), None).and_then(|()| self.socket.recv(&mut waste));
            left -= 1;
            if left == 0 || !matches!(unread, Ok(1..)) {
                return;
            }
        }
    }

    /// Performs the TLS handshake. Everything afterwards goes through TLS.
    pub(crate) fn start_tls(&self, mut session: rustls::Connection, deadline: Instant) -> io::Result<()> {
        while session.is_handshaking() || session.wants_write() {
            let left = remaining(deadline)?;
            self.socket.set_timeouts(Some(left), Some(left))?;
            if session.wants_write() {
                session.write_tls(&mut Blocking(&self.socket))?;
                continue;
            }
            if session.read_tls(&mut Blocking(&self.socket))? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed during the TLS handshake"));
            }
            if let Err(error) = session.process_new_packets() {
                // The peer learns why, if it still listens.
                let _ = session.write_tls(&mut Blocking(&self.socket));
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
        session.set_buffer_limit(None);
        let tls = Tls { session, records: Vec::new(), opened: 0 };
        self.tls.set(Mutex::new(tls)).map_err(|_| io::Error::other("TLS was started twice"))
    }

    /// Waits for bytes; 0 at the end of the stream.
    pub(crate) fn recv(&self, out: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = self.tls.get() else { return self.socket.recv(out) };
        let mut fresh = Vec::new();
        loop {
            {
                let mut tls = tls.lock();
                let tls = &mut *tls;
                if !fresh.is_empty() {
                    tls.records = std::mem::take(&mut fresh);
                    tls.opened = 0;
                }
                loop {
                    match tls.session.reader().read(out) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        other => return other,
                    }
                    let mut rest = &tls.records[tls.opened..];
                    if rest.is_empty() {
                        break;
                    }
                    tls.opened += tls.session.read_tls(&mut rest)?;
                    tls.session
                        .process_new_packets()
                        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                }
                fresh = std::mem::take(&mut tls.records);
                tls.opened = 0;
            }
            fresh.resize(RECORDS_BYTES, 0);
            let received = self.socket.recv(&mut fresh)?;
            if received == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed without ending TLS"));
            }
            fresh.truncate(received);
        }
    }

    /// Receives bytes that have already arrived, or returns `None`. Only for a channel without TLS.
    pub(crate) fn recv_now(&self, out: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.socket, out, RecvFlags::DONTWAIT) {
            Ok((received, _)) => Ok(Some(received)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends some of the bytes as they are: only for a channel without TLS, or for TLS records.
    pub(crate) fn send_raw(&self, slices: &[IoSlice<'_>], when_full: WhenFull) -> io::Result<usize> {
        self.socket.send(slices, when_full)
    }

    /// Appends the TLS records of `plain` to `records`, with any message of TLS itself.
    pub(crate) fn seal(&self, plain: &[u8], records: &mut Vec<u8>) -> io::Result<()> {
        let Some(tls) = self.tls.get() else { return Ok(()) };
        let mut tls = tls.lock();
        tls.session.writer().write_all(plain)?;
        tls.take_records(records)
    }

    /// Appends the closing message of TLS to `records`.
    pub(crate) fn seal_farewell(&self, records: &mut Vec<u8>) -> io::Result<()> {
        let Some(tls) = self.tls.get() else { return Ok(()) };
        let mut tls = tls.lock();
        tls.session.send_close_notify();
        tls.take_records(records)
    }

    /// Returns whether TLS itself has something to send (an answer to a key update).
    pub(crate) fn wants_to_send(&self) -> bool {
        self.tls.get().is_some_and(|tls| tls.lock().session.wants_write())
    }

    /// Sends everything, and waits for it. Only for the handshake, when no other thread sends.
    pub(crate) fn send_all(&self, plain: &[u8], deadline: Instant) -> io::Result<()> {
        let mut sealed = Vec::new();
        self.seal(plain, &mut sealed)?;
        let mut rest = if self.is_tls() { &sealed[..] } else { plain };
        while !rest.is_empty() {
            self.socket.set_timeouts(None, Some(remaining(deadline)?))?;
            match self.socket.send(&[IoSlice::new(rest)], WhenFull::Wait) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(timed_out(error)),
            }
        }
        Ok(())
    }

    /// Waits for bytes, at most until the deadline.
    pub(crate) fn recv_until(&self, out: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            self.socket.set_timeouts(Some(remaining(deadline)?), None)?;
            match self.recv(out) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map_err(timed_out),
            }
        }
    }
}

/// Turns on probes. A host that is switched off sends nothing, so without probes a connection to
/// it, and everything held for it, would stay forever.
fn notice_vanished_peers(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    // Probes do not run while sent data is unacknowledged: this limit covers it (milliseconds).
    sockopt::set_tcp_user_timeout(stream, 60_000)
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "time-out"));
    }
    // A time-out of less than a tick of the kernel's clock would round to "wait forever".
    Ok(left.max(Duration::from_millis(1)))
}

/// Converts the "would block" that the kernel reports for a socket's time-out.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return io::Error::new(io::ErrorKind::TimedOut, "time-out");
    }
    error
}

/// The socket as TLS uses it during its handshake.
struct Blocking<'a>(&'a Socket);

impl Read for Blocking<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.recv(out).map_err(timed_out)
    }
}

impl Write for Blocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[IoSlice::new(bytes)], WhenFull::Wait).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcp_connection_is_probed_while_nothing_is_said() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let channel = Channel::new(Socket::Tcp(stream));
        assert!(sockopt::socket_keepalive(&channel.socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&channel.socket).unwrap(), Duration::from_secs(30));
        assert_eq!(sockopt::tcp_user_timeout(&channel.socket).unwrap(), 60_000);
    }
}
