//! POSIX ACLs as the kernel hands them over: extended attributes in its version 2 format.
//!
//! The kernel checks permissions against them. The file system keeps ACL and mode consistent: a new
//! access ACL sets the mode's permission bits, and a new mode changes the ACL's entries for owner,
//! mask (or group) and others. A new inode in a directory with a default ACL inherits that ACL in
//! place of the umask.
//! Format: version (u32 = 2), then entries of tag (u16), permissions (u16), id (u32), ordered by tag and id.

use shoal_format::inode::{Inode, S_IFLNK};
use shoal_region::Tx;

use crate::{Error, Fs, Result};

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

fn decode(value: &[u8]) -> Result<Vec<AclEntry>> {
    let (version, entries) = value.split_first_chunk::<4>().ok_or(Error::Invalid)?;
    if u32::from_le_bytes(*version) != VERSION || !entries.len().is_multiple_of(8) {
        return Err(Error::NotSupported);
    }
    let list: Vec<AclEntry> = entries
        .chunks_exact(8)
        .map(|e| AclEntry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            permissions: u16::from_le_bytes([e[2], e[3]]),
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        })
        .collect();
    let count = |tag| list.iter().filter(|e| e.tag == tag).count();
    let named = count(USER) + count(GROUP);
    let valid = count(USER_OBJ) == 1
        && count(GROUP_OBJ) == 1
        && count(OTHER) == 1
        && count(MASK) <= 1
        && (named == 0 || count(MASK) == 1)
        && named + count(MASK) + 3 == list.len()
        && list.iter().all(|e| e.permissions <= 7);
    if valid { Ok(list) } else { Err(Error::Invalid) }
}

fn encode(list: &[AclEntry]) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for entry in list {
        out.extend_from_slice(&entry.tag.to_le_bytes());
        out.extend_from_slice(&entry.permissions.to_le_bytes());
        out.extend_from_slice(&entry.id.to_le_bytes());
    }
    out
}

/// Returns the tag of the entry that stands for the group bits of the mode: the mask, or the owning
/// group if there is no mask.
fn group_class(list: &[AclEntry]) -> u16 {
    if list.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ }
}

fn permissions(list: &[AclEntry], tag: u16) -> u16 {
    list.iter().find(|e| e.tag == tag).map_or(0, |e| e.permissions)
}

/// Sets the permission bits of `inode` from an access ACL. Returns false if the ACL says no more
/// than the mode does and need not be kept.
pub(crate) fn to_mode(value: &[u8], inode: &mut Inode) -> Result<bool> {
    if inode.kind() == S_IFLNK {
        return Err(Error::NotSupported);
    }
    let list = decode(value)?;
    let bits =
        permissions(&list, USER_OBJ) << 6 | permissions(&list, group_class(&list)) << 3 | permissions(&list, OTHER);
    inode.mode = inode.mode & !0o777 | bits;
    Ok(list.len() > 3)
}

/// Checks a default ACL, which only a directory may have. Returns false for an empty one, which
/// removes it.
pub(crate) fn check_default(value: &[u8], inode: &Inode) -> Result<bool> {
    if !inode.is_dir() {
        return Err(Error::Access);
    }
    if value.len() <= 4 {
        return Ok(false);
    }
    decode(value).map(|_| true)
}

/// Brings the access ACL, if there is one, into line with a new mode.
pub(crate) fn follow_mode(fs: &Fs, tx: &mut Tx<'_>, inode: &mut Inode) -> Result<()> {
    if inode.xattr.is_none() {
        return Ok(());
    }
    let mut attributes = fs.tree().attributes(tx, inode)?;
    let Some((_, value)) = attributes.iter_mut().find(|(name, _)| name == ACCESS) else { return Ok(()) };
    let mut list = decode(value)?;
    let group = group_class(&list);
    for entry in &mut list {
        let shift = match entry.tag {
            USER_OBJ => 6,
            OTHER => 0,
            tag if tag == group => 3,
            _ => continue,
        };
        entry.permissions = inode.mode >> shift & 7;
    }
    *value = encode(&list);
    fs.tree().set_attributes(tx, inode, &attributes)
}

/// Gives a new inode what its directory's default ACL says; without one, clears the bits of the
/// umask in its mode.
pub(crate) fn inherit(fs: &Fs, tx: &mut Tx<'_>, dir: &Inode, inode: &mut Inode, umask: u32) -> Result<()> {
    if inode.kind() == S_IFLNK {
        return Ok(());
    }
    let default = if dir.xattr.is_none() {
        None
    } else {
        fs.tree().attributes(tx, dir)?.into_iter().find(|(name, _)| name == DEFAULT)
    };
    let Some((_, default)) = default else {
        inode.mode &= !(umask as u16 & 0o777);
        return Ok(());
    };
    let mut list = decode(&default)?;
    let group = group_class(&list);
    let mut bits = 0;
    for entry in &mut list {
        let shift = match entry.tag {
            USER_OBJ => 6,
            OTHER => 0,
            tag if tag == group => 3,
            _ => continue,
        };
        entry.permissions &= inode.mode >> shift & 7;
        bits |= entry.permissions << shift;
    }
    inode.mode = inode.mode & !0o777 | bits;
    let mut attributes = Vec::new();
    if list.len() > 3 {
        attributes.push((ACCESS.to_vec(), encode(&list)));
    }
    if inode.is_dir() {
        attributes.push((DEFAULT.to_vec(), default));
    }
    fs.tree().set_attributes(tx, inode, &attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        encode(&entries.iter().map(|&(tag, permissions, id)| AclEntry { tag, permissions, id }).collect::<Vec<_>>())
    }

    #[test]
    fn malformed_lists_are_refused() {
        assert!(decode(b"").is_err());
        assert!(decode(&list(&[(USER_OBJ, 7, 0)])).is_err());
        let named_without_mask = [(USER_OBJ, 7, 0), (USER, 4, 5), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)];
        assert_eq!(decode(&list(&named_without_mask)), Err(Error::Invalid));
        assert_eq!(decode(&list(&[(USER_OBJ, 8, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)])), Err(Error::Invalid));
        assert!(decode(&list(&[(USER_OBJ, 7, 0), (GROUP_OBJ, 5, 0), (OTHER, 0, 0)])).is_ok());
    }
}
