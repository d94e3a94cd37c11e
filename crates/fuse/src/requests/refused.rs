//! Pages that the kernel had gathered and the store refused, mostly for lack of room.
//!
//! The kernel reports a refused page once, to the process that syncs or closes the file next. That
//! may be a child of the program: when it ends, all files that it inherited are closed. The
//! program's own close would then succeed. So every close and every sync of the file fails here,
//! for as long as some of its data is not stored.
//!
//! Rules: data that is written again, or cut off, is no longer missing. Left out: what the kernel
//! shows of such a page.

use std::collections::HashMap;

use parking_lot::Mutex;
use shoal_fs::Ino;

use crate::errno::Errno;

/// Maximum ranges remembered of one file. If there are more, they are joined into one.
const RANGES_MAX: usize = 64;

struct Missing {
    why: Errno,
    /// First byte, and the byte after the last.
    ranges: Vec<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct Refused(Mutex<HashMap<Ino, Missing>>);

impl Refused {
    /// Records that the kernel has written back `len` bytes from `at` on. `outcome` says how many
    /// of them are stored.
    pub fn written(&self, ino: Ino, at: u64, len: usize, outcome: &Result<usize, Errno>) {
        let mut files = self.0.lock();
        let (stored, why) = match outcome {
            Ok(stored) if files.is_empty() && *stored >= len => return,
            Ok(stored) => (*stored as u64, Errno::from(shoal_fs::Error::NO_SPACE)),
            // A chattr flag forbids the write for good, so there is no missing data that could
            // still be stored.
            Err(Errno::PERM) => return,
            Err(why) => (0, *why),
        };
        let (stored_to, end) = (at + stored, at + len as u64);
        if let Some(missing) = files.get_mut(&ino) {
            missing.without(at, stored_to);
        }
        if stored_to < end {
            let missing = files.entry(ino).or_insert(Missing { why, ranges: Vec::new() });
            missing.with(stored_to, end);
        }
        files.retain(|_, missing| !missing.ranges.is_empty());
    }

    /// Drops missing ranges beyond the file's new size.
    pub fn cut(&self, ino: Ino, size: u64) {
        let mut files = self.0.lock();
        if let Some(missing) = files.get_mut(&ino) {
            missing.without(size, u64::MAX);
        }
        files.retain(|_, missing| !missing.ranges.is_empty());
    }

    pub fn forgotten(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }

    /// Fails if some written data of the file is not stored.
    pub fn check(&self, ino: Ino) -> Result<(), Errno> {
        self.0.lock().get(&ino).map_or(Ok(()), |missing| Err(missing.why))
    }
}

impl Missing {
    fn without(&mut self, from: u64, to: u64) {
        let left = |&(first, end): &(u64, u64)| [(first, end.min(from)), (first.max(to), end)];
        self.ranges = self.ranges.iter().flat_map(left).filter(|(first, end)| first < end).collect();
    }

    fn with(&mut self, from: u64, to: u64) {
        self.without(from, to);
        self.ranges.push((from, to));
        if self.ranges.len() > RANGES_MAX {
            let all = self.ranges.drain(..).reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
            self.ranges.extend(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_missed_until_it_is_written_or_cut_off() {
        let (refused, ino, other) = (Refused::default(), Ino::new(7), Ino::new(8));
        let no_room = || Errno::from(shoal_fs::Error::NO_SPACE);
        refused.written(ino, 4096, 8192, &Ok(8192));
        assert_eq!(refused.check(ino), Ok(()));
        refused.written(ino, 4096, 8192, &Err(Errno::PERM));
        assert_eq!(refused.check(ino), Ok(()));
        refused.written(ino, 4096, 8192, &Err(no_room()));
        assert_eq!((refused.check(ino), refused.check(other)), (Err(no_room()), Ok(())));
        refused.written(other, 4096, 8192, &Ok(8192));
        refused.written(ino, 4096, 4096, &Ok(4096));
        assert_eq!(refused.check(ino), Err(no_room()), "half of it");
        refused.written(ino, 0, 65536, &Ok(65536));
        assert_eq!(refused.check(ino), Ok(()));
        refused.written(ino, 0, 4096, &Ok(100));
        refused.cut(ino, 200);
        assert_eq!(refused.check(ino), Err(no_room()), "a short one");
        refused.cut(ino, 100);
        assert_eq!(refused.check(ino), Ok(()));
        for page in 0..1000 {
            refused.written(ino, page * 8192, 4096, &Err(no_room()));
        }
        refused.written(ino, 0, 1000 * 8192, &Ok(1000 * 8192));
        assert_eq!(refused.check(ino), Ok(()));
        refused.written(ino, 0, 1, &Err(no_room()));
        refused.forgotten(ino);
        assert_eq!(refused.check(ino), Ok(()));
    }
}
