//! Conquest's benchmarks as a whole: properties of small runs on any machine.
//!
//! Owns: a run through the command line on the engine and in directories. Every benchmark appears
//! for each place that can run it, omissions are reported, and directories are empty at the end.
//! Left out: speed, which tests do not assert.

use crate::common::{args, is_refused, report, rows};

#[test]
fn a_small_run_on_the_engine_and_in_two_directories() {
    let scratch = tempfile::tempdir().unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (disk, ram) = (scratch.path().to_str().unwrap(), memory.path().to_str().unwrap());
    let words = format!("conquest --at shoal-x={disk} --at tmpfs={ram} --fsync --runs 2 --scale 0.001 --seed 3");
    let (found, files) = report(&words);
    for name in ["places", "rates", "comparison", "runs"] {
        assert!(files.contains(&format!("conquest-{name}.csv")), "{name}: {files:?}");
    }
    for name in ["5.1", "5.1-fsync", "5.2a", "5.2b", "5.2c", "5.3", "5.4a", "5.4b", "5.6"] {
        assert!(files.contains(&format!("conquest-figure-{name}.svg")), "{name}: {files:?}");
    }
    for directory in [disk, ram] {
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "{directory} is empty again");
    }
    let phases_at = |place: &str| rows(&found, "rates").iter().filter(|row| row["place"] == place).count();
    // Small files without and with fsync, three sizes of large files, PostMark of six sizes and one
    // with fsync, seven shares.
    let all = 2 * 3 + 3 * 5 + 7 * 4 + 7 * 4;
    assert_eq!(phases_at("shoal-x"), all);
    // All except the files of 100 MB and the mixed ones with large files.
    assert_eq!(phases_at("tmpfs"), all - 5 - 6 * 4);
    // Also nothing synced, and no files of 1.01 MB.
    assert_eq!(phases_at("shoal, in this process"), all - 2 * 5 - 6 * 4 - 3 - 4);
    let skipped = found["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 7 + (2 + 6 + 2));
    for row in rows(&found, "rates") {
        let of = |column: &str| row[column].as_f64().unwrap();
        assert!(0.0 < of("low") && of("low") <= of("rate") && of("rate") <= of("high"), "{row}");
    }
    // Both forms of Shoal against the only place in memory; no label here says ext.
    let claims = rows(&found, "comparison");
    assert!(claims.iter().any(|row| row["figure"].as_str().unwrap().contains("shoal, in this process to tmpfs")));
    let tmpfs = rows(&found, "places").iter().find(|row| row["place"] == "tmpfs").unwrap();
    assert_eq!((&tmpfs["kind"], &tmpfs["survives"]), (&"tmpfs".into(), &"nothing".into()));
}

#[test]
fn with_a_disk_the_engine_also_has_large_files() {
    let disk = tempfile::tempdir().unwrap();
    let words = format!("conquest --disk {} --only mixed --runs 1 --scale 0.0005", disk.path().display());
    let (found, _) = report(&words);
    assert_eq!(rows(&found, "rates").len(), 7 * 4);
    assert_eq!(found["skipped"].as_array().unwrap().len(), 0);
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0, "it is empty again");
}

#[test]
fn parts_can_be_chosen_and_a_place_needs_a_label() {
    let (found, _) = report("conquest --only small-files --scale 0.001 --runs 1");
    assert!(rows(&found, "rates").iter().all(|row| row["figure"] == "5.1"));
    assert_eq!(rows(&found, "runs").len(), 3);
    let refused = |words: &[&str]| is_refused(["run", "conquest"].iter().chain(words).map(ToString::to_string));
    assert!(!refused(&["--at", "a=/mnt", "--no-engine", "--only", "mixed,postmark", "--scale", "0.5"]));
    for words in [&["--at", "/mnt"][..], &["--no-engine"], &["--only", "5.1"], &["--scale", "2"]] {
        assert!(refused(words), "{words:?}");
    }
    let error = shoal_lab::run(&args(["run", "conquest", "--at", "x=/nowhere", "--scale", "0.001"])).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
}
