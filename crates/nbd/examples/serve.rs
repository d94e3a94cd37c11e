//! Serves memory or a file over NBD until standard input ends.
//!
//! `serve unix:PATH|HOST:PORT memory:MIB|file:PATH [--name NAME] [--tls DIRECTORY] [--read-only]
//! [--insecure]` prints `listening on ADDRESS` when clients can connect. The directory holds
//! `server-cert.pem`, `server-key.pem` and, to demand client certificates, `ca-cert.pem`. The
//! memory export has a context `shoal:redundancy` that calls every other MiB single, to have
//! something to show.

mod memory;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shoal_media::{BlockDevice, MediaError};
use shoal_nbd::{BlockStatus, Export, Extent, Server, ServerOptions, TlsServer};

type Failure = Box<dyn std::error::Error>;

struct Redundancy;

impl BlockStatus for Redundancy {
    fn context(&self) -> &str {
        "shoal:redundancy"
    }

    fn status(&self, at: u64, len: u32, extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        let (mut extents, mut at, end) = (vec![], at, at + u64::from(len));
        while at < end && extents.len() < extents_max {
            let next = (((at >> 20) + 1) << 20).min(end);
            extents.push(Extent { len: (next - at) as u32, flags: (at >> 20) as u32 & 1 });
            at = next;
        }
        Ok(extents)
    }
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: serve ADDRESS memory:MIB|file:PATH [--name NAME] [--tls DIR] [--read-only] [--insecure]";
    let address = arguments.next().ok_or(usage)?;
    let source = arguments.next().ok_or(usage)?;
    let (mut name, mut options, mut read_only) = (String::new(), ServerOptions::default(), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--name" => name = arguments.next().ok_or(usage)?,
            "--tls" => options.tls = Some(TlsServer::from_directory(Path::new(&arguments.next().ok_or(usage)?))?),
            "--read-only" => read_only = true,
            "--insecure" => options.insecure = true,
            _ => return Err(usage.into()),
        }
    }
    let (device, in_memory): (Arc<dyn BlockDevice>, bool) = match source.split_once(':') {
        Some(("memory", mib)) => (Arc::new(memory::MemoryDevice::new(mib.parse::<u64>()? << 20, 1)), true),
        Some(("file", path)) => (Arc::new(shoal_host::FileDevice::open(Path::new(path))?), false),
        _ => return Err(usage.into()),
    };
    let mut export = Export::new(name, device)?.description(&source).multi_conn(true).read_only(read_only);
    if in_memory {
        export = export.fast_zero(true).context(Arc::new(Redundancy))?;
    }
    let server = Server::start(Arc::new(vec![Arc::new(export)]), &address.parse()?, options)?;
    println!("listening on {}", server.address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let cut = server.shut_down(Duration::from_secs(5));
    println!("shut down, {cut} connections cut");
    Ok(())
}
