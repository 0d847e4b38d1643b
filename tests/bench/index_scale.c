/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_scale: what the index costs as it grows: commits in batches, lookups, lists, and the pass over all extents at start.
 *   index_scale FOLDER OBJECTS    (prints one CSV line per measurement; the folder must be empty)
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/rng.h"
#include "storage/index.h"
#include "storage/recover.h"

static const uint32_t checksum[1] = {0x12345678};

static void say(const char *what, uint64_t count, uint64_t ns, const char *unit)
{
    printf("%s,%llu,%.3f,%.1f,%s\n", what, (unsigned long long)count, (double)ns / 1e9,
           (double)count / ((double)ns / 1e9), unit);
    fflush(stdout);
}

static void die(const char *what, int rc, const struct err *err)
{
    fprintf(stderr, "%s: %d %s %s\n", what, rc, err_text(rc), err->text);
    exit(1);
}

static void make_key(struct store_name *key, uint64_t number)
{
    uint64_t mixed = number * 0x9e3779b97f4a7c15ULL;
    key->len = (uint16_t)snprintf((char *)key->bytes, STORE_KEY_MAX, "run/%04llx/object-%016llx",
                                  (unsigned long long)(mixed >> 48), (unsigned long long)mixed);
}

static int put_one(struct index *index, uint64_t number, struct index_freed *freed)
{
    struct store_name key;
    struct store_attributes attributes = {.etag = "0123456789abcdef0123456789abcdef-1",
                                          .meta_len = 40,
                                          .meta = "content-type: application/octet-stream"};
    struct object_extent extent = {
        .offset = number * 65536, .length = 65000, .checksum_count = 1, .checksums = checksum};
    make_key(&key, number);
    struct index_put put = {.bucket = "b",
                            .key = &key,
                            .size = 65000,
                            .modified_ns = number,
                            .crc32c = 1,
                            .crc32c_known = true,
                            .attributes = &attributes,
                            .extents = &extent,
                            .extent_count = 1};
    return index_object_put(index, &put, freed);
}

static int put_batch(struct index *index, uint64_t first, uint64_t count, struct index_freed *freed)
{
    int rc = index_begin(index, false);
    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        rc = put_one(index, first + i, freed);
    }
    rc = rc != 0 ? rc : index_commit(index);
    return rc != 0 ? rc : index_checkpoint_if_due(index);
}

static void fill(struct index *index, uint64_t objects)
{
    struct index_freed freed = {0};
    struct err err = {""};
    uint64_t next = 0;
    static const uint64_t batches[] = {1, 16, 256};
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t n = i < 2 ? 2048 * batches[i] / (i + 1) : objects - next;
        uint64_t begin = clock_monotonic_ns(), done = 0;
        char what[32];
        while (done < n && next < objects) {
            uint64_t count = batches[i] < objects - next ? batches[i] : objects - next;
            int rc = put_batch(index, next, count, &freed);
            if (rc != 0) {
                die("put", rc, &err);
            }
            next += count;
            done += count;
        }
        snprintf(what, sizeof(what), "put_batch_%llu", (unsigned long long)batches[i]);
        say(what, done, clock_monotonic_ns() - begin, "objects/s");
    }
    index_freed_close(&freed);
}

static void look(const struct index_options *options, uint64_t objects)
{
    struct index_view *view = NULL;
    struct err err = {""};
    struct rng rng;
    rng_seed(&rng, 1);
    int rc = index_view_open(options, &view, &err);
    uint64_t begin = clock_monotonic_ns();
    for (uint32_t i = 0; rc == 0 && i < 20000; i++) {
        struct store_name key;
        struct store_object *object = NULL;
        make_key(&key, rng_below(&rng, objects));
        rc = index_view_object(view, "b", &key, &object);
        object_free(object);
    }
    if (rc != 0) {
        die("lookup", rc, &err);
    }
    say("lookup", 20000, clock_monotonic_ns() - begin, "lookups/s");
    begin = clock_monotonic_ns();
    struct store_list_options list_options = {
        .prefix = {.len = 4, .bytes = "run/"}, .delimiter = "/", .delimiter_len = 1, .count_max = 1000};
    struct index_list_request request = {.kind = INDEX_LIST_OBJECTS, .bucket = "b", .options = &list_options};
    struct index_list *list;
    rc = index_list_begin(&request, &list);
    while (rc == 0) {
        rc = index_list_step(list, view, 128);
    }
    struct store_list *result = index_list_take(list);
    say("list_prefixes", result->count, clock_monotonic_ns() - begin, "entries/s");
    store_list_free(result);
    index_view_close(view);
}

static int mark(void *ctx, const struct object_space *space)
{
    uint64_t *sum = ctx;
    *sum += space->length;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: index_scale FOLDER OBJECTS\n");
        return 2;
    }
    struct index_options options = {.dir = argv[1]};
    uint64_t objects = strtoull(argv[2], NULL, 10), sum = 0;
    struct err err = {""};
    struct index *index = NULL;
    struct recover_result result;
    static const struct recover_ops ops = {.mark_used = mark};
    int rc = index_create(&options, &err);
    rc = rc != 0 ? rc : index_open(&options, &index, &err);
    rc = rc != 0 ? rc : index_begin(index, false);
    rc = rc != 0 ? rc : index_bucket_create(index, "b", 1);
    rc = rc != 0 ? rc : index_commit(index);
    if (rc != 0) {
        die("create", rc, &err);
    }
    printf("what,count,seconds,rate,unit\n");
    fill(index, objects);
    look(&options, objects);
    index_close(index);
    uint64_t begin = clock_monotonic_ns();
    rc = index_open(&options, &index, &err);
    rc = rc != 0 ? rc : recover_run(index, &ops, &sum, &result, &err);
    if (rc != 0) {
        die("recover", rc, &err);
    }
    say("recover", result.extents, clock_monotonic_ns() - begin, "extents/s");
    printf("size,%llu,0,%.1f,bytes/object\n", (unsigned long long)objects,
           (double)index_size_bytes(index) / (double)objects);
    index_close(index);
    return 0;
}
