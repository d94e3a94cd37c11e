//! The user of a store: its lock, its process, and whether an earlier process was interrupted.
//!
//! Rules: a process that opens media holds the lock. A process that serves a store for writing
//! notes its process id with the period in which that id counts, and removes the note when the
//! store is clean.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use shoal_devices::{During, Failure, Outcome, parse_uuid};
use shoal_host::{Access, Directory, StoreLock};

use crate::names::{LOCK, LOG, PID};

/// What happened while the store was mounted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct WentDown {
    /// The machine or the log's file system went down.
    pub machine: bool,
    /// Bulk storage is in another place now.
    pub bulk_moved: bool,
}

/// Tells what the serving process's note says of the time when the store was mounted. Bulk storage
/// counts if it is the file `bulk`. The note is not synced: a store without one is clean or lost
/// the note in a power loss, so it counts as having gone down. An incomplete note counts as both.
pub(crate) fn what_went_down(directory: &Directory, bulk: Option<PathBuf>) -> WentDown {
    let went_down = |machine, bulk_moved| WentDown { machine, bulk_moved };
    let Some(text) = directory.read_text(PID) else { return went_down(true, false) };
    let Some(then) = text.lines().nth(1).and_then(parse_uuid) else { return went_down(true, true) };
    let now = period(directory, bulk).unwrap_or_default();
    // Earlier versions noted only the boot.
    if shoal_host::boot_id().is_ok_and(|boot| boot == then) {
        return went_down(false, false);
    }
    went_down(now[..8] != then[..8], now[8..] != then[8..])
}

/// Returns true if [`what_went_down`] reports either of the two.
pub(crate) fn power_was_lost(directory: &Directory, bulk: Option<PathBuf>) -> bool {
    let WentDown { machine, bulk_moved } = what_went_down(directory, bulk);
    machine || bulk_moved
}

/// Takes the lock of a store's directory.
pub(crate) fn lock(directory: &Directory) -> Outcome<StoreLock> {
    StoreLock::acquire(directory).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Failure::of(error),
        _ => Failure::new(format_args!("store {}", directory.display()), error),
    })
}

/// Returns true if another process uses the store. Asking leaves no trace. Fails where that cannot
/// be determined.
pub fn is_in_use(directory: &Path) -> io::Result<bool> {
    StoreLock::is_held(&Directory::open(directory)?)
}

/// Returns the process that serves the store for writing, or died doing so.
pub fn writer(directory: &Path) -> Option<u32> {
    first_number(&Directory::open(directory).ok()?, PID)
}

/// Returns the process that holds the store's lock, or was the last to hold it.
pub fn holder(directory: &Path) -> Option<u32> {
    let held = Directory::open(directory).ok()?;
    // On a full host the lock file may be empty, but the kernel knows the lock's owner.
    lock_owner(&held).or_else(|| first_number(&held, LOCK)).or_else(|| first_number(&held, PID))
}

/// Returns the process that the kernel lists as the lock's owner.
pub(crate) fn lock_owner(directory: &Directory) -> Option<u32> {
    // The lock file may have been removed; the directory is locked as well.
    let lock = directory.open_file(LOCK, Access::Read).ok().and_then(|file| owner_of(&file, LOCK));
    lock.or_else(|| owner_of(directory.file(), directory.path().file_name()?.to_str()?))
}

/// Returns the process that has locked this file and has it open under this name.
fn owner_of(file: &fs::File, name: &str) -> Option<u32> {
    let lock = file.metadata().ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    owners(&locks, lock.ino()).into_iter().find(|pid| {
        // On btrfs the device number in /proc/locks differs from that of stat(2), so the open files
        // are compared. Only links with this name are followed, because another file of that
        // process may lie on a file system that does not respond.
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_named = |link: &Path| fs::read_link(link).is_ok_and(|open| open.file_name().is_some_and(|n| n == name));
        let is_it = |file: fs::Metadata| (file.dev(), file.ino()) == (lock.dev(), lock.ino());
        open.map(|link| link.path()).any(|link| is_named(&link) && fs::metadata(&link).is_ok_and(is_it))
    })
}

/// Processes that hold a whole-file lock on an inode with this number, from the text of
/// /proc/locks.
fn owners(locks: &str, inode: u64) -> Vec<u32> {
    let owner = |line: &str| -> Option<u32> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = words.get(5)?.rsplit(':').next()?.parse::<u64>().ok()?;
        (words.get(1) == Some(&"FLOCK") && number == inode).then(|| words[4].parse().ok()).flatten()
    };
    locks.lines().filter_map(owner).collect()
}

/// Returns true if the process is gone, killed, or releasing its memory.
pub(crate) fn is_ending(pid: u32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    looks_ending(&read("stat"), &read("status"))
}

fn looks_ending(stat: &str, status: &str) -> bool {
    const EXITING: u64 = 4;
    const KILL_PENDING: u64 = 1 << 8;
    // The name, in parentheses, may contain anything.
    let Some((_, fields)) = stat.rsplit_once(')') else { return true };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let flags = fields.get(6).and_then(|flags| flags.parse().ok()).unwrap_or(0u64);
    let pending = status.lines().filter_map(|line| line.split_once(':')).any(|(name, signals)| {
        matches!(name, "SigPnd" | "ShdPnd")
            && u64::from_str_radix(signals.trim(), 16).is_ok_and(|signals| signals & KILL_PENDING != 0)
    });
    matches!(fields.first(), None | Some(&"Z" | &"X")) || flags & EXITING != 0 || pending
}

fn first_number(directory: &Directory, name: &str) -> Option<u32> {
    directory.read_text(name)?.lines().next()?.parse().ok()
}

/// Returns the boot id, with the identity of a place mixed into each half. It differs between two
/// periods of one boot, and between a store and a snapshot or copy of it.
pub(crate) fn period(directory: &Directory, bulk: Option<PathBuf>) -> Outcome<[u8; 16]> {
    let mut period = shoal_host::boot_id().during("boot id")?;
    let log = directory.has(LOG).then(|| shoal_host::place_id_in(directory, LOG).during("log")).transpose()?;
    let bulk = bulk.filter(|bulk| bulk.exists());
    let bulk = bulk.map(|bulk| shoal_host::place_id(&bulk).during("bulk storage")).transpose()?;
    for (half, number) in period.chunks_exact_mut(8).zip([log, bulk]) {
        half.iter_mut().zip(number.unwrap_or(0).to_le_bytes()).for_each(|(byte, number)| *byte ^= number);
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_the_owner_of_a_lock() {
        let locks = "1: FLOCK  ADVISORY  WRITE 6239 00:2f:257 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 77 00:2f:257 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 5 08:01:257 0 EOF\n3: FLOCK ADVISORY READ 9 00:2f:25 0 EOF\n";
        assert_eq!(owners(locks, 257), [6239]);
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().canonicalize().unwrap();
        let held = StoreLock::acquire(&Directory::open(&directory).unwrap()).unwrap();
        fs::write(directory.join("lock"), "").unwrap();
        assert_eq!(holder(&directory), Some(std::process::id()), "the file is empty, as on a full host");
        drop(held);
        assert_eq!(holder(&directory), None);
    }

    #[test]
    fn a_process_that_is_killed_or_gone_counts_as_ending() {
        assert!(!is_ending(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(!is_ending(child.id()));
        child.kill().unwrap();
        // The child is not waited for, so it is first dying and then a zombie; both must count as ending.
        assert!(is_ending(child.id()) || (0..100).any(|_| is_ending(child.id())));
        child.wait().unwrap();
        assert!(is_ending(child.id()));
        let stat = |state: &str, flags: u32| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0");
        let status = |pending: &str| format!("Name:\tx\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n");
        assert!(!looks_ending(&stat("S", 0x400000), &status("0000000000004000")));
        assert!(looks_ending(&stat("R", 0x400004), &status("0000000000000000")));
        assert!(looks_ending(&stat("D", 0x400000), &status("0000000000000100")));
        assert!(looks_ending(&stat("Z", 0x400000), ""));
    }
}
