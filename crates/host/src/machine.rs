//! Facts about the machine: time, its boot, randomness, free space.
//!
//! Wall-clock time may step and is for time stamps only. Ages and intervals use the monotonic
//! clock, which counts from the clock's creation. The boot id shows whether power was lost since a
//! store was last used.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use shoal_media::Clock;

use crate::directory::Directory;
use crate::named;

/// The machine's clocks.
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_nanos() as i64,
            Err(before) => -(before.duration().as_nanos() as i64),
        }
    }

    fn tick_ns(&self) -> i64 {
        let tick = clock_gettime(ClockId::RealtimeCoarse);
        tick.tv_sec.saturating_mul(1_000_000_000).saturating_add(tick.tv_nsec)
    }

    fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Returns the time since boot (ns), including sleep, so that it agrees with the time other
/// machines measure.
pub fn boottime_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Identifies this boot of the machine.
pub fn boot_id() -> io::Result<[u8; 16]> {
    // Keep the id: it never changes, and a process without a free descriptor must not take this
    // boot for another.
    static KNOWN: OnceLock<[u8; 16]> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(|e| named(path, e))?;
    let uuid = uuid::Uuid::try_parse(text.trim());
    let uuid = uuid.map_err(|e| named(path, io::Error::new(io::ErrorKind::InvalidData, e)))?;
    Ok(*KNOWN.get_or_init(|| uuid.into_bytes()))
}

/// Identifies a file or directory and the mount it lies in, within one boot.
///
/// A file system that went down without a sync and is mounted again within one boot has lost what a
/// power loss would have lost. Its mount has a new number, where the kernel can tell (Linux 6.8 and
/// later). A copy of the file, or a snapshot of its subvolume, may lack bytes that were only in the
/// page cache of the original. It has another inode, birth time or device number. Another view of
/// the same file system (a bind mount, a mount namespace) also has another mount number.
pub fn place_id(path: &Path) -> io::Result<u64> {
    place_of(rustix::fs::CWD, path, rustix::fs::AtFlags::empty()).map_err(|e| named(path, e))
}

/// Like [`place_id`], for a name in a held directory. A link is not followed.
pub fn place_id_in(directory: &Directory, name: &str) -> io::Result<u64> {
    place_of(directory, Path::new(name), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| named(&directory.path().join(name), e))
}

fn place_of(directory: impl AsFd, path: &Path, flags: rustix::fs::AtFlags) -> rustix::io::Result<u64> {
    // STATX_MNT_ID_UNIQUE: never reused within one boot, unlike the number in /proc/self/mountinfo.
    let unique = rustix::fs::StatxFlags::from_bits_retain(0x4000);
    let wanted = unique | rustix::fs::StatxFlags::BASIC_STATS | rustix::fs::StatxFlags::BTIME;
    let found = rustix::fs::statx(directory, path, flags, wanted)?;
    let mount = if found.stx_mask & unique.bits() != 0 { found.stx_mnt_id } else { 0 };
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    // The inode number of a removed file may be reused, so the birth time counts too.
    let is_born = found.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
    let born =
        if is_born { found.stx_btime.tv_sec.cast_unsigned() << 30 ^ u64::from(found.stx_btime.tv_nsec) } else { 0 };
    // Multiply by an odd factor between the parts, so that no two parts cancel each other out.
    let mixed = [mount, device, found.stx_ino, born]
        .into_iter()
        .fold(0u64, |id, part| (id ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32));
    Ok(mixed)
}

/// CPUs that are present or may be added, as the kernel counts them.
pub fn possible_cpus() -> usize {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    let counted = listed.ok().and_then(|list| count_cpus(list.trim()));
    counted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Returns the idle time of all processors together since boot.
pub fn idle_time() -> Option<Duration> {
    let ticks = idle_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Returns the idle time of all processors in ticks, from the kernel's statistics. A processor that
/// waits for I/O is idle as well. A thread that waits for io_uring may make it appear to wait for
/// I/O all the time.
fn idle_ticks(statistics: &str) -> Option<u64> {
    // "cpu user nice system idle iowait ...".
    let mut fields = statistics.strip_prefix("cpu ")?.split_ascii_whitespace().skip(3);
    let mut next = || fields.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

/// Counts the numbers in a list like "0-3,8". `None` if the text is no such list.
fn count_cpus(list: &str) -> Option<usize> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?).map(|more| more + 1)
    };
    list.split(',').map(count).sum()
}

/// Returns bytes from the kernel's random generator.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut out = [0; N];
    let mut done = 0;
    while done < N {
        match getrandom(&mut out[done..], GetRandomFlags::empty()) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(out)
}

/// Space of the file system that holds a path, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSpace {
    pub total_bytes: u64,
    /// Free for root.
    pub free_bytes: u64,
    /// Free for every user.
    pub available_bytes: u64,
}

pub fn host_free_bytes(path: &Path) -> io::Result<HostSpace> {
    rustix::fs::statvfs(path).map(space).map_err(|e| named(path, e))
}

/// Like [`host_free_bytes`], for a held file or directory. Errors name `path`.
pub fn held_host_bytes(held: impl AsFd, path: &Path) -> io::Result<HostSpace> {
    rustix::fs::fstatvfs(held).map(space).map_err(|e| named(path, e))
}

fn space(s: rustix::fs::StatVfs) -> HostSpace {
    HostSpace {
        total_bytes: s.f_blocks * s.f_frsize,
        free_bytes: s.f_bfree * s.f_frsize,
        available_bytes: s.f_bavail * s.f_frsize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_that_waits_for_io_is_idle() {
        let told = "cpu  22 1 203 40 320 7 8 9 0 0\ncpu0 11 0 114 20 152 0 0 0 0 0\n";
        assert_eq!(idle_ticks(told), Some(360));
        for other in ["", "cpu0 1 2 3 4 5\n", "cpu  1 2 3 4", "cpu  1 2 3 x 5"] {
            assert_eq!(idle_ticks(other), None, "{other}");
        }
        assert!(idle_time().is_some());
    }

    #[test]
    fn clocks_run_forward() {
        let clock = SystemClock::new();
        let first = clock.monotonic_ns();
        assert!(clock.now_ns() > 1_600_000_000_000_000_000, "later than 2020");
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(clock.monotonic_ns() >= first + 2_000_000);
        assert_eq!(["0", "0-1", "0-3,8,10-11"].map(count_cpus), [Some(1), Some(2), Some(7)]);
        assert_eq!(["", "-", "3-1", "a", "0-"].map(count_cpus), [None; 5]);
        let (tick, now) = (clock.tick_ns(), clock.now_ns());
        assert!(tick <= now && now - tick < 1_000_000_000, "{tick}, {now}");
    }

    #[test]
    fn the_boot_id_stays_and_random_bytes_do_not() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
    }

    #[test]
    fn a_place_has_one_number_and_its_copy_another() {
        let number = |path: &str| place_id(Path::new(path)).unwrap();
        assert_eq!(number("/"), number("/"));
        assert_ne!(number("/"), number("/proc"));
        let scratch = tempfile::tempdir().unwrap();
        let (first, copy, moved) = (scratch.path().join("a"), scratch.path().join("b"), scratch.path().join("c"));
        std::fs::write(&first, "x").unwrap();
        std::fs::copy(&first, &copy).unwrap();
        let before = place_id(&first).unwrap();
        assert_ne!(before, place_id(&copy).unwrap());
        std::fs::rename(&first, &moved).unwrap();
        assert_eq!(before, place_id(&moved).unwrap());
        assert!(place_id(Path::new("/no/such/place")).unwrap_err().to_string().contains("/no/such/place"));
    }

    #[test]
    fn space_is_in_bytes() {
        let space = host_free_bytes(Path::new("/")).unwrap();
        assert!(space.total_bytes >= space.free_bytes && space.free_bytes >= space.available_bytes);
        assert!(space.total_bytes > 1 << 24);
        assert!(host_free_bytes(Path::new("/no/such/place")).unwrap_err().to_string().contains("/no/such/place"));
    }
}
