/* libFuzzer: what others may have written into the store, below a node that reads it. Two nodes run
 * a job; in between, keys of theirs are written, changed or removed. The first byte says how the
 * job is bounded; then come steps of STEP bytes: what to do, a key, and what with. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/driver_internal.h"
#include "rendezvous/store_mem.h"
#include "tests/lib/driver_opts.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { NODES = 2, STEP = 4, STEPS_MAX = 64, TURNS_MAX = 300, VALUE_MAX = 4096 };
enum what { WRITE, CHANGE, REMOVE, PASS, FAIL, LEAVE, MANY, FAULT, WIPE, CUT, COMPACT, WHAT_COUNT };

static const char *const KEYS[] = {
    "j/world", "fence",     "j/leader",    "a/n0",       "a/n1",       "j/n/n0",    "j/n/n1",
    "j/n/x",   "a/x",       "j/r/1/n0",    "j/ctl/stop", "j/aside/n1", "query",     "overrides",
    "spec",    "spec-next", "ckpt/latest", "kv/1/u/k",   "j/ctl/",     "j/n/\xff/", "j/r/zz"};
enum { FAULTS = ER_FAULT_REFUSED + 1, KEYS_N = sizeof(KEYS) / sizeof(KEYS[0]) };

struct node {
    struct er_store *client;
    struct er_driver *driver;
    uint64_t running;
    bool over;
};

static struct node nodes[NODES];
static struct er_store *root;
static uint64_t now_us;

/* ---- what an agent does, and counts on ---- */

static void see(const struct er_assignment *a)
{
    assert(a->node_rank >= 0 && a->node_rank < a->nnodes && a->nnodes <= (int)ER_NODES_MAX);
    assert(a->first_rank >= 0 && a->first_rank < a->world_size && a->local_size > 0);
    assert(memchr(a->run, 0, sizeof(a->run)) && memchr(a->master_addr, 0, sizeof(a->master_addr)));
    assert(a->skips.n <= ER_SKIPS_MAX);
}

static void on_start(void *user, const struct er_assignment *a)
{
    struct node *n = user;

    see(a);
    n->running = a->generation;
}

static void on_prepare(void *user, const struct er_assignment *a)
{
    struct node *n = user;

    on_start(user, a);
    er_driver_prepared(n->driver, a->generation);
}

static void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct node *n = user;

    n->running = 0;
    er_driver_left(n->driver, generation);
}

static void on_notice(void *user, enum er_driver_notice kind, uint64_t target)
{
    struct node *n = user;

    er_driver_left(n->driver, n->running);
    n->running = 0;
}

static void on_verdict(void *user, const struct er_verdict *v)
{
    struct node *n = user;

    assert(memchr(v->reason, 0, sizeof(v->reason)));
    n->over = true;
}

static void on_note(void *user, const struct er_note *note)
{
    assert(note->kind < ER_NOTE_KIND_COUNT);
}

static void on_query(void *user, const struct er_query *query)
{
    struct node *n = user;

    er_driver_answer(n->driver, query, "", 0);
}

static void on_overrides(void *user, const struct er_overrides *now)
{
    assert(!now || memchr(now->text, 0, sizeof(now->text)));
}

static void open_node(int i, unsigned char how)
{
    static const struct er_driver_callbacks callbacks = {.start = on_start,
                                                         .stop = on_stop,
                                                         .verdict = on_verdict,
                                                         .note = on_note,
                                                         .prepare = on_prepare,
                                                         .notice = on_notice,
                                                         .query = on_query,
                                                         .overrides = on_overrides};
    struct er_driver_opts o = er_test_driver_opts();

    snprintf(o.prefix, sizeof(o.prefix), "/e");
    o.node_id[0] = 'n';
    o.node_id[1] = (char)('0' + i);
    o.min_nodes = 1 + (how & 1);
    o.max_nodes = NODES + (how >> 1 & 1);
    o.restart_window_us = ER_FOREVER;
    o.last_call_us = ER_US_PER_S;
    o.resize_grace_us = how & 4 ? 10 * ER_US_PER_S : 0;
    o.update_spec = i == 0 && how & 8;
    o.poison_max = how & 16 ? 2 : 0;
    o.retention_us = how & 32 ? ER_US_PER_S : 0;
    o.spec = how & 8 && i == 0 ? "nproc=3\n" : "nproc=2\n";
    o.incarnation = o.seed = o.boot_id_hash = (uint64_t)i + 1;
    o.now_us = now_us;
    nodes[i] = (struct node){.over = false};
    if (er_store_mem_client(root, &nodes[i].client, NULL) < 0 ||
        er_driver_new(&nodes[i].driver, nodes[i].client, &o, &callbacks, &nodes[i], NULL) < 0)
        abort();
}

static void see_driver(const struct er_driver *d)
{
    assert(d->early.n <= d->early.cap && d->early.n <= DRIVER_EARLY_MAX);
    assert(d->core->view.n <= d->core->view.cap && d->core->view.ctl_n <= ER_VIEW_CTLS);
    for (int i = 0; i < DRIVER_JOB_PARTS; i++)
        assert(d->page.after_n[i] < ER_KEY_MAX);
}

static void settle(void)
{
    bool any = true;

    for (int turn = 0; any && turn < TURNS_MAX; turn++) {
        any = false;
        root->ops->dispatch(root, now_us);
        for (int i = 0; i < NODES; i++) {
            struct node *n = &nodes[i];

            if (n->over ||
                (!er_driver_pending(n->driver) && er_driver_deadline(n->driver) > now_us))
                continue;
            er_driver_dispatch(n->driver, now_us);
            see_driver(n->driver);
            any = true;
        }
    }
}

/* ---- what others do ---- */

static void on_done(void *user, int rc, const struct er_store_reply *reply) {}

static void put(struct er_bytes key, const void *value, size_t n)
{
    const struct er_store_op op = {
        .kind = value ? ER_OP_PUT : ER_OP_DELETE, .key = key, .value = {value, n}};
    const struct er_store_txn txn = {.then_ops = &op, .then_n = 1};

    (void)root->ops->txn(root, &txn, on_done, NULL);
}

/* A byte of what is there. */
static void change(struct er_bytes key, unsigned char at, unsigned char by)
{
    const struct er_store_kv *kv = er_store_mem_peek(root, key);
    unsigned char value[VALUE_MAX];

    if (!kv || kv->value.len == 0 || kv->value.len > sizeof(value))
        return;
    memcpy(value, kv->value.data, kv->value.len);
    value[at % kv->value.len] ^= by;
    put(key, value, kv->value.len);
}

/* More nodes than the job has, and than a page of a read holds. */
static void put_many(const struct er_store_kv *like)
{
    enum { MANY_N = 300 };
    unsigned char value[VALUE_MAX];
    size_t n = like ? like->value.len : 0;

    if (n == 0 || n > sizeof(value))
        return;
    memcpy(value, like->value.data, n);
    for (unsigned i = 0; i < MANY_N; i++) {
        char text[32];

        snprintf(text, sizeof(text), "/e/job/j/n/m%u", i);
        put((struct er_bytes){text, strlen(text)}, value, n);
    }
}

static void pass(unsigned char how)
{
    now_us += how < 128 ? (uint64_t)how * 10 * ER_US_PER_MS : (how - 127u) * ER_US_PER_S;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    unsigned char how;

    if (n == 0)
        return 0;
    how = *data++;
    n--;
    now_us = ER_US_PER_S;
    if (er_store_mem_new(&root, NULL) < 0)
        abort();
    for (int i = 0; i < NODES; i++)
        open_node(i, how);
    settle();
    for (int i = 0; i < STEPS_MAX && n >= STEP; i++, data += STEP, n -= STEP) {
        char text[ER_KEY_MAX] = "/e/job/";
        struct node *node = &nodes[data[1] % NODES];
        const struct er_cause cause = {.rank = data[2], .kind = ER_EXIT_EXITED, .code = data[3]};
        size_t length;

        strcat(text, KEYS[data[1] % KEYS_N]);
        switch ((enum what)(data[0] % WHAT_COUNT)) {
        case WRITE: /* the bytes that follow, then go on behind them */
            length = data[2] < n - STEP ? data[2] : n - STEP;
            put((struct er_bytes){text, strlen(text)}, data + STEP, length);
            data += length;
            n -= length;
            break;
        case CHANGE:
            change((struct er_bytes){text, strlen(text)}, data[2], data[3]);
            break;
        case REMOVE:
            put((struct er_bytes){text, strlen(text)}, NULL, 0);
            break;
        case PASS:
            pass(data[2]);
            break;
        case FAIL:
            if (!node->over && node->running)
                er_driver_result(node->driver, node->running, data[2] ? &cause : NULL);
            break;
        case LEAVE:
            if (!node->over)
                er_driver_leave(node->driver, 75, "asked to");
            break;
        case MANY:
            put_many(er_store_mem_peek(root, (struct er_bytes){"/e/job/j/n/n1", 13}));
            break;
        case FAULT:
            er_store_mem_fault(node->client, (enum er_store_mem_fault)(data[2] % FAULTS),
                               ER_US_PER_MS * data[3]);
            break;
        case WIPE:
            er_store_mem_wipe(root);
            break;
        case CUT:
            er_store_mem_cut(node->client, data[2] & 1);
            break;
        case COMPACT:
            er_store_mem_compact(root, er_store_mem_revision(root));
            break;
        case WHAT_COUNT:
            break;
        }
        settle();
    }
    for (int i = 0; i < NODES; i++) {
        er_driver_free(nodes[i].driver);
        nodes[i].client->ops->free(nodes[i].client);
    }
    root->ops->free(root);
    return 0;
}
