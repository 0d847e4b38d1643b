/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port_int: what the files behind a worker's port share: port.c (life, polling, messages), writer.c (uploads), pack.c (how slices
 * become device writes), space.c (where they go), reader.c (reads). Everything here belongs to the worker's thread, except the two
 * inboxes.
 */
#ifndef STORAGE_PORT_INT_H
#define STORAGE_PORT_INT_H

#include "base/pool.h"
#include "storage/extent.h"
#include "storage/store_int.h"

#define PORT_MAGIC 0x706f7231U
#define PUT_MAGIC 0x70757431U
#define READ_MAGIC 0x72656131U

#define WRITE_FRAGMENTS_MAX 256U /* iovecs of one device write */
#define WRITE_PIECES_MAX 256U    /* slices that one device write holds */
#define WRITES_SPARE 256U        /* device writes in flight beyond one unfinished unit per upload */
#define PUT_EXTENTS_MAX 8U       /* extents that an upload keeps in memory */
#define PUT_PENDING_BATCH 4U     /* so many finished extents are recorded as pending together */
/* extents closed because the alignment of the bytes changed; afterwards they are staged */
#define PUT_RESIDUE_CHANGES_MAX 16U
#define PORT_READ_DEPTH 32U /* reads at one device: reads never fill its queue */
#define PORT_POLL_MAX 256U  /* completions of one device handled per turn */
#define BUF_INDEX_NONE (-2)
#define STAGE_CHUNK_SIZE (64U << 10)
/* Slices that wait for room. An upload can always have so many, */
#define PUT_BACKLOG_OWN STORE_PUT_SLICES_OWN
/* so many wait in all beyond that, */
#define PORT_BACKLOG_COMMON(puts) ((puts)*7U + 4096U)
/* and each upload may append one more before it sees that store_put_is_full. */
#define PORT_BACKLOG_MAX(puts) (PORT_BACKLOG_COMMON(puts) + (puts) * (PUT_BACKLOG_OWN + 1))

/* One extent while it is written, and until the committer has taken it. */
struct put_extent {
    struct list node; /* put->extents, in payload order */
    struct object_extent desc;
    struct extent_sum sum;
    uint64_t reserved; /* bytes taken from desc.offset on */
    uint64_t next_at;  /* place where the next device write begins, multiple of the LBA */
    uint32_t writes_in_flight;
    bool is_closed;
    uint32_t checksums[EXTENT_CHECKSUMS_MAX];
};

/* One device write: collecting fragments, then in flight. */
struct put_write {
    struct dev_io io;
    struct store_put *put;
    struct put_extent *extent;
    uint64_t at;    /* place in the extent of its first byte, multiple of the LBA */
    uint64_t len;   /* bytes so far, zeros of the phase included */
    uint64_t limit; /* bytes at which it is full */
    /* of all fragments so far; -1: mixed or unregistered; BUF_INDEX_NONE: no fragment yet */
    int32_t buf_index;
    uint32_t fragment_count;
    uint32_t piece_count;
    uint32_t slot_used;  /* bytes of `slot` */
    bool is_tail_staged; /* the last fragment is ours and ends where the staging cursor stands */
    bool is_tail_chunk;  /* the last fragment ends where the chunk's cursor stands */
    uint8_t *slot;       /* small staging memory of its own, set at start */
    int32_t slot_buf_index;
    uint8_t *chunk; /* staging chunk being filled, or NULL; all chunks are in `chunks` */
    uint32_t chunk_used;
    uint32_t chunk_count;
    uint64_t unwritten; /* payload bytes in it */
    struct iovec fragments[WRITE_FRAGMENTS_MAX];
    struct slice pieces[WRITE_PIECES_MAX];
    uint32_t chunks[]; /* indices, port->chunks_per_write_max */
};

/* A slice that waits for room. */
struct put_backlog {
    struct list node;
    struct slice slice;
};

enum put_pressure {
    PUT_PRESSURE_NONE,
    PUT_PRESSURE_WRITE, /* store_put_relieve */
    PUT_PRESSURE_COPY,  /* store_put_pressure */
};

struct store_put {
    uint32_t magic;
    enum store_put_state state;
    int error;
    struct store_port *port;
    void *user;
    struct list node;         /* port->puts */
    struct list event_node;   /* port->put_events */
    struct list blocked_node; /* port->blocked */

    char bucket[STORE_BUCKET_MAX + 1];
    struct store_name key;
    char upload_id[STORE_UPLOAD_ID_MAX + 1];
    uint32_t part_number;
    uint64_t size_known; /* UINT64_MAX: unknown */
    uint64_t size;       /* appended */
    uint64_t packed;     /* of it, in extents */
    uint64_t written;    /* of it, on the device */
    uint64_t promised;   /* bytes of store->promised that are ours */
    uint64_t growth;     /* what to ask for next */
    uint32_t crc32c;     /* over closed extents */
    uint32_t residue_changes;
    enum store_copy_reason staging_reason;
    bool is_staging;            /* everything is copied */
    bool is_finishing;          /* store_put_finish was called */
    bool is_aborting;           /* store_put_abort was called */
    bool is_clean;              /* failed, and its space has been given back */
    bool is_handed_over;        /* FINISH or ABORT was sent: the space is the committer's */
    enum put_pressure pressure; /* what is to happen as soon as a write may start */

    struct list extents; /* struct put_extent */
    uint32_t extent_count;
    struct put_extent *extent; /* the open one, or NULL */
    struct put_write *unit;    /* collecting, or NULL */
    uint32_t writes_in_flight;
    struct list backlog; /* struct put_backlog */
    uint32_t backlog_count;
    uint64_t device_mask;

    struct commit_put message;
    bool message_in_flight;
    uint32_t message_extents; /* how many of `extents` it carries */
    struct object_extent batch[PUT_EXTENTS_MAX];
    struct store_attributes attributes;
    struct store_condition condition;
};

enum read_state { READ_FREE, READ_READING, READ_DONE, READ_LENT, READ_LATE };

/* A read and its buffer. */
struct store_read {
    uint32_t magic;
    enum read_state state;
    struct dev_io io;
    struct store_port *port;
    void *user;
    uint8_t *buffer;
    uint32_t references; /* slices */
    int result;
    uint32_t device;
    bool is_in_flight; /* the device has not answered, also after its user was told that it is late */
    const struct object_extent *extent; /* borrowed from the object, which its user keeps */
    struct extent_span span;
    struct iovec iov;
    struct list node; /* port->read_events */
};

/* A run of space taken from a device for small objects. */
struct port_lease {
    uint64_t offset;
    uint64_t left; /* bytes */
};

enum watch_kind { WATCH_READ, WATCH_WRITE, WATCH_KINDS };

struct port_watch {
    uint32_t in_flight;
    uint64_t bytes;      /* in flight */
    uint64_t moved_ns;   /* last answer, or the beginning of what is in flight */
    uint64_t noticed_ns; /* lateness.h */
    bool is_late;
};

struct store_port {
    uint32_t magic;
    struct store *store;
    struct store_port_options options;
    uint64_t now_ns;
    _Atomic uint64_t copied[STORE_COPY_REASONS];
    struct mpsc request_inbox;
    _Atomic uint32_t delivering; /* senders inside a push */
    struct mpsc put_inbox;       /* shares the other's event */
    uint64_t requests_in_flight;
    uint64_t messages_in_flight; /* of puts to the committer */
    struct list requests;        /* in flight, and nobody was told that they are late */
    struct list late_requests;   /* to be told */

    struct dev_queue *write_queues[STORE_DEVICES_MAX];
    struct dev_queue *read_queues[STORE_DEVICES_MAX];
    struct port_lease leases[STORE_DEVICES_MAX];
    struct port_watch watches[STORE_DEVICES_MAX][WATCH_KINDS];
    uint32_t device_next;

    struct pool put_pool;
    struct pool extent_pool;
    struct pool write_pool;
    struct pool backlog_pool;
    uint32_t backlog_common; /* entries beyond PUT_BACKLOG_OWN of their upload */
    struct list puts;
    struct list put_events;
    struct list blocked;            /* puts that wait for writes, extents or chunks of others */
    struct mpsc_node *request_head; /* answered, not yet reported */
    struct list read_events;

    uint8_t *zeros; /* EXTENT_BLOCK zeros in the registered part */
    uint32_t slot_size;
    uint8_t *slot_memory; /* for writes whose slot did not fit the registered part */
    uint8_t *chunk_base;
    uint32_t chunk_size;
    uint32_t chunk_total;
    uint32_t chunk_free_count;
    uint32_t *chunk_free; /* stack of indices */
    uint32_t chunks_per_write_max;

    struct slice_owner read_owner;
    struct store_read *reads;
    uint32_t read_count;
    uint32_t read_free_count;
    uint32_t *read_free;  /* stack of indices */
    uint8_t *read_memory; /* when the registered part is too small */
    int32_t read_buf_index;
    bool has_freed; /* something that blocked uploads wait for was given back this turn */
};

static inline struct dev *port_dev(const struct store_port *port, uint32_t device)
{
    return port->store->devices[device].dev;
}

static inline void port_count_copy(struct store_port *port, enum store_copy_reason reason, uint64_t bytes)
{
    /* One writer; readers on other threads only need a whole value. */
    atomic_store_explicit(&port->copied[reason],
                          atomic_load_explicit(&port->copied[reason], memory_order_relaxed) + bytes,
                          memory_order_relaxed);
}

/* ---- watch.c ------------------------------------------------------------------------------------------------------- */

/* An operation is handed to the device; is answered. */
void port_watch_begin(struct store_port *port, uint32_t device, enum watch_kind kind, uint64_t bytes);
void port_watch_end(struct store_port *port, uint32_t device, enum watch_kind kind, uint64_t bytes);
bool port_watch_is_late(const struct store_port *port, uint32_t device, enum watch_kind kind);
/* Is one more within the device's share? */
bool port_watch_may_read(const struct store_port *port, uint32_t device);
bool port_watch_may_write(const struct store_port *port, uint32_t device);
/* Once a turn. */
void port_watch(struct store_port *port);
uint64_t port_watch_deadline(const struct store_port *port);

/* ---- busy.c -------------------------------------------------------------------------------------------------------- */

/* The committer has not come back from the index within flush_deadline. */
bool port_commit_is_late(struct store_port *port);
/* The thread that a request goes to, and the reader's number if it is one; NULL: all that could take it are late. */
struct store_busy *port_busy_choose(struct store_port *port, enum store_request_kind kind, uint32_t *reader);
/* Once a turn. */
void port_busy_watch(struct store_port *port);
uint64_t port_busy_deadline(const struct store_port *port);

/* ---- space.c ------------------------------------------------------------------------------------------------------- */

/* Opens put->extent for payload whose first byte has residue `phase`. 0; -EAGAIN: no extent record, wait; -ENOSPC;
 * ERR_DEVICE_FAILED style codes: fail the put. */
int port_extent_open(struct store_put *put, uint64_t address);
/* Asks for more room behind the open extent (unknown size). False: close it. */
bool port_extent_extend(struct store_put *put);
/* Ends the open extent after its last unit was submitted: describes it and gives the unused rest back. */
void port_extent_close(struct store_put *put);
/* Gives the space of all extents in memory back. No write is in flight. */
void port_extents_give(struct store_put *put);
/* Forgets the first `count` extents: the committer has them. */
void port_extents_forget(struct store_put *put, uint32_t count);
void port_leases_give(struct store_port *port);
/* The first bytes of an upload are promised to it, and what is announced must fit now; -ENOSPC, ERR_DEVICE_FAILED. */
int port_space_promise(struct store_put *put);
void port_space_unpromise(struct store_put *put);

/* ---- pack.c -------------------------------------------------------------------------------------------------------- */

/* Packs from *slice, which shrinks; its reference is used up when it becomes empty. True: all of it. False: no room now (the put is
 * on the blocked list or waits for its own writes), or the put has failed. */
bool pack_slice(struct store_put *put, struct slice *slice);
/* Submits what the unit holds up to the last whole LBA; the rest goes on in a new unit: as it lies, or copied when `copy_rest`. False
 * when no write may start now. */
bool pack_cut(struct store_put *put, bool copy_rest);
/* As pack_cut() without copying; a unit without a whole LBA stays as it is. False when no write may start now. */
bool pack_relieve(struct store_put *put);
/* Pads the unit to a whole LBA, submits it and closes the extent. False when no write may start now. */
bool pack_close(struct store_put *put);
/* Drops the unit without writing. */
void pack_drop(struct store_put *put);
/* Ends a write that came back: its slices, chunks and itself. */
void pack_write_end(struct put_write *write);

/* ---- writer.c ------------------------------------------------------------------------------------------------------ */

void put_fail(struct store_put *put, int error);
/* Goes on wherever it stands: backlog, finishing, recording extents, cleaning up. */
void put_advance(struct store_put *put);
void put_write_done(struct put_write *write);
void put_answered(struct store_put *put);
/* Staging chunks are short: uploads that sit on some write them out. */
void port_stage_pressure(struct store_port *port);
/* Records of extents are short: complete ones are handed to the committer at once. */
void port_extents_pressure(struct store_port *port);

/* ---- reader.c ------------------------------------------------------------------------------------------------------ */

int port_reads_open(struct store_port *port, uint8_t *memory, uint64_t size, struct err *err);
void port_reads_close(struct store_port *port);
/* Tells the users of all reads of this device that it failed; what the device answers later is dropped. */
void port_reads_give_up(struct store_port *port, uint32_t device);
void port_read_done(struct store_read *read);

#endif
