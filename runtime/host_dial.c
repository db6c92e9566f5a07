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
    l->reply_n = l->table_n = 0;
    l->quiet = false;
    if (l->state == LINK_DIALING && l->addr + 1 < rec->addr_n) {
        l->addr++;
        return;
    }
    l->addr = 0;
    l->state = LINK_RECORD;
    l->retry_us = er_now_us() + ER_MESH_RETRY_US;
}

int er_mesh_read_record(struct er_mesh *mesh, uint64_t wait_us, struct er_error *err)
{
    struct er_host_record *rec = &mesh->peer[0].rec;
    char key[ER_MESH_KEY_MAX], text[ER_HOST_RECORD_MAX];
    size_t n = 0;
    int rc;

    er_mesh_key(mesh, 0, key);
    rc = er_kv_get(mesh->config.ctx, key, text, sizeof(text), &n, wait_us, err);
    if (rc == 0)
        rc = er_host_record_parse(rec, text, n, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "address of rank 0");
    if (rc == 0)
        memcpy(mesh->secret, rec->secret, sizeof(mesh->secret));
    return rc;
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
        .transport = mesh->config.listen.transport,
        .generation = mesh->config.generation,
        .name_hash = mesh->name_hash,
    };

    struct {
        struct er_wire_hello hello;
        char record[ER_HOST_RECORD_MAX];
    } message = {.hello = hello};
    size_t bytes = sizeof(hello);

    memcpy(message.hello.secret, mesh->secret, sizeof(hello.secret));
    if (peer == 0 && channel == ER_MESH_CONTROL) {
        int n = er_host_record_format(&mesh->mine, message.record, sizeof(message.record));

        message.hello.record_n = n > 0 ? (uint32_t)n : 0;
        bytes += message.hello.record_n;
    }
    if (send(l->fd, &message, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
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

    while (l->addr + 1 < rec->addr_n && !er_host_reaches(rec, l->addr, mesh->mine.host))
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

static void accepted(struct er_mesh *mesh, int peer, int channel)
{
    if (channel == ER_MESH_CONTROL && er_mesh_passes(mesh, peer, mesh->config.rank))
        mesh->peer[peer].link[channel].state = LINK_SEGMENT;
    else
        er_mesh_link_up(mesh, peer, channel);
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
        if (peer == 0 && channel == ER_MESH_CONTROL)
            l->state = LINK_TABLE;
        else
            accepted(mesh, peer, channel);
    }
}

static int step_table(struct er_mesh *mesh, struct link *l, struct er_error *err)
{
    int rc = er_mesh_hear_table(mesh, l, err);

    if (rc == 0)
        accepted(mesh, 0, ER_MESH_CONTROL);
    if (rc == -ECONNRESET) {
        const struct er_mesh_peer *p = &mesh->peer[0].pub;

        if (p->life == ER_MESH_FAILED)
            return er_error_set(err, p->in.code, "%s (told by rank 0)", p->in.text);
        return er_error_set(err, ER_E_PEER_LOST, "rank 0 %s while connecting",
                            p->life == ER_MESH_LEFT ? "left" : "closed its connection");
    }
    return rc < 0 ? rc : 0;
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

/* Rank 0's control link needs a fresh look at its record, the others the table, a data link goes
 * where the control link went. */
static int step_record(struct er_mesh *mesh, int peer, int channel, struct er_error *err)
{
    struct link *l = &mesh->peer[peer].link[channel];
    int rc = 0;

    if (er_now_us() < l->retry_us)
        return 0;
    if (channel == ER_MESH_DATA && mesh->peer[peer].link[ER_MESH_CONTROL].state != LINK_UP)
        return 0;
    if (channel == ER_MESH_CONTROL && peer == 0)
        rc = er_mesh_read_record(mesh, 0, err);
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

    if (l->quiet)
        return rc;
    if (rc == 0 && l->state == LINK_DIALING)
        step_dialing(mesh, peer, channel);
    if (l->state == LINK_REPLY)
        step_reply(mesh, peer, channel);
    if (rc == 0 && l->state == LINK_TABLE)
        rc = step_table(mesh, l, err);
    if (l->state == LINK_SEGMENT)
        step_segment(mesh, peer, channel);
    return rc;
}

/* Rank 0 first: it has the secret that the others ask for, and their addresses. */
int er_mesh_step_links(struct er_mesh *mesh, struct er_error *err)
{
    for (int i = 0; i < mesh->config.rank && (i == 0 || mesh->table_known); i++) {
        for (int c = 0; c < (mesh->table_known ? mesh->channels_n : 1); c++) {
            int rc = mesh->peer[i].link[c].state == LINK_UP ? 0 : step_link(mesh, i, c, err);

            if (rc < 0)
                return rc;
        }
    }
    return 0;
}
