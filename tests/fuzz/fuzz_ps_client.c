/* libFuzzer: what parameter servers answer a worker. The first byte says how many servers there
 * are, how they are reached, and what the agent says meanwhile; then two bytes for each, so many
 * bytes of the rest come from it. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/pool.h"
#include "trainer/ps_client.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);

enum { SERVERS_MAX = 3, ELEMENTS = 64 * SERVERS_MAX, ROUNDS = 4 };

/* What the first byte says, divided by SERVERS_MAX. */
enum {
    LATE = 1,     /* nothing comes before it is waited for */
    SLOW = 2,     /* a connection is not there at once */
    FAR = 4,      /* the first address is another network's, the second is refused */
    GONE = 8,     /* so is the last */
    NOTICED = 16, /* the agent has a notice for those who wait: STOP, or that ranks leave */
    REJOINS = 32
};
static int manner;

/* ---- connections over which exactly these bytes come, and whose other ends take what is said ----
 */

static struct {
    const unsigned char *data;
    size_t n;
    int end, ours; /* once dialed */
    int waits;     /* so often for it */
} says[SERVERS_MAX];
static int dialed;

static void speak(int i)
{
    if (send(says[i].end, says[i].data, says[i].n, MSG_NOSIGNAL) < 0)
        assert(errno == EAGAIN);
    shutdown(says[i].end, SHUT_WR);
}

/* Nobody waits in earnest: first nothing comes, then everything. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    for (int i = 0; i < dialed && fds->events == POLLIN; i++) {
        if (says[i].ours == fds->fd && says[i].waits++ == 0)
            return 0;
        if (says[i].ours == fds->fd && says[i].waits == 2 && manner & LATE)
            speak(i);
    }
    return __real_poll(fds, n, 0);
}

enum er_notice er_notice(const struct er_ctx *ctx)
{
    bool waited = false;

    for (int i = 0; i < dialed; i++)
        waited |= says[i].waits > 0;
    if (!waited || !(manner & NOTICED))
        return ER_NOTICE_NONE;
    return manner & REJOINS ? ER_NOTICE_REJOIN : ER_NOTICE_STOP;
}

uint64_t er_host_id(void)
{
    return 1;
}

void er_host_tune(int fd, bool local, uint64_t pace_bytes_per_s) {}

bool er_host_reaches(const struct er_host_record *rec, int i, uint64_t my_host)
{
    return !(manner & FAR) || i > 0;
}

int er_host_listen(struct er_host_record *rec, const struct er_host_listen *how, int ret_fd[2],
                   struct er_error *err)
{
    return -ENOSYS;
}

int er_host_dial(const struct er_host_record *rec, int i, int *ret_fd)
{
    int end[2], rc;

    if ((manner & FAR && i < rec->addr_n - 1) || manner & GONE)
        return -ECONNREFUSED;
    rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, end);
    assert(rc == 0 && dialed < SERVERS_MAX);
    says[dialed].end = end[1];
    says[dialed].ours = *ret_fd = end[0];
    says[dialed].waits = 0;
    if (!(manner & LATE))
        speak(dialed);
    dialed++;
    return manner & SLOW ? ER_IN_PROGRESS : 0;
}

/* ---- a worker ---- */

static struct er_flat flat;

static void make_flat(void)
{
    static struct er_flat_param table[1];
    const struct er_shape shape = {.ndim = 1, .dim = {ELEMENTS}};

    if (flat.params)
        return;
    er_flat_init(&flat, table, 1, er_optim_state_names(ER_OPTIM_SGD), 1);
    if (er_flat_add(&flat, "w", &shape, NULL, NULL) < 0)
        abort();
}

static void work(struct er_ps_client *client)
{
    float *values = malloc(flat.total * sizeof(*values));
    float *grads = calloc(flat.total, sizeof(*grads));
    const struct er_ps_push push = {.part = 0, .weight = 1};
    int rc = 0;

    assert(values && grads);
    for (int i = 0; i < ROUNDS && rc == 0; i++) {
        enum er_ps_answer answer = ER_PS_WAIT;
        uint64_t number = 0;

        rc = er_ps_client_lease(client, &answer, &number, NULL);
        assert(rc < 0 || answer <= ER_PS_DONE);
        if (rc == 0)
            rc = er_ps_client_pull(client, values, number, NULL);
        if (rc == 0)
            rc = er_ps_client_stage(client, grads, &push, NULL);
        if (rc == 0)
            rc = er_ps_client_commit(client, NULL);
    }
    free(values);
    free(grads);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    const struct er_host_record records[SERVERS_MAX] = {
        {.addr_n = 3}, {.addr_n = 3}, {.addr_n = 3}};
    struct er_ps_client *client = NULL;
    const struct er_ctx *agent = (const void *)says; /* only er_notice() gets it */
    int servers = n ? 1 + data[0] % SERVERS_MAX : 1;
    const unsigned char *lengths = data + 1;

    if (n < 1 + 2 * SERVERS_MAX)
        return 0;
    make_flat();
    manner = data[0] / SERVERS_MAX;
    data += 1 + 2 * SERVERS_MAX;
    n -= 1 + 2 * SERVERS_MAX;
    for (int i = 0; i < servers; i++) {
        size_t length = (size_t)lengths[2 * i] | (size_t)lengths[2 * i + 1] << 8;

        says[i].data = data;
        says[i].n = length < n ? length : n;
        data += says[i].n;
        n -= says[i].n;
    }
    dialed = 0;
    if (er_ps_client_open(&client, agent, 0, &flat, records, servers, NULL) == 0)
        work(client);
    er_ps_client_close(client);
    while (dialed > 0)
        close(says[--dialed].end);
    return 0;
}
