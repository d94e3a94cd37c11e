//! The machines to run, and the figures kept of each run.
//!
//! Owns: the report's four configurations ([`Config`]), and those with a disk behind a network
//! ([`Far`]); the policies under a burst ([`Burst`]); when periodic update pays off ([`Crossing`]),
//! and reads of seconds under asynchronous writes ([`Partial`]); [`Found`], all figures.
//! Rules: compared machines have the same seeds; points are independent of each other and run side
//! by side.

use shoal_sim::mechanical::Order;
use shoal_writeback::{Counts, Policy, Rule, S_NS, Shape};

use super::Plan;
use super::build::{self, Replayed};
use super::layout::{BLOCK_BYTES, DiskModel};
use super::machine::{self, Extra, Places, Reader, Setup, Trial, Writer, Writes};
use super::open::{self, Answer, Case};
use super::remote::Remote;
use crate::experiment::LabError;
use crate::network::Network;
use crate::parallel;

pub const PU: Policy = Policy::Periodic { interval_ns: 30 * S_NS };
pub const AIPU: Policy = Policy::aipu(30 * S_NS);
/// Time until the load is steady, before the first read is measured.
const WARM_UP_NS: u64 = 95 * S_NS;
/// Shares of writes that fill no block (percent).
const PARTIAL: [u32; 6] = [0, 20, 40, 60, 80, 100];
const QUICK_PARTIAL: [u32; 3] = [0, 60, 100];
/// Interval between two bursts: longer than any policy needs.
pub const BURST_EVERY_S: u64 = 150;
/// Loads of reads and of writes (percent of the disk's capacity).
const LOADS: [(u32, u32); 5] = [(30, 20), (30, 40), (50, 20), (50, 40), (50, 60)];
const QUICK_LOADS: [(u32, u32); 2] = [(30, 40), (50, 60)];
/// Write hits (percent).
const HITS: [u32; 8] = [0, 20, 40, 60, 80, 85, 90, 95];
const QUICK_HITS: [u32; 3] = [0, 50, 95];

/// The report's configurations, in the order of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub is_delayed: bool,
    pub is_interval: bool,
}

impl Config {
    pub const ALL: [Config; 4] = [
        Config { is_delayed: false, is_interval: false },
        Config { is_delayed: true, is_interval: false },
        Config { is_delayed: true, is_interval: true },
        Config { is_delayed: false, is_interval: true },
    ];

    pub fn name(self) -> &'static str {
        match (self.is_delayed, self.is_interval) {
            (false, false) => "asynchronous, PU",
            (true, false) => "delayed, PU",
            (true, true) => "delayed, AIPU",
            (false, true) => "asynchronous, AIPU",
        }
    }
}

/// The network of the remote disk: Ethernet, with the latency of a message on workstations of its
/// time.
pub const ETHERNET: Network = Network { latency_us: 1000.0, mbit: 10.0 };
/// Non-volatile memory of the server: PrestoServe's 1 MB.
pub const MEMORY_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES;

/// A configuration with the disk behind a network: the slower machine with the faster one as its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    pub config: Config,
    pub has_memory: bool,
    pub in_order: bool,
}

impl Far {
    /// Returns the report's combinations: random reads (figure 5), then sequential ones, always
    /// with delayed writes (figure 6).
    pub fn all() -> impl Iterator<Item = Far> {
        let configs = |in_order: bool| Config::ALL[..3].iter().filter(move |config| config.is_delayed || !in_order);
        [false, true].into_iter().flat_map(move |in_order| {
            [false, true]
                .into_iter()
                .flat_map(move |has_memory| configs(in_order).map(move |&config| Far { config, has_memory, in_order }))
        })
    }

    pub fn name(self) -> String {
        format!("{}{}", self.config.name(), if self.has_memory { ", memory" } else { "" })
    }
}

/// A distribution of read responses, with other figures of the run.
#[derive(Clone, Debug)]
pub struct Figures {
    pub reads: u64,
    pub mean_ms: f64,
    pub deviation_ms: f64,
    pub p99_ms: f64,
    pub worst_ms: f64,
    pub reads_per_s: f64,
    pub writes_per_s: f64,
    pub write_ms: f64,
    pub age_max_s: f64,
    pub counts: Counts,
    /// Response times, sorted.
    pub responses_us: Vec<u32>,
}

impl Figures {
    pub fn of(trials: &[Trial]) -> Figures {
        let mut responses_us: Vec<u32> = trials.iter().flat_map(|trial| trial.responses_us.iter().copied()).collect();
        responses_us.sort_unstable();
        let count = responses_us.len() as f64;
        let ms = |us: &u32| f64::from(*us) / 1000.0;
        let mean_ms = responses_us.iter().map(ms).sum::<f64>() / count;
        let variance = responses_us.iter().map(|us| (ms(us) - mean_ms).powi(2)).sum::<f64>() / count;
        let sum = |of: &dyn Fn(&Trial) -> f64| trials.iter().map(of).sum::<f64>();
        let (elapsed_s, writes) = (sum(&|trial| trial.elapsed_s), sum(&|trial| trial.writes as f64));
        let total = |of: &dyn Fn(&Counts) -> u64| trials.iter().map(|trial| of(&trial.counts)).sum();
        Figures {
            reads: responses_us.len() as u64,
            mean_ms,
            deviation_ms: variance.sqrt(),
            p99_ms: responses_us.get(responses_us.len() * 99 / 100).map_or(0.0, ms),
            worst_ms: responses_us.last().map_or(0.0, ms),
            reads_per_s: count / elapsed_s,
            writes_per_s: writes / elapsed_s,
            write_ms: sum(&|trial| trial.write_ms * trial.writes as f64) / writes.max(1.0),
            age_max_s: trials.iter().map(|trial| trial.age_max_s).fold(0.0, f64::max),
            counts: Counts {
                dirtied: total(&|counts| counts.dirtied),
                modified: total(&|counts| counts.modified),
                chosen: total(&|counts| counts.chosen),
                examined: total(&|counts| counts.examined),
                listed: total(&|counts| counts.listed),
            },
            responses_us,
        }
    }

    /// Counts the reads that took longer than `ms`.
    pub fn above(&self, ms: f64) -> u64 {
        let us = (ms * 1000.0) as u32;
        (self.responses_us.len() - self.responses_us.partition_point(|response| *response <= us)) as u64
    }
}

/// A configuration of the report, measured on a disk.
pub struct Measured {
    pub disk: DiskModel,
    pub config: Config,
    pub trials: Vec<Figures>,
    pub all: Figures,
}

/// A configuration with a remote disk.
pub struct MeasuredFar {
    pub far: Far,
    pub trials: Vec<Figures>,
    pub all: Figures,
}

/// A policy after the whole cache became dirty within a second.
pub struct Burst {
    pub disk: DiskModel,
    pub name: String,
    pub all: Figures,
}

/// Periodic update and asynchronous writes, some of which fill no block.
pub struct Partial {
    pub disk: DiskModel,
    pub percent: u32,
    pub all: Figures,
}

/// Mean responses of independent reads at a share of write hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtHits {
    pub percent: u32,
    /// Means under PU, IPU and AIPU.
    pub mean_ms: [f64; 3],
}

/// Mean responses of independent reads, by write hits.
pub struct Crossing {
    pub read_percent: u32,
    pub write_percent: u32,
    /// Mean under write-through, which does not benefit from hits.
    pub through_ms: f64,
    pub by_hits: Vec<AtHits>,
}

impl Crossing {
    /// Returns the share of hits from which on periodic update is no worse than writing through
    /// (percent), interpolated linearly between the points. None if it is worse at all of them.
    pub fn at_percent(&self) -> Option<f64> {
        let over = |point: &AtHits| point.mean_ms[0] - self.through_ms;
        let Some(last) = self.by_hits.iter().rposition(|point| over(point) > 0.0) else {
            return self.by_hits.first().map(|first| f64::from(first.percent));
        };
        let (a, b) = (&self.by_hits[last], self.by_hits.get(last + 1)?);
        let share = over(a) / (over(a) - over(b));
        Some(f64::from(a.percent) + share * f64::from(b.percent - a.percent))
    }
}

/// Time to write a whole cache.
pub struct Drain {
    pub disk: DiskModel,
    pub anywhere_s: f64,
    pub file_s: f64,
    pub elevator_s: f64,
    pub in_a_row_s: f64,
}

pub struct Found {
    pub measured: Vec<Measured>,
    pub far: Vec<MeasuredFar>,
    pub bursts: Vec<Burst>,
    pub partial: Vec<Partial>,
    pub crossings: Vec<Crossing>,
    pub drains: Vec<Drain>,
    pub replayed: Vec<Replayed>,
    pub answers: Vec<Answer>,
}

/// The purpose of a setup.
#[derive(Clone, Debug)]
enum For {
    Config(DiskModel, Config),
    Far(Far),
    Burst(DiskModel, String),
    Partial(DiskModel, u32),
    /// Read and write loads (percent).
    Through(u32, u32),
    /// Hits (percent), and the index of the policy. These setups follow the `Through` of their
    /// loads: three policies for each percentage.
    Hits(u32, usize),
    Open(Box<Case>),
}

pub fn setup(plan: &Plan, disk: DiskModel, rule: Rule, seed: u64) -> Setup {
    Setup {
        disk,
        buffers: disk.buffers(),
        remote: None,
        rule,
        writes: Writes::Delayed,
        writer: Writer::HalfTheCache,
        reader: Reader::Closed { think_ns: plan.think_ns },
        order: plan.order,
        extra: Extra::default(),
        reads: plan.reads,
        warm_up_ns: WARM_UP_NS,
        seed,
    }
}

fn of_config(plan: &Plan, disk: DiskModel, config: Config, seed: u64) -> Setup {
    let rule = Rule::of(if config.is_interval { AIPU } else { PU });
    let writes = if config.is_delayed { Writes::Delayed } else { Writes::Asynchronous { partial: 0.0 } };
    Setup { writes, ..setup(plan, disk, rule, seed) }
}

/// Returns the policies compared under a burst, with their names.
fn under_burst(plan: &Plan) -> Vec<(String, Rule)> {
    let age_max_ns = plan.age_max_ns;
    let (age_ns, grain_ns, interval_ns) = (30 * S_NS, S_NS, 30 * S_NS);
    let shape =
        Shape { blocks_per_tick_max: plan.writes_per_s, tick_ns: S_NS, queue_depth_max: plan.depth, age_max_ns };
    let rules = [
        Rule::of(PU),
        Rule::of(AIPU),
        Rule::of(Policy::Interval { age_ns }),
        Rule::of(Policy::SPRITE),
        Rule::of(Policy::PeriodicReadPriority { interval_ns, age_max_ns }),
        Rule::of(Policy::IntervalReadPriority { age_ns, grain_ns, age_max_ns }),
        Rule::shaped(AIPU, shape),
    ];
    let name = |rule: &Rule| match rule.shape {
        None => rule.policy.name().to_string(),
        Some(_) => format!("{}, shaped", rule.policy.name()),
    };
    rules.iter().map(|rule| (name(rule), *rule)).collect()
}

/// Returns all setups, with those that belong together adjacent.
fn setups(plan: &Plan, service_s: f64) -> Vec<(For, Setup)> {
    let seeds = || plan.seed..plan.seed.saturating_add(plan.trials);
    let few = |all: &[u32], quick: &[u32]| if plan.is_quick { quick.to_vec() } else { all.to_vec() };
    let mut setups = vec![];
    for &disk in &plan.disks {
        for config in Config::ALL {
            let of = |seed| (For::Config(disk, config), of_config(plan, disk, config, seed));
            setups.extend(seeds().map(of));
        }
        for (name, rule) in under_burst(plan) {
            let writer = Writer::Burst { every_s: BURST_EVERY_S };
            // The first burst falls into the warm-up.
            let of = |seed| {
                let setup = setup(plan, disk, rule, seed);
                (For::Burst(disk, name.clone()), Setup { writer, warm_up_ns: BURST_EVERY_S * S_NS, ..setup })
            };
            setups.extend(seeds().map(of));
        }
        for percent in few(&PARTIAL, &QUICK_PARTIAL) {
            let writes = Writes::Asynchronous { partial: f64::from(percent) / 100.0 };
            let of = |seed| (For::Partial(disk, percent), Setup { writes, ..setup(plan, disk, Rule::of(PU), seed) });
            setups.extend(seeds().map(of));
        }
    }
    for far in Far::all() {
        let remote = Remote { network: ETHERNET, memory_blocks: if far.has_memory { MEMORY_BLOCKS } else { 0 } };
        let of = |seed| {
            let near = of_config(plan, DiskModel::Rz58, far.config, seed);
            let think_ns = plan.think_ns;
            let reader = if far.in_order { Reader::InOrder { think_ns } } else { near.reader };
            (For::Far(far), Setup { remote: Some(remote), buffers: DiskModel::Rz57.buffers(), reader, ..near })
        };
        setups.extend(seeds().map(of));
    }
    for case in open::cases(plan) {
        setups.extend(seeds().map(|seed| (For::Open(Box::new(case.clone())), case.with_seed(seed))));
    }
    let loads = if plan.is_quick { QUICK_LOADS.to_vec() } else { LOADS.to_vec() };
    for (reads, writes) in loads {
        let rate = |percent: u32| f64::from(percent) / 100.0 / service_s;
        let of = |policy: Policy, hits: u32, seed: u64| {
            let writer = Writer::Independent { per_s: rate(writes), hits: f64::from(hits) / 100.0 };
            let reader = Reader::Independent { per_s: rate(reads) };
            Setup { writer, reader, ..setup(plan, plan.disks[0], Rule::of(policy), seed) }
        };
        setups.extend(seeds().map(|seed| (For::Through(reads, writes), of(Policy::WriteThrough, 0, seed))));
        for hits in few(&HITS, &QUICK_HITS) {
            for (index, policy) in [PU, Policy::Interval { age_ns: 30 * S_NS }, AIPU].into_iter().enumerate() {
                setups.extend(seeds().map(|seed| (For::Hits(hits, index), of(policy, hits, seed))));
            }
        }
    }
    setups
}

/// Returns the mean time of an access anywhere on the partition (s). A load of 1 is one request in
/// that time.
fn service_s(disk: DiskModel, seed: u64) -> Result<f64, LabError> {
    Ok(machine::drain_s(disk, Order::Fifo, &Places::Anywhere, seed)? / disk.buffers() as f64)
}

fn drain(disk: DiskModel, seed: u64) -> Result<Drain, LabError> {
    let time_s = |order, places: Places| machine::drain_s(disk, order, &places, seed);
    Ok(Drain {
        disk,
        anywhere_s: time_s(Order::Fifo, Places::Anywhere)?,
        file_s: time_s(Order::Fifo, Places::File)?,
        elevator_s: time_s(Order::Elevator, Places::Anywhere)?,
        in_a_row_s: time_s(Order::Fifo, Places::InARow)?,
    })
}

/// Runs the plan.
pub fn measure(plan: &Plan) -> Result<Found, LabError> {
    let setups = setups(plan, service_s(plan.disks[0], plan.seed)?);
    let outcomes = parallel::map(&setups, plan.threads, |(_, setup)| machine::run(setup));
    let trials = outcomes.into_iter().collect::<Result<Vec<Trial>, LabError>>()?;
    let mut found = Found {
        measured: vec![],
        far: vec![],
        bursts: vec![],
        partial: vec![],
        crossings: vec![],
        drains: vec![],
        replayed: build::replay(plan)?,
        answers: vec![],
    };
    let of_a_point = plan.trials as usize;
    for ((of, _), trials) in setups.iter().step_by(of_a_point).zip(trials.chunks(of_a_point)) {
        let all = Figures::of(trials);
        let each = || trials.iter().map(|trial| Figures::of(std::slice::from_ref(trial))).collect();
        match of.clone() {
            For::Far(far) => found.far.push(MeasuredFar { far, trials: each(), all }),
            For::Config(disk, config) => {
                let trials = each();
                found.measured.push(Measured { disk, config, trials, all });
            }
            For::Burst(disk, name) => found.bursts.push(Burst { disk, name, all }),
            For::Partial(disk, percent) => found.partial.push(Partial { disk, percent, all }),
            For::Open(case) => found.answers.push(Answer { case: *case, all }),
            For::Through(read_percent, write_percent) => {
                let through_ms = all.mean_ms;
                found.crossings.push(Crossing { read_percent, write_percent, through_ms, by_hits: vec![] });
            }
            For::Hits(percent, index) => {
                let Some(crossing) = found.crossings.last_mut() else { continue };
                if index == 0 {
                    crossing.by_hits.push(AtHits { percent, mean_ms: [f64::NAN; 3] });
                }
                if let Some(point) = crossing.by_hits.last_mut() {
                    point.mean_ms[index] = all.mean_ms;
                }
            }
        }
    }
    found.drains = plan.disks.iter().map(|&disk| drain(disk, plan.seed)).collect::<Result<_, _>>()?;
    Ok(found)
}
