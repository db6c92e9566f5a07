/* libFuzzer: what the asking end of a control socket hears, and how long it waits. The first byte
 * says how it connects; then come pieces: what it or the agent does, a number, two bytes of length,
 * bytes. What the agent does happens at its place, or while the client waits; when nothing is left,
 * the deadline comes. What the agent says gets the number of the request that is waiting, or of the
 * one whose answer is fetched later, unless its own number is odd. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/ctlclient.h"

enum { PIECE = 4, PIECES_MAX = 64, SEQ_AT = 8, TIMEOUT_US = 50000 };
/* The first four are the client's. */
enum what { CALL, ASK, ANSWER, HEAR, SAY, PASS, HANG_UP, TAKE, WHAT_COUNT };
enum { FOREVER = 1, LONG_PATH = 2, NOBODY = 4, FULL = 8, LAST_NUMBER = 16 }; /* the first byte */

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);
uint64_t __wrap_er_now_us(void);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);

/* ---- what is left of the input ---- */

static struct {
    const unsigned char *data;
    size_t n;
    int pieces;
} in;

struct piece {
    enum what what;
    unsigned char number;
    const unsigned char *data;
    size_t n;
};

/* False: none is left, or the next is the client's when only the agent's are wanted. */
static bool take_piece(bool agents, struct piece *ret)
{
    size_t length;

    if (in.n < PIECE || in.pieces == PIECES_MAX)
        return false;
    ret->what = (enum what)(in.data[0] % WHAT_COUNT);
    if (agents && ret->what < SAY)
        return false;
    ret->number = in.data[1];
    length = (size_t)in.data[2] | (size_t)in.data[3] << 8;
    ret->n = length < in.n - PIECE ? length : in.n - PIECE;
    ret->data = in.data + PIECE;
    in.data += PIECE + ret->n;
    in.n -= PIECE + ret->n;
    in.pieces++;
    return true;
}

/* ---- the agent ---- */

static struct er_ctl_client client;
static int agent_fd;
static uint64_t now_us;

static void say(const struct piece *p)
{
    unsigned char packet[ER_CTL_PACKET_MAX];
    size_t n = p->n < sizeof(packet) ? p->n : sizeof(packet);
    uint32_t seq = p->number & 2 ? client.later.seq : client.seq;

    memcpy(packet, p->data, n);
    if (n >= SEQ_AT + sizeof(seq) && p->number % 2 == 0)
        memcpy(packet + SEQ_AT, &seq, sizeof(seq));
    if (send(agent_fd, packet, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        assert(errno == EAGAIN || errno == EPIPE || errno == EBADF || errno == ECONNRESET);
}

static void act(const struct piece *p)
{
    unsigned char sink[16];

    switch (p->what) {
    case SAY:
        say(p);
        break;
    case PASS:
        now_us += p->number * ER_US_PER_MS;
        break;
    case HANG_UP:
        if (agent_fd >= 0)
            close(agent_fd);
        agent_fd = -1;
        break;
    case TAKE:
        while (recv(agent_fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
            ;
        break;
    case CALL:
    case ASK:
    case ANSWER:
    case HEAR:
    case WHAT_COUNT:
        break;
    }
}

uint64_t __wrap_er_now_us(void)
{
    return now_us;
}

/* Nobody waits in earnest. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    const struct piece end = {.what = HANG_UP};
    struct piece p;

    if (take_piece(true, &p))
        act(&p);
    else if (timeout_ms < 0)
        act(&end);
    else
        now_us += (unsigned)timeout_ms * ER_US_PER_MS;
    return __real_poll(fds, n, 0);
}

/* ---- its socket ---- */

static char socket_path[64];
static int listen_fd = -1;

static void remove_socket(void)
{
    unlink(socket_path);
}

static void begin_listening(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    if (listen_fd >= 0)
        return;
    snprintf(socket_path, sizeof(socket_path), "/dev/shm/er-fuzz-ctl-client-%d", (int)getpid());
    strcpy(at.sun_path, socket_path);
    listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (bind(listen_fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(listen_fd, 0) < 0)
        abort();
    atexit(remove_socket);
}

/* A queue of no length takes one. */
static int connect_full(struct er_error *err)
{
    struct er_ctl_client first;
    int rc = er_ctl_client_open(&first, socket_path, ER_FOREVER, err);

    assert(rc == 0);
    rc = er_ctl_client_open(&client, socket_path, 0, err);
    assert(rc == -ETIMEDOUT);
    er_ctl_client_close(&first);
    close(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC));
    return rc;
}

static int connect_client(unsigned char how, struct er_error *err)
{
    const char *path = how & NOBODY ? "/dev/shm/er-fuzz-nobody" : socket_path;
    char longer[200];
    int least = 1, rc;

    memset(longer, 'l', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    if (how & FULL)
        return connect_full(err);
    if (how & LONG_PATH)
        path = longer;
    rc = er_ctl_client_open(&client, path, how & FOREVER ? ER_FOREVER : TIMEOUT_US, err);
    if (rc < 0)
        return rc;
    agent_fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    assert(agent_fd >= 0);
    (void)setsockopt(client.fd, SOL_SOCKET, SO_SNDBUF, &least, sizeof(least));
    if (how & LAST_NUMBER)
        client.seq = UINT32_MAX;
    return 0;
}

/* ---- the client ---- */

static void see(const struct er_ctl_msg *m)
{
    const unsigned char *end = client.packet + sizeof(client.packet);

    assert(m->num_n <= ER_CTL_NUM_MAX && m->str_n <= ER_CTL_STR_MAX);
    for (size_t i = 0; i < m->str_n; i++)
        assert((const unsigned char *)m->str[i].data >= client.packet &&
               (const unsigned char *)m->str[i].data + m->str[i].len <= end);
}

/* A request as long as its piece, times its number. */
static struct er_ctl_msg request_of(const struct piece *p)
{
    static unsigned char value[2 * ER_CTL_PACKET_MAX];
    struct er_ctl_msg request = {.type = ER_CTL_KV_PUT};
    size_t n = p->n * p->number;

    er_ctl_num(&request, 1);
    er_ctl_str(&request, "key");
    er_ctl_bytes(&request, value, n < sizeof(value) ? n : sizeof(value));
    return request;
}

static int ask(const struct piece *p, uint64_t timeout_us, struct er_error *err)
{
    struct er_ctl_msg request = request_of(p), reply;
    int rc;

    switch (p->what) {
    case CALL:
        rc = er_ctl_client_call(&client, &request, timeout_us, &reply, err);
        if (rc == 0) {
            see(&reply);
            assert(reply.seq == request.seq && request.seq != 0);
        }
        return rc;
    case ASK:
        return er_ctl_client_ask(&client, &request, timeout_us, err);
    case ANSWER:
        rc = er_ctl_client_answer(&client, timeout_us, err);
        assert(rc <= ER_CTL_UNANSWERED && (rc != 0 || client.later.answered));
        return rc;
    case HEAR:
        rc = er_ctl_client_hear(&client, timeout_us, &reply, err);
        if (rc == 0)
            see(&reply);
        return rc;
    case SAY:
    case PASS:
    case HANG_UP:
    case TAKE:
    case WHAT_COUNT:
        break;
    }
    act(p);
    return 0;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct piece p;
    int rc;

    if (n == 0)
        return 0;
    begin_listening();
    now_us = ER_US_PER_S;
    agent_fd = -1;
    in.data = data + 1;
    in.n = n - 1;
    in.pieces = 0;
    rc = connect_client(data[0], &err);
    assert((rc < 0) == (client.fd < 0));
    while (take_piece(false, &p)) {
        uint64_t begun_us = now_us, timeout_us = data[0] & FOREVER ? ER_FOREVER : TIMEOUT_US;

        err = (struct er_error)ER_ERROR_INIT;
        rc = ask(&p, timeout_us, &err);
        assert(rc >= 0 || err.text[0]);
        assert(rc != -ETIMEDOUT || now_us >= begun_us + TIMEOUT_US);
        assert(memchr(client.later.text, 0, sizeof(client.later.text)));
    }
    er_ctl_client_close(&client);
    if (agent_fd >= 0)
        close(agent_fd);
    return 0;
}
