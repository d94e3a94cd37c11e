//! The numbers on the pages of the papers are those that a run gives, where no chance and no clock is involved.
//!
//! Rules: a page is compared with a fresh run of the command that it names. Left out: numbers in
//! wall time.

use shoal_lab::report::Report;

use crate::traces::week;

const PAGE: &str = include_str!("../../../docs/papers/network-ramdisk.md");

fn run(words: &[&str]) -> Report {
    let args = crate::common::args(["run", "netram"].into_iter().chain(words.iter().copied()));
    shoal_lab::run(&args).unwrap().0
}

/// Returns the values of a table's row that begins with `first`, as the report writes them.
fn row(report: &Report, table: &str, first: &str) -> Vec<String> {
    let table = report.tables.iter().find(|one| one.name == table).expect(table);
    let csv = String::from_utf8(table.to_csv().unwrap()).unwrap();
    let found = csv.lines().find(|line| line.starts_with(first)).expect(first);
    found.split(',').map(str::to_string).collect()
}

fn has(page: &str, numbers: &[String]) {
    for number in numbers {
        let found =
            page.split(|c: char| !c.is_ascii_digit() && c != '.').any(|word| word.trim_end_matches('.') == number);
        assert!(found, "the page does not say {number}");
    }
}

#[test]
fn the_streams_of_the_page_are_those_of_the_synthetic_workload() {
    let report = run(&["--synthetic", "--extra", "20"]);
    let cleaning = row(&report, "figure-7", "20,");
    assert_eq!(cleaning.len(), 6, "{cleaning:?}");
    has(PAGE, &cleaning[1..]);
}

#[test]
fn the_figures_of_the_page_are_those_of_the_trace() {
    let Some(path) = week() else { return };
    let trace = path.to_str().unwrap();
    for start in [&["--trace", trace, "--extra", "20"][..], &["--trace", trace, "--extra", "20", "--empty"]] {
        let report = run(start);
        let execution = row(&report, "figure-6", "20,");
        // Parity caching, and both P by Shoal's rules.
        has(PAGE, &[execution[4].clone(), execution[7].clone(), execution[8].clone()]);
        // The first claims are figure 6 and what each rule costs; a claim ends with ours, unit, verdict.
        let claims = String::from_utf8(report.tables[0].to_csv().unwrap()).unwrap();
        let ours = claims.lines().skip(1).take(7).map(|line| line.rsplit(',').nth(2).expect(line).to_string());
        has(PAGE, &ours.collect::<Vec<_>>());
    }
}
