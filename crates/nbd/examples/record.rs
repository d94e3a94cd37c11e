//! Serves memory over NBD and logs each read and write.
//!
//! `record ADDRESS MIB LOG CLOCK` prints `listening on ADDRESS` when clients can connect, and ends
//! with standard input. A request in the log is four little-endian words of 8 bytes: time (ns),
//! offset, length (bytes), 1 for a write or 0 for a read. The bytes of a write follow. The time is
//! what CLOCK says of the work that makes the requests: a cgroup's `cpuacct.usage_user` or
//! `cpu.stat`, so that its waits for this server do not count.
//! `scripts/record-build` turns the log into a trace.

mod memory;

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use shoal_media::{BlockDevice, BlockGeometry, Completion, Request, WriteCache};
use shoal_nbd::{Export, Server, ServerOptions};

type Failure = Box<dyn std::error::Error>;

/// Returns the processor time (ns) in a cgroup's file, of version 1 (ns) or 2 (us).
fn processor_ns(text: &str) -> Option<u64> {
    let by_name = text.lines().find_map(|line| line.strip_prefix("user_usec "));
    match by_name {
        Some(us) => us.trim().parse().ok().map(|us: u64| us * 1000),
        None => text.trim().parse().ok(),
    }
}

struct Recording {
    below: memory::MemoryDevice,
    clock: PathBuf,
    log: Mutex<BufWriter<File>>,
}

impl Recording {
    fn log(&self, request: &Request) -> Result<(), Failure> {
        let (Request::Read { buffer, .. } | Request::Write { buffer, .. }) = request else { return Ok(()) };
        let is_write = matches!(request, Request::Write { .. });
        let mut log = self.log.lock();
        let now_ns = processor_ns(&std::fs::read_to_string(&self.clock)?).ok_or("the clock holds no number")?;
        for word in [now_ns, request.range().0, buffer.len() as u64, is_write.into()] {
            log.write_all(&word.to_le_bytes())?;
        }
        if is_write {
            log.write_all(buffer)?;
        }
        Ok(())
    }
}

impl BlockDevice for Recording {
    fn geometry(&self) -> BlockGeometry {
        self.below.geometry()
    }

    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn submit(&self, request: Request, done: Completion) {
        if let Err(error) = self.log(&request) {
            eprintln!("{}: {error}; the log is not complete", self.clock.display());
            std::process::exit(1);
        }
        self.below.submit(request, done);
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, mib, log, clock] = &arguments[..] else { return Err("usage: record ADDRESS MIB LOG CLOCK".into()) };
    let device = Recording {
        below: memory::MemoryDevice::new(mib.parse::<u64>()? << 20, 1),
        clock: Path::new(clock).into(),
        log: Mutex::new(BufWriter::new(File::create(log)?)),
    };
    let device = Arc::new(device);
    let export = Export::new(String::new(), device.clone())?.multi_conn(true);
    let server = Server::start(Arc::new(vec![Arc::new(export)]), &address.parse()?, ServerOptions::default())?;
    println!("listening on {}", server.address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.shut_down(Duration::from_secs(5));
    device.log.lock().flush()?;
    Ok(())
}
