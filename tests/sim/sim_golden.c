#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

/*
 * Golden traces: scenarios in a plain world (no drift, no chance), told line by line and compared
 * with the file that holds them:
 *
 *   # what happens, in words
 *   : n=3 min=2 max=3            the job's shape, where it differs from the usual one below
 *   : 10.5 n1 FAIL 1             from that second on: whom, what (a fault of the simulation, or a
 *   : 10.5 sealing leader KILL   step below), amount; with a moment: as soon as the leader is there
 *                                (an empty line, then the trace)
 */

#define STEPS_MAX 24
#define FILES_MAX 64
#define TEXT_MAX  (1 << 20)

static const char usual[] =
    "seed=1 n=3 min=2 max=3 budget=3 window=0 replacement=0 strikes=0 cooldown=120 loss_limit=0 "
    "planned=0 unable=0 new_runs=0 stubborn=5 prepare=200 depart=100 spread=1 interval=10 focus=6 "
    "until=30 ";

struct step {
    uint64_t at_us, amount; /* from the beginning */
    char moment[16], node[16], what[16];
    bool done;
};

static struct step steps[STEPS_MAX];
static size_t step_n;

bool sim_plain;

/* ---- steps ---- */

static int leading(const struct sim *sim)
{
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].driver && sim->nodes[i].driver->core->lead >= ER_LEAD_REST)
            return i;
    }
    return -1;
}

/* Moments are states of the leader's machine. */
static bool is_moment(const struct sim *sim, const char *moment)
{
    int i = leading(sim);
    enum er_rdzv_lead lead = i < 0 ? ER_LEAD_NO : sim->nodes[i].driver->core->lead;

    if (!moment[0])
        return true;
    if (strcmp(moment, "assigning") == 0)
        return lead == ER_LEAD_ASSIGNING;
    if (strcmp(moment, "sealing") == 0)
        return lead == ER_LEAD_SEALING;
    return strcmp(moment, "ahead") == 0 && sim->world.phase == ER_WORLD_SEALED && sim->world.next;
}

static struct sim_node *find(struct sim *sim, const char *name)
{
    int i = strcmp(name, "leader") == 0 ? leading(sim) : name[0] == 'n' ? atoi(name + 1) : -1;

    return i >= 0 && i < sim->n ? &sim->nodes[i] : NULL;
}

/* Steps beside the simulation's faults. */
static bool own_step(struct sim *sim, struct sim_node *node, const struct step *s)
{
    if (strcmp(s->what, "UP") == 0) {
        node->restart_us = sim->now_us;
    } else if (strcmp(s->what, "FRESH") == 0 || strcmp(s->what, "RESUME") == 0) {
        node->new_run = s->what[0] == 'F' ? ER_NEW_RUN_FRESH : ER_NEW_RUN_RESUME;
        node->restart_us = sim->now_us;
    } else if (strcmp(s->what, "TWIN") == 0) { /* of another node: the same name, another host */
        snprintf(node->id, sizeof(node->id), "n%u", (unsigned)s->amount % SIM_NODES);
        node->restart_us = sim->now_us;
    } else if (strcmp(s->what, "KILL") == 0) { /* with its agent; nobody starts it again */
        sim_act(sim, node, SIM_CRASH_SLOW, 0);
        node->restart_us = 0;
    } else if (strcmp(s->what, "RESIZE") == 0) { /* 102: bounds 1:2 */
        struct er_ask a = {.kind = ER_ASK_SCALE,
                           .min_nodes = (uint32_t)(s->amount / 100),
                           .max_nodes = (uint32_t)(s->amount % 100)};

        er_driver_request(node->driver, "resize", &a, NULL, NULL);
    } else {
        return false;
    }
    return true;
}

static void take(struct sim *sim, struct step *s)
{
    struct sim_node *node = find(sim, s->node);
    unsigned kind = 0;

    if (sim->now_us < sim->begun_us + s->at_us || !is_moment(sim, s->moment) || !node)
        return;
    s->done = true;
    sim_tell(sim, "-----", "%s %s", s->what, node->driver ? node->label : s->node);
    if (!own_step(sim, node, s)) {
        while (kind < SIM_FAULT_COUNT && strcmp(sim_fault_names[kind], s->what) != 0)
            kind++;
        if (kind == SIM_FAULT_COUNT || !node->driver ||
            !sim_act(sim, node, (enum sim_fault_kind)kind, s->amount))
            sim_fail(sim, "step %s of %s cannot be taken", s->what, s->node);
    }
    sim_dirty(sim);
}

void sim_steps(struct sim *sim)
{
    for (size_t i = 0; i < step_n; i++) {
        if (!steps[i].done)
            take(sim, &steps[i]);
    }
}

uint64_t sim_next_step(const struct sim *sim)
{
    uint64_t at = ER_FOREVER;

    for (size_t i = 0; i < step_n; i++) {
        uint64_t due = sim->begun_us + steps[i].at_us;

        if (!steps[i].done && due > sim->now_us && due < at)
            at = due;
    }
    return at;
}

/* A node whose first step starts it is not there before. */
bool sim_starts_later(const struct sim_node *node)
{
    for (size_t i = 0; i < step_n; i++) {
        if (strcmp(steps[i].node, node->id) == 0)
            return strcmp(steps[i].what, "UP") == 0 || strcmp(steps[i].what, "TWIN") == 0;
    }
    return false;
}

/* ---- files ---- */

static bool parse_step(const char *line)
{
    struct step *s = &steps[step_n];
    double at;
    unsigned long long amount = 0;

    memset(s, 0, sizeof(*s));
    if (step_n == STEPS_MAX)
        return false;
    if (sscanf(line, "%lf %15[a-z] %15s %15[A-Z_] %llu", &at, s->moment, s->node, s->what,
               &amount) < 4 ||
        strcmp(s->moment, "n") == 0 || strcmp(s->moment, "leader") == 0) {
        s->moment[0] = 0;
        if (sscanf(line, "%lf %15s %15[A-Z_] %llu", &at, s->node, s->what, &amount) < 3)
            return false;
    }
    s->at_us = (uint64_t)(at * 1000 + 0.5) * 1000;
    s->amount = amount;
    step_n++;
    return true;
}

/* The head, up to the first empty line; false: it is none. Returns its end. */
static bool parse_head(struct sim *sim, const char *text, const char **ret_end)
{
    char shape[1024], line[256];
    size_t used = (size_t)snprintf(shape, sizeof(shape), "%s", usual);

    step_n = 0;
    while (*text && *text != '\n') {
        size_t n = strcspn(text, "\n");

        if (n >= sizeof(line) || text[n] == 0 || (text[0] != '#' && text[0] != ':'))
            return false;
        snprintf(line, sizeof(line), "%.*s", (int)n, text);
        text += n + 1;
        if (line[0] == '#')
            continue;
        if (strchr(line, '='))
            used += (size_t)snprintf(shape + used, sizeof(shape) - used, "%s ", line + 2);
        else if (!parse_step(line + 1))
            return false;
        if (used >= sizeof(shape))
            return false;
    }
    *ret_end = text + (*text == '\n');
    return sim_parse(sim, shape);
}

static bool read_all(const char *path, char *ret_text)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(ret_text, 1, TEXT_MAX - 1, f) : 0;

    ret_text[n] = 0;
    if (f)
        fclose(f);
    return f != NULL;
}

static bool write_all(const char *path, const char *head, size_t head_n, const char *trace)
{
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(head, 1, head_n, f) == head_n && fputs(trace, f) >= 0;

    if (f && fclose(f))
        ok = false;
    return ok;
}

static void print_line(const char *head, const char *line)
{
    printf("# %s", head);
    fwrite(line, 1, strcspn(line, "\n"), stdout);
    putchar('\n');
}

/* The first line in which they differ, and two before it. */
static void print_difference(const char *path, const char *text, const char *want, const char *have)
{
    const char *lines[3] = {want, want, want};
    unsigned number = 1;

    while (*text && text < want)
        number += *text++ == '\n';
    for (;;) {
        size_t a = strcspn(want, "\n"), b = strcspn(have, "\n");

        if (a != b || memcmp(want, have, a) != 0 || !want[a] || !have[b])
            break;
        lines[0] = lines[1];
        lines[1] = lines[2];
        want += a + 1;
        have += b + 1;
        lines[2] = want;
        number++;
    }
    printf("# %s:%u: the trace differs from here on\n", path, number);
    for (const char *at = lines[0]; at < want; at += strcspn(at, "\n") + 1)
        print_line("    ", at);
    print_line("  - ", *want ? want : "(end)");
    print_line("  + ", *have ? have : "(end)");
}

/* The trace of a scenario; NULL: it broke a rule. The caller frees it. */
static char *record(struct sim *sim, const char *path)
{
    char *trace = NULL;
    size_t n = 0;
    bool ok;

    sim_story = open_memstream(&trace, &n);
    if (!sim_story)
        abort();
    ok = sim_run_plain(sim);
    fclose(sim_story);
    sim_story = NULL;
    for (size_t i = 0; ok && i < step_n; i++) {
        if (!steps[i].done)
            sim_fail(sim, "step %s of %s was never taken", steps[i].what, steps[i].node);
    }
    if (!sim->broken)
        return trace;
    printf("# %s: %s\n%s", path, sim->why, trace);
    free(trace);
    return NULL;
}

static bool run_file(struct sim *sim, const char *path, bool update)
{
    static char text[TEXT_MAX];
    const char *end;
    char *trace;
    bool same;

    if (!read_all(path, text) || !parse_head(sim, text, &end)) {
        printf("# %s: not a scenario\n", path);
        return false;
    }
    trace = record(sim, path);
    if (!trace)
        return false;
    same = strcmp(end, trace) == 0;
    if (!same && update)
        same = write_all(path, text, (size_t)(end - text), trace);
    else if (!same)
        print_difference(path, text, end, trace);
    free(trace);
    return same;
}

static int is_text(const struct dirent *e)
{
    size_t n = strlen(e->d_name);

    return n > 4 && strcmp(e->d_name + n - 4, ".txt") == 0;
}

int sim_golden(struct sim *sim, const char *folder, bool update)
{
    struct dirent **list;
    int n = scandir(folder, &list, is_text, alphasort), bad = 0;

    sim_plain = true;
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];

        snprintf(path, sizeof(path), "%s/%s", folder, list[i]->d_name);
        bad += !run_file(sim, path, update);
        free(list[i]);
    }
    if (n > 0)
        free(list);
    if (bad)
        printf("# where that is intended: sim_rendezvous golden %s --update, and look at the "
               "difference\n",
               folder);
    printf("%d golden traces, %d differ\n", n < 0 ? 0 : n, bad);
    return bad || n <= 0;
}
