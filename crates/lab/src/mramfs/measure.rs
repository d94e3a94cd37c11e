//! The workloads in turn on all places.
//!
//! Owns: the workloads at a scale, the order of runs, and what is recorded: the time of each phase, and for the engine the
//! bytes its region uses and its log has written. Rules: every run begins on an empty store or in an empty directory, and ends
//! with one; making stores and directories is outside of the clock.

use std::path::PathBuf;
use std::time::Instant;

use shoal_fs::Fs;

use super::Plan;
use super::variants::{VARIANTS, Variant};
use crate::experiment::LabError;
use crate::postmark::{Config, Phase, Took, Workload, run};
use crate::processor::ProcessorTime;
use crate::target::{Directory, Engine, Outcome, Target};

const FILES: f64 = 50_000.0;
const TRANSACTIONS: f64 = 100_000.0;
const SIZES: (u32, u32) = (1, 4095);
/// The thesis's directories: PostMark's options "none" and 100.
const DIRECTORIES: [u32; 2] = [0, 100];
/// Empty files that are made in order and then unlinked, in one directory.
pub const EMPTY_FILES: u32 = 4000;
/// How often they are.
const ROUNDS: f64 = 4000.0;

/// Where files are kept.
#[derive(Debug)]
pub enum Place {
    Engine(&'static Variant),
    Directory(PathBuf),
}

impl Place {
    pub fn name(&self) -> String {
        match self {
            Place::Engine(variant) => format!("engine, {}", variant.name),
            Place::Directory(path) => path.display().to_string(),
        }
    }
}

/// What the engine holds after a phase.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes of the region in use beyond those of the empty store.
    pub region_bytes: u64,
    /// Log bytes written in the phase.
    pub log_bytes: u64,
}

/// A phase of a run.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub took: Took,
    /// None: not the engine.
    pub space: Option<Space>,
}

/// The runs of a workload at a place.
#[derive(Debug)]
pub struct Series {
    pub place: usize,
    /// Place in [`Found::workloads`]; none: making and unlinking empty files.
    pub workload: Option<usize>,
    /// One entry a run, with one step for each phase; a single step for empty files.
    pub runs: Vec<Vec<Step>>,
}

#[derive(Debug)]
pub struct Found {
    pub places: Vec<Place>,
    pub workloads: Vec<Workload>,
    pub rounds: u32,
    pub series: Vec<Series>,
}

fn scaled(value: f64, scale: f64) -> u32 {
    (value * scale).round().max(1.0) as u32
}

pub fn measure(plan: &Plan) -> Result<Found, LabError> {
    let mut places: Vec<Place> = VARIANTS.iter().map(Place::Engine).collect();
    places.extend(plan.at.iter().cloned().map(Place::Directory));
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
    let cases = (0..workloads.len()).map(Some).chain([None]);
    let mut series: Vec<Series> = cases
        .flat_map(|workload| (0..places.len()).map(move |place| Series { place, workload, runs: vec![] }))
        .collect();
    let rounds = scaled(ROUNDS, plan.scale);
    for _ in 0..plan.runs {
        for series in &mut series {
            let workload = series.workload.map(|at| &workloads[at]);
            series.runs.push(once(&places[series.place], workload, rounds)?);
        }
    }
    Ok(Found { places, workloads, rounds, series })
}

fn once(place: &Place, workload: Option<&Workload>, rounds: u32) -> Result<Vec<Step>, LabError> {
    match place {
        Place::Engine(variant) => {
            let (files, bytes) = match workload {
                Some(workload) => (workload.live_files_max, workload.config.size_max.into()),
                None => (EMPTY_FILES.into(), 0),
            };
            let fs = variant.make(files, bytes)?;
            Ok(steps(&Engine(&fs), workload, rounds, Some(&fs))?)
        }
        Place::Directory(path) => Ok(steps(&Directory::create_in(path)?, workload, rounds, None)?),
    }
}

fn steps<T: Target>(target: &T, workload: Option<&Workload>, rounds: u32, fs: Option<&Fs>) -> Outcome<Vec<Step>> {
    let mut space = fs.map(Watched::new);
    let mut steps = vec![];
    let mut push = |took| steps.push(Step { took, space: space.as_mut().map(Watched::look) });
    match workload {
        Some(workload) => run(workload, target, &mut |_: Phase, took| push(took))?,
        None => push(create_and_unlink(target, rounds)?),
    }
    Ok(steps)
}

/// Looks at an engine from phase to phase.
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
        Space { region_bytes: self.fs.usage().region_used.saturating_sub(self.empty_bytes), log_bytes }
    }
}

/// Makes the empty files in order and unlinks them in the same order, again and again.
fn create_and_unlink<T: Target>(target: &T, rounds: u32) -> Outcome<Took> {
    let names: Vec<String> = (0..EMPTY_FILES).map(|file| file.to_string()).collect();
    let (clock, processor) = (Instant::now(), ProcessorTime::now());
    for _ in 0..rounds {
        names.iter().try_for_each(|name| target.create(name, &[], 1))?;
        names.iter().try_for_each(|name| target.unlink(name))?;
    }
    Ok(Took { elapsed_s: clock.elapsed().as_secs_f64(), processor_s: processor.elapsed_s() })
}
