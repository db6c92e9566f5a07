#pragma once
/*
 * Metrics as text, in both forms that scrapers ask for: OpenMetrics 1.0 and Prometheus 0.0.4. The
 * same samples in both; OpenMetrics also has the types info and stateset, which the other form
 * shows as gauges, and names a counter's family without `_total`. Pure.
 *
 * Source: the OpenMetrics specification 1.0.0; "Exposition formats" of Prometheus' documentation.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/histogram.h"

enum er_metric_type {
    ER_METRIC_COUNTER,
    ER_METRIC_GAUGE,
    ER_METRIC_HISTOGRAM,
    ER_METRIC_INFO,
    ER_METRIC_STATESET
};

/* A family: `name` without the suffix of its type (_total, _info). */
struct er_metric {
    const char *name;
    enum er_metric_type type;
    const char *labels; /* their names, for the docs; "": none but job_name */
    const char *help;
};

struct er_label {
    const char *name, *value; /* UTF-8 */
};

struct er_exposition {
    struct er_buf *buf;
    bool open_metrics;
    const char *job; /* label job_name of every sample */
    const struct er_metric *metric;
    int rc; /* the first failure of the buffer; kept until the end */
};

/* `buf` and `job` are borrowed until er_exposition_end(). */
void er_exposition_begin(struct er_exposition *x, struct er_buf *buf, bool open_metrics,
                         const char *job);
/* The samples that follow are of this family. */
void er_exposition_metric(struct er_exposition *x, const struct er_metric *metric);
void er_exposition_sample(struct er_exposition *x, const struct er_label *labels, size_t n,
                          double value);
/* Without labels. */
void er_exposition_value(struct er_exposition *x, double value);
/* With one. */
void er_exposition_labelled(struct er_exposition *x, const char *label, const char *value,
                            double number);
void er_exposition_histogram(struct er_exposition *x, const struct er_label *labels,
                             size_t labels_n, const struct er_histogram *histogram,
                             const struct er_bounds *bounds);
/* 0, -ENOBUFS, -ENOMEM. */
int er_exposition_end(struct er_exposition *x);
