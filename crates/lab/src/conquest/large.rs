//! The Sprite LFS large-file benchmark as modified by Conquest's authors.
//!
//! Owns: [`Shape`], the files of a run; [`run`], the five phases over all of them: sequential
//! write, sequential read, random write of new files, random read, sequential read. Rules: records
//! have 4 KB; random records are aligned and each occurs once. A file is synced at the end of each
//! writing phase, within the measured time. The second set of files replaces the first, outside of
//! the measured time. The length of each read is verified.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use shoal_fs::{Caller, Ino};
use shoal_sim::Random;

use crate::target::{Directory, Engine, Failed, Outcome, Target};

/// Bytes of one call.
pub const RECORD: u64 = 4096;

/// Files of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub name: &'static str,
    pub files: u32,
    pub bytes: u64,
}

pub const PHASES: [&str; 5] =
    ["sequential write", "sequential read", "random write", "random read", "sequential read again"];

/// A target with files that are written and read at arbitrary offsets.
pub trait Large: Target {
    type File;

    fn make(&self, name: &str) -> Outcome<Self::File>;

    fn open(&self, name: &str) -> Outcome<Self::File>;

    fn write_at(&self, file: &Self::File, at: u64, bytes: &[u8]) -> Outcome<()>;

    fn read_at(&self, file: &Self::File, at: u64, out: &mut [u8]) -> Outcome<()>;

    fn sync(&self, file: &Self::File) -> Outcome<()>;
}

impl Large for Directory {
    type File = File;

    fn make(&self, name: &str) -> Outcome<File> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.root().join(name));
        file.map_err(|error| self.failed("create", name, error))
    }

    fn open(&self, name: &str) -> Outcome<File> {
        File::open(self.root().join(name)).map_err(|error| self.failed("open", name, error))
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> Outcome<()> {
        file.write_all_at(bytes, at).map_err(|error| self.failed("write", "", error))
    }

    fn read_at(&self, file: &File, at: u64, out: &mut [u8]) -> Outcome<()> {
        file.read_exact_at(out, at).map_err(|error| self.failed("read", "", error))
    }

    fn sync(&self, file: &File) -> Outcome<()> {
        file.sync_all().map_err(|error| self.failed("fsync", "", error))
    }
}

impl Large for Engine<'_> {
    type File = Ino;

    fn make(&self, name: &str) -> Outcome<Ino> {
        let made = self.0.mknod(&Caller::default(), shoal_fs::ROOT, name.as_bytes(), 0o644, 0);
        made.map(|attr| attr.ino).map_err(|error| Failed::new("create", name, error))
    }

    fn open(&self, name: &str) -> Outcome<Ino> {
        let found = self.0.lookup(shoal_fs::ROOT, name.as_bytes());
        found.map(|attr| attr.ino).map_err(|error| Failed::new("open", name, error))
    }

    fn write_at(&self, file: &Ino, at: u64, bytes: &[u8]) -> Outcome<()> {
        match self.0.write(*file, at, bytes) {
            Ok(len) if len == bytes.len() => Ok(()),
            Ok(_) => Err(Failed::new("write", "", shoal_fs::Error::NO_SPACE)),
            Err(error) => Err(Failed::new("write", "", error)),
        }
    }

    fn read_at(&self, file: &Ino, at: u64, out: &mut [u8]) -> Outcome<()> {
        match self.0.read(*file, at, out) {
            Ok(len) if len == out.len() => Ok(()),
            Ok(len) => Err(Failed::new("read", "", format!("{len} bytes where {} were written", out.len()))),
            Err(error) => Err(Failed::new("read", "", error)),
        }
    }

    fn sync(&self, file: &Ino) -> Outcome<()> {
        self.0.fsync(*file).map_err(|error| Failed::new("fsync", "", error))
    }
}

/// Returns offset and length of the records of a file, in order or each once in a random order.
fn records(bytes: u64, random: Option<&mut Random>) -> Vec<(u64, usize)> {
    let in_order: Vec<(u64, usize)> =
        (0..bytes.div_ceil(RECORD)).map(|n| (n * RECORD, RECORD.min(bytes - n * RECORD) as usize)).collect();
    match random {
        Some(random) => random.shuffled(in_order),
        None => in_order,
    }
}

/// Makes all calls at a place that is empty before and after. Returns the bandwidth of each phase
/// (MB/s of 10^6 bytes).
pub fn run<T: Large>(target: &T, shape: &Shape, seed: u64) -> Outcome<Vec<f64>> {
    let mut random = Random::new(seed);
    let record = random.bytes(RECORD as usize);
    let mut buffer = vec![0; RECORD as usize];
    let names: Vec<String> = (0..shape.files).map(|file| format!("large-{file}")).collect();
    let mut rates = vec![];
    for (phase, name) in PHASES.iter().enumerate() {
        let (is_write, is_random) = (name.contains("write"), name.contains("random"));
        if is_write && phase > 0 {
            names.iter().try_for_each(|name| target.unlink(name))?;
        }
        let orders: Vec<_> = names.iter().map(|_| records(shape.bytes, is_random.then_some(&mut random))).collect();
        let clock = Instant::now();
        for (name, order) in names.iter().zip(&orders) {
            let file = if is_write { target.make(name)? } else { target.open(name)? };
            for &(at, len) in order {
                match is_write {
                    true => target.write_at(&file, at, &record[..len])?,
                    false => target.read_at(&file, at, &mut buffer[..len])?,
                }
            }
            if is_write {
                target.sync(&file)?;
            }
        }
        rates.push(f64::from(shape.files) * shape.bytes as f64 / 1e6 / clock.elapsed().as_secs_f64());
    }
    names.iter().try_for_each(|name| target.unlink(name))?;
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_record() {
        let mut random = Random::new(1);
        for bytes in [1, RECORD, RECORD + 1, 1_010_000] {
            let (ordered, mut shuffled) = (records(bytes, None), records(bytes, Some(&mut random)));
            assert_eq!(ordered.iter().map(|(_, len)| *len as u64).sum::<u64>(), bytes);
            assert!(shuffled.iter().all(|(at, _)| at % RECORD == 0));
            shuffled.sort_unstable();
            assert_eq!(ordered, shuffled);
        }
    }
}
