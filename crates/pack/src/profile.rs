//! Profiles: the tables of compressors for a kind of tree, as a file and in a store.
//!
//! Owns: [`Census`], which counts a tree; [`Profile`], one compressor made from it;
//! [`ProfileFile`], several of them as bytes, with the command that made them; the built-in
//! profiles. A profile stores the codes themselves (values, lengths, buckets), not the counts they
//! came from, so a later program that builds other codes from the same counts can still decode.
//! Rules: bytes whose checksum, version or tables are wrong are refused; the table of the layout is
//! in `docs/spec/pack.md`.

use std::collections::HashMap;

use shoal_format::{FormatError, checksum};

use crate::bytes::{Described, Source, put_lengths, put_number, refuse};
use crate::codec::{Codec, Context};
use crate::field::{FieldCode, VALUES_MAX};
use crate::hybrid::{Hybrid, HybridCounts, TripletCode};
use crate::paper::{FieldCodec, FieldCounts, Kind, Precision};
use crate::record::Record;
use crate::times::Bases;
use crate::triplet::{Triplet, Triplets};

const MAGIC: [u8; 8] = *b"SHPROFIL";
const VERSION: u32 = 1;
/// Bytes before the summed ones: magic, version, checksum.
const HEAD: usize = 16;
/// Maximum number of profiles in a file or a store.
pub const PROFILES_MAX: usize = 16;

/// The built-in profiles. The comment in the file names the command that made them.
static BUILT_IN: &[u8] = include_bytes!("../data/built-in.profile");

/// Counts of a tree, for all compressors and both precisions.
#[derive(Clone, Debug)]
pub struct Census {
    fields: Vec<(Kind, Precision, FieldCounts)>,
    hybrid: [(Precision, HybridCounts); 2],
    triplets: Triplets,
    /// Records that the paper's compressors can write only verbatim.
    pub verbatim: u64,
}

impl Census {
    /// Counts trees of records, each in the order of inode numbers. Sixteen adjacent records are a
    /// block.
    pub fn of(trees: &[&[Record]]) -> Census {
        Census::with_stored(trees, trees)
    }

    /// Like [`Census::of`], but makes Shoal's own compressor from `stored`, the trees' inodes as a
    /// store has them.
    pub fn with_stored(trees: &[&[Record]], stored: &[&[Record]]) -> Census {
        let triplets = by_frequency(trees.iter().copied().flatten());
        let fields = Kind::ALL.into_iter().flat_map(|kind| {
            [Precision::Seconds, Precision::Nanoseconds]
                .map(|precision| (kind, precision, FieldCounts::new(kind, precision)))
        });
        let mut census = Census {
            fields: fields.collect(),
            hybrid: [Precision::Seconds, Precision::Nanoseconds].map(|precision| (precision, HybridCounts::default())),
            triplets,
            verbatim: 0,
        };
        let stored = stored.iter().flat_map(|tree| tree.chunks(16));
        for (block, stored) in trees.iter().flat_map(|tree| tree.chunks(16)).zip(stored) {
            let seconds: Vec<Record> = block.iter().map(Record::in_seconds).collect();
            let of = |precision| if precision == Precision::Seconds { &seconds[..] } else { block };
            let context = Context { triplets: &census.triplets, bases: Bases::default() };
            for (kind, precision, counts) in &mut census.fields {
                let counted = of(*precision).iter().filter(|record| counts.add(record, &context)).count();
                if (*kind, *precision) == (Kind::Gamma, Precision::Nanoseconds) {
                    census.verbatim += (block.len() - counted) as u64;
                }
            }
            let seconds: Vec<Record> = stored.iter().map(Record::in_seconds).collect();
            for (precision, counts) in &mut census.hybrid {
                let block = if *precision == Precision::Seconds { &seconds[..] } else { stored };
                let bases = Bases::of(block);
                block.iter().for_each(|record| counts.add(record, &bases));
            }
        }
        census
    }

    /// Returns the trees' triplets and the number of inodes with each, the most frequent first.
    pub fn triplets(&self) -> impl Iterator<Item = (Triplet, u64)> {
        self.triplets.entries().map(|(_, triplet, users)| (triplet, users))
    }

    /// Returns the counts of each field, with inodes split as in the paper.
    pub fn fields(&self, kind: Kind, precision: Precision) -> Option<&FieldCounts> {
        self.fields.iter().find(|entry| (entry.0, entry.1) == (kind, precision)).map(|entry| &entry.2)
    }

    /// Builds all compressors for these trees.
    pub fn profiles(&self) -> Vec<Profile> {
        let fields = self.fields.iter().map(|(kind, precision, counts)| Profile {
            precision: *precision,
            tables: Tables::Fields(*kind, counts.codec()),
        });
        let hybrid = self.hybrid.iter().map(|(precision, counts)| Profile {
            precision: *precision,
            tables: Tables::Hybrid(Box::new(counts.codec())),
        });
        fields.chain(hybrid).collect()
    }
}

/// Builds a table of the triplets of these records, the most frequent first. Triplets that do not
/// fit are left out.
pub fn by_frequency<'a>(records: impl Iterator<Item = &'a Record>) -> Triplets {
    let mut counts: HashMap<Triplet, u64> = HashMap::new();
    for record in records {
        *counts.entry(record.triplet()).or_default() += 1;
    }
    let mut sorted: Vec<(Triplet, u64)> = counts.into_iter().collect();
    sorted.sort_unstable_by_key(|(triplet, count)| (u64::MAX - count, *triplet));
    let entries = sorted.into_iter().take(crate::TRIPLETS_MAX).zip(0u16..);
    Triplets::restore(entries.map(|((triplet, count), index)| (index, triplet, count))).expect("all differ")
}

/// The tables of one compressor.
#[derive(Clone, Debug)]
pub enum Tables {
    /// The tables of a compressor of the paper.
    Fields(Kind, FieldCodec),
    Hybrid(Box<Hybrid>),
}

/// A compressor made for a kind of tree.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Precision of the times from which it was made.
    pub precision: Precision,
    pub tables: Tables,
}

impl Profile {
    pub fn codec(&self) -> &dyn Codec {
        match &self.tables {
            Tables::Fields(_, codec) => codec,
            Tables::Hybrid(codec) => &**codec,
        }
    }

    /// Returns the name of the compressor.
    pub fn name(&self) -> &'static str {
        match &self.tables {
            Tables::Fields(kind, _) => kind.name(),
            Tables::Hybrid(_) => "hybrid",
        }
    }

    /// Describes its tables in readable form.
    pub fn describe(&self) -> Vec<Described> {
        match &self.tables {
            Tables::Fields(_, codec) => codec.describe(),
            Tables::Hybrid(codec) => codec.describe(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let kind = match &self.tables {
            Tables::Fields(kind, _) => *kind as u8,
            Tables::Hybrid(_) => 4,
        };
        out.extend([kind, self.precision as u8]);
        match &self.tables {
            Tables::Fields(_, codec) => codec.codes().iter().for_each(|code| code.write(out)),
            Tables::Hybrid(codec) => {
                out.extend((codec.triplets.known.len() as u16).to_le_bytes());
                for triplet in &codec.triplets.known {
                    put_number(out, triplet.uid.into());
                    put_number(out, triplet.gid.into());
                    put_number(out, triplet.mode.into());
                }
                put_lengths(out, &codec.triplets.huffman);
                codec.codes.iter().for_each(|code| code.write(out));
            }
        }
    }

    fn read(source: &mut Source) -> Result<Profile, FormatError> {
        let kind = source.u8()?;
        let precision = match source.u8()? {
            0 => Precision::Seconds,
            1 => Precision::Nanoseconds,
            found => return Err(refuse("precision", found.into())),
        };
        if let Some(kind) = Kind::ALL.get(usize::from(kind)) {
            let codec = FieldCodec::read(*kind, precision, |width| FieldCode::read(source, width))?;
            return Ok(Profile { precision, tables: Tables::Fields(*kind, codec) });
        }
        if kind != 4 {
            return Err(refuse("compressor", kind.into()));
        }
        let count = usize::from(source.u16()?);
        if count > VALUES_MAX {
            return Err(refuse("triplets", count as u64));
        }
        let mut known: Vec<Triplet> = vec![];
        for _ in 0..count {
            let values = [source.number()?, source.number()?, source.number()?];
            let [Ok(uid), Ok(gid)] = [u32::try_from(values[0]), u32::try_from(values[1])] else {
                return Err(refuse("triplet", values[0]));
            };
            let mode = u16::try_from(values[2]).map_err(|_| refuse("triplet", values[2]))?;
            known.push(Triplet { uid, gid, mode });
        }
        let mut sorted = known.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(refuse("triplet", pair[0].uid.into()));
        }
        let triplets = TripletCode::new(known, source.lengths(count + 1)?);
        let codes = (0..Hybrid::FIELDS)
            .map(|field| FieldCode::read(source, Hybrid::width(field)))
            .collect::<Result<Box<[FieldCode]>, _>>()?;
        let codes = codes.try_into().map_err(|_| refuse("fields", Hybrid::FIELDS as u64))?;
        Ok(Profile { precision, tables: Tables::Hybrid(Box::new(Hybrid { triplets, codes })) })
    }
}

/// Several profiles, and where they come from.
#[derive(Clone, Debug)]
pub struct ProfileFile {
    /// The command that made the profiles; at most 65,535 bytes of it are kept.
    pub comment: String,
    pub profiles: Vec<Profile>,
}

impl ProfileFile {
    /// Returns the profiles that are built into every program.
    pub fn built_in() -> ProfileFile {
        ProfileFile::from_bytes(BUILT_IN).expect("the built-in profiles are tested")
    }

    /// Finds a compressor's profile by name, for times of this precision.
    pub fn find(&self, name: &str, precision: Precision) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.name() == name && profile.precision == precision)
    }

    /// Returns the profiles with which a store packs its inodes: Shoal's own compressors, those for
    /// nanoseconds first.
    pub fn of_store(&self) -> ProfileFile {
        let of = |precision| self.profiles.iter().filter(move |p| p.name() == "hybrid" && p.precision == precision);
        let profiles = of(Precision::Nanoseconds).chain(of(Precision::Seconds)).cloned().collect();
        ProfileFile { comment: self.comment.clone(), profiles }
    }

    /// Joins the profiles and comments of several files into one file.
    pub fn join(files: impl IntoIterator<Item = ProfileFile>) -> ProfileFile {
        let mut joined = ProfileFile { comment: String::new(), profiles: Vec::new() };
        for file in files {
            joined.comment += &file.comment;
            joined.profiles.extend(file.profiles);
        }
        joined
    }

    /// Returns the compressors of a store's profiles by number, or `None` if one of them is not
    /// Shoal's own.
    pub fn into_hybrids(self) -> Option<Vec<Hybrid>> {
        let hybrid = |profile: Profile| match profile.tables {
            Tables::Hybrid(hybrid) => Some(*hybrid),
            Tables::Fields(..) => None,
        };
        self.profiles.into_iter().map(hybrid).collect()
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        assert!(self.profiles.len() <= PROFILES_MAX, "at most {PROFILES_MAX} profiles");
        let mut end = self.comment.len().min(u16::MAX.into());
        while !self.comment.is_char_boundary(end) {
            end -= 1;
        }
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 4]);
        out.extend((end as u16).to_le_bytes());
        out.extend(&self.comment.as_bytes()[..end]);
        out.push(self.profiles.len() as u8);
        self.profiles.iter().for_each(|profile| profile.write(&mut out));
        let sum = checksum(0, &out[HEAD..]);
        out[HEAD - 4..HEAD].copy_from_slice(&sum.to_le_bytes());
        out
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<ProfileFile, FormatError> {
        let what = "profile";
        let (head, rest) =
            bytes.split_first_chunk::<HEAD>().ok_or(FormatError::Short { what, expected: HEAD, found: bytes.len() })?;
        let u64_of = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        if head[..8] != MAGIC {
            return Err(FormatError::Magic { what, expected: u64_of(&MAGIC), found: u64_of(&head[..8]) });
        }
        let version = u64_of(&head[8..12]) as u32;
        if version != VERSION {
            return Err(FormatError::Version { what, expected: VERSION, found: version });
        }
        let (expected, found) = (u64_of(&head[12..]) as u32, checksum(0, rest));
        if expected != found {
            return Err(FormatError::Checksum { what, expected, found });
        }
        let mut source = Source::new(rest);
        let comment_len = source.u16()?;
        let comment = source.take(comment_len.into())?;
        let comment =
            std::str::from_utf8(comment).map_err(|error| refuse("comment", error.valid_up_to() as u64))?.to_string();
        let count = source.u8()?;
        if usize::from(count) > PROFILES_MAX {
            return Err(refuse("profiles", count.into()));
        }
        let profiles = (0..count).map(|_| Profile::read(&mut source)).collect::<Result<Vec<_>, _>>()?;
        if !source.is_empty() {
            return Err(refuse("length", bytes.len() as u64));
        }
        Ok(ProfileFile { comment, profiles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Code;
    use crate::samples::{arbitrary, context_of, tree};
    use shoal_sim::Random;

    fn file(seed: u64) -> (Vec<Record>, ProfileFile) {
        let tree = tree(seed, 500);
        let profiles = Census::of(&[&tree]).profiles();
        (tree, ProfileFile { comment: "shoal profile é".into(), profiles })
    }

    #[test]
    fn a_profile_read_back_makes_the_same_codes() {
        for seed in 0..10 {
            let mut random = Random::new(seed);
            let (mut records, file) = file(seed);
            records.extend((0..200).map(|_| arbitrary(&mut random)));
            records.extend(records.iter().map(Record::in_seconds).collect::<Vec<_>>());
            let triplets = context_of(records.iter());
            let context = Context { triplets: &triplets, bases: Bases::of(&records[..16]) };
            let again = ProfileFile::from_bytes(&file.to_bytes()).unwrap();
            assert_eq!((again.comment.as_str(), again.profiles.len()), ("shoal profile é", 10));
            let (mut one, mut other) = (Code::default(), Code::default());
            for (made, read) in file.profiles.iter().zip(&again.profiles) {
                assert_eq!((made.name(), made.precision), (read.name(), read.precision));
                for record in &records {
                    made.codec().encode(record, &context, &mut one);
                    read.codec().encode(record, &context, &mut other);
                    assert_eq!(one.bytes(), other.bytes(), "seed {seed} {}", made.name());
                    assert_eq!(read.codec().decode(one.bytes(), &context), Ok(*record), "seed {seed} {}", made.name());
                }
            }
        }
    }

    #[test]
    fn a_profile_with_a_flipped_bit_is_refused() {
        let mut bytes = file(1).1.to_bytes();
        let mut random = Random::new(2);
        for _ in 0..3000 {
            let bit = random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = ProfileFile::from_bytes(&bytes).unwrap_err();
            match bit / 8 {
                0..8 => assert!(matches!(error, FormatError::Magic { .. })),
                8..12 => assert!(matches!(error, FormatError::Version { .. })),
                _ => assert!(matches!(error, FormatError::Checksum { .. })),
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(ProfileFile::from_bytes(&bytes).is_ok());
    }

    #[test]
    fn a_damaged_profile_with_a_right_checksum_is_refused_or_codes_all_records() {
        let mut random = Random::new(3);
        let (records, file) = file(3);
        let triplets = context_of(records.iter());
        let context = Context { triplets: &triplets, bases: Bases::default() };
        let bytes = file.to_bytes();
        let (mut refused, mut code) = (0, Code::default());
        for round in 0..3000 {
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = HEAD + random.below((bytes.len() - HEAD) as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            if random.below(4) == 0 {
                bytes.truncate(HEAD + random.below((bytes.len() - HEAD) as u64) as usize);
            }
            let sum = checksum(0, &bytes[HEAD..]);
            bytes[12..16].copy_from_slice(&sum.to_le_bytes());
            let Ok(file) = ProfileFile::from_bytes(&bytes) else {
                refused += 1;
                continue;
            };
            for profile in &file.profiles {
                for record in records.iter().skip(round % 16).step_by(101) {
                    profile.codec().encode(record, &context, &mut code);
                    assert_eq!(profile.codec().decode(code.bytes(), &context), Ok(*record), "round {round}");
                }
            }
        }
        assert!(refused > 1000, "{refused}");
    }

    #[test]
    fn the_built_in_profiles_are_there_and_name_the_command_that_made_them() {
        let file = ProfileFile::built_in();
        assert!(file.comment.contains("shoal profile"), "{}", file.comment);
        for name in ["all-or-nothing", "huffman", "gamma", "mixed", "hybrid"] {
            assert!(file.find(name, Precision::Seconds).is_some(), "{name}");
            assert!(file.find(name, Precision::Nanoseconds).is_some(), "{name}");
        }
        let of_store = file.of_store();
        println!("{} bytes in a store", of_store.to_bytes().len());
        assert_eq!(of_store.profiles[0].precision, Precision::Nanoseconds);
        assert_eq!(of_store.into_hybrids().map(|all| all.len()), Some(2));
        assert!(file.into_hybrids().is_none());
    }
}
