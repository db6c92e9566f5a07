#include "agent/http_history.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/field.h"

void er_history_generation(struct er_history *h, double at_ms, uint64_t generation, int world_size,
                           const char *reason)
{
    uint64_t last = h->generations_n;
    size_t i = (size_t)(h->generations_n % ER_HISTORY_GENERATIONS);

    if (last > 0 && h->generations[(last - 1) % ER_HISTORY_GENERATIONS].generation == generation)
        return;
    h->generations[i].at_ms = at_ms;
    h->generations[i].generation = generation;
    h->generations[i].world_size = world_size;
    snprintf(h->generations[i].reason, sizeof(h->generations[i].reason), "%s", reason);
    h->generations_n++;
}

void er_history_point(struct er_history *h, double at_ms, uint64_t step, uint64_t samples,
                      double loss)
{
    uint64_t last = h->points_n;
    size_t i = (size_t)(h->points_n % ER_HISTORY_POINTS);

    if (last > 0 && h->points[(last - 1) % ER_HISTORY_POINTS].step == step)
        return;
    h->points[i].at_ms = at_ms;
    h->points[i].step = step;
    h->points[i].samples = samples;
    h->points[i].loss = loss;
    h->points_n++;
}

static uint64_t first_of(uint64_t n, uint64_t size)
{
    return n > size ? n - size : 0;
}

static int generations_json(const struct er_history *h, struct er_buf *buf)
{
    uint64_t first = first_of(h->generations_n, ER_HISTORY_GENERATIONS);
    int rc = er_buf_add_str(buf, "\"generations\":[");

    for (uint64_t i = first; !rc && i < h->generations_n; i++) {
        size_t at = (size_t)(i % ER_HISTORY_GENERATIONS);
        const struct er_field fields[] = {
            ER_NUM("at_ms", h->generations[at].at_ms),
            ER_UINT("generation", h->generations[at].generation),
            ER_INT("world_size", h->generations[at].world_size),
            ER_STR("reason", h->generations[at].reason),
        };

        rc = er_buf_add_str(buf, i > first ? ",{" : "{");
        if (!rc)
            rc = er_fields_json(buf, fields, sizeof(fields) / sizeof(fields[0]));
        if (!rc)
            rc = er_buf_add_str(buf, "}");
    }
    return rc ? rc : er_buf_add_str(buf, "]");
}

static int points_json(const struct er_history *h, struct er_buf *buf)
{
    uint64_t first = first_of(h->points_n, ER_HISTORY_POINTS);
    int rc = er_buf_add_str(buf, "\"points\":[");

    for (uint64_t i = first; !rc && i < h->points_n; i++) {
        size_t at = (size_t)(i % ER_HISTORY_POINTS);
        char loss[32] = "null";

        if (isfinite(h->points[at].loss))
            snprintf(loss, sizeof(loss), "%.6g", h->points[at].loss);
        rc = er_buf_printf(buf, "%s[%.0f,%llu,%llu,%s]", i > first ? "," : "", h->points[at].at_ms,
                           (unsigned long long)h->points[at].step,
                           (unsigned long long)h->points[at].samples, loss);
    }
    return rc ? rc : er_buf_add_str(buf, "]");
}

int er_history_json(const struct er_history *h, struct er_buf *buf)
{
    int rc = er_buf_add_str(buf, "{");

    if (!rc)
        rc = generations_json(h, buf);
    if (!rc)
        rc = er_buf_add_str(buf, ",");
    if (!rc)
        rc = points_json(h, buf);
    return rc ? rc : er_buf_add_str(buf, "}");
}
