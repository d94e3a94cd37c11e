//! Moving files to the tiers where their thresholds put them: in a whole store, or below a path in
//! it.
//!
//! A walk over the tree lists the misplaced files. Then files are moved in batches of about half a
//! second, so that a daemon answers other questions in between. Ctrl-C stops the command between
//! two files. Moved files are in their place, so the next command continues with the rest. Files
//! that leave memory go first, because they make room. Then files move into memory, shortest first,
//! so that as many as possible find room.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{Error, Fs, Ino, Misplaced, ROOT, Rebalanced as Done};

use crate::control::{self, Question};
use crate::{Progress, Store};

/// Files in a question, and how long the daemon works before it answers.
const BATCH: usize = 256;
const BATCH_TIME: Duration = Duration::from_millis(500);

/// A file or directory to rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    pub inode: u64,
    pub generation: u32,
    /// The threshold that its directory gives (0: the store's).
    pub threshold: u32,
    /// Bytes to move. 0: only the threshold is set.
    pub bytes: u64,
    pub to_memory: bool,
}

/// Result of rebalancing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebalanced {
    /// Misplaced files and directories that were handled.
    pub looked_at: u64,
    pub to_bulk: u64,
    pub to_bulk_bytes: u64,
    pub to_memory: u64,
    pub to_memory_bytes: u64,
    /// Files that found no room on the other tier.
    pub no_room: u64,
    /// Files with preallocated space, or longer than any threshold. They stay on their tier.
    pub stay: u64,
    /// Files that could not be read; `check` names them.
    pub unreadable: u64,
}

impl Rebalanced {
    fn add(&mut self, other: &Rebalanced) {
        self.looked_at += other.looked_at;
        self.to_bulk += other.to_bulk;
        self.to_bulk_bytes += other.to_bulk_bytes;
        self.to_memory += other.to_memory;
        self.to_memory_bytes += other.to_memory_bytes;
        self.no_room += other.no_room;
        self.stay += other.stay;
        self.unreadable += other.unreadable;
    }
}

/// Returns the misplaced files and directories at and below a path, in the order in which they are
/// to be moved.
pub fn misplaced(fs: &Fs, path: &Path) -> Outcome<Vec<Item>> {
    let name = path.as_os_str().as_bytes();
    let resolved = fs.resolve(name).during(path.display());
    let top = resolved.map_err(|failure| failure.remedy("name a path within the store"))?;
    let given = match path.parent() {
        Some(parent) if top != ROOT => {
            let directory = fs.resolve(parent.as_os_str().as_bytes()).during(path.display())?;
            fs.large().threshold_given(directory).during(path.display())?
        }
        _ => 0,
    };
    let is_directory = fs.getattr(top).during(path.display())?.mode >> 12 == 4;
    let (mut items, mut seen) = (Vec::new(), HashSet::new());
    look_at(fs, top, given, &mut items)?;
    let mut directories = if is_directory { vec![top] } else { Vec::new() };
    while let Some(directory) = directories.pop() {
        let mut files = Vec::new();
        let listed = fs.large().threshold_given(directory).and_then(|given| {
            fs.readdir(directory, 0, &mut |entry| {
                let is_dot = entry.name == b"." || entry.name == b"..";
                if matches!(entry.kind, 4 | 8) && !is_dot {
                    files.push((entry.ino, entry.kind == 4));
                }
                true
            })?;
            Ok(given)
        });
        let given = match listed {
            Ok(given) => given,
            // The directory was removed meanwhile, or is damaged. List what can be reached.
            Err(Error::Stale | Error::NotFound | Error::Corrupt(_)) => continue,
            Err(error) => return Err(error).during(path.display()),
        };
        for (ino, is_directory) in files {
            // A file with several names follows the directory that is reached first.
            if seen.insert(ino) {
                look_at(fs, ino, given, &mut items)?;
            }
            if is_directory {
                directories.push(ino);
            }
        }
    }
    items.sort_by_key(|item| (item.to_memory, if item.to_memory { item.bytes } else { 0 }));
    Ok(items)
}

fn look_at(fs: &Fs, ino: Ino, threshold: u32, items: &mut Vec<Item>) -> Outcome<()> {
    match fs.large().misplaced(ino, threshold) {
        Ok(None) | Err(Error::Stale | Error::Corrupt(_)) => Ok(()),
        Ok(Some(Misplaced { generation, bytes, to_memory })) => {
            items.push(Item { inode: ino.into(), generation, threshold, bytes, to_memory });
            Ok(())
        }
        Err(error) => Err(error).during("look at thresholds"),
    }
}

/// Moves the first of `items`, for about half a second but at least one of them.
pub fn rebalance(fs: &Fs, items: &[Item]) -> Outcome<Rebalanced> {
    let mut done = Rebalanced::default();
    let begin = Instant::now();
    for item in items {
        let ino = Ino::try_from(item.inode).during(format_args!("inode {}", item.inode))?;
        match fs.large().rebalance(ino, item.generation, item.threshold) {
            Ok(Done::InPlace) => {}
            Ok(Done::ToBulk) => {
                (done.to_bulk, done.to_bulk_bytes) = (done.to_bulk + 1, done.to_bulk_bytes + item.bytes)
            }
            Ok(Done::ToMemory) => {
                (done.to_memory, done.to_memory_bytes) = (done.to_memory + 1, done.to_memory_bytes + item.bytes);
            }
            Ok(Done::NoRoom) => done.no_room += 1,
            Ok(Done::Stays) => done.stay += 1,
            Err(Error::Corrupt(_) | Error::Io(_) | Error::Damaged { .. }) => done.unreadable += 1,
            Err(error) => return Err(error).during("rebalancing"),
        }
        done.looked_at += 1;
        if begin.elapsed() >= BATCH_TIME {
            break;
        }
    }
    Ok(done)
}

/// Moves misplaced files at and below a path of the store in `directory`. If the store is mounted,
/// its daemon does the work.
pub fn rebalance_below(directory: &Path, path: &Path, progress: &dyn Progress) -> Outcome<Rebalanced> {
    let question = Question::Misplaced { path: path.as_os_str().as_bytes().to_vec() };
    if let Some(items) = control::ask(directory, &question)? {
        let items: Vec<Item> = serde_json::from_value(items).during("answer of the daemon")?;
        return in_batches(&items, progress, &|batch| {
            let answer = control::ask(directory, &Question::Rebalance { items: batch.to_vec() })?;
            let answer = answer.ok_or_else(|| {
                Failure::new(directory.display(), "was unmounted meanwhile").remedy("mount it, and rebalance it again")
            })?;
            serde_json::from_value(answer).during("answer of the daemon")
        });
    }
    Store::at_rest(directory, |fs| in_batches(&misplaced(fs, path)?, progress, &|batch| rebalance(fs, batch)))
}

fn in_batches(
    items: &[Item],
    progress: &dyn Progress,
    work: &dyn Fn(&[Item]) -> Outcome<Rebalanced>,
) -> Outcome<Rebalanced> {
    let mut all = Rebalanced::default();
    progress.begin("files", items.len() as u64);
    let mut rest = items;
    while !rest.is_empty() {
        let done = work(&rest[..rest.len().min(BATCH)])?;
        // Advance by at least one item, so that a daemon that reports no work is not asked forever.
        rest = &rest[(done.looked_at.max(1) as usize).min(rest.len())..];
        all.add(&done);
        progress.at(all.looked_at);
    }
    progress.end();
    Ok(all)
}
