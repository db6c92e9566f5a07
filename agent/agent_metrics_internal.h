#pragma once
/* One look at the agent's metrics, shared by the files that write them. */
#include "agent/agent_internal.h"

struct er_self { /* this process */
    double cpu_s, virtual_bytes, resident_bytes, fds;
};

struct er_scrape {
    struct er_agent *agent;
    struct er_exposition *x;
    struct er_look look;
    struct er_self self;
    uint64_t now_us;
    double now_s; /* Unix time */
};

/* agent_metrics_worker.c: what this node's workers report. */
void er_metrics_write_workers(struct er_scrape *s);
void er_metrics_write_step(struct er_scrape *s);
void er_metrics_write_progress(struct er_scrape *s);
void er_metrics_write_memory(struct er_scrape *s);
void er_metrics_write_step_time(struct er_scrape *s);
void er_metrics_write_samples(struct er_scrape *s);
void er_metrics_write_tokens(struct er_scrape *s);
void er_metrics_write_loss(struct er_scrape *s);
void er_metrics_write_log_lines(struct er_scrape *s);

/* agent_textfile.c: metrics.textfile, replaced now. */
void er_agent_textfile_write(struct er_agent *agent);
