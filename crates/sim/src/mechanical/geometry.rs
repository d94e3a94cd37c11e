//! Place of a sector: cylinder, head and angle.
//!
//! Owns: the order of sectors (track by track in a cylinder, cylinder by cylinder inwards), skew,
//! and angles. Rules: an angle is the time from the platter's zero mark to it (ns, below one turn),
//! rounded down from its exact fraction of a turn. Spans are differences of such angles, so
//! adjacent sectors meet without a gap however long a transfer is.

use std::ops::Range;

use super::drive::{Drive, Zone};

/// A sector's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub cylinder: u32,
    pub head: u32,
    /// Sector within its track, counted from the track's first.
    pub sector: u32,
    /// Sectors per track at this place.
    pub sectors_per_track: u32,
    /// Position of the track's first sector, in sectors of this track from the zero mark.
    pub skew: u32,
}

impl Place {
    pub fn track(&self) -> (u32, u32) {
        (self.cylinder, self.head)
    }
}

/// A zone, with the number of sectors and cylinders before it.
#[derive(Clone, Copy, Debug)]
struct Start {
    zone: Zone,
    sector: u64,
    cylinder: u32,
}

#[derive(Clone, Debug)]
pub struct Geometry {
    starts: Vec<Start>,
    tracks_per_cylinder: u32,
    sectors_per_block: u32,
    revolution_ns: u64,
    sectors: u64,
    cylinders: u32,
}

impl Geometry {
    pub(super) fn new(drive: &Drive) -> Geometry {
        let (mut starts, mut sector, mut cylinder) = (vec![], 0, 0);
        for &zone in &drive.zones {
            let whole = zone.sectors_per_track > 0 && zone.sectors_per_track.is_multiple_of(drive.sectors_per_block);
            assert!(whole, "{}: {} sectors are no whole blocks", drive.name, zone.sectors_per_track);
            starts.push(Start { zone, sector, cylinder });
            let tracks = u64::from(zone.cylinders) * u64::from(drive.tracks_per_cylinder);
            sector += tracks * u64::from(zone.sectors_per_track);
            cylinder += zone.cylinders;
        }
        assert!(sector > 0, "{}: a drive without sectors", drive.name);
        Geometry {
            starts,
            tracks_per_cylinder: drive.tracks_per_cylinder,
            sectors_per_block: drive.sectors_per_block,
            revolution_ns: drive.revolution_ns,
            sectors: sector,
            cylinders: cylinder,
        }
    }

    /// Returns the number of sectors of the disk.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub fn cylinders(&self) -> u32 {
        self.cylinders
    }

    /// Returns the number of blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.sectors / u64::from(self.sectors_per_block)
    }

    pub(super) fn tracks_per_cylinder(&self) -> u32 {
        self.tracks_per_cylinder
    }

    pub(super) fn sectors_per_block(&self) -> u64 {
        self.sectors_per_block.into()
    }

    /// Returns the place of a sector of the disk.
    pub fn place(&self, sector: u64) -> Place {
        assert!(sector < self.sectors, "sector {sector} of {}", self.sectors);
        let start = &self.starts[self.starts.partition_point(|start| start.sector <= sector) - 1];
        let (per_track, tracks) = (start.zone.sectors_per_track, self.tracks_per_cylinder);
        let within = sector - start.sector;
        let track = (within / u64::from(per_track)) as u32;
        self.on_track(start, track / tracks, track % tracks, (within % u64::from(per_track)) as u32)
    }

    /// Returns the first sector of a track and its place.
    pub(super) fn first_of(&self, cylinder: u32, head: u32) -> (u64, Place) {
        let start = &self.starts[self.starts.partition_point(|start| start.cylinder <= cylinder) - 1];
        let in_zone = cylinder - start.cylinder;
        let track = u64::from(in_zone) * u64::from(self.tracks_per_cylinder) + u64::from(head);
        let sector = start.sector + track * u64::from(start.zone.sectors_per_track);
        (sector, self.on_track(start, in_zone, head, 0))
    }

    fn on_track(&self, start: &Start, in_zone: u32, head: u32, sector: u32) -> Place {
        let zone = &start.zone;
        let within =
            u64::from(self.tracks_per_cylinder - 1) * u64::from(zone.track_skew) + u64::from(zone.cylinder_skew);
        let skew = u64::from(in_zone) * within + u64::from(head) * u64::from(zone.track_skew);
        Place {
            cylinder: start.cylinder + in_zone,
            head,
            sector,
            sectors_per_track: zone.sectors_per_track,
            skew: (skew % u64::from(zone.sectors_per_track)) as u32,
        }
    }

    /// Returns the angle at which sector `sector` of a place's track begins (ns, below one turn).
    pub(super) fn angle_ns(&self, place: &Place, sector: u32) -> u64 {
        let slot = u64::from((place.skew + sector) % place.sectors_per_track);
        slot * self.revolution_ns / u64::from(place.sectors_per_track)
    }

    /// Returns the time that `count` sectors from `place` on take, all on its track (ns).
    pub(super) fn span_ns(&self, place: &Place, count: u32) -> u64 {
        let per_track = u64::from(place.sectors_per_track);
        let begin = u64::from((place.skew + place.sector) % place.sectors_per_track);
        (begin + u64::from(count)) * self.revolution_ns / per_track - begin * self.revolution_ns / per_track
    }

    /// Returns the time from `at_ns` until the platter reaches an angle (ns, below one turn).
    pub(super) fn until_ns(&self, angle_ns: u64, at_ns: u64) -> u64 {
        (angle_ns + self.revolution_ns - at_ns % self.revolution_ns) % self.revolution_ns
    }

    /// Returns the ranges of blocks that share a track.
    pub fn tracks(&self) -> Vec<Range<u64>> {
        let mut tracks = vec![];
        for start in &self.starts {
            let per_track = u64::from(start.zone.sectors_per_track / self.sectors_per_block);
            let first = start.sector / u64::from(self.sectors_per_block);
            let count = u64::from(start.zone.cylinders) * u64::from(self.tracks_per_cylinder);
            tracks.extend((0..count).map(|track| first + track * per_track..first + (track + 1) * per_track));
        }
        tracks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_follow_one_another_over_tracks_cylinders_and_zones() {
        let drive = Drive::zoned().slice(18_002);
        let geometry = Geometry::new(&drive);
        let at = |sector| {
            let place = geometry.place(sector);
            (place.cylinder, place.head, place.sector, place.sectors_per_track)
        };
        let zone = 18_000 * 4 * 480;
        assert_eq!([at(0), at(479), at(480)], [(0, 0, 0, 480), (0, 0, 479, 480), (0, 1, 0, 480)]);
        assert_eq!([at(4 * 480), at(zone - 1)], [(1, 0, 0, 480), (17_999, 3, 479, 480)]);
        assert_eq!([at(zone), at(zone + 4 * 460)], [(18_000, 0, 0, 460), (18_001, 0, 0, 460)]);
        assert_eq!(geometry.sectors(), zone + 2 * 4 * 460);
        for sector in [0, 481, zone - 1, zone, zone + 5000 % 3000] {
            let place = geometry.place(sector);
            let (first, place_of_first) = geometry.first_of(place.cylinder, place.head);
            assert_eq!(first + u64::from(place.sector), sector);
            assert_eq!(place_of_first.skew, place.skew);
        }
    }

    #[test]
    fn tracks_are_the_device_and_no_block_is_on_two() {
        for drive in [Drive::hp97560().slice(36), Drive::st19101().slice(11), Drive::zoned().slice(18_001)] {
            let geometry = Geometry::new(&drive);
            let tracks = geometry.tracks();
            assert!(tracks.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((tracks[0].start, tracks.last().unwrap().end), (0, geometry.blocks()));
            for track in tracks.iter().step_by(97) {
                let of = |block: u64| geometry.place(block * geometry.sectors_per_block());
                let last = geometry.place(track.end * geometry.sectors_per_block() - 1);
                assert_eq!((of(track.start).track(), of(track.start).sector), (last.track(), 0));
            }
        }
        assert_eq!(Geometry::new(&Drive::hp97560().slice(36)).blocks(), 36 * 19 * 9);
        assert_eq!(Geometry::new(&Drive::st19101().slice(11)).blocks(), 11 * 16 * 32);
    }

    #[test]
    fn spans_add_up_to_turns_without_a_gap() {
        let drive = Drive::hp97560().slice(2);
        let geometry = Geometry::new(&drive);
        for sector in 0..geometry.sectors() {
            let place = geometry.place(sector);
            let end_ns = geometry.angle_ns(&place, place.sector) + geometry.span_ns(&place, 1);
            assert_eq!(end_ns % drive.revolution_ns, geometry.angle_ns(&place, place.sector + 1));
            assert_eq!(geometry.span_ns(&place, 72), drive.revolution_ns);
        }
    }
}
