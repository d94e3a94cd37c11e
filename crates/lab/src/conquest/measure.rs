//! The paper's benchmarks, on all places in turn.
//!
//! Owns: the benchmarks at a scale, the order of the runs, and the record: rates of each phase, run
//! by run. Rules: every run begins and ends with an empty directory or store; creating these is
//! outside of the measured time.

use std::time::Instant;

use shoal_sim::Random;

use super::large::{self, Large, Shape};
use super::{Part, Plan};
use crate::disk_store::DiskStore;
use crate::experiment::LabError;
use crate::mramfs::variants::{Packing, VARIANTS};
use crate::places::{Kind, Place};
use crate::postmark::{Config, Phase, Workload, run as run_postmark};
use crate::progress;
use crate::target::{Directory, Engine, Outcome, Target};

const SMALL_FILES: u32 = 10_000;
const SMALL_BYTES: usize = 1024;
pub const SMALL_PHASES: [&str; 3] = ["create", "read", "unlink"];
pub const POSTMARK_PHASES: [&str; 4] = ["transactions", "create alone", "create among transactions", "all"];

/// Conquest keeps a file of the paper's 1 MB in memory, but not one of 1.01 MB.
const SHAPES: [Shape; 3] = [
    Shape { name: "1 MB", files: 10, bytes: 1 << 20 },
    Shape { name: "1.01 MB", files: 10, bytes: 1_059_062 },
    Shape { name: "100 MB", files: 40, bytes: 100_000_000 },
];
/// Size above which files are only for places that keep them on a disk (bytes).
const MEMORY_BYTES_MAX: u64 = 10 << 20;

const POSTMARK_FILES: [u32; 6] = [5_000, 10_000, 15_000, 20_000, 25_000, 30_000];
/// The number of PostMark's files in the runs with fsync and with large files.
const MIXED_FILES: u32 = 10_000;
pub const TRANSACTIONS: u32 = 200_000;
/// Memory of a store in this process with a disk: more than all its small files and metadata take (bytes).
const DISK_STORE_MEMORY: u64 = 512 << 20;
/// Large files per thousand.
const LARGE_OF_THOUSAND: [u32; 7] = [0, 10, 20, 40, 60, 80, 100];

/// A benchmark.
#[derive(Clone, Debug)]
pub enum Work {
    Small { files: u32 },
    Large(Shape),
    Postmark(Box<Workload>),
}

/// A benchmark and all its runs.
#[derive(Debug)]
pub struct Case {
    pub part: Part,
    /// The value that distinguishes the case within its part: the number of files, their size, or
    /// the share of large ones.
    pub x: f64,
    pub name: String,
    pub is_synced: bool,
    /// The phases for which rates are given.
    pub phases: &'static [&'static str],
    pub unit: &'static str,
    work: Work,
    /// Rates by place (`None` where the case is left out), by run, by phase.
    pub rates: Vec<Option<Vec<Vec<f64>>>>,
}

#[derive(Debug)]
pub struct Found {
    pub places: Vec<Place>,
    pub cases: Vec<Case>,
    pub skipped: Vec<String>,
}

fn postmark(plan: &Plan, files: u32, transactions: u32, large_of_thousand: u32) -> Workload {
    let files = plan.scaled(files);
    Workload::generate(&Config {
        seed: plan.seed,
        files,
        transactions: plan.scaled(transactions),
        size_min: 512,
        size_max: 16 << 10,
        large_of_thousand,
        directories: f64::from(files).sqrt().round() as u32,
        reads_of_ten: 8,
        creates_of_ten: 5,
        ..Config::default()
    })
}

fn cases(plan: &Plan) -> Vec<Case> {
    let case = |part, x, name: String, is_synced, work| {
        let (phases, unit): (&[&str], _) = match work {
            Work::Small { .. } => (&SMALL_PHASES, "files/s"),
            Work::Large(_) => (&large::PHASES, "MB/s"),
            Work::Postmark(_) => (&POSTMARK_PHASES, "1/s"),
        };
        Case { part, x, name, is_synced, phases, unit, work, rates: vec![] }
    };
    let mut cases = vec![];
    for part in &plan.parts {
        match part {
            Part::SmallFiles => {
                let files = plan.scaled(SMALL_FILES);
                for is_synced in [false, true].into_iter().filter(|is_synced| plan.has_fsync || !is_synced) {
                    cases.push(case(*part, 0.0, format!("{files} files of 1 KB"), is_synced, Work::Small { files }));
                }
            }
            Part::LargeFiles => {
                for shape in SHAPES {
                    let shape = Shape { files: plan.scaled(shape.files), ..shape };
                    let name = format!("{} of {}", shape.files, shape.name);
                    cases.push(case(*part, shape.bytes as f64, name, true, Work::Large(shape)));
                }
            }
            Part::Postmark => {
                for files in POSTMARK_FILES {
                    let work = || Work::Postmark(Box::new(postmark(plan, files, TRANSACTIONS, 0)));
                    let (x, name) = (f64::from(plan.scaled(files)), format!("{} files", plan.scaled(files)));
                    cases.push(case(*part, x, name.clone(), false, work()));
                    if plan.has_fsync && files == MIXED_FILES {
                        cases.push(case(*part, x, name, true, work()));
                    }
                }
            }
            Part::Mixed => {
                for of_thousand in LARGE_OF_THOUSAND {
                    let work =
                        Work::Postmark(Box::new(postmark(plan, MIXED_FILES, plan.mixed_transactions, of_thousand)));
                    let percent = f64::from(of_thousand) / 10.0;
                    cases.push(case(*part, percent, format!("{percent}% large files"), false, work));
                }
            }
        }
    }
    cases
}

impl Case {
    /// Returns whether Conquest keeps some of the files on a disk.
    fn takes_disk(&self) -> bool {
        match &self.work {
            Work::Large(shape) => shape.bytes > 1 << 20,
            Work::Postmark(_) => self.part == Part::Mixed,
            Work::Small { .. } => false,
        }
    }

    /// Returns why the case is left out at a place, if it is.
    fn left_out(&self, place: &Place) -> Option<&'static str> {
        let is_large = match &self.work {
            Work::Large(shape) => shape.bytes > MEMORY_BYTES_MAX,
            Work::Postmark(workload) => workload.config.large_of_thousand > 0,
            Work::Small { .. } => false,
        };
        match place.kind {
            Kind::Engine
                if place.directory.is_none() && (is_large || self.part == Part::LargeFiles && self.takes_disk()) =>
            {
                Some("it has no disk; name a directory on one with --disk")
            }
            Kind::Engine if self.is_synced && !matches!(self.work, Work::Large(_)) => {
                Some("everything is durable at return, with or without fsync")
            }
            kind if kind.is_memory() && is_large => Some("memory must not hold such files"),
            _ => None,
        }
    }

    fn once(&self, place: &Place, seed: u64) -> Result<Vec<f64>, LabError> {
        match &place.directory {
            Some(disk) if place.kind == Kind::Engine && self.takes_disk() => {
                return Ok(self.rates(&Engine(DiskStore::create_in(disk, DISK_STORE_MEMORY)?.fs()), seed)?);
            }
            Some(directory) if place.kind != Kind::Engine => {
                return Ok(self.rates(&Directory::create_in(directory)?.synced(self.is_synced), seed)?);
            }
            _ => {}
        }
        let (files, bytes) = match &self.work {
            Work::Small { files } => (u64::from(*files), SMALL_BYTES as u64),
            Work::Large(shape) => (u64::from(shape.files), shape.bytes),
            Work::Postmark(workload) => (workload.live_files_max, workload.config.len_max().into()),
        };
        let packing = Packing { method: shoal_fs::Method::Off, load: 0 };
        let running = VARIANTS[0].start(files, bytes, packing)?;
        Ok(self.rates(&Engine(&running.fs), seed)?)
    }

    fn rates<T: Large>(&self, target: &T, seed: u64) -> Outcome<Vec<f64>> {
        match &self.work {
            Work::Small { files } => small(target, *files),
            Work::Large(shape) => large::run(target, shape, seed),
            Work::Postmark(workload) => {
                let mut took = vec![];
                run_postmark(workload, target, &mut |_: Phase, of| took.push(of.elapsed_s))?;
                let [created, mixed, deleted] = workload.phases.each_ref().map(|calls| calls.counts);
                Ok(vec![
                    workload.transactions as f64 / took[1],
                    created.created as f64 / took[0],
                    mixed.created as f64 / took[1],
                    (created.created + 2 * workload.transactions + deleted.deleted) as f64 / took.iter().sum::<f64>(),
                ])
            }
        }
    }
}

/// Creates all files, then reads, then unlinks them (5.1.1). Returns files per second of each
/// phase.
fn small<T: Target>(target: &T, files: u32) -> Outcome<Vec<f64>> {
    let names: Vec<String> = (0..files).map(|file| file.to_string()).collect();
    let contents = vec![b'c'; SMALL_BYTES];
    let mut buffer = vec![0; SMALL_BYTES + 1];
    let mut rates = vec![];
    let mut phase = |work: &mut dyn FnMut(&str) -> Outcome<()>| -> Outcome<()> {
        let clock = Instant::now();
        names.iter().try_for_each(|name| work(name))?;
        rates.push(f64::from(files) / clock.elapsed().as_secs_f64());
        Ok(())
    };
    phase(&mut |name| target.create(name, &contents, SMALL_BYTES))?;
    phase(&mut |name| target.read(name, &mut buffer, &mut |_| {}))?;
    phase(&mut |name| target.unlink(name))?;
    Ok(rates)
}

pub fn measure(plan: &Plan) -> Result<Found, LabError> {
    // The engine comes first among the stores of Shoal: it is nearest to a file system in the kernel.
    let engine = plan.has_engine.then(|| Place { directory: plan.disk.clone(), ..Place::engine() });
    let mut places: Vec<Place> = engine.into_iter().collect();
    for at in &plan.at {
        places.push(Place::at(at)?);
    }
    let mut cases = cases(plan);
    let mut skipped = vec![];
    for case in &mut cases {
        case.rates = places.iter().map(|place| case.left_out(place).is_none().then(Vec::new)).collect();
        for (place, why) in places.iter().filter_map(|place| Some((place, case.left_out(place)?))) {
            let synced = if case.is_synced { ", synced" } else { "" };
            skipped.push(format!("{}, {}{synced}: {why}", place.label, case.name));
        }
    }
    let mut random = Random::new(plan.seed);
    let all: usize = cases.iter().map(|case| case.rates.iter().flatten().count()).sum();
    let bar = progress::of_runs(u64::from(plan.runs) * all as u64);
    for round in 0..plan.runs {
        for case in &mut cases {
            for at in random.shuffled(0..places.len()) {
                if case.rates[at].is_none() {
                    continue;
                }
                bar.set_message(format!("{}, {}", case.name, places[at].label));
                let rates = case.once(&places[at], plan.seed.wrapping_add(round.into()))?;
                case.rates[at].as_mut().expect("it is not left out").push(rates);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(Found { places, cases, skipped })
}
