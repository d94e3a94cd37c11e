//! What a block device is called: `file:PATH`, `vlog:PATH`, an NBD URI, or `netram:DONOR,DONOR,...?OPTIONS`.
//!
//! Owns what a kind of device is, and the name that does not show which kind it is of. Each kind reads and writes its own names; a
//! name is written as it was read, because a store's description keeps the text.
//! Left out: which kinds there are (`kinds`), the grammars (`file`, `nbd`, `netram`, `vlog`), open devices (`device`).

use std::path::Path;
use std::sync::Arc;
use std::{fmt, io};

use crate::device::{Device, DeviceReport, Made};
use crate::failure::Outcome;
use crate::size::Size;

/// Makes a new disk of a name.
pub type Make = fn(&str, &MakeOptions) -> Outcome<Box<dyn Made>>;

/// A kind of bulk storage.
pub struct Kind {
    /// Its name in reports.
    pub name: &'static str,
    /// A device of this kind, in words for anybody.
    pub words: &'static str,
    /// Words before the colon of its names.
    pub schemes: &'static [&'static str],
    /// Opening a device changes its contents, so it is not for programs that only save what is left.
    pub opening_writes: bool,
    /// Reads a name; `None` where it is of another kind.
    pub(crate) parse: fn(&str) -> Option<Result<Description, String>>,
    /// `None` for a kind whose devices are not made here.
    pub make: Option<Make>,
    /// A report for people.
    pub(crate) text: fn(&DeviceReport) -> serde_json::Result<String>,
}

/// Options for making a disk. A kind refuses those that it has no use for.
#[derive(Clone, Debug, Default)]
pub struct MakeOptions {
    /// The device below a virtual-log disk.
    pub over: Option<Description>,
    /// Size of the file below, which is then made.
    pub size: Option<Size>,
    /// Part of the device that never holds data (percent).
    pub spare_percent: u8,
    /// Unit in which a virtual-log disk writes and empties (bytes).
    pub segment_bytes: u64,
    /// Overwrite what the device holds.
    pub force: bool,
}

/// A device's name of one kind; `Display` writes all of it, secrets too.
pub trait Name: fmt::Debug + fmt::Display + Send + Sync {
    fn kind(&self) -> &'static Kind;

    /// The name as it may be shown to people and written into logs.
    fn without_secrets(&self) -> Description;

    /// The same device for a process in another directory.
    fn absolute(&self) -> io::Result<Description>;

    fn open(&self) -> Outcome<Box<dyn Device>>;

    /// The file or block device that the device is, if it is nothing more.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// The same device, to be taken from the client that has it open; `None` where that cannot be.
    fn taking_over(&self) -> Option<Description> {
        None
    }
}

/// The name of a device of any kind.
#[derive(Clone)]
pub struct Description(Arc<dyn Name>);

impl Description {
    pub(crate) fn new(name: impl Name + 'static) -> Description {
        Description(Arc::new(name))
    }
}

impl std::ops::Deref for Description {
    type Target = dyn Name;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl PartialEq for Description {
    fn eq(&self, other: &Description) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Description {}

/// A path behind one of these words and a colon.
pub(crate) fn path_of<'a>(text: &'a str, schemes: &[&str]) -> Option<&'a Path> {
    let (scheme, path) = text.split_once(':')?;
    (schemes.contains(&scheme) && !path.is_empty()).then(|| Path::new(path))
}
