//! The memory that this process has in use, map by map, as the kernel counts it.
//!
//! Owns: which addresses are a store's private memory, which may be maps of an image and maps without a file. Left
//! out: what the process may use (`memory_limit`).

use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::PathBuf;

use parking_lot::Mutex;

/// The addresses of the private regions of this process.
static REGIONS: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Addresses of a private region, noted as long as this value lives.
pub(crate) struct RegionNoted(Range<usize>);

impl RegionNoted {
    pub fn new(addresses: Range<usize>) -> RegionNoted {
        REGIONS.lock().push(addresses.clone());
        RegionNoted(addresses)
    }
}

impl Drop for RegionNoted {
    fn drop(&mut self) {
        REGIONS.lock().retain(|noted| *noted != self.0);
    }
}

/// A memory map of this process, and the memory that it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapUse {
    /// The file, or the kernel's word for the map (`[heap]`). Empty: memory without a file.
    pub path: PathBuf,
    /// Pages in memory (bytes).
    pub resident_bytes: u64,
    /// The part of `resident_bytes` that is in no file: anonymous pages (bytes).
    pub anonymous_bytes: u64,
    /// It is a part of the private memory of a store.
    pub is_region: bool,
}

/// Lists the maps of this process. Takes some milliseconds for each gigabyte that it has in memory.
pub fn own_maps() -> io::Result<Vec<MapUse>> {
    let regions = REGIONS.lock().clone();
    maps_in(BufReader::new(std::fs::File::open("/proc/self/smaps")?), &regions)
}

/// Reads the format of /proc/PID/smaps (proc(5)).
fn maps_in(text: impl BufRead, regions: &[Range<usize>]) -> io::Result<Vec<MapUse>> {
    let mut maps: Vec<MapUse> = Vec::new();
    for line in text.lines() {
        let line = line?;
        let first = line.split_whitespace().next().unwrap_or_default();
        let Some(name) = first.strip_suffix(':') else {
            // Address, rights, offset, device and inode come before the path, which may hold blanks.
            let mut rest = line.as_str();
            for _ in 0..5 {
                rest = rest.trim_start();
                rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
            }
            let start = first.split('-').next().and_then(|start| usize::from_str_radix(start, 16).ok());
            let is_region = start.is_some_and(|start| regions.iter().any(|region| region.contains(&start)));
            maps.push(MapUse { path: rest.trim_start().into(), is_region, ..MapUse::default() });
            continue;
        };
        let kib = || line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        match (name, maps.last_mut()) {
            ("Rss", Some(map)) => map.resident_bytes = kib() << 10,
            ("Anonymous", Some(map)) => map.anonymous_bytes = kib() << 10,
            _ => {}
        }
    }
    Ok(maps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_paths_and_sizes() {
        let text = "55d0-55d1 r-xp 00000000 fd:00 1234       /a path/with blanks (deleted)\n\
                    Size:                  8 kB\nRss:                   4 kB\nAnonymous:             0 kB\n\
                    7f00-7f10 rw-p 00000000 00:00 0 \nRss:                  12 kB\nAnonymous:            12 kB\n\
                    VmFlags: rd wr mr\n\
                    7ffc-7ffd rw-p 00000000 00:00 0          [stack]\nRss:                  20 kB\n";
        let map = |path: &str, resident: u64, anonymous: u64| MapUse {
            path: path.into(),
            resident_bytes: resident << 10,
            anonymous_bytes: anonymous << 10,
            is_region: anonymous > 0,
        };
        let expected = [map("/a path/with blanks (deleted)", 4, 0), map("", 12, 12), map("[stack]", 20, 0)];
        assert_eq!(maps_in(text.as_bytes(), &[0x7eff..0x7f01, 0x1..0x2]).unwrap(), expected);
    }

    #[test]
    fn memory_that_is_used_is_counted() {
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        let anonymous = || own_maps().unwrap().iter().map(|map| map.anonymous_bytes).sum::<u64>();
        assert!(anonymous() >= block.len() as u64);
    }
}
