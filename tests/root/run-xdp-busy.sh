#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A node by AF_XDP with busy polling: what it needs of the NIC is named, set and put back; the worker polls while there is traffic and
# sleeps without; objects come back bit by bit. What happens when the driver makes no progress: tests/vm/cases/75-xdp-stuck.py.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
node_make 512MiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB, busy_poll: 2ms"
sed -i "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", $xdp/" "$config"
s3=http://10.78.0.1:$port_s3
"$PENSTOCK" check --config "$config" >"$work/check.log" 2>&1
try "check names what busy polling asks of the NIC" \
	grep -q 'busy_poll: interrupts go on meanwhile; run `echo 2 > /sys/class/net/x0/napi_defer_hard_irqs && echo 200000 > ' "$work/check.log"
"$PENSTOCK" probe >"$work/probe.log" 2>&1
try "so does probe" grep -q 'busy_poll: napi_defer_hard_irqs 0, gro_flush_timeout 0: interrupts go on' "$work/probe.log"
sed -i "s/busy_poll: 2ms/busy_poll: 2ms, manage_nic: true/" "$config"
"$PENSTOCK" nic plan --config "$config" >"$work/plan.log" 2>&1
try "and nic plan" grep -q 'napi_defer_hard_irqs && echo' "$work/plan.log"
node_start
is_set() { [ "$(cat "/sys/class/net/x0/$1")" = "$2" ]; }
try "the node sets one" is_set napi_defer_hard_irqs 2
try "and the other" is_set gro_flush_timeout 200000
try "the log tells that it polls" grep -q 'event=xdp_busy_on interface=x0 linger_us=2000' "$work/node.log"
labels='listener="bulk",protocol="s3",path="af_xdp"'
value() { curl -sf "$admin/metrics" | awk -v want="penstock_xdp_socket_total{$labels,event=\"$1\"}" '$1 == want { print $2 }'; }
has_polled() { [ "$(value busy_polls)" -ge "$1" ]; }
head -c 30000003 /dev/urandom >"$work/big"
try "a bucket is made" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
try "an upload while the worker polls" peer curl -sSf --max-time 60 -T "$work/big" "$s3/bucket/polled"
peer curl -sSf --max-time 60 -o "$work/back" "$s3/bucket/polled"
try "comes back bit by bit" cmp "$work/big" "$work/back"
try "it has polled" wait_for has_polled 10
last_polls=''
sleeps() {
	local polls
	polls=$(value busy_polls)
	[ "$polls" = "$last_polls" ] && return 0
	last_polls=$polls
	return 1
}
try "and sleeps when nothing comes" wait_for sleeps
node_stop
try "the node ends well" test "$node_status" = 0
try "the first setting is put back" is_set napi_defer_hard_irqs 0
try "and the second" is_set gro_flush_timeout 0
node_start
kill -KILL "$node"; wait "$node" 2>/dev/null; node=''
try "a killed node leaves them" is_set gro_flush_timeout 200000
"$PENSTOCK" nic undo --config "$config" >"$work/undo.log" 2>&1
try "and nic undo puts them back" is_set gro_flush_timeout 0
[ "$failed" = 0 ] || tail -20 "$work/node.log"
close_lane
