//! The files in a store's directory.
//!
//! | file | what |
//! |---|---|
//! | `shoal.json` | the description: version, uuid, memory, place of the bulk storage; `format` writes it last |
//! | `image.0`, `image.1` | the region at rest (of `logged` and `battery` memory) |
//! | `log/` | the log of `logged` memory |
//! | `bulk` | data of large files, unless it is kept elsewhere |
//! | `cache`, `cache.1` to `cache.15` | the places of the bulk devices' write-back caches, while there are any |
//! | `cache.emptied` | which caches the last clean end removed |
//! | `bulk.1` to `bulk.15` | further bulk devices of a copy |
//! | `scrubbed` | the result of the last complete scrub |
//! | `lock`, `pid`, `control`, `shoal.log` | the lock for one user; the daemon's process id, socket and log |

use shoal_format::bulk_list::BULK_DEVICES_MAX;

/// The description.
pub const DESCRIPTION: &str = "shoal.json";
/// The description while it is being written.
pub(crate) const DESCRIPTION_NEW: &str = "shoal.json.new";
pub(crate) const IMAGES: [&str; 2] = ["image.0", "image.1"];
pub(crate) const LOG: &str = "log";
pub(crate) const BULK: &str = "bulk";
pub(crate) const LOCK: &str = "lock";
pub(crate) const PID: &str = "pid";
pub(crate) const CONTROL: &str = "control";
/// The place of the first bulk device's write-back cache.
const CACHE: &str = "cache";
/// The result of the last scrub.
pub(crate) const SCRUBBED: &str = "scrubbed";
pub(crate) const SCRUBBED_NEW: &str = "scrubbed.new";
/// Records which caches a clean end removed.
pub(crate) const CACHES_EMPTIED: &str = "cache.emptied";
/// The log of the daemon that serves a mount.
pub const DAEMON_LOG: &str = "shoal.log";
/// Everything that a store's directory may hold, except the files of further bulk devices
/// ([`is_of_bulk`]).
pub(crate) const OWN_NAMES: [&str; 16] = [
    DESCRIPTION,
    DESCRIPTION_NEW,
    IMAGES[0],
    IMAGES[1],
    LOG,
    BULK,
    DAEMON_LOG,
    "shoal.log.1",
    PID,
    LOCK,
    CONTROL,
    CACHE,
    "cache.new",
    SCRUBBED,
    SCRUBBED_NEW,
    CACHES_EMPTIED,
];

/// Returns the file of a bulk device in a store that was copied.
pub(crate) fn bulk_file(number: u32) -> String {
    if number == 0 { BULK.into() } else { format!("{BULK}.{number}") }
}

/// Returns the place of a bulk device's write-back cache.
pub(crate) fn cache_note(number: u32) -> String {
    if number == 0 { CACHE.into() } else { format!("{CACHE}.{number}") }
}

/// Returns true for a file of a further bulk device or of its cache.
pub(crate) fn is_of_bulk(name: &str) -> bool {
    (1..BULK_DEVICES_MAX as u32).any(|number| bulk_file(number) == name || cache_note(number) == name)
}
