#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"

/* What happens, a line each: when, who, what. */

FILE *sim_story;
const char *sim_actor = "store";

void sim_tell(const struct sim *sim, const char *actor, const char *format, ...)
{
    uint64_t ms = (sim->now_us - sim->begun_us) / 1000;
    va_list args;

    if (!sim_story)
        return;
    fprintf(sim_story, "%5llu.%03llu  %-5s  ", (unsigned long long)(ms / 1000),
            (unsigned long long)(ms % 1000), actor);
    va_start(args, format);
    vfprintf(sim_story, format, args);
    va_end(args);
    fputc('\n', sim_story);
}

/* ---- records ---- */

struct line {
    char text[400];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void add(struct line *l, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(l->text + l->n, sizeof(l->text) - l->n, format, args);
    va_end(args);
    if (n > 0)
        l->n += (size_t)n < sizeof(l->text) - l->n ? (size_t)n : sizeof(l->text) - l->n - 1;
}

static void add_number(struct line *l, const char *before, uint64_t v)
{
    if (v)
        add(l, "%s%llu", before, (unsigned long long)v);
}

static void tell_world(struct line *l, const struct er_store_kv *kv)
{
    static const char *const phases[] = {
#define NAME(name) [ER_WORLD_##name] = #name,
        ER_PHASES_OF_WORLD(NAME)
#undef NAME
    };
    struct er_job_record w;

    if (er_job_record_parse(kv->value, &w, NULL))
        return;
    add(l, "%s %llu (%s)", phases[w.phase], (unsigned long long)w.generation,
        er_reason_name(w.reason));
    if (w.phase == ER_WORLD_SEALED)
        add(l, ", %u nodes, %u workers, master %s:%d", w.nnodes, w.world_size, w.master_addr,
            w.master_port);
    else if (w.phase == ER_WORLD_FORMING)
        add_number(l, ", last sealed ", w.last_sealed);
    else
        add(l, ", exit code %d", w.exit_code);
    add(l, ", bounds %u:%u", w.min_nodes, w.max_nodes);
    add_number(l, ", restarts ", w.restarts);
    add_number(l, ", next ", w.next);
    if (w.next)
        add(l, " (%s)%s", er_reason_name(w.next_reason), w.next_go ? ", go" : "");
    if (w.verdict[0])
        add(l, ": %s", w.verdict);
}

static void tell_node(struct line *l, const struct er_store_kv *kv)
{
    struct er_member m;

    if (er_member_parse(kv->value, &m, NULL))
        return;
    add(l, "%d workers", m.slots);
    add_number(l, ", running ", m.running);
    add_number(l, ", left ", m.left);
    add_number(l, ", prepared ", m.prepared);
    add(l, "%s", m.draining ? ", draining" : "");
}

static void tell_assign(struct line *l, const struct er_store_kv *kv)
{
    struct er_assign a;

    if (er_assign_parse(kv->value, &a, NULL))
        return;
    add(l, "generation %llu, node rank %d, first worker %d", (unsigned long long)a.generation,
        a.group_rank, a.first_rank);
    if (a.drain)
        add(l, ", asked to leave");
}

static void tell_result(struct line *l, const struct er_store_kv *kv)
{
    struct er_result r;

    if (!er_result_parse(kv->value, &r, NULL))
        add(l, r.ok ? "success" : "failed: worker %d, code %d%s", r.cause.rank, r.cause.code,
            r.cause.uncounted ? ", uncounted" : "");
}

static void tell_leader(struct line *l, const struct er_store_kv *kv)
{
    struct er_leader leader;

    if (!er_leader_parse(kv->value, &leader, NULL))
        add(l, "%s", leader.node_id);
}

static void tell_ask(struct line *l, const struct er_store_kv *kv)
{
    static const char *const names[] = {
#define NAME(name, text) [ER_ASK_##name] = text,
        ER_ASK_KINDS(NAME)
#undef NAME
    };
    struct er_ask a;

    if (er_ask_parse(kv->value, &a, NULL))
        return;
    add(l, "%s", names[a.kind]);
    if (a.kind == ER_ASK_SCALE)
        add(l, " to %u:%u", a.min_nodes, a.max_nodes);
    else if (a.node[0])
        add(l, " %s", a.node);
}

static void tell_aside(struct line *l, const struct er_store_kv *kv)
{
    struct er_aside a;

    if (!er_aside_parse(kv->value, &a, NULL))
        add(l, "%s", a.reason);
}

static void tell_ckpt(struct line *l, const struct er_store_kv *kv)
{
    struct er_ckpt_record c;

    if (!er_ckpt_record_parse(kv->value, &c, NULL))
        add(l, "step %llu of generation %llu", (unsigned long long)c.step,
            (unsigned long long)c.generation);
}

static void tell_text(struct line *l, const struct er_store_kv *kv)
{
    add(l, "%.*s", (int)kv->value.len, (const char *)kv->value.data);
}

/* The nonce behind it means nothing to a reader. */
static void tell_fence(struct line *l, const struct er_store_kv *kv)
{
    add(l, "%.*s", (int)strcspn(kv->value.data, ":"), (const char *)kv->value.data);
}

static void (*const tell_record[ER_KEY_KIND_COUNT])(struct line *, const struct er_store_kv *) = {
    [ER_KEY_SPEC] = tell_text,     [ER_KEY_SPEC_NEXT] = tell_text, [ER_KEY_WORLD] = tell_world,
    [ER_KEY_FENCE] = tell_fence,   [ER_KEY_LEADER] = tell_leader,  [ER_KEY_NODE] = tell_node,
    [ER_KEY_ASSIGN] = tell_assign, [ER_KEY_RESULT] = tell_result,  [ER_KEY_CKPT] = tell_ckpt,
    [ER_KEY_CTL] = tell_ask,       [ER_KEY_ASIDE] = tell_aside,
};

/* Keys without their root and without leading zeros of numbers. */
static void add_key(struct line *l, struct er_bytes key)
{
    const char *at = (const char *)key.data + sizeof(SIM_ROOT) - 1;
    const char *end = (const char *)key.data + key.len;

    while (at < end) {
        if (*at == '0' && at[-1] == '/')
            while (at + 1 < end && *at == '0' && at[1] != '/')
                at++;
        add(l, "%c", *at++);
    }
}

void sim_tell_store(const struct sim *sim, const struct er_store_event *events, size_t n)
{
    for (size_t i = 0; sim_story && i < n; i++) {
        bool put = events[i].kind == ER_STORE_PUT;
        struct line l = {.n = 0};
        struct er_key key;

        er_key_parse(SIM_ROOT, events[i].kv.key, &key);
        add(&l, "%s%s ", i ? "+ " : "", put ? "put" : "del");
        add_key(&l, events[i].kv.key);
        if (put && tell_record[key.kind]) {
            struct line value = {.n = 0};

            tell_record[key.kind](&value, &events[i].kv);
            add(&l, "%s%s", value.n ? ": " : "", value.text);
        }
        sim_tell(sim, sim_actor, "%s", l.text);
    }
}

/* ---- notes of the leader that are seen nowhere else ---- */

void sim_tell_note(const struct sim *sim, const char *actor, const struct er_note *note)
{
    switch (note->kind) {
    case ER_NOTE_NODE_LOST:
        sim_tell(sim, actor, "notes: %s is lost (%s)", note->node, note->reason);
        break;
    case ER_NOTE_NODE_LEFT:
        sim_tell(sim, actor, "notes: %s left (%s)", note->node, note->reason);
        break;
    case ER_NOTE_RESTART_COUNTED:
        sim_tell(sim, actor, "notes: restart counted, %u of %u", note->used, note->budget);
        break;
    case ER_NOTE_RESTART_DENIED:
        sim_tell(sim, actor, "notes: restart denied: %s", note->reason);
        break;
    case ER_NOTE_NODE_ASIDE:
        sim_tell(sim, actor, "notes: %s is set aside (%s)", note->node,
                 note->reason[0] ? note->reason : "by request");
        break;
    case ER_NOTE_FORMING:
    case ER_NOTE_SEALED:
    case ER_NOTE_NODE_JOINED:
    case ER_NOTE_REQUEST:
    case ER_NOTE_RESIZE:
    case ER_NOTE_STEP_SKIPPED:
    case ER_NOTE_KIND_COUNT:
        break;
    }
}
