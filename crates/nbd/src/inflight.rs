//! The client's requests in flight, by cookie.
//!
//! A cookie is a slot number and the slot's generation, so a cookie that was never given out, or
//! was already answered, is recognised as unknown. A request is over when it is answered *and* its
//! buffer came back from the sending side (a reply may overtake the hand-over). Then its completion
//! runs, outside the lock, exactly once. When the connection is lost, all requests fail with the
//! same reason, and no more are accepted.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use shoal_media::{Completion, MediaError};

use crate::wire::transmission::Extent;

/// Replies to a block status request: context id and extents.
pub(crate) type Statuses = Vec<(u32, Vec<Extent>)>;

/// Receiver of the outcome.
pub(crate) enum Done {
    Block(Completion),
    Status(Box<dyn FnOnce(Result<Statuses, MediaError>) + Send>),
}

/// Kind of reply that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Nothing,
    Data { at: u64, len: u32 },
    Status { at: u64, len: u32 },
}

/// One request in flight.
pub(crate) struct Entry {
    pub(crate) expect: Expect,
    /// For a read, the buffer to fill. For a write, empty until the sending side hands the buffer
    /// back.
    pub(crate) buffer: Vec<u8>,
    pub(crate) buffer_is_out: bool,
    pub(crate) statuses: Statuses,
    pub(crate) started: Instant,
    pub(crate) done: Done,
    pub(crate) outcome: Option<Result<(), MediaError>>,
}

impl Entry {
    pub(crate) fn new(expect: Expect, buffer: Vec<u8>, done: Done) -> Entry {
        Entry { expect, buffer, buffer_is_out: false, statuses: vec![], started: Instant::now(), done, outcome: None }
    }

    /// The entry of a write, whose buffer the sending side has.
    pub(crate) fn of_write(done: Done) -> Entry {
        Entry { buffer_is_out: true, ..Entry::new(Expect::Nothing, vec![], done) }
    }

    fn is_over(&self) -> bool {
        self.outcome.is_some() && !self.buffer_is_out
    }

    fn complete(self) {
        let outcome = self.outcome.unwrap_or(Ok(()));
        match self.done {
            Done::Block(done) => done(outcome.map(|()| self.buffer)),
            Done::Status(done) => done(outcome.map(|()| self.statuses)),
        }
    }

    fn fail(self, error: MediaError) {
        match self.done {
            Done::Block(done) => done(Err(error)),
            Done::Status(done) => done(Err(error)),
        }
    }
}

#[derive(Default)]
struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    lost: Option<MediaError>,
    /// When answers were last found to have come.
    answered: Option<Instant>,
    /// Answers have come since `answered` was asked for.
    is_moving: bool,
}

impl Slots {
    fn entry(&mut self, cookie: u64) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(cookie as u32 as usize)?;
        slot.entry.as_mut().filter(|_| u64::from(slot.generation) == cookie >> 32)
    }

    fn take(&mut self, cookie: u64) -> Option<Entry> {
        self.entry(cookie)?;
        let index = cookie as u32;
        let entry = self.slots[index as usize].entry.take();
        self.free.push(index);
        entry
    }
}

#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<Slots>>);

impl InFlight {
    /// Takes a request and returns its cookie, never 0. After a loss the request fails at once.
    pub(crate) fn insert(&self, entry: Entry) -> Option<u64> {
        let mut slots = self.0.lock();
        if let Some(lost) = slots.lost.clone() {
            drop(slots);
            entry.fail(lost);
            return None;
        }
        let index = match slots.free.pop() {
            Some(index) => index,
            None => {
                slots.slots.push(Slot::default());
                slots.slots.len() as u32 - 1
            }
        };
        let slot = &mut slots.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.entry = Some(entry);
        Some(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Returns the reply expected for this cookie, unless it is not in flight or already answered.
    pub(crate) fn expected(&self, cookie: u64) -> Option<Expect> {
        self.0.lock().entry(cookie).filter(|entry| entry.outcome.is_none()).map(|entry| entry.expect)
    }

    /// Lends a read's buffer to the receiving thread, until `put_buffer`.
    pub(crate) fn take_buffer(&self, cookie: u64) -> Vec<u8> {
        self.0.lock().entry(cookie).map(|entry| std::mem::take(&mut entry.buffer)).unwrap_or_default()
    }

    pub(crate) fn put_buffer(&self, cookie: u64, buffer: Vec<u8>) {
        if let Some(entry) = self.0.lock().entry(cookie) {
            entry.buffer = buffer;
        }
    }

    /// Adds a status. Returns false if the context has already answered.
    pub(crate) fn add_status(&self, cookie: u64, id: u32, extents: Vec<Extent>) -> bool {
        let mut slots = self.0.lock();
        let Some(entry) = slots.entry(cookie) else { return true };
        if entry.statuses.iter().any(|(known, _)| *known == id) {
            return false;
        }
        entry.statuses.push((id, extents));
        true
    }

    pub(crate) fn statuses(&self, cookie: u64) -> usize {
        self.0.lock().entry(cookie).map_or(0, |entry| entry.statuses.len())
    }

    /// Records the outcome of a request whose final reply has come.
    pub(crate) fn answer(&self, cookie: u64, outcome: Result<(), MediaError>) {
        self.update(cookie, |entry| entry.outcome = Some(outcome));
    }

    /// Takes a write's buffer back from the sending side.
    pub(crate) fn give_back(&self, cookie: u64, buffer: Vec<u8>) {
        self.update(cookie, |entry| {
            entry.buffer = buffer;
            entry.buffer_is_out = false;
        });
    }

    fn update(&self, cookie: u64, change: impl FnOnce(&mut Entry)) {
        let over = {
            let mut slots = self.0.lock();
            let Some(entry) = slots.entry(cookie) else { return };
            let unanswered = entry.outcome.is_none();
            change(entry);
            let answered = unanswered && entry.outcome.is_some();
            let is_over = entry.is_over();
            slots.is_moving |= answered;
            if is_over { slots.take(cookie) } else { None }
        };
        if let Some(entry) = over {
            entry.complete();
        }
    }

    /// Fails everything in flight and everything to come.
    pub(crate) fn lose(&self, why: MediaError) {
        let entries: Vec<Entry> = {
            let mut slots = self.0.lock();
            slots.lost.get_or_insert(why.clone());
            let cookies = slots.slots.iter_mut().enumerate();
            let entries: Vec<(u32, Entry)> =
                cookies.filter_map(|(at, slot)| Some((at as u32, slot.entry.take()?))).collect();
            slots.free.extend(entries.iter().map(|(at, _)| at));
            entries.into_iter().map(|(_, entry)| entry).collect()
        };
        for entry in entries {
            // A request answered before the loss stays answered.
            if entry.outcome.is_some() { entry.complete() } else { entry.fail(why.clone()) }
        }
    }

    pub(crate) fn lost(&self) -> Option<MediaError> {
        self.0.lock().lost.clone()
    }

    /// Returns when answers last came, as precisely as the calls of this function can tell.
    pub(crate) fn answered(&self) -> Option<Instant> {
        let mut slots = self.0.lock();
        if std::mem::take(&mut slots.is_moving) {
            slots.answered = Some(Instant::now());
        }
        slots.answered
    }

    /// When the oldest unanswered request was made.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let slots = self.0.lock();
        let entries = slots.slots.iter().filter_map(|slot| slot.entry.as_ref());
        entries.filter(|entry| entry.outcome.is_none()).map(|entry| entry.started).min()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().slots.iter().filter(|slot| slot.entry.is_some()).count()
    }
}
