//! How a failed command ends: one line on standard error and an exit code.
//!
//! The line reads `shoal: WHAT: CAUSE; REMEDY` ([`Failure`]). Exit codes: 1 for a command that
//! failed, 2 for a wrong command line (as in clap). `check` uses those of fsck(8), and so does
//! `salvage`.

use std::io::{Error, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use shoal_devices::Failure;

/// A command failed.
const EXIT_FAILED: u8 = 1;
/// The command line was wrong.
const EXIT_MISUSE: u8 = 2;
/// fsck(8): the check itself could not be done.
pub const EXIT_OPERATIONAL: u8 = 8;
/// fsck(8): wrong command line.
pub const EXIT_USAGE: u8 = 16;

/// Prints why a command failed. Returns its exit code.
pub fn end(failure: &Failure) -> ExitCode {
    end_with(failure, if failure.is_misuse() { EXIT_MISUSE } else { EXIT_FAILED })
}

/// Like [`end`], with an exit code chosen by the command.
pub fn end_with(failure: &Failure, code: u8) -> ExitCode {
    // Standard error may be a log on a full host; the exit code stays the same.
    let _ = writeln!(std::io::stderr(), "shoal: {failure}");
    ExitCode::from(code)
}

/// Describes why a mount point could not be changed. If it is busy, `remedy` gets the command that
/// lists its users.
pub fn of_mountpoint(mountpoint: &Path, error: Error, remedy: impl FnOnce(String) -> String) -> Failure {
    let busy = error.kind() == ErrorKind::ResourceBusy;
    let failure = Failure::new(mountpoint.display(), error);
    if !busy {
        return failure;
    }
    failure.remedy(remedy(format!("`fuser -vm {}`", mountpoint.display())))
}
