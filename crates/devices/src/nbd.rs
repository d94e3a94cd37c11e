//! An export of an NBD server: `nbd://HOST/NAME`, `nbd+unix:///NAME?socket=PATH`, `nbds://...`.
//!
//! `lost-after=SECONDS` may stand among the URI's parameters. It is our own parameter, and the
//! URI's parser never sees it.
//! Rules: a server without flush is refused, since nothing on it can be called durable. An export,
//! like a file, has one user at a time, as far as this machine can tell: a copy of a store names
//! the export of the original. Left out: the protocol, connections that break (`shoal_nbd`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use serde_json::{Map, Value};
use shoal_format::Sums;
use shoal_host::FileLock;
use shoal_media::BlockDevice;
use shoal_nbd::address::Place;
use shoal_nbd::{Link, LinkOptions, Uri, Witness};

use crate::device::Device;
use crate::device_name::{DeviceName, Kind, Name};
use crate::disk_lock;
use crate::failure::{Failure, Outcome};

/// How long to try to reach a lost device again. Nothing works without it, and its server may take
/// this long to come back.
const LOST_AFTER: Duration = Duration::from_secs(30);
const LOST_AFTER_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

pub static KIND: Kind = Kind {
    name: "nbd",
    words: "network block device",
    form: "nbd://HOST/NAME or nbd+unix:///NAME?socket=PATH",
    about: "an export of an NBD server",
    schemes: &["nbd", "nbds", "nbd+unix", "nbds+unix"],
    opening_writes: false,
    opens_files: true,
    // The parser of URIs reports a URI of another scheme.
    parse: |text| text.contains("://").then(|| parse(text)),
    make: None,
    text: |report| Ok(report.head(report.own.get("connection").and_then(Value::as_str).unwrap_or_default())),
};

#[derive(Clone, Debug)]
struct NbdName {
    uri: Uri,
    lost_after: Duration,
}

fn parse(text: &str) -> Result<DeviceName, String> {
    let (text, lost_after) = take_lost_after(text)?;
    let uri = text.parse().map_err(|error: shoal_nbd::address::AddressError| error.to_string())?;
    Ok(DeviceName::new(NbdName { uri, lost_after: lost_after.unwrap_or(LOST_AFTER) }))
}

/// Removes our own parameter from an NBD URI.
fn take_lost_after(text: &str) -> Result<(String, Option<Duration>), String> {
    let Some((front, query)) = text.split_once('?') else { return Ok((text.into(), None)) };
    let mut lost_after = None;
    let mut others = vec![];
    for parameter in query.split('&') {
        match parameter.strip_prefix("lost-after=") {
            Some(value) => lost_after = Some(lost_after_of(value)?),
            None => others.push(parameter),
        }
    }
    let query = others.join("&");
    Ok((if query.is_empty() { front.into() } else { format!("{front}?{query}") }, lost_after))
}

/// Reads the value of `lost-after`.
pub(crate) fn lost_after_of(value: &str) -> Result<Duration, String> {
    let seconds = value.parse().ok().filter(|seconds| LOST_AFTER_SECONDS.contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("lost-after={value}: 0.1 to 3600 seconds"))
}

/// Returns a URI with all its parameters. Its own `Display`, meant for messages, omits those of TLS
/// and secrets.
pub(crate) fn uri_text(uri: &Uri) -> String {
    let mut text = uri.to_text();
    let mut add = |key: &str, value: &str| {
        text.push(if text.contains('?') { '&' } else { '?' });
        text +=
            &format!("{key}={}", value.replace('%', "%25").replace('&', "%26").replace('?', "%3F").replace('@', "%40"));
    };
    if let Some(directory) = &uri.certificates {
        add("tls-certificates", &directory.to_string_lossy());
    }
    if let Some(name) = &uri.server_name {
        add("tls-hostname", name);
    }
    text
}

/// Makes the path absolute.
pub(crate) fn make_absolute(path: &mut PathBuf) -> io::Result<()> {
    *path = std::path::absolute(&path)?;
    Ok(())
}

/// Makes the paths in a URI absolute.
pub(crate) fn make_uri_absolute(uri: &mut Uri) -> io::Result<()> {
    if let Place::Unix { path } = &mut uri.place {
        make_absolute(path)?;
    }
    uri.certificates.as_mut().map_or(Ok(()), make_absolute)
}

impl fmt::Display for NbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = uri_text(&self.uri);
        f.write_str(&text)?;
        if self.lost_after != LOST_AFTER {
            let separator = if text.contains('?') { '&' } else { '?' };
            write!(f, "{separator}lost-after={}", self.lost_after.as_secs_f64())?;
        }
        Ok(())
    }
}

impl Name for NbdName {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn without_secrets(&self) -> DeviceName {
        DeviceName::new(NbdName { uri: self.uri.without_secret(), ..self.clone() })
    }

    fn absolute(&self) -> io::Result<DeviceName> {
        let mut name = self.clone();
        make_uri_absolute(&mut name.uri)?;
        Ok(DeviceName::new(name))
    }

    fn open(&self) -> Outcome<Box<dyn Device>> {
        let lock = disk_lock::lock("nbd", &self.address_id(), self.uri.without_secret())?;
        let memory_limit = shoal_host::memory_limit_bytes();
        let options = LinkOptions { lost_after: self.lost_after, memory_limit, ..LinkOptions::default() };
        let link = Link::connect(&self.uri, &options, Arc::new(())).map_err(Failure::told)?;
        if !link.can_flush() {
            let cause = "the server knows no flush, so nothing on it can be called durable";
            return Err(Failure::new(&self.uri, cause).remedy("use a server with flush, or this one as a donor"));
        }
        Ok(Box::new(OpenNbd { link: Arc::new(link), name: self.clone(), _lock: lock }))
    }

    fn files(&self) -> Vec<PathBuf> {
        match &self.uri.place {
            Place::Unix { path } => vec![path.clone()],
            Place::Tcp { .. } => Vec::new(),
        }
    }
}

impl NbdName {
    /// Returns an id of the address and the export, short enough for a file name. Another spelling
    /// of a host counts as another address.
    fn address_id(&self) -> String {
        let place = match &self.uri.place {
            Place::Unix { path } => path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string(),
            Place::Tcp { host, port } => format!("{}:{port}", host.to_lowercase()),
        };
        let text = format!("{place}/{}", self.uri.name);
        let [one, other] = [Sums::Xxh3, Sums::Crc32c].map(|sums| sums.of(text.as_bytes()));
        format!("{one:08x}{other:08x}")
    }
}

struct OpenNbd {
    link: Arc<Link>,
    name: NbdName,
    _lock: Option<FileLock>,
}

impl Device for OpenNbd {
    fn name(&self) -> DeviceName {
        DeviceName::new(self.name.clone())
    }

    fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.link.clone()
    }

    fn witnesses(&self) -> Vec<Witness> {
        self.link.witnesses()
    }

    fn inherit(&self, witnesses: Vec<Witness>) {
        self.link.inherit(witnesses);
    }

    fn own_report(&self) -> Map<String, Value> {
        // `connected`, `reconnecting`, `lost`.
        [("connection".into(), self.link.state().into())].into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_device_takes_the_time_until_it_is_lost() {
        let text = "nbd+unix:///x?socket=/a&lost-after=2";
        assert_eq!(take_lost_after(text).unwrap(), ("nbd+unix:///x?socket=/a".into(), Some(Duration::from_secs(2))));
        for text in [text, "nbd://h:1/x?lost-after=2", "nbd+unix:///x?socket=/a"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("nbd://h:1/x?lost-after=30").unwrap().to_string(), "nbd://h:1/x");
    }
}
