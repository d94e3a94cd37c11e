//! A store's description: the file `shoal.json` in its directory.
//!
//! Rules: the description is the last file written when a store is made and the first one removed
//! when it is deleted. Both are atomic, so a directory without it is not a store. Left out: the
//! contents of the media.

use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shoal_devices::{DeviceName, During, Failure, Kind, Outcome, uuid_text};
use shoal_fs::Method;
use shoal_host::{Access, Birth, Directory};

use crate::memory::MemoryChoice;
use crate::names::{DESCRIPTION, DESCRIPTION_NEW, IMAGES, LOG};

const VERSION: u32 = 1;

/// The store's description file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Description {
    pub version: u32,
    pub uuid: String,
    pub memory: MemoryChoice,
    /// Where to find the bulk devices, ascending by number. The region's list of devices is
    /// authoritative.
    pub bulk: Vec<NumberedPlace>,
    /// How cold small files are compressed. Missing in stores of earlier programs.
    pub compress: Method,
    /// The directory that the store was made in. In a copy of that directory, it shows that outside
    /// files named here may be the original's. Missing in stores of earlier programs.
    pub(crate) origin: Option<String>,
    /// The user who owns the description file. `None`: this process made it.
    pub(crate) owner: Option<u32>,
}

/// The description as it is written: the first bulk device is apart from the others, since the
/// first programs knew no others.
#[derive(Clone, Serialize, Deserialize)]
struct Written {
    version: u32,
    uuid: String,
    memory: MemoryChoice,
    bulk: Option<BulkPlace>,
    /// The first bulk device was removed; `bulk` still names it until the store is unmounted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    first_removed: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    more_bulk: Vec<NumberedPlace>,
    #[serde(default, with = "method_text")]
    compress: Method,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
}

impl From<Written> for Description {
    fn from(written: Written) -> Description {
        let Written { version, uuid, memory, bulk, first_removed, more_bulk, compress, origin } = written;
        let first = bulk.map(|place| NumberedPlace { number: 0, uuid: uuid.clone(), place, is_removed: first_removed });
        let bulk = first.into_iter().chain(more_bulk).collect();
        Description { version, uuid, memory, bulk, compress, origin, owner: None }
    }
}

impl From<Description> for Written {
    fn from(description: Description) -> Written {
        let Description { version, uuid, memory, bulk, compress, origin, .. } = description;
        let (first, more_bulk): (Vec<_>, Vec<_>) = bulk.into_iter().partition(|device| device.number == 0);
        let first_removed = !more_bulk.is_empty() && first.iter().all(|device| device.is_removed);
        let bulk = first.into_iter().next().map(|device| device.place);
        Written { version, uuid, memory, bulk, first_removed, more_bulk, compress, origin }
    }
}

/// Serializes a compression method as its name.
mod method_text {
    use super::Method;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(method: &Method, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(method)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Method, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Where a store has its bulk storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BulkPlace {
    /// A file or a block device. A relative path starts at the store's directory.
    File(PathBuf),
    /// Any other device, by its name.
    Device(String),
}

/// Where a bulk device of a store is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedPlace {
    pub number: u32,
    /// The uuid in the device's mark: of the first device, the store's.
    pub uuid: String,
    pub place: BulkPlace,
    /// The device was removed. The first one is named until the store is closed, because the period
    /// depends on its place.
    #[serde(skip)]
    pub(crate) is_removed: bool,
}

impl NumberedPlace {
    pub(crate) fn new(number: u32, uuid: &[u8; 16], place: BulkPlace) -> NumberedPlace {
        NumberedPlace { number, uuid: uuid_text(uuid), place, is_removed: false }
    }
}

impl BulkPlace {
    /// Returns the device's name, for a store in `directory`.
    pub(crate) fn name(&self, directory: &Directory) -> Result<shoal_devices::DeviceName, String> {
        match self {
            BulkPlace::File(file) => Ok(shoal_devices::file(at(directory, file))),
            BulkPlace::Device(text) => text.parse(),
        }
    }

    /// Returns the path of a file or block device.
    pub(crate) fn path(&self, directory: &Directory) -> Option<PathBuf> {
        match self {
            BulkPlace::File(file) => Some(at(directory, file)),
            BulkPlace::Device(_) => None,
        }
    }

    /// Returns the host's number for the device's place. 0 if the device is on no host, or the
    /// number cannot be read.
    pub(crate) fn on_host(&self, directory: &Directory) -> u64 {
        self.path(directory).and_then(|path| shoal_host::place_id(&path).ok()).unwrap_or(0)
    }

    /// Returns the name for people and logs, without secrets.
    pub fn shown(&self, directory: &Path) -> String {
        match self {
            BulkPlace::File(file) => shoal_devices::file(directory.join(file)).to_string(),
            BulkPlace::Device(text) => match text.parse::<DeviceName>() {
                Ok(name) => name.without_secrets().to_string(),
                Err(_) => text.clone(),
            },
        }
    }

    /// Returns the place for people. A relative path is shown within `directory`.
    pub fn text(&self, directory: &Path) -> String {
        match self {
            BulkPlace::File(file) => directory.join(file).display().to_string(),
            BulkPlace::Device(text) => text.clone(),
        }
    }
}

/// Resolves a path of the description. A relative path starts at the store's current place.
fn at(directory: &Directory, file: &Path) -> PathBuf {
    if file.is_absolute() { file.to_path_buf() } else { directory.place().join(file) }
}

/// Where `format` puts the bulk storage of a new store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkChoice {
    /// No bulk storage: there are no large files.
    None,
    /// A file, which is created, or a block device.
    File(PathBuf),
    /// Any other device, which must exist already.
    Device(shoal_devices::DeviceName),
}

impl FromStr for BulkChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<BulkChoice, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(BulkChoice::None),
            Some(("file", path)) if !path.is_empty() => Ok(BulkChoice::File(path.into())),
            Some((scheme, _)) if Kind::of_scheme(scheme).is_some_and(|kind| kind.name != "file") => {
                text.parse().map(BulkChoice::Device)
            }
            _ => Err(format!("write none, {}", shoal_devices::forms())),
        }
    }
}

impl Description {
    pub(crate) fn new(uuid: &[u8; 16], memory: MemoryChoice, bulk: Option<BulkPlace>, compress: Method) -> Description {
        Description {
            version: VERSION,
            uuid: uuid_text(uuid),
            memory,
            bulk: first(uuid_text(uuid), bulk),
            compress,
            origin: None,
            owner: None,
        }
    }

    /// Returns the description that `format` would have written, for a directory that has lost its
    /// own.
    pub(crate) fn guess(bulk: Option<BulkPlace>) -> Description {
        Description {
            version: VERSION,
            uuid: String::new(),
            memory: MemoryChoice::LOGGED,
            bulk: first(String::new(), bulk),
            compress: Method::default(),
            origin: None,
            owner: None,
        }
    }

    /// Reads the description of the store at `directory`, which may be in use.
    pub fn read(directory: &Directory) -> Outcome<Description> {
        let path = directory.path().join(DESCRIPTION);
        let unread = |error: Box<dyn std::error::Error + Send + Sync>| unreadable(directory.path(), error);
        let file = directory.open_file(DESCRIPTION, Access::Read).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if has_parts(directory) => missing(directory.path()),
            io::ErrorKind::NotFound => no_store(directory.path()),
            _ => unread(error.into()),
        })?;
        let mut description: Description =
            serde_json::from_reader(BufReader::new(&file)).map_err(|error| unread(error.into()))?;
        description.owner = Some(file.metadata().during(path.display())?.uid());
        if description.version != VERSION {
            let cause = format!("version {}, this program knows version {VERSION}", description.version);
            return Err(Failure::new(path.display(), cause).remedy("use a newer shoal"));
        }
        Ok(description)
    }

    /// Writes the description atomically, which makes the directory a store.
    pub fn write(&self, directory: &Directory) -> Outcome<()> {
        let mut text = serde_json::to_string_pretty(self).during(DESCRIPTION)?;
        text.push('\n');
        directory.replace(DESCRIPTION_NEW, DESCRIPTION, text.as_bytes(), true).map_err(Failure::of)
    }

    /// Adds the origin, for a store that is made in this directory.
    pub(crate) fn made_in(self, directory: &Directory) -> Outcome<Description> {
        Ok(Description { origin: origin(directory)?, ..self })
    }

    /// Returns true if the store was made in this directory, whatever the directory is called now.
    pub(crate) fn is_made_in(&self, directory: &Directory) -> bool {
        self.origin.is_some() && origin(directory).is_ok_and(|origin| origin == self.origin)
    }

    /// Returns true if the store was made in another directory. Outside files that it names may
    /// then be the original's.
    pub(crate) fn is_copied_to(&self, directory: &Directory) -> bool {
        self.origin.is_some() && !self.is_made_in(directory)
    }

    /// Returns the description's owner, if that is neither root nor this process's user. Such a
    /// description may name only that user's files.
    pub(crate) fn foreign_owner(&self) -> Option<u32> {
        self.owner.filter(|owner| *owner != 0 && *owner != rustix::process::geteuid().as_raw())
    }

    /// Refuses an object outside of the store if the description has a foreign owner and the object
    /// does not belong to that owner.
    pub(crate) fn refuse_foreign(&self, what: impl std::fmt::Display, owner: Option<u32>) -> Outcome<()> {
        match self.foreign_owner() {
            Some(writer) if owner != Some(writer) => {
                let cause = format!("is not user {writer}'s, whose description of the store names it");
                Err(Failure::new(what, cause).remedy(format!(
                    "use the store as user {writer}, or make {DESCRIPTION} your own after you have read it"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns the bulk devices that the store has.
    pub fn devices(&self) -> impl Iterator<Item = &NumberedPlace> {
        self.bulk.iter().filter(|device| !device.is_removed)
    }

    /// Returns where the bulk device with this number is, or was.
    pub fn place_of(&self, number: u32) -> Option<&BulkPlace> {
        self.bulk.iter().find(|device| device.number == number).map(|device| &device.place)
    }

    /// Names a bulk device, in place of what had its number.
    pub(crate) fn name(&mut self, device: NumberedPlace) {
        self.bulk.retain(|known| known.number != device.number);
        self.bulk.push(device);
        self.bulk.sort_by_key(|device| device.number);
    }

    /// Forgets a bulk device that was removed from an open store.
    pub(crate) fn remove(&mut self, number: u32) {
        self.bulk.retain(|device| device.number != number || number == 0);
        self.bulk.iter_mut().filter(|device| device.number == number).for_each(|first| first.is_removed = true);
    }

    /// Returns the numbers of the store's bulk devices, with the identity that a cache in front of
    /// one names.
    pub(crate) fn cache_owners(&self) -> Vec<(u32, String)> {
        self.devices().map(|device| (device.number, device.uuid.clone())).collect()
    }

    /// Returns true if the store has had more than the bulk device it was formatted with.
    pub fn has_bulk_list(&self) -> bool {
        self.bulk.iter().any(|device| device.number != 0)
    }

    /// Returns the path of the store's first bulk device, if it is a file or a block device.
    pub(crate) fn bulk_path(&self, directory: &Directory) -> Option<PathBuf> {
        self.place_of(0).and_then(|place| place.path(directory))
    }
}

fn first(uuid: String, place: Option<BulkPlace>) -> Vec<NumberedPlace> {
    place.map(|place| NumberedPlace { number: 0, uuid, place, is_removed: false }).into_iter().collect()
}

/// Identifies a directory in a way that no copy of it shares. `None` if its file system has no
/// birth times.
fn origin(directory: &Directory) -> Outcome<Option<String>> {
    let Birth { place, born } = directory.birth().map_err(Failure::of)?;
    Ok(born.map(|born| format!("{place:016x}{born:016x}")))
}

/// Returns the error for a path where no store is.
pub(crate) fn no_store(directory: &Path) -> Failure {
    Failure::new(directory.display(), "not a store").remedy("make one with `shoal format`")
}

/// Returns true if the directory holds an image or a log, with or without a description.
pub(crate) fn has_parts(directory: &Directory) -> bool {
    IMAGES.iter().chain([&LOG]).any(|name| directory.has(name))
}

/// Returns the error for a store without a description: it was lost, or not written yet when
/// `format` was interrupted.
pub(crate) fn missing(directory: &Path) -> Failure {
    let store = directory.display();
    Failure::new(directory.join(DESCRIPTION).display(), "is missing, and the rest of a store is there").remedy(format!(
        "bring it back from a backup, or copy everything out with `shoal salvage {store} DIR`; if `shoal format` was cut off, run it again \
         with --force"
    ))
}

/// Returns the error for an unreadable description. The other files of the store may be intact.
fn unreadable(directory: &Path, error: Box<dyn std::error::Error + Send + Sync>) -> Failure {
    let store = directory.display();
    Failure::new(directory.join(DESCRIPTION).display(), error)
        .remedy(format!("correct it or bring it back; `shoal salvage {store} DIR` copies out what can be read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_description_is_what_it_was_and_refuses_other_versions() {
        let dir = tempfile::tempdir().unwrap();
        let held = Directory::open(dir.path()).unwrap();
        let read = || Description::read(&held);
        let mut description = Description {
            version: VERSION,
            uuid: uuid_text(&[7; 16]),
            memory: "dax=/pmem/r".parse().unwrap(),
            bulk: first(uuid_text(&[7; 16]), Some(BulkPlace::File("bulk".into()))),
            compress: Method::Zstd(7),
            origin: None,
            owner: Some(rustix::process::geteuid().as_raw()),
        };
        description.write(&held).unwrap();
        assert_eq!(read().unwrap(), description);
        description.version = 2;
        description.write(&held).unwrap();
        assert!(read().unwrap_err().to_string().contains("version 2"));
        let text = fs::read_to_string(dir.path().join(DESCRIPTION)).unwrap();
        let earlier = text.replace("2,", "1,").replace(",\n  \"compress\": \"zstd:7\"", "");
        assert_ne!(text.replace("2,", "1,"), earlier);
        fs::write(dir.path().join(DESCRIPTION), earlier).unwrap();
        assert_eq!(read().unwrap().compress, Method::Auto);
        let missing = Description::read(&held.make_directory("x").unwrap()).unwrap_err().to_string();
        assert!(missing.contains("not a store; make one with"), "{missing}");
        fs::remove_file(dir.path().join(DESCRIPTION)).unwrap();
        for part in ["image.1", "log"] {
            fs::write(dir.path().join(part), "").unwrap();
            let missing = read().unwrap_err().to_string();
            assert!(missing.contains("shoal.json: is missing") && missing.contains("`shoal salvage "), "{missing}");
            fs::remove_file(dir.path().join(part)).unwrap();
        }
    }
}
