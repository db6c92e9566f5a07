#include "agent/http_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"

#define BACKLOG 64

int er_http_listen_parse(const char *text, struct er_http_listen *ret, struct er_error *err)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    const char *host = text;
    struct er_http_listen listen = {{0}, {0}};
    uint64_t port;

    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        host++;
        n -= 2;
    } else if (memchr(text, ':', n)) {
        n = 0; /* IPv6 without brackets: where does the port begin? */
    }
    if (n == 0 || n >= sizeof(listen.host) || strlen(colon + 1) >= sizeof(listen.port))
        return er_error_set(err, ER_E_CONFIG,
                            "'%.80s' is not HOST:PORT, such as 127.0.0.1:9400 or \"[::1]:9400\"",
                            text);
    if (er_parse_u64(colon + 1, 0, 65535, &port, err))
        return er_error_wrap(err, ER_E_CONFIG, "port");
    memcpy(listen.host, host, n);
    strcpy(listen.port, colon + 1);
    *ret = listen;
    return 0;
}

bool er_http_listen_is_local(const struct er_http_listen *listen)
{
    struct in_addr v4;

    return !strcmp(listen->host, "localhost") || !strcmp(listen->host, "::1") ||
           (inet_pton(AF_INET, listen->host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

static int open_one(const struct addrinfo *at, int *ret_fd)
{
    ER_CLEANUP(er_cleanup_fd)
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    int one = 1;

    if (fd < 0)
        return -errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, at->ai_addr, at->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        return -errno;
    *ret_fd = ER_TAKE_FD(fd);
    return 0;
}

int er_http_listen_open(const struct er_http_listen *listen, int *ret_fd, struct er_error *err)
{
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    int rc = getaddrinfo(listen->host, listen->port, &hints, &list);

    if (rc)
        return er_error_set(err, ER_E_CONFIG, "'%s': %s", listen->host, gai_strerror(rc));
    rc = open_one(list, ret_fd);
    freeaddrinfo(list);
    return rc ? er_error_set(err, rc, "listen on %s port %s: %s", listen->host, listen->port,
                             er_error_name(rc))
              : 0;
}
