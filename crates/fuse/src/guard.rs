//! The scheduling class of io_uring's queue threads, and the guard that ensures that no program
//! starves because of it.
//!
//! When a queue's thread answers a program on its processor, the kernel looks for an idle processor
//! to wake the program on. It finds another one, because the answering thread keeps this one busy.
//! The next request lands there, and each request costs waking an idle processor. A thread of the
//! idle class does not make its processor look busy: program and thread stay together, and a
//! request takes a half to a third of the time. The price is that such a thread gets no time while
//! other threads want its processor.
//!
//! So threads are in the idle class while many requests come and some processor is idle. One more
//! thread, the guard, checks them every 2 ms. A thread that was runnable all the time but did not
//! run, or whose turns take long to come, goes back to the normal class at once, for a time that
//! doubles with each failure that follows soon. If no processor is idle, the normal class is as
//! fast. Without requests all threads are in the normal class, and the guard sleeps.
//! Rules: [`Policy`] is a pure function of what was seen and when. Only the guard changes classes.
//! The class is not used if a thread could not leave it again, nor on threads for which somebody
//! chose another class.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_host::{Class, Scheduled, Seen};

/// Time between two looks while a thread is in the idle class. No program waits for the thread much
/// longer than twice this time.
const CLOSE: Duration = Duration::from_millis(2);
/// Time between two looks otherwise, and the time over which requests and waits are judged.
const WINDOW: Duration = Duration::from_millis(20);
/// Minimum requests in a window that make the class worth it.
const REQUESTS_MIN: u64 = 20;
/// Longest average wait for a turn over a window. A longer one shows that others need the
/// processor.
const WAIT_MAX: Duration = Duration::from_micros(300);
/// If a thread was in the idle class for this long before it ran short of processor time, it gained
/// more than it lost by waiting for two looks. It may then soon enter the class again. Any program
/// that wakes now and then for a few milliseconds makes it wait once.
const WORTH_IT: Duration = Duration::from_millis(200);
/// How long a thread stays in the normal class after it was short of processor time: at first, and
/// at most.
const BACK_OFF_MIN: Duration = WINDOW;
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// A thread that ran this long between two looks was not waiting, however long its turn is.
const RUN_MIN: Duration = Duration::from_micros(500);
/// Time over which idle processors are counted: the kernel reports idle time in hundredths of a
/// second.
const IDLE_WINDOW: Duration = Duration::from_millis(100);
/// Idle time of all processors in that window: needed to enter the class, and below which the class
/// is left.
const IDLE_TIME: Duration = Duration::from_millis(30);
const IDLE_TIME_MIN: Duration = Duration::from_millis(10);
/// Windows without a request after which the guard sleeps.
const QUIET_WINDOWS: u32 = 5;

/// Observation of a queue's thread at a moment, with the requests that it had taken by then.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    at: Duration,
    thread: Seen,
    requests: u64,
    /// Some processor is idle now and then.
    has_idle: bool,
}

/// The class of one thread, from one observation to the next.
struct Policy {
    class: Class,
    /// The last observation, and the one at the beginning of the window.
    last: Sight,
    window: Sight,
    back_off: Duration,
    not_before: Duration,
    idle_since: Duration,
    quiet_windows: u32,
}

impl Policy {
    fn new() -> Policy {
        let (none, zero) = (Sight::default(), Duration::ZERO);
        Policy {
            class: Class::Normal,
            last: none,
            window: none,
            back_off: BACK_OFF_MIN,
            not_before: zero,
            idle_since: zero,
            quiet_windows: QUIET_WINDOWS,
        }
    }

    /// Returns whether nothing has come for a while, so that there is no need to look.
    fn is_at_rest(&self) -> bool {
        self.class == Class::Normal && self.quiet_windows >= QUIET_WINDOWS
    }

    /// Begins again after a rest, when requests come.
    fn begin(&mut self, sight: Sight) {
        (self.last, self.window, self.quiet_windows) = (sight, sight, 0);
    }

    /// Returns the class from now on.
    fn next(&mut self, sight: Sight) -> Class {
        let last = std::mem::replace(&mut self.last, sight);
        let has_moved = last.thread.turns != sight.thread.turns || last.requests != sight.requests;
        let has_run = sight.thread.ran_ns - last.thread.ran_ns >= RUN_MIN.as_nanos() as u64;
        let is_stuck = last.thread.is_runnable && sight.thread.is_runnable && !has_moved && !has_run;
        if is_stuck && self.class == Class::Idle {
            return self.fail(sight);
        }
        if sight.at - self.window.at < WINDOW {
            return self.class;
        }
        let window = std::mem::replace(&mut self.window, sight);
        let requests = sight.requests - window.requests;
        self.quiet_windows = if requests == 0 { self.quiet_windows + 1 } else { 0 };
        let turns = (sight.thread.turns - window.thread.turns).max(1);
        let waits_long = (sight.thread.waited_ns - window.thread.waited_ns) / turns > WAIT_MAX.as_nanos() as u64;
        match self.class {
            Class::Idle if waits_long => return self.fail(sight),
            Class::Idle if requests < REQUESTS_MIN / 2 || !sight.has_idle => self.class = Class::Normal,
            Class::Normal => {
                let is_worth_it = requests >= REQUESTS_MIN && sight.has_idle;
                if is_worth_it && !waits_long && !is_stuck && sight.at >= self.not_before {
                    (self.class, self.idle_since) = (Class::Idle, sight.at);
                }
            }
            Class::Idle => {}
        }
        self.class
    }

    /// Returns to the normal class, since others need the processor.
    fn fail(&mut self, sight: Sight) -> Class {
        let went_well = sight.at - self.idle_since >= WORTH_IT;
        self.back_off = if went_well { BACK_OFF_MIN } else { BACK_OFF_MAX.min(2 * self.back_off) };
        (self.class, self.not_before, self.window) = (Class::Normal, sight.at + self.back_off, sight);
        self.class
    }
}

/// A queue, as the guard knows it.
#[derive(Default)]
struct Queue {
    requests: AtomicU64,
    /// The queue's thread may change its class.
    is_watched: AtomicBool,
    thread: Mutex<Option<Scheduled>>,
}

struct Shared {
    queues: Vec<Queue>,
    is_asleep: AtomicBool,
    has_ended: AtomicBool,
}

/// The queues' way to inform the guard.
#[derive(Clone)]
pub(crate) struct Watched {
    shared: Arc<Shared>,
    guard: Thread,
}

impl Watched {
    /// Records that the calling thread serves queue `number`.
    pub fn enter(&self, number: usize) {
        match Scheduled::this_thread() {
            Ok(thread) => {
                *self.shared.queues[number].thread.lock() = Some(thread);
                self.shared.queues[number].is_watched.store(true, Ordering::Relaxed);
            }
            Err(error) => tracing::debug!("queue {number} keeps its scheduling class: {error}"),
        }
    }

    /// Records that queue `number` took a request.
    pub fn took(&self, number: usize) {
        let queue = &self.shared.queues[number];
        if !queue.is_watched.load(Ordering::Relaxed) {
            return;
        }
        // The order matters. The guard announces its sleep before it reads the count, so one of the
        // two notices the other.
        queue.requests.fetch_add(1, Ordering::SeqCst);
        if self.shared.is_asleep.load(Ordering::SeqCst) && self.shared.is_asleep.swap(false, Ordering::SeqCst) {
            self.guard.unpark();
        }
    }
}

/// The guard's thread.
pub(crate) struct Guard {
    watched: Watched,
    thread: JoinHandle<()>,
}

impl Guard {
    /// Starts the guard. Returns `None` if threads could not leave the class again.
    pub fn start(queues: usize) -> io::Result<Option<Guard>> {
        if !shoal_host::may_return() {
            tracing::debug!(
                "queue threads stay in the normal scheduling class: leaving the idle one takes CAP_SYS_NICE"
            );
            return Ok(None);
        }
        let queues = (0..queues).map(|_| Queue::default()).collect();
        let shared = Arc::new(Shared { queues, is_asleep: AtomicBool::new(false), has_ended: AtomicBool::new(false) });
        let seen = shared.clone();
        let thread = std::thread::Builder::new().name("guard".into()).spawn(move || watch(&seen))?;
        Ok(Some(Guard { watched: Watched { shared, guard: thread.thread().clone() }, thread }))
    }

    pub fn watched(&self) -> Watched {
        self.watched.clone()
    }

    pub fn stop(self) {
        self.watched.shared.has_ended.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        // A panic in the thread has been reported.
        let _ = self.thread.join();
    }
}

/// Whether some processor is idle.
struct IdleTime {
    /// When the idle time was last read, and its value then.
    seen: (Duration, Duration),
    has_idle: bool,
}

impl IdleTime {
    fn new() -> IdleTime {
        IdleTime { seen: (Duration::ZERO, shoal_host::idle_time().unwrap_or_default()), has_idle: true }
    }

    fn is_there(&mut self, at: Duration) -> bool {
        let passed = at - self.seen.0;
        if passed >= IDLE_WINDOW
            && let Some(time) = shoal_host::idle_time()
        {
            let share = time.saturating_sub(self.seen.1).as_secs_f64() / passed.as_secs_f64();
            let bound = if self.has_idle { IDLE_TIME_MIN } else { IDLE_TIME };
            self.has_idle = share >= bound.as_secs_f64() / IDLE_WINDOW.as_secs_f64();
            self.seen = (at, time);
        }
        self.has_idle
    }
}

fn watch(shared: &Shared) {
    let (began, mut idle_time) = (Instant::now(), IdleTime::new());
    let mut policies: Vec<_> = shared.queues.iter().map(|_| Policy::new()).collect();
    while !shared.has_ended.load(Ordering::SeqCst) {
        shared.is_asleep.store(true, Ordering::SeqCst);
        let at = began.elapsed();
        let has_idle = idle_time.is_there(at);
        for (number, (queue, policy)) in shared.queues.iter().zip(&mut policies).enumerate() {
            look(number, queue, policy, (at, has_idle));
        }
        if policies.iter().all(Policy::is_at_rest) {
            std::thread::park();
            continue;
        }
        shared.is_asleep.store(false, Ordering::SeqCst);
        let is_idle = policies.iter().any(|policy| policy.class == Class::Idle);
        std::thread::sleep(if is_idle { CLOSE } else { WINDOW });
    }
}

fn look(number: usize, queue: &Queue, policy: &mut Policy, (at, has_idle): (Duration, bool)) {
    let requests = queue.requests.load(Ordering::SeqCst);
    let is_at_rest = policy.is_at_rest();
    if is_at_rest && requests == policy.last.requests {
        return;
    }
    let mut thread = queue.thread.lock();
    let Some(scheduled) = &*thread else { return };
    let seen = scheduled.look();
    let before = policy.class;
    let outcome = seen.and_then(|seen| {
        let sight = Sight { at, thread: seen, requests, has_idle };
        if is_at_rest {
            policy.begin(sight);
        }
        let class = policy.next(sight);
        if class != before { scheduled.set_class(class) } else { Ok(()) }
    });
    match outcome {
        Ok(()) if policy.class != before => {
            tracing::trace!("queue {number}: class {:?}, again after {:?}", policy.class, policy.back_off);
        }
        Ok(()) => {}
        // The thread has ended with its connection, or a permission was withdrawn.
        Err(error) => {
            tracing::debug!("queue {number} is not watched any more: {error}");
            queue.is_watched.store(false, Ordering::Relaxed);
            *thread = None;
            *policy = Policy::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread as the kernel would show it over time.
    struct Thread {
        policy: Policy,
        now: Sight,
        changes: Vec<(Duration, Class)>,
    }

    impl Thread {
        fn new() -> Thread {
            let mut policy = Policy::new();
            policy.begin(Sight::default());
            Thread { policy, now: Sight { has_idle: true, ..Sight::default() }, changes: Vec::new() }
        }

        /// Lets `time` pass with `requests` a millisecond. Each request takes one turn, after a
        /// wait of `waits`.
        fn passes(&mut self, time: Duration, requests: u64, waits: Duration) {
            let end = self.now.at + time;
            while self.now.at < end {
                let step = if self.policy.class == Class::Idle { CLOSE } else { WINDOW };
                let more = requests * step.as_millis() as u64;
                self.now.at += step;
                self.now.requests += more;
                self.now.thread.turns += more;
                self.now.thread.waited_ns += more * waits.as_nanos() as u64;
                self.look();
            }
        }

        /// Lets the thread wait without a turn while it is in the idle class. In the normal class
        /// it gets one turn a millisecond.
        fn starves(&mut self, time: Duration) {
            let end = self.now.at + time;
            while self.now.at < end {
                let is_idle = self.policy.class == Class::Idle;
                let step = if is_idle { CLOSE } else { WINDOW };
                let more = if is_idle { 0 } else { step.as_millis() as u64 };
                self.now.at += step;
                self.now.requests += more;
                self.now.thread.turns += more;
                self.now.thread.is_runnable = true;
                self.look();
            }
        }

        fn look(&mut self) {
            let before = self.policy.class;
            let class = self.policy.next(self.now);
            if class != before {
                self.changes.push((self.now.at, class));
            }
        }
    }

    const SHORT: Duration = Duration::from_micros(5);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn many_requests_bring_a_thread_into_the_idle_class_and_few_leave_it_alone() {
        let mut thread = Thread::new();
        thread.passes(SECOND, 0, SHORT);
        assert!(thread.changes.is_empty() && thread.policy.is_at_rest());
        thread.policy.begin(thread.now);
        thread.passes(SECOND, 20, SHORT);
        assert_eq!(thread.changes, [(SECOND + WINDOW, Class::Idle)]);
        // It goes back when requests become few, without a penalty.
        thread.passes(SECOND, 0, SHORT);
        assert_eq!(thread.changes[1..], [(2 * SECOND + WINDOW, Class::Normal)]);
        assert!(thread.policy.is_at_rest() && thread.policy.not_before.is_zero());
    }

    #[test]
    fn a_thread_that_gets_no_turn_is_freed_at_the_second_look_and_tried_again_ever_more_rarely() {
        let mut thread = Thread::new();
        thread.passes(SECOND, 20, SHORT);
        assert_eq!(thread.policy.class, Class::Idle);
        thread.starves(100 * SECOND);
        let (began, tried): (Vec<(Duration, Class)>, Vec<_>) =
            thread.changes[1..].iter().partition(|(_, class)| *class == Class::Normal);
        assert!(began[0].0 - SECOND <= 2 * CLOSE, "{began:?}");
        for (&(from, _), &(to, _)) in tried.iter().zip(&began[1..]) {
            assert!(to - from <= 2 * CLOSE, "{from:?} to {to:?}");
        }
        assert!((8..16).contains(&tried.len()), "{tried:?}");
        let waits: Vec<_> = began.iter().zip(&tried).map(|(from, to)| to.0 - from.0).collect();
        assert!(waits.is_sorted() && waits.last().unwrap() <= &(BACK_OFF_MAX + WINDOW), "{waits:?}");
    }

    #[test]
    fn a_short_wait_now_and_then_costs_the_class_for_a_moment_only() {
        let mut thread = Thread::new();
        // Another program runs for 4 ms at odd times.
        for millis in [60, 70, 300, 250].into_iter().cycle().take(400) {
            thread.passes(Duration::from_millis(millis), 20, SHORT);
            thread.starves(2 * CLOSE);
            thread.now.thread.is_runnable = false;
        }
        let mut in_class = Duration::ZERO;
        for pair in thread.changes.chunks_exact(2) {
            assert_eq!((pair[0].1, pair[1].1), (Class::Idle, Class::Normal));
            in_class += pair[1].0 - pair[0].0;
        }
        assert!(in_class > thread.now.at * 2 / 3, "{in_class:?} of {:?}", thread.now.at);
    }

    #[test]
    fn a_thread_that_runs_all_the_time_is_not_stuck() {
        let mut thread = Thread::new();
        thread.passes(SECOND, 20, SHORT);
        for _ in 0..5 {
            // A turn of 8 ms, in which it takes no request.
            for _ in 0..4 {
                thread.now.at += CLOSE;
                thread.now.thread.is_runnable = true;
                thread.now.thread.ran_ns += CLOSE.as_nanos() as u64;
                thread.look();
            }
            thread.passes(WINDOW, 20, SHORT);
        }
        assert_eq!(thread.policy.class, Class::Idle);
        assert_eq!(thread.changes.len(), 1, "{:?}", thread.changes);
    }

    #[test]
    fn turns_that_are_long_in_coming_keep_a_thread_in_the_normal_class() {
        let mut thread = Thread::new();
        thread.passes(10 * SECOND, 20, 2 * WAIT_MAX);
        assert!(thread.changes.is_empty());
        thread.passes(SECOND, 20, SHORT);
        assert_eq!(thread.policy.class, Class::Idle);
        thread.passes(WINDOW, 20, 2 * WAIT_MAX);
        assert_eq!(thread.policy.class, Class::Normal);
        // A failure soon after the last one counts double. A failure after a while counts as the
        // first.
        for (time, back_off) in [(2 * WINDOW, 2), (3 * WINDOW, 4), (20 * WINDOW, 1)] {
            thread.passes(time, 20, SHORT);
            assert_eq!(thread.policy.class, Class::Idle);
            thread.passes(WINDOW, 20, 2 * WAIT_MAX);
            assert_eq!((thread.policy.class, thread.policy.back_off), (Class::Normal, back_off * BACK_OFF_MIN));
        }
    }

    #[test]
    fn where_no_processor_is_idle_all_stay_in_the_normal_class() {
        let mut thread = Thread::new();
        thread.now.has_idle = false;
        thread.passes(SECOND, 20, SHORT);
        assert!(thread.changes.is_empty());
        thread.now.has_idle = true;
        thread.passes(WINDOW, 20, SHORT);
        assert_eq!(thread.policy.class, Class::Idle);
        thread.now.has_idle = false;
        thread.passes(WINDOW, 20, SHORT);
        assert_eq!(thread.policy.class, Class::Normal);
        assert!(thread.policy.not_before.is_zero(), "it did not fail");
    }

    #[test]
    fn the_guard_moves_a_thread_with_requests_and_sleeps_without_them() {
        let Some(guard) = Guard::start(2).unwrap() else { return };
        let watched = guard.watched();
        let (sender, receiver) = std::sync::mpsc::channel();
        let queue = std::thread::spawn({
            let watched = watched.clone();
            move || {
                watched.enter(1);
                sender.send(()).unwrap();
                let began = Instant::now();
                while watched.shared.queues[1].thread.lock().as_ref().is_some_and(is_normal) {
                    watched.took(1);
                    std::thread::sleep(Duration::from_micros(200));
                    assert!(began.elapsed() < Duration::from_secs(20), "it was never moved");
                }
                while !watched.shared.queues[1].thread.lock().as_ref().is_some_and(is_normal) {
                    std::thread::sleep(Duration::from_millis(1));
                    assert!(began.elapsed() < Duration::from_secs(20), "it was not moved back");
                }
            }
        });
        receiver.recv().unwrap();
        queue.join().unwrap();
        let began = Instant::now();
        while !watched.shared.is_asleep.load(Ordering::SeqCst)
            || guard.watched.shared.queues[1].is_watched.load(Ordering::Relaxed)
        {
            watched.took(1);
            std::thread::sleep(Duration::from_millis(5));
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "a thread that ended is watched, or the guard does not sleep"
            );
        }
        guard.stop();
    }

    fn is_normal(thread: &Scheduled) -> bool {
        thread.class().unwrap() == Class::Normal
    }
}
