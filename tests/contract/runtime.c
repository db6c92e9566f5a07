/* libelastic against an agent that answers what it is asked and nothing more. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/ctl.h"
#include "base/fd.h"
#include "base/page.h"
#include "runtime/elastic.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"

static struct {
    char dir[ER_TEST_PATH_MAX];
    struct er_page *page;
    pid_t pid;
} agent;

enum left { LEFT_NEXT, LEFT_OVER, LEFT_OLD_AGENT, LEFT_SAME };

static struct {
    _Atomic uint64_t ready_flags, left_generation;
    _Atomic int left; /* enum left: what is answered */
} * told;             /* shared with the agent */

static void fill_world(struct er_ctl_msg *reply)
{
    static const uint64_t NUMS[] = {0, 1, 0, 1, 0, 1, 7, 2}; /* generation 7, 2 restarts */
    static const char *const STRS[] = {"job", "run", "node", "/ckpt"};

    reply->type = ER_CTL_WORLD;
    for (size_t i = 0; i < ER_ARRAY_N(NUMS); i++)
        er_ctl_num(reply, NUMS[i]);
    for (size_t i = 0; i < ER_ARRAY_N(STRS); i++)
        er_ctl_str(reply, STRS[i]);
}

/* The next generation is 9: rank 2 of 3. */
static void answer_left(const struct er_ctl_msg *request, struct er_ctl_msg *reply)
{
    static const uint64_t NEXT[] = {2, 3, 2, 3, 0, 1, 9, 3};

    told->left_generation = request->num[0];
    if (told->left == LEFT_OVER)
        reply->status = 1;
    if (told->left == LEFT_NEXT || told->left == LEFT_SAME)
        fill_world(reply);
    for (size_t i = 0; told->left == LEFT_NEXT && i < ER_ARRAY_N(NEXT); i++)
        reply->num[i] = NEXT[i];
    agent.page->to_worker.word = 9ull << 8;
}

_Noreturn static void serve(int listener)
{
    static char packet[ER_CTL_PACKET_MAX];
    int conn = accept(listener, NULL, NULL);
    ssize_t n;

    while ((n = recv(conn, packet, sizeof(packet), 0)) > 0) {
        struct er_ctl_msg request, reply = {.type = ER_CTL_REPLY};

        if (er_ctl_decode(&request, packet, (size_t)n, NULL))
            _exit(1);
        reply.seq = request.seq;
        if (request.type == ER_CTL_HELLO)
            fill_world(&reply);
        if (request.type == ER_CTL_READY)
            told->ready_flags = request.num_n > 1 ? request.num[1] : UINT64_MAX;
        if (request.type == ER_CTL_LEFT)
            answer_left(&request, &reply);
        n = er_ctl_encode(&reply, packet, sizeof(packet));
        if (send(conn, packet, (size_t)n, MSG_NOSIGNAL) != n)
            _exit(1);
    }
    _exit(n < 0);
}

static void make_page(void)
{
    int fd = er_memfd("page", ER_PAGE_BYTES);
    char text[16];

    er_tap_require(fd >= 0);
    agent.page = mmap(NULL, ER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    er_tap_require(agent.page != MAP_FAILED);
    agent.page->magic = ER_PAGE_MAGIC;
    agent.page->version = ER_PAGE_VERSION;
    snprintf(text, sizeof(text), "%d", fd);
    setenv("ELASTIC_PAGE_FD", text, 1);
}

static struct er_ctx *join(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    er_test_tempdir(agent.dir);
    er_tap_require(snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/s", agent.dir) <
                   (int)sizeof(addr.sun_path));
    er_tap_require(bind(listener, (struct sockaddr *)&addr, sizeof(addr)) == 0);
    er_tap_require(listen(listener, 8) == 0);
    setenv("ELASTIC_SOCKET", addr.sun_path, 1);
    make_page();
    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    er_tap_require(told != MAP_FAILED);
    agent.pid = fork();
    if (agent.pid == 0)
        serve(listener);
    close(listener);
    if (er_open(&ctx, &err) < 0)
        er_tap_note("%s", err.text);
    er_tap_require(ctx);
    return ctx;
}

static void leave(struct er_ctx *ctx)
{
    er_close(ctx);
    er_cleanup_child(&agent.pid);
    er_test_rmtree(agent.dir);
}

static void the_world_is_the_agents(void)
{
    struct er_ctx *ctx = join();
    const struct er_world *w = er_world(ctx);

    er_tap_check(w->rank == 0 && w->size == 1 && w->generation == 7 && w->restarts == 2);
    er_tap_check(!strcmp(w->job, "job") && !strcmp(w->checkpoint_dir, "/ckpt"));
    er_tap_check(er_notice(ctx) == ER_NOTICE_NONE);
    atomic_store(&agent.page->to_worker.word, 7ull << 8 | ER_NOTICE_STOP);
    er_tap_check(er_notice(ctx) == ER_NOTICE_STOP);
    atomic_store(&agent.page->to_worker.word, 6ull << 8 | ER_NOTICE_STOP);
    er_tap_check(er_notice(ctx) == ER_NOTICE_NONE);
    leave(ctx);
}

static void what_was_loaded_is_no_step_of_this_process(void)
{
    struct er_ctx *ctx = join();
    struct er_page_progress *p = &agent.page->from_worker;

    er_progress(ctx, ER_PHASE_STARTUP, 100);
    er_progress(ctx, ER_PHASE_FORWARD, 100);
    er_tap_check(p->step == 100 && p->phase == ER_PHASE_FORWARD && p->first_step == 0);
    er_progress(ctx, ER_PHASE_IDLE, 101);
    er_progress(ctx, ER_PHASE_IDLE, 102);
    er_tap_check(p->step == 102 && p->first_step == 101);
    er_tap_check(p->first_step_us > 0 && p->first_step_us <= p->step_us);
    leave(ctx);
}

static uint64_t steps_timed(const struct er_page_progress *p)
{
    uint64_t n = 0;

    for (int i = 0; i < ER_PAGE_STEP_TIMES; i++)
        n += atomic_load(&p->steps_by_time[i]);
    return n;
}

static void steps_are_timed_from_one_to_the_next(void)
{
    struct er_ctx *ctx = join();
    struct er_page_progress *p = &agent.page->from_worker;
    uint64_t before = steps_timed(p);

    er_progress(ctx, ER_PHASE_STARTUP, 10);
    er_progress(ctx, ER_PHASE_IDLE, 11); /* how long it took is not known */
    er_tap_check(steps_timed(p) == before);
    er_progress(ctx, ER_PHASE_FORWARD, 11);
    er_progress(ctx, ER_PHASE_IDLE, 12);
    er_tap_check(steps_timed(p) == before + 1);
    er_progress(ctx, ER_PHASE_IDLE, 15);
    er_tap_check(steps_timed(p) == before + 4);
    er_progress(ctx, ER_PHASE_STARTUP, 12); /* back to a checkpoint */
    er_progress(ctx, ER_PHASE_IDLE, 13);
    er_tap_check(steps_timed(p) == before + 4);
    leave(ctx);
}

enum { THREADS = 2, ROUNDS = 50000 };
#define RACE_US                                                                                    \
    (5 * ER_US_PER_S) /* where others need the processors, so many rounds are too many */

static struct {
    struct er_ctx *ctx;
    _Atomic uint64_t arrived;
    uint64_t seen[THREADS]; /* first step after this thread's report; 0: not told yet */
    unsigned replaced, missing;
    uint64_t until_us;
    bool over;
} race;

/* All threads have come here for the n-th time. Spins, so that they go on within nanoseconds. */
static void meet(uint64_t n)
{
    atomic_fetch_add(&race.arrived, 1);
    for (unsigned i = 1; atomic_load(&race.arrived) < n * THREADS; i++) {
        if (i % 1024 == 0)
            sched_yield();
    }
}

static void judge_round(void)
{
    struct er_page_progress *p = &agent.page->from_worker;

    race.missing += p->first_step == 0 || p->first_step > THREADS || p->first_step_us == 0;
    for (size_t k = 0; k < THREADS; k++)
        race.replaced += race.seen[k] != 0 && race.seen[k] != p->first_step;
    p->first_step = p->first_step_us = 0;
    race.over = er_now_us() >= race.until_us;
}

static void *report_steps(void *user)
{
    size_t self = (size_t)(uintptr_t)user;
    uint64_t met = 0;

    for (int i = 0; i < ROUNDS; i++) {
        meet(++met);
        if (race.over)
            break;
        er_progress(race.ctx, ER_PHASE_IDLE, self + 1);
        race.seen[self] = agent.page->from_worker.first_step;
        meet(++met);
        if (self == 0)
            judge_round();
    }
    return NULL;
}

/* Threads report their first step at once: one is taken, and never replaced. */
static void one_first_step_of_many_threads(void)
{
    pthread_t threads[THREADS];

    race.ctx = join();
    race.until_us = er_now_us() + RACE_US;
    for (size_t i = 0; i < THREADS; i++)
        er_tap_require(pthread_create(&threads[i], NULL, report_steps, (void *)(uintptr_t)i) == 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    er_tap_check(race.replaced == 0);
    er_tap_check(race.missing == 0);
    leave(race.ctx);
}

static void who_rejoins_is_of_the_next_generation(void)
{
    struct er_ctx *ctx = join();
    const struct er_world *w = er_world(ctx);
    struct er_error err = ER_ERROR_INIT;

    er_tap_check(er_ready(ctx, &err) == 0 && told->ready_flags == 0);
    er_tap_check(atomic_load(&agent.page->from_worker.rejoins) == 0);
    er_rejoin_offer(ctx);
    er_tap_check(atomic_load(&agent.page->from_worker.rejoins) == 1);
    er_tap_check(er_ready(ctx, &err) == 0 && told->ready_flags == ER_CTL_REJOINS);
    atomic_store(&agent.page->to_worker.word, 7ull << 8 | ER_NOTICE_STOP);
    er_tap_check(er_rejoin(ctx, 10 * ER_US_PER_S, &err) == 0);
    er_tap_check(told->left_generation == 7);
    er_tap_check(w->rank == 2 && w->size == 3 && w->generation == 9 && w->restarts == 3);
    er_tap_check(!strcmp(w->job, "job") && er_notice(ctx) == ER_NOTICE_NONE);
    told->left = LEFT_OVER;
    er_tap_check(er_rejoin(ctx, 10 * ER_US_PER_S, &err) == ER_REJOIN_DONE);
    er_tap_check(told->left_generation == 9 && w->generation == 9);
    leave(ctx);
}

static void an_agent_that_cannot_rejoin_is_told_from_one_that_does(void)
{
    struct er_ctx *ctx = join();
    struct er_error err = ER_ERROR_INIT;

    told->left = LEFT_OLD_AGENT;
    er_tap_check(er_rejoin(ctx, 10 * ER_US_PER_S, &err) == ER_E_UNSUPPORTED);
    told->left = LEFT_SAME;
    er_tap_check(er_rejoin(ctx, 10 * ER_US_PER_S, &err) == ER_E_PROTOCOL);
    leave(ctx);
    unsetenv("ELASTIC_SOCKET");
    er_tap_require(er_open(&ctx, &err) == 0);
    er_tap_check(er_rejoin(ctx, 10 * ER_US_PER_S, &err) == ER_E_UNSUPPORTED);
    er_close(ctx);
}

static void an_agent_that_is_not_there_is_an_error(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;

    setenv("ELASTIC_SOCKET", "/nonexistent/agent", 1);
    er_tap_check(er_open(&ctx, &err) == -ENOENT && !ctx);
    er_tap_check(strstr(err.text, "/nonexistent/agent"));
}

static void without_an_agent_the_store_is_bounded(void)
{
    static char value[ER_VALUE_MAX];
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    char key[32];
    int rc = 0, n = 0;

    unsetenv("ELASTIC_SOCKET");
    er_tap_require(er_open(&ctx, &err) == 0);
    er_tap_check(er_kv_put(ctx, "big", value, sizeof(value) + 1, &err) == -EMSGSIZE);
    for (; rc == 0 && n < ER_LOCAL_KEYS_MAX; n++) {
        snprintf(key, sizeof(key), "key-%d", n);
        rc = er_kv_put(ctx, key, value, sizeof(value), &err);
    }
    er_tap_check(rc == ER_E_LIMIT);
    er_tap_check(strstr(err.text, "limit reached"));
    er_close(ctx);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"the_world_is_the_agents", the_world_is_the_agents, 0},
        {"what_was_loaded_is_no_step_of_this_process", what_was_loaded_is_no_step_of_this_process,
         0},
        {"steps_are_timed_from_one_to_the_next", steps_are_timed_from_one_to_the_next, 0},
        {"one_first_step_of_many_threads", one_first_step_of_many_threads, 0},
        {"who_rejoins_is_of_the_next_generation", who_rejoins_is_of_the_next_generation, 0},
        {"an_agent_that_cannot_rejoin_is_told_from_one_that_does",
         an_agent_that_cannot_rejoin_is_told_from_one_that_does, 0},
        {"an_agent_that_is_not_there_is_an_error", an_agent_that_is_not_there_is_an_error, 0},
        {"without_an_agent_the_store_is_bounded", without_an_agent_the_store_is_bounded, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
