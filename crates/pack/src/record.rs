//! The record of an inode, and its stripped form.
//!
//! Owns: [`Record`], the value that a code must reproduce; the stripped form, which holds the
//! fields that POSIX asks for in 54 bytes; the *verbatim* form, which is one byte that says which
//! optional fields follow, the stripped form, and these fields. The verbatim form holds every
//! possible record, so no code is ever longer. Rules: decoding never panics and accepts only bytes
//! that encoding writes.
//!
//! Absent optional fields are 0. A caller with a field whose usual value is not 0 passes the
//! difference from that value, as `generation` does here. The table of the layout is in
//! `docs/spec/pack.md`.

use shoal_format::FormatError;

use crate::triplet::Triplet;

/// Bytes of the stripped form: mode 2, links 4, uid 4, gid 4, size 8, four times of 8.
pub const STRIPPED: usize = 54;
/// Longest verbatim form: mask, stripped form, all optional fields.
pub const VERBATIM_MAX: usize = 1 + STRIPPED + 41;
/// Optional fields of a record.
pub const OPTIONAL: usize = 8;
/// Bytes of each optional field, in the order of the mask's bits.
const OPTIONAL_BYTES: [usize; OPTIONAL] = [4, 4, 4, 8, 8, 8, 4, 1];
/// Times of a record, in the order in which they are coded.
pub const TIMES: usize = 4;

/// All fields of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub mode: u16,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Times in nanoseconds since 1970.
    pub ctime: i64,
    pub mtime: i64,
    pub atime: i64,
    pub btime: i64,
    pub flags: u32,
    /// 1, the usual value, for the first user of an inode's number.
    pub generation: u32,
    pub rdev: u32,
    /// Location of the extended attributes, in the caller's terms.
    pub xattr: u64,
    /// Location of the data, in the caller's terms.
    pub data: u64,
    /// Bytes allocated, as the difference from what the caller derives from the other fields.
    pub allocated: u64,
    pub parent: u32,
    /// Stored as the difference from the value that the caller derives from the other fields.
    pub layout: u8,
}

impl Record {
    pub fn triplet(&self) -> Triplet {
        Triplet { uid: self.uid, gid: self.gid, mode: self.mode }
    }

    pub(crate) fn times(&self) -> [i64; TIMES] {
        [self.ctime, self.btime, self.mtime, self.atime]
    }

    pub(crate) fn set_times(&mut self, times: [i64; TIMES]) {
        [self.ctime, self.btime, self.mtime, self.atime] = times;
    }

    /// Returns the record with times in whole seconds and its birth time set to that of the last
    /// change, as ext2 keeps it.
    pub fn in_seconds(&self) -> Record {
        // The second of the earliest possible time begins before that time and is not
        // representable, so it is clamped.
        let whole = |time: i64| time.div_euclid(1_000_000_000).max(i64::MIN / 1_000_000_000) * 1_000_000_000;
        let ctime = whole(self.ctime);
        Record { ctime, btime: ctime, mtime: whole(self.mtime), atime: whole(self.atime), ..*self }
    }

    /// Returns the optional fields; 0 is absent.
    #[inline]
    pub(crate) fn optional(&self) -> [u64; OPTIONAL] {
        [
            self.flags.into(),
            self.generation.wrapping_sub(1).into(),
            self.rdev.into(),
            self.xattr,
            self.data,
            self.allocated,
            self.parent.into(),
            self.layout.into(),
        ]
    }

    /// Sets the optional fields, as the inverse of `optional`. Refuses a value that its field
    /// cannot hold.
    pub(crate) fn set_optional(&mut self, values: [u64; OPTIONAL]) -> Result<(), FormatError> {
        let narrow = |value: u64| {
            u32::try_from(value).map_err(|_| FormatError::Range { what: "inode code", field: "optional", found: value })
        };
        self.flags = narrow(values[0])?;
        self.generation = narrow(values[1])?.wrapping_add(1);
        self.rdev = narrow(values[2])?;
        self.xattr = values[3];
        self.data = values[4];
        self.allocated = values[5];
        self.parent = narrow(values[6])?;
        self.layout = u8::try_from(values[7]).map_err(|_| FormatError::Range {
            what: "inode code",
            field: "layout",
            found: values[7],
        })?;
        Ok(())
    }

    /// Returns which optional fields are present, one bit each.
    #[inline]
    pub(crate) fn mask(&self) -> u8 {
        let values = self.optional();
        if values.iter().fold(0, |any, value| any | value) == 0 {
            return 0;
        }
        (0..OPTIONAL).fold(0, |mask, field| mask | u8::from(values[field] != 0) << field)
    }

    /// Returns the length of the verbatim form (bytes).
    pub fn verbatim_len(&self) -> usize {
        let mask = self.mask();
        1 + STRIPPED + (0..OPTIONAL).filter(|field| mask >> field & 1 == 1).map(|f| OPTIONAL_BYTES[f]).sum::<usize>()
    }

    /// Returns the stripped form.
    pub fn strip(&self) -> [u8; STRIPPED] {
        let mut out = [0; STRIPPED];
        out[..2].copy_from_slice(&self.mode.to_le_bytes());
        out[2..6].copy_from_slice(&self.links.to_le_bytes());
        out[6..10].copy_from_slice(&self.uid.to_le_bytes());
        out[10..14].copy_from_slice(&self.gid.to_le_bytes());
        out[14..22].copy_from_slice(&self.size.to_le_bytes());
        for (at, time) in [self.ctime, self.mtime, self.atime, self.btime].into_iter().enumerate() {
            out[22 + at * 8..30 + at * 8].copy_from_slice(&time.to_le_bytes());
        }
        out
    }

    fn from_stripped(bytes: &[u8; STRIPPED]) -> Record {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Record {
            mode: u16::from_le_bytes([bytes[0], bytes[1]]),
            links: u32_at(2),
            uid: u32_at(6),
            gid: u32_at(10),
            size: u64_at(14),
            ctime: u64_at(22) as i64,
            mtime: u64_at(30) as i64,
            atime: u64_at(38) as i64,
            btime: u64_at(46) as i64,
            generation: 1,
            ..Record::default()
        }
    }

    /// Writes the verbatim form. Returns its length, which is above [`STRIPPED`].
    pub(crate) fn write_verbatim(&self, out: &mut [u8; VERBATIM_MAX]) -> usize {
        let (mask, values) = (self.mask(), self.optional());
        out[0] = mask;
        out[1..=STRIPPED].copy_from_slice(&self.strip());
        let mut at = 1 + STRIPPED;
        for (field, value) in values.iter().enumerate().filter(|(field, _)| mask >> field & 1 == 1) {
            let bytes = OPTIONAL_BYTES[field];
            out[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            at += bytes;
        }
        at
    }

    pub(crate) fn read_verbatim(bytes: &[u8]) -> Result<Record, FormatError> {
        let what = "verbatim inode";
        let short = || FormatError::Short { what, expected: STRIPPED + 1, found: bytes.len() };
        let (&mask, rest) = bytes.split_first().ok_or_else(short)?;
        let (stripped, mut rest) = rest.split_first_chunk::<STRIPPED>().ok_or_else(short)?;
        let mut record = Record::from_stripped(stripped);
        let mut values = [0; OPTIONAL];
        for field in (0..OPTIONAL).filter(|field| mask >> field & 1 == 1) {
            let expected = OPTIONAL_BYTES[field];
            let (value, after) =
                rest.split_at_checked(expected).ok_or(FormatError::Short { what, expected, found: rest.len() })?;
            let mut wide = [0; 8];
            wide[..expected].copy_from_slice(value);
            values[field] = u64::from_le_bytes(wide);
            if values[field] == 0 {
                return Err(FormatError::Range { what, field: "mask", found: mask.into() });
            }
            rest = after;
        }
        if !rest.is_empty() {
            return Err(FormatError::Range { what, field: "length", found: bytes.len() as u64 });
        }
        record.set_optional(values)?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::arbitrary;
    use shoal_sim::Random;

    #[test]
    fn the_verbatim_form_gives_every_record_back_and_is_the_stripped_form_and_one_byte() {
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let record = arbitrary(&mut random);
            let mut out = [0; VERBATIM_MAX];
            let len = record.write_verbatim(&mut out);
            assert_eq!(len, record.verbatim_len());
            assert_eq!(Record::read_verbatim(&out[..len]), Ok(record));
            assert!(Record::read_verbatim(&out[..len - 1]).is_err());
        }
        let plain = Record { generation: 1, ctime: -1, btime: i64::MIN, mtime: i64::MAX, ..Record::default() };
        assert_eq!(plain.verbatim_len(), STRIPPED + 1);
    }

    #[test]
    fn a_mask_that_names_an_absent_field_is_refused() {
        let mut bytes = [0; 1 + STRIPPED + 4];
        bytes[0] = 1;
        assert!(matches!(Record::read_verbatim(&bytes), Err(FormatError::Range { field: "mask", .. })));
        bytes[0] = 0;
        assert!(matches!(Record::read_verbatim(&bytes), Err(FormatError::Range { field: "length", .. })));
    }
}
