# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts that run a whole node with `receive: af_xdp`: a veth pair between two network namespaces of the script's own,
# 10.78.0.1 on x0 here and 10.78.0.2 on x1 there, whose checksums are computed (`tx off`). Sourced before node.sh; the script starts
# itself again inside. QUEUES says how many queues the pair has, PAIR_MTU its MTU.
if [ -z "${XDP_NODE_PEER:-}" ]; then
	export XDP_NODE_PEER=psn$$c
	here=psn$$s
	trap 'ip netns del "$here" 2>/dev/null; ip netns del "$XDP_NODE_PEER" 2>/dev/null' EXIT
	if ! ip netns add "$here" || ! ip netns add "$XDP_NODE_PEER"; then
		echo "SKIP ${0##*/}: host: no network namespaces"; echo "0 passed, 0 failed, 1 skipped"; exit 0
	fi
	ip -n "$here" link set lo up
	ip -n "$XDP_NODE_PEER" link set lo up
	ip netns exec "$here" "$0"
	exit
fi
peer() { ip netns exec "$XDP_NODE_PEER" "$@"; }
# Made with fixed addresses, so that a pair made anew is the same one to whoever remembers neighbours.
pair_make() {
	local queues=${QUEUES:-1} mtu=${PAIR_MTU:-1500}
	ip link add x0 address 02:00:0a:4e:00:01 mtu "$mtu" numrxqueues "$queues" numtxqueues "$queues" type veth \
		peer name x1 netns "$XDP_NODE_PEER" address 02:00:0a:4e:00:02 mtu "$mtu" numrxqueues "$queues" numtxqueues "$queues" || exit 1
	ip addr add 10.78.0.1/24 dev x0
	ip -6 addr add fd78::1/64 dev x0 nodad
	ip -n "$XDP_NODE_PEER" addr add 10.78.0.2/24 dev x1
	ip -n "$XDP_NODE_PEER" -6 addr add fd78::2/64 dev x1 nodad
	ip link set x0 up
	ip -n "$XDP_NODE_PEER" link set x1 up
	peer ethtool -K x1 tx off >/dev/null && ethtool -K x0 gro off >/dev/null || exit 1
}
pair_make
