# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts in which an interface gets more queues under a node: one queue to begin with, how many it gets, what the metrics
# say of them, connections one after the other. Sourced after node.sh; the transfers need $s3, and $work/small to send.
channels() { ethtool -L x0 rx "$1" tx "$1" && peer ethtool -L x1 rx "$1" tx "$1"; }
if ! { peer ethtool -L x1 rx 1 tx 1 && ethtool -L x0 rx 1 tx 1; } >/dev/null 2>&1; then
	skip "more queues" "host: veth has no channels to set on this kernel"
	close_lane
fi
labels='listener="bulk",protocol="s3",path="af_xdp"'
value() { curl -sf "$admin/metrics" | awk -v want="$1" '$1 == want { print $2 }'; }
gauge() { [ "$(value "penstock_xdp_held{$labels,state=\"$1\"}")" = "$2" ]; }
# Connections one after the other, so that a silent queue shows as one that times out.
many() {
	for i in $(seq "$2"); do
		peer curl -sSf --connect-timeout 8 --max-time 60 -T "$work/small" "$s3/bucket/$1$i" || return 1
		peer curl -sSf --connect-timeout 8 --max-time 60 "$s3/bucket/$1$i" | cmp - "$work/small" || return 1
	done
}
