//! Settling doubts: finding out whether each doubted block is there.
//!
//! Rules: a copy that is there is written again, and a copy that is not gives way to the one before
//! it. Either way the block gets a new entry: a later opening would take the old one for safe,
//! because much has become safe since. What cannot be decided yet is tried again when a donor comes
//! back. Left out: which blocks are doubted (`opening::scan`).

use std::sync::Arc;

use shoal_format::ram::TrimmedRange;

use crate::api::Purpose;
use crate::planted::{Bug, is_planted};
use crate::requests::read::{Fetched, fetch};
use crate::requests::send::send;
use crate::state::State;
use crate::state::doubt::Copied;
use crate::state::found::Unprotected;
use crate::state::map::Mapped;
use crate::state::place::Location;
use crate::task::Core;

impl State {
    /// Returns whether the block may not be there.
    pub fn is_doubted(&self, block: u32, at: Location) -> bool {
        let present = self.found.doubts.get(&block).and_then(|doubt| doubt.present);
        present.is_some_and(|copy| copy.at == at)
    }

    pub fn next_doubt(&mut self) -> Option<u32> {
        let returns = self.repairs.tries();
        if !self.ready || self.failure.is_some() {
            return None;
        }
        let (block, doubt) = self.found.doubts.iter_mut().find(|(_, doubt)| doubt.tried != Some(returns))?;
        doubt.tried = Some(returns);
        Some(*block)
    }

    /// Makes the earlier copy count again, because the one that counted is not there.
    fn step_back(&mut self, block: u32) {
        self.unmap(block);
        let Some(doubt) = self.found.doubts.get_mut(&block) else { return };
        let copy = doubt.older.pop();
        doubt.present = copy.filter(|copy| copy.is_doubted);
        doubt.tried = None;
        match copy {
            Some(copy) => {
                self.enter_again(block, copy);
                let group = &self.groups[copy.at.group];
                let (index, id) = (copy.at.group, group.id);
                if group.members.len() > group.data() {
                    self.found.groups.push(Unprotected { index, id, is_unsure: true, holds: Vec::new() });
                }
            }
            None if doubt.was_lost => self.map.lose(block),
            None => {}
        }
        self.wake();
    }

    fn enter_again(&mut self, block: u32, copy: Copied) {
        self.map.insert(block, copy.at, copy.sum);
        self.groups.regain(copy.at.group);
    }

    /// Notes that the block has no copy that counts, in place of a new copy.
    fn note_doubt(&mut self, core: &Arc<Core>, block: u32, from: u64) {
        let sequence = self.take_sequence();
        match self.map.is_lost(block) {
            true => self.notes.lose(block, sequence),
            false => self.notes.trim(TrimmedRange { first: block, count: 1, sequence }),
        }
        self.inherit(core, block, from);
    }
}

/// Settles all doubts. Runs as long as the disk.
pub(crate) async fn settler(core: Arc<Core>) {
    loop {
        let block = core.until(State::next_doubt).await;
        settle(&core, block).await;
        let state = &mut *core.lock();
        if state.found.doubts.is_empty() {
            // What was written again must be safe before the copies before it are let go, and there
            // may be no other reason to flush it.
            state.repairs.moves();
            state.wake();
        }
    }
}

pub(crate) async fn settle(core: &Arc<Core>, block: u32) {
    let (at, sum, from) = {
        let state = &mut *core.lock();
        let Some(from) = state.found.doubts.get(&block).map(|doubt| doubt.from) else { return };
        let found = state.map.find(block);
        let in_memory = found.is_some_and(|found| state.groups[found.at.group].is_in_memory());
        let is_new = found.is_some_and(|found| state.groups.is_new(state.groups[found.at.group].id));
        match found {
            // The block was written or moved meanwhile.
            Some(_) if in_memory || is_new => {
                if in_memory {
                    state.inherit(core, block, from);
                }
                state.found.doubts.remove(&block);
                return;
            }
            Some(Mapped { at, sum }) => (at, sum, from),
            None => {
                state.note_doubt(core, block, from);
                state.found.doubts.remove(&block);
                return;
            }
        }
    };
    let bytes = match fetch(core, at, sum, Purpose::Repair).await {
        Fetched::Good(bytes) => bytes,
        Fetched::Unanswered => return core.lock().retry_later(),
        Fetched::Bad => {
            let state = &mut *core.lock();
            match (state.map.is_at(block, at), state.is_doubted(block, at)) {
                (true, true) if !is_planted(Bug::NoStepBack) => state.step_back(block),
                (true, true) => state.retry_later(),
                // The block is damaged: there is nothing to write again.
                (true, false) => drop(state.found.doubts.remove(&block)),
                (false, _) => state.retry_later(),
            }
            return;
        }
    };
    let placed = core
        .until(|state| {
            if !state.map.is_at(block, at) {
                return Some(None);
            }
            let cache = state.open.cleaning();
            let placed = state.place(block, &bytes, cache, Some(from));
            if placed.is_some() {
                state.found.doubts.remove(&block);
            }
            placed.map(Some).or(state.shortage.is_stuck().then_some(None))
        })
        .await;
    let state = &mut *core.lock();
    match placed {
        Some(put) if put.is_full => send(core, state, put.at.group),
        Some(_) => {}
        None => state.retry_later(),
    }
}
