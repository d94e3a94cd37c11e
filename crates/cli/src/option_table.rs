//! The mount options: names, values, meanings, what they set, and what a remount does with them, in
//! one table.
//!
//! The help, the manual pages, the list in an error and the suggestion for a misspelled word all
//! come from this table, and an option that is not in it is refused. No option can therefore be
//! missing in one of them. Left out: reading values, and deciding who may use the mount, which
//! depends on several words (both in `mount_options`).

use std::time::Duration;

use shoal_devices::size::Size;
use shoal_fs::{AccessTimes, Method};
use shoal_store::MountOptions;

use crate::mount_options::{self as read, RESTORE};

/// Width of the table, and the column at which the meanings begin.
const WIDTH: usize = 79;
const MEANING_AT: usize = 28;
/// Similarity from which on a word counts as a misspelling of another.
const LIKENESS_MIN: f64 = 0.8;

/// The effect of a remount on an option.
#[derive(Clone, Copy)]
pub enum OnRemount {
    Changes,
    /// The option takes effect at the next mount, which a warning says.
    Keeps,
    /// A remount warns unless the option says what is in force. The first field is a word of the
    /// table of mounts. The second lists the names that ask for this word; the option's other names
    /// ask for its absence.
    MustAgree(&'static str, &'static [&'static str]),
}

/// An option as it was written.
pub struct Word<'a> {
    pub whole: &'a str,
    pub name: &'a str,
    pub value: Option<&'a str>,
    pub entry: &'static Entry,
}

/// How an option changes the mount's settings.
#[derive(Clone, Copy)]
pub enum Sets {
    /// The option changes no setting, or `mount_options` reads it.
    Nothing,
    /// A switch, on by the names that the table shows, off by the others.
    Switch(fn(&mut MountOptions, bool)),
    Value(fn(&mut MountOptions, &Word<'_>) -> Result<(), String>),
}

/// Options that share one meaning.
pub struct Entry {
    /// Names that the table shows, separated by blanks.
    pub names: &'static str,
    /// The name of their value, and an example; empty if they take none.
    pub value: (&'static str, &'static str),
    /// Further names, which ask for the default or cancel an option.
    pub undo: &'static str,
    pub meaning: &'static str,
    pub sets: Sets,
    pub on_remount: OnRemount,
}

const fn plain(names: &'static str, undo: &'static str, meaning: &'static str) -> Entry {
    Entry { names, value: ("", ""), undo, meaning, sets: Sets::Nothing, on_remount: OnRemount::Keeps }
}

const fn valued(name: &'static str, value: &'static str, example: &'static str, meaning: &'static str) -> Entry {
    Entry { value: (value, example), ..plain(name, "", meaning) }
}

impl Entry {
    const fn sets(self, set: fn(&mut MountOptions, &Word<'_>) -> Result<(), String>) -> Entry {
        Entry { sets: Sets::Value(set), ..self }
    }

    const fn switches(self, set: fn(&mut MountOptions, bool)) -> Entry {
        Entry { sets: Sets::Switch(set), ..self }
    }

    /// Makes a remount accept the option without a warning: it takes effect, or is ignored in any
    /// case.
    const fn changeable(self) -> Entry {
        Entry { on_remount: OnRemount::Changes, ..self }
    }

    const fn must_agree(self, word: &'static str, said_by: &'static [&'static str]) -> Entry {
        Entry { on_remount: OnRemount::MustAgree(word, said_by), ..self }
    }
}

pub static TABLE: &[Entry] = &[
    plain(
        "ro nodev nosuid noexec nosymfollow sync dirsync lazytime nodiratime",
        "rw dev suid exec symfollow async nolazytime diratime",
        "as in mount(8)",
    )
    .sets(|options, word| {
        read::kernel_flag(&mut options.fuse, word.name);
        Ok(())
    })
    .changeable(),
    plain(
        "noatime strictatime",
        "atime relatime norelatime nostrictatime",
        "reads never (noatime) or always (strictatime) change access times",
    )
    .sets(|options, word| {
        options.fuse.access_times = match word.name {
            "noatime" => AccessTimes::Never,
            "strictatime" => AccessTimes::Always,
            "norelatime" => options.fuse.access_times,
            _ => AccessTimes::Relative,
        };
        Ok(())
    })
    .changeable(),
    plain(
        "remount",
        "",
        "change an existing mount: ro or rw, its flags, spill, threshold, update_policy, update_rate or hold",
    )
    .changeable(),
    plain(
        "allow_other noallow_other",
        "",
        "all users may use the mount (default for root), or only processes of the mounting user (default for others); in both cases file \
         permissions apply",
    )
    .must_agree("allow_other", &["allow_other"]),
    plain("private allow_root", "noprivate", "the same as noallow_other (allow_root: only for root's mounts)")
        .must_agree("allow_other", &["noprivate"]),
    plain(
        "nodefault_permissions",
        "default_permissions",
        "only with noallow_other: permissions are not checked, not even for a process that acts for another user (setfsuid), and there are no \
         ACLs; changes take fewer requests",
    )
    .must_agree("default_permissions", &["default_permissions"]),
    plain("noxattr", "xattr", "no extended attributes or ACLs; creating small files is faster")
        .switches(|options, on| options.fuse.xattrs = !on),
    plain(
        "writeback",
        "nowriteback",
        "the kernel gathers writes: fewer requests, but a write survives the end of the daemon only after close, fsync or write-back",
    )
    .switches(|options, on| options.fuse.writeback = on),
    valued("threads", "N", "8", "threads that serve requests (default: one per processor, at least 4)")
        .sets(|options, word| {
            options.fuse.threads = match word.number()? {
                n @ 0..=256 => n as usize,
                n => return Err(format!("mount option `threads={n}`: too many threads; give 256 at most")),
            };
            Ok(())
        }),
    valued(
        "transport",
        "auto|dev|uring",
        "auto",
        "how requests reach the daemon: by io_uring if the kernel offers it (auto, the default, and uring), or through /dev/fuse (dev)",
    )
    .sets(|options, word| read::transport(word).map(|transport| options.fuse.transport = transport)),
    plain(
        "noidle_class",
        "idle_class",
        "threads that serve requests stay in the normal scheduling class: they never use SCHED_IDLE, and never follow a program",
    )
    .switches(|options, on| options.fuse.idle_class = !on),
    valued("read_ahead", "SIZE", "1M", "how far the kernel reads ahead in files (default 1M; only for root's mounts)")
        .sets(|options, word| word.size().map(|bytes| options.fuse.read_ahead_bytes = bytes)),
    valued(
        "update_policy",
        "POLICY",
        "aipu:30s",
        "when held writes of large files go to bulk storage: aipu:30s (default), pu:30s, ipu:30s, purp:30s:60s, irp:30s:60s, sprite:30s:5s, \
         write-through, hold:10m",
    )
    .sets(|options, word| read::policy(options, word.text()?.into()))
    .changeable(),
    valued(
        "update_rate",
        "SIZE",
        "64M",
        "most bytes of held writes that go to bulk storage in a second (default 0: no limit)",
    )
    .sets(|options, word| word.size().map(|bytes| options.store.update_rate = Some(bytes)))
    .changeable(),
    valued("hold", "TIME", "10m", "the same as update_policy=hold:TIME: lets the disk stand still for up to TIME")
        .sets(|options, word| read::policy(options, format!("hold:{}", word.text()?)))
    .changeable(),
    valued(
        "cache_size",
        "SIZE",
        "512M",
        "memory for held writes (default: an eighth of memory, at most 1G; 0: no writes are held)",
    )
    .sets(|options, word| word.size().map(|bytes| options.store.cache_bytes = Some(bytes))),
    valued("cache_dir", "DIR", "/dev/shm", "directory on tmpfs for held writes (default /dev/shm)")
        .sets(|options, word| {
            let path = std::path::absolute(word.text()?);
            options.store.cache_dir = Some(path.map_err(|error| format!("mount option `{}`: {error}", word.whole))?);
            Ok(())
        }),
    plain("clone_fd", "noclone_fd", "every thread reads requests through a file descriptor of its own")
        .switches(|options, on| options.fuse.clone_fd = on),
    valued("compress", "METHOD", "auto", "as format --compress, for this mount")
        .sets(|options, word| {
            let method = word.text()?.parse::<Method>();
            options.store.compress = Some(method.map_err(|error| error.to_string())?);
            Ok(())
        }),
    valued("pack_age", "SECONDS", "30", "files and inodes that have not changed for this long are packed (default 30)")
        .sets(|options, word| word.number().map(|seconds| options.store.pack_age = Duration::from_secs(seconds))),
    valued(
        "pack_load",
        "PERCENT",
        "10",
        "share of one processor for packing while the store is busy; grows as memory fills (default 10; 0: pack only in idle time)",
    )
    .sets(|options, word| {
        options.store.pack_load = match word.number()? {
            n @ 0..=100 => n as u32,
            n => return Err(format!("mount option `pack_load={n}`: not a percentage; give 0 to 100")),
        };
        Ok(())
    }),
    plain("nopack_inodes", "pack_inodes", "inodes and directories are not packed")
        .switches(|options, on| options.store.pack_inodes = !on),
    valued(
        "spill",
        "PERCENT",
        "85",
        "memory use from which on cold small files move to bulk storage (default 85; off: never)",
    )
    .sets(|options, word| {
        options.store.spill_percent = match word.value {
            Some("off") => 0,
            _ => match word.number()? {
                n @ 1..=99 => n as u8,
                n => {
                    return Err(format!(
                        "mount option `spill={n}`: not a percentage of memory from 1 to 99; give one, or `off`"
                    ));
                }
            },
        };
        Ok(())
    })
    .changeable(),
    valued("threshold", "SIZE", "256K", "as format --threshold, for this mount (4K to 64M)")
        .sets(|options, word| read::threshold(word).map(|bytes| options.store.threshold = Some(bytes)))
    .changeable(),
    valued("executables", "SIZE", "16M", "the same for files that may be executed (default: as for all files)")
        .sets(|options, word| read::threshold(word).map(|bytes| options.store.executables = bytes)),
    plain("sums nosums", "", "keep checksums of bulk storage from now on, or drop them")
        .sets(|options, word| {
            options.store.sums = Some(word.name == "sums");
            Ok(())
        }),
    valued("scrub", "DAYS", "30", "scrub bulk storage in idle time when the last scrub is this old (default off)")
        .sets(|options, word| read::scrub_every(word).map(|every| options.store.scrub_every = every)),
    plain("degraded", "nodegraded", "mount a store that has several bulk devices even if some are missing")
        .switches(|options, on| options.store.degraded = on),
    plain(RESTORE, "", "as --restore"),
    valued("errors", "remount-ro", "remount-ro", "an option of ext4, accepted because a store does so anyway")
        .sets(|_, word| read::ext4_word(word))
    .changeable(),
    valued("data", "ordered|writeback", "ordered", "an option of ext4, accepted because a store does so anyway")
        .sets(|_, word| read::ext4_word(word))
    .changeable(),
    plain(
        "acl user_xattr discard _netdev nofail auto user x-*",
        "defaults noauto users nouser owner noowner group nogroup mand nomand iversion noiversion silent loud comment",
        "ignored: a store does so anyway, or the option is for other programs",
    )
    .changeable(),
];

impl Word<'_> {
    /// Returns the value, which must be there.
    pub fn text(&self) -> Result<&str, String> {
        self.value.filter(|text| !text.is_empty()).ok_or_else(|| {
            let (name, example) = (self.name, self.entry.value.1);
            format!("mount option `{name}` needs a value, such as `{name}={example}`")
        })
    }

    fn number(&self) -> Result<u64, String> {
        let (text, name, example) = (self.text()?, self.name, self.entry.value.1);
        text.parse().map_err(|_| {
            format!("mount option `{}`: `{text}` is not a number; write one, such as `{name}={example}`", self.whole)
        })
    }

    /// Returns the value as a size (bytes).
    pub fn size(&self) -> Result<u64, String> {
        Ok(self.text()?.parse::<Size>()?.0)
    }
}

impl Entry {
    fn shown(&self) -> String {
        let value = if self.value.0.is_empty() { String::new() } else { format!("={}", self.value.0) };
        self.names.split(' ').map(|name| format!("{name}{value}")).collect::<Vec<_>>().join(", ")
    }

    fn all_names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split(' ').chain(self.undo.split(' ')).filter(|name| !name.is_empty())
    }
}

/// Finds the entry of an option.
fn find(name: &str) -> Option<&'static Entry> {
    let is_foreign = name.starts_with("x-") || name.starts_with("X-");
    let name = if is_foreign { "x-*" } else { name };
    TABLE.iter().find(|entry| entry.all_names().any(|known| known == name))
}

/// Takes an option apart. An option that is not in the table is an error that says what may have
/// been meant.
pub fn word(whole: &str) -> Result<Word<'_>, String> {
    let (name, value) = whole.split_once('=').map_or((whole, None), |(name, value)| (name, Some(value)));
    let entry = find(name).ok_or_else(|| unknown(whole))?;
    Ok(Word { whole, name, value, entry })
}

/// Returns the table as text, in lines that fit a terminal.
pub fn text() -> String {
    TABLE.iter().map(|entry| in_columns(&entry.shown(), entry.meaning)).collect::<Vec<_>>().join("\n")
}

/// Puts names on the left and their meaning on the right. Names that need more room get lines of
/// their own.
fn in_columns(names: &str, meaning: &str) -> String {
    let mut lines: Vec<String> = folded(names, WIDTH - 2).into_iter().map(|line| format!("  {line}")).collect();
    let mut meanings = folded(meaning, WIDTH - MEANING_AT).into_iter();
    if let Some(line) = lines.last_mut().filter(|line| line.len() + 2 <= MEANING_AT)
        && let Some(first) = meanings.next()
    {
        *line = format!("{line:<MEANING_AT$}{first}");
    }
    lines.extend(meanings.map(|meaning| format!("{:MEANING_AT$}{meaning}", "")));
    lines.join("\n")
}

/// Wraps text into lines of at most `width` columns.
fn folded(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

/// Returns the error for an option that is not in the table.
fn unknown(word: &str) -> String {
    let name = word.split('=').next().unwrap_or_default();
    let likeness = |known: &str| strsim::jaro_winkler(name, known);
    let names = TABLE.iter().flat_map(|entry| entry.all_names().map(move |name| (name, entry.value.0)));
    let alike = names.filter(|(known, _)| likeness(known) >= LIKENESS_MIN);
    match alike.max_by(|a, b| likeness(a.0).total_cmp(&likeness(b.0))) {
        Some((known, value)) => {
            let value = if value.is_empty() { String::new() } else { format!("={value}") };
            format!(
                "unknown mount option `{word}`; write `{known}{value}` if that was meant, or see `shoal mount --help`"
            )
        }
        None => {
            let all = TABLE.iter().map(Entry::shown).collect::<Vec<_>>().join(", ");
            format!("unknown mount option `{word}`; use some of {all}")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::mount_options;

    #[test]
    fn every_option_of_the_table_is_taken() {
        for entry in TABLE {
            for name in entry.all_names() {
                let example = entry.value.1;
                let mut word = if example.is_empty() { name.to_string() } else { format!("{name}={example}") };
                if name == "nodefault_permissions" {
                    // The option conflicts with the access that root's mounts have.
                    word = format!("noallow_other,{word}");
                }
                let taken = mount_options::parse(std::slice::from_ref(&word), Path::new("/s"), true);
                assert!(taken.is_ok(), "{word}: {taken:?}");
            }
        }
    }

    #[test]
    fn the_table_fits_a_terminal_and_has_every_shown_name_once() {
        let text = text();
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        for name in TABLE.iter().flat_map(|entry| entry.names.split(' ')) {
            let is_name = |word: &str| word.trim_end_matches(',').split('=').next() == Some(name);
            let rows = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
            let shown = rows
                .flat_map(|row| row[..row.len().min(MEANING_AT.max(row.len()))].split(' '))
                .filter(|word| is_name(word));
            assert!(shown.count() >= 1, "{name} is not in the table");
        }
        assert!(text.contains("\n  noxattr                   no extended attributes"), "{text}");
        assert!(text.contains("\n  threads=N                 threads that"), "{text}");
    }

    #[test]
    fn a_slip_is_told_what_was_probably_meant() {
        for (slip, meant) in [
            ("noatme", "`noatime`"),
            ("thread=4", "`threads=N`"),
            ("write_back", "`writeback`"),
            ("no_xattr", "`noxattr`"),
            ("cachesize=1G", "`cache_size=SIZE`"),
            ("nosum", "`nosums`"),
            ("scrubs=3", "`scrub=DAYS`"),
        ] {
            let told = unknown(slip);
            assert!(told.contains(&format!("`{slip}`; write {meant} ")), "{told}");
        }
        let told = unknown("zfs");
        for name in ["sums", "scrub=DAYS", "lazytime", "dirsync", "noallow_other", "nodiratime", "degraded"] {
            assert!(told.contains(name), "{name}: {told}");
        }
    }
}
