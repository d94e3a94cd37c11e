//! An open device of any kind: its requests, name, state, changes and end.
//!
//! Rules: an error names the device and the remedy. The user of a device closes it after the last
//! request, which makes its next opening quick. A device that was not closed is intact all the
//! same. A report travels as JSON over a control socket. [`DeviceReport`] has the fields common to
//! all kinds; each kind adds and prints its own.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shoal_media::BlockDevice;
use shoal_nbd::{BlockStatus, Witness};

use crate::device_name::DeviceName;
use crate::failure::{Failure, Outcome};
use crate::size::human;

/// An open device.
pub trait Device: Send + Sync {
    /// Returns the name with which the device is opened again.
    fn name(&self) -> DeviceName;

    fn block_device(&self) -> Arc<dyn BlockDevice>;

    /// Returns the device for a user that has a cache of its own in front. Requests bypass the
    /// host's cache and run concurrently.
    fn uncached_device(&self) -> Arc<dyn BlockDevice> {
        self.block_device()
    }

    /// Returns samples of data that the medium certainly has, also after the device was lost. They
    /// tell the medium from an older copy of itself. Empty if nothing is known.
    fn witnesses(&self) -> Vec<Witness> {
        Vec::new()
    }

    /// Adds the samples of an earlier connection to the same medium. A medium found on a later
    /// reconnection must have them, too. The caller checks the present medium.
    fn inherit(&self, _: Vec<Witness>) {}

    /// Returns the report fields that only this kind has, by name.
    fn own_report(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Writes down what makes the next opening quick. Called after the last request.
    fn close(&self) -> Outcome<()> {
        Ok(())
    }

    /// Returns the problems of the device, a sentence each: since when they exist, and what the
    /// user has to do.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the status contexts of the device's export.
    fn contexts(&self) -> Vec<Arc<dyn BlockStatus>> {
        vec![]
    }

    /// Changes which donors lend the device its memory. Returns in words what was done.
    fn change(&self, _change: DonorChange, _donor: &str) -> Outcome<String> {
        Err(Failure::new(self.name().without_secrets(), "has no donors").remedy("name a server of a network RAM disk"))
    }
}

impl dyn Device {
    /// Reports the state of the device, for programs and for [`DeviceReport::text`].
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
    /// Says what [`DonorChange::Forget`] would cost. Nothing is changed.
    Cost,
    /// Reads and compares the whole disk. No donors change, and no donor is named.
    Scrub,
    /// Moves units until the donors are evenly filled; ends that. No donor is named.
    Rebalance,
    StopRebalance,
    /// Makes the disk larger. Its new size takes the donor's place.
    Grow,
}

/// State of an open device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    pub device: String,
    /// `file`, `nbd`, `netram`, `vlog`.
    pub kind: String,
    pub size_bytes: u64,
    /// Fields that only this kind has.
    #[serde(flatten)]
    pub own: Map<String, Value>,
}

impl DeviceReport {
    /// Returns the first line, with `state` after the size.
    pub(crate) fn head(&self, state: &str) -> String {
        let separator = if state.is_empty() { "" } else { ", " };
        format!("{}  {}{separator}{state}\n", self.device, human(self.size_bytes))
    }
}

/// A disk that was made. `Display` describes it for people.
pub trait Made: fmt::Display {
    /// The description for programs.
    fn to_json(&self) -> serde_json::Result<String>;
}
