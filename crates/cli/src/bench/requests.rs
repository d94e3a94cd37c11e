//! The kernel's requests to a mounted store during a measurement, by kind.
//!
//! The daemon counts; this module asks for its counts between measurements. Left out: FORGET and
//! STATFS, which the kernel sends at any time and which no operation waits for.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use shoal_devices::{During, Failure, Outcome};
use shoal_store::control::{self, Question};
use shoal_store::{Status, place};

const WHEN_IT_LIKES: [&str; 3] = ["FORGET", "BATCH_FORGET", "STATFS"];

/// Requests by name.
pub type Requests = BTreeMap<String, u64>;

pub struct Counter {
    store: PathBuf,
    last: Requests,
}

impl Counter {
    /// Creates a counter for the mount that contains `directory`.
    pub fn of(directory: &Path) -> Outcome<Counter> {
        let (place, _) = place::find_within(directory).map_err(|failure| {
            failure.remedy("`--requests` needs a mounted store: name a directory below its mount point")
        })?;
        let mut counter = Counter { store: place.store, last: Requests::new() };
        counter.since().during(directory.display())?;
        Ok(counter)
    }

    /// Returns the requests since the last call.
    pub fn since(&mut self) -> io::Result<Requests> {
        let now = self.counts().map_err(|failure| io::Error::other(failure.to_string()))?;
        let before = std::mem::replace(&mut self.last, now);
        let more = |(name, &count): (&String, &u64)| (name.clone(), count - before.get(name).unwrap_or(&0));
        Ok(self.last.iter().map(more).filter(|(_, count)| *count > 0).collect())
    }

    fn counts(&self) -> Outcome<Requests> {
        let answer = control::ask(&self.store, &Question::Status)?;
        let answer = answer.ok_or_else(|| Failure::new(self.store.display(), "is not mounted any more"))?;
        let status: Status = serde_json::from_value(answer).during("answer of the daemon")?;
        let counted = status.requests.unwrap_or_default().into_iter().map(|of| (of.name, of.count));
        Ok(counted.filter(|(name, _)| !WHEN_IT_LIKES.contains(&name.as_str())).collect())
    }
}
