//! An area: the memory lent to one client, as a block device.
//!
//! Sparse: memory is taken chunk by chunk at the first write. Ranges that were never written, or
//! were trimmed or zeroed, read as zeros and cost nothing. A cold chunk is packed, and unpacked at
//! its next use; while memory is tight a read leaves it packed. Requests are carried out in
//! `submit`.
//! Locks: one for each `GROUP_CHUNKS` neighbours, never two at a time. So a request that spans
//! groups is not atomic (block devices need not be). `revoked` is set before the first group is
//! wiped, and checked under the group's lock: after `revoke` has returned, nothing of the area is
//! in memory or gets there. Left out: durability (a donor has none, so a flush does nothing),
//! checksums (the disk has its own).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, Result, WriteCache};
use zeroize::Zeroizing;

use super::chunk::{CHUNK_BYTES, Memory};
use super::pack::{Compression, Packed, Packer, unpack};
use super::quota::{Grant, GrantError, Quota};
use crate::sealed::SEALED_ALIGNMENT;
use crate::spans::{Stretch, join_up};

/// Areas have whole sectors (bytes).
const SIZE_BYTES: u32 = 512;
/// Requests are aligned to this (bytes). A sector of an encrypted disk is not a power of two.
const BLOCK_BYTES: u32 = SEALED_ALIGNMENT;

/// Chunks behind one lock. The table costs only 16 bytes for each MiB lent, and neighbours rarely
/// wait for each other.
const GROUP_CHUNKS: usize = 16;

#[derive(Default)]
enum Chunk {
    #[default]
    Hole,
    Plain {
        memory: Memory,
        /// Second of the last write or of unpacking.
        touched: u32,
        /// Packing has been tried since then and does not pay.
        dense: bool,
    },
    Packed(Packed),
}

/// `None` while all of its chunks are holes.
type Group = Option<Box<[Chunk; GROUP_CHUNKS]>>;

/// Memory in use by an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory taken by plain chunks and packed bytes (bytes).
    pub used_bytes: u64,
    /// Contents, written and not trimmed, in whole chunks (bytes).
    pub held_bytes: u64,
    /// The packed part of `held_bytes` (bytes before packing).
    pub packed_bytes: u64,
}

/// The result of one compaction pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Chunks packed, or dropped because they held zeros.
    pub chunks: u64,
    /// Memory given back (bytes).
    pub freed_bytes: u64,
}

impl std::ops::AddAssign for Compacted {
    fn add_assign(&mut self, other: Compacted) {
        self.chunks += other.chunks;
        self.freed_bytes += other.freed_bytes;
    }
}

/// Memory lent to one client.
pub struct Area {
    name: String,
    bytes: u64,
    compression: Compression,
    groups: Vec<RwLock<Group>>,
    quota: Arc<Quota>,
    grant: Mutex<Option<Grant>>,
    revoked: AtomicBool,
    tight: AtomicBool,
    /// Second of the last compaction: the clock of `touched`.
    now_s: AtomicU32,
    used_bytes: AtomicU64,
    held_chunks: AtomicU64,
    packed_chunks: AtomicU64,
}

/// A request's part in one chunk.
struct Part {
    group: usize,
    chunk: usize,
    /// Within the chunk.
    from: usize,
    to: usize,
    /// Within the request's buffer.
    at: usize,
}

fn parts(at: u64, len: u64) -> impl Iterator<Item = Part> {
    let chunk_bytes = CHUNK_BYTES as u64;
    let end = at + len;
    let mut next = at;
    std::iter::from_fn(move || {
        let begin = next;
        let chunk = begin / chunk_bytes;
        next = end.min((chunk + 1) * chunk_bytes);
        (begin < end).then(|| Part {
            group: (chunk / GROUP_CHUNKS as u64) as usize,
            chunk: (chunk % GROUP_CHUNKS as u64) as usize,
            from: (begin % chunk_bytes) as usize,
            to: (next - chunk * chunk_bytes) as usize,
            at: (begin - at) as usize,
        })
    })
}

impl Area {
    /// Makes an area of zeros. Its size (whole sectors of 512 bytes) is reserved in the quota until
    /// it is revoked. `name` is for messages.
    pub fn new(
        name: impl Into<String>,
        bytes: u64,
        quota: &Arc<Quota>,
        compression: Compression,
    ) -> std::result::Result<Area, GrantError> {
        let bytes = bytes / u64::from(SIZE_BYTES) * u64::from(SIZE_BYTES);
        if bytes == 0 {
            return Err(GrantError::Small { asked: bytes, block_bytes: SIZE_BYTES });
        }
        let grant = quota.grant(bytes)?;
        let groups = bytes.div_ceil((CHUNK_BYTES * GROUP_CHUNKS) as u64);
        Ok(Area {
            name: name.into(),
            bytes,
            compression,
            groups: (0..groups).map(|_| RwLock::default()).collect(),
            quota: quota.clone(),
            grant: Mutex::new(Some(grant)),
            revoked: AtomicBool::new(false),
            tight: AtomicBool::new(false),
            now_s: AtomicU32::new(0),
            used_bytes: AtomicU64::new(0),
            held_chunks: AtomicU64::new(0),
            packed_chunks: AtomicU64::new(0),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn usage(&self) -> Usage {
        let bytes = |chunks: &AtomicU64| chunks.load(Ordering::Relaxed) * CHUNK_BYTES as u64;
        Usage {
            used_bytes: self.used_bytes.load(Ordering::Relaxed),
            held_bytes: bytes(&self.held_chunks),
            packed_bytes: bytes(&self.packed_chunks),
        }
    }

    /// Returns whether the area holds nothing. A new area in its place would read the same.
    pub fn is_blank(&self) -> bool {
        self.held_chunks.load(Ordering::SeqCst) == 0
    }

    /// Sets whether memory is tight. While it is, reads do not unpack chunks for good.
    pub fn set_tight(&self, tight: bool) {
        self.tight.store(tight, Ordering::Relaxed);
    }

    /// Takes the area back: every later request fails, its memory is zeroed and freed, and then its
    /// quota is returned.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::SeqCst);
        for group in &self.groups {
            let chunks = group.write().take();
            for chunk in chunks.into_iter().flat_map(|chunks| *chunks) {
                self.drop_chunk(chunk);
            }
        }
        // Return the quota last: the next area to get this room must find the memory free.
        drop(self.grant.lock().take());
    }

    /// Packs every chunk that was not written for `age_s` seconds, and drops those that hold zeros.
    /// `now_s` never decreases. Blocks a group's writers for one chunk at a time, and its readers
    /// only to swap the result in.
    pub fn compact(&self, now_s: u32, age_s: u32) -> Compacted {
        self.now_s.store(now_s, Ordering::Relaxed);
        let cold = |chunk: &Chunk| match chunk {
            Chunk::Plain { touched, dense, .. } => !dense && touched.saturating_add(age_s) <= now_s,
            Chunk::Hole | Chunk::Packed(_) => false,
        };
        let mut packer = Packer::new(self.compression);
        let mut done = Compacted::default();
        for group in &self.groups {
            let coldness: Vec<usize> = match group.read().as_deref() {
                Some(chunks) => (0..GROUP_CHUNKS).filter(|at| cold(&chunks[*at])).collect(),
                None => continue,
            };
            for at in coldness {
                if self.revoked.load(Ordering::SeqCst) {
                    return done;
                }
                let mut guard = group.upgradable_read();
                let Some(Chunk::Plain { memory, .. }) = guard.as_deref().map(|chunks| &chunks[at]).filter(|c| cold(c))
                else {
                    continue;
                };
                let swap = if memory.bytes().iter().all(|byte| *byte == 0) {
                    Some(Chunk::Hole)
                } else {
                    packer.pack(memory.bytes()).map(Chunk::Packed)
                };
                match swap {
                    Some(swap) => {
                        self.count(&swap);
                        let freed = CHUNK_BYTES as u64 - weight(&swap).used_bytes;
                        let old = guard.with_upgraded(|group| replace(group, at, swap));
                        self.drop_chunk(old);
                        done += Compacted { chunks: 1, freed_bytes: freed };
                    }
                    None => guard.with_upgraded(|group| {
                        if let Some(Chunk::Plain { dense, .. }) = group.as_deref_mut().map(|chunks| &mut chunks[at]) {
                            *dense = true;
                        }
                    }),
                }
            }
        }
        done
    }

    /// Lists which parts of a range hold data: together `len` bytes unless there are more than
    /// `parts_max` parts.
    pub fn allocation(&self, at: u64, len: u64, parts_max: usize) -> Vec<Stretch> {
        let parts = parts(at, len.min(self.bytes.saturating_sub(at)));
        let stretches = parts.map(|part| {
            let group = self.groups[part.group].read();
            let is_data = group.as_deref().is_some_and(|chunks| !matches!(chunks[part.chunk], Chunk::Hole));
            Stretch { len: (part.to - part.from) as u64, is_data }
        });
        join_up(stretches, parts_max)
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        let block = u64::from(BLOCK_BYTES);
        if at > self.bytes || len > self.bytes - at || !at.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(MediaError::OutOfRange { what: self.name.clone(), at, len });
        }
        Ok(())
    }

    /// Fails if the area was revoked. Call it under the lock of the group about to be used.
    fn check_held(&self) -> Result<()> {
        if self.revoked.load(Ordering::SeqCst) {
            let why = "the area was revoked; connect again for a new one";
            return Err(MediaError::io(&self.name, io::Error::new(io::ErrorKind::NotConnected, why)));
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> MediaError {
        MediaError::io(&self.name, error)
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.check(at, out.len() as u64)?;
        for part in parts(at, out.len() as u64) {
            let (from, to) = (part.from, part.to);
            let out = &mut out[part.at..][..to - from];
            let group = self.groups[part.group].read();
            self.check_held()?;
            match group.as_deref().map(|chunks| &chunks[part.chunk]) {
                None | Some(Chunk::Hole) => out.fill(0),
                Some(Chunk::Plain { memory, .. }) => out.copy_from_slice(&memory.bytes()[from..to]),
                Some(Chunk::Packed(packed)) if self.tight.load(Ordering::Relaxed) => {
                    let mut whole = Zeroizing::new(vec![0; CHUNK_BYTES]);
                    unpack(self.compression, packed, &mut whole).map_err(|error| self.failed(error))?;
                    out.copy_from_slice(&whole[from..to]);
                }
                Some(Chunk::Packed(_)) => {
                    drop(group);
                    // The chunk may have changed between the locks, so look at it again.
                    let mut group = self.groups[part.group].write();
                    self.check_held()?;
                    let Some(chunks) = group.as_deref_mut() else {
                        out.fill(0);
                        continue;
                    };
                    match &chunks[part.chunk] {
                        Chunk::Hole => out.fill(0),
                        _ => {
                            out.copy_from_slice(&self.plain(&mut chunks[part.chunk], Contents::Kept)?.bytes()[from..to])
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.check(at, bytes.len() as u64)?;
        for part in parts(at, bytes.len() as u64) {
            let (from, to) = (part.from, part.to);
            let mut group = self.groups[part.group].write();
            self.check_held()?;
            let chunk = &mut group.get_or_insert_default()[part.chunk];
            let contents = if to - from == CHUNK_BYTES { Contents::Overwritten } else { Contents::Kept };
            let memory = self.plain(chunk, contents)?;
            memory.bytes_mut()[from..to].copy_from_slice(&bytes[part.at..][..to - from]);
            self.touch(chunk);
        }
        Ok(())
    }

    /// Zeroes a range. Whole chunks in it become holes.
    fn zero(&self, at: u64, len: u64) -> Result<()> {
        self.check(at, len)?;
        for part in parts(at, len) {
            let (from, to) = (part.from, part.to);
            let mut group = self.groups[part.group].write();
            self.check_held()?;
            let Some(chunks) = group.as_deref_mut() else { continue };
            let chunk = &mut chunks[part.chunk];
            if matches!(chunk, Chunk::Hole) {
                continue;
            }
            if to - from == CHUNK_BYTES {
                let old = replace(&mut group, part.chunk, Chunk::Hole);
                drop(group);
                self.drop_chunk(old);
            } else {
                self.plain(chunk, Contents::Kept)?.bytes_mut()[from..to].fill(0);
                self.touch(chunk);
            }
        }
        Ok(())
    }

    /// Returns the chunk's memory, allocating or unpacking it if needed.
    fn plain<'a>(&self, chunk: &'a mut Chunk, contents: Contents) -> Result<&'a mut Memory> {
        if !matches!(chunk, Chunk::Plain { .. }) {
            let mut memory = self.quota.spares.take().map_err(|error| self.failed(error))?;
            if let (Chunk::Packed(packed), Contents::Kept) = (&*chunk, contents) {
                unpack(self.compression, packed, memory.bytes_mut()).map_err(|error| self.failed(error))?;
            }
            let fresh = Chunk::Plain { memory, touched: self.now_s.load(Ordering::Relaxed), dense: false };
            self.count(&fresh);
            self.drop_chunk(std::mem::replace(chunk, fresh));
        }
        match chunk {
            Chunk::Plain { memory, .. } => Ok(memory),
            Chunk::Hole | Chunk::Packed(_) => unreachable!("it was made plain above"),
        }
    }

    fn touch(&self, chunk: &mut Chunk) {
        if let Chunk::Plain { touched, dense, .. } = chunk {
            *touched = self.now_s.load(Ordering::Relaxed);
            *dense = false;
        }
    }

    fn count(&self, chunk: &Chunk) {
        let weight = weight(chunk);
        self.held_chunks.fetch_add(weight.held, Ordering::SeqCst);
        self.packed_chunks.fetch_add(weight.packed, Ordering::Relaxed);
        self.used_bytes.fetch_add(weight.used_bytes, Ordering::Relaxed);
    }

    /// Drops a chunk and wipes its memory.
    fn drop_chunk(&self, chunk: Chunk) {
        let weight = weight(&chunk);
        self.held_chunks.fetch_sub(weight.held, Ordering::SeqCst);
        self.packed_chunks.fetch_sub(weight.packed, Ordering::Relaxed);
        self.used_bytes.fetch_sub(weight.used_bytes, Ordering::Relaxed);
        if let Chunk::Plain { memory, .. } = chunk {
            self.quota.spares.give(memory);
        }
    }
}

/// What a chunk adds to the counts of its area.
#[derive(Default)]
struct Weight {
    /// Chunks held, and those of them that are packed.
    held: u64,
    packed: u64,
    /// Bytes of memory.
    used_bytes: u64,
}

fn weight(chunk: &Chunk) -> Weight {
    match chunk {
        Chunk::Hole => Weight::default(),
        Chunk::Plain { .. } => Weight { held: 1, packed: 0, used_bytes: CHUNK_BYTES as u64 },
        Chunk::Packed(packed) => Weight { held: 1, packed: 1, used_bytes: packed.len() as u64 },
    }
}

/// What becomes of a chunk's bytes when it gets memory.
#[derive(Clone, Copy)]
enum Contents {
    /// They stay, so packed bytes are unpacked.
    Kept,
    /// The caller overwrites all of them, so packed bytes are ignored.
    Overwritten,
}

/// Puts `chunk` in its place and returns the former one. A group of holes is dropped.
fn replace(group: &mut Group, at: usize, chunk: Chunk) -> Chunk {
    let Some(chunks) = group.as_deref_mut() else { return Chunk::Hole };
    let old = std::mem::replace(&mut chunks[at], chunk);
    if chunks.iter().all(|chunk| matches!(chunk, Chunk::Hole)) {
        *group = None;
    }
    old
}

impl Drop for Area {
    fn drop(&mut self) {
        self.revoke();
    }
}

impl BlockDevice for Area {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry {
            bytes: self.bytes,
            block_bytes: BLOCK_BYTES,
            atomic_bytes: BLOCK_BYTES,
            survives_process: false,
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        let result = match request {
            Request::Read { at, mut buffer } => self.read(at, &mut buffer).map(|()| buffer),
            Request::Write { at, buffer, fua: _ } => self.write(at, &buffer).map(|()| buffer),
            Request::Flush => self.check_held().map(|()| vec![]),
            Request::Trim { at, len } | Request::WriteZeroes { at, len, fua: _ } => self.zero(at, len).map(|()| vec![]),
        };
        done(result);
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.read(at, out)
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write(at, bytes)
    }
}

#[cfg(test)]
#[path = "area_tests.rs"]
mod tests;
