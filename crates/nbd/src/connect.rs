//! Connecting: socket, handshake, TLS.
//!
//! One deadline covers all of it. A URI that asks for TLS gets TLS or an error, never a connection
//! in the clear. Left to `client`: the use of the connection.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::address::{Place, Uri};
use crate::channel::{Channel, Socket};
use crate::client::ClientOptions;
use crate::clients::TAKEN_OVER;
use crate::negotiation::HandshakeError;
use crate::negotiation::client::{Handshake, Step, Wish};
use crate::tls::{TlsClient, TlsError};
use crate::wire::handshake::ListEntry;

/// Failure to connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{uri}: {source}; check the address and that the server runs")]
    Connect { uri: String, source: io::Error },
    #[error("{uri}: {source}")]
    Handshake { uri: String, source: HandshakeError },
    #[error("{uri}: handshake: {source}")]
    Io { uri: String, source: io::Error },
    #[error("{uri}: {source}")]
    Tls { uri: String, source: TlsError },
    #[error("{uri}: no certificates to check the server with; add ?tls-certificates=DIRECTORY")]
    NoTrust { uri: String },
}

impl ConnectError {
    /// Returns whether another client has followed this one. (The protocol has no number for it,
    /// only the words.)
    pub fn is_taken_over(&self) -> bool {
        matches!(self, ConnectError::Handshake { source, .. } if source.to_string().contains(TAKEN_OVER))
    }
}

/// Lists the exports of a server. The export name in the URI does not matter.
pub fn list(uri: &Uri, options: &ClientOptions) -> Result<Vec<ListEntry>, ConnectError> {
    let wish = Wish { tls: uri.tls, list: true, ..Wish::default() };
    match shake_hands(uri, wish, options)? {
        (_, Step::Listed(entries), _) => Ok(entries),
        _ => unreachable!("a handshake that asks for a list ends with one or with an error"),
    }
}

pub(crate) fn shake_hands(
    uri: &Uri,
    wish: Wish,
    options: &ClientOptions,
) -> Result<(Arc<Channel>, Step, Vec<u8>), ConnectError> {
    let name = || uri.to_string();
    let deadline = Instant::now() + options.connect_timeout;
    let tls = match (&options.tls, &uri.certificates, uri.tls) {
        (_, _, false) => None,
        (Some(tls), _, true) => Some(tls.clone()),
        (None, Some(directory), true) => {
            let tls = TlsClient::from_directory(directory);
            Some(tls.map_err(|source| ConnectError::Tls { uri: name(), source })?)
        }
        (None, None, true) => return Err(ConnectError::NoTrust { uri: name() }),
    };
    let socket =
        connect(uri, options.connect_timeout).map_err(|source| ConnectError::Connect { uri: name(), source })?;
    let channel = Arc::new(Channel::new(socket));
    let io = |source| ConnectError::Io { uri: name(), source };
    let mut handshake = Handshake::new(wish);
    let (mut input, mut out, mut chunk) = (Vec::new(), Vec::new(), [0; 4096]);
    loop {
        let progress = handshake.advance(&input, &mut out);
        let (consumed, step) = progress.map_err(|source| ConnectError::Handshake { uri: name(), source })?;
        input.drain(..consumed);
        channel.send_all(&out, deadline).map_err(|error| io(refusal(&channel, error, deadline)))?;
        out.clear();
        match step {
            Step::StartTls => {
                let server_name = match (&uri.server_name, &uri.place) {
                    (Some(server_name), _) => server_name.as_str(),
                    (None, Place::Tcp { host, .. }) => host.as_str(),
                    (None, Place::Unix { .. }) => "localhost",
                };
                let tls = tls.as_ref().ok_or_else(|| ConnectError::NoTrust { uri: name() })?;
                let session = tls.session(server_name).map_err(|source| ConnectError::Tls { uri: name(), source })?;
                channel.start_tls(session, deadline).map_err(io)?;
                handshake.tls_is_on(&mut out);
                channel.send_all(&out, deadline).map_err(|error| io(refusal(&channel, error, deadline)))?;
                out.clear();
            }
            Step::More if consumed > 0 => {}
            Step::More => {
                let received = channel.recv_until(&mut chunk, deadline).map_err(io)?;
                if received == 0 {
                    let message = "closed by the server; check the export's name and whether it wants TLS (nbds://)";
                    return Err(io(io::Error::new(io::ErrorKind::UnexpectedEof, message)));
                }
                input.extend_from_slice(&chunk[..received]);
            }
            done => return Ok((channel, done, input)),
        }
    }
}

/// Finds the reason why sending failed. A server that refuses our certificate says so after its
/// side of the TLS handshake, when we may already be sending. Its alert says more than "broken
/// pipe".
fn refusal(channel: &Channel, error: io::Error, deadline: Instant) -> io::Error {
    match channel.recv_until(&mut [0; 256], deadline) {
        Err(alert) if alert.kind() == io::ErrorKind::InvalidData => alert,
        _ => error,
    }
}

fn connect(uri: &Uri, timeout: Duration) -> io::Result<Socket> {
    match &uri.place {
        Place::Unix { path } => UnixStream::connect(path).map(Socket::Unix),
        Place::Tcp { host, port } => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, timeout) {
                    Ok(stream) => return Ok(Socket::Tcp(stream)),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}
