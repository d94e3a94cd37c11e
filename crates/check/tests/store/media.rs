//! Read-only media in memory: an image, a log and a region.
//!
//! Rules: they follow the media traits. An image reads as zeros where nothing was written; a memory
//! panics on access outside itself.
//! Left out: writing, which a checker must never do; every attempt panics.

use shoal_media::{ImageFile, LogDevice, PersistentMemory, Result};

pub struct Image(pub Vec<u8>);

impl ImageFile for Image {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        let from = (at as usize).min(self.0.len());
        let there = (self.0.len() - from).min(out.len());
        out[..there].copy_from_slice(&self.0[from..from + there]);
        Ok(())
    }

    fn stored_bytes(&self) -> Result<Option<u64>> {
        Ok(Some(self.0.len() as u64))
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        panic!("the checker writes")
    }

    fn sync(&self) -> Result<()> {
        panic!("the checker syncs")
    }
}

pub struct Log {
    pub start: u64,
    pub bytes: Vec<u8>,
}

impl LogDevice for Log {
    fn append(&self, _: u64, _: &[u8]) -> Result<()> {
        panic!("the checker writes")
    }

    fn sync(&self) -> Result<()> {
        panic!("the checker syncs")
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        let Some(from) = position.checked_sub(self.start).filter(|&from| from < self.bytes.len() as u64) else {
            return Ok(0);
        };
        // Return at most 100 bytes: a reader must not rely on getting all it asks for.
        let n = (self.bytes.len() - from as usize).min(out.len()).min(100);
        out[..n].copy_from_slice(&self.bytes[from as usize..from as usize + n]);
        Ok(n)
    }

    fn release(&self, _: u64) -> Result<()> {
        panic!("the checker releases the log")
    }
}

pub struct Memory(pub Vec<u8>);

impl PersistentMemory for Memory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.0[at as usize..at as usize + out.len()]);
    }

    fn write(&self, _: u64, _: &[u8]) {
        panic!("the checker writes")
    }

    fn zero(&self, _: u64, _: u64) {
        panic!("the checker writes")
    }

    fn write_back(&self, _: u64, _: u64) {
        panic!("the checker writes")
    }

    fn fence(&self) {
        panic!("the checker writes")
    }
}
