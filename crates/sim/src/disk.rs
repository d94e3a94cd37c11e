//! Bulk storage: a disk with a volatile cache. A power loss keeps any subset of the cached sectors.
//!
//! `submit` carries out requests and runs the completion outside the world's lock, so that a
//! completion may use the media. Only a flush or FUA makes a write durable. A trimmed range reads
//! as zeros at once. After a power loss it may hold its former bytes again, except that ranges
//! above 1 MiB are always zeros, to bound the number of states.

use std::thread::current;

use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, Result, WriteCache};

use crate::fault::Call;
use crate::turn::{announce, is_watched};
use crate::world::{Inner, SECTOR_BYTES, Shared};

/// Longest trim or zeroing whose sectors are recorded one by one (bytes).
const RECORDED_BYTES_MAX: u64 = 1 << 20;

pub struct SimDisk {
    shared: Shared,
    index: usize,
    bytes: u64,
}

impl SimDisk {
    pub(crate) fn new(shared: Shared, index: usize, bytes: u64) -> SimDisk {
        SimDisk { shared, index, bytes }
    }

    fn check(&self, inner: &Inner, at: u64, len: u64) -> Result<()> {
        let sector = SECTOR_BYTES as u64;
        if !at.is_multiple_of(sector) || !len.is_multiple_of(sector) || at > self.bytes || len > self.bytes - at {
            return Err(MediaError::OutOfRange { what: inner.media[self.index].name.to_string(), at, len });
        }
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let inner = &mut *self.shared.lock();
        self.check(inner, at, out.len() as u64)?;
        inner.fault(Call::DiskRead, self.index).map_err(|(error, _)| error)?;
        inner.media[self.index].current.read(at, out);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8], fua: bool) -> Result<()> {
        announce("write");
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        self.check(inner, at, bytes.len() as u64)?;
        inner.boundary(self.index, "write", !bytes.is_empty());
        if inner.fault(Call::DiskWrite, self.index).map_err(|(error, _)| error)? {
            return Ok(());
        }
        let medium = &mut inner.media[self.index];
        medium.write(at, bytes);
        if fua {
            medium.durable.write(at, bytes);
            medium.pending.forget(at, bytes.len() as u64);
        }
        Ok(())
    }

    fn zero(&self, at: u64, len: u64, what: &'static str, fua: bool) -> Result<()> {
        announce(what);
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        self.check(inner, at, len)?;
        inner.boundary(self.index, what, len > 0);
        if inner.fault(Call::DiskWrite, self.index).map_err(|(error, _)| error)? {
            return Ok(());
        }
        let medium = &mut inner.media[self.index];
        if fua || len > RECORDED_BYTES_MAX {
            medium.current.zero(at, len);
            medium.durable.zero(at, len);
            medium.pending.forget(at, len);
        } else {
            medium.zero(at, len);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        announce("flush");
        // Other threads may write before the flush ends.
        let covered = is_watched().then(|| self.shared.lock().media[self.index].begin_flush(current().id()));
        if covered.is_some() {
            announce("flush ends");
        }
        let inner = &mut *self.shared.lock();
        inner.media[self.index].refuse_poisoned()?;
        let changes = !inner.media[self.index].pending.units().is_empty();
        inner.boundary(self.index, "flush", changes);
        match inner.fault(Call::DiskFlush, self.index) {
            Ok(true) => {}
            Ok(false) => match &covered {
                Some(units) => inner.media[self.index].end_flush(current().id(), units),
                None => inner.media[self.index].make_all_durable(),
            },
            Err((error, _)) => {
                inner.media[self.index].poisoned = Some(error.to_string().into());
                return Err(error);
            }
        }
        Ok(())
    }

    fn carry_out(&self, request: Request) -> Result<Vec<u8>> {
        match request {
            Request::Read { at, mut buffer } => self.read(at, &mut buffer).map(|()| buffer),
            Request::Write { at, buffer, fua } => self.write(at, &buffer, fua).map(|()| buffer),
            Request::Flush => self.flush().map(|()| Vec::new()),
            Request::Trim { at, len } => self.zero(at, len, "trim", false).map(|()| Vec::new()),
            Request::WriteZeroes { at, len, fua } => self.zero(at, len, "zeroing", fua).map(|()| Vec::new()),
        }
    }
}

impl BlockDevice for SimDisk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry {
            bytes: self.bytes,
            block_bytes: SECTOR_BYTES as u32,
            atomic_bytes: SECTOR_BYTES as u32,
            survives_process: true,
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        done(self.carry_out(request));
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.read(at, out)
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write(at, bytes, false)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::{Fault, FaultPlan, Limits, World};

    fn first_bytes(world: &World) -> BTreeSet<(u8, u8)> {
        let states = world.snapshot();
        let mut found = BTreeSet::new();
        for state in states.power_losses(&Limits::default()) {
            let mut out = [0; 1024];
            state.open().disk(0).read_into(0, &mut out).unwrap();
            found.insert((out[0], out[512]));
        }
        found
    }

    #[test]
    fn a_flush_or_fua_is_what_makes_a_write_durable() {
        let world = World::new(1);
        let disk = world.add_disk(1 << 16);
        let request = Request::Write { at: 0, buffer: vec![1; 512], fua: true };
        disk.submit(request, Box::new(|result| assert!(result.is_ok())));
        disk.write_from(512, &[2; 512]).unwrap();
        assert_eq!(first_bytes(&world), BTreeSet::from([(1, 0), (1, 2)]));
        shoal_media::flush(&*disk).unwrap();
        assert_eq!(first_bytes(&world), BTreeSet::from([(1, 2)]));
    }

    #[test]
    fn a_trimmed_range_may_come_back_until_the_flush() {
        let world = World::new(1);
        let disk = world.add_disk(4 << 20);
        disk.write_from(0, &[1; 1024]).unwrap();
        shoal_media::flush(&*disk).unwrap();
        shoal_media::trim(&*disk, 0, 512).unwrap();
        assert_eq!(first_bytes(&world), BTreeSet::from([(0, 1), (1, 1)]));
        shoal_media::write_zeroes(&*disk, 0, 4 << 20).unwrap();
        assert_eq!(first_bytes(&world), BTreeSet::from([(0, 0)]));
    }

    #[test]
    fn after_a_failed_flush_only_reads_go_on() {
        let world = World::new(1);
        let disk = world.add_disk(1 << 16);
        disk.write_from(0, &[1; 512]).unwrap();
        world.fail(FaultPlan { call: Call::DiskFlush, nth: 0, for_good: false, fault: Fault::Io });
        assert!(matches!(shoal_media::flush(&*disk), Err(MediaError::Io { .. })));
        assert!(matches!(shoal_media::flush(&*disk), Err(MediaError::Poisoned { .. })));
        assert!(matches!(disk.write_from(0, &[2; 512]), Err(MediaError::Poisoned { .. })));
        assert!(matches!(shoal_media::trim(&*disk, 0, 512), Err(MediaError::Poisoned { .. })));
        let mut out = [0; 512];
        disk.read_into(0, &mut out).unwrap();
        assert_eq!(out, [1; 512]);
        assert_eq!(first_bytes(&world), BTreeSet::from([(0, 0), (1, 0)]));
    }

    #[test]
    fn requests_outside_the_disk_or_unaligned_are_refused() {
        let world = World::new(1);
        let disk = world.add_disk(1024);
        for (at, len) in [(1024, 512), (512, 1024), (1, 512), (0, 100), (u64::MAX - 511, 512)] {
            let refused = |result: Result<()>| matches!(result, Err(MediaError::OutOfRange { .. }));
            assert!(refused(disk.read_into(at, &mut vec![0; len as usize])));
            assert!(refused(disk.write_from(at, &vec![0; len as usize])));
            assert!(refused(shoal_media::trim(&*disk, at, len)));
        }
    }

    #[test]
    fn a_completion_may_submit_the_next_request() {
        let world = World::new(1);
        let disk = world.add_disk(1024);
        let again: Arc<SimDisk> = disk.clone();
        disk.submit(
            Request::Write { at: 0, buffer: vec![1; 512], fua: false },
            Box::new(move |_| again.submit(Request::Flush, Box::new(|result| assert!(result.is_ok())))),
        );
        assert_eq!(first_bytes(&world), BTreeSet::from([(1, 0)]));
    }
}
