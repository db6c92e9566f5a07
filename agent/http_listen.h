#pragma once
/* http.listen: "HOST:PORT", or "[v6]:PORT", and its listening socket. */
#include <stdbool.h>

#include "base/error.h"

#define ER_HTTP_HOST_MAX 256
#define ER_HTTP_PORT_MAX 8

struct er_http_listen {
    char host[ER_HTTP_HOST_MAX]; /* without brackets */
    char port[ER_HTTP_PORT_MAX];
};

/* ER_E_CONFIG: not of that form, or no port from 0 (any) to 65535. */
int er_http_listen_parse(const char *text, struct er_http_listen *ret, struct er_error *err);
/* Is it reached from this host alone? Names other than localhost are not known to be. */
bool er_http_listen_is_local(const struct er_http_listen *listen);
/* Bound and listening; the port is as good as taken. ER_E_CONFIG: no such host; -EADDRINUSE,
 * -EACCES, ... */
int er_http_listen_open(const struct er_http_listen *listen, int *ret_fd, struct er_error *err);
