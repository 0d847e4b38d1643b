// SPDX-License-Identifier: GPL-2.0
/*
 * A bad wire for hosts without netem (tests/root/run-xdp-loss.sh): drops PERCENT of the IPv4 and IPv6 packets that come in, at random.
 * ARP passes, so that the two ends find each other.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int lose(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *data_end = (void *)(long)ctx->data_end;
    const struct ethhdr *eth = data;

    if ((void *)(eth + 1) > data_end || eth->h_proto == bpf_htons(ETH_P_ARP))
        return XDP_PASS;
    return bpf_get_prandom_u32() % 100 < PERCENT ? XDP_DROP : XDP_PASS;
}

char _license[] SEC("license") = "GPL";
