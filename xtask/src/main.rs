//! `cargo xtask`: the project's own checks.
//!
//! - `check` runs the checks that every commit must pass: format, lints, direction of dependencies,
//!   file lengths, `unsafe` in one crate, links between pages, names on them, and layout tables
//!   against the code. All of them run even if one fails; each finding is a line that names its
//!   file.
//! - `deep` repeats the tests with `SHOAL_DEEP=1`: the long searches, each for some minutes
//!   (`--seconds`, 0 for no limit). Then, as root, it runs the random programs on mounts, each
//!   thirty times as long.
//! - `load` and `verify` are the two halves of the kill -9 test (`tests/real/kill9`).
//!
//! Left out: the tests themselves.
#![forbid(unsafe_code)]

mod arrows;
mod layouts;
mod links;
mod load;
mod model;
mod names;
mod sources;
mod verify;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask check | deep [--seconds N] | load OPTIONS | verify OPTIONS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("check") => check(),
        Some("deep") => deep(&arguments[1..]),
        Some("load") => load::main(&arguments[1..]),
        Some("verify") => verify::main(&arguments[1..]),
        _ => Err(USAGE.to_string()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the repository's root, the parent of this crate.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_path_buf()
}

fn check() -> Result<(), String> {
    let root = root();
    let mut failed = 0;
    let mut passed = 0;
    let mut report = |what: &str, findings: Result<Vec<String>, String>| {
        let findings = findings.unwrap_or_else(|error| vec![error]);
        println!("{} {what}", if findings.is_empty() { "ok  " } else { "FAIL" });
        findings.iter().for_each(|finding| println!("     {finding}"));
        if findings.is_empty() { passed += 1 } else { failed += 1 }
    };
    report("format", command(&root, "cargo", &["fmt", "--all", "--check"]));
    report("dependency direction", arrows::check(&root));
    report("file lengths and headers", sources::lengths(&root));
    report("unsafe code only in host", sources::unsafe_code(&root));
    report("links between pages", links::check(&root));
    report("names on the pages", names::check(&root));
    report("layout tables", layouts::check(&root));
    // Use the profile of the tests, because its build scripts and macros are already built.
    let clippy = ["clippy", "--quiet", "--profile", "ci", "--workspace", "--all-targets", "--", "-D", "warnings"];
    report("clippy", command(&root, "cargo", &clippy));
    println!("{passed} passed, {failed} failed");
    if failed > 0 { Err("the project's checks found something; see the lines above".into()) } else { Ok(()) }
}

/// Time of a long search without `--seconds` (s).
const DEEP_SECONDS: u64 = 120;

/// What `make test` leaves to the deep tests.
const ONLY_DEEP: &str = "Only here, and not in `make test`:
  every planted bug (there an eighth of those of some crates, in turn)
  every case on a mount over io_uring, on both memories (there a third over io_uring, and over /dev/fuse each on one
  memory, in turn), and fsx twice as long
  what the long searches leave to other commits, and their further seeds and states: crash states, two actors,
  failing calls, models, lives, damage
  every boundary of recorded media (there a share)
  an hour each of life and of differ on real mounts (there 30 and 15 seconds)
  PostgreSQL on a mount whose daemon is killed and whose host loses its power";

/// Factor by which random programs on mounts run longer: an hour.
const DEEP_MOUNTS: u64 = 30;

fn deep(arguments: &[String]) -> Result<(), String> {
    let seconds = match arguments {
        [] => DEEP_SECONDS,
        [option, seconds] if option == "--seconds" => {
            seconds.parse().map_err(|_| format!("--seconds {seconds}: give a number of seconds, 0 for no limit"))?
        }
        _ => return Err(USAGE.into()),
    };
    println!("{ONLY_DEEP}");
    let mut failed = Vec::new();
    let planted = ["fs", "netram", "region", "vlog", "writeback"].map(|name| format!("shoal-{name}/planted")).join(",");
    // Use the profile of the tests, because its dependencies are already built.
    for more in [
        &["--workspace", "--no-fail-fast"][..],
        &["-p", "shoal-fs", "--features", "recorded", "--test", "recorded"],
        &["--workspace", "--no-fail-fast", "--features", &planted, "--test", "planted"],
    ] {
        let mut command = Command::new("cargo");
        command.args(["test", "--profile", "ci"]).args(more).args(["--", "--nocapture"]);
        command.current_dir(root());
        // A planted bug must be noticed by the searches of `make test`.
        if !more.contains(&"planted") {
            command.env("SHOAL_DEEP", "1");
        }
        if seconds > 0 {
            command.env("SHOAL_DEEP_SECONDS", seconds.to_string());
        }
        let status = command
            .status()
            .map_err(|error| format!("cargo: cannot be started ({error}); install a Rust toolchain"))?;
        if !status.success() {
            failed.push(status.to_string());
        }
    }
    failed.extend(deep_programs(if seconds == 0 { DEEP_SECONDS } else { seconds } * DEEP_MOUNTS)?);
    if failed.is_empty() { Ok(()) } else { Err(format!("the deep tests failed ({}); see above", failed.join(", "))) }
}

/// Runs the random programs on real mounts, each for `seconds`, and the cases over io_uring.
/// Returns those that failed.
fn deep_programs(seconds: u64) -> Result<Vec<String>, String> {
    if !std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        println!("SKIP programs on mounts: they take root");
        return Ok(vec![]);
    }
    let started = |program: &str, error| format!("{program}: cannot be started ({error})");
    let build = ["build", "--profile", "ci", "--package", "shoal"];
    let status = Command::new("cargo").args(build).current_dir(root()).status();
    if !status.map_err(|error| started("cargo", error))?.success() {
        return Err("the program does not build; see above".into());
    }
    let target = std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), PathBuf::from);
    let mut failed = vec![];
    let seconds = seconds.to_string();
    let random = ["--seconds", &seconds];
    let over_uring = ["env", "SHOAL_MOUNT_OPTIONS=transport=uring", "FSX_OPERATIONS=20000", "tests/real/run"];
    let programs = [
        ("tests/real/life", &random[..]),
        ("tests/real/differ", &random),
        ("tests/real/with-uring", &over_uring),
        ("tests/real/postgres", &["20"]),
    ];
    for (program, arguments) in programs {
        let mut command = Command::new(root().join(program));
        command.args(arguments).env("SHOAL", target.join("ci/shoal")).current_dir(root());
        if !command.status().map_err(|error| started(program, error))?.success() {
            failed.push(program.to_string());
        }
    }
    Ok(failed)
}

/// Runs a command whose failure is one finding. Its output goes directly to the terminal.
fn command(root: &Path, program: &str, arguments: &[&str]) -> Result<Vec<String>, String> {
    let status = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .status()
        .map_err(|error| format!("{program}: cannot be started ({error})"))?;
    Ok(if status.success() { vec![] } else { vec![format!("`{program} {}` failed: {status}", arguments.join(" "))] })
}
