//! How what a process serves is: an exported device, or a mounted store with its bulk device and the kernel's requests.
//!
//! The report travels as JSON over a control socket. A request is a round trip between a program's system call and the daemon, and
//! most of what a system call costs; its times are the daemon's own share, from the moment it had the request to the moment it
//! had the answer.

use serde::{Deserialize, Serialize};
use shoal_devices::DeviceReport;

use crate::read_only::ReadOnly;

/// What is served, and how it is.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of a served device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<ExportReport>,
    /// The mounted store it holds the large files of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Why that store is read-only since something failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReadOnly>,
    /// `None`: the store has no bulk storage.
    pub device: Option<DeviceReport>,
    /// Of a mount: what the kernel has asked for, the most frequent first.
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
    /// As the kernel's `linux/fuse.h` calls it, without `FUSE_`.
    pub name: String,
    pub count: u64,
    pub total_ns: u64,
    /// Percentiles are right to about 12%.
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
