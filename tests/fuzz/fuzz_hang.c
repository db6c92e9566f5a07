/* libFuzzer: what nodes tell each other about ranks that stand still, and what a worker's page may
 * hold. The first byte says which. What is accepted can be written, and reads the same again; a
 * judgement names ranks that it was told of. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/hang_judge.h"
#include "agent/straggler.h"
#include "base/clock.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { NODES = 4, RANKS = 3 };

static bool told_of(const struct er_hang_fact *facts, size_t n, int rank)
{
    for (size_t i = 0; i < n; i++) {
        if (facts[i].rank == rank)
            return true;
    }
    return false;
}

static void judge(const struct er_hang_fact *facts, size_t n, unsigned heard)
{
    unsigned char bytes[ER_HANG_VERDICT_BYTES];
    struct er_hang_verdict v, again;
    bool answered[NODES];
    size_t length;

    for (int i = 0; i < NODES; i++)
        answered[i] = heard >> i & 1;
    er_hang_judge(facts, n, answered, NODES, &v);
    assert(v.n >= 0 && v.n <= ER_HANG_NAMED_MAX && v.waiting_n <= ER_HANG_WAITED_MAX);
    assert(er_hang_is_hang(&v) == (v.why >= ER_HANG_WHY_STOPPED));
    for (int i = 0; i < v.n; i++)
        assert(told_of(facts, n, v.who[i].rank));
    length = er_hang_verdict_encode(&v, bytes);
    assert(length <= sizeof(bytes));
    assert(er_hang_verdict_parse(bytes, length, &again, NULL) == 0 && again.n == v.n);
}

static void see_facts(const unsigned char *data, size_t n)
{
    static struct er_hang_fact facts[ER_HANG_FACTS_MAX];
    static unsigned char bytes[ER_HANG_FACTS_BYTES];
    struct er_error err = ER_ERROR_INIT;
    size_t facts_n;

    if (er_hang_facts_parse(data, n, facts, &facts_n, &err)) {
        assert(err.text[0]);
        return;
    }
    assert(facts_n <= ER_HANG_FACTS_MAX);
    assert(er_hang_facts_encode(facts, facts_n, bytes) == n && memcmp(bytes, data, n) == 0);
    for (size_t i = 0; i < facts_n; i++)
        assert(er_phase_name(facts[i].phase)[0]);
    for (unsigned heard = 0; heard < 1u << NODES; heard += 5)
        judge(facts, facts_n, heard);
}

static void see_verdict(const unsigned char *data, size_t n)
{
    unsigned char bytes[ER_HANG_VERDICT_BYTES];
    struct er_hang_verdict v;

    if (er_hang_verdict_parse(data, n, &v, NULL) == 0)
        assert(er_hang_verdict_encode(&v, bytes) == n && memcmp(bytes, data, n) == 0);
}

static uint64_t word(const unsigned char **at, const unsigned char *end)
{
    uint64_t value = 0;
    size_t n = (size_t)(end - *at) < sizeof(value) ? (size_t)(end - *at) : sizeof(value);

    memcpy(&value, *at, n);
    *at += n;
    return value;
}

/* Numbers that a worker may write at any time, at looks that are a second apart. */
static void see_page(const unsigned char *data, size_t n)
{
    const unsigned char *at = data, *end = data + n;
    struct er_hang h = {
        .limits = {ER_US_PER_S, 9 * ER_US_PER_S, 3 * ER_US_PER_S, ER_FOREVER, .factor = 10}};
    struct er_hang_rank ranks[RANKS] = {{.known = false}};
    struct er_straggler s = {.threshold = 0.7, .for_us = ER_US_PER_S};
    struct er_straggler_rank slow[RANKS] = {{.known = false}};
    uint64_t now_us = 100 * ER_US_PER_S;

    er_hang_begin(&h, now_us);
    while (at < end) {
        struct er_straggler_sample samples[RANKS];
        int who[RANKS], i = 0;

        now_us += ER_US_PER_S * (1 + (*at & 3u));
        er_hang_awake(&h, ranks, RANKS, now_us);
        for (; i < RANKS; i++) {
            const struct er_hang_sample one = {true,           word(&at, end),      word(&at, end),
                                               word(&at, end), word(&at, end),      word(&at, end),
                                               word(&at, end), now_us - ER_US_PER_S};

            samples[i] = (struct er_straggler_sample){true, one.step, one.collective, one.phase};
            er_hang_look(&h, &ranks[i], &one, now_us);
            assert(er_hang_state(&h, &ranks[i], now_us) <= ER_HANG_LATE);
            assert(er_hang_limit(&h, &ranks[i]) > 0);
            er_hang_alarms(&h, &ranks[i], now_us);
        }
        er_hang_looked(&h, ranks, RANKS, now_us);
        i = er_straggler_look(&s, slow, samples, RANKS, now_us, who);
        assert(i >= 0 && i <= RANKS && er_straggler_due(&s, now_us) >= now_us);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    if (n == 0)
        return 0;
    if (data[0] % 3 == 0)
        see_facts(data + 1, n - 1);
    else if (data[0] % 3 == 1)
        see_verdict(data + 1, n - 1);
    else
        see_page(data + 1, n - 1);
    return 0;
}
