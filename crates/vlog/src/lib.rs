//! The virtual-log disk: a block device that writes every block where it is cheapest, and finds it again.
//!
//! A [`VirtualLog`] lies over another block device. No block has a place of its own: each write goes to the open
//! segment (or, where the head of a disk is known, to the nearest free block), and with it a record that holds the
//! changed pieces of the map. Records link to older ones, so that the log is its own index. Random writes become
//! sequential ones. The compactor gathers the blocks they leave behind, in gaps between requests.
//!
//! | module | owns |
//! |---|---|
//! | `disk` | the device: requests, batches, flushes; `disk::lookup`: reading |
//! | `entries` | the map in memory |
//! | `state` | pieces, live records, and what a record changes in them |
//! | `space` | which blocks are free, and when a block that was left is free again |
//! | `write` | from a batch to records and data on the device |
//! | `compact`, `tracks` | gaining room, a block at a time: segments, tracks |
//! | `recover` | formatting, opening: from the tail record or a checkpoint, otherwise by a scan |
//! | `search` | the map as it comes together from records |
//! | `checkpoint`, `load` | checkpoints of the map: writing them, reading them |
//! | `read` | many reads in flight |
//! | `idle` | gaps between requests, and the thread that uses them |
//! | `planted` | bugs to plant in tests |
//!
//! Contract: a block of 4096 bytes is written as a whole or not at all, whatever the device below tears. A write that
//! completed is in memory; a flush, or a write with FUA, makes it durable. After a crash every block holds its last
//! flushed contents, or something written to it later.
//! Invariants: (1) a block is used again only when a *durable* record says that its successor is durable; (2) recovery
//! believes a record that may not have been flushed only for entries whose data has the right checksum; (3) writes that
//! recovery found lost are lost for good before the first read; (4) no request needs the compactor to have run.

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

/// Failure to make or open a disk.
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
    /// Pieces of the map are not where they must be: the device lost or changed bytes.
    #[error("{lost} of {mapped} pieces of the map are damaged or missing; restore the device from a copy")]
    Damaged { lost: u32, mapped: u32 },
    /// The disk was closed, and the log does not lead to the record that it was closed with.
    #[error(
        "records before the one in block {at}, with which the disk was closed, are damaged or missing; restore the device from a copy"
    )]
    Cut { at: u32 },
}

/// How blocks are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One behind the other, into segments of `blocks` blocks.
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
    /// Part of the log that is never filled with data (percent); the more, the less the compactor has to do.
    pub spare_percent: u8,
    /// Size of the disk; all that `spare_percent` leaves if not given.
    pub bytes: Option<u64>,
    /// Pieces of a map block; 0: no checkpoints, as earlier versions made disks. With [`Placement::Anywhere`] there are none anyway.
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

/// The usual part of the log without data (percent).
pub const SPARE_PERCENT: u8 = 20;
/// Smallest such part (percent): with less, emptying a segment gains so little room that a write costs ten times its
/// size and more.
pub const SPARE_PERCENT_MIN: u8 = 10;

/// Which segment or track is emptied next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The one with the fewest blocks in use.
    Greedy,
    /// The one whose room is worth most for its age: (1 - u) * age / (1 + u).
    #[default]
    CostBenefit,
}

/// How a disk is run.
#[derive(Clone, Default)]
pub struct Options {
    /// The head of the device below, for a disk with [`Placement::Anywhere`].
    pub head: Option<Arc<dyn Head>>,
    pub choice: Choice,
    /// Called now and then while the log is looked through.
    pub watch: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}
