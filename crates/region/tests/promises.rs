//! What is promised is known before a flush begins, and a record that lets go of promised bytes is refused.
//!
//! The cases are in `promise`, which the hunt for planted bugs uses too. Left out: what the file system makes of it
//! (`crates/fs/tests/tiers.rs`).

#[test]
fn a_record_that_lets_go_of_bytes_is_refused_from_the_moment_a_flush_promises_them() {
    crate::promise::a_flush_under_way_is_a_promise().unwrap();
}

#[test]
fn a_promise_without_a_flush_counts_as_well() {
    crate::promise::a_promise_needs_no_flush().unwrap();
}
