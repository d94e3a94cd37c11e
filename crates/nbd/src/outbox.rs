//! The sending side of a connection: frames from any thread, in order, without a hand-over unless
//! it is needed.
//!
//! The pushing thread sends its frame and any pushed meanwhile, as long as the socket takes them at
//! once. The rest is left to the connection's writer thread, so that no other thread ever waits for
//! a slow peer. Frames pushed by a receiving thread, for any connection, are held until that thread
//! is about to wait, so that one system call answers or forwards a batch of requests. Such a thread
//! calls [`flush_held`] before anything that waits. (Rejected: always handing over to the writer
//! costs a thread switch per request, half the speed at depth 1. Sending from the receiving thread
//! alone would wait for slow devices and slow peers alike.)
//!
//! Frames can have a cost: `acquire` waits until the costs taken and not yet sent are within the
//! connection's budget, and those of all connections within the server's (`pool`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::channel::{Channel, WhenFull};
use crate::pool::Pool;
use crate::wire::transmission::Head;

/// One message.
#[derive(Default)]
pub(crate) struct Frame {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    /// Handed back with the body; 0 if it need not be handed back.
    pub(crate) tag: u64,
    /// Cost that `acquire` took for it (bytes).
    pub(crate) cost: usize,
}

/// Receives the tag and body of each frame that was sent or never will be.
pub(crate) type Returned = Box<dyn Fn(u64, Vec<u8>) + Send + Sync>;

#[derive(Default)]
struct State {
    queue: VecDeque<Frame>,
    /// A thread is in `pump`, or the writer has been told to enter it.
    sending: bool,
    /// The writer must go on where another thread stopped.
    backlog: bool,
    closed: bool,
    failure: Option<(io::ErrorKind, String)>,
    used: usize,
}

/// Set while the other side reads, or sends, nothing.
#[derive(Default)]
struct Stalls {
    reading: AtomicBool,
    sending: Arc<AtomicBool>,
}

/// Frames being sent. They belong to the sending thread.
#[derive(Default)]
struct Sending {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame already sent.
    sent: usize,
    plain: Vec<u8>,
    records: Vec<u8>,
    records_sent: usize,
}

pub(crate) struct Outbox {
    channel: Arc<Channel>,
    budget: usize,
    pool: Option<Arc<Pool>>,
    /// How long the other side may read nothing. A system call waits no longer than that.
    stalled: Duration,
    stalls: Stalls,
    returned: Returned,
    state: Mutex<State>,
    /// The writer waits for a backlog.
    work: Condvar,
    /// Others wait for budget, or for everything to be sent.
    room: Condvar,
    sending: Mutex<Sending>,
}

/// Frames sent by one system call: two slices each, well below the kernel's 1024.
const FRAMES_AT_ONCE: usize = 64;
/// Bytes encrypted before they are sent.
const SEAL_BYTES: usize = 256 << 10;
/// System calls that a thread makes for others before the writer takes over.
const ROUNDS_MAX: usize = 32;

thread_local! {
    /// Connections whose frames this thread holds; `None` unless it receives.
    static HELD: RefCell<Option<Vec<Arc<Outbox>>>> = const { RefCell::new(None) };
}

/// Makes the calling thread a receiving one: from now on the frames it pushes wait for [`flush_held`].
pub(crate) fn hold_on_this_thread() {
    HELD.set(Some(Vec::new()));
    // Needed by a device that sends requests to another one and waits for it.
    shoal_media::block::before_this_thread_waits(flush_held);
}

/// Sends the frames that the calling thread holds, until there are none. A request that was
/// answered before its buffer was back completes while the frames are being sent, and its
/// completion may push more frames, for other connections.
pub(crate) fn flush_held() {
    while let Some(held) =
        HELD.with_borrow_mut(|held| held.as_mut().filter(|held| !held.is_empty()).map(std::mem::take))
    {
        held.iter().for_each(|outbox| outbox.flush());
    }
}

impl Outbox {
    pub(crate) fn new(channel: Arc<Channel>, budget: usize, returned: Returned) -> Outbox {
        Outbox {
            channel,
            budget,
            pool: None,
            stalled: Duration::ZERO,
            stalls: Stalls::default(),
            returned,
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            sending: Mutex::default(),
        }
    }

    /// Makes this the outbox of one of a server's connections, whose client may read nothing for
    /// `stalled`.
    pub(crate) fn of_server(mut self, pool: Arc<Pool>, stalled: Duration) -> Arc<Outbox> {
        self.pool = Some(pool.clone());
        self.stalled = stalled;
        let outbox = Arc::new(self);
        pool.join(Arc::downgrade(&outbox));
        outbox
    }

    /// Returns the flag that the receiving side sets while a request is half sent and nothing
    /// comes.
    pub(crate) fn sending_stalls(&self) -> Arc<AtomicBool> {
        self.stalls.sending.clone()
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.stalls.reading.load(Ordering::Relaxed) || self.stalls.sending.load(Ordering::Relaxed)
    }

    /// Cost acquired and not yet given back (bytes).
    pub(crate) fn used(&self) -> usize {
        self.state.lock().used
    }

    /// Ends a connection whose client makes no progress, because other clients need the memory it holds.
    pub(crate) fn end_stalled(&self) {
        self.fail(io::Error::new(io::ErrorKind::TimedOut, "the other side makes no progress, and others wait"));
    }

    /// Waits until `cost` fits the budget.
    pub(crate) fn acquire(&self, cost: usize) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut holding = true;
        let mut begun = None;
        loop {
            if let Some((kind, why)) = &state.failure {
                return Err(io::Error::new(*kind, why.clone()));
            }
            let fits = state.used == 0 || state.used + cost <= self.budget;
            if fits && self.pool.as_ref().is_none_or(|pool| pool.try_take(cost)) {
                state.used += cost;
                return Ok(());
            }
            // The frames held back may be the ones that use up the budget.
            if !state.queue.is_empty() && !state.sending {
                state.sending = true;
                MutexGuard::unlocked(&mut state, || self.pump(WhenFull::Return));
                continue;
            }
            // Or the budget waits for answers to frames that are held for other connections.
            if std::mem::take(&mut holding) {
                MutexGuard::unlocked(&mut state, flush_held);
                continue;
            }
            match &self.pool {
                Some(pool) if fits => {
                    let begun = *begun.get_or_insert_with(Instant::now);
                    MutexGuard::unlocked(&mut state, || pool.wait(begun));
                }
                _ => self.room.wait(&mut state),
            }
        }
    }

    /// Gives back a cost that `acquire` took.
    fn release(&self, state: &mut State, cost: usize) {
        state.used -= cost;
        self.room.notify_all();
        if let Some(pool) = &self.pool {
            pool.give(cost);
        }
    }

    /// Sends a frame, now or soon. After a failure it is handed back at once.
    pub(crate) fn push(self: &Arc<Outbox>, frame: Frame) {
        let mut state = self.state.lock();
        if state.failure.is_some() || state.closed {
            self.release(&mut state, frame.cost);
            drop(state);
            return (self.returned)(frame.tag, frame.body);
        }
        state.queue.push_back(frame);
        if state.sending || self.is_held() {
            return;
        }
        state.sending = true;
        drop(state);
        self.pump(WhenFull::Return);
    }

    /// Leaves sending to the calling thread's next [`flush_held`], if it is a receiving thread.
    fn is_held(self: &Arc<Outbox>) -> bool {
        HELD.with_borrow_mut(|held| {
            let Some(held) = held else { return false };
            if !held.iter().any(|other| Arc::ptr_eq(other, self)) {
                held.push(self.clone());
            }
            true
        })
    }

    /// Sends the frames held back.
    pub(crate) fn flush(&self) {
        let mut state = self.state.lock();
        if state.sending || state.failure.is_some() {
            return;
        }
        if state.queue.is_empty() && !self.channel.wants_to_send() {
            return;
        }
        state.sending = true;
        drop(state);
        self.pump(WhenFull::Return);
    }

    /// Waits until everything acquired and pushed is sent or cannot be sent.
    pub(crate) fn drain(&self) {
        flush_held();
        self.flush();
        let mut state = self.state.lock();
        while state.used > 0 || state.failure.is_none() && (state.sending || !state.queue.is_empty()) {
            if !state.queue.is_empty() && !state.sending {
                state.sending = true;
                MutexGuard::unlocked(&mut state, || self.pump(WhenFull::Return));
                continue;
            }
            self.room.wait(&mut state);
        }
    }

    /// Stops taking frames and ends the writer. TLS sends its closing message if the peer still
    /// listens.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        let polite = !state.closed && state.failure.is_none() && !state.sending;
        state.closed = true;
        self.work.notify_all();
        drop(state);
        if polite && self.channel.is_tls() {
            let mut records = Vec::new();
            // Try once without waiting: a peer that does not read needs no farewell.
            if self.channel.seal_farewell(&mut records).is_ok() {
                let _ = self.channel.send_raw(&[IoSlice::new(&records)], WhenFull::Return);
            }
        }
    }

    pub(crate) fn failure(&self) -> Option<(io::ErrorKind, String)> {
        self.state.lock().failure.clone()
    }

    /// The writer thread: sends frames that other threads could not send without waiting.
    pub(crate) fn run_writer(&self) {
        let mut state = self.state.lock();
        loop {
            if state.backlog {
                state.backlog = false;
                MutexGuard::unlocked(&mut state, || self.pump(WhenFull::Wait));
            } else if state.closed {
                return;
            } else {
                self.work.wait(&mut state);
            }
        }
    }

    /// Sends until nothing is left. The caller has set `sending`. It is cleared here, or stays set
    /// for the writer.
    fn pump(&self, when_full: WhenFull) {
        let waits = when_full == WhenFull::Wait;
        let mut sending = self.sending.lock();
        let mut rounds = 0;
        let mut progress = waits.then(Instant::now);
        loop {
            if sending.is_empty() && !self.next_batch(&mut sending) {
                return;
            }
            rounds += 1;
            match self.send_some(&mut sending, when_full) {
                Ok(()) if waits => {
                    progress = Some(Instant::now());
                    self.stalls.reading.store(false, Ordering::Relaxed);
                }
                Ok(()) if rounds < ROUNDS_MAX => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && progress.is_some_and(|progress| progress.elapsed() < self.stalled) =>
                {
                    self.stalls.reading.store(true, Ordering::Relaxed);
                }
                Err(error) if waits || error.kind() != io::ErrorKind::WouldBlock => {
                    drop(sending);
                    return self.fail(error);
                }
                _ => {
                    self.state.lock().backlog = true;
                    self.work.notify_one();
                    return;
                }
            }
        }
    }

    /// Takes the frames pushed meanwhile. If there are none, sending ends.
    fn next_batch(&self, sending: &mut Sending) -> bool {
        let mut state = self.state.lock();
        if state.queue.is_empty() && !self.channel.wants_to_send() {
            state.sending = false;
            self.room.notify_all();
            return false;
        }
        std::mem::swap(&mut state.queue, &mut sending.frames);
        true
    }

    fn send_some(&self, sending: &mut Sending, when_full: WhenFull) -> io::Result<()> {
        if self.channel.is_tls() {
            return self.send_sealed(sending, when_full);
        }
        let mut slices = [IoSlice::new(&[]); 2 * FRAMES_AT_ONCE];
        let mut count = 0;
        for (at, frame) in sending.frames.iter().take(FRAMES_AT_ONCE).enumerate() {
            let skip = if at == 0 { sending.sent } else { 0 };
            let head = frame.head.bytes();
            for part in [&head[skip.min(head.len())..], &frame.body[skip.saturating_sub(head.len())..]] {
                if !part.is_empty() {
                    slices[count] = IoSlice::new(part);
                    count += 1;
                }
            }
        }
        let mut sent = sending.sent + self.channel.send_raw(&slices[..count], when_full)?;
        while let Some(frame) = sending.frames.pop_front() {
            let len = frame.head.bytes().len() + frame.body.len();
            if sent < len {
                sending.frames.push_front(frame);
                break;
            }
            sent -= len;
            self.hand_back(frame);
        }
        sending.sent = sent;
        Ok(())
    }

    fn send_sealed(&self, sending: &mut Sending, when_full: WhenFull) -> io::Result<()> {
        if sending.records_sent == sending.records.len() {
            sending.records.clear();
            sending.plain.clear();
            sending.records_sent = 0;
            // One write for many frames: each write begins a record of its own.
            while sending.plain.len() < SEAL_BYTES {
                let Some(frame) = sending.frames.pop_front() else { break };
                sending.plain.extend_from_slice(frame.head.bytes());
                sending.plain.extend_from_slice(&frame.body);
                self.hand_back(frame);
            }
            self.channel.seal(&sending.plain, &mut sending.records)?;
        }
        let rest = &sending.records[sending.records_sent..];
        if !rest.is_empty() {
            sending.records_sent += self.channel.send_raw(&[IoSlice::new(rest)], when_full)?;
        }
        Ok(())
    }

    fn hand_back(&self, frame: Frame) {
        if frame.cost > 0 {
            self.release(&mut self.state.lock(), frame.cost);
        }
        (self.returned)(frame.tag, frame.body);
    }

    /// Ends the connection, since nothing more can be sent.
    fn fail(&self, error: io::Error) {
        let stalled = error.kind() == io::ErrorKind::WouldBlock;
        let kind = if stalled { io::ErrorKind::TimedOut } else { error.kind() };
        let why = if stalled { "the other side reads nothing".to_string() } else { error.to_string() };
        let unsent = {
            let mut sending = self.sending.lock();
            let mut state = self.state.lock();
            state.failure = Some((kind, why));
            state.sending = false;
            let mut unsent = std::mem::take(&mut sending.frames);
            unsent.append(&mut state.queue);
            *sending = Sending::default();
            unsent
        };
        for frame in unsent {
            self.hand_back(frame);
        }
        self.room.notify_all();
        self.channel.shutdown();
    }
}

impl Sending {
    fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.records_sent == self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::channel::Socket;

    fn outbox(returned: impl Fn(u64, Vec<u8>) + Send + Sync + 'static) -> (Arc<Outbox>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        (Arc::new(Outbox::new(Arc::new(Channel::new(Socket::Unix(here))), usize::MAX, Box::new(returned))), there)
    }

    fn frame(body: &[u8]) -> Frame {
        Frame { body: body.to_vec(), ..Frame::default() }
    }

    /// Runs a test on a thread of its own, since holding frames back is a property of a thread.
    fn receiving_thread(run: impl FnOnce() + Send + 'static) {
        let run = || {
            hold_on_this_thread();
            run();
        };
        thread::spawn(run).join().unwrap();
    }

    #[test]
    fn frames_of_a_receiving_thread_wait_for_a_batch() {
        receiving_thread(|| {
            let (outbox, mut there) = outbox(|_, _| ());
            let mut received = [0; 16];
            outbox.push(frame(b"one "));
            outbox.push(frame(b"two"));
            assert_eq!(there.read(&mut received).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            flush_held();
            let len = there.read(&mut received).unwrap();
            assert_eq!(&received[..len], b"one two");
        });
    }

    #[test]
    fn what_a_sent_frame_brings_is_not_held_back() {
        receiving_thread(|| {
            let (answers, mut client) = outbox(|_, _| ());
            // Models a write that was already answered: once its buffer is back it is over, and its
            // completion answers a client.
            let (requests, _donor) = outbox(move |_, _| answers.push(frame(b"answer")));
            requests.push(frame(b"write"));
            flush_held();
            let mut received = [0; 16];
            let len = client.read(&mut received).expect("no thread sends it once this one sleeps");
            assert_eq!(&received[..len], b"answer");
        });
    }
}
