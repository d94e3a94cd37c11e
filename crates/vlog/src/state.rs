//! The map, its pieces, the records that count, and the effect of a new record on them.
//!
//! Owns: the place of every logical block; the record that holds each piece; the records that count
//! and that no other record links to.
//! Rules: a record counts while it holds the newest version of a piece. When it ceases to count,
//! the next records take over its links (the bypass), so that all records that count can be reached
//! from the newest. Left out: I/O, placement.

use std::collections::{HashMap, HashSet};

use shoal_format::vlog::{Entry, LINKS_MAX, Link, LoggedPiece, PIECE_BLOCKS, PIECES_MAX, Record, Superblock};

use crate::checkpoint::Bits;
use crate::entries::Map;
use crate::planted::{Bug, is_planted};
use crate::space::Space;

pub(crate) struct State {
    pub superblock: Superblock,
    pub map: Map,
    pub space: Space,
    /// The record that holds each piece. 0: the piece never existed, and none of its blocks is
    /// mapped.
    piece_at: Vec<u32>,
    mapped: u32,
    records: HashMap<u32, Live>,
    /// Records that count and that no other record links to, newest last. A disk with checkpoints
    /// needs no links.
    unlinked: Vec<Link>,
    /// With checkpoints: the newest record, and its block if it holds no pieces. That block is left
    /// when a newer record exists.
    last: Option<Link>,
    bare: Option<u32>,
    /// Map blocks that changed since a round began.
    dirty: Bits,
    /// Records that had few pieces left when they were added here.
    sparse: Vec<u32>,
    pub next_seq: u64,
    /// Records up to this one are durable.
    pub durable: u64,
    /// Records up to this one are announced: a durable record on the device calls them durable.
    pub announced: u64,
}

/// A record with at most this many newest pieces is sparse. These pieces are written again when a
/// later record has room for them.
const SPARSE: u32 = 8;

/// A record that counts, or that is still needed for its links.
struct Live {
    seq: u64,
    /// Bit *n*: its piece *n* is the newest version.
    newest: u64,
    pieces: Box<[u32]>,
    links: Box<[Link]>,
}

/// The part of a record that is kept after reading it.
pub(crate) struct Header {
    pub at: u32,
    pub pieces: Vec<u32>,
    pub links: Vec<Link>,
}

/// Changed entries of one piece: bit *n* for entry *n*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub index: u32,
    pub mask: u8,
}

impl Changed {
    /// Adds a block to a list. Blocks come in ascending order.
    pub fn mark(list: &mut Vec<Changed>, logical: u32) {
        let (index, mask) = (logical / PIECE_BLOCKS, 1 << (logical % PIECE_BLOCKS));
        match list.last_mut().filter(|last| last.index == index) {
            Some(last) => last.mask |= mask,
            None => list.push(Changed { index, mask }),
        }
    }

    /// Adds a piece to be written again unchanged.
    pub fn mark_unchanged(list: &mut Vec<Changed>, index: u32) {
        if list.iter().all(|other| other.index != index) {
            list.push(Changed { index, mask: 0 });
        }
    }
}

impl State {
    /// The state of a new disk.
    pub fn new(superblock: Superblock) -> State {
        let map = Map::new(superblock.logical_blocks);
        let piece_at = vec![0; superblock.pieces() as usize];
        State { map, piece_at, ..State::empty(superblock) }
    }

    /// The state of a disk whose map is yet to be read.
    pub fn empty(superblock: Superblock) -> State {
        State {
            map: Map::default(),
            space: Space::new(&superblock),
            piece_at: if superblock.area.is_none() { vec![0; superblock.pieces() as usize] } else { Vec::new() },
            mapped: 0,
            records: HashMap::new(),
            unlinked: Vec::new(),
            last: None,
            bare: None,
            dirty: Bits::new(superblock.map_blocks()),
            sparse: Vec::new(),
            next_seq: 1,
            durable: 0,
            announced: 0,
            superblock,
        }
    }

    pub fn live_records(&self) -> usize {
        self.records.len()
    }

    /// Bytes of memory for the map, and for everything else kept here.
    pub fn memory(&self) -> (u64, u64) {
        let links = if self.has_links() { LINKS_MAX / 4 * size_of::<Link>() } else { 0 };
        // An allocation has a header and is rounded up. Up to half of the table is empty.
        let record = (PIECES_MAX * 4 + 16 + links) as u64;
        let slot = (size_of::<(u32, Live)>() + 1) as u64 * 8 / 7;
        let beside = self.piece_at.len() as u64 * 4
            + self.superblock.physical_blocks as u64 / 4
            + self.superblock.segments() as u64 * 17
            + self.superblock.map_blocks() as u64 * 4
            + 4 * self.dirty.bytes()
            + self.records.len() as u64 * record
            + self.records.capacity() as u64 * slot;
        (self.map.bytes(), beside)
    }

    /// Moves a logical block to another place and leaves the old one. `seq` is the last record of
    /// this change.
    pub fn put(&mut self, logical: u32, entry: Entry, seq: u64) {
        let old = self.map.replace(logical, entry);
        if old.at != 0 {
            self.space.leave(old.at, seq);
        }
    }

    /// Returns the number of the last record of a change that writes `records` more records.
    pub fn last_of(&self, records: u32) -> u64 {
        self.next_seq + records.max(1) as u64 - 1
    }

    /// Makes the next record, to be written to block `at`, which is in use. Entries are taken from
    /// the map as it is now. The remaining room goes to pieces of records that have few left.
    pub fn record(&mut self, at: u32, skip: u16, changed: &[Changed]) -> Record {
        debug_assert!(changed.len() <= PIECES_MAX);
        let seq = self.next_seq;
        self.next_seq += 1;
        let mut changed = changed.to_vec();
        self.add_sparse(&mut changed);
        let indices = changed.iter().map(|changed| changed.index).collect();
        let mut live = Live { seq, newest: 0, pieces: indices, links: [].into() };
        let mut pieces = Vec::with_capacity(changed.len());
        for (n, &Changed { index, mask }) in changed.iter().enumerate() {
            self.supersede(index, seq);
            self.mapped += (self.piece_at[index as usize] == 0) as u32;
            self.piece_at[index as usize] = at;
            self.mark_dirty(index);
            live.newest |= 1 << n;
            pieces.push(LoggedPiece { index, changed: mask, entries: self.map.piece(index) });
        }
        if !pieces.is_empty() && pieces.len() <= SPARSE as usize {
            self.sparse.push(at);
        }
        let links = if self.has_links() { self.take_links(seq) } else { vec![] };
        live.links = links.clone().into();
        self.records.insert(at, live);
        if self.has_links() {
            self.unlinked.push(Link { at, seq });
        } else {
            let before = if pieces.is_empty() { self.bare.replace(at) } else { self.bare.take() };
            before.into_iter().for_each(|before| self.drop_record(before, seq));
            self.last = Some(Link { at, seq });
        }
        Record { at, seq, durable: self.durable, skip, mapped: self.mapped, pieces, links }
    }

    /// Returns whether records need links: without a map area, all records that count must be
    /// reachable from the newest.
    fn has_links(&self) -> bool {
        self.superblock.area.is_none()
    }

    /// Returns the record that holds a piece, or 0 if none ever did.
    pub fn record_of(&self, index: u32) -> u32 {
        self.piece_at[index as usize]
    }

    /// Marks the map block of a piece as different from what the last round wrote.
    pub fn mark_dirty(&mut self, index: u32) {
        if let Some(area) = self.superblock.area {
            self.dirty.set(index / area.map_pieces, true);
        }
    }

    pub fn all_dirty(&mut self) {
        (0..self.superblock.map_blocks()).for_each(|block| self.dirty.set(block, true));
    }

    /// Returns the map blocks that changed so far, and starts a new set.
    pub fn take_dirty(&mut self) -> Bits {
        if is_planted(Bug::DirtyForgotten) {
            // Drop only every other one. Otherwise rounds would write nothing at all.
            let mut some = Bits::new(self.superblock.map_blocks());
            (0..self.superblock.map_blocks()).step_by(2).for_each(|n| some.set(n, self.dirty.get(n)));
            self.dirty = Bits::new(self.superblock.map_blocks());
            return some;
        }
        std::mem::replace(&mut self.dirty, Bits::new(self.superblock.map_blocks()))
    }

    fn add_sparse(&mut self, changed: &mut Vec<Changed>) {
        while changed.len() + SPARSE as usize <= PIECES_MAX
            && let Some(at) = self.sparse.pop()
        {
            let Some(live) = self.records.get(&at).filter(|live| live.newest.count_ones() <= SPARSE) else { continue };
            for (n, &index) in live.pieces.iter().enumerate() {
                if live.newest >> n & 1 == 1 {
                    Changed::mark_unchanged(changed, index);
                }
            }
        }
    }

    /// Removes a piece from the record that holds it.
    fn supersede(&mut self, index: u32, seq: u64) {
        let at = self.piece_at[index as usize];
        let Some(live) = self.records.get_mut(&at) else { return };
        let place = (0..live.pieces.len()).find(|&n| live.newest >> n & 1 == 1 && live.pieces[n] == index);
        debug_assert!(place.is_some(), "piece {index} is not in record {at}");
        live.newest &= !place.map_or(0, |n| 1 << n);
        match live.newest.count_ones() {
            0 => self.drop_record(at, seq),
            SPARSE => self.sparse.push(at),
            _ => {}
        }
    }

    /// Drops a record that no longer counts. Others take over its links.
    fn drop_record(&mut self, at: u32, seq: u64) {
        if let Some(live) = self.records.remove(&at) {
            if !is_planted(Bug::LostLinks) {
                self.unlinked.splice(0..0, live.links);
            }
            self.space.leave(at, seq);
        }
    }

    fn counts(&self, link: &Link) -> bool {
        self.records.get(&link.at).is_some_and(|live| live.seq == link.seq)
    }

    /// Takes links for the next record, newest first.
    fn take_links(&mut self, seq: u64) -> Vec<Link> {
        let mut links = Vec::new();
        while links.len() < LINKS_MAX
            && let Some(link) = self.unlinked.pop()
        {
            if !self.counts(&link) {
                continue;
            }
            if self.records[&link.at].newest == 0 {
                // The record was kept only for its links.
                self.drop_record(link.at, seq);
                continue;
            }
            links.push(link);
        }
        links
    }

    /// Returns the newest record if all that count are reached from it.
    pub fn root(&mut self) -> Option<Link> {
        if !self.has_links() {
            return self.last;
        }
        let mut unlinked = std::mem::take(&mut self.unlinked);
        unlinked.retain(|link| self.counts(link));
        self.unlinked = unlinked;
        match self.unlinked[..] {
            [root] => Some(root),
            _ => None,
        }
    }

    /// Returns the pieces whose newest version lies in one of these records.
    pub fn pieces_within<'a>(&'a self, records: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        records.iter().filter_map(|at| self.records.get(at)).flat_map(|live| {
            live.pieces.iter().enumerate().filter(|(n, _)| live.newest >> n & 1 == 1).map(|(_, &index)| index)
        })
    }

    /// Returns the records whose blocks lie in a range.
    pub fn records_within(&self, blocks: std::ops::Range<u32>) -> Vec<u32> {
        if (blocks.len()) < self.records.len() {
            return blocks.filter(|at| self.records.contains_key(at)).collect();
        }
        self.records.keys().copied().filter(|at| blocks.contains(at)).collect()
    }

    /// Returns whether a record holds only links. Such a record may keep a segment in use until the
    /// next record takes its links over.
    pub fn is_bare(&self, at: u32) -> bool {
        self.records.get(&at).is_some_and(|live| live.newest == 0)
    }

    /// While opening a disk: adds a record that holds the newest version of some pieces. Its block
    /// is in use.
    pub fn found(&mut self, seq: u64, header: &Header, newest: impl Fn(u32) -> bool) {
        let (pieces, links) = (header.pieces.clone().into(), header.links.clone().into());
        let mut live = Live { seq, newest: 0, pieces, links };
        for (n, &index) in header.pieces.iter().enumerate() {
            if newest(index) {
                live.newest |= 1 << n;
                self.mapped += 1;
                self.piece_at[index as usize] = header.at;
            }
        }
        if live.newest.count_ones() <= SPARSE {
            self.sparse.push(header.at);
        }
        self.records.insert(header.at, live);
    }

    /// While opening a disk with checkpoints: takes the whole map at once. The records are those
    /// that hold pieces and, if the disk was closed, the newest one. Returns their blocks, or
    /// `None` if a record would hold more pieces than it can.
    pub fn loaded(&mut self, map: Map, piece_at: Vec<u32>, last: Option<Link>) -> Option<Vec<u32>> {
        (self.map, self.piece_at, self.last) = (map, piece_at, last);
        let mut held: Vec<(u32, u32)> =
            (0u32..).zip(&self.piece_at).filter(|&(_, &at)| at != 0).map(|(index, &at)| (at, index)).collect();
        held.sort_unstable();
        self.mapped = held.len() as u32;
        self.records.reserve(held.chunk_by(|a, b| a.0 == b.0).count());
        for group in held.chunk_by(|a, b| a.0 == b.0) {
            if group.len() > PIECES_MAX {
                return None;
            }
            let (at, newest) = (group[0].0, u64::MAX >> (64 - group.len()));
            let pieces = group.iter().map(|&(_, index)| index).collect();
            self.records.insert(at, Live { seq: 0, newest, pieces, links: [].into() });
            if group.len() <= SPARSE as usize {
                self.sparse.push(at);
            }
        }
        if let Some(last) = last
            && !self.records.contains_key(&last.at)
        {
            self.records.insert(last.at, Live { seq: last.seq, newest: 0, pieces: [].into(), links: [].into() });
            self.bare = Some(last.at);
        }
        Some(self.records.keys().copied().collect())
    }

    /// Finds the records that no other record links to, after all records were found. `root` is
    /// always one of them.
    pub fn link_up(&mut self, root: Option<Link>) {
        let linked: HashSet<Link> = self.records.values().flat_map(|live| live.links.iter().copied()).collect();
        let mut unlinked: Vec<Link> = self.records.iter().map(|(&at, live)| Link { at, seq: live.seq }).collect();
        unlinked.retain(|link| !linked.contains(link) || Some(*link) == root);
        unlinked.sort_by_key(|link| link.seq);
        self.unlinked = unlinked;
    }
}
