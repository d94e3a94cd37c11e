//! Bulk storage by name, for large files, served devices and virtual-log disks.
//!
//! | module | owns |
//! |---|---|
//! | `kinds` | the table of kinds |
//! | `device_name` | a device's name, of any kind |
//! | `device` | the trait of open devices, and their report |
//! | `file`, `nbd`, `netram`, `vlog` | one kind each: its grammar, opening, making, reporting |
//! | `donor_link` | a connection to a donor of a network RAM disk |
//! | `lend` | the other end of a network RAM disk: areas of this machine's memory, by name |
//! | `allocation` | data and holes, as the NBD protocol tells them |
//! | `disk_lock` | a lock for each disk, independent of its description |
//! | `overwrite` | the decision whether a device may be overwritten |
//! | `failure`, `size`, `uuid` | words: errors of one sentence, sizes, uuids |
//!
//! A kind of bulk storage is one module with a [`Kind`], a [`Name`] and a [`Device`], and a row in
//! [`KINDS`]. No other code knows which kinds there are.
//!
//! ```
//! use shoal_devices::DeviceName;
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("disk");
//! std::fs::File::create(&path)?.set_len(1 << 20)?;
//! let name: DeviceName = format!("file:{}", path.display()).parse()?;
//! let device = name.open()?;
//! assert_eq!(device.block_device().geometry().bytes, 1 << 20);
//! assert_eq!(device.report().kind, "file");
//! device.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Errors name the object and the remedy ([`Failure`]). Opening never makes a disk: a lost disk
//! must not come back empty. Left out: stores (what they use a device for), the command line.

#![forbid(unsafe_code)]

mod allocation;
mod device;
mod device_name;
mod disk_lock;
mod donor_link;
mod failure;
mod file;
mod kinds;
pub mod lend;
mod nbd;
pub mod netram;
mod overwrite;
pub mod size;
mod uuid;
pub mod vlog;

use std::path::PathBuf;

pub use device::{Device, DeviceReport, DonorChange, Made};
pub use device_name::{DeviceName, Kind, Make, MakeOptions, Name};
pub use failure::{During, Failure, Outcome};
pub use file::file;
pub use kinds::{KINDS, about_forms, forms};
pub use overwrite::{is_block_device, refuse_if_in_use, refuse_if_not_empty};
pub use uuid::{new_uuid, parse_uuid, uuid_text};

pub use donor_link::PRESSURE;
pub use shoal_nbd::Witness;

/// Directory for the sockets and locks of processes that have no directory of their own.
pub fn run_directory() -> PathBuf {
    let user = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    user.map_or_else(|| "/run/shoal".into(), |path| PathBuf::from(path).join("shoal"))
}
