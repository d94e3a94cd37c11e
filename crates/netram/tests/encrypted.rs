//! Lives of an encrypted disk over donors in memory: torn writes, donors that die, and what a donor sees.
//!
//! Every life writes, flushes, and loses its client; the next client finds all that was flushed, and
//! of the rest the old or the new contents of each sector. Left out: the engine's own faults
//! (`network.rs`), and real processes (`tests/nbd/operators`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use shoal_format::ram::{DiskSuperblock, SLOTS_BYTES, Standing};
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, WriteCache, block};
use shoal_netram::{Config, Disk, DonorInfo, DonorState, Policy, SEALED_ALIGNMENT, SUPERBLOCK_BYTES, SealKey, Status};
use shoal_sim::{Random, SimClock};

const SECTOR: usize = 512;
const DONOR_BYTES: usize = 600 << 10;
const DISK_BYTES: u64 = 512 << 10;
const PLAIN: &[u8; 16] = b"shoal plain text";

/// A donor whose memory the test can look at.
struct Donor {
    memory: Mutex<Vec<u8>>,
    /// Each write is done in part, and fails: the client's last moment.
    tears: AtomicBool,
    random: Mutex<Random>,
}

impl Donor {
    fn new(seed: u64) -> Arc<Donor> {
        let (memory, tears) = (Mutex::new(vec![0; DONOR_BYTES]), AtomicBool::new(false));
        Arc::new(Donor { memory, tears, random: Mutex::new(Random::new(seed)) })
    }

    fn front(&self) -> Vec<u8> {
        self.memory.lock().unwrap()[..SUPERBLOCK_BYTES].to_vec()
    }

    fn shows_plain_text(&self) -> bool {
        self.memory.lock().unwrap().windows(PLAIN.len()).any(|window| window == PLAIN)
    }
}

impl BlockDevice for Donor {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        let block_bytes = SEALED_ALIGNMENT;
        BlockGeometry { bytes: DONOR_BYTES as u64, block_bytes, atomic_bytes: 512, survives_process: true }
    }

    fn submit(&self, request: Request, done: Completion) {
        let (at, len) = request.range();
        assert!(at.is_multiple_of(SEALED_ALIGNMENT.into()) && len.is_multiple_of(SEALED_ALIGNMENT.into()));
        let mut memory = self.memory.lock().unwrap();
        let range = at as usize..(at + len) as usize;
        let result = match request {
            Request::Read { mut buffer, .. } => {
                buffer.copy_from_slice(&memory[range]);
                Ok(buffer)
            }
            Request::Write { buffer, .. } if self.tears.load(Ordering::SeqCst) => {
                let mut random = self.random.lock().unwrap();
                for piece in (0..buffer.len()).step_by(16).filter(|_| random.below(3) > 0) {
                    let to = at as usize + piece;
                    memory[to..to + 16].copy_from_slice(&buffer[piece..piece + 16]);
                }
                Err(MediaError::io("donor", std::io::Error::other("torn")))
            }
            Request::Write { buffer, .. } => {
                memory[range].copy_from_slice(&buffer);
                Ok(buffer)
            }
            Request::Trim { .. } | Request::WriteZeroes { .. } => {
                memory[range].fill(0);
                Ok(vec![])
            }
            Request::Flush => Ok(vec![]),
        };
        drop(memory);
        done(result);
    }
}

fn config(owner: Option<u8>) -> Config {
    let key = owner.map(|owner| SealKey::derive(&[owner; 32], &[9; 16]));
    Config { uuid: [9; 16], block_bytes: 1024, bytes: Some(DISK_BYTES), checkpoints: true, key, ..Config::default() }
}

fn info(number: usize) -> DonorInfo {
    DonorInfo { name: format!("donor{number}"), bytes: DONOR_BYTES as u64, domain: 0 }
}

fn create(donors: &[Arc<Donor>], config: &Config) -> Disk {
    let devices =
        donors.iter().enumerate().map(|(number, donor)| (info(number), donor.clone() as Arc<dyn BlockDevice>));
    Disk::create(config, devices.collect(), Arc::new(SimClock::new(0))).unwrap()
}

fn open(donors: &[Arc<Donor>], without: Option<usize>, config: &Config) -> Result<Disk, String> {
    open_at(donors, without, config, Arc::new(SimClock::new(0)))
}

fn open_at(
    donors: &[Arc<Donor>],
    without: Option<usize>,
    config: &Config,
    clock: Arc<SimClock>,
) -> Result<Disk, String> {
    let there = donors.iter().enumerate().filter(|(number, _)| Some(*number) != without);
    let devices = there.map(|(number, donor)| ((info(number), donor.clone() as Arc<dyn BlockDevice>), donor.front()));
    Disk::open(config, devices.collect(), clock).map_err(|error| error.to_string())
}

/// Contents of some sectors that can be told from all others.
fn contents(version: u64, sectors: usize) -> Vec<u8> {
    let sector =
        |at: usize| [&version.to_le_bytes()[..], &(at as u64).to_le_bytes(), PLAIN].concat().repeat(SECTOR / 32);
    (0..sectors).flat_map(sector).collect()
}

fn life(seed: u64, policy: Policy, tears: bool) {
    let mut random = Random::new(seed);
    let config = Config { policy, ..config(Some(1)) };
    let donors: Vec<_> = (0..4).map(|number| Donor::new(seed * 10 + number)).collect();
    let mut disk = create(&donors, &config);
    let mut durable = vec![0; DISK_BYTES as usize];
    for version in 1..=3 {
        // Every state of the disk since the last flush: a sector may be found in any of them.
        let mut since: Vec<Vec<u8>> = vec![durable];
        for step in 0..30 {
            let sectors = 1 + random.below(8);
            let at = random.below(DISK_BYTES / SECTOR as u64 - sectors) * SECTOR as u64;
            let bytes = contents(version * 1000 + step, sectors as usize);
            shoal_media::write(&disk, at, &bytes).unwrap();
            let mut now = since.last().unwrap().clone();
            now[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            since.push(now);
            if random.below(6) == 0 {
                block::flush(&disk).unwrap();
                since.drain(..since.len() - 1);
            }
        }
        if tears {
            donors.iter().for_each(|donor| donor.tears.store(true, Ordering::SeqCst));
            disk.submit(Request::Flush, Box::new(|_| {}));
        }
        drop(disk);
        donors.iter().for_each(|donor| donor.tears.store(false, Ordering::SeqCst));
        assert!(!donors.iter().any(|donor| donor.shows_plain_text()), "seed {seed}");
        let without = (!tears && version == 3).then(|| random.below(4) as usize);
        disk = open(&donors, without, &config).unwrap();
        let mut found = vec![0; DISK_BYTES as usize];
        shoal_media::read(&disk, 0, &mut found).unwrap();
        for at in (0..found.len()).step_by(SECTOR) {
            let is_one = since.iter().any(|one| found[at..at + SECTOR] == one[at..at + SECTOR]);
            assert!(is_one, "seed {seed}, version {version}: sector {}", at / SECTOR);
        }
        block::flush(&disk).unwrap();
        durable = found;
    }
}

#[test]
fn what_was_flushed_survives_torn_writes() {
    (0..30).for_each(|seed| life(seed, Policy::Adaptive, true));
    // Without parity nothing but the torn unit itself knows what it held.
    (30..60).for_each(|seed| life(seed, Policy::Cached, true));
}

#[test]
fn what_was_flushed_survives_the_loss_of_a_donor() {
    (0..60).for_each(|seed| life(seed, Policy::Adaptive, false));
}

#[test]
fn a_disk_opens_with_its_key_only() {
    let donors: Vec<_> = (0..3).map(Donor::new).collect();
    let disk = create(&donors, &config(Some(1)));
    shoal_media::write(&disk, 4096, &contents(1, 8)).unwrap();
    block::flush(&disk).unwrap();
    drop(disk);
    for (owner, why) in [(None, "is encrypted; give its key"), (Some(2), "not the one that the disk is encrypted with")]
    {
        let said = open(&donors, None, &config(owner)).err().expect("refused");
        assert!(said.contains(why), "{said}");
    }
    let mut found = vec![0; 8 * SECTOR];
    shoal_media::read(&open(&donors, None, &config(Some(1))).unwrap(), 4096, &mut found).unwrap();
    assert_eq!(found, contents(1, 8));
    // The test sees plain text where there is some.
    let donors: Vec<_> = (0..3).map(Donor::new).collect();
    let disk = create(&donors, &config(None));
    shoal_media::write(&disk, 4096, &contents(1, 8)).unwrap();
    block::flush(&disk).unwrap();
    drop(disk);
    assert!(donors.iter().any(|donor| donor.shows_plain_text()));
    let said = open(&donors, None, &config(Some(1))).err().expect("refused");
    assert!(said.contains("is not encrypted, as far as its donors show"), "{said}");
}

#[test]
fn what_a_donor_makes_up_is_rebuilt_from_the_others() {
    let donors: Vec<_> = (0..4).map(Donor::new).collect();
    let disk = create(&donors, &config(Some(1)));
    let bytes = contents(7, DISK_BYTES as usize / SECTOR / 2);
    shoal_media::write(&disk, 0, &bytes).unwrap();
    block::flush(&disk).unwrap();
    // It exchanges two sectors of its own, and flips a bit in others.
    {
        let mut memory = donors[1].memory.lock().unwrap();
        let units = &mut memory[SUPERBLOCK_BYTES..];
        for sector in (0..units.len() / 528 - 2).step_by(3) {
            units[sector * 528 + 40] ^= 1;
            let (first, second) = units[(sector + 1) * 528..(sector + 3) * 528].split_at_mut(528);
            first.swap_with_slice(second);
        }
    }
    let mut found = vec![0; bytes.len()];
    shoal_media::read(&disk, 0, &mut found).unwrap();
    assert!(found == bytes);
    assert!(disk.status().damage.found > 0);
}

/// A donor's lie: it changes its newest superblock, and its sums are right.
type Lie = fn(&mut DiskSuperblock);

const LIES: [(&str, Lie); 10] = [
    ("the others are gone", |own| {
        own.epoch += 3;
        let others = own.donors.iter_mut().enumerate().filter(|(number, _)| *number != usize::from(own.donor));
        others.for_each(|(_, place)| place.standing = Standing::Gone);
    }),
    ("another is gone, in its own epoch", |own| {
        let other = usize::from(own.donor == 0);
        own.donors[other].standing = Standing::Gone;
    }),
    ("groups are wider", |own| (own.epoch, own.data) = (own.epoch + 3, 16)),
    ("there is no parity", |own| (own.epoch, own.policy, own.data, own.parity) = (own.epoch + 3, 0, 4, 0)),
    ("it is the last epoch there can be", |own| own.epoch = u64::MAX),
    ("it is the last birth there can be", |own| own.donors[usize::from(own.donor == 0)].born = u32::MAX),
    ("blocks are smaller", |own| (own.epoch, own.block_bytes) = (own.epoch + 3, 512)),
    ("the disk is huge", |own| (own.epoch, own.blocks) = (own.epoch + 3, 4_000_000_000)),
    ("the disk is not encrypted", |own| (own.epoch, own.sealed) = (own.epoch + 3, false)),
    ("a checkpoint counts", |own| own.checkpoint = Some(77)),
];

/// Makes a disk with contents, and lets one of its donors tell this lie.
fn lied_to(owner: Option<u8>, liar: usize, lie: Lie) -> (Vec<Arc<Donor>>, Config, Vec<u8>) {
    let donors: Vec<_> = (0..4).map(Donor::new).collect();
    let config = config(owner);
    let disk = create(&donors, &config);
    let bytes = contents(3, DISK_BYTES as usize / SECTOR / 2);
    shoal_media::write(&disk, 0, &bytes).unwrap();
    block::flush(&disk).unwrap();
    drop(disk);
    {
        let mut memory = donors[liar].memory.lock().unwrap();
        let mut own = DiskSuperblock::decode(&memory[..SUPERBLOCK_BYTES]).unwrap();
        lie(&mut own);
        memory[..SLOTS_BYTES].copy_from_slice(&own.encode().repeat(2));
    }
    (donors, config, bytes)
}

#[test]
fn a_donor_with_a_superblock_of_its_own_making_counts_as_lost() {
    for (what, lie) in LIES {
        for liar in [0, 3] {
            let (donors, config, bytes) = lied_to(Some(1), liar, lie);
            for round in 0..2 {
                let disk = open(&donors, None, &config).unwrap_or_else(|error| panic!("{what}: {error}"));
                let mut found = vec![0; bytes.len()];
                shoal_media::read(&disk, 0, &mut found).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(found == bytes, "{what}, round {round}");
                assert_eq!(disk.geometry().bytes, DISK_BYTES, "{what}");
                shoal_media::write(&disk, 0, &bytes[..4096]).unwrap();
                block::flush(&disk).unwrap();
            }
        }
    }
}

#[test]
fn without_a_key_donors_that_contradict_each_other_are_named() {
    let says = |what: &str, lie: Lie, why: &str| {
        let (donors, config, bytes) = lied_to(None, 3, lie);
        let error = open(&donors, None, &config).err().unwrap_or_else(|| panic!("{what}: opened"));
        assert!(error.contains(why) && error.contains("donor3") && error.contains("leave"), "{what}: {error}");
        // Without the one that was named, all is there.
        let mut found = vec![0; bytes.len()];
        shoal_media::read(&open(&donors, Some(3), &config).unwrap(), 0, &mut found).unwrap();
        assert!(found == bytes, "{what}");
    };
    for (what, lie) in LIES {
        match what {
            "groups are wider" | "there is no parity" | "blocks are smaller" => says(what, lie, "layout"),
            "it is the last epoch there can be" | "it is the last birth there can be" => {
                says(what, lie, "more changes")
            }
            _ => {}
        }
    }
    says("it has the place of another", |own| own.donor = 0, "same place");
}

/// Waits while time passes on the disk's clock.
fn wait_for(what: &str, clock: &SimClock, is_so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_so() {
        clock.advance(20_000_000);
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{what}: not in 20 s");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A superblock from the time when another donor was away has its signature. Shown again later, it must not make that
/// donor's contents count for nothing.
#[test]
fn a_donor_that_shows_its_former_superblock_again_discounts_no_other() {
    for key in [Some(1), None] {
        let donors: Vec<_> = (0..3).map(Donor::new).collect();
        // Two of the donors have no room for all of it, so the third is not given up while it is away.
        let config = Config { bytes: Some(600 << 10), ..config(key) };
        let disk = create(&donors, &config);
        let bytes = |version| contents(version, disk.geometry().bytes as usize / SECTOR);
        let (first, last) = (bytes(1), bytes(2));
        shoal_media::write(&disk, 0, &first).unwrap();
        block::flush(&disk).unwrap();
        drop(disk);
        let clock = Arc::new(SimClock::new(0));
        let disk = open_at(&donors, Some(0), &config, clock.clone()).unwrap();
        wait_for("the epoch without it is stored", &clock, || disk.status().epoch_stored);
        drop(disk);
        let former = donors[2].front();
        let disk = open_at(&donors, None, &config, clock.clone()).unwrap();
        let all_count = |status: &Status| {
            status.donors.len() == 3 && status.donors.iter().all(|donor| donor.state == DonorState::Active)
        };
        wait_for("all donors count", &clock, || all_count(&disk.status()) && disk.status().epoch_stored);
        shoal_media::write(&disk, 0, &last).unwrap();
        block::flush(&disk).unwrap();
        drop(disk);
        {
            let mut memory = donors[2].memory.lock().unwrap();
            memory.fill(0);
            memory[..SUPERBLOCK_BYTES].copy_from_slice(&former);
        }
        let mut found = vec![0; last.len()];
        shoal_media::read(&open(&donors, None, &config).unwrap(), 0, &mut found).unwrap();
        assert!(found == last, "key {key:?}");
    }
}
