//! Attaching a FUSE connection to a mount point, and detaching it.
//!
//! Root mounts with mount(2), other users with the set-uid helper `fusermount3`, which passes the
//! device over a socket.
//! Rules: only the mount that was made here is ever unmounted (the kernel's device number tells). A
//! busy mount is written back, its connection is aborted, and it is detached, so that the store can
//! be shut down cleanly. Programs still using it get ENOTCONN.
//! Left out: what goes over the device (`dev_fuse`).

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{getgid, getuid};

use crate::Error;
use crate::mount_table::Table;
use crate::options::MountOptions;

/// Maximum time for writing back pages dirtied through memory maps, before a busy mount is cut off.
const WRITE_BACK_LIMIT: Duration = Duration::from_secs(10);

/// Maximum time for a served mount to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Time allowed for programs that look at a mount in passing (`df`, `stat`) and keep it busy for a
/// moment.
const PASSERS_BY: Duration = Duration::from_secs(2);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);

pub(crate) struct Attached {
    pub device: OwnedFd,
    pub unmounter: Unmounter,
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount was not in use.
    Idle,
    /// The mount was in use and has been cut off.
    Busy,
    /// The mount was already gone.
    Gone,
}

/// Ends one mount, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: PathBuf,
    /// `major:minor` of the mount that was made here.
    device: String,
    table: Arc<Table>,
}

/// Returns the canonical path and the mode of a mount point, or why nothing can be mounted there.
/// Called before a store is opened.
pub fn check_mountpoint(mountpoint: &Path) -> Result<(PathBuf, u32), Error> {
    let at = |source| Error::MountPoint { path: mountpoint.into(), source };
    let path = mountpoint.canonicalize().map_err(at)?;
    let metadata = std::fs::metadata(&path).map_err(at)?;
    if !metadata.is_dir() {
        return Err(Error::NotDirectory { path });
    }
    Ok((path, metadata.mode()))
}

pub(crate) fn attach(mountpoint: &Path, options: &MountOptions) -> Result<Attached, Error> {
    let at = |source| Error::MountPoint { path: mountpoint.into(), source };
    let (path, mode) = check_mountpoint(mountpoint)?;
    // Open the table first: a mount that was made must be found, or it would be left behind.
    let table = Arc::new(Table::open().map_err(at)?);
    let device = match attach_directly(&path, mode, options)? {
        Some(device) => device,
        None => attach_by_fusermount(&path, options)?,
    };
    let missing = || io::Error::other("the new mount is not listed in /proc/self/mountinfo");
    let entry = table.mounted_at(&path).and_then(|entry| entry.ok_or_else(missing));
    match entry {
        Ok(entry) => Ok(Attached { device, unmounter: Unmounter { mountpoint: path, device: entry.device, table } }),
        Err(error) => {
            // Nothing tells this mount from another one, since the table cannot be read. But it was
            // made a moment ago.
            let _ = unmount_path(&path, InUse::Detached);
            Err(at(error))
        }
    }
}

/// Mounts with mount(2). Returns `None` if this user may not call it.
fn attach_directly(path: &Path, root_mode: u32, options: &MountOptions) -> Result<Option<OwnedFd>, Error> {
    if !getuid().is_root() {
        return Ok(None);
    }
    let device =
        OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|source| Error::Device { source })?;
    let data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={},{}",
        device.as_raw_fd(),
        getuid().as_raw(),
        getgid().as_raw(),
        options.data()
    );
    let data = CString::new(data).expect("no option contains a zero byte");
    match rustix::mount::mount(&options.source, path, "fuse", options.flags(), data.as_c_str()) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(source) => Err(Error::Mount { path: path.into(), source: source.into() }),
    }
}

fn attach_by_fusermount(path: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    let failed = |message: String| Error::Fusermount { path: path.into(), message };
    let (ours, theirs) = UnixStream::pair().map_err(|e| failed(e.to_string()))?;
    // Pass the socket as the helper's standard input. Any other descriptor would have to be kept
    // open across exec.
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(OsStr::from_bytes(&options.fusermount_list()))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => failed(format!("{e}; install the package fuse3, or mount as root")),
            _ => failed(e.to_string()),
        })?;
    let received = receive_descriptor(&ours);
    let mut message = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // The message is only used if there is no descriptor. A message cut short still serves.
        let _ = stderr.read_to_string(&mut message);
    }
    let status = child.wait().map_err(|e| failed(e.to_string()))?;
    match received {
        Ok(Some(device)) if status.success() => Ok(device),
        Err(error) => Err(failed(error.to_string())),
        _ => Err(failed(message.lines().next().unwrap_or("it passed no descriptor").to_string())),
    }
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let received =
            recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC);
        match received {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

impl Unmounter {
    /// Returns `major:minor` of the mount, as listed in the table of mounts.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Ends the mount. A busy mount is ended by force, after pages of memory maps have been written
    /// back.
    pub fn unmount(&self) -> Result<Unmounted, Error> {
        let failed = |source| Error::Unmount { path: self.mountpoint.clone(), source };
        if !self.is_mounted().map_err(failed)? {
            return Ok(Unmounted::Gone);
        }
        match while_busy(|| self.try_unmount(UnmountFlags::empty(), &[])) {
            Ok(()) => Ok(Unmounted::Idle),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                self.write_back();
                self.abort();
                self.try_unmount(UnmountFlags::FORCE | UnmountFlags::DETACH, &["-z"]).map_err(failed)?;
                Ok(Unmounted::Busy)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Detaches the mount from its path at once, whatever state it is in.
    pub(crate) fn detach(&self) -> io::Result<()> {
        if self.is_mounted()? {
            self.try_unmount(UnmountFlags::DETACH, &["-z"])?;
        }
        Ok(())
    }

    fn is_mounted(&self) -> io::Result<bool> {
        Ok(self.table.mounted_at(&self.mountpoint)?.is_some_and(|entry| entry.device == self.device))
    }

    fn try_unmount(&self, flags: UnmountFlags, helper_flags: &[&str]) -> io::Result<()> {
        match rustix::mount::unmount(&self.mountpoint, flags | UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => unmount_by_fusermount(&self.mountpoint, helper_flags),
            outcome => Ok(outcome?),
        }
    }

    /// Writes back pages of memory maps, in a thread of its own: if the request loop hangs, so does
    /// the thread that asks it to write.
    fn write_back(&self) {
        let (done, finished) = mpsc::channel();
        let path = self.mountpoint.clone();
        let started = std::thread::Builder::new().name("write-back".into()).spawn(move || {
            if let Ok(directory) = File::open(path) {
                // The outcome does not matter: the mount is cut off either way.
                let _ = rustix::fs::syncfs(directory);
            }
            let _ = done.send(());
        });
        if started.is_ok() && finished.recv_timeout(WRITE_BACK_LIMIT).is_err() {
            tracing::warn!("pages of memory maps could not be written back within {WRITE_BACK_LIMIT:?}");
        }
    }

    /// Ends the connection, so that the request loop ends although the mount is in use. Root gets
    /// the same with umount2(MNT_FORCE); this is for users of `fusermount3`.
    fn abort(&self) {
        // This fails if fusectl is not mounted. The session then lasts as long as its last user.
        let _ = self.abort_by_fusectl();
    }

    fn abort_by_fusectl(&self) -> io::Result<()> {
        let (_, minor) = self.device.split_once(':').ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
    }

    /// Ends the connection and leaves the dead mount in place. A program that goes on gets an
    /// error, rather than the directory below.
    pub(crate) fn cut(&self) -> io::Result<()> {
        let aborted = self.abort_by_fusectl();
        if aborted.is_ok() || !self.is_mounted()? {
            return aborted;
        }
        // A mount in use stays. The call reports it as busy, after its connection has been ended.
        match rustix::mount::unmount(&self.mountpoint, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(_) => aborted,
        }
    }

    /// Raises the kernel's read-ahead for this mount; 0 leaves it alone.
    pub(crate) fn read_ahead(&self, bytes: u64) {
        if bytes > 0 {
            // Only root may do this, and only if sysfs is writable. It only affects speed.
            let _ = std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", self.device), (bytes >> 10).to_string());
        }
    }
}

/// Retries while the mount is busy, for at most [`PASSERS_BY`].
fn while_busy(mut unmount: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match unmount() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && begin.elapsed() < PASSERS_BY => {
                std::thread::sleep(BETWEEN_ATTEMPTS);
            }
            outcome => return outcome,
        }
    }
}

/// Unmounts through the set-uid helper.
pub(crate) fn unmount_by_fusermount(mountpoint: &Path, flags: &[&str]) -> io::Result<()> {
    let output = Command::new("fusermount3").arg("-u").args(flags).arg("--").arg(mountpoint).output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_string();
    let kind = if message.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::PermissionDenied };
    Err(io::Error::new(kind, message))
}

/// Gives the mount at `mountpoint` the flags of `options`. Before the kernel makes a mount
/// read-only, it sends the data of memory maps. FUSE's own options cannot change.
pub fn remount(mountpoint: &Path, options: &MountOptions) -> io::Result<()> {
    // Without any of these flags, the kernel would keep the old rule for access times.
    let relative = options.access_times == shoal_fs::AccessTimes::Relative;
    let flags = options.flags() | if relative { MountFlags::RELATIME } else { MountFlags::empty() };
    Ok(rustix::mount::mount_remount(mountpoint, flags, c"")?)
}

/// What happens to a mount that is in use when it is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// It stays, and the caller gets an error.
    Refused,
    /// It is detached from its place, and ends with its last use.
    Detached,
}

/// Ends the mount at `mountpoint`, even one of another process.
pub fn unmount_path(mountpoint: &Path, in_use: InUse) -> io::Result<()> {
    let lazy = in_use == InUse::Detached;
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    while_busy(|| match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => unmount_by_fusermount(mountpoint, if lazy { &["-z"] } else { &[] }),
        outcome => Ok(outcome?),
    })
}

/// Returns whether the mount at `mountpoint` is served. A daemon that does not answer for a while
/// counts as alive. A thread of its own asks, since the kernel may make it wait forever.
pub fn is_served(mountpoint: &Path) -> bool {
    let (sender, receiver) = mpsc::sync_channel(1);
    let path = mountpoint.to_path_buf();
    let asked = std::thread::Builder::new().name("is-served".into()).spawn(move || {
        let _ = sender.send(rustix::fs::statfs(path));
    });
    match asked.map(|_| receiver.recv_timeout(ANSWER_LIMIT)) {
        // A caller that the mount does not admit gets an answer from the kernel itself, without
        // numbers.
        Ok(Ok(Ok(answer))) => answer.f_blocks > 0,
        Ok(Ok(Err(_))) => false,
        Ok(Err(_)) | Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_busy_in_passing_is_tried_again_and_another_refusal_is_final() {
        let mut attempts = 0;
        let outcome = while_busy(|| {
            attempts += 1;
            if attempts < 4 { Err(Errno::BUSY.into()) } else { Ok(()) }
        });
        assert!(outcome.is_ok() && attempts == 4);
        let mut attempts = 0;
        let outcome = while_busy(|| {
            attempts += 1;
            Err(Errno::INVAL.into())
        });
        assert!(outcome.is_err() && attempts == 1);
        let begin = Instant::now();
        assert_eq!(while_busy(|| Err(Errno::BUSY.into())).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert!(begin.elapsed() >= PASSERS_BY);
    }
}
