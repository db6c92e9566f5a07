/* libFuzzer: what a stranger, a member and rank 0 may send while ranks connect, and control frames
 * after that, through real sockets into host_accept.c, host_table.c and host_mesh.c. Dialing is
 * fuzz_comm_dial.c's.
 * The first byte says in which role the bytes come; those for rank 0 are those of two strangers,
 * behind two bytes of the first one's length. */
#include <assert.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/host_mesh_internal.h"

enum { SIZE = 3, BYTES_MAX = 16 << 10 };

enum role { TO_RANK_0, TO_RANK_1, REPLY, TABLE, FRAMES, ROLE_COUNT };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
uint64_t __wrap_er_now_us(void);

/* ---- the clock: turned by step() ---- */

static uint64_t now_us;

uint64_t __wrap_er_now_us(void)
{
    return now_us;
}

/* ---- libelastic's key-value store: empty ---- */

int er_kv_put(struct er_ctx *ctx, const char *key, const void *value, size_t n,
              struct er_error *err)
{
    return 0;
}

int er_kv_get(struct er_ctx *ctx, const char *key, void *ret, size_t cap, size_t *ret_n,
              uint64_t timeout_us, struct er_error *err)
{
    return 1;
}

static int no_segment(const struct er_mesh *mesh)
{
    return -ENOSYS;
}

/* ---- a mesh in the middle of connecting, and somebody who talks to it ---- */

/* Addresses are dialed that anybody may have written: in a network of our own, which leads nowhere.
 */
static void leave_network(void)
{
    static bool done;

    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd;

    if (done)
        return;
    done = true;
    if (unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    (void)ioctl(fd, SIOCSIFFLAGS, &lo);
    close(fd);
}

static struct er_mesh *open_mesh(int rank)
{
    struct er_mesh_config config = {
        .rank = rank,
        .size = SIZE,
        .generation = 1,
        .name = "fuzz",
        .listen = {.transport = ER_TRANSPORT_TCP, .address = "", .interfaces = "", .local = true},
        .make_segment = no_segment};
    struct er_mesh *mesh = NULL;
    int rc = er_mesh_open(&mesh, &config, NULL);

    assert(rc == 0);
    /* constant, so that a corpus can know them */
    memset(mesh->secret, 's', sizeof(mesh->secret));
    memset(&mesh->name_hash, 's', sizeof(mesh->name_hash));
    mesh->secret_known = true;
    return mesh;
}

enum { ENDS = 4 };
static int ends[ENDS], ends_n; /* the other ends: what we say is taken */

/* Our end of a connection over which exactly these bytes come. */
static int says(const unsigned char *data, size_t n)
{
    int end[2], rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, end);

    assert(rc == 0);
    if (send(end[1], data, n, MSG_NOSIGNAL) < 0)
        assert(errno == EAGAIN);
    shutdown(end[1], SHUT_WR);
    ends[ends_n++] = end[1];
    return end[0];
}

/* It has no more room than it has, and is waited for only where it is read. */
static void see_stranger(const struct er_mesh *mesh, const struct stranger *s)
{
    bool heard = s->hello_n == sizeof(s->hello) && s->hello.magic == ER_WIRE_MAGIC;

    assert(s->hello_n <= sizeof(s->hello) && s->record_n < sizeof(s->record));
    assert(s->fd < 0 || !heard || mesh->config.rank == 0 || s->hello.record_n == 0);
    assert(s->fd < 0 || !heard || s->hello.record_n < sizeof(s->record));
}

static void step(struct er_mesh *mesh)
{
    struct er_error err = ER_ERROR_INIT;

    for (int i = 0; i < 8; i++) {
        if (er_mesh_step(mesh, 0, &err) < 0)
            break;
        now_us += i < 6 ? ER_MESH_NOTE_US : 20 * ER_US_PER_S; /* more than a hello may take */
    }
    for (int i = 0; i < 8; i++)
        er_mesh_watch(mesh);
    for (int i = 0; i < mesh->strangers_n; i++)
        see_stranger(mesh, &mesh->stranger[i]);
    for (int i = 0; i < SIZE; i++) {
        const struct er_mesh_peer *p = er_mesh_peer(mesh, i);

        assert(p->in_n <= sizeof(p->in) && p->life <= ER_MESH_FAILED);
        for (int c = 0; c < ER_MESH_CHANNEL_COUNT; c++) {
            const struct link *l = &mesh->peer[i].link[c];

            assert(l->reply_n <= sizeof(l->reply));
            assert(l->table_n <= sizeof(l->head) + mesh->table_bytes);
            assert(mesh->peer[i].rec.addr_n <= ER_HOST_ADDR_MAX);
        }
        assert(memchr(p->in.text, '\0', sizeof(p->in.text)) || p->life != ER_MESH_FAILED);
    }
}

/* As after the table. */
static void know_all(struct er_mesh *mesh)
{
    for (int i = 0; i < SIZE; i++)
        mesh->peer[i].rec.transport = ER_TRANSPORT_TCP;
    if (er_mesh_settle(mesh, NULL) < 0)
        abort();
}

static void stranger_comes(struct er_mesh *mesh, int place, int fd)
{
    mesh->stranger[place] = (struct stranger){.fd = fd, .since_us = er_now_us()};
}

/* By its own door. */
static void stranger_dials(struct er_mesh *mesh, const unsigned char *data, size_t n)
{
    struct linger at_once = {.l_onoff = 1};
    int fd = -1;

    if (mesh->mine.addr_n == 0 || er_host_dial(&mesh->mine, 0, &fd) < 0)
        return;
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)!send(fd, data, n, MSG_NOSIGNAL);
    ends[ends_n++] = fd;
}

static void linked(struct er_mesh *mesh, int peer, enum link_state state, int fd)
{
    struct link *l = &mesh->peer[peer].link[ER_MESH_CONTROL];

    l->fd = fd;
    l->state = state;
    mesh->peer[peer].rec.addr_n = 1;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    enum role role = n > 0 ? (enum role)(data[0] % ROLE_COUNT) : TO_RANK_0;
    struct er_mesh *mesh;
    int fd, second = -1;

    if (n < 4 || n > BYTES_MAX)
        return 0;
    leave_network();
    now_us = ER_US_PER_S;
    ends_n = 0;
    if (role == TO_RANK_0) {
        size_t first = (size_t)data[1] | (size_t)data[2] << 8;

        first = first < n - 3 ? first : n - 3;
        fd = says(data + 3, first);
        second = says(data + 3 + first, n - 3 - first);
    } else {
        fd = says(data + 1, n - 1);
    }
    mesh = open_mesh(role == TO_RANK_0 ? 0 : 1);
    switch (role) {
    case TO_RANK_1:
        if (data[0] < 128) /* else the table has not come yet */
            know_all(mesh);
        stranger_comes(mesh, 0, fd);
        break;
    case TO_RANK_0:
        stranger_comes(mesh, 0, fd);
        stranger_comes(mesh, 1, second);
        if (n % 2)
            stranger_dials(mesh, data + 3, n - 3);
        break;
    case REPLY:
        linked(mesh, 0, LINK_REPLY, fd);
        break;
    case TABLE:
        linked(mesh, 0, LINK_TABLE, fd);
        break;
    case FRAMES:
        know_all(mesh);
        linked(mesh, 0, LINK_UP, fd);
        break;
    case ROLE_COUNT:
        break;
    }
    step(mesh);
    er_mesh_close(mesh);
    while (ends_n > 0)
        close(ends[--ends_n]);
    return 0;
}
