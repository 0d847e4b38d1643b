/* SPDX-License-Identifier: Apache-2.0 */
/* value: texts to values and back, one pair of functions per type of the schema. Pure; knows neither files nor sections. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "conf/schema_int.h"

/* ---- durations ------------------------------------------------------------------------------------------------------ */

struct duration_unit {
    const char *name;
    uint64_t factor;
};

static const struct duration_unit duration_units[] = {
    {"d", 86400 * NS_PER_S}, {"h", 3600 * NS_PER_S}, {"m", 60 * NS_PER_S},
    {"s", NS_PER_S},         {"ms", NS_PER_MS},      {"us", NS_PER_US},
};

int value_duration_read(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = text;
    int rc = bytes_parse_digits(&at, &value);
    if (rc != 0) {
        return rc;
    }
    if (*at == '\0' && value == 0) {
        *out = 0;
        return 0;
    }
    for (size_t i = 0; i < ARRAY_COUNT(duration_units); i++) {
        if (strcmp(at, duration_units[i].name) == 0) {
            if (__builtin_mul_overflow(value, duration_units[i].factor, &value)) {
                return -ERANGE;
            }
            *out = value;
            return 0;
        }
    }
    return -EINVAL;
}

/* The longest unit that divides the value: "90s", never "1.5m". */
static void duration_write(uint64_t value, char *to, size_t size)
{
    if (value == 0) {
        snprintf(to, size, "0");
        return;
    }
    for (size_t i = 0; i < ARRAY_COUNT(duration_units); i++) {
        if (value % duration_units[i].factor == 0) {
            snprintf(to, size, "%" PRIu64 "%s", value / duration_units[i].factor, duration_units[i].name);
            return;
        }
    }
    snprintf(to, size, "%" PRIu64 "ns", value);
}

/* ---- addresses ------------------------------------------------------------------------------------------------------ */

static int port_read(const char *text, uint16_t *out)
{
    uint32_t value = 0;
    size_t len = strlen(text);
    if (len == 0 || len > 5) {
        return -EINVAL;
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9') {
            return -EINVAL;
        }
        value = value * 10 + (uint32_t)(*at - '0');
    }
    if (value == 0 || value > UINT16_MAX) {
        return -EINVAL;
    }
    *out = (uint16_t)value;
    return 0;
}

static int host_read(const char *host, uint16_t port, struct conf_address *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&out->addr;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&out->addr;
    size_t len = strlen(host);
    if (strcmp(host, "*") == 0) {
        host = "[::]";
        len = 4;
    }
    if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
        char inner[INET6_ADDRSTRLEN];
        if (len - 2 >= sizeof(inner)) {
            return -EINVAL;
        }
        memcpy(inner, host + 1, len - 2);
        inner[len - 2] = '\0';
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        out->len = sizeof(*v6);
        return inet_pton(AF_INET6, inner, &v6->sin6_addr) == 1 ? 0 : -EINVAL;
    }
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    out->len = sizeof(*v4);
    return inet_pton(AF_INET, host, &v4->sin_addr) == 1 ? 0 : -EINVAL;
}

int value_address_read(const char *text, struct conf_address *out)
{
    struct conf_address address;
    memset(&address, 0, sizeof(address));
    const char *colon = strrchr(text, ':');
    uint16_t port;
    if (colon == NULL || strlen(text) >= sizeof(address.text) || port_read(colon + 1, &port) != 0) {
        return -EINVAL;
    }
    char host[sizeof(address.text)];
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = '\0';
    if (host_read(host, port, &address) != 0) {
        return -EINVAL;
    }
    memcpy(address.text, text, strlen(text) + 1);
    *out = address;
    return 0;
}

/* ---- ranges ---------------------------------------------------------------------------------------------------------- */

static void quantity_write(enum schema_type type, uint64_t value, char *to, size_t size)
{
    char text[BYTES_SIZE_TEXT_MAX];
    switch (type) {
    case SCHEMA_SIZE:
    case SCHEMA_RATE:
        snprintf(to, size, "%s%s", bytes_format_size(value, text),
                 type == SCHEMA_RATE && value != 0 ? "/s" : "");
        break;
    case SCHEMA_DURATION:
        duration_write(value, to, size);
        break;
    default:
        snprintf(to, size, "%" PRIu64, value);
        break;
    }
}

void value_range_text(const struct schema_row *row, char *to, size_t size)
{
    char low[64];
    char high[64];
    quantity_write(row->type, row->min, low, sizeof(low));
    quantity_write(row->type, row->max, high, sizeof(high));
    int len = snprintf(to, size, "%s%s to %s",
                       (row->flags & SCHEMA_POWER_OF_TWO) != 0 ? "a power of two from " : "from ", low, high);
    if ((row->flags & SCHEMA_ZERO) != 0 && len > 0 && (size_t)len < size) {
        snprintf(to + len, size - (size_t)len, ", or 0 for %s", row->zero_means);
    }
}

/* Checks a number against its row. When only the power of two is missed, the two that are nearest are named. */
static int quantity_check(const struct schema_row *row, uint64_t value, struct err *err)
{
    char range[256];
    if (value == 0 && (row->flags & SCHEMA_ZERO) != 0) {
        return 0;
    }
    value_range_text(row, range, sizeof(range));
    if (value < row->min || value > row->max) {
        return err_set(err, ERR_INVALID_CONFIG, "must be %s", range);
    }
    if ((row->flags & SCHEMA_POWER_OF_TWO) != 0 && !bytes_is_power_of_two(value)) {
        char below[64];
        char above[64];
        uint64_t power = 1ULL << (63 - __builtin_clzll(value));
        quantity_write(row->type, power, below, sizeof(below));
        quantity_write(row->type, power * 2, above, sizeof(above));
        return err_set(err, ERR_INVALID_CONFIG, "must be %s; the nearest are %s and %s", range, below, above);
    }
    return 0;
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

static int count_read(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (*text == '\0') {
        return -EINVAL;
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9') {
            return -EINVAL;
        }
        if (__builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value)) {
            return -ERANGE;
        }
    }
    *out = value;
    return 0;
}

static int rate_read(const char *text, uint64_t *out)
{
    char size[64];
    size_t len = strlen(text);
    if (len > 2 && strcmp(text + len - 2, "/s") == 0) {
        len -= 2;
    }
    if (len >= sizeof(size)) {
        return -EINVAL;
    }
    memcpy(size, text, len);
    size[len] = '\0';
    return bytes_parse_size(size, out);
}

/* What a number of this type looks like; shown when it could not be read at all. */
static const char *quantity_form(enum schema_type type)
{
    switch (type) {
    case SCHEMA_SIZE:
        return "a whole number of bytes with a unit B, KiB, MiB, GiB or TiB (128KiB), binary units only";
    case SCHEMA_RATE:
        return "a whole number of bytes per second with a unit B, KiB, MiB, GiB or TiB (10MiB/s), binary "
               "units only";
    case SCHEMA_DURATION:
        return "a whole number with a unit us, ms, s, m, h or d (30s)";
    default:
        return "a whole number";
    }
}

static int quantity_read(const struct schema_row *row, const char *text, uint64_t *out, struct err *err)
{
    uint64_t value = 0;
    int rc;
    switch (row->type) {
    case SCHEMA_SIZE:
        rc = bytes_parse_size(text, &value);
        break;
    case SCHEMA_RATE:
        rc = rate_read(text, &value);
        break;
    case SCHEMA_DURATION:
        rc = value_duration_read(text, &value);
        break;
    default:
        rc = count_read(text, &value);
        break;
    }
    if (rc == -ERANGE) {
        value = UINT64_MAX; /* too large to be held: out of every range, and said so by the range */
    } else if (rc != 0) {
        char range[256];
        value_range_text(row, range, sizeof(range));
        return err_set(err, ERR_INVALID_CONFIG, "must be %s, %s", quantity_form(row->type), range);
    }
    rc = quantity_check(row, value, err);
    if (rc == 0) {
        *out = value;
    }
    return rc;
}

static int text_read(const struct schema_row *row, const char *text, char *field, struct err *err)
{
    size_t len = strlen(text);
    if (len == 0 && (row->flags & SCHEMA_EMPTY) != 0) {
        field[0] = '\0';
        return 0;
    }
    if (len == 0 || len >= row->size) {
        return err_set(err, ERR_INVALID_CONFIG, "must have 1 to %zu bytes", row->size - 1);
    }
    for (const char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            return err_set(err, ERR_INVALID_CONFIG, "must not hold control characters");
        }
    }
    const char *allowed = row->check == NULL ? NULL : row->check(text);
    if (allowed != NULL) {
        return err_set(err, ERR_INVALID_CONFIG, "must be %s", allowed);
    }
    memcpy(field, text, len + 1);
    return 0;
}

static int choice_read(const struct schema_row *row, const char *text, unsigned *field, struct err *err)
{
    char list[256] = "";
    size_t len = 0;
    for (const struct schema_choice *choice = row->choices; choice->text != NULL; choice++) {
        if (strcmp(text, choice->text) == 0) {
            *field = choice->value;
            return 0;
        }
        const char *joint = choice == row->choices ? "" : choice[1].text == NULL ? " or " : ", ";
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s", joint, choice->text);
        CHECK(len < sizeof(list));
    }
    return err_set(err, ERR_INVALID_CONFIG, "must be %s", list);
}

static int bool_read(const char *text, bool *field, struct err *err)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
        return err_set(err, ERR_INVALID_CONFIG, "must be true or false");
    }
    *field = text[0] == 't';
    return 0;
}

static bool numbers_hold(const struct conf_numbers *numbers, uint64_t value)
{
    for (uint32_t i = 0; i < numbers->count; i++) {
        if (numbers->values[i] == value) {
            return true;
        }
    }
    return false;
}

int value_number_add(const struct schema_row *row, const char *text, struct conf_numbers *field,
                     struct err *err)
{
    char first_text[24];
    uint64_t first;
    uint64_t last;
    const char *dash = strchr(text, '-');
    size_t first_len = dash == NULL ? strlen(text) : (size_t)(dash - text);
    if (first_len < sizeof(first_text)) {
        memcpy(first_text, text, first_len);
        first_text[first_len] = '\0';
    }
    if (first_len >= sizeof(first_text) || count_read(first_text, &first) != 0 ||
        count_read(dash == NULL ? first_text : dash + 1, &last) != 0 || last < first || last > row->max) {
        return err_set(err, ERR_INVALID_CONFIG,
                       "must be numbers or ranges up to %" PRIu64 ", such as 4 or 0-3", row->max);
    }
    for (uint64_t value = first; value <= last; value++) {
        if (numbers_hold(field, value)) {
            return err_set(err, ERR_INVALID_CONFIG, "must not name %" PRIu64 " twice", value);
        }
        if (field->count == CONF_NUMBERS_MAX) {
            return err_set(err, ERR_INVALID_CONFIG, "must have at most %u members", CONF_NUMBERS_MAX);
        }
        field->values[field->count++] = (uint32_t)value;
    }
    return 0;
}

/* "0-3,8" or "auto" in one scalar. */
static int numbers_read(const struct schema_row *row, const char *text, struct conf_numbers *field,
                        struct err *err)
{
    struct conf_numbers numbers = {.is_auto = false};
    if (strcmp(text, "auto") == 0 && (row->flags & SCHEMA_AUTO) != 0) {
        numbers.is_auto = true;
        *field = numbers;
        return 0;
    }
    const char *at = text;
    for (;;) {
        char member[48];
        size_t len = strcspn(at, ",");
        if (len >= sizeof(member)) {
            len = sizeof(member) - 1; /* too long to be a range of numbers: refused below */
        }
        memcpy(member, at, len);
        member[len] = '\0';
        int rc = value_number_add(row, member, &numbers, err);
        if (rc != 0) {
            return rc;
        }
        at += len;
        if (*at == '\0') {
            break;
        }
        at += 1 + strspn(at + 1, " ");
    }
    *field = numbers;
    return 0;
}

int value_read(const struct schema_row *row, const char *text, void *field, struct err *err)
{
    uint64_t value = 0;
    int rc;
    switch (row->type) {
    case SCHEMA_TEXT:
        return text_read(row, text, field, err);
    case SCHEMA_SIZE:
    case SCHEMA_RATE:
    case SCHEMA_DURATION:
        return quantity_read(row, text, field, err);
    case SCHEMA_COUNT:
        rc = quantity_read(row, text, &value, err);
        if (rc == 0) {
            *(uint32_t *)field = (uint32_t)value;
        }
        return rc;
    case SCHEMA_BOOL:
        return bool_read(text, field, err);
    case SCHEMA_CHOICE:
        return choice_read(row, text, field, err);
    case SCHEMA_ADDRESS:
        if (value_address_read(text, field) != 0) {
            return err_set(
                err, ERR_INVALID_CONFIG,
                "must be a numeric address and a port from 1 to 65535: 127.0.0.1:9000, [::1]:9000 or *:9000");
        }
        return 0;
    case SCHEMA_NUMBERS:
        return numbers_read(row, text, field, err);
    case SCHEMA_SECTION:
    case SCHEMA_LIST:
        break;
    }
    CHECK(!"value_read: the row holds no value");
    return ERR_INVALID_CONFIG;
}

/* ---- writing --------------------------------------------------------------------------------------------------------- */

static void numbers_write(const struct conf_numbers *numbers, char to[VALUE_TEXT_MAX])
{
    to[0] = '\0';
    if (numbers->is_auto) {
        snprintf(to, VALUE_TEXT_MAX, "auto");
        return;
    }
    size_t len = 0;
    for (uint32_t i = 0; i < numbers->count; i++) {
        len +=
            (size_t)snprintf(to + len, VALUE_TEXT_MAX - len, "%s%u", i == 0 ? "" : ",", numbers->values[i]);
        CHECK(len < VALUE_TEXT_MAX);
    }
}

void value_write(const struct schema_row *row, const void *field, char to[VALUE_TEXT_MAX])
{
    to[0] = '\0';
    switch (row->type) {
    case SCHEMA_TEXT:
        snprintf(to, VALUE_TEXT_MAX, "%s", (const char *)field);
        return;
    case SCHEMA_SIZE:
    case SCHEMA_RATE:
    case SCHEMA_DURATION:
        quantity_write(row->type, *(const uint64_t *)field, to, VALUE_TEXT_MAX);
        return;
    case SCHEMA_COUNT:
        snprintf(to, VALUE_TEXT_MAX, "%" PRIu32, *(const uint32_t *)field);
        return;
    case SCHEMA_BOOL:
        snprintf(to, VALUE_TEXT_MAX, "%s", *(const bool *)field ? "true" : "false");
        return;
    case SCHEMA_CHOICE:
        for (const struct schema_choice *choice = row->choices; choice->text != NULL; choice++) {
            if (choice->value == *(const unsigned *)field) {
                snprintf(to, VALUE_TEXT_MAX, "%s", choice->text);
            }
        }
        return;
    case SCHEMA_ADDRESS:
        snprintf(to, VALUE_TEXT_MAX, "%s", ((const struct conf_address *)field)->text);
        return;
    case SCHEMA_NUMBERS:
        numbers_write(field, to);
        return;
    case SCHEMA_SECTION:
    case SCHEMA_LIST:
        break;
    }
    CHECK(!"value_write: the row holds no value");
}
