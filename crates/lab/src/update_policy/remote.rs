//! A disk behind a network, on a server that may have non-volatile memory.
//!
//! Owns: [`Remote`], its properties; [`Server`], the messages in transit and the blocks in the
//! server's memory. It is a block server like NBD, not the file server of the report: one message
//! for a request, one for its answer, with a separate link for each direction.
//! Rules: the server's disk takes requests in order of arrival. Non-volatile memory, like
//! PrestoServe's, answers a write when it has room. Its blocks go to the disk while nothing else
//! needs it, and alongside other requests when the memory is nearly full. Without room a write
//! waits for the disk, as it would without this memory. Rewriting a block that is in it takes no
//! further room.

use std::collections::{BTreeMap, VecDeque};

use crate::network::{Link, Network};

/// A message without data (bytes): the header of a request or of an answer.
const HEADER_BYTES: u64 = 64;
/// Share of the memory from which on its blocks go to the disk alongside other requests (percent).
const NEARLY_FULL: u64 = 75;

/// Properties of a remote disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remote {
    pub network: Network,
    /// Blocks of the server's non-volatile memory; 0 if it has none.
    pub memory_blocks: u64,
}

/// A request for the server's disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<T> {
    pub at: u64,
    pub is_read: bool,
    /// None if a block leaves the server's memory and nobody waits for it.
    pub tag: Option<T>,
}

/// The next event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<T> {
    /// The server's disk must carry out the request.
    Disk(Request<T>),
    /// The client has the answer.
    Answer(T),
}

enum Message<T> {
    Request(Request<T>),
    Answer(T),
}

/// A server with the messages to and from it.
pub struct Server<T> {
    remote: Remote,
    block_bytes: u64,
    to: Link,
    from: Link,
    /// Messages by time of arrival and number.
    messages: BTreeMap<(u64, u64), Message<T>>,
    number: u64,
    /// Blocks in memory that wait for the disk, first to last.
    kept: VecDeque<u64>,
    /// Blocks in memory that were handed to the disk.
    leaving: VecDeque<u64>,
}

impl<T: Copy> Server<T> {
    pub fn new(remote: Remote, block_bytes: u64) -> Server<T> {
        Server {
            remote,
            block_bytes,
            to: Link::new(remote.network),
            from: Link::new(remote.network),
            messages: BTreeMap::new(),
            number: 0,
            kept: VecDeque::new(),
            leaving: VecDeque::new(),
        }
    }

    fn post(&mut self, arrives_ns: u64, message: Message<T>) {
        self.number += 1;
        self.messages.insert((arrives_ns, self.number), message);
    }

    /// Sends a request to the server.
    pub fn send(&mut self, at: u64, is_read: bool, tag: T, now_ns: u64) {
        let bytes = HEADER_BYTES + if is_read { 0 } else { self.block_bytes };
        let (arrives_ns, _) = self.to.send(bytes, now_ns);
        self.post(arrives_ns, Message::Request(Request { at, is_read, tag: Some(tag) }));
    }

    fn answer(&mut self, is_read: bool, tag: T, now_ns: u64) {
        let bytes = HEADER_BYTES + if is_read { self.block_bytes } else { 0 };
        let (arrives_ns, _) = self.from.send(bytes, now_ns);
        self.post(arrives_ns, Message::Answer(tag));
    }

    /// Returns the arrival time of the next message (ns).
    pub fn next_ns(&self) -> Option<u64> {
        self.messages.first_key_value().map(|(&(at_ns, _), _)| at_ns)
    }

    /// Returns the next event up to `now_ns`.
    pub fn next(&mut self, now_ns: u64) -> Option<Event<T>> {
        while self.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let ((at_ns, _), message) = self.messages.pop_first()?;
            match message {
                Message::Answer(tag) => return Some(Event::Answer(tag)),
                Message::Request(request) if request.is_read || !self.keep(request.at) => {
                    return Some(Event::Disk(request));
                }
                Message::Request(Request { tag, .. }) => {
                    tag.into_iter().for_each(|tag| self.answer(false, tag, at_ns));
                    if self.used() * 100 >= self.remote.memory_blocks * NEARLY_FULL {
                        return self.leave().map(Event::Disk);
                    }
                }
            }
        }
        None
    }

    fn used(&self) -> u64 {
        (self.kept.len() + self.leaving.len()) as u64
    }

    /// Takes a written block into memory. Returns false if there is no room.
    fn keep(&mut self, at: u64) -> bool {
        if self.kept.contains(&at) {
            return true;
        }
        let has_room = self.used() < self.remote.memory_blocks;
        if has_room {
            self.kept.push_back(at);
        }
        has_room
    }

    /// Removes a block from the memory, for a disk that nothing else needs.
    pub fn leave(&mut self) -> Option<Request<T>> {
        let at = self.kept.pop_front()?;
        self.leaving.push_back(at);
        Some(Request { at, is_read: false, tag: None })
    }

    /// Handles a request that the disk has carried out.
    pub fn served(&mut self, request: Request<T>, now_ns: u64) {
        match request.tag {
            Some(tag) => self.answer(request.is_read, tag, now_ns),
            None => self.leaving.retain(|at| *at != request.at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Network = Network { latency_us: 1.0, mbit: 8.0 };

    fn server(memory_blocks: u64) -> Server<u32> {
        Server::new(Remote { network: FAST, memory_blocks }, 1000)
    }

    #[test]
    fn a_request_and_its_answer_take_their_time_on_the_network() {
        let mut server = server(0);
        server.send(5, true, 1, 0);
        let asked_ns = FAST.transfer_ns(HEADER_BYTES);
        assert_eq!((server.next(asked_ns - 1), server.next_ns()), (None, Some(asked_ns)));
        let request = Request { at: 5, is_read: true, tag: Some(1) };
        assert_eq!(server.next(asked_ns), Some(Event::Disk(request)));
        server.served(request, 1_000_000);
        let answered_ns = 1_000_000 + FAST.transfer_ns(HEADER_BYTES + 1000);
        assert_eq!((server.next(answered_ns - 1), server.next(answered_ns)), (None, Some(Event::Answer(1))));
    }

    #[test]
    fn memory_answers_writes_while_it_has_room_and_empties_itself() {
        let mut server = server(4);
        (0..6).for_each(|at| server.send(u64::from(at), false, at, 0));
        let mut events = vec![];
        while let Some(event) = server.next(u64::MAX) {
            events.push(event);
        }
        let answered = |tag: u32| events.contains(&Event::Answer(tag));
        assert!((0..4).all(answered) && !answered(4) && !answered(5), "{events:?}");
        let of_disk = |tag| events.iter().any(|event| matches!(event, Event::Disk(request) if request.tag == tag));
        assert!(
            of_disk(Some(4)) && of_disk(Some(5)) && of_disk(None),
            "what has no room, and what is to leave: {events:?}"
        );
        // Everything leaves once and makes room.
        let leaving = std::iter::from_fn(|| server.leave()).collect::<Vec<_>>();
        for event in &events {
            if let Event::Disk(request) = event {
                server.served(*request, 0);
            }
        }
        leaving.into_iter().for_each(|request| server.served(request, 0));
        assert_eq!((server.used(), server.leave()), (0, None));
        server.send(9, false, 9, 0);
        server.send(9, false, 10, 0);
        let all: Vec<_> = std::iter::from_fn(|| server.next(u64::MAX)).collect();
        assert!(all.contains(&Event::Answer(9)) && all.contains(&Event::Answer(10)) && server.used() == 1, "{all:?}");
    }
}
