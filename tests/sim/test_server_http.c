/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP request cycle of one worker, over simulated connections and virtual time. */
#include "server/http_conn.h"
#include "world.h"

#define PUT_HEAD(length) "PUT /bkt/key HTTP/1.1\r\nHost: h\r\nContent-Length: " length "\r\n"

static const char put_hello[] = PUT_HEAD("5") "\r\nhello";
static const char get_hello[] = "GET /bkt/key HTTP/1.1\r\nHost: h\r\n\r\n";

static struct world world;

static void open_world(void)
{
    world_open(&world);
}

static void close_world(void)
{
    world_close(&world);
}

TestSuite(http, .init = open_world, .fini = close_world);
TestSuite(http_limits, .fini = close_world);

/* ---- the plain cycle ------------------------------------------------------------------------------------------- */

Test(http, put_is_answered_after_it_is_done_and_reads_back)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, put_hello);
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 OK\r\n"), "%s", sim_received(peer, NULL));
    cr_assert(got(peer, "-1\"\r\n"));
    cr_assert(world_has(&world, "key", "hello"));
    sim_send_text(peer, get_hello);
    world_turn(&world, 20);
    cr_assert_eq(answers(peer), 2);
    cr_assert(got(peer, "\r\n\r\nhello"));
    cr_assert(got(peer, "\r\nContent-Type: binary/octet-stream\r\n"));
    cr_assert_not(sim_is_closed(peer));
}

/* Kept in lower case, sent as the node's own headers are; a parameter replaces one of them. */
Test(http, stored_headers_go_out_in_one_spelling)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("5") "content-TYPE: text/x\r\nCACHE-control: no-store\r\nexpires: never\r\n"
                                      "X-Amz-Meta-Mood: good\r\n\r\nhello");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 OK\r\n"));
    sim_send_text(peer, "GET /bkt/key?response-expires=soon HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 20);
    cr_assert_eq(answers(peer), 2);
    cr_assert(got(peer, "\r\nContent-Type: text/x\r\n"), "%s", sim_received(peer, NULL));
    cr_assert(got(peer, "\r\nCache-Control: no-store\r\n"));
    cr_assert(got(peer, "\r\nExpires: soon\r\n"));
    cr_assert(got(peer, "\r\nx-amz-meta-mood: good\r\n"));
    cr_assert_not(got(peer, "never"));
    cr_assert_not(got(peer, "octet-stream"));
}

Test(http, put_gets_no_answer_while_the_store_has_not_finished)
{
    world.port->is_hanging = true;
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, put_hello);
    world_turn(&world, 50);
    cr_assert_str_empty(sim_received(peer, NULL));
    world.port->is_hanging = false;
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 OK\r\n"));
}

Test(http, three_pipelined_requests_are_answered_in_order)
{
    struct sim_peer *peer = world_connect(&world);
    char all[1024];
    snprintf(all, sizeof(all), "%s%s%s", put_hello, get_hello, "HEAD /bkt/none HTTP/1.1\r\nHost: h\r\n\r\n");
    sim_send_text(peer, all);
    world_turn(&world, 60);
    const char *text = sim_received(peer, NULL);
    cr_assert_eq(answers(peer), 3, "%s", text);
    cr_assert(strstr(text, "hello") < strstr(text, "HTTP/1.1 404"));
}

/* Whatever a request's fragments are, the answers are the same: the stream is cut at every byte. */
Test(http, requests_split_at_every_byte_give_the_same_answers)
{
    static const char all[] =
        PUT_HEAD("5") "x-amz-meta-a: b\r\n\r\nhello"
                      "PUT /bkt/chunky HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\n\r\n"
                      "GET /bkt/key HTTP/1.1\r\nHost: h\r\nRange: bytes=1-2\r\n\r\n"
                      "GET /bkt/chunky HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    size_t len = sizeof(all) - 1;
    for (size_t cut = 1; cut < len; cut++) {
        struct sim_peer *peer = world_connect(&world);
        sim_send(peer, all, cut);
        world_turn(&world, 20);
        sim_send(peer, all + cut, len - cut);
        world_turn(&world, 60);
        const char *text = sim_received(peer, NULL);
        cr_assert_eq(answers(peer), 4, "cut %zu: %s", cut, text);
        cr_assert(got(peer, "HTTP/1.1 206 Partial Content"));
        cr_assert(got(peer, "content-range: bytes 1-2/5") || got(peer, "Content-Range: bytes 1-2/5"));
        cr_assert(got(peer, "\r\n\r\nabcdefg"));
        cr_assert(sim_got_fin(peer));
        cr_assert(world_has(&world, "chunky", "abcdefg"));
        sim_fin(peer);
        world_turn(&world, 5);
        cr_assert(sim_is_closed(peer));
    }
}

Test(http, requests_in_single_bytes_give_the_same_answers)
{
    static const char all[] = PUT_HEAD("5") "\r\nhello"
                                            "GET /bkt/key HTTP/1.1\r\nHost: h\r\n\r\n";
    struct sim_peer *peer = world_connect(&world);
    for (size_t i = 0; i < sizeof(all) - 1; i++) {
        sim_send(peer, all + i, 1);
    }
    world_turn(&world, 400);
    cr_assert_eq(answers(peer), 2);
    cr_assert(got(peer, "\r\n\r\nhello"));
}

/* A reset at any byte leaves nothing behind: no object unless the request was complete, no slice, no upload. */
Test(http, a_reset_at_every_byte_leaves_nothing)
{
    size_t len = sizeof(put_hello) - 1;
    for (size_t cut = 0; cut < len; cut++) {
        struct sim_peer *peer = world_connect(&world);
        if (cut > 0) {
            sim_send(peer, put_hello, cut);
        }
        world_turn(&world, cut % 7);
        sim_reset(peer);
        world_turn(&world, 20);
        cr_assert(sim_is_closed(peer));
        cr_assert_null(world_object(&world, "key"));
        cr_assert_eq(sim_slices_out(world.rx[0]), 0);
        cr_assert_eq(world.port->puts_open, 0);
        cr_assert_eq(world.worker.exchange_count, 0);
    }
}

/* ---- Expect ---------------------------------------------------------------------------------------------------- */

Test(http, expect_is_answered_with_exactly_one_100)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("5") "Expect: 100-Continue\r\n\r\n");
    world_turn(&world, 20);
    cr_assert_str_eq(sim_received(peer, NULL), "HTTP/1.1 100 Continue\r\n\r\n");
    sim_send_text(peer, "hello");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"));
}

Test(http, expect_with_the_body_at_once_needs_no_100)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("5") "Expect: 100-continue\r\n\r\nhello");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 OK\r\n"));
}

/* Botocore keeps a final status that came in place of the 100, and takes it for the answer of the next request on the connection. */
Test(http, expect_with_an_empty_body_is_answered_with_100_too)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("0") "Expect: 100-continue\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), "%s",
              sim_received(peer, NULL));
    cr_assert_not(got(peer, "Connection: close\r\n"));
}

Test(http, an_error_in_place_of_the_100_of_an_empty_body_closes)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer,
                  "PUT /none/key HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nExpect: 100-continue\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 404 Not Found\r\n"), "%s", sim_received(peer, NULL));
    cr_assert(got(peer, "Connection: close\r\n"), "%s", sim_received(peer, NULL));
}

Test(http, an_error_before_100_is_final_and_closes_with_a_linger)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer,
                  "PUT /none/key HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 404 Not Found\r\n"), "%s", sim_received(peer, NULL));
    cr_assert(got(peer, "Connection: close\r\n"));
    cr_assert(got(peer, "<Code>NoSuchBucket</Code>"));
    cr_assert(sim_got_fin(peer));
    cr_assert_not(sim_is_closed(peer));
    /* The body that comes all the same is read and dropped; the connection ends when the peer ends it. */
    sim_send_text(peer, "some body");
    world_turn(&world, 5);
    cr_assert_eq(sim_undelivered(peer), 0);
    sim_fin(peer);
    world_turn(&world, 5);
    cr_assert(sim_is_closed(peer));
    cr_assert_not(sim_got_reset(peer));
}

Test(http, a_lingering_close_ends_when_the_peer_is_silent)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, "BAD\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 400 Bad Request\r\n"));
    world_wait(&world, 6 * NS_PER_S);
    world_turn(&world, 2);
    cr_assert(sim_is_closed(peer));
}

/* ---- bodies that are not what they claim ----------------------------------------------------------------------- */

Test(http, a_truncated_body_is_incomplete_and_stores_nothing)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("6") "\r\nhello");
    sim_fin(peer);
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 400 "), "%s", sim_received(peer, NULL));
    cr_assert(got(peer, "<Code>IncompleteBody</Code>"));
    cr_assert_null(world_object(&world, "key"));
    cr_assert_eq(atomic_load(&world.listener_cells[0]->uploads_aborted[METRICS_ABORT_PEER]), 1);
}

Test(http, broken_chunk_framing_stores_nothing)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(
        peer, "PUT /bkt/key HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nxyz\r\n");
    world_turn(&world, 20);
    cr_assert(got(peer, "<Code>IncompleteBody</Code>"), "%s", sim_received(peer, NULL));
    cr_assert_null(world_object(&world, "key"));
}

Test(http, a_wrong_content_md5_is_a_bad_digest)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("5") "Content-MD5: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\nhello");
    world_turn(&world, 20);
    cr_assert(got(peer, "<Code>BadDigest</Code>"), "%s", sim_received(peer, NULL));
    cr_assert_null(world_object(&world, "key"));
}

Test(http, a_right_content_md5_becomes_the_etag)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("5") "Content-MD5: XUFAKrxLKna5cZ2REBfFkg==\r\n\r\nhello");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
    cr_assert(got(peer, "ETag: \"5d41402abc4b2a76b9719d911017c592\"\r\n"));
}

Test(http, a_wrong_payload_sha256_is_refused)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(
        peer, PUT_HEAD("5") "x-amz-content-sha256: "
                            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9825\r\n\r\nhello");
    world_turn(&world, 20);
    cr_assert(got(peer, "<Code>XAmzContentSHA256Mismatch</Code>"), "%s", sim_received(peer, NULL));
    cr_assert_null(world_object(&world, "key"));
}

Test(http, a_right_payload_sha256_is_stored)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(
        peer, PUT_HEAD("5") "x-amz-content-sha256: "
                            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\r\n\r\nhello");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
}

/* ---- aws-chunked ----------------------------------------------------------------------------------------------- */

#define AWS_HEAD(key)                                                                                        \
    "PUT /bkt/" key " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"                                 \
    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nContent-Encoding: aws-chunked\r\n"          \
    "x-amz-decoded-content-length: 5\r\nx-amz-trailer: x-amz-checksum-crc32\r\n\r\n"

/* CRC32 of "hello" is 3610a686; the whole aws-chunked stream travels in HTTP chunks, as botocore sends it over TLS. */
static const char aws_good[] = AWS_HEAD("aws") "6\r\n5\r\nhel\r\n"
                                               "7\r\nlo\r\n0\r\n\r\n"
                                               "21\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n\r\n0\r\n\r\n";

/* As minio-go 7.0.89 sends it: LF alone behind the trailer, then two empty lines, all within the Content-Length. */
static const char aws_minio[] =
    "PUT /bkt/aws HTTP/1.1\r\nHost: h\r\nContent-Length: 47\r\n"
    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nContent-Encoding: aws-chunked\r\n"
    "x-amz-decoded-content-length: 5\r\nx-amz-trailer: x-amz-checksum-crc32\r\n\r\n"
    "5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\n\r\n\r\n";

static void aws_chunked_at_every_cut(const char *text, size_t len)
{
    for (size_t cut = 1; cut < len; cut++) {
        struct sim_peer *peer = world_connect(&world);
        sim_send(peer, text, cut);
        world_turn(&world, 10);
        sim_send(peer, text + cut, len - cut);
        world_turn(&world, 20);
        cr_assert(begins(peer, "HTTP/1.1 200 "), "cut %zu: %s", cut, sim_received(peer, NULL));
        cr_assert(got(peer, "x-amz-checksum-crc32: NhCmhg==\r\n"));
        cr_assert(world_has(&world, "aws", "hello"));
        sim_fin(peer);
        world_turn(&world, 5);
        cr_assert(sim_is_closed(peer));
    }
}

Test(http, an_aws_chunked_stream_is_stored_without_its_framing_however_it_is_split)
{
    aws_chunked_at_every_cut(aws_good, sizeof(aws_good) - 1);
    aws_chunked_at_every_cut(aws_minio, sizeof(aws_minio) - 1);
}

/* Chunks of one byte, all there at once: an upload that is full gets no further one before it has room. */
static void full_after_a_chunk(const char *text, size_t len)
{
    world.port->is_full = true;
    uint64_t before = atomic_load(&world.listener_cells[0]->payload_received_bytes);
    struct sim_peer *peer = world_connect(&world);
    sim_send(peer, text, len);
    world_turn(&world, 20);
    cr_assert_eq(atomic_load(&world.listener_cells[0]->payload_received_bytes), before + 1);
    cr_assert_str_empty(sim_received(peer, NULL));
    world.port->is_full = false;
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
    cr_assert(world_has(&world, "aws", "hello"));
}

Test(http, an_upload_that_is_full_gets_no_further_chunk_of_what_has_come)
{
    static const char aws[] = "PUT /bkt/aws HTTP/1.1\r\nHost: h\r\nContent-Length: 35\r\n"
                              "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n"
                              "Content-Encoding: aws-chunked\r\nx-amz-decoded-content-length: 5\r\n\r\n"
                              "1\r\nh\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n0\r\n\r\n";
    static const char http[] = "PUT /bkt/aws HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "1\r\nh\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n0\r\n\r\n";
    static const char both[] = AWS_HEAD("aws") "6\r\n1\r\nh\r\n\r\n"
                                               "1b\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n0\r\n\r\n"
                                               "21\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n\r\n0\r\n\r\n";
    full_after_a_chunk(aws, sizeof(aws) - 1);
    full_after_a_chunk(http, sizeof(http) - 1);
    full_after_a_chunk(both, sizeof(both) - 1);
}

Test(http, a_wrong_trailer_checksum_is_a_bad_digest_and_stores_nothing)
{
    char text[1024];
    snprintf(text, sizeof(text), "%s", aws_good);
    strstr(text, "NhCmhg==")[0] = 'M';
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, text);
    world_turn(&world, 20);
    cr_assert(got(peer, "<Code>BadDigest</Code>"), "%s", sim_received(peer, NULL));
    cr_assert_null(world_object(&world, "aws"));
}

Test(http, an_aws_chunked_stream_that_ends_early_is_incomplete)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, AWS_HEAD("aws") "6\r\n5\r\nhel\r\n0\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(got(peer, "<Code>IncompleteBody</Code>"), "%s", sim_received(peer, NULL));
    cr_assert_null(world_object(&world, "aws"));
}

/* ---- full and broken stores ------------------------------------------------------------------------------------ */

Test(http, a_full_store_is_507_before_100)
{
    world.port->begin_error = -ENOSPC;
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("5") "Expect: 100-continue\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 507 Insufficient Storage\r\n"), "%s", sim_received(peer, NULL));
    cr_assert(sim_got_fin(peer));
}

Test(http, a_store_that_fills_up_in_the_middle_is_507_and_the_rest_is_drained)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("1000") "\r\nhello");
    world_turn(&world, 20);
    world.port->append_error = -ENOSPC;
    sim_send_text(peer, "more");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 507 "), "%s", sim_received(peer, NULL));
    for (int i = 0; i < 20; i++) {
        sim_send_text(peer, "still sending");
    }
    world_turn(&world, 50);
    cr_assert_eq(sim_undelivered(peer), 0);
    cr_assert_not(sim_is_closed(peer));
    cr_assert_null(world_object(&world, "key"));
    cr_assert_eq(world.port->puts_open, 0);
}

Test(http, a_failed_commit_is_500_and_stores_nothing)
{
    world.port->finish_error = -EIO;
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, put_hello);
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 500 "), "%s", sim_received(peer, NULL));
    cr_assert_not(sim_is_closed(peer));
    cr_assert_null(world_object(&world, "key"));
}

Test(http, a_peer_that_leaves_while_the_store_works_leaves_no_trace)
{
    for (uint32_t delay = 0; delay < 8; delay++) {
        world.port->delay = delay;
        for (uint32_t turns = 0; turns < 24; turns++) {
            struct sim_peer *peer = world_connect(&world);
            sim_send_text(peer, put_hello);
            world_turn(&world, turns);
            sim_reset(peer);
            world_turn(&world, 40);
            cr_assert(sim_is_closed(peer));
            cr_assert_eq(world.port->puts_open, 0);
            cr_assert_eq(world.worker.exchange_count, 0);
        }
    }
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static void put_long(const char *key, size_t len)
{
    struct sim_peer *peer = world_connect(&world);
    char head[256];
    char *body = malloc(len);
    for (size_t i = 0; i < len; i++) {
        body[i] = (char)('a' + i % 23);
    }
    snprintf(head, sizeof(head), "PUT /bkt/%s HTTP/1.1\r\nHost: h\r\nContent-Length: %zu\r\n\r\n", key, len);
    sim_send_text(peer, head);
    sim_send(peer, body, len);
    free(body);
    world_turn(&world, 40);
    cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
    sim_fin(peer);
    world_turn(&world, 5);
}

Test(http, a_long_object_comes_in_several_reads_and_whole)
{
    put_long("long", 10 * FAKE_READ + 17);
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 100);
    size_t len;
    const char *text = sim_received(peer, &len);
    const char *body = strstr(text, "\r\n\r\n") + 4;
    const struct store_object *object = world_object(&world, "long");
    cr_assert_eq(len - (size_t)(body - text), object->size);
    cr_assert_eq(memcmp(body, object->bytes, object->size), 0);
}

Test(http, damage_in_the_first_block_is_an_error_and_later_a_reset)
{
    put_long("long", 5 * FAKE_READ);
    world.port->read_error_at = 1;
    struct sim_peer *first = world_connect(&world);
    sim_send_text(first, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 40);
    cr_assert(begins(first, "HTTP/1.1 500 "), "%s", sim_received(first, NULL));
    world.port->read_error_at = (int)world.port->reads + 3;
    struct sim_peer *later = world_connect(&world);
    sim_send_text(later, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 40);
    cr_assert(begins(later, "HTTP/1.1 200 "));
    cr_assert(sim_got_reset(later));
}

Test(http, a_reader_that_stops_reading_is_reset_after_the_deadline_and_holds_two_slices)
{
    put_long("long", 20 * FAKE_READ);
    struct sim_peer *peer = world_connect(&world);
    sim_read_stop(peer, true);
    uint32_t reads = world.port->reads;
    sim_send_text(peer, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 100);
    cr_assert_leq(world.port->reads - reads, 2);
    cr_assert_not(sim_is_closed(peer));
    world_wait(&world, world.conf->listeners[0].limits.send_timeout_ns + NS_PER_S);
    world_turn(&world, 10);
    cr_assert(sim_got_reset(peer));
    cr_assert_eq(atomic_load(&world.listener_cells[0]->timeouts[METRICS_TIMEOUT_SEND]), 1);
    cr_assert_eq(world.port->objects_out, 0);
}

/* None of its sends ends, but its TCP takes a little now and then: before and after a recall that is progress. */
Test(http, a_slow_reader_is_not_reset_while_its_tcp_takes_bytes)
{
    uint64_t timeout_ns = world.conf->listeners[0].limits.send_timeout_ns;
    put_long("long", 20 * FAKE_READ);
    world.port->reads_max = 2;
    struct sim_peer *slow = world_connect(&world);
    sim_read_stop(slow, true);
    sim_send_text(slow, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 100);
    for (int i = 0; i < 24; i++) {
        if (i == 12) {
            struct sim_peer *healthy = world_connect(&world);
            sim_send_text(healthy, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        world_wait(&world, timeout_ns / 2);
        sim_ack(slow, 100);
    }
    cr_assert_eq(atomic_load(&world.listener_cells[0]->sends_recalled), 1);
    cr_assert_not(sim_is_closed(slow));
    cr_assert_eq(atomic_load(&world.listener_cells[0]->timeouts[METRICS_TIMEOUT_SEND]), 0);
    world_wait(&world, timeout_ns + timeout_ns / HTTP_SEND_LOOKS + NS_PER_S);
    world_turn(&world, 10);
    cr_assert(sim_got_reset(slow));
    cr_assert_eq(atomic_load(&world.listener_cells[0]->timeouts[METRICS_TIMEOUT_SEND]), 1);
}

/* Is what the peer got a 200 with exactly these bytes? */
static bool got_long(const struct sim_peer *peer, const char *bytes, size_t size)
{
    size_t len = 0;
    const char *text = sim_received(peer, &len);
    const char *body = strstr(text, "\r\n\r\n");
    return begins(peer, "HTTP/1.1 200 ") && body != NULL && len - (size_t)(body + 4 - text) == size &&
           memcmp(body + 4, bytes, size) == 0;
}

Test(http, readers_that_stop_give_their_buffers_to_those_who_read_and_lose_nothing)
{
    enum { STALLED = 12, SIZE = 9 * FAKE_READ + 7 };
    struct sim_peer *stalled[STALLED];
    put_long("long", SIZE);
    const char *bytes = (const char *)world_object(&world, "long")->bytes;
    world.port->reads_max = 3;
    for (int i = 0; i < STALLED; i++) {
        stalled[i] = world_connect(&world);
        sim_read_stop(stalled[i], true);
        sim_send_text(stalled[i], "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    world_turn(&world, 20);
    cr_assert_eq(world.port->reads_out, 3);
    struct sim_peer *healthy = world_connect(&world);
    sim_send_text(healthy, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    /* Each of the others may keep a buffer for one turn. */
    world_wait(&world, STALLED * 2 * SHARE_TURN_NS + NS_PER_S);
    cr_assert(got_long(healthy, bytes, SIZE));
    cr_assert_gt(atomic_load(&world.listener_cells[0]->sends_recalled), 0);
    for (int i = STALLED - 1; i >= 0; i--) {
        cr_assert_not(sim_is_closed(stalled[i]));
        sim_read_stop(stalled[i], i % 2 == 0);
        world_wait(&world, 30 * NS_PER_MS);
        sim_read_stop(stalled[i], false);
    }
    for (int i = 0; i < 40; i++) {
        world_turn(&world, 50);
        world_wait(&world, 10 * NS_PER_MS);
    }
    for (int i = 0; i < STALLED; i++) {
        cr_assert(got_long(stalled[i], bytes, SIZE), "reader %d", i);
    }
    cr_assert_eq(world.port->reads_out, 0);
    cr_assert_eq(atomic_load(&world.listener_cells[0]->payload_sent_bytes), (STALLED + 1) * (uint64_t)SIZE);
}

/* Of several devices a silent one has a share of the reads. Who waits for it must not keep the others' readers waiting, and nobody is cut
 * for it, as there are buffers. */
Test(http, readers_of_a_silent_device_hold_up_nobody_elses)
{
    enum { SILENT = 3, SIZE = 9 * FAKE_READ + 7 };
    struct sim_peer *silent[SILENT];
    put_long("silent", SIZE);
    put_long("long", SIZE);
    const char *bytes = (const char *)world_object(&world, "long")->bytes;
    world.port->reads_max = 4;
    world.port->silent = world_object(&world, "silent");
    for (int i = 0; i < SILENT; i++) {
        silent[i] = world_connect(&world);
        sim_send_text(silent[i], "GET /bkt/silent HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    struct sim_peer *slow = world_connect(&world);
    sim_read_stop(slow, true);
    sim_send_text(slow, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 20);
    struct sim_peer *healthy = world_connect(&world);
    sim_send_text(healthy, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 100);
    cr_assert(got_long(healthy, bytes, SIZE));
    world_wait(&world, 4 * SHARE_TURN_NS);
    cr_expect_eq(atomic_load(&world.listener_cells[0]->sends_recalled), 0);
    world.port->silent = NULL; /* It answers again: those who waited come first. */
    world_turn(&world, 200);
    for (int i = 0; i < SILENT; i++) {
        cr_assert(got_long(silent[i], (const char *)world_object(&world, "silent")->bytes, SIZE), "reader %d",
                  i);
    }
    sim_read_stop(slow, false);
    world_turn(&world, 100);
    cr_assert(got_long(slow, bytes, SIZE));
    cr_assert_eq(world.port->reads_out, 0);
}

/* A slow device: the read that was under way when the answer was recalled comes after there is room again. */
Test(http, a_read_that_outlasts_a_recall_is_of_another_place_and_is_not_sent)
{
    enum { SIZE = 9 * FAKE_READ + 7, LATE = 400 };
    put_long("long", SIZE);
    const char *bytes = (const char *)world_object(&world, "long")->bytes;
    world.port->reads_max = 2;
    struct sim_peer *slow = world_connect(&world);
    sim_read_stop(slow, true);
    sim_send_text(slow, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    while (world.port->reads < 1) {
        world_turn(&world, 1);
    }
    world.port->delay = LATE;
    while (world.port->reads < 2) {
        world_turn(&world, 1);
    }
    world.port->delay = 0;
    struct sim_peer *other = world_connect(&world);
    sim_send_text(other, "GET /bkt/long HTTP/1.1\r\nHost: h\r\n\r\n");
    while (atomic_load(&world.listener_cells[0]->sends_recalled) == 0) {
        world_wait(&world, SHARE_TURN_NS / 4);
    }
    sim_read_stop(slow, false);
    world_turn(&world, 20);
    cr_assert_gt(world.port->reads_out, 0, "The read came too early for this test.");
    world_turn(&world, 2 * LATE);
    world_wait(&world, NS_PER_S);
    cr_assert(got_long(other, bytes, SIZE));
    cr_assert(got_long(slow, bytes, SIZE));
    cr_assert_eq(world.port->reads_out, 0);
}

/* Else the device would seem late at once: its deadline would count from when the worker went to sleep. */
Test(http, the_store_knows_the_time_when_payload_comes_after_a_rest)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, "PUT /bkt/rest HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nfirst");
    world_turn(&world, 10);
    cr_assert_eq(world.port->given_ns, world.now_ns);
    world.now_ns += 7 * NS_PER_S;
    sim_send_text(peer, " last");
    world_turn(&world, 1);
    cr_assert_eq(world.port->given_ns, world.now_ns);
    world_turn(&world, 10);
    cr_assert(begins(peer, "HTTP/1.1 200 "));
}

/* The connection is over by then: who gave its block to another must not wait for one. */
Test(http, room_behind_a_reset_is_room_for_nobody)
{
    static const char list[] = "GET /bkt?list-type=2 HTTP/1.1\r\nHost: h\r\n\r\n";
    void *blocks[4096];
    uint32_t count = 0;
    struct sim_peer *gone = world_connect(&world);
    sim_read_stop(gone, true);
    sim_send_text(gone, list);
    world_turn(&world, 20);
    while ((blocks[count] = pool_take(&world.worker.blocks)) != NULL) {
        count++;
        cr_assert_lt(count, ARRAY_COUNT(blocks));
    }
    struct sim_peer *other = world_connect(&world);
    sim_read_stop(other, true);
    sim_send_text(other, list);
    world_wait(&world, 4 * SHARE_TURN_NS);
    world_turn(&world, 20);
    cr_assert_eq(atomic_load(&world.listener_cells[0]->sends_recalled), 1);
    cr_assert(begins(other, "HTTP/1.1 200 "), "it has the only block");
    sim_reset_with_room(gone);
    world_turn(&world, 20);
    cr_assert(sim_is_closed(gone));
    cr_assert(list_is_empty(&world.worker.shares[SHARE_BLOCK].waiters));
    sim_read_stop(other, false);
    world_turn(&world, 20);
    while (count > 0) {
        pool_give(&world.worker.blocks, blocks[--count]);
    }
    world_turn(&world, 20);
}

Test(http, conditions_ranges_and_heads)
{
    static const struct {
        const char *headers;
        const char *answer;
    } rows[] = {
        {"If-None-Match: *\r\n", "HTTP/1.1 304 "},
        {"If-Match: \"other\"\r\n", "HTTP/1.1 412 "},
        {"Range: bytes=9-\r\n", "HTTP/1.1 416 "},
        {"Range: bytes=-2\r\n", "HTTP/1.1 206 "},
        {"If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n", "HTTP/1.1 304 "},
        {"If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n", "HTTP/1.1 200 "},
        {"", "HTTP/1.1 200 "},
    };
    struct sim_peer *put = world_connect(&world);
    sim_send_text(put, put_hello);
    world_turn(&world, 20);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (int is_head = 0; is_head < 2; is_head++) {
            struct sim_peer *peer = world_connect(&world);
            char text[512];
            snprintf(text, sizeof(text), "%s /bkt/key HTTP/1.1\r\nHost: h\r\n%s\r\n",
                     is_head ? "HEAD" : "GET", rows[i].headers);
            sim_send_text(peer, text);
            world_turn(&world, 20);
            cr_assert(begins(peer, rows[i].answer), "%s -> %s", text, sim_received(peer, NULL));
            const char *end = strstr(sim_received(peer, NULL), "\r\n\r\n") + 4;
            cr_assert(!is_head || *end == '\0', "HEAD has a body: %s", end);
            sim_fin(peer);
            world_turn(&world, 5);
            cr_assert(sim_is_closed(peer));
        }
    }
}

Test(http, a_list_is_xml_with_the_keys)
{
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, put_hello);
    world_turn(&world, 20);
    sim_send_text(peer, "GET /bkt?list-type=2 HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(got(peer, "<Key>key</Key>"), "%s", sim_received(peer, NULL));
    cr_assert(got(peer, "</ListBucketResult>"));
}

Test(http, a_list_longer_than_a_block_is_sent_in_chunks)
{
    char key[400];
    for (int i = 0; i < 200; i++) {
        struct sim_peer *peer = world_connect(&world);
        memset(key, 'x', sizeof(key));
        int len = snprintf(key, sizeof(key), "%03d", i);
        key[len] = 'y';
        char text[1024];
        snprintf(text, sizeof(text), "PUT /bkt/%.*s HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", 399,
                 key);
        sim_send_text(peer, text);
        world_turn(&world, 20);
        cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
        sim_fin(peer);
        world_turn(&world, 5);
    }
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, "GET /bkt HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 40);
    size_t len;
    const char *text = sim_received(peer, &len);
    cr_assert(got(peer, "Transfer-Encoding: chunked"));
    cr_assert_str_eq(text + len - 5, "0\r\n\r\n");
    cr_assert(got(peer, "<Key>000y"));
    cr_assert(got(peer, "<Key>199y"));
}

/* ---- timeouts and limits --------------------------------------------------------------------------------------- */

Test(http_limits, each_timeout_ends_its_connection_and_is_counted)
{
    world_open_with(&world, "head_timeout: 2s, body_timeout: 3s, idle_timeout: 4s");
    struct metrics_listener *cells = world.listener_cells[0];
    struct sim_peer *idle = world_connect(&world);
    struct sim_peer *head = world_connect(&world);
    struct sim_peer *body = world_connect(&world);
    sim_send_text(head, "GET / HT");
    sim_send_text(body, PUT_HEAD("10") "\r\nhello");
    world_turn(&world, 20);
    world_wait(&world, 2 * NS_PER_S + 100 * NS_PER_MS);
    cr_assert(got(head, "<Code>RequestTimeout</Code>"));
    cr_assert_eq(atomic_load(&cells->timeouts[METRICS_TIMEOUT_HEAD]), 1);
    cr_assert_eq(atomic_load(&cells->timeouts[METRICS_TIMEOUT_BODY]), 0);
    world_wait(&world, NS_PER_S);
    cr_assert(got(body, "<Code>RequestTimeout</Code>"));
    cr_assert_eq(atomic_load(&cells->timeouts[METRICS_TIMEOUT_BODY]), 1);
    cr_assert_eq(world.port->puts_open, 0);
    cr_assert_not(sim_is_closed(idle));
    world_wait(&world, NS_PER_S);
    world_turn(&world, 2);
    cr_assert(sim_is_closed(idle));
    cr_assert_eq(atomic_load(&cells->timeouts[METRICS_TIMEOUT_IDLE]), 1);
}

Test(http_limits, a_body_that_trickles_is_too_slow)
{
    world_open_with(&world, "body_timeout: 60s, body_rate_min: 1KiB, body_rate_window: 5s");
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("100000") "\r\n");
    for (int i = 0; i < 6 && !got(peer, "HTTP/1.1"); i++) {
        sim_send_text(peer, "x");
        world_wait(&world, NS_PER_S);
    }
    cr_assert(got(peer, "<Code>RequestTimeout</Code>"));
    cr_assert_eq(atomic_load(&world.listener_cells[0]->timeouts[METRICS_TIMEOUT_RATE]), 1);
}

Test(http_limits, an_upload_ahead_of_the_device_pauses_its_peer_and_is_not_blamed)
{
    world_open_with(&world, "body_timeout: 3s, body_rate_min: 1KiB, body_rate_window: 2s");
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("10") "\r\n");
    world_turn(&world, 20);
    world.port->queued_bytes = world.conf->listeners[0].limits.upload_queue_max + 1;
    sim_send_text(peer, "hello");
    sim_send_text(peer, "there");
    world_turn(&world, 20);
    cr_assert_eq(sim_undelivered(peer), 1);
    world_wait(&world, 20 * NS_PER_S);
    cr_assert_str_empty(sim_received(peer, NULL));
    world.port->queued_bytes = 0;
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 "), "%s", sim_received(peer, NULL));
    cr_assert_eq(atomic_load(&world.listener_cells[0]->upload_pauses), 1);
}

/* Not while there are buffers enough: nobody needs those that it holds, and letting go costs a copy. */
Test(http, a_stalled_upload_lets_go_of_its_slices_when_half_of_the_buffers_are_taken)
{
    world.port->holds_slices = true;
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("10") "\r\nhello");
    world_turn(&world, 20);
    cr_assert_eq(sim_slices_out(world.rx[0]), 1);
    cr_assert_eq(world.port->reliefs, 0);
    world_wait(&world, 200 * NS_PER_MS);
    cr_assert_eq(world.port->reliefs, 1);
    cr_assert_eq(sim_slices_out(world.rx[0]), 1);
    sim_buffers_free(world.rx[0], 31);
    world_turn(&world, 1);
    cr_assert_eq(sim_slices_out(world.rx[0]), 0);
    cr_assert_eq(world.port->pressures, 1);
    sim_send_text(peer, "there");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 "));
}

Test(http, short_buffers_relieve_the_oldest_uploads_at_once_and_press_them_when_few_are_left)
{
    world.port->holds_slices = true;
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, PUT_HEAD("10") "\r\nhello");
    world_turn(&world, 20);
    cr_assert_eq(world.port->pressures, 0);
    sim_buffers_free(world.rx[0], 15);
    world_turn(&world, 1);
    cr_assert_eq(world.port->reliefs, 1);
    cr_assert_eq(world.port->pressures, 0);
    cr_assert_eq(sim_slices_out(world.rx[0]), 1);
    sim_buffers_free(world.rx[0], 7);
    world_turn(&world, 1);
    cr_assert_eq(world.port->reliefs, 1);
    cr_assert_eq(world.port->pressures, 1);
    cr_assert_eq(sim_slices_out(world.rx[0]), 0);
}

Test(http_limits, uploads_over_the_limit_are_told_to_slow_down)
{
    world_open_with(&world, "uploads_max: 2, uploads_per_peer_max: 1");
    struct sim_peer *peers[3];
    for (int i = 0; i < 3; i++) {
        peers[i] = sim_connect(world.rx[0], i == 0 ? 1 : 2);
        sim_send_text(peers[i], PUT_HEAD("10") "\r\nhello");
        world_turn(&world, 20);
    }
    cr_assert_str_empty(sim_received(peers[0], NULL));
    cr_assert_str_empty(sim_received(peers[1], NULL));
    cr_assert(got(peers[2], "<Code>SlowDown</Code>"));
    sim_reset(peers[0]);
    world_turn(&world, 20);
    struct sim_peer *next = sim_connect(world.rx[0], 3);
    sim_send_text(next, put_hello);
    world_turn(&world, 20);
    cr_assert(begins(next, "HTTP/1.1 200 "));
}

Test(http_limits, connections_over_the_limit_of_a_peer_are_told_to_slow_down)
{
    world_open_with(&world, "connections_per_peer_max: 1");
    struct sim_peer *first = sim_connect(world.rx[0], 1);
    struct sim_peer *second = sim_connect(world.rx[0], 1);
    struct sim_peer *other = sim_connect(world.rx[0], 2);
    world_turn(&world, 4);
    sim_send_text(first, put_hello);
    sim_send_text(second, put_hello);
    sim_send_text(other, put_hello);
    world_turn(&world, 20);
    cr_assert(begins(first, "HTTP/1.1 200 "));
    cr_assert(got(second, "<Code>SlowDown</Code>"));
    cr_assert(begins(other, "HTTP/1.1 200 "));
}

Test(http, connections_over_the_limit_are_closed)
{
    struct sim_peer *peers[140];
    for (int i = 0; i < 140; i++) {
        peers[i] = sim_connect(world.rx[0], (uint8_t)i);
    }
    world_turn(&world, 10);
    cr_assert_not(sim_is_closed(peers[127]));
    cr_assert(sim_got_reset(peers[139])); /* 64 of each listener */
}

Test(http, a_head_that_is_too_large_is_refused)
{
    struct sim_peer *peer = world_connect(&world);
    char line[1024];
    sim_send_text(peer, "GET / HTTP/1.1\r\nHost: h\r\n");
    for (int i = 0; i < 17; i++) {
        memset(line, 'v', sizeof(line));
        memcpy(line, "x-a: ", 5);
        memcpy(line + sizeof(line) - 2, "\r\n", 2);
        sim_send(peer, line, sizeof(line));
    }
    world_turn(&world, 60);
    cr_assert(got(peer, "<Code>RequestHeaderSectionTooLarge</Code>"), "%s", sim_received(peer, NULL));
}

/* ---- drain ----------------------------------------------------------------------------------------------------- */

Test(http, a_drain_closes_idle_connections_and_finishes_uploads)
{
    static struct worker_message drain = {.kind = WORKER_MESSAGE_DRAIN};
    struct sim_peer *idle = world_connect(&world);
    struct sim_peer *busy = world_connect(&world);
    sim_send_text(busy, PUT_HEAD("10") "\r\nhello");
    world_turn(&world, 20);
    worker_post(&world.worker, &drain);
    world_turn(&world, 5);
    cr_assert(sim_is_closed(idle));
    cr_assert_not(sim_is_closed(busy));
    sim_send_text(busy, "there");
    world_turn(&world, 20);
    cr_assert(begins(busy, "HTTP/1.1 200 "));
    cr_assert(got(busy, "Connection: close\r\n"));
    sim_fin(busy);
    world_turn(&world, 5);
    cr_assert(worker_is_idle(&world.worker));
}

/* ---- raw ------------------------------------------------------------------------------------------------------- */

/* The index does not answer: the client is told, the next request on its connection is served or refused as well, and what comes back
 * in the end is given back to the store, whether the client is still there or not. */
static void late(const char *request, bool is_reset)
{
    world.port->late_delay = 40;
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, request);
    world_turn(&world, 10);
    cr_assert(begins(peer, "HTTP/1.1 503 "), "%s: %s", request, sim_received(peer, NULL));
    cr_assert(strncmp(request, "HEAD", 4) == 0 || got(peer, "<Code>ServiceUnavailable</Code>"), "%s",
              request);
    cr_assert_gt(world.worker.orphans, 0, "its memory is still the store's");
    if (is_reset) {
        sim_reset(peer);
    }
    world.port->late_delay = 0;
    world_turn(&world, 60);
    cr_assert_eq(world.worker.orphans, 0);
    cr_assert_eq(world.port->objects_out, 0);
    struct sim_peer *next = is_reset ? world_connect(&world) : peer;
    sim_send_text(next, "GET /bkt/there HTTP/1.1\r\nHost: h\r\n\r\n");
    world_turn(&world, 20);
    cr_assert(got(next, "HTTP/1.1 200 "), "%s: %s", request, sim_received(next, NULL));
}

Test(http, requests_that_the_index_does_not_answer_are_503_and_end_when_it_does)
{
    static const char *const requests[] = {
        "GET /bkt/there HTTP/1.1\r\nHost: h\r\n\r\n",
        "HEAD /bkt/there HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /bkt?list-type=2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "DELETE /bkt/absent HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "PUT /bkt/new HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    };
    struct sim_peer *peer = world_connect(&world);
    sim_send_text(peer, "PUT /bkt/there HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
    world_turn(&world, 20);
    cr_assert(begins(peer, "HTTP/1.1 200 "));
    for (size_t i = 0; i < ARRAY_COUNT(requests); i++) {
        late(requests[i], false);
        late(requests[i], true);
    }
}

/* They hold a table each, of which there are few, until the index answers. */
Test(http, multi_deletes_beyond_the_tables_are_503_too_while_the_index_does_not_answer)
{
    struct sim_peer *peers[WORKER_TABLES + 3];
    world.port->late_delay = 60;
    for (size_t i = 0; i < ARRAY_COUNT(peers); i++) {
        peers[i] = world_connect(&world);
        sim_send_text(peers[i],
                      "POST /bkt?delete HTTP/1.1\r\nHost: h\r\nContent-Length: 75\r\n\r\n"
                      "<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object></Delete>");
    }
    world_turn(&world, 20);
    for (size_t i = 0; i < ARRAY_COUNT(peers); i++) {
        cr_assert(begins(peers[i], "HTTP/1.1 503 "), "%zu: %s", i, sim_received(peers[i], NULL));
    }
    cr_assert_eq(pool_used(&world.worker.tables), WORKER_TABLES);
    world.port->late_delay = 0;
    world_turn(&world, 80);
    cr_assert_eq(world.worker.orphans, 0);
    cr_assert_eq(pool_used(&world.worker.tables), 0);
}

/* What the index does not answer keeps its exchange after its client was told. Who then finds none is told too, and hung up on. */
Test(http, who_finds_no_exchange_is_503_while_the_index_does_not_answer)
{
    static const char get[] = "GET /bkt/there HTTP/1.1\r\nHost: h\r\n\r\n";
    struct sim_peer
        *peers[64]; /* connections_max of one of the two listeners; so there are twice as many exchanges */
    world.port->late_delay = 100;
    for (uint32_t round = 0; round < 2; round++) {
        for (size_t i = 0; i < ARRAY_COUNT(peers); i++) {
            peers[i] = round == 0 ? world_connect(&world) : peers[i];
            sim_send_text(peers[i], get);
        }
        world_turn(&world, 15);
    }
    cr_assert_eq(world.worker.exchanges.free_count, 0);
    for (size_t i = 0; i < ARRAY_COUNT(peers); i++) {
        cr_assert_not(sim_is_closed(peers[i]));
        sim_send_text(peers[i], get);
    }
    struct sim_peer *raw = world_connect_raw(&world);
    sim_send_text(raw, "bytes");
    world_turn(&world, 15);
    for (size_t i = 0; i < ARRAY_COUNT(peers); i++) {
        cr_assert(got(peers[i], "503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n"),
                  "%zu: %s", i, sim_received(peers[i], NULL));
        sim_send_text(peers[i], get); /* Nobody listens any more. */
        sim_fin(peers[i]);
    }
    cr_assert(sim_is_closed(raw));
    world_turn(&world, 15);
    for (size_t i = 0; i < ARRAY_COUNT(peers); i++) {
        cr_assert(sim_is_closed(peers[i]), "%zu", i);
    }
    world.port->late_delay = 0;
    world_turn(&world, 150);
    cr_assert_eq(world.worker.orphans, 0);
}

Test(http, raw_bytes_until_fin_are_one_object)
{
    struct sim_peer *peer = world_connect_raw(&world);
    sim_send_text(peer, "some ");
    sim_send_text(peer, "bytes");
    world_turn(&world, 20);
    cr_assert_str_empty(sim_received(peer, NULL));
    sim_fin(peer);
    world_turn(&world, 20);
    cr_assert_str_eq(sim_received(peer, NULL), "key=pipe-000000 size=10 crc32c=0000000a\n");
    cr_assert(world_has(&world, "pipe-000000", "some bytes"));
    cr_assert(sim_is_closed(peer));
}

Test(http, raw_streams_split_at_every_byte_store_the_same)
{
    static const char *const streams[] = {"PENSTOCK/1 key=k size=5\nhello", "PENSTOCK/1 key=k\nhello",
                                          "PENSTOCK/2 x"};
    static const char *const stored[] = {"hello", "hello", "PENSTOCK/2 x"};
    uint32_t plain = 0;
    for (size_t i = 0; i < 3; i++) {
        size_t len = strlen(streams[i]);
        for (size_t cut = 1; cut < len; cut++) {
            struct sim_peer *peer = world_connect_raw(&world);
            sim_send(peer, streams[i], cut);
            world_turn(&world, 3);
            sim_send(peer, streams[i] + cut, len - cut);
            sim_fin(peer);
            world_turn(&world, 20);
            char key[32];
            snprintf(key, sizeof(key), i == 2 ? "pipe-%06u" : "k", (unsigned)(i == 2 ? plain : 0));
            plain++;
            cr_assert(world_has(&world, key, stored[i]), "stream %zu cut %zu: %s", i, cut,
                      sim_received(peer, NULL));
            struct store_name name = {.len = (uint16_t)strlen(key)};
            memcpy(name.bytes, key, name.len);
            struct fake_entry *entry = fake_find(world.port, "bkt", &name);
            fake_object_unref(entry->object);
            entry->object = NULL;
        }
    }
}

Test(http, raw_streams_that_break_their_promise_store_nothing)
{
    static const struct {
        const char *stream;
        const char *answer;
    } rows[] = {
        {"PENSTOCK/1 key=k size=6\nhello", "error=IncompleteBody"},
        {"PENSTOCK/1 key=k size=4\nhello", "error=IncompleteBody"},
        {"PENSTOCK/1 key=k crc32c=00000000\nhello", "error=BadDigest"},
        {"PENSTOCK/1 key=\nhello", "error=InvalidRequest"},
        {"PENSTOCK/1 size=x\nhello", "error=InvalidRequest"},
        {"PENSTOCK/1 color=red\nhello", "error=InvalidRequest"},
        {"PENSTOCK/1 key=%ff%fe\nhello", "error=InvalidRequest"},
        {"PENSTOCK/1 ", "error=IncompleteBody"},
        {"PENSTOCK/1 key=k size=5", "error=IncompleteBody"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sim_peer *peer = world_connect_raw(&world);
        sim_send_text(peer, rows[i].stream);
        sim_fin(peer);
        world_turn(&world, 20);
        cr_assert(begins(peer, rows[i].answer), "%s -> %s", rows[i].stream, sim_received(peer, NULL));
        cr_assert_null(world_object(&world, "k"));
    }
}

Test(http, raw_crc32c_of_the_preamble_is_verified)
{
    struct sim_peer *peer = world_connect_raw(&world);
    sim_send_text(peer, "PENSTOCK/1 key=a%20b crc32c=9a71bb4c size=5\nhello");
    sim_fin(peer);
    world_turn(&world, 20);
    cr_assert(begins(peer, "key=a%20b size=5 crc32c="), "%s", sim_received(peer, NULL));
    cr_assert(world_has(&world, "a b", "hello"));
}

Test(http, raw_reset_timeout_and_silence_store_nothing)
{
    struct sim_peer *reset = world_connect_raw(&world);
    struct sim_peer *stalled = world_connect_raw(&world);
    struct sim_peer *silent = world_connect_raw(&world);
    sim_send_text(reset, "bytes");
    sim_send_text(stalled, "bytes");
    sim_fin(silent);
    world_turn(&world, 20);
    sim_reset(reset);
    world_wait(&world, world.conf->listeners[1].limits.body_timeout_ns + NS_PER_S);
    cr_assert(sim_is_closed(reset));
    cr_assert(begins(stalled, "error=RequestTimeout"), "%s", sim_received(stalled, NULL));
    cr_assert(sim_is_closed(silent));
    cr_assert_str_empty(sim_received(silent, NULL));
    for (uint32_t i = 0; i < FAKE_KEYS; i++) {
        cr_assert_null(world.port->entries[i].object);
    }
}
