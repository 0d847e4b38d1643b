/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_text: the rows of metrics.def as Prometheus text (format 0.0.4) and as docs/METRICS.md. Runs on the admin thread; reads
 * the registry under its lock and must not change it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "server/metrics_int.h"

/* ---- the table --------------------------------------------------------------------------------------------------------- */

#define OFFSET_PROCESS(kind, field) offsetof(struct metrics_process, field)
#define OFFSET_WORKER(kind, field) offsetof(struct metrics_worker, field)
#define OFFSET_LISTENER(kind, field) offsetof(struct metrics_listener, field)
#define OFFSET_RX(kind, field) offsetof(struct rx_stats, field)
#define OFFSET_XDP(kind, field) offsetof(struct rx_xdp_stats, field)
#define OFFSET_RX_INFO(kind, field) offsetof(struct rx_info, field)
#define OFFSET_PORT(kind, field) 0
#define OFFSET_SPACE(kind, field) 0
#define OFFSET_STORE(kind, field) offsetof(struct store_stats, field)
#define OFFSET_DEVICE(kind, field) OFFSET_DEVICE_##kind(field)
#define OFFSET_DEVICE_GAUGE(field) offsetof(struct store_device_info, field)
#define OFFSET_DEVICE_COUNTER(field) offsetof(struct store_device_info, field)
#define OFFSET_DEVICE_HISTOGRAM(field) (field)
/* Only these two hold values of several widths; all others are 64 bits wide. */
#define WIDTH_PROCESS(kind, field) 8
#define WIDTH_WORKER(kind, field) 8
#define WIDTH_LISTENER(kind, field) 8
#define WIDTH_RX(kind, field) 8
#define WIDTH_XDP(kind, field) 8
#define WIDTH_RX_INFO(kind, field) sizeof(((struct rx_info *)NULL)->field)
#define WIDTH_PORT(kind, field) 8
#define WIDTH_SPACE(kind, field) 8
#define WIDTH_STORE(kind, field) 8
#define WIDTH_DEVICE(kind, field) WIDTH_DEVICE_##kind(field)
#define WIDTH_DEVICE_GAUGE(field) sizeof(((struct store_device_info *)NULL)->field)
#define WIDTH_DEVICE_COUNTER(field) sizeof(((struct store_device_info *)NULL)->field)
#define WIDTH_DEVICE_HISTOGRAM(field) 8

#define METRIC(scope_, kind_, field, labels_, name_, unit_, help_)                                           \
    {.scope = METRICS_##scope_,                                                                              \
     .kind = METRICS_##kind_,                                                                                \
     .labels = METRICS_LABELS_##labels_,                                                                     \
     .offset = OFFSET_##scope_(kind_, field),                                                                \
     .width = WIDTH_##scope_(kind_, field),                                                                  \
     .name = name_,                                                                                          \
     .unit = unit_,                                                                                          \
     .help = help_},
const struct metrics_row metrics_rows[] = {
#include "server/metrics.def"
};
#undef METRIC
const size_t metrics_row_count = ARRAY_COUNT(metrics_rows);

/* ---- labels ------------------------------------------------------------------------------------------------------------ */

#define LABEL_TEXT(symbol, text) text,
static const char *const timeout_names[] = {METRICS_TIMEOUTS(LABEL_TEXT)};
static const char *const limit_names[] = {METRICS_LIMITS(LABEL_TEXT)};
static const char *const abort_names[] = {METRICS_ABORTS(LABEL_TEXT)};
static const char *const stage_names[] = {METRICS_STAGES(LABEL_TEXT)};
static const char *const status_names[] = {"2xx", "3xx", "4xx", "5xx", "lost", "late_4xx", "late_5xx"};
_Static_assert(ARRAY_COUNT(status_names) == METRICS_STATUS_COUNT, "a name per status class");

static const char *operation_name(uint32_t operation)
{
    if (operation == METRICS_OP_RAW_PUT) {
        return "RawPut";
    }
    return operation == METRICS_OP_UNPARSED ? "Unparsed" : s3_op_name((enum s3_op)operation);
}

uint32_t metrics_cell_count(enum metrics_labels labels)
{
    static const uint32_t counts[] = {
        [METRICS_LABELS_NONE] = 1,
        [METRICS_LABELS_OPERATION_STATUS] = METRICS_OP_COUNT * METRICS_STATUS_COUNT,
        [METRICS_LABELS_COPY] = STORE_COPY_REASONS,
        [METRICS_LABELS_TIMEOUT] = METRICS_TIMEOUT_COUNT,
        [METRICS_LABELS_LIMIT] = METRICS_LIMIT_COUNT,
        [METRICS_LABELS_ABORT] = METRICS_ABORT_COUNT,
        [METRICS_LABELS_STAGE] = METRICS_STAGE_COUNT,
        [METRICS_LABELS_TCP] = TCP_COUNTERS,
        [METRICS_LABELS_VERDICT] = XSK_PROG_REASONS,
        [METRICS_LABELS_XDP_SOCKET] = RX_XDP_SOCKETS,
        [METRICS_LABELS_XDP_STATE] = RX_XDP_STATES,
    };
    return counts[labels];
}

void metrics_cell_labels(enum metrics_labels labels, uint32_t cell, char *to, size_t size)
{
    CHECK(cell < metrics_cell_count(labels));
    to[0] = '\0';
    switch (labels) {
    case METRICS_LABELS_NONE:
        return;
    case METRICS_LABELS_OPERATION_STATUS:
        snprintf(to, size, "operation=\"%s\",status=\"%s\"", operation_name(cell / METRICS_STATUS_COUNT),
                 status_names[cell % METRICS_STATUS_COUNT]);
        return;
    case METRICS_LABELS_COPY:
        snprintf(to, size, "reason=\"%s\"", store_copy_reason_name((enum store_copy_reason)cell));
        return;
    case METRICS_LABELS_TIMEOUT:
        snprintf(to, size, "deadline=\"%s\"", timeout_names[cell]);
        return;
    case METRICS_LABELS_LIMIT:
        snprintf(to, size, "limit=\"%s\"", limit_names[cell]);
        return;
    case METRICS_LABELS_ABORT:
        snprintf(to, size, "cause=\"%s\"", abort_names[cell]);
        return;
    case METRICS_LABELS_STAGE:
        snprintf(to, size, "stage=\"%s\"", stage_names[cell]);
        return;
    case METRICS_LABELS_TCP:
        snprintf(to, size, "event=\"%s\"", rx_xdp_tcp_name(cell));
        return;
    case METRICS_LABELS_VERDICT:
        snprintf(to, size, "verdict=\"%s\"", rx_xdp_verdict_name(cell));
        return;
    case METRICS_LABELS_XDP_SOCKET:
        snprintf(to, size, "event=\"%s\"", rx_xdp_socket_name(cell));
        return;
    case METRICS_LABELS_XDP_STATE:
        snprintf(to, size, "state=\"%s\"", rx_xdp_state_name(cell));
        return;
    }
}

/* Label values and help texts: backslash, newline and (in labels) the quote are escaped. */
static void escaped_print(const char *text, bool is_label, FILE *to)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '\n') {
            fputs("\\n", to);
        } else {
            if (*at == '\\' || (is_label && *at == '"')) {
                fputc('\\', to);
            }
            fputc(*at, to);
        }
    }
}

/* ---- samples ----------------------------------------------------------------------------------------------------------- */

/* One rendering: the labels of the scope ("listener=..."), already escaped, without braces. */
struct sample_place {
    const struct metrics_row *row;
    const char *scope_labels;
    FILE *to;
};

static void labels_print(const struct sample_place *place, const char *cell_labels, const char *le)
{
    const char *parts[] = {place->scope_labels, cell_labels, le};
    bool is_first = true;
    for (size_t i = 0; i < ARRAY_COUNT(parts); i++) {
        if (parts[i][0] != '\0') {
            fprintf(place->to, "%s%s", is_first ? "{" : ",", parts[i]);
            is_first = false;
        }
    }
    fputs(is_first ? " " : "} ", place->to);
}

static void value_print(const struct metrics_row *row, uint64_t value, FILE *to)
{
    if (strcmp(row->unit, "seconds") == 0) {
        fprintf(to, "%llu.%09llu\n", (unsigned long long)(value / NS_PER_S),
                (unsigned long long)(value % NS_PER_S));
    } else {
        fprintf(to, "%" PRIu64 "\n", value);
    }
}

static void sample_print(const struct sample_place *place, uint32_t cell, uint64_t value)
{
    char cell_labels[128];
    metrics_cell_labels(place->row->labels, cell, cell_labels, sizeof(cell_labels));
    fputs(place->row->name, place->to);
    labels_print(place, cell_labels, "");
    value_print(place->row, value, place->to);
}

/* A plain copy of one histogram, or the sum of several. */
struct histogram_sum {
    uint64_t buckets[32];
    uint64_t sum_us;
};

static void histogram_add(struct histogram_sum *sum, const struct store_histogram *histogram)
{
    for (uint32_t i = 0; i < 32; i++) {
        sum->buckets[i] += atomic_load_explicit(&histogram->buckets[i], memory_order_relaxed);
    }
    sum->sum_us += atomic_load_explicit(&histogram->sum_us, memory_order_relaxed);
}

#define BUCKET_FIRST 4U /* below 32 us everything is one bucket, */
#define BUCKET_LAST 25U /* and so it is above 67 s */

/* The total is summed from the buckets read, so that it is their sum also while a worker counts. */
static void histogram_print(const struct sample_place *place, const struct histogram_sum *sum)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < 32; i++) {
        total += sum->buckets[i];
        if (i >= BUCKET_FIRST && i <= BUCKET_LAST) {
            char le[48];
            snprintf(le, sizeof(le), "le=\"%.9g\"", (double)(2ULL << i) / 1e6);
            fprintf(place->to, "%s_bucket", place->row->name);
            labels_print(place, "", le);
            fprintf(place->to, "%" PRIu64 "\n", total);
        }
    }
    fprintf(place->to, "%s_bucket", place->row->name);
    labels_print(place, "", "le=\"+Inf\"");
    fprintf(place->to, "%" PRIu64 "\n%s_sum", total, place->row->name);
    labels_print(place, "", "");
    fprintf(place->to, "%" PRIu64 ".%06" PRIu64 "\n%s_count", sum->sum_us / 1000000, sum->sum_us % 1000000,
            place->row->name);
    labels_print(place, "", "");
    fprintf(place->to, "%" PRIu64 "\n", total);
}

/* ---- scopes ------------------------------------------------------------------------------------------------------------ */

static uint64_t cell_load(const void *base, const struct metrics_row *row, uint32_t cell)
{
    const _Atomic uint64_t *cells =
        (const _Atomic uint64_t *)(const void *)((const uint8_t *)base + row->offset);
    return atomic_load_explicit(&cells[cell], memory_order_relaxed);
}

/* A value of a struct that is a plain copy: bool, enum, uint32_t or uint64_t. */
static uint64_t plain_load(const void *base, const struct metrics_row *row)
{
    const uint8_t *at = (const uint8_t *)base + row->offset;
    uint32_t narrow;
    uint64_t wide;
    switch (row->width) {
    case 1:
        return *at;
    case 4:
        memcpy(&narrow, at, sizeof(narrow));
        return narrow;
    default:
        memcpy(&wide, at, sizeof(wide));
        return wide;
    }
}

/* Everything one scrape reads, gathered before the first byte is written. */
struct scrape {
    struct metrics *metrics;
    struct store_stats store;
    uint32_t device_count;
    struct store_device_info *devices;
    FILE *to;
};

static void worker_rows_print(struct scrape *scrape, const struct metrics_row *row)
{
    for (uint32_t worker = 0; worker < scrape->metrics->workers; worker++) {
        char labels[32];
        snprintf(labels, sizeof(labels), "worker=\"%u\"", worker);
        struct sample_place place = {.row = row, .scope_labels = labels, .to = scrape->to};
        const _Atomic uint64_t *port = scrape->metrics->ports[worker];
        for (uint32_t cell = 0; cell < metrics_cell_count(row->labels); cell++) {
            if (row->scope == METRICS_WORKER) {
                sample_print(&place, cell, cell_load(&scrape->metrics->worker_cells[worker], row, cell));
            } else if (port != NULL) {
                sample_print(&place, cell, atomic_load_explicit(&port[cell], memory_order_relaxed));
            }
        }
    }
}

static void listener_labels(const struct scrape *scrape, uint32_t listener, char *to, size_t size)
{
    const struct conf_listener *conf = &scrape->metrics->conf->listeners[listener];
    /* Names and paths were checked to be free of what needs escaping. */
    snprintf(to, size, "listener=\"%s\",protocol=\"%s\",path=\"%s\"", conf->name,
             conf_protocol_text(conf->protocol), scrape->metrics->plans[listener].path);
}

/* Sum over workers of one cell of one listener. */
static uint64_t listener_sum(const struct metrics *metrics, const struct metrics_row *row, uint32_t listener,
                             uint32_t cell)
{
    uint64_t sum = 0;
    for (uint32_t worker = 0; worker < metrics->workers; worker++) {
        size_t pair = (size_t)worker * metrics->listeners + listener;
        if (row->scope == METRICS_LISTENER) {
            sum += cell_load(&metrics->listener_cells[pair], row, cell);
        } else if (row->scope == METRICS_RX) {
            sum += cell_load(metrics_rx_stats(&metrics->rx[pair]), row, cell);
        } else if (row->scope == METRICS_XDP) {
            const struct rx_xdp_stats *xdp = metrics_rx_xdp(&metrics->rx[pair]);
            sum += xdp != NULL ? cell_load(xdp, row, cell) : 0;
        } else if (worker == 0) {
            sum = plain_load(&metrics->rx[pair].info, row);
        }
    }
    return sum;
}

/* Operations that never happened are left out: a listener has 190 of these cells and uses few. */
static bool is_worth_a_line(const struct metrics_row *row, uint64_t value)
{
    return row->labels != METRICS_LABELS_OPERATION_STATUS || value != 0;
}

static bool listener_has(const struct metrics *metrics, const struct metrics_row *row, uint32_t listener)
{
    bool has_any = row->scope != METRICS_XDP;
    for (uint32_t worker = 0; worker < metrics->workers; worker++) {
        has_any |= metrics->rx[(size_t)worker * metrics->listeners + listener].has_xdp;
    }
    return has_any;
}

static void listener_rows_print(struct scrape *scrape, const struct metrics_row *row)
{
    const struct metrics *metrics = scrape->metrics;
    for (uint32_t listener = 0; listener < metrics->listeners; listener++) {
        if (!listener_has(metrics, row, listener)) {
            continue;
        }
        char labels[160];
        listener_labels(scrape, listener, labels, sizeof(labels));
        struct sample_place place = {.row = row, .scope_labels = labels, .to = scrape->to};
        if (row->kind == METRICS_HISTOGRAM) {
            struct histogram_sum sum = {.sum_us = 0};
            for (uint32_t worker = 0; worker < metrics->workers; worker++) {
                const struct metrics_listener *cells =
                    &metrics->listener_cells[(size_t)worker * metrics->listeners + listener];
                histogram_add(&sum, (const struct store_histogram *)(const void *)((const uint8_t *)cells +
                                                                                   row->offset));
            }
            histogram_print(&place, &sum);
            continue;
        }
        for (uint32_t cell = 0; cell < metrics_cell_count(row->labels); cell++) {
            uint64_t value = listener_sum(metrics, row, listener, cell);
            if (is_worth_a_line(row, value)) {
                sample_print(&place, cell, value);
            }
        }
    }
}

static void device_rows_print(struct scrape *scrape, const struct metrics_row *row)
{
    for (uint32_t i = 0; i < scrape->device_count; i++) {
        const struct store_device_info *info = &scrape->devices[i];
        char *labels = NULL;
        size_t len = 0;
        FILE *to = open_memstream(&labels, &len);
        if (to == NULL) {
            return;
        }
        fputs("device=\"", to);
        escaped_print(info->path, true, to);
        fputc('"', to);
        fclose(to);
        struct sample_place place = {.row = row, .scope_labels = labels, .to = scrape->to};
        if (row->kind == METRICS_HISTOGRAM) {
            struct histogram_sum sum = {.sum_us = 0};
            histogram_add(&sum,
                          store_device_latency(scrape->metrics->store, i, (enum store_latency)row->offset));
            histogram_print(&place, &sum);
        } else if (row->scope == METRICS_SPACE) {
            sample_print(&place, 0, info->size > info->used ? info->size - info->used : 0);
        } else {
            sample_print(&place, 0, plain_load(info, row));
        }
        free(labels);
    }
}

static void store_row_print(struct scrape *scrape, const struct metrics_row *row)
{
    struct sample_place place = {.row = row, .scope_labels = "", .to = scrape->to};
    if (row->kind != METRICS_HISTOGRAM) {
        sample_print(&place, 0, plain_load(&scrape->store, row));
        return;
    }
    const struct store_histogram *const *histogram =
        (const struct store_histogram *const *)(const void *)((const uint8_t *)&scrape->store + row->offset);
    struct histogram_sum sum = {.sum_us = 0};
    if (*histogram != NULL) {
        histogram_add(&sum, *histogram);
    }
    histogram_print(&place, &sum);
}

static void row_print(struct scrape *scrape, const struct metrics_row *row)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    bool needs_store =
        row->scope == METRICS_DEVICE || row->scope == METRICS_SPACE || row->scope == METRICS_STORE;
    if (needs_store && scrape->metrics->store == NULL) {
        return;
    }
    fprintf(scrape->to, "# HELP %s ", row->name);
    escaped_print(row->help, false, scrape->to);
    fprintf(scrape->to, " Unit: %s.\n# TYPE %s %s\n", row->unit, row->name, kinds[row->kind]);
    switch (row->scope) {
    case METRICS_PROCESS: {
        struct sample_place place = {.row = row, .scope_labels = "", .to = scrape->to};
        sample_print(&place, 0, cell_load(&scrape->metrics->process, row, 0));
        return;
    }
    case METRICS_WORKER:
    case METRICS_PORT:
        worker_rows_print(scrape, row);
        return;
    case METRICS_LISTENER:
    case METRICS_RX:
    case METRICS_XDP:
    case METRICS_RX_INFO:
        listener_rows_print(scrape, row);
        return;
    case METRICS_DEVICE:
    case METRICS_SPACE:
        device_rows_print(scrape, row);
        return;
    case METRICS_STORE:
        store_row_print(scrape, row);
        return;
    }
}

static void build_info_print(const struct conf *conf, FILE *to)
{
    fprintf(to,
            "# HELP penstock_build_info Version of the program and name of the node; always 1. Unit: none.\n"
            "# TYPE penstock_build_info gauge\npenstock_build_info{version=\"%s\",node=\"%s\"} 1\n",
            PENSTOCK_VERSION, conf->node.name);
}

/* Devices and store numbers, read while the lock keeps the store open. 0 or -ENOMEM. */
static int scrape_gather(struct scrape *scrape)
{
    struct store *store = scrape->metrics->store;
    if (store == NULL) {
        return 0;
    }
    store_stats(store, &scrape->store);
    scrape->device_count = store_device_count(store);
    scrape->devices = calloc(scrape->device_count, sizeof(*scrape->devices));
    if (scrape->devices == NULL) {
        return -1;
    }
    for (uint32_t i = 0; i < scrape->device_count; i++) {
        store_device_info(store, i, &scrape->devices[i]);
    }
    return 0;
}

char *metrics_text(struct metrics *metrics, size_t *len)
{
    char *text = NULL;
    struct scrape scrape = {.metrics = metrics};
    scrape.to = open_memstream(&text, len);
    if (scrape.to == NULL) {
        return NULL;
    }
    metrics_add(&metrics->process.scrapes, 1);
    pthread_mutex_lock(&metrics->lock);
    metrics_refresh(metrics);
    int rc = scrape_gather(&scrape);
    if (rc == 0) {
        build_info_print(metrics->conf, scrape.to);
    }
    for (size_t i = 0; rc == 0 && i < metrics_row_count; i++) {
        row_print(&scrape, &metrics_rows[i]);
    }
    pthread_mutex_unlock(&metrics->lock);
    free(scrape.devices);
    if (fclose(scrape.to) != 0 || rc != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- the reference ----------------------------------------------------------------------------------------------------- */

static const char *scope_labels_text(enum metrics_scope scope)
{
    switch (scope) {
    case METRICS_WORKER:
    case METRICS_PORT:
        return "worker";
    case METRICS_LISTENER:
    case METRICS_RX:
    case METRICS_XDP:
    case METRICS_RX_INFO:
        return "listener, protocol, path";
    case METRICS_DEVICE:
    case METRICS_SPACE:
        return "device";
    case METRICS_PROCESS:
    case METRICS_STORE:
        return "";
    }
    return "";
}

static const char *cell_labels_text(enum metrics_labels labels)
{
    static const char *const texts[] = {
        "",      "operation, status", "reason", "deadline", "limit", "cause", "stage",
        "event", "verdict",           "event",  "state"};
    return texts[labels];
}

static void values_print(const char *label, const char *const *names, size_t count, FILE *to)
{
    fprintf(to, "- `%s`:", label);
    for (size_t i = 0; i < count; i++) {
        fprintf(to, "%s `%s`", i == 0 ? "" : ",", names[i]);
    }
    fputc('\n', to);
}

static void label_sets_print(FILE *to)
{
    fputs("\n## Values of the labels\n\n`listener` is a name from the configuration, `path` the receive path "
          "it took (`socket`, `zcrx`, `af_xdp`,\n"
          "`none` before it is open), `device` a path from the configuration, `worker` a number from 0.\n\n- "
          "`operation`:",
          to);
    for (uint32_t i = 0; i < METRICS_OP_COUNT; i++) {
        fprintf(to, "%s `%s`", i == 0 ? "" : ",", operation_name(i));
    }
    fputs(" (only those that occurred are shown)\n- `reason`, why payload was copied:\n", to);
    for (uint32_t i = 0; i < STORE_COPY_REASONS; i++) {
        fprintf(to, "  - `%s`: %s\n", store_copy_reason_name((enum store_copy_reason)i),
                store_copy_reason_help((enum store_copy_reason)i));
    }
    values_print("status", status_names, ARRAY_COUNT(status_names), to);
    values_print("deadline", timeout_names, ARRAY_COUNT(timeout_names), to);
    values_print("limit", limit_names, ARRAY_COUNT(limit_names), to);
    values_print("cause", abort_names, ARRAY_COUNT(abort_names), to);
    values_print("stage", stage_names, ARRAY_COUNT(stage_names), to);
}

static void xdp_events_print(const char *metric, uint32_t count, const char *(*name)(uint32_t),
                             const char *(*help)(uint32_t), FILE *to)
{
    fprintf(to, "\n### `%s`\n\n", metric);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(to, "- `%s`: %s\n", name(i), help(i));
    }
}

static void xdp_sets_print(FILE *to)
{
    fputs("\n## Events of af_xdp\n\nThe counters of an interface stand at the first of its af_xdp listeners. "
          "They are "
          "brought up to date five times a second while\nthere are connections, else once a second.\n",
          to);
    xdp_events_print("penstock_xdp_frames_total", XSK_PROG_REASONS, rx_xdp_verdict_name, rx_xdp_verdict_help,
                     to);
    xdp_events_print("penstock_xdp_socket_total", RX_XDP_SOCKETS, rx_xdp_socket_name, rx_xdp_socket_help, to);
    xdp_events_print("penstock_xdp_tcp_total", TCP_COUNTERS, rx_xdp_tcp_name, rx_xdp_tcp_help, to);
    xdp_events_print("penstock_xdp_held", RX_XDP_STATES, rx_xdp_state_name, rx_xdp_state_help, to);
}

void metrics_reference_print(FILE *to)
{
    static const char *const kinds[] = {"counter", "gauge", "histogram"};
    fputs("<!-- Generated by \"penstock reference metrics\" from server/metrics.def; do not edit. -->\n"
          "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
          "# Metrics\n\n"
          "`GET /metrics` on the admin address, Prometheus text format. Counters grow from the start of the "
          "process. Histograms have buckets at\n"
          "powers of two of a microsecond from 32 us to 67 s. Names of the process group are those every "
          "Prometheus client uses.\n\n"
          "| Metric | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n"
          "| `penstock_build_info` | gauge | none | version, node | Version of the program and name of the "
          "node; always 1. |\n",
          to);
    for (size_t i = 0; i < metrics_row_count; i++) {
        const struct metrics_row *row = &metrics_rows[i];
        const char *scope = scope_labels_text(row->scope);
        const char *cells = cell_labels_text(row->labels);
        fprintf(to, "| `%s` | %s | %s | %s%s%s | %s |\n", row->name, kinds[row->kind], row->unit, scope,
                scope[0] != '\0' && cells[0] != '\0' ? ", " : "", cells, row->help);
    }
    label_sets_print(to);
    xdp_sets_print(to);
}
