//! Checkpoints: a fuzzy copy of the region into the older of two images, sealed by an anchor.
//!
//! Copying runs beside transactions, a few pages at a time under the commit lock. A page copied
//! early lacks later changes, and a page copied late has changes made after the start. Replaying
//! the log from the start of the copy makes both right, because entries are absolute. Each step is
//! durable before the next begins: clear the target's old anchors; write pages, sums and stale map;
//! make the log durable past the end of the copy (invariant 4); write the new anchor.
//! A region with a ring is saved as it is, under one hold of the commit lock: the ring is too short
//! to replay what changes during a copy. Its image names no boot, so a region filled from it
//! ([`crate::restore`]) reports a power loss when opened.
//! An image file holds the region's bytes, then, at `region_bytes`, one sum for every page, then
//! the stale map, then the used slots of each segment. The stale map says which pages of the
//! *other* image differ from this one, so that the next checkpoint after a mount need not write
//! everything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shoal_format::superblock::{ANCHOR_AT, ANCHOR_CLEAN, AnchorRecord, SUPERBLOCK_AT, Superblock};
use shoal_format::{FormatError, Offset, PAGE, SEGMENT, checksum};
use shoal_media::{ImageFile, PersistentMemory};
use zerocopy::IntoBytes;

use crate::alloc::UsedSlots;
use crate::planted::{Bug, is_planted};
use crate::seal::empty_other_layout;
use crate::{Error, Region, Result, incarnation, standby};

/// Pages copied under one hold of the commit lock (64 KiB: about 10 us).
const COPY_PAGES: u64 = 16;

#[derive(Default)]
pub(crate) struct CheckpointState {
    /// The image recovery would use.
    current: Option<usize>,
    /// Generation of the current image's anchor.
    generation: u64,
    /// Pages of the other image that were already stale when the current one was begun. `None`: all
    /// pages.
    stale: Option<Vec<u64>>,
    /// The image that the memory may still read through to.
    mapped: Option<usize>,
    /// Bytes of the region that the last checkpoint of this mount wrote; 0 before it.
    copied_bytes: u64,
    /// Images this mount has written. Their contents are known; other images need a check
    /// ([`standby`]).
    written: [bool; 2],
    /// Where the log ended when the last checkpoint failed; `None` since one was sealed.
    pub failed_at: Option<crate::Lsn>,
}

/// Returns the offset of the page sums in an image file.
pub(crate) fn sums_at(superblock: &Superblock) -> u64 {
    superblock.region_bytes
}

/// Returns the offset of the stale map in an image file.
pub(crate) fn stale_at(superblock: &Superblock) -> u64 {
    (superblock.region_bytes + superblock.region_bytes / PAGE * 4).next_multiple_of(PAGE)
}

/// Returns the offset of the used slots in an image file.
pub(crate) fn used_at(superblock: &Superblock) -> u64 {
    let words = (superblock.region_bytes / PAGE).div_ceil(64);
    (stale_at(superblock) + STALE_HEADER as u64 + words * 8).next_multiple_of(PAGE)
}

/// Segments for which the used slots are collected under one hold of the allocator's lock.
const COUNT_SEGMENTS: usize = 16 << 10;

/// Header of the used slots: generation (u64), segments (u32), checksum of generation, segments and counts (u32).
pub(crate) const USED_HEADER: usize = 16;

/// Returns the number of slots in use in each segment when the image with `anchor` was sealed;
/// empty if the image does not say.
///
/// A count is exact for each segment whose bitmap no later record touches, except that it includes
/// slots of transactions that were never committed.
pub(crate) fn used_slots(
    images: &[Arc<dyn ImageFile>; 2],
    superblock: &Superblock,
    anchor: &AnchorRecord,
) -> Result<UsedSlots> {
    let image = images[newest_image(images)?.0].as_ref();
    let mut header = [0; USED_HEADER];
    image.read(used_at(superblock), &mut header)?;
    let segments = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
    if header[..8] != anchor.generation.get().to_le_bytes() || segments as u64 > superblock.segment_count {
        return Ok(UsedSlots::new());
    }
    let mut counts = vec![0; segments as usize * 2];
    image.read(used_at(superblock) + USED_HEADER as u64, &mut counts)?;
    if checksum(checksum(0, &header[..12]), &counts).to_le_bytes() != header[12..16] {
        return Ok(UsedSlots::new());
    }
    Ok(counts.chunks_exact(2).map(|count| u16::from_le_bytes([count[0], count[1]])).collect())
}

/// Header of the stale map: generation (u64), words (u32), checksum of generation, words and map (u32).
pub(crate) const STALE_HEADER: usize = 16;

/// Chooses the image to start from: the valid one with the highest generation.
pub fn newest_image(images: &[Arc<dyn ImageFile>; 2]) -> Result<(usize, Superblock, AnchorRecord)> {
    let read = |image: &dyn ImageFile| -> Result<(Superblock, AnchorRecord)> {
        let mut page = vec![0; PAGE as usize];
        image.read(SUPERBLOCK_AT, &mut page)?;
        let superblock = Superblock::decode(&page)?;
        image.read(ANCHOR_AT[0], &mut page)?;
        let anchor = AnchorRecord::newest(&page)?;
        if anchor.uuid != superblock.uuid {
            return Err(Error::Foreign);
        }
        Ok((superblock, anchor))
    };
    match (read(images[0].as_ref()), read(images[1].as_ref())) {
        // An unreadable image may be the newest. Falling back to the older one would undo changes.
        (Err(error @ Error::Media(_)), _) | (_, Err(error @ Error::Media(_))) => Err(error),
        (Ok((s0, a0)), Ok((s1, a1))) => {
            if s0.uuid != s1.uuid {
                return Err(Error::Foreign);
            }
            Ok(if a0.generation.get() > a1.generation.get() { (0, s0, a0) } else { (1, s1, a1) })
        }
        // A sound superblock of a later program. The log that the other image would be replayed
        // with may hold records that this program cannot read.
        (Err(error @ Error::Format(FormatError::Features { .. })), Ok(_))
        | (Ok(_), Err(error @ Error::Format(FormatError::Features { .. }))) => Err(error),
        (Ok((s, a)), Err(_)) => Ok((0, s, a)),
        (Err(_), Ok((s, a))) => Ok((1, s, a)),
        (Err(Error::Format(first)), Err(Error::Format(second))) => {
            // An unknown version or feature says more than a missing magic.
            let telling = |e: &FormatError| matches!(e, FormatError::Version { .. } | FormatError::Features { .. });
            match (telling(&first), telling(&second)) {
                (true, _) => Err(first.into()),
                (_, true) => Err(second.into()),
                _ => Err(Error::NoImage { first, second }),
            }
        }
        (Err(error), Err(_)) => Err(error),
    }
}

/// Compares the fixed areas of a mapped image (superblock, roots, segment table, bulk bitmap) with
/// their sums, because every later step relies on them. The rest is left to the offline checker,
/// since it would cost reading the whole image.
pub(crate) fn verify_fixed(
    memory: &dyn PersistentMemory,
    image: &dyn ImageFile,
    superblock: &Superblock,
    used: u64,
) -> Result<()> {
    let pages = (superblock.reserved_segments() * SEGMENT).min(used) / PAGE;
    let mut sums = vec![0; pages as usize * 4];
    image.read(sums_at(superblock), &mut sums)?;
    let mut bytes = vec![0; PAGE as usize];
    for (page, sum) in sums.chunks_exact(4).enumerate() {
        let at = page as u64 * PAGE;
        if at == ANCHOR_AT[0] {
            continue;
        }
        memory.read(at, &mut bytes);
        let (expected, found) =
            (u32::from_le_bytes(sum.try_into().expect("four bytes")), superblock.sums().of_page(page as u64, &bytes));
        // A page that was never written is blank and has no sum.
        if expected != found && (expected != 0 || bytes.iter().any(|&b| b != 0)) {
            return Err(FormatError::Checksum { what: "page of the image's tables", expected, found }.into());
        }
    }
    Ok(())
}

impl CheckpointState {
    /// Sets, after a mount, which image is in use and what is known of the other one.
    pub fn restore(
        &mut self,
        images: Option<&[Arc<dyn ImageFile>; 2]>,
        superblock: &Superblock,
        anchor: &AnchorRecord,
    ) -> Result<()> {
        let Some(images) = images else { return Ok(()) };
        if superblock.memory_kind.has_ring() {
            // The region itself is authoritative. The first save of a mount writes a whole image.
            match newest_image(images) {
                Ok((current, saved, anchor)) if saved.uuid == superblock.uuid => {
                    empty_other_layout(images[1 - current].as_ref(), superblock)?;
                    (self.current, self.generation) = (Some(current), anchor.generation.get());
                    incarnation::mark_in_use(images[current].as_ref(), anchor)?;
                }
                Ok(_) | Err(Error::NoImage { .. }) => {}
                Err(error) => return Err(error),
            }
            return Ok(());
        }
        let (current, _, _) = newest_image(images)?;
        (self.current, self.mapped, self.generation) = (Some(current), Some(current), anchor.generation.get());
        let other = images[1 - current].as_ref();
        if empty_other_layout(other, superblock)? {
            return Ok(());
        }
        let mut page = vec![0; PAGE as usize];
        other.read(ANCHOR_AT[0], &mut page)?;
        let previous = AnchorRecord::newest(&page);
        if !previous.is_ok_and(|p| p.uuid == superblock.uuid && p.generation.get() + 1 == anchor.generation.get()) {
            return Ok(());
        }
        let mut header = [0; STALE_HEADER];
        images[current].read(stale_at(superblock), &mut header)?;
        let words = u32::from_le_bytes(header[8..12].try_into().expect("four bytes")) as usize;
        let all_words = (superblock.region_bytes / PAGE).div_ceil(64) as usize;
        if header[..8] != anchor.generation.get().to_le_bytes() || words > all_words {
            return Ok(());
        }
        let mut map = vec![0; words * 8];
        images[current].read(stale_at(superblock) + STALE_HEADER as u64, &mut map)?;
        if checksum(checksum(0, &header[..12]), &map).to_le_bytes() != header[12..16] {
            return Ok(());
        }
        let mut stale: Vec<u64> =
            map.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes"))).collect();
        stale.resize(all_words, 0);
        self.stale = Some(stale);
        Ok(())
    }
}

impl Region {
    /// Writes the region into the older image and seals it. The log before the start of the copy is
    /// then free. Transactions continue meanwhile, but in a region with a ring they wait. Does
    /// nothing for memory without images.
    pub fn checkpoint(&self) -> Result<()> {
        self.write_image(false)
    }

    /// Returns about how much memory the region has that is not in the image it reads from (bytes);
    /// `None` while a checkpoint is written.
    pub fn private_bytes(&self) -> Option<u64> {
        let state = self.checkpoint.try_lock()?;
        if state.mapped.is_none() || state.mapped != state.current {
            return Some(self.alloc.lock().used_bytes());
        }
        let pages: u32 = self.dirty.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
        Some(u64::from(pages) * PAGE)
    }

    /// Reads everything from the newest image again and lets go of the memory, if nothing has changed
    /// since this mount wrote that image. Returns whether it did.
    ///
    /// Stores are made under the commit lock, and segments discarded under the allocator's. Readers
    /// find the same bytes before and after.
    pub fn rest(&self) -> Result<bool> {
        let mut state = self.checkpoint.lock();
        let (Some(images), Some(current)) = (&self.images, state.current) else { return Ok(false) };
        if self.superblock.memory_kind.has_ring() || state.copied_bytes == 0 {
            return Ok(false);
        }
        images[current].reserve_holes(state.copied_bytes)?;
        let _commit = self.commit.lock();
        let has_changed = self.dirty.iter().any(|word| word.load(Ordering::Relaxed) != 0);
        if has_changed && !is_planted(Bug::RestsChanged) {
            return Ok(false);
        }
        let _alloc = self.alloc.lock();
        let rests = self.memory.rest_on(current, state.copied_bytes)?;
        if rests {
            // As after a mount: pages that memory takes from this image may decay there, and must keep
            // their sums when they are copied.
            (state.mapped, state.written[current]) = (Some(current), false);
        }
        Ok(rests)
    }

    /// Makes everything durable, moves the ring's head and seals an image as clean. Must be the
    /// last operation on a region. No transaction may run at the same time or afterwards.
    pub fn shutdown(&self) -> Result<()> {
        self.writable()?;
        self.sync()?;
        if self.superblock.memory_kind.has_ring() {
            self.seal_ring()?;
        }
        if self.images.is_some() {
            self.write_image(true)?;
        }
        Ok(())
    }

    /// Reads what the newest saved image of a region with a ring holds at `at`: the contents that a
    /// restore would bring back if the memory were lost. Returns false if there is no such image.
    pub fn read_saved(&self, at: Offset, out: &mut [u8]) -> Result<bool> {
        let state = self.checkpoint.lock();
        match (&self.images, state.current) {
            (Some(images), Some(current)) if self.superblock.memory_kind.has_ring() => {
                images[current].read(at.get(), out)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Moves the ring's head to its end and marks the region clean.
    fn seal_ring(&self) -> Result<()> {
        let mut state = self.commit.lock();
        // All applied lines must be durable before the anchor releases their records.
        self.memory.fence();
        state.anchor_generation += 1;
        let anchor = self.anchor(&state, state.end, state.end, state.salt, ANCHOR_CLEAN);
        self.memory.write_through(ANCHOR_AT[(state.anchor_generation % 2) as usize], anchor.as_bytes());
        self.memory.fence();
        state.head = state.end;
        Ok(())
    }

    fn write_image(&self, clean: bool) -> Result<()> {
        let Some(images) = &self.images else { return Ok(()) };
        self.writable()?;
        self.write_image_locked(images, &mut self.checkpoint.lock(), clean)
    }

    pub(crate) fn write_image_locked(
        &self,
        images: &[Arc<dyn ImageFile>; 2],
        state: &mut CheckpointState,
        clean: bool,
    ) -> Result<()> {
        self.writable()?;
        let mut fresh = Vec::new();
        let outcome = self.copy_and_seal(images, state, clean, &mut fresh);
        state.failed_at = outcome.is_err().then(|| self.last_lsn());
        if let Err(error) = &outcome {
            // The new image is not sealed and the old one still counts, so lack of room does not
            // poison the region.
            if let Error::Media(error) = error
                && !error.is_lack()
            {
                self.poison("a checkpoint", error);
            }
            // The pages taken off the dirty map are in no image. The next checkpoint must write
            // them, and the one after it must know that they are stale in the other image.
            if !is_planted(Bug::FailedPages) {
                for (dirty, bits) in self.dirty.iter().zip(&fresh) {
                    dirty.fetch_or(*bits, Ordering::Relaxed);
                }
            }
        }
        outcome
    }

    /// Copies the region into the older image and seals it. `fresh` receives the pages taken off
    /// the dirty map.
    fn copy_and_seal(
        &self,
        images: &[Arc<dyn ImageFile>; 2],
        state: &mut CheckpointState,
        clean: bool,
        fresh: &mut Vec<u64>,
    ) -> Result<()> {
        let target = state.current.map_or(0, |current| 1 - current);
        let image = images[target].as_ref();
        if state.mapped == Some(target) {
            if !is_planted(Bug::Detach) {
                self.memory.detach(self.alloc.lock().used_bytes());
            }
            state.mapped = None;
        }
        self.distrust_standby(images, state, target);
        // The target must not pass as valid while it is written.
        if !is_planted(Bug::Invalidation) {
            image.write(ANCHOR_AT[0], &vec![0; PAGE as usize])?;
            image.sync()?;
        }

        let ring = self.superblock.memory_kind.has_ring();
        let commit = self.commit.lock();
        let (replay, salt) = (commit.end, commit.salt);
        let used = self.alloc.lock().used_bytes();
        *fresh = self.dirty.iter().map(|word| word.swap(0, Ordering::Relaxed)).collect();
        let standing = ring.then_some(commit);

        let pages = used / PAGE;
        self.copy_pages(images, state, target, fresh, pages, ring)?;
        let copied = self.last_lsn();
        let mut commit = standing.unwrap_or_else(|| self.commit.lock());
        let generation = if ring {
            // The ring's anchors have their own count, which selects one of two places for each.
            commit.anchor_generation.max(state.generation + 1)
        } else {
            commit.anchor_generation += 1;
            commit.anchor_generation
        };
        let anchor = self.anchor(&commit, replay, copied, salt, if clean { ANCHOR_CLEAN } else { 0 });
        drop(commit);
        let boot_id = if ring { [0; 16] } else { anchor.boot_id };
        let (used_bytes, counted) = (used.into(), generation.into());
        let anchor = AnchorRecord { used_bytes, generation: counted, boot_id, ..anchor }.sealed();
        self.write_stale_map(image, generation, fresh, pages)?;
        if !ring {
            self.write_used_slots(image, generation)?;
        }
        // The pages must be durable, and the log durable past the end of the copy, before the
        // anchor says so (invariant 4).
        image.sync()?;
        self.sync_to(copied)?;
        image.write(ANCHOR_AT[0], anchor.as_bytes())?;
        image.sync()?;

        (state.current, state.generation) = (Some(target), generation);
        (state.written[target], state.copied_bytes) = (true, used);
        state.stale = Some(std::mem::take(fresh));
        if !ring {
            self.commit.lock().head = replay;
            let released = if is_planted(Bug::ReleaseCopied) { copied } else { replay };
            self.log.release(released.get())?;
            self.releases.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Copies the pages that the image lacks, with their sums. With a ring, the caller holds the
    /// commit lock.
    fn copy_pages(
        &self,
        images: &[Arc<dyn ImageFile>; 2],
        state: &CheckpointState,
        target: usize,
        fresh: &[u64],
        pages: u64,
        ring: bool,
    ) -> Result<()> {
        let image = images[target].as_ref();
        let wanted = |page: u64| {
            let bit = |map: &[u64]| map[(page / 64) as usize] >> (page % 64) & 1 == 1;
            page != ANCHOR_AT[0] / PAGE
                && state.stale.as_ref().is_none_or(|stale| bit(stale) && !is_planted(Bug::StaleMap) || bit(fresh))
        };
        let mut page = 0;
        let mut buffer = vec![0; (COPY_PAGES * PAGE) as usize];
        while page < pages {
            if !wanted(page) {
                page += 1;
                continue;
            }
            let first = page;
            while page < pages && page < first + COPY_PAGES && wanted(page) {
                page += 1;
            }
            let bytes = &mut buffer[..((page - first) * PAGE) as usize];
            {
                // No transaction applies meanwhile, so no word is torn.
                let _commit = (!ring).then(|| self.commit.lock());
                self.memory.read(first * PAGE, bytes);
            }
            image.write(first * PAGE, bytes)?;
            // Pages that memory took from an image of an earlier mount may have decayed there.
            let inherits = |page: u64| {
                !ring
                    && state.current.is_some_and(|current| !state.written[current])
                    && fresh[(page / 64) as usize] >> (page % 64) & 1 == 0
            };
            let sums = standby::inherited_sums(images[1 - target].as_ref(), &self.superblock, first, bytes, inherits);
            image.write(sums_at(&self.superblock) + first * 4, &sums)?;
        }
        Ok(())
    }

    /// Adds to the stale pages of an image from an earlier mount those pages whose contents are
    /// wrong.
    fn distrust_standby(&self, images: &[Arc<dyn ImageFile>; 2], state: &mut CheckpointState, target: usize) {
        // The comparison would also find, and so hide, what these bugs leave behind.
        if state.written[target]
            || [Bug::Unverified, Bug::Invalidation, Bug::StaleMap, Bug::FailedPages].into_iter().any(is_planted)
        {
            return;
        }
        let Some(stale) = &state.stale else { return };
        let bit = |map: &[u64], page: u64| map[(page / 64) as usize] >> (page % 64) & 1 == 1;
        let dirty = |page: u64| self.dirty[(page / 64) as usize].load(Ordering::Relaxed) >> (page % 64) & 1 == 1;
        let leave = |page: u64| page != ANCHOR_AT[0] / PAGE && !bit(stale, page) && !dirty(page);
        let pages = self.alloc.lock().used_bytes() / PAGE;
        let mut unsound = stale.clone();
        let mark = |page: u64| unsound[(page / 64) as usize] |= 1 << (page % 64);
        standby::mark_unsound(images, target, &self.superblock, pages, leave, mark);
        state.stale = Some(unsound);
    }

    fn write_stale_map(&self, image: &dyn ImageFile, generation: u64, fresh: &[u64], pages: u64) -> Result<()> {
        let words = pages.div_ceil(64) as usize;
        let mut out = Vec::with_capacity(STALE_HEADER + words * 8);
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&(words as u32).to_le_bytes());
        let map: Vec<u8> = fresh[..words].iter().flat_map(|w| w.to_le_bytes()).collect();
        let crc = checksum(checksum(0, &out), &map);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&map);
        image.write(stale_at(&self.superblock), &out)?;
        Ok(())
    }

    /// Writes the used slots while transactions run. A slot is taken before its record is logged
    /// and given back after it. So each counted slot is in use, is about to be, or has its bitmap
    /// touched by a record after the start of the copy.
    fn write_used_slots(&self, image: &dyn ImageFile, generation: u64) -> Result<()> {
        let mut counts: Vec<u8> = Vec::new();
        for first in (0..self.superblock.segment_count as usize).step_by(COUNT_SEGMENTS) {
            let alloc = self.alloc.lock();
            let before = counts.len();
            counts.extend(alloc.used_slots(first..first + COUNT_SEGMENTS).flat_map(u16::to_le_bytes));
            if counts.len() == before {
                break;
            }
        }
        let mut out = Vec::with_capacity(USED_HEADER + counts.len());
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&(counts.len() as u32 / 2).to_le_bytes());
        let crc = checksum(checksum(0, &out), &counts);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&counts);
        Ok(image.write(used_at(&self.superblock), &out)?)
    }
}
