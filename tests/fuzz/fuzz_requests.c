/* libFuzzer: what workers ask their agent for, once a packet can be read (fuzz_ctl.c). Two workers,
 * each with a connection; the store is the embedded one. Pieces: what to do, whose connection, a
 * number, two bytes of length, and the packet; its generation is put right where the number is
 * even. */
#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "rendezvous/store_mem.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { WORKERS = 2, PIECE = 5, PIECES_MAX = 48 };
enum what { ASK, TURN, HANG_UP, DIE, END, WHAT_COUNT };

/* ---- the socket: counts what is asked and answered ---- */

struct er_ctlconn {
    struct er_ctl_peer peer;
    struct er_list tickets;
    unsigned asked, answered;
};

static struct er_ctlconn conns[WORKERS];

struct er_ctl_peer *er_ctlconn_peer(struct er_ctlconn *conn)
{
    return &conn->peer;
}

void er_ctlconn_answer(struct er_ctlconn *conn, uint32_t seq, struct er_ctl_msg *reply)
{
    static unsigned char packet[ER_CTL_PACKET_MAX];

    if (reply->type == ER_CTL_NONE)
        reply->type = ER_CTL_REPLY;
    reply->seq = seq;
    assert(er_ctl_encode(reply, packet, sizeof(packet)) > 0);
    conn->answered++;
}

void er_ctlconn_status(struct er_ctlconn *conn, uint32_t seq, int status, const char *text)
{
    struct er_ctl_msg reply = {.type = ER_CTL_REPLY, .status = status};

    if (status < 0)
        er_ctl_str(&reply, text ? text : er_error_name(status));
    er_ctlconn_answer(conn, seq, &reply);
}

void er_ticket_init(struct er_ticket *ticket, struct er_ctlconn *conn, uint32_t seq,
                    void (*gone)(struct er_ticket *ticket))
{
    *ticket = (struct er_ticket){.conn = conn, .seq = seq, .gone = gone};
    er_list_init(&ticket->node);
    er_list_push_back(&conn->tickets, &ticket->node);
}

void er_ticket_answer(struct er_ticket *ticket, struct er_ctl_msg *reply)
{
    struct er_ctlconn *conn = ticket->conn;

    if (!conn)
        return;
    er_list_remove(&ticket->node);
    ticket->conn = NULL;
    er_ctlconn_answer(conn, ticket->seq, reply);
}

static unsigned open_tickets(const struct er_ctlconn *conn)
{
    unsigned n = 0;

    er_list_for_each (node, &conn->tickets)
        n++;
    return n;
}

static void hang_up(struct er_ctlconn *conn)
{
    er_list_for_each_safe (node, &conn->tickets) {
        struct er_ticket *ticket = ER_LIST_ITEM(node, struct er_ticket, node);

        er_list_remove(&ticket->node);
        ticket->conn = NULL;
        if (ticket->gone)
            ticket->gone(ticket);
    }
    conn->asked = conn->answered = 0;
    conn->peer = (struct er_ctl_peer){.pid = conn->peer.pid, .local_rank = -1};
}

/* ---- the group: two workers ---- */

struct er_group {
    struct er_assignment a;
    struct er_worker worker[WORKERS];
};

static struct er_group group;

const struct er_assignment *er_group_assignment(const struct er_group *g)
{
    return &g->a;
}

struct er_worker *er_group_worker(struct er_group *g, int local_rank)
{
    assert(local_rank >= 0 && local_rank < WORKERS);
    return &g->worker[local_rank];
}

struct er_worker *er_group_worker_of(struct er_group *g, pid_t pid)
{
    return pid >= 1 && pid <= WORKERS ? &g->worker[pid - 1] : NULL;
}

bool er_group_ready(struct er_group *g, struct er_worker *w, uint64_t now_us)
{
    return w->ready_us == 0;
}

void er_group_hello(struct er_group *g, struct er_worker *w, struct er_ctlconn *conn, uint32_t seq)
{
    er_ctlconn_status(conn, seq, 0, NULL);
}

void er_group_left(struct er_group *g, struct er_worker *w, struct er_ctlconn *conn, uint32_t seq,
                   uint64_t now_us)
{
    er_ctlconn_status(conn, seq, 0, NULL);
}

/* ---- the agent ---- */

static struct er_agent agent;
static struct er_store *store;

static void on_start(void *user, const struct er_assignment *a)
{
    group.a = *a;
    agent.group = &group;
    for (int i = 0; i < WORKERS; i++)
        group.worker[i].generation = a->generation;
    er_barriers_begin(agent.barriers, a);
}

static void on_stop(void *user, uint64_t generation, const char *reason)
{
    agent.group = NULL;
    er_barriers_end(agent.barriers);
    er_driver_left(agent.driver, generation);
}

static void on_verdict(void *user, const struct er_verdict *v)
{
    agent.done = true;
}

static void on_note(void *user, const struct er_note *note) {}

/* Whatever a worker says, an event is one line, and one JSON value. */
static void on_event(void *user, const char *name, const char *line, size_t n)
{
    json_t *event = json_loadb(line, n, 0, NULL);

    assert(json_is_object(event) && memchr(line, '\n', n) == line + n - 1);
    assert(strcmp(json_string_value(json_object_get(event, "event")), name) == 0);
    json_decref(event);
}

static void open_agent(void)
{
    static const struct er_driver_callbacks callbacks = {
        .start = on_start, .stop = on_stop, .verdict = on_verdict, .note = on_note};
    static char job[] = "job", node[] = "n0";
    static struct er_config config;
    const struct er_driver_opts opts = {.job = "job",
                                        .prefix = "/e",
                                        .node_id = "n0",
                                        .host = "h",
                                        .address = "10.0.0.1",
                                        .slots = WORKERS,
                                        .preferred_rank = -1,
                                        .min_nodes = 1,
                                        .max_nodes = 1,
                                        .restart_max = 3,
                                        .restart_window_us = ER_FOREVER,
                                        .join_timeout_us = 600 * ER_US_PER_S,
                                        .exit_timeout_us = 300 * ER_US_PER_S,
                                        .lease_ttl_us = 5 * ER_US_PER_S,
                                        .spec = "nproc=2\n",
                                        .incarnation = 1,
                                        .seed = 1,
                                        .now_us = er_now_us()};

    config.name = job;
    config.node.id = node;
    memset(&agent, 0, sizeof(agent));
    memset(&group, 0, sizeof(group));
    agent.config = &config;
    agent.events =
        (struct er_events){.fd = -1, .job = "j", .node_id = "n0", .host = "h", .sink = on_event};
    er_list_init(&agent.requests);
    if (er_store_mem_new(&store, NULL) < 0 ||
        er_driver_new(&agent.driver, store, &opts, &callbacks, NULL, NULL) < 0 ||
        er_barriers_new(&agent.barriers, agent.driver, NULL) < 0)
        abort();
    for (int i = 0; i < WORKERS; i++) {
        group.worker[i].rank = group.worker[i].local_rank = i;
        conns[i] = (struct er_ctlconn){.peer = {.pid = i + 1, .local_rank = -1}};
        er_list_init(&conns[i].tickets);
    }
}

static void turn(void)
{
    for (int i = 0; i < 64 && !agent.done && er_driver_pending(agent.driver); i++)
        er_driver_dispatch(agent.driver, er_now_us());
    er_barriers_step(agent.barriers, er_now_us());
    for (int i = 0; i < WORKERS; i++) {
        assert(conns[i].answered + open_tickets(&conns[i]) == conns[i].asked);
        /* conns[i] is worker i's */
        assert(!er_agent_waits_in_store(&agent, i) || open_tickets(&conns[i]) > 0);
    }
}

static void ask(struct er_ctlconn *conn, const unsigned char *data, size_t n, bool mend)
{
    struct er_ctl_msg m;

    if (er_ctl_decode(&m, data, n, NULL) < 0 || open_tickets(conn) >= ER_CTL_TICKETS_MAX)
        return;
    if (mend && m.num_n > 0 && m.type != ER_CTL_HELLO)
        m.num[0] = group.a.generation;
    conn->asked++;
    er_agent_on_request(&agent, conn, &m);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    open_agent();
    turn();
    assert(agent.group); /* one node is enough */
    for (int i = 0; i < PIECES_MAX && n >= PIECE; i++) {
        struct er_ctlconn *conn = &conns[data[1] % WORKERS];
        size_t length = (size_t)data[3] | (size_t)data[4] << 8;
        const struct er_cause cause = {.kind = ER_EXIT_EXITED, .code = 1};

        length = length < n - PIECE ? length : n - PIECE;
        switch ((enum what)(data[0] % WHAT_COUNT)) {
        case ASK:
            ask(conn, data + PIECE, length, data[2] % 2 == 0);
            break;
        case TURN:
            turn();
            break;
        case HANG_UP:
            hang_up(conn);
            break;
        case DIE:
            if (!agent.done && agent.group)
                er_driver_result(agent.driver, group.a.generation, &cause);
            break;
        case END:
            if (!agent.done)
                er_driver_leave(agent.driver, 75, "asked to");
            break;
        case WHAT_COUNT:
            break;
        }
        data += PIECE + length;
        n -= PIECE + length;
    }
    turn();
    for (int i = 0; i < WORKERS; i++)
        hang_up(&conns[i]);
    er_agent_drop_requests(&agent);
    er_kv_budget_done(&agent.kv_budget);
    er_barriers_free(agent.barriers);
    er_driver_free(agent.driver);
    store->ops->free(store);
    for (int i = 0; i < WORKERS; i++)
        free(group.worker[i].message);
    return 0;
}
