/*
 * Parameter servers by themselves, with workers that come to grief: every part counts once, on
 * every server, whatever becomes of who pushed it.
 */
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/rand.h"
#include "tests/lib/ps_raw.h"
#include "tests/lib/tap.h"
#include "trainer/ps_client.h"

enum { SERVERS = 3, LOST_PARTS = 4, LOST_STEPS = 60, LOST_ELEMENTS = 4096 };

struct servers {
    uint64_t staleness;
    struct er_flat_param table[1];
    struct er_flat flat;
    struct er_pool *pool;
    struct er_ps_server *server[SERVERS];
    struct er_host_record records[SERVERS];
    struct er_slice slices[SERVERS][1];
};

/* Each part takes 1 / LOST_PARTS from every value: plain SGD at rate 1. */
static void open_servers(struct servers *s, uint64_t staleness)
{
    struct er_shape shape = er_shape_1d(LOST_ELEMENTS);
    struct er_ps_server_opts opts = {
        .servers = SERVERS,
        .flat = &s->flat,
        .optim = {.kind = ER_OPTIM_SGD},
        .schedule = {.kind = ER_SCHEDULE_CONSTANT, .lr = 1},
        .parts = LOST_PARTS,
        .steps = LOST_STEPS,
        .staleness = staleness,
        .lost_timeout_us = 200000,
    };
    struct er_error err = ER_ERROR_INIT;

    s->staleness = staleness;
    er_flat_init(&s->flat, s->table, 1, er_optim_state_names(ER_OPTIM_SGD), 1);
    er_tap_require(er_flat_add(&s->flat, "w", &shape, NULL, &err) == 0);
    er_tap_require(er_pool_new(&s->pool, er_flat_bytes(&s->flat), &err) == 0);
    er_flat_bind(&s->flat, er_pool_alloc(s->pool, er_flat_bytes(&s->flat), ER_FLAT_ALIGN));
    for (int i = 0; i < SERVERS; i++) {
        struct er_slice slices[2];

        opts.index = i;
        er_tap_require(er_ps_server_open(&s->server[i], &opts, &s->records[i], &err) == 0);
        er_tap_require(er_ps_server_slices(s->server[i], slices) == 2);
        s->slices[i][0] = slices[0];
    }
    for (int i = 0; i < SERVERS; i++)
        er_tap_require(er_ps_server_run(s->server[i], s->records, 0, &err) == 0);
}

static void close_servers(struct servers *s)
{
    for (int i = 0; i < SERVERS; i++)
        er_ps_server_close(s->server[i]);
    er_pool_free(s->pool);
}

/* All work that server 0 gives out; dies when it is killed. */
_Noreturn static void run_worker(struct servers *s, uint32_t worker)
{
    static float values[LOST_ELEMENTS], grads_of_ones[LOST_ELEMENTS];
    struct er_ps_client *client;
    struct er_error err = ER_ERROR_INIT;
    enum er_ps_answer answer = ER_PS_WAIT;
    uint64_t number, needs;

    for (size_t i = 0; i < LOST_ELEMENTS; i++)
        grads_of_ones[i] = 1;
    if (er_ps_client_open(&client, NULL, worker, &s->flat, s->records, SERVERS, &err))
        _exit(10);
    while (answer != ER_PS_DONE) {
        if (er_ps_client_lease(client, &answer, &number, &err))
            _exit(11);
        if (answer != ER_PS_PART)
            continue;
        needs = number / LOST_PARTS;
        needs = needs > s->staleness ? needs - s->staleness : 0;
        if (er_ps_client_pull(client, values, needs, &err) ||
            er_ps_client_stage(client, grads_of_ones, &(struct er_ps_push){number, 0, 1}, &err) ||
            er_ps_client_commit(client, &err))
            _exit(12);
    }
    if (er_ps_client_pull(client, values, LOST_STEPS, &err)) /* once all servers are that far */
        _exit(13);
    er_ps_client_close(client);
    _exit(0);
}

static pid_t start_worker(struct servers *s, uint32_t worker)
{
    pid_t pid = fork();

    if (pid == 0)
        run_worker(s, worker);
    er_tap_require(pid > 0);
    return pid;
}

/* Every value on every server has had every part, once. */
static void expect_each_part_once(const struct servers *s, uint64_t parts)
{
    double want = -(double)parts / LOST_PARTS;

    for (int i = 0; i < SERVERS; i++) {
        const float *value = s->slices[i][0].data;

        for (size_t e = 0; e < s->slices[i][0].count; e++) {
            if (fabs((double)value[e] - want) > 1e-3) {
                er_tap_check(fabs((double)value[e] - want) <= 1e-3);
                er_tap_note("server %d: %g, expected %g", i, (double)value[e], want);
                return;
            }
        }
    }
}

static void kill_workers_at_random(uint64_t staleness, uint64_t seed)
{
    enum { WORKERS = 3 };
    struct servers s = {0};
    pid_t pids[WORKERS];
    struct er_rand rand;
    int running = WORKERS, killed = 0;

    er_rand_init(&rand, seed);
    open_servers(&s, staleness);
    for (uint32_t w = 0; w < WORKERS; w++)
        pids[w] = start_worker(&s, w);
    while (running > 0) {
        uint32_t victim = (uint32_t)er_rand_below(&rand, WORKERS);
        struct timespec pause = {.tv_nsec = (long)er_rand_below(&rand, 3000000)};
        int status;

        nanosleep(&pause, NULL); /* a random instant, not a wait */
        if (pids[victim] > 0 && killed < 40) {
            kill(pids[victim], SIGKILL);
            killed++;
        }
        for (uint32_t w = 0; w < WORKERS; w++) {
            if (pids[w] == 0 || waitpid(pids[w], &status, WNOHANG) != pids[w])
                continue;
            pids[w] = 0;
            if (status == 0)
                running--;
            else if (er_tap_check(WIFSIGNALED(status)))
                pids[w] = start_worker(&s, w);
            else
                running--;
        }
    }
    expect_each_part_once(&s, LOST_PARTS * LOST_STEPS);
    close_servers(&s);
}

static void killed_workers_cost_no_part_and_double_none(void)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        kill_workers_at_random(0, seed);
        kill_workers_at_random(2, seed);
        kill_workers_at_random(ER_PS_UNBOUNDED, seed);
    }
}

/* ---- a push that is left half done, frame by frame ---- */

/* A worker takes the first part and stages it on all servers, over connections of its own. */
static void stage_a_part(const struct servers *s, int fds[SERVERS])
{
    for (int i = 0; i < SERVERS; i++) {
        fds[i] = ps_raw_open(&s->records[i], &s->flat, 7, 42);
        ps_raw_hear(fds[i], ER_PS_FRAME_HELLO);
    }
    ps_raw_say(fds[0], ER_PS_FRAME_LEASE, 0);
    ps_raw_hear(fds[0], ER_PS_FRAME_LEASE);
    for (int i = 0; i < SERVERS; i++) {
        ps_raw_stage(fds[i], 1, 0, er_ps_extent_of(LOST_ELEMENTS, i, SERVERS).count);
        ps_raw_hear(fds[i], ER_PS_FRAME_STAGE);
    }
}

/* A worker takes a part, stages it on all, commits to `commits` of them and dies: it counts on all
 * or on none, and in the end every part has counted once. */
static void a_push_left_half_done_counts_everywhere_or_nowhere(void)
{
    for (int commits = 0; commits <= SERVERS; commits++) {
        struct servers s = {0};
        int fds[SERVERS], status;
        pid_t pid;

        open_servers(&s, ER_PS_UNBOUNDED);
        stage_a_part(&s, fds);
        for (int i = SERVERS - commits; i < SERVERS; i++)
            ps_raw_say(fds[i], ER_PS_FRAME_COMMIT, 1);
        for (int i = 0; i < SERVERS; i++)
            close(fds[i]);
        pid = start_worker(&s, 0);
        er_tap_require(waitpid(pid, &status, 0) == pid);
        if (!er_tap_check(status == 0))
            er_tap_note("%d commits: status %d", commits, status);
        expect_each_part_once(&s, LOST_PARTS * LOST_STEPS);
        close_servers(&s);
    }
}

/* A worker that hangs with half of its commits said: the others' question ends its connection. */
static void a_worker_that_hangs_half_way_is_let_go(void)
{
    struct servers s = {0};
    int fds[SERVERS], status;
    pid_t pid;

    open_servers(&s, ER_PS_UNBOUNDED);
    stage_a_part(&s, fds);
    ps_raw_say(fds[2], ER_PS_FRAME_COMMIT, 1);
    ps_raw_hear(fds[2], ER_PS_FRAME_COMMIT);
    close(fds[0]); /* server 0 asks; servers 1 and 2 still hear from it, for a while */
    pid = start_worker(&s, 0);
    er_tap_require(waitpid(pid, &status, 0) == pid);
    er_tap_check(status == 0);
    expect_each_part_once(&s, LOST_PARTS * LOST_STEPS);
    close(fds[1]);
    close(fds[2]);
    close_servers(&s);
}

/* Whoever does not know the secret, or trains something else, or talks nonsense gets nothing. */
static void strangers_get_nothing(void)
{
    struct servers s = {0};
    struct er_ps_client *client;
    struct er_error err = ER_ERROR_INIT;
    struct er_host_record wrong[SERVERS];
    struct er_flat_param table[1];
    struct er_flat other;
    struct er_shape shape = er_shape_1d(LOST_ELEMENTS);
    char junk[4096];
    int fd = -1, status;
    pid_t pid;

    open_servers(&s, 0);
    memcpy(wrong, s.records, sizeof(wrong));
    wrong[0].secret[3] ^= 1;
    er_tap_check(er_ps_client_open(&client, NULL, 0, &s.flat, wrong, SERVERS, &err) ==
                 ER_E_PEER_LOST);
    er_flat_init(&other, table, 1, NULL, 0);
    er_tap_require(er_flat_add(&other, "another", &shape, NULL, &err) == 0);
    er_tap_check(er_ps_client_open(&client, NULL, 0, &other, s.records, SERVERS, &err) ==
                 ER_E_PEER_LOST);
    memset(junk, 'x', sizeof(junk));
    er_tap_require(er_host_dial(&s.records[1], 0, &fd) == 0);
    (void)send(fd, junk, sizeof(junk), MSG_NOSIGNAL);
    pid = start_worker(&s, 0);
    er_tap_require(waitpid(pid, &status, 0) == pid);
    er_tap_check(status == 0);
    expect_each_part_once(&s, LOST_PARTS * LOST_STEPS);
    close(fd);
    close_servers(&s);
}

static size_t open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    size_t n = 0;

    er_tap_require(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Whoever says nothing costs the server a descriptor for a while: few of them at a time, so that
 * the program still has some, and members still find a place. */
static void strangers_cannot_use_up_the_descriptors(void)
{
    enum { STRANGERS = 300, ALLOWED = 80 };
    struct servers s = {0};
    int strangers[STRANGERS], fd;
    size_t before;

    open_servers(&s, 0);
    for (int i = 0; i < STRANGERS; i++) {
        strangers[i] = -1;
        er_tap_require(er_host_dial(&s.records[0], 0, &strangers[i]) == 0);
    }
    before = open_descriptors(); /* with those that are accepted already */
    fd = ps_raw_open(&s.records[0], &s.flat, 0, 1);
    (void)ps_raw_hear(fd, ER_PS_FRAME_HELLO); /* all before it are accepted */
    er_tap_note("%zu descriptors, %zu before", open_descriptors(), before);
    er_tap_check(open_descriptors() < 3 + STRANGERS + ALLOWED + 8 * SERVERS);
    close(fd);
    for (int i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    close_servers(&s);
}

/* Even if it knows the secret: an abstract name can be dialed by everybody on the host. */
static void other_users_are_hung_up_on(void)
{
    struct servers s = {0};
    int status;
    pid_t pid;

    if (geteuid() != 0)
        er_tap_skip("needs root to be another user");
    open_servers(&s, 0);
    pid = fork();
    er_tap_require(pid >= 0);
    if (pid == 0) {
        struct er_ps_frame frame = ps_raw_hello(&s.flat, 0, 1);
        int fd = -1;

        if (setresuid(65534, 65534, 65534) < 0 || er_host_dial(&s.records[0], 0, &fd) < 0)
            _exit(2);
        (void)fcntl(fd, F_SETFL, 0); /* blocking */
        /* The connection may have ended before all of it is sent. */
        (void)!send(fd, &frame, sizeof(frame), MSG_NOSIGNAL);
        (void)!send(fd, s.records[0].secret, sizeof(s.records[0].secret), MSG_NOSIGNAL);
        _exit(recv(fd, &frame, sizeof(frame), MSG_WAITALL) > 0);
    }
    er_tap_require(waitpid(pid, &status, 0) == pid);
    er_tap_check(status == 0);
    close_servers(&s);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"killed_workers_cost_no_part_and_double_none", killed_workers_cost_no_part_and_double_none,
         0},
        {"a_push_left_half_done_counts_everywhere_or_nowhere",
         a_push_left_half_done_counts_everywhere_or_nowhere, 0},
        {"a_worker_that_hangs_half_way_is_let_go", a_worker_that_hangs_half_way_is_let_go, 0},
        {"strangers_get_nothing", strangers_get_nothing, 0},
        {"strangers_cannot_use_up_the_descriptors", strangers_cannot_use_up_the_descriptors, 0},
        {"other_users_are_hung_up_on", other_users_are_hung_up_on, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
