//! Moves payloads out: selects them, gathers them into whole blocks, and writes the records that
//! make their heads refer to these.
//!
//! Rules: inode locks are only tried, never waited for. What has changed since it was copied stays
//! in the region. Each object has its own transaction.
//! Left out: when (`spill`), and the blocks (`room`).

use shoal_format::BULK_BLOCK;
use shoal_format::SlotRef;
use shoal_format::inode::{INODE_SUMMED, INODE_TRUNCATING, Inode, InodeSlot};
use shoal_format::object::{Codec, GROUP, OBJECT_HEAD, Object, SPILL_PLACE, SPILL_UNIT, SpillPlace};
use shoal_region::LetGo;

use super::{Which, Worker};
use crate::cold::cooled::has_data;
use crate::cold::objects;
use crate::cold::owner::{Group, exchange, object_of};
use crate::cold::packer::Seen;
use crate::inode::removal::Follows;
use crate::planted::{Bug, is_planted};
use crate::rooms::Spilling;
use crate::small::{self, Replaced};
use crate::{Error, Ino, Result};

/// Bytes of payloads written at once.
const BATCH_BYTES: u64 = 4 << 20;
/// A group that frees less than this stays where it is (bytes).
const GAIN_MIN: u64 = 96;
const HEAD_BYTES: u64 = (OBJECT_HEAD + SPILL_PLACE) as u64;

/// Result of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    /// Bytes of memory that were freed.
    pub gained: u64,
    /// Blocks of the inode table that the hand has passed.
    pub blocks: u64,
}

/// What a group was when it was copied.
#[derive(PartialEq, Eq)]
pub(super) enum Form {
    Object(Object),
    Plain(Vec<SlotRef>),
    /// Already on bulk storage: it moves within it.
    Spilled(Object, SpillPlace),
}

/// A group that is to be spilled.
pub(super) struct Candidate {
    pub ino: Ino,
    pub generation: u32,
    pub group: u64,
    pub form: Form,
    /// The bytes or the payload as they were found.
    pub copied: Vec<u8>,
    pub payload: Option<Vec<u8>>,
    pub code: (Codec, u16),
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of the region that spilling the group frees.
    pub gain: u64,
    /// Where the payload begins in its batch.
    pub at: u64,
}

/// Groups that are written together.
#[derive(Default)]
pub(super) struct Batch {
    candidates: Vec<Candidate>,
    buffer: Vec<u8>,
}

impl Batch {
    pub fn push(&mut self, mut candidate: Candidate) {
        candidate.at = self.buffer.len() as u64;
        self.buffer.extend_from_slice(candidate.payload());
        self.buffer.resize(self.buffer.len().next_multiple_of(SPILL_UNIT as usize), 0);
        self.candidates.push(candidate);
    }

    /// Returns the number of blocks that the batch takes.
    pub fn blocks(&self) -> u64 {
        (self.buffer.len() as u64).div_ceil(BULK_BLOCK)
    }

    pub fn is_full(&self) -> bool {
        self.buffer.len() as u64 >= BATCH_BYTES
    }
}

impl Candidate {
    fn payload(&self) -> &[u8] {
        self.payload.as_ref().unwrap_or(&self.copied)
    }
}

impl<'a> Spilling<'a> {
    /// Spills what the hand finds, up to `want` bytes or a full batch. The hand passes up to `most`
    /// blocks of inodes.
    pub(super) fn spill_batch(self, worker: &mut Worker, want: u64, most: u64, which: Which) -> Result<Done> {
        let mut batch = Batch::default();
        let (mut done, mut gain) = (Done::default(), 0);
        let blocks = self.fs.table.blocks();
        while done.blocks < most.min(blocks.max(1)) && gain < want && !batch.is_full() {
            let block = if worker.hand < blocks { worker.hand } else { 0 };
            worker.hand = block + 1;
            done.blocks += 1;
            for ino in self.files_to_spill(block, which)? {
                let found = self.copy_groups(worker, ino, &mut batch);
                gain += self.fs.past_damage(ino, found)?.unwrap_or(0);
            }
        }
        done.gained = self.write_batch(worker, batch)?;
        Ok(done)
    }

    /// Writes a batch and makes the heads refer to it. Returns the bytes gained.
    pub(super) fn write_batch(self, worker: &mut Worker, batch: Batch) -> Result<u64> {
        let Batch { candidates, mut buffer } = batch;
        if candidates.is_empty() {
            return Ok(0);
        }
        buffer.resize(buffer.len().next_multiple_of(BULK_BLOCK as usize), 0);
        let at = self.write_spilled(worker, &buffer)?;
        let (first, end) = (at / BULK_BLOCK, (at + buffer.len() as u64) / BULK_BLOCK);
        drop(buffer);
        let (mut gained, mut outcome) = (0, Ok(()));
        for candidate in &candidates {
            match self.fs.past_damage(candidate.ino, self.spill_group(candidate, at)) {
                Ok(done) => gained += done.unwrap_or(0),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // Groups that changed meanwhile stayed where they were, so nobody owns their parts of the
        // blocks.
        self.fs.spill.map.mapped(first, end);
        outcome.map(|()| gained)
    }

    /// Returns the files of an inode block that have data to spill.
    fn files_to_spill(self, block: u64, which: Which) -> Result<Vec<Ino>> {
        let mut files = Vec::new();
        self.fs.table.for_block(&self.fs.region, block, &mut |ino, slot| {
            if let InodeSlot::Used(inode) = slot
                && may_spill(&inode)
                && (!self.fs.spill.warm.pass(ino) || which == Which::All)
            {
                files.push(ino);
            }
        })?;
        Ok(files)
    }

    /// Copies a file's data in the region to the batch. Returns how many bytes of the region that
    /// would free.
    fn copy_groups(self, worker: &mut Worker, ino: Ino, batch: &mut Batch) -> Result<u64> {
        let (mut group, mut gain) = (0, 0);
        loop {
            let copied = {
                let _lock = self.fs.locks.read(ino);
                let inode = match self.fs.load(ino) {
                    Err(Error::Stale) => return Ok(gain),
                    loaded => loaded?,
                };
                if !may_spill(&inode) || group * GROUP >= inode.size {
                    return Ok(gain);
                }
                self.copy_group(ino, &inode, group)?
                    .map(|candidate| (candidate, self.fs.tree().method_of(&inode), inode))
            };
            if let Some((mut candidate, method, inode)) = copied {
                if let Form::Plain(chunks) = &candidate.form
                    && inode.flags & INODE_SUMMED == 0
                {
                    // Only without a dictionary: the newest may be old, and forgotten, when the
                    // group is spilled.
                    let seen = Seen { generation: inode.generation, size: u64::MAX, method, chunks: chunks.clone() };
                    if let Some((code, payload)) =
                        self.fs.cooling().compressed(&mut worker.packer, &seen, &candidate.copied)?
                    {
                        (candidate.code, candidate.payload) = (code, Some(payload));
                    }
                }
                gain += candidate.gain;
                batch.push(candidate);
            }
            group += 1;
        }
    }

    /// Copies a group as it is in the region, if it is there and worth spilling. The caller holds
    /// the inode's lock.
    fn copy_group(self, ino: Ino, inode: &Inode, group: u64) -> Result<Option<Candidate>> {
        let (form, copied, code, bytes, takes) = match object_of(&self.fs.region, inode, group)? {
            Some(placed) => {
                if placed.place.is_some() || placed.capacity() < HEAD_BYTES + GAIN_MIN {
                    return Ok(None);
                }
                let object = placed.object;
                let codec = if object.codec == Codec::InPlace { Codec::Stored } else { object.codec };
                let payload = placed.payload(&self.fs.region)?;
                let code = (codec, object.dictionary);
                (Form::Object(object), payload, code, object.bytes.into(), placed.capacity())
            }
            None => {
                let Some(chunks) = small::plain_group(&self.fs.region, inode, group)? else { return Ok(None) };
                let takes: u64 = chunks.iter().map(|slot| slot.capacity()).sum();
                if takes < HEAD_BYTES + GAIN_MIN || self.fs.cooling().is_preallocated(inode)? {
                    return Ok(None);
                }
                let mut raw = vec![0; (inode.size - group * GROUP).min(GROUP) as usize];
                small::read(&self.fs.region, &self.fs.objects, inode, group * GROUP, &mut raw)?;
                let bytes = raw.len() as u64;
                (Form::Plain(chunks), raw, (Codec::Stored, 0), bytes, takes)
            }
        };
        let (generation, gain) = (inode.generation, takes - HEAD_BYTES);
        Ok(Some(Candidate { ino, generation, group, form, copied, payload: None, code, bytes, gain, at: 0 }))
    }

    /// Makes a group's head refer to its payload, which is durable behind byte `base` of the spill
    /// file, if the group has not changed since it was copied. Returns the bytes gained.
    fn spill_group(self, seen: &Candidate, base: u64) -> Result<u64> {
        let Some(_lock) = self.fs.locks.try_write(seen.ino) else { return Ok(0) };
        // The holder of a file's data lock may be copying the file without the inode lock.
        if self.fs.data_locks.is_taken(seen.ino) {
            return Ok(0);
        }
        let mut inode = match self.fs.load(seen.ino) {
            Err(Error::Stale) => return Ok(0),
            loaded => loaded?,
        };
        if inode.generation != seen.generation || !may_spill(&inode) || seen.group * GROUP >= inode.size {
            return Ok(0);
        }
        if !self.is_as_copied(&inode, seen)? && !is_planted(Bug::SpilledUnseen) {
            return Ok(0);
        }
        let place = SpillPlace(base + seen.at);
        let object = objects::spilled_head(seen.code, seen.bytes, seen.payload());
        let mut tx = self.fs.region.begin_reclaim();
        let old = object_of(&tx, &inode, seen.group)?;
        let mut owner = Group { inode: &mut inode, number: seen.group };
        let head = objects::make_spilled(&mut tx, &mut owner, &object, place)?;
        match old {
            Some(old) => exchange(&mut tx, &mut owner, &old, head)?,
            None => {
                let Form::Plain(chunks) = &seen.form else { return Ok(0) };
                small::forget_sum(&mut inode);
                small::pack_group(&mut tx, &mut inode, seen.group, chunks, head, Replaced::Freed)?;
            }
        }
        // A full store must be able to spill.
        let mut removal = self.fs.tree().removal();
        removal.store(&mut tx, seen.ino, &inode, Follows::Nothing)?;
        // Added before the commit: the next removal may come right after it.
        let range = LetGo { at: place.0, bytes: object.spilled_bytes(), stood_for: seen.bytes };
        if !is_planted(Bug::SpilledNotCounted) {
            self.fs.spill.map.add(&range);
        }
        self.fs.packing.commit_spilled(tx).inspect_err(|_| self.fs.spill.map.remove(&range))?;
        removal.committed();
        Ok(seen.gain)
    }

    /// Returns whether the group is still what was copied. The caller holds the inode's lock.
    fn is_as_copied(self, inode: &Inode, seen: &Candidate) -> Result<bool> {
        if let Form::Spilled(object, place) = seen.form {
            let now = object_of(&self.fs.region, inode, seen.group)?;
            return Ok(now.is_some_and(|now| (now.object, now.place) == (object, Some(place))));
        }
        let now = self.copy_group(seen.ino, inode, seen.group)?;
        Ok(now.is_some_and(|now| now.form == seen.form && now.copied == seen.copied))
    }
}

/// Returns whether the file has data in the region that may be spilled.
fn may_spill(inode: &Inode) -> bool {
    let is_short = inode.allocated.saturating_sub(inode.xattr.capacity()) < HEAD_BYTES + GAIN_MIN;
    has_data(inode) && inode.nlink > 0 && inode.flags & INODE_TRUNCATING == 0 && !is_short
}
