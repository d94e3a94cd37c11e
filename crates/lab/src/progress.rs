//! The progress of experiments that take an hour, on a terminal.
//!
//! Owns: how it looks. Left out: what is being done, which each experiment says.

use indicatif::{ProgressBar, ProgressStyle};

/// A line that counts runs; its message is what runs.
pub fn of_runs(runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} runs, {elapsed}: {msg}");
    ProgressBar::new(runs).with_style(style.expect("a template that is right"))
}
