//! The bulk device as the file system sees it: which 64 KiB blocks are free, and moving bytes to and from them.
//!
//! The bitmap in the region is the truth about blocks (bit set = used); the copy here decides. A reservation changes only
//! the copy; the bit is set by the transaction that maps the block and cleared by the one that unmaps it.
//! Rules:
//! - A freed block is reused only when the record that freed it is durable (invariant 5): until then it is *pending*.
//!   It is trimmed before it counts as free, so that no trim can hit its next user.
//! - Where the region is saved in images (`battery`), the image may be all that is left after its memory was lost: a block the
//!   newest image maps is not reused, nor trimmed, before a newer image is sealed. It is *held* until then. A caller
//!   that finds no other space saves an image.
//! - Runs are allocated in temporal order by a roving cursor that leaves a gap behind each, so that files growing side
//!   by side stay contiguous; a growing file goes on behind its last extent.
//! - A flush covers the writes completed before it. Each completed write takes a number; a flush remembers the last
//!   number before its submission, and `fresh` compares the two.
//!
//! Left out: extent maps, and when to flush.

mod births;
mod blocks;
mod fresh;
mod patience;
mod replaced;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_format::extent::BulkBlock;
use shoal_format::superblock::Superblock;
use shoal_format::{BULK_BLOCK, Offset};
use shoal_media::{BlockDevice, block};
use shoal_region::{Lsn, Region, Tx, View};

use crate::host_room::{HostRoom, RoomCache};
use crate::locks::assert_none_held;
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};
use births::Births;
use blocks::Blocks;
pub(crate) use blocks::Run;
pub(crate) use fresh::{Fresh, Tail};
pub(crate) use patience::may_wait;
pub use patience::without_flush;

/// The words of a bulk bitmap; false if `read` finds none.
fn read_bitmap(superblock: &Superblock, read: impl Fn(Offset, &mut [u8]) -> Result<bool>) -> Result<(Vec<u64>, bool)> {
    let mut words = vec![0u64; superblock.bulk_blocks.div_ceil(64) as usize];
    let mut chunk = [0; 4096];
    for (index, part) in words.chunks_mut(512).enumerate() {
        let bytes = &mut chunk[..part.len() * 8];
        if !read(superblock.bulk_bitmap + index as u64 * 4096, bytes)? {
            return Ok((words, false));
        }
        for (word, bytes) in part.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
    }
    Ok((words, true))
}

/// The bitmap of the newest saved image; empty if there is none.
fn read_saved(region: &Region) -> Result<Vec<u64>> {
    let (words, found) = read_bitmap(region.superblock(), |at, out| Ok(region.read_saved(at, out)?))?;
    Ok(if found { words } else { Vec::new() })
}

/// The bulk device and its free blocks.
pub(crate) struct Bulk {
    device: Arc<dyn BlockDevice>,
    bitmap: Offset,
    align: u64,
    count: u64,
    state: Mutex<Blocks>,
    /// Held from taking pending runs to counting them as free: a caller that finds no space waits for it.
    releasing: Mutex<()>,
    /// Number of the last completed write.
    written: AtomicU64,
    /// The last write covered by the flush submitted last.
    submitted: AtomicU64,
    /// The last write that a flush of ranges may have to tell from later ones.
    noted: AtomicU64,
    /// The last write covered by a completed flush.
    flushed: AtomicU64,
    /// Held during a flush.
    flushing: Mutex<()>,
    pub fresh: Fresh,
    pub births: Births,
    room: Option<Arc<RoomCache>>,
}

impl Bulk {
    /// Can `device` hold the `count` blocks a store speaks of?
    pub fn check(device: Option<&dyn BlockDevice>, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let Some(device) = device else {
            return Err(Error::Io("the store has a bulk device, but none was given; name it".into()));
        };
        let geometry = device.geometry();
        if geometry.bytes / BULK_BLOCK < count || !BULK_BLOCK.is_multiple_of(geometry.block_bytes.max(1) as u64) {
            return Err(Error::Io(format!(
                "bulk device: {} bytes in units of {}, the store needs {} bytes in units of at most {BULK_BLOCK}; \
                 give it the device it was formatted with",
                geometry.bytes,
                geometry.block_bytes,
                count * BULK_BLOCK
            )));
        }
        Ok(())
    }

    /// Reads the bitmap of `region`, whose blocks the device holds ([`Bulk::check`]).
    pub fn load(device: Arc<dyn BlockDevice>, region: &Region) -> Result<Bulk> {
        let superblock: &Superblock = region.superblock();
        let geometry = device.geometry();
        let count = superblock.bulk_blocks;
        let (words, _) = read_bitmap(superblock, |at, out| Ok(region.read(at, out).map(|()| true)?))?;
        let mut blocks = Blocks::new(words, count);
        blocks.saved = read_saved(region)?;
        blocks.hold_saved();
        Ok(Bulk {
            device,
            bitmap: superblock.bulk_bitmap,
            align: geometry.block_bytes.max(1) as u64,
            count,
            state: Mutex::new(blocks),
            releasing: Mutex::new(()),
            // One more than flushed: what an earlier process wrote may not be durable either.
            written: AtomicU64::new(1),
            submitted: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flushing: Mutex::new(()),
            fresh: Fresh::default(),
            births: Births::new(region.last_lsn()),
            room: None,
        })
    }

    /// New blocks are given out only while the host has room for them.
    pub fn on_host(self, room: Option<Arc<RoomCache>>) -> Bulk {
        Bulk { room, ..self }
    }

    /// Takes up to `want` contiguous blocks: at `goal` if it is free, else behind the cursor, with `ahead` blocks left
    /// free behind them for the file's next ones. `None` when none is free now.
    ///
    /// The host must have room for them. It keeps its headroom: log and images must still be able to grow, for without them
    /// nothing can be done with the blocks.
    pub fn take(&self, region: &Region, goal: Option<BulkBlock>, want: u64, ahead: u64) -> Option<Run> {
        let Some(room) = &self.room else { return self.state.lock().take(goal, want, ahead) };
        let within = |host: HostRoom| {
            let most = host.bulk_bytes(region.log_growth_bytes()) / BULK_BLOCK;
            let mut blocks = self.state.lock();
            let want = want.min(most.saturating_sub(blocks.taken()));
            if want == 0 { None } else { blocks.take(goal, want, ahead) }
        };
        // Room may have been made since the host was asked last.
        within(room.now()).or_else(|| within(room.fresh()))
    }

    /// Blocks of the device.
    pub fn blocks(&self) -> u64 {
        self.count
    }

    pub fn free_blocks(&self) -> u64 {
        self.state.lock().free
    }

    /// Keeps this many free blocks from being allocated.
    pub fn withhold(&self, blocks: u64) {
        self.state.lock().withheld = blocks;
    }

    pub fn withheld_blocks(&self) -> u64 {
        self.state.lock().withheld
    }

    /// Freed, but not to be reused before the freeing is durable.
    pub fn pending_blocks(&self) -> u64 {
        self.state.lock().pending_blocks
    }

    /// Freed, but mapped by the saved image.
    pub fn held_blocks(&self) -> u64 {
        self.state.lock().held_blocks
    }

    /// Like [`Bulk::take`], but waits for pending blocks, and for held ones, when nothing else is left.
    ///
    /// The caller must not hold a transaction or an inode lock: waiting may have to make the log durable.
    pub fn reserve(&self, region: &Region, goal: Option<BulkBlock>, want: u64, ahead: u64) -> Result<Run> {
        self.reclaim(region)?;
        if let Some(run) = self.take(region, goal, want, ahead) {
            return Ok(run);
        }
        let last = self.state.lock().pending.iter().map(|&(lsn, _)| lsn).max();
        if let Some(last) = last {
            region.sync_to(last)?;
            self.reclaim(region)?;
        }
        if let Some(run) = self.take(region, goal, want, ahead) {
            return Ok(run);
        }
        if self.held_blocks() > 0 {
            self.save(region)?;
        }
        self.take(region, goal, want, ahead).ok_or(Error::NoSpace)
    }

    /// Takes up to `want` contiguous blocks before `limit`, the longest run there is; `None` when there is none.
    pub fn reserve_before(&self, region: &Region, limit: BulkBlock, want: u64) -> Result<Option<Run>> {
        let take = || self.state.lock().take_before(limit, want);
        if let Some(run) = take() {
            return Ok(Some(run));
        }
        // A freed run is free when its record is durable; a run that an image maps, when there is a newer image.
        region.sync()?;
        self.reclaim(region)?;
        if self.held_blocks() > 0 {
            self.save(region)?;
        }
        Ok(take())
    }

    /// Gives back a reservation whose transaction did not commit.
    pub fn cancel(&self, run: Run) {
        self.state.lock().set(run, false);
    }

    /// Records in `tx` that a reserved run is mapped.
    pub fn mark_used(&self, tx: &mut Tx<'_>, run: Run) -> Result<()> {
        self.mark(tx, run, true)
    }

    /// Records in `tx` that a run is unmapped; [`Bulk::freed`] must follow the commit.
    pub fn mark_free(&self, tx: &mut Tx<'_>, run: Run) -> Result<()> {
        self.mark(tx, run, false)
    }

    fn mark(&self, tx: &mut Tx<'_>, run: Run, used: bool) -> Result<()> {
        let (mut block, end) = (run.first.get(), run.end().get());
        while block < end {
            let at = self.bitmap + block / 64 * 8;
            let words = (end - block) / 64;
            if block.is_multiple_of(64) && words > 0 {
                // Whole words belong to this run alone: no other transaction changes a bit of them.
                if used {
                    tx.write(at, &vec![0xff; words as usize * 8])?;
                } else {
                    tx.zero(at, words * 8)?;
                }
                block += words * 64;
                continue;
            }
            let bits = (64 - block % 64).min(end - block);
            let mask = (u64::MAX >> (64 - bits)) << (block % 64);
            if used {
                tx.set_bits(at, mask)?
            } else {
                tx.clear_bits(at, mask)?
            }
            block += bits;
        }
        Ok(())
    }

    /// Runs unmapped by the record that ends at `lsn`: they stay used until the log is durable up to there.
    pub fn freed(&self, lsn: Lsn, runs: &[Run]) {
        let mut blocks = self.state.lock();
        for &run in runs {
            blocks.pending_blocks += run.blocks;
            blocks.pending.push((lsn, run));
        }
    }

    /// Makes blocks free whose freeing is durable, and which no saved image maps.
    pub fn reclaim(&self, region: &Region) -> Result<()> {
        let durable = if is_planted(Bug::ReuseAtOnce) { Lsn::MAX } else { region.durable_lsn() };
        let _one_at_a_time = self.releasing.lock();
        let mut ready: Vec<Run> = Vec::new();
        self.state.lock().pending.retain(|&(lsn, run)| {
            if lsn <= durable {
                ready.push(run);
            }
            lsn > durable
        });
        self.release(ready);
        Ok(())
    }

    /// Saves the region in an image and lets go of what only the image before it mapped.
    pub fn save(&self, region: &Region) -> Result<()> {
        assert_none_held();
        // Held from before the seal: a block that only the new image maps must not be let go meanwhile.
        let _one_at_a_time = self.releasing.lock();
        region.checkpoint()?;
        self.saved(region)
    }

    /// The region was saved for the last time in this life.
    pub fn saved_finally(&self, region: &Region) -> Result<()> {
        let _one_at_a_time = self.releasing.lock();
        self.saved(region)
    }

    fn saved(&self, region: &Region) -> Result<()> {
        let saved = read_saved(region)?;
        let held = {
            let mut blocks = self.state.lock();
            blocks.saved = saved;
            blocks.held_blocks = 0;
            std::mem::take(&mut blocks.held)
        };
        self.release(held);
        Ok(())
    }

    /// Makes blocks free whose freeing is durable, except those the saved image maps. The caller holds `releasing`.
    fn release(&self, mut ready: Vec<Run>) {
        ready.sort_unstable();
        ready.dedup_by(|next, run| {
            let joins = run.end() == next.first;
            if joins {
                run.blocks += next.blocks;
            }
            joins
        });
        for freed in ready {
            assert_none_held();
            let free = self.state.lock().hold(freed);
            for run in free {
                // A trim that fails costs space on the host, nothing else: a fresh block is written whole.
                let trim = || drop(block::trim(&*self.device, run.first.byte(), run.blocks * BULK_BLOCK));
                if !is_planted(Bug::LateTrim) {
                    trim();
                }
                let mut blocks = self.state.lock();
                blocks.set(run, false);
                blocks.pending_blocks -= run.blocks;
                drop(blocks);
                if is_planted(Bug::LateTrim) {
                    trim();
                }
            }
        }
    }

    /// Reads bytes of the device.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        assert_none_held();
        let (align, len) = (self.align, out.len() as u64);
        let (from, to) = (at / align * align, (at + len).next_multiple_of(align));
        if from == at && to == at + len {
            return Ok(self.device.read_into(at, out)?);
        }
        // The unaligned ends go through a buffer, what lies between them directly.
        let body_from = at.next_multiple_of(align);
        let body_to = (at + len) / align * align;
        if body_from >= body_to {
            let mut buffer = vec![0; (to - from) as usize];
            self.device.read_into(from, &mut buffer)?;
            out.copy_from_slice(&buffer[(at - from) as usize..(at - from + len) as usize]);
            return Ok(());
        }
        let (head, rest) = out.split_at_mut((body_from - at) as usize);
        let (body, tail) = rest.split_at_mut((body_to - body_from) as usize);
        if !head.is_empty() {
            self.read(at, head)?;
        }
        self.device.read_into(body_from, body)?;
        if !tail.is_empty() {
            self.read(body_to, tail)?;
        }
        Ok(())
    }

    /// Writes bytes of the device; returns the write's number. The file's data lock keeps others away from the
    /// device blocks at the unaligned ends, which are read and written back.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<u64> {
        assert_none_held();
        let outcome = self.write_parts(at, bytes);
        // Counted also when it failed: some of it may have reached the device.
        let number = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        outcome.map(|()| number)
    }

    fn write_parts(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let (align, len) = (self.align, bytes.len() as u64);
        let (from, to) = (at / align * align, (at + len).next_multiple_of(align));
        if from == at && to == at + len {
            return Ok(self.device.write_from(at, bytes)?);
        }
        let body_from = at.next_multiple_of(align);
        let body_to = (at + len) / align * align;
        if body_from >= body_to {
            let mut buffer = vec![0; (to - from) as usize];
            self.device.read_into(from, &mut buffer)?;
            buffer[(at - from) as usize..(at - from + len) as usize].copy_from_slice(bytes);
            return Ok(self.device.write_from(from, &buffer)?);
        }
        let (head, rest) = bytes.split_at((body_from - at) as usize);
        let (body, tail) = rest.split_at((body_to - body_from) as usize);
        if !head.is_empty() {
            self.write_parts(at, head)?;
        }
        self.device.write_from(body_from, body)?;
        if !tail.is_empty() {
            self.write_parts(body_to, tail)?;
        }
        Ok(())
    }

    /// Makes every write completed before the call durable, or poisons `region` for good; returns the number of the last write covered. Does nothing
    /// when nothing was written since the last flush; callers that meet share one flush.
    pub fn flush(&self, region: &Region) -> Result<u64> {
        let wanted = self.written.load(Ordering::Acquire);
        if self.flushed.load(Ordering::Acquire) < wanted {
            may_wait()?;
            assert_none_held();
            let _one_at_a_time = self.flushing.lock();
            if self.flushed.load(Ordering::Acquire) < wanted {
                if let Some(failure) = region.failure() {
                    // Never retried: a second flush could succeed over data the first one has lost.
                    return Err(Error::Failed(failure));
                }
                let covered = self.fresh.note(|| {
                    // Numbers are given at completion, so every write up to this one completed before the submission.
                    let covered = self.written.load(Ordering::Acquire);
                    self.submitted.store(covered, Ordering::Release);
                    covered
                });
                block::flush(&*self.device)
                    .inspect_err(|error| region.poison("the flush of the bulk storage", error))?;
                let covered =
                    if is_planted(Bug::FlushCoversLater) { self.written.load(Ordering::Acquire) } else { covered };
                self.flushed.store(covered, Ordering::Release);
            }
        }
        Ok(self.flushed.load(Ordering::Acquire))
    }

    /// Does the device hold writes back, so that a whole flush would cost everybody? Then files are flushed by ranges.
    pub fn holds_back(&self) -> bool {
        self.device.held_for_ns() > 0
    }

    /// For how long the device holds writes back (ns).
    pub fn held_for_ns(&self) -> u64 {
        self.device.held_for_ns()
    }

    /// Makes what was written to these bytes of the device before the call durable, or poisons `region` for good.
    pub fn flush_ranges(&self, region: &Region, ranges: &[(u64, u64)]) -> Result<()> {
        may_wait()?;
        assert_none_held();
        if let Some(failure) = region.failure() {
            // Never retried, as in a whole flush.
            return Err(Error::Failed(failure));
        }
        let flushed = self.device.flush_ranges(ranges);
        Ok(flushed.inspect_err(|error| region.poison("the flush of the bulk storage", error))?)
    }

    /// Makes the blocks of some extents durable.
    pub fn flush_runs(&self, region: &Region, runs: impl IntoIterator<Item = Run>) -> Result<()> {
        if !self.holds_back() {
            return self.flush(region).map(drop);
        }
        let ranges: Vec<(u64, u64)> = runs.into_iter().map(|run| (run.first.byte(), run.blocks * BULK_BLOCK)).collect();
        self.flush_ranges(region, &ranges)
    }

    /// The number of the last completed write. Ranges of later ones do not join those of writes up to it: under a file's lock it
    /// tells what a flush of the file's ranges covers from what comes after.
    pub fn note_writes(&self) -> u64 {
        self.fresh.note(|| {
            let written = self.written.load(Ordering::Acquire);
            self.noted.fetch_max(written, Ordering::AcqRel);
            written
        })
    }

    /// The last write whose range no later one's may join.
    pub fn last_noted(&self) -> u64 {
        let noted = if is_planted(Bug::JoinNoted) { 0 } else { self.noted.load(Ordering::Acquire) };
        self.last_submitted().max(noted)
    }

    /// Is everything of a file durable that was written to it?
    pub fn is_covered(&self, ino: crate::Ino) -> bool {
        self.fresh.is_settled(ino) && self.fresh.last_write(ino) <= self.last_flushed().max(self.fresh.covered(ino))
    }

    /// The last write a completed flush covers, if that is the last one of all: nothing has to be flushed.
    pub fn all_flushed(&self) -> Option<u64> {
        let written = self.written.load(Ordering::Acquire);
        let flushed = self.flushed.load(Ordering::Acquire);
        (flushed >= written).then_some(flushed)
    }

    /// Is there data that no flush covers?
    pub fn needs_flush(&self) -> bool {
        self.written.load(Ordering::Acquire) > self.last_submitted()
    }

    /// The last write that a completed flush covers.
    pub fn last_flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// A write's number for data that an earlier process wrote.
    pub fn note_earlier_write(&self) -> u64 {
        self.written.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The last write that the flush submitted last covers.
    pub fn last_submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }
}

#[cfg(test)]
#[path = "bulk_tests.rs"]
mod tests;
