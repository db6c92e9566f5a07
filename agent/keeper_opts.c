#include "agent/keeper_opts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/parse.h"

#define PARTS_MAX 8

struct field {
    const char *key;
    size_t offset, room; /* room 0: a number */
};

#define TEXT(key, member)                                                                          \
    {                                                                                              \
        key, offsetof(struct er_keeper_opts, member), sizeof(((struct er_keeper_opts *)0)->member) \
    }
#define NUMBER(key, member)                                                                        \
    {                                                                                              \
        key, offsetof(struct er_keeper_opts, member), 0                                            \
    }

static const struct field FIELDS[] = {
    TEXT("name", name),
    TEXT("endpoints", endpoints),
    NUMBER("index", index),
    NUMBER("peer-port", peer_port),
    TEXT("listen", listen),
    TEXT("home", home),
    TEXT("data", data),
    NUMBER("keep-data", keep_data),
    NUMBER("fresh", fresh),
    TEXT("etcd", etcd),
    TEXT("secret", secret),
    TEXT("out", out),
    NUMBER("linger-ms", linger_ms),
    NUMBER("fd", fd),
};

int er_keeper_opts_format(const struct er_keeper_opts *opts, char *ret[ER_KEEPER_ARGS_MAX],
                          struct er_error *err)
{
    int n = 0;

    for (size_t i = 0; i < ER_ARRAY_N(FIELDS); i++) {
        const struct field *f = &FIELDS[i];
        const char *at = (const char *)opts + f->offset;
        uint32_t number;
        int rc;

        memcpy(&number, at, sizeof(number));
        if (f->room ? !*at : !number)
            continue;
        rc = f->room ? asprintf(&ret[n], "--%s=%s", f->key, at)
                     : asprintf(&ret[n], "--%s=%u", f->key, number);
        if (rc < 0) {
            while (n > 0)
                free(ret[--n]);
            return er_error_set(err, -ENOMEM, "arguments of " ER_KEEPER_PROGRAM ": out of memory");
        }
        n++;
    }
    return n;
}

static int set_field(struct er_keeper_opts *o, const struct field *f, const char *value,
                     struct er_error *err)
{
    char *at = (char *)o + f->offset;
    uint64_t number;
    int rc;

    if (f->room) {
        if (strlen(value) >= f->room)
            return er_error_set(err, ER_E_USAGE, "--%s: longer than %zu bytes", f->key,
                                f->room - 1);
        strcpy(at, value);
        return 0;
    }
    rc = er_parse_u64(value, 0, UINT32_MAX, &number, err);
    if (rc)
        return er_error_wrap(err, ER_E_USAGE, "--%s", f->key);
    memcpy(at, &(uint32_t){(uint32_t)number}, sizeof(uint32_t));
    return 0;
}

int er_keeper_opts_parse(int n, char *const args[], struct er_keeper_opts *ret,
                         struct er_error *err)
{
    struct er_keeper_opts o = {.index = 0};

    for (int i = 0; i < n; i++) {
        const char *eq = strchr(args[i], '=');
        const struct field *f = NULL;
        int rc;

        for (size_t k = 0; eq && strncmp(args[i], "--", 2) == 0 && k < ER_ARRAY_N(FIELDS); k++) {
            size_t len = strlen(FIELDS[k].key);

            if ((size_t)(eq - args[i]) == len + 2 && strncmp(args[i] + 2, FIELDS[k].key, len) == 0)
                f = &FIELDS[k];
        }
        if (!f)
            return er_error_set(err, ER_E_USAGE, "did not expect '%s'", args[i]);
        rc = set_field(&o, f, eq + 1, err);
        if (rc)
            return rc;
    }
    *ret = o;
    return 0;
}

/* Splits at commas, in place. */
static size_t split(char *text, const char *parts[PARTS_MAX])
{
    size_t n = 0;

    for (char *at = text; at && *at && n < PARTS_MAX;) {
        char *comma = strchr(at, ',');

        parts[n++] = at;
        if (comma)
            *comma++ = '\0';
        at = comma;
    }
    return n;
}

int er_keeper_opts_plan(const struct er_keeper_opts *opts, struct er_managed_plan *ret_plan,
                        struct er_managed_listen *ret_listen, struct er_error *err)
{
    struct er_managed_listen listen = {.all = strcmp(opts->listen, "all") == 0};
    char endpoints[sizeof(opts->endpoints)], addresses[sizeof(opts->listen)];
    const char *parts[PARTS_MAX];
    struct er_managed_plan plan;
    size_t n;
    int rc;

    strcpy(endpoints, opts->endpoints);
    n = split(endpoints, parts);
    rc = er_managed_plan_make(&plan, parts, n, (uint16_t)opts->peer_port, err);
    if (rc)
        return rc;
    if (opts->index >= plan.n)
        return er_error_set(err, ER_E_USAGE, "--index=%u: there are %zu members", opts->index,
                            plan.n);
    strcpy(addresses, opts->listen);
    if (!listen.all)
        listen.n = split(addresses, parts);
    if (listen.n > ER_MANAGED_LISTEN_MAX)
        listen.n = ER_MANAGED_LISTEN_MAX;
    for (size_t i = 0; i < listen.n; i++)
        snprintf(listen.addresses[i], ER_MANAGED_ADDRESS_MAX, "%s", parts[i]);
    *ret_plan = plan;
    *ret_listen = listen;
    return 0;
}

void er_keeper_home(const char *name, size_t index, char ret[ER_KEEPER_HOME_MAX])
{
    if (geteuid() == 0)
        snprintf(ret, ER_KEEPER_HOME_MAX, "/run/elastic-run/.etcd-%.63s-%zu", name, index);
    else
        snprintf(ret, ER_KEEPER_HOME_MAX, "/tmp/elastic-run-%u/.etcd-%.63s-%zu",
                 (unsigned)geteuid(), name, index);
}
