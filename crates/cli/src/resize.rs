//! `shoal resize`: other limits for a store that is not mounted.
//!
//! The tables at the front of a region have a size for its limit, so what lies behind them moves: the region is written
//! anew, in the new layout, into the image that is not current, and the seal of that image is the switch (the higher
//! generation counts). Before the seal the store is the old one, after it the new one, whole, whenever it is cut off.
//! Large files stay where they are: their blocks do not move, so bulk storage shrinks to its last block in use.
//! Order: the store is opened and closed, so that one clean image is all of it; bulk storage grows; a `battery` region is
//! removed (its clean image restores it); the new image is sealed; the old image and the end of bulk storage go.

use std::fs;
use std::sync::Arc;

use serde::Serialize;
use shoal_format::segment::{SEGMENT_ENTRY, SegmentEntry, SegmentUse};
use shoal_format::slot::class_geometry;
use shoal_format::superblock::{AnchorRecord, Geometry, ROOTS_AT, Superblock};
use shoal_format::{BULK_BLOCK, PAGE, SEGMENT};
use shoal_fs::Options;
use shoal_host::{HostImage, PrivateMap};
use shoal_media::PersistentMemory;

use crate::args::ResizeArgs;
use crate::failure::{During, Failure, Outcome};
use crate::memory::MemoryChoice;
use crate::size::human;
use crate::store::{self, Store};
use crate::{check, format, place};

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    memory_bytes: u64,
    bulk_bytes: u64,
}

pub fn run(args: &ResizeArgs) -> Outcome<()> {
    if args.memory_size.is_none() && args.bulk_size.is_none() {
        return Err(Failure::new("resize", "no size is given").remedy("add --memory-size or --bulk-size").code(2));
    }
    let place = place::find(&args.store)?;
    if let Some(mountpoint) = &place.mountpoint
        && store::is_in_use(&place.store).unwrap_or(true)
    {
        return Err(Failure::new(place.store.display(), format!("is mounted on {}", mountpoint.display()))
            .remedy(format!("run `shoal umount {}` first", mountpoint.display())));
    }
    let store = Store::acquire(&place.store, store::LEAVING_PATIENCE)?;
    if matches!(store.description.memory, MemoryChoice::Dax(_)) {
        return Err(Failure::new(store.directory.display(), "dax memory has no image to write the new layout into")
            .remedy("format a new store and copy the files"));
    }
    let (fs, _, media) = store.open(Options::default())?;
    fs.shutdown().during(store.directory.display())?;
    store.remove_pid();
    let device_bytes = media.parts.bulk.as_ref().map(|bulk| bulk.geometry().bytes);
    drop((fs, media));

    let images = store.open_images()?;
    let (newest, old, anchor) = shoal_region::newest_image(&store::shared(&images)).during("image")?;
    let image = Some((images[newest].file(), anchor.used_bytes.get().next_multiple_of(PAGE)));
    let region: Arc<dyn PersistentMemory> = Arc::new(PrivateMap::new(old.region_bytes, image).during("memory")?);
    let new = layout(args, &old)?;
    let plan = Plan::new(region.as_ref(), &old, &new)?;
    let bulk_file = store.bulk_path().filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file()));
    let resize_bulk = |bytes: u64| -> Outcome<()> {
        let Some(path) = &bulk_file else { return Ok(()) };
        let file = fs::OpenOptions::new().write(true).open(path).during(path.display())?;
        file.set_len(bytes).and_then(|()| file.sync_all()).during(path.display())
    };
    match (&bulk_file, device_bytes) {
        (Some(_), Some(bytes)) if new.bulk_blocks * BULK_BLOCK > bytes => resize_bulk(new.bulk_blocks * BULK_BLOCK)?,
        (None, Some(bytes)) if new.bulk_blocks * BULK_BLOCK > bytes => {
            return Err(Failure::new("--bulk-size", format!("the bulk device has {}", human(bytes))).code(2));
        }
        _ => {}
    }
    shoal_fs::relocate(region.as_ref(), &plan.places).during(store.directory.display())?;
    if let MemoryChoice::Battery(path) = &store.description.memory {
        fs::remove_file(path).during(path.display())?;
    }
    let target = &images[1 - newest];
    target.file().set_len(0).during("image")?;
    let anchor = AnchorRecord {
        generation: (anchor.generation.get() + 1).into(),
        used_bytes: (plan.sources.len() as u64 * SEGMENT).into(),
        ..anchor
    };
    let tables = plan.tables(region.as_ref(), &old, &new);
    shoal_region::write_image(target.as_ref(), &new, anchor, |segment, out| {
        match plan.sources[segment as usize] {
            0 => out.copy_from_slice(&tables[(segment * SEGMENT) as usize..][..SEGMENT as usize]),
            source => region.read(source * SEGMENT, out),
        }
        Ok(())
    })
    .during("image")?;
    drop_other_layout(&images, 1 - newest, &new)?;
    resize_bulk(new.bulk_blocks * BULK_BLOCK)?;
    let checked = check::examine(&store, true, args.json)?;
    if let Some(error) = checked.errors.first() {
        return Err(Failure::new(store.directory.display(), format!("{} errors: {error}", checked.errors.len())));
    }
    let report = Report {
        store: store.directory.display().to_string(),
        memory_bytes: new.region_bytes,
        bulk_bytes: new.bulk_blocks * BULK_BLOCK,
    };
    if args.json {
        crate::print_json(&report);
    } else {
        let (memory, bulk) = (human(report.memory_bytes), human(report.bulk_bytes));
        println!("{}: up to {memory} of metadata and small files, up to {bulk} of large files", report.store);
    }
    Ok(())
}

/// Empties the image that is not current if it has another layout: a resize was cut off behind its switch.
pub fn drop_other_layout(images: &[Arc<HostImage>; 2], newest: usize, superblock: &Superblock) -> Outcome<()> {
    let mut page = [0; PAGE as usize];
    let other = &images[1 - newest];
    shoal_media::ImageFile::read(other.as_ref(), 0, &mut page).during("image")?;
    match Superblock::decode(&page) {
        Ok(found) if found != *superblock => other.file().set_len(0).during("image"),
        _ => Ok(()),
    }
}

fn layout(args: &ResizeArgs, old: &Superblock) -> Outcome<Superblock> {
    if args.bulk_size.is_some() && old.bulk_blocks == 0 {
        return Err(Failure::new("--bulk-size", "the store has no bulk storage").code(2));
    }
    let geometry = Geometry {
        memory_kind: old.memory_kind,
        uuid: old.uuid,
        region_bytes: args.memory_size.map_or(Ok(old.region_bytes), |size| format::memory_bytes(Some(size)))?,
        bulk_blocks: args.bulk_size.map_or(old.bulk_blocks, |size| size.0 / BULK_BLOCK),
        ring_bytes: old.ring_bytes,
        threshold: old.threshold,
        hash_seed: old.hash_seed,
        created_ns: old.created_ns,
    };
    if old.bulk_blocks > 0 && geometry.bulk_blocks == 0 {
        return Err(Failure::new("--bulk-size", "is less than one block of 64 KiB").code(2));
    }
    Superblock::layout(geometry)
        .map_err(|error| Failure::new("layout", error).remedy("raise --memory-size or lower --bulk-size").code(2))
}

/// Which segment goes where.
struct Plan {
    /// New segment of each old one; 0: not in use.
    places: Vec<u64>,
    /// Old segment of each new one; 0: the tables.
    sources: Vec<u64>,
}

impl Plan {
    fn new(region: &dyn PersistentMemory, old: &Superblock, new: &Superblock) -> Outcome<Plan> {
        let mut places = vec![0; old.segment_count as usize];
        let mut sources = vec![0; new.reserved_segments() as usize];
        for segment in 0..old.segment_count {
            let mut entry = [0; SEGMENT_ENTRY as usize];
            region.read(old.segment_table + segment * SEGMENT_ENTRY, &mut entry);
            let (usage, bitmap) = SegmentEntry::decode(&entry).during("segment table")?;
            let in_use = match usage {
                SegmentUse::Free | SegmentUse::Reserved => false,
                SegmentUse::RunHead(_) | SegmentUse::RunBody => true,
                SegmentUse::Slots(class) => {
                    let words = class_geometry(class).0.div_ceil(64) as u64;
                    let used = |word: u64| region.read_u64(segment * SEGMENT + word * 8) != 0;
                    if words == 1 { bitmap != 0 } else { (0..words).any(used) }
                }
            };
            if in_use {
                places[segment as usize] = sources.len() as u64;
                sources.push(segment);
            }
        }
        let free = new.segment_count.saturating_sub(sources.len() as u64);
        let reserve = ((new.segment_count - new.reserved_segments()) / 32).max(2);
        if free < reserve {
            let least = (sources.len() as u64 + reserve + 1) * 32 / 31 * SEGMENT;
            let cause = format!("{} are in use", human(sources.len() as u64 * SEGMENT));
            return Err(Failure::new("--memory-size", cause).remedy(format!("give at least {}", human(least))));
        }
        let last = (0..old.bulk_blocks.div_ceil(64)).rev().find_map(|word| {
            let bits = region.read_u64(old.bulk_bitmap + word * 8);
            (bits != 0).then(|| word * 64 + 64 - bits.leading_zeros() as u64)
        });
        match last {
            Some(blocks) if blocks > new.bulk_blocks => {
                let least = blocks * BULK_BLOCK;
                Err(Failure::new(
                    "--bulk-size",
                    format!("the last block in use ends at {} ({least} bytes)", human(least)),
                )
                .remedy("give at least so much"))
            }
            _ => Ok(Plan { places, sources }),
        }
    }

    /// The bytes of the reserved segments; the superblock is put in when they are written.
    fn tables(&self, region: &dyn PersistentMemory, old: &Superblock, new: &Superblock) -> Vec<u8> {
        let mut tables = vec![0; (new.reserved_segments() * SEGMENT) as usize];
        region.read(ROOTS_AT, &mut tables[ROOTS_AT as usize..(ROOTS_AT + PAGE) as usize]);
        for (segment, &source) in self.sources.iter().enumerate() {
            let at = (new.segment_table + segment as u64 * SEGMENT_ENTRY) as usize;
            let entry = &mut tables[at..at + SEGMENT_ENTRY as usize];
            match source {
                0 => entry[0] = SegmentEntry::new(SegmentUse::Reserved).kind,
                source => region.read(old.segment_table + source * SEGMENT_ENTRY, entry),
            }
        }
        let bitmap = (old.bulk_blocks.min(new.bulk_blocks).div_ceil(64) * 8) as usize;
        if bitmap > 0 {
            region.read(old.bulk_bitmap, &mut tables[new.bulk_bitmap as usize..][..bitmap]);
        }
        tables
    }
}
