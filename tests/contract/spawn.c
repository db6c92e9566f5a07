/* Ranks that a program starts by itself: they find each other, and end together. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/comm.h"
#include "tests/lib/tap.h"

#define MINUTE_US 60000000ull

struct seen {
    _Atomic int done;
};

static int talk(struct er_ctx *ctx, void *arg)
{
    struct seen *seen = arg;
    const struct er_world *world = er_world(ctx);
    struct er_error err = ER_ERROR_INIT;
    char text[16] = "", key[32];
    const char *env = getenv("RANK");
    size_t n;
    int64_t sum = 0;

    if (!env || atoi(env) != world->rank || world->local_size != world->size)
        return 10;
    snprintf(key, sizeof(key), "from-%d", world->rank);
    if (er_kv_put(ctx, key, "hello", 6, &err))
        return 11;
    snprintf(key, sizeof(key), "from-%d", (world->rank + 1) % world->size);
    if (er_kv_get(ctx, key, text, sizeof(text), &n, MINUTE_US, &err) || strcmp(text, "hello") != 0)
        return 12;
    if (er_kv_add(ctx, "sum", world->rank + 1, &sum, &err))
        return 13;
    for (int i = 0; i < 3; i++) {
        if (er_barrier(ctx, "all", MINUTE_US, &err))
            return 14;
    }
    if (er_kv_add(ctx, "sum", 0, &sum, &err) || sum != world->size * (world->size + 1) / 2)
        return 15;
    if (er_kv_get(ctx, "never", text, sizeof(text), &n, 1000, &err) != 1 ||
        er_kv_get(ctx, "never", text, sizeof(text), &n, 0, &err) != 1)
        return 16;
    seen->done++;
    return 0;
}

static void ranks_have_a_store_and_barriers(void)
{
    struct seen *seen =
        mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    er_tap_require(seen != MAP_FAILED);
    for (int n = 1; n <= 8; n++) {
        struct er_error err = ER_ERROR_INIT;

        seen->done = 0;
        if (!er_tap_check(er_spawn(talk, seen, n, &err) == 0))
            er_tap_note("%d ranks: %s", n, err.text);
        er_tap_check(seen->done == n);
    }
}

static int reduce(struct er_ctx *ctx, void *arg)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_op *op;
    float one = 1;
    int rc = er_comm_open(&comm, ctx, NULL, &err);

    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0)
        rc = er_all_reduce(comm, &one, 1, ER_F32, ER_SUM, &op, &err);
    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, &err);
    er_comm_abort(comm);
    return rc != 0 || one != (float)er_world(ctx)->size;
}

static void ranks_have_communicators(void)
{
    struct er_error err = ER_ERROR_INIT;

    er_tap_check(er_spawn(reduce, NULL, 3, &err) == 0);
    er_tap_check(er_spawn(reduce, NULL, 3, &err) == 0); /* and again */
}

/* Rank 1 fails while the others are in a collective that can never complete. */
static int fail_one(struct er_ctx *ctx, void *arg)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    int rc = er_comm_open(&comm, ctx, NULL, &err);

    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0 && er_world(ctx)->rank == 1) {
        er_fail(ctx, "the disk is on fire");
        _exit(3);
    }
    if (rc == 0)
        rc = er_comm_barrier(comm, &err);
    er_comm_abort(comm);
    return rc != 0;
}

static void the_first_failure_is_named_and_ends_the_others(void)
{
    struct er_error err = ER_ERROR_INIT;

    er_tap_check(er_spawn(fail_one, NULL, 4, &err) == -ECHILD);
    if (!er_tap_check(strcmp(err.text, "rank 1 ended with exit code 3: the disk is on fire") == 0))
        er_tap_note("%s", err.text);
    er_tap_check(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

/* One dies by a signal; the others do not listen to anything. */
static int hang(struct er_ctx *ctx, void *arg)
{
    if (er_world(ctx)->rank == 0)
        raise(SIGKILL);
    signal(SIGTERM, SIG_IGN);
    while (pause() < 0)
        continue;
    return 0;
}

static void deaf_ranks_are_killed(void)
{
    struct er_error err = ER_ERROR_INIT;

    er_tap_check(er_spawn(hang, NULL, 3, &err) == -ECHILD);
    er_tap_check(strstr(err.text, "rank 0 was ended by signal 9"));
    er_tap_check(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD);
}

/* A rank that gives up waiting has not arrived. */
static int impatient(struct er_ctx *ctx, void *arg)
{
    struct er_error err = ER_ERROR_INIT;

    if (er_world(ctx)->rank == 0 && er_barrier(ctx, "b", 1000, &err) != -ETIMEDOUT)
        return 1;
    if (er_kv_put(ctx, er_world(ctx)->rank ? "x" : "gave up", "", 0, &err))
        return 2;
    if (er_kv_get(ctx, "gave up", NULL, 0, NULL, MINUTE_US, &err))
        return 3;
    return er_barrier(ctx, "b", MINUTE_US, &err) ? 4 : 0;
}

static void barriers_can_be_given_up(void)
{
    struct er_error err = ER_ERROR_INIT;

    if (!er_tap_check(er_spawn(impatient, NULL, 3, &err) == 0))
        er_tap_note("%s", err.text);
}

static int nothing(struct er_ctx *ctx, void *arg)
{
    return 0;
}

static void bad_numbers_are_refused(void)
{
    struct er_error err = ER_ERROR_INIT;

    er_tap_check(er_spawn(nothing, NULL, 0, &err) == ER_E_USAGE);
    er_tap_check(er_spawn(nothing, NULL, ER_SPAWN_MAX + 1, &err) == ER_E_USAGE);
    er_tap_check(er_spawn(nothing, NULL, 100, &err) == 0);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"ranks_have_a_store_and_barriers", ranks_have_a_store_and_barriers, 0},
        {"ranks_have_communicators", ranks_have_communicators, 0},
        {"the_first_failure_is_named_and_ends_the_others",
         the_first_failure_is_named_and_ends_the_others, 0},
        {"deaf_ranks_are_killed", deaf_ranks_are_killed, 0},
        {"barriers_can_be_given_up", barriers_can_be_given_up, 0},
        {"bad_numbers_are_refused", bad_numbers_are_refused, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
