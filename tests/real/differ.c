//! Makes the same random system calls in two directories, and compares what they answer and what they leave.
//!
//! `differ A B --seed N --seconds N`: A lies on the file system under test, B on one that is believed (ext4). A life begins with two empty
//! directories and makes LIFE calls in them, one after the other. Compared are results, errno, bytes read, attributes (whether times changed, too),
//! SIGBUS of mapped pages, and at the end of a life all names, attributes, xattrs and bytes. Of several calls that could be made, the one is taken whose
//! kind (call, flags, classes of size and offset, state of the descriptor) was seen least, so that rare ones come as often as common ones.
//!
//! `--without SETFLAGS,CHOWN` makes none of these calls. A difference is made small: calls are left out as long as it stays. It is printed as a list of calls with both answers. Each kind of difference is told once.
//!
//! Not made, because file systems may differ there: COLLAPSE_RANGE and INSERT_RANGE (not supported by Shoal), unaligned O_DIRECT (ext4 refuses it),
//! offsets beyond what either can hold, st_blocks, sizes of directories, inode numbers, order of names, places of holes (but no byte that is not zero may
//! be called a hole), access times.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include <linux/capability.h>
#include <linux/fs.h>

#include "differ_draw.h"

#define WHOLE (8L << 20)

// Making calls.

static void put(struct answer *answer, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(answer->text, sizeof answer->text, format, list);
    va_end(list);
}

static void tell_stat(struct answer *answer, const struct stat *found) {
    int is_dir = S_ISDIR(found->st_mode);
    put(answer, "mode %o links %d of %d:%d size %ld rdev %lx", found->st_mode, is_dir ? 0 : (int)found->st_nlink, found->st_uid, found->st_gid, is_dir ? 0 : (long)found->st_size,
        (long)found->st_rdev);
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list(struct side *side, const char *path, struct answer *answer) {
    int fd = openat(side->root, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    char *names[64];
    int count = 0;
    answer->ret = dir ? 0 : -1, answer->code = dir ? 0 : errno;
    if (!dir)
        return;
    for (struct dirent *entry; count < 64 && (entry = readdir(dir));)
        asprintf(&names[count++], "%s:%d", entry->d_name, entry->d_type);
    closedir(dir);
    qsort(names, count, sizeof *names, compare_names);
    for (int i = 0, used = 0; i < count; i++) {
        answer->sum = answer->sum * 31 + sum_of(names[i], strlen(names[i]));
        if (used + strlen(names[i]) + 2 < sizeof answer->text)
            used += sprintf(answer->text + used, "%s ", names[i]);
        free(names[i]);
    }
    answer->ret = count;
}

/// Is there a byte that is not zero from `from` to `to`?
static int has_data(int kept, int64_t from, int64_t to) {
    static char piece[65536];
    char name[40];
    snprintf(name, sizeof name, "/proc/self/fd/%d", kept);
    // The position of the descriptor itself stays as it is.
    int fd = open(name, O_RDONLY), has = 0;
    for (int64_t at = from; at < to && !has;) {
        // A hole of the file system that is believed is one.
        int64_t data = lseek(fd, at, SEEK_DATA);
        if (data < 0 || data >= to)
            break;
        at = data;
        ssize_t got = pread(fd, piece, to - at < 65536 ? to - at : 65536, at);
        if (got <= 0)
            break;
        for (ssize_t i = 0; i < got; i++)
            has |= piece[i] != 0;
        at += got;
    }
    close(fd);
    return has;
}

/// Takes away a map, if there is one (-2: none).
static int unmap(struct map *map) {
    if (!map->at)
        return -2;
    int ret = munmap(map->at, map->bytes);
    close(map->file), map->at = NULL;
    return ret;
}

static void unmap_all(struct side *side) {
    for (int i = 0; i < MAPS; i++)
        unmap(&side->maps[i]);
}

/// Closes all descriptors of a file: those that were open when it became append-only write on on ext4, which asks at `open` alone.
static void close_all(struct side *side, int fd) {
    struct stat wanted, found;
    fstat(fd, &wanted);
    for (int i = 0; i < FDS; i++)
        if (side->fds[i] >= 0 && fstat(side->fds[i], &found) == 0 && found.st_ino == wanted.st_ino)
            close(side->fds[i]), side->fds[i] = -1;
}

static void make(struct side *side, const struct op *op, struct answer *answer) {
    int fd = side->fds[op->fd], root = side->root;
    const char *path = paths[op->path];
    char *buffer = side->buffer;
    size_t size = op->size > BUFFER ? BUFFER : op->size;
    struct stat found;
    int64_t ret = 0;
    errno = 0;
    memset(answer, 0, sizeof *answer);
    switch (op->call) {
    case OPEN:
        if (fd >= 0)
            close(fd);
        errno = 0;
        // A pipe must not make the test wait.
        ret = openat(root, path, op->flags | O_CLOEXEC | O_NONBLOCK, op->mode);
        side->fds[op->fd] = ret, ret = ret < 0 ? -1 : 0;
        break;
    case CLOSE: ret = close(fd), side->fds[op->fd] = -1; break;
    case READ: ret = read(fd, buffer, size); break;
    case PREAD: ret = pread(fd, buffer, size, op->at); break;
    case WRITE: fill(buffer, size, op->salt), ret = write(fd, buffer, size); break;
    case PWRITE: fill(buffer, size, op->salt), ret = pwrite(fd, buffer, size, op->at); break;
    case PWRITEV: {
        fill(buffer, size, op->salt);
        struct iovec parts[3] = {{buffer, size / 3}, {buffer + size / 3, 0}, {buffer + size / 3, size - size / 3}};
        ret = pwritev2(fd, parts, 3, op->at, op->flags);
        break;
    }
    case LSEEK: ret = lseek(fd, op->at, op->flags); break;
    case HOLES: {
        int64_t before = lseek(fd, 0, SEEK_CUR), file = size_of(fd);
        ret = lseek(fd, op->at, op->flags);
        if (side == &sides[0] && before >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && (fcntl(fd, F_GETFL) & 3) != O_WRONLY && op->at >= 0 && op->at < file) {
            // What is between must be zeros, in the file system that is believed.
            int64_t end = ret < 0 ? file : ret;
            if (op->flags == SEEK_DATA && has_data(sides[1].fds[op->fd], op->at, end))
                put(answer, "data from %ld on is called a hole up to %ld", (long)op->at, (long)end);
        }
        if (before >= 0)
            lseek(fd, before, SEEK_SET);
        // Which places are holes is the file system's own.
        if (op->at >= 0 && op->at < file)
            ret = 0, errno = 0;
        break;
    }
    case FTRUNCATE: ret = ftruncate(fd, op->at); break;
    case TRUNCATE: {
        char name[4400];
        snprintf(name, sizeof name, "%s/%s", side->top, path);
        ret = truncate(name, op->at);
        break;
    }
    case FALLOCATE: ret = fallocate(fd, op->flags, op->at, op->size); break;
    case COPY: {
        // Each may end early, and be gone on with.
        int64_t from = op->at, to = op->at2, step;
        do {
            step = copy_file_range(fd, &from, side->fds[op->fd2], &to, size - ret, op->flags);
            ret = step > 0 ? ret + step : ret > 0 ? ret : step;
        } while (step > 0 && ret < (int64_t)size);
        break;
    }
    case MAP: {
        struct map *map = &side->maps[op->fd2];
        unmap(map);
        int64_t from = op->at < 0 || op->at > 8 << 20 ? 0 : op->at & -PAGE;
        char *at = mmap(NULL, size, op->flags, op->mode, fd, from);
        ret = at == MAP_FAILED ? -1 : 0;
        if (ret == 0)
            *map = (struct map){at, size, op->fd, dup(fd), from};
        break;
    }
    case MAPWRITE: case MAPREAD: {
        struct map *map = &side->maps[op->fd2];
        if (!map->at) {
            ret = -2;
            break;
        }
        size_t from = op->salt % map->bytes, length = size < map->bytes - from ? size : map->bytes - from;
        // What is behind the end in the last page is kept until the page is written: when that is, is the file system's own.
        struct stat now;
        int64_t at = map->from + from, end = at + length;
        if (fstat(map->file, &now) == 0 && end > now.st_size && end <= ((now.st_size + PAGE - 1) & -PAGE))
            length = at < now.st_size ? now.st_size - at : 0;
        if (sigsetjmp(bus, 1)) {
            in_map = 0, ret = -1, errno = EFAULT;
            put(answer, "a signal");
            break;
        }
        in_map = 1;
        if (op->call == MAPREAD)
            memcpy(buffer, map->at + from, length);
        else
            fill(map->at + from, length, op->salt);
        in_map = 0, ret = length;
        break;
    }
    case MSYNC: ret = side->maps[op->fd2].at ? msync(side->maps[op->fd2].at, side->maps[op->fd2].bytes, op->flags) : -2; break;
    case UNMAP: ret = unmap(&side->maps[op->fd2]); break;
    case FSYNC: ret = fsync(fd); break;
    case FDATASYNC: ret = fdatasync(fd); break;
    case SYNCRANGE: ret = sync_file_range(fd, op->at, op->size, op->flags); break;
    case ADVISE: ret = posix_fadvise(fd, op->at < 0 ? 0 : op->at, op->size, op->flags), errno = ret, ret = ret ? -1 : 0; break;
    case MKDIR: ret = mkdirat(root, path, op->mode); break;
    case RMDIR: ret = unlinkat(root, path, AT_REMOVEDIR); break;
    case UNLINK: ret = unlinkat(root, path, 0); break;
    case RENAME: ret = renameat2(root, path, root, paths[op->other], op->flags); break;
    case LINK: ret = linkat(root, path, root, paths[op->other], op->flags == AT_SYMLINK_NOFOLLOW ? 0 : op->flags); break;
    case LINKFD: {
        char name[40];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ret = linkat(AT_FDCWD, name, root, path, AT_SYMLINK_FOLLOW);
        break;
    }
    case SYMLINK: ret = symlinkat(paths[op->other], root, path); break;
    case READLINK:
        ret = readlinkat(root, path, buffer, op->size > 4000 ? 4000 : op->size);
        break;
    case STAT:
        ret = fstatat(root, path, &found, op->flags == AT_SYMLINK_FOLLOW ? 0 : op->flags);
        if (ret == 0)
            tell_stat(answer, &found);
        break;
    case FSTAT:
        ret = fstat(fd, &found);
        if (ret == 0)
            tell_stat(answer, &found);
        break;
    case CHMOD: ret = fchmodat(root, path, op->mode, 0); break;
    case FCHMOD: ret = fchmod(fd, op->mode); break;
    case CHOWN: ret = fchownat(root, path, op->at, op->at2, op->flags); break;
    case UTIMES: {
        struct timespec times[2] = {{op->at, 0}, {op->at, op->at2}};
        if (op->at == UTIME_NOW || op->at == UTIME_OMIT)
            times[0] = (struct timespec){0, op->at};
        ret = utimensat(root, path, times, op->flags);
        break;
    }
    case SETXATTR: case GETXATTR: case LISTXATTR: case REMOVEXATTR: {
        char name[4400];
        snprintf(name, sizeof name, "%s/%s", side->top, path);
        fill(buffer, op->call == SETXATTR ? size : 0, op->salt);
        ret = op->call == SETXATTR   ? lsetxattr(name, xattr_names[op->other], buffer, size, op->flags)
              : op->call == GETXATTR ? lgetxattr(name, xattr_names[op->other], buffer, size)
              : op->call == LISTXATTR ? llistxattr(name, buffer, size)
                                      : lremovexattr(name, xattr_names[op->other]);
        break;
    }
    case FSETXATTR: fill(buffer, size, op->salt), ret = fsetxattr(fd, xattr_names[op->other], buffer, size, op->flags); break;
    case ACCESS: ret = faccessat(root, path, op->flags, 0); break;
    case LIST: list(side, path, answer); return;
    case MKNOD: ret = mknodat(root, path, op->flags | (op->mode & 0777), op->flags == S_IFCHR ? makedev(1, 3) : 0); break;
    case DUP: {
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        ret = copy < 0 ? -1 : 0;
        if (copy >= 0) {
            if (side->fds[op->fd2] >= 0)
                close(side->fds[op->fd2]);
            side->fds[op->fd2] = copy;
        }
        break;
    }
    case SETFL: ret = fcntl(fd, F_SETFL, op->flags | O_NONBLOCK); break;
    case FLOCK: ret = flock(fd, op->flags); break;
    case SETFLAGS: {
        int flags = 0;
        // Pages that only the kernel has are refused when they reach a file that became immutable meanwhile: on FUSE nobody writes them back before.
        if (op->flags & (FS_IMMUTABLE_FL | FS_APPEND_FL))
            unmap_all(side), fsync(fd), errno = 0;
        ret = ioctl(fd, FS_IOC_GETFLAGS, &flags);
        flags = (flags & ~CHATTR) | op->flags;
        ret = ret ? ret : ioctl(fd, FS_IOC_SETFLAGS, &flags);
        if (ret == 0 && op->flags & (FS_IMMUTABLE_FL | FS_APPEND_FL))
            close_all(side, fd);
        break;
    }
    case GETFLAGS: {
        int flags = 0;
        ret = ioctl(fd, FS_IOC_GETFLAGS, &flags);
        put(answer, "flags %x", flags & CHATTR);
        break;
    }
    case WHO: ret = 0; break;
    }
    answer->ret = ret, answer->code = ret < 0 ? errno : 0;
    // Names of attributes come in any order.
    if (ret > 0 && (op->call == READ || op->call == PREAD || op->call == MAPREAD || op->call == READLINK || (op->call == GETXATTR && size)))
        answer->sum = sum_of(buffer, ret);
    if (ret > 0 && op->call == LISTXATTR)
        for (char *name = buffer; size && name < buffer + ret; name += strlen(name) + 1)
            answer->sum += sum_of(name, strlen(name));
}

// Known differences. Each may change nothing, since the directories would be different from then on.
static int is_known(const struct op *op, const struct answer *a, const struct answer *b) {
    // A stranger's chown of nothing, of a file with set-id bits: FUSE sends the same for it as for the write of an open file.
    if (op->call == CHOWN && who && op->at == -1 && op->at2 == -1 && a->ret == 0 && b->code == EPERM)
        return 1;
    if (a->ret >= 0 || b->ret >= 0)
        return 0;
    // What is immutable is refused to everybody before permissions are looked at; the kernel looks at them first on FUSE.
    if (op->call == TRUNCATE && a->code == EACCES && b->code == EPERM)
        return 1;
    // It passes on no modes that no file system on FUSE has, whatever the file.
    if (op->call == FALLOCATE && a->code == EOPNOTSUPP && b->code == EPERM)
        return 1;
    // What is append-only, and of the wrong kind besides: which check comes first.
    if ((a->code == EPERM || b->code == EPERM) && op->at <= 1LL << 43)
        return op->call == RMDIR || op->call == UNLINK || op->call == RENAME || op->call == SETXATTR || op->call == FSETXATTR || op->call == REMOVEXATTR;
    // A name without a namespace, or of an unknown one: the kernel's FUSE has one handler for all names, ext4 one for each namespace.
    int is_xattr = op->call == SETXATTR || op->call == FSETXATTR || op->call == GETXATTR || op->call == REMOVEXATTR;
    if (is_xattr && (!strcmp(xattr_names[op->other], "user.") || !strcmp(xattr_names[op->other], "system.a") || !strcmp(xattr_names[op->other], "nothing")))
        return 1;
    // Offsets beyond what a file may have: ext4 has 16 TiB, and which check comes first is each one's own.
    return op->at > 1LL << 43;
}

static int differ(const struct op *op, const struct answer *a, const struct answer *b) {
    return (a->ret != b->ret || a->code != b->code || a->sum != b->sum || strcmp(a->text, b->text)) && !is_known(op, a, b);
}

struct times { struct timespec mtime, ctime; int there; ino_t inode; };

static struct times times_of(struct side *side, const struct op *op, int which) {
    struct stat found = {0};
    int by_fd = op->call == READ || op->call == PREAD || (op->call >= WRITE && op->call <= FTRUNCATE) || op->call == FALLOCATE || op->call == FSETXATTR || op->call == FCHMOD || op->call == SETFLAGS;
    int at_fd = op->call == COPY ? side->fds[op->fd2] : by_fd ? side->fds[op->fd] : -1;
    int there = at_fd >= 0 && which == 0 ? fstat(at_fd, &found) == 0
                : which < 2             ? fstatat(side->root, paths[which ? op->other % PATHS : op->path], &found, AT_SYMLINK_NOFOLLOW) == 0
                                        : fstatat(side->root, which == 2 ? "." : which == 3 ? "d0" : "d1", &found, AT_SYMLINK_NOFOLLOW) == 0;
    // The kernel sets no times of pipes on FUSE.
    return (struct times){found.st_mtim, found.st_ctim, there && !S_ISFIFO(found.st_mode), found.st_ino};
}

static int is_same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/// Works for this user, who has no capability. (setfsuid alone leaves CAP_SYS_ADMIN, of which a file system on FUSE learns nothing.)
static void be(int uid) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &head, sets) != 0)
        abort();
    sets[0].effective = uid ? 0 : sets[0].permitted, sets[1].effective = uid ? 0 : sets[1].permitted;
    if (uid)
        setfsgid(uid), setfsuid(uid);
    if (syscall(SYS_capset, &head, sets) != 0)
        abort();
    if (!uid)
        setfsuid(uid), setfsgid(uid);
}

/// Makes a call in both; is there a difference? With `wait` it is also seen which times changed.
static int both(const struct op *op, struct answer *a, struct answer *b, int force_wait) {
    struct times before[2][5], after;
    static const char *whose[] = {"it", "the other", "the directory", "d0", "d1"};
    int waits = op->wait || force_wait;
    if (waits) {
        for (int side = 0; side < 2; side++)
            for (int which = 0; which < 5; which++)
                before[side][which] = times_of(&sides[side], op, which);
        // The clock of file systems goes on by up to ten milliseconds.
        nanosleep(&(struct timespec){0, 12000000}, NULL);
    }
    for (int map = 0; map < MAPS; map++)
        waits = waits && !sides[1].maps[map].at;
    if (op->call == WHO)
        who = op->flags;
    for (int side = 0; side < 2; side++) {
        be(who);
        make(&sides[side], op, side ? b : a);
        be(0);
    }
    calls_made++, last = op->call, last_map = op->fd2 % MAPS;
    if (differ(op, a, b))
        return 1;
    // ext4 sets no time for the value that an attribute has; under `writeback` the kernel sets none for the size that a file has, and sets one before
    // it is told that a file is too large. Mapped pages tell the daemon of a write when they leave, by whichever call.
    waits = waits && op->call != SETXATTR && op->call != FSETXATTR && op->call != TRUNCATE && op->call != FTRUNCATE && op->at <= 1LL << 43;
    for (int which = 0; waits && which < 5; which++) {
        int changed[2] = {0};
        for (int side = 0; side < 2; side++) {
            struct times *was = &before[side][which];
            after = times_of(&sides[side], op, which);
            if (was->there && after.there && was->inode == after.inode)
                changed[side] = !is_same_time(was->mtime, after.mtime) + 2 * !is_same_time(was->ctime, after.ctime);
        }
        if (changed[0] != changed[1]) {
            static const char *words[] = {"none", "mtime", "ctime", "mtime and ctime"};
            put(a, "changed of %s: %s", whose[which], words[changed[0]]), put(b, "changed of %s: %s", whose[which], words[changed[1]]);
            return 1;
        }
    }
    return 0;
}

// Lives.

static void remove_tree(int at, const char *name) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0) {
        int none = 0;
        ioctl(fd, FS_IOC_SETFLAGS, &none);
        DIR *dir = fdopendir(fd);
        for (struct dirent *entry; dir && (entry = readdir(dir));)
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                remove_tree(fd, entry->d_name);
        closedir(dir);
        if (unlinkat(at, name, AT_REMOVEDIR) != 0)
            die("rmdir %s", name);
        return;
    }
    struct stat found;
    if (fstatat(at, name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(found.st_mode)) {
        fd = openat(at, name, O_RDONLY | O_NONBLOCK);
        int none = 0;
        if (fd >= 0)
            ioctl(fd, FS_IOC_SETFLAGS, &none), close(fd);
    }
    if (unlinkat(at, name, 0) != 0 && errno != ENOENT)
        die("unlink %s", name);
}

static void begin(void) {
    static int number;
    umask(022);
    who = 0, number++;
    for (int i = 0; i < 2; i++) {
        char name[64], *top;
        snprintf(name, sizeof name, "life%d", number);
        int parent = open(i ? getenv("DIFFER_B") : getenv("DIFFER_A"), O_RDONLY | O_DIRECTORY);
        if (parent < 0 || mkdirat(parent, name, 0777) != 0 || fchmodat(parent, name, 0777, 0) != 0)
            die("mkdir %s on %s", name, i ? "B" : "A");
        asprintf(&top, "%s/%s", i ? getenv("DIFFER_B") : getenv("DIFFER_A"), name);
        free((char *)sides[i].top);
        sides[i].top = top;
        sides[i].root = openat(parent, name, O_RDONLY | O_DIRECTORY);
        close(parent);
        for (int fd = 0; fd < FDS; fd++)
            sides[i].fds[fd] = -1;
    }
}

static void end(void) {
    for (int i = 0; i < 2; i++) {
        for (int map = 0; map < MAPS; map++)
            unmap(&sides[i].maps[map]);
        for (int fd = 0; fd < FDS; fd++)
            if (sides[i].fds[fd] >= 0)
                close(sides[i].fds[fd]);
        close(sides[i].root);
        remove_tree(AT_FDCWD, sides[i].top);
    }
}

/// Compares a file of both, data by data.
static int same_bytes(const char *path, struct answer *a, struct answer *b) {
    int fds[2];
    static char pieces[2][65536];
    int64_t end = 0, differs = -1;
    for (int i = 0; i < 2; i++) {
        // As somebody may not open it who is not its owner, but root may.
        fds[i] = openat(sides[i].root, path, O_RDONLY | O_NONBLOCK);
        if (fds[i] < 0)
            return 1;
        end = size_of(fds[i]);
    }
    posix_fadvise(fds[0], 0, 0, POSIX_FADV_DONTNEED);
    for (int64_t at = 0; at < end && differs < 0;) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < 2; i++) {
            // All of a large file may be called data: behind WHOLE bytes only places count in which the other one has some.
            int64_t data = i == 0 && at >= WHOLE ? -1 : lseek(fds[i], at, SEEK_DATA);
            next = data >= 0 && data < next ? data : next;
        }
        if (next == INT64_MAX)
            break;
        at = next;
        ssize_t got[2];
        for (int i = 0; i < 2; i++)
            got[i] = pread(fds[i], pieces[i], sizeof pieces[i], at);
        if (got[0] != got[1] || memcmp(pieces[0], pieces[1], got[0] > 0 ? got[0] : 0)) {
            ssize_t first = 0;
            while (first < got[0] && first < got[1] && pieces[0][first] == pieces[1][first])
                first++;
            differs = at + first;
            put(a, "%s: byte %ld is %d (%ld read)", path, (long)differs, pieces[0][first], (long)got[0]);
            put(b, "%s: byte %ld is %d (%ld read)", path, (long)differs, pieces[1][first], (long)got[1]);
        }
        if (got[0] <= 0)
            break;
        at += got[0];
    }
    close(fds[0]), close(fds[1]);
    return differs < 0;
}

/// Compares all that a life left. `op` is a call that shows the difference.
static int compare_all(struct op *op, struct answer *a, struct answer *b) {
    for (int path = 0; path < PATHS; path++) {
        if (path >= PLAIN && paths[path] != long_name)
            continue;
        static const int calls[] = {STAT, READLINK, LISTXATTR, LIST};
        for (int i = 0; i < 4; i++) {
            *op = (struct op){.call = calls[i], .path = path, .flags = AT_SYMLINK_NOFOLLOW, .size = 3000};
            make(&sides[0], op, a), make(&sides[1], op, b);
            if (differ(op, a, b))
                return 1;
        }
        for (int name = 0; name < XATTRS; name++) {
            *op = (struct op){.call = GETXATTR, .path = path, .other = name, .size = 5000};
            make(&sides[0], op, a), make(&sides[1], op, b);
            if (differ(op, a, b))
                return 1;
        }
        struct stat found;
        *op = (struct op){.call = PREAD, .path = path};
        if (fstatat(sides[1].root, paths[path], &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(found.st_mode) && !same_bytes(paths[path], a, b))
            return 1;
    }
    return 0;
}

static void print_op(const struct op *op) {
    const char *path = strlen(paths[op->path]) > 60 ? (strlen(paths[op->path]) > 255 ? "TOO-LONG" : "LONG") : paths[op->path];
    const char *other = op->call == RENAME || op->call == LINK || op->call == SYMLINK ? paths[op->other] : op->other < XATTRS ? xattr_names[op->other] : "";
    printf("    %s", call_names[op->call]);
    switch (op->call) {
    case OPEN: printf(" \"%s\" flags 0%o mode 0%o as fd %d", path, op->flags, op->mode, op->fd); break;
    case CLOSE: case FSYNC: case FDATASYNC: case FSTAT: case GETFLAGS: printf(" fd %d", op->fd); break;
    case READ: case WRITE: printf(" fd %d, %ld bytes", op->fd, (long)op->size); break;
    case PREAD: case PWRITE: case PWRITEV: case FALLOCATE: case ADVISE: case SYNCRANGE:
        printf(" fd %d flags %d, %ld bytes at %ld (path \"%s\")", op->fd, op->flags, (long)op->size, (long)op->at, path);
        break;
    case LSEEK: case HOLES: case FTRUNCATE: printf(" fd %d, %ld, %d", op->fd, (long)op->at, op->flags); break;
    case TRUNCATE: printf(" \"%s\" %ld", path, (long)op->at); break;
    case COPY: printf(" %ld bytes of fd %d at %ld to fd %d at %ld, flags %d", (long)op->size, op->fd, (long)op->at, op->fd2, (long)op->at2, op->flags); break;
    case MAP: printf(" fd %d as map %d, %ld bytes at %ld, prot %d, %s", op->fd, op->fd2, (long)op->size, (long)op->at, op->flags, op->mode == MAP_SHARED ? "shared" : "private"); break;
    case MAPWRITE: case MAPREAD: case MSYNC: case UNMAP: printf(" map %d, %ld bytes, salt %u, flags %d", op->fd2, (long)op->size, op->salt, op->flags); break;
    case LINKFD: printf(" fd %d as \"%s\"", op->fd, path); break;
    case WHO: printf(" is uid %d", op->flags); break;
    case DUP: printf(" fd %d to fd %d", op->fd, op->fd2); break;
    case SETFL: case FLOCK: case SETFLAGS: case FCHMOD: printf(" fd %d flags 0%o mode 0%o", op->fd, op->flags, op->mode); break;
    default: printf(" \"%s\", \"%s\", flags 0x%x, mode 0%o, %ld, %ld, size %ld, fd %d", path, strlen(other) > 60 ? "LONG" : other, op->flags, op->mode, (long)op->at, (long)op->at2, (long)op->size, op->fd);
    }
    printf("\n");
}

static uint64_t signature(const struct op *op, const struct answer *a, const struct answer *b, int at_end) {
    char text[400], words[2][160];
    const struct answer *answers[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        char *to = words[i];
        for (const char *from = answers[i]->text; *from; from++)
            if (*from < '0' || *from > '9')
                *to++ = *from;
        *to = 0;
    }
    snprintf(text, sizeof text, "%d %d %d %d %d %d %s %s", op->call, at_end, a->ret < 0, a->code, b->ret < 0, b->code, words[0], words[1]);
    return sum_of(text, strlen(text));
}

/// Runs calls in fresh directories. The number of the first that differs, `count` if what was left does, or -1.
static int run(struct op *ops, int count, struct op *shown, struct answer *a, struct answer *b) {
    int at = -1;
    begin();
    for (int i = 0; i < count && at < 0; i++)
        if (both(&ops[i], a, b, 0))
            at = i, *shown = ops[i];
    if (at < 0 && compare_all(shown, a, b))
        at = count;
    end();
    return at;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void shrink(struct op *ops, int *count, uint64_t wanted) {
    static struct op tried[LIFE];
    struct op shown;
    struct answer a, b;
    double until = now() + SHRINK_S;
    // Which times changed is asked of the last call alone, if that is the question.
    for (int i = 0; i + 1 < *count; i++)
        ops[i].wait = 0;
    for (int piece = *count / 2 > 0 ? *count / 2 : 1; piece >= 1 && now() < until; piece /= 2)
        for (int from = 0; from + piece <= *count && now() < until;) {
            memcpy(tried, ops, from * sizeof *ops);
            memcpy(tried + from, ops + from + piece, (*count - from - piece) * sizeof *ops);
            int left = *count - piece, at = run(tried, left, &shown, &a, &b);
            if (at >= 0 && signature(&shown, &a, &b, at == left) == wanted) {
                *count = at == left ? left : at + 1;
                memcpy(ops, tried, *count * sizeof *ops);
            } else
                from += piece;
        }
}

static int told(uint64_t what) {
    static uint64_t known[TOLD_MAX];
    static int count;
    for (int i = 0; i < count; i++)
        if (known[i] == what)
            return 1;
    if (count < TOLD_MAX)
        known[count++] = what;
    return 0;
}

int main(int argc, char **argv) {
    uint64_t seed = 1, lives = 0;
    double seconds = 10;
    int differences = 0, limit = 1;
    if (argc < 3)
        return fprintf(stderr, "usage: differ A B [--seed N] [--seconds N] [--differences N] [--without CALL,...]\n"), 2;
    for (int i = 3; i + 1 < argc; i += 2)
        if (!strcmp(argv[i], "--seed"))
            seed = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--seconds"))
            seconds = atof(argv[i + 1]);
        else if (!strcmp(argv[i], "--differences"))
            limit = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--without"))
            without = argv[i + 1];
    setenv("DIFFER_A", argv[1], 1), setenv("DIFFER_B", argv[2], 1);
    memset(long_name, 'n', 255), memset(too_long, 'n', 256);
    signal(SIGBUS, on_bus), signal(SIGSEGV, on_bus), signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 2; i++)
        if (posix_memalign((void **)&sides[i].buffer, PAGE, BUFFER + PAGE))
            die("memory");
    double until = now() + seconds;
    for (; now() < until && differences < limit; lives++) {
        static struct op ops[LIFE];
        struct op shown;
        struct answer a, b;
        int count = 0, at_end = 0, found = 0;
        // Each life has a seed of its own.
        random_state = seed + lives * 1000003;
        begin();
        while (count < LIFE && !found) {
            struct op best;
            uint32_t least = UINT32_MAX, kind = 0;
            for (int i = 0; i < CANDIDATES; i++) {
                struct op op = draw_op();
                uint32_t its = kind_of(&op);
                if (seen[its] < least)
                    least = seen[its], best = op, kind = its;
            }
            kinds += seen[kind]++ == 0;
            ops[count++] = best;
            found = both(&best, &a, &b, 0), shown = best;
        }
        if (!found)
            found = at_end = compare_all(&shown, &a, &b);
        end();
        uint64_t what = found ? signature(&shown, &a, &b, at_end) : 0;
        if (!found || told(what))
            continue;
        differences++;
        struct op last = shown;
        struct answer last_a = a, last_b = b;
        shrink(ops, &count, what);
        int at = run(ops, count, &shown, &a, &b);
        printf("DIFFERENCE (seed %lu, life %lu)%s, %d calls:\n", (unsigned long)seed, (unsigned long)lives, at < 0 ? " that does not come again" : "", count);
        if (at < 0)
            shown = last, a = last_a, b = last_b;
        for (int i = 0; i < count; i++)
            print_op(&ops[i]);
        if (at_end || at == count)
            printf("  then"), print_op(&shown);
        printf("  A: %ld %s %s\n  B: %ld %s %s\n", (long)a.ret, a.code ? strerrorname_np(a.code) : "", a.text, (long)b.ret, b.code ? strerrorname_np(b.code) : "", b.text);
        if (a.sum != b.sum)
            printf("  and other bytes\n");
        fflush(stdout);
    }
    printf("differ: %lu lives, %lu calls of %lu kinds, %d differences\n", (unsigned long)lives, (unsigned long)calls_made, (unsigned long)kinds, differences);
    return differences ? 1 : 0;
}
