//! Addresses that servers listen on and clients connect to.
//!
//! Clients take URIs as described in `doc/uri.md` of the NetworkBlockDevice project:
//! `nbd://HOST[:PORT]/NAME`, `nbd+unix:///NAME?socket=PATH`, and both with `nbds` for TLS. Unknown
//! parameters are errors. Servers take `unix:PATH` or `HOST:PORT`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use crate::wire::TEXT_BYTES_MAX;

/// The port assigned to the protocol.
pub const PORT: u16 = 10809;

/// An address that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}: {why}")]
pub struct AddressError {
    pub text: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Tcp { host: String, port: u16 },
    Unix { path: PathBuf },
}

/// An export somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uri {
    pub place: Place,
    /// Export name; empty for the default one.
    pub name: String,
    pub tls: bool,
    /// Directory of the client's certificates (`tls-certificates`).
    pub certificates: Option<PathBuf>,
    /// Name that the server's certificate must have, if not the host's (`tls-hostname`).
    pub server_name: Option<String>,
}

impl FromStr for Uri {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Uri, AddressError> {
        let wrong = |why: &str| AddressError { text: without_secret(text), why: why.to_string() };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("expected nbd://HOST/NAME"))?;
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(wrong("expected one of nbd, nbds, nbd+unix, nbds+unix before ://")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = unescape(name).ok_or_else(|| wrong("a %XX in the export name is not UTF-8"))?;
        if name.len() > TEXT_BYTES_MAX || name.contains('\0') {
            return Err(wrong("export names have at most 4096 bytes and no NUL"));
        }
        let (mut socket, mut certificates, mut server_name) = (None, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = unescape(value).ok_or_else(|| wrong("a %XX in a parameter is not UTF-8"))?;
            match key {
                "socket" if unix => socket = Some(PathBuf::from(value)),
                "tls-certificates" if tls => certificates = Some(PathBuf::from(value)),
                "tls-hostname" if tls => server_name = Some(value),
                "tls-type" if tls && value == "x509" => {}
                "tls-type" => return Err(wrong("only tls-type=x509 is supported, with nbds://")),
                "tls-verify-peer" if value == "1" => {}
                "tls-verify-peer" => return Err(wrong("a server's certificate is always checked")),
                _ => return Err(wrong(&format!("unknown parameter {key}"))),
            }
        }
        let place = if unix {
            let path = socket.ok_or_else(|| wrong("needs ?socket=PATH"))?;
            if !authority.is_empty() {
                return Err(wrong("a UNIX socket has no host; write nbd+unix:///NAME?socket=PATH"));
            }
            Place::Unix { path }
        } else {
            let (host, port) = host_and_port(authority).ok_or_else(|| wrong("expected HOST or HOST:PORT"))?;
            if host.is_empty() {
                return Err(wrong("names no host"));
            }
            Place::Tcp { host, port }
        };
        Ok(Uri { place, name, tls, certificates, server_name })
    }
}

/// Shown in place of a secret.
const HIDDEN: &str = "***";

/// The text of a URI, valid or not, without the secret after the export's name.
fn without_secret(text: &str) -> String {
    let Some(path) = text.find("://").and_then(|at| text[at + 3..].find('/').map(|slash| at + 4 + slash)) else {
        return text.into();
    };
    let (front, path) = text.split_at(path);
    let (name, query) = path.split_once('?').map_or((path, String::new()), |(name, query)| (name, format!("?{query}")));
    let colon = [":", "%3A", "%3a"].iter().filter_map(|colon| name.find(colon)).min();
    colon.map_or_else(|| text.into(), |at| format!("{front}{}:{HIDDEN}{query}", &name[..at]))
}

impl Uri {
    /// The URI of the export `name` on a server that listens at `listen`. The path of a socket
    /// becomes absolute.
    pub fn of_export(listen: &Listen, name: &str, tls: bool) -> Uri {
        let place = match listen {
            Listen::Tcp(address) => Place::Tcp { host: address.ip().to_string(), port: address.port() },
            Listen::Unix(path) => Place::Unix { path: std::path::absolute(path).unwrap_or_else(|_| path.clone()) },
        };
        Uri { place, name: name.into(), tls, certificates: None, server_name: None }
    }

    /// The same URI without the secret that may follow the export's name (`NAME:SECRET`), for
    /// messages.
    pub fn without_secret(&self) -> Uri {
        let name = match self.name.split_once(':') {
            Some((name, _)) => format!("{name}:{HIDDEN}"),
            None => self.name.clone(),
        };
        Uri { name, ..self.clone() }
    }

    /// The URI to connect with, without the parameters of TLS. `Display` is for people and shows no secret.
    pub fn to_text(&self) -> String {
        Whole(self).to_string()
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Whole(&self.without_secret()).fmt(f)
    }
}

struct Whole<'a>(&'a Uri);

impl fmt::Display for Whole<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Whole(this) = *self;
        let scheme = if this.tls { "nbds" } else { "nbd" };
        match &this.place {
            Place::Tcp { host, port } if host.contains(':') => write!(f, "{scheme}://[{host}]:{port}/")?,
            Place::Tcp { host, port } => write!(f, "{scheme}://{host}:{port}/")?,
            Place::Unix { .. } => write!(f, "{scheme}+unix:///")?,
        }
        write!(f, "{}", escape(&this.name))?;
        if let Place::Unix { path } = &this.place {
            write!(f, "?socket={}", escape(&path.to_string_lossy()))?;
        }
        Ok(())
    }
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Listen, AddressError> {
        let wrong = |why: String| AddressError { text: text.to_string(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(wrong("expected unix:PATH".into()));
            }
            return Ok(Listen::Unix(path.into()));
        }
        let (host, port) = host_and_port(text).ok_or_else(|| wrong("expected unix:PATH or HOST:PORT".into()))?;
        let mut found = (host.as_str(), port).to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
        found.next().map(Listen::Tcp).ok_or_else(|| wrong("the host has no address".into()))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`.
fn host_and_port(text: &str) -> Option<(String, u16)> {
    let text = text.rsplit_once('@').map_or(text, |(_user, host)| host);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => PORT,
    };
    Some((host.to_string(), port))
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:*".contains(&byte);
    let escaped = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_all_schemes_are_read_and_written() {
        let uri: Uri = "nbd://donor:7000/hello%20world".parse().unwrap();
        assert_eq!(uri.place, Place::Tcp { host: "donor".into(), port: 7000 });
        assert_eq!((uri.name.as_str(), uri.tls), ("hello world", false));
        assert_eq!(uri.to_string(), "nbd://donor:7000/hello%20world");
        let uri: Uri = "nbds+unix:///a?socket=/run/x%3Fy&tls-hostname=donor".parse().unwrap();
        assert_eq!(uri.place, Place::Unix { path: "/run/x?y".into() });
        assert_eq!((uri.tls, uri.server_name.as_deref()), (true, Some("donor")));
        let uri: Uri = "nbd://[::1]//disk".parse().unwrap();
        assert_eq!((uri.place, uri.name.as_str()), (Place::Tcp { host: "::1".into(), port: PORT }, "/disk"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = "nbd://donor:7000/me:open%20sesame";
        let uri: Uri = text.parse().unwrap();
        assert_eq!(uri.to_text(), text);
        assert_eq!(uri.to_string(), "nbd://donor:7000/me:***");
        for wrong in ["nbd://donor:7000/me:open?soket=x", "nbds://donor/me%3Aopen?tls-type=psk", "htp://donor/me:open"]
        {
            let shown = wrong.parse::<Uri>().unwrap_err().to_string();
            assert!(shown.contains("me:***") && !shown.contains("open"), "{shown}");
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error_not_a_guess() {
        for text in [
            "donor:7000",
            "http://donor/",
            "nbd:///",
            "nbd://donor:99999/",
            "nbd+unix:///a",
            "nbd+unix://host/a?socket=x",
            "nbd://donor/?soket=x",
            "nbds://donor/?tls-type=psk",
            "nbds://donor/?tls-verify-peer=0",
            "nbd://donor/%zz",
            "nbd://donor/%00",
        ] {
            assert!(text.parse::<Uri>().is_err(), "{text}");
        }
        assert!("unix:".parse::<Listen>().is_err());
        assert!("127.0.0.1:x".parse::<Listen>().is_err());
    }

    #[test]
    fn the_uri_of_an_export_leads_back_to_it() {
        for (address, expected) in [
            ("unix:/run/d", "nbd+unix:///my%20disk?socket=/run/d"),
            ("127.0.0.1:7000", "nbd://127.0.0.1:7000/my%20disk"),
            ("[::1]:7000", "nbd://[::1]:7000/my%20disk"),
        ] {
            let text = Uri::of_export(&address.parse().unwrap(), "my disk", false).to_text();
            assert_eq!(text, expected);
            assert_eq!(text.parse::<Uri>().unwrap().name, "my disk");
        }
    }
}
