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

#include "agent/agent_metrics_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define TEXTFILE_EVERY_US (15 * ER_US_PER_S)
#define NUMBER_MAX        24

/* ---- this process ---- */

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

static void read_self(struct er_self *ret)
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

/* ---- what is asked for ---- */

static void write_build(struct er_scrape *s)
{
    const struct er_label labels[] = {{"version", ER_VERSION},
                                      {"etcd", s->agent->store.etcd ? "loaded" : "unused"}};

    er_exposition_sample(s->x, labels, ER_ARRAY_N(labels), 1);
}

static void write_node(struct er_scrape *s)
{
    const struct er_config *c = s->agent->config;
    const char *run = er_driver_run(s->agent->driver);
    const struct er_label labels[] = {
        {"run_id", run ? run : ""}, {"node_id", c->node.id}, {"role", c->role}};

    er_exposition_sample(s->x, labels, ER_ARRAY_N(labels), 1);
}

static void write_phase(struct er_scrape *s)
{
    static const char *const PHASES[] = {"forming",   "running", "resizing",
                                         "succeeded", "failed",  "stopped"};
    const char *now = er_driver_phase(s->agent->driver);

    for (size_t i = 0; i < ER_ARRAY_N(PHASES); i++)
        er_exposition_labelled(s->x, "elastic_run_job_phase", PHASES[i],
                               strcmp(now, PHASES[i]) == 0);
}

static void write_nodes(struct er_scrape *s)
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

static void write_restarts_left(struct er_scrape *s)
{
    uint32_t max = s->agent->config->restart.max, used = er_driver_restarts(s->agent->driver);

    er_exposition_value(s->x, max == ER_NONE_U32 ? (double)INFINITY
                              : max > used       ? (double)(max - used)
                                                 : 0);
}

static void write_time(struct er_scrape *s)
{
    for (int i = 0; i < ER_TIME_COUNT; i++) {
        enum er_time state = (enum er_time)i;

        er_exposition_labelled(s->x, "state", er_time_name(state),
                               (double)er_goodput_spent(&s->agent->goodput, state, s->now_us) /
                                   1e6);
    }
}

static void write_checkpoint_step(struct er_scrape *s)
{
    uint64_t step;

    if (er_driver_latest(s->agent->driver, &step))
        er_exposition_value(s->x, (double)step);
}

static void write_checkpoint_at(struct er_scrape *s)
{
    if (s->agent->metrics->committed_at > 0)
        er_exposition_value(s->x, s->agent->metrics->committed_at);
}

static void write_store_up(struct er_scrape *s)
{
    struct er_etcd_status status = {.connected = true};

    if (s->agent->store.etcd)
        s->agent->store.etcd->status(s->agent->store.store, &status);
    er_exposition_value(s->x, status.connected);
}

static const char *const OPS[] = {
#define OP_NAME(name, text) text,
    ER_ETCD_OPS(OP_NAME)
#undef OP_NAME
};

/* The embedded store needs no requests. */
static const struct er_etcd_counts *etcd_counts(const struct er_scrape *s)
{
    const struct er_opened_store *store = &s->agent->store;

    return store->etcd ? store->etcd->counts(store->store) : NULL;
}

static void write_store_requests(struct er_scrape *s)
{
    static const char *const CODES[ER_GRPC_CODES] = ER_GRPC_CODE_NAMES;
    const struct er_etcd_counts *c = etcd_counts(s);

    for (int i = 0; c && i < ER_ETCD_OP_COUNT * ER_GRPC_CODES; i++) {
        int op = i / ER_GRPC_CODES, code = i % ER_GRPC_CODES;
        const struct er_label labels[] = {{"op", OPS[op]}, {"code", CODES[code]}};

        if (c->answers[op][code] > 0)
            er_exposition_sample(s->x, labels, ER_ARRAY_N(labels), (double)c->answers[op][code]);
    }
}

static void write_store_time(struct er_scrape *s)
{
    const struct er_etcd_counts *c = etcd_counts(s);

    for (int op = 0; c && op < ER_ETCD_OP_COUNT; op++) {
        const struct er_label label = {"op", OPS[op]};

        if (op != ER_ETCD_OP_WATCH)
            er_exposition_histogram(s->x, &label, 1, &c->durations[op], &er_bounds_fine);
    }
}

static void write_fds_max(struct er_scrape *s)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        er_exposition_value(s->x,
                            limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur);
}

/* Metrics that are one number. */
static bool number_of(const struct er_scrape *s, enum er_metric_id id, double *ret)
{
    const struct {
        enum er_metric_id id;
        double value;
    } NUMBERS[] = {
        {ER_METRIC_ID_GENERATION, (double)s->look.generation}, /* both of one record */
        {ER_METRIC_ID_WORLD_SIZE, s->look.world_size},
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

static void write_metric(struct er_scrape *s, enum er_metric_id id)
{
    static void (*const WRITERS[ER_METRIC_ID_COUNT])(struct er_scrape *) = {
        [ER_METRIC_ID_BUILD] = write_build,
        [ER_METRIC_ID_NODE] = write_node,
        [ER_METRIC_ID_PHASE] = write_phase,
        [ER_METRIC_ID_NODES] = write_nodes,
        [ER_METRIC_ID_WORKERS] = er_metrics_write_workers,
        [ER_METRIC_ID_STEP] = er_metrics_write_step,
        [ER_METRIC_ID_PROGRESS] = er_metrics_write_progress,
        [ER_METRIC_ID_MEMORY] = er_metrics_write_memory,
        [ER_METRIC_ID_RESTARTS_LEFT] = write_restarts_left,
        [ER_METRIC_ID_TIME] = write_time,
        [ER_METRIC_ID_STEP_TIME] = er_metrics_write_step_time,
        [ER_METRIC_ID_TOKENS] = er_metrics_write_tokens,
        [ER_METRIC_ID_STORE_REQUESTS] = write_store_requests,
        [ER_METRIC_ID_STORE_TIME] = write_store_time,
        [ER_METRIC_ID_LOG_LINES] = er_metrics_write_log_lines,
        [ER_METRIC_ID_SAMPLES] = er_metrics_write_samples,
        [ER_METRIC_ID_LOSS] = er_metrics_write_loss,
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
    struct er_scrape s = {
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

void er_agent_metrics_step(struct er_agent *agent, uint64_t now_us)
{
    if (now_us < agent->textfile_us)
        return;
    er_agent_textfile_write(agent);
    agent->textfile_us = er_deadline_in(now_us, TEXTFILE_EVERY_US);
}

void er_agent_metrics_close(struct er_agent *agent)
{
    if (!agent->metrics)
        return;
    /* The last word stays: an alert on a failed job reads it. */
    if (agent->config->metrics.textfile && agent->driver)
        er_agent_textfile_write(agent);
    er_buf_done(&agent->metrics_text);
    er_cleanup_free(&agent->metrics);
}
