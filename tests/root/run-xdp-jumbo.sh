#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node by AF_XDP with MTU 3498, the largest whose frames fit one buffer, and 9000, where they need three (xdp.frags, Linux 6.6): objects
# go in and out bit by bit. Of jumbo frames all but the first buffer's payload is moved once, which is counted. The traffic really is of
# that size: the peer's segments say so.
PAIR_MTU=3498
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
node_make 512MiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", $xdp/" "$config"
s3=http://10.78.0.1:$port_s3
labels='listener="bulk",protocol="s3",path="af_xdp"'
size=48000003
head -c $size /dev/urandom >"$work/big"
value() { awk -v want="$1" '$1 == want { print $2 }' "$work/metrics"; }
tcp() { value "penstock_xdp_tcp_total{$labels,event=\"$1\"}"; }
counted() { curl -sf "$admin/metrics" >"$work/metrics" && [ "$(tcp bytes_in)" -gt "$size" ]; }
round() { # MTU
	peer curl -sSf --max-time 60 -T "$work/big" "$s3/bucket/m$1" || return 1
	peer curl -sSf --max-time 60 "$s3/bucket/m$1" | cmp - "$work/big"
}
node_start
try "a bucket is made" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
try "MTU 3498: stored and read back" round 3498
try "MTU 3498: the counters are there" wait_for counted
# The average of all segments, those of the request included, is near what the MTU holds (3498 - 52).
try "MTU 3498: segments of that size" test $(($(tcp bytes_in) / $(tcp segments_in))) -gt 1448
try "MTU 3498: one buffer a frame, nothing is moved" test "$(value "penstock_rx_moved_bytes_total{$labels}")" = 0
node_stop
ip link del x0; PAIR_MTU=9000; pair_make
node_start
try "MTU 9000: stored and read back" round 9000
try "MTU 9000: the counters are there" wait_for counted
try "MTU 9000: segments of that size" test $(($(tcp bytes_in) / $(tcp segments_in))) -gt 3446
moved=$(value "penstock_rx_moved_bytes_total{$labels}")
try "MTU 9000: what lies behind the first buffer is moved, and no more" test "$moved" -gt $((size / 3)) -a "$moved" -lt "$size"
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || { grep -a "copied_bytes\|moved" "$work/metrics"; tail -20 "$work/node.log"; }
close_lane
