/* libFuzzer: what a rank hears that dials the lower ones: rank 0's record and table, answers to its
 * hellos, a segment, into host_dial.c and host_mesh.c. The first byte says over what the ranks
 * speak; then come two bytes of the record's length and the record, and pieces: what happens, on
 * which connection (counted from the newest), two bytes of length, and what comes over it. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "runtime/host_mesh_internal.h"

enum { SIZE = 3, RANK = 2, HOST = 1, ENDS = 8, PIECE = 4, PIECES_MAX = 64 };
enum what { SAY, PASS, HANG_UP, SEGMENT, REFUSE, SLOW, WHAT_COUNT };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
uint64_t __wrap_er_now_us(void);
int __wrap_er_host_dial(const struct er_host_record *rec, int i, int *ret_fd);

/* ---- the clock, which the input turns ---- */

static uint64_t now_us;

uint64_t __wrap_er_now_us(void)
{
    return now_us;
}

/* ---- libelastic's key-value store: rank 0's record, as soon as there is one ---- */

static struct {
    const unsigned char *data;
    size_t n;
} record;

int er_kv_put(struct er_ctx *ctx, const char *key, const void *value, size_t n,
              struct er_error *err)
{
    return 0;
}

int er_kv_get(struct er_ctx *ctx, const char *key, void *ret, size_t cap, size_t *ret_n,
              uint64_t timeout_us, struct er_error *err)
{
    if (record.n == 0)
        return 1;
    if (record.n > cap)
        return er_error_set(err, -EMSGSIZE, "%zu bytes", record.n);
    memcpy(ret, record.data, record.n);
    *ret_n = record.n;
    return 0;
}

/* ---- those who are dialed ---- */

static int ends[ENDS]; /* theirs, of the newest connections; -1: hung up */
static unsigned dialed;
static enum what next_dial; /* REFUSE, SLOW: goes like that */

static int *newest(unsigned i)
{
    return dialed > i % ENDS ? &ends[(dialed - 1 - i % ENDS) % ENDS] : NULL;
}

/* Whatever the rank has said is taken. */
static void take_all(int fd)
{
    char sink[4096];

    while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
        ;
}

static void hang_up(int *end)
{
    if (*end >= 0)
        close(*end);
    *end = -1;
}

/* Without room to write it is as one whose other end has not answered yet. */
static void fill(int fd)
{
    static const char filler[4096];
    int least = 1;

    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
    while (send(fd, filler, sizeof(filler), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ;
}

int __wrap_er_host_dial(const struct er_host_record *rec, int i, int *ret_fd)
{
    enum what how = next_dial;
    int end[2], rc;

    assert(i >= 0 && i < rec->addr_n && memchr(rec->addr[i], 0, sizeof(rec->addr[i])));
    next_dial = SAY;
    if (how == REFUSE)
        return -ECONNREFUSED;
    rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, end);
    assert(rc == 0);
    hang_up(&ends[dialed % ENDS]);
    ends[dialed++ % ENDS] = end[1];
    *ret_fd = end[0];
    if (how == SLOW)
        fill(end[0]);
    return how == SLOW ? ER_IN_PROGRESS : 0;
}

static void happen(enum what what, unsigned which, const unsigned char *data, size_t n)
{
    int *end = newest(which), fd;

    switch (what) {
    case PASS:
        now_us += which < 128 ? which * ER_US_PER_MS : (which - 127) * ER_US_PER_S;
        return;
    case REFUSE:
    case SLOW:
        next_dial = what;
        return;
    case SAY:
    case HANG_UP:
    case SEGMENT:
    case WHAT_COUNT:
        break;
    }
    if (!end || *end < 0)
        return;
    take_all(*end);
    if (what == HANG_UP) {
        hang_up(end);
    } else if (what == SEGMENT) {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        (void)er_send_fd(*end, fd);
        close(fd);
    } else if (send(*end, data, n, MSG_NOSIGNAL) < 0) {
        assert(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
    }
}

/* ---- the rank that dials ---- */

static int make_segment(const struct er_mesh *mesh)
{
    return open("/dev/null", O_RDWR | O_CLOEXEC);
}

static struct er_mesh *open_mesh(unsigned char how)
{
    const struct er_mesh_config config = {
        .rank = RANK,
        .size = SIZE,
        .generation = 1,
        .name = "fuzz",
        .listen = {.transport = (enum er_comm_transport)(how % (ER_TRANSPORT_TCP + 1)),
                   .host = HOST,
                   .address = "",
                   .interfaces = "",
                   .local = true},
        .make_segment = make_segment};
    struct er_mesh *mesh = NULL;
    int rc = er_mesh_open(&mesh, &config, NULL);

    assert(rc == 0);
    return mesh;
}

static void see_link(const struct er_mesh *mesh, int peer, int channel)
{
    const struct link *l = &mesh->peer[peer].link[channel];

    assert(l->reply_n <= sizeof(l->reply) && l->addr >= 0 && l->addr < ER_HOST_ADDR_MAX);
    assert(l->table_n <= sizeof(l->head) + mesh->table_bytes);
    assert(l->state <= LINK_DIALING || l->fd >= 0);
    assert(l->state != LINK_UP || mesh->secret_known);
}

static void see(const struct er_mesh *mesh)
{
    char text[256];

    for (int i = 0; i < SIZE; i++) {
        assert(mesh->peer[i].rec.addr_n <= ER_HOST_ADDR_MAX);
        for (int c = 0; c < ER_MESH_CHANNEL_COUNT; c++)
            see_link(mesh, i, c);
    }
    er_mesh_missing(mesh, text, sizeof(text));
    assert(memchr(mesh->last, 0, sizeof(mesh->last)) && memchr(text, 0, sizeof(text)));
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_mesh *mesh;
    int rc = ER_IN_PROGRESS;

    if (n < 3)
        return 0;
    now_us = ER_US_PER_S;
    dialed = 0;
    next_dial = SAY;
    memset(ends, -1, sizeof(ends));
    mesh = open_mesh(data[0]);
    record.n = (size_t)data[1] | (size_t)data[2] << 8;
    record.n = record.n < n - 3 ? record.n : n - 3;
    record.data = data + 3;
    data += 3 + record.n;
    n -= 3 + record.n;
    for (int i = 0; i < PIECES_MAX && n >= PIECE && rc == ER_IN_PROGRESS; i++) {
        size_t length = (size_t)data[2] | (size_t)data[3] << 8;

        rc = er_mesh_step(mesh, 0, &err);
        length = length < n - PIECE ? length : n - PIECE;
        happen((enum what)(data[0] % WHAT_COUNT), data[1], data + PIECE, length);
        see(mesh);
        data += PIECE + length;
        n -= PIECE + length;
    }
    if (rc == ER_IN_PROGRESS && er_mesh_step(mesh, 0, &err) < 0)
        assert(err.text[0]);
    see(mesh);
    er_mesh_close(mesh);
    for (int i = 0; i < ENDS; i++)
        hang_up(&ends[i]);
    return 0;
}
