#include "runtime/host_mesh_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

enum { STRANGER_LIMIT_US = 10000000 }; /* for a hello */

/* Whether the caller's record comes with the hello. */
static bool wants_record(const struct er_mesh *mesh, const struct er_wire_hello *hello)
{
    return mesh->config.rank == 0 && hello->channel == ER_MESH_CONTROL;
}

/* In a time that does not tell how much of it was right. */
static bool knows_secret(const struct er_mesh *mesh, const struct er_wire_hello *hello)
{
    unsigned difference = 0;

    for (size_t i = 0; i < sizeof(hello->secret); i++)
        difference |= (unsigned)(hello->secret[i] ^ mesh->secret[i]);
    return difference == 0;
}

static enum er_wire_answer answer_to(const struct er_mesh *mesh, const struct er_wire_hello *hello)
{
    const struct er_mesh_config *config = &mesh->config;

    if (hello->generation != config->generation)
        return ER_WIRE_GENERATION;
    if (!knows_secret(mesh, hello))
        return ER_WIRE_SECRET;
    if (hello->name_hash != mesh->name_hash)
        return ER_WIRE_NAME;
    if (hello->to != (uint32_t)config->rank || hello->size != (uint32_t)config->size ||
        hello->from <= hello->to || hello->from >= hello->size ||
        hello->channel >= ER_MESH_CHANNEL_COUNT ||
        hello->transport != (uint32_t)config->listen.transport)
        return ER_WIRE_RANK;
    if (wants_record(mesh, hello) && hello->record_n == 0)
        return ER_WIRE_RECORD;
    if (mesh->peer[hello->from].link[hello->channel].fd >= 0)
        return ER_WIRE_TAKEN;
    return ER_WIRE_OK;
}

int er_mesh_accepted(struct er_mesh *mesh, int peer, int channel)
{
    const struct link *l = &mesh->peer[peer].link[channel];
    int rc = 0;

    if (channel == ER_MESH_CONTROL && er_mesh_passes(mesh, mesh->config.rank, peer))
        rc = er_send_fd(l->fd, mesh->segment_fd);
    if (rc == 0)
        er_mesh_link_up(mesh, peer, channel);
    return rc;
}

static void take_in(struct er_mesh *mesh, struct stranger *s)
{
    struct link *l = &mesh->peer[s->hello.from].link[s->hello.channel];

    l->fd = ER_TAKE_FD(s->fd);
    if (wants_record(mesh, &s->hello)) {
        l->state = LINK_TABLE;
        mesh->come_n++;
    } else if (er_mesh_accepted(mesh, (int)s->hello.from, s->hello.channel) < 0) {
        er_mesh_close_fd(&l->fd);
    }
}

/* Send the answer; a fresh socket takes these few bytes. */
static void answer(struct er_mesh *mesh, struct stranger *s, enum er_wire_answer yes_or_no)
{
    struct er_wire_reply reply = {.magic = ER_WIRE_MAGIC, .answer = yes_or_no};
    struct er_host_record *rec = &mesh->peer[s->hello.from % (uint32_t)mesh->config.size].rec;

    if (yes_or_no == ER_WIRE_OK && wants_record(mesh, &s->hello) &&
        er_host_record_parse(rec, s->record, s->record_n, NULL) < 0)
        reply.answer = ER_WIRE_RECORD;
    if (reply.answer == ER_WIRE_OK)
        for (size_t i = 0; i < sizeof(reply.proof); i++)
            reply.proof[i] = mesh->secret[i] ^ 0xff;
    if (send(s->fd, &reply, sizeof(reply), MSG_NOSIGNAL) == (ssize_t)sizeof(reply) &&
        reply.answer == ER_WIRE_OK)
        take_in(mesh, s);
    er_mesh_close_fd(&s->fd);
}

/* 0 nothing came, positive bytes, negative: the connection is of no use. */
static ssize_t receive(struct stranger *s, void *to, size_t n)
{
    ssize_t got = recv(s->fd, to, n, MSG_DONTWAIT);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return got <= 0 ? -1 : got;
}

/* Before a byte more is read: who sends this need not know the secret, and `record_n` says how much
 * is read into `record`. */
static bool is_hello(const struct er_wire_hello *hello)
{
    return hello->magic == ER_WIRE_MAGIC && hello->version == ER_WIRE_VERSION &&
           hello->record_n < ER_HOST_RECORD_MAX;
}

/* Hello, and after one that may come in the record. False: close. */
static bool hear_stranger(struct er_mesh *mesh, struct stranger *s)
{
    ssize_t n = 0;

    if (s->hello_n < sizeof(s->hello)) {
        n = receive(s, (char *)&s->hello + s->hello_n, sizeof(s->hello) - s->hello_n);
        s->hello_n += n > 0 ? (size_t)n : 0;
        if (s->hello_n == sizeof(s->hello) && !is_hello(&s->hello))
            return false;
        if (s->hello_n == sizeof(s->hello) && !wants_record(mesh, &s->hello))
            s->hello.record_n = 0; /* or poll() would wake us for what nobody reads */
    } else if (wants_record(mesh, &s->hello) && s->record_n < s->hello.record_n) {
        n = receive(s, s->record + s->record_n, s->hello.record_n - s->record_n);
        s->record_n += n > 0 ? (size_t)n : 0;
    }
    return n >= 0 && er_now_us() <= s->since_us + STRANGER_LIMIT_US;
}

static void step_stranger(struct er_mesh *mesh, struct stranger *s)
{
    bool known = mesh->secret_known && (mesh->config.rank == 0 || mesh->table_known);
    enum er_wire_answer yes_or_no;

    for (int i = 0; i < 2 && !s->quiet; i++)
        if (!hear_stranger(mesh, s)) {
            er_mesh_close_fd(&s->fd);
            return;
        }
    if (s->hello_n < sizeof(s->hello) || !known)
        return;
    yes_or_no = answer_to(mesh, &s->hello);
    if (yes_or_no != ER_WIRE_OK || !wants_record(mesh, &s->hello) ||
        s->record_n == s->hello.record_n)
        answer(mesh, s, yes_or_no);
}

static struct stranger *stranger_slot(struct er_mesh *mesh)
{
    struct stranger *oldest = &mesh->stranger[0];

    for (int i = 0; i < mesh->strangers_n; i++) {
        struct stranger *s = &mesh->stranger[i];

        if (s->fd < 0)
            return s;
        if (s->since_us < oldest->since_us)
            oldest = s;
    }
    er_mesh_close_fd(&oldest->fd);
    return oldest;
}

void er_mesh_step_accept(struct er_mesh *mesh)
{
    for (size_t l = 0; l < ER_ARRAY_N(mesh->listen_fd); l++) {
        for (int i = 0; i < mesh->strangers_n && mesh->listen_fd[l] >= 0; i++) {
            int fd = accept4(mesh->listen_fd[l], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

            if (fd < 0)
                break;
            if (l == 0 && !er_fd_peer_is_own(fd)) { /* an abstract name has no permissions */
                close(fd);
                continue;
            }
            *stranger_slot(mesh) = (struct stranger){.fd = fd, .since_us = er_now_us()};
        }
    }
    for (int i = 0; i < mesh->strangers_n; i++)
        if (mesh->stranger[i].fd >= 0)
            step_stranger(mesh, &mesh->stranger[i]);
}
