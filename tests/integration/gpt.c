/* The language model as a program of its own and as a job, on a text that the test makes. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"

enum { ARGS_MAX = 24, WORDS = 700 };

static char root[ER_TEST_PATH_MAX], text_path[ER_TEST_PATH_MAX + 32];

/* Sentences of a few words in changing order: far from random, and not one repeated line. */
static void make_text(void)
{
    static const char *const words[] = {"the cat ", "sat on ", "a red mat ", "and then ",
                                        "slept. "};
    static char text[WORDS * 16];
    unsigned draw = 7;

    er_test_tempdir(root);
    snprintf(text_path, sizeof(text_path), "%s/text", root);
    text[0] = '\0';
    for (int i = 0; i < WORDS; i++) {
        draw = draw * 1103515245u + 12345u;
        strcat(text, words[(unsigned)i % 5 == 4 ? 4 : draw / 65536u % 4]);
    }
    er_test_write_file(text_path, text);
}

static void start(struct er_test_proc *p, const char *checkpoints, const char *const *more)
{
    const char *argv[ARGS_MAX] = {er_test_bin("examples/gpt"),
                                  "--text",
                                  text_path,
                                  "--layers=1",
                                  "--width=32",
                                  "--heads=2",
                                  "--context=32",
                                  "--batch=6",
                                  "--micro=4",
                                  "--epochs=3",
                                  "--lr=0.01",
                                  "--log-steps=1",
                                  "--exact-log",
                                  "--generate=60"};
    char dir_env[2 * ER_TEST_PATH_MAX] = "ELASTIC_CHECKPOINT_DIR";
    const char *env[] = {"ELASTIC_SOCKET", dir_env, NULL};
    size_t n = 14;

    for (size_t i = 0; more && more[i] && n + 1 < ARGS_MAX; i++)
        argv[n++] = more[i];
    if (checkpoints)
        snprintf(dir_env, sizeof(dir_env), "ELASTIC_CHECKPOINT_DIR=%s/%s", root, checkpoints);
    er_test_start(p, argv, env);
}

static void finish(struct er_test_proc *p)
{
    er_tap_require(er_test_wait_exit(p, ER_TEST_DEADLINE_MS));
    if (!er_tap_check(er_test_exit_code(p) == 0))
        er_tap_note("%s", er_test_err(p));
}

/* What follows `key` in the last line that has it. */
static double last_value(const struct er_test_proc *p, const char *key)
{
    const char *found = NULL;

    for (const char *at = er_test_out(p); (at = strstr(at, key)) != NULL; at++)
        found = at + strlen(key);
    er_tap_require(found);
    return strtod(found, NULL);
}

static void its_loss_falls_and_it_writes(void)
{
    struct er_test_proc p;
    const char *text;
    double first, last;

    make_text();
    start(&p, NULL, (const char *[]){"--prompt=the ", "--temperature=0", NULL});
    finish(&p);
    text = strstr(er_test_out(&p), "step=1 loss=");
    er_tap_require(text);
    first = strtod(text + strlen("step=1 loss="), NULL);
    last = last_value(&p, " held_out_loss=");
    er_tap_check(first > 5 && first < 6.2); /* log 256 is 5.55 */
    if (!er_tap_check(last < 1.2))
        er_tap_note("held out: %g", last);
    text = strstr(er_test_out(&p), "\nthe ");
    er_tap_require(text);
    er_tap_check(strstr(text, "cat ") || strstr(text, "mat ") || strstr(text, "then "));
    er_test_done(&p);
    er_test_rmtree(root);
}

/* Drops the parts of step lines that are times. */
static char *losses_from(const struct er_test_proc *p, unsigned step)
{
    char key[32], *text, *kept, *save = NULL;
    const char *at;

    snprintf(key, sizeof(key), "step=%u loss=", step);
    at = strstr(er_test_out(p), key);
    er_tap_require(at);
    text = strdup(at);
    kept = calloc(1, strlen(text) + 2);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *exact = strstr(line, " exact=");

        if (exact && strncmp(line, "step=", 5) == 0)
            strcat(kept, exact);
    }
    free(text);
    return kept;
}

static void a_killed_run_goes_on_bit_for_bit(void)
{
    static const char *const more[] = {"--epochs=12", "--checkpoint-steps=10", "--dropout=0.1",
                                       NULL};
    struct er_test_proc whole, killed, resumed;
    const char *at;
    unsigned step;
    char *want, *got;

    make_text();
    start(&whole, "whole", more);
    finish(&whole);
    start(&killed, "killed", more);
    er_tap_require(er_test_wait_out(&killed, " saved ", ER_TEST_DEADLINE_MS));
    kill(killed.pid, SIGKILL);
    er_tap_require(er_test_wait_exit(&killed, ER_TEST_DEADLINE_MS));
    start(&resumed, "killed", more);
    finish(&resumed);
    at = strstr(er_test_out(&resumed), "\nstep=");
    er_tap_require(at && sscanf(at, "\nstep=%u", &step) == 1 && step > 10);
    want = losses_from(&whole, step);
    got = losses_from(&resumed, step);
    er_tap_check(*want && strcmp(want, got) == 0);
    free(want);
    free(got);
    er_test_done(&whole);
    er_test_done(&killed);
    er_test_done(&resumed);
    er_test_rmtree(root);
}

static double job_loss; /* of the last line of a step */

static double held_out_of_job(const char *more)
{
    char path[ER_TEST_PATH_MAX + 32], job[8 * ER_TEST_PATH_MAX];
    struct er_test_proc p;
    double loss;

    snprintf(path, sizeof(path), "%s/job.yaml", root);
    snprintf(job, sizeof(job),
             "name: gpt-%d\nnproc_per_node: 2\nlog: {dir: none}\ncommand: [%s, --text, %s, "
             "--layers=1, --width=32, --heads=2, --context=32, --batch=6, --micro=4, --epochs=3, "
             "--lr=0.01, --log-steps=1, --generate=60%s]\n",
             (int)getpid(), er_test_bin("examples/gpt"), text_path, more);
    er_test_write_file(path, job);
    er_test_start(&p, (const char *[]){er_test_bin("elastic-run"), path, NULL}, NULL);
    finish(&p);
    loss = last_value(&p, " held_out_loss=");
    job_loss = last_value(&p, " loss=");
    er_test_done(&p);
    return loss;
}

/* Two workers take half of each step: the same training but for the order of sums. */
static void two_workers_train_like_one(void)
{
    static const char *const table[] = {"", ", --fsdp", ", --fsdp, --micro=1"};
    struct er_test_proc one;
    double want;

    make_text();
    start(&one, NULL, NULL);
    finish(&one);
    want = last_value(&one, " held_out_loss=");
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        double difference = held_out_of_job(table[i]) - want;

        if (!er_tap_check(difference > -0.02 && difference < 0.02))
            er_tap_note("'%s': difference %g", table[i], difference);
    }
    er_test_done(&one);
    er_test_rmtree(root);
}

/* On the double of CUDA, cuBLAS and NCCL, which the environment of this run names: the kernels of
 * the product, another order of sums. Writing needs logits from the device. */
static void workers_on_gpus_train_like_one_on_the_cpu(void)
{
    static const char *const table[] = {", --gpu", ", --gpu, --fsdp", ", --gpu, --fsdp, --micro=1"};
    struct er_test_proc one;
    double want;

    make_text();
    start(&one, NULL, NULL);
    finish(&one);
    want = last_value(&one, " held_out_loss=");
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        double difference = held_out_of_job(table[i]) - want;

        if (!er_tap_check(difference > -0.02 && difference < 0.02))
            er_tap_note("'%s': difference %g", table[i], difference);
        er_tap_check(job_loss / last_value(&one, " loss=") > 0.98);
    }
    er_test_done(&one);
    er_test_rmtree(root);
}

/* Sharded or not; the loss of float16 is scaled. Rows [from, to) of the table. */
static void train_in_16_bits(const char *where, size_t from, size_t to)
{
    static const char *const table[] = {", --dtype=bfloat16", ", --dtype=bfloat16, --fsdp",
                                        ", --dtype=float16", ", --dtype=float16, --fsdp"};
    struct er_test_proc one;
    char more[64];
    double want;

    make_text();
    start(&one, NULL, NULL);
    finish(&one);
    want = last_value(&one, " held_out_loss=");
    for (size_t i = from; i < to; i++) {
        double difference;

        snprintf(more, sizeof(more), "%s%s", where, table[i]);
        difference = held_out_of_job(more) - want;
        if (!er_tap_check(difference > -0.06 && difference < 0.06 && difference != 0))
            er_tap_note("'%s': difference %g", more, difference);
    }
    er_test_done(&one);
    er_test_rmtree(root);
}

static void sixteen_bits(void)
{
    train_in_16_bits("", 0, 4);
}

static void sixteen_bits_on_gpus(void)
{
    train_in_16_bits(", --gpu", 1, 3);
}

static void failures_are_one_line(void)
{
    static const struct {
        const char *args[3], *text;
    } table[] = {
        {{"--text=/nonexistent"}, "text '/nonexistent': No such file"},
        {{"--context=20000"}, "no two windows"},
        {{"--heads=5"}, "width 32 is not a multiple of 5 heads"},
        {{"--prompt="}, "--prompt: "},
        {{"--layers=0"}, "--layers: "},
        {{"--dtype=half"}, "--dtype: 'half', expected float32, bfloat16 or float16"},
    };
    struct er_test_proc p;

    make_text();
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const char *text;

        start(&p, NULL, table[i].args);
        er_tap_require(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
        er_tap_check(er_test_exit_code(&p) == 93);
        text = er_test_err(&p);
        if (!er_tap_check(strstr(text, table[i].text) &&
                          strchr(text, '\n') == text + strlen(text) - 1))
            er_tap_note("%s: %s", table[i].args[0], text);
        er_test_done(&p);
    }
    er_test_rmtree(root);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"its_loss_falls_and_it_writes", its_loss_falls_and_it_writes, 0},
        {"a_killed_run_goes_on_bit_for_bit", a_killed_run_goes_on_bit_for_bit, 0},
        {"two_workers_train_like_one", two_workers_train_like_one, 0},
        {"numbers_of_16_bits_train_like_float32", sixteen_bits, 0},
        {"failures_are_one_line", failures_are_one_line, 0},
    };

    static const struct er_tap_case on_gpus[] = {
        {"workers_on_gpus_train_like_one_on_the_cpu", workers_on_gpus_train_like_one_on_the_cpu, 0},
        {"numbers_of_16_bits_on_gpus_train_like_float32", sixteen_bits_on_gpus, 0},
    };

    return getenv("ER_TEST_GPU")
               ? er_tap_main(argc, argv, on_gpus, sizeof(on_gpus) / sizeof(on_gpus[0]))
               : er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
