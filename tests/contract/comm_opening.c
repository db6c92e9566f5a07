/*
 * The communicator's beginnings: who is let in, who is missed, and two hundred generations that
 * leave nothing behind.
 */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "runtime/host_wire.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/tap.h"

/* Sanitizers keep freed memory and have threads of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static void wait_for_missing(struct rank *r)
{
    struct er_comm_opts opts = {.transport = r->transport, .open_timeout_us = 200000};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    int rc;

    if (r->rank == 1)
        return;
    opts = rank_opts(r, &opts);
    RANK_OK(er_comm_open(&comm, r->ctx, &opts, &err), err);
    rc = er_comm_wait_ready(comm, &err);
    if (rc != -ETIMEDOUT || !strstr(err.text, "rank 1 is not connected"))
        printf("# rank %d: %d: %s\n", r->rank, rc, err.text);
    RANK_REQUIRE(rc == -ETIMEDOUT && strstr(err.text, "rank 1 is not connected"));
    RANK_REQUIRE(er_comm_status(comm, &err) == -ETIMEDOUT);
    er_comm_abort(comm);
}

static void missing_rank(void)
{
    run_both(3, wait_for_missing);
}

/*
 * Rank 0 is ready first and leaves. The others, who come to look seldom, become ready all the same,
 * and are told by their first operation. Each looks only when rank 0 is gone, or has had time to
 * get on with what it has.
 */
static void leave_when_ready(struct rank *r)
{
    enum { TURN_US = 50000 };
    struct er_comm_opts opts = rank_opts(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_op *op = NULL;
    bool ready = false;
    float x = 1;
    size_t n = 0;
    int rc;

    opts.open_timeout_us = RANK_WAIT_US;
    RANK_OK(er_comm_open(&comm, r->ctx, &opts, &err), err);
    if (r->rank == 0) {
        RANK_OK(er_comm_wait_ready(comm, &err), err);
        er_comm_abort(comm);
        RANK_OK(er_kv_put(r->ctx, "gone", "1", 1, &err), err);
        rank_meet(r, "ready");
        return;
    }
    while ((rc = er_kv_get(r->ctx, "gone", &x, sizeof(x), &n, TURN_US, &err)) == 1 && !ready) {
        rc = er_comm_status(comm, &err);
        RANK_REQUIRE(rc >= 0);
        ready = rc == 0;
    }
    RANK_OK(er_comm_wait_ready(comm, &err), err);
    rank_meet(r, "ready"); /* a failure is told to who still connects */
    rc = er_all_reduce(comm, &x, 1, ER_F32, ER_SUM, &op, &err);
    rc = rc < 0 ? rc : er_op_wait(op, ER_FOREVER, &err);
    RANK_REQUIRE(rc == ER_E_PEER_LOST && strstr(err.text, "rank 0 "));
    er_comm_abort(comm);
}

static void ready_then_gone(void)
{
    if (rank_on_gpu())
        return; /* NCCL: ready is an operation of all */
    run_both(2, leave_when_ready);
    run_both(3, leave_when_ready);
}

/* ---- many generations ---- */

static int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    RANK_REQUIRE(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static long status_field(const char *name)
{
    char line[256];
    long value = -1;
    FILE *f = fopen("/proc/self/status", "re");

    RANK_REQUIRE(f);
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtol(line + strlen(name), NULL, 10);
    fclose(f);
    return value;
}

static void live_long(struct rank *r)
{
    enum { WARM = 20, GENERATIONS = 220 };
    uint64_t deadline_us;
    long rss = 0;
    int fds = 0;

    for (int g = 0; g < GENERATIONS; g++) {
        struct er_comm *comm = rank_open(r, NULL);

        rank_verify(comm);
        rank_meet(r, "verified");
        er_comm_abort(comm);
        if (g == WARM) {
            fds = count_fds();
            rss = status_field("VmRSS:");
        }
        er_fake_move(r->ctx, r->rank, r->size, er_world(r->ctx)->generation + 1);
    }
    RANK_REQUIRE(count_fds() == fds);
    if (r->rank == 0)
        printf("# resident: %ld KiB after %d generations, %ld after %d\n", rss, WARM,
               status_field("VmRSS:"), GENERATIONS);
    if (SANITIZED)
        return;
    RANK_REQUIRE(status_field("VmRSS:") < rss + 1024);
    deadline_us = er_now_us() + RANK_WAIT_US;
    while (status_field("Threads:") != 1 && er_now_us() < deadline_us)
        rank_pause_us(500); /* a joined thread is counted a moment longer */
    RANK_REQUIRE(status_field("Threads:") == 1);
}

static void generations(void)
{
    run_both(3, live_long);
}

/* The same name again within a generation: records of the earlier one do no harm. */
static void reopen(struct rank *r)
{
    for (int i = 0; i < 20; i++) {
        struct er_comm *comm = rank_open(r, NULL);

        rank_verify(comm);
        rank_meet(r, "verified");
        er_comm_abort(comm);
    }
}

static void same_name_again(void)
{
    run_both(3, reopen);
}

/* ---- strangers ---- */

static uint64_t hash_name(const char *name)
{
    uint64_t h = 0;

    for (const char *p = name; *p; p++)
        h = er_rand_mix(h ^ (unsigned char)*p);
    return h;
}

static int knock(const struct er_host_record *rec)
{
    int fd = -1, rc = er_host_dial(rec, 0, &fd);
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    RANK_REQUIRE(rc >= 0 && poll(&p, 1, 5000) == 1);
    return fd;
}

static bool refused(const struct er_host_record *rec)
{
    int fd = -1, error = 0, rc = er_host_dial(rec, 0, &fd);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    socklen_t n = sizeof(error);

    if (rc >= 0) {
        RANK_REQUIRE(poll(&p, 1, 5000) == 1);
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
        close(fd);
    }
    return (rc < 0 ? -rc : error) == ECONNREFUSED;
}

/* The answer to a hello, or -1 when the door is closed in our face. */
static int greet(struct er_comm *comm, const struct er_host_record *rec, const void *hello,
                 size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_wire_reply reply;
    ER_CLEANUP(er_cleanup_fd) int fd = knock(rec);
    ssize_t got;

    RANK_REQUIRE(send(fd, hello, n, MSG_NOSIGNAL) == (ssize_t)n);
    for (uint64_t end_us = er_now_us() + RANK_WAIT_US; er_now_us() < end_us;) {
        RANK_REQUIRE(er_comm_status(comm, &err) == ER_IN_PROGRESS);
        got = recv(fd, &reply, sizeof(reply), MSG_DONTWAIT);
        if (got == (ssize_t)sizeof(reply))
            return (int)reply.answer;
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return -1;
    }
    RANK_REQUIRE(!"no answer");
    return -1;
}

/* A communicator on a GPU listens with its companion. */
static const char *door_name(void)
{
    return rank_on_gpu() ? "world.nccl" : "world";
}

static void receive_strangers(struct rank *r, struct er_comm *comm)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_host_record rec;
    struct er_wire_hello good, hello;
    char text[ER_HOST_RECORD_MAX], key[64];
    size_t n = 0;
    int silent[40];

    snprintf(key, sizeof(key), "comm/%s/0", door_name());
    RANK_OK(er_kv_get(r->ctx, key, text, sizeof(text), &n, 0, &err), err);
    RANK_OK(er_host_record_parse(&rec, text, n, &err), err);
    good = (struct er_wire_hello){.magic = ER_WIRE_MAGIC,
                                  .version = ER_WIRE_VERSION,
                                  .from = 1,
                                  .size = 2,
                                  .transport = r->transport,
                                  .generation = 1,
                                  .name_hash = hash_name(door_name())};
    memcpy(good.secret, rec.secret, sizeof(good.secret));
    hello = good;
    hello.secret[3] ^= 1;
    RANK_REQUIRE(greet(comm, &rec, &hello, sizeof(hello)) == ER_WIRE_SECRET);
    hello = good;
    hello.generation = 0;
    RANK_REQUIRE(greet(comm, &rec, &hello, sizeof(hello)) == ER_WIRE_GENERATION);
    hello = good;
    hello.name_hash++;
    RANK_REQUIRE(greet(comm, &rec, &hello, sizeof(hello)) == ER_WIRE_NAME);
    for (uint32_t from = 0; from < 5; from += 2) { /* 0 and numbers beyond the world */
        hello = good;
        hello.from = from;
        RANK_REQUIRE(greet(comm, &rec, &hello, sizeof(hello)) == ER_WIRE_RANK);
    }
    memset(&hello, 'x', sizeof(hello));
    RANK_REQUIRE(greet(comm, &rec, &hello, sizeof(hello)) == -1);
    for (size_t i = 0; i < ER_ARRAY_N(silent); i++) { /* more than are kept waiting */
        silent[i] = knock(&rec);
        RANK_REQUIRE(er_comm_status(comm, &err) == ER_IN_PROGRESS);
    }
    rank_meet(r, "strangers");
    RANK_OK(er_comm_wait_ready(comm, &err), err);
    RANK_REQUIRE(refused(&rec)); /* nobody listens once all are there */
    for (size_t i = 0; i < ER_ARRAY_N(silent); i++)
        close(silent[i]);
}

static void open_door(struct rank *r)
{
    struct er_comm_opts opts = {.transport = r->transport};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    if (r->rank == 0) {
        opts = rank_opts(r, &opts);
        RANK_OK(er_comm_open(&comm, r->ctx, &opts, &err), err);
        receive_strangers(r, comm);
    } else {
        rank_meet(r, "strangers");
        comm = rank_open(r, NULL);
    }
    rank_verify(comm);
    er_comm_abort(comm);
}

static void strangers(void)
{
    run_both(2, open_door);
}

static void records(void)
{
    static const char *const wrong[] = {
        "",
        "er1",
        "er2 shm 00112233445566778899aabbccddeeff 0011223344556677 0 x",
        "er1 udp 00112233445566778899aabbccddeeff 0011223344556677 0 x",
        "er1 shm 00112233445566778899aabbccddeefg 0011223344556677 0 x",
        "er1 shm 0011 0011223344556677 0 x",
        "er1 shm 00112233445566778899aabbccddeeff 0011223344556677 0",
        "er1 tcp 00112233445566778899aabbccddeeff 0011223344556677 65536 127.0.0.1",
        "er1 tcp 00112233445566778899aabbccddeeff 0011223344556677 1 "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    const char *right = "er1 tcp 00112233445566778899aabbccddeeff 0011223344556677 99 ::1 10.0.0.1";
    struct er_error err = ER_ERROR_INIT;
    struct er_host_record rec = {0};
    char text[ER_HOST_RECORD_MAX];

    for (size_t i = 0; i < ER_ARRAY_N(wrong); i++)
        er_tap_check(er_host_record_parse(&rec, wrong[i], strlen(wrong[i]), &err) == ER_E_PROTOCOL);
    er_tap_require(er_host_record_parse(&rec, right, strlen(right), &err) == 0);
    er_tap_check(rec.addr_n == 2 && rec.port == 99 && rec.host == 0x0011223344556677 &&
                 rec.secret[15] == 0xff);
    er_tap_check(er_host_record_format(&rec, text, sizeof(text)) == (int)strlen(right));
    er_tap_check(strcmp(text, right) == 0);
    er_tap_check(er_host_record_format(&rec, text, 20) == -ENOSPC);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"missing_rank", missing_rank, 0}, {"ready_then_gone", ready_then_gone, 0},
        {"generations", generations, 120}, {"same_name_again", same_name_again, 0},
        {"strangers", strangers, 0},       {"records", records, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
