//! Writing an image from bytes at rest, for tools that make a store from another one or change its
//! layout.
//!
//! The order is that of a checkpoint: pages and sums are durable before the anchor that makes the
//! image count. Pages of zeros are not written, so that the image is as sparse as its contents
//! allow.
//! An image may have *another layout*: its superblock differs from that of the image that counts.
//! Its pages and sums mean nothing then, and it is emptied before use. It must be recognizable at
//! any moment, so its superblock is durable before the first other page is written, and is the last
//! thing removed. Left out: the contents of the pages, and where they come from.

use shoal_format::superblock::{ANCHOR_AT, AnchorRecord, SUPERBLOCK_AT, Superblock};
use shoal_format::{PAGE, SEGMENT};
use shoal_media::ImageFile;
use zerocopy::IntoBytes;

use crate::Result;
use crate::checkpoint::sums_at;

/// Writes a region into the blank `image`. `read` supplies its segments, `anchor.used_bytes` gives
/// their total size, and the superblock is put in place.
pub fn write_image(
    image: &dyn ImageFile,
    superblock: &Superblock,
    anchor: AnchorRecord,
    read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    write_pages(image, superblock, anchor.used_bytes.get(), read)?;
    seal_image(image, anchor)
}

/// Does everything [`write_image`] does except for the anchor. The pages are durable, but the image
/// does not count yet.
pub fn write_pages(
    image: &dyn ImageFile,
    superblock: &Superblock,
    used_bytes: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut bytes = vec![0; SEGMENT as usize];
    for segment in 0..used_bytes / SEGMENT {
        read(segment, &mut bytes)?;
        if segment == 0 {
            bytes[SUPERBLOCK_AT as usize..PAGE as usize].fill(0);
            bytes[..144].copy_from_slice(&superblock.encode());
            bytes[ANCHOR_AT[0] as usize..(ANCHOR_AT[0] + PAGE) as usize].fill(0);
        }
        for (number, page) in bytes.chunks_exact(PAGE as usize).enumerate() {
            if page.iter().all(|&byte| byte == 0) {
                continue;
            }
            let at = segment * SEGMENT + number as u64 * PAGE;
            image.write(at, page)?;
            if at == SUPERBLOCK_AT {
                image.sync()?;
            }
            image.write(
                sums_at(superblock) + at / PAGE * 4,
                &superblock.sums().of_page(at / PAGE, page).to_le_bytes(),
            )?;
        }
    }
    // A mount maps all of the used bytes, so the file must extend over them.
    image.reserve_holes(used_bytes)?;
    let last = used_bytes - 1;
    let mut byte = [0];
    image.read(last, &mut byte)?;
    image.write(last, &byte)?;
    Ok(image.sync()?)
}

/// Makes an image count. Its pages must be durable.
pub fn seal_image(image: &dyn ImageFile, anchor: AnchorRecord) -> Result<()> {
    image.write(ANCHOR_AT[0], anchor.sealed().as_bytes())?;
    Ok(image.sync()?)
}

/// Makes an image blank, durably. If cut off at any moment, it leaves an image that does not count
/// and still has its own layout.
pub fn empty_image(image: &dyn ImageFile) -> Result<()> {
    image.write(ANCHOR_AT[0], &vec![0; PAGE as usize])?;
    image.sync()?;
    image.truncate(PAGE)?;
    image.sync()?;
    image.truncate(0)?;
    Ok(image.sync()?)
}

/// Empties the image beside the one that counts if its layout differs from `superblock`: a change
/// of layout was cut off. Returns whether it did.
pub(crate) fn empty_other_layout(image: &dyn ImageFile, superblock: &Superblock) -> Result<bool> {
    let mut page = vec![0; PAGE as usize];
    image.read(SUPERBLOCK_AT, &mut page)?;
    // Features may have been added to one of them since.
    let same_features = |found| Superblock { features: superblock.features, ..found };
    let other = Superblock::decode(&page).is_ok_and(|found| same_features(found) != *superblock);
    if other {
        empty_image(image)?;
    }
    Ok(other)
}
