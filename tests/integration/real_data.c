/*
 * Every strategy learns real data: the loss falls on Fashion-MNIST (DDP, DP, parameter servers with
 * several bounds) and on a text that every Debian has (DDP and FSDP).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pool.h"
#include "examples/fashion_data.h"
#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"
#include "trainer/dp.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"

enum { ROWS = 256, STEPS = 40, DEVICES = 2, ARGS_MAX = 32 };

static char root[ER_TEST_PATH_MAX];

static void need_images(void)
{
    if (access(FASHION_DIR, F_OK) < 0)
        er_tap_skip("no " FASHION_DIR);
    er_test_tempdir(root);
}

/* Mean of the losses in lines [from, to) of those that tell one; -1: so many there are not. */
static double mean_loss(const char *out, int from, int to)
{
    double sum = 0;
    int n = 0;

    for (const char *at = out; (at = strstr(at, "\nstep")) != NULL; n++) {
        const char *loss = strstr(++at, "loss");

        if (loss && n >= from && n < to)
            sum += strtod(loss + 5, NULL); /* "loss 0.5" or "loss=0.5" */
    }
    return n >= to ? sum / (to - from) : -1;
}

/* `program` on two workers, a line a step: the mean loss of steps `late` on is below `share` of the
 * first ten's. */
static void expect_learns(const char *program, const char *const more[], int late, double share)
{
    const char *argv[ARGS_MAX] = {er_test_bin("elastic-run"), "--nproc-per-node", "2",
                                  er_test_bin(program), "--log-steps=1"};
    struct er_test_proc p;
    double first, last;
    int n = 5;

    for (int i = 0; more[i]; i++)
        argv[n++] = more[i];
    if (!er_tap_check(er_test_run(&p, argv, NULL, 2 * ER_TEST_DEADLINE_MS) == 0))
        er_tap_note("%s", er_test_err(&p));
    first = mean_loss(er_test_out(&p), 0, 10);
    last = mean_loss(er_test_out(&p), late, late + 10);
    if (!er_tap_check(first > 0 && last > 0 && last < share * first))
        er_tap_note("%s: loss %g, then %g", program, first, last);
    er_test_done(&p);
}

static void ddp_learns_images(void)
{
    char cache[ER_TEST_PATH_MAX + 16];

    need_images();
    snprintf(cache, sizeof(cache), "--cache=%s", root);
    expect_learns("examples/fashion_mnist", (const char *[]){cache, "--epochs=1", NULL}, 200, 0.5);
    er_test_rmtree(root);
}

/* They tell a line an epoch: what their last one's loss is. */
static void parameter_servers_learn_images(void)
{
    static const char *const bounds[] = {"0", "4", "1000000"};
    char cache[ER_TEST_PATH_MAX + 16], bound[32];

    need_images();
    snprintf(cache, sizeof(cache), "--cache=%s", root);
    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++) {
        const char *argv[] = {er_test_bin("elastic-run"),
                              "--nproc-per-node",
                              "2",
                              er_test_bin("examples/fashion_mnist"),
                              cache,
                              "--epochs=1",
                              "--ps",
                              bound,
                              NULL};
        struct er_test_proc p;
        const char *at;

        snprintf(bound, sizeof(bound), "--staleness=%s", bounds[i]);
        er_tap_check(er_test_run(&p, argv, NULL, 2 * ER_TEST_DEADLINE_MS) == 0);
        at = strstr(er_test_out(&p), "\naccuracy=");
        if (!er_tap_check(at && strtod(at + 10, NULL) > 0.7))
            er_tap_note("%s: %s", bound, er_test_out(&p));
        er_test_done(&p);
    }
    er_test_rmtree(root);
}

static void learn_text(const char *how)
{
    expect_learns("examples/gpt",
                  (const char *[]){"--text=/usr/share/common-licenses/GPL-3", "--layers=1",
                                   "--width=64", "--heads=2", "--context=64", "--batch=16",
                                   "--epochs=2", how, NULL},
                  50, 0.8);
}

static void ddp_learns_a_text(void)
{
    learn_text(NULL);
}

static void fsdp_learns_a_text(void)
{
    learn_text("--fsdp");
}

/* ---- one process, two devices ---- */

struct model {
    struct er_flat_param table[2];
    struct er_flat flat;
    float images[ROWS * FASHION_PIXELS];
    int32_t labels[ROWS];
};

static int classify(void *user, const struct er_dp_part *part, struct er_loss *ret,
                    struct er_error *err)
{
    struct er_shape shape = er_shape_2d(part->samples, FASHION_PIXELS);
    struct er_tensor *x, *loss;
    int rc = er_tape_begin(part->tape, err);

    ret->weight = (double)part->samples;
    if (rc == 0)
        rc = er_tape_input(part->tape, "images", &shape, part->in[0], &x, err);
    if (rc == 0)
        rc = er_linear(part->tape, x, er_tape_param(part->tape, 0), er_tape_param(part->tape, 1),
                       &x, err);
    if (rc == 0)
        rc = er_cross_entropy(part->tape, x, part->in[1], &ret->sum, &loss, err);
    return rc < 0 ? rc : er_tape_backward(part->tape, loss, err);
}

static struct er_pool *open_model(struct model *m)
{
    struct er_shape weight = er_shape_2d(FASHION_CLASSES, FASHION_PIXELS);
    struct er_shape bias = er_shape_1d(FASHION_CLASSES);
    struct er_pool *pool;

    er_tap_require(er_matmul_setup(NULL) == 0);
    er_flat_init(&m->flat, m->table, 2, er_optim_state_names(ER_OPTIM_ADAMW), 2);
    er_tap_require(er_flat_add(&m->flat, "weight", &weight, NULL, NULL) == 0);
    er_tap_require(er_flat_add(&m->flat, "bias", &bias, NULL, NULL) == 0);
    er_tap_require(er_pool_new(&pool, er_flat_bytes(&m->flat), NULL) == 0);
    er_flat_bind(&m->flat, er_pool_alloc(pool, er_flat_bytes(&m->flat), ER_FLAT_ALIGN));
    return pool;
}

static double step(struct model *m, struct er_dp *dp, const struct fashion_part *part, uint64_t t)
{
    const struct er_dp_input in[] = {{m->images, FASHION_PIXELS * sizeof(float)},
                                     {m->labels, sizeof(int32_t)}};
    const struct er_optim optim = er_optim_adamw();
    struct er_optim_view view = er_optim_view_flat(&m->flat);
    struct er_error err = ER_ERROR_INIT;
    struct er_loss loss = {0};

    for (size_t i = 0; i < ROWS; i++) {
        size_t sample = (t * ROWS + i) % part->count;

        for (size_t j = 0; j < FASHION_PIXELS; j++)
            m->images[i * FASHION_PIXELS + j] =
                (float)part->images[sample * FASHION_PIXELS + j] / 255;
        m->labels[i] = part->labels[sample];
    }
    if (er_dp_step(dp, in, 2, ROWS, classify, m, &loss, &err) < 0)
        er_tap_note("%s", err.text);
    er_optim_apply(&optim, &view, t + 1, 1e-3, 1 / loss.weight);
    return loss.sum / loss.weight;
}

static void dp_learns_images(void)
{
    static struct model m;
    struct fashion_data data = {0};
    struct er_error err = ER_ERROR_INIT;
    struct er_pool *pool;
    struct er_dp *dp;
    double first = 0, last = 0;

    need_images();
    er_tap_require(fashion_open(&data, NULL, root, &err) == 0);
    pool = open_model(&m);
    er_tap_require(er_dp_open(&dp, &m.flat, &(struct er_dp_opts){.devices = DEVICES}, &err) == 0);
    for (uint64_t t = 0; t < STEPS; t++) {
        last = step(&m, dp, &data.train, t);
        first = t == 0 ? last : first;
    }
    if (!er_tap_check(last < 0.6 * first))
        er_tap_note("loss %g, then %g", first, last);
    er_dp_close(dp);
    er_pool_free(pool);
    fashion_close(&data);
    er_test_rmtree(root);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"ddp_learns_images", ddp_learns_images, 240},
        {"dp_learns_images", dp_learns_images, 240},
        {"parameter_servers_learn_images", parameter_servers_learn_images, 240},
        {"ddp_learns_a_text", ddp_learns_a_text, 240},
        {"fsdp_learns_a_text", fsdp_learns_a_text, 240},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
