//! Attributes, set-id bits, extended attributes, chattr's flags.
//!
//! With HANDLE_KILLPRIV_V2 this side clears set-id bits. A write, a truncation or an access ACL
//! tells whether the caller lacks CAP_FSETID or, for the ACL, the group. `fallocate`,
//! `copy_file_range` and changes of owner do not tell, so root is taken to have the capability
//! there, and nobody else. The kernel checks who may read and set an attribute. It does not check
//! who sees the names in a listing, nor that only the owner sets attributes with a meaning for the
//! store (`user.shoal.*`).

use shoal_fs::{Attr, FileFlags, Fs, Ino, SetAttr, XattrMode};

use super::data::ROOM_BYTES_HERE;
use super::{Asker, Outcome, Requests};
use crate::errno::Errno;
use crate::protocol::layout::SetattrIn;
use crate::protocol::{self, SETXATTR_ACL_KILL_SGID, init_flags, setattr};
use crate::{convert, file_flags};

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
/// Attributes that only CAP_SYS_ADMIN can read.
const TRUSTED: &[u8] = b"trusted.";
/// Attributes that tell the store what to do with a file.
const TUNING: &[u8] = b"user.shoal.";
/// Maximum answer of the supported ioctls (bytes).
const IOCTL_BYTES_MAX: u32 = 4096;

/// A new value of an extended attribute.
pub(crate) struct AttributeChange<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    pub flags: u32,
    /// `setxattr_flags` of the protocol.
    pub more_flags: u32,
}

/// Converts attributes for the kernel. tar(1) and other programs take a file without any block for
/// all zeros and do not read it. But a program may have stored to the file through a map, or have
/// written to it while the kernel gathers writes and keeps sizes without counting blocks. So a file
/// that may hold such data has at least one block of 512 bytes.
pub(super) fn told(attr: Attr, kernel_gathers: bool) -> Attr {
    let is_file = attr.mode & 0o170000 == 0o100000;
    let least = u64::from(is_file && (attr.size > 0 || kernel_gathers));
    Attr { blocks: attr.blocks.max(least), ..attr }
}

impl Requests {
    pub fn getattr(&self, ino: Ino) -> Outcome<Attr> {
        Ok(told(self.fs.getattr(ino)?, self.gathers()))
    }

    pub fn setattr(
        &self,
        asker: Asker,
        ino: Ino,
        asked: &SetattrIn,
        answer: impl FnOnce(Outcome<Attr>) + Send + 'static,
    ) {
        let mut change = convert::attr_change(asked);
        let kills = self.agreed.has(init_flags::HANDLE_KILLPRIV_V2);
        if kills && change.mode.is_none() {
            match self.mode_without_set_id(asker, ino, asked) {
                Ok(mode) => change.mode = mode,
                Err(error) => return answer(Err(error)),
            }
        }
        if let Some(size) = change.size {
            self.zeros.iter().for_each(|zeros| zeros.cut(ino, size));
        }
        let gathers = self.gathers();
        let cut = change.size.filter(|_| gathers).map(|size| (self.refused.clone(), size));
        let answer = move |outcome: Outcome<Attr>| {
            if let (Ok(_), Some((refused, size))) = (&outcome, cut) {
                refused.cut(ino, size);
            }
            answer(outcome);
        };
        let writer = (gathers && convert::are_written_times(asked)).then(|| self.gathered.writer(ino));
        let work = move |fs: &Fs, patience| match writer {
            Some(writer) => Ok(told(fs.set_written_times(patience, writer, ino, &change)?, gathers)),
            None => Ok(told(fs.setattr_by(patience, ino, &change)?, gathers)),
        };
        let is_long = |size| self.fs.getattr(ino).is_ok_and(|attr| attr.size.abs_diff(size) > ROOM_BYTES_HERE);
        match change.size.is_some_and(is_long) {
            true => self.elsewhere(work, answer),
            false => self.waiting(work, answer),
        }
    }

    /// Returns the permission bits after a truncation or a change of owner, if it clears set-id
    /// bits.
    fn mode_without_set_id(&self, asker: Asker, ino: Ino, asked: &SetattrIn) -> Outcome<Option<u32>> {
        let of_nothing = convert::names_nothing(asked);
        let is_chown = of_nothing || asked.valid & (setattr::UID | setattr::GID) != 0;
        let truncated_by_user = asked.valid & setattr::SIZE != 0 && asked.valid & setattr::KILL_SUIDGID != 0;
        if !is_chown && !truncated_by_user {
            return Ok(None);
        }
        let attr = self.fs.getattr(ino)?;
        let mode = match is_chown {
            // Overlayfs copies a file up without a name: it sets the mode, then the owner, and does
            // not intend to clear anything. A file with a name gets its owner from chown(2), which
            // does clear them.
            true if attr.nlink == 0 && asker.uid == 0 => None,
            // The kernel lets any user send a chown of nothing, and sends one itself before a
            // write. The write then tells whether it clears the bits, so here only root and the
            // owner clear them.
            true if of_nothing && ![0, attr.uid].contains(&asker.uid) => None,
            true => convert::mode_after_chown(attr.mode, || asker.uid == 0 || asker.is_in(attr.gid)),
            false => convert::mode_after_write(attr.mode, || asker.is_in(attr.gid)),
        };
        Ok(mode.map(|mode| mode & 0o7777))
    }

    /// Clears set-id bits before a change of data that does not tell whether the caller has
    /// CAP_FSETID. Root is taken to have it.
    pub(super) fn clear_set_id_unless_root(&self, asker: Asker, ino: Ino) -> shoal_fs::Result<()> {
        let kills = self.agreed.has(init_flags::HANDLE_KILLPRIV_V2);
        if kills && asker.uid != 0 { self.clear_set_id(asker, ino) } else { Ok(()) }
    }

    /// Clears set-id bits before a write by a caller without CAP_FSETID.
    pub(super) fn clear_set_id(&self, asker: Asker, ino: Ino) -> shoal_fs::Result<()> {
        let attr = self.fs.getattr(ino)?;
        let Some(mode) = convert::mode_after_write(attr.mode, || asker.is_in(attr.gid)) else { return Ok(()) };
        self.fs.setattr(ino, &SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() })?;
        // The kernel would go on trusting its cached mode. If it does not take the message, the
        // next stat refreshes the attributes, because the write changed the times.
        let _ = self.kernel.notify_attributes(ino);
        Ok(())
    }

    pub fn setxattr(&self, asker: Asker, ino: Ino, change: &AttributeChange<'_>) -> Outcome<()> {
        if !self.xattrs {
            return Err(Errno::NOSYS);
        }
        self.check_tuning(asker, ino, change.name)?;
        let mode = match change.flags {
            0 => XattrMode::Any,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        // Kernels before 5.13, and those that do not handle ACLs, do not tell. The identity in the
        // request then decides, and a doubtful bit is cleared rather than kept.
        let told = self.agreed.has(init_flags::SETXATTR_EXT) && self.agreed.has(init_flags::POSIX_ACL);
        let keeps = |group| match told {
            true => change.more_flags & SETXATTR_ACL_KILL_SGID == 0,
            false => asker.uid == 0 || asker.gid == group,
        };
        Ok(self.fs.setxattr_by(ino, change.name, change.value, mode, keeps)?)
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        if !self.xattrs {
            // The kernel then never asks again.
            return Err(Errno::NOSYS);
        }
        Ok(self.fs.getxattr(ino, name)?)
    }

    /// Returns the names that the caller can read: a program that copies all listed names would
    /// otherwise fail at the first that it cannot read. The request does not tell whether the
    /// caller has CAP_SYS_ADMIN. Root is taken to have it, but not the root of a user namespace,
    /// which has another id.
    pub fn listxattr(&self, asker: Asker, ino: Ino) -> Outcome<Vec<u8>> {
        if !self.xattrs {
            return Err(Errno::NOSYS);
        }
        let names = self.fs.listxattr(ino)?;
        if asker.uid == 0 && self.trusts_root {
            return Ok(names);
        }
        let seen = names.split_inclusive(|&byte| byte == 0).filter(|name| !name.starts_with(TRUSTED));
        Ok(seen.flatten().copied().collect())
    }

    pub fn removexattr(&self, asker: Asker, ino: Ino, name: &[u8]) -> Outcome<()> {
        if !self.xattrs {
            return Err(Errno::NOSYS);
        }
        self.check_tuning(asker, ino, name)?;
        Ok(self.fs.removexattr(ino, name)?)
    }

    /// Checks that the caller may set or remove the attribute. The kernel checks permission to
    /// write, which is enough for all other attributes.
    fn check_tuning(&self, asker: Asker, ino: Ino, name: &[u8]) -> Outcome<()> {
        let is_free = !name.starts_with(TUNING) || asker.uid == 0 || asker.uid == self.fs.getattr(ino)?.uid;
        if is_free { Ok(()) } else { Err(Errno::PERM) }
    }

    pub fn ioctl(&self, asker: Asker, ino: Ino, command: u32, data: &[u8], out_size: u32) -> Outcome<Vec<u8>> {
        match command {
            file_flags::GET_FLAGS | file_flags::GET_XFLAGS => {
                let flags = self.fs.file_flags(ino)?;
                Ok(file_flags::answer(command, flags, out_size.min(IOCTL_BYTES_MAX) as usize))
            }
            file_flags::SET_FLAGS | file_flags::SET_XFLAGS => {
                let flags = file_flags::asked(command, data).ok_or(Errno::OPNOTSUPP)?;
                // Kernels before 5.13 pass the request on unchecked.
                let allowed = |old: FileFlags, owner| {
                    let guards = |flags: FileFlags| (flags.immutable, flags.append_only);
                    asker.uid == 0 || asker.uid == owner && guards(flags) == guards(old)
                };
                if self.gathers() && (flags.immutable || flags.append_only) {
                    self.gathered.flags_set(ino, asker.pid);
                }
                self.fs.set_file_flags(ino, flags, allowed)?;
                // The time of change is a new one. If the kernel does not take the message, it goes
                // on showing the old one.
                let _ = self.kernel.notify_attributes(ino);
                Ok(Vec::new())
            }
            _ => Err(Errno::NOTTY),
        }
    }
}

impl dyn crate::channel::Channel {
    /// Makes the kernel forget the attributes of an inode.
    fn notify_attributes(&self, ino: Ino) -> std::io::Result<()> {
        use zerocopy::IntoBytes;
        let (header, body) = protocol::notify_attributes(ino.into());
        self.send(&[std::io::IoSlice::new(header.as_bytes()), std::io::IoSlice::new(body.as_bytes())])
    }
}
