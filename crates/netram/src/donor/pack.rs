//! Compression of chunks that have gone cold.
//!
//! A chunk is packed if that saves at least an eighth of it. A chunk that does not pack well is
//! left alone until it is written again. Packed bytes are a client's bytes: they are wiped when
//! dropped. Left out: which chunks are cold (`area`).

use std::fmt;
use std::io;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::chunk::CHUNK_BYTES;

/// The longest packed form worth keeping (bytes).
const PACKED_BYTES_MAX: usize = CHUNK_BYTES - CHUNK_BYTES / 8;

/// zstd's fastest ordinary level: cold is not dead, and a donor's processor has other work.
const ZSTD_LEVEL: i32 = 1;

/// How cold chunks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    #[default]
    None,
    Lz4,
    Zstd,
}

/// An unknown name of a compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no compression; choose none, lz4 or zstd")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Compression, UnknownCompression> {
        match text {
            "none" => Ok(Compression::None),
            "lz4" => Ok(Compression::Lz4),
            "zstd" => Ok(Compression::Zstd),
            _ => Err(UnknownCompression(text.into())),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        })
    }
}

/// A chunk's bytes in packed form.
pub(super) type Packed = Zeroizing<Box<[u8]>>;

/// Packs chunks one after another, with one buffer.
pub(super) struct Packer {
    compression: Compression,
    buffer: Zeroizing<Vec<u8>>,
}

impl Packer {
    pub(super) fn new(compression: Compression) -> Packer {
        let bytes = match compression {
            Compression::None => 0,
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(CHUNK_BYTES),
            Compression::Zstd => PACKED_BYTES_MAX,
        };
        Packer { compression, buffer: Zeroizing::new(vec![0; bytes]) }
    }

    /// Packs a chunk; `None`: it does not pay.
    pub(super) fn pack(&mut self, bytes: &[u8]) -> Option<Packed> {
        let len = match self.compression {
            Compression::None => None,
            Compression::Lz4 => lz4_flex::block::compress_into(bytes, &mut self.buffer).ok(),
            // Fails if the buffer is too small, which is when packing does not pay.
            Compression::Zstd => zstd::bulk::compress_to_buffer(bytes, &mut self.buffer[..], ZSTD_LEVEL).ok(),
        };
        let packed = self.buffer.get(..len.filter(|len| *len <= PACKED_BYTES_MAX)?)?;
        Some(Zeroizing::new(packed.into()))
    }
}

/// Unpacks a chunk into `out`, which is a whole chunk.
pub(super) fn unpack(compression: Compression, packed: &[u8], out: &mut [u8]) -> io::Result<()> {
    let len = match compression {
        Compression::None => 0,
        Compression::Lz4 => lz4_flex::block::decompress_into(packed, out).map_err(io::Error::other)?,
        Compression::Zstd => zstd::bulk::decompress_to_buffer(packed, out)?,
    };
    if len == out.len() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("a packed chunk holds {len} bytes of {}", out.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_sim::Random;

    #[test]
    fn what_is_packed_comes_back_and_what_does_not_pay_is_left() {
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut packer = Packer::new(compression);
            let text: Vec<u8> = b"idle memory ".iter().copied().cycle().take(CHUNK_BYTES).collect();
            let packed = packer.pack(&text).unwrap();
            assert!(packed.len() < CHUNK_BYTES / 20, "{compression}: {}", packed.len());
            let mut out = vec![1; CHUNK_BYTES];
            unpack(compression, &packed, &mut out).unwrap();
            assert_eq!(out, text);
            let mut noise = vec![0; CHUNK_BYTES];
            Random::new(1).fill(&mut noise);
            assert!(packer.pack(&noise).is_none(), "{compression}");
            // Noise with a tenth of zeros packs, but saves less than an eighth.
            noise[..CHUNK_BYTES / 10].fill(0);
            assert!(packer.pack(&noise).is_none(), "{compression}");
            noise[..CHUNK_BYTES / 4].fill(0);
            assert!(packer.pack(&noise).is_some(), "{compression}");
        }
        assert!(Packer::new(Compression::None).pack(&[0; CHUNK_BYTES]).is_none());
    }

    #[test]
    fn damaged_packed_bytes_are_an_error() {
        for compression in [Compression::Lz4, Compression::Zstd] {
            let packed = Packer::new(compression).pack(&[5; CHUNK_BYTES]).unwrap();
            let mut out = vec![0; CHUNK_BYTES];
            assert!(unpack(compression, &packed[..packed.len() / 2], &mut out).is_err());
            assert!(unpack(compression, &[], &mut out).is_err());
        }
        assert!(unpack(Compression::None, &[1], &mut [0; CHUNK_BYTES]).is_err());
    }

    #[test]
    fn compressions_have_names() {
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            assert_eq!(compression.to_string().parse(), Ok(compression));
        }
        let error = "gzip".parse::<Compression>().unwrap_err().to_string();
        assert_eq!(error, "`gzip` is no compression; choose none, lz4 or zstd");
    }
}
