#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/goodput.h"
#include "agent/http_history.h"
#include "agent/http_listen.h"
#include "agent/metrics.h"

static const char *text_of(const struct er_metrics *m, enum er_metric_id id, bool open_metrics)
{
    static struct er_buf buf;
    struct er_exposition x;

    er_buf_done(&buf);
    er_buf_init(&buf, 64u << 10);
    er_exposition_begin(&x, &buf, open_metrics, "a\"b");
    er_metrics_write(m, id, &x);
    cr_assert_eq(er_exposition_end(&x), 0);
    return er_buf_str(&buf);
}

Test(metrics, counters_have_a_suffix_in_one_form_only)
{
    struct er_metrics m = {0};

    er_metrics_add(&m, ER_METRIC_ID_EXITS, "ok", 1);
    er_metrics_add(&m, ER_METRIC_ID_EXITS, "ok", 1);
    er_metrics_add(&m, ER_METRIC_ID_EXITS, "oom", 1);
    cr_expect_str_eq(text_of(&m, ER_METRIC_ID_EXITS, false),
                     "# HELP elastic_run_worker_exits_total ends of workers of this node\n"
                     "# TYPE elastic_run_worker_exits_total counter\n"
                     "elastic_run_worker_exits_total{job_name=\"a\\\"b\",kind=\"ok\"} 2\n"
                     "elastic_run_worker_exits_total{job_name=\"a\\\"b\",kind=\"oom\"} 1\n");
    cr_expect(
        strstr(text_of(&m, ER_METRIC_ID_EXITS, true), "# TYPE elastic_run_worker_exits counter\n"));
    cr_expect(strstr(text_of(&m, ER_METRIC_ID_EXITS, true), "# EOF\n"));
}

Test(metrics, histogram_counts_what_is_below_each_bound)
{
    struct er_metrics m = {0};
    const char *text;

    er_metrics_add(&m, ER_METRIC_ID_RENDEZVOUS, "", 0.05);
    er_metrics_add(&m, ER_METRIC_ID_RENDEZVOUS, "", 2);
    er_metrics_add(&m, ER_METRIC_ID_RENDEZVOUS, "", 1000);
    text = text_of(&m, ER_METRIC_ID_RENDEZVOUS, true);
    cr_expect(strstr(text, "_bucket{job_name=\"a\\\"b\",le=\"0.05\"} 1\n"));
    cr_expect(strstr(text, ",le=\"1.0\"} 1\n"));
    cr_expect(strstr(text, ",le=\"2.5\"} 2\n"));
    cr_expect(strstr(text, ",le=\"300.0\"} 2\n"));
    cr_expect(strstr(text, ",le=\"+Inf\"} 3\n"));
    cr_expect(strstr(text, "_sum{job_name=\"a\\\"b\"} 1002.05\n"));
    cr_expect(strstr(text, "_count{job_name=\"a\\\"b\"} 3\n"));
}

Test(metrics, bucket_holds_what_its_bound_reaches)
{
    struct er_histogram h = {0};

    er_histogram_add(&h, &er_bounds_fine, 0.001);
    er_histogram_add(&h, &er_bounds_fine, 0.0011);
    er_histogram_add(&h, &er_bounds_fine, 61);
    cr_expect_eq(h.counts[0], 1);
    cr_expect_eq(h.counts[1], 1);
    cr_expect_eq(h.counts[er_bounds_fine.n], 1);
    for (size_t i = 1; i < er_bounds_fine.n; i++)
        cr_expect_gt(er_bounds_fine.of[i], er_bounds_fine.of[i - 1]);
}

Test(metrics, events_are_counted_by_the_table)
{
    struct er_metrics m = {0};
    const struct er_field commit[] = {ER_UINT("step", 7), ER_UINT("written_bytes", 1000),
                                      ER_NUM("pause_ms", 2.5), ER_NUM("duration_ms", 500)};
    const struct er_field dropped[] = {ER_STR("stream", "stderr"), ER_UINT("lines", 12)};
    const struct er_field nameless[] = {ER_STR("kind", NULL)};

    er_metrics_event(&m, "checkpoint_committed", commit, 4, 1234.5);
    er_metrics_event(&m, "log_dropped", dropped, 2, 0);
    er_metrics_event(&m, "worker_exited", nameless, 1, 0);
    er_metrics_event(&m, "of another release", dropped, 2, 0);
    cr_expect(strstr(text_of(&m, ER_METRIC_ID_CHECKPOINT_BYTES, false), "} 1000\n"));
    cr_expect(strstr(text_of(&m, ER_METRIC_ID_CHECKPOINT_TIME, false),
                     "_sum{job_name=\"a\\\"b\"} 0.5\n"));
    cr_expect(strstr(text_of(&m, ER_METRIC_ID_CHECKPOINTS, false), "result=\"committed\"} 1\n"));
    cr_expect(strstr(text_of(&m, ER_METRIC_ID_LOG_DROPPED, false), "stream=\"stderr\"} 12\n"));
    cr_expect(strstr(text_of(&m, ER_METRIC_ID_EXITS, false), "kind=\"unknown\"} 1\n"));
    cr_expect_eq(m.committed_at, 1234.5);
}

Test(metrics, counter_without_label_is_zero_before_its_first)
{
    struct er_metrics m = {0};

    cr_expect(strstr(text_of(&m, ER_METRIC_ID_STORE_OUTAGE, false), "} 0\n"));
    cr_expect_null(strstr(text_of(&m, ER_METRIC_ID_EXITS, false), "}"));
}

Test(metrics, too_many_label_values_share_a_place)
{
    struct er_metrics m = {0};
    char name[16];

    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "check-%d", i);
        er_metrics_add(&m, ER_METRIC_ID_HEALTH, name, 1);
    }
    cr_expect_eq(m.counts[ER_METRIC_ID_HEALTH].n, ER_METRIC_VALUES);
    cr_expect(strstr(text_of(&m, ER_METRIC_ID_HEALTH, false), "check=\"other\"} 89\n"));
}

Test(metrics, numbers_read_back_as_the_same)
{
    static const struct er_metric ONE = {"x", ER_METRIC_GAUGE, "", "of a test"};
    static const double VALUES[] = {0, -1, 0.1, 1.0 / 3, 1796039567.591536, 1e300, 5e-324};
    struct er_exposition x;
    struct er_buf buf;

    er_buf_init(&buf, 4096);
    for (size_t i = 0; i < sizeof(VALUES) / sizeof(VALUES[0]); i++) {
        er_buf_clear(&buf);
        er_exposition_begin(&x, &buf, false, "j");
        er_exposition_metric(&x, &ONE);
        er_exposition_value(&x, VALUES[i]);
        cr_expect_eq(strtod(strrchr(er_buf_str(&buf), ' '), NULL), VALUES[i]);
    }
    er_exposition_value(&x, NAN);
    cr_expect(strstr(er_buf_str(&buf), "} NaN\n"));
    er_buf_done(&buf);
}

Test(goodput, every_moment_is_in_one_state)
{
    struct er_goodput g;
    uint64_t all = 0;

    er_goodput_init(&g, 100);
    er_goodput_enter(&g, ER_TIME_START, 150);
    er_goodput_enter(&g, ER_TIME_USEFUL, 200);
    er_goodput_enter(&g, ER_TIME_DETECT, 900);
    er_goodput_enter(&g, ER_TIME_STOP, 880); /* learned too late: from now on */
    for (int i = 0; i < ER_TIME_COUNT; i++)
        all += er_goodput_spent(&g, (enum er_time)i, 1000);
    cr_expect_eq(all, 900);
    cr_expect_eq(er_goodput_spent(&g, ER_TIME_USEFUL, 1000), 700);
    cr_expect_eq(er_goodput_spent(&g, ER_TIME_STOP, 1000), 100);
    cr_expect_float_eq(er_goodput_ratio(&g, 1000), 700.0 / 900, 1e-12);
}

Test(goodput, idle_time_is_nobodys_loss)
{
    struct er_goodput g;

    er_goodput_init(&g, 0);
    cr_expect_float_eq(er_goodput_ratio(&g, 0), 1, 0);
    er_goodput_enter(&g, ER_TIME_USEFUL, 0);
    er_goodput_enter(&g, ER_TIME_IDLE, 100);
    cr_expect_float_eq(er_goodput_ratio(&g, 1000), 1, 0);
}

Test(history, rings_keep_the_newest)
{
    static struct er_history h;
    struct er_buf buf;

    for (uint64_t i = 1; i <= 1000; i++) {
        er_history_generation(&h, (double)i, i, 4, "worker_failed");
        er_history_generation(&h, (double)i, i, 4, "worker_failed"); /* once */
        er_history_point(&h, (double)i, i, i * 32, i == 1000 ? NAN : 0.5);
        er_history_point(&h, (double)i, i, i * 32, 0.5);
    }
    er_buf_init(&buf, 256u << 10);
    cr_assert_eq(er_history_json(&h, &buf), 0);
    cr_expect_null(strstr(er_buf_str(&buf), "\"generation\":936,"));
    cr_expect(strstr(er_buf_str(&buf), "{\"at_ms\":937,\"generation\":937,\"world_size\":4,"));
    cr_expect_null(strstr(er_buf_str(&buf), "[400,400,"));
    cr_expect(strstr(er_buf_str(&buf), "[401,401,12832,0.5]"));
    cr_expect(strstr(er_buf_str(&buf), "[1000,1000,32000,null]]}"));
    er_buf_done(&buf);
}

Test(http_listen, forms)
{
    static const char *const BAD[] = {"",   ":",   "9400",    "::1:9400", "[::1]",      "[]:1",
                                      "h:", "h:x", "h:65536", ":9400",    "h:123456789"};
    struct er_http_listen listen;

    cr_assert_eq(er_http_listen_parse("[fd00::1]:9400", &listen, NULL), 0);
    cr_expect_str_eq(listen.host, "fd00::1");
    cr_expect_str_eq(listen.port, "9400");
    cr_expect_not(er_http_listen_is_local(&listen));
    cr_assert_eq(er_http_listen_parse("127.0.0.1:0", &listen, NULL), 0);
    cr_expect(er_http_listen_is_local(&listen));
    for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++)
        cr_expect_neq(er_http_listen_parse(BAD[i], &listen, NULL), 0, "%s", BAD[i]);
}
