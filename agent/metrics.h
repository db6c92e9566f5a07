#pragma once
/*
 * The metrics of one agent (docs/metrics.md is made from this table), and what it counts for them.
 * Counters follow the events: metrics.c says which field of which event adds to what. Gauges are
 * read when somebody asks (agent_metrics.c). Pure.
 */
#include "agent/exposition.h"
#include "base/field.h"

/* X(ENUM, name, type, labels, help); job_name is a label of all. */
/* clang-format off */
#define ER_METRICS(X)                                                                              \
    X(BUILD, "elastic_run_build", INFO, "version, etcd", "this build of elastic-run")              \
    X(NODE, "elastic_run_node", INFO, "run_id, node_id, role", "this node, and the job's run")     \
    X(PHASE, "elastic_run_job_phase", STATESET, "elastic_run_job_phase", "what the job does")      \
    X(GENERATION, "elastic_run_generation", GAUGE, "", "number of the newest generation")          \
    X(WORLD_SIZE, "elastic_run_world_size", GAUGE, "", "ranks of the generation")                  \
    X(NODES, "elastic_run_nodes", GAUGE, "state", "nodes of the job; on the node that leads it")   \
    X(NODES_MIN, "elastic_run_nodes_min", GAUGE, "", "nodes that the job needs")                   \
    X(NODES_MAX, "elastic_run_nodes_max", GAUGE, "", "nodes that the job may have")                \
    X(WORKERS, "elastic_run_workers", GAUGE, "state", "workers of this node")                      \
    X(STEP, "elastic_run_worker_step", GAUGE, "rank", "last finished step")                        \
    X(PROGRESS, "elastic_run_worker_last_progress_timestamp_seconds", GAUGE, "rank", "Unix time of its last report") \
    X(MEMORY, "elastic_run_worker_memory_bytes", GAUGE, "rank", "resident memory")                 \
    X(EXITS, "elastic_run_worker_exits", COUNTER, "kind", "ends of workers of this node")          \
    X(GENERATIONS, "elastic_run_generations", COUNTER, "reason", "generations that began here")    \
    X(RESTARTS, "elastic_run_restarts", COUNTER, "", "restarts charged to the job's budget")       \
    X(RESTARTS_LEFT, "elastic_run_restarts_remaining", GAUGE, "", "restarts left; +Inf without limit") \
    X(TIME, "elastic_run_time_seconds", COUNTER, "state", "where the time of this node went; goodput is useful over the sum") \
    X(RECOVERY, "elastic_run_recovery_duration_seconds", HISTOGRAM, "reason", "from a failure to the first new step") \
    X(RENDEZVOUS, "elastic_run_rendezvous_duration_seconds", HISTOGRAM, "", "from ready to sealed") \
    X(STEP_TIME, "elastic_run_step_duration_seconds", HISTOGRAM, "", "steps of this node's first rank, as far as it reports; fine bounds") \
    X(SAMPLES, "elastic_run_samples", COUNTER, "", "samples that this node's ranks finished, as far as they report") \
    X(TOKENS, "elastic_run_tokens", COUNTER, "", "tokens, likewise")                              \
    X(LOSS, "elastic_run_loss", GAUGE, "", "last loss that this node's first rank reported")       \
    X(CHECKPOINTS, "elastic_run_checkpoints", COUNTER, "result", "checkpoints of workers of this node") \
    X(CHECKPOINT_BYTES, "elastic_run_checkpoint_written_bytes", COUNTER, "", "bytes written for them") \
    X(CHECKPOINT_TIME, "elastic_run_checkpoint_duration_seconds", HISTOGRAM, "", "from the save to the commit") \
    X(CHECKPOINT_PAUSE, "elastic_run_checkpoint_pause_seconds", HISTOGRAM, "", "for which training stood still") \
    X(CHECKPOINT_STEP, "elastic_run_checkpoint_last_step", GAUGE, "", "step of the newest committed one") \
    X(CHECKPOINT_AT, "elastic_run_checkpoint_last_timestamp_seconds", GAUGE, "", "Unix time of the newest committed one, where this node committed it") \
    X(STORE_UP, "elastic_run_store_connected", GAUGE, "", "1 while the store answers")             \
    X(STORE_OUTAGE, "elastic_run_store_outage_seconds", COUNTER, "", "time without the store")     \
    X(STORE_REQUESTS, "elastic_run_store_requests", COUNTER, "op, code", "answers and failures of etcd, by gRPC's code") \
    X(STORE_TIME, "elastic_run_store_request_duration_seconds", HISTOGRAM, "op", "from sending to the answer; fine bounds") \
    X(LOG_LINES, "elastic_run_log_lines", COUNTER, "stream", "lines that workers wrote, where their output is kept or shown") \
    X(LOG_DROPPED, "elastic_run_log_dropped_lines", COUNTER, "stream", "lines of workers that could not be kept") \
    X(HEALTH, "elastic_run_health_check_failures", COUNTER, "check", "checks before a join that failed") \
    X(CPU, "process_cpu_seconds", COUNTER, "", "CPU time of the agent")                            \
    X(FDS, "process_open_fds", GAUGE, "", "open descriptors of the agent")                         \
    X(FDS_MAX, "process_max_fds", GAUGE, "", "their limit")                                        \
    X(VIRTUAL, "process_virtual_memory_bytes", GAUGE, "", "virtual memory of the agent")           \
    X(RESIDENT, "process_resident_memory_bytes", GAUGE, "", "resident memory of the agent")        \
    X(STARTED, "process_start_time_seconds", GAUGE, "", "Unix time of the agent's start")
/* clang-format on */

enum er_metric_id {
#define ER_METRIC_ENUM(name, text, type, labels, help) ER_METRIC_ID_##name,
    ER_METRICS(ER_METRIC_ENUM)
#undef ER_METRIC_ENUM
        ER_METRIC_ID_COUNT
};
extern const struct er_metric er_metrics_table[ER_METRIC_ID_COUNT];

#define ER_METRIC_VALUES    12 /* values of a label that are told apart; later ones are "other" */
#define ER_METRIC_VALUE_MAX 24

/* What is counted of one metric. */
struct er_metric_count {
    struct {
        char label[ER_METRIC_VALUE_MAX]; /* its label's value; "" when the metric has none */
        double value;
        struct er_histogram histogram;
    } of[ER_METRIC_VALUES];
    unsigned n;
};

struct er_metrics {
    struct er_metric_count counts[ER_METRIC_ID_COUNT];
    double committed_at; /* Unix time in seconds; 0: never */
};

/* An event of this node: adds what it counts for. `wall_s`: Unix time. */
void er_metrics_event(struct er_metrics *m, const char *name, const struct er_field *fields,
                      size_t n, double wall_s);
/* Counters: adds `value`. Histograms: one observation of it. `label`: the value of the metric's
 * label, "" for one without. */
void er_metrics_add(struct er_metrics *m, enum er_metric_id id, const char *label, double value);
/* Samples of what is counted under `id`; a counter without label is 0 before its first. */
void er_metrics_write(const struct er_metrics *m, enum er_metric_id id, struct er_exposition *x);
