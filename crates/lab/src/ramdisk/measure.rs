//! The benchmarks at all places in turn.
//!
//! Owns: the order of the turns, and the record: the figure of each operation and the requests that
//! reached the device, run by run. Rules: every operation begins with a mount, so with an empty page
//! cache. What a turn leaves is removed after it, outside of the measured time. The places take turns
//! within each round, in an order drawn anew. Left out: the arrangement of the figures.

use rustix::process::geteuid;
use shoal_sim::Random;

use super::Plan;
use super::places::{self, Set, Subject, Writes};
use super::work::{self, Work};
use crate::experiment::LabError;
use crate::median::Median;
use crate::progress;
use crate::target::Directory;
use crate::world::{self, World, broken};

const PROGRAMS: [&str; 10] =
    ["nbdfuse", "fusermount3", "losetup", "mke2fs", "mount", "umount", "tar", "find", "grep", "sh"];
const NETWORK_PROGRAMS: [&str; 2] = ["ip", "tc"];
/// Debian packages of programs that are not everywhere.
const PACKAGES: &str = "Debian has them in libnbd-bin, fuse3, e2fsprogs, mount, iproute2, findutils and grep";

/// The outcome of one run of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    pub figure: f64,
    /// Requests to the block device: writes, reads, and bytes of both.
    pub requests: Option<[u64; 3]>,
}

/// A benchmark and its runs.
#[derive(Debug)]
pub struct Case {
    pub work: Work,
    /// By operation, by place, by round.
    pub runs: Vec<Vec<Vec<Ran>>>,
}

#[derive(Debug)]
pub struct Found {
    pub set: Set,
    pub cases: Vec<Case>,
    pub skipped: Vec<String>,
}

impl Case {
    pub fn median(&self, operation: usize, place: usize) -> Median {
        Median::of(self.runs[operation][place].iter().map(|ran| ran.figure))
    }

    /// Returns how many times as fast a place is as another in the same round.
    pub fn speedup(&self, operation: usize, place: usize, other: usize) -> Median {
        let [ours, theirs] = [place, other].map(|place| &self.runs[operation][place]);
        let by = &self.work.operations[operation];
        Median::of(ours.iter().zip(theirs).map(|(ours, theirs)| by.speedup(ours.figure, theirs.figure)))
    }

    /// Returns the median of one count of requests.
    pub fn requests(&self, operation: usize, place: usize, which: usize) -> Option<f64> {
        let counts: Option<Vec<f64>> =
            self.runs[operation][place].iter().map(|ran| Some(ran.requests?[which] as f64)).collect();
        counts.map(|counts| Median::of(counts).value)
    }
}

impl Found {
    pub fn place(&self, label: &str) -> Option<usize> {
        self.set.subjects.iter().position(|subject| subject.label == label)
    }
}

/// Returns why the experiment cannot run here, and the remedy.
pub fn missing(has_namespaces: bool) -> Vec<String> {
    let mut missing = vec![];
    if !geteuid().is_root() {
        missing.push("the experiment mounts file systems and makes loop devices; run it as root".into());
    }
    let network = NETWORK_PROGRAMS.iter().filter(|_| has_namespaces);
    let names: Vec<&'static str> = PROGRAMS.iter().chain(network).copied().collect();
    let names = world::missing(&names);
    if !names.is_empty() {
        missing.push(format!("{}: not in PATH; install what is missing ({PACKAGES})", names.join(", ")));
    }
    missing
}

/// Runs an operation on a fresh mount.
fn operate(
    world: &mut World,
    subject: &Subject,
    work: &Work,
    number: usize,
    directory: &Directory,
) -> Result<Ran, LabError> {
    let operation = &work.operations[number];
    let what = format!("{} at {}", operation.name, subject.label);
    subject.mount(world, operation.writes)?;
    let before = subject.requests();
    let figure = world.guarded(&what, || work.run(number, directory, world.programs()))?;
    let requests = before.zip(subject.requests()).map(|(before, after)| [0, 1, 2].map(|i| after[i] - before[i]));
    subject.unmount(world)?;
    Ok(Ran { figure, requests })
}

/// Runs all operations of a benchmark at a place.
fn turn(world: &mut World, subject: &Subject, work: &Work) -> Result<Vec<Ran>, LabError> {
    subject.mount(world, Writes::Late)?;
    let directory = Directory::create_in(&subject.at)?;
    world.guarded(subject.label, || work.prepare(&directory))?;
    subject.unmount(world)?;
    let mut ran = vec![];
    for number in 0..work.operations.len() {
        ran.push(operate(world, subject, work, number, &directory)?);
    }
    subject.mount(world, Writes::Late)?;
    world.guarded(subject.label, || {
        drop(directory);
        Ok(())
    })?;
    subject.unmount(world)?;
    Ok(ran)
}

fn rounds(world: &mut World, plan: &Plan, set: &Set) -> Result<Vec<Case>, LabError> {
    let mut cases: Vec<Case> = work::all(plan, &world.path(""))?
        .into_iter()
        .map(|work| Case { runs: vec![vec![vec![]; set.subjects.len()]; work.operations.len()], work })
        .collect();
    let mut random = Random::new(plan.seed);
    let bar = progress::of_runs(u64::from(plan.runs) * (cases.len() * set.subjects.len()) as u64);
    for _ in 0..plan.runs {
        for case in &mut cases {
            for at in random.shuffled(0..set.subjects.len()) {
                let subject = &set.subjects[at];
                bar.set_message(format!("{}, {}", case.work.operations[0].name, subject.label));
                for (operation, ran) in turn(world, subject, &case.work)?.into_iter().enumerate() {
                    case.runs[operation][at].push(ran);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(cases)
}

pub fn measure(plan: &Plan) -> Result<Found, LabError> {
    let mut world = World::new(plan.timeout)?;
    let mut set = places::set_up(&mut world, plan)?;
    let cases = rounds(&mut world, plan, &set)?;
    let skipped = std::mem::take(&mut set.skipped);
    let left = world.close();
    if !left.is_empty() {
        return Err(broken("left behind", format!("{}; remove it by hand", left.join("; "))));
    }
    Ok(Found { set, cases, skipped })
}
