//! A full disk opens by its checkpoint in the time and the memory that are promised (docs/design/netram.md, "Checkpoints").
//!
//! Donors compute what they hold, so that a disk can be large; each block is compared afterwards. `SHOAL_DEEP=1` opens 1 TiB.

#[path = "../examples/opening.rs"]
#[allow(dead_code, reason = "the example has a main of its own")]
mod example;

use example::{Figures, open};

/// Bytes of memory that a block may need.
const BLOCK_MEMORY: f64 = 16.0;
/// Header bytes of all units of a disk of 1 GiB over four donors: what opening reads without a checkpoint, of each donor.
const HEADERS_GIB: u64 = (1 << 18) / 24 * 1024;

#[test]
fn a_full_disk_opens_by_reading_its_checkpoint_and_what_was_written_since() {
    let deep = std::env::var_os("SHOAL_DEEP").is_some();
    let gib = if deep { 1024 } else { 8 };
    for donors in [4, 8] {
        let Figures { seconds, operations, read_bytes, memory, peak } = open(gib, donors, 128);
        println!(
            "{gib} GiB, {donors} donors: {seconds:.2} s, {operations} operations, {read_bytes} bytes, {memory:.2}, {peak:.2}"
        );
        // One operation for each header otherwise.
        let units = (gib << 18) / ((donors - 1) * 8) * donors;
        assert!(operations < units / 8, "{operations} operations for {units} units");
        assert!(read_bytes < 2 * gib * HEADERS_GIB / donors * 4, "{read_bytes} bytes");
        if deep {
            assert!(memory < BLOCK_MEMORY && peak < BLOCK_MEMORY, "{memory:.2} bytes a block, {peak:.2} at the peak");
            // 7 to 10 s; others may use the machine, too.
            assert!(seconds < 20.0, "{seconds:.2} s");
        }
    }
}
