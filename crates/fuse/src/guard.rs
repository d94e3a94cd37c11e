//! The scheduling class of the threads that serve requests, and the guard that ensures that no program
//! starves because of it.
//!
//! When a queue's thread answers a program on its processor, the kernel looks for an idle processor
//! to wake the program on. It finds another one, because the answering thread keeps this one busy.
//! The next request lands there, and each request costs waking an idle processor. A thread of the
//! idle class does not make its processor look busy: program and thread stay together, and a
//! request takes a half to a third of the time. The price is that such a thread gets no time while
//! other threads want its processor.
//!
//! Each of io_uring's queues has its processor. Any thread may get any request of `/dev/fuse`. While one program makes
//! them ([`Follower`]), one thread serves it alone (`gate`), in the idle class and bound to the processor on which the
//! program ran last. Otherwise, and if that thread is kept from its work, all threads read the device from anywhere.
//!
//! So threads are in the idle class while many requests come and some processor is idle. One more
//! thread, the guard, checks them every 2 ms. A thread that was runnable all the time but did not
//! run, or whose turns take long to come, goes back to the normal class at once, for a time that
//! doubles with each failure that follows soon. If no processor is idle, the normal class is as
//! fast. Without requests all threads are in the normal class, and the guard sleeps.
//! Rules: [`Policy`] is a pure function of what was seen and when. Only the guard changes classes and
//! processors: a thread that did so by itself could lose its processor with the guard's lock in hand.
//! The class is not used if a thread could not leave it again, nor on threads for which somebody
//! chose another class.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_host::{Class, Scheduled, Seen};

use crate::counts::Counts;
use crate::follower::{Clients, Follower};
use crate::gate::Gate;
use crate::lane::is_readable;

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

/// A wait for a request that takes so long shows that the client is on another processor, or busy with something else.
const WAIT_APART: Duration = Duration::from_micros(10);
/// Time between two looks for a client that seems to have left: after it had, and at most.
const LOOK_AGAIN_US: u64 = 100;
const LOOK_AGAIN_US_MAX: u64 = CLOSE.as_micros() as u64;

/// Observation of a thread at a moment, with the requests that it had taken by then.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    at: Duration,
    thread: Seen,
    requests: u64,
    /// Requests that count for the class: those of all threads, where one may serve for all.
    load: u64,
    /// A request waits that only this thread takes, as far as that can be seen.
    is_awaited: bool,
    /// Time that its client has run, perhaps on this thread's processor (ns).
    client_ran_ns: u64,
    /// Some processor is idle now and then, and there is a program to follow where threads do that.
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
        // A client that computes keeps the thread from running, and does not need it. A request that waits for it does.
        let has_client_run = sight.client_ran_ns - last.client_ran_ns >= RUN_MIN.as_nanos() as u64;
        let keeps_waiting = last.is_awaited && sight.is_awaited && last.requests == sight.requests;
        let is_stuck = is_stuck && !has_client_run || keeps_waiting;
        if is_stuck && self.class == Class::Idle {
            return self.fail(sight);
        }
        if sight.at - self.window.at < WINDOW {
            return self.class;
        }
        let window = std::mem::replace(&mut self.window, sight);
        let requests = sight.load - window.load;
        self.quiet_windows = if requests == 0 { self.quiet_windows + 1 } else { 0 };
        let turns = (sight.thread.turns - window.thread.turns).max(1);
        let waited_ns = sight.thread.waited_ns - window.thread.waited_ns;
        let waited_ns = waited_ns.saturating_sub(sight.client_ran_ns - window.client_ran_ns);
        let waits_long = waited_ns / turns > WAIT_MAX.as_nanos() as u64;
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

/// A queue, or the first of the threads that read `/dev/fuse`, as the guard knows it.
#[derive(Default)]
struct Queue {
    requests: AtomicU64,
    /// The queue's thread may change its class.
    is_watched: AtomicBool,
    thread: Mutex<Option<Scheduled>>,
}

/// State shared by the threads that read `/dev/fuse`.
struct Following {
    gate: Gate,
    clients: Clients,
    counts: Vec<Arc<Counts>>,
    device: Arc<OwnedFd>,
    /// The first thread asks for a look at its client, and how long it waits for the next one.
    look_now: AtomicBool,
    look_again_us: AtomicU64,
}

impl Following {
    fn new(device: Arc<OwnedFd>, counts: Vec<Arc<Counts>>) -> Following {
        let (gate, clients, look_now) = (Gate::default(), Clients::default(), AtomicBool::new(false));
        Following { gate, clients, counts, device, look_now, look_again_us: AtomicU64::new(LOOK_AGAIN_US) }
    }

    /// Returns the processor to be on, if there is a program to follow.
    fn look(&self, follower: &mut Follower, at: Duration) -> Option<usize> {
        follower.look(&self.clients, self.counts.iter().map(|counts| counts.slow()).sum(), at)
    }

    /// Lets the thread go after a client that has left its processor.
    fn go_after(&self, thread: &mut Scheduled, follower: &mut Follower, at: Duration) {
        let Some(cpu) = self.look(follower, at) else { return };
        let again = match thread.bound_to() {
            Some(bound) if bound != cpu => {
                // If it may not go there, the next look of the guard frees it.
                let _ = thread.bind(cpu);
                LOOK_AGAIN_US
            }
            _ => LOOK_AGAIN_US_MAX.min(2 * self.look_again_us.load(Ordering::Relaxed)),
        };
        self.look_again_us.store(again, Ordering::Relaxed);
    }

    /// Returns whether a request waits that only the first thread takes.
    fn is_awaited(&self) -> bool {
        self.gate.is_closed() && is_readable(&self.device)
    }
}

struct Shared {
    queues: Vec<Queue>,
    /// There are no queues: a thread follows the program that it serves.
    following: Option<Following>,
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
        if queue.is_watched.load(Ordering::Relaxed) {
            // The order matters. The guard announces its sleep before it reads the count, so one of the
            // two notices the other.
            queue.requests.fetch_add(1, Ordering::SeqCst);
            self.wake_guard();
        }
    }

    fn wake_guard(&self) {
        if self.shared.is_asleep.load(Ordering::SeqCst) && self.shared.is_asleep.swap(false, Ordering::SeqCst) {
            self.guard.unpark();
        }
    }
}

/// A thread that reads `/dev/fuse`, and its place among them.
pub(crate) struct Reader {
    watched: Watched,
    is_first: bool,
    /// When it began to wait for a request, and when it last looked for its client.
    began: Cell<Instant>,
    looked: Cell<Instant>,
}

impl Reader {
    fn following(&self) -> &Following {
        self.watched.shared.following.as_ref().expect("the guard was started for threads of the device")
    }

    /// Makes the calling thread this one.
    pub fn enter(&self) {
        if self.is_first {
            self.watched.enter(0);
        }
    }

    /// Called before each read of the device. Waits while another thread serves alone.
    pub fn begin(&self) {
        match self.is_first {
            true => self.began.set(Instant::now()),
            false => self.following().gate.pass(),
        }
    }

    /// Records a request of this client ([`Clients::took_from`]).
    pub fn took_from(&self, client: u32) {
        let first = &self.watched.shared.queues[0];
        self.following().clients.took_from(client);
        if self.is_first {
            self.watched.took(0);
            self.go_after();
        } else if first.is_watched.load(Ordering::Relaxed) {
            self.watched.wake_guard();
        }
    }

    /// Has the guard look where the client is, if it seems to have left this thread's processor. As long as the two share
    /// it, the client has made its next request before this thread goes on, and no wait for a request takes long.
    fn go_after(&self) {
        let (now, following) = (Instant::now(), self.following());
        let again = Duration::from_micros(following.look_again_us.load(Ordering::Relaxed));
        if now - self.began.get() >= WAIT_APART && now - self.looked.get() >= again && following.gate.is_closed() {
            self.looked.set(now);
            following.look_now.store(true, Ordering::SeqCst);
            self.watched.guard.unpark();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.is_first {
            self.following().gate.open_for_ever();
        }
    }
}

/// The guard's thread.
pub(crate) struct Guard {
    watched: Watched,
    /// Set until the guard is dropped.
    thread: Option<JoinHandle<()>>,
}

impl Drop for Guard {
    /// Ends the thread, which may have the device open: without its last descriptor the connection is dead.
    fn drop(&mut self) {
        self.watched.shared.has_ended.store(true, Ordering::SeqCst);
        self.watched.guard.unpark();
        // A panic in the thread has been reported.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Guard {
    /// Starts the guard of so many queues. Returns `None` if threads could not leave the class again.
    pub fn of_queues(queues: usize) -> io::Result<Option<Guard>> {
        Guard::start(queues, None)
    }

    /// Starts the guard of the threads that read `/dev/fuse`, and makes their places. `counts`: those of each thread.
    pub fn of_readers(device: Arc<OwnedFd>, counts: Vec<Arc<Counts>>) -> io::Result<(Option<Guard>, Vec<Reader>)> {
        let count = counts.len();
        let guard = Guard::start(1, Some(Following::new(device, counts)))?;
        let now = Instant::now();
        let reader = |guard: &Guard, number| Reader {
            watched: guard.watched(),
            is_first: number == 0,
            began: Cell::new(now),
            looked: Cell::new(now),
        };
        let readers = guard.iter().flat_map(|guard| (0..count).map(|number| reader(guard, number))).collect();
        Ok((guard, readers))
    }

    fn start(queues: usize, following: Option<Following>) -> io::Result<Option<Guard>> {
        if !shoal_host::may_return() {
            tracing::debug!("threads stay in the normal scheduling class: leaving the idle one takes CAP_SYS_NICE");
            return Ok(None);
        }
        let queues = (0..queues).map(|_| Queue::default()).collect();
        let [is_asleep, has_ended] = [const { AtomicBool::new(false) }; 2];
        let shared = Arc::new(Shared { queues, following, is_asleep, has_ended });
        let seen = shared.clone();
        let thread = std::thread::Builder::new().name("guard".into()).spawn(move || watch(&seen))?;
        Ok(Some(Guard { watched: Watched { shared, guard: thread.thread().clone() }, thread: Some(thread) }))
    }

    pub fn watched(&self) -> Watched {
        self.watched.clone()
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
    let mut follower = Follower::default();
    let mut policies: Vec<_> = shared.queues.iter().map(|_| Policy::new()).collect();
    while !shared.has_ended.load(Ordering::SeqCst) {
        shared.is_asleep.store(true, Ordering::SeqCst);
        let at = began.elapsed();
        let has_idle = idle_time.is_there(at);
        let seen = match &shared.following {
            None => Around { at, has_idle, following: None, cpu: None, client_ran_ns: 0 },
            Some(following) => {
                let cpu = following.look(&mut follower, at);
                let (has_idle, client_ran_ns) = (has_idle && cpu.is_some(), follower.client_ran_ns());
                Around { at, has_idle, following: Some(following), cpu, client_ran_ns }
            }
        };
        for (number, (queue, policy)) in shared.queues.iter().zip(&mut policies).enumerate() {
            look(number, queue, policy, seen);
        }
        if policies.iter().all(Policy::is_at_rest) {
            std::thread::park();
            continue;
        }
        shared.is_asleep.store(false, Ordering::SeqCst);
        let is_idle = policies.iter().any(|policy| policy.class == Class::Idle);
        let until = began.elapsed() + if is_idle { CLOSE } else { WINDOW };
        while let left = until.saturating_sub(began.elapsed())
            && !left.is_zero()
            && !shared.has_ended.load(Ordering::SeqCst)
        {
            std::thread::park_timeout(left);
            if let Some(following) = &shared.following
                && following.look_now.swap(false, Ordering::SeqCst)
                && let Some(thread) = &mut *shared.queues[0].thread.lock()
            {
                following.go_after(thread, &mut follower, began.elapsed());
            }
        }
    }
}

/// Observations of the guard that belong to no single thread.
#[derive(Clone, Copy)]
struct Around<'a> {
    at: Duration,
    has_idle: bool,
    /// If the thread follows a program, and the processor to be on.
    following: Option<&'a Following>,
    cpu: Option<usize>,
    client_ran_ns: u64,
}

fn look(number: usize, queue: &Queue, policy: &mut Policy, around: Around<'_>) {
    let Around { at, has_idle, following, cpu, client_ran_ns } = around;
    let requests = queue.requests.load(Ordering::SeqCst);
    let load = following.map_or(requests, |following| following.clients.requests());
    let is_at_rest = policy.is_at_rest();
    if is_at_rest && load == policy.last.load {
        return;
    }
    let mut thread = queue.thread.lock();
    let Some(scheduled) = &mut *thread else { return };
    let seen = scheduled.look();
    let before = policy.class;
    let outcome = seen.and_then(|seen| {
        let is_awaited = following.is_some_and(Following::is_awaited);
        let sight = Sight { at, thread: seen, requests, load, is_awaited, client_ran_ns, has_idle };
        if is_at_rest {
            policy.begin(sight);
        }
        let mut class = policy.next(sight);
        if class == Class::Idle
            && let Some(cpu) = cpu
            && !scheduled.bind(cpu)?
        {
            class = policy.fail(sight);
        }
        if class == Class::Normal {
            scheduled.unbind()?;
        }
        if class != before { scheduled.set_class(class) } else { Ok(()) }
    });
    if let Some(Following { gate, .. }) = following {
        match outcome.is_ok() && policy.class == Class::Idle {
            true => gate.close(),
            false => gate.open(),
        }
    }
    match outcome {
        Ok(()) if policy.class != before => {
            tracing::trace!("queue {number}: class {:?}, again after {:?}", policy.class, policy.back_off);
        }
        Ok(()) => {}
        // The thread has ended with its connection, or a permission was withdrawn.
        Err(error) => {
            tracing::debug!("queue {number} is not watched any more: {error}");
            queue.is_watched.store(false, Ordering::Relaxed);
            let _ = scheduled.unbind();
            *thread = None;
            *policy = Policy::new();
        }
    }
}

#[cfg(test)]
mod tests;
