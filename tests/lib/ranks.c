#include "tests/lib/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

void *er_ranks_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        give_up("mmap");
    return p;
}

static pid_t start(struct er_fake_world *world, int rank, int size, er_rank_fn main, void *user)
{
    pid_t pid = fork();
    struct er_ctx *ctx;
    int rc;

    if (pid < 0)
        give_up("fork");
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no rank survives a test that timed out */
    ctx = er_fake_ctx(world, rank, size, 1, 1);
    rc = main(ctx, user);
    er_close(ctx);
    fflush(stdout);
    exit(rc);
}

void er_ranks_run_in(struct er_fake_world *world, int size, er_rank_fn main, void *user,
                     int *ret_status)
{
    pid_t pids[ER_FAKE_RANKS_MAX];

    fflush(stdout);
    for (int rank = 0; rank < size; rank++)
        pids[rank] = start(world, rank, size, main, user);
    for (int rank = 0; rank < size; rank++) {
        int status;

        if (waitpid(pids[rank], &status, 0) < 0)
            give_up("waitpid");
        if (ret_status)
            ret_status[rank] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
}

void er_ranks_run(int size, er_rank_fn main, void *user, int *ret_status)
{
    struct er_fake_world *world = er_fake_world_new();

    er_ranks_run_in(world, size, main, user, ret_status);
    er_fake_world_free(world);
}
