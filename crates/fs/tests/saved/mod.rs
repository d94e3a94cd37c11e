//! Battery memory that was lost: the store comes back from the image saved last, and large files with it.
//!
//! Every file is filled with its own byte. After each crash the region's memory is gone and is
//! restored from the newest image, in every state that image and disk may be left in. The restored
//! files must be those of one moment, not before the last completed save. Each holds nothing but
//! its own bytes and zeros (invariant 8), and there is room for new files.

use std::collections::BTreeMap;

use crate::data_store::Store;
use crate::store::Setup;
use shoal_format::BULK_BLOCK;
use shoal_fs::{Error, Ino, ROOT};
use shoal_sim::{Limits, Random};

/// Few blocks, so that writers often have to save an image to find room, while data of others is
/// not yet flushed.
pub const BLOCKS: u64 = 24;

/// Files by name, which is the byte they are filled with.
type Files = BTreeMap<u8, Ino>;

fn name(id: u8) -> Vec<u8> {
    format!("file{id}").into_bytes()
}

/// Checks that every byte of a file is its own or zero.
fn check_bytes(store: &Store, id: u8, context: &str) {
    let ino = store.fs.lookup(ROOT, &name(id)).unwrap_or_else(|e| panic!("{context}: file {id}: {e}")).ino;
    store.check_allocated(ino, context);
    let mut bytes = vec![0; store.fs.getattr(ino).unwrap().size as usize];
    assert_eq!(store.fs.read(ino, 0, &mut bytes), Ok(bytes.len()), "{context}");
    let foreign = bytes.iter().position(|&byte| byte != id && byte != 0);
    assert_eq!(foreign, None, "{context}: file {id} has bytes {:#x}", bytes[foreign.unwrap_or(0)]);
}

struct Run {
    store: Store,
    random: Random,
    files: Files,
    last_id: u8,
    /// Names before each step.
    history: Vec<Vec<u8>>,
    saved_at: usize,
}

impl Run {
    fn mark(&mut self) {
        self.history.push(self.files.keys().copied().collect());
        self.store.world.set_mark((self.saved_at as u64) << 32 | self.history.len() as u64);
    }

    fn step(&mut self) {
        self.mark();
        match self.random.below(20) {
            0..8 => {
                self.last_id += 1;
                let ino = self.store.create(&name(self.last_id));
                self.files.insert(self.last_id, ino);
                // The state between creation and first write also belongs to the history.
                self.mark();
                self.write(self.last_id);
            }
            8..14 if !self.files.is_empty() => {
                let id = self.any();
                self.store.fs.unlink(ROOT, &name(id)).unwrap();
                self.store.fs.forget(self.files.remove(&id).unwrap(), u64::MAX);
            }
            14..17 if !self.files.is_empty() => {
                let id = self.any();
                let size = self.random.below(3) * BULK_BLOCK;
                self.store.truncate(self.files[&id], size);
                self.write(id);
            }
            17 => {
                self.store.fs.checkpoint().unwrap();
                self.saved_at = self.history.len() - 1;
            }
            _ => self.store.fs.upkeep().tick().unwrap(),
        }
        self.store.clock.advance(200_000_000);
    }

    fn any(&mut self) -> u8 {
        *self.files.keys().nth(self.random.below(self.files.len() as u64) as usize).unwrap()
    }

    fn write(&mut self, id: u8) {
        let len = (1 + self.random.below(7)) * BULK_BLOCK - 1000;
        match self.store.fs.write(self.files[&id], 0, &vec![id; len as usize]) {
            Ok(_) | Err(Error::NoSpace(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub fn explore(seed: u64) -> u64 {
    let setup =
        Setup { saved: true, threshold: 64 << 10, bulk_blocks: BLOCKS, region_bytes: 12 << 20, ..Setup::default() };
    let store = Store::new(setup);
    let mut run =
        Run { store, random: Random::new(seed), files: Files::new(), last_id: 0, history: Vec::new(), saved_at: 0 };
    let mut states = 0;
    for round in 0..4 {
        run.store.world.record(true);
        (0..25).for_each(|_| run.step());
        run.mark();
        run.store.world.record(false);
        let points = run.store.world.points();
        // The points are spread over the round. Other seeds take the rest.
        let step = (points.len() / 24).max(1);
        for point in points.iter().skip(seed as usize % step).step_by(step) {
            let (from, to) = ((point.mark() >> 32) as usize, point.mark() as u32 as usize);
            for state in point.power_losses(&Limits::few()).take(6) {
                let context = format!("seed {seed} round {round}: {}: {}", point.name(), state.name());
                let back = run.store.restored(&state);
                let found: Vec<u8> = (1..=run.last_id).filter(|&id| back.fs.lookup(ROOT, &name(id)).is_ok()).collect();
                assert!(
                    run.history[from..to].contains(&found),
                    "{context}: found {found:?}, none of the moments from {from} to {to}: {:?}",
                    &run.history[from..to]
                );
                found.iter().for_each(|&id| check_bytes(&back, id, &context));
                found.iter().for_each(|&id| back.fs.unlink(ROOT, &name(id)).unwrap());
                let ino = back.create(b"all");
                let all = vec![7; ((BLOCKS - 1) * BULK_BLOCK) as usize];
                assert_eq!(back.fs.write(ino, 0, &all), Ok(all.len()), "{context}: room");
                states += 1;
            }
        }
        // Sometimes the process crashes and the memory stays. A block that the image maps must be
        // held then, too.
        if round % 2 == 0 {
            run.store = run.store.after_process_crash();
        }
    }
    states
}
