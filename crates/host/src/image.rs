//! An image file: a region at rest, a sparse file read and written at positions.
//!
//! Bytes never written read as zeros, even behind the end of the file. After a failed sync every
//! further write and sync is refused: the kernel may have dropped bytes that it could not write,
//! and only opening the file again can tell. Left to the region: which bytes make an image valid,
//! and when one is sealed.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use shoal_media::{ImageFile, MediaError, Poison, Result};

use crate::directory::{Access, Directory, in_directory};
use crate::planted::{Bug, is_planted};
use crate::{calls, host_kind};

pub struct HostImage {
    file: File,
    poison: Poison,
    name: String,
}

impl HostImage {
    /// Creates an empty image, readable by its owner only; refuses a path that exists.
    pub fn create(path: &Path) -> io::Result<HostImage> {
        let (directory, name) = in_directory(path)?;
        Self::create_in(&directory, &name)
    }

    /// Like [`HostImage::create`], in a held directory.
    pub fn create_in(directory: &Directory, name: &str) -> io::Result<HostImage> {
        let file = directory.create_new(name)?;
        host_kind::write_in_place(&file);
        directory.sync()?;
        Ok(Self::over(file, &directory.path().join(name)))
    }

    pub fn open(path: &Path) -> io::Result<HostImage> {
        let (directory, name) = in_directory(path)?;
        Self::open_in(&directory, &name, Access::Write)
    }

    /// Like [`HostImage::open`], in a held directory. An image opened for reading refuses writes.
    pub fn open_in(directory: &Directory, name: &str, access: Access) -> io::Result<HostImage> {
        Ok(Self::over(directory.open_file(name, access)?, &directory.path().join(name)))
    }

    fn over(file: File, path: &Path) -> HostImage {
        HostImage { file, poison: Poison::default(), name: format!("image {}", path.display()) }
    }

    /// Returns the file, for mapping it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the bytes that the image occupies on its disk.
    pub fn allocated_bytes(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.blocks() * 512).map_err(|e| MediaError::io(self.name.as_str(), e))
    }

    fn refuse_poisoned(&self) -> Result<()> {
        self.poison.refuse(&self.name)
    }
}

impl ImageFile for HostImage {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.file.read_at(&mut out[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(MediaError::io(self.name.as_str(), e)),
            }
        }
        out[done..].fill(0);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.refuse_poisoned()?;
        calls::write_all_at(&self.file, bytes, at).map_err(|e| MediaError::io(self.name.as_str(), e))
    }

    fn reserve(&self, at: u64, len: u64) -> Result<bool> {
        self.refuse_poisoned()?;
        host_kind::allocate(&self.file, at, len).map_err(|e| MediaError::io(self.name.as_str(), e))
    }

    fn reserve_holes(&self, bytes: u64) -> Result<()> {
        let is_in_memory = host_kind::is_tmpfs(&self.file).unwrap_or(false);
        if is_in_memory { self.reserve(0, bytes).map(drop) } else { Ok(()) }
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.refuse_poisoned()?;
        let failed = |e| MediaError::io(self.name.as_str(), e);
        if self.file.metadata().map_err(failed)?.len() > bytes {
            calls::set_len(&self.file, bytes).map_err(failed)?;
        }
        Ok(())
    }

    fn stored_bytes(&self) -> Result<Option<u64>> {
        self.file.metadata().map(|found| Some(found.len())).map_err(|e| MediaError::io(self.name.as_str(), e))
    }

    fn sync(&self) -> Result<()> {
        self.refuse_poisoned()?;
        if is_planted(Bug::ImageUnsynced) {
            return Ok(());
        }
        calls::sync_data(&self.file).map_err(|e| {
            self.poison.set(&e);
            MediaError::Io { what: self.name.clone(), source: std::sync::Arc::new(e) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_the_space_behind_the_end_read_as_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let image = HostImage::create(&path).unwrap();
        image.write(1 << 30, b"abc").unwrap();
        image.sync().unwrap();
        assert!(image.allocated_bytes().unwrap() < 1 << 20, "the hole takes no room");
        drop(image);
        assert!(HostImage::create(&path).is_err(), "an existing image is not overwritten");
        let image = HostImage::open(&path).unwrap();
        let mut out = [1; 7];
        image.read((1 << 30) - 2, &mut out).unwrap();
        assert_eq!(&out, b"\0\0abc\0\0");
        image.read(1 << 40, &mut out).unwrap();
        assert_eq!(out, [0; 7]);
        assert_eq!(image.file().metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_cut_off_reads_as_zeros_and_takes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let image = HostImage::create(&dir.path().join("image")).unwrap();
        image.write(4094, b"abcd").unwrap();
        image.write(1 << 20, &[7; 1 << 20]).unwrap();
        image.truncate(4096).unwrap();
        image.sync().unwrap();
        let mut out = [1; 5];
        image.read(4094, &mut out).unwrap();
        assert_eq!(&out, b"ab\0\0\0");
        assert!(image.allocated_bytes().unwrap() <= 64 << 10);
        image.truncate(1 << 20).unwrap();
        assert_eq!(image.file().metadata().unwrap().len(), 4096, "it never grows");
    }

    #[test]
    fn a_reserved_range_has_its_room_and_keeps_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let image = HostImage::create(&dir.path().join("image")).unwrap();
        image.write(4096, b"abc").unwrap();
        if !image.reserve(0, 1 << 20).unwrap() {
            return println!("SKIP: the file system of {} does not reserve", dir.path().display());
        }
        assert!(image.allocated_bytes().unwrap() >= 1 << 20);
        let mut out = [1; 5];
        image.read(4094, &mut out).unwrap();
        assert_eq!(&out, b"\0\0abc");
    }

    #[test]
    fn a_failed_sync_poisons() {
        // A pipe cannot be synced: the kernel answers EINVAL.
        let (_reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let image = HostImage::over(file, Path::new("pipe"));
        assert!(matches!(image.sync(), Err(MediaError::Io { .. })));
        assert!(matches!(image.sync(), Err(MediaError::Poisoned { .. })));
        assert!(matches!(image.write(0, b"x"), Err(MediaError::Poisoned { .. })));
    }
}
