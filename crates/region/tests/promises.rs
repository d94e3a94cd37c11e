//! A promise is recorded before a flush begins, and a record that lets go of promised bytes is
//! refused.
//!
//! The cases are in `promise`, which the search for planted bugs uses too. Left out: how the file
//! system uses promises (`crates/fs/tests/tiers.rs`).

#[test]
fn a_record_that_lets_go_of_bytes_is_refused_from_the_moment_a_flush_promises_them() {
    crate::promise::a_flush_under_way_is_a_promise().unwrap();
}

#[test]
fn a_promise_without_a_flush_counts_as_well() {
    crate::promise::a_promise_needs_no_flush().unwrap();
}
