/* list, verify, inspect, gc, export. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fence.h"
#include "ckpt/gc.h"
#include "ckpt/slices.h"
#include "ckpt/tool/tool.h"
#include "ckpt/verify.h"

typedef unsigned long long ull;

/* JSON holds no text that is not UTF-8, which a folder's name and an error about it may be. */
static json_t *text_json(const char *text)
{
    json_t *json = json_string(text);
    char plain[PATH_MAX];

    return json ? json : json_string(tool_plain(text, plain, sizeof(plain)));
}

static void print_json(json_t *json)
{
    json_dumpf(json, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(json);
}

static uint64_t total_bytes(const struct er_manifest *m)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < m->shard_n; i++)
        bytes += m->shards[i].bytes;
    return bytes;
}

static int read_step(const char *dir, uint64_t step, struct er_manifest *ret, struct er_error *err)
{
    char folder[PATH_MAX];
    int rc = er_ckpt_step_path(dir, step, folder, err);

    rc = rc == 0 ? er_ckpt_read_manifest(folder, ret, err) : rc;
    return rc < 0 ? er_error_wrap(err, rc, "step %llu", (ull)step) : 0;
}

/* ---- list ---- */

static json_t *summary_json(uint64_t step, const struct er_manifest *m)
{
    json_t *json =
        json_pack("{s:I,s:I,s:I,s:i,s:I,s:I,s:s}", "step", (json_int_t)step, "generation",
                  (json_int_t)m->meta.generation, "bytes", (json_int_t)total_bytes(m), "world_size",
                  m->meta.world_size, "tensors", (json_int_t)m->tensor_n, "shards",
                  (json_int_t)m->shard_n, "run", m->meta.run);

    if (m->meta.has_metric)
        json_object_set_new(json, "metric", json_real(m->meta.metric));
    return json;
}

static void list_one(const struct tool_args *args, uint64_t step, json_t *all)
{
    struct er_error err = ER_ERROR_INIT;
    char text[sizeof(err.text)];
    struct er_manifest m;

    if (read_step(args->dir, step, &m, &err) < 0) {
        if (args->json)
            json_array_append_new(all, json_pack("{s:I,s:o}", "step", (json_int_t)step, "error",
                                                 text_json(err.text)));
        else
            printf("%12llu  %s\n", (ull)step, tool_plain(err.text, text, sizeof(text)));
        return;
    }
    if (args->json)
        json_array_append_new(all, summary_json(step, &m));
    else
        printf("%12llu  generation %llu, %d ranks, %zu tensors, %.1f MiB\n", (ull)step,
               (ull)m.meta.generation, m.meta.world_size, m.tensor_n,
               (double)total_bytes(&m) / (1 << 20));
    er_manifest_done(&m);
}

int tool_list(const struct tool_args *args)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    size_t n = 0;
    int status = tool_steps(args, &steps, &n);
    json_t *all;

    if (status)
        return status;
    all = json_array();
    for (size_t i = 0; i < n; i++)
        list_one(args, steps[i], all);
    if (args->json)
        print_json(json_pack("{s:o,s:o}", "dir", text_json(args->dir), "checkpoints", all));
    else
        json_decref(all);
    return TOOL_OK;
}

/* ---- verify ---- */

/* Returns the exit status of this one; TOOL_NO_SUCH: removed while it was looked at. */
static int verify_step(const struct tool_args *args, uint64_t step, json_t *all)
{
    struct tool_progress progress = {.what = "verify", .step = step};
    const struct er_fetch_opts opts = {.progress = tool_progress, .user = &progress};
    struct er_error err = ER_ERROR_INIT;
    char folder[PATH_MAX], text[sizeof(err.text)];
    int rc = er_ckpt_step_path(args->dir, step, folder, &err), status;

    if (rc == 0)
        rc = er_ckpt_verify_folder(folder, &opts, &err);
    tool_progress_end(&progress);
    status = tool_status(rc);
    if (rc < 0 && access(folder, F_OK) < 0 && errno == ENOENT) {
        status = TOOL_NO_SUCH;
        er_error_set(&err, -ENOENT, "removed meanwhile");
    }
    if (args->json)
        json_array_append_new(all, json_pack("{s:I,s:b,s:o}", "step", (json_int_t)step, "ok",
                                             rc == 0, "error", text_json(rc < 0 ? err.text : "")));
    else
        printf("step %llu: %s\n", (ull)step,
               rc == 0 ? "ok" : tool_plain(err.text, text, sizeof(text)));
    return status;
}

/* Of several: one that is bad says more than one that could not be read; what retention removed
 * meanwhile says nothing. */
static int worse(int status, int other)
{
    if (other == TOOL_NO_SUCH || status == TOOL_NO)
        return status;
    return other == TOOL_OK ? status : other;
}

int tool_verify(const struct tool_args *args)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    uint64_t step = 0;
    size_t n = 0;
    int status = tool_step(args, &step);
    json_t *all;

    if (status == TOOL_OK && args->all)
        status = tool_steps(args, &steps, &n);
    if (status)
        return status;
    all = json_array();
    if (!args->all)
        status = verify_step(args, step, all);
    for (size_t i = 0; i < n; i++)
        status = worse(status, verify_step(args, steps[i], all));
    if (args->json)
        print_json(json_pack("{s:b,s:o}", "ok", status == TOOL_OK, "checkpoints", all));
    else
        json_decref(all);
    return status;
}

/* ---- inspect ---- */

static void format_shape(const struct er_manifest_tensor *t, char ret[96])
{
    size_t n = 0;

    for (uint32_t i = 0; i < t->ndim && n < 96; i++)
        n += (size_t)snprintf(ret + n, 96 - n, "%s%llu", i ? " x " : "", (ull)t->shape[i]);
}

static void inspect_text(const struct er_manifest *m)
{
    const struct er_meta *meta = &m->meta;
    char text[sizeof(meta->user)];

    printf("step %llu, generation %llu, run %s, %d ranks, seed %llu\n", (ull)meta->applied,
           (ull)meta->generation, meta->run[0] ? tool_plain(meta->run, text, sizeof(text)) : "-",
           meta->world_size, (ull)meta->seed);
    printf("samples %llu, global batch %llu\n", (ull)meta->samples, (ull)meta->global_batch);
    for (size_t i = 0; i < m->chain_n; i++)
        printf("before: generation %llu from step %llu\n", (ull)m->chain[i].generation,
               (ull)m->chain[i].first_step);
    if (meta->has_metric)
        printf("metric %.9g\n", meta->metric);
    if (meta->user[0])
        printf("user %s\n", tool_plain(meta->user, text, sizeof(text)));
    for (uint32_t i = 0; i < m->shard_n; i++)
        printf("%-40s %12llu bytes\n", m->shards[i].name, (ull)m->shards[i].bytes);
    for (size_t i = 0; i < m->tensor_n; i++) {
        const struct er_manifest_tensor *t = &m->tensors[i];
        char shape[96] = "";

        format_shape(t, shape);
        printf("%-40s %s %s\n", t->name, er_ckpt_dtype_name(t->dtype), shape);
    }
}

/* The body of the manifest as it is, without the table of pieces. */
static json_t *inspect_json(uint64_t step, const struct er_manifest *m)
{
    json_t *json = summary_json(step, m), *tensors = json_array(), *chain = json_array();

    for (size_t i = 0; i < m->tensor_n; i++) {
        const struct er_manifest_tensor *t = &m->tensors[i];
        json_t *shape = json_array();

        for (uint32_t d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(tensors, json_pack("{s:s,s:s,s:o}", "name", t->name, "dtype",
                                                 er_ckpt_dtype_name(t->dtype), "shape", shape));
    }
    for (size_t i = 0; i < m->chain_n; i++)
        json_array_append_new(chain, json_pack("{s:I,s:I}", "generation",
                                               (json_int_t)m->chain[i].generation, "first_step",
                                               (json_int_t)m->chain[i].first_step));
    json_object_set_new(json, "seed", json_sprintf("%llu", (ull)m->meta.seed));
    json_object_set_new(json, "samples", json_integer((json_int_t)m->meta.samples));
    json_object_set_new(json, "global_batch", json_integer((json_int_t)m->meta.global_batch));
    json_object_set_new(json, "user", json_string(m->meta.user));
    json_object_set_new(json, "tensors", tensors);
    json_object_set_new(json, "chain", chain);
    return json;
}

int tool_inspect(const struct tool_args *args)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_manifest m;
    uint64_t step = 0;
    int rc = tool_step(args, &step);

    if (rc)
        return rc;
    rc = read_step(args->dir, step, &m, &err);
    if (rc < 0)
        return tool_fail(rc, &err);
    if (args->json)
        print_json(inspect_json(step, &m));
    else
        inspect_text(&m);
    er_manifest_done(&m);
    return TOOL_OK;
}

/* ---- gc ---- */

/* The job's retention, or another gc, was faster. */
static bool is_gone(const char *dir, uint64_t step)
{
    char folder[PATH_MAX];

    return er_ckpt_step_path(dir, step, folder, NULL) == 0 && access(folder, F_OK) < 0 &&
           errno == ENOENT;
}

#define GC_LOOKS_MAX 100 /* beside a job that publishes and removes; each time it did so once */

/* As newest_valid(), of those that the folder has now. *ret_gone: one was removed meanwhile, so a
 * newer one may be there. */
static int find_valid(const struct tool_args *args, uint64_t *ret_step, uint64_t *ret_generation,
                      size_t *ret_n, bool *ret_gone)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    struct er_error err = ER_ERROR_INIT;
    char text[sizeof(err.text)];
    int status = tool_steps(args, &steps, ret_n);

    *ret_gone = false;
    if (status)
        return status;
    for (size_t i = *ret_n; i-- > 0;) {
        struct er_manifest m;

        if (er_ckpt_verify(args->dir, steps[i], &err) < 0 ||
            read_step(args->dir, steps[i], &m, &err) < 0) {
            *ret_gone = is_gone(args->dir, steps[i]);
            if (*ret_gone)
                return TOOL_NO;
            fprintf(stderr, "elastic-ckpt: step %llu is left alone: %s\n", (ull)steps[i],
                    tool_plain(err.text, text, sizeof(text)));
            continue;
        }
        *ret_step = steps[i];
        *ret_generation = m.meta.generation;
        er_manifest_done(&m);
        return 0;
    }
    return TOOL_NO;
}

/* The newest one that verifies: nothing from there on is touched. 0, or the exit status. */
static int newest_valid(const struct tool_args *args, uint64_t *ret_step, uint64_t *ret_generation)
{
    bool gone;
    size_t n = 0;
    int status, looks = 0;

    do
        status = find_valid(args, ret_step, ret_generation, &n, &gone);
    while (gone && ++looks < GC_LOOKS_MAX);
    if (status != TOOL_NO)
        return status;
    fprintf(stderr, "elastic-ckpt: '%s' has no checkpoint that verifies; nothing is removed\n",
            args->dir);
    return n ? TOOL_NO : TOOL_NO_SUCH;
}

static void print_gone(const struct tool_args *args, uint64_t step, json_t *steps)
{
    json_array_append_new(steps, json_integer((json_int_t)step));
    if (!args->json)
        printf("%s step %llu\n", args->dry_run ? "would remove" : "removed", (ull)step);
}

struct gc_report {
    const struct tool_args *args;
    json_t *steps;
};

static void on_gone(void *user, uint64_t step)
{
    const struct gc_report *report = user;

    print_gone(report->args, step, report->steps);
}

/* In the name of the generation that is newest in the folder, which may have begun after the newest
 * checkpoint: its writers and this do not disturb each other. */
static int remove_unwanted(const struct tool_args *args, const struct er_ckpt_opts *opts,
                           uint64_t current, uint64_t generation, json_t *steps,
                           size_t *ret_leftovers, struct er_error *err)
{
    struct gc_report report = {args, steps};
    uint64_t begun = 0;
    int rc = er_fence_newest(args->dir, &begun, err);

    if (begun > generation)
        generation = begun;
    if (rc == 0)
        rc = er_ckpt_gc(args->dir, opts, current, generation, on_gone, &report, err);
    if (rc == 0 && generation > 0)
        rc = er_ckpt_clean(args->dir, generation - 1, NULL, ret_leftovers, err);
    return rc;
}

static int plan_only(const struct tool_args *args, const struct er_ckpt_opts *opts,
                     uint64_t current, json_t *steps, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *gone = NULL;
    size_t n = 0;
    int rc = er_ckpt_gc_plan(args->dir, opts, current, &gone, &n, err);

    for (size_t i = 0; rc == 0 && i < n; i++)
        print_gone(args, gone[i], steps);
    return rc;
}

int tool_gc(const struct tool_args *args)
{
    const struct er_ckpt_opts opts = {.keep_last = args->keep_last,
                                      .keep_every = args->keep_every,
                                      .keep_best = args->keep_best,
                                      .more_is_better = args->more_is_better};
    struct er_error err = ER_ERROR_INIT;
    uint64_t current = 0, generation = 0;
    size_t leftovers = 0;
    json_t *steps;
    int rc;

    if (args->keep_last == 0) {
        fprintf(stderr, "elastic-ckpt: gc needs --keep-last N, N at least 1\n");
        return TOOL_USAGE;
    }
    rc = newest_valid(args, &current, &generation);
    if (rc)
        return rc;
    steps = json_array();
    rc = args->dry_run ? plan_only(args, &opts, current, steps, &err)
                       : remove_unwanted(args, &opts, current, generation, steps, &leftovers, &err);
    if (rc < 0) {
        json_decref(steps);
        return tool_fail(rc, &err);
    }
    if (args->json)
        print_json(json_pack("{s:o,s:I,s:b}", "removed", steps, "leftovers", (json_int_t)leftovers,
                             "dry_run", args->dry_run));
    else
        json_decref(steps);
    return TOOL_OK;
}

/* ---- export ---- */

int tool_export(const struct tool_args *args)
{
    struct tool_progress progress = {.what = "export"};
    struct er_error err = ER_ERROR_INIT;
    uint64_t step = 0;
    size_t files = 0;
    int rc = tool_step(args, &step);

    if (rc)
        return rc;
    progress.step = step;
    rc = tool_export_step(args->dir, step, args->out, args->shard_bytes, &progress, &files, &err);
    tool_progress_end(&progress);
    if (rc < 0)
        return tool_fail(rc, &err);
    if (args->json)
        print_json(json_pack("{s:I,s:o,s:I}", "step", (json_int_t)step, "out", text_json(args->out),
                             "files", (json_int_t)files));
    else
        printf("step %llu: %zu file%s in %s\n", (ull)step, files, files == 1 ? "" : "s", args->out);
    return TOOL_OK;
}
