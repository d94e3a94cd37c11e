//! Inodes of ext2, ext3 and ext4, from the tables on the device.
//!
//! Owns: the parts of the format that lead to the inodes: superblock, group descriptors, inode
//! bitmaps and tables.
//! Rules: the image is only read. Every number from it is checked before it is used as a size or an
//! offset. An unreadable group is counted and skipped. A mounted file system can also be read,
//! without the changes that the kernel has not yet written back.
//! Left out: checksums, the journal, and meta_bg, which is refused. Rejected: the crate ext4-view,
//! which finds inodes by their paths and does not expose raw fields, change times and unnamed
//! inodes.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use shoal_pack::Record;

/// Maximum number of unreadable groups. Beyond that the superblock is assumed to belong to another
/// device.
const UNREAD_MAX: u64 = 1000;
/// Bytes of the inode part that all file systems of the family share.
pub const RAW: usize = 128;

/// The reason why an image could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("is shorter than a superblock; name a directory, or an image of ext2, ext3 or ext4")]
    Short,
    #[error("cannot be read ({0})")]
    Read(#[from] std::io::Error),
    #[error(
        "is no ext2, ext3 or ext4 image: its superblock's magic is {found:#06x}; name a directory or such an image"
    )]
    Magic { found: u16 },
    #[error("superblock: {field} is {found}, which is out of range; run e2fsck on the image")]
    Range { field: &'static str, found: u64 },
    #[error("has the feature {0}, which is not understood; mount it and name the directory")]
    Feature(&'static str),
}

pub struct Found {
    pub records: Vec<Record>,
    pub raw: Vec<[u8; RAW]>,
    /// Groups that could not be read.
    pub unread: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// The superblock's description of the tables.
struct Tables {
    inodes: u64,
    inodes_per_group: u64,
    first_ino: u64,
    inode_bytes: usize,
    block_bytes: u64,
    descriptors_at: u64,
    descriptor_bytes: usize,
    /// Whether group descriptors say which part of a table was never used.
    has_unused: bool,
}

impl Tables {
    fn read(image: &File) -> Result<Tables, ImageError> {
        let mut bytes = [0; 1024];
        image.read_exact_at(&mut bytes, 1024).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ImageError::Short,
            _ => error.into(),
        })?;
        if u16_at(&bytes, 56) != 0xef53 {
            return Err(ImageError::Magic { found: u16_at(&bytes, 56) });
        }
        let range = |field, found: u64| ImageError::Range { field, found };
        let is_dynamic = u32_at(&bytes, 76) > 0;
        let (incompatible, read_only) = if is_dynamic { (u32_at(&bytes, 96), u32_at(&bytes, 100)) } else { (0, 0) };
        if incompatible & 0x10 != 0 {
            return Err(ImageError::Feature("meta_bg"));
        }
        let log = u32_at(&bytes, 24);
        if log > 6 {
            return Err(range("log_block_size", log.into()));
        }
        let block_bytes = 1024u64 << log;
        let inode_bytes = if is_dynamic { usize::from(u16_at(&bytes, 88)) } else { RAW };
        if !inode_bytes.is_power_of_two() || !(RAW..=4096).contains(&inode_bytes) {
            return Err(range("inode_size", inode_bytes as u64));
        }
        let descriptor_bytes = if incompatible & 0x80 != 0 { usize::from(u16_at(&bytes, 254)) } else { 32 };
        if !(32..=1024).contains(&descriptor_bytes) || incompatible & 0x80 != 0 && descriptor_bytes < 64 {
            return Err(range("desc_size", descriptor_bytes as u64));
        }
        let inodes_per_group = u64::from(u32_at(&bytes, 40));
        if inodes_per_group == 0 || inodes_per_group > block_bytes * 8 {
            return Err(range("inodes_per_group", inodes_per_group));
        }
        Ok(Tables {
            inodes: u32_at(&bytes, 0).into(),
            inodes_per_group,
            first_ino: if is_dynamic { u32_at(&bytes, 84).into() } else { 11 },
            inode_bytes,
            block_bytes,
            descriptors_at: (u64::from(u32_at(&bytes, 20)) + 1) * block_bytes,
            descriptor_bytes,
            // GDT_CSUM or METADATA_CSUM.
            has_unused: read_only & 0x410 != 0,
        })
    }

    /// Reads the used part of a group's bitmap and of its table. Both are empty if the table was
    /// never used.
    fn group(&self, image: &File, group: u64, inodes: u64) -> Result<(Vec<u8>, Vec<u8>), ImageError> {
        let mut descriptor = vec![0; self.descriptor_bytes];
        image.read_exact_at(&mut descriptor, self.descriptors_at + group * self.descriptor_bytes as u64)?;
        let wide = |low: usize, high: usize| {
            let high = if self.descriptor_bytes >= 64 { u64::from(u32_at(&descriptor, high)) } else { 0 };
            u64::from(u32_at(&descriptor, low)) | high << 32
        };
        let mut unused = 0;
        if self.has_unused {
            if u16_at(&descriptor, 18) & 1 != 0 {
                return Ok((vec![], vec![]));
            }
            let high = if self.descriptor_bytes >= 64 { u64::from(u16_at(&descriptor, 50)) << 16 } else { 0 };
            unused = u64::from(u16_at(&descriptor, 28)) | high;
        }
        let inodes = inodes.saturating_sub(unused);
        let at = |block: u64| {
            block
                .checked_mul(self.block_bytes)
                .filter(|at| *at < 1 << 62)
                .ok_or(ImageError::Range { field: "group descriptor", found: block })
        };
        let mut bitmap = vec![0; inodes.div_ceil(8) as usize];
        image.read_exact_at(&mut bitmap, at(wide(4, 36))?)?;
        let mut table = vec![0; inodes as usize * self.inode_bytes];
        image.read_exact_at(&mut table, at(wide(8, 40))?)?;
        Ok((bitmap, table))
    }
}

/// Reads all inodes in use.
pub fn read(image: &File) -> Result<Found, ImageError> {
    let tables = Tables::read(image)?;
    let mut found = Found { records: vec![], raw: vec![], unread: 0 };
    for group in 0..tables.inodes.div_ceil(tables.inodes_per_group) {
        let first = group * tables.inodes_per_group;
        let count = tables.inodes_per_group.min(tables.inodes - first);
        let Ok((bitmap, table)) = tables.group(image, group, count) else {
            found.unread += 1;
            if found.unread > UNREAD_MAX {
                return Err(ImageError::Range { field: "inodes_count", found: tables.inodes });
            }
            continue;
        };
        for (at, inode) in table.chunks_exact(tables.inode_bytes).enumerate() {
            let ino = first + at as u64 + 1;
            let is_used = bitmap[at / 8] >> (at % 8) & 1 == 1;
            if !is_used || ino != 2 && ino < tables.first_ino || u16_at(inode, 0) == 0 || u16_at(inode, 26) == 0 {
                continue;
            }
            found.records.push(record_of(inode));
            let mut raw = [0; RAW];
            raw.copy_from_slice(&inode[..RAW]);
            found.raw.push(raw);
        }
    }
    Ok(found)
}

/// Flags that chattr(1) sets; the others describe how ext4 stores the file.
const FLAGS_OF_USERS: u32 = 0x0001_00ff;

fn record_of(inode: &[u8]) -> Record {
    let extra = if inode.len() > RAW + 2 { usize::from(u16_at(inode, RAW)) } else { 0 };
    // Reads a time at `at`; `extra_at` is the field with its nanoseconds and two more bits of its
    // seconds.
    let time = |at: usize, extra_at: usize| {
        let s = i64::from(u32_at(inode, at) as i32);
        let has_extra = extra_at + 4 <= RAW + extra && extra_at + 4 <= inode.len();
        let more = if has_extra { u32_at(inode, extra_at) } else { 0 };
        (s + (i64::from(more & 3) << 32)) * 1_000_000_000 + i64::from((more >> 2).min(999_999_999))
    };
    let mode = u16_at(inode, 0);
    let (ctime, is_device) = (time(12, 132), matches!(mode & 0o170000, 0o020000 | 0o060000));
    // Old device numbers have 16 bits and are in the first block pointer, new ones in the second.
    let rdev = if u32_at(inode, 40) != 0 { u32_at(inode, 40) } else { u32_at(inode, 44) };
    let has_birth = RAW + extra >= 152 && inode.len() >= 152;
    Record {
        mode,
        links: u16_at(inode, 26).into(),
        uid: u32::from(u16_at(inode, 2)) | u32::from(u16_at(inode, 120)) << 16,
        gid: u32::from(u16_at(inode, 24)) | u32::from(u16_at(inode, 122)) << 16,
        size: u64::from(u32_at(inode, 4)) | u64::from(u32_at(inode, 108)) << 32,
        ctime,
        mtime: time(16, 136),
        atime: time(8, 140),
        btime: if has_birth { time(144, 148) } else { ctime },
        flags: u32_at(inode, 32) & FLAGS_OF_USERS,
        // ext4 draws random generations to detect stale handles; Shoal counts the users of a
        // number.
        generation: 1,
        rdev: if is_device { rdev } else { 0 },
        ..Record::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    use shoal_sim::Random;

    /// Makes an image with some files using mke2fs. Returns `None` if mke2fs is missing.
    fn image(directory: &std::path::Path, kind: &str, inode_bytes: &str) -> Option<std::path::PathBuf> {
        let (tree, image) = (directory.join("tree"), directory.join(format!("{kind}.img")));
        if !tree.exists() {
            fs::create_dir(&tree).unwrap();
            for at in 0..40 {
                fs::write(tree.join(format!("f{at}")), vec![0; at * 100]).unwrap();
            }
            fs::hard_link(tree.join("f7"), tree.join("g7")).unwrap();
            let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 987_654_321);
            fs::File::open(tree.join("f3")).unwrap().set_modified(old).unwrap();
        }
        let made = Command::new("mke2fs")
            .args(["-q", "-t", kind, "-I", inode_bytes, "-d"])
            .args([tree.as_os_str(), image.as_os_str()])
            .arg("8M")
            .output();
        match made {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => {
                eprintln!("SKIP: no mke2fs ({error})");
                return None;
            }
        }
        Some(image)
    }

    #[test]
    fn the_inodes_of_an_image_are_those_of_the_tree_it_was_made_from() {
        let scratch = tempfile::tempdir().unwrap();
        for (kind, inode_bytes) in [("ext2", "128"), ("ext3", "256"), ("ext4", "256")] {
            let Some(image) = image(scratch.path(), kind, inode_bytes) else { return };
            let found = read(&File::open(image).unwrap()).unwrap();
            // The root, lost+found and the files. mke2fs puts the journal's inode and its own below
            // the first one.
            assert_eq!((found.records.len(), found.unread), (42, 0), "{kind}");
            assert_eq!(found.raw.len(), 42);
            let of =
                |size: u64| found.records.iter().find(|record| record.mode == 0o100644 && record.size == size).unwrap();
            assert_eq!((of(3900).links, of(700).links), (1, 2), "{kind}");
            let below_s = if inode_bytes == "128" { 0 } else { 987_654_321 };
            let mtime = of(300).mtime;
            assert_eq!(mtime / 1_000_000_000, 1_234_567_890, "{kind}");
            assert!([0, below_s].contains(&(mtime % 1_000_000_000)), "{kind}: {mtime}");
        }
    }

    #[test]
    fn a_damaged_image_is_an_error_or_has_other_inodes() {
        let scratch = tempfile::tempdir().unwrap();
        let Some(path) = image(scratch.path(), "ext4", "256") else { return };
        let bytes = fs::read(&path).unwrap();
        let mut random = Random::new(1);
        for round in 0..300 {
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(6) {
                // Damage the superblock and the group descriptors.
                let at = if round % 2 == 0 { 1024 + random.below(256) } else { 1024 + random.below(8192) } as usize;
                bytes[at] = random.next_u64() as u8;
            }
            fs::write(&path, &bytes).unwrap();
            let _ = read(&File::open(&path).unwrap());
        }
    }
}
