//! The structures of the FUSE protocol as they lie in messages. The authority is the kernel's
//! `include/uapi/linux/fuse.h`.
//!
//! All fields are in the machine's byte order. Every structure is free of padding (the derives
//! refuse it otherwise) and its size is asserted, so a change that moves a field does not compile.
//! Names are the kernel's without `fuse_`.
//! Left out: structures of requests that are never negotiated (locks, maps for DAX, CUSE, security contexts).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! layouts {
    ($($(#[$meta:meta])* $name:ident: $bytes:literal { $($(#[$note:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $($(#[$note])* pub $field: $kind,)*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

layouts! {
    /// In front of every request.
    InHeader: 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        /// Length of the extensions behind the body, in units of eight bytes.
        extensions: u16,
        _padding: u16,
    }

    /// In front of every reply and notification.
    OutHeader: 16 {
        len: u32,
        /// A negated errno, or the code of a notification.
        error: i32,
        unique: u64,
    }

    Attr: 88 {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        block_bytes: u32,
        flags: u32,
    }

    EntryOut: 128 {
        node: u64,
        generation: u64,
        entry_valid_s: u64,
        attr_valid_s: u64,
        entry_valid_ns: u32,
        attr_valid_ns: u32,
        attr: Attr,
    }

    AttrOut: 104 {
        valid_s: u64,
        valid_ns: u32,
        _padding: u32,
        attr: Attr,
    }

    OpenOut: 16 {
        handle: u64,
        flags: u32,
        _padding: u32,
    }

    /// The answer to CREATE and TMPFILE.
    CreateOut: 144 {
        entry: EntryOut,
        open: OpenOut,
    }

    WriteOut: 8 {
        bytes: u32,
        _padding: u32,
    }

    StatfsOut: 80 {
        blocks: u64,
        free: u64,
        available: u64,
        files: u64,
        files_free: u64,
        block_bytes: u32,
        name_max: u32,
        fragment_bytes: u32,
        _padding: u32,
        _spare: [u32; 6],
    }

    GetXattrOut: 8 {
        bytes: u32,
        _padding: u32,
    }

    LseekOut: 8 {
        offset: u64,
    }

    IoctlOut: 16 {
        result: i32,
        flags: u32,
        in_vectors: u32,
        out_vectors: u32,
    }

    /// In front of a name in a directory listing.
    Dirent: 24 {
        ino: u64,
        /// Offset to continue from.
        next: u64,
        name_len: u32,
        kind: u32,
    }

    SxTime: 16 {
        seconds: i64,
        ns: u32,
        _reserved: i32,
    }

    Statx: 256 {
        mask: u32,
        block_bytes: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        _spare: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        _spare_end: [u64; 14],
    }

    StatxOut: 288 {
        valid_s: u64,
        valid_ns: u32,
        flags: u32,
        _spare: [u64; 2],
        stat: Statx,
    }

    NotifyInvalInodeOut: 24 {
        ino: u64,
        /// Negative to invalidate only the attributes.
        offset: i64,
        len: i64,
    }

    /// INIT of kernels before 5.17.
    InitInShort: 16 {
        major: u32,
        minor: u32,
        read_ahead_max: u32,
        flags: u32,
    }

    InitInRest: 48 {
        flags2: u32,
        _unused: [u32; 11],
    }

    InitOut: 64 {
        major: u32,
        minor: u32,
        read_ahead_max: u32,
        flags: u32,
        background_max: u16,
        congestion_threshold: u16,
        write_bytes_max: u32,
        time_granularity_ns: u32,
        pages_max: u16,
        map_alignment: u16,
        flags2: u32,
        stack_depth_max: u32,
        _unused: [u32; 6],
    }

    ForgetIn: 8 {
        count: u64,
    }

    ForgetOne: 16 {
        node: u64,
        count: u64,
    }

    BatchForgetIn: 8 {
        count: u32,
        _unused: u32,
    }

    GetattrIn: 16 {
        flags: u32,
        _unused: u32,
        handle: u64,
    }

    StatxIn: 24 {
        getattr_flags: u32,
        _reserved: u32,
        handle: u64,
        flags: u32,
        mask: u32,
    }

    SetattrIn: 88 {
        valid: u32,
        _padding: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        _unused4: u32,
        uid: u32,
        gid: u32,
        _unused5: u32,
    }

    MknodIn: 16 {
        mode: u32,
        rdev: u32,
        umask: u32,
        _padding: u32,
    }

    MkdirIn: 8 {
        mode: u32,
        umask: u32,
    }

    RenameIn: 8 {
        new_directory: u64,
    }

    Rename2In: 16 {
        new_directory: u64,
        flags: u32,
        _padding: u32,
    }

    LinkIn: 8 {
        node: u64,
    }

    OpenIn: 8 {
        flags: u32,
        open_flags: u32,
    }

    CreateIn: 16 {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }

    /// Body of READ, READDIR and READDIRPLUS.
    ReadIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        _padding: u32,
    }

    WriteIn: 40 {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        _padding: u32,
    }

    /// Body of SETXATTR unless SETXATTR_EXT was negotiated.
    SetxattrInShort: 8 {
        size: u32,
        flags: u32,
    }

    SetxattrInRest: 8 {
        flags: u32,
        _padding: u32,
    }

    GetxattrIn: 8 {
        size: u32,
        _padding: u32,
    }

    IoctlIn: 32 {
        handle: u64,
        flags: u32,
        command: u32,
        argument: u64,
        in_size: u32,
        out_size: u32,
    }

    FallocateIn: 32 {
        handle: u64,
        offset: u64,
        len: u64,
        mode: u32,
        _padding: u32,
    }

    LseekIn: 24 {
        handle: u64,
        offset: u64,
        whence: u32,
        _padding: u32,
    }

    CopyFileRangeIn: 56 {
        from_handle: u64,
        from_offset: u64,
        to_node: u64,
        to_handle: u64,
        to_offset: u64,
        len: u64,
        flags: u64,
    }
}
