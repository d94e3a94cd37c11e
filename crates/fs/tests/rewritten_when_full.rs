//! Full stores whose files are cut to nothing and written anew, as an editor or `echo >` does.
//!
//! Rule: what the cut gave back is the file's to write again. Left out: room after removals (`full_of_packed`), and
//! what `statfs` promises (`promised_room`).

use std::ops::RangeInclusive;
use std::sync::Arc;

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, Ino, ROOT, SetAttr};
use shoal_sim::{Random, SimClock};

use crate::store::{CALLER, Setup, format, open_at};

/// Files of one length leave no room in segments of other classes.
const ALIKE: &[RangeInclusive<u64>] = &[3000..=3000];
/// Not one more byte fits behind them.
const ANY: &[RangeInclusive<u64>] = &[1..=5000, 1..=500, 1..=50, 1..=1];

/// Makes files of these lengths, of each kind until one does not fit. Returns them with their lengths.
fn fill(fs: &Fs, random: &mut Random, lengths: &[RangeInclusive<u64>]) -> Vec<(Ino, usize)> {
    let mut files = Vec::new();
    for range in lengths {
        loop {
            let name = format!("f{:06}", files.len());
            let Ok(made) = fs.mknod(&CALLER, ROOT, name.as_bytes(), 0o644, 0) else { break };
            let len = (range.start() + random.below(range.end() + 1 - range.start())) as usize;
            match fs.write(made.ino, 0, &random.bytes(len)) {
                Ok(written) => files.push((made.ino, written)),
                Err(Error::NoSpace(_)) => {
                    fs.unlink(ROOT, name.as_bytes()).unwrap();
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    files
}

#[test]
fn a_file_cut_to_nothing_has_room_for_as_much_as_it_held() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        for (all, lengths) in [(false, ALIKE), (true, ALIKE), (false, ANY), (true, ANY)] {
            let setup = Setup { kind, region_bytes: 256 << 16, bulk_blocks: 0, ..Setup::default() };
            let (world, clock) = (format(setup, 7), Arc::new(SimClock::new(1_000_000_000)));
            let (fs, _) = open_at(setup, &world, 1, 1, &clock).expect("a new store opens");
            let mut random = Random::new(7);
            let files = fill(&fs, &mut random, lengths);
            let chosen = random.shuffled(files.iter().copied());
            let refused = chosen.iter().take(200).filter(|&&(ino, len)| {
                fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
                let bytes = random.bytes(if all { len } else { len.min(2) });
                match fs.write(ino, 0, &bytes) {
                    Ok(written) => {
                        assert_eq!(written, bytes.len());
                        false
                    }
                    Err(Error::NoSpace(_)) => true,
                    Err(error) => panic!("{error}"),
                }
            });
            let refused = refused.count();
            println!("{}, all of it {all}: {refused} of 200 refused, {} files", kind.name(), files.len());
            assert_eq!(refused, 0, "{}, all of it {all}", kind.name());
        }
    }
}

#[test]
fn a_store_whose_files_are_all_written_anew_can_be_emptied() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        let setup = Setup { kind, region_bytes: 128 << 16, bulk_blocks: 0, ..Setup::default() };
        let (world, clock) = (format(setup, 7), Arc::new(SimClock::new(1_000_000_000)));
        let (fs, _) = open_at(setup, &world, 1, 1, &clock).expect("a new store opens");
        let mut random = Random::new(8);
        let files = fill(&fs, &mut random, ANY);
        let mut refused = 0;
        for _ in 0..2 {
            for &(ino, len) in &random.shuffled(files.iter().copied()) {
                fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
                // What others leave may be taken meanwhile.
                if random.below(4) == 0 {
                    let (other, _) = files[random.index(files.len())];
                    let _ = fs.write(other, 6000, &random.bytes(500));
                }
                refused += u64::from(fs.write(ino, 0, &random.bytes(len)).is_err());
            }
        }
        println!("{}: {refused} of {} refused", kind.name(), 2 * files.len());
        for number in 0..files.len() {
            fs.unlink(ROOT, format!("f{number:06}").as_bytes()).unwrap();
        }
        assert_eq!(fs.usage().inodes, 1);
    }
}
