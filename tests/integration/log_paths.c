/*
 * A worker's bytes on their way to files, in this process: whichever way they take (unread from
 * pipe to file, copied, line by line for filters), the same ones arrive, and what does not arrive
 * is counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/linesplit.h"
#include "agent/logfwd.h"
#include "base/fd.h"
#include "base/rand.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"

enum { FILES_MAX = 16, TEXT_BYTES = 9 << 20, FILE_BYTES = 3 << 20, SEEDS = 4 };

static char dir[ER_TEST_PATH_MAX];
static struct er_logpump *pump;
static char *no_filter[] = {(char *)"a word that does not come"};
static const struct er_strlist filters = {.items = no_filter, .n = 1};
static struct er_logfile filtered;

enum way { UNREAD, COPIED, FILTERED, WAYS };

struct stream {
    char path[ER_TEST_PATH_MAX + 32];
    struct er_logfwd *fwd;
    int fd; /* the worker's end */
};

static void begin(void)
{
    er_test_tempdir(dir);
    er_tap_require(er_logpump_new(&pump, NULL) == 0);
    er_tap_require(er_logfile_init(&filtered, NULL, UINT64_MAX, 1) == 0);
}

static void end(void)
{
    er_logfile_done(&filtered);
    er_logpump_free(pump);
    er_test_rmtree(dir);
}

static void open_stream(struct stream *s, const char *name, enum way way, uint64_t max_size)
{
    snprintf(s->path, sizeof(s->path), "%s/%s.log", dir, name);
    const struct er_logfwd_opts opts = {
        .path = s->path,
        .max_size = max_size,
        .max_files = FILES_MAX,
        .tail = way == COPIED,
        .filtered = way == FILTERED ? &filtered : NULL,
        .filters = &filters,
    };

    er_tap_require(er_logfwd_new(&s->fwd, &s->fd, pump, &opts, NULL) == 0);
}

static void close_stream(struct stream *s)
{
    close(s->fd);
    er_logfwd_free(s->fwd);
}

/* Lines of all lengths up to beyond the bound, progress bars, bytes that are no text. */
static char *random_text(struct er_rand *rand, size_t n)
{
    char *text = malloc(n);

    er_tap_require(text != NULL);
    for (size_t at = 0; at < n;) {
        size_t length = 1 + er_rand_below(rand, er_rand_below(rand, 50) == 0 ? 150000 : 300);
        bool binary = er_rand_below(rand, 20) == 0;

        length = length < n - at ? length : n - at;
        for (size_t i = 0; i < length; i++)
            text[at + i] = binary ? (char)er_rand_next(rand) : (char)('a' + (at + i) % 26);
        at += length;
        text[at - 1] = er_rand_below(rand, 10) == 0 ? '\r' : '\n';
    }
    return text;
}

static void write_pieces(struct er_rand *rand, struct stream streams[], size_t streams_n,
                         const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t piece = 1 + er_rand_below(rand, er_rand_below(rand, 3) == 0 ? 400000 : 5000);

        piece = piece < n - at ? piece : n - at;
        for (size_t i = 0; i < streams_n; i++)
            er_tap_require(er_write_all(streams[i].fd, text + at, piece) == 0);
        at += piece;
    }
}

/* The file and the rotated ones before it, oldest first, against `text`. */
static bool files_are(const char *path, const char *text, size_t n)
{
    size_t at = 0;

    for (int i = FILES_MAX; i >= 0; i--) {
        char name[ER_TEST_PATH_MAX + 64];
        struct stat st;
        char *data;
        int fd;

        snprintf(name, sizeof(name), i > 0 ? "%s.%d" : "%s", path, i);
        fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        er_tap_require(fstat(fd, &st) == 0);
        data = malloc((size_t)st.st_size + 1);
        er_tap_require(data && er_read_all(fd, data, (size_t)st.st_size) == 0);
        close(fd);
        er_tap_check(st.st_size <= FILE_BYTES + FILE_BYTES / 4); /* the end of a line */
        if ((size_t)st.st_size > n - at || memcmp(data, text + at, (size_t)st.st_size) != 0)
            return false;
        at += (size_t)st.st_size;
        free(data);
    }
    return at == n;
}

static void all_ways_give_the_same_bytes(void)
{
    static const char *const NAMES[WAYS] = {"unread", "copied", "filtered"};

    begin();
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct stream streams[WAYS];
        struct er_rand rand;
        char *text;

        er_rand_init(&rand, seed);
        text = random_text(&rand, TEXT_BYTES);
        for (int way = 0; way < WAYS; way++) {
            char name[32];

            snprintf(name, sizeof(name), "%s-%d", NAMES[way], (int)seed);
            open_stream(&streams[way], name, (enum way)way, FILE_BYTES);
        }
        write_pieces(&rand, streams, WAYS, text, TEXT_BYTES);
        for (int way = 0; way < WAYS; way++) {
            er_tap_check(er_logfwd_take_drops(streams[way].fwd).bytes == 0);
            close_stream(&streams[way]);
            if (!er_tap_check(files_are(streams[way].path, text, TEXT_BYTES)))
                er_tap_note("%s", streams[way].path);
        }
        free(text);
    }
    end();
}

/* A limit to a file's size stands for the disk that is full in the middle of a chunk. */
static void what_the_disk_does_not_take_is_counted(void)
{
    const size_t limit = (2 << 20) + 12345;
    struct er_rand rand;
    char *text;

    begin();
    signal(SIGXFSZ, SIG_IGN);
    er_rand_init(&rand, 7);
    text = random_text(&rand, TEXT_BYTES);
    er_tap_require(setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, RLIM_INFINITY}) == 0);
    for (int way = 0; way < WAYS; way++) {
        struct er_log_drops drops;
        struct stream s;
        char name[32];

        snprintf(name, sizeof(name), "way-%d", way);
        open_stream(&s, name, (enum way)way, UINT64_MAX);
        write_pieces(&rand, &s, 1, text, TEXT_BYTES);
        er_logfwd_drain(s.fwd);
        drops = er_logfwd_take_drops(s.fwd);
        er_tap_check(drops.bytes == TEXT_BYTES - limit && drops.error == EFBIG);
        er_tap_check(drops.lines == er_linesplit_count(text + limit, TEXT_BYTES - limit));
        close_stream(&s);
        er_tap_check(files_are(s.path, text, limit));
    }
    free(text);
    end();
}

/* Somebody empties the file to make room: it goes on from its beginning, without a hole. */
static void file_that_is_emptied_goes_on(void)
{
    struct stat st;

    begin();
    for (int way = 0; way < WAYS; way++) {
        struct stream s;
        char name[32];

        snprintf(name, sizeof(name), "way-%d", way);
        open_stream(&s, name, (enum way)way, UINT64_MAX);
        er_tap_require(er_write_all(s.fd, "before\n", 7) == 0);
        er_logfwd_drain(s.fwd);
        er_tap_require(truncate(s.path, 0) == 0);
        er_tap_require(er_write_all(s.fd, "after\n", 6) == 0);
        close_stream(&s);
        er_tap_check(stat(s.path, &st) == 0 && st.st_size == 6);
    }
    end();
}

static bool has_all(void *user)
{
    const struct stream *s = user;
    struct stat st;

    return stat(s->path, &st) == 0 && st.st_size == 1 << 20;
}

/* A FIFO that nobody empties stands for a file system that hangs. */
static void file_that_stands_still_holds_up_its_stream_alone(void)
{
    static char text[1 << 20];
    struct stream stuck, other;
    size_t got = 0;
    int fifo;

    begin();
    snprintf(stuck.path, sizeof(stuck.path), "%s/stuck.log", dir);
    er_tap_require(mkfifo(stuck.path, 0600) == 0);
    fifo = open(stuck.path, O_RDWR | O_CLOEXEC);
    er_tap_require(fifo >= 0);
    open_stream(&stuck, "stuck", UNREAD, UINT64_MAX);
    open_stream(&other, "other", UNREAD, UINT64_MAX);
    memset(text, 'x', sizeof(text));
    er_tap_require(er_write_all(stuck.fd, text, 300000) == 0); /* the FIFO takes 64 KiB */
    er_tap_require(er_write_all(other.fd, text, sizeof(text)) == 0);
    er_tap_check(er_test_wait_until(has_all, &other, ER_TEST_DEADLINE_MS));
    er_tap_check(er_logfwd_take_drops(stuck.fwd).bytes == 0); /* the loop does not wait for it */
    while (got < 300000) {
        ssize_t n = read(fifo, text, sizeof(text));

        er_tap_require(n > 0);
        got += (size_t)n;
    }
    close_stream(&stuck);
    close_stream(&other);
    close(fifo);
    end();
}

static void last_lines_are_kept(void)
{
    struct stream s;

    begin();
    open_stream(&s, "tail", COPIED, UINT64_MAX);
    for (int i = 0; i < 10000; i++) {
        char line[32];

        er_tap_require(
            er_write_all(s.fd, line, (size_t)snprintf(line, sizeof(line), "line %d\n", i)) == 0);
    }
    er_logfwd_drain(s.fwd);
    er_tap_check(strncmp(er_logfwd_tail(s.fwd), "line 9980\n", 10) == 0);
    er_tap_check(strstr(er_logfwd_tail(s.fwd), "line 9999\n") != NULL);
    close_stream(&s);
    end();
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"all_ways_give_the_same_bytes", all_ways_give_the_same_bytes, 120},
        {"what_the_disk_does_not_take_is_counted", what_the_disk_does_not_take_is_counted, 120},
        {"file_that_is_emptied_goes_on", file_that_is_emptied_goes_on, 0},
        {"file_that_stands_still_holds_up_its_stream_alone",
         file_that_stands_still_holds_up_its_stream_alone, 0},
        {"last_lines_are_kept", last_lines_are_kept, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
