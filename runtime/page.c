#include "base/page.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/parse.h"
#include "runtime/context_internal.h"

/* The page that a worker shares with its agent: notices come, progress goes. */

int er_ctx_map_page(struct er_ctx *ctx, struct er_error *err)
{
    const char *text = getenv("ELASTIC_PAGE_FD");
    uint64_t fd;
    if (!text)
        return 0;
    int rc = er_parse_u64(text, 0, INT_MAX, &fd, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "ELASTIC_PAGE_FD");
    struct stat st;
    if (fstat((int)fd, &st) < 0)
        return er_error_errno(err, "ELASTIC_PAGE_FD=%s", text);
    if (st.st_size < ER_PAGE_BYTES)
        return er_error_set(err, ER_E_PROTOCOL, "ELASTIC_PAGE_FD=%s is not a worker page", text);
    void *page = mmap(NULL, ER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    if (page == MAP_FAILED)
        return er_error_errno(err, "map ELASTIC_PAGE_FD=%s", text);
    ctx->page = page;
    if (ctx->page->magic != ER_PAGE_MAGIC || ctx->page->version != ER_PAGE_VERSION)
        return er_error_set(err, ER_E_PROTOCOL,
                            "worker page has version %u, this program speaks %u",
                            ctx->page->version, ER_PAGE_VERSION);
    return 0;
}

struct er_page *er_ctx_page(const struct er_ctx *ctx)
{
    return ctx->page;
}

/* A word about an older generation is history. */
static uint64_t notice_word(const struct er_ctx *ctx)
{
    if (!ctx->page)
        return ER_NOTICE_NONE;
    uint64_t word = atomic_load_explicit(&ctx->page->to_worker.word, memory_order_acquire);
    return word >> 8 >= ctx->world.generation ? word & 0xff : ER_NOTICE_NONE;
}

enum er_notice er_notice(const struct er_ctx *ctx)
{
    return (enum er_notice)(notice_word(ctx) & ER_NOTICE_KIND);
}

int er_notice_saves(const struct er_ctx *ctx)
{
    return (notice_word(ctx) & ER_NOTICE_SAVE) != 0;
}

/* Of several threads, one: step and time belong together, and whoever sees the step sees its time.
 */
static void note_first_step(struct er_page_progress *p, uint64_t step, uint64_t now_us)
{
    uint64_t none = 0;
    if (p->first_step == 0 && atomic_compare_exchange_strong(&p->first_step_us, &none, now_us))
        p->first_step = step;
}

/* Several steps at once took the same time each. */
static void note_step_time(struct er_ctx *ctx, uint64_t steps, uint64_t now_us)
{
    uint64_t before_us = atomic_exchange(&ctx->stepped_us, now_us);
    struct er_page_progress *p = &ctx->page->from_worker;

    if (before_us == 0 || now_us < before_us)
        return;
    const double each_s = (double)(now_us - before_us) / 1e6 / (double)steps;
    atomic_fetch_add(&p->steps_by_time[er_histogram_bucket(&er_bounds_fine, each_s)], steps);
    atomic_fetch_add(&p->steps_time_us, now_us - before_us);
}

void er_progress(struct er_ctx *ctx, enum er_phase phase, uint64_t step)
{
    if (!ctx->page)
        return;
    struct er_page_progress *p = &ctx->page->from_worker;
    uint64_t now_us = er_now_us();
    if (phase == ER_PHASE_STARTUP) {
        ctx->base_step = step;
        ctx->stepped_us = 0;
    } else if (step > ctx->base_step) {
        note_first_step(p, step, now_us);
        if (step > p->step)
            note_step_time(ctx, step - p->step, now_us);
    }
    p->step_us = now_us;
    p->step = step;
    p->phase = phase;
}

void er_progress_figures(struct er_ctx *ctx, uint64_t samples, double loss, uint64_t total_steps)
{
    if (!ctx->page)
        return;
    uint64_t bits;
    memcpy(&bits, &loss, sizeof(bits));
    struct er_page_progress *p = &ctx->page->from_worker;
    p->samples = samples;
    p->loss_bits = bits;
    p->total_steps = total_steps;
}

void er_progress_pace(struct er_ctx *ctx, const struct er_pace *pace)
{
    struct er_page_progress *p;

    if (!ctx->page)
        return;
    p = &ctx->page->from_worker;
    p->tokens = pace->tokens;
    p->samples_per_s = pace->samples_per_s;
    p->tokens_per_s = pace->tokens_per_s;
    p->data_us = pace->data_us;
    p->forward_us = pace->forward_us;
    p->backward_us = pace->backward_us;
    p->communicate_us = pace->communicate_us;
    p->optimizer_us = pace->optimizer_us;
    p->median_busy_us = pace->median_busy_us;
}
