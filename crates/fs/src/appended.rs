//! Gaps in append-only files that are still to be filled, under a kernel that gathers writes.
//!
//! Such a kernel writes pages back in any order: a later page moves the end of the file behind a
//! page that is still to come. Nobody has ever written the bytes in between, so filling them is
//! still an append. Room that is added behind the end (fallocate) is such a gap as well.
//!
//! Rules: gaps change under the inode's lock. They are kept in memory alone: a kernel that loses
//! its connection to the daemon has lost the pages, too. Left out: what is allowed elsewhere
//! (`flags`).

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::Ino;

#[derive(Default)]
pub(crate) struct Gaps {
    files: Mutex<HashMap<Ino, Vec<(u64, u64)>>>,
}

impl Gaps {
    /// Notes that nobody has written the bytes from `from` to `to`, and that the end of the file is
    /// behind them now.
    pub fn add(&self, ino: Ino, from: u64, to: u64) {
        if from < to {
            self.files.lock().entry(ino).or_default().push((from, to));
        }
    }

    /// Notes that the bytes from `from` to `to` have been written.
    pub fn filled(&self, ino: Ino, from: u64, to: u64) {
        let mut files = self.files.lock();
        let Some(gaps) = files.get_mut(&ino) else { return };
        let left = gaps.iter().flat_map(|&(start, end)| [(start, end.min(from)), (start.max(to), end)]);
        *gaps = left.filter(|&(start, end)| start < end).collect();
        if gaps.is_empty() {
            files.remove(&ino);
        }
    }

    /// Returns the parts of `from` to `to` that nobody has written.
    pub fn within(&self, ino: Ino, from: u64, to: u64) -> Vec<(u64, u64)> {
        let files = self.files.lock();
        let gaps = files.get(&ino).map_or(&[][..], |gaps| gaps);
        let cut = gaps.iter().map(|&(start, end)| (start.max(from), end.min(to)));
        cut.filter(|&(start, end)| start < end).collect()
    }

    pub fn forget(&self, ino: Ino) {
        self.files.lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_filled_once() {
        let (gaps, ino) = (Gaps::default(), Ino::new(3));
        gaps.add(ino, 100, 200);
        gaps.filled(ino, 120, 130);
        assert_eq!(gaps.within(ino, 0, 300), [(100, 120), (130, 200)]);
        assert_eq!(gaps.within(ino, 110, 140), [(110, 120), (130, 140)]);
        gaps.filled(ino, 0, 300);
        assert!(gaps.within(ino, 0, 300).is_empty() && gaps.files.lock().is_empty());
        gaps.add(ino, 1, 2);
        gaps.forget(ino);
        assert!(gaps.within(ino, 0, 3).is_empty());
    }
}
