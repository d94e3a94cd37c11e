//! `shoal copy`: makes an independent, compact store with the same contents.
//!
//! Owns the line that is printed; copying itself is in `shoal_store`.

use shoal_devices::Outcome;
use shoal_devices::size::human;
use shoal_store::{CopyOptions, Store};

use crate::args::CopyArgs;
use crate::json;
use crate::progress::Bars;

pub fn run(args: &CopyArgs) -> Outcome<()> {
    let store = Store::acquire_unmounted(&args.store)?;
    let options = CopyOptions { memory: args.memory.clone(), keep_uuid: args.keep_uuid };
    let copied = store.copy_to(&args.new, &options, &Bars::new(args.json))?;
    if args.json {
        json::print_json(&copied);
    } else {
        let (inodes, region, bulk) = (copied.inodes, human(copied.region_bytes), human(copied.bulk_bytes));
        println!("{}: {inodes} inodes, {region} of memory and {bulk} of large files copied, no errors", copied.copy);
    }
    Ok(())
}
