//! A thread that does the same work again and again, until it is stopped.
//!
//! Rules: the first run is one period after the start; the work is never under way twice; stopping waits for the work
//! under way, which can ask whether it is to end soon. A thread that cannot be started is an error of the start. Left
//! out: work that must be done at once when something happens.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// Tells the work whether its ticker is to end.
pub struct Stopping(Arc<Stop>);

impl Stopping {
    pub fn is_stopped(&self) -> bool {
        *self.0.stopped.lock()
    }

    /// Waits for `period`, or until the end; true at the end.
    fn wait(&self, period: Duration) -> bool {
        let mut stopped = self.0.stopped.lock();
        if !*stopped {
            self.0.changed.wait_for(&mut stopped, period);
        }
        *stopped
    }
}

/// Ticks until it is stopped or dropped.
pub struct Ticker {
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ticker {
    /// Does `work` once a period in a thread of this name, until the work itself breaks off or the ticker is stopped.
    pub fn start(
        name: &str,
        period: Duration,
        mut work: impl FnMut(&Stopping) -> ControlFlow<()> + Send + 'static,
    ) -> io::Result<Ticker> {
        let stop = Arc::new(Stop::default());
        let stopping = Stopping(stop.clone());
        let run = move || while !stopping.wait(period) && work(&stopping).is_continue() {};
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Ticker { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Returns when the work under way, if any, is over.
    pub fn stop(&self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
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
}
