//! Chunks of memory, and the few spare ones kept between two uses.
//!
//! Memory is mapped from the system chunk by chunk instead of taken from the allocator, so that
//! freed memory goes back to the machine at once, wherever it lies. Rule: memory is zero whenever
//! it is not part of an area. It is wiped on its way out of one, before it is kept as a spare or
//! unmapped. The wiping cannot be optimised away, because the memory is passed to the system
//! afterwards (`Mapped`) or wiped with volatile stores (`Heap`). Left out: counting (`area`),
//! compressed bytes (`pack`).

use std::io;

use memmap2::{MmapMut, MmapOptions};
use parking_lot::Mutex;
use zeroize::Zeroize;

/// Unit in which areas are given memory (bytes).
pub const CHUNK_BYTES: usize = 64 << 10;

/// Spares kept: 4 MiB, enough for a client that trims and writes again.
const SPARES_MAX: usize = 64;

/// `CHUNK_BYTES` of memory, wiped when dropped.
pub(super) struct Memory {
    place: Place,
    /// May hold something other than zeros.
    dirty: bool,
}

enum Place {
    Mapped(MmapMut),
    /// Used when the process has no mappings left. Adjacent mappings count as one, so few chunks
    /// get here.
    Heap(Box<[u8]>),
}

impl Memory {
    fn zeroed() -> io::Result<Memory> {
        // Populate all of it: one call instead of a fault for each page.
        let place = match MmapOptions::new().len(CHUNK_BYTES).populate().map_anon() {
            Ok(mapped) => Place::Mapped(mapped),
            Err(error) => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(CHUNK_BYTES).map_err(|_| error)?;
                bytes.resize(CHUNK_BYTES, 0);
                Place::Heap(bytes.into())
            }
        };
        Ok(Memory { place, dirty: false })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.place {
            Place::Mapped(bytes) => bytes,
            Place::Heap(bytes) => bytes,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.dirty = true;
        match &mut self.place {
            Place::Mapped(bytes) => bytes,
            Place::Heap(bytes) => bytes,
        }
    }

    fn wipe(&mut self) {
        if std::mem::take(&mut self.dirty) {
            match &mut self.place {
                Place::Mapped(bytes) => bytes.fill(0),
                Place::Heap(bytes) => bytes.zeroize(),
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Wiped chunks waiting for their next use.
#[derive(Default)]
pub(super) struct Spares(Mutex<Vec<Memory>>);

impl Spares {
    /// Takes a chunk of zeros.
    pub(super) fn take(&self) -> io::Result<Memory> {
        let spare = self.0.lock().pop();
        spare.map_or_else(Memory::zeroed, Ok)
    }

    pub(super) fn give(&self, mut memory: Memory) {
        memory.wipe();
        let mut spares = self.0.lock();
        if spares.len() < SPARES_MAX {
            spares.push(memory);
        }
    }

    pub(super) fn drop_all(&self) {
        let spares = std::mem::take(&mut *self.0.lock());
        drop(spares);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_used_again_is_zero_and_only_so_many_are_kept() {
        let spares = Spares::default();
        let mut memory = spares.take().unwrap();
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
        memory.bytes_mut().fill(7);
        let place = memory.bytes().as_ptr();
        spares.give(memory);
        let again = spares.take().unwrap();
        assert_eq!(again.bytes().as_ptr(), place, "the same memory");
        assert!(again.bytes().iter().all(|byte| *byte == 0));
        let many: Vec<Memory> = (0..SPARES_MAX + 9).map(|_| spares.take().unwrap()).collect();
        many.into_iter().for_each(|memory| spares.give(memory));
        assert_eq!(spares.0.lock().len(), SPARES_MAX);
        spares.drop_all();
        assert_eq!(spares.0.lock().len(), 0);
    }

    #[test]
    fn memory_from_the_heap_is_wiped_like_any_other() {
        let mut memory = Memory { place: Place::Heap(vec![0; CHUNK_BYTES].into()), dirty: false };
        memory.bytes_mut()[CHUNK_BYTES - 1] = 1;
        memory.wipe();
        assert!(memory.bytes().iter().all(|byte| *byte == 0) && !memory.dirty);
    }
}
