#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "agent/answer.h"
#include "agent/ctl_find.h"
#include "agent/ctl_gather.h"
#include "base/clock.h"

/* Nodes asked through a store that others ask through as well. The store is in here. */

#define LONG_US (30 * ER_US_PER_S)

struct er_ctl_store {
    uint64_t revision, query_rev; /* 0: no question is there */
    uint64_t lease;
    int asked, reads, revoked;
    struct {
        char key[64];
        uint64_t rev;
    } answer[2]; /* rev 0: it is not there */
    void (*on_read)(struct er_ctl_store *s);
};

const char *er_ctl_store_prefix(const struct er_ctl_store *s)
{
    return "/elastic-run";
}

int er_ctl_store_lease(struct er_ctl_store *s, uint64_t id, uint64_t ttl_us, struct er_error *err)
{
    cr_assert_gt(ttl_us, LONG_US);
    s->lease = id;
    return 0;
}

int er_ctl_store_revoke(struct er_ctl_store *s, uint64_t id, struct er_error *err)
{
    cr_assert_eq(id, s->lease);
    s->revoked++;
    return 0;
}

int er_ctl_store_txn(struct er_ctl_store *s, const struct er_store_txn *txn,
                     struct er_ctl_reading *g, struct er_error *err)
{
    struct er_query query;

    cr_assert_eq(txn->then_n, 1);
    g->succeeded = true;
    if (txn->cmp_n > 1) {
        cr_assert_eq(txn->cmps[1].target, ER_CMP_MOD);
        cr_assert_eq(txn->cmps[1].result, ER_CMP_NOT_EQUAL);
        g->succeeded = txn->cmps[1].rev != s->query_rev;
    }
    if (g->succeeded) {
        cr_assert_eq(er_query_parse(txn->then_ops[0].value, &query, NULL), 0);
        cr_assert_eq(query.lease, s->lease);
        s->query_rev = ++s->revision;
        s->asked++;
    }
    g->revision = s->revision;
    return 0;
}

int er_ctl_store_read(struct er_ctl_store *s, const char *prefix, size_t prefix_n,
                      uint64_t *revision, void (*take)(void *, const struct er_store_kv *),
                      void *user, struct er_error *err)
{
    char text[64 + ER_HANG_FACTS_BYTES];
    size_t n = (size_t)snprintf(text, 64, "{\"v\": %d}\n", ER_ANSWER_VERSION);

    n += er_hang_facts_encode(NULL, 0, text + n);

    s->reads++;
    s->on_read(s);
    for (int i = 0; i < 2; i++) {
        struct er_store_kv kv = {.key = {s->answer[i].key, strlen(s->answer[i].key)},
                                 .value = {text, n},
                                 .mod_rev = s->answer[i].rev};

        if (!kv.mod_rev)
            continue;
        cr_assert(strncmp(s->answer[i].key, prefix, prefix_n) == 0);
        take(user, &kv);
    }
    return 0;
}

static void answer(struct er_ctl_store *s, int i)
{
    const struct er_key key = {.kind = ER_KEY_ANSWER, .name = {'n', (char)('0' + i)}};
    char text[ER_KEY_MAX];
    size_t n = er_key_format("/elastic-run/j/", &key, text);

    memcpy(s->answer[i].key, text, n);
    s->answer[i].rev = ++s->revision;
}

static struct er_ctl_answers gather(struct er_ctl_store *s)
{
    static const char *const NODES[] = {"n0", "n1"};
    struct er_ctl_answers answers;

    s->revision = 7;
    cr_assert_eq(er_ctl_gather(s, "j", NODES, 2, LONG_US, &answers, NULL), 0);
    cr_expect_eq(s->revoked, 1);
    return answers;
}

static void both_answer(struct er_ctl_store *s)
{
    answer(s, s->reads > 1);
}

Test(ctl_gather, who_is_not_disturbed_asks_once)
{
    struct er_ctl_store s = {.on_read = both_answer};
    struct er_ctl_answers answers = gather(&s);

    cr_expect_eq(answers.n, 2);
    cr_expect_not_null(er_ctl_answer_of(&answers, "n1"));
    cr_expect_eq(s.asked, 1);
    er_ctl_answers_done(&answers);
}

static void second_answers_first(struct er_ctl_store *s)
{
    answer(s, s->reads == 1);
}

Test(ctl_gather, answers_are_in_the_order_of_the_nodes)
{
    struct er_ctl_store s = {.on_read = second_answers_first};
    struct er_ctl_answers answers = gather(&s);

    cr_assert_eq(answers.n, 2);
    cr_expect_str_eq(answers.list[0].node, "n0");
    cr_expect_str_eq(answers.list[1].node, "n1");
    er_ctl_answers_done(&answers);
}

/* n1 has answered both questions, and the other's end has taken that along with its question. */
static void other_ends(struct er_ctl_store *s)
{
    if (s->reads == 1)
        answer(s, 0);
    if (s->reads == 2)
        s->query_rev = 0;
    if (s->asked == 2)
        answer(s, 1);
}

Test(ctl_gather, what_another_question_has_taken_is_asked_again)
{
    struct er_ctl_store s = {.on_read = other_ends};
    struct er_ctl_answers answers = gather(&s);

    cr_expect_eq(answers.n, 2);
    cr_expect_eq(s.asked, 2);
    er_ctl_answers_done(&answers);
}

/* What is there from before the question is to another's. */
static void old_then_new(struct er_ctl_store *s)
{
    if (s->reads == 1) {
        answer(s, 0);
        answer(s, 1);
        s->answer[1].rev = 7;
    } else {
        answer(s, 1);
    }
}

Test(ctl_gather, older_answers_are_to_others)
{
    struct er_ctl_store s = {.on_read = old_then_new};
    struct er_ctl_answers answers = gather(&s);

    cr_expect_eq(answers.n, 2);
    cr_expect_eq(s.reads, 2);
    er_ctl_answers_done(&answers);
}
