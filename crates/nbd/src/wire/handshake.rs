//! Messages of the handshake: greeting, options, option replies.
//!
//! `decode` functions take exactly the bytes of one message (or of the data after its header).
//! Headers have a fixed size. The order of messages and the limits on their number are left to
//! `negotiation`.

use super::{Fields, TEXT_BYTES_MAX, WireError, text};

/// ASCII "NBDMAGIC".
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// ASCII "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Follows `INIT_MAGIC` in the old handshake without options.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

pub const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub const FLAG_NO_ZEROES: u16 = 2;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;
/// 64-bit lengths. Refused here, since requests are at most 32 MiB anyway.
pub const OPT_EXTENDED_HEADERS: u32 = 11;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
/// Set in every reply type that is an error.
pub const REP_ERROR: u32 = 1 << 31;
pub const REP_ERR_UNSUP: u32 = REP_ERROR | 1;
pub const REP_ERR_POLICY: u32 = REP_ERROR | 2;
pub const REP_ERR_INVALID: u32 = REP_ERROR | 3;
pub const REP_ERR_PLATFORM: u32 = REP_ERROR | 4;
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR | 5;
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR | 7;
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR | 8;
pub const REP_ERR_TOO_BIG: u32 = REP_ERROR | 9;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;

pub const GREETING_BYTES: usize = 18;
pub const CLIENT_FLAGS_BYTES: usize = 4;
pub const OPTION_HEADER_BYTES: usize = 16;
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Length of the reply to `OPT_EXPORT_NAME`, and of the reserved zeroes that may follow it.
pub const EXPORT_NAME_REPLY_BYTES: usize = 10;
pub const RESERVED_ZEROES_BYTES: usize = 124;

/// Maximum information requests or context queries of one option.
pub const LIST_ITEMS_MAX: usize = 64;

/// Decodes the server's first message and returns the handshake flags.
pub fn decode_greeting(message: &[u8; GREETING_BYTES]) -> Result<u16, WireError> {
    let mut fields = Fields::new("greeting", message);
    fields.magic64(INIT_MAGIC)?;
    fields.magic64(OPTION_MAGIC)?;
    fields.u16()
}

pub fn encode_greeting(flags: u16, out: &mut Vec<u8>) {
    out.extend(INIT_MAGIC.to_be_bytes());
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(flags.to_be_bytes());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    pub option: u32,
    pub length: u32,
}

impl OptionHeader {
    pub fn decode(message: &[u8; OPTION_HEADER_BYTES]) -> Result<OptionHeader, WireError> {
        let mut fields = Fields::new("option", message);
        fields.magic64(OPTION_MAGIC)?;
        Ok(OptionHeader { option: fields.u32()?, length: fields.u32()? })
    }
}

/// Appends an option with its data.
pub fn encode_option(option: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionReplyHeader {
    pub option: u32,
    pub kind: u32,
    pub length: u32,
}

impl OptionReplyHeader {
    pub fn decode(message: &[u8; OPTION_REPLY_HEADER_BYTES]) -> Result<OptionReplyHeader, WireError> {
        let mut fields = Fields::new("option reply", message);
        fields.magic64(OPTION_REPLY_MAGIC)?;
        Ok(OptionReplyHeader { option: fields.u32()?, kind: fields.u32()?, length: fields.u32()? })
    }
}

pub fn encode_option_reply(option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// Data of `OPT_INFO` and `OPT_GO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportRequest {
    pub name: String,
    pub infos: Vec<u16>,
}

impl ExportRequest {
    pub fn decode(data: &[u8]) -> Result<ExportRequest, WireError> {
        let mut fields = Fields::new("export request", data);
        let name_bytes = fields.u32()? as usize;
        let name = fields.text(name_bytes)?;
        let count = fields.u16()? as usize;
        if count > LIST_ITEMS_MAX {
            let what = "information requests";
            return Err(WireError::Length { what, found: count as u64, min: 0, max: LIST_ITEMS_MAX as u64 });
        }
        let infos = (0..count).map(|_| fields.u16()).collect::<Result<_, _>>()?;
        fields.end()?;
        Ok(ExportRequest { name, infos })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut data = (self.name.len() as u32).to_be_bytes().to_vec();
        data.extend(self.name.as_bytes());
        data.extend((self.infos.len() as u16).to_be_bytes());
        self.infos.iter().for_each(|info| data.extend(info.to_be_bytes()));
        data
    }
}

/// Data of `OPT_LIST_META_CONTEXT` and `OPT_SET_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest {
    pub name: String,
    pub queries: Vec<String>,
}

impl MetaRequest {
    pub fn decode(data: &[u8]) -> Result<MetaRequest, WireError> {
        let mut fields = Fields::new("metadata request", data);
        let name_bytes = fields.u32()? as usize;
        let name = fields.text(name_bytes)?;
        let count = fields.u32()? as usize;
        if count > LIST_ITEMS_MAX {
            let what = "metadata queries";
            return Err(WireError::Length { what, found: count as u64, min: 0, max: LIST_ITEMS_MAX as u64 });
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            let bytes = fields.u32()? as usize;
            queries.push(fields.text(bytes)?);
        }
        fields.end()?;
        Ok(MetaRequest { name, queries })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut data = (self.name.len() as u32).to_be_bytes().to_vec();
        data.extend(self.name.as_bytes());
        data.extend((self.queries.len() as u32).to_be_bytes());
        for query in &self.queries {
            data.extend((query.len() as u32).to_be_bytes());
            data.extend(query.as_bytes());
        }
        data
    }
}

/// Decodes an export name, the data of `OPT_EXPORT_NAME`.
pub fn decode_name(data: &[u8]) -> Result<String, WireError> {
    text("export name", data)
}

/// Sizes that requests must keep to (bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    pub minimum: u32,
    pub preferred: u32,
    pub maximum: u32,
}

/// One piece of information about an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Info {
    Export { bytes: u64, flags: u16 },
    Name(String),
    Description(String),
    BlockSize(BlockSizes),
    Unknown(u16),
}

impl Info {
    pub fn decode(data: &[u8]) -> Result<Info, WireError> {
        let mut fields = Fields::new("export information", data);
        let info = match fields.u16()? {
            INFO_EXPORT => Info::Export { bytes: fields.u64()?, flags: fields.u16()? },
            INFO_NAME => Info::Name(text("export name", fields.rest())?),
            INFO_DESCRIPTION => Info::Description(text("export description", fields.rest())?),
            INFO_BLOCK_SIZE => {
                let sizes = BlockSizes { minimum: fields.u32()?, preferred: fields.u32()?, maximum: fields.u32()? };
                sizes.check()?;
                Info::BlockSize(sizes)
            }
            unknown => {
                fields.rest();
                Info::Unknown(unknown)
            }
        };
        fields.end()?;
        Ok(info)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut data = Vec::new();
        match self {
            Info::Export { bytes, flags } => {
                data.extend(INFO_EXPORT.to_be_bytes());
                data.extend(bytes.to_be_bytes());
                data.extend(flags.to_be_bytes());
            }
            Info::Name(name) => {
                data.extend(INFO_NAME.to_be_bytes());
                data.extend(name.as_bytes());
            }
            Info::Description(description) => {
                data.extend(INFO_DESCRIPTION.to_be_bytes());
                data.extend(description.as_bytes());
            }
            Info::BlockSize(sizes) => {
                data.extend(INFO_BLOCK_SIZE.to_be_bytes());
                data.extend(sizes.minimum.to_be_bytes());
                data.extend(sizes.preferred.to_be_bytes());
                data.extend(sizes.maximum.to_be_bytes());
            }
            Info::Unknown(kind) => data.extend(kind.to_be_bytes()),
        }
        data
    }
}

impl BlockSizes {
    /// Checks the protocol's rules: a minimum of 1 byte to 64 KiB; minimum and preferred size are
    /// powers of two; the maximum is a multiple of the minimum, or unbounded.
    pub fn check(&self) -> Result<(), WireError> {
        let wrong = |what, found: u32| Err(WireError::Value { what, found: found.into() });
        if !self.minimum.is_power_of_two() || self.minimum > 1 << 16 {
            return wrong("minimum block size", self.minimum);
        }
        if !self.preferred.is_power_of_two() || self.preferred < self.minimum {
            return wrong("preferred block size", self.preferred);
        }
        if self.maximum < self.minimum || self.maximum != u32::MAX && !self.maximum.is_multiple_of(self.minimum) {
            return wrong("maximum block size", self.maximum);
        }
        Ok(())
    }
}

/// Data of `REP_SERVER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry {
    pub name: String,
    pub description: String,
}

impl ListEntry {
    pub fn decode(data: &[u8]) -> Result<ListEntry, WireError> {
        let mut fields = Fields::new("list entry", data);
        let name_bytes = fields.u32()? as usize;
        Ok(ListEntry { name: fields.text(name_bytes)?, description: text("export description", fields.rest())? })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut data = (self.name.len() as u32).to_be_bytes().to_vec();
        data.extend(self.name.as_bytes());
        data.extend(self.description.as_bytes());
        data
    }
}

/// Data of `REP_META_CONTEXT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaContext {
    pub id: u32,
    pub name: String,
}

impl MetaContext {
    pub fn decode(data: &[u8]) -> Result<MetaContext, WireError> {
        let mut fields = Fields::new("metadata context", data);
        Ok(MetaContext { id: fields.u32()?, name: text("metadata context", fields.rest())? })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut data = self.id.to_be_bytes().to_vec();
        data.extend(self.name.as_bytes());
        data
    }
}

const _: () = assert!(TEXT_BYTES_MAX < u16::MAX as usize, "a name and its header fit an option's 64 KiB");
