/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scrub: see scrub.h.
 *
 *   RESTING -- scrub_step: due --> [pin, look up, submit] --> READING -- dev_poll --> [verify, unpin] --> RESTING
 */
#include "storage/scrub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "storage/extent.h"
#include "storage/store_int.h"

#define PAUSE_DEFAULT_NS (60 * NS_PER_S)

struct scrub {
    struct store *store;
    struct index_view *view;
    struct dev_queue *queues[STORE_DEVICES_MAX];
    uint64_t rate, pause_ns;
    uint64_t due_ns;
    uint64_t extent_id; /* the one in work, or where to look next */
    uint64_t at;        /* payload bytes of it that are done */
    bool is_reading;
    uint64_t epoch; /* pinned while reading */
    struct index_extent_row row;
    struct extent_span span;
    struct iovec iov;
    struct dev_io io;
    uint8_t *buffer;
    struct scrub_stats stats;
};

int scrub_open(struct store *store, const struct scrub_options *options, struct scrub **out, struct err *err)
{
    CHECK(options->rate > 0);
    struct scrub *scrub = aligned_alloc(64, bytes_round_up(sizeof(*scrub), 64));
    if (scrub == NULL) {
        return -ENOMEM;
    }
    memset(scrub, 0, sizeof(*scrub));
    scrub->store = store;
    scrub->rate = options->rate;
    scrub->pause_ns = options->pause_ns != 0 ? options->pause_ns : PAUSE_DEFAULT_NS;
    scrub->buffer = aligned_alloc(EXTENT_BLOCK, EXTENT_CHECKSUM_BLOCK);
    int rc = scrub->buffer != NULL ? index_view_open(options->index, &scrub->view, err) : -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < store->device_count; i++) {
        rc = dev_queue_open(store->devices[i].dev, options->uring, 1, &scrub->queues[i], err);
    }
    if (rc != 0) {
        scrub_close(scrub);
        return rc;
    }
    *out = scrub;
    return 0;
}

static void finish_read(struct scrub *scrub);

/* True when the read in flight (if any) has come back. */
static bool read_is_back(struct scrub *scrub, uint64_t now_ns)
{
    struct dev_io *io = NULL;
    if (scrub->is_reading && dev_poll(scrub->queues[scrub->row.extent.device], now_ns, &io, 1) == 1) {
        finish_read(scrub);
    }
    return !scrub->is_reading;
}

void scrub_close(struct scrub *scrub)
{
    if (scrub == NULL) {
        return;
    }
    while (!read_is_back(scrub, scrub->due_ns)) {
        struct uring *uring = scrub->queues[scrub->row.extent.device]->uring;
        if (uring != NULL) {
            int rc = uring_submit_and_wait(uring, 10 * NS_PER_MS);
            CHECK(rc == 0);
            uring_reap(uring, UINT32_MAX);
        }
    }
    for (uint32_t i = 0; i < STORE_DEVICES_MAX; i++) {
        if (scrub->queues[i] != NULL) {
            dev_queue_close(scrub->queues[i]);
        }
    }
    index_view_close(scrub->view);
    free(scrub->buffer);
    free(scrub);
}

static void say_bad(const struct scrub *scrub, const char *what, uint64_t block)
{
    const struct object_extent *extent = &scrub->row.extent;
    LOG_ERR("scrub_bad_block", "what=%s device=%s extent=%llu offset=%llu block=%llu", what,
            LOG_Q(scrub->store->devices[extent->device].dev->path), (unsigned long long)scrub->row.id,
            (unsigned long long)extent->offset, (unsigned long long)block);
}

static void finish_read(struct scrub *scrub)
{
    scrub->is_reading = false;
    if (scrub->io.result != 0) {
        scrub->stats.read_errors++;
        say_bad(scrub, "unreadable", scrub->span.first_block);
    } else {
        int64_t bad = extent_verify(&scrub->row.extent, &scrub->span, scrub->buffer);
        if (bad >= 0) {
            scrub->stats.bad_blocks++;
            scrub->store->corrupt_blocks++;
            say_bad(scrub, "checksum", (uint64_t)bad);
        }
        scrub->stats.bytes += scrub->span.payload_len;
        scrub->store->scrubbed_bytes += scrub->span.payload_len;
    }
    scrub->at += scrub->span.payload_len;
    if (scrub->at >= scrub->row.extent.length) {
        scrub->extent_id = scrub->row.id + 1;
        scrub->at = 0;
    }
    epoch_unpin(scrub->store->epoch, scrub->epoch);
    store_reclaim(scrub->store);
}

static void start_read(struct scrub *scrub)
{
    const struct object_extent *extent = &scrub->row.extent;
    uint32_t lba_size = scrub->store->devices[extent->device].dev->info.lba_size;
    extent_read_span(extent, scrub->at, extent->length - scrub->at, EXTENT_CHECKSUM_BLOCK, lba_size,
                     &scrub->span);
    scrub->iov = (struct iovec){.iov_base = scrub->buffer, .iov_len = scrub->span.read_len};
    memset(&scrub->io, 0, sizeof(scrub->io));
    scrub->io.op = DEV_READ;
    scrub->io.buf_index = -1;
    scrub->io.offset = scrub->span.read_offset;
    scrub->io.len = scrub->span.read_len;
    scrub->io.iov = &scrub->iov;
    scrub->io.iov_count = 1;
    scrub->is_reading = true;
    dev_submit(scrub->queues[extent->device], &scrub->io);
}

/* Finds the next block under a new pin. 0: a read is under way; else the pin is gone again. */
static int next_block(struct scrub *scrub)
{
    struct store *store = scrub->store;
    scrub->epoch = epoch_pin(store->epoch);
    int rc = index_view_extent(scrub->view, scrub->extent_id, &scrub->row);
    if (rc == 0) {
        const struct object_extent *extent = &scrub->row.extent;
        scrub->at = scrub->row.id == scrub->extent_id ? scrub->at : 0; /* the one in work has gone */
        scrub->extent_id = scrub->row.id;
        bool usable = scrub->row.references > 0 && extent->device < store->device_count &&
                      extent_is_possible(extent, store->devices[extent->device].data_offset,
                                         store->devices[extent->device].data_end);
        if (usable) {
            start_read(scrub);
            return 0;
        }
        scrub->extent_id++; /* pending: its upload still runs */
        rc = -EAGAIN;
    }
    epoch_unpin(store->epoch, scrub->epoch);
    store_reclaim(store);
    return rc;
}

uint64_t scrub_step(struct scrub *scrub, uint64_t now_ns)
{
    if (!read_is_back(scrub, now_ns)) {
        return TIME_NEVER;
    }
    if (now_ns < scrub->due_ns) {
        return scrub->due_ns;
    }
    int rc = next_block(scrub);
    if (rc == 0) {
        scrub->due_ns =
            now_ns + (uint64_t)((double)scrub->span.read_len / (double)scrub->rate * (double)NS_PER_S);
        return TIME_NEVER;
    }
    if (rc == -ENOENT) {
        scrub->stats.passes++;
        scrub->extent_id = 0;
        scrub->at = 0;
        scrub->due_ns = now_ns + scrub->pause_ns;
    } else if (rc != -EAGAIN) {
        LOG_ERR("scrub_index", "why=%s", LOG_Q(err_text(rc)));
        scrub->due_ns = now_ns + scrub->pause_ns;
    }
    return scrub->due_ns;
}

void scrub_stats(const struct scrub *scrub, struct scrub_stats *out)
{
    *out = scrub->stats;
}
