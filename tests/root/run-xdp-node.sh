#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A whole node with `receive: af_xdp` on a veth pair: objects put and read back by curl from another network namespace, and by a client
# on the node's own host through the kernel socket. Everything of ours runs in two namespaces of this script's own.
if [ -z "${XDP_NODE_PEER:-}" ]; then
	export XDP_NODE_PEER=psn$$c
	here=psn$$s
	trap 'ip netns del "$here" 2>/dev/null; ip netns del "$XDP_NODE_PEER" 2>/dev/null' EXIT
	if ! ip netns add "$here" || ! ip netns add "$XDP_NODE_PEER"; then
		echo "SKIP xdp-node: host: no network namespaces"; echo "0 passed, 0 failed, 1 skipped"; exit 0
	fi
	ip -n "$here" link add x0 type veth peer name x1 netns "$XDP_NODE_PEER" || exit 1
	ip -n "$here" addr add 10.78.0.1/24 dev x0
	ip -n "$XDP_NODE_PEER" addr add 10.78.0.2/24 dev x1
	ip -n "$here" link set x0 up
	ip -n "$here" link set lo up
	ip -n "$XDP_NODE_PEER" link set x1 up
	ip netns exec "$XDP_NODE_PEER" ethtool -K x1 tx off >/dev/null
	ip netns exec "$here" ethtool -K x0 gro off >/dev/null
	ip netns exec "$here" "$0"
	exit
fi
. tests/e2e/node.sh
peer() { ip netns exec "$XDP_NODE_PEER" "$@"; }
node_make 512MiB
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB/" "$config"
s3=http://10.78.0.1:$port_s3
"$PENSTOCK" check --config "$config" >"$work/check.log" 2>&1
try "check says that the listener takes af_xdp" grep -q '^warn .*receive: af_xdp, native XDP with one copy (as configured' "$work/check.log"
node_start
try "the log names the mode, and why not a better one" grep -q 'xdp_open.*interface=x0.*mode="native XDP with one copy".*zero-copy: ' "$work/node.log"
head -c 67108861 /dev/urandom >"$work/big"
try "a bucket is made from afar" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
try "64 MiB are stored" peer curl -sSf --max-time 60 -T "$work/big" "$s3/bucket/big"
peer curl -sSf --max-time 60 -o "$work/back" "$s3/bucket/big"
try "they come back bit by bit" cmp "$work/big" "$work/back"
try "the host itself reaches the same port through the kernel" curl -sSf --max-time 60 -o "$work/local" "$s3/bucket/big"
try "with the same bytes" cmp "$work/big" "$work/local"
# Whether the device takes packets' payload as it lies is the machine's affair; that metric, log, check and what was copied agree is not.
curl -sf "$admin/metrics" >"$work/metrics"
copied=$(awk '/^penstock_copied_bytes_total{listener="bulk".*reason="(device|kernel)"/ { sum += $2 } END { print sum + 0 }' "$work/metrics")
as_it_lies=$(awk '/^penstock_device_packets_ok/ { print $2 }' "$work/metrics")
agree() { # each of them says whether the device has payload copied
	local is_copied=$((1 - as_it_lies)) said
	said=$(grep -c "event=device_copies.*listener=bulk" "$work/node.log")
	[ "$said" = "$is_copied" ] && [ $((copied > 30000000)) = "$is_copied" ] &&
		{ ! grep -q "^ok.*device.*memory aligned to" "$work/check.log" || [ "$(grep -c "^warn.*is copied once on the way to it" "$work/check.log")" = "$is_copied" ]; }
}
try "a device that has payload copied is told by metric, log and check" agree
many() {
	local i pids=()
	for i in $(seq 16); do
		head -c $((i * 100003)) "$work/big" >"$work/part$i"
		peer curl -sSf --max-time 60 -T "$work/part$i" "$s3/bucket/part$i" & pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || return 1; done
	for i in $(seq 16); do peer curl -sSf --max-time 60 "$s3/bucket/part$i" | cmp - "$work/part$i" || return 1; done
}
try "sixteen uploads at once" many
detached() { ! ip -n "$(ip netns identify $$)" link show x0 | grep -q xdp; }
attached() { ! detached; }
try "the program is attached while the node runs" attached
node_stop
try "the node ends well" test "$node_status" = 0
try "and nothing is attached any more" detached
node_start
kill -KILL "$node"; wait "$node" 2>/dev/null; node=''
try "a killed node leaves no program behind" wait_for detached
# An address that another interface has, and a route to the listener's neighbours that leads to another one: said at the start.
odd() { grep -qE 'event=xdp_(address|route)' "$work/node.log"; }
in_order() { ! odd; }
try "nothing was odd about address and routes so far" in_order
ip link add y0 type veth peer name y1
ip addr add 10.79.0.1/24 dev y0
ip link set y0 up
ip link set y1 up
ip route add 10.78.0.0/30 dev y0 src 10.79.0.1
node_start
try "a route that leads elsewhere is named" grep -q 'event=xdp_route interface=x0 source=10.79.0.1 ' "$work/node.log"
node_stop
ip route del 10.78.0.0/30 dev y0
: >"$work/node.log"
sed -i "s/10.78.0.1:$port_s3/10.79.0.1:$port_s3/" "$config"
node_start
try "an address of another interface is named" grep -q "event=xdp_address interface=x0 port=$port_s3 " "$work/node.log"
try "and is served by the kernel" curl -sSf --max-time 30 -o /dev/null "http://10.79.0.1:$port_s3/bucket/part1"
node_stop
[ "$failed" = 0 ] || tail -20 "$work/node.log"
close_lane
