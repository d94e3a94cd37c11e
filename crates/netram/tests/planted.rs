//! Every rule of the engine is broken once, and the storm must notice (docs/design/testing.md, T7).
//!
//! `cargo test --release -p shoal-netram --features planted --test planted -- --nocapture` prints the list with the seed that
//! caught each bug. One test, because a planted bug is planted for the whole process.

mod world;

use shoal_netram::planted::{Bug, plant};
use world::storm::stormy;

/// Lives tried for each bug.
const SEEDS: u64 = 300;

#[test]
fn every_planted_bug_is_caught() {
    std::panic::set_hook(Box::new(|_| ()));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        plant(Some(bug));
        let caught = (0..SEEDS).find_map(|seed| match std::panic::catch_unwind(|| stormy(seed)) {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some((seed, error.to_string())),
            Err(_) => Some((seed, "panic".to_string())),
        });
        plant(None);
        match caught {
            Some((seed, how)) => println!("{bug:?}: seed {seed}: {}", how.chars().take(100).collect::<String>()),
            None => {
                println!("{bug:?}: not caught");
                missed.push(bug);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not caught in {SEEDS} lives: {missed:?}");
}
