//! The kernel's table of mounts (`/proc/self/mountinfo`).
//!
//! Pure parsing, and one reader. Of several mounts on one path, the last one listed covers the
//! others. Nothing here touches a mount point: a mount whose daemon is gone or busy must not block
//! the reader of the table.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The type under which the kernel lists a mounted store.
pub const FILE_SYSTEM_TYPE: &str = "fuse.shoal";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `major:minor` of the mounted file system.
    pub device: String,
    pub mountpoint: PathBuf,
    /// Options of this mount, separated by commas.
    pub options: String,
    pub file_system_type: String,
    pub source: PathBuf,
    /// Options of the file system, the same for all of its mounts.
    pub super_options: String,
}

/// Returns all mounts that this process sees, in the order they were made.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns all mounts that a process sees, with the paths that it sees.
pub fn mounts_of(pid: u32) -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read(format!("/proc/{pid}/mountinfo"))?))
}

/// Returns the mount that is visible at exactly this (canonical) path.
pub fn mounted_at(mountpoint: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|entry| entry.mountpoint == mountpoint))
}

/// The table, kept open so that it can be read when no further descriptor is available. A lack of
/// descriptors must not keep a mount from being ended.
#[derive(Debug)]
pub(crate) struct Table(File);

impl Table {
    pub fn open() -> io::Result<Table> {
        File::open("/proc/self/mountinfo").map(Table)
    }

    /// Does the same as the function of this name.
    pub fn mounted_at(&self, mountpoint: &Path) -> io::Result<Option<MountEntry>> {
        let (mut text, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            match self.0.read_at(&mut piece, text.len() as u64)? {
                0 => break,
                len => text.extend_from_slice(&piece[..len]),
            }
        }
        Ok(parse(&text).into_iter().rfind(|entry| entry.mountpoint == mountpoint))
    }
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&b| b == b'\n').filter_map(entry).collect()
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mountpoint = path(fields.nth(1)?);
    let options = String::from_utf8(fields.next()?.to_vec()).ok()?;
    // A varying number of optional fields ends with a dash.
    fields.find(|field| *field == b"-")?;
    let file_system_type = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let source = path(fields.next()?);
    let super_options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    Some(MountEntry { device, mountpoint, options, file_system_type, source, super_options })
}

/// Reads a path, in which blanks, tabs, line feeds and backslashes are written as `\` and three octal digits.
fn path(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if byte == b'\\' => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_with_and_without_optional_fields_and_escapes() {
        let table = b"22 1 254:0 / / rw,noatime shared:1 master:2 - ext4 /dev/vda rw\n\
            90 22 0:45 / /mnt/a\\040b\\134 rw,nosuid - fuse.shoal /srv/st\\054ore rw,user_id=0\n\
            broken line\n";
        let entries = parse(table);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].mountpoint, Path::new("/"));
        assert_eq!(entries[0].file_system_type, "ext4");
        assert_eq!(
            entries[1],
            MountEntry {
                device: "0:45".into(),
                mountpoint: "/mnt/a b\\".into(),
                options: "rw,nosuid".into(),
                file_system_type: FILE_SYSTEM_TYPE.into(),
                source: "/srv/st,ore".into(),
                super_options: "rw,user_id=0".into(),
            }
        );
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
        assert!(mounted_at(Path::new("/no/such/place")).unwrap().is_none());
        let table = Table::open().unwrap();
        for path in ["/", "/proc", "/no/such/place"] {
            assert_eq!(table.mounted_at(Path::new(path)).unwrap(), mounted_at(Path::new(path)).unwrap(), "{path}");
        }
    }
}
