//! Uuids: random ones for new disks and stores, and how they are written.
//!
//! Left out: what a uuid stands for. On media it is 16 bytes, as the layouts have it.

use crate::failure::{During, Outcome};

/// A random uuid (version 4).
pub fn new_uuid() -> Outcome<[u8; 16]> {
    let mut uuid: [u8; 16] = shoal_host::random_bytes().during("random numbers")?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&i) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}

/// Reads what [`uuid_text`] writes; dashes may be anywhere, or nowhere.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let mut uuid = [0; 16];
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_random_and_read_as_it_is_written() {
        let uuid = new_uuid().unwrap();
        assert_ne!(uuid, new_uuid().unwrap());
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (4, 2));
        assert_eq!(parse_uuid(&uuid_text(&uuid)), Some(uuid));
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(uuid_text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0eff");
        assert_eq!(parse_uuid("00010203-0405-0607-0809-0a0b0c0d0eff"), Some(uuid));
        for text in ["", "00010203-0405-0607-0809-0a0b0c0d0e", "x0010203-0405-0607-0809-0a0b0c0d0eff"] {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
    }
}
