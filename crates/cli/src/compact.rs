//! `shoal compact`: packs files and inodes now, before they have cooled, and compacts the memory.
//!
//! A mounted store's daemon does the work in batches of files. Other programs can proceed in
//! between.

use shoal_devices::Outcome;
use shoal_devices::size::human;
use shoal_store::{packing, place};

use crate::args::CompactArgs;
use crate::json;
use crate::progress::Bars;

pub fn run(args: &CompactArgs) -> Outcome<()> {
    let place = place::find(&args.store)?;
    let compacted = packing::compact(&place.store, &args.path, &Bars::new(args.json))?;
    if args.json {
        json::print_json(&compacted);
        return Ok(());
    }
    let (before, after) = (human(compacted.before_bytes), human(compacted.after_bytes));
    println!("{} files; those packed now took {before} before and take {after} now", compacted.files);
    if compacted.busy > 0 {
        println!("{} were being changed and stay unpacked; they are packed once they stop changing", compacted.busy);
    }
    if compacted.no_room > 0 {
        println!(
            "{} could not be packed for lack of room; remove files or enlarge the memory (`shoal resize`), and compact again",
            compacted.no_room
        );
    }
    Ok(())
}
