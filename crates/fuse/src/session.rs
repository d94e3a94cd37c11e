//! The threads that serve a connection: INIT first, then a loop in each.
//!
//! Each thread has a buffer of its own, allocated once, and a channel of its own. A thread ends
//! when the connection does. If it ends with an error of its channel, or with a panic that does not
//! end the process (the command line makes sure that panics do), it ends the connection, too
//! (`breaker`). The session has ended when all threads have.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use shoal_life::Breaker;

use crate::channel::{Port, Reply};
use crate::counts::{self, Counts, RequestCount};
use crate::errno::Errno;
use crate::guard::{Guard, Reader};
use crate::lane::Lane;
use crate::protocol::{
    Agreed, BUFFER_BYTES_MIN, MESSAGE_ROOM_BYTES, Negotiation, Operation, Wanted, client, decode, negotiate,
};
use crate::service::{Next, Service};

/// Reads INIT, which the kernel sends first, and answers it.
pub(crate) fn handshake(port: &Arc<Port>, wanted: &Wanted) -> io::Result<Agreed> {
    let mut buffer = vec![0; buffer_bytes(wanted.write_bytes_max)];
    loop {
        let Some(len) = port.channel.receive(&mut buffer)? else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection ended before it began"));
        };
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let request =
            decode(&buffer[..len], &Agreed::default()).map_err(|_| invalid("the first message makes no sense"))?;
        let reply = Reply::to(&request, port, std::time::Instant::now());
        let Operation::Init(offered) = request.operation else {
            reply.error(Errno::IO);
            return Err(invalid("the first message is not INIT"));
        };
        match negotiate(&offered, wanted) {
            Negotiation::Agreed(agreed, answer) => {
                if !reply.value(&answer) {
                    return Err(invalid("the answer to INIT was not taken"));
                }
                return Ok(agreed);
            }
            Negotiation::Again(answer) => {
                reply.value(&answer);
            }
            Negotiation::Refused => {
                reply.error(Errno::PROTO);
                let (major, minor) = (offered.major, offered.minor);
                let told = format!("its version is {major}.{minor}, and 7.23 is needed; use Linux 3.15 or later");
                return Err(io::Error::new(io::ErrorKind::Unsupported, told));
            }
        }
    }
}

fn buffer_bytes(write_bytes_max: u32) -> usize {
    (write_bytes_max as usize + MESSAGE_ROOM_BYTES).max(BUFFER_BYTES_MIN)
}

/// How a thread gets its requests.
pub(crate) enum Way {
    /// From `/dev/fuse`, like all other threads, which the guard watches.
    Device(Arc<Port>, Option<Reader>),
    /// From a queue of io_uring.
    Queue(Arc<Port>, Lane),
    /// From `/dev/fuse` beside queues: the messages that queues do not carry.
    Beside(Arc<Port>, Lane),
    /// From `/dev/fuse` once a queue has ended.
    Behind(Arc<Port>, Lane),
}

impl Way {
    fn port(&self) -> &Arc<Port> {
        let (Way::Device(port, _) | Way::Queue(port, _) | Way::Beside(port, _) | Way::Behind(port, _)) = self;
        port
    }
}

/// Threads that serve one connection.
pub(crate) struct Threads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    guard: Option<Guard>,
    counts: RequestCounts,
}

impl Threads {
    /// Starts one thread for each way. If one cannot be started, the others go on until the
    /// connection ends.
    pub fn start(service: Service, ways: Vec<Way>, guard: Option<Guard>, breaker: &Breaker) -> io::Result<Threads> {
        let service = Arc::new(service);
        let counts = RequestCounts(ways.iter().map(|way| way.port().counts.clone()).collect());
        let mut threads = Vec::new();
        for (number, way) in ways.into_iter().enumerate() {
            let (service, breaker) = (service.clone(), breaker.clone());
            let builder = std::thread::Builder::new().name(format!("request-{number}"));
            threads.push(builder.spawn(move || breaker.watch(|| serve(&service, &way)))?);
        }
        Ok(Threads { threads, guard, counts })
    }

    pub fn counts(&self) -> RequestCounts {
        self.counts.clone()
    }

    /// Waits for the end of the connection. Returns the first error, if there was one.
    pub fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            let served = thread.join().unwrap_or_else(|_| Err(io::Error::other("a request thread panicked")));
            outcome = outcome.and(served);
        }
        drop(self.guard);
        outcome
    }
}

fn serve(service: &Service, way: &Way) -> io::Result<()> {
    // However this thread ends, its queue's requests may now come by the device, and other threads
    // must read the device.
    let _opened = match way {
        Way::Queue(_, lane) | Way::Beside(_, lane) => Some(OpensLane(lane)),
        _ => None,
    };
    if let Way::Behind(_, lane) = way {
        lane.wait();
    }
    let port = way.port();
    let mut buffer = vec![0; buffer_bytes(service.agreed.write_bytes_max)];
    let mut scratch = Vec::new();
    let (beside, reader) = match way {
        Way::Beside(_, lane) => (Some(lane), None),
        Way::Device(_, reader) => (None, reader.as_ref()),
        _ => (None, None),
    };
    if let Some(reader) = reader {
        reader.enter();
    }
    loop {
        if let Some(lane) = beside {
            lane.begin();
        }
        if let Some(reader) = reader {
            reader.begin();
        }
        let Some(len) = port.channel.receive(&mut buffer)? else { break };
        if let Some(reader) = reader
            && let Some(client) = client(&buffer[..len])
        {
            reader.took_from(client);
        }
        let next = service.serve(&buffer[..len], port, &mut scratch)?;
        if let Some(lane) = beside {
            lane.done();
        }
        match (next, beside) {
            (Next::Forgotten, Some(lane)) if service.requests.is_roomy() => lane.gather(),
            (Next::Request | Next::Forgotten, _) => {}
            (Next::End, _) => break,
        }
    }
    Ok(())
}

struct OpensLane<'a>(&'a Lane);

impl Drop for OpensLane<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// The requests of a mount so far, from any thread.
#[derive(Clone)]
pub struct RequestCounts(Vec<Arc<Counts>>);

impl RequestCounts {
    /// Counts by kind, the most frequent first. Kinds without requests are left out.
    pub fn report(&self) -> Vec<RequestCount> {
        counts::report(self.0.iter().map(|counts| &**counts))
    }
}
