//! The link's thread: it notices that a connection is lost, makes a new one, and repeats the
//! changes that the server may have lost.
//!
//! Rules: a new connection is used only after its server was recognised and all kept changes were
//! repeated, many at a time, in order where they overlap. Once a second the owner may check the
//! server.

use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use shoal_media::{BlockDevice, MediaError};

use super::again::{Again, Witness};
use super::{End, Refused, Shared};
use crate::client::{Client, ClientOptions, Lost};
use crate::clients::Claim;

pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Maximum number of kept changes in flight on a new connection.
const REPEATED_AT_ONCE: usize = 64;
/// No kept change is added while this many bytes of them are in flight.
const REPEATED_BYTES: u64 = 1 << 20;

impl Shared {
    pub(super) fn run(self: &Arc<Self>) {
        loop {
            let (client, ended) = {
                let mut state = self.state.lock();
                let next = Instant::now() + LOOK_EVERY;
                while !state.closing && state.client.is_some() && Instant::now() < next {
                    self.changed.wait_until(&mut state, next);
                }
                if state.closing {
                    drop(state);
                    return self.fail(&End::Closed);
                }
                if state.client.as_ref().is_some_and(|client| client.lost().is_some()) {
                    self.take_down(&mut state);
                }
                (state.client.clone(), std::mem::take(&mut state.ended))
            };
            drop(ended);
            match client {
                Some(client) => self.owner.look(&client),
                None => {
                    if let Err(end) = self.reconnect() {
                        self.fail(&end);
                        return self.owner.ended(&end);
                    }
                }
            }
        }
    }

    /// Tries to connect until that succeeds or the link is over.
    fn reconnect(self: &Arc<Self>) -> Result<(), End> {
        let mut why = String::from("closed by the server");
        loop {
            let deadline = {
                let mut state = self.state.lock();
                if state.closing {
                    return Err(End::Closed);
                }
                let since = state.waiting.iter().map(|operation| operation.started).min();
                let down = *state.down_since.get_or_insert_with(Instant::now);
                since.unwrap_or(down).min(down) + self.lost_after
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(End::Away { lost_after: self.lost_after, why });
            }
            match self.connect_again(left) {
                Ok(client) => {
                    let waiting = {
                        let mut state = self.state.lock();
                        state.client = Some(Arc::new(client));
                        state.generation += 1;
                        state.down_since = None;
                        std::mem::take(&mut state.waiting)
                    };
                    for operation in waiting {
                        self.start(operation, None);
                    }
                    return Ok(());
                }
                Err(Refused::Another(why)) => return Err(End::Another(why)),
                Err(Refused::TakenOver) => return Err(End::TakenOver),
                Err(Refused::Unreachable(cause)) => why = cause,
            }
            let mut state = self.state.lock();
            if !state.closing {
                self.changed.wait_for(&mut state, RETRY_AFTER.min(left));
            }
        }
    }

    fn connect_again(&self, left: Duration) -> Result<Client, Refused> {
        let (client_id, was_fenced) = {
            let state = self.state.lock();
            (state.client_id, state.is_fenced)
        };
        let options = ClientOptions {
            connect_timeout: left.min(self.client_options.connect_timeout),
            claim: client_id.map(|(client, epoch)| Claim::Again(client, epoch)),
            ..self.client_options.clone()
        };
        let client = Client::connect(&self.uri, &options).map_err(|error| match error.is_taken_over() {
            true => Refused::TakenOver,
            false => Refused::Unreachable(error.to_string()),
        })?;
        if was_fenced && !client.is_claimed() {
            return Err(Refused::Another("another server answers: it does not know clients".into()));
        }
        let found = client.geometry();
        if found.bytes != self.geometry.bytes || found.block_bytes > self.geometry.block_bytes {
            let (found, expected) = (found.bytes, self.geometry.bytes);
            return Err(Refused::Another(format!("another server answers: {found} bytes instead of {expected}")));
        }
        let (kept, written, witnesses) = {
            let state = self.state.lock();
            (state.kept.all(), state.written, state.witnesses.all())
        };
        witnesses.iter().try_for_each(|witness| ask(&client, witness))?;
        self.owner.recognise(&client, written)?;
        self.repeat(&client, &kept)?;
        Ok(client)
    }

    /// Repeats changes that the server may have lost: many at a time, in order where they overlap.
    fn repeat(&self, client: &Client, kept: &[Arc<Again>]) -> Result<(), Refused> {
        let (sender, receiver) = mpsc::channel();
        let mut in_flight: Vec<Range<u64>> = Vec::new();
        let finish = |in_flight: &mut Vec<Range<u64>>| {
            for _ in in_flight.drain(..) {
                let result: Result<Vec<u8>, MediaError> = receiver.recv().expect("its sender is kept");
                result.map_err(|error| match Lost::of(&error) {
                    Some(_) => Refused::Unreachable(error.to_string()),
                    None => Refused::Another(format!("a write could not be repeated: {error}")),
                })?;
            }
            Ok(())
        };
        for again in kept {
            if self.state.lock().closing {
                return Err(Refused::Unreachable("closed".into()));
            }
            let request = again.request();
            let (at, len) = request.range();
            let range = at..at + len;
            let overlaps = |other: &Range<u64>| range.start < other.end && other.start < range.end;
            let bytes: u64 = in_flight.iter().map(|other| other.end - other.start).sum();
            // All of these together get the time-out of one request.
            let full = in_flight.len() >= REPEATED_AT_ONCE || bytes >= REPEATED_BYTES;
            if full || in_flight.iter().any(overlaps) {
                finish(&mut in_flight)?;
            }
            let sender = sender.clone();
            let done = move |result| {
                // After an error, the other results are not received.
                let _ = sender.send(result);
            };
            client.submit(request, Box::new(done));
            in_flight.push(range);
        }
        finish(&mut in_flight)
    }
}

/// Checks that the server still has a sample of what was flushed.
fn ask(client: &Client, witness: &Witness) -> Result<(), Refused> {
    let is_there = witness.is_on(client).map_err(|error| Refused::Unreachable(error.to_string()))?;
    is_there.then_some(()).ok_or_else(|| {
        let at = witness.at;
        Refused::Another(format!("another export answers, or it has lost what was flushed (at byte {at})"))
    })
}
