//! The share of a search that one commit visits.
//!
//! Owns: [`is_due`], and [`due`] for items in order. A search that takes too long for every commit visits a share of its items, and
//! the next commit the next share, so that as many commits as there are shares visit them all.
//! Left out: how long a search may take (`budget`).

/// Returns whether this commit visits item `index` of a search, of which each commit visits one in
/// `shares`. `make test` counts `SHOAL_TURN` up with each commit. With `SHOAL_DEEP` every item is
/// due.
pub fn is_due(index: u64, shares: u64) -> bool {
    let turn = std::env::var("SHOAL_TURN").map_or(0, |turn| turn.parse().expect("SHOAL_TURN is a number"));
    std::env::var_os("SHOAL_DEEP").is_some() || index % shares == turn % shares
}

/// Returns those of the items, counted from 0, that are due.
pub fn due<T>(items: impl IntoIterator<Item = T>, shares: u64) -> impl Iterator<Item = T> {
    items.into_iter().zip(0..).filter(move |(_, index)| is_due(*index, shares)).map(|(item, _)| item)
}
