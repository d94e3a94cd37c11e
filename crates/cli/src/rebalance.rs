//! `shoal rebalance`: moves files to the tier where their thresholds put them now.
//!
//! A mounted store's daemon does about half a second of the work for each question. Other programs
//! can proceed in between.

use shoal_devices::Outcome;
use shoal_devices::size::human;
use shoal_store::{Rebalanced, place, rebalance};

use crate::args::RebalanceArgs;
use crate::json;
use crate::progress::Bars;

pub fn run(args: &RebalanceArgs) -> Outcome<()> {
    let (place, within) = place::find_within(&args.path)?;
    let done = rebalance::rebalance_below(&place.store, &within, &Bars::new(args.json))?;
    if args.json {
        json::print_json(&done);
    } else {
        print!("{}", text(&done));
    }
    Ok(())
}

fn text(done: &Rebalanced) -> String {
    let mut out = format!(
        "{} files ({}) moved to bulk storage, {} ({}) into memory\n",
        done.to_bulk,
        human(done.to_bulk_bytes),
        done.to_memory,
        human(done.to_memory_bytes)
    );
    if done.no_room > 0 {
        out += &format!(
            "{} found no room and stay where they are; remove files or enlarge the tier (`shoal resize`), and rebalance again\n",
            done.no_room
        );
    }
    if done.stay > 0 {
        out +=
            &format!("{} stay where they are: space was reserved in them, or they are longer than 64 MiB\n", done.stay);
    }
    if done.unreadable > 0 {
        out += &format!(
            "{} could not be read; `shoal scrub` names those damaged on bulk storage, `shoal check` (unmounted) the others\n",
            done.unreadable
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stayed_is_said_with_the_reason() {
        let mut done = Rebalanced { to_bulk: 2, to_bulk_bytes: 3 << 20, ..Rebalanced::default() };
        assert_eq!(text(&done), "2 files (3 MiB) moved to bulk storage, 0 (0 B) into memory\n");
        (done.no_room, done.stay, done.unreadable) = (1, 2, 3);
        let text = text(&done);
        assert!(
            text.contains("\n1 found no room") && text.contains("\n2 stay") && text.contains("\n3 could not"),
            "{text}"
        );
    }
}
