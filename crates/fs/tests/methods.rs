//! `user.shoal.compress`: which files have it, which inherit it, and how their data is packed.
//!
//! Left out: what a crash may leave of it (`enumeration`), and its answers among other operations
//! (`model`).

use shoal_format::inode::INODE_SUMMED;
use shoal_format::superblock::{FEATURE_METHODS, MemoryKind};
use shoal_fs::{COMPRESS_ATTRIBUTE, Error, Form, Fs, Ino, Method, Options, ROOT, RenameMode, XattrMode};

use crate::cold::{AGE, Store, caller, cool, options, setup};
use crate::packed_files::form_of;
use crate::store::{self, Setup};

fn set(fs: &Fs, ino: Ino, method: &str) {
    fs.setxattr(ino, COMPRESS_ATTRIBUTE, method.as_bytes(), XattrMode::Any).unwrap();
}

fn get(fs: &Fs, ino: Ino) -> Option<String> {
    let listed = fs.listxattr(ino).unwrap().split(|&b| b == 0).any(|name| name == COMPRESS_ATTRIBUTE);
    let value = match fs.getxattr(ino, COMPRESS_ATTRIBUTE) {
        Err(Error::NoAttribute) => None,
        value => Some(String::from_utf8(value.unwrap()).unwrap()),
    };
    assert_eq!(listed, value.is_some());
    value
}

/// Makes a file of words, which every method shortens.
fn file(fs: &Fs, parent: Ino, name: &str) -> Ino {
    let ino = fs.mknod(&caller(), parent, name.as_bytes(), 0o644, 0).unwrap().ino;
    let text = "the quick brown fox jumps over a lazy dog, ".repeat(200);
    assert_eq!(fs.write(ino, 0, text.as_bytes()).unwrap(), text.len());
    ino
}

/// Lets time pass while the background packs files that have cooled.
fn pack(fs: &Fs, store: &Store) {
    for _ in 0..100 {
        store.clock.advance(AGE.as_nanos() as u64 / 2);
        fs.cooling().pack_tick().unwrap();
    }
}

#[test]
fn what_is_made_in_a_directory_has_its_method_and_so_has_what_is_made_below() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let made = |parent, name: &str| fs.mkdir(&caller(), parent, name.as_bytes(), 0o755).unwrap().ino;
    let dir = made(ROOT, "dir");
    let before = file(&fs, dir, "before");
    set(&fs, dir, "zstd");
    assert_eq!(get(&fs, dir).as_deref(), Some("zstd:3"));
    let below = made(dir, "below");
    let deep = file(&fs, below, "deep");
    let unnamed = fs.tmpfile(&caller(), below, 0o600).unwrap().ino;
    for ino in [below, deep, unnamed] {
        assert_eq!(get(&fs, ino).as_deref(), Some("zstd:3"));
    }
    fs.forget(unnamed, 1);
    let link = fs.symlink(&caller(), dir, b"link", b"x").unwrap().ino;
    let fifo = fs.mknod(&caller(), dir, b"fifo", 0o010600, 0).unwrap().ino;
    for ino in [before, link, fifo, ROOT] {
        assert_eq!(get(&fs, ino), None);
    }
    // Names do not matter afterwards.
    fs.link(deep, ROOT, b"hard").unwrap();
    fs.rename(below, b"deep", ROOT, b"moved", RenameMode::Replace).unwrap();
    fs.rename(dir, b"before", below, b"deep", RenameMode::Replace).unwrap();
    assert_eq!((get(&fs, deep).as_deref(), get(&fs, before)), (Some("zstd:3"), None));
    fs.removexattr(below, COMPRESS_ATTRIBUTE).unwrap();
    assert_eq!((get(&fs, below), get(&fs, file(&fs, below, "later"))), (None, None));
    set(&fs, deep, "off");
    // A file that inherits the method takes no room for it.
    assert_eq!(fs.placement(deep).unwrap().inode.xattr, shoal_format::SlotRef::NONE);
    assert!(cool(&fs, &store.clock).blocks >= 1);
    store.close(fs);
    let fs = store.open();
    assert_eq!((get(&fs, dir).as_deref(), get(&fs, deep).as_deref()), (Some("zstd:3"), Some("off")));
    store.close(fs);
}

#[test]
fn a_file_is_packed_by_its_own_method_and_by_the_stores_without_one() {
    for (of_store, usual) in [(Method::Auto, Form::Zstd), (Method::Lz4, Form::Lz4), (Method::Off, Form::Plain)] {
        let mut store = Store::new(setup());
        let fs = store.open_with(Options { method: of_store, ..options(Some(AGE)) });
        let [plain, lz4, zstd, off, gone] =
            ["plain", "lz4", "zstd:19", "off", "gone"].map(|name| file(&fs, ROOT, name));
        for (ino, method) in [(lz4, "lz4"), (zstd, "zstd:19"), (off, "off"), (gone, "lz4")] {
            set(&fs, ino, method);
        }
        fs.removexattr(gone, COMPRESS_ATTRIBUTE).unwrap();
        pack(&fs, &store);
        let forms = [plain, lz4, zstd, off, gone].map(|ino| form_of(&fs, ino));
        assert_eq!(forms, [usual, Form::Lz4, Form::Zstd, Form::Plain, usual], "{of_store}");
        // The file is not packed on demand either, and has no checksum.
        assert_eq!(fs.cooling().pack_now(off).unwrap(), Default::default());
        assert_eq!(fs.placement(off).unwrap().inode.flags & INODE_SUMMED, 0);
        // A packed file stays packed until it is written again.
        set(&fs, lz4, "off");
        pack(&fs, &store);
        assert_eq!(form_of(&fs, lz4), Form::Lz4);
        fs.write(lz4, 5, b"x").unwrap();
        pack(&fs, &store);
        assert_eq!(form_of(&fs, lz4), Form::Plain);
        // Inodes are packed whatever the method for data.
        assert!(cool(&fs, &store.clock).blocks >= 1);
        assert_eq!(get(&fs, zstd).as_deref(), Some("zstd:19"));
        store.close(fs);
    }
}

#[test]
fn a_full_store_packs_no_file_that_is_to_stay_as_it_is() {
    for of_store in [Method::Auto, Method::Off] {
        let mut store = Store::new(Setup { region_bytes: 4 << 20, ring_bytes: 512 << 10, ..setup() });
        let fs = store.open_with(Options { method: of_store, ..options(Some(AGE)) });
        let made = |name: &str| fs.mkdir(&caller(), ROOT, name.as_bytes(), 0o755).unwrap().ino;
        let (off, lz4) = (made("off"), made("lz4"));
        if of_store != Method::Off {
            set(&fs, off, "off");
        }
        set(&fs, lz4, "lz4");
        let packed = file(&fs, lz4, "packed");
        let mut kept = Vec::new();
        let fill = |number: usize, kept: &mut Vec<Ino>| {
            let ino = fs.mknod(&caller(), off, number.to_string().as_bytes(), 0o644, 0)?.ino;
            kept.push(ino);
            fs.write(ino, 0, &[b'x'; 8000])
        };
        let refused = (0..).map(|number| fill(number, &mut kept)).find(|outcome| *outcome != Ok(8000)).unwrap();
        assert!(kept.len() > 200 && matches!(refused, Ok(0..8000) | Err(Error::NoSpace(_))), "{refused:?}");
        assert_eq!(form_of(&fs, packed), Form::Lz4);
        kept.pop();
        assert!(kept.iter().all(|ino| form_of(&fs, *ino) == Form::Plain), "{of_store}");
        store.close(fs);
    }
}

#[test]
fn only_the_values_of_the_option_are_taken() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let file = file(&fs, ROOT, "file");
    let put = |value: &[u8], mode| fs.setxattr(file, COMPRESS_ATTRIBUTE, value, mode);
    for wrong in [&b""[..], b"gzip", b"zstd:0", b"zstd:20", b"lz4\0", b"LZ4", b"\xff\xfe", &[b'a'; 4000]] {
        assert_eq!(put(wrong, XattrMode::Any), Err(Error::Invalid), "{wrong:?}");
    }
    assert_eq!(put(b"lz4", XattrMode::Replace), Err(Error::NoAttribute));
    assert_eq!(fs.removexattr(file, COMPRESS_ATTRIBUTE), Err(Error::NoAttribute));
    let link = fs.symlink(&caller(), ROOT, b"link", b"file").unwrap().ino;
    assert_eq!(fs.setxattr(link, COMPRESS_ATTRIBUTE, b"lz4", XattrMode::Any), Err(Error::NotPermitted));
    assert!(!fs.region().has_feature(FEATURE_METHODS), "nothing was set yet");
    put(b"zstd:7", XattrMode::Create).unwrap();
    assert!(fs.region().has_feature(FEATURE_METHODS));
    assert_eq!(put(b"lz4", XattrMode::Create), Err(Error::Exists));
    // Other attributes do not affect it.
    fs.setxattr(file, b"user.a", b"b", XattrMode::Any).unwrap();
    assert_eq!(fs.listxattr(file).unwrap(), b"user.a\0user.shoal.compress\0");
    fs.removexattr(file, b"user.a").unwrap();
    assert_eq!(get(&fs, file).as_deref(), Some("zstd:7"));
    store.close(fs);
}

#[test]
fn older_programs_refuse_a_store_from_its_first_method_on() {
    for kind in [MemoryKind::Battery, MemoryKind::Dax, MemoryKind::Logged] {
        let mut store = Store::new(Setup { kind, ..setup() });
        let fs = store.open();
        let ino = file(&fs, ROOT, "file");
        set(&fs, ino, "lz4");
        // Crash right after it.
        store.world = store.world.snapshot().process_crash().open();
        drop(fs);
        let fs = store.open();
        assert!(fs.region().has_feature(FEATURE_METHODS), "{kind:?}");
        assert_eq!(get(&fs, ino).as_deref(), Some("lz4"), "{kind:?}");
        store.close(fs);
    }
    // Without the feature such a record is damage.
    let mut store = Store::new(setup());
    let fs = store.open();
    set(&fs, ROOT, "lz4");
    store.close(fs);
    store.without_feature(FEATURE_METHODS);
    let report = store::report(store.setup, &store.world, false).unwrap();
    assert!(report.errors.iter().any(|error| error.to_string().contains("lacks the feature")), "{:?}", report.errors);
}
