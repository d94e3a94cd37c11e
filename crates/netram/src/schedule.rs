//! What jobs wait for, and what donors were asked.

use std::future::Future;
use std::pin::Pin;

use crate::api::{DonorError, DonorId};
use crate::spread::Numbered;

pub(crate) type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) type Answer = Result<Vec<u8>, DonorError>;

/// An operation that a donor has not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub donor: DonorId,
    pub writes: bool,
    /// The unit it changes, if it does.
    pub unit: Option<u32>,
}

/// Who waits for what.
#[derive(Default)]
pub(crate) struct Schedule {
    pub current: u64,
    pub last_job: u64,
    pub ready: Vec<u64>,
    pub watchers: Vec<u64>,
    pub tick_watchers: Vec<u64>,
    pub ticks: u64,
    pub changed: bool,
    pub spawned: Vec<Job>,
    pub last_ticket: u64,
    pub waiting: Numbered<u64, u64>,
    pub answers: Numbered<u64, Answer>,
    pub asked: Numbered<u64, Asked>,
}

impl Schedule {
    pub fn spawn(&mut self, job: impl Future<Output = ()> + Send + 'static) {
        self.spawned.push(Box::pin(job));
    }

    /// Time has gone on.
    pub fn tick(&mut self) {
        self.ticks += 1;
        self.ready.append(&mut self.tick_watchers);
    }

    /// Is no operation on its way?
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has this donor still something to answer?
    pub fn is_asked(&self, donor: DonorId) -> bool {
        self.asked.values().any(|asked| asked.donor == donor)
    }

    /// What the answer to come belongs to.
    pub fn take_asked(&mut self, ticket: u64) -> Option<Asked> {
        self.asked.remove(&ticket)
    }

    /// Answers that no job has taken.
    #[cfg(test)]
    pub fn untaken(&self) -> usize {
        self.answers.len()
    }

    /// An answer came in.
    pub fn answer(&mut self, ticket: u64, answer: Answer) {
        if let Some(job) = self.waiting.remove(&ticket) {
            self.ready.push(job);
        }
        self.answers.insert(ticket, answer);
    }
}
