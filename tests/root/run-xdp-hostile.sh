#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Peers of bad manners by AF_XDP (xdp_hostile.py): whatever they hold, a client beside them is served bit-exact, connections and frames come
# back, the node lives and its log stays short.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
node_make 256MiB
limits="connections_max: 100, head_timeout: 2s, body_timeout: 3s, idle_timeout: 3s, send_timeout: 3s, tcp_user_timeout: 3s, tcp_keepalive: 2s"
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB, rx_area_size: 4MiB, etag: md5"
sed -i -e "/name: bulk/s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB, rx_area_size: 16MiB/address: \"[::]:$port_s3\", $xdp/" \
	-e "/name: bulk/s/connections_max: 256/$limits/" -e "s/address: \"127.0.0.1:$port_admin\"/address: \"10.78.0.1:$port_admin\"/" "$config"
admin=http://10.78.0.1:$port_admin
node_start
while IFS= read -r line; do
	case $line in
	'ok   '*) result "${line#ok   }" 0 ;;
	'FAIL '*) result "${line#FAIL }" 1 ;;
	*) echo "$line" ;;
	esac
done < <(peer python3 tests/root/xdp_hostile.py "$port_s3" "10.78.0.1:$port_admin" ${ATTACKS:-} 2>&1)
try "its log is short" test "$(wc -l <"$work/node.log")" -lt 100
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || { tail -40 "$work/node.log"; echo; wc "$work/node.log"; }
close_lane
