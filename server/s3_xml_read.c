// SPDX-License-Identifier: Apache-2.0
//
// Reading request documents over expat; the contract is in s3_xml_read.h.
//
// expat delivers start, text and end events. The element of interest is found by its local name and depth: items are the
// children of the root, fields the children of an item. Everything else is skipped with its content, so a newer client's
// additions do no harm. The first error stops the parser and sticks.

#include "server/s3_xml_read.h"

#include <errno.h>
#include <stdlib.h>

#include <expat.h>

#include "base/bytes.h"
#include "base/check.h"

#define PIECE_MAX 4096u // expat keeps a copy of each piece, as large as the piece

// expat remembers every name that it has met and buffers a token until its end, so a hostile document could have it take many
// times the document's size. What it takes is charged to the reader whose call is under way; expat hands no context to these.
struct memory_head {
    _Alignas(max_align_t) size_t size; // so that what follows is aligned like malloc's own
};

static _Thread_local struct s3_xml_reader *charged;

static void *memory_take(size_t size)
{
    size_t left = S3_XML_READ_MEMORY_MAX - charged->memory;
    if (size > left || sizeof(struct memory_head) > left - size) {
        return NULL; // expat then ends the parse with an error
    }
    struct memory_head *head = malloc(sizeof(*head) + size);
    if (head == NULL) {
        return NULL;
    }
    head->size = size;
    charged->memory += sizeof(*head) + size;
    return head + 1;
}

static void memory_give(void *memory)
{
    if (memory == NULL) {
        return;
    }
    struct memory_head *head = (struct memory_head *)memory - 1;
    CHECK(charged->memory >= sizeof(*head) + head->size);
    charged->memory -= sizeof(*head) + head->size;
    free(head);
}

static void *memory_resize(void *memory, size_t size)
{
    void *moved = memory_take(size);
    if (moved != NULL && memory != NULL) {
        const struct memory_head *head = (const struct memory_head *)memory - 1;
        memcpy(moved, memory, head->size < size ? head->size : size);
        memory_give(memory);
    }
    return moved;
}

enum element {
    ELEMENT_NONE, // text here is of no interest
    ELEMENT_ITEM, // Part or Object
    ELEMENT_PART_NUMBER,
    ELEMENT_ETAG,
    ELEMENT_CHECKSUM,
    ELEMENT_KEY,
    ELEMENT_VERSION_ID,
    ELEMENT_QUIET,
    ELEMENT_LOCATION,
    ELEMENT_STATUS,
};

static const char *const root_names[] = {
    [S3_XML_DOCUMENT_COMPLETE] = "CompleteMultipartUpload",
    [S3_XML_DOCUMENT_DELETE] = "Delete",
    [S3_XML_DOCUMENT_CREATE] = "CreateBucketConfiguration",
    [S3_XML_DOCUMENT_VERSIONING] = "VersioningConfiguration",
};

static const struct {
    enum s3_xml_document document;
    uint32_t depth; // 1 is a child of the root
    const char *name;
    enum element element;
} element_table[] = {
    {S3_XML_DOCUMENT_COMPLETE, 1, "Part", ELEMENT_ITEM},
    {S3_XML_DOCUMENT_COMPLETE, 2, "PartNumber", ELEMENT_PART_NUMBER},
    {S3_XML_DOCUMENT_COMPLETE, 2, "ETag", ELEMENT_ETAG},
    {S3_XML_DOCUMENT_DELETE, 1, "Object", ELEMENT_ITEM},
    {S3_XML_DOCUMENT_DELETE, 1, "Quiet", ELEMENT_QUIET},
    {S3_XML_DOCUMENT_DELETE, 2, "Key", ELEMENT_KEY},
    {S3_XML_DOCUMENT_DELETE, 2, "VersionId", ELEMENT_VERSION_ID},
    {S3_XML_DOCUMENT_CREATE, 1, "LocationConstraint", ELEMENT_LOCATION},
    {S3_XML_DOCUMENT_VERSIONING, 1, "Status", ELEMENT_STATUS},
};

static void reader_fail(struct s3_xml_reader *reader, enum s3_error error)
{
    if (reader->error == S3_OK) {
        reader->error = error;
        XML_StopParser(reader->parser, XML_FALSE);
    }
}

// "ChecksumCRC32C" names the kind after its first eight letters.
static enum s3_checksum_kind checksum_of_tag(struct text name)
{
    if (!text_starts_with(name, TEXT("Checksum"))) {
        return S3_CHECKSUM_NONE;
    }
    return s3_checksum_from_name(text_of(name.at + 8, name.len - 8));
}

static enum element element_of(struct s3_xml_reader *reader, struct text name)
{
    for (size_t i = 0; i < ARRAY_COUNT(element_table); i++) {
        if (element_table[i].document == reader->document && element_table[i].depth == reader->depth &&
            text_is(name, element_table[i].name)) {
            return element_table[i].element;
        }
    }
    if (reader->document == S3_XML_DOCUMENT_COMPLETE && reader->depth == 2 &&
        checksum_of_tag(name) != S3_CHECKSUM_NONE) {
        reader->checksum_kind = checksum_of_tag(name);
        return ELEMENT_CHECKSUM;
    }
    return ELEMENT_NONE;
}

static void begin_item(struct s3_xml_reader *reader)
{
    reader->in_item = true;
    reader->has_number = reader->has_etag = reader->has_key = reader->has_version = false;
    reader->etag_len = reader->key_len = reader->version_len = reader->checksum_len = 0;
    reader->checksum_kind = S3_CHECKSUM_NONE;
}

// A prefix ("s3:Part") is dropped: which namespace clients name varies, and none of them means another document.
static struct text local_name(const char *name)
{
    const char *colon = strrchr(name, ':');

    return text_of_string(colon != NULL ? colon + 1 : name);
}

static void XMLCALL on_start(void *context, const XML_Char *raw_name, const XML_Char **attributes)
{
    struct s3_xml_reader *reader = context;
    struct text name = local_name(raw_name);

    (void)attributes; // xmlns and xsi:type carry nothing we need
    if (reader->depth >= S3_XML_READ_DEPTH_MAX) {
        reader_fail(reader, S3_ERR_MALFORMED_XML);
        return;
    }
    if (reader->depth == 0) {
        if (!text_is(name, root_names[reader->document])) {
            reader_fail(reader, S3_ERR_MALFORMED_XML);
        }
    } else if (reader->skip_depth == 0) {
        // A field has no children: what stands inside one is not for us, nor is its text.
        reader->element = (uint8_t)element_of(reader, name);
        reader->text_len = 0;
        if (reader->element == ELEMENT_ITEM) {
            begin_item(reader);
        } else if (reader->element == ELEMENT_NONE) {
            reader->skip_depth = reader->depth;
        }
    }
    reader->depth++;
}

static void XMLCALL on_text(void *context, const XML_Char *text, int len)
{
    struct s3_xml_reader *reader = context;

    if (reader->error != S3_OK || reader->skip_depth != 0 || reader->element <= ELEMENT_ITEM) {
        return;
    }
    if ((size_t)len > sizeof(reader->text) - reader->text_len) {
        reader_fail(reader, reader->element == ELEMENT_KEY ? S3_ERR_KEY_TOO_LONG : S3_ERR_MALFORMED_XML);
        return;
    }
    memcpy(reader->text + reader->text_len, text, (size_t)len);
    reader->text_len += (uint32_t)len;
}

static struct text trim_space(struct text text)
{
    while (text.len > 0 && strchr(" \t\r\n", text.at[0]) != NULL && text.at[0] != '\0') {
        text = text_of(text.at + 1, text.len - 1);
    }
    while (text.len > 0 && strchr(" \t\r\n", text.at[text.len - 1]) != NULL &&
           text.at[text.len - 1] != '\0') {
        text.len--;
    }
    return text;
}

static bool store(char *to, size_t size, uint32_t *len, struct text text)
{
    if (text.len > size) {
        return false;
    }
    memcpy(to, text.at, text.len);
    *len = (uint32_t)text.len;
    return true;
}

static struct text unquote(struct text etag)
{
    if (etag.len >= 2 && etag.at[0] == '"' && etag.at[etag.len - 1] == '"') {
        return text_of(etag.at + 1, etag.len - 2);
    }
    return etag;
}

static bool store_string(char *to, size_t size, struct text text)
{
    uint32_t len;

    if (!store(to, size - 1, &len, text) || memchr(text.at, '\0', text.len) != NULL) {
        return false;
    }
    to[len] = '\0';
    return true;
}

static enum s3_error end_number(struct s3_xml_reader *reader, struct text text)
{
    uint64_t number;

    if (!text_parse_u64(text, &number)) {
        return S3_ERR_MALFORMED_XML;
    }
    if (number < 1 || number > S3_PART_NUMBER_MAX) {
        return S3_ERR_INVALID_PART_NUMBER;
    }
    reader->number = (uint32_t)number;
    reader->has_number = true;
    return S3_OK;
}

static enum s3_error end_quiet(struct s3_xml_reader *reader, struct text text)
{
    if (!text_is_nocase(text, "true") && !text_is_nocase(text, "false")) {
        return S3_ERR_MALFORMED_XML;
    }
    reader->is_quiet = text_is_nocase(text, "true");
    return S3_OK;
}

// The end of a field: its text is complete. Keys are exact bytes; everything else ignores white space around it.
static enum s3_error end_field(struct s3_xml_reader *reader)
{
    struct text raw = text_of(reader->text, reader->text_len);
    struct text text = trim_space(raw);
    bool fits = true;

    switch (reader->element) {
    case ELEMENT_PART_NUMBER:
        return end_number(reader, text);
    case ELEMENT_QUIET:
        return end_quiet(reader, text);
    case ELEMENT_ETAG:
        text = unquote(text);
        fits = text.len > 0 && store(reader->etag, sizeof(reader->etag), &reader->etag_len, text);
        reader->has_etag = true;
        break;
    case ELEMENT_CHECKSUM:
        fits = store(reader->checksum, sizeof(reader->checksum), &reader->checksum_len, text);
        break;
    case ELEMENT_KEY:
        if (raw.len > S3_KEY_MAX) {
            return S3_ERR_KEY_TOO_LONG;
        }
        fits = raw.len > 0 && store(reader->key, sizeof(reader->key), &reader->key_len, raw);
        reader->has_key = true;
        break;
    case ELEMENT_VERSION_ID:
        fits = store(reader->version, sizeof(reader->version), &reader->version_len, text);
        reader->has_version = true;
        break;
    case ELEMENT_LOCATION:
        fits = store_string(reader->location, sizeof(reader->location), text);
        break;
    case ELEMENT_STATUS:
        fits = store_string(reader->status, sizeof(reader->status), text);
        break;
    default:
        break;
    }
    return fits ? S3_OK : S3_ERR_MALFORMED_XML;
}

static enum s3_error end_part(struct s3_xml_reader *reader)
{
    struct s3_xml_read_part part = {
        .number = reader->number,
        .etag = text_of(reader->etag, reader->etag_len),
        .checksum_kind = reader->checksum_len > 0 ? reader->checksum_kind : S3_CHECKSUM_NONE,
        .checksum = text_of(reader->checksum, reader->checksum_len),
    };

    if (!reader->has_number || !reader->has_etag) {
        return S3_ERR_MALFORMED_XML;
    }
    if (reader->item_count > 0 && part.number <= reader->previous) {
        return S3_ERR_INVALID_PART_ORDER;
    }
    reader->previous = part.number;
    // Strictly ascending numbers of at most 10,000 bound the count as well.
    reader->item_count++;
    return reader->handler.part != NULL ? reader->handler.part(reader->handler.context, &part) : S3_OK;
}

static enum s3_error end_object(struct s3_xml_reader *reader)
{
    struct s3_xml_read_object object = {.key = text_of(reader->key, reader->key_len)};

    if (reader->has_version) {
        object.version_id = text_of(reader->version, reader->version_len);
    }
    if (!reader->has_key || reader->item_count == S3_XML_READ_DELETE_MAX) {
        return S3_ERR_MALFORMED_XML;
    }
    reader->item_count++;
    return reader->handler.object != NULL ? reader->handler.object(reader->handler.context, &object) : S3_OK;
}

static void XMLCALL on_end(void *context, const XML_Char *name)
{
    struct s3_xml_reader *reader = context;
    enum s3_error error = S3_OK;

    (void)name; // expat has matched it with the start
    if (reader->error != S3_OK) {
        return;
    }
    CHECK(reader->depth > 0);
    reader->depth--;
    if (reader->skip_depth != 0) {
        if (reader->depth == reader->skip_depth) {
            reader->skip_depth = 0;
        }
        reader->element = ELEMENT_NONE;
        return;
    }
    if (reader->element > ELEMENT_ITEM) {
        error = end_field(reader);
    } else if (reader->in_item && reader->depth == 1) {
        error = reader->document == S3_XML_DOCUMENT_COMPLETE ? end_part(reader) : end_object(reader);
        reader->in_item = false;
    }
    reader->element = ELEMENT_NONE;
    if (error != S3_OK) {
        reader_fail(reader, error);
    }
}

// No document needs a DOCTYPE, and without one there are no entities to expand.
static void XMLCALL on_doctype(void *context, const XML_Char *name, const XML_Char *system_id,
                               const XML_Char *public_id, int has_internal_subset)
{
    (void)name, (void)system_id, (void)public_id, (void)has_internal_subset; // refused whatever it says
    reader_fail(context, S3_ERR_MALFORMED_XML);
}

int s3_xml_read_open(struct s3_xml_reader *reader, enum s3_xml_document document,
                     const struct s3_xml_read_handler *handler)
{
    static const XML_Memory_Handling_Suite memory = {memory_take, memory_resize, memory_give};

    memset(reader, 0, offsetof(struct s3_xml_reader, text));
    charged = reader;
    XML_Parser parser = XML_ParserCreate_MM(NULL, &memory, NULL);
    if (parser == NULL) {
        return -ENOMEM;
    }
    reader->parser = parser;
    reader->document = document;
    if (handler != NULL) {
        reader->handler = *handler;
    }
    XML_SetUserData(parser, reader);
    XML_SetElementHandler(parser, on_start, on_end);
    XML_SetCharacterDataHandler(parser, on_text);
    XML_SetStartDoctypeDeclHandler(parser, on_doctype);
    return 0;
}

static enum s3_error parse(struct s3_xml_reader *reader, const void *in, size_t len, bool is_last)
{
    charged = reader;
    if (reader->error == S3_OK && XML_Parse(reader->parser, in, (int)len, is_last) != XML_STATUS_OK &&
        reader->error == S3_OK) {
        reader->error = S3_ERR_MALFORMED_XML;
    }
    return reader->error;
}

enum s3_error s3_xml_read_feed(struct s3_xml_reader *reader, const void *in, size_t len)
{
    reader->bytes += len;
    if (reader->error == S3_OK && reader->bytes > S3_XML_READ_SIZE_MAX) {
        reader->error = S3_ERR_MAX_MESSAGE_LENGTH;
    }
    const char *at = in;
    while (len > 0 && reader->error == S3_OK) {
        size_t piece = len < PIECE_MAX ? len : PIECE_MAX;
        (void)parse(reader, at, piece, false); // reader->error says how it went
        at += piece;
        len -= piece;
    }
    return reader->error;
}

enum s3_error s3_xml_read_finish(struct s3_xml_reader *reader)
{
    bool needs_items =
        reader->document == S3_XML_DOCUMENT_COMPLETE || reader->document == S3_XML_DOCUMENT_DELETE;

    if (reader->bytes == 0 && reader->document == S3_XML_DOCUMENT_CREATE) {
        return reader->error;
    }
    if (parse(reader, "", 0, true) == S3_OK && needs_items && reader->item_count == 0) {
        reader->error = S3_ERR_MALFORMED_XML;
    }
    return reader->error;
}

void s3_xml_read_close(struct s3_xml_reader *reader)
{
    charged = reader;
    XML_ParserFree(reader->parser);
    reader->parser = NULL;
    CHECK(reader->memory == 0);
}
