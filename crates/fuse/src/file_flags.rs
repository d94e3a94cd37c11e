//! The ioctls of chattr(1) and lsattr(1): numbers, words and bits, in both of their forms.
//!
//! Pure functions. The kernel turns both forms into requests, after it has checked that the caller owns the file and,
//! for immutable and append-only, has CAP_LINUX_IMMUTABLE. A flag that Shoal does not keep is refused, not dropped: a
//! program must not believe that it was set.

use shoal_fs::FileFlags;

/// `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS`: a word of flags. The numbers encode the size of `long`, but four bytes are
/// carried.
pub(crate) const GET_FLAGS: u32 = 0x8008_6601;
pub(crate) const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`: a `struct fsxattr`, whose first word has the flags.
pub(crate) const GET_XFLAGS: u32 = 0x801c_581f;
pub(crate) const SET_XFLAGS: u32 = 0x401c_5820;

const FSXATTR_BYTES: usize = 28;

/// Bits of the flags, in the order of the fields of [`FileFlags`]: immutable, append-only, no-dump, no-atime.
const FLAGS: [u32; 4] = [0x10, 0x20, 0x40, 0x80];
const XFLAGS: [u32; 4] = [0x08, 0x10, 0x80, 0x40];

fn to_word(flags: FileFlags, bits: [u32; 4]) -> u32 {
    let set = [flags.immutable, flags.append_only, flags.no_dump, flags.no_atime];
    set.iter().zip(bits).filter(|(set, _)| **set).map(|(_, bit)| bit).sum()
}

/// Returns the flags of a word, or `None` if it has a flag besides those four.
fn from_word(word: u32, bits: [u32; 4]) -> Option<FileFlags> {
    let [immutable, append_only, no_dump, no_atime] = bits.map(|bit| word & bit != 0);
    (word & !bits.iter().sum::<u32>() == 0).then_some(FileFlags { immutable, append_only, no_dump, no_atime })
}

/// Returns the answer to the two ioctls that read flags: `len` bytes, with zeros after the word.
pub(crate) fn answer(command: u32, flags: FileFlags, len: usize) -> Vec<u8> {
    let word = to_word(flags, if command == GET_FLAGS { FLAGS } else { XFLAGS });
    let mut out = word.to_le_bytes().to_vec();
    out.resize(len, 0);
    out
}

/// Returns the flags that the two setting ioctls ask for, or `None` for flags that are not kept,
/// and for projects and extent sizes.
pub(crate) fn asked(command: u32, data: &[u8]) -> Option<FileFlags> {
    let word = u32::from_le_bytes(*data.first_chunk()?);
    if command == SET_FLAGS {
        return from_word(word, FLAGS);
    }
    let rest = data.get(4..FSXATTR_BYTES)?;
    rest.iter().all(|&byte| byte == 0).then(|| from_word(word, XFLAGS)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_goes_both_ways_in_both_forms() {
        for bits in 0..16 {
            let [immutable, append_only, no_dump, no_atime] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let flags = FileFlags { immutable, append_only, no_dump, no_atime };
            assert_eq!(asked(SET_FLAGS, &answer(GET_FLAGS, flags, 8)), Some(flags));
            assert_eq!(asked(SET_XFLAGS, &answer(GET_XFLAGS, flags, FSXATTR_BYTES)), Some(flags));
        }
        let immutable = FileFlags { immutable: true, ..FileFlags::default() };
        assert_eq!(answer(GET_FLAGS, immutable, 4), [0x10, 0, 0, 0]);
        assert_eq!(answer(GET_XFLAGS, immutable, 28)[0], 8);
    }

    #[test]
    fn flags_that_are_not_kept_are_refused() {
        assert_eq!(asked(SET_FLAGS, &4u32.to_le_bytes()), None, "compressed");
        assert_eq!(asked(SET_FLAGS, &[0x10]), None, "cut short");
        let mut project = [0; FSXATTR_BYTES];
        project[12] = 7;
        assert_eq!(asked(SET_XFLAGS, &project), None);
    }
}
