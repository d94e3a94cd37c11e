//! fsync of large files: their wait for the bulk device takes place in a thread of its own.
//!
//! A request thread that waited for a flush could serve nobody meanwhile, and there are few of them. So it only looks
//! what the fsync needs ([`Fs::fsync_begin`]). What needs the log alone is answered by the log's group commit, whose
//! leader is a request thread. What needs the bulk device as well goes to the syncer: it takes all that wait, makes one
//! flush that covers them, clears NEW for each, and leaves the answers to the log's group commit.
//!
//! Nobody waits in a circle:
//! - A request thread waits for the syncer never: it sends a message.
//! - The syncer holds no lock while it flushes but the bulk device's own (`flushing`), whose holders wait for the device
//!   alone. Then it takes one inode lock at a time. Who holds that lock may wait for the bulk device or for the log's
//!   leader, neither of which takes inode locks.
//! - The syncer leads the log for one flush at most: under load a leader goes on for ever. It leaves callbacks, and rings
//!   the log's clock (`ticker`), whose only work the log is, for those that came in behind that flush.
//! - The end: the requests end first, then the syncer is stopped, which answers all it was sent; then the log's clock,
//!   which does not go before the last ring is served.
//!
//! A store that failed answers every wait with the failure. A panic in the thread ends the process, as everywhere.
//! Left out: when data are flushed without an fsync (`ticker`).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use shoal_fs::{Fs, Fsync, Ino, Result};

use crate::ticker::Bell;

/// Called with the outcome of an fsync.
type Done = Box<dyn FnOnce(Result<()>) + Send>;

enum Message {
    Fsync(Ino, Done),
    Stop,
}

/// Where fsyncs are asked for. One for each who asks.
#[derive(Clone)]
pub(crate) struct Syncer {
    fs: Arc<Fs>,
    queue: Sender<Message>,
}

/// The thread behind a [`Syncer`].
pub(crate) struct SyncerThread {
    queue: Sender<Message>,
    thread: JoinHandle<()>,
}

impl Syncer {
    /// `log` wakes the thread that syncs the log.
    pub fn start(fs: &Arc<Fs>, log: Bell) -> io::Result<(Syncer, SyncerThread)> {
        let (queue, messages) = mpsc::channel();
        let worker = fs.clone();
        let thread =
            std::thread::Builder::new().name("syncer".into()).spawn(move || serve(&worker, &messages, &log))?;
        Ok((Syncer { fs: fs.clone(), queue: queue.clone() }, SyncerThread { queue, thread }))
    }

    /// Makes the file durable and calls `done`: from this thread, from the log's leader, or from the syncer.
    pub fn fsync(&self, ino: Ino, done: impl FnOnce(Result<()>) + Send + 'static) {
        match self.fs.fsync_begin(ino) {
            Ok(Fsync::Log(lsn)) => {
                self.fs.region().sync_with(lsn, Box::new(move |outcome| done(outcome.map_err(shoal_fs::Error::from))));
            }
            Ok(Fsync::Bulk) => {
                // After the end of the thread no requests are served: whoever asks nevertheless waits here.
                if let Err(mpsc::SendError(Message::Fsync(ino, done))) =
                    self.queue.send(Message::Fsync(ino, Box::new(done)))
                {
                    done(self.fs.fsync(ino, false));
                }
            }
            Err(error) => done(Err(error)),
        }
    }
}

impl SyncerThread {
    /// Returns when everything asked for before has been answered, or waits for the log alone.
    pub fn stop(self) {
        // It ends only by this message.
        let _ = self.queue.send(Message::Stop);
        // A panic in the thread has been reported by the panic hook.
        let _ = self.thread.join();
    }
}

fn serve(fs: &Fs, messages: &Receiver<Message>, log: &Bell) {
    let mut stopped = false;
    while !stopped {
        // All senders gone means the same as a stop.
        let Ok(first) = messages.recv() else { return };
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
        let mut leaderless = false;
        for (outcome, done) in fs.fsync_many(&inos).into_iter().zip(waiting) {
            match outcome {
                Ok(lsn) => {
                    let answer = Box::new(move |outcome: std::result::Result<(), _>| {
                        done(outcome.map_err(shoal_fs::Error::from));
                    });
                    leaderless |= fs.region().sync_later(lsn, answer);
                }
                Err(error) => done(Err(error)),
            }
        }
        // Alone, the syncer flushes the log itself; for those who come in meanwhile somebody else does.
        if leaderless && fs.region().sync_once() {
            log.ring();
        }
    }
}

#[cfg(test)]
#[path = "syncer_tests.rs"]
mod tests;
