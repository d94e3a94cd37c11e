//! The life of an open store: what runs from its opening to its end, whether it is mounted
//! ([`crate::Mounted`]) or embedded in a program ([`crate::Volume`]).
//!
//! | what | from | to |
//! |---|---|---|
//! | write-back caches of the bulk devices | before the engine is opened | after the store is shut down |
//! | the user's note in the directory | the opening | a clean end |
//! | clocks (`shoal_life`) | the opening | after the mount's own threads |
//! | changes by the control socket (`answers`) | [`Life::answer`] | before the store is shut down |
//! | reports by it | [`Life::answer`] | after the store is shut down |
//! | devices that are leaving, scrubs | [`Life::work`] | before the store is shut down |
//!
//! Left out: doors ([`crate::Mounted`], [`crate::Volume`]).

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{Fs, Options};
use shoal_host::{Bell, Ticker};
use shoal_life::Clocks;
use tracing::{error, warn};

use crate::answers::{self, Shown};
use crate::bulks::Bulks;
use crate::control::Control;
use crate::options::StoreOptions;
use crate::scrub;
use crate::store::{Opened, Store};

/// The work of opening a store for use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovered {
    /// The store was unmounted cleanly, so there was nothing to recover.
    pub clean: bool,
    pub power_lost: bool,
    /// Bulk devices found in another place than before the crash. Their hosts may have lost writes
    /// that no flush had covered.
    #[serde(default)]
    pub bulk_moved: Vec<u32>,
    pub records: u64,
    pub log_bytes: u64,
    pub open_ms: f64,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = if self.power_lost { "a power loss" } else { "a crash" };
        let bytes = human(self.log_bytes);
        write!(f, "recovered after {after}: {} records ({bytes}) replayed in {:.0} ms", self.records, self.open_ms)?;
        self.bulk_moved
            .iter()
            .try_for_each(|number| write!(f, "; bulk device {number} is in another place than before"))
    }
}

/// An open store with all that runs beside its user.
pub(crate) struct Life {
    pub store: Store,
    pub fs: Arc<Fs>,
    pub bulks: Arc<Bulks>,
    pub recovered: Recovered,
    pub survives_power_loss: bool,
    /// Wakes the log's clock.
    pub log: Bell,
    clocks: Option<Clocks>,
    /// Scrubs in idle time.
    scrubber: Option<Ticker>,
    control: Option<Control>,
    is_over: bool,
}

impl Store {
    /// Opens the store, and starts what a user of it relies on at once. `engine` is made from
    /// `options`.
    pub(crate) fn begin(self, engine: Options, options: &StoreOptions) -> Outcome<Life> {
        let begin = Instant::now();
        let read_only = engine.read_only;
        let Opened { fs, recovery, devices, survives_power_loss } = self.open_with(engine, Some(&options.cache()?))?;
        let recovered = Recovered {
            clean: recovery.clean,
            power_lost: recovery.power_lost,
            bulk_moved: fs.devices().states().iter().filter(|state| state.moved).map(|state| state.number).collect(),
            records: recovery.records,
            log_bytes: recovery.bytes,
            open_ms: begin.elapsed().as_secs_f64() * 1e3,
        };
        let fs = Arc::new(fs);
        let bulks = Arc::new(Bulks::new(fs.clone(), &self.directory, &self.description, devices));
        if !read_only {
            self.write_pid()?;
        }
        let mut life = Life {
            store: self,
            fs,
            bulks,
            recovered,
            survives_power_loss,
            log: Bell::default(),
            clocks: None,
            scrubber: None,
            control: None,
            is_over: false,
        };
        match Clocks::start(&life.fs) {
            Ok((clocks, log)) => (life.clocks, life.log) = (Some(clocks), log),
            Err(error) => {
                // Leave the store clean.
                let _ = life.end();
                return Err(error).during("threads of the store");
            }
        }
        Ok(life)
    }
}

impl Life {
    pub fn is_read_only(&self) -> bool {
        self.fs.region().is_read_only()
    }

    /// Starts what works on a store of its own accord: emptying devices that are leaving, and scrubs.
    pub fn work(&mut self, options: &StoreOptions) -> Outcome<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.bulks.take_up()?;
        if let Some(every) = options.scrub_every {
            self.scrubber = Some(scrub::start(self.fs.clone(), self.store.directory.clone(), every)?);
        }
        Ok(())
    }

    /// Answers on the control socket. `shown`: where the store is mounted.
    pub fn answer(&mut self, shown: Option<Shown>) -> Outcome<()> {
        self.control = answers::start(self, shown)?;
        Ok(())
    }

    /// Ends everything and leaves the store clean. Called after the mount's own threads have ended.
    pub fn end(&mut self) -> Outcome<()> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        self.control.iter().for_each(Control::refuse_changes);
        let ended = self.shut_down();
        self.control.take().into_iter().for_each(Control::stop);
        ended
    }

    fn shut_down(&mut self) -> Outcome<()> {
        self.clocks.take().into_iter().for_each(Clocks::stop);
        self.scrubber.iter().for_each(Ticker::stop);
        self.bulks.stop();
        let name = format!("store {}", self.store.directory.display());
        let ended = self.fs.shutdown();
        let is_clean = ended.is_ok() && !self.is_read_only();
        let undelivered = if is_clean { self.bulks.undelivered() } else { Vec::new() };
        undelivered.iter().for_each(|writes| if writes.is_lost() { error!("{writes}") } else { warn!("{writes}") });
        if let Some(lost) = undelivered.iter().find(|writes| writes.is_lost()) {
            // The process's note stays, as after a crash: the next mount treats writes not known to
            // be durable as lost.
            self.bulks.close(false);
            return Err(Failure::new(name, lost.to_string())
                .remedy("mount it again; files that lost writes have zeros or older contents in their place"));
        }
        self.bulks.close(is_clean);
        if is_clean {
            self.store.remove_pid();
        }
        ended.map_err(|error| Failure::new(name, format!("shutting the store down: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_says_after_what_and_how_much() {
        let recovered =
            Recovered { clean: false, power_lost: true, bulk_moved: vec![], records: 3, log_bytes: 2048, open_ms: 1.6 };
        assert_eq!(recovered.to_string(), "recovered after a power loss: 3 records (2 KiB) replayed in 2 ms");
        let moved = Recovered { power_lost: false, bulk_moved: vec![1], ..recovered }.to_string();
        assert!(
            moved.starts_with("recovered after a crash")
                && moved.ends_with("; bulk device 1 is in another place than before")
        );
    }
}
