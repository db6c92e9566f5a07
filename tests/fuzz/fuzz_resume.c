/* libFuzzer: what ranks say of the state that they bring along. Whatever they say, there is one
 * plan in which nobody takes a state from who has none. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/resume.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { RANKS = 12, UNITS = 2, RECORD = 6, HELD = 2 * 4 };

static const size_t ELEMENTS[UNITS] = {40, 1000};

static void see_plan(const struct er_resume_record *records, const struct er_resume_step *steps,
                     int n, const struct er_resume_plan *plan)
{
    for (int i = 0; i < n; i++) {
        const struct er_resume_step *s = &steps[i];

        assert((s->action == ER_RESUME_LOAD) == (plan->source < 0));
        if (s->action == ER_RESUME_KEEP)
            assert(records[i].applied == plan->applied);
        if (s->action == ER_RESUME_ROLL_FORWARD)
            assert(records[i].applied + 1 == plan->applied && records[i].grads_of == plan->applied);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_resume_record records[RANKS];
    struct er_resume_step steps[RANKS];
    struct er_reshard_held held[RANKS] = {{.n = 0}}, reach[RANKS] = {{.n = 0}};
    uint32_t live[RANKS] = {0};
    struct er_resume_shards shards = {
        .units = {ELEMENTS, UNITS}, .held = held, .held_live = live, .reach = reach};
    int ranks = (int)(n / (RECORD + HELD) < RANKS ? n / (RECORD + HELD) : RANKS);
    struct er_resume_plan plan;

    if (ranks == 0)
        return 0;
    for (int i = 0; i < ranks; i++, data += RECORD + HELD) {
        const unsigned char *h = data + RECORD;

        records[i] =
            (struct er_resume_record){data[0] & 1, data[1] + (data[2] ? UINT64_MAX - 255 : 0),
                                      data[3] + (data[4] ? UINT64_MAX - 255 : 0)};
        held[i].n = data[5] % 5;
        live[i] = held[i].n ? (data[5] >> 4) % (held[i].n + 1) : 0;
        for (uint32_t k = 0; k < held[i].n; k++)
            held[i].shards[k] =
                (struct er_shard){h[2 * k] % 13 + 1u, h[2 * k + 1] % (h[2 * k] % 13 + 1u)};
        assert(er_reshard_held_ok(&held[i]));
    }
    plan = er_resume_plan(records, ranks, steps);
    see_plan(records, steps, ranks, &plan);
    for (int i = 0; i < ranks; i++) {
        if (steps[i].action == ER_RESUME_FETCH)
            assert(steps[i].from >= 0 && steps[i].from < ranks && steps[i].from != i);
    }
    shards.memory = calloc(er_reshard_memory_n(held, ranks) + 1, sizeof(*shards.memory));
    assert(shards.memory);
    plan = er_resume_plan_shards(records, ranks, &shards, steps);
    see_plan(records, steps, ranks, &plan);
    for (int i = 0; i < ranks; i++)
        assert(reach[i].n <= held[i].n || steps[i].action == ER_RESUME_LOAD);
    free(shards.memory);
    return 0;
}
