/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schema: the one table of configuration keys and what the parser, the printer and the checks share. Internal to conf/ and its
 * tests.
 *
 * A row's name is its full path; "[]" stands for the index of a list of sections. Offsets are relative to the instance a
 * row belongs to: struct conf for top-level sections, the list element for what is below a list.
 */
#ifndef CONF_SCHEMA_INT_H
#define CONF_SCHEMA_INT_H

#include <stddef.h>

#include "conf/conf.h"

enum schema_type {
    SCHEMA_SECTION,  /* a map of keys */
    SCHEMA_LIST,     /* a list of sections; offset of the array, count_offset of its counter */
    SCHEMA_TEXT,     /* char[size] */
    SCHEMA_SIZE,     /* uint64_t, bytes */
    SCHEMA_RATE,     /* uint64_t, bytes per second */
    SCHEMA_DURATION, /* uint64_t, nanoseconds */
    SCHEMA_COUNT,    /* uint32_t */
    SCHEMA_BOOL,     /* bool */
    SCHEMA_CHOICE,   /* enum (unsigned int), by `choices` */
    SCHEMA_ADDRESS,  /* struct conf_address */
    SCHEMA_NUMBERS   /* struct conf_numbers */
};

#define SCHEMA_REQUIRED 1U /* must be given where its section is given */
#define SCHEMA_POWER_OF_TWO 2U
#define SCHEMA_ZERO 4U  /* 0 is allowed although it is below min */
#define SCHEMA_EMPTY 8U /* text may be empty */
#define SCHEMA_AUTO 16U /* numbers: the word auto is allowed */

struct schema_choice {
    const char *text;
    unsigned value;
};

/* Looks at a text value; NULL when it is fine, otherwise what is allowed. */
typedef const char *(*schema_check_fn)(const char *text);

struct schema_row {
    const char *name;
    enum schema_type type;
    size_t offset;
    size_t size;         /* text: bytes of the field with its NUL; list: bytes of one element */
    size_t count_offset; /* list */
    uint64_t min;        /* in base units; list: fewest and most elements */
    uint64_t max;
    const char *default_text; /* NULL: none (zero, empty) */
    unsigned flags;
    const struct schema_choice *choices; /* ends with a NULL text */
    schema_check_fn check;
    const char *zero_means; /* for SCHEMA_ZERO: what 0 stands for */
    const char *help;
};

extern const struct schema_row schema_rows[];
extern const size_t schema_row_count;
#define SCHEMA_ROWS_MAX 128U

/* Index of the row whose name is parent + "." + key (parent "" : top level), or -1. A list's name carries "[]". */
int schema_find(const char *parent, const char *key, size_t key_len);
/* The row's last name part ("rx_buffer_size"), and the length of its parent's name (0 at the top level). */
const char *schema_leaf(const struct schema_row *row);
size_t schema_parent_len(const struct schema_row *row);
bool schema_is_child(const struct schema_row *row, const char *parent);
/* The child of `parent` whose name is nearest to `key`, or NULL when none is near. */
const char *schema_nearest(const char *parent, const char *key);

/* ---- values (value.c) ------------------------------------------------------------------------------------------------ */

/* Reads `text` into the field at `field`. 0; on failure ERR_INVALID_CONFIG and `err` holds what is allowed (no position, no
 * key). Not for sections and lists. */
int value_read(const struct schema_row *row, const char *text, void *field, struct err *err);
/* Adds one member ("3" or "0-7") to a set of numbers. */
int value_number_add(const struct schema_row *row, const char *text, struct conf_numbers *field,
                     struct err *err);
/* Writes the field as it would be written in the file; empty text when it is unset. */
#define VALUE_TEXT_MAX 4400U
void value_write(const struct schema_row *row, const void *field, char to[VALUE_TEXT_MAX]);
/* "from 4KiB to 1MiB", for messages and the reference. */
void value_range_text(const struct schema_row *row, char *to, size_t size);
int value_duration_read(const char *text, uint64_t *out);
/* Numeric address and port. 0 or -EINVAL. */
int value_address_read(const char *text, struct conf_address *out);

/* ---- places (parse.c), for checks over several keys --------------------------------------------------------------------- */

struct conf_place; /* where each field was written */
/* Reports "file:line:column: key: value: sentence" for the place where `field` was written (or its section, when it was not).
 * Returns ERR_INVALID_CONFIG. */
__attribute__((format(printf, 4, 5))) int place_error(const struct conf_place *place, const void *field,
                                                      struct err *err, const char *format, ...);
/* The same for a key of a section (the list's element, or the section's first field) that should have been there. */
__attribute__((format(printf, 5, 6))) int place_missing(const struct conf_place *place, const void *section,
                                                        const char *key, struct err *err, const char *format,
                                                        ...);
/* True when the field was given in the file. */
bool place_is_given(const struct conf_place *place, const void *field);

/* All checks over several keys (check.c). */
int check_whole(const struct conf *conf, const struct conf_place *place, struct err *err);

#endif
