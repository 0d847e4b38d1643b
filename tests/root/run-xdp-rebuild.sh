#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node by AF_XDP whose XDP program is taken off, whose link goes down, and whose interface is removed and made anew, each in the middle
# of an upload: every upload ends bit by bit, on the connection it began on, and the kernel never answers for the node's port.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
node_make 512MiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", $xdp/" "$config"
s3=http://10.78.0.1:$port_s3
node_start
head -c 40000003 /dev/urandom >"$work/big"
try "a bucket is made" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
labels='listener="bulk",protocol="s3",path="af_xdp"'
value() { curl -sf "$admin/metrics" | awk -v want="$1" '$1 == want { print $2 }'; }
resets() { awk '$1 == "Tcp:" && $15 != "OutRsts" { print $15 }' /proc/net/snmp; }
received() { [ "$(value "penstock_payload_received_bytes_total{$labels}")" -ge "$1" ]; }
happened() { [ "$(value "penstock_xdp_socket_total{$labels,event=\"$1\"}")" -ge "$2" ]; }
logged() { grep -q "event=$1" "$work/node.log"; }
begun=0
# Uploads at a pace that leaves time, runs what disturbs once the upload is under way, and waits for its end.
disturbed() { # NAME COMMAND...
	local name=$1 status
	shift
	peer curl -sS --max-time 90 --limit-rate 20M -T "$work/big" "$s3/bucket/$name" >"$work/curl.log" 2>&1 &
	local upload=$!
	wait_for received $((begun + 4000000)) || return 1
	"$@" || { kill "$upload"; return 1; }
	wait "$upload"; status=$?
	begun=$((begun + 40000003))
	[ "$status" = 0 ] || { cat "$work/curl.log"; return 1; }
	peer curl -sSf --max-time 60 "$s3/bucket/$name" | cmp - "$work/big"
}
before=$(resets)
try "an upload lives on when somebody takes the program off" disturbed detached "$(dirname "$0")/xdp_detach.py" "$node"
try "which the log tells" logged xdp_reattached
try "and the metrics" wait_for happened reattached 1
is_down() { ip link show x0 | grep -q 'state DOWN'; }
bounce() { ip link set x0 down && wait_for is_down && ip link set x0 up && ip -6 addr add fd78::1/64 dev x0 nodad; }
try "an upload lives on when the link goes down and up" disturbed bounced bounce
again() { ip link del x0 && wait_for logged xdp_lost && pair_make; }
try "an upload lives on when the interface is removed and made anew" disturbed renewed again
try "which the log tells, too" logged 'xdp_renewed.*connections=1'
try "and the metrics, too" wait_for happened renewed 1
try "the kernel has reset nobody" test "$(resets)" = "$before"
try "the host itself still reaches the port" curl -sSf --max-time 60 -o /dev/null "$s3/bucket/renewed"
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || tail -30 "$work/node.log"
close_lane
