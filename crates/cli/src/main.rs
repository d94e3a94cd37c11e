//! The `shoal` command.
//!
//! | module | owns |
//! |---|---|
//! | `args`, `mount_options`, `option_table` | the syntax of the command line |
//! | `format`, `mount`, `remount`, `umount`, `df`, `check`, `copy`, `resize`, `bulk`, `salvage`, `scrub`, `rebalance`, `inspect`, `compact`, `netram`, `bench`, `doctor`, `donate`, `pages` | one command each |
//! | `lab` | finds and starts `shoal-lab`, which is `lab_main` with `experiments` and `profile` |
//! | `serve`, `status`, `kernel_requests` | a block device for NBD clients; its state, and that of a mount; a network RAM disk's donors |
//! | `daemon` | the process that serves a mount |
//! | `failure`, `json`, `progress`, `manual` | how commands fail, report to programs, show progress, and are documented |
//!
//! Thin glue: parsing, calling and printing. The library `shoal-store` handles stores,
//! `shoal-devices` handles devices. Errors are one line on standard error; exit codes are in
//! `failure`. A reader that goes away (`shoal df | head`) is not an error.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod bulk;
mod check;
mod compact;
mod copy;
mod daemon;
mod df;
mod doctor;
mod donate;
mod failure;
mod format;
mod inspect;
mod json;
mod kernel_requests;
mod lab;
mod manual;
mod mount;
mod mount_options;
mod netram;
mod netram_args;
mod option_table;
mod pages;
mod progress;
mod rebalance;
mod remount;
mod resize;
mod salvage;
mod scrub;
mod serve;
mod status;
mod umount;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command, MountHelper};
use failure::EXIT_USAGE;
use shoal_devices::Outcome;

const MOUNT_HELPER: &str = "mount.fuse.shoal";

fn main() -> ExitCode {
    shoal_host::as_usual();
    failure::die_quietly_on_broken_pipes();
    let outcome = if invoked_as(MOUNT_HELPER) {
        mount::run_helper(&MountHelper::parse()).map(|()| ExitCode::SUCCESS)
    } else {
        run(failure::parse("shoal", code_of))
    };
    outcome.unwrap_or_else(|failure| failure::end(&failure))
}

fn invoked_as(name: &str) -> bool {
    std::env::args_os().next().is_some_and(|program| Path::new(&program).file_name() == Some(OsStr::new(name)))
}

/// Returns the exit code of a wrong command line; that of `check` is fsck's.
fn code_of(command: Option<&str>, code: i32) -> i32 {
    if command == Some("check") { EXIT_USAGE.into() } else { code }
}

fn run(cli: Cli) -> Outcome<ExitCode> {
    match &cli.command {
        Command::Format(args) => format::run(args)?,
        Command::Mount(args) => return mount::run(args),
        Command::Umount(args) => umount::run(args)?,
        Command::Df(args) => df::run(args)?,
        Command::Check(args) => return Ok(operational(check::run(args))),
        Command::Salvage(args) => return Ok(operational(salvage::run(args))),
        Command::Copy(args) => copy::run(args)?,
        Command::Resize(args) => resize::run(args)?,
        Command::Bulk(command) => bulk::run(command)?,
        Command::Compact(args) => compact::run(args)?,
        Command::Rebalance(args) => rebalance::run(args)?,
        Command::Scrub(args) => scrub::run(args)?,
        Command::Inspect(args) => inspect::run(args)?,
        Command::Serve(args) => serve::run(args)?,
        Command::Status(args) => status::run(args)?,
        Command::Donor(command) => status::run_donor(command)?,
        Command::Netram(command) => netram::run(command)?,
        Command::Doctor(args) => return doctor::run(args),
        Command::Bench(args) => bench::run(args)?,
        Command::Donate(args) => donate::run(args)?,
        Command::Lab(words) => lab::run(None, words)?,
        Command::Profile(words) => lab::run(Some("profile"), words)?,
        Command::Man { directory } => pages::write_manual(directory)?,
        Command::Completions { shell } => manual::print_completions(*shell, Cli::command())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends a command whose exit codes are those of fsck(8).
fn operational(outcome: Outcome<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|failure| failure::end_with(&failure, failure::EXIT_OPERATIONAL))
}
