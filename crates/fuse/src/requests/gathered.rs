//! Writes that the kernel gathers, and flags of chattr(1) that are set meanwhile.
//!
//! Data written before a file became immutable or append-only is kept, as on Linux's own file
//! systems, which write back before they set the flag. On FUSE the kernel does not write back
//! first, and a daemon that told it to would have to wait and could not be killed meanwhile. But
//! the program that set the flags closes the file, and the kernel writes back all of the file's
//! pages before it sends the FLUSH of that close. Until then, pages count as written before the
//! flags were set.
//!
//! Rules: a file is noted before the flag is set, so that no page finds the flag set and the file
//! not noted. Other processes' FLUSHes do not count for a minute: they may have begun before a page
//! was written to. Left out: what flags allow to whom, which the engine decides.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_fs::{Ino, Writer};

/// Time after which the FLUSH of any process counts: the kernel itself writes back pages when they
/// are 30 s old.
const ANY_CLOSE: Duration = Duration::from_secs(60);

/// Files whose flags were set, with the thread that set them and the time, until their pages have
/// been written back.
#[derive(Default)]
pub(super) struct Gathered {
    unflushed: Mutex<HashMap<Ino, (u32, Instant)>>,
}

impl Gathered {
    pub fn flags_set(&self, ino: Ino, pid: u32) {
        self.unflushed.lock().insert(ino, (pid, Instant::now()));
    }

    /// Records that `pid` closed a file, after all its pages were written back.
    pub fn flushed(&self, ino: Ino, pid: u32) {
        let mut unflushed = self.unflushed.lock();
        if unflushed.get(&ino).is_some_and(|&(setter, at)| setter == pid || at.elapsed() >= ANY_CLOSE) {
            unflushed.remove(&ino);
        }
    }

    pub fn forgotten(&self, ino: Ino) {
        self.unflushed.lock().remove(&ino);
    }

    /// Returns the writer of a page that is written back.
    pub fn writer(&self, ino: Ino) -> Writer {
        if self.unflushed.lock().contains_key(&ino) { Writer::EarlierPages } else { Writer::Pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_earlier_ones_until_the_process_that_set_the_flags_has_closed_the_file() {
        let (gathered, ino) = (Gathered::default(), Ino::new(7));
        assert_eq!(gathered.writer(ino), Writer::Pages);
        gathered.flags_set(ino, 5);
        gathered.flushed(ino, 6);
        gathered.flushed(Ino::new(8), 5);
        assert_eq!(gathered.writer(ino), Writer::EarlierPages);
        gathered.flushed(ino, 5);
        assert_eq!(gathered.writer(ino), Writer::Pages);
        gathered.flags_set(ino, 5);
        gathered.forgotten(ino);
        assert_eq!(gathered.writer(ino), Writer::Pages);
    }
}
