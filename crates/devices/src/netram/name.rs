//! The name of a network RAM disk: `netram:DONOR,DONOR,...?OPTIONS`.
//!
//! A donor is `unix:PATH`, `HOST:PORT` or an NBD URI, and may end in `@NAME`, its failure domain. Commas
//! separate donors, so a comma within a donor's URI is written %2C. The disk's options come after the last `?`, unless that `?` belongs
//! to the last donor: it is the first in a URI, and a parameter of URIs follows (`socket`,
//! `tls-...`).
//! Left out: what the options mean (`shoal_netram::Config`), opening.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use shoal_nbd::Uri;
use shoal_nbd::address::Place;
use shoal_netram::{Config, Policy};

use super::{KIND, NetramDisk};
use crate::device::Device;
use crate::device_name::{DeviceName, Kind, Name};
use crate::failure::Outcome;
use crate::nbd::{lost_after_of, make_absolute, make_uri_absolute, uri_text};
use crate::size::Size;
use crate::uuid::{parse_uuid, uuid_text};

/// How long to try to reach a lost donor again.
pub(super) const LOST_AFTER: Duration = Duration::from_secs(5);

/// A network RAM disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netram {
    pub donors: Vec<Donor>,
    /// The configuration, without the uuid.
    pub config: Config,
    /// The disk that must be there; any disk if `None`.
    pub uuid: Option<[u8; 16]>,
    /// This client's name at the donors.
    pub name: String,
    /// A file with the secret that donors ask for.
    pub secret: Option<PathBuf>,
    pub certificates: Option<PathBuf>,
    /// A file with the key that the donors' memory is encrypted with.
    pub key: Option<PathBuf>,
    pub lost_after: Duration,
    /// Take the disk from the client that has it open. Never part of the text.
    pub takeover: bool,
}

/// A donor, and the failure domain that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Donor {
    pub at: Address,
    /// `None`: it is a domain of its own.
    pub domain: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    Tcp(String),
    Uri(Uri),
}

/// Splits off the failure domain: what follows the last `@`, unless that is part of a path, or of a URI's host.
fn split_domain(text: &str) -> (&str, Option<&str>) {
    let Some((front, domain)) = text.rsplit_once('@') else { return (text, None) };
    let in_host = front.split_once("://").is_some_and(|(_, rest)| !rest.contains('/'));
    if domain.contains(['/', '?', '&', '=']) || in_host { (text, None) } else { (front, Some(domain)) }
}

/// Returns the number that stands for a failure domain on the donors. It is not 0.
fn domain_number(name: &str) -> u16 {
    (shoal_format::checksum(0, name.as_bytes()) as u16).max(1)
}

/// Splits a text into donors and options.
fn split_options(text: &str) -> (&str, &str) {
    let Some((front, query)) = text.rsplit_once('?') else { return (text, "") };
    let donor = front.rsplit(',').next().unwrap_or(front);
    let of_uris = query.starts_with("socket=") || query.starts_with("tls-");
    if donor.contains("://") && !donor.contains('?') && of_uris { (text, "") } else { (front, query) }
}

impl Netram {
    /// Parses the text after `netram:`.
    pub(super) fn parse(text: &str) -> Result<Netram, String> {
        let (donors, options) = split_options(text);
        if donors.is_empty() {
            return Err("netram: names no donor; write netram:DONOR,DONOR,...".into());
        }
        let donors = donors.split(',').map(str::parse).collect::<Result<Vec<Donor>, String>>()?;
        let named = |at: usize, donor: &Donor| donors[..at].iter().any(|other| other.at == donor.at);
        let twice = donors.iter().enumerate().find(|(at, donor)| named(*at, donor));
        if let Some((_, donor)) = twice {
            return Err(format!("donor {donor} is named twice; name each once"));
        }
        let mut disk = Netram {
            donors,
            config: Config { checkpoints: true, ..Config::default() },
            uuid: None,
            name: String::new(),
            secret: None,
            certificates: None,
            key: None,
            lost_after: LOST_AFTER,
            takeover: false,
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').ok_or_else(|| format!("{option}: write KEY=VALUE"))?;
            disk.set(key, value)?;
        }
        if disk.secret.is_some() && disk.name.is_empty() {
            return Err("secret=FILE: a secret belongs to a name; add name=NAME".into());
        }
        disk.check_domains()?;
        Ok(disk)
    }

    /// Checks that failure domains can be told apart, and that there are enough for a group.
    pub(super) fn check_domains(&self) -> Result<(), String> {
        let mut named: Vec<&str> = self.donors.iter().filter_map(|donor| donor.domain.as_deref()).collect();
        named.sort_unstable();
        named.dedup();
        let is_other =
            |one: &&str| named.iter().any(|other| other != one && domain_number(other) == domain_number(one));
        if let Some(one) = named.iter().find(|one| is_other(one)) {
            return Err(format!("@{one}: has the same number as another failure domain; give it another name"));
        }
        let own = self.donors.iter().filter(|donor| donor.domain.is_none()).count();
        let domains = named.len() + own;
        self.config.plan(domains).map(drop).map_err(|error| match named.len() {
            0 => error.to_string(),
            _ => format!(
                "the {} donors are in {domains} failure domains, and no two units of a group share one: {error}, name \
                 donors of other domains, or leave `@NAME` out",
                self.donors.len()
            ),
        })
    }

    /// Returns the name with absolute paths, for a process in another directory.
    pub(super) fn with_absolute_paths(&self) -> io::Result<Netram> {
        let mut disk = self.clone();
        for donor in &mut disk.donors {
            match &mut donor.at {
                Address::Unix(path) => make_absolute(path)?,
                Address::Tcp(_) => {}
                Address::Uri(uri) => make_uri_absolute(uri)?,
            }
        }
        disk.secret.as_mut().map_or(Ok(()), make_absolute)?;
        disk.key.as_mut().map_or(Ok(()), make_absolute)?;
        disk.certificates.as_mut().map_or(Ok(()), make_absolute)?;
        Ok(disk)
    }

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
            "key" => self.key = Some(value.into()),
            "tls-certificates" => self.certificates = Some(value.into()),
            "lost-after" => self.lost_after = lost_after_of(value)?,
            "new" => return Err(format!("new={value}: disks are made with `shoal format netram:...`")),
            "uuid" => self.uuid = Some(parse_uuid(value).ok_or_else(|| format!("uuid={value}: not a uuid"))?),
            _ => {
                return Err(format!(
                    "{key}: no option of a network RAM disk; known are policy, streams, parity, buffer, block, width, \
                     spare, size, timeout, dedicated-parity, idle-cleaning, checkpoints, name, secret, key, tls-certificates, \
                     lost-after, uuid"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Donor {
    type Err = String;

    fn from_str(text: &str) -> Result<Donor, String> {
        let (address, domain) = split_domain(text);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if domain.is_some_and(|domain| domain.is_empty() || !domain.chars().all(is_plain)) {
            return Err(format!(
                "donor {text}: a failure domain is letters, digits, `.`, `_` and `-`; write an `@` of the address as %40"
            ));
        }
        Ok(Donor { at: address.parse()?, domain: domain.map(Into::into) })
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            if path.contains('?') {
                return Err(format!("donor {text}: write a path with `?` as nbd+unix:///?socket=PATH, the `?` as %3F"));
            }
            return Ok(Address::Unix(path.into()));
        }
        let advice = "; options of the disk come after a `?` of their own, and a comma in a URI is written %2C";
        if text.contains("://") {
            return text.parse().map(Address::Uri).map_err(|error| format!("donor {error}{advice}"));
        }
        match format!("nbd://{text}/").parse::<Uri>() {
            Ok(_) if text.contains(':') && !text.contains(['/', '?']) => Ok(Address::Tcp(text.into())),
            _ => Err(format!("donor {text:?}: write unix:PATH, HOST:PORT or an NBD URI")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(place) => f.write_str(place),
            Address::Uri(uri) => f.write_str(&uri_text(uri).replace(',', "%2C")),
        }
    }
}

impl Address {
    /// The address in a form that may be shown to people.
    pub fn without_secret(self) -> Address {
        match self {
            Address::Uri(uri) => Address::Uri(uri.without_secret()),
            other => other,
        }
    }

    /// The donor's address. It asks for `export` unless the donor's own URI names an export.
    pub fn uri(&self, export: &str, certificates: Option<&Path>) -> Uri {
        let bare = |place| Uri {
            place,
            name: export.into(),
            tls: certificates.is_some(),
            certificates: certificates.map(Path::to_path_buf),
            server_name: None,
        };
        match self {
            Address::Unix(path) => bare(Place::Unix { path: path.clone() }),
            Address::Tcp(place) => match format!("nbd://{place}/").parse::<Uri>() {
                Ok(uri) => bare(uri.place),
                Err(_) => unreachable!("was parsed before"),
            },
            Address::Uri(uri) => {
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

/// The address. [`Donor::text`] names the failure domain, too.
impl fmt::Display for Donor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at.fmt(f)
    }
}

impl Donor {
    /// The donor in a form that may be shown to people.
    pub fn without_secret(self) -> Donor {
        Donor { at: self.at.without_secret(), ..self }
    }

    /// The donor as its disk's name writes it.
    pub fn text(&self) -> String {
        match &self.domain {
            Some(domain) => format!("{self}@{domain}"),
            None => self.to_string(),
        }
    }

    /// The number of its failure domain; 0: its own.
    pub fn domain_number(&self) -> u16 {
        self.domain.as_deref().map_or(0, domain_number)
    }

    pub fn uri(&self, export: &str, certificates: Option<&Path>) -> Uri {
        self.at.uri(export, certificates)
    }
}

impl fmt::Display for Netram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let donors: Vec<String> = self.donors.iter().map(Donor::text).collect();
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
        add("checkpoints", !config.checkpoints, &word(config.checkpoints));
        add("name", !self.name.is_empty(), &self.name);
        if let Some(path) = &self.secret {
            add("secret", true, &path.display());
        }
        if let Some(path) = &self.key {
            add("key", true, &path.display());
        }
        if let Some(path) = &self.certificates {
            add("tls-certificates", true, &path.display());
        }
        add("lost-after", self.lost_after != LOST_AFTER, &self.lost_after.as_secs_f64());
        if let Some(uuid) = &self.uuid {
            add("uuid", true, &uuid_text(uuid));
        }
        write!(f, "netram:{}?{}", donors.join(","), options.join("&"))
    }
}

impl Name for Netram {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn without_secrets(&self) -> DeviceName {
        let donors = self.donors.iter().cloned().map(Donor::without_secret).collect();
        DeviceName::new(Netram { donors, ..self.clone() })
    }

    fn absolute(&self) -> io::Result<DeviceName> {
        self.with_absolute_paths().map(DeviceName::new)
    }

    fn open(&self) -> Outcome<Box<dyn Device>> {
        Ok(Box::new(NetramDisk::open(self)?))
    }

    fn taking_over(&self) -> Option<DeviceName> {
        Some(DeviceName::new(Netram { takeover: true, ..self.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netram(text: &str) -> Netram {
        Netram::parse(text.strip_prefix("netram:").unwrap()).unwrap()
    }

    #[test]
    fn donors_of_all_kinds_and_every_option_are_read_and_written_back() {
        let text = "netram:unix:/run/a,donor:7000,nbd+unix:///x?socket=/run/b%2Cc?policy=mirrored&streams=3&parity=2&\
                    buffer=16&block=8192&width=3&spare=30&size=1G&timeout=9&dedicated-parity=yes&idle-cleaning=no&\
                    checkpoints=no&name=me&secret=/s&key=/k&tls-certificates=/c&lost-after=0.5&uuid=00010203-0405-0607-0809-0a0b0c0d0eff";
        let disk = netram(text);
        assert_eq!(disk.donors.len(), 3);
        assert_eq!(disk.donors[0].at, Address::Unix("/run/a".into()));
        assert_eq!(disk.donors[1].at, Address::Tcp("donor:7000".into()));
        let Address::Uri(uri) = &disk.donors[2].at else { panic!() };
        assert_eq!((&uri.place, uri.name.as_str()), (&Place::Unix { path: "/run/b,c".into() }, "x"));
        let config = &disk.config;
        assert_eq!((config.policy, config.streams, config.parity), (Policy::Mirrored, 3, 2));
        assert_eq!((config.buffer_blocks, config.block_bytes, config.width), (16, 8192, 3));
        assert_eq!((config.spare_percent, config.bytes, config.timeout_ms), (30, Some(1 << 30), 9));
        assert!(config.dedicated_parity && !config.idle_cleaning && !config.checkpoints);
        assert!(netram("netram:a:1,b:1").config.checkpoints);
        assert_eq!((disk.name.as_str(), disk.lost_after), ("me", Duration::from_millis(500)));
        assert_eq!(disk.key, Some("/k".into()));
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
        let Address::Uri(uri) = &disk.donors[1].at else { panic!() };
        assert_eq!(uri.certificates, Some("/c".into()));
        let disk = netram("netram:a:1,b:2?tls-certificates=/c");
        assert_eq!(disk.certificates, Some("/c".into()));
        assert!(disk.donors[0].uri("", disk.certificates.as_deref()).tls);
        assert_eq!(netram(&disk.to_string()), disk);
    }

    #[test]
    fn a_donors_own_export_name_counts_more_than_the_disks() {
        let disk = netram("netram:unix:/a,nbd://h/theirs,nbd://h:1?policy=none");
        let names: Vec<String> = disk.donors.iter().map(|donor| donor.uri("mine", None).name).collect();
        assert_eq!(names, ["mine", "theirs", "mine"]);
    }

    #[test]
    fn a_donor_may_name_its_failure_domain() {
        let text = "netram:unix:/run/x@y/a@rack1,host:7000@rack1,nbd://h/e@r.2,unix:/run/x@y/b,nbd://me@h,\
                    nbd+unix:///x?socket=/run/c@rack3?policy=adaptive";
        let disk = netram(text);
        let domains: Vec<Option<&str>> = disk.donors.iter().map(|donor| donor.domain.as_deref()).collect();
        assert_eq!(domains, [Some("rack1"), Some("rack1"), Some("r.2"), None, None, Some("rack3")]);
        assert_eq!(disk.donors[0].at, Address::Unix("/run/x@y/a".into()));
        assert_eq!(disk.donors[1].to_string(), "host:7000");
        assert_eq!(netram(&disk.to_string()), disk);
        assert_eq!(disk.donors[0].domain_number(), disk.donors[1].domain_number());
        assert_eq!(disk.donors[3].domain_number(), 0);
        for (text, why) in [
            ("unix:/a@r,unix:/b@r", "the 2 donors are in 1 failure domains"),
            ("unix:/a@r,unix:/b@s,unix:/c@s?width=3", "leave `@NAME` out"),
            ("unix:/a@,unix:/b", "a failure domain is letters"),
            ("unix:/a@r,unix:/a@s", "is named twice"),
        ] {
            let error = Netram::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn relative_paths_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let disk = netram("netram:unix:a,nbd+unix:///?socket=b?name=n&secret=s&key=k").with_absolute_paths().unwrap();
        assert_eq!(disk.donors[0].at, Address::Unix(here.join("a")));
        assert_eq!(disk.donors[1].uri("", None).place, Place::Unix { path: here.join("b") });
        assert_eq!((disk.secret, disk.key), (Some(here.join("s")), Some(here.join("k"))));
    }
}
