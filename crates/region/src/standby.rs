//! Checks the standby image before a checkpoint adds to it: pages stay in place only if they are
//! known to be right.
//!
//! A checkpoint writes what changed since its target was last written, and leaves the other pages.
//! Between two mounts, anything may have happened to these: a truncated file, a decayed sector, an
//! older copy put back. So before the first checkpoint of a mount into an image, every page it
//! would leave is compared with the sum that the *current* image has for it. A page with another
//! sum is written anew. Later checkpoints of the same mount trust what this one wrote.
//! A page of the current image itself may have decayed. Copied with a fresh sum, it would pass as
//! sound everywhere. It keeps its old sum ([`inherited_sums`]), so that a checker still finds it.
//!
//! Cost: one read of the target per mount, in the thread that writes the checkpoint; nothing at
//! mount. Of the region's locks, only the checkpoint lock is held.

use std::sync::Arc;

use shoal_format::PAGE;
use shoal_format::superblock::{ANCHOR_AT, Superblock};
use shoal_media::ImageFile;

use crate::checkpoint::sums_at;

/// Pages read at once (1 MiB).
const BATCH_PAGES: u64 = 256;

fn sum_of(sums: &[u8], page: usize) -> u32 {
    u32::from_le_bytes(sums[page * 4..page * 4 + 4].try_into().expect("four bytes"))
}

/// Calls `mark` for each of the first `pages` pages of image `target` that cannot be read or whose
/// bytes do not match the other image's sums. `leave` says which pages would be left in place; only
/// these are checked.
pub(crate) fn mark_unsound(
    images: &[Arc<dyn ImageFile>; 2],
    target: usize,
    superblock: &Superblock,
    pages: u64,
    leave: impl Fn(u64) -> bool,
    mut mark: impl FnMut(u64),
) {
    let (image, current) = (images[target].as_ref(), images[1 - target].as_ref());
    let mut bytes = vec![0; (BATCH_PAGES * PAGE) as usize];
    let (mut own, mut named) = (vec![0; BATCH_PAGES as usize * 4], vec![0; BATCH_PAGES as usize * 4]);
    for first in (0..pages).step_by(BATCH_PAGES as usize) {
        let count = BATCH_PAGES.min(pages - first);
        let left = || (first..first + count).filter(|&page| leave(page));
        if left().next().is_none() {
            continue;
        }
        let bytes = &mut bytes[..(count * PAGE) as usize];
        let (own, named) = (&mut own[..count as usize * 4], &mut named[..count as usize * 4]);
        let read = image
            .read(first * PAGE, bytes)
            .and_then(|()| image.read(sums_at(superblock) + first * 4, own))
            .and_then(|()| current.read(sums_at(superblock) + first * 4, named));
        for page in left() {
            let at = (page - first) as usize;
            let found = &bytes[at * PAGE as usize..][..PAGE as usize];
            let (own, named) = (sum_of(own, at), sum_of(named, at));
            let sound = match named {
                // Never written in either image.
                0 if own == 0 => found.iter().all(|&byte| byte == 0),
                _ => own == named && superblock.sums().of_page(page, found) == named,
            };
            if read.is_err() || !sound {
                mark(page);
            }
        }
    }
}

/// Returns the sums of `bytes`, pages from `first` on, for the next image. `unchanged` says which
/// pages memory took from the image `current` and nobody changed since. If such a page does not
/// match its sum there, that sum is kept.
pub(crate) fn inherited_sums(
    current: &dyn ImageFile,
    superblock: &Superblock,
    first: u64,
    bytes: &[u8],
    unchanged: impl Fn(u64) -> bool,
) -> Vec<u8> {
    let mut sums: Vec<u8> = (first..)
        .zip(bytes.chunks_exact(PAGE as usize))
        .flat_map(|(number, page)| superblock.sums().of_page(number, page).to_le_bytes())
        .collect();
    let count = sums.len() / 4;
    if !(first..first + count as u64).any(&unchanged) {
        return sums;
    }
    let mut named = vec![0; sums.len()];
    if current.read(sums_at(superblock) + first * 4, &mut named).is_err() {
        return sums;
    }
    let mut page = vec![0; PAGE as usize];
    for at in (0..count).filter(|&at| unchanged(first + at as u64)) {
        let number = first + at as u64;
        let named_sum = sum_of(&named, at);
        if named_sum == sum_of(&sums, at) || number == ANCHOR_AT[0] / PAGE {
            continue;
        }
        // Discarded memory differs from the image although neither is damaged, so check the image's
        // own page.
        let decayed = current.read(number * PAGE, &mut page).is_ok()
            && superblock.sums().of_page(number, &page) != named_sum
            && (named_sum != 0 || page.iter().any(|&byte| byte != 0));
        if decayed {
            sums[at * 4..at * 4 + 4].copy_from_slice(&named[at * 4..at * 4 + 4]);
        }
    }
    sums
}
