//! A thread that repeats the same work periodically, and whenever its bell is rung, until it is
//! stopped.
//!
//! Rules: the work first runs one period after the start, and never twice at the same time. A ring
//! before the end is still answered; one call answers all rings before it. Stopping waits for the
//! work under way, which can ask whether it should end soon. A thread that cannot be started is an
//! error of the start, never a ticker that does not tick.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Orders {
    stop: bool,
    rung: bool,
}

#[derive(Default)]
struct Shared {
    orders: Mutex<Orders>,
    changed: Condvar,
}

/// Tells a ticker's work whether the ticker is to end.
pub struct Stopping(Arc<Shared>);

impl Stopping {
    pub fn is_stopped(&self) -> bool {
        self.0.orders.lock().stop
    }

    /// Requests another run at once, because there is more work.
    pub fn again(&self) {
        self.0.orders.lock().rung = true;
    }

    /// Waits for this period, for a ring, or until the end; true at the end. Also for pauses within
    /// work of many small steps.
    pub fn wait(&self, period: Duration) -> bool {
        let mut orders = self.0.orders.lock();
        if !orders.stop && !orders.rung {
            self.0.changed.wait_for(&mut orders, period);
        }
        !std::mem::take(&mut orders.rung) && orders.stop
    }
}

/// Wakes a ticker's thread before its time. A default bell belongs to no ticker and does nothing.
#[derive(Clone, Default)]
pub struct Bell(Arc<Shared>);

impl Bell {
    pub fn ring(&self) {
        self.0.orders.lock().rung = true;
        self.0.changed.notify_all();
    }
}

/// The lowest priority of ordinary threads (nice(1)).
const LEAST_PRIORITY: i32 = 19;

/// Runs its work periodically until it is stopped or dropped.
pub struct Ticker {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ticker {
    /// Runs `work` once a period in a thread of this name, until the work returns `Break` or the
    /// ticker is stopped.
    pub fn start(
        name: &str,
        period: Duration,
        mut work: impl FnMut(&Stopping) -> ControlFlow<()> + Send + 'static,
    ) -> io::Result<Ticker> {
        let shared = Arc::new(Shared::default());
        let stopping = Stopping(shared.clone());
        let run = move || while !stopping.wait(period) && work(&stopping).is_continue() {};
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Ticker { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Starts a ticker whose thread yields the processor to all others.
    pub fn start_quiet(
        name: &str,
        period: Duration,
        mut work: impl FnMut(&Stopping) -> ControlFlow<()> + Send + 'static,
    ) -> io::Result<Ticker> {
        let mut has_begun = false;
        Ticker::start(name, period, move |stopping| {
            if !std::mem::replace(&mut has_begun, true) {
                // If this is refused, the work is done all the same.
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), LEAST_PRIORITY);
            }
            work(stopping)
        })
    }

    pub fn bell(&self) -> Bell {
        Bell(self.shared.clone())
    }

    /// Stops the ticker. Returns when the work under way, if any, is over.
    pub fn stop(&self) {
        self.shared.orders.lock().stop = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        // The work itself may drop the last owner of its ticker.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn quiet_work_has_the_lowest_priority() {
        let (told, found) = mpsc::channel();
        let ticker = Ticker::start_quiet("test", Duration::from_millis(1), move |_| {
            let own = rustix::process::getpriority_process(Some(rustix::thread::gettid()));
            told.send(own.unwrap()).unwrap();
            ControlFlow::Break(())
        });
        assert_eq!(found.recv().unwrap(), LEAST_PRIORITY);
        assert_ne!(rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap(), LEAST_PRIORITY);
        drop(ticker.unwrap());
    }

    #[test]
    fn a_ticker_ticks_until_it_is_stopped_and_not_after() {
        let (sender, ticks) = mpsc::channel();
        let ticker = Ticker::start("test", Duration::from_millis(1), move |_| {
            sender.send(()).unwrap();
            ControlFlow::Continue(())
        });
        let ticker = ticker.unwrap();
        (0..3).for_each(|_| ticks.recv_timeout(Duration::from_secs(10)).unwrap());
        ticker.stop();
        ticks.try_iter().for_each(drop);
        assert!(ticks.recv_timeout(Duration::from_millis(20)).is_err(), "its work is gone with the thread");
    }

    #[test]
    fn long_work_is_told_that_it_is_to_end() {
        let (sender, begun) = mpsc::channel();
        let ticker = Ticker::start("test", Duration::from_millis(1), move |stopping| {
            sender.send(()).unwrap();
            while !stopping.is_stopped() {
                std::thread::yield_now();
            }
            ControlFlow::Continue(())
        });
        begun.recv_timeout(Duration::from_secs(10)).unwrap();
        drop(ticker.unwrap());
        assert!(begun.recv().is_err());
    }

    #[test]
    fn work_that_breaks_off_ends_its_thread() {
        let (sender, ticks) = mpsc::channel();
        let ticker = Ticker::start("test", Duration::from_millis(1), move |_| {
            sender.send(()).unwrap();
            ControlFlow::Break(())
        });
        assert_eq!(ticks.iter().count(), 1);
        ticker.unwrap().stop();
    }

    #[test]
    fn a_ring_is_answered_at_once_and_also_before_the_end() {
        let (sender, ticks) = mpsc::channel();
        let ticker = Ticker::start("test", Duration::from_secs(3600), move |_| {
            sender.send(()).unwrap();
            ControlFlow::Continue(())
        });
        let ticker = ticker.unwrap();
        ticker.bell().ring();
        ticks.recv_timeout(Duration::from_secs(10)).unwrap();
        ticker.bell().ring();
        drop(ticker);
        assert_eq!(ticks.iter().count(), 1);
    }
}
