#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A veth peer that leaves checksums to hardware there is not: its segments are dropped, never believed, and the log names what is wrong,
# who it is and what to do. Done as the log says, the same peer is served. Both families.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
node_make 256MiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"[::]:$port_s3\", $xdp/" "$config"
labels='listener="bulk",protocol="s3",path="af_xdp"'
value() { curl -sf "$admin/metrics" | awk -v want="penstock_xdp_tcp_total{$labels,event=\"$1\"}" '$1 == want { print $2 }'; }
resets() { awk '$1 == "Tcp:" && $15 != "OutRsts" { print $15 }' /proc/net/snmp; }
at_least() { [ "$(value "$1")" -ge "$2" ]; }
node_start
head -c 3000003 /dev/urandom >"$work/big"
before=$(resets) dropped=0 syns=0
for ends in "10.78.0.1 10.78.0.2" "[fd78::1] fd78::2"; do
	read -r host address <<<"$ends"
	peer ethtool -K x1 tx on >/dev/null
	ip netns exec "$XDP_NODE_PEER" curl -s --max-time 30 -X PUT "http://$host:$port_s3/bucket" >/dev/null 2>&1 & # not peer: $! is to be curl
	client=$!
	try "$host: partial checksums are counted by that name" wait_for at_least drop_checksum_partial $((dropped + 1))
	try "$host: and by no other" test "$(value drop_checksum)" = 0
	told="event=xdp_partial_checksums interface=x0 peer=$address .*ethtool -K INTERFACE tx off"
	try "$host: the log names the peer and what to do there" wait_for grep -q "$told" "$work/node.log"
	try "$host: it goes on" wait_for at_least drop_checksum_partial $((dropped + 3))
	try "$host: and the log has said it once" test "$(grep -c "event=xdp_partial_.*=$address " "$work/node.log")" = 1
	try "$host: nothing of it was believed" test "$(value syns_in)" = "$syns"
	kill "$client" 2>/dev/null
	wait "$client"
	peer ethtool -K x1 tx off >/dev/null
	try "$host: with computed ones a bucket is made" peer curl -sSf --max-time 30 -X PUT "http://$host:$port_s3/bucket"
	try "$host: an object is stored" peer curl -sSf --max-time 60 -T "$work/big" "http://$host:$port_s3/bucket/big"
	peer curl -sSf --max-time 60 -o "$work/back" "http://$host:$port_s3/bucket/big"
	try "$host: and comes back bit by bit" cmp "$work/big" "$work/back"
	wait_for at_least syns_in $((syns + 3)) # one for each curl; the counters are written a few times a second
	dropped=$(value drop_checksum_partial) syns=$(value syns_in)
done
try "the kernel has reset nobody" test "$(resets)" = "$before"
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || tail -20 "$work/node.log"
close_lane
