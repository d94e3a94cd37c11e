//! Random operations against a plain model of a file tree (docs/design/testing.md).
//!
//! A case is a seeded run of operations on a fresh small store, with clean and unclean ends of the
//! process in between, and a comparison of everything at the end. Some stores are so small that
//! they fill up, and must still allow everything to be removed. Packing and compaction run in
//! between, and must not be seen. A second test lets four threads work beside each other.
//! A failure prints its seed: `SHOAL_SEED=<n> cargo test --release -p shoal-fs --test all model`.

use std::sync::Arc;

use crate::store::{CALLER, Setup, check, format, open_at};
use crate::tree::steps::Walker;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, ROOT};
use shoal_sim::{Budget, Random, SimClock, World, is_due};

const CASES: u64 = 5_000;

fn setup(random: &mut Random) -> (Setup, bool) {
    let kind = match random.below(10) {
        0..6 => MemoryKind::Battery,
        6..9 => MemoryKind::Logged,
        _ => MemoryKind::Dax,
    };
    let tight = random.below(4) == 0;
    let bulk = random.below(3) > 0;
    let setup = Setup {
        kind,
        saved: false,
        region_bytes: if tight { 8 + random.below(12) + 9 * kind.has_ring() as u64 } else { 100 } << 16,
        ring_bytes: 512 << 10,
        bulk_blocks: if !bulk {
            0
        } else if tight {
            1 + random.below(6)
        } else {
            80
        },
        threshold: [3000, 20_000, 80_000, 200_000][random.below(4) as usize],
        cached: random.below(3) == 0,
    };
    (setup, tight)
}

/// A store and its walker.
struct Case {
    setup: Setup,
    world: World,
    walker: Walker,
    openings: u32,
}

impl Case {
    fn new(seed: u64) -> Result<Case, String> {
        let mut random = Random::new(seed);
        let (setup, tight) = setup(&mut random);
        let world = format(setup, seed);
        let clock = Arc::new(SimClock::new(1_000_000_000));
        let (fs, _) = open_at(setup, &world, 1, 1, &clock)?;
        let root = fs.getattr(ROOT).map_err(|e| e.to_string())?;
        let mut walker = Walker::new(Arc::new(fs), clock, seed, &root, true);
        walker.tight = tight || setup.bulk_blocks == 0;
        Ok(Case { setup, world, walker, openings: 1 })
    }

    /// Ends the process, cleanly or not, and opens the store again.
    fn reopen(&mut self, clean: bool) -> Result<(), String> {
        if clean {
            self.walker.fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        } else {
            self.world = self.world.snapshot().process_crash().open();
        }
        self.openings += 1;
        check(self.setup, &self.world, false)?;
        let (fs, recovery) = open_at(self.setup, &self.world, 1, self.openings, &self.walker.clock)?;
        if recovery.clean != clean {
            return Err(format!("clean end: {clean}, recovery says {}", recovery.clean));
        }
        self.walker.reopened(Arc::new(fs));
        self.verify()
    }

    fn verify(&self) -> Result<(), String> {
        self.walker.model.compare(&self.walker.fs)?;
        let (found, expected) = (self.walker.fs.usage().inodes, self.walker.model.all(|_| true).len() as u64);
        if found != expected {
            return Err(format!("the store counts {found} inodes, the model {expected}"));
        }
        Ok(())
    }

    fn run(&mut self, each: bool) -> Result<(), String> {
        let steps = 30 + self.walker.random.below(31);
        for step in 0..steps {
            let at = |e: String| format!("step {step}: {e}");
            if self.walker.random.below(60) == 0 {
                let clean = self.walker.random.below(2) == 0;
                self.reopen(clean).map_err(|e| at(format!("reopening, clean {clean}: {e}")))?;
            }
            self.walker.step().map_err(at)?;
            if step % 14 == 5 {
                let mut bytes = vec![0; 8 + self.walker.random.below(3000) as usize];
                self.walker.random.fill(&mut bytes);
                match self.walker.fs.cooling().add_dictionary(bytes) {
                    Ok(()) | Err(Error::NoSpace(_)) => {}
                    Err(e) => return Err(at(format!("a dictionary: {e}"))),
                }
            }
            if step % 7 == 5 {
                match self.walker.fs.cooling().pack_all(&mut |_, _| {}) {
                    Ok(_) | Err(Error::NoSpace(_)) => {}
                    Err(e) => return Err(at(format!("packing: {e}"))),
                }
            }
            let spilled = match step % 8 {
                3 => self.walker.fs.spilling().spill_all().map(drop),
                6 if self.walker.random.below(2) == 0 => self.walker.fs.spilling().bring_all_back().map(drop),
                5 => self.walker.fs.spilling().clean_spilled(),
                7 => self.walker.fs.spilling().spill_tick(),
                _ => Ok(()),
            };
            match spilled {
                Ok(()) | Err(Error::NoSpace(_)) => {}
                Err(e) => return Err(at(format!("spilling: {e}"))),
            }
            if step % 9 == 8 {
                self.walker.fs.compacting().compact().map_err(|e| at(format!("compacting: {e}")))?;
                self.walker.fs.region().discard_free();
            }
            if each {
                println!("step {step}: {}", self.walker.last);
                self.verify().map_err(at)?;
                check(self.setup, &self.world, false).map_err(at)?;
            }
        }
        let clean = self.walker.random.below(2) == 0;
        self.reopen(clean).map_err(|e| format!("at the end, clean {clean}: {e}"))?;
        if self.walker.random.below(4) == 0 {
            self.empty()?;
        }
        Ok(())
    }

    /// Checks that everything can be removed, from a full store too, and that the room is there
    /// again.
    fn empty(&mut self) -> Result<(), String> {
        self.walker.remove_all().map_err(|e| format!("removing everything: {e}"))?;
        self.verify()?;
        self.reopen(true).map_err(|e| format!("emptied: {e}"))?;
        // Spilled blocks are given back in the background.
        for _ in 0..2 {
            let fs = &self.walker.fs;
            fs.spilling()
                .spill_tick()
                .and_then(|()| fs.sync())
                .and_then(|()| fs.upkeep().tick())
                .map_err(|e| format!("emptied: {e}"))?;
        }
        let usage = self.walker.fs.usage();
        if usage.bulk_free != usage.bulk_bytes {
            return Err(format!("emptied, but {} of {} bulk bytes are free", usage.bulk_free, usage.bulk_bytes));
        }
        Ok(())
    }
}

#[test]
fn random_operations_agree_with_a_plain_model() {
    let start = std::time::Instant::now();
    let only: Option<u64> = std::env::var("SHOAL_SEED").ok().map(|seed| seed.parse().expect("SHOAL_SEED is a number"));
    let deep = if std::env::var_os("SHOAL_DEEP").is_some() { 10 } else { 1 };
    let seeds = only.map_or(1..CASES * deep + 1, |seed| seed..seed + 1);
    let mut refused = 0;
    let is_wanted = |seed: &u64| only.is_some() || is_due(*seed, 4);
    for seed in Budget::of_a_search().within(seeds.filter(is_wanted)) {
        let outcome = Case::new(seed).and_then(|mut case| {
            let outcome = case.run(only.is_some());
            refused += case.walker.refused;
            outcome.map_err(|e| format!("{:?}: {e}", case.setup))
        });
        if let Err(error) = outcome {
            panic!(
                "{error}\nagain with SHOAL_SEED={seed} cargo test --release -p shoal-fs --test all model -- --nocapture"
            );
        }
    }
    println!("{refused} operations found no room; {:.1} s", start.elapsed().as_secs_f64());
    let is_part = only.is_some() || Budget::of_a_search().is_limited();
    assert!(is_part || refused > 200, "only {refused} operations found no room");
}

#[test]
fn four_threads_beside_each_other_agree_with_their_models() {
    let rounds = if std::env::var_os("SHOAL_DEEP").is_some() { 300 } else { 30 };
    for round in 0..rounds {
        let mut random = Random::new(round);
        let (mut setup, _) = setup(&mut random);
        setup.region_bytes = 300 << 16;
        setup.bulk_blocks = setup.bulk_blocks.min(1) * 200;
        let world = format(setup, round);
        let clock = Arc::new(SimClock::new(1_000_000_000));
        let (fs, _) = open_at(setup, &world, 1, 1, &clock).expect("a new store opens");
        let fs = Arc::new(fs);
        let shared = fs.mkdir(&CALLER, ROOT, b"shared", 0o777).expect("there is room");
        let walkers: Vec<Walker> = (0..4u64)
            .map(|number| {
                let own = fs.mkdir(&CALLER, ROOT, format!("own{number}").as_bytes(), 0o777).expect("there is room");
                let mut walker = Walker::new(fs.clone(), clock.clone(), round << 8 | number, &own, false);
                walker.prefix = format!("t{number}-").into_bytes();
                walker.tight = true;
                walker.share(&shared, 0);
                walker
            })
            .collect();
        let background = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let run = |mut walker: Walker| {
            for step in 0..150 {
                walker.step().unwrap_or_else(|e| panic!("round {round}, step {step}: {e}"));
            }
            walker.model.compare(&walker.fs).unwrap_or_else(|e| panic!("round {round}: {e}"));
            walker
        };
        let mut walkers: Vec<Walker> = std::thread::scope(|scope| {
            let workers: Vec<_> = walkers.into_iter().map(|walker| scope.spawn(move || run(walker))).collect();
            let ticker = scope.spawn(|| {
                while background.load(std::sync::atomic::Ordering::Relaxed) {
                    fs.upkeep().tick().and_then(|()| fs.checkpoint()).expect("background work");
                    fs.compacting().compact().expect("background work");
                    fs.region().discard_free();
                    std::thread::yield_now();
                }
            });
            let outcome: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            background.store(false, std::sync::atomic::Ordering::Relaxed);
            ticker.join().expect("background work");
            outcome.into_iter().map(|walker| walker.expect("a walker's own message is above")).collect()
        });
        check(setup, &world, false).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let reopened = |world: &World| -> Arc<Fs> {
            Arc::new(open_at(setup, world, 1, 2, &clock).unwrap_or_else(|e| panic!("round {round}: {e}")).0)
        };
        let after = world.snapshot().process_crash().open();
        let fs = reopened(&after);
        for walker in &mut walkers {
            walker.reopened(fs.clone());
            walker.model.compare(&fs).unwrap_or_else(|e| panic!("round {round}, after a crash: {e}"));
        }
    }
}
