//! Progress of long work: a bar on a terminal, nothing elsewhere.
//!
//! Bars go to standard error, so that reports can be piped. With `--json` there is no bar.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use shoal_store::Progress;

/// Returns a bar that counts steps.
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

/// Returns a line that only shows that work continues. It appears if the work takes longer than a
/// moment.
pub fn waiting(message: &str, silent: bool) -> ProgressBar {
    if silent {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(message.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Shows each step of long work as a bar, or as a line if its length is unknown.
pub struct Bars {
    silent: bool,
    bar: Mutex<Option<Bar>>,
}

struct Bar {
    bar: ProgressBar,
    /// Whether the bar counts units.
    counts: bool,
}

impl Bars {
    pub fn new(silent: bool) -> Bars {
        Bars { silent, bar: Mutex::default() }
    }
}

impl Progress for Bars {
    fn begin(&self, step: &str, total: u64) {
        let mut shown = self.bar.lock();
        let counts = total > 0;
        match shown.as_ref().filter(|shown| shown.counts == counts) {
            Some(Bar { bar, .. }) => {
                bar.set_message(step.to_string());
                bar.set_length(total);
                bar.set_position(0);
            }
            None => {
                if let Some(Bar { bar, .. }) = shown.take() {
                    bar.finish_and_clear();
                }
                let bar = match counts {
                    true => steps(total, self.silent).with_message(step.to_string()),
                    false => waiting(step, self.silent),
                };
                *shown = Some(Bar { bar, counts });
            }
        }
    }

    fn at(&self, done: u64) {
        if let Some(Bar { bar, counts: true }) = &*self.bar.lock() {
            bar.set_position(done);
        }
    }

    fn end(&self) {
        if let Some(Bar { bar, .. }) = self.bar.lock().take() {
            bar.finish_and_clear();
        }
    }
}
