#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node with `receive: af_xdp` and curl on Linux TCP across a wire that loses packets both ways, on any host: where the VM lane has
# netem (tests/vm/cases/70-xdp-wan.py), here an XDP program on each port of a bridge drops at random.
if [ -z "${XDP_LOSS_PEER:-}" ]; then
	export XDP_LOSS_PEER=psl$$c XDP_LOSS_WIRE=psl$$w
	here=psl$$s
	trap 'for one in "$here" "$XDP_LOSS_WIRE" "$XDP_LOSS_PEER"; do ip netns del "$one" 2>/dev/null; done' EXIT
	for one in "$here" "$XDP_LOSS_WIRE" "$XDP_LOSS_PEER"; do
		ip netns add "$one" || { echo "SKIP xdp-loss: host: no network namespaces"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
		ip -n "$one" link set lo up
	done
	ip -n "$here" link add x0 type veth peer name m0 netns "$XDP_LOSS_WIRE" || exit 1
	ip -n "$XDP_LOSS_WIRE" link add m1 type veth peer name x1 netns "$XDP_LOSS_PEER" || exit 1
	if ! ip -n "$XDP_LOSS_WIRE" link add bridge type bridge; then
		echo "SKIP xdp-loss: host: this kernel has no bridge"; echo "0 passed, 0 failed, 1 skipped"; exit 0
	fi
	for port in m0 m1; do ip -n "$XDP_LOSS_WIRE" link set "$port" master bridge up; done
	ip -n "$XDP_LOSS_WIRE" link set bridge up
	ip -n "$here" addr add 10.81.0.1/24 dev x0
	ip -n "$XDP_LOSS_PEER" addr add 10.81.0.2/24 dev x1
	ip -n "$here" link set x0 up
	ip -n "$XDP_LOSS_PEER" link set x1 up
	ip netns exec "$XDP_LOSS_PEER" ethtool -K x1 tx off >/dev/null
	ip netns exec "$here" ethtool -K x0 gro off >/dev/null
	ip netns exec "$here" "$0"
	exit
fi
. tests/e2e/node.sh
peer() { ip netns exec "$XDP_LOSS_PEER" "$@"; }
# lose PERCENT: from now on, both ways.
lose() {
	# shellcheck disable=SC2086
	clang -O2 -g -target bpf -DPERCENT="$1" $LOSS_INCLUDES -c tests/root/loss.bpf.c -o "$work/loss$1.o" || return 1
	for port in m0 m1; do ip -n "$XDP_LOSS_WIRE" -force link set "$port" xdpdrv obj "$work/loss$1.o" sec xdp || return 1; done
}
there_and_back() {
	local i pids=()
	for i in 1 2 3 4; do peer curl -sSf --max-time 300 -T "$work/body$i" "$s3/bucket/$1-$i" & pids+=($!); done
	for i in "${pids[@]}"; do wait "$i" || return 1; done
	for i in 1 2 3 4; do peer curl -sSf --max-time 300 "$s3/bucket/$1-$i" | cmp - "$work/body$i" || return 1; done
}
LOSS_INCLUDES="-isystem build/deps/kernel-headers/usr/include -isystem build/deps/kernel-headers/usr/include/$(uname -m)-linux-gnu"
node_make 256MiB
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.81.0.1:$port_s3\", receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB/" "$config"
s3=http://10.81.0.1:$port_s3
for i in 1 2 3 4; do head -c $((i * 500009)) /dev/urandom >"$work/body$i"; done
node_start
try "a bucket is made" peer curl -sSf --max-time 60 -X PUT "$s3/bucket"
for percent in 0 1 5; do
	try "the wire loses $percent % each way" lose $percent
	try "$percent %: four objects there and back, bit by bit" there_and_back $percent
done
try "0 % again, so that the end is heard" lose 0
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || tail -20 "$work/node.log"
close_lane
