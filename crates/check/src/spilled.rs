//! Spilled objects: the ranges that heads name in the spill file, against its blocks.
//!
//! Rules: the spill file is a file of layout 0 or 3 with one link and no name; each range lies in blocks that are mapped and hold data, and
//! is named by one object. Blocks that no range lies in are no damage: a writer unmaps them. Left out: the bytes, which only a
//! reader of bulk storage has (`salvage`).

use shoal_format::extent::{EXTENT_NEW, EXTENT_UNWRITTEN, Extent};
use shoal_format::inode::{Ino, Inode, Layout};
use shoal_format::superblock::{FEATURE_SPILLED, ROOTS_AT, Roots, Superblock};

use crate::report::{FindingKind, Report};

/// What the walk over inodes finds.
#[derive(Default)]
pub(crate) struct Spilled {
    /// The spill file; zero: there is none.
    pub file: Ino,
    generation: u32,
    named: bool,
    /// Is that inode in use, and does it have an extent map?
    pub is_used: bool,
    pub is_large: bool,
    /// Bytes from and to, and the inode with the object.
    pub ranges: Vec<(u64, u64, Ino)>,
    /// Bytes of the spill file that are mapped and hold data.
    mapped: Vec<(u64, u64)>,
}

impl Spilled {
    pub fn read(roots: &Roots, superblock: &Superblock, report: &mut Report) -> Spilled {
        let file = Ino::new(roots.spill_file.get());
        if !file.is_none() && superblock.features & FEATURE_SPILLED == 0 {
            let sentence = "there is a spill file, but the store lacks the feature".to_string();
            report.error(FindingKind::SpillFile, Some(file), Some(ROOTS_AT.get()), sentence);
        }
        Spilled { file, generation: roots.spill_generation.get(), named: !file.is_none(), ..Spilled::default() }
    }

    /// An inode in use.
    pub fn inode(&mut self, ino: Ino, inode: &Inode, report: &mut Report) {
        if ino != self.file || ino.is_none() {
            return;
        }
        if inode.generation != self.generation {
            // The file was lost, and its number has another user.
            return self.file = Ino::ZERO;
        }
        (self.is_used, self.is_large) = (true, inode.layout == Layout::Extents);
        let may_be = inode.is_file() && matches!(inode.layout, Layout::Empty | Layout::Extents);
        if !may_be || inode.nlink != 1 {
            let sentence = format!("the spill file has layout {:?} and {} links", inode.layout, inode.nlink);
            report.error(FindingKind::SpillFile, Some(ino), None, sentence);
        }
    }

    /// An extent of the spill file. Data that may be lost is none.
    pub fn extent(&mut self, extent: &Extent, power_lost: bool) {
        let no_data = EXTENT_UNWRITTEN | if power_lost { EXTENT_NEW } else { 0 };
        if extent.flags & no_data == 0 {
            self.mapped.push((extent.file_block.byte(), extent.end().byte()));
        }
    }

    /// After the walk: compares ranges and blocks.
    pub fn verify(&mut self, report: &mut Report) {
        if self.named && !self.is_used {
            let sentence =
                "the spill file that the roots name is lost: small files that are in it are, too".to_string();
            report.error(FindingKind::SpillFile, None, Some(ROOTS_AT.get()), sentence);
        }
        self.mapped.sort_unstable();
        self.ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for &(from, to) in &self.mapped {
            match merged.last_mut() {
                Some((_, end)) if *end >= from => *end = to.max(*end),
                _ => merged.push((from, to)),
            }
        }
        let mut behind = 0;
        for &(from, to, ino) in &self.ranges {
            if from < behind {
                let sentence = format!("bytes {from}..{} of the spill file belong to two objects", behind.min(to));
                report.error(FindingKind::SpilledDoubleUse, Some(ino), Some(from), sentence);
            }
            behind = behind.max(to);
            let place = merged.partition_point(|&(start, _)| start <= from).checked_sub(1);
            if place.is_none_or(|place| merged[place].1 < to) {
                let sentence = format!("its bytes {from}..{to} of the spill file are not there");
                report.error(FindingKind::SpilledNowhere, Some(ino), Some(from), sentence);
            }
        }
    }
}
