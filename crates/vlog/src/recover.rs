//! Formatting, and opening from a checkpoint or the tail record, otherwise by a scan.
//!
//! A disk with a map area has a checkpoint. Opening reads it, and then the records of the segments
//! that its lists name. Without a checkpoint, the tail record of a closed disk names the newest log
//! record, from which all records that count are reached. If neither can be trusted, the log is
//! scanned. In segments only the records are read, because each says where the next one is.
//! Records up to the highest number that any record calls durable are the base. Records after the
//! base may have survived without their data. Only the entries they changed are believed, and only
//! if the data has the right checksum. Rules: believed entries are written, made durable and then
//! announced before the disk is used. Nothing that the base refers to is overwritten before that.
//! Numbers continue far after the last one seen, because a torn record may hide later ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use shoal_format::Sums;
use shoal_format::vlog::map::{Area, Directory, List, MAP_PIECES_MAX};
use shoal_format::vlog::{
    BLOCK, Checkpoint, LOG_AT, Link, PIECE_BLOCKS, Record, SUPERBLOCK_AT, Superblock, TAIL_AT, Tail,
};
use shoal_media::{BlockDevice, Clock, Result, block};

use crate::checkpoint::{Checkpoints, list_blocks, quota};
use crate::disk::{Log, VirtualLog};
use crate::load::Loaded;
use crate::planted::{Bug, is_planted};
use crate::read::{Read, read_each};
use crate::search::{Found, Search};
use crate::state::State;
use crate::write::By;
use crate::{FormatOptions, Options, Placement, SPARE_PERCENT_MIN, VlogError};

/// Segments in addition to the spare part: the open one, the reserved ones, and those that requests
/// keep free.
const EXTRA_SEGMENTS: u32 = 7;
const SEGMENTS_MIN: u32 = 12;
/// Minimum without segments, where a write finds space without emptying anything.
const SPARE_ANYWHERE_MIN: u8 = 3;
/// Exceeds the number of records that can follow the last durable one.
pub(crate) const HIDDEN_MAX: u64 = 1 << 14;

/// Report on the opening of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The disk had been closed.
    pub clean: bool,
    /// A checkpoint was read, and only the log after it.
    pub checkpoint: bool,
    /// Blocks that were read to find the map.
    pub blocks_read: u64,
    /// Records found.
    pub records: u64,
    /// Number of those records that may not have been durable.
    pub unsure: u64,
    /// Blocks whose last, unflushed writes are lost.
    pub lost: u64,
    /// Time it took (ns).
    pub took_ns: u64,
}

/// Returns the uuid of the disk whose first block is given.
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
    let (segment_blocks, least) = match options.placement {
        Placement::Segments { blocks } => {
            if !blocks.is_power_of_two() || !(32..=4096).contains(&blocks) {
                let why = format!("{blocks} blocks; a power of two from 32 to 4096");
                return Err(VlogError::Option { what: "segment", why });
            }
            (blocks, SPARE_PERCENT_MIN)
        }
        Placement::Anywhere => (0, SPARE_ANYWHERE_MIN),
    };
    if !(least..=90).contains(&spare) {
        return Err(VlogError::Option { what: "spare", why: format!("{spare} percent; {least} to 90") });
    }
    if options.map_pieces > MAP_PIECES_MAX {
        let why = format!("{} pieces; up to {MAP_PIECES_MAX}", options.map_pieces);
        return Err(VlogError::Option { what: "map block", why });
    }
    // Returns the number of segments of a log of `log` blocks, and how many blocks of data it can
    // hold.
    let divide = |log: u64| {
        let segments = (log / segment_blocks.max(1) as u64) as u32;
        let usable = match segment_blocks {
            0 => log,
            blocks => segments.saturating_sub(EXTRA_SEGMENTS) as u64 * blocks as u64,
        };
        (segments, (usable * (100 - spare) as u64 / 100) as u32)
    };
    let has_area = segment_blocks > 0 && options.map_pieces > 0;
    let area_for = |log: u64| {
        let (segments, most) = divide(log);
        if has_area { Superblock::area_blocks(most, options.map_pieces, list_blocks(segments)) } else { 0 }
    };
    let log_min = if segment_blocks > 0 { SEGMENTS_MIN as u64 * segment_blocks as u64 } else { 96 };
    let log_and_area = (physical_blocks as u64).saturating_sub(LOG_AT as u64);
    // The area sized for a log that fills all the space is more than enough.
    let log = log_and_area.saturating_sub(area_for(log_and_area));
    if log < log_min {
        let mut need = log_min;
        while need - area_for(need) < log_min {
            need += 1;
        }
        return Err(VlogError::TooSmall { have: bytes, need: (LOG_AT as u64 + need) * BLOCK as u64 });
    }
    let (segments, most) = divide(log);
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
    let area = has_area.then(|| Area {
        at: LOG_AT + log as u32,
        map_pieces: options.map_pieces,
        list_blocks: list_blocks(segments),
    });
    let (uuid, salt) = (options.uuid, options.salt);
    Ok(Superblock { uuid, salt, logical_blocks, physical_blocks, segment_blocks, area, sums: Sums::Xxh3 })
}

/// Writes the first checkpoint of a new disk: nothing is mapped, and the first segment may hold
/// records.
fn format_area(device: &dyn BlockDevice, superblock: &Superblock, number: u64) -> Result<Option<Checkpoint>> {
    if superblock.area.is_none() {
        return Ok(None);
    }
    let complete = Checkpoint { number, side: 0 };
    for index in 0..superblock.directory_blocks() {
        let at = superblock.directory_at(complete.side, index);
        block::write(device, at as u64 * BLOCK as u64, &Directory::new(number, index).encode(superblock))?;
    }
    let list = List { number, after: 0, index: 0, segments: vec![0] };
    for copy in 0..2 {
        let at = superblock.list_at(complete.side, copy, 0);
        block::write(device, at as u64 * BLOCK as u64, &list.encode(superblock))?;
    }
    Ok(Some(complete))
}

impl VirtualLog {
    /// Makes a new, empty disk. The device's contents are lost.
    pub fn format(device: &dyn BlockDevice, options: &FormatOptions) -> std::result::Result<Superblock, VlogError> {
        let superblock = plan(device.geometry().bytes, options)?;
        let at = |block: u32| block as u64 * BLOCK as u64;
        // No valid disk exists until the end.
        for copy in SUPERBLOCK_AT {
            block::write(device, at(copy), &[0; BLOCK])?;
        }
        block::flush(device)?;
        let mut state = State::new(superblock);
        state.space.take(LOG_AT);
        let record = state.record(LOG_AT, 1, &[]);
        block::write(device, at(LOG_AT), &record.encode(&superblock))?;
        let root = Some(Link { at: LOG_AT, seq: record.seq });
        let checkpoint = format_area(device, &superblock, record.seq)?;
        block::write(device, at(TAIL_AT[0]), &[0; BLOCK])?;
        let tail = Tail { generation: 1, root, durable: record.seq, checkpoint };
        block::write(device, at(TAIL_AT[1]), &tail.encode(&superblock))?;
        block::flush(device)?;
        for copy in SUPERBLOCK_AT {
            block::write(device, at(copy), &superblock.encode())?;
        }
        block::flush(device)?;
        Ok(superblock)
    }

    /// Opens a disk that was closed, or that any crash left behind.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> std::result::Result<(VirtualLog, Recovery), VlogError> {
        let began = clock.monotonic_ns();
        let superblock = read_superblock(&*device, options.head.is_some())?;
        let tail = read_tail(&*device, &superblock)?;
        let mut search = Search::new(&*device, superblock, options.watch.clone());
        let closed_at = tail.and_then(|tail| tail.root);
        let complete = tail.and_then(|tail| tail.checkpoint);
        search.durable = tail.map_or(0, |tail| tail.durable.max(closed_at.map_or(0, |root| root.seq)));
        let (search, loaded, clean) = find_map(search, &superblock, complete, closed_at)?;
        let mut recovery = Recovery::default();
        (recovery.clean, recovery.checkpoint) = (clean, loaded.is_some());
        (recovery.blocks_read, recovery.records) = (search.blocks_read, search.records);
        let complete = complete.filter(|_| loaded.is_some());
        let number = complete.map(|complete| complete.number);
        let Found { mut state, later } = search.into_found(closed_at.filter(|_| clean), number)?;
        if !clean {
            recovery.unsure = later.len() as u64;
        }
        let changes = believe(&*device, &mut state, later, &mut recovery)?;
        let checkpoints = superblock.area.map(|_| checkpoints_of(&superblock, &mut state, loaded));
        let log = Log {
            written: state.next_seq - 1,
            says: state.durable,
            tail_generation: tail.map_or(1, |tail| tail.generation),
            complete,
            checkpoints,
            ..Log::default()
        };
        let disk = VirtualLog::assemble(device, clock.clone(), options, state, log);
        disk.write_recovered(&changes, clean)?;
        recovery.took_ns = clock.monotonic_ns().saturating_sub(began);
        Ok((disk, recovery))
    }

    /// Writes the recovered state, so that it is the only one from now on.
    fn write_recovered(&self, pieces: &[u32], clean: bool) -> Result<()> {
        let mut log = self.lock();
        let log = &mut *log;
        // If a process died and not the machine, the records found may exist only in a cache. A
        // power loss could then keep the next writes but lose the records that allowed them.
        if !is_planted(Bug::FoundUnflushed) {
            block::flush(&*self.device).inspect_err(|error| self.poison(error))?;
        }
        self.state.write().space.names_flushed();
        if log.checkpoints.is_some() {
            self.write_tails(log)?;
        } else if clean && !is_planted(Bug::StaleTail) {
            self.write_tail(log, None)?;
        }
        if clean {
            return Ok(());
        }
        if is_planted(Bug::NoSettle) {
            let mut state = self.state.write();
            state.durable = state.next_seq - 1;
            let announced = state.durable;
            state.space.announced(announced);
            return Ok(());
        }
        self.with_checkpoints(log, |log, checkpoints| self.name_for_settling(log, checkpoints))?;
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

    /// Names the segment that recovery opens. Forgets the checkpoint instead if the list has no
    /// room left.
    fn name_for_settling(&self, log: &mut Log, checkpoints: &mut Checkpoints) -> Result<()> {
        if self.state.write().space.named_first() {
            return Ok(());
        }
        if checkpoints.listing.as_ref().is_none_or(|listing| listing.used >= self.superblock.list_blocks()) {
            return self.forget_checkpoint(log, checkpoints);
        }
        let names = self.state.read().space.unnamed(1);
        self.append_names(checkpoints, names)?;
        block::flush(&*self.device).inspect_err(|error| self.poison(error))?;
        self.state.write().space.names_flushed();
        Ok(())
    }

    /// Writes the tail record of an open disk to both places. If one is damaged, the other avoids
    /// the scan that an older record would cause.
    pub(crate) fn write_tails(&self, log: &mut Log) -> Result<()> {
        if is_planted(Bug::StaleTail) {
            return Ok(());
        }
        self.write_tail(log, None)?;
        self.write_tail(log, None)
    }

    /// Writes the tail record of a closed disk (`root` given) or of an open one.
    pub(crate) fn write_tail(&self, log: &mut Log, root: Option<Link>) -> Result<()> {
        log.tail_generation += 1;
        let (generation, durable, checkpoint) = (log.tail_generation, self.state.read().durable, log.complete);
        let tail = Tail { generation, root, durable, checkpoint };
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

/// Looks for the map: in the checkpoint, through the links of a closed disk's last record, or in
/// the whole log. Returns the checkpoint if it was used, and whether the disk was found as it was
/// closed.
fn find_map<'a>(
    mut search: Search<'a>,
    superblock: &Superblock,
    complete: Option<Checkpoint>,
    closed_at: Option<Link>,
) -> std::result::Result<(Search<'a>, Option<Loaded>, bool), VlogError> {
    let durable = search.durable;
    let mut clean = false;
    let mut loaded = match complete {
        Some(complete) => search.load(complete)?,
        None => None,
    };
    if let Some(listed) = &loaded {
        search.scan_listed(listed)?;
        if let Some(root) = closed_at {
            clean = search.ends_with(root, complete.map(|complete| complete.number))?;
            // Reject a checkpoint that does not lead to the end of a closed disk.
            loaded = loaded.filter(|_| clean);
        }
    }
    if loaded.is_none() {
        search = search.again();
        let walked = match closed_at.filter(|_| superblock.area.is_none()) {
            Some(root) => search.walk(root)?,
            None => false,
        };
        if !walked {
            search = search.again();
            search.durable = durable;
            search.scan()?;
        }
        clean = match closed_at {
            Some(root) => walked || superblock.area.is_some() && search.ends_with(root, None)?,
            None => false,
        };
    }
    if let Some(root) = closed_at.filter(|&root| !clean && search.ends_before(root)) {
        // Nothing was written since the disk was closed, so missing records are damaged, and the
        // pieces found instead would be stale.
        return Err(VlogError::Cut { at: root.at });
    }
    Ok((search, loaded, clean))
}

/// Returns the checkpoints of a disk with a map area. If a round was under way in the loaded one,
/// it now has all dirty map blocks to write.
fn checkpoints_of(superblock: &Superblock, state: &mut State, loaded: Option<Loaded>) -> Checkpoints {
    let Some(mut loaded) = loaded else { return Checkpoints::new(superblock) };
    state.space.begin_list(0);
    state.space.named(&loaded.named);
    if let Some(round) = &mut loaded.checkpoints.round {
        round.pending = state.take_dirty();
        round.quota = quota(superblock, round.pending.count());
    }
    loaded.checkpoints
}

/// Reads the newer of the tail records, if any is readable.
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

/// Reads the blocks that records after the base refer to, and returns their checksums.
fn sums_of(device: &dyn BlockDevice, sums: Sums, later: &BTreeMap<u64, Record>) -> Result<HashMap<u32, Result<u32>>> {
    let mut places = BTreeSet::new();
    for piece in later.values().flat_map(|record| &record.pieces) {
        let changed =
            piece.entries.iter().enumerate().filter(|(n, entry)| piece.changed >> n & 1 == 1 && entry.at != 0);
        places.extend(changed.map(|(_, entry)| entry.at));
    }
    let mut found = HashMap::with_capacity(places.len());
    read_each(device, places.into_iter().map(|at| Read { at, blocks: 1, what: () }), |read, bytes| {
        found.insert(read.at, bytes.map(|bytes| sums.of(&bytes)));
        Ok(None)
    })?;
    Ok(found)
}

/// Applies the entries that can be believed from records after the base. Returns the pieces they
/// change.
fn believe(
    device: &dyn BlockDevice,
    state: &mut State,
    later: BTreeMap<u64, Record>,
    recovery: &mut Recovery,
) -> std::result::Result<Vec<u32>, VlogError> {
    let mut pieces = BTreeSet::new();
    let mut lost = HashSet::new();
    let seq = state.next_seq;
    let sums = sums_of(device, state.superblock.sums, &later)?;
    for record in later.values() {
        // The record may have been flushed, so its block must not be overwritten before its entries
        // are written again.
        if !state.space.is_used(record.at) {
            state.space.take(record.at);
            state.space.leave(record.at, seq);
        }
        for piece in &record.pieces {
            // Include pieces where it changed nothing: other entries may come from a record that is
            // lost.
            pieces.insert(piece.index);
            for (n, &entry) in piece.entries.iter().enumerate() {
                let logical = piece.index * PIECE_BLOCKS + n as u32;
                let changed = piece.changed >> n & 1 == 1;
                if !changed || logical >= state.superblock.logical_blocks {
                    continue;
                }
                if state.map.get(logical) == entry {
                    continue;
                }
                // An unflushed write cannot lie in a block that the base uses.
                let is_free = |at: u32| state.space.blocks().contains(&at) && !state.space.is_used(at);
                let possible = entry.at == 0 || is_free(entry.at);
                let sure = entry.at == 0 || is_planted(Bug::NoVerify);
                let is_intact = || match sums.get(&entry.at) {
                    // The write may have been flushed, so it cannot be declared lost.
                    Some(Err(error)) => Err(error.clone()),
                    Some(Ok(sum)) => Ok(*sum == entry.sum || is_planted(Bug::NoChecksum)),
                    None => Ok(false),
                };
                if !possible || !sure && !is_intact()? {
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
    state.space.list_free_segments();
    Ok(pieces.into_iter().collect())
}
