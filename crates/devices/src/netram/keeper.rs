//! Keeps a network RAM disk's donors: takes back those that can be reached again, and releases
//! those that are no longer needed.
//!
//! Rules: the keeper runs once a second. A donor that still has its former contents is taken back
//! as it was, under any address; its former client has a lower epoch than this one. A donor that
//! came back empty joins anew. A donor that holds something else, or whose contents are uncertain,
//! is left alone. A donor that an administrator has dismissed stays away. While the others have no
//! room for its contents, emptying it is retried, less and less often. A donor that was emptied
//! because its machine needed the memory comes back when it no longer does.

use std::io;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use shoal_host::Ticker;
use shoal_media::{BlockDevice, Request};
use shoal_netram::{DonorId, DonorState, NotBack};
use tracing::{debug, info, warn};

use super::name::Donor;
use super::reach::{NotReached, Reached, reach};
use super::{Inner, drain_if_it_fits, find, give_back, stop};
use crate::donor_link::{DonorLink, Written};

const EVERY: Duration = Duration::from_secs(1);
/// How late a request of a former connection may be carried out: an estimate, since no wait is
/// certain.
const LATE: Duration = Duration::from_secs(3);
/// Pause before a donor that could not be emptied is tried again. It doubles with each attempt, up
/// to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// When a drain that was given up for lack of room is retried, and the pause after that.
#[derive(Default)]
pub(super) struct Leaving {
    again: Option<(Instant, Duration)>,
}

/// Starts the keeper. It looks after the donors once a second, until it is stopped or the disk is
/// gone.
pub(super) fn start(inner: &Arc<Inner>) -> io::Result<Ticker> {
    let inner = Arc::downgrade(inner);
    Ticker::start("netram-keeper", EVERY, move |stopping| {
        let Some(inner) = inner.upgrade() else { return ControlFlow::Break(()) };
        inner.dismiss_strangers();
        inner.let_go();
        inner.relieve();
        inner.see_off();
        inner.tell();
        inner.know_their_disk();
        for donor in inner.absent() {
            if stopping.is_stopped() {
                break;
            }
            inner.take_back(&donor);
        }
        ControlFlow::Continue(())
    })
}

impl Inner {
    /// Drops connections that lead to another donor, or to a donor that has forgotten what it was
    /// told.
    fn dismiss_strangers(&self) {
        for mark in self.ownership.take_strangers() {
            let mut members = self.members.lock();
            let name = members.iter().find(|(_, member)| member.link.mark() == mark).map(|(name, _)| name.clone());
            let Some((name, former)) = name.and_then(|name| members.remove_entry(&name)) else { continue };
            // Unlock: a link's thread may be reporting pressure.
            drop(members);
            warn!("donor {name} is not the one that it was; going on without it");
            let device: Weak<dyn BlockDevice> = Arc::downgrade(&former.link) as _;
            self.disk.lost_device(&device);
            self.ownership.lets_go(mark);
        }
    }

    /// Takes donors off the list of emptied ones once they have a superblock. If such a donor is
    /// found empty later, it has lost the superblock and everything else.
    fn know_their_disk(&self) {
        // Avoid a status, which looks at every group.
        if self.emptied.lock().is_empty() {
            return;
        }
        let status = self.disk.status();
        let knows =
            |name: &String| status.donors.iter().any(|donor| donor.name == *name && donor.state == DonorState::Active);
        self.emptied.lock().retain(|name| !knows(name));
    }

    /// Ends connections to donors that are no longer used, which gives them their memory back.
    fn let_go(&self) {
        // Without this lock, a donor that joined again after this look would be taken for the one
        // that left, and lose its contents.
        let _joining = self.joining.lock();
        let status = self.disk.status();
        let states = |name: &str| {
            let named = status.donors.iter().filter(|donor| donor.name == name);
            named.map(|donor| donor.state).collect::<Vec<_>>()
        };
        let is_over = |name: &str| states(name).into_iter().all(DonorState::is_final);
        let over: Vec<(String, Arc<DonorLink>)> = {
            let mut members = self.members.lock();
            let names: Vec<String> = members.keys().filter(|name| is_over(name)).cloned().collect();
            names.into_iter().filter_map(|name| members.remove(&name).map(|member| (name, member.link))).collect()
        };
        for (name, link) in over {
            if states(&name).contains(&DonorState::Drained) && link.state() == "connected" {
                self.emptied.lock().insert(name.clone());
                let (sender, receiver) = std::sync::mpsc::channel();
                let done = Box::new(move |result: Result<Vec<u8>, _>| {
                    // After the time-out nobody receives the result.
                    let _ = sender.send(result.is_ok());
                });
                link.submit(Request::Trim { at: 0, len: link.geometry().bytes }, done);
                let _ = receiver.recv_timeout(Duration::from_secs(10));
            }
            self.ownership.lets_go(link.mark());
            info!("donor {name} is not used any more");
        }
    }

    /// Empties donors whose machines need the memory, as soon as the others have room.
    fn relieve(&self) {
        let members = self.members.lock();
        let pressed: Vec<String> =
            members.iter().filter(|(_, member)| member.under_pressure).map(|(name, _)| name.clone()).collect();
        drop(members);
        for name in pressed {
            if let Some((disk, id)) = find(&Arc::downgrade(&self.disk), &name) {
                give_back(&disk, id, &name);
            }
        }
    }

    /// Dismisses donors that are to leave and are empty. A drain that was given up for lack of room
    /// leaves its donor in use. It is retried while the stored data fits on the others.
    fn see_off(&self) {
        // Lock first, so that no donor is dismissed between the look and the change.
        let mut leaving = self.leaving.lock();
        let status = self.disk.status();
        if !status.ready {
            return;
        }
        leaving.retain(|name, drain| {
            let id = status.donors.iter().rposition(|donor| donor.name == *name && !donor.state.is_final());
            let Some(id) = id else {
                self.dismissed.lock().insert(name.clone());
                return false;
            };
            if status.donors[id].state != DonorState::Active {
                return true;
            }
            let (at, pause) = *drain.again.get_or_insert_with(|| {
                warn!(
                    "donor {name}: the others have no room at the moment for what it holds; it is emptied again later"
                );
                (Instant::now() + FIRST_PAUSE, FIRST_PAUSE)
            });
            let id = id as DonorId;
            if Instant::now() >= at && drain_if_it_fits(&self.disk, id) {
                let pause = (2 * pause).min(LONGEST_PAUSE);
                drain.again = Some((Instant::now() + pause, pause));
            }
            true
        });
    }

    /// Returns the donors that were named, are missing, and were not dismissed.
    fn absent(&self) -> Vec<Donor> {
        let status = self.disk.status();
        let here = |name: &str| status.donors.iter().any(|donor| donor.name == name && donor.state.is_in_use());
        let dismissed = self.dismissed.lock();
        let donors = self.name.lock().donors.clone();
        let away = |donor: &Donor| {
            let name = donor.to_string();
            !here(&name) && !dismissed.contains(&name)
        };
        donors.into_iter().filter(away).collect()
    }

    fn take_back(&self, donor: &Donor) {
        let disk_name = self.name.lock().clone();
        let one = match reach(donor, &disk_name, &self.export) {
            Ok(one) => one,
            Err(NotReached::Away(error)) => return debug!("{error}"),
            Err(NotReached::Unfit(failure)) => return debug!("{failure}"),
        };
        if let Some(failure) = one.cut_short() {
            return debug!("{failure}");
        }
        if let Some((_, other, true)) = self.disk.donor_of(&one.front) {
            // A claim would end the connection that is in use.
            return debug!("donor {donor} is in use as donor {other}");
        }
        if let Err(error) = one.link.claim(self.ownership.again()) {
            if error.is_taken_over() {
                self.is_lost_to_another(&donor.to_string());
            }
            return debug!("donor {donor}: {error}");
        }
        if self.ownership.is_anothers(&one.front) {
            return debug!("donor {donor}: another client's lease");
        }
        // A donor that an epoch has excluded meanwhile is wiped below, and joins anew.
        if self.disk.donor_of(&one.front).is_some() && self.ownership.has_gone_back(&one.front) {
            return debug!("donor {donor} has forgotten what it was told last");
        }
        if !one.link.is_fenced() {
            // Let requests sent through former connections arrive first.
            std::thread::sleep(LATE);
        }
        let Ok(front) = one.link.front() else { return };
        let one = Reached { front, ..one };
        let name = donor.to_string();
        match self.disk.back(one.info(), one.device(), &one.front, one.link.is_fenced()) {
            Ok(_) => {
                one.link.belongs_to(self.uuid, Written::Already);
                one.link.is_at(one.place());
                self.join(&name, one.link.clone());
                info!("donor {name} is back, with what it held");
            }
            Err(NotBack::Later) => {}
            Err(NotBack::Stranger) => self.welcome(&one),
        }
    }

    /// Handles a donor's report that another client has it.
    fn is_lost_to_another(&self, name: &str) {
        let mark = self.members.lock().get(name).map(|member| member.link.mark());
        if let Some(mark) = mark {
            self.ownership.lost_to_another(mark);
        }
        if self.ownership.is_over() {
            stop(&self.disk);
        }
    }

    /// Takes in a donor that certainly holds nothing that counts.
    fn welcome(&self, one: &Reached) {
        let name = one.donor.to_string();
        if self.leaving.lock().contains_key(&name) || self.dismissed.lock().contains(&name) {
            return;
        }
        if !one.holds_nothing_but(&self.uuid) {
            return debug!("donor {name} holds something else; `shoal donor add` takes it in");
        }
        if one.link.is_pressed() {
            return;
        }
        match self.take_in(one) {
            Ok(()) => info!("donor {name} is back, empty"),
            Err(failure) => warn!("{failure}"),
        }
    }
}
