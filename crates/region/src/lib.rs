//! The persistent heap that holds all of Shoal's metadata and small files.
//!
//! Owns: the allocator, transactions, the log, checkpoints and recovery. Knows bytes, not files.
//! One mechanism, physical redo without steal: a [`Tx`] collects its changes in a volatile overlay.
//! Commit appends one record to the log and then applies it. Invariants (numbered as in
//! `docs/spec/region.md`):
//! 1. A record is in the log (on `dax`: fenced) before any byte it covers changes.
//! 2. LSNs are assigned, and records applied, under one commit lock, so log order is apply order.
//! 3. Recovery yields a prefix of the log. Entries are absolute, so replay is idempotent.
//! 4. An image is sealed only when the log is durable past the end of its copying.
//! 6. After a failed append or flush the region is poisoned: reads continue, commits fail.
//!
//! Threads: none of its own. Callers hold their own locks over the bytes they change; the commit lock orders
//! the rest. Lock order: growing, checkpoint, commit, allocator, sync state.
//!
//! One file of over 500 lines: it opens a region, commits, and answers queries. The parts of a
//! region are in the modules below.

#![forbid(unsafe_code)]

mod alloc;
mod checkpoint;
mod drain;
mod error;
mod feature;
mod incarnation;
mod log_end;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod replay;
mod ring;
mod room;
mod seal;
mod standby;
mod sync;
mod tx;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use shoal_format::record::{Entries, RECORD_HEADER, RecordHeader, RecordKind, record_bytes, with_loss};
use shoal_format::superblock::{ANCHOR_AT, ANCHOR_CLEAN, AnchorRecord, Geometry, SUPERBLOCK_AT, Superblock};
use shoal_format::vouch::vouch;
use shoal_format::{Offset, PAGE, SEGMENT};
use shoal_media::{Clock, ImageFile, LogDevice, PersistentMemory};
use zerocopy::IntoBytes;

pub use alloc::Space;
pub use checkpoint::newest_image;
pub use drain::{Gainable, StuckSegments, Victims};
pub use error::{Error, Failure, Lack, Result};
pub use incarnation::{DevicesBeside, compare, let_devices_be_later, next_incarnation, place_anchor, restore};
pub use log_end::{is_unused, ring_end};
use planted::{Bug, is_planted};
use replay::{Replayed, apply, replay};
pub use seal::{empty_image, seal_image, write_image, write_pages};
pub use shoal_format::Lsn;
pub use tx::{LetGo, Tx, View};

/// The media a region is made of.
#[derive(Clone)]
pub struct Parts {
    /// `logged`: private memory that holds the newest image. Other kinds: the region itself.
    pub memory: Arc<dyn PersistentMemory>,
    /// `logged` only: other kinds log into a ring in the region.
    pub log: Option<Arc<dyn LogDevice>>,
    /// `logged`: the two images. `battery`: the files the region is saved to, if any.
    pub images: Option<[Arc<dyn ImageFile>; 2]>,
    /// Identifies this boot of the machine.
    pub boot_id: [u8; 16],
    /// Random bytes, new for every opening. They make the log's checksum chain unique.
    pub nonce: [u8; 16],
}

/// What opening a region found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The store was unmounted cleanly.
    pub clean: bool,
    /// The store was unmounted cleanly, and no opening has settled since. Some openings may have
    /// been refused or cut off.
    pub unchanged: bool,
    /// The machine went down since the store was last open: completed but unflushed bulk writes may be gone.
    pub power_lost: bool,
    /// A flush of bulk storage failed since the store was last open, and what no flush covered may be
    /// gone ([`Region::note_loss`]).
    pub data_lost: bool,
    /// The log was last written in the period that this opening names. Memory that outlives only
    /// the process, and that the period identifies, still belongs to the store.
    pub continues: bool,
    /// The period that the log named last.
    pub boot_id: [u8; 16],
    /// Records applied.
    pub records: u64,
    /// Log bytes read.
    pub bytes: u64,
}

impl Recovery {
    /// Sets what follows for an opening in the period `own` if the log last named the period
    /// `named`.
    fn name(&mut self, named: [u8; 16], own: [u8; 16], is_present: &dyn Fn(&[u8; 16]) -> bool) {
        let is_known = |period: [u8; 16]| period == own || is_present(&period);
        self.data_lost = !is_known(named) && is_known(with_loss(named));
        self.boot_id = if self.data_lost { with_loss(named) } else { named };
        self.continues = self.boot_id == own;
        self.power_lost = !is_known(self.boot_id);
    }
}

/// An open region.
pub struct Region {
    /// The superblock as read at opening. Only `features` includes what was added since.
    pub(crate) superblock: Superblock,
    pub(crate) features: AtomicU64,
    pub(crate) memory: Arc<dyn PersistentMemory>,
    pub(crate) log: Arc<dyn LogDevice>,
    pub(crate) images: Option<[Arc<dyn ImageFile>; 2]>,
    pub(crate) boot_id: [u8; 16],
    pub(crate) commit: Mutex<CommitState>,
    pub(crate) alloc: Mutex<alloc::Allocator>,
    /// Held while space for more segments is reserved.
    pub(crate) growing: Mutex<()>,
    /// Number of checkpoints that have released log space.
    pub(crate) releases: AtomicU64,
    pub(crate) checkpoint: Mutex<checkpoint::CheckpointState>,
    pub(crate) sync: Mutex<sync::SyncState>,
    pub(crate) synced: Condvar,
    pub(crate) dirty: Vec<AtomicU64>,
    /// End of the log: the LSN of the next record.
    pub(crate) end: AtomicU64,
    pub(crate) durable: AtomicU64,
    /// The reason why commits are refused.
    pub(crate) failure: OnceLock<Arc<Failure>>,
    clock: OnceLock<Arc<dyn Clock>>,
    pub(crate) on_let_go: OnceLock<OnLetGo>,
    read_only: bool,
}

/// Callback that receives, after each commit, what the transaction has let go of ([`Tx::let_go`]).
pub type OnLetGo = Box<dyn Fn(&[LetGo]) + Send + Sync>;

/// State of the log's end, guarded by the commit lock.
pub(crate) struct CommitState {
    pub end: Lsn,
    /// Header checksum of the last record.
    pub salt: u32,
    /// The boot that the log and the anchors name. It becomes the present boot once the damage of a
    /// power loss is repaired.
    pub boot_id: [u8; 16],
    /// Ring: recovery may need the records from here on. Log: start of the newest sealed image's
    /// replay.
    pub head: Lsn,
    pub anchor_generation: u64,
    /// Number of times this region was restored from an image.
    pub incarnation: u64,
    /// Everything before this position has been promised to a caller ([`Region::promise`]).
    pub promised: Lsn,
}

/// The fields of a record's header that describe its payload.
#[derive(Clone, Copy)]
pub(crate) struct Payload {
    /// Bytes, without padding.
    pub len: usize,
    pub sum: u32,
}

/// Whether the reserve, and the room kept in the log beside it, may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// It stays as it is: an ordinary transaction.
    Kept,
    /// It may be used: a transaction that frees space in the end, or a record of the region itself.
    Open,
}

impl Reserve {
    pub fn is_open(self) -> bool {
        self == Reserve::Open
    }
}

/// Which boot the log and the anchors of an opened region name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NamedBoot {
    Present,
    /// The one found there, until [`Region::note_repaired`].
    Earlier,
}

impl Region {
    /// Lays out a new region over empty media and opens it. Nothing is recoverable before [`Region::shutdown`] or a
    /// checkpoint has sealed it.
    pub fn create(geometry: Geometry, parts: Parts) -> Result<Region> {
        let superblock = Superblock::layout(geometry)?;
        if parts.memory.len() < superblock.region_bytes {
            return Err(Error::TooSmall { have: parts.memory.len(), need: superblock.region_bytes });
        }
        let (memory, nonce) = (&parts.memory, parts.nonce);
        let reserved = superblock.reserved_segments();
        memory.reserve(0, reserved * SEGMENT)?;
        memory.zero(0, reserved * SEGMENT);
        alloc::reserve_fixed(memory.as_ref(), &superblock);
        let (boot_id, anchor_generation) = (parts.boot_id, 0);
        let state = CommitState {
            end: Lsn::ZERO,
            salt: 0,
            boot_id,
            head: Lsn::ZERO,
            anchor_generation,
            incarnation: 0,
            promised: Lsn::ZERO,
        };
        let region = Region::assemble(superblock, parts, state, Lsn::ZERO, false, &[])?;
        region.grow(reserved, Reserve::Kept)?;
        region.memory.write_back(0, reserved * SEGMENT);
        region.memory.fence();
        if superblock.memory_kind.has_ring() {
            region.advance_ring(&mut region.commit.lock(), 0)?;
        }
        // Write the superblock last: a half-made region has no magic.
        region.memory.write_through(SUPERBLOCK_AT, &superblock.encode());
        region.memory.fence();
        region.mark_dirty(Offset::ZERO, reserved * SEGMENT);
        region.with_log_room(Reserve::Open, || region.append_epoch(&mut region.commit.lock(), nonce))?;
        Ok(region)
    }

    /// Opens an existing region: replays its log and, unless `read_only`, marks the mount in the log.
    ///
    /// For `logged` memory `parts.memory` must hold the image that [`newest_image`] chose.
    pub fn open(parts: Parts, read_only: bool) -> Result<(Region, Recovery)> {
        Region::open_naming(parts, read_only, NamedBoot::Present, &|_| false)
    }

    /// Like [`Region::open`], but after a power loss the log keeps naming the earlier boot until
    /// [`Region::note_repaired`]. Otherwise, if the process ended in the middle of its repairs after a
    /// power loss, the next opening would see no power loss. `is_present` recognizes other names
    /// that an earlier opening gave to the present boot. It is called after the memory has been
    /// replayed.
    pub fn open_unsettled(
        parts: Parts,
        read_only: bool,
        is_present: &dyn Fn(&[u8; 16]) -> bool,
    ) -> Result<(Region, Recovery)> {
        Region::open_naming(parts, read_only, NamedBoot::Earlier, is_present)
    }

    /// Records that the damage of a power loss has been repaired, by records before this call. The
    /// note is durable on return. From then on a power loss may cost data again.
    pub fn note_repaired(&self, nonce: [u8; 16]) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.with_log_room(Reserve::Open, || {
            let mut state = self.commit.lock();
            if state.boot_id == self.boot_id {
                // An opening cut off before this point names the same period, so the period cannot
                // show that this opening settled. An empty transaction can: after a clean end, an
                // unsettled opening leaves none.
                return self.append(&mut state, RecordKind::Tx, &[]);
            }
            let earlier = std::mem::replace(&mut state.boot_id, self.boot_id);
            let appended = self.append_epoch(&mut state, nonce);
            if appended.is_err() {
                state.boot_id = earlier;
            }
            appended
        })?;
        self.sync()
    }

    /// Notes that a flush of bulk storage failed: the next opening must not trust writes that no
    /// flush covered before, even if a later flush succeeds. The note is durable on return.
    pub fn note_loss(&self) -> Result<()> {
        self.with_log_room(Reserve::Open, || {
            let mut state = self.commit.lock();
            let earlier = std::mem::replace(&mut state.boot_id, with_loss(self.boot_id));
            let appended = self.append_epoch(&mut state, [0; 16]);
            if appended.is_err() {
                state.boot_id = earlier;
            }
            appended
        })?;
        self.sync()
    }

    fn open_naming(
        parts: Parts,
        read_only: bool,
        naming: NamedBoot,
        is_present: &dyn Fn(&[u8; 16]) -> bool,
    ) -> Result<(Region, Recovery)> {
        let (superblock, anchor) = read_head(parts.memory.as_ref())?;
        if superblock.memory_kind.has_ring() {
            let end = ring_end(&parts.memory, &superblock, &anchor)?;
            parts.images.iter().try_for_each(|images| incarnation::compare(images, &superblock, &anchor, end))?;
        }
        let nonce = parts.nonce;
        let log: Arc<dyn LogDevice> = match &parts.log {
            Some(log) => log.clone(),
            None => Arc::new(ring::RingLog::new(parts.memory.clone(), &superblock)),
        };
        let mut used = Vec::new();
        if let (false, Some(images)) = (superblock.memory_kind.has_ring(), &parts.images) {
            let (newest, _, _) = newest_image(images)?;
            let (memory, used_bytes) = (parts.memory.as_ref(), anchor.used_bytes.get());
            checkpoint::verify_fixed(memory, images[newest].as_ref(), &superblock, used_bytes)?;
            used = checkpoint::used_slots(images, &superblock, &anchor)?;
        }
        let dirty = dirty_bitmap(&superblock, parts.images.is_some());
        if superblock.memory_kind.properties().write_back && !is_planted(Bug::ReplayFence) {
            // Stores of a process that died before a fence may exist only in the cache. The anchor
            // must be durable before the other slot is overwritten, and a record before it is
            // applied (invariant 1). Otherwise a power loss may leave no anchor, or half of a
            // record.
            parts.memory.write_back(ANCHOR_AT[0], PAGE);
            parts.memory.write_back(superblock.ring.get(), superblock.ring_bytes);
            parts.memory.fence();
        }
        let replayed = replay(&superblock, &anchor, Some(parts.memory.as_ref()), log.as_ref(), &dirty)?;
        let Replayed { end, salt, last_boot: named, mut recovery, .. } = replayed;
        recovery.name(named, parts.boot_id, is_present);
        if end < anchor.sealed_to() {
            return Err(Error::LogShort { end, sealed: anchor.sealed_to() });
        }
        log_end::refuse_hole(log.as_ref(), end)?;
        if !superblock.memory_kind.has_ring() {
            log_end::refuse_gap(log.as_ref(), &superblock, &replayed, recovery.power_lost)?;
        }
        // An opening that did not settle left no period of its own in the log.
        let was_closed = anchor.flags.get() & ANCHOR_CLEAN != 0 && named == anchor.boot_id;
        recovery.unchanged = was_closed && recovery.records == 0;
        recovery.clean = recovery.unchanged && recovery.bytes == 0;
        let boot_id = if naming == NamedBoot::Present { parts.boot_id } else { named };
        let (head, anchor_generation) = (anchor.replay_from(), anchor.generation.get());
        let incarnation = anchor.incarnation.get();
        // A caller in an earlier life may have been promised any record found.
        let promised = end;
        let state = CommitState { end, salt, boot_id, head, anchor_generation, incarnation, promised };
        // Records replayed from a log file may exist only in the page cache.
        let durable = if superblock.memory_kind.has_ring() { end } else { anchor.sealed_to() };
        // The image's counts are not valid for segments that replay touched.
        let is_touched = |page: u64| dirty[(page / 64) as usize].load(Ordering::Relaxed) >> (page % 64) & 1 == 1;
        for (segment, used) in used.iter_mut().enumerate() {
            if is_touched(segment as u64 * (SEGMENT / PAGE)) && !is_planted(Bug::TouchedCounted) {
                *used = alloc::UNKNOWN;
            }
        }
        let mut region = Region::assemble(superblock, parts, state, durable, read_only, &used)?;
        region.dirty = dirty;
        if !read_only {
            if superblock.memory_kind.has_ring() {
                let flags = if recovery.unchanged { ANCHOR_CLEAN } else { 0 };
                region.advance_ring(&mut region.commit.lock(), flags)?;
            }
            region.checkpoint.get_mut().restore(region.images.as_ref(), &superblock, &anchor)?;
            region.back_used()?;
            region.with_log_room(Reserve::Open, || region.append_epoch(&mut region.commit.lock(), nonce))?;
            // A lost record must stay lost once a caller has seen the store without it. A torn
            // epoch record over the remains of the old tail could complete a record cut off there.
            if !is_planted(Bug::EpochSync) {
                region.sync()?;
            }
        }
        Ok((region, recovery))
    }

    fn assemble(
        superblock: Superblock,
        parts: Parts,
        state: CommitState,
        durable: Lsn,
        read_only: bool,
        used: &[u16],
    ) -> Result<Region> {
        if !superblock.memory_kind.has_ring() && (parts.log.is_none() || parts.images.is_none()) {
            return Err(Error::MissingMedia);
        }
        let log: Arc<dyn LogDevice> = match parts.log {
            Some(log) => log,
            None => Arc::new(ring::RingLog::new(parts.memory.clone(), &superblock)),
        };
        let alloc = alloc::Allocator::load(&parts.memory, &superblock, used)?;
        let end = state.end;
        Ok(Region {
            dirty: dirty_bitmap(&superblock, parts.images.is_some()),
            features: AtomicU64::new(superblock.features),
            superblock,
            memory: parts.memory,
            log,
            images: parts.images,
            boot_id: parts.boot_id,
            commit: Mutex::new(state),
            alloc: Mutex::new(alloc),
            growing: Mutex::new(()),
            releases: AtomicU64::new(0),
            checkpoint: Mutex::new(checkpoint::CheckpointState::default()),
            sync: Mutex::new(sync::SyncState::default()),
            synced: Condvar::new(),
            end: AtomicU64::new(end.get()),
            durable: AtomicU64::new(durable.get()),
            failure: OnceLock::new(),
            clock: OnceLock::new(),
            on_let_go: OnceLock::new(),
            read_only,
        })
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Starts a transaction.
    pub fn begin(&self) -> Tx<'_> {
        Tx::new(self, Reserve::Kept)
    }

    /// Starts a transaction that may use the reserve, for operations that free space in the end.
    pub fn begin_reclaim(&self) -> Tx<'_> {
        Tx::new(self, Reserve::Open)
    }

    /// Returns the end of the log. An operation committed before this call is durable when
    /// [`Region::durable_lsn`] reaches it.
    pub fn last_lsn(&self) -> Lsn {
        Lsn::new(self.end.load(Ordering::Acquire))
    }

    /// Returns the position before which everything survives a power loss.
    pub fn durable_lsn(&self) -> Lsn {
        Lsn::new(self.durable.load(Ordering::Acquire))
    }

    /// Returns whether commits are refused because a flush or an append failed.
    pub fn is_poisoned(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Returns the first failure, if commits are refused.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.failure.get().cloned()
    }

    /// Sets the callback that is told what transactions have let go of.
    pub fn set_on_let_go(&self, tell: OnLetGo) {
        // Set once, when the store is opened.
        let _ = self.on_let_go.set(tell);
    }

    /// Sets the clock that failures take their time from.
    pub fn set_clock(&self, clock: Arc<dyn Clock>) {
        // The first clock set stays.
        let _ = self.clock.set(clock);
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns how many bytes of log recovery would replay now.
    pub fn log_bytes(&self) -> u64 {
        let commit = self.commit.lock();
        commit.end - commit.head
    }

    /// Runs `read` while no transaction applies, to look at bytes whose locks the caller does not
    /// hold.
    pub fn while_still<T>(&self, read: impl FnOnce() -> T) -> T {
        let _commit = self.commit.lock();
        read()
    }

    /// Poisons the region after a failed append or flush, of its own media or of a device its
    /// contents refer to: commits are refused from now on (invariant 6). `operation` names the
    /// operation that failed. Only the first failure is kept, because the others follow from it.
    pub fn poison(&self, operation: &'static str, error: &shoal_media::MediaError) {
        self.failure.get_or_init(|| {
            let at_ns = self.clock.get().map_or(0, |clock| clock.now_ns());
            Arc::new(Failure { at_ns, ..Failure::new(operation, error) })
        });
    }

    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        match self.failure.get() {
            Some(failure) => Err(Error::Poisoned(failure.clone())),
            None => Ok(()),
        }
    }

    /// Completes the payload of `record`, which holds header space and entries. A transaction also
    /// vouches for what is durable by now. Padding is added.
    pub(crate) fn end_payload(&self, kind: RecordKind, record: &mut Vec<u8>) -> Payload {
        // In a ring, each record is durable before the next, so no vouch is needed.
        if kind == RecordKind::Tx && !self.superblock.memory_kind.has_ring() {
            vouch(self.durable_lsn(), self.superblock.hash_seed).encode(record);
        }
        let payload = &record[RECORD_HEADER..];
        let ended = Payload { len: payload.len(), sum: self.superblock.sums().of(payload) };
        record.resize(record_bytes(ended.len) as usize, 0);
        ended
    }

    /// Appends a record and applies it. `record` is header space, payload and padding ([`Region::end_payload`]).
    pub(crate) fn commit_record(
        &self,
        state: &mut CommitState,
        kind: RecordKind,
        record: &mut [u8],
        payload: Payload,
        reserve: Reserve,
    ) -> Result<Lsn> {
        self.writable()?;
        if self.superblock.memory_kind.has_ring()
            && state.end + record.len() as u64 - state.head > self.superblock.ring_bytes
        {
            if record.len() as u64 > self.superblock.ring_bytes {
                return Err(Error::TooLarge);
            }
            if !is_planted(Bug::RingFull) {
                self.advance_ring(state, 0)?;
            }
        }
        let at = state.end.get();
        let header = RecordHeader::new(kind, state.end, state.salt, payload.len, payload.sum);
        record[..RECORD_HEADER].copy_from_slice(header.as_bytes());
        let entries = RECORD_HEADER..RECORD_HEADER + payload.len;
        if is_planted(Bug::ApplyFirst) {
            self.apply_record(kind, &record[entries.clone()])?;
        }
        // Invariant 1: the record is in the log (and, on `dax`, fenced by the ring) before anything is applied.
        let appended = match reserve {
            Reserve::Open => self.log.append_urgent(at, record),
            Reserve::Kept => self.log.append(at, record),
        };
        if let Err(error) = appended {
            if !error.is_lack() {
                self.poison("an append to the log", &error);
            }
            return Err(error.into());
        }
        self.apply_record(kind, &record[entries])?;
        state.end += record.len() as u64;
        state.salt = header.crc.get();
        self.end.store(state.end.get(), Ordering::Release);
        if self.superblock.memory_kind.has_ring() {
            self.durable.store(state.end.get(), Ordering::Release);
            // The record is durable at once, so a caller that sees its effect may rely on it.
            state.promised = state.end;
        }
        Ok(state.end)
    }

    fn apply_record(&self, kind: RecordKind, payload: &[u8]) -> Result<()> {
        if kind != RecordKind::Tx {
            return Ok(());
        }
        for entry in Entries::new(payload, self.superblock.region_bytes) {
            let entry = entry?;
            apply(self.memory.as_ref(), &entry);
            let (at, len) = entry.range();
            self.mark_dirty(at, len);
        }
        // Another thread may move the ring's head next, and its fence does not cover what this
        // thread wrote back.
        if self.superblock.memory_kind.properties().write_back {
            self.memory.fence();
        }
        Ok(())
    }

    fn append_epoch(&self, state: &mut CommitState, nonce: [u8; 16]) -> Result<()> {
        let payload = [nonce, state.boot_id].concat();
        self.append(state, RecordKind::Epoch, &payload)
    }

    fn append(&self, state: &mut CommitState, kind: RecordKind, payload: &[u8]) -> Result<()> {
        let mut record = [&[0; RECORD_HEADER], payload].concat();
        let payload = self.end_payload(kind, &mut record);
        self.commit_record(state, kind, &mut record, payload, Reserve::Open).map(drop)
    }

    /// Moves the ring's head to its end. Every record before it has been applied under the commit
    /// lock.
    fn advance_ring(&self, state: &mut CommitState, flags: u32) -> Result<()> {
        // The applied lines must be durable before the anchor releases their records.
        self.memory.fence();
        state.anchor_generation += 1;
        let anchor = self.anchor(state, state.end, state.end, state.salt, flags);
        self.memory.write_through(ANCHOR_AT[(state.anchor_generation % 2) as usize], anchor.as_bytes());
        // The anchor must be durable before a new record overwrites the old ones.
        self.memory.fence();
        state.head = state.end;
        Ok(())
    }

    pub(crate) fn anchor(&self, state: &CommitState, replay: Lsn, sealed: Lsn, salt: u32, flags: u32) -> AnchorRecord {
        AnchorRecord {
            magic: 0.into(),
            generation: state.anchor_generation.into(),
            uuid: self.superblock.uuid,
            replay_lsn: replay.get().into(),
            sealed_lsn: sealed.get().into(),
            replay_salt: salt.into(),
            flags: flags.into(),
            boot_id: state.boot_id,
            used_bytes: self.alloc.lock().used_bytes().into(),
            incarnation: state.incarnation.into(),
            reserved: [0; 36],
            crc: 0.into(),
        }
        .sealed()
    }

    pub(crate) fn mark_dirty(&self, at: Offset, len: u64) {
        mark_dirty(&self.dirty, at, len);
    }
}

/// Reads the superblock and the newest anchor of a region, and checks that they belong together.
fn read_head(memory: &dyn PersistentMemory) -> Result<(Superblock, AnchorRecord)> {
    let mut page = vec![0; PAGE as usize];
    if memory.len() < 4 * PAGE {
        return Err(Error::TooSmall { have: memory.len(), need: 4 * PAGE });
    }
    memory.read(SUPERBLOCK_AT, &mut page);
    let superblock = Superblock::decode(&page)?;
    if memory.len() < superblock.region_bytes {
        return Err(Error::TooSmall { have: memory.len(), need: superblock.region_bytes });
    }
    memory.read(ANCHOR_AT[0], &mut page);
    let anchor = AnchorRecord::newest(&page)?;
    if anchor.uuid != superblock.uuid {
        return Err(Error::Foreign);
    }
    Ok((superblock, anchor))
}

fn dirty_bitmap(superblock: &Superblock, tracked: bool) -> Vec<AtomicU64> {
    let words = if tracked { (superblock.region_bytes / PAGE).div_ceil(64) } else { 0 };
    (0..words).map(|_| AtomicU64::new(0)).collect()
}

fn mark_dirty(dirty: &[AtomicU64], at: Offset, len: u64) {
    if dirty.is_empty() || len == 0 {
        return;
    }
    for page in at.page()..=(at.get() + len - 1) / PAGE {
        let (word, bit) = (&dirty[(page / 64) as usize], 1 << (page % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}
