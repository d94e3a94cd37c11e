//! `shoal serve`: exports a device to NBD clients until it is told to stop.
//!
//! Order: signals are blocked before the first thread starts; then come device, listener, control
//! socket, and a ready line on standard output. On SIGTERM, SIGINT, SIGHUP and SIGPWR the server
//! accepts no more clients, lets requests finish and flushes; it succeeds only if the flush did.
//! All connections share one device, so a flush on one covers all (`multi-conn`). An address beyond
//! loopback needs TLS or `--insecure`.

use std::io::Write;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use shoal_devices::size::human;
use shoal_devices::{Device, DeviceName, During, Failure, Outcome};
use shoal_nbd::tls::TlsServer;
use shoal_nbd::{Export, Listen, Server, ServerOptions, Uri};
use shoal_store::control::{self, Answer, Control, Question};
use shoal_store::{ExportReport, Status};
use tracing::{info, warn};

use crate::args::ServeArgs;
use crate::daemon;
use crate::status::control_path;

/// Time for requests in flight when the server is told to stop.
const GRACE: Duration = Duration::from_secs(10);
/// Time after which a device is assumed unable to flush.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);

/// The contents of the ready line.
#[derive(Debug, Serialize)]
struct Ready {
    device: String,
    name: String,
    address: String,
    uri: String,
    size_bytes: u64,
    pid: u32,
}

pub fn run(args: &ServeArgs) -> Outcome<()> {
    let name: DeviceName = args.device.parse().map_err(|error: String| Failure::told(error).misuse())?;
    // Make paths absolute, so that `status` and `donor` work from any directory.
    let mut name = name.absolute().during(&args.device)?;
    if args.takeover {
        let cause = "only a network RAM disk can be taken over";
        name = name.taking_over().ok_or_else(|| Failure::new("--takeover", cause).misuse())?;
    }
    let signals = daemon::ending_signals()?;
    shoal_host::lift_limits();
    daemon::start_log();
    daemon::abort_on_panic();
    let tls = args.tls_certificates.as_deref().map(TlsServer::from_directory).transpose().map_err(Failure::of)?;
    let device: Arc<dyn Device> = Arc::from(name.open()?);
    let block_device = device.block_device();
    let size_bytes = block_device.geometry().bytes;
    let export = export(args, &*device).during("--name")?;
    let uses_tls = tls.is_some();
    let options = ServerOptions { tls, insecure: args.insecure, ..ServerOptions::default() };
    let server = Server::start(Arc::new(vec![Arc::new(export)]), &args.nbd, options).map_err(Failure::of)?;
    let address = server.address().clone();
    let server = Arc::new(Mutex::new(Some(server)));
    let control = start_control(&address, args, &device, &server);
    let ready = Ready {
        device: device.name().without_secrets().to_string(),
        name: args.name.clone(),
        uri: Uri::of_export(&address, &args.name, uses_tls).to_text(),
        address: address.to_string(),
        size_bytes,
        pid: std::process::id(),
    };
    announce(&ready, args.json)?;
    let signal = signals.wait().during("signals")?;
    info!("{signal}: stopping");
    let running = server.lock().take();
    let cut = running.map_or(0, |server| server.shut_down(GRACE));
    if cut > 0 {
        warn!("{cut} connections had requests for longer than {} s and were cut", GRACE.as_secs());
    }
    control.into_iter().for_each(Control::stop);
    if !args.read_only {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // The receiver gives up after a while.
            let _ = sender.send(result);
        });
        block_device.submit(shoal_media::Request::Flush, done);
        let flushed = receiver.recv_timeout(FLUSH_PATIENCE);
        let flushed = flushed
            .map_err(|_| Failure::new(&args.device, "did not finish its last flush; the last writes may be lost"))?;
        flushed.map_err(|error| Failure::new("the last flush failed", error))?;
    }
    device.close()?;
    info!("{} is closed", args.device);
    Ok(())
}

fn export(args: &ServeArgs, device: &dyn Device) -> Result<Export, shoal_nbd::export::ExportError> {
    let mut export = Export::new(args.name.as_str(), device.block_device())?
        // Any client can read the description, so it contains no addresses of donors and no paths
        // of this machine.
        .description(device.name().kind().words)
        .multi_conn(true)
        .read_only(args.read_only);
    for context in device.contexts() {
        export = export.context(context)?;
    }
    Ok(export)
}

/// Starts the control socket. If there is no place for it, the device is served anyway, but `shoal
/// status` finds no server.
fn start_control(
    address: &Listen,
    args: &ServeArgs,
    device: &Arc<dyn Device>,
    server: &Arc<Mutex<Option<Server>>>,
) -> Option<Control> {
    let path = control_path(address).ok()?;
    let started = control::prepare_at(&path).and_then(|()| {
        let (device, server) = (device.clone(), server.clone());
        let (name, read_only, address) = (args.name.clone(), args.read_only, address.to_string());
        control::serve_at(&path, move |question| match question {
            Question::Status => {
                let connections = server.lock().as_ref().map_or(0, |server| server.counts().open);
                let (name, address) = (name.clone(), address.clone());
                let export = ExportReport { name, address, connections, read_only, pid: std::process::id() };
                let device = Some(device.report());
                let report = Status { export: Some(export), device, ..Status::default() };
                serde_json::to_value(report).map_or_else(|error| Answer::Error(error.to_string()), Answer::Ok)
            }
            Question::Donor { change, donor } => match device.change(change, &donor) {
                Ok(done) => Answer::Ok(done.into()),
                Err(failure) => Answer::Error(failure.to_string()),
            },
            _ => Answer::Error("this server exports a device, which holds no files; name a store".into()),
        })
    });
    match started {
        Ok(control) => Some(control),
        Err(error) => {
            warn!("{}: {error}; `shoal status` will not work", path.display());
            None
        }
    }
}

fn announce(ready: &Ready, json: bool) -> Outcome<()> {
    let mut line = if json {
        serde_json::to_string(ready).during("report")?
    } else {
        format!("{} ({}) is served at {} (process {})", ready.device, human(ready.size_bytes), ready.uri, ready.pid)
    };
    line.push('\n');
    // The starter may have gone; the server continues anyway.
    let mut out = std::io::stdout();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    Ok(())
}
