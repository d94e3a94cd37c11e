//! Converts an inode's record of 96 bytes to the record that `shoal-pack` codes, and back
//! (`docs/spec/pack.md`, "Inodes of a store").
//!
//! Fields that follow from others are stored as differences, so that the usual value is 0 and takes
//! no room: the layout from the usual one for the type and size, the bytes allocated from the two
//! pieces that the record names. References have one bit more, so that the code of a slot's
//! reference is as long wherever the slot lies: a resize of the store moves slots and encodes their
//! inodes in place.
//! Rules: the two functions are inverse to each other, and nothing comes out that [`Inode::decode`]
//! does not accept.

use shoal_format::inode::{INODE_RECORD, Inode, InodeRecord, InodeSlot, Layout, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use shoal_format::slot::CLASS_RUN;
use shoal_format::{FormatError, SlotRef, checksum};
use shoal_pack::{Item, Record};
use zerocopy::{FromBytes, IntoBytes};

/// Set in the stored form of a reference to a slot.
const IS_SLOT: u64 = 1 << 46;

fn put_reference(bits: u64) -> u64 {
    let is_run = (bits >> 40 & 63) as u8 == CLASS_RUN;
    if bits == 0 || is_run { bits } else { bits | IS_SLOT }
}

fn take_reference(stored: u64) -> u64 {
    let is_run = (stored >> 40 & 63) as u8 == CLASS_RUN;
    if is_run { stored } else { stored & !IS_SLOT }
}

/// Returns the usual layout for a type and size.
fn usual_layout(mode: u16, size: u64) -> u8 {
    let layout = match mode & S_IFMT {
        _ if size == 0 => Layout::Empty,
        S_IFDIR => Layout::DirPacked,
        S_IFREG | S_IFLNK => Layout::Direct,
        _ => Layout::Empty,
    };
    layout as u8
}

/// Returns the bytes of the two pieces that a record names.
fn pieces(root: u64, xattr: u64) -> u64 {
    let capacity = |bits| SlotRef::from_bits(bits).map_or(0, SlotRef::capacity);
    capacity(root) + capacity(xattr)
}

/// Returns the item of a packed block for a record of an inode block.
pub(crate) fn item(bytes: &[u8; INODE_RECORD]) -> Result<Item, FormatError> {
    if let InodeSlot::Free { generation } = Inode::decode(bytes)? {
        return Ok(Item::Free { generation });
    }
    let record = InodeRecord::read_from_bytes(bytes).expect("size is exact");
    let (root, xattr) = (record.root.get(), record.xattr.get());
    Ok(Item::Used(Record {
        mode: record.mode.get(),
        links: record.nlink.get(),
        uid: record.uid.get(),
        gid: record.gid.get(),
        size: record.size.get(),
        ctime: record.ctime.get(),
        mtime: record.mtime.get(),
        atime: record.atime.get(),
        btime: record.btime.get(),
        flags: record.flags.into(),
        generation: record.generation.get(),
        rdev: record.rdev.get(),
        xattr: put_reference(xattr),
        data: put_reference(root),
        allocated: record.allocated.get().wrapping_sub(pieces(root, xattr)),
        parent: record.parent.get(),
        layout: record.layout.wrapping_sub(usual_layout(record.mode.get(), record.size.get())),
    }))
}

/// Returns the bytes that an item has as a record of an inode block.
pub(crate) fn bytes(item: &Item) -> Result<[u8; INODE_RECORD], FormatError> {
    match item {
        Item::Free { generation: 0 } => Ok([0; INODE_RECORD]),
        Item::Free { generation } => Ok(Inode::encode_free(*generation)),
        Item::Used(record) => Ok(used(record)?.0),
    }
}

/// Returns what an item says as a record of an inode block.
pub(crate) fn decoded(item: &Item) -> Result<InodeSlot, FormatError> {
    match item {
        Item::Free { generation } => Ok(InodeSlot::Free { generation: *generation }),
        Item::Used(record) => Ok(used(record)?.1),
    }
}

fn used(record: &Record) -> Result<([u8; INODE_RECORD], InodeSlot), FormatError> {
    let (root, xattr) = (take_reference(record.data), take_reference(record.xattr));
    let flags = u8::try_from(record.flags).map_err(|_| FormatError::Range {
        what: "packed inode",
        field: "flags",
        found: record.flags.into(),
    })?;
    let mut plain = InodeRecord {
        mode: record.mode.into(),
        layout: record.layout.wrapping_add(usual_layout(record.mode, record.size)),
        flags,
        nlink: record.links.into(),
        uid: record.uid.into(),
        gid: record.gid.into(),
        size: record.size.into(),
        atime: record.atime.into(),
        mtime: record.mtime.into(),
        ctime: record.ctime.into(),
        btime: record.btime.into(),
        generation: record.generation.into(),
        rdev: record.rdev.into(),
        root: root.into(),
        xattr: xattr.into(),
        allocated: record.allocated.wrapping_add(pieces(root, xattr)).into(),
        parent: record.parent.into(),
        crc: 0.into(),
    };
    plain.crc = checksum(0, &plain.as_bytes()[..INODE_RECORD - 4]).into();
    let bytes = plain.as_bytes().try_into().expect("size is exact");
    if record.mode == 0 {
        // A free record must not hide among those in use.
        return Err(FormatError::Range { what: "packed inode", field: "mode", found: 0 });
    }
    Ok((bytes, Inode::decode(&bytes)?))
}
