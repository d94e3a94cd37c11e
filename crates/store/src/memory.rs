//! The kinds of memory a store can have, and what each promises.
//!
//! One place for the words `logged`, `battery` and `dax`: the option of `format`, the store's description file and
//! the promises `df` prints. How each is opened is in `store`.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shoal_format::superblock::MemoryKind;

/// `--memory`, and the `memory` object of the store's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "path", rename_all = "lowercase")]
pub enum MemoryChoice {
    Logged,
    Battery(PathBuf),
    Dax(PathBuf),
}

impl FromStr for MemoryChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<MemoryChoice, String> {
        match text.split_once('=') {
            None if text == "logged" => Ok(MemoryChoice::Logged),
            Some(("battery", path)) if !path.is_empty() => Ok(MemoryChoice::Battery(path.into())),
            Some(("dax", path)) if !path.is_empty() => Ok(MemoryChoice::Dax(path.into())),
            _ => Err("write `logged`, `battery=PATH` or `dax=PATH`".into()),
        }
    }
}

impl MemoryChoice {
    /// As the superblock has it.
    pub fn kind(&self) -> MemoryKind {
        match self {
            MemoryChoice::Logged => MemoryKind::Logged,
            MemoryChoice::Battery(_) => MemoryKind::Battery,
            MemoryChoice::Dax(_) => MemoryKind::Dax,
        }
    }

    /// The file behind the region, for memory that has one.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            MemoryChoice::Logged => None,
            MemoryChoice::Battery(path) | MemoryChoice::Dax(path) => Some(path),
        }
    }
}

/// What may be lost, by what happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossBounds {
    /// The daemon is killed; the machine runs on.
    pub process_crash: String,
    pub power_loss: String,
    /// Of what an fsync has returned for.
    pub after_fsync: String,
}

impl LossBounds {
    /// `survives_power_loss` is false for `dax` memory whose file system refuses MAP_SYNC.
    pub fn of(kind: MemoryKind, survives_power_loss: bool) -> LossBounds {
        let (power_loss, after_fsync) = match kind {
            MemoryKind::Logged => ("at most the last second", "nothing"),
            MemoryKind::Battery => (
                "while the battery holds at most the last second of large files, else all since the last saved image",
                "nothing while the battery holds",
            ),
            MemoryKind::Dax if survives_power_loss => {
                ("nothing of metadata and small files, at most the last second of large files", "nothing")
            }
            MemoryKind::Dax => ("everything: the memory's file system refuses MAP_SYNC", "nothing but by a power loss"),
        };
        LossBounds { process_crash: "nothing".into(), power_loss: power_loss.into(), after_fsync: after_fsync.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        assert_eq!("logged".parse(), Ok(MemoryChoice::Logged));
        assert_eq!("dax=/mnt/pmem/r".parse(), Ok(MemoryChoice::Dax("/mnt/pmem/r".into())));
        for text in ["", "logged=/x", "battery", "battery=", "ram"] {
            assert!(text.parse::<MemoryChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_description_names_kind_and_path() {
        let json = serde_json::to_string(&MemoryChoice::Battery("/dev/shm/r".into())).unwrap();
        assert_eq!(json, r#"{"kind":"battery","path":"/dev/shm/r"}"#);
        assert_eq!(serde_json::to_string(&MemoryChoice::Logged).unwrap(), r#"{"kind":"logged"}"#);
        assert_eq!(serde_json::from_str::<MemoryChoice>(&json).unwrap().kind(), MemoryKind::Battery);
    }
}
