/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store: the facade of the storage engine. Payload goes to devices, the index (SQLite) lives in a directory.
 *
 * Promise: when a put (or any change) is reported done, payload is durable, then the index transaction is durable,
 * then it is visible. One order, never bent. What is read back is verified against block checksums before the first
 * byte of a block is handed out: a mismatch is ERR_CORRUPT, never other bytes.
 *
 * Threads. One `struct store` per process owns the devices, the committer thread and the index reader threads. Each
 * worker opens one `struct store_port` on its own thread and ring; all port, put and read functions run on that thread
 * and never block. Anything that may touch the index is a request: fill a struct, submit it, get it back from
 * store_poll. Requests are owned by the store between submit and return; they cannot be withdrawn, only ignored.
 */
#ifndef STORAGE_STORE_H
#define STORAGE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mpsc.h"
#include "base/slice.h"
#include "base/uring.h"

#define STORE_BUCKET_MAX 63U    /* bytes, S3's limit */
#define STORE_KEY_MAX 1024U     /* bytes, S3's limit */
#define STORE_META_MAX 4096U    /* bytes of packed headers: user metadata is at most 2 KiB by S3's limit */
#define STORE_ETAG_MAX 64U      /* bytes, without quotes */
#define STORE_UPLOAD_ID_MAX 64U /* bytes of text */
#define STORE_CHECKSUMS_MAX 96U /* bytes: "crc32c=<base64>" style text of the client-named checksum */
#define STORE_DEVICES_MAX 64U
#define STORE_PART_MAX 10000U
#define STORE_EXTENT_MAX (1ULL << 30)

struct store;
struct store_port;

/* A byte string with a length; keys hold any byte. */
struct store_name {
    uint16_t len;
    uint8_t bytes[STORE_KEY_MAX];
};

/* ---- the store ------------------------------------------------------------------------------------------------ */

struct store_device_options {
    char path[4096];
    uint64_t size; /* bytes; 0: the whole device (block devices), the file's size (files) */
};

struct store_options {
    char data_dir[4096]; /* holds index.db */
    struct store_device_options devices[STORE_DEVICES_MAX];
    uint32_t device_count;
    uint32_t ports_max;         /* workers */
    uint32_t index_readers;     /* threads, >= 1 */
    uint64_t flush_deadline_ns; /* a device whose flush takes longer is suspect */
    uint64_t read_deadline_ns;
    uint64_t commit_window_ns; /* how long the committer may gather a batch; 0: takes what is there */
    uint64_t index_size_max;   /* bytes; over it: -ENOSPC, deletes still work; 0: no own limit */
    uint64_t upload_expiry_ns; /* abandoned multipart uploads; 0: never */
    uint64_t scrub_rate; /* bytes per second that are read again and verified in the background; 0: none */
    uint32_t reserve_percent; /* of a device, kept for metadata of deletes and overwrites */
};

/* Creates superblocks (and index) anew. Files are created, filled with zeros and synced, with their directory.
 * Refuses a device that carries a penstock superblock or any known file-system signature unless `force`. */
int store_format(const struct store_options *options, bool force, struct err *err);
/* 0 when data_dir holds an index, -errno otherwise. Opens nothing. */
int store_index_look(const char *data_dir);
/* Opens devices (checks superblocks), recovers, runs the start-up self-test, starts committer and readers. */
int store_open(const struct store_options *options, struct store **out, struct err *err);
/* Ports must be closed. Stops the threads after what they hold is finished. */
void store_close(struct store *store);

/* Per device: state, geometry and what the self-test found; for check, probe, metrics and the start-up plan. */
enum store_device_state { STORE_DEVICE_OK, STORE_DEVICE_SUSPECT, STORE_DEVICE_FAILED };
struct store_device_info {
    char path[4096];
    enum store_device_state state;
    char state_reason[256];
    uint64_t size;          /* bytes usable for extents */
    uint64_t used;          /* bytes in extents, pending ones included */
    bool is_full;           /* uploads were refused for want of space, and there is still hardly any */
    uint32_t lba_size;      /* bytes */
    uint32_t dma_alignment; /* bytes: address and length of fragments must be multiples of it */
    uint32_t fragments_max; /* fragments of one write */
    bool
        fragments_ok; /* self-test: fragments of its own alignment, however coarse, reach it without a copy by us */
    bool packets_ok; /* so does the payload of packets as it lies: at multiples of 4 bytes */
    bool direct;     /* O_DIRECT is direct here (false on btrfs with checksums etc.) */
    char note[256];  /* why not, in words */
    /* counters since open */
    uint64_t read_bytes, written_bytes, reads, writes, flushes, read_errors, write_errors, flush_errors;
    uint64_t writes_in_flight;
    uint64_t write_fragments; /* iovecs of writes */
};
uint32_t store_device_count(const struct store *store);
/* What a path would be as a device, without a store: for preflight. `is_exclusive` also tries the claim that a store would take; it is
 * given back. -errno with a sentence in `err`. */
struct store_device_probe {
    char type[16];          /* "file", "block", "nvme" */
    uint64_t size;          /* bytes */
    uint32_t lba_size;      /* bytes */
    uint32_t dma_alignment; /* bytes, as the system states it */
    char note[256];
};
int store_device_probe(const char *path, bool is_exclusive, struct store_device_probe *out, struct err *err);
void store_device_info(struct store *store, uint32_t index, struct store_device_info *out);

/* Histogram with power-of-two buckets: bucket i counts values in [2^i, 2^(i+1)) microseconds, 0..31. Thread-safe. */
struct store_histogram {
    _Atomic uint64_t buckets[32];
    _Atomic uint64_t count;
    _Atomic uint64_t sum_us;
};
enum store_latency { STORE_LATENCY_WRITE, STORE_LATENCY_READ, STORE_LATENCY_FLUSH, STORE_LATENCY_KINDS };
const struct store_histogram *store_device_latency(struct store *store, uint32_t index,
                                                   enum store_latency kind);

/* Reasons why payload was copied by the CPU; also the label of penstock_copied_bytes_total. */
enum store_copy_reason {
    STORE_COPY_HEAD,
    STORE_COPY_TAIL,
    STORE_COPY_RAGGED,
    STORE_COPY_CHUNKED,
    STORE_COPY_TLS,
    STORE_COPY_PRESSURE,
    STORE_COPY_KERNEL,
    STORE_COPY_DEVICE,
    STORE_COPY_FILTER,
    STORE_COPY_REASONS
};
const char *store_copy_reason_name(enum store_copy_reason reason);
const char *store_copy_reason_help(enum store_copy_reason reason);

struct store_stats {                /* sums over ports and threads, since open unless a gauge */
    uint64_t objects, object_bytes; /* gauges */
    uint64_t uploads_pending, uploads_pending_bytes; /* gauges: multipart uploads that are open */
    uint64_t uploads_expired;                        /* of these, aborted because nobody finished them */
    uint64_t puts_in_flight;                         /* gauge */
    uint64_t commits, commit_items;                  /* transactions and what they carried */
    uint64_t index_bytes;                            /* gauge: index file and log */
    uint64_t index_errors;
    uint64_t index_late;     /* gauge: 1 when it has not answered within flush_deadline */
    uint64_t corrupt_blocks; /* checksum mismatches found by reads and scrub */
    uint64_t space_waits;    /* extents freed but held by an epoch: gauge in bytes */
    uint64_t scrubbed_bytes;
    const struct store_histogram *commit_latency;
};
void store_stats(struct store *store, struct store_stats *out);
/* 0 when the store takes writes and answers for what it holds; otherwise -errno, a project code, and a sentence (index failed or damaged, all
 * devices failed, full). */
int store_health(struct store *store, struct err *err);
/* Somebody waits for the index, and it has not answered within flush_deadline. Any thread. */
bool store_index_is_late(const struct store *store);
bool store_port_index_is_late(const struct store_port *port);

/* ---- a worker's port ------------------------------------------------------------------------------------------ */

struct store_port_options {
    struct uring *uring; /* the worker's ring; class URING_CLASS_DEV is the port's */
    struct arena *arena; /* registered; the port uses the staging part [staging_offset, +staging_size) */
    uint64_t staging_offset;
    uint64_t staging_size;     /* bytes; copies of ragged pieces and read buffers come from here */
    uint32_t read_buffer_size; /* bytes, power of two, multiple of 256 KiB: one STORE_READ at most */
    uint32_t puts_max;         /* uploads in flight on this port */
    uint32_t write_unit;       /* bytes: a device write is submitted when this much is queued (at most) */
    uint32_t writes_per_put_max;
};

/* Bytes that a port takes for each upload of puts_max. */
uint64_t store_upload_memory(uint64_t staging_size, uint32_t write_unit);

int store_port_open(struct store *store, const struct store_port_options *options, struct store_port **out,
                    struct err *err);
/* No put, read or request may be in flight (CHECK). */
void store_port_close(struct store_port *port);
/* The descriptor that becomes readable when another thread has answered; the worker arms a read or poll on it. */
int store_port_event_fd(const struct store_port *port);
/* Bytes copied by reason since open. The arrays are read by other threads with relaxed loads. */
const _Atomic uint64_t *store_port_copied_bytes(const struct store_port *port);
/* The server counts its own copies (chunked, tls) here. */
void store_port_copied_add(struct store_port *port, enum store_copy_reason reason, uint64_t bytes);

enum store_event_kind {
    STORE_EVENT_REQUEST, /* a request came back: `request` */
    STORE_EVENT_LATE, /* the index does not answer: `request` comes back all the same, but who knows when */
    STORE_EVENT_PUT,  /* something about a put: `put`, see store_put_state */
    STORE_EVENT_READ  /* a read finished: `read` */
};
struct store_event {
    enum store_event_kind kind;
    union {
        struct store_request *request;
        struct store_put *put;
        struct store_read *read;
    };
};
/* The caller's time at the beginning of its turn. What is begun before store_poll, which takes the time too, has its device's whole
 * deadline from here on, however long the caller has slept. */
void store_now_set(struct store_port *port, uint64_t now_ns);
/* Never blocks; at most max events. */
uint32_t store_poll(struct store_port *port, uint64_t now_ns, struct store_event *events, uint32_t max);
uint64_t store_deadline(struct store_port *port);

/* ---- writing an object ---------------------------------------------------------------------------------------- */

/* What is stored beside the payload. `meta` is opaque to the store: the server packs headers into it. */
struct store_attributes {
    char etag[STORE_ETAG_MAX + 1];          /* without quotes */
    char checksum[STORE_CHECKSUMS_MAX + 1]; /* client-named checksum, or "" */
    uint16_t meta_len;
    uint8_t meta[STORE_META_MAX];
};

/* When a put (or copy, or complete) takes effect; decided inside the index transaction. */
struct store_condition {
    bool if_none_match_any;            /* only when the key does not exist */
    char if_match[STORE_ETAG_MAX + 1]; /* only when it exists with this ETag; "" : no condition; "*": any */
};

struct store_put;

struct store_put_options {
    const char *bucket;
    const struct store_name *key;            /* copied */
    uint64_t size;                           /* bytes, or UINT64_MAX when unknown */
    char upload_id[STORE_UPLOAD_ID_MAX + 1]; /* "" for a whole object; otherwise a part */
    uint32_t part_number;                    /* 1..10000 with an upload id */
    /* Payload is cut out of a framing (chunked): its alignment changes all the time, so it is copied from the start, reason
     * chunked. */
    bool is_framed;
    bool is_filtered; /* likewise, because it was compressed: reason filter */
    void *user;
};

enum store_put_state {
    STORE_PUT_OPEN, /* takes slices. An event in this state: a write ended, store_put_queued_bytes has fallen. */
    STORE_PUT_FAILED, /* store_put_error says why; give up with store_put_abort. Reported once by an event. */
    STORE_PUT_DONE,   /* durable and visible; store_put_free ends it. Reported by an event. */
    STORE_PUT_ABORTED /* nothing of it remains; store_put_free ends it. Reported by an event. */
};

/* Reserves what the upload needs. -ENOSPC: `size` does not fit (answer 507 before 100 Continue); ERR_LIMIT: puts_max
 * reached; ERR_DEVICE_FAILED: no device takes writes, or the index does not answer. The bucket's existence is checked by a lookup request before and again in the
 * transaction. */
int store_put_begin(struct store_port *port, const struct store_put_options *options, struct store_put **out);
/* So many slices of one put can wait whatever the others have: who never gives it more at a time need not ask store_put_is_full. */
#define STORE_PUT_SLICES_OWN 8U
/* Takes the slice always (also in a failed state, where it is released at once). Of slices appended while store_put_is_full, each put
 * can hold one. */
void store_put_append(struct store_put *put, const struct slice *slice);
/* So many slices wait that the caller must append no more, however short they are. */
bool store_put_is_full(const struct store_put *put);
/* Bytes taken and not yet written to the device: the caller pauses its connection above its limit. */
uint64_t store_put_queued_bytes(const struct store_put *put);
/* Buffers are short: write what can be written up to the last whole LBA, copy the rest out (reason pressure), so that every
 * slice this put holds is released as soon as the device answers. */
void store_put_pressure(struct store_put *put);
/* The same without copying: what lies behind the last whole LBA stays in the slice or two that hold it. */
void store_put_relieve(struct store_put *put);
/* Slices held by the put that are neither written nor being written. */
bool store_put_holds_idle_slices(const struct store_put *put);
/* Of these, the ones that store_put_pressure would have written: the others wait for writes of this or other puts. */
uint32_t store_put_idle_slices(const struct store_put *put);
/* All payload was appended. `attributes` and `condition` (may be NULL) are copied. Leads to DONE or FAILED:
 * ERR_PRECONDITION, ERR_NO_SUCH_BUCKET, ERR_NO_SUCH_UPLOAD, -ENOSPC, -EIO, ERR_DEVICE_FAILED. */
void store_put_finish(struct store_put *put, const struct store_attributes *attributes,
                      const struct store_condition *condition);
/* Gives up in state OPEN (before finish) or FAILED; leads to ABORTED when no write is in flight any more. */
void store_put_abort(struct store_put *put);
void store_put_free(struct store_put *put);
enum store_put_state store_put_state(const struct store_put *put);
int store_put_error(const struct store_put *put);
void *store_put_user(const struct store_put *put);
uint64_t store_put_size(const struct store_put *put);        /* bytes appended so far */
uint32_t store_put_crc32c(const struct store_put *put);      /* of the whole payload; valid once DONE */
uint64_t store_put_modified_ns(const struct store_put *put); /* stored time; valid once DONE */

/* ---- requests ------------------------------------------------------------------------------------------------- */

enum store_request_kind {
    STORE_BUCKET_CREATE, /* bucket */
    STORE_BUCKET_DELETE, /* bucket */
    STORE_BUCKET_LOOKUP, /* bucket */
    STORE_BUCKET_LIST,   /* -> list (entries are buckets) */
    STORE_OBJECT_LOOKUP, /* bucket, key -> object (with its extents, epoch pinned) */
    STORE_OBJECT_DELETE, /* bucket, key; deleting what is absent is success, existed says which */
    STORE_OBJECT_LIST,   /* bucket, list_options -> list */
    STORE_OBJECT_COPY,   /* source bucket/key (pinned object) -> bucket/key with attributes: metadata only */
    STORE_UPLOAD_CREATE, /* bucket, key, attributes -> upload_id */
    STORE_UPLOAD_LOOKUP, /* bucket, key, upload_id */
    STORE_UPLOAD_COMPLETE, /* upload_id, parts, attributes.etag, condition */
    STORE_UPLOAD_ABORT,    /* upload_id */
    STORE_UPLOAD_LIST,     /* bucket, list_options -> list (entries are uploads) */
    STORE_PART_LIST,       /* upload_id, part marker, max -> list (entries are parts) */
    STORE_PART_COPY /* source object range -> upload_id/part_number; metadata only where block aligned */
};

struct store_list_options {
    struct store_name prefix;
    uint8_t delimiter[8];
    uint8_t delimiter_len; /* 0: none */
    /* start strictly after this key (or, with a common prefix, after all that share it) */
    struct store_name after;
    bool after_is_prefix; /* `after` is a common prefix returned before: skip everything below it */
    char after_upload_id[STORE_UPLOAD_ID_MAX + 1];
    uint32_t after_part;
    uint32_t count_max; /* keys and common prefixes together, 0..1000 */
};

struct store_list_entry {
    const uint8_t *key; /* not terminated; points into the list */
    uint16_t key_len;
    bool is_prefix; /* a common prefix; the rest is then unset */
    uint32_t part_number;
    uint64_t size;        /* bytes */
    uint64_t modified_ns; /* since 1970 */
    const char *etag;     /* terminated; also the checksum and upload id */
    const char *checksum;
    const char *upload_id;
};
struct store_list {
    uint32_t count;
    bool is_truncated; /* more follows after the last entry */
    struct store_list_entry *entries;
};

struct store_part_ref {
    uint32_t number;
    /* bytes, where what is stored is not the payload as it came (the server's business); else 0 */
    uint64_t payload;
    char etag[STORE_ETAG_MAX + 1];
    char checksum[STORE_CHECKSUMS_MAX + 1]; /* "" matches any, unless */
    bool is_checksum_exact;                 /* it must be this one */
};

struct store_object; /* an object's version as found: attributes, extents, a pinned epoch */

struct store_request {
    struct mpsc_node node;   /* the store's while submitted */
    struct store_port *port; /* set by store_submit */
    enum store_request_kind kind;
    void *user; /* the caller's */
    /* Result: 0, or -errno / project code. ERR_DEVICE_FAILED: the index does not answer, and nothing was done. */
    int status;
    struct list port_node; /* the port's, as the next two */
    struct store_busy *busy;
    _Atomic bool is_given_up; /* STORE_EVENT_LATE: a change that has not begun is not made any more */

    /* in */
    char bucket[STORE_BUCKET_MAX + 1];
    struct store_name key;
    char upload_id[STORE_UPLOAD_ID_MAX + 1]; /* out of UPLOAD_CREATE */
    uint32_t part_number;
    const struct store_list_options *list_options; /* caller's memory, valid until the request returns */
    const struct store_attributes *attributes;     /* likewise; NULL: COPY keeps the source's */
    const struct store_condition *condition;       /* likewise; NULL: none */
    const struct store_part_ref *parts;            /* likewise */
    uint32_t part_count;
    struct store_object *source; /* COPY, PART_COPY: looked up before, stays the caller's */
    uint64_t source_offset, source_len;

    /* out */
    /* OBJECT_LOOKUP: end with store_object_release. COPY/COMPLETE: the new one */
    struct store_object *object;
    struct store_list *list; /* end with store_list_free */
    bool existed;
    uint64_t created_ns;                    /* BUCKET_LOOKUP and UPLOAD_LOOKUP */
    char checksum[STORE_CHECKSUMS_MAX + 1]; /* UPLOAD_LOOKUP: of the attributes it was created with */
};

void store_submit(struct store_port *port, struct store_request *request);
void store_list_free(struct store_list *list);

/* ---- reading an object ---------------------------------------------------------------------------------------- */

uint64_t store_object_size(const struct store_object *object);
uint64_t store_object_modified_ns(const struct store_object *object);
const struct store_attributes *store_object_attributes(const struct store_object *object);
uint32_t store_object_crc32c(const struct store_object *object);
/* Multipart objects: number of parts, 0 for others. */
uint32_t store_object_part_count(const struct store_object *object);
/* A part by position, 0 .. count - 1 (CHECK), in ascending order of its number; with the payload that the completion named for it. */
struct store_part_place {
    uint32_t number;
    uint64_t offset;  /* of the stored bytes */
    uint64_t len;     /* stored bytes */
    uint64_t payload; /* 0: the stored bytes are the payload */
};
struct store_part_place store_object_part_at(const struct store_object *object, uint32_t index);
/* Ends the pin; no read of it may be in flight. Space of an overwritten object is reused only after this. */
void store_object_release(struct store_port *port, struct store_object *object);

struct store_read; /* in flight or finished; owned by the port */
/* A read buffer is free: a read that is refused with -EAGAIN all the same waits for its device, and others need not. */
bool store_read_is_free(const struct store_port *port);
/* Reads up to read_buffer_size bytes from `offset` (fewer when a buffer or extent ends: ask again from there).
 * -EAGAIN: all read buffers, or the device's share of them, are in use; try after the next STORE_EVENT_READ or slice release. */
int store_read_begin(struct store_port *port, struct store_object *object, uint64_t offset, uint64_t len,
                     void *user, struct store_read **out);
/* 0 and a verified slice that the caller owns (release it when sent); or -EIO, ERR_CORRUPT, ERR_DEVICE_FAILED.
 * Ends the read. */
int store_read_take(struct store_read *read, struct slice *out);
void *store_read_user(const struct store_read *read);

#endif
