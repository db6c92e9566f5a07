#include "agent/hang_round.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/codec.h"

#define GATHER_US (500 * ER_US_PER_MS) /* node 0 waits so long for the others */
#define ANSWER_US (900 * ER_US_PER_MS) /* and they for it */
#define ALL_MAX   (ER_NODES_MAX / 4u)  /* facts of all nodes */

enum state { CALM, ASKING, LISTENING, TOLD };
enum what { ASK, LISTEN, ALARM, TELL, HEAR, JUDGEMENT };

/* An operation of the store's that will be answered, or was cancelled. */
struct call {
    struct er_list node;
    struct er_hang_round *round; /* NULL: nobody wants the answer any more */
    uint64_t id;                 /* 0: cannot be cancelled */
    enum what what;
    int from; /* HEAR: which node */
};

struct er_hang_round {
    struct er_driver *driver;
    struct er_hang_round_ops ops;
    void *user;
    struct er_list calls;
    enum state state;
    uint64_t generation, round, until_us; /* until_us ER_FOREVER: nobody is late */
    int node, nodes, heard_n;
    bool late;                  /* a local rank is, and that is why */
    bool *heard;                /* owned; of each node, for node 0 */
    struct er_hang_fact *facts; /* owned; ours, for node 0 all that were heard */
    size_t facts_n, facts_cap;
};

static void on_answer(void *user, int rc, const void *value, size_t n);

static void make_key(const struct er_hang_round *r, const char *what, char key[ER_KV_KEY_MAX])
{
    snprintf(key, ER_KV_KEY_MAX, "x/%" PRIu64 "/%s", r->round, what);
}

static struct call *call_new(struct er_hang_round *r, enum what what, int from)
{
    struct call *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL; /* as if there were no answer: the time ends it */
    c->round = r;
    c->what = what;
    c->from = from;
    er_list_init(&c->node);
    er_list_push_back(&r->calls, &c->node);
    return c;
}

static void get(struct er_hang_round *r, enum what what, const char *name, uint64_t deadline_us,
                int from)
{
    struct call *c = call_new(r, what, from);
    char key[ER_KV_KEY_MAX];

    make_key(r, name, key);
    if (c)
        c->id = er_driver_kv_get(r->driver, r->generation, key, deadline_us, on_answer, c);
}

static void put(struct er_hang_round *r, enum what what, const char *name, const void *value,
                size_t n)
{
    struct call *c = call_new(r, what, -1);
    char key[ER_KV_KEY_MAX];

    make_key(r, name, key);
    if (c)
        er_driver_kv_put(r->driver, r->generation, key, value, n, on_answer, c);
}

/* Whoever still has an answer to give gives it to nobody. */
static void forget_calls(struct er_hang_round *r)
{
    er_list_for_each_safe (node, &r->calls) {
        struct call *c = ER_LIST_ITEM(node, struct call, node);

        c->round = NULL;
        if (!c->id)
            continue;
        er_driver_kv_cancel(r->driver, c->id);
        er_list_remove(&c->node);
        free(c);
    }
}

static void calm_down(struct er_hang_round *r)
{
    forget_calls(r);
    r->state = CALM;
    r->until_us = ER_FOREVER;
    r->late = false;
}

static int grow(struct er_hang_round *r, size_t n)
{
    struct er_hang_fact *facts;

    if (r->facts_n + n <= r->facts_cap)
        return 0;
    if (r->facts_n + n > ALL_MAX)
        return ER_E_LIMIT;
    facts = realloc(r->facts, (r->facts_n + n) * sizeof(*facts));
    if (!facts)
        return -ENOMEM;
    r->facts = facts;
    r->facts_cap = r->facts_n + n;
    return 0;
}

static void take_own(struct er_hang_round *r)
{
    r->facts_n = 0;
    memset(r->heard, 0, (size_t)r->nodes * sizeof(*r->heard));
    r->heard_n = 1;
    r->heard[r->node] = true;
    if (grow(r, ER_HANG_FACTS_MAX) == 0)
        r->facts_n = r->ops.facts(r->user, r->facts);
}

static void decide(struct er_hang_round *r, struct er_hang_verdict *ret)
{
    er_hang_judge(r->facts, r->facts_n, r->heard, r->nodes, ret);
}

static void judge_alone(struct er_hang_round *r)
{
    struct er_hang_verdict verdict;

    take_own(r);
    decide(r, &verdict);
    calm_down(r);
    r->ops.decided(r->user, &verdict);
}

/* Node 0 has heard enough. The others must not read a judgement that this node does not act on. */
static void judge_all(struct er_hang_round *r)
{
    unsigned char bytes[ER_HANG_VERDICT_BYTES];
    struct er_hang_verdict verdict;

    decide(r, &verdict);
    forget_calls(r);
    put(r, JUDGEMENT, "go", bytes, er_hang_verdict_encode(&verdict, bytes));
    r->until_us = er_deadline_in(er_now_us(), ANSWER_US);
    r->heard_n = r->nodes + 1; /* once */
}

static void tell(struct er_hang_round *r, uint64_t now_us)
{
    ER_CLEANUP(er_cleanup_free) unsigned char *bytes = malloc(ER_HANG_FACTS_BYTES);
    char name[16];

    forget_calls(r);
    r->state = TOLD;
    r->until_us = now_us + (r->node == 0 ? GATHER_US : ANSWER_US);
    take_own(r);
    if (r->node == 0) {
        for (int i = 1; i < r->nodes; i++) {
            snprintf(name, sizeof(name), "%d", i);
            get(r, HEAR, name, ER_FOREVER, i);
        }
        return;
    }
    snprintf(name, sizeof(name), "%d", r->node);
    if (bytes)
        put(r, TELL, name, bytes, er_hang_facts_encode(r->facts, r->facts_n, bytes));
    get(r, ASK, "go", ER_FOREVER, -1);
}

static void hear(struct er_hang_round *r, int from, const void *value, size_t n)
{
    size_t facts_n = 0;

    if (r->heard[from] || r->heard_n > r->nodes)
        return;
    if (grow(r, ER_HANG_FACTS_MAX) ||
        er_hang_facts_parse(value, n, r->facts + r->facts_n, &facts_n, NULL))
        return;
    r->facts_n += facts_n;
    r->heard[from] = true;
    if (++r->heard_n == r->nodes)
        judge_all(r);
}

/* The round's end, as node 0 wrote it. */
static void conclude(struct er_hang_round *r, const void *value, size_t n)
{
    struct er_hang_verdict verdict;
    bool ours = r->state == TOLD;

    if (er_hang_verdict_parse(value, n, &verdict, NULL))
        return;
    calm_down(r);
    r->round++;
    if (ours)
        r->ops.decided(r->user, &verdict);
}

static void ask(struct er_hang_round *r)
{
    r->state = ASKING;
    get(r, ASK, "go", 0, -1);
}

/* Is the round over already (its end is of other ranks' hanging, long ago)? Else it is listened to.
 */
static void on_asked(struct er_hang_round *r, int rc, const void *value, size_t n)
{
    if (rc == 0 && r->state == TOLD) {
        conclude(r, value, n);
    } else if (rc == 0) {
        r->round++;
        ask(r);
    } else if (r->state == ASKING) {
        r->state = LISTENING;
        get(r, LISTEN, "alarm", ER_FOREVER, -1);
    }
}

static void on_judged(struct er_hang_round *r, int rc)
{
    struct er_hang_verdict verdict;

    if (rc)
        return; /* the time ends it */
    decide(r, &verdict);
    calm_down(r);
    r->round++;
    r->ops.decided(r->user, &verdict);
}

static void on_answer(void *user, int rc, const void *value, size_t n)
{
    struct call *c = user;
    struct call got = *c;
    struct er_hang_round *r = got.round;

    er_list_remove(&c->node);
    free(c);
    if (!r)
        return;
    if (rc == ER_E_STALE) {
        calm_down(r);
        return;
    }
    switch (got.what) {
    case ASK:
        on_asked(r, rc, value, n);
        break;
    case LISTEN:
        if (rc == 0)
            tell(r, er_now_us());
        break;
    case HEAR:
        if (rc == 0)
            hear(r, got.from, value, n);
        break;
    case JUDGEMENT:
        on_judged(r, rc);
        break;
    case ALARM:
    case TELL:
        break;
    }
}

static void raise_alarm(struct er_hang_round *r, uint64_t now_us)
{
    if (!r->late)
        r->until_us = now_us + ANSWER_US;
    r->late = true;
    if (r->state != LISTENING)
        return; /* it is being asked where the round stands */
    put(r, ALARM, "alarm", "1", 1);
    tell(r, now_us);
}

static void time_over(struct er_hang_round *r)
{
    if (r->state == TOLD && r->node == 0 && r->heard_n <= r->nodes)
        judge_all(r); /* without those who have not answered */
    else if (r->late)
        judge_alone(r);
    else
        calm_down(r);
}

void er_hang_round_step(struct er_hang_round *r, bool still, bool late, uint64_t now_us)
{
    if (r->nodes < 1) /* no memory to listen with */
        return;
    if (r->nodes == 1) {
        if (late)
            judge_alone(r);
        return;
    }
    if (r->state == CALM && (still || late))
        ask(r);
    if (r->state == LISTENING && !still && !late)
        calm_down(r);
    if (late && r->state != TOLD)
        raise_alarm(r, now_us);
    if (now_us >= r->until_us)
        time_over(r);
}

uint64_t er_hang_round_deadline(const struct er_hang_round *r)
{
    return r->until_us;
}

void er_hang_round_begin(struct er_hang_round *r, uint64_t generation, int node, int nodes)
{
    bool *heard = calloc((size_t)nodes, sizeof(*heard));

    calm_down(r);
    r->generation = generation;
    r->round = 0;
    r->node = node;
    r->nodes = heard ? nodes : 0;
    free(r->heard);
    r->heard = heard;
}

int er_hang_round_new(struct er_hang_round **ret, struct er_driver *driver,
                      const struct er_hang_round_ops *ops, void *user, struct er_error *err)
{
    struct er_hang_round *r = calloc(1, sizeof(*r));

    if (!r)
        return er_error_set(err, -ENOMEM, "watch for hangs: out of memory");
    r->driver = driver;
    r->ops = *ops;
    r->user = user;
    r->until_us = ER_FOREVER;
    er_list_init(&r->calls);
    *ret = r;
    return 0;
}

void er_hang_round_free(struct er_hang_round *r)
{
    if (!r)
        return;
    forget_calls(r);
    er_list_for_each_safe (node, &r->calls)
        free(ER_LIST_ITEM(node, struct call, node));
    free(r->heard);
    free(r->facts);
    free(r);
}
