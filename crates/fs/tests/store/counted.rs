//! Memory that tells how it is read.
//!
//! Owns: the count, and the places if they are wanted. All calls go to another memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use shoal_media::PersistentMemory;

/// Memory that counts how often it is read, and notes where if that is wanted.
pub struct Counted {
    pub inner: Arc<dyn PersistentMemory>,
    pub reads: AtomicU64,
    pub places: Option<Mutex<BTreeSet<u64>>>,
}

impl PersistentMemory for Counted {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, at: u64, out: &mut [u8]) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(places) = &self.places {
            places.lock().unwrap().insert(at);
        }
        self.inner.read(at, out);
    }
    fn write(&self, at: u64, bytes: &[u8]) {
        self.inner.write(at, bytes);
    }
    fn zero(&self, at: u64, len: u64) {
        self.inner.zero(at, len);
    }
    fn write_back(&self, at: u64, len: u64) {
        self.inner.write_back(at, len);
    }
    fn fence(&self) {
        self.inner.fence();
    }
    fn detach(&self, bytes: u64) {
        self.inner.detach(bytes);
    }
    fn discard(&self, at: u64, len: u64) {
        self.inner.discard(at, len);
    }
}
