/* What a job leaves in the store: little while it runs, a record with a time to live when it has
 * ended. */
#include "tests/integration/nodes_case.h"

#define RETENTION_S 3600
#define RETENTION   "--set=rendezvous.retention=1h"

/* What etcdctl says; the caller frees it. */
static char *ask(struct nodes_case *n, const char *const argv[])
{
    struct er_test_proc p;
    char *text;

    er_tap_require(etcd_ctl(&n->etcd, 0, &p, argv) == 0);
    text = strdup(er_test_out(&p));
    er_test_done(&p);
    return text;
}

/* Keys of the job, one a line. */
static char *keys_of(struct nodes_case *n)
{
    char prefix[128];

    snprintf(prefix, sizeof(prefix), "/elastic-run/%s/", n->c.name);
    return ask(n, ARGS("get", "--prefix", "--keys-only", prefix));
}

static int count(const char *text, const char *what)
{
    int found = 0;

    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        found++;
    return found;
}

static int count_keys(struct nodes_case *n)
{
    char *keys = keys_of(n);
    int found = count(keys, "/elastic-run/");

    free(keys);
    return found;
}

/* The only key is `j/world`, and its lease is the retention. */
static void check_record(struct nodes_case *n)
{
    char *keys = keys_of(n), *json, id[32];
    const char *lease;
    unsigned long long number;
    long ttl;

    if (!er_tap_check(count(keys, "/elastic-run/") == 1 && strstr(keys, "/j/world\n")))
        case_note(keys);
    json = ask(n, ARGS("get", "--prefix", "--write-out=json", "/elastic-run/"));
    lease = strstr(json, "\"lease\":");
    number = lease ? strtoull(lease + strlen("\"lease\":"), NULL, 10) : 0;
    er_tap_check(number != 0);
    free(json);
    snprintf(id, sizeof(id), "%llx", number);
    json = ask(n, ARGS("lease", "timetolive", "--write-out=json", id));
    ttl = strtol(strstr(json, "\"granted-ttl\":") + strlen("\"granted-ttl\":"), NULL, 10);
    if (!er_tap_check(ttl == RETENTION_S))
        case_note(json);
    free(json);
    free(keys);
}

/* However often the name is used again. */
static void job_that_has_ended_leaves_a_record_with_a_time_to_live(void)
{
    struct nodes_case n;
    int generation = 0;

    nodes_begin(&n, "2");
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 2; i++)
            node_start(&n, i, ARGS(RETENTION, SH(NODES_WORKER)));
        generation = nodes_next(&n, generation, 2, 2);
        er_tap_require(generation);
        nodes_go(&n, round % 2 ? "3" : "0");
        er_tap_check(nodes_end_with(&n, round % 2 ? 3 : 0));
        check_record(&n);
        node_forget(&n, 0);
        node_forget(&n, 1);
        nodes_wait_again(&n);
    }
    nodes_end(&n);
}

/* In YAML's form a late agent learns from the record how the job ended, then it is gone. */
static void record_ends_with_its_retention(void)
{
    struct nodes_case n;
    uint64_t until;

    nodes_begin(&n, "1");
    node_start(&n, 0, ARGS("--set=rendezvous.retention=2s", SH("exit 0")));
    er_tap_check(nodes_end_with(&n, 0));
    until = er_test_now_ms() + NODES_WAIT;
    while (count_keys(&n) > 0 && er_test_now_ms() < until)
        ;
    er_tap_check(count_keys(&n) == 0);
    nodes_end(&n);
}

struct few {
    struct nodes_case *n;
    int most;
};

static bool keys_are_few(void *user)
{
    struct few *f = user;

    return count_keys(f->n) <= f->most;
}

/* Every generation writes results; they go again, also while generations follow each other so
 * quickly that there is no quiet time. */
static void many_generations_leave_nothing(void)
{
    static const char restless[] =
        "f=$CASE/n; n=$(cat $f 2>/dev/null || echo 0); n=$((n + 1)); "
        "if [ $RANK = 0 ]; then echo $n > $f.new; mv $f.new $f; if [ $n -lt 70 ]; then exit 1; fi; "
        "touch $CASE/calm; fi; while [ ! -e $CASE/go ]; do sleep 0.1; done; exit 0";
    struct nodes_case n;
    struct few few = {&n, 12};
    char *keys;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(
            &n, i,
            ARGS("--max-restarts=1000", "--set=restart.node_strikes.max=1000", SH(restless)));
    if (!er_tap_check(er_test_wait_path(case_path(&n.c, "calm"), NODES_WAIT)))
        case_note(er_test_err(&n.p[0]));
    keys = keys_of(&n);
    if (!er_tap_check(count(keys, "/j/r/") <= 40)) /* fewer than there were generations */
        case_note(keys);
    free(keys);
    er_tap_check(er_test_wait_until(keys_are_few, &few, NODES_WAIT));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(job_that_has_ended_leaves_a_record_with_a_time_to_live),
        CASE(record_ends_with_its_retention),
        CASE(many_generations_leave_nothing),
    };
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
