/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list: intrusive, doubly linked, circular list with a sentinel head. A node that is in no list points at itself,
 * so removing twice is harmless and "is it queued?" is a comparison.
 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev;
    struct list *next;
};

/* The structure that holds `node` as its member `member`. */
#define CONTAINER_OF(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))

static inline void list_init(struct list *list)
{
    list->prev = list;
    list->next = list;
}

static inline bool list_is_empty(const struct list *list)
{
    return list->next == list;
}

/* For a node: is it in some list? Same test, named for its reader. */
static inline bool list_is_linked(const struct list *node)
{
    return node->next != node;
}

static inline void list_insert_before(struct list *position, struct list *node)
{
    node->prev = position->prev;
    node->next = position;
    position->prev->next = node;
    position->prev = node;
}

static inline void list_append(struct list *list, struct list *node)
{
    list_insert_before(list, node);
}

static inline void list_prepend(struct list *list, struct list *node)
{
    list_insert_before(list->next, node);
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_init(node);
}

/* Takes the first node out, or returns NULL. */
static inline struct list *list_take_first(struct list *list)
{
    if (list_is_empty(list)) {
        return NULL;
    }
    struct list *node = list->next;
    list_remove(node);
    return node;
}

/* The parameter is called `head` because a macro parameter named `list` would also replace the word in `struct list`. */
#define LIST_FOR_EACH(node, head) for (struct list *node = (head)->next; node != (head); node = node->next)
/* `node` may be removed inside the body. */
#define LIST_FOR_EACH_SAFE(node, head)                                                                       \
    for (struct list *node = (head)->next, *node##_next = node->next; node != (head);                        \
         node = node##_next, node##_next = node->next)

#endif
