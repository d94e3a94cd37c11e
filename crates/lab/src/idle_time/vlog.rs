//! The virtual log that serves users, inside a simulated drive.
//!
//! Owns: [`shoal_vlog::VirtualLog`] over the drive's own view of its disk and head. Requests of the
//! log cost no command; the models pay for those of the host. Rules: the log has as many blocks as
//! the file, at most the number for which the disk's records leave room; its errors are passed on
//! unchanged.

use std::sync::Arc;

use shoal_media::{MediaError, block};
use shoal_vlog::{FormatOptions, Options, Placement, VirtualLog, VlogError};

use super::eager::EagerDevice;
use super::system::{BLOCK_BYTES, ModelError, Result, World};

/// Room for the records that the log requires (percent).
const SPARE_PERCENT: u8 = 3;

pub struct InDrive {
    log: VirtualLog,
}

impl InDrive {
    /// Creates a log for the world's file.
    pub fn new(world: &World) -> Result<InDrive> {
        let inside = Arc::new(world.disk.internal());
        let format = FormatOptions {
            placement: Placement::Anywhere,
            spare_percent: SPARE_PERCENT,
            bytes: Some(world.live * BLOCK_BYTES),
            ..FormatOptions::default()
        };
        VirtualLog::format(&*inside, &format).map_err(failed)?;
        let options = Options { head: Some(inside.clone()), ..Options::default() };
        let (log, _) = VirtualLog::open(inside, world.clock.clone(), options).map_err(failed)?;
        Ok(InDrive { log })
    }
}

fn failed(error: VlogError) -> ModelError {
    match error {
        VlogError::Media(error) => refused(error),
        VlogError::Option { .. } | VlogError::TooSmall { .. } => ModelError::NoRoom(error.to_string()),
        _ => ModelError::Broken(error.to_string()),
    }
}

fn refused(error: MediaError) -> ModelError {
    match error {
        MediaError::NoSpace { .. } => ModelError::NoRoom(error.to_string()),
        _ => error.into(),
    }
}

impl EagerDevice for InDrive {
    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        block::write(&self.log, block * BLOCK_BYTES, bytes).map_err(refused)
    }

    fn flush(&mut self) -> Result<()> {
        block::flush(&self.log).map_err(refused)
    }

    fn read(&mut self, block: u64, out: &mut [u8]) -> Result<()> {
        block::read(&self.log, block * BLOCK_BYTES, out).map_err(refused)
    }

    fn compact_step(&mut self) -> Result<bool> {
        self.log.compact_step().map_err(refused)
    }
}
