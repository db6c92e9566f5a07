/*
 * FSDP on real communicators: the same parameters as DDP, bit for bit, at every world size, with
 * either strategy; checkpoints that load at other world sizes and into DDP; memory within its
 * bound; a model that does not keep to the order of its units is told so.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "trainer/fsdp.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/train.h"

/* A residual network with output weights tied to those of the input: W x, layers, W' x. */
enum {
    WIDTH = 12,
    LAYERS = 4,
    PARAMS = 1 + 2 * LAYERS + 1,
    UNITS = LAYERS + 2,
    RANKS_MAX = 8,
    BATCH = 24,
    SAMPLES = 100, /* the last step of an epoch has 4 samples: some ranks have none */
    EPOCHS = 2,
    ELEMENTS_MAX = 4096
};

enum strategy { DDP, FULL, GRAD_OPTIM, STRATEGIES };

struct test {
    enum strategy strategy;
    uint32_t passes;
    bool disordered; /* layer 2 comes before layer 1 */
    char dir[ER_TEST_PATH_MAX];
    uint64_t epochs;
    int rcs[RANKS_MAX];
    char text[ER_ERROR_TEXT_MAX]; /* of rank 0 */
    size_t bytes, bound;          /* of rank 0 */
    uint64_t resumed_from;
    float values[ELEMENTS_MAX]; /* all parameters, one after another, at the end */
    double norm2;               /* of the last step */
};

static struct test *test; /* shared by the ranks */

struct model {
    struct er_pool *pool;
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_span spans[PARAMS];
    struct er_slice slices[3 * PARAMS];
    size_t slices_n;
    struct er_fsdp *fsdp;
    struct er_tape *tape;
    struct er_optim optim;
    struct er_ddp *ddp; /* of the pass that runs */
    float images[BATCH * WIDTH];
    int32_t labels[BATCH];
};

/* The part of libelastic that the fake world leaves to its users. */
int er_commit(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    return 0;
}

int er_loaded(struct er_ctx *ctx, uint64_t step, const char *path, const char *source,
              const char *skipped, struct er_error *err)
{
    return 0;
}

static float noise(uint64_t a, uint32_t op, uint64_t i)
{
    return (float)((double)(er_rng(4, a, op, i) >> 11) * 0x1p-52 - 1.0);
}

static void on_gradient(void *user, size_t param)
{
    struct model *m = user;

    if (m->ddp)
        er_ddp_ready(m->ddp, param);
}

static void first_values(void *user, size_t param, float *value)
{
    struct model *m = user;
    bool is_matrix = m->table[param].shape.ndim == 2;

    for (size_t i = 0; i < m->table[param].count; i++)
        value[i] = is_matrix ? 0.4f * noise(param, 1, i) : 0;
}

static void open_model(struct model *m)
{
    static char names[PARAMS][16];
    struct er_shape square = er_shape_2d(WIDTH, WIDTH), vector = er_shape_1d(WIDTH);
    struct er_error err = ER_ERROR_INIT;

    er_tap_require(er_matmul_setup(&err) == 0);
    m->optim = er_optim_adamw();
    er_flat_init(&m->flat, m->table, PARAMS, er_optim_state_names(m->optim.kind), 2);
    for (size_t p = 0; p < PARAMS; p++) {
        snprintf(names[p], sizeof(names[p]), "p%zu", p);
        er_tap_require(er_flat_add(&m->flat, names[p],
                                   p == 0 || (p % 2 && p + 1 < PARAMS) ? &square : &vector, NULL,
                                   &err) == 0);
    }
    if (test->strategy == DDP) {
        er_tap_require(er_pool_new(&m->pool, er_flat_bytes(&m->flat), &err) == 0);
        er_flat_bind(&m->flat, er_pool_alloc(m->pool, er_flat_bytes(&m->flat), ER_FLAT_ALIGN));
        er_flat_spans(&m->flat, ER_FLAT_GRAD, m->spans);
        m->slices_n = er_flat_slices(&m->flat, m->slices);
        for (size_t p = 0; p < PARAMS; p++)
            first_values(m, p, er_flat_at(&m->flat, ER_FLAT_VALUE, p));
    }
    er_tap_require(er_tape_new(&m->tape, &m->flat, 0, &err) == 0);
    er_tape_hook(m->tape, on_gradient, m);
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->spans;
    *ret_n = PARAMS;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->slices;
    *ret_n = ((struct model *)user)->slices_n;
}

/* 4 bytes each of value, gradient and two states a rank; values and gradients of two units, and of
 * the one that stays. */
static size_t bound(const struct er_flat *flat, int size)
{
    size_t line = ER_FLAT_ALIGN * (size_t)size, slack = UNITS * 4 * line;
    size_t layer = (WIDTH * WIDTH + WIDTH) * sizeof(float) + 2 * line;

    return 16 * flat->total / (size_t)size + slack + 2 * (2 * layer) + 2 * layer;
}

static int shard(void *user, struct er_comm *comm, struct er_fsdp **ret, struct er_error *err)
{
    struct er_fsdp_unit units[UNITS] = {{.name = "tied", .params_n = 1, .keep = true}};
    const struct er_fsdp_opts opts = {
        .strategy = test->strategy == FULL ? ER_FSDP_FULL : ER_FSDP_GRAD_OPTIM,
        .passes = test->passes,
        .norm2 = true,
        .count_nonfinite = true,
    };
    struct model *m = user;
    int rc;

    for (size_t i = 0; i < LAYERS; i++)
        units[1 + i] = (struct er_fsdp_unit){
            .name = i ? i > 1 ? i > 2 ? "d" : "c" : "b" : "a", .first = 1 + 2 * i, .params_n = 2};
    units[UNITS - 1] = (struct er_fsdp_unit){.name = "norm", .first = PARAMS - 1, .params_n = 1};
    rc = er_fsdp_open(&m->fsdp, comm, &m->flat, units, UNITS, &opts, err);
    if (rc < 0)
        return rc;
    er_fsdp_attach(m->fsdp, m->tape);
    m->slices_n = er_fsdp_slices(m->fsdp, m->slices);
    test->bytes = er_fsdp_bytes(m->fsdp);
    test->bound = bound(&m->flat, er_comm_size(comm));
    *ret = m->fsdp;
    return er_fsdp_fill(m->fsdp, first_values, m, err);
}

static int layer(struct model *m, size_t i, struct er_tensor **x, struct er_error *err)
{
    struct er_tensor *h;
    int rc = er_linear(m->tape, *x, er_tape_param(m->tape, 1 + 2 * i),
                       er_tape_param(m->tape, 2 + 2 * i), &h, err);

    if (rc == 0)
        rc = er_gelu(m->tape, h, &h, err);
    return rc < 0 ? rc : er_add(m->tape, *x, h, x, err);
}

static int forward(struct model *m, uint64_t count, double *sum, struct er_tensor **ret,
                   struct er_error *err)
{
    struct er_tensor *x, *tied = er_tape_param(m->tape, 0);
    struct er_shape shape = er_shape_2d(count, WIDTH);
    int rc = er_tape_input(m->tape, "images", &shape, m->images, &x, err);

    if (rc == 0)
        rc = er_linear(m->tape, x, tied, NULL, &x, err);
    for (size_t i = 0; i < LAYERS && rc == 0; i++)
        rc = layer(m, test->disordered && (i == 1 || i == 2) ? 3 - i : i, &x, err);
    if (rc == 0)
        rc = er_rms_norm(m->tape, x, er_tape_param(m->tape, PARAMS - 1), 1e-5f, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, tied, NULL, &x, err);
    return rc < 0 ? rc : er_cross_entropy(m->tape, x, m->labels, sum, ret, err);
}

static int pass(struct model *m, uint64_t first, uint64_t count, struct er_loss *loss,
                struct er_error *err)
{
    struct er_tensor *total;
    double sum = 0;
    int rc = er_tape_begin(m->tape, err);

    if (rc < 0 || count == 0)
        return rc;
    for (uint64_t s = 0; s < count; s++) {
        for (uint64_t i = 0; i < WIDTH; i++)
            m->images[s * WIDTH + i] = noise(first + s, 2, i);
        m->labels[s] = (int32_t)(er_rng(4, first + s, 3, 0) % WIDTH);
    }
    rc = forward(m, count, &sum, &total, err);
    if (rc == 0)
        rc = er_tape_backward(m->tape, total, err);
    loss->sum += sum;
    loss->weight += (double)count;
    return rc;
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct model *m = user;
    uint64_t first = step->range.first, left = step->range.count;
    uint64_t passes = test->passes ? test->passes : 1;
    int rc = 0;

    *ret = (struct er_loss){0};
    for (uint64_t i = 0; i < passes && rc == 0; i++) {
        uint64_t count = left / (passes - i);

        /* Gradients leave once they are whole. */
        m->ddp = i + 1 == passes ? step->ddp : NULL;
        rc = pass(m, first, count, ret, err);
        first += count;
        left -= count;
    }
    return rc;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct model *m = user;
    struct er_optim_view view =
        test->strategy == DDP ? er_optim_view_flat(&m->flat) : er_fsdp_view(m->fsdp);

    test->norm2 = vote->norm2;
    er_optim_apply(&m->optim, &view, step, 1e-2, 1.0 / vote->weight);
    return 0;
}

/* Every rank writes its pieces of the values. */
static void note_values(const struct model *m)
{
    for (size_t i = 0; i < m->slices_n; i++) {
        const struct er_slice *s = &m->slices[i];

        if (s->name[0] == 'p') {
            const struct er_flat_param *param = &m->table[atoi(s->name + 1)];

            memcpy(test->values + param->first + s->offset, s->data, s->count * sizeof(float));
        }
    }
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    const bool is_ddp = test->strategy == DDP;
    const struct er_train_ops ops = {grads, apply, is_ddp ? spans : NULL,
                                     state, NULL,  is_ddp ? NULL : shard};
    const struct er_train_opts opts = {
        .plan = {.samples = SAMPLES, .global_batch = BATCH},
        .epochs = test->epochs ? test->epochs : EPOCHS,
        .checkpoint_dir = test->dir,
        .ddp = {.norm2 = true},
    };
    static struct model m;
    struct er_error err = ER_ERROR_INIT;
    struct er_train_result result = {0};
    int rank = er_world(ctx)->rank;

    open_model(&m);
    test->rcs[rank] = er_train_run(ctx, &ops, &m, &opts, &result, &err);
    if (rank == 0) {
        snprintf(test->text, sizeof(test->text), "%s", err.text);
        test->resumed_from = result.resumed_from;
    }
    if (test->rcs[rank] == 0)
        note_values(&m);
    er_tape_free(m.tape);
    er_fsdp_close(m.fsdp);
    er_pool_free(m.pool);
    return 0;
}

static void set_up(void)
{
    test = er_ranks_shared(sizeof(*test));
}

/* `ret` (ELEMENTS_MAX): the parameters at the end; all ranks must succeed. */
static void train(int size, enum strategy strategy, uint32_t passes, float *ret)
{
    test->strategy = strategy;
    test->passes = passes;
    memset(test->values, 0, sizeof(test->values));
    er_ranks_run(size, rank_main, NULL, NULL);
    for (int rank = 0; rank < size; rank++) {
        if (!er_tap_check(test->rcs[rank] == 0))
            er_tap_note("%d ranks, strategy %d, rank %d: %s", size, (int)strategy, rank,
                        test->text);
    }
    memcpy(ret, test->values, sizeof(test->values));
}

static void the_same_bits_as_ddp(void)
{
    static const int sizes[] = {1, 2, 3, 5, 8};
    static float want[ELEMENTS_MAX], got[ELEMENTS_MAX];

    set_up();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        double norm2;

        train(sizes[i], DDP, 0, want);
        norm2 = test->norm2;
        for (enum strategy s = FULL; s < STRATEGIES; s++) {
            train(sizes[i], s, 0, got);
            if (!er_tap_check(memcmp(want, got, sizeof(want)) == 0))
                er_tap_note("%d ranks, strategy %d", sizes[i], (int)s);
            er_tap_check(test->norm2 > 0.999999 * norm2 && test->norm2 < 1.000001 * norm2);
        }
    }
}

static bool near(const float *a, const float *b)
{
    float most = 0;

    for (size_t i = 0; i < ELEMENTS_MAX; i++)
        most = fmaxf(most, fabsf(a[i] - b[i]));
    if (most > 1e-4f)
        er_tap_note("parameters differ by up to %g", (double)most);
    return most <= 1e-4f;
}

/* Sums are made in another order: over ranks first, then over passes. */
static void passes_of_a_step_add_up(void)
{
    static float want[ELEMENTS_MAX], got[ELEMENTS_MAX];

    set_up();
    train(3, DDP, 3, want);
    for (enum strategy s = FULL; s < STRATEGIES; s++) {
        train(3, s, 3, got);
        er_tap_check(near(want, got));
    }
}

/* Each row: one epoch at the first size and strategy, another one from its checkpoint. */
static void checkpoints_load_anywhere(void)
{
    static const struct {
        int size, then;
        enum strategy strategy, then_strategy;
    } rows[] = {{2, 3, FULL, FULL}, {3, 2, FULL, FULL},       {3, 2, FULL, DDP},
                {2, 3, DDP, FULL},  {4, 1, GRAD_OPTIM, FULL}, {1, 5, DDP, GRAD_OPTIM}};
    static float saved[ELEMENTS_MAX], want[ELEMENTS_MAX], got[ELEMENTS_MAX];

    set_up();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        er_test_tempdir(test->dir);
        test->epochs = 1;
        train(rows[i].size, rows[i].strategy, 0, saved);
        /* Nothing is left to do: what is loaded is what was saved. */
        train(rows[i].then, rows[i].then_strategy, 0, got);
        er_tap_check(test->resumed_from > 0 && memcmp(saved, got, sizeof(saved)) == 0);
        /* And a step from there is the same step, whoever holds the state. */
        test->epochs = 2;
        train(rows[i].then, rows[i].then_strategy, 0, got);
        er_test_rmtree(test->dir);
        er_test_tempdir(test->dir);
        test->epochs = 1;
        train(rows[i].size, rows[i].strategy, 0, saved);
        test->epochs = 2;
        train(rows[i].then, DDP, 0, want);
        if (!er_tap_check(memcmp(want, got, sizeof(want)) == 0))
            er_tap_note("row %zu", i);
        er_test_rmtree(test->dir);
        test->dir[0] = '\0';
    }
}

static void memory_is_within_its_bound(void)
{
    static float got[ELEMENTS_MAX];

    set_up();
    for (int size = 1; size <= 4; size++) {
        train(size, FULL, 0, got);
        if (!er_tap_check(test->bytes <= test->bound))
            er_tap_note("%d ranks: %zu bytes, bound %zu", size, test->bytes, test->bound);
    }
}

static void units_out_of_order_are_refused(void)
{
    set_up();
    test->strategy = FULL;
    test->disordered = true;
    er_ranks_run(2, rank_main, NULL, NULL);
    er_tap_check(test->rcs[0] == ER_E_USAGE && test->rcs[1] == ER_E_USAGE);
    if (!er_tap_check(strstr(test->text, "unit 'b' is used after 'c'")))
        er_tap_note("%s", test->text);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"the_same_bits_as_ddp", the_same_bits_as_ddp, 0},
        {"passes_of_a_step_add_up", passes_of_a_step_add_up, 0},
        {"checkpoints_load_anywhere", checkpoints_load_anywhere, 0},
        {"memory_is_within_its_bound", memory_is_within_its_bound, 0},
        {"units_out_of_order_are_refused", units_out_of_order_are_refused, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
