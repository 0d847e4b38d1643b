/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parse: YAML events to a struct conf, by the schema. libyaml does the tokenising; this file owns what may stand where, and the
 * messages. It must not know any key by name.
 *
 * Invariants:
 * 1. The stack of open maps and lists is at most FRAMES_MAX deep; what is nested deeper is refused, never recursed into.
 * 2. Every field that was written has a place (line and column), so that checks over several keys can point at it.
 * 3. The first mistake ends the parse; nothing is allocated on failure.
 *
 *   frame_open_map ----> MAP  --scalar--> take_key, then take_scalar
 *                         |  \--map-----> frame_open_map      (the key is a section)
 *                         |   \-list----> frame_open_list     (the key is a list of sections, or of numbers)
 *   frame_close <---------+---- end of map: required keys are looked for
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "base/bytes.h"
#include "base/check.h"
#include "conf/schema_int.h"

#define FRAMES_MAX 6U
#define FILE_SIZE_MAX (1U * MIB)
#define PLACES_MAX 2048U
#define PATH_TEXT_MAX 160U
#define SHOWN_MAX 80U /* bytes of a value shown in a message */

enum frame_kind { FRAME_MAP, FRAME_LIST, FRAME_NUMBERS };

struct frame {
    enum frame_kind kind;
    const struct schema_row *row; /* the section or list; NULL at the top level */
    uint8_t *base;                /* instance that offsets are relative to */
    void *field;                  /* LIST: its array; NUMBERS: the set */
    char path[PATH_TEXT_MAX];     /* as a user would write it: "listeners[1].limits" */
    yaml_mark_t mark;
    int key; /* MAP: row of the key that waits for its value, or -1 */
    yaml_mark_t key_mark;
    uint64_t seen[SCHEMA_ROWS_MAX / 64];
    uint32_t seen_line[SCHEMA_ROWS_MAX];
};

/* Where a field, or a section's first byte, was written. */
struct place_entry {
    const void *field;
    bool is_section;
    uint32_t line;
    uint32_t column;
    const struct schema_row *row;
    char path[PATH_TEXT_MAX];
    char shown[SHOWN_MAX + 4];
};

struct conf_place {
    const char *file;
    uint32_t count;
    struct place_entry entries[PLACES_MAX];
};

struct parser {
    struct conf *conf;
    struct conf_place place;
    yaml_parser_t yaml;
    uint32_t depth;
    struct frame frames[FRAMES_MAX];
    struct err *err;
};

/* ---- messages ---------------------------------------------------------------------------------------------------------- */

/* A value as it may be shown: cut, control characters replaced. */
static void shown_write(const char *text, size_t len, char to[SHOWN_MAX + 4])
{
    size_t used = 0;
    for (size_t i = 0; i < len && used < SHOWN_MAX; i++) {
        to[used++] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    }
    memcpy(to + used, len > SHOWN_MAX ? "..." : "", len > SHOWN_MAX ? 4 : 1);
}

static int fail_at(struct parser *parser, yaml_mark_t mark, const char *path, const char *shown,
                   const char *sentence)
{
    return err_set(parser->err, ERR_INVALID_CONFIG, "%s:%zu:%zu: %s%s%s%s%s", parser->place.file,
                   mark.line + 1, mark.column + 1, path, path[0] == '\0' ? "" : ": ", shown,
                   shown[0] == '\0' ? "" : ": ", sentence);
}

static void path_join(char to[PATH_TEXT_MAX], const char *parent, const char *leaf, size_t leaf_len)
{
    snprintf(to, PATH_TEXT_MAX, "%.*s%s%.*s", (int)(PATH_TEXT_MAX - 70), parent, parent[0] == '\0' ? "" : ".",
             (int)(leaf_len > 64 ? 64 : leaf_len), leaf);
}

/* The path of a row's key inside a frame, without the "[]" of a list. */
static void path_of_key(char to[PATH_TEXT_MAX], const struct frame *frame, const struct schema_row *row)
{
    size_t len = strlen(schema_leaf(row));
    path_join(to, frame->path, schema_leaf(row), row->type == SCHEMA_LIST ? len - 2 : len);
}

/* ---- places ------------------------------------------------------------------------------------------------------------ */

static int place_add(struct parser *parser, const struct place_entry *entry)
{
    struct conf_place *place = &parser->place;
    if (place->count == PLACES_MAX) {
        return err_set(parser->err, ERR_INVALID_CONFIG, "%s:%u:%u: too many keys: at most %u are read",
                       place->file, entry->line, entry->column, PLACES_MAX);
    }
    place->entries[place->count++] = *entry;
    return 0;
}

static const struct place_entry *place_find(const struct conf_place *place, const void *field,
                                            bool is_section)
{
    for (uint32_t i = 0; i < place->count; i++) {
        if (place->entries[i].field == field && place->entries[i].is_section == is_section) {
            return &place->entries[i];
        }
    }
    return NULL;
}

bool place_is_given(const struct conf_place *place, const void *field)
{
    return place_find(place, field, false) != NULL;
}

/* The innermost section whose instance holds the field: the last one opened at or before its address. */
static const struct place_entry *place_find_section(const struct conf_place *place, const void *field)
{
    const struct place_entry *found = NULL;
    for (uint32_t i = 0; i < place->count; i++) {
        const struct place_entry *entry = &place->entries[i];
        if (entry->is_section && (uintptr_t)entry->field <= (uintptr_t)field &&
            (found == NULL || (uintptr_t)entry->field >= (uintptr_t)found->field)) {
            found = entry;
        }
    }
    return found;
}

int place_error(const struct conf_place *place, const void *field, struct err *err, const char *format, ...)
{
    char sentence[700];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    const struct place_entry *entry = place_find(place, field, false);
    if (entry == NULL) {
        entry = place_find_section(place, field);
    }
    CHECK(entry != NULL);
    return err_set(err, ERR_INVALID_CONFIG, "%s:%u:%u: %s: %s%s%s", place->file, entry->line, entry->column,
                   entry->path, entry->shown, entry->shown[0] == '\0' ? "" : ": ", sentence);
}

int place_missing(const struct conf_place *place, const void *section, const char *key, struct err *err,
                  const char *format, ...)
{
    char sentence[700];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    const struct place_entry *entry = place_find(place, section, true);
    CHECK(entry != NULL);
    return err_set(err, ERR_INVALID_CONFIG, "%s:%u:%u: %s.%s: %s", place->file, entry->line, entry->column,
                   entry->path, key, sentence);
}

/* ---- defaults ---------------------------------------------------------------------------------------------------------- */

/* Fills the defaults of every row whose name begins with `prefix` and which is not inside a further list. */
static void defaults_apply(uint8_t *base, const char *prefix)
{
    size_t prefix_len = strlen(prefix);
    for (size_t i = 0; i < schema_row_count; i++) {
        const struct schema_row *row = &schema_rows[i];
        if (strncmp(row->name, prefix, prefix_len) != 0 || strstr(row->name + prefix_len, "[]") != NULL ||
            row->default_text == NULL) {
            continue;
        }
        struct err err;
        int rc = value_read(row, row->default_text, base + row->offset, &err);
        CHECK(rc == 0); /* a default that its own row refuses is a mistake in the table */
    }
}

/* ---- frames ------------------------------------------------------------------------------------------------------------ */

static struct frame *frame_top(struct parser *parser)
{
    return parser->depth == 0 ? NULL : &parser->frames[parser->depth - 1];
}

/* The new top frame; NULL when the file is nested too deeply, which `err` then says. */
static struct frame *frame_push(struct parser *parser, enum frame_kind kind, const struct schema_row *row,
                                const char *path, yaml_mark_t mark)
{
    if (parser->depth == FRAMES_MAX) {
        fail_at(parser, mark, path, "", "is nested too deeply");
        return NULL;
    }
    struct frame *frame = &parser->frames[parser->depth++];
    memset(frame, 0, sizeof(*frame));
    frame->kind = kind;
    frame->row = row;
    frame->mark = mark;
    frame->key = -1;
    snprintf(frame->path, sizeof(frame->path), "%s", path);
    return frame;
}

static int section_place(struct parser *parser, const struct frame *frame, const void *field)
{
    struct place_entry entry = {.field = field,
                                .is_section = true,
                                .line = (uint32_t)frame->mark.line + 1,
                                .column = (uint32_t)frame->mark.column + 1,
                                .row = frame->row};
    snprintf(entry.path, sizeof(entry.path), "%s", frame->path[0] == '\0' ? "file" : frame->path);
    return place_add(parser, &entry);
}

/* Address of the first field of a section, by which place_error finds the section of a key that was not given. */
static void *section_field(const struct frame *frame)
{
    for (size_t i = 0; i < schema_row_count; i++) {
        if (schema_is_child(&schema_rows[i], frame->row->name) && schema_rows[i].type != SCHEMA_LIST) {
            return frame->base + schema_rows[i].offset;
        }
    }
    return frame->base;
}

/* The element that a list's next map fills; NULL when the list is full. */
static uint8_t *list_next(struct frame *list)
{
    uint32_t *count = (uint32_t *)(void *)(list->base + list->row->count_offset);
    if (*count == list->row->max) {
        return NULL;
    }
    uint8_t *element = (uint8_t *)list->field + (size_t)*count * list->row->size;
    defaults_apply(element, list->row->name);
    *count += 1;
    return element;
}

static int frame_open_element(struct parser *parser, struct frame *list, yaml_mark_t mark)
{
    uint32_t index = *(uint32_t *)(void *)(list->base + list->row->count_offset);
    char path[PATH_TEXT_MAX];
    snprintf(path, sizeof(path), "%.*s[%u]", (int)(PATH_TEXT_MAX - 16), list->path, index);
    uint8_t *element = list_next(list);
    if (element == NULL) {
        char sentence[64];
        snprintf(sentence, sizeof(sentence), "at most %u are allowed", (unsigned)list->row->max);
        return fail_at(parser, mark, list->path, "", sentence);
    }
    struct frame *frame = frame_push(parser, FRAME_MAP, list->row, path, mark);
    if (frame == NULL) {
        return ERR_INVALID_CONFIG;
    }
    frame->base = element;
    return section_place(parser, frame, element);
}

static const char *type_word(const struct schema_row *row)
{
    switch (row->type) {
    case SCHEMA_SECTION:
        return "must be a map of keys";
    case SCHEMA_LIST:
        return "must be a list of maps";
    case SCHEMA_NUMBERS:
        return "must be a number, a range or a list of them";
    default:
        return "must be a single value";
    }
}

static int frame_open_map(struct parser *parser, const yaml_event_t *event)
{
    struct frame *top = frame_top(parser);
    yaml_mark_t mark = event->start_mark;
    if (top == NULL) {
        struct frame *root = frame_push(parser, FRAME_MAP, NULL, "", mark);
        CHECK(root != NULL); /* the first of FRAMES_MAX */
        root->base = (uint8_t *)parser->conf;
        return section_place(parser, root, parser->conf);
    }
    if (top->kind == FRAME_LIST) {
        return frame_open_element(parser, top, mark);
    }
    if (top->kind == FRAME_NUMBERS) {
        return fail_at(parser, mark, top->path, "", type_word(top->row));
    }
    if (top->key < 0) {
        return fail_at(parser, mark, top->path, "", "a map cannot be a key");
    }
    const struct schema_row *row = &schema_rows[top->key];
    char path[PATH_TEXT_MAX];
    path_of_key(path, top, row);
    if (row->type != SCHEMA_SECTION) {
        return fail_at(parser, mark, path, "", type_word(row));
    }
    top->key = -1;
    struct frame *frame = frame_push(parser, FRAME_MAP, row, path, mark);
    if (frame == NULL) {
        return ERR_INVALID_CONFIG;
    }
    frame->base = top->base;
    return section_place(parser, frame, section_field(frame));
}

static int frame_open_list(struct parser *parser, const yaml_event_t *event)
{
    struct frame *top = frame_top(parser);
    yaml_mark_t mark = event->start_mark;
    if (top == NULL) {
        return fail_at(parser, mark, "", "",
                       "the file must be a map with the sections node, store, listeners and admin");
    }
    if (top->kind != FRAME_MAP || top->key < 0) {
        return fail_at(parser, mark, top->path, "",
                       top->kind == FRAME_MAP ? "a list cannot be a key" : type_word(top->row));
    }
    const struct schema_row *row = &schema_rows[top->key];
    char path[PATH_TEXT_MAX];
    path_of_key(path, top, row);
    if (row->type != SCHEMA_LIST && row->type != SCHEMA_NUMBERS) {
        return fail_at(parser, mark, path, "", type_word(row));
    }
    top->key = -1;
    struct frame *frame =
        frame_push(parser, row->type == SCHEMA_LIST ? FRAME_LIST : FRAME_NUMBERS, row, path, mark);
    if (frame == NULL) {
        return ERR_INVALID_CONFIG;
    }
    frame->base = top->base;
    frame->field = top->base + row->offset;
    struct place_entry entry = {.field = frame->field,
                                .line = (uint32_t)mark.line + 1,
                                .column = (uint32_t)mark.column + 1,
                                .row = row};
    snprintf(entry.path, sizeof(entry.path), "%s", path);
    return row->type == SCHEMA_NUMBERS ? place_add(parser, &entry) : 0;
}

/* ---- scalars ----------------------------------------------------------------------------------------------------------- */

/* The value of a key that ends the parse, for the message: the next event, when that is a scalar. */
static void shown_ahead(struct parser *parser, char to[SHOWN_MAX + 4])
{
    yaml_event_t event;
    to[0] = '\0';
    if (!yaml_parser_parse(&parser->yaml, &event)) {
        return; /* not YAML from here on; the unknown key stands before that and is reported */
    }
    if (event.type == YAML_SCALAR_EVENT) {
        shown_write((const char *)event.data.scalar.value, event.data.scalar.length, to);
    }
    yaml_event_delete(&event);
}

static int unknown_key(struct parser *parser, const struct frame *top, const char *key, const char *path,
                       yaml_mark_t mark)
{
    char sentence[700];
    char shown[SHOWN_MAX + 4];
    const char *parent = top->row == NULL ? "" : top->row->name;
    const char *nearest = schema_nearest(parent, key);
    size_t len = nearest == NULL ? (size_t)snprintf(sentence, sizeof(sentence), "unknown key; allowed here:")
                                 : (size_t)snprintf(sentence, sizeof(sentence),
                                                    "unknown key; did you mean %s? Allowed here:", nearest);
    const char *comma = "";
    for (size_t i = 0; i < schema_row_count && len < sizeof(sentence); i++) {
        const struct schema_row *row = &schema_rows[i];
        if (schema_is_child(row, parent)) {
            const char *leaf = schema_leaf(row);
            size_t leaf_len = strlen(leaf) - (row->type == SCHEMA_LIST ? 2 : 0); /* without "[]" */
            len += (size_t)snprintf(sentence + len, sizeof(sentence) - len, "%s %.*s", comma, (int)leaf_len,
                                    leaf);
            comma = ",";
        }
    }
    shown_ahead(parser, shown);
    return fail_at(parser, mark, path, shown, sentence);
}

static int take_key(struct parser *parser, struct frame *top, const yaml_event_t *event)
{
    const char *key = (const char *)event->data.scalar.value;
    size_t key_len = event->data.scalar.length;
    char shown[SHOWN_MAX + 4];
    char path[PATH_TEXT_MAX];
    shown_write(key, key_len, shown);
    path_join(path, top->path, shown, strlen(shown));
    int index = schema_find(top->row == NULL ? "" : top->row->name, key, key_len);
    if (index < 0) {
        return unknown_key(parser, top, shown, path, event->start_mark);
    }
    if ((top->seen[index / 64] >> (index % 64) & 1U) != 0) {
        char sentence[64];
        snprintf(sentence, sizeof(sentence), "given twice; the first is on line %u", top->seen_line[index]);
        return fail_at(parser, event->start_mark, path, "", sentence);
    }
    top->seen[index / 64] |= 1ULL << (index % 64);
    top->seen_line[index] = (uint32_t)event->start_mark.line + 1;
    top->key = index;
    top->key_mark = event->start_mark;
    return 0;
}

/* Stores a scalar into the field of `row`, and notes where it was written. */
static int store_scalar(struct parser *parser, const struct schema_row *row, const char *path, void *field,
                        const yaml_event_t *event, bool is_member)
{
    const char *text = (const char *)event->data.scalar.value;
    struct place_entry entry = {.field = field,
                                .line = (uint32_t)event->start_mark.line + 1,
                                .column = (uint32_t)event->start_mark.column + 1,
                                .row = row};
    struct err reason = {""};
    snprintf(entry.path, sizeof(entry.path), "%s", path);
    shown_write(text, event->data.scalar.length, entry.shown);
    bool is_plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (is_plain && (event->data.scalar.length == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0)) {
        return fail_at(parser, event->start_mark, path, "",
                       "has no value; leave the key out to get its default");
    }
    if (strlen(text) != event->data.scalar.length) {
        return fail_at(parser, event->start_mark, path, entry.shown, "must not hold a NUL byte");
    }
    int rc = is_member ? value_number_add(row, text, field, &reason) : value_read(row, text, field, &reason);
    if (rc != 0) {
        return fail_at(parser, event->start_mark, path, entry.shown, reason.text);
    }
    return is_member ? 0 : place_add(parser, &entry);
}

static int take_scalar(struct parser *parser, const yaml_event_t *event)
{
    struct frame *top = frame_top(parser);
    if (top == NULL) {
        return fail_at(parser, event->start_mark, "", "",
                       "the file must be a map with the sections node, store, listeners and admin");
    }
    if (top->kind == FRAME_NUMBERS) {
        return store_scalar(parser, top->row, top->path, top->field, event, true);
    }
    char shown[SHOWN_MAX + 4];
    shown_write((const char *)event->data.scalar.value, event->data.scalar.length, shown);
    if (top->kind == FRAME_LIST) {
        return fail_at(parser, event->start_mark, top->path, shown, type_word(top->row));
    }
    if (top->key < 0) {
        return take_key(parser, top, event);
    }
    const struct schema_row *row = &schema_rows[top->key];
    char path[PATH_TEXT_MAX];
    path_of_key(path, top, row);
    if (row->type == SCHEMA_SECTION || row->type == SCHEMA_LIST) {
        return fail_at(parser, event->start_mark, path, shown, type_word(row));
    }
    top->key = -1;
    return store_scalar(parser, row, path, top->base + row->offset, event, false);
}

/* ---- ends -------------------------------------------------------------------------------------------------------------- */

/* A section that is itself required and was left out is reported where its keys would have stood. */
static int required_check(struct parser *parser, const struct frame *frame)
{
    const char *parent = frame->row == NULL ? "" : frame->row->name;
    for (size_t i = 0; i < schema_row_count; i++) {
        const struct schema_row *row = &schema_rows[i];
        if ((row->flags & SCHEMA_REQUIRED) == 0 || !schema_is_child(row, parent) ||
            (frame->seen[i / 64] >> (i % 64) & 1U) != 0) {
            continue;
        }
        char path[PATH_TEXT_MAX];
        char sentence[512];
        path_of_key(path, frame, row);
        snprintf(sentence, sizeof(sentence), "is missing and has no default: %s", row->help);
        return fail_at(parser, frame->mark, path, "", sentence);
    }
    return 0;
}

static int frame_close(struct parser *parser)
{
    struct frame *frame = frame_top(parser);
    CHECK(frame != NULL);
    int rc = 0;
    if (frame->kind == FRAME_MAP) {
        rc = required_check(parser, frame);
    } else if (frame->kind == FRAME_LIST &&
               *(uint32_t *)(void *)(frame->base + frame->row->count_offset) < frame->row->min) {
        rc = fail_at(parser, frame->mark, frame->path, "", "must have at least one member");
    } else if (frame->kind == FRAME_NUMBERS && ((struct conf_numbers *)frame->field)->count == 0) {
        rc = fail_at(parser, frame->mark, frame->path, "", "must have at least one member");
    }
    parser->depth--;
    return rc;
}

static int take_event(struct parser *parser, const yaml_event_t *event, uint32_t *documents)
{
    const struct frame *top = frame_top(parser);
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        *documents += 1;
        return *documents == 1
                   ? 0
                   : fail_at(parser, event->start_mark, "", "", "the file must hold one YAML document");
    case YAML_ALIAS_EVENT:
        return fail_at(parser, event->start_mark, top == NULL ? "" : top->path, "",
                       "YAML aliases are not supported; write the value out");
    case YAML_SCALAR_EVENT:
        return take_scalar(parser, event);
    case YAML_MAPPING_START_EVENT:
        return frame_open_map(parser, event);
    case YAML_SEQUENCE_START_EVENT:
        return frame_open_list(parser, event);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        return frame_close(parser);
    default:
        return 0;
    }
}

/* libyaml's message, with the place it knows. */
static int yaml_fail(struct parser *parser)
{
    const yaml_parser_t *yaml = &parser->yaml;
    if (yaml->error == YAML_READER_ERROR) {
        return err_set(parser->err, ERR_INVALID_CONFIG, "%s: byte %zu: not YAML: %s", parser->place.file,
                       yaml->problem_offset, yaml->problem == NULL ? "unreadable" : yaml->problem);
    }
    /* libyaml's words for a tab (and for '@', '`', '%') before a key. */
    bool may_be_tab = yaml->problem != NULL && strstr(yaml->problem, "cannot start any token") != NULL;
    return err_set(parser->err, ERR_INVALID_CONFIG, "%s:%zu:%zu: not YAML: %s%s", parser->place.file,
                   yaml->problem_mark.line + 1, yaml->problem_mark.column + 1,
                   yaml->problem == NULL ? "out of memory" : yaml->problem,
                   may_be_tab ? " (if it is a tab: indent with spaces)" : "");
}

static int parse_events(struct parser *parser)
{
    uint32_t documents = 0;
    for (;;) { /* bounded: each turn consumes input, the end of which gives STREAM_END or an error */
        yaml_event_t event;
        if (!yaml_parser_parse(&parser->yaml, &event)) {
            return yaml_fail(parser);
        }
        bool is_end = event.type == YAML_STREAM_END_EVENT;
        int rc = take_event(parser, &event, &documents);
        yaml_event_delete(&event);
        if (rc != 0) {
            return rc;
        }
        if (is_end) {
            break;
        }
    }
    if (documents == 0) {
        return err_set(parser->err, ERR_INVALID_CONFIG,
                       "%s: is empty: the sections node, store and listeners are needed", parser->place.file);
    }
    return 0;
}

/* What only the host can tell of a device is found later, and points at the same place in the file as other messages. */
static void devices_place(struct conf *conf, const struct conf_place *place)
{
    for (uint32_t i = 0; i < conf->store.device_count; i++) {
        const struct place_entry *entry = place_find(place, conf->store.devices[i].path, false);
        CHECK(entry != NULL); /* the key is required */
        conf->store.devices[i].line = entry->line;
        conf->store.devices[i].column = entry->column;
    }
}

int conf_parse(const char *name, const char *text, size_t len, struct conf **out, struct err *err)
{
    struct conf *conf = calloc(1, sizeof(*conf));
    struct parser *parser = calloc(1, sizeof(*parser));
    int rc = -ENOMEM;
    if (conf == NULL || parser == NULL || !yaml_parser_initialize(&parser->yaml)) {
        err_set(err, rc, "%s: no memory to read the configuration", name);
        goto free_memory;
    }
    snprintf(conf->path, sizeof(conf->path), "%s", name);
    defaults_apply((uint8_t *)conf, "");
    parser->conf = conf;
    parser->err = err;
    parser->place.file = name;
    /* The mark that some editors write first would shift the first line's keys out of their map. */
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        len -= 3;
    }
    yaml_parser_set_encoding(&parser->yaml, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser->yaml, (const unsigned char *)text, len);
    rc = parse_events(parser);
    if (rc == 0) {
        rc = check_whole(conf, &parser->place, err);
    }
    if (rc == 0) {
        devices_place(conf, &parser->place);
    }
    yaml_parser_delete(&parser->yaml);
    if (rc == 0) {
        *out = conf;
        conf = NULL;
    }
free_memory:
    free(parser);
    free(conf);
    return rc;
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */

static int file_read(int fd, char *text, size_t size, size_t *len)
{
    size_t used = 0;
    while (used < size) {
        ssize_t got = read(fd, text + used, size - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -errno;
        }
        if (got == 0) {
            break;
        }
        used += (size_t)got;
    }
    *len = used;
    return 0;
}

int conf_load(const char *path, struct conf **out, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int code = -errno;
        return err_set(err, code, "%s: cannot be opened: %s; name the configuration with --config FILE", path,
                       err_text(code));
    }
    size_t len = 0;
    char *text = malloc(FILE_SIZE_MAX + 1);
    int rc = text == NULL ? -ENOMEM : file_read(fd, text, FILE_SIZE_MAX + 1, &len);
    close(fd);
    if (rc != 0) {
        err_set(err, rc, "%s: cannot be read: %s", path, err_text(rc));
    } else if (len > FILE_SIZE_MAX) {
        rc = err_set(err, ERR_INVALID_CONFIG, "%s: is larger than 1MiB, so it is no configuration", path);
    } else {
        rc = conf_parse(path, text, len, out, err);
    }
    free(text);
    return rc;
}

void conf_free(struct conf *conf)
{
    free(conf);
}
