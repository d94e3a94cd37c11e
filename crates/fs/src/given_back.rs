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
pub(crate) struct GivenBack(Mutex<VecDeque<Given>>);

/// What cuts of a file gave back (bytes). The next file of the same number has another generation.
struct Given {
    ino: Ino,
    generation: u32,
    bytes: u64,
}

impl GivenBack {
    /// Adds `bytes` to what cuts of the file gave back.
    pub fn note(&self, ino: Ino, generation: u32, bytes: u64) {
        let mut files = self.0.lock();
        files.retain(|given| given.ino != ino || given.generation == generation);
        match files.iter_mut().find(|given| given.ino == ino) {
            Some(given) => given.bytes += bytes,
            None => files.push_back(Given { ino, generation, bytes }),
        }
        if files.len() > FILES {
            files.pop_front();
        }
    }

    /// Returns whether a file of this number gave back something that was not taken again.
    pub fn knows(&self, ino: Ino) -> bool {
        self.0.lock().iter().any(|given| given.ino == ino)
    }

    /// Takes `bytes` of it again. Returns false, and takes nothing, if this file gave back less.
    pub fn take(&self, ino: Ino, generation: u32, bytes: u64) -> bool {
        let mut files = self.0.lock();
        let of_this = |given: &Given| (given.ino, given.generation) == (ino, generation);
        let Some(place) = files.iter().position(of_this) else { return false };
        let given = &mut files[place];
        if given.bytes < bytes {
            return false;
        }
        given.bytes -= bytes;
        if given.bytes == 0 {
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
        given.note(file, 1, 100);
        given.note(file, 1, 28);
        assert!(!given.take(other, 1, 1) && !given.take(file, 1, 129));
        assert!(given.take(file, 1, 120) && given.knows(file) && !given.take(file, 1, 9));
        assert!(given.take(file, 1, 8) && !given.knows(file));
        (0..=FILES as u32).for_each(|number| given.note(Ino::new(number), 1, 1));
        assert!(!given.knows(Ino::new(0)) && given.knows(Ino::new(1)));
    }

    #[test]
    fn what_a_removed_file_gave_back_is_not_the_next_ones() {
        let (given, ino) = (GivenBack::default(), Ino::new(3));
        given.note(ino, 1, 100);
        assert!(!given.take(ino, 2, 1));
        given.note(ino, 2, 10);
        assert!(!given.take(ino, 2, 11) && given.take(ino, 2, 10) && !given.take(ino, 1, 1));
    }
}
