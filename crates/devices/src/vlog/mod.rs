//! A virtual-log disk by name: `vlog:PATH`.
//!
//! PATH is the device that the disk lies on itself (a file, a block device), or a small file that
//! names that device and was written by `shoal format vlog:PATH --over DEVICE`. Owns finding,
//! locking and opening the disk; `make` makes it, `report` tells its state.
//! Rules: one process of this machine opens a disk at a time, whatever names it. A disk is closed
//! when it is no longer used, which spares the next opening most of its work. Left out: where
//! blocks go (`shoal_vlog`).

mod make;
mod report;

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shoal_format::FormatError;
use shoal_format::vlog::BLOCK;
use shoal_host::{Concurrent, FileDevice, FileLock, SystemClock};
use shoal_media::BlockDevice;
use shoal_vlog::{Progress, Recovery, VirtualLog, VirtualLogDisk, VlogError};
use tracing::info;

use crate::device::Device;
use crate::device_name::{DeviceName, Kind, Name, path_of};
use crate::disk_lock;
use crate::failure::{During, Failure, Outcome};
use crate::size::human;
use crate::uuid::{parse_uuid, uuid_text};

pub use report::VlogReport;

pub static KIND: Kind = Kind {
    name: "vlog",
    words: "virtual-log disk",
    form: "vlog:PATH",
    about: "a virtual-log disk",
    schemes: &["vlog"],
    // Opening finds the end of the log and writes it down.
    opening_writes: true,
    opens_files: true,
    parse: |text| path_of(text, KIND.schemes).map(|path| Ok(DeviceName::new(VlogName(path.into())))),
    make: Some(make::make),
    text: report::text,
};

/// Longest description (bytes).
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;
/// Time between two lines about the progress of opening.
const TELL_EVERY: Duration = Duration::from_secs(3);

/// Contents of a description file.
#[derive(Debug, Serialize, Deserialize)]
struct Below {
    version: u32,
    /// Device below, as on the command line.
    over: String,
    uuid: String,
}

/// A virtual-log disk on this file or block device, or on the device that this file names.
#[derive(Clone, Debug)]
struct VlogName(PathBuf);

impl fmt::Display for VlogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vlog:{}", self.0.display())
    }
}

impl Name for VlogName {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn without_secrets(&self) -> DeviceName {
        DeviceName::new(self.clone())
    }

    fn absolute(&self) -> io::Result<DeviceName> {
        std::path::absolute(&self.0).map(|path| DeviceName::new(VlogName(path)))
    }

    fn open(&self) -> Outcome<Box<dyn Device>> {
        Ok(Box::new(VlogDisk::open(&self.0)?))
    }

    fn files(&self) -> Vec<PathBuf> {
        let over = described(&self.0).ok().flatten().and_then(|below| below.over.parse::<DeviceName>().ok());
        std::iter::once(self.0.clone()).chain(over.iter().flat_map(|over| over.files())).collect()
    }
}

struct VlogDisk {
    /// The disk, for clients with many requests on one connection.
    requests: Arc<Concurrent>,
    disk: Arc<VirtualLogDisk>,
    path: PathBuf,
    over: Option<Box<dyn Device>>,
    recovery: Recovery,
    /// Locks of the description and of the disk.
    _locks: Option<(FileLock, Option<FileLock>)>,
}

/// Returns the description in a file, if it is one. A device that holds a disk is not a
/// description.
fn described(path: &Path) -> Outcome<Option<Below>> {
    let found = fs::metadata(path).during(path.display())?;
    if !found.is_file() || found.len() > DESCRIPTION_BYTES_MAX {
        return Ok(None);
    }
    let mut text = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut text)).during(path.display())?;
    if text.first() != Some(&b'{') {
        return Ok(None);
    }
    let description: Below = serde_json::from_slice(&text).during(path.display())?;
    if description.version != 1 {
        return Err(Failure::new(
            path.display(),
            format!("is of version {}, this program knows 1", description.version),
        ));
    }
    Ok(Some(description))
}

/// Returns the failure of a disk, or of the device for one, that another process may be using.
fn in_use(path: &Path, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::WouldBlock => Failure::new(path.display(), "is in use by another process")
            .remedy("stop the server or unmount the store that uses it (`fuser` names the process)"),
        _ => Failure::new(path.display(), error),
    }
}

/// Reports the progress of a long opening.
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

/// Logs how a disk was opened.
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
    fn open(path: &Path) -> Outcome<VlogDisk> {
        let description = described(path)?;
        let remedy = format!("make a disk first: `shoal format vlog:{}`", path.display());
        let (device, over, locks) = match &description {
            None => {
                let device = FileDevice::open(path).map_err(Failure::of)?;
                device.claim().map_err(|error| in_use(path, error))?;
                (Arc::new(device) as Arc<dyn BlockDevice>, None, None)
            }
            Some(description) => {
                // Lock the description for the device below, which need not support locks.
                let file = OpenOptions::new().read(true).write(true).open(path).during(path.display())?;
                let lock = FileLock::acquire(file).map_err(|error| in_use(path, error))?;
                let below: DeviceName =
                    description.over.parse().map_err(|error: String| Failure::new(path.display(), error))?;
                // Copies of the description name the same disk, so lock the disk's uuid, too.
                let uuid = parse_uuid(&description.uuid)
                    .ok_or_else(|| Failure::new(path.display(), format!("{} is no uuid", description.uuid)))?;
                let uuid = uuid_text(&uuid);
                let disk = disk_lock::lock("vlog", &uuid, format_args!("virtual-log disk {uuid}"))?;
                let over = below.open();
                let over = over.map_err(|failure| failure.within(&format!("device below {}", path.display())))?;
                (over.block_device(), Some(over), Some((lock, disk)))
            }
        };
        // Opening reads much data, with many reads at once.
        let device = Arc::new(Concurrent::for_short_requests(device));
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
        let disk = Arc::new(VirtualLogDisk::start(log));
        let requests = Arc::new(Concurrent::new(disk.clone()));
        Ok(VlogDisk { requests, disk, path: path.into(), over, recovery, _locks: locks })
    }
}

impl Device for VlogDisk {
    fn name(&self) -> DeviceName {
        DeviceName::new(VlogName(self.path.clone()))
    }

    fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.requests.clone()
    }

    fn own_report(&self) -> Map<String, Value> {
        [("vlog".into(), serde_json::json!(self.report()))].into_iter().collect()
    }

    /// Closes the disk after the last request. Without this, the next opening has to find the end
    /// of the log.
    fn close(&self) -> Outcome<()> {
        self.disk.log().close().during(format_args!("closing vlog:{}", self.path.display()))?;
        self.over.as_ref().map_or(Ok(()), |over| over.close())
    }
}
