//! Which changes chattr's flags refuse, what a rename leaves for an overlay, when reads change
//! access times, which files keep set-group-id under an access ACL, and which changes take a
//! program's capabilities.
//!
//! The store is in simulated memory and has both tiers. The crash search tests that each of the
//! changes is whole after a crash.

use std::sync::Arc;

use crate::store::{Boot, CALLER, Setup, Watch};
use shoal_format::superblock::MemoryKind;
use shoal_fs::{
    AccessTimes, Caller, Error, FileFlags, Fs, Ino, Manner, Options, Patience, ROOT, RenameMode, SetAttr, TimeChange,
    Writer, XattrMode,
};
use shoal_sim::{SimClock, World};

const SETUP: Setup = Setup {
    kind: MemoryKind::Battery,
    region_bytes: 90 << 16,
    saved: false,
    ring_bytes: 512 << 10,
    bulk_blocks: 24,
    threshold: 40_000,
    cached: false,
};
const IMMUTABLE: FileFlags = FileFlags { immutable: true, append_only: false, no_dump: false, no_atime: false };
const APPEND_ONLY: FileFlags = FileFlags { immutable: false, append_only: true, no_dump: false, no_atime: false };
const REFUSED: Error = Error::NotPermitted;

struct Scene {
    world: World,
    clock: Arc<SimClock>,
    fs: Fs,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(Options { no_atime: true, ..Options::default() })
    }

    fn with(options: Options) -> Scene {
        let world = crate::store::format(SETUP, 1);
        let clock = Arc::new(SimClock::new(1_000));
        let opened = crate::store::open_with(SETUP, &world, Boot::first(true), &Watch::default(), options, &clock);
        let (fs, _) = opened.unwrap().unwrap();
        Scene { world, clock, fs }
    }

    fn file(&self, dir: Ino, name: &str, len: usize) -> Ino {
        let ino = self.fs.mknod(&CALLER, dir, name.as_bytes(), 0o100644, 0).unwrap().ino;
        self.fs.write(ino, 0, &vec![7; len]).unwrap();
        ino
    }

    fn dir(&self, name: &str) -> Ino {
        self.fs.mkdir(&CALLER, ROOT, name.as_bytes(), 0o755).unwrap().ino
    }

    fn set(&self, ino: Ino, flags: FileFlags) {
        self.fs.set_file_flags(ino, flags, |_, _| true).unwrap();
    }

    /// Ends the store's life and lets the checker look at it.
    fn end(self) {
        self.fs.shutdown().unwrap();
        drop(self.fs);
        crate::store::check(SETUP, &self.world, false).unwrap();
    }
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn nothing_about_an_immutable_file_changes_on_either_tier() {
    for len in [100, 100_000] {
        let scene = Scene::new();
        let fs = &scene.fs;
        let ino = scene.file(ROOT, "f", len);
        let other = scene.file(ROOT, "other", 10);
        scene.set(ino, IMMUTABLE);
        let before = fs.getattr(ino).unwrap();
        scene.clock.advance(1_000_000_000);
        let refused = [
            fs.write(ino, len as u64, b"x").map(drop),
            fs.setattr(ino, &size(5)).map(drop),
            fs.setattr(ino, &size(500_000)).map(drop),
            fs.setattr(ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).map(drop),
            fs.setattr(ino, &SetAttr { mtime: Some(TimeChange::Now), ..SetAttr::default() }).map(drop),
            fs.fallocate(ino, 0, 0, 200_000),
            fs.fallocate(ino, 3, 0, 50),
            fs.copy_range(other, 0, ino, 0, 10).map(drop),
            fs.setxattr(ino, b"user.x", b"y", XattrMode::Any),
            fs.unlink(ROOT, b"f"),
            fs.link(ino, ROOT, b"g").map(drop),
            fs.rename(ROOT, b"f", ROOT, b"g", RenameMode::Replace),
            fs.rename(ROOT, b"other", ROOT, b"f", RenameMode::Replace),
            fs.rename(ROOT, b"other", ROOT, b"f", RenameMode::Exchange),
        ];
        for (place, outcome) in refused.iter().enumerate() {
            assert_eq!(outcome, &Err(REFUSED), "call {place}, {len} bytes");
        }
        assert_eq!(fs.getattr(ino).unwrap(), before);
        assert_eq!(fs.file_flags(ino), Ok(IMMUTABLE));
        assert_eq!(
            fs.set_file_flags(ino, FileFlags::default(), |old, owner| {
                assert_eq!((old, owner), (IMMUTABLE, CALLER.uid));
                false
            }),
            Err(REFUSED)
        );
        scene.set(ino, FileFlags::default());
        fs.write(ino, 0, b"x").unwrap();
        fs.unlink(ROOT, b"f").unwrap();
        scene.end();
    }
}

#[test]
fn an_append_only_file_takes_writes_at_its_end_and_keeps_its_names() {
    let scene = Scene::new();
    let fs = &scene.fs;
    let ino = scene.file(ROOT, "f", 1000);
    scene.set(ino, APPEND_ONLY);
    // Across the threshold, too.
    fs.write(ino, 1000, &[8; 60_000]).unwrap();
    fs.fallocate(ino, 1, 0, 200_000).unwrap();
    let now = Some(TimeChange::Now);
    fs.setattr(ino, &SetAttr { atime: now, mtime: now, ..SetAttr::default() }).unwrap();
    let one = fs.setattr(ino, &SetAttr { atime: now, ..SetAttr::default() });
    assert!(matches!(one, Err(Error::NotPermitted)), "as Linux has it: both or none");
    let refused = [
        fs.write(ino, 60_999, b"x").map(drop),
        fs.setattr(ino, &size(0)).map(drop),
        fs.setattr(ino, &SetAttr { mtime: Some(TimeChange::At(1)), ..SetAttr::default() }).map(drop),
        fs.fallocate(ino, 3, 0, 50),
        fs.fallocate(ino, 16, 0, 50),
        fs.removexattr(ino, b"user.x"),
        fs.unlink(ROOT, b"f"),
        fs.link(ino, ROOT, b"g").map(drop),
        fs.rename(ROOT, b"f", ROOT, b"g", RenameMode::NoReplace),
    ];
    for (place, outcome) in refused.iter().enumerate() {
        assert_eq!(outcome, &Err(REFUSED), "call {place}");
    }
    let empty = scene.file(ROOT, "empty", 0);
    scene.set(empty, APPEND_ONLY);
    for mode in [3, 16] {
        assert_eq!(fs.fallocate(empty, mode, 0, 50), Err(REFUSED), "an empty file, mode {mode}");
    }
    scene.set(empty, FileFlags::default());
    fs.unlink(ROOT, b"empty").unwrap();
    assert_eq!(fs.getattr(ino).unwrap().size, 61_000);
    scene.end();
}

/// A page that the kernel writes back begins before the appended bytes. Bytes that are there
/// already are no change.
#[test]
fn a_page_with_what_was_appended_is_taken_and_one_with_other_bytes_is_not() {
    let scene = Scene::new();
    let fs = &scene.fs;
    // In the region, across the threshold, on the bulk device.
    for (name, len) in [("small", 1000), ("crossing", 39_000), ("large", 60_000)] {
        let ino = scene.file(ROOT, name, len);
        let mut data = vec![0; len];
        assert_eq!(fs.read(ino, 0, &mut data).unwrap(), len);
        scene.set(ino, APPEND_ONLY);
        let from = len / 4096 * 4096;
        data.extend([9; 6000]);
        assert_eq!(fs.write(ino, from as u64, &data[from..]), Err(REFUSED), "{name}: of a program");
        let mut others = data[from..].to_vec();
        others[len - from - 1] ^= 1;
        assert_eq!(
            fs.write_of(Manner::default(), Writer::Pages, ino, from as u64, &others),
            Err(REFUSED),
            "{name}: other bytes"
        );
        assert_eq!(fs.getattr(ino).unwrap().size, len as u64);
        assert_eq!(
            fs.write_of(Manner::default(), Writer::Pages, ino, from as u64, &data[from..]),
            Ok(data.len() - from),
            "{name}"
        );
        // The page is written back again, as when nothing was appended.
        assert_eq!(
            fs.write_of(Manner::default(), Writer::Pages, ino, from as u64, &data[from..]),
            Ok(data.len() - from),
            "{name}"
        );
        let mut found = vec![0; data.len() + 1];
        assert_eq!(fs.read(ino, 0, &mut found).unwrap(), data.len());
        assert!(found[..data.len()] == data, "{name}");
        // These pages were written to before there were flags.
        assert_eq!(fs.write_of(Manner::default(), Writer::EarlierPages, ino, from as u64, &others), Ok(others.len()));
        data[from..from + others.len()].copy_from_slice(&others);
        assert_eq!(fs.read(ino, 0, &mut found).unwrap(), data.len());
        assert!(found[..data.len()] == data, "{name}: earlier pages");
        scene.set(ino, IMMUTABLE);
        assert_eq!(fs.write_of(Manner::default(), Writer::Pages, ino, data.len() as u64, b"x"), Err(REFUSED));
        assert_eq!(fs.write_of(Manner::default(), Writer::EarlierPages, ino, data.len() as u64, b"x"), Ok(1));
    }
    scene.end();
}

#[test]
fn pages_of_an_append_only_file_arrive_in_any_order_and_each_once() {
    let scene = Scene::new();
    let fs = &scene.fs;
    for (name, len) in [("small", 100), ("large", 60_000)] {
        let ino = scene.file(ROOT, name, len as usize);
        scene.set(ino, APPEND_ONLY);
        let at = |page: u64| len + page * 4096;
        for page in [3, 1, 0, 2] {
            assert_eq!(
                fs.write_of(Manner::default(), Writer::Pages, ino, at(page), &[page as u8 + 1; 4096]),
                Ok(4096),
                "{name} {page}"
            );
        }
        assert_eq!(
            fs.write_of(Manner::default(), Writer::Pages, ino, at(1), &[9; 4096]),
            Err(REFUSED),
            "{name}: written before"
        );
        // By now there is room allocated after the bytes that come late.
        fs.fallocate_by(Manner { keeps_times: true, ..Manner::default() }, ino, 0, at(4), 50_000).unwrap();
        assert_eq!(
            fs.write_of(Manner::default(), Writer::Pages, ino, at(4) - 100, &[[4; 100], [5; 100]].concat()),
            Ok(200),
            "{name}"
        );
        assert_eq!(
            fs.write_of(Manner::default(), Writer::Pages, ino, at(4), &[6; 100]),
            Err(REFUSED),
            "{name}: written before"
        );
        let mut found = vec![0; 4 * 4096 + 200];
        fs.read(ino, len, &mut found).unwrap();
        let expected =
            [vec![1; 4096], vec![2; 4096], vec![3; 4096], vec![4; 4096], vec![5; 100], vec![0; 100]].concat();
        assert!(found == expected, "{name}");
    }
    scene.end();
}

#[test]
fn times_of_gathered_writes_are_those_of_an_append_only_file_but_of_no_immutable_one() {
    let scene = Scene::new();
    let fs = &scene.fs;
    let ino = scene.file(ROOT, "f", 1000);
    let times = SetAttr { mtime: Some(TimeChange::At(5)), ctime: Some(5), ..SetAttr::default() };
    for (flags, allowed) in [(APPEND_ONLY, true), (IMMUTABLE, false)] {
        scene.set(ino, flags);
        assert_eq!(fs.setattr(ino, &times), Err(REFUSED));
        assert_eq!(fs.set_written_times(Patience::Waits, Writer::Pages, ino, &times).is_ok(), allowed);
        assert_eq!(fs.set_written_times(Patience::Waits, Writer::EarlierPages, ino, &times).unwrap().mtime, 5);
    }
    scene.end();
}

#[test]
fn a_directory_keeps_its_entries() {
    let scene = Scene::new();
    let fs = &scene.fs;
    let dir = scene.dir("d");
    scene.file(dir, "f", 10);
    let full = fs.mkdir(&CALLER, dir, b"full", 0o755).unwrap().ino;
    scene.file(full, "f", 10);
    let other = scene.file(ROOT, "other", 10);
    let changes = |fs: &Fs| {
        [
            fs.unlink(dir, b"f"),
            // The flags are checked before other reasons to refuse.
            fs.rmdir(dir, b"full"),
            fs.rmdir(dir, b"f"),
            fs.unlink(dir, b"full"),
            fs.rename(dir, b"f", ROOT, b"f", RenameMode::Replace),
            fs.rename(ROOT, b"other", dir, b"f", RenameMode::Replace),
            fs.rename(ROOT, b"d", ROOT, b"e", RenameMode::Replace),
            fs.rename_with(Patience::Waits, (dir, b"f"), (ROOT, b"f"), RenameMode::Replace, Some(&CALLER)),
        ]
    };
    let additions = |fs: &Fs, n: u8| {
        [
            fs.mknod(&CALLER, dir, &[b'n', n], 0o100644, 0).map(drop),
            fs.mkdir(&CALLER, dir, &[b'm', n], 0o755).map(drop),
            fs.symlink(&CALLER, dir, &[b's', n], b"f").map(drop),
            fs.link(other, dir, &[b'l', n]).map(drop),
        ]
    };
    scene.set(dir, IMMUTABLE);
    assert_eq!(changes(fs), [const { Err(REFUSED) }; 8]);
    assert_eq!(additions(fs, b'1'), [const { Err(REFUSED) }; 4]);
    scene.set(dir, APPEND_ONLY);
    assert_eq!(changes(fs), [const { Err(REFUSED) }; 8]);
    assert_eq!(additions(fs, b'2'), [const { Ok(()) }; 4]);
    fs.rename(ROOT, b"other", dir, b"moved here", RenameMode::NoReplace).unwrap();
    scene.set(dir, FileFlags::default());
    fs.unlink(dir, b"f").unwrap();
    scene.end();
}

#[test]
fn flags_survive_and_are_kept_for_files_and_directories_only() {
    let scene = Scene::new();
    let ino = scene.file(ROOT, "f", 10);
    let all = FileFlags { immutable: true, append_only: true, no_dump: true, no_atime: true };
    scene.set(ino, all);
    let link = scene.fs.symlink(&CALLER, ROOT, b"s", b"f").unwrap().ino;
    assert_eq!(scene.fs.set_file_flags(link, IMMUTABLE, |_, _| true), Err(Error::NotSupported));
    let Scene { world, clock, fs } = scene;
    // As a process crash leaves it.
    drop(fs);
    let (fs, _) = crate::store::open_at(SETUP, &world, 1, 2, &clock).unwrap();
    assert_eq!(fs.file_flags(ino), Ok(all));
    assert_eq!(fs.unlink(ROOT, b"f"), Err(REFUSED));
    Scene { world, clock, fs }.end();
}

#[test]
fn a_directory_hands_down_what_backups_and_reads_leave_alone() {
    let scene = Scene::new();
    let fs = &scene.fs;
    let dir = scene.dir("d");
    let handed_down = FileFlags { no_dump: true, no_atime: true, ..FileFlags::default() };
    scene.set(dir, FileFlags { append_only: true, ..handed_down });
    let link = fs.symlink(&CALLER, dir, b"s", b"f").unwrap().ino;
    let (file, inner) = (scene.file(dir, "f", 10), fs.mkdir(&CALLER, dir, b"inner", 0o755).unwrap().ino);
    let below = fs.mkdir(&CALLER, inner, b"below", 0o755).unwrap().ino;
    let found = [file, inner, below, link].map(|ino| fs.file_flags(ino).unwrap());
    assert_eq!(found, [handed_down, handed_down, handed_down, FileFlags::default()]);
    scene.set(dir, FileFlags::default());
    scene.end();
}

#[test]
fn a_rename_leaves_a_whiteout_where_it_is_asked_to() {
    let scene = Scene::new();
    let fs = &scene.fs;
    let (one, two) = (scene.dir("one"), scene.dir("two"));
    let root = Caller { uid: 0, gid: 0, ..CALLER };
    let inodes = || fs.statfs().files - fs.statfs().files_free;
    for (name, over, len) in [("a", None, 10), ("b", Some(10), 10), ("c", Some(100_000), 10), ("d", Some(10), 100_000)]
    {
        for to in [one, two] {
            let new_name = format!("{name}-new");
            let ino = scene.file(one, name, len);
            if let Some(len) = over {
                scene.file(to, &new_name, len);
            }
            let before = inodes();
            let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
            fs.rename_with(Patience::Waits, (one, name), (to, new_name), RenameMode::Replace, Some(&root)).unwrap();
            let left = fs.lookup(one, name).unwrap();
            assert_eq!((left.mode, left.rdev, left.nlink, left.uid), (0o020000, 0, 1, 0));
            assert_eq!(fs.lookup(to, new_name).unwrap().ino, ino);
            assert_eq!(inodes(), before + 1 - u64::from(over.is_some()), "counted");
            fs.unlink(one, name).unwrap();
            fs.unlink(to, new_name).unwrap();
        }
    }
    // Directories change their parents' link counts. A refused rename leaves nothing behind.
    fs.mkdir(&CALLER, one, b"sub", 0o755).unwrap();
    fs.rename_with(Patience::Waits, (one, b"sub"), (two, b"sub"), RenameMode::NoReplace, Some(&root)).unwrap();
    assert_eq!((fs.getattr(one).unwrap().nlink, fs.getattr(two).unwrap().nlink), (2, 3));
    let before = inodes();
    scene.file(one, "x", 10);
    let refused = fs.rename_with(Patience::Waits, (one, b"x"), (two, b"sub"), RenameMode::NoReplace, Some(&root));
    assert_eq!(refused, Err(Error::Exists));
    let refused = fs.rename_with(Patience::Waits, (one, b"x"), (two, b"sub"), RenameMode::Exchange, Some(&root));
    assert_eq!(refused, Err(Error::Invalid));
    assert_eq!(inodes(), before + 1, "x alone");
    scene.end();
}

#[test]
fn access_times_follow_the_rule_in_force() {
    let scene = Scene::new();
    let fs = &scene.fs;
    let ino = scene.file(ROOT, "f", 10);
    let read = || {
        scene.clock.advance(1_000_000_000);
        let before = fs.getattr(ino).unwrap().atime;
        fs.read(ino, 0, &mut [0; 10]).unwrap();
        fs.getattr(ino).unwrap().atime > before
    };
    fs.set_access_times(AccessTimes::Never);
    assert!(!read());
    fs.set_access_times(AccessTimes::Relative);
    assert!(read(), "the file was written after its access time");
    assert!(!read(), "newer than the last change");
    fs.set_access_times(AccessTimes::Always);
    assert!(read() && read());
    scene.set(ino, FileFlags { no_atime: true, ..FileFlags::default() });
    assert!(!read());
}

#[test]
fn an_access_acl_from_outside_of_the_group_takes_set_group_id_away() {
    let entry = |tag: u16, permissions: u16| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &u32::MAX.to_le_bytes()].concat()
    };
    let acl = [2u32.to_le_bytes().to_vec(), entry(1, 7), entry(4, 5), entry(0x20, 5)].concat();
    let scene = Scene::new();
    let fs = &scene.fs;
    let ino = scene.file(ROOT, "f", 10);
    let set_group_id = || {
        fs.setattr(ino, &SetAttr { mode: Some(0o2755), ..SetAttr::default() }).unwrap();
    };
    for (name, member, mode) in [
        (&b"system.posix_acl_access"[..], false, 0o100755),
        (b"system.posix_acl_access", true, 0o102755),
        (b"user.x", false, 0o102755),
    ] {
        set_group_id();
        fs.setxattr_by(ino, name, &acl, XattrMode::Any, |group| {
            assert_eq!(group, CALLER.gid);
            member
        })
        .unwrap();
        assert_eq!(fs.getattr(ino).unwrap().mode, mode);
    }
}

#[test]
fn a_changed_file_loses_its_capabilities_where_the_kernel_does_not_see_them() {
    const CAPABILITY: &[u8] = b"security.capability";
    type Change = fn(&Fs, Ino, Ino) -> shoal_fs::Result<()>;
    let changes: [(&str, bool, Change); 11] = [
        ("write", true, |fs, ino, _| fs.write(ino, 5, b"x").map(drop)),
        ("append", true, |fs, ino, _| fs.write(ino, fs.getattr(ino)?.size, &[1; 50_000]).map(drop)),
        ("cut", true, |fs, ino, _| fs.setattr(ino, &size(0)).map(drop)),
        ("lengthen", true, |fs, ino, _| fs.setattr(ino, &size(150_000)).map(drop)),
        ("allocate", true, |fs, ino, _| fs.fallocate(ino, 1, 0, 4096)),
        ("punch", true, |fs, ino, _| fs.fallocate(ino, 3, 0, 4096)),
        ("copy", true, |fs, ino, other| fs.copy_range(other, 0, ino, 0, 10).map(drop)),
        ("owner", true, |fs, ino, _| fs.setattr(ino, &SetAttr { uid: Some(7), ..SetAttr::default() }).map(drop)),
        ("group", true, |fs, ino, _| fs.setattr(ino, &SetAttr { gid: Some(9), ..SetAttr::default() }).map(drop)),
        ("mode", false, |fs, ino, _| fs.setattr(ino, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).map(drop)),
        ("read", false, |fs, ino, _| fs.read(ino, 0, &mut [0; 10]).map(drop)),
    ];
    let unseen = Options { drops_capabilities: true, ..Options::default() };
    for (scene, drops) in [(Scene::with(unseen), true), (Scene::new(), false)] {
        let fs = &scene.fs;
        let other = scene.file(ROOT, "other", 10);
        for (name, takes, change) in changes {
            for len in [100, 100_000] {
                let ino = scene.file(ROOT, "f", len);
                fs.setxattr(ino, b"user.kept", b"value", XattrMode::Any).unwrap();
                fs.setxattr(ino, CAPABILITY, &[1; 20], XattrMode::Any).unwrap();
                change(fs, ino, other).unwrap();
                let left = fs.getxattr(ino, CAPABILITY).map(drop);
                assert_eq!(left, if takes && drops { Err(Error::NoAttribute) } else { Ok(()) }, "{name}, {len} bytes");
                assert_eq!(fs.getxattr(ino, b"user.kept").unwrap(), b"value");
                fs.unlink(ROOT, b"f").unwrap();
            }
        }
        // A refused change takes no capabilities.
        let ino = scene.file(ROOT, "f", 100);
        fs.setxattr(ino, CAPABILITY, &[1; 20], XattrMode::Any).unwrap();
        scene.set(ino, IMMUTABLE);
        assert_eq!(fs.write(ino, 0, b"x"), Err(REFUSED));
        assert_eq!(fs.getxattr(ino, CAPABILITY).unwrap(), [1; 20]);
        scene.end();
    }
}
