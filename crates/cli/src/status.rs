//! `shoal status` and `shoal donor`: the state of a served device or a store's bulk device, the kernel's requests to a
//! mount, and changes of donors.
//!
//! Owns the report, which travels as JSON over the control socket, and its text. SERVER is the
//! address given to `shoal serve --nbd` (`unix:PATH` or `HOST:PORT`, on this machine), or a store
//! or mount point. Left out: `df`, the view of the file system.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shoal_devices::size::human;
use shoal_devices::{DonorChange, During, Failure, Outcome, run_directory};
use shoal_nbd::Listen;
use shoal_store::control::{self, Question};
use shoal_store::{ReadOnly, Status, place};

use crate::args::{DonorArgs, DonorCommand, ForgetArgs, StatusArgs};
use crate::df::held_writes;
use crate::json;
use crate::kernel_requests;

pub fn run(args: &StatusArgs) -> Outcome<()> {
    if let Some(seconds) = args.watch {
        return watch(args, Duration::from_secs(seconds.into()));
    }
    let value = ask(&args.server, &Question::Status)?;
    if args.json {
        json::print_json(&value);
    } else {
        let report: Status = serde_json::from_value(value).during("answer of the server")?;
        print!("{}", text(&report).during("answer of the server")?);
    }
    Ok(())
}

/// Prints the requests of a mount once a period, until the mount is gone.
fn watch(args: &StatusArgs, period: Duration) -> Outcome<()> {
    let requests = || {
        let status: Status =
            serde_json::from_value(ask(&args.server, &Question::Status)?).during("answer of the server")?;
        status.requests.ok_or_else(|| {
            Failure::new(&args.server, "is not a mounted store, so it has no kernel requests")
                .remedy("name a mounted store")
        })
    };
    let (mut before, mut began) = (requests()?, Instant::now());
    loop {
        std::thread::sleep(period);
        let (now, at) = (requests()?, Instant::now());
        let rates = kernel_requests::rates(&before, &now, at - began);
        if args.json {
            println!("{}", serde_json::to_string(&rates).during("report")?);
        } else {
            println!("{}", kernel_requests::rates_text(&rates));
        }
        (before, began) = (now, at);
    }
}

pub fn run_donor(command: &DonorCommand) -> Outcome<()> {
    let (change, DonorArgs { server, donor }) = match command {
        DonorCommand::Forget(ForgetArgs { of, dry_run: true }) => (DonorChange::Cost, of),
        DonorCommand::Forget(ForgetArgs { of, dry_run: false }) => (DonorChange::Forget, of),
        DonorCommand::Add(args) => (DonorChange::Add, args),
        DonorCommand::Drain(args) => (DonorChange::Drain, args),
        DonorCommand::Lost(args) => (DonorChange::Lost, args),
    };
    // The server has a different working directory.
    let donor = match donor.strip_prefix("unix:") {
        Some(path) => format!("unix:{}", std::path::absolute(path).during(path)?.display()),
        None => donor.clone(),
    };
    let done = ask(server, &Question::Donor { change, donor })?;
    println!("{}", done.as_str().unwrap_or_default());
    Ok(())
}

pub fn ask(server: &str, question: &Question) -> Outcome<serde_json::Value> {
    // Look for such a path only if the word is also an address: a daemon behind the path may be
    // stopped, and the look would not return.
    let listen: Option<Listen> = server.parse().ok().filter(|_| !Path::new(server).exists());
    match listen {
        Some(listen) => {
            let path = control_path(&listen)?;
            let answer = control::ask_at(&path, &format!("server on {server}"), question)?;
            answer.ok_or_else(|| {
                Failure::new(server, "no `shoal serve` is listening there on this machine")
                    .remedy("give the address of `shoal serve --nbd`, or a mounted store")
            })
        }
        None => {
            let place = place::find(Path::new(server)).map_err(|failure| {
                if server.starts_with('/') { failure } else { failure.remedy("name unix:PATH, HOST:PORT, or a store") }
            })?;
            control::ask(&place.store, question)?.ok_or_else(|| {
                Failure::new(place.store.display(), "is not mounted").remedy("mount it, which opens its device")
            })
        }
    }
}

/// Returns the control socket of the server that listens at this address.
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

fn text(report: &Status) -> serde_json::Result<String> {
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
        Some(device) => out += &device.text()?,
        None if report.bulks.is_empty() => out += "no bulk storage\n",
        None => {}
    }
    for device in &report.more_devices {
        out += &device.text()?;
    }
    if report.bulks.len() > 1 {
        out += "\n";
        out += &crate::bulk::text(&report.bulks);
        out += "\n";
    }
    for cache in &report.caches {
        out += &held_writes(cache, &report.caches, "held writes: ");
        out += &format!(
            "since it was opened: {} reads, {} writes of {}, {} flushes\n",
            cache.device_reads,
            cache.device_writes,
            human(cache.device_written_bytes),
            cache.device_flushes
        );
    }
    if let Some(requests) = &report.requests {
        out += &kernel_requests::text(requests);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use shoal_store::ExportReport;

    use super::*;

    fn sample() -> Status {
        let device = serde_json::json!({ "device": "file:/d", "kind": "file", "size_bytes": 1u64 << 31 });
        let device = Some(serde_json::from_value(device).unwrap());
        let address = "unix:/run/d".into();
        let export = ExportReport { name: "d".into(), address, connections: 1, read_only: false, pid: 7 };
        Status { export: Some(export), device, ..Status::default() }
    }

    #[test]
    fn a_served_device_shows_its_export_first() {
        let text = text(&sample()).unwrap();
        assert_eq!(text, "d on unix:/run/d  connections: 1, process 7\nfile:/d  2 GiB\n");
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
        let report = Status {
            export: None,
            store: Some("/srv/s".into()),
            failure: None,
            device: None,
            caches: Vec::new(),
            more_devices: vec![],
            bulks: vec![],
            requests,
        };
        let text = text(&report).unwrap();
        assert!(text.starts_with("large files of /srv/s\nno bulk storage\nrequests "), "{text}");
        assert!(text.contains("\nLOOKUP ") && text.ends_with("2.0 us\n"), "{text}");
    }

    #[test]
    fn the_report_is_read_back_by_the_command() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), sample());
    }

    #[test]
    fn each_server_has_a_control_socket_of_its_own() {
        let of = |text: &str| control_path(&text.parse().unwrap()).unwrap();
        assert_eq!(of("unix:/run/d"), Path::new("/run/d.control"));
        assert!(of("127.0.0.1:7000").ends_with("shoal/serve-7000.control"));
    }
}
