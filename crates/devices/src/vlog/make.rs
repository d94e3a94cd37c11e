//! Makes a virtual-log disk (`shoal format vlog:PATH`).
//!
//! Rules: a device that holds something is not overwritten without force; a device in use, never.
//! The disk is made before the description that names the device below it, since a description
//! without a disk would be in the way.

use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use shoal_format::vlog::BLOCK;
use shoal_host::FileDevice;
use shoal_media::BlockDevice;
use shoal_vlog::{FormatOptions, Placement, VirtualLog};

use super::{Below, KIND, in_use};
use crate::device::Made;
use crate::device_name::{DeviceName, MakeOptions};
use crate::failure::{During, Failure, Outcome};
use crate::overwrite;
use crate::size::human;
use crate::uuid::{new_uuid, uuid_text};

#[derive(Debug, Serialize)]
struct MadeVlog {
    device: String,
    over: String,
    uuid: String,
    size_bytes: u64,
    device_bytes: u64,
    segment_bytes: u64,
    spare_percent: u8,
}

impl fmt::Display for MadeVlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} holds {} on {} of {}; serve it with `shoal serve {} --nbd ...`, or give it to `shoal format --bulk`",
            self.device,
            human(self.size_bytes),
            human(self.device_bytes),
            self.over,
            self.device
        )
    }
}

impl Made for MadeVlog {
    fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// Makes a disk of this name.
pub(super) fn make(text: &str, options: &MakeOptions) -> Outcome<Box<dyn Made>> {
    let path = Path::new(text.strip_prefix("vlog:").unwrap_or(text));
    let path = std::path::absolute(path).during(path.display())?;
    let layout = FormatOptions {
        uuid: new_uuid(),
        salt: u64::from_le_bytes(shoal_host::random_bytes().during("random numbers")?),
        placement: Placement::Segments { blocks: segment_blocks(options.segment_bytes)? },
        spare_percent: options.spare_percent,
        ..FormatOptions::default()
    };
    let over = options.over.as_ref().map(|over| over.absolute().during("--over")).transpose()?;
    let over = over.filter(|over| over.path() != Some(&path));
    let device = device_below(over.as_ref(), &path, options)?;
    let name = over.as_ref().map_or(path.display().to_string(), |over| over.to_string());
    overwrite::refuse_if_not_empty(&*device, name, options.force)?;
    let made = VirtualLog::format(&*device, &layout);
    let superblock = made.map_err(|error| Failure::new(path.display(), error).misuse())?;
    if let Some(over) = &over {
        let description = Below { version: 1, over: over.to_string(), uuid: uuid_text(&superblock.uuid) };
        let text = serde_json::to_string_pretty(&description).during("description")? + "\n";
        fs::write(&path, text).and_then(|()| File::open(&path)?.sync_all()).during(path.display())?;
    }
    let bytes = |blocks: u32| blocks as u64 * BLOCK as u64;
    Ok(Box::new(MadeVlog {
        device: format!("vlog:{}", path.display()),
        over: over.map_or(format!("file:{}", path.display()), |over| over.to_string()),
        uuid: uuid_text(&superblock.uuid),
        size_bytes: bytes(superblock.logical_blocks),
        device_bytes: bytes(superblock.physical_blocks),
        segment_bytes: bytes(superblock.segment_blocks),
        spare_percent: options.spare_percent,
    }))
}

/// Opens or makes the device that the disk will lie on: PATH itself, or the one its description
/// will name.
fn device_below(over: Option<&DeviceName>, path: &Path, options: &MakeOptions) -> Outcome<Arc<dyn BlockDevice>> {
    let Some(over) = over else { return device_at(options, path) };
    if path.exists() && !options.force {
        return Err(Failure::new(path.display(), "exists").remedy("name a new file, or add --force"));
    }
    match over.path() {
        Some(below) => device_at(options, below),
        None if std::ptr::eq(over.kind(), &KIND) => {
            Err(Failure::new(over, "is a virtual-log disk itself").remedy("name the device below it"))
        }
        None => Ok(over.open()?.block_device()),
    }
}

fn segment_blocks(bytes: u64) -> Outcome<u32> {
    let blocks = bytes / BLOCK as u64;
    if !bytes.is_multiple_of(BLOCK as u64) || !blocks.is_power_of_two() || !(32..=4096).contains(&blocks) {
        let cause = format!("{} is no power of two from 128 KiB to 16 MiB", human(bytes));
        return Err(Failure::new("--segment", cause).misuse());
    }
    Ok(blocks as u32)
}

/// Opens a block device or an existing file, or makes a file of `--size`.
fn device_at(options: &MakeOptions, path: &Path) -> Outcome<Arc<dyn BlockDevice>> {
    overwrite::refuse_if_in_use(path)?;
    let found = fs::metadata(path).ok();
    let device = match (found, options.size) {
        (Some(found), Some(size)) if found.is_file() && found.len() == 0 => FileDevice::create(path, size.0),
        (Some(_), Some(_)) => {
            let remedy = "leave out --size to use it as it is, or name a new file";
            return Err(Failure::new(path.display(), "exists and has a size of its own").remedy(remedy).misuse());
        }
        (Some(_), None) => FileDevice::open(path),
        (None, Some(size)) => FileDevice::create(path, size.0),
        (None, None) => {
            let remedy = "add --size SIZE to make a file, or name a device";
            return Err(Failure::new(path.display(), "does not exist").remedy(remedy).misuse());
        }
    };
    let device = device.map_err(Failure::of)?;
    // A server or a store may be using it.
    device.claim().map_err(|error| in_use(path, error))?;
    Ok(Arc::new(device))
}
