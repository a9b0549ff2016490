/*
 * Notes when it was started: CLOCK_MONOTONIC in nanoseconds, in FOLDER/<attempt>-<rank>, as its first deed.
 *
 *   first FOLDER        and ends
 *   first FOLDER stay   and waits for a signal that ends it
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *variable(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value ? value : fallback;
}

int main(int argc, char **argv) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (argc < 2)
        return 2;

    char path[512], whole[544], text[32];
    snprintf(path, sizeof path, "%s/%s-%s", argv[1], variable("ASTRAEUS_ATTEMPT", "0"), variable("RANK", "0"));
    snprintf(whole, sizeof whole, "%s.new", path);
    int length = snprintf(text, sizeof text, "%lld\n", now.tv_sec * 1000000000LL + now.tv_nsec);
    int file = open(whole, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, text, length) != length || close(file) || rename(whole, path))
        return 1;
    while (argc > 2)
        pause();
    return 0;
}
