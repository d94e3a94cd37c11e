//! Mount options, and their forms for mount(2), `fusermount3` and the request loop.
//!
//! Rules: the kernel checks permissions (`default_permissions`) of every mount that more than one
//! user can reach. POSIX ACLs depend on that, since the kernel checks both. Access for the owner
//! and root alone is impossible: the kernel admits the processes of one user or of all users, and
//! does not ask the daemon about cached data. Unless a number of threads is given, there are at
//! least four: a request that waits for a disk must not hold up the others. Access times are kept
//! by the engine: the kernel keeps none for FUSE, and its flags only show in the table of mounts.
//! Left out: the fstab syntax, which belongs to the command line, and options of the store
//! (`shoal-store`).

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::mount::MountFlags;
use shoal_fs::AccessTimes;

/// Default minimum of threads that serve requests; and the part of a memory limit that their
/// buffers may take together.
const THREADS_MIN: usize = 4;
const THREAD_PART: u64 = 16;

/// Options that `fusermount3` accepts. A mount without root's rights leaves out the others, though
/// the engine obeys them.
const FUSERMOUNT_KNOWS: [&str; 7] = ["ro", "nodev", "nosuid", "noexec", "noatime", "sync", "dirsync"];

/// Processes that may use the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Processes of the user who mounted it (all their user and group ids are that user's), within
    /// the permissions of the files.
    Owner,
    /// Processes of the user who mounted it, without permission checks: the kernel asks for no
    /// attributes. It ignores the user for whom a process uses files (`setfsuid`), so a process of
    /// root that uses files for another user has root's rights to cached data.
    OwnerUnchecked,
    /// Every user, within the permissions of the files.
    All,
}

impl Access {
    /// Returns whether the kernel checks permission bits and ACLs.
    pub fn is_checked(self) -> bool {
        self != Access::OwnerUnchecked
    }
}

/// How requests reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Rings if the kernel offers them.
    Auto,
    /// System calls on `/dev/fuse`.
    Dev,
    /// Rings shared with the kernel if it has them, otherwise `/dev/fuse` with a warning.
    Uring,
}

#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The device column of `mount` and `df`: the store's absolute path.
    pub source: PathBuf,
    pub read_only: bool,
    pub access: Access,
    /// Extended attributes and ACLs. Without them the kernel does not ask for `security.capability`
    /// before the first write to each file, which saves a fifth of the requests of making a small
    /// file.
    pub xattrs: bool,
    pub transport: Transport,
    /// Threads that serve requests leave the processor to the programs they serve (SCHED_IDLE), and follow a single
    /// program from processor to processor, while that makes requests faster.
    pub idle_class: bool,
    /// The kernel gathers writes. A write survives the daemon only after `close`, `fsync` or
    /// write-back.
    pub writeback: bool,
    pub nodev: bool,
    pub nosuid: bool,
    pub noexec: bool,
    /// When reads change access times.
    pub access_times: AccessTimes,
    /// Access times of directories do not change. They never do; this only shows in the table of
    /// mounts.
    pub nodiratime: bool,
    /// Symbolic links on this mount are not followed.
    pub nosymfollow: bool,
    /// Every write is followed by an fsync.
    pub synchronous: bool,
    /// Only shown in the table of mounts: changes of directories are in the log in any case.
    pub directories_synchronous: bool,
    /// The kernel may hold time stamps back.
    pub lazytime: bool,
    /// Number of threads that serve requests; 0 to suit the machine.
    pub threads: usize,
    /// Every thread reads requests from a descriptor of its own.
    pub clone_fd: bool,
    /// How far the kernel reads ahead in large files (bytes; 0: its own default). Only root can raise it.
    pub read_ahead_bytes: u64,
}

impl MountOptions {
    pub fn new(source: PathBuf) -> MountOptions {
        MountOptions {
            source,
            read_only: false,
            access: Access::Owner,
            xattrs: true,
            writeback: false,
            transport: Transport::Auto,
            idle_class: true,
            nodev: false,
            nosuid: false,
            noexec: false,
            access_times: AccessTimes::Relative,
            nodiratime: false,
            nosymfollow: false,
            synchronous: false,
            directories_synchronous: false,
            lazytime: false,
            threads: 0,
            clone_fd: false,
            read_ahead_bytes: 1 << 20,
        }
    }

    pub(crate) fn flags(&self) -> MountFlags {
        self.words().map(|(_, flag)| flag).collect()
    }

    /// Returns the options set, as words and as flags.
    fn words(&self) -> impl Iterator<Item = (&'static str, MountFlags)> {
        [
            (self.read_only, "ro", MountFlags::RDONLY),
            (self.nodev, "nodev", MountFlags::NODEV),
            (self.nosuid, "nosuid", MountFlags::NOSUID),
            (self.noexec, "noexec", MountFlags::NOEXEC),
            (self.access_times == AccessTimes::Never, "noatime", MountFlags::NOATIME),
            (self.access_times == AccessTimes::Always, "strictatime", MountFlags::STRICTATIME),
            (self.nodiratime, "nodiratime", MountFlags::NODIRATIME),
            (self.nosymfollow, "nosymfollow", MountFlags::NOSYMFOLLOW),
            (self.synchronous, "sync", MountFlags::SYNCHRONOUS),
            (self.directories_synchronous, "dirsync", MountFlags::DIRSYNC),
            (self.lazytime, "lazytime", MountFlags::LAZYTIME),
        ]
        .into_iter()
        .filter(|(wanted, _, _)| *wanted)
        .map(|(_, word, flag)| (word, flag))
    }

    /// Returns the options that FUSE itself reads in mount(2)'s data.
    pub(crate) fn data(&self) -> String {
        let mut data = String::from("subtype=shoal");
        if self.access.is_checked() {
            data += ",default_permissions";
        }
        if self.access == Access::All {
            data += ",allow_other";
        }
        data
    }

    /// Returns all options as one list for `fusermount3`, whose escape character is `\`.
    pub(crate) fn fusermount_list(&self) -> Vec<u8> {
        let mut list = self.data().into_bytes();
        for (word, _) in self.words().filter(|(word, _)| FUSERMOUNT_KNOWS.contains(word)) {
            list.push(b',');
            list.extend_from_slice(word.as_bytes());
        }
        list.extend_from_slice(b",fsname=");
        for &byte in self.source.as_os_str().as_bytes() {
            if byte == b',' || byte == b'\\' {
                list.push(b'\\');
            }
            list.push(byte);
        }
        list
    }

    /// Threads that serve requests.
    pub(crate) fn request_threads(&self) -> usize {
        match self.threads {
            0 => threads_for(
                std::thread::available_parallelism().map_or(4, usize::from),
                shoal_host::memory_limit_bytes(),
            ),
            n => n,
        }
    }
}

/// Returns the default number of threads. Each has a buffer for a long request, so there are fewer
/// if this process may use less memory than the machine has.
fn threads_for(processors: usize, limit: Option<u64>) -> usize {
    let most = limit.map_or(usize::MAX, |limit| (limit / THREAD_PART / (1 << 20)) as usize);
    processors.min(most).max(THREADS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_is_not_spent_on_threads() {
        assert_eq!([1, 4, 64].map(|processors| threads_for(processors, None)), [4, 4, 64]);
        assert_eq!([1, 4, 64].map(|processors| threads_for(processors, Some(256 << 20))), [4, 4, 16]);
        assert_eq!(threads_for(64, Some(16 << 20)), 4);
    }

    #[test]
    fn every_option_reaches_mount_and_fusermount() {
        let plain = MountOptions::new("/s".into());
        assert_eq!(plain.flags(), MountFlags::empty());
        assert_eq!(plain.fusermount_list(), b"subtype=shoal,default_permissions,fsname=/s");
        let all = MountOptions {
            read_only: true,
            access: Access::All,
            nodev: true,
            nosuid: true,
            noexec: true,
            access_times: AccessTimes::Never,
            nodiratime: true,
            nosymfollow: true,
            synchronous: true,
            directories_synchronous: true,
            lazytime: true,
            ..MountOptions::new("/a,b\\c".into())
        };
        assert_eq!(all.flags().bits().count_ones(), 10);
        let strict = MountOptions { access_times: AccessTimes::Always, ..MountOptions::new("/s".into()) };
        assert_eq!(strict.flags(), MountFlags::STRICTATIME);
        assert_eq!(all.data(), "subtype=shoal,default_permissions,allow_other");
        let unchecked = MountOptions { access: Access::OwnerUnchecked, ..MountOptions::new("/s".into()) };
        assert_eq!(unchecked.data(), "subtype=shoal");
        assert_eq!(
            all.fusermount_list(),
            br"subtype=shoal,default_permissions,allow_other,ro,nodev,nosuid,noexec,noatime,sync,dirsync,fsname=/a\,b\\c"
        );
    }

    #[test]
    fn four_threads_serve_at_least_unless_told_otherwise() {
        let mut options = MountOptions::new("/s".into());
        assert!(options.request_threads() >= 4);
        options.threads = 1;
        assert_eq!(options.request_threads(), 1);
    }
}
