#include "agent/ctl_explain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl_find.h"
#include "agent/ctl_gather.h"
#include "agent/ctl_print.h"
#include "agent/diagnose.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define WAIT_US     (5 * ER_US_PER_S) /* for the answers of nodes that may be busy */
#define SHOWN       16
#define NODES_SHOWN 6

/* ---- what all nodes know, put together ---- */

struct picture {
    const json_t *state;
    struct er_ctl_answers answers;
    const char **asked, **members, **silent; /* ids: of nodes that are there; by node rank; ... */
    size_t asked_n, silent_n;
    const char *not_asked;
    bool not_allowed;
    bool *answered; /* by node rank, of the running generation */
    int members_n;
    struct er_diagnose_rank *ranks;
    struct er_hang_fact *room;
    size_t ranks_n;
    json_t *list; /* findings */
};

static void picture_done(struct picture *p)
{
    er_ctl_answers_done(&p->answers);
    free(p->asked);
    free(p->members);
    free(p->silent);
    free(p->answered);
    free(p->ranks);
    free(p->room);
}

/* -1: no member, or a number that cannot be. */
static int rank_of(const json_t *node)
{
    long long rank = er_ctl_number(node, "node_rank");

    return rank >= 0 && rank < ER_NODES_MAX ? (int)rank : -1;
}

/* Who is there, and who is member number what. */
static int see_nodes(struct picture *p)
{
    const json_t *nodes = json_object_get(p->state, "nodes"), *node;
    size_t i, n = json_array_size(nodes) + 1;

    json_array_foreach(nodes, i, node)
    {
        int rank = rank_of(node);

        p->members_n = rank >= p->members_n ? rank + 1 : p->members_n;
    }
    p->asked = calloc(n, sizeof(*p->asked));
    p->silent = calloc(n, sizeof(*p->silent));
    p->members = calloc((size_t)p->members_n + 1, sizeof(*p->members));
    p->answered = calloc((size_t)p->members_n + 1, sizeof(*p->answered));
    if (!p->asked || !p->silent || !p->members || !p->answered)
        return -ENOMEM;
    for (int r = 0; r < p->members_n; r++)
        p->members[r] = "?";
    json_array_foreach(nodes, i, node)
    {
        int rank = rank_of(node);

        if (rank >= 0)
            p->members[rank] = er_ctl_text(node, "node");
        if (strcmp(er_ctl_text(node, "state"), "gone") != 0)
            p->asked[p->asked_n++] = er_ctl_text(node, "node");
    }
    return 0;
}

/* It tells of ranks of the running generation. */
static bool is_current(const struct picture *p, const struct er_ctl_answer *a)
{
    long long rank = er_ctl_number(a->head, "node_rank");

    return er_ctl_number(a->head, "generation") == er_ctl_number(p->state, "generation") &&
           rank >= 0 && rank < p->members_n && strcmp(p->members[rank], a->node) == 0;
}

static int see_answers(struct picture *p)
{
    size_t all = 0;

    for (size_t i = 0; i < p->asked_n; i++) {
        if (!er_ctl_answer_of(&p->answers, p->asked[i]))
            p->silent[p->silent_n++] = p->asked[i];
    }
    for (size_t i = 0; i < p->answers.n; i++)
        all += p->answers.list[i].facts_n;
    p->ranks = calloc(all + 1, sizeof(*p->ranks));
    p->room = calloc(all + 1, sizeof(*p->room));
    if (!p->ranks || !p->room)
        return -ENOMEM;
    for (size_t i = 0; i < p->answers.n; i++) {
        const struct er_ctl_answer *a = &p->answers.list[i];

        if (!is_current(p, a))
            continue;
        p->answered[er_ctl_number(a->head, "node_rank")] = true;
        for (size_t k = 0; k < a->facts_n; k++)
            p->ranks[p->ranks_n++] =
                (struct er_diagnose_rank){.fact = a->facts[k], .reports = true, .begun = true};
    }
    return 0;
}

static void add_finding(struct picture *p, const struct er_finding *f)
{
    json_array_append_new(p->list, json_pack("{s:s, s:s, s:s, s:s?, s:n}", "code",
                                             er_finding_code_name(f->code), "weight",
                                             er_finding_weight_name(f->weight), "finding", f->text,
                                             "advice", f->advice[0] ? f->advice : NULL, "nodes"));
}

/* What one agent says of the whole job, or of ranks that are seen better together. */
static bool is_of_job(enum er_finding_code code)
{
    return code == ER_FINDING_RANK_STILL || code == ER_FINDING_MOVING ||
           code == ER_FINDING_RESIZING || code == ER_FINDING_NODE_SILENT ||
           code == ER_FINDING_NOT_ASKED;
}

static bool is_of_leader(enum er_finding_code code)
{
    return code == ER_FINDING_TOO_FEW_NODES || code == ER_FINDING_FORMING;
}

/* By the rules that agents go by, from what the store and all answers say. */
static void find_of_job(struct picture *p, bool leader_said)
{
    struct er_finding found[ER_FINDINGS_MAX];
    bool over = er_ctl_known(p->state, "exit_code");
    const struct er_diagnose_facts f = {
        .phase = er_ctl_text(p->state, "phase"),
        .outcome = er_ctl_text(p->state, "outcome"),
        .exit_code = over ? (int)er_ctl_number(p->state, "exit_code") : -1,
        .store_answers = true,
        .registered = true,
        .leads = true,
        .leader = "",
        .aside = "",
        .have = (uint32_t)p->asked_n,
        .min = (uint32_t)er_ctl_number(p->state, "nnodes_min"),
        .max = (uint32_t)er_ctl_number(p->state, "nnodes_max"),
        .kill_us = ER_FOREVER,
        .ranks = p->ranks,
        .ranks_n = p->ranks_n,
        .room = p->room,
        .nodes = p->members,
        .answered = p->answered,
        .nodes_n = p->members_n,
        .silent = p->silent,
        .silent_n = p->silent_n,
        .waited_us = WAIT_US,
        .not_asked = p->not_asked,
        .not_allowed = p->not_allowed,
        .straggler = -1,
    };
    size_t n = er_diagnose(&f, found);

    for (size_t i = 0; i < n; i++) {
        if (found[i].code == ER_FINDING_OVER || is_of_job(found[i].code) ||
            (is_of_leader(found[i].code) && !leader_said))
            add_finding(p, &found[i]);
    }
}

static enum er_finding_code code_of(const json_t *finding)
{
    const char *name = er_ctl_text(finding, "code");
    int code = 0;

    while (code < ER_FINDING_COUNT &&
           strcmp(er_finding_code_name((enum er_finding_code)code), name) != 0)
        code++;
    return (enum er_finding_code)code; /* ER_FINDING_COUNT: of another release */
}

/* The same words of several nodes are one finding. */
static void add_of_node(struct picture *p, json_t *finding, const char *node)
{
    json_t *known, *copy;
    size_t i;

    json_array_foreach(p->list, i, known)
    {
        json_t *nodes = json_object_get(known, "nodes");

        if (json_is_array(nodes) &&
            strcmp(er_ctl_text(known, "code"), er_ctl_text(finding, "code")) == 0 &&
            strcmp(er_ctl_text(known, "finding"), er_ctl_text(finding, "finding")) == 0) {
            json_array_append_new(nodes, json_string(node));
            return;
        }
    }
    copy = json_copy(finding);
    json_object_set_new(copy, "nodes", json_pack("[s]", node));
    json_array_append_new(p->list, copy);
}

static void find_of_nodes(struct picture *p)
{
    const char *leader = er_ctl_text(p->state, "leader");

    for (size_t i = 0; i < p->answers.n; i++) {
        const struct er_ctl_answer *a = &p->answers.list[i];
        json_t *finding;
        size_t k;

        json_array_foreach(json_object_get(a->head, "findings"), k, finding)
        {
            enum er_finding_code code = code_of(finding);

            if ((is_of_job(code) && is_current(p, a)) ||
                (code == ER_FINDING_FORMING && strcmp(a->node, leader) != 0))
                continue;
            add_of_node(p, finding, a->node);
        }
    }
}

/* In the order in which they explain each other. */
static json_t *in_order(const json_t *list)
{
    json_t *sorted = json_array(), *finding;
    size_t i;

    for (int code = 0; code <= ER_FINDING_COUNT; code++) {
        json_array_foreach(list, i, finding)
        {
            if ((int)code_of(finding) == code)
                json_array_append(sorted, finding);
        }
    }
    return sorted;
}

int er_ctl_explain_gather(struct er_ctl_store *store, const char *job, json_t *state,
                          struct er_error *err)
{
    ER_CLEANUP(picture_done) struct picture p = {.state = state, .list = json_array()};
    bool over = er_ctl_known(state, "exit_code");
    struct er_error why = ER_ERROR_INIT;
    int code = 0, rc = see_nodes(&p);

    if (!rc && !over && p.asked_n)
        code = er_ctl_gather(store, job, p.asked, p.asked_n, WAIT_US, &p.answers, &why);
    if (!rc)
        rc = see_answers(&p);
    if (!rc) {
        if (code) {
            p.silent_n = 0;
            p.not_asked = why.text;
            p.not_allowed = code == ER_CTL_EXIT_REFUSED; /* a role that may read, not write */
        }
        find_of_nodes(&p);
        find_of_job(&p, er_ctl_answer_of(&p.answers, er_ctl_text(state, "leader")) != NULL);
        json_object_set_new(state, "asked", json_integer((json_int_t)p.asked_n));
        json_object_set_new(state, "answered", json_integer((json_int_t)p.answers.n));
        json_object_set_new(state, "diagnosis", in_order(p.list));
    }
    json_decref(p.list);
    return rc ? er_error_set(err, rc, "out of memory") : 0;
}

/* ---- for a person ---- */

/* "node n1: ", "nodes n1, n2 and 3 more: ", "" when it is said of the job. */
static void print_nodes(const json_t *finding, FILE *to)
{
    const json_t *nodes = json_object_get(finding, "nodes");
    size_t n = json_array_size(nodes);

    for (size_t i = 0; i < n && i < NODES_SHOWN; i++)
        fprintf(to, "%s%s",
                i       ? ", "
                : n > 1 ? "nodes "
                        : "node ",
                json_string_value(json_array_get(nodes, i)));
    if (n > NODES_SHOWN)
        fprintf(to, " and %zu more", n - NODES_SHOWN);
    if (n)
        fprintf(to, ": ");
}

static void print_head(const json_t *state, FILE *to)
{
    fprintf(to, "job '%s', generation %lld, as ", er_ctl_text(state, "job"),
            er_ctl_number(state, "generation"));
    if (!er_ctl_known(state, "asked"))
        fprintf(to, "node '%s' sees it:\n", er_ctl_text(state, "node_id"));
    else if (er_ctl_number(state, "asked") == 0)
        fprintf(to, "its store tells:\n");
    else
        fprintf(to, "%lld of %lld nodes and its store tell:\n", er_ctl_number(state, "answered"),
                er_ctl_number(state, "asked"));
}

void er_ctl_explain(const json_t *state, FILE *to)
{
    const json_t *list = json_object_get(state, "diagnosis");
    size_t n = json_array_size(list);

    if (!list) { /* its event file is all that is left */
        fprintf(to, "job '%s' is over: %s, exit code %lld\n", er_ctl_text(state, "job"),
                er_ctl_text(state, "outcome"), er_ctl_number(state, "exit_code"));
        return;
    }
    print_head(state, to);
    for (size_t i = 0; i < n && i < SHOWN; i++) {
        const json_t *finding = json_array_get(list, i);

        fprintf(to, "%2zu. %-6s ", i + 1, er_ctl_text(finding, "weight"));
        print_nodes(finding, to);
        fprintf(to, "%s\n", er_ctl_text(finding, "finding"));
        if (json_is_string(json_object_get(finding, "advice")))
            fprintf(to, "           -> %s\n", er_ctl_text(finding, "advice"));
    }
    if (n > SHOWN)
        fprintf(to, "    and %zu more; --json has all\n", n - SHOWN);
}
