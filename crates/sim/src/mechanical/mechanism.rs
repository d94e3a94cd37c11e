//! Arm and platter: what a request costs, and where a write can begin soonest.
//!
//! Owns: the position of the arm, the read-ahead in progress, and the cost of requests by cause.
//! Rules: nothing here keeps time; the caller passes in the time and gets back how long a request
//! takes. Read-ahead uses the time between requests and ends with the next one; the arm is then on
//! the track that the read-ahead reached. A query moves nothing.

use std::ops::Range;

use super::drive::Drive;
use super::geometry::{Geometry, Place};

/// The parts that do not move.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub drive: &'a Drive,
    pub geometry: &'a Geometry,
}

/// Position of arm and platter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub cylinder: u32,
    pub head: u32,
    /// Time since the platter's zero mark passed the heads (ns, below one turn).
    pub angle_ns: u64,
}

/// Time spent on requests, by cause (ns, simulated).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Requests, including those without any bytes. Commands charged alone are not counted.
    pub requests: u64,
    /// Reads served at least partly from read-ahead.
    pub buffer_hits: u64,
    pub overhead_ns: u64,
    /// Time to move the arm, including switches between cylinders inside a transfer.
    pub seek_ns: u64,
    pub head_switch_ns: u64,
    pub rotation_ns: u64,
    pub transfer_ns: u64,
}

impl Spent {
    pub fn total_ns(&self) -> u64 {
        self.overhead_ns + self.seek_ns + self.head_switch_ns + self.rotation_ns + self.transfer_ns
    }

    pub(super) fn add(&mut self, other: &Spent) {
        self.requests += other.requests;
        self.buffer_hits += other.buffer_hits;
        self.overhead_ns += other.overhead_ns;
        self.seek_ns += other.seek_ns;
        self.head_switch_ns += other.head_switch_ns;
        self.rotation_ns += other.rotation_ns;
        self.transfer_ns += other.transfer_ns;
    }
}

/// Sectors that the drive reads though nobody has asked for them yet.
#[derive(Clone, Debug)]
struct ReadAhead {
    /// First sector in the buffer.
    held: u64,
    /// Sectors still being read.
    sectors: Range<u64>,
    /// Earliest time at which the first of them came under the head (ns).
    from_ns: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Mechanism {
    /// Cylinder and head.
    track: (u32, u32),
    ahead: Option<ReadAhead>,
}

/// Progress of a transfer.
struct Progress {
    cost: Spent,
    track: (u32, u32),
}

impl Mechanism {
    pub fn position(&self, site: &Site, now_ns: u64) -> Position {
        let (cylinder, head) = self.track_at(site, now_ns);
        Position { cylinder, head, angle_ns: now_ns % site.drive.revolution_ns }
    }

    /// Returns the track the arm is on. Read-ahead may have moved it.
    fn track_at(&self, site: &Site, now_ns: u64) -> (u32, u32) {
        let Some(ahead) = &self.ahead else { return self.track };
        self.read_ahead(site, ahead, now_ns).1
    }

    /// Follows the read-ahead. Returns the number of sectors read by `now_ns`, the track that the
    /// arm is on by then, and the time at which the last of `ahead.sectors` will have been read
    /// (ns).
    fn read_ahead(&self, site: &Site, ahead: &ReadAhead, now_ns: u64) -> (u64, (u32, u32), u64) {
        let (mut at_ns, mut done, mut track, mut last) = (ahead.from_ns, 0, self.track, self.track);
        let mut sector = ahead.sectors.start;
        while sector < ahead.sectors.end {
            let place = site.geometry.place(sector);
            let (seek_ns, head_ns) = site.drive.switch_ns(last, place.track());
            at_ns += seek_ns + head_ns;
            if at_ns <= now_ns {
                track = place.track();
            }
            last = place.track();
            at_ns += site.geometry.until_ns(site.geometry.angle_ns(&place, place.sector), at_ns);
            let count = (ahead.sectors.end - sector).min(u64::from(place.sectors_per_track - place.sector));
            let span_ns = site.geometry.span_ns(&place, count as u32);
            if at_ns + span_ns <= now_ns {
                done += count;
            } else if at_ns <= now_ns {
                done +=
                    (0..count).rev().find(|&n| at_ns + site.geometry.span_ns(&place, n as u32) <= now_ns).unwrap_or(0);
            }
            at_ns += span_ns;
            sector += count;
        }
        (done, track, at_ns)
    }

    /// Returns the time until a transfer of a block could begin (ns), counted from `start_ns` after
    /// `now_ns`.
    pub fn wait_ns(&self, site: &Site, now_ns: u64, start_ns: u64, block: u64) -> u64 {
        let place = site.geometry.place(block * site.geometry.sectors_per_block());
        let (seek_ns, head_ns) = site.drive.switch_ns(self.track_at(site, now_ns + start_ns), place.track());
        let moved_ns = seek_ns + head_ns;
        let angle_ns = site.geometry.angle_ns(&place, place.sector);
        moved_ns + site.geometry.until_ns(angle_ns, now_ns + start_ns + moved_ns)
    }

    /// Returns the cost of a request and leaves the arm where the request ends. Without sectors the
    /// cost is only the overhead.
    pub fn serve(&mut self, site: &Site, now_ns: u64, start_ns: u64, sectors: Range<u64>, is_read: bool) -> Spent {
        let mut progress =
            Progress { cost: Spent { requests: 1, overhead_ns: start_ns, ..Spent::default() }, track: self.track };
        if sectors.is_empty() {
            return progress.cost;
        }
        let begin_ns = now_ns + start_ns;
        let ahead = self.ahead.take();
        let hit = ahead.as_ref().filter(|ahead| is_read && (ahead.held..ahead.sectors.end).contains(&sectors.start));
        if let Some(hit) = hit {
            return self.serve_from_buffer(site, hit, begin_ns, sectors, progress);
        }
        if let Some(ahead) = &ahead {
            progress.track = self.read_ahead(site, ahead, begin_ns).1;
        }
        transfer(site, begin_ns, sectors.clone(), &mut progress);
        self.end(site, now_ns, sectors.end, is_read, progress)
    }

    /// Serves a read that begins with sectors that the drive has read or is about to read.
    fn serve_from_buffer(
        &mut self,
        site: &Site,
        hit: &ReadAhead,
        begin_ns: u64,
        sectors: Range<u64>,
        mut progress: Progress,
    ) -> Spent {
        let now_ns = begin_ns - progress.cost.overhead_ns;
        let (done, track, _) = self.read_ahead(site, hit, begin_ns);
        let in_buffer = hit.sectors.start + done;
        progress.cost.buffer_hits = 1;
        progress.track = track;
        let bytes = (sectors.end.min(in_buffer).saturating_sub(sectors.start)) * u64::from(site.drive.sector_bytes);
        let bus_ns = (u128::from(bytes) * 1_000_000_000 / u128::from(site.drive.bus_bytes_per_s)) as u64;
        if sectors.end <= in_buffer {
            progress.cost.transfer_ns += bus_ns;
            let limit = self.limit(site, sectors.end);
            let mut ahead = hit.clone();
            if in_buffer == hit.sectors.end && limit > in_buffer {
                // Read-ahead had finished; the buffer has room again.
                self.track = track;
                ahead = ReadAhead { held: hit.held, sectors: in_buffer..limit, from_ns: begin_ns };
            } else {
                ahead.sectors.end = ahead.sectors.end.max(limit);
            }
            self.ahead = Some(ahead);
            return progress.cost;
        }
        // The rest comes from the platter. The drive continues with the sector under the head
        // instead of waiting a whole turn, so the transfer begins at the end of the last sector
        // read.
        let (_, _, due_ns) =
            self.read_ahead(site, &ReadAhead { sectors: hit.sectors.start..sectors.end, ..hit.clone() }, begin_ns);
        progress.cost.transfer_ns += (due_ns.saturating_sub(begin_ns)).max(bus_ns);
        progress.track = site.geometry.place(sectors.end - 1).track();
        self.end(site, now_ns, sectors.end, true, progress)
    }

    fn end(&mut self, site: &Site, now_ns: u64, end: u64, is_read: bool, progress: Progress) -> Spent {
        self.track = progress.track;
        let limit = self.limit(site, end);
        self.ahead = (is_read && limit > end).then(|| ReadAhead {
            held: end,
            sectors: end..limit,
            from_ns: now_ns + progress.cost.total_ns(),
        });
        progress.cost
    }

    /// Returns the sector at which read-ahead stops after a read that ends before `end`.
    fn limit(&self, site: &Site, end: u64) -> u64 {
        let last = site.geometry.place(end - 1);
        let (first, _) = site.geometry.first_of(last.cylinder, 0);
        let per_cylinder = u64::from(last.sectors_per_track) * u64::from(site.geometry.tracks_per_cylinder());
        (end + site.drive.read_ahead_bytes / u64::from(site.drive.sector_bytes)).min(first + per_cylinder)
    }

    /// Implements `Head::nearest`. Towards the last cylinder, the search goes on only while the
    /// seek alone is shorter than the best wait so far. After wrapping around, it takes the first
    /// cylinder with a free block.
    pub fn nearest(&self, site: &Site, now_ns: u64, start_ns: u64, is_free: &dyn Fn(u64) -> bool) -> Option<u64> {
        let at = self.track_at(site, now_ns + start_ns);
        let begin_ns = now_ns + start_ns;
        let mut best: Option<(u64, u64)> = None;
        for cylinder in at.0..site.geometry.cylinders() {
            if best.is_some_and(|(wait_ns, _)| site.drive.seek.seek_ns(cylinder - at.0) >= wait_ns) {
                break;
            }
            soonest_in(site, at, cylinder, begin_ns, is_free, &mut best);
        }
        for cylinder in 0..at.0 {
            if best.is_some() {
                break;
            }
            soonest_in(site, at, cylinder, begin_ns, is_free, &mut best);
        }
        best.map(|(_, block)| block)
    }
}

/// Updates `best` (wait in ns, block) with the soonest free block of a cylinder, if that is sooner.
fn soonest_in(
    site: &Site,
    at: (u32, u32),
    cylinder: u32,
    begin_ns: u64,
    is_free: &dyn Fn(u64) -> bool,
    best: &mut Option<(u64, u64)>,
) {
    let tracks = site.geometry.tracks_per_cylinder();
    let per_block = site.geometry.sectors_per_block() as u32;
    // The head's own track comes first, so that of two equal waits the one without a switch wins.
    for head in (0..tracks).map(|step| (at.1 + step) % tracks) {
        let (first, place) = site.geometry.first_of(cylinder, head);
        let (seek_ns, head_ns) = site.drive.switch_ns(at, (cylinder, head));
        let moved_ns = seek_ns + head_ns;
        let blocks = place.sectors_per_track / per_block;
        let wait_ns = |block: u32| {
            moved_ns + site.geometry.until_ns(site.geometry.angle_ns(&place, block * per_block), begin_ns + moved_ns)
        };
        // Begin at the block that comes first under the head. From it on, waits only grow.
        let angle_ns = (begin_ns + moved_ns) % site.drive.revolution_ns;
        let sector = next_sector(&place, angle_ns, site.drive.revolution_ns);
        let next = sector.div_ceil(per_block) % blocks;
        // Testing a block is cheap; computing a wait costs divisions. Compute one wait for a track
        // whose first block comes too late, and one for the block found.
        if best.is_some_and(|(best_ns, _)| wait_ns(next) >= best_ns) {
            continue;
        }
        let index = |block: u32| first / u64::from(per_block) + u64::from(block);
        let found = (0..blocks).map(|step| (next + step) % blocks).find(|block| is_free(index(*block)));
        if let Some(block) = found {
            let wait_ns = wait_ns(block);
            if best.is_none_or(|(best_ns, _)| wait_ns < best_ns) {
                *best = Some((wait_ns, index(block)));
            }
        }
    }
}

/// Returns the sector of a place's track that begins next at or after an angle.
fn next_sector(place: &Place, angle_ns: u64, revolution_ns: u64) -> u32 {
    let per_track = u64::from(place.sectors_per_track);
    // Angles are rounded down: find the slot with the least rounded angle not below `angle_ns`.
    let mut slot = angle_ns * per_track / revolution_ns;
    while slot * revolution_ns / per_track < angle_ns {
        slot += 1;
    }
    ((slot + per_track - u64::from(place.skew)) % per_track) as u32
}

/// Moves sectors under the heads, track by track, and adds up the cost.
fn transfer(site: &Site, begin_ns: u64, sectors: Range<u64>, progress: &mut Progress) {
    let mut at_ns = begin_ns;
    let mut sector = sectors.start;
    while sector < sectors.end {
        let place = site.geometry.place(sector);
        let (seek_ns, head_ns) = site.drive.switch_ns(progress.track, place.track());
        at_ns += seek_ns + head_ns;
        let wait_ns = site.geometry.until_ns(site.geometry.angle_ns(&place, place.sector), at_ns);
        let count = (sectors.end - sector).min(u64::from(place.sectors_per_track - place.sector));
        let span_ns = site.geometry.span_ns(&place, count as u32);
        at_ns += wait_ns + span_ns;
        sector += count;
        progress.track = place.track();
        progress.cost.seek_ns += seek_ns;
        progress.cost.head_switch_ns += head_ns;
        progress.cost.rotation_ns += wait_ns;
        progress.cost.transfer_ns += span_ns;
    }
}
