//! One method per FUSE request: decode, call the engine, reply.
//!
//! Round trips are what a FUSE file system pays for, so requests are avoided where the protocol allows it: open,
//! opendir and flush are answered ENOSYS once (the kernel then never asks again, and keeps its caches),
//! create as well (the kernel then sends one MKNOD, and no RELEASE); names that do not exist are cached like those that do.
//! An open file needs no handle: the kernel's lookup references keep an unlinked inode alive (`hold`/`forget`).
//! fsync is answered from the log's group commit, by whichever thread leads it; its followers block no thread here, and a
//! flush of the bulk device none at all (`syncer`).
//! Set-id bits are cleared here (HANDLE_KILLPRIV_V2), else the kernel asks for `security.capability` on each write.
//! Not offered: O_TMPFILE and file-system-wide syncs (`fuser` does not know the requests), ioctls but chattr's, remote locks
//! (the kernel's own are enough for one mount).

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use shoal_fs::{Attr, Caller, FileFlags, Fs, Ino, Seek, SetAttr, XattrMode};

use crate::options::MountOptions;
use crate::syncer::Syncer;
use crate::waiters::Waiters;
use crate::{convert, file_flags, membership};

/// The store has one mount: what the kernel knows stays true until it changes it itself.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The longest read or write in one request. The kernel's own limit (`fuse.max_pages_limit`) is 256 pages.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Background requests (read-ahead, asynchronous direct I/O) the kernel may have under way.
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// Directory entries collected before their attributes are looked up.
const ENTRIES_AT_ONCE: usize = 64;

const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

pub(crate) struct Adapter {
    fs: Arc<Fs>,
    syncer: Syncer,
    waiters: Waiters,
    /// Set before the first request is served.
    notifier: Arc<OnceLock<Notifier>>,
    default_permissions: bool,
    xattrs: bool,
    no_open: bool,
    no_opendir: bool,
    kill_set_id: bool,
}

thread_local! {
    /// Where reads are assembled: a fresh megabyte would have to be zeroed each time.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    pub fn new(
        fs: Arc<Fs>,
        syncer: Syncer,
        waiters: Waiters,
        options: &MountOptions,
        notifier: Arc<OnceLock<Notifier>>,
    ) -> Adapter {
        Adapter {
            fs,
            syncer,
            waiters,
            notifier,
            default_permissions: options.default_permissions,
            xattrs: options.xattrs,
            no_open: false,
            no_opendir: false,
            kill_set_id: false,
        }
    }

    fn entry(&self, result: shoal_fs::Result<Attr>, reply: ReplyEntry) {
        match result {
            Ok(attr) => reply.entry(&FOR_EVER, &convert::file_attr(&attr), Generation(attr.generation.into())),
            Err(error) => reply.error(convert::errno(&error)),
        }
    }

    /// The attributes of `ino`, with a kernel reference taken.
    fn hold(&self, ino: Ino) -> shoal_fs::Result<Attr> {
        self.fs.hold(ino)?;
        self.fs.getattr(ino).inspect_err(|_| self.fs.forget(ino, 1))
    }

    /// Clears set-id bits before a change of data that carries no word on whether the caller has CAP_FSETID: root has.
    fn clear_set_id_unless_root(&self, request: &Request, ino: Ino) -> shoal_fs::Result<()> {
        if self.kill_set_id && request.uid() != 0 { self.clear_set_id(ino) } else { Ok(()) }
    }

    /// Clears set-id bits before a write by a caller without CAP_FSETID.
    fn clear_set_id(&self, ino: Ino) -> shoal_fs::Result<()> {
        let Some(mode) = convert::mode_after_write(self.fs.getattr(ino)?.mode) else { return Ok(()) };
        self.fs.setattr(ino, &SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() })?;
        if let Some(notifier) = self.notifier.get() {
            // The kernel would go on trusting the mode it has cached; if it does not take the message, the
            // attributes are refreshed by the next stat, because the write changed the times.
            let _ = notifier.inval_inode(INodeNo(ino), -1, 0);
        }
        Ok(())
    }

    /// Runs `work` and answers its outcome: here, or, when it has to flush the bulk device, in a thread that may wait for that.
    fn waiting<W, T, A>(&self, work: W, answer: A)
    where
        W: Fn(&Fs) -> shoal_fs::Result<T> + Send + 'static,
        A: FnOnce(shoal_fs::Result<T>) + Send + 'static,
    {
        match shoal_fs::without_flush(|| work(&self.fs)) {
            Err(shoal_fs::Error::WouldFlush) => {
                let fs = self.fs.clone();
                self.waiters.run(move || answer(work(&fs)));
            }
            outcome => answer(outcome),
        }
    }

    fn sync(&self, ino: Ino, reply: ReplyEmpty) {
        self.syncer.fsync(ino, move |outcome| finish(reply, outcome));
    }
}

fn caller(request: &Request, umask: u32) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), umask, hold: true }
}

fn finish(reply: ReplyEmpty, outcome: shoal_fs::Result<()>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(convert::errno(&error)),
    }
}

/// Answers a query for the size, or the bytes if there is room for them.
fn sized(bytes: shoal_fs::Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match bytes {
        Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(convert::errno(&error)),
    }
}

/// For the kernel's table of names: a name that does not exist, to be remembered as such.
fn no_such_name() -> FileAttr {
    let never = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        // Without ASYNC_DIO: the kernel drops cached pages before a direct write, and after one that it waits for. After an
        // asynchronous one it does not, so that a reader beside it leaves the old bytes in the cache for good.
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if self.default_permissions && self.xattrs {
            // It makes the kernel check permissions, whatever the mount options say.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        let granted = wanted & offered;
        if let Err(missing) = config.add_capabilities(granted) {
            return Err(io::Error::other(format!("the kernel took back {missing:?}")));
        }
        self.no_open = granted.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.no_opendir = granted.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        self.kill_set_id = granted.contains(InitFlags::FUSE_HANDLE_KILLPRIV_V2);
        // The largest value accepted is returned as the error.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        if let Err(most) = config.set_max_readahead(REQUEST_BYTES_MAX) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_REQUESTS_MAX * 3 / 4);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "." {
            // From a file handle (NFS, open_by_handle_at): `parent` may be any kind of inode.
            return self.entry(self.hold(parent.0), reply);
        }
        match self.fs.lookup(parent.0, name.as_bytes(), true) {
            Err(shoal_fs::Error::NotFound) => reply.entry(&FOR_EVER, &no_such_name(), Generation(0)),
            Err(shoal_fs::Error::Corrupt(damage)) => match self.fs.lookup_unreadable(parent.0, name.as_bytes()) {
                // So that the name can be removed; nothing is cached, and every look at the inode itself is an error.
                Ok(attr) => reply.entry(&Duration::ZERO, &convert::file_attr(&attr), Generation(0)),
                Err(_) => self.entry(Err(shoal_fs::Error::Corrupt(damage)), reply),
            },
            result => self.entry(result, reply),
        }
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.fs.forget(ino.0, count);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.fs.getattr(ino.0) {
            Ok(attr) => reply.attr(&FOR_EVER, &convert::file_attr(&attr)),
            Err(error) => reply.error(convert::errno(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut change = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(convert::time_change),
            mtime: mtime.map(convert::time_change),
        };
        let owner_changes = uid.is_some() || gid.is_some();
        // `fuser` drops the flag that says whether the caller has CAP_FSETID; root is who has it.
        let truncated_by_user = size.is_some() && request.uid() != 0;
        if self.kill_set_id && mode.is_none() && (owner_changes || truncated_by_user) {
            let cleared = self.fs.getattr(ino.0).map(|attr| {
                // Overlayfs copies a file up by setting its mode, then its owner, and does not mean to clear anything. A
                // user's chown(2) looks the same, but by root and to the same owner clearing serves nobody.
                let same = uid.is_none_or(|uid| uid == attr.uid) && gid.is_none_or(|gid| gid == attr.gid);
                match owner_changes {
                    true if same && request.uid() == 0 => None,
                    true => convert::mode_after_chown(attr.mode),
                    false => convert::mode_after_write(attr.mode),
                }
            });
            match cleared {
                Ok(mode) => change.mode = mode.map(|mode| mode & 0o7777),
                Err(error) => return reply.error(convert::errno(&error)),
            }
        }
        self.waiting(
            move |fs| fs.setattr(ino.0, &change),
            move |outcome| match outcome {
                Ok(attr) => reply.attr(&FOR_EVER, &convert::file_attr(&attr)),
                Err(error) => reply.error(convert::errno(&error)),
            },
        );
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.fs.readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(convert::errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.entry(self.fs.mknod(&caller(request, umask), parent.0, name.as_bytes(), mode, rdev), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.entry(self.fs.mkdir(&caller(request, umask), parent.0, name.as_bytes(), mode), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(reply, self.fs.unlink(parent.0, name.as_bytes()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        finish(reply, self.fs.rmdir(parent.0, name.as_bytes()));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        self.entry(self.fs.symlink(&caller(request, 0), parent.0, name.as_bytes(), target), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some((mode, whiteout)) = convert::rename_mode(flags) else { return reply.error(Errno::EINVAL) };
        let caller = Caller { hold: false, ..caller(request, 0) };
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        // A large file that takes the place of another one is flushed first.
        self.waiting(
            move |fs| {
                let whiteout = whiteout.then_some(&caller);
                fs.rename_with(parent.0, &name, new_parent.0, &new_name, mode, whiteout)
            },
            move |outcome| finish(reply, outcome),
        );
    }

    fn link(&self, _request: &Request, ino: INodeNo, new_parent: INodeNo, new_name: &OsStr, reply: ReplyEntry) {
        self.entry(self.fs.link(ino.0, new_parent.0, new_name.as_bytes(), true), reply);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.fs.read(ino.0, offset, &mut buffer[..size]) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(convert::errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let cleared =
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) { self.clear_set_id(ino.0) } else { Ok(()) };
        let answer = move |outcome: shoal_fs::Result<usize>| match outcome {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(convert::errno(&error)),
        };
        match cleared.and_then(|()| shoal_fs::without_flush(|| self.fs.write(ino.0, offset, data))) {
            Err(shoal_fs::Error::WouldFlush) => {
                // The request's buffer is this thread's: only who waits pays for a copy.
                let (fs, data) = (self.fs.clone(), data.to_vec());
                self.waiters.run(move || answer(fs.write(ino.0, offset, &data)));
            }
            outcome => answer(outcome),
        }
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.sync(ino.0, reply);
    }

    fn fsyncdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.sync(ino.0, reply);
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.no_opendir {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let outcome = self.fs.readdir(ino.0, offset, &mut |entry| {
            let kind = convert::kind_of_entry(entry.kind);
            !reply.add(INodeNo(entry.ino), entry.next, kind, OsStr::from_bytes(entry.name))
        });
        match outcome {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(convert::errno(&error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut cookie = offset;
        let mut entries: Vec<(Ino, u8, u64, Vec<u8>)> = Vec::with_capacity(ENTRIES_AT_ONCE);
        loop {
            entries.clear();
            // Attributes are looked up afterwards: the engine holds the directory's lock while it calls back. The
            // kernel keeps names from changing meanwhile (it holds the directory's own lock).
            let outcome = self.fs.readdir(ino.0, cookie, &mut |entry| {
                if entries.len() == ENTRIES_AT_ONCE {
                    return false;
                }
                entries.push((entry.ino, entry.kind, entry.next, entry.name.to_vec()));
                true
            });
            if let Err(error) = outcome {
                // What is in the buffer carries references the kernel must hear of.
                return if cookie == offset { reply.error(convert::errno(&error)) } else { reply.ok() };
            }
            for (ino, kind, next, name) in &entries {
                cookie = *next;
                // The kernel takes no reference for these two.
                let counted = name != b"." && name != b"..";
                let attr = if counted { self.hold(*ino) } else { self.fs.getattr(*ino) };
                let (attr, lifetime) = match attr {
                    Ok(attr) => (attr, FOR_EVER),
                    Err(shoal_fs::Error::Corrupt(_)) if counted => {
                        (self.fs.hold_unreadable(*ino, *kind), Duration::ZERO)
                    }
                    Err(_) => continue,
                };
                let (out, generation) = (convert::file_attr(&attr), Generation(attr.generation.into()));
                if reply.add(INodeNo(*ino), *next, OsStr::from_bytes(name), &lifetime, &out, generation) {
                    if counted {
                        self.fs.forget(*ino, 1);
                    }
                    return reply.ok();
                }
            }
            if entries.len() < ENTRIES_AT_ONCE {
                return reply.ok();
            }
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let s = self.fs.statfs();
        reply.statfs(s.blocks, s.free, s.available, s.files, s.files_free, s.block_bytes, s.name_max, s.block_bytes);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if !self.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        let mode = match flags {
            0 => XattrMode::Any,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        // The protocol has a word for this (SETXATTR_EXT), which `fuser` does not read.
        let keeps = |group| request.uid() == 0 || membership::may_keep_set_gid(request.gid(), request.pid(), group);
        finish(reply, self.fs.setxattr_by(ino.0, name.as_bytes(), value, mode, keeps));
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.xattrs {
            // The kernel then never asks again.
            return reply.error(Errno::ENOSYS);
        }
        sized(self.fs.getxattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        sized(self.fs.listxattr(ino.0), size, reply);
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !self.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        finish(reply, self.fs.removexattr(ino.0, name.as_bytes()));
    }

    fn access(&self, _request: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // Only asked without default_permissions: then nobody checks.
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let outcome = match command {
            file_flags::GET_FLAGS | file_flags::GET_XFLAGS => {
                self.fs.file_flags(ino.0).map(|flags| file_flags::answer(command, flags, out_size as usize))
            }
            file_flags::SET_FLAGS | file_flags::SET_XFLAGS => {
                let Some(flags) = file_flags::asked(command, data) else { return reply.error(Errno::EOPNOTSUPP) };
                // Kernels before 5.13 pass the request on unchecked.
                let allowed = |old: FileFlags, owner| {
                    let guards = |flags: FileFlags| (flags.immutable, flags.append_only);
                    request.uid() == 0 || request.uid() == owner && guards(flags) == guards(old)
                };
                self.fs.set_file_flags(ino.0, flags, allowed).map(|()| Vec::new())
            }
            _ => return reply.error(Errno::ENOTTY),
        };
        match outcome {
            Ok(data) => reply.ioctl(0, &data),
            Err(error) => reply.error(convert::errno(&error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let cleared = self.clear_set_id_unless_root(request, ino.0);
        if cleared.is_err() {
            return finish(reply, cleared);
        }
        self.waiting(move |fs| fs.fallocate(ino.0, mode, offset, length), move |outcome| finish(reply, outcome));
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(at) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.fs.seek(ino.0, at, what) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(convert::errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_at: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_at: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The answer has 32 bits; the caller goes on with the rest.
        let len = len.min(1 << 30);
        let cleared = self.clear_set_id_unless_root(request, to.0);
        if let Err(error) = cleared {
            return reply.error(convert::errno(&error));
        }
        self.waiting(
            move |fs| fs.copy_range(from.0, from_at, to.0, to_at, len),
            move |outcome| match outcome {
                Ok(copied) => reply.written(copied as u32),
                Err(error) => reply.error(convert::errno(&error)),
            },
        );
    }
}
