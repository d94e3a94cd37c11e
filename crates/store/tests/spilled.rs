//! Small files on bulk storage, and the checker that reads them there.
//!
//! Left out: spilling itself (`crates/fs/tests`), and findings one by one (`crates/check/tests`).

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use shoal_check::FindingKind;
use shoal_fs::{Caller, Options, ROOT};
use shoal_store::{FormatOptions, Store};

/// Returns bytes that do not compress and that no other file has.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

#[test]
fn a_flipped_bit_in_a_spilled_file_is_an_error_that_names_it() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("store");
    let options =
        FormatOptions { memory_bytes: Some(64 << 20), bulk_bytes: Some(64 << 20), ..FormatOptions::default() };
    Store::format(&path, &options).unwrap();
    let acquire = || Store::acquire(&path, Duration::ZERO).unwrap();
    {
        let store = acquire();
        let fs = store.open(Options::default()).unwrap().fs;
        let caller = Caller { uid: 0, gid: 0, umask: 0o022, hold: false };
        for number in 0..50 {
            let ino = fs.mknod(&caller, ROOT, format!("f{number}").as_bytes(), 0o644, 0).unwrap().ino;
            fs.write(ino, 0, &noise(number, 3000 + 700 * number as usize)).unwrap();
        }
        assert!(fs.spilling().spill_all().unwrap() > 500_000);
        fs.shutdown().unwrap();
    }
    let sound = acquire().check(true, &()).unwrap();
    assert!(sound.is_sound() && sound.counts.spilled_bytes > 500_000, "{:?}", sound.errors);

    let bulk = OpenOptions::new().read(true).write(true).open(path.join("bulk")).unwrap();
    let mut bytes = vec![0; 4 << 20];
    bulk.read_exact_at(&mut bytes, 0).unwrap();
    let part = &noise(31, 3000 + 700 * 31)[2000..2100];
    let at = bytes.windows(part.len()).position(|bytes| bytes == part).expect("the file is on bulk storage");
    bulk.write_all_at(&[bytes[at] ^ 0x10], at as u64).unwrap();

    let errors = acquire().check(true, &()).unwrap().errors;
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!((error.kind, error.path.as_deref()), (FindingKind::SpilledData, Some("/f31")));
    assert!(acquire().check(false, &()).unwrap().is_sound(), "without sums nothing is read");
}
