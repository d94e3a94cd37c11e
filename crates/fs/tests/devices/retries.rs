//! Writers that go on while a device of theirs fails flushes and is used again, over and over.
//!
//! Rules: a block reads as what was written last, or as an error if no fsync has confirmed that.
//! Data that an fsync confirmed can be read in this process and the next. Left out: one writer,
//! step by step (`doubt`).

use super::*;

const FILE_BLOCKS: u64 = 4;

/// The possible contents of a block.
struct Block {
    /// The bytes that may fill it: a single one after a successful write.
    may_be: Vec<u8>,
    /// An fsync has confirmed it since the last write.
    is_durable: bool,
}

/// A file with one writer.
struct Written<'a> {
    fs: &'a Fs,
    ino: Ino,
    blocks: Vec<Block>,
}

impl Written<'_> {
    fn write(&mut self, number: u64, byte: u8) {
        let bytes = vec![byte; BULK_BLOCK as usize];
        let outcome = self.fs.write(self.ino, number * BULK_BLOCK, &bytes);
        let block = &mut self.blocks[number as usize];
        block.is_durable = false;
        match outcome {
            Ok(len) => {
                assert_eq!(len, bytes.len());
                block.may_be = vec![byte];
            }
            Err(Error::Io(_)) => block.may_be.push(byte),
            Err(error) => panic!("{error}"),
        }
    }

    fn fsync(&mut self) {
        match self.fs.fsync(self.ino) {
            Ok(()) => self.blocks.iter_mut().for_each(|block| block.is_durable = true),
            Err(Error::Io(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns whether the block could be read.
    fn read(&self, number: u64) -> bool {
        let Block { may_be, is_durable } = &self.blocks[number as usize];
        match read(self.fs, self.ino, number * BULK_BLOCK, BULK_BLOCK as usize) {
            Ok(found) => {
                let is_one = found.iter().all(|&byte| byte == found[0]);
                assert!(is_one && may_be.contains(&found[0]), "block {number}: {} instead of {may_be:?}", found[0]);
                true
            }
            Err(Error::Io(cause)) if cause.contains("it is being opened again") => true,
            Err(error) => {
                assert!(matches!(error, Error::Io(_)) && !is_durable, "block {number}, durable {is_durable}: {error}");
                false
            }
        }
    }

    fn read_all(&self) {
        for number in 0..FILE_BLOCKS {
            self.read(number);
        }
    }
}

/// Lets two writers work while the device fails `rounds` flushes.
pub fn under_writers(kind: MemoryKind, seed: u64, rounds: u32) {
    let pair = Pair::new(kind);
    let Pair { fs, second, .. } = &pair;
    let files = [pair.file_on(1, b"one", 1, FILE_BLOCKS), pair.file_on(1, b"two", 1, FILE_BLOCKS)];
    fs.sync().unwrap();
    let ends = AtomicBool::new(false);
    let work = |ino, number: u64| {
        let mut random = Random::new(seed * 2 + number);
        let blocks = (0..FILE_BLOCKS).map(|_| Block { may_be: vec![1], is_durable: true }).collect();
        let mut file = Written { fs, ino, blocks };
        let mut unread = 0;
        while !ends.load(Ordering::Relaxed) {
            let block = random.below(FILE_BLOCKS);
            match random.below(8) {
                0..4 => file.write(block, 2 + random.below(250) as u8),
                4..7 => unread += u64::from(!file.read(block)),
                _ => file.fsync(),
            }
        }
        (file, unread)
    };
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..).zip(files).map(|(number, ino)| scope.spawn(move || work(ino, number))).collect();
        for _ in 0..rounds {
            std::thread::sleep(std::time::Duration::from_millis(2));
            second.fails.store(true, Ordering::Relaxed);
            while fs.devices().states()[1].state.cause().is_none() {
                std::thread::yield_now();
            }
            second.fails.store(false, Ordering::Relaxed);
            fs.devices().retry(1, || Ok((second.clone(), 0))).unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    let unread: u64 = written.iter().map(|(_, unread)| unread).sum();
    assert!(unread > 0, "{kind:?}: no read met a block in doubt");
    let (_, again) = pair.again(false, false, all_given).unwrap();
    for (mut file, _) in written {
        file.read_all();
        // The disk keeps what was flushed, and nothing else.
        file.blocks.iter_mut().filter(|block| !block.is_durable).for_each(|block| block.may_be = (0..=255).collect());
        let file = Written { fs: &again, ..file };
        file.read_all();
    }
}
