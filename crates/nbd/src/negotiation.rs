//! The handshake as state machines without I/O: bytes in, bytes and one step out.
//!
//! Both sides work alike: `advance` looks at the input, consumes at most one message of it, appends
//! what must be sent, and says how to go on. The caller moves bytes, keeps the deadline, and
//! upgrades to TLS when told. Nothing learnt before TLS counts after it. Bytes that arrived before
//! the upgrade are never read as if they came through TLS.

pub mod client;
pub mod server;

use crate::export::Refusal;
use crate::wire::WireError;

/// A handshake that ended without agreement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("client flags {found:#x} contain unknown bits")]
    ClientFlags { found: u32 },
    #[error("option {option} needs fixed newstyle negotiation, which the other side does not speak")]
    NotFixed { option: u32 },
    #[error("option {option} has {length} bytes of data, at most {max} are taken")]
    OptionTooLong { option: u32, length: u32, max: u32 },
    #[error("more than {max} options in one handshake")]
    TooManyOptions { max: u32 },
    #[error("export {name:?} asked for without TLS, which this server requires")]
    TlsRequired { name: String },
    #[error("export {name:?}: {why}")]
    Export { name: String, why: Refusal },
    #[error("data followed STARTTLS before TLS began; somebody may be injecting commands")]
    BytesBeforeTls,
    #[error("the server speaks the old handshake without options; use a newer server")]
    Oldstyle,
    #[error("the server has no TLS ({message}); use nbd:// if an open connection is acceptable")]
    NoTls { message: String },
    #[error("the server requires TLS; use an nbds:// address and name the certificates")]
    NeedsTls,
    #[error("the server refused option {option}: {reason}{message}")]
    Refused { option: u32, reason: &'static str, message: String },
    #[error("reply to option {found} while option {expected} was asked")]
    WrongOption { expected: u32, found: u32 },
    #[error("reply of type {kind:#x} does not belong to option {option}")]
    WrongReply { option: u32, kind: u32 },
    #[error("more replies to option {option} than are taken")]
    TooManyReplies { option: u32 },
    #[error("the server agreed to the export without saying its size")]
    NoSize,
    #[error("the server gave metadata context {name:?}, which was not asked for, or gave one twice")]
    WrongContext { name: String },
}
