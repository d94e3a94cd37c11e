//! Shared by the tests of the virtual log: a small disk, a random workload with a model, and the
//! judge after a crash.
//!
//! A block of the model is eight tags, one for each sector. A sector with tag 0 is zeros, any other
//! sector repeats its tag. The model keeps every content a block ever had, with the number of the
//! operation that wrote it. After a crash, a block must hold its contents at the last completed
//! flush, or something written to it since. Everything depends only on the seed.

#![allow(dead_code)]

use std::ops::Range;
use std::sync::Arc;

use shoal_format::Sums;
use shoal_format::vlog::map::List;
use shoal_format::vlog::{LOG_AT, Record, SUPERBLOCK_AT, Superblock, TAIL_AT, Tail};
use shoal_media::{BlockDevice, Head, MediaError, Request, WriteCache};
use shoal_sim::{CrashPoint, Limits, Random, SimClock, World};
use shoal_vlog::{Choice, FormatOptions, Options, Placement, VirtualLog, VlogError};

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;
const SECTORS: usize = BLOCK / SECTOR;
/// The tags of a block.
pub type Content = [u64; SECTORS];

/// A head over tracks of 32 blocks that only moves forward.
pub struct Sweep {
    blocks: u64,
    at: std::sync::Mutex<u64>,
}

impl Head for Sweep {
    fn nearest(&self, is_free: &dyn Fn(u64) -> bool) -> Option<u64> {
        let mut at = self.at.lock().unwrap();
        let found = (*at..self.blocks).chain(0..*at).find(|&block| is_free(block))?;
        // Skip ahead, so that neighbouring blocks are not written consecutively.
        *at = (found + 3) % self.blocks;
        Some(found)
    }

    fn tracks(&self) -> Vec<Range<u64>> {
        (0..self.blocks / 32).map(|n| n * 32..(n + 1) * 32).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With checkpoints whose map blocks are small, so that there are several.
    Segments,
    /// With more segments between two checkpoints than a full disk has free.
    Larger,
    /// Without checkpoints, as made by earlier versions.
    Earlier,
    Anywhere,
}

impl Kind {
    /// Chooses a kind by seed, most often one with checkpoints.
    pub fn of(seed: u64) -> Kind {
        match seed % 12 {
            0 | 3 | 6 | 9 => Kind::Anywhere,
            4 | 10 => Kind::Earlier,
            7 => Kind::Larger,
            _ => Kind::Segments,
        }
    }

    pub fn has_checkpoints(self) -> bool {
        matches!(self, Kind::Segments | Kind::Larger)
    }

    /// Number of blocks of the device below.
    pub fn blocks(self) -> u64 {
        match self {
            Kind::Segments => 4 + 12 * 32 + 48,
            Kind::Larger => 4 + 40 * 32 + 112,
            Kind::Earlier => 4 + 12 * 32,
            Kind::Anywhere => 160,
        }
    }

    pub fn format(self, salt: u64) -> FormatOptions {
        let placement = match self {
            Kind::Segments | Kind::Larger | Kind::Earlier => Placement::Segments { blocks: 32 },
            Kind::Anywhere => Placement::Anywhere,
        };
        let map_pieces = if self.has_checkpoints() { 4 } else { 0 };
        FormatOptions { uuid: [9; 16], salt, placement, map_pieces, ..FormatOptions::default() }
    }

    pub fn options(self) -> Options {
        let head: Option<Arc<dyn Head>> = match self {
            Kind::Segments | Kind::Larger | Kind::Earlier => None,
            Kind::Anywhere => Some(Arc::new(Sweep { blocks: self.blocks(), at: std::sync::Mutex::new(7) })),
        };
        Options { head, choice: Choice::CostBenefit, watch: None }
    }

    pub fn open(self, device: Arc<dyn BlockDevice>) -> Result<(VirtualLog, shoal_vlog::Recovery), VlogError> {
        VirtualLog::open(device, Arc::new(SimClock::new(0)), self.options())
    }
}

pub fn ask(disk: &dyn BlockDevice, request: Request) -> Result<Vec<u8>, MediaError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    disk.submit(request, Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap()
}

/// Returns a sector with this tag. It ends with its own CRC32C, like much of what programs write,
/// so the CRC32C of the whole is the same for all tags.
fn sector_of(tag: u64) -> Vec<u8> {
    let mut sector = tag.to_le_bytes().repeat(SECTOR / 8);
    if tag != 0 {
        let sum = shoal_format::checksum(0, &sector[..SECTOR - 4]);
        sector[SECTOR - 4..].copy_from_slice(&sum.to_le_bytes());
    }
    sector
}

pub fn bytes_of(content: &Content) -> Vec<u8> {
    content.iter().flat_map(|&tag| sector_of(tag)).collect()
}

pub fn content_of(block: &[u8]) -> Result<Content, String> {
    let mut content = [0; SECTORS];
    for (tag, sector) in content.iter_mut().zip(block.chunks_exact(SECTOR)) {
        *tag = u64::from_le_bytes(sector[..8].try_into().unwrap());
        if sector != sector_of(*tag) {
            return Err("a sector of several writes".into());
        }
    }
    Ok(content)
}

#[derive(Clone, Debug)]
enum Step {
    /// Writes tags from a sector on.
    Write {
        sector: usize,
        tags: Vec<u64>,
        fua: bool,
    },
    Drop {
        sector: usize,
        count: usize,
        exact: bool,
    },
    Flush,
    WriteOut,
    Compact(u32),
    Close,
}

/// The history of every block's contents.
#[derive(Clone)]
pub struct Model {
    /// For each block, its contents and the operations that wrote them.
    history: Vec<Vec<(u64, Content)>>,
    /// Numbers of the operations that were flushes.
    flushes: Vec<u64>,
    /// Number of operations done.
    pub done: u64,
}

impl Model {
    pub fn new(blocks: usize) -> Model {
        Model { history: vec![vec![(0, [0; SECTORS])]; blocks], flushes: vec![0], done: 0 }
    }

    fn now(&self, block: usize) -> Content {
        self.history[block].last().unwrap().1
    }

    fn put(&mut self, sector: usize, tag: u64) {
        let (block, operation) = (sector / SECTORS, self.done + 1);
        let mut content = self.now(block);
        content[sector % SECTORS] = tag;
        match self.history[block].last_mut() {
            Some((when, last)) if *when == operation => *last = content,
            _ => self.history[block].push((operation, content)),
        }
    }

    /// Returns whether `block` may have `content` after a crash when `done` operations were over.
    fn allows(&self, block: usize, content: &Content, done: u64) -> bool {
        let flushed = self.flushes.iter().rev().find(|&&flush| flush <= done).copied().unwrap_or(0);
        let history = &self.history[block];
        let base = history.iter().rposition(|(when, _)| *when <= flushed).unwrap_or(0);
        history[base..].iter().take_while(|(when, _)| *when <= done + 1).any(|(_, other)| other == content)
    }

    fn allowed(&self, block: usize, done: u64) -> Vec<u64> {
        self.history[block].iter().rev().take_while(|(when, _)| *when + 40 > done).map(|(_, c)| c[0]).collect()
    }

    /// Makes the present contents the only ones, and durable.
    fn settled(&mut self, contents: &[Content]) {
        for (history, &content) in self.history.iter_mut().zip(contents) {
            *history = vec![(self.done, content)];
        }
        self.flushes = vec![self.done];
    }
}

/// A disk and its model, under a random workload.
pub struct Life {
    pub disk: VirtualLog,
    pub kind: Kind,
    pub model: Model,
    pub random: Random,
    device: Arc<dyn BlockDevice>,
    tag: u64,
}

impl Life {
    pub fn new(kind: Kind, device: Arc<dyn BlockDevice>, seed: u64) -> Life {
        VirtualLog::format(&*device, &kind.format(seed)).unwrap();
        Life::over(kind, device, seed)
    }

    /// Makes a life on a disk with the block sums of earlier versions.
    pub fn with_former_sums(kind: Kind, device: Arc<dyn BlockDevice>, seed: u64) -> Life {
        VirtualLog::format(&*device, &kind.format(seed)).unwrap();
        for at in SUPERBLOCK_AT {
            let mut block = vec![0; BLOCK];
            device.read_into(at as u64 * BLOCK as u64, &mut block).unwrap();
            let superblock = Superblock { sums: Sums::Crc32c, ..Superblock::decode(&block).unwrap() };
            device.write_from(at as u64 * BLOCK as u64, &superblock.encode()).unwrap();
        }
        Life::over(kind, device, seed)
    }

    fn over(kind: Kind, device: Arc<dyn BlockDevice>, seed: u64) -> Life {
        let (disk, recovery) = kind.open(device.clone()).unwrap();
        assert!(recovery.clean);
        let blocks = (disk.geometry().bytes / BLOCK as u64) as usize;
        Life { disk, kind, model: Model::new(blocks), random: Random::new(seed), device, tag: 0 }
    }

    fn next(&mut self) -> Step {
        let sectors = (self.model.history.len() * SECTORS) as u64;
        let random = &mut self.random;
        let kind = random.below(100);
        // Some blocks are written far more often than others.
        let hot = random.below(3) > 0;
        let block = random.below(if hot { sectors / 32 } else { sectors / 8 });
        match kind {
            0..60 => {
                let blocks = 1 + random.below(if kind < 50 { 3 } else { 40 });
                let (mut from, mut count) = (block * 8, blocks * 8);
                if random.below(8) == 0 {
                    (from, count) = (from + random.below(8), 1 + random.below(12));
                }
                let count = count.min(sectors - from) as usize;
                let mut tags = vec![0; count];
                for tag in &mut tags {
                    if self.tag.is_multiple_of(3) || random.below(2) == 0 {
                        self.tag += 1;
                    }
                    // Sometimes write the same bytes again.
                    *tag = if random.below(20) == 0 { 1 } else { self.tag };
                }
                Step::Write { sector: from as usize, tags, fua: random.below(10) == 0 }
            }
            60..68 => {
                let count = (8 * (1 + random.below(20))).min(sectors - block * 8) as usize;
                Step::Drop { sector: (block * 8) as usize, count, exact: random.below(2) == 0 }
            }
            68..78 => Step::Flush,
            78..86 => Step::WriteOut,
            86..99 => Step::Compact(1 + random.below(6) as u32),
            _ => Step::Close,
        }
    }

    /// Performs one operation. Crash points carry its number once it is over.
    pub fn step(&mut self) {
        let step = self.next();
        self.carry_out(step);
    }

    /// Writes a few blocks to the device at once, without a flush.
    pub fn write_through(&mut self) {
        let blocks = self.model.history.len() as u64;
        self.tag += 1;
        let count = if self.random.below(2) == 0 { 1 } else { 1 + self.random.below(9) };
        let sector = self.random.below(blocks - count) as usize * SECTORS;
        let tags = vec![self.tag; SECTORS * count as usize];
        self.carry_out(Step::Write { sector, tags, fua: false });
        self.carry_out(Step::WriteOut);
    }

    fn carry_out(&mut self, step: Step) {
        let at = |sector: usize| (sector * SECTOR) as u64;
        let name = format!("{step:?}");
        let outcome = match step {
            Step::Write { sector, tags, fua } => {
                let buffer = tags.iter().flat_map(|&tag| sector_of(tag)).collect();
                tags.iter().enumerate().for_each(|(n, &tag)| self.model.put(sector + n, tag));
                let outcome = ask(&self.disk, Request::Write { at: at(sector), buffer, fua }).map(drop);
                if fua {
                    self.model.flushes.push(self.model.done + 1);
                }
                outcome
            }
            Step::Drop { sector, count, exact } => {
                (sector..sector + count).for_each(|sector| self.model.put(sector, 0));
                let (at, len) = (at(sector), at(count));
                let request =
                    if exact { Request::WriteZeroes { at, len, fua: false } } else { Request::Trim { at, len } };
                ask(&self.disk, request).map(drop)
            }
            Step::Flush => {
                let outcome = ask(&self.disk, Request::Flush).map(drop);
                self.model.flushes.push(self.model.done + 1);
                outcome
            }
            Step::WriteOut => self.disk.write_waiting(),
            Step::Compact(steps) => (0..steps).try_for_each(|_| self.disk.compact_step().map(drop)),
            Step::Close => self.disk.close().map(|()| {
                let opened = self.kind.open(self.device.clone()).unwrap_or_else(|error| panic!("reopening: {error}"));
                assert!(opened.1.clean, "a clean end was not recognised");
                self.disk = opened.0;
                self.model.flushes.push(self.model.done + 1);
            }),
        };
        outcome.unwrap_or_else(|error| panic!("operation {}, {name}: {error}", self.model.done + 1));
        self.model.done += 1;
    }

    /// Checks that everything matches the model.
    pub fn compare(&self) -> Result<(), String> {
        let contents = read_all(&self.disk)?;
        let wrong = contents.iter().enumerate().find(|(block, content)| self.model.now(*block) != **content);
        match wrong {
            None => Ok(()),
            Some((block, content)) => Err(format!("block {block} holds {content:?}, not {:?}", self.model.now(block))),
        }
    }

    /// Continues with the disk found after a crash.
    pub fn reborn(&mut self, device: Arc<dyn BlockDevice>) -> Result<(), String> {
        let (disk, _) = self.kind.open(device.clone()).map_err(|error| format!("opening: {error}"))?;
        let contents = read_all(&disk)?;
        self.model.settled(&contents);
        (self.disk, self.device) = (disk, device);
        Ok(())
    }
}

pub fn read_all(disk: &VirtualLog) -> Result<Vec<Content>, String> {
    let mut bytes = vec![0; disk.geometry().bytes as usize];
    disk.read_into(0, &mut bytes).map_err(|error| format!("reading: {error}"))?;
    let decode = |(n, block)| content_of(block).map_err(|error| format!("block {n}: {error}"));
    bytes.chunks_exact(BLOCK).enumerate().map(decode).collect()
}

/// Opens the disk as a crash left it and compares it with the model, `done` operations after its beginning.
pub fn judge(kind: Kind, world: &World, model: &Model, done: u64) -> Result<(VirtualLog, Vec<Content>), String> {
    let (disk, recovery) = kind.open(world.disk(0)).map_err(|error| format!("opening: {error}"))?;
    if kind.has_checkpoints() && !recovery.checkpoint {
        return Err("no crash may cost the checkpoint".into());
    }
    let contents = read_all(&disk)?;
    for (block, content) in contents.iter().enumerate() {
        if !model.allows(block, content, done) {
            let allowed = model.allowed(block, done);
            return Err(format!("block {block} holds {content:?}, lately {allowed:?}"));
        }
    }
    Ok((disk, contents))
}

/// Numbers of states tried.
#[derive(Default)]
pub struct Tried {
    pub states: u64,
    pub second: u64,
}

/// Parameters for enumerating one life.
pub struct Plan {
    pub warm_up: u64,
    pub steps: u64,
    pub limits: Limits,
    /// Every `every_second`th state gets a second crash.
    pub every_second: u64,
}

/// Judges all states after every event of a random life, after its warm-up.
pub fn enumerate(kind: Kind, seed: u64, plan: &Plan, tried: &mut Tried) -> Result<(), String> {
    let world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    let mut life = Life::new(kind, device, seed);
    (0..plan.warm_up).for_each(|_| life.step());
    world.set_mark(life.model.done);
    world.record(true);
    for _ in 0..plan.steps {
        life.step();
        world.set_mark(life.model.done);
    }
    let mut points = world.points();
    points.push(world.snapshot());
    judge_points(kind, &points, &life.model, plan, tried)
}

/// Judges all states of some crash points. After some of them, a second crash interrupts the
/// recovery from the first.
fn judge_points(
    kind: Kind,
    points: &[CrashPoint],
    model: &Model,
    plan: &Plan,
    tried: &mut Tried,
) -> Result<(), String> {
    for point in points {
        let states = std::iter::once(point.process_crash()).chain(point.power_losses(&plan.limits));
        for state in states {
            let world = state.open();
            tried.states += 1;
            let again = tried.states.is_multiple_of(plan.every_second);
            world.record(again);
            let name = |error: String| format!("{}: {error}", state.name());
            let (disk, contents) = judge(kind, &world, model, point.mark()).map_err(name)?;
            if !again {
                continue;
            }
            world.record(false);
            // Nothing was read before recovery ended, so any outcome that the first crash allows is
            // right.
            for second in world.points() {
                for state in second.power_losses(&Limits::few()) {
                    tried.second += 1;
                    let name = |error: String| format!("{}, second crash: {error}", state.name());
                    judge(kind, &state.open(), model, point.mark()).map_err(name)?;
                }
            }
            // Contents that were read stay from here on, whatever happens next.
            drop(disk);
            let (disk, found) = judge(kind, &world, model, point.mark()).map_err(name)?;
            if found != contents {
                return Err(name("another recovery found something else".into()));
            }
            drop(disk);
            for state in world.snapshot().power_losses(&Limits::few()) {
                let (_, found) = judge(kind, &state.open(), model, point.mark()).map_err(name)?;
                if found != contents {
                    return Err(format!("{}: what was recovered did not stay", state.name()));
                }
            }
        }
    }
    Ok(())
}

/// Runs a life with checkpoints that ends in a crash, and keeps earlier images of the device. Then,
/// in turn, each block of the map area and each tail record is changed, zeroed, or replaced with an
/// earlier version. Returns how often the log was scanned.
pub fn damage(seed: u64) -> Result<u32, String> {
    let kind = Kind::Segments;
    let world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    let mut life = Life::new(kind, device.clone(), seed);
    let image = || {
        let mut bytes = vec![0; device.geometry().bytes as usize];
        device.read_into(0, &mut bytes).map(|()| bytes).map_err(|error| error.to_string())
    };
    let mut images = vec![];
    for _ in 0..4 {
        for _ in 0..20 + life.random.below(80) {
            life.step();
        }
        images.push(image()?);
    }
    ask(&life.disk, Request::Flush).map_err(|error| error.to_string())?;
    life.model.done += 1;
    life.model.flushes.push(life.model.done);
    let now = image()?;
    let superblock = Superblock::decode(&now[..BLOCK]).map_err(|error| error.to_string())?;
    let area = superblock.log_end()..superblock.physical_blocks;
    let mut scanned = 0;
    for block in TAIL_AT.into_iter().chain(area) {
        let place = block as usize * BLOCK..(block as usize + 1) * BLOCK;
        let mut flipped = now[place.clone()].to_vec();
        flipped[life.random.below(BLOCK as u64) as usize] ^= 1 << life.random.below(8);
        let older = images.iter().map(|image| image[place.clone()].to_vec());
        for damaged in older.chain([flipped, vec![0; BLOCK]]).filter(|bytes| *bytes != now[place.clone()]) {
            let world = World::new(seed);
            let device = world.add_disk(now.len() as u64);
            device.write_from(0, &now).map_err(|error| error.to_string())?;
            device.write_from(place.start as u64, &damaged).map_err(|error| error.to_string())?;
            let (disk, recovery) = kind.open(device).map_err(|error| format!("block {block}: {error}"))?;
            scanned += !recovery.checkpoint as u32;
            let contents = read_all(&disk)?;
            for (n, content) in contents.iter().enumerate() {
                if !life.model.allows(n, content, life.model.done) {
                    return Err(format!("block {block} damaged: block {n} holds {content:?}"));
                }
            }
        }
    }
    Ok(scanned)
}

/// Runs a life that ends cleanly. Then, in turn, each record of the segment that holds the last one
/// is lost, and each block of segment names in both copies. The disk is refused, or holds what was
/// written. Counts both outcomes.
pub fn damage_of_the_closed(kind: Kind, seed: u64) -> Result<(u32, u32), String> {
    let world = World::new(seed);
    let device = world.add_disk(kind.blocks() * BLOCK as u64);
    let mut life = Life::new(kind, device.clone(), seed);
    for _ in 0..200 + life.random.below(200) {
        life.step();
    }
    life.disk.close().map_err(|error| error.to_string())?;
    let mut image = vec![0; device.geometry().bytes as usize];
    device.read_into(0, &mut image).map_err(|error| error.to_string())?;
    let block = |at: u32| &image[at as usize * BLOCK..][..BLOCK];
    let superblock = Superblock::decode(block(0)).map_err(|error| error.to_string())?;
    let tails = TAIL_AT.into_iter().filter_map(|at| Tail::decode(block(at), &superblock).ok());
    let root = tails.max_by_key(|tail| tail.generation).and_then(|tail| tail.root).ok_or("it is not closed")?;
    let size = superblock.segment_blocks;
    let segment = LOG_AT + (root.at - LOG_AT) / size * size;
    let records = (segment..segment + size).filter(|&at| Record::decode(block(at), at, &superblock).is_ok());
    let mut damages: Vec<Vec<u32>> = records.map(|at| vec![at]).collect();
    if let Some(area) = superblock.area {
        for (side, index) in (0..2).flat_map(|side| (0..area.list_blocks).map(move |index| (side, index))) {
            damages.push((0..2).map(|copy| superblock.list_at(side, copy, index)).collect());
        }
    }
    let (mut refused, mut right) = (0, 0);
    for lost in damages {
        let world = World::new(seed);
        let device = world.add_disk(image.len() as u64);
        device.write_from(0, &image).map_err(|error| error.to_string())?;
        for &at in &lost {
            device.write_from(at as u64 * BLOCK as u64, &[0; BLOCK]).map_err(|error| error.to_string())?;
        }
        let Ok((disk, recovery)) = kind.open(device) else {
            refused += 1;
            continue;
        };
        right += 1;
        for (n, content) in read_all(&disk)?.iter().enumerate() {
            if !life.model.allows(n, content, life.model.done) {
                let clean = recovery.clean;
                return Err(format!("blocks {lost:?} lost, root {root:?}, clean {clean}: block {n} holds {content:?}"));
            }
        }
    }
    Ok((refused, right))
}

/// A device that checks that a durable list names each segment before it is written.
struct Witness {
    inner: Arc<dyn BlockDevice>,
    superblock: Superblock,
    lists: std::sync::Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    newest: u64,
    written: Vec<(u64, u32)>,
    durable: std::collections::HashSet<(u64, u32)>,
    broken: Option<String>,
    opened: u64,
}

impl Witness {
    fn sees(&self, at: u64, bytes: &[u8]) {
        let mut lists = self.lists.lock().unwrap();
        for (block, bytes) in ((at / BLOCK as u64) as u32..).zip(bytes.chunks_exact(BLOCK)) {
            if block >= self.superblock.log_end() {
                let Ok(list) = List::decode(bytes, &self.superblock) else { continue };
                lists.newest = lists.newest.max(list.number);
                lists.written.extend(list.segments.iter().map(|&segment| (list.number, segment)));
            } else if block >= LOG_AT && (block - LOG_AT).is_multiple_of(self.superblock.segment_blocks) {
                let segment = (block - LOG_AT) / self.superblock.segment_blocks;
                lists.opened += 1;
                // The first record of a new disk is written before there is a list.
                if lists.newest > 0 && !lists.durable.contains(&(lists.newest, segment)) {
                    lists.broken = Some(format!("segment {segment} is not in the durable list {}", lists.newest));
                }
            }
        }
    }
}

impl BlockDevice for Witness {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> shoal_media::BlockGeometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, done: shoal_media::Completion) {
        match &request {
            Request::Write { at, buffer, .. } => self.sees(*at, buffer),
            Request::Flush => {
                let mut lists = self.lists.lock().unwrap();
                let written = std::mem::take(&mut lists.written);
                lists.durable.extend(written);
            }
            _ => {}
        }
        self.inner.submit(request, done);
    }
}

/// Runs a long life under a witness. Returns how many segments were opened.
pub fn name_in_time(kind: Kind, seed: u64) -> Result<u64, String> {
    let world = World::new(seed);
    let (inner, scratch) = (world.add_disk(kind.blocks() * BLOCK as u64), world.add_disk(kind.blocks() * BLOCK as u64));
    let superblock = VirtualLog::format(&*scratch, &kind.format(seed)).map_err(|error| error.to_string())?;
    let witness = Arc::new(Witness { inner, superblock, lists: std::sync::Mutex::default() });
    let mut life = Life::new(kind, witness.clone(), seed);
    (0..1500).for_each(|_| life.step());
    let lists = witness.lists.lock().unwrap();
    lists.broken.clone().map_or(Ok(lists.opened), Err)
}
