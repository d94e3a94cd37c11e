//! An image: a sparse file. Any subset of its unsynced sectors survives a power loss.
//!
//! Reads see every completed write. A crash state picks, for each sector, one of the versions
//! written since the last sync. A lying sync (a planted fault) reports success and keeps everything
//! pending.

use shoal_media::{ImageFile, Result};

use crate::fault::Call;
use crate::turn::announce;
use crate::world::{Medium, Shape, Shared};

pub struct SimImage {
    shared: Shared,
    index: usize,
}

impl SimImage {
    pub(crate) fn new(shared: Shared, index: usize) -> SimImage {
        SimImage { shared, index }
    }

    /// Reads as a page fault does: the call is not counted and cannot fail.
    pub(crate) fn peek(&self, at: u64, out: &mut [u8]) {
        self.shared.lock().media[self.index].current.read(at, out);
    }
}

impl Medium {
    fn take(&mut self, at: u64, len: u64) -> Result<()> {
        match &mut self.shape {
            Shape::Image(taken) => taken.take(&self.name, at, len),
            _ => unreachable!("an image handle points to an image"),
        }
    }

    fn cut(&mut self, from: u64) {
        let end = self.current.end();
        if end > from {
            self.zero(from, end - from);
        }
        if let Shape::Image(taken) = &mut self.shape {
            taken.give_back(from);
        }
    }
}

impl ImageFile for SimImage {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let inner = &mut *self.shared.lock();
        inner.fault(Call::ImageRead, self.index).map_err(|(error, _)| error)?;
        inner.media[self.index].current.read(at, out);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        announce("write");
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        inner.boundary(self.index, "write", !bytes.is_empty());
        if !inner.fault(Call::ImageWrite, self.index).map_err(|(error, _)| error)? {
            inner.media[self.index].take(at, bytes.len() as u64)?;
            inner.media[self.index].write(at, bytes);
        }
        Ok(())
    }

    fn reserve(&self, at: u64, len: u64) -> Result<bool> {
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        if !inner.fault(Call::ImageReserve, self.index).map_err(|(error, _)| error)? {
            inner.media[self.index].take(at, len)?;
        }
        Ok(true)
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        announce("truncate");
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        inner.boundary(self.index, "truncate", true);
        // Counts as a write, because a reader sees it as one.
        if !inner.fault(Call::ImageWrite, self.index).map_err(|(error, _)| error)? {
            inner.media[self.index].cut(bytes);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        announce("sync");
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        let changes = !inner.media[self.index].pending.units().is_empty();
        inner.boundary(self.index, "sync", changes);
        match inner.fault(Call::ImageSync, self.index) {
            Ok(true) => {}
            Ok(false) => inner.media[self.index].make_all_durable(),
            Err((error, _)) => {
                inner.media[self.index].poisoned = Some(error.to_string().into());
                return Err(error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shoal_media::MediaError;

    use super::*;
    use crate::{Fault, FaultPlan, Limits, World};

    #[test]
    fn synced_sectors_stay_and_the_others_survive_in_any_subset() {
        let world = World::new(1);
        let image = world.add_image();
        image.write(512, &[1; 512]).unwrap();
        image.sync().unwrap();
        image.write(512, &[2; 1024]).unwrap();
        let mut found: Vec<[u8; 3]> = Vec::new();
        for state in world.snapshot().power_losses(&Limits::default()) {
            let mut out = [0; 1536];
            state.open().image(0).read(0, &mut out).unwrap();
            for sector in out.chunks(512) {
                assert!(sector.iter().all(|&b| b == sector[0]), "a sector is not torn");
            }
            found.push([out[0], out[512], out[1024]]);
        }
        found.sort();
        found.dedup();
        assert_eq!(found, [[0, 1, 0], [0, 1, 2], [0, 2, 0], [0, 2, 2]]);
    }

    #[test]
    fn an_older_version_of_an_unsynced_sector_may_survive() {
        let world = World::new(1);
        let image = world.add_image();
        image.write(0, &[1; 512]).unwrap();
        image.write(0, &[2; 512]).unwrap();
        let mut found = [false; 3];
        for state in world.snapshot().power_losses(&Limits::default()) {
            let mut out = [0];
            state.open().image(0).read(0, &mut out).unwrap();
            found[out[0] as usize] = true;
        }
        assert_eq!(found, [true; 3]);
    }

    #[test]
    fn after_a_failed_sync_only_reads_go_on() {
        let world = World::new(1);
        let image = world.add_image();
        image.write(0, b"abc").unwrap();
        world.fail(FaultPlan { call: Call::ImageSync, nth: 0, for_good: false, fault: Fault::Io });
        assert!(matches!(image.sync(), Err(MediaError::Io { .. })));
        assert!(matches!(image.sync(), Err(MediaError::Poisoned { .. })));
        assert!(matches!(image.write(0, b"d"), Err(MediaError::Poisoned { .. })));
        assert!(image.read(0, &mut [0]).is_ok());
        let lost = world.snapshot().power_losses(&Limits::default()).next().unwrap().open();
        let mut out = [9];
        lost.image(0).read(0, &mut out).unwrap();
        assert_eq!(out, [0], "a failed sync made nothing durable");
    }

    #[test]
    fn a_sync_that_lies_makes_nothing_durable() {
        let world = World::new(1);
        let image = world.add_image();
        image.write(0, b"abc").unwrap();
        world.fail(FaultPlan { call: Call::ImageSync, nth: 0, for_good: true, fault: Fault::Lie });
        image.sync().unwrap();
        assert_eq!(world.snapshot().in_flight(), 1);
        world.clear_faults();
        image.sync().unwrap();
        assert_eq!(world.snapshot().in_flight(), 0);
    }
}
