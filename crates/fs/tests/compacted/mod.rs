//! Threads that change small files beside compaction that empties segments all the time.
//!
//! Each thread has its own files and knows their contents, so a piece that is moved from under a
//! change shows at once. The scheduler decides the order: a seed fixes what is tried, not when.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::{CALLER, Setup, check, format, open_at};
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Fs, Ino, ROOT, SetAttr, XattrMode};
use shoal_sim::{Random, SimClock};
use std::sync::Arc;

const THREADS: u64 = 3;
const FILES: usize = 6;
const LEN_MAX: u64 = 9000;

/// A file that one thread changes, its contents and the value of its attribute.
struct Own {
    ino: Ino,
    contents: Vec<u8>,
    value: Vec<u8>,
}

impl Own {
    fn change(&mut self, fs: &Fs, random: &mut Random) {
        let mut bytes = vec![0; 1 + random.below(LEN_MAX) as usize];
        random.fill(&mut bytes);
        match random.below(4) {
            0 => {
                self.contents.truncate(bytes.len());
                self.contents.resize(bytes.len(), 0);
                fs.setattr(self.ino, &SetAttr { size: Some(bytes.len() as u64), ..SetAttr::default() }).unwrap();
            }
            1 => {
                bytes.truncate(900);
                fs.setxattr(self.ino, b"user.value", &bytes, XattrMode::Any).unwrap();
                self.value = bytes;
            }
            _ => {
                assert_eq!(fs.write(self.ino, 0, &bytes), Ok(bytes.len()));
                let rest = self.contents.split_off(bytes.len().min(self.contents.len()));
                self.contents = [bytes, rest].concat();
            }
        }
        self.verify(fs);
    }

    fn verify(&self, fs: &Fs) {
        let mut found = vec![0; LEN_MAX as usize + 1];
        let len = fs.read(self.ino, 0, &mut found).unwrap();
        assert!(found[..len] == self.contents[..], "inode {}: other contents than were written", self.ino);
        if !self.value.is_empty() {
            let value = fs.getxattr(self.ino, b"user.value").unwrap();
            assert!(value == self.value, "inode {}: another attribute than was set", self.ino);
        }
    }
}

/// Lets threads make `steps` changes each beside compaction. The checker must find nothing wrong.
pub fn beside_writers(seed: u64, steps: u64) {
    let setup = Setup { region_bytes: 96 << 16, ..Setup::region_only(MemoryKind::Logged) };
    let world = format(setup, seed);
    let (fs, _) = open_at(setup, &world, 1, 1, &Arc::new(SimClock::new(1_000_000_000))).unwrap();
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let compactor = scope.spawn(|| {
            while going.load(Ordering::Relaxed) {
                fs.compacting().compact().unwrap();
            }
        });
        let work = |thread| {
            let mut random = Random::new(seed * 100 + thread);
            let file = |number| {
                let ino = fs.mknod(&CALLER, ROOT, format!("own-{thread}-{number}").as_bytes(), 0o644, 0).unwrap().ino;
                Own { ino, contents: Vec::new(), value: Vec::new() }
            };
            let mut files: Vec<_> = (0..FILES).map(file).collect();
            for step in 0..steps {
                files[random.below(FILES as u64) as usize].change(&fs, &mut random);
                // Leaves gaps, so that there is always something to gain.
                let name = format!("gap-{thread}-{}", random.below(40));
                if step % 3 == 0 && fs.unlink(ROOT, name.as_bytes()).is_err() {
                    let ino = fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o644, 0).unwrap().ino;
                    fs.write(ino, 0, &vec![1; 1 + random.below(LEN_MAX) as usize]).unwrap();
                }
            }
            files.iter().for_each(|file| file.verify(&fs));
        };
        let writers: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        let outcomes: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        going.store(false, Ordering::Relaxed);
        compactor.join().unwrap();
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
    fs.shutdown().unwrap();
    check(setup, &world, false).unwrap();
}
