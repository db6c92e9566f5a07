#include "tests/unit/config_case.h"

#include "base/exit_codes.h"

/* ---- where values come from ---- */

Test(config, command_line_beats_variable_beats_spec_beats_scheduler_beats_default)
{
    static const char spec[] = "command: a\nname: spec\nrestart: {max: 4}\nstop: {grace: 4s}\n"
                               "role: spec\n";
    static const char *const env[] = {"HOME=/h",
                                      "SLURM_JOB_ID=9",
                                      "SLURM_JOB_NUM_NODES=1",
                                      "SLURMD_NODENAME=n7",
                                      "SLURM_NODEID=2",
                                      "PET_MAX_RESTARTS=5",
                                      "PET_SHUTDOWN_TIMEOUT=5",
                                      "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=77",
                                      "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=8",
                                      "PET_NODE_RANK=",
                                      NULL};
    struct loaded l = load_config(
        &(struct load_case){.args = ARGS("--max-restarts=6", SPEC), .env = env, .spec = spec});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(l.config->restart.max, 6);
    cr_expect_str_eq(er_config_setting(l.config, "restart.max")->origin, "--max-restarts");
    cr_expect_eq(l.config->stop.grace_us, 5 * ER_US_PER_S);
    cr_expect_str_eq(er_config_setting(l.config, "stop.grace")->origin, "PET_SHUTDOWN_TIMEOUT");
    cr_expect_str_eq(l.config->name, "spec");
    cr_expect_str_eq(l.config->role, "spec");
    cr_expect_str_eq(l.config->node.id, "n7");
    cr_expect_str_eq(er_config_setting(l.config, "node.id")->origin, "SLURMD_NODENAME");
    cr_expect_eq(l.config->node.rank, 2);
    cr_expect_eq(l.config->rendezvous.exit_timeout_us, 8 * ER_US_PER_S);
    cr_expect_eq(l.config->rendezvous.retention_us, 7 * 86400 * ER_US_PER_S);
    cr_expect_str_eq(er_config_setting(l.config, "rendezvous.retention")->origin, "default");
    er_config_free(l.config);
}

Test(config, a_unit_of_systemd_names_job_and_deadline)
{
    static const char *const env[] = {"HOME=/h", "ELASTIC_INSTANCE=train",
                                      "ELASTIC_STOP_TIMEOUT=90s", NULL};
    static const char spec[] = "command: a\npreempt: {deadline: 5s}\n";
    struct loaded l = load_config(&(struct load_case){.args = ARGS("x"), .env = env});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_str_eq(l.config->name, "train");
    cr_expect_eq(l.config->preempt.deadline_us, 90 * ER_US_PER_S);
    cr_expect(!l.config->node.id_is_host || !l.config->node.id_is_unit);
    er_config_free(l.config);
    l = load_config(&(struct load_case){.args = ARGS(SPEC), .env = env, .spec = spec});
    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_eq(l.config->preempt.deadline_us, 5 * ER_US_PER_S);
    er_config_free(l.config);
}

Test(config, later_options_win)
{
    struct loaded l =
        load_args(ARGS("--set", "restart.max=2", "--max-restarts=3", "--set", "env.A=1", "--set",
                       "env.B=x=y", "--set", "stop.forward=[USR1, USR2]", "x"));

    cr_assert_eq(l.rc, 0, "%s", l.err.text);
    cr_expect_eq(l.config->restart.max, 3);
    cr_expect_str_eq(value_of(&l, "env"), "{A: \"1\", B: \"x=y\"}");
    cr_expect_str_eq(value_of(&l, "stop.forward"), "[USR1, USR2]");
    er_config_free(l.config);
}

/* ---- command ---- */

Test(config, program_form)
{
    static const struct {
        const char *args[8];
        const char *variable, *command;
    } cases[] = {
        {{"true"}, "A=1", "[\"true\"]"},
        {{"train.py", "--nnodes=3"}, "A=1", "[python3, \"-u\", train.py, \"--nnodes=3\"]"},
        {{"--no-python", "train.py"}, "A=1", "[train.py]"},
        {{"-m", "pkg.mod", "-m"}, "A=1", "[python3, \"-u\", \"-m\", pkg.mod, \"-m\"]"},
        {{"train.py"}, "PYTHON_EXEC=/opt/py", "[/opt/py, \"-u\", train.py]"},
        {{"mod"}, "PET_MODULE=1", "[python3, \"-u\", \"-m\", mod]"},
        {{"train.py"}, "PET_NO_PYTHON=1", "[train.py]"},
        {{"train.py"}, "PET_NO_PYTHON=0", "[python3, \"-u\", train.py]"},
        {{"--", "job.yaml"}, "A=1", "[job.yaml]"},
        {{"x", "${local_rank}", "${foo}", "$$"},
         "A=1",
         "[x, \"${local_rank}\", \"${foo}\", \"$$\"]"},
        {{"x", "a\nb", "\x01"}, "A=1", "[x, \"a\\nb\", \"\\x01\"]"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l = load_config(
            &(struct load_case){.args = cases[i].args, .env = ARGS("HOME=/h", cases[i].variable)});

        cr_assert_eq(l.rc, 0, "%s", l.err.text);
        cr_expect(l.config->program_form);
        cr_expect_str_eq(value_of(&l, "command"), cases[i].command);
        er_config_free(l.config);
    }
}

Test(config, spec_form)
{
    static const struct {
        const char *spec, *args[4], *command;
    } cases[] = {
        {"command: [a, b]\n", {SPEC, "c"}, "[a, b, c]"},
        {"command: train.py --lr 3e-4\n",
         {SPEC},
         "[python3, \"-u\", train.py, \"--lr\", \"3e-4\"]"},
        {"command: a 'b c' \"d \\\"e\\\"\" f\\ g h''i \"\"\n",
         {SPEC},
         "[a, \"b c\", \"d \\\"e\\\"\", \"f g\", hi, \"\"]"},
        {"command: &c [a]\nenv: {A: b}\n", {SPEC, "--x=${rank}"}, "[a, \"--x=${rank}\"]"},
        {"command: >-\n  a\n  b\n", {SPEC}, "[a, b]"},
        {"command: [a, 010, yes, ~x, 1:30]\n", {SPEC}, "[a, \"010\", \"yes\", \"~x\", \"1:30\"]"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l =
            load_config(&(struct load_case){.args = cases[i].args, .spec = cases[i].spec});

        cr_assert_eq(l.rc, 0, "%s", l.text);
        cr_expect(!l.config->program_form);
        cr_expect_str_eq(value_of(&l, "command"), cases[i].command);
        er_config_free(l.config);
    }
}

Test(config, arguments_behind_a_spec_are_checked)
{
    struct loaded l =
        load_config(&(struct load_case){.args = ARGS(SPEC, "ok", "${no}"), .spec = "command: a\n"});

    cr_expect_eq(er_config_exit_code(&l.err), ER_CODE_USAGE);
    cr_expect_str_eq(l.text, "argument 2: unknown name '${no}'; '$$' stands for '$'");
}

/* ---- torchrun's command lines ---- */

static const struct {
    const char *args[16];
    const char *key, *value, *warning;
} TORCHRUN[] = {
    {{"--standalone", "--nproc-per-node=2", "train.py"}, "rendezvous.backend", "embedded", NULL},
    {{"--nnodes=1:1", "--nproc_per_node=4", "x"}, "nproc_per_node", "4", NULL},
    {{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "x"},
     "rendezvous.backend",
     "embedded",
     "--rdzv-endpoint: no effect on one node"},
    {{"--rdzv-backend=static", "--master-addr=127.0.0.1", "x"},
     "rendezvous.backend",
     "embedded",
     NULL},
    {{"--master-addr=node7", "x"},
     "master_port",
     "auto",
     "--master-addr: no effect on one node; workers get this node's own MASTER_ADDR "
     "(node.address, --local-addr)"},
    {{"--master-port=0", "x"}, "master_port", "auto", NULL},
    {{"--local-ranks-filter=5", "--nproc-per-node=2", "x"},
     "log.console",
     "\"local:5\"",
     "--local-ranks-filter: there is no local rank 5 here, only 0 to 1"},
    {{"--tee=0:3,1:3", "x"},
     "log.tee",
     "\"0:3,1:3\"",
     "--tee: there is no local rank 1 here, only 0 to 0"},
    {{"--rdzv_endpoint", "localhost:29400", "x"},
     "rendezvous.endpoints",
     "[]",
     "--rdzv-endpoint: no effect on one node"},
    {{"--master_port", "29501", "x"}, "master_port", "\"29501\"", NULL},
    {{"--rdzv-id=job7", "x"}, "name", "job7", NULL},
    {{"--rdzv-conf=join_timeout=30,last_call_timeout=1.5", "x"},
     "rendezvous.join_timeout",
     "30s",
     NULL},
    {{"--rdzv-conf=timeout=30,join_timeout=40", "x"}, "rendezvous.join_timeout", "40s", NULL},
    {{"--rdzv-conf=join_timeout=40,timeout=30", "x"}, "rendezvous.join_timeout", "40s", NULL},
    {{"--rdzv-conf=timeout=900", "x"}, "rendezvous.join_timeout", "15m", NULL},
    {{"--rdzv-conf=is_host=1", "x"},
     "rendezvous.join_timeout",
     "10m",
     "--rdzv-conf: 'is_host' has no effect here"},
    {{"--max-restarts=3", "x"}, "restart.max", "3", NULL},
    {{"--monitor-interval=5", "x"},
     "restart.max",
     "0",
     "--monitor-interval: no effect: nothing is polled"},
    {{"--start-method=fork", "x"},
     "restart.max",
     "0",
     "--start-method: no effect: workers are always fork and exec"},
    {{"--event-log-handler=console", "x"},
     "restart.max",
     "0",
     "--event-log-handler: no effect: events are always written with the logs"},
    {{"--logs-specs=default", "x"}, "restart.max", "0", "--logs-specs: no effect: see log.*"},
    {{"--role=trainer", "x"}, "role", "trainer", NULL},
    {{"--log-dir=/dev/null", "x"}, "log.dir", "none", NULL},
    {{"--log-dir=/tmp/x", "-r", "3", "x"}, "log.dir", "/tmp/x", NULL},
    {{"-t", "3", "x"}, "log.dir", "/h/.local/state/elastic-run", NULL},
    {{"-r", "0", "x"}, "log.dir", "none", NULL},
    {{"--nproc-per-node=11", "--redirects", "0:3,10:1", "x"},
     "log.redirects",
     "\"0:3,10:1\"",
     NULL},
    {{"--nproc-per-node=2", "--local-ranks-filter=0,1", "x"}, "log.console", "\"local:0,1\"", NULL},
    {{"--local-ranks-filter=", "x"}, "log.console", "all", NULL},
    {{"--log-line-prefix-template=[${role_name} ${rank}] ", "x"},
     "log.prefix",
     "\"[${role} ${rank}] \"",
     NULL},
    {{"--node-rank=0", "x"}, "node.rank", "0", NULL},
    {{"--local-addr=10.0.0.1", "x"}, "node.address", "\"10.0.0.1\"", NULL},
    {{"--signals-to-handle=SIGTERM,SIGUSR1", "x"}, "stop.signals_to_handle", "[USR1, TERM]", NULL},
    {{"--signals-to-handle=SIGUSR1", "x"}, "preempt.signals", "[]", NULL},
    {{"--shutdown-timeout=4.5", "x"}, "stop.grace", "4s500ms", NULL},
    {{"--shutdown-timeout=2m", "x"}, "stop.grace", "2m", NULL},
    {{"--virtual-local-rank", "x"}, "virtual_local_rank", "true", NULL},
    {{"--exit-barrier-timeout=10", "x"}, "rendezvous.exit_timeout", "10s", NULL},
    {{"--numa-binding=none", "x"}, "node.numa_binding", "none", NULL},
    {{"--duplicate-stderr-filters=", "x"}, "log.duplicate_stderr", "[]", NULL},
};

Test(config, torchrun_command_lines_work)
{
    for (size_t i = 0; i < ER_ARRAY_N(TORCHRUN); i++) {
        struct loaded l = load_args(TORCHRUN[i].args);

        cr_assert_eq(l.rc, 0, "%s: %s", TORCHRUN[i].args[0], l.err.text);
        cr_expect_str_eq(value_of(&l, TORCHRUN[i].key), TORCHRUN[i].value, "%s: %s",
                         TORCHRUN[i].args[0], value_of(&l, TORCHRUN[i].key));
        cr_expect_eq(l.config->warnings.n, TORCHRUN[i].warning ? 1 : 0, "%s", TORCHRUN[i].args[0]);
        if (l.config->warnings.n && TORCHRUN[i].warning)
            cr_expect_str_eq(l.config->warnings.items[0], TORCHRUN[i].warning);
        er_config_free(l.config);
    }
}

/* ---- derived values ---- */

static bool is_hex(const char *text)
{
    return strlen(text) == 8 && text[strspn(text, "0123456789abcdef")] == '\0';
}

Test(config, default_name_comes_from_the_program)
{
    static const struct {
        const char *args[4], *begin;
    } cases[] = {
        {{"true"}, "true-"},
        {{"src/train.py"}, "train-"},
        {{"-m", "pkg.mod"}, "pkg.mod-"},
        {{"/a b/c d"}, "c-d-"},
        {{"--rdzv-id=none", "./run"}, "run-"},
        {{"/_"}, "x-"},
        {{"python3", "x/y.py"}, "y-"},
        {{"python3", "-c", "import os"}, "python3-"},
        {{"python3", "-X", "dev", "y.py"}, "y-"},
        {{"sh", "-c", "exec true"}, "sh-"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l = load_args(cases[i].args);
        size_t n = strlen(cases[i].begin);

        cr_assert_eq(l.rc, 0, "%s", l.err.text);
        cr_expect(!strncmp(l.config->name, cases[i].begin, n), "%s", l.config->name);
        cr_expect(is_hex(l.config->name + n), "%s", l.config->name);
        er_config_free(l.config);
    }
}

Test(config, folders_are_absolute)
{
    struct loaded l =
        load_text("command: a\nname: j\nworkdir: w/${rank}\n"
                  "checkpoint: {dir: './c/${job}'}\nlog: {dir: '/l/${env.HOME}$$'}\n");
    const char *base;
    size_t n;

    cr_assert_eq(l.rc, 0, "%s", l.text);
    base = l.config->workdir;
    n = strlen(base) - strlen("/w/${rank}");
    cr_expect_eq(base[0], '/');
    cr_expect_str_eq(base + n, "/w/${rank}");
    cr_expect(!strncmp(l.config->checkpoint.dir, base, n));
    cr_expect_str_eq(l.config->checkpoint.dir + n, "/c/j");
    cr_expect_str_eq(l.config->log.dir, "/l/h$");
    er_config_free(l.config);
}

Test(config, log_folder_follows_the_environment)
{
    static const struct {
        const char *variable, *dir;
    } cases[] = {
        {"HOME=/h", "/h/.local/state/elastic-run"},
        {"XDG_STATE_HOME=/s", "/s/elastic-run"},
        {"LOGS_DIRECTORY=/var/log/a:/var/log/b", "/var/log/a"},
    };
    struct loaded l;

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        l = load_config(
            &(struct load_case){.spec = "command: a\n", .env = ARGS(cases[i].variable)});
        cr_assert_eq(l.rc, 0, "%s", l.text);
        cr_expect_str_eq(l.config->log.dir, cases[i].dir);
        er_config_free(l.config);
    }
    l = load_config(&(struct load_case){.spec = "command: a\n", .env = ARGS("HOME=")});
    cr_expect_str_eq(l.text, "log.dir: auto needs $HOME, $XDG_STATE_HOME or $LOGS_DIRECTORY to be "
                             "an absolute path; give a folder or none");
}

Test(config, cpu_is_counted)
{
    struct loaded l = load_args(ARGS("--nproc-per-node=cpu", "x"));

    cr_assert_eq(l.rc, 0);
    cr_expect(l.config->nproc >= 1);
    cr_expect_str_eq(l.config->nproc_text, "cpu");
    er_config_free(l.config);
}

Test(config, help_and_version_need_no_program)
{
    struct loaded l = load_args(ARGS("--nproc-per-node=0", "--help", "restart"));

    cr_assert_eq(l.rc, 0, "%s", l.err.text);
    cr_expect_eq(l.config->mode, ER_MODE_HELP);
    cr_expect_str_eq(l.config->help_topic, "restart");
    er_config_free(l.config);
    l = load_args(ARGS("--version"));
    cr_assert_eq(l.rc, 0);
    cr_expect_eq(l.config->mode, ER_MODE_VERSION);
    er_config_free(l.config);
}

Test(config, paths_are_cleaned_where_that_means_the_same)
{
    static const struct {
        const char *given, *clean;
    } cases[] = {
        {"/tmp//x/./y/", "/tmp/x/y"},
        {"/tmp/../tmp/x", "/tmp/x"},
        {"/tmp/no-such-folder-here/../x", "/tmp/no-such-folder-here/../x"},
        {"/..", "/.."},
        {"/proc/self/../x", "/proc/self/../x"}, /* a link: its ".." is another folder */
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l = load_args(ARGS("-r", "3", "--log-dir", cases[i].given, "x"));

        cr_assert_eq(l.rc, 0, "%s", l.err.text);
        cr_expect_str_eq(l.config->log.dir, cases[i].clean, "%s", l.config->log.dir);
        er_config_free(l.config);
    }
}

/* Endpoints mean etcd; the agreed text is the same whether it is said or not. */
Test(config, endpoints_mean_etcd)
{
    struct loaded said = load_config(&(struct load_case){
                      .spec = "command: a\nname: j\nnnodes: \"2:4\"\nrendezvous:\n  backend: etcd\n"
                              "  endpoints: [a:2379, \"[fd00::1]:2379\"]\n"
                              "  tls: {ca: ca.pem, cert: /c.pem, key: /k.pem}\n"}),
                  left = load_args(ARGS("--nnodes=2:4", "--rdzv-id=j", "--rdzv-endpoint=a:2379",
                                        "--rdzv-backend=etcd-v2",
                                        "--rdzv-conf=ca_cert=/ca,join_timeout=20", "a"));
    const char *name;

    cr_assert_eq(said.rc, 0, "%s", said.text);
    cr_assert_eq(left.rc, 0, "%s", left.text);
    cr_expect_eq(said.config->rendezvous.backend, ER_BACKEND_ETCD);
    cr_expect_eq(left.config->rendezvous.backend, ER_BACKEND_ETCD);
    cr_expect_eq(said.config->rendezvous.endpoints.n, 2);
    name = strrchr(said.config->rendezvous.tls.ca, '/');
    cr_expect(said.config->rendezvous.tls.ca[0] == '/' && !strcmp(name, "/ca.pem"));
    cr_expect_str_eq(left.config->rendezvous.tls.ca, "/ca");
    cr_expect_null(left.config->rendezvous.auth.user);
    cr_expect_eq(left.config->rendezvous.join_timeout_us, 20 * ER_US_PER_S);
    cr_expect_eq(er_config_lease_ttl(said.config), 5 * ER_US_PER_S);
    er_config_free(said.config);
    er_config_free(left.config);
}

/* ---- a store of the job's own ---- */

static const struct {
    const char *args[12];
    const char *endpoints, *master_port;
    bool named;
} MANAGED[] = {
    {{"--nnodes=2", "--rdzv-id=j", "--rdzv-backend=c10d", "--rdzv-endpoint=n1", "a"},
     "[n1:29400]",
     "auto",
     true},
    {{"--nnodes=1:4", "--rdzv-id=j", "--rdzv-backend=c10d", "--rdzv-endpoint=[fd00::1]:5", "a"},
     "[[fd00::1]:5]",
     "auto",
     true},
    {{"--nnodes=3", "--rdzv-id=j", "--rdzv-backend=c10d", "--rdzv-endpoint=a,b:4000,c", "a"},
     "[a:29400, b:4000, c:29400]",
     "auto",
     true},
    {{"--nnodes=2", "--node-rank=1", "--master-addr=n7", "--master-port=4001", "train.py"},
     "[n7:4001]",
     "auto",
     false},
    {{"--nnodes=2", "--node-rank=0", "--master-addr=n7", "train.py"}, "[n7:29500]", "auto", false},
    {{"--nnodes=2", "--rdzv-backend=static", "--rdzv-endpoint=n7:4002", "train.py"},
     "[n7:4002]",
     "auto",
     false},
};

static void join(const struct er_strlist *list, char text[256])
{
    size_t used = 0;

    for (size_t i = 0; i < list->n; i++)
        used += (size_t)snprintf(text + used, 256 - used, "%s%s", i ? ", " : "[", list->items[i]);
    snprintf(text + used, 256 - used, "]");
}

Test(config, torchruns_own_stores_are_a_managed_one_on_several_nodes)
{
    for (size_t i = 0; i < ER_ARRAY_N(MANAGED); i++) {
        struct loaded l = load_args(MANAGED[i].args);
        char text[256] = "";

        cr_assert_eq(l.rc, 0, "%s", l.text);
        join(&l.config->rendezvous.endpoints, text);
        cr_expect_eq(l.config->rendezvous.backend, ER_BACKEND_MANAGED);
        cr_expect_str_eq(text, MANAGED[i].endpoints);
        cr_expect_str_eq(l.config->master_port, MANAGED[i].master_port);
        cr_expect(l.config->rendezvous.managed.insecure);
        cr_expect_eq(l.config->warnings.n, 1);
        cr_expect(strstr(l.config->warnings.items[0], "secret_file"));
        cr_expect_eq(!l.config->name_made_up, MANAGED[i].named);
        er_config_free(l.config);
    }
}

Test(config, a_password_in_plaintext_is_warned_of)
{
    static const struct {
        const char *endpoint, *tls;
        bool warned;
    } CASES[] = {
        {"etcd-1:2379", NULL, true},          {"http://10.0.0.1:2379", NULL, true},
        {"etcd-1:2379", "ca=/ca.pem", false}, {"https://etcd-1:2379", NULL, false},
        {"127.0.0.1:2379", NULL, false},      {"[::1]:2379", NULL, false},
        {"unix:/run/etcd.sock", NULL, false}, {"srv:example.org", NULL, true},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        char endpoint[64], tls[64];
        const char *const args[] = {"--rdzv-id=j",
                                    "--rdzv-backend=etcd",
                                    "--set=rendezvous.auth.user=u",
                                    "--set=rendezvous.auth.password_file=/p",
                                    endpoint,
                                    CASES[i].tls ? tls : "train",
                                    CASES[i].tls ? "train" : NULL,
                                    NULL};
        struct loaded l;

        snprintf(endpoint, sizeof(endpoint), "--rdzv-endpoint=%s", CASES[i].endpoint);
        snprintf(tls, sizeof(tls), "--set=rendezvous.tls.%s", CASES[i].tls ? CASES[i].tls : "");
        l = load_args(args);
        cr_assert_eq(l.rc, 0, "%s", l.text);
        cr_expect_eq(l.config->warnings.n, CASES[i].warned ? 1 : 0, "%s", CASES[i].endpoint);
        if (l.config->warnings.n)
            cr_expect(strstr(l.config->warnings.items[0], CASES[i].endpoint));
        er_config_free(l.config);
    }
}

/* There is no --rdzv-id in many scripts: the nodes must agree all the same. */
Test(config, a_managed_jobs_name_is_the_same_on_all_nodes)
{
    struct loaded a = load_args(ARGS("--nnodes=2", "--node-rank=0", "--master-addr=n7", "t.py")),
                  b = load_args(ARGS("--nnodes=2", "--node-rank=1", "--master-addr=n7", "t.py")),
                  c = load_args(ARGS("--nnodes=2", "--node-rank=1", "--master-addr=n8", "t.py"));

    cr_assert(!a.rc && !b.rc && !c.rc);
    cr_expect_str_eq(a.config->name, b.config->name);
    cr_expect_str_neq(a.config->name, c.config->name);
    er_config_free(a.config);
    er_config_free(b.config);
    er_config_free(c.config);
}

Test(config, a_job_file_says_secret_or_insecure)
{
    static const struct {
        const char *managed, *says;
    } cases[] = {
        {"{insecure: true}", NULL},
        {"{secret_file: s}", NULL},
        {"{peer_port: 4000}", "secret_file"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        char spec[512];
        struct loaded l;

        snprintf(
            spec, sizeof(spec),
            "command: a\nname: j\nnnodes: 2\nrendezvous:\n  backend: managed\n  endpoints: n1\n"
            "  managed: %s\n",
            cases[i].managed);
        l = load_config(&(struct load_case){.spec = spec});
        cr_assert_eq(l.rc == 0, !cases[i].says, "%s", l.text);
        if (cases[i].says)
            cr_expect(strstr(l.text, cases[i].says), "%s", l.text);
        else if (l.config->rendezvous.managed.secret_file)
            cr_expect_eq(l.config->rendezvous.managed.secret_file[0], '/');
        er_config_free(l.config);
    }
}
