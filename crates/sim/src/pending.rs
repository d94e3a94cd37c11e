//! Writes that are visible but not durable, grouped by the unit that a crash keeps or loses.
//!
//! A unit is a cache line (64 bytes) of memory or a sector (512 bytes) of a file. Each keeps its
//! contents after each write since it was last durable, oldest first. A power loss leaves the
//! durable contents or one of these versions; for a line it may also leave a mixture by words of 8
//! bytes, which `crash` makes. A write that changes nothing adds no version. `crash` decides which
//! units survive together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ThreadId;

use crate::pages::Pages;

/// Maximum number of versions kept of a unit. Beyond that, versions in the middle are dropped.
const VERSIONS_MAX: usize = 12;

#[derive(Clone, Default)]
pub(crate) struct Unit {
    /// Whole contents of the unit after each write.
    pub versions: Vec<Arc<[u8]>>,
    /// Threads that started a write-back, each with the number of versions it covers.
    marks: Vec<(ThreadId, usize)>,
}

#[derive(Clone)]
pub(crate) struct Pending {
    pub unit_bytes: usize,
    units: Arc<BTreeMap<u64, Unit>>,
}

impl Pending {
    pub fn new(unit_bytes: usize) -> Pending {
        Pending { unit_bytes, units: Arc::default() }
    }

    pub fn units(&self) -> &BTreeMap<u64, Unit> {
        &self.units
    }

    fn indices(&self, at: u64, len: u64) -> std::ops::Range<u64> {
        let unit = self.unit_bytes as u64;
        if len == 0 { 0..0 } else { at / unit..(at + len).div_ceil(unit) }
    }

    /// Records that [at, at + len) of `current` was written over `durable` or pending contents.
    pub fn note(&mut self, durable: &Pages, current: &Pages, at: u64, len: u64) {
        let mut before = vec![0; self.unit_bytes];
        for index in self.indices(at, len) {
            let unit_at = index * self.unit_bytes as u64;
            let now: Arc<[u8]> = current.bytes(unit_at, self.unit_bytes).into();
            let last = self.units.get(&index).and_then(|unit| unit.versions.last());
            let unchanged = match last {
                Some(last) => **last == *now,
                None => {
                    durable.read(unit_at, &mut before);
                    *before == *now
                }
            };
            if !unchanged {
                let unit = Arc::make_mut(&mut self.units).entry(index).or_default();
                unit.versions.push(now);
                unit.forget_one_of_many();
            }
        }
    }

    /// Forgets all units: everything visible is durable.
    pub fn clear(&mut self) {
        self.units = Arc::default();
    }

    /// Forgets the units in `[at, at + len)`, because they are durable or no longer matter.
    pub fn forget(&mut self, at: u64, len: u64) {
        for index in self.indices(at, len) {
            if self.units.contains_key(&index) {
                Arc::make_mut(&mut self.units).remove(&index);
            }
        }
    }

    /// Starts a write-back by `thread` of the units of [at, at + len). Returns the units with
    /// something to write.
    pub fn mark(&mut self, thread: ThreadId, at: u64, len: u64) -> Vec<u64> {
        let range = self.indices(at, len);
        let touched: Vec<u64> = self.units.range(range).map(|(&index, _)| index).collect();
        for index in &touched {
            let unit = Arc::make_mut(&mut self.units).get_mut(index).expect("listed above");
            let covered = unit.versions.len();
            unit.marks.retain(|&(marked_by, _)| marked_by != thread);
            unit.marks.push((thread, covered));
        }
        touched
    }

    /// Fences `thread`: what it wrote back of this unit becomes durable.
    pub fn fence(&mut self, thread: ThreadId, index: u64, durable: &mut Pages) {
        if !self.units.contains_key(&index) {
            return;
        }
        let units = Arc::make_mut(&mut self.units);
        let unit = units.get_mut(&index).expect("tested above");
        let Some(&(_, covered)) = unit.marks.iter().find(|&&(marked_by, _)| marked_by == thread) else { return };
        durable.write(index * self.unit_bytes as u64, &unit.versions[covered - 1]);
        unit.versions.drain(..covered);
        unit.marks.retain_mut(|(_, other)| {
            *other = other.saturating_sub(covered);
            *other > 0
        });
        if unit.versions.is_empty() {
            units.remove(&index);
        }
    }
}

impl Unit {
    /// Drops one version if there are too many. Keeps the last version and each version at which a
    /// write-back ends.
    fn forget_one_of_many(&mut self) {
        if self.versions.len() <= VERSIONS_MAX {
            return;
        }
        let middle = VERSIONS_MAX / 2;
        let marked = |i: usize| self.marks.iter().any(|&(_, covered)| covered == i + 1);
        if let Some(victim) = (middle..self.versions.len() - 1).find(|&i| !marked(i)) {
            self.versions.remove(victim);
            for (_, covered) in &mut self.marks {
                if *covered > victim {
                    *covered -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(pending: &mut Pending, durable: &Pages, current: &mut Pages, at: u64, bytes: &[u8]) {
        current.write(at, bytes);
        pending.note(durable, current, at, bytes.len() as u64);
    }

    #[test]
    fn versions_follow_each_other_and_unchanged_units_have_none() {
        let (durable, mut current, mut pending) = (Pages::default(), Pages::default(), Pending::new(64));
        store(&mut pending, &durable, &mut current, 60, &[1; 8]);
        store(&mut pending, &durable, &mut current, 64, &[1; 4]);
        store(&mut pending, &durable, &mut current, 64, &[2]);
        store(&mut pending, &durable, &mut current, 640, &[0; 64]);
        let versions: Vec<_> = pending.units().iter().map(|(&i, unit)| (i, unit.versions.len())).collect();
        assert_eq!(versions, [(0, 1), (1, 2)]);
        assert_eq!(pending.units()[&1].versions[1][..5], [2, 1, 1, 1, 0]);
    }

    #[test]
    fn a_fence_settles_what_was_written_back_before_it_by_its_thread_and_no_more() {
        let (mut durable, mut current, mut pending) = (Pages::default(), Pages::default(), Pending::new(64));
        let me = std::thread::current().id();
        let other = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
        store(&mut pending, &durable, &mut current, 0, &[1]);
        assert_eq!(pending.mark(me, 0, 64), [0]);
        store(&mut pending, &durable, &mut current, 1, &[2]);
        pending.fence(other, 0, &mut durable);
        assert_eq!(durable.bytes(0, 2), [0, 0]);
        pending.fence(me, 0, &mut durable);
        assert_eq!(durable.bytes(0, 2), [1, 0]);
        assert_eq!(pending.units()[&0].versions.len(), 1);
        pending.fence(me, 0, &mut durable);
        assert_eq!(durable.bytes(0, 2), [1, 0]);
    }

    #[test]
    fn a_version_that_was_written_back_is_not_forgotten_among_many() {
        let (mut durable, mut current, mut pending) = (Pages::default(), Pages::default(), Pending::new(64));
        let me = std::thread::current().id();
        for i in 0..100 {
            store(&mut pending, &durable, &mut current, 0, &[i + 1]);
            if i == 7 {
                pending.mark(me, 0, 1);
            }
        }
        assert!(pending.units()[&0].versions.len() <= VERSIONS_MAX);
        pending.fence(me, 0, &mut durable);
        assert_eq!(durable.bytes(0, 1), [8]);
    }
}
