//! How a command fails: one line on standard error and an exit code.
//!
//! The line reads `shoal: WHAT: CAUSE; REMEDY`. WHAT names the object (a path, an option), CAUSE is the chain of errors
//! below, REMEDY says what to do about it. Exit codes: 1 for a command that failed, 2 for a wrong command line (as
//! clap has it); `check` has those of fsck(8).

use std::error::Error;
use std::{fmt, io};

/// A command failed.
pub const EXIT_FAILED: u8 = 1;
/// fsck(8): the check itself could not be done.
pub const EXIT_OPERATIONAL: u8 = 8;
/// fsck(8): wrong command line.
pub const EXIT_USAGE: u8 = 16;

pub type Outcome<T> = Result<T, Failure>;

#[derive(Debug)]
pub struct Failure {
    what: String,
    cause: Box<dyn Error + Send + Sync>,
    remedy: Option<String>,
    code: u8,
}

impl Failure {
    pub fn new(what: impl fmt::Display, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure { what: what.to_string(), cause: cause.into(), remedy: None, code: EXIT_FAILED }
    }

    /// A line that has object, cause and remedy already: from a library, or from the daemon.
    pub fn told(line: impl fmt::Display) -> Failure {
        Failure { what: String::new(), cause: line.to_string().into(), remedy: None, code: EXIT_FAILED }
    }

    /// Puts a word before the object: "bulk storage" of a device.
    pub fn within(mut self, what: &str) -> Failure {
        self.what = if self.what.is_empty() { what.into() } else { format!("{what}: {}", self.what) };
        self
    }

    pub fn remedy(mut self, remedy: impl Into<String>) -> Failure {
        self.remedy = Some(remedy.into());
        self
    }

    /// Somebody else has the object open; the cause says what to do about it.
    pub fn is_in_use(&self) -> bool {
        self.cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    pub fn code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    pub fn exit_code(&self) -> u8 {
        self.code
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
        let usual = || if text.contains("; ") { None } else { usual_remedy(self.cause.as_ref()) };
        if let Some(remedy) = self.remedy.as_deref().or_else(usual) {
            text += "; ";
            text += remedy;
        }
        // One line, whatever the causes brought along.
        f.write_str(&text.split(['\n', '\r']).map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" "))
    }
}

/// What to do about the operating system's common refusals, where nothing better is known.
fn usual_remedy(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut chain = Some(cause);
    while let Some(error) = chain {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                io::ErrorKind::NotFound => Some("check the path"),
                io::ErrorKind::NotADirectory => Some("check the path: a part of it is a file"),
                io::ErrorKind::PermissionDenied => Some("check who may do this, or use another user"),
                io::ErrorKind::ReadOnlyFilesystem => Some("choose a place that can be written"),
                io::ErrorKind::StorageFull => Some("free some space there"),
                _ => None,
            };
        }
        chain = error.source();
    }
    None
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
        assert_eq!(failure.exit_code(), 1);
        assert_eq!(Failure::told(&failure).to_string(), failure.to_string());
        assert_eq!(failure.code(EXIT_OPERATIONAL).exit_code(), 8);
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
}
