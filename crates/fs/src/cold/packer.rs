//! Packs the data of files that have cooled, and unpacks what is about to change.
//!
//! A file has cooled when nothing about it changed for
//! [`Options::pack_age`](crate::Options::pack_age). Packing looks at a group of 128 KiB at a time.
//! It copies the group under the shared inode lock, compresses it without any lock, and puts the
//! object in its place under the exclusive lock if the bytes are still the same. So an operation
//! waits for at most one copy of a group. A group that does not shrink by an eighth stays where it
//! is and gets a checksum.
//!
//! Rules: inode locks are only tried, never waited for. Each group has a transaction of its own, so
//! that a crash leaves it packed or plain. Contents, size and times never change. Holes and
//! preallocated room stay: a group with a hole, and a file with slots behind its end, are left
//! alone. An operation that changes a packed group first unpacks it in a transaction of its own. An
//! operation that only truncates the file leaves the object longer than the file, because a full
//! store must be able to lose bytes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use shoal_format::inode::{CHUNK, INODE_SUMMED, Inode, InodeSlot, Layout};
use shoal_format::object::{ChunkRef, Codec, GROUP, OBJECT_HEAD, piece_sizes, sum_in_slot};
use shoal_format::superblock::FEATURE_PACKED;
use shoal_format::{SEGMENT, SlotRef};
use shoal_pack::{Compressor, Method, takes_dictionary};
use shoal_region::Lsn;

use crate::cold::cooled::{Packing, has_cooled, may_be_packed};
use crate::cold::objects;
use crate::cold::owner::{Group, object_of};
use crate::cold::share::{Load, share_percent};
use crate::cold::training::{SHORT_FILES, Training, Users};
use crate::inode::changed::next_in;
use crate::method;
use crate::planted::{Bug, is_planted};
use crate::rooms::Cooling;
use crate::small::{self, Replaced, chunk_ref};
use crate::{Error, Ino, Result};

/// Work of a tick, ten of which make a second: bytes of files looked at closely, and blocks of the
/// inode table.
const TICK_BYTES: u64 = 4 << 20;
const TICK_BLOCKS: u32 = 2048;
/// Least time between two rounds over the inodes.
const ROUND: Duration = Duration::from_secs(1);
/// On a full store: the age from which files go first, and the bytes to gain at once.
const PRESSED_AGE: Duration = Duration::from_secs(1);
const PRESSED_BYTES: u64 = 1 << 20;
/// How often a lock is tried for a caller that asked for packing now.
const PATIENCE: u32 = 1000;

/// Why data is unpacked, which decides what room that takes and from where.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Use,
    /// Like `Use`, but the chunks get room for the write that follows, so that they are not moved
    /// again.
    Write,
    /// The change frees more in the end, so unpacking may use the reserve.
    Free,
}

/// State of packing between steps.
#[derive(Default)]
pub(crate) struct Packer {
    compressor: Option<Compressor>,
    raw: Vec<u8>,
    again: Vec<u8>,
    payload: Vec<u8>,
    round: Option<Round>,
    /// Blocks that the last round looked at because they had changed. The next round looks again,
    /// and finds changes that were not committed then.
    looked_at: Vec<u64>,
    load: Load,
    /// When the next round is due (monotonic, ns), if the log has moved from `settled` or files
    /// were too young.
    due_ns: u64,
    settled: Lsn,
    /// Something was left for a later round.
    left: bool,
    /// End of the log when packing for room gained nothing.
    futile: Option<Lsn>,
    pub(crate) training: Training,
}

/// A round over the inode blocks that have changed.
#[derive(Default)]
struct Round {
    due: Vec<u64>,
    block: u64,
    files: Vec<Ino>,
    /// Short files, which are packed after the dictionary for them has been trained.
    short: Vec<Ino>,
    users: Option<Users>,
}

/// When a step of packing ends, besides its own limits.
enum End {
    /// When somebody else commits.
    Others,
    /// When it has used its share (monotonic time, ns; bytes of the log).
    Used { until_ns: u64, log_bytes: u64 },
}

/// A codec, the number of its dictionary, and what they make of a group.
pub(crate) type Compressed = ((Codec, u16), Vec<u8>);

/// What a group was when it was copied.
#[derive(PartialEq, Eq)]
pub(crate) struct Seen {
    pub generation: u32,
    pub size: u64,
    pub method: Method,
    pub chunks: Vec<SlotRef>,
}

impl<'a> Cooling<'a> {
    /// Makes the packed groups of `[from, to)` plain. To be called under the inode's exclusive
    /// lock, before the transaction that changes the data. What the caller has changed in `inode`
    /// is not stored.
    #[inline]
    pub(crate) fn unpack_data(self, ino: Ino, inode: &mut Inode, from: u64, to: u64, purpose: Purpose) -> Result<()> {
        match inode.layout {
            // A packed file has to be unpacked even to grow.
            Layout::Packed if from < to => self.unpack_groups(ino, inode, (0, 1), to, purpose),
            // Includes the group with the file's end: a change that begins behind the end changes
            // the rest of that group.
            Layout::Chunked if from < to => {
                self.unpack_groups(ino, inode, (from / GROUP, to.min(inode.size).div_ceil(GROUP)), to, purpose)
            }
            _ => Ok(()),
        }
    }

    fn unpack_groups(
        self,
        ino: Ino,
        inode: &mut Inode,
        (first, end): (u64, u64),
        to: u64,
        purpose: Purpose,
    ) -> Result<()> {
        for group in first..end {
            let Some(placed) = object_of(&self.fs.region, inode, group)? else { continue };
            if placed.place.is_some() {
                return Err(Error::Spilled { ino, group });
            }
            let mut raw = self.fs.objects.unpack(&self.fs.region, &placed)?;
            let mut stored = if is_planted(Bug::UnpackStoresChange) { *inode } else { self.fs.load(ino)? };
            // A truncation leaves the object as it is.
            raw.truncate(stored.size.saturating_sub(group * GROUP).min(GROUP) as usize);
            let mut tx = match purpose {
                Purpose::Use | Purpose::Write => self.fs.region.begin(),
                Purpose::Free => self.fs.region.begin_reclaim(),
            };
            let room = if purpose == Purpose::Write { to - group * GROUP } else { 0 };
            small::unpack_group(&mut tx, &mut stored, group, &raw, room)?;
            self.fs.store(&mut tx, ino, &stored)?;
            self.fs.packing.commit_unpacked(tx, raw.len() as u64, 0)?;
            (inode.layout, inode.root, inode.allocated) = (stored.layout, stored.root, stored.allocated);
        }
        Ok(())
    }

    /// Packs in the background; meant to be called ten times a second. The work of a call is
    /// bounded. While others commit it is also limited to
    /// [`Options::pack_load`](crate::Options::pack_load).
    pub fn pack_tick(self) -> Result<()> {
        self.fs.packs_on.store(false, Relaxed);
        let Some(age) = self.fs.options.pack_age else { return Ok(()) };
        // On a full host the last room for the log is for operations that free space.
        if self.fs.writable().is_err() || self.fs.region.is_log_short() {
            return Ok(());
        }
        let now = self.fs.clock.monotonic_ns();
        let Some(mut packer) = self.fs.packer.try_lock() else { return Ok(()) };
        let is_idle = self.fs.idle.lock().is_idle(&self.fs.region, now);
        let (last, own) = (self.fs.region.last_lsn(), self.fs.packing.all_log_bytes());
        if is_idle {
            packer.load.rest(now, last, own);
            let outcome = self.pack_data(&mut packer, age, now, &End::Others);
            self.fs.idle.lock().own_work(&self.fs.region);
            return outcome.map(drop);
        }
        let space = self.fs.region.space();
        let (size, free) = (space.region_bytes - space.fixed_bytes, space.free_bytes);
        let percent = share_percent(self.fs.options.pack_load, size.saturating_sub(free), size);
        let allowed = packer.load.earn(now, percent, last, own);
        if allowed.ns == 0 || allowed.log_bytes == 0 {
            return Ok(());
        }
        let begun = self.fs.packing.log_bytes();
        let end = End::Used { until_ns: now + allowed.ns, log_bytes: begun + allowed.log_bytes };
        let outcome = self.pack_data(&mut packer, age, now, &end).and_then(|is_over| match is_over {
            true => self.pack_inodes_until(&end),
            false => Ok(true),
        });
        packer.load.spend(self.fs.clock.monotonic_ns().saturating_sub(now));
        self.fs.idle.lock().own_bytes(self.fs.packing.log_bytes() - begun);
        self.fs.packs_on.store(outcome? && percent >= 100, Relaxed);
        Ok(())
    }

    /// Returns whether the last [`Cooling::pack_tick`] has more to do, and may do it without a
    /// pause.
    pub fn packs_on(self) -> bool {
        self.fs.packs_on.load(Relaxed)
    }

    /// Returns whether nothing is left to pack, as far as this is known without a look.
    pub(crate) fn has_packed(self) -> bool {
        if self.fs.options.pack_age.is_none() || !self.fs.tree().packs_data() && !self.fs.options.pack_inodes {
            return true;
        }
        let packer = self.fs.packer.try_lock();
        packer
            .is_some_and(|packer| packer.round.is_none() && !packer.left && packer.settled == self.fs.region.last_lsn())
    }

    /// Packs inodes until `end`; returns true if there are more.
    fn pack_inodes_until(self, end: &End) -> Result<bool> {
        while !self.is_over(end) {
            if !self.fs.compacting().pack_inodes_beside()?.more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_over(self, end: &End) -> bool {
        match *end {
            End::Others => false,
            End::Used { until_ns, log_bytes } => {
                self.fs.clock.monotonic_ns() >= until_ns || self.fs.packing.log_bytes() >= log_bytes
            }
        }
    }

    /// Continues packing data; returns true if there is nothing to do now.
    fn pack_data(self, packer: &mut Packer, age: Duration, now: u64, end: &End) -> Result<bool> {
        if !self.fs.tree().packs_data() && !self.fs.options.pack_inodes {
            return Ok(true);
        }
        if packer.round.is_none() {
            if now < packer.due_ns || !packer.left && packer.settled == self.fs.region.last_lsn() {
                return Ok(true);
            }
            let fresh = self.fs.table.plain_changed().take();
            let mut due: Vec<u64> = match packer.looked_at.is_empty() {
                true => fresh.clone(),
                false => fresh.iter().zip(&packer.looked_at).map(|(one, other)| one | other).collect(),
            };
            packer.looked_at = fresh;
            let users = self.look_for_users(&mut packer.training);
            if users.is_some() {
                due.fill(u64::MAX);
            }
            packer.round = Some(Round { due, users, ..Round::default() });
            packer.left = false;
        }
        let mut round = packer.round.take().unwrap_or_default();
        let outcome = self.pack_some(packer, &mut round, age, end);
        if matches!(outcome, Ok(true)) {
            packer.due_ns = now.saturating_add((age / 4).max(ROUND).as_nanos() as u64);
            packer.settled = self.fs.region.last_lsn();
        } else {
            packer.round = Some(round);
        }
        match outcome {
            // There is no room now; nothing is lost by waiting.
            Err(Error::NoSpace(_)) => Ok(false),
            outcome => outcome,
        }
    }

    /// Continues a round; returns true when it is over.
    fn pack_some(self, packer: &mut Packer, round: &mut Round, age: Duration, end: &End) -> Result<bool> {
        let (mut bytes, mut blocks) = (TICK_BYTES, TICK_BLOCKS);
        let mut last = self.fs.region.last_lsn();
        while bytes > 0 && blocks > 0 && !self.is_over(end) {
            let Some(ino) = round.files.pop() else {
                round.block = next_in(&round.due, round.block);
                let is_last = round.block >= self.fs.table.blocks();
                if is_last && round.short.is_empty() {
                    self.forget_idle(round.users.as_ref())?;
                    return Ok(true);
                }
                if is_last || round.short.len() >= SHORT_FILES {
                    self.train(&mut packer.training, &round.short)?;
                    round.files.append(&mut round.short);
                    continue;
                }
                self.note_users(round.block, round.users.as_mut())?;
                if self.cooled_files(round.block, Some(age), &mut round.files, &mut round.short)? {
                    self.fs.table.plain_changed().set(round.block);
                    packer.left = true;
                }
                round.block += 1;
                blocks -= 1;
                continue;
            };
            if matches!(end, End::Others) && self.fs.region.last_lsn() != last {
                // Somebody else is at work: the file's turn comes later.
                round.files.push(ino);
                break;
            }
            let mut done = Packing::default();
            let outcome = self.fs.past_damage(ino, self.pack_file(ino, packer, Some(age), &mut done));
            if done.busy > 0 {
                self.fs.table.plain_changed().set(ino.block());
                packer.left = true;
            }
            bytes = bytes.saturating_sub(done.before.max(4096));
            last = self.fs.region.last_lsn();
            outcome?;
        }
        Ok(false)
    }

    /// Calls `each` for the files and directories of an inode block that may be packed.
    fn plain_files(self, block: u64, each: &mut dyn FnMut(Ino, &Inode)) -> Result<()> {
        let exists = self.fs.table.for_block(&self.fs.region, block, &mut |ino, slot| {
            if let InodeSlot::Used(inode) = slot
                && (may_be_packed(&inode) || self.fs.tree().packs_directory(&inode))
            {
                each(ino, &inode);
            }
        });
        exists.map(drop)
    }

    /// Packs plain files for an operation that found no room: first files that have cooled a
    /// little, the largest first, then the others, the oldest first. Returns true if that gained
    /// any room.
    pub(crate) fn pack_for_room(self, segments: u64) -> Result<bool> {
        let Some(age) = self.fs.options.pack_age.filter(|_| self.fs.tree().packs_data()) else { return Ok(false) };
        let mut packer = self.fs.packer.lock();
        if packer.futile == Some(self.fs.region.last_lsn()) {
            return Ok(false);
        }
        let (mut files, now) = (Vec::new(), self.fs.now());
        for block in 0..self.fs.table.blocks() {
            self.plain_files(block, &mut |ino, inode| {
                // A directory of one bucket gains little, and would refuse the next name.
                let is_small = inode.layout == Layout::DirPacked;
                if is_small || inode.is_file() && self.fs.tree().method_of(inode) == Method::Off {
                    return;
                }
                // A file that is being written comes last, and a directory in use is left alone:
                // the next change would unpack it.
                match has_cooled(inode, now, age.min(PRESSED_AGE)) {
                    true => files.push(((false, -i128::from(inode.allocated)), ino)),
                    false if inode.is_dir() => {}
                    false => files.push(((true, i128::from(inode.ctime)), ino)),
                }
            })?;
        }
        files.sort_unstable();
        let want = (segments * SEGMENT + PRESSED_BYTES).max(self.fs.region.superblock().region_bytes / 32);
        let mut done = Packing::default();
        for (_, ino) in files {
            match self.fs.past_damage(ino, self.pack_file(ino, &mut packer, None, &mut done)) {
                Ok(_) => {}
                Err(Error::NoSpace(_)) => break,
                Err(error) => return Err(error),
            }
            if done.before.saturating_sub(done.after) >= want {
                break;
            }
        }
        self.fs.region.strip_empty();
        let has_gained = done.before > done.after;
        packer.futile = (!has_gained).then(|| self.fs.region.last_lsn());
        Ok(has_gained)
    }

    /// Adds the files of an inode block that may be packed and have cooled; without `age`, also
    /// those that have not. Returns true if others have not cooled yet.
    fn cooled_files(
        self,
        block: u64,
        age: Option<Duration>,
        files: &mut Vec<Ino>,
        short: &mut Vec<Ino>,
    ) -> Result<bool> {
        let (now, mut warm) = (self.fs.now(), false);
        self.plain_files(block, &mut |ino, inode| {
            let method = if inode.is_dir() { Method::Off } else { self.fs.tree().method_of(inode) };
            if age.is_some_and(|age| !has_cooled(inode, now, age)) {
                warm = true;
            } else if takes_dictionary(method, inode.size) {
                short.push(ino);
            } else if inode.is_dir() || age.is_none() || method != Method::Off {
                files.push(ino);
            }
        })?;
        Ok(warm)
    }

    /// Packs a file now, whatever its age.
    pub fn pack_now(self, ino: Ino) -> Result<Packing> {
        self.fs.writable()?;
        let (mut packer, mut done) = (self.fs.packer.lock(), Packing::default());
        for _ in 0..PATIENCE {
            done.busy = 0;
            self.fs.met(ino, self.pack_file(ino, &mut packer, None, &mut done))?;
            if done.busy == 0 {
                break;
            }
            std::thread::yield_now();
        }
        Ok(done)
    }

    /// Packs all files now. Calls `progress` with the number of inode blocks done, and their total.
    pub fn pack_all(self, progress: &mut dyn FnMut(u64, u64)) -> Result<Packing> {
        let mut all = Packing::default();
        let (mut block, mut files, mut short) = (0, Vec::new(), Vec::new());
        let mut users = Some(self.idle_dictionaries());
        while block < self.fs.table.blocks() {
            progress(block, self.fs.table.blocks());
            self.note_users(block, users.as_mut())?;
            self.cooled_files(block, None, &mut files, &mut short)?;
            if block + 1 == self.fs.table.blocks() || short.len() >= SHORT_FILES {
                self.train(&mut self.fs.packer.lock().training, &short)?;
                files.append(&mut short);
            }
            for ino in files.drain(..) {
                if let Some(done) = self.fs.past_damage(ino, self.pack_now(ino))? {
                    all += done;
                }
            }
            block += 1;
        }
        self.forget_idle(users.as_ref())?;
        Ok(all)
    }

    /// Packs a file or a directory; with `age` only if it has cooled.
    fn pack_file(self, ino: Ino, packer: &mut Packer, age: Option<Duration>, done: &mut Packing) -> Result<()> {
        let loaded = {
            let _lock = self.fs.locks.read(ino);
            self.fs.load(ino)
        };
        match loaded {
            Err(Error::Stale) => Ok(()),
            Err(error) => Err(error),
            Ok(inode) if inode.is_dir() => self.fs.tree().pack_directory(ino, age, done),
            Ok(_) => self.pack_groups(ino, packer, age, done),
        }
    }

    /// Packs the groups of a file.
    fn pack_groups(self, ino: Ino, packer: &mut Packer, age: Option<Duration>, done: &mut Packing) -> Result<()> {
        self.fs.region.add_feature(FEATURE_PACKED)?;
        let mut group = 0;
        loop {
            let seen = {
                let _lock = self.fs.locks.read(ino);
                let inode = match self.fs.load(ino) {
                    Err(Error::Stale) => return Ok(()),
                    loaded => loaded?,
                };
                let cooled = age.is_none_or(|age| has_cooled(&inode, self.fs.now(), age));
                // A file with method `Off` is packed only on request, and never if the method is
                // its own.
                let method = self.fs.tree().method_of(&inode);
                if method == Method::Off && (age.is_some() || method::own(&inode).is_some()) {
                    return Ok(());
                }
                if !cooled || !may_be_packed(&inode) || group * GROUP >= inode.size || self.is_preallocated(&inode)? {
                    return Ok(());
                }
                let chunks = small::plain_group(&self.fs.region, &inode, group)?;
                if chunks.is_some() {
                    packer.raw.resize((inode.size - group * GROUP).min(GROUP) as usize, 0);
                    small::read(&self.fs.region, &self.fs.objects, &inode, group * GROUP, &mut packer.raw)?;
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

    /// Compresses the copied group into `packer.payload`; returns `None` if that gains too little.
    fn compress(self, packer: &mut Packer, seen: &Seen) -> Result<Option<(Codec, u16)>> {
        let plain: u64 = seen.chunks.iter().map(|slot| slot.capacity()).sum();
        let most = (plain / 8 * 7).saturating_sub(OBJECT_HEAD as u64).min(packer.raw.len() as u64 - 1) as usize;
        if packer.compressor.is_none() {
            packer.compressor = Some(Compressor::new().map_err(|_| Error::NO_SPACE)?);
        }
        let compressor = packer.compressor.as_mut().expect("made above");
        // The size of the whole file decides, so that a search for a dictionary's users can go by
        // file size.
        let dictionary =
            takes_dictionary(seen.method, seen.size).then(|| self.fs.objects.dictionaries.newest()).flatten();
        let dictionary = dictionary.as_deref();
        let number = dictionary.map_or(0, |dictionary| dictionary.number);
        let codec = compressor.compress(seen.method, &packer.raw, most, &mut packer.payload, dictionary);
        let mut codec = codec.map(|codec| (codec, number));
        if codec.is_none() {
            packer.payload.clone_from(&packer.raw);
            codec = Some((Codec::Stored, 0));
        }
        let sizes = piece_sizes((OBJECT_HEAD + packer.payload.len()) as u64);
        Ok(codec.filter(|_| sizes.iter().sum::<u64>() <= plain / 8 * 7))
    }

    /// Returns the payload that a group's bytes are to have in an object; `None` if they stay as
    /// they are.
    pub(crate) fn compressed(self, packer: &mut Packer, seen: &Seen, bytes: &[u8]) -> Result<Option<Compressed>> {
        if seen.method == Method::Off {
            return Ok(None);
        }
        packer.raw.clear();
        packer.raw.extend_from_slice(bytes);
        let code = self.compress(packer, seen)?.filter(|&(codec, _)| codec != Codec::Stored);
        Ok(code.map(|code| (code, std::mem::take(&mut packer.payload))))
    }

    /// Puts an object in the place of a group, if the group is still what was seen.
    fn pack_group(
        self,
        ino: Ino,
        group: u64,
        seen: &Seen,
        codec: Option<(Codec, u16)>,
        packer: &mut Packer,
        done: &mut Packing,
    ) -> Result<()> {
        let Some(_lock) = self.fs.locks.try_write(ino) else {
            done.busy += 1;
            return Ok(());
        };
        // The holder of the data lock may be copying the file without the inode lock.
        if self.fs.data_locks.is_taken(ino) && !is_planted(Bug::PackedBesideMove) {
            done.busy += 1;
            return Ok(());
        }
        let mut inode = match self.fs.load(ino) {
            Err(Error::Stale) => return Ok(()),
            loaded => loaded?,
        };
        let may = may_be_packed(&inode) && inode.generation == seen.generation && inode.size == seen.size;
        // The file may have been preallocated meanwhile, in chunks that the object would not have.
        let may = may && (is_planted(Bug::PackedWithRoom) || !self.is_preallocated(&inode)?);
        if !may
            || self.fs.tree().method_of(&inode) != seen.method
            || small::plain_group(&self.fs.region, &inode, group)?.as_ref() != Some(&seen.chunks)
        {
            return Ok(());
        }
        packer.again.resize(packer.raw.len(), 0);
        small::read(&self.fs.region, &self.fs.objects, &inode, group * GROUP, &mut packer.again)?;
        if packer.again != packer.raw && !is_planted(Bug::PackedUnseen) {
            return Ok(());
        }
        let before = inode.allocated;
        let mut tx = self.fs.region.begin_reclaim();
        let bytes = packer.raw.len() as u64;
        match codec {
            Some(codec) => {
                let object = objects::make(
                    &mut tx,
                    &mut Group { inode: &mut inode, number: group },
                    codec,
                    bytes,
                    &packer.payload,
                )?;
                small::pack_group(&mut tx, &mut inode, group, &seen.chunks, object, Replaced::Freed)?;
                done.groups += 1;
            }
            None if inode.layout == Layout::Direct => {
                inode.flags |= INODE_SUMMED;
                inode.rdev = sum_in_slot(&packer.raw);
                done.summed += 1;
            }
            None => {
                let object = objects::make_in_place(
                    &mut tx,
                    &mut Group { inode: &mut inode, number: group },
                    &seen.chunks,
                    &packer.raw,
                )?;
                small::pack_group(&mut tx, &mut inode, group, &seen.chunks, object, Replaced::Kept)?;
                done.summed += 1;
            }
        }
        self.fs.store(&mut tx, ino, &inode)?;
        self.fs.packing.commit_packed(tx, bytes, 0)?;
        let plain: u64 = seen.chunks.iter().map(|slot| slot.capacity()).sum();
        done.before += plain;
        done.after += (plain + inode.allocated).saturating_sub(before);
        Ok(())
    }

    /// Returns whether the file has preallocated room behind its end.
    pub(crate) fn is_preallocated(self, inode: &Inode) -> Result<bool> {
        if inode.layout == Layout::Direct {
            // A file that grows by writing gets less room than this.
            let capacity = inode.root.capacity();
            return Ok(capacity > 64 && inode.size * 2 <= capacity);
        }
        for chunk in inode.size.div_ceil(CHUNK)..small::chunk_count(inode) {
            if chunk_ref(&self.fs.region, inode, chunk)? != ChunkRef::Slot(SlotRef::NONE) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
