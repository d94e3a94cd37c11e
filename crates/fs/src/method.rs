//! The method that a file's data is packed with, as an extended attribute of files and directories.
//!
//! `user.shoal.compress` has the values of `--compress`. It is not stored as an attribute but as a
//! code in the inode's record, so a file that inherits it takes no room for it. New files and
//! directories inherit it from their directory; links and renames leave it. A change affects data
//! that is packed from then on. Rules: the store has the feature before the first code is written,
//! and a store that never uses the attribute stays without the feature. Left out: packing
//! (`packer`).

use shoal_format::inode::Inode;
use shoal_format::superblock::FEATURE_METHODS;
use shoal_pack::Method;

use crate::rooms::Tree;
use crate::xattr::{self, XattrMode};
use crate::{Error, Ino, Result, flags};

/// The attribute's name.
pub const COMPRESS_ATTRIBUTE: &[u8] = b"user.shoal.compress";

/// Returns the method of the file itself; `None` if it has that of the store.
pub(crate) fn own(inode: &Inode) -> Option<Method> {
    Method::of_code(inode.method)
}

/// Returns the attribute's value.
pub(crate) fn value(inode: &Inode) -> Result<Vec<u8>> {
    own(inode).map(|method| method.to_string().into_bytes()).ok_or(Error::NoAttribute)
}

/// Fails if the attribute may not be changed in this way.
fn check(inode: &Inode, mode: XattrMode) -> Result<()> {
    flags::check_change(inode)?;
    xattr::check_name(inode, COMPRESS_ATTRIBUTE)?;
    match (mode, inode.method) {
        (XattrMode::Create, 1..) => Err(Error::Exists),
        (XattrMode::Replace, 0) => Err(Error::NoAttribute),
        _ => Ok(()),
    }
}

impl<'a> Tree<'a> {
    /// Returns the method that the file's data is packed with.
    pub(crate) fn method_of(self, inode: &Inode) -> Method {
        own(inode).unwrap_or(self.fs.options.method)
    }

    /// Returns whether the data of some file may be packed without a request.
    pub(crate) fn packs_data(self) -> bool {
        self.fs.options.method != Method::Off || self.fs.region.has_feature(FEATURE_METHODS)
    }

    pub(crate) fn set_method(self, ino: Ino, value: &[u8], mode: XattrMode) -> Result<()> {
        let method: Method = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()).ok_or(Error::Invalid)?;
        {
            // Checked before the store gets the feature, which older programs refuse.
            let _lock = self.fs.locks.read(ino);
            check(&self.fs.load(ino)?, mode)?;
        }
        self.fs.region.add_feature(FEATURE_METHODS)?;
        self.fs.with_room(|| self.change_method(ino, method.code(), mode))
    }

    pub(crate) fn remove_method(self, ino: Ino) -> Result<()> {
        self.change_method(ino, 0, XattrMode::Replace)
    }

    fn change_method(self, ino: Ino, code: u8, mode: XattrMode) -> Result<()> {
        let _lock = self.fs.locks.write(ino);
        let mut inode = self.fs.load(ino)?;
        check(&inode, mode)?;
        (inode.method, inode.ctime) = (code, self.fs.now());
        let mut tx = if code == 0 { self.fs.region.begin_reclaim() } else { self.fs.region.begin() };
        self.fs.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(())
    }
}
