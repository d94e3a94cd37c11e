//! Progress of hour-long experiments on a terminal.
//!
//! Owns: the appearance of the bar. Left out: the description of the work, which each experiment
//! gives.

use indicatif::{ProgressBar, ProgressStyle};

/// Returns a line that counts runs. Its message names the current run.
pub fn of_runs(runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} runs, {elapsed}: {msg}");
    ProgressBar::new(runs).with_style(style.expect("a template that is right"))
}
