//! The log: segments that are added, recycled with their stale bytes, and removed.
//!
//! Any subset of the sectors of unsynced appends survives a power loss. A sector with synced bytes
//! keeps them; the bytes after the synced end may be anything. A segment added since the last sync
//! may be missing. A new segment reuses the bytes of a released one if there is one, so that
//! recovery meets stale records. Released segments are gone in every crash state, because an engine
//! must not read before its release position anyway.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::current;

use shoal_media::{LogDevice, MediaError, Result};

use crate::fault::{Call, Fault};
use crate::turn::{announce, is_watched};
use crate::world::{Inner, Medium, Shape, Shared};

/// Bytes of a segment of the simulated log.
pub const SIM_SEGMENT_BYTES: u64 = 64 << 10;
/// Maximum number of released segments kept for reuse.
const SPARES_MAX: usize = 4;

#[derive(Clone, Default)]
pub(crate) struct LogShape {
    /// First and last + 1 byte of the existing segments; none before the first append.
    pub segments: Option<(u64, u64)>,
    /// End of the segments and end of the appended bytes at the last sync.
    pub durable_extent: u64,
    pub synced_end: u64,
    /// Highest byte ever appended, plus one.
    pub high: u64,
    /// Position of the next append; unknown until the first one after opening.
    pub end: Option<u64>,
    spares: VecDeque<Arc<[u8]>>,
    /// Segments the host has room for. The last one is held back for urgent appends.
    pub segments_max: Option<u64>,
}

impl LogShape {
    /// Counts the existing segments.
    pub fn count(&self) -> u64 {
        self.segments.map_or(0, |(first, extent)| (extent - first) / SIM_SEGMENT_BYTES)
    }

    /// Counts the segments once every byte before `end` has one.
    fn count_at(&self, position: u64, end: u64) -> u64 {
        let (first, extent) = self.segments.unwrap_or((position - position % SIM_SEGMENT_BYTES, 0));
        (extent.max(end.next_multiple_of(SIM_SEGMENT_BYTES)) - first) / SIM_SEGMENT_BYTES
    }
}

impl LogShape {
    /// Returns the end of the segments and the end of the appended bytes.
    fn reach(&self) -> (u64, u64) {
        // The end is unknown between opening and the first append, but everything present is
        // durable.
        (self.segments.map_or(0, |(_, extent)| extent), self.end.unwrap_or(self.high))
    }
}

pub struct SimLog {
    shared: Shared,
    index: usize,
}

impl SimLog {
    pub(crate) fn new(shared: Shared, index: usize) -> SimLog {
        SimLog { shared, index }
    }
}

fn shape(medium: &mut Medium) -> &mut LogShape {
    match &mut medium.shape {
        Shape::Log(shape) => shape,
        _ => unreachable!("a log handle points to a log"),
    }
}

/// Adds the segments up to `end`.
fn extend(medium: &mut Medium, position: u64, end: u64) {
    let (first, mut extent) = shape(medium).segments.unwrap_or_else(|| {
        let first = position - position % SIM_SEGMENT_BYTES;
        (first, first)
    });
    while extent < end {
        // The initial bytes of a segment are durable before the segment gets its name.
        let at = extent;
        match shape(medium).spares.pop_front() {
            Some(stale) => {
                medium.durable.write(at, &stale);
                medium.current.write(at, &stale);
            }
            None => {
                medium.durable.zero(at, SIM_SEGMENT_BYTES);
                medium.current.zero(at, SIM_SEGMENT_BYTES);
            }
        }
        medium.pending.forget(at, SIM_SEGMENT_BYTES);
        extent += SIM_SEGMENT_BYTES;
    }
    shape(medium).segments = Some((first, extent));
}

impl SimLog {
    fn fail_append(
        &self,
        inner: &mut Inner,
        position: u64,
        bytes: &[u8],
        error: MediaError,
        fault: Fault,
    ) -> MediaError {
        if fault == Fault::Io {
            let medium = &mut inner.media[self.index];
            medium.poisoned = Some(error.to_string().into());
            // The disk fails halfway through the append.
            let half = &bytes[..bytes.len() / 2];
            extend(medium, position, position + half.len() as u64);
            medium.write(position, half);
            let shape = shape(medium);
            shape.high = shape.high.max(position + half.len() as u64);
        }
        error
    }
}

impl SimLog {
    fn append_with(&self, position: u64, bytes: &[u8], urgent: bool) -> Result<()> {
        announce("append");
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        if let Some(end) = shape(&mut inner.media[self.index]).end {
            assert_eq!(position, end, "an append must begin where the last one ended");
        }
        inner.boundary(self.index, "append", !bytes.is_empty());
        let lie = match inner.fault(Call::LogAppend, self.index) {
            Ok(lie) => lie,
            Err((error, fault)) => return Err(self.fail_append(inner, position, bytes, error, fault)),
        };
        let medium = &mut inner.media[self.index];
        let end = position + bytes.len() as u64;
        let log = shape(medium);
        let count = log.count_at(position, end);
        if log.segments_max.is_some_and(|max| count > log.count() && count > max - u64::from(!urgent)) {
            return Err(MediaError::NoSpace { what: medium.name.to_string() });
        }
        if !lie {
            extend(medium, position, end);
            medium.write(position, bytes);
        }
        let shape = shape(medium);
        shape.end = Some(end);
        shape.high = shape.high.max(end);
        Ok(())
    }
}

impl LogDevice for SimLog {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.append_with(position, bytes, false)
    }

    fn append_urgent(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.append_with(position, bytes, true)
    }

    fn gains_by_release(&self, position: u64) -> bool {
        let inner = &mut *self.shared.lock();
        let log = shape(&mut inner.media[self.index]);
        log.segments.is_some_and(|(first, extent)| first + SIM_SEGMENT_BYTES <= position.min(extent))
    }

    fn is_short(&self) -> bool {
        let inner = &mut *self.shared.lock();
        let log = shape(&mut inner.media[self.index]);
        log.segments_max.is_some_and(|max| log.count() >= max)
    }

    fn sync(&self) -> Result<()> {
        announce("sync");
        // Other threads may append before the sync ends.
        let covered = is_watched().then(|| {
            let medium = &mut self.shared.lock().media[self.index];
            let (units, reach) = (medium.begin_flush(current().id()), shape(medium).reach());
            (units, reach)
        });
        if covered.is_some() {
            announce("sync ends");
        }
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        let medium = &mut inner.media[self.index];
        let extent = shape(medium).segments.map_or(0, |(_, extent)| extent);
        let changes = !medium.pending.units().is_empty() || extent != shape(medium).durable_extent;
        inner.boundary(self.index, "sync", changes);
        match inner.fault(Call::LogSync, self.index) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err((error, _)) => {
                inner.media[self.index].poisoned = Some(error.to_string().into());
                return Err(error);
            }
        }
        let medium = &mut inner.media[self.index];
        let (extent, end) = match covered {
            Some((units, reach)) => {
                medium.end_flush(current().id(), &units);
                reach
            }
            None => {
                medium.make_all_durable();
                shape(medium).reach()
            }
        };
        let shape = shape(medium);
        shape.durable_extent = extent;
        shape.synced_end = end;
        Ok(())
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        let inner = &mut *self.shared.lock();
        inner.fault(Call::LogRead, self.index).map_err(|(error, _)| error)?;
        let medium = &mut inner.media[self.index];
        let Some((first, extent)) = shape(medium).segments else { return Ok(0) };
        if position < first || position >= extent {
            return Ok(0);
        }
        let len = out.len().min((extent - position) as usize);
        medium.current.read(position, &mut out[..len]);
        Ok(len)
    }

    fn release(&self, position: u64) -> Result<()> {
        announce("release");
        let inner = &mut *self.shared.lock();
        let medium = &mut inner.media[self.index];
        let Some((mut first, extent)) = shape(medium).segments else { return Ok(()) };
        let changes = first + SIM_SEGMENT_BYTES <= position.min(extent);
        inner.boundary(self.index, "release", changes);
        if inner.fault(Call::LogRelease, self.index).map_err(|(error, _)| error)? {
            return Ok(());
        }
        let medium = &mut inner.media[self.index];
        while first + SIM_SEGMENT_BYTES <= position.min(extent) {
            let stale = medium.current.bytes(first, SIM_SEGMENT_BYTES as usize);
            medium.current.zero(first, SIM_SEGMENT_BYTES);
            medium.durable.zero(first, SIM_SEGMENT_BYTES);
            medium.pending.forget(first, SIM_SEGMENT_BYTES);
            let spares = &mut shape(medium).spares;
            if spares.len() < SPARES_MAX {
                spares.push_back(stale.into());
            }
            first += SIM_SEGMENT_BYTES;
        }
        shape(medium).segments = (first < extent).then_some((first, extent));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{FaultPlan, Limits, World, WorldState};

    fn bytes_of(state: &WorldState, len: usize) -> Vec<u8> {
        let mut out = vec![0xee; len];
        let found = state.open().log(0).read(0, &mut out).unwrap();
        out[found..].fill(0);
        out
    }

    #[test]
    fn an_unsynced_append_may_vanish_and_a_synced_one_may_not() {
        let world = World::new(1);
        let log = world.add_log();
        log.append(0, &[1; 700]).unwrap();
        log.sync().unwrap();
        log.append(700, &[2; 100]).unwrap();
        let states: Vec<Vec<u8>> =
            world.snapshot().power_losses(&Limits::default()).map(|state| bytes_of(&state, 800)).collect();
        assert!(states.iter().all(|s| s[..700] == [1; 700]), "synced bytes are in every state");
        let tails: BTreeSet<&[u8]> = states.iter().map(|s| &s[700..]).collect();
        assert!(tails.contains(&[0; 100][..]) && tails.contains(&[2; 100][..]));
        assert!(tails.len() > 2, "a tail may be garbage");
    }

    #[test]
    fn each_sector_of_an_unsynced_append_survives_or_not_on_its_own() {
        let world = World::new(1);
        let log = world.add_log();
        log.append(0, &[1; 3 * 512]).unwrap();
        let limits = Limits { torn: 0, ..Limits::default() };
        let states: BTreeSet<Vec<bool>> = world
            .snapshot()
            .power_losses(&limits)
            .map(|state| bytes_of(&state, 3 * 512).chunks(512).map(|sector| sector[0] == 1).collect())
            .collect();
        assert_eq!(states.len(), 8);
    }

    #[test]
    fn a_segment_nobody_synced_may_be_missing() {
        let world = World::new(1);
        let log = world.add_log();
        log.append(0, &[1; 100]).unwrap();
        log.sync().unwrap();
        log.append(100, &vec![2; SIM_SEGMENT_BYTES as usize]).unwrap();
        let limits = Limits::default();
        let extents: BTreeSet<usize> = world
            .snapshot()
            .power_losses(&limits)
            .map(|state| state.open().log(0).read(0, &mut vec![0; 3 * SIM_SEGMENT_BYTES as usize]).unwrap())
            .collect();
        assert_eq!(extents, BTreeSet::from([SIM_SEGMENT_BYTES as usize, 2 * SIM_SEGMENT_BYTES as usize]));
    }

    #[test]
    fn a_recycled_segment_holds_stale_bytes() {
        let world = World::new(1);
        let log = world.add_log();
        let segment = SIM_SEGMENT_BYTES as usize;
        log.append(0, &vec![1; 2 * segment]).unwrap();
        log.release(SIM_SEGMENT_BYTES + 1).unwrap();
        assert_eq!(log.read(0, &mut [0; 10]).unwrap(), 0);
        log.append(2 * SIM_SEGMENT_BYTES, &[2; 10]).unwrap();
        let mut out = [0; 20];
        assert_eq!(log.read(2 * SIM_SEGMENT_BYTES, &mut out).unwrap(), 20);
        assert_eq!((out[9], out[10]), (2, 1));
    }

    #[test]
    fn appending_goes_on_where_recovery_found_the_end() {
        let world = World::new(1);
        let log = world.add_log();
        log.append(0, &[1; 1000]).unwrap();
        let after = world.snapshot().process_crash().open();
        let log = after.log(0);
        log.append(600, &[2; 10]).unwrap();
        let mut out = [0; 3];
        log.read(609, &mut out).unwrap();
        assert_eq!(out, [2, 1, 1]);
    }

    #[test]
    fn a_full_disk_changes_nothing_and_a_broken_one_poisons() {
        let world = World::new(1);
        let log = world.add_log();
        let plan = |nth, fault| FaultPlan { call: Call::LogAppend, nth, for_good: false, fault };
        world.fail(plan(0, Fault::NoSpace));
        world.fail(plan(2, Fault::Io));
        assert!(matches!(log.append(0, b"a"), Err(MediaError::NoSpace { .. })));
        assert_eq!(log.read(0, &mut [0]).unwrap(), 0);
        log.append(0, b"b").unwrap();
        assert!(matches!(log.append(1, b"cd"), Err(MediaError::Io { .. })));
        assert!(matches!(log.append(1, b"cd"), Err(MediaError::Poisoned { .. })));
        assert!(matches!(log.sync(), Err(MediaError::Poisoned { .. })));
        assert_eq!(world.fault_hits(), 2);
        assert!(world.snapshot().process_crash().open().log(0).sync().is_ok());
    }
}
