//! A store on simulated media that changes its size: opening whatever layout is there, checking it,
//! resizing it.
//!
//! `battery` memory is one medium for each region there has been. A region whose first page is
//! blank has been removed. If no region is there, the newest image is restored into a new one, as
//! the command line does it. Left out: what a test expects.

use std::sync::Arc;

use shoal_check::{BulkDevices, BulkOpener, ImageSource, Source};
use shoal_format::bulk_list::BulkDeviceEntry;
use shoal_format::superblock::{MemoryKind, SUPERBLOCK_AT, Superblock};
use shoal_format::{BULK_BLOCK, PAGE, SEGMENT};
use shoal_fs::{AtRest, Fs, Limits, Options, Parts, Refused, Relayout, Steps};
use shoal_media::{ImageFile, PersistentMemory};
use shoal_region::Recovery;
use shoal_sim::{SimClock, SimImage, SimMemory, SimMemoryKind, World};

use crate::store;

/// Blocks of the bulk device: more than any layout here uses.
pub const DEVICE_BLOCKS: u64 = 1200;

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub kind: MemoryKind,
    pub segments: u64,
    /// 0: no bulk device.
    pub bulk_blocks: u64,
}

pub struct Media {
    pub world: World,
    pub kind: MemoryKind,
    bulk: bool,
    /// The power was lost since the last opening, so the end of the log may have holes.
    pub power_lost: bool,
    /// Number of regions there have been.
    memories: usize,
    openings: u8,
}

fn superblock_of(memory: &dyn PersistentMemory) -> Option<Superblock> {
    let mut page = [0; PAGE as usize];
    memory.read(SUPERBLOCK_AT, &mut page);
    Superblock::decode(&page).ok()
}

impl Media {
    pub fn format(setup: Setup, seed: u64) -> Media {
        let world = World::new(seed);
        world.add_image();
        world.add_image();
        world.add_log();
        if setup.bulk_blocks > 0 {
            world.add_used_disk(DEVICE_BLOCKS * BULK_BLOCK, store::FOREIGN);
        }
        let mut media =
            Media { world, kind: setup.kind, bulk: setup.bulk_blocks > 0, power_lost: false, memories: 0, openings: 0 };
        let formatted = store::Setup {
            kind: setup.kind,
            saved: true,
            region_bytes: setup.segments * SEGMENT,
            ring_bytes: 256 << 10,
            bulk_blocks: setup.bulk_blocks,
            threshold: 80 << 10,
            cached: false,
        };
        let memory: Arc<dyn PersistentMemory> = match setup.kind {
            MemoryKind::Logged => SimMemory::volatile(formatted.region_bytes, None),
            _ => media.add_region(formatted.region_bytes),
        };
        Fs::format(media.parts(memory), &store::format_options(formatted, seed)).expect("the store is formatted");
        media
    }

    /// Returns the same media in another world, after a crash.
    pub fn over(&self, world: World) -> Media {
        Media {
            world,
            kind: self.kind,
            bulk: self.bulk,
            power_lost: false,
            memories: self.memories,
            openings: self.openings,
        }
    }

    fn add_region(&mut self, bytes: u64) -> Arc<SimMemory> {
        self.memories += 1;
        self.world.add_memory(bytes, SimMemoryKind::Battery)
    }

    pub fn images(&self) -> [Arc<dyn ImageFile>; 2] {
        [self.world.image(0), self.world.image(1)]
    }

    fn image(&self, number: usize) -> Arc<SimImage> {
        self.world.image(number)
    }

    /// Returns the region of a `battery` store, if there is one.
    fn region(&self) -> Option<Arc<SimMemory>> {
        (0..self.memories)
            .map(|number| self.world.memory(number))
            .find(|memory| superblock_of(memory.as_ref()).is_some())
    }

    fn parts(&mut self, memory: Arc<dyn PersistentMemory>) -> Parts {
        self.openings += 1;
        let log = (self.kind == MemoryKind::Logged).then(|| self.world.log(0) as Arc<dyn shoal_media::LogDevice>);
        let nonce = [self.openings; 16];
        let boot_id = [1 + u8::from(self.power_lost); 16];
        let region = shoal_region::Parts { memory, log, images: Some(self.images()), boot_id, nonce };
        let bulk = self.bulk.then(|| self.world.disk(0) as Arc<dyn shoal_media::BlockDevice>);
        Parts { region, bulk, clock: Arc::new(SimClock::new(self.openings as i64 * 3_600_000_000_000)) }
    }

    pub fn try_open(&mut self) -> Result<(Fs, Recovery), String> {
        let memory: Arc<dyn PersistentMemory> = match (self.kind, self.region()) {
            (MemoryKind::Logged, _) => self.image_memory()?.1,
            (_, Some(region)) => {
                let mut page = [0; PAGE as usize];
                region.read(PAGE, &mut page);
                let anchor = shoal_format::superblock::AnchorRecord::newest(&page).map_err(|e| e.to_string())?;
                let superblock = superblock_of(region.as_ref()).ok_or("no superblock")?;
                let region: Arc<dyn PersistentMemory> = region;
                let end = shoal_region::ring_end(&region, &superblock, &anchor).map_err(|e| format!("ring: {e}"))?;
                shoal_region::compare(&self.images(), &superblock, &anchor, end).map_err(|e| format!("parted: {e}"))?;
                region
            }
            (_, None) => {
                let images = self.images();
                let (_, superblock, anchor) =
                    shoal_region::newest_image(&images).map_err(|e| format!("images: {e}"))?;
                if anchor.flags.get() & 1 == 0 {
                    return Err("the region is gone, and its image lacks something".into());
                }
                let memory = self.add_region(superblock.region_bytes);
                shoal_region::restore(
                    &images,
                    memory.as_ref(),
                    0,
                    self.openings as u32,
                    shoal_region::DevicesBeside::Later,
                )
                .map_err(|e| format!("restore: {e}"))?;
                memory
            }
        };
        let parts = self.parts(memory);
        Fs::open(parts, Options { no_atime: true, pack_age: Some(std::time::Duration::ZERO), ..Options::default() })
            .map_err(|e| format!("opening: {e}"))
    }

    pub fn open(&mut self) -> Fs {
        self.try_open().unwrap_or_else(|e| panic!("{e}")).0
    }

    /// Reads the newest image into its own memory. Returns the image's number and the memory.
    pub fn image_memory(&self) -> Result<(usize, Arc<SimMemory>), String> {
        let (newest, superblock, anchor) =
            shoal_region::newest_image(&self.images()).map_err(|e| format!("images: {e}"))?;
        let used = anchor.used_bytes.get().next_multiple_of(PAGE);
        Ok((newest, SimMemory::volatile(superblock.region_bytes, Some((self.image(newest), used)))))
    }

    /// Checks that the offline checker finds nothing wrong.
    pub fn check(&self) -> Result<(), String> {
        let (images, log, region) = (self.images(), self.world.log(0), self.region());
        let image = match &region {
            Some(region) => ImageSource::Memory(region.as_ref()),
            None => ImageSource::Images([images[0].as_ref(), images[1].as_ref()]),
        };
        self.judge(image, (self.kind == MemoryKind::Logged).then_some(&*log as &dyn shoal_media::LogDevice))
    }

    fn judge(&self, image: ImageSource<'_>, log: Option<&dyn shoal_media::LogDevice>) -> Result<(), String> {
        let bulk_bytes = self.bulk.then_some(DEVICE_BLOCKS * BULK_BLOCK);
        let open = || Ok(store::bulk_data(&self.world));
        let bulk: Option<&BulkOpener<'_>> = if self.bulk { Some(&open) } else { None };
        let find = |entry: &BulkDeviceEntry| store::disk_of(&self.world, entry);
        let devices = Some(BulkDevices { find: &find, restored: false });
        let source =
            Source { image, log, bulk_bytes, power_lost: self.power_lost, loss_boots: &[], sums: true, bulk, devices };
        store::check_source(source).map(drop)
    }

    pub fn superblock(&self) -> Superblock {
        shoal_region::newest_image(&self.images()).unwrap().1
    }

    /// Returns the older image if it has another layout than the newest, or none.
    pub fn image_of_another_layout(&self) -> Option<usize> {
        let (newest, superblock, _) = shoal_region::newest_image(&self.images()).ok()?;
        let mut page = [0; PAGE as usize];
        self.images()[1 - newest].read(SUPERBLOCK_AT, &mut page).unwrap();
        (!Superblock::decode(&page).is_ok_and(|found| found == superblock)).then_some(1 - newest)
    }

    pub fn is_blank(&self, image: usize) -> bool {
        let mut bytes = vec![0; 16 << 20];
        self.images()[image].read(0, &mut bytes).unwrap();
        bytes.iter().all(|&byte| byte == 0)
    }

    pub fn limits(&self) -> Limits {
        let superblock = self.superblock();
        Limits { region_bytes: superblock.region_bytes, bulk_blocks: superblock.bulk_blocks }
    }

    pub fn plan(&self, limits: Limits) -> Result<Relayout, Refused> {
        let (_, memory) = self.image_memory().unwrap();
        Relayout::plan(memory.as_ref(), &self.superblock(), limits).expect("the tables decode")
    }

    /// Resizes a store that was shut down.
    pub fn carry_out(&self, plan: &Relayout) -> shoal_fs::Result<()> {
        let (_, memory) = self.image_memory().unwrap();
        self.carry_out_from(plan, memory.as_ref())
    }

    /// Like [`Media::carry_out`], from bytes that need not be the image's.
    pub fn carry_out_from(&self, plan: &Relayout, memory: &dyn PersistentMemory) -> shoal_fs::Result<()> {
        let images = self.images();
        let (newest, _, anchor) = shoal_region::newest_image(&images).unwrap();
        let store = AtRest { images: &images, newest, anchor, memory };
        let incarnation = match self.kind {
            MemoryKind::Battery => shoal_region::next_incarnation(anchor.incarnation.get(), 77),
            _ => anchor.incarnation.get(),
        };
        plan.carry_out(&store, incarnation, &mut SimSteps { media: self })
    }
}

struct SimSteps<'a> {
    media: &'a Media,
}

impl Steps for SimSteps<'_> {
    fn verify(&mut self, candidate: &dyn ImageFile) -> shoal_fs::Result<()> {
        let log = self.media.world.log(0);
        let log = (self.media.kind == MemoryKind::Logged).then_some(&*log as &dyn shoal_media::LogDevice);
        self.media
            .judge(ImageSource::Images([candidate, &shoal_media::BlankImage]), log)
            .map_err(shoal_fs::Error::Corrupt)
    }

    fn before_seal(&mut self) -> shoal_fs::Result<()> {
        if let Some(region) = self.media.region() {
            region.zero(SUPERBLOCK_AT, PAGE);
        }
        Ok(())
    }
}
