//! The transport of io_uring: a queue for each CPU, with its thread pinned there, and one system
//! call for an answer and the next request.
//!
//! A request comes to the queue of the CPU that its program runs on, so program and thread take
//! turns on one CPU and the kernel need not wake another. Answers are handed in together with the
//! wait for the next request. An answer that is ready in another thread (a sync, a waiter, a
//! reader) is put into its place there. The queue's thread is woken for it and hands it in.
//! Rules: the rings are made before the kernel is told of them, and each queue gets its slots;
//! otherwise the connection would hang. A queue's thread that waits for a slow device holds up the
//! CPU's other requests.
//! Left out: messages that the kernel still sends by `/dev/fuse`: FORGET, and everything until the
//! rings are ready.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use shoal_host::{Answer, Answers, FuseRing, Taken, Waker};

use crate::channel::{Channel, Port};
use crate::dev_fuse::DevFuse;
use crate::guard::{Guard, Watched};
use crate::options::Transport;
use crate::protocol::{Agreed, BUFFER_BYTES_MIN, Wanted, init_flags};

/// Maximum memory for requests in flight, of all queues together (bytes). It is taken as it is
/// used.
const MEMORY_BYTES: usize = 128 << 20;
/// These requests take at most one part in this many of a memory limit that is below the machine's
/// memory.
const LIMIT_PART: usize = 32;
/// Maximum requests in flight in one queue. Their data is not shortened to reach this number.
/// Requests that wait for a sync or for the bulk device keep their slot.
const SLOTS: usize = 32;
/// Requests in flight in one queue for which memory must suffice: otherwise their data is
/// shortened, but not below [`DATA_BYTES_MIN`].
const SLOTS_MIN: usize = 8;
/// Minimum length of the data of a request (bytes).
const DATA_BYTES_MIN: usize = 128 << 10;

/// The kernel's switch, `Y` or `N`, which is off by default.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const REMEDY: &str = "it takes Linux 6.14 and `echo Y >/sys/module/fuse/parameters/enable_uring` before mounting";

/// State of the kernel's switch for FUSE over io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelUring {
    On,
    Off,
    /// This kernel has no such switch.
    Absent,
}

impl KernelUring {
    pub fn now() -> KernelUring {
        match std::fs::read_to_string(SWITCH) {
            Ok(value) if value.starts_with('Y') => KernelUring::On,
            Ok(_) => KernelUring::Off,
            Err(_) => KernelUring::Absent,
        }
    }

    /// Switches it on for mounts made from now on, until the next boot. Takes root's rights.
    pub fn switch_on() -> io::Result<()> {
        std::fs::write(SWITCH, "Y")
    }
}

/// Fails if this process gets no ring, because a sysctl or a container's profile forbids it.
pub fn try_ring() -> io::Result<()> {
    FuseRing::new(1, BUFFER_BYTES_MIN).map(drop)
}

/// Returns whether the kernel offers io_uring, by its switch. If it does not, logs what to do.
fn is_offered() -> bool {
    let is_on = KernelUring::now() == KernelUring::On;
    if !is_on {
        tracing::info!("requests come by /dev/fuse; by io_uring many are faster: {REMEDY}");
    }
    is_on
}

/// Returns the memory for the data of all requests: less if this process may use little.
fn memory_bytes(limit: Option<u64>) -> usize {
    limit.map_or(MEMORY_BYTES, |limit| MEMORY_BYTES.min(limit as usize / LIMIT_PART))
}

/// Returns the slots of each queue and the bytes of their data, on a machine with `cpus` CPUs, in
/// `memory` bytes.
fn sizes(cpus: usize, data_bytes: usize, memory: usize) -> (usize, usize) {
    let data = (memory / (cpus * SLOTS_MIN)).clamp(DATA_BYTES_MIN, data_bytes.max(DATA_BYTES_MIN));
    ((memory / (cpus * data)).clamp(1, SLOTS), data)
}

/// Rings that are ready for a connection.
pub(crate) struct Queues {
    rings: Vec<FuseRing>,
    slots: usize,
    data_bytes: usize,
}

impl Queues {
    /// Makes the rings and asks for them in INIT. Without them everything goes by `/dev/fuse`.
    pub fn prepare(transport: Transport, wanted: &mut Wanted) -> Option<Queues> {
        let is_asked_for = match transport {
            Transport::Dev => false,
            Transport::Auto => is_offered(),
            Transport::Uring => true,
        };
        if !is_asked_for {
            return None;
        }
        let cpus = shoal_host::possible_cpus();
        let (slots, data) =
            sizes(cpus, wanted.write_bytes_max as usize, memory_bytes(shoal_host::memory_limit_bytes()));
        let payload = data.max(BUFFER_BYTES_MIN);
        match (0..cpus).map(|_| FuseRing::new(slots, payload)).collect() {
            Ok(rings) => {
                wanted.write_bytes_max = data as u32;
                wanted.flags |= init_flags::OVER_IO_URING;
                Some(Queues { rings, slots, data_bytes: data })
            }
            Err(error) => {
                tracing::warn!("io_uring: {error}; requests come by /dev/fuse");
                None
            }
        }
    }

    pub fn count(&self) -> usize {
        self.rings.len()
    }

    /// Returns whether the kernel agreed.
    pub fn are_agreed(&self, agreed: &Agreed) -> bool {
        let has = agreed.has(init_flags::OVER_IO_URING);
        if !has {
            tracing::warn!("the kernel does not offer io_uring, requests come by /dev/fuse; {REMEDY}");
        }
        has
    }

    /// Makes a port for each queue. The queues inform `guard`, if there is one.
    pub fn ports(self, device: &DevFuse, guard: Option<&Guard>) -> Vec<Arc<Port>> {
        let (queues, kib) = (self.rings.len(), self.data_bytes >> 10);
        tracing::info!("requests come by io_uring: {queues} queues, each for {} requests of {kib} KiB", self.slots);
        let queue = |(number, ring): (usize, FuseRing)| {
            Port::new(Box::new(Queue {
                waker: ring.waker(),
                answers: ring.answers(),
                ring: Mutex::new(ring),
                left: Mutex::default(),
                owner: OnceLock::new(),
                has_served: AtomicBool::new(false),
                device: device.descriptor().clone(),
                watched: guard.map(Guard::watched),
                number: number as u16,
            }))
        };
        self.rings.into_iter().enumerate().map(queue).collect()
    }
}

/// Binds the calling thread to a CPU, which must be one of its own.
fn bind(cpu: usize) -> io::Result<()> {
    // The set cannot hold higher CPU numbers.
    if cpu >= CpuSet::MAX_CPU || !sched_getaffinity(None)?.is_set(cpu) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut one = CpuSet::new();
    one.set(cpu);
    Ok(sched_setaffinity(None, &one)?)
}

struct Queue {
    /// Locked by the queue's thread only.
    ring: Mutex<FuseRing>,
    answers: Answers,
    /// Answers of other threads.
    left: Mutex<Vec<Answer>>,
    waker: Waker,
    owner: OnceLock<ThreadId>,
    has_served: AtomicBool,
    device: Arc<OwnedFd>,
    watched: Option<Watched>,
    number: u16,
}

impl Queue {
    /// Makes the calling thread the queue's thread.
    fn start(&self, ring: &mut FuseRing) -> io::Result<()> {
        // A CPU may be offline, or not among those that the daemon may use (taskset(1)). Its queue
        // is then served from any CPU.
        if let Err(error) = bind(self.number.into()) {
            tracing::debug!("CPU {}: {error}", self.number);
        }
        if let Some(watched) = &self.watched {
            watched.enter(self.number.into());
        }
        ring.start(self.device.as_fd(), self.number)
    }
}

impl Channel for Queue {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut ring = self.ring.lock();
        if self.owner.set(std::thread::current().id()).is_ok() {
            self.start(&mut ring)?;
        }
        loop {
            for answer in std::mem::take(&mut *self.left.lock()) {
                ring.put(answer)?;
            }
            match ring.take(buffer)? {
                Taken::Request(len) => {
                    self.has_served.store(true, Ordering::Relaxed);
                    if let Some(watched) = &self.watched {
                        watched.took(self.number.into());
                    }
                    return Ok(Some(len));
                }
                Taken::Woken => {}
                Taken::Delayed(error) => tracing::warn!("io_uring: queue {}: {error}; tried again", self.number),
                // The kernel keeps using a queue that it has used once.
                Taken::Ended(Some(error)) if self.has_served.load(Ordering::Relaxed) => return Err(error),
                Taken::Ended(reason) => {
                    if let Some(error) = reason {
                        tracing::warn!("io_uring: queue {}: {error}; requests come by /dev/fuse", self.number);
                    }
                    return Ok(None);
                }
            }
        }
    }

    fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let answer = self.answers.fill(pieces)?;
        if self.owner.get() == Some(&std::thread::current().id()) {
            return self.ring.lock().put(answer);
        }
        self.left.lock().push(answer);
        self.waker.wake();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_on_machines_of_any_size() {
        for cpus in 1..=4096 {
            let (slots, data) = sizes(cpus, 1 << 20, MEMORY_BYTES);
            assert!((1..=SLOTS).contains(&slots) && (DATA_BYTES_MIN..=1 << 20).contains(&data), "{cpus}");
            assert!(cpus > 1024 || cpus * slots * data <= MEMORY_BYTES, "{cpus}: {slots} of {data}");
        }
        assert_eq!(
            [2, 16, 128].map(|cpus| sizes(cpus, 1 << 20, MEMORY_BYTES)),
            [(32, 1 << 20), (8, 1 << 20), (8, 128 << 10)]
        );
    }
}
