//! A second, simple reader of a finished region: every path with its inode and its contents.
//!
//! Rules: it trusts what it reads, so it is only for regions that the checker found sound; small
//! files only, no log.
//! Left out: extents and chunks, which the tests using it do not need.

use std::collections::BTreeMap;

use shoal_format::SlotRef;
use shoal_format::dir::{BUCKET_BYTES, open_bucket};
use shoal_format::inode::{Inode, InodeSlot, Layout};
use shoal_format::superblock::{ROOTS_AT, Roots};
use zerocopy::FromBytes;

pub type Tree = BTreeMap<Vec<u8>, (Inode, Vec<u8>)>;

pub fn read(region: &[u8]) -> Tree {
    let mut tree = Tree::new();
    enter(region, 1, b"", &mut tree);
    tree
}

fn piece(region: &[u8], slot: SlotRef) -> &[u8] {
    &region[slot.offset().get() as usize..(slot.offset() + slot.capacity()).get() as usize]
}

fn reference(bytes: &[u8], index: usize) -> SlotRef {
    SlotRef::from_bits(u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap())).unwrap()
}

fn enter(region: &[u8], ino: u32, path: &[u8], tree: &mut Tree) {
    let roots = Roots::read_from_prefix(&region[ROOTS_AT.get() as usize..]).unwrap().0;
    assert_eq!(roots.inode_height.get(), 1);
    let table = piece(region, SlotRef::from_bits(roots.inode_root.get()).unwrap());
    let block = piece(region, reference(table, ino as usize / 16));
    let at = ino as usize % 16 * 96;
    let Ok(InodeSlot::Used(inode)) = Inode::decode(block[at..at + 96].try_into().unwrap()) else {
        panic!("inode {ino} is not in use");
    };
    let data = match inode.layout {
        Layout::Direct => piece(region, inode.root)[..inode.size as usize].to_vec(),
        _ => Vec::new(),
    };
    tree.insert(path.to_vec(), (inode, data));
    if inode.layout == Layout::DirPacked {
        let mut room = [0; BUCKET_BYTES];
        for entry in open_bucket(piece(region, inode.root), 0, &mut room).unwrap().entries() {
            let (_, entry) = entry.unwrap();
            if !entry.ino.is_none() {
                enter(region, entry.ino.get(), &[path, b"/", entry.name].concat(), tree);
            }
        }
    }
}
