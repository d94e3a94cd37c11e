//! The map, its pieces, the records that count, and what a new record changes in them.
//!
//! Owns: where every logical block is; which record holds each piece; which of the records that count no other one links to.
//! Rules: a record counts while it holds the newest version of a piece; when it ceases to, the next records
//! take over its links (the bypass), so that all that count are reached from the newest. Left out: I/O, placement.

use std::collections::{HashMap, HashSet};

use shoal_format::vlog::{Entry, LINKS_MAX, Link, PIECE_BLOCKS, PIECES_MAX, Piece, Record, Superblock};

use crate::planted::{Bug, is_planted};
use crate::space::Space;

pub(crate) struct State {
    pub superblock: Superblock,
    pub map: Vec<Entry>,
    pub space: Space,
    /// For each piece the record that holds it; 0: it never existed, all its blocks are nowhere.
    piece_at: Vec<u32>,
    mapped: u32,
    records: HashMap<u32, Live>,
    /// Records that count and that no other one links to, the newest last.
    unlinked: Vec<Link>,
    /// Records that had few pieces left when they were put here.
    sparse: Vec<u32>,
    pub next_seq: u64,
    /// Records up to this one are durable.
    pub durable: u64,
    /// The device below is known to hold a durable record that says so of this one.
    pub announced: u64,
}

/// A record with so many pieces left has them written anew when there is room for them.
const SPARSE: u32 = 8;

/// A record that counts, or that is still needed for its links.
struct Live {
    seq: u64,
    /// Bit *n*: its piece *n* is the newest version.
    newest: u64,
    pieces: Box<[u32]>,
    links: Box<[Link]>,
}

/// What is remembered of a record that was read.
pub(crate) struct Header {
    pub at: u32,
    pub mapped: u32,
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
    /// Adds a block to a list; blocks come in ascending order.
    pub fn mark(list: &mut Vec<Changed>, logical: u32) {
        let (index, mask) = (logical / PIECE_BLOCKS, 1 << (logical % PIECE_BLOCKS));
        match list.last_mut().filter(|last| last.index == index) {
            Some(last) => last.mask |= mask,
            None => list.push(Changed { index, mask }),
        }
    }

    /// Adds a piece that is to be written anew as it is.
    pub fn mark_unchanged(list: &mut Vec<Changed>, index: u32) {
        if list.iter().all(|other| other.index != index) {
            list.push(Changed { index, mask: 0 });
        }
    }
}

impl State {
    pub fn new(superblock: Superblock) -> State {
        State {
            map: vec![Entry::default(); superblock.logical_blocks as usize],
            space: Space::new(&superblock),
            piece_at: vec![0; superblock.pieces() as usize],
            mapped: 0,
            records: HashMap::new(),
            unlinked: Vec::new(),
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

    /// Bytes of memory for the map, and for all that is kept beside it.
    pub fn memory(&self) -> (u64, u64) {
        let record = (size_of::<Live>() + 8 + PIECES_MAX * 4 + LINKS_MAX / 4 * size_of::<Link>()) as u64;
        let beside = self.piece_at.len() as u64 * 4
            + self.superblock.physical_blocks as u64 / 4
            + self.records.len() as u64 * record;
        ((self.map.len() * size_of::<Entry>()) as u64, beside)
    }

    /// Gives a logical block another place and leaves the old one. `seq`: the last record of this change.
    pub fn put(&mut self, logical: u32, entry: Entry, seq: u64) {
        let old = std::mem::replace(&mut self.map[logical as usize], entry);
        if old.at != 0 {
            self.space.leave(old.at, seq);
        }
    }

    /// The number of the record that a change which writes `records` more ends with.
    pub fn last_of(&self, records: u32) -> u64 {
        self.next_seq + records.max(1) as u64 - 1
    }

    /// Makes the next record, to be written to block `at`, which is in use: the entries are those of the map as it is now.
    /// Pieces of records with few left take what room there is.
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
            live.newest |= 1 << n;
            pieces.push(Piece { index, changed: mask, entries: self.entries(index) });
        }
        if !pieces.is_empty() && pieces.len() <= SPARSE as usize {
            self.sparse.push(at);
        }
        let links = self.take_links(seq);
        live.links = links.clone().into();
        self.records.insert(at, live);
        self.unlinked.push(Link { at, seq });
        Record { at, seq, durable: self.durable, skip, mapped: self.mapped, pieces, links }
    }

    fn entries(&self, index: u32) -> [Entry; PIECE_BLOCKS as usize] {
        let first = (index * PIECE_BLOCKS) as usize;
        let mut entries = [Entry::default(); PIECE_BLOCKS as usize];
        let have = self.map.len().min(first + PIECE_BLOCKS as usize) - first;
        entries[..have].copy_from_slice(&self.map[first..first + have]);
        entries
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

    /// The record that holds a piece holds it no more.
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

    /// A record that counts no more: others take over its links.
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

    /// The newest first: what the next record links to.
    fn take_links(&mut self, seq: u64) -> Vec<Link> {
        let mut links = Vec::new();
        while links.len() < LINKS_MAX
            && let Some(link) = self.unlinked.pop()
        {
            if !self.counts(&link) {
                continue;
            }
            if self.records[&link.at].newest == 0 {
                // It was there only for its links.
                self.drop_record(link.at, seq);
                continue;
            }
            links.push(link);
        }
        links
    }

    /// The newest record, if all that count are reached from it.
    pub fn root(&mut self) -> Option<Link> {
        let mut unlinked = std::mem::take(&mut self.unlinked);
        unlinked.retain(|link| self.counts(link));
        self.unlinked = unlinked;
        match self.unlinked[..] {
            [root] => Some(root),
            _ => None,
        }
    }

    /// Pieces whose newest version lies in one of these records.
    pub fn pieces_within<'a>(&'a self, records: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
        records.iter().filter_map(|at| self.records.get(at)).flat_map(|live| {
            live.pieces.iter().enumerate().filter(|(n, _)| live.newest >> n & 1 == 1).map(|(_, &index)| index)
        })
    }

    /// Records whose blocks lie in a range.
    pub fn records_within(&self, blocks: std::ops::Range<u32>) -> Vec<u32> {
        if (blocks.len()) < self.records.len() {
            return blocks.filter(|at| self.records.contains_key(at)).collect();
        }
        self.records.keys().copied().filter(|at| blocks.contains(at)).collect()
    }

    /// A record that only holds links may hold a segment: the next record takes them over.
    pub fn is_bare(&self, at: u32) -> bool {
        self.records.get(&at).is_some_and(|live| live.newest == 0)
    }

    /// While a disk is opened: a record that holds the newest version of some pieces. Its block is in use.
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

    /// After all were found: which of them no other one links to. `root` is kept for its links if nothing else.
    pub fn link_up(&mut self, root: Option<Link>) {
        let linked: HashSet<Link> = self.records.values().flat_map(|live| live.links.iter().copied()).collect();
        let mut unlinked: Vec<Link> = self.records.iter().map(|(&at, live)| Link { at, seq: live.seq }).collect();
        unlinked.retain(|link| !linked.contains(link) || Some(*link) == root);
        unlinked.sort_by_key(|link| link.seq);
        self.unlinked = unlinked;
    }
}
