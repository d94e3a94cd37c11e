//! How one file is stored: its inode's fields, where its record is, and every piece of its data.
//!
//! The report is passed as JSON, because only the process that has a mounted store open can make
//! it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shoal_devices::{During, Failure, Outcome};
use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::BULK_NUMBER_SHIFT;
use shoal_fs::{Fs, Method, Options, PlacedRange};

use crate::packing::{self, Packed};
use crate::store::Store;

/// How a file is stored.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct FileReport {
    pub path: String,
    pub inode: u64,
    pub generation: u32,
    pub kind: String,
    /// Permission bits, in octal.
    pub permissions: String,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    /// Nanoseconds since 1970.
    pub accessed_ns: i64,
    pub modified_ns: i64,
    pub changed_ns: i64,
    pub born_ns: i64,
    pub layout: String,
    pub flags: u8,
    /// Offset of the inode's record in the region.
    pub record_at: u64,
    pub has_xattrs: bool,
    /// How the file is packed (for a directory, its new files), if that differs from the store's
    /// setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// Size above which the file is large (for a directory, its new files), if that differs from
    /// the store's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_bytes: Option<u64>,
    /// The threshold came from the directory. A rebalance follows the directory.
    #[serde(default)]
    pub threshold_inherited: bool,
    pub pieces: Vec<PieceReport>,
    /// For large files: the number of extents, and the number of contiguous runs on one device that
    /// they form.
    #[serde(default)]
    pub extents: u64,
    #[serde(default)]
    pub fragments: u64,
    /// For small files; for a directory, the files below it.
    #[serde(default)]
    pub packed: Packed,
    /// For a directory: regular files below it.
    #[serde(default)]
    pub files_below: u64,
}

/// A piece of a file's data.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct PieceReport {
    pub file_at: u64,
    pub bytes: u64,
    /// Bytes that the piece occupies, fewer if it is packed.
    #[serde(default)]
    pub stored_bytes: u64,
    /// `memory` or `bulk`.
    pub tier: String,
    /// The number of the bulk device; 0 for the first, and for memory.
    #[serde(default)]
    pub bulk_device: u32,
    /// Offset in the region or on the bulk device.
    pub at: u64,
    /// Written, but perhaps not yet durable.
    pub new: bool,
    /// Allocated but never written.
    pub unwritten: bool,
    /// A part of a small file that is on bulk storage; `at` is its head in memory.
    #[serde(default)]
    pub spilled: bool,
}

impl FileReport {
    /// Returns the report on the file at `path` within an open file system.
    pub fn of(fs: &Fs, path: &Path) -> Outcome<FileReport> {
        let resolved = fs.resolve(path.as_os_str().as_bytes()).during(path.display());
        let ino = resolved.map_err(|failure| failure.remedy("name a path within the store"))?;
        let placement = fs.placement(ino).during(path.display())?;
        let (attr, inode) = (placement.attr, placement.inode);
        let kind = match attr.mode >> 12 {
            1 => "fifo",
            2 => "character device",
            4 => "directory",
            6 => "block device",
            8 => "file",
            10 => "symbolic link",
            12 => "socket",
            other => return Err(Failure::new(path.display(), format!("mode {other:o} is of no known kind"))),
        };
        let extents: Vec<_> = placement.pieces.iter().filter(|piece| piece.bulk).collect();
        let joins = |pair: &&[&PlacedRange]| pair[0].at + pair[0].len == pair[1].at;
        let fragments = extents.len() - extents.windows(2).filter(joins).count();
        let own = |piece: &PlacedRange| match piece.bulk {
            true => piece.at & ((BULK_BLOCK << BULK_NUMBER_SHIFT) - 1),
            false => piece.at,
        };
        let device = |piece: &PlacedRange| if piece.bulk { (piece.at / BULK_BLOCK) >> BULK_NUMBER_SHIFT } else { 0 };
        let pieces = placement.pieces.iter().map(|piece| PieceReport {
            file_at: piece.file_at,
            bytes: piece.len,
            stored_bytes: piece.stored,
            tier: if piece.bulk || piece.spilled { "bulk" } else { "memory" }.into(),
            bulk_device: device(piece) as u32,
            at: own(piece),
            new: piece.new,
            unwritten: piece.unwritten,
            spilled: piece.spilled,
        });
        let (files_below, packed) = match kind {
            "directory" | "file" => packing::packed_below(fs, path)?,
            _ => Default::default(),
        };
        Ok(FileReport {
            path: path.display().to_string(),
            inode: attr.ino.into(),
            generation: attr.generation,
            kind: kind.into(),
            permissions: format!("{:04o}", attr.mode & 0o7777),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            device: attr.rdev,
            size_bytes: attr.size,
            allocated_bytes: inode.allocated,
            accessed_ns: attr.atime,
            modified_ns: attr.mtime,
            changed_ns: attr.ctime,
            born_ns: attr.btime,
            layout: format!("{:?}", inode.layout).to_lowercase(),
            flags: inode.flags,
            record_at: placement.record_at,
            has_xattrs: inode.xattr != shoal_format::SlotRef::NONE,
            compression: Method::of_code(inode.method).map(|method| method.to_string()),
            threshold_bytes: Some(inode.threshold.bytes).filter(|&bytes| bytes > 0).map(u64::from),
            threshold_inherited: inode.threshold.inherited,
            extents: extents.len() as u64,
            fragments: fragments as u64,
            pieces: pieces.collect(),
            packed,
            files_below: if kind == "directory" { files_below } else { 0 },
        })
    }
}

impl Store {
    /// Opens the store for reading and reports on the file at `path` within it.
    pub fn inspect(&self, path: &Path) -> Outcome<FileReport> {
        let opened = self.open(Options { read_only: true, degraded: true, ..Options::default() })?;
        FileReport::of(&opened.fs, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resize::Sizes;
    use crate::{BulkChoice, CopyOptions, FormatOptions, LEAVING_PATIENCE, salvage};
    use shoal_fs::{COMPRESS_ATTRIBUTE, Caller, ROOT, THRESHOLD_ATTRIBUTE, XattrMode};

    #[test]
    fn a_method_and_a_threshold_show_in_the_report_and_go_with_copies_resizes_and_a_salvage() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let format =
            FormatOptions { memory_bytes: Some(16 << 20), bulk: Some(BulkChoice::None), ..FormatOptions::default() };
        Store::format(&at("store"), &format).unwrap();
        let store = Store::acquire(&at("store"), LEAVING_PATIENCE).unwrap();
        let fs = store.open(Options::default()).unwrap().fs;
        let made = fs.mkdir(&Caller::default(), ROOT, b"d", 0o755).unwrap().ino;
        fs.setxattr(made, COMPRESS_ATTRIBUTE, b"zstd:11", XattrMode::Any).unwrap();
        fs.setxattr(made, THRESHOLD_ATTRIBUTE, b"64K", XattrMode::Any).unwrap();
        let file = fs.mknod(&Caller::default(), made, b"f", 0o644, 0).unwrap().ino;
        fs.write(file, 0, b"data").unwrap();
        fs.shutdown().unwrap();
        store.copy_to(&at("copy"), &CopyOptions::default(), &()).unwrap();
        drop(store);
        let copy = Store::acquire(&at("copy"), LEAVING_PATIENCE).unwrap();
        copy.resize(&Sizes { memory_bytes: Some(24 << 20), bulk_bytes: None }, &()).unwrap();
        for path in ["/d", "/d/f"] {
            let report = copy.inspect(Path::new(path)).unwrap();
            assert_eq!(report.compression.as_deref(), Some("zstd:11"));
            assert_eq!((report.threshold_bytes, report.threshold_inherited), (Some(65536), path == "/d/f"));
        }
        assert_eq!(copy.inspect(Path::new("/")).unwrap().compression, None);
        assert!(copy.check(true, &()).unwrap().errors.is_empty());
        drop(copy);
        salvage(&at("copy"), &at("out"), &(), &mut |_| ()).unwrap();
        let attributes: [(_, _, &[u8]); 3] = [
            ("out/d", COMPRESS_ATTRIBUTE, b"zstd:11"),
            ("out/d/f", COMPRESS_ATTRIBUTE, b"zstd:11"),
            ("out/d", THRESHOLD_ATTRIBUTE, b"64K"),
        ];
        for (path, attribute, expected) in attributes {
            let mut value = [0; 20];
            match rustix::fs::getxattr(at(path), attribute, &mut value[..]) {
                Ok(len) => assert_eq!(&value[..len], expected, "{path}"),
                // The host does not support such attributes; the salvage report says so.
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(error) => panic!("{path}: {error}"),
            }
        }
    }
}
