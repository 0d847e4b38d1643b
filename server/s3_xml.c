// SPDX-License-Identifier: Apache-2.0
//
// XML answers; the contract is in s3_xml.h.
//
// Every public function takes a mark, writes, and goes back to the mark when the buffer was too small (finish()).
// Namespaces: S3 puts one on results; some SDKs need it, none minds it.

#include "server/s3_xml.h"

#include "server/http_date.h"

#define XML_HEAD "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define XML_NAMESPACE " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
#define DOCUMENT(tag) XML_HEAD "<" tag XML_NAMESPACE

_Static_assert(S3_LIST_TOKEN_MAX *XML_OUT_GROWTH_MAX < S3_XML_HEAD_MAX, "a token fits the end of a document");

static bool finish(struct xml_out *out, size_t mark)
{
    if (out->is_full) {
        xml_out_rewind(out, mark);
        return false;
    }
    return true;
}

// A key, prefix or marker: percent-encoded when the client asked for encoding-type=url.
static void put_name(struct xml_out *out, const char *tag, struct text text, bool encode_url)
{
    if (!encode_url) {
        xml_out_element(out, tag, text);
        return;
    }
    xml_out_raw(out, "<");
    xml_out_raw(out, tag);
    xml_out_raw(out, ">");
    xml_out_url(out, text);
    xml_out_raw(out, "</");
    xml_out_raw(out, tag);
    xml_out_raw(out, ">");
}

static void put_date(struct xml_out *out, const char *tag, int64_t unix_ns)
{
    char date[HTTP_DATE_ISO_SIZE];

    http_date_format_iso(unix_ns, date);
    xml_out_element(out, tag, text_of_string(date));
}

static void put_etag(struct xml_out *out, struct text etag)
{
    xml_out_raw(out, "<ETag>&quot;");
    xml_out_escaped(out, etag);
    xml_out_raw(out, "&quot;</ETag>");
}

static void put_owner(struct xml_out *out, const char *tag, const struct s3_xml_owner *owner)
{
    if (owner == NULL) {
        return;
    }
    xml_out_raw(out, "<");
    xml_out_raw(out, tag);
    xml_out_raw(out, ">");
    xml_out_element(out, "ID", owner->id);
    xml_out_element(out, "DisplayName", owner->display_name);
    xml_out_raw(out, "</");
    xml_out_raw(out, tag);
    xml_out_raw(out, ">");
}

static void put_checksum(struct xml_out *out, const struct s3_xml_checksum *checksum)
{
    static const char *const tags[S3_CHECKSUM_COUNT] = {
        [S3_CHECKSUM_CRC32] = "ChecksumCRC32",         [S3_CHECKSUM_CRC32C] = "ChecksumCRC32C",
        [S3_CHECKSUM_CRC64NVME] = "ChecksumCRC64NVME", [S3_CHECKSUM_SHA1] = "ChecksumSHA1",
        [S3_CHECKSUM_SHA256] = "ChecksumSHA256",
    };

    if (checksum != NULL && checksum->kind < S3_CHECKSUM_COUNT && tags[checksum->kind] != NULL) {
        xml_out_element(out, tags[checksum->kind], checksum->value);
    }
}

static void put_checksum_type(struct xml_out *out, const struct s3_xml_checksum *checksum)
{
    if (checksum != NULL && checksum->kind != S3_CHECKSUM_NONE) {
        xml_out_element(out, "ChecksumType",
                        checksum->is_full_object ? TEXT("FULL_OBJECT") : TEXT("COMPOSITE"));
    }
}

// Of an open upload: what its checksum will be, and of what.
static void put_checksum_plan(struct xml_out *out, const struct s3_xml_checksum *checksum)
{
    if (checksum->kind != S3_CHECKSUM_NONE) {
        xml_out_element(out, "ChecksumAlgorithm", text_of_string(s3_checksum_name(checksum->kind)));
        put_checksum_type(out, checksum);
    }
}

static bool put_tail(struct xml_out *out, const char *tail)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, tail);
    return finish(out, mark);
}

// --- ListAllMyBucketsResult

bool s3_xml_buckets_begin(struct xml_out *out, const struct s3_xml_owner *owner)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("ListAllMyBucketsResult"));
    put_owner(out, "Owner", owner);
    xml_out_raw(out, "<Buckets>");
    return finish(out, mark);
}

bool s3_xml_buckets_entry(struct xml_out *out, const struct s3_xml_bucket *bucket)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<Bucket>");
    xml_out_element(out, "Name", bucket->name);
    put_date(out, "CreationDate", bucket->created_ns);
    xml_out_raw(out, "</Bucket>");
    return finish(out, mark);
}

bool s3_xml_buckets_end(struct xml_out *out)
{
    return put_tail(out, "</Buckets></ListAllMyBucketsResult>");
}

// --- ListBucketResult

static void put_list_common(struct xml_out *out, struct text bucket, const struct s3_list_params *params)
{
    xml_out_element(out, "Name", bucket);
    put_name(out, "Prefix", params->prefix, params->encode_url);
    if (params->delimiter.len > 0) {
        put_name(out, "Delimiter", params->delimiter, params->encode_url);
    }
    xml_out_element_u64(out, "MaxKeys", params->max_keys);
    if (params->encode_url) {
        xml_out_element(out, "EncodingType", TEXT("url"));
    }
}

bool s3_xml_list_begin(struct xml_out *out, struct text bucket, const struct s3_list_params *params)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("ListBucketResult"));
    put_list_common(out, bucket, params);
    if (!params->is_v2) {
        put_name(out, "Marker", params->start_after, params->encode_url);
        return finish(out, mark);
    }
    if (params->token.len > 0) {
        xml_out_element(out, "ContinuationToken", params->token);
    }
    if (!text_is_absent(params->start_after)) {
        put_name(out, "StartAfter", params->start_after, params->encode_url);
    }
    return finish(out, mark);
}

static void put_object(struct xml_out *out, const struct s3_list_params *params,
                       const struct s3_xml_object *object, bool is_version)
{
    put_name(out, "Key", object->key, params->encode_url);
    if (is_version) {
        xml_out_raw(out, "<VersionId>null</VersionId><IsLatest>true</IsLatest>");
    }
    put_date(out, "LastModified", object->modified_ns);
    put_etag(out, object->etag);
    if (object->checksum != S3_CHECKSUM_NONE) {
        xml_out_element(out, "ChecksumAlgorithm", text_of_string(s3_checksum_name(object->checksum)));
    }
    xml_out_element_u64(out, "Size", object->size);
}

bool s3_xml_list_entry(struct xml_out *out, const struct s3_list_params *params,
                       const struct s3_xml_object *object, const struct s3_xml_owner *owner)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<Contents>");
    put_object(out, params, object, false);
    if (params->fetch_owner) {
        put_owner(out, "Owner", owner);
    }
    xml_out_raw(out, "<StorageClass>STANDARD</StorageClass></Contents>");
    return finish(out, mark);
}

static bool put_common_prefix(struct xml_out *out, struct text prefix, bool encode_url)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<CommonPrefixes>");
    put_name(out, "Prefix", prefix, encode_url);
    xml_out_raw(out, "</CommonPrefixes>");
    return finish(out, mark);
}

bool s3_xml_list_prefix(struct xml_out *out, const struct s3_list_params *params, struct text prefix)
{
    return put_common_prefix(out, prefix, params->encode_url);
}

bool s3_xml_list_end(struct xml_out *out, const struct s3_list_params *params,
                     const struct s3_xml_list_result *result)
{
    size_t mark = xml_out_mark(out);
    char token[S3_LIST_TOKEN_MAX];

    xml_out_element_bool(out, "IsTruncated", result->is_truncated);
    if (params->is_v2) {
        xml_out_element_u64(out, "KeyCount", result->key_count);
        if (result->is_truncated) {
            size_t len = s3_list_token_write(result->next_after, result->next_is_prefix, token);

            xml_out_element(out, "NextContinuationToken", text_of(token, len));
        }
    } else if (result->is_truncated && params->delimiter.len > 0) {
        put_name(out, "NextMarker", result->next_after, params->encode_url);
    }
    xml_out_raw(out, "</ListBucketResult>");
    return finish(out, mark);
}

// --- ListVersionsResult

bool s3_xml_versions_begin(struct xml_out *out, struct text bucket, const struct s3_list_params *params)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("ListVersionsResult"));
    put_list_common(out, bucket, params);
    put_name(out, "KeyMarker", params->start_after, params->encode_url);
    xml_out_raw(out, "<VersionIdMarker></VersionIdMarker>");
    return finish(out, mark);
}

bool s3_xml_versions_entry(struct xml_out *out, const struct s3_list_params *params,
                           const struct s3_xml_object *object, const struct s3_xml_owner *owner)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<Version>");
    put_object(out, params, object, true);
    put_owner(out, "Owner", owner);
    xml_out_raw(out, "<StorageClass>STANDARD</StorageClass></Version>");
    return finish(out, mark);
}

bool s3_xml_versions_end(struct xml_out *out, const struct s3_list_params *params,
                         const struct s3_xml_list_result *result)
{
    size_t mark = xml_out_mark(out);

    xml_out_element_bool(out, "IsTruncated", result->is_truncated);
    if (result->is_truncated) {
        put_name(out, "NextKeyMarker", result->next_after, params->encode_url);
        xml_out_raw(out, "<NextVersionIdMarker>null</NextVersionIdMarker>");
    }
    xml_out_raw(out, "</ListVersionsResult>");
    return finish(out, mark);
}

// --- small documents

bool s3_xml_location(struct xml_out *out, struct text region)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("LocationConstraint"));
    if (!text_is(region, "us-east-1")) {
        xml_out_escaped(out, region);
    }
    xml_out_raw(out, "</LocationConstraint>");
    return finish(out, mark);
}

bool s3_xml_versioning_off(struct xml_out *out)
{
    // A bucket that never had versioning has no Status element at all.
    return put_tail(out, DOCUMENT("VersioningConfiguration") "</VersioningConfiguration>");
}

bool s3_xml_initiate_upload(struct xml_out *out, struct text bucket, struct text key, struct text upload_id)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("InitiateMultipartUploadResult"));
    xml_out_element(out, "Bucket", bucket);
    xml_out_element(out, "Key", key);
    xml_out_element(out, "UploadId", upload_id);
    xml_out_raw(out, "</InitiateMultipartUploadResult>");
    return finish(out, mark);
}

bool s3_xml_complete_upload(struct xml_out *out, struct text location, struct text bucket, struct text key,
                            struct text etag, const struct s3_xml_checksum *checksum)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("CompleteMultipartUploadResult"));
    xml_out_element(out, "Location", location);
    xml_out_element(out, "Bucket", bucket);
    xml_out_element(out, "Key", key);
    put_etag(out, etag);
    put_checksum(out, checksum);
    put_checksum_type(out, checksum);
    xml_out_raw(out, "</CompleteMultipartUploadResult>");
    return finish(out, mark);
}

bool s3_xml_copy_result(struct xml_out *out, bool is_part, struct text etag, int64_t modified_ns,
                        const struct s3_xml_checksum *checksum)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, is_part ? DOCUMENT("CopyPartResult") : DOCUMENT("CopyObjectResult"));
    put_date(out, "LastModified", modified_ns);
    put_etag(out, etag);
    put_checksum(out, checksum);
    xml_out_raw(out, is_part ? "</CopyPartResult>" : "</CopyObjectResult>");
    return finish(out, mark);
}

bool s3_xml_acl_private(struct xml_out *out, const struct s3_xml_owner *owner)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("AccessControlPolicy"));
    put_owner(out, "Owner", owner);
    xml_out_raw(out,
                "<AccessControlList><Grant><Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" "
                "xsi:type=\"CanonicalUser\">");
    xml_out_element(out, "ID", owner->id);
    xml_out_element(out, "DisplayName", owner->display_name);
    xml_out_raw(
        out,
        "</Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>");
    return finish(out, mark);
}

bool s3_xml_tagging_empty(struct xml_out *out)
{
    return put_tail(out, DOCUMENT("Tagging") "<TagSet></TagSet></Tagging>");
}

// --- DeleteResult

bool s3_xml_delete_begin(struct xml_out *out)
{
    return put_tail(out, DOCUMENT("DeleteResult"));
}

bool s3_xml_delete_done(struct xml_out *out, struct text key)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<Deleted>");
    xml_out_element(out, "Key", key);
    xml_out_raw(out, "</Deleted>");
    return finish(out, mark);
}

bool s3_xml_delete_error(struct xml_out *out, struct text key, enum s3_error error)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<Error>");
    xml_out_element(out, "Key", key);
    xml_out_element(out, "Code", text_of_string(s3_error_code(error)));
    xml_out_element(out, "Message", text_of_string(s3_error_message(error)));
    xml_out_raw(out, "</Error>");
    return finish(out, mark);
}

bool s3_xml_delete_end(struct xml_out *out)
{
    return put_tail(out, "</DeleteResult>");
}

// --- ListPartsResult

bool s3_xml_parts_begin(struct xml_out *out, const struct s3_xml_parts_head *head,
                        const struct s3_xml_owner *owner)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("ListPartsResult"));
    xml_out_element(out, "Bucket", head->bucket);
    put_name(out, "Key", head->key, head->encode_url);
    xml_out_element(out, "UploadId", head->upload_id);
    put_owner(out, "Initiator", owner);
    put_owner(out, "Owner", owner);
    xml_out_element(out, "StorageClass", TEXT("STANDARD"));
    xml_out_element_u64(out, "PartNumberMarker", head->part_number_marker);
    xml_out_element_u64(out, "MaxParts", head->max_parts);
    put_checksum_plan(out, &head->checksum);
    if (head->encode_url) {
        xml_out_element(out, "EncodingType", TEXT("url"));
    }
    return finish(out, mark);
}

bool s3_xml_parts_entry(struct xml_out *out, const struct s3_xml_part *part)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<Part>");
    xml_out_element_u64(out, "PartNumber", part->number);
    put_date(out, "LastModified", part->modified_ns);
    put_etag(out, part->etag);
    xml_out_element_u64(out, "Size", part->size);
    put_checksum(out, &part->checksum);
    xml_out_raw(out, "</Part>");
    return finish(out, mark);
}

bool s3_xml_parts_end(struct xml_out *out, bool is_truncated, uint32_t next_marker)
{
    size_t mark = xml_out_mark(out);

    xml_out_element_u64(out, "NextPartNumberMarker", next_marker);
    xml_out_element_bool(out, "IsTruncated", is_truncated);
    xml_out_raw(out, "</ListPartsResult>");
    return finish(out, mark);
}

// --- ListMultipartUploadsResult

bool s3_xml_uploads_begin(struct xml_out *out, const struct s3_xml_uploads_head *head)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, DOCUMENT("ListMultipartUploadsResult"));
    xml_out_element(out, "Bucket", head->bucket);
    put_name(out, "KeyMarker", head->key_marker, head->encode_url);
    xml_out_element(out, "UploadIdMarker", head->upload_id_marker);
    put_name(out, "Prefix", head->prefix, head->encode_url);
    if (head->delimiter.len > 0) {
        put_name(out, "Delimiter", head->delimiter, head->encode_url);
    }
    xml_out_element_u64(out, "MaxUploads", head->max_uploads);
    if (head->encode_url) {
        xml_out_element(out, "EncodingType", TEXT("url"));
    }
    return finish(out, mark);
}

bool s3_xml_uploads_entry(struct xml_out *out, const struct s3_xml_uploads_head *head,
                          const struct s3_xml_upload *upload, const struct s3_xml_owner *owner)
{
    size_t mark = xml_out_mark(out);

    xml_out_raw(out, "<Upload>");
    put_name(out, "Key", upload->key, head->encode_url);
    xml_out_element(out, "UploadId", upload->upload_id);
    put_owner(out, "Initiator", owner);
    put_owner(out, "Owner", owner);
    xml_out_element(out, "StorageClass", TEXT("STANDARD"));
    put_date(out, "Initiated", upload->created_ns);
    put_checksum_plan(out, &upload->checksum);
    xml_out_raw(out, "</Upload>");
    return finish(out, mark);
}

bool s3_xml_uploads_prefix(struct xml_out *out, const struct s3_xml_uploads_head *head, struct text prefix)
{
    return put_common_prefix(out, prefix, head->encode_url);
}

bool s3_xml_uploads_end(struct xml_out *out, const struct s3_xml_uploads_head *head, bool is_truncated,
                        struct text next_key, struct text next_upload_id)
{
    size_t mark = xml_out_mark(out);

    if (is_truncated) {
        put_name(out, "NextKeyMarker", next_key, head->encode_url);
        xml_out_element(out, "NextUploadIdMarker", next_upload_id);
    }
    xml_out_element_bool(out, "IsTruncated", is_truncated);
    xml_out_raw(out, "</ListMultipartUploadsResult>");
    return finish(out, mark);
}
