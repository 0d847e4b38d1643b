/* SPDX-License-Identifier: Apache-2.0 */
/* s3_meta: packing and unpacking. */
#include "server/s3_meta.h"

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/auth_sigv4.h"

#define META_VERSION 1U

static const char *const meta_kept[] = {"content-type",
                                        "cache-control",
                                        "content-disposition",
                                        "content-encoding",
                                        "content-language",
                                        "expires",
                                        "x-amz-website-redirect-location"};

static const struct text meta_user_prefix = {.at = "x-amz-meta-", .len = 11};

static bool meta_is_kept(struct text name)
{
    for (size_t i = 0; i < ARRAY_COUNT(meta_kept); i++) {
        if (text_is_nocase(name, meta_kept[i])) {
            return true;
        }
    }
    return false;
}

static bool meta_put(struct store_attributes *attributes, struct text name, struct text value)
{
    size_t need = 3 + name.len + value.len;
    if (name.len > UINT8_MAX || need > STORE_META_MAX - attributes->meta_len) {
        return false;
    }
    uint8_t *to = attributes->meta + attributes->meta_len;
    to[0] = (uint8_t)name.len;
    bytes_put_le16(to + 1, (uint16_t)value.len);
    for (size_t i = 0; i < name.len; i++) {
        to[3 + i] = (uint8_t)text_lower_char(name.at[i]);
    }
    if (value.len > 0) {
        memcpy(to + 3 + name.len, value.at, value.len);
    }
    attributes->meta_len = (uint16_t)(attributes->meta_len + need);
    return true;
}

/* aws-chunked describes the transfer, not the object. */
static bool meta_put_encoding(struct store_attributes *attributes, struct text name, struct text value)
{
    char stripped[STORE_META_MAX];
    if (value.len > sizeof(stripped)) {
        return false;
    }
    size_t len = auth_content_encoding_strip(value, stripped, sizeof(stripped));
    return len == 0 || meta_put(attributes, name, text_of(stripped, len));
}

enum s3_error s3_meta_pack(struct store_attributes *attributes, const struct http_head *head,
                           const char *buffer)
{
    size_t user = 0;
    attributes->meta[0] = META_VERSION;
    attributes->meta_len = 1;
    for (uint32_t i = 0; i < head->header_count; i++) {
        struct text name = http_head_text(buffer, head->headers[i].name);
        struct text value = http_head_text(buffer, head->headers[i].value);
        bool is_user = text_starts_with_nocase(name, meta_user_prefix);
        bool fits = true;
        if (is_user) {
            user += name.len - meta_user_prefix.len + value.len;
            fits = user <= S3_META_USER_MAX && meta_put(attributes, name, value);
        } else if (text_is_nocase(name, "content-encoding")) {
            fits = meta_put_encoding(attributes, name, value);
        } else if (meta_is_kept(name)) {
            fits = meta_put(attributes, name, value);
        }
        if (!fits) {
            return S3_ERR_METADATA_TOO_LARGE;
        }
    }
    return S3_OK;
}

bool s3_meta_next(const struct store_attributes *attributes, uint32_t *position, struct s3_meta_item *item)
{
    const uint8_t *meta = attributes->meta;
    if (*position == 0) {
        if (attributes->meta_len == 0 || meta[0] != META_VERSION) {
            return false;
        }
        *position = 1;
    }
    uint32_t left = attributes->meta_len - *position;
    if (left < 3) {
        return false;
    }
    const uint8_t *from = meta + *position;
    uint32_t name_len = from[0];
    uint32_t value_len = bytes_get_le16(from + 1);
    if (name_len + value_len > left - 3) {
        return false;
    }
    item->name = text_of((const char *)from + 3, name_len);
    item->value = text_of((const char *)from + 3 + name_len, value_len);
    *position += 3 + name_len + value_len;
    return true;
}
