//! The compressors of the study, all behind one trait.
//!
//! Owns: the list of compressors with their levels, and the additional state that each needs. The
//! paper has deflate, LZO and LZRW1; LZ4 and zstd are today's choices. Rules: one call compresses
//! one file independently; buffers are allocated before.

use std::io;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use zstd::bulk::{Compressor as ZstdCompressor, Decompressor as ZstdDecompressor};

use super::{lzo, lzrw1};

/// A compressor of single files.
pub trait Compressor {
    fn name(&self) -> &'static str;
    /// Fills `out` with the compressed form.
    fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()>;
    /// Fills `out` with the original input of `len` bytes.
    fn decompress(&mut self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()>;
}

fn damaged(what: impl ToString) -> io::Error {
    io::Error::other(what.to_string())
}

struct Deflate {
    compress: Compress,
    decompress: Decompress,
}

impl Compressor for Deflate {
    fn name(&self) -> &'static str {
        "deflate"
    }

    fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.compress.reset();
        out.clear();
        // Stored blocks add at most five bytes for each 16 KiB.
        out.reserve(input.len() + input.len() / 1024 + 64);
        match self.compress.compress_vec(input, out, FlushCompress::Finish)? {
            Status::StreamEnd => Ok(()),
            _ => Err(damaged("deflate needs more room")),
        }
    }

    fn decompress(&mut self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        self.decompress.reset(false);
        out.clear();
        out.reserve(len + 1);
        match self.decompress.decompress_vec(bytes, out, FlushDecompress::Finish)? {
            Status::StreamEnd => Ok(()),
            _ => Err(damaged("deflate ends early")),
        }
    }
}

/// Reads LZO's format, whichever search wrote it.
fn decompress_lzo(bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()> {
    out.resize(len, 0);
    let found = lzokay::decompress::decompress(bytes, out).map_err(damaged)?;
    out.truncate(found);
    Ok(())
}

struct Lzo(Box<lzo::Table>);

impl Compressor for Lzo {
    fn name(&self) -> &'static str {
        "lzo"
    }

    fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        lzo::compress(input, &mut self.0, out);
        Ok(())
    }

    fn decompress(&mut self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        decompress_lzo(bytes, len, out)
    }
}

/// LZO's format with a search of more places.
struct Lzokay {
    dict: Box<lzokay::compress::Dict>,
    scratch: Vec<u8>,
}

impl Compressor for Lzokay {
    fn name(&self) -> &'static str {
        "lzokay"
    }

    fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.scratch.resize(input.len() + input.len() / 16 + 64 + 3, 0);
        let len = lzokay::compress::compress_no_alloc(input, &mut self.scratch, &mut self.dict).map_err(damaged)?;
        out.clear();
        out.extend_from_slice(&self.scratch[..len]);
        Ok(())
    }

    fn decompress(&mut self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        decompress_lzo(bytes, len, out)
    }
}

struct Lzrw1(Box<lzrw1::Table>);

impl Compressor for Lzrw1 {
    fn name(&self) -> &'static str {
        "lzrw1"
    }

    fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        lzrw1::compress(input, &mut self.0, out);
        Ok(())
    }

    fn decompress(&mut self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        lzrw1::decompress(bytes, len, out).ok_or_else(|| damaged("not from lzrw1"))
    }
}

struct Lz4;

impl Compressor for Lz4 {
    fn name(&self) -> &'static str {
        "lz4"
    }

    fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.resize(lz4_flex::block::get_maximum_output_size(input.len()), 0);
        let len = lz4_flex::block::compress_into(input, out).map_err(damaged)?;
        out.truncate(len);
        Ok(())
    }

    fn decompress(&mut self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.resize(len, 0);
        let found = lz4_flex::block::decompress_into(bytes, out).map_err(damaged)?;
        out.truncate(found);
        Ok(())
    }
}

struct Zstd {
    name: &'static str,
    compress: ZstdCompressor<'static>,
    decompress: ZstdDecompressor<'static>,
}

impl Compressor for Zstd {
    fn name(&self) -> &'static str {
        self.name
    }

    fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        out.reserve(zstd::zstd_safe::compress_bound(input.len()));
        self.compress.compress_to_buffer(input, out).map(drop)
    }

    fn decompress(&mut self, bytes: &[u8], len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        out.reserve(len);
        self.decompress.decompress_to_buffer(bytes, out).map(drop)
    }
}

/// Level of zstd: its default.
const ZSTD_LEVEL: i32 = 3;
/// Bytes of a dictionary: zstd's own default.
const DICTIONARY_MAX: usize = 112_640;

/// Trains a dictionary on these files.
pub fn train(files: &[Vec<u8>]) -> io::Result<Vec<u8>> {
    zstd::dict::from_samples(files, DICTIONARY_MAX)
}

/// Returns all compressors, the paper's first.
pub fn all(dictionary: &[u8]) -> io::Result<Vec<Box<dyn Compressor>>> {
    Ok(vec![
        // Level 6 without zlib's frame, as in a file system that keeps lengths and checksums
        // itself.
        Box::new(Deflate {
            compress: Compress::new(Compression::default(), false),
            decompress: Decompress::new(false),
        }),
        Box::new(Lzo(Box::new([0; 1 << 14]))),
        Box::new(Lzrw1(Box::new([0; 4096]))),
        Box::new(Lzokay { dict: lzokay::compress::Dict::new(), scratch: vec![] }),
        Box::new(Lz4),
        Box::new(Zstd {
            name: "zstd",
            compress: ZstdCompressor::new(ZSTD_LEVEL)?,
            decompress: ZstdDecompressor::new()?,
        }),
        Box::new(Zstd {
            name: "zstd, dictionary",
            compress: ZstdCompressor::with_dictionary(ZSTD_LEVEL, dictionary)?,
            decompress: ZstdDecompressor::with_dictionary(dictionary)?,
        }),
    ])
}
