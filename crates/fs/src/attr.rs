//! Attributes: what callers see of an inode, and changing it.
//!
//! Owns: [`Attr`], [`SetAttr`], [`Caller`]. A change of attributes is one transaction; a change of
//! size goes through `file` first, which may take several. Setting the mode keeps an access ACL
//! consistent with it (`acl`).
//! Left out: permission checks (the kernel's `default_permissions`), clearing set-id bits (the adapter).

use shoal_format::inode::{INODE_IMMUTABLE, Inode};

use crate::rooms::Tree;
use crate::{Error, Fs, Ino, Patience, Result, Writer, acl, flags};

/// Attributes, as `stat` reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Bytes; for a directory its number of entries.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Times in nanoseconds since 1970.
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    pub generation: u32,
}

impl Attr {
    pub(crate) fn new(ino: Ino, inode: &Inode) -> Attr {
        Attr {
            ino,
            mode: inode.mode as u32,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            // A regular file keeps the sum of its bytes there.
            rdev: if inode.is_file() { 0 } else { inode.rdev },
            size: inode.size,
            blocks: inode.allocated.div_ceil(512),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            generation: inode.generation,
        }
    }
}

/// The calling process, as far as the engine must know it. The adapter checks permissions (the
/// kernel's `default_permissions`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Bits to clear in the mode of a new inode, unless the parent has a default ACL.
    pub umask: u32,
    /// The inode returned gets one reference, to be dropped with [`Fs::forget`].
    pub hold: bool,
}

/// A new value for a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Attributes to change; `None` leaves an attribute as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (type bits are ignored).
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeChange>,
    pub mtime: Option<TimeChange>,
    /// The time of change (ns since 1970), from a caller that keeps times itself; otherwise the
    /// present.
    pub ctime: Option<i64>,
}

impl Fs {
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        let _lock = self.locks.read(ino);
        Ok(Attr::new(ino, &self.load(ino)?))
    }

    /// Changes attributes, all or none (a change of size may first free data in steps).
    pub fn setattr(&self, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.setattr_by(Patience::Waits, ino, change)
    }

    pub fn setattr_by(&self, patience: Patience, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.writable()?;
        self.with_room_by(patience, || self.tree().try_setattr(patience, ino, change, |_| false))
    }

    /// Sets the times of a write for a caller that gathers writes and keeps times. An inode that
    /// may be written to may get them, whatever its flags.
    pub fn set_written_times(&self, patience: Patience, writer: Writer, ino: Ino, change: &SetAttr) -> Result<Attr> {
        self.writable()?;
        let may = |inode: &Inode| writer == Writer::EarlierPages || inode.flags & INODE_IMMUTABLE == 0;
        self.with_room_by(patience, || self.tree().try_setattr(patience, ino, change, may))
    }
}

impl<'a> Tree<'a> {
    fn try_setattr(
        self,
        patience: Patience,
        ino: Ino,
        change: &SetAttr,
        allowed: impl Fn(&Inode) -> bool,
    ) -> Result<Attr> {
        let (mut file, mut inode) = match change.size {
            Some(size) => self.fs.data().lock_to_resize(patience.into(), ino, size)?,
            None => self.fs.data().lock_inode(ino)?,
        };
        self.fs.data().refuse_nobodys(ino, &inode)?;
        if !allowed(&inode) {
            flags::check_setattr(&inode, change)?;
        }
        if let Some(size) = change.size {
            if inode.is_dir() {
                return Err(Error::IsDirectory);
            }
            if !inode.is_file() {
                return Err(Error::Invalid);
            }
            self.drop_capabilities(ino, &mut inode)?;
            self.fs.data().truncate_locked(&mut file, &mut inode, size)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            self.drop_capabilities(ino, &mut inode)?;
        }
        // Taken after a change of size, which may wait while others change attributes.
        let now = self.fs.now();
        let time = |change: TimeChange| match change {
            TimeChange::Now => now,
            TimeChange::At(ns) => ns,
        };
        let mut tx = self.fs.region.begin_reclaim();
        if let Some(mode) = change.mode {
            inode.mode = inode.kind() | (mode & 0o7777) as u16;
            acl::follow_mode(self.fs, &mut tx, &mut inode)?;
        }
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
        inode.atime = change.atime.map_or(inode.atime, time);
        inode.mtime = change.mtime.map_or(inode.mtime, time);
        inode.ctime = change.ctime.unwrap_or(now);
        self.fs.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(Attr::new(ino, &inode))
    }
}
