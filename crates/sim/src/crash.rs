//! Crash points, and the media states that a crash may leave behind (testing.md, T2).
//!
//! A process crash keeps everything visible, and keeps it in flight. A power loss keeps the durable
//! contents. Of each unit in flight (line or sector) it keeps nothing, all, or something in
//! between:
//! - up to `subset_units` units: every subset, then `torn` samples that also tear units;
//! - more units: nothing, all, each medium alone and each missing, each unit alone and each missing
//!   (at most `each` of them, evenly spread), then `samples` samples in which every medium loses
//!   writes independently and units may be torn.
//!
//! A torn unit is one of these: an older version; for a line, a cut between two stores at a word of
//! 8 bytes, or any subset of its words; for a sector of the log, garbage in the bytes after the
//! synced end.
//! The states of a point are the same in every run. A seed, an event and a number name a state.

use std::sync::Arc;

use crate::Random;
use crate::log::{LogShape, SIM_SEGMENT_BYTES};
use crate::memory::SimMemoryKind;
use crate::pending::Unit;
use crate::world::{Medium, Shape, World};

const WORD_BYTES: usize = 8;

/// Limits on the power-loss states to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of units in flight for which all subsets are visited (at most 20).
    pub subset_units: usize,
    /// Torn states in addition to all subsets.
    pub torn: usize,
    /// Units to visit alone and missing when there are too many for all subsets.
    pub each: usize,
    /// Seeded samples when there are too many for all subsets.
    pub samples: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { subset_units: 10, torn: 16, each: 64, samples: 64 }
    }
}

impl Limits {
    /// Returns limits that allow a handful of states for each point, for long runs.
    pub fn few() -> Limits {
        Limits { subset_units: 3, torn: 2, each: 4, samples: 4 }
    }
}

/// A moment at which the machine may stop.
#[derive(Clone)]
pub struct CrashPoint {
    pub(crate) event: u64,
    pub(crate) mark: u64,
    pub(crate) medium: Arc<str>,
    pub(crate) what: &'static str,
    pub(crate) seed: u64,
    pub(crate) media: Vec<Medium>,
}

/// Selects the units in flight that survive in one state.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// The units whose bits are set in the mask.
    Subset(u64),
    Nothing,
    All,
    OnlyMedium(usize),
    WithoutMedium(usize),
    Only(usize),
    Without(usize),
    Torn,
    Sample,
}

impl CrashPoint {
    /// Returns the number of events before this point.
    pub fn event(&self) -> u64 {
        self.event
    }

    /// Returns the harness's mark at the time the point was taken.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Names the event that was about to happen, for messages.
    pub fn name(&self) -> String {
        format!("seed {} event {} before {} of {}", self.seed, self.event, self.what, self.medium)
    }

    /// Counts the units in flight over all media.
    pub fn in_flight(&self) -> usize {
        self.media.iter().map(|m| m.pending.units().len()).sum()
    }

    /// Returns the state after the program ends and the machine continues.
    pub fn process_crash(&self) -> WorldState {
        let mut media = self.media.clone();
        media.iter_mut().for_each(close);
        WorldState { media, seed: self.seed, name: format!("{}: process crash", self.name()) }
    }

    /// Returns every state that the limits allow after program and machine stop, in a fixed order.
    pub fn power_losses(&self, limits: &Limits) -> impl Iterator<Item = WorldState> + use<> {
        let point = self.clone();
        let choices = self.choices(limits);
        choices.into_iter().enumerate().map(move |(number, choice)| point.power_loss(number, choice))
    }

    /// Returns only the state with this number, to reproduce a failure.
    pub fn power_loss_number(&self, limits: &Limits, number: usize) -> Option<WorldState> {
        self.choices(limits).get(number).map(|&choice| self.power_loss(number, choice))
    }

    fn choices(&self, limits: &Limits) -> Vec<Choice> {
        let units = self.in_flight();
        if units <= limits.subset_units.min(20) {
            let torn = if units == 0 { 0 } else { limits.torn };
            return (0..1 << units).map(Choice::Subset).chain((0..torn).map(|_| Choice::Torn)).collect();
        }
        let mut choices = vec![Choice::Nothing, Choice::All];
        let busy: Vec<usize> = (0..self.media.len()).filter(|&m| !self.media[m].pending.units().is_empty()).collect();
        if busy.len() > 1 {
            choices.extend(busy.iter().flat_map(|&m| [Choice::OnlyMedium(m), Choice::WithoutMedium(m)]));
        }
        let each = units.min(limits.each);
        let spread = (0..each).map(|i| i * units / each);
        choices.extend(spread.flat_map(|unit| [Choice::Only(unit), Choice::Without(unit)]));
        choices.extend((0..limits.samples).map(|_| Choice::Sample));
        choices
    }

    fn power_loss(&self, number: usize, choice: Choice) -> WorldState {
        let mut random = Random::new(self.seed ^ self.event.rotate_left(32) ^ (number as u64).rotate_left(17));
        let mut piece = 0;
        let media = self.media.iter().enumerate().map(|(index, medium)| {
            let mood = random.below(4);
            let mut survivor = Survivor::new(medium);
            for (&unit_index, unit) in medium.pending.units() {
                let survives = match choice {
                    Choice::Subset(mask) => mask >> piece & 1 == 1,
                    Choice::Nothing => false,
                    Choice::All => true,
                    Choice::OnlyMedium(m) => m == index,
                    Choice::WithoutMedium(m) => m != index,
                    Choice::Only(p) => p == piece,
                    Choice::Without(p) => p != piece,
                    Choice::Sample if mood < 2 => mood == 1,
                    Choice::Sample | Choice::Torn => random.below(2) == 1,
                };
                let tearing = match choice {
                    Choice::Torn => random.below(2) == 1,
                    Choice::Sample => mood >= 2 && random.below(4) == 0,
                    _ => false,
                };
                if tearing {
                    survivor.tear(unit_index, unit, &mut random);
                } else if survives {
                    survivor.keep(unit_index, unit.versions.last().expect("a unit in flight has a version"));
                }
                piece += 1;
            }
            survivor.finish()
        });
        let media = media.collect();
        WorldState { media, seed: self.seed, name: format!("{}: power loss {number} ({choice:?})", self.name()) }
    }
}

/// Drops the state that lived in the process.
fn close(medium: &mut Medium) {
    medium.poisoned = None;
    if let Shape::Log(log) = &mut medium.shape {
        log.end = None;
    }
}

/// A medium during a power loss.
struct Survivor {
    medium: Medium,
    unit_bytes: usize,
    /// End of the last unit that survived.
    survived_end: u64,
}

impl Survivor {
    fn new(medium: &Medium) -> Survivor {
        let mut medium = medium.clone();
        close(&mut medium);
        if !matches!(medium.shape, Shape::Memory { kind: SimMemoryKind::Battery, .. }) {
            medium.current = medium.durable.clone();
        }
        Survivor { unit_bytes: medium.pending.unit_bytes, medium, survived_end: 0 }
    }

    fn keep(&mut self, index: u64, contents: &[u8]) {
        let at = index * self.unit_bytes as u64;
        self.medium.current.write(at, contents);
        self.survived_end = self.survived_end.max(at + self.unit_bytes as u64);
    }

    fn tear(&mut self, index: u64, unit: &Unit, random: &mut Random) {
        let at = index * self.unit_bytes as u64;
        let durable = self.medium.durable.bytes(at, self.unit_bytes);
        let version = random.below(unit.versions.len() as u64) as usize;
        let before = if version == 0 { &durable[..] } else { &unit.versions[version - 1] };
        let after = &unit.versions[version];
        match &self.medium.shape {
            Shape::Memory { .. } => {
                let words = self.unit_bytes / WORD_BYTES;
                let mut torn = before.to_vec();
                // Only words that changed count, so that the cut falls within the store.
                let word = |i: usize| i * WORD_BYTES..(i + 1) * WORD_BYTES;
                let mut changed: Vec<usize> = (0..words).filter(|&i| before[word(i)] != after[word(i)]).collect();
                if random.below(2) == 0 {
                    changed.truncate(random.below(changed.len() as u64 + 1) as usize);
                } else {
                    changed.retain(|_| random.below(2) == 0);
                }
                for i in changed {
                    torn[word(i)].copy_from_slice(&after[word(i)]);
                }
                self.keep(index, &torn);
            }
            Shape::Log(log) if random.below(2) == 0 => {
                let synced = (log.synced_end.saturating_sub(at) as usize).min(self.unit_bytes);
                let mut torn = durable;
                random.fill(&mut torn[synced..]);
                self.keep(index, &torn);
            }
            _ => {
                let after = after.clone();
                self.keep(index, &after);
            }
        }
    }

    fn finish(mut self) -> Medium {
        self.medium.durable = self.medium.current.clone();
        self.medium.pending.clear();
        if let Shape::Log(LogShape { segments, durable_extent, synced_end, high, .. }) = &mut self.medium.shape {
            // An unsynced segment exists only if something in it survived.
            *durable_extent = self.survived_end.next_multiple_of(SIM_SEGMENT_BYTES).max(*durable_extent);
            *segments = segments.and_then(|(first, extent)| {
                let extent = extent.min(*durable_extent);
                (first < extent).then_some((first, extent))
            });
            // All bytes now on the disk are durable.
            *synced_end = *high;
        }
        self.medium
    }
}

/// The media as a crash left them. They can be opened any number of times.
#[derive(Clone)]
pub struct WorldState {
    media: Vec<Medium>,
    seed: u64,
    name: String,
}

impl WorldState {
    /// Opens a new world over these contents, without faults or recording, with events from 0. Its
    /// media are found by number (`World::log(0)`). Volatile memory is gone.
    pub fn open(&self) -> World {
        World::over(self.seed, self.media.clone())
    }

    /// Returns seed, event and choice, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use shoal_media::{BlockDevice, ImageFile, LogDevice, PersistentMemory};

    use super::*;

    fn plain(subset_units: usize) -> Limits {
        Limits { subset_units, torn: 0, each: 64, samples: 64 }
    }

    #[test]
    fn k_units_in_flight_have_two_to_the_k_states() {
        for k in 0..=10u64 {
            let world = World::new(1);
            let image = world.add_image();
            for i in 0..k {
                image.write(i * 512, &[1; 512]).unwrap();
            }
            let point = world.snapshot();
            assert_eq!(point.in_flight() as u64, k);
            assert_eq!(point.power_losses(&plain(10)).count(), 1 << k);
        }
    }

    #[test]
    fn many_units_are_visited_alone_missing_and_by_samples() {
        let world = World::new(1);
        let memory = world.add_memory(1 << 16, SimMemoryKind::Dax);
        for i in 0..30u64 {
            memory.write_u64(i * 64, 1);
        }
        let point = world.snapshot();
        let mut counts = Vec::new();
        for state in point.power_losses(&Limits::default()) {
            let memory = state.open().memory(0);
            counts.push((0..30).filter(|&i| memory.read_u64(i * 64) == 1).count());
        }
        assert_eq!(counts.len(), 2 + 60 + 64);
        assert_eq!(counts[..2], [0, 30]);
        assert_eq!(counts[2..62].iter().filter(|&&c| c == 1).count(), 30);
        assert_eq!(counts[2..62].iter().filter(|&&c| c == 29).count(), 30);
        assert!(counts[62..].iter().any(|&c| c > 5 && c < 25));
    }

    #[test]
    fn media_lose_their_writes_independently() {
        let world = World::new(1);
        let (log, disk) = (world.add_log(), world.add_disk(1 << 16));
        log.append(0, &[1; 8 * 512]).unwrap();
        disk.write_from(0, &[1; 8 * 512]).unwrap();
        let mut seen = [[false; 2]; 2];
        let limits = Limits { each: 0, samples: 0, ..Limits::default() };
        for state in world.snapshot().power_losses(&limits) {
            let world = state.open();
            let (mut a, mut b) = ([0; 8 * 512], [0; 8 * 512]);
            world.log(0).read(0, &mut a).unwrap();
            world.disk(0).read_into(0, &mut b).unwrap();
            if let (Some(a), Some(b)) = (uniform(&a), uniform(&b)) {
                seen[a][b] = true;
            }
        }
        assert_eq!(seen, [[true; 2]; 2]);
    }

    /// Returns the value of all bytes if they are all 0 or all 1.
    fn uniform(bytes: &[u8]) -> Option<usize> {
        bytes.iter().all(|&b| b == bytes[0] && b < 2).then_some(bytes[0] as usize)
    }

    #[test]
    fn states_are_the_same_in_every_run_and_found_again_by_number() {
        let run = || {
            let world = World::new(7);
            let log = world.add_log();
            log.append(0, &[1; 9000]).unwrap();
            world.snapshot()
        };
        let contents = |state: &WorldState| {
            let mut out = vec![0; 9000];
            state.open().log(0).read(0, &mut out).unwrap();
            (state.name().to_owned(), out)
        };
        let limits = Limits::default();
        let first: Vec<_> = run().power_losses(&limits).map(|s| contents(&s)).collect();
        let second: Vec<_> = run().power_losses(&limits).map(|s| contents(&s)).collect();
        assert!(first == second);
        let again = run().power_loss_number(&limits, 50).unwrap();
        assert!(contents(&again) == first[50]);
        assert!(run().power_loss_number(&limits, first.len()).is_none());
    }

    #[test]
    fn points_are_taken_before_each_boundary_and_carry_the_mark() {
        let world = World::new(1);
        let (log, memory) = (world.add_log(), world.add_memory(4096, SimMemoryKind::Dax));
        world.record(true);
        log.append(0, b"a").unwrap();
        world.set_mark(1);
        log.sync().unwrap();
        log.sync().unwrap();
        memory.write_u64(0, 1);
        memory.fence();
        memory.fence();
        world.set_mark(2);
        log.append(1, b"b").unwrap();
        let points = world.points();
        let what: Vec<_> = points.iter().map(|p| (p.what, p.mark, p.in_flight())).collect();
        // A call with no change since the last point takes no point, unless the mark moved.
        assert_eq!(what, [("append", 0, 0), ("sync", 1, 1), ("sync", 1, 0), ("fence", 1, 1), ("append", 2, 1)]);
        assert!(points[1].name().contains("before sync of log 0"));
        assert!(world.points().is_empty());
        world.record_stores(true);
        memory.write_u64(0, 2);
        memory.write_u64(8, 3);
        assert_eq!(world.points().len(), 2);
    }

    #[test]
    fn a_crash_during_recovery_is_a_crash_of_the_opened_world() {
        let world = World::new(1);
        let image = world.add_image();
        image.write(0, &[1; 512]).unwrap();
        image.sync().unwrap();
        let recovered = world.snapshot().process_crash().open();
        recovered.record(true);
        recovered.image(0).write(512, &[2; 512]).unwrap();
        recovered.image(0).sync().unwrap();
        let points = recovered.points();
        assert_eq!(points.len(), 2);
        assert_eq!(points[1].power_losses(&plain(10)).count(), 2);
        let mut out = [0; 1024];
        image.read(0, &mut out).unwrap();
        assert_eq!(out[512], 0, "the first world is not touched");
    }

    #[test]
    fn thousands_of_snapshots_of_a_large_world_are_affordable() {
        let world = World::new(1);
        let memory = world.add_memory(64 << 20, SimMemoryKind::Dax);
        let log = world.add_log();
        memory.write(0, &vec![1; 64 << 20]);
        memory.write_back(0, 64 << 20);
        memory.fence();
        world.record(true);
        let start = std::time::Instant::now();
        for i in 0..5000u64 {
            memory.write_through(i * 4096, &i.to_le_bytes());
            log.append(i * 100, &[1; 100]).unwrap();
            memory.fence();
            log.sync().unwrap();
        }
        let points = world.points();
        assert!(points.len() >= 10_000);
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
        assert_eq!(points[2].process_crash().open().memory(0).read_u64(5 * 4096), u64::MAX / 255);
    }
}
