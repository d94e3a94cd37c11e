//! The threads that give the engine time for its background work.
//!
//! Each kind of work has a thread of its own, so that none is late because another is slow:
//! - `log-clock` calls `Upkeep::tick_log` about ten times a second (commits by age) and whenever it
//!   is rung. Only this thread may lead the log's group commit for long, since it has nothing else
//!   to do.
//! - `bulk-clock` calls `Upkeep::tick_bulk_device` (data of large files, deferred frees) for the
//!   bulk device that is usually the only one. It starts such a thread for each further device,
//!   `bulk-clock-N`, when it first sees the device.
//! - `checkpoint` writes checkpoints when they are due.
//! - `spilling` calls `Spilling::spill_tick`, which moves cold small files to bulk storage when
//!   memory fills, and other files back.
//! - `idle-work` calls `Compacting::compact_tick`, which empties sparse segments of the region, and
//!   `Cooling::pack_tick`, which packs cooled data. It works while the store is otherwise idle and,
//!   for a share of the time, beside other work.
//! - `forecast` calls `Upkeep::forecast_tick` every ten seconds and logs when a tier will be full
//!   within a day.
//!
//! An error is logged when it first appears, and not again until the work has succeeded in between. The failure that
//! makes the store read-only is logged once, by the first thread that sees it. Left out: any policy.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shoal_fs::{Error, Fs, Outlook, Outlooks};
use shoal_host::{Bell, Stopping};

/// Time between two ticks, and between two checks whether a checkpoint is due.
const PERIOD: Duration = Duration::from_millis(100);
/// Time between two forecasts.
const FORECAST_PERIOD: Duration = Duration::from_secs(10);
const NO_ROOM: &str = "checkpoint: no room in the file system that holds the store; free some: it is tried again";

pub struct Clocks {
    threads: Vec<shoal_host::Ticker>,
    further: Arc<FurtherClocks>,
}

/// The clocks of further bulk devices, by number. A clock that was started stays, since its device
/// may come back.
#[derive(Default)]
struct FurtherClocks(Mutex<BTreeMap<u32, shoal_host::Ticker>>);

impl FurtherClocks {
    fn start(&self, number: u32, fs: &Arc<Fs>, told: &Arc<AtomicBool>) -> Result<(), String> {
        let mut clocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(vacant) = clocks.entry(number) {
            let (fs, told) = (fs.clone(), told.clone());
            let clock = every(&format!("bulk-clock-{number}"), PERIOD, move || tick_device(&fs, &told, number));
            vacant.insert(clock.map_err(|error| format!("clock of bulk device {number}: {error}"))?);
        }
        Ok(())
    }
}

fn tick_device(fs: &Fs, told: &AtomicBool, number: u32) -> Result<(), String> {
    let outcome = fs.upkeep().tick_bulk_device(number).map_err(|error| error.to_string());
    // Once the store has failed, every error is a consequence.
    if tell_failure(fs, told) { Ok(()) } else { outcome }
}

impl Clocks {
    /// Starts the threads, unless the store is read-only and so has no background work. The bell
    /// wakes `log-clock`.
    pub fn start(fs: &Arc<Fs>) -> io::Result<(Clocks, Bell)> {
        if fs.region().is_read_only() {
            return Ok((Clocks { threads: Vec::new(), further: Arc::default() }, Bell::default()));
        }
        let told = Arc::new(AtomicBool::new(false));
        let reporting = |work: fn(&Fs) -> Result<(), String>| {
            let (fs, told) = (fs.clone(), told.clone());
            move || {
                let outcome = work(&fs);
                // Once the store has failed, every error is a consequence.
                if tell_failure(&fs, &told) { Ok(()) } else { outcome }
            }
        };
        let log = every("log-clock", PERIOD, reporting(|fs| fs.upkeep().tick_log().map_err(|e| e.to_string())))?;
        let further = Arc::new(FurtherClocks::default());
        let bulk = {
            let (fs, told, further) = (fs.clone(), told.clone(), further.clone());
            every("bulk-clock", PERIOD, move || {
                for number in fs.upkeep().bulk_numbers().into_iter().filter(|number| *number > 0) {
                    further.start(number, &fs, &told)?;
                }
                tick_device(&fs, &told, 0)
            })?
        };
        let checkpoint = reporting(|fs| match fs.upkeep().checkpoint_due() {
            true => fs.checkpoint().map_err(|e| match e {
                Error::NoSpace(_) => NO_ROOM.into(),
                e => format!("checkpoint: {e}"),
            }),
            // Waiting for the next attempt is not success.
            false if fs.upkeep().checkpoint_lacks_room() => Err(NO_ROOM.into()),
            false => {
                if fs.upkeep().rest().map_err(|e| format!("checkpoint of an idle store: {e}"))? {
                    shoal_host::shrink_heap();
                }
                Ok(())
            }
        });
        let checkpoint = every("checkpoint", PERIOD, checkpoint)?;
        let idle = reporting(|fs| {
            // Pack data first: that changes inodes, which `compact_tick` packs.
            fs.cooling().pack_tick().map_err(|e| format!("packing: {e}"))?;
            fs.compacting().compact_tick().map_err(|e| format!("compaction: {e}"))
        });
        let (mut idle, packing) = (logging(idle), fs.clone());
        let idle = shoal_host::Ticker::start_quiet("idle-work", PERIOD, move |stopping| {
            let flow = idle(stopping);
            if packing.cooling().packs_on() && !stopping.is_stopped() {
                stopping.again();
            }
            flow
        })?;
        // Spilling has a thread of its own: it waits for the bulk device, which packing must not.
        // Its error says why spilling has stopped.
        let spill = reporting(|fs| {
            fs.spilling().spill_tick().map_err(|e| format!("spilling to bulk storage: {e}; tried again later"))
        });
        let spill = shoal_host::Ticker::start_quiet("spilling", PERIOD, logging(spill))?;
        let watched = fs.clone();
        let forecast = every("forecast", FORECAST_PERIOD, move || {
            tell_outlooks(&watched.upkeep().forecast_tick());
            Ok(())
        })?;
        let bell = log.bell();
        Ok((Clocks { threads: vec![forecast, spill, idle, checkpoint, bulk, log], further }, bell))
    }

    /// Stops the threads. Returns when any work under way is over.
    pub fn stop(self) {
        self.threads.iter().for_each(shoal_host::Ticker::stop);
        // The thread that starts further clocks has ended, so no more are started now.
        let clocks = std::mem::take(&mut *self.further.0.lock().unwrap_or_else(PoisonError::into_inner));
        clocks.values().for_each(shoal_host::Ticker::stop);
    }
}

fn tell_outlooks(outlooks: &Outlooks) {
    for (tier, outlook) in [("memory", outlooks.memory), ("bulk storage", outlooks.bulk)] {
        let Some(outlook) = outlook else { continue };
        tracing::warn!("{}", sentence(tier, outlook));
    }
}

/// Says what is going to happen, and what to do about it.
fn sentence(tier: &str, outlook: Outlook) -> String {
    let hours = outlook.within.as_secs() / 3600;
    let about = if hours < 2 { format!("{} minutes", outlook.within.as_secs() / 60) } else { format!("{hours} hours") };
    match outlook.percent {
        100 => format!("{tier} full in about {about} at this rate; remove files, or enlarge it (`shoal resize`)"),
        percent => format!(
            "{tier} {percent}% full in about {about} at this rate; small files that are not used spill to bulk storage from then on"
        ),
    }
}

/// Logs once why the store is read-only. Returns true if it has failed.
fn tell_failure(fs: &Fs, told: &AtomicBool) -> bool {
    let Some(failure) = fs.region().failure() else { return false };
    if !told.swap(true, Ordering::Relaxed) {
        tracing::error!("{failure}; {}", failure.consequence());
    }
    true
}

/// Starts a ticker that logs the first error of a series, and its end.
fn every(
    name: &str,
    period: Duration,
    work: impl FnMut() -> Result<(), String> + Send + 'static,
) -> io::Result<shoal_host::Ticker> {
    shoal_host::Ticker::start(name, period, logging(work))
}

/// Wraps work so that it logs when it begins to fail, and when it succeeds again.
fn logging(mut work: impl FnMut() -> Result<(), String> + Send) -> impl FnMut(&Stopping) -> ControlFlow<()> + Send {
    let mut failing = false;
    move |_: &Stopping| {
        let outcome = work();
        if let (Err(error), false) = (&outcome, failing) {
            tracing::error!("background work failed: {error}");
        }
        if failing && outcome.is_ok() {
            tracing::info!("background work goes on");
        }
        failing = outcome.is_err();
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_will_be_full_is_said_with_what_to_do() {
        let of = |seconds, percent| sentence("memory", Outlook { within: Duration::from_secs(seconds), percent });
        assert!(of(7300, 100).starts_with("memory full in about 2 hours at this rate; remove files"));
        assert!(of(7100, 85).starts_with("memory 85% full in about 118 minutes at this rate; small files"));
    }

    #[test]
    fn a_ticker_ticks_also_after_an_error_until_it_is_stopped() {
        let count = Arc::new(AtomicU32::new(0));
        let seen = count.clone();
        let ticking = every("test", Duration::from_millis(1), move || match seen.fetch_add(1, Ordering::Relaxed) {
            0 => Err("first".into()),
            _ => Ok(()),
        });
        let clocks = Clocks { threads: vec![ticking.unwrap()], further: Arc::default() };
        let begin = std::time::Instant::now();
        while count.load(Ordering::Relaxed) < 3 {
            assert!(begin.elapsed() < Duration::from_secs(10), "the ticker stands still");
            std::thread::yield_now();
        }
        clocks.stop();
        let stopped_at = count.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(count.load(Ordering::Relaxed), stopped_at);
    }
}
