//! `shoal donate` as a separate process, with real clients.
//!
//! Every test has its own donor, on a UNIX socket in its own directory or on a loopback port chosen
//! by the system. Both are gone when the test ends, even after a panic. Every wait has a time-out.
//! The memory itself is tested in `shoal_netram::donor`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shoal_media::{BlockDevice, read, trim, write};
use shoal_nbd::{Client, ClientOptions, Uri, list};

const PATIENCE: Duration = Duration::from_secs(20);
const PRESSURE: &str = "shoal:pressure";
/// Options under which a machine never appears short of memory by chance.
const CALM: [&str; 4] = ["--low-memory", "0", "--memory-stall", "100"];

struct Donor {
    child: Child,
    ready: Value,
    dir: tempfile::TempDir,
}

impl Donor {
    /// Starts a donor on a UNIX socket.
    fn start(options: &[&str]) -> Donor {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix:{}", dir.path().join("socket").display());
        Donor::start_in(dir, &listen, options)
    }

    fn start_in(dir: tempfile::TempDir, listen: &str, options: &[&str]) -> Donor {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shoal"));
        command.args(["donate", "--json", "--listen", listen]).args(options).env("SHOAL_LOG", "debug");
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let mut donor = Donor { child, ready: Value::Null, dir };
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        let line = receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("not ready: {}", donor.log()));
        donor.ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?} {}", donor.log()));
        donor
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn uri(&self, name: &str) -> Uri {
        let listen = self.ready["listen"].as_str().unwrap();
        let text = match listen.strip_prefix("unix:") {
            Some(path) => format!("nbd+unix:///{name}?socket={path}"),
            None => format!("nbd://{listen}/{name}"),
        };
        text.parse().unwrap()
    }

    fn connect(&self, name: &str) -> Result<Client, String> {
        let options = ClientOptions {
            connect_timeout: PATIENCE,
            request_timeout: PATIENCE,
            contexts: vec![PRESSURE.into(), "base:allocation".into()],
            ..ClientOptions::default()
        };
        Client::connect(&self.uri(name), &options).map_err(|error| error.to_string())
    }

    fn client(&self, name: &str) -> Client {
        self.connect(name).unwrap_or_else(|error| panic!("{error}\n{}", self.log()))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the donor does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Donor {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, donor: &Donor, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}: {}", donor.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn block(client: &Client, at: u64) -> [u8; 512] {
    let mut out = [0xee; 512];
    read(client, at, &mut out).unwrap();
    out
}

/// Returns the error line of a donor that must not start.
fn fails(options: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.arg("20").arg(env!("CARGO_BIN_EXE_shoal")).arg("donate").args(options);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{options:?}: {text}");
    assert_eq!((text.lines().count(), output.stdout.len()), (1, 0), "{text}");
    text
}

fn secret_file(dir: &tempfile::TempDir, name: &str, secret: &str) -> String {
    let path: PathBuf = dir.path().join(name);
    fs::write(&path, secret).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

#[test]
fn names_have_memory_of_their_own_and_connections_of_a_name_share_it() {
    let donor = Donor::start(&[&["--memory", "8M", "--area-size", "2M"], &CALM[..]].concat());
    assert_eq!((&donor.ready["memory_bytes"], &donor.ready["area_bytes"]), (&(8 << 20).into(), &(2 << 20).into()));
    let (a, b, again) = (donor.client("a"), donor.client("b"), donor.client("a"));
    assert_eq!(a.geometry().bytes, 2 << 20);
    write(&a, 4096, &[1; 512]).unwrap();
    write(&b, 8192, &[2; 512]).unwrap();
    assert_eq!((block(&a, 4096), block(&a, 8192)), ([1; 512], [0; 512]));
    assert_eq!((block(&b, 4096), block(&b, 8192)), ([0; 512], [2; 512]));
    assert_eq!(block(&again, 4096), [1; 512]);
    shoal_media::flush(&again).unwrap();
    let extents = a.block_status("base:allocation", 0, 2 << 20).unwrap();
    let seen: Vec<(u32, u32)> = extents.iter().map(|extent| (extent.len, extent.flags)).collect();
    assert_eq!(seen, [(64 << 10, 0), ((2 << 20) - (64 << 10), 3)]);
    trim(&a, 0, 2 << 20).unwrap();
    assert_eq!((block(&a, 4096), block(&b, 8192)), ([0; 512], [2; 512]));
    let names: Vec<String> =
        list(&donor.uri(""), &ClientOptions::default()).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn a_wrong_secret_and_an_unknown_name_are_refused_alike() {
    let dir = tempfile::tempdir().unwrap();
    let file = secret_file(&dir, "secret", "open sesame\n");
    let listen = format!("unix:{}", dir.path().join("socket").display());
    let guarded = format!("guarded:{file}");
    let options = ["--memory", "1M", "--allow", &guarded, "--allow", "plain", "--area-size", "512K"];
    let donor = Donor::start_in(dir, &listen, &[&options[..], &CALM].concat());
    let told = |name: &str| {
        let error = donor.connect(name).err().unwrap_or_else(|| panic!("{name} was let in"));
        assert!(!error.contains("sesame"), "{error}");
        let at = error.find("this name").unwrap_or_else(|| panic!("{error}"));
        error[at..].to_string()
    };
    let refused = told("guarded:wrong");
    for name in ["guarded", "guarded:", "unknown", "unknown:open%20sesame", "", "plain:x"] {
        assert_eq!(told(name), refused, "{name}");
    }
    let client = donor.client("guarded:open%20sesame");
    write(&client, 0, &[3; 512]).unwrap();
    assert_eq!(block(&donor.client("plain"), 0), [0; 512]);
    assert!(list(&donor.uri(""), &ClientOptions::default()).unwrap().is_empty());
    until("refused clients are told of", &donor, || donor.log().contains("refused "));
    let log = donor.log();
    assert!(log.matches("refused ").count() <= 2 && !log.contains("sesame"), "{log}");
}

#[test]
fn a_host_that_guesses_at_secrets_is_slowed_down() {
    let dir = tempfile::tempdir().unwrap();
    let guarded = format!("guarded:{}", secret_file(&dir, "secret", "open sesame\n"));
    let options = ["--memory", "1M", "--allow", &guarded, "--area-size", "512K"];
    let donor = Donor::start_in(dir, "127.0.0.1:0", &[&options[..], &CALM].concat());
    let begun = Instant::now();
    for number in 0..5 {
        assert!(donor.connect(&format!("guarded:{number}")).is_err());
    }
    assert!(begun.elapsed() > Duration::from_secs(1), "five guesses in {:?}", begun.elapsed());
    // A client with the secret is admitted, a little later.
    write(&donor.client("guarded:open%20sesame"), 0, &[3; 512]).unwrap();
}

#[test]
fn no_more_is_lent_than_there_is() {
    let donor = Donor::start(&[&["--memory", "1M"], &CALM[..]].concat());
    let first = donor.client("");
    assert_eq!(first.geometry().bytes, 1 << 20);
    write(&first, 0, &[1; 512]).unwrap();
    let error = donor.connect("second").err().unwrap();
    assert!(error.contains("no room for an area of 1 MiB: 0 B of 1 MiB are free"), "{error}");
    assert!(fails(&["--memory", "1M", "--listen", "unix:/nowhere/x", "--area-size", "2M"]).contains("--area-size"));
    assert!(fails(&["--memory", "900T", "--listen", "unix:/nowhere/x"]).contains("more than this machine has"));
}

#[test]
fn an_area_outlives_its_connection_but_not_its_time() {
    let donor = Donor::start(&[&["--memory", "1M", "--keep", "2"], &CALM[..]].concat());
    let client = donor.client("a");
    write(&client, 512, &[9; 512]).unwrap();
    drop(client);
    let client = donor.client("a");
    assert_eq!(block(&client, 512), [9; 512]);
    assert!(donor.connect("b").is_err());
    // An area outlives its time while a client holds it.
    std::thread::sleep(Duration::from_millis(3500));
    assert_eq!(block(&client, 512), [9; 512]);
    drop(client);
    until("the area is not taken back", &donor, || donor.log().contains("taken back"));
    // All of the memory is free for another name, and it is zero.
    let other = donor.client("b");
    let mut out = vec![1; 1 << 20];
    read(&other, 0, &mut out).unwrap();
    assert!(out.iter().all(|byte| *byte == 0));
}

#[test]
fn cold_memory_is_compressed_and_comes_back() {
    for how in ["lz4", "zstd"] {
        let options = ["--memory", "4M", "--compress", how, "--compress-after", "0"];
        let donor = Donor::start(&[&options, &CALM[..]].concat());
        let client = donor.client("");
        let bytes: Vec<u8> = (0..4u32 << 20).map(|at| (at >> 12) as u8).collect();
        write(&client, 0, &bytes).unwrap();
        until("nothing is packed", &donor, || donor.log().contains("packed "));
        let mut out = vec![0; bytes.len()];
        read(&client, 0, &mut out).unwrap();
        assert!(out == bytes, "{how}");
    }
}

#[test]
fn pressure_is_told_over_the_wire_and_nothing_new_is_lent() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}", dir.path().join("socket").display());
    // On every machine less than all memory is available, so there is pressure from the first
    // reading on, before any client.
    let donor = Donor::start_in(dir, &listen, &["--memory", "1M", "--low-memory", "100"]);
    until("no pressure", &donor, || donor.log().contains("under memory pressure"));
    let error = donor.connect("a").err().unwrap();
    assert!(error.contains("needs its memory itself"), "{error}");
    let calm = Donor::start(&[&["--memory", "1M"], &CALM[..]].concat());
    let extents = calm.client("a").block_status(PRESSURE, 0, 1 << 20).unwrap();
    assert_eq!(extents.iter().map(|extent| (extent.len, extent.flags)).collect::<Vec<_>>(), [(1 << 20, 0)]);
}

#[test]
fn sigterm_ends_it_cleanly_with_clients_connected() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut donor = Donor::start(&[&["--memory", "1M"], &CALM[..]].concat());
        let client = donor.client("a");
        write(&client, 0, &[1; 512]).unwrap();
        donor.signal(signal);
        assert!(donor.wait().success(), "{}", donor.log());
        assert!(donor.log().contains("1 areas zeroed, 0 connections cut off"), "{}", donor.log());
        assert!(read(&client, 0, &mut [0; 512]).is_err());
        assert!(!donor.dir.path().join("socket").exists());
    }
}

#[test]
fn beyond_this_machine_it_needs_tls_or_the_owners_word() {
    let error = fails(&["--memory", "1M", "--listen", "0.0.0.0:0"]);
    assert!(error.contains("--tls-certificates") && error.contains("--insecure"), "{error}");
    let error = fails(&["--memory", "1M", "--listen", "127.0.0.1:0", "--tls-certificates", "/nowhere"]);
    assert!(error.contains("server-cert.pem"), "{error}");
    assert!(fails(&["--memory", "1M", "--listen", "127.0.0.1:x"]).contains("127.0.0.1:x"));
    let dir = tempfile::tempdir().unwrap();
    let donor = Donor::start_in(dir, "127.0.0.1:0", &[&["--memory", "1M"], &CALM[..]].concat());
    let client = donor.client("a");
    write(&client, 0, &[5; 512]).unwrap();
    assert_eq!(block(&client, 0), [5; 512]);
}

#[test]
fn without_json_one_line_for_people_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let mut child = Command::new(env!("CARGO_BIN_EXE_shoal"))
        .args(["donate", "--memory", "1M", "--listen", &format!("unix:{}", socket.display())])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while !socket.exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let status = child.wait().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let pid = child.id();
    assert!(status.success());
    assert_eq!(text, format!("lending 1 MiB on unix:{} (process {pid})\n", socket.display()));
}
