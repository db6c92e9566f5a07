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
    size_t size = (size_t)config->size, strangers = size + ER_MESH_STRANGERS;
    size_t polls = size * ER_MESH_CHANNEL_COUNT + strangers + ER_ARRAY_N(mesh->listen_fd);

    if (!mesh)
        return NULL;
    mesh->config = *config;
    mesh->listen_fd[0] = mesh->listen_fd[1] = mesh->segment_fd = mesh->missing = -1;
    mesh->name_hash = hash_name(config->name);
    mesh->strangers_n = (int)strangers;
    mesh->stranger = calloc(strangers, sizeof(*mesh->stranger));
    mesh->poll = calloc(polls, sizeof(*mesh->poll));
    mesh->quiet = calloc(polls, sizeof(*mesh->quiet));
    mesh->peer = calloc(size, sizeof(*mesh->peer));
    if (!mesh->stranger || !mesh->poll || !mesh->quiet || !mesh->peer) {
        mesh->strangers_n = 0;
        return NULL;
    }
    for (int i = 0; i < mesh->strangers_n; i++)
        mesh->stranger[i].fd = -1;
    for (int i = 0; i < config->size; i++)
        for (int c = 0; c < ER_MESH_CHANNEL_COUNT; c++)
            mesh->peer[i].link[c].fd = -1;
    return ER_TAKE(mesh);
}

/* Whom the secret is from, publishes; it counts itself among those who have come. */
static int begin_gathering(struct er_mesh *mesh, struct er_error *err)
{
    int rank = mesh->config.rank;

    mesh->peer[rank].rec = mesh->mine;
    if (rank != 0)
        return 0;
    memcpy(mesh->secret, mesh->mine.secret, sizeof(mesh->secret));
    mesh->secret_known = true;
    mesh->come_n = 1;
    mesh->note_us = er_now_us() + ER_MESH_NOTE_US;
    return mesh->config.size > 1 ? publish(mesh, err) : er_mesh_settle(mesh, err);
}

int er_mesh_open(struct er_mesh **ret, const struct er_mesh_config *config, struct er_error *err)
{
    ER_CLEANUP(er_mesh_close_cleanup) struct er_mesh *mesh = new_mesh(config);
    int rc = 0;

    if (!mesh)
        return er_error_set(err, -ENOMEM, "connections: out of memory");
    mesh->mine =
        (struct er_host_record){.transport = config->listen.transport, .host = config->listen.host};
    if (config->size > 1)
        rc = er_host_listen(&mesh->mine, &config->listen, mesh->listen_fd, err);
    if (rc == 0)
        rc = begin_gathering(mesh, err);
    if (rc < 0)
        return rc;
    *ret = ER_TAKE(mesh);
    return 0;
}

static void stop_listening(struct er_mesh *mesh)
{
    er_mesh_close_fd(&mesh->listen_fd[0]);
    er_mesh_close_fd(&mesh->listen_fd[1]);
    for (int i = 0; i < mesh->strangers_n; i++)
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
    free(mesh->stranger);
    free(mesh->table);
    free(mesh->poll);
    free(mesh->quiet);
    free(mesh->peer);
    free(mesh);
    errno = saved;
}

void er_mesh_link_up(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];

    assert(l->state != LINK_UP && l->fd >= 0);
    l->state = LINK_UP;
    er_host_tune(l->fd, mesh->config.listen.local || mesh->peer[peer].rec.host == mesh->mine.host,
                 channel == ER_MESH_DATA ? mesh->config.pace_bytes_per_s : 0);
    mesh->down_n--;
}

/* A member that is lost while we connect will not come back under this generation. What one that
 * was ready has sent on its links is still to be read. */
static int check_lives(struct er_mesh *mesh, struct er_error *err)
{
    er_mesh_watch(mesh);
    for (int i = 0; i < mesh->config.size; i++) {
        const struct er_mesh_peer *p = &mesh->peer[i].pub;

        if (p->life == ER_MESH_FAILED)
            return er_error_set(err, p->in.code, "%s (told by rank %d)", p->in.text, i);
        if (p->life != ER_MESH_ALIVE && !(p->life == ER_MESH_LEFT && p->in.ready))
            return er_error_set(err, ER_E_PEER_LOST, "rank %d %s while connecting", i,
                                p->life == ER_MESH_LEFT ? "left" : "closed its connection");
    }
    return 0;
}

/* `quiet`: set when poll() finds nothing for it, so that nobody tries in vain. */
static void add_poll(struct er_mesh *mesh, nfds_t *n, int fd, short events, bool *quiet)
{
    if (fd < 0)
        return;
    mesh->quiet[*n] = quiet;
    mesh->poll[(*n)++] = (struct pollfd){.fd = fd, .events = events};
}

static short link_events(const struct er_mesh *mesh, const struct link *l)
{
    bool sending = l->state == LINK_TABLE && mesh->config.rank == 0 && mesh->table_known;

    return l->state == LINK_DIALING || sending ? POLLOUT : POLLIN;
}

static nfds_t fill_poll(struct er_mesh *mesh)
{
    nfds_t n = 0;

    for (size_t i = 0; i < ER_ARRAY_N(mesh->listen_fd); i++)
        add_poll(mesh, &n, mesh->listen_fd[i], POLLIN, NULL);
    for (int i = 0; i < mesh->strangers_n; i++)
        if (mesh->stranger[i].hello_n < sizeof(struct er_wire_hello) ||
            mesh->stranger[i].record_n < mesh->stranger[i].hello.record_n)
            add_poll(mesh, &n, mesh->stranger[i].fd, POLLIN, &mesh->stranger[i].quiet);
    for (int i = 0; i < mesh->config.size; i++)
        for (int c = 0; c < ER_MESH_CHANNEL_COUNT; c++) {
            struct link *l = &mesh->peer[i].link[c];

            if (l->state != LINK_UP || c == ER_MESH_CONTROL) /* data may come early: not ours */
                add_poll(mesh, &n, l->fd, link_events(mesh, l), &l->quiet);
        }
    return n;
}

/* Until something may have changed; rank 0's record is waited for in the key-value store. */
static int wait_for_change(struct er_mesh *mesh, uint64_t wait_us, struct er_error *err)
{
    uint64_t slice_us = wait_us < ER_MESH_RETRY_US ? wait_us : ER_MESH_RETRY_US;
    struct link *first = &mesh->peer[0].link[ER_MESH_CONTROL];
    nfds_t n;

    if (mesh->config.rank > 0 && first->state == LINK_RECORD && mesh->peer[0].rec.addr_n == 0) {
        int rc = er_mesh_read_record(mesh, slice_us, err);

        if (rc == 0)
            first->state = LINK_DIALING;
        return rc < 0 ? rc : 0;
    }
    n = fill_poll(mesh);
    poll(mesh->poll, n, er_poll_ms(0, slice_us));
    for (nfds_t i = 0; i < n; i++)
        if (mesh->quiet[i])
            *mesh->quiet[i] = mesh->poll[i].revents == 0;
    return 0;
}

bool er_mesh_passes(const struct er_mesh *mesh, int from, int to)
{
    return mesh->transport != ER_TRANSPORT_TCP && from == mesh->leader && to != from &&
           mesh->peer[to].rec.host == mesh->mine.host;
}

/* SHM where one host has all; TCP where that was asked for; else AUTO. */
static enum er_comm_transport settle_transport(const struct er_mesh *mesh)
{
    for (int i = 0; i < mesh->config.size; i++)
        if (mesh->peer[i].rec.host != mesh->mine.host)
            return mesh->config.listen.transport;
    return mesh->config.listen.transport == ER_TRANSPORT_AUTO ? ER_TRANSPORT_SHM
                                                              : mesh->config.listen.transport;
}

int er_mesh_settle(struct er_mesh *mesh, struct er_error *err)
{
    enum er_comm_transport wanted = mesh->config.listen.transport;

    mesh->leader = -1;
    for (int i = 0; i < mesh->config.size; i++) {
        const struct er_host_record *rec = &mesh->peer[i].rec;

        if (rec->transport != wanted)
            return er_error_set(err, ER_E_MISMATCH, "rank %d wants transport %s, rank %d %s", i,
                                er_host_transport_word(rec->transport), mesh->config.rank,
                                er_host_transport_word(wanted));
        if (wanted == ER_TRANSPORT_SHM && rec->host != mesh->mine.host)
            return er_error_set(err, ER_E_CONFIG,
                                "rank %d is on another host: shared memory does not reach it", i);
        if (mesh->leader < 0 && rec->host == mesh->mine.host)
            mesh->leader = i;
    }
    mesh->transport = settle_transport(mesh);
    mesh->channels_n = mesh->transport == ER_TRANSPORT_SHM ? 1 : ER_MESH_CHANNEL_COUNT;
    mesh->down_n = (mesh->config.size - 1) * mesh->channels_n;
    mesh->table_known = true;
    if (mesh->leader == mesh->config.rank && mesh->transport != ER_TRANSPORT_TCP) {
        mesh->segment_fd = mesh->config.make_segment(mesh);
        if (mesh->segment_fd < 0)
            return er_error_set(err, mesh->segment_fd, "shared segment: %s",
                                er_error_name(mesh->segment_fd));
    }
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
    rc = mesh->config.rank == 0 ? er_mesh_step_table(mesh, err) : 0;
    if (rc < 0)
        return rc;
    if (!mesh->table_known || mesh->down_n > 0)
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
    int missing = -1;

    for (int i = mesh->config.size - 1; i >= 0; i--)
        for (int c = 0; c < (mesh->table_known ? mesh->channels_n : 1); c++)
            if (i != mesh->config.rank && mesh->peer[i].link[c].state != LINK_UP &&
                (mesh->config.rank != 0 || mesh->table_known || mesh->peer[i].link[c].fd < 0))
                missing = i;
    if (mesh->config.rank != 0 && !mesh->table_known)
        missing = mesh->missing >= 0 ? mesh->missing : 0;
    if (missing < 0)
        snprintf(ret, cap, "all ranks are connected");
    else
        snprintf(ret, cap, "rank %d is not connected%s%s%s", missing,
                 mesh->last[0] ? " (last: " : "", mesh->last, mesh->last[0] ? ")" : "");
}

uint64_t er_mesh_host(const struct er_mesh *mesh, int rank)
{
    return mesh->peer[rank].rec.host;
}

enum er_comm_transport er_mesh_transport(const struct er_mesh *mesh)
{
    return mesh->transport;
}

int er_mesh_size(const struct er_mesh *mesh)
{
    return mesh->config.size;
}

int er_mesh_rank(const struct er_mesh *mesh)
{
    return mesh->config.rank;
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

/* Rank 0 says who is missing until it has the table to send. */
int er_mesh_hear_table(struct er_mesh *mesh, struct link *l, struct er_error *err)
{
    struct er_mesh_peer *p = &mesh->peer[0].pub;
    ssize_t n;

    if (p->in_n > 0) { /* in the middle of a frame */
        hear(p, l->fd);
        if (p->in_n == 0)
            mesh->missing = (int)p->in.missing;
        return p->life == ER_MESH_ALIVE ? 1 : -ECONNRESET;
    }
    n = er_mesh_receive_table(mesh, l, err);
    if (n == 0 && l->table_n == sizeof(l->head) && l->head.magic == ER_WIRE_MAGIC) {
        memcpy(&p->in, &l->head, sizeof(l->head));
        p->in_n = sizeof(l->head);
        l->table_n = 0;
        return 1;
    }
    return (int)n;
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
    const struct link *l = &mesh->peer[peer].link[ER_MESH_CONTROL];
    bool before_table = mesh->config.rank == 0 && l->state == LINK_TABLE && l->table_n == 0;
    int fd = before_table ? l->fd : er_mesh_fd(mesh, peer, ER_MESH_CONTROL);

    if (fd >= 0)
        send(fd, frame, sizeof(*frame), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void er_mesh_tell(struct er_mesh *mesh, enum er_mesh_life life, int code, uint64_t seq,
                  const char *text)
{
    struct er_mesh_frame frame = {.magic = ER_WIRE_MAGIC,
                                  .life = (uint32_t)life,
                                  .code = code < 0 ? code : ER_E_ABORTED,
                                  .ready = mesh->table_known && mesh->down_n == 0,
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

void er_mesh_say_missing(struct er_mesh *mesh, int missing)
{
    struct er_mesh_frame frame = {
        .magic = ER_WIRE_MAGIC, .life = ER_MESH_ALIVE, .missing = (uint32_t)missing};

    for (int i = 1; i < mesh->config.size; i++)
        send_frame(mesh, i, &frame);
}
