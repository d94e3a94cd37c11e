//! The fstab-style option list: `-o ro,noatime,threads=8`.
//!
//! Options meant for mount(8), systemd or the boot scripts are accepted and ignored, and so are
//! options for features that do not exist here: mandatory locks, inode versions, the kernel's
//! messages about mounts. Words of ext4 are accepted if they ask for what a store always does:
//! `acl`, `user_xattr`, `discard` (freed blocks are always trimmed), `errors=remount-ro`,
//! `data=ordered` and the weaker `data=writeback`. An unknown option, or one that asks for
//! something Shoal does not do, is an error that names it, because a mount without the requested
//! properties is worse than none. The options, their help and what they set are in [`option_table`].

use std::path::Path;
use std::time::Duration;

use shoal_fs::{THRESHOLD_MAX, THRESHOLD_MIN};
use shoal_fuse::{Access, Transport};
use shoal_store::{MountOptions, StoreOptions, rule_of};

use crate::option_table::{self, Sets, Word};

/// Continue from the saved image of `battery` memory. This option concerns opening the store, not
/// the mount.
pub const RESTORE: &str = "restore";

/// Returns whether one of the lists asks for a remount.
pub fn is_remount(lists: &[String]) -> bool {
    lists.iter().flat_map(|list| list.split(',')).any(|word| word == "remount")
}

/// Reads option lists for the store at `source`. Later options override earlier ones.
pub fn parse(lists: &[String], source: &Path, is_root: bool) -> Result<MountOptions, String> {
    let fuse = shoal_fuse::MountOptions::new(source.to_path_buf());
    let mut options = MountOptions { fuse, store: StoreOptions::default() };
    let usual = if is_root { "allow_other" } else { "noallow_other" };
    let (mut users, mut checked) = (usual, true);
    for word in lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
        match word {
            "allow_other" | "noallow_other" | "private" | "allow_root" => users = word,
            "noprivate" => users = usual,
            "default_permissions" | "nodefault_permissions" => checked = word == "default_permissions",
            _ => apply(&mut options, word)?,
        }
    }
    options.fuse.access = access(users, checked, is_root)?;
    Ok(options)
}

/// Returns the processes that may use the mount. Refuses combinations that the kernel would not
/// enforce.
fn access(users: &str, checked: bool, is_root: bool) -> Result<Access, String> {
    match (users, checked) {
        ("allow_root", _) if !is_root => {
            Err("mount option `allow_root`: the kernel can admit only your processes, or those of all users; \
             use `allow_other` and close the store's top directory (chmod 700), which keeps out everybody but you and root"
                .into())
        }
        ("allow_other", false) => {
            Err("mount option `nodefault_permissions`: every user could read and change every file; \
                 add `noallow_other`, which admits only your processes, or leave out `nodefault_permissions`"
                .into())
        }
        ("allow_other", true) => Ok(Access::All),
        (_, true) => Ok(Access::Owner),
        (_, false) => Ok(Access::OwnerUnchecked),
    }
}

pub fn wants_restore(lists: &[String]) -> bool {
    lists.iter().flat_map(|list| list.split(',')).any(|word| word == RESTORE)
}

fn apply(options: &mut MountOptions, word: &str) -> Result<(), String> {
    let word = option_table::word(word)?;
    // Programs that read fstab give values to their own options.
    if word.entry.value.0.is_empty()
        && word.value.is_some()
        && !["x-", "X-", "comment", "user"].iter().any(|w| word.name.starts_with(w))
    {
        return Err(format!(
            "mount option `{}`: `{name}` takes no value; write `{name}`",
            word.whole,
            name = word.name
        ));
    }
    match word.entry.sets {
        Sets::Nothing => Ok(()),
        Sets::Switch(set) => {
            set(options, word.entry.names.split(' ').any(|name| name == word.name));
            Ok(())
        }
        Sets::Value(set) => set(options, &word),
    }
}

/// Sets or cancels an option of mount(8).
pub fn kernel_flag(options: &mut shoal_fuse::MountOptions, name: &str) {
    match name {
        "ro" | "rw" => options.read_only = name == "ro",
        "nodev" | "dev" => options.nodev = name == "nodev",
        "nosuid" | "suid" => options.nosuid = name == "nosuid",
        "noexec" | "exec" => options.noexec = name == "noexec",
        "nosymfollow" | "symfollow" => options.nosymfollow = name == "nosymfollow",
        "lazytime" | "nolazytime" => options.lazytime = name == "lazytime",
        "nodiratime" | "diratime" => options.nodiratime = name == "nodiratime",
        "dirsync" => options.directories_synchronous = true,
        "sync" => options.synchronous = true,
        "async" => (options.synchronous, options.directories_synchronous) = (false, false),
        _ => unreachable!("{name} is not in the row of mount(8)'s options"),
    }
}

/// Returns the time between two scrubs in idle time; `None` if there are none.
pub fn scrub_every(word: &Word<'_>) -> Result<Option<Duration>, String> {
    let text = word.text()?;
    match text.parse() {
        _ if text == "off" => Ok(None),
        Ok(days @ 1..=3650) => Ok(Some(Duration::from_secs(days * 24 * 3600))),
        _ => Err(format!("mount option `{}`: not a number of days; give 1 to 3650, or `off`", word.whole)),
    }
}

/// Accepts words of ext4 that ask for what a store always does.
pub fn ext4_word(word: &Word<'_>) -> Result<(), String> {
    match (word.name, word.value) {
        ("errors", Some("remount-ro")) | ("data", Some("ordered" | "writeback")) => Ok(()),
        ("errors", _) => Err(format!(
            "mount option `{}`: a store goes read-only when its storage fails; leave the option out, or use `errors=remount-ro`",
            word.whole
        )),
        _ => Err(format!(
            "mount option `{}`: data of large files is written once, before the records that refer to it; leave the option out, or use `data=ordered`",
            word.whole
        )),
    }
}

/// Returns the size from which on files are large.
pub fn threshold(word: &Word<'_>) -> Result<u64, String> {
    let bytes = word.size()?;
    if !(THRESHOLD_MIN.into()..=THRESHOLD_MAX.into()).contains(&bytes) {
        return Err(format!("mount option `{}`: outside the range allowed; give 4K to 64M", word.whole));
    }
    Ok(bytes)
}

/// Sets how long writes of large files are held back.
pub fn policy(options: &mut MountOptions, text: String) -> Result<(), String> {
    rule_of(Some(&text), None, &Default::default())?;
    options.store.update_policy = Some(text);
    Ok(())
}

pub fn transport(word: &Word<'_>) -> Result<Transport, String> {
    match word.value {
        Some("auto") => Ok(Transport::Auto),
        Some("dev") => Ok(Transport::Dev),
        Some("uring") => Ok(Transport::Uring),
        _ => Err(format!(
            "mount option `{}`: no such transport; use `transport=auto`, `transport=dev` or `transport=uring`",
            word.whole
        )),
    }
}

#[cfg(test)]
mod tests {
    use shoal_fs::AccessTimes;

    use super::*;

    fn parsed(list: &str) -> MountOptions {
        parse(&[list.to_string()], Path::new("/s"), true).unwrap()
    }

    #[test]
    fn held_writes_are_as_asked_for() {
        let of = |list: &str| parsed(list);
        let options = of("cache_size=64M,cache_dir=/dev/shm,update_policy=pu:10s,update_rate=8M");
        assert_eq!((options.store.cache_bytes, options.store.update_rate), (Some(64 << 20), Some(8 << 20)));
        assert_eq!(
            (options.store.cache_dir.unwrap().to_str(), options.store.update_policy.as_deref()),
            (Some("/dev/shm"), Some("pu:10s"))
        );
        assert_eq!(of("update_policy=aipu,hold=10m").store.update_policy.as_deref(), Some("hold:10m"));
        for wrong in ["update_policy=bdflush", "update_policy", "hold=long", "cache_size=much", "cache_dir=", "hold=9d"]
        {
            let error = parse(&[wrong.to_string()], Path::new("/s"), true).unwrap_err();
            assert!(!error.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn each_option_is_taken_and_can_be_taken_back() {
        let all = parsed("noxattr,writeback,ro,noatime,nodev,nosuid,noexec,sync,threads=7,read_ahead=2M,clone_fd");
        assert_eq!(all.fuse.access_times, AccessTimes::Never);
        assert!(all.fuse.read_only && all.fuse.nodev && all.fuse.nosuid && all.fuse.noexec && all.fuse.synchronous);
        assert!(all.fuse.clone_fd && !all.fuse.xattrs && all.fuse.writeback);
        assert_eq!((all.fuse.threads, all.fuse.read_ahead_bytes), (7, 2 << 20));
        let none = parsed(
            "ro,rw,noatime,atime,nodev,dev,nosuid,suid,noexec,exec,sync,async,\
             clone_fd,noclone_fd,noxattr,xattr,writeback,nowriteback",
        );
        assert_eq!(none.fuse.access_times, AccessTimes::Relative);
        assert!(!none.fuse.read_only && !none.fuse.nodev && !none.fuse.nosuid && !none.fuse.noexec);
        assert!(!none.fuse.synchronous && !none.fuse.clone_fd && none.fuse.xattrs && !none.fuse.writeback);
    }

    #[test]
    fn a_transport_is_one_of_those_there_are() {
        assert_eq!(parsed("noatime").fuse.transport, Transport::Auto);
        assert_eq!(parsed("transport=uring").fuse.transport, Transport::Uring);
        assert_eq!(parsed("transport=uring,transport=dev").fuse.transport, Transport::Dev);
        assert_eq!(parsed("transport=dev,transport=auto").fuse.transport, Transport::Auto);
        assert!(parsed("transport=auto").fuse.idle_class && !parsed("noidle_class").fuse.idle_class);
        for odd in ["transport", "transport=", "transport=virtio"] {
            assert!(parse(&[odd.to_string()], Path::new("/s"), true).is_err(), "{odd}");
        }
    }

    #[test]
    fn packing_has_an_age_and_a_share_and_may_leave_inodes_alone() {
        let of = parsed("pack_age=7,pack_load=25,nopack_inodes");
        assert_eq!((of.store.pack_age, of.store.pack_load, of.store.pack_inodes), (Duration::from_secs(7), 25, false));
        assert!(parsed("nopack_inodes,pack_inodes").store.pack_inodes && parsed("pack_load=0").store.pack_load == 0);
        assert_eq!(parsed("scrub=2").store.scrub_every, Some(Duration::from_secs(172_800)));
        assert_eq!(
            ["sums", "nosums", "scrub=off"].map(|words| parsed(words).store.sums),
            [Some(true), Some(false), None]
        );
        assert_eq!(["spill=70", "spill=off", "noatime"].map(|words| parsed(words).store.spill_percent), [70, 0, 85]);
        assert_eq!(
            ["threshold=256K", "threshold=64M", "ro"].map(|words| parsed(words).store.threshold),
            [Some(256 << 10), Some(64 << 20), None]
        );
        assert_eq!(["executables=16M", "threshold=2M"].map(|words| parsed(words).store.executables), [16 << 20, 0]);
        for odd in [
            "executables",
            "executables=65M",
            "threshold",
            "threshold=0",
            "threshold=65M",
            "threshold=much",
            "spill",
            "spill=0",
            "scrub",
            "scrub=0",
            "scrub=monthly",
            "spill=100",
            "spill=on",
            "pack_load=101",
            "pack_load",
            "pack_load=much",
            "pack_inodes=no",
        ] {
            assert!(parse(&[odd.to_string()], Path::new("/s"), true).is_err(), "{odd}");
        }
    }

    #[test]
    fn nobody_has_a_mount_without_checks_but_the_user_who_asked_for_it() {
        let of = |list: &str, is_root| {
            parse(&[list.to_string()], Path::new("/s"), is_root).map(|options| options.fuse.access)
        };
        for private in ["private", "noallow_other", "allow_other,private", "private,default_permissions"] {
            assert_eq!([of(private, true), of(private, false)], [Ok(Access::Owner), Ok(Access::Owner)], "{private}");
            let unchecked = format!("nodefault_permissions,{private},nodefault_permissions");
            assert_eq!(of(&unchecked, true), Ok(Access::OwnerUnchecked), "{unchecked}");
        }
        for open in ["allow_other", "private,allow_other", "nodefault_permissions,allow_other,default_permissions"] {
            assert_eq!([of(open, true), of(open, false)], [Ok(Access::All), Ok(Access::All)], "{open}");
        }
        assert_eq!([of("", true), of("", false)], [Ok(Access::All), Ok(Access::Owner)]);
        assert_eq!([of("private,noprivate", true), of("allow_other,noprivate", false)], [of("", true), of("", false)]);
        assert_eq!(of("allow_root", true), Ok(Access::Owner), "root is the owner");
        assert_eq!(of("nodefault_permissions", false), Ok(Access::OwnerUnchecked));
        for (list, is_root, remedy) in [
            ("nodefault_permissions", true, "; add `noallow_other`"),
            ("private,nodefault_permissions,allow_other", true, "; add `noallow_other`"),
            ("allow_other,nodefault_permissions", false, "; add `noallow_other`"),
            ("allow_root", false, "; use `allow_other` and"),
            ("allow_root,nodefault_permissions", false, "; use `allow_other` and"),
        ] {
            let refused = of(list, is_root).unwrap_err();
            assert!(refused.contains(remedy), "{list}: {refused}");
        }
    }

    #[test]
    fn a_restore_is_seen_in_any_list() {
        let lists = |texts: &[&str]| texts.iter().map(|t| t.to_string()).collect::<Vec<_>>();
        assert!(wants_restore(&lists(&["ro", "noatime,restore"])) && !wants_restore(&lists(&["ro,norestore", ""])));
        parsed("restore");
    }

    #[test]
    fn copied_fstab_lines_are_understood() {
        let list = "nodiratime,strictatime,lazytime,dirsync,nosymfollow,mand,nomand,iversion,noiversion,silent,loud";
        let all = parsed(list);
        assert!(all.fuse.nodiratime && all.fuse.lazytime && all.fuse.directories_synchronous && all.fuse.nosymfollow);
        assert_eq!(all.fuse.access_times, AccessTimes::Always);
        let none = parsed(&format!("{list},diratime,nostrictatime,nolazytime,async,symfollow"));
        assert!(
            !none.fuse.nodiratime
                && !none.fuse.lazytime
                && !none.fuse.directories_synchronous
                && !none.fuse.nosymfollow
        );
        assert_eq!(none.fuse.access_times, AccessTimes::Relative);
        assert_eq!(parsed("noatime,relatime").fuse.access_times, AccessTimes::Relative);
        assert!(is_remount(&["rw".into(), "noatime,remount,ro".into()]) && !is_remount(&["rw,x-remount".into()]));
    }

    #[test]
    fn words_of_ext4_are_taken_only_where_they_are_kept() {
        parsed("acl,user_xattr,discard,errors=remount-ro,data=ordered,data=writeback");
        for word in
            ["noacl", "nouser_xattr", "nodiscard", "errors=panic", "errors=continue", "errors", "data=journal", "data"]
        {
            let error = parse(&[word.to_string()], Path::new("/s"), true).unwrap_err();
            assert!(error.contains(&format!("`{word}`")), "{word}: {error}");
        }
    }

    #[test]
    fn options_for_others_are_ignored_and_unknown_ones_refused() {
        parsed("defaults,_netdev,nofail,noauto,x-systemd.automount,x-a=b,user=joe,comment=z,,relatime");
        for list in ["sink", "ro=1", "threads", "threads=x", "threads=999", "dirsink", "read_ahead=x", "nofail=1"] {
            let error = parse(&[list.to_string()], Path::new("/s"), true).unwrap_err();
            assert!(error.contains(list.split('=').next().unwrap()) || error.contains('x'), "{list}: {error}");
        }
    }
}
