/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf: the configuration as the rest of the program sees it: plain values in base units, every default filled in,
 * every check done. It is read once from a YAML file; all keys, units, limits and defaults are rows of one table
 * (schema.c), from which the parser, the checks, the effective print and REFERENCE.md are made.
 *
 * Ownership: conf_load and conf_parse allocate one struct conf; conf_free ends it. Everything in it is inline memory, so
 * pointers into it live as long as it does. It is constant after loading and may be read by any thread.
 * It must not open devices, sockets or the store: what needs the host is server/preflight.c.
 */
#ifndef CONF_CONF_H
#define CONF_CONF_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/log.h"

#define CONF_PATH_DEFAULT "/etc/penstock/penstock.yaml"

#define CONF_NAME_MAX 63U    /* bytes of a node's or listener's name */
#define CONF_PATH_SIZE 4096U /* bytes of a path with its NUL */
#define CONF_DEVICES_MAX 64U /* = STORE_DEVICES_MAX, asserted where both are seen */
#define CONF_LISTENERS_MAX 16U
#define CONF_WORKERS_MAX 64U
#define CONF_NUMBERS_MAX 128U   /* members of a list of CPUs or queues */
#define CONF_INTERFACE_SIZE 16U /* IFNAMSIZ */
#define CONF_TEMPLATE_SIZE 512U /* bytes of a key template with its NUL */
#define CONF_TEXT_SIZE 256U

enum conf_protocol { CONF_PROTOCOL_S3, CONF_PROTOCOL_RAW };
enum conf_receive { CONF_RECEIVE_AUTO, CONF_RECEIVE_SOCKET, CONF_RECEIVE_ZCRX, CONF_RECEIVE_AF_XDP };
enum conf_access { CONF_ACCESS_ANONYMOUS, CONF_ACCESS_AUTHENTICATED };
enum conf_etag { CONF_ETAG_OPAQUE, CONF_ETAG_MD5 };
enum conf_compression_type { CONF_COMPRESSION_NONE, CONF_COMPRESSION_ZSTD };

/* A numeric address with its port. */
struct conf_address {
    struct sockaddr_storage addr;
    socklen_t len; /* bytes of addr in use; 0: the key was not given */
    char text[64]; /* as written, for messages and labels */
};

/* A set of small numbers in the order given: CPUs or queues. */
struct conf_numbers {
    bool is_auto;   /* "auto": chosen at start (CPUs of the interface's NUMA node) */
    uint32_t count; /* 0 and not auto: the key was not given */
    uint32_t values[CONF_NUMBERS_MAX];
};

struct conf_node {
    char name[CONF_NAME_MAX + 1];
    char data_dir[CONF_PATH_SIZE]; /* holds the index and the lock file */
    uint32_t workers;
    uint64_t staging_size; /* bytes per worker: copies of ragged pieces, response reads, response text */
    uint64_t drain_timeout_ns;
    enum log_level log_level;
    uint32_t compression_streams; /* per worker: compressed uploads and downloads at once */
};

struct conf_device {
    char path[CONF_PATH_SIZE];
    uint64_t size; /* bytes; 0: the whole device, or the file's size */
    uint32_t line; /* where the path is written, for messages about the device */
    uint32_t column;
};

struct conf_store {
    struct conf_device devices[CONF_DEVICES_MAX];
    uint32_t device_count;
    uint64_t commit_window_ns;
    uint64_t flush_deadline_ns;
    uint64_t read_deadline_ns;
    uint32_t index_readers;
    uint64_t index_size_max; /* bytes; 0: no own limit */
    uint32_t reserve_percent;
    uint64_t upload_expiry_ns; /* 0: never */
    uint64_t scrub_rate;       /* bytes per second; 0: as fast as it goes */
    uint64_t write_unit;       /* bytes of one device write at most */
    uint32_t writes_per_upload_max;
    uint64_t read_buffer_size; /* bytes of one device read at most */
};

struct conf_tls {
    char certificate[CONF_PATH_SIZE]; /* "" : plain */
    char key[CONF_PATH_SIZE];
};

/* Which objects are stored compressed. */
struct conf_compression {
    enum conf_compression_type type;
    uint32_t level;
    char prefixes[CONF_TEMPLATE_SIZE]; /* "bucket/prefix" words between spaces; "" : every object */
};

/* Limits of one listener. "Per worker" because workers share nothing: with N workers a listener holds N times as many. */
struct conf_limits {
    uint64_t head_size_max;   /* bytes of a request head */
    uint64_t head_timeout_ns; /* first byte of a head to its end */
    uint64_t body_timeout_ns; /* longest pause inside a body */
    uint64_t body_rate_min;   /* bytes per second averaged over body_rate_window; 0: none */
    uint64_t body_rate_window_ns;
    uint64_t idle_timeout_ns;          /* between requests */
    uint64_t send_timeout_ns;          /* no progress of a response */
    uint32_t connections_max;          /* per worker */
    uint32_t connections_per_peer_max; /* per worker; 0: no own limit */
    uint32_t uploads_max;              /* per worker */
    uint32_t uploads_per_peer_max;     /* per worker; 0: no own limit */
    /* receive buffers that one connection may hold; 0: an eighth of the area */
    uint32_t buffers_per_connection_max;
    uint64_t upload_queue_max; /* bytes of one upload that wait for the device before its peer is paused */
    uint64_t object_size_max;  /* bytes */
    uint64_t tls_handshake_timeout_ns;
    uint64_t tcp_keepalive_ns;    /* 0: the system's */
    uint64_t tcp_user_timeout_ns; /* 0: the system's */
};

struct conf_listener {
    char name[CONF_NAME_MAX + 1];
    enum conf_protocol protocol;
    struct conf_address address;
    enum conf_receive receive;
    enum conf_access access;
    bool allow_remote_anonymous;
    char credentials[CONF_PATH_SIZE]; /* "" : none */
    struct conf_tls tls;
    uint64_t rx_buffer_size; /* bytes, power of two, 4 KiB .. 1 MiB; 0: the receive path's default */
    uint64_t rx_area_size;   /* bytes per worker */
    char interface[CONF_INTERFACE_SIZE]; /* "" : found by the address */
    struct conf_numbers queues;
    uint64_t busy_poll_ns; /* af_xdp; 0: never */
    struct conf_numbers cpus;
    enum arena_pages hugepages;
    enum conf_etag etag;
    struct conf_compression compression;
    bool manage_nic;
    char bucket[64];                          /* raw: where objects land */
    char key_template[CONF_TEMPLATE_SIZE];    /* raw */
    char region[64];                          /* s3 */
    char virtual_host_domain[CONF_TEXT_SIZE]; /* s3; "" : path style only */
    struct conf_limits limits;
};

struct conf_admin {
    struct conf_address address; /* len 0: no admin listener */
};

struct conf {
    char path[CONF_PATH_SIZE]; /* where it was read from */
    struct conf_node node;
    struct conf_store store;
    struct conf_listener listeners[CONF_LISTENERS_MAX];
    uint32_t listener_count;
    struct conf_admin admin;
};

/* Reads and checks a file. On failure returns ERR_INVALID_CONFIG (or the -errno of the read; nothing is allocated) and `err`
 * says "file:line:column: key: value: what is allowed". */
int conf_load(const char *path, struct conf **out, struct err *err);
/* The same from memory; `name` stands for the file in messages. */
int conf_parse(const char *name, const char *text, size_t len, struct conf **out, struct err *err);
void conf_free(struct conf *conf);

/* The effective configuration as YAML that loads again to the same values. */
void conf_print(const struct conf *conf, FILE *to);
/* The reference of all keys as Markdown (conf/REFERENCE.md). */
void conf_reference_print(FILE *to);

/* Words of the enumerations as they are written in the file. */
const char *conf_protocol_text(enum conf_protocol value);
const char *conf_receive_text(enum conf_receive value);
const char *conf_access_text(enum conf_access value);
const char *conf_etag_text(enum conf_etag value);
const char *conf_hugepages_text(enum arena_pages value);

/* ---- memory: the formulas that "penstock check" prints and the server allocates by --------------------------------- */

/* Bytes of our own state per connection, response text included; asserted by the server. The text is for the reference. */
#define CONF_CONNECTION_STATE_SIZE 45056U
#define CONF_CONNECTION_STATE_TEXT "44KiB"

/* A connection of a TLS listener takes more: our ring of ciphertext and what OpenSSL keeps, which is two record buffers of
 * 17 KiB while records move, and the session (measured with 500 idle connections: 20 KiB of resident memory each, all in all). */
#define CONF_TLS_OUT_SIZE 40960U
#define CONF_TLS_STATE_SIZE (CONF_TLS_OUT_SIZE + 65536U)
#define CONF_TLS_STATE_TEXT "104KiB"

/* One connection: its state and its head buffer. */
static inline uint64_t conf_memory_connection(const struct conf_listener *listener)
{
    uint64_t tls = listener->tls.certificate[0] == '\0' ? 0 : CONF_TLS_STATE_SIZE;
    return CONF_CONNECTION_STATE_SIZE + tls + listener->limits.head_size_max;
}

/* What a receive buffer takes besides itself: places in queues of slices and of what is to be hashed, and its entry in the tables of its
 * backend; asserted by the server. af_xdp's engine has state of its own for each connection. */
#define CONF_BUFFER_STATE_SIZE 640U
#define CONF_BUFFER_STATE_TEXT "640 bytes"
#define CONF_BUFFER_DEFAULT (128U * 1024U)
#define CONF_XDP_BUFFER 4096U
#define CONF_XDP_CONNECTION_SIZE 2560U

static inline uint64_t conf_memory_buffers(const struct conf_listener *listener)
{
    uint64_t size = listener->rx_buffer_size == 0 ? CONF_BUFFER_DEFAULT : listener->rx_buffer_size;
    size = listener->receive == CONF_RECEIVE_AF_XDP ? CONF_XDP_BUFFER : size;
    uint64_t conns = listener->receive == CONF_RECEIVE_AF_XDP ? listener->limits.connections_max : 0;
    return listener->rx_area_size / size * CONF_BUFFER_STATE_SIZE + conns * CONF_XDP_CONNECTION_SIZE;
}

/* One listener on one worker: receive area, what its buffers take besides, and connections. */
static inline uint64_t conf_memory_listener(const struct conf_listener *listener)
{
    return listener->rx_area_size + conf_memory_buffers(listener) +
           listener->limits.connections_max * conf_memory_connection(listener);
}

/* Bytes of one compression stream (two frames as payload and as stored, a seek table) and of the zstd contexts of a worker's
 * filter thread; asserted by the server. What is stored compressed must be readable when nothing is compressed any more,
 * so these are taken whatever the listeners say. */
#define CONF_COMPRESSION_STREAM_SIZE (1344U * 1024U)
#define CONF_COMPRESSION_CONTEXT_SIZE (24U * 1024U * 1024U)
#define CONF_COMPRESSION_STREAM_TEXT "1344KiB"
#define CONF_COMPRESSION_CONTEXT_TEXT "24MiB"
static inline uint64_t conf_memory_compression(const struct conf *conf)
{
    return CONF_COMPRESSION_CONTEXT_SIZE +
           (uint64_t)conf->node.compression_streams * CONF_COMPRESSION_STREAM_SIZE;
}

/* One worker: staging, compression and every listener. */
static inline uint64_t conf_memory_worker(const struct conf *conf)
{
    uint64_t bytes = conf->node.staging_size + conf_memory_compression(conf);
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        bytes += conf_memory_listener(&conf->listeners[i]);
    }
    return bytes;
}

/* Memory that is registered with the kernel (counts against RLIMIT_MEMLOCK) per worker: staging and receive areas. */
static inline uint64_t conf_memory_registered(const struct conf *conf)
{
    uint64_t bytes = conf->node.staging_size;
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        bytes += conf->listeners[i].rx_area_size;
    }
    return bytes;
}

#endif
