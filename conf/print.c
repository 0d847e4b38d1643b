/* SPDX-License-Identifier: Apache-2.0 */
/* print: the effective configuration as YAML, the reference of all keys as Markdown, and the words of enumerations. Pure. */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "conf/schema_int.h"

/* ---- words ------------------------------------------------------------------------------------------------------------- */

static const char *choice_text(const char *name, unsigned value)
{
    for (size_t i = 0; i < schema_row_count; i++) {
        if (strcmp(schema_rows[i].name, name) == 0) {
            for (const struct schema_choice *choice = schema_rows[i].choices; choice->text != NULL;
                 choice++) {
                if (choice->value == value) {
                    return choice->text;
                }
            }
        }
    }
    CHECK(!"choice_text: no such value");
    return "";
}

const char *conf_protocol_text(enum conf_protocol value)
{
    return choice_text("listeners[].protocol", value);
}

const char *conf_receive_text(enum conf_receive value)
{
    return choice_text("listeners[].receive", value);
}

const char *conf_access_text(enum conf_access value)
{
    return choice_text("listeners[].access", value);
}

const char *conf_etag_text(enum conf_etag value)
{
    return choice_text("listeners[].etag", value);
}

const char *conf_hugepages_text(enum arena_pages value)
{
    return choice_text("listeners[].hugepages", value);
}

/* ---- the effective configuration --------------------------------------------------------------------------------------- */

static void quoted_print(const char *text, FILE *to)
{
    fputc('"', to);
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            fputc('\\', to);
        }
        fputc(*at, to);
    }
    fputc('"', to);
}

/* Keys that do not belong to the protocol would be refused when the output is loaded again. */
static bool is_foreign(const struct schema_row *row, const struct conf_listener *listener)
{
    if (listener == NULL) {
        return false;
    }
    const char *leaf = schema_leaf(row);
    if (listener->protocol == CONF_PROTOCOL_RAW) {
        return strcmp(leaf, "region") == 0 || strcmp(leaf, "virtual_host_domain") == 0;
    }
    return false;
}

/* Prints the values directly below `parent`, each on its line. Unset texts, numbers and addresses are left out. */
static void values_print(const char *parent, const void *base, const struct conf_listener *listener,
                         const char *indent, bool is_element, FILE *to)
{
    char text[VALUE_TEXT_MAX];
    bool is_first = is_element;
    for (size_t i = 0; i < schema_row_count; i++) {
        const struct schema_row *row = &schema_rows[i];
        if (!schema_is_child(row, parent) || row->type == SCHEMA_SECTION || row->type == SCHEMA_LIST ||
            is_foreign(row, listener)) {
            continue;
        }
        value_write(row, (const uint8_t *)base + row->offset, text);
        if (text[0] == '\0') {
            continue;
        }
        fprintf(to, "%s%s%s: ", indent, is_first ? "- " : is_element ? "  " : "", schema_leaf(row));
        is_first = false;
        if (row->type == SCHEMA_TEXT || row->type == SCHEMA_ADDRESS || row->type == SCHEMA_NUMBERS) {
            quoted_print(text, to);
        } else {
            fputs(text, to);
        }
        fputc('\n', to);
    }
}

static void listener_print(const struct conf_listener *listener, FILE *to)
{
    values_print("listeners[]", listener, listener, "  ", true, to);
    if (listener->tls.certificate[0] != '\0') {
        fputs("    tls:\n", to);
        values_print("listeners[].tls", listener, NULL, "      ", false, to);
    }
    fputs("    limits:\n", to);
    values_print("listeners[].limits", listener, NULL, "      ", false, to);
}

void conf_print(const struct conf *conf, FILE *to)
{
    fputs("node:\n", to);
    values_print("node", conf, NULL, "  ", false, to);
    fputs("store:\n", to);
    values_print("store", conf, NULL, "  ", false, to);
    fputs("  devices:\n", to);
    for (uint32_t i = 0; i < conf->store.device_count; i++) {
        values_print("store.devices[]", &conf->store.devices[i], NULL, "  ", true, to);
    }
    fputs("listeners:\n", to);
    for (uint32_t i = 0; i < conf->listener_count; i++) {
        listener_print(&conf->listeners[i], to);
    }
    if (conf->admin.address.len != 0) {
        fputs("admin:\n", to);
        values_print("admin", conf, NULL, "  ", false, to);
    }
}

/* ---- the reference ------------------------------------------------------------------------------------------------------ */

static void allowed_print(const struct schema_row *row, FILE *to)
{
    char range[256];
    switch (row->type) {
    case SCHEMA_SIZE:
    case SCHEMA_RATE:
    case SCHEMA_DURATION:
    case SCHEMA_COUNT:
        value_range_text(row, range, sizeof(range));
        fputs(range, to);
        return;
    case SCHEMA_CHOICE:
        for (const struct schema_choice *choice = row->choices; choice->text != NULL; choice++) {
            fprintf(to, "%s`%s`", choice == row->choices ? "" : ", ", choice->text);
        }
        return;
    case SCHEMA_BOOL:
        fputs("`true`, `false`", to);
        return;
    case SCHEMA_NUMBERS:
        fprintf(to, "numbers and ranges up to %u%s", (unsigned)row->max,
                (row->flags & SCHEMA_AUTO) != 0 ? ", or `auto`" : "");
        return;
    case SCHEMA_ADDRESS:
        fputs("numeric address and port", to);
        return;
    case SCHEMA_TEXT:
        fprintf(to, "text of at most %zu bytes", row->size - 1);
        return;
    default:
        return;
    }
}

static const char *type_name(enum schema_type type)
{
    static const char *const names[] = {"section", "list",   "text",   "size",    "rate",   "duration",
                                        "count",   "switch", "choice", "address", "numbers"};
    return names[type];
}

static void section_print(const struct schema_row *section, FILE *to)
{
    fprintf(to, "\n## %s\n\n%s%s", section->name, section->help,
            (section->flags & SCHEMA_REQUIRED) != 0 ? " Required." : " Optional.");
    if (section->type == SCHEMA_LIST) {
        fprintf(to, " A list of %u to %u maps.", (unsigned)section->min, (unsigned)section->max);
    }
    fputs("\n\n| Key | Type | Allowed | Default | Meaning |\n|---|---|---|---|---|\n", to);
    for (size_t i = 0; i < schema_row_count; i++) {
        const struct schema_row *row = &schema_rows[i];
        if (!schema_is_child(row, section->name) || row->type == SCHEMA_SECTION || row->type == SCHEMA_LIST) {
            continue;
        }
        fprintf(to, "| `%s` | %s | ", schema_leaf(row), type_name(row->type));
        allowed_print(row, to);
        if ((row->flags & SCHEMA_REQUIRED) != 0) {
            fprintf(to, " | required | %s |\n", row->help);
        } else if (row->default_text == NULL) {
            fprintf(to, " | none | %s |\n", row->help);
        } else {
            fprintf(to, " | `%s` | %s |\n", row->default_text, row->help);
        }
    }
}

void conf_reference_print(FILE *to)
{
    fputs("<!-- Generated by \"penstock reference conf\" from conf/schema.c; do not edit. -->\n"
          "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
          "# Configuration reference\n\n"
          "One YAML file, by default `" CONF_PATH_DEFAULT
          "`. Sizes are whole numbers with a binary unit (`128KiB`, `4GiB`; a bare number is\n"
          "bytes), rates the same per second (`10MiB/s`), durations whole numbers with `us`, `ms`, `s`, `m`, "
          "`h` or `d`. YAML aliases are\n"
          "not supported. `penstock check --syntax --config FILE` reads a file and prints the first mistake "
          "with its line and column;\n"
          "`penstock check --print` prints the effective configuration, `penstock check` the memory it "
          "takes.\n\n"
          "Memory of one worker: `staging_size`, plus for each listener `rx_area_size` and `(head_size_max + "
          "" CONF_CONNECTION_STATE_TEXT ") x connections_max`, with TLS " CONF_TLS_STATE_TEXT
          " more for each connection,\n"
          "and what the store takes for each of `uploads_max` (`penstock check` prints all sums). All of it "
          "is taken and touched at start.\n"
          "The staging pool and the receive areas are registered with the kernel and count against the limit "
          "of locked memory.\n",
          to);
    for (size_t i = 0; i < schema_row_count; i++) {
        if (schema_rows[i].type == SCHEMA_SECTION || schema_rows[i].type == SCHEMA_LIST) {
            section_print(&schema_rows[i], to);
        }
    }
}
