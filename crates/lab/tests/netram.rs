//! The simulation of the network RAM disk's policies: properties on any machine, with or without the trace.
//!
//! Owns: properties of whole runs on a synthetic workload. The model verifies within each run that
//! no read returns wrong bytes. Left out: agreement with the live disk (`live`).

use shoal_lab::netram::model::Pace;
use shoal_lab::netram::points::{Figures, Room, Rules, Setup, Variant, measure, measure_all};
use shoal_lab::network::Network;
use shoal_lab::trace::Request;
use shoal_lab::trace::shape::Footprint;
use shoal_lab::trace::synthetic::Workload;

fn load(streams: usize) -> (Vec<Request>, u64) {
    let requests = Workload { requests: 15_000, bytes: 6 << 20, streams, ..Workload::default() }.requests();
    let footprint = Footprint::of(&requests, 1024);
    (footprint.compact(&requests), footprint.blocks())
}

fn setup<'a>(requests: &'a [Request], blocks: u64) -> Setup<'a> {
    Setup {
        requests,
        blocks,
        block_bytes: 1024,
        buffer_blocks: 8,
        donors: 8,
        network: Network::ATM,
        pace: Pace::BackToBack,
        timeout_ms: 0,
        fill: true,
    }
}

#[test]
fn one_stream_is_parity_caching() {
    let (requests, blocks) = load(4);
    let setup = setup(&requests, blocks);
    let caching = measure(&setup, Variant::CACHING, Room::Extra(30)).unwrap();
    assert!(caching.cleaning_s > 0.0);
    for rules in [Rules::Paper, Rules::Shoal] {
        let adaptive = measure(&setup, Variant::adaptive(1, rules), Room::Extra(30)).unwrap();
        assert_eq!(Figures { variant: adaptive.variant, ..caching }, adaptive);
    }
}

#[test]
fn more_room_means_less_cleaning_and_the_same_run_costs_the_same() {
    let (requests, blocks) = load(4);
    let setup = setup(&requests, blocks);
    let points: Vec<(Variant, Room)> =
        [100, 30, 50, 50].map(|extra| (Variant::adaptive(2, Rules::Shoal), Room::Extra(extra))).to_vec();
    let outcomes = measure_all(&setup, &points, 2);
    assert_eq!(outcomes.iter().map(|(variant, room, _)| (*variant, *room)).collect::<Vec<_>>(), points);
    let costs: Vec<_> = outcomes.into_iter().map(|(_, room, figures)| (room, figures.unwrap())).collect();
    let of = |extra| costs.iter().find(|(room, _)| *room == Room::Extra(extra)).unwrap().1;
    assert!(of(30).cleaning_s > of(50).cleaning_s && of(50).cleaning_s > of(100).cleaning_s);
    assert!(of(30).execution_s > of(50).execution_s);
    assert_eq!(of(50), measure(&setup, Variant::adaptive(2, Rules::Shoal), Room::Extra(50)).unwrap());
}

#[test]
fn where_there_are_streams_adaptive_cleans_less_than_parity_caching() {
    let (requests, blocks) = load(3);
    let setup = setup(&requests, blocks);
    let caching = measure(&setup, Variant::CACHING, Room::Extra(40)).unwrap();
    let [paper, ours] = [Rules::Paper, Rules::Finished]
        .map(|rules| measure(&setup, Variant::adaptive(3, rules), Room::Extra(40)).unwrap());
    assert!(paper.cleaning_s < caching.cleaning_s, "{} of {}", paper.cleaning_s, caching.cleaning_s);
    assert!(ours.cleaning_s < 0.85 * caching.cleaning_s, "{} of {}", ours.cleaning_s, caching.cleaning_s);
    // Groups that other blocks finish have less parity than groups that are closed short.
    assert!(ours.cleaned_data < caching.cleaned_data && ours.sent_parity < paper.sent_parity);
}

#[test]
fn without_redundancy_every_block_is_sent_once_and_with_mirroring_twice() {
    let (requests, blocks) = load(4);
    let setup = setup(&requests, blocks);
    let written: u64 =
        requests.iter().filter(|r| r.kind == shoal_lab::trace::Kind::Write).map(|r| u64::from(r.len) / 1024).sum();
    let none = measure(&setup, Variant::NONE, Room::Plenty).unwrap();
    assert_eq!((none.sent_data + none.absorbed, none.sent_parity), (written, 0));
    let mirrored = measure(&setup, Variant::MIRRORED, Room::Plenty).unwrap();
    assert_eq!(mirrored.sent_data, mirrored.sent_parity);
    let cached = measure(&setup, Variant::CACHED, Room::Plenty).unwrap();
    assert_eq!((cached.sent_data + cached.absorbed, cached.cleaned_read), (written, 0));
    assert!(cached.execution_s < none.execution_s && none.execution_s < mirrored.execution_s);
}

#[test]
fn the_experiment_writes_tables_plots_and_json() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let line =
        ["run", "netram", "--synthetic", "--quick", "--requests", "4000", "--extra", "60", "--seed", "5", "--out"];
    let args = crate::common::args(line.into_iter().chain([out.to_str().unwrap()]));
    let (report, files) = shoal_lab::run(&args).unwrap();
    let names: Vec<String> = files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect();
    for name in
        ["comparison.csv", "figure-6.csv", "figure-7.csv", "runs.csv", "load.csv", "figure-6.svg", "figure-7.svg"]
    {
        assert!(names.contains(&format!("netram-{name}")), "{name} of {names:?}");
    }
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("netram.json")).unwrap()).unwrap();
    assert_eq!(json["seed"], 5);
    let claims = json["tables"][0]["rows"].as_array().unwrap();
    let table_1: Vec<f64> =
        claims.iter().filter(|row| row["unit"] == "s").map(|row| row["paper"].as_f64().unwrap()).collect();
    // Under Shoal's rules, then under the paper's.
    assert_eq!(table_1, [[8788.21, 8520.39, 8525.60]; 2].concat());
    assert!(report.to_text().contains("simulated time"));
}

#[test]
fn a_trace_that_is_named_and_not_there_is_an_error() {
    let args = crate::common::args(["run", "netram", "--trace", "/nonexistent/week.srt"]);
    let error = shoal_lab::run(&args).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/week.srt"), "{error}");
}
