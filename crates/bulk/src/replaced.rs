//! Files whose old contents were cut off entirely, and whose new contents are still being written.
//!
//! Some programs replace a file without an fsync: they truncate it, write it anew and close it. The
//! close is not seen, and the new contents come in several writes with possible flushes in between.
//! So a file stays listed for a while after its cut. Meanwhile no flush of the log leaves out what
//! was written into the file. After that time it is an ordinary file: a file written forever must
//! not add a flush to every fsync forever.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use shoal_format::inode::Ino;

/// How long a file stays listed after its cut.
const REPLACEMENT_NS: u64 = 5_000_000_000;
/// Below this number of listed files, expired ones are not searched for.
const LISTED_MIN: usize = 1024;

#[derive(Default)]
struct State {
    /// Until when each file is listed (monotonic ns).
    until: HashMap<Ino, u64>,
    /// The listed files that were written to on the bulk device.
    written: HashSet<Ino>,
    /// From this many entries on, expired ones are removed.
    prune_at: usize,
}

#[derive(Default)]
pub struct Replaced {
    state: Mutex<State>,
    /// The number of listed files. If 0, a write takes no lock.
    listed: AtomicUsize,
}

impl Replaced {
    /// Notes that all contents of a file were cut off at `now_ns`.
    pub fn cut(&self, ino: Ino, now_ns: u64) {
        let mut state = self.state.lock();
        if state.until.len() >= state.prune_at.max(LISTED_MIN) {
            let State { until, written, .. } = &mut *state;
            until.retain(|ino, until_ns| *until_ns > now_ns || written.contains(ino));
            state.prune_at = 2 * state.until.len();
        }
        state.until.insert(ino, now_ns + REPLACEMENT_NS);
        self.listed.store(state.until.len(), Ordering::Release);
    }

    /// Notes a write to a file on the bulk device. The caller holds the file's lock, as for its
    /// cut.
    pub fn wrote(&self, ino: Ino) {
        if self.listed.load(Ordering::Acquire) > 0 {
            let mut state = self.state.lock();
            if state.until.contains_key(&ino) {
                state.written.insert(ino);
            }
        }
    }

    /// Returns the files whose new contents must be flushed before the log is. `durable` returns
    /// whether a file's contents already are.
    pub fn pending(&self, durable: impl Fn(Ino) -> bool) -> Vec<Ino> {
        if self.listed.load(Ordering::Acquire) == 0 {
            return vec![];
        }
        let mut state = self.state.lock();
        state.written.retain(|&ino| !durable(ino));
        state.written.iter().copied().collect()
    }

    /// Removes the files that had expired at `now_ns`, when a flush began that has now completed.
    pub fn flushed(&self, now_ns: u64) {
        if self.listed.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        let State { until, written, .. } = &mut *state;
        until.retain(|_, until_ns| *until_ns > now_ns);
        written.retain(|ino| until.contains_key(ino));
        self.listed.store(until.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_pending_from_its_write_to_the_flush_and_again_until_its_time_is_over() {
        let replaced = Replaced::default();
        let never = |_: Ino| false;
        replaced.wrote(Ino::new(7));
        replaced.cut(Ino::new(7), 100);
        assert!(replaced.pending(never).is_empty(), "nothing was written since its cut");
        replaced.wrote(Ino::new(7));
        replaced.wrote(Ino::new(8));
        assert_eq!(replaced.pending(never), [Ino::new(7)]);
        replaced.flushed(200);
        assert!(replaced.pending(|ino| ino == Ino::new(7)).is_empty());
        // The rest of its contents.
        replaced.wrote(Ino::new(7));
        assert_eq!(replaced.pending(never), [Ino::new(7)]);
        // A file that is written to without end expires.
        replaced.flushed(100 + REPLACEMENT_NS);
        assert!(replaced.pending(never).is_empty());
        replaced.wrote(Ino::new(7));
        assert!(replaced.pending(never).is_empty());
    }

    #[test]
    fn small_files_cut_without_end_are_forgotten() {
        let replaced = Replaced::default();
        for number in 0..100_000 {
            replaced.cut(Ino::new(number), u64::from(number) * 100_000_000);
        }
        assert!(replaced.state.lock().until.len() <= 2 * LISTED_MIN);
        replaced.cut(Ino::new(5), 1 << 60);
        replaced.wrote(Ino::new(5));
        assert_eq!(replaced.pending(|_| false), [Ino::new(5)]);
    }
}
