#include "agent/overrides.h"

#include "tests/unit/config_case.h"

/* What may be set while a job runs, and what becomes of it. */

struct merged {
    int rc;
    char text[sizeof(((struct er_overrides *)0)->text)];
    char keys[512], told[1024];
    struct er_error err;
};

static char *spec_of(const char *yaml)
{
    struct loaded l = load_text(yaml);
    char *text = NULL;

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_assert_eq(er_config_spec_text(l.config, &text, NULL), 0);
    er_config_free(l.config);
    return text;
}

static struct merged merge(const char *spec, const char *now, const char *wish)
{
    struct er_overrides_change change;
    struct merged m = {.text = "untouched", .err = ER_ERROR_INIT};

    er_overrides_change_init(&change);
    m.rc = er_overrides_merge(spec, strlen(spec), now, wish, m.text, &change, &m.err);
    snprintf(m.keys, sizeof(m.keys), "%s", er_buf_str(&change.keys));
    snprintf(m.told, sizeof(m.told), "%s", er_buf_str(&change.told));
    er_overrides_change_done(&change);
    return m;
}

static void refused(const char *wish, const char *expected)
{
    struct er_error err = ER_ERROR_INIT;

    cr_expect_eq(er_overrides_check(wish, &err), ER_E_USAGE, "%s", wish);
    cr_expect(strstr(err.text, expected), "%s: %s", wish, err.text);
}

Test(overrides, minus_zero_is_zero)
{
    char *spec = spec_of("command: [x]\nname: n\n");
    struct merged m = merge(spec, "", "hang.factor=-0");

    cr_assert_eq(m.rc, 0, "%s", m.err.text);
    cr_assert_str_eq(m.text, "hang.factor=0\n");
    cr_assert_str_eq(m.told, "hang.factor is 0, was 10");
    free(spec);
}

Test(overrides, a_key_is_set_changed_and_unset)
{
    char *spec = spec_of("command: [x]\nname: n\nhang: {floor: 2m}\n");
    struct merged m = merge(spec, "", "hang.floor=300s\nrestart.max=7");

    cr_assert_eq(m.rc, 0, "%s", m.err.text);
    cr_assert_str_eq(m.text,
                     "restart.max=7\nhang.floor=5m\n"); /* canonical, in the table's order */
    cr_assert_str_eq(m.keys, "[\"restart.max\",\"hang.floor\"]");
    cr_assert_str_eq(m.told, "restart.max is 7, was 3; hang.floor is 5m, was 2m");
    m = merge(spec, m.text, "hang.floor=6m\n");
    cr_assert_str_eq(m.text, "restart.max=7\nhang.floor=6m\n");
    cr_assert_str_eq(m.told, "hang.floor is 6m, was 5m");
    m = merge(spec, m.text, "hang.floor\n");
    cr_assert_str_eq(m.text, "restart.max=7\n");
    cr_assert_str_eq(m.told, "hang.floor is 2m again, as the job's spec has it, was 6m");
    free(spec);
}

Test(overrides, what_changes_nothing_is_known_as_such)
{
    char *spec = spec_of("command: [x]\nname: n\n");

    cr_assert_eq(merge(spec, "hang.floor=5m\n", "hang.floor=300s").rc, 1);
    cr_assert_eq(merge(spec, "hang.floor=5m\n", "restart.max").rc, 1);
    cr_assert_eq(merge(spec, "", "restart.max").rc, 1);
    /* The spec's value, set: it stays when the spec changes. */
    cr_assert_eq(merge(spec, "", "restart.max=3").rc, 0);
    cr_assert_str_eq(merge(spec, "", "restart.max=3").told, "");
    free(spec);
}

Test(overrides, all_or_nothing)
{
    char *spec = spec_of("command: [x]\nname: n\n");
    struct merged m =
        merge(spec, "hang.floor=5m\n", "restart.max=7\nhang.floor=soon\nhang.flor=1m");

    cr_assert_eq(m.rc, ER_E_USAGE);
    cr_assert_str_eq(m.text, "untouched");
    cr_assert(strstr(m.err.text, "hang.floor: expected a duration such as"), "%s", m.err.text);
    cr_assert(strstr(m.err.text, "unknown key 'hang.flor'; did you mean 'hang.floor'?"));
    free(spec);
}

Test(overrides, values_must_go_with_the_jobs_others)
{
    char *spec = spec_of("command: [x]\nname: n\nrestart: {backoff: {initial: 5s, max: 10s}}\n"
                         "checkpoint: {dir: /c}\n");
    struct merged m = merge(spec, "", "restart.backoff.max=3s");

    cr_assert_eq(m.rc, ER_E_USAGE);
    cr_assert_str_eq(m.err.text,
                     "restart.backoff.initial: must not be longer than restart.backoff.max");
    cr_assert_eq(merge(spec, "restart.backoff.initial=1s\n", "restart.backoff.max=3s").rc, 0);
    cr_assert_eq(merge(spec, "restart.backoff.initial=1s\nrestart.backoff.max=3s\n",
                       "restart.backoff.initial")
                     .rc,
                 ER_E_USAGE);
    cr_assert_eq(merge(spec, "", "restart.backoff.max=3s\nrestart.backoff.initial=2s").rc, 0);
    cr_assert_eq(merge(spec, "", "checkpoint.every=none").rc, ER_E_USAGE);
    cr_assert_eq(merge(spec, "", "checkpoint.every=none\ncheckpoint.every_steps=50").rc, 0);
    free(spec);
}

Test(overrides, a_refusal_says_what_to_do_instead)
{
    refused("nnodes=4", "elastic-ctl scale");
    refused("rendezvous.lease_ttl=5s", "--update-spec");
    refused("command=x", "--update-spec");
    refused("log.console=none", "elastic-ctl reload on that node");
    refused("workdir=/tmp", "start that agent again");
    refused("hang=5m", "a group of keys; give one, such as hang.floor");
    refused("hang.floor=5", "has no unit");
    refused("restart.max=-1", "restart.max: ");
    refused("hang.action=kill", "hang.action: ");
    refused("hang.floor=5m\nhang.floor=6m", "hang.floor: given twice");
    refused("hang.floor=5m\nhang.floor", "hang.floor: given twice");
    refused("=5m", "unknown key ''");
    cr_assert_eq(er_overrides_check("hang.floor=5m\nrestart.max=none\nhang.factor", NULL), 0);
}

/* Of another release: kept, and of no effect here. */
Test(overrides, what_is_not_known_here_is_left_alone)
{
    char *spec = spec_of("command: [x]\nname: n\n");
    struct merged m = merge(spec, "future.key=1\nhang.floor=whenever\n", "restart.max=7");

    cr_assert_eq(m.rc, 0, "%s", m.err.text);
    cr_assert(strstr(m.text, "future.key=1\n"));
    cr_assert(strstr(m.text, "restart.max=7\n"));
    free(spec);
}

Test(overrides, every_key_fits_at_once)
{
    char *spec = spec_of("command: [x]\nname: n\n"), wish[4096];
    size_t n = 0;
    struct merged m;

    for (size_t i = 0; i < er_keys_n; i++) {
        const struct er_key_info *key = &er_keys[i];
        const char *value = key->choices                   ? key->choices[0]
                            : key->type == ER_KEY_DURATION ? "6d23h59m59s999ms999us"
                            : key->type == ER_KEY_RATIO    ? "0.1234567891"
                                                           : "1000000";

        cr_expect(!key->applies || (key->flags & ER_KEY_LIVE), "%s", key->path);
        if (!er_key_is_settable(key))
            continue;
        if (key->max && key->type == ER_KEY_DURATION)
            value = "59m59s999ms999us";
        n += (size_t)snprintf(wish + n, sizeof(wish) - n, "%s=%s\n", key->path, value);
    }
    cr_assert_lt(n, sizeof(wish));
    m = merge(spec, "", wish);
    cr_assert_eq(m.rc, 0, "%s", m.err.text);
    free(spec);
}

Test(overrides, the_value_that_holds)
{
    char *value = er_overrides_value("a=1\nb=2\n", "b=3\n", "b");

    cr_assert_str_eq(value, "3");
    free(value);
    value = er_overrides_value("a=1\nb=2\n", "b=3\n", "a");
    cr_assert_str_eq(value, "1");
    free(value);
    cr_assert_null(er_overrides_value("a=1\n", "", "c"));
}

Test(overrides, as_json)
{
    struct er_overrides o = {.text = "restart.max=7\nhang.floor=5m\n"};
    struct er_buf out;

    er_buf_init(&out, 4096);
    cr_assert_eq(er_overrides_json(&o, &out), 0);
    cr_assert_str_eq(er_buf_str(&out), "{\"restart.max\":\"7\",\"hang.floor\":\"5m\"}");
    er_buf_clear(&out);
    cr_assert_eq(er_overrides_json(NULL, &out), 0);
    cr_assert_str_eq(er_buf_str(&out), "{}");
    er_buf_done(&out);
}
