//! Links over servers that go away, come back, come back empty, or hang.
//!
//! The servers run in this process on UNIX sockets. Their device has a cache that dies with the
//! server, as after a power loss or on a server without a disk. Every wait is bounded by the link's
//! own patience.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};

use super::*;
use crate::{Export, Listen, Server, ServerOptions};

const BYTES: usize = 64 << 20;
const LOST_AFTER: Duration = Duration::from_secs(4);

/// A device with slow writes. The first of several concurrent writes takes longest.
#[derive(Default)]
struct Late {
    is_on: AtomicBool,
    now: AtomicUsize,
    /// Maximum number of writes at the same time.
    most: AtomicUsize,
}

#[derive(Default)]
struct ServedDisk {
    stable: Mutex<Vec<u8>>,
    flushes: AtomicUsize,
}

/// A device with a cache of its own over a disk that outlives it.
struct Cache {
    disk: Arc<ServedDisk>,
    current: Arc<Mutex<Vec<u8>>>,
    late: Arc<Late>,
    hangs: AtomicBool,
    fails: AtomicBool,
    stuck: Mutex<Vec<Completion>>,
}

impl BlockDevice for Cache {
    fn write_cache(&self) -> Option<&dyn shoal_media::WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry { bytes: BYTES as u64, block_bytes: 512, atomic_bytes: 512, survives_process: false }
    }

    fn submit(&self, request: Request, done: Completion) {
        if self.hangs.load(Ordering::SeqCst) {
            return self.stuck.lock().push(done);
        }
        if self.fails.load(Ordering::SeqCst) {
            return done(Err(MediaError::io("disk", io::Error::other("on fire"))));
        }
        if let (true, Request::Write { at, buffer, .. }) = (self.late.is_on.load(Ordering::SeqCst), &request) {
            let (current, late, at, buffer) = (self.current.clone(), self.late.clone(), *at as usize, buffer.clone());
            let before = late.now.fetch_add(1, Ordering::SeqCst);
            late.most.fetch_max(before + 1, Ordering::SeqCst);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100 / (before as u64 + 1)));
                current.lock()[at..at + buffer.len()].copy_from_slice(&buffer);
                late.now.fetch_sub(1, Ordering::SeqCst);
                done(Ok(buffer));
            });
            return;
        }
        let mut current = self.current.lock();
        let result = match request {
            Request::Read { at, mut buffer } => {
                let len = buffer.len();
                buffer.copy_from_slice(&current[at as usize..][..len]);
                buffer
            }
            Request::Write { at, buffer, .. } => {
                current[at as usize..][..buffer.len()].copy_from_slice(&buffer);
                buffer
            }
            Request::Flush => {
                self.disk.stable.lock().copy_from_slice(&current);
                self.disk.flushes.fetch_add(1, Ordering::SeqCst);
                vec![]
            }
            Request::Trim { .. } => vec![],
            Request::WriteZeroes { at, len, .. } => {
                current[at as usize..][..len as usize].fill(0);
                vec![]
            }
        };
        drop(current);
        done(Ok(result));
    }
}

struct World {
    socket: PathBuf,
    disk: Arc<ServedDisk>,
    late: Arc<Late>,
    server: Option<(Server, Arc<Cache>)>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(ServedDisk::default());
        *disk.stable.lock() = vec![0; BYTES];
        let socket = dir.path().join("s");
        let mut world = World { socket, disk, late: Arc::default(), server: None, _dir: dir };
        world.start();
        world
    }

    fn start(&mut self) {
        self.server = Some(serve(&self.socket, &self.disk, &self.late));
    }

    /// Ends the server at once, and its cache with it.
    fn kill(&mut self) {
        self.server = None;
    }

    fn cache(&self) -> &Cache {
        &self.server.as_ref().unwrap().1
    }

    fn link(&self, reliance: Reliance, lost_after: Duration) -> Link {
        self.link_of(reliance, lost_after, Arc::new(()))
    }

    fn link_of(&self, reliance: Reliance, lost_after: Duration, owner: Arc<dyn Owner>) -> Link {
        let uri = format!("nbd+unix:///?socket={}", self.socket.display()).parse().unwrap();
        let options = LinkOptions { lost_after, reliance, ..LinkOptions::default() };
        Link::connect(&uri, &options, owner).unwrap()
    }
}

fn serve(socket: &Path, disk: &Arc<ServedDisk>, late: &Arc<Late>) -> (Server, Arc<Cache>) {
    let current = Arc::new(Mutex::new(disk.stable.lock().clone()));
    let late = late.clone();
    let (hangs, fails) = (AtomicBool::new(false), AtomicBool::new(false));
    let cache = Arc::new(Cache { disk: disk.clone(), current, late, hangs, fails, stuck: Mutex::default() });
    let export = Export::new("", cache.clone()).unwrap();
    let export = export.clients(Arc::default());
    let listen = Listen::Unix(socket.to_path_buf());
    (Server::start(Arc::new(vec![Arc::new(export)]), &listen, ServerOptions::default()).unwrap(), cache)
}

/// An owner that refuses every server that was written to, and records what it is told.
struct Told(mpsc::Sender<End>, OnceLock<bool>);

impl Told {
    fn new() -> (Arc<Told>, mpsc::Receiver<End>) {
        let (sender, told) = mpsc::channel();
        (Arc::new(Told(sender, OnceLock::new())), told)
    }
}

impl Owner for Told {
    fn recognise(&self, client: &Client, written: bool) -> Result<(), Refused> {
        assert_eq!(client.geometry().bytes, BYTES as u64);
        self.1.set(written).unwrap();
        if written { Err(Refused::Another("a stranger".into())) } else { Ok(()) }
    }

    fn ended(&self, end: &End) {
        self.0.send(end.clone()).unwrap_or_default();
    }
}

fn read_byte(link: &Link, at: u64) -> Result<u8, MediaError> {
    let mut block = [0; 512];
    link.read_into(at, &mut block).map(|()| block[0])
}

#[test]
fn requests_wait_for_a_server_that_comes_back() {
    let mut world = World::new();
    let link = world.link(Reliance::Completed, LOST_AFTER);
    link.write_from(512, &[7; 512]).unwrap();
    shoal_media::flush(&link).unwrap();
    world.kill();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| read_byte(&link, 512).unwrap())).collect();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(link.state(), "reconnecting");
        assert!(waiting.iter().all(|thread| !thread.is_finished()));
        world.start();
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), 7);
        }
    });
    assert_eq!(link.state(), "connected");
}

#[test]
fn nothing_goes_to_another_export_at_the_same_address() {
    for is_flushed in [true, false] {
        let mut world = World::new();
        let link = world.link(Reliance::Flushed, LOST_AFTER);
        link.write_from(512, &[7; 512]).unwrap();
        link.write_from(4096, &[7; 512]).unwrap();
        if is_flushed {
            shoal_media::flush(&link).unwrap();
        }
        // No flush covers this write, so the server may have it or not when the connection is lost.
        link.write_from(512, &[8; 512]).unwrap();
        world.kill();
        world.disk.stable.lock().fill(1);
        world.start();
        let read = read_byte(&link, 4096);
        let touched = world.cache().current.lock().iter().any(|byte| *byte != 1);
        if is_flushed {
            assert!(read.unwrap_err().to_string().contains("another export answers"));
            assert!(!touched, "another export was written");
        } else {
            // Without a flushed sample, this server looks like one that has lost its cache.
            assert_eq!(read.unwrap(), 7);
        }
    }
}

#[test]
fn a_write_where_the_last_sample_was_does_not_go_to_another_export_either() {
    for fails_before in [false, true] {
        let mut world = World::new();
        let link = world.link(Reliance::Flushed, LOST_AFTER);
        // This block stands for the mark of a device.
        link.write_from(8192, &[3; 512]).unwrap();
        shoal_media::flush(&link).unwrap();
        if fails_before {
            world.cache().fails.store(true, Ordering::SeqCst);
            assert!(link.write_from(8192, &[4; 512]).is_err());
            world.cache().fails.store(false, Ordering::SeqCst);
            link.write_from(16384, &[5; 512]).unwrap();
            shoal_media::flush(&link).unwrap();
        }
        link.write_from(512, &[7; 512]).unwrap();
        shoal_media::flush(&link).unwrap();
        world.kill();
        world.disk.stable.lock().fill(1);
        world.start();
        assert!(link.write_from(512, &[8; 512]).is_err());
        assert!(world.cache().current.lock().iter().all(|byte| *byte == 1), "another export was written");
    }
}

#[test]
fn overlapping_writes_under_way_are_no_sample() {
    let mut world = World::new();
    let link = world.link(Reliance::Flushed, LOST_AFTER);
    world.late.is_on.store(true, Ordering::SeqCst);
    for round in 0..5 {
        std::thread::scope(|scope| {
            // The server carries out the first of these writes last.
            for byte in 1..7 {
                let link = &link;
                scope.spawn(move || link.write_from(512, &[byte; 1024]).unwrap());
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        shoal_media::flush(&link).unwrap();
        world.kill();
        world.start();
        assert!(read_byte(&link, 512).is_ok(), "round {round}: it is the same server");
    }
}

#[test]
fn a_sample_that_a_write_changes_is_asked_for_no_more() {
    let mut world = World::new();
    let link = world.link(Reliance::Flushed, LOST_AFTER);
    link.write_from(512, &[7; 512]).unwrap();
    shoal_media::flush(&link).unwrap();
    link.write_from(512, &[8; 512]).unwrap();
    world.cache().current.lock()[512..1024].fill(8);
    world.disk.stable.lock()[512..1024].fill(8);
    world.kill();
    world.start();
    assert_eq!(read_byte(&link, 512).unwrap(), 8, "the cache had written it back");
    shoal_media::block::wait(&link, Request::WriteZeroes { at: 512, len: 512, fua: false }).unwrap();
    shoal_media::flush(&link).unwrap();
    world.kill();
    world.start();
    assert_eq!(read_byte(&link, 512).unwrap(), 0);
}

#[test]
fn what_was_in_flight_is_repeated_on_the_new_connection_if_the_server_ends_older_ones_first() {
    let mut world = World::new();
    let link = world.link(Reliance::Completed, LOST_AFTER);
    link.claim(Claim::Open([1; 16], 0)).unwrap();
    assert!(link.is_fenced());
    world.cache().hangs.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| link.write_from(1024, &[9; 512]));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!write.is_finished());
        world.kill();
        world.start();
        write.join().unwrap().unwrap();
    });
    assert_eq!(world.cache().current.lock()[1024], 9);
}

#[test]
fn a_change_that_a_dead_connection_may_still_bring_is_not_repeated() {
    let mut world = World::new();
    // Like any other server, it was not told which client the connection belongs to.
    let link = world.link(Reliance::Completed, LOST_AFTER);
    assert!(!link.is_fenced());
    world.cache().hangs.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| link.write_from(1024, &[9; 512]));
        let read = scope.spawn(|| read_byte(&link, 1024));
        std::thread::sleep(Duration::from_millis(100));
        world.kill();
        world.start();
        let error = write.join().unwrap().expect_err("it was repeated").to_string();
        assert!(error.ends_with("the connection broke"), "{error}");
        assert_eq!(read.join().unwrap().unwrap(), 0, "reading again changes nothing");
    });
    assert_eq!(world.cache().current.lock()[1024], 0);
}

#[test]
fn a_client_that_another_one_has_followed_is_told() {
    let world = World::new();
    let (owner, told) = Told::new();
    let first = world.link_of(Reliance::Completed, LOST_AFTER, owner);
    first.claim(Claim::Open([1; 16], 0)).unwrap();
    let second = world.link(Reliance::Completed, LOST_AFTER);
    let refused = second.claim(Claim::Open([2; 16], 0)).unwrap_err();
    assert!(refused.to_string().contains("--takeover"), "{refused}");
    first.write_from(0, &[1; 512]).unwrap();
    second.claim(Claim::Seize([2; 16], 0)).unwrap();
    second.write_from(0, &[2; 512]).unwrap();
    assert!(first.write_from(0, &[3; 512]).is_err());
    assert_eq!(told.recv_timeout(LOST_AFTER).unwrap(), End::TakenOver);
    assert_eq!(read_byte(&second, 0).unwrap(), 2);
}

#[test]
fn a_connection_that_names_no_client_changes_nothing_beside_one() {
    let world = World::new();
    let unnamed = world.link(Reliance::Completed, LOST_AFTER);
    unnamed.write_from(0, &[1; 512]).unwrap();
    let first = world.link(Reliance::Completed, LOST_AFTER);
    assert!(first.ask([1; 16], 1).unwrap());
    first.claim(Claim::Open([1; 16], 1)).unwrap();
    let refused = unnamed.write_from(0, &[2; 512]).unwrap_err().to_string();
    assert!(refused.contains("has a client"), "{refused}");
    assert!(unnamed.ask([2; 16], 2).is_err());
    first.write_from(512, &[3; 512]).unwrap();
    assert_eq!((read_byte(&unnamed, 0).unwrap(), read_byte(&unnamed, 512).unwrap()), (1, 3));
}

#[test]
fn a_server_restarted_in_order_under_load_fails_nothing() {
    let mut world = World::new();
    let link = world.link(Reliance::Flushed, 10 * LOST_AFTER);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let exchange = |number: u8| {
            let at = u64::from(number) << 20;
            for round in (1..=250).cycle().take_while(|_| !over.load(Ordering::SeqCst)) {
                link.write_from(at, &[round; 128 << 10]).unwrap();
                shoal_media::flush(&link).unwrap();
                assert_eq!(read_byte(&link, at).unwrap(), round);
            }
        };
        let load: Vec<_> = (0..4).map(|number| scope.spawn(move || exchange(number))).collect();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(20));
            // The server answers the requests it has taken, and refuses the rest because it is
            // shutting down.
            let (server, _) = world.server.take().unwrap();
            server.shut_down(Duration::from_secs(2));
            world.start();
        }
        over.store(true, Ordering::SeqCst);
        load.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_server_that_stays_away_fails_every_request_for_good() {
    let mut world = World::new();
    let (owner, told) = Told::new();
    let link = world.link_of(Reliance::Completed, Duration::from_millis(500), owner);
    world.kill();
    let begin = Instant::now();
    let error = read_byte(&link, 0).unwrap_err().to_string();
    assert!(error.contains("no connection for 0.5 s"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    world.start();
    assert!(read_byte(&link, 0).is_err(), "its data may be old: it stays lost");
    assert_eq!(link.state(), "lost");
    assert!(matches!(told.recv_timeout(Duration::from_secs(5)).unwrap(), End::Away { .. }));
    drop(link);
    assert!(told.recv().is_err(), "told once");
}

#[test]
fn an_idle_link_notices_that_its_server_is_gone() {
    let mut world = World::new();
    let link = world.link(Reliance::Completed, Duration::from_millis(200));
    world.kill();
    let begin = Instant::now();
    while link.state() != "lost" {
        assert!(begin.elapsed() < Duration::from_secs(5), "{}", link.state());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_that_hangs_is_lost_in_the_same_time() {
    let world = World::new();
    let link = world.link(Reliance::Completed, Duration::from_secs(1));
    world.cache().hangs.store(true, Ordering::SeqCst);
    let begin = Instant::now();
    read_byte(&link, 0).unwrap_err();
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(400) && took < Duration::from_secs(4), "{took:?}");
    for done in world.cache().stuck.lock().drain(..) {
        done(Ok(vec![0; 512]));
    }
}

#[test]
fn writes_the_server_had_not_flushed_survive_its_end() {
    let mut world = World::new();
    let link = world.link(Reliance::Flushed, LOST_AFTER);
    link.write_from(0, &[1; 1024]).unwrap();
    shoal_media::flush(&link).unwrap();
    link.write_from(0, &[2; 1024]).unwrap();
    link.write_from(512, &[3; 512]).unwrap();
    world.kill();
    world.start();
    assert_eq!(world.cache().current.lock()[0], 1, "the server itself has lost them");
    assert_eq!((read_byte(&link, 0).unwrap(), read_byte(&link, 512).unwrap()), (2, 3));
    shoal_media::flush(&link).unwrap();
    assert_eq!(world.disk.stable.lock()[512], 3);
    assert!(link.shared.state.lock().kept.is_empty(), "flushed writes are not kept");
}

#[test]
fn writes_are_repeated_together_but_in_order_where_they_overlap() {
    let mut world = World::new();
    let link = world.link(Reliance::Flushed, LOST_AFTER);
    for n in 0..8u8 {
        link.write_from(u64::from(n) << 20, &[1; 4096]).unwrap();
        link.write_from((u64::from(n) << 20) + 512, &[2 + n; 512]).unwrap();
    }
    world.kill();
    world.late.is_on.store(true, Ordering::SeqCst);
    world.start();
    for n in 0..8u8 {
        let at = u64::from(n) << 20;
        assert_eq!((read_byte(&link, at).unwrap(), read_byte(&link, at + 512).unwrap()), (1, 2 + n));
    }
    assert!(world.late.most.load(Ordering::SeqCst) > 1);
}

#[test]
fn a_write_answered_by_a_connection_that_was_given_up_is_repeated() {
    let mut world = World::new();
    let link = world.link(Reliance::Flushed, LOST_AFTER);
    world.kill();
    world.start();
    assert_eq!(read_byte(&link, 0).unwrap(), 0, "on the second connection");
    let (sender, receiver) = mpsc::sync_channel(1);
    let operation = Operation {
        flight: None,
        again: Arc::new(Again::Write { at: 0, bytes: vec![5; 512], fua: false }),
        started: Instant::now(),
        after: 0,
        done: Box::new(move |result| sender.send(result.is_ok()).unwrap()),
    };
    link.shared.ended(0, operation, Ok(vec![5; 512]));
    assert!(receiver.recv_timeout(LOST_AFTER).unwrap());
    assert_eq!(world.cache().current.lock()[0], 5);
}

#[test]
fn what_is_kept_for_a_lost_server_stays_bounded() {
    assert_eq!([None, Some(8 << 30), Some(128 << 20)].map(kept_bytes_max), [32 << 20, 32 << 20, 4 << 20]);
    let world = World::new();
    let link = world.link(Reliance::Flushed, LOST_AFTER);
    let buffer = vec![5; 1 << 20];
    for i in 0..100u64 {
        link.write_from((i % 32) << 20, &buffer).unwrap();
        let kept = link.shared.state.lock().kept.bytes();
        assert!(kept <= KEPT_BYTES_MAX + (2 << 20), "{kept}");
    }
    assert!(world.disk.flushes.load(Ordering::SeqCst) >= 2);
}

#[test]
fn a_server_that_its_owner_does_not_recognise_is_refused_at_once() {
    let mut world = World::new();
    let (owner, told) = Told::new();
    let link = world.link_of(Reliance::Completed, LOST_AFTER, owner.clone());
    link.write_from(0, &[1; 4096]).unwrap();
    world.kill();
    world.start();
    let begin = Instant::now();
    let error = read_byte(&link, 0).unwrap_err().to_string();
    assert!(error.contains("a stranger"), "{error}");
    assert!(begin.elapsed() < LOST_AFTER, "no need to wait for a server that answers");
    assert_eq!(told.recv_timeout(LOST_AFTER).unwrap(), End::Another("a stranger".into()));
    assert_eq!(owner.1.get(), Some(&true));
}

#[test]
fn an_owner_says_whether_what_was_written_counts() {
    let mut world = World::new();
    let (owner, _told) = Told::new();
    let link = world.link_of(Reliance::Completed, LOST_AFTER, owner.clone());
    link.write_from(0, &[1; 4096]).unwrap();
    link.set_written(false);
    world.kill();
    world.start();
    assert_eq!(read_byte(&link, 0).unwrap(), 0);
    assert_eq!(owner.1.get(), Some(&false));
}

#[test]
fn a_failed_flush_poisons_the_link_across_connections() {
    let mut world = World::new();
    let link = world.link(Reliance::Flushed, LOST_AFTER);
    world.cache().fails.store(true, Ordering::SeqCst);
    assert!(read_byte(&link, 0).is_err());
    link.write_from(0, &[0; 512]).unwrap_err();
    world.cache().fails.store(false, Ordering::SeqCst);
    link.write_from(0, &[0; 512]).unwrap();
    world.cache().fails.store(true, Ordering::SeqCst);
    shoal_media::flush(&link).unwrap_err();
    world.kill();
    world.start();
    read_byte(&link, 0).unwrap();
    assert!(matches!(link.write_from(0, &[0; 512]), Err(MediaError::Poisoned { .. })));
    assert!(matches!(shoal_media::flush(&link), Err(MediaError::Poisoned { .. })));
}
