//! A message from the kernel as a [`Request`].
//!
//! Names and data are borrowed from the message. A message that the kernel never sends is malformed
//! (names with a slash or a zero byte, offsets beyond the largest file, less data than announced).
//! An unknown operation is not an error: it is answered ENOSYS, and the kernel then does not ask
//! again.

use zerocopy::FromBytes;

use super::layout::{
    BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, ForgetIn, ForgetOne, GetxattrIn, InHeader, IoctlIn, LinkIn,
    LseekIn, MkdirIn, MknodIn, OpenIn, ReadIn, Rename2In, RenameIn, SetattrIn, SetxattrInRest, SetxattrInShort,
    StatxIn, WriteIn,
};
use super::negotiation::flags::SETXATTR_EXT;
use super::{Agreed, InitIn, opcode};

/// One request: its operation and its caller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    pub unique: u64,
    /// The operation's number, even of an unknown operation.
    pub opcode: u32,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub operation: Operation<'a>,
}

/// Names are without their final zero byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation<'a> {
    Init(InitIn),
    Destroy,
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget(Forgets<'a>),
    Getattr,
    Statx {
        mask: u32,
    },
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_directory: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        target: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: u32,
    },
    Tmpfile {
        mode: u32,
        umask: u32,
        flags: u32,
    },
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        flags: u32,
    },
    Statfs,
    Release,
    Releasedir,
    Flush,
    Fsync,
    Fsyncdir,
    Syncfs,
    Opendir,
    Readdir {
        offset: u64,
        size: u32,
    },
    Readdirplus {
        offset: u64,
        size: u32,
    },
    Setxattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        more_flags: u32,
    },
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Access,
    Interrupt,
    NotifyReply,
    Ioctl {
        command: u32,
        data: &'a [u8],
        out_size: u32,
    },
    Fallocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    /// `wide`: the answer has 64 bits.
    CopyFileRange {
        offset: u64,
        to_node: u64,
        to_offset: u64,
        len: u64,
        wide: bool,
    },
    Unknown,
}

/// References to several inodes that the kernel drops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Inodes, and the number of references dropped of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let whole = self.0.chunks_exact(size_of::<ForgetOne>());
        whole.filter_map(|bytes| ForgetOne::read_from_bytes(bytes).ok()).map(|one| (one.node, one.count))
    }
}

/// A message that is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The request that waits for an answer; `None` if none waits, or its number cannot be read.
    pub unique: Option<u64>,
    pub opcode: u32,
}

/// Returns whether the kernel waits for an answer.
pub fn is_answered(opcode: u32) -> bool {
    !matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY)
}

/// Returns the thread that makes this request, as the daemon sees ids, and 0 if it is not known. `None` if nobody waits
/// for an answer.
pub fn client(message: &[u8]) -> Option<u32> {
    let (header, _) = InHeader::read_from_prefix(message).ok()?;
    is_answered(header.opcode).then_some(header.pid)
}

pub fn decode<'a>(message: &'a [u8], agreed: &Agreed) -> Result<Request<'a>, Malformed> {
    let Ok((header, body)) = InHeader::read_from_prefix(message) else {
        return Err(Malformed { unique: None, opcode: 0 });
    };
    if header.len as usize != message.len() {
        return Err(Malformed { unique: None, opcode: header.opcode });
    }
    let malformed = Malformed { unique: is_answered(header.opcode).then_some(header.unique), opcode: header.opcode };
    // Extensions are only sent if they were negotiated, and none is.
    let body = body.len().checked_sub(usize::from(header.extensions) * 8).map(|len| &body[..len]);
    let operation = body.and_then(|body| Body(body).operation(header.opcode, agreed)).ok_or(malformed)?;
    Ok(Request {
        unique: header.unique,
        opcode: header.opcode,
        node: header.node,
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        operation,
    })
}

impl Operation<'_> {
    /// Returns the maximum bytes of an answer besides its header. The kernel accepts no more than
    /// it has room for, and for most operations no less either.
    pub fn answer_bytes_max(&self) -> usize {
        match *self {
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::NotifyReply => 0,
            Operation::Init(_) => 64,
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Link { .. } => 128,
            Operation::Create { .. } | Operation::Tmpfile { .. } => 144,
            Operation::Getattr | Operation::Setattr(_) => 104,
            Operation::Statx { .. } => 288,
            Operation::Open { .. } | Operation::Opendir => 16,
            // A page, less the zero byte that the kernel adds.
            Operation::Readlink => 4095,
            Operation::Read { size, .. } | Operation::Readdir { size, .. } | Operation::Readdirplus { size, .. } => {
                size as usize
            }
            // A caller that gives no room is told only the size.
            Operation::Getxattr { size, .. } | Operation::Listxattr { size } => {
                if size == 0 {
                    8
                } else {
                    size as usize
                }
            }
            Operation::Write { .. } | Operation::CopyFileRange { .. } | Operation::Lseek { .. } => 8,
            Operation::Statfs => 80,
            Operation::Ioctl { out_size, .. } => 16 + out_size as usize,
            Operation::Destroy
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Release
            | Operation::Releasedir
            | Operation::Flush
            | Operation::Fsync
            | Operation::Fsyncdir
            | Operation::Syncfs
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
            | Operation::Access
            | Operation::Interrupt
            | Operation::Fallocate { .. }
            | Operation::Unknown => 0,
        }
    }
}

/// The rest of a message.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Takes the bytes up to the next zero byte, which must exist.
    fn text(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(text)
    }

    /// Takes a name in a directory.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.text().filter(|name| !name.is_empty() && !name.contains(&b'/'))
    }

    /// Decodes the operation of a number. Each function leaves numbers that are not its own to the
    /// next.
    fn operation(mut self, opcode: u32, agreed: &Agreed) -> Option<Operation<'a>> {
        Some(match opcode {
            opcode::INIT => Operation::Init(InitIn::read(self.0)?),
            opcode::LOOKUP => Operation::Lookup { name: self.name()? },
            opcode::FORGET => Operation::Forget { count: self.take::<ForgetIn>()?.count },
            opcode::BATCH_FORGET => {
                let count = self.take::<BatchForgetIn>()?.count;
                Operation::BatchForget(Forgets(self.bytes(count.checked_mul(size_of::<ForgetOne>() as u32)?)?))
            }
            opcode::SYMLINK => Operation::Symlink { name: self.name()?, target: self.text()? },
            opcode::MKNOD => {
                let fields = self.take::<MknodIn>()?;
                Operation::Mknod { name: self.name()?, mode: fields.mode, rdev: fields.rdev, umask: fields.umask }
            }
            opcode::MKDIR => {
                let fields = self.take::<MkdirIn>()?;
                Operation::Mkdir { name: self.name()?, mode: fields.mode, umask: fields.umask }
            }
            opcode::UNLINK => Operation::Unlink { name: self.name()? },
            opcode::RMDIR => Operation::Rmdir { name: self.name()? },
            opcode::RENAME => {
                let new_directory = self.take::<RenameIn>()?.new_directory;
                Operation::Rename { name: self.name()?, new_directory, new_name: self.name()?, flags: 0 }
            }
            opcode::RENAME2 => {
                let Rename2In { new_directory, flags, .. } = self.take()?;
                Operation::Rename { name: self.name()?, new_directory, new_name: self.name()?, flags }
            }
            opcode::LINK => Operation::Link { target: self.take::<LinkIn>()?.node, name: self.name()? },
            opcode::CREATE => {
                let CreateIn { mode, umask, flags, .. } = self.take()?;
                Operation::Create { name: self.name()?, mode, umask, flags }
            }
            // The name in its body means nothing.
            opcode::TMPFILE => {
                let CreateIn { mode, umask, flags, .. } = self.take()?;
                Operation::Tmpfile { mode, umask, flags }
            }
            _ => return self.data(opcode, agreed),
        })
    }

    /// Operations on data, and on directories as lists.
    fn data(mut self, opcode: u32, agreed: &Agreed) -> Option<Operation<'a>> {
        Some(match opcode {
            opcode::OPEN => Operation::Open { flags: self.take::<OpenIn>()?.flags },
            opcode::READ => {
                let fields = self.take::<ReadIn>()?;
                Operation::Read { offset: in_file(fields.offset)?, size: fields.size }
            }
            opcode::WRITE => {
                let fields = self.take::<WriteIn>()?;
                let data = self.bytes(fields.size)?;
                Operation::Write { offset: in_file(fields.offset)?, data, flags: fields.write_flags }
            }
            opcode::READDIR => {
                let ReadIn { offset, size, .. } = self.take()?;
                Operation::Readdir { offset, size }
            }
            opcode::READDIRPLUS => {
                let ReadIn { offset, size, .. } = self.take()?;
                Operation::Readdirplus { offset, size }
            }
            opcode::FALLOCATE => {
                let FallocateIn { offset, len, mode, .. } = self.take()?;
                Operation::Fallocate { offset: in_file(offset)?, len: in_file(len)?, mode }
            }
            opcode::LSEEK => {
                let LseekIn { offset, whence, .. } = self.take()?;
                Operation::Lseek { offset, whence }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let fields = self.take::<CopyFileRangeIn>()?;
                Operation::CopyFileRange {
                    offset: in_file(fields.from_offset)?,
                    to_node: fields.to_node,
                    to_offset: in_file(fields.to_offset)?,
                    len: fields.len,
                    wide: opcode == opcode::COPY_FILE_RANGE_64,
                }
            }
            _ => return self.attributes(opcode, agreed),
        })
    }

    fn attributes(mut self, opcode: u32, agreed: &Agreed) -> Option<Operation<'a>> {
        Some(match opcode {
            opcode::STATX => Operation::Statx { mask: self.take::<StatxIn>()?.mask },
            opcode::SETATTR => Operation::Setattr(self.take()?),
            opcode::SETXATTR => {
                let SetxattrInShort { size, flags } = self.take()?;
                let more_flags = if agreed.has(SETXATTR_EXT) { self.take::<SetxattrInRest>()?.flags } else { 0 };
                let name = self.text()?;
                Operation::Setxattr { name, value: self.bytes(size)?, flags, more_flags }
            }
            opcode::GETXATTR => {
                let size = self.take::<GetxattrIn>()?.size;
                Operation::Getxattr { name: self.text()?, size }
            }
            opcode::LISTXATTR => Operation::Listxattr { size: self.take::<GetxattrIn>()?.size },
            opcode::REMOVEXATTR => Operation::Removexattr { name: self.text()? },
            opcode::IOCTL => {
                let IoctlIn { command, in_size, out_size, .. } = self.take()?;
                Operation::Ioctl { command, data: self.bytes(in_size)?, out_size }
            }
            _ => without_body(opcode),
        })
    }
}

/// Operations whose body, if they have one, does not matter here.
fn without_body(opcode: u32) -> Operation<'static> {
    match opcode {
        opcode::DESTROY => Operation::Destroy,
        opcode::GETATTR => Operation::Getattr,
        opcode::READLINK => Operation::Readlink,
        opcode::STATFS => Operation::Statfs,
        opcode::RELEASE => Operation::Release,
        opcode::RELEASEDIR => Operation::Releasedir,
        opcode::FLUSH => Operation::Flush,
        opcode::FSYNC => Operation::Fsync,
        opcode::FSYNCDIR => Operation::Fsyncdir,
        opcode::SYNCFS => Operation::Syncfs,
        opcode::OPENDIR => Operation::Opendir,
        opcode::ACCESS => Operation::Access,
        opcode::INTERRUPT => Operation::Interrupt,
        opcode::NOTIFY_REPLY => Operation::NotifyReply,
        _ => Operation::Unknown,
    }
}

/// Returns the offset or length, if it fits the kernel's signed numbers.
fn in_file(offset: u64) -> Option<u64> {
    (offset <= i64::MAX as u64).then_some(offset)
}
