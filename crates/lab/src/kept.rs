//! The full runs that are kept with the source, and what they say of each figure and table.
//!
//! Owns: the reports in `docs/papers/runs`, as `shoal lab run ... --out` wrote them; [`Listed`].
//! Rules: a state comes from the verdicts of the kept report, never from this file. Left out:
//! running the experiments.

use serde::Serialize;
use serde_json::Value;

use crate::exhibits::{EXHIBITS, Exhibit, State};

/// The kept report of each experiment. `{}` is one that was not kept yet.
const RUNS: [(&str, &str); 8] = [
    ("netram", include_str!("../../../docs/papers/runs/netram.json")),
    ("ramdisk", include_str!("../../../docs/papers/runs/ramdisk.json")),
    ("idle-time", include_str!("../../../docs/papers/runs/idle-time.json")),
    ("update-policy", include_str!("../../../docs/papers/runs/update-policy.json")),
    ("inodes", include_str!("../../../docs/papers/runs/inodes.json")),
    ("small-files", include_str!("../../../docs/papers/runs/small-files.json")),
    ("mramfs", include_str!("../../../docs/papers/runs/mramfs.json")),
    ("conquest", include_str!("../../../docs/papers/runs/conquest.json")),
];

/// A figure or table as `shoal lab list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    #[serde(flatten)]
    pub exhibit: Exhibit,
    pub state: State,
    /// The day of the kept run.
    pub date: Option<String>,
}

/// Lists all figures and tables with results.
pub fn list() -> Vec<Listed> {
    let reports = RUNS.map(|(name, text)| (name, serde_json::from_str(text).unwrap_or(Value::Null)));
    let listed = |exhibit: Exhibit| {
        let kept = reports.iter().find(|(name, _)| *name == exhibit.experiment);
        let report = kept.map_or(&Value::Null, |(_, report)| report);
        let date = report["date"].as_str().map(Into::into);
        Listed { exhibit, state: exhibit.state(report), date }
    };
    EXHIBITS.map(listed).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kept_report_is_of_its_experiment_and_of_full_work() {
        for (name, text) in RUNS.into_iter().filter(|(_, text)| text.trim() != "{}") {
            let report: Value = serde_json::from_str(text).unwrap();
            assert_eq!(report["experiment"], name);
            for field in ["date", "machine", "command"] {
                assert!(report[field].as_str().is_some_and(|text| !text.is_empty()), "{name}: {field}");
            }
            assert!(!report["command"].as_str().unwrap().contains("--quick"), "{name}");
        }
    }

    #[test]
    fn every_exhibit_has_an_experiment_whose_report_is_kept() {
        for listed in list() {
            assert!(RUNS.iter().any(|(name, _)| *name == listed.exhibit.experiment), "{:?}", listed.exhibit);
        }
    }
}
