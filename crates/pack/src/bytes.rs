//! Field codes as bytes, as profiles store them.
//!
//! Owns: [`Source`], a cursor that never panics, and reading and writing of a [`FieldCode`]. A
//! field's place implies its width, so the width is not stored. Rules: reading accepts only codes
//! that some tree could have had: values fit the field and differ, lengths are a complete code, and
//! a table of values is not nested in another one.

use std::collections::HashSet;

use shoal_format::FormatError;

use crate::field::{FieldCode, VALUES_MAX, Values};
use crate::gamma::Gamma;
use crate::huffman::Huffman;

const WHAT: &str = "profile";

pub(crate) struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8]) -> Source<'a> {
        Source { bytes }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let short = FormatError::Short { what: WHAT, expected: count, found: self.bytes.len() };
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.take(1)?[0])
    }

    pub fn u16(&mut self) -> Result<u16, FormatError> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a number stored in seven bits of each byte, the lowest first.
    pub fn number(&mut self) -> Result<u64, FormatError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(refuse("number", bits));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(refuse("number", value))
    }

    /// Reads lengths of codes, two in a byte.
    pub fn lengths(&mut self, count: usize) -> Result<Huffman, FormatError> {
        let bytes = self.take(count.div_ceil(2))?;
        let lengths: Vec<u8> = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
        if lengths[count..].iter().any(|length| *length != 0) {
            return Err(refuse("code lengths", count as u64));
        }
        Huffman::from_lengths(&lengths[..count])
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

pub(crate) fn refuse(field: &'static str, found: u64) -> FormatError {
    FormatError::Range { what: WHAT, field, found }
}

pub(crate) fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_lengths(out: &mut Vec<u8>, huffman: &Huffman) {
    let lengths: Vec<u8> = huffman.lengths().collect();
    out.extend(lengths.chunks(2).map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 4));
}

impl FieldCode {
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            FieldCode::Raw { .. } => out.push(0),
            FieldCode::Common { value, .. } => {
                out.push(1);
                put_number(out, *value);
            }
            FieldCode::Short { bits, .. } => out.extend([2, *bits]),
            FieldCode::Values(values) => {
                out.push(3);
                put_number(out, values.values.len() as u64);
                values.values.iter().for_each(|value| put_number(out, *value));
                put_lengths(out, &values.huffman);
                values.other.write(out);
            }
            FieldCode::Lengths { huffman, .. } => {
                out.push(4);
                put_lengths(out, huffman);
            }
            FieldCode::Gamma(gamma) => {
                let (buckets, _) = gamma.table();
                out.extend([5, buckets.len() as u8]);
                out.extend(buckets);
            }
        }
    }

    /// Reads the code of a field of `width` bits.
    pub fn read(source: &mut Source, width: u8) -> Result<FieldCode, FormatError> {
        let code = FieldCode::read_plain(source, width)?;
        match code {
            Some(code) => Ok(code),
            None => {
                let count = source.number()?;
                if count > VALUES_MAX as u64 {
                    return Err(refuse("values", count));
                }
                let values = (0..count).map(|_| source.number()).collect::<Result<Vec<u64>, _>>()?;
                let mut known = HashSet::new();
                for value in &values {
                    if value.unbounded_shr(width.into()) != 0 || !known.insert(*value) {
                        return Err(refuse("values", *value));
                    }
                }
                let huffman = source.lengths(values.len() + 1)?;
                let other = FieldCode::read_plain(source, width)?.ok_or(refuse("code within a code", 3))?;
                Ok(FieldCode::Values(Values::new(values, huffman, other)))
            }
        }
    }

    /// Reads a code that contains no other code. Returns `None` if it would contain one.
    fn read_plain(source: &mut Source, width: u8) -> Result<Option<FieldCode>, FormatError> {
        Ok(Some(match source.u8()? {
            0 => FieldCode::Raw { width },
            1 => {
                let value = source.number()?;
                if value.unbounded_shr(width.into()) != 0 {
                    return Err(refuse("common value", value));
                }
                FieldCode::Common { value, width }
            }
            2 => {
                let bits = source.u8()?;
                if bits >= width.min(63) {
                    return Err(refuse("short bits", bits.into()));
                }
                FieldCode::Short { bits, width }
            }
            3 => return Ok(None),
            // Lengths of 0 to 64 bits, and OTHER.
            4 => FieldCode::Lengths { huffman: source.lengths(66)?, width },
            5 => {
                let count = source.u8()?;
                let buckets = source.take(count.into())?;
                FieldCode::Gamma(Gamma::new(buckets, width)?)
            }
            found => return Err(refuse("code", found.into())),
        }))
    }
}

/// The code of one field of a profile, in readable form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub field: String,
    pub code: &'static str,
    /// A value, a length or the first value of a bucket, with the bits of its code.
    pub rows: Vec<(String, u32)>,
}

impl FieldCode {
    pub fn describe(&self, field: &str) -> Described {
        let other = |other: &FieldCode| format!("OTHER, then {}", other.describe("").code);
        let (code, rows) = match self {
            FieldCode::Raw { width } => ("all bits", vec![("any".into(), (*width).into())]),
            FieldCode::Common { value, width } => {
                ("one value or all bits", vec![(value.to_string(), 1), ("OTHER".into(), 1 + u32::from(*width))])
            }
            FieldCode::Short { bits, width } => (
                "few bits or all bits",
                vec![(format!("below 2^{bits}"), 1 + u32::from(*bits)), ("OTHER".into(), 1 + u32::from(*width))],
            ),
            FieldCode::Values(values) => {
                let known = values.values.iter().enumerate();
                let mut rows: Vec<(String, u32)> =
                    known.map(|(symbol, value)| (value.to_string(), values.huffman.cost(symbol))).collect();
                rows.push((other(&values.other), values.huffman.cost(values.values.len())));
                ("Huffman of values", rows)
            }
            FieldCode::Lengths { huffman, .. } => {
                let name = |length: usize| match length {
                    0 => "0".into(),
                    65 => "OTHER".into(),
                    length => format!("2^{} and above", length - 1),
                };
                ("Huffman of lengths", (0..66).map(|length| (name(length), huffman.cost(length))).collect())
            }
            FieldCode::Gamma(gamma) => {
                ("gamma", gamma.firsts().iter().map(|first| (first.to_string(), gamma.cost(*first))).collect())
            }
        };
        Described { field: field.into(), code, rows }
    }
}
