#include "rendezvous/plan.h"

#include <string.h>

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Compares the numbers at *a and *b and moves behind them. */
static int number_cmp(const char **a, const char **b)
{
    size_t an = 0, bn = 0;
    int c;

    while (**a == '0' && digit((*a)[1]))
        (*a)++;
    while (**b == '0' && digit((*b)[1]))
        (*b)++;
    while (digit((*a)[an]))
        an++;
    while (digit((*b)[bn]))
        bn++;
    c = an != bn ? (an > bn ? 1 : -1) : memcmp(*a, *b, an);
    *a += an;
    *b += bn;
    return c;
}

int er_natural_cmp(const char *a, const char *b)
{
    const char *whole_a = a, *whole_b = b;

    while (*a && *b) {
        int c;

        if (digit(*a) && digit(*b)) {
            c = number_cmp(&a, &b);
        } else {
            c = (unsigned char)*a - (unsigned char)*b;
            a++;
            b++;
        }
        if (c)
            return c;
    }
    if (*a || *b)
        return *a ? 1 : -1;
    return strcmp(whole_a, whole_b); /* "n1" and "n01" */
}

typedef int (*cmp_fn)(const struct er_plan_node *, const struct er_plan_node *);

/* Survivors, then who has a preference, then the rest. */
static int group(const struct er_plan_node *n)
{
    return n->old_rank >= 0 ? 0 : n->preferred >= 0 ? 1 : 2;
}

static int by_claim(const struct er_plan_node *a, const struct er_plan_node *b)
{
    if (group(a) != group(b))
        return group(a) - group(b);
    if (group(a) == 0 && a->old_rank != b->old_rank)
        return a->old_rank - b->old_rank;
    if (group(a) == 1 && a->preferred != b->preferred)
        return a->preferred - b->preferred;
    return er_natural_cmp(a->id, b->id);
}

static int by_name(const struct er_plan_node *a, const struct er_plan_node *b)
{
    if ((group(a) == 0) != (group(b) == 0))
        return group(a) ? 1 : -1;
    return group(a) == 0 ? a->old_rank - b->old_rank : er_natural_cmp(a->id, b->id);
}

static int by_rank(const struct er_plan_node *a, const struct er_plan_node *b)
{
    return a->rank - b->rank;
}

static void swap(struct er_plan_node *a, struct er_plan_node *b)
{
    struct er_plan_node t = *a;

    *a = *b;
    *b = t;
}

static void sift(struct er_plan_node *v, size_t at, size_t n, cmp_fn cmp)
{
    for (size_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && cmp(&v[child], &v[child + 1]) < 0)
            child++;
        if (cmp(&v[at], &v[child]) >= 0)
            return;
        swap(&v[at], &v[child]);
        at = child;
    }
}

/* Heap sort: no allocation, no recursion, N log N for ten thousand nodes. */
static void sort(struct er_plan_node *v, size_t n, cmp_fn cmp)
{
    for (size_t i = n / 2; i > 0; i--)
        sift(v, i - 1, n, cmp);
    for (size_t i = n; i > 1; i--) {
        swap(&v[0], &v[i - 1]);
        sift(v, 0, i - 1, cmp);
    }
}

/* Members are sorted by claim here, so two that prefer one rank stand next to each other, and the
 * one whose name comes first gets it. */
static void give_preferred(struct er_plan_node *v, size_t n)
{
    int last = -1;

    for (size_t i = 0; i < n; i++) {
        if (group(&v[i]) != 1 || (size_t)v[i].preferred >= n || v[i].preferred == last)
            continue;
        last = v[i].rank = v[i].preferred;
    }
}

/* Fills the ranks not taken; both lists are ascending, `taken` ones at the end of v. */
static void give_free(struct er_plan_node *v, size_t n)
{
    size_t free_n = 0, taken;
    int rank = 0;

    sort(v, n, by_rank); /* unranked (-1) first */
    while (free_n < n && v[free_n].rank < 0)
        free_n++;
    sort(v, free_n, by_name);
    taken = free_n;
    for (size_t i = 0; i < free_n; i++, rank++) {
        while (taken < n && v[taken].rank == rank) {
            taken++;
            rank++;
        }
        v[i].rank = rank;
    }
}

size_t er_plan_make(struct er_plan_node *nodes, size_t n, size_t max, uint32_t *ret_world)
{
    size_t members = n < max ? n : max;
    int first = 0;

    for (size_t i = 0; i < n; i++)
        nodes[i].rank = nodes[i].first_rank = -1;
    sort(nodes, n, by_claim);
    give_preferred(nodes, members);
    give_free(nodes, members);
    sort(nodes, members, by_rank);
    for (size_t i = 0; i < members; i++) {
        nodes[i].first_rank = first;
        first += nodes[i].slots;
    }
    *ret_world = (uint32_t)first;
    return members;
}

size_t er_plan_cap(struct er_plan_node *nodes, size_t n, const struct er_plan_role *roles,
                   size_t roles_n)
{
    size_t left = n;

    sort(nodes, n, by_claim);
    for (size_t i = 0; i < n; i++)
        nodes[i].rank = nodes[i].first_rank = -1;
    for (size_t r = 0; r < roles_n; r++) {
        uint32_t taken = 0;

        for (size_t i = 0; i < n && taken < roles[r].max; i++) {
            if (nodes[i].role != roles[r].id)
                continue;
            nodes[i].rank = 0; /* kept; er_plan_make() sets it anew */
            taken++;
        }
    }
    for (size_t i = 0; i < left;) {
        if (nodes[i].rank == 0)
            i++;
        else
            swap(&nodes[i], &nodes[--left]);
    }
    return left;
}

void er_plan_roles(struct er_plan_node *nodes, size_t members)
{
    for (size_t i = 0; i < members; i++)
        nodes[i].role_size = 0;
    for (size_t i = 0; i < members; i++) {
        int total = 0;

        if (nodes[i].role_size) /* with an earlier one of its role */
            continue;
        for (size_t k = i; k < members; k++) {
            if (nodes[k].role != nodes[i].role)
                continue;
            nodes[k].role_first = total;
            total += nodes[k].slots;
        }
        for (size_t k = i; k < members; k++) {
            if (nodes[k].role == nodes[i].role)
                nodes[k].role_size = total;
        }
    }
}
