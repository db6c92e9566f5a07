#include "agent/goodbye.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/codec.h"
#include "rendezvous/farewell.h"

#define ENDPOINTS_MAX 4096
#define FILE_MAX      1024
#define WORD_MAX      128

/* Shared by two processes of the same program; "" stands for none. */
struct er_goodbye {
    char endpoints[ENDPOINTS_MAX]; /* with commas */
    char ca[FILE_MAX], cert[FILE_MAX], key[FILE_MAX], password_file[FILE_MAX];
    char server_name[FILE_MAX], user[WORD_MAX];
    char prefix[WORD_MAX], job[ER_NAME_TEXT_MAX], node_id[ER_NAME_TEXT_MAX];
    uint64_t incarnation;
    _Atomic uint64_t lease, generation;
};

static bool copy(char *to, size_t cap, const char *from)
{
    return (size_t)snprintf(to, cap, "%s", from ? from : "") < cap;
}

static bool copy_endpoints(struct er_goodbye *g, const struct er_store_access *access)
{
    size_t used = 0;

    for (size_t i = 0; i < access->endpoint_n && used < sizeof(g->endpoints); i++)
        used += (size_t)snprintf(g->endpoints + used, sizeof(g->endpoints) - used, "%s%s",
                                 i ? "," : "", access->endpoints[i]);
    return used < sizeof(g->endpoints);
}

static bool fill(struct er_goodbye *g, const struct er_store_access *access)
{
    return copy_endpoints(g, access) && copy(g->ca, sizeof(g->ca), access->ca) &&
           copy(g->cert, sizeof(g->cert), access->cert) &&
           copy(g->key, sizeof(g->key), access->key) &&
           copy(g->password_file, sizeof(g->password_file), access->password_file) &&
           copy(g->server_name, sizeof(g->server_name), access->server_name) &&
           copy(g->user, sizeof(g->user), access->user);
}

static struct er_goodbye *map(int fd)
{
    void *at = mmap(NULL, sizeof(struct er_goodbye), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return at == MAP_FAILED ? NULL : at;
}

int er_goodbye_new(struct er_goodbye **ret, int *ret_fd, const struct er_store_access *access,
                   const char *prefix, const char *job, const char *node_id, uint64_t incarnation,
                   struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = memfd_create("elastic-run-goodbye", MFD_CLOEXEC);
    struct er_goodbye *g;

    if (fd < 0 || ftruncate(fd, sizeof(*g)) < 0 || !(g = map(fd)))
        return er_error_errno(err, "make shared memory");
    if (!fill(g, access) || !copy(g->prefix, sizeof(g->prefix), prefix) ||
        !copy(g->job, sizeof(g->job), job) || !copy(g->node_id, sizeof(g->node_id), node_id)) {
        er_goodbye_free(g);
        return er_error_set(err, -E2BIG, "a name or a path of the store is too long");
    }
    g->incarnation = incarnation;
    *ret = g;
    *ret_fd = ER_TAKE_FD(fd);
    return 0;
}

void er_goodbye_free(struct er_goodbye *goodbye)
{
    if (goodbye)
        munmap(goodbye, sizeof(*goodbye));
}

void er_goodbye_update(struct er_goodbye *goodbye, uint64_t lease, uint64_t generation)
{
    goodbye->lease = lease;
    goodbye->generation = generation;
}

/* ---- saying it ---- */

struct speech {
    const struct er_goodbye *g;
    struct er_opened_store store;
    struct er_farewell farewell;
    bool done;
    int rc;
};

static void end(void *user, int rc)
{
    struct speech *s = user;

    s->done = true;
    s->rc = rc;
}

static int begin(struct speech *s)
{
    const struct er_goodbye *g = s->g;
    const char *endpoints = g->endpoints;
    const struct er_store_access access = {
        .endpoints = &endpoints,
        .endpoint_n = 1,
        .ca = g->ca[0] ? g->ca : NULL,
        .cert = g->cert[0] ? g->cert : NULL,
        .key = g->key[0] ? g->key : NULL,
        .server_name = g->server_name[0] ? g->server_name : NULL,
        .user = g->user[0] ? g->user : NULL,
        .password_file = g->password_file[0] ? g->password_file : NULL,
    };
    int rc = er_store_open(&s->store, &access, g->prefix, g->job, er_now_us(), NULL);

    if (rc)
        return rc;
    s->farewell = (struct er_farewell){.store = s->store.store,
                                       .prefix = g->prefix,
                                       .job = g->job,
                                       .node_id = g->node_id,
                                       .incarnation = g->incarnation,
                                       .generation = g->generation,
                                       .seed = er_now_us(),
                                       .done = end,
                                       .user = s};
    return er_farewell_begin(&s->farewell);
}

static void run(struct speech *s, uint64_t until_us)
{
    struct er_store *store = s->store.store;

    while (!s->done && er_now_us() < until_us) {
        struct pollfd fd = {.fd = store->ops->fd(store), .events = POLLIN};
        uint64_t at_us = store->ops->pending(store) ? 0 : store->ops->deadline(store);

        poll(&fd, 1, er_poll_ms(er_now_us(), at_us < until_us ? at_us : until_us));
        store->ops->dispatch(store, er_now_us());
    }
}

int er_goodbye_say(int fd, uint64_t wait_us)
{
    uint64_t now_us = er_now_us();
    struct speech s = {.g = map(fd), .rc = -ETIMEDOUT};
    int rc;

    if (!s.g)
        return -ENOMEM;
    if (!s.g->lease)
        return 0; /* it had nothing in the store */
    rc = begin(&s);
    if (rc)
        return rc;
    run(&s, er_deadline_in(now_us, wait_us));
    return s.rc;
}
