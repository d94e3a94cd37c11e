//! Reports on what packing saves, in a store or a tree in it, and packing on request.
//!
//! Files are packed in batches, so that a daemon answers other questions in between and its caller
//! sees progress.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{Error, FORMS, Fs, Ino, PackingCounts, PackingReport, Share};

use crate::control::{self, Question};
use crate::{Progress, Store};

/// Files in a batch.
const BATCH: usize = 256;

/// Sizes of small files, raw and in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Bytes of small files.
    pub raw_bytes: u64,
    /// Bytes that they occupy.
    pub stored_bytes: u64,
    /// Both sizes for each form in use.
    pub forms: Vec<PackedForm>,
}

/// Files of one form; of longer files, their groups of 128 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedForm {
    /// `plain`, `checksum` (plain with a checksum), `stored`, `lz4`, `zstd` or `zstd+dict`.
    pub form: String,
    pub groups: u64,
    pub raw_bytes: u64,
    pub stored_bytes: u64,
}

/// Memory that inodes and directory entries occupy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    pub inodes: u64,
    pub inode_bytes: u64,
    pub entries: u64,
    pub entry_bytes: u64,
    /// Dictionaries for packing short files, and the bytes of both copies of each.
    pub dictionaries: u64,
    pub dictionary_bytes: u64,
}

impl Packed {
    pub fn of(report: &PackingReport) -> Packed {
        let Share { bytes, stored, .. } = report.all();
        let form = |(form, share): (shoal_fs::Form, &Share)| PackedForm {
            form: form.name().into(),
            groups: share.groups,
            raw_bytes: share.bytes,
            stored_bytes: share.stored,
        };
        let used = FORMS.into_iter().zip(&report.forms).filter(|(_, share)| share.groups > 0);
        Packed { raw_bytes: bytes, stored_bytes: stored, forms: used.map(form).collect() }
    }

    /// Returns the stored bytes in percent of the raw bytes. `None` if there are no raw bytes.
    pub fn percent(&self) -> Option<u64> {
        (self.raw_bytes > 0).then(|| (self.stored_bytes * 100).div_ceil(self.raw_bytes))
    }
}

impl Metadata {
    pub fn of(report: &PackingReport) -> Metadata {
        let &PackingReport { inodes, inode_bytes, entries, entry_bytes, dictionaries, dictionary_bytes, .. } = report;
        Metadata { inodes, inode_bytes, entries, entry_bytes, dictionaries, dictionary_bytes }
    }
}

/// What packing has done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackingWork {
    /// Bytes of files that were packed, and of files that a change unpacked again.
    pub packed_bytes: u64,
    pub unpacked_bytes: u64,
    pub packed_inodes: u64,
    pub unpacked_inodes: u64,
    /// Log bytes written by packing and by unpacking.
    pub packing_log_bytes: u64,
    pub unpacking_log_bytes: u64,
}

impl From<PackingCounts> for PackingWork {
    fn from(of: PackingCounts) -> PackingWork {
        PackingWork {
            packed_bytes: of.packed_bytes,
            unpacked_bytes: of.unpacked_bytes,
            packed_inodes: of.packed_inodes,
            unpacked_inodes: of.unpacked_inodes,
            packing_log_bytes: of.packing_log_bytes,
            unpacking_log_bytes: of.unpacking_log_bytes,
        }
    }
}

/// Result of a packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compacted {
    /// In an answer to [`control::Question::Pack`] this includes directories.
    pub files: u64,
    /// Bytes of the packed files before and after.
    pub before_bytes: u64,
    pub after_bytes: u64,
    /// Files that were being changed.
    pub busy: u64,
    /// Files that could not be packed for lack of room. A full store is compacted all the same.
    #[serde(default)]
    pub no_room: u64,
}

/// Regular files, each listed once, and directories.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Below {
    pub files: Vec<u64>,
    pub directories: Vec<u64>,
}

/// Returns the regular files and directories at and below a path.
pub fn below(fs: &Fs, path: &Path) -> Outcome<Below> {
    let resolved = fs.resolve(path.as_os_str().as_bytes()).during(path.display());
    let ino = resolved.map_err(|failure| failure.remedy("name a path within the store"))?;
    let attr = fs.getattr(ino).during(path.display())?;
    let (mut below, mut directories, mut seen) = (Below::default(), Vec::new(), HashSet::new());
    match attr.mode >> 12 {
        4 => directories.push(ino),
        8 => below.files.push(ino.into()),
        _ => {}
    }
    while let Some(directory) = directories.pop() {
        below.directories.push(directory.into());
        let listed = fs.readdir(directory, 0, &mut |entry| {
            match entry.kind {
                4 if entry.name != b"." && entry.name != b".." => directories.push(entry.ino),
                8 if seen.insert(entry.ino) => below.files.push(entry.ino.into()),
                _ => {}
            }
            true
        });
        match listed {
            // The directory was removed meanwhile, or is damaged. List what can be reached.
            Ok(()) | Err(Error::Stale | Error::NotFound | Error::Corrupt(_)) => {}
            Err(error) => return Err(error).during(path.display()),
        }
    }
    Ok(below)
}

/// Packs files and directories now.
pub fn pack(fs: &Fs, files: &[u64]) -> Outcome<Compacted> {
    let mut compacted = Compacted::default();
    let files: Vec<Ino> = files.iter().filter_map(|&file| Ino::try_from(file).ok()).collect();
    match fs.cooling().consider_dictionary(&files) {
        Ok(_) | Err(Error::NoSpace(_)) => {}
        Err(error) => return Err(error).during("training of a dictionary"),
    }
    for &ino in &files {
        match fs.cooling().pack_now(ino) {
            Ok(done) => {
                compacted.files += 1;
                compacted.before_bytes += done.before;
                compacted.after_bytes += done.after;
                compacted.busy += u64::from(done.busy > 0);
            }
            // The file was removed meanwhile, or is damaged; `check` names damaged ones.
            Err(Error::Stale | Error::Corrupt(_)) => {}
            Err(Error::NoSpace(_)) => compacted.no_room += 1,
            Err(error) => return Err(error).during("packing"),
        }
    }
    if files.is_empty() {
        // Compaction ends with the first pass that gains nothing.
        fs.compacting().compact().during("compaction")?;
        // Moving data unpacks inodes.
        fs.compacting().pack_inodes_now().during("packing of inodes")?;
    }
    Ok(compacted)
}

/// Returns the number of files at and below a path, and their sizes.
pub fn packed_below(fs: &Fs, path: &Path) -> Outcome<(u64, Packed)> {
    let files = below(fs, path)?.files;
    let mut all = PackingReport::default();
    for &file in &files {
        let of_file = Ino::try_from(file).ok().and_then(|ino| fs.cooling().packing_of(ino).ok());
        if let Some(report) = of_file {
            all.forms.iter_mut().zip(report.forms).for_each(|(all, share)| *all += share);
        }
    }
    Ok((files.len() as u64, Packed::of(&all)))
}

/// Packs all files and directories at and below a path of the store in `directory` now, and
/// compacts its memory. If the store is mounted, its daemon does the work.
pub fn compact(directory: &Path, path: &Path, progress: &dyn Progress) -> Outcome<Compacted> {
    let question = Question::Files { path: path.as_os_str().as_bytes().to_vec() };
    if let Some(files) = control::ask(directory, &question)? {
        let below: Below = serde_json::from_value(files).during("answer of the daemon")?;
        return in_batches(&below, progress, &|batch| {
            let answer = control::ask(directory, &Question::Pack { files: batch.to_vec() })?;
            let answer = answer.ok_or_else(|| Failure::new(directory.display(), "was unmounted meanwhile"))?;
            serde_json::from_value(answer).during("answer of the daemon")
        });
    }
    Store::at_rest(directory, |fs| in_batches(&below(fs, path)?, progress, &|batch| pack(fs, batch)))
}

fn in_batches(
    Below { files, directories }: &Below,
    progress: &dyn Progress,
    pack: &dyn Fn(&[u64]) -> Outcome<Compacted>,
) -> Outcome<Compacted> {
    let mut all = Compacted::default();
    progress.begin("files", files.len() as u64);
    let others = directories.chunks(BATCH).chain([&[][..]]).map(|batch| (batch, false));
    for (batch, is_of_files) in files.chunks(BATCH).map(|batch| (batch, true)).chain(others) {
        let done = pack(batch)?;
        all.files += if is_of_files { done.files } else { 0 };
        all.before_bytes += done.before_bytes;
        all.after_bytes += done.after_bytes;
        all.busy += done.busy;
        all.no_room += done.no_room;
        progress.at(all.files);
    }
    progress.end();
    Ok(all)
}
