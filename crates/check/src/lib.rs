//! The offline checker. It reads a store at rest, replays its log into its own memory and verifies
//! every invariant of `docs/spec/region.md`.
//!
//! Owns: reading a region from images or from memory, log replay, the walk over inodes, directories
//! and extents, and the comparison of reachable with allocated pieces.
//! Rules: the crate depends only on the formats and the media traits, so that it cannot share the
//! engine's bugs. It never writes. Hostile bytes give findings, never a panic, in time and memory
//! bounded by the bytes on media (visited bits stop every cycle, every recursion has a fixed
//! depth).
//! Left out: carrying out the remedies it offers (`remedy`), and the contents of bulk devices other
//! than their marks and the spill file.

#![forbid(unsafe_code)]

mod absorbed;
mod allocation;
mod bulk;
mod dictionaries;
mod directories;
mod files;
mod inodes;
mod json;
mod links;
mod marks;
mod objects;
mod open;
mod packed;
mod region;
mod remedy;
mod replay;
mod report;
mod salvage;
mod spilled;
mod standby;

use shoal_media::{ImageFile, LogDevice, MediaError, PersistentMemory};

pub use marks::{BulkDevices, BulkFinder, FoundDevice, NotOpened, OpenedDevice};
pub use remedy::Remedy;
pub use report::{Counts, FINDINGS_MAX, Finding, FindingKind, Report};
pub use salvage::{BulkData, Item, Loss, SalvageSource, Salvaged, Sink, salvage};

/// Location of the region's bytes.
#[derive(Clone, Copy)]
pub enum ImageSource<'a> {
    /// The two images of a `logged` store, or the saved images of a `battery` store.
    Images([&'a dyn ImageFile; 2]),
    /// A region in place, with its log ring inside it.
    Memory(&'a dyn PersistentMemory),
}

/// A store to check.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub image: ImageSource<'a>,
    /// The log; required if the region has no ring.
    pub log: Option<&'a dyn LogDevice>,
    /// Size of the bulk device, if there is one (bytes).
    pub bulk_bytes: Option<u64>,
    /// Whether the machine went down since the store was last in use: data marked NEW then counts
    /// as lost.
    pub power_lost: bool,
    /// The boot ids that the log names if a flush of bulk storage failed since the store was last in
    /// use: what is marked NEW and in no cache then counts as lost.
    pub loss_boots: &'a [[u8; 16]],
    /// Whether to verify the page sums of the image.
    pub sums: bool,
    /// Opens the bulk device to verify the payloads of spilled files. It is called only if there
    /// are any. `None`: payloads are not verified.
    pub bulk: Option<&'a BulkOpener<'a>>,
    /// The bulk devices, to compare their marks. `None`: the marks are not compared.
    pub devices: Option<BulkDevices<'a>>,
}

impl<'a> Source<'a> {
    /// Returns a store without bulk storage, of a machine that kept running. Its page sums are verified.
    pub fn of(image: ImageSource<'a>, log: Option<&'a dyn LogDevice>) -> Source<'a> {
        Source {
            image,
            log,
            bulk_bytes: None,
            power_lost: false,
            loss_boots: &[],
            sums: true,
            bulk: None,
            devices: None,
        }
    }
}

/// Opens a bulk device for reading, or says why it cannot.
pub type BulkOpener<'a> = dyn Fn() -> Result<Box<dyn BulkData>, String> + 'a;

/// The checker's current work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Sums,
    Replay,
    Segments,
    Inodes,
    Directories,
    Links,
    Allocation,
    Spilled,
}

/// Progress of a stage, in the stage's own unit (bytes, segments, inode blocks, directories).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub stage: Stage,
    pub done: u64,
    pub total: u64,
}

/// The reason why a store could not be checked at all. Damage is not an error of this kind: it is
/// in the report.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Media(#[from] MediaError),
    #[error("the region keeps its log in files, and none was given: name the store's log folder")]
    LogMissing,
}

/// Checks a store. Findings are in the report; `Err` means that a medium could not be read.
pub fn check(source: Source<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Report, CheckError> {
    let mut report = Report::default();
    let Some(opened) = open::open(&source, &mut report, progress)? else {
        return Ok(report);
    };
    let open::Opened { superblock, anchor, mut region } = opened;
    let Some(boot_id) = replay::replay(&source, &superblock, &anchor, &mut region, &mut report, progress)? else {
        return Ok(report);
    };
    let region = region;
    let clean = report.clean;
    let mut state = State {
        allocation: allocation::Allocation::read(&region, &superblock, &mut report, progress)?,
        superblock,
        inodes: inodes::Inodes::default(),
        tables: packed::Tables::default(),
        dictionaries: dictionaries::Dictionaries::default(),
        devices: Vec::new(),
        mapped: Vec::new(),
        spilled: spilled::Spilled::default(),
        clean,
        // After a clean end only devices that were away may lack anything.
        power_lost: source.power_lost && !clean,
        data_lost: replay::names_loss(&boot_id, source.loss_boots),
        report,
    };
    bulk::read_devices(&region, &mut state)?;
    inodes::walk(&region, &mut state, progress)?;
    directories::walk(&region, &mut state, progress)?;
    if state.report.counts.preallocated > 0 {
        let sentence = format!("{} files have preallocated space behind their end", state.report.counts.preallocated);
        state.report.note(FindingKind::BeyondEnd, None, None, sentence);
    }
    links::verify(&mut state, progress);
    state.spilled.verify(&mut state.report);
    let State { allocation, report, .. } = &mut state;
    allocation.find_leaks(report, progress);
    let first_is_short = bulk::verify(&region, &mut state, source.bulk_bytes)?;
    if let Some(devices) = source.devices {
        marks::verify(devices, first_is_short, &mut state);
    }
    state.spilled.verify_payloads(source.bulk, &mut state.report, progress);
    remedy::keep_certain(&mut state.report);
    links::name_findings(&region, &mut state)?;
    Ok(state.report)
}

/// State shared by the walks.
struct State {
    superblock: shoal_format::superblock::Superblock,
    allocation: allocation::Allocation,
    inodes: inodes::Inodes,
    tables: packed::Tables,
    dictionaries: dictionaries::Dictionaries,
    /// The bulk devices, ascending by number.
    devices: Vec<shoal_format::bulk_list::BulkDeviceEntry>,
    /// Every extent of every file.
    mapped: Vec<bulk::Mapped>,
    spilled: spilled::Spilled,
    /// Whether the store was unmounted cleanly and nothing was replayed.
    clean: bool,
    power_lost: bool,
    /// A flush of bulk storage failed.
    data_lost: bool,
    report: Report,
}
