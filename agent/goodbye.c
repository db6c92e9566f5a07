#include "agent/goodbye.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "rendezvous/codec.h"

#define ENDPOINTS_MAX 4096
#define FILE_MAX      1024
#define WORD_MAX      128

/* Shared by two processes of the same program; "" stands for none. */
struct er_goodbye {
    char endpoints[ENDPOINTS_MAX]; /* with commas */
    char ca[FILE_MAX], cert[FILE_MAX], key[FILE_MAX], password_file[FILE_MAX];
    char server_name[FILE_MAX], user[WORD_MAX];
    char prefix[WORD_MAX], job[ER_NAME_TEXT_MAX], node_id[ER_NAME_TEXT_MAX];
    uint64_t incarnation;
    _Atomic uint64_t lease, generation;
};

static bool copy(char *to, size_t cap, const char *from)
{
    return (size_t)snprintf(to, cap, "%s", from ? from : "") < cap;
}

static bool copy_endpoints(struct er_goodbye *g, const struct er_store_access *access)
{
    size_t used = 0;

    for (size_t i = 0; i < access->endpoint_n && used < sizeof(g->endpoints); i++)
        used += (size_t)snprintf(g->endpoints + used, sizeof(g->endpoints) - used, "%s%s",
                                 i ? "," : "", access->endpoints[i]);
    return used < sizeof(g->endpoints);
}

static bool fill(struct er_goodbye *g, const struct er_store_access *access)
{
    return copy_endpoints(g, access) && copy(g->ca, sizeof(g->ca), access->ca) &&
           copy(g->cert, sizeof(g->cert), access->cert) &&
           copy(g->key, sizeof(g->key), access->key) &&
           copy(g->password_file, sizeof(g->password_file), access->password_file) &&
           copy(g->server_name, sizeof(g->server_name), access->server_name) &&
           copy(g->user, sizeof(g->user), access->user);
}

static struct er_goodbye *map(int fd)
{
    void *at = mmap(NULL, sizeof(struct er_goodbye), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return at == MAP_FAILED ? NULL : at;
}

int er_goodbye_new(struct er_goodbye **ret, int *ret_fd, const struct er_store_access *access,
                   const char *prefix, const char *job, const char *node_id, uint64_t incarnation,
                   struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = memfd_create("elastic-run-goodbye", MFD_CLOEXEC);
    struct er_goodbye *g;

    if (fd < 0 || ftruncate(fd, sizeof(*g)) < 0 || !(g = map(fd)))
        return er_error_errno(err, "make shared memory");
    if (!fill(g, access) || !copy(g->prefix, sizeof(g->prefix), prefix) ||
        !copy(g->job, sizeof(g->job), job) || !copy(g->node_id, sizeof(g->node_id), node_id)) {
        er_goodbye_free(g);
        return er_error_set(err, -E2BIG, "a name or a path of the store is too long");
    }
    g->incarnation = incarnation;
    *ret = g;
    *ret_fd = ER_TAKE_FD(fd);
    return 0;
}

void er_goodbye_free(struct er_goodbye *goodbye)
{
    if (goodbye)
        munmap(goodbye, sizeof(*goodbye));
}

void er_goodbye_update(struct er_goodbye *goodbye, uint64_t lease, uint64_t generation)
{
    goodbye->lease = lease;
    goodbye->generation = generation;
}

/* ---- saying it ---- */

struct speech {
    const struct er_goodbye *g;
    struct er_opened_store store;
    char root[ER_ROOT_MAX], node_key[ER_KEY_MAX], leader_key[ER_KEY_MAX];
    size_t node_n, leader_n;
    char record[ER_MEMBER_BYTES_MAX];
    uint64_t seed;
    bool done;
    int rc;
};

static void end(struct speech *s, int rc)
{
    s->done = true;
    s->rc = rc;
}

static void on_said(void *user, int rc, const struct er_store_reply *reply)
{
    end(user, rc);
}

/* Another incarnation than the one that died, leaving, with nothing left of what ran. */
static size_t make_record(struct speech *s, struct er_member *m)
{
    m->incarnation = er_rand_mix(s->g->incarnation ^ s->seed) | 1;
    m->draining = true;
    m->planned = false;
    m->running = 0;
    m->port = 0;
    if (s->g->generation > m->left)
        m->left = s->g->generation;
    return er_member_encode(m, s->record);
}

static void say(struct speech *s, const struct er_store_kv *node, struct er_member *m,
                const struct er_store_kv *leader)
{
    const struct er_bytes node_key = {s->node_key, s->node_n};
    const struct er_bytes leader_key = {s->leader_key, s->leader_n};
    const struct er_store_cmp cmps[] = {
        {.target = ER_CMP_MOD, .key = node_key, .rev = node->mod_rev},
        {.target = ER_CMP_MOD, .key = leader_key, .rev = leader ? leader->mod_rev : 0},
    };
    const struct er_store_op ops[] = {
        {.kind = ER_OP_PUT,
         .key = node_key,
         .value = {s->record, make_record(s, m)},
         .lease = node->lease},
        {.kind = ER_OP_DELETE, .key = leader_key},
    };
    const size_t n = leader ? 2 : 1;
    const struct er_store_txn txn = {.cmps = cmps, .cmp_n = n, .then_ops = ops, .then_n = n};
    int rc = s->store.store->ops->txn(s->store.store, &txn, on_said, s);

    if (rc < 0)
        end(s, rc);
}

/* Only about the agent that died: the next one may be there already. */
static void on_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct speech *s = user;
    const struct er_store_kv *leader = NULL;
    struct er_leader l;
    struct er_member m;

    if (rc || !reply->range_n[0] || er_member_parse(reply->kvs[0].value, &m, NULL) < 0 ||
        m.incarnation != s->g->incarnation || !reply->kvs[0].lease) {
        end(s, rc);
        return;
    }
    if (reply->range_n[1] && er_leader_parse(reply->kvs[1].value, &l, NULL) == 0 &&
        l.incarnation == s->g->incarnation)
        leader = &reply->kvs[1];
    say(s, &reply->kvs[0], &m, leader);
}

static void make_keys(struct speech *s)
{
    struct er_key node = {.kind = ER_KEY_NODE}, leader = {.kind = ER_KEY_LEADER};

    snprintf(s->root, sizeof(s->root), "%s/%s/", s->g->prefix, s->g->job);
    memcpy(node.name, s->g->node_id, sizeof(s->g->node_id));
    s->node_n = er_key_format(s->root, &node, s->node_key);
    s->leader_n = er_key_format(s->root, &leader, s->leader_key);
}

static int begin(struct speech *s)
{
    const struct er_goodbye *g = s->g;
    const char *endpoints = g->endpoints;
    const struct er_store_access access = {
        .endpoints = &endpoints,
        .endpoint_n = 1,
        .ca = g->ca[0] ? g->ca : NULL,
        .cert = g->cert[0] ? g->cert : NULL,
        .key = g->key[0] ? g->key : NULL,
        .server_name = g->server_name[0] ? g->server_name : NULL,
        .user = g->user[0] ? g->user : NULL,
        .password_file = g->password_file[0] ? g->password_file : NULL,
    };
    struct er_store_op ops[2] = {{.kind = ER_OP_RANGE}, {.kind = ER_OP_RANGE}};
    const struct er_store_txn txn = {.then_ops = ops, .then_n = 2};
    int rc;

    make_keys(s);
    ops[0].key = (struct er_bytes){s->node_key, s->node_n};
    ops[1].key = (struct er_bytes){s->leader_key, s->leader_n};
    rc = er_store_open(&s->store, &access, g->prefix, g->job, s->seed, NULL);
    return rc ? rc : s->store.store->ops->txn(s->store.store, &txn, on_read, s);
}

static void run(struct speech *s, uint64_t until_us)
{
    struct er_store *store = s->store.store;

    while (!s->done && er_now_us() < until_us) {
        struct pollfd fd = {.fd = store->ops->fd(store), .events = POLLIN};
        uint64_t at_us = store->ops->pending(store) ? 0 : store->ops->deadline(store);

        poll(&fd, 1, er_poll_ms(er_now_us(), at_us < until_us ? at_us : until_us));
        store->ops->dispatch(store, er_now_us());
    }
}

int er_goodbye_say(int fd, uint64_t wait_us)
{
    uint64_t now_us = er_now_us();
    struct speech s = {.g = map(fd), .seed = now_us, .rc = -ETIMEDOUT};
    int rc;

    if (!s.g)
        return -ENOMEM;
    if (!s.g->lease)
        return 0; /* it had nothing in the store */
    rc = begin(&s);
    if (rc)
        return rc;
    run(&s, er_deadline_in(now_us, wait_us));
    return s.rc;
}
