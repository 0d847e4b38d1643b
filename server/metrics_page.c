/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_page: the status page of the admin address, for a person who wants to know at a glance what this node is and whether it
 * is well. Plain HTML without scripts. Runs on the admin thread; reads the registry under its lock and must not change it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "server/metrics_int.h"

static void html_print(const char *text, FILE *to)
{
    for (const char *at = text; *at != '\0'; at++) {
        switch (*at) {
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '&':
            fputs("&amp;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        default:
            fputc(*at, to);
            break;
        }
    }
}

static void cell_print(const char *text, FILE *to)
{
    fputs("<td>", to);
    html_print(text, to);
    fputs("</td>", to);
}

/* Three significant digits with a unit: for reading, not for reckoning. */
static void size_cell_print(uint64_t bytes, FILE *to)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < ARRAY_COUNT(units); unit++) {
        value /= 1024;
    }
    fprintf(to, "<td>%.*f %s</td>", unit == 0 ? 0 : 1, value, units[unit]);
}

static void head_print(struct metrics *metrics, FILE *to)
{
    const struct metrics_process *process = &metrics->process;
    uint64_t uptime_s = (clock_realtime_ns() - atomic_load(&process->start_time_ns)) / NS_PER_S;
    fputs("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>penstock ", to);
    html_print(metrics->conf->node.name, to);
    fputs("</title><style>body{font:14px sans-serif;margin:2em}table{border-collapse:collapse;margin:1em 0}"
          "td,th{border:1px solid #bbb;padding:.3em .6em;text-align:left}</style></head><body><h1>penstock ",
          to);
    html_print(metrics->conf->node.name, to);
    fprintf(to,
            "</h1><p>version " PENSTOCK_VERSION ", process %d, up %" PRIu64
            " s, %u worker%s, %s%s. Resident memory %" PRIu64 " MiB.</p>",
            (int)getpid(), uptime_s, metrics->workers, metrics->workers == 1 ? "" : "s",
            atomic_load(&process->ready) != 0 ? "ready" : "<b>not ready</b>",
            atomic_load(&process->draining) != 0 ? ", <b>draining</b>" : "",
            (uint64_t)(atomic_load(&process->resident_bytes) / MIB));
    fputs("<p><a href=\"/metrics\">metrics</a> <a href=\"/healthz\">health</a> <a "
          "href=\"/readyz\">readiness</a></p>",
          to);
}

/* The mode is had only when sockets are bound, so the plan's `why` cannot say it. Stands at the first af_xdp listener of an interface. */
static void xdp_modes_print(const struct metrics *metrics, uint32_t listener, FILE *to)
{
    static const struct {
        enum rx_xdp_state_gauge gauge;
        const char *text;
    } modes[] = {{RX_XDP_STATE_queues_zero_copy, "native XDP with zero-copy"},
                 {RX_XDP_STATE_queues_one_copy, "native XDP with one copy"},
                 {RX_XDP_STATE_queues_generic, "generic XDP"},
                 {RX_XDP_STATE_queues_unserved, "<b>without socket</b>"}};
    for (size_t i = 0; i < ARRAY_COUNT(modes); i++) {
        uint64_t queues = 0;
        for (uint32_t worker = 0; worker < metrics->workers; worker++) {
            const struct rx_xdp_stats *stats =
                metrics_rx_xdp(&metrics->rx[(size_t)worker * metrics->listeners + listener]);
            queues += stats != NULL ? atomic_load(&stats->states[modes[i].gauge]) : 0;
        }
        if (queues > 0) {
            fprintf(to, "; %s: %" PRIu64 " queue%s", modes[i].text, queues, queues == 1 ? "" : "s");
        }
    }
}

static void listener_row_print(const struct metrics *metrics, uint32_t listener, FILE *to)
{
    const struct conf_listener *conf = &metrics->conf->listeners[listener];
    uint64_t open = 0;
    uint64_t uploads = 0;
    uint64_t received = 0;
    uint64_t sent = 0;
    for (uint32_t worker = 0; worker < metrics->workers; worker++) {
        size_t pair = (size_t)worker * metrics->listeners + listener;
        open += atomic_load(&metrics_rx_stats(&metrics->rx[pair])->conns_open);
        uploads += atomic_load(&metrics->listener_cells[pair].uploads_in_flight);
        received += atomic_load(&metrics->listener_cells[pair].payload_stored_bytes);
        sent += atomic_load(&metrics->listener_cells[pair].payload_sent_bytes);
    }
    fputs("<tr>", to);
    cell_print(conf->name, to);
    cell_print(conf_protocol_text(conf->protocol), to);
    cell_print(conf->address.text, to);
    cell_print(metrics->plans[listener].path, to);
    fputs("<td>", to);
    html_print(metrics->plans[listener].why, to);
    xdp_modes_print(metrics, listener, to);
    fputs("</td>", to);
    size_cell_print(metrics->rx[listener].info.buffer_size, to);
    fprintf(to, "<td>%" PRIu64 "</td><td>%" PRIu64 "</td>", open, uploads);
    size_cell_print(received, to);
    size_cell_print(sent, to);
    fputs("</tr>", to);
}

static void device_row_print(struct store *store, uint32_t index, FILE *to)
{
    static const char *const states[] = {"ok", "suspect", "failed"};
    struct store_device_info *info = calloc(1, sizeof(*info));
    if (info == NULL) {
        return; /* the page lacks a row; nothing else depends on it */
    }
    store_device_info(store, index, info);
    fputs("<tr>", to);
    cell_print(info->path, to);
    cell_print(states[info->state], to);
    cell_print(info->state_reason, to);
    size_cell_print(info->used, to);
    size_cell_print(info->size, to);
    fprintf(to, "<td>%u</td><td>%u</td><td>%s</td><td>%s</td>", info->lba_size, info->dma_alignment,
            info->direct ? "yes" : "no", info->packets_ok ? "yes" : "no");
    cell_print(info->note, to);
    fputs("</tr>", to);
    free(info);
}

static void tables_print(struct metrics *metrics, FILE *to)
{
    fputs("<h2>Listeners</"
          "h2><table><tr><th>name<th>protocol<th>address<th>path<th>why<th>buffer<th>connections<th>uploads "
          "in flight"
          "<th>stored<th>sent</tr>",
          to);
    for (uint32_t i = 0; i < metrics->listeners; i++) {
        listener_row_print(metrics, i, to);
    }
    fputs("</table>", to);
    if (metrics->store == NULL) {
        fputs("<p>The store is not open.</p>", to);
        return;
    }
    fputs("<h2>Devices</h2><table><tr><th>path<th>state<th>reason<th>used<th>size<th>LBA<th>DMA "
          "alignment<th>direct<th>packets without "
          "copy<th>note</tr>",
          to);
    for (uint32_t i = 0; i < store_device_count(metrics->store); i++) {
        device_row_print(metrics->store, i, to);
    }
    struct store_stats stats = {.objects = 0};
    store_stats(metrics->store, &stats);
    fprintf(to,
            "</table><p>%" PRIu64 " objects, index %" PRIu64 " MiB, %" PRIu64 " corrupt blocks found.</p>",
            stats.objects, (uint64_t)(stats.index_bytes / MIB), stats.corrupt_blocks);
}

char *metrics_status_page(struct metrics *metrics, size_t *len)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, len);
    if (to == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&metrics->lock);
    metrics_refresh(metrics);
    head_print(metrics, to);
    tables_print(metrics, to);
    pthread_mutex_unlock(&metrics->lock);
    fputs("</body></html>\n", to);
    if (fclose(to) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
