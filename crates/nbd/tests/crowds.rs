//! Many clients at once, most of them malicious: what they cost the server, and that the others are
//! served.
//!
//! Owns: budgets of memory and places. Left out: what one client sends wrong (`hostile_client`).

use std::time::{Duration, Instant};

use crate::world::{MIB, Raw, World, export, memory};
use shoal_nbd::wire::handshake::{OPT_GO, encode_option};
use shoal_nbd::wire::transmission::*;
use shoal_nbd::{Client, ClientOptions, Limits, ServerOptions};

fn serving(limits: Limits) -> World {
    World::new(vec![export(memory(64 * MIB, 1))], ServerOptions { limits, ..ServerOptions::default() })
}

fn request(command: u16, cookie: u64, len: u32) -> Vec<u8> {
    RequestHeader { flags: 0, command, cookie, at: 0, len }.encode().bytes().to_vec()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn works(client: &Client) {
    shoal_media::write(client, 0, &[7; 4096]).unwrap();
    let mut found = [0; 4096];
    shoal_media::read(client, 0, &mut found).unwrap();
    assert_eq!(found, [7; 4096]);
}

#[test]
fn many_clients_that_read_nothing_cost_what_the_server_has_and_the_others_are_served() {
    if !crate::world::is_alone(
        "crowds::many_clients_that_read_nothing_cost_what_the_server_has_and_the_others_are_served",
    ) {
        return;
    }
    let world = serving(Limits { server_bytes: 128 << 20, ..Limits::default() });
    let before = crate::world::peak_memory_bytes();
    let greedy: Vec<Raw> = (0..30)
        .map(|_| {
            let mut greedy = world.raw();
            greedy.go("disk");
            greedy.send(&(0..8).flat_map(|cookie| request(CMD_READ, cookie, 16 << 20)).collect::<Vec<u8>>());
            greedy
        })
        .collect();
    until("the greedy ones hold something", || world.server.counts().held_bytes > 100 << 20);
    let client = world.client();
    for _ in 0..20 {
        works(&client);
        assert!(world.server.counts().held_bytes <= 128 << 20);
    }
    let grown = crate::world::peak_memory_bytes() - before;
    assert!(grown < 400 << 20, "{grown} bytes");
    drop(greedy);
    until("nothing is held any more", || world.server.counts().held_bytes == 0);
}

#[test]
fn a_request_that_is_half_sent_ends_its_connection() {
    let world = serving(Limits { stalled: Duration::from_millis(300), ..Limits::default() });
    let mut half = world.raw();
    half.go("disk");
    half.send(&request(CMD_WRITE, 1, 32 << 20));
    half.send(&[1; 1000]);
    let mut header = world.raw();
    header.go("disk");
    header.send(&request(CMD_READ, 1, 512)[..10]);
    let idle = world.client();
    until("both are cut off", || world.server.counts().open == 1);
    assert_eq!(world.server.counts().held_bytes, 0);
    // A client that has asked for nothing may take any time.
    std::thread::sleep(Duration::from_millis(500));
    works(&idle);
}

#[test]
fn idle_connections_give_way_and_those_at_work_do_not() {
    let limits = Limits { connections: 4, quiet: Duration::from_millis(200), ..Limits::default() };
    let world = serving(limits);
    let (used, never_used) = (world.client(), world.client());
    let (busy, second) = (world.client(), world.client());
    [&used, &busy, &second].into_iter().for_each(works);
    assert!(Client::connect(&world.uri(), &ClientOptions::default()).is_err(), "nobody has been quiet for long enough");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        works(&busy);
        works(&second);
    }
    let first = world.client();
    works(&first);
    assert!(shoal_media::read(&never_used, 0, &mut [0; 512]).is_err(), "a client that never asked goes first");
    works(&used);
    assert_eq!((world.server.counts().gave_way, world.server.counts().turned_away), (1, 1));
}

#[test]
fn handshakes_that_are_not_finished_keep_nobody_out() {
    let world = serving(Limits { connections: 8, handshakes: 3, ..Limits::default() });
    let busy = world.client();
    let mut open: Vec<Raw> = (0..20)
        .map(|_| {
            let mut raw = world.raw();
            let mut option = vec![];
            encode_option(OPT_GO, &[0; 600], &mut option);
            raw.send(&option[..100]);
            raw
        })
        .collect();
    works(&world.client());
    works(&busy);
    assert!(open[0].is_closed(), "the oldest gave way");
    assert!(world.server.counts().gave_way >= 17);
}

#[test]
fn one_address_does_not_get_all_places() {
    use shoal_nbd::{Listen, Server};
    let limits = Limits { connections: 8, address_connections: 3, ..Limits::default() };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let catalog = std::sync::Arc::new(vec![std::sync::Arc::new(export(memory(MIB, 1)))]);
    let server = Server::start(catalog, &"127.0.0.1:0".parse().unwrap(), options).unwrap();
    let Listen::Tcp(address) = server.address() else { unreachable!("asked for TCP") };
    let connect = || Client::connect(&format!("nbd://{address}/disk").parse().unwrap(), &ClientOptions::default());
    let _clients: Vec<Client> = (0..3).map(|_| connect().unwrap()).collect();
    assert!(connect().is_err());
    assert_eq!(server.counts().turned_away, 1);
}
