/*
 * The logger of one container: the shim starts it (`binary://`) with the container's standard output and error as
 * descriptors 3 and 4, and it appends each to its file, which may be the same. The shim's own copying to a file
 * (`file://`) ends for good at the first error, and the program blocks in its next write.
 *
 *   astra-log out PATH err PATH      in any order, as the shim gives them
 *
 * It ends with the last writer and not before: the shim's SIGTERM at the end of a container comes while there may still
 * be something in the pipes. Output that can't be written, or whose file can't be opened, is lost, which is said in its
 * place once it can; the program is never blocked. Static, no allocation.
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

struct log {
    const char *path;
    int file;
    int error;   /* of the last write or open that failed */
    size_t lost; /* bytes that are not in the file, since then */
};

static void open_log(struct log *log)
{
    log->file = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log->file < 0)
        log->error = errno;
}

/* In the place of what was lost. */
static void mark(struct log *log)
{
    char text[256];
    const char *why = strerror(log->error);
    int length = log->lost < 1 << 20
        ? snprintf(text, sizeof text, "\n[%zu bytes of output were dropped here: %s]\n", log->lost, why)
        : snprintf(text, sizeof text, "\n[%.2f MiB of output were dropped here: %s]\n", log->lost / 1048576.0, why);
    if (write(log->file, text, length) == length)
        log->lost = 0;
}

/* Returns 0 at the end of the pipe. */
static int copy(int from, struct log *log)
{
    ssize_t got = read(from, buffer, sizeof buffer), done = 0;
    if (got < 0)
        return errno == EINTR || errno == EAGAIN;
    if (log->file < 0)
        open_log(log);
    if (log->lost > 0)
        mark(log);
    while (log->file >= 0 && log->lost == 0 && done < got) {
        ssize_t put = write(log->file, buffer + done, got - done);
        if (put >= 0) {
            done += put;
        } else if (errno != EINTR) {
            log->error = errno;
            break;
        }
    }
    log->lost += got - done;
    return got > 0;
}

int main(int argc, char **argv)
{
    struct pollfd pipes[2] = {{.fd = 3, .events = POLLIN}, {.fd = 4, .events = POLLIN}};
    struct log logs[2] = {{.file = -1}, {.file = -1}};

    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "out") == 0)
            logs[0].path = argv[i + 1];
        else if (strcmp(argv[i], "err") == 0)
            logs[1].path = argv[i + 1];
    }
    if (!logs[0].path || !logs[1].path)
        return 1;
    open_log(&logs[0]);
    open_log(&logs[1]);
    close(READY);
    while (pipes[0].fd >= 0 || pipes[1].fd >= 0) {
        if (poll(pipes, 2, -1) < 0 && errno != EINTR)
            return 1;
        for (int i = 0; i < 2; i++)
            if (pipes[i].fd >= 0 && pipes[i].revents && !copy(pipes[i].fd, &logs[i]))
                pipes[i].fd = -1;
    }
    return 0;
}
