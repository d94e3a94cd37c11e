//! What still comes by `/dev/fuse` while io_uring serves a connection: FORGET, and INTERRUPT.
//!
//! Nobody waits for the answer to a FORGET, but each wakes a thread on another processor, which costs the program that unlinks a
//! file as much as a request. So one thread alone reads the device, and after a FORGET it waits for a moment: the kernel
//! gives it all that have gathered in one message. The other threads wait until a queue has ended, after which everything may come
//! by the device.
//! Rules: what a FORGET frees may be missed where there is little room; there the thread does not wait.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long FORGETs gather: too short for a program to miss what they free, where an eighth of the store is free.
const GATHER: Duration = Duration::from_millis(1);

#[derive(Default)]
struct Shared {
    is_open: Mutex<bool>,
    opened: Condvar,
}

/// The device's threads, from the point of view of the queues: [`Lane::open`] lets all of them read.
#[derive(Clone, Default)]
pub(crate) struct Lane(Arc<Shared>);

impl Lane {
    /// Everything may come by the device from now on.
    pub fn open(&self) {
        *self.0.is_open.lock() = true;
        self.0.opened.notify_all();
    }

    /// Waits until the lane is open.
    pub fn wait(&self) {
        let mut is_open = self.0.is_open.lock();
        while !*is_open {
            self.0.opened.wait(&mut is_open);
        }
    }

    /// Lets FORGETs gather for a moment.
    pub fn gather(&self) {
        let mut is_open = self.0.is_open.lock();
        if !*is_open {
            self.0.opened.wait_for(&mut is_open, GATHER);
        }
    }
}
