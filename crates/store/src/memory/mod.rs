//! The memory of a store: its kind, making and opening its media, and its promises.
//!
//! The properties of a kind are a row in `shoal_format::memory`. A module here makes and opens the
//! media of a kind, and [`means`] leads to that module. Everything else in this crate asks for
//! properties, never for a kind. Rules: opening creates nothing; the error for a missing part says
//! how to bring it back. Left out: bulk storage (`media`).

mod battery;
mod dax;
mod logged;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shoal_check::ImageSource;
use shoal_devices::{During, Failure, Outcome, uuid_text};
use shoal_format::memory::MemoryKind;
use shoal_format::superblock::{SUPERBLOCK_AT, Superblock};
use shoal_format::{FormatError, PAGE};
use shoal_host::{Access, Directory, FileLock, Identity, open_unlinked, remove_held};
use shoal_media::{ImageFile, LogDevice, PersistentMemory};

use crate::description::Description;

/// `--memory`, and the `memory` object of the store's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct MemoryChoice {
    kind: MemoryKind,
    /// The region's file; `None` for memory that has none.
    path: Option<PathBuf>,
}

/// The JSON form of [`MemoryChoice`].
#[derive(Serialize, Deserialize)]
struct Written {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
}

impl From<MemoryChoice> for Written {
    fn from(choice: MemoryChoice) -> Written {
        Written { kind: choice.kind.name().into(), path: choice.path }
    }
}

impl TryFrom<Written> for MemoryChoice {
    type Error = String;

    fn try_from(written: Written) -> Result<MemoryChoice, String> {
        let kind = MemoryKind::named(&written.kind).ok_or_else(|| format!("no memory is called `{}`", written.kind))?;
        if kind.properties().in_place != written.path.is_some() {
            return Err(format!("`{}` memory and its path do not go together", written.kind));
        }
        Ok(MemoryChoice { kind, path: written.path })
    }
}

impl FromStr for MemoryChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryChoice, String> {
        let (name, path) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        let written = Written { kind: name.into(), path: path.filter(|path| !path.is_empty()).map(PathBuf::from) };
        MemoryChoice::try_from(written)
            .ok()
            .filter(|choice| choice.path.is_some() == path.is_some())
            .ok_or_else(|| format!("write {}", MemoryChoice::forms()))
    }
}

impl MemoryChoice {
    /// DRAM, with its log and images in the store's directory.
    pub const LOGGED: MemoryChoice = MemoryChoice { kind: MemoryKind::Logged, path: None };

    /// Returns the ways to write each kind, for error messages.
    fn forms() -> String {
        let mut forms: Vec<String> = MemoryKind::all()
            .map(|kind| {
                if kind.properties().in_place {
                    format!("`{}=PATH`", kind.name())
                } else {
                    format!("`{}`", kind.name())
                }
            })
            .collect();
        let last = forms.pop().unwrap_or_default();
        format!("{} or {last}", forms.join(", "))
    }

    /// Returns the kind, as the superblock records it.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns the file behind the region, for memory that has one.
    pub fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// Returns how many bytes of a region this process may use at most. `None` unless control
    /// groups or limits leave it less memory than the machine has. The remaining memory is for the
    /// write-back cache, for operations under way, and for the kernel's pages of log and files.
    pub(crate) fn bytes_within_limit(&self) -> Option<u64> {
        let limit = shoal_host::memory_limit_bytes().filter(|_| self.kind.properties().images)?;
        Some((limit / 8 * 5).max(crate::format::MEMORY_BYTES_MIN))
    }

    /// Returns this choice with the path of the region's file, if any, made absolute.
    pub(crate) fn absolute(&self) -> std::io::Result<MemoryChoice> {
        let path = self.path.as_ref().map(std::path::absolute).transpose()?;
        Ok(MemoryChoice { kind: self.kind, path })
    }
}

/// Possible losses, by the kind of crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossBounds {
    /// The daemon is killed; the machine runs on.
    pub process_crash: String,
    pub power_loss: String,
    /// Possible losses after an fsync has returned.
    pub after_fsync: String,
}

impl LossBounds {
    /// Returns the bounds of a kind. `survives_power_loss` is false for `dax` memory whose file
    /// system refuses MAP_SYNC.
    pub fn of(kind: MemoryKind, survives_power_loss: bool) -> LossBounds {
        let Loss { power_loss, after_fsync } = (means(kind).loss)(survives_power_loss);
        LossBounds { process_crash: "nothing".into(), power_loss: power_loss.into(), after_fsync: after_fsync.into() }
    }
}

/// The media of a region, opened or made.
pub(crate) struct RegionMedia {
    pub memory: Arc<dyn PersistentMemory>,
    /// The log's files, for memory without a ring.
    pub log: Option<Arc<dyn LogDevice>>,
    pub images: Option<[Arc<dyn ImageFile>; 2]>,
    /// False if stores survive only a process crash, although the memory's kind promises more.
    pub survives_power_loss: bool,
}

/// The media of a region in the form that a checker takes.
pub(crate) struct RestingMedia {
    /// The region itself. `None` if there are only images and log.
    pub memory: Option<Arc<dyn PersistentMemory>>,
    pub log: Option<Arc<dyn LogDevice>>,
    pub images: Option<[Arc<dyn ImageFile>; 2]>,
    /// Why a mount would refuse these images.
    pub refused: Option<Failure>,
    /// Only a restore would use these images, and it accepts bulk devices of a later time.
    pub restored: bool,
}

impl RestingMedia {
    /// Returns the media to check: the region, or else its images.
    pub fn image(&self) -> Option<ImageSource<'_>> {
        match (&self.memory, &self.images) {
            (Some(memory), _) => Some(ImageSource::Memory(memory.as_ref())),
            (None, Some([first, second])) => Some(ImageSource::Images([first.as_ref(), second.as_ref()])),
            (None, None) => None,
        }
    }
}

/// Whether the saved image of `battery` memory is used even if it is incomplete, or if the region
/// there is unusable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restore {
    No,
    Asked,
    /// The image and the bulk devices were just written together: a copy.
    Copied,
}

/// The facts about a store that opening its memory's media needs.
pub(crate) struct Resting<'a> {
    pub directory: &'a Directory,
    /// The store's uuid, in words.
    pub uuid: &'a str,
    pub restore: Restore,
    /// The store was unmounted: no trace is left of a process that served it.
    pub unmounted: bool,
    pub description: &'a Description,
}

/// Remedy for a sound store that a later program wrote.
const LATER: &str = "a later version of shoal wrote it: use that one";

/// Returns true if a later program wrote the part that cannot be read.
fn is_later(error: &(dyn std::error::Error + 'static)) -> bool {
    let format = match error.downcast_ref() {
        Some(shoal_region::Error::Format(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    matches!(format, Some(FormatError::Features { .. } | FormatError::Version { .. }))
}

/// Returns the failure for a store whose media cannot be read.
pub(crate) fn damaged(directory: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    let (store, error) = (directory.display(), error.into());
    if is_later(&*error) {
        return Failure::new(format_args!("store {store}"), error).remedy(LATER);
    }
    if let Some(shoal_fs::Error::NoSpace(_)) = error.downcast_ref() {
        let remedy = "make room on the file systems that hold it, or mount it with `-o ro`";
        return Failure::new(format_args!("store {store}"), error).remedy(remedy);
    }
    let remedy = format!("`shoal check {store}` tells more, `shoal salvage {store} DIR` copies out what can be read");
    Failure::new(format_args!("store {store}"), error).remedy(remedy)
}

/// The region of a store that is to be replaced: open, locked, and proven to be that store's.
pub(crate) struct OwnRegion {
    path: PathBuf,
    file: FileLock,
}

impl OwnRegion {
    /// Finds the file at `path`, if it is the region of the store that this description made in
    /// this directory. The error says why it is not. `None`: the file does not exist. A copy of the
    /// directory has the same uuid, but its region is the original's.
    pub fn find(path: &Path, description: &Description, directory: &Directory) -> Outcome<Option<OwnRegion>> {
        let Some(own) = OwnRegion::with_uuid(path, &description.uuid)? else { return Ok(None) };
        description.refuse_foreign(path.display(), own.file.file().metadata().ok().map(|found| found.uid()))?;
        if !description.is_made_in(directory) {
            let cause =
                format!("the store that made it may be another one: {} was copied or moved", directory.display());
            return Err(Failure::new(path.display(), cause));
        }
        Ok(Some(own))
    }

    /// Finds the file at `path`, if it is the region of the store with this uuid, wherever that
    /// store is.
    pub fn with_uuid(path: &Path, uuid: &str) -> Outcome<Option<OwnRegion>> {
        let file = match open_unlinked(path, Access::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => FileLock::acquire(opened.map_err(Failure::of)?).map_err(|e| Failure::new(path.display(), e))?,
        };
        let mut page = [0; PAGE as usize];
        let read = file.file().read_exact_at(&mut page, SUPERBLOCK_AT);
        let superblock = read.map(|()| Superblock::decode(&page)).during(path.display())?;
        match superblock {
            Ok(found) if uuid_text(&found.uuid) == uuid => Ok(Some(OwnRegion { path: path.to_path_buf(), file })),
            Ok(found) => {
                Err(Failure::new(path.display(), format!("is the region of store {}", uuid_text(&found.uuid))))
            }
            Err(error) => Err(Failure::new(path.display(), error)),
        }
    }

    /// Returns true if this path leads to the region.
    pub fn is_at(&self, path: &Path) -> bool {
        Identity::at(path).is_ok_and(|found| Identity::of(self.file.file()).is_ok_and(|own| own == found))
    }

    /// Renames the region durably to a name beside its own, so that it can be put back.
    pub fn put_aside(self) -> Outcome<PathBuf> {
        let kept = aside(&self.path)?;
        tracing::warn!("{}: the region that was there is kept as {}", self.path.display(), kept.display());
        Ok(kept)
    }

    /// Removes the region durably. A region found beside a new image would be taken for the store.
    pub fn remove(self) -> Outcome<()> {
        let removed = remove_held(&self.path, self.file.file()).map_err(Failure::of)?;
        match (removed, self.path.parent()) {
            (true, Some(parent)) => Directory::open(parent).and_then(|parent| parent.sync()).map_err(Failure::of),
            _ => Ok(()),
        }
    }
}

/// Renames a region durably to a free name beside its own. Returns the name.
fn aside(path: &Path) -> Outcome<PathBuf> {
    let kept = (1..).map(|n| beside(path, &format!("old-{n}"))).find(|kept| !kept.exists()).unwrap_or_default();
    shoal_host::rename_to_new(path, &kept).map_err(Failure::of)?;
    if let Some(parent) = path.parent() {
        Directory::open(parent).and_then(|parent| parent.sync()).map_err(Failure::of)?;
    }
    Ok(kept)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

struct Loss {
    power_loss: &'static str,
    after_fsync: &'static str,
}

/// How the media of one kind of memory are handled. `path` is the region's file, for memory that has one.
struct Means {
    /// Makes the media of a new store in `directory`, with a region of `bytes` that is all zeros.
    make: fn(directory: &Directory, path: &Path, bytes: u64) -> Outcome<RegionMedia>,
    /// Opens the media for use, or for inspection without any change.
    open: fn(store: &Resting<'_>, path: &Path, access: Access) -> Outcome<RegionMedia>,
    /// Opens the media for the checker.
    rest: fn(store: &Resting<'_>, path: &Path) -> Outcome<RestingMedia>,
    /// Possible losses; its argument is [`RegionMedia::survives_power_loss`].
    loss: fn(survives_power_loss: bool) -> Loss,
}

fn means(kind: MemoryKind) -> &'static Means {
    match kind {
        MemoryKind::Logged => &logged::MEANS,
        MemoryKind::Battery => &battery::MEANS,
        MemoryKind::Dax => &dax::MEANS,
    }
}

impl MemoryChoice {
    fn region_file(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Creates the media of a new store in an empty directory. The region has `bytes`, all zeros.
    pub(crate) fn make_media(&self, directory: &Directory, bytes: u64) -> Outcome<RegionMedia> {
        (means(self.kind).make)(directory, self.region_file(), bytes)
    }

    /// Refuses a region that a foreign owner of the description could not have made. A missing
    /// region counts too: none is made on another user's word.
    fn refuse_foreign(&self, store: &Resting<'_>) -> Outcome<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let found = std::fs::symlink_metadata(path).ok();
        store.description.refuse_foreign(path.display(), found.map(|found| found.uid()))
    }

    /// Opens the region's media for use. With `read_only` they are only inspected.
    pub(crate) fn open_media(&self, store: &Resting<'_>, read_only: bool) -> Outcome<RegionMedia> {
        self.refuse_foreign(store)?;
        (means(self.kind).open)(store, self.region_file(), Access::reading(read_only))
    }

    /// Opens the region's media for the checker.
    pub(crate) fn media_at_rest(&self, store: &Resting<'_>) -> Outcome<RestingMedia> {
        self.refuse_foreign(store)?;
        (means(self.kind).rest)(store, self.region_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        assert_eq!("logged".parse(), Ok(MemoryChoice::LOGGED));
        let dax = MemoryChoice { kind: MemoryKind::Dax, path: Some("/mnt/pmem/r".into()) };
        assert_eq!("dax=/mnt/pmem/r".parse(), Ok(dax));
        for text in ["", "logged=/x", "logged=", "battery", "battery=", "ram"] {
            let error = text.parse::<MemoryChoice>().expect_err(text);
            assert_eq!(error, "write `logged`, `battery=PATH` or `dax=PATH`", "{text}");
        }
    }

    #[test]
    fn the_description_names_kind_and_path() {
        let json = serde_json::to_string(&"battery=/dev/shm/r".parse::<MemoryChoice>().unwrap()).unwrap();
        assert_eq!(json, r#"{"kind":"battery","path":"/dev/shm/r"}"#);
        assert_eq!(serde_json::to_string(&MemoryChoice::LOGGED).unwrap(), r#"{"kind":"logged"}"#);
        assert_eq!(serde_json::from_str::<MemoryChoice>(&json).unwrap().kind(), MemoryKind::Battery);
        for wrong in [r#"{"kind":"ram"}"#, r#"{"kind":"dax"}"#, r#"{"kind":"logged","path":"/r"}"#] {
            assert!(serde_json::from_str::<MemoryChoice>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_kind_says_what_may_be_lost() {
        for kind in MemoryKind::all() {
            let bounds = LossBounds::of(kind, true);
            assert_eq!(bounds.process_crash, "nothing", "{kind:?}");
            assert!(bounds.after_fsync.starts_with("nothing"), "{kind:?}");
        }
        assert!(LossBounds::of(MemoryKind::Dax, false).power_loss.starts_with("everything"));
    }
}
