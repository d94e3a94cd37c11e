//! The runs: systems, disks and workload.
//!
//! Owns: [`Kind`], a system to compare; [`Point`], one run of it: disk, utilisation, burst, pause,
//! seed; the workload.
//! Rules: a run warms up with the same bursts and pauses that are measured afterwards. A latency is
//! the time from the moment a burst was due until its last update was accepted, divided by the
//! number of updates. Work that overruns its gap delays the next burst and therefore counts.

use std::fmt;
use std::sync::Arc;

use shoal_sim::mechanical::Drive;
use shoal_sim::{MechanicalDisk, Random, SimClock};

use super::eager::{Buffered, OnVirtualLog, Policy};
use super::in_place::{Delayed, InPlace};
use super::lfs::{First, Lfs};
use super::system::{BLOCK_BYTES, Result, System, World};
use super::vlog::InDrive;

/// Least number of buffer fills measured, since part of a fill does not represent the whole.
const FILLINGS_MIN: u64 = 4;
/// Least number of bursts measured.
const BURSTS_MIN: u64 = 8;

/// The systems to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// UFS on a regular disk, synchronous.
    Ufs,
    /// UFS with delayed writes in volatile memory.
    UfsDelayed,
    /// LFS with NVRAM on a regular disk.
    Lfs,
    /// UFS on a virtual-log disk, synchronous.
    UfsVld,
    /// A virtual-log file system with NVRAM.
    Vlfs,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Ufs, Kind::UfsDelayed, Kind::Lfs, Kind::UfsVld, Kind::Vlfs];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Ufs => "UFS",
            Kind::UfsDelayed => "UFS, delayed (volatile)",
            Kind::Lfs => "LFS+NVRAM",
            Kind::UfsVld => "UFS on VLD",
            Kind::Vlfs => "VLFS+NVRAM",
        }
    }
}

/// A disk of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum DiskKind {
    /// 36 cylinders of an HP 97560
    Hp97560,
    /// 11 cylinders of a Seagate ST19101
    St19101,
    /// 3 cylinders of a zoned drive of the 2020s, 7200 rpm
    Zoned,
}

impl DiskKind {
    pub fn drive(self) -> Drive {
        match self {
            DiskKind::Hp97560 => Drive::hp97560().slice(36),
            DiskKind::St19101 => Drive::st19101().slice(11),
            DiskKind::Zoned => Drive::zoned().slice(3),
        }
    }

    /// Returns the name in tables and file names.
    pub fn name(self) -> &'static str {
        match self {
            DiskKind::Hp97560 => "hp97560",
            DiskKind::St19101 => "st19101",
            DiskKind::Zoned => "zoned",
        }
    }
}

/// Parameters shared by all runs.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub buffer_bytes: u64,
    pub accept_ns: u64,
    /// The first use of a gap by LFS.
    pub first: First,
    /// Least number of updates before measuring; `measured` is that during it.
    pub warm_up: u64,
    pub measured: u64,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub kind: Kind,
    pub disk: DiskKind,
    /// Live blocks (percent of the disk's).
    pub utilisation: u32,
    /// Updates in a burst.
    pub burst: u64,
    pub idle_ns: u64,
    /// The system knows when a gap ends.
    pub foresees: bool,
    pub seed: u64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { kind, disk, utilisation, burst, idle_ns, foresees, .. } = self;
        let (burst_kb, idle_ms) = ((burst * BLOCK_BYTES) >> 10, idle_ns / 1_000_000);
        let disk = disk.name();
        let ends = if *foresees { "" } else { ", without foresight" };
        write!(f, "{} on {disk}, {utilisation}% full, bursts of {burst_kb} KB, {idle_ms} ms idle{ends}", kind.name())
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Mean of all updates (ms, simulated).
    pub latency_ms: f64,
    pub updates: u64,
}

fn system(setup: &Setup, point: &Point, world: &World) -> Result<Box<dyn System>> {
    let log = || InDrive::new(world).map(Box::new);
    Ok(match point.kind {
        Kind::Ufs => Box::new(InPlace::new(world.clone())),
        Kind::UfsDelayed => Box::new(Delayed::new(world.clone())),
        Kind::Lfs => Box::new(Lfs::new(world.clone(), setup.first)?),
        Kind::UfsVld => Box::new(OnVirtualLog::new(world.clone(), log()?)?),
        Kind::Vlfs => Box::new(Buffered::new(world.clone(), log()?, Policy::default())?),
    })
}

/// Creates a new disk with this share of live blocks (percent).
pub(super) fn world(disk: DiskKind, utilisation: u32, buffer_bytes: u64, accept_ns: u64) -> World {
    let clock = Arc::new(SimClock::new(0));
    let disk = MechanicalDisk::new(disk.drive(), clock.clone());
    World {
        live: (disk.layout().blocks() * u64::from(utilisation) / 100).max(1),
        buffer: (buffer_bytes / BLOCK_BYTES) as usize,
        accept_ns,
        foresees: true,
        clock,
        disk,
    }
}

/// Runs a point: warms up, measures, compares all blocks.
pub fn measure(setup: &Setup, point: &Point) -> Result<Figures> {
    let world = world(point.disk, point.utilisation, setup.buffer_bytes, setup.accept_ns);
    let world = World { foresees: point.foresees, ..world };
    run(setup, point, &world, &mut *system(setup, point, &world)?)
}

fn run(setup: &Setup, point: &Point, world: &World, system: &mut dyn System) -> Result<Figures> {
    // Every system gets the same updates.
    let mut random = Random::new(point.seed);
    // Without memory there is nothing to warm up. Without a buffer there are no fills to average
    // over.
    let (warm_up, measured) = match point.kind {
        Kind::Ufs => (0, setup.measured),
        Kind::UfsVld => (setup.warm_up / 2, setup.measured / 3),
        _ => (setup.warm_up, setup.measured.max(FILLINGS_MIN * world.buffer as u64)),
    };
    let measured = measured.max(BURSTS_MIN * point.burst);
    let (mut done, mut updates, mut burst_ns) = (0, 0, 0);
    let mut due_ns = world.now_ns();
    while updates < measured {
        for _ in 0..point.burst {
            system.update(random.below(world.live))?;
        }
        if done >= warm_up {
            updates += point.burst;
            burst_ns += world.now_ns() - due_ns;
        }
        done += point.burst;
        due_ns = world.now_ns() + point.idle_ns;
        system.idle(due_ns)?;
        world.clock.advance(world.left_ns(due_ns));
    }
    system.check()?;
    Ok(Figures { latency_ms: burst_ns as f64 / 1e6 / updates as f64, updates })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup =
        Setup { buffer_bytes: 6 << 20, accept_ns: 100_000, first: First::Write, warm_up: 1000, measured: 4000 };

    fn point(kind: Kind, disk: DiskKind, idle_ns: u64) -> Point {
        Point { kind, disk, utilisation: 80, burst: 32, idle_ns, foresees: true, seed: 1 }
    }

    #[test]
    fn update_in_place_is_the_closed_form() {
        for disk in [DiskKind::Hp97560, DiskKind::St19101, DiskKind::Zoned] {
            let drive = disk.drive();
            // The file takes the first 80% of the cylinders. Two places in it are d apart with
            // probability 2(N-d)/N^2.
            let n = 0.8 * f64::from(drive.zones[0].cylinders);
            let seek_ns: f64 =
                (1..n.ceil() as u32).map(|d| 2.0 * (n - f64::from(d)) / (n * n) * drive.seek.seek_ns(d) as f64).sum();
            let block_ns = drive.sector_ns(&drive.zones[0]) * f64::from(drive.sectors_per_block);
            let same_cylinder = 1.0 / n * (1.0 - 1.0 / f64::from(drive.tracks_per_cylinder));
            let switch_ns = same_cylinder * drive.head_switch_ns as f64;
            let fixed_ns = (SETUP.accept_ns + drive.overhead_ns + drive.revolution_ns / 2) as f64;
            let form_ms = (fixed_ns + seek_ns + switch_ns + block_ns) / 1e6;
            let ours_ms = measure(&SETUP, &point(Kind::Ufs, disk, 0)).unwrap().latency_ms;
            assert!((ours_ms / form_ms - 1.0).abs() < 0.05, "{}: {ours_ms} instead of {form_ms}", disk.name());
        }
    }

    #[test]
    fn one_seed_makes_one_result_and_another_another() {
        for kind in Kind::ALL {
            let at = point(kind, DiskKind::St19101, 20_000_000);
            let first = measure(&SETUP, &at).unwrap();
            assert_eq!(first, measure(&SETUP, &at).unwrap());
            let in_memory = first.latency_ms <= 0.1001;
            assert!(in_memory || first != measure(&SETUP, &Point { seed: 2, ..at }).unwrap(), "{}", kind.name());
        }
    }

    /// A system that works for one and a half times the time it is given.
    struct Overrun(World);

    impl System for Overrun {
        fn update(&mut self, _: u64) -> Result<()> {
            self.0.accept();
            Ok(())
        }

        fn idle(&mut self, until_ns: u64) -> Result<()> {
            self.0.clock.advance(self.0.left_ns(until_ns) * 3 / 2);
            Ok(())
        }

        fn check(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn work_that_runs_over_a_gap_makes_the_next_burst_late() {
        let at = point(Kind::Lfs, DiskKind::St19101, 64_000_000);
        let world = world(at.disk, 80, SETUP.buffer_bytes, SETUP.accept_ns);
        let found = run(&SETUP, &at, &world, &mut Overrun(world.clone())).unwrap();
        // The overrun is 32 ms over 32 updates.
        assert!((found.latency_ms - 1.1).abs() < 1e-9, "{}", found.latency_ms);
    }

    #[test]
    fn without_foresight_a_step_runs_over_the_end_of_a_gap() {
        for kind in [Kind::Lfs, Kind::UfsVld] {
            // A gap that no step fits into.
            let short = point(kind, DiskKind::Hp97560, 4_000_000);
            let foreseen = measure(&SETUP, &short).unwrap().latency_ms;
            let unforeseen = measure(&SETUP, &Point { foresees: false, ..short }).unwrap().latency_ms;
            assert!(unforeseen > foreseen * 1.02, "{}: {foreseen} {unforeseen}", kind.name());
            // Without a gap there is nothing to foresee.
            let none = Point { idle_ns: 0, ..short };
            assert_eq!(measure(&SETUP, &none).unwrap(), measure(&SETUP, &Point { foresees: false, ..none }).unwrap());
        }
    }

    #[test]
    fn a_file_that_fits_into_the_buffer_is_updated_at_memory_speed() {
        for kind in [Kind::Lfs, Kind::Vlfs, Kind::UfsDelayed] {
            let at = Point { utilisation: 20, ..point(kind, DiskKind::Hp97560, 0) };
            let found = measure(&SETUP, &at).unwrap();
            assert!((found.latency_ms - 0.1).abs() < 1e-9, "{}: {}", kind.name(), found.latency_ms);
        }
    }
}
