//! `shoal salvage`: copies out all that can be read of a damaged store, and names what cannot.
//!
//! The reading is `shoal_check::salvage`; here the store's files are opened, for reading alone and without touching its lock,
//! and the copy is made (`copy`). Exit codes: 0 everything was copied, 4 something is lost, 8 nothing could be done.
//! Left out: bulk storage whose opening writes (network RAM disks, virtual-log disks): its files are named as lost.

mod copy;
mod media;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;
use shoal_check::{BulkData, ImageSource, SalvageSource, Salvaged};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_format::PAGE;
use shoal_format::superblock::{ANCHOR_AT, AnchorRecord, SUPERBLOCK_AT, Superblock};
use shoal_media::{ImageFile, LogDevice, PersistentMemory};
use shoal_region::Error::LogGap;

use crate::args::SalvageArgs;
use crate::memory::MemoryChoice;
use crate::progress;
use crate::store::{self, BULK, BulkPlace, Description, IMAGES, LOG, Store};

const EXIT_LOST: u8 = 4;

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    target: String,
    directories: u64,
    files: u64,
    others: u64,
    links: u64,
    bytes: u64,
    /// Inodes no name leads to; they are in `lost+found`.
    unnamed: u64,
    lost: Vec<Lost>,
}

#[derive(Debug, Serialize)]
pub struct Lost {
    pub path: Option<String>,
    pub from: Option<u64>,
    pub to: Option<u64>,
    pub why: String,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "/{path}: ")?;
        }
        if let (Some(from), Some(to)) = (self.from, self.to) {
            write!(f, "bytes {from} to {to}: ")?;
        }
        f.write_str(&self.why)
    }
}

pub fn run(args: &SalvageArgs) -> Outcome<ExitCode> {
    let report = salvage(args)?;
    if args.json {
        crate::print_json(&report);
    } else {
        println!(
            "{}: {} files, {} directories, {} others, {} further names, {} of data in {}",
            report.store,
            report.files,
            report.directories,
            report.others,
            report.links,
            human(report.bytes),
            report.target
        );
        match report.lost.len() {
            0 => println!("nothing is lost"),
            n => println!("{n} losses, named on standard error; {} inodes without a name", report.unnamed),
        }
    }
    Ok(if report.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_LOST) })
}

fn salvage(args: &SalvageArgs) -> Outcome<Report> {
    let directory = args.store.canonicalize().during(args.store.display())?;
    // A store in use changes under the reader. Its lock is looked at, not taken: taking it writes to it.
    if media::is_locked(&directory) || crate::place::is_mounted(&directory) {
        return Err(Failure::new(directory.display(), "is in use").remedy("unmount it first"));
    }
    let description = describe(&directory)?;
    let target = prepare(&args.target, &directory)?;
    let images = store_images(&directory);
    let older = description.memory.path().and_then(|path| media::ReadMemory::open(path)).and_then(|memory| {
        let [first, second] = store_images(&directory);
        disagreement(Arc::new(memory), [Arc::new(first), Arc::new(second)])
    });
    let images = ImageSource::Images([&images[0], &images[1]]);
    let log = media::ReadLog::open(&directory.join(LOG));
    let log_faults = log.as_ref().map(media::ReadLog::faults).unwrap_or_default();
    let log: Option<&dyn LogDevice> = log.as_ref().map(|log| log as &dyn LogDevice);
    let memory = description.memory.path().and_then(|path| media::ReadMemory::open(path));
    let unnamed = |why| Lost { path: None, from: None, to: None, why };
    let mut before: Vec<Lost> = log_faults.into_iter().chain(older).map(unnamed).collect();
    let bulk = match bulk(&directory, &description) {
        Ok(bulk) => bulk,
        Err(why) => {
            before.push(unnamed(why));
            None
        }
    };
    let bulk_file = match &description.bulk {
        Some(BulkPlace::File(file)) => Some(directory.join(file)),
        _ => None,
    };
    let power_lost = store::power_was_lost(&directory, bulk_file);
    let bar = progress::waiting("looking for files", args.json);
    let mut copy = copy::Copy::new(target.clone(), args.json);
    before.into_iter().for_each(|lost| copy.tell(lost));
    let mut run = |image| {
        let source = SalvageSource { image, log, bulk: bulk.as_deref(), power_lost };
        let mut show = |found: &Salvaged| {
            if (found.files + found.directories).is_multiple_of(256) {
                bar.set_message(format!("{} files, {}", found.files, human(found.bytes)));
            }
        };
        shoal_check::salvage(source, &mut copy, &mut show).during(directory.display())
    };
    // Memory that is gone, or not a region any more, has its saved image.
    let found = match &memory {
        Some(memory) => match run(ImageSource::Memory(memory as &dyn PersistentMemory))? {
            Some(found) => Some(found),
            None => run(images)?,
        },
        None => run(images)?,
    };
    bar.finish_and_clear();
    let Some(found) = found else {
        return Err(Failure::new(directory.display(), "no image of it has a superblock: nothing can be read")
            .remedy("restore it from a backup"));
    };
    let lost = copy.finish();
    Ok(Report {
        store: directory.display().to_string(),
        target: target.display().to_string(),
        directories: found.directories,
        files: found.files,
        others: found.others,
        links: found.links,
        bytes: found.bytes,
        unnamed: found.unnamed,
        lost,
    })
}

/// Why a region is not the one its saved images are of, if so.
fn disagreement(memory: Arc<dyn PersistentMemory>, images: [Arc<dyn ImageFile>; 2]) -> Option<String> {
    if memory.len() < 4 * PAGE {
        return None;
    }
    let mut page = [0; PAGE as usize];
    memory.read(SUPERBLOCK_AT, &mut page);
    let superblock = Superblock::decode(&page).ok().filter(|superblock| memory.len() >= superblock.region_bytes)?;
    memory.read(ANCHOR_AT[0], &mut page);
    let anchor = AnchorRecord::newest(&page).ok()?;
    let end = match shoal_region::ring_end(&memory, &superblock, &anchor) {
        Err(LogGap { next, .. }) => next,
        end => end.ok()?,
    };
    let error = shoal_region::compare(&images, &superblock, &anchor, end).err()?;
    Some(format!("{error}; large files may have the bytes of others, and changes may be missing"))
}

/// The description, or what `format` would have written, where it is gone.
fn describe(directory: &Path) -> Outcome<Description> {
    Store::describe(directory).or_else(|failure| {
        if !IMAGES.iter().any(|name| directory.join(name).exists()) {
            return Err(failure);
        }
        let bulk = directory.join(BULK).exists().then(|| BulkPlace::File(BULK.into()));
        Ok(Description { version: 1, uuid: String::new(), memory: MemoryChoice::Logged, bulk })
    })
}

fn store_images(directory: &Path) -> [media::ReadImage; 2] {
    IMAGES.map(|name| media::ReadImage::open(&directory.join(name)))
}

/// The target directory: new or empty, and not within the store.
fn prepare(target: &Path, store: &Path) -> Outcome<PathBuf> {
    let absolute = std::path::absolute(target).during(target.display())?;
    let inside = absolute.ancestors().any(|above| above.canonicalize().is_ok_and(|above| above == store));
    if inside {
        return Err(Failure::new(target.display(), "is within the store").remedy("name a directory elsewhere"));
    }
    match std::fs::create_dir(&absolute) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        outcome => outcome.during(target.display())?,
    }
    let canonical = absolute.canonicalize().during(target.display())?;
    if std::fs::read_dir(&canonical).during(target.display())?.next().is_some() {
        return Err(Failure::new(target.display(), "is not empty").remedy("name an empty or a new directory"));
    }
    Ok(canonical)
}

type Bulk = Box<dyn BulkData>;

fn bulk(directory: &Path, description: &Description) -> Result<Option<Bulk>, String> {
    let lost = |why: &dyn std::fmt::Display| format!("bulk storage: {why}; the data of large files is lost");
    match &description.bulk {
        None => Ok(None),
        Some(BulkPlace::File(file)) => {
            let path = directory.join(file);
            let bulk = media::ReadBulk::open(&path).map_err(|error| lost(&format!("{}: {error}", path.display())))?;
            Ok(Some(Box::new(bulk)))
        }
        Some(BulkPlace::Device(text)) => {
            let device: shoal_devices::Description = text.parse().map_err(|error: String| lost(&error))?;
            if device.kind().opening_writes {
                return Err(lost(&format!(
                    "opening {text} would write to it; export it with `shoal serve --read-only`, and name that as `bulk` in a copy of {}",
                    store::DESCRIPTION
                )));
            }
            let device = device.open().map_err(|failure| lost(&failure))?;
            Ok(Some(Box::new(media::BlockBulk(device.block_device()))))
        }
    }
}
