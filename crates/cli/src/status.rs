//! `shoal status` and `shoal donor`: what a served device or a store's bulk device is like, what the kernel asked a mount for, and
//! changes of donors.
//!
//! Owns the report, which travels as JSON over the control socket, and its text. SERVER is named as it was to `shoal
//! serve --nbd` (`unix:PATH` or `HOST:PORT`, on this machine), or is a store or mount point. Left out: `df`, the view
//! of the file system.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shoal_nbd::Listen;

use crate::args::{DonorArgs, DonorCommand, StatusArgs};
use crate::control::{self, DonorChange, Question};
use crate::failure::{During, Failure, Outcome};
use crate::kernel_requests::{self, RequestReport};
use crate::place;
use crate::read_only::ReadOnly;
use crate::size::human;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Of a served device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<ExportReport>,
    /// The mounted store it holds the large files of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Why that store is read-only since something failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReadOnly>,
    /// `None`: the store has no bulk storage.
    pub device: Option<DeviceReport>,
    /// Of a mount: what the kernel has asked for, the most frequent first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<RequestReport>>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct ExportReport {
    pub name: String,
    pub address: String,
    pub connections: usize,
    pub read_only: bool,
    pub pid: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceReport {
    pub device: String,
    /// `file`, `nbd`, `netram`, `vlog`.
    pub kind: String,
    pub size_bytes: u64,
    /// Of `nbd`: `connected`, `reconnecting`, `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// Of `netram`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskReport>,
    /// Of `vlog`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlog: Option<VlogReport>,
}

/// A virtual-log disk. What was written, moved and emptied is counted since it was opened.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct VlogReport {
    pub uuid: String,
    /// Device below; `None`: the disk is on the device named.
    pub over: Option<String>,
    pub log_bytes: u64,
    /// What is in use, or was left and is free after the next flush.
    pub used_bytes: u64,
    pub segments: u32,
    pub free_segments: u32,
    /// Memory of the map, and of what is kept beside it.
    pub map_bytes: u64,
    pub beside_bytes: u64,
    pub written_bytes: u64,
    pub device_written_bytes: u64,
    pub write_amplification: f64,
    /// By the compactor.
    pub moved_bytes: u64,
    pub segments_emptied: u64,
    /// Blocks the compactor found changed by the device.
    pub damaged_blocks: u64,
    /// Of the device below.
    pub flushes: u64,
    /// Of the map, completed.
    pub checkpoints: u64,
    pub opened_clean: bool,
    /// False: all of the log was looked through.
    pub opened_checkpoint: bool,
    pub recovery_seconds: f64,
    pub recovery_read_bytes: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskReport {
    pub uuid: String,
    pub policy: String,
    /// False while a disk that was found is still being read.
    pub ready: bool,
    pub block_bytes: u32,
    /// Donors a group spreads over: data and parity.
    pub data_units: usize,
    pub parity_units: usize,
    pub donors: Vec<DonorReport>,
    pub groups: Groups,
    pub redundancy: Redundancy,
    pub rebuild: Option<Rebuild>,
    #[serde(default)]
    pub checkpoints: Checkpoints,
    pub counts: Counts,
}

/// Of the map.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Completed since the disk was opened.
    pub completed: u64,
    /// The disk was opened from one, without looking at all units.
    pub opened: bool,
    /// Why it was not.
    #[serde(default)]
    pub unused: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct DonorReport {
    pub name: String,
    pub state: String,
    pub connection: String,
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// It asked for its memory back.
    pub under_pressure: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    pub all: u64,
    pub open: u64,
    pub degraded: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Redundancy {
    /// `full`, `degraded` (a loss would lose data), `none` (by policy), `lost` (data is lost).
    pub state: String,
    pub blocks_unprotected: u64,
    pub blocks_lost: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Rebuild {
    pub groups: u64,
    pub groups_done: u64,
    pub seconds: f64,
    pub seconds_left: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub blocks_mapped: u64,
    pub blocks_read: u64,
    pub blocks_written: u64,
    pub blocks_absorbed: u64,
    pub sent_data: u64,
    pub sent_parity: u64,
    pub cleaned: u64,
    pub reconstructed: u64,
}

/// States of redundancy.
pub const FULL: &str = "full";
pub const DEGRADED: &str = "degraded";
pub const NONE: &str = "none";
pub const LOST: &str = "lost";

impl DiskReport {
    pub fn survives_a_loss(&self) -> bool {
        self.redundancy.state == FULL
    }
}

pub fn run(args: &StatusArgs) -> Outcome<()> {
    let value = ask(&args.server, &Question::Status)?;
    if args.json {
        crate::print_json(&value);
    } else {
        let report: Report = serde_json::from_value(value).during("answer of the server")?;
        print!("{}", text(&report));
    }
    Ok(())
}

pub fn run_donor(command: &DonorCommand) -> Outcome<()> {
    let (change, DonorArgs { server, donor }) = match command {
        DonorCommand::Add(args) => (DonorChange::Add, args),
        DonorCommand::Drain(args) => (DonorChange::Drain, args),
        DonorCommand::Lost(args) => (DonorChange::Lost, args),
        DonorCommand::Forget(args) => (DonorChange::Forget, args),
    };
    // The server has a directory of its own.
    let donor = match donor.strip_prefix("unix:") {
        Some(path) => format!("unix:{}", std::path::absolute(path).during(path)?.display()),
        None => donor.clone(),
    };
    let done = ask(server, &Question::Donor { change, donor })?;
    println!("{}", done.as_str().unwrap_or_default());
    Ok(())
}

fn ask(server: &str, question: &Question) -> Outcome<serde_json::Value> {
    let listen: Option<Listen> = if Path::new(server).exists() { None } else { server.parse().ok() };
    match listen {
        Some(listen) => {
            let path = control_path(&listen)?;
            let answer = control::ask_at(&path, &format!("server on {server}"), question)?;
            answer.ok_or_else(|| {
                Failure::new(server, "no `shoal serve` is listening there on this machine")
                    .remedy("name what `--nbd` was given, or a mounted store")
            })
        }
        None => {
            let place = place::find(Path::new(server)).map_err(|failure| {
                if server.starts_with('/') { failure } else { failure.remedy("write unix:PATH, HOST:PORT, or a store") }
            })?;
            control::ask(&place.store, question)?.ok_or_else(|| {
                Failure::new(place.store.display(), "is not mounted").remedy("mount it; then its device is open")
            })
        }
    }
}

/// Where the server that listens there is asked.
pub fn control_path(listen: &Listen) -> Outcome<PathBuf> {
    match listen {
        Listen::Unix(path) => {
            let mut path = path.as_os_str().to_owned();
            path.push(".control");
            Ok(path.into())
        }
        Listen::Tcp(address) => Ok(run_directory().join(tcp_name(address))),
    }
}

fn tcp_name(address: &SocketAddr) -> String {
    format!("serve-{}.control", address.port())
}

/// For sockets and locks of servers that have no directory of their own.
pub fn run_directory() -> PathBuf {
    let user = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    user.map_or_else(|| "/run/shoal".into(), |path| PathBuf::from(path).join("shoal"))
}

fn text(report: &Report) -> String {
    let mut out = report.failure.as_ref().map_or(String::new(), ReadOnly::text);
    if let Some(export) = &report.export {
        let writable = if export.read_only { "read-only, " } else { "" };
        let name = if export.name.is_empty() { "the default export" } else { &export.name };
        let (address, connections) = (&export.address, export.connections);
        out += &format!("{name} on {address}  {writable}connections: {connections}, process {}\n", export.pid);
    }
    if let Some(store) = &report.store {
        out += &format!("large files of {store}\n");
    }
    match &report.device {
        Some(device) => out += &device_text(device),
        None => out += "no bulk storage\n",
    }
    if let Some(requests) = &report.requests {
        out += &kernel_requests::text(requests);
    }
    out
}

fn device_text(device: &DeviceReport) -> String {
    let connection = device.connection.as_ref().map_or(String::new(), |state| format!(", {state}"));
    let mut out = format!("{}  {}{connection}\n", device.device, human(device.size_bytes));
    if let Some(disk) = &device.disk {
        out += &disk_text(disk);
    }
    if let Some(vlog) = &device.vlog {
        out += &vlog_text(vlog);
    }
    out
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

fn disk_text(disk: &DiskReport) -> String {
    let ready = if disk.ready { "" } else { "; still being read from its donors" };
    let mut out = format!(
        "policy       {}, groups of {} data and {} parity, blocks of {}{ready}\n\n",
        disk.policy,
        disk.data_units,
        disk.parity_units,
        human(disk.block_bytes.into())
    );
    out += &format!("{:>10} {:>10} {:<10} {:<13} donor\n", "size", "used", "state", "connection");
    for donor in &disk.donors {
        out += &format!(
            "{:>10} {:>10} {:<10} {:<13} {}{}\n",
            human(donor.size_bytes),
            human(donor.used_bytes),
            donor.state,
            donor.connection,
            donor.name,
            if donor.under_pressure { " (wants its memory back)" } else { "" }
        );
    }
    let Groups { all, open, degraded } = disk.groups;
    out += &format!("\ngroups       {all}, {open} of them open, {degraded} degraded\n");
    let redundancy = &disk.redundancy;
    out += &format!(
        "redundancy   {}\n",
        match redundancy.state.as_str() {
            FULL => "full: every block survives the loss of a donor".to_string(),
            NONE => "none: the policy keeps no second copy".to_string(),
            LOST => format!("lost: {} blocks were on donors that are gone", redundancy.blocks_lost),
            _ => format!("degraded: {} blocks would not survive another loss", redundancy.blocks_unprotected),
        }
    );
    out += &match &disk.rebuild {
        None => "rebuild      none running\n".to_string(),
        Some(rebuild) => {
            let left = rebuild.seconds_left.map_or("time left unknown yet".into(), |s| format!("about {s:.0} s left"));
            let percent = rebuild.groups_done * 100 / rebuild.groups.max(1);
            format!("rebuild      {} of {} groups ({percent}%), {left}\n", rebuild.groups_done, rebuild.groups)
        }
    };
    let Checkpoints { completed, opened, unused } = &disk.checkpoints;
    let found = match unused {
        _ if *opened => "; opened from one".into(),
        Some(why) => format!("; opened without one: {why}"),
        None => String::new(),
    };
    out += &format!("checkpoints  {completed} completed{found}\n");
    let c = &disk.counts;
    out += &format!(
        "blocks       {} in use; {} read, {} written ({} absorbed by the cache)\n\
         sent         {} data, {} parity, {} by cleaning; {} computed from parity\n",
        c.blocks_mapped,
        c.blocks_read,
        c.blocks_written,
        c.blocks_absorbed,
        c.sent_data,
        c.sent_parity,
        c.cleaned,
        c.reconstructed
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let donor = |name: &str, state: &str| DonorReport {
            name: name.into(),
            state: state.into(),
            connection: "connected".into(),
            size_bytes: 1 << 30,
            used_bytes: 1 << 20,
            under_pressure: false,
        };
        let disk = DiskReport {
            uuid: "u".into(),
            policy: "adaptive".into(),
            ready: true,
            block_bytes: 4096,
            data_units: 3,
            parity_units: 1,
            donors: vec![donor("unix:/a", "active"), donor("unix:/b", "lost")],
            groups: Groups { all: 10, open: 2, degraded: 4 },
            redundancy: Redundancy { state: "degraded".into(), blocks_unprotected: 96, blocks_lost: 0 },
            rebuild: Some(Rebuild { groups: 8, groups_done: 2, seconds: 1.0, seconds_left: Some(3.2) }),
            checkpoints: Checkpoints { completed: 9, opened: true, unused: None },
            counts: Counts {
                blocks_mapped: 1,
                blocks_read: 2,
                blocks_written: 3,
                blocks_absorbed: 4,
                sent_data: 5,
                sent_parity: 6,
                cleaned: 7,
                reconstructed: 8,
            },
        };
        let device = DeviceReport {
            device: "netram:unix:/a,unix:/b".into(),
            kind: "netram".into(),
            size_bytes: 1 << 31,
            connection: None,
            disk: Some(disk),
            vlog: None,
        };
        let address = "unix:/run/d".into();
        let export = ExportReport { name: "d".into(), address, connections: 1, read_only: false, pid: 7 };
        Report { export: Some(export), store: None, failure: None, device: Some(device), requests: None }
    }

    #[test]
    fn people_read_donors_redundancy_and_the_time_left() {
        let text = text(&sample());
        assert!(
            text.starts_with("d on unix:/run/d  connections: 1, process 7\nnetram:unix:/a,unix:/b  2 GiB\n"),
            "{text}"
        );
        assert!(text.contains("     1 GiB      1 MiB lost       connected     unix:/b\n"), "{text}");
        assert!(text.contains("groups       10, 2 of them open, 4 degraded"), "{text}");
        assert!(text.contains("degraded: 96 blocks would not survive another loss"), "{text}");
        assert!(text.contains("2 of 8 groups (25%), about 3 s left"), "{text}");
        assert!(text.contains("checkpoints  9 completed; opened from one\n"), "{text}");
    }

    #[test]
    fn a_mount_without_bulk_storage_shows_its_requests() {
        let lookup = shoal_fuse::RequestCount {
            name: "LOOKUP",
            count: 3,
            total_ns: 6000,
            p50_ns: 2000,
            p99_ns: 2000,
            max_ns: 2000,
        };
        let requests = Some(vec![lookup.into()]);
        let report = Report { export: None, store: Some("/srv/s".into()), failure: None, device: None, requests };
        let text = text(&report);
        assert!(text.starts_with("large files of /srv/s\nno bulk storage\nrequests "), "{text}");
        assert!(text.contains("\nLOOKUP ") && text.ends_with("2.0 us\n"), "{text}");
    }

    #[test]
    fn the_report_is_read_back_by_the_command() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), sample());
    }

    #[test]
    fn each_server_has_a_control_socket_of_its_own() {
        let of = |text: &str| control_path(&text.parse().unwrap()).unwrap();
        assert_eq!(of("unix:/run/d"), Path::new("/run/d.control"));
        assert!(of("127.0.0.1:7000").ends_with("shoal/serve-7000.control"));
    }
}
