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
head -c 3000000 /dev/urandom >/tmp/payload
nc -l -p 7000 >/tmp/arrived &
until_true 5 sh -c 'grep -q ":1B58 " /proc/net/tcp6' || fail "the receiver listens" "it does not"
ip netns exec peer nc 10.8.0.1 7000 </tmp/payload
wait $!
ok "3 MB arrive unchanged" cmp /tmp/payload /tmp/arrived
nsim_remove
ok "the module unloads" rmmod netdevsim
