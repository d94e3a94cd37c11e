//! Room that cuts gave back and that the same files may take again.
//!
//! Owns: [`GivenBack`]. A program that writes a file anew cuts it to nothing first. On a full store what the cut gave
//! back is a part of a segment of some class, and not free before it is durable; the program would lose its contents. So
//! such a write may use the reserve, for as much as the cut gave back, while half of the reserve stays for removals.
//! Left out: the reserve itself (`shoal-region`).

use std::collections::VecDeque;

use parking_lot::Mutex;
use shoal_format::inode::Ino;

/// Files that are remembered. The first to be cut is the first to be forgotten.
const FILES: usize = 256;

#[derive(Default)]
pub(crate) struct GivenBack(Mutex<VecDeque<(Ino, u64)>>);

impl GivenBack {
    /// Notes that a cut of the file gave back so many bytes.
    pub fn note(&self, ino: Ino, bytes: u64) {
        let mut files = self.0.lock();
        if let Some((_, known)) = files.iter_mut().find(|(other, _)| *other == ino) {
            *known += bytes;
        } else {
            files.push_back((ino, bytes));
            if files.len() > FILES {
                files.pop_front();
            }
        }
    }

    /// Returns whether the file gave anything back that it has not taken again.
    pub fn knows(&self, ino: Ino) -> bool {
        self.0.lock().iter().any(|(other, _)| *other == ino)
    }

    /// Takes so many bytes again. Returns false if the file did not give back as much.
    pub fn take(&self, ino: Ino, bytes: u64) -> bool {
        let mut files = self.0.lock();
        let Some(place) = files.iter().position(|(other, _)| *other == ino) else { return false };
        let known = &mut files[place].1;
        if *known < bytes {
            return false;
        }
        *known -= bytes;
        if *known == 0 {
            files.remove(place);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_takes_what_it_gave_back_and_no_more() {
        let given = GivenBack::default();
        let [file, other] = [3, 4].map(Ino::new);
        given.note(file, 100);
        given.note(file, 28);
        assert!(!given.take(other, 1) && !given.take(file, 129));
        assert!(given.take(file, 120) && given.knows(file) && !given.take(file, 9));
        assert!(given.take(file, 8) && !given.knows(file));
        (0..=FILES as u32).for_each(|number| given.note(Ino::new(number), 1));
        assert!(!given.knows(Ino::new(0)) && given.knows(Ino::new(1)));
    }
}
