/* libFuzzer: bytes on a connection of http.listen, through libmicrohttpd. */
#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/http_module.h"
#include "base/clock.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { STEPS = 40, IDLE = 4, BIG = 100000, CROWD = 60 };

extern const struct er_http_module er_http_module;

static void answer(void *user, const struct er_http_request *request, struct er_http_reply *reply)
{
    static char text[BIG];

    (void)user;
    assert(request->path && request->accept && request->authorization && request->token);
    *reply = (struct er_http_reply){.status = strcmp(request->token, "right") ? 401 : 200,
                                    .type = "text/plain",
                                    .data = text,
                                    .n = request->accept[0] ? BIG : 2,
                                    .stream = strcmp(request->path, "/events") == 0};
}

static struct er_http *serve_at(struct sockaddr_in *ret)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct er_http_opts opts = {.handle = answer};
    struct er_http *http = NULL;
    socklen_t n = sizeof(at);

    opts.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(opts.fd, (struct sockaddr *)&at, n) < 0 || listen(opts.fd, 128) < 0 ||
        getsockname(opts.fd, (struct sockaddr *)&at, &n) < 0 ||
        er_http_module.open(&http, &opts, NULL) < 0)
        abort();
    *ret = at;
    return http;
}

static int dial(const struct sockaddr_in *at, const unsigned char *data, size_t n)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* No TIME_WAIT: millions of runs would use up all ports. */
    const struct linger at_once = {.l_onoff = 1};

    assert(fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)!send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n % 4)
        shutdown(fd, SHUT_WR);
    return fd;
}

static void talk(struct er_http *http, int fd)
{
    static char sink[1 << 16];

    for (int i = 0, still = 0; i < STEPS && still < IDLE; i++) {
        ssize_t got;

        er_http_module.step(http);
        assert(er_http_module.fd(http) >= 0 && er_http_module.streams(http) <= ER_HTTP_STREAMS);
        (void)er_http_module.deadline(http, er_now_us());
        got = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
        if (got == 0)
            break;
        still = got < 0 ? still + 1 : 0;
        if (er_http_module.streams(http) > 0)
            er_http_module.publish(http, "event: x\n\n", (size_t)i % 11);
    }
}

/* One connection, or a crowd of them. */
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    int fds[CROWD], many = n % 8 == 4 ? CROWD : 1;
    struct sockaddr_in at;
    struct er_http *http = serve_at(&at);

    for (int i = 0; i < many; i++) {
        fds[i] = dial(&at, data, n);
        talk(http, fds[i]);
    }
    for (int i = 0; i < many / 2; i++)
        close(fds[i]);
    er_http_module.step(http);
    er_http_module.close(http);
    for (int i = many / 2; i < many; i++)
        close(fds[i]);
    return 0;
}
