/* elastic-ckpt: look at, check, thin out and export checkpoints. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "ckpt/ckpt.h"
#include "ckpt/tool/tool.h"

#define PROGRESS_US   (100 * ER_US_PER_MS)
#define SHARD_DEFAULT (5ull << 30)

static const char USAGE[] =
    "usage: elastic-ctl -f JOB.yaml ckpt VERB [options]\n"
    "       elastic-ctl --job NAME ckpt VERB [options]      a job that runs on this host\n"
    "       elastic-ctl ckpt VERB [options] DIR             or JOB.yaml\n"
    "\n"
    "  list DIR             the checkpoints in a folder, oldest first\n"
    "  verify DIR           every byte of the newest one (--step N, --all) against its digests\n"
    "  inspect DIR          what the newest one (--step N) holds\n"
    "  gc DIR               remove what no rule wants: --keep-last N [--keep-every K]\n"
    "                       [--keep-best N [--more-is-better]] [--dry-run]; leftovers of dead\n"
    "                       writers too. Never the newest one that verifies, nor a newer one\n"
    "  export DIR OUT       the newest one (--step N) for other programs: OUT.safetensors is one\n"
    "                       file, any other OUT a folder of files of about --shard-size (5GiB)\n"
    "                       with model.safetensors.index.json\n"
    "  audit DIR            was every sample of every epoch used exactly once? (`elastic-ctl "
    "audit`)\n"
    "\n"
    "  --json               one JSON object instead of text\n"
    "\n"
    "exit codes: 0 done, 1 the answer is no (it does not verify, or add up), 64 usage, 66 no such "
    "checkpoint,\n"
    "74 reading or writing failed\n";

enum verb { LIST, VERIFY, INSPECT, GC, EXPORT, AUDIT, VERB_COUNT };

static const struct {
    const char *name;
    int operands;
    int (*run)(const struct tool_args *args);
} verbs[VERB_COUNT] = {
    [LIST] = {"list", 1, tool_list},          [VERIFY] = {"verify", 1, tool_verify},
    [INSPECT] = {"inspect", 1, tool_inspect}, [GC] = {"gc", 1, tool_gc},
    [EXPORT] = {"export", 2, tool_export},    [AUDIT] = {"audit", 1, tool_audit},
};

enum option_kind { FLAG, COUNT32, COUNT64, SIZE };

#define ON(verb)  (1u << (verb))
#define ON_ANY    (ON(VERB_COUNT) - 1)
#define ON_A_STEP (ON(VERIFY) | ON(INSPECT) | ON(EXPORT))

static const struct {
    const char *name;
    enum option_kind kind;
    unsigned on;        /* the verbs that take it */
    size_t field, flag; /* flag: a bool that says it was given; 0: none */
} options[] = {
    {"--json", FLAG, ON_ANY, offsetof(struct tool_args, json), 0},
    {"--all", FLAG, ON(VERIFY), offsetof(struct tool_args, all), 0},
    {"--dry-run", FLAG, ON(GC), offsetof(struct tool_args, dry_run), 0},
    {"--more-is-better", FLAG, ON(GC), offsetof(struct tool_args, more_is_better), 0},
    {"--step", COUNT64, ON_A_STEP, offsetof(struct tool_args, step),
     offsetof(struct tool_args, has_step)},
    {"--keep-last", COUNT32, ON(GC), offsetof(struct tool_args, keep_last), 0},
    {"--keep-best", COUNT32, ON(GC), offsetof(struct tool_args, keep_best), 0},
    {"--keep-every", COUNT64, ON(GC), offsetof(struct tool_args, keep_every), 0},
    {"--shard-size", SIZE, ON(EXPORT), offsetof(struct tool_args, shard_bytes), 0},
};

static int usage(const char *what, const char *which)
{
    fprintf(stderr, "elastic-ckpt: %s%s%s\n%s", what, which ? ": " : "", which ? which : "", USAGE);
    return TOOL_USAGE;
}

static int set_value(struct tool_args *args, size_t i, const char *value, struct er_error *err)
{
    void *field = (char *)args + options[i].field;
    uint64_t number = 0;
    int rc;

    if (options[i].kind == SIZE)
        rc = er_parse_size(value, &number, err);
    else
        rc = er_parse_u64(value, 0, options[i].kind == COUNT32 ? UINT32_MAX : UINT64_MAX, &number,
                          err);
    if (rc < 0)
        return rc;
    if (options[i].kind == COUNT32)
        *(uint32_t *)field = (uint32_t)number;
    else
        *(uint64_t *)field = number;
    if (options[i].flag)
        *((bool *)args + options[i].flag) = true;
    return 0;
}

static long find_option(const char *name, size_t n)
{
    for (size_t i = 0; i < ER_ARRAY_N(options); i++)
        if (strlen(options[i].name) == n && strncmp(options[i].name, name, n) == 0)
            return (long)i;
    return -1;
}

/* --name, --name value or --name=value at argv[*at]. 0, or the exit status. */
static int parse_option(struct tool_args *args, enum verb verb, char **argv, int *at)
{
    const char *arg = argv[*at], *value = strchr(arg, '=');
    struct er_error err = ER_ERROR_INIT;
    long i = find_option(arg, value ? (size_t)(value - arg) : strlen(arg));

    if (i < 0)
        return usage("unknown option", arg);
    if (!(options[i].on & ON(verb))) {
        fprintf(stderr, "elastic-ckpt: '%s' has no option %s\n", verbs[verb].name, options[i].name);
        return TOOL_USAGE;
    }
    if (options[i].kind == FLAG) {
        if (value)
            return usage("takes no value", arg);
        *((bool *)args + options[i].field) = true;
        return 0;
    }
    value = value ? value + 1 : argv[++*at];
    if (!value)
        return usage("a value is missing after", arg);
    if (set_value(args, (size_t)i, value, &err) < 0) {
        fprintf(stderr, "elastic-ckpt: %s: %s\n", options[i].name, err.text);
        return TOOL_USAGE;
    }
    return 0;
}

static int parse(struct tool_args *args, enum verb verb, int argc, char **argv)
{
    int operands = verbs[verb].operands;
    const char **to[] = {&args->dir, &args->out};
    int n = 0;

    for (int i = 2; i < argc; i++) {
        int rc = 0;

        if (argv[i][0] == '-')
            rc = parse_option(args, verb, argv, &i);
        else if (n == operands)
            rc = usage("did not expect", argv[i]);
        else
            *to[n++] = argv[i];
        if (rc)
            return rc;
    }
    if (args->all && args->has_step)
        return usage("--all and --step exclude each other", NULL);
    return n < operands ? usage("an operand is missing", NULL) : 0;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* An answer that did not reach its reader is none. */
static int end_output(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "elastic-ckpt: write the answer: %s\n", er_error_name(-errno));
    return TOOL_IO;
}

int main(int argc, char **argv)
{
    struct tool_args args = {.shard_bytes = SHARD_DEFAULT};

    if (argc < 2)
        return usage("which verb?", NULL);
    if (asks_for_help(argc, argv)) {
        fputs(USAGE, stdout);
        return end_output(TOOL_OK);
    }
    for (enum verb i = 0; i < VERB_COUNT; i++) {
        if (strcmp(argv[1], verbs[i].name) == 0) {
            int rc = parse(&args, i, argc, argv);
            return rc ? rc : end_output(verbs[i].run(&args));
        }
    }
    return usage("unknown verb", argv[1]);
}

const char *tool_plain(const char *text, char *ret, size_t cap)
{
    size_t n = 0;

    for (; text[n] && n + 1 < cap; n++)
        ret[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
    ret[n] = '\0';
    return ret;
}

int tool_status(int rc)
{
    if (rc == 0)
        return TOOL_OK;
    return rc == ER_E_CORRUPT || rc == ER_E_UNSUPPORTED ? TOOL_NO : TOOL_IO;
}

int tool_fail(int rc, const struct er_error *err)
{
    char text[sizeof(err->text)];

    fprintf(stderr, "elastic-ckpt: %s\n", tool_plain(err->text, text, sizeof(text)));
    return tool_status(rc);
}

int tool_steps(const struct tool_args *args, uint64_t **ret, size_t *ret_n)
{
    struct er_error err = ER_ERROR_INIT;
    int rc = er_ckpt_list(args->dir, ret, ret_n, &err);
    int status = rc < 0 ? tool_fail(rc, &err) : 0;

    return rc == -ENOENT || rc == -ENOTDIR ? TOOL_NO_SUCH : status;
}

int tool_step(const struct tool_args *args, uint64_t *ret_step)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    size_t n = 0;
    int status = tool_steps(args, &steps, &n);

    if (status)
        return status;
    for (size_t i = n; i-- > 0;) {
        if (!args->has_step || steps[i] == args->step) {
            *ret_step = steps[i];
            return 0;
        }
    }
    if (args->has_step)
        fprintf(stderr, "elastic-ckpt: '%s' has no checkpoint of step %llu\n", args->dir,
                (unsigned long long)args->step);
    else
        fprintf(stderr, "elastic-ckpt: '%s' has no checkpoint\n", args->dir);
    return TOOL_NO_SUCH;
}

void tool_progress(void *user, uint64_t done, uint64_t total)
{
    struct tool_progress *p = user;
    uint64_t now = er_now_us();

    if (!isatty(STDERR_FILENO) || now - p->shown_us < PROGRESS_US)
        return;
    p->shown_us = now;
    fprintf(stderr, "\r%s step %llu: %3llu %% of %.1f MiB ", p->what, (unsigned long long)p->step,
            (unsigned long long)(total ? done * 100 / total : 100), (double)total / (1 << 20));
}

void tool_progress_end(struct tool_progress *p)
{
    if (p->shown_us)
        fprintf(stderr, "\r\033[K");
    p->shown_us = 0;
}
