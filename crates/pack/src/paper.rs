//! The compressors of mramfs: each field of an inode is coded separately, all with one kind of
//! code.
//!
//! Owns: [`FieldCodec`], which is all-or-nothing, Huffman or gamma, depending on its tables, or the
//! mixture of them that the paper proposes as future work; [`FieldCounts`], from which a tree's
//! tables are made. The first two code mode, uid and gid separately. Gamma and the mixture code an
//! index into the table of triplets. Times are coded as in the paper: ctime from an epoch, mtime
//! from ctime, atime from mtime. The sign of a difference is its lowest bit, a detail that the
//! paper leaves open.
//!
//! Left out: pointers, parents and the other fields that mramfs did not have. Records with any of
//! them are written verbatim.

use shoal_format::FormatError;

use crate::bits::{BitReader, BitWriter, padded};
use crate::bytes::Described;
use crate::codec::{Code, Codec, Context, Field, Widths};
use crate::field::{Counts, FieldCode};
use crate::record::{Record, STRIPPED};

/// The paper's compressors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AllOrNothing,
    Huffman,
    Gamma,
    /// The shortest code for each field.
    Mixed,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::AllOrNothing, Kind::Huffman, Kind::Gamma, Kind::Mixed];

    pub fn name(self) -> &'static str {
        match self {
            Kind::AllOrNothing => "all-or-nothing",
            Kind::Huffman => "huffman",
            Kind::Gamma => "gamma",
            Kind::Mixed => "mixed",
        }
    }

    fn has_triplets(self) -> bool {
        matches!(self, Kind::Gamma | Kind::Mixed)
    }
}

/// Precision of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Whole seconds and no birth time, as in ext2.
    Seconds,
    Nanoseconds,
}

/// Fields in the order of the code. Kind and precision determine which are used.
const FIELDS: [Field; 13] = [
    Field::Mode,
    Field::Uid,
    Field::Gid,
    Field::Triplet,
    Field::Links,
    Field::Size,
    Field::Ctime,
    Field::Mtime,
    Field::Atime,
    Field::Btime,
    // Flags, generation, device number.
    Field::Optional,
    Field::Optional,
    Field::Optional,
];
const NAMES: [&str; FIELDS.len()] = [
    "mode",
    "uid",
    "gid",
    "triplet",
    "links",
    "size",
    "ctime",
    "mtime",
    "atime",
    "btime",
    "flags",
    "generation",
    "rdev",
];
const TRIPLET: usize = 3;
const BTIME: usize = 9;
const GENERATION: usize = 11;

/// 2000-01-01 in seconds since 1970: the millennium from which the paper counts ctime.
const EPOCH_S: i64 = 946_684_800;
pub(crate) const S_NS: i64 = 1_000_000_000;

/// Moves the sign of a number into its lowest bit.
#[inline]
pub(crate) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

#[inline]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Determines the fields of a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    precision: Precision,
    has_triplets: bool,
}

impl Shape {
    fn uses(self, field: usize) -> bool {
        match field {
            0..TRIPLET => !self.has_triplets,
            TRIPLET => self.has_triplets,
            BTIME => self.precision == Precision::Nanoseconds,
            _ => true,
        }
    }

    fn width(self, field: usize) -> u8 {
        match FIELDS[field] {
            Field::Mode => 16,
            Field::Triplet => 14,
            Field::Size => 64,
            Field::Ctime | Field::Mtime | Field::Atime | Field::Btime => match self.precision {
                // A difference of two 32-bit times, and its sign.
                Precision::Seconds => 33,
                Precision::Nanoseconds => 64,
            },
            _ => 32,
        }
    }

    /// Returns the numbers to code, or `None` if they cannot hold the record.
    #[inline]
    fn split(self, record: &Record, context: &Context) -> Option<[u64; FIELDS.len()]> {
        if record.xattr | record.data | record.allocated | u64::from(record.parent) | u64::from(record.layout) != 0 {
            return None;
        }
        let unit = match self.precision {
            Precision::Seconds => S_NS,
            Precision::Nanoseconds => 1,
        };
        let times = [record.ctime, record.mtime, record.atime, record.btime];
        if self.precision == Precision::Seconds && (times.iter().any(|t| t % S_NS != 0) || record.btime != record.ctime)
        {
            return None;
        }
        let [ctime, mtime, atime, btime] = times.map(|time| time / unit);
        let triplet = if self.has_triplets { context.triplets.find(record.triplet())?.into() } else { 0 };
        let values = [
            record.mode.into(),
            record.uid.into(),
            record.gid.into(),
            triplet,
            record.links.into(),
            record.size,
            zigzag(ctime.wrapping_sub(EPOCH_S * (S_NS / unit))),
            zigzag(mtime.wrapping_sub(ctime)),
            zigzag(atime.wrapping_sub(mtime)),
            zigzag(btime.wrapping_sub(ctime)),
            record.flags.into(),
            record.generation.wrapping_sub(1).into(),
            record.rdev.into(),
        ];
        let fits = (0..FIELDS.len()).all(|field| values[field].unbounded_shr(self.width(field).into()) == 0);
        fits.then_some(values)
    }

    #[inline]
    fn join(self, values: [u64; FIELDS.len()], context: &Context) -> Result<Record, FormatError> {
        let what = "inode code";
        let narrow = |field: &'static str, value: u64| {
            u32::try_from(value).map_err(|_| FormatError::Range { what, field, found: value })
        };
        let unit = match self.precision {
            Precision::Seconds => S_NS,
            Precision::Nanoseconds => 1,
        };
        let mut record = Record {
            links: narrow("links", values[4])?,
            size: values[5],
            flags: narrow("flags", values[10])?,
            generation: narrow("generation", values[11])?.wrapping_add(1),
            rdev: narrow("rdev", values[12])?,
            ..Record::default()
        };
        if self.has_triplets {
            let range = FormatError::Range { what, field: "triplet", found: values[TRIPLET] };
            let triplet = context.triplets.get(values[TRIPLET]).ok_or(range)?;
            (record.mode, record.uid, record.gid) = (triplet.mode, triplet.uid, triplet.gid);
        } else {
            record.mode =
                u16::try_from(values[0]).map_err(|_| FormatError::Range { what, field: "mode", found: values[0] })?;
            (record.uid, record.gid) = (narrow("uid", values[1])?, narrow("gid", values[2])?);
        }
        let ctime = unzigzag(values[6]).wrapping_add(EPOCH_S * (S_NS / unit));
        let mtime = unzigzag(values[7]).wrapping_add(ctime);
        let atime = unzigzag(values[8]).wrapping_add(mtime);
        let btime = unzigzag(values[9]).wrapping_add(ctime);
        record.set_times([ctime, btime, mtime, atime].map(|time| time.wrapping_mul(unit)));
        Ok(record)
    }
}

/// How often each value of each field occurs in a tree.
#[derive(Clone, Debug)]
pub struct FieldCounts {
    kind: Kind,
    shape: Shape,
    counts: Vec<Counts>,
}

impl FieldCounts {
    pub fn new(kind: Kind, precision: Precision) -> FieldCounts {
        let shape = Shape { precision, has_triplets: kind.has_triplets() };
        FieldCounts { kind, shape, counts: vec![Counts::default(); FIELDS.len()] }
    }

    /// Counts a record. Returns whether the codec can hold it.
    pub fn add(&mut self, record: &Record, context: &Context) -> bool {
        let Some(values) = self.shape.split(record, context) else { return false };
        for (counts, value) in self.counts.iter_mut().zip(values) {
            counts.add(value);
        }
        true
    }

    /// Returns the names and counts of the fields in use.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &Counts)> {
        (0..FIELDS.len()).filter(|field| self.shape.uses(*field)).map(|field| (NAMES[field], &self.counts[field]))
    }

    /// Builds the compressor for this tree.
    pub fn codec(&self) -> FieldCodec {
        let code = |field: usize| {
            let (counts, width) = (&self.counts[field], self.shape.width(field));
            if counts.is_empty() {
                return FieldCode::unknown(width);
            }
            match (self.kind, FIELDS[field]) {
                (Kind::AllOrNothing, _) => FieldCode::all_or_nothing(counts, width),
                (Kind::Gamma, _) => FieldCode::gamma(counts, width),
                (Kind::Mixed, _) => FieldCode::best(counts, width),
                (Kind::Huffman, Field::Size | Field::Ctime | Field::Mtime | Field::Atime | Field::Btime) => {
                    FieldCode::lengths(counts, width)
                }
                // Generations of ext2 are a counter, so that hardly two are equal.
                (Kind::Huffman, _) if field == GENERATION => FieldCode::lengths(counts, width),
                (Kind::Huffman, _) => FieldCode::values(counts, FieldCode::Raw { width }),
            }
        };
        FieldCodec { shape: self.shape, codes: (0..FIELDS.len()).map(code).collect() }
    }
}

/// A compressor that codes each field separately.
#[derive(Clone, Debug)]
pub struct FieldCodec {
    shape: Shape,
    codes: Vec<FieldCode>,
}

impl FieldCodec {
    /// Describes the codes of the fields in use.
    pub(crate) fn describe(&self) -> Vec<Described> {
        (0..FIELDS.len())
            .filter(|field| self.shape.uses(*field))
            .map(|field| self.codes[field].describe(NAMES[field]))
            .collect()
    }

    /// Returns the codes of all fields, including unused ones.
    pub(crate) fn codes(&self) -> &[FieldCode] {
        &self.codes
    }

    /// Builds a codec whose codes come from `code`, which is called with the width of each field.
    pub(crate) fn read(
        kind: Kind,
        precision: Precision,
        mut code: impl FnMut(u8) -> Result<FieldCode, FormatError>,
    ) -> Result<FieldCodec, FormatError> {
        let shape = Shape { precision, has_triplets: kind.has_triplets() };
        let codes = (0..FIELDS.len()).map(|field| code(shape.width(field))).collect::<Result<_, _>>()?;
        Ok(FieldCodec { shape, codes })
    }
}

impl Codec for FieldCodec {
    fn encode(&self, record: &Record, context: &Context, out: &mut Code) {
        let Some(values) = self.shape.split(record, context) else { return out.set(record, None) };
        let mut writer = BitWriter::new();
        for (field, value) in values.into_iter().enumerate().filter(|(field, _)| self.shape.uses(*field)) {
            self.codes[field].put(&mut writer, value);
        }
        out.set(record, Some(&writer));
    }

    fn decode(&self, code: &[u8], context: &Context) -> Result<Record, FormatError> {
        if code.len() > STRIPPED {
            return Record::read_verbatim(code);
        }
        let padded = padded(code)?;
        let mut reader = BitReader::new(&padded, code.len());
        let mut values = [0; FIELDS.len()];
        for field in (0..FIELDS.len()).filter(|field| self.shape.uses(*field)) {
            values[field] = self.codes[field].take(&mut reader)?;
        }
        reader.end()?;
        self.shape.join(values, context)
    }

    fn widths(&self, record: &Record, context: &Context) -> Option<Widths> {
        let values = self.shape.split(record, context)?;
        let mut widths = Widths::default();
        for field in (0..FIELDS.len()).filter(|field| self.shape.uses(*field)) {
            widths[FIELDS[field] as usize] += self.codes[field].cost(values[field]);
        }
        (widths.iter().sum::<u32>() as usize <= STRIPPED * 8).then_some(widths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{arbitrary, context_of, tree};
    use crate::times::Bases;
    use shoal_sim::Random;

    #[test]
    fn every_record_comes_back_under_every_compressor_also_one_of_another_tree() {
        for seed in 0..12 {
            for precision in [Precision::Seconds, Precision::Nanoseconds] {
                let mut random = Random::new(seed);
                let of = |record: Record| if precision == Precision::Seconds { record.in_seconds() } else { record };
                let own: Vec<Record> = tree(seed, 300).into_iter().map(of).collect();
                let mut others: Vec<Record> = tree(seed + 100, 50).into_iter().map(of).collect();
                others.extend((0..200).map(|_| arbitrary(&mut random)));
                let triplets = context_of(own.iter().chain(&others[..200]));
                let context = Context { triplets: &triplets, bases: Bases::default() };
                for kind in Kind::ALL {
                    let mut counts = FieldCounts::new(kind, precision);
                    assert!(own.iter().all(|record| counts.add(record, &context)), "seed {seed} {kind:?}");
                    let codec = counts.codec();
                    let mut code = Code::default();
                    for record in own.iter().chain(&others) {
                        codec.encode(record, &context, &mut code);
                        assert!(code.bytes().len() <= record.verbatim_len(), "seed {seed} {kind:?}");
                        assert_eq!(codec.decode(code.bytes(), &context), Ok(*record), "seed {seed} {kind:?}");
                        let widths = codec.widths(record, &context).map(|widths| widths.iter().sum::<u32>());
                        let bytes = widths.map_or(record.verbatim_len(), |bits| bits.div_ceil(8) as usize);
                        assert_eq!(code.bytes().len(), bytes, "seed {seed} {kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn signs_are_in_the_lowest_bit() {
        for (value, coded) in [(0, 0), (-1, 1), (1, 2), (i64::MIN, u64::MAX), (i64::MAX, u64::MAX - 1)] {
            assert_eq!((zigzag(value), unzigzag(coded)), (coded, value));
        }
    }
}
