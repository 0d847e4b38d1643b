/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_int: the registry and the table of rows, for metrics*.c and their tests. */
#ifndef SERVER_METRICS_INT_H
#define SERVER_METRICS_INT_H

#include <pthread.h>
#include <stddef.h>

#include "server/metrics.h"

enum metrics_scope {
    METRICS_PROCESS,
    METRICS_WORKER,
    METRICS_LISTENER,
    METRICS_RX,
    METRICS_XDP,
    METRICS_RX_INFO,
    METRICS_PORT,
    METRICS_DEVICE,
    METRICS_SPACE,
    METRICS_STORE
};
enum metrics_kind { METRICS_COUNTER, METRICS_GAUGE, METRICS_HISTOGRAM };
enum metrics_labels {
    METRICS_LABELS_NONE,
    METRICS_LABELS_OPERATION_STATUS,
    METRICS_LABELS_COPY,
    METRICS_LABELS_TIMEOUT,
    METRICS_LABELS_LIMIT,
    METRICS_LABELS_ABORT,
    METRICS_LABELS_STAGE,
    METRICS_LABELS_TCP,
    METRICS_LABELS_VERDICT,
    METRICS_LABELS_XDP_SOCKET,
    METRICS_LABELS_XDP_STATE
};

struct metrics_row {
    enum metrics_scope scope;
    enum metrics_kind kind;
    enum metrics_labels labels;
    size_t offset; /* of the field in its scope's struct; DEVICE histograms: the enum store_latency */
    size_t width;  /* bytes of one value in that struct */
    const char *name;
    const char *unit;
    const char *help;
};

extern const struct metrics_row metrics_rows[];
extern const size_t metrics_row_count;

/* Number of cells a label set has, and the labels of one of them as `a="x",b="y"` (empty for NONE). */
uint32_t metrics_cell_count(enum metrics_labels labels);
void metrics_cell_labels(enum metrics_labels labels, uint32_t cell, char *to, size_t size);

/* What is kept of a receive instance, also after it was taken out. */
struct metrics_rx {
    struct rx *rx; /* NULL: `last` counts */
    struct rx_stats last;
    bool has_xdp; /* it shows the counters of an interface; `last_xdp` when `rx` is NULL */
    struct rx_xdp_stats last_xdp;
    struct rx_info info;
};

struct metrics_plan {
    char path[16];
    char why[512];
};

struct metrics_thread {
    bool is_alive;
    clockid_t cpu_clock;
};

struct metrics {
    const struct conf *conf;
    uint32_t workers;
    uint32_t listeners;
    struct metrics_worker *worker_cells;
    struct metrics_listener *listener_cells; /* [worker][listener] */
    struct metrics_process process;

    /* guards what is below; taken by registering and by readers, never on the data path */
    pthread_mutex_t lock;
    struct metrics_rx *rx; /* [worker][listener] */
    const _Atomic uint64_t **ports;
    struct metrics_thread *threads; /* [worker] */
    struct store *store;
    struct metrics_plan *plans;
};

/* Brings the process's own numbers up to date, and those of workers that only a look from outside keeps current while they sleep.
 * The lock is held. */
void metrics_refresh(struct metrics *metrics);
/* The live or last counters of one receive instance; the lock is held. */
const struct rx_stats *metrics_rx_stats(const struct metrics_rx *rx);
/* NULL: it shows none. */
const struct rx_xdp_stats *metrics_rx_xdp(const struct metrics_rx *rx);

#endif
