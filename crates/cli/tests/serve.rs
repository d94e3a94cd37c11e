//! `shoal serve`, `status` and stores whose large files are on a server, as processes that
//! communicate over UNIX sockets.
//!
//! Every test has its own directory; its servers end with it, even after a panic. Commands run
//! under `timeout`, and waiting for a line or a state has a time limit. Tests that mount need
//! /dev/fuse, and root or fusermount3.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use shoal_media::{BlockDevice, flush, read, trim, write};
use shoal_nbd::{Client, ClientOptions};
use shoal_sim::Random;

use crate::scene::{self, wait_until};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

struct Scene {
    dir: tempfile::TempDir,
}

/// A server of this scene.
struct Served {
    child: Child,
    ready: Value,
}

impl Served {
    fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Ends the server as a user would. The server must report success.
    fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Scene {
    fn new() -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scene.path("mnt")).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().into()
    }

    fn sparse(&self, name: &str, bytes: u64) -> String {
        let file = fs::File::create(self.path(name)).unwrap();
        file.set_len(bytes).unwrap();
        format!("file:{}", self.text(name))
    }

    /// Starts a server on the socket `name` and waits until it is ready.
    fn serve(&self, device: &str, name: &str, more: &[&str]) -> Served {
        let at = format!("unix:{}", self.text(name));
        self.start(&[&["serve", device, "--nbd", &at, "--json"], more].concat())
    }

    fn start(&self, args: &[&str]) -> Served {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shoal"));
        command.args(args).env("XDG_RUNTIME_DIR", self.dir.path());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = out.read_line(&mut line).map(|_| sender.send(line));
        });
        let line = receiver.recv_timeout(PATIENCE).unwrap_or_default();
        let served = Served { child, ready: serde_json::from_str(&line).unwrap_or(Value::Null) };
        assert!(served.ready.is_object(), "{args:?}: {line}");
        served
    }

    fn run(&self, args: &[&str]) -> Output {
        scene::shoal(args).env("XDG_RUNTIME_DIR", self.dir.path()).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        scene::succeeded(args, self.run(args))
    }

    /// Returns the error line of a command that must fail with `code`.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "shoal {args:?}: {text}");
        let line = text.lines().last().unwrap_or_default();
        assert!(line.starts_with("shoal: "), "{text}");
        line.to_string()
    }

    fn status(&self, server: &str) -> Value {
        let text = self.ok(&["status", "--json", server]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Formats a store with this bulk storage.
    fn format(&self, bulk: &str) {
        self.ok(&["format", "--memory-size", "64M", "--bulk", bulk, &self.text("store")]);
    }

    /// Makes a network RAM disk.
    fn make(&self, device: &str) {
        self.ok(&["format", device]);
    }

    fn mount(&self) {
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is missing: this test needs FUSE");
        self.ok(&["mount", &self.text("store"), &self.text("mnt")]);
    }

    fn umount(&self) {
        self.ok(&["umount", &self.text("mnt")]);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Also unmounts after a mount that should have failed but succeeded.
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        if mounts.contains(&self.text("mnt")) {
            self.run(&["umount", "--lazy", &self.text("mnt")]);
        }
    }
}

fn connect(served: &Served, contexts: &[&str]) -> Client {
    let uri = served.ready["uri"].as_str().unwrap().parse().unwrap();
    let contexts = contexts.iter().map(|context| context.to_string()).collect();
    Client::connect(&uri, &ClientOptions { contexts, ..ClientOptions::default() }).unwrap()
}

/// Returns bytes that differ from block to block and from seed to seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Random::new(seed).bytes(len)
}

#[test]
fn a_served_file_is_read_and_written_by_clients_and_flushed_at_the_end() {
    let scene = Scene::new();
    let device = scene.sparse("disk", 16 * MIB);
    let served = scene.serve(&device, "sock", &["--name", "one"]);
    assert_eq!(served.ready["size_bytes"], 16 * MIB);
    assert_eq!(served.ready["uri"], format!("nbd+unix:///one?socket={}", scene.text("sock")));
    let (a, b) = (connect(&served, &[]), connect(&served, &[]));
    let bytes = pattern(1, 1 << 20);
    write(&a, 4096, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    read(&b, 4096, &mut back).unwrap();
    assert!(back == bytes);
    let status = scene.status(&format!("unix:{}", scene.text("sock")));
    assert_eq!(status["export"]["connections"], 2);
    assert_eq!((&status["export"]["name"], &status["device"]["kind"]), (&"one".into(), &"file".into()));
    assert_eq!(status["device"]["size_bytes"], 16 * MIB);
    let text = scene.ok(&["status", &format!("unix:{}", scene.text("sock"))]);
    assert!(text.contains("connections: 2") && text.contains("16 MiB"), "{text}");
    served.stop();
    assert!(fs::read(scene.path("disk")).unwrap()[4096..][..bytes.len()] == bytes);
    for left in ["sock", "sock.control"] {
        assert!(!scene.path(left).exists(), "{left} stays behind");
    }
    let error = scene.fails(1, &["status", &format!("unix:{}", scene.text("sock"))]);
    assert!(error.contains("no `shoal serve` is listening there"), "{error}");
}

#[test]
fn a_read_only_export_on_tcp_refuses_writes_and_answers_status() {
    let scene = Scene::new();
    let device = scene.sparse("disk", MIB);
    let served = scene.start(&["serve", &device, "--nbd", "127.0.0.1:0", "--read-only", "--json"]);
    let client = connect(&served, &[]);
    assert!(write(&client, 0, &[1; 512]).unwrap_err().to_string().contains("read-only"));
    read(&client, 0, &mut [0; 512]).unwrap();
    let status = scene.status(served.ready["address"].as_str().unwrap());
    assert_eq!(status["export"]["read_only"], true);
    drop(client);
    served.stop();
}

#[test]
fn wrong_command_lines_and_places_are_told_in_one_line() {
    let scene = Scene::new();
    let at = format!("unix:{}", scene.text("sock"));
    for (code, device, expected) in [
        (2, "disk", "is no device"),
        (2, "netram:", "names no donor"),
        (2, "netram:unix:/a", "needs 2 donors at least, 1 given"),
        (2, "netram:unix:/a,unix:/b?polcy=none", "polcy: no option"),
        (1, "file:/nowhere/disk", "/nowhere/disk"),
        (1, "nbd+unix:///?socket=/nowhere/sock", "check the address and that the server runs"),
    ] {
        let error = scene.fails(code, &["serve", device, "--nbd", &at]);
        assert!(error.contains(expected), "{device}: {error}");
    }
    let device = scene.sparse("disk", MIB);
    let error = scene.fails(1, &["serve", &device, "--nbd", "0.0.0.0:0"]);
    assert!(error.contains("--insecure"), "{error}");
    let served = scene.serve(&device, "sock", &[]);
    let error = scene.fails(1, &["serve", &device, "--nbd", &at]);
    assert!(error.contains("is in use by another store or process"), "{error}");
    let other = scene.sparse("other", MIB);
    let error = scene.fails(1, &["serve", &other, "--nbd", &at]);
    assert!(error.contains("a server is listening there already"), "{error}");
    let error = scene.fails(1, &["donor", "drain", &at, "unix:/a"]);
    assert!(error.contains("has no donors"), "{error}");
    assert!(scene.status(&at)["device"].is_object(), "the first server is not disturbed");
    drop(served);
}

#[test]
fn a_served_device_may_itself_be_on_a_server_that_comes_and_goes() {
    let scene = Scene::new();
    let device = scene.sparse("disk", 4 * MIB);
    let below = scene.serve(&device, "below", &[]);
    let uri = format!("nbd+unix:///?socket={}&lost-after=3", scene.text("below"));
    let above = scene.serve(&uri, "above", &[]);
    let client = connect(&above, &[]);
    write(&client, 0, &pattern(2, 8192)).unwrap();
    below.kill();
    let at = format!("unix:{}", scene.text("above"));
    wait_until("the loss to be seen", || scene.status(&at)["device"]["connection"] == "reconnecting");
    let below = scene.serve(&device, "below", &[]);
    let mut back = vec![0; 8192];
    read(&client, 0, &mut back).unwrap();
    assert!(back == pattern(2, 8192));
    below.kill();
    let begin = Instant::now();
    assert!(write(&client, 0, &[0; 512]).is_err());
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(scene.status(&at)["device"]["connection"], "lost");
}

#[test]
fn a_store_keeps_its_large_files_on_a_server() {
    let scene = Scene::new();
    let device = scene.sparse("disk", 64 * MIB);
    let served = scene.serve(&device, "sock", &["--name", "bulk"]);
    let uri = format!("nbd+unix:///bulk?socket={}&lost-after=2", scene.text("sock"));
    scene.format(&uri);
    scene.mount();
    let file = scene.path("mnt").join("large");
    let bytes = pattern(3, 5 << 20);
    fs::write(&file, &bytes).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let status = scene.status(scene.path("mnt").to_str().unwrap());
    assert_eq!(status["device"]["kind"], "nbd");
    assert_eq!(status["device"]["connection"], "connected");
    let df: Value = serde_json::from_str(&scene.ok(&["df", "--json", &scene.text("mnt")])).unwrap();
    assert_eq!(df["bulk"]["used_bytes"], 5 * MIB);
    assert_eq!(df["bulk"]["place"], uri);
    scene.umount();
    scene.mount();
    assert!(fs::read(&file).unwrap() == bytes);
    // The server ends and comes back underneath the mount.
    served.kill();
    let served = scene.serve(&device, "sock", &["--name", "bulk"]);
    fs::write(scene.path("mnt").join("second"), &bytes).unwrap();
    scene.umount();
    scene.mount();
    assert!(fs::read(scene.path("mnt").join("second")).unwrap() == bytes);
    scene.umount();
    served.stop();
    scene.ok(&["check", &scene.text("store")]);
}

#[test]
fn without_its_server_a_store_says_what_is_missing_and_a_mounted_one_gives_up_in_time() {
    let scene = Scene::new();
    let device = scene.sparse("disk", 16 * MIB);
    let uri = format!("nbd+unix:///?socket={}&lost-after=1", scene.text("sock"));
    let error = scene.fails(1, &["format", "--memory-size", "64M", "--bulk", &uri, &scene.text("store")]);
    assert!(error.contains("bulk storage") && error.contains(&scene.text("sock")), "{error}");
    assert!(!scene.path("store").exists(), "a format refused leaves nothing behind");
    let served = scene.serve(&device, "sock", &[]);
    scene.format(&uri);
    scene.mount();
    let (small, large) = (scene.path("mnt").join("small"), scene.path("mnt").join("large"));
    fs::write(&small, "here").unwrap();
    fs::write(&large, pattern(4, 2 << 20)).unwrap();
    fs::File::open(&large).unwrap().sync_all().unwrap();
    served.kill();
    let begin = Instant::now();
    let direct = fs::write(scene.path("mnt").join("new"), pattern(5, 2 << 20))
        .and_then(|()| fs::File::open(scene.path("mnt").join("new"))?.sync_all());
    assert!(direct.is_err(), "a large file cannot be stored");
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    assert_eq!(fs::read(&small).unwrap(), b"here", "what needs no bulk storage goes on");
    scene.run(&["umount", &scene.text("mnt")]);
    let begin = Instant::now();
    let error = scene.fails(1, &["mount", &scene.text("store"), &scene.text("mnt")]);
    assert!(error.contains(&scene.text("sock")) && error.contains("start its server again"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    scene.ok(&["check", &scene.text("store")]);
    let served = scene.serve(&device, "sock", &[]);
    scene.mount();
    assert!(fs::read(&large).unwrap() == pattern(4, 2 << 20));
    assert_eq!(fs::read(&small).unwrap(), b"here");
    scene.umount();
    served.stop();
}

#[test]
fn a_device_that_holds_something_is_not_overwritten_by_mistake() {
    let scene = Scene::new();
    let device = scene.sparse("disk", 16 * MIB);
    let served = scene.serve(&device, "sock", &[]);
    let client = connect(&served, &[]);
    write(&client, 4096, &[7; 512]).unwrap();
    flush(&client).unwrap();
    let uri = format!("nbd+unix:///?socket={}", scene.text("sock"));
    let line = ["format", "--memory-size", "64M", "--bulk", &uri];
    let error = scene.fails(1, &[&line[..], &[&scene.text("store")]].concat());
    assert!(error.contains("not empty") && error.contains("--force"), "{error}");
    let error = scene.fails(2, &[&line[..], &["--force", "--bulk-size", "1G", &scene.text("store")]].concat());
    assert!(error.contains("--bulk-size"), "{error}");
    scene.ok(&[&line[..], &["--force", &scene.text("store")]].concat());
    assert_eq!(client.geometry().bytes, 16 * MIB);
}

/// Four donors over sparse files. Servers of files are donors like any other, and their contents
/// can be inspected.
struct Donors {
    servers: Vec<Option<Served>>,
    list: String,
}

const DONOR_BYTES: u64 = 16 * MIB;

fn donors(scene: &Scene, count: usize) -> Donors {
    let name = |i: usize| format!("donor{i}");
    let servers = (0..count).map(|i| {
        let device = scene.sparse(&format!("memory{i}"), DONOR_BYTES);
        Some(scene.serve(&device, &name(i), &[]))
    });
    let list: Vec<String> = (0..count).map(|i| format!("unix:{}", scene.text(&name(i)))).collect();
    Donors { servers: servers.collect(), list: list.join(",") }
}

fn redundancy(client: &Client) -> u32 {
    client.first_block_status("shoal:redundancy", 0, 4096).unwrap()[0].flags
}

#[test]
fn a_network_ram_disk_tells_its_holes() {
    let scene = Scene::new();
    let donors = donors(&scene, 3);
    let device = format!("netram:{}", donors.list);
    scene.make(&device);
    let served = scene.serve(&device, "disk", &[]);
    let client = connect(&served, &["base:allocation"]);
    let holes = |client: &Client| -> Vec<(u32, u32)> {
        let extents = client.block_status("base:allocation", 0, MIB as u32).unwrap();
        extents.iter().map(|extent| (extent.len, extent.flags)).collect()
    };
    // Until the donors were looked at, all is said to be data.
    wait_until("the disk to be opened", || holes(&client) == [(MIB as u32, 3)]);
    write(&client, 8192, &pattern(1, 8192)).unwrap();
    // Half a block is a block.
    write(&client, 65536, &pattern(2, 512)).unwrap();
    let written = [(8192, 3), (8192, 0), (49152, 3), (4096, 0), (MIB as u32 - 69632, 3)];
    assert_eq!(holes(&client), written);
    trim(&client, 8192, 4096).unwrap();
    flush(&client).unwrap();
    let trimmed = [(12288, 3), (4096, 0), (49152, 3), (4096, 0), (MIB as u32 - 69632, 3)];
    assert_eq!(holes(&client), trimmed);
    served.stop();
    let served = scene.serve(&device, "disk", &[]);
    let client = connect(&served, &["base:allocation"]);
    wait_until("the same holes after it was opened again", || holes(&client) == trimmed);
}

#[test]
fn a_network_ram_disk_survives_the_death_of_a_donor_under_writes() {
    let scene = Scene::new();
    let mut donors = donors(&scene, 4);
    let device = format!("netram:{}?lost-after=1", donors.list);
    scene.make(&device);
    let served = scene.serve(&device, "disk", &[]);
    let at = format!("unix:{}", scene.text("disk"));
    let client = connect(&served, &["shoal:redundancy"]);
    let status = scene.status(&at);
    assert_eq!(status["device"]["disk"]["donors"].as_array().unwrap().len(), 4);
    wait_until("the disk to be looked through", || {
        scene.status(&at)["device"]["disk"]["redundancy"]["state"] == "full"
    });
    assert_eq!(redundancy(&client), 0);
    let block = 16384;
    let blocks = 8 * MIB / block;
    for i in 0..blocks {
        if i == blocks / 2 {
            donors.servers[1].take().unwrap().kill();
        }
        write(&client, i * block, &pattern(i, block as usize)).unwrap();
    }
    flush(&client).unwrap();
    let intact = |client: &Client| {
        let mut back = vec![0; block as usize];
        (0..blocks).all(|i| {
            read(client, i * block, &mut back).unwrap();
            back == pattern(i, block as usize)
        })
    };
    assert!(intact(&client));
    wait_until("the rebuild", || {
        let disk = &scene.status(&at)["device"]["disk"];
        disk["donors"][1]["state"] == "lost" && disk["rebuild"].is_null() && disk["redundancy"]["state"] == "full"
    });
    assert_eq!(redundancy(&client), 0);
    // After the rebuild another donor may be lost.
    donors.servers[2].take().unwrap().kill();
    assert!(intact(&client));
    wait_until("the second rebuild", || {
        let disk = &scene.status(&at)["device"]["disk"];
        disk["donors"][2]["state"] == "lost" && disk["redundancy"]["state"] == "full"
    });
    drop(client);
    served.stop();
    // The disk is on its donors, where another process finds it.
    let served = scene.serve(&device, "disk", &[]);
    assert!(intact(&connect(&served, &[])));
    served.stop();
}

#[test]
fn a_disk_is_made_by_format_alone_and_an_absent_one_is_never_replaced_by_an_empty_one() {
    let scene = Scene::new();
    let lend = |name: &str| {
        let at = format!("unix:{}", scene.text(name));
        scene.start(&["donate", "--memory", "16M", "--listen", &at, "--json"])
    };
    let mut lenders = ["a", "b", "c"].map(lend);
    let list = ["a", "b", "c"].map(|name| format!("unix:{}", scene.text(name))).join(",");
    let (device, at) = (format!("netram:{list}"), format!("unix:{}", scene.text("disk")));
    let absent = |error: &str| {
        let named = ["a", "b", "c"].iter().all(|name| error.contains(&scene.text(name)));
        assert!(named && error.contains("`shoal format netram:...`"), "{error}");
    };
    absent(&scene.fails(1, &["serve", &device, "--nbd", &at]));
    let error = scene.fails(1, &["format", "--memory-size", "64M", "--bulk", &device, &scene.text("store")]);
    assert!(error.contains("bulk storage"), "{error}");
    absent(&error);
    assert!(!scene.path("store").exists(), "a format refused leaves nothing behind");
    let error = scene.fails(2, &["format", "--size", "1G", &device]);
    assert!(error.contains("size=SIZE"), "{error}");
    let error = scene.fails(2, &["serve", &format!("{device}?new=yes"), "--nbd", &at]);
    assert!(error.contains("shoal format netram:"), "{error}");
    let made: Value = serde_json::from_str(&scene.ok(&["format", "--json", &device])).unwrap();
    let uuid = made["uuid"].as_str().unwrap();
    assert_eq!((&made["donors"], &made["parity"]), (&3.into(), &1.into()));
    let error = scene.fails(1, &["format", &device]);
    assert!(error.contains(&format!("holds network RAM disk {uuid}")) && error.contains("--force"), "{error}");
    let served = scene.serve(made["device"].as_str().unwrap(), "disk", &[]);
    assert_eq!(served.ready["size_bytes"], made["size_bytes"]);
    let client = connect(&served, &[]);
    write(&client, 0, &pattern(1, 1 << 20)).unwrap();
    flush(&client).unwrap();
    let error = scene.fails(1, &["format", "--force", &device]);
    assert!(error.contains("another client has this area open"), "{error}");
    let mut back = vec![0; 1 << 20];
    read(&client, 0, &mut back).unwrap();
    assert!(back == pattern(1, 1 << 20));
    drop(client);
    served.stop();
    // The whole cluster restarts: nothing is left, and the message says so.
    lenders.into_iter().for_each(Served::kill);
    lenders = ["a", "b", "c"].map(lend);
    absent(&scene.fails(1, &["serve", &device, "--nbd", &at]));
    let error = scene.fails(1, &["serve", made["device"].as_str().unwrap(), "--nbd", &at]);
    absent(&error);
    assert!(error.contains(uuid) && error.contains("their memory is gone"), "{error}");
    scene.make(&device);
    scene.ok(&["format", "--force", &device]);
    let served = scene.serve(&device, "disk", &[]);
    read(&connect(&served, &[]), 0, &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 0));
    // Some donors are also absent, and the message names them.
    served.stop();
    lenders.into_iter().take(2).for_each(Served::kill);
    let error = scene.fails(1, &["serve", &device, "--nbd", &at]);
    assert!(error.contains("too few donors") || error.contains("no donor that can be reached"), "{error}");
}

#[test]
fn without_redundancy_the_loss_of_a_donor_is_told_and_what_is_there_is_read() {
    let scene = Scene::new();
    let mut donors = donors(&scene, 2);
    let device = format!("netram:{}?policy=none&lost-after=0.5", donors.list);
    scene.make(&device);
    let served = scene.serve(&device, "disk", &[]);
    let client = connect(&served, &["shoal:redundancy"]);
    assert_eq!(redundancy(&client), 1, "a loss would lose data");
    for i in 0..64 {
        write(&client, i * 4096, &pattern(i, 4096)).unwrap();
    }
    flush(&client).unwrap();
    donors.servers[0].take().unwrap().kill();
    let begin = Instant::now();
    let mut back = vec![0; 4096];
    let found: Vec<bool> =
        (0..64).map(|i| read(&client, i * 4096, &mut back).is_ok() && back == pattern(i, 4096)).collect();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let there = found.iter().filter(|found| **found).count();
    assert!(there > 0 && there < 64, "{there}");
    let at = format!("unix:{}", scene.text("disk"));
    wait_until("the loss to be told", || scene.status(&at)["device"]["disk"]["redundancy"]["state"] == "lost");
    let text = scene.ok(&["status", &at]);
    assert!(text.contains("lost: ") && text.contains("blocks were on donors that are gone"), "{text}");
    donors.servers[1].take().unwrap().kill();
    let begin = Instant::now();
    assert!(read(&client, 0, &mut back).is_err() && write(&client, 0, &back).is_err());
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn donors_join_are_emptied_and_given_up_while_the_disk_is_served() {
    let scene = Scene::new();
    let donors = donors(&scene, 3);
    let more = scene.sparse("more", DONOR_BYTES);
    let _more = scene.serve(&more, "donor-more", &[]);
    let device = format!("netram:{}?size=8M", donors.list);
    scene.make(&device);
    let served = scene.serve(&device, "disk", &[]);
    let at = format!("unix:{}", scene.text("disk"));
    let client = connect(&served, &[]);
    write(&client, 0, &pattern(1, 4 << 20)).unwrap();
    flush(&client).unwrap();
    let donor = |i: usize| donors.list.split(',').nth(i).unwrap();
    let error = scene.fails(1, &["donor", "add", &at, donor(0)]);
    assert!(error.contains("in use by this disk already"), "{error}");
    let error = scene.fails(1, &["donor", "drain", &at, "unix:/nowhere"]);
    assert!(error.contains("not in use by this disk"), "{error}");
    let error = scene.fails(1, &["donor", "add", &at, "unix:/nowhere"]);
    assert!(error.contains("unix:/nowhere") && error.contains("check the address"), "{error}");
    scene.ok(&["donor", "add", &at, &format!("unix:{}", scene.text("donor-more"))]);
    scene.ok(&["donor", "drain", &at, donor(0)]);
    let state = |i: usize| scene.status(&at)["device"]["disk"]["donors"][i]["state"].clone();
    wait_until("the donor to be emptied", || state(0) == "drained");
    scene.ok(&["donor", "lost", &at, donor(1)]);
    wait_until("the rebuild", || scene.status(&at)["device"]["disk"]["redundancy"]["state"] == "full");
    assert_eq!((state(1), state(3)), ("lost".into(), "active".into()));
    let mut back = vec![0; 4 << 20];
    read(&client, 0, &mut back).unwrap();
    assert!(back == pattern(1, 4 << 20));
    drop(client);
    served.stop();
}

#[test]
fn donors_that_will_not_do_are_named_with_what_to_do() {
    let scene = Scene::new();
    let mut donors = donors(&scene, 4);
    let at = format!("unix:{}", scene.text("disk"));
    let donor = |list: &str, i: usize| list.split(',').nth(i).unwrap().to_string();
    let list = donors.list.clone();
    let pair = |a: usize, b: usize, more: &str| format!("netram:{},{}?{more}", donor(&list, a), donor(&list, b));
    scene.make(&pair(0, 1, "policy=mirrored"));
    let served = scene.serve(&pair(0, 1, "policy=mirrored"), "disk", &[]);
    let error = scene.fails(1, &["serve", &pair(0, 1, "policy=mirrored"), "--nbd", &format!("{at}2")]);
    assert!(error.contains("another process on this machine has it open"), "{error}");
    served.stop();
    scene.make(&pair(2, 3, "policy=mirrored"));
    let error = scene.fails(1, &["serve", &pair(1, 2, "policy=mirrored"), "--nbd", &at]);
    assert!(error.contains("donor2: belongs to network RAM disk") && error.contains("format --force"), "{error}");
    let error = scene.fails(1, &["format", &pair(1, 2, "policy=mirrored")]);
    assert!(error.contains("donor1: holds network RAM disk") && error.contains("--force"), "{error}");
    // The disk must hold data, so that a missing donor is waited for: a donor without data is soon
    // left out.
    let served = scene.serve(&pair(2, 3, "policy=mirrored"), "disk", &[]);
    let client = connect(&served, &[]);
    write(&client, 0, &pattern(1, 1 << 20)).unwrap();
    flush(&client).unwrap();
    drop(client);
    served.stop();
    // A server is absent, and a new disk needs all of its donors.
    donors.servers[3].take().unwrap().kill();
    let error = scene.fails(1, &["format", "--force", &pair(0, 3, "policy=mirrored")]);
    assert!(error.contains("donor3") && error.contains("a new disk needs all"), "{error}");
    let degraded = scene.serve(&pair(2, 3, "policy=mirrored"), "disk", &[]);
    let states = || -> Vec<String> {
        let disk = scene.status(&at)["device"]["disk"].clone();
        disk["donors"].as_array().unwrap().iter().map(|donor| donor["state"].to_string()).collect()
    };
    wait_until("a missing donor", || states().iter().filter(|state| *state == "\"missing\"").count() == 1);
    degraded.kill();
    // Overwritten deliberately, the two donors become another disk.
    scene.ok(&["format", "--force", &pair(1, 2, "policy=mirrored")]);
    scene.serve(&pair(1, 2, "policy=mirrored"), "disk", &[]).stop();
    let small = scene.sparse("small", 64 << 10);
    let _small = scene.serve(&small, "tiny", &[]);
    let both = format!("netram:unix:{},{}", scene.text("tiny"), donor(&list, 0));
    let error = scene.fails(1, &["format", "--force", &both]);
    assert!(error.contains("does not fit"), "{error}");
    // The refused command has not changed the donor, which still holds its disk.
    let error = scene.fails(1, &["format", &both]);
    assert!(error.contains("donor0: holds network RAM disk"), "{error}");
}

#[test]
fn a_donor_with_a_secret_lends_to_who_knows_it() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let secret = scene.path("secret");
    fs::write(&secret, "open sesame\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let allow = format!("me:{}", scene.text("secret"));
    let lend = |name: &str| {
        let at = format!("unix:{}", scene.text(name));
        scene.start(&["donate", "--memory", "16M", "--listen", &at, "--allow", &allow, "--json"])
    };
    let _donors = (lend("a"), lend("b"));
    let list = format!("netram:unix:{},unix:{}", scene.text("a"), scene.text("b"));
    let at = format!("unix:{}", scene.text("disk"));
    for command in [&["serve", &list, "--nbd", &at][..], &["format", &list]] {
        let error = scene.fails(1, command);
        assert!(error.contains(&scene.text("a")) && error.contains("secret"), "{error}");
    }
    let device = format!("{list}?name=me&secret={}", scene.text("secret"));
    scene.make(&device);
    let served = scene.serve(&device, "disk", &[]);
    let client = connect(&served, &[]);
    write(&client, 0, &pattern(1, 1 << 20)).unwrap();
    flush(&client).unwrap();
    let text = scene.ok(&["status", "--json", &at]);
    assert!(!text.contains("open sesame"), "{text}");
    drop(client);
    served.stop();
}

#[test]
fn a_store_keeps_its_large_files_in_the_memory_of_donors() {
    let scene = Scene::new();
    let lend = |name: &str| {
        let at = format!("unix:{}", scene.text(name));
        scene.start(&["donate", "--memory", "32M", "--listen", &at, "--json"])
    };
    let mut lenders: Vec<Served> = ["a", "b", "c"].map(lend).into();
    let list: Vec<String> = ["a", "b", "c"].map(|name| format!("unix:{}", scene.text(name))).into();
    let device = format!("netram:{}?lost-after=1", list.join(","));
    scene.make(&device);
    scene.format(&device);
    scene.mount();
    let file = scene.path("mnt").join("large");
    let bytes = pattern(6, 4 << 20);
    fs::write(&file, &bytes).unwrap();
    scene.umount();
    let described = fs::read_to_string(scene.path("store").join("shoal.json")).unwrap();
    assert!(described.contains("uuid=") && !described.contains("new="), "{described}");
    scene.mount();
    assert!(fs::read(&file).unwrap() == bytes);
    // The next mount also finds a donor that has joined.
    lenders.push(lend("d"));
    scene.ok(&["donor", "add", &scene.text("mnt"), &format!("unix:{}", scene.text("d"))]);
    assert!(fs::read_to_string(scene.path("store").join("shoal.json")).unwrap().contains(&scene.text("d")));
    scene.umount();
    scene.mount();
    let disk = scene.status(&scene.text("mnt"))["device"]["disk"].clone();
    assert_eq!(disk["donors"].as_array().unwrap().len(), 4, "{disk}");
    assert!(fs::read(&file).unwrap() == bytes);
    lenders.remove(0).kill();
    wait_until("the rebuild", || {
        let disk = &scene.status(scene.path("mnt").to_str().unwrap())["device"]["disk"];
        disk["donors"][0]["state"] == "lost" && disk["redundancy"]["state"] == "full"
    });
    assert!(fs::read(&file).unwrap() == bytes);
    scene.umount();
    // All donors forget. The store must not get an empty disk in place of its own.
    lenders.into_iter().for_each(Served::kill);
    let _lenders: Vec<Served> = ["a", "b", "c", "d"].map(lend).into();
    let error = scene.fails(1, &["mount", &scene.text("store"), &scene.text("mnt")]);
    assert!(error.contains("their memory is gone"), "{error}");
    scene.ok(&["check", &scene.text("store")]);
}
