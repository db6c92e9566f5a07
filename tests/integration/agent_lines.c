/* What becomes of workers' bytes: filters, prefixes, stream maps, long lines, binary, a full disk,
 * a console that nobody reads. */
#include <fcntl.h>
#include <stdint.h>

#include "tests/integration/agent_case.h"

/* <dir>/logs/<name>/gen-1/<file> relative to the case's folder. */
static const char *log_file(const struct agent_case *c, const char *file)
{
    static char paths[4][1024];
    static unsigned next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "logs/%s/gen-1/%s", c->name, file);
    return path;
}

static int run_spec(struct agent_case *c, const char *command, const char *log, const char *more)
{
    static char keys[ER_TEST_PATH_MAX + 1024];

    snprintf(keys, sizeof(keys), "log: {dir: %s/logs%s}\n%s", c->dir, log, more);
    return case_run_job(c, case_job(c, command, keys));
}

static void chosen_lines_are_copied(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_spec(&c, "[sh, -c, 'echo loss 1; echo other; echo a, b; echo loss >&2']",
                          ", duplicate_stdout: [loss, 'a, b'], duplicate_stderr: nothing",
                          "node: {id: n1}\n") == 0);
    er_tap_check(case_file_is(&c, log_file(&c, "filtered_stdout-n1.log"),
                              "[default0]: loss 1\n[default0]: a, b\n"));
    er_tap_check(case_file_is(&c, log_file(&c, "rank-0/stdout.log"), "loss 1\nother\na, b\n"));
    er_tap_check(!case_has(&c, log_file(&c, "filtered_stderr-n1.log")) ||
                 case_file_is(&c, log_file(&c, "filtered_stderr-n1.log"), ""));
    case_end(&c);
}

/* torchrun's form: both ranks' lines in one file, without the console. */
static void chosen_lines_need_no_console(void)
{
    struct agent_case c = {0};
    char *text;

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node=2", "--node-id=n1", "--log-dir",
                                   case_path(&c, "logs"), "-r3", "--duplicate-stdout-filters=hit",
                                   SH("echo hit $RANK; echo miss"))) == 0);
    er_tap_check(er_test_out(&c.p)[0] == '\0');
    text = er_test_read_file(case_path(&c, log_file(&c, "filtered_stdout-n1.log")));
    er_tap_require(text != NULL);
    er_tap_check(strstr(text, "[default0]: hit 0\n") && strstr(text, "[default1]: hit 1\n"));
    er_tap_check(!strstr(text, "miss"));
    free(text);
    case_end(&c);
}

static void stream_maps_name_ranks(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_spec(&c, "[sh, -c, 'echo out; echo err >&2']",
                          ", tee: \"0\", redirects: \"0:1,11:2\"", "nproc_per_node: 12\n") == 0);
    er_tap_check(case_file_is(&c, log_file(&c, "rank-0/stdout.log"), "out\n"));
    er_tap_check(!case_has(&c, log_file(&c, "rank-0/stderr.log")));
    er_tap_check(!case_has(&c, log_file(&c, "rank-5/stdout.log")));
    er_tap_check(case_file_is(&c, log_file(&c, "rank-11/stderr.log"), "err\n"));
    er_tap_check(!case_has(&c, log_file(&c, "rank-11/stdout.log")));
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("--nproc-per-node=2", "--log-dir", case_path(&c, "logs"), "-r0",
                                   "-t", "global:1:1", SH("echo out $RANK"))) == 0);
    er_tap_check(case_file_is(&c, log_file(&c, "rank-1/stdout.log"), "out 1\n"));
    er_tap_check(!case_has(&c, log_file(&c, "rank-0/stdout.log")));
    er_tap_check(strstr(er_test_out(&c.p), "[default1]: out 1\n") != NULL);
    case_end(&c);
}

static void prefix_is_a_template(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_spec(&c, "echo x",
                          ", prefix: '${job}/${rank}/${local_rank}/${world_size}/${node_id} '",
                          "node: {id: n1}\n") == 0);
    char line[256];

    snprintf(line, sizeof(line), "%s/0/0/1/n1 x\n", c.name);
    er_tap_check(strcmp(er_test_out(&c.p), line) == 0);
    er_test_done(&c.p);
    er_tap_check(
        case_run(&c, ARGS("--log-dir=/dev/null", "-t3", "--role=r",
                          "--log-line-prefix-template=<${role_name} ${rank}> ", "echo", "x")) == 0);
    er_tap_check(strcmp(er_test_out(&c.p), "<r 0> x\n") == 0);
    case_end(&c);
}

/* 64 KiB are whole, more comes in pieces; the file has it as it came. */
static void long_lines_reach_the_console_in_pieces(void)
{
    struct agent_case c = {0};
    size_t lines = 0, longest = 0;
    char *text;

    case_begin(&c);
    er_tap_check(run_spec(&c, "[sh, -c, 'head -c 200000 /dev/zero | tr \"\\\\0\" x; echo']",
                          ", prefix: ''", "") == 0);
    for (const char *s = er_test_out(&c.p); *s;) {
        size_t n = strcspn(s, "\n");

        longest = n > longest ? n : longest;
        lines++;
        s += n + (s[n] == '\n');
    }
    er_tap_check(lines == 4);
    er_tap_check(longest == 65536);
    text = er_test_read_file(case_path(&c, log_file(&c, "rank-0/stdout.log")));
    er_tap_check(text && strlen(text) == 200001);
    free(text);
    case_end(&c);
}

static void binary_reaches_the_file_unharmed(void)
{
    struct agent_case c = {0};
    struct er_test_proc p;
    char compare[2 * ER_TEST_PATH_MAX + 64];

    case_begin(&c);
    er_tap_check(run_spec(&c,
                          "[sh, -c, 'head -c 300000 /dev/urandom > $CASE/data; cat $CASE/data']",
                          ", tee: \"0\"", "") == 0);
    snprintf(compare, sizeof(compare), "cmp %s/data %s", c.dir,
             case_path(&c, log_file(&c, "rank-0/stdout.log")));
    er_tap_check(er_test_run(&p, ARGS(SH(compare)), NULL, ER_TEST_DEADLINE_MS) == 0);
    er_test_done(&p);
    case_end(&c);
}

/* Files end between two lines, and none is larger than max_size but by the end of a line. */
static void rotation_keeps_lines_whole(void)
{
    struct agent_case c = {0};
    struct er_test_proc p;
    char check[2 * ER_TEST_PATH_MAX + 512];

    case_begin(&c);
    er_tap_check(
        run_spec(&c, "[seq, \"20000\"]", ", tee: \"0\", max_size: 16KiB, max_files: 20", "") == 0);
    snprintf(
        check, sizeof(check),
        "cd %s/logs/%s/gen-1/rank-0 && for f in stdout.log*; do [ $(wc -c < $f) -le 16390 ] || "
        "exit 1; done; for i in $(seq 20 -1 1); do [ ! -f stdout.log.$i ] || cat stdout.log.$i; "
        "done > all; cat stdout.log >> all; seq 20000 | cmp - all",
        c.dir, c.name);
    er_tap_check(er_test_run(&p, ARGS(SH(check)), NULL, ER_TEST_DEADLINE_MS) == 0);
    case_note(er_test_out(&p));
    er_test_done(&p);
    case_end(&c);
}

/* Each line comes in three writes, with whatever pauses the machine puts between them. */
static void rotation_waits_for_the_end_of_a_line(void)
{
    static const char LINES[] = "[sh, -c, 'for i in $(seq 600); do printf \"L-$i \"; printf "
                                "xxxxxxxxxxxxxxxx; echo E; done']";
    struct agent_case c = {0};
    struct er_test_proc p;
    char check[2 * ER_TEST_PATH_MAX + 512];

    case_begin(&c);
    er_tap_check(run_spec(&c, LINES, ", tee: \"0\", max_size: 4KiB, max_files: 20", "") == 0);
    snprintf(check, sizeof(check),
             "cd %s/logs/%s/gen-1/rank-0 && [ -f stdout.log.2 ] && for f in stdout.log*; do "
             "head -c 2 $f | grep -q '^L-' && tail -c 2 $f | grep -q '^E$' || exit 1; done; "
             "cat stdout.log* | wc -l | grep -qx 600",
             c.dir, c.name);
    er_tap_check(er_test_run(&p, ARGS(SH(check)), NULL, ER_TEST_DEADLINE_MS) == 0);
    case_note(er_test_err(&p));
    er_test_done(&p);
    case_end(&c);
}

/* What a worker wrote last, though it ends no line, stands before what the agent says of its end.
 */
static void unfinished_line_comes_before_the_summary(void)
{
    struct agent_case c = {0};
    const char *half, *summary;

    case_begin(&c);
    er_tap_check(
        run_spec(&c, "[sh, -c, 'printf half-a-line >&2; exit 5']", "", "restart: {max: 0}\n") == 5);
    half = strstr(er_test_err(&c.p), "]: half-a-line");
    summary = strstr(er_test_err(&c.p), "root cause");
    er_tap_check(half && summary && half < summary);
    case_note(er_test_err(&c.p));
    case_end(&c);
}

struct file_size {
    const char *path;
    long long size;
};

static bool has_size(void *user)
{
    const struct file_size *file = user;
    struct stat st;

    return !stat(file->path, &st) && st.st_size == file->size;
}

static long long sum_of_drops(struct agent_case *c, const char *what)
{
    char command[2 * ER_TEST_PATH_MAX];
    long long sum = 0;

    snprintf(command, sizeof(command), "cat %s/logs/%s/events-*.jsonl", c->dir, c->name);
    er_test_done(&c->p);
    er_tap_check(er_test_run(&c->p, ARGS(SH(command)), NULL, ER_TEST_DEADLINE_MS) == 0);
    for (const char *at = er_test_out(&c->p); (at = strstr(at, "\"log_dropped\"")); at++) {
        const char *number = strstr(at, what);

        sum += number ? atoll(number + strlen(what)) : 0;
    }
    return sum;
}

/* A pipe that nobody reads: the workers go on, and what is lost is counted to the byte. */
static void console_that_nobody_reads_blocks_nobody(void)
{
    struct agent_case c = {0};
    char command[4 * ER_TEST_PATH_MAX];
    long long written = 20 * 1000 * 1000, dropped = 0, shown = 0;
    struct file_size file;
    int fds[2];

    case_begin(&c);
    er_tap_require(pipe(fds) == 0);
    snprintf(command, sizeof(command),
             "%s --rdzv-id %s --log-dir %s -t1 --set log.prefix= sh -c 'yes 1234567 | head "
             "-c %lld' 1>&%d %d<&-",
             er_test_bin("elastic-run"), c.name, case_path(&c, "logs"), written, fds[1], fds[0]);
    er_test_start(&c.p, ARGS(SH(command)), NULL);
    close(fds[1]);
    file = (struct file_size){case_path(&c, log_file(&c, "rank-0/stdout.log")), written};
    er_tap_check(er_test_wait_until(has_size, &file, ER_TEST_DEADLINE_MS)); /* nobody reads */
    for (char buf[65536];;) {
        ssize_t n = read(fds[0], buf, sizeof(buf));

        if (n <= 0)
            break;
        shown += n;
    }
    close(fds[0]);
    er_tap_check(case_finish(&c) == 0);
    dropped = sum_of_drops(&c, "\"bytes\":");
    er_tap_note("%lld written, %lld shown, %lld dropped", written, shown, dropped);
    er_tap_check(shown + dropped == written && dropped > 0);
    case_end(&c);
}

static bool has_size_or_more(void *user)
{
    const struct file_size *file = user;
    struct stat st;

    return !stat(file->path, &st) && st.st_size >= file->size;
}

struct shown {
    long long lines, torn, last; /* numbers that grow, eight bytes each */
    char part[16];
    size_t part_n;
};

static void look_at(struct shown *s, const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s->part_n < sizeof(s->part) - 1)
            s->part[s->part_n++] = data[i];
        if (data[i] != '\n')
            continue;
        s->part[s->part_n] = '\0';
        s->torn += s->part_n != 8 || atoll(s->part) <= s->last;
        s->last = atoll(s->part);
        s->lines++;
        s->part_n = 0;
    }
}

/* Up to `n` bytes; false at the end. */
static bool read_some(int fd, long long n, struct shown *s)
{
    char buf[65536];

    while (n > 0) {
        ssize_t got = read(fd, buf, sizeof(buf));

        if (got <= 0)
            return false;
        look_at(s, buf, (size_t)got);
        n -= got;
    }
    return true;
}

/* Between two pauses there are lines again, whole ones, and what lies between is counted. */
static void reader_that_pauses_gets_whole_lines(void)
{
    const long long lines = 8000000, mib = 1 << 20;
    struct agent_case c = {0};
    char command[4 * ER_TEST_PATH_MAX];
    struct shown shown = {0};
    struct file_size file;
    long long dropped;
    int fds[2];

    case_begin(&c);
    er_tap_require(pipe(fds) == 0);
    snprintf(command, sizeof(command),
             "%s --rdzv-id %s --log-dir %s -t1 --set log.prefix= seq 1000000 %lld 1>&%d %d<&-",
             er_test_bin("elastic-run"), c.name, case_path(&c, "logs"), 1000000 + lines - 1, fds[1],
             fds[0]);
    er_test_start(&c.p, ARGS(SH(command)), NULL);
    close(fds[1]);
    file.path = case_path(&c, log_file(&c, "rank-0/stdout.log"));
    for (file.size = 8 * mib; file.size < 56 * mib; file.size += 8 * mib) {
        er_tap_check(er_test_wait_until(has_size_or_more, &file, ER_TEST_DEADLINE_MS));
        if (!read_some(fds[0], 5 * mib, &shown))
            break;
    }
    while (read_some(fds[0], mib, &shown))
        ;
    close(fds[0]);
    er_tap_check(case_finish(&c) == 0);
    dropped = sum_of_drops(&c, "\"lines\":");
    er_tap_note("%lld lines written, %lld shown, %lld dropped", lines, shown.lines, dropped);
    er_tap_check(shown.torn == 0 && shown.part_n == 0);
    er_tap_check(shown.lines + dropped == lines && dropped > 0);
    er_tap_check(shown.lines + sum_of_drops(&c, "\"bytes\":") / 8 == lines);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"chosen_lines_are_copied", chosen_lines_are_copied, 0},
        {"chosen_lines_need_no_console", chosen_lines_need_no_console, 0},
        {"stream_maps_name_ranks", stream_maps_name_ranks, 0},
        {"prefix_is_a_template", prefix_is_a_template, 0},
        {"long_lines_reach_the_console_in_pieces", long_lines_reach_the_console_in_pieces, 0},
        {"binary_reaches_the_file_unharmed", binary_reaches_the_file_unharmed, 0},
        {"rotation_keeps_lines_whole", rotation_keeps_lines_whole, 0},
        {"rotation_waits_for_the_end_of_a_line", rotation_waits_for_the_end_of_a_line, 0},
        {"unfinished_line_comes_before_the_summary", unfinished_line_comes_before_the_summary, 0},
        {"console_that_nobody_reads_blocks_nobody", console_that_nobody_reads_blocks_nobody, 0},
        {"reader_that_pauses_gets_whole_lines", reader_that_pauses_gets_whole_lines, 120},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
