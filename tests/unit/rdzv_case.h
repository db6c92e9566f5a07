#pragma once
/* Several nodes on one store and one virtual clock: what the protocol decides, and when. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/rdzv.h"
#include "rendezvous/store_mem.h"
#include "tests/lib/driver_opts.h"

#define N 260 /* more than two batches of assignments */

struct node {
    struct er_store *client;
    struct er_driver *driver; /* NULL: down */
    uint64_t running;
    unsigned starts, lost_notes, left_notes, aside_notes;
    struct er_assignment a;
    unsigned prepares, notices;
    bool preparing;
    bool over, slow; /* slow: doesn't answer stop by itself */
    bool hangs;      /* its workers do not come up ahead of a change */
    struct er_verdict v;
    unsigned overrides_told;
    char overrides[256];
};

static struct node nodes[N];
static struct er_store *root;
static uint64_t now_us, incarnations;
static struct er_driver_opts base;

static inline void on_start(void *user, const struct er_assignment *a)
{
    struct node *n = user;

    cr_assert_gt(n->overrides_told, 0u); /* whatever is set is known before anything starts */
    cr_assert(n->running == 0 || (n->preparing && n->running == a->generation));
    n->preparing = false;
    n->running = a->generation;
    n->a = *a;
    n->starts++;
}

static inline void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct node *n = user;

    if (n->slow)
        return;
    n->running = 0;
    n->preparing = false;
    er_driver_left(n->driver, generation);
}

static inline void on_prepare(void *user, const struct er_assignment *a)
{
    struct node *n = user;

    cr_assert_eq(n->running, 0u);
    n->running = a->generation;
    n->preparing = true;
    n->prepares++;
    if (!n->hangs)
        er_driver_prepared(n->driver, a->generation);
}

static inline void on_notice(void *user, enum er_driver_notice kind, uint64_t target)
{
    struct node *n = user;
    uint64_t g = n->running;

    n->notices++;
    if (n->slow)
        return;
    n->running = 0;
    er_driver_left(n->driver, g);
}

static inline void on_verdict(void *user, const struct er_verdict *v)
{
    struct node *n = user;

    n->over = true;
    n->v = *v;
}

static inline void on_note(void *user, const struct er_note *note)
{
    struct node *n = user;

    n->lost_notes += note->kind == ER_NOTE_NODE_LOST;
    n->aside_notes += note->kind == ER_NOTE_NODE_ASIDE;
    n->left_notes += note->kind == ER_NOTE_NODE_LEFT;
}

static inline void on_overrides(void *user, const struct er_overrides *now)
{
    struct node *n = user;

    n->overrides_told++;
    snprintf(n->overrides, sizeof(n->overrides), "%.255s", now ? now->text : "");
}

static inline void begin(uint32_t min, uint32_t max)
{
    memset(nodes, 0, sizeof(nodes));
    now_us = ER_US_PER_S;
    incarnations = 0;
    cr_assert_eq(er_store_mem_new(&root, NULL), 0);
    base = er_test_driver_opts();
    base.min_nodes = min;
    base.max_nodes = max;
    base.restart_window_us = ER_FOREVER;
    base.backoff_max_us = 0;
    base.spec = "command=train\nnproc=2\n";
}

static inline void down(int i)
{
    er_driver_free(nodes[i].driver);
    if (nodes[i].client)
        nodes[i].client->ops->free(nodes[i].client);
    nodes[i].driver = NULL;
    nodes[i].client = NULL;
    nodes[i].running = 0;
}

static inline void end(void)
{
    for (int i = 0; i < N; i++)
        down(i);
    root->ops->free(root);
}

static inline void up(int i)
{
    static const struct er_driver_callbacks callbacks = {.start = on_start,
                                                         .stop = on_stop,
                                                         .verdict = on_verdict,
                                                         .note = on_note,
                                                         .prepare = on_prepare,
                                                         .notice = on_notice,
                                                         .overrides = on_overrides};
    struct er_driver_opts o = base;

    snprintf(o.node_id, sizeof(o.node_id), "n%d", i);
    snprintf(o.host, sizeof(o.host), "host%d", i);
    snprintf(o.address, sizeof(o.address), "10.0.0.%d", i);
    o.incarnation = o.seed = ++incarnations;
    if (!o.boot_id_hash)
        o.boot_id_hash = 100 + (uint64_t)i;
    o.now_us = now_us;
    memset(&nodes[i], 0, sizeof(nodes[i]));
    cr_assert_eq(er_store_mem_client(root, &nodes[i].client, NULL), 0);
    cr_assert_eq(er_driver_new(&nodes[i].driver, nodes[i].client, &o, &callbacks, &nodes[i], NULL),
                 0);
}

static inline bool work(void)
{
    bool any = false;

    root->ops->dispatch(root, now_us);
    for (int i = 0; i < N; i++) {
        struct er_driver *d = nodes[i].driver;

        if (!d || nodes[i].over || (!er_driver_pending(d) && er_driver_deadline(d) > now_us))
            continue;
        er_driver_dispatch(d, now_us);
        any = true;
    }
    return any;
}

static inline void settle(void)
{
    for (unsigned i = 0; work(); i++)
        cr_assert_lt(i, 500u);
}

/* Let `us` pass, stopping at every deadline. */
static inline void pass(uint64_t us)
{
    uint64_t until = now_us + us;

    for (unsigned k = 0; k < 5000; k++) {
        uint64_t at;

        settle();
        at = root->ops->deadline(root);
        for (int i = 0; i < N; i++) {
            if (nodes[i].driver && !nodes[i].over && er_driver_deadline(nodes[i].driver) < at)
                at = er_driver_deadline(nodes[i].driver);
        }
        if (at > until)
            break;
        now_us = at > now_us ? at : now_us;
    }
    now_us = until;
    settle();
}

static inline void fail(int i)
{
    struct er_cause c = {.rank = nodes[i].a.first_rank, .kind = ER_EXIT_EXITED, .code = 5};

    er_driver_result(nodes[i].driver, nodes[i].running, &c);
    settle();
}

static inline void form(int count)
{
    for (int i = 0; i < count; i++)
        up(i);
    settle();
}
