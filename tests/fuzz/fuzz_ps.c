/* libFuzzer: what workers, other servers and strangers send a parameter server. The first byte says
 * how stale gradients may be, and whether the other server can be reached; then come pieces: which
 * connection, two bytes of length, bytes. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "trainer/ps_server_internal.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { CONNECTIONS = 4, ELEMENTS = 64, PIECE = 3 };

static struct er_flat flat;

static void make_flat(void)
{
    static struct er_flat_param table[1];
    static struct er_pool *pool;
    const struct er_shape shape = {.ndim = 1, .dim = {ELEMENTS}};

    if (pool)
        return;
    er_flat_init(&flat, table, 1, er_optim_state_names(ER_OPTIM_SGD), 1);
    if (er_flat_add(&flat, "w", &shape, NULL, NULL) < 0 ||
        er_pool_new(&pool, er_flat_bytes(&flat), NULL) < 0)
        abort();
    er_flat_bind(&flat, er_pool_alloc(pool, er_flat_bytes(&flat), ER_FLAT_ALIGN));
}

static struct er_ps_server *make_server(unsigned char how)
{
    const struct er_ps_server_opts opts = {.servers = 1 + (how >> 4 & 1),
                                           .flat = &flat,
                                           .optim = {.kind = ER_OPTIM_SGD},
                                           .schedule = {.kind = ER_SCHEDULE_CONSTANT, .lr = 1},
                                           .staleness_aware = how & 8,
                                           .parts = 2,
                                           .steps = 3,
                                           .staleness = how & 3,
                                           .workers = how & 4 ? 2 : 0};
    const struct er_ps_progress start = {.parts = 2};
    struct er_host_record record;
    struct er_ps_server *s = NULL;

    if (er_ps_server_open(&s, &opts, &record, NULL) < 0 || er_ps_server_place(s, &start, NULL) < 0)
        abort();
    memset(s->self.secret, 's', sizeof(s->self.secret)); /* that a corpus can know it */
    for (int i = 0; i < opts.servers; i++)
        s->records[i] = s->self; /* the other one is this one: it asks itself */
    if (how & 0x40 && opts.servers > 1)
        s->records[1] = (struct er_host_record){
            .host = ~s->self.host, .addr_n = 2, .addr = {"127.0.0.1", "no address"}};
    return s;
}

static struct er_ps_conn *with_fd(struct er_ps_server *s, int fd)
{
    for (struct er_ps_conn *c = s->conns; c; c = c->next) {
        if (c->fd == fd)
            return c;
    }
    return NULL;
}

/* As the server's thread does. */
static void serve(struct er_ps_server *s, struct er_ps_conn *conn, uint64_t now_us)
{
    if (conn)
        er_ps_conn_io(s, conn, POLLIN | POLLOUT, now_us);
    for (int l = 0; l < 2 && s->opts.servers > 1; l++)
        er_ps_accept(s, s->listen_fd[l], now_us);
    for (struct er_ps_conn *c = s->conns; c && s->opts.servers > 1; c = c->next) {
        if (c != conn && !c->over)
            er_ps_conn_io(s, c, POLLOUT | (c->dialing ? 0 : POLLIN), now_us);
    }
    er_ps_apply(s);
    for (struct er_ps_conn *c = s->conns; c; c = c->next)
        er_ps_conn_step(s, c, now_us);
    er_ps_conn_sweep(s);
    for (struct er_ps_conn *c = s->conns; c; c = c->next) {
        assert(c->in_n <= sizeof(c->in) && c->body_n <= c->body_bytes);
        assert(c->out_n <= c->out_bytes && c->worker < ER_PS_WORKERS_MAX);
        assert(c->kind != ER_PS_STRANGER || c->body_bytes <= sizeof(c->secret));
    }
    assert(s->applied_steps <= s->opts.steps && s->table.returned_n <= ER_PS_WORKERS_MAX);
    assert(s->table.told_n <= ER_PS_WORKERS_MAX && s->table.called_n <= ER_PS_WORKERS_MAX);
}

/* What was undecided is decided when the servers meet. */
static void meet_again(struct er_ps_server *s)
{
    struct er_ps_pending pending[2];
    size_t found;

    er_ps_server_stop(s);
    found = er_ps_server_pending(s, pending, 2);
    for (size_t i = 0; i < found && i < 2; i++) {
        assert(!er_ps_server_knows(s, &pending[i]));
        er_ps_server_settle(s, &pending[i], i == 0);
    }
    er_ps_server_settle(s, &(struct er_ps_pending){.worker = UINT64_MAX}, true);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    int theirs[CONNECTIONS], ours[CONNECTIONS];
    struct er_ps_server *s;
    uint64_t now_us = er_now_us();
    bool stays; /* connections, when the server stops */

    if (n == 0)
        return 0;
    make_flat();
    stays = data[0] & 0x20;
    s = make_server(data[0]);
    for (int i = 0; i < CONNECTIONS; i++) {
        int end[2], rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, end);
        struct er_ps_conn *conn = rc == 0 ? er_ps_conn_new(s, end[0], ER_PS_STRANGER) : NULL;

        assert(conn);
        conn->deadline_us = now_us + ER_US_PER_S;
        ours[i] = end[0];
        theirs[i] = end[1];
    }
    for (data++, n--; n > PIECE; now_us += ER_US_PER_MS) {
        size_t length = (size_t)data[1] | (size_t)data[2] << 8, which = data[0] % CONNECTIONS;
        char answer[4096];

        length = length < n - PIECE ? length : n - PIECE;
        if (data[0] & 0x40)
            now_us += 3 * ER_US_PER_S;
        if (send(theirs[which], data + PIECE, length, MSG_NOSIGNAL) < 0)
            assert(errno == EPIPE || errno == EAGAIN || errno == ECONNRESET);
        if (data[0] & 0x80)
            shutdown(theirs[which], SHUT_WR);
        serve(s, with_fd(s, ours[which]), now_us);
        (void)!recv(theirs[which], answer, sizeof(answer), 0);
        data += PIECE + length;
        n -= PIECE + length;
    }
    for (int i = 0; i < CONNECTIONS && !stays; i++) {
        shutdown(theirs[i], SHUT_RDWR);
        serve(s, with_fd(s, ours[i]), now_us);
    }
    if (!stays)
        serve(s, NULL, now_us + 60 * ER_US_PER_S);
    meet_again(s);
    for (int i = 0; i < CONNECTIONS; i++)
        close(theirs[i]);
    er_ps_server_close(s);
    return 0;
}
