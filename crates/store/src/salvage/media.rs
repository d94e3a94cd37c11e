//! A store's files, opened only for reading: every write is refused, and no lock, epoch or process
//! id is written.
//!
//! Rules: a file that cannot be opened is absent or reads as zeros; the salvage names the losses.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use crate::cache::StoreCache;
use shoal_check::BulkData;
use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::BULK_NUMBER_SHIFT;
use shoal_host::{Access, Directory, SEGMENT_BYTES};
use shoal_media::{BlockDevice, ImageFile, LogDevice, MediaError, PersistentMemory, Result, block};

fn refused<T>() -> Result<T> {
    Err(MediaError::io("store", io::Error::from(io::ErrorKind::PermissionDenied)))
}

/// Fills `out`. Bytes behind the end of the file are zero.
fn read_at(file: &File, at: u64, out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    out[done..].fill(0);
    Ok(())
}

/// Reads page by page when the host refuses the whole range, so that a bad sector costs one page.
fn read_what_can_be(file: &File, at: u64, out: &mut [u8]) {
    if read_at(file, at, out).is_err() {
        for (page, part) in out.chunks_mut(4096).enumerate() {
            if read_at(file, at + page as u64 * 4096, part).is_err() {
                part.fill(0);
            }
        }
    }
}

pub struct ReadImage(Option<File>);

impl ReadImage {
    pub fn open(directory: &Directory, name: &str) -> ReadImage {
        ReadImage(directory.open_file(name, Access::Read).ok())
    }
}

impl ImageFile for ReadImage {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        match &self.0 {
            Some(file) => read_what_can_be(file, at, out),
            None => out.fill(0),
        }
        Ok(())
    }

    fn stored_bytes(&self) -> Result<Option<u64>> {
        Ok(self.0.as_ref().and_then(|file| file.metadata().ok()).map(|found| found.len()))
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        refused()
    }

    fn sync(&self) -> Result<()> {
        refused()
    }
}

#[derive(Clone)]
pub struct ReadMemory {
    file: Arc<File>,
    len: u64,
}

impl ReadMemory {
    pub fn open(path: &Path) -> Option<ReadMemory> {
        let file = Arc::new(shoal_host::open_unlinked(path, Access::Read).ok()?);
        let len = file.metadata().ok()?.len();
        Some(ReadMemory { file, len })
    }
}

impl PersistentMemory for ReadMemory {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        read_what_can_be(&self.file, at, out);
    }

    fn write(&self, _: u64, _: &[u8]) {}

    fn zero(&self, _: u64, _: u64) {}

    fn write_back(&self, _: u64, _: u64) {}

    fn fence(&self) {}
}

/// The log's segments by their first position.
pub struct ReadLog {
    directory: Directory,
    segments: BTreeMap<u64, String>,
}

impl ReadLog {
    /// Opens the log's directory. `None` if there is no log.
    pub fn open(parent: &Directory, name: &str) -> Option<ReadLog> {
        let directory = parent.subdirectory(name).ok()?;
        let mut segments = BTreeMap::new();
        for entry in directory.entries().ok()? {
            let name = entry.into_string().unwrap_or_default();
            if let Some(start) = name.strip_prefix("log-").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
                segments.insert(start, name);
            }
        }
        (!segments.is_empty()).then_some(ReadLog { directory, segments })
    }
}

impl ReadLog {
    /// Returns the missing parts, in words. Segments have one length and follow each other without
    /// gaps.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut next = None;
        for (&start, segment) in &self.segments {
            let path = self.directory.path().join(segment);
            let name = path.display();
            match self.directory.open_file(segment, Access::Read).and_then(|file| Ok(file.metadata()?.len())) {
                Ok(SEGMENT_BYTES) => {}
                Ok(len) => {
                    faults.push(format!("{name} has {len} of {SEGMENT_BYTES} bytes: later changes may be missing"));
                }
                Err(error) => faults.push(format!("{name}: {error}: later changes may be missing")),
            }
            if next.is_some_and(|next| start > next) {
                let missing = next.unwrap_or(0);
                faults
                    .push(format!("the log's segment from position {missing} on is missing, and later ones are there"));
            }
            next = Some(start + SEGMENT_BYTES);
        }
        faults
    }
}

impl LogDevice for ReadLog {
    fn append(&self, _: u64, _: &[u8]) -> Result<()> {
        refused()
    }

    fn sync(&self) -> Result<()> {
        refused()
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        let Some((start, segment)) = self.segments.range(..=position).next_back() else { return Ok(0) };
        // A segment that cannot be read ends the log, as a missing one does.
        let limit = self.segments.range(position + 1..).next().map_or(u64::MAX, |(&next, _)| next - position);
        let len = (out.len() as u64).min(limit) as usize;
        let opened = self.directory.open_file(segment, Access::Read);
        let read = opened.and_then(|file| file.read_at(&mut out[..len], position - start));
        Ok(read.unwrap_or(0))
    }

    fn release(&self, _: u64) -> Result<()> {
        refused()
    }
}

/// Unit of requests to a file or a block device, the same as for a mount (bytes).
pub const FILE_BLOCK_BYTES: u64 = 512;

pub struct ReadBulk {
    file: File,
    bytes: u64,
    place: u64,
}

impl ReadBulk {
    pub fn open(path: &Path) -> io::Result<ReadBulk> {
        // Opening a pipe would block until its other end is opened.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut file = std::fs::OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
        // The metadata of a block device has no length, but seeking finds its end.
        let bytes = file.seek(SeekFrom::End(0))?;
        Ok(ReadBulk { file, bytes, place: shoal_host::place_id(path).unwrap_or(0) })
    }

    /// Returns the user that the file or device belongs to.
    pub fn owner(&self) -> Option<u32> {
        self.file.metadata().ok().map(|found| found.uid())
    }

    /// Returns the size without a partial block at the end (bytes).
    pub fn bytes(&self) -> u64 {
        self.bytes - self.bytes % FILE_BLOCK_BYTES
    }
}

impl BulkData for ReadBulk {
    fn read(&self, at: u64, out: &mut [u8]) -> std::result::Result<(), String> {
        self.file.read_exact_at(out, at).map_err(|error| format!("bulk storage at {at}: {error}"))
    }

    fn place(&self, _: u64) -> u64 {
        self.place
    }
}

/// Bulk storage with the writes that a killed process held back from it.
pub struct HeldBulk {
    pub below: Box<dyn BulkData>,
    pub cache: StoreCache,
}

impl BulkData for HeldBulk {
    fn read(&self, at: u64, out: &mut [u8]) -> std::result::Result<(), String> {
        self.below.read(at, out)?;
        self.cache.lay_over(at, out);
        Ok(())
    }

    fn place(&self, at: u64) -> u64 {
        self.below.place(at)
    }

    fn is_held(&self, at: u64, len: u64) -> bool {
        self.cache.found_in(at, len) == len
    }
}

pub struct BlockBulk(pub Arc<dyn BlockDevice>);

impl BulkData for BlockBulk {
    fn read(&self, at: u64, out: &mut [u8]) -> std::result::Result<(), String> {
        // Payloads of spilled files begin and end within blocks of the device.
        let unit = u64::from(self.0.geometry().block_bytes.max(1));
        let (from, to) = (at / unit * unit, (at + out.len() as u64).next_multiple_of(unit));
        let mut whole = vec![0; (to - from) as usize];
        block::read(self.0.as_ref(), from, &mut whole).map_err(|error| format!("bulk storage at {at}: {error}"))?;
        out.copy_from_slice(&whole[(at - from) as usize..][..out.len()]);
        Ok(())
    }
}

/// Several bulk devices, by their numbers.
pub struct Joined(pub Vec<(u32, Box<dyn BulkData>)>);

impl BulkData for Joined {
    fn read(&self, at: u64, out: &mut [u8]) -> std::result::Result<(), String> {
        match self.part(at) {
            Ok((part, own)) => part.read(own, out),
            Err(number) => Err(format!("bulk device {number} is not there")),
        }
    }

    fn place(&self, at: u64) -> u64 {
        self.part(at).map_or(0, |(part, own)| part.place(own))
    }

    fn is_held(&self, at: u64, len: u64) -> bool {
        self.part(at).is_ok_and(|(part, own)| part.is_held(own, len))
    }
}

impl Joined {
    /// Returns the device that has this byte and the byte's position on it. The error is the number
    /// of a missing device.
    fn part(&self, at: u64) -> std::result::Result<(&dyn BulkData, u64), u64> {
        let number = (at / BULK_BLOCK) >> BULK_NUMBER_SHIFT;
        let own = at - (number << BULK_NUMBER_SHIFT) * BULK_BLOCK;
        let part = self.0.iter().find(|(known, _)| u64::from(*known) == number);
        part.map(|(_, part)| (&**part, own)).ok_or(number)
    }
}

#[cfg(test)]
mod tests {
    use shoal_media::{BlockGeometry, Completion, Request};

    use super::*;

    /// A server that accepts only whole sectors.
    struct Sectors(Vec<u8>);

    impl BlockDevice for Sectors {
        fn write_cache(&self) -> Option<&dyn shoal_media::WriteCache> {
            None
        }

        fn geometry(&self) -> BlockGeometry {
            BlockGeometry { bytes: self.0.len() as u64, block_bytes: 512, atomic_bytes: 512, survives_process: true }
        }

        fn submit(&self, request: Request, done: Completion) {
            let Request::Read { at, mut buffer } = request else { return done(refused()) };
            let len = buffer.len();
            if at % 512 != 0 || len % 512 != 0 {
                return done(Err(MediaError::OutOfRange { what: "sectors".into(), at, len: len as u64 }));
            }
            buffer.copy_from_slice(&self.0[at as usize..][..len]);
            done(Ok(buffer));
        }
    }

    #[test]
    fn bytes_within_sectors_are_read_by_whole_ones() {
        let bytes: Vec<u8> = (0..4096u32).map(|at| (at ^ at >> 8) as u8).collect();
        let bulk = BlockBulk(Arc::new(Sectors(bytes.clone())));
        for (at, len) in [(0, 4096), (512, 1), (512, 1000), (1, 4095), (700, 13), (4095, 1)] {
            let mut out = vec![0; len];
            bulk.read(at as u64, &mut out).unwrap();
            assert!(out == bytes[at..at + len], "{len} bytes at {at}");
        }
    }
}
