//! What a mount may be asked for, and how it is said to mount(2), to `fusermount3` and to the request loop.
//!
//! Rules: `default_permissions` is on unless it is refused, and POSIX ACLs depend on it (the kernel checks both).
//! Without a wish for threads there are at least four: a request that waits for a disk must not hold up the others.
//! Left out: the fstab syntax, which belongs to the command line.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::mount::MountFlags;

/// Who may use the mount, besides the permissions of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The user who mounted it.
    Owner,
    /// That user and root.
    OwnerAndRoot,
    /// Everybody.
    All,
}

#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The device column of `mount` and `df`: the store's absolute path.
    pub source: PathBuf,
    pub read_only: bool,
    pub access: Access,
    /// The kernel checks permission bits and ACLs.
    pub default_permissions: bool,
    /// Extended attributes and ACLs. Without them the kernel does not ask for `security.capability` before the first
    /// write to each file: a fifth of the requests that making a small file takes.
    pub xattrs: bool,
    pub nodev: bool,
    pub nosuid: bool,
    pub noexec: bool,
    pub noatime: bool,
    /// Every write is followed by an fsync.
    pub synchronous: bool,
    /// Threads that serve requests; 0: as many as suit the machine.
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
            default_permissions: true,
            xattrs: true,
            nodev: false,
            nosuid: false,
            noexec: false,
            noatime: false,
            synchronous: false,
            threads: 0,
            clone_fd: false,
            read_ahead_bytes: 1 << 20,
        }
    }

    pub(crate) fn flags(&self) -> MountFlags {
        [
            (self.read_only, MountFlags::RDONLY),
            (self.nodev, MountFlags::NODEV),
            (self.nosuid, MountFlags::NOSUID),
            (self.noexec, MountFlags::NOEXEC),
            (self.noatime, MountFlags::NOATIME),
            (self.synchronous, MountFlags::SYNCHRONOUS),
        ]
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .map(|(_, flag)| flag)
        .collect()
    }

    /// The options that FUSE itself reads in mount(2)'s data.
    pub(crate) fn data(&self) -> String {
        let mut data = String::from("subtype=shoal");
        if self.default_permissions {
            data += ",default_permissions";
        }
        if self.access != Access::Owner {
            data += ",allow_other";
        }
        data
    }

    /// Everything as one option list for `fusermount3`, which knows `\` as its escape.
    pub(crate) fn fusermount_list(&self) -> Vec<u8> {
        let mut list = self.data().into_bytes();
        for (wanted, word) in [
            (self.read_only, ",ro"),
            (self.nodev, ",nodev"),
            (self.nosuid, ",nosuid"),
            (self.noexec, ",noexec"),
            (self.noatime, ",noatime"),
            (self.synchronous, ",sync"),
        ] {
            if wanted {
                list.extend_from_slice(word.as_bytes());
            }
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

    pub(crate) fn session_acl(&self) -> fuser::SessionACL {
        match self.access {
            Access::Owner => fuser::SessionACL::Owner,
            Access::OwnerAndRoot => fuser::SessionACL::RootAndOwner,
            Access::All => fuser::SessionACL::All,
        }
    }

    pub(crate) fn session_config(&self) -> fuser::Config {
        let mut config = fuser::Config::default();
        config.acl = self.session_acl();
        config.n_threads = Some(match self.threads {
            0 => std::thread::available_parallelism().map_or(4, |n| n.get().max(4)),
            n => n,
        });
        config.clone_fd = self.clone_fd;
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_reaches_mount_and_fusermount() {
        let plain = MountOptions::new("/s".into());
        assert_eq!(plain.flags(), MountFlags::empty());
        assert_eq!(plain.fusermount_list(), b"subtype=shoal,default_permissions,fsname=/s");
        let all = MountOptions {
            read_only: true,
            access: Access::All,
            default_permissions: false,
            nodev: true,
            nosuid: true,
            noexec: true,
            noatime: true,
            synchronous: true,
            ..MountOptions::new("/a,b\\c".into())
        };
        assert_eq!(all.flags().bits().count_ones(), 6);
        assert_eq!(all.data(), "subtype=shoal,allow_other");
        assert_eq!(
            all.fusermount_list(),
            br"subtype=shoal,allow_other,ro,nodev,nosuid,noexec,noatime,sync,fsname=/a\,b\\c"
        );
    }

    #[test]
    fn four_threads_serve_at_least_unless_told_otherwise() {
        let mut options = MountOptions::new("/s".into());
        assert!(options.session_config().n_threads >= Some(4));
        options.threads = 1;
        assert_eq!(options.session_config().n_threads, Some(1));
    }
}
