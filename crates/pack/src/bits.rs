//! Bits in a code, the first in the lowest bit of the first byte.
//!
//! Owns: [`BitWriter`] and [`BitReader`] over buffers of a fixed size. Rules: neither ever panics.
//! The length of a writer shows that it ran out of room; `end` shows that a reader ran past the end
//! of its code. Both handle whole words, so the buffers are longer than any code.

use shoal_format::FormatError;

use crate::record::STRIPPED;

/// Room of a writer (bytes): more than the fields of any record take under any profile.
pub(crate) const ROOM: usize = 256;
/// Maximum number of bits to put or take in one step.
pub(crate) const STEP_BITS: u32 = 56;

pub(crate) struct BitWriter {
    out: [u8; ROOM],
    at: usize,
    word: u64,
    bits: u32,
}

impl BitWriter {
    pub fn new() -> BitWriter {
        BitWriter { out: [0; ROOM], at: 0, word: 0, bits: 0 }
    }

    /// Begins a new code.
    pub fn clear(&mut self) {
        (self.at, self.word, self.bits) = (0, 0, 0);
    }

    /// Appends the low `bits` (at most [`STEP_BITS`]) of `value`, whose other bits are zero.
    #[inline]
    pub fn put(&mut self, value: u64, bits: u32) {
        debug_assert!(bits <= STEP_BITS && value >> bits == 0, "{value:#x} in {bits} bits");
        self.word |= value << self.bits;
        self.bits += bits;
        // Bits that do not fit are lost; the length shows it.
        if let Some(out) = self.out.get_mut(self.at..self.at + 8) {
            out.copy_from_slice(&self.word.to_le_bytes());
        }
        let whole = self.bits / 8;
        self.at += whole as usize;
        self.word >>= whole * 8;
        self.bits %= 8;
    }

    /// Appends up to 64 bits.
    #[inline]
    pub fn put_wide(&mut self, value: u64, bits: u32) {
        if bits > STEP_BITS {
            self.put(value & 0xffff_ffff, 32);
            self.put(value >> 32, bits - 32);
        } else {
            self.put(value, bits);
        }
    }

    /// Returns the number of bits written.
    pub fn len(&self) -> usize {
        self.at * 8 + self.bits as usize
    }

    /// Returns the start of the buffer, with arbitrary bytes after the code, and the code's length,
    /// or `None` if the code is longer than `STRIPPED` bytes.
    #[inline]
    pub fn whole(&self) -> Option<(&[u8; STRIPPED], usize)> {
        let len = self.len().div_ceil(8);
        if len > STRIPPED { None } else { Some((self.out.first_chunk()?, len)) }
    }

    /// Returns the code, padded with zeros to whole bytes, or `None` if it is longer than `len_max`
    /// bytes.
    #[inline]
    pub fn code(&self, len_max: usize) -> Option<&[u8]> {
        let len = self.len().div_ceil(8);
        if len > len_max { None } else { self.out.get(..len) }
    }
}

/// Bytes after a code that a reader loads together with its last bits.
const BEHIND: usize = 8;

/// Copies a code of at most [`STRIPPED`] bytes and adds room after it, so that a reader may load
/// whole words.
#[inline]
pub(crate) fn padded(code: &[u8]) -> Result<[u8; STRIPPED + BEHIND], FormatError> {
    let mut bytes = [0; STRIPPED + BEHIND];
    let range = FormatError::Range { what: "inode code", field: "length", found: code.len() as u64 };
    bytes[..STRIPPED].get_mut(..code.len()).ok_or(range)?.copy_from_slice(code);
    Ok(bytes)
}

pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    at: u32,
    end: u32,
}

impl<'a> BitReader<'a> {
    /// Creates a reader of a code of `len` bytes at the beginning of `bytes`. The fast path needs
    /// at least 8 more bytes.
    #[inline]
    pub fn new(bytes: &'a [u8], len: usize) -> BitReader<'a> {
        BitReader { bytes, at: 0, end: len as u32 * 8 }
    }

    /// Returns the next bits, at least [`STEP_BITS`] of them. Bits after the code are arbitrary;
    /// bits after the buffer are zero.
    #[inline]
    pub fn peek(&self) -> u64 {
        let byte = (self.at / 8) as usize;
        let word = match self.bytes.get(byte..byte + 8) {
            Some(word) => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(word);
                u64::from_le_bytes(bytes)
            }
            None => self.last_word(byte),
        };
        word >> (self.at % 8)
    }

    #[cold]
    fn last_word(&self, byte: usize) -> u64 {
        let rest = self.bytes.get(byte..).unwrap_or_default();
        rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    #[inline]
    pub fn skip(&mut self, bits: u32) {
        self.at += bits;
    }

    #[inline]
    pub fn take(&mut self, bits: u32) -> u64 {
        let value = self.peek() & ((1 << bits) - 1);
        self.at += bits;
        value
    }

    /// Takes up to 64 bits.
    #[inline]
    pub fn take_wide(&mut self, bits: u32) -> u64 {
        if bits > STEP_BITS {
            let low = self.take(32);
            low | self.take(bits - 32) << 32
        } else {
            self.take(bits)
        }
    }

    /// Checks that the code ends here: nothing is missing, and the rest is padding.
    #[inline]
    pub fn end(&self) -> Result<(), FormatError> {
        let what = "inode code";
        if self.at > self.end {
            return Err(FormatError::Short {
                what,
                expected: self.at.div_ceil(8) as usize,
                found: self.end as usize / 8,
            });
        }
        if self.end - self.at >= 8 || self.peek() & ((1 << (self.end - self.at)) - 1) != 0 {
            return Err(FormatError::Range { what, field: "length", found: u64::from(self.end / 8) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_sim::Random;

    #[test]
    fn what_was_put_is_taken_and_the_end_is_known() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let mut writer = BitWriter::new();
            let mut put = vec![];
            while writer.len() < 300 {
                let bits = random.below(65) as u32;
                let value = if bits == 0 { 0 } else { random.next_u64() >> (64 - bits) };
                writer.put_wide(value, bits);
                put.push((value, bits));
            }
            let code = writer.code(STRIPPED).unwrap();
            let mut reader = BitReader::new(code, code.len());
            for (value, bits) in put {
                assert!(reader.end().is_err() || bits == 0 || reader.end - reader.at < 8, "seed {seed}");
                assert_eq!(reader.take_wide(bits), value, "seed {seed}");
            }
            assert_eq!(reader.end(), Ok(()), "seed {seed}");
            reader.take(8);
            assert!(reader.end().is_err(), "seed {seed}");
        }
    }

    #[test]
    fn padding_must_be_zero_and_short() {
        let mut reader = BitReader::new(&[0b0000_0101], 1);
        assert_eq!(reader.take(3), 5);
        assert_eq!(reader.end(), Ok(()));
        let mut reader = BitReader::new(&[0b0001_0101], 1);
        reader.take(3);
        assert!(reader.end().is_err());
        let mut reader = BitReader::new(&[5, 0], 2);
        reader.take(3);
        assert!(reader.end().is_err());
    }

    #[test]
    fn running_out_of_room_or_of_code_is_no_panic() {
        let mut writer = BitWriter::new();
        for _ in 0..1000 {
            writer.put_wide(u64::MAX, 64);
        }
        assert!(writer.code(STRIPPED).is_none() && writer.code(usize::MAX).is_none());
        let mut reader = BitReader::new(&[0xff; STRIPPED], STRIPPED);
        for _ in 0..1000 {
            reader.take_wide(64);
        }
        assert!(reader.end().is_err());
        assert!(padded(&[0; STRIPPED + 1]).is_err());
    }
}
