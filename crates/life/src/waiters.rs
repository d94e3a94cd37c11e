//! Threads for requests that have to wait for the bulk device while they run: for a flush or a
//! read.
//!
//! Request threads are few, and a bulk device may take seconds for a flush. So a request that might flush (a write, a
//! change of size, an allocation, a copy, a rename over a file) is first tried in its request thread without the right
//! to flush. If that is refused, it is run again here, with the right. Requests beyond the number of these threads wait
//! in a queue, not in a request thread. Only a request for an inode whose lock is held here still waits in its request
//! thread.
//!
//! Work that takes long without a flush comes here at once (`requests`): copies of more than a
//! little, and changes of room that may have many pieces.
//!
//! A few request threads read the device themselves (`requests`). Further reads have threads of
//! their own, so that they do not wait behind flushes.
//!
//! There is no deadlock: a thread here holds the inode locks of one operation while it waits for
//! the device, as the operation's request thread did before. The device's flush needs no lock of
//! the engine and no thread of this crate. At the end, requests end first, then all queued work is
//! carried out, then the store is shut down.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::breaker::Breaker;

/// Number of threads that flush. They wait for the same flush, so more of them would cost memory
/// and save no time.
const THREADS: usize = 8;
/// Number of threads that read: as many as a disk can use.
const READERS: usize = 16;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    has_ended: bool,
}

/// One lock and one condition variable: a hand-over wakes one thread, which is most of its cost.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Accepts work. Every user has a clone of its own.
#[derive(Clone)]
pub struct Waiters(Arc<Shared>);

/// The threads behind [`Waiters`].
pub struct WaiterThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Waiters {
    /// Starts the threads for requests that wait for a flush.
    pub fn start(breaker: &Breaker) -> io::Result<(Waiters, WaiterThreads)> {
        Waiters::start_as("waiter", THREADS, breaker)
    }

    /// Starts the threads for reads of the device.
    pub fn start_readers(breaker: &Breaker) -> io::Result<(Waiters, WaiterThreads)> {
        Waiters::start_as("reader", READERS, breaker)
    }

    fn start_as(name: &str, count: usize, breaker: &Breaker) -> io::Result<(Waiters, WaiterThreads)> {
        let shared = Arc::new(Shared::default());
        let mut threads = WaiterThreads { shared: shared.clone(), threads: Vec::new() };
        for number in 0..count {
            let (serving, breaker) = (shared.clone(), breaker.clone());
            let builder = std::thread::Builder::new().name(format!("{name}-{number}"));
            match builder.spawn(move || breaker.watch(|| serve(&serving))) {
                Ok(thread) => threads.threads.push(thread),
                Err(error) => {
                    threads.stop();
                    return Err(error);
                }
            }
        }
        Ok((Waiters(shared), threads))
    }

    /// Runs `work` in one of the threads, or in the calling thread if they have ended.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.queue.lock();
        if queue.has_ended {
            drop(queue);
            return work();
        }
        queue.work.push_back(Box::new(work));
        drop(queue);
        self.0.changed.notify_one();
    }
}

impl WaiterThreads {
    /// Stops the threads. Returns when all earlier work is done.
    pub fn stop(self) {
        self.shared.queue.lock().has_ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads {
            // A panic in the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Carries out work until the end. Never returns an error; only a panic ends it otherwise.
fn serve(shared: &Shared) -> io::Result<()> {
    let mut queue = shared.queue.lock();
    loop {
        match queue.work.pop_front() {
            Some(work) => {
                drop(queue);
                work();
                queue = shared.queue.lock();
            }
            None if queue.has_ended => return Ok(()),
            None => shared.changed.wait(&mut queue),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    #[test]
    fn all_work_handed_in_before_the_end_is_done() {
        let (waiters, threads) = Waiters::start(&Breaker::default()).unwrap();
        let done = Arc::new(AtomicU32::new(0));
        for _ in 0..5 * THREADS {
            let done = done.clone();
            waiters.run(move || {
                std::thread::sleep(Duration::from_millis(2));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        threads.stop();
        assert_eq!(done.load(Ordering::Relaxed) as usize, 5 * THREADS);
        // The threads are gone, so the caller does the work.
        let (counted, here) = (done.clone(), std::thread::current().id());
        waiters.run(move || {
            assert_eq!(std::thread::current().id(), here);
            counted.store(0, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 0);
    }
}
