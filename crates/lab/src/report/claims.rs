//! The paper's figures beside ours, each with a verdict.
//!
//! Owns: [`Comparison`], the table of claims; [`Verdict`]; [`Said`], a figure of the paper with the
//! margin within which ours is the same. Rules: a verdict looks both ways. A figure on the better
//! side of the paper's is "better", not "shown", because it says that something else was measured,
//! and names why. A deviation names its cause.

use super::{Cell, Table};
use crate::exhibits::{Paper, is_known};
use crate::median::Median;

/// What a comparison comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ours is the paper's figure, within the claim's margin.
    Shown,
    /// Ours is beyond the paper's figure on the better side; why.
    Better(String),
    /// Ours is another figure; why.
    Deviates(String),
    /// The rounds differ too much to tell; what they hide.
    Undecided(String),
    NotMeasured,
    /// The paper gives no figure, or one of another machine.
    Unjudged,
}

impl Verdict {
    pub const BETTER: &str = "better";
    /// First words of the verdicts of a claim that holds.
    pub const HOLDS: [&str; 2] = ["shown", Verdict::BETTER];

    pub fn deviates(why: impl Into<String>) -> Verdict {
        Verdict::Deviates(why.into())
    }

    /// Returns `Shown` if a condition holds, which states the claim as a whole.
    pub fn shown_if(holds: bool) -> Verdict {
        if holds { Verdict::Shown } else { Verdict::Deviates(String::new()) }
    }

    /// As [`Verdict::shown_if`]; there is no condition without a measurement.
    pub fn if_measured(holds: Option<bool>) -> Verdict {
        holds.map_or(Verdict::NotMeasured, Verdict::shown_if)
    }

    /// Adds the cause to a figure that is not the paper's.
    pub fn because(self, why: &str) -> Verdict {
        match self {
            Verdict::Better(_) => Verdict::Better(why.into()),
            Verdict::Deviates(_) => Verdict::Deviates(why.into()),
            other => other,
        }
    }

    pub fn text(&self) -> String {
        let with = |word: &str, why: &str| if why.is_empty() { word.into() } else { format!("{word}: {why}") };
        match self {
            Verdict::Shown => "shown".into(),
            Verdict::Better(why) => with(Verdict::BETTER, why),
            Verdict::Deviates(why) => with("deviates", why),
            Verdict::Undecided(why) => with("undecided", why),
            Verdict::NotMeasured => "not measured".into(),
            Verdict::Unjudged => String::new(),
        }
    }

    /// Returns the word before the cause; none if nothing was judged.
    pub fn first_word(text: &str) -> Option<&str> {
        text.split(':').next().filter(|word| !word.is_empty())
    }
}

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    More,
    Less,
    /// A property of a workload or a model, which has no better side.
    Neither,
}

/// What a paper says of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    least: f64,
    most: f64,
    better: Better,
}

impl Said {
    pub const fn range(least: f64, most: f64, better: Better) -> Said {
        Said { least, most, better }
    }

    /// A figure; within this factor, ours is the same.
    pub const fn about(figure: f64, factor: f64, better: Better) -> Said {
        Said { least: figure / factor, most: figure * factor, better }
    }

    pub const fn at_most(most: f64) -> Said {
        Said { least: f64::NEG_INFINITY, most, better: Better::Less }
    }

    pub const fn at_least(least: f64) -> Said {
        Said { least, most: f64::INFINITY, better: Better::More }
    }

    /// Widens both ends by an amount.
    pub const fn within(self, amount: f64) -> Said {
        Said { least: self.least - amount, most: self.most + amount, ..self }
    }

    pub fn judge(&self, ours: f64) -> Verdict {
        self.judge_spread(Median { value: ours, low: ours, high: ours })
    }

    /// An interval that reaches the paper's figure shows it.
    pub fn judge_spread(&self, ours: Median) -> Verdict {
        let beyond = |side: Better| match self.better == side {
            true => Verdict::Better(String::new()),
            false => Verdict::Deviates(String::new()),
        };
        match () {
            () if ours.value.is_nan() => Verdict::NotMeasured,
            () if ours.low > self.most => beyond(Better::More),
            () if ours.high < self.least => beyond(Better::Less),
            () => Verdict::Shown,
        }
    }

    /// As [`Said::judge`]; nothing is shown without a measurement.
    pub fn judge_any(&self, ours: Option<f64>) -> Verdict {
        ours.map_or(Verdict::NotMeasured, |ours| self.judge(ours))
    }
}

/// The claims of a paper beside ours.
#[derive(Debug)]
pub struct Comparison {
    paper: Paper,
    table: Table,
}

impl Comparison {
    pub fn new(paper: Paper, title: impl Into<String>) -> Comparison {
        Comparison {
            paper,
            table: Table::new("comparison", title, &["of", "figure", "paper", "ours", "unit", "verdict"]),
        }
    }

    /// Adds a claim. `of`: the paper's figure or table that states it ("figure 6"), or "" for one
    /// that explains another, or that no paper states.
    pub fn push(&mut self, of: &str, figure: impl Into<String>, paper: Cell, ours: Cell, unit: &str, verdict: Verdict) {
        assert!(of.is_empty() || is_known(self.paper, of), "{:?} has no {of} with results", self.paper);
        self.table.push(vec![
            of.into(),
            Cell::Text(figure.into()),
            paper,
            ours,
            unit.into(),
            Cell::Text(verdict.text()),
        ]);
    }

    pub fn into_table(self) -> Table {
        self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_looks_both_ways() {
        let said = Said::about(2.0, 1.25, Better::More);
        assert_eq!([1.6, 2.0, 2.5].map(|ours| said.judge(ours)), [const { Verdict::Shown }; 3]);
        assert_eq!(said.judge(2.6), Verdict::Better(String::new()));
        assert_eq!(said.judge(1.5).because("slow"), Verdict::deviates("slow"));
        let range = Said::range(14.0, 19.0, Better::Less);
        assert_eq!(range.judge(5.8).because("another tree").text(), "better: another tree");
        assert_eq!(range.judge(20.0).text(), "deviates");
        assert_eq!(range.within(1.0).judge(20.0).text(), "shown");
        let neither = Said::about(10.0, 1.1, Better::Neither);
        assert_eq!([8.0, 12.0].map(|ours| neither.judge(ours).text()), ["deviates"; 2]);
        assert_eq!(Said::at_most(11.0).judge(2.5), Verdict::Shown);
        assert_eq!(Said::at_least(30.0).judge_any(None), Verdict::NotMeasured);
        assert_eq!(Said::at_least(30.0).judge(f64::NAN), Verdict::NotMeasured);
    }

    #[test]
    fn an_interval_that_reaches_the_figure_shows_it() {
        let said = Said::about(2.0, 1.0, Better::Neither);
        let of = |low, high| said.judge_spread(Median { value: f64::midpoint(low, high), low, high });
        assert_eq!(of(1.0, 2.1), Verdict::Shown);
        assert_eq!(of(2.1, 2.2).text(), "deviates");
    }

    #[test]
    #[should_panic(expected = "no figure 1 with results")]
    fn a_claim_names_a_figure_that_the_paper_has() {
        Comparison::new(Paper::NetworkRamdisk, "x").push("figure 1", "x", Cell::Empty, Cell::Empty, "", Verdict::Shown);
    }
}
