//! The state that a serving process reports: of an exported device, or of a mounted store with its
//! bulk device and the kernel's requests.
//!
//! The report is passed as JSON over a control socket. A request is a round trip between a
//! program's system call and the daemon, which is most of the call's cost. Its times are the
//! daemon's share, from the arrival of the request to the answer.

use serde::{Deserialize, Serialize};
use shoal_devices::DeviceReport;

use crate::bulk_report::BulkReport;
use crate::cache::CacheReport;
use crate::read_only::ReadOnly;

/// A process's answer to `shoal status`.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// How the device is exported; for a served device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<ExportReport>,
    /// The mounted store whose large files the device holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The failure that made that store read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReadOnly>,
    /// The served device, or the store's first bulk device. `None` if the store has no bulk
    /// storage, or that device is missing.
    pub device: Option<DeviceReport>,
    /// Writes held back in front of the store's bulk devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheReport>,
    /// The store's further bulk devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_devices: Vec<DeviceReport>,
    /// All bulk devices of the store, as it uses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bulks: Vec<BulkReport>,
    /// The kernel's requests to a mount, the most frequent kind first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<RequestReport>>,
}

/// How a device is exported.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportReport {
    pub name: String,
    pub address: String,
    pub connections: usize,
    pub read_only: bool,
    pub pid: u32,
}

/// Requests of one kind since the mount was made.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    /// The name in the kernel's `linux/fuse.h`, without `FUSE_`.
    pub name: String,
    pub count: u64,
    pub total_ns: u64,
    /// Percentiles are accurate to about 12%.
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl From<shoal_fuse::RequestCount> for RequestReport {
    fn from(of: shoal_fuse::RequestCount) -> RequestReport {
        RequestReport {
            name: of.name.into(),
            count: of.count,
            total_ns: of.total_ns,
            p50_ns: of.p50_ns,
            p99_ns: of.p99_ns,
            max_ns: of.max_ns,
        }
    }
}
