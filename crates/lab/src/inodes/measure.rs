//! Bytes, bits and speed of a compressor on a tree.
//!
//! Owns: [`Subject`], a tree at one precision, in blocks of sixteen with their bases. Rules: a code
//! counts only if it decodes to its record. Speed is measured in processor time of one thread over
//! the whole tree in memory, with the buffers allocated before, as in the paper. A run repeats the
//! tree until it takes a fifth of a second.

use std::hint::black_box;

use shoal_pack::{
    BLOCK_INODES, Bases, Block, BlockBytes, Code, Codec, Context, Field, Hybrid, Item, Precision, Profile, Record,
    Tables, Triplets, pack,
};

use crate::experiment::LabError;
use crate::processor::ProcessorTime;
use crate::tree::Tree;

/// Exact sizes of a tree's codes.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub inodes: u64,
    /// Codes, each padded to whole bytes.
    pub bytes: u64,
    /// Codes without padding.
    pub bits: u64,
    pub least: usize,
    pub most: usize,
    /// Records written verbatim.
    pub verbatim: u64,
    /// Sum, least and greatest number of bits of each field, over the coded records.
    pub fields: Vec<(u64, u32, u32)>,
}

impl Measured {
    pub fn mean(&self) -> f64 {
        self.bytes as f64 / self.inodes as f64
    }
}

/// Millions of inodes a second: slowest, median and fastest run.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub encode: [f64; 3],
    pub decode: [f64; 3],
}

/// Results for a tree in Shoal's blocks.
#[derive(Clone, Debug)]
pub struct Blocks {
    pub tree: usize,
    pub precision: Precision,
    /// Bytes an inode: codes without padding; the fields below are padding, length bytes, checksum
    /// with profile number, bases.
    pub code: f64,
    pub padding: f64,
    pub length: f64,
    pub head: f64,
    pub bases: f64,
    /// Bytes an inode if each block uses the better of its own and the built-in profile.
    pub with_built_in: f64,
    /// Bytes an inode that data references add to codes, if files were written one after the other.
    pub pointer: f64,
    /// Speed of whole blocks, with their bases and checksums.
    pub speed: Speed,
}

pub struct Subject<'a> {
    name: String,
    precision: Precision,
    pub records: Vec<Record>,
    bases: Vec<Bases>,
    triplets: &'a Triplets,
}

const RUN_S: f64 = 0.2;

/// Returns millions of `items` a second, where `all` handles all of them: slowest, median, fastest.
pub fn rate(items: usize, runs: u32, mut all: impl FnMut()) -> [f64; 3] {
    let begin = ProcessorTime::now();
    all();
    let repeat = (RUN_S / begin.elapsed_s()).ceil().clamp(1.0, 1e6) as usize;
    let mut rates: Vec<f64> = (0..runs)
        .map(|_| {
            let begin = ProcessorTime::now();
            (0..repeat).for_each(|_| all());
            (items * repeat) as f64 / begin.elapsed_s() / 1e6
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    [rates[0], rates[rates.len() / 2], rates[rates.len() - 1]]
}

impl<'a> Subject<'a> {
    pub fn new(tree: &Tree, precision: Precision, triplets: &'a Triplets) -> Subject<'a> {
        let of = |record: &Record| if precision == Precision::Seconds { record.in_seconds() } else { *record };
        let records: Vec<Record> = tree.records.iter().map(of).collect();
        let bases = records.chunks(BLOCK_INODES).map(Bases::of).collect();
        Subject { name: tree.name.clone(), precision, records, bases, triplets }
    }

    fn context(&self, at: usize) -> Context<'a> {
        Context { triplets: self.triplets, bases: self.bases[at / BLOCK_INODES] }
    }

    fn broken(&self, name: &str, at: usize) -> LabError {
        LabError::Broken { what: format!("{}: inode {at} under {name}", self.name), why: "came back changed".into() }
    }

    pub fn sizes(&self, profile: &Profile) -> Result<Measured, LabError> {
        let codec = profile.codec();
        let mut measured =
            Measured { least: usize::MAX, fields: vec![(0, u32::MAX, 0); Field::ALL.len()], ..Default::default() };
        let mut code = Code::default();
        for (at, record) in self.records.iter().enumerate() {
            let context = self.context(at);
            codec.encode(record, &context, &mut code);
            if codec.decode(code.bytes(), &context).as_ref() != Ok(record) {
                return Err(self.broken(profile.name(), at));
            }
            let len = code.bytes().len();
            measured.inodes += 1;
            measured.bytes += len as u64;
            (measured.least, measured.most) = (measured.least.min(len), measured.most.max(len));
            match codec.widths(record, &context) {
                Some(widths) => {
                    measured.bits += widths.iter().map(|bits| u64::from(*bits)).sum::<u64>();
                    for (sum, bits) in measured.fields.iter_mut().zip(widths) {
                        *sum = (sum.0 + u64::from(bits), sum.1.min(bits), sum.2.max(bits));
                    }
                }
                None => {
                    measured.verbatim += 1;
                    measured.bits += len as u64 * 8;
                }
            }
        }
        Ok(measured)
    }

    pub fn speed(&self, profile: &Profile, runs: u32) -> Speed {
        match &profile.tables {
            Tables::Fields(_, codec) => self.speed_of(codec, runs),
            Tables::Hybrid(codec) => self.speed_of(&**codec, runs),
        }
    }

    fn speed_of<C: Codec>(&self, codec: &C, runs: u32) -> Speed {
        // The codes are adjacent, as they would be in memory.
        let (mut packed, mut lengths, mut code) = (vec![], vec![], Code::default());
        let encode = rate(self.records.len(), runs, || {
            packed.clear();
            lengths.clear();
            for (records, bases) in self.records.chunks(BLOCK_INODES).zip(&self.bases) {
                let context = Context { triplets: self.triplets, bases: *bases };
                for record in records {
                    codec.encode(record, &context, &mut code);
                    packed.extend_from_slice(code.bytes());
                    lengths.push(code.bytes().len() as u8);
                }
            }
        });
        let decode = rate(self.records.len(), runs, || {
            let mut at = 0;
            for (lengths, bases) in lengths.chunks(BLOCK_INODES).zip(&self.bases) {
                let context = Context { triplets: self.triplets, bases: *bases };
                for length in lengths {
                    let end = at + usize::from(*length);
                    let _ = black_box(codec.decode(&packed[at..end], &context));
                    at = end;
                }
            }
        });
        Speed { encode, decode }
    }

    /// Measures Shoal's blocks under a profile, and also tries `others`.
    pub fn blocks(&self, own: &Profile, others: &[&Profile], tree: usize, runs: u32) -> Result<Blocks, LabError> {
        let hybrid = |profile: &Profile| match &profile.tables {
            Tables::Hybrid(codec) => Some((**codec).clone()),
            Tables::Fields(..) => None,
        };
        let mut profiles: Vec<Hybrid> = std::iter::once(own).chain(others.iter().copied()).filter_map(hybrid).collect();
        let blocks: Vec<[Item; BLOCK_INODES]> = self
            .records
            .chunks(BLOCK_INODES)
            .map(|records| {
                let item =
                    |at: usize| records.get(at).map_or(Item::Free { generation: 0 }, |record| Item::Used(*record));
                std::array::from_fn(item)
            })
            .collect();
        let inodes = self.records.len() as f64;
        let sum = |profiles: &[Hybrid]| -> Result<(usize, usize, usize), LabError> {
            let (mut total, mut head, mut bases) = (0, 0, 0);
            let mut out = BlockBytes::default();
            for (number, items) in blocks.iter().enumerate() {
                pack(items, profiles, self.triplets, &mut out);
                let block = Block::open(out.bytes()).map_err(|_| self.broken("blocks", number * BLOCK_INODES))?;
                for (at, item) in items.iter().enumerate() {
                    if block.get(at, profiles, self.triplets).as_ref() != Ok(item) {
                        return Err(self.broken("blocks", number * BLOCK_INODES + at));
                    }
                }
                total += out.bytes().len();
                head += 6;
                bases += block.overhead() - 6 - BLOCK_INODES;
            }
            Ok((total, head, bases))
        };
        let measured = self.sizes(own)?;
        let (with_built_in, ..) = sum(&profiles)?;
        profiles.truncate(1);
        let (total, head, bases) = sum(&profiles)?;
        let (code, padded) = (measured.bits as f64 / 8.0, measured.bytes as f64);
        let length = (blocks.len() * BLOCK_INODES) as f64;
        if total as f64 != padded + length + (head + bases) as f64 {
            return Err(LabError::Broken { what: format!("{}: blocks", self.name), why: "do not add up".into() });
        }
        let (mut packed, mut ends, mut out) = (vec![], vec![], BlockBytes::default());
        let encode = rate(self.records.len(), runs, || {
            packed.clear();
            ends.clear();
            for items in &blocks {
                pack(items, &profiles, self.triplets, &mut out);
                packed.extend_from_slice(out.bytes());
                ends.push(packed.len());
            }
        });
        let decode = rate(self.records.len(), runs, || {
            let mut begin = 0;
            for end in &ends {
                let bytes = &packed[begin..*end];
                begin = *end;
                let Ok(block) = Block::open(bytes) else { continue };
                for at in 0..BLOCK_INODES {
                    let _ = black_box(block.get(at, &profiles, self.triplets));
                }
            }
        });
        Ok(Blocks {
            tree,
            precision: self.precision,
            code: code / inodes,
            padding: (padded - code) / inodes,
            length: length / inodes,
            head: head as f64 / inodes,
            bases: bases as f64 / inodes,
            with_built_in: with_built_in as f64 / inodes,
            pointer: self.pointer(measured.bits)? / inodes,
            speed: Speed { encode, decode },
        })
    }

    /// Returns the bytes that data references add, in units of 16 bytes (the region's smallest
    /// piece), if files lie one after the other.
    fn pointer(&self, bits: u64) -> Result<f64, LabError> {
        let mut end = 4096u64;
        let place = |record: &Record| {
            let data = if record.size == 0 { 0 } else { end / 16 };
            end += record.size.min(1 << 20).next_multiple_of(16);
            Record { data, ..*record }
        };
        let records: Vec<Record> = self.records.iter().map(place).collect();
        let tree = Tree { name: self.name.clone(), records, raw: None, unread: 0 };
        let profiles = shoal_pack::Census::of(&[&tree.records]).profiles();
        let own = profiles.iter().find(|profile| profile.name() == "hybrid" && profile.precision == self.precision);
        let with = Subject::new(&tree, self.precision, self.triplets).sizes(own.expect("there is one"))?;
        Ok((with.bits as f64 - bits as f64) / 8.0)
    }
}
