//! One client at a time owns a disk, whatever clients, donors, paths and clocks do
//! (docs/design/netram.md, "One client").
//!
//! `SHOAL_SEEDS=10000` tries more lives, `SHOAL_SEED=5` one.

mod clients;

use shoal_format::ram::{Lease, LeaseClaim, Leases};
use shoal_netram::ownership::{Domains, Entry, Look, Outcome, Quorum, Refusal, Step};

#[test]
fn each_rule_of_leases_holds_where_it_is_needed() {
    for (name, scene) in clients::SCENES {
        scene().unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

/// Lives that once broke the rule: two addresses of one donor counted twice when a client entered;
/// a donor counted that took the lease after the wait had begun.
const TELLING: [u64; 2] = [33150, 117_726];

#[test]
fn no_client_acknowledges_anything_beside_a_newer_one() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number("SHOAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SHOAL_SEEDS").unwrap_or(400),
    };
    for seed in TELLING {
        clients::life(seed).unwrap_or_else(|why| panic!("SHOAL_SEED={seed}: {why}"));
    }
    let mut served = 0;
    for seed in seeds.clone() {
        served += clients::life(seed).unwrap_or_else(|why| panic!("SHOAL_SEED={seed}: {why}"));
    }
    // Lives in which no client owns the disk show nothing.
    assert!(
        seeds.end - seeds.start == 1 || served > (seeds.end - seeds.start) / 2,
        "{served} clients had the disk in {seeds:?}"
    );
}

/// A donor shows a lease with the last epoch there is: there is none above it.
#[test]
fn a_donor_that_invents_a_client_is_named_and_changes_nothing() {
    let lease = |epoch: u64, released: bool| Lease {
        uuid: [1; 16],
        client: [2; 16],
        renewed: 5,
        released,
        claim: LeaseClaim::Owns,
        epoch,
        mark: 9,
        bytes: 0,
    };
    let look = |lease: Lease| {
        let mut leases: Leases = Default::default();
        leases[3] = Some(lease);
        Some(Look { leases, fenced: false })
    };
    for (epoch, released, is_invented) in [(u64::MAX, false, true), (u64::MAX, true, true), (9000, true, false)] {
        let mut entry =
            Entry::new([7; 16], false, Quorum { counting: 3, parity: 1 }, Domains::own(3), vec![11, 12, 13]);
        assert_eq!(entry.next(Outcome::Began), Step::Read);
        let step = entry.next(Outcome::Read(vec![look(lease(6, true)), look(lease(epoch, released)), None]));
        match is_invented {
            true => assert_eq!(step, Step::Refused(Refusal::Invented { donor: 1 }), "{epoch}"),
            false => assert_eq!(step, Step::Write { claim: LeaseClaim::Asks, epoch: 9001, released: false }),
        }
    }
}
