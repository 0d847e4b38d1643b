// SPDX-License-Identifier: Apache-2.0
//
// s3_xml: documents are well-formed, hold what clients read, and are cut only between elements.

#include <criterion/criterion.h>
#include <expat.h>
#include <stdio.h>

#include "server/s3_xml.h"

static char buffer[64 * 1024];
static struct xml_out out;
static const struct s3_xml_owner owner = {{"owner-id", 8}, {"penstock", 8}};
static struct s3_list_params params;

#define NOV_1994_NS (784111777 * INT64_C(1000000000))

static void begin(void)
{
    xml_out_begin(&out, buffer, sizeof(buffer));
    memset(&params, 0, sizeof(params));
    params.prefix = TEXT("");
    params.delimiter = TEXT("");
    params.max_keys = 1000;
}

static void expect_document(const char *name, const char *const parts[])
{
    XML_Parser parser = XML_ParserCreate(NULL);

    cr_expect_eq(XML_Parse(parser, out.at, (int)out.len, 1), XML_STATUS_OK, "%s: %s in %.*s", name,
                 XML_ErrorString(XML_GetErrorCode(parser)), (int)out.len, out.at);
    XML_ParserFree(parser);
    for (size_t i = 0; parts[i] != NULL; i++) {
        cr_expect(memmem(out.at, out.len, parts[i], strlen(parts[i])) != NULL, "%s: no %s in %.*s", name,
                  parts[i], (int)out.len, out.at);
    }
}

#define EXPECT(name, ...) expect_document(name, (const char *const[]){__VA_ARGS__, NULL})

Test(s3_xml, buckets)
{
    begin();
    cr_expect(s3_xml_buckets_begin(&out, &owner));
    cr_expect(s3_xml_buckets_entry(&out, &(struct s3_xml_bucket){TEXT("captures"), NOV_1994_NS}));
    cr_expect(s3_xml_buckets_end(&out));
    EXPECT("buckets", "<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
           "<ID>owner-id</ID>",
           "<Bucket><Name>captures</Name><CreationDate>1994-11-06T08:49:37.000Z</CreationDate></Bucket>");
}

static const struct s3_xml_object odd_object = {.key = {"a b&<\x01\r\xc3\xa4", 9},
                                                .etag = {"abc-1", 5},
                                                .size = 12345,
                                                .modified_ns = NOV_1994_NS,
                                                .checksum = S3_CHECKSUM_CRC64NVME};

Test(s3_xml, list_v2_with_url_encoding)
{
    begin();
    params.is_v2 = params.encode_url = params.fetch_owner = true;
    params.prefix = TEXT("a b");
    params.delimiter = TEXT("/");
    params.token = TEXT("dG9rZW4");
    cr_expect(s3_xml_list_begin(&out, TEXT("bkt"), &params));
    cr_expect(s3_xml_list_entry(&out, &params, &odd_object, &owner));
    cr_expect(s3_xml_list_prefix(&out, &params, TEXT("a b+/")));
    struct s3_xml_list_result result = {
        .is_truncated = true, .key_count = 2, .next_after = TEXT("a b+/"), .next_is_prefix = true};
    cr_expect(s3_xml_list_end(&out, &params, &result));
    EXPECT("v2",
           "<Prefix>a%20b</Prefix><Delimiter>/</Delimiter><MaxKeys>1000</MaxKeys><EncodingType>url</"
           "EncodingType>",
           "<ContinuationToken>dG9rZW4</ContinuationToken>", "<Contents><Key>a%20b%26%3C%01%0D%C3%A4</Key>",
           "<LastModified>1994-11-06T08:49:37.000Z</LastModified><ETag>&quot;abc-1&quot;</ETag>",
           "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><Size>12345</Size>", "<Owner><ID>owner-id</ID>",
           "<StorageClass>STANDARD</StorageClass></Contents>",
           "<CommonPrefixes><Prefix>a%20b%2B/</Prefix></CommonPrefixes>",
           "<IsTruncated>true</IsTruncated><KeyCount>2</KeyCount><NextContinuationToken>");
}

Test(s3_xml, list_v1_with_odd_keys_in_plain_form)
{
    begin();
    params.fetch_owner = true;
    params.delimiter = TEXT("/");
    params.start_after = TEXT("m&");
    cr_expect(s3_xml_list_begin(&out, TEXT("bkt"), &params));
    cr_expect(s3_xml_list_entry(&out, &params, &odd_object, &owner));
    struct s3_xml_list_result result = {.is_truncated = true, .key_count = 1, .next_after = odd_object.key};
    cr_expect(s3_xml_list_end(&out, &params, &result));
    EXPECT("v1", "<Marker>m&amp;</Marker>", "<Key>a b&amp;&lt;\xef\xbf\xbd&#13;\xc3\xa4</Key>", "<Owner>",
           "<NextMarker>a b&amp;&lt;", "<IsTruncated>true</IsTruncated>");
    cr_expect(memmem(out.at, out.len, "KeyCount", 8) == NULL);
    cr_expect(memmem(out.at, out.len, "EncodingType", 12) == NULL);
}

Test(s3_xml, versions)
{
    begin();
    cr_expect(s3_xml_versions_begin(&out, TEXT("bkt"), &params));
    cr_expect(s3_xml_versions_entry(&out, &params, &odd_object, &owner));
    struct s3_xml_list_result result = {.is_truncated = true, .next_after = TEXT("k")};
    cr_expect(s3_xml_versions_end(&out, &params, &result));
    EXPECT("versions", "<VersionId>null</VersionId><IsLatest>true</IsLatest>",
           "<NextKeyMarker>k</NextKeyMarker>", "<NextVersionIdMarker>null</NextVersionIdMarker>");
}

Test(s3_xml, small_documents)
{
    struct s3_xml_checksum checksum = {
        .kind = S3_CHECKSUM_CRC32C, .value = TEXT("sOO8/Q=="), .is_full_object = true};

    begin();
    cr_expect(s3_xml_location(&out, TEXT("us-east-1")));
    EXPECT("location", "2006-03-01/\"></LocationConstraint>");
    begin();
    cr_expect(s3_xml_location(&out, TEXT("eu-west-1")));
    EXPECT("location", "eu-west-1</LocationConstraint>");
    begin();
    cr_expect(s3_xml_versioning_off(&out));
    EXPECT("versioning", "<VersioningConfiguration");
    begin();
    cr_expect(s3_xml_initiate_upload(&out, TEXT("bkt"), TEXT("k&k"), TEXT("id")));
    EXPECT("initiate", "<Bucket>bkt</Bucket><Key>k&amp;k</Key><UploadId>id</UploadId>");
    begin();
    cr_expect(
        s3_xml_complete_upload(&out, TEXT("http://h/bkt/k"), TEXT("bkt"), TEXT("k"), TEXT("e-2"), &checksum));
    EXPECT("complete", "<Location>http://h/bkt/k</Location>", "<ETag>&quot;e-2&quot;</ETag>",
           "<ChecksumCRC32C>sOO8/Q==</ChecksumCRC32C><ChecksumType>FULL_OBJECT</ChecksumType>");
    begin();
    cr_expect(s3_xml_copy_result(&out, true, TEXT("e"), NOV_1994_NS, NULL));
    EXPECT("copy part", "<CopyPartResult", "<LastModified>1994-11-06T08:49:37.000Z</LastModified>");
    begin();
    cr_expect(s3_xml_acl_private(&out, &owner));
    EXPECT("acl", "<Permission>FULL_CONTROL</Permission>");
    begin();
    cr_expect(s3_xml_tagging_empty(&out));
    EXPECT("tagging", "<TagSet></TagSet>");
    begin();
    cr_expect(s3_xml_delete_begin(&out) && s3_xml_delete_done(&out, TEXT("a")) &&
              s3_xml_delete_error(&out, TEXT("b"), S3_ERR_ACCESS_DENIED) && s3_xml_delete_end(&out));
    EXPECT("delete", "<Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>AccessDenied</Code><Message>");
}

Test(s3_xml, parts_and_uploads)
{
    struct s3_xml_parts_head parts = {.bucket = TEXT("bkt"),
                                      .key = TEXT("k k"),
                                      .upload_id = TEXT("id"),
                                      .max_parts = 2,
                                      .checksum = {.kind = S3_CHECKSUM_SHA256},
                                      .encode_url = true};
    struct s3_xml_part part = {.number = 2,
                               .etag = TEXT("e"),
                               .size = 5242880,
                               .modified_ns = NOV_1994_NS,
                               .checksum = {.kind = S3_CHECKSUM_SHA256, .value = TEXT("x=")}};
    struct s3_xml_uploads_head uploads = {
        .bucket = TEXT("bkt"), .prefix = TEXT("p"), .delimiter = TEXT("/"), .max_uploads = 1000};

    begin();
    cr_expect(s3_xml_parts_begin(&out, &parts, &owner) && s3_xml_parts_entry(&out, &part) &&
              s3_xml_parts_end(&out, true, 2));
    EXPECT("parts", "<Key>k%20k</Key><UploadId>id</UploadId>", "<Initiator>",
           "<MaxParts>2</MaxParts><ChecksumAlgorithm>SHA256</ChecksumAlgorithm>"
           "<ChecksumType>COMPOSITE</ChecksumType>",
           "<Part><PartNumber>2</PartNumber>",
           "<Size>5242880</Size><ChecksumSHA256>x=</ChecksumSHA256></Part>",
           "<NextPartNumberMarker>2</NextPartNumberMarker><IsTruncated>true</IsTruncated>");
    begin();
    struct s3_xml_upload upload = {
        TEXT("k"), TEXT("id"), NOV_1994_NS, {.kind = S3_CHECKSUM_CRC32, .is_full_object = true}};
    cr_expect(s3_xml_uploads_begin(&out, &uploads) && s3_xml_uploads_entry(&out, &uploads, &upload, &owner) &&
              s3_xml_uploads_prefix(&out, &uploads, TEXT("p/")) &&
              s3_xml_uploads_end(&out, &uploads, true, TEXT("k"), TEXT("id")));
    EXPECT("uploads", "<Upload><Key>k</Key><UploadId>id</UploadId>",
           "<Initiated>1994-11-06T08:49:37.000Z</Initiated>"
           "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType></Upload>",
           "<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>id</NextUploadIdMarker>");
}

// Writes one document into a buffer of every size: each call fits whole or leaves no trace.
Test(s3_xml, a_call_that_does_not_fit_leaves_no_trace)
{
    for (size_t size = 0; size < 1200; size++) {
        begin();
        out.size = size;
        size_t before = out.len;

        if (!s3_xml_list_begin(&out, TEXT("bkt"), &params)) {
            cr_expect_eq(out.len, before);
            cr_expect_not(out.is_full);
            continue;
        }
        before = out.len;
        for (unsigned i = 0; i < 3 && s3_xml_list_entry(&out, &params, &odd_object, &owner); i++) {
            before = out.len;
        }
        cr_expect_eq(out.len, before);
        cr_expect_leq(out.len, size);
        out.size = sizeof(buffer);
        cr_expect(s3_xml_list_end(&out, &params, &(struct s3_xml_list_result){0}));
        EXPECT("cut", "<ListBucketResult");
    }
}

Test(s3_xml, the_largest_entry_and_end_fit_their_stated_bounds)
{
    static char key[S3_KEY_MAX];
    struct s3_xml_object object = {.key = text_of(key, sizeof(key)),
                                   .etag = TEXT("0123456789abcdef0123456789abcdef-10000"),
                                   .size = UINT64_MAX,
                                   .checksum = S3_CHECKSUM_CRC64NVME};
    struct s3_xml_list_result result = {.is_truncated = true, .next_after = object.key};

    memset(key, '"', sizeof(key));
    begin();
    params.is_v2 = params.fetch_owner = true;
    params.prefix = params.delimiter = params.start_after = object.key;
    out.size = S3_XML_HEAD_MAX;
    cr_expect(s3_xml_list_begin(&out, TEXT("bkt"), &params));
    out.size = out.len + S3_XML_ENTRY_MAX;
    cr_expect(s3_xml_list_entry(&out, &params, &object, &owner));
    out.size = out.len + S3_XML_HEAD_MAX;
    cr_expect(s3_xml_list_end(&out, &params, &result));
}
