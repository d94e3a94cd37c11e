//! TLS right and wrong: who is let in, who is refused, and that nothing agreed on before TLS counts after it.
//!
//! Certificates are made for each test: an authority, a server for `localhost`, a client, and strangers.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use crate::world::{MIB, Raw, export, memory};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use shoal_nbd::negotiation::HandshakeError;
use shoal_nbd::negotiation::server::{Handshake, Step};
use shoal_nbd::wire::handshake::*;
use shoal_nbd::{
    Catalog, Client, ClientOptions, ConnectError, Limits, Listen, Peer, Server, ServerOptions, TlsClient, TlsServer,
    Uri,
};

/// Fills a directory with an authority and its certificates, under the usual file names.
fn certificates(directory: &Path, server_name: &str, with_client: bool) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    std::fs::write(directory.join("ca-cert.pem"), certificate.pem()).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let parties: &[&str] = if with_client { &["server", "client"] } else { &["server"] };
    for party in parties {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![server_name.to_string()]).unwrap().signed_by(&key, &issuer).unwrap();
        std::fs::write(directory.join(format!("{party}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(directory.join(format!("{party}-key.pem")), key.serialize_pem()).unwrap();
    }
}

struct TlsWorld {
    server: Server,
    directory: tempfile::TempDir,
}

fn tls_world(server_name: &str, with_client: bool) -> TlsWorld {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path(), server_name, with_client);
    let tls = if with_client {
        TlsServer::from_directory(directory.path()).unwrap()
    } else {
        let file = |name| directory.path().join(name);
        TlsServer::from_files(&file("server-cert.pem"), &file("server-key.pem"), None).unwrap()
    };
    let catalog = Arc::new(vec![Arc::new(export(memory(4 * MIB, 1)))]);
    let listen = Listen::Unix(directory.path().join("s"));
    let server = Server::start(catalog, &listen, ServerOptions { tls: Some(tls), ..ServerOptions::default() }).unwrap();
    TlsWorld { server, directory }
}

impl TlsWorld {
    fn connect(&self, scheme: &str, parameters: &str) -> Result<Client, ConnectError> {
        let socket = self.directory.path().join("s");
        let uri: Uri = format!("{scheme}+unix:///disk?socket={}{parameters}", socket.display()).parse().unwrap();
        Client::connect(&uri, &ClientOptions::default())
    }

    fn trust(&self) -> String {
        format!("&tls-certificates={}", self.directory.path().display())
    }
}

fn error(result: Result<Client, ConnectError>) -> String {
    result.err().expect("refused").to_string()
}

#[test]
fn with_the_right_certificates_data_goes_both_ways() {
    for with_client in [false, true] {
        let world = tls_world("localhost", with_client);
        let client = world.connect("nbds", &world.trust()).unwrap();
        let data = shoal_sim::Random::new(4).bytes(3 << 20);
        shoal_media::write(&client, 4096, &data).unwrap();
        let mut back = vec![0; data.len()];
        shoal_media::read(&client, 4096, &mut back).unwrap();
        assert!(back == data);
        shoal_media::flush(&client).unwrap();
        drop(client);
        assert_eq!(world.server.shut_down(std::time::Duration::from_secs(5)), 0);
    }
}

#[test]
fn wrong_names_strange_authorities_and_missing_certificates_are_refused() {
    let world = tls_world("localhost", true);
    let stranger = tempfile::tempdir().unwrap();
    certificates(stranger.path(), "localhost", true);
    let strange = format!("&tls-certificates={}", stranger.path().display());
    assert!(error(world.connect("nbds", &strange)).contains("certificate"));
    let other_name = format!("{}&tls-hostname=elsewhere", world.trust());
    assert!(error(world.connect("nbds", &other_name)).contains("certificate"));
    assert!(error(world.connect("nbds", "")).contains("tls-certificates=DIRECTORY"));
    assert!(error(world.connect("nbds", "&tls-certificates=/nowhere")).contains("ca-cert.pem"));
    // The client knows the right authority but has no certificate. TLS 1.3 reports that with the
    // first answer.
    let without = TlsClient::from_files(&world.directory.path().join("ca-cert.pem"), None).unwrap();
    let options = ClientOptions { tls: Some(without), ..ClientOptions::default() };
    let uri: Uri = format!("nbds+unix:///disk?socket={}", world.directory.path().join("s").display()).parse().unwrap();
    let refused = error(Client::connect(&uri, &options));
    assert!(refused.to_lowercase().contains("certificate"), "{refused}");
    world.connect("nbds", &world.trust()).expect("the right one still gets in");
}

#[test]
fn a_tls_server_serves_nobody_in_the_clear() {
    let world = tls_world("localhost", false);
    assert!(error(world.connect("nbd", "")).contains("nbds://"));
    let mut raw = Raw::connect(&world.directory.path().join("s"));
    for option in [OPT_LIST, OPT_STRUCTURED_REPLY, OPT_INFO, OPT_GO, OPT_SET_META_CONTEXT, 4711] {
        assert_eq!(raw.option(option, &[]).0, REP_ERR_TLS_REQD, "{option}");
    }
    let mut message = vec![];
    encode_option(OPT_EXPORT_NAME, b"disk", &mut message);
    raw.send(&message);
    assert!(raw.is_closed());
}

#[test]
fn a_client_that_wants_tls_does_not_go_on_without() {
    let world = crate::world::World::of_memory(MIB);
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path(), "localhost", false);
    let socket = world.socket.display();
    let uri = format!("nbds+unix:///disk?socket={socket}&tls-certificates={}", directory.path().display());
    let refused = error(Client::connect(&uri.parse().unwrap(), &ClientOptions::default()));
    assert!(refused.contains("no TLS"), "{refused}");
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    encode_option(option, data, &mut bytes);
    bytes
}

/// Feeds whole messages to a handshake, and returns the last step.
fn feed(handshake: &mut Handshake, bytes: &[u8]) -> Result<(Step, Vec<u8>), HandshakeError> {
    let mut out = vec![];
    let (consumed, step) = handshake.advance(bytes, &mut out)?;
    assert_eq!(consumed, bytes.len());
    Ok((step, out))
}

#[test]
fn structured_replies_and_contexts_agreed_on_before_starttls_are_forgotten() {
    let catalog: Vec<_> = vec![Arc::new(export(memory(MIB, 1)))];
    let limits = Limits::default();
    let contexts = MetaRequest { name: "disk".into(), queries: vec!["base:allocation".into()] }.encode();
    let go = ExportRequest { name: "disk".into(), infos: vec![] }.encode();
    // The state machine offers TLS only if it is required, so the state to be lost is put there
    // through a plain one first.
    for upgrade in [false, true] {
        let mut handshake = Handshake::new(&catalog as &dyn Catalog, &limits, Peer::default(), false, &mut vec![]);
        feed(&mut handshake, &3u32.to_be_bytes()).unwrap();
        feed(&mut handshake, &option(OPT_STRUCTURED_REPLY, &[])).unwrap();
        feed(&mut handshake, &option(OPT_SET_META_CONTEXT, &contexts)).unwrap();
        if upgrade {
            handshake.tls_is_on();
        }
        let (step, _) = feed(&mut handshake, &option(OPT_GO, &go)).unwrap();
        let Step::Transmission(session) = step else { panic!("{step:?}") };
        assert_eq!((session.structured, session.contexts.len()), (!upgrade, usize::from(!upgrade)));
    }
}

#[test]
fn commands_smuggled_in_behind_starttls_close_the_connection() {
    let catalog: Vec<_> = vec![Arc::new(export(memory(MIB, 1)))];
    let limits = Limits::default();
    let mut handshake = Handshake::new(&catalog as &dyn Catalog, &limits, Peer::default(), true, &mut vec![]);
    feed(&mut handshake, &3u32.to_be_bytes()).unwrap();
    let both = [option(OPT_STARTTLS, &[]), option(OPT_LIST, &[])].concat();
    let refused = handshake.advance(&both, &mut vec![]).err();
    assert_eq!(refused, Some(HandshakeError::BytesBeforeTls));
    let mut twice = Handshake::new(&catalog as &dyn Catalog, &limits, Peer::default(), true, &mut vec![]);
    feed(&mut twice, &3u32.to_be_bytes()).unwrap();
    assert!(matches!(feed(&mut twice, &option(OPT_STARTTLS, &[])), Ok((Step::StartTls, _))));
    twice.tls_is_on();
    let (step, out) = feed(&mut twice, &option(OPT_STARTTLS, &[])).unwrap();
    let reply = OptionReplyHeader::decode(out.first_chunk().unwrap()).unwrap();
    assert!(matches!(step, Step::More) && reply.kind == REP_ERR_INVALID, "TLS within TLS");
}

#[test]
fn a_server_that_smuggles_replies_in_before_tls_is_left() {
    let directory = tempfile::tempdir().unwrap();
    certificates(directory.path(), "localhost", false);
    let socket = directory.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut out = vec![];
        encode_greeting(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES, &mut out);
        encode_option_reply(OPT_STARTTLS, REP_ACK, &[], &mut out);
        encode_option_reply(OPT_STRUCTURED_REPLY, REP_ACK, &[], &mut out);
        stream.write_all(&out).unwrap();
        let _ = stream.read_to_end(&mut vec![]);
    });
    let uri = format!("nbds+unix:///disk?socket={}&tls-certificates={}", socket.display(), directory.path().display());
    let refused = error(Client::connect(&uri.parse().unwrap(), &ClientOptions::default()));
    assert!(refused.contains("injecting"), "{refused}");
}

#[test]
fn garbage_in_place_of_tls_ends_the_handshake() {
    let world = tls_world("localhost", false);
    for seed in 0..20 {
        let mut raw = Raw::connect(&world.directory.path().join("s"));
        assert_eq!(raw.option(OPT_STARTTLS, &[]).0, REP_ACK);
        raw.send(&shoal_sim::Random::new(seed).bytes(600));
        // An alert may come first.
        let mut rest = vec![];
        let _ = raw.0.read_to_end(&mut rest);
        assert!(rest.len() < 64);
    }
    world.connect("nbds", &world.trust()).expect("still serving");
}
