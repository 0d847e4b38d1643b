# SPDX-License-Identifier: Apache-2.0
# Shared by end-to-end scripts: a node on free ports in a temporary folder, result lines, clean-up. Sourced. It must not leave
# processes or files behind, however the script ends.
#
#   node_make [SIZE]   folder $work with node.yaml (listeners bulk and pipe, admin) and a formatted store
#   node_start         starts it, waits for readiness; $node is its process id
#   node_stop          SIGTERM, waits; the exit code is in $node_status
#   result NAME STATUS one line per test; skip NAME REASON; close_lane prints the totals and exits

set -u
: "${PENSTOCK:=build/penstock}"
passed=0 failed=0 skipped=0
node=''

work=$(mktemp -d /tmp/penstock-e2e.XXXXXX)
cleanup() {
	[ -z "$node" ] || kill -KILL "$node" 2>/dev/null
	declare -F more_cleanup >/dev/null && more_cleanup
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

result() {
	if [ "$2" = 0 ]; then passed=$((passed + 1)) && echo "ok   $1"; else failed=$((failed + 1)) && echo "FAIL $1"; fi
}
skip() { skipped=$((skipped + 1)); echo "SKIP $1: $2"; }
# Runs a command as a test: its output is shown only when it fails.
try() {
	local name=$1
	shift
	if "$@" >"$work/try.log" 2>&1; then result "$name" 0; else sed 's/^/     /' "$work/try.log"; result "$name" 1; fi
}
close_lane() {
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" = 0 ]
	exit
}

# Ports nobody listens on now, found by asking the kernel for each while all are held.
free_ports() {
	python3 -c 'import socket, sys
s = [socket.socket() for _ in range(int(sys.argv[1]))]
for x in s: x.bind(("127.0.0.1", 0))
print(*[x.getsockname()[1] for x in s])' "$1"
}

# Polls a condition until it holds; false after 60 s.
wait_for() {
	local deadline=$((SECONDS + 60))
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $deadline ] || return 1
		read -rt 0.05 <> <(:) || true
	done
}

node_make() {
	read -r port_s3 port_raw port_admin < <(free_ports 3)
	s3=http://127.0.0.1:$port_s3
	admin=http://127.0.0.1:$port_admin
	config=$work/node.yaml
	cat >"$config" <<-END
		node:      { name: e2e, data_dir: $work/data, workers: 1, staging_size: 16MiB, drain_timeout: 20s }
		store:
		  devices: [ { path: $work/store.img, size: ${1:-256MiB} } ]
		listeners:
		  - { name: bulk, protocol: s3,  address: "127.0.0.1:$port_s3", rx_buffer_size: 128KiB, rx_area_size: 16MiB, limits: { connections_max: 256, uploads_max: 256 } }
		  - { name: pipe, protocol: raw, address: "127.0.0.1:$port_raw", rx_area_size: 8MiB, bucket: captures, key_template: "{seq}", limits: { connections_max: 64, uploads_max: 64 } }
		admin:     { address: "127.0.0.1:$port_admin" }
	END
	"$PENSTOCK" format --config "$config" >"$work/format.log" 2>&1 || { cat "$work/format.log"; exit 1; }
}

node_start() {
	"$PENSTOCK" serve --config "$config" 2>>"$work/node.log" &
	node=$!
	wait_for curl -sf "$admin/readyz" || { cat "$work/node.log"; echo "the node did not become ready"; exit 1; }
}

node_stop() {
	kill -TERM "$node"
	wait "$node"
	node_status=$?
	node=''
}
