//! Random damage to a store's region: reading commands change nothing, and a repair loses no file
//! that was readable before.
//!
//! A `battery` region has no page sums, so a repair acts on the bytes it finds. Failure messages
//! contain the seeds; SHOAL_DEEP=1 takes more of them. Left out: damage to the ring, which is
//! refused (`damaged_log`).

use std::fs;
use std::os::unix::fs::FileExt;

use crate::damaged_media::{Scene, Tree};
use shoal_sim::Random;

/// Returns the readable files, without directories and errors.
fn readable(tree: Tree) -> Tree {
    let failed = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("(os error");
    tree.into_iter().filter(|(_, bytes)| bytes.as_deref().is_some_and(|bytes| !failed(bytes))).collect()
}

/// Flips bits, or overwrites a few bytes or a sector, in the used part of the region.
fn damage(scene: &Scene, random: &mut Random) {
    let superblock = scene.head("region").0;
    let bytes = fs::read(scene.at("region")).unwrap();
    let ring = superblock.ring.get()..(superblock.ring + superblock.ring_bytes).get();
    let used: Vec<u64> = (8192 / 64..bytes.len() as u64 / 64)
        .map(|line| line * 64)
        .filter(|at| !ring.contains(at) && bytes[*at as usize..][..64].iter().any(|&byte| byte != 0))
        .collect();
    let file = scene.open("region");
    for _ in 0..1 + random.below(3) {
        let at = used[random.index(used.len())] + random.below(64);
        match random.below(3) {
            0 => file.write_all_at(&[bytes[at as usize] ^ 1 << random.below(8)], at).unwrap(),
            1 => file.write_all_at(&[random.below(256) as u8; 16], at).unwrap(),
            _ => file.write_all_at(&[random.below(256) as u8; 512], at / 512 * 512).unwrap(),
        }
    }
}

#[test]
fn a_repair_loses_nothing_that_could_be_read() {
    let scene = Scene::battery();
    scene.mount();
    for dir in ["a", "a/b", "c"] {
        fs::create_dir(scene.at("mnt").join(dir)).unwrap();
        for number in 0..60u32 {
            let len = [0, 5, 90, 700, 3000, 9000][number as usize % 6];
            scene.write(&format!("{dir}/f{number}"), vec![(number + 1) as u8; len]);
        }
    }
    scene.write("large", vec![9; 1_500_000]);
    scene.umount();
    let names = ["region", "store/image.0", "store/image.1", "store/bulk"];
    names[1..].iter().for_each(|name| _ = fs::copy(scene.at(name), scene.at(&name.replace('/', "-whole-"))).unwrap());
    fs::copy(scene.at("region"), scene.at("whole")).unwrap();
    let mut repaired = 0;
    for seed in 1..=if std::env::var_os("SHOAL_DEEP").is_some() { 200 } else { 12 } {
        for name in &names[1..] {
            fs::copy(scene.at(&name.replace('/', "-whole-")), scene.at(name)).unwrap();
        }
        fs::copy(scene.at("whole"), scene.at("region")).unwrap();
        damage(&scene, &mut Random::new(seed));
        let before = scene.sums();
        scene.run(&["check", "store"]);
        scene.run(&["salvage", "store", "copy"]);
        let salvaged = crate::damaged_media::read_tree(&scene.at("copy"));
        fs::remove_dir_all(scene.at("copy")).unwrap();
        assert!(scene.sums() == before, "seed {seed}: a look changes the store");
        if !scene.run(&["mount", "-o", "ro", "store", "mnt"]).status.success() {
            continue;
        }
        let tree = readable(scene.tree());
        scene.umount();
        assert!(scene.sums() == before, "seed {seed}: a read-only mount changes the store");
        for (path, bytes) in &tree {
            assert!(salvaged.get(path) == Some(bytes), "seed {seed}: {} is not salvaged", path.display());
        }
        let code = scene.run(&["check", "--repair", "store"]).status.code();
        repaired += u32::from(code.is_some_and(|code| code & 1 == 1));
        scene.mount();
        let after = readable(scene.tree());
        scene.umount();
        for (path, bytes) in &tree {
            let kept = after.get(path) == Some(bytes) || after.values().any(|found| found == bytes);
            assert!(kept, "seed {seed}: {} could be read before the repair", path.display());
        }
    }
    println!("{repaired} stores were changed by the repair");
}
