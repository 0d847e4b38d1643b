#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Our netdevsim loads into the stock kernel and carries TCP between two namespaces.  What it does as a
# zero-copy NIC is tested by later cases.
# vm-need: nsim
# vm-have: netdevsim
. /vm/lib.sh

ok "the module loads" load netdevsim
need nsim_pair 4
is "it has 4 receive queues" 4 "$(ls -d /sys/class/net/nsim0/queues/rx-* | wc -l)"
ok "the peer answers over IPv4" ip netns exec peer ping -c 1 -W 5 10.8.0.1
ok "the peer answers over IPv6" ip netns exec peer ping -6 -c 1 -W 5 fd00:8::1
mkdir -p /tmp/served
head -c 3000000 /dev/urandom >/tmp/served/payload
ip netns exec peer python3 -m http.server --directory /tmp/served 7000 >/dev/null 2>&1 &
server=$!
# Not by --retry of curl, which waits twice as long each time.
need until_true 30 curl -sf -o /tmp/arrived http://10.8.0.2:7000/payload
ok "3 MB arrive unchanged" cmp /tmp/served/payload /tmp/arrived
kill $server
wait $server
nsim_remove
ok "the module unloads" rmmod netdevsim
