//! The memory of a `logged` store: private DRAM whose clean pages are read from an image file on demand.
//!
//! The whole region is reserved as anonymous memory without commitment. The image's used bytes are
//! mapped privately over its start. A page becomes ordinary DRAM when it is first stored to; until
//! then the kernel may drop it and read it again. The image file must therefore not change while
//! pages still come from it: `detach` copies them all, once, before a checkpoint reuses the file.
//! When nothing has changed since an image was written, `rest_on` maps that image over everything,
//! and the memory of all pages is free again.
//! Pages that the region does not need are dropped (`discard`). Memory that this process may not
//! use is refused (`reserve`), because a control group would kill instead. Nothing here outlives
//! the process, so write-back and fence do nothing.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_media::{MediaError, PersistentMemory, Result};

use crate::map::Map;
use crate::memory_limit::take_memory_soon;
use crate::own_memory::RegionNoted;

pub struct PrivateMap {
    /// Dropped before the map: then its addresses may be another's.
    _noted: RegionNoted,
    map: Map,
    /// The files of both images, to rest on.
    images: Option<[File; 2]>,
    /// Bytes at the start that were mapped from an image file. Changes only under the lock of
    /// `detached_bytes`.
    image_bytes: AtomicU64,
    /// The part of the image bytes that no longer depends on the file (bytes). Locked while pages
    /// are copied.
    detached_bytes: Mutex<u64>,
    /// Numbers of the areas in which pages were dropped.
    thinned: Mutex<HashSet<u64>>,
}

/// Unit in which huge pages are refused after pages were dropped (bytes). The kernel would
/// otherwise make huge pages of the remaining pages, which takes memory for the gaps again. Areas
/// are long, because each border between the two kinds costs the kernel a mapping.
const AREA_BYTES: u64 = 32 << 20;

impl PrivateMap {
    /// Creates memory of `region_bytes`. It is zero except for the first bytes of an image (its
    /// file, and how many bytes of it). Both lengths are multiples of the page size.
    pub fn new(region_bytes: u64, image: Option<(&File, u64)>) -> io::Result<PrivateMap> {
        let map = Map::anonymous(region_bytes)?;
        let image_bytes = image.map_or(0, |(_, bytes)| bytes);
        if let Some((file, bytes)) = image.filter(|&(_, bytes)| bytes > 0) {
            let found = file.metadata()?.len();
            if bytes > region_bytes || bytes > found {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("image of {found} bytes: {bytes} bytes cannot be mapped into a region of {region_bytes}"),
                ));
            }
            map.overlay_private(file, bytes)?;
        }
        map.prefer_huge_pages(image_bytes);
        let _noted = RegionNoted::new(map.addresses());
        Ok(PrivateMap {
            map,
            _noted,
            images: None,
            image_bytes: image_bytes.into(),
            detached_bytes: Mutex::new(0),
            thinned: Mutex::default(),
        })
    }

    /// Lets the memory rest on these images.
    pub fn with_images(self, images: [&File; 2]) -> io::Result<PrivateMap> {
        let [first, second] = images;
        Ok(PrivateMap { images: Some([first.try_clone()?, second.try_clone()?]), ..self })
    }

    /// Returns the bytes at the start of the region that still depend on the image file.
    pub fn attached_bytes(&self) -> u64 {
        let detached = self.detached_bytes.lock();
        self.image_bytes.load(Ordering::Acquire) - *detached
    }
}

impl PersistentMemory for PrivateMap {
    fn len(&self) -> u64 {
        self.map.len()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.map.read(at, out);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.map.write(at, bytes);
    }

    fn zero(&self, at: u64, len: u64) {
        self.map.zero(at, len);
    }

    fn write_through(&self, at: u64, bytes: &[u8]) {
        self.map.write(at, bytes);
    }

    fn write_back(&self, _at: u64, _len: u64) {}

    fn fence(&self) {}

    /// Refuses only pages behind the image; pages over the image are needed in any case. Reserves
    /// nothing: a page gets its memory when it is stored to.
    fn reserve(&self, at: u64, len: u64) -> Result<bool> {
        // Without the lock: a store that needs a new segment must not wait for pages to be copied.
        let more = (at + len).saturating_sub(at.max(self.image_bytes.load(Ordering::Acquire)));
        if more > 0 && !take_memory_soon(more) {
            return Err(MediaError::NoSpace { what: "memory of this process".into() });
        }
        Ok(false)
    }

    fn detach(&self, bytes: u64) {
        let mut detached = self.detached_bytes.lock();
        let end = bytes.next_multiple_of(crate::PAGE_BYTES).min(self.image_bytes.load(Ordering::Acquire));
        if *detached < end {
            self.map.populate_for_write(*detached, end - *detached);
            *detached = end;
        }
    }

    fn rest_on(&self, number: usize, bytes: u64) -> Result<bool> {
        let Some(image) = self.images.as_ref().and_then(|images| images.get(number)) else { return Ok(false) };
        let failed = |error| MediaError::io("memory of the region", error);
        if image.metadata().map_err(failed)?.len() < bytes {
            return Ok(false);
        }
        let mut detached = self.detached_bytes.lock();
        // What lies behind the image now, but came from one before, stays mapped from that one.
        let before = self.image_bytes.load(Ordering::Acquire);
        if *detached < before && bytes < before {
            return Ok(false);
        }
        self.map.overlay_private(image, bytes).map_err(failed)?;
        self.image_bytes.store(bytes, Ordering::Release);
        *detached = 0;
        Ok(true)
    }

    /// Over the image, dropped pages show the current bytes of its file again, which a checkpoint
    /// may change. The contract leaves them undefined. A store to such a page copies it first, so
    /// the page is independent from then on.
    fn discard(&self, at: u64, len: u64) {
        self.map.drop_pages(at, len);
        let mut thinned = self.thinned.lock();
        for area in at / AREA_BYTES..(at + len).div_ceil(AREA_BYTES) {
            if thinned.insert(area) {
                self.map.refuse_huge_pages(area * AREA_BYTES, AREA_BYTES);
            }
        }
    }

    #[inline]
    fn read_u64(&self, at: u64) -> u64 {
        self.map.read_u64(at)
    }

    #[inline]
    fn write_u64(&self, at: u64, value: u64) {
        self.map.write_u64(at, value);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const IMAGE: u64 = 64 * 4096;

    fn image_of(byte: u8) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![byte; IMAGE as usize], 0).unwrap();
        file
    }

    fn byte_at(memory: &PrivateMap, at: u64) -> u8 {
        let mut out = [0];
        memory.read(at, &mut out);
        out[0]
    }

    #[test]
    fn the_image_lies_under_the_region_and_stores_do_not_reach_it() {
        let file = image_of(7);
        let memory = PrivateMap::new(1 << 40, Some((&file, IMAGE))).unwrap();
        assert_eq!((byte_at(&memory, 0), byte_at(&memory, IMAGE - 1), byte_at(&memory, IMAGE)), (7, 7, 0));
        memory.write(IMAGE - 1, &[9, 9]);
        assert_eq!((byte_at(&memory, IMAGE - 1), byte_at(&memory, IMAGE)), (9, 9));
        let mut stored = [0];
        file.read_exact_at(&mut stored, IMAGE - 1).unwrap();
        assert_eq!(stored, [7]);
    }

    #[test]
    fn a_detached_region_does_not_change_when_its_image_is_overwritten() {
        let file = image_of(7);
        let memory = PrivateMap::new(2 * IMAGE, Some((&file, IMAGE))).unwrap();
        memory.write_u64(4096, 5);
        memory.detach(IMAGE / 2);
        assert_eq!(memory.attached_bytes(), IMAGE / 2);
        memory.detach(u64::MAX >> 1);
        assert_eq!(memory.attached_bytes(), 0);
        file.write_all_at(&vec![1; IMAGE as usize], 0).unwrap();
        assert_eq!(memory.read_u64(4096), 5);
        for page in (2..64).chain([0]) {
            assert_eq!(byte_at(&memory, page * 4096), 7, "page {page}");
        }
    }

    /// Pages of the map that take memory.
    fn resident(memory: &PrivateMap) -> usize {
        memory.map.resident_pages()
    }

    #[test]
    fn discarded_pages_take_no_memory_and_their_neighbours_keep_their_bytes() {
        let file = image_of(7);
        let memory = PrivateMap::new(4 * IMAGE, Some((&file, IMAGE))).unwrap();
        for page in 0..4 * 64 {
            memory.write_u64(page * 4096, page + 1);
        }
        memory.detach(IMAGE);
        let before = resident(&memory);
        memory.discard(IMAGE / 2, 2 * IMAGE);
        let after = resident(&memory);
        assert!(before >= 4 * 64 && after + 64 <= before, "{before} pages were resident, {after} are");
        for page in (0..32).chain(160..256) {
            assert_eq!(memory.read_u64(page * 4096), page + 1, "page {page}");
        }
        // A page stored to again keeps its bytes, even if the image below it changes.
        memory.write_u64(IMAGE / 2, 5);
        file.write_all_at(&vec![1; IMAGE as usize], 0).unwrap();
        assert_eq!(memory.read_u64(IMAGE / 2), 5);
    }

    #[test]
    fn an_area_with_dropped_pages_gets_no_huge_ones() {
        let memory = PrivateMap::new(3 * AREA_BYTES + 4096, None).unwrap();
        memory.discard(AREA_BYTES + 65536, 65536);
        memory.discard(3 * AREA_BYTES, 4096);
        let flags = |at| memory.map.kernel_flags(at).contains("nh");
        assert_eq!([0, 1, 2, 3].map(|area| flags(area * AREA_BYTES)), [false, true, false, true]);
    }

    #[test]
    fn a_region_at_rest_takes_no_memory_and_reads_as_before() {
        let files = [image_of(7), image_of(9)];
        let memory = PrivateMap::new(1 << 30, Some((&files[0], IMAGE))).unwrap();
        let memory = memory.with_images([&files[0], &files[1]]).unwrap();
        (0..64).for_each(|page| memory.write(page * 4096, &[9; 4096]));
        assert!(!memory.rest_on(1, 2 * IMAGE).unwrap(), "the image is shorter");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| (0..200_000).all(|turn| byte_at(&memory, turn * 4099 % IMAGE) == 9));
            (0..50).for_each(|_| assert!(memory.rest_on(1, IMAGE).unwrap()));
            assert!(reader.join().unwrap());
        });
        assert_eq!(memory.attached_bytes(), IMAGE);
        // A store makes a page its own, and detaching does so with all others.
        memory.write_u64(0, 5);
        memory.detach(IMAGE);
        files[1].write_all_at(&vec![1; IMAGE as usize], 0).unwrap();
        assert_eq!((memory.read_u64(0), byte_at(&memory, 4096), byte_at(&memory, IMAGE - 1)), (5, 9, 9));
    }

    #[test]
    fn touching_detaches_as_well_as_the_kernel_does() {
        let file = image_of(7);
        let memory = PrivateMap::new(IMAGE, Some((&file, IMAGE))).unwrap();
        memory.map.touch_pages(0, IMAGE as usize);
        file.write_all_at(&vec![1; IMAGE as usize], 0).unwrap();
        assert!((0..64).all(|page| byte_at(&memory, page * 4096) == 7));
    }

    #[test]
    fn an_image_that_is_shorter_than_its_pages_is_refused() {
        let file = image_of(7);
        assert!(PrivateMap::new(4 * IMAGE, Some((&file, IMAGE + 4096))).is_err());
        assert!(PrivateMap::new(IMAGE / 2, Some((&file, IMAGE))).is_err());
        assert!(PrivateMap::new(IMAGE, Some((&file, 100))).is_err());
        assert!(PrivateMap::new(IMAGE, Some((&file, 0))).is_ok());
    }
}
