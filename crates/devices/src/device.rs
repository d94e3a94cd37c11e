//! An open device, whatever its kind: its requests, how it is named, how it is, changes of it, its end.
//!
//! Rules: an error names the device and what to do. The user of a device closes it after the last request, which makes its
//! next opening quick; a device that was not closed is whole all the same.
//! A report travels as JSON over a control socket. Fields of all kinds stand in [`DeviceReport`] by name, the rest each kind
//! adds and prints itself.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shoal_media::BlockDevice;
use shoal_nbd::BlockStatus;

use crate::device_name::DeviceName;
use crate::failure::{Failure, Outcome};
use crate::size::human;

/// An open device.
pub trait Device: Send + Sync {
    /// How to open it again.
    fn name(&self) -> DeviceName;

    fn block_device(&self) -> Arc<dyn BlockDevice>;

    /// The same for a user that has a cache of its own in front: requests go past the host's, and run beside each other.
    fn uncached_device(&self) -> Arc<dyn BlockDevice> {
        self.block_device()
    }

    /// Fields of its kind alone, by name.
    fn own_report(&self) -> Map<String, Value> {
        Map::new()
    }

    /// After the last request: what makes the next opening quick is written down.
    fn close(&self) -> Outcome<()> {
        Ok(())
    }

    /// Problems of the device, a sentence each: since when they exist, and what the user has to do.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// The status context of its export, if it has one.
    fn redundancy(&self) -> Option<Arc<dyn BlockStatus>> {
        None
    }

    /// Changes who lends the device its memory; in words what was done.
    fn change(&self, _change: DonorChange, _donor: &str) -> Outcome<String> {
        Err(Failure::new(self.name().without_secrets(), "has no donors").remedy("name a server of a network RAM disk"))
    }
}

impl dyn Device {
    /// How the device is, for programs and for [`DeviceReport::text`].
    pub fn report(&self) -> DeviceReport {
        let name = self.name();
        DeviceReport {
            device: name.without_secrets().to_string(),
            kind: name.kind().name.into(),
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
    /// Says what [`DonorChange::Forget`] would cost; nothing is changed.
    Cost,
    /// No change of donors: all of the disk is read and compared. Names no donor.
    Scrub,
}

/// How an open device is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    pub device: String,
    /// `file`, `nbd`, `netram`, `vlog`.
    pub kind: String,
    pub size_bytes: u64,
    /// Fields of its kind alone.
    #[serde(flatten)]
    pub own: Map<String, Value>,
}

impl DeviceReport {
    /// The first line; `state` is said behind the size.
    pub(crate) fn head(&self, state: &str) -> String {
        let separator = if state.is_empty() { "" } else { ", " };
        format!("{}  {}{separator}{state}\n", self.device, human(self.size_bytes))
    }
}

/// A disk that was made: `Display` says for people what it is like.
pub trait Made: fmt::Display {
    /// The same for programs.
    fn to_json(&self) -> serde_json::Result<String>;
}
