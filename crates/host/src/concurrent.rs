//! Many requests at once on a device that carries out each in `submit`.
//!
//! A server has one receiving thread for each connection. If a request takes a millisecond in that
//! thread, a connection gets a thousand a second, however many it has in flight. [`Concurrent`]
//! hands requests to threads of its own as soon as it sees that they take long. A device that
//! answers at once, from memory or because it queues requests itself, is called directly, since a
//! hand-over costs more than such a request. Rules: a request is submitted to the device after the
//! caller submitted it and before its completion runs, so a flush covers what it must. Dropping
//! waits for all accepted requests. Left out: order among requests in flight, which the contract
//! does not promise.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use shoal_media::{BlockDevice, BlockGeometry, Completion, Lent, Request, Result, WriteCache};

use crate::scheduling;

/// A request that takes longer is worth a hand-over (ns).
const SLOW_NS: u64 = 100_000;
/// A request that takes longer is worth a hand-over if the caller has many requests and nothing
/// else to do. A hand-over takes at most this long (ns).
const SHORT_NS: u64 = 20_000;
/// Usual depth of a connection's queue.
const THREADS_MAX: usize = 32;

/// A call of the device that may wait for a thread.
enum Work {
    Request(Request, Completion),
    WriteLent(u64, Lent, Completion),
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    /// Threads that wait for a request.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopped: bool,
}

struct Shared {
    device: Arc<dyn BlockDevice>,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Moving average of the duration of `submit` (ns).
    usual_ns: AtomicU64,
    slow_ns: u64,
}

impl Shared {
    fn carry_out(&self, work: Work) {
        let begun = Instant::now();
        match work {
            Work::Request(request, done) => self.device.submit(request, done),
            Work::WriteLent(at, lent, done) => self.device.submit_lent(at, lent, done),
        }
        let took = begun.elapsed().as_nanos() as u64;
        let usual = self.usual_ns.load(Ordering::Relaxed);
        // One of two concurrent updates may be lost, which an average tolerates.
        self.usual_ns.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(work) = queue.waiting.pop_front() {
                drop(queue);
                self.carry_out(work);
                queue = self.queue.lock();
            } else if queue.stopped {
                return;
            } else {
                queue.idle += 1;
                self.changed.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

/// A device with threads for its requests.
pub struct Concurrent {
    shared: Arc<Shared>,
}

impl Concurrent {
    pub fn new(device: Arc<dyn BlockDevice>) -> Concurrent {
        Concurrent::with(device, SLOW_NS)
    }

    /// Also hands over requests as short as a read of a fast disk.
    pub fn for_short_requests(device: Arc<dyn BlockDevice>) -> Concurrent {
        Concurrent::with(device, SHORT_NS)
    }

    fn with(device: Arc<dyn BlockDevice>, slow_ns: u64) -> Concurrent {
        let queue = Mutex::default();
        let shared = Shared { device, queue, changed: Condvar::new(), usual_ns: AtomicU64::new(0), slow_ns };
        Concurrent { shared: Arc::new(shared) }
    }
}

impl Concurrent {
    fn hand_over(&self, work: Work) {
        if self.shared.usual_ns.load(Ordering::Relaxed) < self.shared.slow_ns {
            return self.shared.carry_out(work);
        }
        let mut queue = self.shared.queue.lock();
        if queue.idle <= queue.waiting.len() && queue.threads.len() < THREADS_MAX {
            let shared = self.shared.clone();
            let work = move || {
                // The calling thread may be bound to one processor, and this thread inherits that.
                scheduling::like_the_process();
                shared.work();
            };
            let started = thread::Builder::new().name("request".into()).spawn(work);
            queue.threads.extend(started.ok());
        }
        if queue.threads.is_empty() {
            drop(queue);
            return self.shared.carry_out(work);
        }
        queue.waiting.push_back(work);
        drop(queue);
        self.shared.changed.notify_one();
    }
}

impl BlockDevice for Concurrent {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        self.shared.device.write_cache()
    }

    fn geometry(&self) -> BlockGeometry {
        self.shared.device.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.hand_over(Work::Request(request, done));
    }

    fn takes_lent(&self) -> bool {
        self.shared.device.takes_lent()
    }

    fn submit_lent(&self, at: u64, lent: Lent, done: Completion) {
        self.hand_over(Work::WriteLent(at, lent, done));
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.shared.device.read_into(at, out)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<()> {
        self.shared.device.reserve(at, len)
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.shared.device.write_from(at, bytes)
    }
}

impl Drop for Concurrent {
    fn drop(&mut self) {
        let threads = {
            let mut queue = self.shared.queue.lock();
            queue.stopped = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.changed.notify_all();
        for thread in threads {
            // The last request's completion may drop the device, so this may run in one of its
            // threads.
            if thread.thread().id() != thread::current().id() {
                // A panic in it has been reported.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Delays each request, and can serve many at once.
    struct Slow {
        delay: Duration,
        served: AtomicU64,
    }

    impl BlockDevice for Slow {
        fn write_cache(&self) -> Option<&dyn WriteCache> {
            None
        }

        fn geometry(&self) -> BlockGeometry {
            BlockGeometry { bytes: 1 << 20, block_bytes: 512, atomic_bytes: 512, survives_process: false }
        }

        fn submit(&self, request: Request, done: Completion) {
            thread::sleep(self.delay);
            self.served.fetch_add(1, Ordering::SeqCst);
            let Request::Read { buffer, .. } = request else { panic!("only reads are tested") };
            done(Ok(buffer));
        }
    }

    fn ask(device: &Concurrent, count: u64) -> mpsc::Receiver<()> {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..count {
            let sender = sender.clone();
            let request = Request::Read { at: 0, buffer: vec![0; 512] };
            device.submit(request, Box::new(move |_| sender.send(()).unwrap()));
        }
        receiver
    }

    #[test]
    fn requests_of_a_slow_device_are_carried_out_side_by_side() {
        let slow = Arc::new(Slow { delay: Duration::from_millis(5), served: AtomicU64::new(0) });
        let device = Concurrent::new(slow.clone());
        let begun = Instant::now();
        let answers = ask(&device, 400);
        assert_eq!(answers.iter().take(400).count(), 400);
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(400 * 5 / 4), "{took:?} for 400 requests of 5 ms");
        // Accepted requests are carried out even when the device is dropped.
        let answers = ask(&device, 100);
        drop(device);
        assert_eq!((answers.iter().count(), slow.served.load(Ordering::SeqCst)), (100, 500));
    }

    #[test]
    fn a_device_that_answers_at_once_is_asked_in_the_callers_thread() {
        let quick = Arc::new(Slow { delay: Duration::ZERO, served: AtomicU64::new(0) });
        let device = Concurrent::new(quick);
        assert_eq!(ask(&device, 1000).iter().take(1000).count(), 1000);
        assert!(device.shared.queue.lock().threads.len() <= THREADS_MAX);
    }
}
