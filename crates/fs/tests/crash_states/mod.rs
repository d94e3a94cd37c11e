//! File system crash enumeration: an operation, a crash at every event, every state recovered and judged.
//!
//! | file | owns |
//! |---|---|
//! | `workload` | the tree a run begins with, and the operations |
//! | `tree` | what a store shows, and what is allowed |
//! | here | runs, crash points, states, and what is tried after a recovery |
//!
//! A failure names memory, operations, event and state; it is the same in every run.

pub mod tree;
pub mod workload;

use std::sync::Arc;

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, Ino};
use shoal_sim::{CrashPoint, Limits, SimClock, World, WorldState};

use crate::sim_store::{CALLER, Setup, check, open};
use tree::{Allowed, History, Tree};
use workload::{Operation, pattern};

/// What follows an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    None,
    File,
    All,
}

pub struct Explorer {
    pub setup: Setup,
    base: WorldState,
    pub limits: Limits,
    /// Crash points of a run are thinned out to this many.
    pub points: usize,
    pub states: u64,
    /// Crash states whose tree was a call half-way.
    pub opened: u32,
}

/// A run, as far as the judgement needs it.
struct Run {
    trees: Vec<Tree>,
    steps: Vec<bool>,
    synced: Option<(Ino, usize)>,
    name: String,
}

fn clock(state: usize) -> Arc<SimClock> {
    Arc::new(SimClock::new(2_000_000_000 + state as i64 * 1_000_000_000))
}

impl Explorer {
    pub fn new(kind: MemoryKind, limits: Limits, points: usize) -> Explorer {
        let setup = workload::setup(kind);
        Explorer { base: workload::base(&setup), setup, limits, points, states: 0, opened: 0 }
    }

    fn open(&mut self, world: &World, boot: u8) -> Result<Fs, String> {
        self.opened += 1;
        open(&self.setup, world, boot, 100 + self.opened, &clock(99)).map(|(fs, _)| fs)
    }

    /// Runs operations, the last one followed by `sync`, and examines every crash.
    pub fn explore(&mut self, operations: &[&Operation], sync: Sync) -> Result<(), String> {
        let names: Vec<_> = operations.iter().map(|op| op.name).collect();
        let mut run = Run {
            trees: Vec::new(),
            steps: Vec::new(),
            synced: None,
            name: format!("{}: {} then {sync:?}", self.setup.kind.name(), names.join(", ")),
        };
        let world = self.base.open();
        let time = clock(0);
        let (fs, _) = open(&self.setup, &world, 2, 50, &time)?;
        fs.sync().map_err(|e| format!("{}: first sync: {e}", run.name))?;
        run.trees.push(tree::read(&fs)?);
        world.record(true);
        world.record_stores(self.setup.kind.has_ring());
        for (number, operation) in operations.iter().enumerate() {
            time.advance(1_000_000_000);
            match (operation.run)(&fs) {
                Ok(()) => {}
                // In a sequence an earlier operation may have taken away what this one needs.
                Err(_) if operations.len() > 1 => {}
                Err(error) => return Err(format!("{}: {error}", run.name)),
            }
            run.trees.push(tree::read(&fs)?);
            run.steps.push(operation.steps);
            world.set_mark((number as u64 + 1) << 32);
        }
        let last = operations.len();
        let path = operations.last().map_or("", |op| op.path);
        let target = fs.resolve(path.as_bytes()).ok();
        let mut durable = 0;
        match (sync, target) {
            (Sync::All, _) => {
                fs.sync().map_err(|e| format!("{}: sync: {e}", run.name))?;
                durable = last as u64;
            }
            (Sync::File, Some(ino)) => {
                fs.fsync(ino, false).map_err(|e| format!("{}: fsync: {e}", run.name))?;
                run.synced = Some((ino, last));
            }
            _ => {}
        }
        world.record(false);
        let mut points = world.points();
        world.set_mark((last as u64) << 32 | durable);
        let end = world.snapshot();
        let every = points.len().div_ceil(self.points).max(1);
        points = points.into_iter().step_by(every).collect();
        for point in &points {
            // The fsync has not returned at these points.
            let run = Run { synced: None, trees: run.trees.clone(), steps: run.steps.clone(), name: run.name.clone() };
            self.crash(&run, point)?;
        }
        self.crash(&run, &end)
    }

    fn crash(&mut self, run: &Run, point: &CrashPoint) -> Result<(), String> {
        let (returned, synced) = ((point.mark() >> 32) as usize, (point.mark() & 0xffff_ffff) as usize);
        let high = (returned + 1).min(run.trees.len() - 1);
        let log = run.synced.map_or(synced, |(_, state)| state);
        let power_low = if self.setup.kind.has_ring() { returned } else { log };
        let process = Allowed { low: returned, high, durable: synced, synced: run.synced, power: false };
        let power = Allowed { low: power_low, power: true, ..process };
        self.examine(run, &point.process_crash(), process, 2, 0)?;
        for state in point.power_losses(&self.limits) {
            self.examine(run, &state, power, 3, 0)?;
        }
        Ok(())
    }

    fn examine(&mut self, run: &Run, state: &WorldState, allowed: Allowed, boot: u8, depth: u32) -> Result<(), String> {
        self.states += 1;
        let turn = self.states;
        let name = |e: String| format!("{}\n{} (depth {depth}): {e}", run.name, state.name());
        let world = state.open();
        if turn.is_multiple_of(7) {
            check(&self.setup, &world, allowed.power).map_err(|e| name(format!("before recovery: {e}")))?;
        }
        // Recovery on `dax` has many events, and few of them are of a kind of its own.
        let every = if self.setup.kind == MemoryKind::Dax { [499, 97] } else { [9, 37] };
        let nested = depth < 2 && turn.is_multiple_of(every[depth as usize]);
        if nested {
            world.record(true);
            world.record_stores(self.setup.kind.has_ring());
        }
        let fs = self.open(&world, boot).map_err(name)?;
        let found = tree::read(&fs).map_err(name)?;
        let history = History { states: &run.trees, steps: &run.steps };
        let k = history.judge(&found, &allowed).map_err(name)?;
        if nested {
            world.record(false);
            let points = world.points();
            let every = points.len().div_ceil(12).max(1);
            for point in points.into_iter().step_by(every).chain([world.snapshot()]) {
                self.examine(run, &point.process_crash(), allowed, boot, depth + 1).map_err(name)?;
                let few = Limits { subset_units: 2, torn: 1, each: 1, samples: 2 };
                // A power loss may take what only the first process knew.
                let low = if allowed.power { allowed.low } else { self.power_low(&allowed, run) };
                let power = Allowed { power: true, low, ..allowed };
                for state in point.power_losses(&few) {
                    self.examine(run, &state, power, boot + 1, depth + 1).map_err(name)?;
                }
            }
        }
        if turn.is_multiple_of(3) {
            let report = check(&self.setup, &world, false).map_err(|e| name(format!("after recovery: {e}")))?;
            if report.counts.orphans > 0 {
                return Err(name(format!("{} orphans are left after recovery", report.counts.orphans)));
            }
        }
        if turn.is_multiple_of(11) {
            let again = world.snapshot().process_crash().open();
            let fs = self.open(&again, boot).map_err(|e| name(format!("a second time: {e}")))?;
            if tree::read(&fs).map_err(name)? != found {
                return Err(name(format!("recovering twice shows another tree than state {k}")));
            }
        }
        if turn.is_multiple_of(29) {
            self.use_it(fs, &world, boot).map_err(|e| name(format!("used after recovery: {e}")))?;
        }
        Ok(())
    }

    fn power_low(&self, allowed: &Allowed, run: &Run) -> usize {
        if self.setup.kind.has_ring() { allowed.low } else { run.synced.map_or(allowed.durable, |(_, state)| state) }
    }

    /// Everything can be deleted, created again, and is there after a clean end.
    fn use_it(&mut self, fs: Fs, world: &World, boot: u8) -> Result<(), String> {
        remove_all(&fs).map_err(|e| format!("removing everything: {e}"))?;
        let left = tree::read(&fs)?;
        if left.len() != 1 {
            return Err(format!("{} entries are left", left.len() - 1));
        }
        refill(&fs).map_err(|e| format!("creating again: {e}"))?;
        let before = tree::read(&fs)?;
        fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        drop(fs);
        check(&self.setup, world, false).map_err(|e| format!("after a clean end: {e}"))?;
        let fs = self.open(world, boot)?;
        if tree::read(&fs)? != before {
            return Err("the new tree is another one after a clean end".into());
        }
        Ok(())
    }
}

/// Removes whatever the root leads to.
pub fn remove_all(fs: &Fs) -> Result<(), Error> {
    fn empty(fs: &Fs, dir: Ino) -> Result<(), Error> {
        let mut names = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        })?;
        for (name, ino, kind) in names {
            match (kind, &name[..]) {
                (_, b"." | b"..") => {}
                (4, _) => {
                    empty(fs, ino)?;
                    fs.rmdir(dir, &name)?;
                }
                _ => fs.unlink(dir, &name)?,
            }
        }
        Ok(())
    }
    empty(fs, shoal_fs::ROOT)
}

/// A small and a large file with new contents: the blocks just freed are used again.
fn refill(fs: &Fs) -> Result<(), Error> {
    let dir = fs.mkdir(&CALLER, shoal_fs::ROOT, b"A", 0o755)?.ino;
    for (name, tag, len) in [(&b"foo"[..], 40, 3000), (b"bar", 41, 200_000)] {
        let ino = fs.mknod(&CALLER, dir, name, 0o644, 0)?.ino;
        let mut done = 0;
        while done < len {
            done += fs.write(ino, done as u64, &pattern(tag, done as u64, len - done))?;
        }
    }
    Ok(())
}
