/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics: every number the node reports. One row of metrics.def is one metric; this header turns the rows into the
 * structs that are counted in, metrics.c into Prometheus text, docs/METRICS.md and the values of the status page.
 *
 * Writers. Each worker has its own cells, so counting is a relaxed load and store without a lock or a bus cycle:
 *     metrics_add(&cells->payload_received_bytes, len);
 * The reader (the admin thread) sums over workers with relaxed loads. Nothing here may be called for a cell of another
 * worker.
 *
 * Receive instances, ports and the store keep counters of their own; they are registered while they are open. Registering
 * takes a lock that a scrape holds, so an instance that was taken out is not read any more once the call returns. It must
 * not happen on the data path.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "conf/conf.h"
#include "rx/rx.h"
#include "server/s3_target.h"
#include "storage/store.h"

/* ---- bounded label sets ------------------------------------------------------------------------------------------ */

/* Operations: those of S3, then ours. */
enum metrics_operation {
    METRICS_OP_RAW_PUT = S3_OP_COUNT, /* an object from a raw stream */
    METRICS_OP_UNPARSED,              /* the head was refused: nobody knows what was meant */
    METRICS_OP_COUNT
};

/* Status classes. */
enum metrics_status {
    METRICS_2XX,
    METRICS_3XX,
    METRICS_4XX,
    METRICS_5XX,
    METRICS_LOST,
    METRICS_LATE_4XX, /* a 200 was out when the error was found: the document says which */
    METRICS_LATE_5XX,
    METRICS_STATUS_COUNT
};

/* label value, enum member */
#define METRICS_TIMEOUTS(X)                                                                                  \
    X(HEAD, "head")                                                                                          \
    X(BODY, "body")                                                                                          \
    X(RATE, "rate")                                                                                          \
    X(IDLE, "idle")                                                                                          \
    X(SEND, "send")                                                                                          \
    X(TLS, "tls")                                                                                            \
    X(DRAIN, "drain")
#define METRICS_LIMITS(X)                                                                                    \
    X(CONNECTIONS, "connections_max")                                                                        \
    X(CONNECTIONS_PER_PEER, "connections_per_peer_max")                                                      \
    X(UPLOADS, "uploads_max")                                                                                \
    X(UPLOADS_PER_PEER, "uploads_per_peer_max")                                                              \
    X(HEAD_SIZE, "head_size_max")                                                                            \
    X(OBJECT_SIZE, "object_size_max")                                                                        \
    X(SPACE, "space")                                                                                        \
    X(SENT_AHEAD, "sent_ahead")                                                                              \
    X(STUCK, "stuck")
#define METRICS_ABORTS(X)                                                                                    \
    X(PEER, "peer")           /* reset, or FIN before the announced end */                                   \
    X(TIMEOUT, "timeout")     /* one of our deadlines */                                                     \
    X(CHECKSUM, "checksum")   /* the payload is not what the client said */                                  \
    X(PROTOCOL, "protocol")   /* bad framing inside the body */                                              \
    X(CONDITION, "condition") /* If-Match or If-None-Match was false */                                      \
    X(SPACE, "space")         /* device or index full */                                                     \
    X(STORAGE, "storage")     /* a device or the index failed */                                             \
    X(SHUTDOWN, "shutdown")   /* drain_timeout passed */
#define METRICS_STAGES(X)                                                                                    \
    X(REAP, "reap")                                                                                          \
    X(RX, "rx")                                                                                              \
    X(STORE, "store")                                                                                        \
    X(TIMER, "timer")                                                                                        \
    X(MESSAGE, "message")

#define METRICS_MEMBER_TIMEOUT(symbol, text) METRICS_TIMEOUT_##symbol,
#define METRICS_MEMBER_LIMIT(symbol, text) METRICS_LIMIT_##symbol,
#define METRICS_MEMBER_ABORT(symbol, text) METRICS_ABORT_##symbol,
#define METRICS_MEMBER_STAGE(symbol, text) METRICS_STAGE_##symbol,
enum metrics_timeout { METRICS_TIMEOUTS(METRICS_MEMBER_TIMEOUT) METRICS_TIMEOUT_COUNT };
enum metrics_limit { METRICS_LIMITS(METRICS_MEMBER_LIMIT) METRICS_LIMIT_COUNT };
enum metrics_abort { METRICS_ABORTS(METRICS_MEMBER_ABORT) METRICS_ABORT_COUNT };
enum metrics_stage { METRICS_STAGES(METRICS_MEMBER_STAGE) METRICS_STAGE_COUNT };

/* ---- cells ------------------------------------------------------------------------------------------------------- */

#define METRICS_CELLS_NONE
#define METRICS_CELLS_OPERATION_STATUS [METRICS_OP_COUNT][METRICS_STATUS_COUNT]
#define METRICS_CELLS_COPY [STORE_COPY_REASONS]
#define METRICS_CELLS_TIMEOUT [METRICS_TIMEOUT_COUNT]
#define METRICS_CELLS_LIMIT [METRICS_LIMIT_COUNT]
#define METRICS_CELLS_ABORT [METRICS_ABORT_COUNT]
#define METRICS_CELLS_STAGE [METRICS_STAGE_COUNT]

#define METRICS_TYPE_COUNTER _Atomic uint64_t
#define METRICS_TYPE_GAUGE _Atomic uint64_t
#define METRICS_TYPE_HISTOGRAM struct store_histogram

#define METRICS_FIELD(kind, field, labels) METRICS_TYPE_##kind field METRICS_CELLS_##labels;
#define METRICS_SKIP(kind, field, labels)

/* One struct per scope that we count in ourselves. */
#define METRICS_IN_PROCESS(kind, field, labels) METRICS_FIELD(kind, field, labels)
#define METRICS_IN_WORKER METRICS_SKIP
#define METRICS_IN_LISTENER METRICS_SKIP
#define METRICS_IN_RX METRICS_SKIP
#define METRICS_IN_XDP METRICS_SKIP
#define METRICS_IN_RX_INFO METRICS_SKIP
#define METRICS_IN_PORT METRICS_SKIP
#define METRICS_IN_DEVICE METRICS_SKIP
#define METRICS_IN_SPACE METRICS_SKIP
#define METRICS_IN_STORE METRICS_SKIP
#define METRIC(scope, kind, field, labels, name, unit, help) METRICS_IN_##scope(kind, field, labels)
struct metrics_process {
#include "server/metrics.def"
};
#undef METRICS_IN_PROCESS
#undef METRICS_IN_WORKER
#define METRICS_IN_PROCESS METRICS_SKIP
#define METRICS_IN_WORKER METRICS_FIELD
struct metrics_worker {
#include "server/metrics.def"
} __attribute__((aligned(128)));
#undef METRICS_IN_WORKER
#undef METRICS_IN_LISTENER
#define METRICS_IN_WORKER METRICS_SKIP
#define METRICS_IN_LISTENER METRICS_FIELD
struct metrics_listener {
#include "server/metrics.def"
} __attribute__((aligned(128)));
#undef METRIC
#undef METRICS_IN_PROCESS
#undef METRICS_IN_WORKER
#undef METRICS_IN_LISTENER
#undef METRICS_IN_RX
#undef METRICS_IN_XDP
#undef METRICS_IN_RX_INFO
#undef METRICS_IN_PORT
#undef METRICS_IN_DEVICE
#undef METRICS_IN_SPACE
#undef METRICS_IN_STORE

/* ---- counting: the owner of the cell only --------------------------------------------------------------------------- */

static inline void metrics_add(_Atomic uint64_t *cell, uint64_t amount)
{
    atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}

static inline void metrics_sub(_Atomic uint64_t *cell, uint64_t amount)
{
    atomic_store_explicit(cell, atomic_load_explicit(cell, memory_order_relaxed) - amount,
                          memory_order_relaxed);
}

static inline void metrics_set(_Atomic uint64_t *cell, uint64_t value)
{
    atomic_store_explicit(cell, value, memory_order_relaxed);
}

/* Puts one duration into its bucket (powers of two of a microsecond). */
void metrics_observe(struct store_histogram *histogram, uint64_t duration_ns);

/* One answered request. http_status 0: the connection ended before its answer. */
void metrics_request(struct metrics_listener *cells, uint32_t operation, int http_status);
/* One that was answered with 200 before it failed: its document told an error that has this status. */
void metrics_request_late(struct metrics_listener *cells, uint32_t operation, int error_status);

/* Counts for a listener what the port copied since the last call: call it on the worker around the work for one
 * connection, with `seen` (STORE_COPY_REASONS values, zeroed at start) kept per worker. Copies that happen outside any
 * connection's turn go to whoever claims next; the sum over listeners stays exact. */
void metrics_copied_claim(struct metrics_listener *cells, const _Atomic uint64_t *port_copied,
                          uint64_t *seen);

/* ---- the registry -------------------------------------------------------------------------------------------------- */

struct metrics;

/* `conf` must outlive it. 0 or -ENOMEM. */
int metrics_open(const struct conf *conf, struct metrics **out);
void metrics_close(struct metrics *metrics);

/* The cells of a worker, valid until metrics_close. */
struct metrics_worker *metrics_worker(struct metrics *metrics, uint32_t worker);
struct metrics_listener *metrics_listener(struct metrics *metrics, uint32_t worker, uint32_t listener);
struct metrics_process *metrics_process(struct metrics *metrics);

/* NULL takes it out again; do that before closing what was registered. Taking out keeps the counters' last values. */
void metrics_rx_set(struct metrics *metrics, uint32_t worker, uint32_t listener, struct rx *rx);
void metrics_port_set(struct metrics *metrics, uint32_t worker, const _Atomic uint64_t *copied);
/* The worker's thread begins and ends: between the two its CPU time is read from outside, because a thread that sleeps tells nothing. */
void metrics_thread_begin(struct metrics *metrics, uint32_t worker);
void metrics_thread_end(struct metrics *metrics, uint32_t worker);
void metrics_store_set(struct metrics *metrics, struct store *store);
/* For the start-up plan and the status page: which receive path a listener took, and why. Copied. */
void metrics_plan_set(struct metrics *metrics, uint32_t listener, const char *path, const char *why);

/* The whole of /metrics (Prometheus text format 0.0.4), allocated with malloc; NULL without memory. */
char *metrics_text(struct metrics *metrics, size_t *len);
/* The whole status page (HTML), likewise. */
char *metrics_status_page(struct metrics *metrics, size_t *len);
/* The list of all metrics as Markdown (docs/METRICS.md). */
void metrics_reference_print(FILE *to);

#endif
