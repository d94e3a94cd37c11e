//! What a block device is called: `file:PATH`, `vlog:PATH`, an NBD URI, or `netram:DONOR,DONOR,...?OPTIONS`.
//!
//! Owns the table of kinds, and the name that does not show which of them it is. Each kind reads and writes its own names; a
//! name is written as it was read, because a store's description keeps the text.
//! Left out: the grammars (`file`, `nbd`, `netram`, `vlog`), open devices (`device`).

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::{fmt, io};

use crate::device::{Device, DeviceReport, Made};
use crate::failure::Outcome;
use crate::size::Size;
use crate::{file, nbd, netram, vlog};

/// Makes a new disk of a name.
pub type Make = fn(&str, &MakeOptions) -> Outcome<Box<dyn Made>>;

/// A kind of bulk storage.
pub struct Kind {
    /// As reports call it.
    pub name: &'static str,
    /// What a device of it is, in words for anybody.
    pub words: &'static str,
    /// What stands before the colon of its names.
    pub schemes: &'static [&'static str],
    /// Opening a device changes what it holds, and so is not for those who only save what is left.
    pub opening_writes: bool,
    /// Reads a name; `None` where it is of another kind.
    pub(crate) parse: fn(&str) -> Option<Result<Description, String>>,
    /// `None` where devices are there or not, but are not made.
    pub make: Option<Make>,
    /// A report for people.
    pub(crate) text: fn(&DeviceReport) -> serde_json::Result<String>,
}

/// All kinds. A name belongs to the first that understands it.
pub static KINDS: [&Kind; 4] = [&file::KIND, &vlog::KIND, &netram::KIND, &nbd::KIND];

impl Kind {
    /// The kind whose names begin with this word and a colon.
    pub fn of_scheme(scheme: &str) -> Option<&'static Kind> {
        KINDS.into_iter().find(|kind| kind.schemes.contains(&scheme))
    }

    /// The kind that reports call so.
    pub fn named(name: &str) -> Option<&'static Kind> {
        KINDS.into_iter().find(|kind| kind.name == name)
    }
}

/// How a disk is to be made. What a kind has no use for it refuses.
#[derive(Clone, Debug, Default)]
pub struct MakeOptions {
    /// The device below a virtual-log disk.
    pub over: Option<Description>,
    /// Of the file below, which is made.
    pub size: Option<Size>,
    /// Part of the device that never holds data (percent).
    pub spare_percent: u8,
    /// What a virtual-log disk writes and empties as one piece.
    pub segment_bytes: u64,
    /// Overwrite what the device holds.
    pub force: bool,
}

/// A device's name of one kind; `Display` writes all of it, secrets too.
pub trait Name: fmt::Debug + fmt::Display + Send + Sync {
    fn kind(&self) -> &'static Kind;

    /// What may be shown to people and written into logs.
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

/// What a device is called, whatever its kind.
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

impl FromStr for Description {
    type Err = String;

    fn from_str(text: &str) -> Result<Description, String> {
        KINDS.into_iter().find_map(|kind| (kind.parse)(text)).unwrap_or_else(|| {
            Err(format!(
                "{text:?} is no device; write file:PATH, vlog:PATH, nbd://HOST/NAME, nbd+unix:///NAME?socket=PATH or \
                 netram:..."
            ))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_an_error_that_names_it() {
        for (text, expected) in [
            ("disk", "no device"),
            ("file:", "no device"),
            ("vlog:", "no device"),
            ("nbd://h/?soket=1", "unknown parameter soket"),
            ("nbd://h/?lost-after=0", "lost-after=0"),
            ("netram:", "names no donor"),
            ("netram:?policy=none", "names no donor"),
            ("netram:a:1,,b:2", "write unix:PATH"),
            ("netram:a:1,b", "write unix:PATH"),
            ("netram:a:1,a:1", "named twice"),
            ("netram:a:1,b:2?polcy=none", "polcy: no option"),
            ("netram:a:1,b:2?policy=best", "choose one of none"),
            ("netram:a:1,b:2?streams=many", "streams=many"),
            ("netram:a:1,b:2?streams=9", "streams=9: 1 to 8"),
            ("netram:a:1,b:2?spare", "write KEY=VALUE"),
            ("netram:a:1,b:2?new=yes", "made with `shoal format netram:...`"),
            ("netram:a:1,b:2?secret=/s", "add name=NAME"),
            ("netram:a:1", "needs 2 donors at least, 1 given"),
            ("netram:a:1,b:2?policy=mirrored&parity=2", "needs 3 donors at least, 2 given"),
            ("netram:nbd+unix:///a?socket=/a&policy=none", "options of the disk come after"),
        ] {
            let error = text.parse::<Description>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn each_kind_writes_its_names_as_it_reads_them() {
        for (text, kind, written) in [
            ("file:/a", "file", "file:/a"),
            ("device:/dev/x", "file", "file:/dev/x"),
            ("vlog:/b", "vlog", "vlog:/b"),
            ("nbd://h:1/x", "nbd", "nbd://h:1/x"),
            ("netram:a:1,b:2?policy=none", "netram", "netram:a:1,b:2?policy=none"),
        ] {
            let description: Description = text.parse().unwrap();
            assert_eq!((description.kind().name, description.to_string().as_str()), (kind, written), "{text}");
            assert_eq!(description, written.parse().unwrap());
        }
    }

    #[test]
    fn no_two_kinds_share_a_name_or_a_scheme() {
        let schemes: Vec<&str> = KINDS.iter().flat_map(|kind| kind.schemes).copied().collect();
        for (at, scheme) in schemes.iter().enumerate() {
            assert!(!schemes[..at].contains(scheme), "{scheme}");
        }
        for kind in KINDS {
            assert!(std::ptr::eq(Kind::named(kind.name).unwrap(), kind));
            assert!(kind.schemes.iter().all(|scheme| std::ptr::eq(Kind::of_scheme(scheme).unwrap(), kind)));
        }
        assert!(Kind::named("").is_none() && Kind::of_scheme("http").is_none());
    }
}
