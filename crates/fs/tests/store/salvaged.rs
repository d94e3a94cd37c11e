//! An undamaged store loses nothing in a salvage: as many inodes as the checker counts come out, and no loss is named.
//!
//! Rules: every store that the checker finds sound is salvaged, after a crash and at rest. The
//! salvaged bytes are compared where a store has a model (`crash`, `packing`, the tests of `check`
//! and `cli`). Here they are dropped.

use std::sync::atomic::{AtomicBool, Ordering};

use shoal_check::{BulkData, Item, Loss, Report, SalvageSource, Salvaged, Sink, Source, salvage};
use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::BULK_NUMBER_SHIFT;

/// Keeps the losses that are named.
#[derive(Default)]
struct Losses {
    lost: Vec<Loss>,
}

impl Sink for Losses {
    fn make(&mut self, _: &Item<'_>) -> bool {
        true
    }

    fn data(&mut self, _: u64, _: &[u8]) {}

    fn done(&mut self) {}

    fn link(&mut self, _: &[u8], _: &[u8]) {}

    fn lost(&mut self, loss: Loss) {
        self.lost.push(loss);
    }

    fn note(&mut self, _: &str) {}
}

/// The first bulk device, where the test gives one; others read as zeros, because no test spills to them.
struct Bulk {
    first: Option<Box<dyn BulkData>>,
    /// Data of another device was read.
    missed: AtomicBool,
}

impl BulkData for Bulk {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), String> {
        let is_first = (at / BULK_BLOCK) >> BULK_NUMBER_SHIFT == 0;
        match self.first.as_ref().filter(|_| is_first) {
            Some(first) => first.read(at, out),
            None => {
                self.missed.store(true, Ordering::Relaxed);
                out.fill(0);
                Ok(())
            }
        }
    }
}

/// Salvages a store that the checker found sound. It must lose nothing.
pub fn loses_nothing(source: &Source<'_>, report: &Report) -> Result<(), String> {
    let bulk = Bulk { first: source.bulk.map(|open| open()).transpose()?, missed: AtomicBool::new(false) };
    let whole = SalvageSource {
        image: source.image,
        log: source.log,
        bulk: Some(&bulk),
        power_lost: source.power_lost,
        loss_boots: source.loss_boots,
        first_moved: false,
    };
    let mut losses = Losses::default();
    let found = salvage(whole, &mut losses, &mut |_| {}).map_err(|e| format!("salvage: {e}"))?;
    let Salvaged { directories, files, others, unnamed, .. } = found.ok_or("salvage finds no superblock")?;
    // Blocks in doubt are lost until they are written again, and so is what no flush covered after
    // one failed. The checker reports no error for them.
    losses.lost.retain(|loss| !loss.why.starts_with("in doubt") && !loss.why.starts_with("a flush of its bulk device"));
    if bulk.missed.load(Ordering::Relaxed) {
        losses.lost.retain(|loss| !loss.why.contains("says the checksum"));
    }
    if let Some(loss) = losses.lost.first() {
        let path = loss.path.as_deref().map(String::from_utf8_lossy);
        let count = losses.lost.len();
        return Err(format!("salvage of a sound store names {count} losses, the first: {path:?}: {}", loss.why));
    }
    let (named, has) = (directories + files + others, report.counts.inodes - report.counts.orphans);
    if (named, unnamed) != (has, 0) {
        return Err(format!("salvage of a sound store finds {named} of {has} inodes, {unnamed} without a name"));
    }
    Ok(())
}
