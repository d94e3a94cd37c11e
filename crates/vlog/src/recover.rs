//! Formatting, and opening: from the tail record, else by a scan.
//!
//! A disk that was closed has a tail record: it names the newest log record, and all that count are reached from it. While a disk
//! is open the tail record says so; then the log is scanned: in segments the records alone, each says where the next one is.
//! Records up to the highest number that any of them calls durable are the base. Those behind it may have survived without
//! their data: of these only the entries they changed are believed, and only if the data has the right checksum.
//! Rules: what was believed is written down and made durable, and then announced, before the disk is used: until then nothing that the
//! base refers to is overwritten. Numbers go on far behind the last one seen, because a torn record may hide later ones.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, mpsc};

use shoal_format::vlog::{BLOCK, Entry, LOG_AT, Link, PIECE_BLOCKS, Record, SUPERBLOCK_AT, Superblock, TAIL_AT, Tail};
use shoal_media::{BlockDevice, Clock, Request, Result, block};

use crate::disk::{Log, VirtualLog, is_intact};
use crate::planted::{Bug, is_planted};
use crate::state::{Header, State};
use crate::write::By;
use crate::{FormatOptions, Options, Placement, SPARE_PERCENT_MIN, VlogError};

/// Segments beside the spare part: open, reserved, and those that requests keep free.
const EXTRA_SEGMENTS: u32 = 7;
const SEGMENTS_MIN: u32 = 12;
/// Without segments nothing has to be emptied for a write to find room.
const SPARE_ANYWHERE_MIN: u8 = 3;
/// More records than can lie behind the last one that was durable.
const HIDDEN_MAX: u64 = 1 << 14;
/// Reads in flight.
const READS: usize = 64;
/// Blocks read at once where all are looked at.
const RUN_BLOCKS: u32 = 256;

/// What opening a disk took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The disk had been closed.
    pub clean: bool,
    /// Blocks of the log that were read to find records.
    pub blocks_read: u64,
    /// Records found.
    pub records: u64,
    /// Of those, how many may not have been durable.
    pub unsure: u64,
    /// Blocks whose last writes, never flushed, are lost.
    pub lost: u64,
    /// Time it took (ns).
    pub took_ns: u64,
}

/// The uuid of the disk whose first block this is.
pub fn identify(block: &[u8]) -> Option<[u8; 16]> {
    Superblock::decode(block).ok().map(|superblock| superblock.uuid)
}

fn read_block(device: &dyn BlockDevice, at: u32) -> Result<Vec<u8>> {
    let mut bytes = vec![0; BLOCK];
    block::read(device, at as u64 * BLOCK as u64, &mut bytes)?;
    Ok(bytes)
}

fn plan(bytes: u64, options: &FormatOptions) -> std::result::Result<Superblock, VlogError> {
    let physical_blocks = (bytes / BLOCK as u64).min(u32::MAX as u64) as u32;
    let spare = options.spare_percent;
    let (segment_blocks, usable, need, least) = match options.placement {
        Placement::Segments { blocks } => {
            if !blocks.is_power_of_two() || !(32..=4096).contains(&blocks) {
                let why = format!("{blocks} blocks; a power of two from 32 to 4096");
                return Err(VlogError::Option { what: "segment", why });
            }
            let segments = physical_blocks.saturating_sub(LOG_AT) / blocks;
            (
                blocks,
                segments.saturating_sub(EXTRA_SEGMENTS) * blocks,
                LOG_AT + SEGMENTS_MIN * blocks,
                SPARE_PERCENT_MIN,
            )
        }
        Placement::Anywhere => (0, physical_blocks.saturating_sub(LOG_AT), LOG_AT + 96, SPARE_ANYWHERE_MIN),
    };
    if !(least..=90).contains(&spare) {
        return Err(VlogError::Option { what: "spare", why: format!("{spare} percent; {least} to 90") });
    }
    if physical_blocks < need {
        return Err(VlogError::TooSmall { have: bytes, need: need as u64 * BLOCK as u64 });
    }
    let most = (usable as u64 * (100 - spare) as u64 / 100) as u32;
    let logical_blocks = match options.bytes {
        None => most,
        Some(wanted) if wanted.is_multiple_of(BLOCK as u64) && (1..=most as u64).contains(&(wanted / BLOCK as u64)) => {
            (wanted / BLOCK as u64) as u32
        }
        Some(wanted) => {
            let why = format!("{wanted} bytes; a multiple of {BLOCK} up to {}", most as u64 * BLOCK as u64);
            return Err(VlogError::Option { what: "size", why });
        }
    };
    Ok(Superblock { uuid: options.uuid, salt: options.salt, logical_blocks, physical_blocks, segment_blocks })
}

impl VirtualLog {
    /// Makes a new, empty disk; what the device holds is lost.
    pub fn format(device: &dyn BlockDevice, options: &FormatOptions) -> std::result::Result<Superblock, VlogError> {
        let superblock = plan(device.geometry().bytes, options)?;
        let at = |block: u32| block as u64 * BLOCK as u64;
        // Until the end there is no disk.
        for copy in SUPERBLOCK_AT {
            block::write(device, at(copy), &[0; BLOCK])?;
        }
        block::flush(device)?;
        let mut state = State::new(superblock);
        state.space.take(LOG_AT);
        let record = state.record(LOG_AT, 1, &[]);
        block::write(device, at(LOG_AT), &record.encode(&superblock))?;
        let root = Some(Link { at: LOG_AT, seq: record.seq });
        block::write(device, at(TAIL_AT[0]), &[0; BLOCK])?;
        block::write(device, at(TAIL_AT[1]), &Tail { generation: 1, root, durable: record.seq }.encode(&superblock))?;
        block::flush(device)?;
        for copy in SUPERBLOCK_AT {
            block::write(device, at(copy), &superblock.encode())?;
        }
        block::flush(device)?;
        Ok(superblock)
    }

    /// Opens a disk, after whatever happened to it.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> std::result::Result<(VirtualLog, Recovery), VlogError> {
        let began = clock.monotonic_ns();
        let superblock = read_superblock(&*device, options.head.is_some())?;
        let tail = read_tail(&*device, &superblock)?;
        let mut search = Search::new(&*device, superblock);
        let root = tail.and_then(|tail| tail.root);
        let mut recovery = Recovery::default();
        let walked = match root {
            Some(root) => search.walk(root)?,
            None => false,
        };
        if !walked {
            search = Search { blocks_read: search.blocks_read, ..Search::new(&*device, superblock) };
            search.durable = tail.map_or(0, |tail| tail.durable);
            search.scan()?;
        }
        (recovery.clean, recovery.blocks_read, recovery.records) = (walked, search.blocks_read, search.records);
        let (mut state, later) = search.into_state(root.filter(|_| walked))?;
        let tail_generation = tail.map_or(1, |tail| tail.generation);
        if !walked {
            recovery.unsure = later.len() as u64;
        }
        let changes = believe(&*device, &mut state, later, &mut recovery)?;
        let written = state.next_seq - 1;
        let log = Log { written, says: state.durable, tail_generation, ..Log::default() };
        let disk = VirtualLog::assemble(device, clock.clone(), options, state, log);
        disk.settle(&changes, walked)?;
        recovery.took_ns = clock.monotonic_ns().saturating_sub(began);
        Ok((disk, recovery))
    }

    /// Writes down what was found, so that it is all there is from now on.
    fn settle(&self, pieces: &[u32], clean: bool) -> Result<()> {
        let mut log = self.lock();
        let log = &mut *log;
        // What was found may be in a cache only, if a process died and not the machine: a power loss could then leave
        // what is written next without the records that allowed it.
        if !is_planted(Bug::FoundUnflushed) {
            block::flush(&*self.device).inspect_err(|error| self.poison(error))?;
        }
        if clean {
            if !is_planted(Bug::StaleTail) {
                self.write_tail(log, None)?;
            }
            return Ok(());
        }
        if is_planted(Bug::NoSettle) {
            let mut state = self.state.write();
            state.durable = state.next_seq - 1;
            let announced = state.durable;
            state.space.announced(announced);
            return Ok(());
        }
        self.state.write().space.open_any();
        self.write_items(log, &[], pieces, By::Compactor)?;
        if is_planted(Bug::SettleUnflushed) {
            self.state.write().durable = log.written;
        } else {
            self.flush_device(log)?;
        }
        self.write_bare_record(log, By::Compactor, &(0..0))?;
        self.flush_device(log)
    }

    /// `root`: the disk is closed; without: it is open.
    pub(crate) fn write_tail(&self, log: &mut Log, root: Option<Link>) -> Result<()> {
        log.tail_generation += 1;
        let tail = Tail { generation: log.tail_generation, root, durable: self.state.read().durable };
        self.write_blocks(TAIL_AT[(tail.generation % 2) as usize], &tail.encode(&self.superblock))?;
        block::flush(&*self.device).inspect_err(|error| self.poison(error))
    }
}

fn read_superblock(device: &dyn BlockDevice, has_head: bool) -> std::result::Result<Superblock, VlogError> {
    let have = device.geometry().bytes;
    if have < (LOG_AT as u64 + 1) * BLOCK as u64 {
        return Err(VlogError::TooSmall { have, need: (LOG_AT as u64 + 1) * BLOCK as u64 });
    }
    let first = Superblock::decode(&read_block(device, SUPERBLOCK_AT[0])?);
    let superblock = match first {
        Ok(superblock) => superblock,
        Err(error) => Superblock::decode(&read_block(device, SUPERBLOCK_AT[1])?).map_err(|_| error)?,
    };
    let need = superblock.physical_blocks as u64 * BLOCK as u64;
    if have < need {
        return Err(VlogError::CutShort { have, need });
    }
    if has_head != (superblock.segment_blocks == 0) {
        let why = if has_head { "the disk writes to segments" } else { "the disk needs a device whose head is known" };
        return Err(VlogError::Option { what: "placement", why: why.into() });
    }
    Ok(superblock)
}

/// The newer of the tail records, if one can be read.
fn read_tail(device: &dyn BlockDevice, superblock: &Superblock) -> Result<Option<Tail>> {
    let mut newest: Option<Tail> = None;
    for at in TAIL_AT {
        if let Ok(tail) = Tail::decode(&read_block(device, at)?, superblock)
            && newest.is_none_or(|other| other.generation < tail.generation)
        {
            newest = Some(tail);
        }
    }
    Ok(newest)
}

/// Blocks read at once, in any order; the results in the order asked for.
fn read_many(device: &dyn BlockDevice, blocks: &[u32]) -> Result<Vec<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    for (n, &at) in blocks.iter().enumerate() {
        let sender = sender.clone();
        let request = Request::Read { at: at as u64 * BLOCK as u64, buffer: vec![0; BLOCK] };
        // The receiver waits below.
        device.submit(request, Box::new(move |result| drop(sender.send((n, result)))));
    }
    drop(sender);
    let mut results = vec![Vec::new(); blocks.len()];
    for (n, result) in receiver {
        results[n] = result?;
    }
    Ok(results)
}

/// The map as it comes together.
struct Search<'a> {
    device: &'a dyn BlockDevice,
    superblock: Superblock,
    map: Vec<Entry>,
    /// For each piece the number of the record its state was taken from.
    taken_from: Vec<u64>,
    /// Records that are durable, by number.
    headers: BTreeMap<u64, Header>,
    /// Records that nobody has called durable so far.
    later: BTreeMap<u64, Record>,
    durable: u64,
    blocks_read: u64,
    records: u64,
}

impl<'a> Search<'a> {
    fn new(device: &'a dyn BlockDevice, superblock: Superblock) -> Search<'a> {
        Search {
            device,
            superblock,
            map: vec![Entry::default(); superblock.logical_blocks as usize],
            taken_from: vec![0; superblock.pieces() as usize],
            headers: BTreeMap::new(),
            later: BTreeMap::new(),
            durable: 0,
            blocks_read: 0,
            records: 0,
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

    /// The record is durable: its pieces count unless a newer one has them.
    fn take(&mut self, record: Record) {
        let mut counts = record.pieces.is_empty();
        for piece in &record.pieces {
            let newest = &mut self.taken_from[piece.index as usize];
            if *newest < record.seq {
                *newest = record.seq;
                counts = true;
                let first = (piece.index * PIECE_BLOCKS) as usize;
                self.map[first..].iter_mut().zip(&piece.entries).for_each(|(entry, found)| *entry = *found);
            }
        }
        if counts {
            let pieces = record.pieces.iter().map(|piece| piece.index).collect();
            let header = Header { at: record.at, mapped: record.mapped, pieces, links: record.links };
            self.headers.insert(record.seq, header);
        }
    }

    /// Follows the links from the newest record; false if pieces are missing.
    fn walk(&mut self, root: Link) -> Result<bool> {
        self.durable = root.seq;
        let (mut wave, mut seen) = (vec![root], HashSet::from([root]));
        let mut mapped = None;
        while !wave.is_empty() {
            let rest = wave.split_off(wave.len().min(READS));
            let blocks: Vec<u32> = wave.iter().map(|link| link.at).collect();
            if blocks.iter().any(|at| !(LOG_AT..self.superblock.physical_blocks).contains(at)) {
                return Ok(false);
            }
            let read = read_many(self.device, &blocks)?;
            self.blocks_read += blocks.len() as u64;
            let links = std::mem::replace(&mut wave, rest);
            for (link, bytes) in links.into_iter().zip(read) {
                // Another number: the record meant did not count any more.
                let Some(record) = self.decode(&bytes, link.at).filter(|record| record.seq == link.seq) else {
                    continue;
                };
                if link == root {
                    mapped = Some(record.mapped);
                }
                wave.extend(record.links.iter().copied().filter(|link| seen.insert(*link)));
                self.add(record);
            }
        }
        let found = self.taken_from.iter().filter(|&&seq| seq > 0).count();
        Ok(mapped == Some(found as u32))
    }

    fn scan(&mut self) -> Result<()> {
        if self.superblock.segment_blocks == 0 { self.scan_all() } else { self.scan_segments() }
    }

    /// Every block may be a record.
    fn scan_all(&mut self) -> Result<()> {
        let mut at = LOG_AT;
        while at < self.superblock.physical_blocks {
            let run = RUN_BLOCKS.min(self.superblock.physical_blocks - at);
            let mut bytes = vec![0; run as usize * BLOCK];
            block::read(self.device, at as u64 * BLOCK as u64, &mut bytes)?;
            self.blocks_read += run as u64;
            for (at, block) in (at..).zip(bytes.chunks_exact(BLOCK)) {
                if let Some(record) = self.decode(block, at) {
                    self.add(record);
                }
            }
            at += run;
        }
        Ok(())
    }

    /// Only the records: each says where the next one of its segment is.
    fn scan_segments(&mut self) -> Result<()> {
        let size = self.superblock.segment_blocks;
        let mut waiting = (0..self.superblock.segments()).map(|n| (LOG_AT + n * size, 0u64));
        let mut wave: Vec<(u32, u64)> = waiting.by_ref().take(READS).collect();
        while !wave.is_empty() {
            let blocks: Vec<u32> = wave.iter().map(|&(at, _)| at).collect();
            let read = read_many(self.device, &blocks)?;
            self.blocks_read += blocks.len() as u64;
            let mut next = Vec::with_capacity(READS);
            for ((at, last), bytes) in wave.into_iter().zip(read) {
                let Some(record) = self.decode(&bytes, at) else { continue };
                // A lower number: the segment's former life.
                if record.seq <= last {
                    continue;
                }
                let end = LOG_AT + ((at - LOG_AT) / size + 1) * size;
                let following = at.saturating_add(record.skip as u32);
                if record.skip > 0 && following < end {
                    next.push((following, record.seq));
                }
                self.add(record);
            }
            next.extend(waiting.by_ref().take(READS - next.len()));
            wave = next;
        }
        Ok(())
    }

    /// The base, and the records behind it.
    fn into_state(mut self, root: Option<Link>) -> std::result::Result<(State, BTreeMap<u64, Record>), VlogError> {
        let mapped = self.headers.values().next_back().map_or(0, |header| header.mapped);
        let found = self.taken_from.iter().filter(|&&seq| seq > 0).count() as u32;
        if found < mapped {
            return Err(VlogError::Damaged { lost: mapped - found, mapped });
        }
        let last = [self.headers.keys().next_back(), self.later.keys().next_back()].into_iter().flatten().max();
        let last = last.copied().unwrap_or(0).max(self.durable);
        let mut state = State::new(self.superblock);
        let take = |state: &mut State, at: u32| {
            if state.space.is_used(at) {
                return Err(VlogError::Twice { at });
            }
            state.space.take(at);
            Ok(())
        };
        for (&seq, header) in &self.headers {
            let counts = header.pieces.iter().any(|&piece| self.taken_from[piece as usize] == seq);
            if counts || root.is_some_and(|root| root.seq == seq) {
                take(&mut state, header.at)?;
                state.found(seq, header, |piece| self.taken_from[piece as usize] == seq);
            }
        }
        self.headers = BTreeMap::new();
        for entry in self.map.iter().filter(|entry| entry.at != 0) {
            take(&mut state, entry.at)?;
        }
        state.map = self.map;
        state.link_up(root);
        state.durable = self.durable;
        state.announced = self.durable;
        let hidden = if root.is_some() || is_planted(Bug::NoJump) { 0 } else { HIDDEN_MAX };
        state.next_seq = last + 1 + hidden;
        state.space.settle();
        Ok((state, self.later))
    }
}

/// Applies what can be believed of records behind the base; returns the pieces they change.
fn believe(
    device: &dyn BlockDevice,
    state: &mut State,
    later: BTreeMap<u64, Record>,
    recovery: &mut Recovery,
) -> std::result::Result<Vec<u32>, VlogError> {
    let mut pieces = BTreeSet::new();
    let mut lost = HashSet::new();
    let seq = state.next_seq;
    for record in later.values() {
        // It may have been flushed: nobody may overwrite it before what it says is written anew.
        if !state.space.is_used(record.at) {
            state.space.take(record.at);
            state.space.leave(record.at, seq);
        }
        for piece in &record.pieces {
            // Also where it changed nothing: what else is in it may come from a record that is lost.
            pieces.insert(piece.index);
            for (n, &entry) in piece.entries.iter().enumerate() {
                let logical = piece.index * PIECE_BLOCKS + n as u32;
                let changed = piece.changed >> n & 1 == 1;
                if !changed || logical >= state.superblock.logical_blocks {
                    continue;
                }
                if state.map[logical as usize] == entry {
                    continue;
                }
                // A place that the base uses is none of an unflushed write's.
                let possible = entry.at == 0 || !state.space.is_used(entry.at);
                let sure = entry.at == 0 || is_planted(Bug::NoVerify);
                if !possible || !sure && !is_intact(&read_block(device, entry.at)?, &entry) {
                    lost.insert(logical);
                    continue;
                }
                lost.remove(&logical);
                if entry.at != 0 {
                    state.space.take(entry.at);
                }
                state.put(logical, entry, seq);
            }
        }
    }
    recovery.lost = lost.len() as u64;
    state.space.settle();
    Ok(pieces.into_iter().collect())
}
