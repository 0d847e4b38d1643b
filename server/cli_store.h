/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_store: the objects of a store as the command line sees them, over one of two doors: "direct" opens the store in this process
 * (no node is running), "remote" speaks S3 to the running node. Every call blocks until it is done.
 */
#ifndef SERVER_CLI_STORE_H
#define SERVER_CLI_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "conf/conf.h"

/* One line of a list: a bucket, a common prefix or an object. Borrowed until the callback returns. */
struct cli_entry {
    const char *name; /* `len` bytes, any of them */
    size_t len;
    bool is_prefix;
    uint64_t size;        /* objects */
    uint64_t modified_ns; /* objects and buckets, since 1970 */
};
/* Not 0 ends the list with that result. May itself use the store: a list calls back only between its requests. */
typedef int (*cli_entry_fn)(void *ctx, const struct cli_entry *entry);

struct cli_key {
    char bucket[64];
    char key[1025];
    size_t key_len;
};

/* A header of an object: "Content-Type", "ETag", "x-amz-meta-...". */
typedef void (*cli_header_fn)(void *ctx, const char *name, const char *value, size_t value_len);
/* Takes bytes of an object; not 0 ends the download with that result. */
typedef int (*cli_sink_fn)(void *ctx, const void *data, size_t len);
/* Gives up to `size` bytes of an upload: > 0, 0 at the end, -errno. */
typedef ssize_t (*cli_source_fn)(void *ctx, void *data, size_t size);

struct cli_put {
    const struct cli_key *key;
    const char *content_type; /* NULL: none */
    uint64_t size;            /* bytes, UINT64_MAX when unknown */
    bool create_bucket;
    cli_source_fn source;
    void *ctx;
};

struct cli_store;
struct cli_store_ops {
    void (*close)(struct cli_store *store);
    int (*buckets)(struct cli_store *store, cli_entry_fn entry, void *ctx, struct err *err);
    /* prefix->key is the prefix; folded at '/' unless recursive. */
    int (*list)(struct cli_store *store, const struct cli_key *prefix, bool recursive, cli_entry_fn entry,
                void *ctx, struct err *err);
    int (*stat)(struct cli_store *store, const struct cli_key *key, cli_header_fn header, void *ctx,
                struct err *err);
    int (*get)(struct cli_store *store, const struct cli_key *key, cli_sink_fn sink, void *ctx,
               struct err *err);
    int (*put)(struct cli_store *store, const struct cli_put *put, struct err *err);
    int (*remove)(struct cli_store *store, const struct cli_key *key, struct err *err);
};
/* Every door's struct begins with this. */
struct cli_store {
    const struct cli_store_ops *ops;
    bool is_stored; /* the caller's: get gives the bytes as they are stored */
};

/* The two doors. Direct: the caller holds the store's lock. Remote: -EBUSY when the node's listeners cannot be used; `err` says why and
 * gives the command of another client. Both: 0, -errno or a project code. */
int cli_direct_open(const struct conf *conf, struct cli_store **out, struct err *err);
int cli_remote_open(const struct conf *conf, pid_t holder, struct cli_store **out, struct err *err);

#endif
