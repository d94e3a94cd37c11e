//! The threads that give the engine time for its background work.
//!
//! One calls `Fs::tick` about ten times a second: commits by age, deferred frees. Another writes checkpoints when they
//! are due, which takes as long as it takes and must not hold up the commits. A third one compacts the region while nothing else
//! goes on. An error is logged when it first
//! appears and not again until the work went well: the engine poisons itself where it must, and says so to callers.
//! Left out: any policy.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use shoal_fs::Fs;

/// Between two ticks, and between two looks whether a checkpoint is due.
const PERIOD: Duration = Duration::from_millis(100);

pub(crate) struct Ticker {
    threads: Vec<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Ticker {
    /// A store that cannot be written to has no background work.
    pub fn start(fs: &Arc<Fs>) -> io::Result<Ticker> {
        if fs.region().is_read_only() {
            return Ok(Ticker { threads: Vec::new() });
        }
        let (ticking, checkpointing) = (fs.clone(), fs.clone());
        let tick = every("ticker", PERIOD, move || ticking.tick().map_err(|e| e.to_string()))?;
        let checkpoint = every("checkpoint", PERIOD, move || match checkpointing.checkpoint_due() {
            true => checkpointing.checkpoint().map_err(|e| format!("checkpoint: {e}")),
            false => Ok(()),
        })?;
        let compacting = fs.clone();
        let compact =
            every("compaction", PERIOD, move || compacting.compact_tick().map_err(|e| format!("compaction: {e}")))?;
        Ok(Ticker { threads: vec![tick, checkpoint, compact] })
    }

    /// Returns when the work under way, if any, is over.
    pub fn stop(self) {
        for (stop, thread) in self.threads {
            drop(stop);
            // A panic in the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Calls `work` until the sender is dropped.
fn every(
    name: &str,
    period: Duration,
    mut work: impl FnMut() -> Result<(), String> + Send + 'static,
) -> io::Result<(mpsc::Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let mut failing = false;
        while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            let outcome = work();
            if let (Err(error), false) = (&outcome, failing) {
                tracing::error!("background work failed: {error}");
            }
            failing = outcome.is_err();
        }
    })?;
    Ok((stop, thread))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_ticker_ticks_also_after_an_error_until_it_is_stopped() {
        let count = Arc::new(AtomicU32::new(0));
        let seen = count.clone();
        let ticking = every("test", Duration::from_millis(1), move || match seen.fetch_add(1, Ordering::Relaxed) {
            0 => Err("first".into()),
            _ => Ok(()),
        });
        let ticker = Ticker { threads: vec![ticking.unwrap()] };
        let begin = std::time::Instant::now();
        while count.load(Ordering::Relaxed) < 3 {
            assert!(begin.elapsed() < Duration::from_secs(10), "the ticker stands still");
            std::thread::yield_now();
        }
        ticker.stop();
        let stopped_at = count.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(count.load(Ordering::Relaxed), stopped_at);
    }
}
