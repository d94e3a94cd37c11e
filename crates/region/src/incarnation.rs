//! Decides which of a `battery` region and its saved images is the store, because the two may have
//! diverged.
//!
//! A region's memory can be absent for a while (its file system is not mounted) while the store
//! continues from its image. Then two regions share one bulk device, and each would show the
//! other's bytes as its own. So a restore begins a new *incarnation*. Its number is in the anchors
//! of the region and of both images. A region of another incarnation is refused ([`compare`]). So
//! is a region whose log ends where the image says it cannot: an older copy that was put back. A
//! *clean* image holds everything the region held. The mark is removed before the first record of a
//! mount, so that it shows whether the image lacks anything if the region is lost.
//!
//! Rules: images record a new incarnation durably before [`restore`] returns, so before its region
//! can be found. Marks go to the second anchor slot, which wins among equal generations. The first
//! slot keeps its contents.
//! Left out: whether to restore, and where the region's file is (the store's directory knows).

use std::cmp::Ordering;
use std::sync::Arc;

use shoal_format::bulk_list::{BULK_LIST_AT, decode_list, encode_list};
use shoal_format::superblock::{ANCHOR_AT, ANCHOR_CLEAN, AnchorRecord, FEATURE_INCARNATION, SUPERBLOCK_AT, Superblock};
use shoal_format::{FormatError, PAGE, SEGMENT, SlotRef};
use shoal_media::{ImageFile, PersistentMemory};
use zerocopy::IntoBytes;

use crate::checkpoint::sums_at;
use crate::seal::empty_other_layout;
use crate::{Error, Lsn, Result, newest_image};

/// Number of random bits below the count of restores in an incarnation. They make two copies of the
/// same images diverge when both are restored.
const RANDOM_BITS: u32 = 32;

/// Returns the incarnation that follows `last`.
pub fn next_incarnation(last: u64, random: u32) -> u64 {
    ((last >> RANDOM_BITS) + 1) << RANDOM_BITS | random as u64
}

/// Refuses a region whose incarnation differs from that of the images, or whose log position
/// contradicts them. `end` is where its log ends. Empty images are ignored.
pub fn compare(
    images: &[Arc<dyn ImageFile>; 2],
    superblock: &Superblock,
    anchor: &AnchorRecord,
    end: Lsn,
) -> Result<()> {
    let newest = match newest_image(images) {
        Ok((_, saved, newest)) if saved.uuid == superblock.uuid => newest,
        Ok(_) | Err(Error::NoImage { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let (region, image) = (anchor.incarnation.get(), newest.incarnation.get());
    if region != image {
        let (region, image) = (region >> RANDOM_BITS, image >> RANDOM_BITS);
        let older = region < image;
        return Err(if older { Error::RegionOlder { region, image } } else { Error::ImageOlder { region, image } });
    }
    let saved = newest.replay_from();
    // An older program does not remove the mark from an image that falls behind.
    let marked = superblock.features & FEATURE_INCARNATION != 0 && newest.flags.get() & ANCHOR_CLEAN != 0;
    match end.cmp(&saved) {
        Ordering::Less => Err(Error::RegionBehind { end, saved }),
        Ordering::Greater if marked => Err(Error::ImageBehind { end, saved }),
        _ => Ok(()),
    }
}

/// Records durably that the region is about to change, so that the image no longer holds all of it.
pub(crate) fn mark_in_use(image: &dyn ImageFile, anchor: AnchorRecord) -> Result<()> {
    if anchor.flags.get() & ANCHOR_CLEAN == 0 {
        return Ok(());
    }
    let flags = (anchor.flags.get() & !ANCHOR_CLEAN).into();
    write_second(image, AnchorRecord { flags, ..anchor })
}

fn write_second(image: &dyn ImageFile, anchor: AnchorRecord) -> Result<()> {
    image.write(ANCHOR_AT[1], anchor.sealed().as_bytes())?;
    Ok(image.sync()?)
}

/// Puts a superblock and the sum of its page into an image. The caller must sync it.
fn write_superblock(image: &dyn ImageFile, superblock: &Superblock) -> Result<()> {
    let mut page = vec![0; PAGE as usize];
    image.read(SUPERBLOCK_AT, &mut page)?;
    let record = superblock.encode();
    page[..record.len()].copy_from_slice(&record);
    image.write(SUPERBLOCK_AT, &record)?;
    Ok(image.write(sums_at(superblock), &superblock.sums().of_page(0, &page).to_le_bytes())?)
}

/// Turns memory that holds an image's bytes into the region that the image describes.
pub fn place_anchor(anchor: &AnchorRecord, memory: &dyn PersistentMemory) {
    memory.zero(ANCHOR_AT[0], PAGE);
    // Use the slot that belongs to its generation: the ring's next anchor must not overwrite the
    // only one.
    memory.write(ANCHOR_AT[(anchor.generation.get() % 2) as usize], anchor.as_bytes());
    memory.write_back(ANCHOR_AT[0], PAGE);
    memory.fence();
}

/// Age of the bulk devices relative to an image that is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicesBeside {
    /// They may have changed since the image was written, unless it is clean, so the checksums of
    /// their blocks do not count.
    Later,
    /// They were written together with the image.
    SameMoment,
}

/// Clears the checksums of bulk blocks.
fn forget_block_sums(memory: &dyn PersistentMemory, superblock: &Superblock) -> Result<()> {
    let mut page = vec![0; PAGE as usize];
    memory.read(BULK_LIST_AT.get(), &mut page);
    let devices = decode_list(&page, superblock)?.unwrap_or_default();
    for sums in devices.iter().filter_map(|device| device.sums) {
        for leaf in 0..sums.leaves() {
            let bits = memory.read_u64(sums.entry_at(leaf).get());
            if let Some(leaf) = SlotRef::from_bits(bits).filter(|leaf| !leaf.is_none()) {
                memory.zero(leaf.offset().get(), SEGMENT);
            }
        }
    }
    Ok(())
}

/// Records durably that each bulk device with a mark may be newer than the region until it gets a
/// new mark. Applies to a region that was just restored because its memory is known to be lost.
/// Must run before the region can be found, because an opening may be cut off before it writes the
/// new mark.
pub fn let_devices_be_later(memory: &dyn PersistentMemory) -> Result<()> {
    let mut page = vec![0; PAGE as usize];
    memory.read(SUPERBLOCK_AT, &mut page);
    let superblock = Superblock::decode(&page)?;
    memory.read(BULK_LIST_AT.get(), &mut page);
    let Some(mut devices) = decode_list(&page, &superblock)? else { return Ok(()) };
    devices.iter_mut().for_each(|device| device.restored = device.has_mark());
    memory.write(BULK_LIST_AT.get(), &encode_list(&devices));
    memory.write_back(BULK_LIST_AT.get(), PAGE);
    memory.fence();
    Ok(())
}

/// Fills blank memory with the region of the newest image, in a new incarnation. Its number follows
/// that of the image and `refused`, the incarnation of a region set aside. On return, `memory` is
/// the store's only valid region.
pub fn restore(
    images: &[Arc<dyn ImageFile>; 2],
    memory: &dyn PersistentMemory,
    refused: u64,
    random: u32,
    devices: DevicesBeside,
) -> Result<()> {
    let (newest, superblock, saved) = newest_image(images)?;
    let used = saved.used_bytes.get();
    if used > memory.len() {
        return Err(Error::TooSmall { have: memory.len(), need: used });
    }
    let mut piece = vec![0; 1 << 20];
    for at in (0..used).step_by(piece.len()) {
        let bytes = &mut piece[..(used - at).min(1 << 20) as usize];
        images[newest].read(at, bytes)?;
        memory.write(at, bytes);
    }
    // A program that does not know incarnations must open neither the region nor the one left
    // behind.
    let marked = Superblock { features: superblock.features | FEATURE_INCARNATION, ..superblock };
    memory.write(SUPERBLOCK_AT, &marked.encode());
    if saved.flags.get() & ANCHOR_CLEAN == 0 && devices == DevicesBeside::Later {
        forget_block_sums(memory, &superblock)?;
    }
    memory.write_back(0, used);
    let incarnation = next_incarnation(saved.incarnation.get().max(refused), random).into();
    place_anchor(&AnchorRecord { incarnation, ..saved }.sealed(), memory);
    // Update the newest image first, because it alone decides. The other image must not vouch for
    // the past if the newest is damaged one day.
    for image in [&images[newest], &images[1 - newest]] {
        if let Some((other, anchor)) = read(image.as_ref())?
            && other.uuid == superblock.uuid
            && !empty_other_layout(image.as_ref(), &superblock)?
        {
            write_superblock(image.as_ref(), &marked)?;
            write_second(image.as_ref(), AnchorRecord { incarnation, ..anchor })?;
        }
    }
    Ok(())
}

/// Reads an image's superblock and anchor if the image is valid.
fn read(image: &dyn ImageFile) -> Result<Option<(Superblock, AnchorRecord)>> {
    let mut page = vec![0; PAGE as usize];
    image.read(SUPERBLOCK_AT, &mut page)?;
    let superblock = Superblock::decode(&page);
    image.read(ANCHOR_AT[0], &mut page)?;
    let both = |s: std::result::Result<Superblock, FormatError>| Some((s.ok()?, AnchorRecord::newest(&page).ok()?));
    Ok(both(superblock))
}
