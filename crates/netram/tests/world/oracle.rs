//! Checkpoints in the world: whether lives have them, and what an opening with one must find.
//!
//! Rules: whenever a client could open the disk with a checkpoint, two others first do so on copies
//! of the donors' memory: one with the checkpoint, one that looks at all units. Both must find the
//! same. Left out: what the disk must hold (the world's model).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_format::ram::UnitHeader;
use shoal_format::ram_checkpoint::Layout;
use shoal_netram::{Action, Config, DiskError, DonorError, DonorOp, Engine, Trouble as Why};

use super::{FRONT, World};

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Number of compared openings with a checkpoint.
pub static COMPARED: AtomicU64 = AtomicU64::new(0);

/// Runs a life on disks with checkpoints.
pub fn with<T>(life: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ON.set(false);
        }
    }
    let _off = Off;
    ON.set(true);
    life()
}

pub fn with_checkpoints(config: Config, seed: u64) -> Config {
    match ON.get() {
        true => Config { checkpoints: true, window_units: 1 + (seed % 5) as u32, ..config },
        false => config,
    }
}

impl World {
    /// Returns the size of a donor that has as many units with checkpoints as one of `bytes` has
    /// without.
    pub(super) fn with_room_for_checkpoints(&self, bytes: u64) -> u64 {
        if !self.config.checkpoints {
            return bytes;
        }
        let (data, buffer) = (self.plan.data, self.plan.buffer);
        let unit_bytes = 2 * UnitHeader::bytes(data, buffer) + buffer * self.config.block_bytes as usize;
        let units = (bytes - FRONT as u64) / unit_bytes as u64;
        let layout = Layout::new(FRONT as u64, units as u32, unit_bytes, buffer);
        layout.at + layout.bytes()
    }

    pub(super) fn audit(&mut self) -> Result<(), DiskError> {
        match self.config.checkpoints && self.engine().is_ready() {
            true => self.engine().audit().map_err(World::fault),
            false => Ok(()),
        }
    }

    /// Opens a copy of the disk as it is now. Returns what the client finds, if the disk opens.
    fn opened(&self, given: &[usize], checkpoints: bool) -> Option<(bool, Vec<Option<u32>>, u64)> {
        let config = Config { checkpoints, ..self.config.clone() };
        let mut memories: Vec<Vec<u8>> = self.donors.iter().map(|donor| donor.bytes.clone()).collect();
        let donors = given.iter().map(|&n| {
            let donor = &self.donors[n];
            (self.info(n), donor.is_there().then(|| donor.bytes[..FRONT].to_vec()))
        });
        let mut now = self.now;
        let mut engine = Engine::open(&config, donors.collect(), now).ok()?;
        let place = |name: &str| self.donors.iter().position(|donor| donor.name == name);
        let numbers: Vec<Option<usize>> = engine.status().donors.iter().map(|donor| place(&donor.name)).collect();
        for _ in 0..400 {
            loop {
                if engine.is_ready() {
                    engine.audit().unwrap_or_else(|error| panic!("after opening: {error}"));
                    let status = engine.status();
                    return Some((status.counts.opened_by_checkpoint, engine.checksums(), status.blocks_lost));
                }
                let actions = engine.actions();
                if actions.is_empty() {
                    break;
                }
                for action in actions {
                    let Action::Donor { ticket, donor, op, .. } = action else { continue };
                    let there = numbers[donor as usize].filter(|&n| self.donors[n].is_there());
                    let answer = match (there.map(|n| &mut memories[n]), op) {
                        (None, _) => Err(DonorError::new(Why::Away, "not there")),
                        (Some(bytes), DonorOp::Read { at, len }) => Ok(bytes[at as usize..][..len as usize].to_vec()),
                        (Some(bytes), DonorOp::Write { at, bytes: new }) => {
                            bytes[at as usize..][..new.len()].copy_from_slice(&new);
                            Ok(Vec::new())
                        }
                        (Some(_), DonorOp::Trim { .. }) => Ok(Vec::new()),
                    };
                    engine.done(ticket, answer, now);
                }
            }
            now += 50_000_000;
            engine.tick(now);
        }
        None
    }

    /// Checks that an opening with a checkpoint finds the same as one that looks at all units.
    pub(super) fn compare_openings(&mut self, given: &[usize]) -> Result<(), DiskError> {
        if !self.config.checkpoints {
            return Ok(());
        }
        let Some((true, found, lost)) = self.opened(given, true) else { return Ok(()) };
        let Some((_, wanted, lost_wanted)) = self.opened(given, false) else { return Ok(()) };
        COMPARED.fetch_add(1, Ordering::Relaxed);
        match found.iter().zip(&wanted).position(|(found, wanted)| found != wanted) {
            Some(block) => {
                let text =
                    format!("block {block} is {:?} by the checkpoint and {:?} without", found[block], wanted[block]);
                Err(World::fault(text))
            }
            None if lost != lost_wanted => {
                Err(World::fault(format!("{lost} blocks lost by the checkpoint, {lost_wanted} without")))
            }
            None => Ok(()),
        }
    }
}
