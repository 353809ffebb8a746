/*
 * Running the image's shell where AGC_DIR is out of sight: in a sandbox with a /dev of its own, or where only /usr is
 * bound. Our own file carries a copy of it, which needs a place that may be executed: memory, a temporary file, or the
 * mappings that the shell's own loader makes.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_NOEXEC_SEAL 0x8U /* Linux 6.3, 105ff5339f49 */
#define MFD_EXEC 0x10U
#endif

#define PATH_ROOM 512

/* A name may lead to something else here (a script has its own path in AT_EXECFN); the length tells. */
static int open_if_ours(const char *path)
{
    struct stat st;
    int fd = path ? openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return -1;
    if (!fstat(fd, &st) && (uint64_t)st.st_size == payload_offset() + payload_length())
        return fd;
    close(fd);
    return -1;
}

/* /proc may be missing or somebody else's. */
static int open_self(void)
{
    static const char *const folders[] = {"/bin/", "/usr/bin/", "/usr/local/bin/"};
    char path[64], name[32];
    int fd = open_if_ours("/proc/self/exe");
    if (fd < 0)
        fd = open_if_ours((const char *)getauxval(AT_EXECFN));
    payload_name(name);
    for (size_t i = 0; fd < 0 && i < sizeof folders / sizeof *folders; i++) {
        size_t at = put_text(path, 0, sizeof path, folders[i]);
        put_text(path, at, sizeof path, name);
        fd = open_if_ours(path);
    }
    return fd;
}

static int copy_shell(int self, int to)
{
    off_t from = (off_t)payload_offset();
    for (uint64_t left = payload_length(); left;) {
        ssize_t n = sendfile(to, self, &from, left);
        if (n <= 0)
            return -1;
        left -= (uint64_t)n;
    }
    return 0;
}

static int copy_in_memory(int self, unsigned flags)
{
    char name[32];
    payload_name(name);
    int fd = memfd_create(name, flags);
    if (fd >= 0 && copy_shell(self, fd)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Kernels before 6.3 do not know MFD_EXEC; with vm.memfd_noexec=2 both are refused. */
static void exec_from_memory(int self, char **argv, char **envp)
{
    int fd = copy_in_memory(self, MFD_CLOEXEC | MFD_EXEC);
    if (fd < 0 && errno == EINVAL)
        fd = copy_in_memory(self, MFD_CLOEXEC);
    if (fd < 0)
        return;
    exec_file(fd, argv, envp);
    close(fd);
}

static int same_file(const struct stat *a, int fd)
{
    struct stat b;
    return !fstat(fd, &b) && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

/*
 * The file is opened again for reading before it runs: one that is open for writing is ETXTBSY (execve(2)). Whoever may
 * write to the folder may have put another file under the name.
 */
static void exec_from_folder(int self, const char *folder, char **argv, char **envp)
{
    char path[PATH_ROOM];
    if (!folder || strlen(folder) > sizeof path - 32)
        return;
    size_t at = put_text(path, 0, sizeof path, folder);
    at = put_text(path, at, sizeof path, "/.agentcgroup-");
    put_number(path, at, sizeof path, (uint32_t)getpid());
    int out = openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
    if (out < 0)
        return;
    struct stat st;
    int failed = copy_shell(self, out) || fstat(out, &st);
    close(out);
    int in = failed ? -1 : openat(AT_FDCWD, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    unlink(path);
    if (in < 0)
        return;
    if (same_file(&st, in))
        exec_file(in, argv, envp);
    close(in);
}

/* The loader that the shell names, if it can be told argv[0]: glibc 2.33 and musl can. */
static int find_loader(int self, char *path, size_t size)
{
    off_t start = (off_t)payload_offset();
    Elf64_Ehdr elf;
    Elf64_Phdr part;
    if (pread(self, &elf, sizeof elf, start) != sizeof elf)
        return -1;
    for (int i = 0; i < elf.e_phnum; i++) {
        off_t at = start + (off_t)elf.e_phoff + (off_t)i * elf.e_phentsize;
        if (pread(self, &part, sizeof part, at) != sizeof part)
            return -1;
        if (part.p_type == PT_INTERP && part.p_filesz < size)
            return pread(self, path, part.p_filesz, start + (off_t)part.p_offset) == (ssize_t)part.p_filesz ? 0 : -1;
    }
    return -1;
}

static int knows_argv0(const char *loader)
{
    static const char option[] = "--argv0";
    struct stat st;
    int fd = openat(AT_FDCWD, loader, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    void *file = fstat(fd, &st) ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    return file != MAP_FAILED && memmem(file, (size_t)st.st_size, option, sizeof option - 1);
}

/* A sealed copy may not be executed, but it may be mapped: that is all that a loader does with its program. */
static void exec_through_loader(int self, char **argv, char **envp)
{
    char loader[PATH_ROOM] = "", copy[32];
    size_t argc = 0;
    int fd = find_loader(self, loader, sizeof loader) || !knows_argv0(loader) ? -1 : copy_in_memory(self, MFD_NOEXEC_SEAL);
    if (fd < 0)
        return;
    while (argv[argc])
        argc++;
    size_t at = put_text(copy, 0, sizeof copy, "/proc/self/fd/");
    put_number(copy, at, sizeof copy, (uint32_t)fd);
    char *loaded[argc + 4];
    loaded[0] = loader;
    loaded[1] = "--argv0";
    loaded[2] = argv[0]; /* never missing: Linux 5.18, dcd46d897adb */
    loaded[3] = copy;
    memcpy(loaded + 4, argv + 1, argc * sizeof *argv);
    execve(loader, loaded, envp);
}

/* Returns only if nothing worked, with the errno of the first way. */
void exec_copy(char **argv, char **envp)
{
    int self = payload_offset() ? open_self() : -1;
    if (self < 0) {
        errno = ENOENT;
        return;
    }
    exec_from_memory(self, argv, envp);
    int first = errno;
    exec_from_folder(self, getenv("TMPDIR"), argv, envp);
    exec_from_folder(self, "/tmp", argv, envp);
    exec_from_folder(self, "/dev/shm", argv, envp);
    exec_from_folder(self, "/var/tmp", argv, envp);
    exec_through_loader(self, argv, envp);
    errno = first;
}
