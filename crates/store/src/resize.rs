//! Changing the limits of a store.
//!
//! A store that is not mounted can get a new layout ([`shoal_fs::Relayout`]): its region is written
//! in the new layout into the image that is not current. The seal of that image is the switch, so
//! the store is whole whenever the work is interrupted.
//!
//! Order:
//! 1. Check. A damaged store is refused, because pieces that cannot be read cannot be moved.
//! 2. Open and close, so that one clean image is all of the store.
//! 3. Grow bulk storage. Write the new image and check it.
//! 4. Remove a `battery` region (the next mount restores it from the image). Seal.
//! 5. Remove the old image and the end of bulk storage.
//!
//! The process that serves a mounted store changes its limits within its layout, which are two
//! numbers in the roots ([`shoal_fs::Fs::set_limits`]); other changes need it unmounted. A smaller
//! size may need compaction first, as ordinary work of the file system: the region is compacted,
//! and blocks of large files move to the front.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shoal_check::{ImageSource, Source};
use shoal_devices::size::{exact, human};
use shoal_devices::{During, Failure, Outcome};
use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::{BULK_BLOCK, PAGE, SEGMENT};
use shoal_fs::{AtRest, Beyond, Fs, Limits, Refused, Relayout, Steps};
use shoal_host::{Access, Directory, HostImage, PrivateMap, SEGMENT_BYTES, SegmentLog};
use shoal_media::{BlankImage, ImageFile, LogDevice};

use crate::description::Description;
use crate::format::{MEMORY_BYTES_MIN, memory_bytes};
use crate::images::{self, shared};
use crate::memory::OwnRegion;
use crate::names::LOG;
use crate::progress::Progress;
use crate::store::Store;

/// The requested limits. `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub memory_bytes: Option<u64>,
    pub bulk_bytes: Option<u64>,
}

/// The limits of a store after and before a change.
#[derive(Debug, Serialize, Deserialize)]
pub struct Resized {
    pub store: String,
    pub memory_bytes: u64,
    pub bulk_bytes: u64,
    pub memory_bytes_before: u64,
    pub bulk_bytes_before: u64,
}

/// Changes the limits of an open file system within its layout. The store is in `directory`.
pub(crate) fn resize_mounted(fs: &Fs, directory: &Directory, sizes: &Sizes) -> Outcome<Resized> {
    let Sizes { memory_bytes, bulk_bytes } = *sizes;
    let name = directory.display();
    let before = fs.limits().during(&name)?;
    if bulk_bytes.is_some() && before.bulk_blocks == 0 {
        return Err(no_bulk());
    }
    if bulk_bytes.is_some() {
        refuse_several(directory.path(), &Description::read(directory)?)?;
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
    Ok(Resized {
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

/// Refuses a bulk size if the store has or had several devices. Each of them, also one that
/// replaced the first, keeps the size that it was added with.
fn refuse_several(directory: &Path, description: &Description) -> Outcome<()> {
    if !description.has_bulk_list() {
        return Ok(());
    }
    let numbers: Vec<u32> = description.cache_owners().into_iter().map(|(number, _)| number).collect();
    let shown =
        |&number: &u32| description.place_of(number).map(|place| format!("{number} ({})", place.shown(directory)));
    let devices: Vec<_> = numbers.iter().filter_map(shown).collect();
    let cause = match &devices[..] {
        [device] => format!("bulk device {device} keeps the size that it was added with"),
        _ => format!(
            "the store has several bulk devices, and each keeps the size that it was added with: {}",
            devices.join(", ")
        ),
    };
    let (store, example) = (directory.display(), numbers.last().copied().unwrap_or(0));
    let remedy = format!(
        "for more room run `shoal bulk add --size SIZE {store} DEVICE`; for another size of one of them do the same with the size wanted, \
         then `shoal bulk remove {store} {example}`, with its number"
    );
    Err(Failure::new("--bulk-size", cause).remedy(remedy).misuse())
}

impl Store {
    /// Changes the store's limits, with a new layout if they need one.
    pub fn resize(&self, sizes: &Sizes, watched: &dyn Progress) -> Outcome<Resized> {
        let memory = self.description.memory.kind();
        if !memory.properties().images {
            let cause = format!("{} memory has no image to write the new layout into", memory.name());
            return Err(Failure::new(self.directory.display(), cause).remedy("format a new store and copy the files"));
        }
        if sizes.bulk_bytes.is_some() {
            refuse_several(self.directory.path(), &self.description)?;
        }
        self.refuse_damaged(watched)?;
        let (before, device_bytes) = self.lift_limits(sizes)?;
        let (rest, plan, device_bytes) = self.plan_resize(sizes, device_bytes, watched)?;
        // A limit below the layout's stays unless the user named a new one.
        let kept = |named: Option<u64>, layout: u64, before: u64| if named.is_some() { layout } else { before };
        let layout = plan.superblock();
        let resized = Resized {
            store: self.directory.display().to_string(),
            memory_bytes: kept(sizes.memory_bytes, layout.region_bytes, before.region_bytes),
            bulk_bytes: kept(sizes.bulk_bytes, layout.bulk_blocks, before.bulk_blocks) * BULK_BLOCK,
            memory_bytes_before: before.region_bytes,
            bulk_bytes_before: before.bulk_blocks * BULK_BLOCK,
        };
        let device_needs = layout.bulk_blocks * BULK_BLOCK;
        let give_bulk = |bytes: u64| match bulk_file(self) {
            // The first of several devices has its mark behind its blocks.
            Some(_) if self.description.has_bulk_list() => Ok(()),
            Some(path) => shoal_host::set_length_durably(&path, bytes + BULK_BLOCK).during("bulk storage"),
            None => Ok(()),
        };
        if *plan.superblock() != rest.superblock {
            if device_bytes.is_some_and(|bytes| bytes < device_needs) {
                give_bulk(device_needs)?;
            }
            let random = u32::from_le_bytes(shoal_host::random_bytes().during("random numbers")?);
            let mut incarnation = rest.anchor.incarnation.get();
            if memory.has_incarnations() {
                // The new incarnation distinguishes the region from an older copy that is put back
                // by hand.
                incarnation = shoal_region::next_incarnation(incarnation, random);
            }
            let mut steps = HostSteps { store: self, bulk_bytes: device_needs, watched };
            plan.carry_out(&rest.at_rest(), incarnation, &mut steps).during(self.directory.display())?;
            watched.end();
        }
        // An interrupted resize may have left the bulk file longer than the store's limit.
        if device_bytes.is_some() {
            give_bulk(device_needs)?;
        }
        Ok(resized)
    }

    /// Opens and closes the store. A limit that is to grow to the layout's size needs no new layout
    /// and is lifted here. Returns the limits before, and the size of the bulk device.
    fn lift_limits(&self, sizes: &Sizes) -> Outcome<(Limits, Option<u64>)> {
        let mut before = Limits { region_bytes: 0, bulk_blocks: 0 };
        let device_bytes = self.open_and_close(|fs| {
            let old = fs.limits()?;
            before = old;
            let layout = fs.region().superblock();
            let region_bytes =
                if wants(sizes.memory_bytes, layout.region_bytes) { layout.region_bytes } else { old.region_bytes };
            let bulk_bytes = layout.bulk_blocks * BULK_BLOCK;
            let bulk_blocks = if wants(sizes.bulk_bytes, bulk_bytes) { layout.bulk_blocks } else { old.bulk_blocks };
            let lifted = Limits { region_bytes, bulk_blocks };
            if lifted != old { fs.set_limits(lifted).map(drop) } else { Ok(()) }
        })?;
        Ok((before, device_bytes))
    }

    /// Moves data out of the way of the new limits. Returns the store at rest, the new layout, and
    /// the size of the bulk device.
    fn plan_resize(
        &self,
        sizes: &Sizes,
        mut device_bytes: Option<u64>,
        watched: &dyn Progress,
    ) -> Outcome<(Rest, Relayout, Option<u64>)> {
        let mut rest = Rest::load(self)?;
        let limits = limits(sizes, &rest.superblock)?;
        refuse_small_device(self, &limits, device_bytes)?;
        let mut planned = rest.plan(self, limits)?;
        if let Err(Refused::Memory { .. }) = planned {
            // Deletions leave segments in which only a slot or two are used.
            watched.begin("compacting memory", 0);
            device_bytes = self.open_and_close(|fs| fs.compacting().compact().map(drop))?;
            watched.end();
            rest = Rest::load(self)?;
            planned = rest.plan(self, limits)?;
        }
        if let Err(Refused::Scattered { end_bytes }) = planned {
            watched.begin("moving large files (blocks)", end_bytes / BULK_BLOCK - limits.bulk_blocks);
            let mut moved = 0;
            device_bytes = self.open_and_close(|fs| {
                let mut more = |blocks| {
                    moved += blocks;
                    watched.at(moved);
                };
                fs.data().gather_bulk(limits.bulk_blocks, &mut more).map(drop)
            })?;
            watched.end();
            rest = Rest::load(self)?;
            planned = rest.plan(self, limits)?;
        }
        Ok((rest, planned.map_err(refused)?, device_bytes))
    }
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
        let files = images::open(&store.directory, Access::Write)?;
        let images = shared(&files);
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

/// The steps that [`shoal_fs::Relayout::carry_out`] leaves to the owner of the media.
struct HostSteps<'a> {
    store: &'a Store,
    /// Size of the bulk storage in the new layout.
    bulk_bytes: u64,
    watched: &'a dyn Progress,
}

impl Steps for HostSteps<'_> {
    fn progress(&mut self, what: &'static str, done: u64, total: u64) {
        if done == 0 {
            self.watched.begin(what, total);
        }
        self.watched.at(done);
    }

    fn verify(&mut self, candidate: &dyn ImageFile) -> shoal_fs::Result<()> {
        let failed = |error: &dyn std::fmt::Display| shoal_fs::Error::Io(error.to_string());
        let mut log: Option<Box<dyn LogDevice>> = None;
        if !self.store.description.memory.kind().has_ring() {
            log = Some(Box::new(
                SegmentLog::open_in(&self.store.directory, LOG, SEGMENT_BYTES, Access::Read).map_err(|e| failed(&e))?,
            ));
        }
        let image = ImageSource::Images([candidate, &BlankImage]);
        let bulk_bytes = (self.bulk_bytes > 0).then_some(self.bulk_bytes);
        let source = Source { bulk_bytes, ..Source::of(image, log.as_deref()) };
        let mut total = None;
        let report = shoal_check::check(source, &mut |progress| {
            if total.replace(progress.total) != Some(progress.total) {
                self.watched.begin("checking the new layout", progress.total);
            }
            self.watched.at(progress.done);
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
        match self.store.description.memory.path() {
            // If the store's directory is a copy, the region may be the original's.
            Some(path) => OwnRegion::with_uuid(path, &self.store.description.uuid)
                .and_then(|own| match self.store.description.is_copied_to(&self.store.directory) {
                    true => own.map_or(Ok(()), |own| own.put_aside().map(drop)),
                    false => own.map_or(Ok(()), OwnRegion::remove),
                })
                .map_err(|failure| shoal_fs::Error::Io(failure.to_string())),
            None => Ok(()),
        }
    }
}

fn limits(sizes: &Sizes, old: &Superblock) -> Outcome<Limits> {
    if sizes.bulk_bytes.is_some() && old.bulk_blocks == 0 {
        return Err(no_bulk());
    }
    let limits = Limits {
        region_bytes: sizes.memory_bytes.map_or(Ok(old.region_bytes), |bytes| memory_bytes(Some(bytes)))?,
        bulk_blocks: sizes.bulk_bytes.map_or(old.bulk_blocks, |bytes| bytes / BULK_BLOCK),
    };
    if old.bulk_blocks > 0 && limits.bulk_blocks == 0 {
        return Err(Failure::new("--bulk-size", "is less than one block of 64 KiB").remedy("give more").misuse());
    }
    Ok(limits)
}

/// Returns the path of the bulk storage if it is a file, whose length can change.
fn bulk_file(store: &Store) -> Option<PathBuf> {
    store.bulk_path().filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file()))
}

/// Refuses limits beyond a device's size. A file can grow.
fn refuse_small_device(store: &Store, limits: &Limits, device_bytes: Option<u64>) -> Outcome<()> {
    match (bulk_file(store), device_bytes) {
        (None, Some(bytes)) if limits.bulk_blocks > bytes / BULK_BLOCK => {
            let cause = format!("the bulk device has {}", exact(bytes / BULK_BLOCK * BULK_BLOCK));
            Err(Failure::new("--bulk-size", cause).remedy("give at most that, or a larger device first").misuse())
        }
        _ => Ok(()),
    }
}

/// Returns true if the requested size equals this one in whole segments.
fn wants(size: Option<u64>, bytes: u64) -> bool {
    size.is_some_and(|size| size / SEGMENT == bytes / SEGMENT)
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
