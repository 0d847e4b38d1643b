#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The node as the unit file runs it: an unprivileged user with ambient capabilities and limits, told to by a service manager's socket.
# What the unit grants is read from the unit itself, so that a capability taken out there is missing here too.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
unit=deploy/systemd/penstock.service
user=nobody
group=$(id -gn nobody)

caps=$(sed -n 's/^AmbientCapabilities=//p' "$unit" | tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
[ -n "$caps" ] || { echo "the unit names no capabilities"; exit 1; }
# The prefix that runs a command as the user with these capabilities and no way to others. An array, so that a command in the
# background is the node itself and not a shell around it.
as_user=(setpriv --reuid "$user" --regid "$group" --clear-groups --no-new-privs)
granted() { echo "--inh-caps=-all,$1 --ambient-caps=-all,$1 --bounding-set=-all,$1"; }
# shellcheck disable=SC2046
with_caps=("${as_user[@]}" $(granted "$caps"))
without=$(sed 's/+ipc_lock,*//' <<<"$caps")
# shellcheck disable=SC2046
no_lock=("${as_user[@]}" $(granted "$without"))

cp "$PENSTOCK" "$work/penstock" && chmod 755 "$work" "$work/penstock"
PENSTOCK=$work/penstock
node_make
# Small enough for the limit of locked memory that every process may have (8 MiB).
sed -i 's/staging_size: 16MiB/staging_size: 2MiB/; s/rx_area_size: [0-9]*MiB/rx_area_size: 1MiB/' "$config"
chown -R "$user:$group" "$work"

try "check passes with what the unit grants" "${with_caps[@]}" "$PENSTOCK" check --config "$config"

# Without IPC_LOCK the limit of locked memory counts, and check says what is missing and how to get it.
memlock() { prlimit --memlock="$1:$1" "${no_lock[@]}" "${@:2}"; }
refused() {
	memlock 1048576 "$PENSTOCK" check --config "$config" >"$work/check.log"
	[ $? = 6 ] && grep -q '^fail  locked memory .*4MiB needed, 1MiB allowed; raise it with ulimit -l, LimitMEMLOCK=' "$work/check.log"
}
try "check refuses a low limit of locked memory and names the remedies" refused
serve_refused() {
	local status=0
	memlock 1048576 "$PENSTOCK" serve --config "$config" 2>"$work/refused.log" || status=$?
	[ "$status" = 1 ] && grep -q 'event=start_failed' "$work/refused.log"
}
try "and serve does not start with it" serve_refused
try "with a limit that suffices no capability is needed" memlock 8388608 "$PENSTOCK" check --config "$config"

# A service manager's socket: READY=1 comes when requests are taken, STOPPING=1 when the drain begins.
cat >"$work/manager.py" <<'END'
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
print("listening", flush=True)
while True:
    print(s.recv(4096).decode(), flush=True)
END
python3 "$work/manager.py" "$work/notify" >"$work/manager.log" &
manager=$!
more_cleanup() { kill -TERM "$manager"; wait "$manager"; } 2>/dev/null
wait_for grep -q listening "$work/manager.log"
chown "$user" "$work/notify"
NOTIFY_SOCKET=$work/notify "${with_caps[@]}" "$PENSTOCK" serve --config "$config" 2>"$work/node.log" &
node=$!
try "the manager hears READY=1" wait_for grep -qx READY=1 "$work/manager.log"
try "and the node is ready then" curl -sf "$admin/readyz"
owner() { [ "$(awk '/^Uid:/ { print $2 }' "/proc/$node/status")" = "$(id -u "$user")" ]; }
try "it runs as the unprivileged user" owner
head -c 300000 /dev/urandom >"$work/file"
round_trip() { curl -sf -X PUT "$s3/bucket" && curl -sf -T "$work/file" "$s3/bucket/k" && curl -sf "$s3/bucket/k" | cmp - "$work/file"; }
try "it stores and gives back" round_trip
node_stop
result "it ends with 0" "$node_status"
try "the manager heard STOPPING=1" grep -qx STOPPING=1 "$work/manager.log"

# receive: af_xdp with what the unit grants and no more: the kernel's verifier is stricter with a program of such a user than of root.
sed -e "/name: bulk/s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB, rx_area_size: 1MiB/address: \"10.78.0.1:$port_s3\", interface: x0, receive: af_xdp, allow_remote_anonymous: true, rx_buffer_size: 4KiB, rx_area_size: 16MiB/" \
	"$config" >"$work/xdp.yaml"
try "af_xdp: check passes" "${with_caps[@]}" "$PENSTOCK" check --config "$work/xdp.yaml"
"${with_caps[@]}" "$PENSTOCK" serve --config "$work/xdp.yaml" 2>"$work/xdp.log" &
node=$!
try "af_xdp: the node becomes ready" wait_for curl -sf "$admin/readyz"
try "  as the unprivileged user" owner
moved() {
	peer curl -sSf --max-time 30 -T "$work/file" "http://10.78.0.1:$port_s3/bucket/xdp" &&
		peer curl -sSf --max-time 30 "http://10.78.0.1:$port_s3/bucket/xdp" | cmp - "$work/file"
}
try "  an object goes and comes through the interface" moved
taken() { curl -s "$admin/metrics" | awk '/^penstock_xdp_frames_total.*verdict="taken"/ { n += $2 } END { exit !(n > 0) }'; }
try "  by the XDP program" wait_for taken
node_stop
result "  it ends with 0" "$node_status"
[ "$failed" = 0 ] || tail -20 "$work/xdp.log"
if command -v systemd-analyze >/dev/null; then
	mkdir -p "$work/unit/bin"
	cp "$PENSTOCK" "$work/unit/bin/penstock"
	# The manual page is not installed here, so its line is left out of the check.
	sed "s,@PREFIX@,$work/unit,; /^Documentation=/d" "$unit" >"$work/unit/penstock.service"
	quiet() { systemd-analyze verify "$work/unit/penstock.service" >"$work/verify.log" 2>&1 && ! grep penstock "$work/verify.log"; }
	try "systemd finds nothing wrong with the unit" quiet
else
	skip "systemd finds nothing wrong with the unit" "host: no systemd here"
fi
close_lane
