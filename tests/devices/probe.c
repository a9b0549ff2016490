/*
 * What a worker can do, said from inside its container: one line for each argument.
 *
 *   open:PATH       opens it for reading and writing
 *   mknod:PATH:A:B  makes that character device, then opens it
 *   mlock:MIB       locks that much memory
 *   caps            its effective capabilities
 *   cpus            processors that it may run on
 *   shm             size of /dev/shm
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char *opened(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return strerrorname_np(errno);
    close(fd);
    return "ok";
}

static const char *locked(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return strerrorname_np(errno);
    const char *result = mlock(memory, bytes) == 0 ? "ok" : strerrorname_np(errno);
    munmap(memory, bytes);
    return result;
}

static void status(const char *field) {
    char line[4096];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0) printf("%s", line);
    if (file) fclose(file);
}

int main(int count, char **words) {
    for (int at = 1; at < count; at++) {
        char *word = words[at];
        if (strncmp(word, "open:", 5) == 0) {
            printf("%s %s\n", word, opened(word + 5));
        } else if (strncmp(word, "mknod:", 6) == 0) {
            char path[256];
            unsigned major, minor;
            if (sscanf(word + 6, "%255[^:]:%u:%u", path, &major, &minor) != 3) return 2;
            int made = mknod(path, S_IFCHR | 0666, makedev(major, minor));
            printf("%s %s\n", word, made == 0 ? opened(path) : strerrorname_np(errno));
        } else if (strncmp(word, "mlock:", 6) == 0) {
            printf("%s %s\n", word, locked((size_t)atol(word + 6) << 20));
        } else if (strcmp(word, "caps") == 0) {
            status("CapEff:");
        } else if (strcmp(word, "cpus") == 0) {
            status("Cpus_allowed_list:");
        } else if (strcmp(word, "shm") == 0) {
            struct statvfs size;
            printf("shm %llu\n", statvfs("/dev/shm", &size) ? 0ull : (unsigned long long)size.f_blocks * size.f_frsize);
        } else {
            return 2;
        }
    }
    return 0;
}
