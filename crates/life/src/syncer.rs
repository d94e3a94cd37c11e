//! fsync of large files. A slow bulk device must not block all threads that serve requests.
//!
//! A request thread that waits for a flush serves no request meanwhile, and there are few of them.
//! So it first checks what the fsync needs ([`Data::fsync_begin`]). An fsync that needs only the
//! log is answered by the log's group commit. The leader of that commit is a request thread for one
//! flush; the log clock serves those that came in after it. An fsync that also needs the bulk
//! device is done by the thread that has the *turn*:
//! - If the turn is free and no fsync waits for it, the request thread takes it and flushes itself,
//!   because waking another thread may cost a lone client as much as the flush. So at most one
//!   request thread waits for the bulk device's flush, and none if there are fewer than
//!   [`THREADS_MIN`] of them or if each serves a processor alone ([`Syncer::without_turns`]).
//! - Otherwise the fsync goes to the syncer, a thread of its own. The syncer waits for the turn, takes every fsync sent
//!   so far, makes one flush that covers them, clears NEW for each, and leaves the answers to the log's group commit.
//!
//! All this exists once for each bulk device: an fsync waits in the lane of the first device that
//! it needs. A lane's thread is started by the first fsync that is sent there.
//!
//! There is no deadlock:
//! - A request thread never waits for the turn: it tries to take it, or sends a message.
//! - The thread with the turn holds one lock while it flushes, the bulk device's own (`flushing`),
//!   whose holders wait only for the device. Then it takes one inode lock at a time. The holder of
//!   such a lock may wait for the bulk device or for the log's leader, neither of which takes inode
//!   locks or the turn. The turn ends before the log's group commit.
//! - A request thread and the syncer lead the log for at most one flush, since under load a leader
//!   would go on forever. For the callbacks that came in after that flush, they ring the log's
//!   clock (`clocks`), whose only work is the log.
//! - At the end, the requests end first. Then the syncer is stopped, after it has answered
//!   everything it was sent. Then the log's clock ends, after it has served the last ring.
//!
//! A failed store answers every wait with the failure. A panic in the thread ends the process, as
//! everywhere. Left out: flushes of data without an fsync (`clocks`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use shoal_fs::{Fs, Fsync, Ino, Lsn, Result};
use shoal_host::Bell;

use crate::breaker::Breaker;

/// Minimum number of request threads for one of them to flush the bulk device.
const THREADS_MIN: usize = 4;

/// Called with the outcome of an fsync.
type Done = Box<dyn FnOnce(Result<()>) + Send>;

enum Message {
    Fsync(Ino, Done),
    Stop,
}

/// The right to flush the bulk device for fsyncs.
#[derive(Default)]
struct Turn {
    taken: Mutex<()>,
    /// Number of fsyncs sent to the syncer and not yet taken by it. While there are any, no other
    /// thread takes the turn: otherwise a request thread could always come first.
    sent: AtomicUsize,
}

/// Accepts fsyncs. Every user has a clone of its own.
#[derive(Clone)]
pub struct Syncer {
    fs: Arc<Fs>,
    lanes: Arc<Lanes>,
    /// A request thread may take the turn.
    takes_turns: bool,
}

/// The threads behind a [`Syncer`].
pub struct SyncerThread {
    lanes: Arc<Lanes>,
}

struct Lanes {
    lanes: Mutex<BTreeMap<u32, Lane>>,
    /// Held by the one request thread that flushes itself, for any device.
    here: Mutex<()>,
    log: Bell,
    breaker: Breaker,
}

/// The fsyncs that wait for one bulk device first.
struct Lane {
    queue: Sender<Message>,
    turn: Arc<Turn>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Lanes {
    fn lane(&self, fs: &Arc<Fs>, number: u32) -> io::Result<(Sender<Message>, Arc<Turn>)> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(vacant) = lanes.entry(number) {
            let (queue, messages) = mpsc::channel();
            let turn = Arc::new(Turn::default());
            let (worker, turns, log) = (fs.clone(), turn.clone(), self.log.clone());
            let breaker = self.breaker.clone();
            let name = if number == 0 { "syncer".into() } else { format!("syncer-{number}") };
            let work = move || {
                // The thread that started this one may serve requests: bound to one processor, and
                // in the idle class.
                shoal_host::like_the_process();
                breaker.watch(|| {
                    serve(&worker, &messages, &turns, &log);
                    Ok(())
                })
            };
            let thread = std::thread::Builder::new().name(name).spawn(work)?;
            vacant.insert(Lane { queue, turn, thread: Some(thread) });
        }
        let lane = &lanes[&number];
        Ok((lane.queue.clone(), lane.turn.clone()))
    }
}

impl Syncer {
    /// Starts the syncer. `log` wakes the thread that syncs the log. `threads` is the number of
    /// threads that serve requests.
    pub fn start(fs: &Arc<Fs>, log: Bell, threads: usize, breaker: &Breaker) -> io::Result<(Syncer, SyncerThread)> {
        let lanes = Arc::new(Lanes { lanes: Mutex::default(), here: Mutex::default(), log, breaker: breaker.clone() });
        lanes.lane(fs, 0)?;
        let takes_turns = threads >= THREADS_MIN;
        Ok((Syncer { fs: fs.clone(), lanes: lanes.clone(), takes_turns }, SyncerThread { lanes }))
    }

    /// Returns a syncer whose request threads never flush: while one waited, nobody else would
    /// serve its requests.
    pub fn without_turns(self) -> Syncer {
        Syncer { takes_turns: false, ..self }
    }

    /// Makes the file durable and calls `done`: from this thread, from the log's leader, or from the syncer.
    pub fn fsync(&self, ino: Ino, done: impl FnOnce(Result<()>) + Send + 'static) {
        match self.fs.data().fsync_begin(ino) {
            Ok(Fsync::Log(lsn)) => self.sync_log(lsn, done),
            Ok(Fsync::Bulk) => {
                let Ok((queue, turn)) = self.lanes.lane(&self.fs, self.fs.waits_on(ino)) else {
                    // No thread can be started.
                    return done(self.fs.fsync(ino));
                };
                match self.flush_here(ino, &turn) {
                    Some(Ok(lsn)) => self.sync_log(lsn, done),
                    Some(Err(error)) => done(Err(error)),
                    None => {
                        turn.sent.fetch_add(1, Ordering::AcqRel);
                        // If the syncer has ended, requests are no longer served: a late fsync is
                        // carried out here.
                        if let Err(mpsc::SendError(Message::Fsync(ino, done))) =
                            queue.send(Message::Fsync(ino, Box::new(done)))
                        {
                            done(self.fs.fsync(ino));
                        }
                    }
                }
            }
            Err(error) => done(Err(error)),
        }
    }

    fn sync_log(&self, lsn: Lsn, done: impl FnOnce(Result<()>) + Send + 'static) {
        let region = self.fs.region();
        if region.sync_later(lsn, answer(done)) && region.sync_once() {
            self.lanes.log.ring();
        }
    }

    /// Does the bulk device's part of an fsync in this thread, if it may flush and the turn is
    /// free. Returns the position of the log at which the file is durable.
    fn flush_here(&self, ino: Ino, turn: &Turn) -> Option<Result<Lsn>> {
        if !self.takes_turns || turn.sent.load(Ordering::Acquire) > 0 {
            return None;
        }
        let _here = self.lanes.here.try_lock().ok()?;
        let _turn = turn.taken.try_lock().ok()?;
        self.fs.data().fsync_many(&[ino]).pop()
    }
}

impl SyncerThread {
    /// Stops the threads. Returns when every earlier fsync has been answered, or waits only for the
    /// log.
    pub fn stop(self) {
        let mut lanes = self.lanes.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        for lane in lanes.values_mut() {
            // The thread ends only by this message.
            let _ = lane.queue.send(Message::Stop);
            // A panic in the thread has been reported by the panic hook.
            let _ = lane.thread.take().map(JoinHandle::join);
        }
    }
}

/// Makes the callback with which the log's group commit answers an fsync.
fn answer<E>(done: impl FnOnce(Result<()>) + Send + 'static) -> Box<dyn FnOnce(std::result::Result<(), E>) + Send>
where
    shoal_fs::Error: From<E>,
{
    Box::new(move |outcome| done(outcome.map_err(shoal_fs::Error::from)))
}

fn serve(fs: &Fs, messages: &Receiver<Message>, turn: &Turn, log: &Bell) {
    let mut stopped = false;
    while !stopped {
        // The loss of all senders means the same as a stop.
        let Ok(first) = messages.recv() else { return };
        // One flush serves all fsyncs that arrive while another thread has the turn.
        let my_turn = turn.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut inos, mut waiting) = (Vec::new(), Vec::new());
        for message in std::iter::once(first).chain(messages.try_iter()) {
            match message {
                Message::Fsync(ino, done) => {
                    inos.push(ino);
                    waiting.push(done);
                }
                Message::Stop => stopped = true,
            }
        }
        turn.sent.fetch_sub(inos.len(), Ordering::AcqRel);
        let outcomes = fs.data().fsync_many(&inos);
        drop(my_turn);
        let mut leaderless = false;
        for (outcome, done) in outcomes.into_iter().zip(waiting) {
            match outcome {
                Ok(lsn) => {
                    leaderless |= fs.region().sync_later(lsn, answer(done));
                }
                Err(error) => done(Err(error)),
            }
        }
        // The syncer leads one flush of the log. The log's clock serves callbacks that came in
        // meanwhile.
        if leaderless && fs.region().sync_once() {
            log.ring();
        }
    }
}

#[cfg(test)]
#[path = "syncer_tests.rs"]
mod tests;
