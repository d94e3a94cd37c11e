//! A former client that is not dead: it stood still, and goes on when another client owns the disk.
//!
//! Its operations in flight are delivered late, like those of a dead client. When it goes on, it
//! learns from one answer after the other that its connections are closed, and then that the disk
//! was taken over. Rules: from then on it completes no pending write or flush with success, answers
//! everything, and asks donors for nothing more. Reads that had all their answers may succeed; the
//! live disk answers them with an error (`Disk`). Operations that it would send before it learns of
//! the takeover are refused by donors of ours. To other donors they are not sent, since its lease
//! has ended (`tests/clients`).

use std::collections::BTreeMap;

use shoal_media::Request;
use shoal_netram::{Action, DiskError, DonorError, Engine, Trouble as Why};

use super::{Flight, Pending, SECTOR, World};

/// A client that stands still.
pub struct Ghost {
    engine: Engine,
    /// Tickets that it waits for.
    asked: Vec<u64>,
    /// Requests that it has not answered, each with whether it changes or promises something.
    pending: BTreeMap<u64, bool>,
}

impl World {
    /// Makes the client stand still for longer than its lease lasts.
    pub(super) fn stands_still(&mut self) {
        let engine = self.engine.take().expect("a client runs");
        let flights: Vec<Flight> = std::mem::take(&mut self.flights).into_values().collect();
        let asked = flights.iter().map(|flight| flight.ticket).collect();
        let pending = std::mem::take(&mut self.pending).into_iter();
        let changes = |pending: &Pending| matches!(pending, Pending::Write { .. } | Pending::Flush { .. });
        let pending = pending.map(|(ticket, (_, pending))| (ticket, changes(&pending))).collect();
        self.ghosts.push(Ghost { engine, asked, pending });
        self.leave_behind(flights);
    }

    /// Lets former clients go on.
    pub(super) fn ghosts_go_on(&mut self) -> Result<(), DiskError> {
        for ghost in std::mem::take(&mut self.ghosts) {
            self.goes_on(ghost)?;
        }
        Ok(())
    }

    fn goes_on(&mut self, mut ghost: Ghost) -> Result<(), DiskError> {
        let mut now = self.now;
        let hears_at = self.random.below(40);
        for round in 0..200 {
            if round == hears_at {
                // Its own users go on as well.
                let at = self.random.below(self.sectors() as u64) * SECTOR as u64;
                for request in [Request::Read { at, buffer: vec![0; SECTOR] }, Request::Flush] {
                    let ticket = self.next_ticket;
                    self.next_ticket += 1;
                    ghost.pending.insert(ticket, matches!(request, Request::Flush));
                    ghost.engine.submit(ticket, request, now);
                }
                ghost.engine.taken_over(now);
            }
            let heard = round > hears_at;
            ghost.takes_actions(heard)?;
            for ticket in std::mem::take(&mut ghost.asked) {
                let trouble = if self.random.below(2) == 0 { Why::Away } else { Why::Uncertain };
                ghost.engine.done(ticket, Err(DonorError::new(trouble, "another client has the disk")), now);
            }
            now += 50_000_000;
            ghost.engine.tick(now);
        }
        let status = ghost.engine.status();
        if !ghost.pending.is_empty() {
            return Err(Self::fault(format!("{} requests of a former client hang: {status:?}", ghost.pending.len())));
        }
        Ok(())
    }
}

impl Ghost {
    fn takes_actions(&mut self, heard: bool) -> Result<(), DiskError> {
        for action in self.engine.actions() {
            match action {
                Action::Donor { .. } if heard => {
                    return Err(World::fault("a former client asks donors, who has heard that it is one".into()));
                }
                Action::Donor { ticket, .. } => self.asked.push(ticket),
                Action::Complete { ticket, result } => {
                    let Some(changes) = self.pending.remove(&ticket) else {
                        return Err(World::fault(format!("ticket {ticket} of a former client was completed twice")));
                    };
                    if heard && changes && result.is_ok() {
                        return Err(World::fault(format!("a former client has done ticket {ticket}")));
                    }
                }
            }
        }
        Ok(())
    }
}
