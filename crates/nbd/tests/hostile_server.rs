//! Servers that break the protocol: the client ends the connection with a typed error, completes every request once,
//! and takes no memory on a server's word.
//!
//! Each case is a byte stream written by hand; the client must answer with a typed error within its time-outs.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::world::{MIB, unix_uri};
use shoal_media::{BlockDevice, MediaError, Request};
use shoal_nbd::wire::handshake::*;
use shoal_nbd::wire::transmission::*;
use shoal_nbd::{Client, ClientOptions, ConnectError, Lost};

/// The handshake of an honest server, except for the flags and sizes given.
fn shake_hands(stream: &mut (impl Read + Write), structured: bool, bytes: u64, sizes: BlockSizes) {
    let mut out = vec![];
    encode_greeting(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES, &mut out);
    stream.write_all(&out).unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    loop {
        let mut header = [0; OPTION_HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let header = OptionHeader::decode(&header).unwrap();
        stream.read_exact(&mut vec![0; header.length as usize]).unwrap();
        let mut out = vec![];
        let option = header.option;
        match option {
            OPT_GO => {
                let flags = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH;
                encode_option_reply(option, REP_INFO, &Info::Export { bytes, flags }.encode(), &mut out);
                encode_option_reply(option, REP_INFO, &Info::BlockSize(sizes).encode(), &mut out);
                encode_option_reply(option, REP_ACK, &[], &mut out);
            }
            OPT_SET_META_CONTEXT => {
                let context = MetaContext { id: 5, name: "base:allocation".into() };
                encode_option_reply(option, REP_META_CONTEXT, &context.encode(), &mut out);
                encode_option_reply(option, REP_ACK, &[], &mut out);
            }
            _ => encode_option_reply(option, if structured { REP_ACK } else { REP_ERR_UNSUP }, &[], &mut out),
        }
        if stream.write_all(&out).is_err() || option == OPT_GO {
            return;
        }
    }
}

const SIZES: BlockSizes = BlockSizes { minimum: 1, preferred: 4096, maximum: 32 << 20 };

/// Runs `serve` for one connection; returns the directory of the socket `s`.
fn server(serve: impl FnOnce(&mut UnixStream) + Send + 'static) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("s")).unwrap();
    thread::spawn(move || serve(&mut listener.accept().unwrap().0));
    directory
}

fn connect(directory: &tempfile::TempDir) -> Result<Client, ConnectError> {
    let options = ClientOptions {
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(5),
        contexts: vec!["base:allocation".into()],
        ..ClientOptions::default()
    };
    Client::connect(&unix_uri(&directory.path().join("s")), &options)
}

fn next_request(stream: &mut UnixStream) -> RequestHeader {
    let mut header = [0; REQUEST_BYTES];
    stream.read_exact(&mut header).unwrap();
    RequestHeader::decode(&header).unwrap()
}

/// Reads 4096 bytes at 8192 from a server that answers with the bytes that `reply` makes from the
/// cookie.
fn read_with(structured: bool, reply: impl FnOnce(u64) -> Vec<u8> + Send + 'static) -> Result<Vec<u8>, MediaError> {
    let directory = server(move |stream| {
        shake_hands(stream, structured, MIB, SIZES);
        let request = next_request(stream);
        let _ = stream.write_all(&reply(request.cookie));
        // Stay until the client leaves.
        let _ = stream.read(&mut [0; 64]);
    });
    let client = connect(&directory).unwrap();
    let (sender, receiver) = mpsc::channel();
    let done = move |result| sender.send(result).unwrap();
    client.submit(Request::Read { at: 8192, buffer: vec![0xee; 4096] }, Box::new(done));
    receiver.recv_timeout(Duration::from_secs(4)).expect("an answer well before the time limit")
}

fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = encode_chunk(flags, kind, cookie, payload.len() as u32).bytes().to_vec();
    bytes.extend(payload);
    bytes
}

fn data(flags: u16, cookie: u64, at: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(flags, CHUNK_OFFSET_DATA, cookie, &[&at.to_be_bytes(), bytes].concat())
}

fn hole(flags: u16, cookie: u64, at: u64, len: u32) -> Vec<u8> {
    chunk(flags, CHUNK_OFFSET_HOLE, cookie, &[&at.to_be_bytes()[..], &len.to_be_bytes()].concat())
}

#[test]
fn pieces_and_holes_in_any_order_make_a_read() {
    let result = read_with(true, |cookie| {
        let parts = [data(0, cookie, 8192 + 3072, &[3; 1024]), hole(0, cookie, 8192, 2048)];
        [&parts.concat()[..], &data(REPLY_FLAG_DONE, cookie, 8192 + 2048, &[2; 1024])].concat()
    });
    assert_eq!(result.unwrap(), [[0; 1024], [0; 1024], [2; 1024], [3; 1024]].concat());
    let simple = read_with(false, |cookie| [encode_simple_reply(0, cookie).bytes(), &[9; 4096]].concat());
    assert_eq!(simple.unwrap(), [9; 4096]);
}

#[test]
fn errors_of_the_server_fail_one_request_and_name_its_range() {
    let error = read_with(true, |cookie| chunk(REPLY_FLAG_DONE, CHUNK_ERROR, cookie, b"\0\0\0\x05\0\x06b\x1bad!!"));
    let error = error.unwrap_err();
    assert!(Lost::of(&error).is_none());
    assert!(error.to_string().contains("read of 4096 bytes at 8192: b?ad!! (error 5)"), "{error}");
    let late = read_with(true, |cookie| {
        let first = data(0, cookie, 8192, &[1; 4096]);
        let error = chunk(0, CHUNK_ERROR_OFFSET, cookie, &[&[0, 0, 0, 28, 0, 0][..], &8192u64.to_be_bytes()].concat());
        [first, error, chunk(REPLY_FLAG_DONE, CHUNK_NONE, cookie, &[])].concat()
    });
    assert!(matches!(late, Err(MediaError::NoSpace { .. })), "{late:?}");
    let simple = read_with(false, |cookie| encode_simple_reply(EIO, cookie).bytes().to_vec());
    assert!(simple.unwrap_err().to_string().contains("error 5"));
}

type Reply = Box<dyn FnOnce(u64) -> Vec<u8> + Send>;

#[test]
fn replies_no_server_may_send_end_the_connection() {
    const DONE: u16 = REPLY_FLAG_DONE;
    let structured: Vec<(&str, Reply)> = vec![
        ("not in flight", Box::new(|cookie| data(DONE, cookie ^ 1, 8192, &[0; 4096]))),
        ("not in flight", Box::new(|cookie| data(DONE, cookie ^ 1 << 32, 8192, &[0; 4096]))),
        ("not in flight", Box::new(|cookie| data(DONE, cookie, 8192, &[0; 4096]).repeat(2))),
        ("simple reply with data", Box::new(|cookie| encode_simple_reply(0, cookie).bytes().to_vec())),
        ("outside the request", Box::new(|cookie| data(DONE, cookie, 8191, &[0; 4096]))),
        ("outside the request", Box::new(|cookie| data(DONE, cookie, 0, &[0; 16]))),
        ("outside the request", Box::new(|cookie| data(DONE, cookie, u64::MAX, &[0; 16]))),
        ("sent before", Box::new(|cookie| [data(0, cookie, 8192, &[0; 99]), data(0, cookie, 8290, &[0; 9])].concat())),
        ("sent before", Box::new(|cookie| [hole(0, cookie, 9000, 9), hole(0, cookie, 8999, 2)].concat())),
        (
            "sent before",
            Box::new(|cookie| [data(0, cookie, 8192, &[0; 9]), data(DONE, cookie, 8192, &[0; 4096])].concat()),
        ),
        ("outside the request", Box::new(|cookie| hole(0, cookie, 8192, 4097))),
        ("1 bytes missing", Box::new(|cookie| data(DONE, cookie, 8192, &[0; 4095]))),
        ("4096 bytes missing", Box::new(|cookie| chunk(DONE, CHUNK_NONE, cookie, &[]))),
        ("does not answer", Box::new(|cookie| chunk(0, CHUNK_NONE, cookie, &[]))),
        (
            "does not answer",
            Box::new(|cookie| encode_chunk(DONE, CHUNK_OFFSET_DATA, cookie, u32::MAX).bytes().to_vec()),
        ),
        ("does not answer", Box::new(|cookie| encode_chunk(DONE, CHUNK_ERROR, cookie, u32::MAX).bytes().to_vec())),
        ("does not answer", Box::new(|cookie| chunk(DONE, CHUNK_BLOCK_STATUS, cookie, &[0; 12]))),
        ("does not answer", Box::new(|cookie| chunk(DONE, 77, cookie, &[]))),
        ("not allowed", Box::new(|cookie| chunk(DONE, CHUNK_ERROR, cookie, &[0; 6]))),
        ("error message: length 65535", Box::new(|cookie| chunk(DONE, CHUNK_ERROR, cookie, &[0, 0, 0, 5, 255, 255]))),
        ("more chunks", Box::new(|cookie| (0..2048).flat_map(|at| data(0, cookie, 8192 + at * 2, &[0])).collect())),
        ("magic number", Box::new(|_| vec![0; 64])),
        ("closed by the server", Box::new(|_| vec![])),
        ("unexpected end", Box::new(|cookie| data(DONE, cookie, 8192, &[0; 4096])[..2000].to_vec())),
    ];
    for (expect, reply) in structured {
        let cut = matches!(expect, "closed by the server" | "unexpected end");
        let expect_after_success = expect == "not in flight";
        let result = if cut { cut_off(reply) } else { read_with(true, reply) };
        match result {
            Err(error) => {
                let lost = Lost::of(&error).unwrap_or_else(|| panic!("{expect}: {error}"));
                assert!(lost.why.contains(expect), "{expect}: {}", lost.why);
            }
            // The duplicate comes after a good reply: the request itself is answered.
            Ok(_) => assert!(expect_after_success, "{expect}"),
        }
    }
    let unagreed = read_with(false, |cookie| data(REPLY_FLAG_DONE, cookie, 8192, &[0; 4096])).unwrap_err();
    assert!(Lost::of(&unagreed).unwrap().why.contains("none were agreed on"));
}

/// Like `read_with`, but the server closes after its reply.
fn cut_off(reply: Reply) -> Result<Vec<u8>, MediaError> {
    let directory = server(move |stream| {
        shake_hands(stream, true, MIB, SIZES);
        let request = next_request(stream);
        let _ = stream.write_all(&reply(request.cookie));
    });
    let client = connect(&directory).unwrap();
    let mut buffer = vec![0; 4096];
    shoal_media::read(&client, 8192, &mut buffer).map(|()| buffer)
}

#[test]
fn a_reply_to_a_cookie_answered_before_loses_the_connection_for_the_next_request() {
    let directory = server(|stream| {
        shake_hands(stream, true, MIB, SIZES);
        let first = next_request(stream);
        stream.write_all(&data(REPLY_FLAG_DONE, first.cookie, 8192, &[1; 512])).unwrap();
        let _second = next_request(stream);
        stream.write_all(&data(REPLY_FLAG_DONE, first.cookie, 8192, &[2; 512])).unwrap();
        let _ = stream.read(&mut [0; 64]);
    });
    let client = connect(&directory).unwrap();
    let mut buffer = [0; 512];
    shoal_media::read(&client, 8192, &mut buffer).unwrap();
    assert_eq!(buffer, [1; 512]);
    let error = shoal_media::read(&client, 8192, &mut buffer).unwrap_err();
    assert!(Lost::of(&error).unwrap().why.contains("not in flight"), "a used slot has a new cookie: {error}");
    assert_eq!(buffer, [1; 512], "and the caller's buffer is untouched");
}

/// A client that gives up a connection discards its unsent requests. They would reach the server
/// after newer ones.
#[test]
fn a_connection_given_up_sends_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("nbd://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let (gone, is_gone) = mpsc::channel::<()>();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        shake_hands(&mut stream, true, 64 * MIB, SIZES);
        // Read nothing until the client has left.
        is_gone.recv().unwrap();
        std::io::copy(&mut stream, &mut std::io::sink())
    });
    let options = ClientOptions { request_timeout: Duration::from_millis(300), ..ClientOptions::default() };
    let client = Client::connect(&uri, &options).unwrap();
    let error = shoal_media::write(&client, 0, &vec![7; 32 * MIB as usize]).unwrap_err();
    assert!(Lost::of(&error).is_some(), "{error}");
    drop(client);
    gone.send(()).unwrap();
    let end = server.join().unwrap();
    assert_eq!(end.map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
}

#[test]
fn block_status_must_answer_each_context_once_with_whole_extents() {
    let ask = |payloads: &'static [&'static [u8]], last: u16| {
        let directory = server(move |stream| {
            shake_hands(stream, true, MIB, SIZES);
            let cookie = next_request(stream).cookie;
            for (at, payload) in payloads.iter().enumerate() {
                let flags = if at + 1 == payloads.len() { last } else { 0 };
                let _ = stream.write_all(&chunk(flags, CHUNK_BLOCK_STATUS, cookie, payload));
            }
            let _ = stream.read(&mut [0; 64]);
        });
        connect(&directory).unwrap().block_status("base:allocation", 0, 4096)
    };
    const GOOD: &[u8] = &[0, 0, 0, 5, 0, 0, 16, 0, 0, 0, 0, 3];
    let extents = ask(&[GOOD], REPLY_FLAG_DONE).unwrap();
    assert_eq!((extents.len(), extents[0].len, extents[0].flags), (1, 4096, 3));
    for (payloads, why) in [
        (&[GOOD, GOOD] as &[&[u8]], "came twice"),
        (&[&[0, 0, 0, 6, 0, 0, 16, 0, 0, 0, 0, 3]], "not asked for"),
        (&[&[0, 0, 0, 5]], "block status chunk"),
        (&[&[0, 0, 0, 5, 0, 0, 16]], "block status chunk"),
        (&[&[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 3]], "length of an extent"),
    ] {
        let error = ask(payloads, REPLY_FLAG_DONE).unwrap_err();
        assert!(Lost::of(&error).unwrap().why.contains(why), "{why}: {error}");
    }
}

/// Connects to a server that sends these bytes and then listens.
fn greeted_with(bytes: Vec<u8>) -> String {
    let directory = server(move |stream| {
        let _ = stream.write_all(&bytes);
        let _ = stream.read_to_end(&mut vec![]);
    });
    connect(&directory).err().expect("no agreement").to_string()
}

#[test]
fn handshakes_that_lie_end_with_an_error_that_says_so() {
    let mut greeting = vec![];
    encode_greeting(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES, &mut greeting);
    let with = |option: u32, kind: u32, data: &[u8]| {
        let mut bytes = greeting.clone();
        encode_option_reply(option, kind, data, &mut bytes);
        bytes
    };
    let mut oldstyle = INIT_MAGIC.to_be_bytes().to_vec();
    oldstyle.extend(OLDSTYLE_MAGIC.to_be_bytes());
    oldstyle.extend([0; 100]);
    let mut endless = greeting.clone();
    encode_option_reply(OPT_STRUCTURED_REPLY, REP_ACK, &[], &mut endless);
    for id in 0..200u32 {
        let context = MetaContext { id, name: format!("x:{id}") };
        encode_option_reply(OPT_SET_META_CONTEXT, REP_META_CONTEXT, &context.encode(), &mut endless);
    }
    let mut long = greeting.clone();
    long.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    long.extend(OPT_STRUCTURED_REPLY.to_be_bytes());
    long.extend(REP_ACK.to_be_bytes());
    long.extend(u32::MAX.to_be_bytes());
    for (bytes, why) in [
        (oldstyle, "old handshake"),
        (vec![0x55; 200], "does not speak this protocol"),
        (with(OPT_GO, REP_ACK, &[]), "reply to option 7 while option 8"),
        (with(OPT_STRUCTURED_REPLY, REP_SERVER, &[]), "does not belong"),
        (with(OPT_STRUCTURED_REPLY, REP_ERR_TLS_REQD, &[]), "nbds://"),
        (endless, "not asked for"),
        (long, "length 4294967295"),
    ] {
        let error = greeted_with(bytes);
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn negative_sizes_and_impossible_block_sizes_are_refused() {
    let sized = |bytes, sizes| {
        let directory = server(move |stream| shake_hands(stream, true, bytes, sizes));
        connect(&directory).map(drop).map_err(|error| error.to_string())
    };
    sized(1 << 62, SIZES).unwrap();
    assert!(sized(u64::MAX, SIZES).unwrap_err().contains("negative"));
    assert!(sized(1 << 63, SIZES).unwrap_err().contains("negative"));
    for (minimum, preferred, maximum) in [
        (0, 4096, 1 << 20),
        (3, 4096, 1 << 20),
        (1 << 17, 1 << 17, 1 << 20),
        (512, 0, 1 << 20),
        (512, 4096, 511),
        (512, 4096, 1000),
    ] {
        let error = sized(MIB, BlockSizes { minimum, preferred, maximum }).unwrap_err();
        assert!(error.contains("block size"), "{error}");
    }
}
