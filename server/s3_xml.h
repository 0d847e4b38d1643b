// SPDX-License-Identifier: Apache-2.0
//
// The XML documents we answer with, as bounded writers over xml_out.
//
// Long documents are written in pieces: begin, entries, end. Each call either fits as a whole and returns true, or leaves
// the output exactly as it was and returns false: flush and call again, or answer with what is there. An entry never
// needs more than S3_XML_ENTRY_MAX bytes. Trailing facts (IsTruncated, next marker) are written by *_end, so a listing
// streams out while the index is walked; clients read elements by name, not by position.

#ifndef SERVER_S3_XML_H
#define SERVER_S3_XML_H

#include <stdbool.h>
#include <stdint.h>

#include "server/s3_checksum.h"
#include "server/s3_list.h"
#include "server/text.h"
#include "server/xml_out.h"

#define S3_XML_ENTRY_MAX (S3_KEY_MAX * XML_OUT_GROWTH_MAX + 2048u)
#define S3_XML_HEAD_MAX (6u * S3_KEY_MAX * XML_OUT_GROWTH_MAX + 2048u) // begin and end of any document

// Everything that belongs to an account is owned by the one owner of a node.
struct s3_xml_owner {
    struct text id;
    struct text display_name;
};

// --- ListAllMyBucketsResult
struct s3_xml_bucket {
    struct text name;
    int64_t created_ns;
};
bool s3_xml_buckets_begin(struct xml_out *out, const struct s3_xml_owner *owner);
bool s3_xml_buckets_entry(struct xml_out *out, const struct s3_xml_bucket *bucket);
bool s3_xml_buckets_end(struct xml_out *out);

// --- ListBucketResult, V1 and V2, and ListVersionsResult with only null versions
struct s3_xml_object {
    struct text key;
    struct text etag; // without quotes
    uint64_t size;
    int64_t modified_ns;
    enum s3_checksum_kind checksum; // S3_CHECKSUM_NONE when unknown; then no ChecksumAlgorithm element
};
struct s3_xml_list_result {
    bool is_truncated;
    uint32_t key_count;     // entries and common prefixes on this page
    struct text next_after; // last key or common prefix on this page; needed when truncated
    bool next_is_prefix;
};
bool s3_xml_list_begin(struct xml_out *out, struct text bucket, const struct s3_list_params *params);
// owner may be NULL (V2 without fetch-owner); V1 always shows it.
bool s3_xml_list_entry(struct xml_out *out, const struct s3_list_params *params,
                       const struct s3_xml_object *object, const struct s3_xml_owner *owner);
bool s3_xml_list_prefix(struct xml_out *out, const struct s3_list_params *params, struct text prefix);
// V1 writes NextMarker only with a delimiter, as S3 does; otherwise clients continue from the last key.
bool s3_xml_list_end(struct xml_out *out, const struct s3_list_params *params,
                     const struct s3_xml_list_result *result);

bool s3_xml_versions_begin(struct xml_out *out, struct text bucket, const struct s3_list_params *params);
bool s3_xml_versions_entry(struct xml_out *out, const struct s3_list_params *params,
                           const struct s3_xml_object *object, const struct s3_xml_owner *owner);
bool s3_xml_versions_end(struct xml_out *out, const struct s3_list_params *params,
                         const struct s3_xml_list_result *result);

// --- small whole documents
// region "us-east-1" or empty gives the empty LocationConstraint of the classic region.
bool s3_xml_location(struct xml_out *out, struct text region);
bool s3_xml_versioning_off(struct xml_out *out);
bool s3_xml_initiate_upload(struct xml_out *out, struct text bucket, struct text key, struct text upload_id);
// location is an absolute or relative URL of the object. checksum may be NULL.
struct s3_xml_checksum {
    enum s3_checksum_kind kind;
    struct text value; // base64, with "-N" when composite
    bool is_full_object;
};
bool s3_xml_complete_upload(struct xml_out *out, struct text location, struct text bucket, struct text key,
                            struct text etag, const struct s3_xml_checksum *checksum);
// CopyObjectResult, or CopyPartResult when is_part.
bool s3_xml_copy_result(struct xml_out *out, bool is_part, struct text etag, int64_t modified_ns,
                        const struct s3_xml_checksum *checksum);
bool s3_xml_acl_private(struct xml_out *out, const struct s3_xml_owner *owner);
bool s3_xml_tagging_empty(struct xml_out *out);

// --- DeleteResult
bool s3_xml_delete_begin(struct xml_out *out);
bool s3_xml_delete_done(struct xml_out *out, struct text key);
bool s3_xml_delete_error(struct xml_out *out, struct text key, enum s3_error error);
bool s3_xml_delete_end(struct xml_out *out);

// --- ListPartsResult
struct s3_xml_part {
    uint32_t number;
    struct text etag; // without quotes
    uint64_t size;
    int64_t modified_ns;
    struct s3_xml_checksum checksum; // kind S3_CHECKSUM_NONE when there is none
};
struct s3_xml_parts_head {
    struct text bucket;
    struct text key;
    struct text upload_id;
    uint32_t part_number_marker;
    uint32_t max_parts;
    struct s3_xml_checksum checksum; // what the upload was created with; its value is not looked at
    bool encode_url;
};
bool s3_xml_parts_begin(struct xml_out *out, const struct s3_xml_parts_head *head,
                        const struct s3_xml_owner *owner);
bool s3_xml_parts_entry(struct xml_out *out, const struct s3_xml_part *part);
// next_marker is the last part number on this page.
bool s3_xml_parts_end(struct xml_out *out, bool is_truncated, uint32_t next_marker);

// --- ListMultipartUploadsResult
struct s3_xml_upload {
    struct text key;
    struct text upload_id;
    int64_t created_ns;
    struct s3_xml_checksum checksum; // as in s3_xml_parts_head
};
struct s3_xml_uploads_head {
    struct text bucket;
    struct text prefix;
    struct text delimiter;
    struct text key_marker;
    struct text upload_id_marker;
    uint32_t max_uploads;
    bool encode_url;
};
bool s3_xml_uploads_begin(struct xml_out *out, const struct s3_xml_uploads_head *head);
bool s3_xml_uploads_entry(struct xml_out *out, const struct s3_xml_uploads_head *head,
                          const struct s3_xml_upload *upload, const struct s3_xml_owner *owner);
bool s3_xml_uploads_prefix(struct xml_out *out, const struct s3_xml_uploads_head *head, struct text prefix);
// The next markers are written only when is_truncated.
bool s3_xml_uploads_end(struct xml_out *out, const struct s3_xml_uploads_head *head, bool is_truncated,
                        struct text next_key, struct text next_upload_id);

#endif
