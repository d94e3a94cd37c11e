//! A file system that loses at a power cut what was not synced, page by page and in any order: a FUSE layer over a directory, for a store to lie on.
//!
//! `disk BACKING MOUNTPOINT -f`. All calls go to BACKING/now at once. For each page of 4 KiB that was written since its file's last fsync it keeps what
//! the page was then; and for names what would undo the changes since the last fsync of any file, as journals do: they come back to a state in their order.
//! `cut DEST SEED`, written to MOUNTPOINT/.power, copies the tree of this moment to DEST, takes back a suffix of the changes of names, and for each page
//! that was not synced draws whether it is the old one, the new one, or of each some sectors. The length of a file is the old one, the new one, or between.
//! The life of the mount itself goes on. `lose WHAT N` and `misdirect WHAT N`: the N-th write from now on to a file whose path contains WHAT is not
//! made, or is made 64 KiB further on; it is answered as if it had been. `slow MS`: each fsync takes so long from now on.
//!
//! What the kernel has in its page cache (mapped pages) was never written, and is lost with the power. Left out: xattrs, device files, quotas; a lost fsync.
//! One thread: a cut sees no call half done.
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <fuse3/fuse.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PAGE 4096L
#define SECTOR 512
enum { FILES = 1 << 12, NAMES = 1 << 16 };

/// `pages`: by number, what a page was at the last sync: NULL where it was not written since, ZEROS where it was zeros. `count`: so many have a place.
struct file { ino_t inode; int64_t durable; char **pages; int64_t count; struct file *next; };
struct handle { int fd; struct file *file; char path[PATH_MAX]; };
enum kind { MADE, MADE_DIR, UNLINKED, REMOVED_DIR, RENAMED };
struct name { enum kind kind; char *path, *other, *aside; mode_t mode; };

static char ZEROS[PAGE];
static char backing[PATH_MAX - 300];
static struct file *files[FILES];
static struct name names[NAMES];
static int name_count, asides;
static uint64_t random_state;
static struct { char what[PATH_MAX]; int left, misdirects; } fault;
static unsigned slow_ms;

static uint64_t draw(uint64_t limit) {
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (random_state >> 33) % limit;
}

static const char *full(const char *path) {
    static char buffers[4][PATH_MAX];
    static int next;
    char *buffer = buffers[next++ % 4];
    snprintf(buffer, PATH_MAX, "%s/now%s", backing, path);
    return buffer;
}

#define ANSWER(call) return (call) < 0 ? -errno : 0

static struct file *file_of(int fd, int is_new) {
    struct stat found;
    if (fstat(fd, &found) != 0)
        return NULL;
    struct file **place = &files[found.st_ino % FILES];
    for (struct file *file = *place; file; file = file->next)
        if (file->inode == found.st_ino && !is_new)
            return file;
        else if (file->inode == found.st_ino)
            file->inode = 0; // The number is used again.
    struct file *file = calloc(1, sizeof *file);
    *file = (struct file){found.st_ino, is_new ? 0 : found.st_size, NULL, 0, *place};
    return *place = file;
}

/// Before bytes change: keeps what the pages were at the last sync.
static void touch(struct file *file, int fd, int64_t from, int64_t to) {
    if (to > file->durable)
        to = file->durable;
    if (from >= to)
        return;
    if ((to + PAGE - 1) / PAGE > file->count) {
        int64_t count = (to + PAGE - 1) / PAGE;
        file->pages = realloc(file->pages, count * sizeof *file->pages);
        memset(file->pages + file->count, 0, (count - file->count) * sizeof *file->pages);
        file->count = count;
    }
    for (int64_t number = from / PAGE; number * PAGE < to; number++) {
        if (file->pages[number])
            continue;
        char bytes[PAGE] = {0};
        int64_t length = file->durable - number * PAGE;
        if (pread(fd, bytes, length < PAGE ? length : PAGE, number * PAGE) < 0)
            perror("disk: pread");
        file->pages[number] = memcmp(bytes, ZEROS, PAGE) ? memcpy(malloc(PAGE), bytes, PAGE) : ZEROS;
    }
}

static void forget_pages(struct file *file) {
    for (int64_t number = 0; number < file->count; number++)
        if (file->pages[number] != ZEROS)
            free(file->pages[number]);
    free(file->pages);
    file->pages = NULL, file->count = 0;
}

static void note(enum kind kind, const char *path, const char *other, const char *aside, mode_t mode) {
    if (name_count == NAMES)
        abort();
    names[name_count++] = (struct name){kind, strdup(path), other ? strdup(other) : NULL, aside ? strdup(aside) : NULL, mode};
}

/// A sync of any file makes all names durable.
static void names_synced(void) {
    for (int i = 0; i < name_count; i++) {
        if (names[i].aside)
            unlink(full(names[i].aside));
        free(names[i].path), free(names[i].other), free(names[i].aside);
    }
    name_count = 0;
}

/// Another name for what is about to lose one, so that it can come back.
static const char *set_aside(const char *path) {
    static char name[64];
    snprintf(name, sizeof name, "/.aside/%d", asides++);
    return link(full(path), full(name)) == 0 ? name : NULL;
}

// The cut.

static char cut_to[PATH_MAX];

static int cut_file(const char *path, const struct stat *found, int type, struct FTW *walk) {
    (void)walk;
    if (type != FTW_F || !S_ISREG(found->st_mode))
        return 0;
    struct file *file = files[found->st_ino % FILES];
    while (file && file->inode != found->st_ino)
        file = file->next;
    if (!file)
        return 0;
    char target[PATH_MAX * 2];
    snprintf(target, sizeof target, "%s%s", cut_to, path + strlen(backing) + strlen("/now"));
    int fd = open(target, O_RDWR);
    if (fd < 0)
        return -1;
    int64_t size = found->st_size, low = size < file->durable ? size : file->durable, high = size < file->durable ? file->durable : size;
    // 0: none of it is lost, 1: all, 2: drawn for each page, 3: for each sector.
    int how = draw(4);
    for (int64_t number = 0; number < file->count; number++)
        for (int sector = 0; file->pages[number] && sector < PAGE / SECTOR; sector++) {
            if (how == 0 || (how == 2 && sector == 0 && draw(2)))
                break;
            if (how == 3 && draw(2))
                continue;
            pwrite(fd, file->pages[number] + sector * SECTOR, SECTOR, number * PAGE + sector * SECTOR);
        }
    // What lies behind the old end has no old pages: it is there, or zeros.
    for (int64_t at = (low + PAGE - 1) & -PAGE; size > file->durable && at < size && how > 0; at += PAGE)
        if (how == 1 || draw(2))
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, PAGE);
    int64_t ends[] = {size, file->durable, low + (int64_t)draw(high - low + 1)};
    ftruncate(fd, ends[how == 0 ? 0 : draw(3)]);
    return close(fd);
}

static const char *in_cut(const char *path) {
    static char buffers[4][PATH_MAX * 2];
    static int next;
    char *buffer = buffers[next++ % 4];
    snprintf(buffer, sizeof buffers[0], "%s%s", cut_to, path);
    return buffer;
}

static int cut(const char *to, uint64_t seed) {
    char command[PATH_MAX * 3];
    random_state = seed;
    snprintf(cut_to, sizeof cut_to, "%s", to);
    snprintf(command, sizeof command, "cp -a --sparse=always '%s/now' '%s'", backing, to);
    if (system(command) != 0)
        return -EIO;
    if (nftw(full(""), cut_file, 32, FTW_PHYS) != 0)
        return -EIO;
    int kept = draw(3) ? (int)draw(name_count + 1) : name_count;
    for (int i = name_count - 1; i >= kept; i--) {
        struct name *name = &names[i];
        switch (name->kind) {
        case MADE: unlink(in_cut(name->path)); break;
        case MADE_DIR: rmdir(in_cut(name->path)); break;
        case UNLINKED: name->aside ? link(in_cut(name->aside), in_cut(name->path)) : 0; break;
        case REMOVED_DIR: mkdir(in_cut(name->path), name->mode); break;
        case RENAMED:
            rename(in_cut(name->other), in_cut(name->path));
            if (name->aside)
                link(in_cut(name->aside), in_cut(name->other));
            break;
        }
    }
    fprintf(stderr, "disk: cut with seed %lu: %d of %d changes of names are lost\n", (unsigned long)seed, name_count - kept, name_count);
    return 0;
}

static int command(const char *text) {
    char to[PATH_MAX];
    unsigned long seed;
    int number;
    if (sscanf(text, "cut %4000s %lu", to, &seed) == 2)
        return cut(to, seed);
    if (sscanf(text, "lose %60s %d", to, &number) == 2 || sscanf(text, "misdirect %60s %d", to, &number) == 2) {
        snprintf(fault.what, sizeof fault.what, "%s", to);
        fault.left = number, fault.misdirects = text[0] == 'm';
        return 0;
    }
    if (sscanf(text, "slow %u", &slow_ms) == 1)
        return 0;
    return -EINVAL;
}

// Calls.

static struct handle *handle_of(struct fuse_file_info *info) { return (struct handle *)(uintptr_t)info->fh; }

static int do_getattr(const char *path, struct stat *found, struct fuse_file_info *info) {
    if (path && !strcmp(path, "/.power")) {
        *found = (struct stat){.st_mode = S_IFREG | 0600, .st_nlink = 1};
        return 0;
    }
    int answer = info && info->fh ? fstat(handle_of(info)->fd, found) : lstat(full(path), found);
    // After a power cut nothing may pass for what it was before by its number.
    found->st_ino += (uint64_t)getpid() << 32;
    return answer ? -errno : 0;
}

static int do_readlink(const char *path, char *target, size_t size) {
    ssize_t length = readlink(full(path), target, size - 1);
    return length < 0 ? -errno : (target[length] = 0);
}

static int do_mkdir(const char *path, mode_t mode) {
    if (mkdir(full(path), mode) != 0)
        return -errno;
    note(MADE_DIR, path, NULL, NULL, 0);
    return 0;
}

static int do_unlink(const char *path) {
    const char *aside = set_aside(path);
    if (unlink(full(path)) != 0)
        return -errno;
    note(UNLINKED, path, NULL, aside, 0);
    return 0;
}

static int do_rmdir(const char *path) {
    struct stat found;
    if (lstat(full(path), &found) != 0 || rmdir(full(path)) != 0)
        return -errno;
    note(REMOVED_DIR, path, NULL, NULL, found.st_mode);
    return 0;
}

static int do_symlink(const char *target, const char *path) {
    if (symlink(target, full(path)) != 0)
        return -errno;
    note(MADE, path, NULL, NULL, 0);
    return 0;
}

static int do_rename(const char *from, const char *to, unsigned flags) {
    const char *aside = flags & RENAME_NOREPLACE ? NULL : set_aside(to);
    if (renameat2(AT_FDCWD, full(from), AT_FDCWD, full(to), flags) != 0)
        return -errno;
    note(RENAMED, from, to, aside, 0);
    return 0;
}

static int do_link(const char *from, const char *to) {
    if (link(full(from), full(to)) != 0)
        return -errno;
    note(MADE, to, NULL, NULL, 0);
    return 0;
}

static int opened(const char *path, int fd, int is_new, struct fuse_file_info *info) {
    if (fd < 0)
        return -errno;
    struct handle *handle = calloc(1, sizeof *handle);
    snprintf(handle->path, sizeof handle->path, "%s", path);
    handle->fd = fd, handle->file = file_of(fd, is_new);
    info->fh = (uintptr_t)handle;
    return 0;
}

static int do_create(const char *path, mode_t mode, struct fuse_file_info *info) {
    struct stat found;
    int is_new = lstat(full(path), &found) != 0;
    int answer = opened(path, open(full(path), O_RDWR | O_CREAT | (info->flags & O_EXCL), mode), is_new, info);
    if (answer == 0 && is_new)
        note(MADE, path, NULL, NULL, 0);
    return answer;
}

static int do_mknod(const char *path, mode_t mode, dev_t device) {
    if (mknod(full(path), mode, device) != 0)
        return -errno;
    note(MADE, path, NULL, NULL, 0);
    int fd = S_ISREG(mode) ? open(full(path), O_RDWR) : -1;
    if (fd >= 0)
        file_of(fd, 1), close(fd);
    return 0;
}

static int do_open(const char *path, struct fuse_file_info *info) {
    if (!strcmp(path, "/.power")) {
        info->direct_io = 1;
        return 0;
    }
    int answer = opened(path, open(full(path), O_RDWR | (info->flags & O_DIRECTORY)), 0, info);
    if (answer == 0 && info->flags & O_TRUNC) {
        struct handle *handle = handle_of(info);
        touch(handle->file, handle->fd, 0, INT64_MAX);
        ftruncate(handle->fd, 0);
    }
    return answer;
}

static int do_truncate(const char *path, off_t size, struct fuse_file_info *info) {
    int fd = info && info->fh ? handle_of(info)->fd : path && !strcmp(path, "/.power") ? -1 : open(full(path), O_RDWR);
    if (fd < 0)
        return path && !strcmp(path, "/.power") ? 0 : -errno;
    touch(file_of(fd, 0), fd, size, INT64_MAX);
    int answer = ftruncate(fd, size) ? -errno : 0;
    if (!info || !info->fh)
        close(fd);
    return answer;
}

static int do_read(const char *path, char *buffer, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    ssize_t length = info->fh ? pread(handle_of(info)->fd, buffer, size, at) : 0;
    return length < 0 ? -errno : length;
}

static int do_write(const char *path, const char *buffer, size_t size, off_t at, struct fuse_file_info *info) {
    (void)path;
    // Only the file of commands has no handle.
    if (!info->fh) {
        char text[PATH_MAX + 100];
        snprintf(text, sizeof text, "%.*s", (int)size, buffer);
        int answer = command(text);
        return answer < 0 ? answer : (int)size;
    }
    struct handle *handle = handle_of(info);
    if (fault.left > 0 && strstr(handle->path, fault.what) && --fault.left == 0) {
        fprintf(stderr, "disk: %zu bytes at %ld of %s are %s\n", size, (long)at, handle->path, fault.misdirects ? "misdirected" : "lost");
        if (!fault.misdirects)
            return size;
        at += 65536;
    }
    touch(handle->file, handle->fd, at, at + size);
    ssize_t length = pwrite(handle->fd, buffer, size, at);
    return length < 0 ? -errno : length;
}

static int do_statfs(const char *path, struct statvfs *found) { ANSWER(statvfs(full(path ? path : "/"), found)); }

static int do_release(const char *path, struct fuse_file_info *info) {
    (void)path;
    if (info->fh)
        close(handle_of(info)->fd), free(handle_of(info));
    return 0;
}

static int do_fsync(const char *path, int only_data, struct fuse_file_info *info) {
    (void)path, (void)only_data;
    struct stat found;
    if (!info->fh)
        return 0;
    usleep(slow_ms * 1000);
    struct handle *handle = handle_of(info);
    forget_pages(handle->file);
    if (fstat(handle->fd, &found) == 0)
        handle->file->durable = found.st_size;
    names_synced();
    return 0;
}

static int do_fsyncdir(const char *path, int only_data, struct fuse_file_info *info) {
    (void)path, (void)only_data, (void)info;
    names_synced();
    return 0;
}

static int do_opendir(const char *path, struct fuse_file_info *info) {
    info->fh = (uintptr_t)strdup(path);
    return 0;
}

static int do_releasedir(const char *path, struct fuse_file_info *info) {
    (void)path;
    free((char *)(uintptr_t)info->fh);
    return 0;
}

static int do_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t at, struct fuse_file_info *info, enum fuse_readdir_flags flags) {
    (void)at, (void)flags;
    path = (const char *)(uintptr_t)info->fh;
    DIR *dir = opendir(full(path));
    if (!dir)
        return -errno;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(path, "/") || strcmp(entry->d_name, ".aside"))
            fill(buffer, entry->d_name, NULL, 0, 0);
    closedir(dir);
    return 0;
}

static int do_fallocate(const char *path, int mode, off_t at, off_t length, struct fuse_file_info *info) {
    (void)path;
    struct handle *handle = handle_of(info);
    if (mode & ~FALLOC_FL_KEEP_SIZE)
        touch(handle->file, handle->fd, at, at + length);
    ANSWER(fallocate(handle->fd, mode, at, length));
}

static int do_chmod(const char *path, mode_t mode, struct fuse_file_info *info) { ANSWER(info && info->fh ? fchmod(handle_of(info)->fd, mode) : chmod(full(path), mode)); }
static int do_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *info) {
    ANSWER(info && info->fh ? fchown(handle_of(info)->fd, uid, gid) : lchown(full(path), uid, gid));
}
static int do_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *info) {
    ANSWER(info && info->fh ? futimens(handle_of(info)->fd, times) : utimensat(AT_FDCWD, full(path), times, AT_SYMLINK_NOFOLLOW));
}

static void *do_init(struct fuse_conn_info *connection, struct fuse_config *config) {
    (void)connection;
    config->hard_remove = 1, config->nullpath_ok = 1, config->use_ino = 1;
    config->attr_timeout = config->entry_timeout = 60;
    return NULL;
}

int main(int argc, char **argv) {
    static const struct fuse_operations operations = {
        .init = do_init, .getattr = do_getattr, .readlink = do_readlink, .mkdir = do_mkdir, .unlink = do_unlink, .rmdir = do_rmdir, .symlink = do_symlink,
        .rename = do_rename, .link = do_link, .create = do_create, .mknod = do_mknod, .open = do_open, .truncate = do_truncate, .read = do_read,
        .write = do_write, .statfs = do_statfs, .release = do_release, .fsync = do_fsync, .fsyncdir = do_fsyncdir, .opendir = do_opendir, .readdir = do_readdir,
        .releasedir = do_releasedir, .fallocate = do_fallocate, .chmod = do_chmod, .chown = do_chown, .utimens = do_utimens,
    };
    if (argc < 3 || !realpath(argv[1], backing))
        return fprintf(stderr, "usage: disk BACKING MOUNTPOINT [-f]\n"), 2;
    mkdir(full(""), 0755), mkdir(full("/.aside"), 0700);
    umask(0);
    argv[1] = argv[0];
    char *arguments[16] = {argv[0], argv[2], "-f", "-s", "-o", "allow_other,default_permissions,fsname=disk"};
    (void)argc;
    return fuse_main(6, arguments, &operations, NULL);
}
