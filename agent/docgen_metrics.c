/* docs/metrics.md, from the table of metrics. */
#include "agent/docgen_internal.h"
#include "agent/goodput.h"
#include "agent/metrics.h"

static const char *type_name(enum er_metric_type type)
{
    static const char *const NAMES[] = {
        [ER_METRIC_COUNTER] = "counter",     [ER_METRIC_GAUGE] = "gauge",
        [ER_METRIC_HISTOGRAM] = "histogram", [ER_METRIC_INFO] = "info",
        [ER_METRIC_STATESET] = "stateset",
    };
    return NAMES[type];
}

static int metric_row(struct er_buf *out, const struct er_metric *m)
{
    const char *suffix = m->type == ER_METRIC_COUNTER ? "_total"
                         : m->type == ER_METRIC_INFO  ? "_info"
                                                      : "";

    return er_buf_printf(out, "| `%s%s` | %s | %s | %s |\n", m->name, suffix, type_name(m->type),
                         m->labels, m->help);
}

static int times(struct er_buf *out)
{
    int rc = er_buf_add_str(out, "\nStates of `elastic_run_time_seconds_total`:");

    for (int i = 0; !rc && i < ER_TIME_COUNT; i++)
        rc = er_buf_printf(out, " `%s`", er_time_name((enum er_time)i));
    return rc ? rc
              : er_buf_add_str(
                    out,
                    ". Every moment of the node is in one of them.\nA program that reports steps "
                    "(libelastic) is useful from its first step on, less the steps that it does "
                    "again\n(`replay`, at the mean time of a step); one that reports nothing from "
                    "its start, which shows after a minute.\n`comm_init` ends when the "
                    "last communicator stands that is opened before the first step "
                    "(libelastic's, or in Python\n`elastic.torch`'s process group); a program "
                    "without one spends its setting up in `restore`.\n");
}

int er_docgen_metrics(struct er_buf *out)
{
    int rc = er_buf_add_str(
        out,
        "# Metrics\n\n" ER_DOCGEN_MADE_BY
        "`http.listen: 127.0.0.1:9400` in the job spec (or `--set http.listen=...`) makes the "
        "agent of this node serve:\n\n"
        "| path | what it is |\n|---|---|\n"
        "| `/metrics` | OpenMetrics 1.0 when `Accept` asks for it, else the Prometheus text form "
        "0.0.4: the same samples |\n"
        "| `/status.json` | what `elastic-ctl status --json` prints |\n"
        "| `/` | a page: the job, its generations on a time axis, steps per second, loss, nodes, "
        "ranks; live |\n"
        "| `/events` | what the page listens to: server-sent events `history` and `status`, five "
        "a second; 8 streams at most |\n"
        "| `/healthz` | `ok` as long as the agent's loop runs |\n\n"
        "![the page](page.png)\n\n"
        "`http.token_file` names a file with a token that `/metrics`, `/status.json` and `/events` "
        "then ask for\n(`Authorization: Bearer TOKEN`, or `?token=TOKEN`; the page asks for it). "
        "There is no TLS: to be reached from other\nhosts put a proxy before it. Without a port: "
        "`metrics.textfile` is written every 15 s for node_exporter's textfile\ncollector, and "
        "keeps the last word when the job is over.\n\n"
        "Every series has the label `job_name`. Each agent tells of its own node. Histograms of "
        "times have the bounds\n.05 .1 .25 .5 1 2.5 5 10 30 60 300 seconds; fine ones .001 .0025 "
        ".005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 30 60.\n\n"
        "| name | type | labels | meaning |\n|---|---|---|---|\n");

    for (int i = 0; !rc && i < ER_METRIC_ID_COUNT; i++)
        rc = metric_row(out, &er_metrics_table[i]);
    return rc ? rc : times(out);
}
