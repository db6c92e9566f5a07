#include "tests/unit/config_case.h"

#include <errno.h>

#include "agent/exit_codes.h"
#include "base/file.h"
#include "base/rand.h"

enum { PRINT_MAX = 1 << 20 };

static struct loaded load_args(const char *const *args)
{
    return load_config(&(struct load_case){.args = args});
}

static struct loaded load_text(const char *spec)
{
    return load_config(&(struct load_case){.spec = spec});
}

/* ---- one wrong thing, one message ---- */

static const struct {
    const char *spec, *message;
} BAD_SPECS[] = {
    {"x\n", "job.yaml:1:1: expected a map of keys, got a value"},
    {"[a]\n", "job.yaml:1:1: expected a map of keys, got a list"},
    {"name: x\n", "job.yaml: command: missing; it says what each worker runs"},
    {"comand: [x]\n", "job.yaml:1:1: unknown key 'comand'; did you mean 'command'?"},
    {"command: []\n", "job.yaml:1:10: command: names no program"},
    {"command: ['']\n", "job.yaml:1:11: command: names no program"},
    {"command: ''\n", "job.yaml:1:10: command: names no program"},
    {"command:\n", "job.yaml:1:9: command: expected a command, got nothing"},
    {"command: {a: b}\n", "job.yaml:1:10: command: expected a command, got a map"},
    {"command: [a, [b]]\n", "job.yaml:1:14: command: item 2: expected a value, got a list"},
    {"command: [a, ]\nx-y: 1\n", "job.yaml:2:1: unknown key 'x-y'"},
    {"command: [a, ~]\n", "job.yaml:1:14: command: item 2: expected a value, got nothing"},
    {"command: a 'b\n", "job.yaml:1:10: command: a quote (') is not closed"},
    {"command: [a, '${rnk}']\n",
     "job.yaml:1:14: command: unknown name '${rnk}'; did you mean '${rank}'?"},
    {"command: [a, '${env.NO_SUCH}']\n",
     "job.yaml:1:14: command: '${env.NO_SUCH}': this environment variable is not set"},
    {"command: a ${rank\n", "job.yaml:1:10: command: '${' without '}'; '$$' stands for '$'"},
    {"command: a\nenv: [x]\n", "job.yaml:2:6: env: expected a map of strings, got a list"},
    {"command: a\nenv: {A: {}}\n", "job.yaml:2:10: env: A: expected a value, got a map"},
    {"command: a\nenv: {A=B: 1}\n", "job.yaml:2:7: env: 'A=B' is no name of a variable"},
    {"command: a\nenv: {A: '${x}'}\n",
     "job.yaml:2:10: env: A: unknown name '${x}'; '$$' stands for '$'"},
    {"command: a\nname: a b\n",
     "job.yaml:2:7: name: expected 1 to 63 letters, digits, '.', '_' or '-', the first a letter or "
     "digit; got 'a b'"},
    {"command: a\nname: ../x\n",
     "job.yaml:2:7: name: expected 1 to 63 letters, digits, '.', '_' or '-', the first a letter or "
     "digit; got '../x'"},
    {"command: a\nversion: 2\n",
     "job.yaml:2:1: version: version 2 is newer than this program knows (1)"},
    {"command: a\nversion: 0\n",
     "job.yaml:2:10: version: expected a number from 1 to 4294967294, got '0'"},
    {"command: a\nnnodes: 0\n", "job.yaml:2:9: nnodes: expected numbers from 1 to 100000, got '0'"},
    {"command: a\nnnodes: \"6:4\"\n",
     "job.yaml:2:9: nnodes: '6:4' has its minimum above its maximum"},
    {"command: a\nnnodes: 1:2:3\n",
     "job.yaml:2:9: nnodes: expected MIN or MIN:MAX such as 4 or 4:6, got '1:2:3'"},
    {"command: a\nnnodes: {min: 1}\n",
     "job.yaml:2:9: nnodes: a range needs both min and max, each a number"},
    {"command: a\nnnodes: {min: 1, mx: 1}\n",
     "job.yaml:2:18: nnodes: unknown key 'mx'; a range has min and max"},
    {"command: a\nnnodes: {min: [1], max: 2}\n",
     "job.yaml:2:9: nnodes: a range needs both min and max, each a number"},
    {"command: a\nnproc_per_node: 0\n",
     "job.yaml:2:17: nproc_per_node: expected a number from 1 to 4096, gpu, cpu or auto; got '0'"},
    {"command: a\nnproc_per_node: -1\n",
     "job.yaml:2:17: nproc_per_node: expected a number from 1 to 4096, gpu, cpu or auto; got '-1'"},
    {"command: a\nnproc_per_node: 99999999999999999999\n",
     "job.yaml:2:17: nproc_per_node: expected a number from 1 to 4096, gpu, cpu or auto; got "
     "'99999999999999999999'"},
    {"command: a\nrestart: {max: fast}\n",
     "job.yaml:2:16: restart.max: expected a number from 0 to 1000000, or none, got 'fast'"},
    {"command: a\nrestart: {max: }\n",
     "job.yaml:2:16: restart.max: expected a count, got nothing; write none"},
    {"command: a\nrestart: {max: 4294967296}\n",
     "job.yaml:2:16: restart.max: expected a number from 0 to 1000000, or none, got '4294967296'"},
    {"command: a\nrestart: 3\n", "job.yaml:2:10: restart: expected a map, got a value"},
    {"command: a\nrestart:\n", "job.yaml:2:9: restart: expected a map, got nothing"},
    {"command: a\nrestart: {windw: 1h}\n",
     "job.yaml:2:11: unknown key 'restart.windw'; did you mean 'restart.window'?"},
    {"command: a\nrestart: {backoff: {initial: 2m}}\n",
     "job.yaml:2:21: restart.backoff.initial: must not be longer than restart.backoff.max"},
    {"command: a\nrestart: {fatal_exit_codes: [0]}\n",
     "job.yaml:2:30: restart.fatal_exit_codes: expected an exit code from 1 to 255, got '0'"},
    {"command: a\nstop: {grace: 30}\n",
     "job.yaml:2:15: stop.grace: expected a duration such as 500ms, 30s, 1h30m or none, got '30', "
     "which has no unit"},
    {"command: a\nstop: {grace: 30 s}\n", "job.yaml:2:15: stop.grace: expected a duration such as "
                                          "500ms, 30s, 1h30m or none, got '30 s'"},
    {"command: a\nstop: {grace: -1s}\n",
     "job.yaml:2:15: stop.grace: expected a duration such as 500ms, 30s, 1h30m or none, got '-1s'"},
    {"command: a\nstop: {signal: TREM}\n",
     "job.yaml:2:16: stop.signal: expected a signal such as TERM or SIGTERM, got 'TREM'"},
    {"command: a\nstop: {signals_to_handle: [TERM, KILL]}\n",
     "job.yaml:2:34: stop.signals_to_handle: SIGKILL cannot be handled"},
    {"command: a\nstop: {forward: [TERM]}\n",
     "job.yaml:2:8: stop.forward: names a signal that stop.signals_to_handle names too"},
    {"command: a\npreempt: {signals: [USR1]}\n",
     "job.yaml:2:11: preempt.signals: names a signal that stop.signals_to_handle does not"},
    {"command: a\nvirtual_local_rank: yes\n",
     "job.yaml:2:21: virtual_local_rank: expected true or false, got 'yes'"},
    {"command: a\nstdin: inherti\n",
     "job.yaml:2:8: stdin: unknown value 'inherti'; did you mean 'inherit'?"},
    {"command: a\nstdin: 7\n", "job.yaml:2:8: stdin: expected one of auto, none, inherit; got '7'"},
    {"command: a\nmaster_port: 70000\n",
     "job.yaml:2:14: master_port: expected auto, a port from 1 to 65535 or \"LOW-HIGH\"; got "
     "'70000'"},
    {"command: a\nport_range: 9-8\n",
     "job.yaml:2:13: port_range: expected auto, a port from 1 to 65535 or \"LOW-HIGH\"; got '9-8'"},
    {"command: a\nrendezvous: {lease_ttl: 2500ms}\n",
     "job.yaml:2:14: rendezvous.lease_ttl: must be whole seconds"},
    {"command: a\nrendezvous: {lease_ttl: 1s}\n",
     "job.yaml:2:25: rendezvous.lease_ttl: expected a duration from 2s to 1d, got '1s'"},
    {"command: a\nrendezvous: {death_grace: none}\n",
     "job.yaml:2:27: rendezvous.death_grace: a duration is needed here, none is not possible"},
    {"command: a\nrendezvous: {store_loss: {policy: stop}}\n",
     "job.yaml:2:27: rendezvous.store_loss.policy: stop needs rendezvous.lease_ttl to be at least "
     "stop.grace + 2s"},
    {"command: a\nrendezvous: {backend: redis}\n",
     "job.yaml:2:23: rendezvous.backend: expected one of auto, embedded, etcd, managed; got "
     "'redis'"},
    {"command: a\ncheckpoint: {dir: c, every: none}\n",
     "job.yaml:2:22: checkpoint.every: with checkpoint.dir set, one of every and every_steps must "
     "be given"},
    {"command: a\ncheckpoint: {keep_last: 0}\n",
     "job.yaml:2:25: checkpoint.keep_last: expected a number from 1 to 1000000, got '0'"},
    {"command: a\ncheckpoint: {dir: 'c${rank}'}\n",
     "job.yaml:2:14: checkpoint.dir: only ${job}, ${role}, ${node_id}, ${hostname} and ${env.NAME} "
     "can be used here"},
    {"command: a\nlog: {redirects: 4}\n",
     "job.yaml:2:18: log.redirects: expected 0, 1, 2, 3 or LOCAL_RANK:VALUE,... with each rank "
     "once; got '4'"},
    {"command: a\nlog: {console: '1,,2'}\n",
     "job.yaml:2:16: log.console: expected all, none, ranks \"0,8-15\" or local ranks \"local:0\"; "
     "got '1,,2'"},
    {"command: a\nlog: {max_size: 100}\n",
     "job.yaml:2:17: log.max_size: expected a size such as 512B, 64KiB, 8MB or none, got '100', "
     "which has no unit"},
    {"command: a\nlog: {max_size: 1B}\n",
     "job.yaml:2:17: log.max_size: expected at least 4KiB, got '1B'"},
    {"command: a\nlog: {prefix: '${nme}'}\n",
     "job.yaml:2:15: log.prefix: unknown name '${nme}'; '$$' stands for '$'"},
    {"command: a\nhang: {factor: -1}\n",
     "job.yaml:2:16: hang.factor: expected a number from 0 to 1e+06, got -1"},
    {"command: a\nworkdir: ''\n", "job.yaml:2:10: workdir: must not be empty"},
    {"command: a\n\"a\\nb\": 1\n", "job.yaml:2:1: unknown key 'a?b'"},
};

Test(config, wrong_specs_are_told_with_position)
{
    for (size_t i = 0; i < ER_ARRAY_N(BAD_SPECS); i++) {
        struct loaded l = load_text(BAD_SPECS[i].spec);

        cr_expect_neq(l.rc, 0, "%s", BAD_SPECS[i].spec);
        cr_expect_str_eq(l.text, BAD_SPECS[i].message);
        cr_expect_eq(er_config_exit_code(&l.err), ER_CODE_CONFIG);
        cr_expect_null(l.config);
        er_config_free(l.config);
    }
}

static const struct {
    const char *spec, *message;
} NOT_YET[] = {
    {"hang:\n  floor: 2m\n", "job.yaml:3:3: hang.floor: not available in this release (only its "
                             "default, 1m, is)"},
    {"nnodes: 1:4\n", "job.yaml:2:1: nnodes: more than one node is not available in this release"},
    {"rendezvous: {backend: managed}\n", "job.yaml:2:14: rendezvous.backend: the managed store is "
                                         "not available in this release (only embedded is)"},
    {"roles: {a: {nnodes: 1}}\n",
     "job.yaml:2:1: roles: not available in this release (only its default, {}, is)"},
    {"node: {numa_binding: node}\n", "job.yaml:2:8: node.numa_binding: not available in this "
                                     "release (only its default, none, is)"},
    {"limits: {memory: 1GiB}\n",
     "job.yaml:2:10: limits.memory: not available in this release (only its default, none, is)"},
    {"notify: {on: job_failed}\n",
     "job.yaml:2:10: notify.on: not available in this release (only its default, [job_failed, "
     "node_lost, restart_denied, checkpoint_failed], is)"},
    {"log: {duplicate_stdout: [x]}\n", "job.yaml:2:7: log.duplicate_stdout: not available in this "
                                       "release (only its default, [], is)"},
    {"preempt: {command: [x]}\n",
     "job.yaml:2:11: preempt.command: not available in this release (only its default, none, is)"},
    {"http: {listen: '127.0.0.1:9400'}\n",
     "job.yaml:2:8: http.listen: not available in this release (only its default, none, is)"},
};

Test(config, what_is_not_there_yet_is_refused)
{
    for (size_t i = 0; i < ER_ARRAY_N(NOT_YET); i++) {
        char spec[256];
        struct loaded l;

        snprintf(spec, sizeof(spec), "command: a\n%s", NOT_YET[i].spec);
        l = load_text(spec);
        cr_expect_eq(l.rc, ER_E_UNSUPPORTED, "%s", spec);
        cr_expect_str_eq(l.text, NOT_YET[i].message);
        cr_expect_eq(er_config_exit_code(&l.err), ER_CODE_CONFIG);
        er_config_free(l.config);
    }
}

Test(config, defaults_written_otherwise_are_accepted)
{
    struct loaded l = load_text("command: a\nhang: {floor: 60s, factor: 10.0}\nroles: {}\n"
                                "notify: {command: none}\nlimits: {memory: none}\n"
                                "health: {builtin: [disk, memory]}\n");

    cr_expect_eq(l.rc, 0, "%s", l.text);
    er_config_free(l.config);
}

Test(config, findings_are_collected_up_to_twenty)
{
    char spec[2048] = "";
    struct loaded l;
    size_t n = 0, lines = 1;

    for (int i = 0; i < 25; i++)
        n += (size_t)snprintf(spec + n, sizeof(spec) - n, "k%d: 1\n", i);
    l = load_text(spec);
    cr_expect_eq(l.rc, ER_E_CONFIG);
    for (const char *s = l.text; *s; s++)
        lines += *s == '\n';
    cr_expect(lines > 10 && lines <= ER_FINDINGS_MAX + 1, "%zu lines", lines);
    cr_expect(strstr(l.text, "more)"), "%s", l.text);
    l = load_text("command: a\nfoo: 1\nstop: {grace: 1}\nbar: 1\n");
    cr_expect_str_eq(l.text,
                     "job.yaml:2:1: unknown key 'foo'\n"
                     "job.yaml:3:15: stop.grace: expected a duration such as 500ms, 30s, 1h30m or "
                     "none, got '1', which has no unit\n"
                     "job.yaml:4:1: unknown key 'bar'");
}

static const struct {
    const char *args[8];
    const char *message;
    int exit_code;
} BAD_ARGS[] = {
    {{NULL}, "no program: give PROGRAM [ARG...] or JOB.yaml; --help tells more", 64},
    {{"--nproc-per-node", "0", "x"},
     "--nproc-per-node: expected a number from 1 to 4096, gpu, cpu or auto; got '0'",
     64},
    {{"--nproc-per-node", "xpu", "x"},
     "--nproc-per-node: expected a number from 1 to 4096, gpu, cpu or auto; got 'xpu'",
     64},
    {{"--nnodes", "1:2:3", "x"},
     "--nnodes: expected MIN or MIN:MAX such as 4 or 4:6, got '1:2:3'",
     64},
    {{"--nnodes", "2", "x"}, "--nnodes: more than one node is not available in this release", 78},
    {{"--max-restarts", "-1", "x"},
     "--max-restarts: expected a number from 0 to 1000000, or none, got '-1'",
     64},
    {{"--shutdown-timeout", "-1", "x"},
     "--shutdown-timeout: expected a duration such as 500ms, 30s, 1h30m or none, got '-1'",
     64},
    {{"-r", "0:9", "x"},
     "--redirects: expected 0, 1, 2, 3 or LOCAL_RANK:VALUE,... with each rank once; got '0:9'",
     64},
    {{"--rdzv-backend", "redis", "x"},
     "--rdzv-backend: expected static, c10d, etcd-v2, etcd, embedded, managed or auto; got 'redis'",
     64},
    {{"--rdzv-backend", "etcd-v2", "x"},
     "--rdzv-backend: the etcd store is not available in this release (only embedded is)",
     78},
    {{"--rdzv-conf", "timeout", "x"}, "--rdzv-conf: expected NAME=VALUE,..., got 'timeout'", 64},
    {{"--rdzv-conf", "join_timeout=x", "x"},
     "--rdzv-conf join_timeout: expected a duration such as 500ms, 30s, 1h30m or none, got 'x'",
     64},
    {{"--rdzv-id", "a/b", "x"},
     "--rdzv-id: expected 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit; "
     "got 'a/b'",
     64},
    {{"--signals-to-handle", "TERM,FOO", "x"},
     "--signals-to-handle: expected a signal such as TERM or SIGTERM, got 'FOO'",
     64},
    {{"--numa-binding", "node", "x"},
     "--numa-binding: not available in this release (only its default, none, is)",
     78},
    {{"--numa-binding", "nod", "x"},
     "--numa-binding: unknown value 'nod'; did you mean 'node'?",
     64},
    {{"--duplicate-stdout-filters", "a,b", "x"},
     "--duplicate-stdout-filters: not available in this release (only its default, [], is)",
     78},
    {{"--master-port", "99999", "x"},
     "--master-port: expected a port from 0 to 65535, got '99999'",
     64},
    {{"--run-path", "x"}, "--run-path: refused: give PROGRAM", 64},
    {{"-m", "--no-python", "x"}, "--module and --no-python exclude each other", 64},
    {{"-m", "job.yaml"},
     "--module has no meaning with the job spec 'job.yaml'; `command` says what runs",
     64},
    {{""}, "PROGRAM is empty", 64},
    {{"--set", "x", "y"}, "--set: expected KEY=VALUE, got 'x'", 64},
    {{"--set", "restart.mx=1", "y"},
     "--set: unknown key 'restart.mx'; did you mean 'restart.max'?",
     64},
    {{"--set", "restart=1", "y"},
     "--set restart: a group of keys; give one, such as --set restart.max",
     64},
    {{"--set", "stop.grace=30", "y"},
     "--set stop.grace: expected a duration such as 500ms, 30s, 1h30m or none, got '30', which has "
     "no unit",
     64},
    {{"--set", "stop.forward=[USR1", "y"},
     "--set stop.forward: did not find expected ',' or ']' (while parsing a flow sequence)",
     64},
    {{"--set", "command=z", "y"}, "--set command: PROGRAM is the command", 64},
    {{"--set", "hang.floor=2m", "y"},
     "--set hang.floor: not available in this release (only its default, 1m, is)",
     78},
    {{"/nonexistent/job.yml"},
     "open job spec '/nonexistent/job.yml': No such file or directory",
     78},
};

Test(config, wrong_command_lines_are_told)
{
    for (size_t i = 0; i < ER_ARRAY_N(BAD_ARGS); i++) {
        struct loaded l = load_args(BAD_ARGS[i].args);

        cr_expect_neq(l.rc, 0, "%s", BAD_ARGS[i].message);
        cr_expect_str_eq(l.err.text, BAD_ARGS[i].message);
        cr_expect_eq(er_config_exit_code(&l.err), BAD_ARGS[i].exit_code, "%s", l.err.text);
        er_config_free(l.config);
    }
}

Test(config, wrong_variables_are_told)
{
    static const struct {
        const char *variable, *message;
    } cases[] = {
        {"PET_STANDALONE=yes", "PET_STANDALONE: expected 0 or 1, got 'yes'"},
        {"PET_MAX_RESTARTS=x",
         "PET_MAX_RESTARTS: expected a number from 0 to 1000000, or none, got 'x'"},
        {"PET_RUN_PATH=1", "PET_RUN_PATH: refused: give PROGRAM"},
        {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x",
         "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: expected a duration such as 500ms, 30s, 1h30m or none, "
         "got 'x'"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l = load_config(
            &(struct load_case){.args = ARGS("x"), .env = ARGS("HOME=/h", cases[i].variable)});

        cr_expect_eq(er_config_exit_code(&l.err), ER_CODE_USAGE);
        cr_expect_str_eq(l.err.text, cases[i].message);
        er_config_free(l.config);
    }
}

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

Test(config, slurm_names_the_job)
{
    struct loaded l = load_config(
        &(struct load_case){.args = ARGS("x"), .env = ARGS("HOME=/h", "SLURM_JOB_ID=9")});

    cr_assert_eq(l.rc, 0, "%s", l.text);
    cr_expect_str_eq(l.config->name, "slurm-9");
    er_config_free(l.config);
    l = load_config(&(struct load_case){
        .args = ARGS("x"),
        .env = ARGS("HOME=/h", "SLURM_JOB_ID=9", "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=3")});
    cr_expect_str_eq(l.config->name, "7_3");
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
     "--master-addr: no effect on one node; workers get a fresh MASTER_PORT"},
    {{"--rdzv_endpoint", "localhost:29400", "x"},
     "rendezvous.endpoints",
     "[]",
     "--rdzv-endpoint: no effect on one node"},
    {{"--master_port", "29501", "x"},
     "master_port",
     "auto",
     "--master-port: no effect on one node; workers get a fresh MASTER_PORT"},
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
    {{"-t", "3", "x"}, "log.dir", "/home/someone/.local/state/elastic-run", NULL},
    {{"-r", "0", "x"}, "log.dir", "none", NULL},
    {{"--redirects", "0:3,10:1", "x"}, "log.redirects", "\"0:3,10:1\"", NULL},
    {{"--local-ranks-filter=0,1", "x"}, "log.console", "\"local:0,1\"", NULL},
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
    cr_expect_str_eq(l.config->log.dir, "/l//home/someone$");
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

/* ---- printing ---- */

static void print(const struct er_config *config, bool origins, struct er_buf *out)
{
    er_buf_init(out, PRINT_MAX);
    cr_assert_eq(er_config_format(config, origins, out), 0);
}

/* With origins, so that the comments are shown to be comments. */
static void reload_and_compare(struct loaded *first)
{
    struct er_buf printed, plain, again;
    struct loaded second;

    print(first->config, true, &printed);
    print(first->config, false, &plain);
    second = load_text(er_buf_str(&printed));
    cr_assert_eq(second.rc, 0, "%s\n%s", second.text, er_buf_str(&printed));
    print(second.config, false, &again);
    cr_expect_str_eq(er_buf_str(&again), er_buf_str(&plain));
    er_buf_done(&printed);
    er_buf_done(&plain);
    er_buf_done(&again);
    er_config_free(second.config);
    er_config_free(first->config);
}

Test(config, printed_configuration_loads_back)
{
    static const char spec[] =
        "name: j\ncommand: [a, 'b \"c\" \\', \"\\t\\u00e9\\u2028\\x7f\", '${rank}$$', '']\n"
        "env: {A: null, 'B C': 'x: y # z', D: '', E: '~', 'F\"': '${rank}'}\n"
        "workdir: 'w ${rank}'\nnnodes: {min: 1, max: 1}\nnproc_per_node: auto\nstdin: none\n"
        "master_port: 100-200\nnode: {rank: 3, topology: 'a/b'}\n"
        "rendezvous: {lease_ttl: 9s, replacement_wait: 0s, join_timeout: none}\n"
        "restart: {max: none, window: none, fatal_exit_codes: [1, 255]}\n"
        "stop: {signal: INT, grace: 1m1s, signals_to_handle: [TERM, USR1], forward: USR2}\n"
        "checkpoint: {dir: 'c$$', every_steps: 50, every: none}\n"
        "log: {dir: none, console: 'local:0', prefix: '', redirects: '0:1', tee: 0, max_size: "
        "1GB}\n";
    struct loaded from_spec = load_text(spec);
    struct loaded from_program =
        load_args(ARGS("-t", "3", "--log-dir=/tmp/a$b", "--set", "env.A=$x ${local_rank}", "x.py",
                       "${local_rank}", "${what} $$", "{\"a\": [1]}", "- x", "#", "0x1", "1e3"));

    cr_assert_eq(from_spec.rc, 0, "%s", from_spec.text);
    cr_assert_eq(from_program.rc, 0, "%s", from_program.err.text);
    reload_and_compare(&from_spec);
    reload_and_compare(&from_program);
}

Test(config, origins_are_printed)
{
    struct loaded l = load_config(&(struct load_case){.args = ARGS("--max-restarts=7", SPEC),
                                                      .spec = "command: a\nstop:\n  grace: 5s\n"});
    struct er_buf text;

    cr_assert_eq(l.rc, 0, "%s", l.text);
    print(l.config, true, &text);
    cr_expect(strstr(er_buf_str(&text), "\nrestart:\n  max: 7                                    # "
                                        "--max-restarts\n"));
    cr_expect(strstr(er_buf_str(&text), "/job.yaml:3\n"));
    cr_expect(strstr(er_buf_str(&text), "# default\n"));
    er_buf_done(&text);
    er_config_free(l.config);
}

Test(config, spec_text_holds_what_must_agree)
{
    struct loaded a = load_args(ARGS("--rdzv-id=j", "--log-dir=/x", "x")),
                  b = load_args(ARGS("--rdzv-id=j", "--nproc-per-node=3", "--node-id=q", "x")),
                  c = load_args(ARGS("--rdzv-id=j", "--max-restarts=1", "x"));
    char *texts[3] = {0};
    struct er_error err = ER_ERROR_INIT;

    cr_assert_eq(er_config_spec_text(a.config, &texts[0], &err), 0);
    cr_assert_eq(er_config_spec_text(b.config, &texts[1], &err), 0);
    cr_assert_eq(er_config_spec_text(c.config, &texts[2], &err), 0);
    cr_expect_str_eq(texts[0], texts[1]);
    cr_expect_str_neq(texts[0], texts[2]);
    cr_expect(strstr(texts[2], "\nrestart.max=1\n"));
    cr_expect(strlen(texts[0]) < 4096);
    for (size_t i = 0; i < ER_ARRAY_N(texts); i++)
        free(texts[i]);
    er_config_free(a.config);
    er_config_free(b.config);
    er_config_free(c.config);
}

Test(config, spec_text_stays_small)
{
    static char words[20000];
    struct er_error err = ER_ERROR_INIT;
    struct loaded l;
    char *text = NULL;

    memset(words, 'w', sizeof(words) - 1);
    l = load_args(ARGS("x", words));
    cr_assert_eq(l.rc, 0);
    cr_expect_eq(er_config_spec_text(l.config, &text, &err), 0, "%s", err.text);
    cr_expect(text && strstr(text, "\ncommand=xxh3:"));
    free(text);
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

Test(config, exit_codes_by_cause)
{
    static const struct {
        int code, exit_code;
    } cases[] = {{0, 0},        {ER_E_USAGE, 64}, {ER_E_CONFIG, 78}, {ER_E_UNSUPPORTED, 78},
                 {-ENOMEM, 71}, {-EMFILE, 71},    {-EIO, 74},        {-EACCES, 73},
                 {-ENOTDIR, 73}};

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct er_error err = {.code = cases[i].code};

        cr_expect_eq(er_config_exit_code(&err), cases[i].exit_code, "%d", cases[i].code);
    }
}

/* ---- hostile input ---- */

/* The loader without the file system: what a spec of these bytes leads to. */
static int load_bytes(const char *data, size_t n)
{
    const struct er_source source = {ER_LAYER_SPEC, "fuzz.yaml", 0, 0, false};
    struct er_error err = ER_ERROR_INIT;
    struct er_loader loader = {0};
    struct er_origins *origins = calloc(1, sizeof(*origins));
    struct er_spec *spec = NULL;
    int rc = er_spec_parse(&spec, "fuzz.yaml", data, n, &err);

    loader.config = calloc(1, sizeof(*loader.config));
    cr_assert(origins && loader.config);
    origins->settings = calloc(er_keys_n, sizeof(*origins->settings));
    cr_assert(origins->settings);
    loader.config->origins = origins;
    er_findings_init(&loader.findings);
    if (!rc && er_spec_root(spec)->kind == ER_NODE_MAP)
        er_loader_map(&loader, er_spec_root(spec), "", &source);
    if (!rc)
        rc = er_findings_result(&loader.findings, &err);
    er_findings_done(&loader.findings);
    er_config_free(loader.config);
    er_spec_free(spec);
    return rc;
}

Test(config, flipped_bytes_never_crash, .timeout = 120)
{
    /* valgrind is twenty times slower and adds little to the sanitizers here */
    const char *preload = getenv("LD_PRELOAD");
    int rounds = preload && strstr(preload, "vgpreload") ? 300 : 20000, refused = 0;
    struct er_error err = ER_ERROR_INIT;
    struct er_buf original, text;
    struct er_rand random;

    er_buf_init(&original, PRINT_MAX);
    er_buf_init(&text, PRINT_MAX);
    cr_assert_eq(er_file_read(ER_SOURCE_ROOT "/tests/unit/data/small_spec.yaml", &original, &err),
                 0, "%s", err.text);
    cr_assert_eq(load_bytes(original.data, original.len), 0);
    er_rand_init(&random, 20240607);
    for (int i = 0; i < rounds; i++) {
        int flips = 1 + (int)er_rand_below(&random, 8);

        er_buf_clear(&text);
        cr_assert_eq(er_buf_add(&text, original.data, original.len), 0);
        for (int k = 0; k < flips; k++)
            text.data[er_rand_below(&random, text.len)] ^= (char)(1u << er_rand_below(&random, 8));
        refused += load_bytes(text.data, text.len) != 0;
    }
    cr_expect(refused > rounds / 2, "%d of %d", refused, rounds);
    er_buf_done(&original);
    er_buf_done(&text);
}

Test(config, cut_files_never_crash, .timeout = 120)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_buf text;

    er_buf_init(&text, PRINT_MAX);
    cr_assert_eq(er_file_read(ER_SOURCE_ROOT "/tests/unit/data/small_spec.yaml", &text, &err), 0,
                 "%s", err.text);
    for (size_t n = 0; n < text.len; n++)
        load_bytes(text.data, n);
    er_buf_done(&text);
}
