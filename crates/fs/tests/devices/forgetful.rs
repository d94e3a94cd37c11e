//! A disk that loses what no flush covered when a flush fails.
//!
//! Owns: that disk, which can also be dead, fail one call, hold writes up, or act like a cache. Left
//! out: what is tried on it (`devices`, `doubt`).

use super::*;

/// A call of a device that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    Read,
    Write,
    Flush,
}

/// A disk that loses the writes since the last flush when a flush fails. Reads then return the
/// earlier contents.
pub struct Forgetful {
    disk: Arc<SimDisk>,
    pub(super) unflushed: Mutex<BTreeMap<u64, [u8; 512]>>,
    pub fails: AtomicBool,
    /// The disk acts like a cache: a flush of ranges covers these and nothing else.
    pub holds: AtomicBool,
    /// Every read, write and flush fails.
    pub is_dead: AtomicBool,
    /// Plan of failures: the kind of call, how many such calls succeed first, and whether all later
    /// ones fail.
    pub plan: Mutex<Option<(Failing, u64, bool)>>,
    pub failed: AtomicU64,
    /// Writes wait while somebody holds this; how many came.
    pub gate: Mutex<()>,
    pub waiting: AtomicU64,
    /// The device claims to keep what a process wrote when the process dies.
    pub survives_process: AtomicBool,
    /// Called when a failed flush closes the device, before anything is in doubt.
    pub on_closing: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Forgetful {
    pub fn new(disk: Arc<SimDisk>) -> Arc<Forgetful> {
        let (fails, holds, is_dead) = Default::default();
        let (plan, failed) = (Mutex::default(), AtomicU64::new(0));
        let (gate, waiting, survives_process) = Default::default();
        Arc::new(Forgetful {
            disk,
            unflushed: Mutex::default(),
            fails,
            holds,
            is_dead,
            plan,
            failed,
            gate,
            waiting,
            survives_process,
            on_closing: Mutex::default(),
        })
    }

    /// Returns whether the plan makes this call fail.
    fn meets(&self, call: Failing) -> bool {
        let mut plan = self.plan.lock().unwrap();
        let due = match &mut *plan {
            Some((planned, nth, _)) if *planned == call && *nth > 0 => {
                *nth -= 1;
                false
            }
            Some((planned, _, for_good)) if *planned == call => {
                if !*for_good {
                    *plan = None;
                }
                true
            }
            _ => false,
        };
        self.failed.fetch_add(due.into(), Ordering::Relaxed);
        due
    }

    fn refuse(&self, call: Failing) -> shoal_media::Result<()> {
        match self.is_dead.load(Ordering::Relaxed) || self.meets(call) {
            true => Err(MediaError::io("dead disk", std::io::Error::from_raw_os_error(5))),
            false => Ok(()),
        }
    }

    fn flush(&self, covers: impl Fn(u64) -> bool) -> shoal_media::Result<()> {
        // Held throughout, so that a reader does not miss data on its way to the disk.
        let mut held = self.unflushed.lock().unwrap();
        let (unflushed, stays): (BTreeMap<_, _>, _) =
            std::mem::take(&mut *held).into_iter().partition(|(at, _)| covers(*at));
        *held = stays;
        if self.fails.load(Ordering::Relaxed) || self.refuse(Failing::Flush).is_err() {
            return Err(MediaError::io("forgetful disk", std::io::Error::from_raw_os_error(5)));
        }
        for (at, sector) in unflushed {
            self.disk.write_from(at, &sector)?;
        }
        shoal_media::flush(&*self.disk)
    }
}

impl WriteCache for Forgetful {
    fn held_for_ns(&self) -> u64 {
        if self.holds.load(Ordering::Relaxed) { 30_000_000_000 } else { 0 }
    }

    fn held_in(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn flush_ranges(&self, ranges: &[(u64, u64)]) -> shoal_media::Result<()> {
        let fails = self.fails.load(Ordering::Relaxed);
        // A failed flush loses everything, because a cache may have all of it on its way.
        self.flush(|at| fails || ranges.iter().any(|&(first, len)| (first..first + len).contains(&at)))
    }

    plain_cache!();

    fn give_up(&self) {
        let call = self.on_closing.lock().unwrap().take();
        call.into_iter().for_each(|call| call());
    }

    fn belongs(&self, _: u64, _: u64, _: u64) {}

    fn read_medium(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.read_into(at, out)
    }
}

impl BlockDevice for Forgetful {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        Some(self)
    }

    fn geometry(&self) -> BlockGeometry {
        let survives_process = self.survives_process.load(Ordering::Relaxed);
        BlockGeometry { survives_process, ..self.disk.geometry() }
    }

    fn submit(&self, request: Request, done: Completion) {
        done(match request {
            Request::Flush => self.flush(|_| true).map(|()| Vec::new()),
            // Trim is a hint that this disk ignores.
            Request::Trim { .. } => Ok(Vec::new()),
            Request::Read { at, mut buffer } => self.read_into(at, &mut buffer).map(|()| buffer),
            Request::Write { at, buffer, fua: false } => self.write_from(at, &buffer).map(|()| buffer),
            other => panic!("not used: {other:?}"),
        });
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.refuse(Failing::Read)?;
        // Held throughout: a flush in between would move newer data from here to the disk.
        let unflushed = self.unflushed.lock().unwrap();
        self.disk.read_into(at, out)?;
        for (number, sector) in out.chunks_mut(512).enumerate() {
            if let Some(newer) = unflushed.get(&(at + number as u64 * 512)) {
                sector.copy_from_slice(newer);
            }
        }
        Ok(())
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.lock().unwrap());
        self.refuse(Failing::Write)?;
        let mut unflushed = self.unflushed.lock().unwrap();
        for (number, sector) in bytes.chunks_exact(512).enumerate() {
            unflushed.insert(at + number as u64 * 512, sector.try_into().unwrap());
        }
        Ok(())
    }
}
