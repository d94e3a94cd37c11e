//! The update-policy experiment as a whole: properties on any machine.
//!
//! Owns: properties of small runs through the command line. Tables and plots are there, time is
//! called simulated, and the same seed gives the same result. The report's main claims hold: bursts
//! of periodic update make reads wait for seconds, ageing block by block does not, and yielding or
//! shaping ends the waiting behind a cache that became dirty at once.
//! Left out: the policies (their crate), the disks (`sim`), the report's figures to the digit (its
//! page).

use crate::common::rows;
use serde_json::Value;

fn report(options: &str) -> (Value, Vec<String>) {
    crate::common::report(&format!("update-policy {options}"))
}

/// Returns a figure from the disk's row that has `name` in `column`.
fn figure(report: &Value, table: &str, disk: &str, column: &str, name: &str, of: &str) -> f64 {
    let row = rows(report, table).iter().find(|row| row["disk"] == disk && row[column] == name);
    row.unwrap_or_else(|| panic!("{table}: no {name}"))[of].as_f64().unwrap()
}

#[test]
fn reads_wait_for_seconds_under_periodic_update_and_not_when_blocks_leave_by_their_age() {
    let (found, files) = report("--quick --seed 3");
    for disk in ["RZ58", "RZ57"] {
        let of = |name: &str, of: &str| figure(&found, "summary", disk, "configuration", name, of);
        assert!(of("delayed, PU", "worst ms") > 4000.0 && of("delayed, AIPU", "worst ms") < 800.0);
        assert!(of("delayed, PU", "deviation ms") > 3.0 * of("delayed, AIPU", "deviation ms"));
        assert!(of("delayed, AIPU", "mean ms") < 1.15 * of("delayed, PU", "mean ms"));
        assert!(of("delayed, AIPU", "mean ms") < of("asynchronous, PU", "mean ms"), "neighbours are written together");
        assert!(of("asynchronous, PU", "worst ms") < 500.0, "what fills its block never waits for a tick");
        assert!(of("delayed, PU", "oldest s") < 45.0 && (30.0..33.0).contains(&of("delayed, AIPU", "oldest s")));

        let burst = |name: &str, of: &str| figure(&found, "burst", disk, "policy", name, of);
        for name in ["PURP", "interval with read priority", "AIPU, shaped"] {
            assert!(burst(name, "worst ms") * 5.0 < burst("AIPU", "worst ms"), "{name}");
            assert!(burst(name, "oldest s") < 95.0, "{name}: the bound, and the write itself");
        }
        assert!(burst("AIPU", "worst ms") > 5000.0);

        let scanned = |name: &str, of: &str| figure(&found, "scanned", disk, "configuration", name, of);
        let listed = "scanned by the report's algorithm";
        assert_eq!(scanned("delayed, PU", listed), scanned("delayed, PU", "written"));
        assert!(scanned("delayed, AIPU", listed) > 20.0 * scanned("delayed, AIPU", "written"));
        assert!(scanned("delayed, AIPU", "examined here") < 1.2 * scanned("delayed, AIPU", "written"));
    }
    let worst: Vec<f64> = rows(&found, "asynchronous").iter().map(|row| row["worst ms"].as_f64().unwrap()).collect();
    assert!(worst[..3].is_sorted() && worst[1] > 2000.0, "delayed writes are what reads wait for: {worst:?}");
    for table in found["tables"].as_array().unwrap() {
        let title = table["title"].as_str().unwrap();
        let is_counts = table["name"] == "scanned";
        assert!(title.contains("simulated time") || is_counts, "{title}");
    }
    for plot in ["figure-1", "figure-2", "figure-3", "figure-4", "figure-7", "crossover-50-60"] {
        assert!(files.contains(&format!("update-policy-{plot}.svg")), "{plot}: {files:?}");
    }
    assert_eq!(report("--quick --seed 3").0, found, "one seed, one result");
    assert_ne!(rows(&report("--quick --seed 4").0, "summary"), rows(&found, "summary"));
}

#[test]
fn a_remote_disk_costs_the_network_and_its_memory_takes_writes_off_the_readers_way() {
    let (found, files) = report("--quick --disk rz58 --seed 3");
    for plot in ["figure-5", "figure-6"] {
        assert!(files.contains(&format!("update-policy-{plot}.svg")), "{plot}: {files:?}");
    }
    let of = |table: &str, name: &str, of: &str| {
        let row = rows(&found, table).iter().find(|row| row["trial"] == "all" && row["configuration"] == name);
        row.unwrap_or_else(|| panic!("{table}: no {name}"))[of].as_f64().unwrap()
    };
    let names = ["asynchronous, PU", "delayed, PU", "delayed, AIPU"];
    for name in names {
        let local = figure(&found, "summary", "RZ58", "configuration", name, "mean ms");
        // Two messages of 1 ms, and 8 KB at 10 Mbit/s; fewer writes run beside them than on the
        // faster machine.
        assert!(
            of("figure-5", name, "mean ms") > 15.0 + 8.5 && of("figure-5", name, "mean ms") < local + 25.0,
            "{name}"
        );
    }
    // A cache written at once keeps readers waiting, local or remote, unless the server's memory
    // absorbs it.
    assert!(of("figure-5", "delayed, PU", "worst ms") > 3000.0 && of("figure-5", "delayed, AIPU", "worst ms") < 800.0);
    for name in names {
        let (without, with) = (of("figure-5", name, "mean ms"), of("figure-5", &format!("{name}, memory"), "mean ms"));
        assert!(with < without * 1.05, "{name}: {with} with memory, {without} without");
    }
    assert_eq!(rows(&found, "figure-6").len(), 4 * 2);
    assert!(
        of("figure-6", "delayed, AIPU", "mean ms") < of("figure-5", "delayed, AIPU", "mean ms"),
        "neighbours are near"
    );
}

#[test]
fn write_hits_decide_whether_periodic_update_pays_off() {
    let (found, _) = report("--quick --disk rz58");
    let mut seen = 0;
    for row in rows(&found, "crossover") {
        let of = |name: &str| row[name].as_f64().unwrap();
        let is_overloaded = of("read load") + of("write load") > 1.0;
        if of("hits %") == 0.0 && !is_overloaded {
            assert!(of("PU ms") > 10.0 * of("WT ms"), "{row}");
            assert!(of("IPU ms") < 1.2 * of("WT ms") && of("IPU ms") < of("AIPU ms"), "{row}");
            seen += 1;
        }
        if of("hits %") == 95.0 && is_overloaded {
            assert!(of("PU ms") < of("WT ms") / 10.0, "{row}");
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
}

#[test]
fn an_elevator_shortens_the_bursts_of_periodic_update() {
    let worst = |queue: &str| {
        let (found, _) = report(&format!("--quick --disk rz58 --queue {queue}"));
        figure(&found, "burst", "RZ58", "policy", "PU", "worst ms")
    };
    assert!(worst("elevator") < worst("fifo"));
}
