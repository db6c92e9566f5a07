#include "runtime/host_mesh.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "runtime/host_mesh_internal.h"

void er_mesh_close_fd(int *fd)
{
    er_cleanup_fd(fd);
    *fd = -1;
}

static uint64_t hash_name(const char *name)
{
    uint64_t h = 0;

    for (const char *p = name; *p; p++)
        h = er_rand_mix(h ^ (unsigned char)*p);
    return h;
}

void er_mesh_key(const struct er_mesh *mesh, int rank, char ret[ER_MESH_KEY_MAX])
{
    snprintf(ret, ER_MESH_KEY_MAX, "comm/%s/%d", mesh->config.name, rank);
}

static int publish(struct er_mesh *mesh, struct er_error *err)
{
    char key[ER_MESH_KEY_MAX], text[ER_HOST_RECORD_MAX];
    int n = er_host_record_format(&mesh->mine, text, sizeof(text));
    int rc;

    if (n < 0)
        return er_error_set(err, n, "address record does not fit");
    er_mesh_key(mesh, mesh->config.rank, key);
    rc = er_kv_put(mesh->config.ctx, key, text, (size_t)n, err);
    return rc < 0 ? er_error_wrap(err, rc, "publish own address") : 0;
}

ER_CLEANUP_FOR(er_mesh_close, struct er_mesh)

static struct er_mesh *new_mesh(const struct er_mesh_config *config)
{
    ER_CLEANUP(er_mesh_close_cleanup) struct er_mesh *mesh = calloc(1, sizeof(*mesh));
    ER_CLEANUP(er_cleanup_fd) int segment_fd = config->segment_fd;
    size_t size = (size_t)config->size;

    if (!mesh)
        return NULL;
    mesh->config = *config;
    mesh->listen_fd = -1;
    mesh->segment_fd = ER_TAKE_FD(segment_fd);
    for (int i = 0; i < ER_MESH_STRANGERS_MAX; i++)
        mesh->stranger[i].fd = -1;
    mesh->channels_n = config->transport == ER_TRANSPORT_SHM ? 1 : ER_MESH_CHANNEL_COUNT;
    mesh->down_n = (config->size - 1) * mesh->channels_n;
    mesh->name_hash = hash_name(config->name);
    mesh->poll =
        calloc(size * ER_MESH_CHANNEL_COUNT + ER_MESH_STRANGERS_MAX + 1, sizeof(*mesh->poll));
    mesh->peer = calloc(size, sizeof(*mesh->peer));
    if (!mesh->poll || !mesh->peer)
        return NULL;
    for (int i = 0; i < config->size; i++)
        for (int c = 0; c < ER_MESH_CHANNEL_COUNT; c++)
            mesh->peer[i].link[c].fd = -1;
    return ER_TAKE(mesh);
}

int er_mesh_open(struct er_mesh **ret, const struct er_mesh_config *config, struct er_error *err)
{
    ER_CLEANUP(er_mesh_close_cleanup) struct er_mesh *mesh = new_mesh(config);
    int rc;

    if (!mesh)
        return er_error_set(err, -ENOMEM, "connections: out of memory");
    if (config->size > 1) {
        rc = er_host_listen(&mesh->mine, config->transport, config->address, config->local,
                            &mesh->listen_fd, err);
        if (rc < 0)
            return rc;
        mesh->secret_known = config->rank == 0;
        if (mesh->secret_known)
            memcpy(mesh->secret, mesh->mine.secret, sizeof(mesh->secret));
        rc = publish(mesh, err);
        if (rc < 0)
            return rc;
    }
    *ret = ER_TAKE(mesh);
    return 0;
}

static void stop_listening(struct er_mesh *mesh)
{
    er_mesh_close_fd(&mesh->listen_fd);
    for (int i = 0; i < ER_MESH_STRANGERS_MAX; i++)
        er_mesh_close_fd(&mesh->stranger[i].fd);
}

void er_mesh_close(struct er_mesh *mesh)
{
    int saved = errno;

    if (!mesh)
        return;
    stop_listening(mesh);
    er_mesh_close_fd(&mesh->segment_fd);
    for (int i = 0; mesh->peer && i < mesh->config.size; i++)
        for (int c = 0; c < ER_MESH_CHANNEL_COUNT; c++)
            er_mesh_close_fd(&mesh->peer[i].link[c].fd);
    free(mesh->poll);
    free(mesh->peer);
    free(mesh);
    errno = saved;
}

void er_mesh_link_up(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];

    assert(l->state != LINK_UP && l->fd >= 0);
    l->state = LINK_UP;
    er_host_tune(l->fd, mesh->config.local || mesh->peer[peer].rec.host == mesh->mine.host,
                 channel == ER_MESH_DATA ? mesh->config.pace_bytes_per_s : 0);
    mesh->down_n--;
}

/* A member that is lost while we connect will not come back under this generation. */
static int check_lives(struct er_mesh *mesh, struct er_error *err)
{
    er_mesh_watch(mesh);
    for (int i = 0; i < mesh->config.size; i++) {
        const struct er_mesh_peer *p = &mesh->peer[i].pub;

        if (p->life == ER_MESH_FAILED)
            return er_error_set(err, p->in.code, "%s (told by rank %d)", p->in.text, i);
        if (p->life != ER_MESH_ALIVE)
            return er_error_set(err, ER_E_PEER_LOST, "rank %d %s while connecting", i,
                                p->life == ER_MESH_LEFT ? "left" : "closed its connection");
    }
    return 0;
}

static void add_poll(struct er_mesh *mesh, nfds_t *n, int fd, short events)
{
    if (fd >= 0)
        mesh->poll[(*n)++] = (struct pollfd){.fd = fd, .events = events};
}

/* Until something may have changed. A missing record is waited for in the key-value store, unless
 * somebody waits for our answer. */
static int wait_for_change(struct er_mesh *mesh, uint64_t wait_us, struct er_error *err)
{
    uint64_t slice_us = wait_us < ER_MESH_RETRY_US ? wait_us : ER_MESH_RETRY_US;
    int missing = -1, busy = 0;
    nfds_t n = 0;

    add_poll(mesh, &n, mesh->listen_fd, POLLIN);
    for (int i = 0; i < ER_MESH_STRANGERS_MAX; i++)
        add_poll(mesh, &n,
                 mesh->stranger[i].hello_n < sizeof(struct er_wire_hello) ? mesh->stranger[i].fd
                                                                          : -1,
                 POLLIN);
    for (int i = 0; i < mesh->config.size; i++)
        for (int c = 0; c < mesh->channels_n; c++) {
            const struct link *l = &mesh->peer[i].link[c];

            if (l->state == LINK_RECORD && i < mesh->config.rank && missing < 0)
                missing = i;
            busy += l->state > LINK_RECORD && l->state < LINK_UP;
            if (l->state != LINK_UP || c == ER_MESH_CONTROL) /* data may come early: not ours */
                add_poll(mesh, &n, l->fd, l->state == LINK_DIALING ? POLLOUT : POLLIN);
        }
    if (missing >= 0 && !busy && mesh->peer[missing].rec.addr_n == 0) {
        int rc = er_mesh_read_record(mesh, missing, slice_us, err);

        if (rc == 0)
            mesh->peer[missing].link[ER_MESH_CONTROL].state = LINK_DIALING;
        return rc < 0 ? rc : 0;
    }
    poll(mesh->poll, n, er_poll_ms(0, slice_us));
    return 0;
}

static int step_once(struct er_mesh *mesh, struct er_error *err)
{
    int rc = check_lives(mesh, err);

    if (rc < 0)
        return rc;
    rc = er_mesh_step_links(mesh, err);
    if (rc < 0)
        return rc;
    er_mesh_step_accept(mesh);
    if (mesh->down_n > 0)
        return ER_IN_PROGRESS;
    stop_listening(mesh);
    return 0;
}

int er_mesh_step(struct er_mesh *mesh, uint64_t wait_us, struct er_error *err)
{
    uint64_t deadline_us = er_deadline_in(er_now_us(), wait_us), now;
    int rc;

    for (;;) {
        rc = step_once(mesh, err);
        now = er_now_us();
        if (rc != ER_IN_PROGRESS || now >= deadline_us)
            return rc;
        rc = wait_for_change(mesh, deadline_us - now, err);
        if (rc < 0)
            return rc;
    }
}

void er_mesh_missing(const struct er_mesh *mesh, char *ret, size_t cap)
{
    for (int i = 0; i < mesh->config.size; i++)
        for (int c = 0; c < mesh->channels_n; c++)
            if (i != mesh->config.rank && mesh->peer[i].link[c].state != LINK_UP) {
                snprintf(ret, cap, "rank %d is not connected%s%s%s", i,
                         mesh->last[0] ? " (last: " : "", mesh->last, mesh->last[0] ? ")" : "");
                return;
            }
    snprintf(ret, cap, "all ranks are connected");
}

int er_mesh_fd(const struct er_mesh *mesh, int peer, enum er_mesh_channel channel)
{
    const struct link *l = &mesh->peer[peer].link[channel];

    return l->state == LINK_UP ? l->fd : -1;
}

int er_mesh_take_segment(struct er_mesh *mesh)
{
    return ER_TAKE_FD(mesh->segment_fd);
}

const struct er_mesh_peer *er_mesh_peer(const struct er_mesh *mesh, int peer)
{
    return &mesh->peer[peer].pub;
}

static void set_life(struct er_mesh_peer *p, enum er_mesh_life life)
{
    p->life = life;
    p->since_us = er_now_us();
}

/* Returns whether anything was learned. */
static bool hear(struct er_mesh_peer *p, int fd)
{
    ssize_t n = recv(fd, (char *)&p->in + p->in_n, sizeof(p->in) - p->in_n, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        set_life(p, ER_MESH_LOST);
        return true;
    }
    p->in_n += (size_t)n;
    if (p->in_n < sizeof(p->in))
        return false;
    if (p->in.magic == ER_WIRE_MAGIC && p->in.life == ER_MESH_ALIVE) {
        p->waiting = p->in.waiting;
        p->in_n = 0;
        return true;
    }
    p->in.text[sizeof(p->in.text) - 1] = '\0';
    if (p->in.magic != ER_WIRE_MAGIC || p->in.code >= 0)
        set_life(p, ER_MESH_LOST);
    else
        set_life(p, p->in.life == ER_MESH_LEFT ? ER_MESH_LEFT : ER_MESH_FAILED);
    return true;
}

bool er_mesh_watch(struct er_mesh *mesh)
{
    nfds_t n = (nfds_t)mesh->config.size;
    bool changed = false;

    for (nfds_t i = 0; i < n; i++) {
        bool alive = mesh->peer[i].pub.life == ER_MESH_ALIVE;

        mesh->poll[i].fd = alive ? er_mesh_fd(mesh, (int)i, ER_MESH_CONTROL) : -1;
        mesh->poll[i].events = POLLIN;
    }
    if (poll(mesh->poll, n, 0) <= 0)
        return false;
    for (nfds_t i = 0; i < n; i++)
        if (mesh->poll[i].fd >= 0 && mesh->poll[i].revents)
            changed |= hear(&mesh->peer[i].pub, mesh->poll[i].fd);
    return changed;
}

/* Who does not take it at once will see the connection close. */
static void send_frame(struct er_mesh *mesh, int peer, const struct er_mesh_frame *frame)
{
    int fd = er_mesh_fd(mesh, peer, ER_MESH_CONTROL);

    if (fd >= 0)
        send(fd, frame, sizeof(*frame), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void er_mesh_tell(struct er_mesh *mesh, enum er_mesh_life life, int code, uint64_t seq,
                  const char *text)
{
    struct er_mesh_frame frame = {.magic = ER_WIRE_MAGIC,
                                  .life = (uint32_t)life,
                                  .code = code < 0 ? code : ER_E_ABORTED,
                                  .seq = seq};

    snprintf(frame.text, sizeof(frame.text), "%s", text);
    for (int i = 0; i < mesh->config.size; i++)
        send_frame(mesh, i, &frame);
}

void er_mesh_say_waiting(struct er_mesh *mesh, int peer, const struct er_mesh_waiting *waiting)
{
    struct er_mesh_frame frame = {
        .magic = ER_WIRE_MAGIC, .life = ER_MESH_ALIVE, .waiting = *waiting};

    send_frame(mesh, peer, &frame);
}
