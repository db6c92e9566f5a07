#include "trainer/ps_server.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "trainer/ps_server_internal.h"

#define LOST_TIMEOUT_US (2 * ER_US_PER_S)
#define TICK_US         (100 * ER_US_PER_MS)

/* ---- the optimizer ---- */

static struct er_optim_view view_of(const struct er_ps_server *s, float *grad)
{
    return (struct er_optim_view){.value = s->value,
                                  .grad = grad,
                                  .state = {s->state[0], s->state[1]},
                                  .count = s->extent.count};
}

static void update(struct er_ps_server *s, float *grad, uint64_t step, double scale)
{
    struct er_optim_view view = view_of(s, grad);

    s->updates++;
    er_optim_apply(&s->opts.optim, &view, s->updates, er_schedule_lr(&s->opts.schedule, step),
                   scale);
}

/* All parts of the next step are here: they are added in part order. */
static void apply_step(struct er_ps_server *s)
{
    double weight = s->weight[0];
    float *sum = s->held[0];

    for (uint32_t p = 1; p < s->opts.parts; p++) {
        const float *part = s->held[p];

        for (size_t i = 0; i < s->extent.count; i++)
            sum[i] += part[i];
        weight += s->weight[p];
    }
    s->applied_steps++;
    update(s, sum, s->applied_steps, weight > 0 ? 1.0 / weight : 0);
}

/* A part by itself: as many of them as a step has make one step's way. */
static void apply_part(struct er_ps_server *s, const struct er_ps_worker *w, float *grad)
{
    uint64_t step = er_ps_part_step(&s->table, w->part), late = 0;
    double scale = w->weight > 0 ? 1.0 / (w->weight * s->opts.parts) : 0;

    if (s->opts.staleness_aware && s->table.done_steps > w->sees)
        late = s->table.done_steps - w->sees;
    update(s, grad, step, scale / (double)(1 + late));
}

/* Kept until all parts of the step are here; the worker's next push comes elsewhere. */
static void hold(struct er_ps_server *s, uint32_t worker)
{
    size_t place = s->workers[worker].part % s->opts.parts;
    float *free_one = s->held[place];

    s->held[place] = s->stage[worker];
    s->stage[worker] = free_one;
    s->weight[place] = s->workers[worker].weight;
}

static void carry_out(struct er_ps_server *s, uint32_t worker)
{
    struct er_ps_worker *w = &s->workers[worker];
    const uint64_t seq = w->seq;
    bool counts = er_ps_table_commit(&s->table, w->part);

    if (counts && er_ps_lock_step(s))
        hold(s, worker);
    else if (counts)
        apply_part(s, w, s->stage[worker]);
    w->committed = seq;
    w->state = ER_PS_IDLE;
    if (w->conn)
        er_ps_answer(w->conn, ER_PS_FRAME_COMMIT, &seq, 1, NULL, 0);
    else
        er_ps_table_lost(&s->table, worker);
}

void er_ps_apply(struct er_ps_server *s)
{
    if (er_ps_sending(s))
        return;
    for (uint32_t w = 0; w < ER_PS_WORKERS_MAX; w++) {
        if (s->workers[w].state == ER_PS_DUE)
            carry_out(s, w);
    }
    if (er_ps_lock_step(s) && s->applied_steps < s->table.done_steps)
        apply_step(s);
    if (!er_ps_lock_step(s))
        s->applied_steps = s->table.done_steps;
}

/* ---- life ---- */

static int check(const struct er_ps_server_opts *o, struct er_error *err)
{
    int rc = er_optim_check(&o->optim, err);

    if (rc == 0)
        rc = er_schedule_check(&o->schedule, err);
    if (rc < 0)
        return rc;
    if (o->parts < 1 || o->parts > ER_PS_WORKERS_MAX || o->servers < 1 ||
        o->servers > ER_PS_WORKERS_MAX || o->index < 0 || o->index >= o->servers)
        return er_error_set(err, ER_E_USAGE,
                            "%u parts of a step, server %d of %d: 1 to %d of each are expected",
                            o->parts, o->index, o->servers, ER_PS_WORKERS_MAX);
    return 0;
}

uint64_t er_ps_layout(const struct er_flat *flat)
{
    struct er_digest digest = {0};

    for (size_t i = 0; i < flat->params_n; i++) {
        struct {
            uint64_t before, first, count;
            char name[ER_FLAT_NAME_MAX];
        } row = {digest.lo, flat->params[i].first, flat->params[i].count, ""};

        memcpy(row.name, flat->params[i].name, sizeof(row.name));
        digest = er_hash(&row, sizeof(row));
    }
    return digest.lo;
}

static int take_lists(struct er_ps_server *s, struct er_error *err)
{
    s->workers = calloc(ER_PS_WORKERS_MAX, sizeof(*s->workers));
    s->stage = calloc(ER_PS_WORKERS_MAX, sizeof(*s->stage));
    s->held = calloc(s->opts.parts, sizeof(*s->held));
    s->weight = calloc(s->opts.parts, sizeof(*s->weight));
    s->records = calloc((size_t)s->opts.servers, sizeof(*s->records));
    if (!s->workers || !s->stage || !s->held || !s->weight || !s->records)
        return er_error_set(err, -ENOMEM, "parameter server: out of memory");
    return 0;
}

static int take_memory(struct er_ps_server *s, struct er_error *err)
{
    size_t states = er_optim_states_n(s->opts.optim.kind), bytes = s->extent.count * sizeof(float);
    int rc;

    rc = er_pool_new(&s->pool, (1 + states) * bytes + ER_FLAT_ALIGN, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "parameter server");
    s->value = er_pool_alloc(s->pool, bytes, ER_FLAT_ALIGN);
    for (size_t i = 0; i < states; i++)
        s->state[i] = er_pool_alloc(s->pool, bytes, ER_FLAT_ALIGN);
    memcpy(s->value, s->opts.flat->block[ER_FLAT_VALUE] + s->extent.first, bytes);
    return 0;
}

ER_CLEANUP_FOR(er_ps_server_close, struct er_ps_server)

int er_ps_server_open(struct er_ps_server **ret, const struct er_ps_server_opts *opts,
                      struct er_host_record *ret_record, struct er_error *err)
{
    const struct er_host_listen how = {
        .transport = ER_TRANSPORT_AUTO, .host = er_host_id(), .address = "", .interfaces = ""};
    ER_CLEANUP(er_ps_server_close_cleanup) struct er_ps_server *s = NULL;
    int rc = check(opts, err);

    if (rc < 0)
        return rc;
    s = calloc(1, sizeof(*s));
    if (!s)
        return er_error_set(err, -ENOMEM, "parameter server: out of memory");
    s->opts = *opts;
    s->opts.lost_timeout_us = opts->lost_timeout_us ? opts->lost_timeout_us : LOST_TIMEOUT_US;
    s->listen_fd[0] = s->listen_fd[1] = -1;
    s->layout = er_ps_layout(opts->flat);
    s->extent = er_ps_extent_of(opts->flat->total, opts->index, opts->servers);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return er_error_errno(err, "parameter server");
    rc = take_lists(s, err);
    if (rc == 0 && !opts->bare)
        rc = take_memory(s, err);
    if (rc == 0)
        rc = er_host_listen(&s->self, &how, s->listen_fd, err);
    if (rc < 0)
        return rc;
    *ret_record = s->self;
    *ret = ER_TAKE(s);
    return 0;
}

size_t er_ps_server_slices(const struct er_ps_server *s, struct er_slice *ret)
{
    const struct er_flat *flat = s->opts.flat;
    size_t n = 0, end = s->extent.first + s->extent.count;

    for (size_t which = 0; which < 1 + er_optim_states_n(s->opts.optim.kind); which++) {
        float *block = which == 0 ? s->value : s->state[which - 1];

        for (size_t p = 0; p < flat->params_n; p++) {
            size_t at = flat->params[p].first, last = at + flat->params[p].count;
            size_t from = at > s->extent.first ? at : s->extent.first, to = last < end ? last : end;

            if (from < to)
                ret[n++] = er_flat_piece(flat, which, p, from - at, to - from,
                                         block + (from - s->extent.first));
        }
    }
    return n;
}

bool er_ps_progress_is_whole(const struct er_ps_progress *progress)
{
    for (size_t i = 0; i < ER_PS_WINDOW / 64; i++) {
        if (progress->bits[i] != 0)
            return false;
    }
    return true;
}

void er_ps_server_progress(const struct er_ps_server *s, struct er_ps_progress *ret)
{
    *ret = (struct er_ps_progress){
        .steps = s->applied_steps, .updates = s->updates, .parts = s->opts.parts};
    if (!er_ps_lock_step(s))
        memcpy(ret->bits, s->table.bits, sizeof(ret->bits));
}

struct er_ps_extent er_ps_server_extent(const struct er_ps_server *s)
{
    return s->extent;
}

float *er_ps_server_block(const struct er_ps_server *s, size_t which)
{
    return which == 0 ? s->value : which <= ER_FLAT_STATES_MAX ? s->state[which - 1] : NULL;
}

void er_ps_server_adopt(struct er_ps_server *s, struct er_ps_server *from)
{
    assert(!s->pool && from->stopped && s->extent.first == from->extent.first &&
           s->extent.count == from->extent.count);
    s->pool = ER_TAKE(from->pool);
    s->value = from->value;
    memcpy(s->state, from->state, sizeof(s->state));
    er_ps_server_close(from);
}

/* ---- the thread ---- */

static size_t fill_polls(struct er_ps_server *s)
{
    size_t n = 3, need = 3;

    for (struct er_ps_conn *c = s->conns; c; c = c->next)
        need++;
    if (need > s->polls_cap) {
        struct pollfd *more = reallocarray(s->polls, 2 * need, sizeof(*more));

        if (!more)
            return 0;
        s->polls = more;
        s->polls_cap = 2 * need;
    }
    s->polls[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = s->listen_fd[0], .events = POLLIN};
    s->polls[2] = (struct pollfd){.fd = s->listen_fd[1], .events = POLLIN};
    for (struct er_ps_conn *c = s->conns; c; c = c->next) {
        short events = c->dialing || c->out_bytes ? POLLOUT : 0;

        /* A worker that has staged a push for the next step waits till this one is applied. */
        s->polls[n++] = (struct pollfd){.fd = c->fd, .events = (short)(events | POLLIN)};
    }
    return n;
}

static void serve_once(struct er_ps_server *s)
{
    size_t n = fill_polls(s), i = 3;
    uint64_t now_us;

    if (n == 0 || poll(s->polls, n, (int)(TICK_US / ER_US_PER_MS)) < 0)
        return;
    now_us = er_now_us();
    for (struct er_ps_conn *c = s->conns; c && i < n; c = c->next, i++) {
        if (s->polls[i].revents)
            er_ps_conn_io(s, c, s->polls[i].revents, now_us);
    }
    for (int l = 0; l < 2; l++) {
        if (s->polls[1 + l].revents)
            er_ps_accept(s, s->listen_fd[l], now_us);
    }
    er_ps_apply(s);
    for (struct er_ps_conn *c = s->conns; c; c = c->next)
        er_ps_conn_step(s, c, now_us);
    er_ps_conn_sweep(s);
}

static void *serve(void *user)
{
    struct er_ps_server *s = user;
    uint64_t word;

    while (read(s->wake_fd, &word, sizeof(word)) != (ssize_t)sizeof(word))
        serve_once(s);
    return NULL;
}

int er_ps_server_place(struct er_ps_server *s, const struct er_ps_progress *at,
                       struct er_error *err)
{
    bool whole = er_ps_progress_is_whole(at);

    if (at->steps > s->opts.steps || (!whole && at->parts != s->opts.parts))
        return er_error_set(err, ER_E_CORRUPT,
                            "parameter server: %lu steps of %lu parts are done, of %lu of %u",
                            (unsigned long)at->steps, (unsigned long)at->parts,
                            (unsigned long)s->opts.steps, s->opts.parts);
    er_ps_table_init(&s->table, s->opts.parts, s->opts.steps, s->opts.staleness,
                     s->opts.pause_steps, at->steps);
    s->table.workers = s->opts.workers;
    if (!whole && !er_ps_table_resume(&s->table, at->bits))
        return er_error_set(err, ER_E_CORRUPT, "parameter server: no such parts can be done");
    s->applied_steps = at->steps;
    s->updates = at->updates;
    return 0;
}

int er_ps_server_start(struct er_ps_server *s, const struct er_host_record *records,
                       struct er_error *err)
{
    int rc;

    memcpy(s->records, records, (size_t)s->opts.servers * sizeof(*records));
    rc = pthread_create(&s->thread, NULL, serve, s);
    if (rc != 0)
        return er_error_set(err, -rc, "parameter server: %s", er_error_name(-rc));
    s->running = true;
    return 0;
}

int er_ps_server_run(struct er_ps_server *s, const struct er_host_record *records,
                     uint64_t done_steps, struct er_error *err)
{
    const struct er_ps_progress at = {.steps = done_steps,
                                      .updates = er_ps_lock_step(s) ? done_steps
                                                                    : done_steps * s->opts.parts};
    int rc = er_ps_server_place(s, &at, err);

    return rc < 0 ? rc : er_ps_server_start(s, records, err);
}

void er_ps_server_stop(struct er_ps_server *s)
{
    uint64_t one = 1;

    if (s->running && write(s->wake_fd, &one, sizeof(one)) == (ssize_t)sizeof(one))
        pthread_join(s->thread, NULL);
    s->running = false;
    s->stopped = true;
    for (struct er_ps_conn *conn = s->conns; conn; conn = conn->next)
        er_ps_conn_close(s, conn);
    er_ps_conn_sweep(s);
    er_ps_apply(s);
    er_cleanup_fd(&s->listen_fd[0]);
    er_cleanup_fd(&s->listen_fd[1]);
}

void er_ps_server_close(struct er_ps_server *s)
{
    int saved = errno;

    if (!s)
        return;
    if (s->workers)
        er_ps_server_stop(s);
    er_cleanup_fd(&s->wake_fd);
    for (size_t i = 0; s->stage && i < ER_PS_WORKERS_MAX; i++)
        free(s->stage[i]);
    for (size_t i = 0; s->held && i < s->opts.parts; i++)
        free(s->held[i]);
    free(s->stage);
    free(s->held);
    free(s->weight);
    free(s->records);
    free(s->workers);
    free(s->polls);
    er_pool_free(s->pool);
    free(s);
    errno = saved;
}
