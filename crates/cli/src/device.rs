//! What a block device is called: `file:PATH`, `vlog:PATH`, an NBD URI, or `netram:DONOR,DONOR,...?OPTIONS`.
//!
//! Owns the grammar and its way back to text (a store's description keeps it). A donor is `unix:PATH`, `HOST:PORT` or
//! an NBD URI. Commas separate donors, so one within a donor's URI is written %2C. The disk's options come after the
//! last `?`, unless that `?` is the last donor's own: a URI's first, followed by a parameter of URIs (`socket`,
//! `tls-...`). `lost-after=SECONDS` may also stand in the URI of a single NBD device; the URI's parser never sees it.
//! Left out: opening (`open_device`, `netram_disk`).

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use shoal_nbd::Uri;
use shoal_nbd::address::Place;
use shoal_netram::{Config, Policy};

use crate::size::Size;

/// How long a lost donor is tried to be reached again.
pub const DONOR_LOST_AFTER: Duration = Duration::from_secs(5);
/// The same for a single NBD device, without which nothing goes on: as long as its server may take to come back.
pub const DEVICE_LOST_AFTER: Duration = Duration::from_secs(30);
const LOST_AFTER_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Description {
    File(PathBuf),
    Nbd {
        uri: Uri,
        lost_after: Duration,
    },
    Netram(Box<Netram>),
    /// A virtual-log disk: on this file or block device, or on the one that this file names.
    Vlog(PathBuf),
}

/// A network RAM disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netram {
    pub donors: Vec<Donor>,
    /// Without its uuid.
    pub config: Config,
    /// The disk that must be there; any, if `None`.
    pub uuid: Option<[u8; 16]>,
    /// What this client calls itself to donors.
    pub name: String,
    /// A file with the secret that donors ask for.
    pub secret: Option<PathBuf>,
    pub certificates: Option<PathBuf>,
    pub lost_after: Duration,
    /// Take the disk from the client that has it open. Never part of the text.
    pub takeover: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Donor {
    Unix(PathBuf),
    Tcp(String),
    Uri(Uri),
}

impl FromStr for Description {
    type Err = String;

    fn from_str(text: &str) -> Result<Description, String> {
        if let Some(path) = text.strip_prefix("file:").filter(|path| !path.is_empty()) {
            return Ok(Description::File(path.into()));
        }
        // The same, for those who think of a block device.
        if let Some(path) = text.strip_prefix("device:").filter(|path| !path.is_empty()) {
            return Ok(Description::File(path.into()));
        }
        if let Some(path) = text.strip_prefix("vlog:").filter(|path| !path.is_empty()) {
            return Ok(Description::Vlog(path.into()));
        }
        if let Some(rest) = text.strip_prefix("netram:") {
            return parse_netram(rest).map(|disk| Description::Netram(Box::new(disk)));
        }
        if text.contains("://") {
            let (text, lost_after) = take_lost_after(text)?;
            let uri = text.parse().map_err(|error: shoal_nbd::address::AddressError| error.to_string())?;
            return Ok(Description::Nbd { uri, lost_after: lost_after.unwrap_or(DEVICE_LOST_AFTER) });
        }
        Err(format!(
            "{text:?} is no device; write file:PATH, vlog:PATH, nbd://HOST/NAME, nbd+unix:///NAME?socket=PATH or \
             netram:..."
        ))
    }
}

/// Takes our own parameter out of an NBD URI.
fn take_lost_after(text: &str) -> Result<(String, Option<Duration>), String> {
    let Some((front, query)) = text.split_once('?') else { return Ok((text.into(), None)) };
    let mut lost_after = None;
    let mut others = vec![];
    for parameter in query.split('&') {
        match parameter.strip_prefix("lost-after=") {
            Some(value) => lost_after = Some(seconds(value)?),
            None => others.push(parameter),
        }
    }
    let query = others.join("&");
    Ok((if query.is_empty() { front.into() } else { format!("{front}?{query}") }, lost_after))
}

fn seconds(value: &str) -> Result<Duration, String> {
    let seconds = value.parse().ok().filter(|seconds| LOST_AFTER_SECONDS.contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("lost-after={value}: 0.1 to 3600 seconds"))
}

/// Donors and options.
fn split_options(text: &str) -> (&str, &str) {
    let Some((front, query)) = text.rsplit_once('?') else { return (text, "") };
    let donor = front.rsplit(',').next().unwrap_or(front);
    let of_uris = query.starts_with("socket=") || query.starts_with("tls-");
    if donor.contains("://") && !donor.contains('?') && of_uris { (text, "") } else { (front, query) }
}

fn parse_netram(text: &str) -> Result<Netram, String> {
    let (donors, options) = split_options(text);
    if donors.is_empty() {
        return Err("netram: names no donor; write netram:DONOR,DONOR,...".into());
    }
    let donors = donors.split(',').map(str::parse).collect::<Result<Vec<Donor>, String>>()?;
    let twice = donors.iter().enumerate().find(|(at, donor)| donors[..*at].contains(donor));
    if let Some((_, donor)) = twice {
        return Err(format!("donor {donor} is named twice; name each once"));
    }
    let mut disk = Netram {
        donors,
        config: Config::default(),
        uuid: None,
        name: String::new(),
        secret: None,
        certificates: None,
        lost_after: DONOR_LOST_AFTER,
        takeover: false,
    };
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').ok_or_else(|| format!("{option}: write KEY=VALUE"))?;
        disk.set(key, value)?;
    }
    if disk.secret.is_some() && disk.name.is_empty() {
        return Err("secret=FILE: a secret belongs to a name; add name=NAME".into());
    }
    let Netram { config, donors, .. } = &disk;
    config.plan(donors.len()).map_err(|error| error.to_string())?;
    Ok(disk)
}

impl Netram {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        fn number<T: FromStr>(key: &str, value: &str) -> Result<T, String> {
            value.parse().map_err(|_| format!("{key}={value}: not a number that fits"))
        }
        let yes = |key: &str, value: &str| match value {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(format!("{key}={value}: write yes or no")),
        };
        let size = |value: &str| value.parse::<Size>().map(|size| size.0);
        match key {
            "policy" => self.config.policy = value.parse::<Policy>().map_err(|error| error.to_string())?,
            "streams" => self.config.streams = number(key, value)?,
            "parity" => self.config.parity = number(key, value)?,
            "buffer" => self.config.buffer_blocks = number(key, value)?,
            "block" => {
                self.config.block_bytes =
                    size(value)?.try_into().map_err(|_| format!("block={value}: 512 to 65536 bytes"))?
            }
            "width" => self.config.width = number(key, value)?,
            "spare" => self.config.spare_percent = number(key, value)?,
            "size" => self.config.bytes = Some(size(value)?),
            "dedicated-parity" => self.config.dedicated_parity = yes(key, value)?,
            "timeout" => self.config.timeout_ms = number(key, value)?,
            "idle-cleaning" => self.config.idle_cleaning = yes(key, value)?,
            "checkpoints" => self.config.checkpoints = yes(key, value)?,
            "name" => self.name = value.into(),
            "secret" => self.secret = Some(value.into()),
            "tls-certificates" => self.certificates = Some(value.into()),
            "lost-after" => self.lost_after = seconds(value)?,
            "new" => return Err(format!("new={value}: disks are made with `shoal format netram:...`")),
            "uuid" => self.uuid = Some(uuid(value).ok_or_else(|| format!("uuid={value}: not a uuid"))?),
            _ => {
                return Err(format!(
                    "{key}: no option of a network RAM disk; known are policy, streams, parity, buffer, block, width, \
                     spare, size, timeout, dedicated-parity, idle-cleaning, checkpoints, name, secret, tls-certificates, \
                     lost-after, uuid"
                ));
            }
        }
        Ok(())
    }
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let mut uuid = [0; 16];
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(uuid)
}

impl FromStr for Donor {
    type Err = String;

    fn from_str(text: &str) -> Result<Donor, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            if path.contains('?') {
                return Err(format!("donor {text}: write a path with `?` as nbd+unix:///?socket=PATH, the `?` as %3F"));
            }
            return Ok(Donor::Unix(path.into()));
        }
        let advice = "; options of the disk come after a `?` of their own, and a comma in a URI is written %2C";
        if text.contains("://") {
            return text.parse().map(Donor::Uri).map_err(|error| format!("donor {error}{advice}"));
        }
        match format!("nbd://{text}/").parse::<Uri>() {
            Ok(_) if text.contains(':') && !text.contains(['/', '?']) => Ok(Donor::Tcp(text.into())),
            _ => Err(format!("donor {text:?}: write unix:PATH, HOST:PORT or an NBD URI")),
        }
    }
}

impl fmt::Display for Donor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Donor::Unix(path) => write!(f, "unix:{}", path.display()),
            Donor::Tcp(place) => f.write_str(place),
            Donor::Uri(uri) => f.write_str(&uri_text(uri).replace(',', "%2C")),
        }
    }
}

impl Donor {
    /// As it may be shown to people.
    pub fn without_secret(self) -> Donor {
        match self {
            Donor::Uri(uri) => Donor::Uri(uri.without_secret()),
            other => other,
        }
    }

    /// Where it is. `export` is asked for unless the donor's own URI names one.
    pub fn uri(&self, export: &str, certificates: Option<&Path>) -> Uri {
        let bare = |place| Uri {
            place,
            name: export.into(),
            tls: certificates.is_some(),
            certificates: certificates.map(Path::to_path_buf),
            server_name: None,
        };
        match self {
            Donor::Unix(path) => bare(Place::Unix { path: path.clone() }),
            Donor::Tcp(place) => match format!("nbd://{place}/").parse::<Uri>() {
                Ok(uri) => bare(uri.place),
                Err(_) => unreachable!("was parsed before"),
            },
            Donor::Uri(uri) => {
                let mut uri = uri.clone();
                if uri.tls && uri.certificates.is_none() {
                    uri.certificates = certificates.map(Path::to_path_buf);
                }
                if uri.name.is_empty() {
                    uri.name = export.into();
                }
                uri
            }
        }
    }
}

/// A URI with all its parameters; its own `Display`, meant for messages, leaves those of TLS and secrets out.
fn uri_text(uri: &Uri) -> String {
    let mut text = uri.to_text();
    let mut add = |key: &str, value: &str| {
        text.push(if text.contains('?') { '&' } else { '?' });
        text += &format!("{key}={}", value.replace('%', "%25").replace('&', "%26").replace('?', "%3F"));
    };
    if let Some(directory) = &uri.certificates {
        add("tls-certificates", &directory.to_string_lossy());
    }
    if let Some(name) = &uri.server_name {
        add("tls-hostname", name);
    }
    text
}

impl Description {
    /// What may be shown to people and written into logs.
    pub fn without_secrets(mut self) -> Description {
        let hide = |uri: &mut Uri| *uri = uri.without_secret();
        match &mut self {
            Description::File(_) | Description::Vlog(_) => {}
            Description::Nbd { uri, .. } => hide(uri),
            Description::Netram(disk) => {
                let donors = std::mem::take(&mut disk.donors);
                disk.donors = donors.into_iter().map(Donor::without_secret).collect();
            }
        }
        self
    }

    /// The same device for a process in another directory.
    pub fn absolute(mut self) -> std::io::Result<Description> {
        fn fix(path: &mut PathBuf) -> std::io::Result<()> {
            *path = std::path::absolute(&path)?;
            Ok(())
        }
        fn fix_uri(uri: &mut Uri) -> std::io::Result<()> {
            if let Place::Unix { path } = &mut uri.place {
                fix(path)?;
            }
            uri.certificates.as_mut().map_or(Ok(()), fix)
        }
        match &mut self {
            Description::File(path) | Description::Vlog(path) => fix(path)?,
            Description::Nbd { uri, .. } => fix_uri(uri)?,
            Description::Netram(disk) => {
                for donor in &mut disk.donors {
                    match donor {
                        Donor::Unix(path) => fix(path)?,
                        Donor::Tcp(_) => {}
                        Donor::Uri(uri) => fix_uri(uri)?,
                    }
                }
                disk.secret.as_mut().map_or(Ok(()), fix)?;
                disk.certificates.as_mut().map_or(Ok(()), fix)?;
            }
        }
        Ok(self)
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Description::File(path) => write!(f, "file:{}", path.display()),
            Description::Vlog(path) => write!(f, "vlog:{}", path.display()),
            Description::Nbd { uri, lost_after } => {
                let text = uri_text(uri);
                f.write_str(&text)?;
                if *lost_after != DEVICE_LOST_AFTER {
                    let separator = if text.contains('?') { '&' } else { '?' };
                    write!(f, "{separator}lost-after={}", lost_after.as_secs_f64())?;
                }
                Ok(())
            }
            Description::Netram(disk) => disk.fmt(f),
        }
    }
}

impl fmt::Display for Netram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let donors: Vec<String> = self.donors.iter().map(Donor::to_string).collect();
        let (config, usual) = (&self.config, Config::default());
        let mut options = vec![format!("policy={}", config.policy.name())];
        let mut add = |key: &str, unusual: bool, value: &dyn fmt::Display| {
            if unusual {
                options.push(format!("{key}={value}"));
            }
        };
        let word = |yes| if yes { "yes" } else { "no" };
        add("streams", config.streams != usual.streams, &config.streams);
        add("parity", config.parity != usual.parity, &config.parity);
        add("buffer", config.buffer_blocks != usual.buffer_blocks, &config.buffer_blocks);
        add("block", config.block_bytes != usual.block_bytes, &config.block_bytes);
        add("width", config.width != usual.width, &config.width);
        add("spare", config.spare_percent != usual.spare_percent, &config.spare_percent);
        add("size", config.bytes.is_some(), &config.bytes.unwrap_or_default());
        add("timeout", config.timeout_ms != usual.timeout_ms, &config.timeout_ms);
        add("dedicated-parity", config.dedicated_parity, &word(config.dedicated_parity));
        add("idle-cleaning", !config.idle_cleaning, &word(config.idle_cleaning));
        add("checkpoints", config.checkpoints, &word(config.checkpoints));
        add("name", !self.name.is_empty(), &self.name);
        if let Some(path) = &self.secret {
            add("secret", true, &path.display());
        }
        if let Some(path) = &self.certificates {
            add("tls-certificates", true, &path.display());
        }
        add("lost-after", self.lost_after != DONOR_LOST_AFTER, &self.lost_after.as_secs_f64());
        if let Some(uuid) = &self.uuid {
            add("uuid", true, &crate::store::uuid_text(uuid));
        }
        write!(f, "netram:{}?{}", donors.join(","), options.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netram(text: &str) -> Netram {
        match text.parse() {
            Ok(Description::Netram(disk)) => *disk,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn donors_of_all_kinds_and_every_option_are_read_and_written_back() {
        let text = "netram:unix:/run/a,donor:7000,nbd+unix:///x?socket=/run/b%2Cc?policy=mirrored&streams=3&parity=2&\
                    buffer=16&block=8192&width=3&spare=30&size=1G&timeout=9&dedicated-parity=yes&idle-cleaning=no&\
                    checkpoints=yes&name=me&secret=/s&tls-certificates=/c&lost-after=0.5&uuid=00010203-0405-0607-0809-0a0b0c0d0eff";
        let disk = netram(text);
        assert_eq!(disk.donors.len(), 3);
        assert_eq!(disk.donors[0], Donor::Unix("/run/a".into()));
        assert_eq!(disk.donors[1], Donor::Tcp("donor:7000".into()));
        let Donor::Uri(uri) = &disk.donors[2] else { panic!() };
        assert_eq!((&uri.place, uri.name.as_str()), (&Place::Unix { path: "/run/b,c".into() }, "x"));
        let config = &disk.config;
        assert_eq!((config.policy, config.streams, config.parity), (Policy::Mirrored, 3, 2));
        assert_eq!((config.buffer_blocks, config.block_bytes, config.width), (16, 8192, 3));
        assert_eq!((config.spare_percent, config.bytes, config.timeout_ms), (30, Some(1 << 30), 9));
        assert!(config.dedicated_parity && !config.idle_cleaning && config.checkpoints);
        assert!(!netram("netram:a:1,b:1").config.checkpoints);
        assert_eq!((disk.name.as_str(), disk.lost_after), ("me", Duration::from_millis(500)));
        assert_eq!(disk.uuid.unwrap()[15], 255);
        assert_eq!(netram(&disk.to_string()), disk);
    }

    #[test]
    fn the_last_question_mark_is_the_disks_unless_it_is_the_last_donors_own() {
        let uris = "nbd+unix:///a?socket=/a,nbd+unix:///b?socket=/b";
        assert_eq!(netram(&format!("netram:{uris}")).config.policy, Policy::Adaptive);
        let disk = netram(&format!("netram:{uris}?policy=none"));
        assert_eq!((disk.donors.len(), disk.config.policy), (2, Policy::None));
        let disk = netram("netram:nbds://a/?tls-certificates=/c,nbds://b/?tls-certificates=/c?tls-certificates=/d");
        assert_eq!(disk.certificates, Some("/d".into()));
        let Donor::Uri(uri) = &disk.donors[1] else { panic!() };
        assert_eq!(uri.certificates, Some("/c".into()));
        let disk = netram("netram:a:1,b:2?tls-certificates=/c");
        assert_eq!(disk.certificates, Some("/c".into()));
        assert!(disk.donors[0].uri("", disk.certificates.as_deref()).tls);
        assert_eq!(netram(&disk.to_string()), disk);
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_names_it() {
        for (text, expected) in [
            ("disk", "no device"),
            ("file:", "no device"),
            ("vlog:", "no device"),
            ("nbd://h/?soket=1", "unknown parameter soket"),
            ("nbd://h/?lost-after=0", "lost-after=0"),
            ("netram:", "names no donor"),
            ("netram:?policy=none", "names no donor"),
            ("netram:a:1,,b:2", "write unix:PATH"),
            ("netram:a:1,b", "write unix:PATH"),
            ("netram:a:1,a:1", "named twice"),
            ("netram:a:1,b:2?polcy=none", "polcy: no option"),
            ("netram:a:1,b:2?policy=best", "choose one of none"),
            ("netram:a:1,b:2?streams=many", "streams=many"),
            ("netram:a:1,b:2?streams=9", "streams=9: 1 to 8"),
            ("netram:a:1,b:2?spare", "write KEY=VALUE"),
            ("netram:a:1,b:2?new=yes", "made with `shoal format netram:...`"),
            ("netram:a:1,b:2?secret=/s", "add name=NAME"),
            ("netram:a:1", "needs 2 donors at least, 1 given"),
            ("netram:a:1,b:2?policy=mirrored&parity=2", "needs 3 donors at least, 2 given"),
            ("netram:nbd+unix:///a?socket=/a&policy=none", "options of the disk come after"),
        ] {
            let error = text.parse::<Description>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_donors_own_export_name_counts_more_than_the_disks() {
        let disk = netram("netram:unix:/a,nbd://h/theirs,nbd://h:1?policy=none");
        let names: Vec<String> = disk.donors.iter().map(|donor| donor.uri("mine", None).name).collect();
        assert_eq!(names, ["mine", "theirs", "mine"]);
    }

    #[test]
    fn a_single_device_takes_the_time_until_it_is_lost() {
        let text = "nbd+unix:///x?socket=/a&lost-after=2";
        let device: Description = text.parse().unwrap();
        let Description::Nbd { uri, lost_after } = &device else { panic!() };
        assert_eq!((uri.name.as_str(), *lost_after), ("x", Duration::from_secs(2)));
        assert_eq!(device.to_string(), text);
        assert_eq!("nbd://h:1/x?lost-after=2".parse::<Description>().unwrap().to_string(), "nbd://h:1/x?lost-after=2");
        for (text, written) in [("file:/a", "file:/a"), ("device:/dev/x", "file:/dev/x"), ("vlog:/b", "vlog:/b")] {
            assert_eq!(text.parse::<Description>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn relative_paths_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let device: Description = "netram:unix:a,nbd+unix:///?socket=b?name=n&secret=s".parse().unwrap();
        let Description::Netram(disk) = device.absolute().unwrap() else { panic!() };
        assert_eq!(disk.donors[0], Donor::Unix(here.join("a")));
        assert_eq!(disk.donors[1].uri("", None).place, Place::Unix { path: here.join("b") });
        assert_eq!(disk.secret, Some(here.join("s")));
    }
}
