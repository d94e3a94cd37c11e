//! The file systems that an experiment compares.
//!
//! Owns: [`Labelled`], a directory and its label as given on the command line; [`Place`], one of
//! them or the engine in this process; [`Kind`], the type of a directory's file system, by its
//! magic number; the table of places; [`write_back`]. Rules: the figures state what each place keeps when the
//! machine fails, because a file system that promises nothing has less to do. Left out: making and
//! mounting them.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::experiment::LabError;
use crate::report::Table;

/// `LABEL=DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    pub label: String,
    pub directory: PathBuf,
}

impl FromStr for Labelled {
    type Err = String;

    fn from_str(text: &str) -> Result<Labelled, String> {
        match text.split_once('=') {
            Some((label, directory)) if !label.is_empty() && !directory.is_empty() => {
                Ok(Labelled { label: label.into(), directory: directory.into() })
            }
            _ => Err("not of the form LABEL=DIR".into()),
        }
    }
}

impl fmt::Display for Labelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.label, self.directory.display())
    }
}

/// Kinds of file systems that matter for the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The engine in this process, on memory that it treats as battery-backed.
    Engine,
    Tmpfs,
    Ramfs,
    /// ext2, ext3 or ext4.
    Ext,
    Xfs,
    Btrfs,
    Fuse,
    Other,
}

impl Kind {
    /// Returns the kind for an `f_type` of statfs(2).
    fn of(magic: u64) -> Kind {
        match magic {
            0x0102_1994 => Kind::Tmpfs,
            0x8584_58f6 => Kind::Ramfs,
            0xef53 => Kind::Ext,
            0x5846_5342 => Kind::Xfs,
            0x9123_683e => Kind::Btrfs,
            0x6573_5546 => Kind::Fuse,
            _ => Kind::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Engine => "no mount",
            Kind::Tmpfs => "tmpfs",
            Kind::Ramfs => "ramfs",
            Kind::Ext => "ext",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Fuse => "fuse",
            Kind::Other => "other",
        }
    }

    /// Returns whether everything is in memory and vanishes with it.
    pub fn is_memory(self) -> bool {
        matches!(self, Kind::Tmpfs | Kind::Ramfs)
    }

    /// Describes what survives a failure of the machine: of files that were not synced, and of
    /// files that were.
    pub fn survives(self) -> &'static str {
        match self {
            Kind::Engine => "all that returned, if its memory keeps",
            Kind::Tmpfs | Kind::Ramfs => "nothing",
            Kind::Ext | Kind::Xfs | Kind::Btrfs => "what was synced; else up to 30 s are lost",
            Kind::Fuse => "what its daemon promises",
            Kind::Other => "not known",
        }
    }
}

/// A place where a benchmark runs.
#[derive(Clone, Debug)]
pub struct Place {
    pub label: String,
    pub kind: Kind,
    /// For the engine in this process: where it may keep large files.
    pub directory: Option<PathBuf>,
}

impl Place {
    pub fn engine() -> Place {
        Place { label: "shoal, in this process".into(), kind: Kind::Engine, directory: None }
    }

    pub fn at(labelled: &Labelled) -> Result<Place, LabError> {
        let found = rustix::fs::statfs(&labelled.directory).map_err(|error| LabError::Broken {
            what: format!("--at {labelled}"),
            why: format!("{error}; give a directory that exists"),
        })?;
        Ok(Place {
            label: labelled.label.clone(),
            kind: Kind::of(found.f_type as u64 & u64::from(u32::MAX)),
            directory: Some(labelled.directory.clone()),
        })
    }

    /// Returns whether this is Shoal in any form. The label decides, because a FUSE mount does not
    /// show its owner.
    pub fn is_shoal(&self) -> bool {
        self.label.contains("shoal")
    }
}

/// Tabulates the places and what they keep.
pub fn table(places: &[Place]) -> Table {
    let mut table = Table::new(
        "places",
        "File systems, and what is there after the machine failed",
        &["place", "kind", "survives"],
    );
    for place in places {
        table.push(vec![place.label.as_str().into(), place.kind.name().into(), place.kind.survives().into()]);
    }
    table
}

/// Writes all data that a place has not yet written. A FUSE mount does not receive `syncfs`, but
/// does receive an fsync.
pub fn write_back(directory: &Path) -> Result<(), LabError> {
    let write = || {
        let place = File::open(directory)?;
        rustix::fs::syncfs(&place)?;
        place.sync_all()
    };
    write()
        .map_err(|error| LabError::Broken { what: format!("sync of {}", directory.display()), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_a_label_and_a_directory() {
        let place: Labelled = "shoal=/mnt/a=b".parse().unwrap();
        assert_eq!((place.label.as_str(), place.directory.to_str()), ("shoal", Some("/mnt/a=b")));
        assert_eq!(place.to_string(), "shoal=/mnt/a=b");
        for wrong in ["/mnt", "=/mnt", "shoal=", ""] {
            assert!(wrong.parse::<Labelled>().is_err(), "{wrong}");
        }
        let error = Place::at(&"x=/nowhere".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("x=/nowhere") && error.contains("give a directory"), "{error}");
    }

    #[test]
    fn a_directory_in_memory_is_known_as_such() {
        if std::path::Path::new("/dev/shm").is_dir() {
            let place = Place::at(&"t=/dev/shm".parse().unwrap()).unwrap();
            assert_eq!((place.kind, place.kind.is_memory()), (Kind::Tmpfs, true));
        }
        assert!(!Place::at(&"p=/proc".parse().unwrap()).unwrap().kind.is_memory());
    }
}
