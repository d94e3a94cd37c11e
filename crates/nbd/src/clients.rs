//! The client of an export: one at a time, and one connection of it at a time.
//!
//! A connection may name its client when it asks for contexts: `shoal:open=ID` to become the
//! client, `shoal:again=ID` to remain it after a connection broke, `shoal:seize=ID` to take the
//! export over, `shoal:ask=ID` to learn whether it could be opened, which changes nothing. `ID` is
//! 32 digits, optionally followed by `.` and 16 digits of an *epoch*. Other servers treat these as
//! unknown contexts.
//! Rules: before a connection that names a client transmits, every older connection that named one
//! is closed, and its requests are done or never will be (a *fence*). So a client may repeat the
//! requests it had in flight. A client keeps the export while it is connected, and for `KEPT` after
//! a connection broke; then another client may open it. A client that was followed by another one
//! is told so. Epochs come from the party that decides between servers: a client that comes again
//! with a higher epoch than the holder's became the client elsewhere, and becomes it here, too.
//! While there is a holder, connections that name no client change nothing. IDs with the same first
//! half belong to one lock, whose holder proves that other clients with such IDs are dead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::channel::Channel;

pub type ClientId = [u8; 16];

/// How long a client whose connection broke may take to come back before another client may have
/// its export.
const KEPT: Duration = Duration::from_secs(10);
/// Time for an older connection to finish the requests it received.
const FENCE: Duration = Duration::from_secs(8);
/// Part of the refusal of a client that was followed by another one.
pub const TAKEN_OVER: &str = "another client has taken this area over";

/// A connection's claim on the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Asks whether the export could be opened.
    Ask(ClientId, u64),
    Open(ClientId, u64),
    Again(ClientId, u64),
    Seize(ClientId, u64),
}

impl Claim {
    pub fn client(self) -> ClientId {
        self.parts().1
    }

    pub fn epoch(self) -> u64 {
        self.parts().2
    }

    fn parts(self) -> (&'static str, ClientId, u64) {
        match self {
            Claim::Ask(client, epoch) => ("ask", client, epoch),
            Claim::Open(client, epoch) => ("open", client, epoch),
            Claim::Again(client, epoch) => ("again", client, epoch),
            Claim::Seize(client, epoch) => ("seize", client, epoch),
        }
    }

    /// The context that expresses the claim.
    pub fn context(self) -> String {
        let (verb, client, epoch) = self.parts();
        let digits: String = client.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("shoal:{verb}={digits}.{epoch:016x}")
    }

    pub fn parse(context: &str) -> Option<Claim> {
        let (verb, rest) = context.strip_prefix("shoal:")?.split_once('=')?;
        let (digits, epoch) = rest.split_once('.').unwrap_or((rest, "0"));
        let epoch = u64::from_str_radix(epoch, 16).ok()?;
        if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut client = [0; 16];
        for (byte, pair) in client.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        match verb {
            "ask" => Some(Claim::Ask(client, epoch)),
            "open" => Some(Claim::Open(client, epoch)),
            "again" => Some(Claim::Again(client, epoch)),
            "seize" => Some(Claim::Seize(client, epoch)),
            _ => None,
        }
    }
}

struct Connection {
    number: u64,
    client: ClientId,
    /// Present once the connection's requests are accepted.
    channel: Option<Arc<Channel>>,
    /// The connection must be closed as soon as it has a channel.
    is_over: bool,
}

#[derive(Default)]
struct State {
    holder: Option<ClientId>,
    /// The highest epoch of any client.
    epoch: u64,
    /// When the holder's last connection broke.
    broke: Option<Instant>,
    connections: Vec<Connection>,
    last_number: u64,
}

/// The clients of one export.
#[derive(Default)]
pub struct Clients {
    state: Mutex<State>,
    changed: Condvar,
}

impl State {
    /// Returns whether the holder is connected or may come back.
    fn is_held(&self) -> bool {
        let connected = self.connections.iter().any(|connection| Some(connection.client) == self.holder);
        connected || self.broke.is_some_and(|broke| broke.elapsed() < KEPT)
    }

    /// Returns why this claim is refused, if it is.
    fn refusal(&self, claim: Claim) -> Option<String> {
        let (_, client, epoch) = claim.parts();
        let holder = self.holder.filter(|holder| *holder != client)?;
        match claim {
            Claim::Again(..) if epoch <= self.epoch => Some(TAKEN_OVER.into()),
            Claim::Ask(..) | Claim::Open(..) if self.is_held() && holder[..8] != client[..8] => {
                let kept_s = KEPT.as_secs();
                Some(format!(
                    "another client has this area open; stop it, or wait {kept_s} s if it was killed (`shoal serve \
                     --takeover` takes over the disk that it serves)"
                ))
            }
            Claim::Ask(..) | Claim::Open(..) | Claim::Again(..) | Claim::Seize(..) => None,
        }
    }
}

impl Clients {
    /// Fails if this claim would be refused. Changes nothing.
    pub(crate) fn ask(&self, claim: Claim) -> Result<(), String> {
        self.state.lock().refusal(claim).map_or(Ok(()), Err)
    }

    /// Returns whether a connection that names no client may change anything.
    pub(crate) fn may_write_unnamed(&self) -> bool {
        let state = self.state.lock();
        state.holder.is_none() || !state.is_held()
    }

    /// Admits a connection after all older ones have ended. An error says why it is refused.
    pub(crate) fn admit(self: &Arc<Self>, claim: Claim) -> Result<Ticket, String> {
        let client = claim.client();
        let mut state = self.state.lock();
        if let Some(why) = state.refusal(claim) {
            return Err(why);
        }
        state.holder = Some(client);
        state.epoch = state.epoch.max(claim.parts().2);
        state.broke = None;
        state.last_number += 1;
        let number = state.last_number;
        for connection in &mut state.connections {
            connection.is_over = true;
            connection.channel.iter().for_each(|channel| channel.shutdown());
        }
        state.connections.push(Connection { number, client, channel: None, is_over: false });
        let ticket = Ticket { clients: self.clone(), number, said_goodbye: false };
        let deadline = Instant::now() + FENCE;
        while state.connections.iter().any(|connection| connection.number < number) {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                drop(state);
                return Err("an older connection of this area does not end; try again".into());
            }
        }
        drop(state);
        Ok(ticket)
    }
}

/// A connection's place among the clients. Dropping it says that the connection's requests are
/// done.
pub(crate) struct Ticket {
    clients: Arc<Clients>,
    number: u64,
    pub(crate) said_goodbye: bool,
}

impl Ticket {
    /// Gives the connection its channel. Returns false if a newer connection has come meanwhile.
    pub(crate) fn attach(&self, channel: &Arc<Channel>) -> bool {
        let mut state = self.clients.state.lock();
        let own = state.connections.iter_mut().find(|connection| connection.number == self.number);
        own.is_some_and(|own| {
            own.channel = Some(channel.clone());
            !own.is_over
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.clients.state.lock();
        let Some(place) = state.connections.iter().position(|connection| connection.number == self.number) else {
            return;
        };
        let own = state.connections.swap_remove(place);
        if state.holder == Some(own.client) && !own.is_over {
            state.broke = (!self.said_goodbye).then(Instant::now);
        }
        drop(state);
        self.clients.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(lock: u8, client: u8) -> ClientId {
        let mut id = [client; 16];
        id[..8].fill(lock);
        id
    }

    #[test]
    fn claims_are_read_as_they_are_written_and_nothing_else_is_one() {
        for claim in [
            Claim::Ask(id(1, 1), 9),
            Claim::Open(id(1, 2), 0),
            Claim::Again(id(3, 4), 1),
            Claim::Seize(id(255, 0), u64::MAX),
        ] {
            assert_eq!(Claim::parse(&claim.context()), Some(claim));
        }
        let of_before = format!("shoal:open={}", "01".repeat(16));
        assert_eq!(Claim::parse(&of_before), Some(Claim::Open([1; 16], 0)));
        for text in ["shoal:pressure", "shoal:open=12", "base:open=00", "shoal:open=zz", "open="] {
            assert_eq!(Claim::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_client_keeps_its_export_until_it_says_goodbye_or_another_one_seizes_it() {
        let clients = Arc::new(Clients::default());
        let mut first = clients.admit(Claim::Open(id(1, 1), 0)).unwrap();
        let why = clients.admit(Claim::Open(id(2, 2), 0)).err().expect("refused");
        // It may be one that makes a disk: no takeover helps then.
        assert!(why.contains("--takeover") && why.contains("stop it, or wait 10 s if it was killed"), "{why}");
        drop(first);
        // The connection broke: for a while the client may come back.
        assert!(clients.admit(Claim::Open(id(2, 2), 0)).is_err());
        first = clients.admit(Claim::Again(id(1, 1), 0)).unwrap();
        first.said_goodbye = true;
        drop(first);
        let second = clients.admit(Claim::Open(id(2, 2), 0)).unwrap();
        assert!(clients.admit(Claim::Again(id(1, 1), 0)).is_err_and(|why| why == TAKEN_OVER));
        drop(second);
        drop(clients.admit(Claim::Seize(id(3, 3), 0)).unwrap());
        assert!(clients.admit(Claim::Again(id(2, 2), 0)).is_err_and(|why| why == TAKEN_OVER));
        // Both clients belong to one lock, so the former one is dead.
        drop(clients.admit(Claim::Open(id(3, 4), 0)).unwrap());
    }

    #[test]
    fn a_client_with_a_higher_epoch_comes_back_to_a_server_it_never_met() {
        let clients = Arc::new(Clients::default());
        let stood_still = clients.admit(Claim::Open(id(1, 1), 4)).unwrap();
        assert!(clients.ask(Claim::Ask(id(2, 2), 5)).is_err());
        assert!(clients.admit(Claim::Again(id(2, 2), 4)).is_err_and(|why| why == TAKEN_OVER));
        assert!(!clients.may_write_unnamed());
        let waits = clients.clone();
        let owner = std::thread::spawn(move || waits.admit(Claim::Again(id(2, 2), 5)).map(|_| ()));
        std::thread::sleep(Duration::from_millis(20));
        drop(stood_still);
        owner.join().unwrap().unwrap();
        assert!(clients.admit(Claim::Again(id(1, 1), 4)).is_err_and(|why| why == TAKEN_OVER));
    }

    #[test]
    fn asking_changes_nothing() {
        let clients = Arc::new(Clients::default());
        let mut first = clients.admit(Claim::Open(id(1, 1), 1)).unwrap();
        first.said_goodbye = true;
        drop(first);
        assert!(clients.may_write_unnamed());
        clients.ask(Claim::Ask(id(2, 2), 2)).unwrap();
        drop(clients.admit(Claim::Again(id(1, 1), 1)).unwrap());
        assert!(clients.ask(Claim::Ask(id(2, 2), 2)).is_err());
    }

    #[test]
    fn a_newer_connection_waits_for_the_end_of_the_older_one() {
        let clients = Arc::new(Clients::default());
        let older = clients.admit(Claim::Open(id(1, 1), 0)).unwrap();
        let newer = {
            let clients = clients.clone();
            std::thread::spawn(move || clients.admit(Claim::Again(id(1, 1), 0)).map(|ticket| ticket.number))
        };
        std::thread::sleep(Duration::from_millis(50));
        assert!(!newer.is_finished());
        drop(older);
        assert_eq!(newer.join().unwrap(), Ok(2));
    }
}
