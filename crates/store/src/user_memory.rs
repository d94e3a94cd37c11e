//! The memory of the process that has a store open, by what it is for.
//!
//! Owns: [`UserMemory`]. What a map is for shows in its file, or in its addresses where it has none. Left out: the
//! kernel's numbers (`shoal_host::own_maps`).

use std::path::Path;

use serde::{Deserialize, Serialize};
use shoal_host::MapUse;

use crate::cache::CacheReport;
use crate::names::{IMAGES, LOG};

/// Memory of the daemon, or of the program with a volume (bytes). The parts add up to `resident_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserMemory {
    pub resident_bytes: u64,
    /// Part of it that the kernel cannot drop when others need memory: no file on a disk holds it.
    pub needed_bytes: u64,
    /// Metadata and small files.
    pub data_bytes: u64,
    /// Pages of the log.
    pub log_bytes: u64,
    /// Writes of large files that wait for their age.
    pub held_bytes: u64,
    /// The program itself and its libraries.
    pub program_bytes: u64,
    /// Everything else: buffers of requests, tables, stacks.
    pub other_bytes: u64,
}

impl UserMemory {
    /// Returns the memory of this process. `store`: the store's directory; `memory`: the file of its memory, if that
    /// is elsewhere.
    pub(crate) fn now(store: &Path, memory: Option<&Path>, caches: &[CacheReport]) -> Option<UserMemory> {
        let maps = shoal_host::own_maps().ok()?;
        Some(UserMemory::of(&maps, store, memory, caches))
    }

    fn of(maps: &[MapUse], store: &Path, memory: Option<&Path>, caches: &[CacheReport]) -> UserMemory {
        let mut of = UserMemory::default();
        let (images, log) = (IMAGES.map(|name| store.join(name)), store.join(LOG));
        for map in maps {
            let path = without_mark(&map.path);
            let is_held = caches.iter().any(|cache| path.starts_with(&cache.place));
            let is_in_memory = memory == Some(path);
            let part = if map.is_region || is_in_memory || images.iter().any(|image| image == path) {
                &mut of.data_bytes
            } else if path.starts_with(&log) {
                &mut of.log_bytes
            } else if is_held {
                &mut of.held_bytes
            } else if path.is_absolute() {
                &mut of.program_bytes
            } else {
                &mut of.other_bytes
            };
            *part += map.resident_bytes;
            of.resident_bytes += map.resident_bytes;
            // Files on tmpfs are memory, too.
            of.needed_bytes += if is_held || is_in_memory { map.resident_bytes } else { map.anonymous_bytes };
        }
        of
    }
}

/// Returns the path of a map without the kernel's mark of a removed file.
fn without_mark(path: &Path) -> &Path {
    path.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map_or(path, Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_for_something() {
        let map = |path: &str, resident_bytes, anonymous_bytes| MapUse {
            path: path.into(),
            resident_bytes,
            anonymous_bytes,
            is_region: false,
        };
        let maps = [
            map("/s/image.1", 1, 0),
            MapUse { is_region: true, ..map("", 2, 2) },
            map("/ram/region (deleted)", 4, 0),
            map("/s/log/17", 8, 0),
            map("/usr/bin/shoal", 16, 3),
            map("[heap]", 32, 32),
            map("", 64, 64),
        ];
        let expected = UserMemory {
            resident_bytes: 127,
            needed_bytes: 2 + 4 + 3 + 32 + 64,
            data_bytes: 7,
            log_bytes: 8,
            held_bytes: 0,
            program_bytes: 16,
            other_bytes: 96,
        };
        assert_eq!(UserMemory::of(&maps, Path::new("/s"), Some(Path::new("/ram/region")), &[]), expected);
    }
}
