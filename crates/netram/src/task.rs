//! A small executor: jobs of several steps, driven by the answers of donors.
//!
//! Owns: [`Core`], the engine's state with its jobs' waiting lists, and the two things a job can
//! wait for: a donor's answer ([`Op`]) and a condition on the state ([`Core::until`]). Rules: a job
//! holds the state's lock only between two waits. A step that changes something a condition reads
//! calls [`State::wake`]. There is no thread, no clock and no real waker: when an event comes in,
//! the engine polls what became ready, in a fixed order.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

use std::ops::Range;
use std::sync::Arc;

use shoal_format::ram::SUPERBLOCK_BYTES;

use crate::api::{Action, DiskError, DonorError, DonorId, DonorOp, Purpose, Trouble};
use crate::spread::{Numbered, Numbers};
use crate::state::State;
use crate::state::place::Member;
use crate::state::schedule::{Answer, Asked, DonorLost, Job};
use crate::state::unit::Shape;

/// The engine's state, shared with its jobs.
pub(crate) struct Core {
    /// The state's shape, which never changes and so needs no lock.
    pub shape: Shape,
    state: Mutex<State>,
}

/// Stands for a donor where there is none.
pub(crate) const NOBODY: DonorId = DonorId::MAX;

/// A donor's pending answer.
pub(crate) struct Op {
    core: Arc<Core>,
    ticket: u64,
}

impl Future for Op {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        let schedule = &mut self.core.state.lock().schedule;
        match schedule.answers.remove(&self.ticket) {
            Some(answer) => Poll::Ready(answer),
            None => {
                let job = schedule.current;
                schedule.waiting.insert(self.ticket, job);
                Poll::Pending
            }
        }
    }
}

/// Runs all futures at the same time. Returns their results in the same order.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).map(Some).collect();
    let mut results: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in running.iter_mut().zip(&mut results) {
            if let Some(Poll::Ready(value)) = future.as_mut().map(|future| future.as_mut().poll(context)) {
                (*future, *result) = (None, Some(value));
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().map(|result| result.expect("each has ended")).collect()
}

struct Until<C> {
    core: Arc<Core>,
    condition: C,
}

impl<T, C: FnMut(&mut State) -> Option<T> + Unpin> Future for Until<C> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let mut state = this.core.state.lock();
        match (this.condition)(&mut state) {
            Some(value) => Poll::Ready(value),
            None => {
                let job = state.schedule.current;
                state.schedule.watchers.push(job);
                Poll::Pending
            }
        }
    }
}

/// Like `Until`, for conditions that only time makes true.
struct UntilLate<C> {
    core: Arc<Core>,
    condition: C,
    /// The tick at which the condition was last checked.
    asked: Option<u64>,
}

impl<C: FnMut(&State) -> bool + Unpin> Future for UntilLate<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut state = this.core.state.lock();
        let ticks = state.schedule.ticks;
        if this.asked == Some(ticks) {
            return Poll::Pending;
        }
        this.asked = Some(ticks);
        if (this.condition)(&state) {
            return Poll::Ready(());
        }
        let job = state.schedule.current;
        state.schedule.tick_watchers.push(job);
        Poll::Pending
    }
}

impl Core {
    pub fn new(state: State) -> Arc<Core> {
        Arc::new(Core { shape: state.shape, state: Mutex::new(state) })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Asks a donor. The operation is in flight when this returns. If the donor is away, the answer
    /// is already an error. After a takeover only reads for requests are answered, with an error.
    pub fn op(self: &Arc<Core>, state: &mut State, donor: DonorId, op: DonorOp, purpose: Purpose) -> Op {
        state.schedule.last_ticket += 1;
        let ticket = state.schedule.last_ticket;
        let stopped = state.failure == Some(DiskError::TakenOver);
        if stopped && purpose != Purpose::Read {
            // Leave it unanswered, so that background work stops here. If told that the donor is
            // away, it would ask again at once, for ever.
        } else if donor == NOBODY || stopped || state.donors[donor as usize].is_absent() {
            let error = DonorError::new(Trouble::Away, "the donor is not there");
            state.schedule.answers.insert(ticket, Err(error));
        } else {
            state.count_op(&op, purpose);
            let (at, writes) = match &op {
                DonorOp::Read { at, .. } => (*at, false),
                DonorOp::Write { at, .. } | DonorOp::Trim { at, .. } => (*at, true),
            };
            let front = SUPERBLOCK_BYTES as u64;
            let unit = (writes && at >= front).then(|| ((at - front) / state.shape.unit_bytes() as u64) as u32);
            let asked_ns = state.now_ns;
            let repeats = matches!(purpose, Purpose::Write | Purpose::Clean | Purpose::Repair);
            let is_of_unit = unit.is_some_and(|unit| unit < state.donors[donor as usize].units.count());
            let may_expire = repeats && is_of_unit && matches!(op, DonorOp::Write { .. });
            state.schedule.asked.insert(ticket, Asked { donor, writes, unit, asked_ns, may_expire, expired: false });
            state.actions.push(Action::Donor { ticket, donor, op, purpose });
        }
        Op { core: self.clone(), ticket }
    }

    /// Reads blocks of a unit. The answer is an error if the unit does not exist.
    pub fn read(self: &Arc<Core>, state: &mut State, member: Member, rows: Range<usize>, purpose: Purpose) -> Op {
        let len = (rows.len() * state.shape.block_bytes) as u32;
        match member.exists() {
            true => {
                self.op(state, member.donor, DonorOp::Read { at: state.shape.row_at(member, rows.start), len }, purpose)
            }
            false => self.op(state, NOBODY, DonorOp::Read { at: 0, len }, purpose),
        }
    }

    /// Waits until `condition` gives a value. It is checked again after every [`State::wake`].
    pub fn until<T>(
        self: &Arc<Core>,
        condition: impl FnMut(&mut State) -> Option<T> + Unpin,
    ) -> impl Future<Output = T> {
        Until { core: self.clone(), condition }
    }

    /// Waits until `condition` holds. It is checked again only after every tick, since very many
    /// jobs may wait.
    pub fn until_late(self: &Arc<Core>, condition: impl FnMut(&State) -> bool + Unpin) -> impl Future<Output = ()> {
        UntilLate { core: self.clone(), condition, asked: None }
    }
}

/// The unfinished jobs.
#[derive(Default)]
pub(crate) struct Jobs {
    jobs: Numbered<u64, Job>,
    /// Jobs polled in this round.
    seen: Numbers<u64>,
}

impl Jobs {
    /// Polls until nothing is ready. `lost` handles groups that a donor did not take.
    pub fn run(&mut self, core: &Arc<Core>, lost: impl Fn(&Arc<Core>, DonorLost)) {
        loop {
            let (spawned, ready) = {
                let schedule = &mut core.lock().schedule;
                let mut ready = std::mem::take(&mut schedule.ready);
                if std::mem::take(&mut schedule.changed) {
                    ready.append(&mut schedule.watchers);
                }
                // A job that waits for several things is listed several times, and each poll would
                // list it as often again.
                self.seen.clear();
                ready.retain(|&job| self.seen.insert(job));
                (std::mem::take(&mut schedule.spawned), ready)
            };
            if spawned.is_empty() && ready.is_empty() {
                return;
            }
            for mut job in spawned {
                let id = {
                    let schedule = &mut core.lock().schedule;
                    schedule.last_job += 1;
                    schedule.last_job
                };
                if !is_over(core, id, &mut job, &lost) {
                    self.jobs.insert(id, job);
                }
            }
            for id in ready {
                let Some(job) = self.jobs.get_mut(&id) else { continue };
                if is_over(core, id, job, &lost) {
                    self.jobs.remove(&id);
                }
            }
        }
    }
}

/// Lets a job run as far as it can. Returns whether it has ended.
pub(crate) fn is_over(core: &Arc<Core>, id: u64, job: &mut Job, lost: &impl Fn(&Arc<Core>, DonorLost)) -> bool {
    core.lock().schedule.current = id;
    match job.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => return false,
        Poll::Ready(Ok(())) => {}
        Poll::Ready(Err(donor_lost)) => lost(core, donor_lost),
    }
    true
}

/// Waits for all operations. Returns whether any failed.
pub(crate) async fn join(ops: Vec<Op>) -> bool {
    let mut failed = false;
    for op in ops {
        failed |= op.await.is_err();
    }
    failed
}

/// Waits for `ns`.
pub(crate) async fn pause(core: &Arc<Core>, ns: u64) {
    let until = core.lock().now_ns + ns;
    core.until(move |state| (state.now_ns >= until).then_some(())).await;
}
