// SPDX-License-Identifier: Apache-2.0
//
// Frames of any content: nothing outside the parts is read, payload lies inside them, and what is emitted from a parsed segment
// parses to the same segment. The first byte says how to cut the frame; checksums are made good when its top bit is set, so that
// the fuzzer gets past them.

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "tcp/tcp_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Good checksums for a plain IPv4 or IPv6 frame without tags; others are left as they are.
static void seal(uint8_t *frame, uint32_t len)
{
    uint8_t pseudo[4] = {0, 6, 0, 0};
    uint32_t at = 34;
    if (len < 74) {
        return;
    }
    uint32_t end = 14 + bytes_get_be16(frame + 16);
    uint64_t sum = tcp_checksum_add(0, frame + 26, 8);
    if (frame[12] == 8 && frame[13] == 0) {
        at = 14 + (frame[14] & 15U) * 4;
        if (at < 34 || at + 20 > len) {
            return;
        }
        bytes_put_be16(frame + 24, 0);
        bytes_put_be16(frame + 24, (uint16_t)~tcp_checksum_fold(tcp_checksum_add(0, frame + 14, at - 14)));
    } else {
        at = 54;
        end = 54 + bytes_get_be16(frame + 18);
        sum = tcp_checksum_add(0, frame + 22, 32);
    }
    if (end > len || end < at + 20) {
        return;
    }
    bytes_put_be16(pseudo + 2, (uint16_t)(end - at));
    sum = tcp_checksum_add(sum, pseudo, 4);
    bytes_put_be16(frame + at + 16, 0);
    bytes_put_be16(frame + at + 16,
                   (uint16_t)~tcp_checksum_fold(tcp_checksum_add(sum, frame + at, end - at)));
}

// The engine answers with what it parsed turned round; here it goes out as it came in.
static void emit_again(const struct tcp_segment *segment)
{
    uint8_t buf[TCP_HEADERS_MAX + 64];
    struct tcp_segment again;
    struct tcp_out out = {
        .tuple = &segment->tuple, .link = &segment->link, .seq = segment->seq, .ack = segment->ack};
    out.window = (uint16_t)segment->window;
    out.flags = segment->flags;
    out.ecn = segment->ecn;
    out.options = segment->options;
    if (tcp_wire_options_len(&out.options) > 40) {
        return;
    }
    struct tcp_part part = {buf, tcp_wire_emit(&out, buf, 0, 0), 0};
    CHECK(part.len >= TCP_FRAME_MIN);
    CHECK(part.len <= TCP_HEADERS_MAX);
    CHECK(tcp_wire_parse(&part, 1, &again) == TCP_WIRE_OK);
    CHECK(again.seq == segment->seq);
    CHECK(again.ack == segment->ack);
    CHECK(again.flags == segment->flags);
    CHECK(again.len == 0);
    CHECK(again.tuple.local_port == segment->tuple.peer_port);
    CHECK(memcmp(again.tuple.local, segment->tuple.peer, 16) == 0);
    CHECK(again.options.sack_count == segment->options.sack_count);
    CHECK(again.options.has_ts == segment->options.has_ts);
    CHECK(again.options.mss == segment->options.mss);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tcp_part parts[TCP_PARTS_MAX];
    struct tcp_segment segment;
    uint32_t count = 0;
    if (size < 2 || size > 4096) {
        return 0;
    }
    uint8_t how = data[0];
    uint32_t len = (uint32_t)size - 1;
    uint8_t *frame = malloc(len);
    CHECK(frame != NULL);
    memcpy(frame, data + 1, len);
    if (how & 0x80) {
        seal(frame, len);
    }
    // Parts in blocks of their own, so that the sanitizer sees a read past any of them.
    uint32_t step = how & 0x40 ? 70 + (how & 0x3fU) * 4 : len;
    for (uint32_t at = 0; at < len && count < TCP_PARTS_MAX; at += step) {
        uint32_t piece = len - at < step || count == TCP_PARTS_MAX - 1 ? len - at : step;
        parts[count].addr = malloc(piece);
        CHECK(parts[count].addr != NULL);
        memcpy(parts[count].addr, frame + at, piece);
        parts[count].len = piece;
        parts[count].token = count;
        count++;
        if (piece != step) {
            break;
        }
    }
    if (tcp_wire_parse(parts, count, &segment) == TCP_WIRE_OK) {
        uint32_t total = 0;
        for (uint32_t i = 0; i < segment.payload_count; i++) {
            const struct tcp_part *part = &parts[segment.payload[i].part];
            CHECK(segment.payload[i].part < count);
            CHECK(segment.payload[i].addr >= part->addr);
            CHECK(segment.payload[i].addr + segment.payload[i].len <= part->addr + part->len);
            CHECK(segment.payload[i].len > 0);
            total += segment.payload[i].len;
        }
        CHECK(total == segment.len);
        emit_again(&segment);
    }
    for (uint32_t i = 0; i < count; i++) {
        free(parts[i].addr);
    }
    free(frame);
    return 0;
}
