//! The placement of file blocks on the simulated disk.
//!
//! Owns: [`DiskModel`], the two disks of the report with their caches and files; [`Layout`], an
//! aged file system in the style of 4.2BSD. The report does not describe it. The partition is the
//! outer 55% of the disk; a cylinder group has 32 cylinders. A file takes an eighth of a group and
//! continues in another one, with groups evenly spread. Within a group its blocks lie anywhere.
//! Consecutive blocks of a file are therefore close together, but a write of the next block still
//! waits for the platter.
//!
//! The three figures (55%, 32 cylinders, an eighth) were fitted to two of the report: 52 requests a
//! second, and writes of 13.5 to 15 ms within a burst. So these two prove nothing about the model;
//! the distribution of reads, and all that other policies do, was not fitted.

use clap::ValueEnum;
use shoal_sim::Random;
use shoal_sim::mechanical::{Drive, Geometry};

/// The unit of caches, files and requests (bytes).
pub const BLOCK_BYTES: u64 = 8192;
const PARTITION_PERCENT: u64 = 55;
const GROUP_CYLINDERS: u64 = 32;

/// A disk of the report, with its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum DiskModel {
    Rz58,
    Rz57,
}

impl DiskModel {
    pub fn name(self) -> &'static str {
        match self {
            DiskModel::Rz58 => "RZ58",
            DiskModel::Rz57 => "RZ57",
        }
    }

    pub fn drive(self) -> Drive {
        match self {
            DiskModel::Rz58 => Drive::rz58(),
            DiskModel::Rz57 => Drive::rz57(),
        }
    }

    /// Returns the mean access of table 3 (ms).
    pub fn access_ms(self) -> f64 {
        match self {
            DiskModel::Rz58 => 18.0,
            DiskModel::Rz57 => 23.0,
        }
    }

    /// Returns the bandwidth of table 3, least and most (MB/s).
    pub fn bandwidth(self) -> (f64, f64) {
        match self {
            DiskModel::Rz58 => (3.8, 5.0),
            DiskModel::Rz57 => (2.2, 2.2),
        }
    }

    /// Returns the blocks of the machine's buffer cache.
    pub fn buffers(self) -> u64 {
        match self {
            DiskModel::Rz58 => 1228,
            DiskModel::Rz57 => 614,
        }
    }

    /// Returns the blocks of the file that is read.
    pub fn read_blocks(self) -> u64 {
        let mbyte = match self {
            DiskModel::Rz58 => 34,
            DiskModel::Rz57 => 32,
        };
        (mbyte << 20) / BLOCK_BYTES
    }
}

/// The file system on a disk.
pub struct Layout {
    /// Bytes of the partition, which begins at 0.
    partition: u64,
    group: u64,
    /// Blocks of a file that lie together.
    run: u64,
}

impl Layout {
    pub fn new(geometry: &Geometry) -> Layout {
        let partition = geometry.sectors() * 512 * PARTITION_PERCENT / 100;
        // Use the mean over the zones: groups only matter for distance.
        let group = geometry.sectors() * 512 * GROUP_CYLINDERS / u64::from(geometry.cylinders());
        Layout { partition, group, run: 1 }
    }

    /// Lets consecutive blocks of a file lie together in runs of this length.
    pub fn in_runs(self, run: u64) -> Layout {
        Layout { run: run.max(1), ..self }
    }

    /// Returns the addresses of a file's blocks, in their order.
    pub fn file(&self, blocks: u64, random: &mut Random) -> Vec<u64> {
        let per_group = self.group / BLOCK_BYTES;
        let piece = per_group / 8;
        let (pieces, groups) = (blocks.div_ceil(piece), self.partition / self.group);
        let mut places = vec![];
        // Take one group from each of `pieces` equal shares of the partition, in random order.
        for share in random.shuffled(0..pieces) {
            let (first, end) = (share * groups / pieces, (share + 1) * groups / pieces);
            let group = first + random.below((end - first).max(1));
            let runs = random.shuffled(0..per_group / self.run);
            let slots = runs.iter().flat_map(|first| (0..self.run).map(move |index| first * self.run + index));
            places.extend(slots.take(piece as usize).map(|slot| group * self.group + slot * BLOCK_BYTES));
        }
        places.truncate(blocks as usize);
        // Groups begin at a multiple of a sector, blocks at a multiple of the drive's unit of
        // placement.
        places.iter().map(|place| place / 2048 * 2048).collect()
    }

    /// Returns a random place on the partition.
    pub fn anywhere(&self, random: &mut Random) -> u64 {
        random.below(self.partition / BLOCK_BYTES) * BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use shoal_sim::{MechanicalDisk, SimClock};

    use super::*;

    #[test]
    fn a_files_blocks_lie_apart_in_few_groups() {
        for disk in [DiskModel::Rz58, DiskModel::Rz57] {
            let disk_of = MechanicalDisk::new(disk.drive(), Arc::new(SimClock::new(0)));
            let layout = Layout::new(disk_of.layout());
            let places = layout.file(disk.read_blocks(), &mut Random::new(1));
            assert_eq!(places.len() as u64, disk.read_blocks());
            let sorted: BTreeSet<u64> = places.iter().copied().collect();
            assert!(sorted.iter().zip(sorted.iter().skip(1)).all(|(a, b)| b - a >= BLOCK_BYTES), "blocks overlap");
            assert!(places.iter().all(|place| place + BLOCK_BYTES <= layout.partition + layout.group));
            let groups: BTreeSet<u64> = places.iter().map(|place| place / layout.group).collect();
            assert!((8..30).contains(&groups.len()), "{} groups", groups.len());
        }
    }
}
