//! Names of block devices: `file:PATH`, `vlog:PATH`, an NBD URI, or `netram:DONOR,DONOR,...?OPTIONS`.
//!
//! Owns what a kind of device is, and a name that hides its kind. Each kind reads and writes its
//! own names. A name is written as it was read, because a store's description keeps the text.
//! Left out: which kinds there are (`kinds`), the grammars (`file`, `nbd`, `netram`, `vlog`), open
//! devices (`device`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use crate::device::{Device, DeviceReport, Made};
use crate::failure::{Failure, Outcome};
use crate::size::Size;

/// Makes a new disk of the given name.
pub type Make = fn(&str, &MakeOptions) -> Outcome<Box<dyn Made>>;

/// A kind of bulk storage.
pub struct Kind {
    /// The name in reports.
    pub name: &'static str,
    /// The kind in words that name nothing secret.
    pub words: &'static str,
    /// How its names are written, and what they name, for help texts.
    pub form: &'static str,
    pub about: &'static str,
    /// The words before the colon in its names.
    pub schemes: &'static [&'static str],
    /// Opening a device changes its contents, so a program that only saves what is left must not
    /// open it.
    pub opening_writes: bool,
    /// Opening a device may open files of this machine: a disk, secrets, certificates.
    pub opens_files: bool,
    /// Reads a name; `None` if it is of another kind.
    pub(crate) parse: fn(&str) -> Option<Result<DeviceName, String>>,
    /// Makes a disk; `None` if devices of this kind cannot be made.
    pub make: Option<Make>,
    /// A report for people.
    pub(crate) text: fn(&DeviceReport) -> serde_json::Result<String>,
}

/// Tells people how far long work is.
pub type Tell = fn(&str);

/// How to make a disk. A kind refuses options that do not apply to it.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// The device below a virtual-log disk.
    pub over: Option<DeviceName>,
    /// Size of the file below, which is made.
    pub size: Option<Size>,
    /// Part of the device that never holds data (percent).
    pub spare_percent: u8,
    /// Bytes that a virtual-log disk writes and empties as one segment.
    pub segment_bytes: u64,
    /// Overwrite what the device holds.
    pub force: bool,
    pub tell: Tell,
}

/// A device's name of one kind. `Display` writes all of it, including secrets.
pub trait Name: fmt::Debug + fmt::Display + Send + Sync {
    fn kind(&self) -> &'static Kind;

    /// The name without secrets, for people and logs.
    fn without_secrets(&self) -> DeviceName;

    /// Returns the name with absolute paths, for a process in another directory.
    fn absolute(&self) -> io::Result<DeviceName>;

    fn open(&self) -> Outcome<Box<dyn Device>>;

    /// Opens the device on behalf of another user, who may name their own files but nothing that
    /// may open other files of this machine.
    fn open_as(&self, user: Option<u32>) -> Outcome<Box<dyn Device>> {
        match user {
            Some(user) if self.kind().opens_files => {
                let cause = format!("user {user} named it, who may name files of his own only");
                Err(Failure::new(self.without_secrets(), cause).remedy(format!("open it as user {user}")))
            }
            _ => self.open(),
        }
    }

    /// The file or block device that the device is, if it is nothing more.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Files, block devices and sockets of this host through which the device is reached, as far as
    /// its name shows.
    fn files(&self) -> Vec<PathBuf> {
        self.path().map(PathBuf::from).into_iter().collect()
    }

    /// Returns the name that takes the device over from the client that has it open. `None` if a
    /// device of this kind cannot be taken over.
    fn taking_over(&self) -> Option<DeviceName> {
        None
    }
}

/// A device's name of any kind.
#[derive(Clone)]
pub struct DeviceName(Arc<dyn Name>);

impl DeviceName {
    pub(crate) fn new(name: impl Name + 'static) -> DeviceName {
        DeviceName(Arc::new(name))
    }
}

impl std::ops::Deref for DeviceName {
    type Target = dyn Name;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq for DeviceName {
    fn eq(&self, other: &DeviceName) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for DeviceName {}

/// Returns the path after one of these words and a colon.
pub(crate) fn path_of<'a>(text: &'a str, schemes: &[&str]) -> Option<&'a Path> {
    let (scheme, path) = text.split_once(':')?;
    (schemes.contains(&scheme) && !path.is_empty()).then(|| Path::new(path))
}
