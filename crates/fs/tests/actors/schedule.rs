//! Two actors, each in a thread of its own, of which one has the turn; and every way the turn can go between them.
//!
//! An actor waits for the turn before it begins and before each of its media calls. Whoever gets it runs up to its next
//! wait or its end. One that does neither and sleeps waits for a lock that the other holds: the turn goes to the
//! other, and once the lock is free the first runs on up to its next wait, beside the other, which makes media calls
//! in turn all the same. The other holds a lock only between its beginning and its end: an actor that sleeps at
//! another time waits for something else, such as the allocator on a busy machine, and keeps the turn.
//! Schedules are searched by running them again from the start with other choices, those with fewer preemptions first and of these
//! depth first. Changing the actor while it could go on is a preemption, and a schedule has at most so many of them.
//! A schedule is written as the actors chosen, `A` or `B`, one for each turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shoal_sim::Budget;

/// An actor that gives no sign of life for so long is not waiting for the other: the test is stuck.
const STUCK: Duration = Duration::from_secs(60);
/// The same where both sleep, which is what a deadlock looks like.
const STUCK_IN_LOCKS: Duration = Duration::from_secs(5);
/// Between two looks at an actor that does not come to its next wait.
const LOOK: Duration = Duration::from_micros(100);
/// Looks in a row that must find it asleep.
const LOOKS: u32 = 3;
/// The first wait.
const BEGINNING: &str = "the beginning";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before its thread runs.
    Born,
    /// Before the call named.
    Waiting(&'static str),
    /// Has the turn, and has not noticed it.
    Granted,
    Running,
    Done,
}

struct State {
    places: [Place; 2],
    tasks: [Option<u64>; 2],
    outcomes: [Option<Result<bool, String>>; 2],
}

pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn wait(&self, actor: usize, what: &'static str) {
        let mut state = self.state.lock().unwrap();
        state.places[actor] = Place::Waiting(what);
        self.changed.notify_all();
        while state.places[actor] != Place::Granted {
            state = self.changed.wait(state).unwrap();
        }
        state.places[actor] = Place::Running;
        self.changed.notify_all();
    }
}

/// What an actor does; true when its operation succeeded.
pub type Deed = Box<dyn FnOnce() -> bool + Send>;

/// What the searcher hears of a schedule while it runs.
pub trait Watcher {
    /// `actor` gets the turn for the first time.
    fn begins(&mut self, actor: usize);
    /// `actor` has returned; true when its operation succeeded.
    fn returned(&mut self, actor: usize, ok: bool);
    /// Where the run is: a number that grows with every media call.
    fn position(&self) -> u64;
}

/// A turn that could have gone to somebody else.
struct Decision {
    chosen: usize,
    other: Option<usize>,
    /// Choosing the other would be a preemption.
    preempts: bool,
    position: u64,
}

fn sleeps(task: u64) -> bool {
    // The state is what follows the name in parentheses.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{task}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn own_task() -> Option<u64> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// Waits until whoever has the turn waits again, has ended, or sleeps in somebody's lock.
fn quiet(gate: &Gate) -> Result<(), String> {
    let began = Instant::now();
    let mut looks = 0;
    let mut state = gate.state.lock().unwrap();
    loop {
        let busy = |place: &Place| matches!(place, Place::Born | Place::Granted | Place::Running);
        if !state.places.iter().any(busy) {
            return Ok(());
        }
        let (next, timed_out) = gate.changed.wait_timeout(state, LOOK).unwrap();
        state = next;
        if !timed_out.timed_out() {
            looks = 0;
            continue;
        }
        let holds_locks = |actor: usize| !matches!(state.places[actor], Place::Waiting(BEGINNING) | Place::Done);
        let running: Vec<u64> = (0..2)
            .filter(|&actor| state.places[actor] == Place::Running && holds_locks(1 - actor))
            .filter_map(|actor| state.tasks[actor])
            .collect();
        let unready = state.places.iter().filter(|place| busy(place)).count() > running.len();
        // Not while this thread holds the gate, at which an actor may just arrive.
        drop(state);
        looks = if !unready && running.into_iter().all(sleeps) { looks + 1 } else { 0 };
        state = gate.state.lock().unwrap();
        if looks >= LOOKS {
            return Ok(());
        }
        if began.elapsed() > STUCK {
            return Err(format!("an actor is stuck: {:?}", state.places));
        }
    }
}

/// What one schedule came to.
pub struct Trace {
    decisions: Vec<Decision>,
    /// The actors chosen.
    pub name: String,
}

/// Runs both deeds with the turns of `choices`, and behind them with as few changes as possible.
fn run_one(deeds: [Deed; 2], choices: &[usize], watcher: &mut impl Watcher) -> Result<Trace, String> {
    let state = State { places: [Place::Born; 2], tasks: [None; 2], outcomes: [None, None] };
    let gate = Arc::new(Gate { state: Mutex::new(state), changed: Condvar::new() });
    let threads: Vec<_> = (0..2).zip(deeds).map(|(actor, deed)| spawn(gate.clone(), actor, deed)).collect();
    let mut decisions: Vec<Decision> = Vec::new();
    let mut name = String::new();
    let (mut begun, mut reported) = ([false; 2], [false; 2]);
    let mut current: Option<usize> = None;
    let mut nobody_since: Option<Instant> = None;
    loop {
        quiet(&gate)?;
        let mut state = gate.state.lock().unwrap();
        for (actor, reported) in reported.iter_mut().enumerate() {
            if let (false, Some(outcome)) = (*reported, &state.outcomes[actor]) {
                *reported = true;
                watcher.returned(actor, outcome.clone()?);
            }
        }
        if reported == [true; 2] {
            break;
        }
        let ready: Vec<usize> = (0..2).filter(|&a| matches!(state.places[a], Place::Waiting(_))).collect();
        let Some(&first) = ready.first() else {
            // On a busy machine a thread may sleep for a moment in what is nobody's lock here, such as the allocator's.
            if nobody_since.get_or_insert_with(Instant::now).elapsed() > STUCK_IN_LOCKS {
                return Err(format!("after {name} each actor waits for a lock of the other: {:?}", state.places));
            }
            continue;
        };
        nobody_since = None;
        let stays = current.filter(|actor| ready.contains(actor));
        let forced = choices.get(decisions.len()).copied().filter(|choice| ready.contains(choice));
        let chosen = forced.or(stays).unwrap_or(first);
        let other = ready.iter().copied().find(|&actor| actor != chosen);
        decisions.push(Decision { chosen, other, preempts: stays.is_some(), position: watcher.position() });
        name.push(if chosen == 0 { 'A' } else { 'B' });
        if !std::mem::replace(&mut begun[chosen], true) {
            watcher.begins(chosen);
        }
        current = Some(chosen);
        state.places[chosen] = Place::Granted;
        drop(state);
        gate.changed.notify_all();
    }
    threads.into_iter().for_each(|thread| drop(thread.join()));
    Ok(Trace { decisions, name })
}

fn spawn(gate: Arc<Gate>, actor: usize, deed: Deed) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        gate.state.lock().unwrap().tasks[actor] = own_task();
        let hooked = gate.clone();
        gate.wait(actor, BEGINNING);
        shoal_sim::before_calls(Some(Rc::new(move |what| hooked.wait(actor, what))));
        let outcome = catch_unwind(AssertUnwindSafe(deed)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            format!("actor {actor} panics: {}", text.unwrap_or_default())
        });
        shoal_sim::before_calls(None);
        let mut state = gate.state.lock().unwrap();
        state.outcomes[actor] = Some(outcome);
        state.places[actor] = Place::Done;
        gate.changed.notify_all();
    })
}

/// How far the search goes.
#[derive(Clone, Copy)]
pub struct Bound {
    pub preemptions: usize,
    pub schedules: usize,
    /// No schedule but the first begins after its end.
    pub budget: Budget,
}

/// Runs every schedule within `bound`. `start` makes the two deeds and their watcher anew; `done` is handed the watcher
/// of a schedule that ended, and the position behind which no earlier schedule was.
pub fn search<W: Watcher>(
    bound: Bound,
    mut start: impl FnMut() -> Result<([Deed; 2], W), String>,
    mut done: impl FnMut(W, &Trace, u64) -> Result<(), String>,
) -> Result<usize, String> {
    // Choices that must be made, preemptions among them, and the position at which they leave an earlier schedule.
    let mut open: Vec<(Vec<usize>, usize, u64)> = vec![(vec![1], 0, 0), (vec![0], 0, 0)];
    let mut schedules = 0;
    loop {
        // Those with fewer preemptions first: most faults need one, and where a bound ends the search, depth alone would leave out
        // all that change the actor early.
        let least = open.iter().map(|(_, preemptions, _)| *preemptions).min();
        let Some(next) = open.iter().rposition(|(_, preemptions, _)| Some(*preemptions) == least) else { break };
        let (choices, preemptions, since) = open.remove(next);
        if schedules == bound.schedules || schedules > 0 && bound.budget.is_spent() {
            break;
        }
        schedules += 1;
        let (deeds, mut watcher) = start()?;
        let trace = run_one(deeds, &choices, &mut watcher)?;
        let made: Vec<usize> = trace.decisions.iter().map(|decision| decision.chosen).collect();
        for (turn, decision) in trace.decisions.iter().enumerate().skip(choices.len()) {
            let Some(other) = decision.other else { continue };
            let preemptions = preemptions + decision.preempts as usize;
            if preemptions <= bound.preemptions {
                let next = made[..turn].iter().copied().chain([other]).collect();
                open.push((next, preemptions, decision.position));
            }
        }
        done(watcher, &trace, since)?;
    }
    Ok(schedules)
}

/// The choices a schedule's name stands for.
pub fn choices(name: &str) -> Vec<usize> {
    name.chars().map(|actor| (actor == 'B') as usize).collect()
}

/// Runs the one schedule of this name.
pub fn search_one<W: Watcher>(name: &str, start: ([Deed; 2], W)) -> Result<(W, Trace), String> {
    let (deeds, mut watcher) = start;
    let trace = run_one(deeds, &choices(name), &mut watcher)?;
    Ok((watcher, trace))
}
