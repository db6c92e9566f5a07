#include "agent/statusline.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/utf8.h"

#define ERASE       "\r\033[K"
#define DIM         "\033[2m"
#define NORMAL      "\033[0m"
#define COLUMNS     80 /* where the terminal does not say */
#define SHOW_MAX    (ER_STATUSLINE_MAX + 32)
#define NO_TERMINAL (-1)
#define FRESH_US    (50 * ER_US_PER_MS)  /* whose the terminal is, is known for so long */
#define LAST_US     (500 * ER_US_PER_MS) /* at the end the terminal is waited for */
#define STAT_BYTES  512                  /* what we want of /proc/PID/stat is at its beginning */

static struct {
    pthread_mutex_t lock; /* of all that follows, and of the terminal */
    int fd;               /* owned; NO_TERMINAL: off */
    int stat_fd;          /* owned; of the process that the terminal's shell knows; may be < 0 */
    bool colour;
    bool drawn;      /* also in part */
    bool open_line;  /* an unfinished line stands where ours would */
    bool background; /* as of background_us */
    uint64_t background_us;
    char text[ER_STATUSLINE_MAX];
} line = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = NO_TERMINAL, .stat_fd = -1};

static size_t columns(void)
{
    struct winsize size;

    return ioctl(line.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS;
}

/* Another job of the shell's has the terminal. tcgetpgrp(3) is of no use: this process has a
 * session of its own, its parent is in the terminal's. */
static bool in_background(void)
{
    char stat[STAT_BYTES];
    ssize_t n = line.stat_fd >= 0 ? pread(line.stat_fd, stat, sizeof(stat) - 1, 0) : -1;
    const char *at;
    int group, foreground;

    stat[n > 0 ? n : 0] = '\0';
    at = strrchr(stat, ')'); /* the name before it may hold anything */
    return at && sscanf(at + 1, " %*c %*d %d %*d %*d %d", &group, &foreground) == 2 &&
           foreground > 0 && foreground != group;
}

static bool is_background(void)
{
    uint64_t now_us = er_now_us();

    if (now_us >= line.background_us + FRESH_US) {
        line.background = in_background();
        line.background_us = now_us;
    }
    return line.background;
}

/* A terminal that takes nothing now loses the line, not us. Returns the bytes that went. */
static size_t put(const char *text, size_t n, uint64_t wait_us)
{
    ssize_t done = er_write_some(line.fd, text, n, wait_us);

    return done > 0 ? (size_t)done : 0;
}

/* False: it still stands there, for the terminal takes nothing. */
static bool hide(uint64_t wait_us)
{
    /* In the background what stands there is the shell's by now. */
    if (line.drawn && !is_background())
        line.drawn = put(ERASE, strlen(ERASE), wait_us) < strlen(ERASE);
    else
        line.drawn = false;
    return !line.drawn;
}

static void show(void)
{
    char out[SHOW_MAX];
    size_t room = columns() - 1; /* the last column would wrap */
    int n;

    if (line.open_line || !line.text[0] || is_background())
        return;
    room = strlen(line.text) < room ? strlen(line.text) : er_utf8_cut(line.text, room);
    n = snprintf(out, sizeof(out), ERASE "%s%.*s%s", line.colour ? DIM : "", (int)room, line.text,
                 line.colour ? NORMAL : "");
    line.drawn = put(out, (size_t)n, 0) > 0;
}

bool er_statusline_open(int fd, pid_t job)
{
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    char path[32];

    if (!isatty(fd) || !term || !*term || strcmp(term, "dumb") == 0)
        return false;
    line.fd = er_fd_own_output(fd);
    line.colour = !no_colour || !*no_colour;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)job);
    line.stat_fd = open(path, O_RDONLY | O_CLOEXEC);
    return line.fd >= 0;
}

void er_statusline_close(void)
{
    pthread_mutex_lock(&line.lock);
    if (line.fd >= 0) {
        (void)hide(LAST_US);
        line.text[0] = '\0';
        er_cleanup_fd(&line.fd);
        er_cleanup_fd(&line.stat_fd);
    }
    pthread_mutex_unlock(&line.lock);
}

void er_statusline_set(const char *text)
{
    char clean[ER_STATUSLINE_MAX];
    size_t n = 0;

    for (; *text && n < sizeof(clean) - 1; text++) {
        if ((unsigned char)*text >= ' ' && *text != 0x7f)
            clean[n++] = *text;
    }
    clean[n] = '\0';
    pthread_mutex_lock(&line.lock);
    if (line.fd >= 0 && (!line.drawn || strcmp(clean, line.text) != 0) && hide(0)) {
        memcpy(line.text, clean, n + 1);
        show();
    }
    pthread_mutex_unlock(&line.lock);
}

bool er_statusline_begin(void)
{
    pthread_mutex_lock(&line.lock);
    return line.fd < 0 || hide(0);
}

void er_statusline_end(bool line_is_complete)
{
    line.open_line = !line_is_complete;
    if (line.fd >= 0 && !line.drawn)
        show();
    pthread_mutex_unlock(&line.lock);
}

void er_statusline_around_log(void)
{
    (void)er_statusline_begin();
}
