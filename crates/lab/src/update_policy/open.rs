//! What sections 4.4 and 5 of the report leave open: machines to run, tables, and what they say.
//!
//! Owns: [`Question`], one of these questions; [`Case`], a machine that helps to answer it. Rules:
//! all on the faster system and with its load, unless a case says otherwise. The report gives no
//! figures here, so nothing is compared with it but its guesses.

use shoal_sim::mechanical::Order;
use shoal_writeback::{Policy, Rule, S_NS, Shape};

use super::Plan;
use super::layout::DiskModel;
use super::machine::{Adaptive, Extra, Other, Setup, Writer, Writes};
use super::points::{AIPU, Figures, PU, setup};
use crate::report::{Cell, Comparison, Said, Table, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does interval update beat periodic update when a read needs a clean buffer?
    FullCache,
    /// Do periods and grains matter?
    Periods,
    /// Does clustering change the order of the policies?
    Clustering,
    /// What does a rule do that goes by the load?
    Load,
    /// What makes a read of asynchronous periodic update wait for 5 to 6 s?
    Asynchronous,
}

impl Question {
    const ALL: [Question; 5] =
        [Question::FullCache, Question::Periods, Question::Clustering, Question::Load, Question::Asynchronous];

    fn table(self) -> (&'static str, &'static str) {
        match self {
            Question::FullCache => {
                ("full-cache", "A read takes a clean buffer; the writer modifies a share of the cache in 30 s")
            }
            Question::Periods => ("periods", "Periods, ages and grains; delayed writes"),
            Question::Clustering => ("clustering", "Blocks of a file in runs of 8, and up to 8 of them in a request"),
            Question::Load => ("load", "A rule that goes by the load; even load, and the cache dirtied at once"),
            Question::Asynchronous => ("asynchronous-models", "Models of asynchronous writes under PU"),
        }
    }
}

/// A machine for a question.
#[derive(Clone, Debug)]
pub struct Case {
    pub question: Question,
    pub load: String,
    pub policy: String,
    setup: Setup,
}

impl Case {
    pub fn with_seed(&self, seed: u64) -> Setup {
        Setup { seed, ..self.setup }
    }
}

/// A case with its results.
pub struct Answer {
    pub case: Case,
    pub all: Figures,
}

const AGE_NS: u64 = 30 * S_NS;
/// How blocks of a file lie together, and how many go in a request (64 KB).
const RUN: u64 = 8;
const OTHER: Other = Other { blocks: 300, every_s: 300 };

fn with_priority(plan: &Plan) -> [(String, Rule); 2] {
    let age_max_ns = plan.age_max_ns;
    let policies = [
        Policy::PeriodicReadPriority { interval_ns: AGE_NS, age_max_ns },
        Policy::IntervalReadPriority { age_ns: AGE_NS, grain_ns: S_NS, age_max_ns },
    ];
    policies.map(|policy| (policy.name().to_string(), Rule::of(policy)))
}

fn plain() -> [(String, Rule); 2] {
    [PU, AIPU].map(|policy| (policy.name().to_string(), Rule::of(policy)))
}

/// Returns all cases.
pub fn cases(plan: &Plan) -> Vec<Case> {
    let few = |percents: &[u64]| if plan.is_quick { percents[..1].to_vec() } else { percents.to_vec() };
    let base = |rule: Rule| setup(plan, DiskModel::Rz58, rule, plan.seed);
    let mut cases = vec![];
    let mut case = |question, load: String, policy: String, setup: Setup| {
        cases.push(Case { question, load, policy, setup });
    };
    for percent in few(&[100, 50, 80, 120]) {
        for (name, rule) in plain().into_iter().chain(with_priority(plan)) {
            let extra = Extra { needs_buffer: true, ..Extra::default() };
            let setup = Setup { writer: Writer::Share { percent }, extra, ..base(rule) };
            case(Question::FullCache, format!("{percent}%"), name, setup);
        }
    }
    let s = |s: f64| (s * S_NS as f64) as u64;
    for period in few(&[30, 5, 10, 60, 120]) {
        let policy = Policy::Periodic { interval_ns: period * S_NS };
        case(Question::Periods, "even".into(), format!("PU, {period} s"), base(Rule::of(policy)));
        let policy = Policy::aipu(period * S_NS);
        case(Question::Periods, "even".into(), format!("AIPU, {period} s, grain 1 s"), base(Rule::of(policy)));
    }
    for grain in [0.1, 0.25, 0.5, 2.0, 5.0, 10.0, 30.0] {
        let policy = Policy::ApproximateInterval { age_ns: AGE_NS, grain_ns: s(grain) };
        case(Question::Periods, "even".into(), format!("AIPU, 30 s, grain {grain} s"), base(Rule::of(policy)));
    }
    for (load, cluster) in [("in runs", 0), ("in runs, clustered", RUN)] {
        for (name, rule) in plain() {
            let extra = Extra { run: RUN, cluster, ..Extra::default() };
            case(Question::Clustering, load.into(), name, Setup { extra, ..base(rule) });
        }
    }
    let adaptive = Some(Adaptive { least_percent: 5, most_percent: 75 });
    let burst = Writer::Burst { every_s: super::points::BURST_EVERY_S };
    let shape = Shape {
        blocks_per_tick_max: plan.writes_per_s,
        tick_ns: S_NS,
        queue_depth_max: plan.depth,
        age_max_ns: plan.age_max_ns,
    };
    let old = Rule::of(Policy::Interval { age_ns: plan.age_max_ns });
    for (load, writer) in [("even", Writer::HalfTheCache), ("at once", burst)] {
        let warm_up_ns = if writer == burst { super::points::BURST_EVERY_S * S_NS } else { base(old).warm_up_ns };
        for (name, rule) in plain().into_iter().chain([("AIPU, shaped".into(), Rule::shaped(AIPU, shape))]) {
            case(Question::Load, load.into(), name, Setup { writer, warm_up_ns, ..base(rule) });
        }
        let extra = Extra { adaptive, ..Extra::default() };
        case(Question::Load, load.into(), "by the load".into(), Setup { writer, warm_up_ns, extra, ..base(old) });
    }
    asynchronous(plan, &mut case);
    cases
}

/// Adds the models of asynchronous writes.
fn asynchronous(plan: &Plan, case: &mut impl FnMut(Question, String, String, Setup)) {
    let base = |partial: f64, extra: Extra, order: Order| {
        let setup = setup(plan, DiskModel::Rz58, Rule::of(PU), plan.seed);
        Setup { writes: Writes::Asynchronous { partial }, extra, order, ..setup }
    };
    let (none, fifo) = (Extra::default(), Order::Fifo);
    let models = [
        ("as it is", base(0.0, none, fifo)),
        ("a driver that sorts", base(0.0, none, Order::Elevator)),
        ("reads of queued blocks wait", base(0.0, Extra { reads_written: true, ..none }, fifo)),
        ("reads need a clean buffer", base(0.0, Extra { needs_buffer: true, ..none }, fifo)),
        ("60% fill no block", base(0.6, none, fifo)),
        ("60% fill no block, reads need a clean buffer", base(0.6, Extra { needs_buffer: true, ..none }, fifo)),
        ("300 other blocks, once in 300 s", base(0.0, Extra { other: Some(OTHER), ..none }, fifo)),
    ];
    for (name, setup) in models {
        case(Question::Asynchronous, name.into(), "PU".into(), setup);
    }
    let rule = Rule::of(AIPU);
    let other = Setup { rule, ..base(0.0, Extra { other: Some(OTHER), ..none }, fifo) };
    case(Question::Asynchronous, "300 other blocks, once in 300 s".into(), "AIPU".into(), other);
}

fn number(value: f64, decimals: usize) -> Cell {
    Cell::Number(value, decimals)
}

pub fn tables(answers: &[Answer]) -> Vec<Table> {
    let one = |question: Question| {
        let (name, title) = question.table();
        let columns = [
            "load",
            "policy",
            "mean ms",
            "deviation ms",
            "p99 ms",
            "worst ms",
            "reads/s",
            "writes/s",
            "write ms",
            "oldest s",
        ];
        let mut table = Table::new(name, format!("{title}, RZ58 (simulated time)"), &columns);
        for answer in answers.iter().filter(|answer| answer.case.question == question) {
            let all = &answer.all;
            table.push(vec![
                answer.case.load.clone().into(),
                answer.case.policy.clone().into(),
                number(all.mean_ms, 2),
                number(all.deviation_ms, 2),
                number(all.p99_ms, 1),
                number(all.worst_ms, 0),
                number(all.reads_per_s, 1),
                number(all.writes_per_s, 1),
                number(all.write_ms, 1),
                number(all.age_max_s, 1),
            ]);
        }
        table
    };
    Question::ALL.map(one).into()
}

/// Adds the report's guesses beside what the machines say.
pub fn claims(answers: &[Answer], claims: &mut Comparison) {
    let of = |question, load: &str, policy: &str| {
        let mut answers = answers.iter();
        answers.find(|one| one.case.question == question && one.case.load == load && one.case.policy == policy)
    };
    let full = |policy| of(Question::FullCache, "100%", policy);
    if let (Some(purp), Some(interval)) = (full("PURP"), full("interval with read priority")) {
        let times = purp.all.mean_ms / interval.all.mean_ms;
        let figure = "reads that need a clean buffer: mean of PURP over that of interval with read priority";
        let why = "blocks that yield leave whenever no read is at the disk, so a read that needs a buffer soon has one";
        let verdict = Said::at_least(1.05).judge(times).because(why);
        claims.push("", figure, "more (a guess)".into(), number(times, 2), "times", verdict);
    }
    let (pu, aipu) = (full("PU"), full("AIPU"));
    if let (Some(pu), Some(aipu)) = (pu, aipu) {
        let times = pu.all.worst_ms / aipu.all.worst_ms;
        let figure = "reads that need a clean buffer: worst of PU over that of AIPU";
        claims.push("", figure, "more (a guess)".into(), number(times, 2), "times", Verdict::shown_if(times > 1.0));
    }
    let clustered = |policy| of(Question::Clustering, "in runs, clustered", policy);
    if let (Some(pu), Some(aipu)) = (clustered("PU"), clustered("AIPU")) {
        let times = pu.all.worst_ms / aipu.all.worst_ms;
        let verdict = Verdict::shown_if(times > 3.0);
        claims.push(
            "",
            "clustered writes: worst of PU over that of AIPU",
            "not tried".into(),
            number(times, 1),
            "times",
            verdict,
        );
    }
    if let Some(model) = of(Question::Asynchronous, "300 other blocks, once in 300 s", "PU") {
        let s = model.all.worst_ms / 1000.0;
        let verdict = Verdict::shown_if((4.0..=7.0).contains(&s) && model.all.reads_per_s < 33.0);
        let figure = "worst read of asynchronous PU beside 300 blocks of something else";
        claims.push("", figure, "5-6, with 32 reads/s".into(), number(s, 2), "s", verdict);
    }
}
