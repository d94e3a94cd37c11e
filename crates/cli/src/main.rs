//! The `shoal` command.
//!
//! | module | owns |
//! |---|---|
//! | `args`, `mount_options`, `option_table` | the syntax of the command line |
//! | `format`, `mount`, `remount`, `umount`, `df`, `check`, `copy`, `resize`, `bulk`, `salvage`, `inspect`, `compact`, `bench`, `donate`, `lab`, `profile`, `pages` | one command each |
//! | `serve`, `status` | a block device for NBD clients, and its state; a network RAM disk's donors |
//! | `daemon` | the process that serves a mount |
//! | `failure`, `json`, `progress` | how commands fail, report to programs, and show progress |
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
mod donate;
mod failure;
mod format;
mod inspect;
mod json;
mod kernel_requests;
mod lab;
mod mount;
mod mount_options;
mod netram;
mod option_table;
mod pages;
mod profile;
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
    die_quietly_on_broken_pipes();
    let outcome = if invoked_as(MOUNT_HELPER) {
        mount::run_helper(&MountHelper::parse()).map(|()| ExitCode::SUCCESS)
    } else {
        run(parse())
    };
    outcome.unwrap_or_else(|failure| failure::end(&failure))
}

fn invoked_as(name: &str) -> bool {
    std::env::args_os().next().is_some_and(|program| Path::new(&program).file_name() == Some(OsStr::new(name)))
}

/// Parses like `Cli::parse`, but an error is one line like all others, and a wrong `check` command
/// line has fsck's exit code.
fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
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
        let command = std::env::args_os().nth(1).filter(|word| Cli::command().find_subcommand(word).is_some());
        let command = command.map_or_else(String::new, |word| format!(" {}", word.to_string_lossy()));
        match similar.is_empty() {
            true => eprintln!("shoal{command}: {cause}; `shoal{command} --help` lists the options"),
            false => eprintln!("shoal{command}: {cause}; {similar}`shoal{command} --help`"),
        }
        std::process::exit(if command == " check" { EXIT_USAGE.into() } else { error.exit_code() })
    })
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
        Command::Bench(args) => bench::run(args)?,
        Command::Donate(args) => donate::run(args)?,
        Command::Lab(args) => lab::run(args)?,
        Command::Profile(args) => profile::run(args)?,
        Command::Man { directory } => pages::write_manual(directory)?,
        Command::Completions { shell } => pages::print_completions(*shell)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends a command whose exit codes are those of fsck(8).
fn operational(outcome: Outcome<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|failure| failure::end_with(&failure, failure::EXIT_OPERATIONAL))
}

/// Makes the program end silently when the reader of a pipe has gone, where `println!` panics.
fn die_quietly_on_broken_pipes() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        if text.starts_with("failed printing to stdout") && text.contains("Broken pipe") {
            std::process::exit(0);
        }
        print(info);
    }));
}
