//! Every operation at every alignment around the end of file and the boundaries of chunks and
//! blocks (docs/design/testing.md, T5).
//!
//! Each case runs on the three kinds of memory and is compared with a plain byte vector, then again
//! after a remount, a process crash and power losses. Writes that fail there are tried, too.
//! `SHOAL_DEEP=1` leaves no case out.

use std::time::Instant;

use crate::crash::deep;
use crate::edges::{Edges, STARTS};
use shoal_format::superblock::MemoryKind;

fn explore(kind: MemoryKind, every: u64) {
    let began = Instant::now();
    let mut edges = Edges::new(kind);
    let every = if deep() { 1 } else { every };
    let failures: Vec<String> = STARTS.iter().flat_map(|start| edges.explore(start, every)).collect();
    let (cases, states, seconds) = (edges.cases, edges.states, began.elapsed().as_secs_f64());
    println!("{}: {cases} cases about the end of file, {states} crash states in {seconds:.1} s", kind.name());
    let count = failures.len();
    assert!(failures.is_empty(), "{count} of {cases} fail:\n{}", failures[..count.min(20)].join("\n"));
    assert!(cases > 150, "only {cases} cases");
}

#[test]
fn operations_about_the_end_of_file_keep_its_bytes_on_logged_memory() {
    explore(MemoryKind::Logged, 12);
}

#[test]
fn operations_about_the_end_of_file_keep_its_bytes_on_battery_memory() {
    explore(MemoryKind::Battery, 24);
}

#[test]
fn operations_about_the_end_of_file_keep_its_bytes_on_dax_memory() {
    explore(MemoryKind::Dax, 24);
}

#[test]
fn bytes_cut_off_do_not_come_back_where_the_file_is_written_again() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax] {
        Edges::new(kind).appends_at_the_cut().unwrap_or_else(|failure| panic!("{}: {failure}", kind.name()));
    }
}

#[test]
fn a_write_that_a_device_refuses_leaves_nothing_behind_the_end() {
    let mut edges = Edges::new(MemoryKind::Logged);
    let mut failures = Vec::new();
    for nth in 0..5 {
        for (at, len) in [(150_001, 3000), (150_001, 100_000), (149_900, 200), (100_000, 60_000), (150_100, 1)] {
            if let Err(failure) = edges.failing_device(nth, at, len) {
                failures.push(format!("call {nth} of a write of {len} bytes at {at}: {failure}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_write_for_which_the_region_is_full_leaves_nothing_behind_the_end() {
    let mut failures = Vec::new();
    let (mut refused, mut cases) = (0, 0);
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        let mut edges = Edges::new(kind);
        for start in STARTS.iter().filter(|start| start.name == "a hole before the last block") {
            for at in [131_072, 131_073, 190_000, 196_607, 150_000] {
                for end in [209_999u64, 210_000, 210_001, 215_000, 262_143, 262_144, 262_145] {
                    for turn in 0..4 {
                        match edges.full_region(start, at, (end - at) as usize, turn) {
                            Ok(failed) => refused += failed as u64,
                            Err(failure) => failures.push(format!("{}: write {at} to {end}: {failure}", kind.name())),
                        }
                    }
                }
            }
        }
        cases += edges.cases;
    }
    println!("{refused} of {cases} writes were refused");
    let count = failures.len();
    assert!(failures.is_empty(), "{count} of {cases} fail:\n{}", failures[..count.min(20)].join("\n"));
    assert!(refused > 0, "the region was not full");
}
