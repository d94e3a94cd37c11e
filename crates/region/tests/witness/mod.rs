//! Log writes that a disk acknowledges but does not make, and crashes that lose nothing a flush had
//! covered.
//!
//! The store has one slot, in which transaction n stores n. Used by the test of witnesses and by
//! the search for planted bugs.

#![allow(dead_code, reason = "each test binary uses its part")]

use shoal_format::{PAGE, SEGMENT, SlotRef};
use shoal_region::{Error, Parts, Region, View, newest_image};
use shoal_sim::{Call, Fault, FaultPlan, Limits, SimMemory, World};

use crate::logged::{geometry, images, parts, world};

const REGION_BYTES: u64 = 16 * SEGMENT;
/// Data of a long record (bytes). Five of them exceed `GAP_BYTES_MAX`.
pub const LONG: usize = 300 << 10;

pub fn media(world: &World, boot: u8) -> Parts {
    let (newest, _, anchor) = newest_image(&images(world)).expect("an image");
    let from = (world.image(newest), anchor.used_bytes.get().next_multiple_of(PAGE));
    parts(world, SimMemory::volatile(REGION_BYTES, Some(from)), boot)
}

/// Makes a sealed store, and returns its slot.
pub fn store() -> (World, Region, SlotRef) {
    let world = world();
    let parts = parts(&world, SimMemory::volatile(REGION_BYTES, None), 1);
    let region = Region::create(geometry(REGION_BYTES, 0), parts).expect("made");
    let mut tx = region.begin();
    let slot = tx.alloc(LONG as u64).expect("room");
    tx.zero(slot.offset(), LONG as u64).expect("fits");
    tx.commit().expect("committed");
    region.checkpoint().expect("sealed");
    (world, region, slot)
}

/// Commits transaction `n`, with `len` bytes.
pub fn commit(region: &Region, slot: SlotRef, n: u64, len: usize) {
    let mut tx = region.begin();
    tx.write(slot.offset(), &n.to_le_bytes()).expect("fits");
    tx.write(slot.offset() + 8, &vec![n as u8; len]).expect("fits");
    tx.commit().expect("committed");
}

/// Returns the last transaction that an opening finds.
pub fn last(world: &World, slot: SlotRef, boot: u8) -> Result<u64, Error> {
    let (region, _) = Region::open(media(world, boot), true)?;
    let bytes = region.read_vec(slot.offset(), 8)?;
    Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// Lets the disk acknowledge the `nth` append and the `count - 1` after it without making them.
pub fn lose_appends(world: &World, nth: u64, count: u64) {
    for nth in nth..nth + count {
        world.fail(FaultPlan { call: Call::LogAppend, nth, for_good: false, fault: Fault::Lie });
    }
}

pub fn limits() -> Limits {
    Limits { subset_units: 6, torn: 4, each: 8, samples: 16 }
}

/// Checks that every opening, after a process crash or a power loss, notices lost writes of any
/// number and length. Other writes follow the lost ones and are flushed with them.
pub fn lost_appends_are_found() -> Result<(), String> {
    const COUNT: u64 = 9;
    for len in [20, 3000, LONG - 8] {
        for (nth, lost) in [(0, 1), (3, 1), (6, 1), (0, 5), (2, 6)] {
            let (world, region, slot) = store();
            commit(&region, slot, 1, 20);
            region.sync().expect("synced");
            lose_appends(&world, nth, lost);
            for n in 2..2 + COUNT {
                commit(&region, slot, n, len);
                if n != COUNT {
                    region.sync().expect("synced");
                }
            }
            let name = format!("records of {len}, {lost} from {nth} on");
            let point = world.snapshot();
            let states =
                std::iter::once((point.process_crash(), 1)).chain(point.power_losses(&limits()).map(|s| (s, 2)));
            for (state, boot) in states {
                match last(&state.open(), slot, boot) {
                    Err(Error::LogGap { .. }) => {}
                    // All witnesses of the loss disappeared with the last two records.
                    Ok(n) if nth == 6 && boot == 2 && n == 2 + nth - 1 => {}
                    other => return Err(format!("{name}, {}: {other:?}", state.name())),
                }
            }
        }
    }
    Ok(())
}
