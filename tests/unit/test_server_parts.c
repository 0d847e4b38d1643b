/* SPDX-License-Identifier: Apache-2.0 */
/* The server's small parts: timers against a naive list, peers against counters, headers packed, raw preambles, digests. */
#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "server/gather.h"
#include "server/hash.h"
#include "server/peer.h"
#include "server/raw.h"
#include "server/s3_meta.h"
#include "server/timer.h"

/* ---- timers ---------------------------------------------------------------------------------------------------- */

#define TIMERS 200U

/* Random sets, moves and cancels; each timer fires once, never early and at most one tick (and one step) late. */
Test(timer, random_timers_fire_on_time_and_once)
{
    struct rng rng;
    static struct timers timers;
    static struct timer all[TIMERS];
    uint64_t due[TIMERS] = {0};
    uint64_t now = 5 * NS_PER_S;
    rng_seed(&rng, 7);
    timers_init(&timers, now);
    for (uint32_t i = 0; i < TIMERS; i++) {
        timer_init(&all[i]);
    }
    for (int step = 0; step < 5000; step++) {
        uint32_t i = (uint32_t)rng_below(&rng, TIMERS);
        uint64_t deadline = now + rng_below(&rng, 30 * NS_PER_S);
        due[i] = rng_chance(&rng, 1, 5) ? 0 : deadline;
        timer_set(&timers, &all[i], due[i] == 0 ? TIME_NEVER : due[i]);
        uint64_t step_ns = rng_below(&rng, 100 * NS_PER_MS);
        now += step_ns;
        struct timer *timer;
        while ((timer = timers_take_due(&timers, now)) != NULL) {
            uint32_t fired = (uint32_t)(timer - all);
            cr_assert_neq(due[fired], 0);
            cr_assert_leq(due[fired], now);
            due[fired] = 0;
        }
        for (uint32_t k = 0; k < TIMERS; k++) {
            cr_assert(due[k] == 0 || due[k] + TIMER_TICK_NS > now, "timer %u is late", k);
            cr_assert(due[k] == 0 || timers_deadline(&timers) < due[k] + TIMER_TICK_NS);
        }
    }
}

Test(timer, a_long_sleep_fires_everything_that_was_due)
{
    static struct timers timers;
    struct timer near;
    struct timer far;
    timers_init(&timers, 0);
    timer_init(&near);
    timer_init(&far);
    timer_set(&timers, &near, NS_PER_S);
    timer_set(&timers, &far, 1000 * NS_PER_S);
    cr_assert_null(timers_take_due(&timers, NS_PER_S - TIMER_TICK_NS));
    cr_assert_eq(timers_take_due(&timers, 999 * NS_PER_S), &near);
    cr_assert_null(timers_take_due(&timers, 999 * NS_PER_S));
    cr_assert_eq(timers_take_due(&timers, 100000 * NS_PER_S), &far);
    cr_assert_eq(timers_deadline(&timers), TIME_NEVER);
}

/* The search for the next deadline remembers where it ended: a timer set before that place must be seen all the same. */
Test(timer, a_nearer_timer_set_after_the_search_is_found)
{
    static struct timers timers;
    struct timer near;
    struct timer far;
    timers_init(&timers, 0);
    timer_init(&near);
    timer_init(&far);
    timer_set(&timers, &far, 8 * NS_PER_S);
    cr_assert_eq(timers_deadline(&timers), 8 * NS_PER_S);
    timer_set(&timers, &near, 2 * NS_PER_S);
    cr_expect_eq(timers_deadline(&timers), 2 * NS_PER_S);
    timer_cancel(&timers, &near);
    cr_expect_eq(timers_deadline(&timers), 8 * NS_PER_S);
    /* Turns of the wheel away, in a slot before that of the far one: the wheel is looked at when it comes by. */
    timer_set(&timers, &near, 3 * NS_PER_S + TIMER_SLOTS * TIMER_TICK_NS);
    cr_expect_eq(timers_deadline(&timers), 3 * NS_PER_S);
    cr_assert_null(timers_take_due(&timers, 4 * NS_PER_S));
    cr_expect_eq(timers_deadline(&timers), 8 * NS_PER_S);
    cr_expect_eq(timers_take_due(&timers, 8 * NS_PER_S), &far);
    cr_expect_eq(timers_deadline(&timers), 3 * NS_PER_S + TIMER_SLOTS * TIMER_TICK_NS);
}

/* ---- gathering --------------------------------------------------------------------------------------------------- */

Test(gather, only_fast_payload_makes_the_worker_wait_for_more)
{
    struct gather gather = {0};
    uint64_t now = NS_PER_S;
    gather_turn(&gather, now, 0);
    cr_expect(!gather_wants(&gather, TIME_NEVER), "an idle node answers at once");
    gather_turn(&gather, now + GATHER_WINDOW_NS / 2, GATHER_RATE_MIN);
    cr_expect(!gather_wants(&gather, TIME_NEVER), "no window has passed yet");
    uint64_t enough = GATHER_RATE_MIN / (NS_PER_S / GATHER_WINDOW_NS) + 1;
    now += GATHER_WINDOW_NS;
    gather_turn(&gather, now, enough);
    cr_expect(gather_wants(&gather, TIME_NEVER));
    cr_expect(gather_wants(&gather, GATHER_NS + 1));
    cr_expect(!gather_wants(&gather, GATHER_NS), "what is due sooner is not delayed");
    cr_expect(!gather_wants(&gather, 0));
    now += 2 * GATHER_WINDOW_NS;
    gather_turn(&gather, now, 2 * enough);
    cr_expect(!gather_wants(&gather, TIME_NEVER), "half of the rate");
}

/* The first window after hours of sleep, and after more bytes than ever come between two turns. */
Test(gather, long_sleeps_and_large_counts_do_not_overflow)
{
    struct gather gather = {0};
    gather_turn(&gather, 100 * 3600 * NS_PER_S, 1000 * MIB);
    cr_expect(!gather_wants(&gather, TIME_NEVER));
    gather_turn(&gather, 100 * 3600 * NS_PER_S + GATHER_WINDOW_NS, (1ULL << 43) + 1000 * MIB);
    cr_expect_eq(gather.rate, (1ULL << 43) * 1000);
    cr_expect(gather_wants(&gather, TIME_NEVER));
}

/* ---- peers ----------------------------------------------------------------------------------------------------- */

static struct sockaddr_storage address_of(uint32_t host)
{
    struct sockaddr_storage out = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&out;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(0x0a000000U + host);
    return out;
}

Test(peer, counts_agree_with_a_plain_table_under_random_use)
{
    enum { HOSTS = 40, CONNECTIONS = 64 };
    struct rng rng;
    struct peers peers;
    uint32_t counts[HOSTS] = {0};
    uint32_t total = 0;
    rng_seed(&rng, 11);
    cr_assert_eq(peers_open(&peers, CONNECTIONS), 0);
    for (int step = 0; step < 20000; step++) {
        uint32_t host = (uint32_t)rng_below(&rng, HOSTS);
        struct sockaddr_storage address = address_of(host);
        if (total < CONNECTIONS && rng_chance(&rng, 1, 2)) {
            counts[host]++;
            total++;
            cr_assert_eq(peers_take(&peers, &address)->connections, counts[host]);
        } else if (counts[host] > 0) {
            counts[host]--;
            total--;
            peers_release(&peers, &address);
        }
        for (uint32_t i = 0; i < HOSTS; i++) {
            struct sockaddr_storage other = address_of(i);
            cr_assert(counts[i] == 0 || peers_find(&peers, &other)->connections == counts[i]);
        }
    }
    peers_close(&peers);
}

Test(peer, addresses_of_one_ipv6_network_are_one_peer)
{
    struct peers peers;
    struct sockaddr_storage a = {0};
    struct sockaddr_storage b = {0};
    a.ss_family = AF_INET6;
    b.ss_family = AF_INET6;
    inet_pton(AF_INET6, "2001:db8:1:2::1", &((struct sockaddr_in6 *)&a)->sin6_addr);
    inet_pton(AF_INET6, "2001:db8:1:2:ffff::2", &((struct sockaddr_in6 *)&b)->sin6_addr);
    cr_assert_eq(peers_open(&peers, 4), 0);
    (void)peers_take(&peers, &a);
    cr_assert_eq(peers_take(&peers, &b)->connections, 2);
    peers_close(&peers);
}

/* ---- stored headers -------------------------------------------------------------------------------------------- */

static enum s3_error pack(struct store_attributes *attributes, const char *headers)
{
    static struct http_head head;
    static char text[8192];
    snprintf(text, sizeof(text), "PUT /b/k HTTP/1.1\r\nHost: h\r\n%s\r\n", headers);
    http_head_begin(&head, HTTP_HEAD_LIMIT_DEFAULT);
    cr_assert_eq(http_head_parse(&head, text, strlen(text)), HTTP_HEAD_DONE);
    return s3_meta_pack(attributes, &head, text);
}

Test(meta, kept_headers_come_back_in_order_and_others_do_not)
{
    static struct store_attributes attributes;
    struct s3_meta_item item;
    uint32_t position = 0;
    cr_assert_eq(pack(&attributes, "Content-Type: a/b\r\nX-Amz-Meta-Key: Some  Value\r\nX-Other: no\r\n"
                                   "Content-Encoding: aws-chunked, gzip\r\n"),
                 S3_OK);
    cr_assert(s3_meta_next(&attributes, &position, &item));
    cr_assert(text_is(item.name, "content-type") && text_is(item.value, "a/b"));
    cr_assert(s3_meta_next(&attributes, &position, &item));
    cr_assert(text_is(item.name, "x-amz-meta-key") && text_is(item.value, "Some  Value"));
    cr_assert(s3_meta_next(&attributes, &position, &item));
    cr_assert(text_is(item.name, "content-encoding") && text_is(item.value, "gzip"));
    cr_assert_not(s3_meta_next(&attributes, &position, &item));
}

Test(meta, two_kibibytes_of_user_metadata_fit_and_one_byte_more_does_not)
{
    static struct store_attributes attributes;
    char value[2100];
    char header[2200];
    memset(value, 'v', sizeof(value));
    snprintf(header, sizeof(header), "x-amz-meta-ab: %.*s\r\n", 2046, value);
    cr_assert_eq(pack(&attributes, header), S3_OK);
    snprintf(header, sizeof(header), "x-amz-meta-ab: %.*s\r\n", 2047, value);
    cr_assert_eq(pack(&attributes, header), S3_ERR_METADATA_TOO_LARGE);
}

Test(meta, stored_bytes_that_make_no_sense_end_the_walk)
{
    static struct store_attributes attributes;
    struct rng rng;
    rng_seed(&rng, 3);
    for (int i = 0; i < 20000; i++) {
        attributes.meta_len = (uint16_t)rng_below(&rng, 40);
        for (uint32_t k = 0; k < attributes.meta_len; k++) {
            attributes.meta[k] = (uint8_t)rng_below(&rng, 6);
        }
        struct s3_meta_item item;
        uint32_t position = 0;
        for (uint32_t items = 0; s3_meta_next(&attributes, &position, &item); items++) {
            cr_assert_leq(position, attributes.meta_len);
            cr_assert_leq(items, 40);
        }
    }
}

/* ---- raw ------------------------------------------------------------------------------------------------------- */

Test(raw, preambles_are_read_or_refused_with_a_reason)
{
    struct raw_preamble preamble;
    cr_assert_null(raw_preamble_parse(TEXT("PENSTOCK/1 size=12 key=a%2Fb%20c crc32c=00aBcDeF\r"), &preamble));
    cr_assert_eq(preamble.size, 12);
    cr_assert_eq(preamble.crc32c, 0x00abcdef);
    cr_assert_eq(preamble.key.len, 5);
    cr_assert_eq(memcmp(preamble.key.bytes, "a/b c", 5), 0);
    cr_assert_null(raw_preamble_parse(TEXT("PENSTOCK/1"), &preamble));
    cr_assert_eq(preamble.size, UINT64_MAX);
    static const char *const bad[] = {"PENSTOCK/2 size=1",
                                      "PENSTOCK/1  size=1",
                                      "PENSTOCK/1 size=1 size=1",
                                      "PENSTOCK/1 size=-1",
                                      "PENSTOCK/1 size=99999999999999999999",
                                      "PENSTOCK/1 key=%zz",
                                      "PENSTOCK/1 key=",
                                      "PENSTOCK/1 crc32c=123",
                                      "PENSTOCK/1 other=1",
                                      "PENSTOCK/1 size",
                                      "PENSTOCK/1 "};
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        cr_assert_not_null(raw_preamble_parse(text_of_string(bad[i]), &preamble), "%s", bad[i]);
    }
}

Test(raw, templates_are_filled_in_and_bounded)
{
    struct store_name key;
    struct sockaddr_storage peer = address_of(5);
    struct raw_name name = {.node = "n",
                            .listener = "pipe",
                            .wall_ns = 1764500000ULL * NS_PER_S + 123456000,
                            .peer = &peer,
                            .sequence = 42};
    cr_assert(raw_key_format("{listener}/{node}/{date}/{time}-{peer}-{seq}", &name, &key));
    const char *want = "pipe/n/20251130/105320.123456-10.0.0.5_0-000042";
    cr_assert_eq(key.len, strlen(want));
    cr_assert_eq(memcmp(key.bytes, want, key.len), 0, "%.*s", key.len, key.bytes);
    char long_template[1100];
    memset(long_template, 'x', sizeof(long_template));
    long_template[1025] = '\0';
    cr_assert_not(raw_key_format(long_template, &name, &key));
    long_template[1024] = '\0';
    cr_assert(raw_key_format(long_template, &name, &key));
}

/* ---- digests ---------------------------------------------------------------------------------------------------- */

static uint32_t slices_held;

static void count_retain(struct slice_owner *owner, const struct slice *slice)
{
    (void)owner;
    (void)slice;
    slices_held++;
}

static void count_release(struct slice_owner *owner, const struct slice *slice)
{
    (void)owner;
    (void)slice;
    slices_held--;
}

/* Digests of many streams at once, fed in random pieces: with and without the thread they are those of the whole. */
static void check_hashes(bool wants_thread)
{
    enum { STREAMS = 8, SIZE = 300000 };
    static struct hasher hasher;
    static struct hash_stream streams[STREAMS];
    static uint8_t payload[SIZE];
    static size_t fed[STREAMS];
    struct slice_owner owner = {.retain = count_retain, .release = count_release};
    struct rng rng;
    struct err err;
    rng_seed(&rng, 19);
    for (size_t i = 0; i < SIZE; i++) {
        payload[i] = (uint8_t)rng_u64(&rng);
    }
    const struct hasher_options options = {.wants_thread = wants_thread, .jobs_max = 16};
    cr_assert_eq(hasher_open(&hasher, &options, &err), 0);
    for (uint32_t i = 0; i < STREAMS; i++) {
        fed[i] = 0;
        hash_open(&streams[i], &hasher, &streams[i]);
        cr_assert_eq(hash_add(&streams[i], S3_CHECKSUM_MD5), 0);
        cr_assert_eq(hash_add(&streams[i], S3_CHECKSUM_SHA256), 0);
        cr_assert_eq(hash_add(&streams[i], S3_CHECKSUM_CRC32C), 0);
    }
    uint32_t open = STREAMS;
    while (open > 0) {
        uint32_t i = (uint32_t)rng_below(&rng, STREAMS);
        if (fed[i] == SIZE && !streams[i].is_finishing) {
            hash_finish(&streams[i]);
            open--;
        } else if (fed[i] < SIZE) {
            size_t len = 1 + rng_below(&rng, 9000);
            len = len < SIZE - fed[i] ? len : SIZE - fed[i];
            struct slice slice = {
                .addr = payload + fed[i], .len = (uint32_t)len, .buf_index = -1, .owner = &owner};
            hash_update(&streams[i], &slice);
            fed[i] += len;
        }
    }
    uint8_t want[S3_CHECKSUM_SIZE_MAX];
    struct s3_checksum whole;
    for (uint32_t finished = 0; finished < STREAMS;) {
        struct hash_stream *stream = hasher_poll(&hasher);
        if (stream == NULL) {
            struct pollfd wait = {.fd = hasher_event_fd(&hasher), .events = POLLIN};
            cr_assert_eq(poll(&wait, 1, 10000), 1);
            continue;
        }
        finished++;
        for (uint32_t k = 0; k < stream->count; k++) {
            enum s3_checksum_kind kind = stream->sums[k].state.kind;
            cr_assert_eq(s3_checksum_open(&whole, kind), 0);
            s3_checksum_update(&whole, payload, SIZE);
            size_t len = s3_checksum_final(&whole, want);
            s3_checksum_close(&whole);
            cr_assert_eq(memcmp(hash_digest(stream, kind), want, len), 0);
        }
        cr_assert(hash_is_idle(stream));
        hash_close(stream);
    }
    cr_assert_eq(slices_held, 0);
    hasher_close(&hasher);
}

Test(hash, digests_are_right_where_they_are_fed)
{
    check_hashes(false);
}

Test(hash, digests_are_right_on_a_thread_and_every_slice_comes_back)
{
    check_hashes(true);
}

/* What is finished late in a turn, after the worker has asked the hasher, must not wait for a completion that may never come. */
Test(hash, a_stream_finished_where_it_was_fed_asks_for_a_turn)
{
    struct hasher hasher;
    struct hash_stream stream;
    struct err err;
    struct hasher_options options = {.wants_thread = true, .jobs_max = 8};
    cr_assert_eq(hasher_open(&hasher, &options, &err), 0);
    hash_open(&stream, &hasher, NULL);
    cr_expect_eq(hasher_deadline(&hasher), TIME_NEVER);
    hash_finish(&stream);
    cr_expect_eq(hasher_deadline(&hasher), 0);
    cr_expect_eq(hasher_poll(&hasher), &stream);
    cr_expect_eq(hasher_deadline(&hasher), TIME_NEVER);
    hash_close(&stream);
    hasher_close(&hasher);
}

/* An upload that is given up hears of it when the thread lets go, or it would wait for ever. */
Test(hash, a_cancelled_stream_comes_back_once_the_thread_holds_nothing)
{
    static uint8_t payload[1 << 16];
    struct hasher hasher;
    struct hash_stream stream;
    struct err err;
    struct hasher_options options = {.wants_thread = true, .jobs_max = 8};
    struct slice_owner owner = {.retain = count_retain, .release = count_release};
    struct slice slice = {.addr = payload, .len = sizeof(payload), .buf_index = -1, .owner = &owner};
    slices_held = 0;
    cr_assert_eq(hasher_open(&hasher, &options, &err), 0);
    hash_open(&stream, &hasher, NULL);
    cr_assert_eq(hash_add(&stream, S3_CHECKSUM_MD5), 0);
    for (int i = 0; i < 4; i++) {
        hash_update(&stream, &slice);
    }
    hash_cancel(&stream);
    struct hash_stream *back;
    while ((back = hasher_poll(&hasher)) == NULL) {
        struct pollfd wait = {.fd = hasher_event_fd(&hasher), .events = POLLIN};
        cr_assert_eq(poll(&wait, 1, 10000), 1);
    }
    cr_assert_eq(back, &stream);
    cr_assert(hash_is_idle(&stream));
    cr_assert_eq(slices_held, 0);
    cr_assert_null(hasher_poll(&hasher));
    hash_close(&stream);
    hasher_close(&hasher);
}
