//! Region memory: `dax` and `battery` memory of a world, and the private DRAM of a `logged` store.
//!
//! `dax` memory keeps, per cache line, what was stored since the line was last fenced. A write-back
//! belongs to its thread: a fence makes durable what the same thread wrote back before, with the
//! contents at the time of the write-back. `battery` memory loses nothing. Volatile memory belongs
//! to no world and is gone after a crash. It can lie over an image as `host`'s private map does: a
//! page comes from the image's *present* contents until it is first stored to or detached. An
//! engine that overwrites an image without detaching therefore sees its memory change.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use parking_lot::{Mutex, RwLock};
use shoal_media::PersistentMemory;

use crate::fault::Call;
use crate::image::SimImage;
use crate::pages::Pages;
use crate::world::{Inner, Shared};

const PAGE_BYTES: usize = 4096;

/// Memory that outlives its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimMemoryKind {
    /// Survives a power loss line by line, as far as lines were fenced.
    Dax,
    /// Survives a power loss unchanged.
    Battery,
}

enum Backing {
    World { shared: Shared, index: usize, kind: SimMemoryKind },
    Volatile(RwLock<Volatile>),
}

pub struct SimMemory {
    backing: Backing,
    bytes: u64,
}

/// Contents of discarded memory.
const DISCARDED: u8 = 0xdb;

struct Volatile {
    own: Pages,
    image: Option<Arc<SimImage>>,
    /// Pages that still come from the image; empty if none does.
    attached: Vec<bool>,
    /// The images that the memory can rest on.
    images: Option<[Arc<SimImage>; 2]>,
}

impl SimMemory {
    pub(crate) fn recorded(shared: Arc<Mutex<Inner>>, index: usize, bytes: u64, kind: SimMemoryKind) -> SimMemory {
        SimMemory { backing: Backing::World { shared, index, kind }, bytes }
    }

    /// Creates private DRAM that is zero except for the first bytes of an image. Both lengths are
    /// multiples of 4096.
    pub fn volatile(bytes: u64, image: Option<(Arc<SimImage>, u64)>) -> Arc<SimMemory> {
        let image_bytes = image.as_ref().map_or(0, |&(_, len)| len);
        assert!(image_bytes <= bytes && image_bytes.is_multiple_of(PAGE_BYTES as u64), "an image of whole pages");
        let attached = vec![true; image_bytes as usize / PAGE_BYTES];
        let image = image.map(|(image, _)| image);
        let backing = Volatile { own: Pages::default(), image, attached, images: None };
        Arc::new(SimMemory { backing: Backing::Volatile(RwLock::new(backing)), bytes })
    }

    /// Like [`SimMemory::volatile`], for memory that can rest on these images.
    pub fn resting(bytes: u64, image: Option<(Arc<SimImage>, u64)>, images: [Arc<SimImage>; 2]) -> Arc<SimMemory> {
        let memory = SimMemory::volatile(bytes, image);
        if let Backing::Volatile(volatile) = &memory.backing {
            volatile.write().images = Some(images);
        }
        memory
    }

    fn check(&self, at: u64, len: u64) {
        let total = self.bytes;
        assert!(at <= total && len <= total - at, "access at byte {at}, {len} bytes, of a memory of {total}");
    }
}

impl Volatile {
    /// Returns the pages of a range that may come from the image.
    fn pages(&self, at: u64, len: usize) -> Range<usize> {
        let page_bytes = PAGE_BYTES as u64;
        let end = (at + len as u64).div_ceil(page_bytes).min(self.attached.len() as u64);
        (at / page_bytes) as usize..end as usize
    }

    fn peek(&self, at: u64, out: &mut [u8]) {
        self.image.as_ref().expect("attached pages have an image").peek(at, out);
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.own.read(at, out);
        let end = at + out.len() as u64;
        for page in self.pages(at, out.len()).filter(|&page| self.attached[page]) {
            let start = (page * PAGE_BYTES) as u64;
            let (from, to) = (at.max(start), end.min(start + PAGE_BYTES as u64));
            self.peek(from, &mut out[(from - at) as usize..(to - at) as usize]);
        }
    }

    /// Gives the pages of a range their own copies.
    fn detach(&mut self, at: u64, len: usize) {
        for page in self.pages(at, len) {
            if std::mem::take(&mut self.attached[page]) {
                let mut bytes = [0; PAGE_BYTES];
                self.peek((page * PAGE_BYTES) as u64, &mut bytes);
                self.own.write((page * PAGE_BYTES) as u64, &bytes);
            }
        }
    }
}

impl PersistentMemory for SimMemory {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.check(at, out.len() as u64);
        match &self.backing {
            Backing::World { shared, index, .. } => shared.lock().media[*index].current.read(at, out),
            Backing::Volatile(volatile) => volatile.read().read(at, out),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.check(at, bytes.len() as u64);
        match &self.backing {
            Backing::World { shared, index, kind } => {
                let inner = &mut *shared.lock();
                inner.store(*index, "store");
                match kind {
                    SimMemoryKind::Dax => inner.media[*index].write(at, bytes),
                    SimMemoryKind::Battery => inner.media[*index].current.write(at, bytes),
                }
            }
            Backing::Volatile(volatile) => {
                let volatile = &mut *volatile.write();
                volatile.detach(at, bytes.len());
                volatile.own.write(at, bytes);
            }
        }
    }

    fn zero(&self, at: u64, len: u64) {
        self.check(at, len);
        match &self.backing {
            Backing::World { shared, index, kind } => {
                let inner = &mut *shared.lock();
                inner.store(*index, "zeroing");
                match kind {
                    SimMemoryKind::Dax => inner.media[*index].zero(at, len),
                    SimMemoryKind::Battery => inner.media[*index].current.zero(at, len),
                }
            }
            Backing::Volatile(volatile) => {
                let volatile = &mut *volatile.write();
                volatile.detach(at, len as usize);
                volatile.own.zero(at, len);
            }
        }
    }

    fn write_back(&self, at: u64, len: u64) {
        self.check(at, len);
        if let Backing::World { shared, index, kind: SimMemoryKind::Dax } = &self.backing {
            let inner = &mut *shared.lock();
            let thread = thread::current().id();
            let lines = inner.media[*index].pending.mark(thread, at, len);
            inner.written_back.entry((*index, thread)).or_default().extend(lines);
        }
    }

    fn fence(&self) {
        if let Backing::World { shared, index, kind: SimMemoryKind::Dax } = &self.backing {
            let inner = &mut *shared.lock();
            let thread = thread::current().id();
            let lines = inner.written_back.remove(&(*index, thread)).unwrap_or_default();
            inner.boundary(*index, "fence", !lines.is_empty());
            // A fence has no result. Only the lie makes sense as its fault, so every fault acts as
            // a lie.
            if inner.faults.meet(Call::Fence).is_some() {
                return;
            }
            let medium = &mut inner.media[*index];
            for line in lines {
                medium.pending.fence(thread, line, &mut medium.durable);
            }
        }
    }

    fn discard(&self, at: u64, len: u64) {
        self.check(at, len);
        assert!((at | len).is_multiple_of(PAGE_BYTES as u64), "whole pages are discarded");
        // Fill with bytes that nobody wrote, to expose a reader that relies on them.
        if let Backing::Volatile(volatile) = &self.backing {
            let volatile = &mut *volatile.write();
            volatile.detach(at, len as usize);
            volatile.own.write(at, &vec![DISCARDED; len as usize]);
        }
    }

    fn rest_on(&self, number: usize, bytes: u64) -> shoal_media::Result<bool> {
        let Backing::Volatile(volatile) = &self.backing else { return Ok(false) };
        let volatile = &mut *volatile.write();
        let Some(images) = &volatile.images else { return Ok(false) };
        volatile.image = Some(images[number].clone());
        volatile.attached = vec![true; bytes as usize / PAGE_BYTES];
        Ok(true)
    }

    fn detach(&self, bytes: u64) {
        if let Backing::Volatile(volatile) = &self.backing {
            let volatile = &mut *volatile.write();
            volatile.detach(0, bytes.min(self.bytes) as usize);
            if volatile.attached.iter().all(|attached| !attached) {
                volatile.attached.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_media::ImageFile;

    use super::*;
    use crate::{Limits, World};

    fn words_after_power_loss(world: &World) -> Vec<[u64; 2]> {
        let mut found: Vec<[u64; 2]> = Vec::new();
        for state in world.snapshot().power_losses(&Limits::default()) {
            let memory = state.open().memory(0);
            found.push([memory.read_u64(0), memory.read_u64(64)]);
        }
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn a_fenced_line_is_there_and_any_subset_of_the_others_may_be() {
        let world = World::new(1);
        let memory = world.add_memory(4096, SimMemoryKind::Dax);
        memory.write_u64(0, 1);
        memory.write_u64(64, 2);
        assert_eq!(words_after_power_loss(&world), [[0, 0], [0, 2], [1, 0], [1, 2]]);
        memory.write_back(0, 8);
        assert_eq!(words_after_power_loss(&world).len(), 4, "written back is not yet durable");
        memory.fence();
        assert_eq!(words_after_power_loss(&world), [[1, 0], [1, 2]]);
        memory.write_through(64, &3u64.to_le_bytes());
        memory.fence();
        assert_eq!(words_after_power_loss(&world), [[1, 3]]);
    }

    #[test]
    fn a_fence_of_another_thread_makes_nothing_durable() {
        let world = World::new(1);
        let memory = world.add_memory(4096, SimMemoryKind::Dax);
        memory.write_through(0, &1u64.to_le_bytes());
        thread::scope(|scope| {
            scope.spawn(|| memory.fence());
        });
        assert_eq!(words_after_power_loss(&world), [[0, 0], [1, 0]]);
    }

    #[test]
    fn a_line_may_be_torn_between_words_but_not_within_one() {
        let world = World::new(1);
        let memory = world.add_memory(4096, SimMemoryKind::Dax);
        memory.write(0, &[0xff; 64]);
        let mut torn = 0;
        for state in world.snapshot().power_losses(&Limits::default()) {
            let memory = state.open().memory(0);
            let words: Vec<u64> = (0..8).map(|i| memory.read_u64(i * 8)).collect();
            assert!(words.iter().all(|&w| w == 0 || w == u64::MAX), "{words:x?}");
            torn += (words.contains(&0) && words.contains(&u64::MAX)) as u32;
        }
        assert!(torn > 0);
    }

    #[test]
    fn a_process_crash_keeps_every_store_and_leaves_it_in_flight() {
        let world = World::new(1);
        let memory = world.add_memory(4096, SimMemoryKind::Dax);
        memory.write_u64(0, 1);
        let after = world.snapshot().process_crash().open();
        assert_eq!(after.memory(0).read_u64(0), 1);
        assert_eq!(words_after_power_loss(&after), [[0, 0], [1, 0]]);
    }

    #[test]
    fn battery_memory_survives_a_power_loss_as_it_is() {
        let world = World::new(1);
        let memory = world.add_memory(4096, SimMemoryKind::Battery);
        memory.write_u64(0, 1);
        memory.zero(64, 8);
        assert_eq!(words_after_power_loss(&world), [[1, 0]]);
    }

    #[test]
    fn a_page_changes_with_its_image_until_it_is_stored_to_or_detached() {
        let world = World::new(1);
        let image = world.add_image();
        image.write(0, &[1; 3 * PAGE_BYTES]).unwrap();
        let memory = SimMemory::volatile(8 * PAGE_BYTES as u64, Some((image.clone(), 3 * PAGE_BYTES as u64)));
        memory.write(PAGE_BYTES as u64 + 5, &[7]);
        image.write(0, &[2; 3 * PAGE_BYTES]).unwrap();
        let mut out = [0; 8];
        memory.read(PAGE_BYTES as u64 - 1, &mut out);
        assert_eq!(out, [2, 1, 1, 1, 1, 1, 7, 1], "the first page follows the image, the second is our own");
        memory.detach(8 * PAGE_BYTES as u64);
        image.write(0, &[3; 3 * PAGE_BYTES]).unwrap();
        memory.read(PAGE_BYTES as u64 - 1, &mut out);
        assert_eq!(out, [2, 1, 1, 1, 1, 1, 7, 1]);
        memory.read(3 * PAGE_BYTES as u64 - 4, &mut out);
        assert_eq!(out, [2, 2, 2, 2, 0, 0, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "access at byte 4095, 2 bytes, of a memory of 4096")]
    fn an_access_across_the_end_panics() {
        SimMemory::volatile(4096, None).write(4095, &[0; 2]);
    }
}
