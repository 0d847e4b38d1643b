#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What operators do to an interface whose AF_XDP listener is in use, and configurations that cannot work: an upload and a download that are
# under way end bit-exact, new ones too, and whatever refuses to start says why, the same by `penstock check` and by `penstock serve`.
QUEUES=2
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
away=${XDP_NODE_PEER}a
more_cleanup() { ip netns del "$away" 2>/dev/null; }
node_make 512MiB
cp "$config" "$work/plain.yaml"
s3=http://10.78.0.1:$port_s3
listener() { # what the listener has besides
	sed -e "/name: bulk/s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", receive: af_xdp, allow_remote_anonymous: true, rx_buffer_size: 4KiB, $1/" \
		"$work/plain.yaml" >"$config"
}
# refused NAME PATTERN [COMMAND...]: the node does not start, and check says so beforehand, in the same words
refused() {
	local name=$1
	export PENSTOCK config work pattern=$2
	shift 2
	try "$name: check says so" bash -c '"$@" "$PENSTOCK" check --config "$config" | grep -q "^fail.*$pattern"' - env "$@"
	try "  and serve" bash -c '! timeout 30 "$@" "$PENSTOCK" serve --config "$config" 2>"$work/refused.log" &&
		grep -q "event=start_failed.*$pattern" "$work/refused.log"' - env "$@"
}
without() { refused "$1" "$2" setpriv --bounding-set="$3"; }

listener "interface: x0"
without "no CAP_NET_RAW" "af_xdp: it needs CAP_NET_RAW;" -net_raw
without "no CAP_NET_ADMIN" "af_xdp: it needs CAP_NET_ADMIN;" -net_admin
without "no capability for BPF" "af_xdp: it needs CAP_BPF;" -bpf,-sys_admin
ip link set x0 down
refused "the interface is down" "the interface is down; ip link set dev x0 up"
ip link set x0 up
listener "interface: lo"
refused "lo" "let .interface. name the NIC"
listener "interface: nosuch0"
refused "an interface that does not exist" "interface nosuch0 does not exist here"
try "  said once, and the listener named once" bash -c '"$PENSTOCK" check --config "$config" >"$work/once.log"
	[ "$(grep -c nosuch0 "$work/once.log")" = 1 ] && ! grep "listener bulk.*listener bulk" "$work/once.log"'
listener "interface: x0, queues: [0, 7]"
refused "a queue that does not exist" "queue 7 is wanted and there are 2, and the interface can have no more"
listener "queues: [0]"
sed -i 's/"10.78.0.1:/"0.0.0.0:/' "$config"
refused "all addresses without an interface" "is every address of this host; name the NIC by .interface."

ip link add y0 numrxqueues 1 numtxqueues 1 type veth peer name y1 numrxqueues 2 numtxqueues 2
ip link set y0 up && ip link set y1 up
listener "interface: y0"
refused "a veth whose peer has more queues" "a veth has XDP only when its peer has no more transmit queues"
ip link del y0

listener "interface: x0, queues: [0, 7]"
ethtool -K x0 gro on
try "nic plan: what cannot be brings no commands" bash -c '"$PENSTOCK" nic plan --config "$config" >"$work/plan.log"
	grep -q "^  cannot: .*queue 7" "$work/plan.log" && ! grep "^  ethtool" "$work/plan.log"'
listener "interface: x0"
try "  and otherwise they are there" bash -c '"$PENSTOCK" nic plan --config "$config" | grep -q "^  ethtool -K x0 rx-gro off"'
sed -i 's/receive: af_xdp/receive: auto/' "$config"
try "  auto, which takes socket, has a plan for socket" bash -c '"$PENSTOCK" nic plan --config "$config" >"$work/plan.log"
	grep -A3 "listener bulk: x0, .* for socket" "$work/plan.log" | grep -q "nothing to change" && ! grep -E "cannot:|^  ethtool" "$work/plan.log"'
ethtool -K x0 gro off
listener "interface: x0"
sed -i 's/workers: 1/workers: 3/' "$config"
try "more workers than queues: check says which are idle" bash -c \
	'"$PENSTOCK" check --config "$config" | grep -q "^warn .*2 queues for 3 workers: the last 1 receive nothing"'
listener "interface: x0"
node_start
head -c 12000003 /dev/urandom >"$work/big"
try "a bucket is made" peer curl -sSf --max-time 30 -X PUT "$s3/bucket"
try "an object is put" peer curl -sSf --max-time 60 -T "$work/big" "$s3/bucket/first"
cat >"$work/flow.py" <<'END'
"""An upload that goes on, and downloads one after the other, until there is a line on standard input; then what was put is read back."""
import hashlib, http.client, select, sys, threading
port, key, want = int(sys.argv[1]), sys.argv[2], open(sys.argv[3], "rb").read()
def request(method, what, body=None):
    connection = http.client.HTTPConnection("10.78.0.1", port, timeout=60)
    connection.request(method, "/bucket/" + what, body, encode_chunked=body is not None, headers={"Transfer-Encoding": "chunked"} if body else {})
    answer = connection.getresponse()
    return answer.status, answer.read()
over, bad, downloads = threading.Event(), [], 0
def download():
    global downloads
    while not over.is_set() or downloads == 0:
        try:
            status, body = request("GET", "first")
            if status != 200 or body != want:
                bad.append(f"download: {status}, {len(body)} bytes")
        except OSError as error:
            bad.append(f"download: {error!r}")
        downloads += 1
        if bad:
            return
hashed, sent = hashlib.sha256(), 0
def pieces():
    global sent
    while not select.select([sys.stdin], [], [], 0.01)[0] or sent < 10:
        piece = want[sent * 7919 % 1000000:][:60001]
        hashed.update(piece)
        sent += 1
        if sent == 5:
            print("under way", flush=True)
        yield piece
thread = threading.Thread(target=download)
thread.start()
try:
    status, _ = request("PUT", key, pieces())
    over.set()
    again, body = request("GET", key)
    if (status, again) != (200, 200) or hashlib.sha256(body).digest() != hashed.digest():
        bad.append(f"upload: {status} {again}, {len(body)} bytes")
except OSError as error:
    bad.append(f"upload: {error!r}")
over.set()
thread.join()
print("ended", "bad" if bad else "good", sent, downloads, bad, flush=True)
END
count=0
# during NAME COMMAND...: an upload and downloads are under way when it happens
during() {
	local name=$1
	shift
	count=$((count + 1))
	rm -f "$work/go"
	mkfifo "$work/go"
	peer python3 "$work/flow.py" "$port_s3" "o$count" "$work/big" <"$work/go" >"$work/flow.log" 2>&1 &
	local flow=$!
	exec 7>"$work/go"
	try "$name: transfers are under way" wait_for grep -q "under way" "$work/flow.log"
	"$@" >"$work/during.log" 2>&1
	echo go >&7
	exec 7>&-
	wait "$flow"
	try "  and end bit-exact" grep "ended good" "$work/flow.log"
	grep -q "ended good" "$work/flow.log" || cat "$work/flow.log"
}
down_up() { ip link set x0 down; wait_for grep -q nic_down "$work/node.log"; ip link set x0 up; }
foreign() { ip link set dev x0 xdp off; }
no_address() { ip addr del 10.78.0.1/24 dev x0; ip addr add 10.78.0.1/24 dev x0; }
fewer_queues() { ethtool -L x0 rx 1 tx 1; }
renamed() { ip link set x0 down; ip link set x0 name "$2"; ip link set "$2" up; }
other_mac() { ip link set x0 address 02:00:0a:4e:00:77; ip -n "$XDP_NODE_PEER" neigh flush dev x1; }
elsewhere() {
	ip netns add "$away"
	ip link set x0 netns "$away"
	wait_for grep -q xdp_lost "$work/node.log"
	ip -n "$away" link set x0 netns $$
	ip addr add 10.78.0.1/24 dev x0
	ip link set x0 up
}
during "the link goes down and up" down_up
during "somebody wants the program off" foreign
try "  and may not" grep -qi "error" "$work/during.log"
during "the address goes and comes" no_address
during "queues are to be fewer" fewer_queues
during "another MAC address" other_mac
ip link set x0 down && ip link set x0 name y0 && ip link set y0 up
try "a new name: an upload" peer curl -sSf --max-time 60 -T "$work/big" "$s3/bucket/renamed"
ip link set y0 down && ip link set y0 name x0 && ip link set x0 up
during "to another network namespace and back" elsewhere
try "  the sockets were renewed" grep -q xdp_renewed "$work/node.log"

# What is lost meanwhile is the peer's: its packets are larger than the interface takes. New connections agree on smaller ones.
ip link set x0 mtu 1300
try "a smaller MTU is said" wait_for grep -q 'event=xdp_mtu interface=x0 mtu=1300' "$work/node.log"
try "  an upload of a peer whose own is larger" peer curl -sSf --max-time 60 -T "$work/big" "$s3/bucket/mtu"
peer curl -sSf --max-time 60 -o "$work/back" "$s3/bucket/mtu"
try "  and the download" cmp "$work/big" "$work/back"
ip link set x0 mtu 3000
try "a larger MTU than at the start is said" wait_for grep -q 'event=xdp_mtu interface=x0 mtu=3000' "$work/node.log"
during "with it" true

sed -e "s#$work/data#$work/data2#; s#$work/store.img#$work/store2.img#; s/10.78.0.1:$port_s3/10.78.0.1:1/; s/:$port_raw/:2/; s/:$port_admin/:3/" "$config" >"$work/two.yaml"
"$PENSTOCK" format --config "$work/two.yaml" >/dev/null
config=$work/two.yaml
refused "a second node on the interface" "another XDP program is attached (number [0-9]*, xsk_one: a penstock node); .*bpftool link detach"
config=$work/node.yaml
try "the node that has it is not in its own way: check" "$PENSTOCK" check --config "$config"
try "  probe" bash -c '! "$PENSTOCK" probe --config "$config" | grep -E "does not start|XDP program is attached"'
try "  nic plan" bash -c '! "$PENSTOCK" nic plan --config "$config" | grep -E "XDP program is attached"'
terminated() { kill -TERM "$node"; wait_for grep -q event=draining "$work/node.log"; }
peer python3 -c 'import socket, sys
s = socket.create_connection(("10.78.0.1", int(sys.argv[1])), timeout=60)
s.sendall(b"PUT /bucket/last HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n")
print(s.recv(100).split()[1].decode(), flush=True)
s.sendall(b"l" * 400000)
sys.stdin.readline()
s.sendall(b"l" * 600000)
print(s.recv(100).split()[1].decode(), flush=True)' "$port_s3" < <(wait_for grep -q event=draining "$work/node.log"; echo go) >"$work/last.log" 2>&1 &
last=$!
try "SIGTERM: an upload is under way" wait_for grep -qx 100 "$work/last.log"
node_stop
try "  the node ends well" test "$node_status" = 0
wait "$last"
try "  and the upload" grep -qx 200 "$work/last.log"
try "its log is short" test "$(wc -l <"$work/node.log")" -lt 100
[ "$failed" = 0 ] || tail -40 "$work/node.log"
close_lane
