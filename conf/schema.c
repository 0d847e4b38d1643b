/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schema: every configuration key, one row each, and look-ups in the table. Pure.
 *
 * To add a key: a field in conf.h, a row here, and what reads it. Parser, effective print and REFERENCE.md follow. A key that
 * costs memory says so in its help and takes part in the formulas of conf.h.
 */
#include "conf/schema_int.h"

#include <ctype.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"

#define SECOND NS_PER_S
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)
#define DAY (24 * HOUR)

static const struct schema_choice log_levels[] = {
    {"debug", LOG_DEBUG}, {"info", LOG_INFO}, {"warn", LOG_WARN}, {"error", LOG_ERROR}, {NULL, 0}};
static const struct schema_choice protocols[] = {
    {"s3", CONF_PROTOCOL_S3}, {"raw", CONF_PROTOCOL_RAW}, {NULL, 0}};
static const struct schema_choice receives[] = {{"auto", CONF_RECEIVE_AUTO},
                                                {"socket", CONF_RECEIVE_SOCKET},
                                                {"zcrx", CONF_RECEIVE_ZCRX},
                                                {"af_xdp", CONF_RECEIVE_AF_XDP},
                                                {NULL, 0}};
static const struct schema_choice accesses[] = {
    {"anonymous", CONF_ACCESS_ANONYMOUS}, {"authenticated", CONF_ACCESS_AUTHENTICATED}, {NULL, 0}};
static const struct schema_choice etags[] = {{"opaque", CONF_ETAG_OPAQUE}, {"md5", CONF_ETAG_MD5}, {NULL, 0}};
static const struct schema_choice compressions[] = {
    {"none", CONF_COMPRESSION_NONE}, {"zstd", CONF_COMPRESSION_ZSTD}, {NULL, 0}};
static const struct schema_choice pages[] = {
    {"none", ARENA_PAGES_NORMAL}, {"2MiB", ARENA_PAGES_2MIB}, {"1GiB", ARENA_PAGES_1GIB}, {NULL, 0}};

/* ---- checks of one text ------------------------------------------------------------------------------------------- */

/* Names become metric labels, log values and parts of keys. */
static const char *check_name(const char *text)
{
    static const char allowed[] = "letters, digits, '.', '_' and '-', beginning with a letter or digit";
    if (!isalnum((unsigned char)text[0])) {
        return allowed;
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (!isalnum((unsigned char)*at) && strchr("._-", *at) == NULL) {
            return allowed;
        }
    }
    return NULL;
}

static const char *check_bucket(const char *text)
{
    static const char allowed[] =
        "3 to 63 lower-case letters, digits, '.' and '-', beginning and ending with a letter or digit";
    size_t len = strlen(text);
    if (len < 3 || text[0] == '.' || text[0] == '-' || text[len - 1] == '.' || text[len - 1] == '-') {
        return allowed;
    }
    for (size_t i = 0; i < len; i++) {
        bool is_fine = (text[i] >= 'a' && text[i] <= 'z') || isdigit((unsigned char)text[i]) ||
                       text[i] == '.' || text[i] == '-';
        if (!is_fine || (text[i] == '.' && text[i + 1] == '.')) {
            return allowed;
        }
    }
    return NULL;
}

/* Two raw streams must never meet in one key by accident, so the sequence number is demanded. */
static const char *check_template(const char *text)
{
    static const char allowed[] =
        "text with {listener}, {node}, {date}, {time}, {peer}, {seq}; {seq} must occur, so that no two "
        "streams get one key";
    static const char *const names[] = {"{listener}", "{node}", "{date}", "{time}", "{peer}", "{seq}"};
    bool has_seq = false;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '}') {
            return allowed;
        }
        if (*at != '{') {
            continue;
        }
        size_t found = 0;
        for (; found < ARRAY_COUNT(names) && strncmp(at, names[found], strlen(names[found])) != 0; found++) {
        }
        if (found == ARRAY_COUNT(names)) {
            return allowed;
        }
        has_seq = has_seq || found == ARRAY_COUNT(names) - 1;
        at += strlen(names[found]) - 1;
    }
    return has_seq && text[0] != '/' ? NULL : allowed;
}

/* A word without '/' would also match buckets that merely begin like it. */
static const char *check_prefixes(const char *text)
{
    bool has_slash = false;
    for (const char *at = text; *at != '\0'; at++) {
        bool is_end = at[1] == ' ' || at[1] == '\0';
        has_slash = has_slash || *at == '/';
        if ((unsigned char)*at < ' ' || (*at != ' ' && is_end && !has_slash)) {
            return "words between spaces, each a bucket, '/' and the beginning of a key: \"logs/ data/csv/\"";
        }
        has_slash = has_slash && *at != ' ';
    }
    return NULL;
}

static const char *check_domain(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (!isalnum((unsigned char)*at) && strchr(".-", *at) == NULL) {
            return "a DNS name such as s3.example.net, without port";
        }
    }
    return text[0] == '.' || text[0] == '-' ? "a DNS name such as s3.example.net, without a dot in front"
                                            : NULL;
}

static const char *check_interface(const char *text)
{
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '/' || *at == ':' || isspace((unsigned char)*at)) {
            return "a network interface name of at most 15 bytes, as ip link shows it";
        }
    }
    return NULL;
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

#define NODE(field) offsetof(struct conf, node.field)
#define STORE(field) offsetof(struct conf, store.field)
#define DEVICE(field) offsetof(struct conf_device, field)
#define LISTENER(field) offsetof(struct conf_listener, field)
#define LIMIT(field) offsetof(struct conf_listener, limits.field)
#define SIZE_OF(type, field) sizeof(((struct type *)NULL)->field)

const struct schema_row schema_rows[] = {
    {.name = "node", .type = SCHEMA_SECTION, .flags = SCHEMA_REQUIRED, .help = "The process and its host."},
    {.name = "node.name",
     .type = SCHEMA_TEXT,
     .offset = NODE(name),
     .size = SIZE_OF(conf_node, name),
     .default_text = "penstock",
     .check = check_name,
     .help = "Name of this node in logs, metrics and key templates."},
    {.name = "node.data_dir",
     .type = SCHEMA_TEXT,
     .offset = NODE(data_dir),
     .size = CONF_PATH_SIZE,
     .flags = SCHEMA_REQUIRED,
     .help = "Directory of the index (SQLite) and of the lock file. On a local file system; it is created "
             "by format."},
    {.name = "node.workers",
     .type = SCHEMA_COUNT,
     .offset = NODE(workers),
     .min = 1,
     .max = CONF_WORKERS_MAX,
     .default_text = "1",
     .help = "Worker threads, one per core that shall move data. Each has its own ring, staging pool and "
             "receive areas."},
    {.name = "node.staging_size",
     .type = SCHEMA_SIZE,
     .offset = NODE(staging_size),
     .min = 64 * KIB,
     .max = 1 * TIB,
     .default_text = "64MiB",
     .help = "Staging pool of one worker: ragged pieces on their way to a device, and what is read from "
             "devices. "
             "Memory: staging_size x workers, registered with the kernel."},
    {.name = "node.drain_timeout",
     .type = SCHEMA_DURATION,
     .offset = NODE(drain_timeout_ns),
     .min = 0,
     .max = 1 * DAY,
     .default_text = "30s",
     .help = "After SIGTERM uploads in flight may finish for this long; what is left then is reset. A device "
             "that does not answer holds the node up no longer: it then exits with status 1."},
    {.name = "node.log_level",
     .type = SCHEMA_CHOICE,
     .offset = NODE(log_level),
     .choices = log_levels,
     .default_text = "info",
     .help = "Lowest level that is logged. Can be changed while running: POST /log-level on the admin "
             "address."},

    {.name = "node.compression_streams",
     .type = SCHEMA_COUNT,
     .offset = NODE(compression_streams),
     .min = 1,
     .max = 1024,
     .default_text = "4",
     .help = "Compressed uploads and downloads at once on one worker. Without a free one an upload is stored "
             "plain and a download waits. Memory: (compression_streams x " CONF_COMPRESSION_STREAM_TEXT
             " + " CONF_COMPRESSION_CONTEXT_TEXT ") x workers."},

    {.name = "store",
     .type = SCHEMA_SECTION,
     .flags = SCHEMA_REQUIRED,
     .help = "Where payload goes and how."},
    {.name = "store.devices[]",
     .type = SCHEMA_LIST,
     .offset = STORE(devices),
     .size = sizeof(struct conf_device),
     .count_offset = STORE(device_count),
     .min = 1,
     .max = CONF_DEVICES_MAX,
     .flags = SCHEMA_REQUIRED,
     .help = "Block devices, or files that stand for one. Uploads are spread over them; order does not "
             "matter."},
    {.name = "store.devices[].path",
     .type = SCHEMA_TEXT,
     .offset = DEVICE(path),
     .size = CONF_PATH_SIZE,
     .flags = SCHEMA_REQUIRED,
     .help =
         "A block device (better by a stable name under /dev/disk/by-id), an NVMe namespace by passthrough "
         "(/dev/ngXnY, a whole namespace without metadata; opens the same store as its block device), or a "
         "file."},
    {.name = "store.devices[].size",
     .type = SCHEMA_SIZE,
     .offset = DEVICE(size),
     .min = 16 * MIB,
     .max = 4096 * TIB,
     .flags = SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "the whole device, or the size the file has",
     .help = "Bytes to use. A file that does not exist is created with this size by format."},
    {.name = "store.commit_window",
     .type = SCHEMA_DURATION,
     .offset = STORE(commit_window_ns),
     .min = 0,
     .max = 1 * SECOND,
     .default_text = "0",
     .help = "How long the committer gathers finished uploads into one index transaction. 0 takes what is "
             "there, which batches by itself under load."},
    {.name = "store.flush_deadline",
     .type = SCHEMA_DURATION,
     .offset = STORE(flush_deadline_ns),
     .min = 100 * NS_PER_MS,
     .max = 10 * MINUTE,
     .default_text = "5s",
     .help = "A device that answers no flush, or no write at all, for so long is suspect: new uploads go to "
             "the others until it answers, and uploads whose payload waits for it are refused (503 "
             "ServiceUnavailable) and leave nothing. Likewise the index: what waits for it is answered 503, "
             "but a change whose transaction had begun may take effect when it answers."},
    {.name = "store.read_deadline",
     .type = SCHEMA_DURATION,
     .offset = STORE(read_deadline_ns),
     .min = 100 * NS_PER_MS,
     .max = 1 * DAY,
     .default_text = "30s",
     .help = "A device that answers no read for so long is suspect, and downloads that wait for it fail."},
    {.name = "store.index_readers",
     .type = SCHEMA_COUNT,
     .offset = STORE(index_readers),
     .min = 1,
     .max = 16,
     .default_text = "1",
     .help = "Threads that answer look-ups and lists from the index."},
    {.name = "store.index_size_max",
     .type = SCHEMA_SIZE,
     .offset = STORE(index_size_max),
     .min = 16 * MIB,
     .max = 64 * TIB,
     .flags = SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "no limit of our own",
     .help = "When the index has grown to this, uploads are answered 507 while deletes go on."},
    {.name = "store.reserve_percent",
     .type = SCHEMA_COUNT,
     .offset = STORE(reserve_percent),
     .min = 0,
     .max = 50,
     .default_text = "1",
     .help = "Part of each device that uploads may not take, so that overwrites and deletes always work."},
    {.name = "store.upload_expiry",
     .type = SCHEMA_DURATION,
     .offset = STORE(upload_expiry_ns),
     .min = 1 * MINUTE,
     .max = 3650 * DAY,
     .flags = SCHEMA_ZERO,
     .default_text = "7d",
     .zero_means = "never",
     .help = "Multipart uploads that nobody completed are aborted after this time."},
    {.name = "store.scrub_rate",
     .type = SCHEMA_RATE,
     .offset = STORE(scrub_rate),
     .min = 64 * KIB,
     .max = 1 * TIB,
     .flags = SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "no reading in the background",
     .help = "How fast a running node reads everything it holds again and compares it with its checksums, "
             "over and "
             "over. penstock scrub reads at this rate too, or as fast as it goes when it is 0."},
    {.name = "store.write_unit",
     .type = SCHEMA_SIZE,
     .offset = STORE(write_unit),
     .min = 64 * KIB,
     .max = 16 * MIB,
     .flags = SCHEMA_POWER_OF_TWO,
     .default_text = "1MiB",
     .help = "Bytes of one device write at most."},
    {.name = "store.writes_per_upload_max",
     .type = SCHEMA_COUNT,
     .offset = STORE(writes_per_upload_max),
     .min = 1,
     .max = 64,
     .default_text = "4",
     .help = "Device writes of one upload in flight."},
    {.name = "store.read_buffer_size",
     .type = SCHEMA_SIZE,
     .offset = STORE(read_buffer_size),
     .min = 256 * KIB,
     .max = 16 * MIB,
     .flags = SCHEMA_POWER_OF_TWO,
     .default_text = "512KiB",
     .help = "Bytes of one device read. Comes out of the staging pool while it is in flight."},

    {.name = "listeners[]",
     .type = SCHEMA_LIST,
     .offset = offsetof(struct conf, listeners),
     .size = sizeof(struct conf_listener),
     .count_offset = offsetof(struct conf, listener_count),
     .min = 1,
     .max = CONF_LISTENERS_MAX,
     .flags = SCHEMA_REQUIRED,
     .help = "Addresses that take data."},
    {.name = "listeners[].name",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(name),
     .size = SIZE_OF(conf_listener, name),
     .flags = SCHEMA_REQUIRED,
     .check = check_name,
     .help = "Name in logs, metrics and key templates."},
    {.name = "listeners[].protocol",
     .type = SCHEMA_CHOICE,
     .offset = LISTENER(protocol),
     .choices = protocols,
     .flags = SCHEMA_REQUIRED,
     .help = "s3: the S3 API over HTTP/1.1. raw: one TCP connection is one object."},
    {.name = "listeners[].address",
     .type = SCHEMA_ADDRESS,
     .offset = LISTENER(address),
     .flags = SCHEMA_REQUIRED,
     .help = "Numeric address and port: \"192.0.2.1:9000\", \"[2001:db8::1]:9000\", \"*:9000\" for all "
             "addresses, IPv4 and IPv6."},
    {.name = "listeners[].receive",
     .type = SCHEMA_CHOICE,
     .offset = LISTENER(receive),
     .choices = receives,
     .default_text = "auto",
     .help = "Receive path. auto takes the best that works here and logs why each better one does not; a "
             "named one is taken or "
             "the node does not start."},
    {.name = "listeners[].access",
     .type = SCHEMA_CHOICE,
     .offset = LISTENER(access),
     .choices = accesses,
     .default_text = "anonymous",
     .help =
         "anonymous: everybody who can connect may do everything. authenticated: signed S3 requests only."},
    {.name = "listeners[].allow_remote_anonymous",
     .type = SCHEMA_BOOL,
     .offset = LISTENER(allow_remote_anonymous),
     .default_text = "false",
     .help = "Must be true for anonymous access on an address that is not loopback."},
    {.name = "listeners[].credentials",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(credentials),
     .size = CONF_PATH_SIZE,
     .flags = SCHEMA_EMPTY,
     .help = "File of access keys for authenticated access; only its owner may read it. Its form: "
             "deploy/credentials. Read again on SIGHUP."},
    {.name = "listeners[].tls", .type = SCHEMA_SECTION, .help = "TLS, on the socket path only."},
    {.name = "listeners[].tls.certificate",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(tls.certificate),
     .size = CONF_PATH_SIZE,
     .flags = SCHEMA_REQUIRED,
     .help =
         "PEM file: certificate and its chain. Read again on SIGHUP; files that are not good leave the old "
         "certificate in use. TLS 1.2 and 1.3. Memory: " CONF_TLS_STATE_TEXT
         " more for each of connections_max; a quarter of rx_area_size holds ciphertext."},
    {.name = "listeners[].tls.key",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(tls.key),
     .size = CONF_PATH_SIZE,
     .flags = SCHEMA_REQUIRED,
     .help = "PEM file: private key, not encrypted; only its owner may read it."},
    {.name = "listeners[].rx_buffer_size",
     .type = SCHEMA_SIZE,
     .offset = LISTENER(rx_buffer_size),
     .min = 4 * KIB,
     .max = 1 * MIB,
     .flags = SCHEMA_POWER_OF_TWO | SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "the receive path's own default",
     .help = "Size of one receive buffer. Bigger buffers mean fewer and larger device writes; on zcrx the "
             "NIC must support it, and af_xdp takes frames of 4KiB at most. On socket with manage_nic, the "
             "NIC's own buffers get this size too, where "
             "the kernel lets users set it (kernel/README.md)."},
    {.name = "listeners[].rx_area_size",
     .type = SCHEMA_SIZE,
     .offset = LISTENER(rx_area_size),
     .min = 64 * KIB,
     .max = 1 * TIB,
     .default_text = "64MiB",
     .help = "Memory that one worker receives into. Memory: rx_area_size x workers, registered with the "
             "kernel, and " CONF_BUFFER_STATE_TEXT " for each buffer in it (4KiB on af_xdp)."},
    {.name = "listeners[].interface",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(interface),
     .size = CONF_INTERFACE_SIZE,
     .flags = SCHEMA_EMPTY,
     .check = check_interface,
     .help =
         "Network interface that is prepared; without it, the one that has the address. An address of all "
         "(0.0.0.0, [::]) on zcrx or af_xdp needs it."},
    {.name = "listeners[].queues",
     .type = SCHEMA_NUMBERS,
     .offset = LISTENER(queues),
     .max = 4095,
     .help = "NIC receive queues: \"4-7\" or [4, 5]. zcrx: one for each worker. af_xdp: shared out among the "
             "workers; "
             "without it, all queues of the interface. socket: those that get rx_buffer_size; without it, "
             "all that "
             "RSS uses."},
    {.name = "listeners[].busy_poll",
     .type = SCHEMA_DURATION,
     .offset = LISTENER(busy_poll_ns),
     .min = 0,
     .max = 1 * SECOND,
     .default_text = "0",
     .help =
         "af_xdp: for so long after the last frame a worker asks the NIC for more instead of sleeping, with "
         "its interrupts held back: less delay, for a CPU that is busy as long as there is traffic. 0: "
         "never. "
         "The largest of an interface's listeners holds. manage_nic: true sets what the NIC needs for it."},
    {.name = "listeners[].cpus",
     .type = SCHEMA_NUMBERS,
     .offset = LISTENER(cpus),
     .max = 8191,
     .flags = SCHEMA_AUTO,
     .help = "CPUs that workers are pinned to, in order: \"0-3\" or [0, 2]. auto: the CPUs of the "
             "interface's NUMA node. Without it "
             "workers are not pinned. Listeners that name CPUs must name the same."},
    {.name = "listeners[].hugepages",
     .type = SCHEMA_CHOICE,
     .offset = LISTENER(hugepages),
     .choices = pages,
     .default_text = "none",
     .help = "Pages of the receive area and staging pool. zcrx with buffers above 4KiB needs 2MiB or 1GiB "
             "pages, reserved beforehand. Where too few of 1GiB are free, 2MiB pages are taken and the "
             "log says why."},
    {.name = "listeners[].etag",
     .type = SCHEMA_CHOICE,
     .offset = LISTENER(etag),
     .choices = etags,
     .default_text = "opaque",
     .help = "ETag of objects put through this listener. opaque looks like a multipart ETag, so that "
             "clients do not take it for an MD5. md5 "
             "costs 1.4 to 2.4 CPU seconds per GiB, as the CPU is."},
    {.name = "listeners[].compression",
     .type = SCHEMA_SECTION,
     .help = "s3: store objects compressed. Clients see payload, its size and its checksums as ever. Costs "
             "CPU on a thread beside each worker and copies every byte (reason filter)."},
    {.name = "listeners[].compression.type",
     .type = SCHEMA_CHOICE,
     .offset = LISTENER(compression.type),
     .choices = compressions,
     .default_text = "none",
     .help =
         "zstd: objects, and parts of multipart uploads, of 4KiB to 8GiB are stored as seekable zstd "
         "frames, unless their beginning does not compress. A stream of unknown length is compressed too and "
         "may then have 8GiB at most; parts may make an object of any size."},
    {.name = "listeners[].compression.level",
     .type = SCHEMA_COUNT,
     .offset = LISTENER(compression.level),
     .min = 1,
     .max = 9,
     .default_text = "3",
     .help = "zstd's level: higher is smaller and slower."},
    {.name = "listeners[].compression.prefixes",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(compression.prefixes),
     .size = CONF_TEMPLATE_SIZE,
     .flags = SCHEMA_EMPTY,
     .check = check_prefixes,
     .help = "Only objects whose \"bucket/key\" begins with one of these words are compressed: \"logs/ "
             "data/csv/\". Without it every object is."},
    {.name = "listeners[].manage_nic",
     .type = SCHEMA_BOOL,
     .offset = LISTENER(manage_nic),
     .default_text = "false",
     .help = "true: set up the NIC for the listener at start and undo it at the end. false: check it and "
             "print the commands."},
    {.name = "listeners[].bucket",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(bucket),
     .size = SIZE_OF(conf_listener, bucket),
     .flags = SCHEMA_EMPTY,
     .check = check_bucket,
     .help = "raw: bucket that objects land in. It is created at start."},
    {.name = "listeners[].key_template",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(key_template),
     .size = CONF_TEMPLATE_SIZE,
     .flags = SCHEMA_EMPTY,
     .check = check_template,
     .help = "raw: key of each object, from {listener}, {node}, {date}, {time}, {peer} and {seq}."},
    {.name = "listeners[].region",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(region),
     .size = SIZE_OF(conf_listener, region),
     .check = check_name,
     .default_text = "us-east-1",
     .help = "s3: region in locations and signatures."},
    {.name = "listeners[].virtual_host_domain",
     .type = SCHEMA_TEXT,
     .offset = LISTENER(virtual_host_domain),
     .size = CONF_TEXT_SIZE,
     .flags = SCHEMA_EMPTY,
     .check = check_domain,
     .help =
         "s3: with s3.example.net, bucket.s3.example.net addresses a bucket. Without it only path style."},

    {.name = "listeners[].limits",
     .type = SCHEMA_SECTION,
     .help = "What one peer, and all together, may take. Whatever clients do, memory stays within these."},
    {.name = "listeners[].limits.head_size_max",
     .type = SCHEMA_SIZE,
     .offset = LIMIT(head_size_max),
     .min = 1 * KIB,
     .max = 65535,
     .default_text = "16KiB",
     .help = "Longest request head. Memory: (head_size_max + " CONF_CONNECTION_STATE_TEXT
             ") x connections_max x workers."},
    {.name = "listeners[].limits.head_timeout",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(head_timeout_ns),
     .min = 100 * NS_PER_MS,
     .max = 1 * HOUR,
     .default_text = "10s",
     .help = "First to last byte of a request head."},
    {.name = "listeners[].limits.body_timeout",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(body_timeout_ns),
     .min = 100 * NS_PER_MS,
     .max = 7 * DAY,
     .default_text = "60s",
     .help = "Longest pause inside a body or raw stream."},
    {.name = "listeners[].limits.body_rate_min",
     .type = SCHEMA_RATE,
     .offset = LIMIT(body_rate_min),
     .min = 1,
     .max = 1 * TIB,
     .flags = SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "no minimum",
     .help = "Slowest body that is tolerated, averaged over body_rate_window."},
    {.name = "listeners[].limits.body_rate_window",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(body_rate_window_ns),
     .min = 1 * SECOND,
     .max = 1 * DAY,
     .default_text = "30s",
     .help = "Window of body_rate_min."},
    {.name = "listeners[].limits.idle_timeout",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(idle_timeout_ns),
     .min = 100 * NS_PER_MS,
     .max = 7 * DAY,
     .default_text = "60s",
     .help = "Longest pause between requests of a connection."},
    {.name = "listeners[].limits.send_timeout",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(send_timeout_ns),
     .min = 100 * NS_PER_MS,
     .max = 7 * DAY,
     .default_text = "60s",
     .help = "Longest time in which the peer takes nothing of an answer that is there for it. It is given up "
             "within a quarter more."},
    {.name = "listeners[].limits.connections_max",
     .type = SCHEMA_COUNT,
     .offset = LIMIT(connections_max),
     .min = 1,
     .max = 65536,
     .default_text = "1024",
     .help = "Connections on one worker; more are closed at once. Memory: (head_size_max "
             "+ " CONF_CONNECTION_STATE_TEXT ") x "
             "connections_max x workers."},
    {.name = "listeners[].limits.connections_per_peer_max",
     .type = SCHEMA_COUNT,
     .offset = LIMIT(connections_per_peer_max),
     .min = 1,
     .max = 65536,
     .flags = SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "no own limit",
     .help = "Connections of one peer address on one worker."},
    {.name = "listeners[].limits.uploads_max",
     .type = SCHEMA_COUNT,
     .offset = LIMIT(uploads_max),
     .min = 1,
     .max = 65536,
     .default_text = "1024",
     .help = "Uploads in flight on one worker; more are answered 503 SlowDown. Memory: see penstock check."},
    {.name = "listeners[].limits.uploads_per_peer_max",
     .type = SCHEMA_COUNT,
     .offset = LIMIT(uploads_per_peer_max),
     .min = 1,
     .max = 65536,
     .flags = SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "no own limit",
     .help = "Uploads in flight of one peer address on one worker."},
    {.name = "listeners[].limits.buffers_per_connection_max",
     .type = SCHEMA_COUNT,
     .offset = LIMIT(buffers_per_connection_max),
     .min = 2,
     .max = 65536,
     .flags = SCHEMA_ZERO,
     .default_text = "0",
     .zero_means = "as many as there are (af_xdp: half of them)",
     .help = "Receive buffers that one connection may hold: an upload then writes what it has before a write "
             "is full, and what a "
             "client sends ahead waits in its own TCP."},
    {.name = "listeners[].limits.upload_queue_max",
     .type = SCHEMA_SIZE,
     .offset = LIMIT(upload_queue_max),
     .min = 64 * KIB,
     .max = 1 * GIB,
     .default_text = "4MiB",
     .help = "Bytes of one upload that may wait for the device before its peer is paused."},
    {.name = "listeners[].limits.object_size_max",
     .type = SCHEMA_SIZE,
     .offset = LIMIT(object_size_max),
     .min = 1,
     .max = 50 * TIB,
     .default_text = "5TiB",
     .help = "Largest object or part. S3's own limit is 5TiB."},
    {.name = "listeners[].limits.tls_handshake_timeout",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(tls_handshake_timeout_ns),
     .min = 100 * NS_PER_MS,
     .max = 1 * HOUR,
     .default_text = "10s",
     .help = "TLS: from accepting a connection to the end of its handshake."},
    {.name = "listeners[].limits.tcp_keepalive",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(tcp_keepalive_ns),
     .min = 1 * SECOND,
     .max = 32767 * SECOND,
     .flags = SCHEMA_ZERO,
     .default_text = "60s",
     .zero_means = "the system's setting",
     .help = "Idle time before TCP asks whether the peer is alive: every 10s (or after this time again, if "
             "that is less), six times, then the connection is given up."},
    {.name = "listeners[].limits.tcp_user_timeout",
     .type = SCHEMA_DURATION,
     .offset = LIMIT(tcp_user_timeout_ns),
     .min = 1 * SECOND,
     .max = 1 * DAY,
     .flags = SCHEMA_ZERO,
     .default_text = "60s",
     .zero_means = "the system's setting",
     .help = "How long sent bytes may stay unacknowledged before the connection is given up."},

    {.name = "admin",
     .type = SCHEMA_SECTION,
     .help = "Metrics, health, status page and drain. Without this section there are none."},
    {.name = "admin.address",
     .type = SCHEMA_ADDRESS,
     .offset = offsetof(struct conf, admin.address),
     .flags = SCHEMA_REQUIRED,
     .help = "Numeric address and port. There is no authentication here: keep it on loopback or a "
             "management network."},
};
const size_t schema_row_count = ARRAY_COUNT(schema_rows);
_Static_assert(ARRAY_COUNT(schema_rows) <= SCHEMA_ROWS_MAX, "bitmaps of rows");

/* ---- look-ups ----------------------------------------------------------------------------------------------------- */

size_t schema_parent_len(const struct schema_row *row)
{
    const char *dot = strrchr(row->name, '.');
    return dot == NULL ? 0 : (size_t)(dot - row->name);
}

const char *schema_leaf(const struct schema_row *row)
{
    size_t parent_len = schema_parent_len(row);
    return row->name + (parent_len == 0 ? 0 : parent_len + 1);
}

bool schema_is_child(const struct schema_row *row, const char *parent)
{
    return schema_parent_len(row) == strlen(parent) && strncmp(row->name, parent, strlen(parent)) == 0;
}

/* Length of the leaf as a user writes it: without the "[]" of a list. */
static size_t leaf_len(const struct schema_row *row)
{
    size_t len = strlen(schema_leaf(row));
    return row->type == SCHEMA_LIST ? len - 2 : len;
}

int schema_find(const char *parent, const char *key, size_t key_len)
{
    for (size_t i = 0; i < schema_row_count; i++) {
        const struct schema_row *row = &schema_rows[i];
        if (schema_is_child(row, parent) && leaf_len(row) == key_len &&
            memcmp(schema_leaf(row), key, key_len) == 0) {
            return (int)i;
        }
    }
    return -1;
}

#define NEAREST_MAX 48U

/* Edit distance of two short words; the words are cut at NEAREST_MAX bytes. */
static unsigned edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned row[NEAREST_MAX + 1];
    a_len = a_len > NEAREST_MAX ? NEAREST_MAX : a_len;
    b_len = b_len > NEAREST_MAX ? NEAREST_MAX : b_len;
    for (size_t j = 0; j <= b_len; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            unsigned change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            unsigned insert = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < insert ? change : insert;
        }
    }
    return row[b_len];
}

const char *schema_nearest(const char *parent, const char *key)
{
    static _Thread_local char name[NEAREST_MAX + 1];
    size_t key_len = strlen(key);
    unsigned best = (unsigned)(key_len / 3 + 1) + 1;
    const struct schema_row *found = NULL;
    for (size_t i = 0; i < schema_row_count; i++) {
        if (schema_is_child(&schema_rows[i], parent)) {
            unsigned distance =
                edit_distance(key, key_len, schema_leaf(&schema_rows[i]), leaf_len(&schema_rows[i]));
            if (distance < best) {
                best = distance;
                found = &schema_rows[i];
            }
        }
    }
    if (found == NULL || leaf_len(found) > NEAREST_MAX) {
        return NULL;
    }
    memcpy(name, schema_leaf(found), leaf_len(found));
    name[leaf_len(found)] = '\0';
    return name;
}
