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
#include "base/fd.h"
#include "base/rand.h"
#include "runtime/host_wire.h"

enum {
    STRANGERS_MAX = 32, /* accepted, hello not yet answered; one more replaces the oldest */
    STRANGER_LIMIT_US = 10000000,
    DIAL_LIMIT_US = 2000000, /* one address */
    RETRY_US = 5000,         /* after a refusal, and between looks at a record */
    KEY_MAX = 96
};

enum link_state { LINK_RECORD, LINK_DIALING, LINK_REPLY, LINK_SEGMENT, LINK_UP };

struct link {
    int fd;
    enum link_state state;
    int addr;          /* index of the address that is tried */
    uint64_t retry_us; /* not before */
    uint64_t since_us; /* dialing began */
    struct er_wire_reply reply;
    size_t reply_n;
};

struct stranger {
    int fd; /* -1: free */
    uint64_t since_us;
    struct er_wire_hello hello;
    size_t hello_n;
};

struct peer {
    struct er_mesh_peer pub;
    struct er_host_record rec;
    struct link link[ER_MESH_CHANNEL_COUNT];
};

struct er_mesh {
    struct er_mesh_config config;
    struct er_host_record mine;
    uint8_t secret[ER_HOST_SECRET_BYTES]; /* rank 0's */
    bool secret_known;                    /* rank 0 has proved that it is current */
    uint64_t name_hash;
    int listen_fd, segment_fd;
    int channels_n;
    int down_n;     /* links not up yet */
    char last[160]; /* last refusal or error met */
    struct stranger stranger[STRANGERS_MAX];
    struct pollfd *poll; /* (size * channels + STRANGERS_MAX + 1); owned */
    struct peer *peer;   /* (size); owned */
};

static const char *const answer_texts[ER_WIRE_ANSWER_COUNT] = {
#define ER_WIRE_TEXT(name, text) [ER_WIRE_##name] = text,
    ER_WIRE_ANSWERS(ER_WIRE_TEXT)
#undef ER_WIRE_TEXT
};

static void close_fd(int *fd)
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

static void key_of(const struct er_mesh *mesh, int rank, char ret[KEY_MAX])
{
    snprintf(ret, KEY_MAX, "comm/%s/%d", mesh->config.name, rank);
}

static int publish(struct er_mesh *mesh, struct er_error *err)
{
    char key[KEY_MAX], text[ER_HOST_RECORD_MAX];
    int n = er_host_record_format(&mesh->mine, text, sizeof(text));
    int rc;

    if (n < 0)
        return er_error_set(err, n, "address record does not fit");
    key_of(mesh, mesh->config.rank, key);
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
    for (int i = 0; i < STRANGERS_MAX; i++)
        mesh->stranger[i].fd = -1;
    mesh->channels_n = config->transport == ER_TRANSPORT_SHM ? 1 : ER_MESH_CHANNEL_COUNT;
    mesh->down_n = (config->size - 1) * mesh->channels_n;
    mesh->name_hash = hash_name(config->name);
    mesh->poll = calloc(size * ER_MESH_CHANNEL_COUNT + STRANGERS_MAX + 1, sizeof(*mesh->poll));
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
    close_fd(&mesh->listen_fd);
    for (int i = 0; i < STRANGERS_MAX; i++)
        close_fd(&mesh->stranger[i].fd);
}

void er_mesh_close(struct er_mesh *mesh)
{
    int saved = errno;

    if (!mesh)
        return;
    stop_listening(mesh);
    close_fd(&mesh->segment_fd);
    for (int i = 0; mesh->peer && i < mesh->config.size; i++)
        for (int c = 0; c < ER_MESH_CHANNEL_COUNT; c++)
            close_fd(&mesh->peer[i].link[c].fd);
    free(mesh->poll);
    free(mesh->peer);
    free(mesh);
    errno = saved;
}

static void link_up(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];

    assert(l->state != LINK_UP && l->fd >= 0);
    l->state = LINK_UP;
    er_host_tune(l->fd, mesh->config.local || mesh->peer[peer].rec.host == mesh->mine.host,
                 channel == ER_MESH_DATA ? mesh->config.pace_bytes_per_s : 0);
    mesh->down_n--;
}

/* The next address, or from the record again after a pause. */
static void retry(struct er_mesh *mesh, int peer, struct link *l, const char *why)
{
    struct er_host_record *rec = &mesh->peer[peer].rec;

    snprintf(mesh->last, sizeof(mesh->last), "rank %d at %s: %s", peer,
             l->addr < rec->addr_n ? rec->addr[l->addr] : "?", why);
    close_fd(&l->fd);
    l->reply_n = 0;
    if (l->state == LINK_DIALING && l->addr + 1 < rec->addr_n) {
        l->addr++;
        return;
    }
    l->addr = 0;
    l->state = LINK_RECORD;
    l->retry_us = er_now_us() + RETRY_US;
}

static int take_record(struct er_mesh *mesh, int peer, const char *text, size_t n,
                       struct er_error *err)
{
    struct er_host_record *rec = &mesh->peer[peer].rec;
    int rc = er_host_record_parse(rec, text, n, err);

    if (rc < 0)
        return er_error_wrap(err, rc, "rank %d", peer);
    if (rec->transport != mesh->config.transport)
        return er_error_set(err, ER_E_MISMATCH, "rank %d wants transport %s, rank %d %s", peer,
                            rec->transport == ER_TRANSPORT_SHM ? "shm" : "tcp", mesh->config.rank,
                            mesh->config.transport == ER_TRANSPORT_SHM ? "shm" : "tcp");
    if (rec->transport == ER_TRANSPORT_SHM && rec->host != mesh->mine.host)
        return er_error_set(err, ER_E_CONFIG,
                            "rank %d is on another host: shared memory does not reach it", peer);
    if (peer == 0)
        memcpy(mesh->secret, rec->secret, sizeof(mesh->secret));
    return 0;
}

/* 1: the record is not there yet. */
static int read_record(struct er_mesh *mesh, int peer, uint64_t wait_us, struct er_error *err)
{
    char key[KEY_MAX], text[ER_HOST_RECORD_MAX];
    size_t n = 0;
    int rc;

    key_of(mesh, peer, key);
    rc = er_kv_get(mesh->config.ctx, key, text, sizeof(text), &n, wait_us, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "address of rank %d", peer);
    return rc > 0 ? 1 : take_record(mesh, peer, text, n, err);
}

static void say_hello(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];
    struct er_wire_hello hello = {
        .magic = ER_WIRE_MAGIC,
        .version = ER_WIRE_VERSION,
        .channel = (uint16_t)channel,
        .from = (uint32_t)mesh->config.rank,
        .to = (uint32_t)peer,
        .size = (uint32_t)mesh->config.size,
        .transport = mesh->config.transport,
        .generation = mesh->config.generation,
        .name_hash = mesh->name_hash,
    };

    memcpy(hello.secret, mesh->secret, sizeof(hello.secret));
    if (send(l->fd, &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello)) {
        retry(mesh, peer, l, er_error_name(-errno));
        return;
    }
    l->state = LINK_REPLY;
}

static void dial(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];
    struct er_host_record *rec = &mesh->peer[peer].rec;
    int rc;

    /* A peer elsewhere is not on our loopback. */
    if (rec->transport == ER_TRANSPORT_TCP && rec->host != mesh->mine.host &&
        rec->addr_n > l->addr + 1 && strcmp(rec->addr[l->addr], "127.0.0.1") == 0)
        l->addr++;
    rc = er_host_dial(rec, l->addr, &l->fd);
    l->state = LINK_DIALING;
    l->since_us = er_now_us();
    if (rc < 0)
        retry(mesh, peer, l, er_error_name(rc));
    else if (rc == 0)
        say_hello(mesh, peer, channel);
}

static void step_dialing(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];
    struct pollfd p = {.fd = l->fd, .events = POLLOUT};
    int error = 0;
    socklen_t n = sizeof(error);

    if (l->fd < 0) {
        dial(mesh, peer, channel);
        return;
    }
    if (poll(&p, 1, 0) <= 0) {
        if (er_now_us() > l->since_us + DIAL_LIMIT_US)
            retry(mesh, peer, l, "no answer");
        return;
    }
    getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &error, &n);
    if (error)
        retry(mesh, peer, l, er_error_name(-error));
    else
        say_hello(mesh, peer, channel);
}

static bool proves(const struct er_mesh *mesh, const struct er_wire_reply *reply)
{
    for (size_t i = 0; i < sizeof(reply->proof); i++)
        if ((reply->proof[i] ^ mesh->secret[i]) != 0xff)
            return false;
    return true;
}

/* The listener may not know the secret yet: then it answers later. */
static void step_reply(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];
    ssize_t n = recv(l->fd, (char *)&l->reply + l->reply_n, sizeof(l->reply) - l->reply_n, 0);
    uint32_t answer = l->reply.answer;

    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            retry(mesh, peer, l, n == 0 ? "closed the connection" : er_error_name(-errno));
        return;
    }
    l->reply_n += (size_t)n;
    if (l->reply_n < sizeof(l->reply))
        return;
    answer = l->reply.answer;
    if (l->reply.magic != ER_WIRE_MAGIC || answer >= ER_WIRE_ANSWER_COUNT) {
        retry(mesh, peer, l, "not a communicator");
    } else if (answer != ER_WIRE_OK) {
        retry(mesh, peer, l, answer_texts[answer]);
    } else if (!proves(mesh, &l->reply)) {
        retry(mesh, peer, l, "does not know the secret");
    } else {
        mesh->secret_known = true;
        if (peer == 0 && mesh->config.transport == ER_TRANSPORT_SHM)
            l->state = LINK_SEGMENT;
        else
            link_up(mesh, peer, channel);
    }
}

static void step_segment(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];
    int fd = er_recv_fd(l->fd);

    if (fd >= 0) {
        mesh->segment_fd = fd;
        link_up(mesh, peer, channel);
    } else if (fd != -EAGAIN) {
        retry(mesh, peer, l, er_error_name(fd));
    }
}

/* A control link needs a fresh look at the record, a data link goes where the control link went. */
static int step_record(struct er_mesh *mesh, int peer, int channel, struct er_error *err)
{
    struct link *l = &mesh->peer[peer].link[channel];
    int rc = 0;

    if (er_now_us() < l->retry_us)
        return 0;
    if (channel == ER_MESH_CONTROL)
        rc = read_record(mesh, peer, 0, err);
    else if (mesh->peer[peer].link[ER_MESH_CONTROL].state != LINK_UP)
        return 0;
    if (rc == 0)
        l->state = LINK_DIALING;
    else
        l->retry_us = er_now_us() + RETRY_US;
    return rc < 0 ? rc : 0;
}

/* One link to a lower rank, as far as it goes without waiting. */
static int step_link(struct er_mesh *mesh, int peer, int channel, struct er_error *err)
{
    struct link *l = &mesh->peer[peer].link[channel];
    int rc = l->state == LINK_RECORD ? step_record(mesh, peer, channel, err) : 0;

    if (rc == 0 && l->state == LINK_DIALING)
        step_dialing(mesh, peer, channel);
    if (l->state == LINK_REPLY)
        step_reply(mesh, peer, channel);
    if (l->state == LINK_SEGMENT)
        step_segment(mesh, peer, channel);
    return rc;
}

/* Rank 0 first: its record holds the secret that the others ask for. */
static int step_links(struct er_mesh *mesh, struct er_error *err)
{
    for (int i = 0; i < mesh->config.rank; i++) {
        for (int c = 0; c < mesh->channels_n; c++) {
            int rc = mesh->peer[i].link[c].state == LINK_UP ? 0 : step_link(mesh, i, c, err);

            if (rc < 0)
                return rc;
            if (i == 0 && mesh->peer[0].link[c].state != LINK_UP)
                return 0;
        }
    }
    return 0;
}

static enum er_wire_answer answer_to(const struct er_mesh *mesh, const struct er_wire_hello *hello)
{
    const struct er_mesh_config *config = &mesh->config;

    if (hello->generation != config->generation)
        return ER_WIRE_GENERATION;
    if (memcmp(hello->secret, mesh->secret, sizeof(hello->secret)) != 0)
        return ER_WIRE_SECRET;
    if (hello->name_hash != mesh->name_hash)
        return ER_WIRE_NAME;
    if (hello->to != (uint32_t)config->rank || hello->size != (uint32_t)config->size ||
        hello->from <= hello->to || hello->from >= hello->size ||
        hello->channel >= mesh->channels_n || hello->transport != (uint32_t)config->transport)
        return ER_WIRE_RANK;
    if (mesh->peer[hello->from].link[hello->channel].state == LINK_UP)
        return ER_WIRE_TAKEN;
    return ER_WIRE_OK;
}

/* Send the answer; the link is up when it was yes. A fresh socket takes these few bytes. */
static void answer(struct er_mesh *mesh, struct stranger *s)
{
    struct er_wire_reply reply = {.magic = ER_WIRE_MAGIC, .answer = answer_to(mesh, &s->hello)};
    bool pass = mesh->segment_fd >= 0 && mesh->config.rank == 0;

    if (reply.answer == ER_WIRE_OK)
        for (size_t i = 0; i < sizeof(reply.proof); i++)
            reply.proof[i] = mesh->secret[i] ^ 0xff;
    if (send(s->fd, &reply, sizeof(reply), MSG_NOSIGNAL) == (ssize_t)sizeof(reply) &&
        reply.answer == ER_WIRE_OK && (!pass || er_send_fd(s->fd, mesh->segment_fd) == 0)) {
        mesh->peer[s->hello.from].link[s->hello.channel].fd = ER_TAKE_FD(s->fd);
        link_up(mesh, (int)s->hello.from, s->hello.channel);
    }
    close_fd(&s->fd);
}

static void step_stranger(struct er_mesh *mesh, struct stranger *s)
{
    ssize_t n = 1;

    if (s->hello_n < sizeof(s->hello)) {
        n = recv(s->fd, (char *)&s->hello + s->hello_n, sizeof(s->hello) - s->hello_n, 0);
        if (n > 0)
            s->hello_n += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EINTR))
            n = 1;
    }
    if (n <= 0 || er_now_us() > s->since_us + STRANGER_LIMIT_US ||
        (s->hello_n == sizeof(s->hello) &&
         (s->hello.magic != ER_WIRE_MAGIC || s->hello.version != ER_WIRE_VERSION)))
        close_fd(&s->fd);
    else if (s->hello_n == sizeof(s->hello) && mesh->secret_known)
        answer(mesh, s);
}

static struct stranger *stranger_slot(struct er_mesh *mesh)
{
    struct stranger *oldest = &mesh->stranger[0];

    for (int i = 0; i < STRANGERS_MAX; i++) {
        struct stranger *s = &mesh->stranger[i];

        if (s->fd < 0)
            return s;
        if (s->since_us < oldest->since_us)
            oldest = s;
    }
    close_fd(&oldest->fd);
    return oldest;
}

static void step_accept(struct er_mesh *mesh)
{
    for (int i = 0; i < STRANGERS_MAX; i++) {
        int fd = accept4(mesh->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            break;
        *stranger_slot(mesh) = (struct stranger){.fd = fd, .since_us = er_now_us()};
    }
    for (int i = 0; i < STRANGERS_MAX; i++)
        if (mesh->stranger[i].fd >= 0)
            step_stranger(mesh, &mesh->stranger[i]);
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
    uint64_t slice_us = wait_us < RETRY_US ? wait_us : RETRY_US;
    int missing = -1, busy = 0;
    nfds_t n = 0;

    add_poll(mesh, &n, mesh->listen_fd, POLLIN);
    for (int i = 0; i < STRANGERS_MAX; i++)
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
        int rc = read_record(mesh, missing, slice_us, err);

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
    rc = step_links(mesh, err);
    if (rc < 0)
        return rc;
    step_accept(mesh);
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
    p->in.text[sizeof(p->in.text) - 1] = '\0';
    if (p->in.magic == ER_WIRE_MAGIC && p->in.life == ER_MESH_ALIVE) {
        p->waiting = p->in.seq;
        p->in_n = 0;
        return true;
    }
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

void er_mesh_tell(struct er_mesh *mesh, enum er_mesh_life life, int code, uint64_t seq,
                  const char *text)
{
    struct er_mesh_frame frame = {.magic = ER_WIRE_MAGIC,
                                  .life = (uint32_t)life,
                                  .code = code < 0 ? code : ER_E_ABORTED,
                                  .seq = seq};

    snprintf(frame.text, sizeof(frame.text), "%s", text);
    for (int i = 0; i < mesh->config.size; i++) {
        int fd = er_mesh_fd(mesh, i, ER_MESH_CONTROL);

        if (fd >= 0)
            send(fd, &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}
