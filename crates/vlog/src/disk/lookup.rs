//! Reading: from the batch, otherwise from the place that the map names.
//!
//! Owns: looking up blocks, and comparing them with their checksums. A block that fails is looked
//! up again under the lock of the log, while no thread writes, because it may have been written or
//! moved meanwhile. Left out: how a batch is written (`disk`).

use shoal_format::vlog::{BLOCK, Entry};
use shoal_media::{MediaError, Result, block};

use super::{Change, VirtualLog};
use crate::planted::{Bug, is_planted};

impl VirtualLog {
    pub(super) fn read_bytes(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.check(at, out.len() as u64)?;
        let (first, within) = ((at / BLOCK as u64) as u32, (at % BLOCK as u64) as usize);
        if within != 0 || !out.len().is_multiple_of(BLOCK) {
            let blocks = (within + out.len()).div_ceil(BLOCK);
            let mut whole = vec![0; blocks * BLOCK];
            self.read_blocks(first, &mut whole)?;
            out.copy_from_slice(&whole[within..within + out.len()]);
            return Ok(());
        }
        self.read_blocks(first, out)
    }

    /// Reads whole blocks. Blocks adjacent on the device are read together.
    pub(super) fn read_blocks(&self, first: u32, out: &mut [u8]) -> Result<()> {
        let count = (out.len() / BLOCK) as u32;
        let mut entries = Vec::with_capacity(count as usize);
        {
            let front = self.front.lock();
            let held = |logical| front.open.get(&logical).or_else(|| front.writing.get(&logical)).cloned();
            entries.extend((first..first + count).map(|logical| (held(logical), Entry::default())));
        }
        {
            let state = self.state.read();
            entries.iter_mut().zip(state.map.from(first)).for_each(|(entry, mapped)| entry.1 = mapped);
        }
        let mut n = 0;
        while n < entries.len() {
            let (held, entry) = &entries[n];
            let block = &mut out[n * BLOCK..(n + 1) * BLOCK];
            match held {
                Some(Change::Data(data)) => block.copy_from_slice(data),
                Some(Change::Nowhere) => block.fill(0),
                None if entry.at == 0 => block.fill(0),
                None => {
                    let run =
                        entries[n..].iter().zip(entry.at..).take_while(|((held, e), at)| held.is_none() && e.at == *at);
                    let run = run.count();
                    self.read_run(first + n as u32, &entries[n..n + run], &mut out[n * BLOCK..(n + run) * BLOCK])?;
                    n += run;
                    continue;
                }
            }
            n += 1;
        }
        Ok(())
    }

    fn read_run(&self, first: u32, entries: &[(Option<Change>, Entry)], out: &mut [u8]) -> Result<()> {
        block::read(&*self.device, entries[0].1.at as u64 * BLOCK as u64, out)?;
        for ((logical, (_, entry)), block) in (first..).zip(entries).zip(out.chunks_exact_mut(BLOCK)) {
            if !self.is_intact(block, entry) {
                self.read_again(logical, block)?;
            }
        }
        Ok(())
    }

    /// Reads a block that did not match the map. It was written or moved in between, or the map
    /// refers to a write under way, or the device lost it. While no thread writes, the cause is
    /// unambiguous.
    fn read_again(&self, logical: u32, out: &mut [u8]) -> Result<()> {
        let _log = self.lock();
        match self.held(logical) {
            Some(Change::Data(data)) => out.copy_from_slice(&data),
            Some(Change::Nowhere) => out.fill(0),
            None => {
                let entry = self.state.read().map.get(logical);
                if entry.at == 0 {
                    out.fill(0);
                    return Ok(());
                }
                block::read(&*self.device, entry.at as u64 * BLOCK as u64, out)?;
                if !self.is_intact(out, &entry) {
                    let at = entry.at;
                    let why =
                        format!("block {logical} (at {at} below): the checksum is wrong, the device has changed it");
                    return Err(MediaError::io(self.name(), std::io::Error::new(std::io::ErrorKind::InvalidData, why)));
                }
            }
        }
        Ok(())
    }

    pub(super) fn held(&self, logical: u32) -> Option<Change> {
        let front = self.front.lock();
        front.open.get(&logical).or_else(|| front.writing.get(&logical)).cloned()
    }

    pub(crate) fn is_intact(&self, block: &[u8], entry: &Entry) -> bool {
        is_planted(Bug::NoChecksum) || self.superblock.entry(entry.at, block) == *entry
    }
}
