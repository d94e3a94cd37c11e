//! A log-structured file system with a write buffer in NVRAM and a cleaner that works in gaps.
//!
//! Owns: [`Lfs`]: segments of 0.5 MB, each written whole in one request; the buffer of 6.1 MB; the
//! cleaner. Where the paper leaves a choice open, this model takes the better one. A block in the
//! buffer makes its copy on the disk dead at once. The map and segment summaries cost nothing. The
//! cleaner collects live blocks in its own NVRAM of one segment and writes them when it is full; it
//! reads a segment in one request and takes the one with the fewest live blocks.
//! Rules: a segment is written when at least 75% of it can be filled, and then counts as full. A
//! full buffer goes to the disk entirely, with cleaning when segments run out. In a gap a segment
//! is cleaned or written only if that fits, never in part. Which of the two comes first is an
//! option, see [`First`].

use shoal_media::block;

use super::system::{BLOCK_BYTES, Buffer, ModelError, Result, System, World};

/// Blocks of a segment: 0.5 MB.
pub const SEGMENT_BLOCKS: usize = 128;
/// The partial-segment threshold: 75%.
pub const WRITTEN_FROM: usize = SEGMENT_BLOCKS * 3 / 4;
/// Empty segments that only the cleaner may use.
const RESERVE: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Buffer,
    Cleaner,
    Disk { segment: u32, slot: u32 },
}

#[derive(Clone, Debug, Default)]
struct Segment {
    /// Blocks as they were written. Blocks that have moved elsewhere are dead. Empty for a free
    /// segment.
    blocks: Vec<u64>,
    live: usize,
}

/// First use of a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum First {
    /// Write segments from the buffer while there are empty segments, and clean when there are none
    #[default]
    Write,
    /// Clean until no more segments can be emptied, then write
    Clean,
}

/// Counters of the cleaner and the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub cleaned: u64,
    pub copied: u64,
    pub flushed: u64,
}

pub struct Lfs {
    world: World,
    first: First,
    buffer: Buffer,
    places: Vec<Place>,
    segments: Vec<Segment>,
    /// Live blocks of cleaned segments that wait to be written.
    cleaner: Vec<u64>,
    counts: Counts,
    /// Longest times so far to read and to write a segment (ns).
    longest_read_ns: u64,
    longest_write_ns: u64,
}

impl Lfs {
    /// Creates the system with the file on the disk, in order, in full segments.
    pub fn new(world: World, first: First) -> Result<Lfs> {
        let segments = vec![Segment::default(); world.capacity() as usize / SEGMENT_BLOCKS];
        let mut lfs = Lfs {
            first,
            buffer: Buffer::new(&world),
            places: vec![Place::Buffer; world.live as usize],
            segments,
            cleaner: vec![],
            counts: Counts::default(),
            longest_read_ns: 0,
            longest_write_ns: 0,
            world,
        };
        if (lfs.world.live as usize).div_ceil(SEGMENT_BLOCKS) + RESERVE >= lfs.segments.len() {
            return Err(ModelError::NoRoom(format!("{} blocks in {} segments", lfs.world.live, lfs.segments.len())));
        }
        let file: Vec<u64> = (0..lfs.world.live).collect();
        for (segment, blocks) in file.chunks(SEGMENT_BLOCKS).enumerate() {
            lfs.fill(segment, blocks);
        }
        Ok(lfs)
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn fill(&mut self, segment: usize, blocks: &[u64]) {
        self.segments[segment] = Segment { blocks: blocks.to_vec(), live: blocks.len() };
        for (slot, &block) in blocks.iter().enumerate() {
            self.places[block as usize] = Place::Disk { segment: segment as u32, slot: slot as u32 };
        }
    }

    /// Marks the previous copy of a block as dead.
    fn forget(&mut self, block: u64) {
        match self.places[block as usize] {
            Place::Buffer => {}
            Place::Cleaner => self.cleaner.retain(|held| *held != block),
            Place::Disk { segment, .. } => self.segments[segment as usize].live -= 1,
        }
    }

    fn empties(&self) -> usize {
        self.segments.iter().filter(|segment| segment.live == 0).count()
    }

    /// Writes blocks to an empty segment.
    fn write(&mut self, blocks: &[u64]) -> Result<()> {
        let empty = self.segments.iter().position(|segment| segment.live == 0).expect("one is kept empty");
        let (world, at) = (&self.world, empty * SEGMENT_BLOCKS);
        let bytes = vec![1; blocks.len() * BLOCK_BYTES as usize];
        let (_, took_ns) = world.timed(|| Ok(block::write(&world.disk, at as u64 * BLOCK_BYTES, &bytes)?))?;
        self.longest_write_ns = self.longest_write_ns.max(took_ns);
        self.fill(empty, blocks);
        Ok(())
    }

    /// Returns the segment with the fewest live blocks, among those that have any.
    fn victim(&self) -> Option<usize> {
        let used = (0..self.segments.len()).filter(|&segment| self.segments[segment].live > 0);
        used.min_by_key(|&segment| self.segments[segment].live)
    }

    fn clean(&mut self, victim: usize) -> Result<()> {
        let segment = std::mem::take(&mut self.segments[victim]);
        let (world, at) = (&self.world, victim * SEGMENT_BLOCKS);
        let mut bytes = vec![0; segment.blocks.len() * BLOCK_BYTES as usize];
        let (_, took_ns) = world.timed(|| Ok(block::read(&world.disk, at as u64 * BLOCK_BYTES, &mut bytes)?))?;
        self.longest_read_ns = self.longest_read_ns.max(took_ns);
        for (slot, block) in segment.blocks.into_iter().enumerate() {
            let was_here = Place::Disk { segment: victim as u32, slot: slot as u32 };
            if self.places[block as usize] == was_here {
                self.places[block as usize] = Place::Cleaner;
                self.cleaner.push(block);
                self.counts.copied += 1;
            }
        }
        self.counts.cleaned += 1;
        if self.cleaner.len() >= SEGMENT_BLOCKS {
            let full: Vec<u64> = self.cleaner.drain(..SEGMENT_BLOCKS).collect();
            self.write(&full)?;
        }
        Ok(())
    }

    /// Writes up to one segment from the buffer. Cleans first if no segment is empty.
    fn flush(&mut self) -> Result<()> {
        let mut cleaned = 0;
        while self.empties() <= RESERVE {
            let victim = self.victim().filter(|&victim| self.segments[victim].live < SEGMENT_BLOCKS);
            let Some(victim) = victim.filter(|_| cleaned <= 2 * self.segments.len()) else {
                return Err(ModelError::NoRoom("cleaning gains nothing".into()));
            };
            self.clean(victim)?;
            cleaned += 1;
        }
        let blocks = self.buffer.take(SEGMENT_BLOCKS);
        self.counts.flushed += blocks.len() as u64;
        self.write(&blocks)
    }

    /// Returns the time to clean a segment, judging by the times so far (ns).
    fn cleaning_ns(&self, victim: usize) -> u64 {
        let writes = self.cleaner.len() + self.segments[victim].live >= SEGMENT_BLOCKS;
        self.longest_read_ns + if writes { self.longest_write_ns } else { 0 }
    }

    /// Counts the dead blocks of used segments.
    fn dead(&self) -> usize {
        let used = self.segments.iter().filter(|segment| segment.live > 0);
        used.map(|segment| SEGMENT_BLOCKS - segment.live).sum()
    }
}

impl System for Lfs {
    fn update(&mut self, block: u64) -> Result<()> {
        self.world.accept();
        if self.buffer.holds(block) {
            return Ok(());
        }
        if self.buffer.is_full() {
            while self.buffer.len() >= WRITTEN_FROM {
                self.flush()?;
            }
        }
        self.forget(block);
        self.places[block as usize] = Place::Buffer;
        self.buffer.put(block);
        Ok(())
    }

    fn idle(&mut self, until_ns: u64) -> Result<()> {
        loop {
            let left_ns = self.world.room_ns(until_ns);
            let is_due = self.buffer.len() >= WRITTEN_FROM && self.empties() > RESERVE;
            // Cleaning gains another segment only if there are more dead blocks than blocks in the
            // cleaner.
            let victim = self.victim().filter(|_| self.dead() > self.cleaner.len());
            let cleans = match self.first {
                First::Write => !(is_due && left_ns >= self.longest_write_ns),
                First::Clean => victim.is_some(),
            };
            match victim {
                Some(victim) if cleans && left_ns >= self.cleaning_ns(victim).max(1) => self.clean(victim)?,
                // Cleaning does not fit into the gap.
                Some(_) if cleans => return Ok(()),
                _ if is_due && left_ns >= self.longest_write_ns => self.flush()?,
                _ => return Ok(()),
            }
        }
    }

    fn check(&mut self) -> Result<()> {
        let mut live = vec![0; self.segments.len()];
        for (block, place) in self.places.iter().enumerate() {
            let block = block as u64;
            let is_there = match *place {
                Place::Buffer => self.buffer.holds(block),
                Place::Cleaner => self.cleaner.contains(&block),
                Place::Disk { segment, slot } => {
                    live[segment as usize] += 1;
                    self.segments[segment as usize].blocks.get(slot as usize) == Some(&block)
                }
            };
            if !is_there {
                return Err(ModelError::Broken(format!("lfs: block {block} is not at {place:?}")));
            }
        }
        if !self.segments.iter().map(|segment| segment.live).eq(live) {
            return Err(ModelError::Broken("lfs: live blocks are counted wrong".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use shoal_sim::Random;

    use super::super::points::{DiskKind, world};
    use super::*;

    fn lfs(utilisation: u32) -> (World, Lfs) {
        let world = world(DiskKind::Hp97560, utilisation, 6_396_000, 100_000);
        (world.clone(), Lfs::new(world, First::Write).unwrap())
    }

    #[test]
    fn no_block_is_lost_and_dead_ones_are_not_copied() {
        let (world, mut lfs) = lfs(80);
        let mut random = Random::new(1);
        for n in 0..40_000 {
            lfs.update(random.below(world.live)).unwrap();
            if n % 1000 == 0 {
                lfs.check().unwrap();
                lfs.idle(world.now_ns() + random.below(2_000_000_000)).unwrap();
                lfs.check().unwrap();
            }
        }
        let Counts { cleaned, copied, flushed } = lfs.counts();
        assert!(cleaned > 100 && flushed > 20_000, "{cleaned} {flushed}");
        assert!(copied < cleaned * SEGMENT_BLOCKS as u64 * 3 / 4, "{copied} copied from {cleaned} segments");
    }

    #[test]
    fn a_gap_shorter_than_a_segment_takes_is_of_no_use() {
        let (world, mut lfs) = lfs(80);
        let mut random = Random::new(2);
        for _ in 0..10_000 {
            lfs.update(random.below(world.live)).unwrap();
        }
        assert!(lfs.longest_write_ns > 200_000_000, "half a megabyte at 2.1 MB/s");
        let before = world.disk.spent();
        let short_ns = lfs.longest_write_ns.min(lfs.longest_read_ns) - 1_000_000;
        lfs.idle(world.now_ns() + short_ns).unwrap();
        assert_eq!(world.disk.spent(), before);
        let until_ns = world.now_ns() + 60_000_000_000;
        lfs.idle(until_ns).unwrap();
        assert!(world.disk.spent().requests > before.requests && world.now_ns() < until_ns);
        assert!(lfs.buffer.len() < WRITTEN_FROM, "there was time for all of it");
        assert!(lfs.dead() <= lfs.cleaner.len(), "and to gather all dead blocks");
        lfs.check().unwrap();
    }

    #[test]
    fn a_cleaner_that_is_first_leaves_the_buffer_alone_until_there_is_nothing_to_clean() {
        for first in [First::Write, First::Clean] {
            let (world, mut lfs) = lfs(80);
            lfs.first = first;
            let mut random = Random::new(3);
            for _ in 0..10_000 {
                lfs.update(random.below(world.live)).unwrap();
            }
            let (before, held) = (lfs.counts(), lfs.buffer.len());
            assert!(held > 2 * SEGMENT_BLOCKS && lfs.dead() > 5 * SEGMENT_BLOCKS);
            lfs.idle(world.now_ns() + 1_500_000_000).unwrap();
            assert!(lfs.counts().cleaned > before.cleaned);
            assert_eq!(lfs.buffer.len() == held, first == First::Clean);
        }
    }

    #[test]
    fn a_disk_without_spare_segments_is_no_room() {
        let world = world(DiskKind::Hp97560, 99, 6_396_000, 100_000);
        assert!(matches!(Lfs::new(world, First::Write), Err(ModelError::NoRoom(_))));
    }

    #[test]
    fn a_block_at_the_wrong_place_is_noticed() {
        let (_, mut lfs) = lfs(50);
        lfs.check().unwrap();
        lfs.places.swap(3, 700);
        assert!(lfs.check().is_err());
    }
}
