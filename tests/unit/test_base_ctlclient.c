#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/ctlclient.h"
#include "tests/lib/tempdir.h"

/* Long enough for any machine where something is to arrive; short where nothing will. */
#define LONG_US  (60 * ER_US_PER_S)
#define SHORT_US (20 * ER_US_PER_MS)

static struct er_ctl_client client;
static struct er_error error;

/* An agent that listens, and does only what a test makes it do. */
struct agent {
    char dir[ER_TEST_PATH_MAX], path[ER_TEST_PATH_MAX + 8];
    int listener, conn;
};

static struct agent start_agent(int backlog)
{
    struct agent a = {.conn = -1};
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    er_test_tempdir(a.dir);
    snprintf(a.path, sizeof(a.path), "%s/s", a.dir);
    cr_assert(strlen(a.path) < sizeof(addr.sun_path));
    memcpy(addr.sun_path, a.path, strlen(a.path) + 1);
    a.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert(bind(a.listener, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    cr_assert(listen(a.listener, backlog) == 0);
    return a;
}

static struct agent connected(void)
{
    struct agent a = start_agent(8);

    cr_assert(er_ctl_client_open(&client, a.path, LONG_US, &error) == 0, "%s", error.text);
    a.conn = accept(a.listener, NULL, NULL);
    cr_assert(a.conn >= 0);
    return a;
}

static void stop_agent(struct agent *a)
{
    er_ctl_client_close(&client);
    er_cleanup_fd(&a->conn);
    er_cleanup_fd(&a->listener);
    er_test_rmtree(a->dir);
}

static void answer(const struct agent *a, uint32_t seq, int status)
{
    const struct er_ctl_msg reply = {.type = ER_CTL_REPLY, .seq = seq, .status = status};
    char packet[64];
    int n = er_ctl_encode(&reply, packet, sizeof(packet));

    cr_assert(n > 0 && send(a->conn, packet, (size_t)n, 0) == n);
}

static int ask(uint64_t timeout_us, struct er_ctl_msg *ret)
{
    struct er_ctl_msg request = {.type = ER_CTL_STATUS};

    error.code = 0;
    return er_ctl_client_call(&client, &request, timeout_us, ret, &error);
}

Test(base_ctlclient, says_why_there_is_no_agent)
{
    struct agent a = start_agent(8);
    char longer[300];

    er_cleanup_fd(&a.listener);
    cr_expect(er_ctl_client_open(&client, a.path, LONG_US, &error) == -ECONNREFUSED);
    cr_expect(client.fd == -1 && strstr(error.text, a.path), "%s", error.text);
    unlink(a.path);
    cr_expect(er_ctl_client_open(&client, a.path, LONG_US, NULL) == -ENOENT);
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    cr_expect(er_ctl_client_open(&client, longer, LONG_US, NULL) == -ENAMETOOLONG);
    stop_agent(&a);
}

Test(base_ctlclient, connecting_has_a_deadline)
{
    static struct er_ctl_client first[8];
    struct agent a = start_agent(0);
    int rc = 0;
    size_t n = 0;

    /* Nobody accepts: after the first ones the queue is full. */
    for (; n < ER_ARRAY_N(first) && rc == 0; n++)
        rc = er_ctl_client_open(&first[n], a.path, SHORT_US, &error);
    cr_expect(rc == -ETIMEDOUT, "%d", rc);
    cr_expect(strstr(error.text, "accepts no connection"), "%s", error.text);
    cr_expect(er_ctl_client_open(&client, a.path, 0, NULL) == -ETIMEDOUT, "no time at all");
    for (size_t i = 0; i < n; i++)
        er_ctl_client_close(&first[i]);
    stop_agent(&a);
}

Test(base_ctlclient, sending_has_a_deadline)
{
    static char value[ER_CTL_VALUE_MAX];
    struct agent a = connected();

    /* Nobody reads: after the first ones the socket is full. */
    for (int i = 0; i < 20; i++) {
        struct er_ctl_msg reply, request = {.type = ER_CTL_KV_PUT};

        er_ctl_num(&request, 1);
        er_ctl_str(&request, "key");
        er_ctl_bytes(&request, value, sizeof(value));
        cr_assert(er_ctl_client_call(&client, &request, SHORT_US / 10, &reply, NULL) == -ETIMEDOUT);
    }
    stop_agent(&a);
}

Test(base_ctlclient, late_answers_are_dropped)
{
    struct agent a = connected();
    struct er_ctl_msg reply;

    cr_expect(ask(SHORT_US, &reply) == -ETIMEDOUT, "request 1 is given up");
    answer(&a, 1, 11);
    answer(&a, 2, 22);
    cr_assert(ask(LONG_US, &reply) == 0, "%s", error.text);
    cr_expect(reply.seq == 2 && reply.status == 22);
    for (int i = 0; i < 3; i++)
        answer(&a, 1, 11);
    cr_expect(ask(SHORT_US, &reply) == -ETIMEDOUT, "only late ones");
    stop_agent(&a);
}

Test(base_ctlclient, an_answer_may_be_fetched_later)
{
    struct er_ctl_msg request = {.type = ER_CTL_BYE}, reply;
    struct agent a = connected();

    er_ctl_num(&request, 1);
    cr_expect(er_ctl_client_answer(&client, 0, &error) == -ENOENT, "nothing was asked");
    cr_assert(er_ctl_client_ask(&client, &request, LONG_US, &error) == 0, "%s", error.text);
    cr_expect(er_ctl_client_answer(&client, 0, &error) == ER_CTL_UNANSWERED);
    cr_expect(er_ctl_client_answer(&client, SHORT_US, &error) == ER_CTL_UNANSWERED);
    answer(&a, 1, -5);
    answer(&a, 2, 22);
    cr_assert(ask(LONG_US, &reply) == 0 && reply.status == 22, "another goes by it");
    for (int i = 0; i < 2; i++)
        cr_assert(er_ctl_client_answer(&client, 0, &error) == 0, "it was kept");
    cr_expect(client.later.type == ER_CTL_REPLY && client.later.status == -5);
    stop_agent(&a);
}

Test(base_ctlclient, the_newest_one_to_be_fetched_later_counts)
{
    struct er_ctl_msg request = {.type = ER_CTL_BYE};
    struct agent a = connected();

    er_ctl_num(&request, 1);
    for (int i = 0; i < 2; i++)
        cr_assert(er_ctl_client_ask(&client, &request, LONG_US, &error) == 0, "%s", error.text);
    answer(&a, 1, 11);
    cr_expect(er_ctl_client_answer(&client, 0, &error) == ER_CTL_UNANSWERED);
    answer(&a, 2, 22);
    cr_assert(er_ctl_client_answer(&client, LONG_US, &error) == 0, "%s", error.text);
    cr_expect(client.later.status == 22);
    cr_assert(er_ctl_client_ask(&client, &request, LONG_US, &error) == 0, "%s", error.text);
    er_cleanup_fd(&a.conn);
    cr_expect(er_ctl_client_answer(&client, LONG_US, &error) == ER_E_PEER_LOST);
    stop_agent(&a);
}

Test(base_ctlclient, an_agent_that_goes_or_talks_nonsense_is_told_from_one_that_is_slow)
{
    struct agent a = connected();
    struct er_ctl_msg reply;

    cr_assert(send(a.conn, "nonsense", 8, 0) == 8);
    cr_expect(ask(LONG_US, &reply) == ER_E_PROTOCOL, "%s", error.text);
    er_cleanup_fd(&a.conn);
    cr_expect(ask(LONG_US, &reply) == ER_E_PEER_LOST, "%s", error.text);
    er_ctl_client_close(&client);
    cr_expect(ask(LONG_US, &reply) == ER_E_PEER_LOST, "closed here");
    stop_agent(&a);
}
