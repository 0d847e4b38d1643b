#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An interface gets more receive queues while a node by AF_XDP serves it: each new queue gets a socket, of the worker whose turn it is, an
# upload under way lives on, no new connection is lost; a queue that another socket has is served as soon as that is gone; and when the
# interface is made anew with fewer queues the node serves those.
QUEUES=7
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
. "$(dirname "$0")/xdp_more_queues.sh"
node_make 1GiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i -e "s/workers: 1/workers: 2/" -e "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", $xdp/" "$config"
s3=http://10.78.0.1:$port_s3
node_start
head -c 1000003 /dev/urandom >"$work/small"
head -c 24000003 /dev/urandom >"$work/big"
try "a bucket is made" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
try "one queue is served" gauge queues_one_copy 1
try "connections over one queue" many one 4
peer curl -sS --max-time 90 --limit-rate 4M -T "$work/big" "$s3/bucket/long" >"$work/curl.log" 2>&1 &
upload=$!
received() { [ "$(value "penstock_payload_received_bytes_total{$labels}")" -ge 2000000 ]; }
try "an upload is under way" wait_for received
try "four queues instead of one" channels 4
try "  each is served" wait_for gauge queues_one_copy 4
try "  while the upload goes on" kill -0 "$upload"
try "  none is not" gauge queues_unserved 0
try "  which the log tells" test "$(grep -c 'event=xdp_queue_added.*interface=x0' "$work/node.log")" = 3
wait "$upload"
try "  the upload ends" test $? = 0
long() { peer curl -sSf --max-time 60 "$s3/bucket/long" | cmp - "$work/big"; }
try "  bit-exact" long
no_socket() { value "penstock_xdp_frames_total{$labels,verdict=\"no_socket\"}"; }
before=$(no_socket) # until each worker has looked
try "  the status page names their mode" bash -c "curl -sf '$admin/' | grep -q 'as configured; native XDP with one copy: 4 queues'"
try "  24 new connections, of which none waits" many four 12
both() { [ "$(value 'penstock_worker_connections_peak{worker="0"}')" -gt 0 ] && [ "$(value 'penstock_worker_connections_peak{worker="1"}')" -gt 0 ]; }
try "  both workers have some" wait_for both
try "  no frame came where no socket is" test "$(no_socket)" = "$before"
# The node is held up until another socket has one of the new queues: worker 0 gets neither that nor its next one, worker 1 its own.
taken() {
	local line='' rc
	kill -STOP "$node"
	channels 7 && { coproc holder { exec "$(dirname "$0")/xdp_hold.py" x0 4; }; } && read -r line <&"${holder[0]}"
	[ "$line" = held ]; rc=$?
	kill -CONT "$node"
	return "$rc"
}
try "three more queues, of which another socket has one" taken
try "  that and the next one of this worker are not served" wait_for gauge queues_unserved 2
try "  the others are" wait_for gauge queues_one_copy 5
told() { [ "$(grep -c 'event=xdp_queue_unserved.*queue=4' "$work/node.log")" = 1 ]; }
try "  which the log tells" told
hold_pid=$holder_PID hold_in=${holder[1]}
exec {hold_in}>&-
wait "$hold_pid"
try "once the other socket is gone all are served" wait_for gauge queues_one_copy 7
try "  none is not" wait_for gauge queues_unserved 0
try "  and the log did not tell each trial" told
try "  connections over all of them" many seven 8
ip link del x0
try "made anew with two queues: the log tells that it was lost" wait_for grep -q 'event=xdp_lost' "$work/node.log"
QUEUES=2 pair_make
try "  two queues are served" wait_for gauge queues_one_copy 2
try "  connections" many two 12
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || tail -40 "$work/node.log"
close_lane
