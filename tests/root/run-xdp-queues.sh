#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One node, two workers, three listeners on one interface of three queues, all by AF_XDP: connections spread over queues, workers and
# listeners and every object comes back. IPv4 and IPv6, an address and "any", S3 and raw.
QUEUES=3
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
node_make 512MiB
port_any=$(free_ports 1)
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i -e "s/workers: 1/workers: 2/" \
	-e "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", $xdp/" \
	-e "s/address: \"127.0.0.1:$port_raw\"/address: \"10.78.0.1:$port_raw\", $xdp/" \
	-e "/name: pipe/a\\  - { name: all, protocol: s3, address: \"[::]:$port_any\", $xdp, rx_area_size: 8MiB, limits: { connections_max: 64, uploads_max: 64 } }" "$config"
s3=http://10.78.0.1:$port_s3
any=http://10.78.0.1:$port_any
any6="http://[fd78::1]:$port_any"
sed -i "/name: bulk/s/rx_area_size: 16MiB/rx_area_size: 128MiB/" "$config"
node_start
# What check says is taken is what is there right after the start, but for the program itself and its libraries.
said=$("$PENSTOCK" check --config "$config" | sed -n 's/.* per worker, x 2 = \([0-9]*\)MiB; available.*/\1/p')
taken=$(awk '/^VmRSS:/ { print int($2 / 1024) }' "/proc/$node/status")
as_said() { echo "check: $said MiB, resident: $taken MiB"; [ -n "$said" ] && [ "$taken" -le $((said + 48)) ]; }
try "it takes no more memory than check says" as_said
try "each queue has a socket, of the worker whose turn it is" test "$(grep -c 'event=xdp_open.*interface=x0' "$work/node.log")" = 3
head -c 2000003 /dev/urandom >"$work/big"
try "a bucket is made" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
many() { # BASE-URL NAME: 24 connections at once
	local i pids=()
	for i in $(seq 24); do
		peer curl -sSf --max-time 60 -T "$work/big" "$1/bucket/$2$i" & pids+=($!)
	done
	for i in "${pids[@]}"; do wait "$i" || return 1; done
	for i in $(seq 24); do peer curl -sSf --max-time 60 "$1/bucket/$2$i" | cmp - "$work/big" || return 1; done
}
try "24 uploads at once to the first listener, read back" many "$s3" a
try "the same to the one that listens on any address" many "$any" b
try "the same by IPv6" many "$any6" c
raw() { peer python3 -c 'import socket, sys
s = socket.create_connection(("10.78.0.1", int(sys.argv[1])), 60)
s.sendall(open(sys.argv[2], "rb").read()); s.shutdown(socket.SHUT_WR)
print(s.makefile().readline())' "$port_raw" "$work/big"; }
try "a raw stream to the third" raw
ip addr add 10.78.0.9/24 dev x0
later() { peer curl -sSf --max-time 5 -o "$work/later" "http://10.78.0.9:$port_any/bucket/b1" && cmp "$work/later" "$work/big"; }
try "an address that comes later belongs to any, too" wait_for later
curl -sf "$admin/metrics" >"$work/metrics"
value() { awk -v want="$1" '$1 == want { print $2 }' "$work/metrics"; }
labels='listener="bulk",protocol="s3",path="af_xdp"'
for listener in bulk:s3 all:s3; do
	opened=$(value "penstock_connections_opened_total{listener=\"${listener%:*}\",protocol=\"${listener#*:}\",path=\"af_xdp\"}")
	try "listener ${listener%:*} counts its own connections" test "$opened" -ge 48
done
try "nothing arrived on a queue without socket" test "$(value "penstock_xdp_frames_total{$labels,verdict=\"no_socket\"}")" = 0
try "the program's counter and the sockets' tell the same story" test "$(value "penstock_xdp_frames_total{$labels,verdict=\"taken\"}")" -ge "$(value "penstock_xdp_socket_total{$labels,event=\"received\"}")"
try "ARP and neighbour discovery passed to the kernel" test "$(value "penstock_xdp_frames_total{$labels,verdict=\"pass_not_ip\"}")" -gt 0
try "the engine's counters are there" test "$(value "penstock_xdp_tcp_total{$labels,event=\"conns_opened\"}")" -ge 96
both() { for i in 0 1; do [ "$(value "penstock_worker_connections_peak{worker=\"$i\"}")" -gt 0 ] || return 1; done; }
try "both workers had connections" both
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || tail -20 "$work/node.log"
close_lane
