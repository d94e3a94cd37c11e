//! What people and programs are told of a bulk device.
//!
//! Owns: the report of one device, which `shoal bulk list`, `df` and `status` show. Left out:
//! changes of the devices (`bulks`), and the report of a store (`report`).

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shoal_devices::uuid_text;
use shoal_fs::{BulkState, UseState};

use crate::description::Description;

/// How far a bulk device can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportedState {
    #[serde(rename = "in use")]
    InUse,
    #[serde(rename = "leaving")]
    Leaving,
    #[serde(rename = "refuses writes")]
    RefusesWrites,
    #[serde(rename = "lost")]
    Lost,
}

impl ReportedState {
    fn of(state: &UseState) -> ReportedState {
        match state {
            UseState::Open => ReportedState::InUse,
            UseState::Leaving => ReportedState::Leaving,
            UseState::Closed { .. } => ReportedState::RefusesWrites,
            UseState::Lost { .. } => ReportedState::Lost,
        }
    }

    /// Returns true if the device takes no writes.
    pub(crate) fn is_away(self) -> bool {
        matches!(self, ReportedState::RefusesWrites | ReportedState::Lost)
    }
}

impl fmt::Display for ReportedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReportedState::InUse => "in use",
            ReportedState::Leaving => "leaving",
            ReportedState::RefusesWrites => "refuses writes",
            ReportedState::Lost => "lost",
        })
    }
}

/// A bulk device, for people and programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BulkReport {
    pub number: u32,
    pub device: String,
    pub uuid: String,
    pub state: ReportedState,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    /// Bytes in doubt since a flush failed: reading them is an error.
    pub suspect_bytes: u64,
    /// Checksums are kept of the data on it.
    #[serde(default)]
    pub checksums: bool,
    /// Places that were found damaged in this mount and not written since.
    #[serde(default)]
    pub damaged: u64,
    /// Why the device is lost, refuses writes or cannot be emptied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Bytes held back in front of the device, if it has a write-back cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
    /// Bytes moved off the device since it began to leave, in this mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_bytes: Option<u64>,
}

impl BulkReport {
    pub fn of(found: &BulkState, directory: &Path, description: &Description) -> BulkReport {
        let place = description.place_of(found.number);
        BulkReport {
            number: found.number,
            device: place.map_or_else(|| found.name.clone(), |place| place.shown(directory)),
            uuid: uuid_text(&found.uuid),
            state: ReportedState::of(&found.state),
            size_bytes: found.bytes,
            used_bytes: found.used,
            free_bytes: found.free,
            suspect_bytes: found.suspect,
            checksums: found.has_sums,
            damaged: found.damaged,
            cause: found.state.cause().map(str::to_string),
            held_bytes: None,
            moved_bytes: None,
        }
    }
}
