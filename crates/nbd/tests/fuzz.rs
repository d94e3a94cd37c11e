//! Seeded fuzzing of every decoder and of whole conversations with both ends.
//!
//! Inputs are honest messages with bytes flipped, cut, repeated and lengths blown up, and plain
//! noise. Expected: an answer or a typed error, in bounded time and memory, never a panic, and a
//! server that still serves. `NBD_FUZZ_ROUNDS` multiplies the rounds.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::world::{MIB, World, export, memory};
use shoal_media::{BlockDevice, Request};
use shoal_nbd::negotiation::{client, server};
use shoal_nbd::wire::handshake::*;
use shoal_nbd::wire::transmission::*;
use shoal_nbd::{Catalog, Client, ClientOptions, Limits, Peer, ServerOptions, Uri};
use shoal_sim::Random;

fn rounds(base: u64) -> u64 {
    base * std::env::var("NBD_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Damages a message.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next_u64() as u8,
            2 => bytes.truncate(at),
            3 => {
                let copy = bytes[at..].to_vec();
                bytes.extend(copy);
            }
            // Blow up a length or an offset.
            4 => bytes[at..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
            _ => bytes.insert(at, random.next_u64() as u8),
        }
    }
}

fn name(random: &mut Random) -> String {
    ["", "disk", "none", "ü", &"x".repeat(4096)][random.below(5) as usize].to_string()
}

fn option_data(random: &mut Random, option: u32) -> Vec<u8> {
    match option {
        OPT_INFO | OPT_GO => ExportRequest { name: name(random), infos: vec![INFO_BLOCK_SIZE, INFO_NAME] }.encode(),
        OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
            let queries = ["base:allocation", "base:", "x:y", ""].iter().take(random.below(5) as usize);
            MetaRequest { name: name(random), queries: queries.map(|query| query.to_string()).collect() }.encode()
        }
        OPT_EXPORT_NAME => name(random).into_bytes(),
        _ => vec![],
    }
}

fn request(random: &mut Random) -> Vec<u8> {
    let ends = [0, 512, MIB - 512, MIB, u64::MAX - 511, 1 << 63, random.below(MIB)];
    let header = RequestHeader {
        flags: if random.below(3) == 0 { random.next_u64() as u16 & 0x1f } else { 0 },
        command: random.below(10) as u16,
        cookie: random.next_u64(),
        at: ends[random.below(7) as usize],
        len: [0, 1, 512, 4096, 1 << 20, u32::MAX][random.below(6) as usize],
    };
    let mut bytes = header.encode().bytes().to_vec();
    if header.command == CMD_WRITE && header.len <= 4096 {
        bytes.extend(random.bytes(header.len as usize));
    }
    bytes
}

#[test]
fn every_decoder_survives_damage_and_noise() {
    let mut random = Random::new(0x5ee_d001);
    for round in 0..rounds(60_000) {
        let mut bytes = match round % 8 {
            0 => option_data(&mut random, OPT_GO),
            1 => option_data(&mut random, OPT_SET_META_CONTEXT),
            2 => Info::BlockSize(BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 }).encode(),
            3 => ListEntry { name: name(&mut random), description: "text".into() }.encode(),
            4 => encode_error_chunk(1, EIO, "message").1,
            5 => encode_block_status(1, &[shoal_nbd::Extent { len: 4096, flags: 1 }; 3]),
            6 => request(&mut random),
            _ => {
                let len = random.below(80) as usize;
                random.bytes(len)
            }
        };
        damage(&mut random, &mut bytes);
        let bytes = &bytes[..];
        let _ = ExportRequest::decode(bytes);
        let _ = MetaRequest::decode(bytes);
        let _ = decode_name(bytes);
        let _ = Info::decode(bytes);
        let _ = ListEntry::decode(bytes);
        let _ = MetaContext::decode(bytes);
        let _ = ReplyHeader::decode(bytes);
        let _ = decode_error(CHUNK_ERROR, bytes);
        let _ = decode_error(CHUNK_ERROR_OFFSET, bytes);
        let _ = decode_hole(bytes);
        let _ = decode_block_status(bytes);
        bytes.first_chunk().map(OptionHeader::decode);
        bytes.first_chunk().map(OptionReplyHeader::decode);
        bytes.first_chunk().map(RequestHeader::decode);
        bytes.first_chunk().map(decode_greeting);
    }
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let mut random = Random::new(2);
    for _ in 0..2000 {
        let sent =
            ExportRequest { name: name(&mut random), infos: vec![random.next_u64() as u16; random.below(64) as usize] };
        assert_eq!(ExportRequest::decode(&sent.encode()), Ok(sent));
        let header = RequestHeader {
            flags: random.next_u64() as u16,
            command: random.next_u64() as u16,
            cookie: random.next_u64(),
            at: random.next_u64(),
            len: random.next_u64() as u32,
        };
        assert_eq!(RequestHeader::decode(header.encode().bytes().try_into().unwrap()), Ok(header));
        let extents = vec![shoal_nbd::Extent { len: random.next_u64() as u32 | 1, flags: random.next_u64() as u32 }; 5];
        assert_eq!(decode_block_status(&encode_block_status(7, &extents)), Ok((7, extents)));
    }
}

/// The server's state machine always makes progress or stops, whatever bytes it gets in whatever
/// pieces.
#[test]
fn the_servers_handshake_survives_any_conversation() {
    let catalog: Vec<_> = vec![Arc::new(export(memory(MIB, 1)))];
    let limits = Limits { options: 50, ..Limits::default() };
    for seed in 0..rounds(3000) {
        let mut random = Random::new(seed);
        let mut out = vec![];
        let tls = random.below(2) == 0;
        let mut handshake = server::Handshake::new(&catalog as &dyn Catalog, &limits, Peer::default(), tls, &mut out);
        let mut input: Vec<u8> = (random.below(5) as u32).to_be_bytes().to_vec();
        let mut idle = 0;
        while idle < 20 {
            match handshake.advance(&input, &mut out) {
                Err(_) | Ok((_, server::Step::Closed | server::Step::Transmission(_))) => break,
                Ok((consumed, step)) => {
                    assert!(consumed <= input.len(), "seed {seed}");
                    input.drain(..consumed);
                    if matches!(step, server::Step::StartTls) {
                        handshake.tls_is_on();
                    }
                    if consumed == 0 {
                        idle += 1;
                        let option = random.below(13) as u32;
                        let mut message = vec![];
                        encode_option(option, &option_data(&mut random, option), &mut message);
                        if random.below(3) == 0 {
                            damage(&mut random, &mut message);
                        }
                        input.extend(message);
                    }
                    assert!(out.len() < 4 << 20, "seed {seed}: output without bound");
                }
            }
        }
    }
}

#[test]
fn the_clients_handshake_survives_any_conversation() {
    for seed in 0..rounds(3000) {
        let mut random = Random::new(seed);
        let wish = client::Wish {
            name: "disk".into(),
            contexts: vec!["base:allocation".into()],
            tls: seed % 3 == 0,
            list: seed % 5 == 0,
        };
        let mut handshake = client::Handshake::new(wish);
        let (mut input, mut out) = (vec![], vec![]);
        encode_greeting(random.below(4) as u16, &mut input);
        for _ in 0..60 {
            match handshake.advance(&input, &mut out) {
                Err(_) | Ok((_, client::Step::Agreed(_) | client::Step::Listed(_))) => break,
                Ok((consumed, step)) => {
                    input.drain(..consumed);
                    if matches!(step, client::Step::StartTls) {
                        handshake.tls_is_on(&mut out);
                    }
                    if consumed > 0 {
                        continue;
                    }
                    // Mostly answer the last option.
                    let asked = out.rchunks(1).count().min(16);
                    let option = [OPT_GO, OPT_STRUCTURED_REPLY, OPT_SET_META_CONTEXT, OPT_LIST, OPT_STARTTLS];
                    let kinds = [REP_ACK, REP_INFO, REP_SERVER, REP_META_CONTEXT, REP_ERR_UNSUP, REP_ERR_TLS_REQD];
                    let data = match random.below(4) {
                        0 => Info::Export { bytes: random.next_u64(), flags: random.next_u64() as u16 }.encode(),
                        1 => MetaContext { id: 1, name: "base:allocation".into() }.encode(),
                        2 => ListEntry { name: "x".into(), description: "y".into() }.encode(),
                        _ => vec![],
                    };
                    let mut message = vec![];
                    let (option, kind) = (option[random.below(5) as usize], kinds[random.below(6) as usize]);
                    encode_option_reply(option, kind, &data, &mut message);
                    if random.below(4) == 0 || asked == 0 {
                        damage(&mut random, &mut message);
                    }
                    input.extend(message);
                }
            }
        }
        assert!(out.len() < 1 << 20, "seed {seed}");
    }
}

#[test]
fn a_live_server_survives_damaged_conversations_in_bounded_time_and_memory() {
    if !crate::world::is_alone("fuzz::a_live_server_survives_damaged_conversations_in_bounded_time_and_memory") {
        return;
    }
    let limits =
        Limits { handshake: Duration::from_millis(500), stalled: Duration::from_millis(500), ..Limits::default() };
    let world = World::new(vec![export(memory(MIB, 1))], ServerOptions { limits, ..ServerOptions::default() });
    let (before, started) = (crate::world::peak_memory_bytes(), Instant::now());
    for seed in 0..rounds(400) {
        let mut random = Random::new(seed);
        let mut raw = world.raw();
        raw.0.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut talk = vec![];
        for option in [OPT_STRUCTURED_REPLY, OPT_SET_META_CONTEXT, OPT_GO] {
            let data = match option {
                OPT_GO => ExportRequest { name: "disk".into(), infos: vec![] }.encode(),
                OPT_SET_META_CONTEXT => {
                    MetaRequest { name: "disk".into(), queries: vec!["base:allocation".into()] }.encode()
                }
                _ => vec![],
            };
            encode_option(option, &data, &mut talk);
        }
        let honest = talk.len();
        (0..20).for_each(|_| talk.extend(request(&mut random)));
        let mut tail = talk.split_off(if random.below(2) == 0 { honest } else { 0 });
        damage(&mut random, &mut tail);
        talk.extend(tail);
        raw.send(&talk);
        let _ = raw.0.shutdown(std::net::Shutdown::Write);
        // Read everything that it sends, until it closes.
        let mut said = 0;
        let mut chunk = [0; 65536];
        while let Ok(read) = raw.0.read(&mut chunk) {
            said += read;
            if read == 0 {
                break;
            }
        }
        assert!(said < 64 << 20, "seed {seed}");
    }
    shoal_media::read(&world.client(), 0, &mut [0; 512]).unwrap();
    let grown = crate::world::peak_memory_bytes() - before;
    assert!(grown < 256 << 20, "{grown} bytes");
    assert!(started.elapsed() < Duration::from_secs(60) * rounds(1) as u32);
}

#[test]
fn a_live_client_survives_damaged_servers_and_completes_every_request() {
    if !crate::world::is_alone("fuzz::a_live_client_survives_damaged_servers_and_completes_every_request") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let count = rounds(300);
    // Put an honest server behind a proxy that damages bytes.
    let world = World::of_memory(MIB);
    let upstream = world.socket.clone();
    std::thread::spawn(move || {
        for seed in 0..count {
            let mut random = Random::new(seed);
            let mut down = listener.accept().unwrap().0;
            let mut up = std::os::unix::net::UnixStream::connect(&upstream).unwrap();
            let (mut from, mut to) = (down.try_clone().unwrap(), up.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || {
                // The handshake mostly stays intact, or little would ever be reached after it.
                let mut whole = if random.below(5) == 0 { 0 } else { 190 };
                let mut chunk = [0; 2048];
                while let Ok(read @ 1..) = up.read(&mut chunk) {
                    let mut bytes = chunk[..read].to_vec();
                    let mut tail = bytes.split_off(whole.min(read));
                    whole -= bytes.len();
                    damage(&mut random, &mut tail);
                    bytes.extend(tail);
                    if down.write_all(&bytes).is_err() {
                        break;
                    }
                }
                let _ = down.shutdown(std::net::Shutdown::Both);
                let _ = up.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    let options = ClientOptions {
        connect_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_millis(100),
        ..ClientOptions::default()
    };
    let uri: Uri = crate::world::unix_uri(&socket);
    let (before, started, mut connected, mut answered) = (crate::world::peak_memory_bytes(), Instant::now(), 0, 0);
    for seed in 0..count {
        let Ok(client) = Client::connect(&uri, &options) else { continue };
        connected += 1;
        let (sender, receiver) = std::sync::mpsc::channel();
        for block in 0..16 {
            let sender = sender.clone();
            let done = move |result: shoal_media::Result<Vec<u8>>| {
                assert!(result.as_ref().map_or(true, |buffer| buffer.len() == 2000));
                sender.send(result.is_ok()).unwrap();
            };
            // A damaged size may make the export smaller than the range. That is an answer, too.
            client.submit(Request::Read { at: block * 2000, buffer: vec![0; 2000] }, Box::new(done));
        }
        for _ in 0..16 {
            let fine =
                receiver.recv_timeout(Duration::from_secs(5)).unwrap_or_else(|_| panic!("seed {seed}: no answer"));
            answered += u64::from(fine);
        }
        assert_eq!(client.in_flight(), 0, "seed {seed}");
    }
    assert!(connected > count / 4 && answered > 0, "{connected} connections, {answered} answers: damaged too much");
    assert!(crate::world::peak_memory_bytes() - before < 256 << 20);
    assert!(started.elapsed() < Duration::from_secs(120) * rounds(1) as u32);
}
