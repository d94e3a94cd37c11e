//! Spilled objects: the ranges of the spill file that heads name, compared with its blocks, and the
//! payloads in them.
//!
//! Rules: the spill file is a file of layout 0 or 3 with one link and no name. Each range lies in
//! blocks that are mapped and hold data, and one object names it; its bytes match the object's sum.
//! Blocks outside all ranges are not damage: a writer unmaps them. Left out: the contents of
//! payloads (`objects`), since their sums cover them.

use shoal_format::extent::{EXTENT_NEW, EXTENT_UNWRITTEN, Extent};
use shoal_format::inode::{Ino, Inode, Layout};
use shoal_format::object::Object;
use shoal_format::superblock::{FEATURE_SPILLED, ROOTS_AT, Roots, Superblock};

use crate::report::{FindingKind, Report};
use crate::{BulkData, BulkOpener, Progress, Stage};

/// Bytes of the spill file that an object names.
pub(crate) struct SpilledRange {
    pub from: u64,
    pub to: u64,
    /// The inode that owns the object.
    pub ino: Ino,
    pub object: Object,
}

/// The spill file and its ranges, collected by the walk over inodes.
#[derive(Default)]
pub(crate) struct Spilled {
    /// The spill file; zero if there is none.
    pub file: Ino,
    generation: u32,
    named: bool,
    /// Whether that inode is in use and has an extent map.
    pub is_used: bool,
    pub is_large: bool,
    pub ranges: Vec<SpilledRange>,
    /// Bytes of the spill file that are mapped and hold data, and their beginning on the device.
    mapped: Vec<(u64, u64, u64)>,
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

    /// Takes an inode in use, in case it is the spill file.
    pub fn inode(&mut self, ino: Ino, inode: &Inode, report: &mut Report) {
        if ino != self.file || ino.is_none() {
            return;
        }
        if inode.generation != self.generation {
            // The file was lost, and its number has been reused.
            return self.file = Ino::ZERO;
        }
        (self.is_used, self.is_large) = (true, inode.layout == Layout::Extents);
        let may_be = inode.is_file() && matches!(inode.layout, Layout::Empty | Layout::Extents);
        if !may_be || inode.nlink != 1 {
            let sentence = format!("the spill file has layout {:?} and {} links", inode.layout, inode.nlink);
            report.error(FindingKind::SpillFile, Some(ino), None, sentence);
        }
    }

    /// Takes an extent of the spill file, unless its data may be lost.
    pub fn extent(&mut self, extent: &Extent, power_lost: bool) {
        let no_data = EXTENT_UNWRITTEN | if power_lost { EXTENT_NEW } else { 0 };
        if extent.flags & no_data == 0 {
            self.mapped.push((extent.file_block.byte(), extent.end().byte(), extent.bulk_block.byte()));
        }
    }

    /// Compares ranges and blocks after the walk.
    pub fn verify(&mut self, report: &mut Report) {
        if self.named && !self.is_used {
            let sentence =
                "the spill file that the roots name is lost: small files that are in it are, too".to_string();
            report.error(FindingKind::SpillFile, None, Some(ROOTS_AT.get()), sentence);
        }
        self.mapped.sort_unstable();
        self.ranges.sort_unstable_by_key(|range| (range.from, range.to, range.ino));
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for &(from, to, _) in &self.mapped {
            match merged.last_mut() {
                Some((_, end)) if *end >= from => *end = to.max(*end),
                _ => merged.push((from, to)),
            }
        }
        let mut behind = 0;
        self.ranges.retain(|&SpilledRange { from, to, ino, .. }| {
            if from < behind {
                let sentence = format!("bytes {from}..{} of the spill file belong to two objects", behind.min(to));
                report.error(FindingKind::SpilledDoubleUse, Some(ino), Some(from), sentence);
            }
            behind = behind.max(to);
            let place = merged.partition_point(|&(start, _)| start <= from).checked_sub(1);
            let is_there = place.is_some_and(|place| merged[place].1 >= to);
            if !is_there {
                let sentence = format!("its bytes {from}..{to} of the spill file are not there");
                report.error(FindingKind::SpilledNowhere, Some(ino), Some(from), sentence);
            }
            is_there
        });
    }

    /// Reads the payloads of all mapped ranges, in the order of the spill file, and compares their
    /// sums.
    pub fn verify_payloads(
        &self,
        open: Option<&BulkOpener<'_>>,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) {
        let Some(open) = open.filter(|_| !self.ranges.is_empty()) else { return };
        let bulk = match open() {
            Ok(bulk) => bulk,
            Err(why) => {
                let sentence = format!("the bytes of spilled files were not verified: {why}");
                return report.note(FindingKind::SpilledData, None, None, sentence);
            }
        };
        let total = self.ranges.iter().map(|range| range.to - range.from).sum();
        let mut done = 0;
        for range in &self.ranges {
            progress(Progress { stage: Stage::Spilled, done, total });
            done += range.to - range.from;
            let sentence = match self.payload(&*bulk, range) {
                Ok(payload) => {
                    let (sum, expected) = (range.object.sum_of(&payload), range.object.sum);
                    if sum == expected {
                        continue;
                    }
                    format!("the checksum of its spilled bytes is {sum:#x}, expected {expected:#x}")
                }
                Err(why) => format!("its spilled bytes cannot be read: {why}"),
            };
            let at = self.extent_of(range.from).map(|(start, _, device)| device + (range.from - start));
            report.error(FindingKind::SpilledData, Some(range.ino), at, sentence);
        }
    }

    /// Returns the extent that contains a byte of the spill file.
    fn extent_of(&self, at: u64) -> Option<(u64, u64, u64)> {
        let behind = self.mapped.partition_point(|&(start, ..)| start <= at);
        behind.checked_sub(1).map(|number| self.mapped[number]).filter(|&(_, end, _)| at < end)
    }

    /// Reads the payload in a mapped range.
    fn payload(&self, bulk: &dyn BulkData, range: &SpilledRange) -> Result<Vec<u8>, String> {
        let mut payload = vec![0; range.object.payload as usize];
        let mut done = 0;
        while done < payload.len() {
            let at = range.from + done as u64;
            let (start, end, device) = self.extent_of(at).ok_or("they are mapped in parts")?;
            let len = ((end - at) as usize).min(payload.len() - done);
            bulk.read(device + (at - start), &mut payload[done..done + len])?;
            done += len;
        }
        Ok(payload)
    }
}
