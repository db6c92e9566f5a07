#include "runtime/host_mesh_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

enum { DIAL_LIMIT_US = 2000000 }; /* one address */

static const char *const answer_texts[ER_WIRE_ANSWER_COUNT] = {
#define ER_WIRE_TEXT(name, text) [ER_WIRE_##name] = text,
    ER_WIRE_ANSWERS(ER_WIRE_TEXT)
#undef ER_WIRE_TEXT
};

/* The next address, or from the record again after a pause. */
static void retry(struct er_mesh *mesh, int peer, struct link *l, const char *why)
{
    struct er_host_record *rec = &mesh->peer[peer].rec;

    snprintf(mesh->last, sizeof(mesh->last), "rank %d at %s: %s", peer,
             l->addr < rec->addr_n ? rec->addr[l->addr] : "?", why);
    er_mesh_close_fd(&l->fd);
    l->reply_n = 0;
    if (l->state == LINK_DIALING && l->addr + 1 < rec->addr_n) {
        l->addr++;
        return;
    }
    l->addr = 0;
    l->state = LINK_RECORD;
    l->retry_us = er_now_us() + ER_MESH_RETRY_US;
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
int er_mesh_read_record(struct er_mesh *mesh, int peer, uint64_t wait_us, struct er_error *err)
{
    char key[ER_MESH_KEY_MAX], text[ER_HOST_RECORD_MAX];
    size_t n = 0;
    int rc;

    er_mesh_key(mesh, peer, key);
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
            er_mesh_link_up(mesh, peer, channel);
    }
}

static void step_segment(struct er_mesh *mesh, int peer, int channel)
{
    struct link *l = &mesh->peer[peer].link[channel];
    int fd = er_recv_fd(l->fd);

    if (fd >= 0) {
        mesh->segment_fd = fd;
        er_mesh_link_up(mesh, peer, channel);
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
        rc = er_mesh_read_record(mesh, peer, 0, err);
    else if (mesh->peer[peer].link[ER_MESH_CONTROL].state != LINK_UP)
        return 0;
    if (rc == 0)
        l->state = LINK_DIALING;
    else
        l->retry_us = er_now_us() + ER_MESH_RETRY_US;
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
int er_mesh_step_links(struct er_mesh *mesh, struct er_error *err)
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
