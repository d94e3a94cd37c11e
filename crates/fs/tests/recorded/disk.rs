//! The states that a host file system may be in after a power loss, given the calls that were made
//! (docs/design/testing.md, T12).
//!
//! The model promises as little as POSIX. A write, resize or allocation is durable when a sync of
//! its file that began after it has ended. A name (created, renamed, removed) is durable when a
//! sync of its directory that began after it has ended. Syncing a file says nothing about its name.
//! Until then any subset of a file's changes may be there, with writes torn at 512 bytes, and any
//! prefix of a directory's changes. A process crash leaves everything.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use shoal_host::recorder::{Event, FileId, Synced};
use shoal_sim::Random;

const SECTOR: usize = 512;
const PAGE: usize = 4096;

#[derive(Clone, Debug)]
enum Change {
    Write { at: u64, bytes: Vec<u8> },
    Resize(u64),
    Zero { at: u64, len: u64 },
}

#[derive(Clone, Default)]
struct FileState {
    durable: Vec<u8>,
    pending: Vec<(u64, Change)>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Add(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl NameChange {
    fn directory(&self) -> &Path {
        let (NameChange::Add(path, _) | NameChange::Rename(path, _) | NameChange::Remove(path)) = self;
        path.parent().expect("a file lies in a directory")
    }
}

type Names = BTreeMap<PathBuf, usize>;

/// How much of the data and names that are not durable a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process ended: everything is there.
    Nothing,
    /// Power failed: changes of files are lost, and names are kept. The next two lose names, or
    /// both.
    Data,
    Names,
    Both,
    /// Any subset of the changes, from this seed.
    Some(u64),
}

/// The files below one directory, after any number of events.
#[derive(Clone, Default)]
pub struct Disk {
    files: Vec<FileState>,
    ids: HashMap<FileId, usize>,
    names: Names,
    pending_names: Vec<(u64, NameChange)>,
    syncs: HashMap<u64, (u64, Synced)>,
    time: u64,
}

impl Disk {
    /// Returns the files below `root` as they are now, all of them durable.
    pub fn at_rest(root: &Path) -> Disk {
        let mut disk = Disk::default();
        let mut directories = vec![root.to_path_buf()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).expect("the store's directory is readable") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                let id = FileId::of(&File::open(&path).expect("a file of the store"));
                disk.ids.insert(id, disk.files.len());
                disk.names.insert(path.clone(), disk.files.len());
                disk.files.push(FileState { durable: fs::read(&path).expect("its bytes"), pending: Vec::new() });
            }
        }
        disk
    }

    fn change(&mut self, file: &FileId, change: Change) {
        // Ignore files in other tests' directories.
        if let Some(&index) = self.ids.get(file) {
            self.files[index].pending.push((self.time, change));
        }
    }

    pub fn apply(&mut self, event: &Event) {
        self.time += 1;
        match event {
            Event::Created { file, path } => {
                self.ids.insert(*file, self.files.len());
                self.pending_names.push((self.time, NameChange::Add(path.clone(), self.files.len())));
                self.files.push(FileState::default());
            }
            Event::Written { file, at, bytes, .. } => {
                self.change(file, Change::Write { at: *at, bytes: bytes.clone() })
            }
            Event::Resized { file, bytes } => self.change(file, Change::Resize(*bytes)),
            Event::Allocated { file, at, len, zeroes, keeps_len } => {
                if *zeroes {
                    self.change(file, Change::Zero { at: *at, len: *len });
                }
                if !keeps_len {
                    // An allocation may lengthen a file but never shortens it.
                    self.change(file, Change::Write { at: at + len, bytes: Vec::new() });
                }
            }
            Event::Renamed { from, to } => {
                self.pending_names.push((self.time, NameChange::Rename(from.clone(), to.clone())));
            }
            Event::Removed { path } => self.pending_names.push((self.time, NameChange::Remove(path.clone()))),
            Event::SyncBegun { sync, what } => drop(self.syncs.insert(*sync, (self.time, what.clone()))),
            Event::SyncEnded { sync } => {
                let Some((begun, what)) = self.syncs.remove(sync) else { return };
                match what {
                    Synced::File(id) => {
                        let Some(&index) = self.ids.get(&id) else { return };
                        let file = &mut self.files[index];
                        let covered = file.pending.partition_point(|(time, _)| *time < begun);
                        for (_, change) in file.pending.drain(..covered) {
                            perform(&mut file.durable, &change);
                        }
                    }
                    Synced::Directory(path) => {
                        let (covered, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending_names)
                            .into_iter()
                            .partition(|(time, change)| *time < begun && change.directory() == path);
                        self.pending_names = rest;
                        covered.iter().for_each(|(_, change)| rename(&mut self.names, change));
                    }
                }
            }
            Event::Mark(_) => {}
        }
    }

    /// Returns whether everything is durable, so that a power loss now would be like a process
    /// crash.
    pub fn is_settled(&self) -> bool {
        self.pending_names.is_empty() && self.files.iter().all(|file| file.pending.is_empty())
    }

    /// Writes what a crash leaves of the files below `from` into the empty directory `to`.
    pub fn leave(&self, loss: Loss, from: &Path, to: &Path) {
        let mut random = Random::new(if let Loss::Some(seed) = loss { seed } else { 0 });
        let mut names = self.names.clone();
        let kept = match loss {
            Loss::Nothing | Loss::Data => self.pending_names.len(),
            Loss::Names | Loss::Both => 0,
            Loss::Some(_) => random.below(self.pending_names.len() as u64 + 1) as usize,
        };
        self.pending_names[..kept].iter().for_each(|(_, change)| rename(&mut names, change));
        for (path, &index) in &names {
            let file = &self.files[index];
            let bytes = match file.pending.is_empty() {
                true => Cow::Borrowed(&file.durable),
                false => Cow::Owned(contents(file, loss, &mut random)),
            };
            let path = to.join(path.strip_prefix(from).expect("a path below the store"));
            write_sparse(&path, &bytes);
        }
    }
}

fn contents(file: &FileState, loss: Loss, random: &mut Random) -> Vec<u8> {
    let mut bytes = file.durable.clone();
    for (_, change) in &file.pending {
        match (loss, change) {
            (Loss::Nothing | Loss::Names, _) => perform(&mut bytes, change),
            (Loss::Data | Loss::Both, _) => {}
            (Loss::Some(_), Change::Write { at, bytes: written }) if written.len() > SECTOR => {
                // Most writes are there or not as a whole; some are torn.
                let (all, torn) = (random.below(2) == 0, random.below(4) == 0);
                let mut start = 0;
                while start < written.len() {
                    let end = (((*at as usize + start) / SECTOR + 1) * SECTOR - *at as usize).min(written.len());
                    if if torn { random.below(2) == 0 } else { all } {
                        let part = Change::Write { at: at + start as u64, bytes: written[start..end].to_vec() };
                        perform(&mut bytes, &part);
                    }
                    start = end;
                }
            }
            (Loss::Some(_), change) => {
                if random.below(2) == 0 {
                    perform(&mut bytes, change);
                }
            }
        }
    }
    bytes
}

fn perform(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { at, bytes: written } => {
            let end = *at as usize + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at as usize..end].copy_from_slice(written);
        }
        Change::Resize(len) => bytes.resize(*len as usize, 0),
        Change::Zero { at, len } => {
            let end = bytes.len().min((at + len) as usize);
            if (*at as usize) < end {
                bytes[*at as usize..end].fill(0);
            }
        }
    }
}

fn rename(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Add(path, file) => drop(names.insert(path.clone(), *file)),
        NameChange::Rename(from, to) => {
            // The creation of the name may not be among the changes kept. A prefix in order has it.
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        NameChange::Remove(path) => drop(names.remove(path)),
    }
}

fn write_sparse(path: &Path, bytes: &[u8]) {
    let file = File::create(path).expect("a scratch file");
    file.set_len(bytes.len() as u64).expect("its length");
    for (page, part) in bytes.chunks(PAGE).enumerate() {
        if part.iter().any(|&b| b != 0) {
            file.write_all_at(part, (page * PAGE) as u64).expect("its bytes");
        }
    }
}
