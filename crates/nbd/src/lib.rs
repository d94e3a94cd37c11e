//! Linux's network block device protocol: a server for any `BlockDevice`, and a client that is one.
//!
//! `wire` has the bytes, `negotiation` the handshake as state machines without I/O, `limits` the
//! limits on a peer. Server: `export` (what is offered), `clients` (the client of an export),
//! `server` (listening), `guests` (connections), `pool` (their memory), `session` (requests).
//! Client: `connect`, `client`, `inflight`, `replies`, `pieces`; `link` is a client that connects
//! again. Both use `channel` (socket, TLS), `input` and `busy_poll` (receiving) and `outbox`
//! (sending). Threads: each connection has one thread that receives, and one that sends what no
//! other thread could send without waiting.
//! Left out: oldstyle, extended headers (refused), TLS with pre-shared keys, resizing.

#![forbid(unsafe_code)]

pub mod address;
mod busy_poll;
mod channel;
pub mod client;
mod clients;
pub mod connect;
pub mod export;
mod guests;
mod inflight;
mod input;
pub mod limits;
pub mod link;
pub mod negotiation;
mod outbox;
mod pieces;
mod pool;
pub mod replies;
pub mod server;
mod session;
pub mod tls;
pub mod wire;

pub use address::{Listen, Uri};
pub use client::{Client, ClientOptions, Lost};
pub use clients::{Claim, ClientId, Clients, TAKEN_OVER};
pub use connect::{ConnectError, list};
pub use export::{BlockStatus, Catalog, Export, Peer, Refusal};
pub use limits::Limits;
pub use link::{Link, LinkOptions, Reliance, Witness};
pub use server::{Server, ServerError, ServerOptions};
pub use tls::{TlsClient, TlsServer};
pub use wire::transmission::Extent;
