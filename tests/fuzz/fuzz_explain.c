/* libFuzzer: what the nodes of a job answer to `elastic-ctl explain`, put together with what its
 * store says: {"state": as from the store, "answers": [{"node", "head", "facts"}], "refused":
 * code}. Others write all of it. Linked with --wrap=er_ctl_gather. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl_explain.h"
#include "agent/ctl_gather.h"
#include "agent/ctl_print.h"

enum { ANSWERS_MAX = 8 };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
int __wrap_er_ctl_gather(struct er_ctl_store *store, const char *job, const char *const *nodes,
                         size_t n, uint64_t wait_us, struct er_ctl_answers *ret,
                         struct er_error *err);

static const json_t *told;

static void answer(struct er_ctl_answer *ret, const json_t *from)
{
    const json_t *facts = json_object_get(from, "facts");

    snprintf(ret->node, sizeof(ret->node), "%s", er_ctl_text(from, "node"));
    ret->head = json_incref(json_object_get(from, "head"));
    ret->facts = calloc(ER_HANG_FACTS_MAX, sizeof(*ret->facts));
    assert(ret->facts);
    if (json_is_string(facts))
        (void)er_hang_facts_parse(json_string_value(facts), json_string_length(facts), ret->facts,
                                  &ret->facts_n, NULL);
}

int __wrap_er_ctl_gather(struct er_ctl_store *store, const char *job, const char *const *nodes,
                         size_t n, uint64_t wait_us, struct er_ctl_answers *ret,
                         struct er_error *err)
{
    const json_t *all = json_object_get(told, "answers"), *one;
    size_t i;

    (void)store, (void)job, (void)nodes, (void)n, (void)wait_us;
    ret->list = calloc(ANSWERS_MAX, sizeof(*ret->list));
    assert(ret->list);
    json_array_foreach(all, i, one)
    {
        if (ret->n < ANSWERS_MAX && json_is_object(json_object_get(one, "head")))
            answer(&ret->list[ret->n++], one);
    }
    if (!er_ctl_known(told, "refused"))
        return 0;
    er_error_set(err, -EIO, "it did not answer");
    return (int)(er_ctl_number(told, "refused") & 127);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    json_t *value = json_loadb((const char *)data, n, JSON_ALLOW_NUL, NULL), *state, *shown;
    FILE *to = fopen("/dev/null", "w");

    assert(to);
    told = value;
    state = json_object_get(value, "state");
    if (json_is_object(state) && er_ctl_explain_gather(NULL, "job", state, NULL) == 0) {
        assert(json_is_array(json_object_get(state, "diagnosis")));
        shown = er_ctl_tame(state);
        er_ctl_explain(shown, to);
        json_decref(shown);
    }
    fclose(to);
    json_decref(value);
    return 0;
}
