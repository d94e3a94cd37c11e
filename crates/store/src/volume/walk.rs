//! From a path to an inode: component by component, through symbolic links.
//!
//! Rules: each inode on the way is held while it is used, so that its number cannot be reclaimed and reused in between.
//! A link target that begins with `/` starts at the volume's root.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::io::Errno;
use shoal_format::inode::{S_IFLNK, S_IFMT};
use shoal_fs::{Attr, Error, Fs, Ino, ROOT};

use super::{Volume, told};

/// Maximum number of symbolic links followed on the way to one file, as in the kernel.
const LINKS_MAX: u32 = 40;

/// A reference to an inode, returned when it is dropped.
pub(super) struct Held<'v> {
    fs: &'v Fs,
    ino: Ino,
}

impl<'v> Held<'v> {
    /// Takes over a reference that was already taken.
    pub(super) fn taken(fs: &'v Fs, ino: Ino) -> Held<'v> {
        Held { fs, ino }
    }

    fn root(fs: &'v Fs) -> io::Result<Held<'v>> {
        fs.hold(ROOT).map_err(told)?;
        Ok(Held { fs, ino: ROOT })
    }

    pub(super) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.ino, 1);
    }
}

/// An inode that a path leads to.
pub(super) struct Found<'v> {
    pub held: Held<'v>,
    pub attr: Attr,
}

/// The end of a path: a name in a directory, and the inode of that name if it exists.
pub(super) struct Walked<'v> {
    pub parent: Held<'v>,
    /// Empty for the root.
    pub name: Vec<u8>,
    pub found: Option<Found<'v>>,
}

/// What a path means that ends at a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    /// What the link leads to.
    Followed,
    /// The link.
    Itself,
}

impl Volume {
    /// Returns the inode that a path leads to.
    pub(super) fn find(&self, path: &Path, last: LastLink) -> io::Result<Found<'_>> {
        self.walk(path, last)?.found.ok_or_else(|| told(Error::NotFound))
    }

    /// Walks to the end of a path.
    pub(super) fn walk(&self, path: &Path, last: LastLink) -> io::Result<Walked<'_>> {
        if path.as_os_str().is_empty() {
            return Err(told(Error::NotFound));
        }
        let fs = &*self.life.fs;
        let mut left = components(path);
        let mut at = Held::root(fs)?;
        let mut links = 0;
        while let Some(name) = left.pop() {
            let is_last = left.is_empty();
            let attr = match fs.lookup_held(at.ino, &name) {
                Err(Error::NotFound) if is_last => return Ok(Walked { parent: at, name, found: None }),
                found => found.map_err(told)?,
            };
            let held = Held::taken(fs, attr.ino);
            if attr.mode & S_IFMT as u32 == S_IFLNK as u32 && (last == LastLink::Followed || !is_last) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                let target = fs.readlink(held.ino).map_err(told)?;
                if target.starts_with(b"/") {
                    at = Held::root(fs)?;
                }
                left.extend(components(Path::new(std::ffi::OsStr::from_bytes(&target))));
            } else if is_last {
                return Ok(Walked { parent: at, name, found: Some(Found { held, attr }) });
            } else {
                at = held;
            }
        }
        // The path leads to the root, or a link led there.
        let attr = fs.getattr(at.ino).map_err(told)?;
        Ok(Walked { parent: Held::root(fs)?, name: vec![], found: Some(Found { held: at, attr }) })
    }
}

/// Returns the names of a path, the last one first.
fn components(path: &Path) -> Vec<Vec<u8>> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.as_bytes().to_vec()),
        Component::ParentDir => Some(b"..".to_vec()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}
