#pragma once
/*
 * Who is in a generation, and with which ranks. Pure.
 *
 * Survivors of the last generation come first, in their old order; then newcomers, those with a
 * preferred rank before the others, in natural order of their names ("n2" before "n10"). The first
 * `max` of them are members, the rest spares. Ranks: a newcomer gets the rank it prefers when that
 * is below the node count and free; survivors fill the free ranks in their order, remaining
 * newcomers follow. Workers' ranks are contiguous per node.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct er_plan_node {
    const char *id; /* borrowed */
    int old_rank;   /* in the last sealed generation; -1: newcomer */
    int preferred;  /* -1: none */
    int slots;
    uint32_t role;
    size_t tag;                /* the caller's */
    int rank;                  /* result: group rank, -1: spare */
    int first_rank;            /* result: rank of its first worker */
    int role_first, role_size; /* result of er_plan_roles() */
};

/* How many nodes of the role `id` there may be. */
struct er_plan_role {
    uint32_t id, max;
};

/* Sorts `nodes`: members by rank, then spares. Returns the number of members (at most max), and
 * the world size through ret_world. */
size_t er_plan_make(struct er_plan_node *nodes, size_t n, size_t max, uint32_t *ret_world);

/* Before er_plan_make(): puts the nodes that are too many for their role, or whose role is none of
 * `roles`, behind the others and returns how many are left. */
size_t er_plan_cap(struct er_plan_node *nodes, size_t n, const struct er_plan_role *roles,
                   size_t roles_n);
/* Of the members that er_plan_make() gave ranks: counted within each role, in the order of ranks.
 */
void er_plan_roles(struct er_plan_node *nodes, size_t members);

/* Runs of digits compare as numbers. Total order: 0 only for equal texts. */
int er_natural_cmp(const char *a, const char *b);
