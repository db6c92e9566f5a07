#pragma once
/* One node on a virtual clock: a driver, its store, and what its owner was told. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/store_mem.h"
#include "tests/lib/driver_opts.h"

struct fixture {
    struct er_store *store;
    struct er_driver *driver;
    uint64_t now_us;
    unsigned starts, stops, verdicts, notes[ER_NOTE_KIND_COUNT];
    struct er_assignment a;
    uint64_t stop_generation;
    char stop_reason[64];
    struct er_verdict v;
    bool obedient; /* answers stop with left at once */
    int kv_rc;
    unsigned kv_n;
    char kv_value[64];
};

static inline void on_start(void *user, const struct er_assignment *a)
{
    struct fixture *f = user;

    f->starts++;
    f->a = *a;
}

static inline void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct fixture *f = user;

    f->stops++;
    f->stop_generation = generation;
    snprintf(f->stop_reason, sizeof(f->stop_reason), "%s", reason);
    if (f->obedient)
        er_driver_left(f->driver, generation);
}

static inline void on_verdict(void *user, const struct er_verdict *v)
{
    struct fixture *f = user;

    f->verdicts++;
    f->v = *v;
}

static inline void on_note(void *user, const struct er_note *note)
{
    struct fixture *f = user;

    f->notes[note->kind]++;
}

static inline void on_kv(void *user, int rc, const void *value, size_t n)
{
    struct fixture *f = user;

    f->kv_n++;
    f->kv_rc = rc;
    snprintf(f->kv_value, sizeof(f->kv_value), "%.*s", (int)n, n ? (const char *)value : "");
}

static const struct er_driver_callbacks callbacks = {
    .start = on_start, .stop = on_stop, .verdict = on_verdict, .note = on_note};

static inline struct er_driver_opts options(void)
{
    struct er_driver_opts o = er_test_driver_opts();

    snprintf(o.node_id, sizeof(o.node_id), "n0");
    o.min_nodes = o.max_nodes = 1;
    o.spec = "command=train\nnnodes=1\n";
    o.incarnation = 7;
    o.boot_id_hash = 9;
    o.seed = 42;
    o.now_us = 1000;
    return o;
}

static inline void open_with(struct fixture *f, const struct er_driver_opts *o)
{
    memset(f, 0, sizeof(*f));
    f->obedient = true;
    f->now_us = o->now_us;
    cr_assert_eq(er_store_mem_new(&f->store, NULL), 0);
    cr_assert_eq(er_driver_new(&f->driver, f->store, o, &callbacks, f, NULL), 0);
}

static inline void close_all(struct fixture *f)
{
    er_driver_free(f->driver);
    f->store->ops->free(f->store);
}

/* Everything that can happen now. */
static inline void run(struct fixture *f)
{
    for (unsigned i = 0; i < 100; i++) {
        if (!er_driver_pending(f->driver) && er_driver_deadline(f->driver) > f->now_us)
            return;
        er_driver_dispatch(f->driver, f->now_us);
    }
    cr_assert_fail("it never comes to rest");
}

static inline void advance(struct fixture *f, uint64_t us)
{
    uint64_t until = f->now_us + us;

    for (unsigned i = 0; i < 1000; i++) {
        uint64_t at = er_driver_deadline(f->driver);

        run(f);
        at = er_driver_deadline(f->driver);
        if (at > until)
            break;
        f->now_us = at > f->now_us ? at : f->now_us;
    }
    f->now_us = until;
    run(f);
}

static inline struct er_cause failure(int code)
{
    return (struct er_cause){
        .rank = 1, .local_rank = 1, .pid = 99, .kind = ER_EXIT_EXITED, .code = code};
}

static inline void fail(struct fixture *f, const struct er_cause *cause)
{
    er_driver_result(f->driver, f->a.generation, cause);
    run(f);
}
