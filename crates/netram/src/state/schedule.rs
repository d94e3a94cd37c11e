//! Jobs that are ready, what the others wait for, and operations that donors have not answered.
//!
//! Owns: [`Schedule`] and [`Job`]. Rules: a job waits for donors' answers and for conditions. A
//! condition is checked again when something it may read has changed, or at the next tick. Left
//! out: running the jobs (`task`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::{DonorError, DonorId};
use crate::spread::Numbered;

/// A donor did not take its part of a group in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DonorLost {
    pub group: u32,
}

/// Steps that wait for donors and conditions.
pub(crate) enum Job {
    Plain(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// Sends a group and returns the outcome.
    Send(Pin<Box<dyn Future<Output = Result<(), DonorLost>> + Send>>),
}

impl Job {
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), DonorLost>> {
        match self {
            Job::Plain(job) => job.as_mut().poll(context).map(Ok),
            Job::Send(job) => job.as_mut().poll(context),
        }
    }
}

pub(crate) type Answer = Result<Vec<u8>, DonorError>;

/// An operation that a donor has not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub donor: DonorId,
    pub writes: bool,
    /// The unit it changes, if any.
    pub unit: Option<u32>,
    pub asked_ns: u64,
    /// The operation writes a unit. If it is not answered in time, the write may be done elsewhere.
    pub may_expire: bool,
    /// The operation was not answered in time: its job goes on without the answer.
    pub expired: bool,
}

/// Jobs, and what each waits for.
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
        self.spawned.push(Job::Plain(Box::pin(job)));
    }

    /// Starts a job that sends a group. If a donor is lost, the caller of the jobs handles the
    /// group.
    pub fn spawn_send(&mut self, job: impl Future<Output = Result<(), DonorLost>> + Send + 'static) {
        self.spawned.push(Job::Send(Box::pin(job)));
    }

    /// Wakes the jobs that wait for the next tick.
    pub fn tick(&mut self) {
        self.ticks += 1;
        self.ready.append(&mut self.tick_watchers);
    }

    /// Returns whether no operation is in flight.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether this donor still owes an answer.
    pub fn is_asked(&self, donor: DonorId) -> bool {
        self.asked.values().any(|asked| asked.donor == donor)
    }

    /// Lists changes of units sent before `before_ns` and not answered yet.
    pub fn overdue(&self, before_ns: u64) -> Vec<(u64, Asked)> {
        let is_overdue = |asked: &Asked| asked.may_expire && !asked.expired && asked.asked_ns < before_ns;
        let mut overdue: Vec<_> =
            self.asked.iter().filter(|(_, asked)| is_overdue(asked)).map(|(&ticket, &asked)| (ticket, asked)).collect();
        // Sorted, so that every run has the same order.
        overdue.sort_unstable_by_key(|&(ticket, _)| ticket);
        overdue
    }

    /// Takes the operation that a ticket belongs to, when its answer comes in.
    pub fn take_asked(&mut self, ticket: u64) -> Option<Asked> {
        self.asked.remove(&ticket)
    }

    /// Lets the job of this operation go on without its answer.
    pub fn expire(&mut self, ticket: u64) {
        if let Some(asked) = self.asked.get_mut(&ticket) {
            asked.expired = true;
        }
    }

    /// Number of answers that no job has taken.
    #[cfg(test)]
    pub fn untaken(&self) -> usize {
        self.answers.len()
    }

    /// Takes an answer that came in.
    pub fn answer(&mut self, ticket: u64, answer: Answer) {
        if let Some(job) = self.waiting.remove(&ticket) {
            self.ready.push(job);
        }
        self.answers.insert(ticket, answer);
    }
}
