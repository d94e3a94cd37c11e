//! Threads for requests that have to wait for the bulk device in their middle: for a flush, or to be read.
//!
//! Request threads are few, and a bulk device may take seconds for a flush. So a request that might flush (a write, a
//! change of size, an allocation, a copy, a rename over a file) is first tried in its request thread without the right
//! to flush. If that is refused, it is run again here, with the right. Requests beyond the number of these threads wait
//! in a queue, not in a request thread. Only a request for an inode whose lock is held here still waits in its request
//! thread.
//!
//! Reads of the device beyond those that a few request threads make (`requests`) have threads of their own: they are not to wait behind
//! flushes.
//!
//! There is no deadlock: a thread here holds the inode locks of one operation while it waits for the device, as the
//! operation's request thread did before. The device's flush needs no lock of the engine and no thread of this crate.
//! At the end, requests end first, then all queued work is carried out, then the store is shut down.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Threads that flush. They wait for the same flush: more of them would cost memory and save no time.
const THREADS: usize = 8;
/// Threads that read: as many as a disk has use for.
const READERS: usize = 16;

type Work = Box<dyn FnOnce() + Send>;

/// Accepts work; every user has a clone of its own.
#[derive(Clone)]
pub(crate) struct Waiters(Sender<Option<Work>>);

/// The threads behind [`Waiters`].
pub(crate) struct WaiterThreads {
    queue: Sender<Option<Work>>,
    threads: Vec<JoinHandle<()>>,
}

impl Waiters {
    /// For requests that wait for a flush.
    pub fn start() -> io::Result<(Waiters, WaiterThreads)> {
        Waiters::start_as("waiter", THREADS)
    }

    /// For reads of the device.
    pub fn start_readers() -> io::Result<(Waiters, WaiterThreads)> {
        Waiters::start_as("reader", READERS)
    }

    fn start_as(name: &str, count: usize) -> io::Result<(Waiters, WaiterThreads)> {
        let (queue, work) = mpsc::channel();
        let work = Arc::new(Mutex::new(work));
        let mut threads = Vec::new();
        for number in 0..count {
            let work = work.clone();
            let builder = std::thread::Builder::new().name(format!("{name}-{number}"));
            threads.push(builder.spawn(move || serve(&work))?);
        }
        Ok((Waiters(queue.clone()), WaiterThreads { queue, threads }))
    }

    /// Runs `work` in one of the threads, or in the calling one if they have ended.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let Err(mpsc::SendError(Some(work))) = self.0.send(Some(Box::new(work))) {
            work();
        }
    }
}

impl WaiterThreads {
    /// Returns when everything handed in before is done.
    pub fn stop(self) {
        for _ in &self.threads {
            // One for each thread, behind all the work.
            let _ = self.queue.send(None);
        }
        for thread in self.threads {
            // A panic in the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn serve(queue: &Mutex<Receiver<Option<Work>>>) {
    loop {
        // Held while waiting for work, never while working.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(Some(work)) => work(),
            Ok(None) | Err(mpsc::RecvError) => return,
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
        let (waiters, threads) = Waiters::start().unwrap();
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
        // The threads are gone: the caller does the work.
        let (counted, here) = (done.clone(), std::thread::current().id());
        waiters.run(move || {
            assert_eq!(std::thread::current().id(), here);
            counted.store(0, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 0);
    }
}
