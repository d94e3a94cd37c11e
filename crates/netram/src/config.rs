//! How a disk is laid over its donors: policy, redundancy, sizes.
//!
//! Owns: [`Policy`], [`Config`], their names on a command line, and which combinations make sense.
//! The policies are those of the paper. All run through one engine and differ only in the numbers
//! of [`Plan`].

use std::str::FromStr;

use shoal_format::Sums;

use crate::api::DiskError;
use crate::sealed::SealKey;

/// How blocks are spread and protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Each request goes to a donor at once. Nothing survives the loss of a donor.
    None,
    /// Blocks are collected and sent in batches. Nothing survives the loss of a donor.
    Cached,
    /// Each request goes to two donors (or more, with `parity` above 1) at once.
    Mirrored,
    /// Each request goes to a donor at once, and its changed parity to another donor at once.
    Basic,
    /// Each request goes to a donor at once. Parity follows when its group is full.
    Logging,
    /// Blocks are collected in one cache and sent with their parity when the cache is full.
    Caching,
    /// Like `Caching`, with one cache for each of several sequential streams, one for blocks that are
    /// soon overwritten, and one for the rest.
    Adaptive,
}

impl Policy {
    pub const ALL: [Policy; 7] = [
        Policy::None,
        Policy::Cached,
        Policy::Mirrored,
        Policy::Basic,
        Policy::Logging,
        Policy::Caching,
        Policy::Adaptive,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Cached => "cached",
            Policy::Mirrored => "mirrored",
            Policy::Basic => "basic",
            Policy::Logging => "logging",
            Policy::Caching => "caching",
            Policy::Adaptive => "adaptive",
        }
    }

    pub fn is_redundant(self) -> bool {
        !matches!(self, Policy::None | Policy::Cached)
    }
}

impl FromStr for Policy {
    type Err = DiskError;

    fn from_str(text: &str) -> Result<Policy, DiskError> {
        Policy::ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
            DiskError::Config(format!("policy {text:?}: choose one of {}", names.join(", ")))
        })
    }
}

/// What becomes of the cache of a stream that does not go on while other writes fill the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stalled {
    /// Other blocks finish its group.
    Finished,
    /// It is closed as it is, with parity for a short group: the paper's rule.
    Closed,
    /// It waits for its stream, however long.
    Left,
}

/// The settings of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub policy: Policy,
    /// Identifies the disk on its donors.
    pub uuid: [u8; 16],
    /// Logical block: unit of placement (bytes, a power of two from 512 to 65536).
    pub block_bytes: u32,
    /// Blocks collected for one donor before they are sent: 1 to 64.
    pub buffer_blocks: u16,
    /// Donors that may be lost at the same time.
    pub parity: u8,
    /// Stream caches of `Adaptive`, the victim's included: the paper's P. One is parity caching.
    pub streams: u8,
    pub stalled: Stalled,
    /// A block that is overwritten less than so many groups after it was written is hot. `Cached`,
    /// and `Adaptive` with more than one stream cache, keep hot blocks in a cache of their own,
    /// because they are likely to die soon. 0: there is no such cache.
    pub hot_groups: u32,
    /// Keeps parity on the last donors; otherwise parity rotates.
    pub dedicated_parity: bool,
    /// Donors a group spreads over, including parity; 0: all donors.
    pub width: u8,
    /// Room beyond data and parity that lets cleaning gain space (percent of the data).
    pub spare_percent: u32,
    /// Size of the disk (bytes); `None`: as much as the donors hold.
    pub bytes: Option<u64>,
    /// Clean in idle gaps, not only when space is short.
    pub idle_cleaning: bool,
    /// Maximum number of groups emptied at the same time when space is short.
    pub victims: u8,
    /// How long blocks may wait in a cache before they are sent (ms); 0: they wait for a full cache
    /// or a flush.
    pub timeout_ms: u32,
    /// A new disk reserves room for checkpoints of its map, and makes and uses them. Without
    /// checkpoints, opening looks at all units.
    pub checkpoints: bool,
    /// Units of each donor that a checkpoint leaves open ahead; 0: a number that fits the donor's
    /// size.
    pub window_units: u32,
    /// How long requests wait for donors that are away before they fail (ms).
    pub patience_ms: u32,
    /// Checksum of blocks. An existing disk keeps the one it was made with.
    pub sums: Sums,
    /// What units are encrypted with, on the donors. An existing disk is opened only with its key.
    pub key: Option<SealKey>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            policy: Policy::Adaptive,
            uuid: [0; 16],
            block_bytes: 4096,
            buffer_blocks: 8,
            parity: 1,
            streams: 2,
            stalled: Stalled::Finished,
            hot_groups: 8,
            dedicated_parity: false,
            width: 0,
            spare_percent: 20,
            bytes: None,
            idle_cleaning: true,
            victims: 16,
            timeout_ms: 1000,
            checkpoints: false,
            window_units: 0,
            patience_ms: 60_000,
            sums: Sums::Xxh3,
            key: None,
        }
    }
}

/// A policy in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Data units of a full group.
    pub data: usize,
    /// Parity units of a group.
    pub parity: usize,
    /// Stream caches, the victim's included. One is plain parity caching.
    pub streams: usize,
    /// There is a cache for hot blocks.
    pub has_hot: bool,
    /// Blocks of a buffer: 1 where nothing is collected.
    pub buffer: usize,
    /// A write is acknowledged when it is in the cache; otherwise when it has been sent.
    pub cached: bool,
    /// Data is sent with each request.
    pub data_at_once: bool,
    /// Parity is sent with each request.
    pub parity_at_once: bool,
}

impl Config {
    /// Returns the plan for this many donors, or why there is none.
    pub fn plan(&self, donors: usize) -> Result<Plan, DiskError> {
        let wrong = |text: String| Err(DiskError::Config(text));
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return wrong(format!("block={}: a power of two from 512 to 65536", self.block_bytes));
        }
        if !(1..=64).contains(&self.buffer_blocks) {
            return wrong(format!("buffer={}: 1 to 64 blocks", self.buffer_blocks));
        }
        if !(1..=8).contains(&self.streams) {
            return wrong(format!("streams={}: 1 to 8", self.streams));
        }
        let redundant = self.policy.is_redundant();
        if redundant && !(1..=4).contains(&self.parity) {
            return wrong(format!("parity={}: 1 to 4 donors may be lost", self.parity));
        }
        let parity = if redundant { self.parity as usize } else { 0 };
        let width = match (self.width as usize, self.policy) {
            (0, Policy::Mirrored) => 1 + parity,
            (0, _) => donors.min(16),
            (width, _) => width,
        };
        let need = if redundant { parity + 1 } else { 1 };
        let need = if self.width > 0 { need.max(width) } else { need };
        if donors < need {
            let policy = self.policy.name();
            return wrong(format!(
                "policy {policy} needs {need} donors at least, {donors} given; name more, or lower `parity`"
            ));
        }
        if width <= parity || width > 16 {
            return wrong(format!("width={width}: {} to 16 donors", parity + 1));
        }
        let streams = if self.policy == Policy::Adaptive { self.streams as usize } else { 1 };
        let cached = matches!(self.policy, Policy::Cached | Policy::Caching | Policy::Adaptive);
        Ok(Plan {
            data: if self.policy == Policy::Mirrored { 1 } else { width - parity },
            parity,
            streams,
            has_hot: self.hot_groups > 0 && (streams > 1 || self.policy == Policy::Cached),
            buffer: if cached { self.buffer_blocks as usize } else { 1 },
            cached,
            data_at_once: !cached,
            parity_at_once: matches!(self.policy, Policy::Mirrored | Policy::Basic),
        })
    }
}
