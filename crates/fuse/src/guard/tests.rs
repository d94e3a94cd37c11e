//! The guard's rules over time, and the guard itself with threads.
//!
//! The rules see a thread as the kernel would show it. Left out: whether following a program is faster, which a
//! benchmark tells (`scripts/bench-trees`).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::follower::tests::own_id;

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
            self.now.load += more;
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
            self.now.load += more;
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
    let Some(guard) = Guard::of_queues(2).unwrap() else { return };
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
    drop(guard);
}

/// The thread that serves alone sees requests of its own.
#[test]
fn a_client_that_computes_does_not_free_the_thread_and_a_request_that_waits_does() {
    let mut thread = Thread::new();
    thread.now.is_awaited = false;
    thread.passes(Duration::from_millis(100), 5, Duration::ZERO);
    assert_eq!(thread.policy.class, Class::Idle);
    // The client keeps the processor: nothing moves, and the thread waits for its turn.
    let computes = |thread: &mut Thread, looks: u32| {
        for _ in 0..looks {
            thread.now.at += CLOSE;
            thread.now.thread.is_runnable = true;
            thread.now.thread.waited_ns += CLOSE.as_nanos() as u64;
            thread.now.client_ran_ns += CLOSE.as_nanos() as u64;
            thread.look();
        }
    };
    computes(&mut thread, 4);
    thread.passes(Duration::from_millis(40), 5, Duration::ZERO);
    assert_eq!(thread.policy.class, Class::Idle);
    // A request may come just before a look, again and again.
    for _ in 0..10 {
        thread.now.is_awaited = true;
        computes(&mut thread, 1);
        thread.now.is_awaited = false;
        thread.passes(CLOSE, 5, Duration::ZERO);
    }
    assert_eq!((thread.policy.class, thread.changes.len()), (Class::Idle, 1));
    // Another one's request waits from one look to the next.
    thread.now.is_awaited = true;
    computes(&mut thread, 2);
    assert_eq!(thread.policy.class, Class::Normal);
    thread.now.is_awaited = false;
    thread.passes(Duration::from_millis(100), 5, Duration::ZERO);
    assert_eq!(thread.policy.class, Class::Idle);
    // The thread has taken the request and gets no processor, and the client does not run either.
    thread.starves(3 * CLOSE);
    assert_eq!(thread.policy.class, Class::Normal);
}

/// Two threads read a socket, as they would the device, and one client writes a request and waits for its answer.
#[test]
fn one_thread_serves_one_client_alone_until_it_is_held_up() {
    let (device, kernel) = UnixStream::pair().unwrap();
    let device = Arc::new(OwnedFd::from(device));
    let (guard, readers) =
        Guard::of_readers(device.clone(), (0..2).map(|_| Arc::new(Counts::new())).collect()).unwrap();
    let Some(guard) = guard else { return };
    let shared = guard.watched().shared;
    let following = || shared.following.as_ref().unwrap();
    let (held_up, served) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicU64::new(0) }; 2]));
    let client = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = readers
        .into_iter()
        .enumerate()
        .map(|(number, reader)| {
            let (device, held_up, served, client) = (device.clone(), held_up.clone(), served.clone(), client.clone());
            std::thread::spawn(move || {
                reader.enter();
                loop {
                    reader.begin();
                    if rustix::io::read(&*device, &mut [0]).unwrap() == 0 {
                        return;
                    }
                    reader.took_from(client.load(Ordering::SeqCst) as u32);
                    served[number].fetch_add(1, Ordering::SeqCst);
                    while number == 0 && held_up.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    // At the end the client has gone.
                    let _ = rustix::io::write(&*device, &[0]);
                }
            })
        })
        .collect();
    client.store(own_id().into(), Ordering::SeqCst);
    let ask = || {
        (&kernel).write_all(&[1]).unwrap();
        (&kernel).read_exact(&mut [0]).unwrap();
    };
    let began = Instant::now();
    let in_time = |what: &str| assert!(began.elapsed() < Duration::from_secs(60), "{what}");
    let counts = || [0, 1].map(|number| served[number].load(Ordering::SeqCst));
    loop {
        ask();
        in_time("it never served alone");
        let first = shared.queues[0].thread.lock();
        let bound = first.as_ref().and_then(Scheduled::bound_to);
        if bound.is_some() && following().gate.is_closed() {
            break;
        }
    }
    // The other one took a request at most, if it waited for one.
    let before = counts();
    while counts()[0] < before[0] + 200 && following().gate.is_closed() {
        ask();
    }
    assert!(!following().gate.is_closed() || counts()[1] <= before[1] + 1, "{before:?} {:?}", counts());
    // While the first thread is held up with a request, the other one serves the next.
    held_up.store(true, Ordering::SeqCst);
    while counts()[1] < before[1] + 5 {
        (&kernel).write_all(&[1]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        in_time("the other one never served");
    }
    held_up.store(false, Ordering::SeqCst);
    kernel.shutdown(std::net::Shutdown::Both).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Nobody else has the device open at the end.
    drop((shared, guard));
    assert_eq!(Arc::strong_count(&device), 1);
}

fn is_normal(thread: &Scheduled) -> bool {
    thread.class().unwrap() == Class::Normal
}
