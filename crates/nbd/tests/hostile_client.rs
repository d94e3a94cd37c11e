//! Clients that break the protocol: attacks that brought other servers down must end in an error or a closed
//! connection.
//!
//! After each attack the server still serves the next client.

use std::time::{Duration, Instant};

use crate::world::{MIB, World, export, memory};
use shoal_nbd::wire::handshake::*;
use shoal_nbd::wire::transmission::*;
use shoal_nbd::{Limits, ServerOptions};

fn still_serves(world: &World) {
    shoal_media::read(&world.client(), 0, &mut [0; 512]).unwrap();
}

fn option_header(option: u32, length: u32) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

#[test]
fn options_in_the_wrong_order_or_with_data_are_refused_one_by_one() {
    let world = World::of_memory(MIB);
    let mut raw = world.raw();
    let contexts = MetaRequest { name: "disk".into(), queries: vec!["base:allocation".into()] }.encode();
    assert_eq!(raw.option(OPT_SET_META_CONTEXT, &contexts).0, REP_ERR_INVALID, "before structured replies");
    assert_eq!(raw.option(OPT_LIST_META_CONTEXT, &contexts).0, REP_ERR_INVALID);
    assert_eq!(raw.option(OPT_STRUCTURED_REPLY, b"x").0, REP_ERR_INVALID);
    assert_eq!(raw.option(OPT_LIST, b"x").0, REP_ERR_INVALID);
    assert_eq!(raw.option(OPT_STARTTLS, &[]).0, REP_ERR_POLICY, "no TLS here");
    assert_eq!(raw.option(OPT_EXTENDED_HEADERS, &[]).0, REP_ERR_UNSUP);
    assert_eq!(raw.option(4711, b"whatever").0, REP_ERR_UNSUP);
    assert_eq!(raw.option(OPT_GO, &[]).0, REP_ERR_INVALID);
    assert_eq!(raw.go("none"), REP_ERR_UNKNOWN);
    assert_eq!(raw.go("disk"), REP_ACK, "and the connection is still good");
    raw.request(CMD_BLOCK_STATUS, 0, 1, 0, 4096);
    assert_eq!(raw.simple(), (EINVAL, 1), "no context was agreed on");
    raw.request(CMD_READ, CMD_FLAG_DF, 2, 0, 512);
    assert_eq!(raw.simple(), (EINVAL, 2), "DF needs structured replies");
    still_serves(&world);
}

#[test]
fn a_transmission_command_during_the_handshake_closes() {
    let world = World::of_memory(MIB);
    let mut raw = world.raw();
    raw.request(CMD_READ, 0, 1, 0, 512);
    assert!(raw.is_closed());
    still_serves(&world);
}

#[test]
fn names_and_lists_without_bounds_are_refused() {
    let world = World::of_memory(MIB);
    let mut raw = world.raw();
    let long = "x".repeat(4097);
    assert_eq!(raw.go(&long), REP_ERR_TOO_BIG);
    assert_eq!(raw.go("a\0b"), REP_ERR_INVALID);
    let mut lying = (u32::MAX).to_be_bytes().to_vec();
    lying.extend([0; 2]);
    assert_ne!(raw.option(OPT_GO, &lying).0, REP_ACK, "a name length beyond the option");
    assert_eq!(raw.option(OPT_STRUCTURED_REPLY, &[]).0, REP_ACK);
    let many = MetaRequest { name: "disk".into(), queries: vec!["base:".into(); 65] };
    assert_eq!(raw.option(OPT_SET_META_CONTEXT, &many.encode()).0, REP_ERR_TOO_BIG);
    let mut claimed = 4u32.to_be_bytes().to_vec();
    claimed.extend(b"disk");
    claimed.extend(u32::MAX.to_be_bytes());
    assert_eq!(raw.option(OPT_SET_META_CONTEXT, &claimed).0, REP_ERR_TOO_BIG, "four billion queries");
    let unnamed = MetaRequest { name: "disk".into(), queries: vec!["nocolon".into()] };
    assert_eq!(raw.option(OPT_SET_META_CONTEXT, &unnamed.encode()).0, REP_ERR_INVALID);
    assert_eq!(raw.option(OPT_LIST, &vec![0; 100_000]).0, REP_ERR_TOO_BIG, "skipped, not kept");
    assert_eq!(raw.option(OPT_INFO, &ExportRequest { name: "".into(), infos: vec![] }.encode()).0, REP_ACK);
    raw.send(&option_header(OPT_LIST, u32::MAX));
    assert!(raw.is_closed(), "four gigabytes are not even skipped");
    let mut raw = world.raw();
    raw.send(&option_header(OPT_EXPORT_NAME, 4097));
    assert!(raw.is_closed());
    still_serves(&world);
}

#[test]
fn contexts_count_only_for_the_export_and_the_last_request() {
    let world = World::of_memory(MIB);
    let ask = |name: &str, query: &str| MetaRequest { name: name.into(), queries: vec![query.into()] }.encode();
    for (name, query) in [("", "base:allocation"), ("disk", "base:"), ("none", "base:allocation")] {
        let mut raw = world.raw();
        raw.option(OPT_STRUCTURED_REPLY, &[]);
        assert_eq!(raw.option(OPT_SET_META_CONTEXT, &ask("disk", "base:allocation")).1.len(), 1);
        raw.option(OPT_SET_META_CONTEXT, &ask(name, query));
        assert_eq!(raw.go("disk"), REP_ACK);
        raw.request(CMD_BLOCK_STATUS, 0, 1, 0, 4096);
        let (flags, kind, cookie, payload) = raw.chunk();
        assert_eq!((flags, kind, cookie), (REPLY_FLAG_DONE, CHUNK_ERROR, 1), "{name} {query}");
        assert_eq!(payload[..4], EINVAL.to_be_bytes());
    }
}

#[test]
fn ranges_that_overflow_or_lie_beyond_the_end_get_an_error_and_no_more() {
    let world = World::of_memory(MIB);
    let mut raw = world.raw();
    assert_eq!(raw.go("disk"), REP_ACK);
    let beyond = [(u64::MAX, 512), (u64::MAX - 255, 512), (1 << 63, 1), (MIB, 1), (MIB - 1, 2), (0, u32::MAX)];
    for (at, len) in beyond {
        for command in [CMD_READ, CMD_TRIM, CMD_CACHE] {
            raw.request(command, 0, 7, at, len);
            assert_eq!(raw.simple(), (EINVAL, 7), "{command} {at} {len}");
        }
        raw.request(CMD_WRITE_ZEROES, 0, 8, at, len);
        assert_eq!(raw.simple(), (ENOSPC, 8));
        if len < 1024 {
            raw.request(CMD_WRITE, 0, 9, at, len);
            raw.send(&vec![1; len as usize]);
            assert_eq!(raw.simple(), (ENOSPC, 9));
        }
    }
    for (command, flags) in [(99, 0), (CMD_READ, CMD_FLAG_NO_HOLE), (CMD_WRITE_ZEROES, 1 << 15), (CMD_FLUSH, 2)] {
        raw.request(command, flags, 10, 0, 0);
        assert_eq!(raw.simple(), (EINVAL, 10), "{command} {flags}");
    }
    raw.request(CMD_FLUSH, 0, 11, 512, 512);
    assert_eq!(raw.simple(), (EINVAL, 11));
    for command in [CMD_READ, CMD_WRITE, CMD_TRIM, CMD_WRITE_ZEROES] {
        raw.request(command, 0, 12, MIB, 0);
        assert_eq!(raw.simple(), (0, 12), "nothing at the end is nothing");
    }
    raw.request(CMD_READ, 0, 13, MIB - 1, 1);
    assert_eq!((raw.simple(), raw.exactly::<1>()), ((0, 13), [0]));
}

#[test]
fn a_write_beyond_the_bound_and_a_wrong_magic_close() {
    let world = World::of_memory(MIB);
    let mut raw = world.raw();
    raw.go("disk");
    raw.request(CMD_WRITE, 0, 1, 0, (32 << 20) + 1);
    assert!(raw.is_closed());
    let mut raw = world.raw();
    raw.go("disk");
    raw.send(&[0x42; REQUEST_BYTES]);
    assert!(raw.is_closed());
    still_serves(&world);
}

#[test]
fn unknown_client_flags_close_and_old_clients_get_zeroes() {
    use std::io::Read;
    let world = World::of_memory(MIB);
    let greet = |flags: u32| {
        let mut stream = std::os::unix::net::UnixStream::connect(&world.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        let mut raw = crate::world::Raw(stream);
        raw.send(&flags.to_be_bytes());
        raw
    };
    assert!(greet(1 << 5).is_closed());
    let mut without_options = greet(0);
    without_options.send(&option_header(OPT_LIST, 0));
    assert!(without_options.is_closed(), "options need fixed newstyle");
    let mut old = greet(0);
    old.send(&option_header(OPT_EXPORT_NAME, 0));
    let reply = old.some(EXPORT_NAME_REPLY_BYTES + RESERVED_ZEROES_BYTES);
    assert_eq!(reply[..8], MIB.to_be_bytes());
    assert!(reply[10..].iter().all(|byte| *byte == 0));
    old.request(CMD_READ, 0, 3, 0, 4);
    assert_eq!((old.simple(), old.exactly::<4>()), ((0, 3), [0; 4]));
}

#[test]
fn a_slow_handshake_ends_at_its_time_limit_and_options_are_counted() {
    let limits = Limits { handshake: Duration::from_millis(300), options: 20, ..Limits::default() };
    let world = World::new(vec![export(memory(MIB, 1))], ServerOptions { limits, ..ServerOptions::default() });
    let started = Instant::now();
    let mut slow = world.raw();
    // One byte at a time keeps each read short, but not the whole handshake. No option is ever
    // complete.
    let mut bytes = option_header(OPT_GO, 60_000).into_iter().chain(std::iter::repeat(0));
    while world.server.counts().failed_handshakes == 0 {
        assert!(started.elapsed() < Duration::from_secs(3), "the limit is for the whole handshake");
        slow.send(&[bytes.next().unwrap()]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut chatty = world.raw();
    for _ in 0..20 {
        chatty.option(OPT_STRUCTURED_REPLY, &[]);
    }
    chatty.send(&option_header(OPT_LIST, 0));
    assert!(chatty.is_closed());
}

#[test]
fn a_client_that_reads_no_replies_costs_its_budget_and_is_cut_off() {
    if !crate::world::is_alone("hostile_client::a_client_that_reads_no_replies_costs_its_budget_and_is_cut_off") {
        return;
    }
    let limits = Limits { stalled: Duration::from_millis(300), ..Limits::default() };
    let world = World::new(vec![export(memory(64 * MIB, 1))], ServerOptions { limits, ..ServerOptions::default() });
    let before = crate::world::peak_memory_bytes();
    let mut greedy = world.raw();
    greedy.go("disk");
    greedy.0.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    // This asks for 64 GiB of replies.
    let request = |cookie| RequestHeader { flags: 0, command: CMD_READ, cookie, at: 0, len: 16 << 20 };
    greedy.send(&(0..4096).flat_map(|cookie| request(cookie).encode().bytes().to_vec()).collect::<Vec<u8>>());
    let deadline = Instant::now() + Duration::from_secs(8);
    while world.server.counts().open > 0 {
        assert!(Instant::now() < deadline, "a client that reads nothing must be cut off");
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = crate::world::peak_memory_bytes() - before;
    assert!(grown < 300 << 20, "{grown} bytes");
    still_serves(&world);
}
