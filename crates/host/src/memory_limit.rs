//! How much memory this process may use: the machine's, within the limits of its control groups and
//! its own.
//!
//! A container looks like a machine from inside. Its memory is that of the tightest group on the
//! way up from the process's own, in both versions of control groups. Pages of tmpfs count there
//! like any others and stay counted after their process has ended. A group without memory kills
//! instead of refusing. So a caller that needs much memory first calls [`take_memory`]. Rules:
//! groups are searched again when the process is moved; limits and use are read each time. A file
//! that cannot be read limits nothing. Groups above the root of a container are hidden: in the
//! second version nothing is known about them, in the first only their limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

/// A larger number from the kernel means "no limit" (bytes), for which the first version has no
/// word.
const UNLIMITED: u64 = 1 << 60;
/// Memory that is left for allocations that do not ask first: one part in this many of the total,
/// within these bounds (bytes). A machine reclaims from all processes before it kills; a group
/// reclaims only from itself, so it needs a larger part.
const KEPT_PART: u64 = 8;
const KEPT_PART_OF_MACHINE: u64 = 32;
const KEPT_MIN: u64 = 16 << 20;
const KEPT_MAX: u64 = 256 << 20;
/// How long a reading stays valid. The shorter time applies when the reading has too little for the
/// caller.
const HOLDS: Duration = Duration::from_millis(100);
const HOLDS_SHORT: Duration = Duration::from_millis(10);

/// Memory of the machine, or of the tightest group (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    /// Unused, or used only by pages that the kernel can drop at once.
    pub available: u64,
    /// The same, once dirty file pages have been written.
    pub available_soon: u64,
    /// Free swap, where used memory can go.
    pub swap: u64,
    pub is_machine: bool,
}

impl Memory {
    /// Returns the memory that this process may take, leaving some for others. A negative value
    /// must be given back.
    fn room(&self) -> i64 {
        self.room_of(self.available)
    }

    /// Returns the memory that this process may take little by little, so that file pages can be
    /// written meanwhile. A machine never refuses.
    fn room_soon(&self) -> i64 {
        if self.is_machine { i64::MAX } else { self.room_of(self.available_soon) }
    }

    fn room_of(&self, available: u64) -> i64 {
        let part = if self.is_machine { KEPT_PART_OF_MACHINE } else { KEPT_PART };
        let kept = (self.total / part).clamp(KEPT_MIN, KEPT_MAX);
        available.saturating_add(self.swap) as i64 - kept as i64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A control group whose limits count for this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    directory: PathBuf,
    /// The process is in this group itself, not only below it.
    is_own: bool,
    /// Groups above this one cannot be seen.
    is_top: bool,
}

/// Finds the groups of a process.
#[derive(Default)]
struct Finder {
    /// `/proc/self/cgroup` at the last search.
    seen: String,
    groups: Vec<Group>,
}

/// The last reading.
struct Reading {
    at: Instant,
    room: i64,
    room_soon: i64,
}

/// Below this limit the heap keeps only little free memory (bytes).
const HEAP_MATTERS: u64 = 1 << 30;
/// Freed pieces larger than this go back to the kernel (bytes). Threads share this many arenas, so
/// that they share free memory.
const HEAP_PIECE: i32 = 256 << 10;
const HEAP_ARENAS: i32 = 2;

static FINDER: Mutex<Finder> = Mutex::new(Finder { seen: String::new(), groups: Vec::new() });
static READING: Mutex<Option<Reading>> = Mutex::new(None);

/// Returns the memory that this process may use (bytes): the least of the machine's, its groups'
/// and its own limits.
pub fn memory_total_bytes() -> u64 {
    let own = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current.unwrap_or(u64::MAX));
    let groups = groups();
    let limits = groups.iter().filter_map(Group::limit).chain(own);
    limits.fold(machine_bytes(), u64::min)
}

/// Returns [`memory_total_bytes`] if that is less than the machine has.
pub fn memory_limit_bytes() -> Option<u64> {
    Some(memory_total_bytes()).filter(|total| *total < machine_bytes())
}

/// Makes the heap keep only little freed memory, where a limit leaves this process little. Must be
/// called before threads are started, since each gets an arena.
///
/// By default glibc's heap keeps what ended threads have used, up to 32 MiB each. In a group of 128
/// MiB that exceeds the part left for callers that do not ask.
pub fn keep_heap_small() {
    if memory_limit_bytes().is_some_and(|limit| limit < HEAP_MATTERS) {
        // SAFETY: these set parameters of the allocator, which locks itself. A value that it
        // refuses changes nothing.
        #[cfg(target_env = "gnu")]
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, HEAP_ARENAS);
            libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_PIECE);
        }
    }
}

/// Gives freed memory that the heap keeps back to the kernel. Takes some milliseconds; meant for a
/// process that has become idle.
pub fn shrink_heap() {
    // SAFETY: the allocator locks itself, and only memory that is free is given back.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the memory of the tightest of these: the machine, and the groups that this process is
/// in.
pub fn memory() -> Option<Memory> {
    memories().into_iter().min_by_key(Memory::room)
}

fn memories() -> Vec<Memory> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_machine(&text));
    machine.into_iter().chain(groups().into_iter().filter_map(|group| group.memory())).collect()
}

/// Returns the memory that this process may take in addition to what it has (bytes). A negative
/// value must be given back. The answer may be a tenth of a second old.
pub fn memory_room_bytes() -> i64 {
    let mut reading = READING.lock();
    read(&mut reading, HOLDS).room
}

/// Asks for `bytes` of memory. If granted, they count as taken until the kernel counts them.
pub fn take_memory(bytes: u64) -> bool {
    take(bytes, |reading| reading.room)
}

/// Asks for `bytes` of memory that is stored to little by little, and whose lack is reported to
/// users. If granted, they count as taken until the kernel counts them. Dirty file pages count as
/// available. A machine without a group's limit always grants, even more than it has.
pub fn take_memory_soon(bytes: u64) -> bool {
    take(bytes, |reading| reading.room_soon)
}

/// Returns what [`take_memory_soon`] can still grant (bytes).
pub fn memory_room_soon_bytes() -> u64 {
    let mut reading = READING.lock();
    read(&mut reading, HOLDS).room_soon.max(0).cast_unsigned()
}

fn take(bytes: u64, room: impl Fn(&Reading) -> i64) -> bool {
    let mut reading = READING.lock();
    let wanted = i64::try_from(bytes).unwrap_or(i64::MAX);
    if room(read(&mut reading, HOLDS)) < wanted && room(read(&mut reading, HOLDS_SHORT)) < wanted {
        return false;
    }
    if let Some(reading) = &mut *reading {
        reading.room = reading.room.saturating_sub(wanted);
        reading.room_soon = reading.room_soon.saturating_sub(wanted);
    }
    true
}

/// Files that show how long tasks of this process's own group stalled for lack of memory. Only
/// groups of the second version have them.
pub fn pressure_files() -> Vec<PathBuf> {
    let own = groups().into_iter().filter(|group| group.is_own && group.version == Version::Two);
    own.map(|group| group.directory.join("memory.pressure")).collect()
}

fn read(reading: &mut Option<Reading>, holds: Duration) -> &Reading {
    if reading.as_ref().is_none_or(|reading| reading.at.elapsed() >= holds) {
        let all = memories();
        let least = |room: fn(&Memory) -> i64| all.iter().map(room).min().unwrap_or(i64::MAX);
        *reading = Some(Reading { at: Instant::now(), room: least(Memory::room), room_soon: least(Memory::room_soon) });
    }
    reading.as_ref().expect("just read")
}

fn groups() -> Vec<Group> {
    let Ok(text) = fs::read_to_string("/proc/self/cgroup") else { return Vec::new() };
    let mut finder = FINDER.lock();
    if finder.seen != text {
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let groups = groups_of(&text, &String::from_utf8_lossy(&mounts), Path::new("/"));
        *finder = Finder { seen: text, groups };
    }
    finder.groups.clone()
}

/// Returns the DRAM of the machine (bytes).
fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * info.mem_unit as u64
}

/// Returns the machine's memory according to /proc/meminfo.
fn of_machine(text: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let (total, available) = (field("MemTotal").filter(|total| *total > 0)?, field("MemAvailable")?);
    Some(Memory { total, available, available_soon: available, swap: field("SwapFree").unwrap_or(0), is_machine: true })
}

/// Returns the groups that limit a process's memory, its own first, from the texts of its `cgroup`
/// and `mountinfo`. `root` is prepended to their paths.
fn groups_of(cgroup: &str, mountinfo: &str, root: &Path) -> Vec<Group> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        // "4:cpu,memory:/a/b", and "0::/a/b" for the second version.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            list if list.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        // Of several mounts, take the one that shows the most groups above this one.
        let mounts = mountinfo.lines().filter_map(|line| mount_of(line, version));
        let ways = mounts.map(|(top, at)| (below(&at, &top, path), at, top.len()));
        if let Some((own, top, _)) = ways.min_by_key(|(_, _, hidden)| *hidden) {
            let on = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
            let inside = own.ancestors().take_while(|directory| directory.starts_with(&top));
            for (at, (directory, is_top)) in inside.map(|path| (on(path), path == top)).enumerate() {
                // In the first version, a group that does not count its children does not limit
                // them.
                let counts = fs::read_to_string(directory.join("memory.use_hierarchy"));
                if at > 0 && version == Version::One && counts.is_ok_and(|counts| counts.trim() == "0") {
                    break;
                }
                found.push(Group { version, directory, is_own: at == 0, is_top });
            }
        }
    }
    found
}

/// Returns the topmost group that a mount of the memory controller shows, and where it is mounted.
/// `None` for other mounts.
fn mount_of(line: &str, version: Version) -> Option<(String, PathBuf)> {
    let (before, behind) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (top, at) = (fields.next()?, fields.next()?);
    let mut fields = behind.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let is_it = match version {
        Version::Two => kind == "cgroup2",
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    is_it.then(|| (unescaped(top), PathBuf::from(unescaped(at))))
}

/// Returns the path of group `path` below a mount at `at` that shows `top`. If the mount does not
/// show the group, only the mount itself is known.
fn below(at: &Path, top: &str, path: &str) -> PathBuf {
    match Path::new(path).strip_prefix(top) {
        Ok(rest) if !rest.components().any(|part| part == std::path::Component::ParentDir) => at.join(rest),
        _ => at.to_path_buf(),
    }
}

/// Undoes mountinfo's escapes: blanks and the like are a backslash and three octal digits.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte.into());
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

impl Group {
    fn number(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.directory.join(name)).ok()?;
        text.trim().parse::<u64>().ok().filter(|bytes| *bytes < UNLIMITED)
    }

    /// Returns the most memory that the group may use (bytes).
    fn limit(&self) -> Option<u64> {
        match self.version {
            // Above `high` nothing is killed, but all tasks are slowed down until use falls below
            // it.
            Version::Two => [self.number("memory.max"), self.number("memory.high")].into_iter().flatten().min(),
            Version::One => {
                // The kernel reports the limit of hidden groups above, which this process cannot
                // read itself.
                let above = self.is_top.then(|| field(&self.statistics(), "hierarchical_memory_limit")).flatten();
                let own = self.number("memory.limit_in_bytes");
                [own, above.filter(|bytes| *bytes < UNLIMITED)].into_iter().flatten().min()
            }
        }
    }

    fn statistics(&self) -> String {
        fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default()
    }

    fn memory(&self) -> Option<Memory> {
        let total = self.limit()?;
        let used = self.number(match self.version {
            Version::Two => "memory.current",
            Version::One => "memory.usage_in_bytes",
        })?;
        let statistics = self.statistics();
        let sum = |names: [&str; 2]| names.iter().filter_map(|name| field(&statistics, name)).sum::<u64>();
        // Clean file pages can be dropped at once; dirty ones must be written first.
        let (files, unwritten) = match self.version {
            Version::Two => (["inactive_file", "active_file"], ["file_dirty", "file_writeback"]),
            Version::One => (["total_inactive_file", "total_active_file"], ["total_dirty", "total_writeback"]),
        };
        let (files, unwritten) = (sum(files), sum(unwritten));
        let available = |droppable: u64| total.saturating_sub(used.saturating_sub(droppable));
        let (now, soon) = (available(files.saturating_sub(unwritten)), available(files));
        Some(Memory { total, available: now, available_soon: soon, swap: 0, is_machine: false })
    }
}

fn field(statistics: &str, name: &str) -> Option<u64> {
    statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A tree of control group files, and a process's texts about it.
    struct Tree {
        root: tempfile::TempDir,
        cgroup: &'static str,
        mountinfo: &'static str,
    }

    impl Tree {
        fn new(cgroup: &'static str, mountinfo: &'static str, files: &[(&str, &str)]) -> Tree {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree { root, cgroup, mountinfo }
        }

        fn groups(&self) -> Vec<Group> {
            groups_of(self.cgroup, self.mountinfo, self.root.path())
        }

        fn tightest(&self) -> Option<(u64, u64)> {
            let memory = self.groups().iter().filter_map(Group::memory).min_by_key(Memory::room)?;
            Some((memory.total / MIB, memory.available / MIB))
        }

        fn least(&self) -> Option<u64> {
            self.groups().iter().filter_map(Group::limit).min().map(|bytes| bytes / MIB)
        }
    }

    const V2: &str =
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n31 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_limit_of_an_ancestor_is_the_limit_of_the_second_version() {
        let tree = Tree::new(
            "0::/a.slice/b.scope\n",
            V2,
            &[
                ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
                ("sys/fs/cgroup/a.slice/memory.max", "536870912\n"),
                ("sys/fs/cgroup/a.slice/memory.high", "max\n"),
                ("sys/fs/cgroup/a.slice/memory.current", "419430400\n"),
                (
                    "sys/fs/cgroup/a.slice/memory.stat",
                    "anon 1\ninactive_file 83886080\nactive_file 20971520\nfile_dirty 52428800\n",
                ),
                ("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n"),
                ("sys/fs/cgroup/a.slice/b.scope/memory.high", "max\n"),
                ("sys/fs/cgroup/a.slice/b.scope/memory.current", "1\n"),
            ],
        );
        // 400 MiB are used, 50 MiB of them clean file pages.
        assert_eq!((tree.least(), tree.tightest()), (Some(512), Some((512, 162))));
        let soon = tree.groups().iter().find_map(Group::memory).unwrap().available_soon;
        assert_eq!(soon / MIB, 212);
        assert_eq!(tree.groups().len(), 3);
        fs::write(tree.root.path().join("sys/fs/cgroup/a.slice/b.scope/memory.high"), "104857600\n").unwrap();
        assert_eq!((tree.least(), tree.tightest()), (Some(100), Some((100, 99))));
    }

    #[test]
    fn in_a_namespace_the_root_of_the_mount_is_the_own_group() {
        let files = [
            ("sys/fs/cgroup/memory.max", "268435456\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
            ("elsewhere/memory.max", "1048576\n"),
        ];
        let tree = Tree::new("0::/\n", V2, &files);
        assert_eq!(tree.tightest(), Some((256, 256)));
        // The mount was made outside the namespace, so the name of its top is not below the
        // namespace's root.
        let outside = "31 22 0:27 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(Tree::new("0::/\n", outside, &files).least(), Some(256));
        // The process was moved out of the namespace.
        assert_eq!(Tree::new("0::/../elsewhere\n", V2, &files).least(), Some(256));
    }

    #[test]
    fn the_first_version_is_found_among_other_hierarchies() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "1048576\n"),
            ("sys/fs/cgroup/memory/docker/memory.use_hierarchy", "1\n"),
            ("sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes", "511705088\n"),
            ("sys/fs/cgroup/memory/docker/c1/memory.use_hierarchy", "1\n"),
            (
                "sys/fs/cgroup/memory/docker/c1/memory.stat",
                "cache 509313024\nshmem 508166144\ntotal_inactive_file 1048576\nhierarchical_memory_limit 536870912\n",
            ),
        ];
        let tree = Tree::new("9:name=systemd:/\n4:memory:/docker/c1\n0::/\n", mounts, &files);
        assert_eq!((tree.least(), tree.tightest()), (Some(512), Some((512, 25))));
        // If the parent does not count its children, its limit does not matter.
        fs::write(tree.root.path().join("sys/fs/cgroup/memory/docker/memory.limit_in_bytes"), "1048576\n").unwrap();
        assert_eq!(tree.least(), Some(1));
        fs::write(tree.root.path().join("sys/fs/cgroup/memory/docker/memory.use_hierarchy"), "0\n").unwrap();
        assert_eq!(tree.least(), Some(512));
    }

    #[test]
    fn a_container_that_sees_only_its_own_group_knows_of_those_above_what_the_kernel_tells() {
        let mounts = "50 31 0:32 /docker/c1 /sys/fs/cgroup/cpu,memory ro - cgroup cgroup rw,cpu,memory\n";
        let files = [
            ("sys/fs/cgroup/cpu,memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu,memory/memory.usage_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/cpu,memory/memory.stat", "hierarchical_memory_limit 314572800\ntotal_rss 5\n"),
        ];
        let tree = Tree::new("4:cpu,memory:/docker/c1\n", mounts, &files);
        assert_eq!((tree.least(), tree.tightest()), (Some(300), Some((300, 200))));
        // Two mounts of one hierarchy: the one that shows more of it counts.
        let both = "50 31 0:32 /docker/c1 /own rw - cgroup cgroup rw,memory\n51 31 0:32 / /all\\040of rw - cgroup cgroup rw,memory\n";
        let tree = Tree::new("4:memory:/docker/c1\n", both, &[("all of/docker/memory.limit_in_bytes", "1048576\n")]);
        assert_eq!(tree.least(), Some(1));
    }

    #[test]
    fn nonsense_limits_nothing() {
        for (cgroup, mounts) in [("", ""), ("4:memory", V2), ("0::/\n", "x - cgroup2\n"), ("0::/\n", ""), ("::\n", V2)]
        {
            assert_eq!(Tree::new(cgroup, mounts, &[]).least(), None, "{cgroup:?}, {mounts:?}");
        }
        let tree =
            Tree::new("0::/\n", V2, &[("sys/fs/cgroup/memory.max", "many\n"), ("sys/fs/cgroup/memory.high", "\n")]);
        assert_eq!((tree.least(), tree.tightest()), (None, None));
        for text in ["", "MemTotal: 1 kB", "MemTotal: 0 kB\nMemAvailable: 0 kB", "MemTotal: x kB\nMemAvailable: 1 kB"] {
            assert_eq!(of_machine(text), None, "{text}");
        }
        let text = "MemTotal:       24000 kB\nMemFree:  1 kB\nMemAvailable:   12000 kB\nSwapFree:  1000 kB\n";
        assert_eq!(
            of_machine(text),
            Some(Memory {
                total: 24000 << 10,
                available: 12000 << 10,
                available_soon: 12000 << 10,
                swap: 1000 << 10,
                is_machine: true
            })
        );
    }

    #[test]
    fn something_is_left_for_what_does_not_ask() {
        let group = |total, available| Memory {
            total: total * MIB,
            available: available * MIB,
            available_soon: available * MIB,
            swap: 0,
            is_machine: false,
        };
        let room = |memory: Memory| memory.room() / MIB as i64;
        assert_eq!([group(512, 512), group(512, 10), group(64, 64)].map(room), [448, -54, 48]);
        let machine = Memory { is_machine: true, swap: 5 * MIB, ..group(4096, 100) };
        let large = Memory { is_machine: true, ..group(1 << 20, 1 << 20) };
        assert_eq!([large, machine].map(room), [(1 << 20) - 256, 100 + 5 - 128]);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_total_bytes() > 1 << 26);
        let memory = memory().unwrap();
        assert!(memory.total >= memory_total_bytes().min(memory.total) && memory.available <= memory.total * 2);
        assert!(take_memory(1) && !take_memory(u64::MAX));
    }
}
