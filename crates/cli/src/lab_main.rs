//! The `shoal-lab` command: what needs the simulator, the models and the plots.
//!
//! `shoal lab` and `shoal profile` find and start it (`lab`), so that the daemon links none of
//! them. Errors and exit codes are as in `shoal`.

#![forbid(unsafe_code)]

mod experiments;
#[allow(dead_code, reason = "the exit codes of some commands are those of other programs")]
mod failure;
mod json;
mod manual;
mod profile;
mod unshared;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use shoal_devices::Outcome;
use shoal_lab::RunArgs;

#[derive(Debug, Parser)]
#[command(
    name = "shoal-lab",
    version,
    about = "Run the experiments of the papers behind Shoal, and print the papers' figures beside ours; `shoal lab` starts this program",
    propagate_version = true,
    disable_help_subcommand = true
)]
#[command(after_help = "Examples:\n  \
    shoal lab list\n  \
    shoal lab run all --quick --out results\n  \
    shoal lab run netram --quick\n  \
    shoal lab run netram --trace week.srt --out results\n  \
    shoal lab run ramdisk --quick\n  \
    shoal lab run idle-time --out results\n  \
    shoal lab run update-policy --out results\n  \
    shoal lab run inodes --tree /usr /var\n  \
    shoal lab run small-files --tree /usr\n  \
    shoal lab run mramfs --at shoal=/mnt/shoal --scale 0.1\n  \
    shoal lab run conquest --at shoal=/mnt/shoal --at ext4=/mnt/ext4 --only small-files\n  \
    shoal lab run trees --at shoal=/mnt/shoal --at ext4=/mnt/ext4 --scale 0.1\n\n\
    Experiments on models report simulated times, and say so.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the experiments with their papers and options, and the papers' figures and tables with what the kept runs show
    List {
        /// Report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run an experiment and print its figures beside the paper's
    Run(Box<RunArgs>),
    /// Make a profile from a directory tree: tables for packing inodes like those in it; the same as `shoal profile`
    Profile(profile::ProfileArgs),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man { directory: PathBuf },
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
}

fn main() -> ExitCode {
    shoal_host::as_usual();
    failure::die_quietly_on_broken_pipes();
    run(&failure::parse("shoal-lab", |_, code| code))
        .map_or_else(|failure| failure::end(&failure), |()| ExitCode::SUCCESS)
}

fn run(cli: &Cli) -> Outcome<()> {
    match &cli.command {
        Command::List { json } => experiments::list(*json),
        Command::Run(args) => experiments::run(args)?,
        Command::Profile(args) => profile::run(args)?,
        Command::Man { directory } => {
            let mut lab = Cli::command();
            lab.build();
            manual::write_pages(directory, "shoal", lab.get_subcommands().filter(|one| one.get_name() == "profile"))?;
            manual::write_pages(
                directory,
                "shoal-lab",
                lab.get_subcommands().filter(|one| one.get_name() != "profile"),
            )?;
            manual::write_page(directory, Cli::command(), "1")?;
        }
        Command::Completions { shell } => manual::print_completions(*shell, Cli::command())?,
    }
    Ok(())
}
