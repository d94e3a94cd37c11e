//! Compaction: moves pieces out of sparse segments, so that these are free for pieces of any size.
//!
//! A *pass* chooses segments ([`shoal_region::Region::drain`]) and looks at every inode in number
//! order for pieces in them, because nothing leads from a slot to its owner. Each piece is moved by
//! one transaction under its owner's lock (`owners`), so that a crash at any moment leaves a tree
//! like any other. A pass goes in steps of bounded work and may stop after each. Two callers:
//! - [`Compacting::compact_tick`], in the background: when much could be gained, while nobody else
//!   commits. It also gives back empty inode blocks, and the memory of segments that stay free.
//! - [`Compacting::compact_for`], for an operation that found no segment (`needs`).
//!
//! Rules: inode locks are only tried, never waited for. A pass holds the compactor's lock and no
//! other. Moving takes no free segment, and a pass leaves the next one nothing to gain, so
//! compaction comes to an end. Segments that a pass could not empty are left alone until a slot in
//! them is freed.

mod owners;

use shoal_format::inode::{InodeSlot, TABLE_FANOUT};
use shoal_region::{Gainable, Lsn, Region, StuckSegments, Victims};

use crate::inode::packer::STEP_PACKED;
use crate::rooms::Compacting;
use crate::{Error, Ino, Result};

/// Inode blocks, and pieces of one owner, looked at in a step.
const STEP_BLOCKS: u32 = 64;
const STEP_LOOKS: u32 = 1024;
/// Bytes moved in a step.
const STEP_BYTES: u64 = 256 << 10;
/// Steps of one tick. With `STEP_BYTES` this bounds what compaction writes to the log (bytes for
/// each 100 ms).
const TICK_STEPS: u32 = 8;
/// Without a commit for this long (ns) the store is idle.
const IDLE_NS: u64 = 1_000_000_000;
/// A segment's memory is given back after the segment was free for one to two of these periods
/// (ns).
const REST_NS: u64 = 5_000_000_000;
/// Bytes moved by one pass.
const PASS_BYTES: u64 = 8 << 20;
/// Least number of segments that a pass empties, if it can, because each pass looks at every inode.
const PASS_SEGMENTS_MIN: u64 = 32;
/// Segments made free beyond those asked for: an operation that lacked one may need more.
pub(crate) const SPARE_SEGMENTS: u64 = 8;
/// Empty inode blocks given back in a step.
const STEP_EMPTIED: usize = 256;

/// Result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Pieces moved, and their bytes.
    pub moved: u64,
    pub bytes: u64,
    /// Inode blocks given back.
    pub blocks: u64,
    /// There is more to do.
    pub more: bool,
}

/// Work that a step may still do.
struct Budget {
    looks: u32,
    bytes: u64,
    done: Compaction,
}

impl Budget {
    fn new() -> Budget {
        Budget { looks: STEP_LOOKS, bytes: STEP_BYTES, done: Compaction::default() }
    }

    /// Counts a look; returns false when none is left.
    fn look(&mut self) -> bool {
        self.looks = self.looks.saturating_sub(1);
        self.looks > 0 && self.bytes > 0
    }

    fn moved(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.done.moved += 1;
        self.done.bytes += bytes;
    }
}

/// A pass under way.
struct Pass {
    victims: Victims,
    /// The next block to look at.
    block: u64,
    /// Owners found in the block before it, and where to continue in the last of them.
    owners: Vec<Ino>,
    position: u64,
}

/// State of compaction, between steps.
#[derive(Default)]
pub(crate) struct Compactor {
    pass: Option<Pass>,
    rested_ns: u64,
    /// End of the log when there was no segment that a pass could empty.
    futile: Option<Lsn>,
}

/// Tells background work whether the store is idle.
#[derive(Default)]
pub(crate) struct Idle {
    /// End of the log after the background work's own last step, and when others were last seen to
    /// have moved it.
    seen: Lsn,
    busy_ns: Option<u64>,
}

impl Idle {
    /// Returns whether nobody but the background work has committed for a second.
    pub fn is_idle(&mut self, region: &Region, now: u64) -> bool {
        let last = region.last_lsn();
        if self.seen != last {
            (self.seen, self.busy_ns) = (last, Some(now));
        }
        let idle = self.busy_ns.is_none_or(|busy| now.saturating_sub(busy) >= IDLE_NS);
        if idle {
            self.busy_ns = None;
        }
        idle
    }

    /// Notes that the background work has committed this many bytes while others commit, too.
    pub fn own_bytes(&mut self, bytes: u64) {
        self.seen += bytes;
    }

    /// Notes that the background work has committed.
    pub fn own_work(&mut self, region: &Region) {
        self.seen = region.last_lsn();
    }
}

/// Outcome of compacting for an operation.
#[derive(PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is room.
    Room,
    /// There is none, but slots of segments that were being emptied can be had again: try once
    /// more.
    Slots,
    Nothing,
}

impl<'a> Compacting<'a> {
    /// Compacts until an ordinary transaction can have `segments` (as a run, if more than one) and,
    /// if possible, `spare` more.
    pub(crate) fn compact_for(self, segments: u64, spare: u64) -> Result<Outcome> {
        let mut compactor = self.fs.compactor.lock();
        if self.fs.region.has_room(segments) && self.fs.region.free_segments() >= segments + spare {
            // Another thread made room meanwhile.
            return Ok(Outcome::Room);
        }
        while self.give_back_emptied(STEP_EMPTIED)?.more {}
        let mut undrained = 0;
        for stuck in [StuckSegments::Left, StuckSegments::Included] {
            // A pass that is already under way may not suffice: then another one follows.
            for _ in 0..2 {
                if compactor.pass.is_none() && !self.begin_pass(&mut compactor, segments, stuck) {
                    break;
                }
                while compactor.pass.is_some() && self.fs.region.free_segments() < segments + SPARE_SEGMENTS {
                    undrained += self.pass_step(&mut compactor, &mut Budget::new())?;
                }
                if self.fs.region.has_room(segments) {
                    return Ok(Outcome::Room);
                }
            }
        }
        undrained += self.end_pass(&mut compactor);
        if segments > 1
            && let Some(victims) = self.fs.region.drain_run(segments)
        {
            compactor.pass = Some(Pass { victims, block: 0, owners: Vec::new(), position: 0 });
            while compactor.pass.is_some() {
                self.pass_step(&mut compactor, &mut Budget::new())?;
            }
        }
        Ok(match self.fs.region.has_room(segments) {
            true => Outcome::Room,
            false if undrained > 0 => Outcome::Slots,
            false => Outcome::Nothing,
        })
    }

    /// Compacts in the background; meant to be called ten times a second by a thread that may take
    /// its time. The work of a call is bounded. Nothing is moved while others commit or when there
    /// is nothing to gain.
    pub fn compact_tick(self) -> Result<()> {
        if self.fs.writable().is_err() {
            return Ok(());
        }
        let now = self.fs.clock.monotonic_ns();
        let mut compactor = self.fs.compactor.lock();
        if now.saturating_sub(compactor.rested_ns) >= REST_NS {
            compactor.rested_ns = now;
            self.fs.region.discard_free();
        }
        // On a full host the last room for the log is for operations that free space.
        if self.fs.region.is_log_short() {
            return Ok(());
        }
        for _ in 0..TICK_STEPS {
            if !self.fs.idle.lock().is_idle(&self.fs.region, now) {
                return Ok(());
            }
            let done = match self.step(&mut compactor) {
                // There is no room for the log; nothing is lost by waiting.
                Err(Error::NoSpace(_)) => return Ok(()),
                done => done?,
            };
            let mut more = done.more;
            if !more {
                // Compaction comes first: it moves blocks, and unpacks them for that.
                more = self.pack_inodes_step(STEP_PACKED)?.more;
            }
            self.fs.idle.lock().own_work(&self.fs.region);
            if !more {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Compacts as far as possible, however little it gains.
    pub fn compact(self) -> Result<Compaction> {
        self.fs.writable()?;
        let mut compactor = self.fs.compactor.lock();
        let mut done = self.give_back_emptied(usize::MAX)?;
        let mut free = None;
        while compactor.pass.is_some() || self.begin_pass(&mut compactor, u64::MAX, StuckSegments::Left) {
            let mut budget = Budget::new();
            self.pass_step(&mut compactor, &mut budget)?;
            done.moved += budget.done.moved;
            done.bytes += budget.done.bytes;
            done.blocks += budget.done.blocks;
            // On a full store passes may move pieces to and fro without gaining anything, while all
            // operations wait.
            if compactor.pass.is_none()
                && free.replace(self.fs.region.free_segments()) >= Some(self.fs.region.free_segments())
            {
                break;
            }
        }
        Ok(done)
    }

    /// Does one step of compaction, if enough can be gained. `more` says whether another step would
    /// find work.
    pub fn compact_step(self) -> Result<Compaction> {
        self.fs.writable()?;
        self.step(&mut self.fs.compactor.lock())
    }

    fn step(self, compactor: &mut Compactor) -> Result<Compaction> {
        let given = self.give_back_emptied(STEP_EMPTIED)?;
        if given.blocks > 0 || given.more {
            return Ok(Compaction { more: true, ..given });
        }
        if compactor.pass.is_none() {
            let last = self.fs.region.last_lsn();
            if compactor.futile == Some(last) || !self.is_worth_compacting() {
                return Ok(Compaction::default());
            }
            if !self.begin_pass(compactor, u64::MAX, StuckSegments::Left) {
                compactor.futile = Some(last);
                return Ok(Compaction::default());
            }
        }
        let mut budget = Budget::new();
        self.pass_step(compactor, &mut budget)?;
        Ok(Compaction { more: true, ..budget.done })
    }

    /// Returns whether enough can be gained: 1/32 of the region, or less when little is free.
    fn is_worth_compacting(self) -> bool {
        let Gainable { most: gain, free } = self.fs.region.gainable_segments();
        let segments = self.fs.region.superblock().segment_count;
        let least = if free < segments / 8 { segments / 256 } else { segments / 32 };
        gain >= least.max(4)
    }

    /// Chooses the segments that a pass is to empty; returns false if there are none.
    fn begin_pass(self, compactor: &mut Compactor, segments: u64, stuck: StuckSegments) -> bool {
        let gain = self.fs.region.gainable_segments().most;
        let want = segments.saturating_add(SPARE_SEGMENTS).max(PASS_SEGMENTS_MIN).max(gain / 16);
        let bytes = PASS_BYTES.max(segments.min(1 << 20) << 16);
        let victims = self.fs.region.drain(want, bytes, stuck);
        let begun = !victims.is_empty();
        if begun {
            compactor.pass = Some(Pass { victims, block: 0, owners: Vec::new(), position: 0 });
        }
        begun
    }

    /// Ends the pass, if there is one; returns how many segments are not empty and are used again.
    fn end_pass(self, compactor: &mut Compactor) -> u64 {
        compactor.pass.take().map_or(0, |pass| self.fs.region.end_drain(&pass.victims))
    }

    /// Continues the pass until the budget is spent or the pass ends; returns what
    /// [`Compacting::end_pass`] does.
    fn pass_step(self, compactor: &mut Compactor, budget: &mut Budget) -> Result<u64> {
        let Some(pass) = &mut compactor.pass else { return Ok(0) };
        for _ in 0..STEP_BLOCKS {
            while let Some(&ino) = pass.owners.last() {
                match self.move_pieces(ino, pass.position, &pass.victims, budget) {
                    Ok(Some(position)) => {
                        pass.position = position;
                        return Ok(0);
                    }
                    // Damage in one inode, or a lack of room to unpack it, is no reason to leave
                    // the others where they are.
                    Ok(None) | Err(Error::Corrupt(_) | Error::NoSpace(_)) => {
                        (_, pass.position) = (pass.owners.pop(), 0)
                    }
                    Err(error) => return Err(error),
                }
                if !budget.look() {
                    return Ok(0);
                }
            }
            if pass.block >= self.fs.table.blocks() || self.fs.region.draining_segments() == 0 {
                return Ok(self.end_pass(compactor));
            }
            self.look_at_block(pass, budget)?;
        }
        Ok(0)
    }

    /// Finds the owners among the inodes of the next block; moves the block itself or gives it
    /// back.
    fn look_at_block(self, pass: &mut Pass, budget: &mut Budget) -> Result<()> {
        let (block, victims) = (pass.block, &pass.victims);
        pass.block += 1;
        if block == 0 {
            self.fs.table.move_tables(&self.fs.region, victims)?;
            self.fs.cooling().move_dictionaries(victims)?;
        }
        let (owners, mut used) = (&mut pass.owners, 0);
        let exists = self.fs.table.for_block(&self.fs.region, block, &mut |ino, slot| {
            if let InodeSlot::Used(inode) = slot {
                used += 1;
                if owners::may_own(&inode, victims) {
                    owners.push(ino);
                }
            }
        });
        if exists? && used == 0 {
            budget.done.blocks += self.fs.table.give_back(&self.fs.region, &self.fs.locks, block)? as u64;
        }
        let slot = match self.fs.table.slot_of(&self.fs.region, block) {
            // A block that cannot be reached stays where it is.
            Err(Error::Corrupt(_)) => return Ok(()),
            other => other?,
        };
        if victims.contains(slot) && self.fs.table.move_block(&self.fs.region, &self.fs.locks, block, victims)? {
            budget.moved(slot.capacity());
        }
        if (block + 1).is_multiple_of(TABLE_FANOUT) || block + 1 == self.fs.table.blocks() {
            self.fs.table.tidy_nodes(&self.fs.region, &self.fs.locks, block, victims)?;
        }
        Ok(())
    }

    /// Gives back inode blocks that lost their last inode.
    fn give_back_emptied(self, most: usize) -> Result<Compaction> {
        let mut done =
            Compaction { more: self.fs.table.look_for_emptied(&self.fs.region, most)?, ..Compaction::default() };
        if !self.fs.table.has_emptied() {
            return Ok(done);
        }
        let blocks = self.fs.table.take_emptied(most);
        for &block in &blocks {
            match self.fs.table.give_back(&self.fs.region, &self.fs.locks, block)? {
                true => done.blocks += 1,
                // Another thread is in the way, or has taken a number, and then the block is not
                // empty.
                false => self.fs.table.still_emptied(block),
            }
        }
        let mut last = None;
        for &block in &blocks {
            let node = block / TABLE_FANOUT;
            if last.replace(node) != Some(node) {
                self.fs.table.tidy_nodes(&self.fs.region, &self.fs.locks, block, &Victims::default())?;
            }
        }
        done.more |= done.blocks > 0 && blocks.len() == most;
        Ok(done)
    }
}
