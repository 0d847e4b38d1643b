/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_wire: Ethernet frames to TCP segments and back. Pure: bytes in, structs out; keeps no state, sends nothing.
 *
 * A frame may lie in several parts (multi-buffer XDP); all headers must be in the first. Checksums are always verified in
 * software, because with AF_XDP nobody else promises it. Fragments are refused: the XDP program passes none to us, and a
 * reassembler of fragments is an attack surface that bulk TCP with path MTU discovery does not need.
 */
#ifndef TCP_WIRE_H
#define TCP_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#define TCP_PARTS_MAX 8U /* parts of one frame */
#define TCP_SACK_BLOCKS_MAX 4U
#define TCP_HEADERS_MAX                                                                                      \
    134U /* Ethernet with two tags, IPv6, TCP with 60 bytes: 22 + 40 + 60, and room to pad */
#define TCP_FRAME_MIN                                                                                        \
    60U /* shortest Ethernet frame without its check sequence; shorter ones are zero padded */

/* Flags as in bytes 12 and 13 of the TCP header. */
enum tcp_flag {
    TCP_FIN = 0x01,
    TCP_SYN = 0x02,
    TCP_RST = 0x04,
    TCP_PSH = 0x08,
    TCP_ACK = 0x10,
    TCP_URG = 0x20,
    TCP_ECE = 0x40,
    TCP_CWR = 0x80
};

/* The two low bits of the traffic class (RFC 3168). */
enum tcp_ecn { TCP_ECN_NOT_ECT = 0, TCP_ECN_ECT0 = 2, TCP_ECN_CE = 3 };

/* Who talks with whom. IPv4 addresses are stored as v4-mapped IPv6 addresses. No padding: compared and hashed whole. */
struct tcp_tuple {
    uint8_t local[16];
    uint8_t peer[16];
    uint16_t local_port; /* host order */
    uint16_t peer_port;
    uint32_t version; /* 4 or 6 */
};
_Static_assert(sizeof(struct tcp_tuple) == 40, "struct tcp_tuple is compared by memcmp");

/* How to answer: the reply goes to where the packet came from, with the same VLAN tags. */
struct tcp_link {
    uint8_t peer_mac[6];
    uint8_t local_mac[6];
    uint16_t tag_type[2]; /* 0x8100 or 0x88a8, outermost first */
    uint16_t tag_id[2];   /* VLAN id only: priority of a reply is ours */
    uint8_t tags;
};

/* One part of a frame as the driver has it. */
struct tcp_part {
    uint8_t *addr;
    uint32_t len;   /* bytes */
    uint32_t token; /* index of the buffer, < frames_count */
};

struct tcp_range {
    uint32_t start; /* first sequence number */
    uint32_t end;   /* one past the last */
};

/* A run of payload inside part `part` of the frame. */
struct tcp_payload {
    uint8_t *addr;
    uint32_t len;
    uint32_t part;
};

struct tcp_options {
    uint16_t mss;   /* 0: absent */
    uint8_t wscale; /* valid with has_wscale; may be above 14 */
    bool has_wscale;
    bool sack_permitted;
    bool has_ts;
    uint8_t sack_count;
    uint32_t ts_value;
    uint32_t ts_echo;
    struct tcp_range sack[TCP_SACK_BLOCKS_MAX];
};

struct tcp_segment {
    struct tcp_tuple tuple;
    struct tcp_link link;
    uint32_t seq;
    uint32_t ack;
    uint32_t window; /* as on the wire: not scaled */
    uint32_t len;    /* payload bytes */
    uint8_t flags;
    uint8_t ecn; /* enum tcp_ecn */
    struct tcp_options options;
    uint32_t payload_count;
    struct tcp_payload payload[TCP_PARTS_MAX];
};

/* Why a frame is not a segment. Each is a counter of the engine. */
enum tcp_wire_result {
    TCP_WIRE_OK = 0,
    TCP_WIRE_SHORT,        /* a header does not fit its frame, or headers are not in the first part */
    TCP_WIRE_NOT_IP,       /* another Ethernet type, or more than two tags */
    TCP_WIRE_NOT_TCP,      /* another protocol */
    TCP_WIRE_IP_MALFORMED, /* impossible version, header length or total length */
    TCP_WIRE_IP_CHECKSUM,  /* IPv4 header checksum */
    TCP_WIRE_IP_ADDRESS, /* a source (or its MAC) no host on a wire has, or a destination that is no single host */
    TCP_WIRE_FRAGMENT,      /* IPv4 or IPv6 fragment, also an "atomic" one */
    TCP_WIRE_EXTENSION,     /* IPv6 extension headers that are refused: too many, source routes, unknown */
    TCP_WIRE_TCP_MALFORMED, /* data offset or an option's length is impossible */
    TCP_WIRE_CHECKSUM,      /* TCP checksum */
    TCP_WIRE_CHECKSUM_PARTIAL, /* the checksum field holds only the pseudo header's sum: the sender left it to hardware that
                                  was never passed (a veth peer without `tx off`) */
    TCP_WIRE_RESULTS
};

/* Parses a frame. `segment` is filled only on TCP_WIRE_OK, with payload that points into the parts; on TCP_WIRE_CHECKSUM_PARTIAL its
 * tuple is, so that the peer can be named. */
enum tcp_wire_result tcp_wire_parse(const struct tcp_part *parts, uint32_t part_count,
                                    struct tcp_segment *segment);

/* What goes out. `payload_len` bytes already lie behind the headers, at tcp_wire_header_len(). */
struct tcp_out {
    const struct tcp_tuple *tuple;
    const struct tcp_link *link;
    uint32_t seq;
    uint32_t ack;
    uint16_t window;
    uint16_t ip_id;
    uint8_t flags;
    uint8_t ecn;
    bool fragmentable; /* IPv4: leaves "don't fragment" off */
    struct tcp_options options;
};

/* Bytes of the TCP options that `options` needs, a multiple of 4. */
uint32_t tcp_wire_options_len(const struct tcp_options *options);
/* Bytes of all headers in front of the payload. */
uint32_t tcp_wire_headers_len(const struct tcp_out *out);
/* Writes the headers into `buf`, whose payload is in place, with all checksums; pads short frames with zeros up to
 * TCP_FRAME_MIN (`buf` must have that much). `payload_sum` is tcp_checksum_add over the payload. Returns the frame's length. */
uint32_t tcp_wire_emit(const struct tcp_out *out, uint8_t *buf, uint32_t payload_len, uint64_t payload_sum);

/* Internet checksum, in pieces. `sum` is 0 at first; pieces but the last must be of even length. */
uint64_t tcp_checksum_add(uint64_t sum, const uint8_t *from, uint32_t len);
/* Folds to 16 bits in host order, not complemented. */
uint16_t tcp_checksum_fold(uint64_t sum);
/* The sum of a piece that begins at an odd place. */
uint64_t tcp_checksum_swap(uint64_t sum);

#endif
