//! A queue of a FUSE connection over io_uring: one system call submits answers and waits for
//! requests.
//!
//! The kernel has one queue for each CPU and serves a connection through its queues once each of
//! them has a slot. A slot is memory for one request: headers of 288 bytes (the message's header,
//! the operation's structure, io_uring's own part), and a payload for the rest. REGISTER gives a
//! slot to the kernel and completes with a request in it. COMMIT_AND_FETCH takes the answer from
//! the same memory and completes with the next request. Rules:
//! - The kernel writes to a slot only while it owns it, between a command and its completion. This
//!   process touches the slot only outside of that time.
//! - One thread owns a ring. It starts the ring and makes all calls except [`Waker::wake`] and
//!   [`Answers::fill`].
//! - A slot whose request awaits its answer belongs to the thread that takes it from the `waiting`
//!   list, until the answer is given back to the owner.
//!
//! Left out: the meaning of messages, except for their length and number.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::Pause;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Offsets of the operation's structure and of io_uring's own part in the headers, and the end of
/// the headers (`fuse_uring_req_header`).
const OPERATION_AT: usize = 128;
const TRANSPORT_AT: usize = 256;
const HEADERS_BYTES: usize = 288;
/// Offsets of `commit_id` and `payload_sz` in io_uring's part.
const COMMIT_ID_AT: usize = TRANSPORT_AT + 8;
const PAYLOAD_BYTES_AT: usize = TRANSPORT_AT + 16;
/// Lengths of the headers of an incoming and of an outgoing message. Both hold the request's number
/// at the same offset.
const IN_HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: usize = 16;
const UNIQUE_AT: usize = 8;
/// The payload begins on its own page.
const PAYLOAD_AT: usize = 4096;
/// Flags of io_uring_enter(2).
const ENTER_GETEVENTS: u32 = 1;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
/// Marks the completion of a [`Waker`].
const WOKEN: u64 = u64::MAX;

/// `struct iovec`.
#[repr(C)]
struct Range {
    base: *mut u8,
    len: usize,
}

/// Memory for one request.
struct Slot {
    memory: NonNull<u8>,
    payload_bytes: usize,
    /// The headers and the payload, as passed to REGISTER.
    ranges: Box<[Range; 2]>,
}

impl Slot {
    fn new(payload_bytes: usize) -> io::Result<Slot> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous map at an address of the kernel's choice; nothing else refers to it.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAYLOAD_AT + payload_bytes, protection, flags)? };
        let memory = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: `PAYLOAD_AT` lies within the map made above.
        let payload = unsafe { memory.add(PAYLOAD_AT) };
        let ranges =
            [Range { base: memory.as_ptr(), len: HEADERS_BYTES }, Range { base: payload.as_ptr(), len: payload_bytes }];
        Ok(Slot { memory, payload_bytes, ranges: Box::new(ranges) })
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= PAYLOAD_AT + self.payload_bytes);
        // SAFETY: the range lies within the map (asserted), which lives as long as `self`. By the
        // module's rules neither the kernel nor another thread writes to it now. `to` is memory
        // owned by Rust, outside the map.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.add(at).as_ptr(), to.as_mut_ptr(), to.len()) }
    }

    fn write(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= PAYLOAD_AT + self.payload_bytes);
        // SAFETY: as in `read`; neither the kernel nor another thread reads the range now, and
        // `from` is a Rust slice, which is never in the map.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.memory.add(at).as_ptr(), from.len()) }
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(at, &mut bytes);
        bytes
    }

    /// Assembles the parts of the request in `buffer` and returns the message's length.
    fn message(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = u32::from_ne_bytes(self.number(0)) as usize;
        let payload = u32::from_ne_bytes(self.number(PAYLOAD_BYTES_AT)) as usize;
        let operation = len.checked_sub(IN_HEADER_BYTES + payload);
        let operation =
            operation.filter(|&bytes| bytes <= TRANSPORT_AT - OPERATION_AT && payload <= self.payload_bytes);
        let (Some(operation), Some(message)) = (operation, buffer.get_mut(..len)) else {
            let told = format!("a request of {len} bytes, {payload} of them behind the headers");
            return Err(io::Error::new(io::ErrorKind::InvalidData, told));
        };
        let (header, rest) = message.split_at_mut(IN_HEADER_BYTES);
        let (head, tail) = rest.split_at_mut(operation);
        self.read(0, header);
        self.read(OPERATION_AT, head);
        self.read(PAYLOAD_AT, tail);
        Ok(len)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: this is the whole map made in `new`. The ring that refers to it was closed before
        // (field order in `FuseRing`, which holds the slots until then). Commands complete only in
        // calls of the ring's owner, and no more such calls happen.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), PAYLOAD_AT + self.payload_bytes) };
    }
}

/// A request that awaits its answer: its number, and the commit id for its answer.
type Waiting = (u64, u64);

struct Slots {
    slots: Vec<Slot>,
    /// The unanswered request of each slot.
    waiting: Mutex<Vec<Option<Waiting>>>,
}

// SAFETY: the pointers in the slots refer to memory that the slots own, and nothing in them is
// bound to a thread. One thread at a time uses a slot's memory: the ring's owner until the request
// in the slot awaits its answer; then the thread that took it from `waiting` under the lock, until
// it gives the slot to the owner as an `Answer`.
unsafe impl Send for Slots {}
// SAFETY: the same.
unsafe impl Sync for Slots {}

/// An answer that lies in its slot, to be submitted by the ring's owner.
#[derive(Debug)]
pub struct Answer {
    slot: usize,
    commit_id: u64,
}

/// Accepts answers from any thread.
#[derive(Clone)]
pub struct Answers(Arc<Slots>);

impl Answers {
    /// Writes the answer to a request, given in pieces, into the request's slot, where the kernel
    /// will read it.
    pub fn fill(&self, pieces: &[IoSlice<'_>]) -> io::Result<Answer> {
        let whole = || io::Error::new(io::ErrorKind::InvalidInput, "an answer without a header");
        let (header, first) =
            pieces.first().and_then(|piece| piece.split_at_checked(OUT_HEADER_BYTES)).ok_or_else(whole)?;
        let unique = u64::from_ne_bytes(header[UNIQUE_AT..].try_into().expect("eight bytes"));
        let payload: usize = first.len() + pieces[1..].iter().map(|piece| piece.len()).sum::<usize>();
        let (slot, commit_id) = {
            let mut waiting = self.0.waiting.lock();
            let waits = |waiting: &Option<Waiting>| waiting.is_some_and(|(other, _)| other == unique);
            let slot = waiting.iter().position(waits).ok_or(io::ErrorKind::NotFound)?;
            if payload > self.0.slots[slot].payload_bytes {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "an answer longer than its slot"));
            }
            let (_, commit_id) = waiting[slot].take().expect("found by it");
            (slot, commit_id)
        };
        let to = &self.0.slots[slot];
        to.write(0, header);
        to.write(PAYLOAD_BYTES_AT, &(payload as u32).to_ne_bytes());
        let mut at = PAYLOAD_AT;
        for piece in [first].into_iter().chain(pieces[1..].iter().map(|piece| &**piece)) {
            to.write(at, piece);
            at += piece.len();
        }
        Ok(Answer { slot, commit_id })
    }
}

/// Ends the wait of the ring's owner, from any thread.
#[derive(Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub fn wake(&self) {
        // If the write fails, the count is at its maximum, which also wakes the owner.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Outcome of [`FuseRing::take`].
#[derive(Debug)]
pub enum Taken {
    /// A message of this many bytes.
    Request(usize),
    Woken,
    /// The kernel lacks something for now, and the call will be repeated. Reported once for each
    /// row of failures.
    Delayed(io::Error),
    /// No slot is left: the connection ended, or the kernel refused all slots for the given reason.
    Ended(Option<io::Error>),
}

/// A queue and its slots.
pub struct FuseRing {
    // Declared before the slots, so that the ring is closed before their memory is freed.
    ring: IoUring<Entry128, cqueue::Entry>,
    slots: Arc<Slots>,
    waker: Waker,
    /// The connection, and the number of this queue.
    device: Option<(OwnedFd, u16)>,
    /// Slots with a request that was not taken yet.
    ready: VecDeque<usize>,
    /// Completions that were not examined yet.
    done: Vec<(u64, i32)>,
    /// Slots that the kernel has not given up.
    live: usize,
    pause: Pause,
    refused: Option<io::Error>,
    /// The connection has ended.
    is_over: bool,
}

impl FuseRing {
    /// Creates a ring with this many slots, for requests and answers of up to `payload_bytes`
    /// besides their headers. Memory is taken as it is used.
    pub fn new(slots: usize, payload_bytes: usize) -> io::Result<FuseRing> {
        let entries = (slots as u32 + 1).next_power_of_two();
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        let ring = builder.setup_single_issuer().setup_defer_taskrun().setup_r_disabled().build(entries)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let waiting = Mutex::new(vec![None; slots]);
        let slots = (0..slots).map(|_| Slot::new(payload_bytes)).collect::<io::Result<_>>()?;
        Ok(FuseRing {
            ring,
            slots: Arc::new(Slots { slots, waiting }),
            waker: Waker(Arc::new(wake)),
            device: None,
            ready: VecDeque::new(),
            done: Vec::new(),
            live: 0,
            pause: Pause::default(),
            refused: None,
            is_over: false,
        })
    }

    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    pub fn answers(&self) -> Answers {
        Answers(self.slots.clone())
    }

    /// Gives the slots to queue `number` of a connection. The calling thread becomes the owner.
    pub fn start(&mut self, connection: BorrowedFd<'_>, number: u16) -> io::Result<()> {
        let device = connection.try_clone_to_owned()?;
        self.ring.submitter().register_enable_rings()?;
        for slot in 0..self.slots.slots.len() {
            let mut entry = command(&device, REGISTER, number, 0, slot);
            let ranges = self.slots.slots[slot].ranges.as_ptr() as u64;
            patch(&mut entry, ranges, 2);
            self.push(&entry)?;
        }
        self.live = self.slots.slots.len();
        self.device = Some((device, number));
        self.listen()?;
        self.submit()
    }

    /// Starts a poll for the waker.
    fn listen(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(Fd(self.waker.0.as_raw_fd()), 1).build().user_data(WOKEN);
        self.push(&poll.into())
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: the entry is complete. The slots' ranges and memory, to which it points, outlive
        // the ring.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit()?;
        }
        Ok(())
    }

    /// Submits all queued entries without waiting for a completion.
    fn submit(&mut self) -> io::Result<()> {
        while let Some(error) = self.enter(0)? {
            self.pause.after(error)?;
        }
        Ok(())
    }

    /// Submits the queued answers, and waits for a request or for the waker.
    pub fn take(&mut self, buffer: &mut [u8]) -> io::Result<Taken> {
        loop {
            if let Some(slot) = self.ready.pop_front() {
                // Submit queued answers first: none of them waits for the work on the next request.
                if !self.ring.submission().is_empty() {
                    self.submit()?;
                }
                let from = &self.slots.slots[slot];
                let len = from.message(buffer)?;
                let (unique, commit_id) = (from.number(UNIQUE_AT), from.number(COMMIT_ID_AT));
                let waiting = (u64::from_ne_bytes(unique), u64::from_ne_bytes(commit_id));
                self.slots.waiting.lock()[slot] = Some(waiting);
                return Ok(Taken::Request(len));
            }
            if self.live == 0 {
                return Ok(Taken::Ended(self.refused.take().filter(|_| !self.is_over)));
            }
            // If the last submission also brought completions, handle those instead of waiting.
            let delayed = if self.done.is_empty() { self.enter(1)? } else { None };
            if self.collect()? {
                return Ok(Taken::Woken);
            }
            // Pause only after handling completions, which may free the room that the kernel
            // lacked.
            if let (Some(error), true) = (delayed, self.ready.is_empty())
                && self.pause.after(error)?
            {
                return Ok(Taken::Delayed(error.into()));
            }
        }
    }

    /// Submits all queued entries, and waits for this many completions. Returns an error that may
    /// pass, after collecting the completions so far, which makes room.
    fn enter(&mut self, completions: usize) -> io::Result<Option<Errno>> {
        // Without this flag the kernel counts an idle queue as waiting for a disk. All statistics
        // would then show a processor that is never idle and a machine under I/O pressure.
        let quiet = if self.ring.params().is_feature_no_iowait() { ENTER_NO_IOWAIT } else { 0 };
        // While pausing, this also flushes completions that found no room.
        let flags = if completions > 0 || self.pause.is_on() { ENTER_GETEVENTS | quiet } else { 0 };
        let outcome = loop {
            let count = self.ring.submission().len() as u32;
            // SAFETY: this system call takes only numbers. The memory to which the submitted
            // entries point outlives the ring.
            let entered =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, completions as u32, flags, None) };
            match entered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
                Err(Errno::INTR) => {}
                outcome => break outcome,
            }
        };
        self.done.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        match outcome {
            Ok(_) => {
                self.pause = Pause::default();
                Ok(None)
            }
            // `Pause` decides whether the error may pass.
            Err(error) => Ok(Some(error)),
        }
    }

    /// Handles the collected completions. Returns true if the waker fired.
    fn collect(&mut self) -> io::Result<bool> {
        let mut is_woken = false;
        for (what, result) in std::mem::take(&mut self.done) {
            if what == WOKEN {
                let _ = rustix::io::read(&*self.waker.0, &mut [0; 8][..]);
                self.listen()?;
                is_woken = true;
            } else if result < 0 {
                self.live -= 1;
                let error = io::Error::from_raw_os_error(-result);
                let is_end =
                    [Errno::NOTCONN, Errno::CANCELED, Errno::NODEV].iter().any(|e| e.raw_os_error() == -result);
                match is_end {
                    true => self.is_over = true,
                    false => self.refused = Some(error),
                }
            } else {
                self.ready.push_back(what as usize);
            }
        }
        Ok(is_woken)
    }

    /// Queues an answer. The next [`FuseRing::take`] submits it.
    pub fn put(&mut self, answer: Answer) -> io::Result<()> {
        let (device, queue) = self.device.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let entry = command(device, COMMIT_AND_FETCH, *queue, answer.commit_id, answer.slot);
        self.push(&entry)
    }
}

/// Returns an entry with `fuse_uring_cmd_req` as its command.
fn command(device: &OwnedFd, operation: u32, queue: u16, commit_id: u64, slot: usize) -> Entry128 {
    let mut request = [0; 80];
    request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    request[16..18].copy_from_slice(&queue.to_ne_bytes());
    let entry = opcode::UringCmd80::new(Fd(device.as_fd().as_raw_fd()), operation).cmd(request);
    entry.build().user_data(slot as u64)
}

/// Sets `addr` and `len` of an entry, which the crate does not set for commands.
fn patch(entry: &mut Entry128, address: u64, len: u32) {
    const { assert!(size_of::<Entry128>() == 128) };
    let bytes = std::ptr::from_mut(entry).cast::<u8>();
    // SAFETY: an entry is `struct io_uring_sqe` of 128 bytes (asserted), with `addr` at 16 and
    // `len` at 24, both aligned plain numbers.
    unsafe {
        bytes.add(16).cast::<u64>().write(address);
        bytes.add(24).cast::<u32>().write(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a slot with a request in it, as the kernel lays it out.
    fn slot(len: u32, operation: &[u8], payload: &[u8], said: u32) -> Slot {
        let slot = Slot::new(8192).unwrap();
        let mut header = [7; IN_HEADER_BYTES];
        header[..4].copy_from_slice(&len.to_ne_bytes());
        slot.write(0, &header);
        slot.write(OPERATION_AT, operation);
        slot.write(PAYLOAD_BYTES_AT, &said.to_ne_bytes());
        slot.write(PAYLOAD_AT, payload);
        slot
    }

    #[test]
    fn a_request_is_put_together_and_one_that_does_not_fit_is_refused() {
        let mut buffer = [0; 9000];
        let len = slot(40 + 5 + 3, b"opera", b"abc", 3).message(&mut buffer).unwrap();
        assert_eq!((&buffer[4..40], &buffer[40..len]), (&[7; 36][..], &b"operaabc"[..]));
        assert_eq!(slot(40, b"", b"", 0).message(&mut buffer).unwrap(), 40);
        for (len, said) in [(39, 0), (40, 1), (40 + 129, 0), (40 + 8193, 8193), (u32::MAX, 8192), (40, u32::MAX)] {
            assert!(slot(len, b"", b"", said).message(&mut buffer).is_err(), "{len}, {said}");
        }
        assert!(slot(48, b"opera", b"abc", 3).message(&mut buffer[..47]).is_err());
    }

    #[test]
    fn a_ring_is_woken_ends_without_slots_and_takes_no_answer_that_nobody_waits_for() {
        let mut ring = FuseRing::new(2, 8192).unwrap();
        let mut answer = [0; OUT_HEADER_BYTES];
        answer[UNIQUE_AT] = 9;
        let answers = ring.answers();
        assert!(answers.fill(&[IoSlice::new(&answer)]).is_err());
        assert!(answers.fill(&[IoSlice::new(&answer[..15])]).is_err());
        // An awaited answer is taken once, and only if it fits its slot.
        ring.slots.waiting.lock()[1] = Some((9, 77));
        assert!(answers.fill(&[IoSlice::new(&answer), IoSlice::new(&[1; 8193])]).is_err());
        let filled = answers.fill(&[IoSlice::new(&answer), IoSlice::new(b"abc"), IoSlice::new(b"de")]).unwrap();
        assert_eq!((filled.slot, filled.commit_id), (1, 77));
        assert!(answers.fill(&[IoSlice::new(&answer)]).is_err());
        let to = &ring.slots.slots[1];
        assert_eq!((to.number(PAYLOAD_AT), to.number(PAYLOAD_BYTES_AT)), (*b"abcde", 5u32.to_ne_bytes()));
        let waker = ring.waker();
        waker.wake();
        // No FUSE connection: the commands are refused, with a reason.
        let file = tempfile::tempfile().unwrap();
        ring.start(file.as_fd(), 0).unwrap();
        let (mut woken, mut buffer) = (0, [0; 100]);
        loop {
            match ring.take(&mut buffer).unwrap() {
                Taken::Woken | Taken::Delayed(_) => woken += 1,
                Taken::Ended(reason) => break assert!(reason.is_some()),
                Taken::Request(_) => panic!(),
            }
        }
        assert_eq!(woken, 1);
    }
}
