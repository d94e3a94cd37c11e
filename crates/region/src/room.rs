//! Room on the host: for the log's next segment, and for the images to grow.
//!
//! Two guarantees. First, an append that finds no room waits for a checkpoint, which releases the
//! part of the log that recovery no longer needs, and is then retried once. Second, a checkpoint
//! never runs out of room half-way: before the region uses a segment past all earlier ones, room
//! for it is reserved in the memory's file and in both images, some segments ahead. The last
//! [`HELD_BACK`] reserved segments serve only transactions that free space in the end, so that a
//! full host can be emptied.
//! Lock order: growing before all others. A thread that holds the commit lock never waits here.

use shoal_format::superblock::Superblock;
use shoal_format::{PAGE, SEGMENT};
use shoal_media::ImageFile;

use crate::checkpoint::{STALE_HEADER, USED_HEADER, stale_at, sums_at, used_at};
use crate::{Error, Lack, Region, Reserve, Result};

/// Reserved segments that ordinary transactions must leave.
pub(crate) const HELD_BACK: u64 = 16;
/// Bounds of the number of segments reserved ahead, which is an eighth of those needed so far.
const STEP_MIN: u64 = 64;
const STEP_MAX: u64 = 1024;

fn lack_is_no_space(error: shoal_media::MediaError) -> Error {
    if error.is_lack() { Error::NoSpace(Lack::OTHER) } else { error.into() }
}

impl Region {
    /// Runs an append to the log, and retries it after a checkpoint if the log had no room.
    /// `attempt` takes the commit lock itself and must change nothing when it fails this way.
    pub(crate) fn with_log_room<T>(&self, reserve: Reserve, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let seen = self.releases.load(std::sync::atomic::Ordering::Acquire);
        match attempt() {
            Err(Error::Media(lack)) if lack.is_lack() => match self.make_log_room(reserve, seen)? {
                true => attempt(),
                false => Err(lack.into()),
            },
            outcome => outcome,
        }
    }

    /// Makes room in the log, and returns whether a retry is worthwhile. `seen` is the count of
    /// releases before the failed attempt.
    fn make_log_room(&self, reserve: Reserve, seen: u64) -> Result<bool> {
        let Some(images) = self.images.as_ref().filter(|_| !self.superblock.memory_kind.has_ring()) else {
            return Ok(false);
        };
        let mut state = self.checkpoint.lock();
        if self.releases.load(std::sync::atomic::Ordering::Acquire) != seen {
            return Ok(true);
        }
        let end = self.last_lsn();
        // An ordinary operation does not repeat a checkpoint that failed with the log in its
        // present state. On a full host, every operation would otherwise write half an image in
        // vain.
        if !self.log.gains_by_release(end.get()) || (!reserve.is_open() && state.failed_at == Some(end)) {
            return Ok(false);
        }
        match self.write_image_locked(images, &mut state, false) {
            Ok(()) => Ok(true),
            Err(Error::Media(lack)) if lack.is_lack() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the log is short of room and a checkpoint would make some.
    pub fn wants_checkpoint(&self) -> bool {
        self.log.is_short() && self.log.gains_by_release(self.last_lsn().get())
    }

    /// Returns whether the log is short of room.
    pub fn is_log_short(&self) -> bool {
        self.log.is_short()
    }

    /// Returns how many bytes the log may still take from its host.
    pub fn log_growth_bytes(&self) -> u64 {
        self.log.growth_bytes()
    }

    /// Reserves room up to segment `needed`, and further ahead if the host has more.
    pub(crate) fn grow(&self, needed: u64, reserve: Reserve) -> Result<()> {
        let _one_at_a_time = self.growing.lock();
        let (backed, limit) = {
            let alloc = self.alloc.lock();
            (alloc.backed, alloc.limit(reserve))
        };
        if needed <= limit {
            return Ok(());
        }
        let count = self.superblock.segment_count;
        let step = (needed / 8).clamp(STEP_MIN, STEP_MAX);
        let least = (needed + if reserve.is_open() { 0 } else { HELD_BACK }).min(count);
        let reserved = match self.reserve_room(backed, (least + step).min(count)) {
            Err(Error::NoSpace(_)) => self.reserve_room(backed, least).map(|()| least),
            outcome => outcome.map(|()| (least + step).min(count)),
        }?;
        self.alloc.lock().backed = reserved;
        Ok(())
    }

    /// Reserves room after opening: for the region's used bytes, and for transactions that free
    /// space. What the host does not give now is requested again when the region grows.
    pub(crate) fn back_used(&self) -> Result<()> {
        let high = self.alloc.lock().used_bytes() / SEGMENT;
        let needed = high.min(self.superblock.segment_count);
        match self.grow(needed, Reserve::Kept) {
            Err(Error::NoSpace(_)) => match self.grow(needed, Reserve::Open) {
                Err(Error::NoSpace(_)) => Ok(()),
                outcome => outcome,
            },
            outcome => outcome,
        }
    }

    /// Reserves room for segments [from, to).
    fn reserve_room(&self, from: u64, to: u64) -> Result<()> {
        if to <= from {
            return Ok(());
        }
        let (at, len) = (from * SEGMENT, (to - from) * SEGMENT);
        self.memory.reserve(at, len).map_err(lack_is_no_space)?;
        for image in self.images.iter().flatten() {
            reserve_in_image(image.as_ref(), &self.superblock, at, len).map_err(lack_is_no_space)?;
        }
        Ok(())
    }
}

/// Reserves all that a checkpoint writes for a range: its pages, their sums, and the stale map and
/// the counts of used slots up to the range's end.
fn reserve_in_image(image: &dyn ImageFile, superblock: &Superblock, at: u64, len: u64) -> shoal_media::Result<()> {
    image.reserve(at, len)?;
    image.reserve(sums_at(superblock) + at / PAGE * 4, len / PAGE * 4)?;
    let words = ((at + len) / PAGE).div_ceil(64);
    image.reserve(stale_at(superblock), STALE_HEADER as u64 + words * 8)?;
    image.reserve(used_at(superblock), USED_HEADER as u64 + (at + len) / SEGMENT * 2)?;
    Ok(())
}
