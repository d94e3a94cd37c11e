//! A virtual-log disk by name: `vlog:PATH`.
//!
//! PATH is the device the disk lies on itself (a file, a block device), or a small file that `shoal format vlog:PATH --over DEVICE`
//! wrote and that names that device. Owns making, finding, locking and opening it, and the report of its state.
//! Rules: one process of this machine opens a disk at a time; a device that holds something is not overwritten without `--force`; a disk
//! is closed when it is no longer used, which spares the next opening most of its work. Left out: where blocks go (`shoal_vlog`).

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use shoal_format::FormatError;
use shoal_format::vlog::BLOCK;
use shoal_host::{Concurrent, FileDevice, SystemClock};
use shoal_media::BlockDevice;
use shoal_vlog::{Disk, FormatOptions, Placement, Progress, Recovery, VirtualLog, VlogError};
use tracing::info;

use crate::args::FormatArgs;
use crate::device;
use crate::failure::{During, Failure, Outcome};
use crate::open_device::{self, Device};
use crate::overwrite;
use crate::size::human;
use crate::status::VlogReport;
use crate::store::{new_uuid, uuid_text};

/// A description is no longer than this (bytes).
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;
/// Between two lines on how far opening is.
const TELL_EVERY: Duration = Duration::from_secs(3);

/// What a description file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    version: u32,
    /// Device below, as on the command line.
    over: String,
    uuid: String,
}

pub struct VlogDisk {
    /// The disk, for clients with many requests on one connection.
    requests: Arc<Concurrent>,
    disk: Arc<Disk>,
    path: PathBuf,
    over: Option<Device>,
    recovery: Recovery,
    _lock: Flock<File>,
}

/// What `shoal format vlog:PATH` reports.
#[derive(Debug, Serialize)]
struct Made {
    device: String,
    over: String,
    uuid: String,
    size_bytes: u64,
    device_bytes: u64,
    segment_bytes: u64,
    spare_percent: u8,
}

/// The description in a file, if it is one. A device that holds a disk is none.
fn described(path: &Path) -> Outcome<Option<Description>> {
    let found = fs::metadata(path).during(path.display())?;
    if !found.is_file() || found.len() > DESCRIPTION_BYTES_MAX {
        return Ok(None);
    }
    let mut text = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut text)).during(path.display())?;
    if text.first() != Some(&b'{') {
        return Ok(None);
    }
    let description: Description = serde_json::from_slice(&text).during(path.display())?;
    if description.version != 1 {
        return Err(Failure::new(
            path.display(),
            format!("is of version {}, this program knows 1", description.version),
        ));
    }
    Ok(Some(description))
}

fn lock(path: &Path) -> Outcome<Flock<File>> {
    let file = OpenOptions::new().read(true).write(true).open(path).during(path.display())?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => Failure::new(path.display(), "is in use by another process")
            .remedy("stop the server or unmount the store that uses it (`fuser` names the process)"),
        error => Failure::new(path.display(), error),
    })
}

/// Tells how far opening is, when it takes long.
fn watch(path: &Path) -> Arc<dyn Fn(Progress) + Send + Sync> {
    let path = path.to_path_buf();
    let told = Mutex::new(Instant::now());
    Arc::new(move |progress: Progress| {
        let mut told = told.lock();
        if told.elapsed() < TELL_EVERY {
            return;
        }
        *told = Instant::now();
        let (done, total) = (progress.done, progress.total);
        let percent = done * 100 / total.max(1);
        if progress.checkpoint {
            info!("vlog:{}: reading the map: {percent}%", path.display());
        } else {
            info!("vlog:{}: looking through the log: {percent}%, {done} of {total} segments", path.display());
        }
    })
}

/// Tells how a disk was opened.
fn tell(path: &Path, log: &VirtualLog, recovery: &Recovery) {
    let seconds = recovery.took_ns as f64 / 1e9;
    let Recovery { records, unsure, lost, .. } = recovery;
    let read = human(recovery.blocks_read * BLOCK as u64);
    let from = match (recovery.checkpoint, log.status().has_checkpoints) {
        (true, _) => "its checkpoint and ",
        (false, true) => "its checkpoint cannot be used; all of its log, ",
        (false, false) => "",
    };
    if recovery.clean {
        info!("vlog:{}: {from}{records} records read in {seconds:.2} s ({read})", path.display());
        return;
    }
    info!(
        "vlog:{}: was not closed; {from}{records} records found by reading {read} in {seconds:.2} s, {unsure} of them not surely \
         durable; {lost} blocks lost writes that were never flushed",
        path.display()
    );
    if !log.status().has_checkpoints {
        info!(
            "vlog:{}: was made by an earlier version, so that the whole log is looked through after a crash; copy it to a new disk \
             to have checkpoints",
            path.display()
        );
    }
}

impl VlogDisk {
    pub fn open(path: &Path) -> Outcome<VlogDisk> {
        let description = described(path)?;
        let lock = lock(path)?;
        let remedy = format!("make a disk first: `shoal format vlog:{}`", path.display());
        let (device, over): (Arc<dyn BlockDevice>, _) = match &description {
            // Opening reads much, many reads at once.
            None => {
                let device = FileDevice::open(path).map_err(Failure::told)?;
                (Arc::new(Concurrent::for_short_requests(Arc::new(device))), None)
            }
            Some(description) => {
                let below: device::Description =
                    description.over.parse().map_err(|error: String| Failure::new(path.display(), error))?;
                let over = open_device::open(&below);
                let over = over.map_err(|failure| failure.within(&format!("device below {}", path.display())))?;
                (Arc::new(Concurrent::for_short_requests(over.block_device())), Some(over))
            }
        };
        let options = shoal_vlog::Options { watch: Some(watch(path)), ..shoal_vlog::Options::default() };
        let opened = VirtualLog::open(device, Arc::new(SystemClock::new()), options);
        let (log, recovery) = opened.map_err(|error| {
            let remedy = match error {
                VlogError::Format(FormatError::Version { .. }) => {
                    "open it with the version of shoal that made it, or a newer one"
                }
                VlogError::Format(_) => &remedy,
                _ => return Failure::new(path.display(), error),
            };
            Failure::new(path.display(), error).remedy(remedy)
        })?;
        let wanted = description.map(|description| description.uuid);
        if wanted.is_some_and(|uuid| uuid != uuid_text(&log.uuid())) {
            return Err(Failure::new(path.display(), "another virtual-log disk is on the device now")
                .remedy(format!("it is {}; make the file anew, or bring the device back", uuid_text(&log.uuid()))));
        }
        tell(path, &log, &recovery);
        let disk = Arc::new(Disk::start(log));
        let requests = Arc::new(Concurrent::new(disk.clone()));
        Ok(VlogDisk { requests, disk, path: path.into(), over, recovery, _lock: lock })
    }

    pub fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.requests.clone()
    }

    pub fn description(&self) -> device::Description {
        device::Description::Vlog(self.path.clone())
    }

    /// After the last request. Without it the next opening has to find the end of the log.
    pub fn close(&self) -> Outcome<()> {
        self.disk.log().close().during(format_args!("closing vlog:{}", self.path.display()))?;
        self.over.as_ref().map_or(Ok(()), Device::close)
    }

    pub fn report(&self) -> VlogReport {
        let status = self.disk.log().status();
        VlogReport {
            uuid: uuid_text(&self.disk.log().uuid()),
            over: self.over.as_ref().map(|over| over.description().to_string()),
            log_bytes: status.log_bytes,
            used_bytes: status.used_bytes,
            segments: status.segments,
            free_segments: status.free_segments,
            map_bytes: status.map_bytes,
            beside_bytes: status.beside_bytes,
            written_bytes: status.host_blocks * BLOCK as u64,
            device_written_bytes: status.device_blocks * BLOCK as u64,
            write_amplification: status.write_amplification(),
            moved_bytes: status.moved_blocks * BLOCK as u64,
            segments_emptied: status.emptied,
            damaged_blocks: status.damaged_blocks,
            flushes: status.flushes,
            checkpoints: status.checkpoints,
            opened_clean: self.recovery.clean,
            opened_checkpoint: self.recovery.checkpoint,
            recovery_seconds: Duration::from_nanos(self.recovery.took_ns).as_secs_f64(),
            recovery_read_bytes: self.recovery.blocks_read * BLOCK as u64,
        }
    }
}

/// `shoal format vlog:PATH`.
pub fn format(args: &FormatArgs, path: &Path) -> Outcome<()> {
    let path = std::path::absolute(path).during(path.display())?;
    let options = FormatOptions {
        uuid: new_uuid()?,
        salt: u64::from_le_bytes(shoal_host::random_bytes().during("random numbers")?),
        placement: Placement::Segments { blocks: segment_blocks(args)? },
        spare_percent: args.spare,
        ..FormatOptions::default()
    };
    let over = args.over.clone().map(|over| over.absolute().during("--over")).transpose()?;
    let over = over.filter(|over| *over != device::Description::File(path.clone()));
    let device: Arc<dyn BlockDevice> = match &over {
        None => device_at(args, &path)?,
        Some(over) => {
            if path.exists() && !args.force {
                return Err(Failure::new(path.display(), "exists").remedy("name a new file, or add --force"));
            }
            match over {
                device::Description::Vlog(_) => {
                    return Err(Failure::new(over, "is a virtual-log disk itself").remedy("name the device below it"));
                }
                device::Description::File(below) => device_at(args, below)?,
                _ => open_device::open(over)?.block_device(),
            }
        }
    };
    let name = over.as_ref().map_or(path.display().to_string(), |over| over.to_string());
    overwrite::refuse_if_not_empty(&*device, name, args.force)?;
    let made = VirtualLog::format(&*device, &options);
    let superblock = made.map_err(|error| Failure::new(path.display(), error).code(2))?;
    if let Some(over) = &over {
        let description = Description { version: 1, over: over.to_string(), uuid: uuid_text(&superblock.uuid) };
        let text = serde_json::to_string_pretty(&description).during("description")? + "\n";
        fs::write(&path, text).and_then(|()| File::open(&path)?.sync_all()).during(path.display())?;
    }
    let bytes = |blocks: u32| blocks as u64 * BLOCK as u64;
    let made = Made {
        device: format!("vlog:{}", path.display()),
        over: over.map_or(format!("file:{}", path.display()), |over| over.to_string()),
        uuid: uuid_text(&superblock.uuid),
        size_bytes: bytes(superblock.logical_blocks),
        device_bytes: bytes(superblock.physical_blocks),
        segment_bytes: bytes(superblock.segment_blocks),
        spare_percent: args.spare,
    };
    if args.json {
        crate::print_json(&made);
    } else {
        println!(
            "{} holds {} on {} of {}; serve it with `shoal serve {} --nbd ...`, or give it to `shoal format --bulk`",
            made.device,
            human(made.size_bytes),
            human(made.device_bytes),
            made.over,
            made.device
        );
    }
    Ok(())
}

fn segment_blocks(args: &FormatArgs) -> Outcome<u32> {
    let bytes = args.segment.0;
    let blocks = bytes / BLOCK as u64;
    if !bytes.is_multiple_of(BLOCK as u64) || !blocks.is_power_of_two() || !(32..=4096).contains(&blocks) {
        let cause = format!("{} is no power of two from 128 KiB to 16 MiB", human(bytes));
        return Err(Failure::new("--segment", cause).code(2));
    }
    Ok(blocks as u32)
}

/// A block device, a file that is there, or a new one of `--size`.
fn device_at(args: &FormatArgs, path: &Path) -> Outcome<Arc<dyn BlockDevice>> {
    overwrite::refuse_if_in_use(path)?;
    let found = fs::metadata(path).ok();
    let device = match (found, args.size) {
        (Some(found), Some(size)) if found.is_file() && found.len() == 0 => FileDevice::create(path, size.0),
        (Some(_), Some(_)) => {
            let remedy = "leave out --size to use it as it is, or name a new file";
            return Err(Failure::new(path.display(), "exists and has a size of its own").remedy(remedy).code(2));
        }
        (Some(_), None) => FileDevice::open(path),
        (None, Some(size)) => FileDevice::create(path, size.0),
        (None, None) => {
            let remedy = "add --size SIZE to make a file, or name a device";
            return Err(Failure::new(path.display(), "does not exist").remedy(remedy).code(2));
        }
    };
    // A server or a store may be using it.
    drop(lock(path)?);
    Ok(Arc::new(device.map_err(Failure::told)?))
}
