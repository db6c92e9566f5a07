/* libFuzzer: what a stranger, a member and rank 0 may send while ranks connect, and control frames
 * after that, through real sockets into host_accept.c, host_dial.c, host_table.c and host_mesh.c.
 * The first byte says in which role the bytes come. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/host_mesh_internal.h"

enum { SIZE = 3, BYTES_MAX = 16 << 10 };

enum role { TO_RANK_0, TO_RANK_1, REPLY, TABLE, FRAMES, ROLE_COUNT };

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

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

/* Our end of a connection over which exactly these bytes come. */
static int says(const unsigned char *data, size_t n)
{
    int end[2], rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, end);

    assert(rc == 0);
    if (send(end[1], data, n, MSG_NOSIGNAL) < 0)
        assert(errno == EAGAIN);
    shutdown(end[1], SHUT_WR);
    close(end[1]);
    return end[0];
}

static void step(struct er_mesh *mesh)
{
    struct er_error err = ER_ERROR_INIT;

    for (int i = 0; i < 8; i++)
        if (er_mesh_step(mesh, 0, &err) < 0)
            break;
    for (int i = 0; i < 8; i++)
        er_mesh_watch(mesh);
    for (int i = 0; i < SIZE; i++) {
        const struct er_mesh_peer *p = er_mesh_peer(mesh, i);

        assert(p->in_n <= sizeof(p->in) && p->life <= ER_MESH_FAILED);
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

static void stranger_comes(struct er_mesh *mesh, int fd)
{
    mesh->stranger[0] = (struct stranger){.fd = fd};
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
    int fd;

    if (n < 2 || n > BYTES_MAX)
        return 0;
    fd = says(data + 1, n - 1);
    mesh = open_mesh(role == TO_RANK_0 ? 0 : 1);
    switch (role) {
    case TO_RANK_1:
        know_all(mesh);
        stranger_comes(mesh, fd);
        break;
    case TO_RANK_0:
        stranger_comes(mesh, fd);
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
    return 0;
}
