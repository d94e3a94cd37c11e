//! Time budget of a long search.
//!
//! Owns: [`Budget`], which ends a search between two items. Left out: which items come first (`Random::shuffled`).

use std::time::{Duration, Instant};

/// The time of one search: `SHOAL_DEEP_SECONDS`, which `cargo xtask deep` sets; without it a search goes to its end.
/// The default is without a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    until: Option<Instant>,
}

impl Budget {
    /// Begins now.
    pub fn of_a_search() -> Budget {
        Budget::of_a_part(1)
    }

    /// The same for one of several parts of a search.
    pub fn of_a_part(parts: u32) -> Budget {
        let seconds = std::env::var("SHOAL_DEEP_SECONDS").ok();
        let seconds = seconds.map(|text| text.parse().expect("SHOAL_DEEP_SECONDS is a number"));
        Budget { until: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds) / parts) }
    }

    pub fn is_limited(&self) -> bool {
        self.until.is_some()
    }

    pub fn is_spent(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// The items up to the one at which the time is over. The first is always among them.
    pub fn within<T>(self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        items.into_iter().enumerate().take_while(move |(turn, _)| *turn == 0 || !self.is_spent()).map(|(_, item)| item)
    }
}
