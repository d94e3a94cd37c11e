//! `shoal resize`: changes the limits of a store, mounted or not.
//!
//! A mounted store is asked through its control socket: its limits can change while it is in use,
//! within its layout.

use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_store::control::{self, Question};
use shoal_store::{LEAVING_PATIENCE, Resized, Sizes, Store, place};

use crate::args::ResizeArgs;
use crate::json;
use crate::progress::Bars;

pub fn run(args: &ResizeArgs) -> Outcome<()> {
    if args.memory_size.is_none() && args.bulk_size.is_none() {
        return Err(Failure::new("resize", "no size is given").remedy("add --memory-size or --bulk-size").misuse());
    }
    let place = place::find(&args.store)?;
    let (memory_bytes, bulk_bytes) = (args.memory_size.map(|size| size.0), args.bulk_size.map(|size| size.0));
    let resized: Resized = match control::ask(&place.store, &Question::Resize { memory_bytes, bulk_bytes })? {
        Some(value) => serde_json::from_value(value).during("answer of the daemon")?,
        None => {
            let store = Store::acquire(&place.store, LEAVING_PATIENCE)?;
            store.resize(&Sizes { memory_bytes, bulk_bytes }, &Bars::new(args.json))?
        }
    };
    if args.json {
        json::print_json(&resized);
    } else {
        let (memory, bulk) = (human(resized.memory_bytes), human(resized.bulk_bytes));
        println!("{}: up to {memory} of metadata and small files, up to {bulk} of large files", resized.store);
    }
    Ok(())
}
