/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_index_list: lists of objects against a model: a sorted array of the same keys and the definition of prefix, delimiter
 * and marker written out. Random keys over a small alphabet (with zero and 0xff bytes), every question asked in pages of
 * random size and slices of random length. SEED=n replays one run.
 */
#include "index_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#define KEYS_MAX 400U

struct model {
    struct store_name keys[KEYS_MAX];
    uint32_t count;
};

static int compare_bytes(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order != 0 ? order : (a_len > b_len) - (a_len < b_len);
}

static int compare_keys(const void *a, const void *b)
{
    const struct store_name *x = a, *y = b;
    return compare_bytes(x->bytes, x->len, y->bytes, y->len);
}

static void random_key(struct rng *rng, struct store_name *key, uint32_t len_max)
{
    static const uint8_t alphabet[] = {'a', 'b', '/', '/', 0x00, 0xff};
    key->len = (uint16_t)(1 + rng_below(rng, len_max));
    for (uint32_t i = 0; i < key->len; i++) {
        key->bytes[i] = alphabet[rng_below(rng, sizeof(alphabet))];
    }
}

static bool begins_with(const uint8_t *key, size_t len, const struct store_name *prefix)
{
    return len >= prefix->len && memcmp(key, prefix->bytes, prefix->len) == 0;
}

/* The whole answer by definition: each key with the prefix, or its common prefix, once, if it comes after the marker. */
static uint32_t model_list(const struct model *model, const struct store_list_options *options,
                           struct store_name *out, bool *is_prefix)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        const struct store_name *key = &model->keys[i];
        if (!begins_with(key->bytes, key->len, &options->prefix)) {
            continue;
        }
        if (options->after.len > 0) {
            bool below = options->after_is_prefix && begins_with(key->bytes, key->len, &options->after);
            if (below || compare_bytes(key->bytes, key->len, options->after.bytes, options->after.len) <= 0) {
                continue;
            }
        }
        struct store_name entry = *key;
        bool common = false;
        if (options->delimiter_len > 0) {
            const uint8_t *hit = memmem(key->bytes + options->prefix.len, key->len - options->prefix.len,
                                        options->delimiter, options->delimiter_len);
            if (hit != NULL) {
                entry.len = (uint16_t)(hit - key->bytes + options->delimiter_len);
                common = true;
            }
        }
        if (n > 0 && common && is_prefix[n - 1] && compare_keys(&out[n - 1], &entry) == 0) {
            continue;
        }
        out[n] = entry;
        is_prefix[n++] = common;
    }
    return n;
}

/* Asks the index page by page, each page in slices. */
static uint32_t index_ask(struct index_rig *rig, struct rng *rng, struct store_list_options options,
                          struct store_name *out, bool *is_prefix)
{
    uint32_t n = 0;
    for (;;) {
        struct index_list *builder;
        struct index_list_request request = {.kind = INDEX_LIST_OBJECTS, .bucket = "b", .options = &options};
        options.count_max = 1 + (uint32_t)rng_below(rng, 40);
        cr_assert_eq(index_list_begin(&request, &builder), 0);
        int rc;
        uint32_t steps = 0;
        while ((rc = index_list_step(builder, rig->view, 1 + (uint32_t)rng_below(rng, 20))) == 0) {
            cr_assert_lt(steps++, 1000U);
        }
        cr_assert_eq(rc, 1);
        struct store_list *list = index_list_take(builder);
        cr_assert_leq(list->count, options.count_max);
        for (uint32_t i = 0; i < list->count; i++) {
            cr_assert_lt(n, KEYS_MAX);
            rig_key(&out[n], list->entries[i].key, list->entries[i].key_len);
            is_prefix[n++] = list->entries[i].is_prefix;
        }
        bool more = list->is_truncated;
        cr_assert(!more || list->count == options.count_max);
        store_list_free(list);
        if (!more) {
            return n;
        }
        options.after = out[n - 1];
        options.after_is_prefix = is_prefix[n - 1];
    }
}

static void fill(struct index_rig *rig, struct rng *rng, struct model *model)
{
    uint32_t wanted = (uint32_t)rng_below(rng, KEYS_MAX);
    struct store_attributes attributes = {.etag = "e"};
    model->count = 0;
    for (uint32_t i = 0; i < wanted; i++) {
        random_key(rng, &model->keys[model->count++], 6);
    }
    qsort(model->keys, model->count, sizeof(model->keys[0]), compare_keys);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        if (kept == 0 || compare_keys(&model->keys[kept - 1], &model->keys[i]) != 0) {
            model->keys[kept++] = model->keys[i];
        }
    }
    model->count = kept;
    rig_begin(rig);
    for (uint32_t i = 0; i < model->count; i++) {
        struct index_put put = {.bucket = "b", .key = &model->keys[i], .attributes = &attributes};
        cr_assert_eq(index_object_put(rig->index, &put, &rig->freed), 0);
    }
    rig_commit(rig);
}

static void ask_and_compare(struct index_rig *rig, struct rng *rng, const struct model *model, uint64_t seed)
{
    static struct store_name wanted[KEYS_MAX], got[KEYS_MAX];
    static bool wanted_prefix[KEYS_MAX], got_prefix[KEYS_MAX];
    struct store_list_options options = {0};
    if (rng_chance(rng, 1, 2)) {
        random_key(rng, &options.prefix, 3);
    }
    if (rng_chance(rng, 2, 3)) {
        options.delimiter_len = (uint8_t)(1 + rng_below(rng, 2));
        memcpy(options.delimiter, rng_chance(rng, 3, 4) ? "//" : "\xff\xff", 2);
    }
    if (rng_chance(rng, 1, 2)) {
        random_key(rng, &options.after, 4);
        options.after_is_prefix = rng_chance(rng, 1, 3);
    }
    uint32_t wanted_count = model_list(model, &options, wanted, wanted_prefix);
    uint32_t got_count = index_ask(rig, rng, options, got, got_prefix);
    cr_assert_eq(got_count, wanted_count, "seed %llu: %u instead of %u", (unsigned long long)seed, got_count,
                 wanted_count);
    for (uint32_t i = 0; i < got_count; i++) {
        cr_assert_eq(compare_keys(&got[i], &wanted[i]), 0, "seed %llu entry %u", (unsigned long long)seed, i);
        cr_assert_eq(got_prefix[i], wanted_prefix[i], "seed %llu entry %u", (unsigned long long)seed, i);
    }
}

Test(index_list, objects_are_listed_as_the_definition_says)
{
    static struct model model;
    const char *text = getenv("SEED");
    uint64_t first = text != NULL ? strtoull(text, NULL, 0) : 1;
    uint64_t last = text != NULL ? first : 12;
    for (uint64_t seed = first; seed <= last; seed++) {
        struct index_rig rig;
        struct rng rng;
        rng_seed(&rng, seed);
        rig_open(&rig, 0);
        rig_bucket(&rig, "b");
        rig_bucket(&rig, "a"); /* a neighbour before and one after: their keys must not show */
        rig_bucket(&rig, "c");
        cr_assert_eq(rig_put(&rig, "a", "foreign", 0), 0);
        cr_assert_eq(rig_put(&rig, "c", "foreign", 0), 0);
        fill(&rig, &rng, &model);
        for (uint32_t i = 0; i < 60; i++) {
            ask_and_compare(&rig, &rng, &model, seed);
        }
        rig_close(&rig);
    }
}

/* 100,000 keys below one common prefix cost one seek, not 100,000 rows: the list is done in one slice of 8 rows. */
Test(index_list, common_prefix_is_skipped_not_walked)
{
    struct index_rig rig;
    struct store_attributes attributes = {.etag = "e"};
    struct store_name key;
    char text[32];
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    rig_begin(&rig);
    for (uint32_t i = 0; i < 100000; i++) {
        int len = snprintf(text, sizeof(text), "dir/%08u", i);
        rig_key(&key, text, (size_t)len);
        struct index_put put = {.bucket = "b", .key = &key, .attributes = &attributes};
        cr_assert_eq(index_object_put(rig.index, &put, &rig.freed), 0);
    }
    rig_commit(&rig);
    cr_assert_eq(rig_put(&rig, "b", "after", 0), 0);
    cr_assert_eq(rig_put(&rig, "b", "zebra", 0), 0);
    struct store_list_options options = {.delimiter = "/", .delimiter_len = 1, .count_max = 1000};
    struct index_list_request request = {.kind = INDEX_LIST_OBJECTS, .bucket = "b", .options = &options};
    struct index_list *builder;
    cr_assert_eq(index_list_begin(&request, &builder), 0);
    cr_assert_eq(index_list_step(builder, rig.view, 8), 1);
    struct store_list *list = index_list_take(builder);
    cr_assert_eq(list->count, 3);
    cr_assert(list->entries[1].is_prefix);
    cr_assert_eq(list->entries[1].key_len, 4);
    store_list_free(list);
    rig_close(&rig);
}

Test(index_list, nothing_asked_for_is_answered_with_nothing)
{
    struct index_rig rig;
    rig_open(&rig, 0);
    rig_bucket(&rig, "b");
    cr_assert_eq(rig_put(&rig, "b", "k", 0), 0);
    struct store_list_options options = {.count_max = 0};
    struct index_list_request request = {.kind = INDEX_LIST_OBJECTS, .bucket = "b", .options = &options};
    struct index_list *builder;
    cr_assert_eq(index_list_begin(&request, &builder), 0);
    cr_assert_eq(index_list_step(builder, rig.view, 8), 1);
    struct store_list *list = index_list_take(builder);
    cr_assert_eq(list->count, 0);
    cr_assert_not(list->is_truncated);
    store_list_free(list);
    request.bucket = "missing";
    cr_assert_eq(index_list_begin(&request, &builder), 0);
    cr_assert_eq(index_list_step(builder, rig.view, 8), ERR_NO_SUCH_BUCKET);
    index_list_abandon(builder);
    rig_close(&rig);
}

Test(index_list, buckets_come_in_order_and_in_pages)
{
    struct index_rig rig;
    char name[32];
    rig_open(&rig, 0);
    for (uint32_t i = 0; i < 25; i++) {
        snprintf(name, sizeof(name), "bucket-%02u", 24 - i);
        rig_bucket(&rig, name);
    }
    struct store_list_options options = {.count_max = 10};
    struct index_list_request request = {.kind = INDEX_LIST_BUCKETS, .options = &options};
    uint32_t seen = 0;
    bool more = true;
    while (more) {
        struct index_list *builder;
        cr_assert_eq(index_list_begin(&request, &builder), 0);
        while (index_list_step(builder, rig.view, 3) == 0) {
        }
        struct store_list *list = index_list_take(builder);
        for (uint32_t i = 0; i < list->count; i++) {
            snprintf(name, sizeof(name), "bucket-%02u", seen++);
            cr_assert_eq(list->entries[i].key_len, strlen(name));
            cr_assert_arr_eq(list->entries[i].key, name, strlen(name));
            cr_assert_eq(list->entries[i].modified_ns, 42);
        }
        more = list->is_truncated;
        rig_key(&options.after, name, strlen(name));
        store_list_free(list);
    }
    cr_assert_eq(seen, 25);
    rig_close(&rig);
}
