//! Logs what happens to a network RAM disk.
//!
//! Rules: once a second the disk is compared with what the log said before. A change is one line,
//! with what it requires. Left out: the state itself, which `status` shows at any time (`report`).

use std::collections::{BTreeMap, BTreeSet};

use shoal_netram::{Aside, DonorStatus, Status};
use tracing::{info, warn};

use super::Inner;
use super::report::{TooFew, too_few};

/// Looks in a row with too few donors after which the log reports the shortage. A donor that is
/// just joining is active after one look.
const SHORT_LOOKS: u32 = 3;

/// State that the log has reported.
#[derive(Default)]
pub(super) struct Told {
    unflushed: bool,
    /// Number of looks in a row, up to the last one, at which too few donors were active to store
    /// anything.
    short: u32,
    /// Damaged blocks, by donor.
    damaged: BTreeMap<String, u64>,
    unrepaired: bool,
    /// Donors that are set aside.
    aside: BTreeSet<String>,
}

impl Inner {
    /// Logs what has changed since the last call.
    pub(super) fn tell(&self) {
        let status = self.disk.status();
        self.told.lock().look(&status);
    }
}

impl Told {
    fn look(&mut self, status: &Status) {
        match (&status.unflushed, self.unflushed) {
            (Some(failed), false) => warn!(
                "a flush failed ({}): {} blocks are in this client's memory alone; it is made good when enough donors are there again",
                failed.why, failed.blocks
            ),
            (None, true) => info!("what was not flushed is safe now"),
            _ => {}
        }
        self.unflushed = status.unflushed.is_some();
        self.look_at_number(status);
        self.look_at_damage(status);
        self.look_at_pace(status);
    }

    fn look_at_number(&mut self, status: &Status) {
        let Some(TooFew { there, needed }) = too_few(status) else {
            if self.short >= SHORT_LOOKS {
                info!("enough donors are active again");
            }
            return self.short = 0;
        };
        self.short = self.short.saturating_add(1);
        if self.short == SHORT_LOOKS {
            warn!(
                "nothing can be stored: {there} donors are active and {needed} are needed; bring back those that are missing, or \
                 add others and give up the missing ones (`shoal donor forget`)"
            );
        }
    }

    fn look_at_pace(&mut self, status: &Status) {
        let aside = |donor: &&DonorStatus| donor.aside.is_some();
        let now: BTreeSet<String> = status.donors.iter().filter(aside).map(|donor| donor.name.clone()).collect();
        for donor in status.donors.iter().filter(aside).filter(|donor| !self.aside.contains(&donor.name)) {
            let (name, ms) = (&donor.name, donor.latency_ns / 1_000_000);
            match donor.aside {
                Some(Aside::Silent) => {
                    let unanswered = donor.unanswered;
                    warn!("donor {name} did not answer {unanswered} writes: it is set aside for a while");
                }
                _ => warn!(
                    "donor {name} answers after {ms} ms, much later than the others: it is set aside until it is fast again"
                ),
            }
        }
        self.aside.difference(&now).for_each(|name| info!("donor {name} is used again"));
        self.aside = now;
    }

    fn look_at_damage(&mut self, status: &Status) {
        let is_new = |donor: &&DonorStatus| donor.damaged > self.damaged.get(&donor.name).copied().unwrap_or(0);
        for donor in status.donors.iter().filter(is_new) {
            let (name, blocks) = (&donor.name, donor.damaged);
            warn!(
                "donor {name} holds other bytes than it was sent: {blocks} blocks so far; they are computed from the others and written anew"
            );
        }
        self.damaged = status.donors.iter().map(|donor| (donor.name.clone(), donor.damaged)).collect();
        let unrepaired = status.damage.unrepaired > 0;
        if self.unrepaired && !unrepaired {
            info!("all damage that was found is repaired");
        }
        self.unrepaired = unrepaired;
    }
}
