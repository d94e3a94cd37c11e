//! Failures of work on devices and stores: one sentence that names the object, the cause and the remedy.
//!
//! The sentence reads `WHAT: CAUSE; REMEDY`. WHAT names the object (a path, an option), CAUSE is
//! the chain of errors below, REMEDY says what to do about it. A failure also knows whether it was
//! the caller's mistake: a request that cannot succeed whatever state the object is in. Rule: if
//! the operating system refused because this process lacks something (a right, memory,
//! descriptors), that says nothing about the object. The remedy is to get what is lacking, since
//! repairing or restoring the object would not help.
//! Left out: exit codes (the command line's).

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

/// Result of every fallible function here.
pub type Outcome<T> = Result<T, Failure>;

/// The reason why something could not be done.
#[derive(Debug)]
pub struct Failure {
    what: String,
    cause: Box<dyn Error + Send + Sync>,
    remedy: Option<String>,
    is_misuse: bool,
}

impl Failure {
    /// `what` failed because of `cause`. The message includes the causes of `cause`.
    pub fn new(what: impl fmt::Display, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure { what: what.to_string(), cause: cause.into(), remedy: None, is_misuse: false }
    }

    /// A line that already has object, cause and remedy: from a library, or from the daemon.
    pub fn told(line: impl fmt::Display) -> Failure {
        Failure { what: String::new(), cause: line.to_string().into(), remedy: None, is_misuse: false }
    }

    /// An error that names its object in its own sentence.
    pub fn of(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure { what: String::new(), cause: error.into(), remedy: None, is_misuse: false }
    }

    /// Puts a word before the object: "bulk storage" of a device.
    pub fn within(mut self, what: &str) -> Failure {
        self.what = if self.what.is_empty() { what.into() } else { format!("{what}: {}", self.what) };
        self
    }

    /// Adds what to do about the object. It is not shown if the cause says that this process lacks
    /// something, since the remedy then is to get that.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Failure {
        self.remedy = Some(remedy.into());
        self
    }

    /// Returns whether the object is in use by another process or client. The cause then says what
    /// to do about it.
    pub fn is_in_use(&self) -> bool {
        self.cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Marks a mistake of the caller: another request is needed, not another state of the object.
    pub fn misuse(mut self) -> Failure {
        self.is_misuse = true;
        self
    }

    /// Returns whether it was the caller's mistake.
    pub fn is_misuse(&self) -> bool {
        self.is_misuse
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.what.is_empty() { "" } else { ": " };
        let mut text = format!("{}{separator}{}", self.what, self.cause);
        let mut below = self.cause.source();
        while let Some(error) = below {
            let words = error.to_string();
            // Many errors repeat their source in their own words.
            if !text.contains(&words) {
                text += ": ";
                text += &words;
            }
            below = error.source();
        }
        let has_one = text.contains("; ");
        let remedy = match remedy_of_lack(self.cause.as_ref()) {
            Some(remedy) => Some(remedy).filter(|_| !has_one),
            None => self.remedy.as_deref().or_else(|| usual_remedy(self.cause.as_ref()).filter(|_| !has_one)),
        };
        if let Some(remedy) = remedy {
            text += "; ";
            text += remedy;
        }
        // Write one line, whatever the causes contain.
        f.write_str(&text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" "))
    }
}

/// The failure's own sentence names the causes, so it has no source.
impl Error for Failure {}

/// The errors of the operating system below an error, the outermost first.
fn of_the_system<'a>(cause: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a io::Error> {
    let mut next = Some(cause);
    let chain = std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    });
    chain.filter_map(|error| {
        // Media errors share their I/O error in an `Arc`.
        error.downcast_ref::<io::Error>().or_else(|| error.downcast_ref::<Arc<io::Error>>().map(|shared| &**shared))
    })
}

/// The remedy if this process lacks a right, memory or descriptors. Nothing is known about the
/// object then.
pub fn remedy_of_lack(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    of_the_system(cause).find_map(|error| match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::PermissionDenied, _) => Some("check who may do this, or use another user"),
        (io::ErrorKind::OutOfMemory, _) => Some("free some memory, or allow this process more of it"),
        (_, Some(EMFILE)) => Some("allow this process more open files (`ulimit -n`)"),
        (_, Some(ENFILE)) => Some("close files, or raise the machine's limit (`sysctl fs.file-max`)"),
        _ => None,
    })
}

/// Remedies for other common refusals of the operating system, used if no better one is known.
fn usual_remedy(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    of_the_system(cause).find_map(|error| match error.kind() {
        io::ErrorKind::NotFound => Some("check the path"),
        io::ErrorKind::NotADirectory => Some("check the path: a part of it is a file"),
        io::ErrorKind::ReadOnlyFilesystem => Some("choose a place that can be written"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some("free some space there"),
        _ => None,
    })
}

/// Names the object an operation failed on.
pub trait During<T> {
    fn during(self, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Failure::new(what, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_object_cause_and_remedy() {
        let failure = Failure::new("store /s", "no\n such  thing").remedy("make one with `shoal format`");
        assert_eq!(failure.to_string(), "store /s: no such  thing; make one with `shoal format`");
        assert!(!failure.is_misuse());
        assert_eq!(Failure::told(&failure).to_string(), failure.to_string());
        assert!(failure.misuse().is_misuse());
    }

    #[test]
    fn the_chain_of_causes_is_printed_without_repeating_itself() {
        #[derive(Debug)]
        struct Above(std::io::Error, &'static str);
        impl fmt::Display for Above {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.1)
            }
        }
        impl Error for Above {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let below = || std::io::Error::other("disk on fire");
        assert_eq!(Failure::new("x", Above(below(), "log")).to_string(), "x: log: disk on fire");
        assert_eq!(Failure::new("x", Above(below(), "log: disk on fire")).to_string(), "x: log: disk on fire");
    }

    #[test]
    fn a_lack_of_the_process_is_not_taken_for_a_fault_of_the_object() {
        #[derive(Debug)]
        struct Shared(Arc<io::Error>);
        impl fmt::Display for Shared {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "log: {}", self.0)
            }
        }
        impl Error for Shared {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let of = |errno| Shared(Arc::new(io::Error::from_raw_os_error(errno)));
        let text = |errno| Failure::new("/s", of(errno)).remedy("run `shoal salvage`").to_string();
        for (errno, remedy) in
            [(1, "another user"), (13, "another user"), (12, "memory"), (24, "ulimit"), (23, "file-max")]
        {
            let text = text(errno);
            assert!(text.starts_with("/s: log: ") && text.contains(remedy) && !text.contains("salvage"), "{text}");
        }
        assert!(text(5).ends_with("; run `shoal salvage`"), "a fault of the disk may be one of the object");
        assert_eq!(Failure::of(of(13)).to_string().split("; ").count(), 2);
    }
}
