#include "agent/ctl_gather.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "agent/answer.h"
#include "agent/ctl_find.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define LEASE_EXTRA_US (10 * ER_US_PER_S) /* should we die, it is all gone so much later */
#define LOOK_MS        50
#define AGAIN_US       (1 * ER_US_PER_S)

struct gathering {
    struct er_ctl_store *store;
    char root[ER_ROOT_MAX];
    uint64_t lease, asks;
    uint64_t asked_rev; /* older answers are to others' questions */
    uint64_t query_rev; /* of the newest question of ours */
    struct er_ctl_answers *answers;
};

void er_ctl_answers_done(struct er_ctl_answers *answers)
{
    for (size_t i = 0; i < answers->n; i++) {
        json_decref(answers->list[i].head);
        free(answers->list[i].facts);
    }
    free(answers->list);
    *answers = (struct er_ctl_answers){.n = 0};
}

const struct er_ctl_answer *er_ctl_answer_of(const struct er_ctl_answers *answers, const char *node)
{
    for (size_t i = 0; i < answers->n; i++) {
        if (strcmp(answers->list[i].node, node) == 0)
            return &answers->list[i];
    }
    return NULL;
}

static struct er_ctl_answer *add(struct er_ctl_answers *answers)
{
    if (answers->n == answers->cap) {
        size_t cap = answers->cap ? 2 * answers->cap : 16;
        struct er_ctl_answer *list = reallocarray(answers->list, cap, sizeof(*list));

        if (!list)
            return NULL;
        answers->list = list;
        answers->cap = cap;
    }
    answers->list[answers->n] = (struct er_ctl_answer){.node = ""};
    return &answers->list[answers->n];
}

/* What is not understood is no answer. */
static bool parse(struct er_bytes value, struct er_ctl_answer *ret)
{
    const char *text = value.data, *end = memchr(text, '\n', value.len);
    struct er_hang_fact *facts;
    size_t head_n = end ? (size_t)(end + 1 - text) : 0;

    if (!end)
        return false;
    facts = calloc(ER_HANG_FACTS_MAX, sizeof(*facts));
    ret->head = json_loadb(text, head_n, 0, NULL);
    if (!facts || !json_is_object(ret->head) ||
        json_integer_value(json_object_get(ret->head, "v")) != ER_ANSWER_VERSION ||
        er_hang_facts_parse(text + head_n, value.len - head_n, facts, &ret->facts_n, NULL)) {
        free(facts);
        json_decref(ret->head);
        return false;
    }
    ret->facts = reallocarray(facts, ret->facts_n ? ret->facts_n : 1, sizeof(*facts));
    if (!ret->facts)
        ret->facts = facts; /* shorter it could not become */
    return true;
}

static void take_answer(void *user, const struct er_store_kv *kv)
{
    struct gathering *g = user;
    struct er_ctl_answer *answer;
    struct er_key key;

    er_key_parse(g->root, kv->key, &key);
    if (key.kind != ER_KEY_ANSWER || kv->mod_rev <= g->asked_rev ||
        er_ctl_answer_of(g->answers, key.name))
        return;
    answer = add(g->answers);
    if (!answer || !parse(kv->value, answer))
        return;
    snprintf(answer->node, sizeof(answer->node), "%.*s", ER_NAME_TEXT_MAX - 1, key.name);
    g->answers->n++;
}

/* There is one question at a time. Another's, in its place or since deleted with the answers to it,
 * may have kept answers from us: then ours is asked again. */
static int ask(struct gathering *g, struct er_error *err)
{
    const struct er_key world_key = {.kind = ER_KEY_WORLD}, query_key = {.kind = ER_KEY_QUERY};
    struct er_query query = {.id = g->lease + g->asks++, .lease = g->lease};
    char world[ER_KEY_MAX], name[ER_KEY_MAX], value[ER_QUERY_BYTES_MAX];
    const struct er_bytes key = {name, er_key_format(g->root, &query_key, name)};
    const struct er_store_cmp cmps[] = {
        {.target = ER_CMP_CREATE,
         .result = ER_CMP_NOT_EQUAL,
         .key = {world, er_key_format(g->root, &world_key, world)}},
        {.target = ER_CMP_MOD, .result = ER_CMP_NOT_EQUAL, .key = key, .rev = g->query_rev},
    };
    const struct er_store_op op = {
        .kind = ER_OP_PUT,
        .key = key,
        .value = {value, er_query_encode(&query, value)},
        .lease = g->lease,
    };
    struct er_ctl_reading r = {.take = NULL};
    int code = er_ctl_store_txn(
        g->store,
        &(struct er_store_txn){
            .cmps = cmps, .cmp_n = g->query_rev ? 2 : 1, .then_ops = &op, .then_n = 1},
        &r, err);

    if (!g->asked_rev)
        g->asked_rev = r.revision;
    if (!code && r.succeeded)
        g->query_rev = r.revision;
    return code;
}

static bool all_said(const struct gathering *g, const char *const *nodes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!er_ctl_answer_of(g->answers, nodes[i]))
            return false;
    }
    return true;
}

static int listen(struct gathering *g, const char *const *nodes, size_t n, uint64_t wait_us,
                  struct er_error *err)
{
    const struct er_key key = {.kind = ER_KEY_ANSWER, .name = "x"};
    uint64_t until_us = er_deadline_in(er_now_us(), wait_us), again_us = er_now_us() + AGAIN_US;
    char prefix[ER_KEY_MAX];
    size_t prefix_n = er_key_format(g->root, &key, prefix) - 1;
    int code = 0;

    while (!code && !all_said(g, nodes, n)) {
        uint64_t revision = 0;

        code = er_ctl_store_read(g->store, prefix, prefix_n, &revision, take_answer, g, err);
        if (er_now_us() >= until_us)
            break;
        if (!code && er_now_us() >= again_us) {
            code = ask(g, err);
            again_us = er_now_us() + AGAIN_US;
        }
        if (!code && !all_said(g, nodes, n))
            poll(NULL, 0, LOOK_MS);
    }
    return code;
}

/* As the store lists nodes; they answer in any order. */
static int by_node(const void *a, const void *b)
{
    return strcmp(((const struct er_ctl_answer *)a)->node, ((const struct er_ctl_answer *)b)->node);
}

int er_ctl_gather(struct er_ctl_store *store, const char *job, const char *const *nodes, size_t n,
                  uint64_t wait_us, struct er_ctl_answers *ret, struct er_error *err)
{
    struct gathering g = {.store = store, .answers = ret};
    int code;

    *ret = (struct er_ctl_answers){.n = 0};
    snprintf(g.root, sizeof(g.root), "%s/%s/", er_ctl_store_prefix(store), job);
    if (getrandom(&g.lease, sizeof(g.lease), 0) < 0) {
        er_error_errno(err, "get random numbers");
        return ER_CTL_EXIT_UNREACHABLE;
    }
    g.lease = g.lease >> 1 | 1;
    code = er_ctl_store_lease(store, g.lease, wait_us + LEASE_EXTRA_US, err);
    if (code)
        return code;
    code = ask(&g, err);
    if (!code)
        code = listen(&g, nodes, n, wait_us, err);
    if (ret->n > 1)
        qsort(ret->list, ret->n, sizeof(*ret->list), by_node);
    (void)er_ctl_store_revoke(store, g.lease, NULL); /* else its time ends it */
    return code;
}
