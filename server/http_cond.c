// SPDX-License-Identifier: Apache-2.0
//
// Preconditions; the contract is in http_cond.h.

#include "server/http_cond.h"

#include <stdio.h>

#include "base/bytes.h"
#include "base/check.h"
#include "server/http_date.h"

void http_cond_from_head(struct http_cond *cond, const struct http_head *head, const char *buffer,
                         const char *prefix)
{
    struct {
        const char *name;
        struct text *to;
    } fields[] = {
        {"if-match", &cond->if_match},
        {"if-none-match", &cond->if_none_match},
        {"if-modified-since", &cond->if_modified_since},
        {"if-unmodified-since", &cond->if_unmodified_since},
        {"if-range", &cond->if_range},
    };
    char name[64];

    for (size_t i = 0; i < ARRAY_COUNT(fields); i++) {
        int len = snprintf(name, sizeof(name), "%s%s", prefix, fields[i].name);

        CHECK(len > 0 && (size_t)len < sizeof(name));
        *fields[i].to = http_head_find(head, buffer, name);
    }
}

struct entity_tag {
    struct text value; // without quotes
    bool is_weak;
};

// Takes the next tag off a list. A quoted tag may hold commas; one without quotes ends at the comma.
static bool take_tag(struct text *rest, struct entity_tag *tag)
{
    struct text text = *rest;

    while (text.len > 0 && (text.at[0] == ',' || text.at[0] == ' ' || text.at[0] == '\t')) {
        text = text_of(text.at + 1, text.len - 1);
    }
    if (text.len == 0) {
        return false;
    }
    tag->is_weak = text_starts_with(text, TEXT("W/\""));
    if (tag->is_weak) {
        text = text_of(text.at + 2, text.len - 2);
    }
    if (text.at[0] == '"') {
        text = text_of(text.at + 1, text.len - 1);
        tag->value = text_take_until(&text, '"');
    } else {
        tag->value = text_trim(text_take_until(&text, ','));
    }
    *rest = text;
    return true;
}

// Does any tag of the list fit? Strong comparison (If-Match) never fits a weak tag (RFC 9110 section 8.8.3.2).
static bool list_matches(struct text list, const struct http_cond_object *object, bool is_strong)
{
    struct entity_tag tag;

    if (!object->exists) {
        return false;
    }
    if (text_is(text_trim(list), "*")) {
        return true;
    }
    while (take_tag(&list, &tag)) {
        if (text_equal(tag.value, object->etag) && !(is_strong && tag.is_weak)) {
            return true;
        }
    }
    return false;
}

enum since {
    SINCE_IGNORED, // no header, or not a date
    SINCE_MODIFIED,
    SINCE_UNMODIFIED,
};

static enum since compare_date(struct text header, const struct http_cond_object *object, int64_t now_s)
{
    int64_t date_s;

    if (text_is_absent(header) || !object->exists || !http_date_parse(header, now_s, &date_s)) {
        return SINCE_IGNORED;
    }
    return object->modified_s > date_s ? SINCE_MODIFIED : SINCE_UNMODIFIED;
}

enum http_cond_result http_cond_evaluate(const struct http_cond *cond, const struct http_cond_object *object,
                                         bool is_read, int64_t now_s)
{
    // Steps 1 and 2 of RFC 9110 section 13.2.2.
    if (!text_is_absent(cond->if_match)) {
        if (!list_matches(cond->if_match, object, true)) {
            return HTTP_COND_FAILED;
        }
    } else if (compare_date(cond->if_unmodified_since, object, now_s) == SINCE_MODIFIED) {
        return HTTP_COND_FAILED;
    }
    // Steps 3 and 4.
    if (!text_is_absent(cond->if_none_match)) {
        if (list_matches(cond->if_none_match, object, false)) {
            return is_read ? HTTP_COND_NOT_MODIFIED : HTTP_COND_FAILED;
        }
    } else if (is_read && compare_date(cond->if_modified_since, object, now_s) == SINCE_UNMODIFIED) {
        return HTTP_COND_NOT_MODIFIED;
    }
    return HTTP_COND_PROCEED;
}

enum http_cond_result http_cond_evaluate_copy(const struct http_cond *cond,
                                              const struct http_cond_object *object, int64_t now_s)
{
    // The conditions are those of a read of the source, but the answer to the PUT cannot be 304.
    enum http_cond_result result = http_cond_evaluate(cond, object, true, now_s);

    return result == HTTP_COND_NOT_MODIFIED ? HTTP_COND_FAILED : result;
}

bool http_cond_range_allowed(const struct http_cond *cond, const struct http_cond_object *object,
                             int64_t now_s)
{
    struct text value = cond->if_range;
    struct entity_tag tag;
    int64_t date_s;

    if (text_is_absent(value)) {
        return true;
    }
    if (http_date_parse(value, now_s, &date_s)) {
        return date_s == object->modified_s;
    }
    return take_tag(&value, &tag) && !tag.is_weak && text_equal(tag.value, object->etag);
}

enum http_cond_put http_cond_for_put(const struct http_cond *cond, struct text *etag)
{
    struct text list = cond->if_match;
    struct entity_tag tag, second;

    // If-Modified-Since means nothing to a write (RFC 9110 section 13.1.3).
    if (!text_is_absent(cond->if_unmodified_since)) {
        return HTTP_COND_PUT_REFUSED;
    }
    if (!text_is_absent(cond->if_none_match)) {
        bool is_star = text_is(text_trim(cond->if_none_match), "*");

        return is_star && text_is_absent(cond->if_match) ? HTTP_COND_PUT_IF_ABSENT : HTTP_COND_PUT_REFUSED;
    }
    if (text_is_absent(list)) {
        return HTTP_COND_PUT_ALWAYS;
    }
    if (text_is(text_trim(list), "*")) {
        return HTTP_COND_PUT_IF_EXISTS;
    }
    if (!take_tag(&list, &tag) || tag.is_weak || take_tag(&list, &second)) {
        return HTTP_COND_PUT_REFUSED;
    }
    *etag = tag.value;
    return HTTP_COND_PUT_IF_ETAG;
}
