#include "agent/managed_etcd.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/managed_local.h"
#include "agent/managed_spawn.h"
#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define AGAIN_FIRST_US (50 * ER_US_PER_MS)
#define AGAIN_MAX_US   (10 * ER_US_PER_S)
#define BUSY_MAX       20 /* tries of a keeper that has the folder and does not answer */

/* A keeper of this host, seen from here. */
struct keeper {
    struct er_managed_etcd *owner;
    struct er_keeper_opts opts;
    int fd; /* -1: not connected */
    struct er_loop_source *source;
    uint64_t again_us; /* when to try again; ER_FOREVER: not */
    unsigned tries, busy;
    bool known; /* it said ok: the data are this run's */
    bool over;  /* failed or stopped */
};

struct er_managed_etcd {
    struct er_loop *loop;
    struct er_managed_opts opts; /* callbacks; texts are not kept */
    struct er_managed_plan plan;
    struct keeper keepers[ER_MANAGED_MAX];
    size_t keepers_n;
    char program[ER_KEEPER_PATH_MAX];
    char endpoints[ER_MANAGED_TEXT_MAX], text[ER_MANAGED_TEXT_MAX + 64];
    char ca[ER_KEEPER_PATH_MAX], cert[ER_KEEPER_PATH_MAX], key[ER_KEEPER_PATH_MAX]; /* "": none */
    struct er_error failure;
    bool failure_due;
};

static void disconnect(struct keeper *k)
{
    er_loop_source_free(k->source);
    k->source = NULL;
    er_cleanup_fd(&k->fd);
}

static void again(struct keeper *k)
{
    uint64_t wait_us = AGAIN_FIRST_US << (k->tries < 8 ? k->tries : 8);

    k->tries++;
    k->again_us = er_deadline_in(er_now_us(), wait_us < AGAIN_MAX_US ? wait_us : AGAIN_MAX_US);
}

static void warn(struct er_managed_etcd *m, const char *text)
{
    if (m->opts.warn)
        m->opts.warn(m->opts.user, text);
}

/* The job can do without one of three. */
static void give_up(struct keeper *k, int code, const char *text)
{
    struct er_managed_etcd *m = k->owner;
    char line[ER_ERROR_TEXT_MAX];

    disconnect(k);
    k->over = true;
    k->again_us = ER_FOREVER;
    if (m->plan.n == 1) {
        er_error_set(&m->failure, code, "managed etcd: %s", text);
        m->failure_due = true;
        return;
    }
    snprintf(line, sizeof(line),
             "managed etcd: this host's member does not run; the job goes on with the others, and "
             "stops when one more is lost: %s",
             text);
    warn(m, line);
}

/* One of the keeper's words. */
static void on_word(struct keeper *k, char *word)
{
    char *text = strchr(word, ' ');

    if (text)
        *text++ = '\0';
    if (strcmp(word, "ok") == 0) {
        k->known = true;
        k->tries = k->busy = 0;
    } else if (strcmp(word, "warn") == 0 && text) {
        warn(k->owner, text);
    } else if (strcmp(word, "busy") == 0 && ++k->busy > BUSY_MAX) {
        give_up(k, ER_E_UNSUPPORTED,
                "another " ER_KEEPER_PROGRAM " holds the folder and does not "
                "answer");
    } else if (strcmp(word, "failed") == 0) {
        give_up(k, -ENOTCONN, text ? text : "unknown reason");
    } else if (strcmp(word, "stopped") == 0) {
        k->over = true;
    }
}

static void on_readable(void *user, uint32_t events)
{
    struct keeper *k = user;
    char word[ER_KEEPER_WORD_MAX + 1];
    ssize_t n;

    while (k->fd >= 0 && (n = recv(k->fd, word, sizeof(word) - 1, MSG_DONTWAIT)) != 0) {
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            break;
        word[n] = '\0';
        on_word(k, word);
    }
    if (k->fd < 0)
        return;
    disconnect(k); /* it has ended: killed, or another one was first */
    if (!k->over)
        again(k);
}

/* 1: there is no keeper. */
static int find_running(struct keeper *k)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    snprintf(at.sun_path, sizeof(at.sun_path), "%.*s/" ER_KEEPER_SOCKET, ER_KEEPER_HOME_MAX - 1,
             k->opts.home);
    k->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (k->fd >= 0 && connect(k->fd, (struct sockaddr *)&at, sizeof(at)) == 0)
        return 0;
    er_cleanup_fd(&k->fd);
    return 1;
}

static int connect_keeper(struct keeper *k, struct er_error *err)
{
    struct er_managed_etcd *m = k->owner;
    pid_t pid;
    int rc = find_running(k);

    k->again_us = ER_FOREVER;
    if (rc == 1) {
        /* Data of a run that we were part of are used again, an older run's never. */
        k->opts.fresh = !k->opts.keep_data && !k->known;
        rc = er_managed_spawn_keeper(m->program, &k->opts, &pid, &k->fd, err);
        if (!rc && m->opts.spawned)
            m->opts.spawned(m->opts.user, pid);
    }
    if (!rc)
        rc = er_loop_io(m->loop, k->fd, EPOLLIN, ER_PRIORITY_IO, on_readable, k, &k->source, err);
    return rc;
}

/* ---- opening ---- */

static int check_security(const struct er_managed_opts *o, struct er_error *err)
{
    if (o->secret_file || o->insecure)
        return 0;
    return er_error_set(
        err, ER_E_CONFIG,
        "rendezvous.managed: anybody who reaches its port could change the job: give "
        "`secret_file: FILE` (the same on all nodes; `openssl rand -hex 32` makes "
        "one), or say `insecure: true` on a network that you trust");
}

static void list_addresses(const struct er_managed_listen *listen, char *ret, size_t room)
{
    size_t used = 0;

    snprintf(ret, room, "all");
    for (size_t i = 0; i < listen->n && used < room; i++)
        used +=
            (size_t)snprintf(ret + used, room - used, "%s%s", i ? "," : "", listen->addresses[i]);
}

static int take_text(char *to, size_t room, const char *from, const char *what,
                     struct er_error *err)
{
    if (strlen(from) >= room)
        return er_error_set(err, ER_E_CONFIG, "%s: longer than %zu bytes", what, room - 1);
    strcpy(to, from);
    return 0;
}

int er_managed_find_etcd(const char *program, char ret[ER_KEEPER_PATH_MAX], struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *path = NULL;
    char cwd[ER_KEEPER_PATH_MAX] = "/";
    struct er_error why = ER_ERROR_INIT;

    (void)!getcwd(cwd, sizeof(cwd));
    if (er_spawn_find(program, getenv("PATH"), cwd, &path, &why))
        return er_error_set(err, ER_E_UNSUPPORTED,
                            "rendezvous.managed.etcd: this host is to run etcd: %s; install it "
                            "(Debian and Ubuntu: etcd-server), or name the program in "
                            "rendezvous.managed.etcd",
                            why.text);
    return take_text(ret, ER_KEEPER_PATH_MAX, path, "rendezvous.managed.etcd", err);
}

/* What all keepers, and the maker of certificates, are told. */
static int common_opts(struct er_managed_etcd *m, struct er_keeper_opts *ret, struct er_error *err)
{
    const struct er_managed_opts *o = &m->opts;
    int rc = take_text(ret->name, sizeof(ret->name), o->name, "name", err);

    ret->peer_port = o->peer_port;
    ret->linger_ms = (uint32_t)((o->linger_us     ? o->linger_us
                                 : m->plan.n == 1 ? ER_MANAGED_LINGER_ONE_US
                                                  : ER_MANAGED_LINGER_THREE_US) /
                                ER_US_PER_MS);
    strcpy(ret->endpoints, m->endpoints);
    if (!rc && o->secret_file)
        rc = take_text(ret->secret, sizeof(ret->secret), o->secret_file,
                       "rendezvous.managed.secret_file", err);
    if (!rc && o->secret_file)
        rc = take_text(ret->out, sizeof(ret->out) - 16, o->tls_dir, "state folder", err);
    return rc;
}

static int make_certificates(struct er_managed_etcd *m, const struct er_keeper_opts *common,
                             struct er_error *err)
{
    const char *dir = common->out;
    struct er_keeper_opts o = {.peer_port = common->peer_port};
    int rc;

    if (!common->secret[0])
        return 0;
    strcpy(o.endpoints, common->endpoints);
    strcpy(o.secret, common->secret);
    strcpy(o.out, dir);
    rc = er_managed_make_tls(m->program, &o, err);
    snprintf(m->ca, sizeof(m->ca), "%.490s/" ER_KEEPER_CA, dir);
    snprintf(m->cert, sizeof(m->cert), "%.490s/" ER_KEEPER_CERT, dir);
    snprintf(m->key, sizeof(m->key), "%.490s/" ER_KEEPER_KEY, dir);
    return rc;
}

static int add_keeper(struct er_managed_etcd *m, const struct er_keeper_opts *common, size_t index,
                      const struct er_managed_listen *listen, struct er_error *err)
{
    struct keeper *k = &m->keepers[m->keepers_n];
    int rc = 0;

    *k = (struct keeper){.owner = m, .opts = *common, .fd = -1, .again_us = ER_FOREVER};
    k->opts.index = (uint32_t)index;
    k->opts.out[0] = '\0';
    k->opts.keep_data = m->opts.data_dir != NULL;
    list_addresses(listen, k->opts.listen, sizeof(k->opts.listen));
    er_keeper_home(m->opts.name, index, k->opts.home);
    er_managed_data_dir(m->opts.data_dir, m->opts.name, index, k->opts.home, k->opts.data);
    if (m->keepers_n)
        strcpy(k->opts.etcd, m->keepers[0].opts.etcd);
    else
        rc = er_managed_find_etcd(m->opts.etcd, k->opts.etcd, err);
    if (!rc)
        m->keepers_n++;
    return rc;
}

static void make_text(struct er_managed_etcd *m, const struct er_managed_local *local)
{
    size_t used = (size_t)snprintf(m->text, sizeof(m->text), "etcd on ");

    for (size_t i = 0; i < m->plan.n && used < sizeof(m->text); i++) {
        char at[ER_ETCD_ENDPOINT_TEXT_MAX];

        er_etcd_endpoint_format(&m->plan.members[i].at, at);
        used += (size_t)snprintf(m->text + used, sizeof(m->text) - used, "%s%s%s", i ? ", " : "",
                                 at, local->here[i] ? " (this host)" : "");
    }
}

static int open_all(struct er_managed_etcd *m, struct er_error *err)
{
    const struct er_managed_opts *o = &m->opts;
    struct er_keeper_opts common = {.index = 0};
    struct er_managed_local local;
    int rc = er_managed_plan_make(&m->plan, o->endpoints, o->endpoints_n, o->peer_port, err);

    if (rc)
        return er_error_wrap(err, rc, "rendezvous.endpoints");
    rc = check_security(o, err);
    if (!rc)
        rc = er_managed_find_keeper(m->program, err);
    if (!rc)
        rc = er_managed_local_find(&m->plan, &local, err);
    if (rc)
        return rc;
    er_managed_plan_endpoints(&m->plan, m->endpoints);
    make_text(m, &local);
    rc = common_opts(m, &common, err);
    for (size_t i = 0; !rc && i < m->plan.n; i++)
        rc = local.here[i] ? add_keeper(m, &common, i, &local.listen[i], err) : 0;
    if (!rc)
        rc = make_certificates(m, &common, err);
    for (size_t i = 0; !rc && i < m->keepers_n; i++)
        rc = connect_keeper(&m->keepers[i], err);
    return rc;
}

int er_managed_etcd_open(struct er_managed_etcd **ret, struct er_loop *loop,
                         const struct er_managed_opts *opts, struct er_error *err)
{
    struct er_managed_etcd *m = calloc(1, sizeof(*m));
    int rc;

    if (!m)
        return er_error_set(err, -ENOMEM, "managed etcd: out of memory");
    m->loop = loop;
    m->opts = *opts;
    rc = open_all(m, err);
    m->opts.name = m->opts.etcd = m->opts.data_dir = m->opts.secret_file = m->opts.tls_dir = NULL;
    m->opts.endpoints = NULL;
    if (rc) {
        er_managed_etcd_free(m);
        return rc;
    }
    *ret = m;
    return 0;
}

void er_managed_etcd_free(struct er_managed_etcd *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->keepers_n; i++)
        disconnect(&m->keepers[i]);
    free(m);
}

void er_managed_etcd_store(const struct er_managed_etcd *m, struct er_managed_store *ret)
{
    bool tls = m->ca[0] != '\0';

    *ret = (struct er_managed_store){
        .endpoints = m->endpoints,
        .ca = tls ? m->ca : NULL,
        .cert = tls ? m->cert : NULL,
        .key = tls ? m->key : NULL,
        .server_name = tls ? ER_MANAGED_SERVER_NAME : NULL,
    };
}

bool er_managed_etcd_is_here(const struct er_managed_etcd *m)
{
    return m->keepers_n > 0;
}

bool er_managed_etcd_is_alone(const struct er_managed_etcd *m)
{
    return m->keepers_n == m->plan.n;
}

bool er_managed_etcd_has_gone(const struct er_managed_etcd *m)
{
    for (size_t i = 0; i < m->keepers_n; i++) {
        if (!m->keepers[i].over)
            return false;
    }
    return m->keepers_n > 0;
}

const char *er_managed_etcd_text(const struct er_managed_etcd *m)
{
    return m->text;
}

void er_managed_etcd_step(struct er_managed_etcd *m, uint64_t now_us)
{
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < m->keepers_n; i++) {
        struct keeper *k = &m->keepers[i];

        if (k->again_us <= now_us && connect_keeper(k, &err)) {
            disconnect(k);
            warn(m, err.text);
            again(k);
        }
    }
    if (m->failure_due) {
        m->failure_due = false;
        if (m->opts.failed)
            m->opts.failed(m->opts.user, &m->failure);
    }
}

uint64_t er_managed_etcd_deadline(const struct er_managed_etcd *m)
{
    uint64_t at = m->failure_due ? 0 : ER_FOREVER;

    for (size_t i = 0; i < m->keepers_n; i++) {
        if (m->keepers[i].again_us < at)
            at = m->keepers[i].again_us;
    }
    return at;
}

bool er_managed_etcd_stop(struct er_managed_etcd *m, uint64_t wait_us)
{
    uint64_t until_us = er_deadline_in(er_now_us(), wait_us);
    bool gone = true;

    for (size_t i = 0; i < m->keepers_n; i++) {
        struct keeper *k = &m->keepers[i];

        k->again_us = ER_FOREVER;
        if (k->fd < 0)
            (void)find_running(k);
        if (k->fd >= 0)
            (void)send(k->fd, "stop", strlen("stop"), MSG_NOSIGNAL);
    }
    for (size_t i = 0; i < m->keepers_n; i++) {
        struct keeper *k = &m->keepers[i];

        k->known = true;
        while (k->fd >= 0 && er_now_us() < until_us) {
            struct pollfd at = {.fd = k->fd, .events = POLLIN};

            (void)poll(&at, 1, er_poll_ms(er_now_us(), until_us));
            on_readable(k, 0);
        }
        k->again_us = ER_FOREVER;
        gone = gone && k->fd < 0;
    }
    return gone;
}
