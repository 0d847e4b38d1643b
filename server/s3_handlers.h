/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_handlers: the operations, one function each: called when the head is complete and the request is authorised. Each
 * leads to exactly one answer, at once or after the store has answered. What they share is below.
 */
#ifndef SERVER_S3_HANDLERS_H
#define SERVER_S3_HANDLERS_H

#include "server/exchange.h"
#include "server/http_conn.h"
#include "server/s3_meta.h"
#include "server/zframe.h"
#include "server/s3_xml.h"

#define S3_ETAG_TEXT_MAX (STORE_ETAG_MAX + 3U) /* with quotes and a NUL */

/* s3_auth.c: who asks, and may they? S3_OK also for anonymous listeners. Sets x->is_authenticated. */
enum s3_error s3_authorize(struct exchange *x);
/* May the one who asks do this to another bucket or key than the target's (copy sources, multi-deletes)? */
bool s3_may(const struct exchange *x, enum s3_permission permission, struct text bucket, struct text key);
bool s3_may_see_bucket(const struct exchange *x, struct text bucket);

/* s3_put.c */
void s3_put_object(struct exchange *x);
void s3_upload_part(struct exchange *x);
/* If-Match and If-None-Match of a request that makes an object, into x->upload (after upload_init). */
enum s3_error s3_put_condition(struct exchange *x);
/* The 200 of an upload: ETag and checksum. */
void s3_put_headers(struct exchange *x, const struct store_attributes *attributes);
/* s3_get.c */
void s3_get_object(struct exchange *x);
/* The head of the answer to a download, and the end of one whose payload cannot be read. */
void s3_get_start(struct exchange *x);
void s3_get_read_failed(struct exchange *x, int error);
/* `len` bytes more were handed to TCP. */
void s3_get_queued(struct exchange *x, uint32_t len);
/* s3_get_zstd.c: the payload of a compressed object. */
void s3_get_zstd(struct exchange *x);
/* s3_listing.c */
void s3_list_objects(struct exchange *x);
void s3_list_buckets(struct exchange *x);
void s3_list_uploads(struct exchange *x);
void s3_list_parts(struct exchange *x);
/* s3_bucket.c */
void s3_create_bucket(struct exchange *x);
void s3_head_bucket(struct exchange *x);
void s3_delete_bucket(struct exchange *x);
void s3_bucket_query(struct exchange *x); /* location, versioning, ACL and configurations that nobody set */
void s3_object_query(struct exchange *x); /* ACL, tags */
/* s3_delete.c */
void s3_delete_object(struct exchange *x);
void s3_delete_objects(struct exchange *x);
/* One of the requests of a multi-delete is back. */
void s3_delete_returned(struct exchange *x, struct store_request *request);
/* s3_copy.c */
void s3_copy_object(struct exchange *x);
void s3_upload_part_copy(struct exchange *x);
void s3_copy_respond(struct exchange *x, const struct store_attributes *attributes, uint64_t modified_ns);
/* s3_copy_read.c: a part out of x->source's payload, which is read; `kind`: the checksum that is to be made of it. */
void s3_copy_read(struct exchange *x, struct http_range range, enum s3_checksum_kind kind);
/* s3_multipart.c */
void s3_create_upload(struct exchange *x);
void s3_complete_upload(struct exchange *x);
void s3_abort_upload(struct exchange *x);

/* The target's bucket and key into x->request. */
void s3_request_target(struct exchange *x);
void s3_request_upload_id(struct exchange *x);
void s3_name_set(struct store_name *name, struct text text);
/* The S3 error for what the store answered (negative). */
enum s3_error s3_error_of(int status);
/* Answers a store error; true when there was one. */
bool s3_answer_failed(struct exchange *x);
/* `"etag"`; the text lives in `to`. */
struct text s3_etag_text(const char *etag, char to[S3_ETAG_TEXT_MAX]);
/* The size that clients see: of the payload, however it is stored. */
uint64_t s3_object_size(const struct store_object *object);
/* The kind and base64 value of an attribute "CRC32=..."; NONE and absent when there is none. */
enum s3_checksum_kind s3_checksum_attribute(const char *checksum, struct text *value);
extern const struct s3_xml_owner s3_owner;

#endif
