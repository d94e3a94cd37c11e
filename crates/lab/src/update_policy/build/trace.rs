//! The recorded build: which blocks it modifies, frees and reads, and when.
//!
//! Owns: the format of `data/build.zst`, which `scripts/record-build` writes. Rules: times are
//! processor time of the build, so that waits are left to a model. Modifications of a block within
//! a tick are one line.

/// The unit of time (ns of the recording's processor time).
pub const TICK_NS: u64 = 10_000_000;
/// The unit in which a file's end within a block is told (1 KB); so many fill a block.
const FULL: u64 = 8;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Data,
    Indirect,
    Inodes,
    /// Inodes, one of them created, unlinked or linked.
    Links,
    Directory,
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `slot`: its place, in blocks. `file`: 0 for metadata.
    Modified {
        block: u64,
        slot: u64,
        file: u64,
        holds: Holds,
        count: u64,
        is_filled: bool,
    },
    Freed {
        block: u64,
    },
    Read {
        slot: u64,
    },
    /// Only time passes.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Time since the line before.
    pub ticks: u64,
    pub event: Event,
}

fn parse(line: &str) -> Option<Recorded> {
    let mut words = line.split(' ');
    let word = words.next()?;
    let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let holds = match word {
        "d" => Holds::Data,
        "i" => Holds::Indirect,
        "n" => Holds::Inodes,
        "s" => Holds::Links,
        "x" => Holds::Directory,
        _ => Holds::Map,
    };
    let (ticks, event) = match (word, &numbers[..]) {
        ("r", &[ticks, slot]) => (ticks, Event::Read { slot }),
        ("f", &[ticks, block]) => (ticks, Event::Freed { block }),
        ("d", &[ticks, block, slot, file, count, end]) => {
            (ticks, Event::Modified { block, slot, file, holds, count, is_filled: end == FULL })
        }
        ("i" | "n" | "s" | "x" | "b", &[ticks, block, slot, file, count]) => {
            (ticks, Event::Modified { block, slot, file, holds, count, is_filled: false })
        }
        _ => return None,
    };
    Some(Recorded { ticks, event })
}

/// Returns the events of a recording, or what is wrong with it.
pub fn events(packed: &[u8]) -> Result<Vec<Recorded>, String> {
    let text = zstd::stream::decode_all(packed).map_err(|error| error.to_string())?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    text.lines().map(|line| parse(line).ok_or_else(|| format!("line {line:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_modification_a_release_or_a_read() {
        let event = |line: &str| parse(line).map(|recorded| (recorded.ticks, recorded.event));
        let data =
            |count, is_filled| Event::Modified { block: 7, slot: 90, file: 3, holds: Holds::Data, count, is_filled };
        assert_eq!(event("d 2 7 90 3 5 8"), Some((2, data(5, true))));
        assert_eq!(event("d 0 7 90 3 1 7"), Some((0, data(1, false))));
        assert_eq!(event("f 1 7"), Some((1, Event::Freed { block: 7 })));
        assert_eq!(event("r 0 90"), Some((0, Event::Read { slot: 90 })));
        assert_eq!([event("d 0 7 90 3 1"), event("q 0 1 2 0 1"), event("n 0 x 2 0 1")], [None; 3]);
    }
}
