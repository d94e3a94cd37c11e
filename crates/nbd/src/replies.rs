//! The client's receiving side: every reply is checked against the request it claims to answer.
//!
//! Anything that a correct server cannot send ends the connection: an unknown cookie; a simple
//! reply where a structured one was agreed on; data outside its request, sent twice, or incomplete;
//! a payload longer than its kind can have. No memory is allocated by a length from the server
//! beyond what the request itself bounds.

use std::io;

use crate::inflight::{Expect, InFlight};
use crate::input::Input;
use crate::wire::WireError;
use crate::wire::transmission::*;

/// Maximum number of extents in one status reply.
const EXTENTS_MAX: u32 = 1 << 16;

/// A server that broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("reply to cookie {cookie:#x}, which is not in flight")]
    UnknownCookie { cookie: u64 },
    #[error("simple reply with data although structured replies were agreed on")]
    SimpleRead,
    #[error("structured reply although none were agreed on")]
    Unagreed,
    #[error("chunk of type {kind:#x} with {length} bytes does not answer its request")]
    WrongChunk { kind: u16, length: u32 },
    #[error("data for byte {at}, {len} bytes, is outside the request or was sent before")]
    WrongRange { at: u64, len: u64 },
    #[error("read called complete with {missing} bytes missing")]
    Incomplete { missing: u64 },
    #[error("more chunks for one read than its length allows")]
    TooManyChunks,
    #[error("block status of context {id} was not asked for, came twice, or is missing")]
    WrongContext { id: u32 },
}

impl From<ReplyError> for io::Error {
    fn from(error: ReplyError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// The reply to one read, as far as received.
struct Partial {
    cookie: u64,
    /// Ranges present, sorted, joined.
    present: Vec<(u64, u64)>,
    chunks: u32,
    error: Option<(u32, String)>,
}

/// Makes the error that a request fails with, from code and message.
pub(crate) type Fail<'a> = &'a dyn Fn(Expect, u32, String) -> shoal_media::MediaError;

pub(crate) struct Replies<'a> {
    pub(crate) in_flight: &'a InFlight,
    pub(crate) structured: bool,
    /// Ids of the contexts agreed on.
    pub(crate) contexts: &'a [u32],
    pub(crate) fail: Fail<'a>,
    /// Incomplete replies of several chunks; bounded by the requests in flight.
    partial: Vec<Partial>,
}

impl<'a> Replies<'a> {
    pub(crate) fn new(in_flight: &'a InFlight, structured: bool, contexts: &'a [u32], fail: Fail<'a>) -> Replies<'a> {
        Replies { in_flight, structured, contexts, fail, partial: vec![] }
    }

    /// Receives one message. Returns false at the end of the stream.
    pub(crate) fn receive(&mut self, input: &mut Input, idle: &mut dyn FnMut() -> io::Result<()>) -> io::Result<bool> {
        let Some(head) = input.header::<SIMPLE_REPLY_BYTES>(idle)? else { return Ok(false) };
        let magic = [head[0], head[1], head[2], head[3]];
        let header = if ReplyHeader::len(magic).map_err(ReplyError::from)? == SIMPLE_REPLY_BYTES {
            ReplyHeader::decode(&head)
        } else {
            const REST: usize = CHUNK_HEADER_BYTES - SIMPLE_REPLY_BYTES;
            let Some(rest) = input.header::<REST>(idle)? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let mut whole = [0; CHUNK_HEADER_BYTES];
            whole[..SIMPLE_REPLY_BYTES].copy_from_slice(&head);
            whole[SIMPLE_REPLY_BYTES..].copy_from_slice(&rest);
            ReplyHeader::decode(&whole)
        };
        match header.map_err(ReplyError::from)? {
            ReplyHeader::Simple { error, cookie } => self.simple(error, cookie, input, idle)?,
            ReplyHeader::Chunk { flags, kind, cookie, length } => {
                if !self.structured {
                    return Err(ReplyError::Unagreed.into());
                }
                self.chunk(flags, kind, cookie, length, input, idle)?;
            }
        }
        Ok(true)
    }

    fn simple(
        &mut self,
        error: u32,
        cookie: u64,
        input: &mut Input,
        idle: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let expect = self.in_flight.expected(cookie).ok_or(ReplyError::UnknownCookie { cookie })?;
        if error != 0 {
            self.partial.retain(|partial| partial.cookie != cookie);
            self.in_flight.answer(cookie, Err((self.fail)(expect, error, String::new())));
            return Ok(());
        }
        match expect {
            Expect::Nothing => {}
            Expect::Data { .. } if !self.structured => {
                let mut buffer = self.in_flight.take_buffer(cookie);
                let received = input.payload(&mut buffer, idle);
                self.in_flight.put_buffer(cookie, buffer);
                received?;
            }
            _ => return Err(ReplyError::SimpleRead.into()),
        }
        self.in_flight.answer(cookie, Ok(()));
        Ok(())
    }

    fn chunk(
        &mut self,
        flags: u16,
        kind: u16,
        cookie: u64,
        length: u32,
        input: &mut Input,
        idle: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let expect = self.in_flight.expected(cookie).ok_or(ReplyError::UnknownCookie { cookie })?;
        let wrong = ReplyError::WrongChunk { kind, length };
        let done = flags & REPLY_FLAG_DONE != 0;
        let mut error = None;
        match (kind, expect) {
            (CHUNK_NONE, _) if length == 0 && done => {}
            (CHUNK_OFFSET_DATA, Expect::Data { at, len }) if length > 8 && length - 8 <= len => {
                let mut field = [0; 8];
                input.payload(&mut field, idle)?;
                let (from, part) = (u64::from_be_bytes(field), u64::from(length - 8));
                let whole = part == u64::from(len) && done;
                // Of a part that is the whole read nothing need be remembered.
                let offset = match whole && !self.has_partial(cookie) {
                    true => offset_of(at, len, from, part)? as usize,
                    false => self.claim(cookie, at, len, from, part)?,
                };
                let mut buffer = self.in_flight.take_buffer(cookie);
                // The buffer is absent only if the connection was lost meanwhile.
                let received = match buffer.get_mut(offset..offset + part as usize) {
                    Some(out) => input.payload(out, idle),
                    None => input.skip(part as usize, idle),
                };
                self.in_flight.put_buffer(cookie, buffer);
                received?;
                if whole {
                    self.in_flight.answer(cookie, Ok(()));
                    return Ok(());
                }
            }
            (CHUNK_OFFSET_HOLE, Expect::Data { at, len }) if length == 12 => {
                let mut payload = [0; 12];
                input.payload(&mut payload, idle)?;
                let (from, part) = decode_hole(&payload).map_err(ReplyError::from)?;
                let offset = self.claim(cookie, at, len, from, part.into())?;
                let mut buffer = self.in_flight.take_buffer(cookie);
                if let Some(hole) = buffer.get_mut(offset..offset + part as usize) {
                    hole.fill(0);
                }
                self.in_flight.put_buffer(cookie, buffer);
            }
            (CHUNK_BLOCK_STATUS, Expect::Status { .. }) if length <= 4 + 8 * EXTENTS_MAX => {
                let mut payload = vec![0; length as usize];
                input.payload(&mut payload, idle)?;
                let (id, extents) = decode_block_status(&payload).map_err(ReplyError::from)?;
                if !self.contexts.contains(&id) || !self.in_flight.add_status(cookie, id, extents) {
                    return Err(ReplyError::WrongContext { id }.into());
                }
            }
            (kind, _) if kind & CHUNK_IS_ERROR != 0 && length as usize <= ERROR_CHUNK_BYTES_MAX => {
                let mut payload = vec![0; length as usize];
                input.payload(&mut payload, idle)?;
                error = Some(decode_error(kind, &payload).map_err(ReplyError::from)?);
            }
            _ => return Err(wrong.into()),
        }
        if let Some(error) = error {
            let partial = self.partial(cookie)?;
            partial.error.get_or_insert(error);
        }
        if done { self.last(cookie, expect) } else { Ok(()) }
    }

    /// Marks a part of a read as present and returns its offset in the buffer.
    fn claim(&mut self, cookie: u64, at: u64, len: u32, from: u64, part: u64) -> io::Result<usize> {
        let wrong = ReplyError::WrongRange { at: from, len: part };
        let offset = offset_of(at, len, from, part)?;
        let partial = self.partial(cookie)?;
        partial.chunks += 1;
        // Servers split at 512 bytes or more. A server that sends single bytes is trying to use up
        // memory.
        if partial.chunks > 64 + len / 512 {
            return Err(ReplyError::TooManyChunks.into());
        }
        let next = partial.present.partition_point(|(start, _)| *start < offset);
        let end = offset + part;
        let overlaps_next = partial.present.get(next).is_some_and(|(start, _)| *start < end);
        let overlaps_last = next > 0 && partial.present[next - 1].1 > offset;
        if overlaps_next || overlaps_last {
            return Err(wrong.into());
        }
        if next > 0 && partial.present[next - 1].1 == offset {
            partial.present[next - 1].1 = end;
        } else {
            partial.present.insert(next, (offset, end));
        }
        Ok(offset as usize)
    }

    /// Returns whether parts of this read have come.
    fn has_partial(&self, cookie: u64) -> bool {
        self.partial.iter().any(|partial| partial.cookie == cookie)
    }

    fn partial(&mut self, cookie: u64) -> io::Result<&mut Partial> {
        let known = self.partial.iter().position(|partial| partial.cookie == cookie);
        let at = known.unwrap_or_else(|| {
            self.partial.push(Partial { cookie, present: vec![], chunks: 0, error: None });
            self.partial.len() - 1
        });
        Ok(&mut self.partial[at])
    }

    /// Finishes a reply whose final chunk has come.
    fn last(&mut self, cookie: u64, expect: Expect) -> io::Result<()> {
        let known = self.partial.iter().position(|partial| partial.cookie == cookie);
        let partial = known.map(|at| self.partial.swap_remove(at));
        if let Some((error, message)) = partial.as_ref().and_then(|partial| partial.error.clone()) {
            self.in_flight.answer(cookie, Err((self.fail)(expect, error, message)));
            return Ok(());
        }
        match expect {
            Expect::Nothing => {}
            Expect::Data { len, .. } => {
                let present = partial.map_or(0, |partial| partial.present.iter().map(|(from, to)| to - from).sum());
                if present != u64::from(len) {
                    return Err(ReplyError::Incomplete { missing: u64::from(len) - present }.into());
                }
            }
            Expect::Status { .. } => {
                if self.in_flight.statuses(cookie) != self.contexts.len() {
                    return Err(ReplyError::WrongContext { id: 0 }.into());
                }
            }
        }
        self.in_flight.answer(cookie, Ok(()));
        Ok(())
    }
}

/// Returns where a part of a read of `len` bytes at `at` begins in its buffer.
fn offset_of(at: u64, len: u32, from: u64, part: u64) -> Result<u64, ReplyError> {
    let offset = from.checked_sub(at).filter(|offset| *offset <= u64::from(len));
    let fits = offset.filter(|offset| part <= u64::from(len) - offset);
    fits.ok_or(ReplyError::WrongRange { at: from, len: part })
}
