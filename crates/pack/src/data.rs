//! Compressors of file data. Each call is independent: it turns up to 128 KiB into the payload of a
//! packed object.
//!
//! Incompressible data costs little. Formats that are already compressed are recognized by their
//! first bytes, and 4 KiB of other data are tried with the fastest codec. Short data has little to
//! refer back to, so it may use a dictionary trained on similar data. Left out: where payloads lie,
//! and when data has cooled.

use std::fmt;
use std::io;
use std::str::FromStr;

use shoal_format::dictionary::{DICTIONARY_BYTES_MAX, DICTIONARY_FILE};
use shoal_format::inode::METHOD_MAX;
use shoal_format::object::Codec;
use zstd::zstd_safe::CParameter;

/// How a store compresses files' data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Method {
    /// No compression.
    Off,
    /// The best choice for most data: zstd at a low level.
    #[default]
    Auto,
    Lz4,
    /// zstd at this level, 1 to 19.
    Zstd(i32),
}

/// The level of [`Method::Auto`] and of `zstd` without a level.
const LEVEL: i32 = 3;
const LEVEL_MAX: i32 = 19;

impl Method {
    /// Returns the code in an inode's record (`docs/spec/region.md`).
    pub fn code(self) -> u8 {
        match self {
            Method::Off => 1,
            Method::Auto => 2,
            Method::Lz4 => 3,
            Method::Zstd(level) => 3 + level.clamp(1, LEVEL_MAX) as u8,
        }
    }

    /// Decodes a method; `None` for the store's own method or an unknown code.
    pub fn of_code(code: u8) -> Option<Method> {
        match code {
            1 => Some(Method::Off),
            2 => Some(Method::Auto),
            3 => Some(Method::Lz4),
            4..=METHOD_MAX => Some(Method::Zstd(i32::from(code) - 3)),
            _ => None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no compression of files; choose auto, lz4, zstd, zstd:LEVEL (1 to {LEVEL_MAX}) or off")]
pub struct MethodError(String);

impl FromStr for Method {
    type Err = MethodError;

    fn from_str(name: &str) -> Result<Method, MethodError> {
        let level = |level: &str| level.parse().ok().filter(|level| (1..=LEVEL_MAX).contains(level));
        match (name, name.strip_prefix("zstd:").map(level)) {
            ("off", _) => Ok(Method::Off),
            ("auto", _) => Ok(Method::Auto),
            ("lz4", _) => Ok(Method::Lz4),
            ("zstd", _) => Ok(Method::Zstd(LEVEL)),
            (_, Some(Some(level))) => Ok(Method::Zstd(level)),
            _ => Err(MethodError(name.into())),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::Off => f.write_str("off"),
            Method::Auto => f.write_str("auto"),
            Method::Lz4 => f.write_str("lz4"),
            Method::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// First bytes of formats whose data is already compressed.
const COMPRESSED: [(usize, &[u8]); 18] = [
    (0, b"\x1f\x8b"),
    (0, b"BZh"),
    (0, b"\xfd7zXZ\0"),
    (0, b"\x28\xb5\x2f\xfd"),
    (0, b"\x04\x22\x4d\x18"),
    (0, b"PK\x03\x04"),
    (0, b"7z\xbc\xaf\x27\x1c"),
    (0, b"Rar!"),
    (0, b"\x89PNG"),
    (0, b"\xff\xd8\xff"),
    (0, b"GIF8"),
    (8, b"WEBP"),
    (0, b"OggS"),
    (0, b"fLaC"),
    (0, b"ID3"),
    (4, b"ftyp"),
    (0, b"\x1a\x45\xdf\xa3"),
    (0, b"wOF2"),
];

/// Bytes of a trial, and the shortest data worth a trial.
const TRIAL: usize = 4096;
const TRIED: usize = 4 * TRIAL;

fn is_compressed_format(bytes: &[u8]) -> bool {
    COMPRESSED.iter().any(|&(at, magic)| bytes.get(at..at + magic.len()) == Some(magic))
}

/// Bytes that short data may refer back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dictionary {
    /// The number by which objects name it.
    pub number: u16,
    pub bytes: Vec<u8>,
}

/// Trains a dictionary on the data in `samples`, which lie one after the other. Returns `None` if
/// they are too few or too different from each other.
pub fn train(samples: &[u8], lengths: &[usize]) -> Option<Vec<u8>> {
    zstd::dict::from_continuous(samples, lengths, DICTIONARY_BYTES_MAX).ok()
}

/// A zstd compressor with a dictionary.
struct WithDictionary {
    number: u16,
    level: i32,
    zstd: zstd::bulk::Compressor<'static>,
}

/// A compressor that keeps its tables between calls.
pub struct Compressor {
    zstd: zstd::bulk::Compressor<'static>,
    level: i32,
    with_dictionary: Option<WithDictionary>,
    trial: Vec<u8>,
}

impl Compressor {
    pub fn new() -> io::Result<Compressor> {
        Ok(Compressor {
            zstd: zstd::bulk::Compressor::new(LEVEL)?,
            level: LEVEL,
            with_dictionary: None,
            trial: Vec::new(),
        })
    }

    /// Fills `out` with a payload of at most `most` bytes. Returns `None` if no payload is that
    /// short. `dictionary` applies to data that may have one ([`takes_dictionary`]) and is ignored
    /// for other data.
    pub fn compress(
        &mut self,
        method: Method,
        bytes: &[u8],
        most: usize,
        out: &mut Vec<u8>,
        dictionary: Option<&Dictionary>,
    ) -> Option<Codec> {
        if is_compressed_format(bytes) || bytes.len() >= TRIED && !self.trial_shrinks(bytes) {
            return None;
        }
        let (codec, level) = match method {
            Method::Off => return None,
            Method::Lz4 => {
                out.resize(lz4_flex::block::get_maximum_output_size(bytes.len()), 0);
                let len = lz4_flex::block::compress_into(bytes, out).ok()?;
                out.truncate(len);
                return (len <= most).then_some(Codec::Lz4);
            }
            Method::Auto => (Codec::Zstd, LEVEL),
            Method::Zstd(level) => (Codec::Zstd, level),
        };
        let zstd = match dictionary.filter(|_| takes_dictionary(method, bytes.len() as u64)) {
            Some(dictionary) => self.with_dictionary(dictionary, level)?,
            None => {
                if self.level != level {
                    self.zstd.set_compression_level(level).ok()?;
                    self.level = level;
                }
                &mut self.zstd
            }
        };
        out.resize(most, 0);
        // A payload that is too long is a result, not an error.
        let len = zstd.compress_to_buffer(bytes, &mut out[..]).ok()?;
        out.truncate(len);
        Some(codec)
    }

    fn with_dictionary(&mut self, dictionary: &Dictionary, level: i32) -> Option<&mut zstd::bulk::Compressor<'static>> {
        let is_ready = |with: &WithDictionary| with.number == dictionary.number && with.level == level;
        if !self.with_dictionary.as_ref().is_some_and(is_ready) {
            let mut zstd = zstd::bulk::Compressor::with_dictionary(level, &dictionary.bytes).ok()?;
            // The object stores the number.
            zstd.set_parameter(CParameter::DictIdFlag(false)).ok()?;
            self.with_dictionary = Some(WithDictionary { number: dictionary.number, level, zstd });
        }
        self.with_dictionary.as_mut().map(|with| &mut with.zstd)
    }

    fn trial_shrinks(&mut self, bytes: &[u8]) -> bool {
        // Take the middle: files begin with headers.
        let middle = &bytes[bytes.len() / 2..][..TRIAL];
        self.trial.resize(lz4_flex::block::get_maximum_output_size(TRIAL), 0);
        let len = lz4_flex::block::compress_into(middle, &mut self.trial);
        // Data with few distinct bytes shrinks under zstd even if LZ4 finds no repetition.
        len.is_ok_and(|len| len < TRIAL - TRIAL / 32) || entropy_is_low(middle)
    }
}

/// Returns whether an entropy code of single bytes would save a sixteenth.
fn entropy_is_low(bytes: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let len = bytes.len() as f64;
    let bits: f64 = counts.iter().filter(|&&n| n > 0).map(|&n| f64::from(n) * (len / f64::from(n)).log2()).sum();
    bits < len * 7.5
}

/// Returns whether data of this length may have a dictionary under this method.
pub fn takes_dictionary(method: Method, len: u64) -> bool {
    matches!(method, Method::Auto | Method::Zstd(_)) && len <= u64::from(DICTIONARY_FILE)
}

/// A decompressor that keeps its tables between calls.
pub struct Decompressor {
    zstd: zstd::bulk::Decompressor<'static>,
}

impl Decompressor {
    pub fn new() -> io::Result<Decompressor> {
        Ok(Decompressor { zstd: zstd::bulk::Decompressor::new()? })
    }

    /// Creates a decompressor for payloads made with this dictionary.
    pub fn with_dictionary(bytes: &[u8]) -> io::Result<Decompressor> {
        Ok(Decompressor { zstd: zstd::bulk::Decompressor::with_dictionary(bytes)? })
    }

    /// Fills `out`, whose length is that of the original data. Returns false if the payload does
    /// not hold that many bytes.
    pub fn decompress(&mut self, codec: Codec, payload: &[u8], out: &mut [u8]) -> bool {
        match codec {
            Codec::InPlace => false,
            Codec::Stored => {
                let fits = payload.len() == out.len();
                if fits {
                    out.copy_from_slice(payload);
                }
                fits
            }
            Codec::Lz4 => lz4_flex::block::decompress_into(payload, out).is_ok_and(|len| len == out.len()),
            Codec::Zstd => self.zstd.decompress_to_buffer(payload, out).is_ok_and(|len| len == out.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_sim::Random;

    use super::*;

    const METHODS: [Method; 4] = [Method::Auto, Method::Lz4, Method::Zstd(1), Method::Zstd(19)];

    fn text(len: usize, random: &mut Random) -> Vec<u8> {
        let words = ["shoal ", "inode ", "packed ", "cold ", "the ", "of ", "a\n", "struct "];
        let mut out = Vec::new();
        while out.len() < len {
            out.extend(words[random.below(8) as usize].as_bytes());
        }
        out.truncate(len);
        out
    }

    fn noise(len: usize, random: &mut Random) -> Vec<u8> {
        (0..len).map(|_| random.below(256) as u8).collect()
    }

    #[test]
    fn every_method_gives_back_what_it_got() {
        let (mut random, mut payload) = (Random::new(1), Vec::new());
        let (mut compressor, mut decompressor) = (Compressor::new().unwrap(), Decompressor::new().unwrap());
        for method in METHODS {
            for len in [100, 1000, 4096, 30_000, 131_072] {
                let bytes = text(len, &mut random);
                let codec = compressor.compress(method, &bytes, len - 1, &mut payload, None).expect("text shrinks");
                assert!(payload.len() < len * 9 / 10, "{method} {len}: {}", payload.len());
                let mut out = vec![0; len];
                assert!(decompressor.decompress(codec, &payload, &mut out));
                assert!(out == bytes, "{method} {len}");
                assert!(!decompressor.decompress(codec, &payload, &mut vec![0; len - 1]), "{method} {len}: too long");
                assert!(!decompressor.decompress(codec, &payload, &mut vec![0; len + 1]), "{method} {len}: too short");
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_left_alone() {
        let (mut random, mut payload) = (Random::new(2), Vec::new());
        let mut compressor = Compressor::new().unwrap();
        for method in METHODS {
            for len in [50, 5000, 60_000] {
                let bytes = noise(len, &mut random);
                assert_eq!(
                    compressor.compress(method, &bytes, len * 7 / 8, &mut payload, None),
                    None,
                    "{method} {len}"
                );
            }
        }
        let archive = [&b"\x1f\x8b"[..], &text(5000, &mut random)].concat();
        assert_eq!(compressor.compress(Method::Auto, &archive, 4000, &mut payload, None), None);
        assert_eq!(compressor.compress(Method::Off, &text(5000, &mut random), 4000, &mut payload, None), None);
    }

    #[test]
    fn damaged_payloads_give_an_answer() {
        let (mut random, mut payload) = (Random::new(3), Vec::new());
        let (mut compressor, mut decompressor) = (Compressor::new().unwrap(), Decompressor::new().unwrap());
        for method in [Method::Lz4, Method::Auto] {
            let bytes = text(3000, &mut random);
            let codec = compressor.compress(method, &bytes, 2000, &mut payload, None).unwrap();
            for _ in 0..2000 {
                let mut damaged = payload.clone();
                let at = random.below(damaged.len() as u64) as usize;
                damaged[at] ^= 1 << random.below(8);
                damaged.truncate(random.below(damaged.len() as u64 + 1) as usize);
                decompressor.decompress(codec, &damaged, &mut vec![0; 3000]);
            }
        }
    }

    #[test]
    fn short_data_shrink_more_with_a_dictionary_of_their_kind() {
        let (mut random, mut payload, mut out) = (Random::new(4), Vec::new(), Vec::new());
        let fields = ["name = ", "version = ", "license = ", "edition = ", "authors = ", "keywords = ", "readme = "];
        let mut file = || {
            let mut file = String::from("[package]\n");
            for field in fields {
                file += &format!("{field}\"{:x}\"\n", random.below(1 << 40));
            }
            file.into_bytes()
        };
        let files: Vec<Vec<u8>> = (0..1000).map(|_| file()).collect();
        let lengths: Vec<usize> = files.iter().map(Vec::len).collect();
        let dictionary = Dictionary { number: 3, bytes: train(&files.concat(), &lengths).expect("they are alike") };
        let (mut compressor, mut plain) = (Compressor::new().unwrap(), Decompressor::new().unwrap());
        let mut decompressor = Decompressor::with_dictionary(&dictionary.bytes).unwrap();
        for method in [Method::Auto, Method::Zstd(1), Method::Zstd(9), Method::Lz4] {
            let bytes = file();
            compressor.compress(method, &bytes, bytes.len(), &mut payload, None).unwrap();
            let without = payload.len();
            let codec = compressor.compress(method, &bytes, bytes.len(), &mut payload, Some(&dictionary)).unwrap();
            out.resize(bytes.len(), 0);
            if method == Method::Lz4 {
                assert_eq!(payload.len(), without);
                continue;
            }
            assert!(payload.len() * 10 < without * 9, "{method}: {} of {without}", payload.len());
            assert!(decompressor.decompress(codec, &payload, &mut out) && out == bytes, "{method}");
            out.fill(0);
            assert!(!plain.decompress(codec, &payload, &mut out) || out != bytes, "{method}: without the dictionary");
        }
        let long = vec![b'x'; 4097];
        let codec = compressor.compress(Method::Auto, &long, 4096, &mut payload, Some(&dictionary)).unwrap();
        out.resize(4097, 0);
        assert!(plain.decompress(codec, &payload, &mut out) && out == long, "too long for a dictionary");
        assert_eq!(train(&[1; 20], &[10, 10]), None);
    }

    #[test]
    fn methods_have_names() {
        for method in METHODS.into_iter().chain([Method::Off]) {
            assert_eq!(method.to_string().parse::<Method>().unwrap(), method);
        }
        let coded: Vec<Method> = (0..=u8::MAX).filter_map(Method::of_code).collect();
        assert_eq!(coded.len(), usize::from(METHOD_MAX));
        assert!(coded.iter().enumerate().all(|(at, method)| usize::from(method.code()) == at + 1));
        assert!(METHODS.into_iter().chain([Method::Off]).all(|method| coded.contains(&method)));
        assert_eq!("zstd".parse::<Method>().unwrap(), Method::Zstd(LEVEL));
        for odd in ["", "gzip", "zstd:0", "zstd:20", "zstd:"] {
            assert!(odd.parse::<Method>().is_err(), "{odd}");
        }
    }
}
