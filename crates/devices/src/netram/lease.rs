//! The right of one client to a disk: how it is acquired, renewed and released.
//!
//! Rules: all donors are asked before one is claimed. A few refusals do not count if enough of the
//! others grant the disk (a *quorum*, `shoal_netram::ownership`). Shoal donors know their client
//! and let nobody else write (`shoal_nbd::Claim`). On other servers, a client waits for the end of
//! the former client's lease. A thread of its own renews the leases, and waits for no donor. If a
//! donor does not know its clients, the disk changes and acknowledges nothing unless the lease was
//! renewed in time. The first half of a client's id stands for the lock file that it holds: a
//! client that holds the same file knows that the others are dead. Left out: the rules of leases
//! (`shoal_netram::ownership`).

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_format::ram::{LEASE_AT, LEASE_BYTES, LEASES, Lease, LeaseClaim, Leases};
use shoal_host::{Ticker, boottime_ns};
use shoal_media::{BlockDevice, Completion, Request};
use shoal_nbd::{Claim, ClientId, ConnectError};
use shoal_netram::ownership::{
    Domains, Entry, Look, Looks, Outcome as Came, Quorum, RENEW_NS, Refusal, Renewal, Step, Tenure, place_of,
};
use shoal_netram::{Permit, SealKey};
use tracing::warn;

use super::name::Donor;
use super::reach::Reached;
use super::{Inner, Member, stop};
use crate::donor_link::DonorLink;
use crate::failure::{During, Failure, Outcome};

/// Time-out for reading or writing the leases of a donor. A donor that takes longer is left out.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes a new id: half of it stands for the lock, half is random.
pub(super) fn client_id(lock: Option<&File>) -> Outcome<ClientId> {
    let mut id: ClientId = shoal_host::random_bytes().during("random numbers")?;
    if let Some(found) = lock.and_then(|lock| lock.metadata().ok()) {
        let boot = shoal_host::boot_id().during("boot id")?;
        let mut hasher = DefaultHasher::new();
        (boot, found.dev(), found.ino()).hash(&mut hasher);
        id[..8].copy_from_slice(&hasher.finish().to_le_bytes());
    }
    Ok(id)
}

pub(super) fn refused(donor: &Donor, error: &ConnectError) -> Failure {
    let cause = match error {
        ConnectError::Handshake { source, .. } => source.to_string(),
        ConnectError::Connect { source, .. } | ConnectError::Io { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    Failure::new(format_args!("donor {donor}"), cause)
}

/// The leases of one disk, as they are on its donors: signed if it is encrypted.
#[derive(Clone)]
pub(super) struct Book {
    pub(super) uuid: [u8; 16],
    pub(super) key: Option<SealKey>,
}

impl Book {
    fn encode(&self, lease: &Lease) -> Vec<u8> {
        let mut bytes = lease.encode();
        self.key.iter().for_each(|key| key.sign(&mut bytes));
        bytes
    }

    /// Returns the leases that count. `bytes` begin at [`LEASE_AT`].
    fn read(&self, bytes: &[u8]) -> Leases {
        Lease::all_where(bytes, &self.uuid, |lease| self.key.as_ref().is_none_or(|key| key.has_signed(lease)))
    }

    fn of_front(&self, front: &[u8]) -> Leases {
        self.read(front.get(LEASE_AT..).unwrap_or_default())
    }

    fn write(&self, place: usize, lease: &Lease) -> Request {
        Request::Write { at: (LEASE_AT + place * LEASE_BYTES) as u64, buffer: self.encode(lease), fua: false }
    }
}

/// A client's right to a disk.
pub(super) struct Ownership {
    pub(super) client: ClientId,
    book: Book,
    tenure: Mutex<Tenure>,
    renewals: AtomicU64,
    changes_until_ns: AtomicU64,
    reads_until_ns: AtomicU64,
    /// A donor that does not know its clients is in use.
    timed: AtomicBool,
    /// Marks of connections that turned out to lead to other donors.
    strangers: Mutex<Vec<u64>>,
    /// The newest lease that was taken through each connection, by mark.
    taken: Mutex<HashMap<u64, u64>>,
}

impl Permit for Ownership {
    fn may_change(&self) -> bool {
        !self.timed.load(Ordering::SeqCst) || boottime_ns() < self.changes_until_ns.load(Ordering::SeqCst)
    }

    fn may_read(&self) -> bool {
        !self.timed.load(Ordering::SeqCst) || boottime_ns() < self.reads_until_ns.load(Ordering::SeqCst)
    }
}

impl Ownership {
    pub(super) fn epoch(&self) -> u64 {
        self.tenure.lock().epoch
    }

    /// Returns a claim on a donor that this client has had before, or comes back to.
    pub(super) fn again(&self) -> Claim {
        Claim::Again(self.client, self.epoch())
    }

    pub(super) fn is_over(&self) -> bool {
        self.tenure.lock().is_over()
    }

    /// Records that the disk uses this donor from now on. Its lease is written with the next
    /// renewal.
    pub(super) fn uses(&self, link: &DonorLink) {
        if !link.is_fenced() {
            self.timed.store(true, Ordering::SeqCst);
        }
    }

    /// Sets the failure domains of the donors, by mark.
    fn set_domains(&self, domains: BTreeMap<u64, u32>) {
        let mut tenure = self.tenure.lock();
        tenure.set_domains(domains);
        self.publish(&tenure);
    }

    pub(super) fn lets_go(&self, mark: u64) {
        let mut tenure = self.tenure.lock();
        tenure.lets_go(mark);
        self.publish(&tenure);
    }

    /// Records a donor's report that another client has it.
    pub(super) fn lost_to_another(&self, mark: u64) {
        let mut tenure = self.tenure.lock();
        tenure.lost_to_another(mark);
        self.publish(&tenure);
    }

    pub(super) fn take_strangers(&self) -> Vec<u64> {
        std::mem::take(&mut self.strangers.lock())
    }

    fn publish(&self, tenure: &Tenure) {
        self.changes_until_ns.store(tenure.changes_until_ns(), Ordering::SeqCst);
        self.reads_until_ns.store(tenure.reads_until_ns(), Ordering::SeqCst);
    }

    fn lease(&self, link: &DonorLink, epoch: u64, claim: LeaseClaim) -> Lease {
        Lease {
            uuid: self.book.uuid,
            client: self.client,
            renewed: self.renewals.fetch_add(1, Ordering::SeqCst),
            released: false,
            claim,
            epoch,
            mark: link.mark(),
            bytes: link.geometry().bytes,
        }
    }

    /// Reads the leases of a donor and renews this client's lease there. Waits for nothing.
    fn renew(self: &Arc<Self>, link: &Arc<DonorLink>) {
        if !link.begins_renewal() {
            return;
        }
        let (this, to) = (self.clone(), Arc::downgrade(link));
        let from_ns = boottime_ns();
        let read: Completion = Box::new(move |result| {
            let Some(link) = to.upgrade() else { return };
            match result {
                Ok(bytes) => this.found(&link, from_ns, &this.book.read(&bytes)),
                Err(_) => link.ends_renewal(),
            }
        });
        link.submit(Request::Read { at: LEASE_AT as u64, buffer: vec![0; LEASES * LEASE_BYTES] }, read);
    }

    fn found(self: &Arc<Self>, link: &Arc<DonorLink>, from_ns: u64, leases: &Leases) {
        let (seen, epoch) = {
            let mut tenure = self.tenure.lock();
            let seen = tenure.seen(link.mark(), leases);
            self.publish(&tenure);
            (seen, tenure.epoch)
        };
        let (place, asked) = match seen {
            Renewal::Write { place, asked } => (place, asked),
            Renewal::Superseded => return link.ends_renewal(),
            Renewal::Stranger => {
                self.strangers.lock().push(link.mark());
                return link.ends_renewal();
            }
        };
        let lease = self.lease(link, epoch, LeaseClaim::Owns);
        let (this, to) = (self.clone(), Arc::downgrade(link));
        let written: Completion = Box::new(move |result| {
            let Some(link) = to.upgrade() else { return };
            if result.is_ok() {
                this.has_taken(&link, lease.renewed);
                let mut tenure = this.tenure.lock();
                tenure.renewed(lease.mark, from_ns, asked, boottime_ns());
                this.publish(&tenure);
            }
            link.ends_renewal();
        });
        link.submit(self.book.write(place, &lease), written);
    }

    /// Leaves this client's lease on a donor that was emptied.
    pub(super) fn leave(&self, link: &DonorLink) -> Outcome<()> {
        let lease = self.lease(link, self.epoch(), LeaseClaim::Owns);
        link.write_from(LEASE_AT as u64, &self.book.encode(&lease)).during("lease of a donor")?;
        self.has_taken(link, lease.renewed);
        Ok(())
    }

    fn has_taken(&self, link: &DonorLink, renewed: u64) {
        link.has_lease(renewed);
        self.taken.lock().insert(link.mark(), renewed);
    }

    /// Returns whether this donor, found through a new connection, has forgotten the last lease
    /// that it took through its former connection, as a restored snapshot does.
    pub(super) fn has_gone_back(&self, front: &[u8]) -> bool {
        let own = own_lease(&self.book.of_front(front), &self.client);
        own.is_some_and(|own| self.taken.lock().get(&own.mark).is_some_and(|renewed| own.renewed < *renewed))
    }

    /// Returns whether the leases on this donor say that another client owns the disk or is taking
    /// it.
    pub(super) fn is_anothers(&self, front: &[u8]) -> bool {
        self.tenure.lock().is_superseded(&self.book.of_front(front))
    }

    /// Releases the leases, so that the next client does not wait for them to end.
    pub(super) fn release(&self, links: &[Arc<DonorLink>]) {
        let epoch = self.epoch();
        // From here on this client changes nothing.
        self.changes_until_ns.store(0, Ordering::SeqCst);
        self.timed.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        // A renewal under way must not be written after the release.
        while links.iter().any(|link| link.is_renewing()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let links: Vec<&DonorLink> =
            links.iter().map(|link| &**link).filter(|link| link.state() == "connected").collect();
        let found = read_all(&links, Some(&self.book));
        let requests = links.iter().zip(&found).map(|(link, leases)| {
            let place = place_of(leases.as_ref()?, &self.client);
            let lease = Lease { released: true, ..self.lease(link, epoch, LeaseClaim::Owns) };
            Some(self.book.write(place, &lease))
        });
        ask_all(&links, requests.collect());
    }
}

/// Sends each donor a request, and waits for the answers for up to [`PATIENCE`]. `None`: no
/// request, an error, or no answer.
fn ask_all(links: &[&DonorLink], requests: Vec<Option<Request>>) -> Vec<Option<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let mut open = 0;
    for (number, (link, request)) in links.iter().zip(requests).enumerate() {
        let Some(request) = request else { continue };
        let sender = sender.clone();
        open += 1;
        let done: Completion = Box::new(move |result| {
            // Nobody waits for a late answer.
            let _ = sender.send((number, result.ok()));
        });
        link.submit(request, done);
    }
    let mut answers = vec![None; links.len()];
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..open {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((number, answer)) = receiver.recv_timeout(left) else { break };
        answers[number] = answer;
    }
    answers
}

/// Reads the leases on each donor: those of a disk, or of any disk if there is none.
fn read_all(links: &[&DonorLink], disk: Option<&Book>) -> Vec<Option<Leases>> {
    let read = || Some(Request::Read { at: LEASE_AT as u64, buffer: vec![0; LEASES * LEASE_BYTES] });
    let all = ask_all(links, links.iter().map(|_| read()).collect());
    let decoded = |bytes: Vec<u8>| match disk {
        Some(book) => book.read(&bytes),
        None => Lease::of_any(&bytes),
    };
    all.into_iter().map(|bytes| bytes.map(decoded)).collect()
}

/// The disk that a client opens, and the terms.
pub(super) struct Wish<'a> {
    pub(super) client: ClientId,
    pub(super) book: &'a Book,
    pub(super) takeover: bool,
    pub(super) quorum: Quorum,
    /// The failure domain of each reached donor that belongs to the disk.
    pub(super) domains: Domains,
    /// The disk is new. Its donors must not belong to another client either, and they are left as
    /// they were if the disk is not made.
    pub(super) is_new: bool,
}

/// Acquires the disk for this client. Returns the donors that are now its own, with their present
/// contents.
pub(super) fn enter(reached: Vec<&Reached>, wish: &Wish) -> Outcome<(Vec<Reached>, Arc<Ownership>)> {
    let claimed = claim(&reached, wish)?;
    let (mut own, mut numbers): (Vec<(&Reached, bool)>, Vec<usize>) = (Vec::new(), Vec::new());
    for ((number, one), claimed) in reached.into_iter().enumerate().zip(claimed) {
        match claimed {
            Ok(()) => {
                own.push((one, wish.domains.of[number].is_some()));
                numbers.push(number);
            }
            Err(failure) => warn!("{failure}; going on without it"),
        }
    }
    let ownership = lease(&own, &wish.domains.of_these(&numbers), wish)?;
    let mut entered = Vec::new();
    for (one, _) in own {
        let again = one.link.front().during(format_args!("donor {}", one.donor));
        match again {
            Ok(front) => entered.push(Reached { donor: one.donor.clone(), link: one.link.clone(), front }),
            Err(failure) => {
                warn!("{failure}; going on without it");
                ownership.lets_go(one.link.mark());
            }
        }
    }
    loop {
        let leases = |one: &Reached| wish.book.of_front(&one.front);
        let marks: Vec<Option<u64>> = entered.iter().map(|one| own_mark(&leases(one), &wish.client)).collect();
        let links: Vec<&DonorLink> = entered.iter().map(|one| &*one.link).collect();
        let Some((one, other)) = twice(&links, &marks) else { break };
        warn!("{}; going on without it", is_the_same(&entered[one].donor, &entered[other].donor));
        ownership.lets_go(entered.remove(one).link.mark());
    }
    Ok((entered, ownership))
}

/// Claims the donors that know their clients. All are asked first, and none is taken unless enough
/// grant it.
fn claim(reached: &[&Reached], wish: &Wish) -> Outcome<Vec<Outcome<()>>> {
    let last = |one: &&Reached| wish.book.of_front(&one.front).iter().flatten().map(|lease| lease.epoch).max();
    let epoch = match reached.iter().map(last).zip(0..).max() {
        Some((Some(epoch), donor)) => epoch.checked_add(1).ok_or_else(|| is_invented(&reached[donor].donor))?,
        _ => 1,
    };
    let client = wish.client;
    let asked = together(reached, |_, one| match wish.takeover {
        true => Ok(()),
        false => one.link.ask(client, epoch).map(|_| ()).map_err(|error| refused(&one.donor, &error)),
    });
    let asked = enough(asked, wish)?;
    let granted: Vec<bool> = asked.iter().map(Result::is_ok).collect();
    let claimed = together(reached, |number, one| {
        let claim = match (wish.takeover, granted[number]) {
            (true, _) => Claim::Seize(client, epoch),
            (false, true) => Claim::Open(client, epoch),
            // Enough other donors have granted the disk. Its higher epoch makes this client the
            // donor's client, too.
            (false, false) => Claim::Again(client, epoch),
        };
        one.link.claim(claim).map_err(|error| refused(&one.donor, &error))
    });
    enough(claimed, wish)
}

fn together<T: Send>(reached: &[&Reached], each: impl Fn(usize, &Reached) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let each = &each;
        let spawned = reached.iter().copied().enumerate().map(|(number, one)| scope.spawn(move || each(number, one)));
        let threads: Vec<_> = spawned.collect();
        threads.into_iter().map(|thread| thread.join().expect("it panics no more than this one")).collect()
    })
}

/// Checks that enough donors of the disk have granted it. The error is one of theirs. If too few
/// donors were reached, the leases show it.
fn enough(answers: Vec<Outcome<()>>, wish: &Wish) -> Outcome<Vec<Outcome<()>>> {
    let refuses = |donor: usize| wish.domains.of[donor].is_some() && answers[donor].is_err();
    let granted = wish.domains.whole(|donor| answers[donor].is_ok());
    if !(0..answers.len()).any(refuses) || granted >= wish.quorum.enters() {
        return Ok(answers);
    }
    let mut refused = answers.into_iter().zip(&wish.domains.of).filter(|(_, domain)| domain.is_some());
    Err(refused.find_map(|(answer, _)| answer.err()).expect("one was counted"))
}

/// Leaves this client's lease on all donors, by the rules.
fn lease(own: &[(&Reached, bool)], domains: &Domains, wish: &Wish) -> Outcome<Arc<Ownership>> {
    let links: Vec<&DonorLink> = own.iter().map(|(one, _)| &*one.link).collect();
    let ownership = Ownership {
        client: wish.client,
        book: wish.book.clone(),
        tenure: Mutex::new(Tenure::new(wish.client, 0, wish.quorum)),
        renewals: AtomicU64::new(1),
        changes_until_ns: AtomicU64::new(0),
        reads_until_ns: AtomicU64::new(0),
        timed: AtomicBool::new(links.iter().any(|link| !link.is_fenced())),
        strangers: Mutex::default(),
        taken: Mutex::default(),
    };
    let own_marks = links.iter().map(|link| link.mark()).collect();
    let mut entry = Entry::new(wish.client, wish.takeover, wish.quorum, domains.clone(), own_marks);
    let (mut from_ns, mut places, mut marks) = (0, vec![None; links.len()], vec![None; links.len()]);
    let mut taken = vec![false; links.len()];
    let mut step = entry.next(Came::Began);
    loop {
        let came = match step {
            Step::Read => {
                from_ns = boottime_ns();
                let found = read_all(&links, (!wish.is_new).then_some(wish.book));
                for (place, leases) in places.iter_mut().zip(&found) {
                    // Forget the place that was read before: another client may have taken it.
                    *place = leases.as_ref().map(|leases| place_of(leases, &wish.client));
                }
                for (mark, leases) in marks.iter_mut().zip(&found) {
                    *mark = leases.as_ref().and_then(|leases| own_mark(leases, &wish.client)).or(*mark);
                }
                let look = |(leases, (one, belongs)): (Option<Leases>, &(&Reached, bool))| {
                    leases.filter(|_| *belongs).map(|leases| Look { leases, fenced: one.link.is_fenced() })
                };
                Came::Read(found.into_iter().zip(own).map(look).collect::<Looks>())
            }
            Step::Write { claim, epoch, released } => {
                // This client may have been suspended, so what it read no longer counts.
                if boottime_ns().saturating_sub(from_ns) > 2 * PATIENCE.as_nanos() as u64 && !released {
                    return Err(Failure::new("network RAM disk", "opening it took too long").remedy("try again"));
                }
                let leases: Vec<Lease> =
                    links.iter().map(|link| Lease { released, ..ownership.lease(link, epoch, claim) }).collect();
                let requests = places.iter().zip(&leases).map(|(place, lease)| {
                    let mut request = wish.book.write((*place)?, lease);
                    if let Request::Write { buffer, .. } = &mut request
                        && released
                        && wish.is_new
                    {
                        buffer.fill(0);
                    }
                    Some(request)
                });
                let answers = ask_all(&links, requests.collect());
                taken = answers.iter().map(Option::is_some).collect();
                let noted = links.iter().zip(&leases).zip(&taken).filter(|(_, taken)| **taken);
                noted.for_each(|((link, lease), _)| ownership.has_taken(link, lease.renewed));
                Came::Written(taken.iter().zip(own).map(|(taken, (_, belongs))| *taken && *belongs).collect())
            }
            Step::Wait { ns } => {
                std::thread::sleep(Duration::from_nanos(ns));
                Came::Waited
            }
            Step::Entered { epoch } => {
                let mut tenure = tenure_of(&links, domains, wish, epoch);
                let kept =
                    links.iter().zip(&taken).enumerate().filter(|(n, (_, taken))| **taken && entry.was_shown(*n));
                kept.for_each(|(_, (link, _))| tenure.takes_in(link.mark(), from_ns));
                ownership.publish(&tenure);
                *ownership.tenure.lock() = tenure;
                return Ok(Arc::new(ownership));
            }
            Step::Refused(Refusal::TooFew { .. }) if twice(&links, &marks).is_some() => {
                let (one, other) = twice(&links, &marks).expect("it was found");
                return Err(is_the_same(&own[one].0.donor, &own[other].0.donor));
            }
            Step::Refused(refusal) => return Err(refusal_of(refusal, own, wish)),
        };
        step = entry.next(came);
    }
}

fn tenure_of(links: &[&DonorLink], domains: &Domains, wish: &Wish, epoch: u64) -> Tenure {
    let mut tenure = Tenure::new(wish.client, epoch, wish.quorum);
    let of_marks = links.iter().zip(&domains.of).filter_map(|(link, of)| Some((link.mark(), (*of)?)));
    tenure.set_domains(of_marks.collect());
    tenure
}

fn refusal_of(refusal: Refusal, own: &[(&Reached, bool)], wish: &Wish) -> Failure {
    match refusal {
        Refusal::Held { donor } => {
            let cause = "another client has its disk open";
            Failure::new(format_args!("donor {}", own[donor].0.donor), cause)
                .remedy("stop it, or take the disk over with --takeover")
        }
        Refusal::Invented { donor } => is_invented(&own[donor].0.donor),
        Refusal::TooFew { have, need } => {
            let what = format!("network RAM disk {}", crate::uuid::uuid_text(&wish.book.uuid));
            let cause = format!("too few donors are left to have it alone: {have} of {need} take this client's lease");
            Failure::new(what, cause).remedy("bring more of its donors back")
        }
    }
}

fn is_invented(donor: &Donor) -> Failure {
    let cause = "shows the lease of a client that there cannot have been; it returns what nobody stored there";
    Failure::new(format_args!("donor {donor}"), cause).remedy("stop it, or leave it out")
}

/// This client's lease among those on a donor.
fn own_lease(leases: &Leases, client: &ClientId) -> Option<Lease> {
    leases.iter().flatten().find(|lease| lease.client == *client).copied()
}

/// The mark in this client's lease.
fn own_mark(leases: &Leases, client: &ClientId) -> Option<u64> {
    own_lease(leases, client).map(|lease| lease.mark)
}

/// Finds a donor named twice under different addresses: the one shows the mark of the other.
fn twice(links: &[&DonorLink], marks: &[Option<u64>]) -> Option<(usize, usize)> {
    links.iter().zip(marks).enumerate().find_map(|(one, (link, mark))| {
        let mark = mark.filter(|mark| *mark != link.mark())?;
        Some((one, links.iter().position(|other| other.mark() == mark)?))
    })
}

pub(super) fn is_the_same(one: &Donor, other: &Donor) -> Failure {
    Failure::new(format_args!("donor {one}"), format!("is the same as donor {other}")).remedy("name each donor once")
}

/// Starts renewing the leases, until it is stopped or the disk is gone. A donor that hangs does not
/// delay the others.
pub(super) fn start(inner: &Arc<Inner>) -> io::Result<Ticker> {
    let inner = Arc::downgrade(inner);
    Ticker::start("netram-lease", Duration::from_nanos(RENEW_NS), move |_| {
        let Some(inner) = inner.upgrade() else { return ControlFlow::Break(()) };
        if inner.ownership.is_over() {
            stop(&inner.disk);
            return ControlFlow::Break(());
        }
        let domains: HashMap<String, u32> = inner.disk.domains().into_iter().collect();
        let of_marks = |(name, member): (&String, &Member)| Some((member.link.mark(), *domains.get(name)?));
        inner.ownership.set_domains(inner.members.lock().iter().filter_map(of_marks).collect());
        for link in inner.links().iter().filter(|link| link.state() == "connected") {
            inner.ownership.renew(link);
        }
        ControlFlow::Continue(())
    })
}
