//! Which memory a store has: a kind and, for memory that has one, the file of its region.
//!
//! Owns the words of `--memory` and the `memory` object of the description. The properties of a kind are in
//! `shoal_format::memory`.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shoal_format::memory::MemoryKind;

/// `--memory`, and the `memory` object of the store's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct MemoryChoice {
    kind: MemoryKind,
    /// The region's file; `None` for memory that has none.
    path: Option<PathBuf>,
}

/// [`MemoryChoice`] as it is written in JSON.
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

    /// How each kind is written, for error messages.
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

    /// The kind, as in the superblock.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The file behind the region, for memory that has one.
    pub fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// The same memory with the region's file at an absolute path, if there is one.
    pub(crate) fn absolute(&self) -> std::io::Result<MemoryChoice> {
        let path = self.path.as_ref().map(std::path::absolute).transpose()?;
        Ok(MemoryChoice { kind: self.kind, path })
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
}
