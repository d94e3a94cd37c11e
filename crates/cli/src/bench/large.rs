//! The large-file measurements: sequential write and read in 1 MiB pieces, random reads and writes of 4 KiB.
//!
//! Written data is made durable within the measured time. Before each read the page cache is asked
//! to drop the file, so that the measurement shows the file system instead of the page cache
//! (unless the file system has no other copy).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use fastrand::Rng;

use super::figure::Sample;

const PIECE_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// Most random operations per round.
const RANDOM_OPERATIONS_MAX: u64 = 4096;

pub fn run(
    scratch: &Path,
    size: u64,
    seed: u64,
    report: &mut dyn FnMut(&str, Sample) -> io::Result<()>,
) -> io::Result<()> {
    let path = scratch.join("large");
    let outcome = measure(&path, size.max(PIECE_BYTES) / PIECE_BYTES * PIECE_BYTES, seed, report);
    std::fs::remove_file(&path)?;
    outcome
}

fn measure(
    path: &Path,
    size: u64,
    seed: u64,
    report: &mut dyn FnMut(&str, Sample) -> io::Result<()>,
) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    let mut random = Rng::with_seed(seed);
    let mut piece = vec![0; PIECE_BYTES as usize];
    random.fill(&mut piece);
    let pieces = size / PIECE_BYTES;
    let mut timed = |name: &str, operations, bytes, work: &mut dyn FnMut() -> io::Result<()>| -> io::Result<()> {
        drop_cache(&file)?;
        let begin = Instant::now();
        work()?;
        report(name, Sample { operations, bytes: operations * bytes, time: begin.elapsed() })
    };
    timed("seq write", pieces, PIECE_BYTES, &mut || {
        for i in 0..pieces {
            file.write_all_at(&piece, i * PIECE_BYTES)?;
        }
        file.sync_all()
    })?;
    let mut buffer = vec![0; PIECE_BYTES as usize];
    timed("seq read", pieces, PIECE_BYTES, &mut || {
        for i in 0..pieces {
            file.read_exact_at(&mut buffer, i * PIECE_BYTES)?;
            if buffer != piece {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the data read is not the data written"));
            }
        }
        Ok(())
    })?;
    let operations = (size / PAGE_BYTES).min(RANDOM_OPERATIONS_MAX);
    let places: Vec<u64> = (0..operations).map(|_| random.u64(..size / PAGE_BYTES) * PAGE_BYTES).collect();
    let page = &mut buffer[..PAGE_BYTES as usize];
    timed("random read", operations, PAGE_BYTES, &mut || {
        places.iter().try_for_each(|&at| file.read_exact_at(page, at))
    })?;
    let page = &piece[..PAGE_BYTES as usize];
    timed("random write", operations, PAGE_BYTES, &mut || {
        places.iter().try_for_each(|&at| file.write_all_at(page, at))?;
        file.sync_all()
    })
}

fn drop_cache(file: &File) -> io::Result<()> {
    Ok(posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
}
