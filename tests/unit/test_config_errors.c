#include "tests/unit/config_case.h"

#include <errno.h>

#include "base/exit_codes.h"

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
    {"command: a\nlog.console: all\nlog: {console: none}\n",
     "job.yaml:3:7: duplicate key 'log.console', first given at job.yaml:2"},
    {"command: a\nlog: {console: ~}\n", "job.yaml:2:16: log.console: expected ranks, got nothing"},
    {"command: a\nlimits: {cpus: 0}\n",
     "job.yaml:2:16: limits.cpus: expected a number above 0, or none; got '0'"},
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
    {"command: a\nnode: {id: a/b}\n", "job.yaml:2:12: node.id: expected 1 to 63 letters, digits, "
                                      "'.', '_' or '-', the first a letter "
                                      "or digit; got 'a/b'"},
    {"command: a\nrendezvous: {prefix: jobs}\n",
     "job.yaml:2:14: rendezvous.prefix: expected a path such as /elastic-run, without '/' at its "
     "end; got 'jobs'"},
    {"command: a\nrendezvous: {prefix: /jobs/}\n",
     "job.yaml:2:14: rendezvous.prefix: expected a path such as /elastic-run, without '/' at its "
     "end; got '/jobs/'"},
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
    {"command: a\nrestart: 3\n",
     "job.yaml:2:10: restart: expected a map of keys such as restart.max, got a value"},
    {"command: a\nrestart:\n",
     "job.yaml:2:9: restart: expected a map of keys such as restart.max, got nothing"},
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
    {"command: a\nresize: {notice_signal: KILL}\n",
     "job.yaml:2:10: resize.notice_signal: no program can take notice of KILL or STOP; give one "
     "that yours handles, such as USR1"},
    {"command: a\nresize: {notice_signal: SIGSTOP}\n",
     "job.yaml:2:10: resize.notice_signal: no program can take notice of KILL or STOP; give one "
     "that yours handles, such as USR1"},
    {"command: a\npreempt: {command: [no-such-program]}\n",
     "job.yaml:2:11: preempt.command: program 'no-such-program' not found in PATH"},
    {"command: a\nhealth: {command: [/no/such]}\n",
     "job.yaml:2:10: health.command: program '/no/such' not found"},
    {"command: a\nnotify: {command: ['echo', '${rank}']}\n",
     "job.yaml:2:10: notify.command: only ${job}, ${role}, ${node_id}, ${hostname} and ${env.NAME} "
     "can be used here"},
    {"command: a\nnotify: {on: [job_fail]}\n",
     "job.yaml:2:10: notify.on: no event is called 'job_fail'"},
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
     "1.5 x (stop.grace + 3s): raise it, or lower stop.grace"},
    {"command: a\nstop: {grace: 1s}\nrendezvous: {lease_ttl: 5s, store_loss: {policy: stop}}\n",
     "job.yaml:3:42: rendezvous.store_loss.policy: stop needs rendezvous.lease_ttl to be at least "
     "1.5 x (stop.grace + 3s): raise it, or lower stop.grace"},
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
     "job.yaml:2:18: log.redirects: expected 0, 1, 2, 3, LOCAL_RANK:VALUE,... or "
     "global:RANK:VALUE,... with each rank "
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

Test(config_errors, wrong_specs_are_told_with_position)
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
    {"checkpoint:\n  local_dir: /x\n",
     "job.yaml:3:3: checkpoint.local_dir: not available in this release (only its default, none, "
     "is)"},
    {"health: {builtin: [peers]}\n",
     "job.yaml:2:10: health.builtin: the check 'peers' is not available in this release"},
    {"log: {keep_generations: 3}\n", "job.yaml:2:7: log.keep_generations: not available in this "
                                     "release (only its default, none, is)"},
};

Test(config_errors, what_is_not_there_yet_is_refused)
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

Test(config_errors, defaults_written_otherwise_are_accepted)
{
    struct loaded l = load_text("command: a\nhang: {floor: 60s, factor: 10.0}\nroles: {}\n"
                                "notify: {command: none}\nlimits: {memory: none}\n"
                                "health: {builtin: [disk, memory]}\n");

    cr_expect_eq(l.rc, 0, "%s", l.text);
    er_config_free(l.config);
}

Test(config_errors, findings_are_collected_up_to_twenty)
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
    {{"--nnodes", "2", "x"},
     "--nnodes: more than one node needs a store that all of them reach: an etcd of yours, at "
     "rendezvous.endpoints (--rdzv-backend=etcd --rdzv-endpoint=HOST:PORT), or one that "
     "elastic-run "
     "starts on a host of the job (--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT; "
     "rendezvous.backend: managed)",
     64},
    {{"--nnodes=2", "--rdzv-backend=c10d", "x"},
     "--rdzv-backend: c10d on several nodes needs --rdzv-endpoint=HOST[:PORT], the node that holds "
     "the job's record (or three, separated by commas: then any one may be lost)",
     64},
    {{"--nnodes=2", "--rdzv-backend=static", "x"},
     "--rdzv-backend: static on several nodes needs --master-addr=HOST (and --master-port), the "
     "node that holds the job's record",
     64},
    {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a,b", "x"},
     "--rdzv-endpoint: managed: two members are worse than one: the loss of either stops both; "
     "name one host or three",
     64},
    {{"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=j", "x"},
     "--rdzv-backend: etcd needs to know where it is: give rendezvous.endpoints (--rdzv-endpoint)",
     64},
    {{"--nnodes=2", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=a", "--rdzv-id=none", "x"},
     "--rdzv-id: give the job a name of its own, the same on all nodes: its record in the store "
     "stays under it",
     64},
    {{"--max-restarts", "-1", "x"},
     "--max-restarts: expected a number from 0 to 1000000, or none, got '-1'",
     64},
    {{"--shutdown-timeout", "-1", "x"},
     "--shutdown-timeout: expected a duration such as 500ms, 30s, 1h30m or none, got '-1'",
     64},
    {{"-r", "0:9", "x"},
     "--redirects: expected 0, 1, 2, 3, LOCAL_RANK:VALUE,... or global:RANK:VALUE,... with each "
     "rank once; got '0:9'",
     64},
    {{"--rdzv-backend", "redis", "x"},
     "--rdzv-backend: expected static, c10d, etcd-v2, etcd, embedded, managed or auto; got 'redis'",
     64},
    {{"--rdzv-backend", "c10d", "--nnodes=2", "--shutdown-timeout=x", "x"},
     "--shutdown-timeout: expected a duration such as 500ms, 30s, 1h30m or none, got 'x'\n"
     "--rdzv-backend: c10d on several nodes needs --rdzv-endpoint=HOST[:PORT], the node that holds "
     "the job's record (or three, separated by commas: then any one may be lost)",
     64},
    {{"--fresh", "--resume", "x"}, "--fresh and --resume exclude each other", 64},
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
    {{"--numa-binding", "nod", "x"},
     "--numa-binding: unknown value 'nod'; did you mean 'node'?",
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
    {{"--set", "log.keep_generations=2", "y"},
     "--set log.keep_generations: not available in this release (only its default, none, is)",
     78},
    {{"/nonexistent/job.yml"},
     "open job spec '/nonexistent/job.yml': No such file or directory",
     78},
};

Test(config_errors, wrong_command_lines_are_told)
{
    for (size_t i = 0; i < ER_ARRAY_N(BAD_ARGS); i++) {
        struct loaded l = load_args(BAD_ARGS[i].args);

        cr_expect_neq(l.rc, 0, "%s", BAD_ARGS[i].message);
        cr_expect_str_eq(l.err.text, BAD_ARGS[i].message);
        cr_expect_eq(er_config_exit_code(&l.err), BAD_ARGS[i].exit_code, "%s", l.err.text);
        er_config_free(l.config);
    }
}

Test(config_errors, wrong_variables_are_told)
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

Test(config_errors, exit_codes_by_cause)
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
