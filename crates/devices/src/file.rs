//! A file or a block device: `file:PATH`, or `device:PATH`.
//!
//! Rules: the file exists already; nothing is made here. One store or process has it open at a
//! time.
//! Left out: requests (`shoal_host::FileDevice`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use shoal_host::{Concurrent, FileDevice};
use shoal_media::BlockDevice;

use crate::device::Device;
use crate::device_name::{DeviceName, Kind, Name, path_of};
use crate::failure::{During, Failure, Outcome};

pub static KIND: Kind = Kind {
    name: "file",
    words: "disk",
    form: "file:PATH",
    about: "a file or a block device",
    // The second scheme is for users who think of a block device.
    schemes: &["file", "device"],
    opening_writes: false,
    opens_files: true,
    parse: |text| path_of(text, KIND.schemes).map(|path| Ok(file(path))),
    make: None,
    text: |report| Ok(report.head("")),
};

#[derive(Clone, Debug)]
struct FileName(PathBuf);

/// Returns the name of the device that a file or a block device is.
pub fn file(path: impl Into<PathBuf>) -> DeviceName {
    DeviceName::new(FileName(path.into()))
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file:{}", self.0.display())
    }
}

impl Name for FileName {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn without_secrets(&self) -> DeviceName {
        DeviceName::new(self.clone())
    }

    fn absolute(&self) -> io::Result<DeviceName> {
        std::path::absolute(&self.0).map(file)
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.0)
    }

    fn open(&self) -> Outcome<Box<dyn Device>> {
        self.open_as(None)
    }

    fn open_as(&self, user: Option<u32>) -> Outcome<Box<dyn Device>> {
        let remedy = "bring it back; a new one is made with, for example, `truncate -s 1G FILE`";
        let device = FileDevice::open(&self.0).map_err(|error| Failure::of(error).remedy(remedy))?;
        if let Some(user) = user
            && device.owner().during(self.0.display())? != user
        {
            let cause = format!("is not user {user}'s, who named it");
            return Err(Failure::new(self.0.display(), cause).remedy(format!("open it as user {user}")));
        }
        // A copy of a store's directory names the same file, and would overwrite this store's
        // blocks.
        device.claim().map_err(|error| Failure::new(self.0.display(), error))?;
        Ok(Box::new(OpenFile { device: Arc::new(device), name: self.clone() }))
    }
}

struct OpenFile {
    device: Arc<FileDevice>,
    name: FileName,
}

impl Device for OpenFile {
    fn name(&self) -> DeviceName {
        DeviceName::new(self.name.clone())
    }

    fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    fn uncached_device(&self) -> Arc<dyn BlockDevice> {
        // If the file system cannot bypass the host's cache, the cache stays. Only memory is
        // wasted.
        self.device.bypass_cache();
        Arc::new(Concurrent::new(self.device.clone()))
    }
}
