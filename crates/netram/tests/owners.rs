//! One client at a time owns a disk, whatever clients, donors, paths and clocks do
//! (docs/design/netram.md, "One client").
//!
//! `SHOAL_SEEDS=10000` tries more lives, `SHOAL_SEED=5` one.

mod clients;

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
