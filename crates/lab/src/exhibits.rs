//! The figures and tables of the five papers that hold results.
//!
//! Owns: [`Paper`], one of the five; [`EXHIBITS`], each figure and table with results, and the
//! experiment that repeats it; [`State`], the outcome of a report's claims about one. Rules: an exhibit is
//! shown only if every claim about it holds, and a claim that was not measured does not hold. Left
//! out: figures of designs and tables of settings, which state no result.

use serde::Serialize;
use serde_json::Value;

use crate::report::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Paper {
    Conquest,
    Mramfs,
    UpdatePolicy,
    NetworkRamdisk,
    VirtualLog,
}

impl Paper {
    pub const ALL: [Paper; 5] =
        [Paper::NetworkRamdisk, Paper::VirtualLog, Paper::UpdatePolicy, Paper::Mramfs, Paper::Conquest];

    pub fn name(self) -> &'static str {
        match self {
            Paper::Conquest => "Conquest",
            Paper::Mramfs => "mramfs",
            Paper::UpdatePolicy => "update policy",
            Paper::NetworkRamdisk => "network RAM disk",
            Paper::VirtualLog => "virtual log",
        }
    }

    /// Returns author, title and year.
    pub fn title(self) -> &'static str {
        match self {
            Paper::Conquest => {
                "Wang, Reiher, Popek, Kuenning: Conquest: Better Performance Through a Disk/Persistent-RAM Hybrid File System (2002)"
            }
            Paper::Mramfs => {
                "Edel: MRAMFS, a compressing file system for byte-addressable non-volatile RAM (thesis, UCSC)"
            }
            Paper::UpdatePolicy => "Mogul: A Better Update Policy (1994)",
            Paper::NetworkRamdisk => {
                "Flouris, Markatos: The Network RamDisk: Using Remote Memory on Heterogeneous NOWs (1998)"
            }
            Paper::VirtualLog => {
                "Wang, Anderson, Patterson: Virtual Log Based File Systems for a Programmable Disk (1999)"
            }
        }
    }
}

/// A figure or table with results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Exhibit {
    pub paper: Paper,
    /// As the paper names it: "figure 6".
    pub label: &'static str,
    pub shows: &'static str,
    /// The experiment that repeats it.
    pub experiment: &'static str,
}

const fn exhibit(paper: Paper, experiment: &'static str, label: &'static str, shows: &'static str) -> Exhibit {
    Exhibit { paper, label, shows, experiment }
}

const fn netram(label: &'static str, shows: &'static str) -> Exhibit {
    exhibit(Paper::NetworkRamdisk, "netram", label, shows)
}

const fn ramdisk(label: &'static str, shows: &'static str) -> Exhibit {
    exhibit(Paper::NetworkRamdisk, "ramdisk", label, shows)
}

const fn update(label: &'static str, shows: &'static str) -> Exhibit {
    exhibit(Paper::UpdatePolicy, "update-policy", label, shows)
}

const fn inodes(label: &'static str, shows: &'static str) -> Exhibit {
    exhibit(Paper::Mramfs, "inodes", label, shows)
}

const fn small_files(label: &'static str, shows: &'static str) -> Exhibit {
    exhibit(Paper::Mramfs, "small-files", label, shows)
}

const fn mramfs(label: &'static str, shows: &'static str) -> Exhibit {
    exhibit(Paper::Mramfs, "mramfs", label, shows)
}

const fn conquest(label: &'static str, shows: &'static str) -> Exhibit {
    exhibit(Paper::Conquest, "conquest", label, shows)
}

/// All figures and tables with results.
pub const EXHIBITS: [Exhibit; 41] = [
    netram("figure 6", "execution time of the reliability policies by extra space, on a trace"),
    netram("figure 7", "cleaning time of the parity caching policies by extra space, on a trace"),
    netram("table 1", "execution time by number of stream caches"),
    ramdisk("table 2", "find and grep in a source tree, on disk and network RAM disk"),
    ramdisk("table 3", "unpacking a tree with tar, on disk and network RAM disk"),
    ramdisk("table 4", "IOstone, on disk and network RAM disk"),
    ramdisk("figure 8", "creation of files by size"),
    ramdisk("figure 9", "deletion of files by size"),
    ramdisk("figure 10", "sequential writes and reads"),
    ramdisk("figure 11", "creation of files by number, unreliable and reliable"),
    ramdisk("figure 12", "deletion of files by number, unreliable and reliable"),
    exhibit(Paper::VirtualLog, "idle-time", "figure 10", "LFS with NVRAM: latency by idle time and size of bursts"),
    exhibit(
        Paper::VirtualLog,
        "idle-time",
        "figure 11",
        "UFS on the virtual-log disk: latency by idle time and size of bursts",
    ),
    update("figure 1", "local random reads on the fast disk: mean and deviation of responses"),
    update("figure 2", "local random reads on the slow disk: mean and deviation of responses"),
    update("figure 3", "local random reads on the fast disk: histogram of responses"),
    update("figure 4", "local random reads on the slow disk: histogram of responses"),
    update("figure 5", "remote random reads: mean and deviation of responses"),
    update("figure 6", "remote sequential reads: mean and deviation of responses"),
    update("figure 7", "sizes of bursts of writes during a build"),
    update("table 1", "time to write a whole cache at random"),
    update("table 2", "time to write a whole cache in order"),
    update("table 4", "elapsed time and writes of a build"),
    update("table 5", "processor time of updates, scans and waits of a build"),
    inodes("table 3.1", "inodes, owners and permissions of the trees"),
    inodes("figure 3.1", "raw inodes by gzip and bzip2"),
    inodes("figure 3.2", "bytes of an inode with the best and the worst profile"),
    inodes("figure 3.3", "inodes compressed a second"),
    inodes("figure 3.4", "bits of each field, plain and compressed"),
    small_files("table 4.1", "savings and speeds of compressors"),
    small_files("figure 4.1", "compressibility of files by size"),
    small_files("figure 4.2", "speed of compression by size"),
    small_files("figure 4.3", "space of all files up to a size"),
    mramfs("figure 5.3", "PostMark: rates of transactions"),
    mramfs("figure 5.4", "PostMark: running times"),
    mramfs("figure 5.5", "time of a build"),
    conquest("figure 5.1", "small files: creations, reads and removals a second"),
    conquest("figure 5.2", "large files: bandwidth of each phase"),
    conquest("figure 5.3", "PostMark: transactions a second by number of files"),
    conquest("figure 5.4", "PostMark: creations a second, alone and among transactions"),
    conquest("figure 5.6", "PostMark with large files: transactions a second by their share"),
];

/// Returns whether the paper has such an exhibit.
pub fn is_known(paper: Paper, label: &str) -> bool {
    EXHIBITS.iter().any(|exhibit| exhibit.paper == paper && exhibit.label == label)
}

/// The outcome of all claims about an exhibit in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Every claim holds, and one of them is outdone.
    Outdone,
    Shown,
    /// A claim does not hold, or was not measured.
    Deviates,
    /// No claim was judged.
    NotRun,
}

impl State {
    /// The best first.
    pub const ALL: [State; 4] = [State::Outdone, State::Shown, State::Deviates, State::NotRun];

    pub fn name(self) -> &'static str {
        match self {
            State::Outdone => "outdone",
            State::Shown => "shown",
            State::Deviates => "deviates",
            State::NotRun => "not run",
        }
    }
}

impl Exhibit {
    /// Returns what a report, as it was written as JSON, says of the exhibit.
    pub fn state(&self, report: &Value) -> State {
        let of_it = |row: &&Value| row["of"].as_str() == Some(self.label);
        let rows = report["tables"].as_array().into_iter().flatten().filter(|table| table["name"] == "comparison");
        let rows = rows.flat_map(|table| table["rows"].as_array().into_iter().flatten()).filter(of_it);
        let verdicts = rows.filter_map(|row| Verdict::first_word(row["verdict"].as_str()?)).collect::<Vec<_>>();
        match () {
            () if verdicts.is_empty() => State::NotRun,
            () if verdicts.iter().any(|word| !Verdict::HOLDS.contains(word)) => State::Deviates,
            () if verdicts.contains(&Verdict::BETTER) => State::Outdone,
            () => State::Shown,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::{Cell, Comparison};

    fn state(verdicts: Vec<Verdict>) -> State {
        let mut claims = Comparison::new(Paper::NetworkRamdisk, "claims");
        for verdict in verdicts {
            claims.push("figure 6", "of it", Cell::Empty, Cell::Empty, "", verdict);
        }
        claims.push("figure 7", "of another", Cell::Empty, Cell::Empty, "", Verdict::deviates("x"));
        EXHIBITS[0].state(&json!({"tables": [claims.into_table().to_json()]}))
    }

    #[test]
    fn an_exhibit_is_shown_only_if_all_its_claims_hold() {
        use Verdict::{NotMeasured, Shown, Unjudged};
        assert_eq!(state(vec![]), State::NotRun);
        assert_eq!(state(vec![Unjudged]), State::NotRun);
        assert_eq!(state(vec![Shown, Unjudged, Shown]), State::Shown);
        assert_eq!(state(vec![Shown, Verdict::Better("more memory".into())]), State::Outdone);
        assert_eq!(state(vec![Shown, Verdict::deviates("")]), State::Deviates);
        assert_eq!(state(vec![Verdict::Better(String::new()), NotMeasured]), State::Deviates);
        assert_eq!(state(vec![Verdict::Undecided("noise".into())]), State::Deviates);
    }

    #[test]
    fn no_exhibit_is_listed_twice() {
        for (at, exhibit) in EXHIBITS.iter().enumerate() {
            let same = |other: &&Exhibit| (other.paper, other.label) == (exhibit.paper, exhibit.label);
            assert_eq!(EXHIBITS.iter().position(|other| same(&other)), Some(at), "{exhibit:?}");
        }
    }
}
