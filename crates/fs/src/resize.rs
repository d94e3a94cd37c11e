//! Resizes a store at rest: writes the region in a new layout to the image that is not current.
//!
//! The size of the tables at the front of a region depends on its limits, so what lies behind them
//! moves. [`Relayout::plan`] decides where each segment goes, and refuses sizes below what is used.
//! [`Relayout::carry_out`] writes the region anew, with every reference rewritten (`references`),
//! and seals it. The seal is the switch, as at a checkpoint: the image with the higher generation
//! counts. So wherever the work is cut off, the store is the whole old one before the seal and the
//! whole new one after it.
//! Rules: the store was shut down cleanly, so that one image holds all of it, and nobody else uses
//! it. It has no damage: a reference that cannot be read cannot be rewritten, and what it refers to
//! would be lost. The caller checks that; damage found here is an error before the new image
//! counts. The caller verifies the new image before it is sealed.
//! Left out: media and their sizes, making room beforehand ([`crate::Compacting::compact`],
//! [`crate::Data::gather_bulk`]).

mod references;

use std::sync::Arc;

use shoal_format::bulk_list::{BULK_LIST_AT, decode_list, encode_list};
use shoal_format::segment::{SEGMENT_ENTRY, SegmentEntry, SegmentUse};
use shoal_format::slot::class_geometry;
use shoal_format::superblock::{
    ANCHOR_AT, ANCHOR_CLEAN, AnchorRecord, FEATURE_SUMS, Geometry, ROOTS_AT, Roots, Superblock,
};
use shoal_format::{BULK_BLOCK, FormatError, PAGE, REGION_BYTES_MAX, SEGMENT};
use shoal_media::{ImageFile, PersistentMemory};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Error, Result};

/// The limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub region_bytes: u64,
    pub bulk_blocks: u64,
}

/// Why a store cannot have these limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The region is too small for what is in use.
    #[error("{used_bytes} bytes of memory are in use, at least {least_bytes} are needed")]
    Memory { used_bytes: u64, least_bytes: u64 },
    /// Bulk storage is too small for what is in use.
    #[error("{used_bytes} bytes of bulk storage are in use")]
    Bulk { used_bytes: u64 },
    /// Bulk storage would end before a block in use: its blocks must be gathered first
    /// ([`crate::Data::gather_bulk`]).
    #[error("the last block of bulk storage in use ends at {end_bytes}")]
    Scattered { end_bytes: u64 },
    #[error(transparent)]
    Layout(#[from] FormatError),
}

/// A store that was shut down cleanly.
pub struct AtRest<'a> {
    pub images: &'a [Arc<dyn ImageFile>; 2],
    /// The image that holds all of the store, and its anchor.
    pub newest: usize,
    pub anchor: AnchorRecord,
    /// A private copy of the image, which is changed.
    pub memory: &'a dyn PersistentMemory,
}

/// Steps of a resize that the owner of the media carries out.
pub trait Steps {
    /// Reports progress of `what`; both numbers are in a unit of its own.
    fn progress(&mut self, what: &'static str, done: u64, total: u64) {
        let _ = (what, done, total);
    }
    /// Verifies the new image, which is complete but does not count yet; `candidate` reads as it
    /// will when it is sealed.
    fn verify(&mut self, candidate: &dyn ImageFile) -> Result<()>;
    /// Called right before the seal. A `battery` region is removed here, durably: its clean image
    /// holds all of it.
    fn before_seal(&mut self) -> Result<()>;
}

/// A plan of where each segment goes.
pub struct Relayout {
    old: Superblock,
    new: Superblock,
    /// The new segment of each old one; 0: not in use.
    places: Vec<u64>,
    /// The old segment of each new one; 0: the tables.
    sources: Vec<u64>,
}

fn segment_entry(memory: &dyn PersistentMemory, table: &Superblock, segment: u64) -> [u8; SEGMENT_ENTRY as usize] {
    let mut entry = [0; SEGMENT_ENTRY as usize];
    memory.read((table.segment_table + segment * SEGMENT_ENTRY).get(), &mut entry);
    entry
}

fn is_in_use(memory: &dyn PersistentMemory, superblock: &Superblock, segment: u64) -> Result<bool> {
    let (usage, bitmap) = SegmentEntry::decode(&segment_entry(memory, superblock, segment))?;
    Ok(match usage {
        SegmentUse::Free | SegmentUse::Reserved => false,
        SegmentUse::RunHead(_) | SegmentUse::RunBody => true,
        SegmentUse::Slots(class) => {
            let slots = class_geometry(class).0 as u64;
            let word = |word: u64| {
                let bits = memory.read_u64(segment * SEGMENT + word * 8);
                // Bits past the last slot are damage, which `shoal check` reports.
                bits & (u64::MAX >> (64 - (slots - word * 64).min(64)))
            };
            if slots <= 64 { bitmap != 0 } else { (0..slots.div_ceil(64)).any(|number| word(number) != 0) }
        }
    })
}

/// Returns the number of bulk blocks in use, and the end of the last.
fn bulk_in_use(memory: &dyn PersistentMemory, superblock: &Superblock) -> (u64, u64) {
    let words = (0..superblock.bulk_blocks.div_ceil(64)).map(|word| {
        let bits = memory.read_u64((superblock.bulk_bitmap + word * 8).get());
        let valid = (superblock.bulk_blocks - word * 64).min(64);
        (word, bits & (u64::MAX >> (64 - valid)))
    });
    words.fold((0, 0), |(used, end), (word, bits)| match bits {
        0 => (used, end),
        _ => (used + bits.count_ones() as u64, word * 64 + 64 - bits.leading_zeros() as u64),
    })
}

/// Returns the number of segments that only operations that free space may use: 1/32, as in the
/// allocator.
fn reserve(superblock: &Superblock) -> u64 {
    ((superblock.segment_count - superblock.reserved_segments()) / 32).max(2)
}

impl Relayout {
    /// Plans the new layout. `memory` holds the region of `old` at rest.
    pub fn plan(
        memory: &dyn PersistentMemory,
        old: &Superblock,
        limits: Limits,
    ) -> Result<std::result::Result<Relayout, Refused>> {
        let mut in_use = Vec::new();
        for segment in 0..old.segment_count {
            if is_in_use(memory, old, segment)? {
                in_use.push(segment);
            }
        }
        let used = in_use.len() as u64;
        let free = old.segment_count - old.reserved_segments() - used;
        let layout = |region_bytes| {
            Superblock::layout(Geometry {
                memory_kind: old.memory_kind,
                uuid: old.uuid,
                region_bytes,
                bulk_blocks: limits.bulk_blocks,
                ring_bytes: old.ring_bytes,
                threshold: old.threshold,
                hash_seed: old.hash_seed,
                created_ns: old.created_ns,
            })
            // A store has `FEATURE_SUMS` from its creation or never.
            .map(|new| Superblock { features: new.features & !FEATURE_SUMS | old.features, ..new })
        };
        // A store that already has less free than the reserve must not get fuller, but may stay as
        // it is.
        let fits = |new: &Superblock| {
            new.segment_count.saturating_sub(new.reserved_segments() + used) >= reserve(new).min(free)
        };
        let (blocks, end) = bulk_in_use(memory, old);
        if limits.bulk_blocks < blocks {
            return Ok(Err(Refused::Bulk { used_bytes: blocks * BULK_BLOCK }));
        }
        let new = match layout(limits.region_bytes) {
            Ok(new) if fits(&new) => new,
            outcome => {
                // Fitting is monotonic in the number of segments.
                let (mut low, mut high) = (0, REGION_BYTES_MAX / SEGMENT);
                while low < high {
                    let middle = (low + high) / 2;
                    let enough = layout(middle * SEGMENT).is_ok_and(|new| fits(&new));
                    (low, high) = if enough { (low, middle) } else { (middle + 1, high) };
                }
                let least_bytes = low * SEGMENT;
                return Ok(Err(match outcome {
                    Err(error) if limits.region_bytes >= least_bytes => Refused::Layout(error),
                    _ => Refused::Memory { used_bytes: used * SEGMENT, least_bytes },
                }));
            }
        };
        if limits.bulk_blocks < end {
            return Ok(Err(Refused::Scattered { end_bytes: end * BULK_BLOCK }));
        }
        let mut sources = vec![0; new.reserved_segments() as usize];
        let mut places = vec![0; old.segment_count as usize];
        for segment in in_use {
            places[segment as usize] = sources.len() as u64;
            sources.push(segment);
        }
        Ok(Ok(Relayout { old: *old, new, places, sources }))
    }

    /// Returns the superblock of the new layout.
    pub fn superblock(&self) -> &Superblock {
        &self.new
    }

    /// Returns how many bytes the new image takes on its host at most.
    pub fn image_bytes(&self) -> u64 {
        let used = self.sources.len() as u64 * SEGMENT;
        used + used / PAGE * 4 + 4 * PAGE
    }

    /// Gives the store the new layout. `incarnation` is the new incarnation of a `battery` store.
    /// An error before the seal leaves the store as it was.
    pub fn carry_out(&self, store: &AtRest<'_>, incarnation: u64, steps: &mut dyn Steps) -> Result<()> {
        let AtRest { images, newest, anchor, memory } = store;
        if anchor.flags.get() & ANCHOR_CLEAN == 0 {
            return Err(Error::Corrupt("the image was not written by a clean shutdown; mount the store once".into()));
        }
        let target = images[1 - newest].as_ref();
        let anchor = AnchorRecord {
            generation: (anchor.generation.get() + 1).into(),
            used_bytes: (self.sources.len() as u64 * SEGMENT).into(),
            incarnation: incarnation.into(),
            ..*anchor
        }
        .sealed();
        references::move_all(*memory, &self.old, &self.places, &mut |done, total| {
            steps.progress("references", done, total)
        })?;
        let written = shoal_region::empty_image(target).map_err(Error::from).and_then(|()| {
            self.write_pages(*memory, target, steps)?;
            steps.verify(&Sealed { image: target, anchor })?;
            steps.before_seal()
        });
        if let Err(error) = written {
            // Returns the target's room to the host. If that fails too, the next opening does it.
            let _ = shoal_region::empty_image(target);
            return Err(error);
        }
        shoal_region::seal_image(target, anchor)?;
        // The old layout is no longer needed. If emptying it fails, the next opening does it.
        Ok(shoal_region::empty_image(images[*newest].as_ref())?)
    }

    fn write_pages(&self, memory: &dyn PersistentMemory, target: &dyn ImageFile, steps: &mut dyn Steps) -> Result<()> {
        let tables = self.tables(memory)?;
        let total = self.sources.len() as u64;
        Ok(shoal_region::write_pages(target, &self.new, total * SEGMENT, |segment, out| {
            steps.progress("segments", segment, total);
            match self.sources[segment as usize] {
                0 => out.copy_from_slice(&tables[(segment * SEGMENT) as usize..][..SEGMENT as usize]),
                source => memory.read(source * SEGMENT, out),
            }
            Ok(())
        })?)
    }

    /// Returns the bytes of the reserved segments. The superblock is filled in when they are
    /// written. The log ring is blank, because it is empty in a clean store.
    fn tables(&self, memory: &dyn PersistentMemory) -> Result<Vec<u8>> {
        let (old, new) = (&self.old, &self.new);
        let mut tables = vec![0; (new.reserved_segments() * SEGMENT) as usize];
        let roots_at = ROOTS_AT.get() as usize;
        // Includes the list of bulk devices behind the roots.
        memory.read(ROOTS_AT.get(), &mut tables[roots_at..roots_at + 2 * PAGE as usize]);
        // A limit below the layout's applies only to the old layout.
        let roots = &mut tables[roots_at..roots_at + size_of::<Roots>()];
        let mut changed = Roots::read_from_bytes(roots).expect("size is exact");
        if new.region_bytes != old.region_bytes {
            changed.withheld_segments = 0.into();
        }
        if new.bulk_blocks != old.bulk_blocks {
            changed.withheld_blocks = 0.into();
        }
        roots.copy_from_slice(changed.as_bytes());
        if new.bulk_blocks != old.bulk_blocks {
            let at = BULK_LIST_AT.get() as usize;
            let page = &mut tables[at..at + PAGE as usize];
            if let Some(mut devices) = decode_list(page, old)? {
                for first in devices.iter_mut().filter(|device| device.number == 0) {
                    // The place of its mark changes; the next mount writes a new mark if there is
                    // room. Its epoch follows this one: earlier marks stay behind.
                    (first.blocks, first.uuid) = (new.bulk_blocks, [0; 16]);
                }
                let bytes = encode_list(&devices);
                page[..bytes.len()].copy_from_slice(&bytes);
            }
        }
        for (segment, &source) in self.sources.iter().enumerate() {
            let at = (new.segment_table + segment as u64 * SEGMENT_ENTRY).get() as usize;
            let entry = match source {
                0 => SegmentEntry::new(SegmentUse::Reserved).kind,
                source => {
                    tables[at..at + SEGMENT_ENTRY as usize].copy_from_slice(&segment_entry(memory, old, source));
                    continue;
                }
            };
            tables[at] = entry;
        }
        // In the last word only bits of blocks that exist in both layouts are set: blocks beyond
        // the end of either are not in use.
        let words = old.bulk_blocks.min(new.bulk_blocks).div_ceil(64);
        if words > 0 {
            memory.read(old.bulk_bitmap.get(), &mut tables[new.bulk_bitmap.get() as usize..][..(words * 8) as usize]);
        }
        Ok(tables)
    }
}

/// An image as it will read with its anchor.
struct Sealed<'a> {
    image: &'a dyn ImageFile,
    anchor: AnchorRecord,
}

impl ImageFile for Sealed<'_> {
    fn read(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.image.read(at, out)?;
        let (bytes, from) = (self.anchor.as_bytes(), ANCHOR_AT[0]);
        for (place, byte) in (from..).zip(bytes) {
            if let Some(target) = place.checked_sub(at).and_then(|offset| out.get_mut(offset as usize)) {
                *target = *byte;
            }
        }
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> shoal_media::Result<()> {
        Err(refuse_write())
    }

    fn sync(&self) -> shoal_media::Result<()> {
        Err(refuse_write())
    }
}

fn refuse_write() -> shoal_media::MediaError {
    shoal_media::MediaError::io("image being verified", std::io::ErrorKind::PermissionDenied.into())
}
