// SPDX-License-Identifier: Apache-2.0
//
// s3_xml_read: every client's spelling of the documents we read, the same for every split, and refusal of hostile ones.

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/s3_xml_read.h"

static struct s3_xml_reader reader;
static char seen[65536];

static enum s3_error on_part(void *context, const struct s3_xml_read_part *part)
{
    (void)context;
    sprintf(seen + strlen(seen), "%u=%.*s", part->number, (int)part->etag.len, part->etag.at);
    if (part->checksum_kind != S3_CHECKSUM_NONE) {
        sprintf(seen + strlen(seen), "/%s:%.*s", s3_checksum_name(part->checksum_kind),
                (int)part->checksum.len, part->checksum.at);
    }
    strcat(seen, "\n");
    return part->number == 7777 ? S3_ERR_INVALID_PART : S3_OK;
}

static enum s3_error on_object(void *context, const struct s3_xml_read_object *object)
{
    (void)context;
    if (strlen(seen) < sizeof(seen) - 4096) {
        sprintf(seen + strlen(seen), "[%.*s]", (int)object->key.len, object->key.at);
        if (!text_is_absent(object->version_id)) {
            sprintf(seen + strlen(seen), "@%.*s", (int)object->version_id.len, object->version_id.at);
        }
    }
    return S3_OK;
}

static enum s3_error read_pieces(enum s3_xml_document document, const char *text, size_t len, size_t piece)
{
    static const struct s3_xml_read_handler handler = {on_part, on_object, NULL};
    enum s3_error error = S3_OK;

    seen[0] = '\0';
    cr_assert_eq(s3_xml_read_open(&reader, document, &handler), 0);
    for (size_t at = 0; at < len && error == S3_OK; at += piece) {
        error = s3_xml_read_feed(&reader, text + at, len - at < piece ? len - at : piece);
    }
    enum s3_error end = s3_xml_read_finish(&reader);
    if (error != S3_OK) {
        cr_expect_eq(end, error, "an error must stick");
    }
    s3_xml_read_close(&reader);
    return end;
}

static enum s3_error read_all(enum s3_xml_document document, const char *text)
{
    return read_pieces(document, text, strlen(text), strlen(text) + 1);
}

#define NS " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

// What each client was seen to send: quotes raw, as decimal reference, as entity, or none; either order; with and without
// declaration and namespace.
Test(s3_xml_read, complete_in_every_spelling)
{
    static const char *const spellings[] = {
        "<CompleteMultipartUpload" NS "><Part><ETag>\"e1\"</ETag><PartNumber>1</PartNumber></Part>"
        "<Part><ETag>\"e2\"</ETag><PartNumber>2</PartNumber></Part></CompleteMultipartUpload>",
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&#34;e1&#34;</ETag></Part>"
        "<Part><PartNumber>2</PartNumber><ETag>&#34;e2&#34;</ETag></Part></CompleteMultipartUpload>",
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<CompleteMultipartUpload" NS
        ">\n <Part>\n  <ETag>&quot;e1&quot;</ETag>\n"
        "  <PartNumber>1</PartNumber>\n </Part>\n <Part><ETag>e2</ETag><PartNumber> 2 </PartNumber></Part>\n"
        "</CompleteMultipartUpload>\n",
        "<s3:CompleteMultipartUpload "
        "xmlns:s3=\"x\"><s3:Part><s3:PartNumber>1</s3:PartNumber><s3:ETag>e1</s3:ETag>"
        "<Future><ETag>no</ETag></Future></s3:Part><Other/><Part><PartNumber>2</"
        "PartNumber><ETag><![CDATA[\"e2\"]]></ETag></Part>"
        "</s3:CompleteMultipartUpload>",
    };

    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        for (size_t piece = 1; piece <= strlen(spellings[i]); piece++) {
            enum s3_error error =
                read_pieces(S3_XML_DOCUMENT_COMPLETE, spellings[i], strlen(spellings[i]), piece);

            cr_assert_eq(error, S3_OK, "spelling %zu in pieces of %zu: %d", i, piece, error);
            cr_assert_str_eq(seen, "1=e1\n2=e2\n", "spelling %zu in pieces of %zu", i, piece);
        }
    }
    cr_expect_eq(reader.item_count, 2);
}

Test(s3_xml_read, parts_may_carry_checksums)
{
    cr_expect_eq(read_all(S3_XML_DOCUMENT_COMPLETE,
                          "<CompleteMultipartUpload><Part><ChecksumCRC64NVME>abc=</ChecksumCRC64NVME>"
                          "<ETag>e</ETag><PartNumber>3</PartNumber></Part></CompleteMultipartUpload>"),
                 S3_OK);
    cr_expect_str_eq(seen, "3=e/CRC64NVME:abc=\n");
}

struct bad_document {
    enum s3_xml_document document;
    const char *text;
    enum s3_error error;
};

#define PART(n) "<Part><PartNumber>" n "</PartNumber><ETag>e</ETag></Part>"
#define COMPLETE(parts) "<CompleteMultipartUpload>" parts "</CompleteMultipartUpload>"

static const struct bad_document bad_documents[] = {
    {S3_XML_DOCUMENT_COMPLETE, "", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, "not xml", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(""), S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, "<Delete></Delete>", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, "<CompleteMultipartUpload>" PART("1"), S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(PART("1")) "x", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE("<Part><ETag>e</ETag></Part>"), S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE("<Part><PartNumber>1</PartNumber></Part>"), S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE("<Part><PartNumber>1</PartNumber><ETag></ETag></Part>"),
     S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(PART("x")), S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(PART("0")), S3_ERR_INVALID_PART_NUMBER},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(PART("10001")), S3_ERR_INVALID_PART_NUMBER},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(PART("2") PART("1")), S3_ERR_INVALID_PART_ORDER},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(PART("2") PART("2")), S3_ERR_INVALID_PART_ORDER},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE(PART("7777") PART("7778")), S3_ERR_INVALID_PART},
    {S3_XML_DOCUMENT_COMPLETE, "<!DOCTYPE x>" COMPLETE(PART("1")), S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE,
     "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]>"
     "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&b;</ETag></Part></"
     "CompleteMultipartUpload>",
     S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, "<!DOCTYPE x SYSTEM \"file:///etc/passwd\">" COMPLETE(PART("1")),
     S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, COMPLETE("<Part><PartNumber>1</PartNumber><ETag>&unknown;</ETag></Part>"),
     S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_COMPLETE, "<CompleteMultipartUpload><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>",
     S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_DELETE, "<Delete></Delete>", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_DELETE, "<Delete><Object></Object></Delete>", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_DELETE, "<Delete><Object><Key></Key></Object></Delete>", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_DELETE, "<Delete><Quiet>perhaps</Quiet><Object><Key>k</Key></Object></Delete>",
     S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_DELETE, "<Delete><Object><Key>&#0;</Key></Object></Delete>", S3_ERR_MALFORMED_XML},
    {S3_XML_DOCUMENT_CREATE, "<CreateBucketConfiguration>", S3_ERR_MALFORMED_XML},
};

Test(s3_xml_read, broken_and_hostile_documents_are_refused_for_every_split)
{
    for (size_t i = 0; i < sizeof(bad_documents) / sizeof(bad_documents[0]); i++) {
        const struct bad_document *bad = &bad_documents[i];

        for (size_t piece = 1; piece <= strlen(bad->text) + 1; piece += 1 + piece / 8) {
            enum s3_error error = read_pieces(bad->document, bad->text, strlen(bad->text), piece);

            cr_expect_eq(error, bad->error, "%s in pieces of %zu: %d", bad->text, piece, error);
        }
    }
}

Test(s3_xml_read, delete_keeps_keys_exactly)
{
    cr_expect_eq(read_all(S3_XML_DOCUMENT_DELETE,
                          "<Delete" NS "><Object><Key> a&amp;b&#13;\xc3\xa4 </Key></Object>"
                          "<Object><VersionId>null</VersionId><Key>c</Key></Object><Quiet>true</Quiet>"
                          "</Delete>"),
                 S3_OK);
    cr_expect_str_eq(seen, "[ a&b\r\xc3\xa4 ][c]@null");
    cr_expect(reader.is_quiet);
    cr_expect_eq(reader.item_count, 2);
}

Test(s3_xml_read, a_field_with_children_does_not_repeat_the_item_before)
{
    cr_expect_eq(
        read_all(S3_XML_DOCUMENT_DELETE, "<Delete><Object><Key>a</Key></Object><Quiet><x/></Quiet></Delete>"),
        S3_OK);
    cr_expect_str_eq(seen, "[a]");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_DELETE, "<Delete><Object><Key>a<x/>b</Key></Object></Delete>"),
                 S3_ERR_MALFORMED_XML);
}

Test(s3_xml_read, limits_on_items_keys_and_size)
{
    static char text[200 * 1024];
    size_t len = (size_t)sprintf(text, "<Delete>");

    for (unsigned i = 0; i < S3_XML_READ_DELETE_MAX; i++) {
        len += (size_t)sprintf(text + len, "<Object><Key>%u</Key></Object>", i);
    }
    strcpy(text + len, "</Delete>");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_DELETE, text), S3_OK);
    cr_expect_eq(reader.item_count, S3_XML_READ_DELETE_MAX);
    strcpy(text + len, "<Object><Key>x</Key></Object></Delete>");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_DELETE, text), S3_ERR_MALFORMED_XML);

    len = (size_t)sprintf(text, "<Delete><Object><Key>");
    memset(text + len, 'k', S3_KEY_MAX);
    strcpy(text + len + S3_KEY_MAX, "</Key></Object></Delete>");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_DELETE, text), S3_OK);
    memset(text + len, 'k', S3_KEY_MAX + 1);
    strcpy(text + len + S3_KEY_MAX + 1, "</Key></Object></Delete>");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_DELETE, text), S3_ERR_KEY_TOO_LONG);
    memset(text + len, 'k', 10000);
    strcpy(text + len + 10000, "</Key></Object></Delete>");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_DELETE, text), S3_ERR_KEY_TOO_LONG);

    char *huge = malloc(S3_XML_READ_SIZE_MAX + 100);
    memset(huge, ' ', S3_XML_READ_SIZE_MAX + 100);
    memcpy(huge, "<Delete>", 8);
    cr_expect_eq(read_pieces(S3_XML_DOCUMENT_DELETE, huge, S3_XML_READ_SIZE_MAX + 100, 65536),
                 S3_ERR_MAX_MESSAGE_LENGTH);
    free(huge);
}

// What a parser holds is bounded however large its document is: each of these had it take as much as was sent, and more.
Test(s3_xml_read, a_document_takes_no_more_memory_than_stated)
{
    static const struct {
        const char *begin;
        const char *repeated; // with a number
    } hostile[] = {
        {"<", "n%u"},           {"<!-- ", "n%u"},          {"<?n ", "n%u"},
        {"<Delete a='", "n%u"}, {"<Delete>", "<n%u/>"},    {"<Delete ", "a%u='' "},
        {"<Delete>&", "n%u"},   {"<Delete><Ob", "ject%u"}, {"<Delete>", "<n a%u=''/>"},
    };
    size_t size = 1 << 20;
    char *text = malloc(size + 100);
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        size_t peak = 0;
        size_t len = (size_t)sprintf(text, "%s", hostile[i].begin);
        for (unsigned n = 0; len < size; n++) {
            len += (size_t)sprintf(text + len, hostile[i].repeated, n);
        }
        cr_assert_eq(s3_xml_read_open(&reader, S3_XML_DOCUMENT_DELETE, NULL), 0);
        for (size_t at = 0; at < size; at += 16384) {
            (void)s3_xml_read_feed(&reader, text + at, 16384); // refused sooner or later: finish says so
            peak = reader.memory > peak ? reader.memory : peak;
        }
        cr_expect_eq(s3_xml_read_finish(&reader), S3_ERR_MALFORMED_XML, "%zu", i);
        cr_expect_leq(peak, 64U << 10, "%zu", i);
        cr_expect_gt(peak, 1024, "%zu: nothing was charged", i);
        s3_xml_read_close(&reader);
    }
    free(text);
}

Test(s3_xml_read, ten_thousand_parts)
{
    char *text = malloc(2 << 20);
    size_t len = (size_t)sprintf(text, "<CompleteMultipartUpload>");

    for (unsigned i = 1; i <= 10000; i++) {
        len += (size_t)sprintf(
            text + len,
            "<Part><PartNumber>%u</PartNumber><ETag>\"0123456789abcdef0123456789abcdef\"</ETag></Part>", i);
    }
    len += (size_t)sprintf(text + len, "</CompleteMultipartUpload>");
    cr_assert_eq(s3_xml_read_open(&reader, S3_XML_DOCUMENT_COMPLETE, NULL), 0);
    cr_expect_eq(s3_xml_read_feed(&reader, text, len), S3_OK);
    cr_expect_eq(s3_xml_read_finish(&reader), S3_OK);
    cr_expect_eq(reader.item_count, 10000);
    s3_xml_read_close(&reader);
    free(text);
}

Test(s3_xml_read, bucket_and_versioning_configurations)
{
    cr_expect_eq(read_all(S3_XML_DOCUMENT_CREATE, ""), S3_OK);
    cr_expect_str_eq(reader.location, "");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_CREATE,
                          "<CreateBucketConfiguration" NS "><LocationConstraint> eu-west-1\n"
                          "</LocationConstraint></CreateBucketConfiguration>"),
                 S3_OK);
    cr_expect_str_eq(reader.location, "eu-west-1");
    cr_expect_eq(read_all(S3_XML_DOCUMENT_CREATE, "<CreateBucketConfiguration/>"), S3_OK);
    cr_expect_eq(read_all(S3_XML_DOCUMENT_VERSIONING,
                          "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"),
                 S3_OK);
    cr_expect_str_eq(reader.status, "Enabled");
}
