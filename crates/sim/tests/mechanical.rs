//! The mechanical disks against closed forms.
//!
//! Owns: results that a simulated disk must match though it was not derived from them: the average
//! wait for a free sector on a track and in a cylinder, which the virtual-log paper gives; transfer
//! rates and access times that follow from a drive's figures. Tolerances are those of the claim,
//! 10%, or tighter where the form is exact. Seeds are constants.

use std::sync::Arc;

use shoal_media::{BlockDevice, Clock, Head, block};
use shoal_sim::mechanical::{Drive, Spent};
use shoal_sim::{MechanicalDisk, Random, SimClock};

fn disk(drive: Drive) -> (MechanicalDisk, Arc<SimClock>) {
    let clock = Arc::new(SimClock::new(0));
    (MechanicalDisk::new(drive, clock.clone()), clock)
}

fn close(ours: f64, form: f64, within: f64, what: &str) {
    let off = ours / form - 1.0;
    assert!(off.abs() <= within, "{what}: {ours:.4} instead of {form:.4}, off by {:.1}%", off * 100.0);
}

/// Turns the platter to a random sector boundary of the current track.
fn turn_to_a_boundary(disk: &MechanicalDisk, clock: &SimClock, random: &mut Random) {
    let drive = disk.drive();
    let per_track = u64::from(drive.zones[0].sectors_per_track);
    let angle_ns = random.below(per_track) * drive.revolution_ns / per_track;
    clock.advance((angle_ns + drive.revolution_ns - disk.position().angle_ns) % drive.revolution_ns);
}

/// Returns `count` places at random, of which exactly a fraction `free` is free.
fn pattern(count: usize, free: f64, random: &mut Random) -> Vec<bool> {
    let mut places = vec![false; count];
    places[..(count as f64 * free).round() as usize].fill(true);
    for at in (1..count).rev() {
        places.swap(at, random.below(at as u64 + 1) as usize);
    }
    places
}

#[test]
fn the_way_to_a_free_sector_of_a_track_is_the_closed_form() {
    for (drive, seed) in [(Drive::hp97560(), 1), (Drive::st19101(), 2)] {
        let name = drive.name;
        let (disk, clock) = disk(drive.slice(1).with_single_sectors());
        let disk = disk.internal();
        let mut random = Random::new(seed);
        let zone = disk.drive().zones[0];
        let n = f64::from(zone.sectors_per_track);
        for free in [0.05, 0.1, 0.2, 0.5, 0.8] {
            let rounds = 20_000;
            let (mut skipped, mut p) = (0.0, 0.0);
            for _ in 0..rounds {
                let places = pattern(n as usize, free, &mut random);
                p = places.iter().filter(|free| **free).count() as f64 / n;
                turn_to_a_boundary(&disk, &clock, &mut random);
                let on_the_track = |block: u64| places.get(block as usize) == Some(&true);
                let block = disk.nearest(&on_the_track).unwrap();
                skipped += (disk.wait_ns(block) as f64 / disk.drive().sector_ns(&zone)).round();
            }
            let form = n * (1.0 - p) / (1.0 + p * n);
            close(skipped / f64::from(rounds), form, 0.03, &format!("{name}, {free} free: sectors skipped"));
        }
    }
}

/// Computes E[min(x, y)] in sectors: P(x) = p(1-p)^x on the head's own track; y = head switch + the
/// same over t-1 tracks.
fn within_a_cylinder(p: f64, tracks: u32, switch_sectors: f64) -> f64 {
    let p_others = 1.0 - (1.0 - p).powi(tracks as i32 - 1);
    // E[min] is the integral of P(x > s) P(y > s). The steps of y begin after the switch.
    let (step, mut sum, mut s) = (1.0 / 64.0, 0.0, 0.5 / 64.0);
    while s < 2000.0 {
        let beyond = |p: f64, s: f64| if s < 0.0 { 1.0 } else { (1.0 - p).powf(s.floor() + 1.0) };
        sum += beyond(p, s) * beyond(p_others, s - switch_sectors) * step;
        s += step;
    }
    sum
}

#[test]
fn the_way_to_a_free_sector_of_a_cylinder_is_the_closed_form() {
    let hp_table = Drive { head_switch_ns: 2_500_000, ..Drive::hp97560() };
    // The paper's values at 80% utilisation (ms). Its table has a head switch of 2.5 ms.
    for (drive, paper_ms, seed) in [(hp_table, 0.78, 3), (Drive::st19101(), 0.09, 4)] {
        let name = drive.name;
        let (disk, clock) = disk(drive.slice(1).with_single_sectors());
        let disk = disk.internal();
        let mut random = Random::new(seed);
        let zone = disk.drive().zones[0];
        let sector_ns = disk.drive().sector_ns(&zone);
        let tracks = disk.drive().tracks_per_cylinder;
        for free in [0.05, 0.1, 0.2, 0.5] {
            let rounds = 10_000;
            let mut waited_ns = 0.0;
            for _ in 0..rounds {
                let limit = (free * f64::from(1 << 20)) as u64;
                let places: Vec<bool> = (0..disk.layout().blocks()).map(|_| random.below(1 << 20) < limit).collect();
                turn_to_a_boundary(&disk, &clock, &mut random);
                let block = disk.nearest(&|block| places[block as usize]).unwrap();
                waited_ns += disk.wait_ns(block) as f64;
            }
            let ours = waited_ns / f64::from(rounds);
            let form = within_a_cylinder(free, tracks, disk.drive().head_switch_ns as f64 / sector_ns) * sector_ns;
            close(ours, form, 0.1, &format!("{name}, {free} free: ns to a free sector"));
            if free == 0.2 {
                close(ours / 1e6, paper_ms, 0.1, &format!("{name}: the paper's value at 80% utilisation, ms"));
            }
        }
    }
}

#[test]
fn nearest_is_what_a_look_at_every_block_finds() {
    for (drive, seed) in [(Drive::hp97560().slice(3), 5), (Drive::zoned().slice(2), 6)] {
        let (host, clock) = disk(drive);
        let mut random = Random::new(seed);
        for view in [host.clone(), host.internal()] {
            for round in 0..300 {
                let one_in = 1 + random.below(400);
                let free: Vec<bool> = (0..view.layout().blocks()).map(|_| random.below(one_in) == 0).collect();
                clock.advance(random.below(100_000_000));
                let sectors_per_block = u64::from(view.drive().sectors_per_block);
                let cylinder = |block: &u64| view.layout().place(block * sectors_per_block).cylinder;
                let here = view.position().cylinder;
                let all = || (0..view.layout().blocks()).filter(|block| free[*block as usize]);
                let ahead = all().filter(|block| cylinder(block) >= here);
                let first_behind = all().next().map(|block| cylinder(&block));
                let expected = ahead.map(|block| view.wait_ns(block)).min().or_else(|| {
                    let wrapped = all().filter(|block| Some(cylinder(block)) == first_behind);
                    wrapped.map(|block| view.wait_ns(block)).min()
                });
                let found = view.nearest(&|block| free[block as usize]);
                assert_eq!(found.map(|block| view.wait_ns(block)), expected, "round {round}");
                if let Some(found) = found {
                    let (before, wait_ns) = (clock.monotonic_ns(), view.wait_ns(found));
                    let bytes = vec![round as u8; view.drive().block_bytes() as usize];
                    block::write(&view, found * view.drive().block_bytes(), &bytes).unwrap();
                    let zone = view.drive().zones[0];
                    let transfer_ns = view.drive().sector_ns(&zone) * sectors_per_block as f64;
                    let took_ns = (clock.monotonic_ns() - before) as f64;
                    assert!((took_ns - wait_ns as f64 - transfer_ns).abs() < 2.0, "it begins when it was said to");
                }
            }
        }
    }
}

#[test]
fn a_long_transfer_runs_at_the_rate_of_tracks_with_their_skew() {
    for drive in [Drive::hp97560(), Drive::st19101(), Drive::zoned()] {
        let (name, zone, tracks) = (drive.name, drive.zones[0], drive.tracks_per_cylinder);
        let (disk, clock) = disk(drive.slice(3));
        let bytes = disk.geometry().bytes;
        block::write(&disk, 0, &vec![7; bytes as usize]).unwrap();
        let per_track = f64::from(zone.sectors_per_track);
        let switches = 3 * (tracks - 1);
        let skews = f64::from(switches * zone.track_skew + 2 * zone.cylinder_skew) / per_track;
        let turns = f64::from(3 * tracks) + skews;
        let form_ns = turns * disk.drive().revolution_ns as f64 + disk.drive().overhead_ns as f64;
        // The wait for the first sector takes up to one turn.
        let first_ns = (disk.drive().revolution_ns - disk.drive().overhead_ns % disk.drive().revolution_ns) as f64;
        close(clock.monotonic_ns() as f64, form_ns + first_ns, 0.001, &format!("{name}: a slice written at once"));
        let spent = disk.spent();
        assert_eq!(u64::from(switches), spent.head_switch_ns / disk.drive().head_switch_ns, "{name}");
        assert_eq!((spent.requests, spent.overhead_ns), (1, disk.drive().overhead_ns));
        assert_eq!(spent.total_ns(), clock.monotonic_ns());
    }
    // HP 97560: 72 sectors in 14.99 ms are 2.46 MB/s on one track and 2.2 MB/s over many.
    let (hp, clock) = disk(Drive::hp97560().slice(1));
    let bytes = hp.geometry().bytes;
    block::write(&hp, 0, &vec![7; bytes as usize]).unwrap();
    close(bytes as f64 / clock.monotonic_ns() as f64 * 1e3, 2.2, 0.05, "MB/s of an HP 97560");
}

#[test]
fn a_random_access_costs_overhead_mean_seek_half_a_turn_and_its_transfer() {
    for (drive, seed) in [(Drive::hp97560(), 7), (Drive::st19101(), 8), (Drive::hp97560().slice(36), 9)] {
        let cylinders = drive.zones[0].cylinders;
        let count = u64::from(cylinders);
        // Two places are d cylinders apart with probability 2(N-d)/N^2, for d > 0.
        let mean_seek_ns: f64 = (1..count)
            .map(|d| 2.0 * (count - d) as f64 / (count * count) as f64 * drive.seek.seek_ns(d as u32) as f64)
            .sum();
        let transfer_ns = drive.sector_ns(&drive.zones[0]) * 8.0;
        let form_ns = drive.overhead_ns as f64 + mean_seek_ns + drive.revolution_ns as f64 / 2.0 + transfer_ns;
        let name = drive.name;
        let (disk, clock) = disk(drive);
        let mut random = Random::new(seed);
        let rounds = 20_000;
        let mut took_ns = 0;
        for _ in 0..rounds {
            // The platter has turned by a random angle since the last request.
            clock.advance(random.below(disk.drive().revolution_ns));
            let began_ns = clock.monotonic_ns();
            block::write(&disk, random.below(disk.layout().blocks()) * 4096, &[1; 4096]).unwrap();
            took_ns += clock.monotonic_ns() - began_ns;
        }
        close(took_ns as f64 / f64::from(rounds), form_ns, 0.02, &format!("{name}, {cylinders} cylinders: ns"));
    }
}

#[test]
fn inside_the_drive_only_a_command_costs_overhead() {
    let (host, clock) = disk(Drive::hp97560().slice(2));
    let inside = host.internal();
    host.command();
    let first = inside.nearest(&|_| true).unwrap();
    block::write(&inside, first * 4096, &[1; 4096]).unwrap();
    let after_first_ns = clock.monotonic_ns();
    // The neighbouring block begins at this very instant.
    let next = inside.nearest(&|block| block != first).unwrap();
    assert_eq!(inside.wait_ns(next), 0);
    block::write(&inside, next * 4096, &[2; 4096]).unwrap();
    let block_ns = 8.0 * inside.drive().sector_ns(&inside.drive().zones[0]);
    assert!(((clock.monotonic_ns() - after_first_ns) as f64 - block_ns).abs() < 2.0);
    assert_eq!(host.spent().overhead_ns, host.drive().overhead_ns);
    // For the host, the next block has passed the head before the overhead of the command is over.
    let rotation_ns = host.spent().rotation_ns;
    block::write(&host, (next + 1) * 4096, &[3; 4096]).unwrap();
    assert_eq!(host.spent().overhead_ns, 2 * host.drive().overhead_ns);
    assert!(host.spent().rotation_ns - rotation_ns > host.drive().revolution_ns / 2);
}

#[test]
fn contents_are_kept_and_what_is_out_of_range_is_refused() {
    let (disk, _) = disk(Drive::st19101().slice(1));
    let mut random = Random::new(10);
    let mut model = vec![0u8; disk.geometry().bytes as usize];
    for _ in 0..300 {
        let len = 512 * (1 + random.below(40));
        let at = 512 * random.below((model.len() as u64 - len) / 512);
        let mut bytes = vec![0; len as usize];
        random.fill(&mut bytes);
        if random.below(8) == 0 {
            bytes.fill(0);
            block::write_zeroes(&disk, at, len).unwrap();
        } else {
            block::write(&disk, at, &bytes).unwrap();
        }
        model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
    }
    let mut found = vec![0; model.len()];
    block::read(&disk.internal(), 0, &mut found).unwrap();
    assert!(found == model);
    let end = model.len() as u64;
    for (at, len) in [(end, 512), (end - 512, 1024), (1, 512), (0, 100)] {
        assert!(block::read(&disk, at, &mut vec![0; len]).is_err());
        assert!(block::write(&disk, at, &vec![0; len]).is_err());
        assert!(block::trim(&disk, at, len as u64).is_err());
    }
}

#[test]
fn a_read_behind_a_read_comes_from_the_buffer_and_a_write_ends_that() {
    let (disk, clock) = disk(Drive::hp97560().slice(2));
    let timed = |at: u64, len: usize| {
        let before = clock.monotonic_ns();
        block::read(&disk, at, &mut vec![0; len]).unwrap();
        clock.monotonic_ns() - before
    };
    timed(0, 4096);
    clock.advance(100_000_000);
    let bus_ns = (4096.0 / 10e6 * 1e9) as u64;
    assert_eq!(timed(4096, 4096), disk.drive().overhead_ns + bus_ns, "it was read while nothing else was to do");
    assert_eq!(disk.spent().buffer_hits, 1);
    // Small sequential reads never lose a turn: each waits at most for its overhead and for the
    // platter.
    let blocks = 2..90;
    let each_ns = blocks.clone().map(|block| timed(block * 4096, 4096)).sum::<u64>() as f64 / 88.0;
    assert!((2.6e6..3.0e6).contains(&each_ns), "{each_ns} ns for each of many reads in order");
    clock.advance(100_000_000);
    let hits = disk.spent().buffer_hits;
    block::write(&disk, 0, &[1; 4096]).unwrap();
    block::read(&disk, blocks.end * 4096, &mut [0; 4096]).unwrap();
    assert_eq!(disk.spent().buffer_hits, hits, "the head has been elsewhere");
}

#[test]
fn the_arm_goes_where_the_read_ahead_goes() {
    let (disk, clock) = disk(Drive::hp97560().slice(2));
    block::read(&disk, 0, &mut [0; 4096]).unwrap();
    assert_eq!(disk.position().head, 0);
    clock.advance(2 * disk.drive().revolution_ns);
    assert_eq!(disk.position().head, 1, "9 blocks a track, 32 to read ahead");
    clock.advance(1_000_000_000);
    assert_eq!(disk.position().head, 3, "and there it ends");
    let before = disk.position();
    clock.advance(disk.drive().revolution_ns);
    assert_eq!(disk.position(), before);
}

#[test]
fn one_sequence_of_requests_takes_one_time() {
    let run = || -> (u64, Spent) {
        let (disk, clock) = disk(Drive::zoned().slice(100));
        let mut random = Random::new(11);
        for _ in 0..2000 {
            let at = random.below(disk.layout().blocks() - 8) * 4096;
            let mut bytes = vec![3; 4096 * (1 + random.below(8) as usize)];
            match random.below(3) {
                0 => block::read(&disk, at, &mut bytes).unwrap(),
                1 => block::write(&disk, at, &bytes).unwrap(),
                _ => clock.advance(random.below(20_000_000)),
            }
        }
        (clock.monotonic_ns(), disk.spent())
    };
    assert_eq!(run(), run());
}

/// Checks seek and half a turn of random one-sector reads over a whole disk: what makers call the
/// mean access time.
#[test]
fn the_disks_of_the_update_report_have_its_access_times_and_rates() {
    for (drive, access_ms, rates) in [(Drive::rz58(), 18.0, [3.8, 5.0]), (Drive::rz57(), 23.0, [2.2, 2.2])] {
        let (name, revolution_s) = (drive.name, drive.revolution_ns as f64 / 1e9);
        let mut zones: Vec<f64> = drive.zones.iter().map(|zone| f64::from(zone.sectors_per_track) * 512.0).collect();
        zones.sort_by(f64::total_cmp);
        for (track_bytes, rate) in [(zones[0], rates[0]), (zones[zones.len() - 1], rates[1])] {
            close(track_bytes / revolution_s / 1e6, rate, 0.02, name);
        }
        let (disk, _) = disk(drive);
        let sectors = disk.geometry().bytes / 512;
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            disk.read_into(random.below(sectors) * 512, &mut [0; 512]).unwrap();
        }
        let spent = disk.spent();
        let positioning_ms = (spent.seek_ns + spent.head_switch_ns + spent.rotation_ns) as f64 / 20_000.0 / 1e6;
        close(positioning_ms, access_ms, 0.02, name);
    }
}
