//! An open device, whatever its kind: its requests, its name, its state, changes of it, its end.
//!
//! Rules: an error names the device and the remedy. The user of a device closes it after the last request, which makes
//! its next opening quick; a device that was not closed is whole all the same. A report travels as JSON over a control
//! socket. [`DeviceReport`] has the fields that all kinds share; each kind adds and prints the rest itself.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shoal_media::BlockDevice;
use shoal_nbd::BlockStatus;

use crate::description::Description;
use crate::failure::{Failure, Outcome};
use crate::size::human;

/// An open device.
pub trait Device: Send + Sync {
    /// The description to open it again with.
    fn description(&self) -> Description;

    fn block_device(&self) -> Arc<dyn BlockDevice>;

    /// Fields that only devices of its kind report, by name.
    fn own_report(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Called after the last request; writes down what makes the next opening quick.
    fn close(&self) -> Outcome<()> {
        Ok(())
    }

    /// The status context of its export, if it has one.
    fn redundancy(&self) -> Option<Arc<dyn BlockStatus>> {
        None
    }

    /// Changes the donors of the device; returns in words what was done.
    fn change(&self, _change: DonorChange, _donor: &str) -> Outcome<String> {
        Err(Failure::new(self.description().without_secrets(), "has no donors")
            .remedy("name a server of a network RAM disk"))
    }
}

impl dyn Device {
    /// The state of the device, for programs and for [`DeviceReport::text`].
    pub fn report(&self) -> DeviceReport {
        let description = self.description();
        DeviceReport {
            device: description.without_secrets().to_string(),
            kind: description.kind().name.into(),
            size_bytes: self.block_device().geometry().bytes,
            own: self.own_report(),
        }
    }
}

/// A change of a network RAM disk's donors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DonorChange {
    Add,
    Drain,
    Lost,
    Forget,
}

/// The state of an open device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    pub device: String,
    /// `file`, `nbd`, `netram`, `vlog`.
    pub kind: String,
    pub size_bytes: u64,
    /// Fields that only its kind reports.
    #[serde(flatten)]
    pub own: Map<String, Value>,
}

impl DeviceReport {
    /// The first line; `state` follows the size.
    pub(crate) fn head(&self, state: &str) -> String {
        let separator = if state.is_empty() { "" } else { ", " };
        format!("{}  {}{separator}{state}\n", self.device, human(self.size_bytes))
    }
}

/// A disk that was made; `Display` describes it for people.
pub trait Made: fmt::Display {
    /// The same for programs.
    fn to_json(&self) -> serde_json::Result<String>;
}
