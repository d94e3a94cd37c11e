//! One pair of operations on one store: its schedules, its crash points, and every state judged.
//!
//! Owns: running a schedule, taking points along it, opening each state and asking `promise` about it. Left out: which
//! schedules there are (`schedule`), and which pairs (`pairs`).

use std::sync::{Arc, Mutex};

use shoal_format::superblock::MemoryKind;
use shoal_fs::Fs;
use shoal_sim::{CrashPoint, Limits, SimClock, World, WorldState};

use super::pairs::Past;
use super::promise::{History, Moment, Turn};
use super::schedule::{Bound, Deed, Trace, Watcher, search, search_one};
use super::view::{Shown, View};
use crate::crash::explorer::guard;
use crate::crash::operation::{Actor, Operation};
use crate::store::{self, Boot, Setup};

/// How far a pair is explored.
#[derive(Clone)]
pub struct Extent {
    pub bound: Bound,
    pub limits: Limits,
    /// The offline checker also checks one in this many states.
    pub check_every: u64,
    /// Also crash between two stores to memory.
    pub stores: bool,
}

/// Restricts the visit to one schedule, event or state.
#[derive(Clone, Default)]
pub struct Only {
    pub schedule: Option<String>,
    pub event: Option<u64>,
    pub state: Option<u64>,
}

/// Counts of what was visited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub schedules: u64,
    pub points: u64,
    pub states: u64,
    pub power_losses: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.schedules += other.schedules;
        self.points += other.points;
        self.states += other.states;
        self.power_losses += other.power_losses;
    }
}

/// A store with a past, in a process that is still running.
struct Live {
    fs: Fs,
    world: World,
    clock: Arc<SimClock>,
}

/// A new store and its past, ready for any pair.
pub struct Ground<'a> {
    setup: Setup,
    past: &'a Past,
    empty: WorldState,
    views: Vec<Shown>,
    boot: Boot,
}

fn apply(live: &Live, operation: &Operation) -> bool {
    operation.apply(&mut Actor { fs: &live.fs, clock: &live.clock, held: &mut Vec::new() }).is_ok()
}

impl<'a> Ground<'a> {
    pub fn new(setup: Setup, seed: u64, keeps_trimmed: bool, past: &'a Past) -> Result<Ground<'a>, String> {
        let empty = store::format(setup, seed).snapshot().process_crash();
        let boot = Boot::first(keeps_trimmed);
        let mut ground = Ground { setup, past, empty, views: Vec::new(), boot };
        let store = store::open(setup, ground.empty.open(), boot)?;
        let live = Live { fs: store.fs, world: store.world, clock: store.clock };
        ground.views.push(Arc::new(View::read(&live.fs)?));
        for operation in &past.operations {
            if !apply(&live, operation) {
                return Err(format!("the past fails at {operation:?}"));
            }
            ground.views.push(Arc::new(View::read(&live.fs)?));
        }
        Ok(ground)
    }

    fn begin(&self) -> Result<Live, String> {
        let store = store::open(self.setup, self.empty.open(), self.boot)?;
        let live = Live { fs: store.fs, world: store.world, clock: store.clock };
        if !self.past.operations.iter().all(|operation| apply(&live, operation)) {
            return Err("the past failed this time".into());
        }
        Ok(live)
    }

    /// Runs the pair in turn.
    fn history(&self, operations: &[Operation; 2]) -> Result<History, String> {
        let mut turns = Vec::new();
        for (turn, order) in
            [(Turn::One(0), &[0][..]), (Turn::One(1), &[1]), (Turn::Both(0, 1), &[0, 1]), (Turn::Both(1, 0), &[1, 0])]
        {
            let live = self.begin()?;
            let mut ok = [true; 2];
            order.iter().for_each(|&actor| ok[actor] = apply(&live, &operations[actor]));
            turns.push((turn, Arc::new(View::read(&live.fs)?), ok));
        }
        let (past, views) = (self.past.operations.clone(), self.views.clone());
        Ok(History { kind: self.setup.kind, operations: operations.clone(), past, views, turns })
    }

    fn start(&self, operations: &[Operation; 2], extent: &Extent) -> Result<([Deed; 2], Watching), String> {
        let live = Arc::new(self.begin()?);
        live.world.points();
        live.world.record(true);
        live.world.record_stores(extent.stores && self.setup.kind == MemoryKind::Battery);
        let deed = |actor: usize| -> Deed {
            let (live, operation) = (live.clone(), operations[actor].clone());
            Box::new(move || apply(&live, &operation))
        };
        let moments = Mutex::new(vec![Moment::default()]);
        live.world.set_mark(0);
        Ok(([deed(0), deed(1)], Watching { live, moments }))
    }

    /// Visits the states of a pair; the first violation is an error that says how to run it again.
    pub fn explore(&self, operations: &[Operation; 2], extent: &Extent, only: &Only) -> Result<Count, String> {
        let history = self.history(operations)?;
        let mut count = Count::default();
        let mut judge = |watching: Watching, trace: &Trace, since: u64| {
            self.judge(&history, watching, trace, since, extent, only, &mut count)
        };
        let schedules = match &only.schedule {
            Some(name) => {
                let (watching, trace) = search_one(name, self.start(operations, extent)?)?;
                judge(watching, &trace, 0)?;
                1
            }
            None => search(extent.bound, || self.start(operations, extent), judge)?,
        };
        count.schedules += schedules as u64;
        Ok(count)
    }

    #[allow(clippy::too_many_arguments, reason = "one call, from the closure above")]
    fn judge(
        &self,
        history: &History,
        watching: Watching,
        trace: &Trace,
        since: u64,
        extent: &Extent,
        only: &Only,
        count: &mut Count,
    ) -> Result<(), String> {
        let Watching { live, moments } = watching;
        let moments = moments.into_inner().unwrap();
        live.world.record(false);
        let mut points = live.world.points();
        points.push(live.world.snapshot());
        let last = moments.last().expect("there is a first moment");
        let describe = |point: &CrashPoint, state: u64, error: String| {
            let [a, b] = &history.operations;
            format!(
                "{} memory, past \"{}\", A {a:?}, B {b:?}, schedule {}, {}, state {state}\n  {error}\n  \
                 run it again: SHOAL_KIND={} SHOAL_PAST={} SHOAL_PAIR='{a:?}; {b:?}' SHOAL_SCHEDULE={} \
                 SHOAL_EVENT={} SHOAL_STATE={state} cargo test --release -p shoal-fs --test all two_actors::single -- \
                 --nocapture",
                self.setup.kind.name(),
                self.past.name,
                trace.name,
                point.name(),
                self.setup.kind.name(),
                self.past.name,
                trace.name,
                point.event(),
            )
        };
        let shown = View::read(&live.fs).and_then(|view| history.judge(&view, last, false));
        shown.map_err(|e| describe(&points[points.len() - 1], 0, format!("without a crash: {e}")))?;
        let end = points.len() - 1;
        for (number, point) in points.iter().enumerate() {
            let wanted = match only.event {
                Some(event) => event == point.event(),
                None => number == end || point.event() > since,
            };
            if !wanted {
                continue;
            }
            count.points += 1;
            let moment = &moments[point.mark() as usize];
            let losses = point.power_losses(&extent.limits).size_hint().0 as u64;
            for state in (0..=losses).filter(|state| only.state.is_none_or(|only| only == *state)) {
                let crash = match state {
                    0 => point.process_crash(),
                    n => point.power_loss_number(&extent.limits, n as usize - 1).expect("counted"),
                };
                count.states += 1;
                count.power_losses += (state > 0) as u64;
                let checked = only.state.is_some() || count.states.is_multiple_of(extent.check_every);
                guard(|| self.examine(history, &crash, moment, state > 0, checked))
                    .map_err(|e| describe(point, state, format!("{}: {e}", crash.name())))?;
            }
        }
        Ok(())
    }

    fn examine(
        &self,
        history: &History,
        crash: &WorldState,
        moment: &Moment,
        power: bool,
        checked: bool,
    ) -> Result<(), String> {
        let store = store::open(self.setup, crash.open(), self.boot.after(power))?;
        history.judge(&View::read(&store.fs)?, moment, power)?;
        if checked {
            let at_rest = store.world.snapshot().process_crash().open();
            let report = store::check(self.setup, &at_rest, false)?;
            if report.counts.orphans > 0 {
                return Err(format!("{} orphans are left after recovery", report.counts.orphans));
            }
        }
        Ok(())
    }
}

/// State that a schedule leaves behind to be judged.
struct Watching {
    live: Arc<Live>,
    /// Moments, indexed by mark.
    moments: Mutex<Vec<Moment>>,
}

impl Watching {
    fn note(&self, change: impl FnOnce(&mut Moment)) {
        let mut moments = self.moments.lock().unwrap();
        let mut next = moments.last().expect("there is a first moment").clone();
        change(&mut next);
        moments.push(next);
        self.live.world.set_mark(moments.len() as u64 - 1);
    }
}

impl Watcher for Watching {
    fn begins(&mut self, actor: usize) {
        self.note(|moment| moment.begin(actor));
    }

    fn returned(&mut self, actor: usize, ok: bool) {
        self.note(|moment| moment.end(actor, ok));
    }

    fn position(&self) -> u64 {
        self.live.world.events()
    }
}
