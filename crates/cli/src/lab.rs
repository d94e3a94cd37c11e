//! `shoal lab` and `shoal profile`: another program carries them out.
//!
//! `shoal-lab` is found beside this program, or else in PATH, and takes this one's place. So the
//! daemon links neither the simulator nor the plots.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use shoal_devices::{Failure, Outcome};

/// The commands that `shoal-lab` carries out.
pub const COMMANDS: [&str; 2] = ["lab", "profile"];
const PROGRAM: &str = "shoal-lab";

#[derive(Debug, Args)]
pub struct Words {
    /// Arguments for `shoal-lab`; `--help` lists them
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Replaces this process by `shoal-lab`, which carries out this command. Returns only if that
/// fails.
pub fn run(command: Option<&str>, words: &Words) -> Outcome<()> {
    // Prefer the `shoal-lab` beside this program, which is of the same build.
    let beside = env::current_exe().ok().map(|own| own.with_file_name(PROGRAM)).filter(|beside| beside.exists());
    let found = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(found).args(command).args(&words.words).exec();
    let failure = match error.kind() {
        ErrorKind::NotFound => Failure::new(PROGRAM, "is neither in the directory of this program nor in one of PATH"),
        _ => Failure::new(PROGRAM, error),
    };
    Err(failure.remedy("install it from the same build; `make install` does"))
}
