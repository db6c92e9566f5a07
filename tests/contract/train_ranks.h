#pragma once
/* Ranks of a fake world that run the training loop on a toy model, and what each reports. */
#include "tests/lib/ranks.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/toy_model.h"
#include "trainer/scaler.h"
#include "trainer/train.h"

#define TRAIN_RANKS_MAX  4
#define TRAIN_SAMPLES    250
#define TRAIN_BATCH      48
#define TRAIN_EPOCHS     4
#define TRAIN_STEPS      24 /* 6 an epoch, the last of 10 samples */
#define TRAIN_PARAMS_MAX 512

struct train_report {
    int rc;
    char text[ER_ERROR_TEXT_MAX];
    struct er_train_result result;
    uint64_t epochs_ended, commits, failed_commits, loaded;
    uint64_t held_steps, commits_held; /* made, and asked for, while no commit was answered */
    double losses[TRAIN_STEPS + 1];
    float params[TRAIN_PARAMS_MAX];
    struct er_scaler scaler;
};

struct train_test {
    struct er_fake_world *world;
    char dir[ER_TEST_PATH_MAX];
    uint64_t checkpoint_steps, checkpoint_every_us;
    enum er_train_nonfinite nonfinite[TRAIN_RANKS_MAX];
    bool scaled[TRAIN_RANKS_MAX];
    bool beside; /* checkpoints are written beside the steps, which do not wait */
    bool refuse_commits;
    uint32_t failures_max;
    /* What happens to `rank` at `step`. */
    int (*deed)(struct er_toy *toy, const struct er_step *step, struct er_loss *loss);
    int rank;
    uint64_t step;
    struct train_report reports[TRAIN_RANKS_MAX];
};

extern struct train_test *test;     /* shared by the ranks */
extern struct train_report *report; /* this rank's */

/* A new test, in which nothing happens to anybody. */
void train_set_up(void);
/* One generation of `size` ranks. */
void train_go(int size);
/* That all ranks returned `rc`. */
void train_expect(int size, int rc);
