//! Which views a crash at some moment of two operations may leave, and which bytes are promised.
//!
//! Views come from running the operations in turn: first those of the past in order, then neither
//! operation of the pair, either alone, or both in either order. Rules:
//! - The log is a prefix. After a process crash, the view has every operation that returned. After
//!   a power loss, the same holds if the memory's log is durable at once. With other memory, the
//!   view has the operations that had returned before the start of an fsync, sync or tick that
//!   itself returned.
//! - An operation that returned before the other began is in every view that has the other.
//! - Bytes of the region are in the log and are promised with it. Bytes on the bulk device are
//!   promised only by an fsync of the file, a sync or a tick. A file counts as being in the region
//!   at a moment if every view of that moment has it there.
//! - The record that gives a file the name of another one also promises the file's bytes at that
//!   time. A file whose contents were cut off whole is promised by whatever makes the log durable
//!   (memory without a ring, for the first seconds).
//! - A byte of a file that is large in some view comes from the view, from a later one (written in
//!   place), or from an earlier one (not yet written in place). An earlier view counts only if
//!   every view between has the byte, and if it is no older than the file's promise. The byte is
//!   zero where no such promise covers it. So bytes that were cut off, and bytes of other files,
//!   are never allowed.

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Ino, RenameMode};

use super::view::{Candidate, File, Shown, View, unexplained};
use crate::crash::operation::Operation;

/// A state of running operations in turn: the first operations of the past, or the whole past and
/// one or both of the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Past(usize),
    /// Operations in the order in which they were run.
    One(usize),
    Both(usize, usize),
}

impl Turn {
    fn has(self, actor: usize) -> bool {
        match self {
            Turn::Past(_) => false,
            Turn::One(one) => one == actor,
            Turn::Both(..) => true,
        }
    }
}

/// Progress of both operations at a moment of a schedule.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    pub begun: [bool; 2],
    /// Whether the operation succeeded, for each actor that returned.
    pub returned: [Option<bool>; 2],
    /// The moments at which each actor began and returned.
    at_begin: [Option<Box<Moment>>; 2],
    at_return: [Option<Box<Moment>>; 2],
}

impl Moment {
    pub fn begin(&mut self, actor: usize) {
        self.begun[actor] = true;
        self.at_begin[actor] = Some(Box::new(self.clone()));
    }

    pub fn end(&mut self, actor: usize, ok: bool) {
        self.returned[actor] = Some(ok);
        self.at_return[actor] = Some(Box::new(self.clone()));
    }

    fn returned_ok(&self, actor: usize) -> bool {
        self.returned[actor] == Some(true)
    }

    /// Returns whether `first` had returned when `second` began.
    fn precedes(&self, first: usize, second: usize) -> bool {
        self.at_begin[second].as_ref().is_some_and(|then| then.returned_ok(first))
    }

    /// Returns whether `other` was under way when `actor` returned.
    fn returned_amid(&self, actor: usize, other: usize) -> bool {
        self.at_return[actor].as_ref().is_some_and(|then| then.begun[other] && then.returned[other].is_none())
    }

    /// Returns whether the state may be that of `turn`, given that it has at least the operations
    /// in `with`.
    fn allows(&self, turn: Turn, with: [bool; 2]) -> bool {
        let has = [turn.has(0), turn.has(1)];
        let complete = (0..2).all(|actor| (has[actor] || !with[actor]) && (!has[actor] || self.begun[actor]));
        let ordered = match turn {
            Turn::Both(first, second) => !self.precedes(second, first),
            Turn::One(one) => !self.precedes(1 - one, one),
            Turn::Past(_) => true,
        };
        complete && ordered
    }
}

/// Results of running the operations in turn.
pub struct History {
    pub kind: MemoryKind,
    pub operations: [Operation; 2],
    pub past: Vec<Operation>,
    /// Views after each operation of the past. The first is the empty store.
    pub views: Vec<Shown>,
    /// Views after one or both operations of the pair, with whether each of the two succeeded.
    pub turns: Vec<(Turn, Shown, [bool; 2])>,
}

/// Returns whether the operation, once it has returned, makes durable what had returned before it
/// began.
fn syncs(operation: &Operation) -> bool {
    matches!(operation, Operation::Fsync(_) | Operation::Sync | Operation::Tick | Operation::Checkpoint)
}

/// Returns whether the operation gives the file a name that another file has.
fn takes_name(operation: &Operation, before: &View, ino: Ino) -> bool {
    let Operation::Rename(from, to, mode) = operation else { return false };
    let [from, to] = [from, to].map(|path| before.files.get(path.as_bytes()).map(|file| file.ino));
    let is_over = from.is_some() && to.is_some() && from != to && *mode != RenameMode::NoReplace;
    is_over && (from == Some(ino) || *mode == RenameMode::Exchange && to == Some(ino))
}

/// Returns whether the operation cuts off all of the file's contents.
fn cuts_off(operation: &Operation, before: &View, ino: Ino) -> bool {
    let Operation::Truncate(path, 0) = operation else { return false };
    before.files.get(path.as_bytes()).is_some_and(|file| file.ino == ino && !file.bytes.is_empty())
}

/// Returns whether the operation promises the file's bytes on the bulk device.
fn settles(operation: &Operation, view: &View, ino: Ino) -> bool {
    match operation {
        Operation::Fsync(path) => view.files.get(path.as_bytes()).is_some_and(|file| file.ino == ino),
        Operation::Sync | Operation::Tick => true,
        _ => false,
    }
}

impl History {
    fn all(&self) -> Vec<(Turn, &Shown)> {
        let past = self.views.iter().enumerate().map(|(k, view)| (Turn::Past(k), view));
        past.chain(self.turns.iter().map(|(turn, view, _)| (*turn, view))).collect()
    }

    fn durable_at_once(&self) -> bool {
        self.kind != MemoryKind::Logged
    }

    /// Returns whether the operation has returned and thereby promises what it covers. In a mount
    /// each kind of tick runs in one thread, but a pair may run two ticks at once. The second tick
    /// then leaves to the first the work that the first has begun, so it promises nothing if it
    /// returns first.
    fn vouches(&self, actor: usize, moment: &Moment) -> bool {
        let ticks = self.operations.iter().all(|operation| matches!(operation, Operation::Tick));
        moment.returned_ok(actor) && !(ticks && moment.returned_amid(actor, 1 - actor))
    }

    /// Returns which operations must be in the view, and how much of the past.
    fn floor(&self, moment: &Moment, power: bool) -> ([bool; 2], usize) {
        let last = self.views.len() - 1;
        if !power || self.durable_at_once() {
            return ([moment.returned_ok(0), moment.returned_ok(1)], last);
        }
        let mut with = [false; 2];
        let mut past = self.past.iter().rposition(syncs).map_or(0, |k| k + 1);
        for actor in (0..2).filter(|&a| self.vouches(a, moment) && syncs(&self.operations[a])) {
            past = last;
            with[1 - actor] |= moment.precedes(1 - actor, actor);
        }
        (with, past)
    }

    /// Returns the views that are possible at `moment`, from the end of the past on.
    fn now(&self, moment: &Moment, with: [bool; 2]) -> Vec<&Shown> {
        let last = self.views.len() - 1;
        let all = self.all().into_iter();
        all.filter(|&(turn, _)| turn != Turn::Past(last) || with == [false; 2])
            .filter(|&(turn, _)| !matches!(turn, Turn::Past(k) if k < last) && moment.allows(turn, with))
            .map(|(_, view)| view)
            .collect()
    }

    /// Returns the promise for a file found in the state of `turn`: the first state of the past
    /// that its bytes may come from, and the operations that they must include. None means that
    /// nothing is promised.
    fn promise(&self, moment: &Moment, power: bool, ino: Ino, turn: Turn) -> Option<(usize, [bool; 2])> {
        let last = self.views.len() - 1;
        if !power {
            return Some((last, [moment.returned_ok(0), moment.returned_ok(1)]));
        }
        let small = |view: &View| view.by_ino(ino).is_some_and(|file| !file.large);
        // In the past, find the last state in which the file was there and its bytes were promised.
        let mut promised = None;
        let mut replaced = false;
        for (k, operation) in self.past.iter().enumerate() {
            let (before, after) = (&self.views[k], &self.views[k + 1]);
            if settles(operation, before, ino) || syncs(operation) && (replaced || small(before)) {
                promised = Some(k);
            }
            replaced |= !self.durable_at_once() && cuts_off(operation, before, ino);
            let is_there = !matches!(turn, Turn::Past(last) if last <= k);
            if is_there && takes_name(operation, before, ino) {
                promised = Some(k);
            }
            if self.durable_at_once() && small(after) {
                promised = Some(k + 1);
            }
        }
        let mut with = [false; 2];
        for actor in (0..2).filter(|&a| self.vouches(a, moment)) {
            let operation = &self.operations[actor];
            let then = moment.at_begin[actor].as_ref().expect("it has begun");
            let before = [then.returned_ok(0), then.returned_ok(1)];
            let views = self.now(then, before);
            if views.iter().all(|view| settles(operation, view, ino))
                || syncs(operation) && (replaced || views.iter().all(|v| small(v)))
            {
                promised = Some(last);
                (0..2).for_each(|a| with[a] |= before[a]);
            }
            if self.durable_at_once() {
                let then = moment.at_return[actor].as_ref().expect("it has returned");
                let after = [then.returned_ok(0), then.returned_ok(1)];
                if self.now(then, after).iter().all(|view| small(view)) {
                    promised = Some(last);
                    (0..2).for_each(|a| with[a] |= after[a]);
                }
            }
        }
        for actor in (0..2).filter(|&actor| turn.has(actor)) {
            // Judge the file as it was before this operation in `turn`. The other order is judged
            // by its own turn.
            let first = matches!(turn, Turn::Both(first, _) if first != actor).then_some(1 - actor);
            let before = self.turns.iter().find(|(turn, ..)| first.is_some_and(|first| *turn == Turn::One(first)));
            let before = before.map_or(&self.views[last], |(_, view, _)| view);
            if takes_name(&self.operations[actor], before, ino) {
                promised = Some(last);
                first.into_iter().for_each(|first| with[first] = true);
            }
        }
        promised.map(|past| (past, with))
    }

    /// Returns an error if the view found after a crash at `moment` is not allowed.
    pub fn judge(&self, found: &View, moment: &Moment, power: bool) -> Result<(), String> {
        let (with, past) = self.floor(moment, power);
        let mut nearest = String::new();
        let all = self.all();
        for &(turn, view) in all.iter().rev() {
            let in_reach = match turn {
                Turn::Past(k) => k >= past && with == [false; 2],
                _ => moment.allows(turn, with) && self.ended_alike(turn, moment),
            };
            if !in_reach {
                continue;
            }
            match found.differs(view) {
                Some(text) => {
                    nearest = format!("{nearest}\n    not {turn:?}: {text}");
                    continue;
                }
                None => match self.judge_bytes(found, turn, view, moment, power) {
                    Ok(()) => return Ok(()),
                    Err(text) => nearest = format!("{nearest}\n    not {turn:?}: {text}"),
                },
            }
        }
        Err(format!("no order of what had begun explains what is there ({with:?} must be):{nearest}"))
    }

    /// Returns whether the operations that returned succeeded or failed as they do in `turn`. An
    /// operation that fails changes the same as when it fails in turn.
    fn ended_alike(&self, turn: Turn, moment: &Moment) -> bool {
        let ok = self.turns.iter().find(|(other, ..)| *other == turn).map_or([true; 2], |(_, _, ok)| *ok);
        (0..2).all(|actor| !turn.has(actor) || moment.returned[actor].is_none_or(|ended| ended == ok[actor]))
    }

    fn judge_bytes(&self, found: &View, turn: Turn, view: &View, moment: &Moment, power: bool) -> Result<(), String> {
        for (name, file) in &found.files {
            let wanted = &view.files[name];
            if file.bytes == wanted.bytes {
                continue;
            }
            let promise = self.promise(moment, power, wanted.ino, turn);
            let (past, with) = promise.unwrap_or((0, [false; 2]));
            let all = self.all();
            // Collect every state that the bytes may come from, ordered by time where there is an
            // order.
            let reachable: Vec<(Turn, Option<&File>)> = all
                .iter()
                .filter(|(other, _)| match *other {
                    Turn::Past(k) => k >= past && with == [false; 2],
                    other => moment.allows(other, with),
                })
                .map(|(other, view)| (*other, view.by_ino(wanted.ino)))
                .collect();
            let loose = wanted.large || reachable.iter().any(|(_, file)| file.is_some_and(|file| file.large));
            // A byte of an earlier state counts only if the file stayed long enough in every state
            // of the past up to this one.
            let until = match turn {
                Turn::Past(k) => k,
                _ => self.views.len() - 1,
            };
            let len = |file: Option<&File>| file.map_or(0, |file| file.bytes.len());
            let mut candidates = vec![Candidate { bytes: &wanted.bytes, limit: usize::MAX }];
            for (number, &(other, bytes)) in reachable.iter().enumerate().filter(|_| loose) {
                let Some(bytes) = bytes else { continue };
                let limit = match other {
                    Turn::Past(from) if from <= until => {
                        let since = reachable[number..].iter();
                        let past = since.filter(|(other, _)| matches!(*other, Turn::Past(k) if k <= until));
                        past.map(|&(_, file)| len(file)).min().unwrap_or(0)
                    }
                    _ => usize::MAX,
                };
                let bytes = &bytes.bytes[..];
                match candidates.iter_mut().find(|candidate| candidate.bytes == bytes) {
                    Some(same) => same.limit = same.limit.max(limit),
                    None => candidates.push(Candidate { bytes, limit }),
                }
            }
            let covered = reachable.iter().map(|&(_, file)| len(file)).min().unwrap_or(0);
            let zeros_from = match promise {
                _ if !power || !loose => usize::MAX,
                None => 0,
                Some(_) => covered,
            };
            if let Some(at) = unexplained(&file.bytes, &candidates, zeros_from) {
                return Err(format!(
                    "{} byte {at} is {:#04x} instead of {:#04x}{} (large {loose}, promised {promise:?})",
                    String::from_utf8_lossy(name),
                    file.bytes[at],
                    wanted.bytes[at],
                    if file.bytes[at..].iter().take(64).all(|&b| b == 0) { ", zeros" } else { "" },
                ));
            }
        }
        Ok(())
    }
}
