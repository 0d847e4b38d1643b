#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node by AF_XDP behind a router whose other link takes smaller packets: the router says so by ICMP and ICMPv6, the engine makes its
# packets smaller, and objects arrive. The client's own interface knows nothing of it, so that its MSS does not help.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
far=${XDP_NODE_PEER%c}f
more_cleanup() { ip netns del "$far" 2>/dev/null; }
ip netns add "$far" || { skip xdp-pmtu "host: no network namespaces"; close_lane; }
beyond() { ip netns exec "$far" "$@"; }
ip -n "$XDP_NODE_PEER" link add r1 mtu 1500 type veth peer name c1 netns "$far" mtu 1500
ip -n "$XDP_NODE_PEER" addr add 10.79.0.1/24 dev r1
ip -n "$XDP_NODE_PEER" -6 addr add fd79::1/64 dev r1 nodad
ip -n "$XDP_NODE_PEER" link set r1 up
ip -n "$far" addr add 10.79.0.2/24 dev c1
ip -n "$far" -6 addr add fd79::2/64 dev c1 nodad
ip -n "$far" link set lo up
ip -n "$far" link set c1 up
ip -n "$far" route add default via 10.79.0.1
ip -n "$far" -6 route add default via fd79::1
peer sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.icmp_ratelimit=0
beyond ethtool -K c1 tx off >/dev/null
ip -n "$XDP_NODE_PEER" route replace 10.79.0.0/24 dev r1 mtu lock 1300
ip -n "$XDP_NODE_PEER" -6 route replace fd79::/64 dev r1 proto kernel metric 256 mtu lock 1300
ip route add 10.79.0.0/24 via 10.78.0.2
ip -6 route add fd79::/64 via fd78::2
node_make 256MiB
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"[::]:$port_s3\", receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB/" "$config"
s3=http://10.78.0.1:$port_s3
s3v6="http://[fd78::1]:$port_s3"
node_start
head -c 6000003 /dev/urandom >"$work/big"
labels='listener="bulk",protocol="s3",path="af_xdp"'
tcp() { curl -sf "$admin/metrics" | awk -v want="penstock_xdp_tcp_total{$labels,event=\"$1\"}" '$1 == want { print $2 }'; }
at_least() { [ "$(tcp "$1")" -ge "$2" ]; }
try "a bucket is made through the router" beyond curl -sSf --max-time 30 -X PUT "$s3/bucket"
try "an object is stored through it" beyond curl -sSf --max-time 60 -T "$work/big" "$s3/bucket/big"
back() { beyond curl -sSf --max-time 60 "$1/bucket/big" | cmp - "$work/big"; }
try "IPv4: it comes back" back "$s3"
try "IPv4: the connection's packets were made smaller" wait_for at_least mtu_reductions 1
try "IPv6: it comes back" back "$s3v6"
try "IPv6: the connection's packets were made smaller" wait_for at_least mtu_reductions 2
try "no time-out had to find it" test "$(tcp black_holes)" = 0
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || tail -20 "$work/node.log"
close_lane
