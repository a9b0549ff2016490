/*
 * The first process of every container. It
 *   - runs the program as its child, in the foreground, and ends with the program's code (128 + n for signal n);
 *   - reaps what is orphaned to it;
 *   - passes every signal on to the program;
 *   - during a stop, stays until all the processes that were asked to end have ended.
 *
 * The last one is for `bash -c 'train; echo done'`: bash dies of SIGTERM at once, while the program under it still
 * writes its checkpoint. When the first process of a container ends, the kernel kills the others.
 *
 * The protocol of a stop: before the agent sends SIGTERM to a process, it queues STOP_SIGNAL to init with the ID of that
 * process (as seen in here) as its value; with the negative ID of one that is to be left alone. A sender outside of the
 * PID namespace shows as process 0: nobody else is heard. If the program itself dies of that SIGTERM, then the code is
 * that of the last asked process that ended otherwise.
 *
 * The agent does not ask the children of a process that has a handler: it looks after them itself. One that dies of
 * SIGTERM nevertheless did not, such as bash with a trap on EXIT: what it leaves is asked by init.
 *
 * `astra-init --try WORD...` does something else: beside a container that waits for its start, with all that its program
 * will have, it tries what was promised, and prints a line for each word, `ok` or the name of an error:
 *   open:MAJOR:MINOR:PATH  the node is there, is that device (else ESTALE), and opens
 *   capability:BIT         it is effective (else EPERM)
 *   lock                   1 GiB may be locked; none of it is really used
 *
 * No allocation, no threads; static, so that it runs in every image.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STOP_SIGNAL 40 /* the same number in astra_agent/containerd/stopping.py */
#define MAX_ASKED 4096 /* what is asked beyond that is not waited for */

static pid_t program;
static int program_status;
static bool program_ended;

struct set {
    size_t count;
    pid_t pids[MAX_ASKED];
};

static struct set asked, spared;
static bool stopping;
static int asked_code = -1; /* of the last asked process that ended by itself */

static int code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static bool died_of_stop(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
}

static void fail(const char *name, int code)
{
    dprintf(STDERR_FILENO, "astra-init: %s: %s\n", name, strerror(errno));
    _exit(code);
}

static void add(struct set *set, pid_t pid)
{
    if (set->count < MAX_ASKED)
        set->pids[set->count++] = pid;
}

static bool has(const struct set *set, pid_t pid)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->pids[i] == pid)
            return true;
    return false;
}

static bool take(struct set *set, pid_t pid)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->pids[i] == pid) {
            set->pids[i] = set->pids[--set->count];
            return true;
        }
    return false;
}

/* Asked processes whose parent is not init end without a word to init: their parent reaps them. */
static bool asked_ones_live(void)
{
    for (size_t i = 0; i < asked.count;)
        if (kill(asked.pids[i], 0) < 0 && errno == ESRCH)
            asked.pids[i] = asked.pids[--asked.count];
        else
            i++;
    return asked.count > 0;
}

/* All children of init that were not asked yet: one that was asked has died and left them. */
static void ask_children(void)
{
    static char text[1 << 16];
    int file = open("/proc/self/task/1/children", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return; /* a kernel without it: they are left as they are */
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = '\0';
    for (char *rest = text, *word; (word = strtok(rest, " ")) != NULL; rest = NULL) {
        pid_t pid = atoi(word);
        if (pid > 1 && pid != program && !has(&asked, pid) && !has(&spared, pid)) {
            add(&asked, pid);
            kill(pid, SIGTERM);
        }
    }
}

static void reap(void)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        bool was_asked = take(&asked, pid);
        take(&spared, pid);
        if (pid == program) {
            program_ended = true;
            program_status = status;
        } else if (was_asked && !died_of_stop(status)) {
            asked_code = code_of(status);
        }
        if (was_asked && died_of_stop(status))
            ask_children();
    }
}

static void end_if_done(void)
{
    if (!program_ended)
        return;
    if (!stopping || !died_of_stop(program_status))
        _exit(code_of(program_status));
    if (!asked_ones_live())
        _exit(asked_code >= 0 ? asked_code : code_of(program_status));
}

static void run(char **argv, const sigset_t *mask)
{
    setpgid(0, 0);
    if (isatty(STDIN_FILENO))
        tcsetpgrp(STDIN_FILENO, getpgrp()); /* SIGTTOU is still blocked */
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(argv[0], argv);
    fail(argv[0], errno == ENOENT || errno == ENOTDIR ? 127 : 126);
}

static void hear(int value)
{
    stopping = true;
    if (value > 1)
        add(&asked, value);
    else if (value < -1)
        add(&spared, -value);
}

static void handle(const siginfo_t *info)
{
    switch (info->si_signo) {
    case SIGCHLD:
        break; /* several children may hide behind one: reap() runs after every signal */
    case STOP_SIGNAL:
        if (info->si_pid == 0 && info->si_code == SI_QUEUE)
            hear(info->si_value.sival_int);
        break;
    case SIGTTIN:
    case SIGTTOU:
    case SIGTSTP:
        break; /* of init's own terminal: not the program's */
    default:
        if (!program_ended)
            kill(program, info->si_signo);
    }
}

static int try_open(const char *rest)
{
    unsigned major_number, minor_number;
    int path;
    struct stat node;

    if (sscanf(rest, "%u:%u:%n", &major_number, &minor_number, &path) != 2)
        return EINVAL;
    if (stat(rest + path, &node) < 0)
        return errno;
    if (!S_ISCHR(node.st_mode) || node.st_rdev != makedev(major_number, minor_number))
        return ESTALE;
    int file = open(rest + path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return errno;
    close(file);
    return 0;
}

static int try_capability(unsigned bit)
{
    char line[256];
    unsigned long long effective = 0;
    FILE *status = fopen("/proc/self/status", "re");

    while (status && fgets(line, sizeof line, status))
        sscanf(line, "CapEff: %llx", &effective);
    if (status)
        fclose(status);
    return bit < 64 && effective >> bit & 1 ? 0 : EPERM;
}

/* Locked as it is used, so that neither the machine nor the container's limit has to have it now. */
static int try_lock(void)
{
    const size_t size = 1UL << 30;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return errno;
    return mlock2(memory, size, MLOCK_ONFAULT) == 0 ? 0 : errno;
}

static int try(const char *word)
{
    if (strncmp(word, "open:", 5) == 0)
        return try_open(word + 5);
    if (strncmp(word, "capability:", 11) == 0)
        return try_capability(atoi(word + 11));
    return strcmp(word, "lock") == 0 ? try_lock() : EINVAL;
}

int main(int argc, char **argv)
{
    const struct timespec second = {.tv_sec = 1}, none = {0};
    sigset_t all, stop, before;
    siginfo_t info;

    if (argc < 2) {
        dprintf(STDERR_FILENO, "usage: astra-init program [argument ...]\n");
        return 125;
    }
    if (strcmp(argv[1], "--try") == 0) {
        for (int i = 2; i < argc; i++) {
            int error = try(argv[i]);
            dprintf(STDOUT_FILENO, "%s\n", error ? strerrorname_np(error) : "ok");
        }
        return 0;
    }
    signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would hide the ends of children from both of us */
    sigfillset(&all);
    sigemptyset(&stop);
    sigaddset(&stop, STOP_SIGNAL);
    sigprocmask(SIG_SETMASK, &all, &before);
    program = fork();
    if (program < 0)
        fail("fork", 125);
    if (program == 0)
        run(argv + 1, &before);
    for (;;) {
        /* Once the program has ended, what is asked may end out of sight (see asked_ones_live): look now and then. */
        if (sigtimedwait(&all, &info, program_ended ? &second : NULL) > 0)
            handle(&info);
        /* Who dies of a stop was told of before: hear that first, though SIGCHLD is the lower number. */
        while (sigtimedwait(&stop, &info, &none) > 0)
            handle(&info);
        reap();
        end_if_done();
    }
}
