//! The trace of 1992, if it lies beside the checkout: its known numbers, and the properties of a
//! small disk made from it.
//!
//! Owns: the numbers that others have counted in the same file. Without the trace the tests are
//! skipped with a message. Readers on hostile bytes are tested beside their code, on generated
//! traces.

use std::path::Path;

use shoal_lab::trace::shape::{Footprint, Summary};
use shoal_lab::trace::{self, Kind};

const MAIN_DISK: u32 = 0x800_0008;

pub fn week() -> Option<std::path::PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/ajw.1week.srt");
    if !path.exists() {
        eprintln!("SKIPPED: no trace at {}", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn the_week_of_a_workstation_has_the_known_numbers() {
    let Some(path) = week() else { return };
    let all = trace::open(&path).unwrap();
    assert_eq!(all.len(), 44_519);
    let (device, main) = trace::of_device(&all, None).unwrap();
    assert_eq!(device, MAIN_DISK, "the busiest disk is the main one");
    let summary = Summary::of(&main, 1024);
    let expected = Summary {
        requests: 40_293,
        reads: 40_293 - 31_138,
        writes: 31_138,
        blocks_read: 48_701,
        blocks_written: 193_029,
        footprint_blocks: 22_787,
        written_footprint_blocks: 11_294,
    };
    assert_eq!(summary, expected);
    assert_eq!(summary.blocks_written / summary.written_footprint_blocks, 17, "each is overwritten 17 times");
}

#[test]
fn a_small_disk_gets_the_same_requests() {
    let Some(path) = week() else { return };
    let (_, main) = trace::of_device(&trace::open(&path).unwrap(), Some(MAIN_DISK)).unwrap();
    let footprint = Footprint::of(&main, 1024);
    let dense = footprint.compact(&main);
    assert_eq!(Summary::of(&dense, 1024), Summary::of(&main, 1024));
    for (sparse, dense) in main.iter().zip(&dense) {
        assert_eq!((sparse.time_ns, sparse.kind, sparse.len), (dense.time_ns, dense.kind, dense.len));
    }
    // Requests that continued each other still do.
    let continued = |requests: &[trace::Request]| {
        requests.windows(2).filter(|pair| pair[0].at + u64::from(pair[0].len) == pair[1].at).count()
    };
    assert!(continued(&dense) >= continued(&main));
}

#[test]
fn the_same_trace_as_csv_reads_the_same() {
    let Some(path) = week() else { return };
    let all = trace::open(&path).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let copy = scratch.path().join("week.csv");
    trace::csv::write(&all, std::fs::File::create(&copy).unwrap()).unwrap();
    assert_eq!(trace::open(&copy).unwrap(), all);
    assert!(all.iter().any(|request| request.kind == Kind::Read));
}

#[test]
fn a_disk_that_is_not_in_the_trace_is_refused_with_those_that_are() {
    let Some(path) = week() else { return };
    let error = trace::of_device(&trace::open(&path).unwrap(), Some(1)).unwrap_err().to_string();
    assert!(error.contains("0x8000008 (40293)"), "{error}");
}
