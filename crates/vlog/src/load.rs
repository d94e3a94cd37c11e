//! Reading a checkpoint of the map, and the lists of the segments that may have changed since.
//!
//! Owns: whether a checkpoint can be trusted. It can if its directory is whole, every map block has
//! the checksum that the directory names, the first block of its list is there, and nothing shows
//! that a newer checkpoint was complete. Otherwise the whole checkpoint is dropped and the log is
//! searched. An older version is never used instead.

use std::cell::Cell;

use shoal_format::vlog::map::{DIRECTORY_ENTRIES, Directory, List, MapPiece, decode_map};
use shoal_format::vlog::{BLOCK, Checkpoint as Complete, LOG_AT, Superblock};
use shoal_media::Result;

use crate::checkpoint::{Bits, Checkpoints, Listing, Round};
use crate::planted::{Bug, is_planted};
use crate::read::{Read, read_each};
use crate::search::{Progress, RUN_BLOCKS, Search, each_set};

pub(crate) struct Loaded {
    pub checkpoints: Checkpoints,
    /// Segments that may hold later records.
    pub segments: Bits,
    /// Segments in the list that is continued.
    pub named: Vec<u32>,
}

/// One of the two lists of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// The checkpoint's own list.
    Own,
    /// The list begun after it.
    Begun,
}

/// Returns the reads that cover an area.
fn runs(at: u32, blocks: u32) -> impl Iterator<Item = Read<u32>> {
    (0..blocks).step_by(RUN_BLOCKS as usize).map(move |index| Read {
        at: at + index,
        blocks: RUN_BLOCKS.min(blocks - index),
        what: index,
    })
}

impl Search<'_> {
    /// Takes the map of a checkpoint. Returns `None` if it cannot be trusted; `self` must not be
    /// used any more then.
    pub fn load(&mut self, complete: Complete) -> Result<Option<Loaded>> {
        let superblock = self.superblock;
        let Some(mut checkpoints) = self.load_directory(complete)? else { return Ok(None) };
        let Some(own) = self.load_list(complete.side, complete, Which::Own)? else { return Ok(None) };
        let Some(begun) = self.load_list(1 - complete.side, complete, Which::Begun)? else { return Ok(None) };
        if own.is_empty() || !self.load_map(&checkpoints, complete)? {
            return Ok(None);
        }
        self.durable = self.durable.max(complete.number);
        let mut segments = Bits::new(superblock.segments());
        let ignored = is_planted(Bug::ListIgnored);
        let both = own.iter().chain(begun.iter().filter(|_| !ignored));
        both.flat_map(|list| &list.segments).for_each(|&segment| segments.set(segment, true));
        let (side, lists) = if begun.is_empty() { (complete.side, own) } else { (1 - complete.side, begun) };
        let named: Vec<u32> = lists.iter().flat_map(|list| list.segments.iter().copied()).collect();
        checkpoints.listing = Some(Listing {
            number: lists[0].number,
            after: lists[0].after,
            side,
            used: lists.len() as u32,
            opened: named.len() as u32,
        });
        if side != complete.side {
            // The map blocks to write are known after the records were read.
            checkpoints.round = Some(Round { pending: Bits::new(superblock.map_blocks()), quota: 0 });
        }
        Ok(Some(Loaded { checkpoints, segments, named }))
    }

    /// Searches the segments that a checkpoint does not cover.
    pub fn scan_listed(&mut self, loaded: &Loaded) -> Result<()> {
        let count = self.superblock.segments();
        self.scan_segments(each_set(&loaded.segments, count), loaded.segments.count())
    }

    fn load_directory(&mut self, complete: Complete) -> Result<Option<Checkpoints>> {
        let superblock = self.superblock;
        let mut checkpoints = Checkpoints::new(&superblock);
        let whole = Cell::new(true);
        let reads = runs(superblock.directory_at(complete.side, 0), superblock.directory_blocks());
        read_each(self.device, reads, |read, bytes| {
            self.blocks_read += read.blocks as u64;
            let Ok(bytes) = bytes else {
                whole.set(false);
                return Ok(None);
            };
            for (index, block) in (read.what..).zip(bytes.chunks_exact(BLOCK)) {
                let directory = Directory::decode(block, &superblock).ok();
                let right = |found: &Directory| (found.number, found.index) == (complete.number, index);
                let Some(directory) = directory.filter(right) else {
                    whole.set(false);
                    return Ok(None);
                };
                let first = index * DIRECTORY_ENTRIES;
                for map_block in first..superblock.map_blocks().min(first + DIRECTORY_ENTRIES) {
                    if let Some((slot, sum)) = directory.get((map_block - first) as usize) {
                        checkpoints.sums[map_block as usize] = sum;
                        checkpoints.slots.set(map_block, slot == 1);
                        checkpoints.present.set(map_block, true);
                    }
                }
            }
            Ok(None)
        })?;
        Ok(whole.get().then_some(checkpoints))
    }

    /// Loads the blocks of a list. Returns `None` if a newer checkpoint was complete.
    fn load_list(&mut self, side: u8, complete: Complete, which: Which) -> Result<Option<Vec<List>>> {
        let superblock = self.superblock;
        let mut lists: Vec<List> = Vec::new();
        let wanted = |list: &List, lists: &[List]| {
            let same = lists.first().is_none_or(|first| first.number == list.number);
            let number = match which {
                Which::Own => list.number == complete.number,
                Which::Begun => list.after == complete.number && list.number > complete.number,
            };
            same && number && list.index == lists.len() as u32
        };
        let mut from = 0;
        while lists.len() as u32 == from && from < superblock.list_blocks() {
            let blocks = RUN_BLOCKS.min(superblock.list_blocks() - from);
            let mut copies = [vec![], vec![]];
            let reads = (0..2u8).map(|copy| Read { at: superblock.list_at(side, copy, from), blocks, what: copy });
            read_each(self.device, reads, |read, bytes| {
                self.blocks_read += read.blocks as u64;
                // One copy may have what the other lacks.
                copies[read.what as usize] = bytes.unwrap_or_else(|_| vec![0; read.blocks as usize * BLOCK]);
                Ok(None)
            })?;
            for (a, b) in copies[0].chunks_exact(BLOCK).zip(copies[1].chunks_exact(BLOCK)) {
                let found: Vec<List> =
                    [a, b].iter().filter_map(|block| List::decode(block, &superblock).ok()).collect();
                let is_newer = |list: &List| {
                    list.number > complete.number && (which == Which::Own || list.after > complete.number)
                };
                if found.iter().any(is_newer) {
                    return Ok(None);
                }
                let Some(list) = found.into_iter().find(|list| wanted(list, &lists)) else { break };
                lists.push(list);
            }
            from += blocks;
        }
        Ok(Some(lists))
    }

    /// Loads the map blocks. Returns false if one does not match the directory.
    fn load_map(&mut self, checkpoints: &Checkpoints, complete: Complete) -> Result<bool> {
        let superblock = self.superblock;
        let blocks = superblock.map_blocks();
        let whole = Cell::new(true);
        let mut next = 0;
        let Checkpoints { sums, slots, present, .. } = checkpoints;
        let total = present.count() as u64;
        let reads = std::iter::from_fn(|| {
            let first = present.next(next).filter(|_| whole.get())?;
            let same = |&n: &u32| present.get(n) && slots.get(n) == slots.get(first);
            let run = (first..blocks.min(first + RUN_BLOCKS)).take_while(same).count() as u32;
            next = first + run;
            Some(Read { at: superblock.map_at(slots.get(first).into(), first), blocks: run, what: first })
        });
        let device = self.device;
        let mut done = 0;
        read_each(device, reads, |read, bytes| {
            self.blocks_read += read.blocks as u64;
            let Ok(bytes) = bytes else {
                whole.set(false);
                return Ok(None);
            };
            for (index, block) in (read.what..).zip(bytes.chunks_exact(BLOCK)) {
                done += 1;
                self.report(Progress { checkpoint: true, done, total });
                let stored = u32::from_le_bytes(block[..4].try_into().expect("four bytes"));
                let sum = if is_planted(Bug::AnyVersion) { stored } else { sums[index as usize] };
                if !self.take_map_block(&superblock, block, index, sum, complete) {
                    whole.set(false);
                    return Ok(None);
                }
            }
            Ok(None)
        })?;
        Ok(whole.get())
    }

    fn take_map_block(
        &mut self,
        superblock: &Superblock,
        block: &[u8],
        index: u32,
        sum: u32,
        complete: Complete,
    ) -> bool {
        let take = |piece: u32, found: MapPiece| {
            if found.record < LOG_AT {
                return;
            }
            self.take_piece(piece, complete.number, found.record, &found.entries);
        };
        decode_map(superblock, block, index, sum, take).is_ok()
    }
}
