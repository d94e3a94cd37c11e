//! The copy that a salvage makes: names, contents, modes, owners, times, links and attributes in an
//! ordinary directory.
//!
//! Rules: links are not followed and nothing is replaced. Every name is newly made, so forged names
//! cannot lead out of the target. Directories get their modes and times last, when they are
//! complete. Properties that the target does not take (owners unless root copies, attributes) are
//! reported, but do not count as losses.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use shoal_check::{Item, Loss, Sink};
use shoal_format::inode::{Inode, S_IFBLK, S_IFCHR, S_IFIFO, S_IFSOCK};
use shoal_format::xattr::Attribute;
use shoal_fs::{COMPRESS_ATTRIBUTE, Method, THRESHOLD_ATTRIBUTE, threshold_text};

use super::report::{Lost, Told};

/// The file being filled.
struct Open {
    file: File,
    path: PathBuf,
    name: Vec<u8>,
    inode: Inode,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

pub struct Copy<'a> {
    target: PathBuf,
    told: &'a mut dyn FnMut(Told<'_>),
    is_root: bool,
    open: Option<Open>,
    directories: Vec<(PathBuf, Vec<u8>, Inode, Vec<Attribute>)>,
    lost: Vec<Lost>,
    notes: Vec<String>,
}

impl<'a> Copy<'a> {
    pub fn new(target: PathBuf, told: &'a mut dyn FnMut(Told<'_>)) -> Copy<'a> {
        let is_root = rustix::process::geteuid().is_root();
        Copy { target, told, is_root, open: None, directories: Vec::new(), lost: Vec::new(), notes: Vec::new() }
    }

    pub fn tell(&mut self, lost: Lost) {
        (self.told)(Told::Lost(&lost));
        self.lost.push(lost);
    }

    fn failed(&mut self, name: &[u8], what: &str, error: &dyn std::fmt::Display) {
        let path = Some(String::from_utf8_lossy(name).into_owned());
        self.tell(Lost { path, from: None, to: None, why: format!("{what}: {error}") });
    }

    /// Gives directories their modes and times, which must come last.
    pub fn finish(mut self) -> (Vec<Lost>, Vec<String>) {
        for (path, name, inode, attributes) in std::mem::take(&mut self.directories).into_iter().rev() {
            self.dress(&path, &name, &inode, &attributes);
        }
        (self.lost, self.notes)
    }

    fn place(&self, name: &[u8]) -> PathBuf {
        self.target.join(Path::new(std::ffi::OsStr::from_bytes(name)))
    }

    /// Sets owner, attributes, mode and times, in an order in which no step undoes another.
    fn dress(&mut self, path: &Path, name: &[u8], inode: &Inode, attributes: &[(Vec<u8>, Vec<u8>)]) {
        let mut kept_back = Vec::new();
        if self.is_root {
            let (owner, group) = (Uid::from_raw(inode.uid), Gid::from_raw(inode.gid));
            if let Err(error) = rustix::fs::chownat(CWD, path, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW) {
                kept_back.push(format!("owner: {error}"));
            }
        }
        let method =
            Method::of_code(inode.method).map(|method| (COMPRESS_ATTRIBUTE.to_vec(), method.to_string().into()));
        let own = Some(inode.threshold).filter(|threshold| threshold.bytes > 0 && !threshold.inherited);
        let threshold = own.map(|own| (THRESHOLD_ATTRIBUTE.to_vec(), threshold_text(own.bytes).into()));
        for (attribute, value) in attributes.iter().chain(&method).chain(&threshold) {
            if let Err(error) = rustix::fs::lsetxattr(path, &attribute[..], value, XattrFlags::empty()) {
                kept_back.push(format!("attribute {}: {error}", String::from_utf8_lossy(attribute)));
            }
        }
        if inode.kind() != shoal_format::inode::S_IFLNK {
            let mode = Permissions::from_mode((inode.mode & 0o7777) as u32);
            if let Err(error) = fs::set_permissions(path, mode) {
                kept_back.push(format!("mode: {error}"));
            }
        }
        let spec =
            |ns: i64| Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) as _ };
        let times = Timestamps { last_access: spec(inode.atime), last_modification: spec(inode.mtime) };
        if let Err(error) = rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW) {
            kept_back.push(format!("times: {error}"));
        }
        if !kept_back.is_empty() {
            let path = format!("/{}", String::from_utf8_lossy(name));
            (self.told)(Told::NotKept { path: &path, why: &kept_back.join(", ") });
        }
    }

    fn make_at(&mut self, path: &Path, item: &Item<'_>) -> io::Result<()> {
        let inode = item.inode;
        if inode.is_dir() {
            if !item.path.is_empty() {
                DirBuilder::new().mode(0o700).create(path)?;
            }
            self.directories.push((path.into(), item.path.to_vec(), *inode, item.attributes.to_vec()));
            return Ok(());
        }
        if inode.is_file() {
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600).open(path)?;
            let attributes = item.attributes.to_vec();
            let (path, name) = (path.to_path_buf(), item.path.to_vec());
            self.open = Some(Open { file, path, name, inode: *inode, attributes });
            return Ok(());
        }
        let special = match inode.kind() {
            S_IFIFO => Some(FileType::Fifo),
            S_IFSOCK => Some(FileType::Socket),
            S_IFCHR => Some(FileType::CharacterDevice),
            S_IFBLK => Some(FileType::BlockDevice),
            _ => None,
        };
        match special {
            // The kernel's encoding of a device number in 32 bits is also that of mknod(2).
            Some(kind) => rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), inode.rdev as u64)?,
            None => std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(item.target), path)?,
        }
        self.dress(path, item.path, inode, item.attributes);
        Ok(())
    }
}

impl Sink for Copy<'_> {
    fn make(&mut self, item: &Item<'_>) -> bool {
        let path = self.place(item.path);
        if item.path.starts_with(b"lost+found/#") {
            // Make it unless the store has one. If the name belongs to something else, nothing is
            // made below it.
            let _ = DirBuilder::new().mode(0o700).create(self.place(b"lost+found"));
        }
        let real = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir());
        let outcome = match path.parent() {
            Some(parent) if !item.path.is_empty() && !real(parent) => {
                Err(io::Error::from(io::ErrorKind::NotADirectory))
            }
            _ => self.make_at(&path, item),
        };
        outcome.inspect_err(|error| self.failed(item.path, "cannot be made in the copy", error)).is_ok()
    }

    fn data(&mut self, at: u64, bytes: &[u8]) {
        let Some(open) = &self.open else { return };
        // Zeros may never have been written, so they become a hole.
        if bytes.iter().all(|&byte| byte == 0) {
            return;
        }
        if let Err(error) = open.file.write_all_at(bytes, at) {
            let name = open.name.clone();
            self.failed(&name, "cannot be written to the copy", &error);
        }
    }

    fn done(&mut self) {
        let Some(Open { file, path, name, inode, attributes }) = self.open.take() else { return };
        if let Err(error) = file.set_len(inode.size) {
            self.failed(&name, "its size cannot be set in the copy", &error);
        }
        drop(file);
        self.dress(&path, &name, &inode, &attributes);
    }

    fn link(&mut self, path: &[u8], first: &[u8]) {
        if let Err(error) = fs::hard_link(self.place(first), self.place(path)) {
            self.failed(path, "this further name cannot be made in the copy", &error);
        }
    }

    fn lost(&mut self, loss: Loss) {
        let Loss { path, range, why } = loss;
        let path = path.map(|path| String::from_utf8_lossy(&path).into_owned());
        self.tell(Lost { path, from: range.map(|range| range.0), to: range.map(|range| range.1), why });
    }

    fn note(&mut self, why: &str) {
        (self.told)(Told::Note(why));
        self.notes.push(why.into());
    }
}
