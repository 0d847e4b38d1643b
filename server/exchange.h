/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange: one request and its answer (HTTP), or one object (raw), with everything that belongs to it: head, body
 * framing, the store's request, put, object or list, and the answer's text.
 *
 * Exchanges come from a pool and are taken when the first byte of a request arrives; an idle connection holds none.
 * Requests to the store cannot be withdrawn, so an exchange outlives its connection until the store has given back all
 * that is under way: it is then abandoned, and ends by itself (exchange_settle).
 *
 * Invariants:
 *  1. conn->exchange == x exactly while x->conn == conn. Send memory of x is in use only then.
 *  2. At most one store request of an exchange is under way (x->is_waiting).
 *  3. x->after is called at most once per submitted request, and never for an abandoned exchange.
 */
#ifndef SERVER_EXCHANGE_H
#define SERVER_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/auth_chunked.h"
#include "server/auth_sigv4.h"
#include "server/http_chunked.h"
#include "server/http_cond.h"
#include "server/http_head.h"
#include "server/http_range.h"
#include "server/s3_list.h"
#include "server/s3_target.h"
#include "server/s3_xml_read.h"
#include "server/upload.h"
#include "server/worker.h"
#include "server/xml_out.h"

#define EXCHANGE_OUT_HEAD 6144U /* bytes of an answer's head: STORE_META_MAX and our own headers */
#define EXCHANGE_OUT_SIZE 10240U
/* bytes of a request target: a key of 1,024 escaped bytes and a presigned query */
#define EXCHANGE_TARGET_MAX 8192U
#define EXCHANGE_MAGIC 0x78636867U

enum exchange_stage {
    EXCHANGE_HEAD = 1, /* the head is not complete */
    EXCHANGE_HANDLE,   /* the handler decides; it may be waiting for the store */
    EXCHANGE_BODY,     /* the body is being received */
    EXCHANGE_WORK,     /* the body is complete, the answer is not decided */
    EXCHANGE_RESPOND,  /* the answer is being sent */
    EXCHANGE_ENDED     /* the answer was handed to TCP */
};

/* What an S3 operation does at each point; NULL entries are not used by it. */
struct exchange_ops {
    void (*body)(struct exchange *x, const struct slice *slice); /* owns the slice */
    void (*body_end)(struct exchange *x);
    /* framing broken or too short; NULL: just answer */
    void (*body_failed)(struct exchange *x, enum s3_error error);
    void (*sent)(struct exchange *x, uint64_t cookie); /* more of the answer may be sent */
    void (*resume)(struct exchange *x); /* a free read buffer, block or table may be there now */
    /* The answer was recalled: TCP has the first `sent` bytes of this send (framing included) and nothing behind. Give back what is
     * shared; `room` says when to go on. NULL: cannot be recalled. */
    void (*cut)(struct exchange *x, uint64_t cookie, uint64_t sent);
    void (*room)(struct exchange *x);
    void (*read)(struct exchange *x, struct store_read *read);
    void (*drop)(struct exchange *x); /* let go of what only this operation knows; nothing is in flight */
};

struct http_body {
    bool is_begun;
    bool is_complete;
    bool is_chunked; /* Transfer-Encoding: chunked */
    bool is_aws;     /* aws-chunked within */
    bool is_aws_begun;
    uint64_t remaining; /* of Content-Length */
    uint32_t
        aws_run; /* bytes at the front of the inbox, without HTTP's framing, that are next to be taken apart */
    uint64_t payload; /* bytes delivered */
    uint64_t rate_start_ns;
    uint64_t rate_start_bytes;
    bool rate_excused; /* we paused the peer within this window */
    struct http_chunked chunked;
    struct auth_chunked aws;
};

struct http_response {
    int status; /* 0: none yet */
    bool must_close;
    bool is_ended; /* nothing more will be queued */
    bool is_chunked;
    bool is_continue_sent;
    bool may_be_early; /* what is done may take longer than clients wait for the first byte */
    bool is_early;     /* a 200 and the document's first line are out, the rest of it is not known yet */
    int late_status;   /* of the error that the document then told; 0: none */
    bool is_recalled;  /* nothing may be sent until there is room */
    bool is_head_cut;  /* head_sent bytes of the head are out, the rest goes first when there is room */
    uint32_t head_len;
    uint32_t head_sent;
    uint32_t end_sent; /* of the last chunk, when that was cut */
    bool head_is_full;
    uint32_t sends; /* in flight for this exchange */
    uint64_t progress_ns;
};

#define DOWNLOAD_SLICES 2U
/* A run of an object's stored bytes with a seek table of its own, or stored as it came: the object, or one of its parts. */
struct s3_source_consumer;
struct segment {
    uint32_t index;      /* of the part */
    bool is_plain;       /* stored as it came */
    uint64_t at;         /* place of its payload in the object's */
    uint64_t len;        /* bytes of payload */
    uint64_t stored;     /* place of its stored bytes */
    uint64_t stored_len; /* bytes */
};

/* A download of a compressed object, or a copy that reads its source (s3_get_zstd.c). */
struct decompressing {
    struct filter_stream *stream; /* NULL: not compressed, or none was free so far */
    struct store_object *object;  /* borrowed: x->object, or a copy's source */
    struct segment segment;       /* of the frames that are read now */
    bool has_segment;
    bool has_count; /* the footer was read */
    bool has_table;
    bool is_failed;  /* answered, or reset: nothing more is sent */
    bool is_resting; /* was recalled: the stream goes back as soon as nothing is on its way */
    uint32_t count;  /* frames of the segment */
    uint32_t last;   /* the last frame of the range in it */
    uint32_t next;   /* frame to be read */
    uint32_t taken;  /* frames that were begun, over all segments */
    uint64_t offset; /* of `next` within the stored bytes */
    uint32_t read;   /* bytes of the piece at hand (footer, table, frame) that have arrived */
    const struct s3_source_consumer *consumer;
};

struct download {
    struct http_range range;
    uint64_t offset;  /* next byte to ask for */
    uint64_t sent;    /* bytes handed to TCP and answered */
    uint64_t queued;  /* bytes handed to rx_send */
    uint64_t counted; /* of these, the ones in the metrics: what was recalled is queued again */
    struct store_read *read;
    bool is_read_stale;                   /* it was begun before a cut, so it is not of `offset` */
    struct slice slices[DOWNLOAD_SLICES]; /* being sent; addr NULL: free */
    struct decompressing zstd;
    bool is_partial; /* 206 */
    bool is_stored;  /* the stored bytes are asked for */
    bool is_counted; /* in downloads_in_flight */
};

/* A listing that is written block by block; which one is in `kind` (s3_listing.c). */
struct listing {
    const struct listing_kind *kind;
    struct store_list_options options;
    struct s3_list_params params;
    struct text upload_id_marker;
    struct text key_marker;
    uint32_t next; /* entry to be written */
    uint8_t phase;
    bool is_sending; /* the block is being sent */
    /* the block was recalled: it is written again from here, and its first block_sent bytes skipped */
    bool is_cut;
    uint8_t block_phase;
    uint32_t block_next;
    uint32_t block_sent;
};

/* CompleteMultipartUpload: parts are named in x->table; what they hold is gathered from listings of the upload. */
struct completing {
    struct store_list_options options;
    uint32_t count;          /* parts named */
    uint32_t next;           /* the next of them to be met in the listing */
    struct s3_checksum etag; /* MD5 over the parts' */
    struct s3_checksum composite;
    enum s3_checksum_kind kind; /* of every part so far; NONE: at least one has none, or they differ */
    bool wants_full_object;     /* said at creation or completion */
    bool is_mismatch;           /* a part is not what was named */
    bool is_compressed;         /* at least one part is */
    uint64_t payload;           /* bytes of the parts so far, as they were uploaded */
    bool is_full_object;
    uint64_t crc; /* of the parts so far, as one */
};

/* DeleteObjects: keys and requests lie in x->table. */
struct deleting {
    uint32_t count;
    uint32_t submitted;
    uint32_t written; /* into the answer */
    uint32_t key_bytes;
    uint8_t phase;
    bool is_quiet;
    struct s3_checksum digests[2]; /* Content-MD5 and the x-amz-checksum of the document */
    struct s3_checksum_request checks;
};

/* CopyObject and UploadPartCopy. */
struct copying {
    bool is_replacing;       /* x-amz-metadata-directive: REPLACE */
    uint32_t lookups;        /* of the source */
    struct http_range range; /* of a part's source */
    void (*found)(struct exchange *x);
    char bucket[STORE_BUCKET_MAX + 1];
    struct store_name key;
};

struct exchange {
    uint32_t magic;
    enum exchange_stage stage;
    struct worker *worker;
    struct listener *listener;
    struct conn *conn;
    struct list waiter;  /* worker->shares[].waiters */
    struct list holder;  /* worker->shares[].holders or stuck */
    uint64_t holding_ns; /* while in there: since when its peer has not moved */
    bool is_resuming;
    const struct exchange_ops *ops;
    bool is_abandoned;
    bool is_waiting;
    bool is_given_up; /* answered, because the index does not: what comes back from it is not used */
    bool is_upload_counted;
    uint32_t operation;  /* label of metrics */
    uint64_t started_ns; /* first byte */
    uint64_t head_ns;    /* end of the head */
    uint64_t body_end_ns;
    char request_id[17];

    /* the store */
    struct store_request request;
    uint32_t more_waiting; /* requests beside `request` (DeleteObjects) that are under way */
    void (*after)(struct exchange *x);
    struct store_object *object;
    struct store_object *source; /* of a copy */
    struct store_list *list;
    void *block; /* of worker->blocks */
    void *table; /* of worker->tables */

    /* HTTP */
    struct http_head head;
    uint32_t head_len;
    struct s3_target target;
    bool is_authenticated;
    uint32_t access_key_len;
    char access_key[AUTH_ACCESS_KEY_MAX];
    struct auth_payload_info payload;
    struct auth_sigv4_context signing;
    struct http_body body;
    struct http_response response;
    struct s3_xml_reader xml;
    bool is_xml_open;
    enum s3_error xml_error;

    struct upload upload;
    union {
        struct download download;
        struct listing listing;
        struct completing completing;
        struct deleting deleting;
        struct copying copying;
    };

    struct xml_out xml_out;            /* over the body part of `out`, or over the block */
    char scratch[EXCHANGE_TARGET_MAX]; /* decoded key and parameters */
    char out[EXCHANGE_OUT_SIZE];       /* answer: head first, a small body behind EXCHANGE_OUT_HEAD */
    char head_bytes[];                 /* head_size_max of the largest listener */
};

/* Takes an exchange for a connection; NULL when none is free (the conn is then a waiter). */
struct exchange *exchange_take(struct conn *conn);

/* Submits x->request, prepared by the caller but for `user`. `after` runs when it is back. */
void exchange_submit(struct exchange *x, enum store_request_kind kind, void (*after)(struct exchange *x));
/* The worker hands results back by these. */
void exchange_request_done(struct store_request *request);
/* It will be late: the client is told instead. */
void exchange_request_late(struct store_request *request);
void exchange_read_done(struct exchange *x, struct store_read *read);

/* The connection ends or the answer is out: nothing of it will be used. Idempotent. */
void exchange_abandon(struct exchange *x);
/* The request in the metrics, by how its answer ended. */
void exchange_count(struct exchange *x);
/* RX_CLOSED: no send is in flight any more, the conn will be freed. */
void exchange_detach(struct exchange *x);
/* Ends an exchange whose answer was sent; its memory goes back when the store lets go of it. */
void exchange_end(struct exchange *x);
/* Frees an abandoned or ended exchange if nothing is in flight; called after each event that may have been the last. */
void exchange_settle(struct exchange *x);

/* Is its peer paused because its upload is ahead of the device? NULL is allowed. */
bool exchange_is_throttled(const struct exchange *x);

/* A block or table for a long answer; false: none is free, ops->resume is called when one is. */
bool exchange_block_take(struct exchange *x);
bool exchange_table_take(struct exchange *x);
void exchange_block_give(struct exchange *x);

/* Counts what the store copied meanwhile for this exchange's listener. */
void exchange_copied_claim(struct exchange *x);

#endif
