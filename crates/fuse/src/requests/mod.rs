//! The action of each request: plain values in, plain results out, no bytes of the protocol.
//!
//! Round trips are the cost of a FUSE file system, so requests are avoided where the protocol
//! allows it. OPEN, OPENDIR and FLUSH are answered ENOSYS once: the kernel then never asks again,
//! and keeps its caches. (FLUSH only if the kernel gathers no writes: otherwise its answer tells a
//! program that its writes were not stored.) CREATE gets the same answer: the kernel then sends one
//! MKNOD, and no RELEASE. Names that do not exist are cached like those that do. An open file needs
//! no handle: the kernel's lookup references keep an unlinked inode alive (`hold`/`forget`). An
//! fsync is answered from the log's group commit, by the thread that leads it. Its followers block
//! no thread here, and a flush of the bulk device blocks at most one request thread (`syncer`).
//! Set-id bits are cleared here (HANDLE_KILLPRIV_V2); otherwise the kernel would ask for
//! `security.capability` on each write. Not offered: ioctls other than chattr's, remote locks (the
//! kernel's own are enough for one mount).
//!
//! | module | owns |
//! |---|---|
//! | `names` | looking up, making, renaming and removing; listings; references |
//! | `attributes` | attributes, set-id bits, extended attributes, chattr's flags |
//! | `data` | reading, writing, room, syncs |
//! | `gathered` | pages that are written back to files with chattr flags |
//! | `refused` | pages that were written back and not stored |
//! | `zeros` | holes, and what programs may have stored there through the kernel's cache |

mod attributes;
mod data;
mod gathered;
mod names;
mod refused;
mod zeros;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use shoal_fs::{Caller, Fs, Ino, Patience};
use shoal_life::{Syncer, Waiters};

use crate::channel::Channel;
use crate::errno::Errno;
use crate::lane::Lane;
use crate::options::MountOptions;
use crate::protocol::{self, Agreed, init_flags};

pub(crate) use attributes::AttributeChange;
pub(crate) use data::Copy;
use gathered::Gathered;
pub(crate) use names::{Created, Entry};
use refused::Refused;
use zeros::Zeros;

pub(crate) type Outcome<T> = Result<T, Errno>;

/// Longest read or write in one request (bytes). The kernel's own limit (`fuse.max_pages_limit`) is
/// 256 pages.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests may always be this long, however little memory there is (bytes).
const REQUEST_BYTES_MIN: u32 = 128 << 10;
/// Maximum requests in the background, and the number allowed however little memory there is.
const BACKGROUND_MAX: u16 = 64;
const BACKGROUND_MIN: u16 = 8;
/// The memory limit divided by these is the maximum for one request, and for all requests in the
/// background.
const REQUEST_PART: u64 = 512;
const BACKGROUND_PART: u64 = 16;

/// The user namespace of this process, and the name of the machine's first one (the kernel's
/// `PROC_USER_INIT_INO`).
const OWN_NAMESPACE: &str = "/proc/self/ns/user";
const FIRST_NAMESPACE: &str = "user:[4026531837]";

/// The caller of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub uid: u32,
    pub gid: u32,
    /// The thread that waits for the answer; 0 if the daemon cannot see it.
    pub pid: u32,
}

impl Asker {
    /// Converts to the engine's caller. A file that it makes also gets a kernel reference.
    fn caller(self, umask: u32) -> Caller {
        Caller { uid: self.uid, gid: self.gid, umask, hold: true }
    }

    /// Returns whether the caller is in the group. The request names one of its groups. The
    /// kernel's list of processes names the others, while the caller waits. A caller that cannot be
    /// seen is in no other group.
    fn is_in(self, group: u32) -> bool {
        let others = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
            let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
            Some(groups.split_ascii_whitespace().any(|word| word.parse() == Ok(group)))
        };
        self.gid == group || self.pid != 0 && others().unwrap_or(false)
    }
}

/// The threads that read the bulk device: some of those that take requests and, beyond these,
/// threads of their own, so that a slow device does not hold up everything else.
pub(crate) struct Readers {
    waiters: Waiters,
    /// Reads in threads that take requests: now, and at most.
    here: AtomicUsize,
    here_max: usize,
}

impl Readers {
    pub fn new(waiters: Waiters, here_max: usize) -> Readers {
        Readers { waiters, here: AtomicUsize::new(0), here_max }
    }
}

pub(crate) struct Requests {
    fs: Arc<Fs>,
    syncer: Syncer,
    waiters: Waiters,
    readers: Readers,
    /// Takes the messages that make the kernel forget attributes.
    kernel: Box<dyn Channel>,
    /// The lane by which FORGETs come beside io_uring.
    lane: Option<Lane>,
    xattrs: bool,
    /// `None` if the kernel gathers writes: nothing is then known about its page cache.
    zeros: Option<Arc<Zeros>>,
    gathered: Gathered,
    refused: Arc<Refused>,
    /// Uid 0 is the machine's root, not that of a user namespace.
    trusts_root: bool,
    agreed: Agreed,
}

impl Requests {
    pub fn new(
        fs: Arc<Fs>,
        syncer: Syncer,
        waiters: Waiters,
        readers: Readers,
        options: &MountOptions,
        agreed: Agreed,
        kernel: Box<dyn Channel>,
    ) -> Requests {
        let zeros = (!agreed.has(init_flags::WRITEBACK_CACHE)).then(Arc::default);
        let (gathered, refused) = (Gathered::default(), Arc::default());
        let trusts_root = std::fs::read_link(OWN_NAMESPACE).is_ok_and(|name| name.as_os_str() == FIRST_NAMESPACE);
        let xattrs = options.xattrs;
        Requests {
            fs,
            syncer,
            waiters,
            readers,
            kernel,
            lane: None,
            xattrs,
            zeros,
            gathered,
            refused,
            trusts_root,
            agreed,
        }
    }

    /// Adds the lane by which FORGETs come, if there is one.
    pub fn beside(self, lane: Option<Lane>) -> Requests {
        lane.iter().for_each(|lane| lane.serves(&self.fs));
        Requests { lane, ..self }
    }

    /// Returns whether the kernel gathers writes, and keeps the sizes and times of files until it
    /// writes them back. A time set here would be later than the one that programs see.
    fn gathers(&self) -> bool {
        self.agreed.has(init_flags::WRITEBACK_CACHE)
    }

    /// Answers FLUSH, sent at each close. If the kernel gathers no writes, there is nothing to
    /// report, and it does not ask again. If it gathers writes, it has written them back before,
    /// but only this request tells a program that the connection has ended meanwhile.
    pub fn flush(&self, asker: Asker, ino: Ino) -> Outcome<()> {
        if !self.gathers() {
            return Err(Errno::NOSYS);
        }
        self.gathered.flushed(ino, asker.pid);
        self.refused.check(ino)
    }

    /// Answers OPEN of a file: flags for the answer, unless the kernel can do without it.
    pub fn open(&self) -> Outcome<u32> {
        if self.agreed.has(init_flags::NO_OPEN_SUPPORT) {
            return Err(Errno::NOSYS);
        }
        Ok(protocol::open::KEEP_CACHE | protocol::open::NOFLUSH)
    }

    pub fn opendir(&self) -> Outcome<u32> {
        if self.agreed.has(init_flags::NO_OPENDIR_SUPPORT) {
            return Err(Errno::NOSYS);
        }
        Ok(protocol::open::KEEP_CACHE | protocol::open::CACHE_DIR)
    }

    pub fn statfs(&self) -> shoal_fs::StatFs {
        if let Some(lane) = &self.lane {
            lane.wait_for_removals();
        }
        self.fs.statfs()
    }

    /// Returns whether an eighth of the room and of the inodes is free.
    pub fn is_roomy(&self) -> bool {
        let is = self.fs.statfs();
        is.available > is.blocks / 8 && is.files_free > is.files / 8
    }

    /// Runs `work` and answers with its outcome. Work that has to flush the bulk device is run
    /// again in a thread that may wait.
    fn waiting<W, T, A>(&self, work: W, answer: A)
    where
        W: Fn(&Fs, Patience) -> shoal_fs::Result<T> + Send + 'static,
        A: FnOnce(Outcome<T>) + Send + 'static,
    {
        match work(&self.fs, Patience::Refuses) {
            Err(shoal_fs::Error::WouldFlush) => self.elsewhere(work, answer),
            outcome => answer(outcome.map_err(Errno::from)),
        }
    }

    /// Runs long work in a thread that serves no requests.
    fn elsewhere<W, T, A>(&self, work: W, answer: A)
    where
        W: Fn(&Fs, Patience) -> shoal_fs::Result<T> + Send + 'static,
        A: FnOnce(Outcome<T>) + Send + 'static,
    {
        let fs = self.fs.clone();
        self.waiters.run(move || answer(work(&fs, Patience::Waits).map_err(Errno::from)));
    }
}

/// Returns the longest request (bytes), and how many may be in the background (read-ahead,
/// asynchronous direct I/O). The daemon has a buffer for each request that it serves, in memory
/// that is not reserved. So if a limit leaves little memory, requests are shorter and fewer.
fn sizes(limit: Option<u64>) -> (u32, u16) {
    let Some(limit) = limit else { return (REQUEST_BYTES_MAX, BACKGROUND_MAX) };
    let bytes = (limit / REQUEST_PART).clamp(REQUEST_BYTES_MIN.into(), REQUEST_BYTES_MAX.into()) as u32;
    let background = (limit / BACKGROUND_PART / u64::from(bytes)).clamp(BACKGROUND_MIN.into(), BACKGROUND_MAX.into());
    (bytes / protocol::PAGE_BYTES * protocol::PAGE_BYTES, background as u16)
}

/// Returns this side's wishes for INIT.
pub(crate) fn wanted(options: &MountOptions) -> protocol::Wanted {
    use init_flags as flag;
    // ASYNC_DIO is not wanted. The kernel drops cached pages before a direct write, and after a
    // write that it waits for. After an asynchronous write it does not, so that a concurrent reader
    // leaves the old bytes in the cache for good.
    let mut flags = flag::ASYNC_READ
        | flag::BIG_WRITES
        | flag::MAX_PAGES
        | flag::DO_READDIRPLUS
        | flag::READDIRPLUS_AUTO
        | flag::PARALLEL_DIROPS
        | flag::CACHE_SYMLINKS
        | flag::EXPLICIT_INVAL_DATA
        | flag::DONT_MASK
        | flag::NO_OPEN_SUPPORT
        | flag::NO_OPENDIR_SUPPORT
        | flag::HANDLE_KILLPRIV_V2
        | flag::SETXATTR_EXT
        | flag::DIRECT_IO_ALLOW_MMAP;
    // A file server acts on behalf of others, which only permission checks tell apart.
    flags |= if options.access.is_checked() { flag::EXPORT_SUPPORT } else { flag::NO_EXPORT_SUPPORT };
    if options.access.is_checked() && options.xattrs {
        // This makes the kernel check permissions, whatever the mount options say.
        flags |= flag::POSIX_ACL;
    }
    if options.writeback {
        flags |= flag::WRITEBACK_CACHE;
    }
    let (write_bytes_max, background_max) = sizes(shoal_host::memory_limit_bytes());
    protocol::Wanted { flags, write_bytes_max, read_ahead_max: write_bytes_max, background_max }
}

#[cfg(test)]
mod tests {
    use super::sizes;

    #[test]
    fn requests_in_little_memory_are_short_and_few() {
        assert_eq!(sizes(None), (1 << 20, 64));
        assert_eq!(sizes(Some(8 << 30)), (1 << 20, 64));
        assert_eq!(sizes(Some(128 << 20)), (256 << 10, 32));
        assert_eq!(sizes(Some(16 << 20)), (128 << 10, 8));
        assert_eq!(sizes(Some(100_000_000)).0 % 4096, 0);
    }
}
