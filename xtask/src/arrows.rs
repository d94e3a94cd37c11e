//! The direction of dependencies: which workspace crate may use which (ARCHITECTURE.md).
//!
//! `format` and `media` are the base. Building blocks use them; engines use building blocks and
//! never each other; adapters use engines. The table below is the rule, `cargo metadata` the fact.
//! A crate that is not in the table is a finding, so a new crate needs a row. Development
//! dependencies may also include a few others ([`FOR_TESTS`]), such as the two worlds (`host`,
//! `sim`) and `check`, since tests run engines in a world and then check the result.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A crate, and the workspace crates it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("shoal-format", &[]),
    ("shoal-media", &[]),
    ("shoal-host", &["shoal-media"]),
    ("shoal-sim", &["shoal-media"]),
    ("shoal-region", &["shoal-format", "shoal-media"]),
    ("shoal-check", &["shoal-format", "shoal-media"]),
    ("shoal-pack", &["shoal-format"]),
    ("shoal-bulk", &["shoal-format", "shoal-media", "shoal-region"]),
    ("shoal-fs", &["shoal-format", "shoal-media", "shoal-pack", "shoal-region", "shoal-bulk"]),
    ("shoal-vlog", &["shoal-format", "shoal-media"]),
    ("shoal-netram", &["shoal-format", "shoal-media"]),
    ("shoal-nbd", &["shoal-format", "shoal-media"]),
    ("shoal-writeback", &["shoal-format", "shoal-media"]),
    ("shoal-life", &["shoal-fs", "shoal-host"]),
    ("shoal-fuse", &["shoal-fs", "shoal-life", "shoal-host"]),
    ("shoal-devices", &["shoal-format", "shoal-media", "shoal-host", "shoal-vlog", "shoal-netram", "shoal-nbd"]),
    (
        "shoal-store",
        &[
            "shoal-format",
            "shoal-media",
            "shoal-host",
            "shoal-region",
            "shoal-check",
            "shoal-fs",
            "shoal-life",
            "shoal-fuse",
            "shoal-devices",
            "shoal-writeback",
        ],
    ),
    ("shoal-lab", ASSEMBLY),
    ("shoal", ASSEMBLY),
    ("xtask", &["shoal-sim"]),
];

/// The crates available to the top layer, which only assembles others.
const ASSEMBLY: &[&str] = &[
    "shoal-format",
    "shoal-media",
    "shoal-host",
    "shoal-sim",
    "shoal-region",
    "shoal-check",
    "shoal-fs",
    "shoal-vlog",
    "shoal-netram",
    "shoal-nbd",
    "shoal-writeback",
    "shoal-pack",
    "shoal-life",
    "shoal-fuse",
    "shoal-devices",
    "shoal-store",
    "shoal-lab",
];

/// The crates that tests may use in addition to their crate's own dependencies.
const FOR_TESTS: &[&str] =
    &["shoal-format", "shoal-media", "shoal-host", "shoal-sim", "shoal-region", "shoal-check", "shoal-writeback"];

/// Returns the findings in the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo metadata: cannot be started ({error})"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: not JSON ({error})"))?;
    Ok(wrong_arrows(&metadata))
}

/// Returns one line for each forbidden dependency.
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_string();
    let members: Vec<String> = packages.iter().map(name).collect();
    let mut findings = vec![];
    if packages.is_empty() {
        findings.push("cargo metadata lists no packages".to_string());
    }
    for package in packages {
        let from = name(package);
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == from) else {
            findings.push(format!("{from}: has no row in the table of xtask/src/arrows.rs; add one"));
            continue;
        };
        for dependency in package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let to = name(dependency);
            let for_tests = dependency["kind"].as_str() == Some("dev");
            let ok = allowed.contains(&to.as_str()) || for_tests && FOR_TESTS.contains(&to.as_str());
            if members.contains(&to) && !ok {
                let kind = if for_tests { " (in tests)" } else { "" };
                findings.push(format!("{from} -> {to}{kind}: this arrow is not allowed; see ARCHITECTURE.md"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workspace(from: &str, to: &str, kind: Value) -> Value {
        json!({"packages": [
            {"name": from, "dependencies": [{"name": to, "kind": kind}, {"name": "thiserror", "kind": null}]},
            {"name": to, "dependencies": []},
        ]})
    }

    #[test]
    fn an_arrow_that_points_up_or_sideways_is_found() {
        for (from, to) in [
            ("shoal-format", "shoal-media"),
            ("shoal-region", "shoal-fs"),
            ("shoal-fs", "shoal-vlog"),
            ("shoal-check", "shoal-fs"),
            ("shoal-host", "shoal-sim"),
        ] {
            let findings = wrong_arrows(&workspace(from, to, Value::Null));
            assert_eq!(findings.len(), 1, "{from} -> {to}");
            assert!(findings[0].starts_with(&format!("{from} -> {to}:")));
        }
    }

    #[test]
    fn arrows_that_point_down_and_foreign_crates_pass() {
        assert_eq!(wrong_arrows(&workspace("shoal-fs", "shoal-region", Value::Null)), Vec::<String>::new());
        assert_eq!(wrong_arrows(&workspace("shoal", "shoal-fuse", Value::Null)), Vec::<String>::new());
    }

    #[test]
    fn tests_may_use_a_world_but_not_an_engine() {
        assert_eq!(wrong_arrows(&workspace("shoal-fs", "shoal-sim", json!("dev"))), Vec::<String>::new());
        assert_eq!(wrong_arrows(&workspace("shoal-fs", "shoal-sim", Value::Null)).len(), 1);
        assert_eq!(wrong_arrows(&workspace("shoal-vlog", "shoal-fs", json!("dev"))).len(), 1);
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let findings = wrong_arrows(&workspace("shoal-new", "shoal-media", Value::Null));
        assert!(findings[0].contains("has no row"));
        assert_eq!(wrong_arrows(&json!({})).len(), 1, "nothing read is not nothing wrong");
    }

    #[test]
    fn the_table_has_no_cycle() {
        // Each row names only crates whose rows are above it.
        for (at, (_, allowed)) in ALLOWED.iter().enumerate().filter(|(_, (name, _))| *name != "shoal-lab") {
            let above: Vec<&str> = ALLOWED[..at].iter().map(|row| row.0).collect();
            assert!(allowed.iter().all(|name| above.contains(name) || *name == "shoal-lab"), "row {at}");
        }
    }
}
