/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_direct: the store opened in this process, while no node runs. One ring, one port, one request at a time: a small blocking loop
 * around the same interface that workers use, so there is no second way to read or write a store.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <zstd.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/uring.h"
#include "server/cli_store.h"
#include "server/s3_meta.h"
#include "server/zframe.h"
#include "server/store_conf.h"

/* Together less than the 8 MiB that users may lock by default. */
#define STAGING_SIZE (5 * MIB)
#define BUFFER_SIZE (256U * 1024U) /* one slice of an upload */
#define BUFFER_COUNT 8U
#define LIST_COUNT 1000U
#define EVENTS_MAX 32U
#define WAIT_NS (100 * NS_PER_MS) /* longest sleep; completions and the port's eventfd end it earlier */

struct direct {
    struct cli_store base;
    struct store *store;
    struct store_port *port;
    struct uring uring;
    struct arena arena;
    struct slice_owner owner;
    bool wake_is_armed;                /* a poll on the port's eventfd is in the ring */
    uint32_t references[BUFFER_COUNT]; /* of each buffer of the area */
};

/* ---- the loop ---------------------------------------------------------------------------------------------------------- */

/* Answers of the store's threads make the port's eventfd readable. */
static void wake_handler(void *ctx, void *op, const struct io_uring_cqe *cqe)
{
    (void)op; /* there is one */
    if ((cqe->flags & IORING_CQE_F_MORE) == 0) {
        ((struct direct *)ctx)->wake_is_armed = false;
    }
}

static void wake_arm(struct direct *direct)
{
    if (!direct->wake_is_armed) {
        struct io_uring_sqe *sqe = uring_sqe(&direct->uring);
        io_uring_prep_poll_multishot(sqe, store_port_event_fd(direct->port), POLLIN);
        uring_sqe_bind(sqe, URING_CLASS_WAKE, NULL);
        direct->wake_is_armed = true;
    }
}

static bool direct_is_done(const struct store_event *event, const void *waits_for)
{
    switch (event->kind) {
    case STORE_EVENT_REQUEST:
        return event->request == waits_for;
    case STORE_EVENT_LATE: /* Logged; it is waited for. */
        return false;
    case STORE_EVENT_PUT:
        return event->put == waits_for;
    case STORE_EVENT_READ:
        return event->read == waits_for;
    }
    return false;
}

/* One turn; true when the awaited request, put or read reported something. */
static bool direct_turn(struct direct *direct, const void *waits_for)
{
    struct store_event events[EVENTS_MAX];
    bool is_done = false;
    uring_reap(&direct->uring, EVENTS_MAX);
    uint32_t count = store_poll(direct->port, clock_monotonic_ns(), events, EVENTS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        is_done |= direct_is_done(&events[i], waits_for);
    }
    if (count == 0) {
        wake_arm(direct);
        int rc = uring_submit_and_wait(&direct->uring, WAIT_NS);
        CHECK(rc == 0 || rc == -EBUSY);
    }
    return is_done;
}

/* Submits a request and returns its status. The deadlines are the store's. */
static int direct_ask(struct direct *direct, struct store_request *request)
{
    store_submit(direct->port, request);
    while (!direct_turn(direct, request)) { /* the store answers every request */
    }
    return request->status;
}

static struct store_request *request_new(enum store_request_kind kind, const struct cli_key *key)
{
    struct store_request *request = calloc(1, sizeof(*request));
    if (request != NULL) {
        request->kind = kind;
        if (key != NULL) {
            memcpy(request->bucket, key->bucket, sizeof(request->bucket));
            memcpy(request->key.bytes, key->key, key->key_len);
            request->key.len = (uint16_t)key->key_len;
        }
    }
    return request;
}

/* A request of which only the status matters. */
static int direct_ask_simple(struct direct *direct, enum store_request_kind kind, const struct cli_key *key,
                             bool *existed)
{
    struct store_request *request = request_new(kind, key);
    if (request == NULL) {
        return -ENOMEM;
    }
    int rc = direct_ask(direct, request);
    *existed = request->existed;
    free(request);
    return rc;
}

/* ---- lists ------------------------------------------------------------------------------------------------------------- */

static int direct_buckets(struct cli_store *base, cli_entry_fn entry, void *ctx, struct err *err)
{
    struct direct *direct = (struct direct *)base;
    struct store_request *request = request_new(STORE_BUCKET_LIST, NULL);
    int rc = request == NULL ? -ENOMEM : direct_ask(direct, request);
    if (rc != 0) {
        free(request);
        return err_set(err, rc, "listing buckets: %s", err_text(rc));
    }
    for (uint32_t i = 0; rc == 0 && i < request->list->count; i++) {
        const struct store_list_entry *found = &request->list->entries[i];
        struct cli_entry out = {
            .name = (const char *)found->key, .len = found->key_len, .modified_ns = found->modified_ns};
        rc = entry(ctx, &out);
    }
    store_list_free(request->list);
    free(request);
    return rc;
}

/* The next page begins behind the last entry of this one. */
static void list_advance(struct store_list_options *options, const struct store_list *list)
{
    const struct store_list_entry *last = &list->entries[list->count - 1];
    memcpy(options->after.bytes, last->key, last->key_len);
    options->after.len = last->key_len;
    options->after_is_prefix = last->is_prefix;
}

static int page_report(const struct store_list *list, cli_entry_fn entry, void *ctx)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < list->count; i++) {
        const struct store_list_entry *found = &list->entries[i];
        struct cli_entry out = {.name = (const char *)found->key,
                                .len = found->key_len,
                                .is_prefix = found->is_prefix,
                                .size = zframe_size(found->checksum, found->size),
                                .modified_ns = found->modified_ns};
        rc = entry(ctx, &out);
    }
    return rc;
}

static int direct_list(struct cli_store *base, const struct cli_key *prefix, bool recursive,
                       cli_entry_fn entry, void *ctx, struct err *err)
{
    struct direct *direct = (struct direct *)base;
    struct store_list_options *options = calloc(1, sizeof(*options));
    struct store_request *request = request_new(STORE_OBJECT_LIST, prefix);
    bool is_more = true;
    int rc = options == NULL || request == NULL ? -ENOMEM : 0;
    if (rc == 0) {
        options->count_max = LIST_COUNT;
        options->delimiter[0] = '/';
        options->delimiter_len = recursive ? 0 : 1;
        memcpy(options->prefix.bytes, prefix->key, prefix->key_len);
        options->prefix.len = (uint16_t)prefix->key_len;
        request->list_options = options;
    }
    while (rc == 0 && is_more) {
        rc = direct_ask(direct, request);
        if (rc != 0) {
            err_set(err, rc, "listing %s: %s", prefix->bucket, err_text(rc));
            break;
        }
        is_more = request->list->is_truncated && request->list->count > 0;
        if (is_more) {
            list_advance(options, request->list);
        }
        rc = page_report(request->list, entry, ctx);
        store_list_free(request->list);
        request->list = NULL;
    }
    free(request);
    free(options);
    return rc;
}

/* ---- one object -------------------------------------------------------------------------------------------------------- */

static int direct_lookup(struct direct *direct, const struct cli_key *key, struct store_object **out,
                         struct err *err)
{
    struct store_request *request = request_new(STORE_OBJECT_LOOKUP, key);
    int rc = request == NULL ? -ENOMEM : direct_ask(direct, request);
    if (rc == 0) {
        *out = request->object;
    } else {
        err_set(err, rc, "%s/%s: %s", key->bucket, key->key, err_text(rc));
    }
    free(request);
    return rc;
}

__attribute__((format(printf, 4, 5))) static void header_report(cli_header_fn header, void *ctx,
                                                                const char *name, const char *format, ...)
{
    char value[128];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    CHECK(len >= 0 && (size_t)len < sizeof(value));
    header(ctx, name, value, (size_t)len);
}

static int direct_stat(struct cli_store *base, const struct cli_key *key, cli_header_fn header, void *ctx,
                       struct err *err)
{
    struct direct *direct = (struct direct *)base;
    struct store_object *object = NULL;
    int rc = direct_lookup(direct, key, &object, err);
    if (rc != 0) {
        return rc;
    }
    const struct store_attributes *attributes = store_object_attributes(object);
    struct s3_meta_item item;
    uint32_t position = 0;
    time_t seconds = (time_t)(store_object_modified_ns(object) / NS_PER_S);
    char date[64];
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    header_report(header, ctx, "content-length", "%llu",
                  (unsigned long long)zframe_size(attributes->checksum, store_object_size(object)));
    header_report(header, ctx, "last-modified", "%s", date);
    header_report(header, ctx, "etag", "\"%s\"", attributes->etag);
    header_report(header, ctx, "crc32c", "%08x", store_object_crc32c(object));
    if (attributes->checksum[0] != '\0') {
        header_report(header, ctx, "checksum", "%s", attributes->checksum);
    }
    uint64_t plain = 0;
    if (zframe_is_marked(attributes->checksum, &plain)) {
        header_report(header, ctx, "x-penstock-stored-as", "zstd");
        header_report(header, ctx, "x-penstock-stored-size", "%llu",
                      (unsigned long long)store_object_size(object));
        header_report(header, ctx, "x-penstock-stored-ratio", "%.2f",
                      (double)plain / (double)store_object_size(object));
    }
    while (s3_meta_next(attributes, &position, &item)) {
        char name[256];
        snprintf(name, sizeof(name), "%.*s", (int)item.name.len, item.name.at);
        header(ctx, name, item.value.at, item.value.len);
    }
    store_object_release(direct->port, object);
    return 0;
}

/* Reads from `offset` what one device read gives, at most `left` bytes. */
static int read_some(struct direct *direct, struct store_object *object, uint64_t offset, uint64_t left,
                     cli_sink_fn sink, void *ctx, uint32_t *len)
{
    struct store_read *read = NULL;
    store_now_set(direct->port, clock_monotonic_ns()); /* The sink may have taken its time. */
    int rc = store_read_begin(direct->port, object, offset, left, NULL, &read);
    if (rc != 0) {
        return rc; /* -EAGAIN cannot be: this is the only read */
    }
    while (!direct_turn(direct, read)) { /* the store reports every read */
    }
    struct slice slice;
    rc = store_read_take(read, &slice);
    if (rc != 0) {
        return rc;
    }
    *len = slice.len;
    rc = sink(ctx, slice.addr, slice.len);
    slice_release(&slice);
    return rc;
}

/* ---- one compressed object --------------------------------------------------------------------------------------------- */

struct gather {
    uint8_t *to;
    size_t used;
    size_t size;
};

static int gather_sink(void *ctx, const void *bytes, size_t len)
{
    struct gather *gather = ctx;
    CHECK(len <= gather->size - gather->used);
    memcpy(gather->to + gather->used, bytes, len);
    gather->used += len;
    return 0;
}

static int read_exactly(struct direct *direct, struct store_object *object, uint64_t offset, void *to,
                        size_t size)
{
    struct gather gather = {.to = to, .size = size};
    int rc = 0;
    while (rc == 0 && gather.used < size) {
        uint32_t len = 0;
        rc = read_some(direct, object, offset + gather.used, size - gather.used, gather_sink, &gather, &len);
    }
    return rc;
}

/* Stored bytes with a seek table of their own: an object or a part. */
struct segment {
    uint64_t offset;
    uint64_t stored;
    uint64_t payload; /* 0: stored as it came */
};

static int read_table(struct direct *direct, struct store_object *object, const struct segment *segment,
                      struct zframe_table *table)
{
    uint64_t end = segment->offset + segment->stored;
    uint32_t count = 0;
    int rc = segment->stored > ZFRAME_FOOTER
                 ? read_exactly(direct, object, end - ZFRAME_FOOTER, table->bytes, ZFRAME_FOOTER)
                 : ERR_CORRUPT;
    rc = rc != 0 ? rc : zframe_footer_read(table->bytes, segment->stored, segment->payload, &count);
    rc = rc != 0 ? rc
                 : read_exactly(direct, object, end - zframe_table_len(count), table->bytes,
                                zframe_table_len(count));
    return rc != 0 ? rc : zframe_table_read(table, count, segment->stored, segment->payload);
}

struct unpacking {
    uint8_t stored[ZFRAME_STORED_MAX];
    uint8_t plain[ZFRAME_PLAIN];
    uint8_t table[ZFRAME_TABLE_MAX];
};

static int get_zstd(struct direct *direct, struct store_object *object, const struct segment *segment,
                    cli_sink_fn sink, void *ctx)
{
    struct unpacking *unpacking = malloc(sizeof(*unpacking));
    struct zframe_table table;
    if (unpacking == NULL) {
        return -ENOMEM;
    }
    zframe_table_begin(&table, unpacking->table);
    uint64_t offset = segment->offset;
    int rc = read_table(direct, object, segment, &table);
    for (uint32_t i = 0; rc == 0 && i < table.count; i++) {
        uint32_t len = zframe_stored_len(&table, i);
        rc = read_exactly(direct, object, offset, unpacking->stored, len);
        if (rc == 0) {
            size_t got = ZSTD_decompress(unpacking->plain, ZFRAME_PLAIN, unpacking->stored, len);
            rc = ZSTD_isError(got) || got != zframe_plain_len(&table, i) ? ERR_CORRUPT
                                                                         : sink(ctx, unpacking->plain, got);
        }
        offset += len;
    }
    free(unpacking);
    return rc;
}

static int get_segment(struct direct *direct, struct store_object *object, const struct segment *segment,
                       cli_sink_fn sink, void *ctx)
{
    if (segment->payload != 0) {
        return get_zstd(direct, object, segment, sink, ctx);
    }
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < segment->stored;) {
        uint32_t len = 0;
        rc = read_some(direct, object, segment->offset + done, segment->stored - done, sink, ctx, &len);
        done += len;
    }
    return rc;
}

/* How the object's bytes lie: as one segment, or one per part where a part is compressed. */
static struct segment segment_at(const struct store_object *object, bool is_stored, uint32_t index,
                                 uint32_t *count)
{
    struct segment whole = {.stored = store_object_size(object)};
    uint32_t parts = store_object_part_count(object);
    *count = 1;
    if (is_stored || !zframe_is_marked(store_object_attributes(object)->checksum, &whole.payload) ||
        parts == 0) {
        return whole;
    }
    struct store_part_place part = store_object_part_at(object, index);
    *count = parts;
    return (struct segment){.offset = part.offset, .stored = part.len, .payload = part.payload};
}

static int direct_get(struct cli_store *base, const struct cli_key *key, cli_sink_fn sink, void *ctx,
                      struct err *err)
{
    struct direct *direct = (struct direct *)base;
    struct store_object *object = NULL;
    int rc = direct_lookup(direct, key, &object, err);
    if (rc != 0) {
        return rc;
    }
    uint32_t count = 1;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        struct segment segment = segment_at(object, base->is_stored, i, &count);
        rc = get_segment(direct, object, &segment, sink, ctx);
        if (rc != 0) {
            err_set(err, rc, "%s/%s: %s from byte %llu on: %s", key->bucket, key->key,
                    segment.payload != 0 ? "compressed" : "stored", (unsigned long long)segment.offset,
                    err_text(rc));
        }
    }
    store_object_release(direct->port, object);
    return rc;
}

static int direct_remove(struct cli_store *base, const struct cli_key *key, struct err *err)
{
    bool existed = false;
    int rc = direct_ask_simple((struct direct *)base, STORE_OBJECT_DELETE, key, &existed);
    if (rc == 0 && !existed) {
        rc = ERR_NO_SUCH_KEY;
    }
    return rc == 0 ? 0 : err_set(err, rc, "%s/%s: %s", key->bucket, key->key, err_text(rc));
}

/* ---- uploads ----------------------------------------------------------------------------------------------------------- */

static void buffer_retain(struct slice_owner *owner, const struct slice *slice)
{
    struct direct *direct = CONTAINER_OF(owner, struct direct, owner);
    CHECK(slice->token < BUFFER_COUNT);
    CHECK(direct->references[slice->token] > 0);
    direct->references[slice->token]++;
}

static void buffer_release(struct slice_owner *owner, const struct slice *slice)
{
    struct direct *direct = CONTAINER_OF(owner, struct direct, owner);
    CHECK(slice->token < BUFFER_COUNT);
    CHECK(direct->references[slice->token] > 0);
    direct->references[slice->token]--;
}

/* A free buffer of the area; waits for the device until there is one, or until the upload failed (BUFFER_COUNT). */
static uint32_t buffer_wait(struct direct *direct, struct store_put *put)
{
    for (;;) { /* the device answers, or the store fails the upload */
        for (uint32_t i = 0; i < BUFFER_COUNT; i++) {
            if (direct->references[i] == 0) {
                return i;
            }
        }
        if (store_put_state(put) != STORE_PUT_OPEN) {
            return BUFFER_COUNT;
        }
        store_put_pressure(put);
        direct_turn(direct, NULL);
    }
}

/* Fills a buffer as far as the source gives: short reads of a pipe would make short slices. */
static ssize_t buffer_fill(const struct cli_put *wish, uint8_t *buffer)
{
    size_t used = 0;
    while (used < BUFFER_SIZE) {
        ssize_t got = wish->source(wish->ctx, buffer + used, BUFFER_SIZE - used);
        if (got < 0) {
            return got;
        }
        if (got == 0) {
            break;
        }
        used += (size_t)got;
    }
    return (ssize_t)used;
}

/* The source may take its time: the device works meanwhile, and what it has answered is there before its deadlines are looked at. */
static ssize_t buffer_fill_beside(struct direct *direct, const struct cli_put *wish, uint8_t *buffer)
{
    (void)uring_submit(&direct->uring); /* Refused, the call below does it. */
    ssize_t len = buffer_fill(wish, buffer);
    int rc = uring_submit_and_wait(&direct->uring, 0);
    CHECK(rc == 0 || rc == -EBUSY);
    store_now_set(direct->port, clock_monotonic_ns());
    return len;
}

static int put_payload(struct direct *direct, const struct cli_put *wish, struct store_put *put)
{
    uint64_t total = 0;
    for (;;) { /* ends with the source */
        uint32_t index = buffer_wait(direct, put);
        if (index == BUFFER_COUNT) {
            return store_put_error(put);
        }
        uint8_t *buffer = arena_area(&direct->arena) + (size_t)index * BUFFER_SIZE;
        ssize_t len = buffer_fill_beside(direct, wish, buffer);
        if (len < 0) {
            return (int)len;
        }
        if (len == 0) {
            break;
        }
        direct->references[index] = 1;
        struct slice slice = {.addr = buffer,
                              .len = (uint32_t)len,
                              .buf_index = direct->arena.buf_index,
                              .owner = &direct->owner,
                              .token = index};
        store_put_append(put, &slice);
        total += (uint64_t)len;
    }
    return wish->size != UINT64_MAX && total != wish->size ? -EIO
                                                           : 0; /* the file changed while it was read */
}

/* Packs a Content-Type in the form of s3_meta.h: version, name length, value length, name, value. */
static int attributes_fill(const struct cli_put *wish, struct store_attributes *attributes)
{
    static const char name[] = "content-type";
    uint8_t random[16];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        return -errno;
    }
    for (size_t i = 0; i < sizeof(random); i++) {
        snprintf(attributes->etag + 2 * i, 3, "%02x", random[i]);
    }
    memcpy(attributes->etag + 32, "-1", 3);
    if (wish->content_type == NULL) {
        return 0;
    }
    size_t value_len = strlen(wish->content_type);
    if (value_len > 1024) {
        return -E2BIG;
    }
    uint8_t *at = attributes->meta;
    *at++ = 1;
    *at++ = sizeof(name) - 1;
    bytes_put_le16(at, (uint16_t)value_len);
    memcpy(at + 2, name, sizeof(name) - 1);
    memcpy(at + 2 + sizeof(name) - 1, wish->content_type, value_len);
    attributes->meta_len = (uint16_t)(4 + sizeof(name) - 1 + value_len);
    return 0;
}

/* Waits until the put is in one of its final states and ends it. */
static int put_end(struct direct *direct, struct store_put *put, int rc)
{
    if (rc != 0 && store_put_state(put) != STORE_PUT_ABORTED) {
        store_put_abort(put);
    }
    for (;;) { /* the store leads every put to DONE, FAILED or ABORTED */
        enum store_put_state state = store_put_state(put);
        if (state == STORE_PUT_DONE || state == STORE_PUT_ABORTED) {
            break;
        }
        if (state == STORE_PUT_FAILED && rc == 0) {
            rc = store_put_error(put);
            store_put_abort(put);
        }
        direct_turn(direct, put);
    }
    store_put_free(put);
    return rc;
}

static int put_run(struct direct *direct, const struct cli_put *wish, struct store_attributes *attributes)
{
    struct store_name key = {.len = (uint16_t)wish->key->key_len};
    memcpy(key.bytes, wish->key->key, wish->key->key_len);
    struct store_put_options options = {.bucket = wish->key->bucket, .key = &key, .size = wish->size};
    struct store_put *put = NULL;
    int rc = store_put_begin(direct->port, &options, &put);
    if (rc != 0) {
        return rc;
    }
    rc = put_payload(direct, wish, put);
    if (rc == 0) {
        store_put_finish(put, attributes, NULL);
    }
    return put_end(direct, put, rc);
}

static int direct_put(struct cli_store *base, const struct cli_put *wish, struct err *err)
{
    struct direct *direct = (struct direct *)base;
    bool existed = false;
    int rc = 0;
    struct store_attributes *attributes = calloc(1, sizeof(*attributes));
    if (attributes == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    if (wish->create_bucket) {
        rc = direct_ask_simple(direct, STORE_BUCKET_CREATE, wish->key, &existed);
        rc = rc == ERR_BUCKET_EXISTS ? 0 : rc;
    } else {
        rc = direct_ask_simple(direct, STORE_BUCKET_LOOKUP, wish->key, &existed);
    }
    rc = rc != 0 ? rc : attributes_fill(wish, attributes);
    rc = rc != 0 ? rc : put_run(direct, wish, attributes);
    free(attributes);
    return rc == 0 ? 0 : err_set(err, rc, "%s/%s: %s", wish->key->bucket, wish->key->key, err_text(rc));
}

/* ---- open and close ---------------------------------------------------------------------------------------------------- */

static void direct_close(struct cli_store *base)
{
    struct direct *direct = (struct direct *)base;
    store_port_close(direct->port);
    store_close(direct->store);
    uring_close(&direct->uring);
    arena_close(&direct->arena);
    free(direct);
}

static const struct cli_store_ops direct_ops = {
    .close = direct_close,
    .buckets = direct_buckets,
    .list = direct_list,
    .stat = direct_stat,
    .get = direct_get,
    .put = direct_put,
    .remove = direct_remove,
};

static int open_memory(struct direct *direct, struct err *err)
{
    struct uring_options ring = {.sq_entries = 256, .cq_entries = 1024, .buffers_max = 1, .files_max = 256};
    struct arena_options arena = {
        .staging_size = STAGING_SIZE, .area_size = (uint64_t)BUFFER_COUNT * BUFFER_SIZE, .numa_node = -1};
    int rc = uring_open(&direct->uring, &ring, err);
    if (rc != 0) {
        return rc;
    }
    rc = arena_open(&direct->arena, &arena, err);
    if (rc != 0) {
        uring_close(&direct->uring);
        return rc;
    }
    rc = uring_buffer_register(&direct->uring, 0, direct->arena.base, direct->arena.size, err);
    if (rc != 0) {
        uring_close(&direct->uring);
        arena_close(&direct->arena);
        return rc;
    }
    direct->arena.buf_index = 0;
    uring_handler_set(&direct->uring, URING_CLASS_WAKE, wake_handler, direct);
    return 0;
}

static int open_port(struct direct *direct, const struct conf *conf, struct err *err)
{
    struct store_port_options options = {.uring = &direct->uring,
                                         .arena = &direct->arena,
                                         .staging_size = direct->arena.staging_size,
                                         .read_buffer_size = 1 * MIB,
                                         .puts_max = 4,
                                         .write_unit = (uint32_t)conf->store.write_unit,
                                         .writes_per_put_max = conf->store.writes_per_upload_max};
    return store_port_open(direct->store, &options, &direct->port, err);
}

static int open_store(struct direct *direct, const struct conf *conf, struct err *err)
{
    int rc = store_conf_missing(conf, false, err);
    if (rc != 0) {
        return rc;
    }
    struct store_options *options = calloc(1, sizeof(*options));
    if (options == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    store_conf_options(conf, options);
    options->ports_max = 1;
    rc = store_open(options, &direct->store, err);
    free(options);
    if (rc != 0) {
        return rc;
    }
    rc = open_port(direct, conf, err);
    if (rc != 0) {
        store_close(direct->store);
    }
    return rc;
}

int cli_direct_open(const struct conf *conf, struct cli_store **out, struct err *err)
{
    struct direct *direct = calloc(1, sizeof(*direct));
    if (direct == NULL) {
        return err_set(err, -ENOMEM, "out of memory");
    }
    direct->base.ops = &direct_ops;
    direct->owner.retain = buffer_retain;
    direct->owner.release = buffer_release;
    int rc = open_memory(direct, err);
    if (rc == 0) {
        rc = open_store(direct, conf, err);
        if (rc != 0) {
            uring_close(&direct->uring);
            arena_close(&direct->arena);
        }
    }
    if (rc != 0) {
        free(direct);
        return rc;
    }
    *out = &direct->base;
    return 0;
}
