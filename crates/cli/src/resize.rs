//! `shoal resize`: other limits for a store.
//!
//! A store that is not mounted gets another layout ([`shoal_fs::Relayout`]): its region is written anew into the image that is
//! not current, and the seal of that image is the switch, so that the store is whole whenever the work is cut off.
//! Order: check (a damaged store is refused as it is: what cannot be read cannot be moved), open and close, so that one clean
//! image is all of the store; bulk storage grows; the new image is written and checked; a `battery` region is removed (the next
//! mount restores it from the image); seal; the old image and the end of bulk storage go.
//! A mounted store is asked through its control socket: within its layout the limits are two numbers in the roots
//! ([`shoal_fs::Fs::set_limits`]); more than that needs it unmounted.
//! What is in use may have to move together first, as ordinary work of the file system: the region is compacted, and blocks of
//! large files move to the front, only where the size wanted needs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use shoal_check::{ImageSource, Source};
use shoal_devices::size::{Size, exact, human};
use shoal_devices::{During, Failure, Outcome};
use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::{BULK_BLOCK, PAGE, SEGMENT};
use shoal_fs::{AtRest, Beyond, Fs, Limits, Options, Refused, Relayout, Steps};
use shoal_host::{HostImage, PrivateMap, SEGMENT_BYTES, SegmentLog};
use shoal_media::{BlankImage, ImageFile, LogDevice};

use crate::args::ResizeArgs;
use crate::control::{self, Question};
use crate::format::{self, MEMORY_BYTES_MIN};
use crate::memory::MemoryChoice;
use crate::store::{self, Store};
use crate::{check, place, progress};

#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    store: String,
    memory_bytes: u64,
    bulk_bytes: u64,
    memory_bytes_before: u64,
    bulk_bytes_before: u64,
}

pub fn run(args: &ResizeArgs) -> Outcome<()> {
    if args.memory_size.is_none() && args.bulk_size.is_none() {
        return Err(Failure::new("resize", "no size is given").remedy("add --memory-size or --bulk-size").misuse());
    }
    let place = place::find(&args.store)?;
    let bytes = |size: Option<Size>| size.map(|size| size.0);
    let (memory_bytes, bulk_bytes) = (bytes(args.memory_size), bytes(args.bulk_size));
    let report = match control::ask(&place.store, &Question::Resize { memory_bytes, bulk_bytes })? {
        Some(value) => serde_json::from_value(value).during("answer of the daemon")?,
        None => {
            let store = Store::acquire(&place.store, store::LEAVING_PATIENCE)?;
            if matches!(store.description.memory, MemoryChoice::Dax(_)) {
                let cause = "dax memory has no image to write the new layout into";
                return Err(
                    Failure::new(store.directory.display(), cause).remedy("format a new store and copy the files")
                );
            }
            resize(&store, args)?
        }
    };
    if args.json {
        crate::print_json(&report);
    } else {
        let (memory, bulk) = (human(report.memory_bytes), human(report.bulk_bytes));
        println!("{}: up to {memory} of metadata and small files, up to {bulk} of large files", report.store);
    }
    Ok(())
}

/// A mounted store changes its limits within its layout.
pub fn answer(fs: &Fs, directory: &Path, memory_bytes: Option<u64>, bulk_bytes: Option<u64>) -> Outcome<Report> {
    let name = directory.display();
    let before = fs.limits().during(&name)?;
    if bulk_bytes.is_some() && before.bulk_blocks == 0 {
        return Err(no_bulk());
    }
    let wanted = Limits {
        region_bytes: memory_bytes.unwrap_or(before.region_bytes),
        bulk_blocks: bulk_bytes.map_or(before.bulk_blocks, |bytes| bytes / BULK_BLOCK),
    };
    let unmount = |most| format!("give at most {}, or unmount it first", exact(most));
    let refuse = |option, cause: &str, remedy| Err(Failure::new(option, cause.to_string()).remedy(remedy));
    match fs.set_limits(wanted).during(&name)? {
        Ok(()) => {}
        Err(Beyond::MemoryLayout { most }) => {
            return refuse("--memory-size", "is more than a mounted store can grow to", unmount(most));
        }
        Err(Beyond::BulkLayout { most }) => {
            return refuse("--bulk-size", "is more than a mounted store can grow to", unmount(most));
        }
        Err(Beyond::MemoryUsed { used, least }) => {
            let cause = format!("{} are in use", human(used));
            return refuse("--memory-size", &cause, format!("give at least {}", exact(least)));
        }
        Err(Beyond::BulkUsed { least }) => {
            let cause = format!("{} are in use", human(least));
            return refuse("--bulk-size", &cause, format!("give at least {}", exact(least)));
        }
    }
    let after = fs.limits().during(&name)?;
    Ok(Report {
        store: name.to_string(),
        memory_bytes: after.region_bytes,
        bulk_bytes: after.bulk_blocks * BULK_BLOCK,
        memory_bytes_before: before.region_bytes,
        bulk_bytes_before: before.bulk_blocks * BULK_BLOCK,
    })
}

fn no_bulk() -> Failure {
    let remedy = "format a store with bulk storage and copy the files";
    Failure::new("--bulk-size", "the store has no bulk storage").remedy(remedy).misuse()
}

fn resize(store: &Store, args: &ResizeArgs) -> Outcome<Report> {
    check::refuse_damaged(store, args.json)?;
    let mut before = None;
    let mut device_bytes = settle(store, |fs| {
        let old = fs.limits()?;
        before = Some(old);
        // Back to the layout's own size: no other layout is needed, only the limit goes.
        let layout = fs.region().superblock();
        let region_bytes =
            if wants(args.memory_size, layout.region_bytes) { layout.region_bytes } else { old.region_bytes };
        let bulk_bytes = layout.bulk_blocks * BULK_BLOCK;
        let bulk_blocks = if wants(args.bulk_size, bulk_bytes) { layout.bulk_blocks } else { old.bulk_blocks };
        let lifted = Limits { region_bytes, bulk_blocks };
        if lifted != old { fs.set_limits(lifted).map(drop) } else { Ok(()) }
    })?;
    let mut rest = Rest::load(store)?;
    let limits = limits(args, &rest.superblock)?;
    refuse_small_device(store, &limits, device_bytes)?;
    let mut planned = rest.plan(store, limits)?;
    if let Err(Refused::Memory { .. }) = planned {
        // Deletions leave segments with a slot or two in use.
        let waiting = progress::waiting("compacting memory", args.json);
        device_bytes = settle(store, |fs| fs.compact().map(drop))?;
        waiting.finish_and_clear();
        rest = Rest::load(store)?;
        planned = rest.plan(store, limits)?;
    }
    if let Err(Refused::Scattered { end_bytes }) = planned {
        let blocks = end_bytes / BULK_BLOCK - limits.bulk_blocks;
        let bar = progress::steps(blocks, args.json).with_message("moving large files (blocks)");
        device_bytes = settle(store, |fs| fs.gather_bulk(limits.bulk_blocks, &mut |moved| bar.inc(moved)).map(drop))?;
        bar.finish_and_clear();
        rest = Rest::load(store)?;
        planned = rest.plan(store, limits)?;
    }
    let plan = planned.map_err(refused)?;
    let before = before.unwrap_or(limits);
    // A limit below the layout's that nobody named stays.
    let kept = |named: Option<Size>, layout: u64, before: u64| if named.is_some() { layout } else { before };
    let layout = plan.superblock();
    let report = Report {
        store: store.directory.display().to_string(),
        memory_bytes: kept(args.memory_size, layout.region_bytes, before.region_bytes),
        bulk_bytes: kept(args.bulk_size, layout.bulk_blocks, before.bulk_blocks) * BULK_BLOCK,
        memory_bytes_before: before.region_bytes,
        bulk_bytes_before: before.bulk_blocks * BULK_BLOCK,
    };
    let device_needs = layout.bulk_blocks * BULK_BLOCK;
    let give_bulk = |bytes: u64| match bulk_file(store) {
        Some(path) => shoal_host::set_length_durably(&path, bytes).during("bulk storage"),
        None => Ok(()),
    };
    if *plan.superblock() != rest.superblock {
        if device_bytes.is_some_and(|bytes| bytes < device_needs) {
            give_bulk(device_needs)?;
        }
        let random = u32::from_le_bytes(shoal_host::random_bytes().during("random numbers")?);
        let mut incarnation = rest.anchor.incarnation.get();
        if let MemoryChoice::Battery(_) = &store.description.memory {
            // A copy of the region from before, put back by hand, is told apart.
            incarnation = shoal_region::next_incarnation(incarnation, random);
        }
        let mut steps = HostSteps { store, bulk_bytes: device_needs, bar: progress::steps(0, args.json) };
        plan.carry_out(&rest.at_rest(), incarnation, &mut steps).during(store.directory.display())?;
        steps.bar.finish_and_clear();
    }
    // A resize that was cut off may have left more than the store speaks of.
    if device_bytes.is_some() {
        give_bulk(device_needs)?;
    }
    Ok(report)
}

/// Opens the store, does something, and closes it cleanly; returns the size of its bulk device.
fn settle(store: &Store, work: impl FnOnce(&Fs) -> shoal_fs::Result<()>) -> Outcome<Option<u64>> {
    let (fs, _, media) = store.open(Options::default())?;
    let worked = work(&fs);
    fs.shutdown().during(store.directory.display())?;
    worked.during(store.directory.display())?;
    store.remove_pid();
    if let Some(bulk) = &media.bulk {
        bulk.close()?;
    }
    Ok(media.parts.bulk.as_ref().map(|bulk| bulk.geometry().bytes))
}

/// A store at rest: its images, and the newest one in private memory.
struct Rest {
    images: [Arc<dyn ImageFile>; 2],
    _files: [Arc<HostImage>; 2],
    newest: usize,
    superblock: Superblock,
    anchor: AnchorRecord,
    memory: PrivateMap,
}

impl Rest {
    fn load(store: &Store) -> Outcome<Rest> {
        let files = store.open_images()?;
        let images = store::shared(&files);
        let (newest, superblock, anchor) = shoal_region::newest_image(&images).during("image")?;
        let image = Some((files[newest].file(), anchor.used_bytes.get().next_multiple_of(PAGE)));
        let memory = PrivateMap::new(superblock.region_bytes, image).during("memory")?;
        Ok(Rest { images, _files: files, newest, superblock, anchor, memory })
    }

    fn at_rest(&self) -> AtRest<'_> {
        AtRest { images: &self.images, newest: self.newest, anchor: self.anchor, memory: &self.memory }
    }

    fn plan(&self, store: &Store, limits: Limits) -> Outcome<Result<Relayout, Refused>> {
        Relayout::plan(&self.memory, &self.superblock, limits).during(store.directory.display())
    }
}

/// What [`shoal_fs::Relayout::carry_out`] leaves to the owner of the media.
struct HostSteps<'a> {
    store: &'a Store,
    /// Of the new layout.
    bulk_bytes: u64,
    bar: ProgressBar,
}

impl Steps for HostSteps<'_> {
    fn progress(&mut self, what: &'static str, done: u64, total: u64) {
        if done == 0 {
            self.bar.set_message(what);
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    fn verify(&mut self, candidate: &dyn ImageFile) -> shoal_fs::Result<()> {
        let failed = |error: &dyn std::fmt::Display| shoal_fs::Error::Io(error.to_string());
        let log: Option<Box<dyn LogDevice>> = match self.store.description.memory {
            MemoryChoice::Logged => {
                Some(Box::new(SegmentLog::open(&self.store.log_path(), SEGMENT_BYTES).map_err(|e| failed(&e))?))
            }
            _ => None,
        };
        let image = ImageSource::Images([candidate, &BlankImage]);
        let bulk_bytes = (self.bulk_bytes > 0).then_some(self.bulk_bytes);
        let source = Source { image, log: log.as_deref(), bulk_bytes, power_lost: false, sums: true };
        self.bar.set_message("checking the new layout");
        let report = shoal_check::check(source, &mut |progress| {
            self.bar.set_length(progress.total);
            self.bar.set_position(progress.done);
        })
        .map_err(|error| failed(&error))?;
        match report.errors.first() {
            None => Ok(()),
            Some(error) => {
                let told = format!("the new layout is wrong ({error}); nothing was changed");
                Err(shoal_fs::Error::Corrupt(told))
            }
        }
    }

    fn before_seal(&mut self) -> shoal_fs::Result<()> {
        match &self.store.description.memory {
            // Durably: were it found beside the new image, it would be taken for the store.
            MemoryChoice::Battery(path) => {
                shoal_host::remove_durably(path).map_err(|error| shoal_fs::Error::Io(error.to_string()))
            }
            _ => Ok(()),
        }
    }
}

fn limits(args: &ResizeArgs, old: &Superblock) -> Outcome<Limits> {
    if args.bulk_size.is_some() && old.bulk_blocks == 0 {
        return Err(no_bulk());
    }
    let limits = Limits {
        region_bytes: args.memory_size.map_or(Ok(old.region_bytes), |size| format::memory_bytes(Some(size)))?,
        bulk_blocks: args.bulk_size.map_or(old.bulk_blocks, |size| size.0 / BULK_BLOCK),
    };
    if old.bulk_blocks > 0 && limits.bulk_blocks == 0 {
        return Err(Failure::new("--bulk-size", "is less than one block of 64 KiB").remedy("give more").misuse());
    }
    Ok(limits)
}

/// Bulk storage that is a file, whose length can change.
fn bulk_file(store: &Store) -> Option<PathBuf> {
    store.bulk_path().filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file()))
}

/// A file grows; a device has the size it has.
fn refuse_small_device(store: &Store, limits: &Limits, device_bytes: Option<u64>) -> Outcome<()> {
    match (bulk_file(store), device_bytes) {
        (None, Some(bytes)) if limits.bulk_blocks > bytes / BULK_BLOCK => {
            let cause = format!("the bulk device has {}", exact(bytes / BULK_BLOCK * BULK_BLOCK));
            Err(Failure::new("--bulk-size", cause).remedy("give at most that, or a larger device first").misuse())
        }
        _ => Ok(()),
    }
}

/// Is this, in whole units, the size wanted?
fn wants(size: Option<Size>, bytes: u64) -> bool {
    size.is_some_and(|size| size.0 / SEGMENT == bytes / SEGMENT)
}

fn refused(refused: Refused) -> Failure {
    match refused {
        Refused::Memory { used_bytes, least_bytes } => {
            let cause = format!("{} are in use", human(used_bytes));
            let least = exact(least_bytes.max(MEMORY_BYTES_MIN));
            Failure::new("--memory-size", cause).remedy(format!("give at least {least}"))
        }
        Refused::Bulk { used_bytes } => {
            let cause = format!("{} are in use", human(used_bytes));
            Failure::new("--bulk-size", cause).remedy(format!("give at least {}", exact(used_bytes)))
        }
        Refused::Scattered { end_bytes } => {
            let cause = format!("a block in use ends at {} and could not be moved", human(end_bytes));
            Failure::new("--bulk-size", cause).remedy(format!("give at least {}", exact(end_bytes)))
        }
        Refused::Layout(error) => Failure::new("sizes", error).remedy("give others").misuse(),
    }
}
