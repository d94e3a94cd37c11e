//! The virtual-log disk: a block device that writes every block to the cheapest place and can find
//! it again.
//!
//! A [`VirtualLog`] lies on top of another block device. No block has a fixed place. Each write
//! goes to the open segment (or, where the head position of a disk is known, to the nearest free
//! block), together with a record that holds the changed pieces of the map. Records link to older
//! ones, so the log is its own index. Random writes become sequential ones. The compactor gathers
//! the blocks that remain in use, in gaps between requests.
//!
//! | module | owns |
//! |---|---|
//! | `disk` | the device: requests, batches, flushes; `disk::lookup`: reading |
//! | `entries` | the map in memory |
//! | `state` | pieces, live records, and the effect of a record on them |
//! | `space` | which blocks are free, and when a block that was left becomes free again |
//! | `write` | turning a batch into records and data on the device |
//! | `compact`, `tracks` | reclaiming space, a block at a time: segments, tracks |
//! | `recover` | formatting, and opening from the tail record or a checkpoint, otherwise by a scan |
//! | `search` | building the map from records |
//! | `checkpoint`, `load` | writing and reading checkpoints of the map |
//! | `read` | keeping many reads in flight |
//! | `idle` | gaps between requests, and the thread that uses them |
//! | `planted` | bugs to plant in tests |
//!
//! Contract: a block of 4096 bytes is written as a whole or not at all, even if the device below
//! tears writes. A completed write is in memory. A flush, or a write with FUA, makes it durable.
//! After a crash, every block holds its last flushed contents, or something written to it later.
//! Invariants: (1) a block is reused only when a *durable* record says that its successor is
//! durable; (2) recovery believes a record that may not have been flushed only for entries whose
//! data has the right checksum; (3) writes that recovery found lost stay lost, from before the
//! first read; (4) no request depends on the compactor having run.

#![forbid(unsafe_code)]

mod checkpoint;
mod compact;
mod disk;
mod entries;
mod idle;
mod load;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod read;
mod recover;
mod search;
mod space;
mod state;
mod tracks;
mod write;

use std::sync::Arc;

use shoal_format::FormatError;
use shoal_format::vlog::BLOCK;
use shoal_media::{Head, MediaError};

pub use disk::{Status, VirtualLog};
pub use idle::VirtualLogDisk;
pub use recover::{Recovery, identify};
pub use search::Progress;

/// Bytes of a block.
pub const BLOCK_BYTES: u32 = BLOCK as u32;

/// A failure to make or open a disk.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VlogError {
    #[error("{0}")]
    Media(#[from] MediaError),
    #[error("{0}")]
    Format(#[from] FormatError),
    #[error("the device has {have} bytes, a virtual-log disk needs {need} at least")]
    TooSmall { have: u64, need: u64 },
    #[error("the device has {have} bytes, the disk on it was made for {need}; it was cut short")]
    CutShort { have: u64, need: u64 },
    #[error("{what}: {why}")]
    Option { what: &'static str, why: String },
    #[error("block {at} is used twice; the device has been changed by something else; restore it from a copy")]
    Twice { at: u32 },
    /// Pieces of the map are missing: the device lost or changed bytes.
    #[error("{lost} of {mapped} pieces of the map are damaged or missing; restore the device from a copy")]
    Damaged { lost: u32, mapped: u32 },
    /// The disk was closed, but the log does not lead to the record with which it was closed.
    #[error(
        "records before the one in block {at}, with which the disk was closed, are damaged or missing; restore the device from a copy"
    )]
    Cut { at: u32 },
}

/// How blocks are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One after the other, into segments of `blocks` blocks.
    Segments { blocks: u32 },
    /// Into any free block: for a device whose head position is known.
    Anywhere,
}

/// Properties of a new disk.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    pub uuid: [u8; 16],
    /// Random; see [`shoal_format::vlog::Superblock::salt`].
    pub salt: u64,
    pub placement: Placement,
    /// Part of the log that is never filled with data (percent). A larger part makes less work for
    /// the compactor.
    pub spare_percent: u8,
    /// Size of the disk. `None`: all that `spare_percent` leaves.
    pub bytes: Option<u64>,
    /// Pieces of a map block. 0: no checkpoints, as on disks made by earlier versions. Disks with
    /// [`Placement::Anywhere`] never have checkpoints.
    pub map_pieces: u32,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions {
            uuid: [0; 16],
            salt: 0,
            placement: Placement::Segments { blocks: 256 },
            spare_percent: SPARE_PERCENT,
            bytes: None,
            map_pieces: checkpoint::MAP_PIECES,
        }
    }
}

/// Default spare part of the log (percent).
pub const SPARE_PERCENT: u8 = 20;
/// Smallest spare part (percent). With less, emptying a segment gains so little space that a write
/// costs ten times its size or more.
pub const SPARE_PERCENT_MIN: u8 = 10;

/// Which segment or track is emptied next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The one with the fewest blocks in use.
    Greedy,
    /// The one whose free space, weighted by its age, is worth most: (1 - u) * age / (1 + u).
    #[default]
    CostBenefit,
}

/// Runtime options of a disk.
#[derive(Clone, Default)]
pub struct Options {
    /// The head of the device below, for a disk with [`Placement::Anywhere`].
    pub head: Option<Arc<dyn Head>>,
    pub choice: Choice,
    /// Progress callback, called now and then while the log is searched.
    pub watch: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}
