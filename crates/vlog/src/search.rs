//! Builds the map from records: from the links of the newest one, from a checkpoint and the
//! segments after it, or from the whole log.
//!
//! Owns: which version of a piece is the newest; which records are durable (the base), and which
//! follow it. The outcome does not depend on the order in which records are found. Memory holds the
//! map, 12 bytes for each piece, and the records that no other record has called durable so far.
//! Left out: which of the latter are believed (`recover`).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use shoal_format::FormatError;
use shoal_format::vlog::{BLOCK, Entry, LOG_AT, Link, PIECE_BLOCKS, PIECES_MAX, Record, Superblock};
use shoal_media::{BlockDevice, Result};

use crate::VlogError;
use crate::checkpoint::Bits;
use crate::entries::Map;
use crate::planted::{Bug, is_planted};
use crate::read::{READS, Read, read_each};
use crate::recover::HIDDEN_MAX;
use crate::state::{Header, State};

/// Blocks per read when all blocks are examined.
pub(crate) const RUN_BLOCKS: u32 = 64;
/// Segments searched, or map blocks read, between two reports.
const REPORTED: u64 = 1024;

/// Progress of opening a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// True while the checkpoint is read, false while segments are searched.
    pub checkpoint: bool,
    pub done: u64,
    pub total: u64,
}

pub(crate) type OnProgress = Option<Arc<dyn Fn(Progress) + Send + Sync>>;

/// The newest durable record. The order is that of records.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Newest {
    seq: u64,
    /// Pieces that the record counts as mapped.
    mapped: u32,
}

pub(crate) struct Search<'a> {
    pub device: &'a dyn BlockDevice,
    pub superblock: Superblock,
    map: Map,
    /// For each piece: the number of the record its state was taken from, and that record's block.
    taken_from: Vec<u64>,
    piece_at: Vec<u32>,
    /// Pieces that some record holds.
    pieces_found: u32,
    /// Durable records, by number. Only links need them.
    headers: BTreeMap<u64, Header>,
    /// Records that no other record has called durable so far.
    later: BTreeMap<u64, Record>,
    newest: Newest,
    pub durable: u64,
    pub blocks_read: u64,
    pub records: u64,
    watch: OnProgress,
}

/// The outcome of a search.
pub(crate) struct Found {
    pub state: State,
    /// Records after the base.
    pub later: BTreeMap<u64, Record>,
}

impl<'a> Search<'a> {
    pub fn new(device: &'a dyn BlockDevice, superblock: Superblock, watch: OnProgress) -> Search<'a> {
        Search {
            device,
            superblock,
            map: Map::new(superblock.logical_blocks),
            taken_from: vec![0; superblock.pieces() as usize],
            piece_at: vec![0; superblock.pieces() as usize],
            pieces_found: 0,
            headers: BTreeMap::new(),
            later: BTreeMap::new(),
            newest: Newest::default(),
            durable: 0,
            blocks_read: 0,
            records: 0,
            watch,
        }
    }

    /// Starts over and forgets everything found.
    pub fn again(self) -> Search<'a> {
        let (device, superblock, blocks_read) = (self.device, self.superblock, self.blocks_read);
        let watch = self.watch.clone();
        // There may not be enough memory for two maps at once.
        drop(self);
        Search { blocks_read, ..Search::new(device, superblock, watch) }
    }

    pub fn report(&self, progress: Progress) {
        if let Some(watch) = self.watch.as_ref().filter(|_| progress.done.is_multiple_of(REPORTED)) {
            watch(progress);
        }
    }

    fn decode(&self, bytes: &[u8], at: u32) -> Option<Record> {
        Record::decode(bytes, at, &self.superblock).ok()
    }

    fn add(&mut self, record: Record) {
        self.records += 1;
        self.durable = self.durable.max(record.durable);
        self.later.insert(record.seq, record);
        while let Some(first) = self.later.first_entry()
            && *first.key() <= self.durable
        {
            let record = first.remove();
            self.take(record);
        }
    }

    /// Takes a durable record: its pieces count unless a newer record has them.
    fn take(&mut self, record: Record) {
        self.newest = self.newest.max(Newest { seq: record.seq, mapped: record.mapped });
        let mut counts = record.pieces.is_empty();
        for piece in &record.pieces {
            if self.taken_from[piece.index as usize] < record.seq {
                counts = true;
                self.take_piece(piece.index, record.seq, record.at, &piece.entries);
            }
        }
        if counts && self.superblock.area.is_none() {
            let pieces = record.pieces.iter().map(|piece| piece.index).collect();
            let header = Header { at: record.at, pieces, links: record.links };
            self.headers.insert(record.seq, header);
        }
    }

    pub fn take_piece(&mut self, index: u32, seq: u64, at: u32, entries: &[Entry; PIECE_BLOCKS as usize]) {
        let taken_from = &mut self.taken_from[index as usize];
        self.pieces_found += (*taken_from == 0) as u32;
        *taken_from = seq;
        self.piece_at[index as usize] = at;
        self.map.set_piece(index, entries);
    }

    /// Follows the links from the newest record. Returns false if pieces are missing.
    pub fn walk(&mut self, root: Link) -> Result<bool> {
        self.durable = root.seq;
        let (mut wave, mut seen) = (vec![root], HashSet::from([root]));
        let mut mapped = None;
        while !wave.is_empty() {
            let links = wave.split_off(wave.len().saturating_sub(READS));
            if links.iter().any(|link| !(LOG_AT..self.superblock.log_end()).contains(&link.at)) {
                return Ok(false);
            }
            self.blocks_read += links.len() as u64;
            let reads = links.into_iter().map(|link| Read { at: link.at, blocks: 1, what: link });
            read_each(self.device, reads, |read, bytes| {
                let link = read.what;
                // A different number means that the linked record did not count any more.
                let Some(record) = self.decode(&bytes?, link.at).filter(|record| record.seq == link.seq) else {
                    return Ok(None);
                };
                if link == root {
                    mapped = Some(record.mapped);
                }
                wave.extend(record.links.iter().copied().filter(|link| seen.insert(*link)));
                self.add(record);
                Ok(None)
            })?;
        }
        Ok(mapped == Some(self.pieces_found))
    }

    pub fn scan(&mut self) -> Result<()> {
        if self.superblock.segment_blocks == 0 {
            return self.scan_all();
        }
        self.scan_segments(0..self.superblock.segments(), self.superblock.segments())
    }

    /// Examines all blocks, since every block may be a record.
    fn scan_all(&mut self) -> Result<()> {
        let end = self.superblock.log_end();
        let runs = (LOG_AT..end).step_by(RUN_BLOCKS as usize);
        let reads = runs.map(|at| Read { at, blocks: RUN_BLOCKS.min(end - at), what: () });
        let device = self.device;
        read_each(device, reads, |read, bytes| {
            self.blocks_read += read.blocks as u64;
            for (at, block) in (read.at..).zip(bytes?.chunks_exact(BLOCK)) {
                if let Some(record) = self.decode(block, at) {
                    self.add(record);
                }
            }
            Ok(None)
        })
    }

    /// Reads only the records of some segments. Each record says where the next one is.
    pub fn scan_segments(&mut self, segments: impl Iterator<Item = u32>, total: u32) -> Result<()> {
        let size = self.superblock.segment_blocks;
        let reads = segments.map(|n| Read { at: LOG_AT + n * size, blocks: 1, what: 0u64 });
        let device = self.device;
        let mut done = 0;
        read_each(device, reads, |read, bytes| {
            self.blocks_read += 1;
            let (at, last) = (read.at, read.what);
            if last == 0 {
                done += 1;
                self.report(Progress { checkpoint: false, done, total: total.into() });
            }
            // A lower number belongs to an earlier use of the segment.
            let Some(record) = self.decode(&bytes?, at).filter(|record| record.seq > last) else { return Ok(None) };
            let end = LOG_AT + ((at - LOG_AT) / size + 1) * size;
            let following = at.saturating_add(record.skip as u32);
            let next = (record.skip > 0 && following < end).then_some((following, record.seq));
            self.add(record);
            Ok(next.map(|(at, what)| Read { at, blocks: 1, what }))
        })
    }

    /// Returns whether nothing was found after this record.
    pub fn ends_before(&self, root: Link) -> bool {
        self.later.is_empty() && self.newest.seq <= root.seq
    }

    /// Returns whether `root` is the newest record, with nothing missing and nothing after it.
    /// `number` is the checkpoint that the search began with.
    pub fn ends_with(&self, root: Link, number: Option<u64>) -> Result<bool> {
        // The search skips records that the checkpoint covers. A later record must have been found.
        let is_reached = self.newest.seq == root.seq || number.is_some_and(|number| root.seq <= number);
        if !(is_reached && self.ends_before(root)) {
            return Ok(false);
        }
        let mut end = None;
        let reads = std::iter::once(Read { at: root.at, blocks: 1, what: () });
        read_each(
            self.device,
            reads.filter(|read| (LOG_AT..self.superblock.log_end()).contains(&read.at)),
            |read, bytes| {
                end = self.decode(&bytes?, read.at).filter(|record| record.seq == root.seq).map(|record| record.mapped);
                Ok(None)
            },
        )?;
        Ok(end == Some(self.pieces_found))
    }

    /// Returns the base and the records after it. `root` is set if the disk was closed. `number` is
    /// the checkpoint that the search began with; map blocks changed since then are dirty.
    pub fn into_found(mut self, root: Option<Link>, number: Option<u64>) -> std::result::Result<Found, VlogError> {
        let (found, mapped) = (self.pieces_found, self.newest.mapped);
        if found < mapped {
            return Err(VlogError::Damaged { lost: mapped - found, mapped });
        }
        let last = self.newest.seq.max(self.later.keys().next_back().copied().unwrap_or(0)).max(self.durable);
        let mut state = State::empty(self.superblock);
        let take = |state: &mut State, at: u32| {
            if !state.space.blocks().contains(&at) {
                return Err(FormatError::Range { what: "map", field: "place", found: at.into() }.into());
            }
            if state.space.take_found(at) { Ok(()) } else { Err(VlogError::Twice { at }) }
        };
        if self.superblock.area.is_some() {
            for (index, _) in (0..).zip(&self.taken_from).filter(|&(_, &seq)| seq > number.unwrap_or(0)) {
                state.mark_dirty(index);
            }
            drop(std::mem::take(&mut self.taken_from));
            // Pieces that no record holds are unmapped and are not touched.
            for (index, _) in (0..).zip(&self.piece_at).filter(|&(_, &at)| at != 0) {
                for entry in self.map.piece(index).iter().filter(|entry| entry.at != 0) {
                    take(&mut state, entry.at)?;
                }
            }
            let bad = FormatError::Range { what: "map", field: "pieces of a record", found: PIECES_MAX as u64 + 1 };
            let records = state.loaded(self.map, self.piece_at, root).ok_or(bad)?;
            records.into_iter().try_for_each(|at| take(&mut state, at))?;
        } else {
            for (&seq, header) in &self.headers {
                let counts = header.pieces.iter().any(|&piece| self.taken_from[piece as usize] == seq);
                if counts || root.is_some_and(|root| root.seq == seq) {
                    take(&mut state, header.at)?;
                    state.found(seq, header, |piece| self.taken_from[piece as usize] == seq);
                }
            }
            self.headers = BTreeMap::new();
            for (_, entry) in self.map.iter().filter(|(_, entry)| entry.at != 0) {
                take(&mut state, entry.at)?;
            }
            state.map = self.map;
            state.link_up(root);
        }
        state.durable = self.durable;
        state.announced = self.durable;
        let hidden = if root.is_some() || is_planted(Bug::NoJump) { 0 } else { HIDDEN_MAX };
        state.next_seq = last + 1 + hidden;
        state.space.list_free_segments();
        Ok(Found { state, later: self.later })
    }
}

/// Returns the numbers of the set bits.
pub(crate) fn each_set(bits: &Bits, count: u32) -> impl Iterator<Item = u32> + '_ {
    (0..count).filter(|&n| bits.get(n))
}
