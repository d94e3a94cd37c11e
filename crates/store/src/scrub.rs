//! Reading through a store's bulk storage, so that damage is found while another copy may still
//! exist.
//!
//! For a mounted store its daemon does the work, a step of about half a second for each question,
//! and in idle time if the mount asks for it. A complete scrub leaves its result in the store's
//! directory (`scrubbed`). An interrupted scrub leaves none, and the next one starts over: reading
//! twice does no harm.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{Fs, ScrubPlace, Scrubbed};
use shoal_host::{Directory, Ticker};
use tracing::{error, info, warn};

use crate::control::{self, Question};
use crate::names::{SCRUBBED, SCRUBBED_NEW};
use crate::{Progress, Store, paths};

/// Bytes in a step.
const STEP: u64 = 32 << 20;
/// Bytes in a step in idle time, and the time between two steps: 40 MB a second.
const IDLE_STEP: u64 = 4 << 20;
const IDLE_PERIOD: Duration = Duration::from_millis(100);
/// Maximum number of findings kept.
const FINDINGS_MAX: usize = 10_000;

/// The position where a scrub continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub inode: u64,
    pub byte: u64,
}

/// A block of a file that differs from what was written, or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub path: String,
    pub inode: u64,
    /// Offset in the file where the block of 64 KiB begins.
    pub byte: u64,
    /// True if the checksum shows the damage; false if the device reported an error.
    pub damaged: bool,
    pub cause: String,
}

/// The work done by a scrub or by one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Bytes of large and spilled files that were read.
    pub read_bytes: u64,
    /// Bytes among them that had no checksum and have one now.
    pub covered_bytes: u64,
    /// Bytes among them without a checksum: the store keeps none, or none for them.
    pub without_bytes: u64,
    pub findings: Vec<Finding>,
}

impl ScrubReport {
    fn add(&mut self, mut step: ScrubReport) {
        self.read_bytes += step.read_bytes;
        self.covered_bytes += step.covered_bytes;
        self.without_bytes += step.without_bytes;
        self.findings.append(&mut step.findings);
        self.findings.truncate(FINDINGS_MAX);
    }
}

/// The daemon's answer about one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub done: ScrubReport,
    pub next: Option<Place>,
    /// Bytes of bulk storage in use.
    pub total_bytes: u64,
}

/// The result of the last complete scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastScrub {
    /// When it ended (seconds since 1970).
    pub ended: u64,
    pub read_bytes: u64,
    /// Blocks that were damaged or could not be read.
    pub findings: u64,
}

impl LastScrub {
    /// Reads the result from a store's directory.
    pub(crate) fn of(directory: &Directory) -> Option<LastScrub> {
        serde_json::from_slice(&directory.read(SCRUBBED).ok()??).ok()
    }

    pub fn age(&self) -> Duration {
        now().saturating_sub(Duration::from_secs(self.ended))
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Stores the result of a complete scrub.
fn keep(directory: &Directory, report: &ScrubReport) -> Outcome<()> {
    let last =
        LastScrub { ended: now().as_secs(), read_bytes: report.read_bytes, findings: report.findings.len() as u64 };
    let text = serde_json::to_vec(&last).during("report")?;
    directory.replace(SCRUBBED_NEW, SCRUBBED, &text, false).map_err(Failure::of)
}

fn named(fs: &Fs, done: Scrubbed) -> Outcome<ScrubReport> {
    let paths = if done.findings.is_empty() {
        Default::default()
    } else {
        paths::of(fs, done.findings.iter().map(|finding| finding.ino))?
    };
    let findings = done.findings.into_iter().map(|finding| Finding {
        path: paths.get(&finding.ino).cloned().unwrap_or_else(|| paths::nameless(fs, finding.ino)),
        inode: finding.ino.get().into(),
        byte: finding.byte,
        damaged: finding.damaged,
        cause: finding.cause,
    });
    Ok(ScrubReport {
        read_bytes: done.bytes,
        covered_bytes: done.covered,
        without_bytes: done.without,
        findings: findings.collect(),
    })
}

/// Does one step of a scrub.
pub fn step(fs: &Fs, from: Place) -> Outcome<Step> {
    let place = ScrubPlace { ino: from.inode, byte: from.byte };
    let mut done = fs.upkeep().scrub_step(place, STEP).during("scrub")?;
    let next = done.next.take().map(|next| Place { inode: next.ino, byte: next.byte });
    Ok(Step { done: named(fs, done)?, next, total_bytes: fs.usage().bulk_used })
}

/// Scrubs the store in `directory`. If it is mounted, its daemon does the work. The second outcome
/// is that of storing the result, so that findings are reported even on a full host.
pub fn scrub(directory: &Path, progress: &dyn Progress) -> Outcome<(ScrubReport, Outcome<()>)> {
    let ask = |place: Place| {
        let answer = control::ask(directory, &Question::Scrub { inode: place.inode, byte: place.byte })?;
        answer.map(|step| serde_json::from_value(step).during("answer of the daemon")).transpose()
    };
    let report = match ask(Place::default())? {
        Some(first) => all(first, progress, &|place| {
            ask(place)?.ok_or_else(|| {
                Failure::new(directory.display(), "was unmounted meanwhile").remedy("mount it, and scrub it again")
            })
        })?,
        None => Store::at_rest(directory, |fs| all(step(fs, Place::default())?, progress, &|place| step(fs, place)))?,
    };
    let kept = Directory::open(directory).map_err(Failure::of).and_then(|held| keep(&held, &report));
    Ok((report, kept))
}

fn all(first: Step, progress: &dyn Progress, next: &dyn Fn(Place) -> Outcome<Step>) -> Outcome<ScrubReport> {
    progress.begin("bulk storage (bytes)", first.total_bytes);
    let mut report = ScrubReport::default();
    let mut step = first;
    loop {
        report.add(step.done);
        progress.at(report.read_bytes);
        match step.next {
            Some(place) => step = next(place)?,
            None => break,
        }
    }
    progress.end();
    Ok(report)
}

/// Scrubs in idle time. A scrub begins when the last one is older than `every`.
pub(crate) fn start(fs: Arc<Fs>, directory: Directory, every: Duration) -> Outcome<Ticker> {
    let mut under_way: Option<(ScrubPlace, ScrubReport)> = None;
    let mut due = LastScrub::of(&directory).is_none_or(|last| last.age() >= every);
    let mut looked_at = now();
    let tick = move |_: &_| {
        if !due && now().saturating_sub(looked_at) >= Duration::from_secs(60) {
            looked_at = now();
            due = LastScrub::of(&directory).is_none_or(|last| last.age() >= every);
        }
        if !due {
            return ControlFlow::Continue(());
        }
        let (place, mut report) = under_way.take().unwrap_or_default();
        match fs.upkeep().scrub_tick(place, IDLE_STEP) {
            Ok(None) => under_way = Some((place, report)),
            Ok(Some(mut done)) => {
                let next = done.next.take();
                match named(&fs, done) {
                    Ok(named) => {
                        named.findings.iter().for_each(tell);
                        report.add(named);
                    }
                    Err(failure) => warn!("scrub: {failure}"),
                }
                if let Some(next) = next {
                    under_way = Some((next, report));
                } else {
                    due = false;
                    info!("scrub: {} bytes read, {} blocks damaged", report.read_bytes, report.findings.len());
                    if let Err(failure) = keep(&directory, &report) {
                        warn!("scrub: {failure}");
                    }
                }
            }
            Err(failure) => {
                warn!("scrub: {failure}; begun anew when it is due again");
                due = false;
            }
        }
        ControlFlow::Continue(())
    };
    Ticker::start_quiet("scrub", IDLE_PERIOD, tick).during("scrub")
}

fn tell(finding: &Finding) {
    let Finding { path, inode, byte, cause, .. } = finding;
    error!("scrub: {path} (inode {inode}), from byte {byte} on: {cause}");
}
