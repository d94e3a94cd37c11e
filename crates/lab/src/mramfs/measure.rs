//! The workloads, on all places in turn.
//!
//! Owns: the workloads at a scale, the order of runs, and the record: the time of each phase, and
//! for the engine the bytes that its region uses and its log has written. Rules: every run begins
//! and ends with an empty store or directory; creating stores and directories is outside of the
//! measured time.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use shoal_fs::{Fs, PackingCounts};

use super::Plan;
use super::build::{self, Builds};
use super::variants::{Packing, VARIANTS, Variant};
use crate::experiment::LabError;
use crate::places::Labelled;
use crate::plan::scaled;
use crate::postmark::{Config, Pauses, Phase, Took, Workload, run_with};
use crate::processor::ProcessorTime;
use crate::target::{Directory, Engine, Outcome, Target};

const FILES: f64 = 50_000.0;
const TRANSACTIONS: f64 = 100_000.0;
const SIZES: (u32, u32) = (1, 4095);
/// The thesis's directories: PostMark's options "none" and 100.
const DIRECTORIES: [u32; 2] = [0, 100];
/// Empty files that are created in order and then unlinked, in one directory.
pub const EMPTY_FILES: u32 = 4000;
/// Maximum number of runs of empty files, which take long and vary little.
const EMPTY_RUNS: u32 = 2;
/// The pace of a long run, about that of PostMark through a mount. The pauses do not count.
pub const PACE: Pauses = Pauses { calls: 500, pause: Duration::from_millis(25) };

/// A place that keeps files.
#[derive(Debug)]
pub enum Place {
    Engine(&'static Variant),
    Directory { label: String, path: PathBuf },
}

impl Place {
    fn at(labelled: &Labelled) -> Place {
        Place::Directory { label: labelled.label.clone(), path: labelled.directory.clone() }
    }

    pub fn name(&self) -> String {
        match self {
            Place::Engine(variant) => format!("engine, {}", variant.name),
            Place::Directory { label, .. } => label.clone(),
        }
    }
}

/// The engine's state after a phase.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Work of packing in the run so far.
    pub packing: PackingCounts,
    /// Packed inodes and all inodes.
    pub inodes: (u64, u64),
    /// Bytes of the region in use beyond those of an empty store.
    pub region_bytes: u64,
    /// Log bytes written in the phase.
    pub log_bytes: u64,
}

/// A phase of a run.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub took: Took,
    /// None if the place is not the engine.
    pub space: Option<Space>,
}

/// The runs of a workload at a place.
#[derive(Debug)]
pub struct Series {
    pub place: usize,
    /// Index in [`Found::workloads`]; `None` for creating and unlinking empty files.
    pub workload: Option<usize>,
    /// Whether the run has the pace of a mount.
    pub is_long: bool,
    /// One entry per run, with one step for each phase; a single step for empty files.
    pub runs: Vec<Vec<Step>>,
}

#[derive(Debug)]
pub struct Found {
    pub places: Vec<Place>,
    pub workloads: Vec<Workload>,
    /// Rounds of empty files on the engine, and in directories.
    pub rounds: [u32; 2],
    pub series: Vec<Series>,
    pub builds: Builds,
}

pub fn measure(plan: &Plan) -> Result<Found, LabError> {
    let engines = if plan.has_engine { VARIANTS } else { &[] };
    let mut places: Vec<Place> = engines.iter().map(Place::Engine).collect();
    places.extend(plan.at.iter().map(Place::at));
    let config = |directories| Config {
        seed: plan.seed,
        files: scaled(FILES, plan.scale),
        transactions: scaled(TRANSACTIONS, plan.scale),
        size_min: SIZES.0,
        size_max: SIZES.1,
        directories,
        ..Config::default()
    };
    let workloads: Vec<Workload> =
        DIRECTORIES.iter().map(|directories| Workload::generate(&config(*directories))).collect();
    // A directory already has its own pace.
    let (all, engines) = (places.len(), engines.len());
    let rounds = plan.rounds.map(|rounds| if rounds > 0 { scaled(rounds, plan.scale) } else { 0 });
    let rounds_at = |place: usize| rounds[usize::from(matches!(places[place], Place::Directory { .. }))];
    let cases = (0..workloads.len()).map(|at| (Some(at), false, all)).chain([(Some(0), true, engines)]);
    let cases = cases.chain([(None, false, all)]);
    let mut series: Vec<Series> = cases
        .flat_map(|(workload, is_long, places)| {
            (0..places).map(move |place| Series { place, workload, is_long, runs: vec![] })
        })
        .filter(|series| {
            series.workload.is_some() || has_empty_files(&places[series.place]) && rounds_at(series.place) > 0
        })
        .collect();
    for run in 0..plan.runs {
        for series in &mut series {
            if series.workload.is_none() && run >= EMPTY_RUNS {
                continue;
            }
            let of = Case {
                workload: series.workload.map(|at| &workloads[at]),
                pauses: series.is_long.then_some(PACE),
                rounds: rounds_at(series.place),
                packing: plan.packing,
            };
            series.runs.push(once(&places[series.place], &of)?);
        }
    }
    let builds = build::measure(&places, scaled_files(plan), plan.seed, plan.runs)?;
    Ok(Found { places, workloads, rounds, series, builds })
}

/// Returns whether a place runs empty files: no data is packed in them.
fn has_empty_files(place: &Place) -> bool {
    !matches!(place, Place::Engine(variant) if variant.data)
}

fn scaled_files(plan: &Plan) -> u32 {
    if plan.build_files > 0 { scaled(plan.build_files, plan.scale) } else { 0 }
}

/// The work to run.
struct Case<'a> {
    /// None: creating and unlinking empty files.
    workload: Option<&'a Workload>,
    pauses: Option<Pauses>,
    rounds: u32,
    packing: Packing,
}

fn once(place: &Place, case: &Case<'_>) -> Result<Vec<Step>, LabError> {
    match place {
        Place::Engine(variant) => {
            let (files, bytes) = match case.workload {
                Some(workload) => (workload.live_files_max, workload.config.size_max.into()),
                None => (EMPTY_FILES.into(), 0),
            };
            let running = variant.start(files, bytes, case.packing)?;
            Ok(steps(&Engine(&running.fs), case, Some(&running.fs))?)
        }
        Place::Directory { path, .. } => Ok(steps(&Directory::create_in(path)?, case, None)?),
    }
}

fn steps<T: Target>(target: &T, case: &Case<'_>, fs: Option<&Fs>) -> Outcome<Vec<Step>> {
    let mut space = fs.map(Watched::new);
    let mut steps = vec![];
    let mut push = |took| steps.push(Step { took, space: space.as_mut().map(Watched::look) });
    match case.workload {
        Some(workload) => run_with(workload, target, case.pauses, &mut |_: Phase, took| push(took))?,
        None => push(create_and_unlink(target, case.rounds)?),
    }
    Ok(steps)
}

/// Observes an engine from phase to phase.
struct Watched<'a> {
    fs: &'a Fs,
    empty_bytes: u64,
    last: shoal_fs::Lsn,
}

impl Watched<'_> {
    fn new(fs: &Fs) -> Watched<'_> {
        Watched { fs, empty_bytes: fs.usage().region_used, last: fs.region().last_lsn() }
    }

    fn look(&mut self) -> Space {
        let last = self.fs.region().last_lsn();
        let log_bytes = last - std::mem::replace(&mut self.last, last);
        let inodes = (self.fs.compacting().packed_inodes().map_or(0, |packed| packed.inodes), self.fs.usage().inodes);
        let packing = self.fs.cooling().packing_counts();
        Space { packing, inodes, region_bytes: self.fs.usage().region_used.saturating_sub(self.empty_bytes), log_bytes }
    }
}

/// Repeatedly creates the empty files in order and unlinks them in the same order.
fn create_and_unlink<T: Target>(target: &T, rounds: u32) -> Outcome<Took> {
    let names: Vec<String> = (0..EMPTY_FILES).map(|file| file.to_string()).collect();
    let (clock, processor) = (Instant::now(), ProcessorTime::now());
    for _ in 0..rounds {
        names.iter().try_for_each(|name| target.create(name, &[], 1))?;
        names.iter().try_for_each(|name| target.unlink(name))?;
    }
    Ok(Took { elapsed_s: clock.elapsed().as_secs_f64(), processor_s: processor.elapsed_s() })
}
