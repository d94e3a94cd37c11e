//! The profiles for packing a store's inodes: files of `shoal profile` given to `format`, and their
//! description in a report.
//!
//! Rules: a file is read, and refused if necessary, before any part of a store is made. An error
//! names the file and the remedy. Left out: where a store keeps its profiles (the file system's).

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_format::FormatError;
use shoal_fs::{Fs, PROFILES_MAX, ProfileFile, STORE_PROFILES_BYTES};

/// A longer file (bytes) is no profile, whatever it begins with.
const FILE_BYTES_MAX: u64 = 8 << 20;
const MAKE_ONE: &str = "make one with `shoal profile --out FILE DIR`";

/// The profiles of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeProfiles {
    /// They are the built-in profiles of the program.
    pub built_in: bool,
    pub profiles: usize,
    /// The commands that made them, one line for each file.
    pub comment: String,
}

impl InodeProfiles {
    /// Returns the profiles that the store has, or will get when its first inodes are packed.
    pub fn of(fs: &Fs) -> InodeProfiles {
        InodeProfiles::new(fs.compacting().inode_profiles().as_ref())
    }

    /// Returns the profiles in `file`, or the built-in ones.
    pub(crate) fn new(file: Option<&ProfileFile>) -> InodeProfiles {
        let built_in = ProfileFile::built_in().of_store();
        let file = file.unwrap_or(&built_in);
        let is_built_in = file.to_bytes() == built_in.to_bytes();
        InodeProfiles { built_in: is_built_in, profiles: file.profiles.len(), comment: file.comment.clone() }
    }

    /// Describes the profiles in one line. A comment is text of an arbitrary file, so control
    /// characters are removed.
    pub fn text(&self) -> String {
        let lines = self.comment.lines().map(|line| line.chars().filter(|c| !c.is_control()).collect::<String>());
        match self.built_in {
            true => format!("{}, built in", self.profiles),
            false => format!("{}, of {}", self.profiles, lines.collect::<Vec<_>>().join("; ")),
        }
    }
}

/// Joins the profiles of these files in the form that a store takes. `None` without files.
pub(crate) fn read(paths: &[PathBuf]) -> Outcome<Option<ProfileFile>> {
    if paths.is_empty() {
        return Ok(None);
    }
    let files: Vec<ProfileFile> = paths.iter().map(|path| read_one(path)).collect::<Outcome<_>>()?;
    let joined = ProfileFile::join(files);
    let refuse = |cause: String| Err(Failure::new("--profile", cause).remedy("give fewer files").misuse());
    if joined.profiles.len() > PROFILES_MAX {
        return refuse(format!("{} profiles; a store takes {PROFILES_MAX}", joined.profiles.len()));
    }
    let bytes = joined.to_bytes().len();
    if bytes > STORE_PROFILES_BYTES {
        return refuse(format!("profiles of {bytes} bytes; a store takes {}", human(STORE_PROFILES_BYTES as u64)));
    }
    Ok(Some(joined))
}

fn read_one(path: &Path) -> Outcome<ProfileFile> {
    let what = || format!("profile {}", path.display());
    let refused = |cause: String, remedy: &str| Err(Failure::new(what(), cause).remedy(remedy));
    let mut bytes = Vec::new();
    let opened = File::open(path).during(what())?;
    opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).during(what())?;
    let file = match ProfileFile::from_bytes(&bytes) {
        _ if bytes.len() as u64 > FILE_BYTES_MAX => return refused("is too long for a profile".into(), MAKE_ONE),
        Ok(file) => file.of_store(),
        Err(FormatError::Short { .. } | FormatError::Magic { .. }) => return refused("is no profile".into(), MAKE_ONE),
        Err(FormatError::Version { expected, found, .. }) => {
            let cause = format!("has version {found}; this program knows version {expected}");
            return refused(cause, "make it again with this program's `shoal profile`");
        }
        Err(error) => return refused(format!("is damaged: {error}"), "make it again with `shoal profile`"),
    };
    if file.profiles.is_empty() {
        return refused("has tables of the paper's compressors only, not of Shoal's own".into(), MAKE_ONE);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_profiles_are_refused_by_name_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let whole = ProfileFile::built_in().to_bytes();
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            bytes
        };
        let none = ProfileFile { comment: "x".into(), profiles: Vec::new() };
        for (name, bytes, cause, remedy) in [
            ("empty", Vec::new(), "is no profile", "shoal profile --out"),
            ("other", vec![7; 4000], "is no profile", "shoal profile --out"),
            (
                "newer",
                changed(8, 2),
                "has version 2; this program knows version 1",
                "make it again with this program's",
            ),
            ("damaged", changed(200, whole[200] ^ 4), "is damaged: ", "make it again with `shoal profile`"),
            ("cut", whole[..900].to_vec(), "is damaged: ", "make it again with `shoal profile`"),
            ("none", none.to_bytes(), "not of Shoal's own", "shoal profile --out"),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = read(&[path]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(cause) && error.contains(remedy), "{error}");
        }
        let error = read(&[dir.path().join("absent")]).unwrap_err().to_string();
        assert!(error.contains("absent") && error.contains("check the path"), "{error}");
        assert!(read(&[PathBuf::from("/dev/zero")]).unwrap_err().to_string().contains("too long"));
        assert!(read(&[]).unwrap().is_none());
        let path = dir.path().join("whole");
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(read(&vec![path.clone(); 8]).unwrap().unwrap().profiles.len(), 16);
        let long = dir.path().join("long");
        let comment = "a".repeat(60_000);
        std::fs::write(&long, ProfileFile { comment, ..ProfileFile::built_in() }.to_bytes()).unwrap();
        let error = read(&[vec![long; 2], vec![path.clone(); 5]].concat()).unwrap_err().to_string();
        assert!(error.contains("profiles of 1") && error.contains("a store takes 112 KiB"), "{error}");
        let error = read(&vec![path; 9]).unwrap_err();
        assert!(error.is_misuse() && error.to_string().contains("18 profiles; a store takes 16"), "{error}");
    }

    #[test]
    fn a_report_is_one_line_without_control_characters() {
        let mut own = ProfileFile::built_in().of_store();
        own.comment = "shoal profile /a\x1b[2J\nshoal profile /b\n".into();
        assert_eq!(InodeProfiles::new(Some(&own)).text(), "2, of shoal profile /a[2J; shoal profile /b");
        assert_eq!(InodeProfiles::new(None).text(), "2, built in");
    }
}
