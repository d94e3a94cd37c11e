//! The syncer and the clocks over a real engine in memory, with devices whose flush takes long or fails.
//!
//! Request threads are modelled by four threads that take jobs from one queue, as request threads do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_fs::{Caller, Error, ROOT};
use shoal_sim::{Call, Fault, FaultPlan};

use super::*;
use crate::clocks::Clocks;
use crate::test_store::{Store, THRESHOLD, store};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0, hold: false };

impl Store {
    fn create(&self, name: &str, bytes: usize) -> Ino {
        let ino = self.fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o100_600, 0).unwrap().ino;
        self.fs.write(ino, 0, &vec![7; bytes]).unwrap();
        ino
    }

    /// Makes large files with data that no flush covers.
    fn large_files(&self, count: usize) -> Vec<Ino> {
        (0..count).map(|i| self.create(&format!("large{i}"), 4 * THRESHOLD as usize)).collect()
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Four request threads.
struct Requests {
    queue: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Requests {
    fn start() -> Requests {
        let (queue, jobs) = mpsc::channel::<Job>();
        let jobs = Arc::new(Mutex::new(jobs));
        let serve = |jobs: Arc<Mutex<Receiver<Job>>>| {
            move || {
                loop {
                    let job = jobs.lock().unwrap().recv();
                    let Ok(job) = job else { return };
                    job();
                }
            }
        };
        let threads = (0..4).map(|_| std::thread::spawn(serve(jobs.clone()))).collect();
        Requests { queue: Some(queue), threads }
    }

    /// Waits until a request that answers through `answer` is answered.
    fn ask<T: Send + 'static>(&self, request: impl FnOnce(Sender<T>) + Send + 'static) -> T {
        let (answer, answered) = mpsc::channel();
        self.queue.as_ref().expect("not stopped").send(Box::new(move || request(answer))).unwrap();
        answered.recv_timeout(Duration::from_secs(60)).expect("every request is answered")
    }

    fn fsync(&self, syncer: &Syncer, ino: Ino) -> Result<()> {
        let syncer = syncer.clone();
        self.ask(move |answer| syncer.fsync(ino, move |outcome| answer.send(outcome).unwrap()))
    }

    fn stop(mut self) {
        self.queue = None;
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn requests_that_need_no_flush_pass_fsyncs_of_large_files() {
    const FLUSH_MS: u64 = 400;
    let store = store(60_000);
    let (clocks, bell) = Clocks::start(&store.fs).unwrap();
    let (syncer, thread) = Syncer::start(&store.fs, bell, 4, &Breaker::default()).unwrap();
    let requests = Requests::start();
    let files = store.large_files(8);
    store.flush_ms.store(FLUSH_MS, Ordering::Relaxed);
    let over = AtomicBool::new(false);
    let (mut worst, mut asked) = (Duration::ZERO, 0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = files
            .iter()
            .map(|&ino| {
                let (store, syncer, requests) = (&store, &syncer, &requests);
                scope.spawn(move || {
                    for round in 0..4 {
                        store.fs.write(ino, round * 4096, &[round as u8; 4096]).unwrap();
                        requests.fsync(syncer, ino).unwrap();
                    }
                })
            })
            .collect();
        let (store, syncer, requests, over) = (&store, &syncer, &requests, &over);
        let other = scope.spawn(move || {
            let (mut worst, mut asked) = (Duration::ZERO, 0);
            while !over.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let fs = store.fs.clone();
                let name = format!("small{asked}");
                let ino = requests.ask(move |answer| {
                    let ino = fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o100_600, 0).unwrap().ino;
                    fs.write(ino, 0, &[1; 1000]).unwrap();
                    answer.send(ino).unwrap();
                });
                requests.fsync(syncer, ino).unwrap();
                let fs = store.fs.clone();
                let read = requests.ask(move |answer| answer.send(fs.read(ino, 0, &mut [0; 1000])).unwrap());
                assert_eq!(read, Ok(1000));
                worst = worst.max(begin.elapsed());
                asked += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            (worst, asked)
        });
        clients.into_iter().for_each(|client| client.join().unwrap());
        over.store(true, Ordering::Relaxed);
        (worst, asked) = other.join().unwrap();
    });
    println!("create, write, fsync and read of a small file: {worst:?} at most, {asked} times");
    // Each of them alone takes microseconds; the bound leaves room for a busy machine.
    assert!(worst < Duration::from_millis(FLUSH_MS / 2), "{worst:?}");
    assert!(asked > 10);
    requests.stop();
    thread.stop();
    drop(syncer);
    clocks.stop();
}

#[test]
fn one_request_thread_at_most_waits_for_a_flush() {
    const FLUSH_MS: u64 = 400;
    // With fewer threads no request thread waits.
    for (threads, waiting) in [(4, 1), (3, 0)] {
        let store = store(60_000);
        let (clocks, bell) = Clocks::start(&store.fs).unwrap();
        let (syncer, thread) = Syncer::start(&store.fs, bell, threads, &Breaker::default()).unwrap();
        let files = store.large_files(4);
        store.flush_ms.store(FLUSH_MS, Ordering::Relaxed);
        let (answer, answers) = mpsc::channel();
        let returned: Vec<_> = std::thread::scope(|scope| {
            let asking: Vec<_> = files
                .iter()
                .map(|&ino| {
                    let (syncer, answer) = (&syncer, answer.clone());
                    scope.spawn(move || {
                        let begin = Instant::now();
                        syncer.fsync(ino, move |outcome| answer.send((outcome, std::thread::current().id())).unwrap());
                        (begin.elapsed(), std::thread::current().id())
                    })
                })
                .collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let slow: Vec<_> = returned.iter().filter(|(time, _)| time.as_millis() as u64 >= FLUSH_MS / 2).collect();
        assert_eq!(slow.len(), waiting, "{returned:?}");
        let answered: Vec<_> = files
            .iter()
            .map(|_| answers.recv_timeout(Duration::from_secs(10)).expect("every fsync is answered"))
            .collect();
        assert!(answered.iter().all(|(outcome, _)| outcome.is_ok()), "{answered:?}");
        // The waiting thread gets its answer without the help of another thread.
        assert_eq!(answered.iter().filter(|(_, by)| slow.iter().any(|(_, slow)| slow == by)).count(), waiting);
        thread.stop();
        clocks.stop();
    }
}

#[test]
fn one_flush_serves_all_who_wait() {
    let store = store(60_000);
    let (clocks, bell) = Clocks::start(&store.fs).unwrap();
    let (syncer, thread) = Syncer::start(&store.fs, bell, 4, &Breaker::default()).unwrap();
    let files = store.large_files(16);
    store.flush_ms.store(100, Ordering::Relaxed);
    let before = store.flushes.load(Ordering::Relaxed);
    let (answer, answers) = mpsc::channel();
    for &ino in &files {
        let answer = answer.clone();
        syncer.fsync(ino, move |outcome| answer.send(outcome).unwrap());
    }
    // The stop is sent after them, so they are answered all the same.
    thread.stop();
    clocks.stop();
    let outcomes: Vec<_> = answers.try_iter().collect();
    assert_eq!(outcomes.len(), files.len());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let flushes = store.flushes.load(Ordering::Relaxed) - before;
    assert!(flushes <= 2, "{flushes} flushes for {} files", files.len());
    assert!(store.fs.region().durable_lsn() >= store.fs.region().last_lsn());
    // After the end the caller does the work.
    store.fs.write(files[0], 0, &[1; 4096]).unwrap();
    let answer = answer.clone();
    syncer.fsync(files[0], move |outcome| answer.send(outcome).unwrap());
    assert_eq!(answers.try_recv().unwrap(), Ok(()));
}

#[test]
fn fsyncs_of_small_files_without_end_do_not_hold_up_those_of_large_ones() {
    let store = store(60_000);
    let (clocks, bell) = Clocks::start(&store.fs).unwrap();
    let (syncer, thread) = Syncer::start(&store.fs, bell, 4, &Breaker::default()).unwrap();
    let requests = Requests::start();
    let large = store.large_files(1)[0];
    store.sync_ms.store(3, Ordering::Relaxed);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (store, syncer, requests, over) = (&store, &syncer, &requests, &over);
            scope.spawn(move || {
                let ino = store.create(&format!("small{client}"), 100);
                while !over.load(Ordering::Relaxed) {
                    store.fs.write(ino, 0, &[1; 100]).unwrap();
                    requests.fsync(syncer, ino).unwrap();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        let mut last = Ok(());
        for round in 0..20 {
            store.fs.write(large, round * 4096, &[1; 4096]).unwrap();
            let (answer, answered) = mpsc::channel();
            syncer.fsync(large, move |outcome| drop(answer.send(outcome)));
            last = answered.recv_timeout(Duration::from_secs(5)).map(Result::unwrap);
            if last.is_err() {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(last, Ok(()), "an fsync of a large file is not answered");
        println!("20 fsyncs of a large file beside four clients with small ones: {:?}", begin.elapsed());
    });
    requests.stop();
    thread.stop();
    clocks.stop();
}

#[test]
fn a_request_thread_leads_one_flush_of_the_log_however_many_come_behind_it() {
    const SYNC_MS: u64 = 40;
    let store = store(60_000);
    let (clocks, bell) = Clocks::start(&store.fs).unwrap();
    let (syncer, thread) = Syncer::start(&store.fs, bell, 4, &Breaker::default()).unwrap();
    store.sync_ms.store(SYNC_MS, Ordering::Relaxed);
    let end = Instant::now() + Duration::from_secs(2);
    let longest = std::thread::scope(|scope| {
        let client = |number: u64| {
            let (store, syncer) = (&store, &syncer);
            // Clients take turns, so that at the end of each flush one of them waits for the next.
            std::thread::sleep(Duration::from_millis(number * SYNC_MS / 2));
            let (mut longest, mut round) = (Duration::ZERO, 0);
            while Instant::now() < end {
                let ino = store.create(&format!("{number}.{round}"), 100);
                let (answer, answered) = mpsc::channel();
                let begin = Instant::now();
                syncer.fsync(ino, move |outcome| answer.send(outcome).unwrap());
                longest = longest.max(begin.elapsed());
                answered.recv_timeout(Duration::from_secs(60)).expect("answered").unwrap();
                std::thread::sleep(Duration::from_millis(SYNC_MS / 4));
                round += 1;
            }
            assert!(round > 4, "{round}");
            longest
        };
        let clients: Vec<_> = (0..6).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).max().unwrap()
    });
    println!("a thread was kept for {longest:?}");
    assert!(longest < Duration::from_millis(8 * SYNC_MS), "{longest:?}");
    thread.stop();
    drop(syncer);
    clocks.stop();
}

#[test]
fn a_slow_bulk_device_does_not_make_the_log_late() {
    const AGE_MS: u64 = 400;
    let store = store(AGE_MS);
    let (clocks, bell) = Clocks::start(&store.fs).unwrap();
    let large = store.large_files(1)[0];
    store.flush_ms.store(2000, Ordering::Relaxed);
    let begin = Instant::now();
    let mut worst = Duration::ZERO;
    let mut round = 0;
    while begin.elapsed() < Duration::from_millis(3500) {
        // The bulk device always has something to flush.
        store.fs.write(large, 0, &[round as u8; 4096]).unwrap();
        store.create(&format!("small{round}"), 1000);
        round += 1;
        let (lsn, written) = (store.fs.region().last_lsn(), Instant::now());
        while store.fs.region().durable_lsn() < lsn {
            assert!(written.elapsed() < Duration::from_secs(20), "the log is never synced");
            std::thread::sleep(Duration::from_millis(2));
        }
        worst = worst.max(written.elapsed());
    }
    println!("{round} files, durable after {worst:?} at most");
    assert!(worst < Duration::from_millis(AGE_MS + 500), "{worst:?}");
    drop(bell);
    clocks.stop();
}

#[test]
fn a_store_that_failed_answers_every_fsync_with_the_first_failure() {
    for (call, object) in [(Call::DiskFlush, "disk"), (Call::LogSync, "log")] {
        let store = store(60_000);
        let (clocks, bell) = Clocks::start(&store.fs).unwrap();
        let (syncer, thread) = Syncer::start(&store.fs, bell, 4, &Breaker::default()).unwrap();
        let files = store.large_files(4);
        let small = store.create("small", 100);
        store.flush_ms.store(50, Ordering::Relaxed);
        store.world.fail(FaultPlan { call, nth: 0, for_good: false, fault: Fault::Io });
        let (answer, answers) = mpsc::channel();
        for &ino in &files {
            let answer = answer.clone();
            syncer.fsync(ino, move |outcome| answer.send(outcome).unwrap());
        }
        for _ in &files {
            let outcome = answers.recv_timeout(Duration::from_secs(10)).expect("every fsync is answered");
            assert!(matches!(outcome, Err(Error::Io(_) | Error::Failed(_))), "{outcome:?}");
        }
        let failure = store.fs.region().failure().expect("the store has failed");
        assert!(failure.object.contains(object) && failure.cause.contains("os error 5"), "{failure}");
        assert!(failure.at_ns >= 1_700_000_000_000_000_000);
        let answer = answer.clone();
        syncer.fsync(small, move |outcome| answer.send(outcome).unwrap());
        let outcome = answers.recv_timeout(Duration::from_secs(10)).expect("also afterwards");
        assert_eq!(outcome, Err(Error::Failed(failure.clone())));
        assert_eq!(store.fs.write(small, 0, b"x"), Err(Error::Failed(failure)));
        thread.stop();
        clocks.stop();
    }
}

/// Returns the policy and the processors of the thread of this name in this process (proc(5)). A
/// new thread takes a moment to have its name.
fn scheduling_of(name: &str) -> Option<(String, String)> {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let read = |file| std::fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").trim_end() == name {
            let (stat, status) = (read("stat"), read("status"));
            let policy = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(38)).unwrap();
            let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap();
            return Some((policy.into(), cpus.trim().into()));
        }
    }
    None
}

#[test]
fn a_syncer_started_by_a_queue_of_io_uring_is_neither_idle_nor_bound_to_its_processor() {
    if !shoal_host::may_return() {
        // Without the privilege no thread is ever in the idle class.
        return;
    }
    let store = store(60_000);
    let (clocks, bell) = Clocks::start(&store.fs).unwrap();
    let (syncer, thread) = Syncer::start(&store.fs, bell, 4, &Breaker::default()).unwrap();
    let (queue, fs) = (syncer.clone(), store.fs.clone());
    let request = std::thread::Builder::new().name("queue-like".into());
    let of_the_queue = request.spawn(move || {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set((0..).find(|&cpu| allowed.is_set(cpu)).unwrap());
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        shoal_host::Scheduled::this_thread().unwrap().set_class(shoal_host::Class::Idle).unwrap();
        drop(queue.lanes.lane(&fs, 71).unwrap());
        scheduling_of("queue-like").unwrap()
    });
    let of_the_queue = of_the_queue.unwrap().join().unwrap();
    assert_eq!(of_the_queue.0, "5", "SCHED_IDLE");
    let begin = Instant::now();
    loop {
        let (expected, found) = (scheduling_of("syncer"), scheduling_of("syncer-71"));
        if found.is_some() && found == expected {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(10), "{found:?}, the queue had {of_the_queue:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(scheduling_of("syncer-71").unwrap().0, "0");
    thread.stop();
    clocks.stop();
}
