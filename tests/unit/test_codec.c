#include "rendezvous/codec.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/rand.h"

static struct er_cause full_cause(void)
{
    struct er_cause c = {
        .generation = 7, .rank = -1, .local_rank = 3, .pid = 4711, .code = 5, .step = 99};

    c.kind = ER_EXIT_SIGNALED;
    c.signal = 11;
    c.fatal = true;
    memset(c.node_id, 'n', sizeof(c.node_id) - 1);
    memset(c.host, 'h', sizeof(c.host) - 1);
    memset(c.message, 'm', sizeof(c.message) - 1);
    return c;
}

static struct er_job_record full_world(void)
{
    struct er_job_record w = {.phase = ER_WORLD_FAILED, .reason = ER_REASON_WORKER_HUNG};

    memset(w.run, 'a', sizeof(w.run) - 1);
    w.generation = w.last_sealed = ER_GEN_MAX;
    w.nonce = w.writer = w.seq = w.ready_us = UINT64_MAX;
    w.last_nnodes = w.min_nodes = w.max_nodes = w.restarts = UINT32_MAX;
    w.world_size = w.nnodes = w.uncounted_row = w.early_row = UINT32_MAX;
    memset(w.master_addr, 'x', sizeof(w.master_addr) - 1);
    w.master_port = 65535;
    w.next = w.taken = ER_GEN_MAX;
    w.next_nonce = w.spec = UINT64_MAX;
    w.next_nnodes = w.next_size = UINT32_MAX;
    w.exit_code = 255;
    w.age_n = ER_BUDGET_AGES;
    for (unsigned i = 0; i < ER_BUDGET_AGES; i++)
        w.ages[i] = (struct er_budget_age){3600000000ull, UINT32_MAX};
    w.poison.n = ER_POISON_MAX;
    for (unsigned i = 0; i < ER_POISON_MAX; i++)
        w.poison.steps[i] = (struct er_poison_step){UINT64_MAX, UINT32_MAX};
    w.skips.n = ER_SKIPS_MAX;
    memset(w.skips.steps, 0xFF, sizeof(w.skips.steps));
    w.has_cause = true;
    w.cause = full_cause();
    memset(w.verdict, 'v', sizeof(w.verdict) - 1);
    return w;
}

Test(codec, world_comes_back_as_it_was)
{
    struct er_job_record w = {.phase = ER_WORLD_SEALED, .generation = 3, .nonce = 1, .age_n = 1},
                         back;
    unsigned char bytes[ER_WORLD_BYTES_MAX];
    size_t n;

    strcpy(w.run, "0123456789abcdef");
    w.ages[0] = (struct er_budget_age){5, 2};
    w.has_cause = true;
    w.cause.rank = -1;
    strcpy(w.cause.message, "boom");
    n = er_job_record_encode(&w, bytes);
    cr_assert_eq(er_job_record_parse((struct er_bytes){bytes, n}, &back, NULL), 0);
    cr_assert_eq(back.phase, ER_WORLD_SEALED);
    cr_assert_str_eq(back.run, w.run);
    cr_assert_eq(back.age_n, 1u);
    cr_assert_eq(back.ages[0].count, 2u);
    cr_assert_eq(back.cause.rank, -1);
    cr_assert_str_eq(back.cause.message, "boom");
    cr_assert_eq(back.exit_code, 0);
}

Test(codec, the_fullest_world_fits_its_limit_by_cutting_texts)
{
    struct er_job_record w = full_world(), back;
    unsigned char bytes[ER_WORLD_BYTES_MAX];
    size_t n = er_job_record_encode(&w, bytes);

    cr_assert_leq(n, (size_t)ER_WORLD_BYTES_MAX);
    cr_assert_eq(er_job_record_parse((struct er_bytes){bytes, n}, &back, NULL), 0);
    cr_assert_eq(back.generation, w.generation);
    cr_assert_eq(back.skips.steps[ER_SKIPS_MAX - 1], UINT64_MAX);
    cr_assert_eq(back.poison.steps[ER_POISON_MAX - 1].failures, UINT32_MAX);
    cr_assert_str_eq(back.cause.node_id, w.cause.node_id);
    cr_assert_lt(strlen(back.cause.message), strlen(w.cause.message));
}

Test(codec, full_records_fit)
{
    unsigned char bytes[ER_RECORD_BYTES_MAX];
    struct er_member m = {.incarnation = UINT64_MAX, .boot_id_hash = UINT64_MAX, .port = 65535};
    struct er_result r = {.incarnation = UINT64_MAX, .cause = full_cause()}, r2;
    struct er_assign a = {ER_GEN_MAX, UINT64_MAX, UINT64_MAX, INT32_MAX,
                          INT32_MAX,  ER_GEN_MAX, UINT64_MAX, INT32_MIN},
                     a2;
    struct er_member m2;
    struct er_overrides o = {.seq = 0}, o2;
    size_t n;

    memset(m.address, 'a', sizeof(m.address) - 1);
    memset(m.host, 'h', sizeof(m.host) - 1);
    m.left = m.running = ER_GEN_MAX;
    n = er_member_encode(&m, bytes);
    cr_assert_eq(er_member_parse((struct er_bytes){bytes, n}, &m2, NULL), 0);
    cr_assert_eq(m2.left, ER_GEN_MAX);
    cr_assert_str_eq(m2.host, m.host);
    n = er_result_encode(&r, bytes);
    cr_assert_leq(n, (size_t)ER_RESULT_BYTES_MAX);
    cr_assert_eq(er_result_parse((struct er_bytes){bytes, n}, &r2, NULL), 0);
    cr_assert_str_eq(r2.cause.message, r.cause.message);
    o.seq = o.wall_us = UINT64_MAX;
    memset(o.id, 'i', sizeof(o.id) - 1);
    memset(o.by, 'b', sizeof(o.by) - 1);
    memset(o.text, 't', sizeof(o.text) - 1);
    n = er_overrides_encode(&o, bytes);
    cr_assert_leq(n, (size_t)ER_OVERRIDES_BYTES_MAX);
    cr_assert_eq(er_overrides_parse((struct er_bytes){bytes, n}, &o2, NULL), 0);
    cr_assert_str_eq(o2.text, o.text);
    n = er_assign_encode(&a, bytes);
    cr_assert_eq(er_assign_parse((struct er_bytes){bytes, n}, &a2, NULL), 0);
    cr_assert_eq(a2.generation, a.generation);
    cr_assert_eq(a2.first_rank, INT32_MAX);
    cr_assert_eq(a2.prev_incarnation, UINT64_MAX);
    cr_assert_eq(a2.prev_rank, INT32_MIN);
}

Test(codec, every_truncation_and_every_tail_is_refused)
{
    struct er_job_record w = full_world(), back = {.seq = 77};
    unsigned char bytes[ER_WORLD_BYTES_MAX + 1] = {0};
    size_t n;

    w.cause.message[40] = w.verdict[20] = 0;
    n = er_job_record_encode(&w, bytes);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(er_job_record_parse((struct er_bytes){bytes, i}, &back, NULL), ER_E_CORRUPT);
    cr_assert_eq(er_job_record_parse((struct er_bytes){bytes, n + 1}, &back, NULL), ER_E_CORRUPT);
    cr_assert_eq(back.seq, 77u);
}

Test(codec, records_without_a_deadline_have_the_form_that_they_had_before_there_were_any)
{
    struct er_ask ask = {.kind = ER_ASK_STOP}, back;
    struct er_assign assign = {.drain_code = 75}, assigned;
    unsigned char bytes[ER_ASK_BYTES_MAX], without[ER_ASK_BYTES_MAX];
    size_t n = er_ask_encode(&ask, without), more;

    ask.deadline_us = 300;
    more = er_ask_encode(&ask, bytes);
    cr_assert_eq(more, n + 2);
    cr_assert_eq(memcmp(bytes, without, n), 0);
    cr_assert_eq(er_ask_parse((struct er_bytes){bytes, more}, &back, NULL), 0);
    cr_assert_eq(back.deadline_us, 300u);
    cr_assert_eq(er_ask_parse((struct er_bytes){bytes, n}, &back, NULL), 0);
    cr_assert_eq(back.deadline_us, 0u);
    bytes[n] = 0;
    cr_assert_eq(er_ask_parse((struct er_bytes){bytes, n + 1}, &back, NULL), ER_E_CORRUPT);
    n = er_assign_encode(&assign, bytes);
    assign.drain_us = 1;
    cr_assert_eq(er_assign_encode(&assign, bytes), n + 1);
    cr_assert_eq(er_assign_parse((struct er_bytes){bytes, n + 1}, &assigned, NULL), 0);
    cr_assert_eq(assigned.drain_us, 1u);
    cr_assert_eq(assigned.drain_code, 75);
}

Test(codec, another_version_is_a_protocol_error)
{
    struct er_leader l = {.node_id = "n1", .incarnation = 2}, back;
    unsigned char bytes[ER_LEADER_BYTES_MAX];
    size_t n = er_leader_encode(&l, bytes);

    bytes[1] = 2;
    cr_assert_eq(er_leader_parse((struct er_bytes){bytes, n}, &back, NULL), ER_E_PROTOCOL);
    bytes[1] = 1;
    bytes[0] = 'w';
    cr_assert_eq(er_leader_parse((struct er_bytes){bytes, n}, &back, NULL), ER_E_CORRUPT);
}

Test(codec, noise_is_survived)
{
    struct er_job_record w = full_world(), world;
    unsigned char clean[ER_WORLD_BYTES_MAX], bytes[ER_WORLD_BYTES_MAX];
    size_t n = er_job_record_encode(&w, clean);
    struct er_result result;
    struct er_rand r;

    er_rand_init(&r, 5);
    for (unsigned i = 0; i < 20000; i++) {
        memcpy(bytes, clean, n);
        for (unsigned k = 0; k < 4; k++)
            bytes[2 + er_rand_below(&r, n - 2)] = (unsigned char)er_rand_next(&r);
        (void)er_job_record_parse((struct er_bytes){bytes, n}, &world, NULL);
        bytes[0] = 'r';
        (void)er_result_parse((struct er_bytes){bytes, n}, &result, NULL);
    }
}

Test(codec, keys_have_fixed_width_numbers_and_parse_back)
{
    static const struct {
        struct er_key key;
        const char *text;
    } cases[] = {
        {{.kind = ER_KEY_WORLD}, "/e/j/j/world"},
        {{.kind = ER_KEY_NODE, .name = "a-1"}, "/e/j/j/n/a-1"},
        {{.kind = ER_KEY_RESULT, .generation = 12, .name = "b"}, "/e/j/j/r/000000000012/b"},
        {{.kind = ER_KEY_KV, .generation = 1, .name = "x/y"}, "/e/j/kv/000000000001/x/y"},
        {{.kind = ER_KEY_OP, .generation = 1, .name = "b", .seq = 3},
         "/e/j/op/000000000001/b/000000000003"},
        {{.kind = ER_KEY_CKPT}, "/e/j/ckpt/latest"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[ER_KEY_MAX];
        struct er_key back;
        size_t n = er_key_format("/e/j/", &cases[i].key, text);

        cr_assert_str_eq(text, cases[i].text);
        er_key_parse("/e/j/", (struct er_bytes){text, n}, &back);
        cr_assert_eq(back.kind, cases[i].key.kind);
        cr_assert_eq(back.generation, cases[i].key.generation);
        cr_assert_str_eq(back.name, cases[i].key.name);
        cr_assert_eq(back.seq, cases[i].key.seq);
    }
}

Test(codec, foreign_and_malformed_keys_are_other)
{
    static const char *const bad[] = {
        "/e/k/j/world",
        "/e/j/j/worlds",
        "/e/j/j/n/",
        "/e/j/n/a",
        "/e/j/j/r/12/b",
        "/e/j/j/n/a/b",
        "/e/j/j/r/00000000001x/b",
        "/e/j/",
        "/e/j/op/000000000001/b",
        "/e/j/spec-nexu",
        "/e/j/j/r/000000000012",
        "/e/j/j/r/000000000012/",
    };
    struct er_key key;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        er_key_parse("/e/j/", (struct er_bytes){bad[i], strlen(bad[i])}, &key);
        cr_assert_eq(key.kind, ER_KEY_OTHER, "%s", bad[i]);
    }
}
