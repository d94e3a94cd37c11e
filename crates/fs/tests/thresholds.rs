//! `user.shoal.threshold`: which files have it, which inherit it, and from which size on they are
//! large.
//!
//! Owns: the attribute and the store's threshold while it is open. Left out: files that are there
//! already (`rebalance`), crashes (`enumeration`).

use shoal_format::superblock::{FEATURE_THRESHOLDS, MemoryKind};
use shoal_fs::{Error, Fs, Ino, Options, ROOT, RenameMode, SetAttr, THRESHOLD_ATTRIBUTE, XattrMode};

use crate::cold::{Store, caller, cool, options, setup};
use crate::store::{self, Setup};

const ATTRIBUTE: &[u8] = THRESHOLD_ATTRIBUTE;

pub fn set(fs: &Fs, ino: Ino, size: &str) {
    fs.setxattr(ino, ATTRIBUTE, size.as_bytes(), XattrMode::Any).unwrap();
}

pub fn get(fs: &Fs, ino: Ino) -> Option<String> {
    let listed = fs.listxattr(ino).unwrap().split(|&b| b == 0).any(|name| name == ATTRIBUTE);
    let value = match fs.getxattr(ino, ATTRIBUTE) {
        Err(Error::NoAttribute) => None,
        value => Some(String::from_utf8(value.unwrap()).unwrap()),
    };
    assert_eq!(listed, value.is_some());
    value
}

/// Returns the threshold in the record, and whether it is inherited.
pub fn stored(fs: &Fs, ino: Ino) -> (u32, bool) {
    let threshold = fs.placement(ino).unwrap().inode.threshold;
    (threshold.bytes, threshold.inherited)
}

pub fn is_large(fs: &Fs, ino: Ino) -> bool {
    fs.placement(ino).unwrap().pieces.iter().any(|piece| piece.bulk)
}

fn dir(fs: &Fs, parent: Ino, name: &str) -> Ino {
    fs.mkdir(&caller(), parent, name.as_bytes(), 0o755).unwrap().ino
}

fn file(fs: &Fs, parent: Ino, name: &str, len: usize) -> Ino {
    let ino = fs.mknod(&caller(), parent, name.as_bytes(), 0o644, 0).unwrap().ino;
    assert_eq!(fs.write(ino, 0, &vec![b'x'; len]).unwrap(), len);
    ino
}

fn bulk() -> Setup {
    Setup { bulk_blocks: 64, threshold: 128 << 10, ..setup() }
}

#[test]
fn programs_are_kept_whole_up_to_a_size_of_their_own() {
    let mut store = Store::new(bulk());
    let fs = store.open_with(Options { executables: 512 << 10, ..options(None) });
    let make = |name: &str, mode| fs.mknod(&caller(), ROOT, name.as_bytes(), mode, 0).unwrap().ino;
    let (program, text) = (make("program", 0o755), make("text", 0o644));
    for ino in [program, text] {
        fs.write(ino, 0, &vec![b'x'; 300 << 10]).unwrap();
    }
    assert!(!is_large(&fs, program) && is_large(&fs, text));
    fs.write(program, 512 << 10, b"x").unwrap();
    assert!(is_large(&fs, program));
    // A directory's own threshold counts for all files in it.
    let low = dir(&fs, ROOT, "low");
    set(&fs, low, "8K");
    let inside = fs.mknod(&caller(), low, b"program", 0o755, 0).unwrap().ino;
    fs.write(inside, 0, &[b'x'; 9 << 10]).unwrap();
    assert!(is_large(&fs, inside));
    // A large file that gets the execute bit stays large until it is rebalanced.
    let late = make("late", 0o600);
    fs.write(late, 0, &vec![b'x'; 300 << 10]).unwrap();
    fs.setattr(late, &SetAttr { mode: Some(0o755), ..SetAttr::default() }).unwrap();
    assert!(is_large(&fs, late));
    let found = fs.large().misplaced(late, 0).unwrap().expect("it belongs in memory");
    assert!(found.bytes > 0);
}

#[test]
fn files_made_in_a_directory_and_below_are_large_from_its_threshold_on() {
    let mut store = Store::new(bulk());
    let fs = store.open();
    let low = dir(&fs, ROOT, "low");
    let before = dir(&fs, low, "before");
    set(&fs, low, "8K");
    let below = dir(&fs, low, "below");
    let high = dir(&fs, ROOT, "high");
    set(&fs, high, "1M");
    let cases = [(ROOT, 128 << 10), (before, 128 << 10), (low, 8 << 10), (below, 8 << 10), (high, 1 << 20)];
    for (parent, threshold) in cases {
        let fits = file(&fs, parent, "fits", threshold);
        assert!(!is_large(&fs, fits), "{parent} {threshold}");
        // Cross it by a write of one byte, by a truncation to a longer size, and by an allocation.
        fs.write(fits, threshold as u64, b"x").unwrap();
        assert!(is_large(&fs, fits), "{parent} {threshold}");
        let cut = file(&fs, parent, "cut", 10);
        fs.setattr(cut, &SetAttr { size: Some(threshold as u64 + 1), ..SetAttr::default() }).unwrap();
        let asked = file(&fs, parent, "asked", 10);
        fs.fallocate(asked, 1, 0, threshold as u64 + 1).unwrap();
        assert!(is_large(&fs, cut) && is_large(&fs, asked), "{parent} {threshold}");
    }
    // A file may have its own threshold. A change of it moves nothing by itself.
    let own = file(&fs, below, "own", 20 << 10);
    set(&fs, own, "64K");
    assert!(is_large(&fs, own));
    fs.setattr(own, &SetAttr { size: Some(19 << 10), ..SetAttr::default() }).unwrap();
    fs.setattr(own, &SetAttr { size: Some(64 << 10), ..SetAttr::default() }).unwrap();
    assert!(!is_large(&fs, own), "below half of it the file moved back");
    store.close(fs);
}

#[test]
fn what_was_inherited_is_no_attribute_and_stays_with_renames_and_packing() {
    let mut store = Store::new(bulk());
    let fs = store.open();
    let top = dir(&fs, ROOT, "top");
    set(&fs, top, "16384");
    assert_eq!(get(&fs, top).as_deref(), Some("16K"));
    let below = dir(&fs, top, "below");
    let deep = file(&fs, below, "deep", 100);
    let unnamed = fs.tmpfile(&caller(), below, 0o600).unwrap().ino;
    for ino in [below, deep, unnamed] {
        assert_eq!((get(&fs, ino), stored(&fs, ino)), (None, (16 << 10, true)));
    }
    fs.forget(unnamed, 1);
    let link = fs.symlink(&caller(), top, b"link", b"x").unwrap().ino;
    assert_eq!(stored(&fs, link), (0, false));
    fs.rename(below, b"deep", ROOT, b"moved", RenameMode::Replace).unwrap();
    assert!(cool(&fs, &store.clock).blocks >= 1);
    store.close(fs);
    let fs = store.open();
    assert_eq!(
        (stored(&fs, deep), stored(&fs, below), stored(&fs, top)),
        ((16384, true), (16384, true), (16384, false))
    );
    fs.removexattr(top, ATTRIBUTE).unwrap();
    assert_eq!((get(&fs, top), stored(&fs, top), stored(&fs, below)), (None, (0, false), (16384, true)));
    assert_eq!(fs.removexattr(below, ATTRIBUTE), Err(Error::NoAttribute));
    store.close(fs);
}

#[test]
fn only_sizes_within_the_limits_are_taken() {
    let mut store = Store::new(bulk());
    let fs = store.open();
    let file = file(&fs, ROOT, "file", 5);
    let put = |value: &[u8], mode| fs.setxattr(file, ATTRIBUTE, value, mode);
    for wrong in [&b""[..], b"0", b"4095", b"65M", b"1G", b"-1M", b"1M\0", b"off", b"\xff", &[b'1'; 4000]] {
        assert_eq!(put(wrong, XattrMode::Any), Err(Error::Invalid), "{wrong:?}");
    }
    assert_eq!(put(b"4K", XattrMode::Replace), Err(Error::NoAttribute));
    let link = fs.symlink(&caller(), ROOT, b"link", b"file").unwrap().ino;
    assert_eq!(fs.setxattr(link, ATTRIBUTE, b"4K", XattrMode::Any), Err(Error::NotPermitted));
    assert!(!fs.region().has_feature(FEATURE_THRESHOLDS), "nothing was set yet");
    put(b"64M", XattrMode::Create).unwrap();
    assert_eq!(put(b"4K", XattrMode::Create), Err(Error::Exists));
    fs.setxattr(file, b"user.a", b"b", XattrMode::Any).unwrap();
    assert_eq!(fs.listxattr(file).unwrap(), b"user.a\0user.shoal.threshold\0");
    store.close(fs);
}

#[test]
fn the_stores_own_changes_while_it_is_open_and_is_as_formatted_afterwards() {
    let mut store = Store::new(bulk());
    let fs = store.open_with(Options { threshold: Some(4096), ..options(None) });
    assert!(is_large(&fs, file(&fs, ROOT, "a", 4097)));
    fs.set_threshold(Some(300 << 10));
    assert!(!is_large(&fs, file(&fs, ROOT, "b", 300 << 10)));
    fs.set_threshold(None);
    assert!(is_large(&fs, file(&fs, ROOT, "c", 129 << 10)) && fs.threshold() == 128 << 10);
    store.close(fs);
    let fs = store.open();
    assert_eq!(fs.threshold(), 128 << 10);
    store.close(fs);
}

#[test]
fn older_programs_refuse_a_store_from_its_first_threshold_on() {
    for kind in [MemoryKind::Battery, MemoryKind::Dax, MemoryKind::Logged] {
        let mut store = Store::new(Setup { kind, ..bulk() });
        let fs = store.open();
        let ino = file(&fs, ROOT, "file", 5);
        set(&fs, ino, "8K");
        // Crash right after it.
        store.world = store.world.snapshot().process_crash().open();
        drop(fs);
        let fs = store.open();
        assert!(fs.region().has_feature(FEATURE_THRESHOLDS), "{kind:?}");
        assert_eq!(get(&fs, ino).as_deref(), Some("8K"), "{kind:?}");
        store.close(fs);
    }
    // Without the feature such a record is damage.
    let mut store = Store::new(bulk());
    let fs = store.open();
    set(&fs, ROOT, "8K");
    store.close(fs);
    store.without_feature(FEATURE_THRESHOLDS);
    let report = store::report(store.setup, &store.world, false).unwrap();
    assert!(report.errors.iter().any(|error| error.to_string().contains("lacks the feature")), "{:?}", report.errors);
}
