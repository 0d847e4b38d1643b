// SPDX-License-Identifier: Apache-2.0
//
// Request documents: the first byte chooses the document and the split. What handlers see is within the limits, and the
// verdict does not depend on the split.

#include <stdlib.h>

#include "base/check.h"
#include "server/s3_xml_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum s3_error on_part(void *context, const struct s3_xml_read_part *part)
{
    uint64_t *sum = context;

    CHECK(part->number >= 1 && part->number <= S3_PART_NUMBER_MAX);
    CHECK(part->etag.len > 0);
    *sum = *sum * 31 + part->number + part->etag.len;
    return S3_OK;
}

static enum s3_error on_object(void *context, const struct s3_xml_read_object *object)
{
    uint64_t *sum = context;

    CHECK(object->key.len >= 1 && object->key.len <= S3_KEY_MAX);
    for (size_t i = 0; i < object->key.len; i++) {
        *sum = *sum * 31 + (unsigned char)object->key.at[i];
    }
    return S3_OK;
}

static enum s3_error read_document(enum s3_xml_document document, const uint8_t *data, size_t size,
                                   size_t step, uint64_t *sum)
{
    static struct s3_xml_reader reader;
    struct s3_xml_read_handler handler = {on_part, on_object, sum};
    enum s3_error error = S3_OK;

    CHECK(s3_xml_read_open(&reader, document, &handler) == 0);
    for (size_t at = 0; at < size && error == S3_OK; at += step) {
        error = s3_xml_read_feed(&reader, data + at, size - at < step ? size - at : step);
    }
    error = s3_xml_read_finish(&reader);
    s3_xml_read_close(&reader);
    return error;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t whole_sum = 0, split_sum = 0;

    if (size < 1) {
        return 0;
    }
    enum s3_xml_document document = data[0] & 3;
    enum s3_error whole = read_document(document, data + 1, size - 1, size, &whole_sum);
    enum s3_error split = read_document(document, data + 1, size - 1, (data[0] >> 2) + 1u, &split_sum);

    CHECK((whole == S3_OK) == (split == S3_OK));
    CHECK(whole != S3_OK || whole_sum == split_sum);
    return 0;
}
