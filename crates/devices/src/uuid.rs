//! Uuids: random ones for new disks and stores, and how they are written.
//!
//! Left out: what a uuid stands for. On media it is 16 bytes, as the layouts have it.

use uuid::Uuid;

/// A random uuid (version 4).
pub fn new_uuid() -> [u8; 16] {
    Uuid::new_v4().into_bytes()
}

/// `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    Uuid::from_bytes(*uuid).hyphenated().to_string()
}

/// Reads a uuid in any of its usual spellings.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    Uuid::try_parse(text).ok().map(Uuid::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_random_and_read_as_it_is_written() {
        let uuid = new_uuid();
        assert_ne!(uuid, new_uuid());
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (4, 2));
        assert_eq!(parse_uuid(&uuid_text(&uuid)), Some(uuid));
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(uuid_text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0eff");
        assert_eq!(parse_uuid("00010203-0405-0607-0809-0a0b0c0d0eff"), Some(uuid));
        for text in [
            "",
            "00010203-0405-0607-0809-0a0b0c0d0e",
            "x0010203-0405-0607-0809-0a0b0c0d0eff",
            "0011223g-4455-6677-8899-aabbccddeeff",
        ] {
            assert_eq!(parse_uuid(text), None, "{text}");
        }
    }
}
