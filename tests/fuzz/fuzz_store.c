/* libFuzzer: what others may have written into the store, below a node that reads it. Some nodes
 * run a job; in between, keys of theirs are written, changed or removed, and the store fails them.
 * The first byte says how many they are and how the job is bounded; then come steps of STEP bytes:
 * what to do, a key or node, and what with. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/driver_internal.h"
#include "rendezvous/store_mem.h"
#include "tests/lib/driver_opts.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { NODES_MAX = 5, STEP = 4, STEPS_MAX = 64, TURNS_MAX = 300, VALUE_MAX = 4096 };
enum what {
    WRITE,
    CHANGE,
    REMOVE,
    PASS,
    FAIL,
    LEAVE,
    MANY,
    FAULT,
    WIPE,
    CUT,
    COMPACT,
    RECORD,
    REFUSE,
    DELAY,
    RETURN,
    WHAT_COUNT
};

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
    unsigned refuse_after, refuse_n; /* requests: carried out, then refused at the call */
};

static struct node nodes[NODES_MAX];
static int nodes_n;
static uint64_t incarnations;
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

/* ---- the embedded store, but for requests that it does not even take ---- */

static bool is_refused(const struct er_store *store)
{
    for (int i = 0; i < nodes_n; i++) {
        struct node *n = &nodes[i];

        if (n->client != store || n->refuse_n == 0)
            continue;
        if (n->refuse_after > 0) {
            n->refuse_after--;
            return false;
        }
        n->refuse_n--;
        return true;
    }
    return false;
}

static int refusing_txn(struct er_store *store, const struct er_store_txn *txn,
                        er_store_txn_fn done, void *user)
{
    return is_refused(store) ? ER_E_LIMIT : root->ops->txn(store, txn, done, user);
}

static int refusing_watch(struct er_store *store, struct er_bytes key, bool prefix,
                          uint64_t start_rev, er_store_watch_fn fn, void *user, uint64_t *ret_id)
{
    return is_refused(store) ? ER_E_LIMIT
                             : root->ops->watch(store, key, prefix, start_rev, fn, user, ret_id);
}

static int open_client(struct er_store **ret)
{
    static struct er_store_ops refusing;
    int rc = er_store_mem_client(root, ret, NULL);

    if (rc < 0)
        return rc;
    refusing = *root->ops;
    refusing.txn = refusing_txn;
    refusing.watch = refusing_watch;
    (*ret)->ops = &refusing;
    return 0;
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
    o.max_nodes = (uint32_t)nodes_n + (how >> 1 & 1);
    o.restart_window_us = ER_FOREVER;
    o.last_call_us = ER_US_PER_S;
    o.resize_grace_us = how & 4 ? 10 * ER_US_PER_S : 0;
    o.update_spec = i == 0 && how & 8;
    o.poison_max = how & 16 ? 2 : 0;
    o.retention_us = how & 32 ? ER_US_PER_S : 0;
    o.spec = how & 8 && i == 0 ? "nproc=3\n" : "nproc=2\n";
    o.incarnation = o.seed = o.boot_id_hash = ++incarnations;
    o.now_us = now_us;
    nodes[i] = (struct node){.over = false};
    if (open_client(&nodes[i].client) < 0 ||
        er_driver_new(&nodes[i].driver, nodes[i].client, &o, &callbacks, &nodes[i], NULL) < 0)
        abort();
}

static void close_node(int i)
{
    er_driver_free(nodes[i].driver);
    nodes[i].client->ops->free(nodes[i].client);
}

static void see_view(const struct er_view *v)
{
    assert(v->n <= v->cap && v->ctl_n <= ER_VIEW_CTLS && er_view_counts_right(v));
    for (size_t i = 0; i < v->n; i++)
        assert(*er_view_state_name(v, &v->nodes[i]));
    assert(*er_view_phase_name(&v->world));
}

static void see_driver(const struct er_driver *d)
{
    assert(d->early.n <= d->early.cap && d->early.n <= DRIVER_EARLY_MAX);
    for (int i = 0; i < DRIVER_JOB_PARTS; i++)
        assert(d->page.after_n[i] < ER_KEY_MAX);
}

static void settle(void)
{
    bool any = true;

    for (int turn = 0; any && turn < TURNS_MAX; turn++) {
        any = false;
        root->ops->dispatch(root, now_us);
        for (int i = 0; i < nodes_n; i++) {
            struct node *n = &nodes[i];

            if (n->over ||
                (!er_driver_pending(n->driver) && er_driver_deadline(n->driver) > now_us))
                continue;
            er_driver_dispatch(n->driver, now_us);
            see_driver(n->driver);
            any = true;
        }
    }
    for (int i = 0; i < nodes_n; i++)
        see_view(&nodes[i].driver->core->view);
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
    enum { MANY_N = DRIVER_PAGE + 1 };
    unsigned char value[VALUE_MAX];
    size_t n = like ? like->value.len : 0;

    if (n == 0 || n > sizeof(value))
        return;
    memcpy(value, like->value.data, n);
    for (unsigned i = 0; i < MANY_N; i++) {
        char text[32];

        snprintf(text, sizeof(text), "/e/job/j/n/z%04u", i); /* in order: a view sorts them */
        put((struct er_bytes){text, strlen(text)}, value, n);
    }
}

static void put_text(const char *below, const char *name, const void *value, size_t n)
{
    char text[ER_KEY_MAX];
    int length = snprintf(text, sizeof(text), "/e/job/%s%s", below, name);

    put((struct er_bytes){text, (size_t)length}, value, n);
}

/* More requests at a time than a view holds, or one. */
static void put_asks(const unsigned char how[3])
{
    struct er_ask ask = {.kind = (enum er_ask_kind)(how[1] % ER_ASK_KIND_COUNT),
                         .node = {'n', (char)('0' + (how[1] >> 4) % NODES_MAX)},
                         .min_nodes = 1,
                         .max_nodes = 1 + how[2] % NODES_MAX,
                         .cooldown_us = ER_US_PER_S,
                         .deadline_us = how[2] & 0x40 ? ER_US_PER_S : 0};
    unsigned char value[VALUE_MAX];
    size_t n = er_ask_encode(&ask, value);

    for (int i = 0; i <= (how[2] & 0x80 ? ER_VIEW_CTLS : 0); i++)
        put_text("j/ctl/", (const char[]){'c', (char)('a' + i), '\0'}, value, n);
}

/* As a node or elastic-ctl writes it; CHANGE can do its part then. */
static void put_record(const unsigned char how[3])
{
    const struct er_query query = {.id = how[1], .lease = how[2]};
    const struct er_ckpt_record ckpt = {
        .generation = how[1], .step = how[2], .digest = "d", .path = "p"};
    const struct er_aside aside = {.reason = "slow"};
    const struct er_overrides overrides = {
        .seq = how[1], .id = "c", .by = "u@h", .text = "log.level=debug\n"};
    const char node[] = {'n', (char)('0' + how[1] % NODES_MAX), '\0'};
    unsigned char value[VALUE_MAX];

    switch (how[0] % 5) {
    case 0:
        put_text("query", "", value, er_query_encode(&query, value));
        break;
    case 1:
        put_text("ckpt/latest", "", value, er_ckpt_record_encode(&ckpt, value));
        break;
    case 2:
        put_text("j/aside/", node, value, er_aside_encode(&aside, value));
        break;
    case 3:
        put_text("overrides", "", value, er_overrides_encode(&overrides, value));
        break;
    default:
        put_asks(how);
        break;
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
    incarnations = 0;
    nodes_n = 2 + (how >> 6);
    if (er_store_mem_new(&root, NULL) < 0)
        abort();
    for (int i = 0; i < nodes_n; i++)
        open_node(i, how);
    settle();
    for (int i = 0; i < STEPS_MAX && n >= STEP; i++, data += STEP, n -= STEP) {
        char text[ER_KEY_MAX] = "/e/job/";
        int which = data[1] % nodes_n;
        struct node *node = &nodes[which];
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
        case RECORD:
            put_record(data + 1);
            break;
        case REFUSE:
            node->refuse_after = data[2];
            node->refuse_n = data[3];
            break;
        case DELAY:
            er_store_mem_delay(node->client, data[2] * ER_US_PER_MS, data[3] * ER_US_PER_MS);
            break;
        case RETURN:
            close_node(which);
            open_node(which, how);
            break;
        case WHAT_COUNT:
            break;
        }
        settle();
    }
    for (int i = 0; i < nodes_n; i++)
        close_node(i);
    root->ops->free(root);
    return 0;
}
