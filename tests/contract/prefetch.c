/* Batches made ahead by threads: the right ones, in any order of steps, and never in the way. */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/rand.h"
#include "tests/lib/tap.h"
#include "trainer/prefetch.h"

enum { WORDS = 1000 };

struct source {
    _Atomic uint64_t made;
    uint64_t bad_step;
    _Atomic int inside, most; /* decoders at the same time */
};

static uint64_t word(uint64_t step, uint64_t i)
{
    return er_rand_mix(step * WORDS + i);
}

static int fill(void *user, uint64_t step, void *memory, struct er_error *err)
{
    struct source *source = user;
    uint64_t *words = memory;

    source->made++;
    if (step == source->bad_step)
        return er_error_set(err, -EIO, "a sector is gone");
    for (uint64_t i = 0; i < WORDS; i++)
        words[i] = word(step, i);
    return 0;
}

static bool right(const void *batch, uint64_t step)
{
    const uint64_t *words = batch;

    for (uint64_t i = 0; i < WORDS; i++) {
        if (words[i] != word(step, i))
            return false;
    }
    return true;
}

/* Batches of decoders have as many samples as words, some none. */
static uint64_t samples_of(void *user, uint64_t step)
{
    return step % 7 == 0 ? 0 : WORDS / (1 + step % 3);
}

static int decode(void *user, uint64_t step, uint64_t i, void *memory, struct er_error *err)
{
    struct source *source = user;
    int inside = atomic_fetch_add(&source->inside, 1) + 1, most = source->most;

    while (inside > most && !atomic_compare_exchange_weak(&source->most, &most, inside))
        ;
    source->made++;
    if (step == source->bad_step && i == 5) {
        atomic_fetch_sub(&source->inside, 1);
        return er_error_set(err, -EIO, "sample %lu is torn", (unsigned long)i);
    }
    ((uint64_t *)memory)[i] = word(step, i);
    atomic_fetch_sub(&source->inside, 1);
    return 0;
}

static struct er_prefetch *open_decoders(struct source *source, uint32_t threads, uint32_t ahead)
{
    const struct er_prefetch_opts opts = {.decode = decode,
                                          .count = samples_of,
                                          .user = source,
                                          .bytes = WORDS * sizeof(uint64_t),
                                          .threads = threads,
                                          .ahead = ahead,
                                          .last_step = 1000};
    struct er_prefetch *prefetch = NULL;

    er_tap_require(er_prefetch_open(&prefetch, &opts, 1, NULL) == 0);
    return prefetch;
}

static bool decoded_right(const uint64_t *batch, uint64_t step)
{
    for (uint64_t i = 0; i < samples_of(NULL, step); i++) {
        if (batch[i] != word(step, i))
            return false;
    }
    return true;
}

static void decoders_share_the_samples_of_a_batch(void)
{
    for (uint32_t threads = 1; threads <= 8; threads *= 2) {
        struct source source = {0};
        struct er_prefetch *prefetch = open_decoders(&source, threads, 2);
        uint64_t samples = 0;
        void *batch;
        int wrong = 0;

        for (uint64_t step = 1; step <= 50; step++) {
            samples += samples_of(NULL, step);
            wrong +=
                er_prefetch_get(prefetch, step, &batch, NULL) != 0 || !decoded_right(batch, step);
        }
        er_prefetch_close(prefetch);
        er_tap_check(wrong == 0);
        er_tap_check(source.made >= samples && source.most <= (int)threads);
    }
}

static void decoders_follow_any_order_of_steps(void)
{
    struct source source = {0};
    struct er_prefetch *prefetch = open_decoders(&source, 4, 3);
    struct er_rand rand;
    uint64_t step = 1;
    void *batch;
    int wrong = 0;

    er_rand_init(&rand, 2);
    for (int i = 0; i < 300; i++) {
        step = er_rand_below(&rand, 4) == 0 ? 1 + er_rand_below(&rand, 1000)
                                            : (step < 1000 ? step + 1 : 1);
        wrong += er_prefetch_get(prefetch, step, &batch, NULL) != 0 || !decoded_right(batch, step);
    }
    er_tap_check(wrong == 0);
    er_prefetch_close(prefetch);
}

static void a_sample_that_cannot_be_decoded_fails_its_batch(void)
{
    struct source source = {.bad_step = 3};
    struct er_prefetch *prefetch = open_decoders(&source, 3, 2);
    struct er_error err = ER_ERROR_INIT;
    void *batch;

    for (uint64_t step = 1; step <= 10; step++)
        er_tap_check(er_prefetch_get(prefetch, step, &batch, &err) == (step == 3 ? -EIO : 0));
    er_tap_check(strcmp(err.text, "batch of step 3: sample 5 is torn") == 0);
    er_prefetch_close(prefetch);
}

static struct er_prefetch *open_loader(struct source *source, uint32_t threads, uint32_t ahead,
                                       uint64_t last)
{
    const struct er_prefetch_opts opts = {.fill = fill,
                                          .user = source,
                                          .bytes = WORDS * sizeof(uint64_t),
                                          .threads = threads,
                                          .ahead = ahead,
                                          .last_step = last};
    struct er_prefetch *prefetch = NULL;

    er_tap_require(er_prefetch_open(&prefetch, &opts, 1, NULL) == 0);
    return prefetch;
}

static void batches_come_in_order_whatever_the_threads(void)
{
    for (uint32_t threads = 1; threads <= 8; threads *= 2) {
        for (uint32_t ahead = 0; ahead <= 5; ahead++) {
            struct source source = {0};
            struct er_prefetch *prefetch = open_loader(&source, threads, ahead, 100);
            void *batch;
            int wrong = 0;

            for (uint64_t step = 1; step <= 100; step++)
                wrong += er_prefetch_get(prefetch, step, &batch, NULL) != 0 || !right(batch, step);
            er_tap_check(wrong == 0);
            er_tap_check(er_prefetch_get(prefetch, 101, &batch, NULL) == ER_E_USAGE);
            er_tap_check(er_prefetch_stats(prefetch).got == 100 && source.made == 100);
            er_prefetch_close(prefetch);
        }
    }
}

/* Resumes and repetitions: any step may come next. */
static void any_order_of_steps_is_served(void)
{
    struct source source = {0};
    struct er_prefetch *prefetch = open_loader(&source, 3, 4, 1000);
    struct er_rand rand;
    uint64_t step = 1;
    void *batch;
    int wrong = 0;

    er_rand_init(&rand, 1);
    for (int i = 0; i < 3000; i++) {
        step = er_rand_below(&rand, 5) == 0 ? 1 + er_rand_below(&rand, 1000)
                                            : (step < 1000 ? step + 1 : 1);
        wrong += er_prefetch_get(prefetch, step, &batch, NULL) != 0 || !right(batch, step);
    }
    er_tap_check(wrong == 0);
    er_tap_check(er_prefetch_stats(prefetch).dropped > 0);
    er_prefetch_close(prefetch);
}

static void a_failure_is_told_with_its_step(void)
{
    struct source source = {.bad_step = 3};
    struct er_prefetch *prefetch = open_loader(&source, 2, 2, 10);
    struct er_error err = ER_ERROR_INIT;
    void *batch;

    for (uint64_t step = 1; step <= 10; step++) {
        int rc = er_prefetch_get(prefetch, step, &batch, &err);

        er_tap_check(rc == (step == 3 ? -EIO : 0));
    }
    er_tap_check(strcmp(err.text, "batch of step 3: a sector is gone") == 0);
    er_prefetch_close(prefetch);
}

/* No more than it was told to, and it stops when it is closed. */
static void it_makes_only_so_many_ahead(void)
{
    struct source source = {0};
    struct er_prefetch *prefetch = open_loader(&source, 2, 3, 1000000);
    void *batch;

    for (uint64_t step = 1; step <= 5; step++)
        er_tap_require(er_prefetch_get(prefetch, step, &batch, NULL) == 0);
    er_prefetch_close(prefetch);
    er_tap_check(source.made >= 5 && source.made <= 5 + 1 + 3);
}

static void bad_options_are_refused(void)
{
    struct er_prefetch *prefetch;
    struct source source = {0};
    struct er_prefetch_opts opts = {.fill = fill, .user = &source, .bytes = 8, .last_step = 1};
    struct er_error err = ER_ERROR_INIT;

    opts.threads = ER_PREFETCH_THREADS_MAX + 1;
    er_tap_check(er_prefetch_open(&prefetch, &opts, 1, &err) == ER_E_USAGE);
    opts.threads = 1;
    opts.bytes = 0;
    er_tap_check(er_prefetch_open(&prefetch, &opts, 1, &err) == ER_E_USAGE);
    opts.bytes = 8;
    opts.decode = decode;
    er_tap_check(er_prefetch_open(&prefetch, &opts, 1, &err) == ER_E_USAGE);
    opts.fill = NULL; /* and nobody counts */
    er_tap_check(er_prefetch_open(&prefetch, &opts, 1, &err) == ER_E_USAGE);
    opts.count = samples_of;
    opts.bytes = SIZE_MAX / 2;
    er_tap_check(er_prefetch_open(&prefetch, &opts, 1, &err) == -ENOMEM);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"batches_come_in_order_whatever_the_threads", batches_come_in_order_whatever_the_threads,
         0},
        {"any_order_of_steps_is_served", any_order_of_steps_is_served, 0},
        {"a_failure_is_told_with_its_step", a_failure_is_told_with_its_step, 0},
        {"it_makes_only_so_many_ahead", it_makes_only_so_many_ahead, 0},
        {"decoders_share_the_samples_of_a_batch", decoders_share_the_samples_of_a_batch, 0},
        {"decoders_follow_any_order_of_steps", decoders_follow_any_order_of_steps, 0},
        {"a_sample_that_cannot_be_decoded_fails_its_batch",
         a_sample_that_cannot_be_decoded_fails_its_batch, 0},
        {"bad_options_are_refused", bad_options_are_refused, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
