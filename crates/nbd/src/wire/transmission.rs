//! Messages of the transmission phase: requests, simple replies, structured reply chunks.
//!
//! Headers have a fixed size and fit a `Head`, so that sending needs no allocation. Payloads of
//! chunks are decoded from exactly their bytes. The client checks whether a cookie is known and a
//! range lies within its request.

use super::{Fields, TEXT_BYTES_MAX, WireError, message};

pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

pub const FLAG_HAS_FLAGS: u16 = 1;
pub const FLAG_READ_ONLY: u16 = 1 << 1;
pub const FLAG_SEND_FLUSH: u16 = 1 << 2;
pub const FLAG_SEND_FUA: u16 = 1 << 3;
pub const FLAG_ROTATIONAL: u16 = 1 << 4;
pub const FLAG_SEND_TRIM: u16 = 1 << 5;
pub const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const FLAG_SEND_DF: u16 = 1 << 7;
pub const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub const FLAG_SEND_CACHE: u16 = 1 << 10;
pub const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

pub const CMD_FLAG_FUA: u16 = 1;
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub const CMD_FLAG_DF: u16 = 1 << 2;
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

pub const REPLY_FLAG_DONE: u16 = 1;

pub const CHUNK_NONE: u16 = 0;
pub const CHUNK_OFFSET_DATA: u16 = 1;
pub const CHUNK_OFFSET_HOLE: u16 = 2;
pub const CHUNK_BLOCK_STATUS: u16 = 5;
/// Set in every chunk type that is an error.
pub const CHUNK_IS_ERROR: u16 = 1 << 15;
pub const CHUNK_ERROR: u16 = CHUNK_IS_ERROR | 1;
pub const CHUNK_ERROR_OFFSET: u16 = CHUNK_IS_ERROR | 2;

pub const STATE_HOLE: u32 = 1;
pub const STATE_ZERO: u32 = 2;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const ENOMEM: u32 = 12;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

pub const REQUEST_BYTES: usize = 28;
pub const SIMPLE_REPLY_BYTES: usize = 16;
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Longest payload of an error chunk: code, message length, message, and the offset or any fields
/// that a later version adds.
pub const ERROR_CHUNK_BYTES_MAX: usize = 6 + TEXT_BYTES_MAX + 64;

/// A header of any message, without allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; 32],
    len: u8,
}

impl Head {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    fn with(mut self, field: &[u8]) -> Head {
        let len = self.len as usize;
        self.bytes[len..len + field.len()].copy_from_slice(field);
        self.len += field.len() as u8;
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub at: u64,
    pub len: u32,
}

impl RequestHeader {
    pub fn decode(message: &[u8; REQUEST_BYTES]) -> Result<RequestHeader, WireError> {
        let mut fields = Fields::new("request", message);
        fields.magic32(REQUEST_MAGIC)?;
        Ok(RequestHeader {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            at: fields.u64()?,
            len: fields.u32()?,
        })
    }

    pub fn encode(&self) -> Head {
        Head::default()
            .with(&REQUEST_MAGIC.to_be_bytes())
            .with(&self.flags.to_be_bytes())
            .with(&self.command.to_be_bytes())
            .with(&self.cookie.to_be_bytes())
            .with(&self.at.to_be_bytes())
            .with(&self.len.to_be_bytes())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// The data of a successful read follows.
    Simple { error: u32, cookie: u64 },
    /// `length` bytes of payload follow.
    Chunk { flags: u16, kind: u16, cookie: u64, length: u32 },
}

impl ReplyHeader {
    /// Length of the header that begins with these bytes.
    pub fn len(magic: [u8; 4]) -> Result<usize, WireError> {
        match u32::from_be_bytes(magic) {
            SIMPLE_REPLY_MAGIC => Ok(SIMPLE_REPLY_BYTES),
            CHUNK_MAGIC => Ok(CHUNK_HEADER_BYTES),
            found => Err(WireError::Magic { what: "reply", expected: SIMPLE_REPLY_MAGIC.into(), found: found.into() }),
        }
    }

    pub fn decode(message: &[u8]) -> Result<ReplyHeader, WireError> {
        let mut fields = Fields::new("reply", message);
        if fields.u32()? == SIMPLE_REPLY_MAGIC {
            return Ok(ReplyHeader::Simple { error: fields.u32()?, cookie: fields.u64()? });
        }
        let mut fields = Fields::new("reply chunk", message);
        fields.magic32(CHUNK_MAGIC)?;
        Ok(ReplyHeader::Chunk {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            length: fields.u32()?,
        })
    }
}

pub fn encode_simple_reply(error: u32, cookie: u64) -> Head {
    Head::default().with(&SIMPLE_REPLY_MAGIC.to_be_bytes()).with(&error.to_be_bytes()).with(&cookie.to_be_bytes())
}

pub fn encode_chunk(flags: u16, kind: u16, cookie: u64, length: u32) -> Head {
    Head::default()
        .with(&CHUNK_MAGIC.to_be_bytes())
        .with(&flags.to_be_bytes())
        .with(&kind.to_be_bytes())
        .with(&cookie.to_be_bytes())
        .with(&length.to_be_bytes())
}

/// Header of a final data chunk. `len` bytes follow.
pub fn encode_data_chunk(cookie: u64, at: u64, len: u32) -> Head {
    encode_chunk(REPLY_FLAG_DONE, CHUNK_OFFSET_DATA, cookie, len + 8).with(&at.to_be_bytes())
}

/// A final error chunk: header, and payload with the message.
pub fn encode_error_chunk(cookie: u64, error: u32, message: &str) -> (Head, Vec<u8>) {
    let mut end = message.len().min(TEXT_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let mut payload = error.to_be_bytes().to_vec();
    payload.extend((end as u16).to_be_bytes());
    payload.extend(&message.as_bytes()[..end]);
    (encode_chunk(REPLY_FLAG_DONE, CHUNK_ERROR, cookie, payload.len() as u32), payload)
}

/// Payload of an error chunk of any kind: the code and the message.
pub fn decode_error(kind: u16, payload: &[u8]) -> Result<(u32, String), WireError> {
    let mut fields = Fields::new("error chunk", payload);
    let error = fields.u32()?;
    let message_bytes = fields.u16()? as usize;
    if message_bytes > TEXT_BYTES_MAX {
        let (found, max) = (message_bytes as u64, TEXT_BYTES_MAX as u64);
        return Err(WireError::Length { what: "error message", found, min: 0, max });
    }
    let text = message(fields.take(message_bytes)?);
    if kind == CHUNK_ERROR_OFFSET {
        fields.u64()?;
    }
    if error == 0 {
        return Err(WireError::Value { what: "error code of an error chunk", found: 0 });
    }
    Ok((error, text))
}

/// Decodes the payload of a hole: its offset and length.
pub fn decode_hole(payload: &[u8]) -> Result<(u64, u32), WireError> {
    let mut fields = Fields::new("hole chunk", payload);
    let (at, len) = (fields.u64()?, fields.u32()?);
    fields.end()?;
    if len == 0 {
        return Err(WireError::Value { what: "length of a hole", found: 0 });
    }
    Ok((at, len))
}

/// A run of bytes with one status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub len: u32,
    pub flags: u32,
}

/// Decodes the payload of a block status chunk: the context's id and the extents, none of them
/// empty.
pub fn decode_block_status(payload: &[u8]) -> Result<(u32, Vec<Extent>), WireError> {
    let mut fields = Fields::new("block status chunk", payload);
    let id = fields.u32()?;
    let (count, odd) = (fields.left() / 8, fields.left() % 8);
    if count == 0 || odd != 0 {
        let found = payload.len() as u64;
        return Err(WireError::Length { what: "block status chunk", found, min: 12, max: u32::MAX.into() });
    }
    let mut extents = Vec::with_capacity(count);
    for _ in 0..count {
        let extent = Extent { len: fields.u32()?, flags: fields.u32()? };
        if extent.len == 0 {
            return Err(WireError::Value { what: "length of an extent", found: 0 });
        }
        extents.push(extent);
    }
    Ok((id, extents))
}

/// Payload of a block status chunk.
pub fn encode_block_status(id: u32, extents: &[Extent]) -> Vec<u8> {
    let mut payload = id.to_be_bytes().to_vec();
    for extent in extents {
        payload.extend(extent.len.to_be_bytes());
        payload.extend(extent.flags.to_be_bytes());
    }
    payload
}
