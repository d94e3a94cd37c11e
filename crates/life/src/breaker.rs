//! Ends a connection whose threads fail, and logs the cause.
//!
//! Each serving thread runs in [`Breaker::watch`]. Requests wait for the thread that took them, so
//! a thread that ended while the connection goes on would leave programs waiting forever. The first
//! thread that ends for any reason but the end of the connection is therefore logged, and the
//! connection is cut. Every waiting program gets an error, the other threads find the end, and the
//! store is shut down as after an unmount. A panic counts as such an end, if it does not end the
//! process anyway.
//! Rules: the connection is cut once. A passing error is no reason to end ([`shoal_host::Pause`]).
//! Left out: how a connection is cut (`attach`).

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

/// Cuts the connection.
type Cut = Box<dyn FnOnce() -> io::Result<()> + Send>;

#[derive(Clone, Default)]
pub struct Breaker(Arc<Mutex<Option<Cut>>>);

impl Breaker {
    pub fn new(cut: impl FnOnce() -> io::Result<()> + Send + 'static) -> Breaker {
        Breaker(Arc::new(Mutex::new(Some(Box::new(cut)))))
    }

    /// Runs the work of the calling thread. The work ends without an error only when the connection
    /// has ended.
    pub fn watch(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let panics = Panics(self);
        let outcome = work();
        std::mem::forget(panics);
        if let Err(error) = &outcome {
            self.trip(&error.to_string());
        }
        outcome
    }

    /// Ends the connection because the calling thread ends.
    fn trip(&self, cause: &str) {
        let Some(cut) = self.0.lock().take() else { return };
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread").to_string();
        tracing::error!(
            "{name} cannot go on: {cause}; the mount ends, unmount it (`umount -l`) and mount the store again"
        );
        if let Err(error) = cut() {
            // Only the end of this process can close the connection now. The store survives that.
            panic!("{name} cannot go on: {cause}; and the connection cannot be ended: {error}");
        }
    }
}

struct Panics<'a>(&'a Breaker);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        self.0.trip("it panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn the_first_thread_that_fails_cuts_the_connection_and_those_that_end_with_it_do_not() {
        let cuts = Arc::new(AtomicU32::new(0));
        let counted = cuts.clone();
        let breaker = Breaker::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        assert!(breaker.watch(|| Ok(())).is_ok());
        assert_eq!(cuts.load(Ordering::Relaxed), 0);
        let (other, work) = (breaker.clone(), || panic!("on purpose"));
        assert!(std::thread::spawn(move || other.watch(work)).join().is_err());
        assert_eq!(cuts.load(Ordering::Relaxed), 1);
        assert!(breaker.watch(|| Err(io::ErrorKind::PermissionDenied.into())).is_err());
        assert_eq!(cuts.load(Ordering::Relaxed), 1);
    }
}
