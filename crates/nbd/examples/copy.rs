//! Copies between NBD exports and files with many requests in flight.
//!
//! `copy FROM TO`, where each is an NBD URI or the path of a file. A file to write to must exist
//! and be long enough. Prints bytes and seconds. `copy --list URI` prints the exports of a server.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use shoal_media::{BlockDevice, Request};
use shoal_nbd::{Client, ClientOptions, Uri};

type Failure = Box<dyn std::error::Error>;

const PIECE_BYTES: u64 = 256 << 10;
const IN_FLIGHT: usize = 16;

fn open(text: &str) -> Result<Arc<dyn BlockDevice>, Failure> {
    if text.contains("://") {
        let options = ClientOptions { flush_may_be_missing: true, ..ClientOptions::default() };
        return Ok(Arc::new(Client::connect(&text.parse::<Uri>()?, &options)?));
    }
    Ok(Arc::new(shoal_host::FileDevice::open(Path::new(text))?))
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
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = arguments.as_slice() else { return Err("usage: copy FROM TO | copy --list URI".into()) };
    if from == "--list" {
        for entry in shoal_nbd::list(&to.parse()?, &ClientOptions::default())? {
            println!("{}\t{}", entry.name, entry.description);
        }
        return Ok(());
    }
    let (from, to) = (open(from)?, open(to)?);
    let bytes = from.geometry().bytes;
    if to.geometry().bytes < bytes {
        return Err(format!("{} bytes do not fit into {}", bytes, to.geometry().bytes).into());
    }
    let started = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let (mut next, mut in_flight) = (0, 0);
    while next < bytes || in_flight > 0 {
        while next < bytes && in_flight < IN_FLIGHT {
            let (at, len) = (next, PIECE_BYTES.min(bytes - next));
            let (to, sender) = (to.clone(), sender.clone());
            let write = move |read: shoal_media::Result<Vec<u8>>| match read {
                Err(error) => drop(sender.send(Err(error))),
                Ok(buffer) => {
                    let done = move |written| drop(sender.send(written));
                    to.submit(Request::Write { at, buffer, fua: false }, Box::new(done));
                }
            };
            from.submit(Request::Read { at, buffer: vec![0; len as usize] }, Box::new(write));
            next += len;
            in_flight += 1;
        }
        receiver.recv()??;
        in_flight -= 1;
    }
    shoal_media::flush(&*to)?;
    println!("{bytes} bytes in {:.3} s", started.elapsed().as_secs_f64());
    Ok(())
}
