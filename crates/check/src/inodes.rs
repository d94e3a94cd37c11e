//! The inode table: walks its nodes and blocks, decodes every record, and keeps what later stages need.
//!
//! Owns: the list of existing blocks and a state of 32 bytes for every record in them.
//! Rules: the walk's depth is the table's height, at most [`HEIGHT_MAX`]; a node or block is
//! visited once.
//! Left out: the data behind an inode's `root` (`files`, `directories`) and link counts (`links`).

use shoal_format::inode::{
    INODE_BLOCK, INODE_RECORD, INODES_PER_BLOCK, Ino, Inode, InodeSlot, Layout, S_IFDIR, S_IFLNK, S_IFREG,
    TABLE_FANOUT, TABLE_NODE, Threshold,
};
use shoal_format::superblock::{
    FEATURE_DICTIONARIES, FEATURE_METHODS, FEATURE_PACKED, FEATURE_THRESHOLDS, ROOTS_AT, Roots,
};
use shoal_format::{Offset, SlotRef};
use zerocopy::FromBytes;

use crate::dictionaries::Dictionaries;
use crate::packed::{self, Defect, PACKED_MAX, Read, Tables};
use crate::region::Region;
use crate::remedy::Remedy;
use crate::report::FindingKind;
use crate::spilled::Spilled;
use crate::{CheckError, Progress, Stage, State, files};

/// Maximum number of levels for 32-bit inode numbers.
const HEIGHT_MAX: u32 = 4;
const BLOCKS_MAX: u64 = Ino::MAX.block() + 1;

/// The record does not decode, so later stages skip it.
pub(crate) const DAMAGED: u8 = 1;
/// The path up from this directory has been followed.
pub(crate) const FOLLOWED: u8 = 2;
/// The path up from this directory is being followed.
pub(crate) const FOLLOWING: u8 = 4;
/// `entry_at` is the offset of the packed bucket that holds the entry.
pub(crate) const ENTRY_PACKED: u8 = 8;

/// The state of one record.
#[derive(Clone, Copy, Default)]
pub(crate) struct InodeState {
    /// `mode >> 12`; 0 for a free record.
    pub kind: u8,
    pub marks: u8,
    pub nlink: u32,
    /// Entries that name the inode.
    pub links: u32,
    /// Directory: number of its entries that are directories.
    pub subdirectories: u32,
    /// The parent field.
    pub parent: Ino,
    /// The directory with the first entry found. `entry_at` is the offset of that entry in the
    /// region (0: none found).
    pub holder: Ino,
    pub entry_at: Offset,
}

/// A directory whose entries are still to be walked.
#[derive(Clone, Copy)]
pub(crate) struct Directory {
    pub ino: Ino,
    pub layout: Layout,
    pub root: SlotRef,
    pub size: u64,
    pub nlink: u32,
    pub allocated: u64,
    /// Capacity of the attributes' piece.
    pub xattr_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Inodes {
    /// Numbers of the existing blocks, ascending.
    blocks: Vec<u32>,
    /// The states of the records, sixteen for each block.
    pub states: Vec<InodeState>,
    pub directories: Vec<Directory>,
}

impl Inodes {
    fn position(&self, ino: Ino) -> Option<usize> {
        let block = ino.block() as u32;
        // A table without gaps is the usual case and needs no search.
        let found = match self.blocks.get(block as usize) {
            Some(&there) if there == block => block as usize,
            _ => self.blocks.binary_search(&block).ok()?,
        };
        Some(found * INODES_PER_BLOCK as usize + ino.place())
    }

    pub(crate) fn state(&self, ino: Ino) -> Option<&InodeState> {
        self.position(ino).map(|at| &self.states[at])
    }

    pub(crate) fn state_mut(&mut self, ino: Ino) -> Option<&mut InodeState> {
        self.position(ino).map(|at| &mut self.states[at])
    }

    /// Returns the inode number of a position in `states`.
    pub(crate) fn ino(&self, position: usize) -> Ino {
        let per_block = INODES_PER_BLOCK as usize;
        Ino::in_block(self.blocks[position / per_block].into(), position % per_block).expect("the walk refuses others")
    }
}

/// Reads the roots and walks the whole table.
pub(crate) fn walk(
    region: &Region<'_>,
    state: &mut State,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), CheckError> {
    let roots = Roots::read_from_bytes(&region.bytes(ROOTS_AT, size_of::<Roots>() as u64)?).expect("size is given");
    let (height, blocks) = (roots.inode_height.get(), roots.inode_blocks.get());
    let root = SlotRef::from_bits(roots.inode_root.get());
    let sentence = match root {
        None => Some(format!("the inode table's root {:#x} is no reference", roots.inode_root.get())),
        Some(slot) if slot.is_none() || slot.capacity() != TABLE_NODE => {
            Some(format!("the inode table's root is {slot:?}, not a node of {TABLE_NODE} bytes"))
        }
        _ if height == 0 || height > HEIGHT_MAX => Some(format!("the inode table's height is {height}")),
        _ if blocks > BLOCKS_MAX.min(TABLE_FANOUT.pow(height)) => {
            Some(format!("{blocks} inode blocks do not fit a table of height {height}"))
        }
        _ if roots.withheld_segments.get() > state.superblock.segment_count
            || roots.withheld_blocks.get() > state.superblock.bulk_blocks =>
        {
            let (segments, blocks) = (roots.withheld_segments.get(), roots.withheld_blocks.get());
            Some(format!("{segments} segments and {blocks} bulk blocks are withheld, more than there are"))
        }
        _ => None,
    };
    if let Some(sentence) = sentence {
        state.report.error(FindingKind::Roots, None, Some(ROOTS_AT.get()), sentence);
        return Ok(());
    }
    read_tables(region, state, &roots)?;
    read_dictionaries(region, state, &roots)?;
    state.spilled = Spilled::read(&roots, &state.superblock, &mut state.report);
    let mut walk = Walk { region, state, blocks, progress };
    walk.node(root.unwrap_or(SlotRef::NONE), height - 1, 0)?;
    verify_root(state);
    verify_triplets(state);
    if state.clean {
        verify_counts(state, &roots);
    }
    Ok(())
}

/// Reads the tables of packed blocks, if there are any.
fn read_tables(region: &Region<'_>, state: &mut State, roots: &Roots) -> Result<(), CheckError> {
    let tables = packed::copies(roots);
    if tables == [Some(SlotRef::NONE); 2] {
        return Ok(());
    }
    if state.superblock.features & FEATURE_PACKED == 0 {
        let sentence = "there are tables of packed inodes, but the store lacks the feature".to_string();
        state.report.error(FindingKind::PackedTables, None, Some(ROOTS_AT.get()), sentence);
    }
    let (mut found, mut defects) = (Vec::new(), Vec::new());
    for slot in tables {
        match slot.filter(|slot| !slot.is_none()) {
            None => {
                let sentence = "a copy of the tables of packed inodes has no place".to_string();
                defects.push(Defect { at: ROOTS_AT.get(), sentence });
            }
            Some(slot) => {
                if state.allocation.claim(slot, None, "tables of packed inodes", &mut state.report) {
                    found.push((slot.offset().get(), region.bytes(slot.offset(), slot.capacity())?.into_owned()));
                }
            }
        }
    }
    state.tables = Tables::read(found, &mut defects);
    for Defect { at, sentence } in defects {
        state.report.error(FindingKind::PackedTables, None, Some(at), sentence);
        state.report.offer(Remedy::PackedTables);
    }
    Ok(())
}

/// Reads the dictionaries of short packed files, if there are any.
fn read_dictionaries(region: &Region<'_>, state: &mut State, roots: &Roots) -> Result<(), CheckError> {
    let mut defects = Vec::new();
    let State { allocation, report, superblock, .. } = state;
    let mut piece = |slot: SlotRef, what: &str| match allocation.claim(slot, None, what, report) {
        true => Ok(Some(region.bytes(slot.offset(), slot.capacity())?.into_owned())),
        false => Ok(None),
    };
    let found = Dictionaries::read(roots, &mut piece, &mut defects)?;
    let exist = roots.dictionaries.iter().any(|bits| bits.get() != 0);
    if exist && superblock.features & FEATURE_DICTIONARIES == 0 {
        let sentence = "there are dictionaries, but the store lacks the feature".to_string();
        defects.push(Defect { at: ROOTS_AT.get(), sentence });
    }
    state.dictionaries = found;
    for Defect { at, sentence } in defects {
        state.report.error(FindingKind::Dictionaries, None, Some(at), sentence);
        state.report.offer(Remedy::Dictionaries);
    }
    Ok(())
}

fn verify_triplets(state: &mut State) {
    for (index, says, found) in state.tables.wrong_counts() {
        let sentence = format!("triplet {index} of packed inodes has {found} users, the table says {says}");
        state.report.error(FindingKind::TripletCount, None, None, sentence);
        state.report.offer(Remedy::PackedTables);
    }
}

fn verify_counts(state: &mut State, roots: &Roots) {
    let counts = state.report.counts;
    for (what, says, found) in [
        ("inodes", roots.inodes.get(), counts.inodes + u64::from(state.spilled.is_used)),
        ("directories", roots.directories.get(), counts.directories),
        ("large files", roots.large_files.get(), counts.large_files + u64::from(state.spilled.is_large)),
    ] {
        if says != found {
            let sentence = format!("the roots say {says} {what} at the clean unmount, there are {found}");
            state.report.error(FindingKind::RootCounts, None, Some(ROOTS_AT.get()), sentence);
        }
    }
}

fn verify_root(state: &mut State) {
    let root = state.inodes.state(Ino::ROOT).copied().unwrap_or_default();
    if root.marks & DAMAGED == 0 && (root.kind as u16 != S_IFDIR >> 12 || root.nlink == 0) {
        let sentence = "the root is not a directory with links".to_string();
        state.report.error(FindingKind::RootDirectory, Some(Ino::ROOT), None, sentence);
    } else if root.marks & DAMAGED == 0 && root.parent != Ino::ROOT {
        let sentence = format!("the root's parent is inode {}, not itself", root.parent);
        state.report.error(FindingKind::RootDirectory, Some(Ino::ROOT), None, sentence);
    }
    if state.inodes.state(Ino::ZERO).is_some_and(|zero| zero.kind != 0) {
        let sentence = "inode number 0 stands for none but is in use".to_string();
        state.report.error(FindingKind::InodeZero, Some(Ino::ZERO), None, sentence);
    }
}

fn is_plain(block: SlotRef) -> bool {
    block.capacity() == INODE_BLOCK
}

struct Walk<'a, 'b> {
    region: &'a Region<'b>,
    state: &'a mut State,
    blocks: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl Walk<'_, '_> {
    fn node(&mut self, slot: SlotRef, level: u32, first_block: u64) -> Result<(), CheckError> {
        if !self.state.allocation.claim(slot, None, "inode table node", &mut self.state.report) {
            return Ok(());
        }
        let bytes = self.region.bytes(slot.offset(), TABLE_NODE)?;
        let step = TABLE_FANOUT.pow(level);
        for (i, bits) in bytes.chunks_exact(8).enumerate() {
            let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes"));
            if bits == 0 {
                continue;
            }
            let at = slot.offset() + i as u64 * 8;
            let block = first_block + i as u64 * step;
            if block >= self.blocks {
                let sentence = format!("block {block} of the inode table lies behind its {} blocks", self.blocks);
                self.state.report.error(FindingKind::InodeTable, None, Some(at.get()), sentence);
                continue;
            }
            let fits = |slot: &SlotRef| match level {
                0 => slot.capacity() == INODE_BLOCK || slot.capacity() <= PACKED_MAX,
                _ => slot.capacity() == TABLE_NODE,
            };
            match SlotRef::from_bits(bits).filter(fits) {
                None => {
                    let sentence = format!("block {block} of the inode table is referenced by {bits:#x}");
                    self.state.report.error(FindingKind::InodeTable, None, Some(at.get()), sentence);
                }
                Some(slot) if level > 0 => self.node(slot, level - 1, block)?,
                Some(slot) => self.block(slot, block as u32)?,
            }
        }
        Ok(())
    }

    fn block(&mut self, slot: SlotRef, block: u32) -> Result<(), CheckError> {
        if !self.state.allocation.claim(slot, None, "inode block", &mut self.state.report) {
            return Ok(());
        }
        self.state.inodes.blocks.push(block);
        for (i, record) in self.records(slot)?.into_iter().enumerate() {
            let ino = Ino::in_block(block.into(), i).expect("the walk refuses others");
            let known = match record {
                Ok(InodeSlot::Free { .. }) => InodeState::default(),
                Ok(InodeSlot::Used(inode)) => {
                    self.used(ino, &inode)?;
                    InodeState {
                        kind: (inode.mode >> 12) as u8,
                        nlink: inode.nlink,
                        parent: inode.parent,
                        ..InodeState::default()
                    }
                }
                Err(e) => {
                    let at = slot.offset() + if is_plain(slot) { (i * INODE_RECORD) as u64 } else { 0 };
                    self.state.report.error(FindingKind::InodeRecord, Some(ino), Some(at.get()), e);
                    self.state.report.offer(Remedy::FreeRecord { ino });
                    InodeState { marks: DAMAGED, ..InodeState::default() }
                }
            };
            self.state.inodes.states.push(known);
        }
        let done = self.state.inodes.blocks.len() as u64;
        if done.is_multiple_of(1024) {
            (self.progress)(Progress { stage: Stage::Inodes, done, total: self.blocks });
        }
        Ok(())
    }

    /// Reads the records of a block in either form. If a packed block does not decode, each of the
    /// sixteen results gives the reason.
    fn records(&mut self, slot: SlotRef) -> Result<Vec<Read<InodeSlot>>, CheckError> {
        let bytes = self.region.bytes(slot.offset(), slot.capacity())?;
        if is_plain(slot) {
            let records = bytes.chunks_exact(INODE_RECORD).map(|record| record.try_into().expect("size is given"));
            return Ok(records.map(|record| Inode::decode(record).map_err(|error| error.to_string())).collect());
        }
        let records = self.state.tables.block(&bytes);
        self.state.tables.count(&records);
        Ok(match records {
            Ok(records) => records.into_iter().map(|record| record.map(|record| record.slot)).collect(),
            Err(why) => vec![Err(why); INODES_PER_BLOCK as usize],
        })
    }

    fn used(&mut self, ino: Ino, inode: &Inode) -> Result<(), CheckError> {
        self.state.spilled.inode(ino, inode, &mut self.state.report);
        let counts = &mut self.state.report.counts;
        // The spill file is not counted: no user owns it.
        if ino != self.state.spilled.file {
            counts.inodes += 1;
            match inode.kind() {
                S_IFDIR => counts.directories += 1,
                S_IFREG => counts.files += 1,
                S_IFLNK => counts.symlinks += 1,
                _ => counts.others += 1,
            }
            counts.large_files += u64::from(inode.layout == Layout::Extents);
        }
        if inode.nlink == 0 {
            counts.orphans += 1;
            let sentence = "has no links".to_string();
            self.state.report.leftover(FindingKind::Orphan, ino, self.state.clean, sentence);
        }
        if inode.method != 0 && self.state.superblock.features & FEATURE_METHODS == 0 {
            let sentence = format!("has the method {} of packing, but the store lacks the feature", inode.method);
            self.state.report.error(FindingKind::InodeRecord, Some(ino), None, sentence);
        }
        if inode.threshold != Threshold::NONE && self.state.superblock.features & FEATURE_THRESHOLDS == 0 {
            let sentence =
                format!("has a threshold of {} bytes, but the store lacks the feature", inode.threshold.bytes);
            self.state.report.error(FindingKind::InodeRecord, Some(ino), None, sentence);
        }
        let xattr_bytes = files::attributes(self.region, self.state, ino, inode)?;
        if !inode.is_dir() {
            return files::verify(self.region, self.state, ino, inode, xattr_bytes);
        }
        self.state.inodes.directories.push(Directory {
            ino,
            layout: inode.layout,
            root: inode.root,
            size: inode.size,
            nlink: inode.nlink,
            allocated: inode.allocated,
            xattr_bytes,
        });
        Ok(())
    }
}
