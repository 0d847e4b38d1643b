/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed objects over one worker: what clients see is the payload, what the store holds is a zstd file. */
#include <zstd.h>

#include "server/zframe.h"
#include "world.h"

static struct world world;

static void open_zstd(void)
{
    world_s3_lines = "    compression: { type: zstd, prefixes: 'bkt/z' }\n";
    world_open(&world);
}

static void close_world(void)
{
    world_close(&world);
}

TestSuite(zstd, .init = open_zstd, .fini = close_world);

/* Text-like: each byte is a function of its place, so that a wrong range shows. */
static void fill_text(char *to, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        to[i] = (char)('a' + (i / 37 + i % 11) % 26);
    }
}

static void fill_noise(char *to, size_t len)
{
    struct rng rng;
    rng_seed(&rng, 7);
    for (size_t i = 0; i < len; i++) {
        to[i] = (char)rng_u64(&rng);
    }
}

/* Sends in pieces of `step` bytes with a turn after each. */
static struct sim_peer *put(const char *key, const char *bytes, size_t len, size_t step)
{
    struct sim_peer *peer = world_connect(&world);
    char head[256];
    snprintf(head, sizeof(head), "PUT /bkt/%s HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n", key, len);
    sim_send_text(peer, head);
    for (size_t at = 0; at < len; at += step) {
        sim_send(peer, bytes + at, len - at < step ? len - at : step);
        world_turn(&world, 1);
    }
    world_turn(&world, 60);
    return peer;
}

static const char *get(const char *key, const char *more, size_t *len, const char **head)
{
    struct sim_peer *peer = world_connect(&world);
    char text[256];
    snprintf(text, sizeof(text), "GET /bkt/%s HTTP/1.1\r\nHost: h\r\n%s\r\n", key, more);
    sim_send_text(peer, text);
    world_turn(&world, 3000);
    size_t all = 0;
    *head = sim_received(peer, &all);
    const char *body = strstr(*head, "\r\n\r\n") + 4;
    *len = all - (size_t)(body - *head);
    return body;
}

static void expect_reads_back(const char *key, const char *bytes, size_t size)
{
    size_t len = 0;
    const char *head = NULL;
    const char *body = get(key, "", &len, &head);
    cr_assert_eq(strncmp(head, "HTTP/1.1 200 ", 13), 0, "%.80s", head);
    cr_assert_eq(len, size, "%zu of %zu bytes", len, size);
    cr_assert_eq(memcmp(body, bytes, size), 0);
}

Test(zstd, payload_reads_back_whatever_its_size_and_pieces)
{
    const size_t sizes[] = {ZFRAME_OBJECT_MIN, 100000, ZFRAME_PLAIN, ZFRAME_PLAIN + 1, 3 * ZFRAME_PLAIN + 5};
    const size_t steps[] = {10007, 300000};
    char *bytes = malloc(4 * ZFRAME_PLAIN);
    fill_text(bytes, 4 * ZFRAME_PLAIN);
    for (size_t i = 0; i < ARRAY_COUNT(sizes); i++) {
        for (size_t k = 0; k < ARRAY_COUNT(steps); k++) {
            struct sim_peer *peer = put("z", bytes, sizes[i], steps[k]);
            cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
            const struct store_object *object = world_object(&world, "z");
            cr_assert_lt(object->size, sizes[i] / 2);
            cr_assert_eq(zframe_size(object->attributes.checksum, 0), sizes[i]);
            expect_reads_back("z", bytes, sizes[i]);
        }
    }
    free(bytes);
}

Test(zstd, the_store_holds_a_zstd_file)
{
    enum { SIZE = 2 * ZFRAME_PLAIN + 77 };
    char *bytes = malloc(SIZE);
    char *back = malloc(SIZE);
    fill_text(bytes, SIZE);
    put("z", bytes, SIZE, 50000);
    const struct store_object *object = world_object(&world, "z");
    cr_assert_eq(ZSTD_decompress(back, SIZE, object->bytes, object->size), SIZE);
    cr_assert_eq(memcmp(bytes, back, SIZE), 0);
    cr_assert_eq(atomic_load(&world.listener_cells[0]->compressed_plain_bytes), SIZE);
    cr_assert_eq(atomic_load(&world.listener_cells[0]->compressed_stored_bytes), object->size);
    cr_assert_eq(atomic_load(&world.listener_cells[0]->copied_bytes[STORE_COPY_FILTER]), SIZE);
    free(bytes);
    free(back);
}

Test(zstd, ranges_and_sizes_are_those_of_the_payload)
{
    enum { SIZE = 3 * ZFRAME_PLAIN + 1000 };
    const size_t ranges[][2] = {{0, 0},
                                {ZFRAME_PLAIN - 1, ZFRAME_PLAIN - 1},
                                {ZFRAME_PLAIN - 10, ZFRAME_PLAIN + 9},
                                {ZFRAME_PLAIN, 2 * ZFRAME_PLAIN - 1},
                                {5, 3 * ZFRAME_PLAIN},
                                {SIZE - 1, SIZE - 1}};
    char *bytes = malloc(SIZE);
    const char *head = NULL;
    size_t len = 0;
    fill_text(bytes, SIZE);
    put("z", bytes, SIZE, 65536);
    for (size_t i = 0; i < ARRAY_COUNT(ranges); i++) {
        char range[64];
        snprintf(range, sizeof(range), "Range: bytes=%zu-%zu\r\n", ranges[i][0], ranges[i][1]);
        const char *body = get("z", range, &len, &head);
        cr_assert_eq(strncmp(head, "HTTP/1.1 206 ", 13), 0, "%.80s", head);
        cr_assert_eq(len, ranges[i][1] - ranges[i][0] + 1);
        cr_assert_eq(memcmp(body, bytes + ranges[i][0], len), 0);
    }
    char size[64];
    snprintf(size, sizeof(size), "<Size>%d</Size>", (int)SIZE);
    struct sim_peer *list = world_connect(&world);
    sim_send_text(list,
                  "GET /bkt?list-type=2 HTTP/1.1\r\nHost: h\r\n\r\nHEAD /bkt/z HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 60);
    cr_assert(got(list, size), "%s", sim_received(list, NULL));
    cr_assert(got(list, "x-penstock-stored-as: zstd\r\n"));
    snprintf(size, sizeof(size), "Content-Length: %d\r\n", (int)SIZE);
    cr_assert(got(list, size), "%s", sim_received(list, NULL));
    free(bytes);
}

Test(zstd, what_does_not_compress_or_is_not_meant_is_stored_as_it_came)
{
    enum { SIZE = 4 * ZFRAME_PLAIN + 3 };
    char *bytes = malloc(SIZE);
    fill_noise(bytes, SIZE);
    put("z/noise", bytes, SIZE, 50000);
    const struct store_object *object = world_object(&world, "z/noise");
    cr_assert_eq(object->size, SIZE);
    cr_assert_eq(memcmp(object->bytes, bytes, SIZE), 0);
    cr_assert_str_empty(object->attributes.checksum);
    cr_assert_eq(atomic_load(&world.listener_cells[0]->compression_useless), 1);
    fill_text(bytes, SIZE);
    put("other", bytes, SIZE, 50000);
    cr_assert_eq(world_object(&world, "other")->size, SIZE);
    put("z/small", bytes, ZFRAME_OBJECT_MIN - 1, 50000);
    cr_assert_eq(world_object(&world, "z/small")->size, ZFRAME_OBJECT_MIN - 1);
    expect_reads_back("z/noise", (const char *)world_object(&world, "z/noise")->bytes, SIZE);
    free(bytes);
}

Test(zstd, a_damaged_frame_is_an_error_first_and_a_reset_later)
{
    enum { SIZE = 4 * ZFRAME_PLAIN };
    char *bytes = malloc(SIZE);
    fill_text(bytes, SIZE);
    put("z", bytes, SIZE, 65536);
    const struct store_object *object = world_object(&world, "z");
    object->bytes[object->size / 2 - 20] ^= 1; /* in a later frame */
    struct sim_peer *later = world_connect(&world);
    sim_send_text(later, "GET /bkt/z HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 3000);
    cr_assert(begins(later, "HTTP/1.1 200 "));
    cr_assert(sim_got_reset(later));
    const uint64_t places[] = {30, object->size - 3, object->size - ZFRAME_FOOTER - 6};
    for (size_t i = 0; i < ARRAY_COUNT(places); i++) {
        object->bytes[places[i]] ^= 1;
        struct sim_peer *peer = world_connect(&world);
        sim_send_text(peer, "GET /bkt/z HTTP/1.1\r\nHost: h\r\n\r\n");
        world_turn(&world, 3000);
        cr_assert(begins(peer, "HTTP/1.1 500 "), "place %zu: %.100s", i, sim_received(peer, NULL));
        cr_assert_eq(answers(peer), 1);
        object->bytes[places[i]] ^= 1;
    }
    free(bytes);
}

/* Two frames are all an upload may hold; the store keeps what it gets until it is pressed. */
Test(zstd, a_store_that_holds_on_pauses_the_peer_and_loses_nothing)
{
    enum { SIZE = 8 * ZFRAME_PLAIN + 11 };
    char *bytes = malloc(SIZE);
    fill_text(bytes, SIZE);
    world.port->holds_slices = true;
    struct sim_peer *peer = put("z", bytes, SIZE, SIZE / 4);
    cr_assert_eq(answers(peer), 0);
    world_wait(&world, 3 * NS_PER_S);
    world.port->holds_slices = false;
    world_wait(&world, 3 * NS_PER_S);
    cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
    expect_reads_back("z", bytes, SIZE);
    free(bytes);
}

Test(zstd, a_reset_anywhere_leaves_nothing_and_gives_everything_back)
{
    enum { SIZE = 3 * ZFRAME_PLAIN };
    char *bytes = malloc(SIZE);
    fill_text(bytes, SIZE);
    for (size_t sent = 1; sent < SIZE; sent += 50021) {
        struct sim_peer *peer = world_connect(&world);
        char head[128];
        snprintf(head, sizeof(head), "PUT /bkt/z HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n",
                 (int)SIZE);
        sim_send_text(peer, head);
        world_turn(&world, 3);
        sim_send(peer, bytes, sent);
        world_turn(&world, (uint32_t)(sent % 5));
        sim_reset(peer);
        world_turn(&world, 20);
        cr_assert_null(world_object(&world, "z"));
        cr_assert_eq(pool_used(&world.worker.filter.streams), 0);
    }
    put("z", bytes, SIZE, 65536);
    for (uint32_t turns = 0; turns < 40; turns++) {
        struct sim_peer *peer = world_connect(&world);
        sim_send_text(peer, "GET /bkt/z HTTP/1.1\r\nHost: h\r\n\r\n");
        world_turn(&world, turns);
        sim_reset(peer);
        world_turn(&world, 20);
        cr_assert_eq(pool_used(&world.worker.filter.streams), 0);
    }
    free(bytes);
}

Test(zstd, without_a_free_stream_uploads_are_plain_and_downloads_wait)
{
    enum { SIZE = 3 * ZFRAME_PLAIN };
    uint32_t streams = world.conf->node.compression_streams;
    struct sim_peer *slow[64];
    char *bytes = malloc(SIZE);
    fill_text(bytes, SIZE);
    put("z", bytes, SIZE, 65536);
    for (uint32_t i = 0; i < streams; i++) {
        slow[i] = world_connect(&world);
        sim_read_stop(slow[i], true);
        sim_send_text(slow[i], "GET /bkt/z HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    world_turn(&world, 100);
    put("z/late", bytes, SIZE, 65536);
    cr_assert_eq(world_object(&world, "z/late")->size, SIZE);
    struct sim_peer *waiting = world_connect(&world);
    sim_send_text(waiting, "GET /bkt/z HTTP/1.1\r\nHost: h\r\nRange: bytes=1-9\r\n\r\n");
    world_turn(&world, 100);
    cr_assert_eq(answers(waiting), 0);
    sim_read_stop(slow[0], false);
    world_turn(&world, 3000);
    cr_assert(begins(waiting, "HTTP/1.1 206 "));
    cr_assert_eq(atomic_load(&world.listener_cells[0]->compression_busy), 2);
    free(bytes);
}

Test(zstd, readers_that_stop_give_their_streams_to_those_who_read_and_lose_nothing)
{
    enum { SIZE = 4 * ZFRAME_PLAIN + 999 };
    uint32_t streams = world.conf->node.compression_streams;
    struct sim_peer *slow[64];
    char *bytes = malloc(SIZE);
    fill_text(bytes, SIZE);
    put("z", bytes, SIZE, 65536);
    cr_assert_lt(world_object(&world, "z")->size, SIZE);
    for (uint32_t i = 0; i < streams + 2; i++) {
        slow[i] = world_connect(&world);
        sim_read_stop(slow[i], true);
        sim_send_text(slow[i], "GET /bkt/z HTTP/1.1\r\nHost: h\r\nRange: bytes=5-\r\n\r\n");
    }
    world_turn(&world, 100);
    struct sim_peer *healthy = world_connect(&world);
    sim_send_text(healthy, "GET /bkt/z HTTP/1.1\r\nHost: h\r\nRange: bytes=5-\r\n\r\n");
    world_wait(&world, 2 * NS_PER_S);
    cr_assert(begins(healthy, "HTTP/1.1 206 "));
    for (uint32_t i = 0; i < streams + 2; i++) {
        sim_read_stop(slow[i], false);
        world_wait(&world, 30 * NS_PER_MS);
    }
    world_wait(&world, 5 * NS_PER_S);
    for (uint32_t i = 0; i <= streams + 2; i++) {
        size_t len = 0;
        const struct sim_peer *peer = i == streams + 2 ? healthy : slow[i];
        const char *text = sim_received(peer, &len);
        const char *body = strstr(text, "\r\n\r\n");
        cr_assert(body != NULL && len - (size_t)(body + 4 - text) == SIZE - 5, "reader %u: %zu", i, len);
        cr_assert(memcmp(body + 4, bytes + 5, SIZE - 5) == 0, "reader %u", i);
    }
    free(bytes);
}

/* Digests are those of the payload, and are verified before anything is visible. */
Test(zstd, a_put_that_says_a_wrong_md5_stores_nothing)
{
    char *bytes = malloc(ZFRAME_PLAIN);
    fill_text(bytes, ZFRAME_PLAIN);
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, "PUT /bkt/z HTTP/1.1\r\nHost: h\r\nContent-MD5: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                        "Content-Length: 262144\r\n\r\n");
    sim_send(peer, bytes, ZFRAME_PLAIN);
    world_turn(&world, 60);
    cr_assert(begins(peer, "HTTP/1.1 400 "));
    cr_assert_null(world_object(&world, "z"));
    free(bytes);
}
