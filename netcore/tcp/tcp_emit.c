/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_emit: one TCP segment to one Ethernet frame with all headers and checksums (tcp_wire.h). Pure. Writes every byte of the
 * frame it returns, padding included: nothing of what lay in the buffer before leaves the process.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "tcp/tcp_wire.h"

#define HOP_LIMIT 64U

uint32_t tcp_wire_options_len(const struct tcp_options *options)
{
    uint32_t len = 0;
    len += options->mss != 0 ? 4 : 0;
    len += options->sack_permitted ? 4 : 0;
    len += options->has_ts ? 12 : 0;
    len += options->has_wscale ? 4 : 0;
    len += options->sack_count != 0 ? 4 + 8U * options->sack_count : 0;
    return len;
}

uint32_t tcp_wire_headers_len(const struct tcp_out *out)
{
    return 14 + 4U * out->link->tags + (out->tuple->version == 4 ? 20 : 40) + 20 +
           tcp_wire_options_len(&out->options);
}

/* Options in the order that common stacks use, each padded in front to 4 bytes, so that 32-bit fields are aligned. */
static uint32_t emit_options(const struct tcp_options *options, uint8_t *to)
{
    uint8_t *at = to;
    if (options->mss != 0) {
        bytes_put_be16(at, 0x0204);
        bytes_put_be16(at + 2, options->mss);
        at += 4;
    }
    if (options->sack_permitted) {
        bytes_put_be32(at, 0x01010402);
        at += 4;
    }
    if (options->has_ts) {
        bytes_put_be32(at, 0x0101080a);
        bytes_put_be32(at + 4, options->ts_value);
        bytes_put_be32(at + 8, options->ts_echo);
        at += 12;
    }
    if (options->has_wscale) {
        bytes_put_be32(at, 0x01030300U | options->wscale);
        at += 4;
    }
    if (options->sack_count != 0) {
        bytes_put_be32(at, 0x01010500U | (2U + 8U * options->sack_count));
        at += 4;
        for (uint32_t i = 0; i < options->sack_count; i++) {
            bytes_put_be32(at, options->sack[i].start);
            bytes_put_be32(at + 4, options->sack[i].end);
            at += 8;
        }
    }
    return (uint32_t)(at - to);
}

static uint8_t *emit_ethernet(const struct tcp_out *out, uint8_t *at)
{
    memcpy(at, out->link->peer_mac, 6);
    memcpy(at + 6, out->link->local_mac, 6);
    at += 12;
    for (uint32_t i = 0; i < out->link->tags; i++) {
        bytes_put_be16(at, out->link->tag_type[i]);
        bytes_put_be16(at + 2, out->link->tag_id[i]);
        at += 4;
    }
    bytes_put_be16(at, out->tuple->version == 4 ? 0x0800 : 0x86dd);
    return at + 2;
}

static uint8_t *emit_ipv4(const struct tcp_out *out, uint8_t *at, uint32_t tcp_len)
{
    at[0] = 0x45;
    at[1] = out->ecn;
    bytes_put_be16(at + 2, (uint16_t)(20 + tcp_len));
    bytes_put_be16(at + 4, out->ip_id);
    bytes_put_be16(at + 6, out->fragmentable ? 0 : 0x4000);
    at[8] = HOP_LIMIT;
    at[9] = 6;
    bytes_put_be16(at + 10, 0);
    memcpy(at + 12, out->tuple->local + 12, 4);
    memcpy(at + 16, out->tuple->peer + 12, 4);
    bytes_put_be16(at + 10, (uint16_t)~tcp_checksum_fold(tcp_checksum_add(0, at, 20)));
    return at + 20;
}

static uint8_t *emit_ipv6(const struct tcp_out *out, uint8_t *at, uint32_t tcp_len)
{
    bytes_put_be32(at, 0x60000000U | (uint32_t)out->ecn << 20);
    bytes_put_be16(at + 4, (uint16_t)tcp_len);
    at[6] = 6;
    at[7] = HOP_LIMIT;
    memcpy(at + 8, out->tuple->local, 16);
    memcpy(at + 24, out->tuple->peer, 16);
    return at + 40;
}

static void emit_tcp(const struct tcp_out *out, uint8_t *at, uint32_t tcp_len, uint64_t payload_sum)
{
    uint32_t header_len = 20 + emit_options(&out->options, at + 20);
    uint32_t skip = out->tuple->version == 4 ? 12 : 0;
    uint8_t pseudo[8];
    CHECK(header_len <= 60);
    bytes_put_be16(at, out->tuple->local_port);
    bytes_put_be16(at + 2, out->tuple->peer_port);
    bytes_put_be32(at + 4, out->seq);
    bytes_put_be32(at + 8, out->ack);
    at[12] = (uint8_t)(header_len / 4 << 4);
    at[13] = out->flags;
    bytes_put_be16(at + 14, out->window);
    bytes_put_be32(at + 16, 0); /* checksum and urgent pointer */
    bytes_put_be32(pseudo, tcp_len);
    bytes_put_be32(pseudo + 4, 6);
    uint64_t sum = tcp_checksum_add(payload_sum, at, header_len);
    sum = tcp_checksum_add(sum, out->tuple->local + skip, 16 - skip);
    sum = tcp_checksum_add(sum, out->tuple->peer + skip, 16 - skip);
    sum = tcp_checksum_add(sum, pseudo, sizeof(pseudo));
    bytes_put_be16(at + 16, (uint16_t)~tcp_checksum_fold(sum));
}

uint32_t tcp_wire_emit(const struct tcp_out *out, uint8_t *buf, uint32_t payload_len, uint64_t payload_sum)
{
    uint32_t tcp_len = 20 + tcp_wire_options_len(&out->options) + payload_len;
    uint8_t *at = emit_ethernet(out, buf);
    at = out->tuple->version == 4 ? emit_ipv4(out, at, tcp_len) : emit_ipv6(out, at, tcp_len);
    emit_tcp(out, at, tcp_len, payload_sum);
    uint32_t len = (uint32_t)(at - buf) + tcp_len;
    if (len < TCP_FRAME_MIN) {
        memset(buf + len, 0, TCP_FRAME_MIN - len);
        len = TCP_FRAME_MIN;
    }
    return len;
}
