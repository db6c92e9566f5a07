/*
 * Why a blocked operation cannot go on: a peer's words, its end, the agent's notice, ranks that
 * wait for each other, the deadline. A peer's end is looked at only after a further step has found
 * the operation still blocked: what the peer did before its end counts.
 */
#include "runtime/host_internal.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"

enum {
    LOST_GRACE_US = 10000, /* a lost peer that the operation does not need: others may fail first */
    LEFT_GRACE_US = 1000000, /* a peer that left after the operation: its data may be on the way */
    BROKEN_GRACE_US =
        250000,          /* a connection that ended: its peer's end, or word, may be on the way */
    WAITING_US = 200000, /* blocked for so long: tell whom we wait for */
    ADRIFT_US = 4000000  /* blocked for so long: an address may have gone, not for a moment only */
};

bool er_host_told_to_stop(const struct er_comm *comm)
{
    uint64_t word;

    if (!comm->page)
        return false;
    word = atomic_load_explicit(&comm->page->to_worker.word, memory_order_acquire);
    return (word & ER_NOTICE_KIND) == ER_NOTICE_STOP && word >> 8 == comm->generation;
}

/* The first peer that has told of a failure, or -1. Its words explain more than connections that
 * close because of it. */
static int find_told(struct host *h)
{
    for (int i = 0; i < h->comm->size; i++)
        if (er_mesh_peer(h->mesh, i)->life == ER_MESH_FAILED) {
            h->told = er_mesh_peer(h->mesh, i)->in.text;
            return i;
        }
    return -1;
}

/* What of the unit has to do with a peer. */
static const struct er_op *concerning(const struct host *h, int peer)
{
    for (int i = 0; i < h->unit_n; i++)
        if (er_op_is_pair(&h->unit[i]->desc) && h->unit[i]->desc.root == (uint32_t)peer)
            return h->unit[i];
    return h->unit[0];
}

static bool at_messages(const struct host *h)
{
    return er_op_is_pair(&h->unit[0]->desc);
}

/* What a peer's end means for the unit: 0 nothing yet, or a failure. */
static int judge_end(const struct host *h, int i, uint64_t now, struct er_error *err)
{
    const struct er_mesh_peer *p = er_mesh_peer(h->mesh, i);
    const struct er_op *op = concerning(h, i);
    bool left = p->life == ER_MESH_LEFT;
    char text[ER_COMM_OP_TEXT_MAX];

    if (p->life == ER_MESH_ALIVE)
        return 0;
    if (left && !at_messages(h) && p->in.seq < op->desc.seq)
        return er_error_set(err, ER_E_PEER_LOST, "rank %d left the communicator before %s", i,
                            er_op_text(&op->desc, text));
    if (!h->ops->needs(h->transport, i) && (left || now < p->since_us + LOST_GRACE_US))
        return 0;
    if (left && now < p->since_us + LEFT_GRACE_US)
        return 0;
    return er_error_set(err, ER_E_PEER_LOST, "rank %d closed its connection during %s", i,
                        er_op_text(&op->desc, text));
}

/* Bytes that the unit needs travel on a connection that has ended, and the peer lives: something in
 * between has reset it. Its own word, or its end, would explain more, and may be on the way. */
static int judge_links(struct host *h, uint64_t now, struct er_error *err)
{
    char text[ER_COMM_OP_TEXT_MAX];
    int peer = -1;

    for (int i = 0; h->ops->broken && i < h->comm->size && peer < 0; i++)
        if (i != h->comm->rank && er_mesh_peer(h->mesh, i)->life == ER_MESH_ALIVE &&
            h->ops->needs(h->transport, i) && h->ops->broken(h->transport, i))
            peer = i;
    if (peer < 0 || !h->broken_us)
        h->broken_us = peer < 0 ? 0 : now;
    if (peer < 0 || now < h->broken_us + BROKEN_GRACE_US)
        return 0;
    return er_error_set(err, ER_E_PEER_LOST,
                        "the connection to rank %d, which lives, has ended during %s", peer,
                        er_op_text(&concerning(h, peer)->desc, text));
}

static bool adrift(const struct host *h, int peer, char ret_address[ER_HOST_ADDR_TEXT])
{
    return er_host_adrift(er_mesh_fd(h->mesh, peer, ER_MESH_DATA), ret_address) ||
           er_host_adrift(er_mesh_fd(h->mesh, peer, ER_MESH_CONTROL), ret_address);
}

/* Nothing goes out from an address that has gone, and no answer comes: not even the end of a
 * connection is ever told. */
static int judge_address(struct host *h, uint64_t now, struct er_error *err)
{
    char address[ER_HOST_ADDR_TEXT], text[ER_COMM_OP_TEXT_MAX];

    if (now < er_deadline_in(h->moved_us, ADRIFT_US) || now < h->adrift_us)
        return 0;
    h->adrift_us = now + ADRIFT_US;
    for (int i = 0; i < h->comm->size; i++)
        if (i != h->comm->rank && h->ops->needs(h->transport, i) && adrift(h, i, address))
            return er_error_set(err, ER_E_PEER_LOST,
                                "this host has no address %s any more, from which rank %d is "
                                "connected with rank %d, during %s",
                                address, h->comm->rank, i,
                                er_op_text(&concerning(h, i)->desc, text));
    return 0;
}

/* ---- ranks that wait for each other ---- */

/* A message that cannot be done before the peer acts: its number, or 0. */
static uint64_t stuck_send(const struct host *h, int peer)
{
    const struct er_op *op = at_messages(h) ? h->ops->sending(h->transport, peer) : NULL;

    return op && er_op_bytes(&op->desc) > h->ops->eager_bytes ? op->desc.seq : 0;
}

static uint64_t stuck_recv(const struct host *h, int peer)
{
    const struct er_op *op = at_messages(h) ? h->ops->receiving(h->transport, peer) : NULL;

    return op ? op->desc.seq : 0;
}

/* What to name when a peer is concerned: what is not done yet, if anything. */
static const struct er_op_desc *name_to(const struct host *h, int peer)
{
    const struct er_op *op = NULL;

    if (at_messages(h))
        op = h->ops->receiving(h->transport, peer);
    if (at_messages(h) && !op)
        op = h->ops->sending(h->transport, peer);
    return op ? &op->desc : &concerning(h, peer)->desc;
}

/* Tell all where we are. */
static void say_waiting(struct host *h)
{
    for (int i = 0; i < h->comm->size; i++) {
        struct er_mesh_waiting waiting = {.desc = *name_to(h, i),
                                          .collectives = at_messages(h) ? 0 : h->unit[0]->desc.seq,
                                          .begun = h->collectives,
                                          .sent = h->sent[i],
                                          .received = h->received[i],
                                          .send = stuck_send(h, i),
                                          .recv = stuck_recv(h, i)};

        if (i != h->comm->rank)
            er_mesh_say_waiting(h->mesh, i, &waiting);
    }
    h->said_waiting = true;
}

/*
 * Whether we and a peer wait for each other for ever. The peer said to be blocked until we start
 * something that we have not started (so it is still there), and we are blocked until it starts
 * something that it had not started. A peer that has begun our collective, and is at a later
 * operation, has done its part of it: what it sent is on its way, however long the network takes.
 */
static bool locked_with(const struct host *h, int peer)
{
    const struct er_mesh_waiting *w = &er_mesh_peer(h->mesh, peer)->waiting;
    bool by_us =
        w->recv > h->sent[peer] || w->send > h->received[peer] || w->collectives > h->collectives;

    bool by_peer = at_messages(h)
                       ? stuck_recv(h, peer) > w->sent || stuck_send(h, peer) > w->received
                       : w->begun < h->unit[0]->desc.seq;

    return by_us && by_peer;
}

/* The same number, another operation: not every path compares descriptors with every rank. */
static bool elsewhere(const struct host *h, int peer)
{
    const struct er_mesh_waiting *w = &er_mesh_peer(h->mesh, peer)->waiting;

    return !at_messages(h) && w->collectives == h->collectives &&
           memcmp(&w->desc, &h->unit[0]->desc, sizeof(w->desc)) != 0;
}

static int judge_locks(const struct host *h, struct er_error *err)
{
    for (int i = 0; i < h->comm->size; i++)
        if (i != h->comm->rank && elsewhere(h, i))
            return er_op_differ(&h->unit[0]->desc, h->comm->rank,
                                &er_mesh_peer(h->mesh, i)->waiting.desc, i, err);
    for (int i = 0; i < h->comm->size; i++)
        if (i != h->comm->rank && h->ops->needs(h->transport, i) && locked_with(h, i))
            return er_op_differ(name_to(h, i), h->comm->rank,
                                &er_mesh_peer(h->mesh, i)->waiting.desc, i, err);
    return 0;
}

/* Who holds the unit up: a peer it needs something from that has not said to be waiting there too.
 */
static int find_silent(const struct host *h)
{
    int needed = -1;

    for (int i = 0; i < h->comm->size; i++) {
        const struct er_mesh_waiting *w = &er_mesh_peer(h->mesh, i)->waiting;

        if (i == h->comm->rank || !h->ops->needs(h->transport, i))
            continue;
        if (w->desc.seq == 0 || (!at_messages(h) && w->collectives != h->collectives))
            return i;
        needed = needed < 0 ? i : needed;
    }
    return needed;
}

static int judge_time(struct host *h, uint64_t now, struct er_error *err)
{
    uint64_t limit_us = h->comm->op_timeout_us, say_us = limit_us / 2;
    char text[ER_COMM_OP_TEXT_MAX];
    int silent, rc;

    if (!h->said_waiting &&
        now >= er_deadline_in(h->moved_us, say_us < WAITING_US ? say_us : WAITING_US))
        say_waiting(h);
    rc = h->said_waiting ? judge_locks(h, err) : 0;
    if (rc < 0 || now < er_deadline_in(h->moved_us, limit_us))
        return rc;
    silent = find_silent(h);
    return er_error_set(err, -ETIMEDOUT, "rank %d made no progress for %.1f s during %s", silent,
                        (double)limit_us / 1e6, er_op_text(&concerning(h, silent)->desc, text));
}

int er_host_judge(struct host *h, struct er_error *err)
{
    uint64_t now = er_now_us();
    char text[ER_COMM_OP_TEXT_MAX];
    int rc = atomic_load(&h->asked), teller = find_told(h);

    if (rc)
        return er_error_set(err, rc, "%s", h->ask.text);
    if (teller >= 0)
        return er_error_set(err, er_mesh_peer(h->mesh, teller)->in.code,
                            "%s (told by rank %d during %s)", h->told, teller,
                            er_op_text(&h->unit[0]->desc, text));
    if (er_host_told_to_stop(h->comm))
        return er_error_set(err, ER_E_ABORTED, "rank %d was told by its agent to stop during %s",
                            h->comm->rank, er_op_text(&h->unit[0]->desc, text));
    for (int i = 0; i < h->comm->size; i++) {
        rc = i == h->comm->rank ? 0 : judge_end(h, i, now, err);
        if (rc < 0)
            return rc;
    }
    rc = judge_links(h, now, err);
    if (rc == 0)
        rc = judge_address(h, now, err);
    return rc < 0 ? rc : judge_time(h, now, err);
}

int er_host_judge_idle(struct host *h, struct er_error *err)
{
    int rc = atomic_load(&h->asked), teller = find_told(h);

    if (rc)
        return er_error_set(err, rc, "%s", h->ask.text);
    if (teller >= 0)
        return er_error_set(err, er_mesh_peer(h->mesh, teller)->in.code, "%s (told by rank %d)",
                            h->told, teller);
    for (int i = 0; i < h->comm->size; i++) {
        enum er_mesh_life life = er_mesh_peer(h->mesh, i)->life;

        if (life != ER_MESH_ALIVE)
            return er_error_set(err, ER_E_PEER_LOST, "rank %d %s between operations", i,
                                life == ER_MESH_LEFT ? "left" : "closed its connection");
    }
    return 0;
}

/* ---- a companion: what its operations stand for is not done ---- */

/* What of the batch has to do with a peer: a message to or from it, else the first. */
static const struct er_op_desc *part_of(const struct host *h, uint64_t first, uint32_t n, int peer)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct er_op_desc *desc = &er_comm_at(h->comm, first + i)->desc;

        if (er_op_is_pair(desc) && desc->root == (uint32_t)peer)
            return desc;
    }
    return &er_comm_at(h->comm, first)->desc;
}

void er_host_say_waiting(struct host *h, uint64_t first, uint32_t n)
{
    for (int i = 0; i < h->comm->size; i++) {
        const struct er_op_desc *desc = part_of(h, first, n, i);
        struct er_mesh_waiting waiting = {.desc = *desc,
                                          .collectives = er_op_is_pair(desc) ? 0 : desc->seq,
                                          .begun = h->collectives,
                                          .sent = h->sent[i],
                                          .received = h->received[i]};

        if (er_op_is_pair(desc) && desc->root == (uint32_t)i)
            *(desc->kind == ER_OP_SEND ? &waiting.send : &waiting.recv) = desc->seq;
        if (i != h->comm->rank)
            er_mesh_say_waiting(h->mesh, i, &waiting);
    }
}

int er_host_find_silent(const struct host *h, uint64_t first, uint32_t n)
{
    const struct er_op_desc *mine = &er_comm_at(h->comm, first)->desc;
    int other = h->comm->rank == 0 && h->comm->size > 1 ? 1 : 0;

    if (er_op_is_pair(mine))
        return (int)mine->root;
    for (int i = 0; i < h->comm->size; i++)
        if (i != h->comm->rank && er_mesh_peer(h->mesh, i)->waiting.collectives != mine->seq)
            return i;
    return other;
}
