//! mramfs' benchmarks as a whole: properties of small runs on any machine.
//!
//! Owns: a run through the command line on the engine and in a directory. Every table is there,
//! places take turns, counts agree between places and depend on the seed, and the store is empty at
//! the end. Left out: speed, which tests do not assert; the calls themselves (beside `postmark`).

use crate::common::{args, report, rows};
use serde_json::Value;

fn at<'a>(row: &'a Value, column: &str) -> &'a Value {
    assert!(!row[column].is_null(), "{column} of {row}");
    &row[column]
}

#[test]
fn a_small_run_on_the_engine_and_in_a_directory() {
    // A disk file system may take a minute for the 64,000 empty files.
    let memory = std::path::Path::new("/dev/shm");
    let scratch = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let directory = scratch.path().to_str().unwrap();
    let (found, files) =
        report(&format!("mramfs --at here={directory} --build-files 500 --runs 2 --scale 0.002 --seed 5"));
    for name in ["postmark", "counts", "create-unlink", "space", "packing", "build", "comparison", "appendix-c", "runs"]
    {
        assert!(files.contains(&format!("mramfs-{name}.csv")), "{name}: {files:?}");
    }
    assert!(files.contains(&"mramfs-postmark.svg".into()) && files.contains(&"mramfs.json".into()));
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "the directory is empty again");

    let places: Vec<&str> = rows(&found, "postmark").iter().map(|row| at(row, "place").as_str().unwrap()).collect();
    let engines = ["plain", "inodes at 0 s", "inodes at 1 s", "data at 0 s", "both at 0 s", "both at 1 s"]
        .map(|name| format!("engine, {name}"));
    let all: Vec<&str> = engines.iter().map(String::as_str).chain(["here"]).collect();
    assert_eq!(places, [&all[..], &all[..]].concat());
    for row in rows(&found, "postmark") {
        let of = |column: &str| at(row, column).as_f64().unwrap();
        assert!(of("least") <= of("total s") && of("total s") <= of("most"), "{row}");
        assert!(of("transactions s") > 0.0 && of("transactions/s") > 0.0);
    }
    // Two workloads at all places, a long one on the engines, and empty files where no data is
    // packed, two runs each.
    assert_eq!(rows(&found, "runs").len(), 2 * (2 * all.len() + engines.len() + 4));
    for row in &rows(&found, "counts")[..2] {
        let of = |column: &str| at(row, column).as_u64().unwrap();
        assert_eq!(of("created"), of("deleted"));
        assert_eq!(of("read") + of("appended") + of("left out"), 200);
    }
    for row in rows(&found, "create-unlink") {
        assert_eq!(at(row, "calls"), 2 * 4000 * 8);
    }
    let space = rows(&found, "space");
    assert_eq!(space.len(), 6 * engines.len(), "the engine alone has a region to look at");
    for row in space {
        let of = |column: &str| at(row, column).as_u64().unwrap();
        assert!(of("region") >= of("data") || row["place"] != "engine, plain");
        assert!(of("log") > of("written by the workload"), "everything goes through the log");
        assert_eq!(of("files") == 0, at(row, "phase") == "delete");
    }
    for row in rows(&found, "packing") {
        let of = |column: &str| at(row, column).as_f64().unwrap();
        assert!(of("unpacked") <= of("packed") && of("log of packing") <= of("log"), "{row}");
        assert_eq!(at(row, "verdict") == "the yardstick", at(row, "place") == "engine, plain");
        assert!(at(row, "place") != "engine, plain" || of("packed") == 0.0 && of("speed") == 1.0, "{row}");
    }
    let claims = rows(&found, "comparison");
    let seconds = claims.iter().filter(|row| row["unit"] == "s");
    assert!(seconds.clone().count() == 7 && seconds.clone().all(|row| row["ours"].is_null()), "not at full scale");
    assert!(claims.iter().all(|row| row["verdict"] == ""), "other work than the thesis's is not judged");

    let counts = |words: &str| rows(&report(words).0, "counts").clone();
    assert_eq!(&counts("mramfs --runs 1 --scale 0.002 --seed 5"), rows(&found, "counts"));
    assert_ne!(&counts("mramfs --runs 1 --scale 0.002 --seed 6"), rows(&found, "counts"));
}

#[test]
fn a_quick_run_has_a_hundredth_of_the_work() {
    let (found, _) = report("mramfs --quick");
    assert_eq!(rows(&found, "runs").len(), 2 * (3 * 6 + 3));
    assert!(found["skipped"][0].as_str().unwrap().starts_with("--quick"));
    assert_eq!(rows(&found, "space")[0]["files"], 500);
}

#[test]
fn a_place_that_is_not_there_is_named() {
    let error = shoal_lab::run(&args(["run", "mramfs", "--at", "x=/nowhere", "--scale", "0.001"])).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
}

#[test]
fn a_scale_is_above_0_and_at_most_1() {
    for scale in ["0", "1.5", "-1", "NaN", "much"] {
        let words = ["run", "mramfs", &format!("--scale={scale}")].map(String::from);
        assert!(crate::common::is_refused(words), "{scale}");
    }
}
