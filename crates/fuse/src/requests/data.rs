//! Data: reading, writing, room, syncs.
//!
//! A request that may have to wait for the bulk device answers through a callback, from another thread if
//! need be (`waiters`, `syncer`). All others return at once.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use shoal_fs::{Fs, Ino, Seek};

use super::{Asker, Outcome, Requests};
use crate::errno::Errno;
use crate::lane::with_room;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// A range to copy, and its destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub from: Ino,
    pub from_at: u64,
    pub to: Ino,
    pub to_at: u64,
    pub len: u64,
}

impl Requests {
    /// Reads into `out`, which is this thread's, or in a thread that may wait for the device.
    pub fn read(&self, ino: Ino, at: u64, out: &mut [u8], answer: impl FnOnce(Outcome<&[u8]>) + Send + 'static) {
        let readers = &self.readers;
        let may_wait = readers.here.fetch_add(1, Ordering::AcqRel) < readers.here_max;
        let outcome = match may_wait {
            true => self.fs.read(ino, at, out),
            false => shoal_fs::without_device(|| self.fs.read(ino, at, out)),
        };
        readers.here.fetch_sub(1, Ordering::AcqRel);
        if outcome == Err(shoal_fs::Error::WouldFlush) {
            let (fs, len) = (self.fs.clone(), out.len());
            return readers.waiters.run(move || read_there(&fs, ino, at, len, answer));
        }
        answer(outcome.map(|read| &out[..read]).map_err(Errno::from));
    }

    /// Writes. A `killer` is a caller without CAP_FSETID, whose write takes set-id bits away.
    pub fn write(
        &self,
        ino: Ino,
        at: u64,
        data: &[u8],
        killer: Option<Asker>,
        answer: impl FnOnce(Outcome<usize>) + Send + 'static,
    ) {
        let cleared = killer.map_or(Ok(()), |asker| self.clear_set_id(asker, ino));
        let write = || with_room(self.lane.as_ref(), || shoal_fs::without_flush(|| self.fs.write(ino, at, data)));
        match cleared.and_then(|()| write()) {
            Err(shoal_fs::Error::WouldFlush) => {
                // The request's buffer belongs to this thread: only a request that waits pays for a copy.
                let (fs, lane, data) = (self.fs.clone(), self.lane.clone(), data.to_vec());
                let write = move || with_room(lane.as_ref(), || fs.write(ino, at, &data)).map_err(Errno::from);
                self.waiters.run(move || answer(write()));
            }
            outcome => answer(outcome.map_err(Errno::from)),
        }
    }

    pub fn fsync(&self, ino: Ino, answer: impl FnOnce(Outcome<()>) + Send + 'static) {
        self.syncer.fsync(ino, move |outcome| answer(outcome.map_err(Errno::from)));
    }

    /// Syncs everything, in a thread that may wait.
    pub fn syncfs(&self, answer: impl FnOnce(Outcome<()>) + Send + 'static) {
        let fs = self.fs.clone();
        self.waiters.run(move || answer(fs.sync().map_err(Errno::from)));
    }

    pub fn fallocate(
        &self,
        asker: Asker,
        ino: Ino,
        mode: u32,
        at: u64,
        len: u64,
        answer: impl FnOnce(Outcome<()>) + Send + 'static,
    ) {
        if let Err(error) = self.clear_set_id_unless_root(asker, ino) {
            return answer(Err(error.into()));
        }
        self.waiting(move |fs| fs.fallocate(ino, mode as i32, at, len), answer);
    }

    pub fn seek(&self, ino: Ino, at: u64, whence: u32) -> Outcome<u64> {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        if i64::try_from(at).is_err() {
            return Err(Errno::NXIO);
        }
        Ok(self.fs.seek(ino, at, what)?)
    }

    pub fn copy_range(&self, asker: Asker, copy: Copy, answer: impl FnOnce(Outcome<u64>) + Send + 'static) {
        // One request holds its inodes for as long as it copies; the caller goes on with the rest.
        let len = copy.len.min(1 << 30);
        if let Err(error) = self.clear_set_id_unless_root(asker, copy.to) {
            return answer(Err(error.into()));
        }
        self.waiting(move |fs| fs.copy_range(copy.from, copy.from_at, copy.to, copy.to_at, len), answer);
    }
}

thread_local! {
    /// Where a reader's thread has what it read.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads in a thread that may wait.
fn read_there(fs: &Fs, ino: Ino, at: u64, len: usize, answer: impl FnOnce(Outcome<&[u8]>)) {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let outcome = fs.read(ino, at, &mut buffer[..len]);
        answer(outcome.map(|read| &buffer[..read]).map_err(Errno::from));
    });
}
