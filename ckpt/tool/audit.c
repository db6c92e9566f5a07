/* audit: was every sample of every epoch used exactly once in the run that made these parameters?
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/cleanup.h"
#include "ckpt/ckpt.h"
#include "ckpt/ledger.h"
#include "ckpt/tool/tool.h"

typedef unsigned long long ull;

static const char *const SOURCES[] = {
#define NAME(name, text) [ER_LEDGER_FROM_##name] = text,
    ER_LEDGER_SOURCES(NAME)
#undef NAME
};

static uint64_t steps_of_epoch(const struct er_ledger_plan *plan)
{
    return (plan->samples + plan->batch - 1) / plan->batch;
}

/* Samples that the first `steps` steps use; the last step of an epoch may be shorter. */
static uint64_t samples_of(const struct er_ledger_plan *plan, uint64_t steps)
{
    uint64_t epoch = steps_of_epoch(plan), rest = steps % epoch * plan->batch;

    return steps / epoch * plan->samples + rest;
}

static void print_left_out(const struct er_ledger_audit *a)
{
    if (!a->left_out)
        return;
    printf("the samples of %llu step%s were left out, since workers kept failing in %s:",
           (ull)a->left_out, a->left_out == 1 ? "" : "s", a->left_out == 1 ? "it" : "them");
    for (uint64_t i = 0; i < a->left_out && i < ER_LEDGER_LEFT_OUT_MAX; i++)
        printf("%s %llu", i ? "," : "", (ull)a->left_out_steps[i]);
    putchar('\n');
}

static json_t *left_out_json(const struct er_ledger_audit *a)
{
    json_t *list = json_array();

    for (uint64_t i = 0; i < a->left_out && i < ER_LEDGER_LEFT_OUT_MAX; i++)
        json_array_append_new(list, json_integer((json_int_t)a->left_out_steps[i]));
    return list;
}

static void print_text(const struct er_ledger_audit *a, const struct er_ledger_part *parts)
{
    uint64_t epoch = steps_of_epoch(&a->plan);

    printf("%10s %10s %10s %6s  %s\n", "GENERATION", "FROM STEP", "TO STEP", "RANKS", "STATE FROM");
    for (size_t i = 0; i < a->parts_n; i++) {
        if (parts[i].last > parts[i].first)
            printf("%10llu %10llu %10llu %6llu  %s\n", (ull)parts[i].generation,
                   (ull)parts[i].first + 1, (ull)parts[i].last, (ull)parts[i].world,
                   SOURCES[parts[i].from]);
    }
    printf("%llu generations; %llu steps of %llu samples: %llu whole epochs of %llu samples, and "
           "%llu steps\n",
           (ull)a->generations, (ull)a->steps, (ull)a->plan.batch, (ull)(a->steps / epoch),
           (ull)a->plan.samples, (ull)(a->steps % epoch));
    if (a->repeated)
        printf("%llu steps were computed again after a way back, and count once\n",
               (ull)a->repeated);
    if (a->skipped)
        printf("%llu steps were not finite: their samples were left out\n", (ull)a->skipped);
    print_left_out(a);
    if (a->ok)
        printf("ok: each of the %llu samples so far was used exactly once%s\n",
               (ull)samples_of(&a->plan, a->steps),
               a->left_out ? ", but for those that were left out" : "");
    else
        printf("NOT ok: %s\n", a->problem);
}

static void print_json(const struct er_ledger_audit *a, const struct er_ledger_part *parts)
{
    json_t *list = json_array();
    json_t *all;

    for (size_t i = 0; i < a->parts_n; i++)
        json_array_append_new(
            list, json_pack("{s:I,s:I,s:I,s:I,s:s}", "generation", (json_int_t)parts[i].generation,
                            "first", (json_int_t)parts[i].first, "last", (json_int_t)parts[i].last,
                            "world", (json_int_t)parts[i].world, "from", SOURCES[parts[i].from]));
    all = json_pack("{s:b,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "ok", a->ok, "problem",
                    a->problem, "steps", (json_int_t)a->steps, "total_steps", (json_int_t)a->total,
                    "samples", (json_int_t)(a->generations ? samples_of(&a->plan, a->steps) : 0),
                    "samples_in_epoch", (json_int_t)a->plan.samples, "global_batch",
                    (json_int_t)a->plan.batch, "generations", (json_int_t)a->generations,
                    "repeated", (json_int_t)a->repeated, "skipped", (json_int_t)a->skipped,
                    "left_out", left_out_json(a), "parts", list);
    json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
}

/* The newest checkpoint's step; 0: none. */
static uint64_t newest(const char *dir)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    size_t n = 0;

    return er_ckpt_list(dir, &steps, &n, NULL) == 0 && n > 0 ? steps[n - 1] : 0;
}

int tool_audit(const struct tool_args *args)
{
    ER_CLEANUP(er_cleanup_free) struct er_ledger_entry *entries = NULL;
    ER_CLEANUP(er_cleanup_free) struct er_ledger_part *parts = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_ledger_audit audit;
    size_t n = 0;
    int rc = er_ledger_read(args->dir, &entries, &n, &err);

    if (rc == -ENOENT || rc == -ENOTDIR) {
        fprintf(stderr, "elastic-ckpt: '%s' holds no ledger\n", args->dir);
        return TOOL_NO_SUCH;
    }
    if (rc == 0 && !(parts = calloc(n + 1, sizeof(*parts))))
        rc = er_error_set(&err, -ENOMEM, "audit: out of memory");
    if (rc < 0)
        return tool_fail(rc, &err);
    er_ledger_audit(entries, n, newest(args->dir), parts, &audit);
    if (args->json)
        print_json(&audit, parts);
    else if (audit.generations)
        print_text(&audit, parts);
    else
        printf("NOT ok: %s\n", audit.problem);
    return audit.ok ? TOOL_OK : TOOL_NO;
}
