//! Shared by the tests: devices, a running server, a raw client that can say anything, seeded numbers.
//!
//! Owns: servers on UNIX and TCP sockets, certificates, devices that fail or stall. Everything ends
//! with the test.

#[path = "../../examples/memory/mod.rs"]
pub mod memory;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memory::MemoryDevice;
use shoal_media::BlockDevice;
use shoal_nbd::wire::handshake::*;
use shoal_nbd::wire::transmission::*;
use shoal_nbd::{Client, ClientOptions, Export, Listen, Server, ServerOptions, Uri};

pub const MIB: u64 = 1 << 20;

/// A server on a UNIX socket in a directory of its own.
pub struct World {
    pub server: Server,
    pub socket: PathBuf,
    _directory: tempfile::TempDir,
}

pub fn export(device: Arc<dyn BlockDevice>) -> Export {
    Export::new("disk", device).unwrap().multi_conn(true)
}

pub fn memory(bytes: u64, block_bytes: u32) -> Arc<dyn BlockDevice> {
    Arc::new(MemoryDevice::new(bytes, block_bytes))
}

impl World {
    pub fn new(exports: Vec<Export>, options: ServerOptions) -> World {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let catalog: Vec<_> = exports.into_iter().map(Arc::new).collect();
        let server = Server::start(Arc::new(catalog), &Listen::Unix(socket.clone()), options).unwrap();
        World { server, socket, _directory: directory }
    }

    pub fn of_memory(bytes: u64) -> World {
        World::new(vec![export(memory(bytes, 1)).fast_zero(true)], ServerOptions::default())
    }

    pub fn uri(&self) -> Uri {
        unix_uri(&self.socket)
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.uri(), &ClientOptions::default()).unwrap()
    }

    pub fn raw(&self) -> Raw {
        Raw::connect(&self.socket)
    }
}

pub fn unix_uri(socket: &std::path::Path) -> Uri {
    format!("nbd+unix:///disk?socket={}", socket.display()).parse().unwrap()
}

/// A client that sends what it is told. Every wait ends after some seconds.
pub struct Raw(pub UnixStream);

impl Raw {
    /// Connects, reads the greeting, sends fixed newstyle flags.
    pub fn connect(socket: &std::path::Path) -> Raw {
        let mut raw = Raw(UnixStream::connect(socket).unwrap());
        raw.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut greeting = [0; GREETING_BYTES];
        raw.0.read_exact(&mut greeting).unwrap();
        assert_eq!(decode_greeting(&greeting), Ok(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES));
        raw.send(&3u32.to_be_bytes());
        raw
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // The server may have closed already. A test only looks at what it sent before.
        let _ = self.0.write_all(bytes);
    }

    pub fn exactly<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn some(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns whether the server closes without a further byte.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.0.read(&mut byte) {
            Ok(0) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            Ok(_) => false,
        }
    }

    /// Receives one reply to an option: type and data.
    pub fn reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        let header = OptionReplyHeader::decode(&self.exactly()).unwrap();
        assert_eq!(header.option, option);
        (header.kind, self.some(header.length as usize))
    }

    /// Sends an option and returns its final reply's type and the replies before.
    pub fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<(u32, Vec<u8>)>) {
        let mut message = vec![];
        encode_option(option, data, &mut message);
        self.send(&message);
        let mut replies = vec![];
        loop {
            let (kind, data) = self.reply(option);
            if kind == REP_ACK || kind & REP_ERROR != 0 {
                return (kind, replies);
            }
            replies.push((kind, data));
        }
    }

    pub fn go(&mut self, name: &str) -> u32 {
        let request = ExportRequest { name: name.into(), infos: vec![INFO_BLOCK_SIZE] };
        self.option(OPT_GO, &request.encode()).0
    }

    pub fn request(&mut self, command: u16, flags: u16, cookie: u64, at: u64, len: u32) {
        self.send(RequestHeader { flags, command, cookie, at, len }.encode().bytes());
    }

    /// Receives a simple reply: error and cookie.
    pub fn simple(&mut self) -> (u32, u64) {
        match ReplyHeader::decode(&self.exactly::<SIMPLE_REPLY_BYTES>()).unwrap() {
            ReplyHeader::Simple { error, cookie } => (error, cookie),
            other => panic!("{other:?}"),
        }
    }

    /// Receives a chunk: flags, type, cookie, payload.
    pub fn chunk(&mut self) -> (u16, u16, u64, Vec<u8>) {
        match ReplyHeader::decode(&self.exactly::<CHUNK_HEADER_BYTES>()).unwrap() {
            ReplyHeader::Chunk { flags, kind, cookie, length } => (flags, kind, cookie, self.some(length as usize)),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs a test again in a process of its own, where the peak of the memory is that test's. Returns
/// true there, and false here once it has passed there. The name is `module::function`.
pub fn is_alone(test: &str) -> bool {
    const ALONE: &str = "SHOAL_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let output = alone.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{test}, alone:\n{told}{errors}");
    false
}

/// Peak memory of this process so far (bytes).
pub fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
