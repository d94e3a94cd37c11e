//! Codes of packed inodes, read bit by bit as specified in `docs/spec/pack.md`.
//!
//! Owns: bits, field codes, and the compressors of a profile file. Shares no code with the engine's
//! decoder, which reads whole words through tables. Rules: hostile bytes give a sentence, never a
//! panic; a profile that no tree could have had is refused.

use std::collections::HashSet;

use shoal_format::checksum;

pub(super) type Read<T> = Result<T, String>;

/// Maximum number of entries of a table of values or triplets.
const VALUES_MAX: u64 = 511;
const PROFILES_MAX: u8 = 16;
/// Widths of the fields of a hybrid profile: heads by type, links, sizes by type, differences by
/// time and unit, optional fields.
const WIDTHS: [u8; 33] = {
    let mut widths = [64; 33];
    let mut at = 0;
    while at < 4 {
        widths[at] = 29;
        at += 1;
    }
    widths[4] = 32;
    let optional = [32, 32, 32, 64, 64, 64, 32, 8];
    at = 0;
    while at < 8 {
        widths[25 + at] = optional[at];
        at += 1;
    }
    widths
};

/// The bits of a code, the first in the lowest bit of the first byte.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    pub fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0 }
    }

    fn bit(&mut self) -> Read<u64> {
        let byte = self.bytes.get(self.at / 8).ok_or("a code ends within a field")?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Ok(bit.into())
    }

    /// Reads a number of up to 64 bits, the lowest first.
    pub fn number(&mut self, bits: u8) -> Read<u64> {
        (0..bits).try_fold(0, |value, place| Ok(value | self.bit()? << place))
    }

    /// Checks that only padding is left.
    pub fn end(mut self) -> Read<()> {
        if self.bytes.len() * 8 - self.at >= 8 {
            return Err("a code is longer than its fields".into());
        }
        while self.at < self.bytes.len() * 8 {
            if self.bit()? != 0 {
                return Err("a code is padded with other bits than zeros".into());
            }
        }
        Ok(())
    }
}

/// A canonical Huffman code, as the lengths by symbol.
struct Huffman(Vec<u8>);

impl Huffman {
    fn read(source: &mut Bytes<'_>, count: usize) -> Read<Huffman> {
        let packed = source.take(count.div_ceil(2))?;
        let mut lengths: Vec<u8> = packed.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
        if lengths.drain(count..).any(|length| length != 0) {
            return Err("code lengths are padded with other bits than zeros".into());
        }
        let complete: u32 = lengths.iter().map(|&length| 1u32 << (12 - u32::from(length.min(12)))).sum();
        let allowed = lengths.iter().all(|length| (1..=12).contains(length));
        match &lengths[..] {
            [0] => Ok(Huffman(lengths)),
            [_, _, ..] if allowed && complete == 1 << 12 => Ok(Huffman(lengths)),
            _ => Err("code lengths are no complete code".into()),
        }
    }

    fn symbol(&self, bits: &mut Bits<'_>) -> Read<usize> {
        if self.0.len() == 1 {
            return Ok(0);
        }
        let (mut code, mut first) = (0, 0);
        for length in 1..=12 {
            code = code << 1 | bits.bit()? as usize;
            first <<= 1;
            let of_length = |(symbol, of): (usize, &u8)| (*of == length).then_some(symbol);
            let mut symbols = self.0.iter().enumerate().filter_map(of_length);
            let count = self.0.iter().filter(|of| **of == length).count();
            if code < first + count {
                return symbols.nth(code - first).ok_or_else(|| "a code without a symbol".into());
            }
            first += count;
        }
        Err("a code without a symbol".into())
    }
}

/// The code of a field. The last value is the field's width in bits.
enum Field {
    Raw(u8),
    Common(u64, u8),
    Short(u8, u8),
    Values { values: Vec<u64>, huffman: Huffman, other: Box<Field> },
    Lengths(Huffman, u8),
    Gamma(Vec<u8>, u8),
}

impl Field {
    fn read(source: &mut Bytes<'_>, width: u8, is_inner: bool) -> Read<Field> {
        Ok(match source.byte()? {
            0 => Field::Raw(width),
            1 => {
                let value = source.number()?;
                if value.unbounded_shr(width.into()) != 0 {
                    return Err(format!("the common value {value} does not fit {width} bits"));
                }
                Field::Common(value, width)
            }
            2 => {
                let bits = source.byte()?;
                if bits >= width.min(63) {
                    return Err(format!("few bits are {bits} of {width}"));
                }
                Field::Short(bits, width)
            }
            3 if !is_inner => {
                let count = source.number()?;
                if count > VALUES_MAX {
                    return Err(format!("{count} values in a table"));
                }
                let values = (0..count).map(|_| source.number()).collect::<Read<Vec<u64>>>()?;
                let differ = values.iter().collect::<HashSet<_>>().len() == values.len();
                if !differ || values.iter().any(|value| value.unbounded_shr(width.into()) != 0) {
                    return Err("values of a table are equal or do not fit".into());
                }
                let huffman = Huffman::read(source, values.len() + 1)?;
                Field::Values { values, huffman, other: Box::new(Field::read(source, width, true)?) }
            }
            4 => Field::Lengths(Huffman::read(source, 66)?, width),
            5 => {
                let count = source.byte()?;
                let buckets = source.take(count.into())?.to_vec();
                let total = buckets.iter().try_fold(0u64, |sum, &bits| sum.checked_add(1u64.checked_shl(bits.into())?));
                if count > 15 || buckets.iter().any(|&bits| bits > 63) || total.is_none() {
                    return Err("a gamma code without a table".into());
                }
                Field::Gamma(buckets, width)
            }
            code => return Err(format!("field code {code}")),
        })
    }

    fn value(&self, bits: &mut Bits<'_>) -> Read<u64> {
        match self {
            Field::Raw(width) => bits.number(*width),
            Field::Common(value, width) => {
                if bits.bit()? == 0 {
                    Ok(*value)
                } else {
                    bits.number(*width)
                }
            }
            Field::Short(few, width) => {
                let width = if bits.bit()? == 0 { few } else { width };
                bits.number(*width)
            }
            Field::Values { values, huffman, other } => match values.get(huffman.symbol(bits)?) {
                Some(value) => Ok(*value),
                None => other.value(bits),
            },
            Field::Lengths(huffman, width) => match huffman.symbol(bits)? {
                0 => Ok(0),
                65 => bits.number(*width),
                length => Ok(bits.number(length as u8 - 1)? | 1 << (length - 1)),
            },
            Field::Gamma(buckets, width) => gamma(bits, buckets, *width),
        }
    }
}

fn gamma(bits: &mut Bits<'_>, buckets: &[u8], width: u8) -> Read<u64> {
    let (mut first, mut rest) = (0u64, buckets.iter());
    loop {
        let goes_on = bits.bit()? == 1;
        match (rest.next(), goes_on) {
            (Some(&of), true) => first += 1 << of,
            (Some(&of), false) => return Ok(first + bits.number(of)?),
            (None, false) => {
                let place = bits.number(width)?;
                return first.checked_add(place).ok_or_else(|| "a gamma code of more than 64 bits".into());
            }
            (None, true) => return Err("a gamma code without a bucket".into()),
        }
    }
}

/// Uid, gid and mode.
pub(super) type Triplet = (u32, u32, u16);

/// A hybrid profile.
pub(super) struct Profile {
    known: Vec<Triplet>,
    triplets: Huffman,
    fields: Vec<Field>,
}

/// A decoded record. The times are in the order ctime, btime, mtime, atime.
#[derive(Clone, Copy, Default)]
pub(super) struct Stripped {
    pub triplet: Triplet,
    pub links: u32,
    pub size: u64,
    pub times: [i64; 4],
    pub optional: [u64; 8],
    /// The triplet's index in the store's table, if the profile does not know it.
    pub index: Option<u64>,
}

const UNITS_NS: [i64; 4] = [1_000_000_000, 4_000_000, 1_000_000, 1];

impl Profile {
    fn read(source: &mut Bytes<'_>) -> Read<Profile> {
        let (kind, precision) = (source.byte()?, source.byte()?);
        if kind != 4 || precision > 1 {
            return Err(format!("a profile of compressor {kind}, precision {precision}"));
        }
        let count = u16::from_le_bytes([source.byte()?, source.byte()?]);
        if u64::from(count) > VALUES_MAX {
            return Err(format!("{count} triplets in a profile"));
        }
        let mut known = Vec::new();
        for _ in 0..count {
            let values = [source.number()?, source.number()?, source.number()?];
            let triplet = (u32::try_from(values[0]), u32::try_from(values[1]), u16::try_from(values[2]));
            let (Ok(uid), Ok(gid), Ok(mode)) = triplet else { return Err("a triplet that does not fit".into()) };
            known.push((uid, gid, mode));
        }
        if known.iter().collect::<HashSet<_>>().len() != known.len() {
            return Err("a triplet is there twice".into());
        }
        let triplets = Huffman::read(source, known.len() + 1)?;
        let fields = WIDTHS.iter().map(|&width| Field::read(source, width, false)).collect::<Read<Vec<Field>>>()?;
        Ok(Profile { known, triplets, fields })
    }

    /// Decodes a code. `find` looks up a triplet of the store.
    pub fn decode(&self, code: &[u8], bases: &[i64], find: &dyn Fn(u64) -> Option<Triplet>) -> Read<Stripped> {
        let mut bits = Bits::new(code);
        let mut record = Stripped::default();
        record.triplet = match self.known.get(self.triplets.symbol(&mut bits)?) {
            Some(triplet) => *triplet,
            None => {
                let index = gamma(&mut bits, &[2, 4, 6, 9], 14)?;
                record.index = Some(index);
                find(index).ok_or_else(|| format!("triplet {index} is not there"))?
            }
        };
        let kind = match record.triplet.2 >> 12 {
            0o10 => 0,
            0o4 => 1,
            0o12 => 2,
            _ => 3,
        };
        let head = self.fields[kind].value(&mut bits)?;
        record.links = 1;
        if head >> 8 & 1 == 0 {
            let links = self.fields[4].value(&mut bits)?;
            record.links = u32::try_from(links).map_err(|_| format!("{links} links"))?;
        }
        record.size = self.fields[5 + kind].value(&mut bits)?;
        for at in 0..4 {
            let relation = (head >> (9 + at * 5) & 31) as usize;
            let (reference, unit) = (relation / 5, relation % 5);
            let from = match reference {
                0..3 => bases.get(reference).copied().unwrap_or(0),
                _ if reference - 3 < at => record.times[reference - 3],
                _ => return Err(format!("time {at} refers to one that is not there")),
            };
            let difference = match unit {
                0 => 0,
                _ => {
                    let stored = self.fields[9 + at * 4 + unit - 1].value(&mut bits)?;
                    let half = (stored >> 1) as i64;
                    if stored & 1 == 0 { half } else { !half }
                }
            };
            let unit_ns = if unit == 0 { 0 } else { UNITS_NS[unit - 1] };
            record.times[at] = from.wrapping_add(difference.wrapping_mul(unit_ns));
        }
        for field in (0..8).filter(|field| head >> field & 1 == 1) {
            record.optional[field] = self.fields[25 + field].value(&mut bits)?;
            if record.optional[field] == 0 {
                return Err(format!("optional field {field} is there and 0"));
            }
        }
        bits.end()?;
        Ok(record)
    }
}

/// Reads the profiles of a profile file.
pub(super) fn profiles(file: &[u8]) -> Read<Vec<Profile>> {
    let mut source = Bytes(file);
    if source.take(8)? != b"SHPROFIL" || source.take(4)? != 1u32.to_le_bytes() {
        return Err("no profile file of version 1".into());
    }
    let sum = source.take(4)?;
    if sum != checksum(0, source.0).to_le_bytes() {
        return Err("the profile file's checksum is wrong".into());
    }
    let comment = usize::from(u16::from_le_bytes([source.byte()?, source.byte()?]));
    if std::str::from_utf8(source.take(comment)?).is_err() {
        return Err("the profile file's comment is no text".into());
    }
    let count = source.byte()?;
    if count == 0 || count > PROFILES_MAX {
        return Err(format!("{count} profiles"));
    }
    let profiles = (0..count).map(|_| Profile::read(&mut source)).collect::<Read<Vec<Profile>>>()?;
    if !source.0.is_empty() {
        return Err("bytes behind the last profile".into());
    }
    Ok(profiles)
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("a profile file ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    /// Reads a number stored in seven bits of each byte, the lowest first.
    fn number(&mut self) -> Read<u64> {
        let mut value = 0u64;
        for place in 0..10 {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if place == 9 && bits > 1 {
                break;
            }
            value |= bits << (place * 7);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number of more than 64 bits".into())
    }
}
