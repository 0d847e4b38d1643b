#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Network namespaces joined by veth, IPv4 and IPv6, with delay and loss from netem, as the network cases need.
# vm-modules: veth sch_netem
. /vm/lib.sh

need ip netns add peer
need ip link add v0 type veth peer name v1 netns peer
need ip addr add 10.9.0.1/24 dev v0
need ip addr add fd00:9::1/64 dev v0 nodad
need ip link set v0 up
need ip -n peer addr add 10.9.0.2/24 dev v1
need ip -n peer addr add fd00:9::2/64 dev v1 nodad
need ip -n peer link set v1 up
ok "the peer answers over IPv4" ping -c 1 -W 5 10.9.0.2
ok "the peer answers over IPv6" ping -6 -c 1 -W 5 fd00:9::2
need tc qdisc add dev v0 root netem delay 40ms
delay=$(ping -c 1 -W 5 10.9.0.2 | sed -n 's/.*time=\([0-9]*\).*/\1/p')
if [ "${delay:-0}" -ge 40 ]; then pass "netem delays by 40 ms"; else fail "netem delays by 40 ms" "ping took ${delay:-nothing} ms"; fi
ip link del v0
ip netns del peer
