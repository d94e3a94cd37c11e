//! Extended attributes: one piece per inode, rewritten as a whole.
//!
//! Header: used bytes (u32, header included), count (u32). An attribute: name length (u8), zero (u8), zero (u16),
//! value length (u32), name with its namespace prefix, value.

use crate::{FormatError, u32_at};

pub const XATTR_HEADER: usize = 8;
pub const XATTR_ENTRY_HEADER: usize = 8;
/// Longest name, namespace included (bytes).
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value (bytes).
pub const XATTR_VALUE_MAX: usize = 65536;
/// Maximum bytes of all attributes of one inode.
pub const XATTR_TOTAL_MAX: usize = 128 << 10;

/// A name and its value.
pub type Attribute = (Vec<u8>, Vec<u8>);

/// Encodes a list of attributes.
pub fn encode(attributes: &[Attribute]) -> Vec<u8> {
    let count = |value: usize| u32::try_from(value).expect("at most `XATTR_TOTAL_MAX` bytes").to_le_bytes();
    let mut out = vec![0; XATTR_HEADER];
    for (name, value) in attributes {
        out.push(u8::try_from(name.len()).expect("a name has 255 bytes at most"));
        out.extend_from_slice(&[0; 3]);
        out.extend_from_slice(&count(value.len()));
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    }
    let used = count(out.len());
    out[..4].copy_from_slice(&used);
    out[4..8].copy_from_slice(&count(attributes.len()));
    out
}

/// Decodes a piece.
pub fn decode(bytes: &[u8]) -> Result<Vec<Attribute>, FormatError> {
    let what = "extended attributes";
    if bytes.len() < XATTR_HEADER {
        return Err(FormatError::Short { what, expected: XATTR_HEADER, found: bytes.len() });
    }
    let (used, count) = (u32_at(bytes, 0) as usize, u32_at(bytes, 4) as usize);
    if used < XATTR_HEADER || used > bytes.len() || count > used / XATTR_ENTRY_HEADER {
        return Err(FormatError::Range { what, field: "used bytes", found: used as u64 });
    }
    let mut rest = &bytes[XATTR_HEADER..used];
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        if rest.len() < XATTR_ENTRY_HEADER {
            return Err(FormatError::Short { what, expected: XATTR_ENTRY_HEADER, found: rest.len() });
        }
        let (name, value) = (rest[0] as usize, u32_at(rest, 4) as usize);
        rest = &rest[XATTR_ENTRY_HEADER..];
        if name == 0 || value > XATTR_VALUE_MAX || rest.len() < name + value {
            return Err(FormatError::Range { what, field: "lengths", found: value as u64 });
        }
        out.push((rest[..name].to_vec(), rest[name..name + value].to_vec()));
        rest = &rest[name + value..];
    }
    if !rest.is_empty() {
        return Err(FormatError::Range { what, field: "count", found: count as u64 });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_round_trip_and_cut_ones_are_refused() {
        let list = vec![(b"user.a".to_vec(), b"1".to_vec()), (b"trusted.b".to_vec(), vec![])];
        let bytes = encode(&list);
        assert_eq!(decode(&bytes), Ok(list));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err());
        }
        let mut wrong = bytes.clone();
        wrong[4] = 1;
        assert!(decode(&wrong).is_err());
    }
}
