/* libFuzzer: what parameter servers answer a worker. The first byte says how many servers there
 * are; then two bytes for each, so many bytes of the rest come from it. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/pool.h"
#include "trainer/ps_client.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { SERVERS_MAX = 3, ELEMENTS = 64 * SERVERS_MAX, ROUNDS = 4 };

/* ---- connections over which exactly these bytes come, and whose other ends take what is said ----
 */

static struct {
    const unsigned char *data;
    size_t n;
} says[SERVERS_MAX];
static int ends[SERVERS_MAX], dialed;

uint64_t er_host_id(void)
{
    return 1;
}

void er_host_tune(int fd, bool local, uint64_t pace_bytes_per_s) {}

bool er_host_reaches(const struct er_host_record *rec, int i, uint64_t my_host)
{
    return true;
}

int er_host_listen(struct er_host_record *rec, const struct er_host_listen *how, int ret_fd[2],
                   struct er_error *err)
{
    return -ENOSYS;
}

int er_host_dial(const struct er_host_record *rec, int i, int *ret_fd)
{
    int end[2], rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, end);

    assert(rc == 0 && dialed < SERVERS_MAX);
    if (send(end[1], says[dialed].data, says[dialed].n, MSG_NOSIGNAL) < 0)
        assert(errno == EAGAIN);
    shutdown(end[1], SHUT_WR);
    ends[dialed++] = end[1];
    *ret_fd = end[0];
    return 0;
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
        {.addr_n = 1}, {.addr_n = 1}, {.addr_n = 1}};
    struct er_ps_client *client = NULL;
    int servers = n ? 1 + data[0] % SERVERS_MAX : 1;
    const unsigned char *lengths = data + 1;

    if (n < 1 + 2 * SERVERS_MAX)
        return 0;
    make_flat();
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
    if (er_ps_client_open(&client, NULL, 0, &flat, records, servers, NULL) == 0)
        work(client);
    er_ps_client_close(client);
    while (dialed > 0)
        close(ends[--dialed]);
    return 0;
}
