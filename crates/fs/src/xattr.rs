//! Extended attributes: user, trusted, security, and the two POSIX ACLs.
//!
//! Each inode has one piece for them, rewritten as a whole; only the attributes of `method` and
//! `threshold` are kept elsewhere. An access ACL is kept consistent with the mode (see `acl`). A
//! change of a file's data or owner drops its capabilities. The kernel does that, except on a mount
//! without extended attributes ([`Tree::drop_capabilities`]).

use shoal_format::SlotRef;
use shoal_format::inode::{Inode, S_IFDIR, S_IFREG};
use shoal_format::xattr::{self, Attribute, XATTR_NAME_MAX, XATTR_TOTAL_MAX, XATTR_VALUE_MAX};
use shoal_region::{Tx, View};

use crate::method::{self, COMPRESS_ATTRIBUTE};
use crate::rooms::Tree;
use crate::threshold::{self, THRESHOLD_ATTRIBUTE};
use crate::{Error, Fs, Ino, Result, acl, flags};

const S_ISGID: u16 = 0o2000;
/// Rights that a program gets from its file.
const CAPABILITY: &[u8] = b"security.capability";

/// Whether an attribute may, must or must not exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Any,
    Create,
    Replace,
}

/// Fails unless `name` is in a namespace that Shoal keeps, and allowed on this inode.
pub(crate) fn check_name(inode: &Inode, name: &[u8]) -> Result<()> {
    if name.len() > XATTR_NAME_MAX {
        return Err(Error::Range);
    }
    let rest = |prefix: &[u8]| name.strip_prefix(prefix).map(|rest| !rest.is_empty());
    match [rest(b"user."), rest(b"trusted."), rest(b"security.")] {
        // As on other file systems, user attributes belong to files and directories only.
        [Some(true), _, _] if !matches!(inode.kind(), S_IFREG | S_IFDIR) => Err(Error::NotPermitted),
        [Some(true), _, _] | [_, Some(true), _] | [_, _, Some(true)] => Ok(()),
        _ if name == acl::ACCESS || name == acl::DEFAULT => Ok(()),
        _ => Err(Error::NotSupported),
    }
}

impl Fs {
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.setxattr_by(ino, name, value, mode, |_| true)
    }

    /// Like [`Fs::setxattr`], but may clear the set-group-id bit of a file whose access ACL is set.
    /// `may_keep_set_gid` tells whether a file of the given group keeps the bit: a change of mode
    /// by somebody outside the group clears it, and so does this.
    pub fn setxattr_by(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        may_keep_set_gid: impl Fn(u32) -> bool,
    ) -> Result<()> {
        self.writable()?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::TooBig);
        }
        match name {
            COMPRESS_ATTRIBUTE => return self.tree().set_method(ino, value, mode),
            THRESHOLD_ATTRIBUTE => return self.tree().set_own_threshold(ino, value, mode),
            _ => {}
        }
        self.with_room(|| self.tree().try_setxattr(ino, name, value, mode, &may_keep_set_gid))
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let _lock = self.locks.read(ino);
        let inode = self.load(ino)?;
        match name {
            COMPRESS_ATTRIBUTE => return method::value(&inode),
            THRESHOLD_ATTRIBUTE => return threshold::value(&inode),
            _ => {}
        }
        let attributes = self.met(ino, self.tree().attributes(&self.region, &inode))?;
        attributes.into_iter().find(|(have, _)| have == name).map(|(_, value)| value).ok_or(Error::NoAttribute)
    }

    /// Returns all names, each followed by a zero byte.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        let _lock = self.locks.read(ino);
        let inode = self.load(ino)?;
        let mut out = Vec::new();
        for (name, _) in self.met(ino, self.tree().attributes(&self.region, &inode))? {
            out.extend_from_slice(&name);
            out.push(0);
        }
        let elsewhere =
            [(COMPRESS_ATTRIBUTE, inode.method != 0), (THRESHOLD_ATTRIBUTE, threshold::own(&inode).is_some())];
        for (name, _) in elsewhere.into_iter().filter(|(_, is_there)| *is_there) {
            out.extend_from_slice(name);
            out.push(0);
        }
        Ok(out)
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        match name {
            COMPRESS_ATTRIBUTE => return self.tree().remove_method(ino),
            THRESHOLD_ATTRIBUTE => return self.tree().remove_own_threshold(ino),
            _ => {}
        }
        let _lock = self.locks.write(ino);
        let mut inode = self.load(ino)?;
        flags::check_change(&inode)?;
        check_name(&inode, name)?;
        let mut attributes = self.met(ino, self.tree().attributes(&self.region, &inode))?;
        let place = attributes.iter().position(|(have, _)| have == name).ok_or(Error::NoAttribute)?;
        attributes.remove(place);
        let mut tx = self.region.begin_reclaim();
        self.tree().set_attributes(&mut tx, &mut inode, &attributes)?;
        inode.ctime = self.now();
        self.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(())
    }
}

impl<'a> Tree<'a> {
    pub(crate) fn attributes(self, view: &impl View, inode: &Inode) -> Result<Vec<Attribute>> {
        if inode.xattr.is_none() {
            return Ok(Vec::new());
        }
        let capacity = inode.xattr.capacity().min(XATTR_TOTAL_MAX as u64 + shoal_format::SEGMENT) as usize;
        Ok(xattr::decode(&view.read_vec(inode.xattr.offset(), capacity)?)?)
    }

    /// Replaces all attributes; changes `inode` but does not store it.
    pub(crate) fn set_attributes(self, tx: &mut Tx<'_>, inode: &mut Inode, attributes: &[Attribute]) -> Result<()> {
        let old = inode.xattr;
        inode.xattr = SlotRef::NONE;
        if !attributes.is_empty() {
            let bytes = xattr::encode(attributes);
            if bytes.len() > XATTR_TOTAL_MAX {
                return Err(Error::NO_SPACE);
            }
            inode.xattr = tx.alloc(bytes.len() as u64)?;
            tx.write(inode.xattr.offset(), &bytes)?;
        }
        tx.free(old)?;
        inode.allocated = inode.allocated + inode.xattr.capacity() - old.capacity();
        Ok(())
    }

    /// Removes `security.capability` where the kernel does not. To be called before a file's data
    /// or owner changes, so that no crash leaves changed data with the rights of the old data.
    #[inline]
    pub(crate) fn drop_capabilities(self, ino: Ino, inode: &mut Inode) -> Result<()> {
        if inode.xattr.is_none() || !self.fs.options.drops_capabilities {
            return Ok(());
        }
        self.drop_capability_of(ino, inode)
    }

    #[cold]
    fn drop_capability_of(self, ino: Ino, inode: &mut Inode) -> Result<()> {
        let mut attributes = self.fs.met(ino, self.attributes(&self.fs.region, inode))?;
        let Some(place) = attributes.iter().position(|(name, _)| name == CAPABILITY) else { return Ok(()) };
        attributes.remove(place);
        let mut tx = self.fs.region.begin_reclaim();
        self.set_attributes(&mut tx, inode, &attributes)?;
        self.fs.store(&mut tx, ino, inode)?;
        tx.commit()?;
        Ok(())
    }

    fn try_setxattr(
        self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        may_keep_set_gid: &dyn Fn(u32) -> bool,
    ) -> Result<()> {
        let _lock = self.fs.locks.write(ino);
        let mut inode = self.fs.load(ino)?;
        flags::check_change(&inode)?;
        check_name(&inode, name)?;
        let mut attributes = self.fs.met(ino, self.attributes(&self.fs.region, &inode))?;
        let place = attributes.iter().position(|(have, _)| have == name);
        match (mode, place) {
            (XattrMode::Create, Some(_)) => return Err(Error::Exists),
            (XattrMode::Replace, None) => return Err(Error::NoAttribute),
            _ => {}
        }
        let keep = match name {
            acl::ACCESS => acl::to_mode(value, &mut inode)?,
            acl::DEFAULT => acl::check_default(value, &inode)?,
            _ => true,
        };
        if name == acl::ACCESS && inode.mode & S_ISGID != 0 && !may_keep_set_gid(inode.gid) {
            inode.mode &= !S_ISGID;
        }
        match (place, keep) {
            (Some(place), true) => attributes[place].1 = value.to_vec(),
            (None, true) => attributes.push((name.to_vec(), value.to_vec())),
            (Some(place), false) => drop(attributes.remove(place)),
            (None, false) => {}
        }
        let mut tx = self.fs.region.begin();
        self.set_attributes(&mut tx, &mut inode, &attributes)?;
        inode.ctime = self.fs.now();
        self.fs.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(())
    }
}
