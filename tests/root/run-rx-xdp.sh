#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The receive contract over AF_XDP and our own TCP engine: a veth pair between two network namespaces of this script's own, clients on
# Linux TCP at the far end. Their checksums are computed by `tx off`; veth would otherwise hand over partial ones.
set -u
here=psx$$s
there=psx$$c
log=$(mktemp)
passed=0 failed=0 skipped=0
cleanup() { ip netns del "$here" 2>/dev/null; ip netns del "$there" 2>/dev/null; rm -f "$log"; }
trap cleanup EXIT

ip netns add "$here" && ip netns add "$there" || { echo "SKIP rx-xdp: host: no network namespaces"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
set -e
ip -n "$here" link add x0 mtu "${MTU:-1500}" type veth peer name x1 mtu "${MTU:-1500}" netns "$there"
ip -n "$here" addr add 10.77.0.1/24 dev x0
ip -n "$there" addr add 10.77.0.2/24 dev x1
for link in "$here x0" "$here lo" "$there x1" "$there lo"; do
	# shellcheck disable=SC2086
	set -- $link; ip -n "$1" link set "$2" up
done
ip netns exec "$there" ethtool -K x1 tx off >/dev/null
ip netns exec "$here" ethtool -K x0 gro off >/dev/null
set +e

RX_STEPS=${RX_STEPS:-1500} RX_BACKEND=af_xdp RX_INTERFACE=x0 RX_QUEUE=0 RX_ADDRESS=10.77.0.1 RX_NETNS=$there RX_BUFFER_SIZE=4096 \
	ip netns exec "$here" "${CONTRACT:-build/tests/contract/test_rx_contract}" --tap -j1 --timeout 60 >"$log" 2>&1
while read -r line; do
	case $line in
	"ok - "*SKIP*) echo "SKIP ${line#ok - }"; skipped=$((skipped + 1)) ;;
	"ok - "*) echo "ok ${line#ok - }"; passed=$((passed + 1)) ;;
	"not ok - "*) echo "FAIL ${line#not ok - }"; grep -A6 -F "$line" "$log" | sed 1d; failed=$((failed + 1)) ;;
	esac
done <"$log"
[ $((passed + failed)) -gt 0 ] || { echo "FAIL the contract test did not run"; tail -5 "$log"; failed=1; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
