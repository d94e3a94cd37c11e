//! The paper's figures of section 4 beside ours.
//!
//! Owns: the claims, each a ratio of two places, and the verdicts. Rules: only ratios are compared,
//! because the machines are 30 years apart. A ratio that is larger than the paper's has a cause, as
//! one that is smaller has, which the table of requests or the speeds of the devices show. Where the paper has a plot alone, its text is the claim; then an interval
//! on both sides of 1 decides nothing. Left out: Shoal, which the paper could not measure; its
//! figures are in the table of speed-ups.

use super::Part;
use super::measure::{Case, Found};
use super::places::{ADAPTIVE, CACHED, DISK, NONE};
use super::work::{COUNTS, SIZES};
use crate::exhibits::Paper;
use crate::median::Median;
use crate::report::{Better, Cell, Comparison, Said, Table, Verdict};

/// A ratio agrees if it is within this factor of the paper's.
const NEIGHBOURHOOD: f64 = 1.25;
/// "Very close": within this factor.
const CLOSE: f64 = 1.15;

/// A ratio as the paper states it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Times(f64),
    /// "Superior", with a plot.
    Faster,
    /// "Very close", with a plot.
    Close,
}

#[derive(Debug)]
struct Claim {
    figure: &'static str,
    part: Part,
    /// Which case of the part, and which of its operations.
    case: usize,
    operation: usize,
    place: &'static str,
    against: &'static str,
    says: Says,
    /// Why our ratio may be larger than the paper's, and why it may be smaller.
    more: &'static str,
    less: &'static str,
}

const SMALL: &str = "most requests have 4 KB (table load), where a seek weighs more than in the block of 8 KB that the throttle is set for";
const BOUND: &str = "hardly anything gains more than the devices' ratio (table devices), which follows from a seek of 16 ms; the \
                     paper's figure is above that, so its disk waited for more than an average seek, of which the text says nothing; \
                     transfer and processor time are the same at both";
const PROCESSOR: &str = "28 MB at 10 Mbit/s are 23.5 s, so processor and protocol took most of the paper's time, at both; here the \
                         devices do";
const OVERHEAD: &str = "the devices' share of the time is small beside processor time, which is the same at both";
const ALONE: &str = "both have the same bandwidth, today's kernel makes requests so long that hardly any seek is left to save (table \
                     load), and the policy none sends each block of 4 KB in a message of its own";
const AHEAD: &str = "both have the same bandwidth, and today's kernel reads ahead in requests so long that hardly any seek is left to \
                     save (table load)";
const MERGED: &str =
    "today's kernel merges late writes into requests so long that hardly any seek is left to save (table load)";
const SEEKS: &str = "each jump costs an average seek here, also a short one";
const PARITY: &str = "parity is a third donor's work on the same processors";
const NOISE: &str = "the rounds differ more than the policies do";

const LAST_SIZE: usize = SIZES.len() - 1;
const LAST_COUNT: usize = COUNTS.len() - 1;

const fn claim(figure: &'static str, part: Part, (case, operation): (usize, usize), says: Says) -> Claim {
    Claim { figure, part, case, operation, place: NONE, against: DISK, says, more: SMALL, less: BOUND }
}

const fn by(claim: Claim, place: &'static str, against: &'static str) -> Claim {
    Claim { place, against, ..claim }
}

const fn because(claim: Claim, more: &'static str, less: &'static str) -> Claim {
    Claim { more, less, ..claim }
}

const FIND: Claim = claim("table 2", Part::Tree, (0, 1), Says::Times(129.8 / 103.6));
const TAR: Claim = claim("table 3", Part::Tree, (0, 0), Says::Times(120.0 / 67.0));
const IOSTONE: Claim = claim("table 4", Part::Iostone, (0, 0), Says::Times(269_651.0 / 31_854.0));
const SIZED: Claim = claim("figure 8", Part::Sizes, (LAST_SIZE, 0), Says::Times(116.22 / 22.68));
const SIZED_DELETES: Claim = claim("figure 9", Part::Sizes, (LAST_SIZE, 1), Says::Faster);
const WRITE: Claim = claim("figure 10", Part::Sequential, (0, 0), Says::Times(3.0));
const READ: Claim = claim("figure 10", Part::Sequential, (0, 1), Says::Times(3.0));
const COUNTED: Claim = claim("figure 11", Part::Counts, (LAST_COUNT, 0), Says::Times(12.629 / 7.601));

const fn counted(operation: usize, says: Says) -> Claim {
    let figure = if operation == 0 { "figure 11" } else { "figure 12" };
    because(claim(figure, Part::Counts, (LAST_COUNT, operation), says), SEEKS, MERGED)
}

const fn close(operation: usize) -> Claim {
    by(because(counted(operation, Says::Close), NOISE, PARITY), ADAPTIVE, CACHED)
}

const CLAIMS: [Claim; 15] = [
    because(FIND, PROCESSOR, AHEAD),
    because(TAR, PROCESSOR, OVERHEAD),
    IOSTONE,
    SIZED,
    because(SIZED_DELETES, SMALL, OVERHEAD),
    because(WRITE, SEEKS, ALONE),
    because(READ, SEEKS, AHEAD),
    by(because(COUNTED, SEEKS, MERGED), CACHED, DISK),
    because(counted(0, Says::Faster), SEEKS, ALONE),
    by(counted(0, Says::Faster), ADAPTIVE, DISK),
    counted(1, Says::Faster),
    by(counted(1, Says::Faster), CACHED, DISK),
    by(counted(1, Says::Faster), ADAPTIVE, DISK),
    close(0),
    close(1),
];

impl Claim {
    fn case<'a>(&self, found: &'a Found) -> Option<&'a Case> {
        found.cases.iter().filter(|case| case.work.part == self.part).nth(self.case)
    }

    fn paper(&self) -> Cell {
        match self.says {
            Says::Times(times) => Cell::Text(format!("{times:.2}")),
            Says::Faster => "faster".into(),
            Says::Close => "very close".into(),
        }
    }

    fn verdict(&self, ours: Median) -> Verdict {
        let told = if let Says::Times(paper) = self.says { paper } else { 1.0 };
        match self.says {
            Says::Times(paper) => Said::about(paper, NEIGHBOURHOOD, Better::More).judge_spread(ours),
            Says::Faster if (ours.low..ours.high).contains(&1.0) => Verdict::Undecided(self.less.into()),
            Says::Faster => Said::at_least(1.0).judge_spread(ours),
            // An interval that reaches far enough says little of what is close.
            Says::Close => Said::about(1.0, CLOSE, Better::More).judge(ours.value),
        }
        .because(if ours.value > told { self.more } else { self.less })
    }
}

/// Tabulates all claims of the parts that were run.
pub fn comparison(found: &Found) -> Table {
    let mut table = Comparison::new(
        Paper::NetworkRamdisk,
        "The paper's devices in 1998, ours today (wall time): how many times as fast the first place is as the second",
    );
    for claim in &CLAIMS {
        let Some(case) = claim.case(found) else { continue };
        let Some((place, against)) = found.place(claim.place).zip(found.place(claim.against)) else { continue };
        let ours = case.speedup(claim.operation, place, against);
        let name = &case.work.operations[claim.operation].name;
        let what = format!("{name}: {} to {}", claim.place, claim.against);
        let shown = Cell::Text(format!("{:.2} ({:.2}-{:.2})", ours.value, ours.low, ours.high));
        table.push(claim.figure, what, claim.paper(), shown, "times", claim.verdict(ours));
    }
    table.into_table()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(value: f64, low: f64, high: f64) -> Median {
        Median { value, low, high }
    }

    #[test]
    fn a_verdict_looks_both_ways_and_a_deviation_has_its_cause() {
        let claim = because(claim("x", Part::Tree, (0, 0), Says::Times(2.0)), "too slow", "too fast");
        let verdict = |value, low, high| claim.verdict(median(value, low, high)).text();
        assert_eq!(verdict(2.4, 2.3, 2.5), "shown");
        assert_eq!(verdict(1.7, 1.6, 1.8), "shown");
        assert_eq!(verdict(2.6, 2.4, 2.8), "shown");
        assert_eq!(verdict(9.0, 8.0, 10.0), "better: too slow");
        assert_eq!(verdict(1.0, 0.9, 1.1), "deviates: too fast");
        assert_eq!(verdict(1.3, 1.2, 1.4), "deviates: too fast");
    }

    #[test]
    fn what_the_paper_only_plots_is_faster_or_close() {
        let of = |says| because(claim("x", Part::Tree, (0, 0), says), "more", "less");
        let verdict = |says, value, low, high| of(says).verdict(median(value, low, high)).text();
        assert_eq!(verdict(Says::Faster, 1.2, 1.1, 1.3), "shown");
        assert_eq!(verdict(Says::Faster, 0.9, 0.8, 0.95), "deviates: less");
        assert_eq!(verdict(Says::Faster, 0.9, 0.8, 1.1), "undecided: less");
        assert_eq!(verdict(Says::Faster, 1.1, 0.9, 1.2), "undecided: less");
        assert_eq!(verdict(Says::Close, 0.7, 0.6, 0.8), "deviates: less");
        assert_eq!(verdict(Says::Close, 1.3, 1.1, 1.4), "better: more");
        assert_eq!(verdict(Says::Close, 0.98, 0.9, 1.0), "shown");
    }

    #[test]
    fn every_table_and_figure_of_section_4_has_a_claim_with_two_causes() {
        for figure in ["table 2", "table 3", "table 4", "figure 8", "figure 9", "figure 10", "figure 11", "figure 12"] {
            assert!(CLAIMS.iter().any(|claim| claim.figure.starts_with(figure)), "{figure}");
        }
        assert!(CLAIMS.iter().all(|claim| !claim.more.is_empty() && !claim.less.is_empty()));
        assert!(CLAIMS.iter().all(|claim| claim.place != claim.against));
    }
}
