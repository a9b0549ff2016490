/*
 * The logger of one container: the shim starts it (`binary://`) with the container's standard output and error as
 * descriptors 3 and 4, and it appends each to its file, which may be the same. The shim's own copying to a file
 * (`file://`) ends for good at the first error, and the program blocks in its next write.
 *
 *   astra-log out PATH err PATH      in any order, as the shim gives them
 *
 * It ends with the last writer and not before: the shim's SIGTERM at the end of a container comes while there may still
 * be something in the pipes. A disk that is full loses output, which is said in its place once there is room, and never
 * blocks the program. Static, no allocation.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define READY 5 /* closed when we listen: the shim waits for that */

static char buffer[1 << 16];

static int open_log(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0)
        dprintf(STDERR_FILENO, "astra-log: %s: %s\n", path, strerror(errno));
    return file;
}

/* In the place of what a full disk took. */
static void mark(int to, size_t *lost)
{
    static const char why[] = "of output were dropped here: the disk was full]\n";
    char text[128];
    int length = *lost < 1 << 20 ? snprintf(text, sizeof text, "\n[%zu bytes %s", *lost, why)
                                 : snprintf(text, sizeof text, "\n[%.2f MiB %s", *lost / 1048576.0, why);
    if (write(to, text, length) == length)
        *lost = 0;
}

/* Returns 0 at the end of the pipe. */
static int copy(int from, int to, size_t *lost)
{
    ssize_t got = read(from, buffer, sizeof buffer), done = 0;
    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    if (*lost > 0)
        mark(to, lost);
    while (*lost == 0 && done < got) {
        ssize_t put = write(to, buffer + done, got - done);
        if (put >= 0)
            done += put;
        else if (errno != EINTR)
            break;
    }
    *lost += got - done;
    return got > 0;
}

int main(int argc, char **argv)
{
    struct pollfd pipes[2] = {{.fd = 3, .events = POLLIN}, {.fd = 4, .events = POLLIN}};
    int files[2] = {-1, -1};
    size_t lost[2] = {0, 0};

    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "out") == 0)
            files[0] = open_log(argv[i + 1]);
        else if (strcmp(argv[i], "err") == 0)
            files[1] = open_log(argv[i + 1]);
    }
    if (files[0] < 0 || files[1] < 0)
        return 1;
    close(READY);
    while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
        if (poll(pipes, 2, -1) < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < 2; i++)
            if (pipes[i].fd >= 0 && pipes[i].revents && !copy(pipes[i].fd, files[i], &lost[i]))
                pipes[i].fd = -1;
    }
    return 0;
}
