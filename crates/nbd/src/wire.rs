//! The bytes of the NBD protocol: constants, and pure encoding and decoding.
//!
//! Source: `doc/proto.md` of the NetworkBlockDevice project. Names follow it without the `NBD_`
//! prefix. All integers are big-endian. Every decoder takes a complete message whose length the
//! caller has bounded, checks each inner length against the bytes left, and returns a typed error.
//! No input causes a panic or an allocation larger than the input. The order of messages is left to
//! `negotiation` and to the two ends of the connection.

pub mod handshake;
pub mod transmission;

/// Longest string of the protocol (names, contexts, messages), bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

/// A malformed message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("{what}: magic number is {found:#x}, expected {expected:#x}; the other side does not speak this protocol")]
    Magic { what: &'static str, expected: u64, found: u64 },
    #[error("{what}: length {found} is not between {min} and {max}")]
    Length { what: &'static str, found: u64, min: u64, max: u64 },
    #[error("{what}: value {found:#x} is not allowed here")]
    Value { what: &'static str, found: u64 },
    #[error("{what}: not UTF-8 text without NUL")]
    Text { what: &'static str },
}

/// Takes fields off the front of a message.
pub(crate) struct Fields<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(what: &'static str, message: &'a [u8]) -> Fields<'a> {
        Fields { what, rest: message }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        if len > self.rest.len() {
            let (found, max) = (len as u64, self.rest.len() as u64);
            return Err(WireError::Length { what: self.what, found, min: 0, max });
        }
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn magic32(&mut self, expected: u32) -> Result<(), WireError> {
        let found = self.u32()?;
        if found != expected {
            return Err(WireError::Magic { what: self.what, expected: expected.into(), found: found.into() });
        }
        Ok(())
    }

    pub(crate) fn magic64(&mut self, expected: u64) -> Result<(), WireError> {
        let found = self.u64()?;
        if found != expected {
            return Err(WireError::Magic { what: self.what, expected, found });
        }
        Ok(())
    }

    pub(crate) fn text(&mut self, len: usize) -> Result<String, WireError> {
        if len > TEXT_BYTES_MAX {
            let (found, max) = (len as u64, TEXT_BYTES_MAX as u64);
            return Err(WireError::Length { what: self.what, found, min: 0, max });
        }
        text(self.what, self.take(len)?)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Fails if bytes are left.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(WireError::Length { what: self.what, found: self.rest.len() as u64, min: 0, max: 0 })
    }
}

/// A string of the protocol.
pub(crate) fn text(what: &'static str, bytes: &[u8]) -> Result<String, WireError> {
    if bytes.len() > TEXT_BYTES_MAX {
        let (found, max) = (bytes.len() as u64, TEXT_BYTES_MAX as u64);
        return Err(WireError::Length { what, found, min: 0, max });
    }
    if bytes.contains(&0) {
        return Err(WireError::Text { what });
    }
    std::str::from_utf8(bytes).map(str::to_string).map_err(|_| WireError::Text { what })
}

/// A message from the other side, meant for people. Hostile bytes may end up on terminals, so only
/// printable text stays.
pub(crate) fn message(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    String::from_utf8_lossy(shown).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
