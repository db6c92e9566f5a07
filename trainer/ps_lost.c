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

    if (w->state != ER_PS_UNDECIDED)
        return;
    w->answers--;
    /* A server that cannot be asked is lost, and with it the job's state: what is decided here
     * hardly matters then, but nobody waits for ever. */
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
        if (s->opts.servers > 1)
            ask(s, worker);
        else
            er_ps_settle(s, worker, false);
        break;
    case ER_PS_DUE:
    case ER_PS_UNDECIDED:
        break;
    }
}
