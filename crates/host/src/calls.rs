//! The calls that change files, all in one place, so that tests can record every change.
//!
//! Every write, resize, allocation and sync of the store's files goes through a function here.
//! Every store into a shared map, and every name created, changed or removed through a held
//! directory, is noted here. Each function is the system call and nothing else; with the feature
//! `recorded` it also tells the [`crate::recorder`]. A change is recorded after it was made, a sync
//! when it begins and when it ends. So a write that runs beside a sync never counts as covered by
//! it. Left out: reads, the store's lock, and files that the command line writes (description,
//! process id).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;

use crate::map::Map;

#[cfg(feature = "recorded")]
use crate::recorder::{self, Event, FileId, Synced};

pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)?;
    #[cfg(feature = "recorded")]
    recorder::note(|| Event::Written { file: FileId::of(file), at, bytes: bytes.to_vec(), mapped: false });
    Ok(())
}

/// Writes pieces of a map, one after the other.
pub(crate) fn write_map_at(file: &File, map: &Map, pieces: &[(u64, u64)], at: u64) -> io::Result<()> {
    map.write_to(pieces, file, at)?;
    #[cfg(feature = "recorded")]
    recorder::note(|| {
        let mut bytes = Vec::new();
        for &(from, len) in pieces {
            let before = bytes.len();
            bytes.resize(before + len as usize, 0);
            map.read(from, &mut bytes[before..]);
        }
        Event::Written { file: FileId::of(file), at, bytes, mapped: false }
    });
    Ok(())
}

pub fn set_len(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)?;
    #[cfg(feature = "recorded")]
    recorder::note(|| Event::Resized { file: FileId::of(file), bytes });
    Ok(())
}

/// Allocates, punches or zeroes a range, as `flags` say. A signal does not interrupt it.
pub fn fallocate(file: &File, flags: FallocateFlags, at: u64, len: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, at, len))?;
    #[cfg(feature = "recorded")]
    recorder::note(|| Event::Allocated {
        file: FileId::of(file),
        at,
        len,
        zeroes: flags.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE),
        keeps_len: flags.contains(FallocateFlags::KEEP_SIZE),
    });
    Ok(())
}

pub fn sync_data(file: &File) -> io::Result<()> {
    #[cfg(feature = "recorded")]
    let sync = recorder::sync_begins(|| Synced::File(FileId::of(file)));
    file.sync_data()?;
    #[cfg(feature = "recorded")]
    recorder::sync_ended(sync);
    Ok(())
}

/// Sends a range to the disk and waits for it. This promises no durability: it covers neither the
/// metadata that locates the blocks nor the disk's own cache, so the recorder does not note it.
/// Where the call does not exist, the next sync has more to do.
pub fn send(file: &File, at: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: a system call on a descriptor that is open for as long as `file` lives; no memory is passed.
    let sent = unsafe { libc::sync_file_range(file.as_raw_fd(), at.cast_signed(), len.cast_signed(), flags) };
    match sent {
        0 => Ok(()),
        // The kernel reports a write error only once, so it must not be lost here.
        _ => match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ESPIPE | libc::EINTR)) => {
                Ok(())
            }
            e => Err(e),
        },
    }
}

pub fn sync_all(file: &File) -> io::Result<()> {
    #[cfg(feature = "recorded")]
    let sync = recorder::sync_begins(|| Synced::File(FileId::of(file)));
    file.sync_all()?;
    #[cfg(feature = "recorded")]
    recorder::sync_ended(sync);
    Ok(())
}

/// Makes the names in `directory`, which lies at `path`, durable.
pub fn sync_directory(directory: &File, path: &Path) -> io::Result<()> {
    #[cfg(feature = "recorded")]
    let sync = recorder::sync_begins(|| Synced::Directory(path.to_path_buf()));
    #[cfg(not(feature = "recorded"))]
    let _ = path;
    directory.sync_all()?;
    #[cfg(feature = "recorded")]
    recorder::sync_ended(sync);
    Ok(())
}

/// Opens with `options`, which may create the file.
pub fn create(options: &OpenOptions, path: &Path) -> io::Result<File> {
    #[cfg(feature = "recorded")]
    let existed = path.exists();
    let file = options.open(path)?;
    #[cfg(feature = "recorded")]
    if !existed {
        recorder::note(|| Event::Created { file: FileId::of(&file), path: path.to_path_buf() });
    }
    Ok(file)
}

pub fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    removed(path);
    Ok(())
}

/// Notes a file created through a directory's descriptor. `path` begins with the directory's path
/// at opening.
pub fn created(file: &File, path: &Path) {
    #[cfg(feature = "recorded")]
    recorder::note(|| Event::Created { file: FileId::of(file), path: path.to_path_buf() });
    #[cfg(not(feature = "recorded"))]
    let _ = (file, path);
}

/// Notes a rename, like [`created`].
pub fn renamed(from: &Path, to: &Path) {
    #[cfg(feature = "recorded")]
    recorder::note(|| Event::Renamed { from: from.to_path_buf(), to: to.to_path_buf() });
    #[cfg(not(feature = "recorded"))]
    let _ = (from, to);
}

/// Notes a removed name, like [`created`].
pub fn removed(path: &Path) {
    #[cfg(feature = "recorded")]
    recorder::note(|| Event::Removed { path: path.to_path_buf() });
    #[cfg(not(feature = "recorded"))]
    let _ = path;
}
