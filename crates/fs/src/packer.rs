//! Packs the data of files that have cooled, and unpacks what is about to change.
//!
//! A file has cooled when nothing about it changed for [`Options::pack_age`](crate::Options::pack_age). Packing looks at a
//! group of 128 KiB at a time: it copies the group under the shared inode lock, compresses it without any lock, and
//! puts the object in its place under the exclusive one if the bytes are still the same. So an operation waits for one copy of a
//! group at most. What does not shrink by an eighth stays where it is and gets a checksum.
//!
//! Rules: no inode lock is waited for, only tried; one transaction for each group, so that a crash leaves each packed or plain;
//! contents, size and times never change. Holes and room preallocated stay: a group with a hole, and a file with slots behind
//! its end, are left alone. An operation that changes a packed group unpacks it by a transaction of its own before; one that
//! only cuts the file leaves the object longer than the file, for a full store must be able to lose bytes.

use std::time::Duration;

use shoal_format::inode::{CHUNK, INODE_SUMMED, INODE_TRUNCATING, Inode, InodeSlot, Layout};
use shoal_format::object::{ChunkRef, Codec, GROUP, OBJECT_HEAD, piece_sizes, sum_in_slot};
use shoal_format::superblock::FEATURE_PACKED;
use shoal_format::{SEGMENT, SlotRef};
use shoal_pack::{Compressor, Method};
use shoal_region::Lsn;

use crate::method;
use crate::objects::{self, Placed};
use crate::planted::{Bug, is_planted};
use crate::small::{self, chunk_ref};
use crate::{Error, Fs, Ino, Result};

/// Work of a tick, ten of which make a second: bytes of files looked at closely, and blocks of the inode table.
const TICK_BYTES: u64 = 4 << 20;
const TICK_BLOCKS: u32 = 2048;
/// A look at all inodes begins this long after the last one at the earliest.
const ROUND: Duration = Duration::from_secs(1);
/// On a full store: how long files have cooled that go first, and the bytes to gain at once.
const PRESSED_AGE: Duration = Duration::from_secs(1);
const PRESSED_BYTES: u64 = 1 << 20;
/// How often a lock is tried for by a caller who asked for packing now.
const PATIENCE: u32 = 1000;

/// What a change does with the room that unpacking takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Use,
    /// It frees more in the end.
    Free,
}

/// Work of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Groups of up to 128 KiB that are packed now.
    pub groups: u64,
    /// Those that did not shrink: they got a checksum.
    pub summed: u64,
    /// Bytes of the region that they took before, and take now.
    pub before: u64,
    pub after: u64,
    /// Groups that somebody was changing.
    pub busy: u64,
}

/// State of packing between steps.
#[derive(Default)]
pub(crate) struct Packer {
    compressor: Option<Compressor>,
    raw: Vec<u8>,
    again: Vec<u8>,
    payload: Vec<u8>,
    round: Option<Round>,
    /// The next round is due then (monotonic, ns), when the log has moved from here or files were too young.
    due_ns: u64,
    settled: Lsn,
    /// Something was left for a later round.
    left: bool,
    /// End of the log when packing for room gained none.
    futile: Option<Lsn>,
}

#[derive(Default)]
struct Round {
    block: u64,
    files: Vec<Ino>,
}

/// What a group was when it was copied.
#[derive(PartialEq, Eq)]
struct Seen {
    generation: u32,
    size: u64,
    method: Method,
    chunks: Vec<SlotRef>,
}

impl Fs {
    /// Makes the groups of `[from, to)` plain that are packed. To be called under the inode's exclusive lock, before the
    /// transaction that changes its data: what the caller has changed of `inode` is not stored.
    #[inline]
    pub(crate) fn unpack_data(&self, ino: Ino, inode: &mut Inode, from: u64, to: u64, purpose: Purpose) -> Result<()> {
        match inode.layout {
            // A packed file does not even grow as it is.
            Layout::Packed if from < to => self.unpack_groups(ino, inode, 0, 1, purpose),
            // The group that holds the end, too: what begins behind the end changes its rest.
            Layout::Chunked if from < to => {
                self.unpack_groups(ino, inode, from / GROUP, to.min(inode.size).div_ceil(GROUP), purpose)
            }
            _ => Ok(()),
        }
    }

    fn unpack_groups(&self, ino: Ino, inode: &mut Inode, first: u64, end: u64, purpose: Purpose) -> Result<()> {
        for group in first..end {
            let object = match chunk_ref(&self.region, inode, group * (GROUP / CHUNK))? {
                ChunkRef::Packed(object) => object,
                ChunkRef::Slot(_) => continue,
            };
            let mut raw = self.objects.unpack(&self.region, &Placed::load(&self.region, object)?)?;
            let mut stored = if is_planted(Bug::UnpackStoresChange) { *inode } else { self.load(ino)? };
            // A cut leaves the object as it is.
            raw.truncate(stored.size.saturating_sub(group * GROUP).min(GROUP) as usize);
            let mut tx = match purpose {
                Purpose::Use => self.region.begin(),
                Purpose::Free => self.region.begin_reclaim(),
            };
            small::unpack_group(&mut tx, &mut stored, group, &raw)?;
            self.store(&mut tx, ino, &stored)?;
            tx.commit()?;
            (inode.layout, inode.root, inode.allocated) = (stored.layout, stored.root, stored.allocated);
        }
        Ok(())
    }

    /// Background work, meant to be called ten times a second: bounded, and nothing while others commit.
    pub fn pack_tick(&self) -> Result<()> {
        let Some(age) = self.options.pack_age.filter(|_| self.packs_data()) else { return Ok(()) };
        // The last room for the log on a full host is for operations that free space.
        if self.writable().is_err() || self.region.is_log_short() {
            return Ok(());
        }
        let now = self.clock.monotonic_ns();
        let Some(mut packer) = self.packer.try_lock() else { return Ok(()) };
        if !self.idle.lock().is_idle(&self.region, now) {
            return Ok(());
        }
        if packer.round.is_none() {
            if now < packer.due_ns || !packer.left && packer.settled == self.region.last_lsn() {
                return Ok(());
            }
            packer.round = Some(Round::default());
            packer.left = false;
        }
        let mut round = packer.round.take().unwrap_or_default();
        let outcome = self.pack_some(&mut packer, &mut round, age);
        self.idle.lock().own_work(&self.region);
        if matches!(outcome, Ok(true)) {
            packer.due_ns = now.saturating_add((age / 4).max(ROUND).as_nanos() as u64);
            packer.settled = self.region.last_lsn();
        } else {
            packer.round = Some(round);
        }
        match outcome {
            // No room now: nothing is lost by waiting.
            Err(Error::NoSpace) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Goes on with a round; true when it is over.
    fn pack_some(&self, packer: &mut Packer, round: &mut Round, age: Duration) -> Result<bool> {
        let (mut bytes, mut blocks) = (TICK_BYTES, TICK_BLOCKS);
        let mut last = self.region.last_lsn();
        while bytes > 0 && blocks > 0 {
            let Some(ino) = round.files.pop() else {
                if round.block >= self.table.blocks() {
                    return Ok(true);
                }
                packer.left |= self.cooled_files(round.block, age, &mut round.files)?;
                round.block += 1;
                blocks -= 1;
                continue;
            };
            if self.region.last_lsn() != last {
                // Somebody is at work: the file's turn comes later.
                round.files.push(ino);
                break;
            }
            let mut done = Packing::default();
            let outcome = self.past_damage(ino, self.pack_file(ino, packer, Some(age), &mut done));
            packer.left |= done.busy > 0;
            bytes = bytes.saturating_sub(done.before.max(4096));
            last = self.region.last_lsn();
            outcome?;
        }
        Ok(false)
    }

    /// Calls `each` for the files of an inode block that may be packed.
    fn plain_files(&self, block: u64, each: &mut dyn FnMut(Ino, &Inode)) -> Result<()> {
        let exists = self.table.for_block(&self.region, block, &mut |ino, slot| {
            if let InodeSlot::Used(inode) = slot
                && may_be_packed(&inode)
            {
                each(ino, &inode);
            }
        });
        exists.map(drop)
    }

    /// Packs plain files for an operation that found no room: first those that have cooled a little, of these those that take
    /// most; then the others, the oldest first. True if that gained any.
    pub(crate) fn pack_for_room(&self, segments: u64) -> Result<bool> {
        let Some(age) = self.options.pack_age.filter(|_| self.packs_data()) else { return Ok(false) };
        let mut packer = self.packer.lock();
        if packer.futile == Some(self.region.last_lsn()) {
            return Ok(false);
        }
        let (mut files, now) = (Vec::new(), self.now());
        for block in 0..self.table.blocks() {
            self.plain_files(block, &mut |ino, inode| {
                if self.method_of(inode) == Method::Off {
                    return;
                }
                // The one that is being written comes last: its next write would unpack it.
                let order = match has_cooled(inode, now, age.min(PRESSED_AGE)) {
                    true => (false, -i128::from(inode.allocated)),
                    false => (true, i128::from(inode.ctime)),
                };
                files.push((order, ino));
            })?;
        }
        files.sort_unstable();
        let want = (segments * SEGMENT + PRESSED_BYTES).max(self.region.superblock().region_bytes / 32);
        let mut done = Packing::default();
        for (_, ino) in files {
            match self.past_damage(ino, self.pack_file(ino, &mut packer, None, &mut done)) {
                Ok(_) => {}
                Err(Error::NoSpace) => break,
                Err(error) => return Err(error),
            }
            if done.before.saturating_sub(done.after) >= want {
                break;
            }
        }
        self.region.strip_empty();
        let has_gained = done.before > done.after;
        packer.futile = (!has_gained).then(|| self.region.last_lsn());
        Ok(has_gained)
    }

    /// Adds the files of an inode block that have cooled and may be packed. True if others have not cooled yet.
    fn cooled_files(&self, block: u64, age: Duration, files: &mut Vec<Ino>) -> Result<bool> {
        let (now, mut warm) = (self.now(), false);
        self.plain_files(block, &mut |ino, inode| match has_cooled(inode, now, age) {
            true => files.push(ino),
            false => warm = true,
        })?;
        Ok(warm)
    }

    /// Packs a file now, however young it is.
    pub fn pack_now(&self, ino: Ino) -> Result<Packing> {
        self.writable()?;
        let (mut packer, mut done) = (self.packer.lock(), Packing::default());
        for _ in 0..PATIENCE {
            done.busy = 0;
            self.met(ino, self.pack_file(ino, &mut packer, None, &mut done))?;
            if done.busy == 0 {
                break;
            }
            std::thread::yield_now();
        }
        Ok(done)
    }

    /// Packs all files now. `progress` is told how many of the inode table's blocks are done, and of how many.
    pub fn pack_all(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Packing> {
        let mut all = Packing::default();
        let (mut block, mut files) = (0, Vec::new());
        while block < self.table.blocks() {
            progress(block, self.table.blocks());
            self.cooled_files(block, Duration::ZERO, &mut files)?;
            for ino in files.drain(..) {
                if let Some(done) = self.past_damage(ino, self.pack_now(ino))? {
                    all.groups += done.groups;
                    all.summed += done.summed;
                    all.before += done.before;
                    all.after += done.after;
                    all.busy += done.busy;
                }
            }
            block += 1;
        }
        Ok(all)
    }

    /// Packs the groups of a file; with `age` only if it has cooled.
    fn pack_file(&self, ino: Ino, packer: &mut Packer, age: Option<Duration>, done: &mut Packing) -> Result<()> {
        self.region.add_feature(FEATURE_PACKED)?;
        let mut group = 0;
        loop {
            let seen = {
                let _lock = self.locks.read(ino);
                let inode = match self.load(ino) {
                    Err(Error::Stale) => return Ok(()),
                    loaded => loaded?,
                };
                let cooled = age.is_none_or(|age| has_cooled(&inode, self.now(), age));
                // Without being asked nothing is packed that is not to be compressed; a file's own word holds always.
                let method = self.method_of(&inode);
                if method == Method::Off && (age.is_some() || method::own(&inode).is_some()) {
                    return Ok(());
                }
                if !cooled || !may_be_packed(&inode) || group * GROUP >= inode.size || self.is_preallocated(&inode)? {
                    return Ok(());
                }
                let chunks = small::plain_group(&self.region, &inode, group)?;
                if chunks.is_some() {
                    packer.raw.resize((inode.size - group * GROUP).min(GROUP) as usize, 0);
                    small::read(&self.region, &self.objects, &inode, group * GROUP, &mut packer.raw)?;
                }
                chunks.map(|chunks| Seen { generation: inode.generation, size: inode.size, method, chunks })
            };
            if let Some(seen) = seen {
                let codec = self.compress(packer, &seen)?;
                self.pack_group(ino, group, &seen, codec, packer, done)?;
            }
            group += 1;
        }
    }

    /// Fills the payload that the copied group is to have; none if that gains too little.
    fn compress(&self, packer: &mut Packer, seen: &Seen) -> Result<Option<Codec>> {
        let plain: u64 = seen.chunks.iter().map(|slot| slot.capacity()).sum();
        let most = (plain / 8 * 7).saturating_sub(OBJECT_HEAD as u64).min(packer.raw.len() as u64 - 1) as usize;
        if packer.compressor.is_none() {
            packer.compressor = Some(Compressor::new().map_err(|_| Error::NoSpace)?);
        }
        let compressor = packer.compressor.as_mut().expect("made above");
        let mut codec = compressor.compress(seen.method, &packer.raw, most, &mut packer.payload);
        if codec.is_none() {
            packer.payload.clone_from(&packer.raw);
            codec = Some(Codec::Stored);
        }
        let sizes = piece_sizes((OBJECT_HEAD + packer.payload.len()) as u64);
        Ok(codec.filter(|_| sizes.iter().sum::<u64>() <= plain / 8 * 7))
    }

    /// Puts an object in the place of a group, if the group still is what was seen.
    fn pack_group(
        &self,
        ino: Ino,
        group: u64,
        seen: &Seen,
        codec: Option<Codec>,
        packer: &mut Packer,
        done: &mut Packing,
    ) -> Result<()> {
        let Some(_lock) = self.locks.try_write(ino) else {
            done.busy += 1;
            return Ok(());
        };
        // The holder of a file's data lock copies it without the inode lock.
        if self.data_locks.is_taken(ino) {
            done.busy += 1;
            return Ok(());
        }
        let mut inode = match self.load(ino) {
            Err(Error::Stale) => return Ok(()),
            loaded => loaded?,
        };
        let may = may_be_packed(&inode) && inode.generation == seen.generation && inode.size == seen.size;
        if !may
            || self.method_of(&inode) != seen.method
            || small::plain_group(&self.region, &inode, group)?.as_ref() != Some(&seen.chunks)
        {
            return Ok(());
        }
        packer.again.resize(packer.raw.len(), 0);
        small::read(&self.region, &self.objects, &inode, group * GROUP, &mut packer.again)?;
        if packer.again != packer.raw {
            return Ok(());
        }
        let before = inode.allocated;
        let mut tx = self.region.begin_reclaim();
        let bytes = packer.raw.len() as u64;
        match codec {
            Some(codec) => {
                let object = objects::make(&mut tx, &mut inode, codec, bytes, &packer.payload)?;
                small::pack_group(&mut tx, &mut inode, group, &seen.chunks, object, false)?;
                done.groups += 1;
            }
            None if inode.layout == Layout::Direct => {
                inode.flags |= INODE_SUMMED;
                inode.rdev = sum_in_slot(&packer.raw);
                done.summed += 1;
            }
            None => {
                let object = objects::make_in_place(&mut tx, &mut inode, &seen.chunks, &packer.raw)?;
                small::pack_group(&mut tx, &mut inode, group, &seen.chunks, object, true)?;
                done.summed += 1;
            }
        }
        self.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        let plain: u64 = seen.chunks.iter().map(|slot| slot.capacity()).sum();
        done.before += plain;
        done.after += (plain + inode.allocated).saturating_sub(before);
        Ok(())
    }

    /// Has the file room behind its end that was asked for?
    fn is_preallocated(&self, inode: &Inode) -> Result<bool> {
        if inode.layout == Layout::Direct {
            // A file that was written grows by less.
            let capacity = inode.root.capacity();
            return Ok(capacity > 64 && inode.size * 2 <= capacity);
        }
        for chunk in inode.size.div_ceil(CHUNK)..small::chunk_count(inode) {
            if chunk_ref(&self.region, inode, chunk)? != ChunkRef::Slot(SlotRef::NONE) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Has the file data in the region that might be plain?
pub(crate) fn may_be_packed(inode: &Inode) -> bool {
    inode.is_file()
        && inode.nlink > 0
        && inode.size > 0
        && inode.flags & (INODE_TRUNCATING | INODE_SUMMED) == 0
        && matches!(inode.layout, Layout::Direct | Layout::Chunked)
}

fn has_cooled(inode: &Inode, now: i64, age: Duration) -> bool {
    u128::try_from(now.saturating_sub(inode.ctime)).is_ok_and(|idle| idle >= age.as_nanos())
}
