#include "agent/keys.h"

#include <assert.h>
#include <string.h>

#include "agent/config.h"
#include "base/cleanup.h"
#include "base/parse.h"

#define AT(member) offsetof(struct er_config, member)
#define NOWHERE    ER_KEY_NOWHERE
#define SECONDS(n) ((uint64_t)(n)*ER_US_PER_S)

enum {
    AGREE = ER_KEY_AGREE,
    LIVE = ER_KEY_LIVE,
    LATER = ER_KEY_LATER,
    NONE = ER_KEY_NONE,
    AUTO = ER_KEY_AUTO,
    QUOTED = ER_KEY_QUOTED,
    CORE = ER_APPLIES_CORE,
    JUDGES = ER_APPLIES_JUDGES,
    WORKERS = ER_APPLIES_WORKERS,
    CONSOLE = ER_APPLIES_CONSOLE,
    NODES_MAX = 100000,
    PROCS_MAX = 4096,
};

static_assert(AT(nnodes_max) == AT(nnodes_min) + sizeof(uint32_t), "a range is two neighbours");

#define CHOICES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* clang-format off */
const struct er_key_info er_keys[] = {
#define GROUP ER_GROUP_JOB
#define KEY(path_, type_, def_, offset_, flags_, ...) \
    {.path = (path_), .type = ER_KEY_##type_, .def = (def_), .offset = (offset_), .flags = (flags_), .group = GROUP, __VA_ARGS__}
    KEY("version", U32, "1", AT(version), 0, .min = 1,
        .help = "schema version of this file; newer than known is an error"),
    KEY("name", NAME, NULL, AT(name), AGREE,
        .help = "the job's name, TORCHELASTIC_RUN_ID; default <program>-<8 hex digits> on a single node"),
    KEY("command", COMMAND, NULL, AT(command), AGREE,
        .help = "what each worker runs: a list is argv, never a shell; a string is split at blanks with quotes, no expansion; "
                "*.py first means python3 -u"),
    KEY("env", ENV, "{}", AT(env), 0,
        .help = "added to the agent's environment; the value null removes a name"),
    KEY("workdir", PATH, ".", AT(workdir), 0,
        .help = "working directory of the workers, relative to the spec file"),
    KEY("stdin", CHOICE, "auto", AT(stdin_mode), 0, .choices = CHOICES("auto", "none", "inherit"),
        .help = "auto: inherited when there is one worker and stdin is a terminal, so that breakpoint() works"),
    KEY("nnodes", RANGE, "1", AT(nnodes_min), AGREE | QUOTED, .max = NODES_MAX,
        .help = "number of nodes: MIN or \"MIN:MAX\""),
    KEY("nproc_per_node", NPROC, "1", AT(nproc_text), 0, .max = PROCS_MAX,
        .help = "workers on this node: a number, gpu (one per GPU), cpu, or auto (GPU count, else 1)"),
    KEY("role", STRING, "default", AT(role), 0, .help = "this node's role"),
    KEY("roles", ROLES, "{}", AT(roles), AGREE,
        .help = "name: {nnodes, nproc_per_node, command, env}; a node has the role that `role` says, and the job the nodes of all roles; "
                "what a role leaves out comes from the top level"),
    KEY("virtual_local_rank", BOOL, "false", AT(virtual_local_rank), 0,
        .help = "each worker sees one GPU and LOCAL_RANK=0"),
    KEY("master_port", PORTS, "auto", AT(master_port), AGREE | AUTO | QUOTED,
        .help = "auto (free, fresh in each generation), a port, or \"LOW-HIGH\""),
    KEY("port_range", PORTS, "auto", AT(port_range), AUTO | QUOTED,
        .help = "ports that the C communicator may listen on: auto or \"LOW-HIGH\""),
#undef GROUP
#define GROUP ER_GROUP_NODE
    KEY("node.id", NAME, "auto", AT(node.id), AUTO,
        .help = "identity of this node, stable over restarts of the agent; auto: host name"),
    KEY("node.rank", RANK, "none", AT(node.rank), NONE, .max = NODES_MAX,
        .help = "preferred group rank"),
    KEY("node.address", STRING, "auto", AT(node.address), AUTO,
        .help = "what peers connect to: auto, an interface, an address or a host name"),
    KEY("node.topology", STRING, "none", AT(node.topology), NONE,
        .help = "label by which ranks are grouped, such as rack7/leaf2"),
    KEY("node.numa_binding", CHOICE_TEXT, "none", AT(node.numa_binding), 0,
        .choices = CHOICES("none", "node", "socket", "exclusive", "core-complex"),
        .help = "CPUs that each worker is bound to: all of its NUMA node, all of its socket, an equal share of its node's cores, or "
                "those that share a last-level cache; its node is its GPU's, where there are GPUs"),
#undef GROUP
#define GROUP ER_GROUP_RENDEZVOUS
    KEY("rendezvous.backend", CHOICE, "auto", AT(rendezvous.backend), AGREE,
        .choices = CHOICES("auto", "embedded", "etcd", "managed"),
        .help = "auto: endpoints given means etcd, else embedded when nnodes' maximum is 1"),
    KEY("rendezvous.endpoints", ENDPOINTS, "[]", AT(rendezvous.endpoints), 0,
        .help = "etcd's client endpoints; for managed: the one or three hosts that run it"),
    KEY("rendezvous.prefix", STRING, "/elastic-run", AT(rendezvous.prefix), AGREE,
        .help = "keys live under <prefix>/<name>/"),
    KEY("rendezvous.lease_ttl", DURATION, "auto", AT(rendezvous.lease_ttl_us), AGREE | AUTO, .auto_as = 0,
        .min = SECONDS(2), .max = SECONDS(86400),
        .help = "whole seconds; auto: 5s to 1,000 nodes, 10s to 5,000, 15s above"),
    KEY("rendezvous.death_grace", DURATION, "1s", AT(rendezvous.death_grace_us), AGREE, .max = SECONDS(3600),
        .help = "base of the leader's wait before it declares a death"),
    KEY("rendezvous.replacement_wait", DURATION, "auto", AT(rendezvous.replacement_wait_us), AGREE | AUTO,
        .auto_as = ER_FOREVER, .max = SECONDS(86400),
        .help = "after a lost node, before sealing without it; auto: 0s if all workers speak libelastic, else 3s"),
    KEY("rendezvous.join_timeout", DURATION, "10m", AT(rendezvous.join_timeout_us), AGREE | NONE, .none_as = ER_FOREVER,
        .help = "wait for MIN nodes, at first and later; then exit 75"),
    KEY("rendezvous.last_call_timeout", DURATION, "30s", AT(rendezvous.last_call_timeout_us), AGREE, .max = SECONDS(86400),
        .help = "first formation only: after MIN, before MAX"),
    KEY("rendezvous.exit_timeout", DURATION, "5m", AT(rendezvous.exit_timeout_us), AGREE | NONE, .none_as = ER_FOREVER,
        .help = "after the first node finished, wait this long for the others' results"),
    KEY("rendezvous.store_loss.policy", CHOICE_TEXT, "ride", AT(rendezvous.store_loss_policy), AGREE,
        .choices = CHOICES("ride", "stop"),
        .help = "store lost: ride (workers go on, nothing is committed) or stop (before the lease can expire: lease_ttl >= 1.5 x (stop.grace + 3s))"),
    KEY("rendezvous.store_loss.limit", DURATION, "1h", AT(rendezvous.store_loss_limit_us), AGREE | NONE, .none_as = ER_FOREVER,
        .help = "with ride: after this long exit 69"),
    KEY("rendezvous.retention", DURATION, "7d", AT(rendezvous.retention_us), AGREE | NONE, .none_as = ER_FOREVER,
        .help = "how long the record of a finished job stays"),
    KEY("rendezvous.tls.ca", STRING, "none", AT(rendezvous.tls.ca), NONE, .help = "file with the store's certificate authority"),
    KEY("rendezvous.tls.cert", STRING, "none", AT(rendezvous.tls.cert), NONE, .help = "file with our certificate"),
    KEY("rendezvous.tls.key", STRING, "none", AT(rendezvous.tls.key), NONE, .help = "file with our private key"),
    KEY("rendezvous.tls.server_name", STRING, "none", AT(rendezvous.tls.server_name), NONE,
        .help = "name expected in the store's certificate"),
    KEY("rendezvous.auth.user", STRING, "none", AT(rendezvous.auth.user), NONE, .help = "the store's user"),
    KEY("rendezvous.auth.password_file", STRING, "none", AT(rendezvous.auth.password_file), NONE, .help = "file with the user's password"),
    KEY("rendezvous.managed.data_dir", STRING, "auto", AT(rendezvous.managed.data_dir), AUTO,
        .help = "folder that keeps the managed etcd's data; auto: a fresh one for each run, removed at its end"),
    KEY("rendezvous.managed.etcd", STRING, "etcd", AT(rendezvous.managed.etcd), 0, .help = "the etcd program, looked for in PATH"),
    KEY("rendezvous.managed.peer_port", U32, "2380", AT(rendezvous.managed.peer_port), 0, .min = 1, .max = 65535,
        .help = "port on which three members reach each other"),
    KEY("rendezvous.managed.secret_file", STRING, "none", AT(rendezvous.managed.secret_file), NONE,
        .help = "same file on all nodes, from which mutual TLS is made"),
    KEY("rendezvous.managed.insecure", BOOL, "false", AT(rendezvous.managed.insecure), 0,
        .help = "must be said where there is no secret_file"),
#undef GROUP
#define GROUP ER_GROUP_RESTART
    KEY("restart.max", U32, "3", AT(restart.max), AGREE | LIVE | NONE, .applies = CORE, .none_as = ER_NONE_U32, .def_program = "0", .max = 1000000,
        .help = "restarts caused by worker failures, whole job; 0: none are made, none: no limit"),
    KEY("restart.window", DURATION, "1h", AT(restart.window_us), AGREE | LIVE | NONE, .applies = CORE, .none_as = ER_FOREVER,
        .def_program = "none", .help = "failures older than this no longer count; none: they count for the job's life"),
    KEY("restart.backoff.initial", DURATION, "0s", AT(restart.backoff_initial_us), AGREE | LIVE, .applies = CORE, .max = SECONDS(86400),
        .help = "wait before a restart; doubles while generations fail before their first progress"),
    KEY("restart.backoff.max", DURATION, "1m", AT(restart.backoff_max_us), AGREE | LIVE, .applies = CORE, .max = SECONDS(86400),
        .help = "longest such wait"),
    KEY("restart.fatal_exit_codes", CODES, "[93]", AT(restart.fatal_exit_codes), AGREE,
        .help = "a worker that exits with one of these ends the job at once with that code"),
    KEY("restart.on_loss", CHOICE, "respawn", AT(restart.on_loss), AGREE, .choices = CHOICES("respawn", "shrink"),
        .help = "a dead worker of a node whose others live on: respawn (started anew into the next generation, in its place), or shrink (the others go on at once with one fewer, and a new one joins them by a planned change when it is up; only where workers live on, as those of the C trainer and python/elastic do)"),
    KEY("restart.respawn_wait", DURATION, "500ms", AT(restart.respawn_wait_us), NONE, .none_as = ER_FOREVER, .max = SECONDS(10),
        .help = "on_loss: respawn, where workers live on: so long those of a dead worker's job wait for its successor to be up; then they go on without it, and it joins later, as with shrink. none: as long as it takes"),
    KEY("restart.poison_step.failures", U32, "3", AT(restart.poison_step.failures), AGREE, .min = 1, .max = 1000000,
        .help = "workers that report their steps fail in the same one this often, and never get past it: see action"),
    KEY("restart.poison_step.action", CHOICE, "stop", AT(restart.poison_step.action), AGREE, .choices = CHOICES("stop", "skip"),
        .help = "stop: the job ends with 93; skip: the C trainer leaves that step's batch out, recorded for audit (at most 6 steps, and once each; then as stop)"),
    KEY("restart.node_strikes.max", U32, "3", AT(restart.node_strikes.max), AGREE | LIVE, .applies = CORE, .min = 1, .max = 1000000,
        .help = "a node whose workers fail this often is set aside"),
    KEY("restart.node_strikes.window", DURATION, "1h", AT(restart.node_strikes.window_us), AGREE | LIVE, .applies = CORE, .help = "within this time"),
    KEY("restart.node_strikes.cooldown", DURATION, "30m", AT(restart.node_strikes.cooldown_us), AGREE | LIVE, .applies = CORE, .help = "for this long"),
    KEY("restart.gpu_memory_timeout", DURATION, "50s", AT(restart.gpu_memory_timeout_us), 0, .max = SECONDS(86400),
        .help = "before a respawn wait until dead workers' GPU memory is released"),
#undef GROUP
#define GROUP ER_GROUP_RESIZE
    KEY("resize.at", CHOICE, "step", AT(resize.at), AGREE | LIVE, .choices = CHOICES("step", "checkpoint", "now"),
        .help = "where a planned change (join, drain, scale, preemption) happens: after the next step or checkpoint, or without waiting"),
    KEY("resize.settle", DURATION, "5s", AT(resize.settle_us), AGREE | LIVE, .applies = CORE, .help = "joins are gathered for this long"),
    KEY("resize.min_interval", DURATION, "1m", AT(resize.min_interval_us), AGREE | LIVE, .applies = CORE,
        .help = "between two grows; drains and preemptions are not delayed"),
    KEY("resize.notice_signal", SIGNAL, "none", AT(resize.notice_signal), AGREE | NONE, .none_as = 0,
        .help = "for programs without libelastic: sent to each worker `grace` before the stop ladder, such as USR1; one that then exits with 0 has left"),
    KEY("resize.grace", DURATION, "1m", AT(resize.grace_us), AGREE, .help = "at most this between notice and stop ladder"),
    KEY("resize.below_min", CHOICE, "wait", AT(resize.below_min), AGREE, .choices = CHOICES("wait", "stop"),
        .help = "a planned leave that breaks MIN, always after a checkpoint: wait or stop (exit 75)"),
#undef GROUP
#define GROUP ER_GROUP_STOP
    KEY("stop.signal", SIGNAL, "TERM", AT(stop.signal), 0, .help = "first rung; then CONT, grace, KILL, until nothing is left"),
    KEY("stop.grace", DURATION, "30s", AT(stop.grace_us), NONE, .none_as = ER_FOREVER, .help = "the same on every path"),
    KEY("stop.signals_to_handle", SIGNALS, "[TERM, INT, HUP, QUIT]", AT(stop.signals_to_handle), 0,
        .help = "signals that make the agent stop its workers"),
    KEY("stop.forward", SIGNALS, "[]", AT(stop.forward), 0, .help = "passed on to workers, stop nothing: [USR1, USR2]"),
#undef GROUP
#define GROUP ER_GROUP_PREEMPT
    KEY("preempt.signals", SIGNALS, "[TERM]", AT(preempt.signals), 0,
        .help = "notice that this node goes away; a subset of stop.signals_to_handle"),
    KEY("preempt.file", STRING, "none", AT(preempt.file), NONE, .help = "appears: notice"),
    KEY("preempt.command", COMMAND, "none", AT(preempt.command), NONE, .help = "exit 0: notice"),
    KEY("preempt.interval", DURATION, "5s", AT(preempt.interval_us), 0, .min = SECONDS(1) / 10, .help = "how often file and command are looked at"),
    KEY("preempt.deadline", DURATION, "2m", AT(preempt.deadline_us), 0, .help = "from notice to the end of this node"),
#undef GROUP
#define GROUP ER_GROUP_HANG
    KEY("hang.floor", DURATION, "1m", AT(hang.floor_us), AGREE | LIVE | NONE, .applies = JUDGES, .none_as = ER_FOREVER, .min = SECONDS(1) / 10,
        .help = "a rank that reports progress and has not moved for max(floor, factor x observed p99 of the step) hangs; none: no such limit"),
    KEY("hang.factor", RATIO, "10", AT(hang.factor), AGREE | LIVE, .applies = JUDGES, .max = 1000000, .help = "see floor"),
    KEY("hang.startup", DURATION, "30m", AT(hang.startup_us), AGREE | LIVE | NONE, .applies = CORE | JUDGES, .none_as = ER_FOREVER, .min = SECONDS(1) / 10, .help = "from the start of a generation until the first step"),
    KEY("hang.checkpoint", DURATION, "15m", AT(hang.checkpoint_us), AGREE | LIVE | NONE, .applies = JUDGES, .none_as = ER_FOREVER, .min = SECONDS(1) / 10, .help = "limit of a checkpoint"),
    KEY("hang.evaluation", DURATION, "1h", AT(hang.evaluation_us), AGREE | LIVE | NONE, .applies = JUDGES, .none_as = ER_FOREVER, .min = SECONDS(1) / 10, .help = "limit of an evaluation"),
    KEY("hang.action", CHOICE, "restart", AT(hang.action), AGREE | LIVE, .choices = CHOICES("restart", "report"),
        .help = "restart: a rank that hangs is killed and counts as failed; report: it is told of, again after each further deadline"),
    KEY("hang.stacks", BOOL, "false", AT(hang.stacks), 0, .help = "run py-spy or gdb on hung ranks if installed"),
    KEY("straggler.threshold", RATIO, "0.7", AT(straggler.threshold), AGREE | LIVE, .max = 1,
        .help = "a rank whose own step rate (without the time it waits for others) is below this share of the median of all ranks; 0: nobody is looked at"),
    KEY("straggler.for", DURATION, "5m", AT(straggler.for_us), AGREE | LIVE, .min = SECONDS(1), .help = "below the threshold for this long"),
    KEY("straggler.action", CHOICE, "report", AT(straggler.action), AGREE | LIVE, .choices = CHOICES("report", "set_aside"),
        .help = "report, or set_aside: its node is kept out of the job for restart.node_strikes.cooldown, when enough others are there"),
#undef GROUP
#define GROUP ER_GROUP_HEALTH
    KEY("health.builtin", CHOICES, "[disk, memory]", AT(health.builtin), 0, .choices = CHOICES("disk", "memory", "gpu", "clock", "peers"),
        .help = "before each join: disk (checkpoint.dir takes writes and has 64 MiB left), memory (64 MiB), gpu (all of them answer), "
                "clock (synchronised); peers is not available in this release"),
    KEY("health.command", COMMAND, "none", AT(health.command), NONE, .help = "exit 0: healthy; other: node set aside, stdout's last line is the reason"),
    KEY("health.timeout", DURATION, "1m", AT(health.timeout_us), 0, .min = 1, .max = SECONDS(86400), .help = "limit of the checks"),
    KEY("health.cooldown", DURATION, "10m", AT(health.cooldown_us), 0, .min = 1, .max = SECONDS(7 * 86400), .help = "how long an unhealthy node is set aside"),
#undef GROUP
#define GROUP ER_GROUP_CHECKPOINT
    KEY("checkpoint.dir", PATH, "none", AT(checkpoint.dir), AGREE | NONE,
        .help = "ELASTIC_CHECKPOINT_DIR; must be shared by all nodes when nnodes' maximum is above 1"),
    KEY("checkpoint.every_steps", U64, "none", AT(checkpoint.every_steps), AGREE | LIVE | NONE, .applies = WORKERS, .none_as = 0, .min = 1,
        .help = "steps between two checkpoints of the C trainer; at least one of every_steps and every when dir is set"),
    KEY("checkpoint.every", DURATION, "10m", AT(checkpoint.every_us), AGREE | LIVE | NONE, .applies = WORKERS, .none_as = ER_FOREVER, .min = 1,
        .help = "time between two checkpoints"),
    KEY("checkpoint.keep_last", U32, "3", AT(checkpoint.keep_last), AGREE | LIVE, .applies = WORKERS, .min = 1, .max = 1000000,
        .help = "the last valid one is never removed"),
    KEY("checkpoint.keep_every", U64, "none", AT(checkpoint.keep_every), AGREE | LIVE | NONE, .applies = WORKERS, .none_as = 0, .min = 1,
        .max = 1000000000, .help = "one in every K steps is kept for ever"),
    KEY("checkpoint.local_dir", STRING, "none", NOWHERE, NONE | LATER, .help = "node-local copy first"),
    KEY("checkpoint.on_failure.action", CHOICE_TEXT, "continue", AT(checkpoint.on_failure), AGREE | LIVE, .applies = WORKERS, .choices = CHOICES("continue"),
        .help = "a failed write never kills training"),
    KEY("checkpoint.on_failure.max", U32, "10", AT(checkpoint.failures_max), AGREE | LIVE | NONE, .applies = WORKERS, .none_as = ER_NONE_U32, .min = 1, .max = 1000000,
        .help = "consecutive failures before the C trainer's workers, and with them the job, end with exit code 74; none: never"),
#undef GROUP
#define GROUP ER_GROUP_LOG
    KEY("log.dir", PATH, "auto", AT(log.dir), NONE | AUTO, .def_program = "none",
        .help = "auto: $LOGS_DIRECTORY (systemd), else ${XDG_STATE_HOME:-~/.local/state}/elastic-run; none: no files"),
    KEY("log.console", CONSOLE, "all", AT(log.console), LIVE, .applies = CONSOLE, .help = "all, none, a list of ranks \"0,8-15\" or of local ranks \"local:0\""),
    KEY("log.prefix", TEMPLATE, "[${role}${local_rank}]: ", AT(log.prefix), 0, .help = "in front of each line on the console"),
    KEY("log.timestamps", BOOL, "false", AT(log.timestamps), LIVE, .applies = CONSOLE, .help = "a time in front of each line"),
    KEY("log.redirects", STREAMS, "3", AT(log.redirects), QUOTED,
        .help = "streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both, or LOCAL_RANK:VALUE,..., or global:RANK:VALUE,..."),
    KEY("log.tee", STREAMS, "3", AT(log.tee), QUOTED, .def_program = "0", .help = "streams that go to file and console, same form"),
    KEY("log.max_size", SIZE, "256MiB", AT(log.max_size), NONE, .none_as = UINT64_MAX, .min = 4096, .help = "a file is rotated at this size"),
    KEY("log.max_files", U32, "4", AT(log.max_files), 0, .min = 1, .max = 1000, .help = "files kept per stream"),
    KEY("log.keep_generations", U32, "none", NOWHERE, NONE | LATER, .none_as = ER_NONE_U32, .min = 1, .max = 1000000,
        .help = "none: all; otherwise the newest N and every failed one"),
    KEY("log.duplicate_stdout", STRINGS, "[]", AT(log.duplicate_stdout), 0,
        .help = "lines of stdout with one of these in them are copied to gen-<g>/filtered_stdout-<node_id>.log in log.dir"),
    KEY("log.duplicate_stderr", STRINGS, "[]", AT(log.duplicate_stderr), 0,
        .help = "lines of stderr with one of these in them are copied to gen-<g>/filtered_stderr-<node_id>.log in log.dir"),
    KEY("log.format", CHOICE_TEXT, "auto", AT(log.format), 0, .choices = CHOICES("text", "json", "auto"),
        .help = "the agent's own lines; auto: text, journal fields under systemd"),
#undef GROUP
#define GROUP ER_GROUP_OBSERVE
    KEY("http.listen", STRING, "none", AT(http.listen), NONE, .help = "where /metrics, /healthz and /status.json are served, such as 127.0.0.1:9400"),
    KEY("http.token_file", PATH, "none", AT(http.token_file), NONE, .help = "file with the token that clients must show; /healthz needs none"),
    KEY("metrics.textfile", PATH, "none", AT(metrics.textfile), NONE, .help = ".prom file for node_exporter, replaced every 15 s: no port needed"),
    KEY("notify.command", COMMAND, "none", AT(notify.command), NONE, .help = "gets an event as JSON on stdin, 30s limit, never blocks"),
    KEY("notify.on", STRINGS, "[job_failed, node_lost, restart_denied, checkpoint_failed]", AT(notify.on), 0, .help = "events that are told"),
#undef GROUP
#define GROUP ER_GROUP_LIMITS
    KEY("limits.memory", SIZE, "none", AT(limits.memory), NONE, .none_as = UINT64_MAX, .min = 1u << 20, .help = "of each worker, no swap beside it; limits need a delegated cgroup v2 (systemd: Delegate=yes), else nothing starts"),
    KEY("limits.cpus", RATIO, "none", AT(limits.cpus), NONE, .max = 100000, .help = "processor time of each worker, such as 2.5"),
    KEY("limits.pids", U32, "none", AT(limits.pids), NONE, .none_as = ER_NONE_U32, .min = 1, .max = 1u << 22, .help = "processes and threads of each worker"),
#undef GROUP
#undef KEY
};
const size_t er_keys_n = ER_ARRAY_N(er_keys);

const struct er_option er_options[] = {
#define O(name_, letter_, kind_, group_, ...) \
    {.name = (name_), .letter = (letter_), .kind = ER_OPTION_##kind_, .group = ER_GROUP_##group_, __VA_ARGS__}
#define SWITCH .flags = ER_OPTION_NO_VALUE
    O("nnodes", 0, VALUE, JOB, .key = "nnodes", .env = "PET_NNODES", .metavar = "N|MIN:MAX", .help = "number of nodes"),
    O("nproc-per-node", 0, VALUE, JOB, .key = "nproc_per_node", .env = "PET_NPROC_PER_NODE", .metavar = "N|gpu|cpu|auto", .help = "workers on this node"),
    O("rdzv-id", 0, VALUE, JOB, .key = "name", .env = "PET_RDZV_ID", .metavar = "NAME", .help = "the job's name"),
    O("role", 0, VALUE, JOB, .key = "role", .env = "PET_ROLE", .metavar = "ROLE", .help = "this node's role"),
    O("virtual-local-rank", 0, FLAG, JOB, SWITCH, .key = "virtual_local_rank", .value = "true", .env = "PET_VIRTUAL_LOCAL_RANK",
      .help = "each worker sees one GPU and LOCAL_RANK=0"),
    O("module", 'm', MODULE, JOB, SWITCH, .env = "PET_MODULE", .help = "PROGRAM is a Python module: python3 -u -m"),
    O("no-python", 0, NO_PYTHON, JOB, SWITCH, .env = "PET_NO_PYTHON", .help = "run PROGRAM itself, even when it ends in .py"),
    O("run-path", 0, REFUSED, JOB, SWITCH, .env = "PET_RUN_PATH", .help = "refused: give PROGRAM"),
    O("set", 0, SET, JOB, .metavar = "KEY=VALUE", .help = "any key of the job spec, dotted; lists and maps as YAML"),
    O("node-id", 0, VALUE, NODE, .key = "node.id", .metavar = "ID", .help = "identity of this node"),
    O("node-rank", 0, VALUE, NODE, .key = "node.rank", .env = "PET_NODE_RANK", .metavar = "N", .help = "preferred group rank"),
    O("local-addr", 0, VALUE, NODE, .key = "node.address", .env = "PET_LOCAL_ADDR", .metavar = "ADDRESS", .help = "what peers connect to"),
    O("numa-binding", 0, VALUE, NODE, .key = "node.numa_binding", .metavar = "KIND", .help = "CPUs that each worker is bound to"),
    O("rdzv-backend", 0, BACKEND, RENDEZVOUS, .key = "rendezvous.backend", .env = "PET_RDZV_BACKEND", .metavar = "NAME",
      .help = "static, c10d, etcd-v2, etcd, or a value of rendezvous.backend"),
    O("rdzv-endpoint", 0, LIST, RENDEZVOUS, .key = "rendezvous.endpoints", .env = "PET_RDZV_ENDPOINT", .metavar = "HOST:PORT", .help = "where the store is"),
    O("rdzv-conf", 0, CONF, RENDEZVOUS, .env = "PET_RDZV_CONF", .metavar = "K=V,...", .help = "join_timeout, last_call_timeout, timeout, certificates"),
    O("standalone", 0, FLAG, RENDEZVOUS, SWITCH, .key = "rendezvous.backend", .value = "embedded", .env = "PET_STANDALONE",
      .help = "one node, embedded store"),
    O("master-addr", 0, MASTER_ADDR, RENDEZVOUS, .env = "PET_MASTER_ADDR", .metavar = "HOST", .help = "no effect on one node, where workers get its own address"),
    O("master-port", 0, MASTER_PORT, RENDEZVOUS, .key = "master_port", .env = "PET_MASTER_PORT", .metavar = "PORT",
      .help = "MASTER_PORT of the workers; 0 or not given: a free one, fresh in each generation"),
    O("exit-barrier-timeout", 0, VALUE, RENDEZVOUS, .key = "rendezvous.exit_timeout", .flags = ER_OPTION_SECONDS, .env = "PET_EXIT_BARRIER_TIMEOUT",
      .env_too = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", .metavar = "TIME", .help = "wait for the other nodes at the end"),
    O("max-restarts", 0, VALUE, RESTART, .key = "restart.max", .env = "PET_MAX_RESTARTS", .metavar = "N", .help = "restarts caused by worker failures, whole job"),
    O("monitor-interval", 0, IGNORED, RESTART, .env = "PET_MONITOR_INTERVAL", .metavar = "TIME", .help = "no effect: nothing is polled"),
    O("start-method", 0, IGNORED, RESTART, .env = "PET_START_METHOD", .metavar = "NAME", .help = "no effect: workers are always fork and exec"),
    O("signals-to-handle", 0, LIST, STOP, .key = "stop.signals_to_handle", .env = "PET_SIGNALS_TO_HANDLE", .metavar = "SIG,...",
      .help = "signals that make the agent stop its workers"),
    O("shutdown-timeout", 0, VALUE, STOP, .key = "stop.grace", .flags = ER_OPTION_SECONDS, .env = "PET_SHUTDOWN_TIMEOUT",
      .env_too = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", .metavar = "TIME", .help = "between stop signal and KILL"),
    O("log-dir", 0, VALUE, LOG, .key = "log.dir", .env = "PET_LOG_DIR", .metavar = "DIR", .help = "where logs are kept"),
    O("redirects", 'r', VALUE, LOG, .key = "log.redirects", .env = "PET_REDIRECTS", .metavar = "MAP", .help = "streams that go to files: 0, 1, 2, 3 or RANK:VALUE,..."),
    O("tee", 't', VALUE, LOG, .key = "log.tee", .env = "PET_TEE", .metavar = "MAP", .help = "streams that go to file and console"),
    O("local-ranks-filter", 0, FILTER, LOG, .key = "log.console", .env = "PET_LOCAL_RANKS_FILTER", .metavar = "RANK,...", .help = "local ranks shown on the console"),
    O("log-line-prefix-template", 0, PREFIX, LOG, .key = "log.prefix", .env = "PET_LOG_LINE_PREFIX_TEMPLATE",
      .env_too = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", .metavar = "TEXT", .help = "in front of each line on the console"),
    O("duplicate-stdout-filters", 0, LIST, LOG, .key = "log.duplicate_stdout", .env = "PET_DUPLICATE_STDOUT_FILTERS", .metavar = "TEXT,...", .help = "copy matching lines of stdout"),
    O("duplicate-stderr-filters", 0, LIST, LOG, .key = "log.duplicate_stderr", .env = "PET_DUPLICATE_STDERR_FILTERS", .metavar = "TEXT,...", .help = "copy matching lines of stderr"),
    O("event-log-handler", 0, IGNORED, LOG, .env = "PET_EVENT_LOG_HANDLER", .metavar = "NAME", .help = "no effect: events are always written with the logs"),
    O("logs-specs", 0, IGNORED, LOG, .metavar = "NAME", .help = "no effect: see log.*"),
    O("fresh", 0, START, RUN, SWITCH, .number = ER_START_FRESH, .help = "start from the beginning: where checkpoint.dir holds checkpoints, the folder is first renamed, whole, to <dir>.before-<N>; without checkpoint.dir no effect"),
    O("resume", 0, START, RUN, SWITCH, .number = ER_START_RESUME, .help = "start from the newest checkpoint; refused (78) when checkpoint.dir has none or is not set"),
    O("update-spec", 0, UPDATE_SPEC, RUN, SWITCH, .help = "where the job runs with other settings than this node's that must agree, these become its next ones: they hold from the next generation that at least MIN nodes with them can form; without this option such a node is refused (76)"),
    O("check", 0, MODE, RUN, SWITCH, .number = ER_MODE_CHECK, .help = "check the configuration and this host, start nothing"),
    O("dry-run", 0, MODE, RUN, SWITCH, .number = ER_MODE_DRY_RUN, .help = "print each worker's command and environment, start nothing"),
    O("print-config", 0, MODE, RUN, SWITCH, .number = ER_MODE_PRINT_CONFIG, .help = "print the effective configuration with the origin of each value"),
    O("version", 0, MODE, RUN, SWITCH, .number = ER_MODE_VERSION, .help = "print the version"),
    O("help", 'h', MODE, RUN, .flags = ER_OPTION_MAY_HAVE, .number = ER_MODE_HELP, .metavar = "[TOPIC]", .help = "print help, or more about a topic or key"),
    O("print-completion", 0, MODE, RUN, .number = ER_MODE_COMPLETION, .metavar = "SHELL", .help = "print completions for bash, zsh or fish"),
#undef SWITCH
#undef O
};
const size_t er_options_n = ER_ARRAY_N(er_options);
/* clang-format on */

const struct er_key_info *er_key_find(const char *path)
{
    for (size_t i = 0; i < er_keys_n; i++) {
        if (!strcmp(er_keys[i].path, path))
            return &er_keys[i];
    }
    return NULL;
}

const struct er_key_info *er_key_get(const char *path)
{
    const struct er_key_info *key = er_key_find(path);

    assert(key);
    return key;
}

size_t er_key_index(const struct er_key_info *key)
{
    return (size_t)(key - er_keys);
}

const struct er_key_info *er_key_first_in(const char *path)
{
    size_t n = strlen(path);

    for (size_t i = 0; i < er_keys_n; i++) {
        if (!strncmp(er_keys[i].path, path, n) && er_keys[i].path[n] == '.')
            return &er_keys[i];
    }
    return NULL;
}

bool er_key_is_group(const char *path)
{
    return er_key_first_in(path) != NULL;
}

/* Of the names that follow `prefix` ("", "restart.") the one nearest to `word`, which is put behind
 * the prefix. */
static bool nearest_below(const char *prefix, const char *word, char ret_path[ER_KEY_PATH_MAX])
{
    size_t n = strlen(prefix), best = SIZE_MAX;

    for (size_t i = 0; i < er_keys_n; i++) {
        const char *path = er_keys[i].path, *candidate;
        char name[ER_KEY_PATH_MAX];
        size_t length, distance;

        if (strncmp(path, prefix, n) != 0)
            continue;
        length = strcspn(path + n, ".");
        memcpy(name, path + n, length);
        name[length] = '\0';
        candidate = name;
        distance = er_edit_distance(word, name);
        if (distance < best && er_nearest(word, &candidate, 1)) {
            best = distance;
            memcpy(ret_path, prefix, n);
            memcpy(ret_path + n, name, length + 1);
        }
    }
    return best != SIZE_MAX;
}

/* A key whose last name this is, given without its group ("max_files") or in a wrong one. */
static const char *same_last_name(const char *name)
{
    for (size_t i = 0; i < er_keys_n; i++) {
        const char *last = strrchr(er_keys[i].path, '.');

        if (last && !strcmp(last + 1, name))
            return er_keys[i].path;
    }
    return NULL;
}

bool er_key_nearest(const char *path, char ret_path[ER_KEY_PATH_MAX])
{
    const char *dot = strrchr(path, '.'), *near, *all[ER_ARRAY_N(er_keys)];
    size_t n = dot ? (size_t)(dot - path) + 1 : 0;
    char prefix[ER_KEY_PATH_MAX / 2] = "";

    if (n < sizeof(prefix)) {
        memcpy(prefix, path, n);
        prefix[n] = '\0';
        if (nearest_below(prefix, path + n, ret_path))
            return true;
    }
    for (size_t i = 0; i < er_keys_n; i++)
        all[i] = er_keys[i].path;
    near = er_nearest(path, all, er_keys_n);
    if (!near)
        near = same_last_name(path + n);
    if (near)
        memcpy(ret_path, near, strlen(near) + 1);
    return near != NULL;
}

const char *er_key_type_name(enum er_key_type type)
{
    static const char *const names[] = {
#define TYPE_NAME(name, text) [ER_KEY_##name] = text,
        ER_KEY_TYPES(TYPE_NAME)
#undef TYPE_NAME
    };

    return names[type];
}

static const struct {
    const char *topic, *title;
} GROUPS[] = {
#define GROUP_ROW(name, topic_, title_) [ER_GROUP_##name] = {topic_, title_},
    ER_KEY_GROUPS(GROUP_ROW)
#undef GROUP_ROW
};

const char *er_key_group_topic(enum er_key_group group)
{
    return GROUPS[group].topic;
}

const char *er_key_group_title(enum er_key_group group)
{
    return GROUPS[group].title;
}

static bool same_name(const char *option, const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = name[i] == '_' ? '-' : name[i];

        if (!option[i] || option[i] != c)
            return false;
    }
    return !option[n];
}

const struct er_option *er_option_find(const char *name, size_t n)
{
    for (size_t i = 0; i < er_options_n; i++) {
        if (same_name(er_options[i].name, name, n))
            return &er_options[i];
    }
    return NULL;
}

const struct er_option *er_option_find_letter(char letter)
{
    for (size_t i = 0; i < er_options_n; i++) {
        if (letter && er_options[i].letter == letter)
            return &er_options[i];
    }
    return NULL;
}

const char *er_option_nearest(const char *name, size_t n)
{
    const char *names[ER_ARRAY_N(er_options)], *only = NULL;
    char word[64];

    if (!n || n >= sizeof(word))
        return NULL;
    for (size_t i = 0; i < n; i++)
        word[i] = name[i] == '_' ? '-' : name[i];
    word[n] = '\0';
    for (size_t i = 0; i < er_options_n; i++) {
        names[i] = er_options[i].name;
        /* torchrun takes unambiguous beginnings; point at what was meant. */
        if (n >= 3 && !strncmp(names[i], word, n))
            only = names[i];
    }
    return only ? only : er_nearest(word, names, er_options_n);
}
