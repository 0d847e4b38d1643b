/* SPDX-License-Identifier: Apache-2.0 */
/* rx_int: what the files of this folder share: ring operations of class URING_CLASS_RX and the contract recorder. */
#ifndef RX_RX_INT_H
#define RX_RX_INT_H

#include "base/list.h"
#include "rx/rx.h"

/* One ring operation. user_data names it, so it is 16-byte aligned and lives until its last completion. */
struct rx_op {
    void (*done)(struct rx_op *op, const struct io_uring_cqe *cqe); /* records; must not act */
    struct list node; /* in the instance's list of completions */
    void *instance;   /* the backend's */
    void *subject;    /* what it is about: a connection, an accept */
    int32_t res;
    uint32_t flags;
    uint8_t kind; /* the backend's own enumeration */
    bool in_flight;
} __attribute__((aligned(16)));

/* Makes this ring hand class-RX completions to their operation. Several instances of one ring may call it. */
void rx_op_class_install(struct uring *uring);

/* rx_check.c */
struct rx_check;
int rx_check_open(struct rx *rx);
void rx_check_close(struct rx *rx);

#endif
