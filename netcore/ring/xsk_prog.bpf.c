// SPDX-License-Identifier: GPL-2.0
/*
 * The XDP program of an af_xdp listener: TCP to our addresses and ports goes to the AF_XDP socket of the queue it arrived on;
 * everything else (ARP, ND, ICMP, SSH) is the kernel's. It decides where a frame goes and judges nothing: checksums, lengths and
 * options are the engine's.
 *
 * What is ours never reaches the kernel, whose TCP would answer with RST for connections it does not know:
 *  - a queue without a socket drops (the flags of bpf_redirect_map say what a miss means);
 *  - a first fragment for one of our ports is dropped. Later ones name no port; without the first the kernel cannot put them together;
 *  - TCP or an endless chain of IPv6 extension headers to an address of ours, with no port to be found, is dropped.
 * The verifier must take it with CAP_BPF and CAP_NET_ADMIN alone: no CAP_PERFMON. Then nothing unknown is added to a pointer and no
 * pointer is compared but with the end of the frame; tests/root/run-unprivileged.sh is what fails otherwise.
 * Kernel: Linux 5.18 (xdp.frags, bpf_xdp_load_bytes); the program `xsk_one` is for drivers with frames of one buffer.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xsk_prog.h"

#define TAGS_MAX 2       /* as the engine */
#define EXTENSIONS_MAX 8 /* more than the engine takes */
#define FRAGMENT_OFFSET 0x1fff
#define FRAGMENT_MORE 0x2000

struct tag {
    __be16 id;
    __be16 protocol;
};

struct extension {
    __u8 next;
    __u8 len;      /* units of 8 bytes beyond the first */
    __be16 offset; /* fragment header only: offset, two zero bits, more */
};

struct ports {
    __be16 source;
    __be16 dest;
};

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 1); /* the loader sets it to the queues of the interface */
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096);
    __type(key, struct xsk_prog_key);
    __type(value, __u32);
} listeners SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct xsk_prog_settings);
} settings SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, XSK_PROG_REASONS);
    __type(key, __u32);
    __type(value, __u64);
} reasons SEC(".maps");

static __always_inline int end(__u32 reason, int verdict)
{
    __u64 *count = bpf_map_lookup_elem(&reasons, &reason);

    if (count)
        *count += 1;
    return verdict;
}

static __always_inline int is_ours(struct xsk_prog_key *key, __be16 port)
{
    key->port = port;
    return bpf_map_lookup_elem(&listeners, key) != NULL;
}

static __always_inline int unclear(struct xsk_prog_key *key)
{
    return is_ours(key, 0) ? end(XSK_PROG_UNCLEAR, XDP_DROP) : end(XSK_PROG_PASS_NOT_OURS, XDP_PASS);
}

/* Frames of other stations are seen when the interface is promiscuous or a switch floods. */
static __always_inline int is_our_mac(const struct ethhdr *eth)
{
    __u32 zero = 0;
    const struct xsk_prog_settings *set = bpf_map_lookup_elem(&settings, &zero);

    return set && eth->h_dest[0] == set->mac[0] && eth->h_dest[1] == set->mac[1] &&
           eth->h_dest[2] == set->mac[2] && eth->h_dest[3] == set->mac[3] && eth->h_dest[4] == set->mac[4] &&
           eth->h_dest[5] == set->mac[5];
}

/* Copies what may lie anywhere in the frame. Without CAP_PERFMON the verifier takes no addition of a number it does not know to a
 * pointer, so offsets that depend on the frame are for this helper only; what nearly all frames have is read in place. */
static __always_inline int read(struct xdp_md *ctx, __u32 offset, void *to, __u32 len)
{
    return bpf_xdp_load_bytes(ctx, offset, to, len) == 0;
}

static __always_inline int decide(struct xdp_md *ctx, const struct ethhdr *eth, struct xsk_prog_key *key,
                                  __be16 port, int is_fragment)
{
    if (port == 0 || !is_ours(key, port)) /* 0 is the address's own entry */
        return end(XSK_PROG_PASS_NOT_OURS, XDP_PASS);
    if (!is_our_mac(eth))
        return end(XSK_PROG_FOREIGN_MAC, XDP_DROP);
    if (is_fragment)
        return end(XSK_PROG_FRAGMENT, XDP_DROP);
    if (bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP) != XDP_REDIRECT)
        return end(XSK_PROG_NO_SOCKET, XDP_DROP);
    return end(XSK_PROG_TAKEN, XDP_REDIRECT);
}

/* `ports` are those of a header without options; `at` is where one with options begins, 0 when it has none. A pointer cannot say which:
 * comparing one with NULL is another thing that takes CAP_PERFMON. */
static __always_inline int ipv4(struct xdp_md *ctx, const struct ethhdr *eth, const struct iphdr *ip,
                                const struct ports *ports, __u32 at)
{
    struct xsk_prog_key key = {.addr = {[10] = 0xff, [11] = 0xff}};
    struct ports found = {};
    __u32 fragment;

    /* What is no IPv4 header the kernel drops, whoever it is for. */
    if (ip->version != 4 || ip->ihl < 5)
        return end(XSK_PROG_PASS_NOT_IP, XDP_PASS);
    if (ip->protocol != IPPROTO_TCP)
        return end(XSK_PROG_PASS_NOT_TCP, XDP_PASS);
    fragment = bpf_ntohs(ip->frag_off);
    if (fragment & FRAGMENT_OFFSET)
        return end(XSK_PROG_PASS_NOT_OURS, XDP_PASS);
    __builtin_memcpy(key.addr + 12, &ip->daddr, 4);
    if (at == 0)
        found.dest = ports->dest;
    else if (!read(ctx, at + ip->ihl * 4u, &found, sizeof(found)))
        return unclear(&key);
    return decide(ctx, eth, &key, found.dest, (fragment & FRAGMENT_MORE) != 0);
}

/* `at` is the offset of what follows the header. */
static __always_inline int ipv6_extended(struct xdp_md *ctx, const struct ethhdr *eth,
                                         struct xsk_prog_key *key, __u8 next, __u32 at)
{
    struct extension ext = {};
    struct ports ports = {};
    int is_fragment = 0, i;

#pragma unroll
    for (i = 0; i < EXTENSIONS_MAX; i++) {
        if (next == IPPROTO_TCP) {
            if (!read(ctx, at, &ports, sizeof(ports)))
                return unclear(key);
            return decide(ctx, eth, key, ports.dest, is_fragment);
        }
        if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
            next != IPPROTO_FRAGMENT)
            return end(XSK_PROG_PASS_NOT_TCP, XDP_PASS);
        if (!read(ctx, at, &ext, sizeof(ext)))
            return unclear(key);
        at += (ext.len + 1u) * 8;
        if (next == IPPROTO_FRAGMENT) {
            if (bpf_ntohs(ext.offset) & 0xfff8)
                return end(XSK_PROG_PASS_NOT_OURS, XDP_PASS);
            is_fragment = 1;
            at -= ext.len * 8u;
        }
        next = ext.next;
    }
    return unclear(key);
}

/* As ipv4. */
static __always_inline int ipv6(struct xdp_md *ctx, const struct ethhdr *eth, const struct ipv6hdr *ip,
                                const struct ports *ports, __u32 at)
{
    struct xsk_prog_key key = {};

    if (ip->version != 6)
        return end(XSK_PROG_PASS_NOT_IP, XDP_PASS);
    __builtin_memcpy(key.addr, &ip->daddr, 16);
    if (at == 0)
        return decide(ctx, eth, &key, ports->dest, 0);
    return ipv6_extended(ctx, eth, &key, ip->nexthdr, at + sizeof(*ip));
}

/* Tags, options, extensions, and what is too short to be ours. */
static __always_inline int steer_odd(struct xdp_md *ctx, const struct ethhdr *eth)
{
    __be16 protocol = eth->h_proto;
    __u32 at = sizeof(*eth);
    struct ipv6hdr six = {};
    struct iphdr four = {};
    struct tag tag = {};
    int i;

#pragma unroll
    for (i = 0; i < TAGS_MAX; i++) {
        if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
            break;
        if (!read(ctx, at, &tag, sizeof(tag)))
            return end(XSK_PROG_PASS_NOT_IP, XDP_PASS);
        protocol = tag.protocol;
        at += sizeof(tag);
    }
    if (protocol == bpf_htons(ETH_P_IP) && read(ctx, at, &four, sizeof(four)))
        return ipv4(ctx, eth, &four, NULL, at);
    if (protocol == bpf_htons(ETH_P_IPV6) && read(ctx, at, &six, sizeof(six)))
        return ipv6(ctx, eth, &six, NULL, at);
    return end(XSK_PROG_PASS_NOT_IP, XDP_PASS);
}

/* Nearly every frame has no tag, no option and no extension. */
static __always_inline int steer(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *data_end = (void *)(long)ctx->data_end;
    const struct ethhdr *eth = data;
    const struct iphdr *four = data + sizeof(*eth);
    const struct ipv6hdr *six = data + sizeof(*eth);
    const struct ports *ports;

    if ((void *)(eth + 1) > data_end)
        return end(XSK_PROG_PASS_NOT_IP, XDP_PASS);
    ports = (void *)(four + 1);
    if (eth->h_proto == bpf_htons(ETH_P_IP) && (void *)(ports + 1) <= data_end && four->ihl == 5)
        return ipv4(ctx, eth, four, ports, 0);
    ports = (void *)(six + 1);
    if (eth->h_proto == bpf_htons(ETH_P_IPV6) && (void *)(ports + 1) <= data_end &&
        six->nexthdr == IPPROTO_TCP)
        return ipv6(ctx, eth, six, ports, 0);
    return steer_odd(ctx, eth);
}

SEC("xdp")
int xsk_one(struct xdp_md *ctx)
{
    return steer(ctx);
}

SEC("xdp.frags")
int xsk_frags(struct xdp_md *ctx)
{
    return steer(ctx);
}

char _license[] SEC("license") = "GPL";
