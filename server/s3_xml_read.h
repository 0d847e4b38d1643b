// SPDX-License-Identifier: Apache-2.0
//
// The XML documents clients send us, read incrementally over expat: CompleteMultipartUpload, Delete,
// CreateBucketConfiguration (and VersioningConfiguration, for its Status).
//
// Input is hostile: a DOCTYPE is refused (so no entity can be declared, let alone expanded), depth, text length, item
// count and document size are limited, namespaces and unknown elements are skipped. Element order does not matter.
// Memory: one expat parser per document, opened here, takes S3_XML_READ_MEMORY_MAX from the heap at most: a document with more
// names, or a longer name or attribute, than fit there is refused like any malformed one. Not for the data path.

#ifndef SERVER_S3_XML_READ_H
#define SERVER_S3_XML_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/s3_checksum.h"
#include "server/s3_error.h"
#include "server/s3_target.h"

#define S3_XML_READ_SIZE_MAX (8u << 20) // 10,000 parts with two checksums each, generously spaced
#define S3_XML_READ_MEMORY_MAX (64u << 10)
#define S3_XML_READ_DEPTH_MAX 16u
#define S3_XML_READ_TEXT_MAX (S3_KEY_MAX + 64u)
#define S3_XML_READ_DELETE_MAX 1000u
#define S3_XML_ETAG_MAX 128u

enum s3_xml_document {
    S3_XML_DOCUMENT_COMPLETE,   // CompleteMultipartUpload
    S3_XML_DOCUMENT_DELETE,     // Delete
    S3_XML_DOCUMENT_CREATE,     // CreateBucketConfiguration
    S3_XML_DOCUMENT_VERSIONING, // VersioningConfiguration
};

// One <Part>. Texts are borrowed until the callback returns.
struct s3_xml_read_part {
    uint32_t number;                     // 1..10000
    struct text etag;                    // surrounding quotes and white space removed; never empty
    enum s3_checksum_kind checksum_kind; // NONE when the part carries none
    struct text checksum;                // base64
};

// One <Object> of a Delete.
struct s3_xml_read_object {
    struct text key;        // 1..1024 bytes
    struct text version_id; // absent when not sent
};

// Called in document order. S3_OK to go on; anything else ends the reading and is what feed() returns.
struct s3_xml_read_handler {
    enum s3_error (*part)(void *context, const struct s3_xml_read_part *part);
    enum s3_error (*object)(void *context, const struct s3_xml_read_object *object);
    void *context;
};

struct s3_xml_reader {
    // Results, final after s3_xml_read_finish() returned S3_OK.
    uint32_t item_count; // parts or objects
    bool is_quiet;       // Delete
    char location[64];   // LocationConstraint, NUL-terminated, empty when absent
    char status[16];     // VersioningConfiguration Status, likewise

    // Private to s3_xml_read.c.
    void *parser;
    size_t memory; // bytes that the parser holds
    enum s3_xml_document document;
    struct s3_xml_read_handler handler;
    enum s3_error error;
    uint64_t bytes;
    uint32_t depth;
    uint32_t skip_depth;
    uint8_t element;
    uint32_t text_len;
    bool in_item;
    bool has_number, has_etag, has_key, has_version;
    uint32_t number, previous;
    uint32_t etag_len, key_len, version_len, checksum_len;
    enum s3_checksum_kind checksum_kind;
    char text[S3_XML_READ_TEXT_MAX];
    char etag[S3_XML_ETAG_MAX];
    char key[S3_KEY_MAX];
    char version[S3_UPLOAD_ID_MAX];
    char checksum[S3_CHECKSUM_BASE64_MAX + 8];
};

// 0 or -ENOMEM; afterwards the caller owes one s3_xml_read_close(), whatever happens in between.
int s3_xml_read_open(struct s3_xml_reader *reader, enum s3_xml_document document,
                     const struct s3_xml_read_handler *handler);

// Pieces may be cut anywhere. S3_OK; MALFORMED_XML; MAX_MESSAGE_LENGTH; INVALID_PART_ORDER (parts not strictly
// ascending); INVALID_PART_NUMBER; KEY_TOO_LONG; or what a handler answered. An error sticks.
enum s3_error s3_xml_read_feed(struct s3_xml_reader *reader, const void *in, size_t len);

// End of the body. MALFORMED_XML for an unfinished document, or one with no part or object at all. An entirely empty
// body is fine for CREATE only (clients send none for the default region).
enum s3_error s3_xml_read_finish(struct s3_xml_reader *reader);
void s3_xml_read_close(struct s3_xml_reader *reader);

#endif
