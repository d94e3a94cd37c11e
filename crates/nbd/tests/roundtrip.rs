//! Our client against our server: every request, in any order of completion, over UNIX and TCP sockets.
//!
//! The model is a byte vector. Devices here complete late, on other threads and out of order, or fail on command.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::world::{MIB, World, export, memory};
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, WriteCache};
use shoal_nbd::wire::transmission::*;
use shoal_nbd::{
    BlockStatus, Claim, Client, ClientOptions, Export, Extent, Limits, Link, LinkOptions, Listen, Lost, Server,
    ServerError, ServerOptions, Uri,
};
use shoal_sim::Random;

/// Completes each request on a thread of its own, after a varying delay, so in a different order
/// than submitted.
struct Late {
    inner: Arc<dyn BlockDevice>,
    count: AtomicU64,
}

impl BlockDevice for Late {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel();
        self.inner.submit(request, Box::new(move |result| sender.send(result).unwrap()));
        thread::spawn(move || {
            thread::sleep(Duration::from_micros(count * 7919 % 1500));
            done(receiver.recv().unwrap());
        });
    }
}

/// Fails flushes, or never answers at all.
struct Broken {
    inner: Arc<dyn BlockDevice>,
    silent: bool,
}

impl BlockDevice for Broken {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        match request {
            _ if self.silent => std::mem::forget(done),
            Request::Flush => done(Err(MediaError::io("disk", std::io::Error::other("platter fell off")))),
            other => self.inner.submit(other, done),
        }
    }
}

/// Keeps `depth` requests on disjoint blocks in flight and checks every byte read against the model.
fn exercise(client: &Client, bytes: u64, depth: usize, count: usize, seed: u64) {
    const BLOCK: u64 = 4096;
    let mut random = Random::new(seed);
    let mut model = vec![0u8; bytes as usize];
    let mut busy = std::collections::HashSet::new();
    let (sender, receiver) = mpsc::channel();
    let (mut submitted, mut finished) = (0, 0);
    while finished < count {
        while submitted < count && submitted - finished < depth {
            let block = random.below(bytes / BLOCK);
            if !busy.insert(block) {
                continue;
            }
            let (at, sender) = (block * BLOCK, sender.clone());
            let range = at as usize..(at + BLOCK) as usize;
            let kind = random.below(8);
            let (request, expect) = match kind {
                0..=3 => (Request::Read { at, buffer: vec![0xee; BLOCK as usize] }, Some(model[range].to_vec())),
                4 => {
                    model[range].fill(0);
                    (Request::WriteZeroes { at, len: BLOCK, fua: random.below(2) == 0 }, None)
                }
                5 => {
                    // The memory device's trim zeroes.
                    model[range].fill(0);
                    (Request::Trim { at, len: BLOCK }, None)
                }
                _ => {
                    let buffer = random.bytes(BLOCK as usize);
                    model[range].copy_from_slice(&buffer);
                    (Request::Write { at, buffer, fua: random.below(8) == 0 }, None)
                }
            };
            let is_write = matches!(request, Request::Write { .. });
            let done = move |result: Result<Vec<u8>, MediaError>| {
                let buffer = result.unwrap();
                if let Some(expect) = expect {
                    assert!(buffer == expect, "seed {seed}: wrong bytes in block {block}");
                }
                assert!(!is_write || buffer.len() == BLOCK as usize, "a write gives its buffer back");
                sender.send(block).unwrap();
            };
            client.submit(request, Box::new(done));
            submitted += 1;
        }
        busy.remove(&receiver.recv_timeout(Duration::from_secs(20)).expect("a completion"));
        finished += 1;
    }
    shoal_media::flush(client).unwrap();
    let mut whole = vec![0; bytes as usize];
    shoal_media::read(client, 0, &mut whole).unwrap();
    assert!(whole == model, "seed {seed}");
}

#[test]
fn random_requests_at_depth_32_match_a_byte_vector_over_unix_and_tcp() {
    let world = World::of_memory(2 * MIB);
    exercise(&world.client(), 2 * MIB, 32, 4000, 1);
    let catalog = Arc::new(vec![Arc::new(export(memory(2 * MIB, 512)))]);
    let listen: Listen = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(catalog, &listen, ServerOptions::default()).unwrap();
    let uri: Uri = format!("nbd://{}/disk", server.address()).parse().unwrap();
    let client = Client::connect(&uri, &ClientOptions::default()).unwrap();
    assert_eq!(client.geometry().block_bytes, 512);
    exercise(&client, 2 * MIB, 32, 4000, 2);
}

#[test]
fn a_device_that_completes_late_and_out_of_order_is_served_right() {
    let late = Arc::new(Late { inner: memory(2 * MIB, 1), count: AtomicU64::new(0) });
    let world = World::new(vec![export(late)], ServerOptions::default());
    for seed in 3..6 {
        let zero = world.client();
        shoal_media::write_zeroes(&zero, 0, 2 * MIB).unwrap();
        exercise(&zero, 2 * MIB, 32, 600, seed);
    }
}

#[test]
fn requests_longer_than_the_bound_go_in_pieces() {
    let world = World::of_memory(80 * MIB);
    let client = world.client();
    let data = shoal_sim::Random::new(9).bytes((70 * MIB) as usize);
    shoal_media::write(&client, MIB, &data).unwrap();
    let mut back = vec![0; data.len()];
    shoal_media::read(&client, MIB, &mut back).unwrap();
    assert!(back == data);
    shoal_media::write_zeroes(&client, 0, 80 * MIB).unwrap();
    shoal_media::read(&client, MIB, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 0));
}

#[test]
fn several_connections_see_each_others_flushed_writes() {
    let world = World::of_memory(MIB);
    let (one, two) = (world.client(), world.client());
    assert_ne!(one.export().flags & FLAG_CAN_MULTI_CONN, 0);
    shoal_media::write(&one, 4096, &[7; 4096]).unwrap();
    shoal_media::flush(&two).unwrap();
    let mut seen = [0; 4096];
    shoal_media::read(&two, 4096, &mut seen).unwrap();
    assert_eq!(seen, [7; 4096]);
    let single = World::new(vec![Export::new("disk", memory(MIB, 1)).unwrap()], ServerOptions::default());
    assert_eq!(single.client().export().flags & FLAG_CAN_MULTI_CONN, 0);
}

#[test]
fn a_server_over_another_one_answers_all_its_connections() {
    let far = World::of_memory(MIB);
    let near = World::new(vec![export(Arc::new(far.client()))], ServerOptions::default());
    // Its threads send each other's requests and answers. A thread that sleeps with an unsent
    // answer would leave a client waiting.
    let options = ClientOptions { request_timeout: Duration::from_secs(5), ..ClientOptions::default() };
    let exchange = |number: u64| {
        let client = Client::connect(&near.uri(), &options).unwrap();
        let mut random = Random::new(number);
        let end = Instant::now() + Duration::from_secs(1);
        while Instant::now() < end {
            let (at, len) = (number * MIB / 4, 512 << random.below(7));
            let bytes = random.bytes(len);
            shoal_media::write(&client, at, &bytes).unwrap();
            shoal_media::flush(&client).unwrap();
            let mut back = vec![0; bytes.len()];
            shoal_media::read(&client, at, &mut back).unwrap();
            assert!(back == bytes, "connection {number}");
        }
    };
    thread::scope(|scope| (0..4).for_each(|number| drop(scope.spawn(move || exchange(number)))));
}

#[test]
fn requests_outside_or_unaligned_or_on_read_only_fail_alone() {
    let world = World::new(
        vec![export(memory(MIB, 512)), Export::new("fixed", memory(MIB, 1)).unwrap().read_only(true)],
        ServerOptions::default(),
    );
    let client = world.client();
    for (at, len) in [(MIB, 512), (MIB - 512, 1024), (1, 512), (0, 511), (u64::MAX - 511, 512)] {
        let result = shoal_media::write(&client, at, &vec![1; len]);
        assert!(matches!(result, Err(MediaError::OutOfRange { .. })), "{at} {len}: {result:?}");
    }
    shoal_media::write(&client, 0, &[1; 512]).unwrap();
    let uri: Uri = format!("nbd+unix:///fixed?socket={}", world.socket.display()).parse().unwrap();
    let fixed = Client::connect(&uri, &ClientOptions::default()).unwrap();
    assert!(shoal_media::write(&fixed, 0, &[1; 512]).unwrap_err().to_string().contains("read-only"));
    shoal_media::read(&fixed, 0, &mut [0; 512]).unwrap();
}

#[test]
fn zeroing_knows_no_hole_and_fast() {
    let world = World::of_memory(MIB);
    let client = world.client();
    shoal_media::write(&client, 0, &[5; 8192]).unwrap();
    client.write_zeroes(0, 4096, CMD_FLAG_NO_HOLE | CMD_FLAG_FUA).unwrap();
    client.write_zeroes(4096, 2048, CMD_FLAG_FAST_ZERO).unwrap();
    assert!(client.write_zeroes(0, 4096, CMD_FLAG_FAST_ZERO | CMD_FLAG_NO_HOLE).is_err());
    client.cache(0, 4096).unwrap();
    let mut seen = [1; 8192];
    shoal_media::read(&client, 0, &mut seen).unwrap();
    assert!(seen[..6144].iter().all(|byte| *byte == 0) && seen[6144..].iter().all(|byte| *byte == 5));
    let slow = World::new(vec![export(memory(MIB, 1))], ServerOptions::default());
    let error = slow.client().write_zeroes(0, 4096, CMD_FLAG_FAST_ZERO).unwrap_err();
    assert!(error.to_string().contains("no faster"), "{error}");
}

/// Alternates every 64 KiB, with errors: empty, overlong and too many extents, which the server has
/// to correct.
struct Stripes;

impl BlockStatus for Stripes {
    fn context(&self) -> &str {
        "shoal:redundancy"
    }

    fn status(&self, at: u64, len: u32, _extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        if at == 512 << 10 {
            return Ok(vec![]);
        }
        let mut extents = vec![Extent { len: 0, flags: 9 }];
        extents.extend((0..=len / 65536).map(|at| Extent { len: 65536, flags: at / 2 % 2 }));
        extents.push(Extent { len: u32::MAX, flags: 3 });
        Ok(extents)
    }
}

#[test]
fn block_status_is_asked_by_name_and_always_well_formed() {
    let disk = export(memory(MIB, 1)).context(Arc::new(Stripes)).unwrap();
    let limits = Limits { extents: 3, ..Limits::default() };
    let world = World::new(vec![disk], ServerOptions { limits, ..ServerOptions::default() });
    let names = ["base:allocation", "shoal:redundancy", "other:thing"].map(String::from).to_vec();
    let options = ClientOptions { contexts: names, ..ClientOptions::default() };
    let client = Client::connect(&world.uri(), &options).unwrap();
    assert_eq!(client.export().contexts.len(), 2);
    let extent = |len, flags| Extent { len, flags };
    assert_eq!(client.block_status("base:allocation", 0, 1 << 20).unwrap(), [extent(1 << 20, 0)]);
    let stripes = client.block_status("shoal:redundancy", 0, 1 << 20).unwrap();
    assert_eq!(stripes, [extent(131072, 0), extent(131072, 1), extent(131072, 0)]);
    assert_eq!(client.first_block_status("shoal:redundancy", 0, 1000).unwrap(), [extent(1000, 0)]);
    assert_eq!(client.block_status("shoal:redundancy", 512 << 10, 4096).unwrap(), [extent(4096, 0)]);
    assert!(client.block_status("other:thing", 0, 4096).is_err());
    assert!(client.block_status("shoal:redundancy", MIB, 1).is_err());
}

#[test]
fn exports_are_listed_and_unknown_ones_refused_by_name() {
    let other = Export::new("other", memory(MIB, 1)).unwrap().description("a second one");
    let world = World::new(vec![export(memory(MIB, 1)), other], ServerOptions::default());
    let entries = shoal_nbd::list(&world.uri(), &ClientOptions::default()).unwrap();
    let names: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.description.as_str())).collect();
    assert_eq!(names, [("disk", ""), ("other", "a second one")]);
    let uri: Uri = format!("nbd+unix:///none?socket={}", world.socket.display()).parse().unwrap();
    let error = Client::connect(&uri, &ClientOptions::default()).err().unwrap().to_string();
    assert!(error.contains("no export of this name"), "{error}");
}

#[test]
fn a_failed_flush_poisons_the_client() {
    let broken = Arc::new(Broken { inner: memory(MIB, 1), silent: false });
    let world = World::new(vec![export(broken)], ServerOptions::default());
    let client = world.client();
    shoal_media::write(&client, 0, &[1; 512]).unwrap();
    assert!(shoal_media::flush(&client).unwrap_err().to_string().contains("platter fell off"));
    assert!(matches!(shoal_media::write(&client, 0, &[1; 512]), Err(MediaError::Poisoned { .. })));
    assert!(matches!(shoal_media::flush(&client), Err(MediaError::Poisoned { .. })));
    shoal_media::read(&client, 0, &mut [0; 512]).unwrap();
}

#[test]
fn a_request_nobody_answers_ends_the_connection_and_all_in_flight() {
    let silent = Arc::new(Broken { inner: memory(MIB, 1), silent: true });
    let world = World::new(vec![export(silent)], ServerOptions::default());
    let options = ClientOptions { request_timeout: Duration::from_millis(200), ..ClientOptions::default() };
    let client = Client::connect(&world.uri(), &options).unwrap();
    let (sender, receiver) = mpsc::channel();
    let submit = |request| {
        let sender = sender.clone();
        let done = move |result: Result<_, MediaError>| sender.send(result.unwrap_err()).unwrap();
        client.submit(request, Box::new(done));
    };
    (0..8).for_each(|block| submit(Request::Read { at: block * 512, buffer: vec![0; 512] }));
    submit(Request::Flush);
    for _ in 0..9 {
        let error = receiver.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(Lost::of(&error).unwrap().why.contains("no answer within 200 ms"), "{error}");
    }
    assert!(Lost::of(&shoal_media::read(&client, 0, &mut [0; 512]).unwrap_err()).is_some());
    assert!(Lost::of(&shoal_media::flush(&client).unwrap_err()).is_some(), "a flush that was lost is no failed one");
    assert!(client.lost().is_some());
    // The device never completes its requests. The server must shut down all the same.
    let started = Instant::now();
    assert_eq!(world.server.shut_down(Duration::from_millis(100)), 1);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn shutting_down_finishes_what_was_taken_and_wakes_idle_clients() {
    let late = Arc::new(Late { inner: memory(MIB, 1), count: AtomicU64::new(1) });
    let world = World::new(vec![export(late)], ServerOptions::default());
    let (idle, busy) = (world.client(), world.client());
    let (sender, receiver) = mpsc::channel();
    for block in 0..64u64 {
        let sender = sender.clone();
        let done = move |result: Result<_, MediaError>| sender.send(result.map(drop)).unwrap();
        busy.submit(Request::Write { at: block * 512, buffer: vec![1; 512], fua: false }, Box::new(done));
    }
    // Once one is answered, the server has most of them.
    receiver.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
    let started = Instant::now();
    assert_eq!(world.server.shut_down(Duration::from_secs(5)), 0, "none had to be cut");
    assert!(started.elapsed() < Duration::from_secs(4));
    for _ in 1..64 {
        // A request is done, or lost with the server. It never fails with an error of the device,
        // and is never left without an answer.
        let answer = receiver.recv_timeout(Duration::from_secs(5)).expect("an answer");
        answer.unwrap_or_else(|error| assert!(Lost::of(&error).is_some(), "{error}"));
    }
    assert!(Lost::of(&shoal_media::read(&idle, 0, &mut [0; 512]).unwrap_err()).is_some());
    assert!(!world.socket.exists(), "the socket is gone");
}

#[test]
fn connections_beyond_the_limit_are_turned_away_and_a_slot_frees_up() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let world = World::new(vec![export(memory(MIB, 1))], ServerOptions { limits, ..ServerOptions::default() });
    let (one, _two) = (world.client(), world.client());
    assert!(Client::connect(&world.uri(), &ClientOptions::default()).is_err());
    assert_eq!(world.server.counts().turned_away, 1);
    drop(one);
    let deadline = Instant::now() + Duration::from_secs(5);
    while Client::connect(&world.uri(), &ClientOptions::default()).is_err() {
        assert!(Instant::now() < deadline, "a slot must come free");
    }
}

#[test]
fn listening_beyond_loopback_needs_tls_or_the_word_insecure() {
    let start = |insecure| {
        let options = ServerOptions { insecure, ..ServerOptions::default() };
        Server::start(Arc::new(Vec::new()), &"0.0.0.0:0".parse().unwrap(), options)
    };
    let error = start(false).err().unwrap();
    assert!(matches!(error, ServerError::Exposed { .. }) && error.to_string().contains("--insecure"), "{error}");
    assert!(start(true).is_ok());
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = Listen::Unix(path.clone());
    let start = || Server::start(Arc::new(Vec::new()), &listen, ServerOptions::default());
    let server = start().unwrap();
    assert!(matches!(start(), Err(ServerError::InUse { .. })));
    drop(server);
    std::fs::write(&path, "precious").unwrap();
    assert!(start().is_err(), "a file is not replaced");
}

/// Takes its time for each request, and the next one waits.
struct OneByOne(Arc<dyn BlockDevice>);

impl BlockDevice for OneByOne {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        thread::sleep(Duration::from_millis(100));
        self.0.submit(request, done);
    }
}

#[test]
fn a_client_that_leaves_with_requests_under_way_leaves_its_export_to_the_next() {
    let export = export(Arc::new(OneByOne(memory(MIB, 1)))).clients(Arc::default());
    let world = World::new(vec![export], ServerOptions::default());
    let open = |client| {
        let options = ClientOptions { claim: Some(Claim::Open([client; 16], 0)), ..ClientOptions::default() };
        Client::connect(&world.uri(), &options)
    };
    let client = open(1).unwrap();
    let (sender, answers) = mpsc::channel();
    for _ in 0..3 {
        let sender = sender.clone();
        let done = Box::new(move |result: Result<Vec<u8>, MediaError>| sender.send(result.is_ok()).unwrap());
        client.submit(Request::Write { at: 0, buffer: vec![1; 512], fua: false }, done);
        thread::sleep(Duration::from_millis(10));
    }
    drop(client);
    open(2).unwrap();
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [true; 3]);
}

#[test]
fn a_link_that_is_closed_leaves_its_export_whoever_else_has_the_link() {
    let world = World::new(vec![export(memory(MIB, 1)).clients(Arc::default())], ServerOptions::default());
    let options = LinkOptions { lost_after: Duration::from_secs(2), ..LinkOptions::default() };
    let link = Link::connect(&world.uri(), &options, Arc::new(())).unwrap();
    link.claim(Claim::Open([1; 16], 0)).unwrap();
    assert!(link.ask([2; 16], 0).is_err());
    link.close();
    let next = Link::connect(&world.uri(), &options, Arc::new(())).unwrap();
    next.claim(Claim::Open([2; 16], 0)).unwrap();
    assert!(shoal_media::read(&link, 0, &mut [0; 512]).is_err());
}
