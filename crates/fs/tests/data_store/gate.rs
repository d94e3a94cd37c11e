//! Hooks in media calls: delays, and a gate in which an operation waits until another is done.
//!
//! The wait in a gate times out, because the other operation may have to wait for the one in the
//! gate. Timeouts are counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Store;
use crate::crash::number;
use crate::store::{Hook, Moment, Setup};
use shoal_format::superblock::MemoryKind;
use shoal_sim::Random;

/// Time that an operation waits in a media call for another one that may have to wait for it.
const PATIENCE: Duration = Duration::from_millis(400);
/// Time that a test waits for an event that must come.
pub const LONG: Duration = Duration::from_secs(60);

/// A place in the middle of an operation where it waits.
pub struct Gate {
    at: Mutex<Option<(Moment, u32)>>,
    entered: (Sender<()>, Mutex<Receiver<()>>),
    go: (Sender<()>, Mutex<Receiver<()>>),
    /// Number of waits in the gate that timed out.
    pub impatient: AtomicU64,
}

impl Gate {
    pub fn new() -> Arc<Gate> {
        let shared = |(sender, receiver)| (sender, Mutex::new(receiver));
        Arc::new(Gate {
            at: Mutex::new(None),
            entered: shared(channel()),
            go: shared(channel()),
            impatient: AtomicU64::new(0),
        })
    }

    /// Makes the `nth` call of this kind wait (0 is the next).
    pub fn arm(&self, moment: Moment, nth: u32) {
        *self.at.lock().unwrap() = Some((moment, nth));
    }

    fn pass(&self, moment: Moment) {
        {
            let mut at = self.at.lock().unwrap();
            match &mut *at {
                Some((awaited, nth)) if *awaited == moment && *nth > 0 => return *nth -= 1,
                Some((awaited, _)) if *awaited == moment => *at = None,
                _ => return,
            }
        }
        self.entered.0.send(()).unwrap();
        if self.go.1.lock().unwrap().recv_timeout(PATIENCE).is_err() {
            self.impatient.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until an operation is in the gate.
    pub fn wait(&self) {
        self.entered.1.lock().unwrap().recv_timeout(LONG).expect("nobody came to the gate");
    }

    /// Waits until an operation is in the gate. Returns false if none will come because it
    /// `is_over`.
    pub fn comes(&self, is_over: impl Fn() -> bool) -> bool {
        loop {
            // Ask first, so that an arrival before the end is still seen.
            let over = is_over();
            match self.entered.1.lock().unwrap().recv_timeout(Duration::from_millis(1)) {
                Ok(()) => return true,
                Err(_) if over => return false,
                Err(_) => {}
            }
        }
    }

    /// Lets the operation in the gate go on.
    pub fn open(&self) {
        self.go.0.send(()).unwrap();
    }
}

/// Returns a store whose media calls can be held up. `prepare` runs first, in another process.
pub fn gated(setup: Setup, prepare: impl FnOnce(&Store)) -> (Store, Arc<Gate>) {
    let first = Store::new(setup);
    prepare(&first);
    first.fs.sync().unwrap();
    let gate = Gate::new();
    let passed = gate.clone();
    let store = first.hooked(Arc::new(move |moment| passed.pass(moment)));
    (store, gate)
}

/// Runs `slow` until it waits at `moment`, then `beside`, then lets `slow` go on.
pub fn meet(gate: &Gate, moment: Moment, nth: u32, slow: impl FnOnce() + Send, beside: impl FnOnce()) {
    gate.arm(moment, nth);
    std::thread::scope(|scope| {
        let slow = scope.spawn(slow);
        gate.wait();
        beside();
        gate.open();
        slow.join().unwrap();
    });
}

/// Returns a hook that delays calls at these moments by up to `delay_us`, drawn by a generator with
/// `seed`.
pub fn delays(seed: u64, delay_us: u64, moments: &'static [Moment]) -> Hook {
    let calls = AtomicU64::new(seed);
    Arc::new(move |moment| {
        if moments.contains(&moment) && delay_us > 0 {
            let delay = Random::new(calls.fetch_add(1, Ordering::Relaxed)).below(delay_us);
            std::thread::sleep(Duration::from_micros(delay));
        }
    })
}

/// Runs `work` with `SHOAL_SEEDS` seeds from `SHOAL_FIRST` on, each on its kind of memory.
pub fn each_seed(seeds: u64, work: impl Fn(MemoryKind, u64)) {
    let first = number("SHOAL_FIRST").unwrap_or(0);
    for seed in first..first + number("SHOAL_SEEDS").unwrap_or(seeds) {
        let kinds = [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Logged, MemoryKind::Dax];
        work(kinds[(seed % 4) as usize], seed);
    }
}
