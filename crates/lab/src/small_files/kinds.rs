//! What a file is, as far as its first bytes tell.
//!
//! Owns: [`Kind`]. The mixture of kinds decides how far the files of a tree shrink, whatever the
//! compressor.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// Programs and libraries.
    Program,
    /// Compressed already: archives and pictures.
    Compressed,
    Other,
}

/// First bytes of compressed files: gzip, bzip2, xz, zstd, zip, PNG, JPEG, GIF, WOFF2.
const COMPRESSED: [&[u8]; 9] = [
    &[0x1f, 0x8b],
    b"BZh",
    &[0xfd, b'7', b'z'],
    &[0x28, 0xb5, 0x2f, 0xfd],
    b"PK\x03\x04",
    b"\x89PNG",
    &[0xff, 0xd8, 0xff],
    b"GIF8",
    b"wOF2",
];
/// Bytes in which text has no NUL.
const LOOKED_AT: usize = 512;

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Text, Kind::Program, Kind::Compressed, Kind::Other];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Program => "programs",
            Kind::Compressed => "compressed already",
            Kind::Other => "other",
        }
    }

    pub fn of(file: &[u8]) -> Kind {
        match file {
            file if file.starts_with(b"\x7fELF") => Kind::Program,
            file if COMPRESSED.iter().any(|first| file.starts_with(first)) => Kind::Compressed,
            file if !file[..file.len().min(LOOKED_AT)].contains(&0) => Kind::Text,
            _ => Kind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_first_bytes() {
        assert_eq!(Kind::of(b"\x7fELF\x02"), Kind::Program);
        assert_eq!(Kind::of(&[0x1f, 0x8b, 8]), Kind::Compressed);
        assert_eq!(Kind::of("gr\u{fc}n".as_bytes()), Kind::Text);
        assert_eq!(Kind::of(&[1, 0, 2]), Kind::Other);
    }
}
