//! Decides whether a device may be overwritten.
//!
//! Rules: a device in use on this machine is never overwritten. A device that holds something is
//! overwritten only if the user gave `--force`.
//! Left out: directories of stores, and donors of a network RAM disk, which belong to the disk they name.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use shoal_format::vlog::BLOCK;
use shoal_media::BlockDevice;

use crate::failure::{During, Failure, Outcome};
use crate::uuid::uuid_text;

/// Bytes checked at the start. The marks of all known contents lie there.
const START_BYTES: u64 = 1 << 20;

/// Returns whether there is a block device at the path.
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Refuses a block device that is mounted or part of something else. Nothing else is refused.
pub fn refuse_if_in_use(path: &Path) -> Outcome<()> {
    if is_block_device(path) {
        let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
        let opened = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(path);
        opened.map_err(|error| Failure::new(path.display(), error).remedy("unmount the device first"))?;
    }
    Ok(())
}

/// Refuses a device whose beginning is not all zeros, unless it may be overwritten anyway.
pub fn refuse_if_not_empty(device: &dyn BlockDevice, name: impl Display, force: bool) -> Outcome<()> {
    if force {
        return Ok(());
    }
    let mut start = vec![0; device.geometry().bytes.min(START_BYTES) as usize];
    shoal_media::read(device, 0, &mut start).during(&name)?;
    if start.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let what = match start.get(..BLOCK).and_then(shoal_vlog::identify) {
        Some(uuid) => format!("holds the virtual-log disk {}", uuid_text(&uuid)),
        None => "the device is not empty".into(),
    };
    Err(Failure::new(name, what).remedy("add --force to overwrite it"))
}
