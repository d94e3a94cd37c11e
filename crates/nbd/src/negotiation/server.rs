//! The server's side of the handshake.
//!
//! The server speaks fixed newstyle. If TLS is configured, it is required: every option but
//! STARTTLS and ABORT is refused before it, and structured replies and contexts agreed on before it
//! are forgotten. Options are counted and their data is bounded: data too long to be legal is
//! skipped and refused, data far too long ends the connection.

use std::sync::Arc;

use super::HandshakeError;
use crate::clients::{Claim, Ticket};
use crate::export::{BlockStatus, Catalog, Export, Peer, Refusal};
use crate::limits::{Limits, OPTION_SKIP_BYTES_MAX};
use crate::wire::handshake::*;
use crate::wire::{TEXT_BYTES_MAX, WireError};

/// The caller's next step.
#[derive(Debug)]
pub enum Step {
    /// Send the output and call again, with more input if nothing was consumed.
    More,
    /// Send the output, then do the TLS handshake and call `tls_is_on`.
    StartTls,
    /// Send the output, then serve requests.
    Transmission(Session),
    /// Send the output and close: the client is done.
    Closed,
}

/// The outcome of a handshake.
pub struct Session {
    pub export: Arc<Export>,
    pub structured: bool,
    pub contexts: Contexts,
    /// Present if the connection named its client.
    pub(crate) ticket: Option<Ticket>,
}

/// Id of the context that names a connection's client. No request may use it.
const CLAIM_ID: u32 = 1 << 30;

/// Selected contexts with their ids.
pub type Contexts = Vec<(u32, Arc<dyn BlockStatus>)>;

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<u32> = self.contexts.iter().map(|(id, _)| *id).collect();
        write!(f, "Session({:?}, structured {}, contexts {ids:?})", self.export, self.structured)
    }
}

enum State {
    Flags,
    Option,
    /// Data of a refused option that is still to be skipped (bytes).
    Skip {
        left: u32,
    },
}

/// One handshake.
pub struct Handshake<'a> {
    catalog: &'a dyn Catalog,
    limits: &'a Limits,
    peer: Peer,
    tls_required: bool,
    closing: bool,
    state: State,
    fixed: bool,
    zeroes: bool,
    structured: bool,
    /// The export's name and the contexts of the last SET_META_CONTEXT.
    contexts: Option<(String, Contexts)>,
    /// The connection's client, if it named one.
    claim: Option<Claim>,
    options: u32,
}

/// A refusal of one option: reply type and message.
type Refused = (u32, String);

impl<'a> Handshake<'a> {
    /// Begins a handshake, with the greeting in `out`.
    pub fn new(
        catalog: &'a dyn Catalog,
        limits: &'a Limits,
        peer: Peer,
        tls_required: bool,
        out: &mut Vec<u8>,
    ) -> Handshake<'a> {
        encode_greeting(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES, out);
        Handshake {
            catalog,
            limits,
            peer,
            tls_required,
            closing: false,
            state: State::Flags,
            fixed: false,
            zeroes: true,
            structured: false,
            contexts: None,
            claim: None,
            options: 0,
        }
    }

    /// Refuses every option but ABORT from now on.
    pub fn shut_down(&mut self) {
        self.closing = true;
    }

    /// Records that TLS is up. Nothing agreed on before counts any more.
    pub fn tls_is_on(&mut self) {
        self.peer.tls = true;
        self.structured = false;
        self.contexts = None;
        self.claim = None;
    }

    /// Consumes at most one message. Returns how many bytes of the input were consumed.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Step), HandshakeError> {
        match self.state {
            State::Flags => {
                let Some(flags) = input.first_chunk::<CLIENT_FLAGS_BYTES>() else { return Ok((0, Step::More)) };
                let flags = u32::from_be_bytes(*flags);
                if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
                    return Err(HandshakeError::ClientFlags { found: flags });
                }
                self.fixed = flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0;
                self.zeroes = flags & u32::from(FLAG_NO_ZEROES) == 0;
                self.state = State::Option;
                Ok((CLIENT_FLAGS_BYTES, Step::More))
            }
            State::Skip { left } => {
                let skipped = left.min(input.len() as u32);
                self.state = if skipped == left { State::Option } else { State::Skip { left: left - skipped } };
                Ok((skipped as usize, Step::More))
            }
            State::Option => {
                let Some(header) = input.first_chunk::<OPTION_HEADER_BYTES>() else { return Ok((0, Step::More)) };
                let OptionHeader { option, length } = OptionHeader::decode(header)?;
                let max = if option == OPT_EXPORT_NAME { TEXT_BYTES_MAX as u32 } else { OPTION_SKIP_BYTES_MAX };
                if length > max {
                    return Err(HandshakeError::OptionTooLong { option, length, max });
                }
                if self.options >= self.limits.options {
                    return Err(HandshakeError::TooManyOptions { max: self.limits.options });
                }
                if length > self.limits.option_bytes.max(TEXT_BYTES_MAX as u32) {
                    self.options += 1;
                    self.state = State::Skip { left: length };
                    encode_option_reply(option, REP_ERR_TOO_BIG, b"option data too long", out);
                    return Ok((OPTION_HEADER_BYTES, Step::More));
                }
                let whole = OPTION_HEADER_BYTES + length as usize;
                let Some(data) = input.get(OPTION_HEADER_BYTES..whole) else { return Ok((0, Step::More)) };
                self.options += 1;
                let step = self.option(option, data, out)?;
                if matches!(step, Step::StartTls) && input.len() > whole {
                    return Err(HandshakeError::BytesBeforeTls);
                }
                Ok((whole, step))
            }
        }
    }

    fn option(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        if option == OPT_EXPORT_NAME {
            return self.export_name(data, out);
        }
        if !self.fixed {
            return Err(HandshakeError::NotFixed { option });
        }
        if option == OPT_ABORT {
            encode_option_reply(option, REP_ACK, &[], out);
            return Ok(Step::Closed);
        }
        let refusal = if self.closing {
            Err((REP_ERR_SHUTDOWN, "the server is shutting down".to_string()))
        } else if self.tls_required && !self.peer.tls && option != OPT_STARTTLS {
            Err((REP_ERR_TLS_REQD, "this server requires TLS".to_string()))
        } else {
            self.haggle(option, data, out)
        };
        match refusal {
            Ok(step) => {
                encode_option_reply(option, REP_ACK, &[], out);
                Ok(step)
            }
            Err((kind, message)) => {
                let shown = &message.as_bytes()[..message.len().min(TEXT_BYTES_MAX)];
                encode_option_reply(option, kind, shown, out);
                Ok(Step::More)
            }
        }
    }

    /// Carries out an option that can be refused. The caller adds the final reply.
    fn haggle(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        match option {
            OPT_LIST => {
                no_data(data)?;
                for entry in self.catalog.list(&self.peer) {
                    encode_option_reply(option, REP_SERVER, &entry.encode(), out);
                }
                Ok(Step::More)
            }
            OPT_STARTTLS => {
                no_data(data)?;
                match (self.tls_required, self.peer.tls) {
                    (false, _) => Err((REP_ERR_POLICY, "no TLS configured here".into())),
                    (true, true) => Err((REP_ERR_INVALID, "TLS is on already".into())),
                    (true, false) => Ok(Step::StartTls),
                }
            }
            OPT_INFO | OPT_GO => self.info_or_go(option, data, out),
            OPT_STRUCTURED_REPLY => {
                no_data(data)?;
                self.structured = true;
                Ok(Step::More)
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.meta_context(option, data, out),
            _ => Err((REP_ERR_UNSUP, "unknown option".into())),
        }
    }

    fn info_or_go(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        let request = ExportRequest::decode(data).map_err(invalid)?;
        let export = self.find(&request.name)?;
        let mut infos = vec![
            Info::Export { bytes: export.bytes(), flags: export.flags(self.structured) },
            Info::BlockSize(export.sizes),
        ];
        if request.infos.contains(&INFO_NAME) {
            infos.push(Info::Name(export.name.clone()));
        }
        if request.infos.contains(&INFO_DESCRIPTION) && !export.description.is_empty() {
            infos.push(Info::Description(export.description.clone()));
        }
        for info in infos {
            encode_option_reply(option, REP_INFO, &info.encode(), out);
        }
        if option == OPT_INFO {
            return Ok(Step::More);
        }
        // In this last step, older connections are ended.
        let clients = export.clients.clone();
        let ticket = match (self.claim.take(), clients) {
            (Some(claim @ Claim::Ask(..)), Some(clients)) => {
                clients.ask(claim).map_err(|why| (REP_ERR_POLICY, why))?;
                None
            }
            (Some(claim), Some(clients)) => Some(clients.admit(claim).map_err(|why| (REP_ERR_POLICY, why))?),
            _ => None,
        };
        let session = self.session(export, &request.name);
        Ok(Step::Transmission(Session { ticket, ..session }))
    }

    fn meta_context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Step, Refused> {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            // Clear them even if the option fails: a client must not go on with contexts it tried
            // to replace.
            self.contexts = None;
            self.claim = None;
        }
        if !self.structured {
            return Err((REP_ERR_INVALID, "negotiate structured replies first".into()));
        }
        let request = MetaRequest::decode(data).map_err(invalid)?;
        if request.queries.iter().any(|query| query.find(':').is_none_or(|at| at == 0)) {
            return Err((REP_ERR_INVALID, "a query is `namespace:leaf`".into()));
        }
        let export = self.find(&request.name)?;
        if set && export.clients.is_some() {
            let claim = request.queries.iter().find_map(|query| Claim::parse(query));
            if let Some(claim) = claim {
                let reply = MetaContext { id: CLAIM_ID, name: claim.context() };
                encode_option_reply(option, REP_META_CONTEXT, &reply.encode(), out);
            }
            self.claim = claim;
        }
        let contexts = export.matching(&request.queries, !set);
        for (id, context) in &contexts {
            let id = if set { *id } else { 0 };
            let reply = MetaContext { id, name: context.context().to_string() };
            encode_option_reply(option, REP_META_CONTEXT, &reply.encode(), out);
        }
        if set {
            self.contexts = Some((request.name, contexts));
        }
        Ok(Step::More)
    }

    /// Carries out the one option that can be refused only by closing.
    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Step, HandshakeError> {
        let name = decode_name(data)?;
        if self.tls_required && !self.peer.tls {
            return Err(HandshakeError::TlsRequired { name });
        }
        let refused = |why| HandshakeError::Export { name: name.clone(), why };
        if self.closing {
            return Err(refused(Refusal::Policy { reason: "the server is shutting down".into() }));
        }
        let export = self.catalog.find(&name, &self.peer).map_err(refused)?;
        out.extend(export.bytes().to_be_bytes());
        out.extend(export.flags(self.structured).to_be_bytes());
        if self.zeroes {
            out.extend([0; RESERVED_ZEROES_BYTES]);
        }
        Ok(Step::Transmission(self.session(export, &name)))
    }

    fn find(&self, name: &str) -> Result<Arc<Export>, Refused> {
        self.catalog.find(name, &self.peer).map_err(|why| match why {
            Refusal::Unknown => (REP_ERR_UNKNOWN, "no export of this name".into()),
            Refusal::Policy { reason } => (REP_ERR_POLICY, reason),
        })
    }

    fn session(&mut self, export: Arc<Export>, name: &str) -> Session {
        // Contexts count only for the export they were asked for.
        let contexts = self.contexts.take().filter(|(of, _)| of == name).map(|(_, contexts)| contexts);
        Session { export, structured: self.structured, contexts: contexts.unwrap_or_default(), ticket: None }
    }
}

fn no_data(data: &[u8]) -> Result<(), Refused> {
    if data.is_empty() { Ok(()) } else { Err((REP_ERR_INVALID, "this option takes no data".into())) }
}

fn invalid(error: WireError) -> Refused {
    let kind = match &error {
        WireError::Length { max, .. } if *max == TEXT_BYTES_MAX as u64 => REP_ERR_TOO_BIG,
        WireError::Length { what: "metadata queries" | "information requests", .. } => REP_ERR_TOO_BIG,
        _ => REP_ERR_INVALID,
    };
    (kind, error.to_string())
}
