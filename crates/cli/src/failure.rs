//! How a failed command ends: one line on standard error and an exit code.
//!
//! The line reads `shoal: WHAT: CAUSE; REMEDY` ([`Failure`]). Exit codes: 1 for a command that
//! failed, 2 for a wrong command line (as in clap). `check` uses those of fsck(8), and so does
//! `salvage`.

use std::io::{Error, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
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

/// Parses like [`Parser::parse`], but an error is one line like all others. `code` chooses the exit
/// code by the command and clap's code.
pub fn parse<T: Parser>(program: &str, code: impl Fn(Option<&str>, i32) -> i32) -> T {
    T::try_parse().unwrap_or_else(|error| {
        if !error.use_stderr() {
            // Help and version are printed, not refused.
            error.exit();
        }
        let text = error.to_string();
        // Take the lines of the error itself, without the advice and usage that follow.
        let is_advice =
            |line: &str| ["tip:", "Usage:", "For more information"].iter().any(|word| line.starts_with(word));
        let own = text.lines().map(str::trim).take_while(|line| !is_advice(line));
        let cause = own.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        let cause = cause.trim_start_matches("error: ");
        // For example "tip: a similar argument exists: '--json'".
        let similar =
            text.lines().find_map(|line| line.trim().strip_prefix("tip: ")?.split_once("similar ")?.1.split_once(": "));
        let similar =
            similar.map_or_else(String::new, |(_, words)| format!("write {}, or see ", words.replace('\'', "`")));
        let word = std::env::args().nth(1).filter(|word| T::command().find_subcommand(word).is_some());
        let command = word.as_ref().map_or_else(|| program.to_owned(), |word| format!("{program} {word}"));
        match similar.is_empty() {
            true => eprintln!("{command}: {cause}; `{command} --help` lists the options"),
            false => eprintln!("{command}: {cause}; {similar}`{command} --help`"),
        }
        std::process::exit(code(word.as_deref(), error.exit_code()))
    })
}

/// Makes the program end silently when the reader of a pipe has gone, where `println!` panics.
pub fn die_quietly_on_broken_pipes() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        if text.starts_with("failed printing to stdout") && text.contains("Broken pipe") {
            std::process::exit(0);
        }
        print(info);
    }));
}
