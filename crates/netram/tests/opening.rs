//! A full disk opens by its checkpoint within the promised time and memory (docs/design/netram.md,
//! "Checkpoints").
//!
//! Donors compute their contents, so that a disk can be large. Each block is compared afterwards.
//! `SHOAL_DEEP=1` opens 1 TiB.

#[path = "../examples/opening.rs"]
#[allow(dead_code, reason = "the example has a main of its own")]
mod example;

use example::{Figures, open};

/// Maximum memory for a block (bytes).
const BLOCK_MEMORY: f64 = 16.0;
/// Header bytes of all units of a 1 GiB disk over four donors: what opening reads from each donor
/// without a checkpoint.
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
        // Without a checkpoint there is one operation for each header.
        let units = (gib << 18) / ((donors - 1) * 8) * donors;
        assert!(operations < units / 8, "{operations} operations for {units} units");
        assert!(read_bytes < 2 * gib * HEADERS_GIB / donors * 4, "{read_bytes} bytes");
        if deep {
            assert!(memory < BLOCK_MEMORY && peak < BLOCK_MEMORY, "{memory:.2} bytes a block, {peak:.2} at the peak");
            // Usually 7 to 10 s, but others may use the machine, too.
            assert!(seconds < 20.0, "{seconds:.2} s");
        }
    }
}
