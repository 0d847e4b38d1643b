/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err: error codes and error texts.
 *
 * Functions that can fail return 0 or a negative value: -errno, or one of the project codes below (numbered from
 * -1000 so that they can never be mistaken for an errno). Functions whose failure a person must act on also take a
 * `struct err *`, which carries one complete sentence: what was wrong, the value, what is allowed, what to do.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>

/* Project codes. Add new ones at the end and give each a text in err.c. */
enum err_code {
    ERR_CORRUPT = -1000, /* Stored bytes do not match their checksum or a structure is impossible. */
    ERR_NOT_FORMATTED,   /* A device carries no penstock superblock. */
    ERR_FOREIGN_STORE,   /* A device or index belongs to another store id. */
    ERR_VERSION,         /* On-disk format is newer than this binary. */
    ERR_DEVICE_FAILED,   /* The device had a failed flush or is past its deadline: it takes no more writes. */
    ERR_NO_SUCH_BUCKET,  /* Named bucket does not exist. */
    ERR_BUCKET_EXISTS,   /* CreateBucket on an existing one. */
    ERR_BUCKET_NOT_EMPTY,   /* DeleteBucket on one that holds objects or uploads. */
    ERR_NO_SUCH_KEY,        /* Named object does not exist. */
    ERR_NO_SUCH_UPLOAD,     /* Named multipart upload does not exist. */
    ERR_INVALID_PART,       /* A part named at completion is absent or its ETag differs. */
    ERR_INVALID_PART_ORDER, /* Parts named at completion are not in ascending order. */
    ERR_PART_TOO_SMALL,     /* A part other than the last is below the minimum size. */
    ERR_PRECONDITION,       /* A conditional request's condition was false when decided. */
    ERR_LIMIT,              /* A configured limit is reached; retry later. */
    ERR_SHUTDOWN,           /* The component is shutting down. */
    ERR_INVALID_CONFIG,     /* Configuration was refused; the text says where and why. */
    ERR_CODE_LAST           /* One past the last; not an error. */
};

struct err {
    char text[1024]; /* NUL-terminated; empty when nothing was said. */
};

/* A short text for -errno or a project code; never NULL, valid for the process's lifetime. Thread-safe. */
const char *err_text(int code);

/* Replaces the text and returns `code`, so that callers write `return err_set(err, -EINVAL, "...")`. `err` may be NULL. */
__attribute__((format(printf, 3, 4))) int err_set(struct err *err, int code, const char *format, ...);

/* Puts "prefix: " in front of the text that is there and returns `code`. `err` may be NULL. */
__attribute__((format(printf, 3, 4))) int err_prefix(struct err *err, int code, const char *format, ...);

#endif
