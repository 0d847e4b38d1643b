#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An interface gets more receive queues while a node with few frames serves it: the sockets of the old queues have most of them, and each
# new queue gets its share all the same, or packets that arrive there are dropped.
QUEUES=6
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
. "$(dirname "$0")/xdp_more_queues.sh"
node_make 1GiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i -e "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB, rx_area_size: 16MiB/address: \"10.78.0.1:$port_s3\", $xdp, rx_area_size: 1MiB/" "$config"
s3=http://10.78.0.1:$port_s3
node_start
head -c 100003 /dev/urandom >"$work/small"
try "a bucket is made" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
try "connections over one queue" many one 2
try "six queues instead of one" channels 6
try "  each is served" wait_for gauge queues_one_copy 6
# The peer sends by one of its queues from here on, so that all arrives on the last of x0's, and none on those that had the frames.
last() {
	local queue
	for queue in 0 1 2 3 4; do
		echo 0 >"/sys/class/net/x1/queues/tx-$queue/xps_cpus" || return 1
	done
	printf '%x\n' $(((1 << $(nproc --all)) - 1)) >/sys/class/net/x1/queues/tx-5/xps_cpus
}
if peer bash -c "$(declare -f last); last" 2>"$work/xps.log"; then
	try "  connections over the last of them alone" many last 3
else
	skip "connections over the last of them alone" "no XPS: $(tail -1 "$work/xps.log")"
fi
try "  the log tells why the sockets were renewed" grep -q 'event=xdp_lost.*shared out anew' "$work/node.log"
renewed() { [ "$(value "penstock_xdp_socket_total{$labels,event=\"renewed\"}")" = "$1" ]; }
try "  which was done once" renewed 1
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || tail -40 "$work/node.log"
close_lane
