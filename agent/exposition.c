#include "agent/exposition.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct type_text {
    const char *open, *plain; /* what each form calls it */
    const char *suffix;       /* of its samples' names */
};

static const struct type_text TYPES[] = {
    [ER_METRIC_COUNTER] = {"counter", "counter", "_total"},
    [ER_METRIC_GAUGE] = {"gauge", "gauge", ""},
    [ER_METRIC_HISTOGRAM] = {"histogram", "histogram", ""},
    [ER_METRIC_INFO] = {"info", "gauge", "_info"},
    [ER_METRIC_STATESET] = {"stateset", "gauge", ""},
};

static void put(struct er_exposition *x, const char *text)
{
    if (!x->rc)
        x->rc = er_buf_add_str(x->buf, text);
}

/* Backslash, quote and line feed are escaped, as both forms want it within quotes. */
static void put_escaped(struct er_exposition *x, const char *text)
{
    for (; !x->rc && *text; text++) {
        if (*text == '\n')
            put(x, "\\n");
        else if (*text == '\\' || *text == '"')
            x->rc = er_buf_printf(x->buf, "\\%c", *text);
        else
            x->rc = er_buf_add(x->buf, text, 1);
    }
}

/* The shortest text that reads back as the same number. */
static void put_number(struct er_exposition *x, double value, bool as_bound)
{
    char text[40];

    if (isnan(value)) {
        put(x, "NaN");
        return;
    }
    if (isinf(value)) {
        put(x, value > 0 ? "+Inf" : "-Inf");
        return;
    }
    for (int digits = 6; digits <= 17; digits += digits == 6 ? 9 : 1) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    put(x, text);
    /* OpenMetrics writes a bound as a number with a fraction. */
    if (as_bound && floor(value) == value)
        put(x, ".0");
}

static void put_label(struct er_exposition *x, const char *name, const char *value)
{
    put(x, ",");
    put(x, name);
    put(x, "=\"");
    put_escaped(x, value);
    put(x, "\"");
}

/* name{job_name="...",more, up to and without the closing brace. */
static void put_name(struct er_exposition *x, const char *suffix, const struct er_label *labels,
                     size_t n)
{
    put(x, x->metric->name);
    put(x, suffix);
    put(x, "{job_name=\"");
    put_escaped(x, x->job);
    put(x, "\"");
    for (size_t i = 0; i < n; i++)
        put_label(x, labels[i].name, labels[i].value);
}

static void put_end(struct er_exposition *x, double value)
{
    put(x, "} ");
    put_number(x, value, false);
    put(x, "\n");
}

void er_exposition_begin(struct er_exposition *x, struct er_buf *buf, bool open_metrics,
                         const char *job)
{
    *x = (struct er_exposition){.buf = buf, .open_metrics = open_metrics, .job = job};
}

static void put_comment(struct er_exposition *x, const char *what, const char *text)
{
    put(x, what);
    put(x, x->metric->name);
    put(x, x->open_metrics ? "" : TYPES[x->metric->type].suffix);
    put(x, " ");
    put(x, text);
    put(x, "\n");
}

void er_exposition_metric(struct er_exposition *x, const struct er_metric *metric)
{
    const struct type_text *type = &TYPES[metric->type];

    x->metric = metric;
    put_comment(x, "# HELP ", metric->help);
    put_comment(x, "# TYPE ", x->open_metrics ? type->open : type->plain);
}

void er_exposition_sample(struct er_exposition *x, const struct er_label *labels, size_t n,
                          double value)
{
    put_name(x, TYPES[x->metric->type].suffix, labels, n);
    put_end(x, value);
}

void er_exposition_value(struct er_exposition *x, double value)
{
    er_exposition_sample(x, NULL, 0, value);
}

void er_exposition_labelled(struct er_exposition *x, const char *label, const char *value,
                            double number)
{
    const struct er_label one = {label, value};

    er_exposition_sample(x, &one, 1, number);
}

void er_exposition_histogram(struct er_exposition *x, const struct er_label *labels,
                             size_t labels_n, const struct er_histogram *histogram,
                             const struct er_bounds *bounds)
{
    uint64_t below = 0;

    for (size_t i = 0; i <= bounds->n; i++) {
        below += histogram->counts[i];
        put_name(x, "_bucket", labels, labels_n);
        put(x, ",le=\"");
        put_number(x, i < bounds->n ? bounds->of[i] : INFINITY, true);
        put(x, "\"");
        put_end(x, (double)below);
    }
    put_name(x, "_sum", labels, labels_n);
    put_end(x, histogram->sum);
    put_name(x, "_count", labels, labels_n);
    put_end(x, (double)below);
}

int er_exposition_end(struct er_exposition *x)
{
    if (x->open_metrics)
        put(x, "# EOF\n");
    return x->rc;
}
