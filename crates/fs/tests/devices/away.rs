//! Devices that are missing, older, exchanged or in another place at an opening.
//!
//! Owns: which files each case costs and until when, what the checker says of it, and what a mount
//! tells. Left out: real hosts that go down (`crates/cli/tests/restore`,
//! `crates/store/tests/held_several`).

use super::*;

/// Returns what the checker finds in a store whose device 1 is `with`.
fn findings(kind: MemoryKind, world: &World, with: &[GivenDevice], restored: bool) -> Vec<FindingKind> {
    let find = |entry: &BulkDeviceEntry| match with.first().map(|given| given.device.clone()) {
        _ if entry.number == 0 => disk_of(world, entry),
        Some(Ok(disk)) => found(disk),
        Some(Err(why)) => FoundDevice { name: String::new(), opened: Err(NotOpened::Away(why)) },
        None => FoundDevice { name: String::new(), opened: Err(NotOpened::Nowhere("not named".into())) },
    };
    report_with(setup(kind), world, &find, restored).errors.iter().map(|finding| finding.kind).collect()
}

/// Tests a device that is missing, is another one, or is older than what was promised. The checker
/// must say so, too.
pub fn away_or_older(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let block = BULK_BLOCK as usize;
    let here = pair.file_on(0, b"here", 3, 2);
    let away = pair.file_on(1, b"away", 1, 2);
    pair.fs.sync().unwrap();
    let old = pair.world.snapshot().process_crash().open();
    // More is promised in another mount.
    let (world, fs) = pair.again(false, false, |world| vec![given(1, world.disk(1))]).unwrap();
    assert_eq!(fs.write(away, 0, &vec![2; block]), Ok(block));
    fs.fsync(away).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    let boot = pair.boot.after(false).after(false);
    let devices = |device: Arc<SimDisk>| vec![given(1, device)];
    let lost = || GivenDevice { device: Err("no such device".into()), ..given(1, world.disk(1)) };
    // Open the earlier region with the device as it is now.
    let refused = try_open(&old, kind, boot, devices(world.disk(1)), false).map(drop).unwrap_err();
    assert!(refused.to_string().contains("an older copy"), "{refused}");
    assert_eq!(findings(kind, &old, &devices(world.disk(1)), false), [FindingKind::BulkNewer]);
    assert_eq!(findings(kind, &old, &devices(world.disk(1)), true), [], "the image of a region that was lost");
    assert_eq!(findings(kind, &world, &devices(world.disk(1)), false), []);
    for (what, with, kinds) in [
        ("missing", vec![lost()], &[][..]),
        ("not named", vec![], &[FindingKind::BulkNowhere]),
        ("an older copy", devices(old.disk(1)), &[FindingKind::BulkOlder]),
        ("without a mark", devices(world.disk(2)), &[FindingKind::BulkMark]),
        ("too small", devices(World::new(1).add_disk(BULK_BLOCK)), &[FindingKind::BulkSize]),
        ("cut before its mark", devices(World::new(1).add_disk(BLOCKS * BULK_BLOCK)), &[FindingKind::BulkMark]),
    ] {
        assert_eq!(findings(kind, &world, &with, false), kinds, "{what}");
        let refused = try_open(&world, kind, boot, with.clone(), false).map(drop).unwrap_err();
        assert!(refused.to_string().contains("bulk device 1"), "{what}: {refused}");
        let world = world.snapshot().process_crash().open();
        let fs = try_open(&world, kind, boot, with, true).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(fs.devices().states()[1].state.is_lost(), "{what}");
        assert!(matches!(read(&fs, away, 0, block), Err(Error::Io(_))), "{what}: a file on it is read");
        assert!(matches!(fs.write(away, 0, &[9; 10]), Err(Error::Io(_))), "{what}");
        assert_eq!(read(&fs, here, 0, block), Ok(vec![3; block]), "{what}");
        let late = create(&fs, b"late");
        assert_eq!(fs.write(late, 0, &vec![5; 2 * block]), Ok(2 * block), "{what}");
        fs.sync().unwrap();
        assert!(fs.devices().retry(1, || Ok((old.disk(1), 0))).is_err(), "{what}: the older copy");
        // The device comes back as it was left.
        let disk = world.disk(1);
        fs.devices().retry(1, || Ok((disk, 0))).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(read(&fs, away, 0, block), Ok(vec![2; block]), "{what}: back");
        assert_eq!(fs.unlink(ROOT, b"away"), Ok(()), "{what}");
        fs.shutdown().unwrap();
        check(setup(kind), &world, false).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// Tests that after a process crash, a device in another place than before has only what a flush
/// covered.
pub fn in_another_place(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let block = BULK_BLOCK as usize;
    let placed = |world: &World, place| vec![GivenDevice { place, ..given(1, world.disk(1)) }];
    let (world, fs) = pair.again(false, false, |world| placed(world, 5)).unwrap();
    let pair = Pair { world, fs, boot: pair.boot.after(false), ..pair };
    let covered = pair.file_on(1, b"covered", 1, 2);
    pair.fs.sync().unwrap();
    let (new, other) = (pair.file_on(1, b"new", 2, 2), pair.file_on(0, b"other", 3, 2));
    for (place, byte) in [(5, 2), (6, 0), (0, 0)] {
        let (mut world, mut fs) = pair.again(false, false, |world| placed(world, place)).unwrap();
        for life in 0..2 {
            assert_eq!(read(&fs, covered, 0, block), Ok(vec![1; block]), "place {place}, life {life}");
            assert_eq!(read(&fs, other, 0, block), Ok(vec![3; block]), "place {place}, life {life}: the other device");
            assert_eq!(read(&fs, new, BULK_BLOCK, block), Ok(vec![byte; block]), "place {place}, life {life}");
            // Crash again, with the device where it is now.
            let boot = pair.boot.after(false).after(false);
            world = world.snapshot().process_crash().open();
            fs = try_open(&world, kind, boot, placed(&world, place), false).unwrap();
        }
        fs.shutdown().unwrap();
        check(setup(kind), &world, false).unwrap_or_else(|error| panic!("place {place}: {error}"));
    }
    // After a restart of the machine every place has another number, so only the power loss counts.
    let (_, fs) = pair.again(true, false, |world| placed(world, 6)).unwrap();
    assert!(!fs.devices().states()[1].moved, "the device is where it was");
    assert_eq!(read(&fs, new, BULK_BLOCK, block), Ok(vec![0; block]));
}

/// Tests that an opening refused after a clean end is not reported as a power loss, and that files
/// on a missing device go on waiting for it.
pub fn refused_after_a_clean_end(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let block = BULK_BLOCK as usize;
    let file = pair.file_on(1, b"file", 2, 2);
    let away = |world: &World| vec![GivenDevice { device: Err("no such device".into()), ..given(1, world.disk(1)) }];
    // After a crash, the store is used without the device up to a clean end.
    let (world, fs) = pair.again(false, true, away).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    let world = world.snapshot().process_crash().open();
    let boot = pair.boot.after(false).after(true);
    assert!(try_open(&world, kind, boot, away(&world), false).is_err(), "a device is missing");
    let (fs, recovery) = open_telling(setup(kind), &world, boot.after(false), away(&world), true).unwrap();
    assert!(recovery.unchanged && !recovery.power_lost, "{recovery:?}");
    assert!(matches!(read(&fs, file, 0, block), Err(Error::Io(_))), "what nobody can know is read");
    fs.shutdown().unwrap();
}

/// A full cache that holds everything until the device's new mark comes, gives it up to take the
/// mark, and is then cut off.
struct Pressed {
    disk: Arc<SimDisk>,
    has_let_go: AtomicBool,
}

impl WriteCache for Pressed {
    plain_cache!(flushes_all);

    fn held_in(&self, _: u64, len: u64) -> u64 {
        if self.has_let_go.load(Ordering::Relaxed) { 0 } else { len }
    }

    fn belongs(&self, _: u64, _: u64, _: u64) {}

    fn read_medium(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.read_into(at, out)
    }
}

impl BlockDevice for Pressed {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        Some(self)
    }

    fn geometry(&self) -> BlockGeometry {
        self.disk.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        match request {
            Request::Write { .. } => done(self.write_from(0, &[]).map(|()| Vec::new())),
            other => self.disk.submit(other, done),
        }
    }

    fn write_from(&self, _: u64, _: &[u8]) -> shoal_media::Result<()> {
        self.has_let_go.store(true, Ordering::Relaxed);
        Err(MediaError::io("cut off", std::io::Error::from_raw_os_error(5)))
    }
}

/// Tests a device that is found in another place, behind a cache that holds data. The data counts,
/// even if the cache gives it to the device for a mark and the opening is then cut off.
pub fn pushed_out_by_a_mark(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let block = BULK_BLOCK as usize;
    let (world, fs) = pair.again(false, false, |world| vec![given(1, world.disk(1))]).unwrap();
    fs.shutdown().unwrap();
    let placed = |device: Arc<dyn BlockDevice>, place| vec![GivenDevice { place, ..given(1, device) }];
    let boot = pair.boot.after(false).after(false);
    let fs = try_open(&world, kind, boot, placed(world.disk(1), 5), false).unwrap();
    let pair = Pair { world, fs, boot, ..pair };
    let new = pair.file_on(1, b"new", 2, 2);
    let world = pair.world.snapshot().process_crash().open();
    let pressed = Arc::new(Pressed { disk: world.disk(1), has_let_go: AtomicBool::new(false) });
    let boot = boot.after(false);
    assert!(try_open(&world, kind, boot, placed(pressed.clone(), 6), false).is_err(), "it is cut off");
    assert!(pressed.has_let_go.load(Ordering::Relaxed));
    let world = world.snapshot().process_crash().open();
    let fs = try_open(&world, kind, boot.after(false), placed(world.disk(1), 6), false).unwrap();
    assert_eq!(read(&fs, new, BULK_BLOCK, block), Ok(vec![2; block]), "it was held all the time");
}

/// A cache that was cut off while it held the mark of its device, and is in front of another device
/// now.
struct Covered {
    disk: Arc<SimDisk>,
    former: Arc<SimDisk>,
    is_written: AtomicBool,
}

impl WriteCache for Covered {
    plain_cache!(flushes_all);

    fn held_in(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn belongs(&self, _: u64, _: u64, _: u64) {}

    fn read_medium(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.disk.read_into(at, out)
    }
}

impl BlockDevice for Covered {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        Some(self)
    }

    fn geometry(&self) -> BlockGeometry {
        self.disk.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.is_written.fetch_or(matches!(request, Request::Write { .. }), Ordering::Relaxed);
        match request {
            Request::Read { at, mut buffer } => done(self.read_into(at, &mut buffer).map(|()| buffer)),
            other => self.disk.submit(other, done),
        }
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        let disk = if at >= BLOCKS * BULK_BLOCK { &self.former } else { &self.disk };
        disk.read_into(at, out)
    }
}

/// Tests that a device is known by its own mark, and not by one that a cache holds in front of it.
pub fn behind_another_ones_cache(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let block = BULK_BLOCK as usize;
    let away = pair.file_on(1, b"away", 1, 2);
    pair.fs.sync().unwrap();
    let world = pair.world.snapshot().process_crash().open();
    let covered = |world: &World| {
        let (disk, former) = (World::new(1).add_disk(world.disk(1).geometry().bytes), world.disk(1));
        Arc::new(Covered { disk, former, is_written: AtomicBool::new(false) })
    };
    let boot = pair.boot.after(false);
    let device = covered(&world);
    let refused = try_open(&world, kind, boot, vec![given(1, device.clone())], false).map(drop).unwrap_err();
    assert!(refused.to_string().contains("bulk device 1"), "{refused}");
    let fs = try_open(&world, kind, boot, vec![given(1, device.clone())], true).unwrap();
    assert!(fs.devices().states()[1].state.is_lost());
    assert!(matches!(read(&fs, away, 0, block), Err(Error::Io(_))), "a file on it is read");
    assert!(fs.devices().retry(1, || Ok((device.clone(), 0))).is_err(), "it is still another one");
    assert!(!device.is_written.load(Ordering::Relaxed), "another device was written");
    fs.devices().retry(1, || Ok((world.disk(1), 0))).unwrap();
    assert_eq!(read(&fs, away, 0, block), Ok(vec![1; block]));
}
