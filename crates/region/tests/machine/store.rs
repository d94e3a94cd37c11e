//! A region on simulated media, driven by seeded steps, with the model's state after every transaction.
//!
//! Rules: the world's mark is `returned << 32 | durable`, counted in transactions. It is set after
//! every call, so a crash point knows what was promised when it was taken. A checkpoint commits
//! further transactions in the middle of its copy, at moments chosen by the seed, which gives fuzzy
//! images without threads.

use std::sync::{Arc, Mutex, Weak};

use shoal_format::slot::{CLASS_SIZES, CLASSES};
use shoal_format::superblock::{Geometry, MemoryKind, ROOTS_AT, Superblock};
use shoal_format::{SEGMENT, SlotRef};
use shoal_media::{ImageFile, LogDevice, MediaError, PersistentMemory};
use shoal_region::{Error, Lsn, Parts, Recovery, Region, Tx, newest_image};
use shoal_sim::{Call, Fault, FaultPlan, Random, SimMemory, SimMemoryKind, World};

use super::media::{DuringCopy, Plant, PlantedImage, PlantedLog, PlantedMemory, Stage};
use super::model::{OBJECTS, Object, State, WORDS, claimed, compare, object_at, word_at};

pub const REGION_BYTES: u64 = 26 * SEGMENT;
/// Small enough to wrap around about every dozen transactions.
pub const RING_BYTES: u64 = 4096;
/// Bytes written and compared in each piece.
const WINDOW: u64 = 700;
/// Bytes written in a few pieces of `logged` stores, so that their log fills and reuses segments.
const LONG_WINDOW: u64 = 6000;

/// How a store was started: its boot, and the number of openings before.
#[derive(Clone, Copy)]
pub struct Boot {
    pub boot: u8,
    pub opening: u64,
}

/// Transactions and their expected results.
pub struct Writer {
    pub random: Random,
    pub states: Vec<Arc<State>>,
    /// The LSN of each state.
    pub lsns: Vec<Lsn>,
    world: World,
    /// Number of commits a checkpoint may still make in the middle.
    during: u64,
    long_windows: bool,
}

/// The callback from a checkpoint.
struct Callback {
    writer: Arc<Mutex<Writer>>,
    region: Mutex<Weak<Region>>,
    failure: Mutex<Option<String>>,
}

impl DuringCopy for Callback {
    fn page_written(&self) {
        let Some(region) = self.region.lock().unwrap().upgrade() else { return };
        // A commit that waits for this checkpoint because the log is full holds the writer itself.
        let Ok(mut writer) = self.writer.try_lock() else { return };
        if writer.during > 0 && writer.random.below(3) == 0 {
            writer.during -= 1;
            if let Err(error) = writer.commit(&region) {
                self.failure.lock().unwrap().get_or_insert(error);
            }
        }
    }
}

pub struct Store {
    pub world: World,
    pub kind: MemoryKind,
    pub plant: Plant,
    pub writer: Arc<Mutex<Writer>>,
    pub region: Arc<Region>,
    pub recovery: Recovery,
    callback: Arc<Callback>,
    boot: Boot,
}

pub fn geometry(kind: MemoryKind) -> Geometry {
    Geometry {
        memory_kind: kind,
        uuid: [7; 16],
        region_bytes: REGION_BYTES,
        bulk_blocks: 0,
        ring_bytes: RING_BYTES,
        threshold: 1 << 20,
        hash_seed: 1,
        created_ns: 1,
    }
}

fn parts(
    world: &World,
    kind: MemoryKind,
    plant: Plant,
    boot: Boot,
    callback: &Arc<Callback>,
    create: bool,
) -> Result<Parts, Error> {
    let mut nonce = [0; 16];
    Random::new(boot.opening << 8 | boot.boot as u64).fill(&mut nonce);
    let boot_id = [boot.boot; 16];
    if kind.has_ring() {
        let layout = Superblock::layout(geometry(kind))?;
        let memory = Arc::new(PlantedMemory::new(world.memory(0), plant, &layout));
        return Ok(Parts { memory, log: None, images: None, boot_id, nonce });
    }
    let stage = Arc::new(Stage::default());
    let images: [Arc<dyn ImageFile>; 2] = [0, 1].map(|number| {
        let image = world.image(number);
        Arc::new(PlantedImage::new(image, plant, stage.clone(), callback.clone())) as Arc<dyn ImageFile>
    });
    let log: Arc<dyn LogDevice> = Arc::new(PlantedLog { inner: world.log(0), plant, stage });
    let attached = match create {
        true => None,
        false => {
            let (number, _, anchor) = newest_image(&images)?;
            Some((world.image(number), anchor.used_bytes.get()))
        }
    };
    let memory: Arc<dyn PersistentMemory> =
        SimMemory::resting(REGION_BYTES, attached, [world.image(0), world.image(1)]);
    Ok(Parts { memory, log: Some(log), images: Some(images), boot_id, nonce })
}

impl Store {
    /// Creates a new, sealed store with an empty model.
    pub fn create(seed: u64, kind: MemoryKind, plant: Plant) -> Result<Store, String> {
        let world = World::new(seed);
        match kind {
            MemoryKind::Logged => {
                world.add_log();
                world.add_image();
                world.add_image();
            }
            MemoryKind::Battery => drop(world.add_memory(REGION_BYTES, SimMemoryKind::Battery)),
            MemoryKind::Dax => drop(world.add_memory(REGION_BYTES, SimMemoryKind::Dax)),
        }
        let writer = Writer {
            random: Random::new(seed),
            states: vec![Arc::default()],
            lsns: vec![Lsn::ZERO],
            world: world.clone(),
            during: 0,
            long_windows: !kind.has_ring(),
        };
        let boot = Boot { boot: 1, opening: 0 };
        let store = Store::assemble(
            world,
            kind,
            plant,
            boot,
            writer,
            |parts| Region::create(geometry(kind), parts).map(|region| (region, Recovery::default())),
            true,
        )?;
        store.region.checkpoint().map_err(|e| format!("first checkpoint: {e}"))?;
        Ok(store)
    }

    /// Opens the store in `world`. The model's states say what it may hold.
    pub fn open(
        world: World,
        kind: MemoryKind,
        plant: Plant,
        boot: Boot,
        random: Random,
        states: Vec<Arc<State>>,
    ) -> Result<Store, String> {
        let writer = Writer {
            random,
            lsns: vec![Lsn::ZERO; states.len()],
            states,
            world: world.clone(),
            during: 0,
            long_windows: !kind.has_ring(),
        };
        Store::assemble(world, kind, plant, boot, writer, |parts| Region::open(parts, false), false)
    }

    fn assemble(
        world: World,
        kind: MemoryKind,
        plant: Plant,
        boot: Boot,
        writer: Writer,
        open: impl FnOnce(Parts) -> Result<(Region, Recovery), Error>,
        create: bool,
    ) -> Result<Store, String> {
        let writer = Arc::new(Mutex::new(writer));
        let callback =
            Arc::new(Callback { writer: writer.clone(), region: Mutex::default(), failure: Mutex::default() });
        let opened = parts(&world, kind, plant, boot, &callback, create).and_then(open);
        let (region, recovery) = opened.map_err(|e| format!("opening: {e}"))?;
        let region = Arc::new(region);
        *callback.region.lock().unwrap() = Arc::downgrade(&region);
        Ok(Store { world, kind, plant, writer, region, recovery, callback, boot })
    }

    /// Returns the region's state. It must be one of `[low, high]` and match the model exactly.
    pub fn verify(&self, low: u64, high: u64) -> Result<u64, String> {
        let found = claimed(&self.region)?;
        if found < low || found > high {
            return Err(format!("recovered transaction {found}, promised {low} to {high}"));
        }
        let writer = self.writer.lock().unwrap();
        compare(&self.region, &writer.states[found as usize]).map_err(|e| format!("transaction {found}: {e}"))?;
        Ok(found)
    }

    /// Makes the model agree with a recovered region and continues from there.
    pub fn settle(&self, found: u64) {
        let mut writer = self.writer.lock().unwrap();
        writer.states.truncate(found as usize + 1);
        let lsn = self.region.last_lsn();
        writer.lsns = vec![lsn; found as usize + 1];
        writer.mark(&self.region);
    }

    /// Performs one step chosen by the seed.
    pub fn step(&mut self) -> Result<(), String> {
        let choice = self.writer.lock().unwrap().random.below(100);
        match choice {
            0..78 => {
                let (writer, region) = (self.writer.clone(), self.region.clone());
                // Fences are bound to threads, so let other threads commit too.
                match choice % 8 {
                    0 => std::thread::spawn(move || writer.lock().unwrap().commit(&region)).join().unwrap(),
                    _ => writer.lock().unwrap().commit(&region),
                }
            }
            78..80 => self.without_room(),
            80..90 => {
                self.region.sync().map_err(|e| format!("sync: {e}"))?;
                self.writer.lock().unwrap().mark(&self.region);
                Ok(())
            }
            90..96 => self.checkpoint(),
            96..98 => self.restart(true),
            _ => self.restart(false),
        }
    }

    /// Tries a transaction or a checkpoint while the disk is full. It must leave nothing behind.
    fn without_room(&mut self) -> Result<(), String> {
        let (call, nth) = {
            let random = &mut self.writer.lock().unwrap().random;
            if random.below(2) == 0 { (Call::LogAppend, 0) } else { (Call::ImageWrite, random.below(8)) }
        };
        self.world.fail(FaultPlan { call, nth, for_good: false, fault: Fault::NoSpace });
        let outcome = match call {
            Call::LogAppend => self.writer.lock().unwrap().commit(&self.region),
            _ => self.checkpoint(),
        };
        self.world.clear_faults();
        outcome
    }

    pub fn checkpoint(&mut self) -> Result<(), String> {
        {
            let mut writer = self.writer.lock().unwrap();
            writer.during = writer.random.below(4);
        }
        match self.region.checkpoint() {
            Ok(()) | Err(Error::Media(MediaError::NoSpace { .. })) => {}
            Err(error) => return Err(format!("checkpoint: {error}")),
        }
        self.region.rest().map_err(|error| format!("rest: {error}"))?;
        let mut writer = self.writer.lock().unwrap();
        writer.during = 0;
        writer.mark(&self.region);
        self.callback.failure.lock().unwrap().take().map_or(Ok(()), Err)
    }

    /// Ends the process, cleanly or not, and opens the store again.
    pub fn restart(&mut self, clean: bool) -> Result<(), String> {
        if clean {
            self.region.shutdown().map_err(|e| format!("shutdown: {e}"))?;
            // A clean end seals everything.
            self.writer.lock().unwrap().mark(&self.region);
        }
        self.boot.opening += 1;
        let count = self.writer.lock().unwrap().states.len();
        let opened = parts(&self.world, self.kind, self.plant, self.boot, &self.callback, false);
        let (region, recovery) =
            opened.and_then(|parts| Region::open(parts, false)).map_err(|e| format!("reopening: {e}"))?;
        if clean && !recovery.clean {
            return Err("a clean end was not recognised".into());
        }
        if recovery.power_lost {
            return Err("a restart within one boot was taken for a power loss".into());
        }
        self.region = Arc::new(region);
        *self.callback.region.lock().unwrap() = Arc::downgrade(&self.region);
        self.verify(count as u64 - 1, count as u64 - 1)?;
        Ok(())
    }
}

impl Writer {
    /// Records in the world what has been promised by now.
    pub fn mark(&mut self, region: &Region) {
        let durable_lsn = region.durable_lsn();
        let durable = self.lsns.iter().rposition(|&lsn| lsn <= durable_lsn).unwrap_or(0) as u64;
        self.world.set_mark((self.states.len() as u64 - 1) << 32 | durable);
    }

    /// Commits one transaction of a few changes. Some are dropped, and some find no room.
    pub fn commit(&mut self, region: &Region) -> Result<(), String> {
        let mut tx = region.begin();
        let mut next = State::clone(self.states.last().expect("there is a first state"));
        for _ in 0..1 + self.random.below(3) {
            match self.change(&mut tx, &mut next) {
                Ok(()) => {}
                Err(Error::NoSpace(_) | Error::Media(MediaError::NoSpace { .. })) => return Ok(()),
                Err(error) => return Err(format!("building transaction {}: {error}", self.states.len())),
            }
        }
        if self.random.below(8) == 0 {
            return Ok(());
        }
        let outcome = tx.write(ROOTS_AT, &(self.states.len() as u64).to_le_bytes()).and_then(|()| tx.commit());
        let lsn = match outcome {
            Ok(lsn) => lsn,
            Err(Error::Media(MediaError::NoSpace { .. })) => return Ok(()),
            Err(error) => return Err(format!("transaction {}: {error}", self.states.len())),
        };
        self.states.push(Arc::new(next));
        self.lsns.push(lsn);
        self.mark(region);
        Ok(())
    }

    fn change(&mut self, tx: &mut Tx<'_>, next: &mut State) -> Result<(), Error> {
        let number = self.random.below(OBJECTS as u64) as usize;
        match (self.random.below(10), next.objects[number].clone()) {
            (0..2, _) => {
                let (word, mask) = (self.random.below(WORDS as u64) as usize, self.random.next_u64());
                if self.random.below(2) == 0 {
                    next.words[word] |= mask;
                    tx.set_bits(word_at(word), mask)
                } else {
                    next.words[word] &= !mask;
                    tx.clear_bits(word_at(word), mask)
                }
            }
            (2..4, Some(object)) => {
                tx.free(object.slot)?;
                self.list(tx, next, number, None)
            }
            (4..8, Some(mut object)) => {
                let at = object.at();
                let bytes = Arc::make_mut(&mut object.bytes);
                let from = self.random.below(bytes.len() as u64) as usize;
                let to = from + 1 + self.random.below((bytes.len() - from).min(80) as u64) as usize;
                if self.random.below(4) == 0 {
                    bytes[from..to].fill(0);
                    tx.zero(at + from as u64, (to - from) as u64)?;
                } else {
                    self.random.fill(&mut bytes[from..to]);
                    tx.write(at + from as u64, &bytes[from..to])?;
                }
                next.objects[number] = Some(object);
                Ok(())
            }
            (_, old) => {
                let len = match self.random.below(16) {
                    0 => SEGMENT + self.random.below(2 * SEGMENT),
                    _ => CLASS_SIZES[self.random.below(CLASSES as u64) as usize] as u64 - self.random.below(8),
                };
                let slot = tx.alloc(len)?;
                let long = self.long_windows && self.random.below(2) == 0;
                let window = len.min(if long { LONG_WINDOW } else { WINDOW });
                let start = self.random.below(len - window + 1);
                let mut object = Object { slot, start, bytes: Arc::new(vec![0; window as usize]) };
                let bytes = Arc::make_mut(&mut object.bytes);
                if window <= 160 || long {
                    self.random.fill(bytes);
                    tx.write(slot.offset() + start, bytes)?;
                } else {
                    tx.zero(slot.offset() + start, window)?;
                    let at = self.random.below(window - 64) as usize;
                    self.random.fill(&mut bytes[at..at + 64]);
                    tx.write(slot.offset() + start + at as u64, &bytes[at..at + 64])?;
                }
                if let Some(old) = old {
                    tx.free(old.slot)?;
                }
                self.list(tx, next, number, Some(object))
            }
        }
    }

    fn list(&mut self, tx: &mut Tx<'_>, next: &mut State, number: usize, object: Option<Object>) -> Result<(), Error> {
        let (slot, start) = object.as_ref().map_or((SlotRef::NONE, 0), |o| (o.slot, o.start));
        let mut entry = [0; 16];
        entry[..8].copy_from_slice(&slot.bits().to_le_bytes());
        entry[8..].copy_from_slice(&start.to_le_bytes());
        next.objects[number] = object;
        tx.write(object_at(number), &entry)
    }
}
