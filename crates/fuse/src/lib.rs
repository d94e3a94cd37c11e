//! A thin adapter from FUSE requests to the file system engine.
//!
//! | module | owns |
//! |---|---|
//! | `protocol` | the kernel's messages: decoding, encoding, negotiation; pure |
//! | `channel` | the way to the kernel and back, as a trait; the answer that a request waits for |
//! | `dev_fuse` | the transport of `/dev/fuse` |
//! | `uring` | the transport of io_uring |
//! | `guard` | the scheduling class of its threads, and that no program starves because of it |
//! | `lane` | messages that still come by `/dev/fuse` beside it |
//! | `session` | INIT, and the threads that serve requests |
//! | `service` | from a decoded request to its action, and from the outcome to the answer |
//! | `requests` | the actions: policy over plain values |
//! | `errno` | error numbers of refused requests |
//! | `counts` | how many requests of each kind there were, and how long they took |
//! | `convert` | times, rename flags, set-id bits: pure functions |
//! | `file_flags` | the ioctls of chattr(1): pure functions |
//! | `options` | mount options, as kernel flags and option strings |
//! | `attach` | mount(2), `fusermount3`, and unmounting, even of a busy mount |
//! | `mount_table` | reading the table of mounts |
//!
//! Rules: no file-system logic here, and no background work of the store: its clocks run beside the
//! mount (`shoal-life`), and its user shuts it down. The store has exactly one mount, so the kernel may cache
//! names, attributes and pages forever. Any change of attributes that the kernel does not know of
//! must be invalidated (there are two: cleared set-id bits, and the time of change after a change
//! of chattr's flags). The kernel's lookup references are the engine's `hold`/`forget`; there are
//! no file handles. Writes are not cached here: a write that returned is in the engine, and
//! survives the end of this process. Left out: `syncfs(2)`, which the kernel does not forward to
//! mounts over `/dev/fuse`; the engine's commit age (1 s) bounds what it would cover.

#![forbid(unsafe_code)]

mod attach;
mod channel;
mod convert;
mod counts;
mod dev_fuse;
mod errno;
mod file_flags;
mod follower;
mod gate;
mod guard;
mod lane;
pub mod mount_table;
mod options;
mod protocol;
mod requests;
mod service;
mod session;
mod uring;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shoal_fs::Fs;
use shoal_host::Bell;
use shoal_life::{Breaker, Syncer, SyncerThread, WaiterThreads, Waiters};

use crate::channel::Port;
use crate::dev_fuse::DevFuse;
use crate::guard::Guard;
use crate::lane::Lane;
use crate::requests::{Readers, Requests};
use crate::service::Service;
use crate::session::{Threads, Way, handshake};
use crate::uring::Queues;

pub use attach::{InUse, Unmounted, Unmounter, check_mountpoint, is_served, remount, unmount_path};
pub use counts::RequestCount;
pub use options::{Access, MountOptions, Transport};
pub use session::RequestCounts;
pub use uring::{KernelUring, try_ring};

/// Failure to make, serve or end a mount.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("mount point {path}: {source}{}", remedy_at(path, source))]
    MountPoint { path: PathBuf, source: io::Error },
    #[error("mount point {path} is not a directory; name an existing directory")]
    NotDirectory { path: PathBuf },
    #[error("/dev/fuse: {source}{}", remedy_of_device(source))]
    Device { source: io::Error },
    #[error("mount(2) at {path} refused: {source}")]
    Mount { path: PathBuf, source: io::Error },
    #[error("fusermount3 at {path}: {message}")]
    Fusermount { path: PathBuf, message: String },
    #[error("unmounting {path}: {source}")]
    Unmount { path: PathBuf, source: io::Error },
    #[error("the kernel's FUSE connection failed: {0}")]
    Connection(#[source] io::Error),
    #[error("starting a thread: {0}")]
    Thread(#[source] io::Error),
}

/// Returns what to do if the device is missing. A lack of descriptors or memory is not a fault of
/// the device.
fn remedy_of_device(source: &io::Error) -> &'static str {
    // ENODEV and ENXIO: the node exists, but the module is missing.
    let is_away = matches!(source.raw_os_error(), Some(6 | 19));
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            "; load the kernel module (`modprobe fuse`) or allow the device in this container"
        }
        _ if is_away => "; load the kernel module (`modprobe fuse`)",
        _ => "",
    }
}

/// Returns what to do about a path that nothing can be mounted on, if that follows from the error.
fn remedy_at(path: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "; name an existing directory".into(),
        io::ErrorKind::NotConnected => format!("; run `umount -l {}`: its daemon is gone", path.display()),
        _ => String::new(),
    }
}

/// A mounted store.
pub struct Session {
    threads: Threads,
    waiters: WaiterThreads,
    readers: WaiterThreads,
    syncer: SyncerThread,
    unmounter: Unmounter,
}

/// A mount that is undone unless it is kept: whatever fails on the way to a session, no mount is
/// left behind.
struct Undone(Option<Unmounter>);

impl Undone {
    fn keep(mut self) -> Unmounter {
        self.0.take().expect("kept once")
    }
}

impl Drop for Undone {
    fn drop(&mut self) {
        // The device is closed by now, so nobody waits for an answer.
        self.0.take().map(|unmounter| unmounter.detach());
    }
}

/// Mounts `fs`. `log` wakes the clock of its log. When this returns, the mount point answers.
pub fn mount(fs: &Arc<Fs>, log: Bell, mountpoint: &Path, options: &MountOptions) -> Result<Session, Error> {
    let attach::Attached { device, unmounter } = attach::attach(mountpoint, options)?;
    let cut = unmounter.clone();
    let breaker = Breaker::new(move || cut.cut());
    let undone = Undone(Some(unmounter));
    // Declared after `undone`, so that the device is dropped first. The mount is then dead.
    let device = device;
    let (syncer, syncer_thread) = Syncer::start(fs, log, options.request_threads(), &breaker).map_err(Error::Thread)?;
    let (waiters, waiter_threads) = Waiters::start(&breaker).map_err(Error::Thread)?;
    let (readers, reader_threads) = Waiters::start_readers(&breaker).map_err(Error::Thread)?;
    match serve(fs, device, options, syncer, (waiters, readers), &breaker) {
        Ok(threads) => {
            let unmounter = undone.keep();
            unmounter.read_ahead(options.read_ahead_bytes);
            let (waiters, readers, syncer) = (waiter_threads, reader_threads, syncer_thread);
            Ok(Session { threads, waiters, readers, syncer, unmounter })
        }
        Err(error) => {
            // The device is closed by now, so the mount is dead, unless threads were started before
            // one failed to start.
            if let Some(unmounter) = &undone.0 {
                let _ = unmounter.cut();
            }
            drop(undone);
            waiter_threads.stop();
            reader_threads.stop();
            syncer_thread.stop();
            Err(Error::Connection(error))
        }
    }
}

/// Negotiates with the kernel, then serves requests in threads.
fn serve(
    fs: &Arc<Fs>,
    device: OwnedFd,
    options: &MountOptions,
    syncer: Syncer,
    (waiters, readers): (Waiters, Waiters),
    breaker: &Breaker,
) -> io::Result<Threads> {
    let device = DevFuse::new(device);
    let first = Port::new(Box::new(device.clone()));
    let mut wanted = requests::wanted(options);
    // Prepare the rings before INIT: an agreement cannot be taken back.
    let queues = Queues::prepare(options.transport, &mut wanted);
    let agreed = handshake(&first, &wanted)?;
    let mut devices = vec![first];
    for _ in 1..options.request_threads() {
        let further = if options.clone_fd { device.another() } else { device.clone() };
        devices.push(Port::new(Box::new(further)));
    }
    let queues = queues.filter(|queues| queues.are_agreed(&agreed));
    // With io_uring, the thread that takes a request serves all other requests of its processor,
    // too, so it neither reads the device nor flushes it.
    let (read_here, syncer) = match &queues {
        Some(_) => (0, syncer.without_turns()),
        None => (options.request_threads() / 2, syncer),
    };
    let (mut guard, mut lane) = (None, None);
    let ways: Vec<_> = match queues {
        None => {
            let (counts, mut places) = (devices.iter().map(|port| port.counts.clone()).collect(), Vec::new());
            if options.idle_class {
                (guard, places) = Guard::of_readers(device.descriptor().clone(), counts)?;
            }
            let mut places = places.into_iter();
            devices.into_iter().map(|port| Way::Device(port, places.next())).collect()
        }
        Some(queues) => {
            guard = if options.idle_class { Guard::of_queues(queues.count())? } else { None };
            let lane = &*lane.insert(Lane::new(device.descriptor().clone()));
            let first = devices.remove(0);
            let queues = queues.ports(&device, guard.as_ref()).into_iter().map(|port| Way::Queue(port, lane.clone()));
            let beside = std::iter::once(Way::Beside(first, lane.clone()));
            beside.chain(queues).chain(devices.into_iter().map(|port| Way::Behind(port, lane.clone()))).collect()
        }
    };
    let readers = Readers::new(readers, read_here);
    let requests = Requests::new(fs.clone(), syncer, waiters, readers, options, agreed, Box::new(device)).beside(lane);
    let owner = rustix::process::geteuid().as_raw();
    Threads::start(Service { requests, agreed, access: options.access, owner }, ways, guard, breaker)
}

impl Session {
    /// Ends the mount from any thread; [`Session::wait`] then returns.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Counts of the kernel's requests so far.
    pub fn request_counts(&self) -> RequestCounts {
        self.threads.counts()
    }

    /// Serves until the mount is gone, however it went. No request is under way then, and the log's
    /// clock may end. An error is one of the connection: the store has lost nothing.
    pub fn wait(self) -> Result<(), Error> {
        let served = self.threads.join();
        // The order matters: waiting work is still done, and the syncer leaves answers to the log's
        // clock.
        self.readers.stop();
        self.waiters.stop();
        self.syncer.stop();
        served.map_err(Error::Connection)
    }
}
