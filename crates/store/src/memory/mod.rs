//! The memory of a store: its kind, making and opening its media, and its promises.
//!
//! The properties of a kind are a row in `shoal_format::memory`; a module here makes and opens its media, and [`means`]
//! leads to that module. Everything else in this crate asks for properties, never for a kind. Rules: opening makes
//! nothing; the error for a missing part says how to bring it back. Left out: bulk storage (`media`).

mod battery;
pub(crate) mod choice;
mod dax;
mod logged;
pub(crate) mod means;

use std::path::Path;

use serde::{Deserialize, Serialize};
use shoal_devices::Outcome;
use shoal_format::memory::MemoryKind;

use crate::store::Store;
use choice::MemoryChoice;
use means::{Loss, Means, RegionMedia, RestingMedia};

/// What may be lost, by the kind of crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossBounds {
    /// The daemon is killed; the machine runs on.
    pub process_crash: String,
    pub power_loss: String,
    /// What may be lost although an fsync has returned.
    pub after_fsync: String,
}

impl LossBounds {
    /// `survives_power_loss` is false for `dax` memory whose file system refuses MAP_SYNC.
    pub fn of(kind: MemoryKind, survives_power_loss: bool) -> LossBounds {
        let Loss { power_loss, after_fsync } = (means(kind).loss)(survives_power_loss);
        LossBounds { process_crash: "nothing".into(), power_loss: power_loss.into(), after_fsync: after_fsync.into() }
    }
}

fn means(kind: MemoryKind) -> &'static Means {
    match kind {
        MemoryKind::Logged => &logged::MEANS,
        MemoryKind::Battery => &battery::MEANS,
        MemoryKind::Dax => &dax::MEANS,
    }
}

impl MemoryChoice {
    fn region_file(&self) -> &Path {
        self.path().map_or(Path::new(""), |path| path)
    }

    /// Makes the media of a new store in an empty directory; the region has `bytes`, all zeros.
    pub(crate) fn make_media(&self, directory: &Path, bytes: u64) -> Outcome<RegionMedia> {
        (means(self.kind()).make)(directory, self.region_file(), bytes)
    }
}

impl Store {
    /// Opens the region's media, to use them or, `read_only`, to look at them.
    pub(crate) fn open_region(&self, read_only: bool) -> Outcome<RegionMedia> {
        let memory = &self.description.memory;
        (means(memory.kind()).open)(self, memory.region_file(), read_only)
    }

    /// Opens the region's media for the checker.
    pub(crate) fn region_at_rest(&self) -> Outcome<RestingMedia> {
        let memory = &self.description.memory;
        (means(memory.kind()).rest)(self, memory.region_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_says_what_may_be_lost() {
        for kind in MemoryKind::all() {
            let bounds = LossBounds::of(kind, true);
            assert_eq!(bounds.process_crash, "nothing", "{kind:?}");
            assert!(bounds.after_fsync.starts_with("nothing"), "{kind:?}");
        }
        assert!(LossBounds::of(MemoryKind::Dax, false).power_loss.starts_with("everything"));
    }
}
