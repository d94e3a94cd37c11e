//! The idle-time experiment as a whole: properties on any machine, for any seed.
//!
//! Owns: properties of a small run through its command line: its tables and plots are there, time
//! is called simulated, and the main claim holds. Left out: the individual systems (their modules),
//! the paper's figures (its page).

use crate::common::rows;
use serde_json::Value;

fn report(options: &str) -> (Value, Vec<String>) {
    crate::common::report(&format!("idle-time {options}"))
}

/// Returns the numbers of a table's column, from top to bottom.
fn column(report: &Value, table: &str, column: &str) -> Vec<f64> {
    rows(report, table).iter().map(|row| row[column].as_f64().unwrap()).collect()
}

#[test]
fn idle_time_helps_the_buffered_and_buffered_eager_writing_needs_the_least_of_it() {
    let options =
        "--disk st19101 --bursts-kb 256,1024 --idle-ms 0,30,100,400,2000 --utilisation 40,80 --updates 12000 --seeds 1";
    let (found, files) = report(options);
    for burst in ["256 KB", "1024 KB"] {
        let of = |name: &str| column(&found, &format!("{name}-st19101"), burst);
        let (lfs, vlfs, vld) = (of("figure-10"), of("vlfs"), of("figure-11"));
        assert!(lfs.len() == 5 && lfs[4] < 0.1001 && vlfs[4] < 0.1001, "memory speed: {lfs:?} {vlfs:?}");
        assert!(lfs[0] > 0.3 && vlfs[0] > 0.2 && vld[0] > 0.5, "{lfs:?} {vlfs:?} {vld:?}");
        assert!(vlfs.iter().zip(&lfs).all(|(vlfs, lfs)| *vlfs <= lfs * 1.02), "{vlfs:?} {lfs:?}");
        assert!(vlfs.iter().zip(&vld).all(|(vlfs, vld)| vlfs < vld), "{vlfs:?} {vld:?}");
        assert!(vld.iter().all(|ms| *ms > 0.4), "each update reaches the disk: {vld:?}");
    }
    let at_80 = |kind: &str| column(&found, "utilisation-st19101", kind)[1];
    assert!(at_80("UFS") > 5.0 * at_80("VLFS+NVRAM") && at_80("UFS") > 1.5 * at_80("UFS on VLD"));
    assert!(at_80("LFS+NVRAM") > column(&found, "utilisation-st19101", "LFS+NVRAM")[0], "cleaning costs more");
    for table in found["tables"].as_array().unwrap() {
        assert!(table["title"].as_str().unwrap().contains("simulated time"), "{}", table["title"]);
    }
    for plot in ["figure-10", "figure-11", "vlfs", "burst-256", "burst-1024", "utilisation"] {
        assert!(files.contains(&format!("idle-time-{plot}-st19101.svg")), "{plot}: {files:?}");
    }
}

#[test]
fn a_point_without_room_is_left_empty_and_told() {
    let (found, _) = report("--disk hp97560 --bursts-kb 512 --idle-ms 0 --utilisation 99 --updates 500 --seeds 1");
    let skipped: Vec<&str> = found["skipped"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    assert!(skipped.contains(&"LFS+NVRAM on hp97560, 99% full, bursts of 512 KB, 0 ms idle: no room"), "{skipped:?}");
    let tables = found["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| table["name"] == "utilisation-hp97560").unwrap();
    assert_eq!(table["rows"][1]["LFS+NVRAM"], Value::Null);
    assert!(table["rows"][1]["UFS"].as_f64().unwrap() > 10.0);
}
