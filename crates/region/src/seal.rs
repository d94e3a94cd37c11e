//! Writing an image from bytes at rest: for tools that make a store from another one.
//!
//! Order as in a checkpoint: pages and sums durable before the anchor that makes the image count. Pages of zeros are not
//! written, so that the image is as sparse as its contents allow. Left out: what the pages hold, and where they come from.

use shoal_format::superblock::{ANCHOR_AT, AnchorRecord, SUPERBLOCK_AT, Superblock};
use shoal_format::{PAGE, SEGMENT, checksum};
use shoal_media::ImageFile;
use zerocopy::IntoBytes;

use crate::Result;
use crate::checkpoint::sums_at;

/// Makes `image`, blank before, the region whose segments `read` gives. `anchor` names their number in `used_bytes`; the
/// superblock is put into its place.
pub fn write_image(
    image: &dyn ImageFile,
    superblock: &Superblock,
    anchor: AnchorRecord,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let mut bytes = vec![0; SEGMENT as usize];
    for segment in 0..anchor.used_bytes.get() / SEGMENT {
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
            image.write(sums_at(superblock) + at / PAGE * 4, &checksum(0, page).to_le_bytes())?;
        }
    }
    // A mount maps all of the used bytes, which must be there.
    let last = anchor.used_bytes.get() - 1;
    let mut byte = [0];
    image.read(last, &mut byte)?;
    image.write(last, &byte)?;
    image.sync()?;
    image.write(ANCHOR_AT[0], anchor.sealed().as_bytes())?;
    Ok(image.sync()?)
}
