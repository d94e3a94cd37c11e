//! Planted bugs (docs/design/testing.md, T7): rules of the write-back cache are broken one at a
//! time, and lives must notice.
//!
//! Rules: without a planted bug, no life fails. Left out: the lives (`lives`), the list of rules
//! (`src/planted.rs`).

#[allow(dead_code, reason = "the other test uses the rest")]
mod lives;

use lives::past::overwritten;
use lives::{lives, rewritten};
use shoal_writeback::planted::{Bug, plant};

#[test]
fn every_planted_bug_is_found() {
    assert!(
        (0..20).all(|cut| rewritten(cut).is_ok()) && overwritten().is_ok() && (0..40).all(|seed| lives(seed).is_ok()),
        "found without a bug"
    );
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = vec![];
    for bug in Bug::chosen() {
        plant(Some(bug));
        // A bug that makes the filter panic counts as found, too.
        let finds = |seed| std::panic::catch_unwind(|| lives(seed)).map_or(true, |outcome| outcome.is_err());
        if (0..20).all(|cut| rewritten(cut).is_ok()) && overwritten().is_ok() && !(0..300).any(finds) {
            missed.push(bug);
        }
    }
    plant(None);
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
