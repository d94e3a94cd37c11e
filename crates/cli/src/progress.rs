//! Progress of long work: a bar on a terminal, nothing elsewhere.
//!
//! Bars go to standard error, so that reports can be piped; with `--json` there is none.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that counts steps.
pub fn steps(total: u64, silent: bool) -> ProgressBar {
    if silent {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// A line that only tells that something goes on, shown when it takes longer than a moment.
pub fn waiting(message: &str, silent: bool) -> ProgressBar {
    if silent {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(message.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
