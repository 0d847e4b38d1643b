#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node whose listeners can receive nothing is not ready, says which and why, and becomes ready again by itself: the link is down, the
# interface is removed and made anew, another XDP program is in the way. One deaf listener of two is named, and the node stays ready.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
foreign_object=$(ls build/gen/xsk_prog.bpf.o 2>/dev/null)
node_make 256MiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", $xdp/" "$config"
cp "$config" "$work/mixed.yaml"
sed -i "s/address: \"127.0.0.1:$port_raw\"/address: \"10.78.0.1:$port_raw\", $xdp/" "$config"
s3=http://10.78.0.1:$port_s3
status() { curl -s -o "$work/ready" -w '%{http_code}' "$admin/readyz"; }
ready() { [ "$(status)" = 200 ]; }
deaf() { [ "$(status)" = 503 ] && grep -q "listener bulk receives nothing: x0 $1" "$work/ready" && grep -q "listener pipe receives nothing: x0 $1" "$work/ready"; }
value() { curl -sf "$admin/metrics" | awk -v want="$1" '$1 == want { print $2 }'; }
gauge() { [ "$(value 'penstock_listener_deaf{listener="bulk",protocol="s3",path="af_xdp"}')" = "$1" ]; }
downs() { [ "$(value penstock_nic_down_total)" = "$1" ]; }
node_start
try "a node that hears says ok and no more" test "$(curl -s "$admin/readyz")" = ok
ip link set x0 down
try "the link is down: not ready, and each listener is named" wait_for deaf "is down"
try "  by the metric, too" gauge 1
try "  and the node is alive" curl -sf -o /dev/null "$admin/healthz"
ip link set x0 up
try "it is up: ready again" wait_for ready
try "  by the metric, too" gauge 0
ip link del x0
try "the interface is removed: not ready" wait_for deaf "is gone"
pair_make
try "it is made anew: ready again" wait_for ready
try "  it is watched again" wait_for grep -q 'event=nic_back interface=x0' "$work/node.log"
before=$(value penstock_nic_down_total)
ip link set x0 down
try "  and going down is counted" wait_for downs $((before + 1))
ip link set x0 up
try "  ready again" wait_for ready
# Each time the node's own program is taken off there is a moment before it is back.
taken() { "$(dirname "$0")/xdp_detach.py" "$node" >/dev/null; ip link set dev x0 xdp obj "$foreign_object" sec xdp; }
if [ -z "$foreign_object" ]; then
	skip "another XDP program" "no build/gen/xsk_prog.bpf.o to attach"
else
	try "another XDP program is attached" wait_for taken
	try "  not ready" wait_for deaf "has not our XDP program"
	try "  which the log says" wait_for grep -q 'event=xdp_not_reattached interface=x0' "$work/node.log"
	ip link set dev x0 xdp off
	try "  it is gone: ready again" wait_for ready
fi
served() { peer curl -sSf --max-time 10 "$s3/"; }
try "and serves" wait_for served
node_stop
try "the node ends well" test "$node_status" = 0
config=$work/mixed.yaml
node_start
ip link set x0 down
named() { ready && grep -qx "listener bulk receives nothing: x0 is down" "$work/ready"; }
try "one of two listeners is deaf: ready, and named" wait_for named
try "  by the metric, too" gauge 1
try "  and the other serves" bash -c "exec 3<>/dev/tcp/127.0.0.1/$port_raw"
ip link set x0 up
hears() { ready && [ "$(cat "$work/ready")" = ok ]; }
try "  until it hears again" wait_for hears
node_stop
[ "$failed" = 0 ] || tail -30 "$work/node.log"
close_lane
