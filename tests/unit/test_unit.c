#include <criterion/criterion.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/config_compare.h"
#include "agent/journal.h"
#include "agent/sdnotify.h"
#include "agent/sentence.h"
#include "base/clock.h"
#include "tests/unit/config_case.h"

/* ---- what systemd is told ---- */

static int listen_at(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);

    strcpy(at.sun_path, path);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    setenv("NOTIFY_SOCKET", path, 1);
    return fd;
}

Test(unit, nobody_below_can_speak_for_it)
{
    char dir[] = "/tmp/er-unit-XXXXXX", path[64], got[64] = "";
    struct er_sdnotify to;
    int fd;

    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/notify", dir);
    fd = listen_at(path);
    setenv("WATCHDOG_USEC", "3000000", 1);
    setenv("WATCHDOG_PID", "77", 1);
    er_sdnotify_open(&to, 77);
    cr_assert(er_sdnotify_wanted(&to));
    cr_expect_eq(to.watchdog_us, 3 * ER_US_PER_S);
    cr_expect_null(getenv("NOTIFY_SOCKET"));
    cr_expect_null(getenv("WATCHDOG_USEC"));
    cr_expect_null(getenv("WATCHDOG_PID"));
    er_sdnotify_send(&to, "READY=1");
    cr_expect_eq(recv(fd, got, sizeof(got) - 1, 0), 7);
    cr_expect_str_eq(got, "READY=1");
    er_sdnotify_close(&to);
    close(fd);
    unlink(path);
    rmdir(dir);
}

Test(unit, a_manager_that_does_not_read_is_not_waited_for)
{
    char dir[] = "/tmp/er-unit-XXXXXX", path[64];
    struct er_sdnotify to;
    int fd;

    cr_assert(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/notify", dir);
    fd = listen_at(path);
    er_sdnotify_open(&to, 1);
    for (int i = 0; i < 10000; i++)
        er_sdnotify_send(&to, "STATUS=x");
    er_sdnotify_close(&to);
    close(fd);
    unlink(path);
    rmdir(dir);
}

Test(unit, what_is_meant_for_others_is_left_alone)
{
    static const char *const BAD[] = {"", "relative", "/"};
    struct er_sdnotify to;

    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
        setenv("NOTIFY_SOCKET", BAD[i], 1);
        er_sdnotify_open(&to, 1);
        cr_expect(!er_sdnotify_wanted(&to), "'%s'", BAD[i]);
    }
    setenv("NOTIFY_SOCKET", "@abstract", 1);
    setenv("WATCHDOG_USEC", "5", 1);
    setenv("WATCHDOG_PID", "2", 1);
    er_sdnotify_open(&to, 1);
    cr_expect(er_sdnotify_wanted(&to));
    cr_expect_eq(to.watchdog_us, 0);
    cr_expect_eq(to.to.sun_path[0], '\0');
    er_sdnotify_close(&to);
}

/* ---- the journal ---- */

Test(unit, entries_carry_fields)
{
    const struct er_field fields[] = {ER_STR("reason", "no room"), ER_INT("exit_code", 3),
                                      ER_STR("none", NULL)};
    struct er_buf buf;

    er_buf_init(&buf, 4096);
    cr_assert_eq(er_journal_format(&buf, 4, "it failed", fields, 3), 0);
    cr_expect_str_eq(er_buf_str(&buf),
                     "MESSAGE=it failed reason=\"no room\" exit_code=3 none=null\n"
                     "PRIORITY=4\nSYSLOG_IDENTIFIER=elastic-run\n"
                     "ELASTIC_REASON=no room\nELASTIC_EXIT_CODE=3\n");
    er_buf_done(&buf);
}

Test(unit, a_value_of_several_lines_cannot_forge_a_field)
{
    static const char TEXT[] = "a\nPRIORITY=0";
    const struct er_field field = ER_STR("words", TEXT);
    struct er_buf buf;
    uint64_t n;
    char *at;

    er_buf_init(&buf, 4096);
    cr_assert_eq(er_journal_format(&buf, 6, "msg", &field, 1), 0);
    at = memmem(buf.data, buf.len, "ELASTIC_WORDS\n", 14);
    cr_assert(at);
    memcpy(&n, at + 14, sizeof(n));
    cr_expect_eq(le64toh(n), strlen(TEXT));
    cr_expect_eq(memcmp(at + 22, TEXT, strlen(TEXT)), 0);
    er_buf_done(&buf);
}

Test(unit, the_journal_is_known_by_its_stream)
{
    cr_expect(!er_journal_is(2, NULL));
    cr_expect(!er_journal_is(2, "nonsense"));
    cr_expect(!er_journal_is(2, "1:1"));
}

/* ---- the sentence ---- */

Test(unit, waits_are_told_with_and_without_time)
{
    struct er_look look = {.stand = ER_STAND_FORMING,
                           .leads = true,
                           .leader = "n0",
                           .have = 1,
                           .min = 2,
                           .max = 4,
                           .give_up_us = 61 * ER_US_PER_S};
    char text[ER_SENTENCE_MAX];

    er_wait_sentence(&look, ER_US_PER_S, text);
    cr_expect_str_eq(text, "have 1 of 2 nodes, waiting for 1 more; giving up in 1m");
    er_wait_sentence(&look, 0, text);
    cr_expect_str_eq(text, "have 1 of 2 nodes, waiting for 1 more");
    look.have = 3;
    look.last_call_us = 11 * ER_US_PER_S;
    er_wait_sentence(&look, ER_US_PER_S, text);
    cr_expect_str_eq(text, "have 3 nodes of 2 to 4: starting in 10s, or when there are 4");
    look.leads = false;
    er_wait_sentence(&look, 0, text);
    cr_expect_str_eq(text, "waiting for the other nodes; node 'n0' leads");
    look.stand = ER_STAND_MEMBER;
    er_wait_sentence(&look, 0, text);
    cr_expect_str_eq(text, "");
}

/* ---- two configurations ---- */

Test(unit, differences_are_named_with_their_place)
{
    static const char was[] = "command: a\nworkdir: /\nlog: {console: all}\n";
    static const char is[] = "command: a\nworkdir: /\nnproc_per_node: 2\nlog: {console: none}\n";
    static const char *const env[] = {"HOME=/h", NULL};
    struct loaded a = load_config(&(struct load_case){.args = ARGS(SPEC), .env = env, .spec = was});
    struct loaded b = load_config(&(struct load_case){.args = ARGS(SPEC), .env = env, .spec = is});
    struct er_config_change found[4];

    cr_assert_eq(a.rc, 0, "%s", a.text);
    cr_assert_eq(b.rc, 0, "%s", b.text);
    cr_assert_eq(er_config_compare(a.config, b.config, found, 4), 2);
    cr_expect_str_eq(found[0].key->path, "nproc_per_node");
    cr_expect_str_eq(found[0].is, "2");
    cr_expect_str_eq(found[1].key->path, "log.console");
    er_config_swap(a.config, b.config, found[1].key);
    cr_expect_str_eq(a.config->log.console, "none");
    cr_expect_str_eq(b.config->log.console, "all");
    cr_expect_eq(er_config_compare(a.config, b.config, found, 4), 2);
    er_config_free(a.config);
    er_config_free(b.config);
}
