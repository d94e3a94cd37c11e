//! Messages that still come by `/dev/fuse` while io_uring serves a connection: FORGET and
//! INTERRUPT.
//!
//! Nobody waits for the answer to a FORGET. But each wakes a thread on another processor, which
//! costs the program that unlinks a file as much as a request. So only one thread reads the device,
//! and after a FORGET it waits for a moment: the kernel then gives it all that have gathered in one
//! message. The other threads wait until a queue has ended, after which everything may come by the
//! device.
//! A removed file is freed by its FORGET, which the kernel queues before the removal returns. So a
//! request that finds no room, or that asks for the free room, first waits until all queued
//! messages are done ([`Lane::wait_for_removals`], [`Lane::serves`]).
//! Rules: the reader says that it is busy before it reads. So if the device has nothing to read and
//! the reader is not busy, all messages are done. The two are checked in this order.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shoal_fs::Fs;

/// How long FORGETs gather.
const GATHER: Duration = Duration::from_millis(1);
/// Maximum wait for FORGETs, in case the reader gets no processor or new ones keep coming.
const SETTLE_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    is_open: bool,
    /// The reader has a message in hand, or is about to read one.
    is_busy: bool,
    reader: Option<ThreadId>,
    /// Threads that wait until all messages are done.
    waiting: usize,
}

struct Shared {
    state: Mutex<State>,
    /// A message is done, a thread waits for that, or the lane is open.
    changed: Condvar,
    device: Arc<OwnedFd>,
}

/// The device's threads, as the queues see them. [`Lane::open`] lets all of them read.
#[derive(Clone)]
pub(crate) struct Lane(Arc<Shared>);

impl Lane {
    pub fn new(device: Arc<OwnedFd>) -> Lane {
        Lane(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), device }))
    }

    /// Opens the lane: everything may come by the device from now on.
    pub fn open(&self) {
        self.0.state.lock().is_open = true;
        self.0.changed.notify_all();
    }

    /// Waits until the lane is open.
    pub fn wait(&self) {
        let mut state = self.0.state.lock();
        while !state.is_open {
            self.0.changed.wait(&mut state);
        }
    }

    /// Waits for a message. Called by the one thread that reads the device, before each read.
    pub fn begin(&self) {
        // The read reports an error, as it does any end of the connection.
        let _ = poll(&mut [PollFd::new(&self.0.device, PollFlags::IN)], None);
        let mut state = self.0.state.lock();
        state.is_busy = true;
        state.reader = Some(std::thread::current().id());
    }

    /// Notes that a message has been carried out. Called by the reading thread after each message.
    pub fn done(&self) {
        let mut state = self.0.state.lock();
        state.is_busy = false;
        if state.waiting > 0 {
            self.0.changed.notify_all();
        }
    }

    /// Lets FORGETs gather for a moment, unless a thread waits for them.
    pub fn gather(&self) {
        let mut state = self.0.state.lock();
        if !state.is_open && state.waiting == 0 {
            self.0.changed.wait_for(&mut state, GATHER);
        }
    }

    /// Waits until the FORGETs of everything removed before have been carried out. Returns true if
    /// there was something to wait for.
    pub fn wait_for_removals(&self) -> bool {
        let deadline = Instant::now() + SETTLE_MAX;
        let mut state = self.0.state.lock();
        if state.is_open || state.reader == Some(std::thread::current().id()) {
            return false;
        }
        if !self.is_readable() && !state.is_busy {
            return false;
        }
        state.waiting += 1;
        self.0.changed.notify_all();
        while !state.is_open && (self.is_readable() || state.is_busy) {
            if self.0.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.waiting -= 1;
        true
    }

    /// Has operations that find no room wait for removals, as long as the lane exists.
    pub fn serves(&self, fs: &Fs) {
        let shared = Arc::downgrade(&self.0);
        fs.await_removals_by(move || {
            if let Some(shared) = shared.upgrade() {
                Lane(shared).wait_for_removals();
            }
        });
    }

    fn is_readable(&self) -> bool {
        is_readable(&self.0.device)
    }
}

/// Returns whether a message waits on the device.
pub(crate) fn is_readable(device: &impl AsFd) -> bool {
    let mut device = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    poll(&mut device, Some(&Timespec::default())).is_ok() && device[0].revents().contains(PollFlags::IN)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn who_finds_no_room_waits_for_all_that_was_removed_and_not_until_more_has_gathered() {
        let (device, mut kernel) = UnixStream::pair().unwrap();
        let lane = Lane::new(Arc::new(device.try_clone().unwrap().into()));
        assert!(!lane.wait_for_removals(), "nothing was removed");
        let freed = Arc::new(AtomicUsize::new(0));
        let reader = std::thread::spawn({
            let (lane, freed, mut device) = (lane.clone(), freed.clone(), device);
            move || loop {
                lane.begin();
                if device.read(&mut [0]).unwrap() == 0 {
                    return;
                }
                std::thread::sleep(Duration::from_micros(100));
                freed.fetch_add(1, Ordering::SeqCst);
                assert!(!lane.wait_for_removals(), "the reader would wait for itself");
                lane.done();
                lane.gather();
            }
        });
        for round in 1..200 {
            kernel.write_all(&[0; 5]).unwrap();
            lane.wait_for_removals();
            assert!(freed.load(Ordering::SeqCst) >= 5 * round, "round {round}");
        }
        // If the reader makes no progress, the wait ends after its time limit.
        drop(kernel);
        reader.join().unwrap();
        let begin = Instant::now();
        lane.wait_for_removals();
        assert!((SETTLE_MAX..10 * SETTLE_MAX).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        // If other threads read the device, too, there is no wait at all.
        lane.open();
        assert!(!lane.wait_for_removals());
    }
}
