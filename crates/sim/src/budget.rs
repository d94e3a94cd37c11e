//! Time budget of a long search.
//!
//! Owns: [`Budget`], which ends a search between two items. Left out: which items come first (`Random::shuffled`).

use std::time::{Duration, Instant};

/// The time limit of one search, from `SHOAL_DEEP_SECONDS`, which `cargo xtask deep` sets. Without
/// the variable a search runs to its end. The default has no limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    until: Option<Instant>,
}

impl Budget {
    /// Starts the budget of a whole search.
    pub fn of_a_search() -> Budget {
        Budget::of_a_part(1)
    }

    /// Starts the budget of one of `parts` equal parts of a search.
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

    /// Returns the items until time runs out. The first item is always included.
    pub fn within<T>(self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        items.into_iter().enumerate().take_while(move |(turn, _)| *turn == 0 || !self.is_spent()).map(|(_, item)| item)
    }
}
