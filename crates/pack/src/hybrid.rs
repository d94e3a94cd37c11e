//! Shoal's own compressor: the shortest code for each field, or for the record as a whole.
//!
//! Owns: [`Hybrid`], and [`HybridCounts`], from which it is made. A code consists of
//!
//! 1. the triplet, either one that the profile knows or an index into the store's table;
//! 2. the *head*, one symbol for everything that is usual about an inode of this type: which
//!    optional fields there are, whether it has one link, and the relation of each time (`times`).
//!    An absent field costs nothing extra, because the usual heads take only a few bits;
//! 3. the links unless there is one, the size by the inode's type, the differences of the times,
//!    and the optional fields.
//!
//! Each of these fields has the code that was shortest for the profile's tree: Huffman of values or
//! of lengths, gamma, or all-or-nothing. Rules: the verbatim form replaces a code that would be
//! longer than the stripped record.

use std::collections::HashMap;

use shoal_format::FormatError;

use crate::bits::{BitReader, BitWriter, padded};
use crate::bytes::Described;
use crate::codec::{Code, Codec, Context, Field, Widths};
use crate::field::{Counts, FieldCode, VALUES_MAX};
use crate::gamma::Gamma;
use crate::huffman::Huffman;
use crate::record::{OPTIONAL, Record, STRIPPED, TIMES};
use crate::times::{self, Bases, Chosen, RELATION_BITS, Split, UNITS};
use crate::triplet::Triplet;

/// Inode types with tables of their own: files, directories, symbolic links, all others.
pub(crate) const TYPES: usize = 4;
/// Bits of a head: the optional fields, whether there is one link, four relations.
const HEAD_BITS: u8 = 8 + 1 + (TIMES as u32 * RELATION_BITS) as u8;
/// Bits of an index into the store's triplets.
const TRIPLET_BITS: u8 = 14;
/// Widths of the optional fields.
const OPTIONAL_WIDTHS: [u8; OPTIONAL] = [32, 32, 32, 64, 64, 64, 32, 8];
/// Bit set only in a store's references to slots.
const IS_SLOT: u64 = 1 << 46;
/// Place of the data reference among the optional fields.
const DATA: usize = 4;

#[inline]
fn type_of(mode: u16) -> usize {
    match mode & 0o170000 {
        0o100000 => 0,
        0o040000 => 1,
        0o120000 => 2,
        _ => 3,
    }
}

#[inline]
fn head_of(record: &Record, chosen: &Chosen) -> u64 {
    let mut head = u64::from(record.mask()) | u64::from(record.links == 1) << 8;
    for (at, relation) in chosen.relations.into_iter().enumerate() {
        head |= u64::from(relation) << (9 + at as u32 * RELATION_BITS);
    }
    head
}

/// How often each value of each field occurs in a tree.
#[derive(Clone, Debug, Default)]
pub struct HybridCounts {
    triplets: HashMap<Triplet, u64>,
    heads: [Counts; TYPES],
    links: Counts,
    sizes: [Counts; TYPES],
    times: [[Counts; UNITS]; TIMES],
    optional: [Counts; OPTIONAL],
}

impl HybridCounts {
    /// Counts a record of a block with these bases.
    pub fn add(&mut self, record: &Record, bases: &Bases) {
        let (kind, chosen) = (type_of(record.mode), times::choose(&times::split(record), bases));
        *self.triplets.entry(record.triplet()).or_default() += 1;
        self.heads[kind].add(head_of(record, &chosen));
        if record.links != 1 {
            self.links.add(record.links.into());
        }
        self.sizes[kind].add(record.size);
        for (at, relation) in chosen.relations.into_iter().enumerate() {
            if let Some(unit) = times::unit_of(relation) {
                self.times[at][unit].add(chosen.differences[at]);
            }
        }
        for (field, value) in record.optional().into_iter().enumerate().filter(|(_, value)| *value != 0) {
            self.optional[field].add(value);
        }
    }

    /// Returns the triplets, the most frequent first.
    pub fn triplets(&self) -> Vec<(Triplet, u64)> {
        let mut sorted: Vec<(Triplet, u64)> = self.triplets.iter().map(|(triplet, count)| (*triplet, *count)).collect();
        sorted.sort_unstable_by_key(|(triplet, count)| (u64::MAX - count, *triplet));
        sorted
    }

    /// Builds the compressor for this tree.
    pub fn codec(&self) -> Hybrid {
        let head = |counts: &Counts| {
            let other = FieldCode::Raw { width: HEAD_BITS };
            if counts.is_empty() {
                return other;
            }
            FieldCode::frequent_values(counts, 2, other)
        };
        let field = |counts: &Counts, width: u8| FieldCode::best(counts, width);
        let mut codes: Vec<FieldCode> = self.heads.iter().map(head).collect();
        codes.push(field(&self.links, 32));
        codes.extend(self.sizes.iter().map(|counts| field(counts, 64)));
        codes.extend(self.times.iter().flatten().map(|counts| field(counts, 64)));
        // References of a store get codes of the same length wherever a piece lies, because a
        // resize moves pieces and encodes in place.
        let optional = |(counts, width): (&Counts, u8)| match counts.are_all_from(IS_SLOT) {
            true => FieldCode::lengths(counts, width),
            false => field(counts, width),
        };
        codes.extend(self.optional.iter().zip(OPTIONAL_WIDTHS).map(optional));
        let sorted = self.triplets();
        let kept = sorted.iter().take_while(|(_, count)| *count >= 2).count().min(VALUES_MAX);
        let (kept, rest) = sorted.split_at(kept);
        let mut weights: Vec<u64> = kept.iter().map(|(_, count)| *count).collect();
        weights.push(1 + rest.iter().map(|(_, count)| count).sum::<u64>());
        let known = kept.iter().map(|(triplet, _)| *triplet).collect();
        let codes = codes.try_into().unwrap_or_else(|_| unreachable!("one code for each field"));
        Hybrid { triplets: TripletCode::new(known, Huffman::from_counts(&weights)), codes }
    }
}

/// Codes of the triplets that a profile knows. OTHER is followed by an index into the store's
/// table.
#[derive(Clone, Debug)]
pub(crate) struct TripletCode {
    pub known: Vec<Triplet>,
    pub huffman: Huffman,
    other: Gamma,
    /// Hash table of symbol + 1; 0 marks an empty place.
    places: Vec<u16>,
}

impl TripletCode {
    pub fn new(known: Vec<Triplet>, huffman: Huffman) -> TripletCode {
        let bits = (known.len() * 2).next_power_of_two().trailing_zeros().max(1);
        let mut places = vec![0; 1 << bits];
        for (symbol, triplet) in known.iter().enumerate() {
            let mut place = triplet.place(bits);
            while places[place] != 0 {
                place = (place + 1) % places.len();
            }
            places[place] = symbol as u16 + 1;
        }
        let other = Gamma::new(&[2, 4, 6, 9], TRIPLET_BITS).expect("few buckets");
        TripletCode { known, huffman, other, places }
    }

    #[inline]
    fn symbol(&self, triplet: Triplet) -> usize {
        let mut at = triplet.place(self.places.len().trailing_zeros());
        loop {
            match self.places[at] {
                0 => return self.known.len(),
                symbol if self.known[usize::from(symbol) - 1] == triplet => return usize::from(symbol) - 1,
                _ => at = (at + 1) % self.places.len(),
            }
        }
    }

    /// Appends a triplet's code. Returns whether the triplet has one.
    #[inline]
    fn put(&self, out: &mut BitWriter, triplet: Triplet, context: &Context) -> bool {
        let symbol = self.symbol(triplet);
        self.huffman.put(out, symbol);
        if symbol == self.known.len() {
            let Some(index) = context.triplets.find(triplet) else { return false };
            self.other.put(out, index.into());
        }
        true
    }

    #[inline]
    fn take(&self, code: &mut BitReader, context: &Context) -> Result<Triplet, FormatError> {
        match self.known.get(self.huffman.take(code)) {
            Some(triplet) => Ok(*triplet),
            None => {
                let found = self.other.take(code)?;
                let range = FormatError::Range { what: "inode code", field: "triplet", found };
                context.triplets.get(found).ok_or(range)
            }
        }
    }

    fn cost(&self, triplet: Triplet, context: &Context) -> Option<u32> {
        let symbol = self.symbol(triplet);
        let other =
            if symbol == self.known.len() { self.other.cost(context.triplets.find(triplet)?.into()) } else { 0 };
        Some(self.huffman.cost(symbol) + other)
    }
}

/// Places of the codes of the fields.
const LINKS: usize = TYPES;
const SIZES: usize = LINKS + 1;
const TIMES_AT: usize = SIZES + TYPES;
const OPTIONAL_AT: usize = TIMES_AT + TIMES * UNITS;

/// Shoal's own compressor with its tables.
#[derive(Clone, Debug)]
pub struct Hybrid {
    pub(crate) triplets: TripletCode,
    /// Codes of heads by type, links, sizes by type, differences by time and unit, and optional
    /// fields.
    pub(crate) codes: Box<[FieldCode; Hybrid::FIELDS]>,
}

impl Hybrid {
    /// Returns whether the profile has a code for a triplet. An index into the store's table names
    /// any other.
    pub fn knows(&self, triplet: Triplet) -> bool {
        self.triplets.symbol(triplet) < self.triplets.known.len()
    }

    /// Number of field codes in a profile.
    pub(crate) const FIELDS: usize = OPTIONAL_AT + OPTIONAL;

    /// Describes the codes of all fields.
    pub(crate) fn describe(&self) -> Vec<Described> {
        let types = ["file", "directory", "symbolic link", "other"];
        let times = ["ctime", "btime", "mtime", "atime"];
        let units = ["s", "4 ms", "1 ms", "ns"];
        let optional = ["flags", "generation", "rdev", "xattr", "data", "allocated", "parent", "layout"];
        let mut names: Vec<String> = types.iter().map(|of| format!("head of {of}")).collect();
        names.push("links".into());
        names.extend(types.iter().map(|of| format!("size of {of}")));
        names.extend(times.iter().flat_map(|time| units.iter().map(move |unit| format!("{time} in {unit}"))));
        names.extend(optional.map(Into::into));
        let known = self.triplets.known.iter().enumerate();
        let mut rows: Vec<(String, u32)> = known
            .map(|(symbol, of)| (format!("{}:{} {:o}", of.uid, of.gid, of.mode), self.triplets.huffman.cost(symbol)))
            .collect();
        rows.push(("OTHER, then an index".into(), self.triplets.huffman.cost(self.triplets.known.len())));
        let mut all = vec![Described { field: "triplet".into(), code: "Huffman of values", rows }];
        all.extend(self.codes.iter().zip(&names).map(|(code, name)| code.describe(name)));
        all
    }

    /// Returns the width of a field, in the order of the codes.
    pub(crate) fn width(field: usize) -> u8 {
        match field {
            0..LINKS => HEAD_BITS,
            LINKS => 32,
            SIZES..OPTIONAL_AT => 64,
            _ => OPTIONAL_WIDTHS[field - OPTIONAL_AT],
        }
    }
}

impl Hybrid {
    /// Appends the code of a record with these times. Returns whether it has one.
    #[inline]
    pub(crate) fn write(
        &self,
        record: &Record,
        times: &[Split; TIMES],
        context: &Context,
        out: &mut BitWriter,
    ) -> bool {
        if !self.triplets.put(out, record.triplet(), context) {
            return false;
        }
        let (kind, chosen) = (type_of(record.mode), times::choose(times, &context.bases));
        let head = head_of(record, &chosen);
        self.codes[kind].put(out, head);
        if record.links != 1 {
            self.codes[LINKS].put(out, record.links.into());
        }
        self.codes[SIZES + kind].put(out, record.size);
        for (at, relation) in chosen.relations.into_iter().enumerate() {
            if let Some(unit) = times::unit_of(relation) {
                self.codes[TIMES_AT + at * UNITS + unit].put(out, chosen.differences[at]);
            }
        }
        if head & 0xff != 0 {
            for (field, value) in record.optional().into_iter().enumerate().filter(|(_, value)| *value != 0) {
                self.codes[OPTIONAL_AT + field].put(out, value);
            }
        }
        true
    }

    /// Decodes a code of at most [`STRIPPED`] bytes at any place within the reader's bytes.
    #[inline]
    pub(crate) fn read(&self, mut reader: BitReader, context: &Context) -> Result<Record, FormatError> {
        let what = "inode code";
        let Triplet { uid, gid, mode } = self.triplets.take(&mut reader, context)?;
        let kind = type_of(mode);
        let head = self.codes[kind].take(&mut reader)?;
        let links = if head >> 8 & 1 == 1 {
            1
        } else {
            let found = self.codes[LINKS].take(&mut reader)?;
            u32::try_from(found).map_err(|_| FormatError::Range { what, field: "links", found })?
        };
        let size = self.codes[SIZES + kind].take(&mut reader)?;
        let mut chosen = Chosen::default();
        for at in 0..TIMES {
            let relation = (head >> (9 + at as u32 * RELATION_BITS)) as u8 & ((1 << RELATION_BITS) - 1);
            chosen.relations[at] = relation;
            if let Some(unit) = times::unit_of(relation) {
                chosen.differences[at] = self.codes[TIMES_AT + at * UNITS + unit].take(&mut reader)?;
            }
        }
        let mut record = Record { mode, uid, gid, links, size, generation: 1, ..Record::default() };
        record.set_times(times::restore(&chosen, &context.bases)?);
        if head & 0xff != 0 {
            let mut values = [0; OPTIONAL];
            for field in (0..OPTIONAL).filter(|field| head >> field & 1 == 1) {
                values[field] = self.codes[OPTIONAL_AT + field].take(&mut reader)?;
            }
            record.set_optional(values)?;
        }
        reader.end()?;
        Ok(record)
    }
}

impl Codec for Hybrid {
    #[inline]
    fn encode(&self, record: &Record, context: &Context, out: &mut Code) {
        let mut writer = BitWriter::new();
        let has_code = self.write(record, &times::split(record), context, &mut writer);
        out.set(record, has_code.then_some(&writer));
    }

    #[inline]
    fn decode(&self, code: &[u8], context: &Context) -> Result<Record, FormatError> {
        if code.len() > STRIPPED {
            return Record::read_verbatim(code);
        }
        self.read(BitReader::new(&padded(code)?, code.len()), context)
    }

    fn widths(&self, record: &Record, context: &Context) -> Option<Widths> {
        let (kind, chosen) = (type_of(record.mode), times::choose(&times::split(record), &context.bases));
        let mut widths = Widths::default();
        widths[Field::Triplet as usize] = self.triplets.cost(record.triplet(), context)?;
        widths[Field::Head as usize] = self.codes[kind].cost(head_of(record, &chosen));
        if record.links != 1 {
            widths[Field::Links as usize] = self.codes[LINKS].cost(record.links.into());
        }
        widths[Field::Size as usize] = self.codes[SIZES + kind].cost(record.size);
        let fields = [Field::Ctime, Field::Btime, Field::Mtime, Field::Atime];
        for (at, relation) in chosen.relations.into_iter().enumerate() {
            if let Some(unit) = times::unit_of(relation) {
                let code = &self.codes[TIMES_AT + at * UNITS + unit];
                widths[fields[at] as usize] = code.cost(chosen.differences[at]);
            }
        }
        for (field, value) in record.optional().into_iter().enumerate().filter(|(_, value)| *value != 0) {
            let place = if field == DATA { Field::Data } else { Field::Optional };
            widths[place as usize] += self.codes[OPTIONAL_AT + field].cost(value);
        }
        (widths.iter().sum::<u32>() as usize <= STRIPPED * 8).then_some(widths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{arbitrary, context_of, tree};
    use shoal_sim::Random;

    fn codec_of(records: &[Record]) -> Hybrid {
        let mut counts = HybridCounts::default();
        for block in records.chunks(16) {
            let bases = Bases::of(block);
            block.iter().for_each(|record| counts.add(record, &bases));
        }
        counts.codec()
    }

    #[test]
    fn every_record_comes_back_also_one_of_another_tree() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let own = tree(seed, 500);
            let mut others = tree(seed + 100, 100);
            others.extend((0..500).map(|_| arbitrary(&mut random)));
            let triplets = context_of(own.iter().chain(&others[..300]));
            let codec = codec_of(&own);
            let mut code = Code::default();
            for block in own.chunks(16).chain(others.chunks(16)) {
                let context = Context { triplets: &triplets, bases: Bases::of(block) };
                for record in block {
                    codec.encode(record, &context, &mut code);
                    assert!(code.bytes().len() <= record.verbatim_len(), "seed {seed}");
                    assert_eq!(codec.decode(code.bytes(), &context), Ok(*record), "seed {seed}");
                    let widths = codec.widths(record, &context).map(|widths| widths.iter().sum::<u32>());
                    let bytes = widths.map_or(record.verbatim_len(), |bits| bits.div_ceil(8) as usize);
                    assert_eq!(code.bytes().len(), bytes, "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_damaged_code_is_an_error_or_another_record_and_never_longer_than_asked() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let own = tree(seed, 300);
            let triplets = context_of(own.iter());
            let codec = codec_of(&own);
            let context = Context { triplets: &triplets, bases: Bases::of(&own[..16]) };
            let mut refused = 0;
            for _ in 0..5000 {
                let len = random.below(120) as usize;
                let bytes = random.bytes(len);
                if let Ok(record) = codec.decode(&bytes, &context) {
                    // A record that decodes also encodes.
                    let mut code = Code::default();
                    codec.encode(&record, &context, &mut code);
                    assert_eq!(codec.decode(code.bytes(), &context), Ok(record), "seed {seed}");
                } else {
                    refused += 1;
                }
            }
            assert!(refused > 1000, "seed {seed}: {refused}");
        }
    }

    #[test]
    fn references_of_a_store_have_codes_of_one_length_wherever_they_lead() {
        let mut random = Random::new(7);
        let mut own = tree(5, 800);
        // Most records share a few places, all of them low, as in a small store.
        for record in &mut own {
            record.data = IS_SLOT | random.below(4) << 40 | random.below(3) << 16;
            record.xattr = if random.below(9) == 0 { IS_SLOT | 3 << 40 | 0x20000 } else { 0 };
        }
        let codec = codec_of(&own);
        for field in [3, DATA] {
            let code = &codec.codes[OPTIONAL_AT + field];
            let bits = code.cost(own[0].data);
            assert!(bits < 55, "{bits} bits");
            for _ in 0..10_000 {
                assert_eq!(code.cost(IS_SLOT | random.below(IS_SLOT)), bits);
            }
        }
    }

    #[test]
    fn what_is_absent_costs_nothing() {
        let own = tree(4, 800);
        let triplets = context_of(own.iter());
        let bits = |records: &[Record]| -> u32 {
            let codec = codec_of(records);
            let of = |block: &[Record]| {
                let context = Context { triplets: &triplets, bases: Bases::of(block) };
                let record = |record| codec.widths(record, &context).unwrap().iter().sum::<u32>();
                block.iter().map(record).sum::<u32>()
            };
            records.chunks(16).map(of).sum()
        };
        // One inode has all optional fields; the others must not pay for it.
        let mut with = own.clone();
        with[5] = Record { flags: 1, rdev: 2, xattr: 3, generation: 7, ..with[5] };
        let (without, with) = (bits(&own), bits(&with));
        assert!(with - without < 200, "{without} {with}");
    }
}
