//! `shoal mount -o remount,...`: changes a mount without unmounting it.
//!
//! The kernel keeps the mount's flags and refuses writes to a read-only mount. The daemon is told
//! through its control socket, because it keeps the access times and data that is not yet durable.
//! Order: for a change to read-only the kernel goes first, so that no write follows the daemon's
//! sync. For a change to read-write the daemon goes first, since it may have opened the store for
//! reading only.
//! Options that are not named stay unchanged. Options of the daemon and of the FUSE connection
//! (threads, `noxattr`, `allow_other`, ...) cannot change under a mount: they take effect at the
//! next mount. Naming one gives a warning, not an error, because mount(8) passes the whole line of
//! fstab with any remount. mount(8) without the helper (`mount -i`) does only the kernel's half.

use std::path::Path;

use serde::Serialize;
use shoal_devices::{During, Failure, Outcome};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE, MountEntry};
use shoal_store::access_times_name;
use shoal_store::control::{self, Question};

use crate::option_table::{self, OnRemount};
use crate::{failure, mount_options};

#[derive(Debug, Serialize)]
pub struct Remounted {
    pub store: String,
    pub mountpoint: String,
    /// Whether writes are refused and everything written is durable.
    pub read_only: bool,
}

pub fn run(directory: &Path, mountpoint: &Path, lists: &[String]) -> Outcome<Remounted> {
    let mountpoint = mountpoint.canonicalize().during(mountpoint.display())?;
    let entry = mount_table::mounted_at(&mountpoint).during("table of mounts")?;
    let entry = entry.filter(|entry| entry.file_system_type == FILE_SYSTEM_TYPE && entry.source == directory);
    let entry = entry.ok_or_else(|| {
        Failure::new(mountpoint.display(), format!("{} is not mounted here", directory.display()))
            .remedy("leave out `remount` to mount it")
    })?;
    let options = mount_options::parse(&all_words(&entry, lists), directory, true)
        .map_err(|error| Failure::new("-o", error).misuse())?;
    for word in unchangeable(&entry, lists) {
        eprintln!(
            "shoal: {}: `{word}` cannot change while the store is mounted; give it at the next mount",
            mountpoint.display()
        );
    }
    let ask = || {
        let question = Question::Remount {
            read_only: options.fuse.read_only,
            access_times: access_times_name(options.fuse.access_times).into(),
            // The mount table does not show this option, so only an explicit word changes it.
            spill_percent: is_given(lists, "spill").then_some(options.store.spill_percent),
            threshold_bytes: options.store.threshold,
            update_policy: options.store.update_policy.clone(),
            update_rate: options.store.update_rate,
        };
        let answer = control::ask(directory, &question)?;
        answer.map(drop).ok_or_else(|| {
            Failure::new(mountpoint.display(), "no daemon serves this mount").remedy("mount the store again")
        })
    };
    if !options.fuse.read_only {
        ask()?;
    }
    shoal_fuse::remount(&mountpoint, &options.fuse).map_err(|error| {
        failure::of_mountpoint(&mountpoint, error, |users| {
            format!("end the programs that have files open for writing ({users} lists them)")
        })
    })?;
    if options.fuse.read_only {
        ask()?;
    }
    Ok(Remounted {
        store: directory.display().to_string(),
        mountpoint: mountpoint.display().to_string(),
        read_only: options.fuse.read_only,
    })
}

/// Returns the options in force, followed by the given ones, which override them.
fn all_words(entry: &MountEntry, lists: &[String]) -> Vec<String> {
    let in_force = entry.options.split(',').chain(entry.super_options.split(','));
    // The mount table names the other two rules for access times, but not `strictatime`. The file
    // system's own "rw" says nothing about this mount.
    let default = if entry.options.split(',').any(|w| w == "relatime" || w == "noatime") { "" } else { "strictatime" };
    let in_force = std::iter::once(default).chain(in_force.filter(|word| *word != "rw"));
    let given = lists.iter().flat_map(|list| list.split(','));
    // These are properties of the connection, which the kernel lists and mount(8) passes back.
    let connections = ["user_id=", "group_id=", "rootmode=", "fd=", "max_read=", "blksize=", "subtype=", "fsname="];
    in_force
        .chain(given)
        .filter(|word| !connections.iter().any(|prefix| word.starts_with(prefix)))
        .map(String::from)
        .collect()
}

fn is_given(lists: &[String], name: &str) -> bool {
    let mut words = lists.iter().flat_map(|list| list.split(','));
    words.any(|word| word.split('=').next() == Some(name))
}

/// Returns the given options that a remount cannot change, except those already in force according
/// to the mount table.
fn unchangeable(entry: &MountEntry, lists: &[String]) -> Vec<String> {
    let in_force = |word: &str| entry.super_options.split(',').any(|known| known == word);
    let given = lists.iter().flat_map(|list| list.split(','));
    let stays = |word: &option_table::Word<'_>| match word.entry.on_remount {
        OnRemount::Changes => false,
        OnRemount::Keeps => true,
        OnRemount::MustAgree(known, said_by) => in_force(known) != said_by.contains(&word.name),
    };
    given.filter(|word| option_table::word(word).is_ok_and(|word| stays(&word))).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use shoal_fs::AccessTimes;

    use super::*;

    #[test]
    fn what_is_not_named_stays() {
        let entry = MountEntry {
            device: "0:45".into(),
            mountpoint: "/m".into(),
            options: "rw,nosuid,noexec,noatime".into(),
            file_system_type: FILE_SYSTEM_TYPE.into(),
            source: "/s".into(),
            super_options: "rw,dirsync,user_id=0,group_id=0,default_permissions,allow_other".into(),
        };
        assert_eq!(unchangeable(&entry, &["remount,ro,noatime,allow_other,default_permissions".into()]), [""; 0]);
        let asked = "remount,threads=2,noxattr,writeback,nosums,scrub=3,noallow_other,nodefault_permissions,nosuid";
        let warned =
            ["threads=2", "noxattr", "writeback", "nosums", "scrub=3", "noallow_other", "nodefault_permissions"];
        assert_eq!(unchangeable(&entry, &[asked.into()]), warned);
        let parsed = |entry: &MountEntry, list: &str| {
            mount_options::parse(&all_words(entry, &[list.into()]), Path::new("/s"), true).unwrap()
        };
        let options = parsed(&entry, "remount,ro,user_id=0");
        assert!(
            options.fuse.read_only
                && options.fuse.nosuid
                && options.fuse.noexec
                && options.fuse.directories_synchronous
        );
        assert_eq!(options.fuse.access_times, AccessTimes::Never);
        let read_only = MountEntry { options: "ro,nosuid".into(), ..entry };
        assert!(parsed(&read_only, "remount,dev").fuse.read_only);
        assert_eq!(parsed(&read_only, "remount").fuse.access_times, AccessTimes::Always);
        let options = parsed(&read_only, "remount,rw,suid,relatime");
        assert!(!options.fuse.read_only && !options.fuse.nosuid && options.fuse.access_times == AccessTimes::Relative);
        assert!(mount_options::parse(&all_words(&read_only, &["sink".into()]), Path::new("/s"), true).is_err());
    }
}
