//! Reads of file data.
//!
//! A read that needs the bulk device is two steps, so that a thread which must not wait can take
//! the first one and leave the other to a thread that may: [`Fs::read_begin`] reads what is in the
//! region and finds out where the rest is, and [`Fs::read_on`] reads that from the device. No lock
//! is held in between. What was found is used if nobody had the file's data lock exclusively
//! meanwhile, or, for spilled data, if its checksum is right; otherwise the read starts over.
//!
//! Left out: where the data is (`small`, `large`, `cold`), and holes (`file`).

use std::sync::atomic::Ordering::Relaxed;

use shoal_format::inode::{INODE_NO_ATIME, Inode, Layout};

use crate::cold::spill::Wrong;
use crate::large::{Span, read_spans};
use crate::planted::{Bug, is_planted};
use crate::rooms::Data;
use crate::small::{self, Spilled};
use crate::{Fs, Ino, Result};

const DAY_NS: i64 = 24 * 3600 * 1_000_000_000;

/// When a read changes the file's access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// When that time is not newer than the last change, or is a day old (`relatime`).
    Relative,
    /// With every read that reaches the engine (`strictatime`).
    Always,
    /// Never (`noatime`).
    Never,
}

/// How far [`Fs::read_begin`] has come.
pub enum Reading {
    /// The read has ended, with this many bytes.
    Done(usize),
    /// The rest is on the bulk device, or a thread that may wait for the device has the file.
    Needs(ReadPlan),
}

/// A read that goes on with the bulk device ([`Fs::read_on`]).
pub struct ReadPlan {
    ino: Ino,
    at: u64,
    /// The file was in use a moment ago.
    again: bool,
    rest: Rest,
}

enum Rest {
    /// A large file that somebody changes: nothing has been found yet.
    Everything,
    /// Where the bytes of a large file are, after this number of changes of it.
    Spans { inode: Inode, spans: Vec<Span>, changes: u64 },
    /// The read has `len` bytes, and `parts` of them are in the spill file. `others` holds the bytes
    /// read so far if the read goes on in another buffer; otherwise it is empty.
    Spilled { inode: Inode, len: usize, parts: Vec<Spilled>, others: Vec<u8> },
}

impl ReadPlan {
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns the byte that the read begins with.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Takes along what has been read into `out`, so that the read can go on in another buffer of
    /// that length.
    pub fn leaves(mut self, out: &[u8]) -> ReadPlan {
        if let Rest::Spilled { len, others, .. } = &mut self.rest {
            *others = out[..*len].to_vec();
        }
        self
    }
}

/// The outcome of the first step.
enum Found {
    /// The read has ended: the number of bytes, and the inode that they belong to.
    All(usize, Inode),
    Rest(Rest),
}

impl Fs {
    /// Reads from byte `at`; returns how many bytes there are, fewer than asked for only at the file's end.
    pub fn read(&self, ino: Ino, at: u64, out: &mut [u8]) -> Result<usize> {
        match self.read_begin(ino, at, out)? {
            Reading::Done(len) => Ok(len),
            Reading::Needs(plan) => self.read_on(plan, out),
        }
    }

    /// Begins a read as [`Fs::read`] does, and never waits for the bulk device.
    pub fn read_begin(&self, ino: Ino, at: u64, out: &mut [u8]) -> Result<Reading> {
        // A long file is read in many calls; only the first one counts.
        let again = self.data().note_use(ino) && at == 0;
        match self.met(ino, self.data().read_memory(ino, at, out, again))? {
            Found::All(len, inode) => Ok(Reading::Done(self.data().has_read(ino, len, &inode))),
            Found::Rest(rest) => Ok(Reading::Needs(ReadPlan { ino, at, again, rest })),
        }
    }

    /// Ends a read that has begun. `out` is as long as it was then.
    pub fn read_on(&self, plan: ReadPlan, out: &mut [u8]) -> Result<usize> {
        let ino = plan.ino;
        let (len, inode) = self.met(ino, self.data().rest(plan, out))?;
        Ok(self.data().has_read(ino, len, &inode))
    }

    /// Sets when reads change access times, from now on.
    pub fn set_access_times(&self, rule: AccessTimes) {
        self.access_times.store(rule as u8, Relaxed);
    }
}

impl<'a> Data<'a> {
    /// Reads for a change of another file: no access time changes.
    pub(crate) fn read_data(self, ino: Ino, at: u64, out: &mut [u8]) -> Result<(usize, Inode)> {
        let again = self.note_use(ino) && at == 0;
        match self.read_memory(ino, at, out, again)? {
            Found::All(len, inode) => Ok((len, inode)),
            Found::Rest(rest) => self.rest(ReadPlan { ino, at, again, rest }, out),
        }
    }

    /// Reads what is in memory.
    fn read_memory(self, ino: Ino, at: u64, out: &mut [u8], again: bool) -> Result<Found> {
        loop {
            let lock = self.fs.locks.read(ino);
            let inode = self.load_file(ino)?;
            if inode.layout != Layout::Extents {
                let (len, parts) = self.read_in_region(&inode, at, out)?;
                drop(lock);
                return Ok(match self.fs.spilling().read_kept(ino, &parts, &mut out[..len], again) {
                    true => Found::All(len, inode),
                    false => Found::Rest(Rest::Spilled { inode, len, parts, others: Vec::new() }),
                });
            }
            drop(lock);
            let Some(data) = self.fs.data_locks.try_read(ino) else { return Ok(Found::Rest(Rest::Everything)) };
            // It may have moved back to the region before it was locked.
            let Some((inode, spans)) = self.find_large(ino, at, out.len())? else { continue };
            if spans.iter().any(|span| span.at().is_some()) {
                return Ok(Found::Rest(Rest::Spans { inode, spans, changes: *data }));
            }
            let len = spans.iter().map(Span::len).sum();
            out[..len].fill(0);
            return Ok(Found::All(len, inode));
        }
    }

    /// Returns where up to `len` bytes of a large file are; `None` if it is not large. The caller
    /// has the data lock.
    fn find_large(self, ino: Ino, at: u64, len: usize) -> Result<Option<(Inode, Vec<Span>)>> {
        let _lock = self.fs.locks.read(ino);
        let inode = self.load_file(ino)?;
        if inode.layout != Layout::Extents {
            return Ok(None);
        }
        let spans = self.fs.large().spans(&inode, at, within(&inode, at, len))?;
        Ok(Some((inode, spans)))
    }

    /// Reads what is left, from the beginning if it has changed.
    fn rest(self, plan: ReadPlan, out: &mut [u8]) -> Result<(usize, Inode)> {
        let ReadPlan { ino, at, again, mut rest } = plan;
        let mut before: Option<Wrong> = None;
        loop {
            match rest {
                Rest::Spans { inode, spans, changes } => {
                    let data = self.fs.data_locks.read(ino);
                    if *data == changes || is_planted(Bug::PlanOutlived) {
                        return self.read_large(inode, &spans, out);
                    }
                }
                Rest::Spilled { inode, len, parts, others } => {
                    let out = &mut out[..len];
                    if !others.is_empty() {
                        out.copy_from_slice(&others);
                    }
                    let Some(wrong) = self.fs.spilling().read_spilled(ino, &parts, out, again)? else {
                        return Ok((len, inode));
                    };
                    if before.as_ref() == Some(&wrong) || is_planted(Bug::SpilledOneLook) {
                        return Err(self.fs.spilling().spilled_damage(ino, &wrong));
                    }
                    before = Some(wrong);
                }
                Rest::Everything => {}
            }
            // A file that is changed all the time is read under its lock.
            let data = self.fs.data_locks.read(ino);
            if let Some((inode, spans)) = self.find_large(ino, at, out.len())? {
                return self.read_large(inode, &spans, out);
            }
            drop(data);
            rest = match self.read_memory(ino, at, out, again)? {
                Found::All(len, inode) => return Ok((len, inode)),
                Found::Rest(rest) => rest,
            };
        }
    }

    fn read_large(self, inode: Inode, spans: &[Span], out: &mut [u8]) -> Result<(usize, Inode)> {
        let len = spans.iter().map(Span::len).sum();
        read_spans(self.fs, spans, &mut out[..len])?;
        Ok((len, inode))
    }

    /// Reads what is in the region; returns how many bytes there are, and which of them are in the
    /// spill file.
    pub(crate) fn read_in_region(self, inode: &Inode, at: u64, out: &mut [u8]) -> Result<(usize, Vec<Spilled>)> {
        let len = within(inode, at, out.len());
        let out = &mut out[..len];
        let mut spilled = Vec::new();
        match inode.layout {
            Layout::Direct | Layout::Chunked | Layout::Packed => {
                spilled = small::read_parts(&self.fs.region, &self.fs.objects, inode, at, out)?;
            }
            _ => out.fill(0),
        }
        Ok((len, spilled))
    }

    /// Notes that the file is in use, so that it does not spill before others. Returns whether it
    /// was in use a moment ago.
    pub(crate) fn note_use(self, ino: Ino) -> bool {
        self.fs.bulk.is_some() && self.fs.spill.warm.touch(ino)
    }

    fn has_read(self, ino: Ino, len: usize, inode: &Inode) -> usize {
        if len > 0 {
            self.touch_atime(ino, inode);
        }
        len
    }

    /// Updates the access time if that is due. Drops errors: a file must be readable on a full or
    /// failed store.
    pub(crate) fn touch_atime(self, ino: Ino, seen: &Inode) {
        let rule = self.fs.access_times.load(Relaxed);
        if rule == AccessTimes::Never as u8 {
            return;
        }
        let now = self.fs.now();
        let due = |inode: &Inode| {
            inode.flags & INODE_NO_ATIME == 0
                && (rule == AccessTimes::Always as u8
                    || inode.atime <= inode.mtime
                    || inode.atime <= inode.ctime
                    || now.saturating_sub(inode.atime) > DAY_NS)
        };
        if !due(seen) || self.fs.writable().is_err() {
            return;
        }
        let _lock = self.fs.locks.write(ino);
        let Ok(mut inode) = self.fs.load(ino) else { return };
        if inode.generation == seen.generation && due(&inode) {
            inode.atime = now;
            let mut tx = self.fs.region.begin();
            if self.fs.store(&mut tx, ino, &inode).is_ok() {
                let _ = tx.commit();
            }
        }
    }
}

/// Returns how many of `len` bytes from byte `at` on are within the file.
fn within(inode: &Inode, at: u64, len: usize) -> usize {
    inode.size.saturating_sub(at).min(len as u64) as usize
}
