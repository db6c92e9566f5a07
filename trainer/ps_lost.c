#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "trainer/ps_server_internal.h"

void er_ps_settle(struct er_ps_server *s, uint32_t worker, bool committed)
{
    struct er_ps_worker *w = &s->workers[worker];

    w->state = committed ? ER_PS_DUE : ER_PS_IDLE;
    if (!committed)
        er_ps_table_lost(&s->table, worker);
}

int er_ps_committed(const struct er_ps_server *s, uint32_t worker, uint64_t incarnation,
                    uint64_t seq)
{
    const struct er_ps_worker *w = &s->workers[worker];

    if (w->known && w->old_incarnation == incarnation)
        return w->old_committed >= seq;
    if (!w->known || w->incarnation != incarnation)
        return 0;
    if (w->committed >= seq || (w->state == ER_PS_DUE && w->seq == seq))
        return 1;
    return w->conn ? -1 : 0;
}

static struct er_ps_conn *dial(struct er_ps_server *s, int server)
{
    const struct er_host_record *record = &s->records[server];

    for (int i = 0; i < record->addr_n; i++) {
        int fd = -1, rc;

        if (!er_host_reaches(record, i, s->self.host))
            continue;
        rc = er_host_dial(record, i, &fd);
        if (rc >= 0) {
            struct er_ps_conn *conn = er_ps_conn_new(s, fd, ER_PS_ASKED);

            if (!conn)
                close(fd);
            else
                conn->dialing = rc == ER_IN_PROGRESS;
            return conn;
        }
    }
    return NULL;
}

/* The question goes to every other server; each answers, or its connection ends. */
static void ask(struct er_ps_server *s, uint32_t worker)
{
    struct er_ps_worker *w = &s->workers[worker];

    w->state = ER_PS_UNDECIDED;
    w->answers = s->opts.servers - 1;
    for (int i = 0; i < s->opts.servers && w->state == ER_PS_UNDECIDED; i++) {
        struct er_ps_conn *conn;

        if (i == s->opts.index)
            continue;
        conn = dial(s, i);
        if (!conn) {
            er_ps_told(s, worker, -1);
            continue;
        }
        conn->worker = worker;
        er_ps_answer(conn, ER_PS_FRAME_ASK, (const uint64_t[]){w->incarnation, w->seq}, 2,
                     s->records[i].secret, sizeof(s->records[i].secret));
    }
}

void er_ps_told(struct er_ps_server *s, uint32_t worker, int told)
{
    struct er_ps_worker *w = &s->workers[worker];

    /* A server that cannot be asked has ended, and may know that it counts: it stays undecided
     * until all servers meet again, in the next generation. */
    if (w->state != ER_PS_UNDECIDED || told < 0)
        return;
    w->answers--;
    if (told > 0 || w->answers == 0)
        er_ps_settle(s, worker, told > 0);
}

/* Nobody else has it: a worker commits when all have staged. */
void er_ps_lost(struct er_ps_server *s, uint32_t worker)
{
    struct er_ps_worker *w = &s->workers[worker];

    w->conn = NULL;
    switch (w->state) {
    case ER_PS_IDLE:
    case ER_PS_STAGING:
        er_ps_settle(s, worker, false);
        break;
    case ER_PS_STAGED:
        if (s->opts.servers > 1 && s->stopped)
            w->state = ER_PS_UNDECIDED;
        else if (s->opts.servers > 1)
            ask(s, worker);
        else
            er_ps_settle(s, worker, false);
        break;
    case ER_PS_DUE:
    case ER_PS_UNDECIDED:
        break;
    }
}

/* ---- what a stopped server tells, and is told ---- */

static bool is_pending(const struct er_ps_worker *w)
{
    return w->state == ER_PS_UNDECIDED || w->state == ER_PS_STAGED;
}

size_t er_ps_server_pending(const struct er_ps_server *s, struct er_ps_pending *ret, size_t max)
{
    size_t n = 0;

    for (uint32_t i = 0; i < ER_PS_WORKERS_MAX; i++) {
        const struct er_ps_worker *w = &s->workers[i];

        if (!is_pending(w))
            continue;
        if (n < max)
            ret[n] = (struct er_ps_pending){i, w->incarnation, w->seq};
        n++;
    }
    return n;
}

bool er_ps_server_knows(const struct er_ps_server *s, const struct er_ps_pending *push)
{
    return push->worker < ER_PS_WORKERS_MAX &&
           er_ps_committed(s, (uint32_t)push->worker, push->incarnation, push->seq) > 0;
}

void er_ps_server_settle(struct er_ps_server *s, const struct er_ps_pending *push, bool counts)
{
    struct er_ps_worker *w;

    if (push->worker >= ER_PS_WORKERS_MAX)
        return;
    w = &s->workers[push->worker];
    if (!is_pending(w) || w->incarnation != push->incarnation || w->seq != push->seq)
        return;
    er_ps_settle(s, (uint32_t)push->worker, counts);
    er_ps_apply(s);
}
