//! The state of a store that its users see, as far as two concurrent operations can be compared
//! with the same operations run in turn.
//!
//! Owns: names, sizes, links, modes and bytes of a store, and their comparison. Left out: times,
//! and the numbers of inodes that the operations create, which depend on the order.

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_format::inode::Layout;
use shoal_fs::{Fs, Ino, ROOT};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub ino: Ino,
    pub mode: u32,
    pub nlink: u32,
    pub bytes: Vec<u8>,
    /// The data are on the bulk device.
    pub large: bool,
}

/// The root's files by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub files: BTreeMap<Vec<u8>, File>,
}

pub type Shown = Arc<View>;

impl View {
    pub fn read(fs: &Fs) -> Result<View, String> {
        let mut names = Vec::new();
        fs.readdir(ROOT, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })
        .map_err(|e| format!("listing the root: {e}"))?;
        let mut view = View::default();
        for name in names {
            let file = read(fs, &name).map_err(|e| format!("reading {}: {e}", String::from_utf8_lossy(&name)))?;
            view.files.insert(name, file);
        }
        Ok(view)
    }

    pub fn by_ino(&self, ino: Ino) -> Option<&File> {
        self.files.values().find(|file| file.ino == ino)
    }

    /// Describes how the names and attributes differ from those of `other`.
    pub fn differs(&self, other: &View) -> Option<String> {
        let show = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        if !self.files.keys().eq(other.files.keys()) {
            let names = |view: &View| view.files.keys().map(|name| show(name)).collect::<Vec<_>>().join(" ");
            return Some(format!("names {} instead of {}", names(self), names(other)));
        }
        for (name, file) in &self.files {
            let wanted = &other.files[name];
            let short = |file: &File| (file.mode, file.nlink, file.bytes.len());
            if short(file) != short(wanted) {
                let (is, should) = (short(file), short(wanted));
                return Some(format!("{}: mode, links and size are {is:?} instead of {should:?}", show(name)));
            }
        }
        None
    }
}

fn read(fs: &Fs, name: &[u8]) -> shoal_fs::Result<File> {
    let attr = fs.lookup(ROOT, name)?;
    let mut bytes = vec![0; attr.size as usize];
    let got = fs.read(attr.ino, 0, &mut bytes)?;
    bytes.truncate(got);
    // A large file has at least one bulk block, so small files need no look at their placement.
    let large = attr.blocks >= 128 && fs.placement(attr.ino)?.inode.layout == Layout::Extents;
    Ok(File { ino: attr.ino, mode: attr.mode, nlink: attr.nlink, bytes, large })
}

/// Bytes that a file may hold, up to a limit.
pub struct Candidate<'a> {
    pub bytes: &'a [u8],
    pub limit: usize,
}

/// Returns the position of the first byte of `found` that no candidate has there and that is not a
/// zero at or after `zeros_from`.
pub fn unexplained(found: &[u8], candidates: &[Candidate<'_>], zeros_from: usize) -> Option<usize> {
    const PAGE: usize = 512;
    for (number, page) in found.chunks(PAGE).enumerate() {
        let from = number * PAGE;
        let to = from + page.len();
        let whole = |candidate: &Candidate<'_>| to <= candidate.limit && candidate.bytes.get(from..to) == Some(page);
        if candidates.iter().any(whole) || from >= zeros_from && page.iter().all(|&byte| byte == 0) {
            continue;
        }
        let fits = |at: usize, byte: u8| {
            let one = |candidate: &Candidate<'_>| at < candidate.limit && candidate.bytes.get(at) == Some(&byte);
            byte == 0 && at >= zeros_from || candidates.iter().any(one)
        };
        if let Some((at, _)) = (from..).zip(page).find(|&(at, &byte)| !fits(at, byte)) {
            return Some(at);
        }
    }
    None
}
