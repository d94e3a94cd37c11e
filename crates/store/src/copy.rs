//! Copies a store compactly. The copy has the same contents, without the space that the original
//! takes but does not use.
//!
//! A damaged original is refused: its pages would get new sums, and the copy would look sound. The
//! original is opened without writing: newest image, log replayed in memory. Its used segments
//! become one image, its used bulk blocks a sparse file for each bulk device. Orphans and
//! unfinished truncations are settled in the copy, by opening it once. The description is written
//! last, after a check, so an interrupted copy is not a store. The copy has its own uuid, because a
//! store accepts any region or bulk device with its uuid.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use shoal_devices::{During, Failure, Outcome, new_uuid};
use shoal_format::bulk_list::{BULK_LIST_AT, BulkDeviceEntry, Mark, decode_devices, decode_list, encode_list};
use shoal_format::superblock::{ANCHOR_CLEAN, AnchorRecord, FEATURE_SUMS, Superblock};
use shoal_format::{BULK_BLOCK, Offset, PAGE, SEGMENT};
use shoal_fs::{Fs, Options};
use shoal_host::{Access, Directory, SEGMENT_BYTES, SegmentLog};
use shoal_media::BlockDevice;
use shoal_region::View;

use crate::description::{BulkPlace, Description, NumberedPlace};
use crate::directory::{self, Prepared};
use crate::images::{self, shared};
use crate::memory::{MemoryChoice, OwnRegion};
use crate::names::{BULK, DESCRIPTION_NEW, IMAGES, LOCK, LOG, bulk_file};
use crate::progress::Progress;
use crate::store::{Devices, Opened, Store};

/// Bulk blocks copied at a time.
const COPY_BLOCKS: u64 = 64;

/// How a copy is made.
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// Memory of the copy. Required when the original has `battery` or `dax` memory.
    pub memory: Option<MemoryChoice>,
    /// Give the copy the store's uuid, because it replaces the store.
    pub keep_uuid: bool,
}

/// A copy that was made.
#[derive(Debug, Serialize)]
pub struct Copied {
    pub store: String,
    pub copy: String,
    pub uuid: String,
    pub region_bytes: u64,
    pub bulk_bytes: u64,
    pub inodes: u64,
}

impl Store {
    /// Copies the store into a directory that is empty or does not exist yet. The store stays as it
    /// is.
    pub fn copy_to(&self, new: &Path, options: &CopyOptions, watched: &dyn Progress) -> Outcome<Copied> {
        let memory = memory_of_copy(&self.description.memory, options)?;
        refuse_place(new, self.directory.path())?;
        self.refuse_damaged(watched)?;
        let original = self.open(Options { read_only: true, ..Options::default() })?;
        if original.fs.devices().has_unsettled_bulk() {
            let cause = "a bulk device was away or is in another place, or a flush of it failed, and what it lacks is not settled";
            return Err(Failure::new(self.directory.display(), cause).remedy("mount the store once, then copy it"));
        }
        let made_here = missing(new);
        let Prepared { directory, lock, .. } = directory::prepare(new, memory.path().map(PathBuf::as_path), false)
            .inspect_err(|_| remove_empty(&made_here))?;
        let superblock = original.fs.region().superblock();
        let uuid = if options.keep_uuid { superblock.uuid } else { new_uuid() };
        // All pages of the copy get new sums, and its log is empty.
        let features = superblock.features | FEATURE_SUMS;
        let superblock = Superblock { uuid, features, ..*superblock };
        let devices = devices(&original.fs)?;
        let bulk = devices.iter().map(|device| match device.number {
            0 => NumberedPlace::new(0, &uuid, BulkPlace::File(BULK.into())),
            number => NumberedPlace::new(number, &device.uuid, BulkPlace::File(bulk_file(number).into())),
        });
        let bulk = bulk.collect();
        let new = Description::new(&uuid, memory, None, self.description.compress).made_in(&directory)?;
        let description = Description { bulk, ..new };
        let copy = Store::assemble(directory.clone(), description.clone(), lock);
        let copied = self.fill(copy, &original, &superblock, watched).and_then(|copied| {
            description.write(&directory)?;
            Ok(copied)
        });
        copied.inspect_err(|_| clear(&directory, &description, &made_here))
    }

    /// Copies the contents, finishes unfinished operations, and checks the copy.
    fn fill(&self, copy: Store, original: &Opened, superblock: &Superblock, watched: &dyn Progress) -> Outcome<Copied> {
        let Opened { fs, recovery, devices: Devices { engine, .. }, .. } = original;
        let mut bulk_bytes = 0;
        for entry in devices(fs)? {
            // Includes the data that a killed process held back.
            let device = engine.iter().find(|(number, _)| *number == entry.number).map(|(_, device)| device);
            let device = device.ok_or_else(|| Failure::new(format!("bulk device {}", entry.number), "is not there"))?;
            bulk_bytes += copy_bulk(fs, &**device, &entry, &superblock.uuid, &copy.directory, watched)?;
        }
        // Bulk data not yet durable in the original has been read, and is durable in the copy.
        let whole = !recovery.power_lost;
        let region_bytes = write_region(fs, &copy, superblock, recovery.clean, whole)?;
        let copy = if recovery.clean { copy } else { finish(copy)? };
        let checked = copy.check(true, watched)?;
        if let Some(error) = checked.errors.first() {
            let cause = format!("{} errors, the first: {error}", checked.errors.len());
            return Err(Failure::new(format_args!("copy of {}", self.directory.display()), cause)
                .remedy(format!("`shoal check {}` tells whether they are its own", self.directory.display())));
        }
        Ok(Copied {
            store: self.directory.display().to_string(),
            copy: copy.directory.display().to_string(),
            uuid: copy.description.uuid.clone(),
            region_bytes,
            bulk_bytes,
            inodes: checked.counts.inodes,
        })
    }
}

/// Refuses a target that is not empty or lies within the original. Called before anything is made.
fn refuse_place(new: &Path, source: &Path) -> Outcome<()> {
    let absolute = std::path::absolute(new).during(new.display())?;
    if directory::is_within(&absolute, source) {
        return Err(Failure::new(new.display(), "lies in the store").remedy("name another directory"));
    }
    // A lock file left by an earlier attempt may be there.
    directory::refuse_filled(&absolute, new, &[LOCK])
}

/// Returns the directories on this path that do not exist yet, the innermost first.
fn missing(path: &Path) -> Vec<PathBuf> {
    let Ok(absolute) = std::path::absolute(path) else { return Vec::new() };
    absolute.ancestors().take_while(|above| !above.exists()).map(Path::to_path_buf).collect()
}

/// Removes the directories that this copy made, except those that are not empty.
fn remove_empty(made_here: &[PathBuf]) {
    made_here.iter().for_each(|directory| drop(fs::remove_dir(directory)));
}

fn memory_of_copy(source: &MemoryChoice, options: &CopyOptions) -> Outcome<MemoryChoice> {
    let memory = options.memory.as_ref().unwrap_or(source).absolute().during("memory")?;
    if memory.kind() != source.kind() {
        return Err(Failure::new("--memory", "is not the kind of memory the store has").misuse());
    }
    let Some(path) = memory.path() else { return Ok(memory) };
    if Some(path) == source.path() {
        let remedy = format!("give the copy's region a place with --memory {}=PATH", source.kind().name());
        return Err(Failure::new(path.display(), "is the store's own region").remedy(remedy).misuse());
    }
    if path.exists() {
        return Err(Failure::new(path.display(), "exists").remedy("name a new file for the copy's region"));
    }
    Ok(memory)
}

/// Returns the bulk devices that the region lists.
fn devices(fs: &Fs) -> Outcome<Vec<BulkDeviceEntry>> {
    let mut page = [0; PAGE as usize];
    fs.region().read(BULK_LIST_AT, &mut page).during("list of bulk devices")?;
    decode_devices(&page, fs.region().superblock()).during("list of bulk devices")
}

/// Copies a device's used blocks, and its mark for store `uuid`, into a sparse file of the copy.
/// Returns the bytes of those blocks. Blocks in doubt are copied as they are, since the copy's
/// region marks them too.
fn copy_bulk(
    fs: &Fs,
    device: &dyn BlockDevice,
    entry: &BulkDeviceEntry,
    uuid: &[u8; 16],
    directory: &Directory,
    watched: &dyn Progress,
) -> Outcome<u64> {
    let name = bulk_file(entry.number);
    let path = directory.path().join(&name);
    let file = directory.create_new(&name).map_err(Failure::of)?;
    // Includes room for the mark, even if there is none yet.
    file.set_len((entry.blocks + 1) * BULK_BLOCK).during(path.display())?;
    watched.begin("large files (blocks)", entry.blocks);
    let bitmap = entry.bitmap_at(fs.region().superblock());
    let mut bytes = vec![0; (COPY_BLOCKS * BULK_BLOCK) as usize];
    let mut used = 0;
    for first in (0..entry.blocks).step_by(COPY_BLOCKS as usize) {
        let mut bits = [0; 8];
        fs.region().read(bitmap + first / 8, &mut bits).during("bulk bitmap")?;
        let word = u64::from_le_bytes(bits);
        let mut block = 0;
        while block < 64 && word >> block != 0 {
            block += (word >> block).trailing_zeros() as u64;
            let run = (!(word >> block)).trailing_zeros() as u64;
            let at = (first + block) * BULK_BLOCK;
            let bytes = &mut bytes[..(run * BULK_BLOCK) as usize];
            device.read_into(at, bytes).during("bulk storage")?;
            for (page, bytes) in bytes.chunks_exact(PAGE as usize).enumerate() {
                if bytes.iter().any(|&byte| byte != 0) {
                    file.write_all_at(bytes, at + page as u64 * PAGE).during(path.display())?;
                }
            }
            used += run * BULK_BLOCK;
            block += run;
        }
        watched.at(first);
    }
    if entry.has_mark() {
        let mark = Mark { store: *uuid, device: entry.uuid, number: entry.number, epoch: entry.epoch };
        file.write_all_at(&mark.encode(), Mark::at(entry.blocks)).during(path.display())?;
    }
    file.sync_all().during(path.display())?;
    watched.end();
    Ok(used)
}

/// Writes the region as an image (`dax`: in place); returns the bytes in use.
fn write_region(fs: &Fs, copy: &Store, superblock: &Superblock, clean: bool, whole: bool) -> Outcome<u64> {
    let region = fs.region();
    let space = region.space();
    let ring = superblock.ring.page()..(superblock.ring + superblock.ring_bytes).page();
    let read = |segment: u64, out: &mut [u8]| -> shoal_region::Result<()> {
        region.read(Offset::of_segment(segment), out)?;
        if segment == 0
            && let page = &mut out[BULK_LIST_AT.get() as usize..][..PAGE as usize]
            && let Some(mut devices) = decode_list(page, fs.region().superblock())?
        {
            // The copy determines where its devices are when it is opened. All data on them is
            // durable.
            devices.iter_mut().for_each(|device| device.place = 0);
            let list = encode_list(&devices);
            page[..list.len()].copy_from_slice(&list);
        }
        // The ring holds records of the original's log, and the copy's log is empty.
        for (number, page) in out.chunks_exact_mut(PAGE as usize).enumerate() {
            if ring.contains(&(segment * (SEGMENT / PAGE) + number as u64)) {
                page.fill(0);
            }
        }
        Ok(())
    };
    let directory = &copy.directory;
    if !superblock.memory_kind.has_ring() {
        SegmentLog::create_in(directory, LOG, SEGMENT_BYTES).during("log")?;
    }
    let anchor = AnchorRecord {
        magic: 0.into(),
        generation: 1.into(),
        uuid: superblock.uuid,
        replay_lsn: 0.into(),
        sealed_lsn: 0.into(),
        replay_salt: 0.into(),
        flags: if clean { ANCHOR_CLEAN } else { 0 }.into(),
        boot_id: if whole && !clean { copy.period()? } else { [0; 16] },
        used_bytes: space.touched_bytes.into(),
        incarnation: 0.into(),
        reserved: [0; 36],
        crc: 0.into(),
    }
    .sealed();
    if superblock.memory_kind.properties().images {
        // If the copy's region has a file, opening restores it from the image.
        let [image, _] = images::create(directory)?;
        shoal_region::write_image(&*image, superblock, anchor, read).during("image")?;
    } else {
        let memory = copy.description.memory.make_media(directory, superblock.region_bytes)?.memory;
        let mut bytes = vec![0; SEGMENT as usize];
        for segment in 0..space.touched_bytes / SEGMENT {
            read(segment, &mut bytes).during("region")?;
            memory.write_through(segment * SEGMENT, &bytes);
        }
        memory.write_through(0, &superblock.encode());
        memory.fence();
        shoal_region::place_anchor(&anchor, &*memory);
        memory.sync().during("memory")?;
    }
    Ok(space.region_bytes - space.fixed_bytes - space.free_bytes)
}

/// Recovers the copy, as a mount would, and seals it. Only the sealed image stays.
fn finish(copy: Store) -> Outcome<Store> {
    let copy = copy.copied();
    let opened = copy.open(Options::default())?;
    opened.fs.shutdown().during(copy.directory.display())?;
    drop(opened);
    if copy.description.memory.kind().properties().images {
        let images = images::open(&copy.directory, Access::Write)?;
        let (newest, _, _) = shoal_region::newest_image(&shared(&images)).during("image")?;
        images[1 - newest].file().set_len(0).during("image")?;
    }
    Ok(copy)
}

/// Removes the copy after a failure. A directory that existed before stays.
fn clear(directory: &Directory, description: &Description, made_here: &[PathBuf]) {
    let names = [IMAGES[0], IMAGES[1], BULK, DESCRIPTION_NEW].map(String::from);
    let more = description.devices().filter(|device| device.number != 0).map(|device| bulk_file(device.number));
    names.into_iter().chain(more).for_each(|name| drop(directory.remove(&name)));
    if let Some(Ok(Some(region))) = description.memory.path().map(|path| OwnRegion::with_uuid(path, &description.uuid))
    {
        let _ = region.remove();
    }
    let _ = directory.remove_directory(LOG);
    if !made_here.is_empty() {
        let _ = directory.remove(LOCK);
    }
    remove_empty(made_here);
}
