/* Metrics of this node's workers, most of which their shared pages tell. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_metrics_internal.h"
#include "base/cleanup.h"

#define NUMBER_MAX 24

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

static int workers_n(const struct er_scrape *s)
{
    return s->agent->group ? er_group_size(s->agent->group) : 0;
}

/* NULL: says nothing of itself. */
static const struct er_page_progress *page_of(const struct er_worker *w)
{
    const struct er_page_progress *p = w->page ? &w->page->from_worker : NULL;

    return p && atomic_load(&p->step_us) > 0 ? p : NULL;
}

/* ---- one sample a state ---- */

void er_metrics_write_workers(struct er_scrape *s)
{
    unsigned counts[ER_WORKER_STATE_COUNT] = {0};

    for (int i = 0; i < workers_n(s); i++)
        counts[er_group_worker(s->agent->group, i)->fsm.state]++;
    for (int state = 0; state < ER_WORKER_STATE_COUNT; state++)
        er_exposition_labelled(s->x, "state", er_worker_state_name((enum er_worker_state)state),
                               counts[state]);
}

void er_metrics_write_log_lines(struct er_scrape *s)
{
    static const char *const STREAMS[] = {"stdout", "stderr"};

    for (size_t i = 0; i < ER_ARRAY_N(STREAMS); i++)
        er_exposition_labelled(s->x, "stream", STREAMS[i],
                               (double)atomic_load(&s->agent->log_lines[i]));
}

/* ---- one sample a worker ---- */

static void write_each(struct er_scrape *s,
                       bool (*value)(struct er_scrape *, const struct er_worker *, double *))
{
    char rank[NUMBER_MAX];
    double number;

    for (int i = 0; i < workers_n(s); i++) {
        const struct er_worker *w = er_group_worker(s->agent->group, i);

        if (!value(s, w, &number))
            continue;
        snprintf(rank, sizeof(rank), "%d", w->rank);
        er_exposition_labelled(s->x, "rank", rank, number);
    }
}

static bool step_of(struct er_scrape *s, const struct er_worker *w, double *ret)
{
    const struct er_page_progress *p = page_of(w);

    (void)s;
    if (p)
        *ret = (double)atomic_load(&p->step);
    return p != NULL;
}

static bool progress_of(struct er_scrape *s, const struct er_worker *w, double *ret)
{
    const struct er_page_progress *p = page_of(w);

    if (p)
        *ret = s->now_s - ((double)s->now_us - (double)atomic_load(&p->step_us)) / 1e6;
    return p != NULL;
}

static bool memory_of(struct er_scrape *s, const struct er_worker *w, double *ret)
{
    (void)s;
    if (w->pid <= 0 || !er_worker_fsm_alive(&w->fsm))
        return false;
    *ret = resident_of(w->pid);
    return true;
}

void er_metrics_write_step(struct er_scrape *s)
{
    write_each(s, step_of);
}

void er_metrics_write_progress(struct er_scrape *s)
{
    write_each(s, progress_of);
}

void er_metrics_write_memory(struct er_scrape *s)
{
    write_each(s, memory_of);
}

/* ---- all of them together, those that have ended included ---- */

static double ended(const struct er_scrape *s, enum er_metric_id id)
{
    return s->agent->metrics->counts[id].of[0].value;
}

static void write_sum(struct er_scrape *s, enum er_metric_id id,
                      uint64_t (*of)(const struct er_page_progress *))
{
    double sum = ended(s, id);

    for (int i = 0; i < workers_n(s); i++) {
        const struct er_worker *w = er_group_worker(s->agent->group, i);
        const struct er_page_progress *p = page_of(w);

        if (p && er_worker_fsm_alive(&w->fsm))
            sum += (double)of(p);
    }
    er_exposition_value(s->x, sum);
}

static uint64_t samples_of(const struct er_page_progress *p)
{
    return atomic_load(&p->samples);
}

static uint64_t tokens_of(const struct er_page_progress *p)
{
    return atomic_load(&p->tokens);
}

void er_metrics_write_samples(struct er_scrape *s)
{
    write_sum(s, ER_METRIC_ID_SAMPLES, samples_of);
}

void er_metrics_write_tokens(struct er_scrape *s)
{
    write_sum(s, ER_METRIC_ID_TOKENS, tokens_of);
}

/* ---- the first rank of this node ---- */

static const struct er_worker *first_of(const struct er_scrape *s)
{
    return workers_n(s) > 0 ? er_group_worker(s->agent->group, 0) : NULL;
}

static void add_steps(struct er_histogram *to, const struct er_page_progress *p)
{
    for (int i = 0; i < ER_PAGE_STEP_TIMES; i++)
        to->counts[i] += atomic_load(&p->steps_by_time[i]);
    to->sum += (double)atomic_load(&p->steps_time_us) / 1e6;
}

void er_metrics_write_step_time(struct er_scrape *s)
{
    struct er_histogram all = s->agent->metrics->counts[ER_METRIC_ID_STEP_TIME].of[0].histogram;
    const struct er_worker *w = first_of(s);
    const struct er_page_progress *p = w ? page_of(w) : NULL;

    if (p && er_worker_fsm_alive(&w->fsm))
        add_steps(&all, p);
    er_exposition_histogram(s->x, NULL, 0, &all, &er_bounds_fine);
}

void er_metrics_write_loss(struct er_scrape *s)
{
    const struct er_worker *w = first_of(s);
    const struct er_page_progress *p = w ? page_of(w) : NULL;
    uint64_t bits = p ? atomic_load(&p->loss_bits) : 0;
    double loss;

    memcpy(&loss, &bits, sizeof(loss));
    if (p)
        er_exposition_value(s->x, loss);
}

void er_agent_metrics_worker(struct er_agent *agent, const struct er_worker *w)
{
    struct er_metrics *m = agent->metrics;
    const struct er_page_progress *p = page_of(w);

    if (!m || !p)
        return;
    er_metrics_add(m, ER_METRIC_ID_SAMPLES, "", (double)samples_of(p));
    er_metrics_add(m, ER_METRIC_ID_TOKENS, "", (double)tokens_of(p));
    if (w == er_group_worker(agent->group, 0))
        add_steps(&m->counts[ER_METRIC_ID_STEP_TIME].of[0].histogram, p);
}
