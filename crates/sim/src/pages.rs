//! A sparse byte array with cheap copies: pages of 4 KiB, shared until one side writes.
//!
//! Bytes never written are zero and take no memory. A clone shares everything; a write to a clone
//! copies the page and the path to it. Thousands of snapshots therefore cost only what changed
//! between them.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;
const CHUNK_PAGES: usize = 64;
const CHUNK_BYTES: u64 = PAGE_BYTES * CHUNK_PAGES as u64;

type Page = Arc<[u8; PAGE_BYTES as usize]>;
type Chunk = Arc<[Option<Page>; CHUNK_PAGES]>;

#[derive(Clone, Default)]
pub(crate) struct Pages {
    chunks: Arc<BTreeMap<u64, Chunk>>,
}

/// Splits [at, at + len) at page ends. Yields page start, offset in the page, and range in the
/// buffer.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let position = at + done as u64;
        let offset = (position % PAGE_BYTES) as usize;
        let piece = (PAGE_BYTES as usize - offset).min(len - done);
        let range = done..done + piece;
        done += piece;
        (piece > 0).then_some((position - offset as u64, offset, range))
    })
}

impl Pages {
    /// Creates an array of at least `bytes` bytes of value `byte`, all in one shared page.
    pub fn filled(bytes: u64, byte: u8) -> Pages {
        let page: Page = Arc::new([byte; PAGE_BYTES as usize]);
        let chunk: Chunk = Arc::new(std::array::from_fn(|_| Some(page.clone())));
        Pages { chunks: Arc::new((0..bytes.div_ceil(CHUNK_BYTES)).map(|index| (index, chunk.clone())).collect()) }
    }

    fn page(&self, at: u64) -> Option<&Page> {
        self.chunks.get(&(at / CHUNK_BYTES))?[(at % CHUNK_BYTES / PAGE_BYTES) as usize].as_ref()
    }

    fn slot(&mut self, at: u64) -> &mut Option<Page> {
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = chunks.entry(at / CHUNK_BYTES).or_insert_with(|| Arc::new([const { None }; CHUNK_PAGES]));
        &mut Arc::make_mut(chunk)[(at % CHUNK_BYTES / PAGE_BYTES) as usize]
    }

    pub fn read(&self, at: u64, out: &mut [u8]) {
        for (page, offset, range) in pieces(at, out.len()) {
            let len = range.len();
            match self.page(page) {
                Some(bytes) => out[range].copy_from_slice(&bytes[offset..offset + len]),
                None => out[range].fill(0),
            }
        }
    }

    /// Returns an upper bound of the bytes ever written.
    pub fn end(&self) -> u64 {
        self.chunks.last_key_value().map_or(0, |(last, _)| (last + 1) * CHUNK_BYTES)
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read(at, &mut out);
        out
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        for (page, offset, range) in pieces(at, bytes.len()) {
            let target = self.slot(page).get_or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(target)[offset..offset + range.len()].copy_from_slice(&bytes[range]);
        }
    }

    pub fn zero(&mut self, at: u64, len: u64) {
        for (page, offset, range) in pieces(at, len as usize) {
            if self.page(page).is_none() {
                continue;
            }
            if range.len() == PAGE_BYTES as usize {
                *self.slot(page) = None;
            } else if let Some(bytes) = self.slot(page) {
                Arc::make_mut(bytes)[offset..offset + range.len()].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_what_the_original_overwrites() {
        let mut pages = Pages::default();
        pages.write(CHUNK_BYTES - 3, b"abcdef");
        let before = pages.clone();
        pages.write(CHUNK_BYTES - 1, b"XY");
        assert_eq!(before.bytes(CHUNK_BYTES - 4, 8), b"\0abcdef\0");
        assert_eq!(pages.bytes(CHUNK_BYTES - 4, 8), b"\0abXYef\0");
    }

    #[test]
    fn zeroing_drops_whole_pages_and_clears_parts() {
        let mut pages = Pages::default();
        pages.write(0, &[7; 4 * PAGE_BYTES as usize]);
        pages.zero(100, 2 * PAGE_BYTES);
        assert!(pages.page(PAGE_BYTES).is_none() && pages.page(0).is_some());
        assert_eq!(pages.bytes(99, 2), [7, 0]);
        assert_eq!(pages.bytes(2 * PAGE_BYTES + 99, 2), [0, 7]);
        pages.zero(1 << 40, 5 * PAGE_BYTES);
        assert_eq!(pages.bytes(1 << 40, 3), [0; 3]);
    }

    #[test]
    fn reads_and_writes_agree_with_a_plain_vector() {
        let mut random = crate::Random::new(3);
        let (mut pages, mut model) = (Pages::default(), vec![0u8; 5 * CHUNK_BYTES as usize]);
        for _ in 0..2000 {
            let at = random.below(model.len() as u64 - 20_000) as usize;
            let len = random.below(20_000) as usize;
            if random.below(3) == 0 {
                pages.zero(at as u64, len as u64);
                model[at..at + len].fill(0);
            } else {
                let mut bytes = vec![0; len];
                random.fill(&mut bytes);
                pages.write(at as u64, &bytes);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
        assert!(pages.bytes(0, model.len()) == model);
    }
}
