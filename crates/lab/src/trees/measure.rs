//! The work, on all places in turn.
//!
//! Owns: the cases at a scale, the order of the runs, and the record: seconds or rates of each
//! operation, run by run. Rules: every run begins in an empty directory; its remains are removed
//! outside of the measured time. Unwritten data of a place is written before the next place's turn,
//! also outside of the measured time. Within a case only the case itself syncs: a person does not
//! wait for the disk between tar and cp.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use shoal_sim::Random;

use super::programs::Programs;
use super::source::{self, Source};
use super::{Part, Plan};
use crate::experiment::LabError;
use crate::places::{Place, write_back};
use crate::postmark::{Config, Contents, Workload, run as run_postmark};
use crate::target::{Directory, Outcome, Target};
use crate::{parallel, progress};

const POSTMARK_FILES: u32 = 20_000;
const TRANSACTIONS: u32 = 100_000;
const SYNCED_FILES: u32 = 1_000;
const APPENDS: u32 = 20_000;
const APPEND_BYTES: usize = 40;
/// Files of all threads together.
const THREADED_FILES: u32 = 10_000;
pub const THREADS: [u32; 3] = [1, 2, 4];
const SMALL_BYTES: usize = 1024;
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

pub const SECONDS: &str = "s";
pub const RATE: &str = "files/s";

/// The work at a place in one turn.
#[derive(Debug)]
enum Work {
    /// Work on trees, and git on them.
    Source {
        has_tree: bool,
        has_git: bool,
    },
    Postmark(Box<Workload>),
    Synced {
        files: u32,
    },
    Appends {
        count: u32,
    },
    Threads {
        files: u32,
    },
}

/// Some work and all its runs.
#[derive(Debug)]
pub struct Case {
    work: Work,
    /// The timed operations, in order.
    pub operations: Vec<String>,
    pub unit: &'static str,
    /// Results by place, by run, by operation.
    pub runs: Vec<Vec<Vec<f64>>>,
}

/// The fate of the kernel's caches before the first `git status`.
#[derive(Debug, PartialEq, Eq)]
pub enum Caches {
    Dropped,
    /// Kept at the user's request.
    Kept,
    /// The reason why they could not be dropped.
    Stuck(String),
}

#[derive(Debug)]
pub struct Found {
    pub places: Vec<Place>,
    pub cases: Vec<Case>,
    pub skipped: Vec<String>,
    /// Description of the source tree, if one was needed.
    pub tree: Option<String>,
    pub caches: Option<Caches>,
}

impl Part {
    /// Returns the programs that the part runs.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Part::Tree => &["tar", "cp", "rm"],
            Part::Git => &["tar", "git"],
            Part::Postmark | Part::Fsync | Part::Appends | Part::Threads => &[],
        }
    }

    fn leaves_out(self) -> &'static str {
        match self {
            Part::Tree => "untar, cp -r, rm -rf",
            Part::Git => "git clone, git status",
            Part::Postmark | Part::Fsync | Part::Appends | Part::Threads => "",
        }
    }
}

fn case(plan: &Plan, work: Work) -> Case {
    let (operations, unit) = match &work {
        Work::Source { has_tree, has_git } => {
            let tree = ["untar", "cp -r"].into_iter().filter(|_| *has_tree);
            let git = ["git clone", "git status, first", "git status, second"].into_iter().filter(|_| *has_git);
            let rm = if *has_git { "rm -rf of three trees" } else { "rm -rf of two trees" };
            (tree.chain(git).chain(has_tree.then_some(rm)).map(Into::into).collect(), SECONDS)
        }
        Work::Postmark(workload) => {
            let Config { files, .. } = workload.config;
            (vec![format!("PostMark, {files} files, {} transactions", workload.transactions)], SECONDS)
        }
        Work::Synced { files } => (vec![format!("{files} x create 1 KB + fsync")], SECONDS),
        Work::Appends { count } => (vec![format!("{count} appends of {APPEND_BYTES} bytes")], SECONDS),
        Work::Threads { .. } => {
            let name = |threads| format!("create 1 KB, {threads} {}", if threads == 1 { "thread" } else { "threads" });
            (THREADS.map(name).to_vec(), RATE)
        }
    };
    Case { work, operations, unit, runs: vec![vec![]; plan.at.len()] }
}

fn cases(plan: &Plan) -> Vec<Case> {
    let mut works = vec![];
    let (has_tree, has_git) = (plan.has(Part::Tree), plan.has(Part::Git));
    if has_tree || has_git {
        works.push(Work::Source { has_tree, has_git });
    }
    for part in &plan.parts {
        works.push(match part {
            Part::Tree | Part::Git => continue,
            Part::Postmark => Work::Postmark(Box::new(Workload::generate(&Config {
                seed: plan.seed,
                files: plan.scaled(POSTMARK_FILES),
                transactions: plan.scaled(TRANSACTIONS),
                ..Config::default()
            }))),
            Part::Fsync => Work::Synced { files: plan.scaled(SYNCED_FILES) },
            Part::Appends => Work::Appends { count: plan.scaled(APPENDS) },
            Part::Threads => Work::Threads { files: plan.scaled(THREADED_FILES) },
        });
    }
    works.into_iter().map(|work| case(plan, work)).collect()
}

/// The environment of the cases.
struct Bench<'a> {
    plan: &'a Plan,
    programs: &'a Programs,
    source: Option<&'a Source>,
    contents: &'a Contents,
    caches: Option<Caches>,
}

impl Bench<'_> {
    /// Runs one turn of a place.
    fn once(&mut self, work: &Work, place: &Path) -> Result<Vec<f64>, LabError> {
        let is_synced = matches!(work, Work::Synced { .. });
        let directory = Directory::create_in(place)?.synced(is_synced);
        let found = match work {
            Work::Source { has_tree, has_git } => self.on_source(&directory, *has_tree, *has_git)?,
            Work::Postmark(workload) => {
                let mut took_s = 0.0;
                run_postmark(workload, &directory, &mut |_, took| took_s += took.elapsed_s)?;
                vec![took_s]
            }
            Work::Synced { files } => vec![self.create(&directory, *files, 1)?],
            Work::Appends { count } => vec![append(&directory, self.contents, *count)?],
            Work::Threads { files } => {
                let rate = |threads| Ok(f64::from(*files) / self.create(&directory, *files, threads)?);
                THREADS.iter().map(|threads| rate(*threads)).collect::<Outcome<_>>()?
            }
        };
        drop(directory);
        write_back(place)?;
        Ok(found)
    }

    fn on_source(&mut self, directory: &Directory, has_tree: bool, has_git: bool) -> Result<Vec<f64>, LabError> {
        let root = directory.root();
        let source = self.source.expect("made for the parts that need it");
        let mut took = vec![];
        let mut run = |name, words: &[&dyn AsRef<OsStr>], directory: &Path| {
            self.programs.load(name);
            let ran = self.programs.run(name, words, directory)?;
            took.push(ran.took_s);
            Ok::<_, LabError>(ran.output)
        };
        if has_tree {
            directory.make_directory("untar")?;
            source.warm_tar()?;
            run("tar", &[&"-xf", &source.tar], &root.join("untar"))?;
            run("cp", &[&"-r", &"untar", &"copy"], root)?;
        }
        if let Some(repository) = source.repository.as_ref().filter(|_| has_git) {
            source.warm_repository()?;
            // Avoid hard links, which only a place on the same file system could have.
            run(
                "git",
                &[&"clone", &"-q", &"--no-hardlinks", &"--template", &source.template, repository, &"clone"],
                root,
            )?;
            let index = root.join("clone/.git/index");
            set_newest(&index)
                .map_err(|error| LabError::Broken { what: index.display().to_string(), why: error.to_string() })?;
            self.caches = Some(drop_caches(self.plan, root)?);
            for _ in 0..2 {
                let changed = run("git", &[&"status", &"--porcelain"], &root.join("clone"))?;
                if !changed.is_empty() {
                    let what = format!("git status of the clone in {}", root.display());
                    let why = format!("files differ that nobody has changed: {}", changed.lines().next().unwrap_or(""));
                    return Err(LabError::Broken { what, why });
                }
            }
        }
        if has_tree {
            run("rm", &[&"-rf", &"untar", &"copy", &"clone"], root)?;
        }
        Ok(took)
    }

    /// Creates files with several threads, each in its own directory. Returns the seconds.
    fn create(&self, directory: &Directory, files: u32, threads: u32) -> Outcome<f64> {
        let contents = self.contents.slice(0, SMALL_BYTES);
        let mut shares = vec![];
        for thread in 0..threads {
            let root = format!("by-{threads}-{thread}");
            directory.make_directory(&root)?;
            let names = (thread..files).step_by(threads as usize).map(|file| format!("{root}/{file}"));
            shares.push(names.collect::<Vec<_>>());
        }
        let clock = Instant::now();
        let made = parallel::map(&shares, threads as usize, |names| {
            names.iter().try_for_each(|name| directory.create(name, contents, SMALL_BYTES))
        });
        let took_s = clock.elapsed().as_secs_f64();
        made.into_iter().collect::<Outcome<()>>()?;
        Ok(took_s)
    }
}

/// Appends as a log does: one small write after the other, none of them combined by the program.
/// Returns the seconds.
fn append(directory: &Directory, contents: &Contents, count: u32) -> Outcome<f64> {
    let bytes = contents.slice(0, APPEND_BYTES).repeat(count as usize);
    directory.create("log", &[], APPEND_BYTES)?;
    let clock = Instant::now();
    directory.append("log", &bytes, APPEND_BYTES)?;
    Ok(clock.elapsed().as_secs_f64())
}

/// Makes an index newer than all files. Git rereads each file that was written in the same second
/// as its index. These are most files after a fast clone and few after a slow one, so a place would
/// be punished for its speed, and at random.
fn set_newest(index: &Path) -> io::Result<()> {
    File::options().write(true).open(index)?.set_modified(SystemTime::now() + Duration::from_secs(2))
}

/// Makes the kernel forget what it has read. It cannot forget data that it has not yet written.
fn drop_caches(plan: &Plan, root: &Path) -> Result<Caches, LabError> {
    if plan.keeps_caches {
        return Ok(Caches::Kept);
    }
    write_back(root)?;
    Ok(fs::write(DROP_CACHES, "3").map_or_else(|error| Caches::Stuck(error.to_string()), |()| Caches::Dropped))
}

pub fn measure(plan: &Plan) -> Result<Found, LabError> {
    let mut plan = plan.clone();
    let places: Vec<Place> = plan.at.iter().map(Place::at).collect::<Result<_, _>>()?;
    let scratch = Directory::create_in(&source::scratch(&plan, &places)?)?;
    let programs = Programs { path: plan.path.clone(), timeout: plan.timeout, scratch: scratch.root().into() };
    let mut skipped = vec![];
    plan.parts.retain(|part| {
        let missing = part.programs().iter().find(|name| !programs.has(name));
        skipped.extend(missing.map(|name| format!("{}: {name} is not in PATH; install it", part.leaves_out())));
        missing.is_none()
    });
    let needs_tree = plan.has(Part::Tree) || plan.has(Part::Git);
    let source = if needs_tree { Some(Source::make(&plan, &programs, scratch.root())?) } else { None };
    let mut cases = cases(&plan);
    let contents = Contents::generate(plan.seed, SMALL_BYTES);
    let mut bench =
        Bench { plan: &plan, programs: &programs, source: source.as_ref(), contents: &contents, caches: None };
    let mut random = Random::new(plan.seed);
    let bar = progress::of_runs(u64::from(plan.runs) * (cases.len() * places.len()) as u64);
    // Also write what making the source has left.
    write_back(scratch.root())?;
    for _ in 0..plan.runs {
        for case in &mut cases {
            for at in random.shuffled(0..places.len()) {
                let place = &places[at];
                bar.set_message(format!("{}, {}", case.operations[0], place.label));
                let directory = place.directory.as_ref().expect("a place of the command line is a directory");
                case.runs[at].push(bench.once(&case.work, directory)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let caches = bench.caches;
    Ok(Found { places, cases, skipped, tree: source.map(|source| source.name), caches })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use clap::ValueEnum;

    use super::*;

    /// Makes a directory with only these programs.
    fn programs(only: &[&str]) -> tempfile::TempDir {
        let programs = tempfile::tempdir().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        for name in only {
            let found = std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.exists());
            symlink(found.unwrap(), programs.path().join(name)).unwrap();
        }
        programs
    }

    /// Runs a small measurement at one place.
    fn measured(programs: &tempfile::TempDir) -> Result<Found, LabError> {
        let [place, scratch] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        measure(&Plan {
            at: vec![format!("x={}", place.path().display()).parse().unwrap()],
            tree: None,
            scratch: scratch.path().into(),
            parts: Part::value_variants().to_vec(),
            keeps_caches: true,
            seed: 1,
            runs: 1,
            scale: 0.001,
            timeout: Duration::from_secs(60),
            path: programs.path().into(),
        })
    }

    fn operations(found: &Found) -> Vec<&str> {
        found.cases.iter().flat_map(|case| &case.operations).map(String::as_str).collect()
    }

    #[test]
    fn a_missing_program_is_named_and_its_part_alone_is_left_out() {
        let found = measured(&programs(&["tar", "cp", "rm"])).unwrap();
        assert_eq!(found.skipped, ["git clone, git status: git is not in PATH; install it"]);
        assert_eq!(operations(&found)[..3], ["untar", "cp -r", "rm -rf of two trees"]);
        let found = measured(&programs(&[])).unwrap();
        assert_eq!(found.skipped.len(), 2, "{:?}", found.skipped);
        assert!(found.skipped[0].contains("tar is not in PATH") && found.skipped[0].contains("untar"));
        assert!(operations(&found)[0].starts_with("PostMark") && found.tree.is_none());
    }

    #[test]
    fn a_clone_that_differs_from_what_git_wrote_is_told_and_not_timed() {
        let programs = programs(&["sh", "tar", "cp", "rm", "git"]);
        let [git, real] = ["git", "real-git"].map(|name| programs.path().join(name));
        fs::rename(&git, &real).unwrap();
        let script = format!("#!/bin/sh\ncase $1 in status) echo ' M a';; *) exec {} \"$@\";; esac\n", real.display());
        fs::write(&git, script).unwrap();
        fs::set_permissions(&git, PermissionsExt::from_mode(0o755)).unwrap();
        let error = measured(&programs).map(drop).unwrap_err().to_string();
        assert!(error.contains("git status of the clone") && error.contains("nobody has changed: M a"), "{error}");
    }

    #[test]
    fn no_file_is_as_new_as_the_index() {
        let scratch = tempfile::tempdir().unwrap();
        let [index, file] = ["index", "file"].map(|name| scratch.path().join(name));
        [&index, &file].into_iter().for_each(|path| fs::write(path, "x").unwrap());
        set_newest(&index).unwrap();
        let [index, file] = [index, file].map(|path| fs::metadata(path).unwrap().modified().unwrap());
        // Git compares whole seconds.
        assert!(index.duration_since(file).unwrap() >= Duration::from_secs(1));
        assert!(set_newest(scratch.path()).is_err());
    }
}
