//! Links to donors that are restarted, that break in the middle of a write, or that are short of memory.
//!
//! The servers run in this process on UNIX sockets, over a file. Every wait is bounded by the link's own patience.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use shoal_host::FileDevice;
use shoal_nbd::{BlockStatus, Export, Extent, Listen, Server, ServerOptions};

use super::*;

const BYTES: u64 = 1 << 20;
const LOST_AFTER: Duration = Duration::from_secs(4);

/// Memory that ends with its server, and may hang.
struct Memory {
    file: FileDevice,
    hangs: Arc<AtomicBool>,
    stuck: Mutex<Vec<Completion>>,
}

impl BlockDevice for Memory {
    fn write_cache(&self) -> Option<&dyn shoal_media::WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.file.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        match self.hangs.load(Ordering::SeqCst) {
            true => self.stuck.lock().push(done),
            false => self.file.submit(request, done),
        }
    }
}

/// `shoal:pressure` as a donor reports it.
struct Pressure(Arc<AtomicU32>);

impl BlockStatus for Pressure {
    fn context(&self) -> &str {
        PRESSURE
    }

    fn status(&self, _at: u64, len: u32, _extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        Ok(vec![Extent { len, flags: self.0.load(Ordering::SeqCst) }])
    }
}

struct World {
    dir: tempfile::TempDir,
    pressure: Arc<AtomicU32>,
    hangs: Arc<AtomicBool>,
    server: Option<Server>,
    servers: u32,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let mut world = World { dir, pressure: Arc::default(), hangs: Arc::default(), server: None, servers: 0 };
        world.restart();
        world
    }

    /// Ends the server at once, and its memory with it. A new server takes its place.
    fn restart(&mut self) {
        self.server = None;
        self.hangs.store(false, Ordering::SeqCst);
        self.servers += 1;
        let file = FileDevice::create(&self.dir.path().join(self.servers.to_string()), BYTES).unwrap();
        let memory = Arc::new(Memory { file, hangs: self.hangs.clone(), stuck: Mutex::default() });
        let context = Arc::new(Pressure(self.pressure.clone()));
        let export = Export::new("", memory).unwrap().context(context).unwrap();
        let listen = Listen::Unix(self.socket());
        self.server = Some(Server::start(Arc::new(vec![Arc::new(export)]), &listen, ServerOptions::default()).unwrap());
    }

    fn socket(&self) -> std::path::PathBuf {
        Path::new(self.dir.path()).join("s")
    }

    fn link(&self) -> DonorLink {
        let uri = format!("nbd+unix:///?socket={}", self.socket().display()).parse().unwrap();
        DonorLink::connect(&uri, LOST_AFTER).unwrap()
    }
}

fn read_byte(link: &DonorLink, at: u64) -> Result<u8, MediaError> {
    let mut block = [0; 512];
    link.read_into(at, &mut block).map(|()| block[0])
}

fn trouble(error: &MediaError) -> Trouble {
    let MediaError::Io { source, .. } = error else { panic!("{error}") };
    source.get_ref().unwrap().downcast_ref::<DonorError>().unwrap().trouble
}

#[test]
fn a_change_that_a_dead_connection_may_still_bring_is_uncertain() {
    let mut world = World::new();
    // Like any other server, it was not told which client the connection belongs to.
    let link = world.link();
    assert!(!link.is_fenced());
    world.hangs.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| link.write_from(1024, &[9; 512]));
        let read = scope.spawn(|| read_byte(&link, 1024));
        std::thread::sleep(Duration::from_millis(100));
        world.restart();
        assert_eq!(trouble(&write.join().unwrap().unwrap_err()), Trouble::Uncertain);
        assert_eq!(read.join().unwrap().unwrap(), 0, "reading again changes nothing");
    });
}

#[test]
fn another_server_in_its_place_is_refused() {
    let mut world = World::new();
    let link = world.link();
    let told = Arc::new(AtomicU32::new(0));
    let lost = told.clone();
    let tell = move || _ = lost.fetch_add(1, Ordering::SeqCst);
    link.listen(LinkListener { lost: Some(Box::new(tell)), ..LinkListener::default() });
    link.write_from(0, &[1; 4096]).unwrap();
    // The server was written to but has no superblock, as if it had lost one.
    link.belongs_to([7; 16], Written::Already);
    world.restart();
    let begin = Instant::now();
    let error = read_byte(&link, 0).unwrap_err();
    assert!(error.to_string().contains("no longer holds the disk"), "{error}");
    assert_eq!(trouble(&error), Trouble::Away);
    assert!(begin.elapsed() < LOST_AFTER, "no need to wait for a server that answers");
    drop(link);
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

#[test]
fn a_restarted_server_is_taken_while_nothing_of_the_disk_was_there() {
    let mut world = World::new();
    let link = world.link();
    link.write_from(0, &[1; 4096]).unwrap();
    link.belongs_to([7; 16], Written::NotYet);
    world.restart();
    assert_eq!(read_byte(&link, 0).unwrap(), 0);
}

#[test]
fn a_servers_pressure_is_told_when_it_changes() {
    let world = World::new();
    world.pressure.store(1, Ordering::SeqCst);
    let link = world.link();
    assert!(link.is_pressed());
    // Meanwhile the disk would be opened.
    std::thread::sleep(Duration::from_millis(1250));
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let tell = move |on: bool| sender.lock().send(on).unwrap_or_default();
    link.listen(LinkListener { pressure: Some(Box::new(tell)), ..LinkListener::default() });
    for on in [true, false, true, false] {
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)).unwrap(), on);
        world.pressure.store(u32::from(!on), Ordering::SeqCst);
    }
    assert!(receiver.recv_timeout(Duration::from_secs(5)).unwrap());
    assert!(receiver.recv_timeout(Duration::from_millis(1200)).is_err(), "told once");
}
