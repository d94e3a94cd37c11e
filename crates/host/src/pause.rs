//! Pauses between attempts of a system call that fails for a transient reason.
//!
//! Owns: which reasons are transient, and for how long. The machine lacks memory, or a queue of the
//! kernel is full; a thread that serves others must not end because of that. Left out: EINTR, after
//! which a call is repeated at once.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The first and the longest pause. Each pause is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);
/// How long a call may keep failing.
const PATIENCE: Duration = Duration::from_secs(60);

/// The failed attempts of one call. Reset to [`Pause::default`] after each success.
#[derive(Debug, Default)]
pub struct Pause(Option<(Instant, Duration)>);

impl Pause {
    /// Returns true if the last attempt failed.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Waits before the call is repeated. Returns the error if it is not transient, or has
    /// persisted for a minute. Returns true for the first failure in a row, which the caller
    /// reports.
    pub fn after(&mut self, error: Errno) -> io::Result<bool> {
        if !matches!(error, Errno::AGAIN | Errno::BUSY | Errno::NOMEM | Errno::NOBUFS) {
            return Err(error.into());
        }
        let is_first = self.0.is_none();
        let (since, pause) = self.0.get_or_insert_with(|| (Instant::now(), FIRST));
        if since.elapsed() > PATIENCE {
            return Err(error.into());
        }
        std::thread::sleep(*pause);
        *pause = (*pause * 2).min(LONGEST);
        Ok(is_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_waited_for_longer_and_longer_and_told_once_and_the_rest_is_an_error() {
        let (mut pause, begin) = (Pause::default(), Instant::now());
        let told: Vec<bool> = (0..4).map(|_| pause.after(Errno::AGAIN).unwrap()).collect();
        assert_eq!(told, [true, false, false, false]);
        assert!(begin.elapsed() >= 15 * FIRST);
        assert!(pause.after(Errno::PERM).is_err());
        pause.0 = Some((Instant::now() - 2 * PATIENCE, FIRST));
        assert_eq!(pause.after(Errno::NOMEM).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }
}
