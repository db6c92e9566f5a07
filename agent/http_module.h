#pragma once
/*
 * The HTTP server's port: a small one, within the agent's own loop. What serves it is a module
 * (er_http.so, on libmicrohttpd) that is loaded when http.listen asks for it, so that nobody else
 * pays for its libraries.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct er_http; /* opaque */

struct er_http_request {
    const char *path;          /* without the query; decoded */
    const char *accept;        /* header; "" none */
    const char *authorization; /* header; "" none */
    const char *token;         /* of the query, for browsers; "" none */
};

struct er_http_reply {
    unsigned status;
    const char *type; /* Content-Type */
    const char *data; /* lent until the call returns */
    size_t n;
    /* The connection stays open and gets every publish(), as server-sent events; `data`
     * comes first. */
    bool stream;
};

struct er_http_opts {
    int fd; /* listening; taken over, also on failure */
    /* One GET request. Everything in `reply` is set by it. */
    void (*handle)(void *user, const struct er_http_request *request, struct er_http_reply *reply);
    void *user;
};

#define ER_HTTP_VERSION 1
#define ER_HTTP_SYMBOL  "er_http_module"
#define ER_HTTP_STREAMS 8 /* streams at once; one more is answered 503 */

struct er_http_module {
    unsigned version; /* ER_HTTP_VERSION */
    int (*open)(struct er_http **ret, const struct er_http_opts *opts, struct er_error *err);
    void (*close)(struct er_http *http);   /* NULL is fine */
    int (*fd)(const struct er_http *http); /* readable: step it */
    void (*step)(struct er_http *http);
    /* When to step it at the latest; ER_FOREVER. */
    uint64_t (*deadline)(struct er_http *http, uint64_t now_us);
    unsigned (*streams)(const struct er_http *http);
    /* To every stream; one that has not taken the last message yet is left out. */
    void (*publish)(struct er_http *http, const char *data, size_t n);
};
