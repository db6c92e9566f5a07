#pragma once
/* Intrusive doubly linked list: embed `struct er_list` in the item; the head is one too. */
#include <stdbool.h>
#include <stddef.h>

struct er_list {
    struct er_list *prev, *next;
};

#define ER_LIST_ITEM(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

#define er_list_for_each(node, head)                                                               \
    for (struct er_list *node = (head)->next; node != (head); node = node->next)

/* The current item may be removed in the body. */
#define er_list_for_each_safe(node, head)                                                          \
    for (struct er_list *node = (head)->next, *node##_next = node->next; node != (head);           \
         node = node##_next, node##_next = node->next)

static inline void er_list_init(struct er_list *head)
{
    head->prev = head->next = head;
}

static inline bool er_list_empty(const struct er_list *head)
{
    return head->next == head;
}

static inline void er_list_push_back(struct er_list *head, struct er_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Safe to call twice. */
static inline void er_list_remove(struct er_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->prev = node->next = node;
}
