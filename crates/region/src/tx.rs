//! Transactions: a volatile overlay that becomes one log record.
//!
//! A transaction reads its own writes. Bit changes are an exception: only the allocators make them,
//! on words that nobody reads through a transaction. Dropping a transaction is an abort and needs
//! no undo. Its size is limited by what one record may hold.

use std::cell::RefCell;

use shoal_format::record::{ENTRY_LEN_MAX, Entry, RECORD_HEADER, RECORD_PAYLOAD_MAX, RecordKind, record_bytes};
use shoal_format::vouch::VOUCH_BYTES;
use shoal_format::{Offset, SlotRef};

use crate::planted::{Bug, is_planted};
use crate::{CommitState, Error, Lsn, Region, Reserve, Result};

/// A source of region bytes.
pub trait View {
    /// Fills `out` from `at`. An offset outside the region is corruption: some reference is wrong.
    fn read(&self, at: Offset, out: &mut [u8]) -> Result<()>;

    fn read_u64(&self, at: Offset) -> Result<u64> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn read_vec(&self, at: Offset, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        self.read(at, &mut out)?;
        Ok(out)
    }
}

impl View for Region {
    #[inline]
    fn read(&self, at: Offset, out: &mut [u8]) -> Result<()> {
        if at.get().saturating_add(out.len() as u64) > self.superblock.region_bytes {
            return Err(Error::corrupt("region offset", at.get(), out.len() as u64));
        }
        self.memory.read(at.get(), out);
        Ok(())
    }

    #[inline]
    fn read_u64(&self, at: Offset) -> Result<u64> {
        if at.get().saturating_add(8) > self.superblock.region_bytes {
            return Err(Error::corrupt("region offset", at.get(), 8));
        }
        Ok(self.memory.read_u64(at.get()))
    }
}

/// One write of the overlay: its place in the region, its length, and the offset of its data in the
/// record (`ZEROS`: no bytes stored).
#[derive(Clone, Copy)]
struct BufferedWrite {
    at: Offset,
    len: u64,
    data: usize,
}

const ZEROS: usize = usize::MAX;

/// Buffers of a transaction, kept per thread so that small transactions allocate nothing.
#[derive(Default)]
struct Buffers {
    record: Vec<u8>,
    pieces: Vec<BufferedWrite>,
    allocated: Vec<SlotRef>,
    freed: Vec<SlotRef>,
    let_go: Vec<LetGo>,
}

/// Something outside the region that nothing in the region refers to once the transaction has
/// committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LetGo {
    /// Byte offset on the medium that the owner of [`Region::on_let_go`] knows.
    pub at: u64,
    pub bytes: u64,
    /// Number of unpacked bytes that it stood for.
    pub stood_for: u64,
}

thread_local! {
    static SPARE: RefCell<Vec<Buffers>> = const { RefCell::new(Vec::new()) };
}

/// Buffers larger than this are not kept (bytes).
const SPARE_BYTES_MAX: usize = 512 << 10;

/// A transaction in progress.
pub struct Tx<'r> {
    region: &'r Region,
    buffers: Buffers,
    reserve: Reserve,
}

impl<'r> Tx<'r> {
    pub(crate) fn new(region: &'r Region, reserve: Reserve) -> Tx<'r> {
        let mut buffers = SPARE.with(|spare| spare.borrow_mut().pop()).unwrap_or_default();
        buffers.record.resize(RECORD_HEADER, 0);
        Tx { region, buffers, reserve }
    }

    pub fn superblock(&self) -> &'r shoal_format::superblock::Superblock {
        &self.region.superblock
    }

    pub(crate) fn region(&self) -> &'r Region {
        self.region
    }

    /// Registers an allocated slot, so that dropping the transaction gives it back.
    pub(crate) fn allocated(&mut self, slot: SlotRef) {
        self.buffers.allocated.push(slot);
    }

    /// Returns whether the transaction may use the space kept for transactions that free some.
    pub fn is_reclaim(&self) -> bool {
        self.reserve.is_open()
    }

    /// Returns the number of bytes in the record so far, header excluded.
    pub fn payload_bytes(&self) -> usize {
        self.buffers.record.len() - RECORD_HEADER
    }

    fn room(&self, more: usize) -> Result<()> {
        if self.payload_bytes() + more + VOUCH_BYTES > RECORD_PAYLOAD_MAX { Err(Error::TooLarge) } else { Ok(()) }
    }

    fn bound(&self, at: Offset, len: u64) -> Result<()> {
        if at.get().saturating_add(len) > self.region.superblock.region_bytes || len > ENTRY_LEN_MAX {
            return Err(Error::corrupt("region offset", at.get(), len));
        }
        Ok(())
    }

    /// Stores `bytes` at `at`.
    pub fn write(&mut self, at: Offset, bytes: &[u8]) -> Result<()> {
        self.bound(at, bytes.len() as u64)?;
        // Writing the same record again (usually an inode) replaces the first version, unless an
        // overlapping write came in between.
        for piece in self.buffers.pieces.iter().rev() {
            if piece.at == at && piece.len == bytes.len() as u64 && piece.data != ZEROS {
                self.buffers.record[piece.data..piece.data + bytes.len()].copy_from_slice(bytes);
                return Ok(());
            }
            if piece.at < at + bytes.len() as u64 && at < piece.at + piece.len {
                break;
            }
        }
        self.room(8 + bytes.len())?;
        let data = Entry::Write { at, bytes }.encode(&mut self.buffers.record);
        self.buffers.pieces.push(BufferedWrite { at, len: bytes.len() as u64, data });
        Ok(())
    }

    /// Stores `len` zero bytes at `at`; costs 8 bytes of log.
    pub fn zero(&mut self, at: Offset, len: u64) -> Result<()> {
        self.bound(at, len)?;
        self.room(8)?;
        Entry::Zero { at, len }.encode(&mut self.buffers.record);
        self.buffers.pieces.push(BufferedWrite { at, len, data: ZEROS });
        Ok(())
    }

    /// Sets bits of the aligned little-endian word at `at`, whatever other transactions do to its other bits.
    pub fn set_bits(&mut self, at: Offset, mask: u64) -> Result<()> {
        self.bound(at, 8)?;
        self.room(16)?;
        Entry::SetBits { at, mask }.encode(&mut self.buffers.record);
        Ok(())
    }

    /// Clears bits of the aligned little-endian word at `at`.
    pub fn clear_bits(&mut self, at: Offset, mask: u64) -> Result<()> {
        self.bound(at, 8)?;
        self.room(16)?;
        Entry::ClearBits { at, mask }.encode(&mut self.buffers.record);
        Ok(())
    }

    /// Allocates a piece of at least `len` bytes. Its old contents remain.
    pub fn alloc(&mut self, len: u64) -> Result<SlotRef> {
        self.room(16 + 16 * 256)?;
        let slot = self.region.allocate(len, self.reserve)?;
        self.allocated(slot);
        crate::alloc::log_allocate(self, slot)?;
        Ok(slot)
    }

    /// Frees a piece; it can be allocated again once this transaction has committed.
    pub fn free(&mut self, slot: SlotRef) -> Result<()> {
        if slot.is_none() {
            return Ok(());
        }
        self.room(16 + 16 * 256)?;
        if !self.buffers.allocated.contains(&slot) {
            self.region.check_allocated(slot)?;
        }
        if self.buffers.freed.contains(&slot) {
            return Err(Error::corrupt("slot freed twice", slot.offset().get(), slot.bits()));
        }
        crate::alloc::log_free(self, slot)?;
        self.buffers.freed.push(slot);
        if is_planted(Bug::FreeAtOnce) && !self.buffers.allocated.contains(&slot) {
            self.region.release(&[slot]);
        }
        Ok(())
    }

    /// Records that the transaction drops the last reference to something outside the region.
    /// [`Region::on_let_go`] reports it after the commit, and never if the transaction does not
    /// commit.
    pub fn let_go(&mut self, what: LetGo) {
        self.buffers.let_go.push(what);
    }

    /// Appends the record and applies it. Returns the end of the log after it. The operation is
    /// durable once the region is durable up to that position.
    pub fn commit(self) -> Result<Lsn> {
        Ok(self.commit_if(|_| true)?.expect("nothing was asked"))
    }

    /// Returns the number of bytes that the record will take in the log.
    pub fn log_bytes(&self) -> u64 {
        match self.payload_bytes() {
            0 => 0,
            bytes if self.region.superblock.memory_kind.has_ring() => record_bytes(bytes),
            bytes => record_bytes(bytes + VOUCH_BYTES),
        }
    }

    /// Commits a transaction that lets go of bytes that the log holds from the record ending at
    /// `birth` on, while their new copy, on another device, is not durable. Commits only if nothing
    /// at or after that record has been promised to anybody (`sync.rs`). Otherwise undoes the
    /// transaction and returns `None`.
    pub fn commit_unpromised(self, birth: Lsn) -> Result<Option<Lsn>> {
        self.commit_if(|state| state.promised < birth)
    }

    fn commit_if(mut self, may: impl Fn(&CommitState) -> bool) -> Result<Option<Lsn>> {
        if self.payload_bytes() == 0 {
            self.region.writable()?;
            return Ok(Some(self.region.last_lsn()));
        }
        let (region, reserve) = (self.region, self.reserve);
        let record = &mut self.buffers.record;
        let payload = region.end_payload(RecordKind::Tx, record);
        let committed = region.with_log_room(reserve, || {
            let mut state = region.commit.lock();
            if !may(&state) {
                return Ok(None);
            }
            let lsn = region.commit_record(&mut state, RecordKind::Tx, record, payload, reserve)?;
            Ok(Some((lsn, state)))
        })?;
        let Some((lsn, state)) = committed else { return Ok(None) };
        // The allocations now belong to the region. The frees become visible under the commit lock,
        // so that nobody can log an allocation of a freed slot before the record that freed it.
        self.buffers.allocated.clear();
        if is_planted(Bug::FreeAtOnce) {
            self.buffers.freed.clear();
        }
        if !self.buffers.freed.is_empty() {
            self.region.release(&self.buffers.freed);
        }
        drop(state);
        if let (false, Some(tell)) = (self.buffers.let_go.is_empty(), self.region.on_let_go.get()) {
            tell(&self.buffers.let_go);
        }
        Ok(Some(lsn))
    }
}

impl View for Tx<'_> {
    fn read(&self, at: Offset, out: &mut [u8]) -> Result<()> {
        self.region.read(at, out)?;
        let end = at + out.len() as u64;
        for piece in &self.buffers.pieces {
            let (from, to) = (at.max(piece.at), end.min(piece.at + piece.len));
            if from >= to {
                continue;
            }
            let target = &mut out[(from - at) as usize..(to - at) as usize];
            if piece.data == ZEROS {
                target.fill(0);
            } else {
                let data = piece.data + (from - piece.at) as usize;
                target.copy_from_slice(&self.buffers.record[data..data + target.len()]);
            }
        }
        Ok(())
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if !self.buffers.allocated.is_empty() {
            self.region.release(&self.buffers.allocated);
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        buffers.let_go.clear();
        if buffers.record.capacity() <= SPARE_BYTES_MAX {
            buffers.record.clear();
            buffers.pieces.clear();
            buffers.allocated.clear();
            buffers.freed.clear();
            SPARE.with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < 4 {
                    spare.push(buffers);
                }
            });
        }
    }
}
