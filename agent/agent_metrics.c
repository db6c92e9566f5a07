/* The agent's metrics: what is read when somebody asks, and metrics.textfile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define TEXTFILE_EVERY_US (15 * ER_US_PER_S)
#define NUMBER_MAX        24

/* ---- this process ---- */

struct self {
    double cpu_s, virtual_bytes, resident_bytes, fds;
};

static double open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    double n = -3; /* ".", ".." and the one that looks */

    if (!dir)
        return NAN;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void read_self(struct self *ret)
{
    struct rusage usage;
    unsigned long long virtual_pages = 0, resident_pages = 0;
    double page = (double)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/proc/self/statm", "re");

    getrusage(RUSAGE_SELF, &usage);
    if (f) {
        (void)!fscanf(f, "%llu %llu", &virtual_pages, &resident_pages);
        fclose(f);
    }
    ret->cpu_s = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    ret->virtual_bytes = (double)virtual_pages * page;
    ret->resident_bytes = (double)resident_pages * page;
    ret->fds = open_descriptors();
}

static double resident_of(pid_t pid)
{
    char path[40], text[128] = "", *at = text;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;

    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
        return 0;
    strtoull(at, &at, 10); /* its size */
    return (double)strtoull(at, NULL, 10) * (double)sysconf(_SC_PAGESIZE);
}

/* ---- what is asked for ---- */

struct scrape {
    struct er_agent *agent;
    struct er_exposition *x;
    struct er_look look;
    struct self self;
    uint64_t now_us;
    double now_s; /* Unix time */
};

static int workers_n(const struct scrape *s)
{
    return s->agent->group ? er_group_size(s->agent->group) : 0;
}

static bool reports(const struct er_worker *w)
{
    return w->page && atomic_load(&w->page->from_worker.step_us) > 0;
}

static void write_build(struct scrape *s)
{
    const struct er_label labels[] = {{"version", ER_VERSION},
                                      {"etcd", s->agent->store.etcd ? "loaded" : "unused"}};

    er_exposition_sample(s->x, labels, ER_ARRAY_N(labels), 1);
}

static void write_node(struct scrape *s)
{
    const struct er_config *c = s->agent->config;
    const char *run = er_driver_run(s->agent->driver);
    const struct er_label labels[] = {
        {"run_id", run ? run : ""}, {"node_id", c->node.id}, {"role", c->role}};

    er_exposition_sample(s->x, labels, ER_ARRAY_N(labels), 1);
}

static void write_phase(struct scrape *s)
{
    static const char *const PHASES[] = {"forming",   "running", "resizing",
                                         "succeeded", "failed",  "stopped"};
    const char *now = er_driver_phase(s->agent->driver);

    for (size_t i = 0; i < ER_ARRAY_N(PHASES); i++)
        er_exposition_labelled(s->x, "elastic_run_job_phase", PHASES[i],
                               strcmp(now, PHASES[i]) == 0);
}

static void write_nodes(struct scrape *s)
{
    static const char *const STATES[] = {"member", "spare", "set_aside"};
    size_t n = er_driver_look_nodes(s->agent->driver, NULL, 0), counts[ER_ARRAY_N(STATES)] = {0};
    ER_CLEANUP(er_cleanup_free)
    struct er_node_look *list = n > 0 ? calloc(n, sizeof(*list)) : NULL;

    if (!list)
        return; /* another node leads */
    n = er_driver_look_nodes(s->agent->driver, list, n);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < ER_ARRAY_N(STATES); k++)
            counts[k] += strcmp(list[i].state, STATES[k]) == 0;
    }
    for (size_t k = 0; k < ER_ARRAY_N(STATES); k++)
        er_exposition_labelled(s->x, "state", STATES[k], (double)counts[k]);
}

static void write_workers(struct scrape *s)
{
    unsigned counts[ER_WORKER_STATE_COUNT] = {0};

    for (int i = 0; i < workers_n(s); i++)
        counts[er_group_worker(s->agent->group, i)->fsm.state]++;
    for (int state = 0; state < ER_WORKER_STATE_COUNT; state++)
        er_exposition_labelled(s->x, "state", er_worker_state_name((enum er_worker_state)state),
                               counts[state]);
}

/* One sample of each worker that reports. */
static void write_each(struct scrape *s, double (*value)(struct scrape *, const struct er_worker *),
                       bool (*has)(const struct er_worker *))
{
    char rank[NUMBER_MAX];

    for (int i = 0; i < workers_n(s); i++) {
        const struct er_worker *w = er_group_worker(s->agent->group, i);

        if (!has(w))
            continue;
        snprintf(rank, sizeof(rank), "%d", w->rank);
        er_exposition_labelled(s->x, "rank", rank, value(s, w));
    }
}

static double step_of(struct scrape *s, const struct er_worker *w)
{
    (void)s;
    return (double)atomic_load(&w->page->from_worker.step);
}

static double progress_of(struct scrape *s, const struct er_worker *w)
{
    uint64_t at_us = atomic_load(&w->page->from_worker.step_us);

    return s->now_s - ((double)s->now_us - (double)at_us) / 1e6;
}

static double memory_of(struct scrape *s, const struct er_worker *w)
{
    (void)s;
    return resident_of(w->pid);
}

static bool lives(const struct er_worker *w)
{
    return w->pid > 0 && er_worker_fsm_alive(&w->fsm);
}

static void write_step(struct scrape *s)
{
    write_each(s, step_of, reports);
}

static void write_progress(struct scrape *s)
{
    write_each(s, progress_of, reports);
}

static void write_memory(struct scrape *s)
{
    write_each(s, memory_of, lives);
}

static void write_restarts_left(struct scrape *s)
{
    uint32_t max = s->agent->config->restart.max, used = er_driver_restarts(s->agent->driver);

    er_exposition_value(s->x, max == ER_NONE_U32 ? (double)INFINITY
                              : max > used       ? (double)(max - used)
                                                 : 0);
}

static void write_time(struct scrape *s)
{
    for (int i = 0; i < ER_TIME_COUNT; i++) {
        enum er_time state = (enum er_time)i;

        er_exposition_labelled(s->x, "state", er_time_name(state),
                               (double)er_goodput_spent(&s->agent->goodput, state, s->now_us) /
                                   1e6);
    }
}

/* Of the workers that run, and of those that have ended. */
static void write_samples(struct scrape *s)
{
    double sum = s->agent->metrics->counts[ER_METRIC_ID_SAMPLES].of[0].value;

    for (int i = 0; i < workers_n(s); i++) {
        const struct er_worker *w = er_group_worker(s->agent->group, i);

        if (reports(w) && er_worker_fsm_alive(&w->fsm))
            sum += (double)atomic_load(&w->page->from_worker.samples);
    }
    er_exposition_value(s->x, sum);
}

static void write_loss(struct scrape *s)
{
    const struct er_worker *w = workers_n(s) > 0 ? er_group_worker(s->agent->group, 0) : NULL;
    uint64_t bits = w && reports(w) ? atomic_load(&w->page->from_worker.loss_bits) : 0;
    double loss;

    memcpy(&loss, &bits, sizeof(loss));
    if (w && reports(w))
        er_exposition_value(s->x, loss);
}

static void write_checkpoint_step(struct scrape *s)
{
    uint64_t step;

    if (er_driver_latest(s->agent->driver, &step))
        er_exposition_value(s->x, (double)step);
}

static void write_checkpoint_at(struct scrape *s)
{
    if (s->agent->metrics->committed_at > 0)
        er_exposition_value(s->x, s->agent->metrics->committed_at);
}

static void write_store_up(struct scrape *s)
{
    struct er_etcd_status status = {.connected = true};

    if (s->agent->store.etcd)
        s->agent->store.etcd->status(s->agent->store.store, &status);
    er_exposition_value(s->x, status.connected);
}

static void write_fds_max(struct scrape *s)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        er_exposition_value(s->x,
                            limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur);
}

/* Metrics that are one number. */
static bool number_of(const struct scrape *s, enum er_metric_id id, double *ret)
{
    const struct er_assignment *a = s->agent->group ? er_group_assignment(s->agent->group) : NULL;
    const struct {
        enum er_metric_id id;
        double value;
    } NUMBERS[] = {
        {ER_METRIC_ID_GENERATION, (double)er_driver_generation(s->agent->driver)},
        {ER_METRIC_ID_WORLD_SIZE, a ? (double)a->world_size : (double)s->look.world_size},
        {ER_METRIC_ID_NODES_MIN, s->look.min},
        {ER_METRIC_ID_NODES_MAX, s->look.max},
        {ER_METRIC_ID_RESTARTS, er_driver_restarts(s->agent->driver)},
        {ER_METRIC_ID_CPU, s->self.cpu_s},
        {ER_METRIC_ID_FDS, s->self.fds},
        {ER_METRIC_ID_VIRTUAL, s->self.virtual_bytes},
        {ER_METRIC_ID_RESIDENT, s->self.resident_bytes},
        {ER_METRIC_ID_STARTED, s->now_s - ((double)s->now_us - (double)s->agent->started_us) / 1e6},
    };

    for (size_t i = 0; i < ER_ARRAY_N(NUMBERS); i++) {
        if (NUMBERS[i].id == id) {
            *ret = NUMBERS[i].value;
            return true;
        }
    }
    return false;
}

static void write_metric(struct scrape *s, enum er_metric_id id)
{
    static void (*const WRITERS[ER_METRIC_ID_COUNT])(struct scrape *) = {
        [ER_METRIC_ID_BUILD] = write_build,
        [ER_METRIC_ID_NODE] = write_node,
        [ER_METRIC_ID_PHASE] = write_phase,
        [ER_METRIC_ID_NODES] = write_nodes,
        [ER_METRIC_ID_WORKERS] = write_workers,
        [ER_METRIC_ID_STEP] = write_step,
        [ER_METRIC_ID_PROGRESS] = write_progress,
        [ER_METRIC_ID_MEMORY] = write_memory,
        [ER_METRIC_ID_RESTARTS_LEFT] = write_restarts_left,
        [ER_METRIC_ID_TIME] = write_time,
        [ER_METRIC_ID_SAMPLES] = write_samples,
        [ER_METRIC_ID_LOSS] = write_loss,
        [ER_METRIC_ID_CHECKPOINT_STEP] = write_checkpoint_step,
        [ER_METRIC_ID_CHECKPOINT_AT] = write_checkpoint_at,
        [ER_METRIC_ID_STORE_UP] = write_store_up,
        [ER_METRIC_ID_FDS_MAX] = write_fds_max,
    };
    double number;

    if (!WRITERS[id] && !number_of(s, id, &number)) {
        er_metrics_write(s->agent->metrics, id, s->x);
        return;
    }
    er_exposition_metric(s->x, &er_metrics_table[id]);
    if (WRITERS[id])
        WRITERS[id](s);
    else
        er_exposition_value(s->x, number);
}

int er_agent_metrics_text(struct er_agent *agent, bool open_metrics, struct er_buf *buf)
{
    struct er_exposition x;
    struct scrape s = {
        .agent = agent, .x = &x, .now_us = er_now_us(), .now_s = (double)er_wall_us() / 1e6};

    er_driver_look(agent->driver, &s.look);
    er_agent_goodput_settle(agent, s.now_us);
    read_self(&s.self);
    er_exposition_begin(&x, buf, open_metrics, agent->config->name);
    for (int id = 0; id < ER_METRIC_ID_COUNT; id++)
        write_metric(&s, (enum er_metric_id)id);
    return er_exposition_end(&x);
}

/* ---- counting ---- */

static void on_event(void *user, const char *name, const struct er_field *fields, size_t n)
{
    struct er_agent *agent = user;

    er_metrics_event(agent->metrics, name, fields, n, (double)er_wall_us() / 1e6);
}

void er_agent_metrics_worker(struct er_agent *agent, const struct er_worker *w)
{
    if (agent->metrics && reports(w))
        er_metrics_add(agent->metrics, ER_METRIC_ID_SAMPLES, "",
                       (double)atomic_load(&w->page->from_worker.samples));
}

int er_agent_metrics_open(struct er_agent *agent, struct er_error *err)
{
    const struct er_config *c = agent->config;

    agent->textfile_us = ER_FOREVER;
    if (!c->http.listen && !c->metrics.textfile)
        return 0;
    agent->metrics = calloc(1, sizeof(*agent->metrics));
    if (!agent->metrics)
        return er_error_set(err, -ENOMEM, "metrics: out of memory");
    er_buf_init(&agent->metrics_text, ER_METRICS_TEXT_MAX);
    agent->events.observe = on_event;
    agent->events.observe_user = agent;
    if (c->metrics.textfile)
        agent->textfile_us = er_now_us();
    return 0;
}

/* ---- metrics.textfile ---- */

/* As node_exporter wants it: complete at every moment. No fsync, which a slow disk would make the
 * agent wait for: after a crash of the host nobody needs it. */
static int replace_textfile(const char *path, const struct er_buf *text, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *tmp = NULL;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    const char *at = text->data;
    size_t left = text->len;
    struct stat st;

    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return er_error_set(err, -EEXIST, "it is there and is not a regular file");
    if (asprintf(&tmp, "%s.%d", path, (int)getpid()) < 0)
        return er_error_set(err, -ENOMEM, "out of memory");
    fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return er_error_errno(err, "create '%s'", tmp);
    while (left > 0) {
        ssize_t n = write(fd, at, left);

        if (n < 0) {
            int rc = er_error_errno(err, "write '%s'", tmp);

            unlink(tmp);
            return rc;
        }
        at += n;
        left -= (size_t)n;
    }
    if (rename(tmp, path) < 0) {
        int rc = er_error_errno(err, "rename to '%s'", path);

        unlink(tmp);
        return rc;
    }
    return 0;
}

static void write_textfile(struct er_agent *agent)
{
    const char *path = agent->config->metrics.textfile;
    struct er_error err = ER_ERROR_INIT;
    int rc;

    er_buf_clear(&agent->metrics_text);
    rc = er_agent_metrics_text(agent, false, &agent->metrics_text);
    if (!rc)
        rc = replace_textfile(path, &agent->metrics_text, &err);
    if (rc && !agent->textfile_told)
        er_log(ER_LOG_WARNING, "metrics.textfile cannot be written", ER_STR("path", path),
               ER_STR("reason", err.text[0] ? err.text : er_error_name(rc)));
    agent->textfile_told = rc != 0;
}

void er_agent_metrics_step(struct er_agent *agent, uint64_t now_us)
{
    if (now_us < agent->textfile_us)
        return;
    write_textfile(agent);
    agent->textfile_us = er_deadline_in(now_us, TEXTFILE_EVERY_US);
}

void er_agent_metrics_close(struct er_agent *agent)
{
    if (!agent->metrics)
        return;
    /* The last word stays: an alert on a failed job reads it. */
    if (agent->config->metrics.textfile && agent->driver)
        write_textfile(agent);
    er_buf_done(&agent->metrics_text);
    er_cleanup_free(&agent->metrics);
}
