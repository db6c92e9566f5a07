/*
 * Bytes that nobody should send: hellos, address records, tables and frames with random changes
 * (seeded). A communicator refuses them or fails with an error, never crashes or hangs, and rank 0
 * still lets its members in.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "runtime/host_mesh.h"
#include "runtime/host_wire.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/tap.h"

enum {
    HELLOS = 1500,
    WORLDS = 40,
    TOO_MUCH = 3, /* lengths of a record */
    MESSAGE_MAX = sizeof(struct er_wire_hello) + ER_HOST_RECORD_MAX
};

static void change(struct er_rand *rand, char *bytes, size_t n)
{
    for (uint64_t i = 1 + er_rand_below(rand, 4); i > 0 && n > 0; i--)
        bytes[er_rand_below(rand, n)] = (char)er_rand_below(rand, 256);
}

static struct er_host_record read_record(struct rank *r)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_host_record rec;
    char text[ER_HOST_RECORD_MAX];
    size_t n = 0;

    RANK_OK(er_kv_get(r->ctx, "comm/world/0", text, sizeof(text), &n, RANK_WAIT_US, &err), err);
    RANK_OK(er_host_record_parse(&rec, text, n, &err), err);
    return rec;
}

/* What rank 1 says first, with a record of its own. */
static size_t make_hello(struct rank *r, const struct er_host_record *zero, char *ret)
{
    struct er_wire_hello hello = {.magic = ER_WIRE_MAGIC,
                                  .version = ER_WIRE_VERSION,
                                  .from = 1,
                                  .size = (uint32_t)r->size,
                                  .transport = r->transport,
                                  .generation = er_world(r->ctx)->generation};
    struct er_host_record mine = *zero;
    int n = er_host_record_format(&mine, ret + sizeof(hello), ER_HOST_RECORD_MAX);

    RANK_REQUIRE(n > 0);
    for (const char *p = "world"; *p; p++)
        hello.name_hash = er_rand_mix(hello.name_hash ^ (unsigned char)*p);
    memcpy(hello.secret, zero->secret, sizeof(hello.secret));
    hello.record_n = (uint32_t)n;
    memcpy(ret, &hello, sizeof(hello));
    return sizeof(hello) + (size_t)n;
}

static int dial(const struct er_host_record *rec)
{
    int fd = -1, rc = er_host_dial(rec, 0, &fd);
    struct pollfd p = {.fd = fd, .events = POLLOUT};

    RANK_REQUIRE(rc >= 0 && poll(&p, 1, 5000) == 1);
    return fd;
}

/* A record that is longer than any, of one who does not know the secret either: nothing of it is
 * kept. (Where all of it was read, it went over what stands behind.) */
static void send_too_much(const struct er_host_record *rec, const char *good, uint32_t record_n)
{
    ER_CLEANUP(er_cleanup_fd) int fd = dial(rec);
    char message[64 << 10];
    struct er_wire_hello hello;

    memset(message, 'x', sizeof(message));
    memcpy(&hello, good, sizeof(hello));
    memset(hello.secret, 'x', sizeof(hello.secret));
    hello.record_n = record_n;
    memcpy(message, &hello, sizeof(hello));
    send(fd, message, sizeof(message), MSG_NOSIGNAL);
}

/* Strangers whose every hello differs from a good one; then the member comes. A hello that is still
 * good would be let in: those are left out. */
static void hear_strangers(struct rank *r)
{
    struct er_comm_opts opts = {.transport = r->transport};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_host_record zero;
    char good[MESSAGE_MAX], bad[MESSAGE_MAX];
    struct er_rand rand;
    size_t n;

    if (r->rank == 1) {
        rank_meet(r, "strangers");
        comm = rank_open(r, NULL);
        rank_verify(comm);
        er_comm_abort(comm);
        return;
    }
    RANK_OK(er_comm_open(&comm, r->ctx, &opts, &err), err);
    zero = read_record(r);
    n = make_hello(r, &zero, good);
    er_rand_init(&rand, 77);
    for (int i = 0; i < HELLOS; i++) {
        ER_CLEANUP(er_cleanup_fd) int fd = dial(&zero);

        memcpy(bad, good, n);
        change(&rand, bad, sizeof(struct er_wire_hello) - 8);
        if (memcmp(bad, good, sizeof(struct er_wire_hello)) == 0)
            bad[0] ^= 1;
        if (i % 3 == 0) { /* good, but for its record */
            memcpy(bad, good, n);
            bad[sizeof(struct er_wire_hello)] ^= 1;
            change(&rand, bad + sizeof(struct er_wire_hello), n - sizeof(struct er_wire_hello));
            bad[sizeof(struct er_wire_hello)] = 'x';
        }
        send(fd, bad, i % 7 == 0 ? er_rand_below(&rand, n) : n, MSG_NOSIGNAL);
        RANK_REQUIRE(er_comm_status(comm, &err) == ER_IN_PROGRESS);
    }
    for (int i = 0; i < 3 * TOO_MUCH; i++) {
        static const uint32_t bytes[TOO_MUCH] = {ER_HOST_RECORD_MAX, 60 << 10, UINT32_MAX};

        send_too_much(&zero, good, bytes[i % TOO_MUCH]);
        RANK_REQUIRE(er_comm_status(comm, &err) == ER_IN_PROGRESS);
    }
    rank_meet(r, "strangers");
    RANK_OK(er_comm_wait_ready(comm, &err), err);
    rank_verify(comm);
    er_comm_abort(comm);
}

static void hellos(void)
{
    run_both(2, hear_strangers);
}

/* A member that has come in, and then says anything on its control connection. */
static void say_anything(struct rank *r, struct er_rand *rand)
{
    struct er_host_record zero = read_record(r);
    struct er_mesh_frame frame = {.magic = ER_WIRE_MAGIC, .life = ER_MESH_ALIVE};
    ER_CLEANUP(er_cleanup_fd) int fd = dial(&zero);
    char bytes[MESSAGE_MAX];
    size_t n = make_hello(r, &zero, bytes);

    RANK_REQUIRE(send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n);
    rank_meet(r, "ready");
    frame.waiting.desc.seq = er_rand_below(rand, 3);
    frame.waiting.desc.kind = (uint32_t)er_rand_below(rand, 12);
    frame.waiting.collectives = er_rand_below(rand, 3);
    frame.waiting.recv = er_rand_below(rand, 3);
    if (er_rand_below(rand, 2))
        frame.life = (uint32_t)er_rand_below(rand, 6);
    if (er_rand_below(rand, 2))
        frame.code = -(int)er_rand_below(rand, 5000);
    if (er_rand_below(rand, 3) == 0)
        change(rand, (char *)&frame, sizeof(frame));
    for (uint64_t i = er_rand_below(rand, 3); i > 0; i--)
        send(fd, &frame, sizeof(frame), MSG_NOSIGNAL);
    send(fd, &frame, er_rand_below(rand, sizeof(frame)), MSG_NOSIGNAL);
}

static void hear_anything(struct rank *r)
{
    struct er_rand rand;

    er_rand_init(&rand, 99);
    for (int i = 0; i < WORLDS; i++) {
        struct er_comm_opts opts = {.op_timeout_us = 500000};
        struct er_error err = ER_ERROR_INIT;
        struct er_comm *comm;
        struct er_op *op = NULL;
        float x = 1;

        if (r->rank == 1) {
            say_anything(r, &rand);
        } else {
            comm = rank_open(r, &opts);
            rank_meet(r, "ready");
            RANK_REQUIRE(er_all_reduce(comm, &x, 1, ER_F32, ER_SUM, &op, &err) < 0 ||
                         er_op_wait(op, ER_FOREVER, &err) < 0);
            er_comm_abort(comm);
        }
        rank_meet(r, "over");
        er_fake_move(r->ctx, r->rank, r->size, er_world(r->ctx)->generation + 1);
    }
}

static void frames(void)
{
    run_ranks(&(struct ranks){.size_n = 2, .transport_of = ER_TRANSPORT_SHM}, hear_anything);
}

/* Whatever is parsed can be written and says the same again. */
static void records(void)
{
    static const char *const good[] = {
        "er1 tcp 00112233445566778899aabbccddeeff 0011223344556677 99 ::1 10.0.0.1",
        "er1 any 00112233445566778899aabbccddeeff 0011223344556677 1 elastic-run-00aa 127.0.0.1"};
    char text[ER_HOST_RECORD_MAX], again[ER_HOST_RECORD_MAX];
    struct er_rand rand;

    er_rand_init(&rand, 5);
    for (int i = 0; i < 200000; i++) {
        struct er_host_record rec, second;
        size_t n = strlen(good[i % 2]);

        memcpy(text, good[i % 2], n);
        change(&rand, text, n);
        n -= er_rand_below(&rand, 4) == 0 ? er_rand_below(&rand, n) : 0;
        if (er_host_record_parse(&rec, text, n, NULL) < 0)
            continue;
        er_tap_require(er_host_record_format(&rec, again, sizeof(again)) > 0);
        er_tap_require(er_host_record_parse(&second, again, strlen(again), NULL) == 0);
        er_tap_require(second.port == rec.port && second.host == rec.host &&
                       second.addr_n == rec.addr_n);
    }
}

/* A rank's abstract name, which another user has taken after its end, is not told the secret. */
static void names_of_another_user_are_not_dialed(void)
{
    const struct er_host_listen how = {
        .transport = ER_TRANSPORT_SHM, .address = "", .interfaces = ""};
    struct er_host_record rec;
    struct er_error err = ER_ERROR_INIT;
    int fd = -1, ready[2], listeners[2], status;
    pid_t pid;

    if (geteuid() != 0)
        er_tap_skip("needs root to be another user");
    er_tap_require(socketpair(AF_UNIX, SOCK_STREAM, 0, ready) == 0);
    pid = fork();
    er_tap_require(pid >= 0);
    if (pid == 0) {
        if (setresuid(65534, 65534, 65534) < 0 || er_host_listen(&rec, &how, listeners, &err) < 0 ||
            write(ready[1], &rec, sizeof(rec)) != (ssize_t)sizeof(rec))
            _exit(1);
        _exit(read(ready[1], &status, 1) < 0); /* until it has been dialed */
    }
    er_tap_require(read(ready[0], &rec, sizeof(rec)) == (ssize_t)sizeof(rec));
    er_tap_check(er_host_dial(&rec, 0, &fd) == -EACCES && fd < 0);
    er_tap_require(write(ready[0], "x", 1) == 1);
    er_tap_require(waitpid(pid, &status, 0) == pid);
    er_tap_check(status == 0);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"hellos", hellos, 0},
        {"frames", frames, 0},
        {"records", records, 0},
        {"names_of_another_user_are_not_dialed", names_of_another_user_are_not_dialed, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
