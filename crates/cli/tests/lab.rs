//! `shoal lab` and `shoal profile` with the built programs.
//!
//! They find the program that carries them out, and the daemon links nothing that only that program
//! needs. Left out: what an experiment shows (`crates/lab`), what a profile is used for (`profiles`).

use std::fs;
use std::process::{Command, Output};

const SHOAL: &str = env!("CARGO_BIN_EXE_shoal");
const LAB: &str = env!("CARGO_BIN_EXE_shoal-lab");

fn output(program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Output {
    Command::new("timeout")
        .arg("60")
        .arg(program)
        .args(words)
        .env_remove("PATH")
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap()
}

#[test]
fn the_lab_is_found_and_its_words_and_exit_codes_are_its_own() {
    let listed = output(SHOAL, &["lab", "list"]);
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), String::from_utf8(output(LAB, &["list"]).stdout).unwrap());
    let help = String::from_utf8(output(SHOAL, &["lab", "run", "netram", "--help"]).stdout).unwrap();
    assert!(help.contains("--trace"), "{help}");
    let help = String::from_utf8(output(SHOAL, &["profile", "--help"]).stdout).unwrap();
    assert!(help.contains("Usage: shoal-lab profile"), "{help}");
    let wrong = output(SHOAL, &["lab", "run", "netram", "--jsno"]);
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(2) && said.contains("write `--json`"), "{said}");
    // A copy of `shoal` without `shoal-lab` beside it does not find that program.
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("shoal");
    fs::copy(SHOAL, &alone).unwrap();
    let lost = output(&alone, &["lab", "list"]);
    let said = String::from_utf8(lost.stderr).unwrap();
    assert!(lost.status.code() == Some(1) && said.contains("make install"), "{said}");
}

#[test]
fn the_daemon_links_neither_the_simulator_nor_the_plots() {
    let (shoal, lab) = (fs::read(SHOAL).unwrap(), fs::read(LAB).unwrap());
    // Names of crates are in the symbols, and paths of their sources in messages.
    for name in ["plotters", "shoal_sim", "shoal_lab"] {
        let has = |program: &[u8]| program.windows(name.len()).any(|word| word == name.as_bytes());
        assert!(has(&lab) && !has(&shoal), "{name}: in the lab {}, in the daemon {}", has(&lab), has(&shoal));
    }
}
