//! Reads spilled payloads and brings them back into the region.
//!
//! Rules: the device is read without inode locks, so the range may belong to another payload by the
//! time it is read, which the sum tells, and the dictionary of a file that changed meanwhile may be
//! gone. After either, head and mapping are looked up again. Only a payload that fails twice, with
//! both unchanged, is damaged. The range cannot have been freed and reused meanwhile, because its
//! head was there before and after.
//! Left out: which files come back, and when (`spill`).

use std::sync::Arc;

use shoal_format::object::{GROUP, Object, SpillPlace};

use super::TICK_RETURNS_NS;
use crate::cold::objects::{self, Placed};
use crate::cold::owner::{Group, exchange, object_of};
use crate::large::{Span, read_spans};
use crate::planted::{Bug, is_planted};
use crate::rooms::Spilling;
use crate::small::Spilled;
use crate::{Error, Ino, Result};

/// Decompressed objects kept for readers that read them in parts.
const KEPT: usize = 16;

/// A spilled object that was read.
pub(crate) struct Fetched {
    place: SpillPlace,
    object: Object,
    bytes: Arc<Vec<u8>>,
}

/// A payload that is not what its object stands for: the object, and where it was read.
#[derive(PartialEq, Eq)]
pub(crate) struct Wrong {
    object: Object,
    place: SpillPlace,
    spans: Vec<Span>,
    finding: String,
}

fn wrong_sum(object: Object, place: SpillPlace, spans: Vec<Span>) -> Wrong {
    let at = spans.first().and_then(Span::at).unwrap_or(0);
    let finding = format!("spilled data at {at:#x} of bulk storage: the checksum is wrong");
    Wrong { object, place, spans, finding }
}

/// A payload, or what was found in its place.
pub(super) type Read = std::result::Result<Vec<u8>, Wrong>;

impl<'a> Spilling<'a> {
    /// Reads a payload as it is on the device.
    pub(super) fn spilled_payload(self, ino: Ino, placed: &Placed, place: SpillPlace) -> Result<Read> {
        let Some(file) = self.fs.spill.file() else { return Err(lost(ino, &"the store has no spill file")) };
        let mut payload = vec![0; placed.object.payload as usize];
        let spans = {
            let _lock = self.fs.locks.read(file);
            let inode = self.load_spill_file(file).map_err(|error| lost(ino, &error))?;
            self.fs.large().spans(&inode, place.0, payload.len())?
        };
        let object = placed.object;
        let outcome = read_spans(self.fs, &spans, &mut payload);
        if matches!(outcome, Err(Error::Damaged { .. })) {
            // Several payloads share a unit of the device. This payload's own sum tells whether it
            // is the damaged one.
            let is_right = !is_planted(Bug::NeighboursLost)
                && self.payload_as_it_is(&spans, &mut payload).is_ok()
                && object.sum_of(&payload) == object.sum;
            return if is_right { Ok(Ok(payload)) } else { Ok(Err(wrong_sum(object, place, spans))) };
        }
        if let Err(error) = outcome {
            // The blocks may have moved, and their old device may be gone.
            let _lock = self.fs.locks.read(file);
            let now =
                self.load_spill_file(file).and_then(|inode| self.fs.large().spans(&inode, place.0, payload.len()));
            return if now.is_ok_and(|now| now == spans) {
                Err(lost(ino, &error))
            } else {
                Ok(Err(wrong_sum(object, place, spans)))
            };
        }
        if object.sum_of(&payload) != object.sum && !is_planted(Bug::SpilledUnverified) {
            return Ok(Err(wrong_sum(object, place, spans)));
        }
        Ok(Ok(payload))
    }

    fn payload_as_it_is(self, spans: &[Span], mut out: &mut [u8]) -> Result<()> {
        for span in spans {
            let (part, rest) = out.split_at_mut(span.len());
            match span.at() {
                Some(at) => self.fs.bulk()?.read_as_it_is(at, part)?,
                None => part.fill(0),
            }
            out = rest;
        }
        Ok(())
    }

    /// Fills the parts of `out` that are spilled. The inner value reports a wrong payload. `again`: the
    /// file was in use a moment ago. The caller holds no locks.
    pub(crate) fn read_spilled(
        self,
        ino: Ino,
        parts: &[Spilled],
        out: &mut [u8],
        again: bool,
    ) -> Result<Option<Wrong>> {
        for part in parts {
            let Some(place) = part.placed.place else { continue };
            let object = part.placed.object;
            let bytes = match self.kept(place, &object) {
                Some(bytes) => bytes,
                None => match self.spilled_payload(ino, &part.placed, place)? {
                    Err(wrong) => return Ok(Some(wrong)),
                    Ok(payload) => {
                        let bytes = match self.fs.objects.bytes_of(&part.placed, payload) {
                            Err(Error::Corrupt(finding)) => {
                                return Ok(Some(Wrong { object, place, spans: Vec::new(), finding }));
                            }
                            bytes => Arc::new(bytes?),
                        };
                        if part.out.len() < bytes.len() {
                            self.keep(Fetched { place, object, bytes: bytes.clone() });
                        }
                        bytes
                    }
                },
            };
            part.fill(&bytes, out);
        }
        self.was_read(ino, parts, again);
        Ok(None)
    }

    /// Like [`Spilling::read_spilled`], but uses only objects that earlier reads kept, and never
    /// waits for the device. Returns whether these were all that is needed.
    pub(crate) fn read_kept(self, ino: Ino, parts: &[Spilled], out: &mut [u8], again: bool) -> bool {
        for part in parts {
            let Some(place) = part.placed.place else { continue };
            let Some(bytes) = self.kept(place, &part.placed.object) else { return false };
            part.fill(&bytes, out);
        }
        self.was_read(ino, parts, again);
        true
    }

    fn was_read(self, ino: Ino, parts: &[Spilled], again: bool) {
        if !parts.is_empty() {
            self.fs.spill.wants_back(ino, again);
        }
    }

    fn kept(self, place: SpillPlace, object: &Object) -> Option<Arc<Vec<u8>>> {
        let fetched = self.fs.spill.fetched.lock();
        fetched.iter().find(|kept| kept.place == place && kept.object == *object).map(|kept| kept.bytes.clone())
    }

    fn keep(self, read: Fetched) {
        let mut fetched = self.fs.spill.fetched.lock();
        fetched.truncate(KEPT - 1);
        fetched.push_front(read);
    }

    /// Notes a wrong payload, found twice in the same place, as damage.
    pub(crate) fn spilled_damage(self, ino: Ino, wrong: &Wrong) -> Error {
        self.fs.table.damage.note(ino, &Error::Corrupt(wrong.finding.clone()));
        lost(ino, &wrong.finding)
    }

    /// Brings a group of a file back into the region, so that an operation can change it. The caller holds no locks.
    pub(crate) fn bring_back(self, ino: Ino, group: u64) -> Result<()> {
        self.fs.spill.warm.touch(ino);
        let mut before = None;
        loop {
            let Some((placed, place)) = self.spilled_at(ino, group)? else { return Ok(()) };
            match self.spilled_payload(ino, &placed, place)? {
                Ok(payload) => {
                    if self.put_back(ino, group, &placed, &payload)? {
                        return Ok(());
                    }
                }
                Err(wrong) if before.as_ref() == Some(&wrong) => return Err(self.spilled_damage(ino, &wrong)),
                Err(wrong) => before = Some(wrong),
            }
        }
    }

    /// Returns the object of a group, if it is spilled.
    pub(super) fn spilled_at(self, ino: Ino, group: u64) -> Result<Option<(Placed, SpillPlace)>> {
        let _lock = self.fs.locks.read(ino);
        let inode = self.fs.load(ino)?;
        let placed = object_of(&self.fs.region, &inode, group)?;
        Ok(placed.and_then(|placed| placed.place.map(|place| (placed, place))))
    }

    /// Replaces a spilled object by one with this payload. Returns false if the group has another
    /// object now.
    fn put_back(self, ino: Ino, group: u64, seen: &Placed, payload: &[u8]) -> Result<bool> {
        let _lock = self.fs.locks.write(ino);
        let mut inode = self.fs.load(ino)?;
        let Some(placed) = object_of(&self.fs.region, &inode, group)? else { return Ok(false) };
        if (placed.object, placed.place) != (seen.object, seen.place) && !is_planted(Bug::SpilledUnseen) {
            return Ok(false);
        }
        let mut tx = self.fs.region.begin();
        let code = (placed.object.codec, placed.object.dictionary);
        let mut owner = Group { inode: &mut inode, number: group };
        let new = objects::make(&mut tx, &mut owner, code, placed.object.bytes.into(), payload)?;
        exchange(&mut tx, &mut owner, &placed, new)?;
        self.fs.store(&mut tx, ino, &inode)?;
        self.fs.packing.commit_spilled(tx)?;
        Ok(true)
    }

    /// Brings back files that were read while they were spilled, as long as memory is below
    /// `percent`. Without room they stay spilled.
    pub(super) fn bring_some_back(self, percent: u64) -> Result<()> {
        let until_ns = self.fs.clock.monotonic_ns() + TICK_RETURNS_NS;
        while self.memory_above(percent) == 0 && self.fs.clock.monotonic_ns() < until_ns {
            let next = {
                let mut returns = self.fs.spill.returns.lock();
                returns.again.pop_front().or_else(|| returns.once.pop_front())
            };
            let Some(ino) = next else { return Ok(()) };
            match self.bring_file_back(ino) {
                // The file is damaged or unreadable: its next reader gets the error.
                Ok(()) | Err(Error::Corrupt(_) | Error::Io(_) | Error::Damaged { .. }) => {}
                Err(Error::NoSpace(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings all of a file back.
    pub(super) fn bring_file_back(self, ino: Ino) -> Result<()> {
        let groups = {
            let _lock = self.fs.locks.read(ino);
            match self.fs.load(ino) {
                Err(Error::Stale) => 0,
                loaded => loaded?.size.div_ceil(GROUP),
            }
        };
        for group in 0..groups {
            match self.bring_back(ino, group) {
                Err(Error::Stale) => return Ok(()),
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

fn lost(ino: Ino, why: &dyn std::fmt::Display) -> Error {
    Error::Io(format!("inode {ino} is on bulk storage and cannot be read: {why}"))
}
