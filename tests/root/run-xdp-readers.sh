#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Peers that ask for much by AF_XDP and do not read, on a node with few buffers: whoever reads is served all the same, and those who begin
# to read later get every byte on the connection on which they asked.
. "$(dirname "$0")/xdp_pair.sh"
. tests/e2e/node.sh
node_make 256MiB
xdp="receive: af_xdp, interface: x0, allow_remote_anonymous: true, rx_buffer_size: 4KiB"
sed -i -e "s/address: \"127.0.0.1:$port_s3\", rx_buffer_size: 128KiB/address: \"10.78.0.1:$port_s3\", $xdp/" \
	-e "s/staging_size: 16MiB/staging_size: 4MiB/" "$config"
s3=http://10.78.0.1:$port_s3
node_start
head -c 24000003 /dev/urandom >"$work/big"
try "a bucket is made" peer curl -sSf --max-time 60 -X PUT "$s3/bucket"
try "an object is put" peer curl -sSf --max-time 120 -T "$work/big" "$s3/bucket/big"
cat >"$work/readers.py" <<'END'
import socket, sys
port, want = int(sys.argv[1]), open(sys.argv[2], "rb").read()
def ask():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    s.settimeout(200)
    s.connect(("10.78.0.1", port))
    s.sendall(b"GET /bucket/big HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return s
stalled = [ask() for _ in range(24)]
print("stalled", flush=True)
sys.stdin.readline()
bad = 0
for s in stalled:
    got = b""
    try:
        while piece := s.recv(1 << 20):
            got += piece
    except OSError as error:
        print(error)
    bad += got.partition(b"\r\n\r\n")[2] != want
print("bad", bad, flush=True)
END
mkfifo "$work/go"
peer python3 "$work/readers.py" "$port_s3" "$work/big" <"$work/go" >"$work/readers.log" 2>&1 &
readers=$!
exec 7>"$work/go"
try "24 peers ask and do not read" wait_for grep -q stalled "$work/readers.log"
labels='listener="bulk",protocol="s3",path="af_xdp"'
value() { curl -sf "$admin/metrics" | awk -v want="$1" '$1 == want { print $2 }'; }
for i in 1 2 3; do
	peer curl -sSf --max-time 200 -o "$work/back$i" "$s3/bucket/big"
	try "one that reads is served, $i" cmp "$work/back$i" "$work/big"
done
recalled() { [ "$(value "penstock_sends_recalled_total{$labels}")" -ge 1 ]; }
try "because sends were recalled" recalled
echo go >&7
wait "$readers"
try "all that read later get every byte" grep -qx 'bad 0' "$work/readers.log"
try "nobody was reset" test "$(value "penstock_limits_hit_total{$labels,limit=\"stuck\"}")" = 0
node_stop
try "the node ends well" test "$node_status" = 0
[ "$failed" = 0 ] || { cat "$work/readers.log"; tail -20 "$work/node.log"; }
close_lane
