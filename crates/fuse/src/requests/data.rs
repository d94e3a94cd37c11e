//! Data: reading, writing, room, syncs.
//!
//! A request that may have to wait for the bulk device answers through a callback, if necessary
//! from another thread (`waiters`, `syncer`). All others return at once.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use shoal_fs::{Fs, Ino, Manner, Patience, ReadPlan, Reading, Seek, Writer};

use super::zeros::Zeros;
use super::{Asker, Outcome, Requests};
use crate::errno::Errno;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Maximum bytes that one request copies. Meanwhile it holds its inodes, and the caller, which
/// cannot be interrupted. The caller goes on with the rest.
const COPY_BYTES_MAX: u64 = 8 << 20;
/// Maximum bytes copied in a thread that serves requests: takes about as long as a large read or
/// write.
const COPY_BYTES_HERE: u64 = 256 << 10;

/// Longest range that is freed or given room in a thread that serves requests. It may have as many
/// pieces as blocks.
pub(super) const ROOM_BYTES_HERE: u64 = 16 << 20;

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
    /// Reads into `out`, which is this thread's buffer. Data that is not in memory is read from the
    /// device by this thread, unless too many request threads already wait for reads. Then a thread
    /// of the readers does it.
    pub fn read(&self, ino: Ino, at: u64, out: &mut [u8], answer: impl FnOnce(Outcome<&[u8]>) + Send + 'static) {
        let readers = &self.readers;
        let outcome = match self.fs.read_begin(ino, at, out) {
            Ok(Reading::Done(read)) => Ok(read),
            Ok(Reading::Needs(plan)) => {
                let may_wait = readers.here.fetch_add(1, Ordering::AcqRel) < readers.here_max;
                if !may_wait {
                    readers.here.fetch_sub(1, Ordering::AcqRel);
                    let (fs, zeros, len, plan) = (self.fs.clone(), self.zeros.clone(), out.len(), plan.leaves(out));
                    return readers.waiters.run(move || read_there(&fs, zeros.as_deref(), plan, len, answer));
                }
                let outcome = self.fs.read_on(plan, out);
                readers.here.fetch_sub(1, Ordering::AcqRel);
                outcome
            }
            Err(error) => Err(error),
        };
        answer(noted(self.zeros.as_deref(), ino, at, out, outcome));
    }

    /// Writes. `is_page`: the kernel writes back the data. A `killer` is a caller without
    /// CAP_FSETID, whose write clears set-id bits.
    pub fn write(
        &self,
        ino: Ino,
        at: u64,
        data: &[u8],
        is_page: bool,
        killer: Option<Asker>,
        answer: impl FnOnce(Outcome<usize>) + Send + 'static,
    ) {
        if let Some(zeros) = &self.zeros {
            zeros.crossed(ino, at, data);
        }
        let cleared = killer.map_or(Ok(()), |asker| self.clear_set_id(asker, ino));
        let gathers = self.gathers();
        let (refused, len) = ((gathers && is_page).then(|| self.refused.clone()), data.len());
        let answer = move |outcome: Outcome<usize>| {
            refused.iter().for_each(|refused| refused.written(ino, at, len, &outcome));
            answer(outcome);
        };
        let writer = if gathers && is_page { self.gathered.writer(ino) } else { Writer::Program };
        let manner = Manner { patience: Patience::Refuses, keeps_times: gathers, ..Manner::default() };
        match cleared.and_then(|()| self.fs.write_of(manner, writer, ino, at, data)) {
            Err(shoal_fs::Error::WouldFlush) => {
                // The request's buffer belongs to this thread, so only a request that waits pays
                // for a copy.
                let (fs, data) = (self.fs.clone(), data.to_vec());
                let manner = Manner { patience: Patience::Waits, ..manner };
                self.waiters.run(move || answer(fs.write_of(manner, writer, ino, at, &data).map_err(Errno::from)));
            }
            outcome => answer(outcome.map_err(Errno::from)),
        }
    }

    pub fn fsync(&self, ino: Ino, answer: impl FnOnce(Outcome<()>) + Send + 'static) {
        if let Err(error) = self.refused.check(ino) {
            return answer(Err(error));
        }
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
        let possible = Fs::check_fallocate(mode as i32, at, len);
        if let Err(error) = possible.and_then(|()| self.clear_set_id_unless_root(asker, ino)) {
            return answer(Err(error.into()));
        }
        if let Some(zeros) = &self.zeros {
            // The kernel drops the whole pages of a range that becomes zeros, so only its edges are
            // noted.
            [at, at.saturating_add(len)].into_iter().for_each(|edge| zeros.cut(ino, edge));
        }
        let keeps_times = self.gathers();
        let work = move |fs: &Fs, patience| {
            fs.fallocate_by(Manner { patience, keeps_times, ..Manner::default() }, ino, mode as i32, at, len)
        };
        match len > ROOM_BYTES_HERE {
            true => self.elsewhere(work, answer),
            false => self.waiting(work, answer),
        }
    }

    /// Finds the next data or hole. Refused if the kernel's write-back cache may have data that is
    /// unknown here. The kernel then takes every file for data, for as long as the store is
    /// mounted.
    pub fn seek(&self, ino: Ino, at: u64, whence: u32) -> Outcome<u64> {
        let Some(zeros) = &self.zeros else { return Err(Errno::NOSYS) };
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        if i64::try_from(at).is_err() {
            return Err(Errno::NXIO);
        }
        let size = self.fs.getattr(ino)?.size;
        Ok(zeros.seek(ino, at, what, size, |at, what| self.fs.seek(ino, at, what))?)
    }

    pub fn copy_range(&self, asker: Asker, copy: Copy, answer: impl FnOnce(Outcome<u64>) + Send + 'static) {
        if let Err(error) = self.clear_set_id_unless_root(asker, copy.to) {
            return answer(Err(error.into()));
        }
        // Programs ask for as much as any file may have, so look at what there is.
        let there = match self.fs.getattr(copy.from) {
            Ok(attr) => attr.size.saturating_sub(copy.from_at),
            Err(error) => return answer(Err(error.into())),
        };
        let (len, keeps_times) = (copy.len.min(COPY_BYTES_MAX), self.gathers());
        let work = move |fs: &Fs, patience| {
            let manner = Manner { patience, keeps_times, ..Manner::default() };
            fs.copy_range_by(manner, (copy.from, copy.from_at), (copy.to, copy.to_at), len)
        };
        match len.min(there) > COPY_BYTES_HERE {
            true => self.elsewhere(work, answer),
            false => self.waiting(work, answer),
        }
    }
}

thread_local! {
    /// Buffer of a reader's thread.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads on in a thread that may wait.
fn read_there(fs: &Fs, zeros: Option<&Zeros>, plan: ReadPlan, len: usize, answer: impl FnOnce(Outcome<&[u8]>)) {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let (ino, at) = (plan.ino(), plan.at());
        let outcome = fs.read_on(plan, &mut buffer[..len]);
        answer(noted(zeros, ino, at, &buffer[..len], outcome));
    });
}

/// Returns what a read into `out` found, after noting which of it is zeros.
fn noted<'a>(
    zeros: Option<&Zeros>,
    ino: Ino,
    at: u64,
    out: &'a [u8],
    outcome: shoal_fs::Result<usize>,
) -> Outcome<&'a [u8]> {
    let read = outcome?;
    if let Some(zeros) = zeros {
        zeros.read(ino, at, out.len(), &out[..read]);
    }
    Ok(&out[..read])
}
