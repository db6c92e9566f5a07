#include "rendezvous/rdzv_internal.h"

/* What is worth an event line. Job-wide ones are the leader's; all of them may be dropped. */

static struct er_note *add_note(struct er_rdzv *c, enum er_note_kind kind)
{
    struct er_rdzv_action *a;

    if (c->out->n >= ER_RDZV_ACTIONS_MAX / 2)
        return NULL;
    a = rdzv_act(c, ER_ACT_NOTE);
    a->note.kind = kind;
    a->note.generation = c->view.world.generation;
    a->note.min = c->view.world.min_nodes;
    a->note.max = c->view.world.max_nodes;
    a->note.budget = c->opts.restart_max;
    a->note.window_us = c->opts.restart_window_us;
    return &a->note;
}

void rdzv_note_join(struct er_rdzv *c, const struct er_store_kv *kv)
{
    const struct er_view_node *n;
    struct er_note *note;
    struct er_key key;

    er_key_parse(c->root, kv->key, &key);
    if (key.kind != ER_KEY_NODE || (c->lead == ER_LEAD_READING && c->view.world.last_sealed))
        return;
    n = er_view_find(&c->view, key.name);
    if (!n || !n->present || n->mod_rev != kv->mod_rev || n->joined_us != c->now_us ||
        er_view_alive_member(&c->view, n))
        return;
    note = add_note(c, ER_NOTE_NODE_JOINED);
    if (!note)
        return;
    note->node = n->id;
    note->address = n->member.address;
    note->slots = (uint32_t)n->member.slots;
}

static uint32_t count_candidates(const struct er_view *v)
{
    uint32_t n = 0;

    for (size_t i = 0; i < v->n; i++)
        n += v->nodes[i].present && !v->nodes[i].member.draining;
    return n;
}

void rdzv_note_forming(struct er_rdzv *c)
{
    struct er_note *n = add_note(c, ER_NOTE_FORMING);

    c->forming_noted = true;
    if (!n)
        return;
    n->reason = er_reason_name(c->view.world.reason);
    n->have = count_candidates(&c->view);
    n->cause = c->view.world.has_cause ? &c->view.world.cause : NULL;
}

void rdzv_note_sealed(struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;
    struct er_note *n;

    if (w->restarts > c->restarts_noted && (n = add_note(c, ER_NOTE_RESTART_COUNTED))) {
        n->used = rdzv_budget_used(c);
        n->cause = &w->cause;
    }
    c->restarts_noted = w->restarts;
    c->sealed_noted = w->generation;
    n = add_note(c, ER_NOTE_SEALED);
    if (!n)
        return;
    n->reason = er_reason_name(w->reason);
    n->world_size = w->world_size;
    n->nnodes = w->nnodes;
    n->address = w->master_addr;
    n->port = w->master_port;
    n->duration_us = c->forming_us ? c->now_us - c->forming_us : 0;
}

/* From the answer of the verdict, not from the view: this node's own end may come first. */
void rdzv_note_denied(struct er_rdzv *c)
{
    struct er_note *n;

    if (c->world.phase != ER_WORLD_FAILED || !c->world.has_cause)
        return;
    n = add_note(c, ER_NOTE_RESTART_DENIED);
    if (!n)
        return;
    n->used = rdzv_budget_used(c);
    n->cause = &c->world.cause;
    n->reason = c->world.verdict;
}

static const char *left_as(const struct er_view_node *node)
{
    return er_reason_name(node->member.preempted ? ER_REASON_PREEMPTED : ER_REASON_DRAINED);
}

void rdzv_note_losses(struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *node = &c->view.nodes[i];
        struct er_note *n;
        bool departed;

        if (!er_view_lost_member(&c->view, node))
            continue;
        departed = er_view_departed(&c->view, node);
        n = add_note(c, departed ? ER_NOTE_NODE_LEFT : ER_NOTE_NODE_LOST);
        if (!n)
            return;
        n->node = node->id;
        n->address = node->member.address;
        n->reason = departed ? left_as(node) : node->present ? "agent_died" : "lease_expired";
        n->duration_us = c->now_us - node->gone_us;
    }
}

bool rdzv_changes(const struct er_job_record *w)
{
    static const bool changes[ER_REASON_COUNT] = {[ER_REASON_NODE_JOINED] = true,
                                                  [ER_REASON_DRAINED] = true,
                                                  [ER_REASON_PREEMPTED] = true,
                                                  [ER_REASON_SCALED] = true};

    return w->last_sealed && ((w->phase == ER_WORLD_SEALED && w->next_go) ||
                              (w->phase == ER_WORLD_FORMING && changes[w->reason]));
}

/* Ranks of the generation that forms, as far as can be told now: members go before newcomers. */
static uint32_t foreseen(const struct er_view *v)
{
    uint32_t nodes = 0, ranks = 0;

    for (unsigned trait = 0; trait < 2; trait++) {
        for (size_t i = 0; i < v->n && nodes < v->world.max_nodes; i++) {
            const struct er_view_node *n = &v->nodes[i];

            if (!(n->traits >> ER_TRAIT_PRESENT & 1) ||
                (n->traits >> ER_TRAIT_NEWCOMER & 1) != trait)
                continue;
            nodes++;
            ranks += (uint32_t)n->member.slots;
        }
    }
    return ranks;
}

void rdzv_note_resize(struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;
    struct er_note *n = add_note(c, ER_NOTE_RESIZE);

    c->resize_noted = w->last_sealed;
    if (!n)
        return;
    n->reason = er_reason_name(w->next_go ? w->next_reason : w->reason);
    n->world_size = w->world_size;
    n->next_size = w->next_go ? w->next_size : foreseen(&c->view);
    n->duration_us = w->next_go ? c->opts.resize_grace_us : w->ready_us;
}

void rdzv_note_aside(struct er_rdzv *c)
{
    struct er_note *n = add_note(c, ER_NOTE_NODE_ASIDE);

    if (!n)
        return;
    n->node = c->aside.node;
    n->reason = c->aside.reason;
    n->window_us = c->aside.cooldown_us;
}

void rdzv_note_request(struct er_rdzv *c, const struct er_ask *ctl)
{
    static const char *const names[ER_ASK_KIND_COUNT] = {
#define ER_ASK_TEXT(name, text) [ER_ASK_##name] = text,
        ER_ASK_KINDS(ER_ASK_TEXT)
#undef ER_ASK_TEXT
    };
    struct er_note *n = add_note(c, ER_NOTE_REQUEST);

    if (!n)
        return;
    n->reason = names[ctl->kind];
    n->node = ctl->node;
    n->exit_code = ctl->code;
    n->duration_us = ctl->deadline_us;
    n->min = ctl->min_nodes;
    n->max = ctl->max_nodes;
}

void rdzv_note_skip(struct er_rdzv *c, uint64_t step)
{
    struct er_note *n = add_note(c, ER_NOTE_STEP_SKIPPED);

    if (!n)
        return;
    n->step = step;
    n->used = c->opts.poison_max;
}

static void note_left(struct er_rdzv *c, const struct er_view_node *node)
{
    struct er_note *n = add_note(c, ER_NOTE_NODE_LEFT);

    if (!n)
        return;
    n->node = node->id;
    n->address = node->member.address;
    n->reason = left_as(node);
}

void rdzv_note_leaver(struct er_rdzv *c, const struct er_view_node *node)
{
    if (node->present) /* the others are told of as lost members */
        note_left(c, node);
}

void rdzv_note_leavers(struct er_rdzv *c)
{
    for (size_t i = 0; i < c->view.n; i++) {
        const struct er_view_node *n = &c->view.nodes[i];

        if (er_view_member_rank(&c->view, n, NULL) >= 0 && er_view_leaving(n))
            note_left(c, n);
    }
}
