//! Polls a socket briefly before sleeping on it.
//!
//! A client that waits for each answer sends its next request within microseconds. Putting the
//! thread to sleep and waking it takes several times as long. Owns: when polling pays
//! ([`BusyPoll`]). Rules: each watch in vain makes the next ones rarer, down to one wait in a
//! thousand, so that a connection that is idle, or whose requests do not depend on answers, costs
//! nothing. Other threads run between two polls, and on a single processor no thread polls. Left
//! out: connections under TLS, whose records cost more than a wake-up.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::channel::Channel;

/// Longest watch: longer than a client needs to take an answer and ask again, but no longer than a
/// wake-up takes.
const MOMENT: Duration = Duration::from_micros(40);
/// Maximum waits skipped after many watches in vain.
const RARELY: u32 = 1023;

pub(crate) struct BusyPoll {
    /// Waits still to pass without a watch.
    skip: u32,
    /// Waits that the next watch in vain will skip.
    backoff: u32,
}

impl BusyPoll {
    /// `None` where watching cannot help.
    pub(crate) fn new(channel: &Channel) -> Option<BusyPoll> {
        let several = thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
        (several && !channel.is_tls()).then_some(BusyPoll { skip: 0, backoff: 0 })
    }

    /// Receives bytes that come within a moment, if this is the time to watch.
    pub(crate) fn recv(&mut self, channel: &Channel, out: &mut [u8]) -> io::Result<Option<usize>> {
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(None);
        }
        // Bytes that have arrived already say nothing about whether watching pays.
        if let Some(received) = channel.recv_now(out)? {
            return Ok(Some(received));
        }
        let begun = Instant::now();
        while begun.elapsed() < MOMENT {
            thread::yield_now();
            if let Some(received) = channel.recv_now(out)? {
                self.backoff /= 2;
                return Ok(Some(received));
            }
        }
        self.backoff = (2 * self.backoff + 1).min(RARELY);
        self.skip = self.backoff;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::channel::Socket;

    #[test]
    fn watching_in_vain_becomes_rare_and_pays_again_later() {
        let (mut there, here) = UnixStream::pair().unwrap();
        let channel = Channel::new(Socket::Unix(here));
        let mut watch = BusyPoll { skip: 0, backoff: 0 };
        let mut out = [0; 8];
        let mut watches = 0;
        for _ in 0..10_000 {
            watches += u32::from(watch.skip == 0);
            assert_eq!(watch.recv(&channel, &mut out).unwrap(), None);
        }
        assert!(watches < 30, "{watches} of 10,000");
        // The next watch comes in time, and finds the bytes.
        io::Write::write_all(&mut there, b"request").unwrap();
        let found = (0..=RARELY).find_map(|_| watch.recv(&channel, &mut out).unwrap());
        assert_eq!((found, &out[..7]), (Some(7), &b"request"[..]));
        drop(there);
        assert_eq!((0..=RARELY).find_map(|_| watch.recv(&channel, &mut out).unwrap()), Some(0), "the end is seen");
    }
}
