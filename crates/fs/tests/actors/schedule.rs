//! Two actors, each in its own thread, of which one has the turn, and every way to pass the turn
//! between them.
//!
//! An actor waits for the turn before it begins and before each of its media calls. The actor that
//! gets the turn runs up to its next wait or its end. If it sleeps on the way, it waits for a lock
//! that the other actor holds, and the turn goes to the other. Once the lock is free, the first
//! actor runs on up to its next wait beside the other, but their media calls still take turns.
//! An actor holds locks only between its beginning and its end. So an actor that sleeps while the
//! other has not begun or has ended waits for something else, such as the allocator on a busy
//! machine. It keeps the turn.
//! The search runs schedules again from the start with other choices. It tries those with fewer
//! preemptions first, and among these it goes depth first. Switching actors while the current one
//! could go on is a preemption. The bound limits the preemptions of a schedule.
//! A schedule is written as the actors chosen, `A` or `B`, one letter for each turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use shoal_sim::Budget;

/// Time without progress after which the test counts as stuck, not as waiting for a lock.
const STUCK: Duration = Duration::from_secs(60);
/// Time without progress after which the test counts as stuck if both actors sleep, which is what a
/// deadlock looks like.
const STUCK_IN_LOCKS: Duration = Duration::from_secs(5);
/// Interval between two looks at an actor that does not come to its next wait.
const LOOK: Duration = Duration::from_micros(100);
/// Consecutive looks that must find the actor asleep.
const LOOKS: u32 = 3;
/// Name of an actor's first wait.
const BEGINNING: &str = "the beginning";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before its thread runs.
    Born,
    /// Before the call named.
    Waiting(&'static str),
    /// The actor has the turn and has not noticed it.
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

/// Work of an actor. Returns true if its operation succeeded.
pub type Deed = Box<dyn FnOnce() -> bool + Send>;

/// Receives the events of a schedule while it runs.
pub trait Watcher {
    /// `actor` gets the turn for the first time.
    fn begins(&mut self, actor: usize);
    /// `actor` has returned; true when its operation succeeded.
    fn returned(&mut self, actor: usize, ok: bool);
    /// Returns the position of the run, a number that grows with every media call.
    fn position(&self) -> u64;
}

/// A turn, and the actor that could have had it instead.
struct Decision {
    chosen: usize,
    other: Option<usize>,
    /// Choosing the other would be a preemption.
    preempts: bool,
    position: u64,
}

fn sleeps(task: u64) -> bool {
    // The state follows the name in parentheses.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{task}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn own_task() -> Option<u64> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

/// Waits until each actor that has the turn waits again, has ended, or sleeps on a lock of the
/// other.
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
        // Release the gate before looking, because an actor may be about to take it.
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

/// Result of one schedule.
pub struct Trace {
    decisions: Vec<Decision>,
    /// The actors chosen.
    pub name: String,
}

/// Runs both deeds with the turns of `choices`, then with as few switches as possible.
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
            // On a busy machine a thread may sleep briefly on another lock, such as the
            // allocator's.
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
    /// Only the first schedule may begin after the budget is spent.
    pub budget: Budget,
}

/// Runs every schedule within `bound`. `start` makes the two deeds and their watcher anew. `done`
/// receives the watcher of a finished schedule, and the position after which the schedule differs
/// from all earlier ones.
pub fn search<W: Watcher>(
    bound: Bound,
    mut start: impl FnMut() -> Result<([Deed; 2], W), String>,
    mut done: impl FnMut(W, &Trace, u64) -> Result<(), String>,
) -> Result<usize, String> {
    // The forced choices, the number of preemptions among them, and the position at which they
    // leave an earlier schedule.
    let mut open: Vec<(Vec<usize>, usize, u64)> = vec![(vec![1], 0, 0), (vec![0], 0, 0)];
    let mut schedules = 0;
    loop {
        // Take schedules with fewer preemptions first. Most faults need one preemption, and a
        // bounded search that goes depth first only would leave out all schedules that switch
        // early.
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

/// Returns the choices that a schedule's name stands for.
pub fn choices(name: &str) -> Vec<usize> {
    name.chars().map(|actor| (actor == 'B') as usize).collect()
}

/// Runs the one schedule of this name.
pub fn search_one<W: Watcher>(name: &str, start: ([Deed; 2], W)) -> Result<(W, Trace), String> {
    let (deeds, mut watcher) = start;
    let trace = run_one(deeds, &choices(name), &mut watcher)?;
    Ok((watcher, trace))
}
