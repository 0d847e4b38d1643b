/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_store: the store's facade in memory, for tests of the server alone: every answer comes from store_poll, `delay`
 * polls later, and any step can be made to fail. It defines the functions of storage/store.h that a worker calls, so a
 * test program includes it once and the real store is not linked. It must keep store.h's contract: put slices are taken
 * always, states move only by events, requests come back once.
 */
#ifndef TESTS_SIM_FAKE_STORE_H
#define TESTS_SIM_FAKE_STORE_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/list.h"
#include "storage/store.h"

#define FAKE_KEYS 256U
#define FAKE_BUCKETS 16U
#define FAKE_READ 1000U /* bytes of one read: small, so that objects take several */

struct store_object {
    uint32_t refs;
    uint64_t size;
    uint8_t *bytes;
    uint64_t modified_ns;
    struct store_attributes attributes;
};

struct fake_entry {
    char bucket[64];
    struct store_name key;
    struct store_object *object;
};

struct fake_event {
    struct list link;
    struct store_event event;
    uint32_t delay;
};

struct store_put {
    struct store_port *port;
    enum store_put_state state;
    int error;
    void *user;
    char bucket[64];
    struct store_name key;
    uint64_t size;
    struct store_object *object;
    struct slice held[64]; /* the last slices, kept until pressed or finished, as a partial unit is */
    uint32_t held_count;
    uint64_t queued;
};

struct store_read {
    struct store_port *port;
    struct store_object *object;
    uint64_t offset, len;
    void *user;
    int error;
};

struct store_port {
    struct fake_entry entries[FAKE_KEYS];
    char buckets[FAKE_BUCKETS][64];
    struct list events;
    _Atomic uint64_t copied[STORE_COPY_REASONS];
    /* what the test sets */
    uint32_t delay;                    /* polls before an answer */
    uint32_t late_delay;               /* polls by which a request is late; 0: none is */
    int begin_error;                   /* of the next store_put_begin */
    int finish_error;                  /* of the next finish */
    int append_error;                  /* the next append makes the put fail */
    int read_error_at;                 /* number of the read that fails, 1 is the first; 0: none */
    bool holds_slices;                 /* puts keep the last slices until they are pressed */
    bool is_hanging;                   /* nothing is answered */
    uint32_t reads_max;                /* read buffers; 0: any number */
    const struct store_object *silent; /* its device has its share of reads already; NULL: none */
    uint64_t queued_bytes;             /* what store_put_queued_bytes says */
    bool is_full;                      /* what store_put_is_full says */
    /* what the test looks at */
    uint32_t puts_open, reads, reads_out, pressures, reliefs, objects_out;
    struct slice_owner read_owner;
    uint64_t now_ns;   /* as the worker said */
    uint64_t given_ns; /* what it was when payload came last */
};

static void fake_event_add(struct store_port *port, struct store_event event)
{
    struct fake_event *fake = calloc(1, sizeof(*fake));
    fake->event = event;
    fake->delay = port->delay;
    list_append(&port->events, &fake->link);
}

static struct fake_entry *fake_find(struct store_port *port, const char *bucket, const struct store_name *key)
{
    for (uint32_t i = 0; i < FAKE_KEYS; i++) {
        struct fake_entry *entry = &port->entries[i];
        if (entry->object != NULL && strcmp(entry->bucket, bucket) == 0 && entry->key.len == key->len &&
            memcmp(entry->key.bytes, key->bytes, key->len) == 0) {
            return entry;
        }
    }
    return NULL;
}

static bool fake_has_bucket(struct store_port *port, const char *bucket)
{
    for (uint32_t i = 0; i < FAKE_BUCKETS; i++) {
        if (strcmp(port->buckets[i], bucket) == 0) {
            return true;
        }
    }
    return false;
}

static void fake_object_unref(struct store_object *object)
{
    object->refs--;
    if (object->refs == 0) {
        free(object->bytes);
        free(object);
    }
}

static struct store_port *fake_port(void)
{
    struct store_port *port = calloc(1, sizeof(*port));
    list_init(&port->events);
    strcpy(port->buckets[0], "bkt");
    return port;
}

static void fake_port_free(struct store_port *port)
{
    CHECK(list_is_empty(&port->events));
    CHECK(port->puts_open == 0);
    CHECK(port->objects_out == 0);
    for (uint32_t i = 0; i < FAKE_KEYS; i++) {
        if (port->entries[i].object != NULL) {
            fake_object_unref(port->entries[i].object);
        }
    }
    free(port);
}

/* ---- port ------------------------------------------------------------------------------------------------------ */

const _Atomic uint64_t *store_port_copied_bytes(const struct store_port *port)
{
    return port->copied;
}

void store_port_copied_add(struct store_port *port, enum store_copy_reason reason, uint64_t bytes)
{
    port->copied[reason] += bytes;
}

const char *store_copy_reason_name(enum store_copy_reason reason)
{
    return reason == STORE_COPY_HEAD ? "head" : "other";
}

void store_now_set(struct store_port *port, uint64_t now_ns)
{
    port->now_ns = now_ns;
}

uint32_t store_poll(struct store_port *port, uint64_t now_ns, struct store_event *events, uint32_t max)
{
    port->now_ns = now_ns;
    uint32_t count = 0;
    if (port->is_hanging) {
        return 0;
    }
    LIST_FOR_EACH_SAFE(node, &port->events)
    {
        struct fake_event *fake = CONTAINER_OF(node, struct fake_event, link);
        if (fake->delay > 0) {
            fake->delay--;
        } else if (count < max) {
            list_remove(node);
            events[count++] = fake->event;
            free(fake);
        }
    }
    return count;
}

uint64_t store_deadline(struct store_port *port)
{
    (void)port;
    return UINT64_MAX;
}

/* ---- puts ------------------------------------------------------------------------------------------------------ */

int store_put_begin(struct store_port *port, const struct store_put_options *options, struct store_put **out)
{
    if (port->begin_error != 0) {
        int error = port->begin_error;
        port->begin_error = 0;
        return error;
    }
    struct store_put *put = calloc(1, sizeof(*put));
    put->port = port;
    put->state = STORE_PUT_OPEN;
    put->user = options->user;
    put->size = options->size;
    strcpy(put->bucket, options->bucket);
    put->key = *options->key;
    put->object = calloc(1, sizeof(*put->object));
    put->object->refs = 1;
    port->puts_open++;
    *out = put;
    return 0;
}

static void fake_put_release(struct store_put *put)
{
    for (uint32_t i = 0; i < put->held_count; i++) {
        slice_release(&put->held[i]);
    }
    put->held_count = 0;
}

static void fake_put_event(struct store_put *put)
{
    fake_event_add(put->port, (struct store_event){.kind = STORE_EVENT_PUT, .put = put});
}

void store_put_append(struct store_put *put, const struct slice *slice)
{
    struct store_object *object = put->object;
    put->port->given_ns = put->port->now_ns;
    if (put->state != STORE_PUT_OPEN) {
        slice_release(slice);
        return;
    }
    object->bytes = realloc(object->bytes, object->size + slice->len);
    memcpy(object->bytes + object->size, slice->addr, slice->len);
    object->size += slice->len;
    if (put->held_count == 64) {
        fake_put_release(put);
    }
    if (put->port->holds_slices) {
        put->held[put->held_count++] = *slice;
    } else {
        slice_release(slice);
    }
    if (put->port->append_error != 0) {
        put->error = put->port->append_error;
        put->port->append_error = 0;
        put->state = STORE_PUT_FAILED;
        fake_put_release(put);
        fake_put_event(put);
    }
}

bool store_put_is_full(const struct store_put *put)
{
    return put->port->is_full;
}

uint64_t store_put_queued_bytes(const struct store_put *put)
{
    return put->port->queued_bytes;
}

void store_put_pressure(struct store_put *put)
{
    put->port->pressures++;
    fake_put_release(put);
}

/* As if all that the put holds were less than an LBA. */
void store_put_relieve(struct store_put *put)
{
    put->port->reliefs++;
}

bool store_put_holds_idle_slices(const struct store_put *put)
{
    return put->held_count > 0;
}

uint32_t store_put_idle_slices(const struct store_put *put)
{
    return put->held_count;
}

static void fake_put_commit(struct store_put *put)
{
    struct store_port *port = put->port;
    struct fake_entry *entry = fake_find(port, put->bucket, &put->key);
    for (uint32_t i = 0; entry == NULL && i < FAKE_KEYS; i++) {
        if (port->entries[i].object == NULL) {
            entry = &port->entries[i];
        }
    }
    CHECK(entry != NULL);
    if (entry->object != NULL) {
        fake_object_unref(entry->object);
    }
    strcpy(entry->bucket, put->bucket);
    entry->key = put->key;
    entry->object = put->object;
    put->object->refs++;
}

static int fake_condition(struct store_put *put, const struct store_condition *condition)
{
    struct fake_entry *entry = fake_find(put->port, put->bucket, &put->key);
    if (condition == NULL) {
        return 0;
    }
    if (condition->if_none_match_any && entry != NULL) {
        return ERR_PRECONDITION;
    }
    if (condition->if_match[0] != '\0' && entry == NULL) {
        return ERR_NO_SUCH_KEY;
    }
    bool differs = condition->if_match[0] != '\0' && strcmp(condition->if_match, "*") != 0 &&
                   strcmp(condition->if_match, entry->object->attributes.etag) != 0;
    return differs ? ERR_PRECONDITION : 0;
}

void store_put_finish(struct store_put *put, const struct store_attributes *attributes,
                      const struct store_condition *condition)
{
    CHECK(put->size == UINT64_MAX || put->size == put->object->size || put->state == STORE_PUT_FAILED);
    fake_put_release(put);
    if (put->state == STORE_PUT_FAILED) {
        return;
    }
    put->object->attributes = *attributes;
    put->object->modified_ns = 1700000000ULL * 1000000000ULL;
    put->error = put->port->finish_error != 0 ? put->port->finish_error : fake_condition(put, condition);
    put->port->finish_error = 0;
    put->state = put->error != 0 ? STORE_PUT_FAILED : STORE_PUT_DONE;
    if (put->error == 0) {
        fake_put_commit(put);
    }
    fake_put_event(put);
}

void store_put_abort(struct store_put *put)
{
    CHECK(put->state == STORE_PUT_OPEN || put->state == STORE_PUT_FAILED);
    /* A failure that was not reported yet is not reported any more. */
    LIST_FOR_EACH_SAFE(node, &put->port->events)
    {
        struct fake_event *fake = CONTAINER_OF(node, struct fake_event, link);
        if (fake->event.kind == STORE_EVENT_PUT && fake->event.put == put) {
            list_remove(node);
            free(fake);
        }
    }
    fake_put_release(put);
    put->state = STORE_PUT_ABORTED;
    fake_put_event(put);
}

void store_put_free(struct store_put *put)
{
    CHECK(put->state == STORE_PUT_DONE || put->state == STORE_PUT_ABORTED);
    put->port->puts_open--;
    fake_object_unref(put->object);
    free(put);
}

enum store_put_state store_put_state(const struct store_put *put)
{
    return put->state;
}

int store_put_error(const struct store_put *put)
{
    return put->error;
}

void *store_put_user(const struct store_put *put)
{
    return put->user;
}

uint64_t store_put_size(const struct store_put *put)
{
    return put->object->size;
}

uint32_t store_put_crc32c(const struct store_put *put)
{
    return (uint32_t)put->object->size; /* Not a CRC: the server only prints it. */
}

uint64_t store_put_modified_ns(const struct store_put *put)
{
    return put->object->modified_ns;
}

/* ---- requests -------------------------------------------------------------------------------------------------- */

static int fake_bucket_request(struct store_port *port, struct store_request *request)
{
    bool exists = fake_has_bucket(port, request->bucket);
    if (request->kind == STORE_BUCKET_CREATE && !exists) {
        for (uint32_t i = 0; i < FAKE_BUCKETS; i++) {
            if (port->buckets[i][0] == '\0') {
                strcpy(port->buckets[i], request->bucket);
                return 0;
            }
        }
    }
    if (request->kind == STORE_BUCKET_CREATE) {
        return ERR_BUCKET_EXISTS;
    }
    return exists ? 0 : ERR_NO_SUCH_BUCKET;
}

static int fake_key_compare(const void *a, const void *b)
{
    const struct store_list_entry *left = a;
    const struct store_list_entry *right = b;
    size_t len = left->key_len < right->key_len ? left->key_len : right->key_len;
    int order = memcmp(left->key, right->key, len);
    return order != 0 ? order : left->key_len - right->key_len;
}

static void fake_list(struct store_port *port, struct store_request *request)
{
    struct store_list *list = calloc(1, sizeof(*list));
    list->entries = calloc(FAKE_KEYS, sizeof(*list->entries));
    for (uint32_t i = 0; i < FAKE_KEYS; i++) {
        struct fake_entry *entry = &port->entries[i];
        if (entry->object != NULL && strcmp(entry->bucket, request->bucket) == 0) {
            list->entries[list->count++] =
                (struct store_list_entry){.key = entry->key.bytes,
                                          .key_len = entry->key.len,
                                          .size = entry->object->size,
                                          .etag = entry->object->attributes.etag,
                                          .checksum = entry->object->attributes.checksum,
                                          .upload_id = ""};
        }
    }
    qsort(list->entries, list->count, sizeof(list->entries[0]), fake_key_compare);
    request->list = list;
}

static int fake_object_request(struct store_port *port, struct store_request *request)
{
    struct fake_entry *entry = fake_find(port, request->bucket, &request->key);
    if (!fake_has_bucket(port, request->bucket)) {
        return ERR_NO_SUCH_BUCKET;
    }
    if (request->kind == STORE_OBJECT_LOOKUP) {
        if (entry == NULL) {
            return ERR_NO_SUCH_KEY;
        }
        entry->object->refs++;
        port->objects_out++;
        request->object = entry->object;
    } else if (request->kind == STORE_OBJECT_DELETE && entry != NULL) {
        fake_object_unref(entry->object);
        entry->object = NULL;
        request->existed = true;
    } else if (request->kind == STORE_OBJECT_LIST) {
        fake_list(port, request);
    }
    return 0;
}

void store_submit(struct store_port *port, struct store_request *request)
{
    request->port = port;
    request->status = request->kind <= STORE_BUCKET_LIST ? fake_bucket_request(port, request)
                                                         : fake_object_request(port, request);
    uint32_t delay = port->delay;
    if (port->late_delay > 0) {
        fake_event_add(port, (struct store_event){.kind = STORE_EVENT_LATE, .request = request});
        port->delay = port->late_delay;
    }
    fake_event_add(port, (struct store_event){.kind = STORE_EVENT_REQUEST, .request = request});
    port->delay = delay;
}

bool store_port_index_is_late(const struct store_port *port)
{
    return port->late_delay > 0;
}

void store_list_free(struct store_list *list)
{
    free(list->entries);
    free(list);
}

/* ---- objects --------------------------------------------------------------------------------------------------- */

uint64_t store_object_size(const struct store_object *object)
{
    return object->size;
}

uint64_t store_object_modified_ns(const struct store_object *object)
{
    return object->modified_ns;
}

const struct store_attributes *store_object_attributes(const struct store_object *object)
{
    return &object->attributes;
}

uint32_t store_object_crc32c(const struct store_object *object)
{
    return (uint32_t)object->size;
}

uint32_t store_object_part_count(const struct store_object *object)
{
    (void)object;
    return 0;
}

struct store_part_place store_object_part_at(const struct store_object *object, uint32_t index)
{
    (void)object;
    (void)index;
    CHECK(!"an object of the stand-in has no parts");
}

void store_object_release(struct store_port *port, struct store_object *object)
{
    CHECK(port->objects_out > 0);
    port->objects_out--;
    fake_object_unref(object);
}

static void fake_read_release(struct slice_owner *owner, const struct slice *slice)
{
    struct store_port *port = CONTAINER_OF(owner, struct store_port, read_owner);
    (void)slice;
    CHECK(port->reads_out > 0);
    port->reads_out--;
}

bool store_read_is_free(const struct store_port *port)
{
    return port->reads_max == 0 || port->reads_out < port->reads_max;
}

int store_read_begin(struct store_port *port, struct store_object *object, uint64_t offset, uint64_t len,
                     void *user, struct store_read **out)
{
    if (!store_read_is_free(port) || object == port->silent) {
        return -EAGAIN;
    }
    struct store_read *read = calloc(1, sizeof(*read));
    port->reads++;
    port->reads_out++;
    port->read_owner.release = fake_read_release;
    CHECK(offset + len <= object->size);
    *read = (struct store_read){.port = port,
                                .object = object,
                                .offset = offset,
                                .len = len < FAKE_READ ? len : FAKE_READ,
                                .user = user,
                                .error = (int)port->reads == port->read_error_at ? ERR_CORRUPT : 0};
    fake_event_add(port, (struct store_event){.kind = STORE_EVENT_READ, .read = read});
    *out = read;
    return 0;
}

int store_read_take(struct store_read *read, struct slice *out)
{
    int error = read->error;
    *out = (struct slice){.addr = read->object->bytes + read->offset,
                          .len = (uint32_t)read->len,
                          .buf_index = -1,
                          .owner = &read->port->read_owner};
    if (error < 0) {
        read->port->reads_out--; /* Nothing is lent. */
    }
    free(read);
    return error;
}

void *store_read_user(const struct store_read *read)
{
    return read->user;
}

#endif
