//! The filter as a write cache: its held blocks, flushes of ranges, and absorption by its owner.
//!
//! Left out: the rules behind the answers (`state`, `absorbed`), and ordinary requests (`filter`).

use std::sync::atomic::Ordering;

use shoal_format::cache::CACHE_SLOT;
use shoal_media::block::{CACHE_PAGE, HeldPage};
use shoal_media::{MediaError, Request, Result, WriteCache, block};

use super::WriteBack;
use crate::FileId;
use crate::state::Held;

impl WriteCache for WriteBack {
    fn held_for_ns(&self) -> u64 {
        self.0.state.lock().dirty.rule().held_ns_max()
    }

    fn held_in(&self, at: u64, len: u64) -> u64 {
        let state = self.0.state.lock();
        let end = at + len;
        let held = state.held_in(at / CACHE_SLOT..end.div_ceil(CACHE_SLOT));
        held.map(|(block, _)| end.min((block + 1) * CACHE_SLOT) - at.max(block * CACHE_SLOT)).sum()
    }

    fn give_up(&self) {
        let mut state = self.0.state.lock();
        let given_up = || MediaError::io("write-back cache", std::io::Error::other("a flush of the device failed"));
        state.failure.get_or_insert_with(given_up);
        self.0.note_passage(&state);
        self.0.go_on(state);
    }

    fn may_have_lost(&self, at: u64, len: u64) -> bool {
        self.0.state.lock().is_uncovered(at / CACHE_SLOT..(at + len).div_ceil(CACHE_SLOT))
    }

    fn adopt(&self, continues: bool) {
        let mut state = self.0.state.lock();
        state.adopt(continues, self.0.now());
        self.0.note_passage(&state);
    }

    fn flush_ranges(&self, ranges: &[(u64, u64)]) -> Result<()> {
        if self.0.passes.load(Ordering::Acquire) {
            return block::wait(self, Request::Flush).map(drop);
        }
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        // The receiver waits below; it cannot be gone.
        self.0.flush(Some(ranges), Box::new(move |result| drop(sender.send(result))));
        block::about_to_wait();
        let dropped = || MediaError::io("write-back cache", std::io::Error::other("request was dropped"));
        receiver.recv().unwrap_or_else(|_| Err(dropped())).map(drop)
    }

    fn to_absorb(&self, ranges: &[(u64, u64)], most: usize) -> Option<Vec<HeldPage>> {
        let state = self.0.state.lock();
        let blocks = ranges.iter().map(|&(at, len)| at / CACHE_SLOT..(at + len).div_ceil(CACHE_SLOT));
        let held = state.to_absorb(blocks, most)?;
        // Copied under the lock, so that no slot gets other bytes meanwhile.
        let page = |(page, held): (u64, Held)| {
            let mut bytes = Box::new([0; CACHE_PAGE]);
            self.0.slots.read(held.slot, &mut bytes[..]);
            HeldPage { page, version: held.version, bytes }
        };
        Some(held.into_iter().map(page).collect())
    }

    fn absorbed(&self, pages: &[(u64, u64)]) {
        let mut state = self.0.state.lock();
        pages.iter().for_each(|&(page, version)| state.absorbed(page, version));
    }

    fn take_released(&self) -> Vec<u64> {
        self.0.state.lock().absorbed.take_released()
    }

    fn belongs(&self, at: u64, len: u64, file: u64) {
        self.0.state.lock().belongs(at / CACHE_SLOT..(at + len).div_ceil(CACHE_SLOT), FileId(file));
    }

    fn read_medium(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.0.below.read_medium(at, out)
    }
}
