#include "runtime/host_mesh_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

enum { STRANGER_LIMIT_US = 10000000 }; /* for a hello */

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
        er_mesh_link_up(mesh, (int)s->hello.from, s->hello.channel);
    }
    er_mesh_close_fd(&s->fd);
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
        er_mesh_close_fd(&s->fd);
    else if (s->hello_n == sizeof(s->hello) && mesh->secret_known)
        answer(mesh, s);
}

static struct stranger *stranger_slot(struct er_mesh *mesh)
{
    struct stranger *oldest = &mesh->stranger[0];

    for (int i = 0; i < ER_MESH_STRANGERS_MAX; i++) {
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
    for (int i = 0; i < ER_MESH_STRANGERS_MAX; i++) {
        int fd = accept4(mesh->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0)
            break;
        *stranger_slot(mesh) = (struct stranger){.fd = fd, .since_us = er_now_us()};
    }
    for (int i = 0; i < ER_MESH_STRANGERS_MAX; i++)
        if (mesh->stranger[i].fd >= 0)
            step_stranger(mesh, &mesh->stranger[i]);
}
