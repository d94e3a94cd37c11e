//! `shoal donate`: lends this machine's idle memory to others, as NBD exports.
//!
//! A single process in the foreground serves many clients. A [`Lender`] creates an area for each
//! permitted name; this module runs the server, watches the machine and takes back areas that no
//! client holds.
//! Order: signals are blocked before the first thread starts; then come server and ready line.
//! After SIGTERM clients are asked to move their data to other donors and get some time for it. At
//! the end the server stops first, so that no client writes any more; then every area is zeroed.
//! Pressure is read once a second. While it lasts, no new area is granted, and everything that can
//! be packed is packed at once. A control group with less memory counts as the machine.
//! Left out: decisions on pressure and the memory itself (`shoal_netram::donor`).

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use serde::Serialize;
use shoal_devices::lend::{Lender, Names, Refused, Terms};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_nbd::{Limits, Listen, Server, ServerOptions, TlsServer};
use shoal_netram::donor::{Gauge, Marks, Quota, Reading, parse_stall};
use tracing::{debug, info, warn};

use crate::args::DonateArgs;
use crate::daemon;

/// Interval at which the machine and the areas are checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which an ending donor checks whether it is still needed.
const HAND_OVER_LOOK: Duration = Duration::from_millis(100);

/// Time for clients to get their answers when the process ends.
const GRACE: Duration = Duration::from_secs(5);

/// Least memory for requests of all clients, in addition to the lent memory (bytes).
const REQUESTS_BYTES_MIN: u64 = 64 << 20;
const REQUESTS_BYTES_MAX: u64 = 256 << 20;

/// Least time between two log lines about refused clients.
const TELL_AGAIN: Duration = Duration::from_secs(60);

const PRESSURE: &str = "/proc/pressure/memory";

/// The report that the server is listening.
#[derive(Debug, Serialize)]
struct Ready {
    listen: String,
    pid: u32,
    memory_bytes: u64,
    area_bytes: u64,
    compress: String,
    tls: bool,
}

pub fn run(args: &DonateArgs) -> Outcome<()> {
    let wrong = |option: &str, why: String| Failure::new(option, why).misuse();
    let memory = args.memory.0;
    let area = args.area_size.map_or(memory, |size| size.0);
    if area > memory || area < 512 {
        let why = format!("an area has at least 512 bytes and at most --memory, which is {}", human(memory));
        return Err(wrong("--area-size", why).remedy("choose another size"));
    }
    let total = shoal_host::memory_total_bytes();
    if memory > total {
        let whose = match shoal_host::memory_limit_bytes() {
            None => "this machine has",
            Some(_) => "its control group, or another limit, leaves this process",
        };
        let why = format!("{} is more than {whose} ({})", human(memory), human(total));
        return Err(wrong("--memory", why).remedy("give less; lend only memory that is idle"));
    }
    let tls = args.tls_certificates.as_deref().map(TlsServer::from_directory).transpose();
    let tls = tls.map_err(|error| Failure::new("--tls-certificates", error).misuse())?;
    let beyond = matches!(&args.listen, Listen::Tcp(address) if !address.ip().is_loopback());
    if beyond && tls.is_none() && !args.insecure {
        let why = format!("{} is open to the network, where others could read the data", args.listen);
        return Err(
            wrong("--listen", why).remedy("give --tls-certificates DIR, or --insecure if the network is trusted")
        );
    }
    let names = Names::load(&args.allow)?;
    daemon::start_log();
    if beyond && tls.is_none() && names.have_secrets() {
        warn!("secrets and data cross the network in the clear");
    }
    let signals = daemon::ending_signals()?;
    shoal_host::lift_limits();
    let terms = Terms { area_bytes: area, compression: args.compress, keep: Duration::from_secs(args.keep) };
    let lender = Arc::new(Lender::new(names, Quota::new(memory), terms));
    let marks = Marks { stall_percent: args.memory_stall, available_percent: args.low_memory };
    let mut watch = PressureWatch {
        lender: lender.clone(),
        gauge: Gauge::new(marks),
        begin: Instant::now(),
        refused: Refused::default(),
        told: None,
    };
    // The first reading must precede the first client.
    watch.look();
    let limits = Limits {
        server_bytes: (memory / 4).clamp(REQUESTS_BYTES_MIN, REQUESTS_BYTES_MAX) as usize,
        ..Limits::default()
    };
    let options = ServerOptions { tls: tls.clone(), insecure: args.insecure, limits };
    let server = Server::start(lender.clone(), &args.listen, options).map_err(Failure::of)?;
    let ready = Ready {
        listen: server.address().to_string(),
        pid: std::process::id(),
        memory_bytes: memory,
        area_bytes: area,
        compress: args.compress.to_string(),
        tls: tls.is_some(),
    };
    let ending = wait_for_signals(signals)?;
    tell(&ready, args.json)?;
    let compacting = watch.until(&ending, args.compress_after, Duration::from_secs(args.hand_over));
    let cut = server.shut_down(GRACE);
    // This also ends a pass of compaction that may be running.
    let areas = lender.revoke_all();
    // A panic in that thread has already been reported.
    let _ = compacting?.join();
    info!("ended: {areas} areas zeroed, {cut} connections cut off");
    Ok(())
}

/// Prints one line, also with JSON: the process continues, so a reader could not tell the end of a
/// longer report.
fn tell(ready: &Ready, json: bool) -> Outcome<()> {
    let line = if json {
        serde_json::to_string(ready).during("report")?
    } else {
        format!("lending {} on {} (process {})", human(ready.memory_bytes), ready.listen, ready.pid)
    };
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).during("standard output")
}

fn wait_for_signals(signals: SigSet) -> Outcome<Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel();
    let wait = move || {
        while let Ok(signal) = signals.wait() {
            // The receiver is gone once the first signal has been received.
            let _ = sender.send(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).during("signal thread")?;
    Ok(receiver)
}

/// The work to do once a second.
struct PressureWatch {
    lender: Arc<Lender>,
    gauge: Gauge,
    begin: Instant,
    /// The refused clients logged so far. `told` is the time of the last line.
    refused: Refused,
    told: Option<Instant>,
}

impl PressureWatch {
    /// Works until a signal asks for the end. Returns the packing thread, which ends after its
    /// current pass.
    fn until(
        mut self,
        ending: &Receiver<Signal>,
        compress_after_s: u32,
        patience: Duration,
    ) -> Outcome<JoinHandle<()>> {
        let (compact, compacting) = start_compacting(self.lender.clone())?;
        loop {
            let pressed = self.look();
            let age_s = if pressed { 0 } else { compress_after_s };
            let now_s = u32::try_from(self.begin.elapsed().as_secs()).unwrap_or(u32::MAX);
            // Only one pass runs at a time. Skip this one if the last one is still running.
            let _ = compact.try_send(Pass { now_s, age_s });
            match ending.recv_timeout(INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(signal) => {
                    if signal == Signal::SIGTERM {
                        hand_over(&self.lender, ending, patience);
                    }
                    info!("{signal}: ending");
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.lender.close();
        Ok(compacting)
    }

    fn look(&mut self) -> bool {
        let reading = reading();
        let pressed = self.gauge.observe(reading);
        if self.lender.set_pressed(pressed) != pressed {
            let percent = |value: Option<f64>| value.map_or("unknown".into(), |value| format!("{value:.1}%"));
            let (stall, free) = (percent(reading.stall_percent), percent(reading.available_percent));
            if pressed {
                warn!("under memory pressure (stalled {stall}, available {free}): no new areas, packing what is there");
            } else {
                info!("no memory pressure any more (stalled {stall}, available {free})");
            }
        }
        self.tell_refused(Instant::now());
        for (name, held_s) in self.lender.revoke_unheld(Instant::now()) {
            info!("area {name:?} taken back: no client held it for {held_s} s");
        }
        pressed
    }

    /// Logs one line for many refusals: a client that guesses must not fill the log.
    fn tell_refused(&mut self, now: Instant) {
        let refused = self.lender.refused();
        let more = refused.count - self.refused.count;
        if more > 0 && self.told.is_none_or(|told| now.duration_since(told) >= TELL_AGAIN) {
            warn!("refused {more} times: no such name, or a wrong secret; the last client was at {}", refused.last);
            (self.refused, self.told) = (refused, Some(now));
        }
    }
}

/// Waits until clients have moved their data to other donors, for a limited time or until the next
/// signal. Remaining data is lost with this process, as when a donor dies.
fn hand_over(lender: &Lender, ending: &Receiver<Signal>, patience: Duration) {
    if !lender.is_needed() {
        return;
    }
    info!("clients have {} s at most to move their data to other donors", patience.as_secs());
    lender.leave();
    let begun = Instant::now();
    while lender.is_needed() {
        let left = patience.saturating_sub(begun.elapsed());
        if left.is_zero() || ending.recv_timeout(left.min(HAND_OVER_LOOK)).is_ok() {
            return warn!("{} of data that clients did not move is given up", human(lender.usage().held_bytes));
        }
    }
    info!("everything has been moved");
}

/// One pass of compaction, which packs chunks older than `age_s`.
struct Pass {
    now_s: u32,
    age_s: u32,
}

/// Starts a thread that packs: a pass may take long, and the watch must not wait.
fn start_compacting(lender: Arc<Lender>) -> Outcome<(SyncSender<Pass>, JoinHandle<()>)> {
    let (sender, receiver) = mpsc::sync_channel::<Pass>(1);
    let pass = move || {
        for Pass { now_s, age_s } in receiver {
            let done = lender.compact(now_s, age_s);
            if done.chunks > 0 {
                let used = human(lender.usage().used_bytes);
                debug!("packed {} chunks, {} free again, {used} used", done.chunks, human(done.freed_bytes));
            }
        }
    };
    let thread = thread::Builder::new().name("compact".into()).spawn(pass).during("compaction thread")?;
    Ok((sender, thread))
}

fn reading() -> Reading {
    // Kernels without PSI lack this file, or have one that cannot be read. In a control group its
    // own stalls count as well.
    let stall = |path: PathBuf| fs::read_to_string(path).ok().and_then(|text| parse_stall(&text));
    let stalls = std::iter::once(PathBuf::from(PRESSURE)).chain(shoal_host::pressure_files()).filter_map(stall);
    Reading {
        stall_percent: stalls.reduce(f64::max),
        available_percent: shoal_host::memory().map(|memory| memory.available as f64 * 100.0 / memory.total as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let percent = reading().available_percent.unwrap();
        assert!(percent > 0.0 && percent <= 100.0, "{percent}");
    }
}
