/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_meta: the headers of an object that are kept beside it (Content-Type and its kin, x-amz-meta-*), packed into the
 * opaque `meta` of store_attributes and taken out again. Pure.
 *
 * Form, version 1: one byte 1, then per header: u8 length of the name, u16 length of the value (little endian), name
 * (lower case), value. Values are kept byte for byte.
 */
#ifndef SERVER_S3_META_H
#define SERVER_S3_META_H

#include <stdbool.h>
#include <stdint.h>

#include "server/http_head.h"
#include "server/s3_error.h"
#include "server/text.h"
#include "storage/store.h"

#define S3_META_USER_MAX 2048U /* bytes of names (without x-amz-meta-) and values, S3's limit */

/* Packs what a request's head says. S3_OK or METADATA_TOO_LARGE. aws-chunked is taken out of Content-Encoding. */
enum s3_error s3_meta_pack(struct store_attributes *attributes, const struct http_head *head,
                           const char *buffer);

struct s3_meta_item {
    struct text name;
    struct text value;
};
/* Takes the next header out; *position begins at 0. False at the end, or where the stored bytes make no sense. */
bool s3_meta_next(const struct store_attributes *attributes, uint32_t *position, struct s3_meta_item *item);

#endif
