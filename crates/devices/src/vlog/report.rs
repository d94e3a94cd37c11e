//! The state of a virtual-log disk: its log, what was written, how it was opened.
//!
//! Owns the report, which travels as JSON over a control socket, and its text.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shoal_format::vlog::BLOCK;

use super::VlogDisk;
use crate::device::DeviceReport;
use crate::size::human;
use crate::uuid::uuid_text;

/// A virtual-log disk. Writes, moves and emptied segments are counted since it was opened.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct VlogReport {
    pub uuid: String,
    /// Device below; `None` if the disk is on the named device itself.
    pub over: Option<String>,
    pub log_bytes: u64,
    /// Bytes in use, including bytes that become free with the next flush.
    pub used_bytes: u64,
    pub segments: u32,
    pub free_segments: u32,
    /// Memory of the map, and of everything else kept beside it (bytes).
    pub map_bytes: u64,
    pub beside_bytes: u64,
    pub written_bytes: u64,
    pub device_written_bytes: u64,
    pub write_amplification: f64,
    /// Bytes moved by the compactor.
    pub moved_bytes: u64,
    pub segments_emptied: u64,
    /// Blocks that the compactor found changed by the device.
    pub damaged_blocks: u64,
    /// Flushes of the device below.
    pub flushes: u64,
    /// Completed checkpoints of the map.
    pub checkpoints: u64,
    pub opened_clean: bool,
    /// False if the whole log was searched.
    pub opened_checkpoint: bool,
    pub recovery_seconds: f64,
    pub recovery_read_bytes: u64,
}

impl VlogDisk {
    pub(super) fn report(&self) -> VlogReport {
        let status = self.disk.log().status();
        VlogReport {
            uuid: uuid_text(&self.disk.log().uuid()),
            over: self.over.as_ref().map(|over| over.name().to_string()),
            log_bytes: status.log_bytes,
            used_bytes: status.used_bytes,
            segments: status.segments,
            free_segments: status.free_segments,
            map_bytes: status.map_bytes,
            beside_bytes: status.beside_bytes,
            written_bytes: status.host_blocks * BLOCK as u64,
            device_written_bytes: status.device_blocks * BLOCK as u64,
            write_amplification: status.write_amplification(),
            moved_bytes: status.moved_blocks * BLOCK as u64,
            segments_emptied: status.emptied,
            damaged_blocks: status.damaged_blocks,
            flushes: status.flushes,
            checkpoints: status.checkpoints,
            opened_clean: self.recovery.clean,
            opened_checkpoint: self.recovery.checkpoint,
            recovery_seconds: Duration::from_nanos(self.recovery.took_ns).as_secs_f64(),
            recovery_read_bytes: self.recovery.blocks_read * BLOCK as u64,
        }
    }
}

/// A device's report for people.
pub(super) fn text(report: &DeviceReport) -> serde_json::Result<String> {
    let mut out = report.head("");
    if let Some(disk) = report.own.get("vlog") {
        out += &vlog_text(&serde_json::from_value(disk.clone())?);
    }
    Ok(out)
}

fn vlog_text(vlog: &VlogReport) -> String {
    let over = vlog.over.as_ref().map_or(String::new(), |over| format!("over         {over}\n"));
    let found = if vlog.opened_clean { "its end was written down" } else { "after a crash" };
    let from = if vlog.opened_checkpoint { " from a checkpoint" } else { "" };
    let damaged = match vlog.damaged_blocks {
        0 => String::new(),
        blocks => {
            format!("damaged      {blocks} blocks were changed by the device; reading them fails, writing heals them\n")
        }
    };
    format!(
        "{over}log          {}, {} in use; {} of {} segments free\n\
         written      {}, {} to the device below ({:.2} times), {} of that moved by the compactor\n\
         compactor    {} segments emptied\n\
         memory       {} for the map, {} beside it\n\
         checkpoints  {} of the map completed\n\
         opened       {found}{from}: {} read in {:.2} s\n{damaged}",
        human(vlog.log_bytes),
        human(vlog.used_bytes),
        vlog.free_segments,
        vlog.segments,
        human(vlog.written_bytes),
        human(vlog.device_written_bytes),
        vlog.write_amplification,
        human(vlog.moved_bytes),
        vlog.segments_emptied,
        human(vlog.map_bytes),
        human(vlog.beside_bytes),
        vlog.checkpoints,
        human(vlog.recovery_read_bytes),
        vlog.recovery_seconds,
    )
}
