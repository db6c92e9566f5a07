#include "agent/metrics.h"

#include <string.h>

#include "base/cleanup.h"

const struct er_metric er_metrics_table[ER_METRIC_ID_COUNT] = {
#define METRIC(name, text, type, labels, help)                                                     \
    [ER_METRIC_ID_##name] = {text, ER_METRIC_##type, labels, help},
    ER_METRICS(METRIC)
#undef METRIC
};

/* One row: the field of the event that is added (NULL: 1), in `unit`s, under the value of the field
 * `label` (or the text `as`). */
struct rule {
    const char *event;
    enum er_metric_id id;
    const char *value, *label, *as;
    double unit;
};

#define MS 1e-3
static const struct rule RULES[] = {
    {"worker_exited", ER_METRIC_ID_EXITS, NULL, "kind", NULL, 1},
    {"recovered", ER_METRIC_ID_RECOVERY, "total_ms", "reason", NULL, MS},
    {"checkpoint_committed", ER_METRIC_ID_CHECKPOINTS, NULL, NULL, "committed", 1},
    {"checkpoint_committed", ER_METRIC_ID_CHECKPOINT_BYTES, "written_bytes", NULL, "", 1},
    {"checkpoint_committed", ER_METRIC_ID_CHECKPOINT_TIME, "duration_ms", NULL, "", MS},
    {"checkpoint_committed", ER_METRIC_ID_CHECKPOINT_PAUSE, "pause_ms", NULL, "", MS},
    {"checkpoint_failed", ER_METRIC_ID_CHECKPOINTS, NULL, NULL, "failed", 1},
    {"store_restored", ER_METRIC_ID_STORE_OUTAGE, "outage_ms", NULL, "", MS},
    {"log_dropped", ER_METRIC_ID_LOG_DROPPED, "lines", "stream", NULL, 1},
    {"health_check_failed", ER_METRIC_ID_HEALTH, NULL, "check", NULL, 1},
};

static const struct er_field *find(const struct er_field *fields, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(fields[i].key, key) == 0)
            return &fields[i];
    }
    return NULL;
}

static double number_of(const struct er_field *field)
{
    switch (field->type) {
    case ER_FIELD_INT:
        return (double)field->v.i;
    case ER_FIELD_UINT:
        return (double)field->v.u;
    case ER_FIELD_NUM:
        return field->v.num;
    case ER_FIELD_BOOL:
        return field->v.b;
    case ER_FIELD_STR:
    case ER_FIELD_JSON:
        break;
    }
    return 0;
}

static void apply(struct er_metrics *m, const struct rule *rule, const struct er_field *fields,
                  size_t n)
{
    const struct er_field *value = rule->value ? find(fields, n, rule->value) : NULL;
    const struct er_field *label = rule->label ? find(fields, n, rule->label) : NULL;
    const char *text = label && label->type == ER_FIELD_STR ? label->v.str : rule->as;

    if (rule->value && !value)
        return;
    er_metrics_add(m, rule->id, text ? text : "unknown",
                   (value ? number_of(value) : 1) * rule->unit);
}

void er_metrics_event(struct er_metrics *m, const char *name, const struct er_field *fields,
                      size_t n, double wall_s)
{
    for (size_t i = 0; i < ER_ARRAY_N(RULES); i++) {
        if (strcmp(RULES[i].event, name) == 0)
            apply(m, &RULES[i], fields, n);
    }
    if (strcmp(name, "checkpoint_committed") == 0)
        m->committed_at = wall_s;
}

/* Its place; the last one is everybody's who came too late. */
static unsigned place_of(struct er_metric_count *count, const char *label)
{
    unsigned i = 0;

    while (i < count->n && strncmp(count->of[i].label, label, ER_METRIC_VALUE_MAX - 1) != 0)
        i++;
    if (i < count->n)
        return i;
    if (count->n == ER_METRIC_VALUES)
        return ER_METRIC_VALUES - 1;
    count->n++;
    if (i == ER_METRIC_VALUES - 1)
        label = "other";
    strncpy(count->of[i].label, label, ER_METRIC_VALUE_MAX - 1);
    return i;
}

void er_metrics_add(struct er_metrics *m, enum er_metric_id id, const char *label, double value)
{
    struct er_metric_count *count = &m->counts[id];
    unsigned i = place_of(count, label);

    count->of[i].value += value;
    if (er_metrics_table[id].type == ER_METRIC_HISTOGRAM)
        er_histogram_add(&count->of[i].histogram, &er_bounds_recovery, value);
}

static void write_one(const struct er_metric_count *count, unsigned i,
                      const struct er_metric *metric, struct er_exposition *x)
{
    const struct er_label label = {metric->labels, count->of[i].label};
    size_t n = metric->labels[0] ? 1 : 0;

    if (metric->type == ER_METRIC_HISTOGRAM)
        er_exposition_histogram(x, &label, n, &count->of[i].histogram, &er_bounds_recovery);
    else
        er_exposition_sample(x, &label, n, count->of[i].value);
}

void er_metrics_write(const struct er_metrics *m, enum er_metric_id id, struct er_exposition *x)
{
    const struct er_metric_count *count = &m->counts[id];
    const struct er_metric *metric = &er_metrics_table[id];

    er_exposition_metric(x, metric);
    for (unsigned i = 0; i < count->n; i++)
        write_one(count, i, metric, x);
    if (count->n == 0 && !metric->labels[0])
        write_one(count, 0, metric, x);
}
