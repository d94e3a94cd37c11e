//! The client's side of the handshake.
//!
//! The order is STARTTLS if TLS is wanted, then structured replies, contexts and GO. Each is left
//! out if the server does not know it, and EXPORT_NAME replaces GO. A client that wants TLS does
//! not go on without it. Replies are bounded in size and number, and each must belong to the option
//! that was asked last.

use super::HandshakeError;
use crate::wire::handshake::*;
use crate::wire::{self, TEXT_BYTES_MAX, WireError};

/// Longest accepted data of an option reply (bytes): a name, a description, and their lengths.
pub const REPLY_BYTES_MAX: u32 = 2 * TEXT_BYTES_MAX as u32 + 64;
/// Maximum exports accepted from a list.
pub const LIST_ENTRIES_MAX: usize = 1 << 14;
/// Largest export: offsets must fit signed 64-bit integers, as files' do.
pub const EXPORT_BYTES_MAX: u64 = i64::MAX as u64;

/// The caller's next step.
#[derive(Debug)]
pub enum Step {
    /// Send the output and call again, with more input if nothing was consumed.
    More,
    /// Do the TLS handshake and call `tls_is_on`.
    StartTls,
    /// Transmission begins.
    Agreed(Agreed),
    /// The list has come. Send the output and close.
    Listed(Vec<ListEntry>),
}

/// The outcome of a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreed {
    pub bytes: u64,
    pub flags: u16,
    /// The server's answer, or nothing if it gave none.
    pub sizes: Option<BlockSizes>,
    pub description: String,
    pub structured: bool,
    pub contexts: Vec<MetaContext>,
}

/// The client's wishes.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    pub name: String,
    pub contexts: Vec<String>,
    pub tls: bool,
    /// Ask for the list of exports instead of an export.
    pub list: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Asked(u32),
    ExportName,
}

/// What the server says of the export before its details.
#[derive(Clone, Copy)]
struct ExportSize {
    bytes: u64,
    /// Transmission flags.
    flags: u16,
}

/// One handshake.
pub struct Handshake {
    wish: Wish,
    state: State,
    zeroes: bool,
    tls: bool,
    structured: bool,
    contexts: Vec<MetaContext>,
    size: Option<ExportSize>,
    sizes: Option<BlockSizes>,
    description: String,
    entries: Vec<ListEntry>,
    replies: usize,
}

impl Handshake {
    pub fn new(wish: Wish) -> Handshake {
        Handshake {
            wish,
            state: State::Greeting,
            zeroes: true,
            tls: false,
            structured: false,
            contexts: vec![],
            size: None,
            sizes: None,
            description: String::new(),
            entries: vec![],
            replies: 0,
        }
    }

    /// Records that TLS is up, and appends the first option through it to `out`.
    pub fn tls_is_on(&mut self, out: &mut Vec<u8>) {
        self.tls = true;
        self.first_option(out);
    }

    /// Consumes at most one message. Returns how many bytes of the input were consumed.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), HandshakeError> {
        match self.state {
            State::Greeting => {
                let Some(greeting) = input.first_chunk::<GREETING_BYTES>() else { return Ok((0, Step::More)) };
                let flags = match decode_greeting(greeting) {
                    Err(WireError::Magic { found: OLDSTYLE_MAGIC, .. }) => return Err(HandshakeError::Oldstyle),
                    other => other?,
                };
                self.greeted(flags, out)?;
                Ok((GREETING_BYTES, Step::More))
            }
            State::ExportName => {
                let whole = EXPORT_NAME_REPLY_BYTES + if self.zeroes { RESERVED_ZEROES_BYTES } else { 0 };
                let Some(reply) = input.get(..whole) else { return Ok((0, Step::More)) };
                let mut fields = wire::Fields::new("export name reply", reply);
                self.size = Some(ExportSize { bytes: fields.u64()?, flags: fields.u16()? });
                Ok((whole, self.agreed()?))
            }
            State::Asked(asked) => {
                let Some(header) = input.first_chunk::<OPTION_REPLY_HEADER_BYTES>() else {
                    return Ok((0, Step::More));
                };
                let header = OptionReplyHeader::decode(header)?;
                if header.option != asked {
                    return Err(HandshakeError::WrongOption { expected: asked, found: header.option });
                }
                if header.length > REPLY_BYTES_MAX {
                    let (found, max) = (header.length.into(), REPLY_BYTES_MAX.into());
                    return Err(WireError::Length { what: "option reply", found, min: 0, max }.into());
                }
                let whole = OPTION_REPLY_HEADER_BYTES + header.length as usize;
                let Some(data) = input.get(OPTION_REPLY_HEADER_BYTES..whole) else { return Ok((0, Step::More)) };
                let step = self.reply(asked, header.kind, data, out)?;
                if matches!(step, Step::StartTls) && input.len() > whole {
                    return Err(HandshakeError::BytesBeforeTls);
                }
                Ok((whole, step))
            }
        }
    }

    fn greeted(&mut self, flags: u16, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let answer = flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        out.extend(u32::from(answer).to_be_bytes());
        self.zeroes = flags & FLAG_NO_ZEROES == 0;
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            if self.wish.tls {
                return Err(HandshakeError::NoTls { message: "it speaks no fixed newstyle".into() });
            }
            if self.wish.list {
                return Err(HandshakeError::NotFixed { option: OPT_LIST });
            }
            self.ask_by_name(out);
        } else if self.wish.tls {
            self.ask(OPT_STARTTLS, &[], out);
        } else {
            self.first_option(out);
        }
        Ok(())
    }

    fn first_option(&mut self, out: &mut Vec<u8>) {
        self.ask(if self.wish.list { OPT_LIST } else { OPT_STRUCTURED_REPLY }, &[], out);
    }

    fn ask(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        self.replies = 0;
        self.state = State::Asked(option);
        encode_option(option, data, out);
    }

    fn ask_contexts(&mut self, out: &mut Vec<u8>) {
        let request = MetaRequest { name: self.wish.name.clone(), queries: self.wish.contexts.clone() };
        self.ask(OPT_SET_META_CONTEXT, &request.encode(), out);
    }

    fn ask_go(&mut self, out: &mut Vec<u8>) {
        let request = ExportRequest { name: self.wish.name.clone(), infos: vec![INFO_BLOCK_SIZE, INFO_DESCRIPTION] };
        self.ask(OPT_GO, &request.encode(), out);
    }

    fn ask_by_name(&mut self, out: &mut Vec<u8>) {
        self.state = State::ExportName;
        encode_option(OPT_EXPORT_NAME, self.wish.name.as_bytes(), out);
    }

    fn reply(&mut self, asked: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        self.replies += 1;
        if self.replies > if asked == OPT_LIST { LIST_ENTRIES_MAX } else { LIST_ITEMS_MAX * 2 } {
            return Err(HandshakeError::TooManyReplies { option: asked });
        }
        if kind & REP_ERROR != 0 {
            return self.refused(asked, kind, data, out);
        }
        match (asked, kind) {
            (OPT_STARTTLS, REP_ACK) => return Ok(Step::StartTls),
            (OPT_LIST, REP_SERVER) => self.entries.push(ListEntry::decode(data)?),
            (OPT_LIST, REP_ACK) => {
                encode_option(OPT_ABORT, &[], out);
                return Ok(Step::Listed(std::mem::take(&mut self.entries)));
            }
            (OPT_STRUCTURED_REPLY, REP_ACK) => {
                self.structured = true;
                if self.wish.contexts.is_empty() { self.ask_go(out) } else { self.ask_contexts(out) }
            }
            (OPT_SET_META_CONTEXT, REP_META_CONTEXT) => {
                let context = MetaContext::decode(data)?;
                let twice = self.contexts.iter().any(|other| other.id == context.id || other.name == context.name);
                if twice || !self.wish.contexts.contains(&context.name) {
                    return Err(HandshakeError::WrongContext { name: context.name });
                }
                self.contexts.push(context);
            }
            (OPT_SET_META_CONTEXT, REP_ACK) => self.ask_go(out),
            (OPT_GO, REP_INFO) => match Info::decode(data)? {
                Info::Export { bytes, flags } => self.size = Some(ExportSize { bytes, flags }),
                Info::BlockSize(sizes) => self.sizes = Some(sizes),
                Info::Description(description) => self.description = wire::message(description.as_bytes()),
                Info::Name(_) | Info::Unknown(_) => {}
            },
            (OPT_GO, REP_ACK) => return self.agreed(),
            _ => return Err(HandshakeError::WrongReply { option: asked, kind }),
        }
        Ok(Step::More)
    }

    fn refused(&mut self, asked: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        let message = wire::message(data);
        match (asked, kind) {
            (_, REP_ERR_TLS_REQD) if !self.tls => return Err(HandshakeError::NeedsTls),
            (OPT_STARTTLS, _) => return Err(HandshakeError::NoTls { message }),
            // Both are optional: without them there are simple replies and no contexts.
            (OPT_STRUCTURED_REPLY, _) => self.ask_go(out),
            (OPT_SET_META_CONTEXT, _) => {
                self.contexts.clear();
                self.ask_go(out);
            }
            (OPT_GO, REP_ERR_UNSUP) => self.ask_by_name(out),
            _ => {
                let reason = reason(kind);
                let message = if message.is_empty() { message } else { format!(" ({message})") };
                return Err(HandshakeError::Refused { option: asked, reason, message });
            }
        }
        Ok(Step::More)
    }

    fn agreed(&mut self) -> Result<Step, HandshakeError> {
        let Some(ExportSize { bytes, flags }) = self.size else { return Err(HandshakeError::NoSize) };
        if bytes > EXPORT_BYTES_MAX {
            return Err(WireError::Value { what: "export size (negative as a file offset)", found: bytes }.into());
        }
        Ok(Step::Agreed(Agreed {
            bytes,
            flags,
            sizes: self.sizes,
            description: std::mem::take(&mut self.description),
            structured: self.structured,
            contexts: std::mem::take(&mut self.contexts),
        }))
    }
}

/// The meaning of an error reply, in words.
fn reason(kind: u32) -> &'static str {
    match kind {
        REP_ERR_UNSUP => "it does not know it",
        REP_ERR_POLICY => "its policy forbids it",
        REP_ERR_INVALID => "it calls it invalid",
        REP_ERR_PLATFORM => "its platform cannot do it",
        REP_ERR_UNKNOWN => "there is no export of this name",
        REP_ERR_SHUTDOWN => "it is shutting down",
        REP_ERR_BLOCK_SIZE_REQD => "it wants block sizes to be negotiated",
        REP_ERR_TOO_BIG => "it is too big",
        _ => "an unknown reason",
    }
}
