//! The disks to run, the size of their donors, and running them side by side.
//!
//! Owns: [`Variant`], a policy with its stream caches and rules; [`Room`], the capacity of the donors;
//! one run ([`measure`]), and all of them ([`measure_all`]). Rules: extra space is the storage
//! donors' space beyond the disk, in percent of the disk, without headers and parity. The disk is
//! filled before the figures begin, unless an option says otherwise.

use shoal_format::ram::{HEADER_SLOTS, SUPERBLOCK_BYTES, UnitHeader};
use shoal_netram::{Config, Policy, Purpose, Stalled};

use super::model::{Cost, Model, ModelError, Pace};
use crate::network::Network;
use crate::parallel;
use crate::trace::Request;

/// A policy that the paper compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub policy: Policy,
    /// Stream caches, the victim's included: the paper's P.
    pub streams: u8,
    pub rules: Rules,
}

/// Which rules place blocks in caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// The paper's: a stalled stream's cache is closed short, and hot blocks have no cache.
    Paper,
    /// The paper's without closing caches.
    Left,
    /// Other blocks finish the group of a stalled stream.
    Finished,
    /// The rules of every disk in use: other blocks finish the group, and hot blocks have a cache.
    Shoal,
}

impl Variant {
    pub const NONE: Variant = Variant::plain(Policy::None);
    pub const CACHED: Variant = Variant::plain(Policy::Cached);
    pub const CACHED_HOT: Variant = Variant { rules: Rules::Shoal, ..Variant::CACHED };
    pub const MIRRORED: Variant = Variant::plain(Policy::Mirrored);
    pub const CACHING: Variant = Variant::plain(Policy::Caching);

    const fn plain(policy: Policy) -> Variant {
        Variant { policy, streams: 1, rules: Rules::Paper }
    }

    pub const fn adaptive(streams: u8, rules: Rules) -> Variant {
        Variant { policy: Policy::Adaptive, streams, rules }
    }

    pub fn name(&self) -> String {
        match self.policy {
            Policy::None => "none".into(),
            Policy::Cached if self.rules == Rules::Shoal => "none, cached, hot apart".into(),
            Policy::Cached => "none, cached".into(),
            Policy::Mirrored => "mirroring".into(),
            Policy::Caching => "parity caching".into(),
            Policy::Adaptive => {
                let rules = match self.rules {
                    Rules::Paper => "",
                    Rules::Left => ", never closed",
                    Rules::Finished => ", finished",
                    Rules::Shoal => ", Shoal's",
                };
                format!("adaptive, P={}{rules}", self.streams)
            }
            other => other.name().into(),
        }
    }

    /// Returns whether the cost does not depend on the room, because blocks have fixed places or no
    /// other place at all.
    pub fn needs_no_room(&self) -> bool {
        matches!(self.policy, Policy::None | Policy::Cached | Policy::Mirrored)
    }
}

/// The capacity of the donors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Extra space beyond the disk (percent of it).
    Extra(u32),
    /// So much space that no cleaning is needed.
    Plenty,
}

/// Parameters shared by all runs.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    pub requests: &'a [Request],
    pub blocks: u64,
    pub block_bytes: u32,
    pub buffer_blocks: u16,
    /// Storage donors, without the donor for parity.
    pub donors: usize,
    pub network: Network,
    pub pace: Pace,
    /// The engine's own time-out of caches; 0 for none.
    pub timeout_ms: u32,
    pub fill: bool,
}

/// Size of the donors under `Plenty`, as a multiple of the disk.
const PLENTY: u64 = 4;
/// Additional units of each donor, for data being written.
const SLACK_UNITS: u64 = 64;

impl Setup<'_> {
    /// Returns the engine's configuration and the capacity of each donor (bytes).
    pub fn disk(&self, variant: Variant, room: Room) -> Result<(Config, Vec<u64>), ModelError> {
        let is_striped = matches!(variant.policy, Policy::Caching | Policy::Adaptive);
        let config = Config {
            policy: variant.policy,
            uuid: *b"shoal lab netram",
            block_bytes: self.block_bytes,
            buffer_blocks: self.buffer_blocks,
            parity: 1,
            streams: variant.streams,
            stalled: match variant.rules {
                Rules::Paper => Stalled::Closed,
                Rules::Left => Stalled::Left,
                Rules::Finished | Rules::Shoal => Stalled::Finished,
            },
            hot_groups: if variant.rules == Rules::Shoal { Config::default().hot_groups } else { 0 },
            dedicated_parity: is_striped,
            // Without parity and cache nothing ties blocks on several donors together. `Cached`
            // collects as many blocks as the parity caches do, so that all save the same number of
            // overwritten blocks.
            width: if variant.policy == Policy::None { 1 } else { 0 },
            spare_percent: 0,
            bytes: Some(self.blocks * u64::from(self.block_bytes)),
            idle_cleaning: false,
            // Victims are cleaned one after the other, as in the paper.
            victims: 1,
            timeout_ms: self.timeout_ms,
            patience_ms: Config::default().patience_ms,
            sums: Config::default().sums,
            key: None,
            // The paper has no checkpoints, which would add traffic.
            checkpoints: false,
            window_units: 0,
        };
        let donors = self.donors + usize::from(is_striped);
        let plan = config.plan(donors).map_err(ModelError::Refused)?;
        let unit_bytes = HEADER_SLOTS as u64 * UnitHeader::bytes(plan.data, plan.buffer) as u64
            + plan.buffer as u64 * u64::from(self.block_bytes);
        let data_blocks = match room {
            Room::Extra(percent) => self.blocks * (100 + u64::from(percent)) / 100,
            Room::Plenty => self.blocks * PLENTY,
        };
        let copies = if variant.policy == Policy::Mirrored { 2 } else { 1 };
        let mut units = (copies * data_blocks).div_ceil(self.donors as u64 * plan.buffer as u64);
        if room == Room::Plenty {
            units += SLACK_UNITS;
        }
        Ok((config, vec![SUPERBLOCK_BYTES as u64 + units * unit_bytes; donors]))
    }
}

/// Figures of one run, from after the initial fill up to and including a final flush.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub variant: Variant,
    pub room: Room,
    /// Simulated: all transfers, for any purpose.
    pub execution_s: f64,
    /// Simulated: transfers caused by cleaning.
    pub cleaning_s: f64,
    pub reading_s: f64,
    /// Simulated: reading the headers of groups to clean, and erasing some.
    pub upkeep_s: f64,
    pub messages: u64,
    pub sent_data: u64,
    pub sent_parity: u64,
    pub cleaned_read: u64,
    pub cleaned_data: u64,
    pub cleaned_parity: u64,
    pub groups_cleaned: u64,
    pub absorbed: u64,
}

impl Figures {
    fn between(variant: Variant, room: Room, before: &Cost, after: &Cost) -> Figures {
        let seconds = |ns: &dyn Fn(&Cost) -> u64| (ns(after) - ns(before)) as f64 / 1e9;
        let (old, new) = (&before.counts, &after.counts);
        Figures {
            variant,
            room,
            execution_s: seconds(&Cost::total_ns),
            cleaning_s: seconds(&|cost| cost.of(Purpose::Clean)),
            reading_s: seconds(&|cost| cost.of(Purpose::Read)),
            upkeep_s: seconds(&|cost| cost.of(Purpose::Upkeep)),
            messages: after.messages - before.messages,
            sent_data: new.sent_data - old.sent_data,
            sent_parity: new.sent_parity - old.sent_parity,
            cleaned_read: new.cleaned_read - old.cleaned_read,
            cleaned_data: new.cleaned_data - old.cleaned_data,
            cleaned_parity: new.cleaned_parity - old.cleaned_parity,
            groups_cleaned: new.groups_cleaned - old.groups_cleaned,
            absorbed: new.absorbed - old.absorbed,
        }
    }
}

/// Runs the requests on one disk.
pub fn measure(setup: &Setup, variant: Variant, room: Room) -> Result<Figures, ModelError> {
    let (config, donors) = setup.disk(variant, room)?;
    let mut model = Model::new(&config, &donors, setup.network)?;
    if setup.fill {
        model.fill()?;
    }
    let before = model.cost();
    model.run(setup.requests, setup.pace)?;
    model.flush()?;
    Ok(Figures::between(variant, room, &before, &model.cost()))
}

/// One run and its outcome.
pub type Outcome = (Variant, Room, Result<Figures, ModelError>);

/// Runs all points on `threads` threads. Results are in the order of the points.
pub fn measure_all(setup: &Setup, points: &[(Variant, Room)], threads: usize) -> Vec<Outcome> {
    parallel::map(points, threads, |&(variant, room)| (variant, room, measure(setup, variant, room)))
}
