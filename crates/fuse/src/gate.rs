//! Which threads read `/dev/fuse`: all of them, or the first one alone.
//!
//! A request wakes a thread that waits for one, on whatever processor. While one program makes all requests, one thread
//! serves them as fast, and where the guard wants it: the gate is closed, and the others wait behind it. A thread that
//! already waits for a request takes one more before it meets the gate.
//! Rules: the first thread never waits here. Once it has ended, the gate stays open. Left out: when to close it
//! (`guard`).

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::{Condvar, Mutex};

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const OPEN_FOR_EVER: u8 = 2;

#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    lock: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    /// Waits until the gate is open.
    pub fn pass(&self) {
        if !self.is_closed() {
            return;
        }
        let mut lock = self.lock.lock();
        while self.is_closed() {
            self.opened.wait(&mut lock);
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == CLOSED
    }

    pub fn close(&self) {
        // Another state stays as it is.
        let _ = self.state.compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub fn open(&self) {
        if self.state.compare_exchange(CLOSED, OPEN, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.wake();
        }
    }

    pub fn open_for_ever(&self) {
        self.state.store(OPEN_FOR_EVER, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        // A thread that saw the gate closed waits by now.
        drop(self.lock.lock());
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;

    #[test]
    fn threads_pass_while_it_is_open_and_after_its_end() {
        let (gate, passed) = (Arc::new(Gate::default()), Arc::new(AtomicU64::new(0)));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (gate, passed) = (gate.clone(), passed.clone());
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        gate.pass();
                        passed.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let wait_for = |condition: &dyn Fn() -> bool| {
            while !condition() {
                std::thread::sleep(Duration::from_micros(50));
            }
        };
        for _ in 0..100 {
            gate.close();
            std::thread::sleep(Duration::from_micros(200));
            let before = passed.load(Ordering::SeqCst);
            gate.open();
            wait_for(&|| passed.load(Ordering::SeqCst) > before || threads.iter().all(|thread| thread.is_finished()));
        }
        gate.close();
        gate.open_for_ever();
        gate.close();
        assert!(!gate.is_closed());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(passed.load(Ordering::SeqCst), 60_000);
    }
}
