#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The client matrix (tests/e2e/clients) over af_xdp: the node in one network namespace, with an authenticated and an anonymous listener
# on a veth each, the clients and nginx in another. Without arguments a subset that stands for the rest; arguments are matrix.py's
# (`make test-clients RECEIVE=af_xdp` runs everything).
set -u
here=psm$$s
there=psm$$c
cleanup() { ip netns del "$here" 2>/dev/null; ip netns del "$there" 2>/dev/null; }
trap cleanup EXIT
matrix=''
# A lane that takes too long ends this script: the matrix has a node to end in turn.
trap '[ -z "$matrix" ] || kill -TERM "$matrix"; wait; exit 1' INT TERM

if ! ip netns add "$here" || ! ip netns add "$there"; then
	echo "SKIP clients-xdp: host: no network namespaces"; echo "0 passed, 0 failed, 1 skipped"; exit 0
fi
set -e
for pair in "x 10.79" "y 10.80"; do
	read -r name net <<<"$pair"
	ip -n "$here" link add "${name}0" type veth peer name "${name}1" netns "$there"
	ip -n "$here" addr add "$net.0.1/24" dev "${name}0"
	ip -n "$there" addr add "$net.0.2/24" dev "${name}1"
	ip -n "$here" link set "${name}0" up
	ip -n "$there" link set "${name}1" up
	ip netns exec "$there" ethtool -K "${name}1" tx off >/dev/null
	ip netns exec "$here" ethtool -K "${name}0" gro off >/dev/null
done
ip -n "$here" link set lo up
ip -n "$there" link set lo up
set +e
[ $# -gt 0 ] || set -- --client curl --client awscli --client rclone --client boto3 --client s3cmd --transport direct \
	--operation small --operation large --operation multipart --operation ranges --operation list
RECEIVE=af_xdp CLIENTS_NODE_NETNS=$here ip netns exec "$there" tests/e2e/clients/matrix.py "$@" &
matrix=$!
wait "$matrix"
