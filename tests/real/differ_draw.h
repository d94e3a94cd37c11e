//! The calls of `differ.c`: what there is of them, and how they are drawn. Of CANDIDATES the one is made whose kind was seen least.
#pragma once
enum { FDS = 8, MAPS = 3, LIFE = 160, CANDIDATES = 6, BUFFER = 3 << 20, TOLD_MAX = 400, SHRINK_S = 8, SEEN = 1 << 20 };
#define PAGE 4096L
// Flags of files that both know; ext4 has others, such as that a file has extents.
#define CHATTR (FS_IMMUTABLE_FL | FS_APPEND_FL | FS_NODUMP_FL | FS_NOATIME_FL)

#define CALLS                                                                                                                                    \
    X(OPEN) X(CLOSE) X(READ) X(PREAD) X(WRITE) X(PWRITE) X(PWRITEV) X(LSEEK) X(HOLES) X(FTRUNCATE) X(TRUNCATE) X(FALLOCATE) X(COPY) X(MAP)         \
    X(MAPWRITE) X(MAPREAD) X(MSYNC) X(UNMAP) X(FSYNC) X(FDATASYNC) X(SYNCRANGE) X(ADVISE) X(MKDIR) X(RMDIR) X(UNLINK) X(RENAME) X(LINK)          \
    X(LINKFD) X(SYMLINK) X(READLINK) X(STAT) X(FSTAT) X(CHMOD) X(FCHMOD) X(CHOWN) X(UTIMES) X(SETXATTR) X(FSETXATTR) X(GETXATTR) X(LISTXATTR)    \
    X(REMOVEXATTR) X(ACCESS) X(LIST) X(MKNOD) X(DUP) X(SETFL) X(FLOCK) X(SETFLAGS) X(GETFLAGS) X(WHO)
enum call {
#define X(name) name,
    CALLS CALL_COUNT
#undef X
};
static const char *call_names[] = {
#define X(name) #name,
    CALLS
#undef X
};

struct op {
    int call, path, other, fd, fd2, flags, mode, wait;
    int64_t at, at2, size;
    uint32_t salt;
};

static char long_name[256], too_long[257];
static const char *paths[] = {
    "f0", "f1", "f2", "f3", "d0", "d1", "d0/f0", "d0/f1", "d0/d2", "d0/d2/f0", "d1/f0", "d1/d2", "l0", "l1", "d0/l0", "f0", "f1", "d0/f0",
    "", ".", "d0/.", "d0/..", "d0/", "f0/", "f0/x", "none/x", "l0/x", "d0//f1", long_name, too_long,
};
enum { PATHS = sizeof paths / sizeof *paths, PLAIN = 18 };
static const char *xattr_names[] = {"user.a", "user.b", "user.shoal", "user.", "trusted.a", "security.a", "system.a", "nothing", "user.long-long-long-long-long-long-name"};
enum { XATTRS = sizeof xattr_names / sizeof *xattr_names };

// `file` is the file's own descriptor, whatever becomes of `fd`.
struct map { char *at; size_t bytes; int fd, file; int64_t from; };
struct side {
    const char *top;
    int root;
    int fds[FDS];
    struct map maps[MAPS];
    char *buffer;
};
struct answer {
    int64_t ret;
    int code;
    uint64_t sum;
    char text[160];
};

static struct side sides[2];
static uint64_t random_state;
static uint32_t seen[SEEN];
static uint64_t kinds, calls_made;
static int last, last_map;
static sigjmp_buf bus;
static volatile sig_atomic_t in_map;
static int who;
static const char *without = "";

static uint64_t draw64(void) {
    uint64_t x = random_state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}
static int64_t draw(int64_t limit) { return limit <= 0 ? 0 : (int64_t)(draw64() % (uint64_t)limit); }
#define PICK(...) ((int64_t[]){__VA_ARGS__}[draw(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))])

static void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, ": %s\n", strerror(errno));
    exit(2);
}

static void on_bus(int number) {
    (void)number;
    if (!in_map)
        _exit(3);
    siglongjmp(bus, 1);
}

static uint64_t sum_of(const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    uint64_t sum = 1469598103934665603;
    for (; length >= 8; length -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        sum = (sum ^ word) * 1099511628211;
    }
    while (length--)
        sum = (sum ^ *at++) * 1099511628211;
    return sum;
}

static void fill(char *at, size_t length, uint32_t salt) {
    uint32_t word = salt | 1;
    for (size_t i = 0; i < length; i++) {
        if (i % 61 == 0)
            word = word * 1664525 + 1013904223;
        at[i] = salt % 7 == 0 ? 0 : (char)(word >> (i % 24));
    }
}

// Drawing of calls.

static int64_t draw_size(void) {
    return PICK(0, 1, draw(300), draw(300), PAGE - 1, PAGE, PAGE + 1, draw(20000), 65535, 65536, 65537, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, draw(400000),
                (1 << 20) - 1, 1 << 20, (1 << 20) + 1, draw(2 << 20));
}

static int64_t size_of(int fd) {
    struct stat seen_stat;
    return fd >= 0 && fstat(fd, &seen_stat) == 0 && S_ISREG(seen_stat.st_mode) ? seen_stat.st_size : 0;
}

static int64_t draw_at(int64_t size) {
    return PICK(0, 0, size, size, size - 1, size + 1, draw(size + 1), draw(size + 1), draw(size + 1) & -PAGE, (size + PAGE - 1) & -PAGE, size + draw(100000), size & -65536, 65536,
                1 << 20, draw(1 << 20), draw(4 << 20), (1LL << 32) - 1, (1LL << 32) + draw(100000), -1, INT64_MAX, INT64_MAX - PAGE);
}

static int is_direct(int fd) { return fd >= 0 && fcntl(fd, F_GETFL) & O_DIRECT; }

static struct op draw_op(void) {
    struct op op = {.call = draw(CALL_COUNT), .path = draw(draw(4) ? PLAIN : PATHS), .other = draw(draw(4) ? PLAIN : PATHS), .fd = draw(FDS), .fd2 = draw(FDS), .salt = draw64()};
    if (draw(3) == 0)
        op.call = PICK(OPEN, OPEN, READ, PREAD, PWRITE, PWRITE, WRITE, FTRUNCATE, STAT, MAPWRITE, FALLOCATE, COPY, RENAME);
    if ((op.call == WHO && draw(3)) || strstr(without, call_names[op.call]))
        op.call = OPEN;
    // What only the kernel knows of a file that is mapped is data.
    if (last == MAPWRITE && draw(3) == 0 && !strstr(without, "HOLES"))
        op.call = HOLES, op.fd = sides[1].maps[last_map].fd;
    // A descriptor that is open, mostly.
    for (int tries = 0; tries < 4 && sides[1].fds[op.fd] < 0; tries++)
        op.fd = draw(FDS);
    for (int tries = 0; tries < 4 && sides[1].fds[op.fd2] < 0; tries++)
        op.fd2 = draw(FDS);
    int fd = sides[1].fds[op.fd];
    op.size = draw_size();
    op.at = draw_at(size_of(fd));
    op.at2 = draw_at(size_of(sides[1].fds[op.fd2]));
    op.mode = PICK(0644, 0600, 0666, 0777, 0755, 0444, 0, 04755, 02755, 01777, 0111);
    op.wait = draw(12) == 0;
    switch (op.call) {
    case OPEN:
        op.fd = draw(FDS);
        op.flags = PICK(O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR) | PICK(0, O_CREAT, O_CREAT, O_CREAT, O_CREAT | O_EXCL) | PICK(0, 0, 0, O_TRUNC, O_APPEND, O_DIRECT) |
                   PICK(0, 0, 0, 0, O_DIRECTORY, O_NOFOLLOW, O_PATH, O_SYNC, O_DSYNC, O_NOATIME, O_NONBLOCK, O_TMPFILE);
        break;
    case FALLOCATE:
        op.flags = PICK(0, 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
                        FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, 64);
        break;
    case PWRITEV: op.flags = PICK(0, 0, 2, 4, 16); break; // RWF_DSYNC, RWF_SYNC, RWF_APPEND
    case LSEEK: op.flags = PICK(SEEK_SET, SEEK_CUR, SEEK_END, 9); break;
    case HOLES: op.flags = PICK(SEEK_DATA, SEEK_HOLE); break;
    case COPY: op.flags = PICK(0, 0, 0, 0, 1); break;
    case MAP: op.fd2 = draw(MAPS), op.flags = PICK(PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ), op.mode = PICK(MAP_SHARED, MAP_SHARED, MAP_PRIVATE); break;
    case MAPWRITE: case MAPREAD: case MSYNC: case UNMAP: op.fd2 = draw(MAPS), op.flags = PICK(MS_SYNC, MS_ASYNC); break;
    case SYNCRANGE: op.flags = PICK(0, 2, 7, 99); break;
    case ADVISE: op.flags = PICK(POSIX_FADV_DONTNEED, POSIX_FADV_DONTNEED, POSIX_FADV_WILLNEED, 77); break;
    case RENAME: op.flags = PICK(0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_EXCHANGE | RENAME_NOREPLACE, 8); break;
    case LINK: case STAT: op.flags = PICK(0, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH); break;
    case CHOWN: op.flags = PICK(0, AT_SYMLINK_NOFOLLOW), op.at = PICK(0, 1000, 1001, -1), op.at2 = PICK(0, 1000, 1001, -1); break;
    case UTIMES: op.flags = PICK(0, AT_SYMLINK_NOFOLLOW), op.at = PICK(0, 1, -1, 1700000000, 4000000000, UTIME_NOW, UTIME_OMIT), op.at2 = PICK(0, 999999999, 1000000000, UTIME_NOW, UTIME_OMIT); break;
    case SETXATTR: case FSETXATTR: op.flags = PICK(0, 0, XATTR_CREATE, XATTR_REPLACE, 9), op.other = draw(XATTRS), op.size = PICK(0, 1, 20, 300); break;
    case GETXATTR: op.other = draw(XATTRS), op.size = PICK(0, 1, 5000); break;
    case REMOVEXATTR: op.other = draw(XATTRS); break;
    case LISTXATTR: op.size = PICK(0, 1, 5000); break;
    case ACCESS: op.flags = PICK(F_OK, R_OK, W_OK, X_OK, R_OK | W_OK | X_OK, 99); break;
    case MKNOD: op.flags = PICK(S_IFIFO, S_IFREG, S_IFSOCK, S_IFCHR, S_IFDIR, 0); break;
    case SETFL: op.flags = PICK(0, O_APPEND, O_APPEND | O_NONBLOCK, O_NOATIME); break;
    case FLOCK: op.flags = PICK(LOCK_SH, LOCK_EX, LOCK_UN) | LOCK_NB; break;
    case SETFLAGS: op.flags = PICK(0, 0, 0, FS_IMMUTABLE_FL, FS_APPEND_FL, FS_NODUMP_FL, FS_NOATIME_FL); break;
    case WHO: op.flags = PICK(0, 0, 1000); break;
    }
    if (op.call == LSEEK && op.at > 1LL << 40)
        op.at = 12345;
    // Where a directory ends is the file system's own.
    struct stat found;
    if (op.call == HOLES && fd >= 0 && fstat(fd, &found) == 0 && S_ISDIR(found.st_mode))
        op.call = FSTAT;
    if (op.call == LSEEK && fd >= 0 && fstat(fd, &found) == 0 && S_ISDIR(found.st_mode))
        op.flags = SEEK_SET, op.at = 0;
    // Under `writeback` the kernel takes bytes at any offset, since no file system on FUSE can tell it a limit.
    if ((op.call == PWRITE || op.call == PWRITEV) && op.at > 1LL << 40)
        op.at = 77777;
    // The kernel has set-id bits taken away on FUSE before it asks for an allocation, which may be too large.
    if (op.call == FALLOCATE && who && op.at > 1LL << 40)
        op.at = 66666;
    if (op.call == COPY && op.at2 > 1LL << 40)
        op.at2 = 54321;
    // The kernel does not know flags of files on FUSE (immutable, append-only). Elsewhere it asks for them at `open` and `access`, too; there the
    // writes are refused.
    int flags = 0;
    if (op.call == OPEN || op.call == ACCESS) {
        int file = openat(sides[1].root, paths[op.path], O_RDONLY | O_NONBLOCK);
        if (file >= 0 && ioctl(file, FS_IOC_GETFLAGS, &flags) == 0 && flags & (FS_IMMUTABLE_FL | FS_APPEND_FL)) {
            if (op.call == ACCESS)
                op.flags &= ~W_OK;
            else if (flags & FS_IMMUTABLE_FL || !(op.flags & O_APPEND))
                op.flags &= ~(O_ACCMODE | O_TRUNC | (op.flags & O_TMPFILE & ~O_DIRECTORY));
            else
                op.flags &= ~O_TRUNC;
        }
        close(file);
        flags = 0;
    }
    // It lets it be mapped for writing.
    if (op.call == MAP && op.mode == MAP_SHARED && fd >= 0 && ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && flags & FS_APPEND_FL)
        op.mode = MAP_PRIVATE;
    flags = 0;
    // And it keeps O_APPEND of what is only appended to.
    if (op.call == SETFL && fd >= 0 && ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && flags & FS_APPEND_FL)
        op.flags = fcntl(fd, F_GETFL) & O_APPEND;
    if (is_direct(fd) || (op.call == COPY && is_direct(sides[1].fds[op.fd2]))) {
        // After a write that failed the kernel truncates the file on FUSE, which sets its times.
        op.at = op.at < 0 || op.at > 1LL << 40 ? 0 : op.at & -PAGE, op.size &= -PAGE;
        if (op.call == LSEEK)
            op.flags = SEEK_SET;
        if (op.call == READ || op.call == WRITE)
            op.call = op.call == READ ? PREAD : PWRITE;
        if (op.call == COPY || op.call == PWRITEV)
            op.call = PWRITE;
    }
    return op;
}

static unsigned class_of(int64_t at, int64_t size) {
    return at < 0 ? 0 : at == 0 ? 1 : at < size ? (at % PAGE ? 2 : 3) : at == size ? (at % PAGE ? 4 : 5) : at < 1 << 20 ? 6 : at < 1LL << 33 ? 7 : 8;
}

static unsigned size_class(int64_t size) {
    return size <= 0 ? 0 : size < PAGE ? 1 : size == PAGE ? 2 : size < 65536 ? 3 : size <= 65536 ? 4 : size < 1 << 20 ? 5 : size == 1 << 20 ? 6 : 7;
}

static unsigned state_of(int fd) {
    struct stat found;
    if (fd < 0 || fstat(fd, &found) != 0)
        return 0;
    unsigned flags = fcntl(fd, F_GETFL);
    return 1 + (found.st_mode >> 12) * 1000 + (flags & 3) * 100 + !!(flags & O_APPEND) * 10 + !!(flags & O_DIRECT) * 20 + !!(flags & O_PATH) * 40 + (found.st_nlink == 0);
}

static unsigned path_state(const char *path) {
    struct stat found;
    if (fstatat(sides[1].root, path, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return errno;
    return 1000 + (found.st_mode >> 12) * 10 + (found.st_nlink > 1) * 5 + size_class(found.st_size);
}

static uint32_t kind_of(const struct op *op) {
    int fd = sides[1].fds[op->fd], by_path = (op->call >= MKDIR && op->call <= STAT) || op->call == OPEN || op->call == TRUNCATE || op->call == CHMOD;
    int64_t size = size_of(fd);
    uint64_t parts[] = {op->call, op->flags, class_of(op->at, size), size_class(op->size), by_path ? path_state(paths[op->path]) : state_of(fd),
                        op->call == RENAME || op->call == LINK ? path_state(paths[op->other]) : op->call == COPY ? state_of(sides[1].fds[op->fd2]) : 0, size_class(size), who};
    return sum_of(parts, sizeof parts) % SEEN;
}
